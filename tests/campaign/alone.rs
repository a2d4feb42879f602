//! Each fault alone. Long: see the [campaign's](crate) header.

use crate::conductor::Plan;
use crate::faults::{ClientFault, NodeFault};

/// How long each lasts, if nothing else is asked for.
const SECONDS: f64 = 3.0;

fn node(fault: NodeFault) {
    // Of five nodes two can be in trouble at once.
    let plan = Plan {
        hands: 2,
        node_faults: vec![fault],
        ..Plan::new(&fault.name(), 5)
    };
    plan.run_safely(SECONDS, true);
}

fn client(fault: ClientFault) {
    let plan = Plan {
        client_faults: vec![fault],
        ..Plan::new(&fault.name(), 3)
    };
    plan.run_safely(SECONDS, true);
}

/// A test for each row.
macro_rules! alone {
    ($($test:ident: $($run:ident($fault:expr)),+;)+) => {
        $(#[test] fn $test() { $($run($fault);)+ })+
    };
}

alone! {
    nodes_that_are_killed_and_restart_empty: node(NodeFault::KillEmpty);
    nodes_that_are_killed_and_restart_with_their_data: node(NodeFault::KillKept);
    nodes_that_are_paused: node(NodeFault::Pause);
    nodes_that_are_flushed: node(NodeFault::Flush);
    nodes_that_are_out_of_memory: node(NodeFault::OutOfMemory);
    nodes_with_changed_passwords: node(NodeFault::Password);
    nodes_with_clocks_stepped_forward: node(NodeFault::ClockForward);
    nodes_with_clocks_stepped_back: node(NodeFault::ClockBack);
    nodes_with_clock_rates_within_the_margin: node(NodeFault::ClockRate);
    links_that_are_cut: node(NodeFault::Cut);
    links_that_drop_all_bytes: node(NodeFault::BlackHole);
    links_that_are_slow: node(NodeFault::Delay), node(NodeFault::Trickle);
    links_with_late_commands: node(NodeFault::LateRequests);
    links_with_late_answers: node(NodeFault::LateReplies);
    nodes_that_lose_their_scripts: node(NodeFault::ScriptFlush);
    nodes_with_denied_hand_overs: node(NodeFault::Forbid);
    clients_that_are_stopped_while_they_acquire: client(ClientFault::StopInAcquire);
    clients_that_are_stopped_while_they_renew: client(ClientFault::StopInRenewal);
    clients_that_are_stopped_while_they_release: client(ClientFault::StopInRelease);
    clients_that_are_killed: client(ClientFault::Kill);
}

#[test]
fn c6_clients_with_stepped_wall_clocks() {
    client(ClientFault::ClockSteps);
}

#[test]
fn no_fault_on_three_four_and_five_nodes() {
    for nodes in [3, 4, 5] {
        Plan::new("none", nodes).run_safely(SECONDS / 3.0, true);
    }
}
