//! More calls at once than the nodes can answer in time.
//!
//! Lines to the nodes are narrow, so that how much they can take does not depend on the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use devnodes::{Proxy, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, LockGuard, LockManager};

use crate::support::*;

/// Bytes of requests a second: some two hundred locks can be taken in that.
const NARROW: u32 = 70_000;

/// A manager of three nodes behind lines that can be made narrow. Ten seconds without an answer are an outage.
fn behind_lines(servers: &Servers) -> (LockManager, Vec<Proxy>) {
    let (proxies, urls) = proxies(servers);
    let locks = connected(impatient(urls).outage_timeout(secs(10)), 3);
    (locks, proxies)
}

/// Runs `call` on so many threads at once, each with its number.
fn together<T: Send>(threads: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let call = &call;
        let begin = |number| {
            thread::Builder::new()
                .stack_size(256 * 1024)
                .spawn_scoped(scope, move || call(number))
        };
        let threads: Vec<_> = (0..threads).map(|number| begin(number).unwrap()).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// What all calls have got.
#[track_caller]
fn all_ok<T>(results: Vec<Result<T, AcquireError>>) -> Vec<T> {
    let all = results.len();
    let (ok, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let errors: Vec<_> = failed.into_iter().filter_map(Result::err).collect();
    let failed = errors.len();
    assert!(
        failed == 0,
        "{failed} of {all} failed, the first: {}",
        errors[0]
    );
    ok.into_iter().filter_map(Result::ok).collect()
}

#[track_caller]
fn all_held(results: Vec<Result<LockGuard, AcquireError>>) -> Vec<LockGuard> {
    let guards = all_ok(results);
    let are_valid = guards.iter().all(|guard| guard.is_valid());
    assert!(are_valid, "some were lost");
    guards
}

#[test]
fn h5_more_calls_than_the_nodes_can_answer_in_time_wait_for_their_turn() -> TestResult {
    const THREADS: usize = 600;
    let servers = Servers::start(3)?;
    let (locks, proxies) = behind_lines(&servers);
    proxies.iter().for_each(|it| it.narrow(NARROW));

    let guards = all_held(together(THREADS, |number| {
        locks.mutex(format!("{number}")).lock()
    }));

    assert_eq!(locks.stats().locks_lost, 0);
    proxies.iter().for_each(|it| it.narrow(0));
    drop(guards);
    nothing_is_left(&servers);
    Ok(())
}

/// The servers hand all of them over at the same time, and each needs a first extension within a second: more than a busy
/// machine may give it.
#[test]
fn h5_many_locks_released_at_once_reach_all_waiting_calls() -> TestResult {
    const LOCKS: usize = 500;
    let servers = Servers::start(3)?;
    let (locks, proxies) = behind_lines(&servers);
    let name = |number| format!("{number}");

    let are_all_kept = || {
        let holder = manager(&servers);
        let held: Vec<_> = (0..LOCKS)
            .map(|it| holder.mutex(name(it)).lock().unwrap())
            .collect();
        let before = locks.stats();
        let results = thread::scope(|scope| {
            let (locks, lock) = (&locks, |number| locks.mutex(name(number)).lock());
            let waiting = scope.spawn(move || together(LOCKS, lock));
            eventually("all have been refused", || {
                before.rounds_held + LOCKS as u64 <= locks.stats().rounds_held
            });
            proxies.iter().for_each(|it| it.narrow(NARROW));
            holder.shutdown();
            drop(held);
            waiting.join().unwrap()
        });
        let guards = all_ok(results);
        let told = locks.stats().notices - before.notices;
        let are_valid = LOCKS as u64 <= told && guards.iter().all(|guard| guard.is_valid());
        proxies.iter().for_each(|it| it.narrow(0));
        drop(guards);
        nothing_is_left(&servers);
        are_valid
    };

    // Once is enough where the machine has the time.
    assert!(
        (0..10).any(|_| are_all_kept()),
        "some were lost or not told, each time"
    );
    Ok(())
}

/// What the others would be given, and would have to give back, keeps servers busy that have just caught up.
#[test]
fn h5_without_a_reachable_majority_no_server_is_asked() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(impatient(servers.urls()), 3);
    servers[0].pause()?;
    servers[1].pause()?;
    let is_stalled = |err: &AcquireError| [0, 1].into_iter().all(|it| is_stalled(err, it));
    drop(error_in_the_end(&locks, "report", is_stalled));
    eventually("all is taken back", || !servers[2].exists("report"));
    let before = scripts_run(&servers[2]);

    for _ in 0..5 {
        let err = locks.mutex("report").try_lock().unwrap_err();
        assert!(is_stalled(&err), "{err}");
    }

    assert_eq!(scripts_run(&servers[2]), before);
    servers[0].resume()?;
    servers[1].resume()?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

fn is_stalled(err: &AcquireError, node: usize) -> bool {
    *answer(err, node) == NodeAnswer::Failed(NodeFailure::Stalled)
}

/// How many rounds a manager lets be under way at once before anything was slow.
const AT_ONCE: u64 = 128;

/// Whether the manager lets [`AT_ONCE`] rounds be under way at once: no answer comes until that is seen, or until time was
/// up for some and so no more of them begin.
fn allows_as_many_as_ever(locks: &LockManager, proxies: &[Proxy]) -> bool {
    let before = locks.stats();
    // One for each server.
    let is_seen = || before.commands + 3 * AT_ONCE <= locks.stats().commands;
    proxies.iter().for_each(Proxy::hold_replies);
    thread::scope(|scope| {
        let probe = |number| locks.mutex(format!("probe {number}")).try_lock();
        let calls = scope.spawn(move || together(200, probe));
        let is_late = || before.rounds_without_quorum < locks.stats().rounds_without_quorum;
        eventually("many are under way", || is_seen() || is_late());
        let allows = is_seen();
        proxies.iter().for_each(Proxy::release_replies);
        drop(calls.join().unwrap());
        allows
    })
}

/// Ends calls that go on until then, also where the test has failed and they would wait for ever.
struct End<'a> {
    is_over: &'a AtomicBool,
    locks: &'a LockManager,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if thread::panicking() {
            self.locks.shutdown();
        }
    }
}

