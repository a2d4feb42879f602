//! The health check of all nodes.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::server::Server;
use crate::engine::round::{NodeQuery, query_many};
use crate::engine::shared::ManagerState;
use crate::error::{NodeCheck, NodeFailure, NodeFinding, QuarantineReason};
use crate::ids::NodeSet;
use crate::logic::lease;
use crate::time::{self, Moment};
use crate::wire::{Command, SyncKind, check};

/// Smallest reported difference of clocks.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);
/// Number of commands of a check that every lock needs: two, and the first ones of [`check`].
const NEEDED: usize = 8;

impl ManagerState {
    /// Tries on every node what locks do, and connects to it first if necessary. Waits for all
    /// nodes.
    pub(crate) fn check_nodes(&self) -> Vec<NodeCheck> {
        let nodes = &self.fanout.nodes;
        // A sync shows a server that was emptied since its last lock, and the time a step of its
        // clock.
        let look = self.fanout.records.rules().sync_record(SyncKind::Look);
        let of_all = [look, Command::time()].into_iter();
        let commands = of_all.chain(check(&self.config.prefix));
        let query = |command| NodeQuery { command, to: None };
        let mut failures = vec![[None, None]; nodes.len()];
        let answers = query_many(&self.fanout, commands.map(query));
        for (number, answers) in answers.into_iter().enumerate() {
            for ([failure, other], (answer, _)) in failures.iter_mut().zip(answers) {
                let failure = if number < NEEDED { failure } else { other };
                *failure = failure.take().or(answer.err());
            }
        }
        let checked = nodes.iter().zip(failures);
        let mut rows: Vec<_> = checked
            .map(|(node, failures)| row_of(node, failures))
            .collect();
        self.measure(&mut rows);
        rows
    }

    /// Measures the round trips to connected nodes. With a deadline of its own, without silent
    /// nodes: they have used up the time of the first command.
    fn measure(&self, rows: &mut [NodeCheck]) {
        let is_silent = |row: &NodeCheck| {
            matches!(
                row.failure,
                Some(NodeFailure::TimedOut | NodeFailure::Stalled)
            )
        };
        let nodes = self.fanout.nodes.iter().zip(rows.iter());
        let up = nodes
            .filter(|(node, row)| node.is_up() && !is_silent(row))
            .map(|(it, _)| it.id);
        let up = up.collect::<NodeSet>();
        if up.is_empty() {
            return;
        }
        // Alone, behind everything else: without the time to connect.
        let query = NodeQuery {
            command: Command::time(),
            to: Some(up),
        };
        let times = query_many(&self.fanout, [query]);
        for (row, (answer, took)) in rows.iter_mut().zip(times.into_iter().flatten()) {
            row.round_trip = took.filter(|_| answer.is_ok() && up.contains(row.node));
        }
    }

    /// Confirms that all new nodes have lost nothing, then checks all nodes. The failure of an
    /// unreachable node comes first.
    pub(crate) fn vouch(&self) -> Vec<NodeCheck> {
        let is_new = |row: &NodeCheck| {
            matches!(
                row.failure,
                Some(NodeFailure::Quarantined {
                    why: QuarantineReason::New,
                    ..
                })
            )
            .then_some(row.node)
        };
        let rows = self.check_nodes();
        let new = rows.iter().filter_map(is_new).collect::<NodeSet>();
        if new.is_empty() {
            return rows;
        }
        self.sync_records(new, SyncKind::Vouch)
    }

    /// Raises the `max_ttl` of all servers if all are reachable, then checks them.
    pub(crate) fn set_max_ttl(&self, max_ttl: Duration) -> Vec<NodeCheck> {
        let rows = self.check_nodes();
        let can_be_raised = |row: &NodeCheck| {
            matches!(
                row.failure,
                None | Some(NodeFailure::Quarantined { .. } | NodeFailure::MaxTtl { .. })
            )
        };
        if !rows.iter().all(can_be_raised) {
            return rows;
        }
        self.fanout.records.raise(lease::millis(max_ttl));
        let all = self.fanout.ids().collect();
        self.sync_records(all, SyncKind::Note)
    }

    /// Syncs the records of these nodes, then checks all nodes. The failure of an unreachable node
    /// comes first.
    fn sync_records(&self, to: NodeSet, kind: SyncKind) -> Vec<NodeCheck> {
        // Each record needs a version of its own.
        let nodes: Vec<_> = self.fanout.ids().filter(|id| to.contains(*id)).collect();
        let queries = nodes.iter().map(|id| NodeQuery {
            command: self.fanout.records.rules().sync_record(kind),
            to: Some([*id].into_iter().collect()),
        });
        let answers = query_many(&self.fanout, queries);
        let mut rows = self.check_nodes();
        for (id, answers) in nodes.into_iter().zip(answers) {
            let answer = answers.into_iter().nth(id.index());
            if let Some((Err(failure), _)) = answer
                && let Some(row) = rows.get_mut(id.index())
            {
                row.failure = Some(failure);
            }
        }
        rows
    }

    /// The same rows without a command, after a shutdown or a fork.
    pub(crate) fn check_nothing(&self) -> Vec<NodeCheck> {
        let nodes = self.fanout.nodes.iter();
        nodes
            .map(|node| row(node, Some(NodeFailure::ShutDown)))
            .collect()
    }
}

/// The row of a node with these failures: of the commands of all locks, and of the others.
fn row_of(node: &Server, [failure, other]: [Option<NodeFailure>; 2]) -> NodeCheck {
    let rules = node.common.records.rules();
    let server_info = node.server_info();
    let shown = server_info.as_ref().and_then(|it| it.record_reply.as_ref());
    let quarantined = || {
        let (left, why) =
            node.availability(|it| it.quarantine(rules.quarantine(), time::tick()))?;
        Some(NodeFailure::Quarantined { left, why })
    };
    let failure = failure
        .or_else(|| rules.record_mismatch(shown?))
        .or_else(quarantined);
    let mut row = row(node, failure);
    if let Some(server_info) = server_info.as_ref().filter(|_| node.is_up()) {
        row.findings.extend(server_info.findings());
        row.findings.extend(clock_differs(node));
        if let Some(NodeFailure::Access { reason }) = other {
            row.findings.push(NodeFinding::NoReaders { reason });
        }
        row.uptime = server_info
            .uptime
            .and_then(|it| u64::try_from(it).ok())
            .map(Duration::from_secs);
        row.version = server_info.version.as_deref().map(Arc::from);
        if let Some(shown) = shown {
            row.append_only = shown.append_only;
            row.max_ttl = (shown.max_ttl != 0).then(|| Duration::from_millis(shown.max_ttl));
        }
    }
    row
}

fn row(node: &Server, failure: Option<NodeFailure>) -> NodeCheck {
    NodeCheck {
        node: node.id,
        address: Arc::clone(&node.address),
        failure,
        findings: Vec::new(),
        round_trip: None,
        version: None,
        uptime: None,
        append_only: None,
        max_ttl: None,
    }
}

fn clock_differs(node: &Server) -> Option<NodeFinding> {
    let now = Moment::now();
    let (low, high) = node.availability(|it| it.clock_shows(now))?;
    let wall = now.wall_micros();
    // Zero while our clock is within the possible interval.
    let by = Duration::from_micros(wall.abs_diff(wall.clamp(low, high.max(low))));
    (CLOCKS_DIFFER < by).then_some(NodeFinding::ClockDiffers {
        by,
        ahead: wall < low,
    })
}
