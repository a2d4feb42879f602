//! What is under way on a node's connection, for everybody to read without a lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::job::Job;
use crate::logic::way::{batches, in_time};
use crate::sys::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, fence};
use crate::time;
use crate::time::Tick;
use crate::wire::Conn;

/// So many commands may always be under way to a node: as many as rounds, as long as nothing is slow.
const COMMANDS: usize = 128;

/// See the module. Published at the end of every change of the connection.
pub(crate) struct Load {
    start: Tick,
    pub(super) response_timeout: Duration,
    /// When the oldest command without an answer was given, in nanoseconds since `start`, plus one; 0 if there is none.
    oldest: AtomicU64,
    /// Batches under way.
    batches: AtomicUsize,
    /// Commands without an answer.
    in_flight: AtomicUsize,
    /// Nobody drives the connection.
    idle: AtomicBool,
    /// When the last answer came, in nanoseconds since `start`.
    answered_at: AtomicU64,
    /// How long the way takes, in nanoseconds, plus one; 0 if that is not known.
    way: AtomicU64,
    /// So many commands it answers well within the response timeout.
    answers: AtomicUsize,
}

impl Load {
    pub(crate) fn new(start: Tick, response_timeout: Duration) -> Load {
        Load {
            start,
            response_timeout,
            oldest: AtomicU64::new(0),
            batches: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            idle: AtomicBool::new(false),
            answered_at: AtomicU64::new(0),
            way: AtomicU64::new(0),
            answers: AtomicUsize::new(0),
        }
    }

    /// The connection has to be locked.
    pub(super) fn publish(&self, conn: &Conn<Job>, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
        self.batches.store(conn.batches, Ordering::SeqCst);
        self.in_flight.store(conn.in_flight(), Ordering::Relaxed);
        let oldest = conn
            .oldest()
            .map_or(0, |it| self.nanos(it).saturating_add(1));
        self.oldest.store(oldest, Ordering::Release);
    }

    /// Answers have come, on such a way. `answers`: see [`Answers::in_two_windows`](crate::logic::way::Answers::in_two_windows).
    pub(super) fn publish_answers(&self, way: Option<Duration>, answers: usize, now: Tick) {
        self.answers.store(answers, Ordering::Relaxed);
        self.answered_at.store(self.nanos(now), Ordering::Relaxed);
        let way = way.map_or(0, |it| {
            u64::try_from(it.as_nanos())
                .unwrap_or(u64::MAX)
                .saturating_add(1)
        });
        self.way.store(way, Ordering::SeqCst);
    }

    fn way(&self) -> Option<Duration> {
        self.way
            .load(Ordering::SeqCst)
            .checked_sub(1)
            .map(Duration::from_nanos)
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
    pub(super) fn may_follow(&self, under_way: usize) -> bool {
        under_way < batches(self.way())
    }

    /// Whether an answer has been due for longer than the response timeout. It may be there, unread.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        self.is_due_for(self.response_timeout, now)
    }

    /// Whether an answer has been due for longer than `patience`, likewise.
    pub(crate) fn is_due_for(&self, patience: Duration, now: Tick) -> bool {
        let Some(oldest) = self.oldest.load(Ordering::Acquire).checked_sub(1) else {
            return false;
        };
        let age = self.nanos(now).saturating_sub(oldest);
        patience.as_nanos() < u128::from(age)
    }

    /// Whether a call may begin a round while `queued` commands wait for the worker: the node has few, or answers in time and has
    /// no more than it answers in half the response timeout. One that is silent, or that has answered nothing for a quarter of it,
    /// holds nobody up.
    ///
    /// A round ends at the majority. So nothing else holds callers back when one node, or the thread that serves it, gets less
    /// done than they ask for: its queue would grow until every round has to do without that node.
    pub(crate) fn has_room(&self, queued: usize, now: Tick) -> bool {
        let under_way = self.in_flight().saturating_add(queued);
        let is_few = under_way <= COMMANDS;
        let is_in_time = || !self.is_due_for(in_time(self.way(), self.response_timeout), now);
        if is_few || under_way <= self.answers.load(Ordering::Relaxed) && is_in_time() {
            return true;
        }
        let since = u128::from(
            self.nanos(now)
                .saturating_sub(self.answered_at.load(Ordering::Relaxed)),
        );
        self.response_timeout.as_nanos() < since.saturating_mul(4) || self.is_overdue(now)
    }

