//! The state of a session for callers, without a wait.

use std::time::Duration;

use crate::error::{NodeFailure, QuarantineReason};
use crate::logic::quarantines::{Quarantines, VoteKind};
use crate::time::{Moment, Tick};

/// Longest wait of commands for an answer after which they are written together.
const BUNDLE_MAX: Duration = Duration::from_millis(10);

/// State of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) enum Health {
    /// Without any command so far, and without an attempt to connect.
    #[default]
    Unused,
    /// The first attempt, or the first after a lost connection. Commands wait for it until then.
    Connecting {
        until: Tick,
    },
    Up,
    /// Commands are refused at once.
    Down(NodeFailure),
}

impl Health {
    /// Reason to refuse a command at once, if any.
    pub(crate) fn refusal(&self, now: Tick) -> Option<NodeFailure> {
        match self {
            Health::Up | Health::Unused => None,
            Health::Connecting { until } if now < *until => None,
            // Name server or network is slower than allowed. The thread still tries.
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
    /// Whether that answer was overdue at an empty socket.
    pub(super) is_stalled: bool,
    /// Whether the server was reported silent.
    pub(crate) is_silent: bool,
    /// Number of commands without an answer.
    pub(crate) unanswered: usize,
    pub(crate) quarantines: Quarantines,
    /// Whether its quarantine has begun: a program takes locks and has stored the server's record.
    pub(crate) shows_quarantine: bool,
    /// Lead of the server's clock over the clock of leases, in microseconds: at least and at most.
    pub(super) clock: Option<(i64, i64)>,
    /// Time of the last known clock step forward.
    pub(crate) stepped_at: Option<Tick>,
    /// Whether commands wait for an answer, to be written together after it.
    pub(super) is_bundling: bool,
    /// Whether the server announces releases on this connection.
    pub(crate) is_notified: bool,
}

impl Availability {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.health, Health::Up)
    }

    /// Reason to refuse a command now, if any: the server is down, or silent for longer than
    /// `patience`.
    pub(crate) fn refusal(&self, patience: Duration, now: Tick) -> Option<NodeFailure> {
        let is_stalled = self.is_stalled && (patience.is_zero() || self.is_late(patience, now));
        self.health
            .refusal(now)
            .or_else(|| is_stalled.then_some(NodeFailure::Stalled))
    }

    /// Whether the oldest answer is late by `timeout`, or unread.
    pub(crate) fn is_late(&self, timeout: Duration, now: Tick) -> bool {
        self.oldest
            .is_some_and(|oldest| timeout < now.saturating_duration_since(oldest))
    }

    /// Whether commands are sent or refused now. Otherwise they wait, for a connection, or for an
    /// answer after which they are written together. A slow server gets them nevertheless, with the
    /// next turn of its worker or the next command: nobody wakes for that.
    pub(crate) fn takes_commands(&self, now: Tick) -> bool {
        match self.health {
            Health::Up => !self.is_bundling || self.is_late(BUNDLE_MAX, now),
            _ => self.health.refusal(now).is_some(),
        }
    }

    /// Time until the server's grants count for commands sent at `asked`, and why. `length`: of a
    /// quarantine.
    pub(crate) fn quarantine(
        &self,
        length: Option<Duration>,
        asked: Tick,
    ) -> Option<(Duration, QuarantineReason)> {
        self.quarantines
            .quarantine_remaining(VoteKind::Grant, asked, length)
    }

    /// Present time on the server's clock, at least and at most: microseconds since 1970.
    pub(crate) fn clock_shows(&self, now: Moment) -> Option<(u64, u64)> {
        let (low, high) = self.clock?;
        let shows = |offset| now.boot_micros().checked_add_signed(offset);
        Some((shows(low)?, shows(high)?))
    }
}
