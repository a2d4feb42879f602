//! Calls of this manager that wait for the same lock: in line, first come first served.
//!
//! Only the first asks the nodes, and nobody does while the manager holds the lock itself: a release sends the first
//! one's acquire along, in the same write. Notices of releases come from the nodes and wake the first. They are hints:
//! one too many costs a round, one too few the time until the next try.
//!
//! Locks are taken in this order: the lines, then a ticket.

mod line;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::admission::{Slot, Turn};
use crate::engine::attempt::{Attempt, Known, LostAttempt, NoAttempt, Wish};
use crate::engine::core::Core;
use crate::engine::lease::Won;
use crate::engine::queue::line::{Hold, Line, Lines};
use crate::engine::sync::Mutex;
use crate::engine::waiters::{Bed, Signal};
use crate::engine::wheel::Driver;
use crate::error::HeldBy;
use crate::ids::{ClientId, NodeId, NodeSet};
use crate::logic::quorum;
use crate::logic::wait;
use crate::stats::{Counters, count, count_down};
use crate::time::{self, Tick};
use crate::wire::{Command, LAST, Manners, Plan};

/// For how long it is worth to tell a node that a call has stopped waiting: its list forgets by itself, and until then
/// it costs others the time of one turn.
const LEAVE_FOR: Duration = Duration::from_secs(5);

/// All lines of a manager.
pub(crate) struct Queues {
    client: ClientId,
    nodes: usize,
    lines: Mutex<Lines>,
    counters: Arc<Counters>,
}

/// One call's place in a line.
pub(crate) struct Ticket {
    wish: Wish,
    joined: Tick,
    bed: Arc<Bed>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// First in line, and the manager does not hold the lock: the call asks the nodes.
    up: bool,
    /// When it asks them next if it hears of nothing; at once if `None`.
    try_at: Option<Tick>,
    /// Nodes that have announced a release since the last attempt began, and when the first of them did.
    told: NodeSet,
    told_at: Option<Tick>,
    /// How long the others are waited for after that.
    grace: Duration,
    known: Known,
    handover: Handover,
    /// The last attempt of the first in line, which has given up because of an outage.
    given_up: Option<Arc<LostAttempt>>,
}

/// An attempt that whoever releases the lock makes for the call.
#[derive(Default)]
enum Handover {
    #[default]
    None,
    /// It is being made. `awaited`: the call has nothing else to wait for any more.
    Coming {
        awaited: bool,
    },
    Made(Attempt),
}

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

impl Queues {
    pub(crate) fn new(client: ClientId, nodes: usize, counters: Arc<Counters>) -> Queues {
        Queues { client, nodes, lines: Mutex::default(), counters }
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// Notes that the manager holds the lock, by the hold `id`.
    pub(crate) fn begin_hold(&self, key: &Arc<[u8]>, id: u64) {
        let mut lines = self.lines.lock();
        let line = lines.entry(Arc::clone(key)).or_default();
        line.holder = Some(Hold::of_this_thread(id));
        line.set_up();
    }

    /// Whether the manager holds the lock itself, as the calling thread sees it.
    pub(crate) fn held_by(&self, key: &[u8]) -> HeldBy {
        let lines = self.lines.lock();
        lines.get(key).map_or(HeldBy::Other, Line::held_by)
    }

    /// Notes that the hold `id` is over. The call that comes next, if one does, gets its attempt from the caller, who
    /// must [make](Ticket::make) it or [leave it](Ticket::make_none) to the call.
    ///
    /// RACE: with nobody in line the hold goes on until its release is sent, and [`Queues::end_hold`] is called. A call
    /// that came in between would ask the nodes before that and be refused, and the release would strike it from their
    /// waiting lists.
    pub(crate) fn pass_on(&self, key: &[u8], id: u64) -> Option<Arc<Ticket>> {
        let mut lines = self.lines.lock();
        let line = lines.get_mut(key).filter(|it| it.is_held_by(id))?;
        let first = Arc::clone(line.tickets.front()?);
        let mut state = first.state.lock();
        if !matches!(state.handover, Handover::None) {
            // RACE: this hold came between an earlier release and the acquire that goes along with it, and that attempt
            // is still being made, or not looked at. Put in its place, ours would leave it to nobody, with its keys.
            return None;
        }
        line.holder = None;
        // Up, so that a notice that comes in between is not lost on it.
        state.up = true;
        (state.told, state.told_at) = (NodeSet::default(), None);
        state.handover = Handover::Coming { awaited: false };
        drop(state);
        Some(first)
    }

    /// Notes that the hold `id` is over, for a reason that says nothing about the nodes. The next call tries by itself.
    pub(crate) fn end_hold(&self, key: &[u8], id: u64) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(key).filter(|it| it.is_held_by(id)) else { return };
        line.holder = None;
        line.set_up();
        if line.is_empty() {
            lines.remove(key);
        }
    }

