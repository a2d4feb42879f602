//! What is on record about a node, for everybody to read: whether it may vote, what its clock shows, what it said about
//! itself.

use std::mem::{self, Discriminant};
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::Duration;

use crate::sys::logging::{Level, info, warn, write_line};
use crate::sys::sync::{AtomicU64, Mutex};

use crate::engine::nodes::node::Node;
use crate::error::NodeFailure;
use crate::error::Quarantine;
use crate::logic::clock::ClockStep;
use crate::logic::standing::{News, Silence, Standing};
use crate::stats::count;
use crate::time::{About, Moment, Tick};
use crate::wire::Greeting;

/// The log warns of steps of a node's clock no more often: a clock that is broken is set with every answer.
const STEP_SAID_EVERY: Duration = Duration::from_secs(60);
/// The same for a kind of failure that somebody has to mend.
const FAILURE_SAID_EVERY: Duration = Duration::from_secs(60 * 60);
/// The same for releases that are given up.
const OVERFLOW_SAID_EVERY: Duration = Duration::from_secs(60);

/// All that there are, for [`Record::why`].
const WHY: [Quarantine; 5] =
    [Quarantine::New, Quarantine::Restarted, Quarantine::Emptied, Quarantine::ClockStep, Quarantine::Unverifiable];

/// See the module. Kept outside the intake, which whoever waits for an answer may have locked.
pub(crate) struct Record {
    /// Until when it is silent for a lock that it does not know, in nanoseconds since the node's start; 0 for never.
    told_until: AtomicU64,
    /// When the silence began that its restart has brought, likewise, and the one that a step of its clock has; the
    /// smallest number for none. How long they last may change: see `memory`.
    restarted: AtomicI64,
    stepped: AtomicI64,
    /// Why it is silent, if it is.
    why: AtomicU8,
    /// When its clock was last seen to have been set forward: one more than the nanoseconds since the node's start; 0 for
    /// never.
    stepped_at: AtomicU64,
    /// When the log last warned of a step, likewise.
    step_said: AtomicU64,
    /// When it last warned of releases that were given up, likewise.
    overflow_said: AtomicU64,
    /// When it last warned of each kind of failure.
    failures_said: Mutex<Vec<(Discriminant<NodeFailure>, Tick)>>,
    /// By how many microseconds its clock is ahead of the one of leases, at least and at most; the smallest number if that
    /// is not known. Read one after the other: a hint, which nobody's safety rests on.
    clock_offset: [AtomicI64; 2],
    /// What the server said at the beginning of the last connection.
    greeting: Mutex<Option<Greeting>>,
}

impl Default for Record {
    fn default() -> Record {
        Record {
            told_until: AtomicU64::new(0),
            restarted: AtomicI64::new(i64::MIN),
            stepped: AtomicI64::new(i64::MIN),
            why: AtomicU8::new(0),
            stepped_at: AtomicU64::new(0),
            step_said: AtomicU64::new(0),
            overflow_said: AtomicU64::new(0),
            failures_said: Mutex::new(Vec::new()),
            clock_offset: [AtomicI64::new(i64::MIN), AtomicI64::new(i64::MIN)],
            greeting: Mutex::new(None),
        }
    }
}

impl Node {
    /// For how long its grants do not count yet; zero if they do.
    pub(crate) fn silent_for(&self, now: Tick) -> Duration {
        let told = self.record.told_until.load(Ordering::Relaxed).saturating_sub(self.nanos(now));
        let begun = self.left(&self.record.restarted, now).max(self.left(&self.record.stepped, now));
        Duration::from_nanos(told).max(begun)
    }

    /// Why its grants do not count yet.
    pub(crate) fn why_silent(&self) -> Quarantine {
        let number = usize::from(self.record.why.load(Ordering::Relaxed));
        WHY.get(number).copied().unwrap_or(Quarantine::Restarted)
    }

    /// What is left of a silence that began at `began`.
    fn left(&self, began: &AtomicI64, now: Tick) -> Duration {
        let (began, Some(length)) = (began.load(Ordering::Relaxed), self.silence()) else { return Duration::ZERO };
        let length = i64::try_from(length.as_nanos()).unwrap_or(i64::MAX);
        let end = if began == i64::MIN { began } else { began.saturating_add(length) };
        let now = i64::try_from(self.nanos(now)).unwrap_or(i64::MAX);
        Duration::from_nanos(u64::try_from(end.saturating_sub(now)).unwrap_or(0))
    }

    /// What its clock shows now, at least and at most: microseconds since 1970.
    pub(crate) fn clock_shows(&self, now: Moment) -> Option<(u64, u64)> {
        let [low, high] = &self.record.clock_offset;
        let shows = |offset: &AtomicI64| {
            let offset = Some(offset.load(Ordering::Relaxed)).filter(|it| *it != i64::MIN)?;
            now.boot_micros().checked_add_signed(offset)
        };
        Some((shows(low)?, shows(high)?))
    }

    pub(crate) fn greeting(&self) -> Option<Greeting> {
        self.record.greeting.lock().clone()
    }

    pub(crate) fn note_greeting(&self, greeting: &Greeting) {
        let before = self.record.greeting.lock().replace(greeting.clone());
        let policy = greeting.would_evict.as_ref();
        if let Some(policy) = policy.filter(|_| before.as_ref().and_then(|it| it.would_evict.as_ref()) != policy) {
            warn!(
                "{}: {}: its maxmemory-policy is {policy}: with a limit on its memory it may evict locks",
                self.id, self.address
            );
        }
        if greeting.promoted && !before.is_some_and(|it| it.promoted && it.run_id == greeting.run_id) {
            warn!(
                "{}: {}: it was a replica and has been promoted: locks of the moment before may be missing",
                self.id, self.address
            );
        }
    }

