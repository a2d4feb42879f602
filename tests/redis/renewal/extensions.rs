//! Locks that are kept, and locks that are lost: said once, through every door, and for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use devnodes::{PATIENCE, Proxy, Server, Servers, eventually};
use quorlock::{
    Builder, ExtendError, LockGuard, LockName, Lost, LostReason, LostReceiver, ReleaseError,
};

use crate::support::*;

/// Locks that are renewed every second: for tests in which that must happen or fail. Not shorter: on a
/// busy machine the renewal thread must get its turn in time.
fn short(servers: &Servers) -> Builder {
    with_ttl(servers.urls(), secs(3))
}

/// Every door through which a loss is announced.
struct Doors {
    early: LostReceiver,
    called: Receiver<Lost>,
    calls: Arc<AtomicUsize>,
}

impl Doors {
    fn of(guard: &LockGuard) -> Doors {
        let calls = Arc::new(AtomicUsize::new(0));
        let called = Doors::listen(guard, &calls);
        Doors {
            early: guard.lost(),
            called,
            calls,
        }
    }

    fn listen(guard: &LockGuard, calls: &Arc<AtomicUsize>) -> Receiver<Lost> {
        let (sender, called) = bounded(10);
        let calls = Arc::clone(calls);
        guard.on_lost(move |lost| {
            calls.fetch_add(1, Ordering::SeqCst);
            sender.send(lost).unwrap();
        });
        called
    }

    /// Asserts that all of them say this, once, and that the guard agrees.
    #[track_caller]
    fn assert_said_once(self, guard: LockGuard, reason: LostReason) {
        let lost = Lost {
            name: LockName::new(guard.name()),
            reason,
        };
        assert_eq!(self.early.recv_timeout(PATIENCE), Ok(lost.clone()));
        assert_eq!(self.called.recv_timeout(PATIENCE), Ok(lost.clone()));
        // A listener that comes after the loss is told as well.
        assert_eq!(guard.lost().recv_timeout(PATIENCE), Ok(lost.clone()));
        let late = Doors::listen(&guard, &self.calls);
        assert_eq!(late.recv_timeout(PATIENCE), Ok(lost.clone()));

        assert!(!guard.is_valid());
        assert_eq!(guard.check(), Err(lost.clone()));
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert!(guard.valid_until() <= Instant::now());
        assert_eq!(guard.extend(LONG), Err(ExtendError::Lost(lost.clone())));
        assert_eq!(guard.release(), Err(ReleaseError::Lost(lost)));

        assert_is_closed(&self.early);
        assert_is_closed(&self.called);
        assert_eq!(self.calls.load(Ordering::SeqCst), 2);
    }
}

/// Nothing more is announced.
#[track_caller]
fn assert_is_closed(lost: &Receiver<Lost>) {
    let closed = Err(RecvTimeoutError::Disconnected);
    assert_eq!(lost.recv_timeout(PATIENCE), closed);
}

#[test]
fn d3_a_key_deleted_on_a_majority_is_announced_as_gone_and_never_created_again() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_ttl(servers.urls(), secs(4)).build()?;
    let guard = locks.mutex("report").lock()?;
    let doors = Doors::of(&guard);
    eventually("it is on all nodes", || servers.holders("report") == 3);

    // A renewal between the two deletions sets the first key again.
    eventually("it is lost", || {
        servers.iter().take(2).for_each(|it| del(it, "report"));
        guard.check().is_err()
    });

    doors.assert_said_once(guard, LostReason::Gone);
    assert_eq!(locks.stats().locks_lost, 1);
    // What was left on the third node is taken back.
    nothing_is_left(&servers);
    let next = locks.mutex("report").try_lock()?;
    assert!(next.is_valid());
    Ok(())
}

#[test]
fn d6_an_extension_of_removed_keys_sets_none_and_spares_others() -> TestResult {
    for foreign in [false, true] {
        let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
        let guard = locks.mutex("report").lock()?;
        let doors = Doors::of(&guard);
        eventually("it is on all nodes", || servers.holders("report") == 3);
        del_all(&servers, "report");
        let set = |it| set_px(it, "report", "foreign", 100_000);
        servers.iter().filter(|_| foreign).for_each(set);

        assert_eq!(reason(guard.extend(LONG)), Err(LostReason::Gone));

        let left = foreign.then(|| b"foreign".to_vec());
        let is_left = || servers.iter().all(|it| it.get("report") == left);
        eventually("keys that it set are released", is_left);
        doors.assert_said_once(guard, LostReason::Gone);
        assert!(is_left(), "foreign: {foreign}");
        assert!(servers.iter().all(|it| it.pttl("report") <= 100_000));
    }
    Ok(())
}

#[test]
fn d4_a_lock_on_dead_nodes_expires_and_stays_invalid() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = short(&servers).build()?;
    let began = Instant::now();
    let guard = lock_in_the_end(&locks, "report");
    let doors = Doors::of(&guard);

    servers.iter().try_for_each(Server::kill)?;
    eventually("it is lost", || !guard.is_valid());
    assert!(ms(900) <= began.elapsed(), "before its deadline");
    servers.iter().try_for_each(Server::restart)?;

    let next = lock_in_the_end(&manager(&servers), "report");
    assert!(next.is_valid());
    doors.assert_said_once(guard, LostReason::Expired);
    assert_eq!(locks.stats().locks_lost, 1);
    assert!(next.is_valid() && 2 <= servers.holders("report"));
    Ok(())
}

