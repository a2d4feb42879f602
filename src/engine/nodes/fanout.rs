//! The same command to every node.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::Answer;
use crate::config::Config;
use crate::engine::nodes::contacts::Contacts;
use crate::engine::nodes::drive::{Driver, Wheel};
use crate::engine::nodes::events::Events;
use crate::engine::nodes::job::{Job, Sink};
use crate::engine::nodes::memory::QuarantineLength;
use crate::engine::nodes::node::{Node, NodeContext, WorkerHandle};
use crate::engine::nodes::sets::Sets;
use crate::engine::nodes::worker::{WAKE, Worker};
use crate::engine::park::{self, Signal};
use crate::engine::round::attempt::Attempt;
use crate::engine::round::pending::{Pending, deadline};
use crate::engine::wait::queues::Ticket;
use crate::error::{NodeAnswer, NodeFailure, NodeReport};
use crate::ids::{ClientId, NodeId, NodeSet};
use crate::logic::acquire::AcquireRound;
use crate::logic::ballot::Round;
use crate::logic::eligibility::Eligibility;
use crate::logic::pace::{self, PAUSE_MAX};
use crate::logic::run_ids::RunIds;
use crate::logic::tally::{ReleaseEnd, ReleaseRound};
use crate::logic::{clock, quorum};
use crate::stats::Counters;
use crate::sys::OwnThread;
use crate::sys::sync::{AtomicUsize, Condvar, Mutex, unbounded};
use crate::sys::{Poll, Waker};
use crate::time::{self, Moment, Tick};
use crate::wire::{Address, Command};

/// All nodes of a manager, and their threads' names and beginnings.
pub(crate) struct Fanout {
    nodes: Vec<Arc<Node>>,
    run_ids: Arc<Mutex<RunIds>>,
    response_timeout: Duration,
    connect_timeout: Duration,
    /// Callers that wait for a round of theirs right now.
    busy: AtomicUsize,
    wheel: Wheel,
    /// Callers that wait for a node to keep up sleep here. Nobody wakes them.
    pace: (Mutex<()>, Condvar),
    contacts: Arc<Contacts>,
    quarantine_length: Option<Arc<QuarantineLength>>,
}

/// What became of a command that was given to several nodes.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// Nodes that took it.
    pub(crate) taken: NodeSet,
    /// Nodes that did not, and why. They have to be told to whoever waits, with nothing locked.
    refused: Vec<(NodeId, NodeFailure)>,
}

/// A release and where it goes.
pub(crate) struct Release {
    pub(crate) command: Command,
    pub(crate) to: NodeSet,
    /// How long it is worth sending.
    pub(crate) keep: Duration,
}

/// The attempt of whoever comes next.
pub(crate) struct Next<'a> {
    pub(crate) ticket: &'a Ticket,
    pub(crate) attempt: Attempt,
    pub(crate) command: Arc<Command>,
}

impl Given {
    /// Hands the refusals to the round.
    pub(crate) fn report<R: Round>(self, pending: &Pending<R>) {
        for (node, failure) in self.refused {
            pending.deliver(node, Answer::Failed(failure), false);
        }
    }
}

