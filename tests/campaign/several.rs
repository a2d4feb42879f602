//! Nodes that are several servers each. Long: see the [campaign's](crate) header. That the campaign sees what is wrong is shown by
//! `cargo test --test campaign several -- --ignored`.

use std::time::Duration;

use crate::conductor::Plan;
use crate::faults::{ClientFault, NodeFault};
use crate::judge_tests::run_until;
use crate::nodes::Kind;
use crate::options::seconds;

/// Three nodes, of which most forget at once what they have granted.
fn plan(name: &str, kind: Kind) -> Plan {
    let (ttl, faults) = match kind {
        // Sentinels take more than a second to promote one.
        Kind::Groups => (Duration::from_secs(3), vec![NodeFault::FailOver]),
        _ => (Duration::from_secs(2), NodeFault::OF_CLUSTERS.to_vec()),
    };
    Plan {
        kind,
        ttl,
        node_faults: faults,
        ..Plan::new(name, 3)
    }
}

fn campaign(name: &str, kind: Kind) {
    let plan = Plan {
        client_faults: ClientFault::ALL.to_vec(),
        ..plan(name, kind)
    };
    plan.run_safely(20.0, true);
}

#[test]
fn failovers_of_groups() {
    campaign("groups", Kind::Groups);
}

#[test]
fn all_faults_of_clusters() {
    campaign("clusters", Kind::Clusters);
}

/// Without quarantine, a server votes at once that has taken another's place.
#[test]
#[ignore = "minutes, and chance decides how many: for changes of the campaign"]
fn servers_in_place_of_others_without_quarantine_are_detected() {
    for (name, kind, fault) in [
        ("promoted in groups", Kind::Groups, NodeFault::FailOver),
        ("promoted in clusters", Kind::Clusters, NodeFault::TakeOver),
        ("slots taken", Kind::Clusters, NodeFault::LoseSlot),
    ] {
        let planted = Plan {
            secretive: true,
            lasts: seconds(12.0, false).expect("a length of its own"),
            node_faults: vec![fault],
            ..plan(&format!("planted: {name}"), kind)
        };

        let report = run_until("overlap", planted);

        assert_eq!(report.objections_to("stale-write"), 0, "{report}");
    }
}
