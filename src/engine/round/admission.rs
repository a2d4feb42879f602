//! Which calls may begin a round now, and which wait for their turn: see "Rounds and load" in ARCHITECTURE.md.
//!
//! Everything that a caller waits for takes a ticket until it is decided. Releases take one at once, whatever the limit:
//! what holds up others must not wait for them. Acquire rounds begin as long as there is a ticket within the limit, and
//! otherwise in the order in which they came.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::engine::park::{Parker, Signal};
use crate::logic::round_limit::{Limit, Sample};
use crate::sys::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex};
use crate::time::{self, Tick};

/// The rounds of a manager that are under way, and the calls that wait to begin one.
pub(crate) struct Admission {
    /// How many may be under way.
    limit: AtomicUsize,
    under_way: AtomicUsize,
    /// How many wait.
    waiting: AtomicUsize,
    waiters: Mutex<RoundQueue>,
    response_timeout: Duration,
    /// What `limit` comes from.
    learned: Mutex<Limit>,
    /// The fastest round, in nanoseconds: to see without the mutex that there is nothing to learn.
    fastest: AtomicU64,
}

/// The calls that wait, in the order in which they came.
#[derive(Default)]
struct RoundQueue {
    next: u64,
    waiters: BTreeMap<u64, Arc<RoundWaiter>>,
}

struct RoundWaiter {
    parker: Arc<Parker>,
    /// It has been given a ticket, and has not taken it yet.
    given: AtomicBool,
}

/// The right to have a round under way.
pub(crate) struct RoundTicket {
    pub(super) admission: Arc<Admission>,
    /// How long it was waited for.
    pub(super) waited: Duration,
}

/// A place among the calls that wait for a ticket, given up when it is dropped.
pub(crate) struct Waiting {
    admission: Arc<Admission>,
    id: u64,
    waiter: Arc<RoundWaiter>,
    since: Tick,
}

impl Admission {
    pub(crate) fn new(response_timeout: Duration) -> Admission {
        let learned = Limit::new(response_timeout);
        Admission {
            limit: AtomicUsize::new(learned.rounds()),
            under_way: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::default(),
            response_timeout,
            fastest: AtomicU64::new(nanos(learned.fastest())),
            learned: Mutex::new(learned),
        }
    }

    /// A ticket, if no call has to wait for one.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<RoundTicket> {
        if self.waiting.load(SeqCst) != 0 {
            return None;
        }
        let before = self.under_way.fetch_add(1, SeqCst);
        let ticket = self.ticket(Duration::ZERO);
        (before < self.limit.load(Relaxed)).then_some(ticket)
    }

    /// A ticket, as soon as it is there; `None` at `until`, or when one of `signals` is given.
    pub(crate) fn wait(self: &Arc<Self>, until: Tick, signals: &[&Signal]) -> Option<RoundTicket> {
        if let Some(ticket) = self.try_enter() {
            return Some(ticket);
        }
        let parker = Arc::new(Parker::default());
        let _watching = parker.watch(signals);
        let waiting = self.enqueue(&parker);
        loop {
            if let Some(ticket) = waiting.take() {
                return Some(ticket);
            }
            if until <= time::tick() || signals.iter().any(|it| it.is_given()) {
                return None;
            }
            parker.sleep(Some(until));
        }
    }

    /// A ticket, whatever the limit.
    pub(crate) fn enter(self: &Arc<Self>) -> RoundTicket {
        self.under_way.fetch_add(1, SeqCst);
        self.ticket(Duration::ZERO)
    }

    fn ticket(self: &Arc<Self>, waited: Duration) -> RoundTicket {
        RoundTicket {
            admission: Arc::clone(self),
            waited,
        }
    }

    /// Waits for a ticket. `parker` is woken when it is there: see [`Waiting::take`].
    pub(crate) fn enqueue(self: &Arc<Self>, parker: &Arc<Parker>) -> Waiting {
        let waiter = Arc::new(RoundWaiter {
            parker: Arc::clone(parker),
            given: AtomicBool::new(false),
        });
        let id = {
            let mut queue = self.waiters.lock();
            let id = queue.next;
            queue.next = queue.next.wrapping_add(1);
            queue.waiters.insert(id, Arc::clone(&waiter));
            self.waiting.store(queue.waiters.len(), SeqCst);
            id
        };
        // RACE: a call that ends gives its ticket back and then looks for calls that wait; this one says that it waits and
        // then looks for tickets. One of the two sees the other.
        self.let_in();
        Waiting {
            admission: Arc::clone(self),
            id,
            waiter,
            since: time::tick(),
        }
    }

    /// Lets no more than so many be under way, whatever has been learned.
    #[cfg(test)]
    pub(crate) fn allow(&self, rounds: usize) {
        self.limit.store(rounds, SeqCst);
    }

    /// Nothing is under way, and no call waits.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.load(SeqCst) == 0 && self.waiting.load(SeqCst) == 0
    }

    /// Gives tickets to the calls that came first, as long as there are any.
    fn let_in(&self) {
        while let Some(waiter) = self.next() {
            waiter.parker.wake();
        }
    }

    fn next(&self) -> Option<Arc<RoundWaiter>> {
        let mut queue = self.waiters.lock();
        if self.limit.load(Relaxed) <= self.under_way.load(SeqCst) {
            return None;
        }
        let (_, waiter) = queue.waiters.pop_first()?;
        self.waiting.store(queue.waiters.len(), SeqCst);
        self.under_way.fetch_add(1, SeqCst);
        waiter.given.store(true, SeqCst);
        Some(waiter)
    }

    /// Learns from how long a round took.
    pub(super) fn learn(&self, asked: Tick, took: Duration, answered: bool) {
        let fastest = Duration::from_nanos(self.fastest.load(Relaxed));
        let is_short = self.waiting.load(Relaxed) != 0;
        let is_slow = !answered || Limit::is_slow(self.response_timeout, fastest, took);
        if !is_short && !is_slow && fastest <= took {
            return;
        }
        let under_way = self.under_way.load(Relaxed);
        let mut learned = self.learned.lock();
        learned.on_round(Sample {
            asked,
            took,
            answered,
            under_way,
            is_short,
        });
        self.limit.store(learned.rounds(), Relaxed);
        self.fastest.store(nanos(learned.fastest()), Relaxed);
    }
}

