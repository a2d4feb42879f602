//! The same command to every node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::config::Config;
use crate::engine::nodes::drive::{DriverSeat, Driving};
use crate::engine::nodes::events::NodeEvents;
use crate::engine::nodes::job::{Job, Sink};
use crate::engine::nodes::load::Room;
use crate::engine::nodes::primary::NodeAddress;
use crate::engine::nodes::records::Records;
use crate::engine::nodes::server::{MUTE_MIN, NodeContext, Server};
use crate::engine::nodes::worker::Worker;
use crate::error::{NodeAnswer, NodeFailure, NodeReport};
use crate::ids::{ClientId, NodeId, NodeSet};
use crate::logic::run_ids::RunIds;
use crate::logic::{clock_offset, quorum};
use crate::observer::Upcall;
use crate::stats::{Counters, NodeStats};
use crate::sys::OwnThread;
use crate::sys::sync::Mutex;
use crate::time::{self, Moment, Tick};
use crate::wire::Command;

/// All nodes of a manager, and their threads' names and beginnings.
pub(crate) struct Fanout {
    pub(crate) counters: Arc<Counters>,
    pub(crate) upcall: Upcall,
    run_ids: Arc<Mutex<RunIds>>,
    pub(crate) response_timeout: Duration,
    connect_timeout: Duration,
    pub(crate) nodes: Vec<Arc<Server>>,
    pub(crate) seat: DriverSeat,
    room: Arc<Room>,
    pub(crate) records: Arc<Records>,
}

/// Commands on their way. Their workers have to be woken, and the sinks of those that were refused have to be notified:
/// [`SentCommands::finish`] and [`SentCommands::drive`] do both.
#[must_use]
pub(crate) struct SentCommands<'a> {
    fanout: &'a Fanout,
    enqueued: Enqueued,
    driver: Option<Driving<'a>>,
}

impl SentCommands<'_> {
    /// Nodes that took a command that they could have refused.
    pub(crate) fn taken(&self) -> NodeSet {
        self.enqueued.taken
    }

    /// Leaves the rest to the workers.
    pub(crate) fn finish(self) {
        self.fanout.hand_over(self.enqueued);
    }

    /// Sends the rest and reads the answers, until `is_over` or until `deadline`, if the caller drives the connections.
    /// Otherwise the workers do.
    pub(crate) fn drive(self, is_over: &dyn Fn() -> bool, deadline: Tick) {
        let SentCommands {
            fanout,
            enqueued,
            driver,
        } = self;
        let asked = enqueued.asked;
        fanout.hand_over(enqueued);
        // If some answers would be read by workers, all are.
        if let Some(driver) = driver.filter(|it| !it.misses(asked)) {
            driver.drive(is_over, deadline);
        }
    }
}

impl Fanout {
    /// Starts a worker per node. Touches no network: a worker connects when it gets its first command.
    pub(crate) fn start(
        addresses: Vec<NodeAddress>,
        config: &Config,
        counters: &Arc<Counters>,
        client: ClientId,
        events: &Arc<dyn NodeEvents>,
    ) -> io::Result<(Fanout, Vec<OwnThread>)> {
        let run_ids = Arc::new(Mutex::new(RunIds::new(
            addresses.len(),
            config.longest_life(),
        )));
        let start = time::tick();
        let room = Arc::new(Room::default());
        let response_timeout = config.response_timeout;
        let records = Arc::new(Records::new(config, addresses.len()));
        let common = NodeContext {
            start,
            response_timeout,
            room: Arc::clone(&room),
            counters: Arc::clone(counters),
            upcall: config.upcall.clone(),
            client,
            events: Arc::clone(events),
            records: Arc::clone(&records),
        };
        let (mut nodes, mut threads) = (Vec::new(), Vec::new());
        for (index, address) in addresses.into_iter().enumerate() {
            let id = NodeId::new(u8::try_from(index).unwrap_or(u8::MAX));
            match Worker::start(
                id,
                address,
                config,
                common.clone(),
                Arc::clone(&run_ids),
                &mut threads,
            ) {
                Ok(node) => nodes.push(node),
                Err(err) => {
                    // What runs already must not stay behind.
                    nodes.iter().for_each(|it: &Arc<Server>| it.stop(start));
                    return Err(err);
                }
            }
        }
        let connect_timeout = config.connect_timeout;
        let fanout = Fanout {
            counters: Arc::clone(counters),
            upcall: config.upcall.clone(),
            nodes,
            seat: DriverSeat::new(Arc::clone(events)),
            run_ids,
            response_timeout,
            connect_timeout,
            room,
            records,
        };
        Ok((fanout, threads))
    }

