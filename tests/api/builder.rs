//! What `build` checks.

use std::sync::Arc;
use std::time::Duration;

use quorlock::error::BuildProblem;
use quorlock::observer::{Event, Observer};
use quorlock::{LockManager, Node};

const NODES: [&str; 3] = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];

#[test]
fn the_defaults_build() {
    assert!(LockManager::builder(NODES).build().is_ok());
}

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

    let is = |it: fn(&BuildProblem) -> bool| err.problems().iter().any(it);
    assert!(
        is(|it| matches!(it, BuildProblem::BadAddress { index: 0, .. })),
        "{err}"
    );
    assert!(
        is(|it| matches!(
            it,
            BuildProblem::DuplicateNode {
                first: 1,
                second: 2,
                ..
            }
        )),
        "{err}"
    );
    let options = err.problems().iter().filter_map(|problem| match problem {
        BuildProblem::BadOption { option, .. } => Some(*option),
        _ => None,
    });
    let options: Vec<_> = options.collect();
    for option in [
        "ttl",
        "response_timeout",
        "fencing_ttl",
        "retry_delay",
        "clock_margin",
        "prefix",
    ] {
        assert!(options.contains(&option), "{option}: {err}");
    }
    assert!(!err.to_string().contains("secret"), "{err}");
    assert_eq!(err.problems().len(), 9, "{err}");
}

#[test]
fn a_list_of_nodes_has_a_sensible_length() {
    let none: [&str; 0] = [];
    assert_eq!(
        LockManager::builder(none).build().unwrap_err().problems(),
        [BuildProblem::NoNodes]
    );

    let many = (0..40).map(|it| format!("redis://10.0.0.{it}"));
    let err = LockManager::builder(many).build().unwrap_err();
    assert_eq!(
        err.problems(),
        [BuildProblem::TooManyNodes { count: 40, max: 31 }]
    );

    for even in [2, 4] {
        let nodes = (0..even).map(|it| format!("redis://10.0.0.{it}"));
        assert!(LockManager::builder(nodes).build().is_ok(), "{even} nodes");
    }
}

#[test]
fn a_ttl_must_leave_time_for_a_second_try() {
    let builder = || LockManager::builder(NODES).response_timeout(Duration::from_secs(1));

    let err = builder()
        .ttl(Duration::from_millis(3_999))
        .build()
        .unwrap_err();
    assert!(
        matches!(
            err.problems(),
            [BuildProblem::BadOption { option: "ttl", .. }]
        ),
        "{err}"
    );
    assert!(builder().ttl(Duration::from_secs(4)).build().is_ok());
}

#[test]
fn a_margin_must_leave_half_of_the_ttl() {
    let builder = |fixed| LockManager::builder(NODES).clock_margin(0.1, fixed);

    let err = builder(Duration::from_secs(5)).build().unwrap_err();
    assert!(
        matches!(
            err.problems(),
            [BuildProblem::BadOption {
                option: "clock_margin",
                ..
            }]
        ),
        "{err}"
    );
    assert!(builder(Duration::from_secs(1)).build().is_ok());
}

#[test]
fn durations_without_end_are_refused_and_never_overflow() {
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
    assert!(!shown.contains("zoe"), "{shown}");
    assert!(
        shown.contains("10.0.0.1:6379") && !shown.contains("secret"),
        "{shown}"
    );
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
        assert!(
            !text.contains("in-url") && !text.contains("given") && !text.contains("of-sentinels"),
            "{text}"
        );
    }
}

#[test]
fn an_observer_is_a_closure_or_a_value_or_shared() {
    struct Quiet;
    impl Observer for Quiet {
        fn event(&self, _: &Event) {}
    }
    let shared: Arc<dyn Observer> = Arc::new(Quiet);
    assert!(
        LockManager::builder(NODES)
            .observer(|_: &Event| ())
            .build()
            .is_ok()
    );
    assert!(LockManager::builder(NODES).observer(Quiet).build().is_ok());
    assert!(LockManager::builder(NODES).observer(shared).build().is_ok());
}