    /// A node has announced that the lock `key` was released. `leave` is called if nobody waits for that, so that the
    /// node tells the next one; it must not block.
    pub(crate) fn tell(&self, node: NodeId, key: &[u8], leave: impl FnOnce(&dyn Fn() -> Command)) {
        count(&self.counters.notices);
        // RACE: with the lines locked. A call that begins to wait now enters the list behind the farewell.
        let lines = self.lines.lock();
        match lines.get(key).filter(|it| it.holder.is_none()).and_then(|it| it.tickets.front()) {
            Some(first) => first.tell(node),
            None => leave(&|| Plan::leave(key, self.client)),
        }
    }

    /// Nobody waits, and the manager holds nothing.
    #[cfg(any(test, quorlock_shuttle))]
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.lock().is_empty()
    }

    fn remove(&self, lines: &mut Lines, ticket: &Arc<Ticket>, held: Option<u64>) {
        let key = ticket.wish.plan.key();
        let Some(line) = lines.get_mut(key) else { return };
        let before = line.tickets.len();
        line.tickets.retain(|it| !Arc::ptr_eq(it, ticket));
        if line.tickets.len() < before {
            count_down(&self.counters.waiting);
        }
        if let Some(id) = held {
            line.holder = Some(Hold::of_this_thread(id));
        }
        line.set_up();
        if line.is_empty() {
            lines.remove(key);
        }
    }
}

impl State {
    /// When to ask the nodes; `None` for at once.
    fn next_try(&self, nodes: usize) -> Option<Tick> {
        let in_time = self.told_at.and_then(|it| it.checked_add(self.grace));
        wait::next_try(self.try_at?, quorum(nodes), self.told.len(), in_time)
    }
}

impl Ticket {
    fn tell(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.told.insert(node);
        state.told_at.get_or_insert_with(time::tick);
        drop(state);
        self.bed.wake();
    }

    /// When the call began that comes next, as far as others who wait are concerned.
    pub(crate) fn since(&self, core: &Core) -> u64 {
        if self.state.lock().known.has_no_place { LAST } else { self.wish.since(core) }
    }

    /// Prepares the attempt that the call will find made, see [`Queues::pass_on`]; the command has to be sent.
    pub(crate) fn prepare(&self, core: &Core, slot: Slot) -> Result<(Attempt, Command), NoAttempt> {
        let known = self.state.lock().known;
        let bed = Arc::clone(&self.bed);
        // Also for a lock that is not fair: the calls of a busy manager would hand it on among themselves for ever.
        let manners = Manners { fair: true, ..self.wish.manners };
        Attempt::prepare(core, slot, &self.wish, known, manners, Some(Box::new(move || bed.wake())))
    }

    /// Gives the call its attempt, which has been sent.
    ///
    /// RACE: not before it was sent. The call may end it at once, and what it then takes back must run behind it. The
    /// call's thread sleeps on, until the attempt is decided.
    pub(crate) fn make(&self, attempt: Attempt) {
        self.set_handover(Handover::Made(attempt));
    }

    /// Lets the call try by itself.
    pub(crate) fn make_none(&self) {
        self.state.lock().try_at = None;
        self.set_handover(Handover::None);
        self.bed.wake();
    }

    fn set_handover(&self, to: Handover) {
        let before = std::mem::replace(&mut self.state.lock().handover, to);
        if matches!(before, Handover::Coming { awaited: true }) {
            self.bed.wake();
        }
    }

    /// Sees to it that the call looks after its attempt, decided or not.
    pub(crate) fn wake(&self) {
        self.bed.wake();
    }
}

