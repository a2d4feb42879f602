//! Answers and commands that come late: they are undone, and never taken for something else.

use std::thread;

use devnodes::{Proxy, Servers, eventually};

use crate::support::*;

#[test]
fn g1_a_late_answer_is_never_read_as_the_answer_to_a_later_command() -> TestResult {
    let servers = Servers::start(3)?;
    let proxy = Proxy::start(servers[0].addr())?;
    let urls = [proxy.url(), servers[1].url(), servers[2].url()];
    let locks = connected(builder(urls).ttl(LONG).response_timeout(secs(60)), 3);
    // "taken" is someone else's on a majority; node 0 says so only after it was heard to grant others.
    set(&servers[0], "taken", "foreign");
    set(&servers[1], "taken", "foreign");
    let before = scripts_run(&servers[0]);

    proxy.hold_replies();
    let taken = locks.mutex("taken");
    let attempt = thread::spawn(move || taken.try_lock().map(drop));
    // Commands wait for an answer for a moment, and are sent with the next ones.
    let free = locks.mutex("free");
    eventually("the node has run the scripts", || {
        free.try_lock().unwrap().release().unwrap();
        before + 11 <= scripts_run(&servers[0])
    });
    assert!(!attempt.is_finished(), "node 0 has not answered");
    let connections = locks.stats().connections;
    proxy.release_replies();

    assert_held(&join(attempt).unwrap_err());
    assert_eq!(locks.stats().connections, connections, "it was kept");
    eventually("only foreign keys are left", || {
        (lock_keys(&servers[0]), lock_keys(&servers[2])) == (vec!["taken".to_owned()], vec![])
    });
    assert_eq!(servers[0].get("taken").as_deref(), Some(&b"foreign"[..]));

    // Node 0 votes again, and for the right lock.
    servers[2].kill()?;
    let guard = locks.mutex("report").lock()?;
    assert_eq!(servers[0].get("report"), servers[1].get("report"));
    assert!(servers[0].exists("report"));
    guard.release()?;
    Ok(())
}

#[test]
fn answers_that_come_after_their_round_are_counted() -> TestResult {
    let (_servers, proxies, locks) = start_behind_proxies(3, builder);
    let before = locks.stats().late_answers;

    proxies[2].hold_replies();
    locks.mutex("report").try_lock()?.release()?;
    proxies[2].release_replies();

    eventually("the third node's answers have come", || {
        before + 2 <= locks.stats().late_answers
    });
    Ok(())
}

#[test]
fn a10_answers_byte_by_byte_delay_no_lock() -> TestResult {
    let (servers, proxies, locks) =
        start_behind_proxies(3, |urls| builder(urls).ttl(LONG).response_timeout(secs(60)));

    proxies[2].trickle(ms(1));
    for i in 0..10 {
        locks.mutex(format!("report {i}")).try_lock()?.release()?;
    }

    nothing_is_left(&servers);
    // All of them count once the third node is needed.
    servers[0].kill()?;
    locks.mutex("report").lock()?.release()?;
    Ok(())
}
