//! Many locks that end together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;

use devnodes::{Proxy, Servers, eventually};
use quorlock::observer::{Event, Observer};
use quorlock::{Hold, LockGuard, LockManager, LostReason, ReleaseError, release_all};

use crate::support::*;

fn take(locks: &LockManager, count: usize) -> Vec<LockGuard> {
    let names: Vec<usize> = (0..count).collect();
    // Several threads, because most of the time is spent waiting.
    thread::scope(|scope| {
        let take = |names: Vec<usize>| {
            names
                .into_iter()
                .map(|it| locks.mutex(format!("{it}")).lock().unwrap())
        };
        let threads = names.chunks(names.len().div_ceil(8)).map(<[usize]>::to_vec);
        let threads: Vec<_> = threads
            .map(|it| scope.spawn(move || take(it).collect::<Vec<_>>()))
            .collect();
        threads
            .into_iter()
            .flat_map(|it| it.join().unwrap())
            .collect()
    })
}

/// On all servers.
fn keys(servers: &Servers) -> usize {
    servers.iter().map(|it| lock_keys(it).len()).sum()
}

/// No answer comes before the releases of hundreds have run: one round trip is enough for all of these.
#[test]
fn guards_that_are_given_back_together_do_not_wait_for_each_other_s_answers() -> TestResult {
    const LOCKS: usize = 1_000;
    const AT_ONCE: usize = 256;
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls).response_timeout(LONG / 10).ttl(LONG)
    });
    let guards = take(&locks, LOCKS);
    eventually("all are on all servers", || keys(&servers) == 3 * LOCKS);
    proxies.iter().for_each(Proxy::hold_replies);

    let results = thread::scope(|scope| {
        let releasing = scope.spawn(|| release_all(guards));
        eventually("hundreds are gone", || {
            keys(&servers) == 3 * (LOCKS - AT_ONCE)
        });
        proxies.iter().for_each(Proxy::release_replies);
        releasing.join().unwrap()
    });

    assert_eq!(results, vec![Ok(()); LOCKS]);
    nothing_is_left(&servers);
    // And the one of the warm-up.
    assert_eq!(locks.stats().releases, LOCKS as u64 + 1);
    assert!(locks.held().is_empty());
    drop(take(&locks, 10));
    Ok(())
}

/// Tells the test of the first loss, and waits until the test has seen what it wants.
struct Waiting(mpsc::SyncSender<()>, std::sync::Mutex<mpsc::Receiver<()>>);

impl Observer for Waiting {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Lost { .. }) && self.0.send(()).is_ok() {
            let _ = self.1.lock().unwrap().recv();
        }
    }
}

#[test]
fn a_shutdown_sends_all_releases_before_it_tells_anybody_of_a_loss() -> TestResult {
    const LOCKS: usize = 2_000;
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let ((told, first), (go_on, going)) = (mpsc::sync_channel(0), mpsc::sync_channel(0));
    let observer = Arc::new(Waiting(told, going.into()));
    let locks = connected(
        builder(urls)
            .ttl(LONG)
            .shutdown_grace(secs(60))
            .observer(observer),
        3,
    );
    let guards = take(&locks, LOCKS);
    eventually("all are on all servers", || keys(&servers) == 3 * LOCKS);
    proxies.iter().for_each(|it| it.set_delay(ms(20)));

    thread::scope(|scope| {
        scope.spawn(|| locks.shutdown());
        first.recv().unwrap();
        nothing_is_left(&servers);
        drop((first, go_on));
    });

    assert!(
        guards
            .iter()
            .all(|it| reason(it.check()) == Err(LostReason::ShutDown))
    );
    Ok(())
}

#[test]
fn guards_of_all_kinds_and_managers_can_be_given_back_together() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, others) = (manager(&servers), manager(&servers));
    assert!(release_all(Vec::<LockGuard>::new()).is_empty());

    let both = others.multi_lock(["b", "c"]).lock()?;
    let results = release_all([locks.mutex("a").lock()?, both]);
    assert_eq!(results, [Ok(()), Ok(())]);
    let results = release_all([locks.rw_lock("a").read()?, others.rw_lock("a").read()?]);
    assert_eq!(results, [Ok(()), Ok(())]);
    assert_eq!(release_all([locks.rw_lock("a").write()?]), [Ok(())]);
    let mail = locks.semaphore("mail", 2);
    let results = release_all([mail.acquire()?, mail.acquire()?]);
    assert_eq!(results, [Ok(()), Ok(())]);
    let mixed: [Hold; 3] = [
        locks.mutex("b").lock()?.into(),
        locks.rw_lock("a").read()?.into(),
        mail.acquire()?.into(),
    ];
    assert_eq!(release_all(mixed), [Ok(()), Ok(()), Ok(())]);

    nothing_is_left(&servers);
    Ok(())
}

/// Of those that wait for one of them, each gets it, and none before it is free.
#[test]
fn locks_that_are_given_back_together_go_to_those_who_wait() -> TestResult {
    const LOCKS: usize = 20;
    let servers = Servers::start(3)?;
    let (locks, others) = (
        builder(servers.urls()).ttl(LONG).build()?,
        manager(&servers),
    );
    let guards = take(&locks, LOCKS);

    thread::scope(|scope| {
        for manager in [&locks, &others] {
            for name in 0..LOCKS {
                scope.spawn(move || drop(manager.mutex(format!("{name}")).lock().unwrap()));
            }
        }
        eventually("all wait", || {
            locks.stats().waiting + others.stats().waiting == 2 * LOCKS as u64
        });
        assert_eq!(release_all(guards), vec![Ok(()); LOCKS]);
    });

    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn each_guard_given_back_with_others_has_a_result_of_its_own() -> TestResult {
    let (servers, locks) = start_connected(3, impatient);
    let guards = ["a", "b", "c"].map(|it| locks.mutex(it).lock().unwrap());
    eventually("they are on all servers", || keys(&servers) == 9);
    servers.iter().for_each(|it| del(it, "b"));

    let gone = Err(ReleaseError::Lost(loss("b", LostReason::Gone)));
    assert_eq!(release_all(guards), [Ok(()), gone, Ok(())]);

    let guards = ["a", "b"].map(|it| locks.mutex(it).lock().unwrap());
    servers[0].pause()?;
    servers[1].pause()?;
    for result in release_all(guards) {
        assert_matches!(result, Err(ReleaseError::NotConfirmed { .. }));
    }
    servers[0].resume()?;
    servers[1].resume()?;
    nothing_is_left(&servers);

    let guards = ["a", "b"].map(|it| lock_in_the_end(&locks, it));
    locks.shutdown();
    let shut_down = |it| Err(ReleaseError::Lost(loss(it, LostReason::ShutDown)));
    assert_eq!(release_all(guards), ["a", "b"].map(shut_down));
    Ok(())
}

#[test]
fn a_panic_of_the_iterator_leaves_no_lock_held() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let guards = take(&locks, 5).into_iter().enumerate();
    let failing = guards.map(|(at, guard)| if at == 3 { panic!("on purpose") } else { guard });

    let result = catch_unwind(AssertUnwindSafe(|| release_all(failing)));

    assert!(result.is_err());
    assert!(locks.held().is_empty());
    nothing_is_left(&servers);
    Ok(())
}
