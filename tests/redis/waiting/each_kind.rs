//! What holds for calls that wait for any kind of lock.

use devnodes::eventually;
use quorlock::{AcquireError, CancelHandle, LockManager};
use rustix::process::Signal;

use crate::kinds::each_kind::KINDS;
use crate::support::*;
use crate::waiting::lists::*;

#[test]
fn j3_k6_calls_of_any_kind_that_end_or_die_keep_nobody_out() -> TestResult {
    let (servers, [holder, leaver, waiter]) = with_managers(far);
    let held = KINDS.map(|kind| (kind, kind.take(&holder, &servers)));
    let listed = |count| {
        for kind in KINDS {
            wait_until_in(&servers, &kind.list(), count);
        }
    };
    let mut dead = child("waiting::each_kind::child_that_waits", &servers.urls());
    assert_eq!(dead.hear(), "waits");
    listed(1);
    let client = client_of(&members_in(&servers[0], &KINDS[0].list())[0]);
    let cancel = CancelHandle::new();
    let cancelled = KINDS.map(|kind| kind.wait(&leaver, &cancel));
    listed(2);
    let waiting = KINDS.map(|kind| kind.wait(&waiter, &CancelHandle::new()));
    listed(3);

    cancel.cancel();
    for call in cancelled {
        assert!(matches!(join(call), Err(AcquireError::Cancelled)));
    }
    listed(2);
    dead.signal(Signal::KILL);
    assert!(!dead.wait().success());
    wait_until_deaf(&servers, &[client]);

    for ((_, hold), next) in held.into_iter().zip(waiting) {
        hold.release()?;
        join(next)?.release()?;
    }
    nothing_waits(&servers);
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_waits() {
    let Some(urls) = parent_urls() else { return };
    let locks: LockManager = builder(&urls)
        .ttl(LONG)
        .retry_delay(secs(60), secs(60))
        .build()
        .unwrap();
    let calls = KINDS.map(|kind| kind.wait(&locks, &CancelHandle::new()));
    eventually("all wait", || locks.stats().waiting == calls.len() as u64);
    say("waits");
    wait_for_parent();
}

/// As where a leave command was lost with its connection. The call listens, as it has waited before.
#[test]
fn h28_j3_k6_what_a_gone_call_of_any_kind_is_handed_is_passed_on_at_once() -> TestResult {
    let (servers, [holder, gone, other]) = with_managers(far);
    for kind in KINDS {
        let list = kind.list();
        let held = kind.take(&holder, &servers);
        let cancel = CancelHandle::new();
        let cancelled = kind.wait(&gone, &cancel);
        wait_until_in(&servers, &list, 1);
        let member = members_in(&servers[0], &list).remove(0);
        cancel.cancel();
        assert!(join(cancelled).is_err());
        wait_until_in(&servers, &list, 0);
        let waiting = kind.wait(&other, &CancelHandle::new());
        wait_until_in(&servers, &list, 1);
        for server in &servers {
            server.command(&["ZADD", &list, "1", &member])?;
        }
        let before = gone.stats().notices;

        held.release()?;

        // Nothing but what the other manager passes on can have let it in.
        join(waiting)?.release()?;
        eventually("all have handed it over", || {
            before + 3 <= gone.stats().notices
        });
        nothing_waits(&servers);
    }
    Ok(())
}
