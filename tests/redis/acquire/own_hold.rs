//! A lock that this manager holds itself: the error says so, and a thread that waits for itself is warned.

use std::thread;
use std::time::Duration;

use devnodes::{Servers, eventually};
use quorlock::AcquireError;
use quorlock::error::HeldBy;

use crate::operations::log_lines::{heard, listen, tell, told};
use crate::support::*;

/// A wait in which also a busy server answers.
const BRIEF: Duration = ms(150);

const BY_THIS_THREAD: &str = "held by this process, taken by this thread (waited ";

fn held_by(err: &AcquireError) -> HeldBy {
    match err {
        AcquireError::Held { by, .. } => *by,
        other => panic!("{other:?}"),
    }
}

/// Asserts who holds the lock, and that the error's text begins with these words.
#[track_caller]
fn assert_held_by(err: &AcquireError, by: HeldBy, words: &str) {
    assert_eq!(held_by(err), by);
    assert!(err.to_string().contains(words), "{err}");
}

#[test]
fn an_error_names_this_thread_or_process_as_the_holder() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, others) = (manager(&servers), manager(&servers));
    let report = locks.mutex("report");
    let guard = report.lock()?;

    // Waiting, which asks nobody, and at once, which asks.
    for err in [
        report.try_lock_for(BRIEF).unwrap_err(),
        report.try_lock().unwrap_err(),
    ] {
        assert_held_by(&err, HeldBy::ThisThread, BY_THIS_THREAD);
        assert_contains(&err, "): drop its guard first");
        assert!(!err.to_string().contains("not asked"), "{err}");
    }
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            [
                report.try_lock_for(BRIEF).unwrap_err(),
                report.try_lock().unwrap_err(),
            ]
        });
        let by_another = "held by this process, by another thread (waited ";
        for err in other.join().unwrap() {
            assert_held_by(&err, HeldBy::ThisProcess, by_another);
        }
    });
    let err = error_in_the_end(&others, "report", AcquireError::is_held);
    assert_held_by(&err, HeldBy::Other, "held by someone else (waited ");

    // A hold that is over is nobody's.
    guard.release()?;
    let _guard = others.mutex("report").lock()?;
    let err = report.try_lock_for(BRIEF).unwrap_err();
    assert_eq!(held_by(&err), HeldBy::Other);
    Ok(())
}

#[test]
fn an_error_names_earlier_calls_of_the_same_process() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, others) = (manager(&servers), manager(&servers));
    let _held = others.mutex("report").lock()?;
    thread::scope(|scope| {
        let first = scope.spawn(|| locks.mutex("report").try_lock_for(secs(600)).map(drop));
        eventually("the first has been refused", || {
            1 <= locks.stats().rounds_held
        });

        let err = locks.mutex("report").try_lock_for(BRIEF).unwrap_err();

        assert_eq!(held_by(&err), HeldBy::Other);
        let end = "): other calls of this process came first";
        assert!(err.to_string().ends_with(end), "{err}");
        locks.shutdown();
        assert_eq!(first.join().unwrap(), Err(AcquireError::ShutDown));
    });
    Ok(())
}

/// All that one thread can take and then be in its own way with.
#[test]
fn sets_and_locks_with_a_common_name_report_the_holding_thread() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = manager(&servers);
    let (both, others, none) = (
        locks.multi_lock(["a", "b"]),
        locks.multi_lock(["b", "c"]),
        locks.multi_lock(["c", "d"]),
    );
    let (mutex, rw) = (locks.mutex("b"), locks.rw_lock("b"));
    let of_one = |it: Result<_, _>| it.map(drop).map_err(|err| held_by(&err));
    let sets = || {
        let asked = [&both, &others].map(|it| of_one(it.try_lock()));
        let waited = [&both, &others].map(|it| of_one(it.try_lock_for(BRIEF)));
        [asked, waited].concat()
    };
    let singles = || {
        let by_hand = |it: Result<_, AcquireError>| it.map_err(|err| held_by(&err));
        vec![
            of_one(mutex.try_lock()),
            of_one(mutex.try_lock_for(BRIEF)),
            by_hand(rw.try_read().map(drop)),
            by_hand(rw.try_read_for(BRIEF).map(drop)),
            by_hand(rw.try_write().map(drop)),
            by_hand(locks.reentrant_mutex("b").try_lock().map(drop)),
        ]
    };
    let all_are = |by: HeldBy, found: Vec<Result<(), HeldBy>>, holds: &str| {
        assert_eq!(found, vec![Err(by); found.len()], "{holds}");
    };
    let elsewhere = |of: &(dyn Fn() -> Vec<Result<(), HeldBy>> + Sync)| {
        thread::scope(|it| it.spawn(of).join().unwrap())
    };

    let guard = mutex.lock()?;
    all_are(HeldBy::ThisThread, sets(), "mutex");
    all_are(HeldBy::ThisProcess, elsewhere(&sets), "mutex");
    guard.release()?;
    let guard = rw.read()?;
    all_are(HeldBy::ThisThread, sets(), "reader");
    guard.release()?;
    let guard = rw.write()?;
    all_are(HeldBy::ThisThread, sets(), "writer");
    guard.release()?;
    let reentrant = locks.reentrant_mutex("b");
    let guards = (reentrant.lock()?, reentrant.lock()?);
    all_are(HeldBy::ThisThread, sets(), "reentrant mutex");
    drop(guards);

    let guard = both.lock()?;
    all_are(HeldBy::ThisThread, [singles(), sets()].concat(), "set");
    all_are(
        HeldBy::ThisProcess,
        elsewhere(&|| [singles(), sets()].concat()),
        "set",
    );
    guard.release()?;
    // It is over, of a name that somebody else has now.
    let other = manager(&servers);
    let theirs = other.multi_lock(["a", "b"]).lock()?;
    all_are(
        HeldBy::Other,
        [singles(), sets()].concat(),
        "another manager",
    );
    drop((theirs, none.lock()?));
    Ok(())
}

