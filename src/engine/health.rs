//! The health check: every node is asked, and what is wrong with it is reported.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::node::Node;
use crate::engine::round::ask;
use crate::engine::shared::Shared;
use crate::error::{NodeAccess, NodeCheck, NodeFailure, NodeFinding, Quarantine};
use crate::ids::{NodeId, NodeSet};
use crate::time::{self, Moment, Tick};
use crate::wire::{self, Command};

/// So often nodes are asked again: with what the others have said, to make sure of what they say then, and once more if one of
/// them turns out to be another meanwhile.
const MEETINGS: usize = 3;

/// A smaller difference of clocks is not reported.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);

impl Shared {
    /// Asks every node for a sign of life, connecting where that has not been done, and says what was found. Waits for all
    /// of them.
    pub(crate) fn check_nodes(&self) -> Vec<NodeCheck> {
        let nodes = self.fanout.nodes();
        let deadline = self.fanout.deadline(time::tick());
        let ask = || self.ask(Command::time(), None, deadline);
        nodes.iter().for_each(|it| it.meet_again());
        let failures = ask();
        for _ in 0..MEETINGS {
            // When all have been met they can be asked who uses them together with others.
            let behind: Vec<_> = nodes.iter().filter(|it| it.is_up() && it.is_to_be_met()).collect();
            if !behind.is_empty() {
                behind.iter().for_each(|it| it.meet_again());
                ask();
            }
        }
        let row = |(node, failure): (&Arc<Node>, _)| NodeCheck {
            longest_quarantine: self.fanout.quarantine_told_by(node.id),
            ..check(node, failure, self.fanout.double_of(node.id))
        };
        let mut rows: Vec<_> = nodes.iter().zip(failures).map(row).collect();
        self.measure(&mut rows);
        rows
    }

    /// How far away the nodes are that are connected. With a deadline of its own, without those that are silent: they have used
    /// up the time of the first question.
    fn measure(&self, rows: &mut [NodeCheck]) {
        let is_silent = |it: &NodeCheck| matches!(it.failure, Some(NodeFailure::TimedOut | NodeFailure::Stalled));
        let nodes = self.fanout.nodes().iter().zip(rows.iter());
        let up = nodes.filter(|(node, row)| node.is_up() && !is_silent(row)).map(|(it, _)| it.id);
        let up = up.collect::<NodeSet>();
        if up == NodeSet::default() {
            return;
        }
        // Alone, and behind everything else: nothing of the connecting is in it.
        let times = ask::ask_timed(&self.fanout, Command::time(), Some(up), self.fanout.deadline(time::tick()));
        for (row, (answer, took)) in rows.iter_mut().zip(times) {
            row.round_trip = took.filter(|_| answer.is_ok() && up.contains(row.node));
        }
    }

    /// Asks every node which commands its access list forbids, and waits for all of them.
    pub(crate) fn check_access(&self) -> Vec<NodeAccess> {
        let answers = ask::ask(&self.fanout, wire::probe(), None, self.fanout.deadline(time::tick()));
        let row = |(node, answer): (&Arc<Node>, Result<Answer, NodeFailure>)| NodeAccess {
            node: node.id,
            address: Arc::clone(&node.address),
            forbidden: answer.and_then(|it| match it {
                Answer::Forbidden(commands) => Ok(commands),
                _ => Err(NodeFailure::Protocol { reason: "an answer to another command".to_owned() }),
            }),
        };
        self.fanout.nodes().iter().zip(answers).map(row).collect()
    }

    /// Why each node has not answered as it should.
    fn ask(&self, command: Command, to: Option<NodeSet>, deadline: Tick) -> Vec<Option<NodeFailure>> {
        ask::ask(&self.fanout, command, to, deadline).into_iter().map(Result::err).collect()
    }

    /// Says of every node that is new, as far as is known, that it has forgotten nothing; then checks all of them.
    /// The failure of a node that could not be told comes first.
    pub(crate) fn vouch(&self) -> Vec<NodeCheck> {
        let is_new = |it: &NodeCheck| {
            matches!(it.failure, Some(NodeFailure::Quarantined { why: Quarantine::New, .. })).then_some(it.node)
        };
        let new = self.check_nodes().iter().filter_map(is_new).collect::<NodeSet>();
        if new == NodeSet::default() {
            return self.check_nodes();
        }
        let failed = self.ask(wire::vouch(), Some(new), self.fanout.deadline(time::tick()));
        let mut rows = self.check_nodes();
        for (row, failed) in rows.iter_mut().zip(failed) {
            if new.contains(row.node) && failed.is_some() {
                row.failure = failed;
            }
        }
        rows
    }

    /// The same, where no node can be asked.
    pub(crate) fn check_nothing(&self) -> Vec<NodeCheck> {
        let row = |node: &Arc<Node>| row(node, Some(NodeFailure::ShutDown), Vec::new());
        self.fanout.nodes().iter().map(row).collect()
    }
}

fn check(node: &Node, failure: Option<NodeFailure>, double: Option<NodeId>) -> NodeCheck {
    let mut findings = Vec::new();
    let (mut version, mut uptime, mut append_only) = (None, None, None);
    let left = node.status.quarantine_left(time::tick());
    let failure = failure.or_else(|| {
        (!left.is_zero()).then_some(NodeFailure::Quarantined { left, why: node.status.quarantine_reason() })
    });
    if node.is_up()
        && let Some(server_info) = node.status.server_info()
    {
        findings.extend(server_info.findings());
        findings.extend(double.map(|other| NodeFinding::SameServer { other }));
        findings.extend(node.other_users.finding());
        findings.extend(clock_differs(node));
        let said = node.status.members().failing;
        findings.extend((!said.is_empty()).then_some(NodeFinding::MembersFail { said }));
        uptime = server_info.uptime.and_then(|it| u64::try_from(it).ok()).map(Duration::from_secs);
        append_only = server_info.append_only;
        version = server_info.version.map(Arc::from);
    }
    NodeCheck { version, uptime, append_only, ..row(node, failure, findings) }
}

fn row(node: &Node, failure: Option<NodeFailure>, findings: Vec<NodeFinding>) -> NodeCheck {
    let address = Arc::clone(&node.address);
    NodeCheck {
        node: node.id,
        address,
        failure,
        findings,
        round_trip: None,
        version: None,
        uptime: None,
        append_only: None,
        members: node.status.members().all,
        longest_quarantine: None,
    }
}

fn clock_differs(node: &Node) -> Option<NodeFinding> {
    let now = Moment::now();
    let (low, high) = node.status.clock_shows(now)?;
    let wall = now.wall_micros();
    // Zero as long as ours lies between what is possible.
    let by = Duration::from_micros(wall.abs_diff(wall.clamp(low, high.max(low))));
    (CLOCKS_DIFFER < by).then_some(NodeFinding::ClockDiffers { by, ahead: wall < low })
}
