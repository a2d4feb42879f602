//! What is known of a node, for everybody to read: whether it may vote, what its clock shows, what it said about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::Duration;

use crate::sys::logging::{Level, info, warn, write_line};
use crate::sys::sync::{AtomicU64, Mutex};

use crate::answer::ServerInfo;
use crate::engine::nodes::memory::QuarantineLength;
use crate::error::{FailureKind, MemberReport, NodeFailure, NodeFinding, Quarantine};
use crate::ids::NodeId;
use crate::logic::clock::ClockStep;
use crate::logic::eligibility::{Change, Eligibility, QuarantineSpan};
use crate::observer::{Event, Upcall};
use crate::stats::{Counters, count};
use crate::time::{About, Moment, Tick};

/// The log warns of steps of a node's clock no more often: a clock that is broken is set with every answer.
const STEP_SAID_EVERY: Duration = Duration::from_secs(60);
/// The same for a kind of failure that somebody has to mend.
const FAILURE_SAID_EVERY: Duration = Duration::from_secs(60 * 60);
/// The same for releases that are given up.
const OVERFLOW_SAID_EVERY: Duration = Duration::from_secs(60);

/// All that there are, for [`Status::why`].
const WHY: [Quarantine; 5] =
    [Quarantine::New, Quarantine::Restarted, Quarantine::Emptied, Quarantine::ClockStep, Quarantine::Unverifiable];

/// See the module.
pub(crate) struct Status {
    id: NodeId,
    address: Arc<str>,
    start: Tick,
    counters: Arc<Counters>,
    upcall: Upcall,
    quarantine_length: Option<Arc<QuarantineLength>>,
    /// Until when it is quarantined for a lock that it does not know, in nanoseconds since the node's start; 0 for never.
    told_until: AtomicU64,
    /// When the quarantine began that its restart has brought, likewise, and the one that a step of its clock has; the
    /// smallest number for none. How long they last may change: see `memory`.
    restarted: AtomicI64,
    stepped: AtomicI64,
    /// Why it is quarantined, if it is.
    why: AtomicU8,
    /// When its clock was last seen to have been set forward: one more than the nanoseconds since the node's start; 0 for
    /// never.
    stepped_at: AtomicU64,
    /// When the log last warned of a step, likewise.
    step_said: AtomicU64,
    /// When it last warned of releases that were given up, likewise.
    overflow_said: AtomicU64,
    /// When it last warned of each kind of failure.
    failures_said: Mutex<Vec<(FailureKind, Tick)>>,
    /// By how many microseconds its clock is ahead of the one of leases, at least and at most; the smallest number if that
    /// is not known. Read one after the other: a hint, which nobody's safety rests on.
    clock_offset: [AtomicI64; 2],
    /// What the server said at the beginning of the last connection.
    server_info: Mutex<Option<ServerInfo>>,
    /// What its servers or sentinels said last, if it is several.
    members: Mutex<Members>,
}

/// What the servers of a node said, or its sentinels.
#[derive(Clone, Default)]
pub(crate) struct Members {
    pub(crate) all: Vec<MemberReport>,
    /// Those with which something is wrong, in a line.
    pub(crate) failing: String,
}

impl Status {
    pub(crate) fn new(
        id: NodeId,
        address: Arc<str>,
        start: Tick,
        counters: Arc<Counters>,
        upcall: Upcall,
        quarantine_length: Option<Arc<QuarantineLength>>,
    ) -> Status {
        Status {
            id,
            address,
            start,
            counters,
            upcall,
            quarantine_length,
            told_until: AtomicU64::new(0),
            restarted: AtomicI64::new(i64::MIN),
            stepped: AtomicI64::new(i64::MIN),
            why: AtomicU8::new(0),
            stepped_at: AtomicU64::new(0),
            step_said: AtomicU64::new(0),
            overflow_said: AtomicU64::new(0),
            failures_said: Mutex::new(Vec::new()),
            clock_offset: [AtomicI64::new(i64::MIN), AtomicI64::new(i64::MIN)],
            server_info: Mutex::new(None),
            members: Mutex::default(),
        }
    }

    /// For how long its grants do not count yet; zero if they do.
    pub(crate) fn quarantine_left(&self, now: Tick) -> Duration {
        let told = self.told_until.load(Ordering::Relaxed).saturating_sub(self.nanos(now));
        let begun = self.left(&self.restarted, now).max(self.left(&self.stepped, now));
        Duration::from_nanos(told).max(begun)
    }

    /// Why its grants do not count yet.
    pub(crate) fn quarantine_reason(&self) -> Quarantine {
        let number = usize::from(self.why.load(Ordering::Relaxed));
        WHY.get(number).copied().unwrap_or(Quarantine::Restarted)
    }

    /// What is left of a quarantine that began at `began`.
    fn left(&self, began: &AtomicI64, now: Tick) -> Duration {
        let (began, Some(length)) = (began.load(Ordering::Relaxed), &self.quarantine_length) else {
            return Duration::ZERO;
        };
        let length = i64::try_from(length.get().as_nanos()).unwrap_or(i64::MAX);
        let end = if began == i64::MIN { began } else { began.saturating_add(length) };
        let now = i64::try_from(self.nanos(now)).unwrap_or(i64::MAX);
        Duration::from_nanos(u64::try_from(end.saturating_sub(now)).unwrap_or(0))
    }

