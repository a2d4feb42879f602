//! Waiting for a lock that another manager holds: the lists on the nodes, and the notices to the head of them.

use std::time::SystemTime;

use devnodes::{Reply, Server, Servers, eventually};
use quorlock::CancelHandle;

use crate::support::*;
use crate::waiting::contenders::{Contender, Manner};
use crate::waiting::lists::*;

#[test]
fn a_waiter_of_another_manager_gets_the_lock_by_a_message() -> TestResult {
    let (servers, [first, second]) = with_managers(far);
    let held = hold(&first, &servers, NAME);

    let waiter = listed(&servers, 1, second.mutex(NAME));
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
fn waiting_list_entries_have_a_fixed_form_and_expire() -> TestResult {
    let micros = || i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let servers = Servers::start(3)?;
    let managers = repeat(3, || on_all(&servers, far));
    let mut held = hold(&managers[0], &servers, NAME);
    let before = micros();
    let waiters = line_up(&servers, &managers[1..]);
    let after = micros();

    let members = members_of(&servers[0], NAME);
    for member in &members {
        let is_hex = |it: &str| it.bytes().all(|it| it.is_ascii_hexdigit());
        let (client, value) = member.split_at(16);
        let (owner, label) = value.strip_prefix('w').unwrap().split_at(32);
        assert!(is_hex(client) && is_hex(owner), "{member}");
        assert!(label.is_empty() || label.starts_with(' '), "{member}");
    }
    for server in &servers {
        let order = members_of(server, NAME);
        assert_eq!(order, members, "all nodes agree on the order");
        let began = members.iter().map(|it| since(server, NAME, it).unwrap());
        let times: Vec<_> = [before].into_iter().chain(began).chain([after]).collect();
        assert!(times.is_sorted() && times[1] < times[2], "{times:?}");
        let kind = server.command(&["TYPE", &list(NAME)])?;
        assert_eq!(kind.as_str(), Some("zset"));
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
fn only_the_head_of_the_list_gets_a_message() -> TestResult {
    // With one node no call is granted a minority of votes, and no notice comes when it is given back.
    let servers = Servers::start(1)?;
    let managers = repeat(4, || on_all(&servers, far));
    let mut held = hold(&managers[0], &servers, NAME);
    let waiting = &managers[1..];
    let waiters = line_up(&servers, waiting);
    let commands: Vec<_> = waiting.iter().map(|it| it.stats().commands).collect();

    for (i, waiter) in waiters.into_iter().enumerate() {
        drop(held);
        held = join(waiter)?;
        for (later, before) in waiting.iter().zip(&commands).skip(i + 1) {
            let stats = later.stats();
            assert_eq!((stats.notices, stats.commands), (0, *before));
        }
    }
    drop(held);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn messages_arrive_despite_two_failed_nodes_of_five() -> TestResult {
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
        let waiter = listed(&servers, 1, second.mutex(NAME));

        inject(&servers[3])?;
        inject(&servers[4])?;
        drop(held);

        let guard = join(waiter)?;
        assert!(3 <= servers.holders(NAME));
        assert!(1 <= second.stats().notices);
        drop(guard);
        // What those remember that could not be asked is left to expire.
        nothing_waits(&servers);
        for server in servers.iter().filter(|it| it.is_paused()) {
            server.resume()?;
        }
    }
    Ok(())
}

#[test]
fn a_waiter_listed_on_three_of_five_nodes_gets_the_lock() -> TestResult {
    let servers = Servers::start(5)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    servers[0].kill()?;
    servers[1].pause()?;
    let held = hold(&first, &servers, NAME);
    let waiter = listed(&servers, 1, second.mutex(NAME));

    drop(held);
    assert_gets_in(waiter, &servers);
    servers[1].resume()?;
    Ok(())
}

#[test]
fn a_waiter_gets_in_when_the_keys_of_a_killed_holder_expire() -> TestResult {
    let servers = Servers::start(3)?;
    let (far, ttl_ms) = (false, 2_000);
    let mut holder = Contender::start(&servers, Manner { far, ttl_ms });
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
fn waiters_get_in_after_foreign_keys_end_without_a_message() -> TestResult {
    let servers = Servers::start(3)?;
    let managers = repeat(2, || on_all(&servers, near));
    for expire in [false, true] {
        set_all(&servers, NAME, "foreign");
        let mut waiters = Vec::new();
        for locks in &managers {
            waiters.extend(repeat(2, || wait_in_thread(locks.mutex(NAME))));
        }
        wait_until_listed(&servers, NAME, 2);

        for server in &servers {
            if expire {
                set_px(server, NAME, "foreign", 3_000);
            } else {
                del(server, NAME);
            }
        }

        everybody_gets_in(waiters)?;
        nothing_waits(&servers);
    }
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

#[test]
fn a_manager_that_stops_waiting_for_one_lock_goes_on_waiting_for_another() -> TestResult {
    let (servers, [first, second]) = with_managers(far);
    let (held, other) = (
        hold(&first, &servers, NAME),
        hold(&first, &servers, "other"),
    );
    let cancel = CancelHandle::new();
    let cancelled = wait_in_thread(second.mutex("other").cancelled_by(&cancel));
    let waiter = listed(&servers, 1, second.mutex(NAME));
    wait_until_listed(&servers, "other", 1);

    cancel.cancel();
    assert!(join(cancelled).is_err());
    eventually("one list is gone", || {
        servers.iter().all(|it| !it.exists(list("other")))
    });
    assert!(servers.iter().all(|it| waiters_of(it, NAME).len() == 1));
    drop(other);
    drop(held);
    assert_gets_in(waiter, &servers);
    Ok(())
}

/// The managers on all lists, also on those whose key does not show the name, if all of them listen.
fn places(server: &Server) -> Option<usize> {
    let lists = server.command(&["KEYS", "quorlock:waiting*"]).unwrap();
    let lists = lists.as_array().unwrap().iter();
    let members = lists.flat_map(|list: &Reply| {
        let range = [b"ZRANGE", list.as_bytes().unwrap(), b"0", b"-1"];
        strings(&server.command(&range).unwrap())
    });
    let clients: Vec<_> = members.map(|it| client_of(&it)).collect();
    let listeners = listeners_of(server);
    let all_listen = clients.iter().all(|it| listeners.contains(it));
    all_listen.then_some(clients.len())
}

#[test]
fn locks_pass_through_many_managers_by_messages_alone() -> TestResult {
    let servers = Servers::start(3)?;
    let managers = repeat(4, || on_all(&servers, far));
    let names = ["report", "", "a}b{c", "\u{fc}n\u{ef}c\u{f6}de \r\n"];
    let mut waiters = Vec::new();
    let held = names.map(|it| hold(&managers[0], &servers, it));
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
fn a_first_call_before_any_connection_gets_messages() -> TestResult {
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
    assert_gets_in(waiter, &servers);
    Ok(())
}
