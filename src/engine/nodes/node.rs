//! The callers' side of one node: give it a command, or hear at once why not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::{Answer, ServerInfo};
use crate::engine::nodes::contacts::Contacts;
use crate::engine::nodes::drive::Reader;
use crate::engine::nodes::events::Events;
use crate::engine::nodes::intake::Intake;
use crate::engine::nodes::job::{Handed, Job};
use crate::engine::nodes::leaving::Leaving;
use crate::engine::nodes::memory::QuarantineLength;
use crate::engine::nodes::outbox::{InFlight, Outbox};
use crate::engine::nodes::resend::Unconfirmed;
use crate::engine::nodes::sets::Sets;
use crate::engine::nodes::status::Status;
use crate::engine::nodes::worker::SOCKET;
use crate::error::NodeFailure;
use crate::ids::{ClientId, NodeId};
use crate::logic::eligibility::Eligibility;
use crate::stats::{Counters, count};
use crate::sys::logging::debug;
use crate::sys::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Sender, fence};
use crate::sys::{Registry, Waker};
use crate::sys::{Socket, Watch};
use crate::time::{Moment, Tick};
use crate::wire::Command;
#[cfg(test)]
use crate::{engine::nodes::worker::WAKE, sys::Poll, sys::sync::unbounded, time};

/// How many batches of commands may be under way on a connection before further commands wait, to be written together
/// when an answer comes. With fewer, commands wait longer for their turn where the network is slow; with more, batches
/// are small, and every small batch costs a wake-up here and one at the server.
pub(crate) const BATCHES_MAX: usize = 3;

/// What is known of a node's connection.
#[derive(Clone, Debug)]
pub(crate) enum Health {
    /// Nothing was ever sent, so nobody has tried to connect.
    Unused,
    /// The first attempt, or the first after a connection was lost. Commands wait for it until then.
    Connecting {
        until: Tick,
    },
    Up,
    /// Commands are refused at once, and not kept.
    Down(NodeFailure),
}

/// One node, shared by its worker and everybody who sends.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) address: Arc<str>,
    pub(super) jobs: Sender<Job>,
    pub(super) waker: Waker,
    /// Set while the worker sleeps or is about to: only then it needs to be woken.
    pub(super) asleep: AtomicBool,
    pub(super) up: AtomicBool,
    pub(super) health: Mutex<Health>,
    pub(super) outbox: Mutex<Outbox>,
    pub(crate) intake: Mutex<Intake>,
    /// Where the worker waits for the socket.
    pub(super) registry: Registry,
    /// When the oldest owed answer was asked for, in nanoseconds since `start`, plus one; 0 if none is owed.
    pub(super) oldest: AtomicU64,
    /// Batches under way: see [`BATCHES_MAX`].
    pub(super) batches: AtomicUsize,
    /// How often somebody has begun or ended to read: odd while what has come is read and handed out.
    pub(super) reads: AtomicU64,
    /// How many answers are owed for commands that were put in line.
    pub(super) owes: AtomicUsize,
    /// When the last answer came, as `oldest`.
    pub(super) answered_at: AtomicU64,
    /// How many commands may be under way before callers wait: see [`Node::pause`].
    pub(super) allowed: AtomicUsize,
    /// How many nanoseconds each takes.
    pub(super) each: AtomicU64,
    /// Whether the log has said that the node does not respond.
    pub(super) stall_logged: AtomicBool,
    /// A caller that was reading found the connection of no use.
    pub(super) broken: AtomicBool,
    /// The worker has to take a turn before it sleeps.
    pub(super) kicked: AtomicBool,
    /// The worker looks by itself at whether the connection is worth keeping.
    pub(super) watched: AtomicBool,
    /// Somebody waits for a connection, and has nothing to send yet.
    pub(crate) called_up: AtomicBool,
    pub(super) start: Tick,
    pub(super) response_timeout: Duration,
    /// Releases that the server refused.
    pub(crate) refused: Mutex<Unconfirmed>,
    pub(super) leaving: Arc<Leaving>,
    pub(super) stop_at: Mutex<Option<Tick>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) contacts: Arc<Contacts>,
    pub(super) events: Arc<dyn Events>,
    pub(super) subscribe: Arc<Command>,
    /// Some call has waited, so a new connection listens from its beginning.
    pub(super) wants_notices: AtomicBool,
    /// The connection listens.
    pub(super) listening: AtomicBool,
    pub(crate) status: Status,
    /// For how long nodes are quarantined; nothing without quarantine.
    pub(crate) quarantine_length: Option<Arc<QuarantineLength>>,
    /// Which nodes others use; nothing without quarantine.
    pub(crate) sets: Option<Arc<Sets>>,
    /// How many nodes others use together with this one, if those are not ours; 0 if not.
    pub(crate) used_otherwise: AtomicU64,
    /// Fingerprint of our nodes when that was heard and not yet believed; 0 if it was not.
    pub(crate) suspected: AtomicU64,
}

