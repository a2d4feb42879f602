//! What `build` checks.

use std::sync::Arc;
use std::time::Duration;

use quorlock::error::BuildProblem;
use quorlock::observer::{Event, Observer};
use quorlock::{LockManager, Node};

const NODES: [&str; 3] = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];

#[test]
fn build_names_every_problem_at_once() {
    let err = LockManager::builder([
        "redis://u:secret@host:0",
        "redis://10.0.0.2/1",
        "redis://10.0.0.2:6379/2",
    ])
    .ttl(Duration::from_millis(1))
    .response_timeout(Duration::ZERO)
    .retry_delay(Duration::from_secs(2), Duration::from_secs(1))
    .clock_margin(f64::NAN, Duration::ZERO)
    .max_hold(Duration::ZERO)
    .fencing_ttl(Some(Duration::ZERO))
    .prefix(vec![b'x'; 70_000])
    .build()
    .unwrap_err();

    let named = err.problems().iter().map(|problem| match problem {
        BuildProblem::BadAddress { index, .. } => format!("address {index}"),
        BuildProblem::DuplicateNode { first, second, .. } => format!("{first} and {second}"),
        BuildProblem::BadOption { option, .. } => (*option).to_owned(),
        other => other.to_string(),
    });
    let named: Vec<_> = named.collect();
    for problem in [
        "address 0",
        "1 and 2",
        "ttl",
        "response_timeout",
        "fencing_ttl",
        "retry_delay",
        "clock_margin",
        "prefix",
    ] {
        assert!(named.iter().any(|it| it == problem), "{problem}: {err}");
    }
    assert!(!err.to_string().contains("secret"), "{err}");
    assert_eq!(named.len(), 9, "{err}");
}

#[test]
fn a_list_of_nodes_has_one_to_thirty_one_entries() {
    let build = |count| {
        let nodes = (0..count).map(|it| format!("redis://10.0.0.{it}"));
        LockManager::builder(nodes).build()
    };
    assert_eq!(build(0).unwrap_err().problems(), [BuildProblem::NoNodes]);
    let too_many = BuildProblem::TooManyNodes { count: 40, max: 31 };
    assert_eq!(build(40).unwrap_err().problems(), [too_many]);
    for even in [2, 4] {
        assert!(build(even).is_ok(), "{even} nodes");
    }
}

#[test]
fn a_margin_must_leave_half_of_the_ttl() {
    let builder = |fixed| LockManager::builder(NODES).clock_margin(0.1, fixed);

    let err = builder(Duration::from_secs(5)).build().unwrap_err();
    let problems = err.problems();
    let is_margin = matches!(
        problems,
        [BuildProblem::BadOption {
            option: "clock_margin",
            ..
        }]
    );
    assert!(is_margin, "{err}");
    assert!(builder(Duration::from_secs(1)).build().is_ok());
}

#[test]
fn unlimited_durations_are_refused_without_overflow() {
    let err = LockManager::builder(NODES)
        .ttl(Duration::MAX)
        .response_timeout(Duration::MAX)
        .connect_timeout(Duration::MAX)
        .shutdown_grace(Duration::MAX)
        .retry_delay(Duration::MAX, Duration::MAX)
        .clock_margin(0.5, Duration::MAX)
        .fencing_ttl(Some(Duration::MAX))
        .outage_timeout(Duration::MAX)
        .max_hold(Duration::MAX)
        .build()
        .unwrap_err();

    assert_eq!(err.problems().len(), 7, "{err}");
}

#[test]
fn the_debug_form_of_a_builder_shows_no_password() {
    let builder = LockManager::builder(["redis://ann:secret@10.0.0.1/2", "bad://u:secret@x"]);
    let builder = builder.credentials(Some("zoe-of-the-locks"), "secret");
    let shown = format!("{builder:?}");
    assert!(shown.contains("10.0.0.1:6379"), "{shown}");
    for secret in ["zoe", "secret"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn one_url_several_urls_and_node_values_are_nodes() {
    let text = "redis://10.0.0.1,redis://10.0.0.2";
    let nodes: Vec<Node> = text.split(',').map(Node::url).collect();
    let all = [
        LockManager::builder("redis://10.0.0.1"),
        LockManager::builder(String::from("redis://10.0.0.1")),
        LockManager::builder(Node::url("redis://10.0.0.1")),
        LockManager::builder(text.split(',')),
        LockManager::builder(Node::split_urls(text)),
        LockManager::builder(nodes.clone()),
        LockManager::builder(["redis://10.0.0.1".into(), nodes[1].clone()]),
    ];
    let counts = all.map(|builder| builder.build().unwrap().stats().nodes.len());
    assert_eq!(counts, [1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn the_debug_form_of_a_node_shows_no_password() {
    let node = Node::url("redis+sentinel://:in-url@s1,s2,s3/a?sentinel_password=of-sentinels");
    let node = node
        .credentials(Some("zoe"), "given")
        .sentinel_credentials(None, "given-to-sentinels");
    for text in [
        format!("{node:?}"),
        format!("{:?}", LockManager::builder(node)),
    ] {
        for secret in ["in-url", "given", "of-sentinels"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn an_observer_is_a_closure_or_a_value_or_shared() {
    struct Quiet;
    impl Observer for Quiet {
        fn event(&self, _: &Event) {}
    }
    let shared: Arc<dyn Observer> = Arc::new(Quiet);
    let builder = || LockManager::builder(NODES);
    assert!(builder().observer(|_: &Event| ()).build().is_ok());
    assert!(builder().observer(Quiet).build().is_ok());
    assert!(builder().observer(shared).build().is_ok());
}

/// Only tests of the package have no feature: see CONTRIBUTING.md.
#[cfg(not(feature = "tls"))]
#[test]
fn an_address_with_tls_is_refused_with_the_name_of_the_feature_that_is_missing() {
    for url in ["rediss://u:secret@host", "VALKEYS://host"] {
        let refused = LockManager::builder([url]).build().unwrap_err().to_string();
        assert!(refused.contains("feature `tls`"), "{refused}");
        assert!(!refused.contains("secret"), "{refused}");
    }
}
