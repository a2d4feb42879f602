//! The callers' side of one node: give it a command, or hear at once why not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use crossbeam_channel::Sender;
use log::{debug, info};
use mio::Waker;
use parking_lot::Mutex;

use crate::engine::outbox::{Job, Outbox};
use crate::error::NodeFailure;
use crate::ids::NodeId;
use crate::stats::{Counters, count};
use crate::time::Tick;

/// What is known of a node's connection.
#[derive(Clone, Debug)]
pub(crate) enum Health {
    /// Nothing was ever sent, so nobody has tried to connect.
    Unused,
    /// The first attempt, or the first after a connection was lost. Commands wait for it until then.
    Connecting { until: Tick },
    Up,
    /// Commands are refused at once, and not kept.
    Down(NodeFailure),
}

/// One node, shared by its worker and everybody who sends.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) address: Arc<str>,
    jobs: Sender<Job>,
    waker: Waker,
    /// Set while the worker sleeps or is about to: only then it needs to be woken.
    asleep: AtomicBool,
    up: AtomicBool,
    health: Mutex<Health>,
    outbox: Mutex<Outbox>,
    /// When the oldest owed answer was asked for, in nanoseconds since `start`, plus one; 0 if none is owed.
    oldest: AtomicU64,
    /// Whether the log has said that the node does not respond.
    stall_logged: AtomicBool,
    start: Tick,
    response_timeout: Duration,
    stop_at: Mutex<Option<Tick>>,
    pub(crate) counters: Arc<Counters>,
}

impl Node {
    pub(crate) fn new(
        id: NodeId,
        address: Arc<str>,
        jobs: Sender<Job>,
        waker: Waker,
        start: Tick,
        response_timeout: Duration,
        counters: Arc<Counters>,
    ) -> Node {
        Node {
            id,
            address,
            jobs,
            waker,
            asleep: AtomicBool::new(false),
            up: AtomicBool::new(false),
            health: Mutex::new(Health::Unused),
            outbox: Mutex::default(),
            oldest: AtomicU64::new(0),
            stall_logged: AtomicBool::new(false),
            start,
            response_timeout,
            stop_at: Mutex::new(None),
            counters,
        }
    }

    /// Takes a command, or says why the node cannot be asked now; then nothing of the command has come to the node.
    ///
    /// `directly`: the caller writes it itself if the connection has nothing else to write. That spares the worker a
    /// wake-up when there is little to do, and batching is better when there is much. Otherwise the worker must be
    /// [woken](Node::wake).
    pub(crate) fn offer(&self, job: Job, now: Tick, directly: bool) -> Result<(), (Job, NodeFailure)> {
        if !self.up.load(Ordering::Acquire)
            && let Some(failure) = self.why_not(now)
        {
            return Err((job, failure));
        }
        if self.is_stalled(now) {
            return Err((job, NodeFailure::Stalled));
        }
        self.give(job, now, directly);
        Ok(())
    }

    /// Takes a command whatever the node's health: releases must not be dropped.
    pub(crate) fn give(&self, job: Job, now: Tick, directly: bool) {
        count(&self.counters.commands);
        let job = if directly { self.write_directly(job, now) } else { Some(job) };
        if let Some(job) = job {
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
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(err) = self.waker.wake()
        {
            debug!("{}: cannot wake its thread: {err}", self.id);
        }
    }

    /// Whether commands wait for the worker.
    pub(crate) fn has_queue(&self) -> bool {
        !self.jobs.is_empty()
    }

    fn write_directly(&self, job: Job, now: Tick) -> Option<Job> {
        let Some(mut outbox) = self.outbox.try_lock() else { return Some(job) };
        // RACE: the worker takes commands out of the queue only with the outbox locked. So an empty queue, seen with
        // the outbox locked, means that every command given earlier is in the outbox already, and ours goes behind it.
        if !outbox.is_open() || !outbox.is_flushed() || !self.jobs.is_empty() {
            return Some(job);
        }
        outbox.push(job, now);
        let flushed = outbox.flush();
        self.note_oldest(&outbox);
        if flushed.is_err() || !outbox.is_flushed() {
            // The worker writes the rest, or finds the same error and deals with it.
            drop(outbox);
            self.wake();
        }
        None
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

    /// Whether answers are overdue. Such a node is not asked again until it has caught up: what was sent already will
    /// be answered in order, and more would only make its backlog longer.
    fn is_stalled(&self, now: Tick) -> bool {
        let oldest = self.oldest.load(Ordering::Acquire);
        let Some(oldest) = oldest.checked_sub(1) else { return false };
        let age = self.nanos(now).saturating_sub(oldest);
        let stalled = self.response_timeout.as_nanos() < u128::from(age);
        if stalled && !self.stall_logged.swap(true, Ordering::AcqRel) {
            info!("{}: not responding: {}", self.id, self.address);
        }
        stalled
    }

    fn nanos(&self, at: Tick) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
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
        let oldest = outbox.oldest().map_or(0, |it| self.nanos(it).saturating_add(1));
        self.oldest.store(oldest, Ordering::Release);
    }

    /// Says once that answers come again.
    pub(crate) fn note_answers(&self, late: bool) {
        if !late && self.stall_logged.load(Ordering::Acquire) && self.stall_logged.swap(false, Ordering::AcqRel) {
            info!("{}: responding again: {}", self.id, self.address);
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
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
