//! Locks that the thread that holds them takes again.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::TryRecvError;
use devnodes::{PATIENCE, Proxy, Servers, eventually};
use quorlock::error::BuildProblem;
use quorlock::{
    AcquireError, CancelHandle, LockManager, LostReason, ReentrantGuard, ReentrantMutex, WithError,
};

use crate::support::*;

/// Servers, and a manager whose renewal and topping up send nothing while a test runs.
fn quiet() -> (Servers, LockManager) {
    start_connected(3, |urls| builder(urls).ttl(LONG))
}

/// Takes the lock and waits until no command of that is under way.
fn settled(lock: &ReentrantMutex, servers: &Servers) -> ReentrantGuard {
    let guard = lock.lock().unwrap();
    eventually("it is on all nodes", || {
        servers.holders(lock.name()) == servers.len()
    });
    guard
}

/// Short locks that end by themselves.
fn short(servers: &Servers) -> ReentrantMutex {
    let locks = connected(with_ttl(servers.urls(), ms(400)).renew(false), 3);
    locks.reentrant_mutex("report")
}

/// Takes a lock that was extended up to its maximum hold, and will not be extended further.
fn bounded(servers: &Servers) -> (ReentrantMutex, ReentrantGuard) {
    let builder = with_ttl(servers.urls(), ms(600)).max_hold(ms(900));
    let lock = connected(builder.renew(false), 3).reentrant_mutex("report");
    let extended = || lock.try_lock().ok().filter(|it| it.extend(secs(5)).is_ok());
    let guard = eventually_some("the lock can be taken and extended", extended);
    (lock, guard)
}

/// Takes it until it works: a busy machine may be too slow for a lock so short.
fn take_in_the_end(lock: &ReentrantMutex) -> ReentrantGuard {
    eventually_some("the lock can be taken", || lock.try_lock().ok())
}

#[test]
fn a_reentrant_lock_is_taken_again_without_a_command() -> TestResult {
    let (servers, locks) = quiet();
    let lock = locks.reentrant_mutex("report");
    let first = settled(&lock, &servers);
    let commands = locks.stats().commands;

    let mut guards = vec![];
    for _ in 0..100 {
        guards.push(lock.lock()?);
        guards.push(lock.try_lock()?);
        guards.push(lock.try_lock_for(Duration::ZERO)?);
    }

    assert_eq!(locks.stats().commands, commands);
    assert_eq!((first.holds(), guards[7].holds()), (301, 301));
    let shown = r#"ReentrantGuard { holds: 301, guard: LockGuard(Hold { name: "report", token: "#;
    assert_contains(format!("{first:?}"), shown);
    let is_same =
        |it: &ReentrantGuard| it.is_valid() && it.fencing_token() == first.fencing_token();
    assert!(guards.iter().all(is_same));
    drop(guards);
    assert_eq!(locks.stats().commands, commands, "at the release of them");
    assert_eq!((first.holds(), first.check()), (1, Ok(())));
    Ok(())
}

#[test]
fn a_reentrant_lock_is_released_with_its_last_guard_which_reports_it() -> TestResult {
    let (servers, locks) = quiet();
    let other = manager(&servers);
    let lock = locks.reentrant_mutex("report");

    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut guards = [Some(lock.lock()?), Some(lock.lock()?), Some(lock.lock()?)];
        let releases = locks.stats().releases;
        for (gone, i) in order.into_iter().enumerate() {
            let guard = guards[i].take().unwrap();
            assert_eq!(guard.holds(), 3 - u32::try_from(gone)?);
            guard.check()?;
            assert_held(&other.mutex("report").try_lock().unwrap_err());
            let lost = guard.lost();
            let released = guard.release()?;
            assert_eq!(released.is_some(), gone == 2, "only the last one releases");
            if let Some(released) = released {
                assert!((2..=3).contains(&released.confirmed), "{released:?}");
                assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
            } else {
                assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
            }
        }
        assert_eq!(locks.stats().releases, releases + 1);
        drop(other.mutex("report").try_lock()?);
    }

    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn other_threads_are_excluded_until_the_last_reentrant_guard() -> TestResult {
    let (_servers, locks) = quiet();
    let lock = locks.reentrant_mutex("report");
    let (first, second) = (lock.lock()?, lock.lock()?);
    let token = first.fencing_token();

    let in_thread = lock.clone();
    let waiter = thread::spawn(move || {
        assert_held(&in_thread.try_lock().unwrap_err());
        let guard = in_thread.lock().unwrap();
        (guard.holds(), guard.fencing_token())
    });
    eventually("the other thread waits", || locks.stats().waiting == 1);
    drop(first);
    // It waits in the manager's own queue, and only the release gives it the lock.
    assert_held(&locks.mutex("report").try_lock().unwrap_err());
    assert_eq!((locks.stats().waiting, locks.stats().hand_overs), (1, 0));
    drop(second);

    let (holds, later) = join(waiter);
    assert_eq!(holds, 1);
    assert!(token < later);
    Ok(())
}

