//! Messages say what to do.

use std::time::Duration;

use quorlock::error::{HeldBy, NodeAnswer, NodeFailure, NodeFinding};
use quorlock::{AcquireError, LockManager, LockName, Lost, LostReason};

fn name() -> LockName {
    LockName::new(b"report")
}

#[test]
fn the_debug_form_of_an_error_has_its_fields() {
    let err = AcquireError::NoQuorum {
        name: name(),
        nodes: vec![],
        waited: Duration::from_micros(10_065_228),
    };
    assert_eq!(
        err.to_string(),
        "\"report\": no majority of nodes after 10.1 s: "
    );
    assert_eq!(
        format!("{err:?}"),
        "NoQuorum { name: \"report\", nodes: [], waited: 10.065228s }"
    );
    assert_eq!(
        format!("{:?} {}", LostReason::Gone, LostReason::Gone),
        "Gone lock lost: too many nodes no longer hold it"
    );
    let lost = Lost {
        name: name(),
        reason: LostReason::Gone,
    };
    assert_eq!(
        format!("{lost:?}: {lost}"),
        "Lost { name: \"report\", reason: Gone }: \
         \"report\": lock lost: too many nodes no longer hold it"
    );
}

#[test]
fn build_errors_have_the_allowed_range() {
    let err = LockManager::builder(["10.0.0.1"])
        .ttl(Duration::from_millis(5))
        .build()
        .unwrap_err();
    assert_eq!(
        err.to_string(),
        "cannot build the lock manager: \
         node 0: not a URL: expected redis://[user:password@]host[:port][/database] or redis+unix:///path; \
         ttl is 5 ms: allowed are 100 ms to 3600 s",
    );
}

#[test]
fn durations_in_errors_are_numbers_with_a_unit() {
    let (odd, ttl) = (Duration::from_nanos(3_000_123_456), Duration::from_secs(10));
    assert_eq!(
        AcquireError::Busy {
            name: name(),
            waited: odd
        }
        .to_string(),
        "\"report\": busy: this process has more calls under way than the nodes answer in time (waited 3.0 s): use fewer threads, or \
         wait longer",
    );
    assert_eq!(
        AcquireError::TooLate {
            name: name(),
            took: odd,
            ttl
        }
        .to_string(),
        "\"report\": granted too late: the round took 3.0 s of a ttl of 10 s; the nodes or this machine are too slow",
    );
    let builder =
        LockManager::builder("redis://127.0.0.1").response_timeout(Duration::from_secs(1));
    let with_ttl = |millis| builder.clone().ttl(Duration::from_millis(millis)).build();
    assert!(with_ttl(4_000).is_ok());
    assert_eq!(
        with_ttl(3_999).unwrap_err().problems()[0].to_string(),
        "ttl is 3.999 s: with a response timeout of 1 s it must be at least 4 s, \
         so that a renewal can be tried again before the lock is lost",
    );
    let held = NodeAnswer::Held {
        left: Some(Duration::from_micros(119_999)),
        holder: None,
        name: None,
    };
    assert_eq!(held.to_string(), "held by another client, 120.0 ms left");
    let of_several = NodeAnswer::Held {
        left: None,
        holder: None,
        name: Some("account:9".into()),
    };
    assert_eq!(
        of_several.to_string(),
        "account:9 is held by another client, no expiry"
    );
    let held = NodeAnswer::Held {
        left: None,
        holder: Some("web-3/4711".into()),
        name: None,
    };
    assert_eq!(held.to_string(), "held by web-3/4711, no expiry");
}

#[test]
fn a_held_error_has_the_holder_and_a_remedy_for_own_holds() {
    let held = |by| {
        AcquireError::Held {
            name: name(),
            by,
            nodes: vec![],
            waited: Duration::from_secs(3),
        }
        .to_string()
    };
    assert_eq!(
        held(HeldBy::Other),
        "\"report\": held by someone else (waited 3.0 s): other calls of this process came first"
    );
    assert_eq!(
        held(HeldBy::ThisProcess),
        "\"report\": held by this process, by another thread (waited 3.0 s)"
    );
    assert_eq!(
        held(HeldBy::ThisThread),
        "\"report\": held by this process, taken by this thread (waited 3.0 s): drop its guard first",
    );
}

#[test]
fn a_hold_lost_error_has_the_reason_and_a_remedy() {
    assert_eq!(
        AcquireError::HoldLost {
            lost: Lost {
                name: name(),
                reason: LostReason::Gone
            }
        }
        .to_string(),
        "\"report\": lock lost: too many nodes no longer hold it; \
         drop the guards of this thread first",
    );
}

#[test]
fn a_strict_refusal_has_the_text_of_its_finding() {
    let finding = NodeFinding::OtherNodes { there: 3, here: 5 };
    let said = "other programs have 3 servers and this one has 5: two programs can hold one lock; \
                give all programs the same servers, and add or remove one server per deployment";
    assert_eq!(finding.to_string(), said);
    assert_eq!(
        NodeFailure::Disqualified { finding }.to_string(),
        format!("{said} (refused by Builder::strict)")
    );
    assert_eq!(
        NodeFinding::Promoted.to_string(),
        "was a replica and has been promoted, so locks of the moment before may be missing; give the address of a server \
         that never was a replica",
    );
}
