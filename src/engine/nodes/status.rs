//! What is known of a node, for everybody to read: whether it may vote, what its clock shows, what it said about itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::sys::logging::{info, warn};
use crate::sys::sync::{AtomicU64, Mutex};

use crate::answer::ServerInfo;
use crate::engine::nodes::records::Records;
use crate::error::{FailureKind, NodeFailure, NodeFinding, QuarantineReason};
use crate::ids::NodeId;
use crate::logic::eligibility::{Change, Eligibility};
use crate::logic::quarantines::{Ask, Quarantines};
use crate::observer::{Event, Upcall};
use crate::stats::{Counters, count};
use crate::time::{About, Moment, Tick};

/// The log warns of steps of a node's clock no more often: a clock that is broken is set with every answer.
const STEP_SAID_EVERY: Duration = Duration::from_secs(60);
/// The same for a kind of failure that somebody has to mend.
const FAILURE_SAID_EVERY: Duration = Duration::from_secs(60 * 60);
/// The same for releases that are given up.
const OVERFLOW_SAID_EVERY: Duration = Duration::from_secs(60);

/// What is known of the server, as one value.
#[derive(Clone, Copy, Default)]
struct ServerFacts {
    quarantines: Quarantines,
    /// By how many microseconds its clock is ahead of the one of leases, at least and at most.
    clock: Option<(i64, i64)>,
    /// When its clock was last seen to have been set forward.
    stepped_at: Option<Tick>,
}

/// See the module.
pub(crate) struct Status {
    id: NodeId,
    address: Arc<str>,
    start: Tick,
    counters: Arc<Counters>,
    upcall: Upcall,
    records: Arc<Records>,
    known: Mutex<ServerFacts>,
    /// When the log last warned of a step, in nanoseconds since the node's start; 0 for never.
    step_said: AtomicU64,
    /// When it last warned of releases that were given up, likewise.
    overflow_said: AtomicU64,
    /// When it last warned of each kind of failure.
    failures_said: Mutex<Vec<(FailureKind, Tick)>>,
    /// What the server last said about itself.
    server_info: Mutex<Option<ServerInfo>>,
}

impl Status {
    pub(crate) fn new(
        id: NodeId,
        address: Arc<str>,
        start: Tick,
        counters: Arc<Counters>,
        upcall: Upcall,
        records: Arc<Records>,
    ) -> Status {
        Status {
            id,
            address,
            start,
            counters,
            upcall,
            records,
            known: Mutex::default(),
            step_said: AtomicU64::new(0),
            overflow_said: AtomicU64::new(0),
            failures_said: Mutex::new(Vec::new()),
            server_info: Mutex::new(None),
        }
    }

    /// For how long what it grants does not count yet that was asked for at `asked`, and why.
    pub(crate) fn left(&self, asked: Tick) -> Option<(Duration, QuarantineReason)> {
        self.known
            .lock()
            .quarantines
            .left(Ask::Grant, asked, self.records.quarantine())
    }

    /// Whether its quarantine has begun: somebody takes locks and has stored its record.
    pub(crate) fn tells_quarantines(&self) -> bool {
        let is_stored = |it: ServerInfo| it.greet_reply.is_some_and(|shown| shown.kept);
        self.records.is_used() || self.server_info().is_some_and(is_stored)
    }