#[test]
fn two_managers_are_two_holders_also_on_one_thread() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));
    let _held = first.reentrant_mutex("report").lock()?;

    assert_held(&second.reentrant_mutex("report").try_lock().unwrap_err());

    // Each finds its own.
    let of_second = second.reentrant_mutex("page").lock()?;
    assert_held(&first.reentrant_mutex("page").try_lock().unwrap_err());
    assert_eq!(first.reentrant_mutex("report").try_lock()?.holds(), 2);
    assert_eq!(second.reentrant_mutex("page").try_lock()?.holds(), 2);
    assert_eq!(of_second.holds(), 1);
    Ok(())
}

#[test]
fn a_manager_does_not_inherit_holds_of_a_dropped_manager() -> TestResult {
    let servers = Servers::start(3)?;
    let mut tokens = vec![];

    // Of many managers, some come to lie where another was.
    for _ in 0..20 {
        let locks = builder(servers.urls()).ttl(LONG).build()?;
        let guard = locks.reentrant_mutex("report").lock()?;
        drop(locks);
        assert_eq!(guard.holds(), 1);
        assert!(2 <= servers.holders("report"));
        tokens.push(guard.fencing_token());
    }

    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn handles_of_one_name_are_one_hold_and_of_two_names_two() -> TestResult {
    let (servers, locks) = quiet();
    let first = locks.reentrant_mutex("report").lock()?;

    let second = locks
        .clone()
        .reentrant_mutex(b"report")
        .renew(false)
        .lock()?;
    let other = locks.reentrant_mutex("report 2").lock()?;

    assert_eq!((first.holds(), second.holds(), other.holds()), (2, 2, 1));
    assert_eq!(first.fencing_token(), second.fencing_token());
    drop(first);
    assert_held(&manager(&servers).mutex("report").try_lock().unwrap_err());
    drop(other);
    assert!(second.is_valid());
    drop(second);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_mutex_of_the_same_name_is_the_same_lock_and_not_reentrant() -> TestResult {
    let (_servers, locks) = quiet();
    let (plain, reentrant) = (locks.mutex("report"), locks.reentrant_mutex("report"));

    let guard = reentrant.lock()?;
    assert_held(&plain.try_lock().unwrap_err());
    drop(guard);
    let guard = plain.lock()?;
    assert_held(&reentrant.try_lock().unwrap_err());
    drop(guard);

    drop(reentrant.try_lock()?);
    Ok(())
}

#[test]
fn a_hold_that_ran_out_is_an_error_until_all_its_guards_are_dropped() -> TestResult {
    let servers = Servers::start(3)?;
    let lock = short(&servers);
    let first = take_in_the_end(&lock);
    let token = first.fencing_token();
    eventually("it is over", || !first.is_valid());
    let other = manager(&servers);
    drop(other.mutex("report").lock()?);

    let lost = AcquireError::HoldLost {
        lost: loss("report", LostReason::LeaseOver),
    };
    assert_eq!(lock.lock().unwrap_err(), lost);
    assert_eq!(lock.try_lock_for(secs(1)).unwrap_err(), lost);
    let err = lock
        .with(|_| unreachable!("not acquired"))
        .map(|(): ()| ())
        .unwrap_err();
    assert_matches!(err, WithError::NotAcquired(AcquireError::HoldLost { .. }));
    assert_eq!(first.holds(), 1, "an error leaves no guard");
    // Free for everyone else, this manager's other threads among them.
    let in_thread = lock.clone();
    join(thread::spawn(move || drop(take_in_the_end(&in_thread))));

    drop(first);
    assert!(token < take_in_the_end(&lock).fencing_token());
    Ok(())
}

#[test]
fn every_guard_of_a_lost_hold_fails_its_release() -> TestResult {
    let (servers, locks) = quiet();
    let lock = locks.reentrant_mutex("report");
    let (first, second, third) = (settled(&lock, &servers), lock.lock()?, lock.lock()?);
    del_all(&servers, "report");
    assert!(second.extend(LONG).is_err());

    let lost = AcquireError::HoldLost {
        lost: loss("report", LostReason::Gone),
    };
    assert_eq!(lock.lock().unwrap_err(), lost);
    for guard in [second, first, third] {
        assert_eq!(reason(guard.check()), Err(LostReason::Gone));
        assert_eq!(reason(guard.release()), Err(LostReason::Gone));
    }
    assert_eq!(lock.lock()?.holds(), 1);
    Ok(())
}

#[test]
fn a_lock_with_little_time_left_is_extended_when_it_is_taken_again() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let first = settled(&locks.reentrant_mutex("report").renew(false), &servers);
    let (stats, left) = (locks.stats(), first.remaining());
    assert!(left < secs(20));

    // 20 s are more than a third of 30 s.
    let enough = locks.reentrant_mutex("report").ttl(secs(30)).lock()?;
    assert!(enough.remaining() <= left);
    assert_eq!(locks.stats().commands, stats.commands);

    // And less than a third of ten minutes.
    let second = locks.reentrant_mutex("report").ttl(LONG).lock()?;
    assert!(secs(400) < first.remaining());
    assert_eq!(second.fencing_token(), first.fencing_token());
    assert_eq!(locks.stats().extensions, stats.extensions + 1);

    // Once.
    let _third = locks.reentrant_mutex("report").ttl(LONG).lock()?;
    assert_eq!(locks.stats().extensions, stats.extensions + 1);
    assert_eq!(first.holds(), 4);
    Ok(())
}

#[test]
fn a_lock_that_cannot_be_extended_is_taken_again_while_it_is_held() -> TestResult {
    let (_servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls).response_timeout(ms(200)).renew(false)
    });
    let first = locks.reentrant_mutex("report").lock()?;
    let failed = locks.stats().extensions_failed;

    proxies.iter().for_each(Proxy::hold_replies);
    let second = locks.reentrant_mutex("report").ttl(LONG).try_lock()?;

    assert_eq!(locks.stats().extensions_failed, failed + 1);
    assert!(second.is_valid() && second.remaining() < secs(20));
    assert_eq!(first.holds(), 2);
    proxies.iter().for_each(Proxy::release_replies);
    Ok(())
}

