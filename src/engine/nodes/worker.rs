//! The thread of one node: connects, writes what has queued as one pipeline, reads answers as they come.
//!
//! Full duplex: it does not wait for the answers to one batch before it writes the next. It sleeps in one place, on
//! the socket and on its wake-up. A connection is given up when it breaks or talks nonsense, and not because an
//! answer is late: what is queued behind that answer, releases above all, must run behind it. Only when no answer has come
//! for so long that everything that is under way has expired, it is given up as well: bytes may be acknowledged by
//! something whose far side is gone.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, GreetReply, Record};
use crate::config::Config;
use crate::engine::nodes::connect::{Connecting, Opened, Progress};
use crate::engine::nodes::drive::{self, Driven};
use crate::engine::nodes::finder::{Finder, Found};
use crate::engine::nodes::job::Job;
use crate::engine::nodes::link::Driver;
use crate::engine::nodes::node::{Health, MUTE_MIN, Node};
use crate::engine::nodes::resend::Unconfirmed;
use crate::error::{MemberAnswer, MemberReport, NodeFailure, NodeFinding};
use crate::logic::eligibility::Times;
use crate::logic::run_ids::{Double, RunIds, Voter};
use crate::observer::Event;
use crate::stats::count;
use crate::sys::logging::{Level, debug, error, info, warn, write_line};
use crate::sys::sync::Mutex;
use crate::sys::{Events, Poll, SOCKET};
use crate::time::{self, Moment, Tick};
use crate::wire::{Address, Group, Place};

/// Pauses between attempts to connect: doubling, and a random part on top so that clients do not come in step.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(1);

/// How often a worker looks again that was asked to stop, or whose connection seems to be mute.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where the worker is with its connection.
enum Phase {
    /// Nobody has used the node yet.
    Unused,
    /// The node is more than one process, and its thread looks for the master.
    Finding {
        asked: u64,
        deadline: Tick,
    },
    Connecting(Box<Connecting>),
    Open,
    Down {
        retry_at: Tick,
    },
}

pub(crate) struct Worker {
    node: Arc<Node>,
    address: Address,
    /// Of a node that is more than one process.
    finder: Option<Arc<Finder>>,
    /// The master of such a node, and when it was asked for.
    master: Option<(Place, Moment)>,
    /// The one before, for the log.
    last_master: Option<Place>,
    connect_timeout: Duration,
    /// A server with a finding that can cost a lock is refused.
    strict: bool,
    run_ids: Arc<Mutex<RunIds>>,
    poll: Poll,
    events: Events,
    phase: Phase,
    /// Releases that still have to be sent: the connection ended before they were confirmed.
    unconfirmed: Unconfirmed,
    /// Failed attempts to connect since the node was up.
    failures: u32,
    /// Since when the log says that the node is down.
    down_since: Option<Tick>,
    /// The last connection was established, and lost before it had answered anything: the node is not called up again
    /// before it answers.
    flapping: bool,
    said_cannot_wait: bool,
}

enum Flow {
    Go,
    Stop,
}

impl Worker {
    pub(crate) fn new(
        node: Arc<Node>,
        address: Address,
        finder: Option<Arc<Finder>>,
        config: &Config,
        run_ids: Arc<Mutex<RunIds>>,
        poll: Poll,
    ) -> Worker {
        Worker {
            node,
            address,
            finder,
            master: None,
            last_master: None,
            connect_timeout: config.connect_timeout,
            strict: config.strict,
            run_ids,
            poll,
            events: Events::with_capacity(8),
            phase: Phase::Unused,
            unconfirmed: Unconfirmed::default(),
            failures: 0,
            down_since: None,
            flapping: false,
            said_cannot_wait: false,
        }
    }

