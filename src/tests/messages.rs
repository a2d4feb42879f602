//! Every message of every error is one line, without a full stop, in words.

use std::fmt;
use std::time::Duration;

use devnodes::debug_form;

use crate::error::*;
use crate::ids::{LockName, NodeId};

const SECOND: Duration = Duration::from_secs(1);

/// One value of each variant, as many as `source` has texts of `enum name`.
fn all<T: fmt::Display + fmt::Debug>(source: &str, name: &str, values: Vec<T>) -> Vec<String> {
    let (_, body) = source.split_once(&format!("pub enum {name} {{")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let mut variants: Vec<_> = values
        .iter()
        .map(|it| {
            format!("{it:?}")
                .split([' ', '('])
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    variants.sort();
    variants.dedup();
    assert_eq!(
        variants.len(),
        body.matches("#[error(").count(),
        "{name} has {variants:?}"
    );
    values.iter().map(T::to_string).collect()
}

fn reason() -> String {
    "connection refused".to_owned()
}

fn failures() -> Vec<NodeFailure> {
    let finding = || NodeFinding::HasReplicas { count: 1 };
    let differs = |on_server| NodeFailure::QuarantineDiffers { on_server };
    let quarantined = |why| NodeFailure::Quarantined { left: SECOND, why };
    vec![
        NodeFailure::TimedOut,
        NodeFailure::Stalled,
        NodeFailure::Connect { reason: reason() },
        NodeFailure::Disconnected { reason: reason() },
        NodeFailure::Tls(TlsFailure::NotTls),
        NodeFailure::WRONG_PASSWORD,
        NodeFailure::NO_PASSWORD,
        NodeFailure::Loading,
        NodeFailure::SENTINEL,
        NodeFailure::CLUSTER_NODE,
        NodeFailure::NO_CLUSTER,
        NodeFailure::MULTI_MASTER,
        NodeFailure::Replica,
        quarantined(QuarantineReason::New),
        differs(true),
        differs(false),
        NodeFailure::MaxTtl {
            there: SECOND,
            here: SECOND.saturating_mul(2),
        },
        NodeFailure::ClockBehind,
        NodeFailure::Disqualified { finding: finding() },
        NodeFailure::WritesRefused {
            reason: reason().into(),
        },
        NodeFailure::Busy {
            reason: reason().into(),
        },
        NodeFailure::UNCONFIRMED,
        NodeFailure::SlotNotServed {
            message: "MOVED 3999 127.0.0.1:6381".to_owned(),
        },
        NodeFailure::KeyInUse {
            name: None,
            what: NodeFailure::ANOTHER_TYPE,
        },
        NodeFailure::KeyInUse {
            name: Some("it's".into()),
            what: NodeFailure::BAD_COUNTER,
        },
        NodeFailure::SameServer {
            other: NodeId::new(1),
        },
        NodeFailure::of_another_command(),
        NodeFailure::Refused {
            message: "ERR unknown command 'SCRIPT'".to_owned(),
        },
        NodeFailure::ShutDown,
        NodeFailure::Internal,
    ]
}

fn tls_failures() -> Vec<TlsFailure> {
    let alert = || "unknown ca".to_owned();
    let mismatch = |presented: &str| TlsFailure::NameMismatch {
        expected: "127.0.0.1".into(),
        presented: presented.to_owned(),
    };
    vec![
        TlsFailure::NotTls,
        TlsFailure::SpeaksTls,
        TlsFailure::NoAnswer,
        TlsFailure::Closed { reason: reason() },
        TlsFailure::Expired,
        TlsFailure::NotYetValid,
        TlsFailure::UnknownIssuer,
        mismatch(""),
        mismatch("DNS:127.0.0.1"),
        TlsFailure::BadCertificate { reason: reason() },
        TlsFailure::CertificateRequired,
        TlsFailure::CertificateRefused { alert: alert() },
        TlsFailure::Alert { alert: alert() },
        TlsFailure::OwnFiles { reason: reason() },
        TlsFailure::Protocol { reason: reason() },
    ]
}

fn findings() -> Vec<NodeFinding> {
    let differs = |there| NodeFinding::OtherNodes { there, here: 3 };
    let clock = |ahead| NodeFinding::ClockDiffers { by: SECOND, ahead };
    vec![
        NodeFinding::WouldEvict {
            policy: "allkeys-lru".to_owned(),
        },
        NodeFinding::Promoted,
        NodeFinding::HasReplicas { count: 1 },
        NodeFinding::Unverifiable,
        differs(4),
        differs(5),
        clock(true),
        clock(false),
        NodeFinding::Proxied,
        NodeFinding::NoNotices,
        NodeFinding::NoReaders {
            reason: "not permitted: 'zscore'; see the ACL line in the guide".into(),
        },
    ]
}

fn lost(reason: LostReason) -> Lost {
    Lost {
        name: LockName::new(b"report"),
        reason,
    }
}

fn losses() -> Vec<LostReason> {
    vec![
        LostReason::Expired,
        LostReason::Gone,
        LostReason::NodeClock,
        LostReason::MaxHold,
        LostReason::LeaseOver,
        LostReason::ShutDown,
        LostReason::Forked,
    ]
}

fn problems() -> Vec<BuildProblem> {
    vec![
        BuildProblem::NoNodes,
        BuildProblem::TooManyNodes { count: 65, max: 64 },
        BuildProblem::BadAddress {
            index: 0,
            reason: reason(),
        },
        BuildProblem::DuplicateNode {
            first: 0,
            second: 1,
            address: "10.0.0.1:6379".to_owned(),
        },
        BuildProblem::BadOption {
            option: "ttl",
            reason: "is 5 ms: allowed are 100 ms to 3600 s".to_owned(),
        },
        BuildProblem::Tls { reason: reason() },
        BuildProblem::NoThreads { reason: reason() },
    ]
}

fn rows() -> Vec<NodeReport> {
    let left = Some(SECOND);
    let name = Some("it's".into());
    let answers = [
        NodeAnswer::Granted,
        NodeAnswer::GrantedBehind,
        NodeAnswer::Held {
            left,
            holder: Some("web-3/4711".into()),
            name: name.clone(),
        },
        NodeAnswer::HeldByReaders { left, name },
        NodeAnswer::Extended,
        NodeAnswer::Released,
        NodeAnswer::Gone,
        NodeAnswer::Superseded,
        NodeAnswer::Recorded,
        NodeAnswer::NoRecord { kept: SECOND },
        NodeAnswer::Pending,
        NodeAnswer::NotAsked,
        NodeAnswer::Failed(NodeFailure::Stalled),
    ];
    let row = |(i, answer)| NodeReport {
        node: NodeId::new(i),
        address: "10.0.0.1:6379".into(),
        answer,
    };
    (0..).zip(answers).map(row).collect()
}

fn acquire_errors() -> Vec<AcquireError> {
    let name = || LockName::new(b"report");
    let held = |by, nodes| AcquireError::Held {
        name: name(),
        by,
        nodes,
        waited: SECOND,
    };
    let by = [HeldBy::Other, HeldBy::ThisProcess, HeldBy::ThisThread];
    let mut all: Vec<_> = by.map(|it| held(it, rows())).into();
    all.extend(by.map(|it| held(it, vec![])));
    all.extend(problems().into_iter().map(AcquireError::BadTtl));
    all.extend([
        AcquireError::NoQuorum {
            name: name(),
            nodes: rows(),
            waited: SECOND,
        },
        AcquireError::Busy {
            name: name(),
            waited: SECOND,
        },
        AcquireError::TooLate {
            name: name(),
            took: SECOND,
            ttl: SECOND,
        },
        AcquireError::KeyInUse {
            name: name(),
            nodes: rows(),
        },
        AcquireError::Cancelled,
        AcquireError::ShutDown,
        AcquireError::Forked,
        AcquireError::NameTooLong { len: 9, max: 8 },
        AcquireError::NoNames,
        AcquireError::TooManyNames { count: 9, max: 8 },
        AcquireError::BadPermits { permits: 9, max: 8 },
        AcquireError::NameReserved,
        AcquireError::HoldLost {
            lost: lost(LostReason::Gone),
        },
        AcquireError::ThreadEnding,
        AcquireError::NoRandomness { reason: reason() },
    ]);
    all
}

fn every_message() -> Vec<String> {
    const ERROR: &str = include_str!("../error.rs");
    const NODE: &str = include_str!("../error/node_failure.rs");
    const TLS: &str = include_str!("../error/tls_failure.rs");
    const FINDING: &str = include_str!("../error/finding.rs");
    let losses = || losses().into_iter();
    let mut extend: Vec<_> = losses().map(|it| ExtendError::Lost(lost(it))).collect();
    extend.extend(problems().into_iter().map(ExtendError::BadTtl));
    extend.push(ExtendError::NoQuorum { nodes: rows() });
    let mut release: Vec<_> = losses().map(|it| ReleaseError::Lost(lost(it))).collect();
    release.push(ReleaseError::NotConfirmed {
        confirmed: 1,
        nodes: rows(),
    });
    let quarantines = vec![
        QuarantineReason::New,
        QuarantineReason::Restarted,
        QuarantineReason::Emptied,
        QuarantineReason::ClockStep,
        QuarantineReason::Unverifiable,
    ];
    [
        all(ERROR, "BuildProblem", problems()),
        all(ERROR, "AcquireError", acquire_errors()),
        all(ERROR, "LostReason", losses().collect()),
        all(ERROR, "ExtendError", extend),
        all(ERROR, "ReleaseError", release),
        all(NODE, "QuarantineReason", quarantines),
        all(NODE, "NodeFailure", failures()),
        all(TLS, "TlsFailure", tls_failures()),
        all(FINDING, "NodeFinding", findings()),
        rows().iter().map(|it| it.answer.to_string()).collect(),
        vec![
            BuildError {
                problems: problems(),
            }
            .to_string(),
        ],
    ]
    .concat()
}

#[test]
fn every_message_is_one_line_of_words_without_a_full_stop() {
    for message in every_message() {
        assert_eq!(debug_form(&message), None, "{message}");
        assert!(
            4 < message.len() && !message.ends_with('.') && !message.contains('\n'),
            "{message}"
        );
    }
}