/// Commands that go out together: at most a release, and the acquire of whoever comes next.
pub(crate) type Jobs = [Option<Job>; 2];

/// How a node reaches its worker.
pub(crate) struct WorkerHandle {
    pub(crate) jobs: Sender<Job>,
    pub(crate) registry: Registry,
    pub(crate) waker: Waker,
}

/// What all nodes of a manager have in common.
#[derive(Clone)]
pub(crate) struct NodeContext {
    pub(crate) start: Tick,
    pub(crate) response_timeout: Duration,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) client: ClientId,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) quarantine_length: Option<Arc<QuarantineLength>>,
    pub(crate) sets: Option<Arc<Sets>>,
}

impl Node {
    pub(crate) fn new(
        id: NodeId,
        address: Arc<str>,
        WorkerHandle { jobs, registry, waker }: WorkerHandle,
        NodeContext { start, response_timeout, contacts, counters, client, events, quarantine_length, sets }: NodeContext,
        eligibility: Eligibility,
    ) -> Node {
        let subscribe = Arc::new(Command::subscribe(&client.channel()));
        Node {
            id,
            address,
            jobs,
            waker,
            asleep: AtomicBool::new(false),
            up: AtomicBool::new(false),
            health: Mutex::new(Health::Unused),
            outbox: Mutex::default(),
            intake: Mutex::new(Intake::new(eligibility)),
            registry,
            oldest: AtomicU64::new(0),
            batches: AtomicUsize::new(0),
            reads: AtomicU64::new(0),
            owes: AtomicUsize::new(0),
            answered_at: AtomicU64::new(0),
            allowed: AtomicUsize::new(usize::MAX),
            each: AtomicU64::new(0),
            stall_logged: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            called_up: AtomicBool::new(false),
            start,
            response_timeout,
            refused: Mutex::default(),
            leaving: Arc::default(),
            stop_at: Mutex::new(None),
            counters,
            contacts,
            events,
            subscribe,
            wants_notices: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            status: Status::default(),
            quarantine_length,
            sets,
            used_otherwise: AtomicU64::new(0),
            suspected: AtomicU64::new(0),
        }
    }

    /// Why the node is not to be asked now, if so.
    pub(crate) fn refusal(&self, now: Tick) -> Option<NodeFailure> {
        if !self.up.load(Ordering::Acquire)
            && let Some(failure) = self.why_not(now)
        {
            return Some(failure);
        }
        if !self.is_stalled(now) {
            return None;
        }
        // Callers write by themselves, so the worker may not have looked since the answers are owed.
        if !self.watched.swap(true, Ordering::AcqRel) {
            self.wake_now();
        }
        Some(NodeFailure::Stalled)
    }

    /// Takes commands whatever the node's health, one behind the other and in one write: releases must not be dropped.
    ///
    /// `directly`: the caller writes them itself if the connection has nothing else to write. That spares the worker a
    /// wake-up when there is little to do, and batching is better when there is much. Otherwise the worker must be
    /// [woken](Node::wake).
    pub(crate) fn give(&self, jobs: Jobs, now: Tick, directly: bool) {
        let jobs = if directly { self.write_directly(jobs, now) } else { Some(jobs) };
        for mut job in jobs.into_iter().flatten().flatten() {
            count(&self.counters.commands);
            job.handed = Some(Handed { at: now, ahead: self.owes() });
            // The worker owns the receiver for as long as the node can be reached from here; if it has ended, the
            // job comes back in the error and is dropped: its sender hears of it by its own time-out.
            drop(self.jobs.send(job));
        }
    }