#[test]
fn d4_an_extension_sent_in_time_and_confirmed_late_revives_no_lock() -> TestResult {
    let (servers, proxies, locks) =
        start_behind_proxies(3, |urls| with_ttl(urls, secs(1)).renew(false));
    let guard = lock_in_the_end(&locks, "report");
    let doors = Doors::of(&guard);

    eventually("its end is near", || guard.remaining() < ms(120));
    proxies.iter().for_each(Proxy::hold_replies);
    thread::scope(|scope| {
        let extending = scope.spawn(|| guard.extend(LONG));
        eventually("it is over", || !guard.is_valid());
        proxies.iter().for_each(Proxy::release_replies);
        let extended = extending.join().unwrap();
        assert_eq!(reason(extended), Err(LostReason::LeaseOver));
    });

    doors.assert_said_once(guard, LostReason::LeaseOver);
    // Also where the nodes have made its key live for longer.
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn d2_failed_renewals_end_nothing_while_there_is_time() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls).response_timeout(ms(200)).ttl(secs(20))
    });
    let guard = lock_in_the_end(&locks, "report");

    proxies.iter().for_each(Proxy::hold_replies);
    let err = guard.extend(secs(20)).unwrap_err();
    assert!(matches!(err, ExtendError::NoQuorum { .. }), "{err:?}");
    assert!(guard.is_valid());
    proxies.iter().for_each(Proxy::release_replies);

    eventually("it can be extended again", || {
        guard.extend(secs(30)).is_ok()
    });
    assert!(guard.is_valid());
    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn d5_extending_lengthens_and_never_shortens() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let guard = locks.mutex("report").renew(false).lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    assert!(guard.remaining() < secs(20));
    let life = || {
        let mut lives: Vec<_> = servers.iter().map(|it| it.pttl("report")).collect();
        lives.sort_unstable();
        lives[1]
    };

    guard.extend(LONG)?;
    assert!(secs(400) < guard.remaining());
    assert!(Instant::now() + secs(400) < guard.valid_until());
    assert!(400_000 < life());

    guard.extend(secs(20))?;
    assert!(secs(400) < guard.remaining());
    assert!(400_000 < life());
    assert_eq!(locks.stats().extensions, 2);
    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn e1_d9_a_release_beside_a_renewal_is_never_a_reported_loss() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_ttl(servers.urls(), secs(3)).build()?;
    connect(&locks, 3);

    thread::scope(|scope| {
        let holders: Vec<_> = (0..20)
            .map(|t| {
                let locks = &locks;
                scope.spawn(move || {
                    for i in 0..3 {
                        let guard = lock_in_the_end(locks, &format!("report {t}"));
                        let lost = guard.lost();
                        // Renewal is due after a second.
                        let until_then = ms(992 + (t * 3 + i) % 16);
                        let early = lost.recv_timeout(until_then);
                        assert_eq!(early, Err(RecvTimeoutError::Timeout));
                        drop(guard);
                        assert_is_closed(&lost);
                    }
                })
            })
            .collect();
        // A script that is gone puts an extension behind the release that was sent after it.
        while !holders.iter().all(|it| it.is_finished()) {
            command_all(&servers, &["SCRIPT", "FLUSH"]);
            thread::sleep(ms(3));
        }
    });

    assert_eq!(locks.stats().locks_lost, 0);
    assert!(0 < locks.stats().extensions, "no renewal met a release");
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn d11_one_of_many_locks_is_lost_while_a_node_hangs_and_the_others_are_kept() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_ttl(servers.urls(), secs(6)).build()?;
    connect(&locks, 3);
    let mut guards: Vec<_> = (0..200)
        .map(|i| lock_in_the_end(&locks, &format!("report {i}")))
        .collect();
    wait_for_extensions(&locks, 200);

    let gone = guards.remove(100);
    let doors = Doors::of(&gone);
    eventually("it is lost", || {
        servers.iter().take(2).for_each(|it| del(it, "report 100"));
        !gone.is_valid()
    });
    servers[2].pause()?;
    wait_for_extensions(&locks, 2 * 199);

    doors.assert_said_once(gone, LostReason::Gone);
    guards.iter().try_for_each(|it| it.check())?;
    assert_eq!(locks.stats().locks_lost, 1);
    servers[2].resume()?;
    drop(guards);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn d11_one_lock_that_cannot_be_renewed_does_not_stop_the_others() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_ttl(servers.urls(), ms(3000)).build()?;
    connect(&locks, 3);
    let stuck = lock_in_the_end(&locks, "stuck");
    let doors = Doors::of(&stuck);
    let fine = lock_in_the_end(&locks, "fine");

    // Counters ahead of the token: a rival seems to have been granted it, and no renewal counts.
    set_all(&servers, &fence("stuck"), "9007199254740000");
    eventually("it is lost", || !stuck.is_valid());

    doors.assert_said_once(stuck, LostReason::Expired);
    assert!(fine.is_valid());
    fine.release()?;
    nothing_is_left(&servers);
    Ok(())
}
