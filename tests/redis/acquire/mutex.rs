//! Taking a lock: which call gets it, which does not, and what is said about it.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use devnodes::{Servers, eventually};
use quorlock::AcquireError;
use quorlock::error::NodeAnswer;

use crate::support::*;
use crate::waiting::lists::wait_in_thread;

#[test]
fn two_managers_exclude_each_other_on_one_to_five_nodes() -> TestResult {
    let servers = Servers::start(5)?;
    for nodes in 1..=5 {
        let urls = &servers.urls()[..nodes];
        let (first, second) = (builder(urls).build()?, builder(urls).build()?);
        let name = format!("of {nodes}");

        let guard = first.mutex(&name).try_lock()?;
        assert!(nodes / 2 < servers.holders(&name));
        assert_held(&second.mutex(&name).try_lock().unwrap_err());
        assert_held(&first.mutex(&name).try_lock().unwrap_err());
        drop(guard);

        let guard = second.mutex(&name).try_lock()?;
        assert_held(&first.mutex(&name).try_lock().unwrap_err());
        drop(guard);
    }
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a3_four_nodes_survive_one_failure_and_two_nodes_none() -> TestResult {
    let servers = Servers::start(4)?;
    let four = manager(&servers);
    let two = builder(&servers.urls()[..2]).build()?;

    servers[0].kill()?;
    drop(four.mutex("report").try_lock()?);
    assert_no_quorum(&two.mutex("report").try_lock().unwrap_err());

    servers[3].kill()?;
    let again = manager(&servers);
    for locks in [four, again] {
        let err = error_in_the_end(&locks, "report", |it| {
            matches!(it, AcquireError::NoQuorum { .. })
        });
        assert_eq!(err.nodes().len(), 4);
    }
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn threads_of_two_managers_never_hold_one_lock_together() -> TestResult {
    const THREADS: u64 = 6;
    const TURNS: u64 = 8;
    let servers = Servers::start(3)?;
    let managers = [manager(&servers), manager(&servers)];
    // Read and written in two steps: holders that overlap lose counts.
    let count = AtomicU64::new(0);
    let inside = AtomicU64::new(0);
    let tokens = Mutex::new(Vec::new());

    thread::scope(|scope| {
        for i in 0..THREADS {
            let report = managers[usize::try_from(i % 2).unwrap()].mutex("report");
            let (count, inside, tokens) = (&count, &inside, &tokens);
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let guard = report.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    let read = count.load(Ordering::SeqCst);
                    thread::yield_now();
                    count.store(read + 1, Ordering::SeqCst);
                    tokens.lock().unwrap().push(guard.fencing_token());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(guard.is_valid());
                }
            });
        }
    });

    assert_eq!(count.into_inner(), THREADS * TURNS);
    let tokens = tokens.into_inner()?;
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_refusal_has_the_rest_of_a_ttl_and_a_key_without_one_is_never_free() -> TestResult {
    let servers = Servers::start(3)?;
    set_px(&servers[0], "report", "foreign", 60_000);
    set(&servers[1], "report", "foreign");
    let locks = manager(&servers);

    let err = locks.mutex("report").try_lock_for(secs(1)).unwrap_err();
    assert_held(&err);
    let left = [0, 1].map(|node| match answer(&err, node) {
        NodeAnswer::Held {
            left,
            holder: None,
            name: None,
        } => *left,
        other => panic!("{other:?}"),
    });
    let is_rest = left[0].is_some_and(|it| secs(0) < it && it <= secs(60));
    assert!(is_rest && left[1].is_none(), "{left:?}");
    assert_eq!(servers[1].get("report").as_deref(), Some(&b"foreign"[..]));

    del(&servers[1], "report");
    drop(locks.mutex("report").lock()?);
    Ok(())
}

#[test]
fn a5_a_call_draws_another_owner_token_after_each_release_of_it_and_not_before() -> TestResult {
    needs!(CommandMonitor);
    let servers = Servers::start(3)?;
    // Two servers refuse it. What the third grants it claims once, and gives back.
    for server in servers.iter().take(2) {
        set(server, "report", "foreign");
    }
    let locks = connected(builder(servers.urls()).retry_delay(ms(1), ms(20)), 3);
    let mut monitor = servers[2].client()?;
    monitor.command(&["MONITOR"])?;

    let waiter = wait_in_thread(locks.mutex("report"));
    wait_for_refusals(&locks, 10);
    servers.iter().take(2).for_each(|it| del(it, "report"));
    join(waiter)?.release()?;
    servers[2].command(&["ECHO", "the end"])?;

    // 1700000000.1 [0 127.0.0.1:1] "EVALSHA" "HASH" "6" "report" … "TOKEN LABEL" "TTL" …; of a release, "NEXT LIFE FIRST RAISED".
    let (mut asked, mut released) = (Vec::new(), HashSet::new());
    loop {
        let line = monitor.receive()?;
        let line = line.as_str().unwrap_or_default();
        if line.contains("the end") {
            break;
        }
        let words: Vec<_> = line.split('"').skip(1).step_by(2).collect();
        if let [
            "EVALSHA" | "EVAL",
            _,
            "6",
            "report",
            _,
            _,
            _,
            _,
            _,
            value,
            second,
            ..,
        ] = words[..]
        {
            let token = value[..32].to_owned();
            if second.contains(' ') {
                released.insert(token);
            } else {
                assert!(!released.contains(&token), "{token} after its release");
                asked.push(token);
            }
        }
    }
    let attempts = asked.len();
    asked.sort();
    asked.dedup();
    assert!(2 <= asked.len() && asked.len() < attempts, "{asked:?}");
    assert!(asked.iter().all(|it| released.contains(it)), "{asked:?}");
    Ok(())
}

#[test]
fn a13_a_majority_behind_the_lease_is_too_late_and_released() -> TestResult {
    let servers = Servers::start(1)?;
    let (proxies, urls) = proxies(&servers);
    // The margin leaves about half of the ttl.
    let locks = connected(with_ttl(urls, secs(1)).clock_margin(0.49, ms(0)), 1);

    // Connecting again gives the round more time than its lease has.
    proxies[0].hold_replies();
    proxies[0].cut();
    eventually("it connects again", || 2 <= proxies[0].connections());
    let attempt = attempt_under_way(&locks);
    let lease_is_over = Instant::now() + ms(510);
    eventually("its lease would be over", || lease_is_over < Instant::now());
    proxies[0].release_replies();

    let err = join(attempt).unwrap_err();
    assert!(matches!(err, AcquireError::TooLate { .. }), "{err:?}");
    servers.wait_until_free("report")?;
    Ok(())
}
