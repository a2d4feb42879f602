//! More calls at once than the nodes can answer in time.
//!
//! Lines to the nodes are narrow, so that how much they can take does not depend on the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use devnodes::{Proxy, Servers, eventually};
use quorlock::{AcquireError, LockGuard, LockManager};

use crate::support::{TestResult, connected, impatient, long_tests, manager, ms, nothing_is_left, proxies, secs};

/// Bytes of requests a second: some two hundred locks can be taken in that.
const NARROW: u32 = 70_000;

/// A manager of three nodes behind lines that can be made narrow. Two and a half seconds without an answer are an outage.
fn behind_lines(servers: &Servers) -> (LockManager, Vec<Proxy>) {
    let (proxies, urls) = proxies(servers);
    (connected(impatient(urls).outage_patience(ms(2500)), 3), proxies)
}

/// Runs `call` on so many threads at once, each with its number.
fn together<T: Send>(threads: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let call = &call;
        let begin = |number| thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, move || call(number));
        let threads: Vec<_> = (0..threads).map(|number| begin(number).unwrap()).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

#[track_caller]
fn all_held(results: Vec<Result<LockGuard, AcquireError>>) -> Vec<LockGuard> {
    let errors: Vec<_> = results.iter().filter_map(|it| it.as_ref().err()).collect();
    assert!(errors.is_empty(), "{} of {} calls failed, the first: {}", errors.len(), results.len(), errors[0]);
    let guards: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert!(guards.iter().all(LockGuard::is_valid), "some were lost");
    guards
}

#[test]
fn h5_more_calls_than_the_nodes_can_answer_in_time_wait_for_their_turn_and_none_fails() -> TestResult {
    const THREADS: usize = 600;
    let servers = Servers::start(3)?;
    let (locks, proxies) = behind_lines(&servers);
    proxies.iter().for_each(|it| it.narrow(NARROW));

    let guards = all_held(together(THREADS, |number| locks.mutex(format!("{number}")).lock()));

    assert_eq!(locks.stats().locks_lost, 0);
    proxies.iter().for_each(|it| it.narrow(0));
    drop(guards);
    nothing_is_left(&servers);
    Ok(())
}

/// Notices wake all of them at the same time.
#[test]
fn h5_many_locks_that_are_freed_at_once_go_to_all_who_wait_for_them() -> TestResult {
    const LOCKS: usize = 500;
    let servers = Servers::start(3)?;
    let (locks, proxies) = behind_lines(&servers);
    let holder = manager(&servers);
    let name = |number| format!("{number}");
    let held: Vec<_> = (0..LOCKS).map(|it| holder.mutex(name(it)).lock().unwrap()).collect();

    let results = thread::scope(|scope| {
        let (locks, lock) = (&locks, |number| locks.mutex(name(number)).lock());
        let waiting = scope.spawn(move || together(LOCKS, lock));
        eventually("all have been refused", || LOCKS as u64 <= locks.stats().rounds_held);
        proxies.iter().for_each(|it| it.narrow(NARROW));
        drop(held);
        waiting.join().unwrap()
    });

    let guards = all_held(results);
    assert!(LOCKS as u64 <= locks.stats().notices, "they were told");
    proxies.iter().for_each(|it| it.narrow(0));
    drop(guards);
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
        let build = || LockManager::builder(servers.urls()).ttl(secs(60)).quarantine(false).build().unwrap();
        let managers: Vec<_> = (0..managers).map(|_| build()).collect();
        let work = || {
            let pairs = |number: usize| -> Result<(), AcquireError> {
                let lock = managers[number % managers.len()].mutex(format!("{number}"));
                (0..3).try_for_each(|_| lock.lock().map(drop))
            };
            together(threads * managers.len(), pairs)
        };
        for slow in [false, true] {
            let results = if slow { at_a_tenth(&servers, work) } else { work() };
            let errors: Vec<_> = results.iter().filter_map(|it| it.as_ref().err()).collect();
            assert!(errors.is_empty(), "{} of {threads} threads, the first: {}", errors.len(), errors[0]);
            assert!(managers.iter().all(|it| it.stats().locks_lost == 0), "some were lost");
        }
    }
    Ok(())
}
