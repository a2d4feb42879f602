//! The same command to every node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::config::{Config, TTL_MAX};
use crate::engine::nodes::primary::NodeAddress;
use crate::engine::nodes::server::{NodeContext, NodeEvents, Records, Server};
use crate::engine::nodes::worker::Worker;
use crate::error::{NodeAnswer, NodeFailure, NodeReport};
use crate::hold::Servers;
use crate::ids::{ClientId, NodeId, NodeSet};
use crate::logic::retries::Retries;
use crate::logic::run_ids::RunIds;
use crate::logic::{clock_offset, lease, quorum, token};
use crate::observer::Journal;
use crate::session::MUTE_MIN;
use crate::session::availability::{Availability, Health};
use crate::session::pending_command::{PendingCommand, ReplyHandler};
use crate::session::record_rules::RecordRules;
use crate::sys::sync::Mutex;
use crate::sys::{OwnThread, yield_now};
use crate::time::{self, Moment, Now, Tick};
use crate::wire::{Command, Offer};

/// Number of commands without an answer above which other callers probably follow.
const CROWD: usize = 16;

/// All nodes of a manager.
pub(crate) struct Fanout {
    pub(crate) journal: Arc<Journal>,
    pub(crate) response_timeout: Duration,
    connect_timeout: Duration,
    pub(crate) nodes: Vec<Arc<Server>>,
    pub(crate) records: Arc<Records>,
    /// Pace of failed extensions.
    pub(crate) retries: Mutex<Retries>,
}

impl Servers for Fanout {
    fn voting(&self, now: Tick) -> NodeSet {
        let length = self.records.rules().quarantine();
        self.nodes_with(|it| it.is_up() && it.quarantine(length, now).is_none())
    }

    fn settable(&self, now: Tick) -> NodeSet {
        let length = self.records.rules().quarantine();
        self.nodes_with(|it| it.quarantines.may_set(now, length))
    }

    fn has_stepped(&self, node: NodeId, since: Tick) -> bool {
        let has_stepped = |it: &Availability| it.stepped_at.is_some_and(|at| since <= at);
        self.nodes
            .get(node.index())
            .is_some_and(|it| it.availability(has_stepped))
    }

    fn time_for_all(&self, now: Moment) -> Option<u64> {
        self.look().time_for_all(now)
    }

    fn pause(&self, left: Duration, now: Tick) -> Duration {
        let least = lease::retry_after(self.response_timeout);
        let is_late = self.is_late(now);
        let mut retries = self.retries.lock();
        retries.wait(least, left, is_late, now).min(left)
    }
}

impl Fanout {
    /// Starts a worker per node. Touches no network: a worker connects when it gets its first
    /// command.
    pub(crate) fn start(
        addresses: Vec<NodeAddress>,
        config: &Config,
        journal: Arc<Journal>,
        client: ClientId,
        events: Arc<dyn NodeEvents>,
    ) -> io::Result<(Fanout, Vec<OwnThread>)> {
        let rules = RecordRules::new(config, addresses.len());
        let longest_ttl = config.longest_ttl().unwrap_or(TTL_MAX);
        let longest_life = longest_ttl.saturating_add(config.margin.of(longest_ttl));
        let run_ids = RunIds::new(addresses.len(), longest_life);
        let common = NodeContext {
            response_timeout: config.response_timeout,
            connect_timeout: config.connect_timeout,
            journal,
            client,
            events,
            records: Arc::new(Records::new(rules)),
            run_ids: Arc::new(Mutex::new(run_ids)),
        };
        let mut nodes: Vec<Arc<Server>> = Vec::new();
        let mut threads = Vec::new();
        for (index, address) in addresses.into_iter().enumerate() {
            let id = NodeId::new(u8::try_from(index).unwrap_or(u8::MAX));
            match Worker::start(id, address, common.clone(), &mut threads) {
                Ok(node) => nodes.push(node),
                Err(err) => {
                    // Started workers must not stay behind.
                    nodes.iter().for_each(|it| it.stop(time::tick()));
                    return Err(err);
                }
            }
        }
        let fanout = Fanout {
            journal: common.journal,
            nodes,
            response_timeout: common.response_timeout,
            connect_timeout: common.connect_timeout,
            records: common.records,
            retries: Mutex::default(),
        };
        Ok((fanout, threads))
    }

    /// One look at all nodes.
    pub(crate) fn look(&self) -> Look {
        let shown = self
            .nodes
            .iter()
            .map(|it| it.availability(Availability::clone));
        Look {
            shown: shown.collect(),
            quarantine: self.records.rules().quarantine(),
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
        }
    }

