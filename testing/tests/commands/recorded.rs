//! The shipped scripts as managers send them: a workload on recorders, and then the same commands, at the same times, on a real
//! server.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use devnodes::eventually;
use fastrand::Rng;
use quorlock::LockManager;
use quorlock_testing::store::{Reply, Value};

use crate::pair::Pair;
use crate::recorder::{Recorder, What, raise_numbers};
use crate::{TestResult, command, is_long, sources};

/// Commands about the connection that sent them. Their replies depend on the server.
const OF_CONNECTIONS: [&[u8]; 4] = [b"CLIENT", b"INFO", b"ROLE", b"SELECT"];

/// How far ahead a clock can be that has raised counters: microseconds.
const AHEAD: u64 = 5_000_000;

/// Longer than the workload.
const LIFE: Duration = Duration::from_secs(120);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

struct World {
    recorders: Vec<Recorder>,
    /// Two clients.
    locks: [LockManager; 2],
}

impl World {
    fn new(run_ids: &[String]) -> Result<World, Box<dyn std::error::Error>> {
        let recorders = run_ids
            .iter()
            .map(|id| Recorder::start(id))
            .collect::<Result<Vec<_>, _>>()?;
        let manager = || {
            let urls: Vec<_> = recorders.iter().map(Recorder::url).collect();
            LockManager::builder(urls)
                .response_timeout(Duration::from_secs(10))
                .ttl(LIFE)
                .build()
        };
        let locks = [manager()?, manager()?];
        // New servers: quarantine first, then an operator's word.
        assert!(locks[0].mutex("new").try_lock().is_err());
        eventually("all nodes vote", || {
            let vouched = locks[0].admin().vouch().iter().all(|node| node.is_fine());
            vouched
                && locks
                    .iter()
                    .all(|locks| locks.mutex("warm-up").try_lock().is_ok())
        });
        Ok(World { recorders, locks })
    }

    fn raise_counters(&self) {
        self.recorders
            .iter()
            .for_each(|recorder| raise_numbers(recorder, AHEAD));
    }

    /// One node loses all that expires, but for counters.
    fn lose_locks(&self, node: usize) {
        for (key, value) in self.recorders[node].contents() {
            let is_number =
                matches!(&value, Value::Text(text) if text.iter().all(u8::is_ascii_digit));
            if !is_number
                && self.recorders[node].send(command([b"PTTL", &key[..]])) != Reply::Int(-1)
            {
                self.recorders[node].send(command([b"DEL", &key[..]]));
            }
        }
    }

    /// One client holds it, extends it, heals it on a node that has lost it, and gives it to the waiting other.
    fn contend<G: Send>(
        &self,
        take: &(dyn Fn(&LockManager) -> Result<G, quorlock::AcquireError> + Sync),
        extend: impl Fn(&G) -> bool,
    ) -> TestResult {
        let [own, other] = &self.locks;
        for _ in 0..2 {
            // From the second time on there are counters that can be raised.
            drop(take(own)?);
            self.raise_counters();
        }
        let guard = take(own)?;
        thread::scope(|scope| {
            let waits = scope.spawn(|| take(other).map(drop).is_ok());
            eventually("the other waits", || other.stats().waiting == 1);
            // Not all nodes need to have granted it, so the loss of one may end the hold. What is recorded counts, and not who wins.
            extend(&guard);
            self.lose_locks(2);
            extend(&guard);
            drop(guard);
            assert!(waits.join().unwrap_or_default());
        });
        // One node alone is ahead: readers lift the others.
        raise_numbers(&self.recorders[0], AHEAD);
        drop(take(own)?);
        Ok(())
    }

    /// Every kind of lock, and what operators do.
    fn work(&self) -> TestResult {
        let [own, other] = &self.locks;
        self.contend(&|locks| locks.mutex("a").lock(), |guard| {
            guard.extend(LIFE).is_ok()
        })?;
        self.contend(&|locks| locks.multi_lock(["a", "b"]).lock(), |guard| {
            guard.extend(LIFE).is_ok()
        })?;
        self.contend(&|locks| locks.rw_lock("c").write(), |guard| {
            guard.extend(LIFE).is_ok()
        })?;
        self.contend(&|locks| locks.semaphore("s", 1).acquire(), |guard| {
            guard.extend(LIFE).is_ok()
        })?;

        let book = own.rw_lock("c");
        let reader = book.read()?;
        assert!(other.rw_lock("c").try_read().is_ok() && other.rw_lock("c").try_write().is_err());
        self.lose_locks(1);
        reader.extend(LIFE)?;
        drop(reader);
        drop(book.write()?);
        // No two are alike, so that readers lift one whichever two answer first.
        (1..)
            .zip(&self.recorders)
            .for_each(|(quarters, recorder)| raise_numbers(recorder, quarters * AHEAD / 4));
        drop(other.rw_lock("c").read()?);

        let permits = [
            own.semaphore("s", 3).acquire()?,
            other.semaphore("s", 3).acquire()?,
        ];
        let guard = own.mutex("a").lock()?;
        own.mutex("c").inspect()?;
        own.semaphore("s", 3).inspect()?;
        assert!(own.list("*")?.locks().len() >= 2);
        other.admin().release(&own.mutex("a").inspect()?)?;
        drop((permits, guard));
        for (locks, name) in [(own, "a"), (other, "b")] {
            let job = locks.once(name).every(LIFE).at_most_once();
            assert!(job.run(|_| Err::<(), _>("failed")).is_err());
            let _ = job.clone().again(true).run(|_| Ok::<_, String>(()))?;
            // The others copy it.
            let record = format!("quorlock:done:{name}");
            self.recorders[1].send(command([b"DEL", record.as_bytes()]));
            let _ = job.run(|_| Ok::<_, String>(()))?;
        }
        drop(own.mutex("a").lock()?);
        Ok(())
    }

