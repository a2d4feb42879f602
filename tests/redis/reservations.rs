//! What nodes store about a client that waits, after each thing that can happen to it.

use std::time::{Instant, SystemTime};

use devnodes::{PATIENCE, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeReport};
use quorlock::{AcquireError, Builder, CancelHandle};

use crate::contenders::{Contender, Manner};
use crate::lists::*;
use crate::support::*;

/// A reservation lasts a second.
const RESERVED_AT_LEAST: std::time::Duration = ms(900);

/// Options under which nothing but a notice, or the end of the keys in its way, gives a waiting call the lock.
fn keen(servers: &Servers) -> Builder {
    far(servers).retry_delay(ms(1), secs(60))
}

/// Reserves the lock for `client` for so many milliseconds.
fn reserve_for(servers: &Servers, client: &str, left: u128, key_left: u64) {
    let until = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() + left;
    servers.iter().for_each(|it| {
        set_px(
            it,
            &reservation(NAME),
            &format!("{until} {client}"),
            key_left,
        )
    });
}

#[test]
fn who_gets_the_lock_unannounced_is_on_no_list_while_it_holds_it() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
    servers.iter().for_each(|it| set(it, NAME, "foreign"));
    let waiter = wait_in_thread(locks.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);
    let to = channel(&waiters_of(&servers[0], NAME)[0]);

    // No node has notified it, so none has removed it from its list.
    servers.iter().for_each(|it| del(it, NAME));
    for server in &servers {
        server.command(&["PUBLISH", &to, NAME])?;
    }

    let guard = join(waiter)?;
    eventually("it is on no list, and the lock is not reserved", || {
        servers.holders(NAME) == 3
            && servers
                .iter()
                .all(|it| !it.exists(list(NAME)) && !it.exists(reservation(NAME)))
    });
    guard.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_waiter_asks_again_when_the_keys_that_it_was_told_of_can_have_expired() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, keen);
    servers
        .iter()
        .for_each(|it| set_px(it, NAME, "foreign", 1_500));

    // The longest pause is longer than a test's patience.
    let guard = join(wait_in_thread(locks.mutex(NAME)))?;

    guard.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_waiter_asks_again_when_the_reservation_that_it_was_told_of_is_over() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, keen));
    let held = hold(&first, &servers, NAME);
    let mut head = Contender::first_in_line(&servers, Manner::FAR);

    // The lock is reserved for it, and it is stopped. Nothing announces the end of the reservation.
    head.stop();
    held.release()?;
    servers.wait_until_free(NAME)?;

    drop(join(wait_in_thread(second.mutex(NAME)))?);
    head.resume();
    head.hear_held();
    head.release();
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_reservation_that_ends_too_late_to_be_true_counts_for_nothing() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);

    // Written by a clock that has been set back since.
    reserve_for(&servers, "0123456789abcdef", 3_600_000, 600_000);

    drop(locks.mutex(NAME).try_lock()?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn the_turn_is_kept_for_as_long_as_the_list_whoever_waits_besides() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, patient, brief) = (
        on_all(&servers, far),
        on_all(&servers, far),
        on_all(&servers, near),
    );
    let held = hold(&first, &servers, NAME);
    let waiter = wait_in_thread(patient.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);

    // Its entry may be forgotten after seconds, the other one's after minutes.
    let cancel = CancelHandle::new();
    let cancelled = wait_in_thread(brief.mutex(NAME).cancelled_by(&cancel));
    wait_until_listed(&servers, NAME, 2);
    cancel.cancel();
    assert!(join(cancelled).is_err());
    wait_until_listed(&servers, NAME, 1);

    for server in &servers {
        for key in [list(NAME), reservation(NAME)] {
            assert!(
                100_000 < server.pttl(&key),
                "{key} ends in {} ms",
                server.pttl(&key)
            );
        }
    }
    drop(held);
    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn the_reservation_of_another_is_kept_for_as_long_as_the_list() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);

    // Reserved for a client that entered for a short time only.
    reserve_for(&servers, "0123456789abcdef", 900, 3_000);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);

    for server in &servers {
        assert!(
            100_000 < server.pttl(reservation(NAME)),
            "it ends in {} ms",
            server.pttl(reservation(NAME))
        );
    }
    let members = waiters_of(&servers[0], NAME);
    eventually("that reservation is over", || {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let until = |says: Vec<u8>| {
            String::from_utf8(says)
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .parse::<u128>()
                .unwrap()
        };
        servers.iter().all(|it| {
            it.get(reservation(NAME))
                .is_some_and(|says| until(says) < now)
        })
    });
    assert!(servers.iter().all(|it| waiters_of(it, NAME) == members));
    drop(held);
    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_call_that_leaves_takes_no_reservation_along() -> TestResult {
    for _ in 0..10 {
        let servers = Servers::start(3)?;
        let [first, second, third] = [(); 3].map(|()| on_all(&servers, far));
        let held = hold(&first, &servers, NAME);
        let mut head = Contender::first_in_line(&servers, Manner::FAR);
        let cancel = CancelHandle::new();
        let leaver = wait_in_thread(second.mutex(NAME).cancelled_by(&cancel));
        wait_until_listed(&servers, NAME, 2);
        let last = wait_in_thread(third.mutex(NAME));
        wait_until_listed(&servers, NAME, 3);

        // The lock is free, and the head has been told, while another one leaves.
        head.stop();
        let began = Instant::now();
        held.release()?;
        servers.wait_until_free(NAME)?;
        cancel.cancel();
        assert!(matches!(join(leaver), Err(AcquireError::Cancelled { .. })));
        eventually("it is off the lists", || {
            servers.iter().all(|it| waiters_of(it, NAME).len() <= 1)
        });
        if RESERVED_AT_LEAST <= began.elapsed() {
            // The reservation may have been over.
            third.shutdown();
            let _ = join(last);
            continue;
        }

        assert!(
            servers.iter().all(|it| waiters_of(it, NAME).len() == 1),
            "the one behind the head was told"
        );
        head.resume();
        let earlier = head.hear_held();
        assert!(!last.is_finished());
        head.release();
        let guard = join(last)?;
        assert!(earlier < guard.fencing_token().get());
        drop(guard);
        nothing_waits(&servers);
        return Ok(());
    }
    panic!("the machine is too slow to leave a list within a second");
}

