//! Calls that reach a minority of the nodes: they cannot win, and keep nobody from winning.

use devnodes::{Proxy, Servers, eventually};
use quorlock::LockManager;

use crate::support::*;
use crate::waiting::lists::*;

/// A manager that reaches all servers through proxies of its own, and has an endless patience.
fn behind_proxies(servers: &Servers) -> (Vec<Proxy>, LockManager) {
    let (proxies, urls) = proxies(servers);
    let locks = impatient(urls)
        .outage_timeout(LONG)
        .shutdown_grace(ms(100))
        .build()
        .unwrap();
    connect(&locks, 3);
    (proxies, locks)
}

/// Takes away what is not the server of this index.
fn leave_only(proxies: &[Proxy], index: usize, away: impl Fn(&Proxy)) {
    let (before, after) = (&proxies[..index], &proxies[index + 1..]);
    before.iter().chain(after).for_each(away);
}

fn managers_of(cut_off: &[(Vec<Proxy>, LockManager)]) -> Vec<LockManager> {
    cut_off.iter().map(|(_, locks)| locks.clone()).collect()
}

/// Shuts these managers down, whose calls still wait.
fn shut_down(cut_off: &[(Vec<Proxy>, LockManager)], waiters: Vec<Waiter>) {
    assert!(waiters.iter().all(|it| !it.is_finished()));
    cut_off.iter().for_each(|(_, locks)| locks.shutdown());
    for waiter in waiters {
        assert!(join(waiter).is_err());
    }
}

fn refuse(proxy: &Proxy) {
    proxy.refuse(true);
    proxy.cut();
}

#[test]
fn h4_calls_on_a_minority_keep_no_free_lock_from_others() -> TestResult {
    // Refused at once, or never answered. Free by a release, or without one: then nobody but the two
    // asks, and they hand over what they find free.
    let no_answer = |it: &Proxy| it.black_hole(true);
    for (away, is_released) in [
        (refuse as fn(&Proxy), true),
        (no_answer, true),
        (no_answer, false),
    ] {
        let servers = Servers::start(3)?;
        let (holder, healthy) = (on_all(&servers, far), on_all(&servers, near));
        let cut_off = repeat(2, || behind_proxies(&servers));
        let held = hold(&holder, &servers, NAME);
        let waiters = line_up(&servers, &managers_of(&cut_off));
        let last = listed(&servers, 3, healthy.mutex(NAME));

        // Each keeps one server, and not the same one.
        for (i, (proxies, locks)) in cut_off.iter().enumerate() {
            leave_only(proxies, i, away);
            eventually("it has noticed", || {
                2 <= locks.stats().rounds_without_quorum
            });
        }
        if is_released {
            drop(held);
        } else {
            del_all(&servers, NAME);
        }

        // Again and again: they ask all the time.
        drop(join(last)?);
        for _ in 0..5 {
            drop(healthy.mutex(NAME).lock()?);
        }
        shut_down(&cut_off, waiters);
    }
    Ok(())
}

#[test]
fn h4_a_call_that_reaches_a_minority_is_on_no_list_and_keeps_its_place() -> TestResult {
    // Refused at once, so that nobody waits for the node that is left; or never answered.
    for away in [refuse, |it: &Proxy| it.black_hole(true)] {
        let servers = Servers::start(3)?;
        let (holder, other) = (on_all(&servers, far), on_all(&servers, far));
        let (proxies, locks) = behind_proxies(&servers);
        let held = hold(&holder, &servers, NAME);
        let first = listed(&servers, 1, locks.mutex(NAME));
        let member = waiters_of(&servers[0], NAME).remove(0);
        let began = since(&servers[0], NAME, &member);
        assert!(began.is_some());
        let second = listed(&servers, 2, other.mutex(NAME));

        leave_only(&proxies, 0, away);
        eventually("it is off the list that it reaches", || {
            since(&servers[0], NAME, &member).is_none()
        });
        let rounds = locks.stats().rounds_without_quorum;
        eventually("it asks again", || {
            rounds + 3 <= locks.stats().rounds_without_quorum
        });
        assert_eq!(since(&servers[0], NAME, &member), None);

        for proxy in &proxies {
            proxy.refuse(false);
            proxy.black_hole(false);
            proxy.cut();
        }
        eventually("it is where it was", || {
            servers
                .iter()
                .all(|it| since(it, NAME, &member) == began && waiters_of(it, NAME)[0] == member)
        });
        drop(held);
        let guard = join(first)?;
        assert!(!second.is_finished());
        drop(guard);
        drop(join(second)?);
        nothing_waits(&servers);
    }
    Ok(())
}