    /// What its clock shows now, at least and at most: microseconds since 1970.
    pub(crate) fn clock_shows(&self, now: Moment) -> Option<(u64, u64)> {
        let (low, high) = self.known.lock().clock?;
        let shows = |offset| now.boot_micros().checked_add_signed(offset);
        Some((shows(low)?, shows(high)?))
    }

    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        self.server_info.lock().clone()
    }

    pub(crate) fn publish_server_info(&self, server_info: &ServerInfo) {
        let before = self.server_info.lock().replace(server_info.clone());
        for finding in server_info.findings() {
            let is_known = before
                .as_ref()
                .is_some_and(|it| it.findings().contains(&finding));
            let is_news = match finding {
                NodeFinding::WouldEvict { .. } => !is_known,
                NodeFinding::OtherNodes { .. } => !is_known && finding.disqualifies(),
                NodeFinding::Promoted => {
                    !(is_known
                        && before
                            .as_ref()
                            .is_some_and(|it| it.run_id == server_info.run_id))
                }
                _ => false,
            };
            if is_news {
                warn!("{}: {}: {finding}", self.id, self.address);
            }
        }
    }

    /// Publishes what is known of it now, and says what was news. True if its clock was set forward.
    pub(crate) fn publish_eligibility(
        &self,
        eligibility: &Eligibility,
        news: Option<Change>,
        now: Tick,
    ) -> bool {
        let stepped = matches!(news, Some(Change::Stepped(_)));
        {
            let mut known = self.known.lock();
            let stepped_at = if stepped { Some(now) } else { known.stepped_at };
            let (quarantines, clock) = (eligibility.quarantines, eligibility.clock.offset());
            *known = ServerFacts {
                quarantines,
                clock,
                stepped_at,
            };
        }
        if let Some(news) =
            news.filter(|it| matches!(it, Change::Stepped(_)) || self.tells_quarantines())
        {
            let (left, why) = eligibility
                .left(Ask::Grant, now)
                .unwrap_or((Duration::ZERO, QuarantineReason::Restarted));
            self.say_news(news, left, why, now);
        }
        stepped
    }

    /// Whether its clock was seen to have been set forward at `since` or later.
    pub(crate) fn has_stepped(&self, since: Tick) -> bool {
        self.known.lock().stepped_at.is_some_and(|it| since <= it)
    }

    /// Whether a lock that is gone there may be set again. Not for a while after a step of the node's clock: extensions
    /// are counted then, because a key that is there has been there all the time.
    pub(crate) fn may_heal(&self, now: Tick) -> bool {
        self.known
            .lock()
            .quarantines
            .may_heal(now, self.records.quarantine())
    }

    /// `left`: how long the node is quarantined because of that.
    fn say_news(&self, news: Change, left: Duration, why: QuarantineReason, now: Tick) {
        if news != Change::Empty {
            self.tell_quarantined(left, why);
        }
        match news {
            Change::Restarted => {
                info!(
                    "{}: {}: quarantined for {}: its server was started recently",
                    self.id,
                    self.address,
                    About(left)
                );
            }
            Change::Empty => self.note_forgotten(left, why),
            Change::Another => {
                info!(
                    "{}: {}: quarantined for {}: its server was restarted, promoted, restored or swapped",
                    self.id,
                    self.address,
                    About(left)
                );
            }
            Change::Stepped(by) => {
                count(&self.counters.clock_steps);
                if self.may_say(&self.step_said, STEP_SAID_EVERY, now) {
                    warn!(
                        "{}: {}: its clock was set forward by {}, so locks expired early there: quarantined for {}",
                        self.id,
                        self.address,
                        About(by),
                        About(left)
                    );
                }
            }
        }
    }

    /// Whether nothing was said for so long, at `said`; it is now.
    fn may_say(&self, said: &AtomicU64, every: Duration, now: Tick) -> bool {
        let (before, now) = (
            said.load(Ordering::Relaxed),
            self.nanos(now).saturating_add(1),
        );
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
            Some((_, at)) if now.saturating_duration_since(*at) < FAILURE_SAID_EVERY => {
                return false;
            }
            Some((_, at)) => *at = now,
            None => said.push((kind, now)),
        }
        true
    }

    /// A node that is connected has refused a command. It may go on doing so, and nobody else says it.
    pub(crate) fn note_refusal(&self, failure: &NodeFailure, now: Tick) {
        if self.may_warn_of(failure, now) {
            warn!(
                "{}: {}: is not counted: it rejected a command: {failure}",
                self.id, self.address
            );
        }
    }

    pub(crate) fn say_overflow(&self, now: Tick) {
        if self.may_say(&self.overflow_said, OVERFLOW_SAID_EVERY, now) {
            warn!(
                "{}: {}: too many queued releases: the oldest were dropped, and their keys expire by themselves",
                self.id, self.address
            );
        }
    }

    /// Says that the node has lost its data.
    pub(crate) fn note_forgotten(&self, left: Duration, why: QuarantineReason) {
        self.tell_quarantined(left, why);
        info!(
            "{}: {}: quarantined for {}: it is new or lost its data",
            self.id,
            self.address,
            About(left)
        );
    }

    /// Not where quarantines are switched off.
    fn tell_quarantined(&self, left: Duration, why: QuarantineReason) {
        if !left.is_zero() {
            self.upcall.tell(|| Event::NodeQuarantined {
                node: self.id,
                left,
                why,
            });
        }
    }

    fn nanos(&self, at: Tick) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}
