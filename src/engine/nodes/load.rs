//! What is under way on a node's connection, for everybody to read without a lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::job::Job;
use crate::logic::pace::{self, Allowance};
use crate::sys::sync::{AtomicU64, AtomicUsize};
use crate::time::Tick;
use crate::wire::Conn;

/// See the module. Published at the end of every change of the connection.
pub(crate) struct Load {
    start: Tick,
    response_timeout: Duration,
    /// When the oldest command without an answer was given, in nanoseconds since `start`, plus one; 0 if there is none.
    oldest: AtomicU64,
    /// Batches under way, and how many may be: see [`Allowance::batches`].
    batches: AtomicUsize,
    batches_max: AtomicUsize,
    /// Commands without an answer.
    in_flight: AtomicUsize,
    /// When the last answer came, as `oldest`.
    answered_at: AtomicU64,
    /// How many commands may be under way before callers wait: see [`Load::pause`].
    allowed: AtomicUsize,
    /// How many nanoseconds each takes.
    each: AtomicU64,
}

impl Load {
    pub(crate) fn new(start: Tick, response_timeout: Duration) -> Load {
        Load {
            start,
            response_timeout,
            oldest: AtomicU64::new(0),
            batches: AtomicUsize::new(0),
            batches_max: AtomicUsize::new(Allowance::default().batches()),
            in_flight: AtomicUsize::new(0),
            answered_at: AtomicU64::new(0),
            allowed: AtomicUsize::new(usize::MAX),
            each: AtomicU64::new(0),
        }
    }

    /// The connection has to be locked.
    pub(super) fn publish(&self, conn: &Conn<Job>) {
        self.batches.store(conn.batches(), Ordering::SeqCst);
        self.in_flight.store(conn.in_flight(), Ordering::Relaxed);
        let oldest = conn.oldest().map_or(0, |it| self.nanos(it).saturating_add(1));
        self.oldest.store(oldest, Ordering::Release);
    }

    /// Answers have come; so many commands may be under way now.
    pub(super) fn publish_allowance(&self, allowance: &Allowance, now: Tick) {
        self.answered_at.store(self.nanos(now), Ordering::Relaxed);
        self.allowed.store(allowance.commands(), Ordering::Relaxed);
        self.batches_max.store(allowance.batches(), Ordering::SeqCst);
        self.each.store(u64::try_from(allowance.each().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// How many commands have no answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether what has queued is written now, and not together with more when an answer comes.
    ///
    /// RACE: looked at after something was put into the queue, as the sleep is. Whoever takes an answer looks at the
    /// queue after that.
    pub(crate) fn may_write(&self) -> bool {
        self.may_follow(self.batches.load(Ordering::SeqCst))
    }

    /// Whether another batch may follow so many.
    pub(super) fn may_follow(&self, batches: usize) -> bool {
        batches < self.batches_max.load(Ordering::SeqCst)
    }

    /// Whether an answer has been due for longer than the response timeout. It may be there, unread.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        self.is_due_for(self.response_timeout, now)
    }

    /// Whether an answer has been due for longer than `patience`, likewise.
    pub(crate) fn is_due_for(&self, patience: Duration, now: Tick) -> bool {
        let Some(oldest) = self.oldest.load(Ordering::Acquire).checked_sub(1) else { return false };
        let age = self.nanos(now).saturating_sub(oldest);
        patience.as_nanos() < u128::from(age)
    }

    /// How long whoever begins a round waits first, so that this node keeps up; `queued` commands wait for the worker.
    pub(crate) fn pause(&self, queued: usize, now: Tick) -> Duration {
        let (under_way, allowed) = (self.in_flight().saturating_add(queued), self.allowed.load(Ordering::Relaxed));
        if under_way <= allowed {
            return Duration::ZERO;
        }
        let since = self.nanos(now).saturating_sub(self.answered_at.load(Ordering::Relaxed));
        let (each, since) = (self.each.load(Ordering::Relaxed), Duration::from_nanos(since));
        pace::pause(under_way.saturating_sub(allowed), Duration::from_nanos(each), since, self.response_timeout)
    }

    fn nanos(&self, at: Tick) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}