    /// Wakes the worker if it sleeps; call after commands were given.
    pub(crate) fn wake(&self) {
        // RACE: the worker announces that it will sleep and then looks at its queue once more; we put into the queue
        // and then look at the announcement. One of the two sees the other, in whatever order they run.
        fence(Ordering::SeqCst);
        if self.may_write() && self.asleep.load(Ordering::SeqCst) {
            self.rouse();
        }
    }

    fn rouse(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(err) = self.waker.wake()
        {
            debug!("{}: cannot wake its thread: {err}", self.id);
        }
    }

    /// Whether what has queued is written now, and not together with more when an answer comes.
    ///
    /// RACE: looked at after something was put into the queue, as the sleep is. Whoever takes an answer looks at the
    /// queue after that.
    pub(crate) fn may_write(&self) -> bool {
        self.batches.load(Ordering::SeqCst) < BATCHES_MAX
    }

    /// How many commands are under way, or wait for the worker.
    pub(super) fn owes(&self) -> usize {
        self.owes.load(Ordering::Relaxed).saturating_add(self.jobs.len())
    }

    /// Whether commands wait for the worker.
    pub(crate) fn has_queue(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Writes them, or gives them back.
    fn write_directly(&self, jobs: Jobs, now: Tick) -> Option<Jobs> {
        let Some(mut outbox) = self.outbox.try_lock() else { return Some(jobs) };
        // RACE: the worker takes commands out of the queue only with the outbox locked. So an empty queue, seen with
        // the outbox locked, means that every command given earlier is in the outbox already, and ours goes behind it.
        if !outbox.is_open() || !outbox.is_flushed() || !self.jobs.is_empty() {
            return Some(jobs);
        }
        for job in jobs.into_iter().flatten() {
            count(&self.counters.commands);
            self.push(&mut outbox, job, now);
        }
        let flushed = outbox.flush();
        self.note_oldest(&outbox);
        if outbox.reader == Reader::Nobody {
            self.set_reader(&mut outbox, Reader::Worker);
        }
        if flushed.is_err() || !outbox.is_flushed() {
            // The worker writes the rest, or finds the same error and deals with it.
            drop(outbox);
            self.wake_now();
        }
        None
    }

    /// Puts a command in line, behind what it needs: the node knows how long a quarantine it is for, and tells of releases.
    ///
    /// RACE: what is released between an entry in a waiting list and the subscription would be announced to nobody. Both
    /// go over this connection, in this order.
    pub(crate) fn push(&self, outbox: &mut Outbox, job: Job, now: Tick) {
        self.greet_if_due(outbox, now);
        self.meet_if_due(outbox, now);
        if job.command.waits() {
            self.wants_notices.store(true, Ordering::Relaxed);
            self.listen(outbox, now);
        }
        outbox.push(job, now);
    }

    fn listen(&self, outbox: &mut Outbox, now: Tick) {
        if outbox.pushes && !outbox.subscribed {
            outbox.subscribed = true;
            outbox.push(Job::of_connection(Arc::clone(&self.subscribe)), now);
        }
    }

    /// Whether releases are announced on this connection.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// The answer to the subscription has come.
    pub(crate) fn set_listening(&self, answer: &Answer) {
        let listening = *answer == Answer::Subscribed;
        if !listening {
            debug!("{}: releases cannot be announced, calls that wait try now and then: {answer:?}", self.id);
            self.with_outbox(|it| it.is_deaf = true);
        }
        self.listening.store(listening, Ordering::Release);
    }

    /// The node has announced a release.
    pub(crate) fn take_notice(&self, key: &[u8], now: Tick) {
        self.events.released(self.id, key, &mut |leave| {
            if let Some(answer) = self.leaving.begin(key) {
                self.give([Some(Job::release(Arc::new(leave), Some(answer), now)), None], now, false);
            }
        });
        self.wake();
    }

    /// Why commands are refused at once, if they are.
    fn why_not(&self, now: Tick) -> Option<NodeFailure> {
        match &*self.health.lock() {
            Health::Up | Health::Unused => None,
            Health::Connecting { until } if now < *until => None,
            // The name server or the network takes longer than allowed; the worker is still at it.
            Health::Connecting { .. } => Some(NodeFailure::Connect { reason: "no connection in time".to_owned() }),
            Health::Down(failure) => Some(failure.clone()),
        }
    }

    /// Whether a round that begins now may have to wait for a connection first.
    pub(crate) fn is_connecting(&self) -> bool {
        !self.up.load(Ordering::Acquire) && matches!(*self.health.lock(), Health::Unused | Health::Connecting { .. })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(crate) fn start(&self) -> Tick {
        self.start
    }

    pub(crate) fn nanos(&self, at: Tick) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Who reads: see `wheel`.
impl Node {
    /// Lets the caller read from now on; the socket, if there is a connection. The intake must be locked.
    pub(crate) fn take_reading(&self) -> Option<Arc<Socket>> {
        let mut outbox = self.outbox.lock();
        let socket = Arc::clone(outbox.socket()?);
        if !outbox.is_flushed() {
            // The worker waits for the socket to take more.
            return None;
        }
        if self.set_reader(&mut outbox, Reader::Caller) {
            return Some(socket);
        }
        outbox.reader = Reader::Worker;
        None
    }

    /// The caller has stopped reading. True if the connection is left to nobody.
    pub(crate) fn leave_reading(&self, to: Reader) -> bool {
        let mut outbox = self.outbox.lock();
        if outbox.reader != Reader::Caller {
            // It was closed meanwhile.
            return false;
        }
        let to = if outbox.shared { Reader::Worker } else { to };
        self.set_reader(&mut outbox, to);
        outbox.reader == Reader::Nobody
    }

    /// Gives the connection back to the worker if it was left to nobody.
    pub(crate) fn settle(&self) {
        let mut outbox = self.outbox.lock();
        if outbox.reader == Reader::Nobody {
            self.set_reader(&mut outbox, Reader::Worker);
        }
    }

    /// Notes who reads, and lets the socket's readiness be announced to the worker or not. False if that failed.
    fn set_reader(&self, outbox: &mut Outbox, reader: Reader) -> bool {
        outbox.reader = reader;
        outbox.shared = false;
        self.set_watch(outbox)
    }

    /// After the worker has written.
    pub(crate) fn after_write(&self, outbox: &mut Outbox, wrote: bool) {
        match outbox.reader {
            Reader::Nobody if wrote => {
                self.set_reader(outbox, Reader::Worker);
            }
            Reader::Caller if wrote => {
                outbox.shared = true;
                self.set_watch(outbox);
            }
            _ if wrote => {
                self.set_watch(outbox);
            }
            _ => {}
        }
    }

    /// Has announced to the worker what it waits for: something to read if it reads, room if bytes are unsent.
    fn set_watch(&self, outbox: &mut Outbox) -> bool {
        let watch = match (outbox.reader, outbox.is_flushed()) {
            (Reader::Worker, true) => Watch::Read,
            (Reader::Worker, false) => Watch::ReadAndWrite,
            (Reader::Caller | Reader::Nobody, true) => Watch::Nothing,
            (Reader::Caller | Reader::Nobody, false) => Watch::Write,
        };
        if watch == outbox.watch {
            return true;
        }
        let Some(socket) = outbox.socket() else { return false };
        if let Err(err) = socket.watch(&self.registry, SOCKET, outbox.watch, watch) {
            debug!("{}: cannot wait for its socket: {err}", self.id);
            return false;
        }
        outbox.watch = watch;
        true
    }

    /// Begins with a new connection, read by the worker, and writes what was left from the time before.
    pub(crate) fn open(
        &self,
        socket: Arc<Socket>,
        server_info: &ServerInfo,
        carried: impl Iterator<Item = Job>,
        now: Tick,
    ) -> bool {
        self.listening.store(false, Ordering::Release);
        self.with_outbox(|outbox| {
            outbox.open(socket, server_info.pushes);
            self.plan_to_greet(outbox, server_info.memory.is_none_or(|it| it.kept), Moment::now());
            if self.wants_notices.load(Ordering::Relaxed) {
                self.listen(outbox, now);
            }
            carried.for_each(|job| self.push(outbox, job, now));
            self.set_watch(outbox)
        })
    }

    /// Ends with the connection: everything that is still owed on it.
    pub(crate) fn close(&self) -> VecDeque<InFlight> {
        self.listening.store(false, Ordering::Release);
        self.forget_meeting();
        self.with_outbox(Outbox::close)
    }

    /// Makes the worker take a turn, whatever is under way and whether or not it sleeps yet.
    ///
    /// RACE: what it has to look at is not in the queue that it looks at before it sleeps. The mark is.
    pub(crate) fn wake_now(&self) {
        self.kicked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.rouse();
    }

    pub(crate) fn take_kick(&self) -> bool {
        self.kicked.swap(false, Ordering::SeqCst)
    }

    /// Tells the worker that the connection is of no use.
    pub(crate) fn report_broken(&self) {
        self.broken.store(true, Ordering::Release);
        self.wake_now();
    }

    pub(crate) fn take_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire) && self.broken.swap(false, Ordering::AcqRel)
    }
}

/// The worker's side.
impl Node {
    /// Announces that the worker is about to sleep.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub(crate) fn with_outbox<T>(&self, work: impl FnOnce(&mut Outbox) -> T) -> T {
        let mut outbox = self.outbox.lock();
        let result = work(&mut outbox);
        self.note_oldest(&outbox);
        result
    }

