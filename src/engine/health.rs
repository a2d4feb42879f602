//! The health check: every node is asked, and what is wrong with it is reported.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::cluster::Cluster;
use crate::engine::nodes::node::Node;
use crate::engine::round::ask::{self, Asked};
use crate::engine::shared::Shared;
use crate::error::{NodeAccess, NodeCheck, NodeFailure, NodeFinding, Quarantine};
use crate::ids::{NodeId, NodeSet};
use crate::time::{self, Moment, Tick};
use crate::wire::{self, Command, Greeted};

/// So often nodes are asked again: with the ids that the others have shown, to make sure of what they show then, and once more
/// if one of them turns out to be another meanwhile.
const ROUNDS: usize = 3;

/// A smaller difference of clocks is not reported.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);

impl Shared {
    /// Asks every node for a sign of life, connecting where that has not been done, and says what was found. Waits for all
    /// of them.
    pub(crate) fn check_nodes(&self) -> Vec<NodeCheck> {
        let nodes = self.fanout.nodes();
        let deadline = self.fanout.deadline(time::tick());
        let ask = || self.ask(Command::time(), None, deadline);
        self.fanout.all().iter().for_each(|it| it.tell_again());
        let mut failures = ask();
        self.ask_lanes(&mut failures);
        for _ in 0..ROUNDS {
            // When all have been met they can be asked who uses them together with others.
            let all = self.fanout.all();
            let behind: Vec<_> = all.iter().filter(|it| it.is_up() && it.is_to_be_told()).collect();
            if !behind.is_empty() {
                behind.iter().for_each(|it| it.tell_again());
                ask();
            }
        }
        let row = |(node, failure): (&Arc<Node>, _)| NodeCheck {
            longest_quarantine: self.fanout.records.shown_by(node.id),
            ..match self.fanout.cluster(node.id) {
                None => check(node, failure, self.fanout.double_of(node.id)),
                Some(cluster) => self.check_cluster(node, cluster, failure),
            }
        };
        let mut rows: Vec<_> = nodes.iter().zip(failures).map(row).collect();
        self.measure(&mut rows);
        rows
    }

    /// Asks each master of the nodes that are clusters.
    fn ask_lanes(&self, failures: &mut [Option<NodeFailure>]) {
        let lanes = |node: &NodeId| self.fanout.cluster(*node).map_or(0, |it| it.serving().len());
        let most = self.fanout.ids().map(|it| lanes(&it)).max().unwrap_or(0);
        let command = |lane| {
            let to = Some(self.fanout.ids().filter(|it| lane < lanes(it)).collect());
            Asked { command: Command::time(), to, lane: Some(lane) }
        };
        for answers in ask::ask_many(&self.fanout, (0..most).map(command), self.fanout.deadline(time::tick())) {
            for ((node, failure), (answer, _)) in self.fanout.ids().zip(&mut *failures).zip(answers) {
                if self.fanout.cluster(node).is_some() && failure.is_none() {
                    *failure = answer.err().filter(|it| *it != NodeFailure::TimedOut);
                }
            }
        }
    }

    /// What is found of a cluster: what is found of any of its masters, and of all of them together.
    fn check_cluster(&self, node: &Node, cluster: &Cluster, failure: Option<NodeFailure>) -> NodeCheck {
        let double = self.fanout.double_of(node.id);
        let mut rows: Vec<_> = cluster.serving().iter().map(|it| check(it, None, double)).collect();
        let failure = failure.or_else(|| rows.iter_mut().find_map(|it| it.failure.take()));
        let mut findings = Vec::new();
        for finding in rows.iter_mut().flat_map(|it| std::mem::take(&mut it.findings)) {
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
        let count = cluster.not_served();
        findings.extend((count != 0).then_some(NodeFinding::SlotsNotServed { count }));
        match rows.into_iter().next() {
            Some(first) => NodeCheck { address: Arc::clone(&node.address), failure, findings, ..first },
            None => row(node, failure, findings),
        }
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
        let failed = self.vouch_for(new);
        let mut rows = self.check_nodes();
        for (row, failed) in rows.iter_mut().zip(failed) {
            if new.contains(row.node) && failed.is_some() {
                row.failure = failed;
            }
        }
        rows
    }

    fn vouch_for(&self, new: NodeSet) -> Vec<Option<NodeFailure>> {
        // A command for each server: no two may have a record of the same edition.
        let of_node = |node: NodeId| -> Vec<_> {
            let ask = |lane, command| Asked { command, to: Some(NodeSet::from_iter([node])), lane };
            match self.fanout.cluster(node) {
                Some(cluster) => (0..).zip(cluster.vouch()).map(|(lane, it)| ask(Some(lane), it)).collect(),
                None => vec![ask(None, self.fanout.records.greet(Greeted::Server { look: false, vouch: true }, None))],
            }
        };
        let nodes = self.fanout.ids().filter(|it| new.contains(*it));
        let asked: Vec<_> = nodes.flat_map(|node| of_node(node).into_iter().map(move |it| (node, it))).collect();
        let (nodes, asked): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let answers = ask::ask_many(&self.fanout, asked, self.fanout.deadline(time::tick()));
        let mut failed = vec![None; self.fanout.len()];
        for (node, mut answers) in nodes.into_iter().zip(answers) {
            let failure = answers.drain(..).nth(node.index()).and_then(|it| it.0.err());
            if let Some(place) = failed.get_mut(node.index()) {
                *place = failure.or(place.take());
            }
            if let Some(cluster) = self.fanout.cluster(node) {
                cluster.doubt_all();
            }
        }
        failed
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
    let quarantine = node.quarantine_left(time::tick());
    let failure = failure.or_else(|| node.misfit());
    let failure = failure.or_else(|| quarantine.map(|(left, why)| NodeFailure::Quarantined { left, why }));
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