    /// Which other node showed the same run id as this one, if one did.
    pub(crate) fn double_of(&self, node: NodeId) -> Option<NodeId> {
        self.run_ids.lock().double_of(node)
    }

    /// Those of `nodes` whose grants do not count, as far as we know now, for what they were asked at `asked`; and why.
    pub(crate) fn quarantined_of(&self, nodes: NodeSet, asked: Tick) -> Vec<(NodeId, NodeFailure)> {
        let asked_ones = self.nodes.iter().filter(|it| nodes.contains(it.id));
        asked_ones
            .filter_map(|node| {
                let (left, why) = node.status.left(asked)?;
                Some((node.id, NodeFailure::Quarantined { left, why }))
            })
            .collect()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|it| it.id)
    }

    /// When a round that begins now is closed: one response timeout, and what is left of the time to connect where that
    /// comes first.
    pub(crate) fn deadline(&self, now: Tick) -> Tick {
        let connected = self
            .nodes
            .iter()
            .filter_map(|it| it.standing.connects_until(now, self.connect_timeout))
            .max();
        let from = connected.map_or(now, |it| it.max(now));
        from.checked_add(self.response_timeout).unwrap_or(now)
    }

    /// Lets the caller drive the connections if it is alone, for a round or while it waits: it is faster then if it writes and
    /// reads by itself.
    pub(crate) fn drive_alone(&self, now: Tick) -> Option<Driving<'_>> {
        self.seat.take(&self.nodes, now)
    }

    /// Sends a command, and `next` behind it in the same write: directly if the caller is alone or drives the connections,
    /// otherwise by the workers, which the result wakes.
    pub(crate) fn send<'a>(
        &'a self,
        first: Outgoing,
        next: Option<Outgoing>,
        driver: Option<Driving<'a>>,
        now: Tick,
    ) -> SentCommands<'a> {
        let directly = driver.is_some() || self.seat.is_alone();
        SentCommands {
            fanout: self,
            enqueued: self.distribute([Some(first), next], now, directly),
            driver,
        }
    }

    /// Enqueues a command and wakes no worker: for many in a row, and with something locked. The result has to be
    /// [handed over](Fanout::hand_over) with nothing locked.
    pub(crate) fn enqueue(&self, outgoing: Outgoing, now: Tick) -> Enqueued {
        self.distribute([Some(outgoing), None], now, false)
    }

    fn distribute(&self, batch: [Option<Outgoing>; 2], now: Tick, directly: bool) -> Enqueued {
        let mut enqueued = Enqueued::default();
        if let [
            Some(Outgoing {
                takers: Takers::ReadyMajority,
                sink,
                ..
            }),
            _,
        ] = &batch
            && let Some(refused) = self.behind(now)
        {
            let refusal = |(node, failure)| RefusedCommand {
                node,
                failure,
                sink: sink.clone(),
            };
            enqueued.refused = refused.into_iter().map(refusal).collect();
            return enqueued;
        }
        let patience = |takers| match takers {
            Takers::Patient => self.response_timeout.max(MUTE_MIN),
            Takers::Ready | Takers::ReadyMajority | Takers::All(_) => self.response_timeout,
        };
        for node in &self.nodes {
            let mut jobs = [None, None];
            for (outgoing, job) in batch.iter().zip(&mut jobs) {
                let Some(outgoing) = outgoing.as_ref().filter(|it| it.goes_to(node.id)) else {
                    continue;
                };
                let (command, sink) = (Arc::clone(&outgoing.command), outgoing.sink.clone());
                if let Takers::All(keep) = outgoing.takers {
                    *job = Some(Job::release(
                        command,
                        sink,
                        now.checked_add(keep).unwrap_or(now),
                    ));
                } else if let Some(failure) = node.refusal(patience(outgoing.takers), now) {
                    enqueued.refused.push(RefusedCommand {
                        node: node.id,
                        failure,
                        sink,
                    });
                } else {
                    enqueued.taken.insert(node.id);
                    *job = Some(Job::new(command, sink));
                }
            }
            if jobs.iter().any(Option::is_some) {
                enqueued.asked.insert(node.id);
                node.give(jobs, now, directly);
            }
        }
        enqueued
    }

    /// Wakes the workers for what was enqueued, and reports the refusals to their sinks. Call it with nothing locked.
    pub(crate) fn hand_over(&self, enqueued: Enqueued) {
        self.wake(enqueued.asked);
        enqueued
            .refused
            .into_iter()
            .for_each(RefusedCommand::report);
    }

    /// Whether a call may begin a round without outrunning a node.
    pub(crate) fn has_room(&self) -> bool {
        let now = time::tick();
        self.nodes.iter().all(|it| it.has_room(now))
    }

    /// Waits a moment for nodes that cannot keep up with what callers ask for.
    pub(crate) fn wait_for_room(&self) {
        if !self.has_room() {
            // The workers must read meanwhile.
            self.end_idle();
            self.room.wait(|| self.has_room());
        }
    }

    /// Nodes of which this is so.
    fn nodes_that(&self, is_so: impl Fn(&Server) -> bool) -> NodeSet {
        let nodes = self.nodes.iter().filter(|it| is_so(it));
        nodes.map(|it| it.id).collect()
    }

    /// Why each node that cannot be asked is not, if so many are stalled that no majority can be.
    fn behind(&self, now: Tick) -> Option<Vec<(NodeId, NodeFailure)>> {
        let refused = |it: &Arc<Server>| Some((it.id, it.refusal(self.response_timeout, now)?));
        let refused: Vec<_> = self.nodes.iter().filter_map(refused).collect();
        let ready = self.nodes.len().saturating_sub(refused.len());
        let stalled = refused
            .iter()
            .filter(|(_, it)| *it == NodeFailure::Stalled)
            .count();
        let quorum = quorum(self.nodes.len());
        let is_behind = ready < quorum && quorum <= ready.saturating_add(stalled);
        is_behind.then_some(refused)
    }

    /// Whether so many nodes are stalled that no majority can be asked.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind(time::tick()).is_some()
    }

    /// Nodes of `some` on which a lock that is gone may be set again.
    pub(crate) fn that_may_heal(&self, some: NodeSet, now: Tick) -> NodeSet {
        some.without(self.nodes_that(|it| !it.status.may_heal(now)))
    }

    /// Connected nodes that are not quarantined.
    pub(crate) fn voting(&self, now: Tick) -> NodeSet {
        self.nodes_that(|it| it.standing.is_up() && it.status.left(now).is_none())
    }

    /// Whether a node owes an answer for longer than the response timeout, or its answer has not been read.
    pub(crate) fn is_late(&self, now: Tick) -> bool {
        self.nodes_that(|it| it.link.load.is_overdue(now)) != NodeSet::default()
    }

    /// Nodes whose clock was seen to have been set forward at `since` or later.
    pub(crate) fn stepped_since(&self, since: Tick) -> NodeSet {
        self.nodes_that(|it| it.status.has_stepped(since))
    }

    /// Gives idle connections back to their workers.
    pub(crate) fn end_idle(&self) {
        self.nodes.iter().for_each(|it| it.link.end_idle());
    }

    /// How many nodes announce releases to us.
    pub(crate) fn listening(&self) -> usize {
        self.nodes_that(Server::is_listening).len()
    }

    /// Wakes the workers of `nodes` for which something has queued.
    pub(crate) fn wake(&self, nodes: NodeSet) {
        self.nodes
            .iter()
            .filter(|it| nodes.contains(it.id))
            .filter(|it| !it.queue.is_empty())
            .for_each(|it| it.wake());
    }

    /// The rows of a report.
    pub(crate) fn report(&self, answers: Vec<NodeAnswer>) -> Vec<NodeReport> {
        let nodes = self.nodes.iter();
        nodes
            .zip(answers)
            .map(|(node, it)| NodeReport::new(node.id, Arc::clone(&node.address), it))
            .collect()
    }

    /// What time it is for all, microseconds since 1970, if the clocks of a majority are known; see
    /// [`clock_offset::time_for_all`].
    pub(crate) fn time_for_all(&self, now: Moment) -> Option<u64> {
        let clocks = self
            .nodes
            .iter()
            .filter_map(|it| it.status.clock_shows(now));
        clock_offset::time_for_all(now.wall_micros(), clocks, self.nodes.len())
    }

    /// Nodes whose grants do not count yet, and for how long.
    pub(crate) fn quarantined(&self) -> Vec<(NodeId, Duration)> {
        let now = time::tick();
        let left = |node: &Arc<Server>| Some((node.id, node.status.left(now)?.0));
        let nodes = self.nodes.iter().filter(|it| it.status.tells_quarantines());
        nodes.filter_map(left).collect()
    }

    /// What is known of each node.
    pub(crate) fn node_stats(&self) -> Vec<NodeStats> {
        self.nodes.iter().map(|it| it.stats()).collect()
    }

    /// From now on workers drive, and nobody else. Waits for a caller that does, until `deadline`.
    pub(crate) fn end_driving(&self, deadline: Tick) {
        self.seat.close(deadline);
        self.end_idle();
    }

    pub(crate) fn stop(&self, deadline: Tick) {
        self.nodes.iter().for_each(|it| it.stop(deadline));
    }
}

