//! What holds for calls that wait for any kind of lock.

use std::thread::{self, JoinHandle};

use devnodes::{Server, Servers, eventually};
use quorlock::inspection::Inspection;
use quorlock::{AcquireError, CancelHandle, LockManager};
use rustix::process::Signal;

use crate::kinds::each_kind::{KINDS, Kind};
use crate::support::*;
use crate::waiting::lists::*;

#[test]
fn j3_k6_cancelled_and_dead_calls_of_any_kind_block_no_other() -> TestResult {
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
fn h28_j3_k6_a_hand_over_to_an_ended_call_is_passed_on_at_once() -> TestResult {
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

/// Monitors subscribe to patterns.
#[test]
fn h3_dead_entries_are_skipped_beside_a_pattern_subscriber() -> TestResult {
    // Stand-ins know no PSUBSCRIBE either.
    needs!(CommandMonitor);
    let (servers, [holder, other]) = with_managers(far);
    let monitor = |server: &Server| {
        let mut client = server.client().unwrap();
        client.command(&["PSUBSCRIBE", "*"]).unwrap();
        client
    };
    let _monitors: Vec<_> = servers.iter().map(monitor).collect();
    for (kind, has_next) in KINDS
        .into_iter()
        .flat_map(|it| [false, true].map(|next| (it, next)))
    {
        let list = kind.list();
        let held = kind.take(&holder, &servers);
        let waiting = kind.wait(&other, &CancelHandle::new());
        wait_until_in(&servers, &list, 1);
        let next = has_next.then(|| kind.wait(&holder, &CancelHandle::new()));
        eventually("the next call waits", || {
            holder.stats().waiting == u64::from(has_next)
        });
        let dead = (1..7).map(|it: u64| member(&format!("{it:016x}"), "w", &format!("{it:032x}")));
        let dead: Vec<_> = dead.collect();
        for (since, member) in dead.iter().enumerate() {
            command_all(&servers, &["ZADD", &list, &since.to_string(), member]);
        }

        held.release()?;

        // A majority has handed it over in one step.
        let is_left = |it: &&Server| members_in(it, &list).iter().any(|it| dead.contains(it));
        let left = servers.iter().filter(is_left).count();
        assert!(left <= 1, "{kind:?}: {left} servers");
        join(waiting)?.release()?;
        if let Some(next) = next {
            join(next)?.release()?;
        }
        nothing_waits(&servers);
    }
    Ok(())
}

/// A waiting call gets the lock on two servers, and the third refuses it.
fn wins_beside_a_foreign_key<T>(
    servers: &Servers,
    list: &str,
    key: &str,
    call: impl FnOnce() -> JoinHandle<T>,
) -> T {
    set_all(servers, key, "foreign");
    let call = call();
    wait_until_in(servers, list, 1);
    let member = members_in(&servers[0], list).remove(0);
    for server in [&servers[0], &servers[1]] {
        del(server, key);
        prod(server, &member, key);
    }
    join(call)
}

#[test]
fn h3_a_holder_of_any_kind_is_in_no_list_of_a_server_that_refused_it() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    let is_listed = |list: &str| servers.iter().any(|it| !members_in(it, list).is_empty());
    for kind in KINDS {
        let (list, key) = (kind.list(), kind.keys()[0]);
        let hold = wins_beside_a_foreign_key(&servers, &list, key, || {
            kind.wait(&locks, &CancelHandle::new())
        })?;
        eventually("the holder is in no list", || !is_listed(&list));
        assert!(hold.is_valid(), "{kind:?}");
        hold.release()?;
        del(&servers[2], key);
    }
    let lock = locks.rw_lock(NAME);
    let reader = wins_beside_a_foreign_key(&servers, &list(NAME), NAME, || {
        thread::spawn(move || lock.read())
    })?;
    eventually("the reader is in no list", || !is_listed(&list(NAME)));
    assert!(reader.is_valid());
    reader.release()?;
    del(&servers[2], NAME);
    nothing_waits(&servers);
    Ok(())
}

fn inspections(kind: Kind, locks: &LockManager) -> Result<Vec<Inspection>, AcquireError> {
    match kind {
        Kind::Several => locks.multi_lock(["a", "b"]).inspect(),
        Kind::Permit => locks.semaphore("mail", 1).inspect(),
        _ => Ok(vec![locks.rw_lock(kind.keys()[0]).inspect()?]),
    }
}

#[test]
fn e5_releases_and_hand_overs_work_on_full_servers() -> TestResult {
    needs!(Settings);
    let (servers, [holder, gone, other]) = with_managers(far);
    let full = |is_full: bool| {
        let bytes = if is_full { "1" } else { "0" };
        command_all(&servers, &["CONFIG", "SET", "maxmemory", bytes]);
    };
    for kind in KINDS {
        let mark = kind.list().replace("waiting", "mark");
        let wait = |locks| kind.wait(locks, &CancelHandle::new());
        let take = || {
            full(false);
            kind.take(&holder, &servers)
        };
        // Nobody waits.
        let held = take();
        full(true);
        held.release()?;
        nothing_waits(&servers);

        // A call of the same manager, of another one, and both.
        for (has_next, has_other) in [(true, false), (false, true), (true, true)] {
            let held = take();
            let other = has_other.then(|| wait(&other));
            wait_until_in(&servers, &kind.list(), usize::from(has_other));
            let next = has_next.then(|| wait(&holder));
            eventually("the next call waits", || {
                holder.stats().waiting == u64::from(has_next)
            });
            full(true);
            held.release()?;
            // A full server grants nothing to a call that comes too late for its hand-over, and asks.
            full(false);
            for call in other.into_iter().chain(next) {
                join(call)?.release()?;
            }
            nothing_waits(&servers);
        }

        // A call leaves. Then it is handed the lock that it no longer wants.
        let held = take();
        let cancel = CancelHandle::new();
        let leaving = kind.wait(&gone, &cancel);
        wait_until_in(&servers, &kind.list(), 1);
        let member = members_in(&servers[0], &kind.list()).remove(0);
        full(true);
        cancel.cancel();
        assert!(join(leaving).is_err());
        wait_until_in(&servers, &kind.list(), 0);
        full(false);
        for server in &servers {
            server.command(&["ZADD", &kind.list(), "1", &member])?;
            set_px(server, &mark, "", 600_000);
        }
        full(true);
        held.release()?;
        nothing_waits(&servers);

        // An operator releases it.
        let held = take();
        full(true);
        for seen in inspections(kind, &other)? {
            other.admin().release(&seen)?;
        }
        let is_left = || servers.iter().any(|it| kind.is_on(it));
        eventually("nothing of it is left", || !is_left());
        drop(held);
        nothing_waits(&servers);
    }
    Ok(())
}
