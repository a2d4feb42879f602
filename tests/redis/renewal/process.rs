//! What becomes of locks when their process stops, ends or is killed, and what a process is left with after managers.
//!
//! The ignored tests are the other processes: the tests beside them run this binary once more for each.

use std::time::Duration;
use std::{env, fs, process};

use devnodes::{PATIENCE, Servers, eventually};
use quorlock::LostReason;
use rustix::process::Signal;

use crate::support::*;

#[test]
fn f2_a_process_that_exits_or_is_killed_with_a_held_guard_leaves_keys_that_expire() -> TestResult {
    let servers = Servers::start(3)?;
    for is_killed in [false, true] {
        let mut child = child(
            "renewal::process::child_that_exits_with_a_guard",
            &servers.urls(),
        );
        assert_eq!(child.hear(), "held");
        if is_killed {
            child.signal(Signal::KILL);
        } else {
            child.go_on();
        }

        assert_eq!(child.wait().success(), !is_killed);
        let left = servers.iter().map(|it| it.pttl("report"));
        assert!(left.into_iter().all(|it| it <= 2_000 && it != -1));
        drop(manager(&servers).mutex("report").lock()?);
    }
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_exits_with_a_guard() {
    let Some(urls) = parent_urls() else { return };
    let locks = with_ttl(urls, secs(2)).build().unwrap();
    let _guard = lock_in_the_end(&locks, "report");
    say("held");
    wait_for_parent();
    process::exit(0);
}

#[test]
fn f8_panics_in_callbacks_and_holders_leave_a_lost_lock_lost() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let (sender, called) = crossbeam_channel::bounded(1);
    // Without the panic hook, which would show it in the log of the tests.
    let panics = |_| std::panic::resume_unwind(Box::new("on purpose"));
    guard.on_lost(panics);
    guard.on_lost({
        let locks = locks.clone();
        move |lost| {
            // It may block, and use the manager.
            let again = locks.mutex("report").lock().unwrap();
            sender.send((lost, again.fencing_token())).unwrap();
        }
    });
    del_all(&servers, "report");
    assert!(guard.extend(LONG).is_err());

    // The callback after the one that panics is called, and all listeners are told the same from now on.
    let (lost, token) = called.recv_timeout(PATIENCE).expect("it is called");
    assert_eq!(lost.reason, LostReason::Gone);
    assert!(guard.fencing_token() < token);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        guard.on_lost(panics);
        assert!(guard.is_valid(), "on purpose");
    }));
    assert!(panicked.is_err());
    for _ in 0..3 {
        assert_eq!(reason(guard.check()), Err(LostReason::Gone));
        assert_eq!(announced(&guard.lost()), LostReason::Gone);
    }
    // And the manager works on.
    drop(locks.mutex("report").lock()?);
    drop(guard);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn f5_a_process_stopped_beyond_the_ttl_finds_its_loss_at_once() -> TestResult {
    let servers = Servers::start(3)?;
    let mut child = child("renewal::process::child_that_is_stopped", &servers.urls());
    assert_eq!(child.hear(), "held");

    child.signal(Signal::STOP);
    // It expires because nobody renews it, and someone else takes it.
    let other = manager(&servers);
    let taken = other.mutex("report").lock()?;
    child.go_on();
    child.signal(Signal::CONT);

    assert_eq!(child.hear(), "valid: false");
    assert_eq!(
        child.hear(),
        format!("{:?}", Err::<(), _>(LostReason::Expired))
    );
    assert_eq!(
        child.hear(),
        format!("{:?}", Ok::<_, ()>(LostReason::Expired))
    );
    assert!(child.wait().success());
    // And no renewal or release of it has touched the successor's key.
    assert!(taken.is_valid() && 2 <= servers.holders("report"));
    taken.release()?;
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_is_stopped() {
    let Some(urls) = parent_urls() else { return };
    let locks = with_ttl(urls, secs(1)).build().unwrap();
    let guard = lock_in_the_end(&locks, "report");
    let lost = guard.lost();
    say("held");
    wait_for_parent();
    say(format_args!("valid: {}", guard.is_valid()));
    say(format_args!("{:?}", reason(guard.check())));
    let lost = lost
        .recv_timeout(PATIENCE)
        .map(|it| it.reason)
        .map_err(drop);
    say(format_args!("{lost:?}"));
    drop(guard);
}

#[test]
fn f7_dropped_managers_leave_no_thread_and_no_descriptor() -> TestResult {
    let servers = Servers::start(3)?;
    let mut urls = servers.urls();
    // One that is down and one that is paused, so that all kinds of ends are among them.
    let others = Servers::start(2)?;
    others[0].kill()?;
    others[1].pause()?;
    urls.extend(others.urls());

    let mut child = child("renewal::process::child_with_many_managers", &urls);

    assert_eq!(child.hear(), "as many threads and descriptors as before");
    assert!(child.wait().success());
    nothing_is_left(&servers);
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_with_many_managers() {
    let Some(urls) = parent_urls() else { return };
    let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let our_threads = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let paths = tasks.map_while(Result::ok).map(|it| it.path().join("comm"));
        let names = paths.filter_map(|it| fs::read_to_string(it).ok());
        names.filter(|it| it.starts_with("quorlock-")).count()
    };
    let (threads, descriptors) = (count("task"), count("fd"));

    for turn in 0..15 {
        let locks = builder(&urls)
            .connect_timeout(ms(200))
            .ttl(LONG)
            .shutdown_grace(ms(300))
            .build()
            .unwrap();
        let guard = lock_in_the_end(&locks, "report");
        // A new thread names itself when it first runs.
        eventually("all threads run", || our_threads() == 7);
        match turn % 3 {
            0 => drop(guard),
            1 => locks.shutdown(),
            _ => {
                drop(locks);
                drop(guard);
                continue;
            }
        }
        drop(locks);
    }
    // Never used, so there is nothing to end but threads.
    drop(repeat(10, || builder(&urls).build().unwrap()));

    // A thread is gone from the list a moment after it was joined.
    eventually("threads are as many as before", || count("task") <= threads);
    assert_eq!(count("fd"), descriptors);
    say("as many threads and descriptors as before");
}

#[test]
fn a_guard_dropped_in_its_own_callback_does_not_hang() -> TestResult {
    let (_servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(1)).renew(false));
    let guard = lock_in_the_end(&locks, "report");
    let (sender, guards) = crossbeam_channel::bounded(1);
    let (done, dropped) = crossbeam_channel::bounded(1);
    guard.on_lost(move |_| {
        drop(guards.recv_timeout(PATIENCE));
        done.send(()).unwrap();
    });
    drop(locks);
    // The last handle of its manager.
    sender.send(guard)?;

    dropped
        .recv_timeout(PATIENCE)
        .expect("the last handle is dropped");
    Ok(())
}