    /// The rows of a call that has not asked: why nodes would not vote.
    pub(crate) fn not_asked(&self, now: Tick) -> Vec<NodeReport> {
        let quarantined = self.look().quarantined_of(self.ids().collect(), now);
        let quarantine = |node| quarantined.iter().find(|it| it.0 == node);
        let row = |node: &Arc<Server>| {
            node.refusal(Duration::ZERO, now)
                .or_else(|| quarantine(node.id).map(|it| it.1.clone()))
                .map_or(NodeAnswer::NotAsked, NodeAnswer::Failed)
        };
        self.report(self.nodes.iter().map(row).collect())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|it| it.id)
    }

    /// Sends a command. Returns the nodes that took it and could have refused it.
    pub(crate) fn send(&self, broadcast: Broadcast, now: Tick) -> NodeSet {
        let is_awaited = broadcast.handler.is_some();
        let enqueued = self.enqueue(broadcast, now);
        let taken = enqueued.taken;
        if is_awaited {
            self.yield_to_a_crowd();
        }
        self.dispatch(enqueued);
        taken
    }

    /// Lets other callers add their commands: one write takes all.
    pub(crate) fn yield_to_a_crowd(&self) {
        if !self.nodes_with(|it| CROWD < it.unanswered).is_empty() {
            yield_now();
        }
    }

    /// Gives a command to the nodes without a write: for many in a row, and with something locked.
    /// The result must be [dispatched](Fanout::dispatch) with nothing locked.
    pub(crate) fn enqueue(&self, broadcast: Broadcast, now: Tick) -> Enqueued {
        let mut enqueued = Enqueued::default();
        let patience = match broadcast.recipients {
            Recipients::Patient => self.response_timeout.max(MUTE_MIN),
            _ => Duration::ZERO,
        };
        // No node refuses a release.
        let refusal = |node: &Arc<Server>| match broadcast.recipients {
            Recipients::All(_) => None,
            _ => node.refusal(patience, now),
        };
        let refusals: Vec<_> = self.nodes.iter().map(refusal).collect();
        let ready = refusals.iter().filter(|it| it.is_none()).count();
        let stalled = refusals
            .iter()
            .filter(|it| **it == Some(NodeFailure::Stalled))
            .count();
        let quorum = quorum(self.nodes.len());
        // Stalled nodes alone prevent a majority.
        let is_behind = ready < quorum && quorum <= ready.saturating_add(stalled);
        for (node, refusal) in self.nodes.iter().zip(refusals) {
            if broadcast.to.is_some_and(|it| !it.contains(node.id)) {
                continue;
            }
            let command = Arc::clone(&broadcast.command);
            let handler = broadcast.handler.clone();
            if let Recipients::All(keep_for) = broadcast.recipients {
                let keep_until = now.checked_add(keep_for).unwrap_or(now);
                node.give(PendingCommand::release(command, handler, keep_until));
            } else if let Some(failure) = refusal {
                let refused = |handler| (handler, node.id, failure);
                enqueued.refused.extend(handler.map(refused));
                continue;
            } else if is_behind && broadcast.recipients == Recipients::ReadyMajority {
                continue;
            } else {
                enqueued.taken.insert(node.id);
                node.give(PendingCommand::new(command, handler));
            }
            enqueued.asked.insert(node.id);
        }
        enqueued
    }

    /// Writes the given commands and reports refusals. Called with nothing locked.
    pub(crate) fn dispatch(&self, enqueued: Enqueued) {
        self.flush(enqueued.asked);
        for (handler, node, failure) in enqueued.refused {
            handler.deliver(node, Answer::Failed(failure), false);
        }
    }

    /// Nodes with this property.
    fn nodes_with(&self, is_so: impl Fn(&Availability) -> bool) -> NodeSet {
        self.nodes
            .iter()
            .filter(|it| it.availability(&is_so))
            .map(|it| it.id)
            .collect()
    }

    /// Whether an answer of a node is late or unread.
    pub(crate) fn is_late(&self, now: Tick) -> bool {
        !self
            .nodes_with(|it| it.is_late(self.response_timeout, now))
            .is_empty()
    }

    /// Writes the commands given to `nodes`. Called with nothing locked.
    pub(crate) fn flush(&self, nodes: NodeSet) {
        let now = Now::read();
        let nodes = self.nodes.iter().filter(|it| nodes.contains(it.id));
        nodes.for_each(|it| it.flush(now));
    }

    /// The rows of a report.
    pub(crate) fn report(&self, answers: Vec<NodeAnswer>) -> Vec<NodeReport> {
        self.nodes
            .iter()
            .zip(answers)
            .map(|(node, answer)| NodeReport {
                node: node.id,
                address: Arc::clone(&node.address),
                answer,
            })
            .collect()
    }

    /// The offer of a release to the next owner, after this token or proposal. No token while the
    /// nodes' time is unknown: no node checks it.
    pub(crate) fn offer(&self, token: u64) -> Offer {
        let time = self.look().time_for_all(Moment::now()).unwrap_or_default();
        Offer {
            token: token::propose(time, token).unwrap_or_default(),
            raised: None,
        }
    }

    /// Quarantined nodes, and the time left of each.
    pub(crate) fn quarantined(&self) -> Vec<(NodeId, Duration)> {
        let now = time::tick();
        let length = self.records.rules().quarantine();
        let left = |node: &Arc<Server>| {
            let left = node.availability(|shown| {
                shown
                    .quarantine(length, now)
                    .filter(|_| shown.shows_quarantine)
            })?;
            Some((node.id, left.0))
        };
        self.nodes.iter().filter_map(left).collect()
    }

    pub(crate) fn stop(&self, deadline: Tick) {
        self.nodes.iter().for_each(|it| it.stop(deadline));
    }
}