#[test]
fn an_extension_that_finds_the_lock_gone_is_an_error() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).renew(false));
    let first = settled(&locks.reentrant_mutex("report"), &servers);
    del_all(&servers, "report");
    assert!(first.is_valid(), "nobody has looked yet");

    let longer = locks.reentrant_mutex("report").ttl(LONG);
    let err = longer.lock().unwrap_err();

    assert_eq!(
        err,
        AcquireError::HoldLost {
            lost: loss("report", LostReason::Gone)
        }
    );
    assert_eq!(
        (first.holds(), reason(first.check())),
        (1, Err(LostReason::Gone))
    );
    eventually("keys that it set are released", || {
        servers.holders("report") == 0
    });
    Ok(())
}

#[test]
fn nested_closures_report_a_loss() -> TestResult {
    let (servers, locks) = quiet();
    let lock = locks.reentrant_mutex("report");

    let mut inner = None;
    let outer = lock.with(|_| {
        inner = Some(lock.with(|guard| {
            eventually("it is on all nodes", || servers.holders("report") == 3);
            del_all(&servers, "report");
            assert!(guard.extend(LONG).is_err());
        }));
    });

    assert_eq!(
        inner,
        Some(Err(WithError::Lost(loss("report", LostReason::Gone))))
    );
    assert_eq!(
        outer,
        Err(WithError::Lost(loss("report", LostReason::Gone)))
    );
    assert!(lock.with(|guard| guard.is_valid())?, "taken anew");
    Ok(())
}

