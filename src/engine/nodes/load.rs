//! What is under way on a node's connection, for everybody to read without a lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::job::Job;
use crate::logic::pace::Allowance;
use crate::sys::sync::{AtomicBool, AtomicU64, AtomicUsize};
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
    /// Nobody drives the connection.
    idle: AtomicBool,
    /// When the last answer came, as `oldest`.
    answered_at: AtomicU64,
    /// How many commands may be under way before callers wait: see [`Load::has_room`].
    allowed: AtomicUsize,
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
            idle: AtomicBool::new(false),
            answered_at: AtomicU64::new(0),
            allowed: AtomicUsize::new(Allowance::default().commands()),
        }
    }

    /// The connection has to be locked.
    pub(super) fn publish(&self, conn: &Conn<Job>, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
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
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// Whether nobody reads what comes.
    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::SeqCst)
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

    /// Whether a call may begin a round while `queued` commands wait for the worker. A node that is silent, or that has answered
    /// nothing for a quarter of the response timeout, holds nobody up.
    pub(crate) fn has_room(&self, queued: usize, now: Tick) -> bool {
        let under_way = self.in_flight().saturating_add(queued);
        if under_way <= self.allowed.load(Ordering::Relaxed) {
            return true;
        }
        let since = u128::from(self.nanos(now).saturating_sub(self.answered_at.load(Ordering::Relaxed)));
        self.response_timeout.as_nanos() < since.saturating_mul(4) || self.is_overdue(now)
    }

    fn nanos(&self, at: Tick) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    /// With so many commands under way, after an answer at the beginning; whether there is room so many milliseconds later.
    fn has_room(in_flight: usize, queued: usize, later: u64) -> bool {
        let start = time::tick();
        let load = Load::new(start, Duration::from_millis(100));
        load.in_flight.store(in_flight, Ordering::Relaxed);
        load.has_room(queued, start.checked_add(Duration::from_millis(later)).unwrap())
    }

    #[test]
    fn h6_callers_wait_for_a_node_that_falls_behind() {
        let all = Allowance::default().commands();
        assert!(has_room(all, 0, 1) && !has_room(all, 1, 1));
    }

    #[test]
    fn h6_a_node_that_hangs_holds_nobody_up() {
        assert!(!has_room(1_000, 1_000, 25) && has_room(1_000, 1_000, 26));
    }
}