/// Servers stop again and again under hundreds of calls, until they are let go: then all is as it was, after a few
/// thousand locks.
#[test]
fn h5_after_an_overload_as_many_calls_as_ever_are_under_way_at_once() -> TestResult {
    const THREADS: usize = 300;
    const LOCKS_EACH: usize = 10;
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(impatient(urls).response_timeout(secs(1)), 3);
    let pair = |number: usize| locks.mutex(format!("{number}")).lock().map(drop);

    let is_over = AtomicBool::new(false);
    let results = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            together(THREADS, |number| {
                while !is_over.load(Ordering::SeqCst) {
                    pair(number)?;
                }
                Ok(())
            })
        });
        let (is_over, locks) = (&is_over, &locks);
        let end = End { is_over, locks };
        for _ in 0..4 {
            let before = locks.stats();
            eventually("they are at it", || {
                before.rounds_won + 16 <= locks.stats().rounds_won
            });
            servers.iter().for_each(|it| it.pause().unwrap());
            // For those that were under way, and so nobody else is asked any more.
            let is_late = || {
                before.rounds_without_quorum + THREADS as u64 <= locks.stats().rounds_without_quorum
            };
            eventually("time was up", is_late);
            servers.iter().for_each(|it| it.resume().unwrap());
        }
        let before = locks.stats().rounds_won;
        eventually("it goes on", || before < locks.stats().rounds_won);
        drop(end);
        calls.join().unwrap()
    });
    all_ok::<()>(results);

    drop(lock_in_the_end(&locks, "0"));
    let before = locks.stats();
    for number in 0..50 {
        drop(locks.mutex(format!("{number}")).try_lock()?);
    }
    let after = locks.stats();
    assert_eq!(after.rounds_won, before.rounds_won + 50);
    assert_eq!(after.rounds_without_quorum, before.rounds_without_quorum);

    // Once is enough where the machine has the time.
    let comes_back = (0..10).any(|_| {
        let pairs = |number| (0..LOCKS_EACH).try_for_each(|_| pair(number));
        all_ok(together(THREADS, pairs));
        allows_as_many_as_ever(&locks, &proxies)
    });
    assert!(comes_back);
    assert_eq!(locks.stats().locks_lost, 0);
    nothing_is_left(&servers);
    Ok(())
}

