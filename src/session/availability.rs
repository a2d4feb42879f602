//! What callers see of a session without waiting for it.

use std::time::Duration;

use crate::error::{NodeFailure, QuarantineReason};
use crate::logic::quarantines::{Quarantines, VoteKind};
use crate::time::{Moment, Tick};

/// So many commands without an answer hold nobody up: a server runs them in some milliseconds.
const COMMANDS: usize = 256;

/// Longest time that commands wait for an answer, behind which they are written together.
const BUNDLE_MAX: Duration = Duration::from_millis(10);

/// State of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) enum Health {
    /// Nothing was ever sent, so nobody has tried to connect.
    #[default]
    Unused,
    /// The first attempt, or the first after a connection was lost. Commands wait for it until then.
    Connecting {
        until: Tick,
    },
    Up,
    /// Commands are refused at once, and not kept.
    Down(NodeFailure),
}

impl Health {
    /// Why a command is refused at once, if it is.
    pub(crate) fn refusal(&self, now: Tick) -> Option<NodeFailure> {
        match self {
            Health::Up | Health::Unused => None,
            Health::Connecting { until } if now < *until => None,
            // The name server or the network takes longer than allowed; the thread is still at it.
            Health::Connecting { .. } => Some(NodeFailure::Connect {
                reason: "no connection in time".to_owned(),
            }),
            Health::Down(failure) => Some(failure.clone()),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Availability {
    pub(crate) health: Health,
    /// Time of the oldest command without an answer.
    pub(super) oldest: Option<Tick>,
    /// That answer was overdue when the socket was found empty.
    pub(super) is_stalled: bool,
    /// The log has said that the server does not respond.
    pub(crate) is_silent: bool,
    /// Number of commands without an answer.
    pub(crate) unanswered: usize,
    pub(crate) quarantines: Quarantines,
    /// Somebody takes locks and has stored the server's record, so its quarantine has begun.
    pub(crate) shows_quarantine: bool,
    /// By how many microseconds the server's clock is ahead of the one of leases, at least and at most.
    pub(super) clock: Option<(i64, i64)>,
    /// When the server's clock was last seen to have been set forward.
    pub(crate) stepped_at: Option<Tick>,
    /// A round trip takes less time than to wake a thread.
    pub(crate) is_near: bool,
    /// Commands wait for an answer, behind which they are written together.
    pub(super) is_bundling: bool,
    /// Releases are announced on this connection.
    pub(crate) is_notified: bool,
}

impl Availability {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.health, Health::Up)
    }

    /// Why a command is not sent now, if so: the server is down, or was found silent, for longer than `patience`.
    pub(crate) fn refusal(&self, patience: Duration, now: Tick) -> Option<NodeFailure> {
        let is_stalled = self.is_stalled && (patience.is_zero() || self.is_late(patience, now));
        self.health
            .refusal(now)
            .or_else(|| is_stalled.then_some(NodeFailure::Stalled))
    }

    /// Whether the oldest command has no answer after `timeout`, or nobody has read it.
    pub(crate) fn is_late(&self, timeout: Duration, now: Tick) -> bool {
        self.oldest
            .is_some_and(|oldest| timeout < now.saturating_duration_since(oldest))
    }

    /// Whether commands are sent or refused now. Otherwise they wait, for a connection, or for an answer behind which they are
    /// written together: a server that is slow gets them all the same, as it has to get releases.
    pub(crate) fn takes_commands(&self, now: Tick) -> bool {
        match self.health {
            Health::Up => !self.is_bundling || self.is_late(BUNDLE_MAX, now),
            _ => self.health.refusal(now).is_some(),
        }
    }

    /// Until when a round that begins now may have to wait for a connection first.
    pub(crate) fn connects_until(&self, now: Tick, connect_timeout: Duration) -> Option<Tick> {
        match self.health {
            Health::Unused => now.checked_add(connect_timeout),
            Health::Connecting { until } => Some(until),
            Health::Up | Health::Down(_) => None,
        }
    }

    /// Whether a call may begin a round, with `queued` commands that were not sent yet. A server that is silent holds nobody up.
    ///
    /// A round ends at the majority. So nothing else holds callers back when one server, or the thread that serves it, gets less
    /// done than they ask for: its queue would grow until every round has to do without that server.
    pub(crate) fn has_room(&self, queued: usize) -> bool {
        !self.is_up() || self.is_stalled || self.unanswered.saturating_add(queued) <= COMMANDS
    }

    /// For how long what the server grants does not count yet that was asked for at `asked`, and why. `length`: that of a
    /// quarantine.
    pub(crate) fn quarantine(
        &self,
        length: Option<Duration>,
        asked: Tick,
    ) -> Option<(Duration, QuarantineReason)> {
        self.quarantines
            .quarantine_remaining(VoteKind::Grant, asked, length)
    }

    /// What the server's clock shows now, at least and at most: microseconds since 1970.
    pub(crate) fn clock_shows(&self, now: Moment) -> Option<(u64, u64)> {
        let (low, high) = self.clock?;
        let shows = |offset| now.boot_micros().checked_add_signed(offset);
        Some((shows(low)?, shows(high)?))
    }
}
