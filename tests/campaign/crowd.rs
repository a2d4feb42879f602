//! Many clients on two names: each lock is handed over to the next of them.

use crate::conductor::Plan;
use crate::faults::{ClientFault, NodeFault};
use crate::support::ms;
use crate::workloads::Workload;

/// What ends a hand-over halfway: who frees the lock, who gets it or what lies between them is gone.
fn crowd(name: &str, clients: u64, works: &[Workload], old: bool) {
    let plan = Plan {
        clients,
        old,
        ttl: ms(700),
        hands: 2,
        works: works.to_vec(),
        node_faults: vec![
            NodeFault::Cut,
            NodeFault::Forbid,
            NodeFault::KillEmpty,
            NodeFault::KillKept,
            NodeFault::LateReplies,
            NodeFault::ScriptFlush,
        ],
        client_faults: vec![
            ClientFault::StopInAcquire,
            ClientFault::StopInRenewal,
            ClientFault::StopInRelease,
            ClientFault::Kill,
        ],
        ..Plan::new(name, 5)
    };
    plan.run_safely(12.0, true);
}

#[test]
fn thirty_clients_on_two_names() {
    crowd("crowd", 30, &[Workload::Registers], false);
}

#[test]
fn twelve_clients_on_two_permits() {
    crowd("crowd of permits", 12, &[Workload::Permits], false);
}

#[test]
fn eight_clients_that_poll_on_two_names() {
    let works = [Workload::Registers, Workload::Permits];
    crowd("crowd that polls", 8, &works, true);
}

#[test]
fn sixteen_clients_on_healthy_servers() {
    let plan = Plan {
        clients: 16,
        ttl: ms(2_000),
        works: vec![Workload::Permits, Workload::Registers],
        ..Plan::new("crowd on well servers", 3)
    };
    plan.run_safely(4.0, true);
}
