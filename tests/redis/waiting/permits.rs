//! Permits that are waited for: who is told of one, and in which order.

use devnodes::{Server, Servers, eventually};

use crate::kinds::semaphore::*;
use crate::support::*;
use crate::waiting::lists::{
    channel, client_of, far, hand_over_message, member, members_in, nothing_waits, on_all,
};

#[test]
fn k6_every_waiting_call_is_told_when_it_is_its_turn_also_where_two_permits_come_back_at_once()
-> TestResult {
    let servers = Servers::start(3)?;
    let holder = on_all(&servers, far);
    let waiters = repeat(3, || on_all(&servers, far));
    let held: Vec<_> = (0..2)
        .map(|_| {
            let permit = holder.semaphore(NAME, 2).acquire().unwrap();
            wait_until_everywhere(&servers, &permit);
            permit
        })
        .collect();
    let mut waiting = Vec::new();
    for (i, locks) in waiters.iter().enumerate() {
        waiting.push(wait_for(locks.semaphore(NAME, 2)));
        wait_until_listed(&servers, i + 1);
    }

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
fn who_finds_free_slots_hands_them_to_the_calls_that_began_earlier() -> TestResult {
    let servers = Servers::start(3)?;
    let waiters = repeat(2, || on_all(&servers, far));
    servers
        .iter()
        .for_each(|it| (0..2).for_each(|slot| set(it, &slot_key(slot), "foreign")));
    let mut waiting = Vec::new();
    for (i, locks) in waiters.iter().enumerate() {
        waiting.push(wait_for(locks.semaphore(NAME, 2)));
        wait_until_listed(&servers, i + 1);
    }
    servers.iter().for_each(|it| {
        it.command(&["DEL", &slot_key(0), &slot_key(1)]).unwrap();
    });

    // A third call asks. Nothing but what it hands over can give the others a slot.
    let third = on_all(&servers, far);
    let third = wait_for(third.semaphore(NAME, 2));
    let permits: Vec<_> = waiting.into_iter().map(|it| join(it).unwrap()).collect();
    assert_ne!(permits[0].slot(), permits[1].slot());
    drop(permits);
    drop(join(third)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn one_free_slot_goes_to_each_call_that_came_first_and_the_others_are_for_whoever_asks()
-> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
    // One that began before all others, and one that will begin after them. They poll, and do not come.
    let owners = ["0123456789abcdef", "0123456789abcdee"].map(|it| it.repeat(2));
    let [early, later] = owners.each_ref().map(|it| member(&it[..16], "w", it));
    let line_up = || {
        for server in &servers {
            let scores = ["1.5".to_owned(), in_an_hour().to_string()];
            server
                .command(&["ZADD", &list(), &scores[0], &early, &scores[1], &later])
                .unwrap();
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
    eventually("all have handed it over", || {
        servers
            .iter()
            .all(|it| is_handed_over(it) || !it.exists(list()))
    });

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
fn k6_a_permit_stays_when_its_call_reads_late_that_the_slot_was_handed_over_to_it() -> TestResult {
    let servers = Servers::start(3)?;
    let (holder, waiter) = (on_all(&servers, far), on_all(&servers, far));
    let held = holder.semaphore(NAME, 2).acquire()?;
    let other = holder.semaphore(NAME, 2).acquire()?;
    for it in [&held, &other] {
        wait_until_everywhere(&servers, it);
    }
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
