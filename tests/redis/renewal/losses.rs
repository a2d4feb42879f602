//! A lock that was lost: whatever finds it, all listeners are told the same.

use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use devnodes::{PATIENCE, Servers, eventually};
use quorlock::{LockGuard, LockManager, Lost, LostReason, LostReceiver, WithError};

use crate::support::*;
use crate::waiting::lists::*;

/// Everything that tells of a loss.
struct Told {
    lost: LostReceiver,
    called: Receiver<Lost>,
}

impl Told {
    fn by(guard: &LockGuard) -> Told {
        let (sender, called) = bounded(1);
        guard.on_lost(move |lost| sender.send(lost).unwrap());
        Told {
            lost: guard.lost(),
            called,
        }
    }

    #[track_caller]
    fn say(&self, reason: LostReason) {
        for channel in [&*self.lost, &self.called] {
            assert_eq!(
                channel.recv_timeout(PATIENCE).map(|it| it.reason),
                Ok(reason)
            );
        }
        self.say_nothing();
    }

    /// Nothing more, if it has told of a loss.
    #[track_caller]
    fn say_nothing(&self) {
        assert!(self.lost.recv_timeout(PATIENCE).is_err());
        assert!(self.called.recv_timeout(PATIENCE).is_err());
    }
}

fn losses_and_releases(locks: &LockManager) -> (u64, u64) {
    let stats = locks.stats();
    (
        stats.locks_lost,
        stats.releases + stats.releases_unconfirmed,
    )
}

/// No renewal is due before the end of the test: the release is the first to hear of it.
#[test]
fn h10_a_release_that_finds_the_lock_taken_reports_the_loss_everywhere() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let other = manager(&servers);
    let guard = locks.mutex("report").lock()?;
    let (told, before) = (Told::by(&guard), losses_and_releases(&locks));
    del_all(&servers, "report");
    let thief = other.mutex("report").try_lock()?;

    assert_eq!(reason(guard.release()), Err(LostReason::Gone));

    told.say(LostReason::Gone);
    assert_eq!(losses_and_releases(&locks), (before.0 + 1, before.1));
    assert!(thief.is_valid());
    let released = thief.release()?;
    assert!(2 <= released.confirmed, "its keys were left alone");

    // And where nobody looks at what the release says.
    let guard = locks.mutex("other").lock()?;
    let told = Told::by(&guard);
    set_all(&servers, "other", "somebody else");
    drop(guard);
    told.say(LostReason::Gone);
    assert_eq!(losses_and_releases(&locks), (before.0 + 2, before.1));
    Ok(())
}

#[test]
fn h10_every_report_of_a_loss_names_the_lock() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let guard = locks.multi_lock(["a", "b"]).lock()?;
    let (told, expiring) = (Told::by(&guard), guard.expiring());
    let writer = locks.rw_lock("shared").write()?;
    let leader = locks.mutex("leader").lock()?;
    del_all(&servers, "a");

    let gone = loss("a, b", LostReason::Gone);
    assert_eq!(guard.extend(LONG), Err(gone.clone().into()));
    for channel in [&*told.lost, &told.called, &*expiring, &*guard.lost()] {
        assert_eq!(channel.recv_timeout(PATIENCE), Ok(gone.clone()));
    }
    assert_eq!(guard.check(), Err(gone.clone()));
    assert_eq!(guard.release(), Err(gone.into()));

    let gone = WithError::Lost(loss("report", LostReason::Gone));
    let ran = (locks.mutex("report")).with(|_| del_all(&servers, "report"));
    assert_eq!(ran, Err(gone));

    locks.shutdown();
    let over = loss("shared", LostReason::ShutDown);
    assert_eq!(writer.release(), Err(over.into()));
    let over = loss("leader", LostReason::ShutDown);
    assert_eq!(leader.release(), Err(over.into()));
    Ok(())
}

#[test]
fn h10_with_reports_a_loss_during_its_closure() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let steal = |_: &LockGuard| {
        set_all(&servers, "report", "somebody else");
        "done"
    };

    let ran = locks.mutex("report").with(steal);

    assert_matches!(ran, Err(WithError::Lost(lost)) if lost.reason == LostReason::Gone);
    let again = locks.reentrant_mutex("again").with(|guard| {
        let inner = locks
            .reentrant_mutex("again")
            .with(|_| del_all(&servers, "again"));
        assert!(inner.is_ok() && guard.is_valid(), "nobody can know yet");
    });
    assert_matches!(again, Err(WithError::Lost(lost)) if lost.reason == LostReason::Gone);
    assert_eq!(locks.stats().locks_lost, 2);
    Ok(())
}

/// One node has lost the key, another has somebody else's: the key of the third keeps others out.
#[test]
fn a_lost_lock_blocks_others_until_its_guard_is_dropped() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let others = manager(&servers);
    for finds in ["extend", "release"] {
        let guard = locks.mutex("report").lock()?;
        eventually("all have granted it", || servers.holders("report") == 3);
        del(&servers[0], "report");
        set(&servers[1], "report", "somebody else's");
        if finds == "extend" {
            let told = Told::by(&guard);
            assert_eq!(reason(guard.extend(LONG)), Err(LostReason::Gone));
            told.say(LostReason::Gone);
            // Whatever was sent has been answered.
            locks.mutex("report").inspect()?;
            assert_held(&others.mutex("report").try_lock().unwrap_err());
        }

        let _ = guard.release();

        eventually("it is free", || !servers[2].exists("report"));
        del(&servers[1], "report");
    }
    Ok(())
}

#[test]
fn a_lost_lock_leaves_the_waiting_lists() -> TestResult {
    let servers = Servers::start(3)?;
    // The list lasts for longer than anybody looks.
    let locks = connected(far(&servers), 3);
    // It is entered in the list of the one node that refuses it.
    set(&servers[2], "report", "somebody else's");
    let guard = locks.mutex("report").lock()?;
    eventually("it is in the list", || {
        waiters_of(&servers[2], "report").len() == 1
    });
    servers.iter().take(2).for_each(|it| del(it, "report"));

    assert_eq!(reason(guard.extend(LONG)), Err(LostReason::Gone));
    drop(guard);

    eventually("it is not any more", || {
        waiters_of(&servers[2], "report").is_empty()
    });
    Ok(())
}

/// The node that is paused owes the answer to an extension, and with that it keeps what the extension needs.
#[test]
fn h12_a_callback_is_dropped_with_its_guard_while_a_node_owes_an_extension() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_ttl(servers.urls(), secs(3)).build()?;
    let guard = lock_in_the_end(&locks, "report");
    eventually("all nodes are connected", || locks.stats().connections == 3);
    servers[0].pause()?;
    let before = locks.stats();
    eventually("it is extended without the one", || {
        let stats = locks.stats();
        before.extensions < stats.extensions
    });
    let (theirs, kept) = (locks.clone(), Arc::new(()));
    let keeps = Arc::clone(&kept);
    guard.on_lost(move |_| drop((theirs, keeps)));
    let lost = guard.lost();

    let _ = guard.release();

    assert_eq!(Arc::strong_count(&kept), 1, "the callback is kept");
    assert!(lost.recv_timeout(PATIENCE).is_err());
    servers[0].resume()?;
    Ok(())
}
