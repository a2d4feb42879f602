//! Calls that reach a minority of the nodes: they cannot win, and keep nobody from winning.

use std::time::Instant;

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::LockManager;

use crate::lists::*;
use crate::support::*;

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
    proxies
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != index)
        .for_each(|(_, it)| away(it));
}

fn refuse(proxy: &Proxy) {
    proxy.refuse(true);
    proxy.cut();
}

/// A client that asks only when it is told of a release, and then reaches one server only.
struct CutOff {
    reached: usize,
    proxies: Vec<Proxy>,
    locks: LockManager,
    /// What it is called in lists.
    member: String,
}

impl CutOff {
    /// Lets it ask the nodes, of which all but one do not hear it. Calls `under_way` when that one does, and returns when
    /// the round is over.
    #[track_caller]
    fn ask(&self, servers: &Servers, under_way: impl FnOnce(&Server)) {
        let server = &servers[self.reached];
        let found_none = || self.locks.stats().rounds_without_quorum;
        let mut before = (found_none(), scripts_run(server));
        loop {
            leave_only(&self.proxies, self.reached, Proxy::hold_requests);
            server
                .command(&["PUBLISH", &channel(&self.member), NAME])
                .unwrap();
            eventually("it asks", || {
                before.1 < scripts_run(server) || before.0 < found_none()
            });
            if before.1 < scripts_run(server) {
                break;
            }
            // Nobody was asked: too many answers were owed.
            self.catch_up(servers);
            before = (found_none(), scripts_run(server));
        }
        under_way(server);
        eventually("it has found no majority", || before.0 < found_none());
        self.catch_up(servers);
    }

    /// Lets all nodes hear what it has sent, and waits until they have answered that.
    #[track_caller]
    fn catch_up(&self, servers: &Servers) {
        self.proxies.iter().for_each(Proxy::release_requests);
        // RACE: a call ends when a majority has answered, and the key that is not there on the last node may be yet to come.
        eventually("all have been asked", || {
            let guard = lock_in_the_end(&self.locks, "other");
            let until = Instant::now() + ms(500);
            let is_everywhere = || servers.iter().all(|it| it.exists("other"));
            while !is_everywhere() && Instant::now() < until {}
            let asked = is_everywhere();
            drop(guard);
            asked
        });
        eventually("all is done", || {
            servers.iter().all(|it| !it.exists("other"))
        });
    }
}

#[test]
fn h4_calls_that_reach_a_minority_hold_a_free_lock_back_from_nobody() -> TestResult {
    // Refused at once, or never answered.
    for away in [refuse, |it: &Proxy| it.black_hole(true)] {
        let servers = Servers::start(3)?;
        let (holder, healthy) = (on_all(&servers, far), on_all(&servers, near));
        let cut_off = repeat(2, || behind_proxies(&servers));
        let held = hold(&holder, &servers, NAME);
        let mut waiters = Vec::new();
        for (i, (_, locks)) in cut_off.iter().enumerate() {
            waiters.push(wait_in_thread(locks.mutex(NAME)));
            wait_until_listed(&servers, NAME, i + 1);
        }
        let last = wait_in_thread(healthy.mutex(NAME));
        wait_until_listed(&servers, NAME, 3);

        // Each keeps one server, and not the same one.
        for (i, (proxies, locks)) in cut_off.iter().enumerate() {
            leave_only(proxies, i, away);
            eventually("it has noticed", || {
                1 <= locks.stats().rounds_without_quorum
            });
        }
        drop(held);

        // Again and again: they ask all the time.
        drop(join(last)?);
        for _ in 0..5 {
            drop(healthy.mutex(NAME).lock()?);
        }
        assert!(waiters.iter().all(|it| !it.is_finished()));
        for (_, locks) in &cut_off {
            locks.shutdown();
        }
        waiters
            .into_iter()
            .for_each(|it| assert!(join(it).is_err()));
    }
    Ok(())
}

#[test]
fn h4_a_call_that_reaches_a_minority_is_on_no_list_there_and_has_its_old_place_when_it_reaches_more()
-> TestResult {
    // Refused at once, so that nobody waits for the node that is left; or never answered.
    for away in [refuse, |it: &Proxy| it.black_hole(true)] {
        let servers = Servers::start(3)?;
        let (holder, other) = (on_all(&servers, far), on_all(&servers, far));
        let (proxies, locks) = behind_proxies(&servers);
        let held = hold(&holder, &servers, NAME);
        let first = wait_in_thread(locks.mutex(NAME));
        wait_until_listed(&servers, NAME, 1);
        let member = waiters_of(&servers[0], NAME).remove(0);
        let began = since(&servers[0], NAME, &member);
        assert!(began.is_some());
        let second = wait_in_thread(other.mutex(NAME));
        wait_until_listed(&servers, NAME, 2);

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

/// They ask when the test says so, and their rounds are under way for as long as answers are waited for: so what they do at
/// the node that they reach can be seen.
#[test]
fn h4_calls_that_reached_a_minority_ask_behind_all_who_wait() -> TestResult {
    let servers = Servers::start(3)?;
    let holder = on_all(&servers, far);
    let healthy = connected(far(&servers).owner_label(Some("healthy")), 3);
    let held = hold(&holder, &servers, NAME);
    let (mut cut_off, mut waiters) = (Vec::new(), Vec::new());
    for reached in 0..2 {
        let (proxies, urls) = proxies(&servers);
        let locks = connected(
            impatient(urls)
                .retry_delay(secs(60), secs(60))
                .shutdown_grace(ms(100)),
            3,
        );
        let before = waiters_of(&servers[reached], NAME);
        waiters.push(wait_in_thread(locks.mutex(NAME)));
        wait_until_listed(&servers, NAME, reached + 1);
        let member = waiters_of(&servers[reached], NAME)
            .into_iter()
            .find(|it| !before.contains(it))
            .unwrap();
        cut_off.push(CutOff {
            reached,
            proxies,
            locks,
            member,
        });
    }
    let last = wait_in_thread(healthy.mutex(NAME));
    wait_until_listed(&servers, NAME, 3);

    for it in &cut_off {
        it.ask(&servers, |_| {});
        it.ask(&servers, |server| {
            let listed = waiters_of(server, NAME).contains(&it.member);
            assert!(
                !listed,
                "n{}: it is on the list before its round is over",
                it.reached
            );
        });
    }

    // Free, and no client is notified.
    servers.iter().for_each(|it| del(it, NAME));
    for it in &cut_off {
        it.ask(&servers, |server| {
            eventually("the lock is taken", || server.exists(NAME));
            let value = String::from_utf8(server.get(NAME).unwrap()).unwrap();
            assert!(value.ends_with("/healthy"), "n{}: {value}", it.reached);
        });
    }
    drop((join(last)?, held));
    for it in &cut_off {
        it.locks.shutdown();
    }
    waiters
        .into_iter()
        .for_each(|it| assert!(join(it).is_err()));
    Ok(())
}
