//! A call that waits for a lock, as seen by the threads that hand it the lock, or notify it of a release.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::fanout::Outgoing;
use crate::engine::park::Parker;
use crate::engine::round::admission::RoundTicket;
use crate::engine::round::attempt::Attempt;
use crate::engine::round::attempt::{AttemptFacts, Request};
use crate::engine::round::outcome::{LostAttempt, NotWon};
use crate::ids::{NodeId, NodeSet};
use crate::logic::pause;
use crate::logic::quorum;
use crate::sys::sync::Mutex;
use crate::time::{self, Tick};
use crate::wire::{LAST, QueueUpdate, Waiter};

/// One call's place in a queue.
pub(crate) struct Ticket {
    pub(super) request: Request,
    pub(super) joined: Tick,
    pub(super) parker: Arc<Parker>,
    pub(super) state: Mutex<TicketState>,
}

#[derive(Default)]
pub(super) struct TicketState {
    /// The call is the first in its queue, and the manager does not hold the lock.
    pub(super) may_ask: bool,
    /// An attempt of it is under way, and not only handed over.
    pub(super) asks: bool,
    /// When it asks them next if it gets no notice; at once if `None`.
    pub(super) try_at: Option<Tick>,
    /// Nodes that have announced a release since the last attempt began, and when the first of them did.
    pub(super) announced: NodeSet,
    pub(super) announced_at: Option<Tick>,
    /// How long the others are waited for after that.
    pub(super) grace: Duration,
    pub(super) known: AttemptFacts,
    pub(super) handover: Handover,
    /// The last attempt of the first call, which has given up because of an outage.
    pub(super) given_up: Option<Arc<LostAttempt>>,
}

/// An attempt for the call, made by the thread that releases the lock.
#[derive(Default)]
pub(super) enum Handover {
    #[default]
    None,
    /// It is not sent yet. `awaited`: the call waits for nothing else any more.
    Preparing {
        awaited: bool,
    },
    Sent(Attempt),
}

impl TicketState {
    /// When to ask the nodes; `None` for at once.
    pub(super) fn next_try(&self, nodes: usize) -> Option<Tick> {
        let in_time = self.announced_at.and_then(|it| it.checked_add(self.grace));
        pause::next_try(self.try_at?, quorum(nodes), self.announced.len(), in_time)
    }
}

impl Ticket {
    /// `node` has announced a release.
    pub(super) fn released(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.announced.insert(node);
        state.announced_at.get_or_insert_with(time::tick);
        drop(state);
        self.parker.wake();
    }

    /// Whether it is satisfied with a lock that others hold as well.
    pub(crate) fn reads(&self) -> bool {
        self.request.spec.plan.is_shared()
    }

    /// Who it is in the lists of the nodes.
    pub(super) fn waiter(&self) -> Option<Waiter> {
        self.request.policy.entry.map(|it| it.waiter)
    }

    /// What a release says that hands the lock over to this call.
    pub(crate) fn comes_next(&self, fanout: &Fanout) -> QueueUpdate {
        let since = self.since(fanout);
        self.waiter()
            .map_or(QueueUpdate::None, |waiter| QueueUpdate::HandOver {
                waiter,
                since,
            })
    }

    /// When the call began, as far as other clients that wait are concerned.
    pub(super) fn since(&self, fanout: &Fanout) -> u64 {
        if self.state.lock().known.has_no_place {
            LAST
        } else {
            self.request.since(fanout)
        }
    }

    /// Prepares an attempt for the call. The result has to be sent.
    pub(crate) fn prepare(
        &self,
        fanout: &Fanout,
        round_ticket: RoundTicket,
    ) -> Result<(Attempt, Outgoing), NotWon> {
        let known = self.state.lock().known;
        let parker = Arc::clone(&self.parker);
        Attempt::prepare(
            fanout,
            round_ticket,
            &self.request,
            known,
            Some(Box::new(move || parker.wake())),
        )
    }

    /// Hands the call its attempt, which has been sent.
    ///
    /// RACE: not before it was sent. The call may end it at once, and what it then takes back must run behind it. The
    /// call's thread sleeps on, until the attempt is decided.
    pub(crate) fn hand_over(&self, attempt: Attempt) {
        self.set_handover(Handover::Sent(attempt));
    }

    /// Lets the call ask the nodes for itself, at once.
    pub(crate) fn let_ask(&self) {
        self.state.lock().try_at = None;
        self.set_handover(Handover::None);
        self.parker.wake();
    }

    fn set_handover(&self, to: Handover) {
        let before = std::mem::replace(&mut self.state.lock().handover, to);
        if matches!(before, Handover::Preparing { awaited: true }) {
            self.parker.wake();
        }
    }

    /// Makes the call look at its attempt, decided or not.
    pub(crate) fn wake(&self) {
        self.parker.wake();
    }
}