#[test]
fn an_error_names_this_thread_or_process_as_the_permit_holder() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, others) = (manager(&servers), manager(&servers));
    let (mail, theirs) = (locks.semaphore("mail", 2), others.semaphore("mail", 2));
    let permits = (mail.acquire()?, theirs.acquire()?);

    let refused = || {
        [
            mail.try_acquire_for(BRIEF).unwrap_err(),
            mail.try_acquire().unwrap_err(),
        ]
    };
    for err in refused() {
        assert_held_by(&err, HeldBy::ThisThread, BY_THIS_THREAD);
    }
    for err in thread::scope(|scope| scope.spawn(refused).join().unwrap()) {
        assert_eq!(held_by(&err), HeldBy::ThisProcess);
    }

    // Permits that were given back are nobody's.
    permits.0.release()?;
    let more = theirs.acquire()?;
    assert!(refused().iter().all(|it| held_by(it) == HeldBy::Other));
    drop((permits.1, more));
    Ok(())
}

#[test]
fn a_thread_that_waits_for_its_own_lock_is_logged_once_after_a_ttl() -> TestResult {
    let servers = Servers::start(1)?;
    let child = child(
        "acquire::own_hold::child_that_waits_for_itself",
        &servers.urls(),
    );

    let lines = told(&child);

    let all = lines.join("\n");
    // A server that a busy machine holds up is a warning too.
    let waits = |it: &&String| it.starts_with("WARN") && it.contains(": this thread ");
    let warnings: Vec<_> = lines.iter().filter(waits).collect();
    assert_eq!(warnings.len(), 2, "{all}");
    for (warning, name) in warnings.iter().zip(["report", "report, stock"]) {
        assert!(
            warning.starts_with(&format!("WARN {name:?}: this thread has waited for ")),
            "{all}"
        );
        assert!(warning.contains("for a lock it took itself"), "{all}");
        assert!(
            warning.ends_with("a deadlock if it still has the guard: drop the guard first"),
            "{all}"
        );
    }
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_waits_for_itself() {
    let Some(urls) = parent_urls() else { return };
    listen();
    let locks = builder(urls).response_timeout(ms(250)).build().unwrap();
    let report = locks.mutex("report");
    let guard = report.clone().ttl(LONG).lock().unwrap();
    // Less than a ttl: no reason to be worried yet.
    let ttl = secs(1);
    assert!(report.try_lock_for(ttl).is_err());
    // Another thread waits, as is usual, and for longer than a ttl.
    let report = report.ttl(ttl);
    thread::scope(|scope| {
        scope.spawn(|| assert!(report.try_lock_for(ttl * 3 / 2).is_err()));
    });
    // A server that a busy machine holds up is a warning too.
    assert!(!heard().iter().any(|it| it.contains(": this thread ")));
    let longer = ttl * 3 / 2;
    let err = report.try_lock_for(longer).unwrap_err();
    assert_eq!(held_by(&err), HeldBy::ThisThread);
    // So it is where it waits for a set with that name.
    let set = locks.multi_lock(["report", "stock"]).ttl(ttl);
    let err = set.try_lock_for(longer).unwrap_err();
    assert_eq!(held_by(&err), HeldBy::ThisThread);
    drop(guard);
    // And it is still of use.
    drop(report.ttl(LONG).lock().unwrap());
    tell(heard());
}
