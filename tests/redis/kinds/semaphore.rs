//! Permits of a semaphore: as many as were asked for, never more, and each comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use devnodes::{PATIENCE, Server, Servers, eventually};
use quorlock::error::NodeAnswer;
use quorlock::{AcquireError, LockManager, LostReason, Permit, Semaphore};
use rustix::process::Signal;

use crate::support::*;
use crate::waiting::lists::{
    channel, client_of, far, hand_over_message, member, members_in, nothing_waits, on_all,
    wait_until_in, with_managers,
};

const NAME: &str = "mail";

fn slot_key(slot: usize) -> String {
    format!("quorlock:slot-{slot}:{NAME}")
}

fn slot_fence(slot: usize) -> String {
    format!("quorlock:slot-fence-{slot}:{NAME}")
}

fn list() -> String {
    format!("quorlock:slot-waiting:{NAME}")
}

fn mark() -> String {
    format!("quorlock:slot-mark:{NAME}")
}

/// The slots that are taken on a server.
fn taken(server: &Server) -> BTreeSet<usize> {
    (0..16).filter(|it| server.exists(slot_key(*it))).collect()
}

fn slots_of(permits: &[Permit]) -> BTreeSet<usize> {
    permits.iter().map(Permit::slot).collect()
}

/// How many rounds the manager has had.
pub(crate) fn rounds(locks: &LockManager) -> u64 {
    let stats = locks.stats();
    stats.rounds_won + stats.rounds_held + stats.rounds_without_quorum + stats.rounds_too_late
}

/// Takes a permit, and says in how many rounds.
#[track_caller]
fn take(locks: &LockManager, permits: usize) -> (Permit, u64) {
    let before = rounds(locks);
    let permit = locks.semaphore(NAME, permits).try_acquire().unwrap();
    (permit, rounds(locks) - before)
}

/// Waits until the permit is on all servers.
#[track_caller]
fn wait_until_everywhere(servers: &Servers, permit: &Permit) {
    eventually("the permit is on all servers", || {
        servers.holders(slot_key(permit.slot())) == servers.len()
    });
}

fn wait_for(lock: Semaphore) -> JoinHandle<Result<Permit, AcquireError>> {
    thread::spawn(move || lock.acquire())
}

/// Waits until so many managers wait on every server, and listen there.
#[track_caller]
fn wait_until_listed(servers: &Servers, count: usize) {
    wait_until_in(servers, &list(), count);
}