    fn note_oldest(&self, outbox: &Outbox) {
        self.batches.store(outbox.batches(), Ordering::SeqCst);
        self.owes.store(outbox.owes(), Ordering::Relaxed);
        let oldest = outbox.oldest().map_or(0, |it| self.nanos(it).saturating_add(1));
        self.oldest.store(oldest, Ordering::Release);
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// Notes whether the worker looks by itself at what is owed.
    pub(crate) fn set_watched(&self, watched: bool) {
        self.watched.store(watched, Ordering::Release);
    }

    pub(crate) fn set_health(&self, health: Health) {
        let up = matches!(health, Health::Up);
        *self.health.lock() = health;
        self.up.store(up, Ordering::Release);
    }

    /// Asks the worker to end: at once if nothing is left to do, at `deadline` in any case.
    pub(crate) fn stop(&self, deadline: Tick) {
        *self.stop_at.lock() = Some(deadline);
        if let Err(err) = self.waker.wake() {
            debug!("{}: cannot wake its thread: {err}", self.id);
        }
    }

    pub(crate) fn stop_at(&self) -> Option<Tick> {
        *self.stop_at.lock()
    }
}

#[cfg(test)]
impl Node {
    /// One that has no worker, and the poll of the worker that it does not have.
    pub(crate) fn unattended(response_timeout: Duration) -> (Node, Poll) {
        let poll = Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        let waker = Waker::new(poll.registry(), WAKE).unwrap();
        let common = NodeContext {
            start: time::tick(),
            response_timeout,
            contacts: Arc::new(Contacts::new(1)),
            client: ClientId::draw().unwrap(),
            counters: Arc::new(Counters::default()),
            events: Arc::new(()),
            quarantine_length: None,
            sets: None,
        };
        let worker_handle = WorkerHandle { jobs: unbounded().0, registry, waker };
        (Node::new(NodeId::new(0), "n0".into(), worker_handle, common, Eligibility::new(None, 0.01)), poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_woken_before_it_sleeps_learns_of_it_once() {
        let (node, _poll) = Node::unattended(Duration::from_secs(1));
        assert!(!node.take_kick());

        node.wake_now();

        node.fall_asleep();
        assert!(node.take_kick());
        assert!(!node.take_kick());
    }
}
