//! A refusal counts from a majority that votes: servers in quarantine may refuse a call by keys that others leave there
//! for a moment.

use std::sync::Barrier;
use std::thread;

use devnodes::{Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, CancelHandle, LockManager};

use crate::support::*;

/// Long enough that nothing of it passes by itself while a test looks.
const QUARANTINE: std::time::Duration = secs(600);

fn strict(servers: &Servers) -> LockManager {
    let options = builder(servers.urls()).quarantine(true);
    options.max_ttl(QUARANTINE).build().unwrap()
}

/// As if these servers had been there for ever.
fn let_vote<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    servers
        .into_iter()
        .for_each(|it| Record::of_ever(it).write(it));
}

fn quarantined(err: &AcquireError) -> usize {
    let is_quarantined =
        |it: &NodeAnswer| matches!(it, NodeAnswer::Failed(NodeFailure::Quarantined { .. }));
    let rows = err.nodes().iter();
    rows.filter(|it| is_quarantined(&it.answer)).count()
}

#[test]
fn b6_calls_that_begin_together_in_a_quarantine_do_not_find_the_lock_held() -> TestResult {
    const CALLERS: usize = 4;
    let servers = Servers::start(3)?;
    let barrier = Barrier::new(CALLERS);
    let managers = repeat(CALLERS, || strict(&servers));
    let round = |name: &str, locks: &LockManager| {
        barrier.wait();
        locks.mutex(name).try_lock().unwrap_err()
    };

    let errors: Vec<_> = thread::scope(|scope| {
        let rounds = |locks| {
            let names = (0..40).map(|it| format!("{it}"));
            names.map(|it| round(&it, locks)).collect::<Vec<_>>()
        };
        let begin = |locks| scope.spawn(move || rounds(locks));
        let callers: Vec<_> = managers.iter().map(begin).collect();
        let errors = callers.into_iter().map(|it| it.join().unwrap());
        errors.flatten().collect()
    });

    errors.iter().for_each(assert_no_quorum);
    Ok(())
}

#[test]
fn b6_a_majority_in_quarantine_finds_no_quorum_though_each_server_has_a_key() -> TestResult {
    let servers = Servers::start(3)?;
    set_all(&servers, "report", "foreign");
    set_all(&servers, "quorlock:slot-0:report", "foreign");
    let locks = strict(&servers);
    let rw_lock = locks.rw_lock("report");

    for err in [
        locks.mutex("report").try_lock().unwrap_err(),
        locks.mutex("report").try_lock_for(ms(50)).unwrap_err(),
        locks.multi_lock(["report", "b"]).try_lock().unwrap_err(),
        rw_lock.try_read().unwrap_err(),
        rw_lock.try_write_for(ms(50)).unwrap_err(),
        locks.semaphore("report", 1).try_acquire().unwrap_err(),
    ] {
        assert_no_quorum(&err);
        assert!(2 <= quarantined(&err), "{err}");
    }
    assert_eq!(servers[0].get("report").as_deref(), Some(&b"foreign"[..]));
    Ok(())
}

#[test]
fn b6_a_call_behind_another_one_in_a_quarantine_does_not_find_the_lock_held() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = strict(&servers);
    let cancel = CancelHandle::new();
    let first = locks.mutex("report").cancelled_by(&cancel);
    let first = thread::spawn(move || first.lock().map(drop));
    eventually("the first one waits, and all servers are known", || {
        locks.stats().waiting == 1 && locks.stats().quarantined.len() == 3
    });

    let err = locks.mutex("report").try_lock_for(ms(10)).unwrap_err();

    assert_no_quorum(&err);
    assert_eq!(quarantined(&err), 3, "{err}");
    cancel.cancel();
    assert_matches!(join(first), Err(AcquireError::Cancelled));
    Ok(())
}

#[test]
fn a_refusing_majority_beside_quarantined_servers_is_held() -> TestResult {
    let servers = Servers::start(5)?;
    let_vote(servers.iter().take(3));
    let locks = strict(&servers);
    eventually("two are in quarantine", || {
        drop(locks.mutex("other").try_lock());
        locks.stats().quarantined.len() == 2
    });

    set_all(&servers, "report", "foreign");
    assert_held(&locks.mutex("report").try_lock().unwrap_err());
    let err = locks.mutex("report").try_lock_for(ms(50)).unwrap_err();
    assert_held(&err);
    for number in 0..2 {
        del(&servers[number], "report");
    }
    // Both others in quarantine refuse, and one server that votes.
    assert_held(&locks.mutex("report").try_lock_for(ms(50)).unwrap_err());
    Ok(())
}