/// A number of this process' status.
fn status(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

/// So many cycles level off on any machine.
const MANY: u32 = 80_000;

#[test]
fn f7_many_cycles_do_not_grow_the_process() -> TestResult {
    // A number in the place of the 1 of QUORLOCK_LONG is how many: a million takes a quarter of an hour.
    let cycles = match env::var("QUORLOCK_LONG").map(|it| it.parse::<u32>()) {
        Ok(Ok(cycles)) if 1 < cycles => cycles,
        Ok(_) => 50_000,
        Err(_) => 8_000,
    };
    let servers = Servers::start(3)?;
    let mut child = child("renewal::process::child_with_many_cycles", &servers.urls());
    child.tell(&cycles.to_string());

    loop {
        match child.hear().as_str() {
            "it has not grown" => break,
            said => eprintln!("{said}"),
        }
    }
    assert!(child.wait().success());
    nothing_is_left(&servers);
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_with_many_cycles() {
    let Some(urls) = parent_urls() else { return };
    let total: u32 = hear_parent().unwrap().parse().unwrap();
    // Not what is read of the program itself as it runs.
    let memory = || status("RssAnon:").unwrap();
    let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let locks = builder(urls).ttl(Duration::from_secs(20)).build().unwrap();
    let cycles = |turns: u32| {
        for i in 0..turns {
            let guard = locks.mutex(format!("report {}", i % 100)).lock().unwrap();
            guard.release().unwrap();
        }
    };
    cycles(1_000);
    let (threads, descriptors) = (count("task"), count("fd"));
    // Buffers and the allocator's arenas grow for tens of thousands of cycles, and stop. What leaks 40 bytes a cycle never does,
    // though for a few thousand cycles it can fit into holes.
    let (mut done, mut levels_off) = (0, false);
    while !levels_off || done < total {
        assert!(
            done < total.max(MANY),
            "{} KiB, and still growing",
            memory()
        );
        let before = memory();
        // The parent wants to hear something in between.
        for _ in 0..16 {
            cycles(500);
            say(format_args!("{done} cycles: {} KiB", memory()));
        }
        done += 8_000;
        levels_off = memory() < before + 64;
    }
    assert_eq!((count("task"), count("fd")), (threads, descriptors));
    say("it has not grown");
}

#[test]
#[cfg(target_os = "linux")]
fn d12_threads_that_cannot_be_started_are_an_error_of_build_and_leave_none() {
    let mut child = child(
        "renewal::process::child_without_room_for_threads",
        &["redis://a".to_owned()],
    );
    assert_eq!(child.hear(), "NoThreads, 0 threads more");
    assert!(child.wait().success());
}

#[test]
#[ignore = "a process of another test"]
#[cfg(target_os = "linux")]
fn child_without_room_for_threads() {
    use rustix::process::{Resource, Rlimit, setrlimit};

    let Some(_) = parent_urls() else { return };
    let status = |field| status(field).unwrap();
    let urls = (1..=31).map(|it| format!("redis://127.0.0.1:{it}"));
    let before = status("Threads:");
    // Room for the stacks of a few threads.
    let current = Some(status("VmSize:") * 1024 + 9 * 1024 * 1024);
    let maximum = current;
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();

    let err = builder(urls).build().unwrap_err();

    let [quorlock::error::BuildProblem::NoThreads { .. }] = err.problems() else {
        panic!("{err:?}")
    };
    eventually("those that were started have ended", || {
        status("Threads:") == before
    });
    say(format_args!(
        "NoThreads, {} threads more",
        status("Threads:") - before
    ));
}
