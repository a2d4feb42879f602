//! What a call asks the nodes for, and what it knows from its attempts so far.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::config::Config;
use crate::engine::nodes::fanout::Fanout;
use crate::engine::round::outcome::LostAttempt;
use crate::engine::spec::LockSpec;
use crate::logic::pause;
use crate::time::{Moment, Tick};
use crate::wire::{QueueEntry, QueuePolicy, Waiter};

/// A waiting list is kept for several of the longest pauses, so that calls that are alive do not fall out of it.
const PAUSES_IN_A_LIFE: u32 = 3;

/// What a call asks the nodes for.
pub(crate) struct Request {
    pub(crate) spec: Arc<LockSpec>,
    /// By how much the lease ends earlier for its holder than for the nodes.
    pub(crate) margin: Duration,
    /// But for the place: see [`Request::since`].
    pub(crate) policy: QueuePolicy,
    pub(crate) began: Moment,
    /// No round of the call goes on for longer.
    end: Option<Tick>,
    place: OnceLock<u64>,
}

impl Request {
    /// `waiter`: of a call that waits, and enters the waiting lists of the nodes.
    pub(crate) fn new(spec: &Arc<LockSpec>, config: &Config, waiter: Option<Waiter>) -> Request {
        let life = pause::longest_pause(config.retry_max).saturating_mul(PAUSES_IN_A_LIFE);
        let life = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
        let entry = waiter.map(|waiter| QueueEntry { waiter, life });
        let began = Moment::now();
        let policy = QueuePolicy {
            since: began.wall_micros(),
            entry,
            enters: waiter.is_some(),
            only: None,
        };
        let (spec, margin) = (Arc::clone(spec), config.margin.of(spec.ttl()));
        Request {
            spec,
            margin,
            policy,
            began,
            end: None,
            place: OnceLock::new(),
        }
    }

    /// With an end of all its rounds.
    pub(crate) fn ending(self, end: Option<Tick>) -> Request {
        Request { end, ..self }
    }

    /// When a round ends that would otherwise end at `deadline`.
    pub(super) fn limit(&self, deadline: Tick) -> Tick {
        self.end.map_or(deadline, |end| end.min(deadline))
    }

    /// When the call began, microseconds since 1970: calls of all clients are ordered by it.
    ///
    /// Does not change once the clocks of a majority are known.
    pub(crate) fn since(&self, fanout: &Fanout) -> u64 {
        if let Some(place) = self.place.get() {
            return *place;
        }
        // Not within `get_or_init`: it takes locks.
        match fanout.time_for_all(self.began) {
            Some(time) => *self.place.get_or_init(|| time),
            None => self.began.wall_micros(),
        }
    }
}

/// What a call knows from its attempts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttemptFacts {
    /// The largest fencing counter that was seen.
    pub(crate) seen: u64,
    /// It could not win its last round even if nobody has the lock: see [`pause::keeps_its_place`].
    pub(crate) has_no_place: bool,
    /// Of a semaphore: the nodes granted different slots, and this one is free at a majority.
    pub(crate) only: Option<u8>,
}

impl AttemptFacts {
    /// What is known after a lost attempt.
    pub(crate) fn after(self, lost: &LostAttempt) -> AttemptFacts {
        // One try for a slot, and then by chance again.
        let only = lost.common_slot.filter(|_| self.only.is_none());
        AttemptFacts {
            seen: self.seen.max(lost.seen),
            has_no_place: !pause::keeps_its_place(lost.why),
            only,
        }
    }

    /// How the next attempt deals with other calls that wait.
    pub(super) fn policy(self, policy: QueuePolicy) -> QueuePolicy {
        let policy = QueuePolicy {
            only: self.only,
            ..policy
        };
        if self.has_no_place {
            policy.without_place()
        } else {
            policy
        }
    }
}