    /// Runs until the node is stopped.
    pub(crate) fn run(mut self) {
        loop {
            // One bad reply must cost one connection, not this node's vote for the rest of the process.
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(Flow::Go) => {}
                Ok(Flow::Stop) => break,
                Err(_) => {
                    error!(
                        "{}: {}: its thread panicked and goes on with a new connection; please report this",
                        self.node.id, self.node.address
                    );
                    self.go_down(&NodeFailure::Internal);
                }
            }
        }
        self.go_down(&NodeFailure::ShutDown);
        self.node.queue.close();
        self.finder.iter().for_each(|it| it.stop());
    }

    fn turn(&mut self) -> Flow {
        let now = time::tick();
        if self.is_done(now) {
            return Flow::Stop;
        }
        match std::mem::replace(&mut self.phase, Phase::Unused) {
            Phase::Unused if !self.node.has_queue() && !self.node.is_called_up() => self.sleep(None),
            Phase::Unused => self.connect(now),
            Phase::Down { retry_at } if retry_at <= now => self.connect(now),
            Phase::Down { retry_at } => {
                self.phase = Phase::Down { retry_at };
                self.refuse_queue();
                self.hand_on();
                self.sleep(Some(retry_at));
            }
            Phase::Finding { asked, deadline } => self.go_on_finding(asked, deadline, now),
            Phase::Connecting(connecting) => self.go_on_connecting(*connecting, now),
            Phase::Open => {
                self.phase = Phase::Open;
                if let Err(failure) = self.serve() {
                    self.lose_connection(&failure);
                }
            }
        }
        Flow::Go
    }

    /// Whether it was asked to stop, and can.
    fn is_done(&self, now: Tick) -> bool {
        self.node.stop_at().is_some_and(|deadline| deadline <= now || !self.has_work())
    }

    /// Whether a worker that was asked to stop still has something to bring to its node.
    fn has_work(&self) -> bool {
        let queued = self.node.has_queue() || !self.unconfirmed.is_empty();
        match self.phase {
            // The answers of a hung node are not waited for: it has what was written, and runs it when it goes on.
            Phase::Open => {
                let (flushed, answered) =
                    self.node.link.with(|it| (it.conn().is_flushed(), it.conn().in_flight() == 0));
                queued || !flushed || !(answered || self.node.is_stalled(time::tick()))
            }
            Phase::Finding { .. } | Phase::Connecting(_) => queued,
            Phase::Unused => self.node.has_queue(),
            Phase::Down { .. } => false,
        }
    }

    /// Sleeps until there is something to do, or until `deadline`.
    fn sleep(&mut self, deadline: Option<Tick>) {
        let stop_at =
            self.node.stop_at().map(|it| time::tick().checked_add(LOOK_AGAIN).map_or(it, |look| it.min(look)));
        let deadline = [deadline, stop_at].into_iter().flatten().min();
        self.node.fall_asleep();
        // RACE: see `Node::wake`: the queue is looked at once more after the announcement.
        let may_write = !matches!(self.phase, Phase::Open) || self.node.link.load.may_write();
        let queued = self.node.has_queue() && may_write;
        let timeout =
            if !queued { deadline.map(|it| it.saturating_duration_since(time::tick())) } else { Some(Duration::ZERO) };
        self.wait(timeout);
        self.node.wake_up();
    }

    /// Waits for the socket or a wake-up. While a connection is being opened nobody calls `fall_asleep` before it:
    /// commands that queue meanwhile wait for the connection and are no reason to get up.
    fn wait(&mut self, timeout: Option<Duration>) {
        if let Err(err) = self.poll.poll(&mut self.events, timeout)
            && err.kind() != io::ErrorKind::Interrupted
        {
            let level = if self.said_cannot_wait { Level::Debug } else { Level::Error };
            self.said_cannot_wait = true;
            write_line!(level, "{}: {}: cannot wait for its socket: {err}", self.node.id, self.node.address);
        }
    }

    fn connect(&mut self, now: Tick) {
        let deadline = now.checked_add(self.connect_timeout).unwrap_or(now);
        if self.failures == 0 {
            self.node.set_health(Health::Connecting { until: deadline });
        }
        match &self.finder {
            Some(finder) => self.phase = Phase::Finding { asked: finder.ask(), deadline },
            None => match self.own_address() {
                Some(address) => self.connect_to(&address, self.connect_timeout),
                None => self.go_down(&NodeFailure::SlotNotServed { said: "it serves no slots any more".to_owned() }),
            },
        }
    }

    /// `None` of a master of a cluster that serves nothing.
    fn own_address(&self) -> Option<Address> {
        let Some(lane) = &self.node.lane else { return Some(self.address.clone()) };
        let served = lane.served();
        Some(self.address.of_master(served.last?, served.name))
    }

    fn go_on_finding(&mut self, asked: u64, deadline: Tick, now: Tick) {
        match self.finder.as_ref().and_then(|it| it.found(asked)) {
            Some(Found { master: Ok(master), asked }) => {
                let address = self.address.at(master.clone());
                self.master = Some((master, asked));
                self.connect_to(&address, deadline.saturating_duration_since(now));
            }
            Some(Found { master: Err(failure), .. }) => self.go_down(&failure),
            None if deadline <= now => {
                self.go_down(&NodeFailure::Connect { reason: "no master was found in time".to_owned() });
            }
            None => {
                self.refuse_queue();
                self.phase = Phase::Finding { asked, deadline };
                self.wait(Some(deadline.saturating_duration_since(now)));
            }
        }
    }

    fn connect_to(&mut self, address: &Address, timeout: Duration) {
        let records = &self.node.records;
        match Connecting::begin(address, Some(records.greet(records.of_server(), None)), timeout, &self.poll) {
            Ok(connecting) => self.phase = Phase::Connecting(Box::new(connecting)),
            Err(failure) => self.go_down(&failure),
        }
    }

    fn go_on_connecting(&mut self, mut connecting: Connecting, now: Tick) {
        match connecting.step(&self.poll, now) {
            Ok(Progress::Wait) => {
                // Of a node that is down nobody waits for this attempt.
                self.refuse_queue();
                let deadline = self.node.stop_at().map_or(connecting.deadline(), |it| it.min(connecting.deadline()));
                self.phase = Phase::Connecting(Box::new(connecting));
                self.wait(Some(deadline.saturating_duration_since(now)));
            }
            Ok(Progress::Done(opened)) => self.come_up(*opened),
            Err(NodeFailure::Replica) if let Some((master, _)) = &self.master => {
                let said = MemberReport::new(master.to_string().into(), MemberAnswer::Replica);
                self.go_down(&NodeFailure::NoMaster { said: vec![said] });
            }
            Err(failure) => self.go_down(&failure),
        }
    }

    fn come_up(&mut self, Opened { socket, conn, mut server_info, asked, said_time }: Opened) {
        server_info.few_sentinels = self.few_sentinels();
        if self.finder.is_some() || self.node.lane.is_some() {
            // That is what the node was given as.
            (server_info.replicas, server_info.promoted) = (0, false);
        }
        if self.strict
            && let Some(finding) = server_info.findings().into_iter().find(NodeFinding::disqualifies)
        {
            self.go_down(&NodeFailure::Disqualified { finding });
            return;
        }
        // Whoever only looks is not refused.
        if self.node.records.is_used()
            && let Some(failure) = server_info.memory.and_then(|it| self.node.records.misfit(it))
        {
            self.go_down(&failure);
            return;
        }
        if let Some(run_id) = &server_info.run_id
            && let Err(Double { other, is_news }) = self.claim(run_id)
        {
            if is_news {
                let Node { id, address, .. } = &*self.node;
                warn!(
                    "{id}: {address}: the same server as {other}, or one of them claims to be: they have one vote together"
                );
            }
            self.go_down(&NodeFailure::SameServer { other });
            return;
        }
        count(&self.node.counters.connections);
        count(&self.node.own_counters.connections);
        if !self.flapping {
            self.log_up();
        }
        let now = time::tick();
        {
            let mut eligibility = self.node.eligibility.lock();
            if let Some(memory) = server_info.memory {
                self.node.records.hear(self.node.id, memory);
                if self.node.lane.is_none() {
                    self.node.hear_set(memory);
                }
                self.node.status.note_current(asked.tick);
            }
            eligibility.lasts(self.node.records.quarantine());
            if let (Some(lane), Some(memory)) = (&self.node.lane, server_info.memory) {
                // Slots have records of their own, and these show what its uptime would.
                lane.remember(memory, now, self.node.records.quarantine());
                let record = if memory.record == Record::Off { Record::Off } else { Record::Vouched };
                server_info.memory = Some(GreetReply { record, ..memory });
            }
            let times = Times { asked: asked.tick, asked_at: asked.moment, answered: now, answered_at: said_time };
            let news = eligibility.on_connect(&server_info, times);
            self.node.publish_eligibility(&eligibility, news, now);
        }
        self.node.status.publish_server_info(&server_info);
        // RACE: before it is up. Whoever finds it up knows its clock.
        self.node.note_heard();
        if let (Some(finder), Some((master, asked))) = (&self.finder, self.master.take()) {
            if self.last_master.as_ref() != Some(&master) {
                info!("{}: {}: the master is {master}", self.node.id, self.node.address);
                self.last_master = Some(master.clone());
            }
            finder.connected(&self.node, master, asked);
        }
        // Releases of the time before come first: they are older than anything in the queue.
        let (again, _) = self.unconfirmed.take_due(now);
        let again = self.own_of(again);
        self.node.open(socket, conn, server_info.memory, again, now);
        self.node.greet_if_owed(now);
        self.node.set_health(Health::Up);
        let Node { id, address, upcall, .. } = &*self.node;
        upcall.tell(|| Event::NodeUp { node: *id, address: Arc::clone(address) });
        self.phase = Phase::Open;
    }

    /// How many sentinels are in the node's address, if that is too few.
    fn few_sentinels(&self) -> Option<usize> {
        match &self.address.place {
            Place::Group(Group::Sentinel { sentinels, .. }) => Some(sentinels.len()).filter(|count| *count < 3),
            _ => None,
        }
    }

    fn claim(&self, run_id: &str) -> Result<(), Double> {
        let voter = self.voter();
        self.run_ids.lock().claim(voter, run_id, time::tick())
    }

    /// Its place among all that show run ids.
    fn voter(&self) -> Voter {
        self.node.lane.as_ref().map_or(self.node.id.into(), |it| it.voter)
    }

    /// Of a master of a cluster, those of these releases whose slots it still serves; the others go to those that do.
    fn own_of(&self, jobs: Vec<Job>) -> Vec<Job> {
        match &self.node.lane {
            Some(lane) => lane.own_of(jobs),
            None => jobs,
        }
    }

    /// While there is no connection, releases whose slots are served by others now go there.
    fn hand_on(&mut self) {
        if self.node.lane.is_some() && !self.unconfirmed.is_empty() {
            let (jobs, _) = self.unconfirmed.take_due(time::tick());
            for job in self.own_of(jobs) {
                self.keep(job);
            }
        }
    }

    fn log_up(&mut self) {
        match self.down_since.take() {
            Some(since) => {
                let down = time::tick().saturating_duration_since(since);
                info!("{}: up after {}: {}", self.node.id, time::About(down), self.node.address);
            }
            None => debug!("{}: connected: {}", self.node.id, self.node.address),
        }
    }

    /// Drives an open connection until it is lost, or until the worker is to stop.
    fn serve(&mut self) -> Result<(), NodeFailure> {
        let node = Arc::clone(&self.node);
        let mut result = Ok(());
        drive::drive(Driver::Worker, &mut [Driven::new(&node, None)], |driven| {
            let now = time::tick();
            if self.is_done(now) {
                return false;
            }
            result = driven.iter_mut().try_for_each(|it| self.prepare(&node, it, now));
            result.is_ok()
        });
        result
    }

    /// Writes what has queued, and sleeps until there may be something to read.
    fn prepare(&mut self, node: &Node, driven: &mut Driven<'_>, now: Tick) -> Result<(), NodeFailure> {
        let (again, next_again) = node.take_refused(now);
        let again = self.own_of(again);
        let patience = node.response_timeout().max(MUTE_MIN);
        let (broken, has_answered, give_up_at) = node.link.with(|state| {
            node.write(state, again, now);
            let give_up_at = state.conn().give_up_at(patience);
            node.set_watched(give_up_at.is_some());
            (state.broken(), state.has_answered(), give_up_at)
        });
        if has_answered && self.failures != 0 {
            self.failures = 0;
            self.flapping = false;
            self.log_up();
        }
        if let Some(failure) = broken {
            return Err(failure);
        }
        if driven.readable {
            return Ok(());
        }
        let look_at = match give_up_at {
            Some(at) if at <= now => {
                // An answer that has come and that nobody has read yet makes it worth keeping.
                if node.is_stalled(now) {
                    let reason = "no answer to anything any more".to_owned();
                    node.link.with(|it| it.give_up(NodeFailure::Disconnected { reason }));
                }
                now.checked_add(LOOK_AGAIN)
            }
            at => at,
        };
        self.sleep([next_again, look_at].into_iter().flatten().min());
        for event in self.events.iter().filter(|it| it.token() == SOCKET) {
            let closing = event.is_error() || event.is_read_closed();
            driven.readable |= event.is_readable() || closing;
            driven.closing |= closing;
        }
        Ok(())
    }

    /// The connection is of no use any more.
    fn lose_connection(&mut self, failure: &NodeFailure) {
        self.flapping = self.node.link.with(|it| !it.has_answered());
        if !self.flapping {
            self.failures = 0;
        }
        if self.failures != 0 {
            // It has not answered anything since it came up.
            self.go_down(failure);
            return;
        }
        // The first attempt to come back is made at once, and commands wait for it: most lost connections are
        // restarts, and proxies that close what is idle.
        let now = time::tick();
        let until = now.checked_add(self.connect_timeout).unwrap_or(now);
        self.node.set_health(Health::Connecting { until });
        self.disconnect(failure);
        self.phase = Phase::Down { retry_at: now };
    }

    /// Ends the connection, or the attempt, and refuses what comes until the next one.
    fn go_down(&mut self, failure: &NodeFailure) {
        self.node.set_health(Health::Down(failure.clone()));
        self.node.note_failed();
        self.disconnect(failure);
        self.refuse_queue();
        let pause = RETRY_FIRST.saturating_mul(2_u32.saturating_pow(self.failures.min(10))).min(RETRY_LAST);
        let pause = pause.saturating_add(pause.mul_f64(fastrand::f64() / 4.0));
        self.failures = self.failures.saturating_add(1);
        let now = time::tick();
        self.phase = Phase::Down { retry_at: now.checked_add(pause).unwrap_or(now) };
    }

    /// Closes the connection: everybody who waits for an answer is told, and releases are kept.
    fn disconnect(&mut self, failure: &NodeFailure) {
        self.phase = Phase::Unused;
        self.finder.iter().for_each(|it| it.disconnected());
        let unanswered = self.node.close();
        self.run_ids.lock().leave(self.voter(), time::tick());
        self.node.lane.iter().for_each(|it| it.look());
        let Node { id, address, upcall, .. } = &*self.node;
        upcall.tell(|| Event::NodeDown { node: *id, address: Arc::clone(address), why: failure.clone() });
        if *failure != NodeFailure::ShutDown {
            count(&self.node.counters.connection_failures);
            count(&self.node.own_counters.connection_failures);
            let (now, was_down) = (time::tick(), self.down_since.is_some());
            let level = match was_down {
                _ if self.node.status.may_warn_of(failure, now) => Level::Warn,
                false => Level::Info,
                true => Level::Debug,
            };
            let still = if was_down { "still " } else { "" };
            write_line!(level, "{}: {still}down: {}: {failure}", self.node.id, self.node.address);
            self.down_since.get_or_insert(now);
        }
        for mut job in unanswered {
            job.answer(self.node.id, Answer::Failed(failure.clone()), true);
            self.keep(job);
        }
    }

    /// Answers what has queued with the reason why the node is down, if it is: nothing of it has come to the node.
    fn refuse_queue(&mut self) {
        let Health::Down(failure) = self.node.health() else { return };
        let queued: Vec<_> = self.node.link.with(|_| self.node.queue.take().collect());
        for mut job in queued {
            job.answer(self.node.id, Answer::Failed(failure.clone()), false);
            self.keep(job);
        }
    }

    /// Keeps a release for the next connection.
    fn keep(&mut self, job: Job) {
        let now = time::tick();
        if self.unconfirmed.keep(job, now, now) {
            self.node.status.say_overflow(now);
        }
    }
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests;
