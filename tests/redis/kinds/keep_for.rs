//! Locks that stay for a time, whatever becomes of their holder.

use std::thread::JoinHandle;

use devnodes::{Servers, eventually};
use quorlock::{CancelHandle, ExtendError};

use crate::kinds::each_kind::{KINDS, Kind, nothing_is_left_of};
use crate::support::*;

const KEPT: std::time::Duration = secs(2);

#[test]
fn e8_a_lock_of_any_kind_stays_for_its_time_and_goes_to_the_waiting_call_then() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let others = connected(builder(servers.urls()).ttl(LONG), 3);
    let (began, cancel) = (std::time::Instant::now(), CancelHandle::new());
    for kind in KINDS {
        let hold = kind.take(&locks, &servers);
        hold.keep_for(KEPT)?;
        hold.keep_for(KEPT / 2)?;
        hold.release()?;
    }

    let mut waiting: Vec<_> = KINDS
        .iter()
        .flat_map(|kind| [kind.wait(&locks, &cancel), kind.wait(&others, &cancel)])
        .collect();
    for kind in KINDS {
        for locks in [&locks, &others] {
            let taken = kind.try_against(locks);
            let is_early = began.elapsed() < KEPT;
            assert!(!is_early || taken.is_err_and(|it| it.is_held()), "{kind:?}");
        }
        assert!(KEPT <= began.elapsed() || servers.iter().all(|it| kind.is_on(it)));
    }

    // A key of this ttl does not expire within a test: it was released.
    while !waiting.is_empty() {
        eventually("the next call gets it", || {
            waiting.iter().any(JoinHandle::is_finished)
        });
        for got in waiting.extract_if(.., |it| it.is_finished()) {
            drop(got.join().unwrap()?);
        }
        assert!(KEPT <= began.elapsed(), "too early");
    }
    nothing_is_left_of(&KINDS, &servers);
    assert!(locks.held().is_empty());
    Ok(())
}

#[test]
fn e8_a_kept_lock_of_any_kind_outlives_its_manager_and_a_loss() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(secs(30)));
    let others = connected(builder(servers.urls()), 3);
    for kind in KINDS {
        let hold = kind.take(&locks, &servers);
        hold.keep_for(LONG)?;
        // Two of three lose it, and their other keys stay.
        for server in servers
            .iter()
            .take(2)
            .filter(|_| matches!(kind, Kind::Mutex))
        {
            del(server, kind.keys()[0]);
        }
        if matches!(kind, Kind::Mutex) {
            assert!(hold.extend(LONG).is_err());
            drop(hold);
        } else {
            std::mem::forget(hold);
        }
    }

    locks.shutdown();

    let stays = |key: &str, server: &devnodes::Server| 60_000 < server.pttl(key);
    assert!(stays("report", &servers[2]), "a lost lock was released");
    for kind in KINDS.into_iter().filter(|it| !matches!(it, Kind::Mutex)) {
        assert!(
            kind.try_against(&others).is_err_and(|it| it.is_held()),
            "{kind:?}"
        );
        assert!(
            servers.iter().all(|it| stays(kind.keys()[0], it)),
            "{kind:?}"
        );
    }
    Ok(())
}

#[test]
fn e8_a_lock_that_cannot_be_kept_is_released_normally() -> TestResult {
    let servers = Servers::start(3)?;
    let options = builder(servers.urls())
        .max_ttl(LONG)
        .response_timeout(ms(500));
    let locks = connected(options, 3);
    let guard = locks.mutex("report").ttl(LONG).lock()?;

    assert_matches!(guard.keep_for(LONG + ms(1)), Err(ExtendError::BadTtl(_)));
    servers[0].pause()?;
    servers[1].pause()?;
    assert_matches!(guard.keep_for(LONG), Err(ExtendError::NoQuorum { .. }));
    servers[0].resume()?;
    servers[1].resume()?;
    drop(guard);

    nothing_is_left(&servers);
    Ok(())
}