/// What all nodes showed at one time.
pub(crate) struct Look {
    shown: Vec<Availability>,
    /// Length of a quarantine.
    quarantine: Option<Duration>,
    connect_timeout: Duration,
    response_timeout: Duration,
}

impl Look {
    /// The common time of all clients, microseconds since 1970, once the clocks of a majority are
    /// known; see [`clock_offset::time_for_all`].
    pub(crate) fn time_for_all(&self, at: Moment) -> Option<u64> {
        let clocks = self.shown.iter().filter_map(|it| it.clock_shows(at));
        clock_offset::time_for_all(at.wall_micros(), clocks, self.shown.len())
    }

    /// Those of `nodes` whose grants do not count for commands sent at `asked`, with the reason.
    pub(crate) fn quarantined_of(&self, nodes: NodeSet, asked: Tick) -> Vec<(NodeId, NodeFailure)> {
        let shown = (0..).map(NodeId::new).zip(&self.shown);
        let asked_of = shown.filter(|it| nodes.contains(it.0));
        asked_of
            .filter_map(|(node, shown)| {
                let (left, why) = shown.quarantine(self.quarantine, asked)?;
                Some((node, NodeFailure::Quarantined { left, why }))
            })
            .collect()
    }

    /// Number of nodes that can announce hand-overs.
    pub(crate) fn notifying(&self) -> usize {
        self.shown.iter().filter(|it| it.is_notified).count()
    }

    /// End of a round that begins now: one response timeout, after the remaining time to connect.
    pub(crate) fn deadline(&self, now: Tick) -> Tick {
        let connected = self.shown.iter().filter_map(|it| match it.health {
            Health::Unused => now.checked_add(self.connect_timeout),
            Health::Connecting { until } => Some(until),
            Health::Up | Health::Down(_) => None,
        });
        let from = connected.max().map_or(now, |it| it.max(now));
        from.checked_add(self.response_timeout).unwrap_or(now)
    }
}

/// A command for several nodes, and the handler of their answers.
pub(crate) struct Broadcast {
    pub(crate) command: Arc<Command>,
    pub(crate) handler: Option<Arc<dyn ReplyHandler>>,
    /// All nodes if `None`.
    pub(crate) to: Option<NodeSet>,
    pub(crate) recipients: Recipients,
}

/// The nodes that take a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Recipients {
    /// Ready nodes; the others refuse the command.
    Ready,
    /// A slow node takes the command too, because a late answer counts. A node that has sent
    /// nothing for a second or the response timeout, whichever is longer, refuses it: its
    /// connection is mute.
    Patient,
    /// Ready nodes, if they are a majority. While too many nodes are stalled no node gets the
    /// command: sending and undoing hopeless acquires would keep the healthy nodes saturated.
    ReadyMajority,
    /// Every node, whatever its health: a release, and how long it is worth sending.
    All(Duration),
}

impl Broadcast {
    /// A command for all ready nodes.
    pub(crate) fn new<H: ReplyHandler + 'static>(command: Command, handler: &Arc<H>) -> Broadcast {
        let handler: Arc<dyn ReplyHandler> = Arc::<H>::clone(handler);
        Broadcast {
            command: Arc::new(command),
            handler: Some(handler),
            to: None,
            recipients: Recipients::Ready,
        }
    }

    /// Limits the command to `nodes`, if given.
    pub(crate) fn to(self, nodes: Option<NodeSet>) -> Broadcast {
        Broadcast { to: nodes, ..self }
    }

    /// A release for `nodes`, whatever their health. `keep_for`: how long it is worth sending.
    pub(crate) fn release(command: Command, nodes: NodeSet, keep_for: Duration) -> Broadcast {
        Broadcast {
            command: Arc::new(command),
            handler: None,
            to: Some(nodes),
            recipients: Recipients::All(keep_for),
        }
    }

    /// Sends the answers to `handler`, if given.
    pub(crate) fn answered_to<H: ReplyHandler + 'static>(
        self,
        handler: Option<&Arc<H>>,
    ) -> Broadcast {
        let handler = handler.map(|it| -> Arc<dyn ReplyHandler> { Arc::<H>::clone(it) });
        Broadcast { handler, ..self }
    }
}

/// Enqueued commands: the nodes that took them, and the refusals.
#[derive(Default)]
#[must_use]
pub(crate) struct Enqueued {
    /// Nodes that got a command.
    pub(crate) asked: NodeSet,
    /// Those of them that could have refused it.
    pub(crate) taken: NodeSet,
    /// Handlers of refused commands, to be notified.
    pub(crate) refused: Vec<(Arc<dyn ReplyHandler>, NodeId, NodeFailure)>,
}