impl Drop for RoundTicket {
    fn drop(&mut self) {
        self.admission.under_way.fetch_sub(1, SeqCst);
        if self.admission.waiting.load(SeqCst) != 0 {
            self.admission.let_in();
        }
    }
}

impl Waiting {
    /// The ticket, once it is there.
    pub(crate) fn take(&self) -> Option<RoundTicket> {
        let is_given = self.waiter.given.swap(false, SeqCst);
        is_given.then(|| {
            self.admission
                .ticket(time::tick().saturating_duration_since(self.since))
        })
    }
}

/// When a call that waits for other things as well may begin a round.
#[derive(Default)]
pub(crate) struct RoundWait(Option<Waiting>);

impl RoundWait {
    /// A ticket, if the call `wants` one and it is there; `parker` is woken when it is. A call that does not want it any
    /// more loses its place.
    pub(crate) fn wait(
        &mut self,
        wants: bool,
        admission: &Arc<Admission>,
        parker: &Arc<Parker>,
    ) -> Option<RoundTicket> {
        let ticket = match &self.0 {
            _ if !wants => None,
            Some(waiting) => Some(waiting.take()?),
            // It may be there at once: then the thread is woken for nothing.
            None => admission
                .try_enter()
                .or_else(|| self.0.insert(admission.enqueue(parker)).take()),
        };
        if ticket.is_some() || !wants {
            self.0 = None;
        }
        ticket
    }

    /// Whether nothing else keeps the call from asking the nodes.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        {
            let mut queue = self.admission.waiters.lock();
            queue.waiters.remove(&self.id);
            self.admission.waiting.store(queue.waiters.len(), SeqCst);
        }
        // RACE: it was given a ticket before it left the queue, and no other call would use it.
        drop(self.take());
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::park::CancelHandle;

    fn admission(limit: usize) -> Arc<Admission> {
        let admission = Arc::new(Admission::new(Duration::from_millis(100)));
        admission.allow(limit);
        admission
    }

    fn enqueue(admission: &Arc<Admission>) -> Waiting {
        admission.enqueue(&Arc::default())
    }

    #[test]
    fn h5_slots_are_given_in_the_order_in_which_they_were_asked_for() {
        let admission = admission(2);
        let (first, second) = (
            admission.try_enter().unwrap(),
            admission.try_enter().unwrap(),
        );
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
    fn h5_a_slot_that_came_when_nobody_waited_any_more_goes_to_the_next() {
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
            assert_eq!(waiting.waiter.given.load(SeqCst), releases.len() < 2);
        }
    }

    #[test]
    fn h5_who_waits_for_a_slot_can_be_cancelled_and_has_an_end() {
        let admission = admission(1);
        let _ticket = admission.enter();
        let cancel = CancelHandle::new();
        cancel.cancel();
        let far = time::tick().checked_add(Duration::from_secs(600)).unwrap();

        assert!(admission.wait(far, &[cancel.signal()]).is_none());
        assert!(admission.wait(time::tick(), &[]).is_none());
        assert_eq!(admission.waiting.load(SeqCst), 0);
    }

    #[test]
    fn h5_when_more_is_allowed_those_who_wait_begin() {
        let admission = admission(1);
        let ticket = admission.try_enter().unwrap();
        let waiting = [(); 3].map(|()| enqueue(&admission));

        for _ in 0..100 {
            ticket
                .admission
                .learn(time::tick(), Duration::from_millis(1), true);
        }
        drop(ticket);

        assert!(waiting.iter().all(|it| it.take().is_some()));
    }
}
