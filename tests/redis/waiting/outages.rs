//! An outage is the manager's: whichever call notices it, it begins for all.

use std::thread;
use std::time::Duration;

use devnodes::{Servers, eventually};
use quorlock::error::NodeAnswer;
use quorlock::{AcquireError, LockManager};

use crate::support::*;

const OUTAGE: Duration = secs(1);

/// Tries again soon, so that an outage is seen many times within the outage timeout.
fn builder_with_timeout(servers: &Servers) -> quorlock::Builder {
    builder(servers.urls())
        .outage_timeout(OUTAGE)
        .retry_delay(ms(5), ms(10))
}

/// How many rounds have found no majority.
fn failed_rounds(locks: &LockManager) -> u64 {
    locks.stats().rounds_without_quorum
}

/// Kills a majority.
fn kill_two(servers: &Servers) {
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
}

#[test]
fn h8_queued_calls_give_up_together_at_the_outage_timeout() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder_with_timeout(&servers).build()?;
    set_all(&servers, "report", "foreign");
    let calls = repeat(8, || {
        let locks = locks.clone();
        thread::spawn(move || {
            let err = locks.mutex("report").lock().unwrap_err();
            (err, failed_rounds(&locks))
        })
    });
    eventually("all are in line, and the first has been refused", || {
        locks.stats().waiting == 8 && 1 <= locks.stats().rounds_held
    });

    kill_two(&servers);

    let ends: Vec<_> = calls.into_iter().map(join).collect();
    assert!(2 <= ends[0].1, "the first was patient");
    for (err, failed) in &ends {
        // The calls behind the first one ask no node: it is known that none can be reached.
        assert_eq!(*failed, ends[0].1, "the outage began anew for another call");
        assert_matches!(err, AcquireError::NoQuorum { waited, .. } if OUTAGE <= *waited);
        for node in 0..2 {
            assert_matches!(answer(err, node), NodeAnswer::Failed(_));
        }
    }
    assert_eq!(locks.stats().waiting, 0);
    Ok(())
}

#[test]
fn h8_a_call_that_begins_in_an_outage_beyond_its_timeout_makes_one_round() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder_with_timeout(&servers).build()?;
    kill_two(&servers);
    assert_no_quorum(&locks.mutex("report").lock().unwrap_err());

    for name in ["report", "invoice"] {
        let before = failed_rounds(&locks);
        assert_no_quorum(&locks.mutex(name).lock().unwrap_err());
        assert_no_quorum(&locks.mutex(name).try_lock_for(LONG).unwrap_err());
        assert_eq!(failed_rounds(&locks) - before, 2, "one round for each");
    }
    Ok(())
}

#[test]
fn h8_an_outage_found_by_tries_counts_for_waiting_calls() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder_with_timeout(&servers).build()?;
    kill_two(&servers);
    assert_no_quorum(&locks.mutex("report").try_lock().unwrap_err());
    thread::sleep(OUTAGE); // the outage timeout, not an event

    let before = failed_rounds(&locks);
    assert_no_quorum(&locks.mutex("report").lock().unwrap_err());

    assert_eq!(failed_rounds(&locks) - before, 1);
    Ok(())
}

#[test]
fn h8_the_outage_timeout_restarts_after_an_answer_of_a_majority() -> TestResult {
    for is_held in [false, true] {
        let servers = Servers::start(3)?;
        let locks = builder_with_timeout(&servers).build()?;
        kill_two(&servers);
        assert_no_quorum(&locks.mutex("report").lock().unwrap_err());
        servers[0].restart()?;
        servers[1].restart()?;
        if is_held {
            set_all(&servers, "another", "foreign");
            error_in_the_end(&locks, "another", AcquireError::is_held);
        } else {
            drop(lock_in_the_end(&locks, "another"));
        }
        kill_two(&servers);

        let before = failed_rounds(&locks);
        assert_no_quorum(&locks.mutex("report").lock().unwrap_err());

        assert!(2 <= failed_rounds(&locks) - before, "it gave up at once");
    }
    Ok(())
}
