//! One call's way along a line: it waits, asks the nodes or takes what was asked for it, and leaves.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::drive::Driver;
use crate::engine::park::Signal;
use crate::engine::round::admission::{Slot, Turn};
use crate::engine::round::attempt::{Attempt, Known, LostAttempt, NoAttempt, Request, Won};
use crate::engine::shared::Shared;
use crate::engine::wait::queues::{Handover, Ticket};
use crate::ids::NodeSet;
use crate::logic::quorum;
use crate::logic::wait;
use crate::stats::count;
use crate::sys::sync::Mutex;
use crate::time::{self, Tick};

/// For how long it is worth to tell a node that a call has stopped waiting: its list forgets by itself, and until then
/// it costs others the time of one turn.
const LEAVE_FOR: Duration = Duration::from_secs(5);

/// What became of a call's wait.
pub(crate) enum Woken {
    /// The nodes may be asked now.
    Try(Slot),
    /// Somebody has asked them for us.
    Made(Attempt),
    /// The first in line has given up because of an outage, after this attempt: it is over for all of them.
    GivenUp(LostAttempt),
    /// Time is up, or a signal was given.
    Stopped,
}

/// A call in line, until it is dropped.
pub(crate) struct Place<'a> {
    shared: &'a Shared,
    ticket: Arc<Ticket>,
    tries: u32,
    pause: Duration,
    /// Nodes that may have the call in their waiting lists.
    listed: NodeSet,
    /// To begin a round.
    pub(crate) turn: Turn,
    /// It has asked, and waits for notices now: somebody must read them.
    reads: bool,
    /// It reads what the nodes say, for all, while it waits.
    driver: Option<Driver<'a>>,
    /// The hold that it became.
    held: Option<u64>,
}

