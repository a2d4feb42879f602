//! Waiting for a lock that another manager holds: the lists on the nodes, and the notices to the head of them.

use devnodes::{Reply, Server, Servers, eventually};
use quorlock::CancelHandle;

use crate::support::*;
use crate::waiting::lists::*;

#[test]
fn messages_arrive_despite_two_failed_nodes_of_five() -> TestResult {
    type Fault = fn(&Server) -> Result<(), devnodes::Error>;
    // Before the lock is taken, or while the call waits.
    let faults: [(&str, bool, Fault); 5] = [
        ("kill", true, Server::kill),
        ("pause", true, Server::pause),
        ("kill", false, Server::kill),
        ("pause", false, Server::pause),
        ("restart", false, Server::restart),
    ];
    for (what, is_first, inject) in faults {
        eprintln!("{what}, {is_first}");
        let servers = Servers::start(5)?;
        let (first, second) = (on_all(&servers, far), on_all(&servers, far));
        let fail = || servers.iter().skip(3).try_for_each(inject);
        if is_first {
            fail()?;
        }
        let held = hold(&first, &servers, NAME);
        let waiter = listed(&servers, 1, second.mutex(NAME));

        if !is_first {
            fail()?;
        }
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
