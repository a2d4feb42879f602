//! Waiting for a lock that another manager holds: the lists on the nodes, and the notices to the head of them.

use std::thread;
use std::time::SystemTime;

use devnodes::{Reply, Server, Servers, eventually};
use quorlock::{AcquireError, CancelHandle, LockManager};

use crate::support::*;
use crate::waiting::contenders::{Contender, Manner};
use crate::waiting::lists::*;

#[test]
fn a_waiter_in_another_manager_is_let_in_by_a_notice() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);

    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);
    assert_eq!(second.stats().waiting, 1);
    assert_eq!(second.stats().notices, 0);
    let earlier = held.fencing_token();
    drop(held);

    let guard = join(waiter)?;
    assert!(earlier < guard.fencing_token());
    assert!(1 <= second.stats().notices);
    assert_eq!((first.stats().notices, second.stats().waiting), (0, 0));
    // The notices came over the connections that were there.
    assert_eq!(second.stats().connections, 3);
    drop(guard);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_confirmed_release_sends_notices_as_well() -> TestResult {
    let servers = Servers::start(1)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    for _ in 0..20 {
        let held = hold(&first, &servers, NAME);
        let waiter = wait_in_thread(second.mutex(NAME));
        wait_until_listed(&servers, NAME, 1);

        assert_eq!(held.release()?.confirmed, 1);

        drop(join(waiter)?);
    }
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn what_the_nodes_keep_about_those_who_wait_has_a_form_and_an_end() -> TestResult {
    let micros = || i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let servers = Servers::start(3)?;
    let managers = repeat(3, || on_all(&servers, far));
    let mut held = hold(&managers[0], &servers, NAME);
    let before = micros();
    let mut waiters = Vec::new();
    for (i, locks) in managers[1..].iter().enumerate() {
        waiters.push(wait_in_thread(locks.mutex(NAME)));
        wait_until_listed(&servers, NAME, i + 1);
    }
    let after = micros();

    let members = members_of(&servers[0], NAME);
    for member in &members {
        let is_hex = |it: &str| it.bytes().all(|it| it.is_ascii_hexdigit());
        let (client, value) = member.split_at(16);
        let value = value.strip_prefix('w').unwrap();
        assert!(is_hex(client) && is_hex(&value[..32]), "{member}");
        assert!(
            value[32..].is_empty() || value[32..].starts_with(' '),
            "{member}"
        );
    }
    for server in &servers {
        assert_eq!(
            members_of(server, NAME),
            members,
            "all nodes agree on the order"
        );
        let began: Vec<_> = members
            .iter()
            .map(|it| since(server, NAME, it).unwrap())
            .collect();
        assert!(
            before <= began[0] && began[0] < began[1] && began[1] <= after,
            "{began:?}"
        );
        assert_eq!(
            server.command(&["TYPE", &list(NAME)])?.as_str(),
            Some("zset")
        );
        assert!(0 < server.pttl(list(NAME)));
    }
    for waiter in waiters {
        drop(held);
        held = join(waiter)?;
        for server in &servers {
            // -2: there is none.
            for key in [list(NAME), mark(NAME)] {
                assert_ne!(server.pttl(&key), -1, "{key} without an end");
            }
            assert_eq!(server.get(mark(NAME)).unwrap_or_default(), b"");
        }
    }
    drop(held);
    nothing_waits(&servers);
    assert!(servers.iter().all(|it| it.exists(fence(NAME))));
    Ok(())
}

#[test]
fn only_the_head_of_the_list_is_told() -> TestResult {
    // With one node no call is granted a minority of votes, and no notice comes when it is given back.
    let servers = Servers::start(1)?;
    let managers = repeat(4, || on_all(&servers, far));
    let mut held = hold(&managers[0], &servers, NAME);
    let waiting = &managers[1..];
    let mut waiters = Vec::new();
    for (i, locks) in waiting.iter().enumerate() {
        waiters.push(wait_in_thread(locks.mutex(NAME)));
        wait_until_listed(&servers, NAME, i + 1);
    }
    let commands: Vec<_> = waiting.iter().map(|it| it.stats().commands).collect();

    for (i, waiter) in waiters.into_iter().enumerate() {
        drop(held);
        held = join(waiter)?;
        for (later, before) in waiting.iter().zip(&commands).skip(i + 1) {
            assert_eq!(
                (later.stats().notices, later.stats().commands),
                (0, *before)
            );
        }
    }
    drop(held);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_notice_comes_also_when_two_of_five_nodes_were_killed_paused_or_restarted_meanwhile()
-> TestResult {
    type Fault = fn(&Server) -> Result<(), devnodes::Error>;
    let faults: [(&str, Fault); 3] = [
        ("kill", Server::kill),
        ("pause", Server::pause),
        ("restart", Server::restart),
    ];
    for (what, inject) in faults {
        eprintln!("{what}");
        let servers = Servers::start(5)?;
        let (first, second) = (on_all(&servers, far), on_all(&servers, far));
        let held = hold(&first, &servers, NAME);
        let waiter = wait_in_thread(second.mutex(NAME));
        wait_until_listed(&servers, NAME, 1);

        inject(&servers[3])?;
        inject(&servers[4])?;
        drop(held);

        let guard = join(waiter)?;
        assert!(3 <= servers.holders(NAME));
        assert!(1 <= second.stats().notices);
        drop(guard);
        // What those remember that could not be asked is left to expire.
        nothing_waits(&servers);
        servers
            .iter()
            .filter(|it| it.is_paused())
            .for_each(|it| it.resume().unwrap());
    }
    Ok(())
}

#[test]
fn a_waiter_that_came_when_two_of_five_nodes_were_down_is_told_by_the_others() -> TestResult {
    let servers = Servers::start(5)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    servers[0].kill()?;
    servers[1].pause()?;
    let held = hold(&first, &servers, NAME);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);

    drop(held);

    drop(join(waiter)?);
    nothing_waits(&servers);
    servers[1].resume()?;
    Ok(())
}

#[test]
fn a_waiter_whose_connections_are_cut_still_gets_the_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, near), on_all(&servers, near));
    let held = hold(&first, &servers, NAME);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);

    for server in &servers {
        // Those that listen, and they are the connections that the commands go over.
        let cut = server.command(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"])?;
        assert!(Some(1) <= cut.as_int());
    }
    eventually("it is connected again", || 6 <= second.stats().connections);
    drop(held);

    drop(join(waiter)?);
    nothing_waits(&servers);
    // It listens again: the next one gets in by a notice.
    let held = hold(&first, &servers, NAME);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);
    drop(held);
    drop(join(waiter)?);
    Ok(())
}