#[test]
fn the_last_of_a_list_leaves_nothing_if_it_is_dead() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
    let held = hold(&locks, &servers, NAME);
    let mut head = Contender::first_in_line(&servers, Manner::FAR);
    let members = waiters_of(&servers[0], NAME);
    head.kill();
    wait_until_deaf(&servers, &members);

    drop(held);

    // List and reservation would expire after more than `PATIENCE`.
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_release_that_finds_no_key_tells_the_head_all_the_same() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);

    servers.iter().for_each(|it| del(it, NAME));
    drop(held);

    drop(join(waiter)?);
    assert!(1 <= second.stats().notices);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_holder_who_may_not_publish_strikes_nobody_from_the_lists() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(3)?;
    for server in &servers {
        server.command(&[
            "ACL", "SETUSER", "ann", "reset", "on", ">pw", "~*", "&*", "+@all", "-publish",
        ])?;
    }
    let mute = builder(
        servers
            .iter()
            .map(|it| format!("redis://ann:pw@{}", it.addr())),
    )
    .ttl(LONG);
    let (first, second) = (connected(mute, 3), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    let cancel = CancelHandle::new();
    let waiter = wait_in_thread(second.mutex(NAME).cancelled_by(&cancel));
    wait_until_listed(&servers, NAME, 1);

    held.release()?;
    servers.wait_until_free(NAME)?;

    wait_until_listed(&servers, NAME, 1);
    assert!(!waiter.is_finished());
    cancel.cancel();
    assert!(join(waiter).is_err());
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_waiter_whose_connections_were_cut_is_told_over_the_next_ones() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);
    let members = waiters_of(&servers[0], NAME);

    for server in &servers {
        let cut = server.command(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"])?;
        assert!(Some(1) <= cut.as_int());
    }
    // By itself: the next time that it asks is after the end of the test.
    eventually("it listens again", || {
        6 <= second.stats().connections && servers.iter().all(|it| listeners_of(it) == members)
    });
    drop(held);

    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_hand_over_to_a_call_that_reads_for_all_is_read_while_it_waits_for_it() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).ttl(LONG).retry_delay(secs(60), secs(60)), 3);
    servers.iter().for_each(|it| set(it, NAME, "foreign"));
    // It has asked, and waits for notices.
    let waiter = queue(&locks);
    wait_until_listed(&servers, NAME, 1);
    // The lock is free without a notice, and the servers have lost the list. So another call of the manager takes it first:
    // one that tries once waits in no queue.
    for server in &servers {
        server.command(&["DEL", NAME, &list(NAME), &reservation(NAME)])?;
    }
    let held = locks.mutex(NAME).try_lock()?;
    // A connection that ended in the round leaves it to an extension.
    eventually("the lock is on all servers", || {
        servers.holders(NAME) == 3 || held.extend(LONG).is_err()
    });
    assert_eq!(servers.holders(NAME), 3);
    assert!(!waiter.is_finished());
    let before = locks.stats();

    // The release is decided at once; the next one's acquisition needs the last node, which takes its time.
    set(&servers[0], NAME, "foreign");
    proxies[2].hold_replies();
    drop(held);
    assert!(!waiter.is_finished());
    proxies[2].release_replies();
    let guard = join(waiter)?;

    let after = locks.stats();
    assert_eq!(after.hand_overs - before.hand_overs, 1);
    assert_eq!(
        (
            after.rounds_won - before.rounds_won,
            after.rounds_without_quorum
        ),
        (1, 0)
    );
    guard.release()?;
    del(&servers[0], NAME);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_hand_over_that_no_majority_answers_ends_as_an_outage() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(impatient(servers.urls()).outage_timeout(ms(500)), 3);
    let held = hold(&locks, &servers, NAME);
    let waiter = queue(&locks);

    servers[1].pause()?;
    servers[2].pause()?;
    drop(held);

    assert_no_quorum(&join(waiter).unwrap_err());
    assert_eq!((locks.stats().hand_overs, locks.stats().waiting), (1, 0));
    for server in &servers.iter().as_slice()[1..] {
        server.resume()?;
    }
    nothing_waits(&servers);
    // For its outage timeout the manager may not know yet that they answer.
    drop(lock_in_the_end(&locks, NAME));
    Ok(())
}

