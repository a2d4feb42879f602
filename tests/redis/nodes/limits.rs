//! What nodes can make a client keep, and for how long it bears with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::error::NodeFailure;
use rustix::process::Signal;

use crate::nodes::lying_servers::speaking_for;
use crate::support::*;

/// What the client answers to notices for which nobody waits, at most.
const ANSWERED_MAX: u64 = 64;

/// A server hands the lock "nobodys" over to a call with this owner token, of which there is none.
fn notice(owner: usize) -> String {
    let message = format!("0 123456789012345 1000 0 w 32 {owner:032x} nobodys");
    format!(
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n{message}\r\n",
        message.len()
    )
}

/// Connects to one node, which then sends these notices and is silent; how many commands they bring it.
fn commands_after(notices: Vec<String>) -> u64 {
    let server = Server::start().unwrap();
    let count = u64::try_from(notices.len()).unwrap();
    let notices = notices.concat();
    let fake = speaking_for(&server, move |_, command| match command[0].as_slice() {
        b"SUBSCRIBE" => {
            Some(format!(">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n{notices}").into_bytes())
        }
        // What it is told about that lock.
        b"EVALSHA" | b"EVAL" if command.iter().any(|it| it.starts_with(b"nobodys")) => {
            Some(Vec::new())
        }
        _ => None,
    });
    let locks = builder([fake.url()])
        .shutdown_grace(ms(100))
        .build()
        .unwrap();
    // It may wait, so it listens.
    drop(locks.mutex("x").lock().unwrap());
    eventually("all notices have come", || locks.stats().notices == count);
    // Without the two for its lock.
    locks.stats().commands - 2
}

#[test]
fn h7_unexpected_hand_overs_cause_few_open_commands() {
    let of_many = (0..5_000).map(notice).collect();
    let of_one = (0..5_000).map(|_| notice(0)).collect();

    let (many, one) = (commands_after(of_many), commands_after(of_one));

    assert!((1..=ANSWERED_MAX).contains(&many), "{many} commands");
    assert_eq!(one, 1);
}

#[test]
fn h7_refused_releases_are_retried_rarely_until_one_is_taken() -> TestResult {
    const LOCKS: usize = 300;
    let (servers, server) = (Servers::start(2)?, Server::start()?);
    let (is_busy, refused) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let fake = speaking_for(&server, {
        let (is_busy, refused) = (Arc::clone(&is_busy), Arc::clone(&refused));
        move |_, command| match command[0].as_slice() {
            b"SUBSCRIBE" => Some(b"-NOPERM no channels\r\n".to_vec()),
            b"EVAL" | b"EVALSHA" if is_busy.load(Ordering::SeqCst) => {
                refused.fetch_add(1, Ordering::SeqCst);
                Some(b"-BUSY Redis is busy running a script.\r\n".to_vec())
            }
            _ => None,
        }
    });
    let locks = connected(
        builder([servers[0].url(), servers[1].url(), fake.url()]).ttl(LONG),
        3,
    );
    let lock = |number| locks.mutex(format!("report-{number}")).lock();
    let guards: Vec<_> = (0..LOCKS).map(lock).collect::<Result<_, _>>()?;
    eventually("it has granted all of them", || {
        lock_keys(&server).len() == LOCKS
    });

    let began = Instant::now();
    is_busy.store(true, Ordering::SeqCst);
    drop(guards);
    eventually("it has refused all releases, and as many again", || {
        2 * LOCKS as u64 <= refused.load(Ordering::SeqCst)
    });

    let again = refused.load(Ordering::SeqCst) - LOCKS as u64;
    let pauses = u64::try_from(began.elapsed().as_millis() / 100)? + 1;
    assert!(again <= 16 * pauses, "{again} of them in {pauses} pauses");
    is_busy.store(false, Ordering::SeqCst);
    eventually("all are released", || lock_keys(&server).is_empty());
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
fn h9_a_mute_connection_is_replaced_also_while_a_call_waits_for_notices_on_it() -> TestResult {
    let servers = Servers::start(3)?;
    let proxy = Proxy::start(servers[0].addr())?;
    let urls = [proxy.url(), servers[1].url(), servers[2].url()];
    let locks = connected(with_ttl(urls, secs(1)), 3);
    let other = manager(&servers);
    let held = other.mutex("report").lock()?;
    let waiting = thread::spawn({
        let lock = locks.mutex("report");
        move || lock.lock().map(drop)
    });
    eventually("it waits", || locks.stats().waiting == 1);

    proxy.black_hole(true);
    proxy.black_hole(false);

    eventually("there is a new connection", || {
        locks.stats().connections == 4
    });
    held.release()?;
    waiting.join().unwrap()?;
    Ok(())
}

#[test]
fn h9_a_client_that_was_stopped_reads_answers_before_it_gives_a_connection_up() -> TestResult {
    let servers = Servers::start(1)?;
    loop {
        let proxy = Proxy::start(servers[0].addr())?;
        let mut child = child(
            "nodes::limits::child_that_is_stopped_before_it_reads",
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