#[test]
fn a_waiter_gets_in_when_the_keys_of_a_killed_holder_expire() -> TestResult {
    let servers = Servers::start(3)?;
    let mut holder = Contender::start(
        &servers,
        Manner {
            ttl_ms: 2_000,
            ..Manner::USUAL
        },
    );
    holder.lock();
    let earlier = holder.hear_held();
    let locks = on_all(&servers, near);
    let waiters = repeat(2, || wait_in_thread(locks.mutex(NAME)));
    wait_until_listed(&servers, NAME, 1);

    holder.kill();

    everybody_gets_in(waiters)?;
    let guard = hold(&locks, &servers, NAME);
    assert!(earlier < guard.fencing_token().get());
    drop(guard);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_head_that_was_killed_is_passed_over_and_the_next_one_is_told() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    let mut heads = repeat(2, || Contender::start(&servers, Manner::FAR));
    for (i, head) in heads.iter_mut().enumerate() {
        head.lock();
        wait_until_listed(&servers, NAME, i + 1);
    }
    let members = waiters_of(&servers[0], NAME);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 3);

    heads.iter_mut().for_each(Contender::kill);
    wait_until_deaf(&servers, &members);
    drop(held);

    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_head_that_is_stopped_keeps_nobody_out_for_ever_and_gets_the_lock_when_it_runs_again()
-> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, near), on_all(&servers, near));
    let held = hold(&first, &servers, NAME);
    let mut head = Contender::first_in_line(&servers, Manner::USUAL);
    let waiters = repeat(2, || wait_in_thread(second.mutex(NAME)));
    wait_until_listed(&servers, NAME, 2);

    head.stop();
    drop(held);

    everybody_gets_in(waiters)?;
    head.resume();
    head.hear_held();
    head.release();
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_head_that_is_killed_after_it_was_told_keeps_nobody_out_for_ever() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, near), on_all(&servers, near));
    let held = hold(&first, &servers, NAME);
    let mut head = Contender::first_in_line(&servers, Manner::FAR);
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 2);

    // Stopped, so that it is notified and does not ask.
    head.stop();
    held.release()?;
    head.kill();

    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn foreign_keys_that_are_deleted_by_hand_let_everybody_in_without_a_notice() -> TestResult {
    let servers = Servers::start(3)?;
    let managers = repeat(2, || on_all(&servers, near));
    servers.iter().for_each(|it| set(it, NAME, "foreign"));
    let mut waiters = Vec::new();
    for locks in &managers {
        waiters.extend(repeat(2, || wait_in_thread(locks.mutex(NAME))));
    }
    wait_until_listed(&servers, NAME, 2);

    servers.iter().for_each(|it| del(it, NAME));

    everybody_gets_in(waiters)?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn foreign_keys_that_expire_let_everybody_in_without_a_notice() -> TestResult {
    let servers = Servers::start(3)?;
    let managers = repeat(2, || on_all(&servers, near));
    servers
        .iter()
        .for_each(|it| set_px(it, NAME, "foreign", 3_000));
    let mut waiters = Vec::new();
    for locks in &managers {
        waiters.extend(repeat(2, || wait_in_thread(locks.mutex(NAME))));
    }

    everybody_gets_in(waiters)?;
    nothing_waits(&servers);
    Ok(())
}

/// Lets all waiting contenders have the lock, in whatever order.
#[track_caller]
fn everybody_gets_in(mut waiters: Vec<Waiter>) -> TestResult {
    while !waiters.is_empty() {
        let mut next = None;
        eventually("somebody gets in", || {
            next = waiters.iter().position(|it| it.is_finished());
            next.is_some()
        });
        drop(join(waiters.remove(next.unwrap()))?);
    }
    Ok(())
}

/// A manager that waits for the lock of another one, ends waiting, and is on no list any more.
fn is_off_the_lists(
    end: impl FnOnce(&LockManager, &CancelHandle),
    is_right: fn(&AcquireError) -> bool,
) -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second, third) = (
        on_all(&servers, far),
        on_all(&servers, far),
        on_all(&servers, far),
    );
    let held = hold(&first, &servers, NAME);
    let cancel = CancelHandle::new();
    let lock = second.mutex(NAME).cancelled_by(&cancel);
    // So long that a busy machine gets round to all the rest before.
    let waiter = thread::spawn(move || lock.try_lock_for(secs(6)));
    wait_until_listed(&servers, NAME, 1);
    let leaver = waiters_of(&servers[0], NAME).remove(0);
    let other = wait_in_thread(third.mutex(NAME));
    wait_until_listed(&servers, NAME, 2);

    end(&second, &cancel);

    let err = join(waiter).unwrap_err();
    assert!(is_right(&err), "{err:?}");
    eventually("it is on no list", || {
        servers.iter().all(|it| since(it, NAME, &leaver).is_none())
    });
    wait_until_listed(&servers, NAME, 1);
    assert_eq!(second.stats().waiting, 0);
    held.check()?;
    drop(held);
    // The next one is the head now.
    drop(join(other)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_wait_that_is_cancelled_ends_on_all_lists() -> TestResult {
    is_off_the_lists(
        |_, cancel| cancel.cancel(),
        |err| matches!(err, AcquireError::Cancelled),
    )
}

#[test]
fn a_wait_whose_time_is_over_ends_on_all_lists() -> TestResult {
    is_off_the_lists(|_, _| {}, AcquireError::is_held)
}

#[test]
fn a_wait_that_a_shutdown_ends_ends_on_all_lists() -> TestResult {
    is_off_the_lists(
        |locks, _| locks.shutdown(),
        |err| *err == AcquireError::ShutDown,
    )
}

#[test]
fn a_manager_that_stops_waiting_for_one_lock_goes_on_waiting_for_another() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let (held, other) = (
        hold(&first, &servers, NAME),
        hold(&first, &servers, "other"),
    );
    let cancel = CancelHandle::new();
    let cancelled = wait_in_thread(second.mutex("other").cancelled_by(&cancel));
    let waiter = wait_in_thread(second.mutex(NAME));
    wait_until_listed(&servers, NAME, 1);
    wait_until_listed(&servers, "other", 1);

    cancel.cancel();
    assert!(join(cancelled).is_err());
    eventually("one list is gone", || {
        servers.iter().all(|it| !it.exists(list("other")))
    });
    assert!(servers.iter().all(|it| waiters_of(it, NAME).len() == 1));
    drop(other);
    drop(held);

    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

/// The managers on all lists, also on those whose key does not show the name, if all of them listen.
fn places(server: &Server) -> Option<usize> {
    let lists = server.command(&["KEYS", "quorlock:waiting*"]).unwrap();
    let members = |it: &Reply| {
        server
            .command(&[b"ZRANGE", it.as_bytes().unwrap(), b"0", b"-1"])
            .unwrap()
    };
    let members: Vec<_> = lists
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|it| strings(&members(it)))
        .collect();
    let listeners = listeners_of(server);
    members
        .iter()
        .all(|it| listeners.contains(&client_of(it)))
        .then_some(members.len())
}

#[test]
fn lock_after_lock_goes_through_many_managers_by_notices_alone() -> TestResult {
    let servers = Servers::start(3)?;
    let managers = repeat(4, || on_all(&servers, far));
    let names = ["report", "", "a}b{c", "\u{fc}n\u{ef}c\u{f6}de \r\n"];
    let mut waiters = Vec::new();
    let held: Vec<_> = names
        .iter()
        .map(|it| hold(&managers[0], &servers, it))
        .collect();
    for (i, locks) in managers[1..].iter().enumerate() {
        for name in names {
            waiters.push(wait_in_thread(locks.mutex(name)));
        }
        let count = names.len() * (i + 1);
        eventually("it waits for all of them", || {
            servers.iter().all(|it| places(it) == Some(count))
        });
    }

    drop(held);
    everybody_gets_in(waiters)?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_first_call_that_waits_without_any_connection_is_told_too() -> TestResult {
    let servers = Servers::start(3)?;
    let first = on_all(&servers, far);
    let held = hold(&first, &servers, NAME);
    // Its subscription goes out with the first thing that it ever says.
    let second = far(&servers).build()?;

    let waiter = wait_in_thread(second.mutex(NAME));
    eventually("a majority has it on its list", || {
        2 <= servers.iter().filter(|it| places(it) == Some(1)).count()
    });
    drop(held);

    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}