    /// What its clock shows now, at least and at most: microseconds since 1970.
    pub(crate) fn clock_shows(&self, now: Moment) -> Option<(u64, u64)> {
        let [low, high] = &self.clock_offset;
        let shows = |offset: &AtomicI64| {
            let offset = Some(offset.load(Ordering::Relaxed)).filter(|it| *it != i64::MIN)?;
            now.boot_micros().checked_add_signed(offset)
        };
        Some((shows(low)?, shows(high)?))
    }

    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        self.server_info.lock().clone()
    }

    pub(crate) fn members(&self) -> Members {
        self.members.lock().clone()
    }

    pub(crate) fn publish_members(&self, members: Members) {
        *self.members.lock() = members;
    }

    pub(crate) fn publish_server_info(&self, server_info: &ServerInfo) {
        let before = self.server_info.lock().replace(server_info.clone());
        for finding in server_info.findings() {
            let is_known = before.as_ref().is_some_and(|it| it.findings().contains(&finding));
            let is_news = match finding {
                NodeFinding::WouldEvict { .. } => !is_known,
                NodeFinding::Promoted => {
                    !(is_known && before.as_ref().is_some_and(|it| it.run_id == server_info.run_id))
                }
                _ => false,
            };
            if is_news {
                warn!("{}: {}: {finding}", self.id, self.address);
            }
        }
    }

    /// Publishes what is known of it now, and says what was news. True if its clock was set forward.
    pub(crate) fn publish_eligibility(&self, eligibility: &Eligibility, news: Option<Change>, now: Tick) -> bool {
        let began = |quarantine: Option<QuarantineSpan>| quarantine.map_or(i64::MIN, |it| it.began(self.start));
        self.restarted.store(began(eligibility.restarted()), Ordering::Relaxed);
        self.stepped.store(began(eligibility.stepped()), Ordering::Relaxed);
        let why = eligibility.why(now);
        let number = WHY.iter().position(|it| *it == why).and_then(|it| u8::try_from(it).ok()).unwrap_or(u8::MAX);
        self.why.store(number, Ordering::Relaxed);
        self.told_until.store(eligibility.told_until().map_or(0, |it| self.nanos(it)), Ordering::Relaxed);
        let (low, high) = eligibility.clock_offset().unwrap_or((i64::MIN, i64::MIN));
        self.clock_offset[0].store(low, Ordering::Relaxed);
        self.clock_offset[1].store(high, Ordering::Relaxed);
        if let Some(news) = news {
            self.say_news(news, eligibility.quarantine_left(now), why, now);
        }
        let stepped = matches!(news, Some(Change::Stepped(ClockStep::Forward(_))));
        if stepped {
            self.stepped_at.store(self.nanos(now).saturating_add(1), Ordering::Relaxed);
        }
        stepped
    }

    /// Whether its clock was seen to have been set forward at `since` or later.
    pub(crate) fn has_stepped(&self, since: Tick) -> bool {
        self.nanos(since) < self.stepped_at.load(Ordering::Relaxed)
    }

    /// Whether a lock that is gone there may be set again. Not for a while after a step of the node's clock: extensions
    /// are counted then, because a key that is there has been there all the time.
    pub(crate) fn may_heal(&self, now: Tick) -> bool {
        self.left(&self.stepped, now).is_zero()
    }

    /// `left`: how long the node is quarantined because of that.
    fn say_news(&self, news: Change, left: Duration, why: Quarantine, now: Tick) {
        if !matches!(news, Change::Stepped(ClockStep::Back(_)) | Change::Empty) {
            self.tell_quarantined(left, why);
        }
        match news {
            Change::Restarted => {
                info!("{}: {}: no vote for {}: its server was started lately", self.id, self.address, About(left));
            }
            Change::Empty => self.note_forgotten(left, why),
            Change::Another => {
                info!(
                    "{}: {}: no vote for {}: its server was restarted, promoted, restored or swapped",
                    self.id,
                    self.address,
                    About(left)
                );
            }
            Change::Stepped(step) => {
                count(&self.counters.clock_steps);
                let (ClockStep::Forward(by) | ClockStep::Back(by)) = step;
                let forward = matches!(step, ClockStep::Forward(_));
                self.upcall.tell(|| Event::ClockStep { node: self.id, by, forward });
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
        self.may_say(&self.step_said, STEP_SAID_EVERY, now)
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
        let kind = failure.kind();
        let mut said = self.failures_said.lock();
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
        if self.may_say(&self.overflow_said, OVERFLOW_SAID_EVERY, now) {
            warn!(
                "{}: {}: too many releases wait for it: the oldest are given up, and their keys expire by themselves",
                self.id, self.address
            );
        }
    }

    /// Says that the node has lost its memory.
    pub(crate) fn note_forgotten(&self, left: Duration, why: Quarantine) {
        self.tell_quarantined(left, why);
        info!("{}: {}: no vote for {}: it is new, or has lost what it had stored", self.id, self.address, About(left));
    }

    /// Not where quarantines are switched off.
    fn tell_quarantined(&self, left: Duration, why: Quarantine) {
        if !left.is_zero() {
            self.upcall.tell(|| Event::NodeQuarantined { node: self.id, left, why });
        }
    }

    fn nanos(&self, at: Tick) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}