    /// Clients that do anything, and keys that become anything.
    fn riot(&self, seed: u64, steps: usize) {
        thread::scope(|scope| {
            for (seed, locks) in (seed..).zip(self.locks.iter().cycle().take(4)) {
                scope.spawn(move || step(&mut Rng::with_seed(seed), locks, steps));
            }
            let mut random = Rng::with_seed(!seed);
            for _ in 0..2 * steps {
                thread::sleep(Duration::from_micros(random.u64(0..2_000)));
                let recorder = &self.recorders[random.usize(0..self.recorders.len())];
                let Some((key, _)) = random.choice(recorder.contents()) else {
                    continue;
                };
                let key = &key[..];
                match random.u8(0..10) {
                    0 => drop(recorder.send(command([b"DEL", key]))),
                    1 => drop(recorder.send(command([b"SET", key, b"somebody", b"PX", b"3"]))),
                    2 => {
                        recorder.send(command([b"DEL", key]));
                        recorder.send(command([b"HSET", key, b"field", b"value"]));
                        recorder.send(command([b"PEXPIRE", key, b"2"]));
                    }
                    3 => raise_numbers(recorder, random.u64(0..3_000)),
                    4 => drop(recorder.send(command([b"SET", key, b"12", b"PX", b"2"]))),
                    _ => drop(recorder.send(command([
                        b"PEXPIRE",
                        key,
                        random.u8(1..9).to_string().as_bytes(),
                    ]))),
                }
            }
        });
    }
}

/// What one thread does. Much of it fails: another client has the lock, or a key is in the way.
fn step(random: &mut Rng, locks: &LockManager, steps: usize) {
    for _ in 0..steps {
        let (patience, pause) = (
            ms(random.u64(0..15)),
            Duration::from_micros(random.u64(0..3_000)),
        );
        let name = if random.bool() { "a" } else { "b" };
        let hold = |extend: &dyn Fn() -> bool| {
            thread::sleep(pause);
            extend();
        };
        match random.u8(0..10) {
            0 | 1 => drop(
                locks
                    .mutex(name)
                    .try_lock_for(patience)
                    .map(|it| hold(&|| it.extend(LIFE).is_ok())),
            ),
            2 | 3 => {
                let lock = locks.multi_lock(["a", "b"]);
                drop(
                    lock.try_lock_for(patience)
                        .map(|it| hold(&|| it.extend(LIFE).is_ok())),
                );
            }
            4 | 5 => {
                let lock = locks.rw_lock(name);
                drop(
                    lock.try_read_for(patience)
                        .map(|it| hold(&|| it.extend(LIFE).is_ok())),
                );
            }
            6 => drop(locks.rw_lock(name).try_write_for(patience)),
            7 | 8 => {
                let lock = locks.semaphore("s", 2);
                drop(
                    lock.try_acquire_for(patience)
                        .map(|it| hold(&|| it.extend(LIFE).is_ok())),
                );
            }
            _ => {
                drop((locks.mutex(name).inspect(), locks.list("*")));
                let job = locks
                    .once(name)
                    .every(Duration::from_secs(1))
                    .wait_for(patience);
                drop(job.run(|_| {
                    thread::sleep(pause);
                    Ok::<_, String>(())
                }));
            }
        }
    }
}

#[test]
fn the_scripts_of_managers_do_the_same_on_a_real_server() -> TestResult {
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let Some(pair) = Pair::start()? else {
            return Ok(());
        };
        pairs.push(pair);
    }
    let run_ids: Vec<_> = pairs.iter().map(|pair| pair.run_id().to_owned()).collect();
    let world = World::new(&run_ids)?;
    world.work()?;
    let (seeds, steps) = if is_long() { (20, 200) } else { (1, 150) };
    (0..seeds).for_each(|seed| world.riot(100 * seed, steps));
    let World { recorders, locks } = world;
    locks.iter().for_each(LockManager::shutdown);

    let (mut ran, mut count) = (BTreeSet::new(), 0);
    for (pair, recorder) in pairs.iter_mut().zip(&recorders) {
        for event in recorder.take_events() {
            pair.go_to(event.at)?;
            match event.what {
                What::Ended => pair.end(event.connection)?,
                What::Sent(command, _) if command[0] == b"SUBSCRIBE" => {
                    pair.subscribe(event.connection, &command[1])?
                }
                What::Sent(command, _) if OF_CONNECTIONS.contains(&&command[0][..]) => {}
                What::Sent(command, script) => {
                    ran.extend(script);
                    count += 1;
                    pair.run(&[command])?;
                }
            }
        }
        pair.compare_messages()?;
    }
    assert!(count > 1_000, "{count} commands");
    for (name, source) in sources::read()? {
        assert!(
            ran.contains(&sources::hash(&source)),
            "{name}.lua did not run"
        );
    }
    Ok(())
}