    fn nanos(&self, at: Tick) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The longest wait before a round. A node that cannot keep up with callers that all wait for so long is left out.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// See the module. One for all nodes of a manager.
#[derive(Default)]
pub(crate) struct Room {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    answered: Condvar,
}

impl Room {
    /// Waits until there is room, [`WAIT_MAX`] at most.
    pub(super) fn wait(&self, has_room: impl Fn() -> bool) {
        let end = time::deadline(WAIT_MAX);
        let mut nobody = self.lock.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // RACE: who has taken an answer looks for calls that wait after it has published what is under way; we say that we
        // wait and then look at that. One of the two sees the other.
        fence(Ordering::SeqCst);
        while !has_room() && !self.answered.wait_until(&mut nobody, end).timed_out() {}
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Answers have come: whoever waits looks again. Call it with nothing locked that a look at all nodes locks.
    pub(super) fn note_answers(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            drop(self.lock.lock());
            self.answered.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::arithmetic_side_effects,
        reason = "a test may overflow: it fails then"
    )]

    use std::collections::VecDeque;

    use super::*;
    use crate::logic::way::{Answers, Way};
    use crate::time;

    /// With so many commands under way since the beginning, the last answer after so many milliseconds, and a way of so many;
    /// whether there is room so many milliseconds later.
    fn has_room(under_way: [usize; 2], answered: u64, way: u64, later: u64) -> bool {
        let (start, ms) = (time::tick(), Duration::from_millis);
        let load = Load::new(start, ms(100));
        let [in_flight, queued] = under_way;
        load.in_flight.store(in_flight, Ordering::Relaxed);
        load.oldest.store(1, Ordering::Relaxed);
        let answered = start.checked_add(ms(answered)).unwrap();
        load.publish_answers(Some(ms(way)), 3_000, answered);
        load.has_room(queued, answered.checked_add(ms(later)).unwrap())
    }

    #[test]
    fn h6_callers_wait_for_a_node_that_falls_behind() {
        assert!(has_room([COMMANDS, 0], 30, 1, 1) && !has_room([COMMANDS, 1], 30, 1, 1));
        assert!(has_room([1_000, 1_000], 20, 1, 1), "it answers in time");
        assert!(
            !has_room([1_000, 2_001], 20, 1, 1),
            "more than it has answered in two windows"
        );
        assert!(has_room([1_000, 0], 90, 50, 5), "it is far away");
    }

    /// Callers give a node twenty times as many commands as it answers in a second, for as long as they do not wait for it.
    /// How long the slowest took, from when it was given.
    fn slowest(per_milli: usize, threads: usize, millis: u64) -> u64 {
        let start = time::tick();
        let load = Load::new(start, Duration::from_millis(100));
        let (mut way, mut answers) = (Way::default(), Answers::default());
        let (mut queue, mut batches, mut slowest) = (Vec::new(), VecDeque::new(), 0);
        for now in 0..millis {
            let tick = start.checked_add(Duration::from_millis(now)).unwrap();
            let under_way = |batches: &VecDeque<(u64, usize, Vec<_>)>| {
                batches.iter().map(|it| it.2.len()).sum::<usize>()
            };
            for _ in 0..per_milli * 20 {
                if load.has_room(queue.len(), tick) && under_way(&batches) + queue.len() < threads {
                    queue.push((now, batches.is_empty() && queue.is_empty()));
                }
            }
            if load.may_follow(batches.len()) && !queue.is_empty() {
                batches.push_back((now, queue.len(), std::mem::take(&mut queue)));
            }
            let mut done = per_milli;
            while let Some((asked, left, _)) = batches.front_mut() {
                (*left, done) = (left.saturating_sub(done), done.saturating_sub(*left));
                if *left != 0 {
                    break;
                }
                let asked = *asked;
                let answered = batches.pop_front().unwrap().2;
                let count = answered.len();
                for (given, is_alone) in answered {
                    slowest = slowest.max(now - given);
                    if is_alone {
                        way.on_answer(tick, Duration::from_millis(now - asked));
                    }
                }
                answers.on_answers(count, in_time(way.shortest(), load.response_timeout), tick);
                load.publish_answers(way.shortest(), answers.in_two_windows(), tick);
            }
            load.batches.store(batches.len(), Ordering::Relaxed);
            load.in_flight.store(under_way(&batches), Ordering::Relaxed);
            let oldest = batches.front().map_or(0, |it| it.0 * 1_000_000 + 1);
            load.oldest.store(oldest, Ordering::Relaxed);
        }
        slowest
    }

    #[test]
    fn h6_a_node_that_answers_some_thousand_commands_a_second_is_never_late() {
        for per_milli in [2, 5, 20, 100] {
            let slowest = slowest(per_milli, 4_000, 60_000);
            assert!(slowest < 100, "{per_milli} a millisecond: {slowest} ms");
        }
    }

    #[test]
    fn h6_a_node_that_hangs_holds_nobody_up() {
        assert!(!has_room([1_000, 1_000], 30, 1, 25) && has_room([1_000, 1_000], 30, 1, 26));
    }
}