impl<'a> Place<'a> {
    /// Goes to the end of the line.
    pub(crate) fn join(shared: &'a Shared, request: Request) -> Place<'a> {
        let joined = time::tick();
        let ticket = Arc::new(Ticket { request, joined, parker: Arc::default(), state: Mutex::default() });
        let queues = &shared.queues;
        let mut lines = queues.lines.lock();
        count(&queues.counters.waiting);
        let line = lines.entry(Arc::clone(ticket.request.spec.plan.key())).or_default();
        line.tickets.push_back(Arc::clone(&ticket));
        line.set_up();
        drop(lines);
        let (pause, listed) = (Duration::ZERO, NodeSet::default());
        Place { shared, ticket, tries: 0, pause, listed, turn: Turn::default(), reads: false, driver: None, held: None }
    }

    pub(crate) fn request(&self) -> &Request {
        &self.ticket.request
    }

    /// Waits until there is something to do, until `until`, or until one of `signals` is given.
    pub(crate) fn wait(&mut self, until: Option<Tick>, signals: &[&Signal]) -> Woken {
        let parker = Arc::clone(&self.ticket.parker);
        let _listed = parker.listed_with(signals);
        if std::mem::take(&mut self.reads) {
            // Not before: at the wheel a thread has things locked, and its lines for the log would wait.
            self.driver = self.shared.fanout.take_wheel();
            if self.driver.is_none() {
                self.shared.fanout.settle();
            }
        }
        loop {
            let (wake_at, asks) = {
                let mut state = self.ticket.state.lock();
                match std::mem::take(&mut state.handover) {
                    Handover::Made(attempt) => return Woken::Made(attempt),
                    other => state.handover = other,
                }
                if let Some(lost) = &state.given_up
                    && !signals.iter().any(|it| it.is_given())
                    && matches!(state.handover, Handover::None)
                {
                    return Woken::GivenUp(LostAttempt::clone(lost));
                }
                let now = time::tick();
                if until.is_some_and(|it| it <= now) || signals.iter().any(|it| it.is_given()) {
                    return Woken::Stopped;
                }
                match &state.handover {
                    Handover::None if state.up => match state.next_try(self.shared.queues.nodes) {
                        Some(at) if now < at => (Some(until.map_or(at, |it| it.min(at))), false),
                        _ => (until, true),
                    },
                    _ => (until, false),
                }
            };
            if let Some(slot) = self.turn.wait(asks, &self.shared.admission, &parker) {
                return Woken::Try(slot);
            }
            match &mut self.driver {
                Some(driver) => {
                    if !driver.listen(wake_at, &parker) {
                        self.driver = None;
                    }
                }
                None => parker.sleep(wake_at),
            }
        }
    }

    pub(crate) fn known(&self) -> Known {
        self.ticket.state.lock().known
    }

    /// How long the call waits after its last attempt if it hears of nothing.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// Asks the nodes.
    pub(crate) fn try_now(&mut self, slot: Slot) -> Result<Result<Won, LostAttempt>, NoAttempt> {
        let known = {
            let mut state = self.ticket.state.lock();
            (state.told, state.told_at) = (NodeSet::default(), None);
            state.known
        };
        let result = Attempt::run(self.shared, slot, &self.ticket.request, known, self.driver.take())?;
        Ok(result.map_err(|lost| self.note(lost)))
    }

    /// Waits for the attempt that was made for the call.
    pub(crate) fn finish(&mut self, attempt: Attempt) -> Result<Won, LostAttempt> {
        (self.driver, self.turn) = (None, Turn::default());
        attempt.finish(self.shared, &self.ticket.request).map_err(|lost| self.note(lost))
    }

    /// Plans the next try after a lost one.
    fn note(&mut self, lost: LostAttempt) -> LostAttempt {
        self.listed = self.listed.union(lost.round.as_ref().map(|it| it.reached()).unwrap_or_default());
        let shared = self.shared;
        let (min, max) = (shared.config.retry_min, shared.config.retry_max);
        let free_in = lost.free_in();
        let majority = quorum(shared.queues.nodes);
        let told = majority <= lost.entered && majority <= shared.fanout.listening();
        let has_no_place = !wait::keeps_its_place(lost.why);
        let pause = match (told, has_no_place) {
            (true, _) => wait::long_pause,
            (false, false) => wait::pause_in_a_list,
            (false, true) => wait::pause,
        };
        let pause = pause(self.tries, min, max, free_in, fastrand::f64());
        self.tries = self.tries.saturating_add(1);
        self.pause = pause;
        let mut state = self.ticket.state.lock();
        state.known = Known { seen: state.known.seen.max(lost.seen), has_no_place };
        state.try_at = time::tick().checked_add(pause);
        state.grace = wait::grace(lost.took);
        // Its own attempt is news.
        state.given_up = None;
        drop(state);
        self.reads = true;
        lost
    }

    /// Ends the wait of all in line who were there when `lost` began: what it found out about the nodes it found out for
    /// them. Who came later asks them once at least.
    pub(crate) fn give_up_for_all(&self, lost: &LostAttempt) {
        let lost = Arc::new(lost.clone());
        let lines = self.shared.queues.lines.lock();
        let Some(line) = lines.get(self.request().spec.plan.key()) else { return };
        let others = line.tickets.iter().filter(|it| !Arc::ptr_eq(it, &self.ticket) && it.joined <= lost.asked);
        for ticket in others {
            ticket.state.lock().given_up = Some(Arc::clone(&lost));
            ticket.parker.wake();
        }
    }

    /// Leaves the line, unless an attempt was made for the call meanwhile: that has to be finished first.
    pub(crate) fn stop(&mut self) -> Option<Attempt> {
        (self.driver, self.turn) = (None, Turn::default());
        loop {
            {
                let mut lines = self.shared.queues.lines.lock();
                let mut state = self.ticket.state.lock();
                match std::mem::take(&mut state.handover) {
                    Handover::Made(attempt) => return Some(attempt),
                    Handover::None => {
                        drop(state);
                        // RACE: whoever is next in line asks the nodes as soon as he is let, and enters their lists by
                        // that. The farewell is sent before it: behind it, it would strike him, and nobody would tell
                        // him of the release.
                        self.say_farewell();
                        self.shared.queues.remove(&mut lines, &self.ticket, self.held);
                        return None;
                    }
                    // RACE: whoever releases is just sending it. It is not ours to end before that.
                    Handover::Coming { .. } => state.handover = Handover::Coming { awaited: true },
                }
            }
            self.ticket.parker.sleep(None);
        }
    }

    /// Leaves the waiting lists. Called with the lines locked: see [`Queues::tell`].
    fn say_farewell(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        if self.held.is_none() && listed != NodeSet::default() {
            let shared = self.shared;
            shared.queues.leave_lists(&shared.fanout, self.request().spec.plan.key(), listed, LEAVE_FOR);
        }
    }

    /// Leaves the line with the hold `id`.
    pub(crate) fn leave_with(mut self, id: u64) {
        self.held = Some(id);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        while let Some(attempt) = self.stop() {
            // What is taken back enters the lists: see `take_back`.
            self.listed = self.listed.union(attempt.round.reached());
            attempt.abandon(self.shared, self.request());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::thread;

    use super::*;
    use crate::config::Config;
    use crate::engine::Engine;
    use crate::engine::spec::LockSpec;
    use crate::time::Moment;
    use crate::wire::{Address, KeyTtls, LAST, Plan, QueueEntry, QueuePolicy};

    /// A manager of three nodes that nobody can reach.
    fn engine() -> Engine {
        let addresses = (1..=3).map(|port| Address::parse(&format!("redis://127.0.0.1:{port}")).unwrap()).collect();
        Engine::start(Config::default(), addresses).unwrap()
    }

    fn request(shared: &Shared) -> Request {
        let entry = Some(QueueEntry { client: shared.queues.client(), life: 1000 });
        let spec = LockSpec::new(&shared.config, b"x", Plan::mutex(b"", b"x", KeyTtls::default()));
        Request {
            spec: Arc::new(spec),
            policy: QueuePolicy { fair: true, since: 1, entry, enters: true },
            began: Moment::now(),
            place: OnceLock::new(),
        }
    }

    fn commands(shared: &Shared) -> u64 {
        shared.counters.snapshot(Vec::new()).commands
    }

    /// An attempt that has come to all nodes, as far as anybody knows.
    fn attempt(shared: &Shared, ticket: &Ticket) -> Attempt {
        let Ok((attempt, _)) = ticket.prepare(shared, shared.admission.enter()) else { panic!("no attempt") };
        attempt.round.set_reached(shared.fanout.ids().collect());
        attempt
    }

    #[test]
    fn a_call_that_ends_when_its_attempt_was_made_takes_it_back_and_leaves_the_lists() {
        let engine = engine();
        let shared = engine.shared();
        let place = Place::join(shared, request(shared));
        shared.queues.begin_hold(place.request().spec.plan.key(), 7);
        let ticket = shared.queues.pass_on(place.request().spec.plan.key(), 7).unwrap();
        let attempt = attempt(shared, &ticket);
        let (round, before) = (Arc::clone(&attempt.round), commands(shared));

        ticket.make(attempt);
        drop(place);

        assert!(round.is_over());
        assert_eq!(commands(shared) - before, 2 * 3, "a release and a farewell for each node");
        assert_eq!(shared.counters.snapshot(Vec::new()).waiting, 0);
        assert!(shared.queues.lines.lock().is_empty());
    }

    #[test]
    fn a_call_that_ends_while_its_attempt_is_sent_waits_for_it_and_takes_it_back() {
        let engine = engine();
        let shared = engine.shared();
        let place = Place::join(shared, request(shared));
        shared.queues.begin_hold(place.request().spec.plan.key(), 7);
        let ticket = shared.queues.pass_on(place.request().spec.plan.key(), 7).unwrap();
        let attempt = attempt(shared, &ticket);
        let (round, before) = (Arc::clone(&attempt.round), commands(shared));

        thread::scope(|scope| {
            scope.spawn(|| {
                let until = time::tick().checked_add(Duration::from_secs(30)).unwrap();
                while !matches!(ticket.state.lock().handover, Handover::Coming { awaited: true }) {
                    assert!(time::tick() < until, "it does not wait for its attempt");
                    thread::yield_now();
                }
                assert_eq!(commands(shared), before);
                ticket.make(attempt);
            });
            drop(place);
        });

        assert!(round.is_over());
        assert_eq!(commands(shared) - before, 2 * 3);
        assert!(shared.queues.lines.lock().is_empty());
    }

    #[test]
    fn h4_a_call_that_reached_no_majority_is_behind_all_others_and_enters_no_list_until_it_does() {
        let engine = engine();
        let shared = engine.shared();
        let mut place = Place::join(shared, request(shared));
        let ticket = Arc::clone(&place.ticket);
        assert!(attempt(shared, &ticket).enters);
        assert_eq!(ticket.since(shared), place.request().began.wall_micros());

        let Ok(Err(lost)) = place.try_now(shared.admission.enter()) else { panic!("nobody was asked") };

        assert_eq!(lost.why, crate::logic::acquire::LossReason::NoQuorum);
        assert_eq!(ticket.since(shared), LAST);
        assert!(!attempt(shared, &ticket).enters);
        place.note(LostAttempt { why: crate::logic::acquire::LossReason::Held, ..lost });
        assert_eq!(ticket.since(shared), place.request().began.wall_micros());
        assert!(attempt(shared, &ticket).enters);
    }

    #[test]
    fn h8_who_came_after_the_last_attempt_of_a_call_that_gives_up_makes_one_of_his_own() {
        let engine = engine();
        let shared = engine.shared();
        let (first, mut second) = (Place::join(shared, request(shared)), Place::join(shared, request(shared)));
        let last = LostAttempt::without_tokens(3, 0);
        while time::tick() <= last.asked {}
        let mut third = Place::join(shared, request(shared));

        first.give_up_for_all(&last);
        drop(first);

        assert!(matches!(second.wait(None, &[]), Woken::GivenUp(_)));
        drop(second);
        assert!(matches!(third.wait(None, &[]), Woken::Try(_)));
    }

    #[test]
    fn a_call_that_was_on_no_list_and_was_given_no_attempt_leaves_without_a_word() {
        let engine = engine();
        let shared = engine.shared();

        drop(Place::join(shared, request(shared)));

        assert_eq!(commands(shared), 0);
        assert!(shared.queues.lines.lock().is_empty());
    }
}