/// A command for several nodes, and the sink of their answers.
pub(crate) struct Outgoing {
    pub(super) command: Arc<Command>,
    pub(super) sink: Option<Arc<dyn Sink>>,
    /// All nodes if `None`.
    to: Option<NodeSet>,
    pub(super) takers: Takers,
}

/// Which nodes take a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Takers {
    /// Those that can take it now; the others refuse it.
    Ready,
    /// Likewise; but a node refuses it only after a longer silence, see [`Outgoing::patiently`].
    Patient,
    /// Likewise; but it goes to no node while so many are stalled that no majority can take it.
    ReadyMajority,
    /// A release: every node, whatever its health. It is worth sending for so long.
    All(Duration),
}

impl Outgoing {
    /// For all nodes that can take it now.
    pub(crate) fn ask<S: Sink + 'static>(command: Command, sink: &Arc<S>) -> Outgoing {
        let sink: Arc<dyn Sink> = Arc::<S>::clone(sink);
        Outgoing {
            command: Arc::new(command),
            sink: Some(sink),
            to: None,
            takers: Takers::Ready,
        }
    }

    /// For `nodes` only, if that is some.
    pub(crate) fn to(self, nodes: Option<NodeSet>) -> Outgoing {
        Outgoing { to: nodes, ..self }
    }

    /// It is of no use at fewer nodes than a majority. So while that many are stalled it is sent to none: what the others
    /// would be asked, and would have to be asked to take back, is all that many callers that try again and again would keep
    /// them busy with, and they might never catch up.
    pub(crate) fn for_majority(self) -> Outgoing {
        Outgoing {
            takers: Takers::ReadyMajority,
            ..self
        }
    }

    /// A late answer counts as well. So a slow node takes it; a node that has sent nothing for a second or the response
    /// timeout, whichever is longer, does not. Otherwise the end of what its commands have set would move on, and a dead
    /// connection would stay.
    pub(crate) fn patiently(self) -> Outgoing {
        Outgoing {
            takers: Takers::Patient,
            ..self
        }
    }

    /// A release for `nodes`, whatever their health. `keep`: how long it is worth sending.
    pub(crate) fn release(command: Command, nodes: NodeSet, keep: Duration) -> Outgoing {
        Outgoing {
            command: Arc::new(command),
            sink: None,
            to: Some(nodes),
            takers: Takers::All(keep),
        }
    }

    /// Its answers go to `sink`, if that is some.
    pub(crate) fn answered_to<S: Sink + 'static>(self, sink: Option<&Arc<S>>) -> Outgoing {
        let sink = sink.map(|it| -> Arc<dyn Sink> { Arc::<S>::clone(it) });
        Outgoing { sink, ..self }
    }

    pub(super) fn goes_to(&self, node: NodeId) -> bool {
        self.to.is_none_or(|it| it.contains(node))
    }
}

/// Commands that were enqueued: which nodes took them, and why others did not.
#[derive(Default)]
#[must_use]
pub(crate) struct Enqueued {
    /// Nodes whose worker has something to send.
    pub(crate) asked: NodeSet,
    /// Those of them that took a command that they could have refused.
    pub(crate) taken: NodeSet,
    pub(super) refused: Vec<RefusedCommand>,
}

/// A command that a node did not take, and the sink that has to be notified.
pub(super) struct RefusedCommand {
    pub(super) node: NodeId,
    pub(super) failure: NodeFailure,
    pub(super) sink: Option<Arc<dyn Sink>>,
}

impl RefusedCommand {
    pub(super) fn report(self) {
        if let Some(sink) = self.sink {
            sink.deliver(self.node, Answer::Failed(self.failure), false);
        }
    }
}

impl Enqueued {
    pub(crate) fn merge(&mut self, other: Enqueued) {
        self.asked = self.asked.union(other.asked);
        self.taken = self.taken.union(other.taken);
        self.refused.extend(other.refused);
    }
}