/// Lets all servers run a tenth of the time while `work` is done.
fn at_a_tenth<T>(servers: &Servers, work: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let slow_down = || {
            while !is_done.load(Ordering::SeqCst) {
                servers.iter().for_each(|it| it.pause().unwrap());
                thread::sleep(ms(9));
                servers.iter().for_each(|it| it.resume().unwrap());
                thread::sleep(ms(1));
            }
        };
        scope.spawn(slow_down);
        let result = work();
        is_done.store(true, Ordering::SeqCst);
        result
    })
}

/// With the response timeout that everybody has, and several managers that know nothing of each other.
#[test]
fn h5_thousands_of_threads_on_slow_servers_get_all_their_locks() -> TestResult {
    if !long_tests() {
        return Ok(());
    }
    for (managers, threads) in [(1, 10), (1, 100), (1, 1000), (1, 4000), (4, 500)] {
        let servers = Arc::new(Servers::start(5)?);
        let managers = repeat(managers, || {
            let builder = crate::builder_for(servers.urls()).ttl(secs(60));
            builder.quarantine(false).build().unwrap()
        });
        let work = || {
            let pairs = |number: usize| -> Result<(), AcquireError> {
                let lock = managers[number % managers.len()].mutex(format!("{number}"));
                (0..3).try_for_each(|_| lock.lock().map(drop))
            };
            together(threads * managers.len(), pairs)
        };
        for slow in [false, true] {
            let results = if slow {
                at_a_tenth(&servers, work)
            } else {
                work()
            };
            eprintln!("{threads} threads");
            all_ok::<()>(results);
            let lost = managers.iter().map(|it| it.stats().locks_lost);
            assert_eq!(lost.sum::<u64>(), 0);
        }
    }
    Ok(())
}

/// How many locks each of two managers takes and gives back, on many threads, until the second one has had so many.
fn beside(managers: [&LockManager; 2], locks: usize) -> [usize; 2] {
    const THREADS: usize = 64;
    let done = [const { AtomicUsize::new(0) }; 2];
    let _: Vec<()> = together(2 * THREADS, |number| {
        let which = number % 2;
        let lock = managers[which].mutex(format!("{number}"));
        while done[1].load(Ordering::SeqCst) < locks {
            drop(lock.lock().unwrap());
            done[which].fetch_add(1, Ordering::SeqCst);
        }
    });
    done.map(AtomicUsize::into_inner)
}

/// A manager that was near lets four rounds be under way after answers that never came, and is further away from then on.
#[test]
fn h20_a_manager_adapts_to_longer_round_trips_as_a_new_one() -> TestResult {
    if !long_tests() {
        return Ok(());
    }
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let build = || connected(builder(&urls).response_timeout(ms(400)), 3);
    let old = build();
    lock_in_the_end(&old, "near").release()?;
    proxies.iter().for_each(Proxy::hold_replies);
    let lost = old.stats().rounds_without_quorum;
    drop(together(4, |number| {
        old.mutex(format!("{number}")).try_lock().map(drop)
    }));
    assert!(lost < old.stats().rounds_without_quorum);
    proxies.iter().for_each(Proxy::release_replies);
    proxies.iter().for_each(|it| it.set_delay(ms(150)));
    let new = build();

    let [first, of_new] = beside([&old, &new], 200);
    assert!(
        2 * first < of_new,
        "nothing has cut it: {first} locks beside {of_new}"
    );
    eventually("it does as well", || {
        let [of_old, of_new] = beside([&old, &new], 200);
        of_new < 2 * of_old
    });
    Ok(())
}
