//! A machine that has more to do than it can: every node still gets its commands, and locks stand on all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use devnodes::{Servers, eventually};
use quorlock::error::NodeFailure;
use quorlock::{AcquireError, LockManager};

use crate::support::*;

/// Threads that take and release a lock each, as fast as they can, until this is dropped.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn on(locks: &LockManager, threads: usize, names: usize) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let work = |i: usize| {
            let (lock, stop) = (
                locks.mutex(format!("busy-{}", i % names)),
                Arc::clone(&stop),
            );
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // What becomes of a single round on a busy machine is not what this is about.
                    drop(lock.lock());
                }
            })
        };
        let threads = (0..threads).map(work).collect();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn h6_a_lock_on_a_bare_majority_is_extended_to_all_servers() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| {
        builder(urls).response_timeout(ms(250)).ttl(secs(6))
    });
    servers[1].pause()?;
    servers[2].pause()?;
    drop(locks.mutex("other").try_lock());
    let is_stalled = |it: &AcquireError, node| *failure(it, node) == NodeFailure::Stalled;
    let err = error_in_the_end(&locks, "other", |it| is_stalled(it, 1) && is_stalled(it, 2));
    assert_no_quorum(&err);
    servers[1].resume()?;
    let guard = lock_in_the_end(&locks, "report");

    // It was not asked, so nothing but a renewal brings the lock there.
    servers[2].resume()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);

    // The server has it before its answer is read here.
    eventually("it is counted", || locks.stats().healed == 1);
    servers[0].kill()?;
    wait_for_extensions(&locks, 2);
    assert!(guard.is_valid());
    Ok(())
}

/// Bytes a second to a node that is healthy and slower than the others: some thousand commands, a fraction of what
/// callers would give it, on any machine.
const SLOWER: u32 = 256 * 1024;

/// `threads` take and release locks of `names` names; the third node's commands go through a narrow connection. No caller
/// waits for it: it is skipped while it is silent. Later it has nothing of these locks, and gets new ones.
#[track_caller]
fn is_skipped_and_comes_back(threads: usize, names: usize) {
    let servers = Servers::start(3).unwrap();
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).response_timeout(ms(400)), 3);
    drop(lock_in_the_end(&locks, "warm-up"));
    proxies[2].narrow(SLOWER);
    let before = [0, 1, 2].map(|it| scripts_run(&servers[it]));
    let ran = |it: usize| scripts_run(&servers[it]) - before[it];

    let busy = Busy::on(&locks, threads, names);
    eventually("enough is run", || 6_000 <= ran(0));
    drop(busy);

    assert!(0 < ran(2), "it was asked");
    nothing_is_left(&servers);
    let guard = lock_in_the_end(&locks, "report");
    eventually("it has a new lock", || servers.holders("report") == 3);
    assert_eq!(locks.stats().locks_lost, 0);
    drop(guard);
}

#[test]
fn h6_a_healthy_node_that_is_slower_is_skipped_and_comes_back() {
    is_skipped_and_comes_back(8, 8);
}

#[test]
fn h6_a_healthy_node_that_is_slower_comes_back_where_locks_are_handed_over() {
    is_skipped_and_comes_back(16, 4);
}