#[test]
fn a_manager_that_is_told_while_none_of_its_calls_waits_passes_it_on() -> TestResult {
    let servers = Servers::start(3)?;
    let [first, second, third] = [(); 3].map(|()| on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    // It has waited once, so it listens; and it was forgotten on the lists.
    let cancel = CancelHandle::new();
    let left = wait_in_thread(second.mutex(NAME).cancelled_by(&cancel));
    wait_until_listed(&servers, NAME, 1);
    let member = waiters_of(&servers[0], NAME).remove(0);
    cancel.cancel();
    assert!(join(left).is_err());
    wait_until_listed(&servers, NAME, 0);
    let waiter = wait_in_thread(third.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);
    for server in &servers {
        server.command(&["ZADD", &list(NAME), "1", &member])?;
    }

    drop(held);

    drop(join(waiter)?);
    eventually("it was told by all", || 3 <= second.stats().notices);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_waiter_that_may_not_listen_asks_often() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(3)?;
    for server in &servers {
        server.command(&[
            "ACL",
            "SETUSER",
            "ann",
            "reset",
            "on",
            ">pw",
            "~*",
            "&*",
            "+@all",
            "-subscribe",
        ])?;
        set(server, NAME, "foreign");
    }
    let urls = servers
        .iter()
        .map(|it| format!("redis://ann:pw@{}", it.addr()));
    // A call that is notified asks again after a minute, and one that is not after a millisecond at first.
    let locks = connected(builder(urls).ttl(LONG).retry_delay(ms(1), secs(60)), 3);

    let waiter = wait_in_thread(locks.mutex(NAME));

    eventually("it has asked several times", || {
        5 <= locks.stats().rounds_held
    });
    servers.iter().for_each(|it| del(it, NAME));
    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_waiter_listens_before_it_is_on_a_list() -> TestResult {
    needs!(CommandMonitor);
    let servers = Servers::start(1)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    let mut monitor = servers[0].client()?;
    monitor.command(&["MONITOR"])?;

    let waiter = wait_in_thread(second.mutex(NAME));

    // What was released in between would be announced to nobody.
    let mut heard = Vec::new();
    while !heard.iter().any(|it: &String| it.contains("EVALSHA")) {
        heard.push(monitor.receive()?.as_str().unwrap().to_owned());
    }
    assert!(heard.iter().any(|it| it.contains("SUBSCRIBE")), "{heard:?}");
    wait_until_listed(&servers, NAME, 1);
    drop(held);
    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_waiter_that_gives_back_what_it_was_granted_is_on_the_list_there_too() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
    // One node grants it the lock, which is no majority.
    servers
        .iter()
        .take(2)
        .for_each(|it| set(it, NAME, "foreign"));

    let cancel = CancelHandle::new();
    let waiter = wait_in_thread(locks.mutex(NAME).cancelled_by(&cancel));

    wait_until_listed(&servers, NAME, 1);
    let member = waiters_of(&servers[0], NAME).remove(0);
    assert!(
        servers
            .iter()
            .all(|it| since(it, NAME, &member) == since(&servers[0], NAME, &member))
    );
    assert!(!servers[2].exists(NAME));
    cancel.cancel();
    assert!(join(waiter).is_err());
    servers.iter().take(2).for_each(|it| del(it, NAME));
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn nobody_is_told_anything_while_the_lock_is_held() -> TestResult {
    let servers = Servers::start(3)?;
    let [first, second, third, fourth] = [(); 4].map(|()| on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    let head = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);
    let members = waiters_of(&servers[0], NAME);

    // One is refused, one comes and leaves again.
    let err = fourth.mutex(NAME).try_lock().unwrap_err();
    let not_held =
        |it: &&NodeReport| !matches!(it.answer, NodeAnswer::Held { .. } | NodeAnswer::Pending);
    assert_eq!(err.nodes().iter().find(not_held), None);
    let cancel = CancelHandle::new();
    let leaver = wait_in_thread(third.mutex(NAME).cancelled_by(&cancel));
    wait_until_listed(&servers, NAME, 2);
    cancel.cancel();
    assert!(join(leaver).is_err());

    eventually("the head is where it was", || {
        servers.iter().all(|it| waiters_of(it, NAME) == members)
    });
    // Its answers come behind all notices.
    drop(second.mutex("other").try_lock_for(PATIENCE)?);
    assert_eq!(second.stats().notices, 0);
    drop(held);
    drop(join(head)?);
    nothing_waits(&servers);
    Ok(())
}