impl Fanout {
    /// Starts a worker per node. Touches no network: a worker connects when it gets its first command.
    pub(crate) fn start(
        addresses: Vec<Address>,
        config: &Config,
        counters: &Arc<Counters>,
        client: ClientId,
        events: &Arc<dyn Events>,
    ) -> io::Result<(Fanout, Vec<OwnThread>)> {
        let run_ids = Arc::new(Mutex::new(RunIds::new(addresses.len(), config.longest_life())));
        let start = time::tick();
        let counters = Arc::clone(counters);
        let contacts = Arc::new(Contacts::new(addresses.len()));
        let response_timeout = config.response_timeout;
        let quarantine_length =
            config.quarantine_length().map(|it| Arc::new(QuarantineLength::new(it, addresses.len())));
        let common = NodeContext {
            start,
            response_timeout,
            contacts: Arc::clone(&contacts),
            counters,
            client,
            events: Arc::clone(events),
            quarantine_length: quarantine_length.clone(),
            sets: config.quarantine.then(|| Arc::new(Sets::new(addresses.len(), config.strict))),
        };
        let mut nodes = Vec::new();
        let mut threads = Vec::new();
        for (index, address) in addresses.into_iter().enumerate() {
            let id = NodeId::new(u8::try_from(index).unwrap_or(u8::MAX));
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), WAKE)?;
            let (sender, jobs) = unbounded();
            let worker_handle = WorkerHandle { jobs: sender, registry: poll.registry().try_clone()?, waker };
            let eligibility = Eligibility::new(config.quarantine_length(), config.margin.share);
            let node = Arc::new(Node::new(id, address.shown(), worker_handle, common.clone(), eligibility));
            let worker = Worker::new(Arc::clone(&node), address, config, Arc::clone(&run_ids), jobs, poll);
            nodes.push(node);
            match OwnThread::spawn(format!("quorlock-{id}"), move || worker.run()) {
                Ok(thread) => threads.push(thread),
                Err(err) => {
                    // Those that run already must not stay behind.
                    nodes.iter().for_each(|it| it.stop(start));
                    return Err(err);
                }
            }
        }
        let (connect_timeout, busy, wheel) =
            (config.connect_timeout, AtomicUsize::new(0), Wheel::new(Arc::clone(events)));
        let pace = Default::default();
        let fanout = Fanout {
            nodes,
            run_ids,
            response_timeout,
            connect_timeout,
            busy,
            wheel,
            pace,
            contacts,
            quarantine_length,
        };
        Ok((fanout, threads))
    }

    /// Which other node showed the same run id as this one, if one did.
    pub(crate) fn double_of(&self, node: NodeId) -> Option<NodeId> {
        self.run_ids.lock().double_of(node)
    }

    /// For how many milliseconds a node is quarantined that has forgotten; 0 for not at all.
    pub(crate) fn quarantine(&self) -> u64 {
        self.quarantine_length.as_ref().map_or(0, |it| it.millis())
    }

    /// Those of `nodes` that are quarantined, as far as we know now, for what they were asked at `asked`.
    pub(crate) fn quarantined_of(&self, nodes: NodeSet, asked: Tick) -> Vec<(NodeId, NodeFailure)> {
        let asked_ones = self.nodes.iter().filter(|it| nodes.contains(it.id));
        let quarantined = asked_ones.filter(|it| !it.quarantine_left(asked).is_zero());
        let failure = |it: &Arc<Node>| NodeFailure::Quarantined {
            left: it.quarantine_left(time::tick()),
            why: it.quarantine_reason(),
        };
        quarantined.map(|it| (it.id, failure(it))).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|it| it.id)
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// When a round that begins now is closed: one response timeout, and what is left of the time to connect where that
    /// comes first.
    pub(crate) fn deadline(&self, now: Tick) -> Tick {
        let connected = self.nodes.iter().filter_map(|it| it.connects_until(now, self.connect_timeout)).max();
        let from = connected.map_or(now, |it| it.max(now));
        from.checked_add(self.response_timeout).unwrap_or(now)
    }

    /// Lets the first calls wait until the clocks of a majority are known: until they are connected or cannot
    /// be, the time to connect is over, or one of `signals` is given. False if there was nothing to wait for.
    pub(crate) fn wait_for_contact(&self, signals: &[&Signal]) -> bool {
        if self.contacts.has_majority() || self.contacts.over().is_given() {
            return false;
        }
        self.nodes.iter().for_each(|it| it.call_up());
        let signals: Vec<&Signal> = signals.iter().copied().chain([self.contacts.over()]).collect();
        park::sleep(deadline(self.connect_timeout), &signals);
        true
    }

    /// The nodes that a round may ask that counts what they grant; `None` for all. See [`Contacts::minority`].
    pub(crate) fn askable(&self) -> Option<NodeSet> {
        self.contacts.minority()
    }

    /// Does without the nodes that are not `askable` in a round that begins now.
    pub(crate) fn leave_out(&self, askable: NodeSet, round: &Pending<AcquireRound>) {
        let now = time::tick();
        // Others have decided it, or the time to connect is over.
        let slow = || match self.contacts.over().is_given() {
            true => NodeAnswer::Pending,
            false => NodeAnswer::Failed(NodeFailure::TimedOut),
        };
        for node in self.nodes.iter().filter(|it| !askable.contains(it.id)) {
            let row = node.refusal(now).map_or_else(slow, NodeAnswer::Failed);
            round.leave_out(node.id, row);
        }
    }

    /// One round: gives a command to every node that can take it now, of `some` or of all, and waits until it is
    /// decided. Those that are not of `some` must have voted.
    ///
    /// `driver`: passed by a caller that drives the connections already.
    pub(crate) fn round<R: Round>(
        &self,
        some: Option<NodeSet>,
        command: Command,
        pending: &Arc<Pending<R>>,
        driver: Option<Driver<'_>>,
        deadline: Tick,
    ) -> R::End {
        let now = time::tick();
        // Alone, a caller is faster if it writes and reads by itself; in company, workers that do it for many are.
        let alone = self.is_alone() || driver.is_some();
        let driver = driver.or_else(|| if alone { self.wheel.take(&self.nodes, now) } else { None });
        let sink: Arc<dyn Sink> = Arc::<Pending<R>>::clone(pending);
        let behind = if R::NEEDS_A_MAJORITY { self.behind(now) } else { None };
        let given = behind.unwrap_or_else(|| self.offer_to(some, &Arc::new(command), &sink, now, alone));
        let taken = given.taken;
        pending.set_reached(taken);
        self.wake(taken, alone);
        given.report(pending);
        self.wait(driver, taken, pending, deadline)
    }

    fn wait<R: Round>(
        &self,
        driver: Option<Driver<'_>>,
        asked: NodeSet,
        pending: &Pending<R>,
        deadline: Tick,
    ) -> R::End {
        match driver {
            Some(driver) if !driver.misses(asked) => {
                driver.drive(&|| pending.is_over(), deadline, || !self.is_alone());
            }
            // Some answers would be read by others: all are.
            other => drop(other),
        }
        pending.wait(deadline)
    }

    /// How long whoever begins a round now waits first, so that all nodes keep up.
    pub(crate) fn pause(&self) -> Duration {
        let now = time::tick();
        self.nodes.iter().map(|it| it.pause(now)).max().unwrap_or_default()
    }

    /// Waits until the nodes that cannot keep up have room for another command, [`PAUSE_MAX`] at most.
    pub(crate) fn keep_pace(&self) {
        let mut pause = self.pause();
        if pause.is_zero() {
            return;
        }
        // Somebody must read meanwhile.
        self.settle();
        let end = deadline(PAUSE_MAX);
        while !pause.is_zero() && time::tick() < end {
            let until = deadline(pace::spread(pause, fastrand::f64())).min(end);
            let mut nobody = self.pace.0.lock();
            self.pace.1.wait_until(&mut nobody, until);
            drop(nobody);
            pause = self.pause();
        }
    }

    fn is_alone(&self) -> bool {
        self.busy.load(Ordering::Relaxed) <= 1
    }

    /// The wheel, and the nodes that it is about.
    pub(crate) fn wheel(&self) -> (&Wheel, &[Arc<Node>]) {
        (&self.wheel, &self.nodes)
    }

    /// Puts a command in line at every node that can take it now, without waking anybody: for many in a row.
    pub(crate) fn offer(&self, command: &Arc<Command>, sink: &Arc<dyn Sink>, now: Tick, directly: bool) -> Given {
        self.offer_to(None, command, sink, now, directly)
    }

    /// Whether so many nodes are stalled that no majority can be asked, and why each that cannot is not. Nobody is asked
    /// then: what the others would be given, and would have to be asked to take back, is all that many callers who try
    /// again and again would keep them busy with, and they might never catch up.
    fn behind(&self, now: Tick) -> Option<Given> {
        let refused = |it: &Arc<Node>| Some((it.id, it.refusal(now)?));
        let refused: Vec<_> = self.nodes.iter().filter_map(refused).collect();
        let ready = self.nodes.len().saturating_sub(refused.len());
        let stalled = refused.iter().filter(|(_, it)| *it == NodeFailure::Stalled).count();
        let quorum = quorum(self.nodes.len());
        let is_behind = ready < quorum && quorum <= ready.saturating_add(stalled);
        is_behind.then(|| Given { taken: NodeSet::default(), refused })
    }

    /// Whether so many nodes are stalled that no majority can be asked.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind(time::tick()).is_some()
    }

    /// Nodes of `some` on which a lock that is gone may be set again.
    pub(crate) fn that_may_heal(&self, some: NodeSet, now: Tick) -> NodeSet {
        self.nodes.iter().filter(|it| some.contains(it.id) && it.may_heal(now)).map(|it| it.id).collect()
    }

    /// Nodes whose clock was seen to have been set forward at `since` or later.
    pub(crate) fn stepped_since(&self, since: Tick) -> NodeSet {
        self.nodes.iter().filter(|it| it.has_stepped(since)).map(|it| it.id).collect()
    }

    /// Like [`Fanout::offer`], to some of the nodes.
    pub(crate) fn offer_to(
        &self,
        some: Option<NodeSet>,
        command: &Arc<Command>,
        sink: &Arc<dyn Sink>,
        now: Tick,
        directly: bool,
    ) -> Given {
        let mut given = Given::default();
        for node in self.nodes.iter().filter(|it| some.is_none_or(|some| some.contains(it.id))) {
            match node.refusal(now) {
                None => {
                    given.taken.insert(node.id);
                    node.give([Some(Job::new(Arc::clone(command), Arc::clone(sink))), None], now, directly);
                }
                Some(failure) => given.refused.push((node.id, failure)),
            }
        }
        given
    }

    /// Gives a release to `to`, whatever the health of those nodes, and does not wait.
    pub(crate) fn release(
        &self,
        command: Command,
        to: NodeSet,
        keep: Duration,
        pending: Option<&Arc<Pending<ReleaseRound>>>,
    ) {
        self.release_and(command, to, keep, pending, None);
    }

    /// Like [`Fanout::release`], and does not even wake the workers: that has to be done with nothing locked.
    pub(crate) fn queue_release(
        &self,
        command: Command,
        to: NodeSet,
        keep: Duration,
        pending: Option<&Arc<Pending<ReleaseRound>>>,
    ) {
        let now = time::tick();
        let keep_until = now.checked_add(keep).unwrap_or(now);
        let command = Arc::new(command);
        for node in self.nodes.iter().filter(|it| to.contains(it.id)) {
            node.give([Some(release_job(&command, pending, keep_until)), None], now, false);
        }
        self.note_not_asked(to, pending);
    }

    /// The others do not have to be asked.
    fn note_not_asked(&self, asked: NodeSet, pending: Option<&Arc<Pending<ReleaseRound>>>) {
        if let Some(pending) = pending {
            for node in self.ids().filter(|it| !asked.contains(*it)) {
                pending.leave_out(node, NodeAnswer::NotAsked);
            }
        }
    }

    /// Like [`Fanout::release`], and sends the acquire of whoever comes next along, to every node that can take it.
    fn release_and(
        &self,
        command: Command,
        to: NodeSet,
        keep: Duration,
        pending: Option<&Arc<Pending<ReleaseRound>>>,
        next: Option<(&Arc<Command>, &Arc<Pending<AcquireRound>>)>,
    ) -> Given {
        let now = time::tick();
        let keep_until = now.checked_add(keep).unwrap_or(now);
        let alone = self.is_alone();
        let command = Arc::new(command);
        let mut given = Given::default();
        for node in &self.nodes {
            let release = to.contains(node.id).then(|| release_job(&command, pending, keep_until));
            let acquire = next.and_then(|(command, round)| match node.refusal(now) {
                None => {
                    given.taken.insert(node.id);
                    Some(Job::new(Arc::clone(command), Arc::<Pending<AcquireRound>>::clone(round)))
                }
                Some(failure) => {
                    given.refused.push((node.id, failure));
                    None
                }
            });
            if release.is_some() || acquire.is_some() {
                node.give([release, acquire], now, alone);
            }
        }
        self.wake(to.union(given.taken), alone);
        self.note_not_asked(to, pending);
        given
    }

    /// Like [`Fanout::release`], and waits as [`Fanout::round`] does. `next` waits for the lock: its attempt goes along.
    /// `sent` is called before the wait.
    pub(crate) fn release_round(
        &self,
        release: Release,
        pending: &Arc<Pending<ReleaseRound>>,
        next: Option<Next<'_>>,
        sent: impl FnOnce(),
        deadline: Tick,
    ) -> ReleaseEnd {
        let Release { command, to, keep } = release;
        let driver = if self.is_alone() { self.wheel.take(&self.nodes, time::tick()) } else { None };
        let acquire = next.as_ref().map(|it| (&it.command, &it.attempt.round));
        let given = self.release_and(command, to, keep, Some(pending), acquire);
        sent();
        let asked = to.union(given.taken);
        if let Some(Next { ticket, attempt, .. }) = next {
            let round = Arc::clone(&attempt.round);
            round.set_reached(given.taken);
            ticket.make(attempt);
            given.report(&round);
        }
        self.wait(driver, asked, pending, deadline)
    }

    /// Takes the wheel, to wait at it; `None` if the workers do that.
    pub(crate) fn take_wheel(&self) -> Option<Driver<'_>> {
        self.wheel.take(&self.nodes, time::tick())
    }

    /// Gives connections that were left to nobody back to their workers.
    pub(crate) fn settle(&self) {
        self.nodes.iter().for_each(|it| it.settle());
    }

    /// How many nodes announce releases to us.
    pub(crate) fn listening(&self) -> usize {
        self.nodes.iter().filter(|it| it.is_listening()).count()
    }

    /// Wakes the workers of `nodes`.
    pub(crate) fn wake(&self, nodes: NodeSet, directly: bool) {
        for node in self.nodes.iter().filter(|it| nodes.contains(it.id)) {
            if !directly || node.has_queue() {
                node.wake();
            }
        }
    }

    /// Counts a caller as busy with rounds while the result lives.
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(&self.busy)
    }

    /// The rows of a report.
    pub(crate) fn report(&self, answers: Vec<NodeAnswer>) -> Vec<NodeReport> {
        let nodes = self.nodes.iter();
        nodes.zip(answers).map(|(node, it)| NodeReport::new(node.id, Arc::clone(&node.address), it)).collect()
    }

    /// What time it is for all, microseconds since 1970: our wall clock at `now`, as far as the clocks of the nodes allow it
    /// to be right; see [`clock::time_for_all`].
    pub(crate) fn time_for_all(&self, now: Moment) -> u64 {
        let clocks = self.nodes.iter().filter_map(|it| it.clock_shows(now));
        clock::time_for_all(now.wall_micros(), clocks, self.nodes.len())
    }

    /// Nodes whose grants do not count yet, and for how long.
    pub(crate) fn quarantined(&self) -> Vec<(NodeId, Duration)> {
        let now = time::tick();
        let left = |it: &Arc<Node>| (it.id, it.quarantine_left(now));
        self.nodes.iter().map(left).filter(|(_, left)| !left.is_zero()).collect()
    }

    pub(crate) fn stop(&self, deadline: Tick) {
        self.nodes.iter().for_each(|it| it.stop(deadline));
    }
}

fn release_job(command: &Arc<Command>, pending: Option<&Arc<Pending<ReleaseRound>>>, keep_until: Tick) -> Job {
    let sink = pending.map(|it| -> Arc<dyn Sink> { Arc::<Pending<ReleaseRound>>::clone(it) });
    Job::release(Arc::clone(command), sink, keep_until)
}

/// See [`Fanout::busy`].
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
