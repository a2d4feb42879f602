//! Everything at once.

use std::time::Duration;

use devnodes::Clock;

use crate::conductor::Plan;
use crate::faults::{ClientFault, NodeFault};
use crate::options::seconds;
use crate::support::ms;
use crate::workloads::Workload;

/// Long enough to do everything to clients that can be done to them.
const TO_SEE_ALL: Duration = Duration::from_secs(25);

/// With steps of clients' wall clocks beside the loss of counters: tokens go by the nodes' clocks.
fn everything(works: &[Workload], nodes: usize, links: bool, usual: f64, long: bool) -> Option<()> {
    let lasts = seconds(usual, long)?;
    let plan = Plan::new("mixed", nodes);
    let plan = Plan {
        hands: nodes / 2,
        ttl: ms([500, 700, 1_000][usize::try_from(plan.seed % 3).unwrap()]),
        node_faults: NodeFault::ALL
            .into_iter()
            .chain(NodeFault::OF_LINKS.into_iter().filter(|_| links))
            .collect(),
        client_faults: ClientFault::ALL.to_vec(),
        works: works.to_vec(),
        ..plan
    };
    let outcome = plan.run_safely(usual, long)?;
    if TO_SEE_ALL <= lasts && Clock::available() {
        // A client is stopped or killed in something that it does: where none is, hardly anybody had a lock.
        for fault in ClientFault::ALL {
            assert!(0 < outcome.done(&fault.name()), "never done: {fault:?}");
        }
    }
    // Otherwise their locks were mutexes.
    for (work, what) in [
        (Workload::Readers, "readers-together"),
        (Workload::Permits, "permits-together"),
    ] {
        let is_expected = TO_SEE_ALL <= lasts && works.contains(&work);
        assert!(!is_expected || 0 < outcome.report.count(what), "no {what}");
    }
    Some(())
}

#[test]
fn everything_at_once_for_a_short_time() {
    everything(&Workload::ALL, 5, false, 4.0, false);
}

#[test]
fn everything_at_once_on_three_nodes() {
    everything(&Workload::ALL, 3, false, 12.0, true);
}

#[test]
fn everything_at_once_on_five_nodes() {
    everything(&Workload::ALL, 5, false, 20.0, true);
}

#[test]
fn everything_at_once_over_bad_links() {
    everything(&Workload::ALL, 5, true, 12.0, true);
}

#[test]
fn everything_at_once_with_one_kind_of_lock() {
    for work in [Workload::Readers, Workload::Transfers, Workload::Permits] {
        everything(&[work], 5, false, 12.0, true);
    }
}