#[test]
fn each_permit_is_granted_once_and_in_one_round() -> TestResult {
    let servers = Servers::start(3)?;
    let managers = repeat(5, || on_all(&servers, far));
    let mut permits = Vec::new();
    for locks in &managers {
        let (permit, rounds) = take(locks, 5);
        // The next one sees the same on all nodes.
        wait_until_everywhere(&servers, &permit);
        assert_eq!(rounds, 1);
        permits.push(permit);
    }
    assert_eq!(slots_of(&permits), (0..5).collect());

    let err = managers[0].semaphore(NAME, 5).try_acquire().unwrap_err();
    assert_held(&err);
    let held = |it: &&quorlock::error::NodeReport| {
        matches!(it.answer, NodeAnswer::Held { left: Some(_), .. })
    };
    assert!(2 <= err.nodes().iter().filter(held).count(), "{err}");

    // Whichever comes back is the one that is given.
    let freed = permits.swap_remove(2);
    let (slot, token) = (freed.slot(), freed.fencing_token());
    freed.release()?;
    servers.wait_until_free(slot_key(slot))?;
    let (again, rounds) = take(&managers[4], 5);
    assert_eq!((again.slot(), rounds), (slot, 1));
    assert!(token < again.fencing_token());
    drop((permits, again));
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a15_holders_reach_and_never_exceed_the_number_of_permits() -> TestResult {
    const PERMITS: usize = 3;
    let servers = Servers::start(3)?;
    let (inside, most, done) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    thread::scope(|scope| {
        for manager in 0..4 {
            let locks = builder(servers.urls()).build().unwrap();
            for _ in 0..2 {
                let (lock, inside, most, done) =
                    (locks.semaphore(NAME, PERMITS), &inside, &most, &done);
                scope.spawn(move || {
                    for _ in 0..12 {
                        let permit = if manager == 0 {
                            lock.try_acquire_for(PATIENCE)
                        } else {
                            lock.acquire()
                        }
                        .unwrap();
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(now <= PERMITS, "{now} are in");
                        most.fetch_max(now, Ordering::SeqCst);
                        // Until all were in together once.
                        eventually("all are in, or there are too few callers", || {
                            most.load(Ordering::SeqCst) == PERMITS || done.load(Ordering::SeqCst)
                        });
                        permit.check().unwrap();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        permit.release().unwrap();
                    }
                    done.store(true, Ordering::SeqCst);
                });
            }
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), PERMITS);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn k3_the_slot_that_is_free_at_a_majority_is_found_by_further_rounds() -> TestResult {
    let (servers, locks) = start_on_all(3, far);
    // Only slot 3 is free everywhere.
    for (node, server) in servers.iter().enumerate() {
        (0..3)
            .filter(|it| *it != node)
            .for_each(|it| set(server, &slot_key(it), "foreign"));
    }
    let mut again = 0;
    for _ in 0..30 {
        let before = rounds(&locks);
        let permit = locks.semaphore(NAME, 4).acquire()?;
        assert_eq!(permit.slot(), 3);
        again += u64::from(before + 1 < rounds(&locks));
        permit.release()?;
        eventually("all is given back", || {
            servers.iter().all(|it| taken(it).len() == 2)
        });
    }
    assert!(1 <= again, "all attempts began at the free slot");
    Ok(())
}

#[test]
fn k3_a_second_granted_slot_is_released_and_the_permit_kept() -> TestResult {
    let (servers, locks) = start_on_all(3, far);
    for _ in 0..10 {
        set(&servers[2], &slot_key(0), "foreign");
        let (permit, _) = take(&locks, 2);
        let slot = permit.slot();
        eventually("only the slot that was won is taken", || {
            servers.iter().take(2).all(|it| taken(it) == [slot].into())
                && taken(&servers[2]) == [0, slot].into()
        });
        permit.extend(LONG)?;
        permit.release()?;
        del(&servers[2], &slot_key(0));
        nothing_waits(&servers);
    }
    Ok(())
}

#[test]
fn k2_each_slot_has_its_own_counter() -> TestResult {
    let (servers, locks) = start_on_all(3, far);
    let ahead = in_an_hour();
    set_all(&servers, &slot_fence(1), &ahead.to_string());
    let mut last = BTreeMap::new();
    let held: Vec<_> = (0..3)
        .map(|_| {
            let (permit, _) = take(&locks, 3);
            wait_until_everywhere(&servers, &permit);
            permit
        })
        .collect();
    for permit in &held {
        let token = permit.fencing_token().get();
        assert_eq!(ahead < token, permit.slot() == 1, "another slot's counts");
        last.insert(permit.slot(), token);
    }
    drop(held);
    nothing_waits(&servers);
    for _ in 0..12 {
        let (permit, _) = take(&locks, 3);
        let token = permit.fencing_token().get();
        let before = last.insert(permit.slot(), token).unwrap();
        assert!(before < token, "{before} then {token}");
        permit.release()?;
        nothing_waits(&servers);
    }
    Ok(())
}

#[test]
fn k1_a_crashed_holders_permit_is_free_after_its_ttl() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let mut child = child("kinds::semaphore::child_that_takes_all", &servers.urls());
    assert_eq!(child.hear(), "has both");
    assert_held(&locks.semaphore(NAME, 2).try_acquire().unwrap_err());

    child.signal(Signal::KILL);
    assert!(!child.wait().success());

    let both = [
        locks.semaphore(NAME, 2).try_acquire_for(PATIENCE)?,
        locks.semaphore(NAME, 2).try_acquire_for(PATIENCE)?,
    ];
    assert_eq!(slots_of(&both), [0, 1].into());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_takes_all() {
    let Some(urls) = parent_urls() else { return };
    let locks = with_ttl(&urls, secs(1)).build().unwrap();
    let _both = [
        locks.semaphore(NAME, 2).acquire().unwrap(),
        locks.semaphore(NAME, 2).acquire().unwrap(),
    ];
    say("has both");
    wait_for_parent();
}

#[test]
fn k5_while_processes_differ_in_the_number_the_largest_counts() -> TestResult {
    let servers = Servers::start(3)?;
    let (few, many) = (on_all(&servers, far), on_all(&servers, far));
    let mut held = Vec::new();
    for (locks, permits) in [(&few, 2), (&few, 2), (&many, 4), (&many, 4)] {
        let (permit, _) = take(locks, permits);
        wait_until_everywhere(&servers, &permit);
        held.push(permit);
    }
    assert_held(&few.semaphore(NAME, 2).try_acquire().unwrap_err());
    assert_held(&many.semaphore(NAME, 4).try_acquire().unwrap_err());

    // Lowered: those that are in stay, and nobody else comes to their slots.
    let low = held.iter().position(|it| it.slot() < 2).unwrap();
    drop(held.swap_remove(low));
    eventually("one is given back", || {
        servers.iter().all(|it| taken(it).len() == 3)
    });
    let (permit, _) = take(&few, 2);
    assert!(permit.slot() < 2);
    Ok(())
}

#[test]
fn k1_a_permit_that_is_lost_costs_no_other() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(secs(20)));
    let (first, second) = (
        locks.semaphore(NAME, 2).acquire()?,
        locks.semaphore(NAME, 2).acquire()?,
    );
    wait_until_everywhere(&servers, &second);
    let slot = slot_key(second.slot());
    // A renewal between the two deletions sets the first key again.
    eventually("it is lost", || {
        servers.iter().take(2).for_each(|it| del(it, &slot));
        second.extend(secs(20)).is_err()
    });
    assert_eq!(
        (reason(second.check()), first.check()),
        (Err(LostReason::Gone), Ok(()))
    );
    Ok(())
}

#[test]
fn invalid_numbers_of_permits_are_errors_before_any_command() -> TestResult {
    let (_servers, locks) = start_on_all(1, far);
    let before = locks.stats().commands;
    for permits in [0, 257, usize::MAX] {
        let err = locks.semaphore(NAME, permits).acquire().unwrap_err();
        assert_eq!(err, AcquireError::BadPermits { permits, max: 256 });
    }
    let reserved = locks.semaphore("quorlock:x", 1).acquire().unwrap_err();
    assert_eq!(reserved, AcquireError::NameReserved);
    assert_eq!(locks.stats().commands, before);

    let held: Vec<_> = (0..256)
        .map(|_| locks.semaphore(NAME, 256).try_acquire())
        .collect::<Result<_, _>>()?;
    assert_eq!(slots_of(&held), (0..256).collect());
    assert_held(&locks.semaphore(NAME, 256).try_acquire().unwrap_err());
    Ok(())
}

#[test]
fn k7_a_slot_with_a_foreign_key_is_left_alone_and_another_one_granted() -> TestResult {
    let (servers, locks) = start_on_all(1, far);
    servers[0].command(&["HSET", &slot_key(0), "f", "v"])?;
    for _ in 0..5 {
        let (permit, rounds) = take(&locks, 2);
        assert_eq!((permit.slot(), rounds), (1, 1));
    }
    Ok(())
}

#[test]
fn a_closure_gets_its_permit_as_a_guard_and_releases_it() -> TestResult {
    let (servers, locks) = start_on_all(1, far);
    let slots = locks.semaphore(NAME, 1).with(|permit| {
        let guard: &quorlock::LockGuard = permit;
        assert!(guard.is_valid());
        (permit.slot(), taken(&servers[0]))
    })?;
    assert_eq!(slots, (0, [0].into()));
    nothing_waits(&servers);
    Ok(())
}

/// The only two permits.
fn hold_both(servers: &Servers, holder: &LockManager) -> [Permit; 2] {
    let held = [(); 2].map(|()| holder.semaphore(NAME, 2).acquire().unwrap());
    held.iter()
        .for_each(|it| wait_until_everywhere(servers, it));
    held
}

/// A call of each manager that waits for a permit, one behind the other.
fn line_up(
    servers: &Servers,
    managers: &[LockManager],
) -> Vec<JoinHandle<Result<Permit, AcquireError>>> {
    let mut waiting = Vec::new();
    for locks in managers {
        waiting.push(wait_for(locks.semaphore(NAME, 2)));
        wait_until_listed(servers, waiting.len());
    }
    waiting
}

#[test]
fn k6_two_permits_released_at_once_reach_the_first_two_calls() -> TestResult {
    let (servers, [holder, waiters @ ..]) = with_managers::<4>(far);
    let held = hold_both(&servers, &holder);
    let mut waiting = line_up(&servers, &waiters);

    // Nothing but notices can give them one.
    drop(held);

    let last = waiting.pop().unwrap();
    let first: Vec<_> = waiting.into_iter().map(|it| join(it).unwrap()).collect();
    assert!(!last.is_finished(), "the last is served last");
    wait_until_listed(&servers, 1);
    drop(first);
    join(last)?.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn free_slots_beyond_one_per_earlier_call_go_to_the_caller() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    // One that began before all others, and one that will begin after them. They poll, and do not come.
    let owners = ["0123456789abcdef", "0123456789abcdee"].map(|it| it.repeat(2));
    let [early, later] = owners.each_ref().map(|it| member(&it[..16], "w", it));
    let line_up = || {
        for server in &servers {
            let in_an_hour = in_an_hour().to_string();
            let command = ["ZADD", &list(), "1.5", &early, &in_an_hour, &later];
            server.command(&command).unwrap();
            set_px(server, &mark(), "", 600_000);
        }
    };
    let is_handed_over = |server: &Server| {
        (0..2).any(|slot| server.get(slot_key(slot)).as_deref() == Some(owners[0].as_bytes()))
    };

    line_up();
    let (permit, rounds) = take(&locks, 2);
    assert_eq!(rounds, 1);
    wait_until_everywhere(&servers, &permit);
    // With one slot left it goes to the early one, for a second each time.
    let other = slot_key(1 - permit.slot());
    servers.wait_until_free(&other)?;
    line_up();
    assert!(locks.semaphore(NAME, 2).try_acquire().is_err());
    let is_done = |it: &Server| is_handed_over(it) || !it.exists(list());
    eventually("all have handed it over", || servers.iter().all(is_done));

    servers.wait_until_free(&other)?;
    for server in &servers {
        let left = members_in(server, &list());
        assert_eq!(left, [later.as_str()], "the later one waits on");
    }
    drop(locks.semaphore(NAME, 2).try_acquire()?);
    Ok(())
}

/// RACE: T1, a call, asks and wins a slot that the servers have handed over to it; T2, its connections, bring the messages about that
/// after the answers.
#[test]
fn k6_a_late_hand_over_message_releases_no_held_permit() -> TestResult {
    let (servers, [holder, waiter]) = with_managers(far);
    let [held, other] = hold_both(&servers, &holder);
    let waiting = wait_for(waiter.semaphore(NAME, 2));
    wait_until_listed(&servers, 1);
    let client = client_of(&members_in(&servers[0], &list())[0]);
    drop(held);
    let permit = join(waiting)?;
    wait_until_everywhere(&servers, &permit);

    let key = slot_key(permit.slot());
    let before = waiter.stats().notices;
    for server in &servers {
        let value = server.get(&key).ok_or("no permit")?;
        let message = hand_over_message(&member(&client, "w", str::from_utf8(&value)?), &key);
        server.command(&["PUBLISH", &channel(&client), &message])?;
    }
    eventually("it has read that", || before + 3 <= waiter.stats().notices);

    // What it would have given back has come to the servers before the second.
    for _ in 0..2 {
        permit.check()?;
    }
    for server in &servers {
        assert!(server.exists(&key));
    }
    permit.release()?;
    drop(other);
    nothing_waits(&servers);
    Ok(())
}