#[test]
fn f3_a_panic_drops_only_the_unwound_reentrant_guards() -> TestResult {
    let (servers, locks) = quiet();
    let other = manager(&servers);
    let lock = locks.reentrant_mutex("report");

    let outer = lock.lock()?;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _inner = lock.lock().unwrap();
        let _ = lock.with(|guard| {
            assert_eq!(guard.holds(), 3);
            resume_unwind(Box::new("on purpose"))
        });
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
    assert_eq!((outer.holds(), outer.check()), (1, Ok(())));
    assert_held(&other.mutex("report").try_lock().unwrap_err());

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guards = (outer, lock.lock().unwrap());
        resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
    drop(other.mutex("report").try_lock()?);
    Ok(())
}

#[test]
fn f4_a_forgotten_guard_keeps_the_lock_until_its_maximum_hold() -> TestResult {
    let servers = Servers::start(3)?;
    let (lock, guard) = bounded(&servers);

    std::mem::forget(guard);
    let err = eventually_some("it is lost", || lock.lock().err());

    let lost = loss("report", LostReason::MaxHold);
    assert_eq!(err, AcquireError::HoldLost { lost });
    drop(manager(&servers).mutex("report").lock()?);
    Ok(())
}

#[test]
fn a_reentrant_call_without_a_wait_ignores_its_cancel() -> TestResult {
    let (_servers, locks) = quiet();
    let cancel = CancelHandle::new();
    let lock = locks.reentrant_mutex("report").cancelled_by(&cancel);
    let guard = lock.lock()?;

    cancel.cancel();

    assert_eq!(lock.lock()?.holds(), 2);
    drop(guard);
    assert!(matches!(lock.lock().unwrap_err(), AcquireError::Cancelled));
    Ok(())
}

#[test]
fn an_invalid_handle_is_an_error_for_the_holder_too() -> TestResult {
    let (_servers, locks) = quiet();
    let guard = locks.reentrant_mutex("report").lock()?;

    let without_ttl = locks.reentrant_mutex("report").ttl(Duration::ZERO);
    let err = without_ttl.lock().unwrap_err();

    assert_matches!(err, AcquireError::BadTtl(BuildProblem::BadOption { .. }));
    assert_eq!((guard.holds(), guard.check()), (1, Ok(())));
    Ok(())
}

#[test]
fn after_a_shutdown_a_reentrant_holder_gets_the_error_too() -> TestResult {
    let (servers, locks) = quiet();
    let lock = locks.reentrant_mutex("report");
    let guard = lock.lock()?;

    locks.shutdown();

    assert_eq!(lock.lock().unwrap_err(), AcquireError::ShutDown);
    assert_eq!(reason(guard.release()), Err(LostReason::ShutDown));
    nothing_is_left(&servers);
    Ok(())
}

/// Holds what a thread leaves behind, and tells what its destructor found.
struct Left {
    guards: Vec<ReentrantGuard>,
    lock: ReentrantMutex,
    found: mpsc::Sender<(u32, Result<u32, AcquireError>)>,
}

impl Drop for Left {
    fn drop(&mut self) {
        let holds = self.guards[0].holds();
        self.guards.clear();
        let again = self.lock.try_lock().map(|it| it.holds());
        self.found.send((holds, again)).unwrap();
    }
}

#[test]
fn leftover_guards_of_a_thread_are_dropped_with_it() -> TestResult {
    thread_local! {
        static EARLY: RefCell<Option<Left>> = const { RefCell::new(None) };
    }
    let (servers, locks) = quiet();
    let lock = locks.reentrant_mutex("report");
    let (found, says) = mpsc::channel();

    let thread = thread::spawn(move || {
        // Thread-locals go in the reverse order of their first use: this one after the list of what the thread holds.
        EARLY.with(|it| assert!(it.borrow().is_none()));
        let guards = vec![lock.lock().unwrap(), lock.lock().unwrap()];
        EARLY.set(Some(Left {
            guards,
            lock,
            found,
        }));
    });

    let (holds, again) = says
        .recv_timeout(PATIENCE)
        .expect("the other thread says it");
    join(thread);
    assert_eq!(holds, 2);
    // It was free by then; but what cannot be entered in the list is not taken.
    assert_matches!(again, Err(AcquireError::ThreadEnding));
    nothing_is_left(&servers);
    drop(locks.mutex("report").try_lock()?);
    Ok(())
}