/// A call in line, until it is dropped.
pub(crate) struct Place<'a> {
    core: &'a Core,
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
    pub(crate) fn join(core: &'a Core, wish: Wish) -> Place<'a> {
        let joined = time::tick();
        let ticket = Arc::new(Ticket { wish, joined, bed: Arc::default(), state: Mutex::default() });
        let queues = &core.queues;
        let mut lines = queues.lines.lock();
        count(&queues.counters.waiting);
        let line = lines.entry(Arc::clone(ticket.wish.plan.key())).or_default();
        line.tickets.push_back(Arc::clone(&ticket));
        line.set_up();
        drop(lines);
        let (pause, listed) = (Duration::ZERO, NodeSet::default());
        Place { core, ticket, tries: 0, pause, listed, turn: Turn::default(), reads: false, driver: None, held: None }
    }

    pub(crate) fn wish(&self) -> &Wish {
        &self.ticket.wish
    }

    /// Waits until there is something to do, until `until`, or until one of `signals` is given.
    pub(crate) fn wait(&mut self, until: Option<Tick>, signals: &[&Signal]) -> Woken {
        let bed = Arc::clone(&self.ticket.bed);
        let _listed = bed.listed_with(signals);
        if std::mem::take(&mut self.reads) {
            // Not before: at the wheel a thread has things locked, and its lines for the log would wait.
            self.driver = self.core.fanout.take_wheel();
            if self.driver.is_none() {
                self.core.fanout.settle();
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
                    Handover::None if state.up => match state.next_try(self.core.queues.nodes) {
                        Some(at) if now < at => (Some(until.map_or(at, |it| it.min(at))), false),
                        _ => (until, true),
                    },
                    _ => (until, false),
                }
            };
            if let Some(slot) = self.turn.wait(asks, &self.core.admission, &bed) {
                return Woken::Try(slot);
            }
            match &mut self.driver {
                Some(driver) => {
                    if !driver.listen(wake_at, &bed) {
                        self.driver = None;
                    }
                }
                None => bed.sleep(wake_at),
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
        let result = Attempt::run(self.core, slot, &self.ticket.wish, known, self.driver.take())?;
        Ok(result.map_err(|lost| self.note(lost)))
    }

    /// Waits for the attempt that was made for the call.
    pub(crate) fn finish(&mut self, attempt: Attempt) -> Result<Won, LostAttempt> {
        (self.driver, self.turn) = (None, Turn::default());
        attempt.finish(self.core, &self.ticket.wish).map_err(|lost| self.note(lost))
    }

    /// Plans the next try after a lost one.
    fn note(&mut self, lost: LostAttempt) -> LostAttempt {
        self.listed = self.listed.union(lost.round.as_ref().map(|it| it.reached()).unwrap_or_default());
        let core = self.core;
        let (min, max) = (core.config.retry_min, core.config.retry_max);
        let free_in = lost.free_in();
        let majority = quorum(core.queues.nodes);
        let told = majority <= lost.entered && majority <= core.fanout.listening();
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
        let lines = self.core.queues.lines.lock();
        let Some(line) = lines.get(self.wish().plan.key()) else { return };
        let others = line.tickets.iter().filter(|it| !Arc::ptr_eq(it, &self.ticket) && it.joined <= lost.asked);
        for ticket in others {
            ticket.state.lock().given_up = Some(Arc::clone(&lost));
            ticket.bed.wake();
        }
    }

    /// Leaves the line, unless an attempt was made for the call meanwhile: that has to be finished first.
    pub(crate) fn stop(&mut self) -> Option<Attempt> {
        (self.driver, self.turn) = (None, Turn::default());
        loop {
            {
                let mut lines = self.core.queues.lines.lock();
                let mut state = self.ticket.state.lock();
                match std::mem::take(&mut state.handover) {
                    Handover::Made(attempt) => return Some(attempt),
                    Handover::None => {
                        drop(state);
                        // RACE: whoever is next in line asks the nodes as soon as he is let, and enters their lists by
                        // that. The farewell is sent before it: behind it, it would strike him, and nobody would tell
                        // him of the release.
                        self.say_farewell();
                        self.core.queues.remove(&mut lines, &self.ticket, self.held);
                        return None;
                    }
                    // RACE: whoever releases is just sending it. It is not ours to end before that.
                    Handover::Coming { .. } => state.handover = Handover::Coming { awaited: true },
                }
            }
            self.ticket.bed.sleep(None);
        }
    }

    /// Leaves the waiting lists. Called with the lines locked: see [`Queues::tell`].
    fn say_farewell(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        if self.held.is_none() && listed != NodeSet::default() {
            self.core.say_farewell(self.wish().plan.key(), listed, LEAVE_FOR);
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
            attempt.abandon(self.core, self.wish());
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
    use crate::ids::LockName;
    use crate::time::Moment;
    use crate::wire::{Address, Entry, Lives};

    /// A manager of three nodes that nobody can reach.
    fn engine() -> Engine {
        let addresses = (1..=3).map(|port| Address::parse(&format!("redis://127.0.0.1:{port}")).unwrap()).collect();
        Engine::start(Config::default(), addresses).unwrap()
    }

    fn wish(core: &Core) -> Wish {
        let entry = Some(Entry { client: core.queues.client(), life: 1000 });
        Wish {
            name: LockName::new(b"x"),
            plan: Arc::new(Plan::mutex(b"", b"x", Lives::default())),
            ttl: Duration::from_secs(10),
            renewed: false,
            manners: Manners { fair: true, since: 1, entry, enters: true },
            began: Moment::now(),
            place: OnceLock::new(),
        }
    }

    fn commands(core: &Core) -> u64 {
        core.counters.snapshot(Vec::new()).commands
    }

    /// An attempt that has come to all nodes, as far as anybody knows.
    fn attempt(core: &Core, ticket: &Ticket) -> Attempt {
        let Ok((attempt, _)) = ticket.prepare(core, core.admission.enter()) else { panic!("no attempt") };
        attempt.round.set_reached(core.fanout.ids().collect());
        attempt
    }

    #[test]
    fn a_call_that_ends_when_its_attempt_was_made_takes_it_back_and_leaves_the_lists() {
        let engine = engine();
        let core = engine.core();
        let place = Place::join(core, wish(core));
        core.queues.begin_hold(place.wish().plan.key(), 7);
        let ticket = core.queues.pass_on(place.wish().plan.key(), 7).unwrap();
        let attempt = attempt(core, &ticket);
        let (round, before) = (Arc::clone(&attempt.round), commands(core));

        ticket.make(attempt);
        drop(place);

        assert!(round.is_over());
        assert_eq!(commands(core) - before, 2 * 3, "a release and a farewell for each node");
        assert_eq!(core.counters.snapshot(Vec::new()).waiting, 0);
        assert!(core.queues.lines.lock().is_empty());
    }

    #[test]
    fn a_call_that_ends_while_its_attempt_is_sent_waits_for_it_and_takes_it_back() {
        let engine = engine();
        let core = engine.core();
        let place = Place::join(core, wish(core));
        core.queues.begin_hold(place.wish().plan.key(), 7);
        let ticket = core.queues.pass_on(place.wish().plan.key(), 7).unwrap();
        let attempt = attempt(core, &ticket);
        let (round, before) = (Arc::clone(&attempt.round), commands(core));

        thread::scope(|scope| {
            scope.spawn(|| {
                let until = time::tick().checked_add(Duration::from_secs(30)).unwrap();
                while !matches!(ticket.state.lock().handover, Handover::Coming { awaited: true }) {
                    assert!(time::tick() < until, "it does not wait for its attempt");
                    thread::yield_now();
                }
                assert_eq!(commands(core), before);
                ticket.make(attempt);
            });
            drop(place);
        });

        assert!(round.is_over());
        assert_eq!(commands(core) - before, 2 * 3);
        assert!(core.queues.lines.lock().is_empty());
    }

    #[test]
    fn h4_a_call_that_reached_no_majority_is_behind_all_others_and_enters_no_list_until_it_does() {
        let engine = engine();
        let core = engine.core();
        let mut place = Place::join(core, wish(core));
        let ticket = Arc::clone(&place.ticket);
        assert!(attempt(core, &ticket).enters);
        assert_eq!(ticket.since(core), place.wish().began.wall_micros());

        let Ok(Err(lost)) = place.try_now(core.admission.enter()) else { panic!("nobody was asked") };

        assert_eq!(lost.why, crate::logic::acquire::Why::NoQuorum);
        assert_eq!(ticket.since(core), LAST);
        assert!(!attempt(core, &ticket).enters);
        place.note(LostAttempt { why: crate::logic::acquire::Why::Held, ..lost });
        assert_eq!(ticket.since(core), place.wish().began.wall_micros());
        assert!(attempt(core, &ticket).enters);
    }

    #[test]
    fn h8_who_came_after_the_last_attempt_of_a_call_that_gives_up_makes_one_of_his_own() {
        let engine = engine();
        let core = engine.core();
        let (first, mut second) = (Place::join(core, wish(core)), Place::join(core, wish(core)));
        let last = LostAttempt::without_tokens(3, 0);
        while time::tick() <= last.asked {}
        let mut third = Place::join(core, wish(core));

        first.give_up_for_all(&last);
        drop(first);

        assert!(matches!(second.wait(None, &[]), Woken::GivenUp(_)));
        drop(second);
        assert!(matches!(third.wait(None, &[]), Woken::Try(_)));
    }

    #[test]
    fn a_call_that_was_on_no_list_and_was_given_no_attempt_leaves_without_a_word() {
        let engine = engine();
        let core = engine.core();

        drop(Place::join(core, wish(core)));

        assert_eq!(commands(core), 0);
        assert!(core.queues.lines.lock().is_empty());
    }
}
