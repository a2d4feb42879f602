//! Permits that are waited for: who is told of one, and in which order.

use std::thread::JoinHandle;

use devnodes::{Server, Servers, eventually};
use quorlock::{AcquireError, LockManager, Permit};

use crate::kinds::semaphore::*;
use crate::support::*;
use crate::waiting::lists::{
    channel, client_of, far, hand_over_message, member, members_in, nothing_waits, with_managers,
};

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
