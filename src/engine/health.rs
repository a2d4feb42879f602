//! The health check: every node is asked, and what is wrong with it is reported.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::server::Server;
use crate::engine::round::ask::{self, NodeQuery};
use crate::engine::shared::Shared;
use crate::error::{NodeCheck, NodeFailure, NodeFinding, QuarantineReason};
use crate::ids::{NodeId, NodeSet};
use crate::time::{self, Moment};
use crate::wire::{Command, Greeted};

/// A smaller difference of clocks is not reported.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);

impl Shared {
    /// Asks every node whether it takes writes, connecting where that has not been done, and says what was found. Waits for
    /// all of them.
    pub(crate) fn check_nodes(&self) -> Vec<NodeCheck> {
        let nodes = &self.fanout.nodes;
        // A server that was emptied since it was last asked for a lock shows that here.
        let look = self.fanout.records.greet(Greeted::Server {
            look: true,
            vouch: false,
        });
        let deadline = self.fanout.deadline(time::tick());
        let mut failures = vec![None; nodes.len()];
        let query = |command| NodeQuery { command, to: None };
        for answers in ask::ask_many(&self.fanout, [look, Command::check()].map(query), deadline) {
            for (failure, (answer, _)) in failures.iter_mut().zip(answers) {
                *failure = failure.take().or(answer.err());
            }
        }
        let mut rows: Vec<_> = nodes
            .iter()
            .zip(failures)
            .map(|(node, failure)| {
                let found = check(node, self.fanout.double_of(node.id));
                NodeCheck {
                    failure: failure.or(found.failure),
                    longest_quarantine: self.fanout.records.shown_by(node.id),
                    ..found
                }
            })
            .collect();
        self.measure(&mut rows);
        rows
    }

    /// How far away the nodes are that are connected. With a deadline of its own, without those that are silent: they have used
    /// up the time of the first question.
    fn measure(&self, rows: &mut [NodeCheck]) {
        let is_silent = |it: &NodeCheck| {
            matches!(
                it.failure,
                Some(NodeFailure::TimedOut | NodeFailure::Stalled)
            )
        };
        let nodes = self.fanout.nodes.iter().zip(rows.iter());
        let up = nodes
            .filter(|(node, row)| node.standing.is_up() && !is_silent(row))
            .map(|(it, _)| it.id);
        let up = up.collect::<NodeSet>();
        if up == NodeSet::default() {
            return;
        }
        // Alone, and behind everything else: nothing of the connecting is in it.
        let times = ask::ask_timed(
            &self.fanout,
            Command::time(),
            Some(up),
            self.fanout.deadline(time::tick()),
        );
        for (row, (answer, took)) in rows.iter_mut().zip(times) {
            row.round_trip = took.filter(|_| answer.is_ok() && up.contains(row.node));
        }
    }

    /// Says of every node that is new, as far as is known, that it has forgotten nothing; then checks all of them.
    /// The failure of a node that could not be reached comes first.
    pub(crate) fn vouch(&self) -> Vec<NodeCheck> {
        let is_new = |it: &NodeCheck| {
            matches!(
                it.failure,
                Some(NodeFailure::Quarantined {
                    why: QuarantineReason::New,
                    ..
                })
            )
            .then_some(it.node)
        };
        let new = self
            .check_nodes()
            .iter()
            .filter_map(is_new)
            .collect::<NodeSet>();
        if new == NodeSet::default() {
            return self.check_nodes();
        }
        let failed = self.tell_nodes(new, |node| node.records.vouch());
        let mut rows = self.check_nodes();
        for (row, failed) in rows.iter_mut().zip(failed) {
            if new.contains(row.node) && failed.is_some() {
                row.failure = failed;
            }
        }
        rows
    }

    /// Sends each of these nodes a command of its own, and says why it could not be reached.
    fn tell_nodes(
        &self,
        to: NodeSet,
        command: impl Fn(&Server) -> Command,
    ) -> Vec<Option<NodeFailure>> {
        // No two may have a record of the same edition.
        let nodes = self.fanout.nodes.iter().filter(|it| to.contains(it.id));
        let asked = nodes.map(|node| {
            let query = NodeQuery {
                command: command(node),
                to: Some([node.id].into_iter().collect()),
            };
            (node.id, query)
        });
        let (nodes, asked): (Vec<_>, Vec<_>) = asked.unzip();
        let answers = ask::ask_many(&self.fanout, asked, self.fanout.deadline(time::tick()));
        let mut failed = vec![None; self.fanout.nodes.len()];
        for (node, answers) in nodes.into_iter().zip(answers) {
            let answer = answers.into_iter().nth(node.index());
            if let Some(place) = failed.get_mut(node.index()) {
                *place = answer.and_then(|(answer, _)| answer.err());
            }
        }
        failed
    }

    /// The same, where no node can be asked.
    pub(crate) fn check_nothing(&self) -> Vec<NodeCheck> {
        let row = |it: &Arc<Server>| row(it.id, &it.address, Some(NodeFailure::ShutDown));
        self.fanout.nodes.iter().map(row).collect()
    }
}

fn check(server: &Server, double: Option<NodeId>) -> NodeCheck {
    let quarantine = || server.status.left(time::tick());
    let quarantined = || quarantine().map(|(left, why)| NodeFailure::Quarantined { left, why });
    let mut row = row(
        server.id,
        &server.address,
        server.misfit().or_else(quarantined),
    );
    if server.standing.is_up()
        && let Some(server_info) = server.status.server_info()
    {
        row.findings.extend(server_info.findings());
        row.findings
            .extend(double.map(|other| NodeFinding::SameServer { other }));
        row.findings.extend(clock_differs(server));
        row.uptime = server_info
            .uptime
            .and_then(|it| u64::try_from(it).ok())
            .map(Duration::from_secs);
        row.append_only = server_info.append_only;
        row.version = server_info.version.map(Arc::from);
    }
    row
}

fn row(node: NodeId, address: &Arc<str>, failure: Option<NodeFailure>) -> NodeCheck {
    NodeCheck {
        node,
        address: Arc::clone(address),
        failure,
        findings: Vec::new(),
        round_trip: None,
        version: None,
        uptime: None,
        append_only: None,
        longest_quarantine: None,
    }
}

fn clock_differs(server: &Server) -> Option<NodeFinding> {
    let now = Moment::now();
    let (low, high) = server.status.clock_shows(now)?;
    let wall = now.wall_micros();
    // Zero as long as ours lies between what is possible.
    let by = Duration::from_micros(wall.abs_diff(wall.clamp(low, high.max(low))));
    (CLOCKS_DIFFER < by).then_some(NodeFinding::ClockDiffers {
        by,
        ahead: wall < low,
    })
}
