//! Whether a server can be asked now, or a cluster as a whole; and what its thread is asked to do.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::NodeFailure;
use crate::sys::sync::{AtomicBool, Mutex};
use crate::time::Tick;

/// What is known of a connection; of a cluster, of its map.
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

/// See the module.
#[derive(Default)]
pub(crate) struct Standing {
    up: AtomicBool,
    health: Mutex<Health>,
    stop_at: Mutex<Option<Tick>>,
}

impl Standing {
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    pub(crate) fn set_health(&self, health: Health) {
        let up = matches!(health, Health::Up);
        *self.health.lock() = health;
        self.up.store(up, Ordering::Release);
    }

    /// Why commands are refused at once, if they are.
    pub(super) fn refusal(&self, now: Tick) -> Option<NodeFailure> {
        if self.is_up() {
            return None;
        }
        match &*self.health.lock() {
            Health::Up | Health::Unused => None,
            Health::Connecting { until } if now < *until => None,
            // The name server or the network takes longer than allowed; the thread is still at it.
            Health::Connecting { .. } => Some(NodeFailure::Connect {
                reason: "no connection in time".to_owned(),
            }),
            Health::Down(failure) => Some(failure.clone()),
        }
    }

    /// Whether a round that begins now may have to wait for a connection first.
    pub(crate) fn is_connecting(&self) -> bool {
        !self.is_up()
            && matches!(
                *self.health.lock(),
                Health::Unused | Health::Connecting { .. }
            )
    }

    /// Until when a round that begins now may have to wait for a connection first.
    pub(super) fn connects_until(&self, now: Tick, connect_timeout: Duration) -> Option<Tick> {
        if self.is_up() {
            return None;
        }
        match *self.health.lock() {
            Health::Unused => now.checked_add(connect_timeout),
            Health::Connecting { until } => Some(until),
            Health::Up | Health::Down(_) => None,
        }
    }

    /// Asks the thread to end: at once if nothing is left to do, at `deadline` in any case. It has to be woken.
    pub(super) fn stop(&self, deadline: Tick) {
        *self.stop_at.lock() = Some(deadline);
    }

    pub(super) fn stop_at(&self) -> Option<Tick> {
        *self.stop_at.lock()
    }
}
