//! A firewall or balancer that forgets all its connections: the old ones swallow everything, and new ones work.

use std::thread;
use std::time::{Duration, Instant};

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::error::NodeFailure;
use quorlock::{Builder, Hold};
use rustix::process::Signal;

use crate::kinds::each_kind::{KINDS, nothing_is_left_of};
use crate::support::*;

fn forget_flows(proxies: &[Proxy]) {
    for proxy in proxies {
        proxy.black_hole(true);
        proxy.black_hole(false);
    }
}

/// Nothing expires within a test.
fn lasting(urls: Vec<String>) -> Builder {
    builder(urls).response_timeout(ms(250)).ttl(LONG)
}

#[test]
fn h9_a_held_lock_of_any_kind_outlives_all_its_connections() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls).response_timeout(ms(500)).ttl(secs(10))
    });
    let holds = KINDS.map(|it| it.take(&locks, &servers));

    forget_flows(&proxies);
    let end = |hold: &Hold| Instant::now() + hold.remaining();
    let ends: Vec<_> = holds.iter().map(end).collect();

    for (hold, before) in holds.into_iter().zip(ends) {
        eventually("it is extended or lost", || {
            hold.check().is_err() || before + secs(1) < end(&hold)
        });
        hold.check()?;
        hold.release()?;
    }
    nothing_is_left_of(&KINDS, &servers);
    Ok(())
}

#[test]
fn h9_new_locks_are_taken_and_old_ones_released_over_new_connections() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, lasting);
    let held = KINDS.map(|it| it.take(&locks, &servers));

    forget_flows(&proxies);
    // Their releases are swallowed, as is the first acquire.
    drop(held);
    locks.mutex("new").lock()?.release()?;

    nothing_is_left_of(&KINDS, &servers);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn h9_a_waiting_call_is_handed_a_lock_over_a_new_connection() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, lasting);
    let other = manager(&servers);
    let held = other.mutex("report").lock()?;
    let waiting = thread::spawn({
        let lock = locks.mutex("report");
        move || lock.lock().map(drop)
    });
    eventually("it waits", || locks.stats().waiting == 1);

    forget_flows(&proxies);
    held.release()?;

    waiting.join().unwrap()?;
    nothing_is_left(&servers);
    Ok(())
}

/// New connections to a stopped server are accepted, and get no answer either.
#[test]
fn h9_stopped_servers_keep_their_connections_and_the_order_of_commands() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, lasting);
    let before = locks.stats().connections;
    for count in [3, 1] {
        let held = KINDS.map(|it| it.take(&locks, &servers));
        let tries: Vec<_> = proxies.iter().map(Proxy::connections).collect();
        servers.iter().take(count).try_for_each(Server::pause)?;
        // They lie in the old connections, the acquire before its release.
        drop(held);
        drop(locks.mutex("new").try_lock());
        for (proxy, before) in proxies.iter().zip(tries).take(count) {
            eventually("a second connection waits", || before < proxy.connections());
        }
        servers.iter().take(count).try_for_each(Server::resume)?;

        nothing_is_left_of(&KINDS, &servers);
        nothing_is_left(&servers);
    }
    drop(lock_in_the_end(&locks, "report"));
    assert_eq!(locks.stats().connections, before);
    Ok(())
}

#[test]
fn h9_a_mute_connection_is_replaced_once_a_second_one_gets_answers() -> TestResult {
    let server = Server::start()?;
    let proxy = Proxy::start(server.addr())?;
    let locks = connected(
        builder([proxy.url()])
            .response_timeout(ms(200))
            .connect_timeout(ms(500))
            .ttl(LONG),
        1,
    );

    // What is lost on the way is acknowledged all the same.
    proxy.black_hole(true);
    let lost = locks.mutex("report").try_lock().unwrap_err();
    assert_eq!(*failure(&lost, 0), NodeFailure::TimedOut);
    eventually("second connections are tried", || 3 <= proxy.connections());
    let lost = locks.mutex("report").try_lock().unwrap_err();
    assert_eq!(*failure(&lost, 0), NodeFailure::Stalled);
    assert_eq!(locks.stats().connections, 1);
    proxy.black_hole(false);

    drop(lock_in_the_end(&locks, "report"));
    assert_eq!(locks.stats().connections, 2);
    Ok(())
}

#[test]
fn h9_a_client_that_was_stopped_reads_answers_before_it_gives_a_connection_up() -> TestResult {
    let servers = Servers::start(1)?;
    loop {
        let proxy = Proxy::start(servers[0].addr())?;
        let mut child = child(
            "nodes::forgotten_flows::child_that_is_stopped_before_it_reads",
            &[proxy.url()],
        );
        assert_eq!(child.hear(), "connected");
        proxy.hold_replies();
        child.go_on();
        eventually("it was asked", || servers[0].exists("report"));
        child.signal(Signal::STOP);
        child.wait_until_stopped();
        proxy.release_replies();
        let stopped = Instant::now();
        if proxy.connections() != 1 {
            // Too late: it has had no answer for so long that it may give up.
            continue;
        }
        eventually("all that was under way would have expired", || {
            LIFE < stopped.elapsed()
        });
        child.signal(Signal::CONT);

        assert_eq!(child.hear(), "answered");
        assert_eq!(proxy.connections(), 1);
        return Ok(());
    }
}

const LIFE: Duration = secs(3);

#[test]
#[ignore = "a process of another test"]
fn child_that_is_stopped_before_it_reads() {
    let Some(urls) = parent_urls() else { return };
    let locks = connected(
        builder(urls)
            .response_timeout(ms(200))
            .ttl(LIFE)
            .renew(false),
        1,
    );
    say("connected");
    wait_for_parent();
    let _in_time_or_not = locks.mutex("report").try_lock();
    drop(lock_in_the_end(&locks, "report"));
    say("answered");
}
