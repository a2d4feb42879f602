//! Admission of rounds: see "Rounds and load" in ARCHITECTURE.md.
//!
//! Every round with a waiting caller has a ticket until it is decided. A hold of a handed-over lock
//! has one until its first extension. Releases take one at once, beyond the limit: they must not
//! wait for the calls that they block. Acquire rounds take a ticket within the limit, in order of
//! arrival.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::park::Parker;
use crate::logic::round_limit::RoundLimit;
use crate::sys::sync::Mutex;
use crate::time::{self, Tick};

/// The manager's rounds under way, and the calls that wait for a ticket.
#[derive(Default)]
pub(crate) struct Admission {
    tickets: Mutex<Tickets>,
}

#[derive(Default)]
struct Tickets {
    limit: RoundLimit,
    under_way: usize,
    next: u64,
    /// Waiting calls, in order of arrival.
    waiting: BTreeMap<u64, Arc<Parker>>,
    /// Calls with a ticket that they have not taken yet.
    given: HashSet<u64>,
}

/// The right to a round.
pub(crate) struct RoundTicket {
    admission: Arc<Admission>,
    /// Wait for this ticket.
    pub(crate) waited: Duration,
}

/// A place among the waiting calls until dropped.
pub(crate) struct Waiting {
    admission: Arc<Admission>,
    id: u64,
    since: Tick,
}

impl Admission {
    /// A ticket within the limit, if one is free. While calls wait none is: `change` gives them all
    /// free tickets.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<RoundTicket> {
        let mut tickets = self.tickets.lock();
        if tickets.limit.rounds <= tickets.under_way {
            return None;
        }
        tickets.under_way = tickets.under_way.saturating_add(1);
        Some(self.ticket(Duration::ZERO))
    }

    /// A ticket, whatever the limit.
    pub(crate) fn enter(self: &Arc<Self>) -> RoundTicket {
        let mut tickets = self.tickets.lock();
        tickets.under_way = tickets.under_way.saturating_add(1);
        self.ticket(Duration::ZERO)
    }

    fn ticket(self: &Arc<Self>, waited: Duration) -> RoundTicket {
        RoundTicket {
            admission: Arc::clone(self),
            waited,
        }
    }

    /// Joins the waiting calls. The ticket wakes `parker`: see [`Waiting::take`].
    pub(crate) fn enqueue(self: &Arc<Self>, parker: &Arc<Parker>) -> Waiting {
        let mut id = 0;
        self.change(|tickets| {
            id = tickets.next;
            tickets.next = id.wrapping_add(1);
            tickets.waiting.insert(id, Arc::clone(parker));
        });
        Waiting {
            admission: Arc::clone(self),
            id,
            since: time::tick(),
        }
    }

    /// Changes the tickets, then gives free ones to waiting calls in order.
    fn change(&self, work: impl FnOnce(&mut Tickets)) {
        let mut woken = Vec::new();
        let mut tickets = self.tickets.lock();
        work(&mut tickets);
        while tickets.under_way < tickets.limit.rounds
            && let Some((id, parker)) = tickets.waiting.pop_first()
        {
            tickets.under_way = tickets.under_way.saturating_add(1);
            tickets.given.insert(id);
            woken.push(parker);
        }
        drop(tickets);
        woken.iter().for_each(|parker| parker.wake());
    }

    /// Sets the limit, until the next adjustment.
    #[cfg(test)]
    pub(crate) fn allow(&self, rounds: usize) {
        self.tickets.lock().limit = RoundLimit::of(rounds);
    }

    /// Whether no round is under way and no call waits.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let tickets = self.tickets.lock();
        tickets.under_way == 0 && tickets.waiting.is_empty()
    }
}

impl RoundTicket {
    /// Adjusts the limit after a round that began at `asked`.
    pub(crate) fn adjust_limit(&self, asked: Tick, timed_out: bool) {
        self.admission.change(|tickets| {
            if timed_out {
                let under_way = tickets.under_way;
                tickets.limit.on_timeout(asked, time::tick(), under_way);
            } else if !tickets.waiting.is_empty() {
                tickets.limit.on_answered();
            }
        });
    }
}

impl Drop for RoundTicket {
    fn drop(&mut self) {
        self.admission
            .change(|tickets| tickets.under_way = tickets.under_way.saturating_sub(1));
    }
}

impl Waiting {
    /// The ticket, if given.
    pub(crate) fn take(&self) -> Option<RoundTicket> {
        let is_given = self.admission.tickets.lock().given.remove(&self.id);
        let waited = time::tick().saturating_duration_since(self.since);
        is_given.then(|| self.admission.ticket(waited))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.admission.tickets.lock().waiting.remove(&self.id);
        // RACE: T1, this call, leaves; T2 has given it a ticket before. Therefore T1 returns the
        // ticket, for the next call.
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(limit: usize) -> Arc<Admission> {
        let admission = Arc::new(Admission::default());
        admission.allow(limit);
        admission
    }

    fn enqueue(admission: &Arc<Admission>) -> Waiting {
        admission.enqueue(&Arc::default())
    }

    #[test]
    fn h5_tickets_are_given_in_the_order_of_requests() {
        let admission = admission(2);
        let first = admission.try_enter().unwrap();
        let second = admission.try_enter().unwrap();
        assert!(admission.try_enter().is_none());
        let [a, b, c] = [(); 3].map(|()| enqueue(&admission));

        drop(first);
        assert!(admission.try_enter().is_none(), "others were first");
        let ticket = a.take().unwrap();
        assert!(a.take().is_none() && b.take().is_none());

        drop((second, ticket));
        assert!(b.take().is_some() && c.take().is_some());
        assert!(admission.is_idle());
        assert!(admission.try_enter().is_some());
    }

    #[test]
    fn h5_a_ticket_that_its_call_did_not_take_goes_to_the_next_call() {
        let admission = admission(1);
        let ticket = admission.try_enter().unwrap();
        let [gone, told, next] = [(); 3].map(|()| enqueue(&admission));

        drop(gone);
        drop(ticket);
        drop(told);

        assert!(next.take().is_some());
        drop(next);
        assert!(admission.is_idle());
    }

    #[test]
    fn h5_releases_never_wait_and_acquisitions_wait_for_them() {
        let admission = admission(2);
        let mut releases: Vec<_> = (0..5).map(|_| admission.enter()).collect();
        let waiting = enqueue(&admission);

        while releases.pop().is_some() {
            let is_given = admission.tickets.lock().given.contains(&waiting.id);
            assert_eq!(is_given, releases.len() < 2);
        }
    }

    #[test]
    fn h5_a_raised_limit_admits_waiting_calls() {
        let admission = admission(1);
        let ticket = admission.try_enter().unwrap();
        let waiting = [(); 3].map(|()| enqueue(&admission));

        for _ in 0..2 {
            ticket.adjust_limit(time::tick(), false);
        }
        drop(ticket);

        assert!(waiting.iter().all(|it| it.take().is_some()));
    }
}