    /// Puts on record what is known of it now, and says what was news.
    pub(crate) fn note_standing(&self, standing: &Standing, news: Option<News>, now: Tick) {
        let began = |silence: Option<Silence>| silence.map_or(i64::MIN, |it| it.began(self.start()));
        self.record.restarted.store(began(standing.restarted()), Ordering::Relaxed);
        self.record.stepped.store(began(standing.stepped()), Ordering::Relaxed);
        let why = standing.why(now);
        let number = WHY.iter().position(|it| *it == why).and_then(|it| u8::try_from(it).ok()).unwrap_or(u8::MAX);
        self.record.why.store(number, Ordering::Relaxed);
        self.record.told_until.store(standing.told_until().map_or(0, |it| self.nanos(it)), Ordering::Relaxed);
        let (low, high) = standing.clock_offset().unwrap_or((i64::MIN, i64::MIN));
        self.record.clock_offset[0].store(low, Ordering::Relaxed);
        self.record.clock_offset[1].store(high, Ordering::Relaxed);
        if let Some(news) = news {
            self.say_news(news, standing.silent_for(now), now);
        }
        if let Some(News::Stepped(ClockStep::Forward(_))) = news {
            // RACE: on record before the leases are looked at, and whoever enters one in the schedule looks at the record
            // after that: none is missed.
            self.record.stepped_at.store(self.nanos(now).saturating_add(1), Ordering::Relaxed);
            self.schedule.look_at_all();
        }
    }

    /// Whether its clock was seen to have been set forward at `since` or later.
    pub(crate) fn has_stepped(&self, since: Tick) -> bool {
        self.nanos(since) < self.record.stepped_at.load(Ordering::Relaxed)
    }

    /// Whether a lock that is gone there may be set again. Not for a while after a step of the node's clock: extensions
    /// are counted then, because a key that is there has been there all the time.
    pub(crate) fn may_heal(&self, now: Tick) -> bool {
        self.left(&self.record.stepped, now).is_zero()
    }

    /// `left`: how long the node is silent because of that.
    fn say_news(&self, news: News, left: Duration, now: Tick) {
        match news {
            News::Restarted => {
                info!("{}: {}: no vote for {}: its server was started lately", self.id, self.address, About(left));
            }
            News::Empty => self.note_forgotten(left),
            News::Another => {
                info!(
                    "{}: {}: no vote for {}: its server was restarted, promoted, restored or swapped",
                    self.id,
                    self.address,
                    About(left)
                );
            }
            News::Stepped(step) => {
                count(&self.counters.clock_steps);
                let level = if self.may_warn_of_step(now) { Level::Warn } else { Level::Debug };
                match step {
                    ClockStep::Forward(by) => write_line!(
                        level,
                        "{}: {}: its clock was set forward by {}, so locks have expired early there: no vote for {}",
                        self.id,
                        self.address,
                        About(by),
                        About(left)
                    ),
                    ClockStep::Back(by) => write_line!(
                        level,
                        "{}: {}: its clock was set back by {}: locks of holders that are gone last longer there",
                        self.id,
                        self.address,
                        About(by)
                    ),
                }
            }
        }
    }

    /// Whether the log has not warned of a step for a while; it does now.
    fn may_warn_of_step(&self, now: Tick) -> bool {
        self.may_say(&self.record.step_said, STEP_SAID_EVERY, now)
    }

    /// Whether nothing was said for so long, at `said`; it is now.
    fn may_say(&self, said: &AtomicU64, every: Duration, now: Tick) -> bool {
        let (before, now) = (said.load(Ordering::Relaxed), self.nanos(now).saturating_add(1));
        let pause = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        let may = before == 0 || before.saturating_add(pause) <= now;
        if may {
            said.store(now, Ordering::Relaxed);
        }
        may
    }

    /// Whether the log warns of this failure now: of one that stays until somebody mends it, once in a while.
    pub(crate) fn may_warn_of(&self, failure: &NodeFailure, now: Tick) -> bool {
        if !failure.needs_somebody() {
            return false;
        }
        let kind = mem::discriminant(failure);
        let mut said = self.record.failures_said.lock();
        let before = said.iter_mut().find(|(it, _)| *it == kind);
        match before {
            Some((_, at)) if now.saturating_duration_since(*at) < FAILURE_SAID_EVERY => return false,
            Some((_, at)) => *at = now,
            None => said.push((kind, now)),
        }
        true
    }

    /// A node that is connected has refused a command. It may go on doing so, and nobody else says it.
    pub(crate) fn note_refusal(&self, failure: &NodeFailure, now: Tick) {
        if self.may_warn_of(failure, now) {
            warn!("{}: {}: has no vote, as it refuses a command: {failure}", self.id, self.address);
        }
    }

    pub(crate) fn say_overflow(&self, now: Tick) {
        if self.may_say(&self.record.overflow_said, OVERFLOW_SAID_EVERY, now) {
            warn!(
                "{}: {}: too many releases wait for it: the oldest are given up, and their keys expire by themselves",
                self.id, self.address
            );
        }
    }

    /// Says that the node has lost its memory.
    pub(crate) fn note_forgotten(&self, left: Duration) {
        info!("{}: {}: no vote for {}: it is new, or has lost what it had stored", self.id, self.address, About(left));
    }
}
