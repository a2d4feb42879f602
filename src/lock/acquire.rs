//! The blocking loop of an acquisition, and the words of its errors.

use std::cell::RefCell;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::call::lost::Lost;
use crate::call::steps::{News, Next, Terms, View, Why, Win};
use crate::engine::{
    self, Broadcast, CallInner, CancelHandle, Engine, HoldInner, LockSpec, Look, ManagerState,
    Pending, RoundTicket, Signal, WaitLimit, Waiting, Watching, Won, draw_owner,
};
use crate::error::{AcquireError, HeldBy, NodeAnswer, NodeFailure, RoundLoss, Rows};
use crate::ids::{NodeId, NodeSet, OwnerToken};
use crate::lock::hold::Hold;
use crate::logic::quorum;
use crate::logic::tally::ReleaseRound;
use crate::observer::Event;
use crate::stats::count;
use crate::sys::logging::{debug, info, warn};
use crate::time::{self, About, Moment, Now, Tick};

/// Wait of an error for the reasons of further nodes.
const REASONS: Duration = Duration::from_millis(20);
/// Shortest duration of a call in an outage, if its timeout allows it: a program that retries in a
/// loop does not spin.
const OUTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Acquires the lock.
pub(crate) fn acquire(
    engine: &Arc<Engine>,
    spec: &Arc<LockSpec>,
    patience: WaitLimit,
) -> Result<Hold, AcquireError> {
    spec.check(&engine.shared.config)?;
    engine.operate(|shared| {
        let fanout = &shared.fanout;
        fanout.records.is_used.store(true, Ordering::Relaxed);
        fanout.journal.observe(|| Event::Began {
            lock: spec.observed(),
        });
        let mut call = Acquisition::new(engine, spec, patience);
        let result = call.run();
        if let (Err(error), false) = (&result, call.won) {
            fanout.journal.observe(|| Event::NotAcquired {
                lock: spec.observed(),
                waited: call.waited(),
                error: error.clone(),
            });
        }
        result
    })?
}

/// A call under way, on its thread.
struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    spec: &'a Arc<LockSpec>,
    call: Arc<CallInner>,
    turn: RefCell<Turn>,
    /// Release of the last lost round, under way.
    release: Option<Arc<Pending<ReleaseRound>>>,
    /// Whether the observer has its `Acquired` event.
    won: bool,
}

/// A place among the calls that wait for a round ticket, or the ticket.
#[derive(Default)]
struct Turn {
    waiting: Option<Waiting>,
    ticket: Option<RoundTicket>,
}

/// The sleep of a call between its rounds.
struct Sleeper<'a> {
    signals: &'a [&'a Signal],
    watching: Option<Watching<'a>>,
    /// Time of a warning: this thread waits for its own lock.
    warn_at: Option<Tick>,
}

impl Sleeper<'_> {
    fn sleep(&mut self, until: Option<Tick>, acquisition: &Acquisition<'_>) {
        let parker = &acquisition.call.parker;
        if until.is_some_and(|it| it <= time::tick()) {
            return;
        }
        // Most calls need no sleep. The signals are looked at once more after the watch begins.
        if self.watching.is_none() {
            self.watching = Some(parker.watch(self.signals));
            return;
        }
        let warn_at = self
            .warn_at
            .filter(|it| until.is_none_or(|until| *it < until));
        parker.sleep(warn_at.or(until));
        if warn_at.is_some_and(|it| it <= time::tick()) {
            self.warn_at = None;
            acquisition.note_own_hold();
        }
    }
}

impl<'a> Acquisition<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        spec: &'a Arc<LockSpec>,
        patience: WaitLimit,
    ) -> Acquisition<'a> {
        let ManagerState {
            config,
            fanout,
            queues,
            ..
        } = &*engine.shared;
        let nodes = fanout.nodes.len();
        Acquisition {
            engine,
            spec,
            call: CallInner::new(spec, config, nodes, queues.client, patience),
            turn: RefCell::default(),
            release: None,
            won: false,
        }
    }

    fn waits(&self) -> bool {
        self.call.terms.waits()
    }

    /// The end of `timeout`, or of the call.
    fn deadline(&self, timeout: Duration) -> Tick {
        let deadline = time::deadline(timeout);
        self.call
            .terms
            .end
            .map_or(deadline, |end| end.min(deadline))
    }

    fn waited(&self) -> Duration {
        time::tick().saturating_duration_since(self.call.terms.began.tick)
    }

    fn signals(&self) -> impl Iterator<Item = &'a Signal> {
        let cancel = self.spec.cancel.as_ref().map(|it| &it.signal);
        iter::once(&self.engine.shutdown).chain(cancel)
    }

    /// Reason to begin no further round, if any.
    fn stopped(&self) -> Option<AcquireError> {
        if self.engine.shutdown.is_given() {
            return Some(AcquireError::ShutDown);
        }
        let cancel = self.spec.cancel.as_ref();
        let cancelled = cancel.is_some_and(CancelHandle::is_cancelled);
        cancelled.then_some(AcquireError::Cancelled)
    }

    /// Steps, and does what comes out, until the call is won or gives up.
    fn run(&mut self) -> Result<Hold, AcquireError> {
        let shared: &Arc<ManagerState> = &self.engine.shared;
        let fanout = &shared.fanout;
        let call = Arc::clone(&self.call);
        let signals: Vec<_> = self.signals().collect();
        let mut sleeper = Sleeper {
            signals: &signals,
            watching: None,
            warn_at: self.waits().then(|| self.own_hold_at()).flatten(),
        };
        if self.waits() {
            shared.queues.join(&call);
        }
        loop {
            match self.step() {
                Next::Ask(ask) => {
                    if self.waits() {
                        shared.queues.owners.insert(ask.owner.token, &call);
                        shared.queues.owners.insert(ask.owner.successor, &call);
                    }
                    call.ask(&ask, fanout);
                    call.parker.sleep(Some(ask.deadline));
                }
                Next::Raise {
                    round,
                    owner,
                    slot,
                    token,
                    deadline,
                } => {
                    count(&fanout.journal.counters.fencing_raises);
                    let command = self.spec.of_slot(slot).commands.raise(owner, token);
                    call.send(round, command, fanout);
                    call.parker.sleep(Some(deadline));
                }
                Next::Sleep(until) => call.parker.sleep(Some(until)),
                Next::TakeBack(release) => {
                    self.release = call.take_back(release, fanout);
                    self.turn.take();
                }
                Next::Won(win) => return self.guard(*win),
                Next::GiveUp(why) => return Err(self.error(why)),
                Next::Rest(until) => {
                    self.turn.take();
                    sleeper.sleep(until, self);
                }
                Next::AwaitTurn(until) => {
                    let mut turn = self.turn.borrow_mut();
                    // A ticket may be free at once.
                    if turn.waiting.is_none() {
                        turn.waiting = Some(shared.admission.enqueue(&call.parker));
                    } else {
                        drop(turn);
                        sleeper.sleep(until, self);
                    }
                }
            }
        }
    }

    /// One step of the call. Tells its news.
    fn step(&self) -> Next {
        let now = Now::read();
        // With nothing locked: a worker that brings an answer waits for this step.
        let view = CallView {
            acquisition: self,
            look: self.engine.shared.fanout.look(),
            is_stopped: self.signals().any(Signal::is_given),
        };
        let (next, news) = self.call.step(|call| {
            let next = call.next(&view, now);
            (next, std::mem::take(&mut call.news))
        });
        news.into_iter().for_each(|it| self.tell(it));
        next
    }

    fn tell(&self, news: News) {
        match news {
            News::Load { asked, timed_out } => {
                if let Some(ticket) = &self.turn.borrow().ticket {
                    ticket.adjust_limit(asked, timed_out);
                }
            }
            News::Forgotten(owner) => self.engine.shared.queues.owners.remove(owner),
            News::Lost { lost, pause } => self.note(&lost, pause),
        }
    }

    /// Leaves the queue, with a hold of this id if it has won, and the nodes' waiting lists.
    fn leave(&self, held: Option<u64>) {
        let shared = &self.engine.shared;
        self.turn.take();
        if self.waits() {
            shared.queues.leave(&self.call, held);
        } else if let Some(id) = held {
            shared.queues.begin_hold(self.spec, id);
        }
        let (release, news) = self
            .call
            .step(|call| (call.leave(held.is_none()), std::mem::take(&mut call.news)));
        news.into_iter().for_each(|it| self.tell(it));
        if let Some(release) = release {
            self.call.leave(release, &shared.fanout);
        }
    }

    /// The guard of a won lock.
    ///
    /// RACE: T1, this thread, enters the hold in the schedule; T2, the renewal thread, ends it,
    /// because the process was paused for longer than the ttl; T1 notes it in the queue, where it
    /// never ends, with all later calls behind it. Therefore T1 notes it first.
    fn guard(&mut self, win: Win) -> Result<Hold, AcquireError> {
        let shared: &Arc<ManagerState> = &self.engine.shared;
        let fanout = &shared.fanout;
        let spec = self.spec.of_slot(win.slot);
        self.record(Ok(()), win.took);
        debug!(
            fanout.journal,
            "{:?}: won in {}, token {}, {:?}",
            self.spec.name,
            About(win.took),
            win.token,
            win.owner
        );
        let client = self.call.entry.map(|it| it.client);
        if let Some(keep) = spec.commands.keep(win.owner, client)
            && !win.others.is_empty()
        {
            // Other slots that nodes granted, or may still grant, are given back. The call leaves
            // the lists of these nodes: the manager's next waiting call has the same entry.
            //
            // RACE: behind the acquire, as in `Call::take_back`.
            let release = Broadcast::release(keep, win.others, spec.ttl());
            fanout.send(release, time::tick());
        }
        self.note_majority();
        let id = shared.next_lock.fetch_add(1, Ordering::Relaxed);
        let ticket = self.turn.take().ticket;
        let round_ticket = ticket.filter(|_| win.is_handed_over);
        let call = Arc::clone(&self.call);
        let won = Won {
            spec,
            win,
            call,
            round_ticket,
        };
        let lock = Arc::new(HoldInner::new(Arc::clone(shared), id, won));
        self.leave(Some(id));
        self.won = true;
        fanout.journal.observe(|| Event::Acquired {
            lock: self.spec.observed(),
            waited: self.waited(),
            token: lock.token,
            ttl: self.spec.ttl(),
        });
        lock.start();
        if self.engine.shutdown.is_given() {
            // No thread would extend the lock. A drop would wait for the shutdown, which waits for
            // this call.
            let _ = lock.release();
            return Err(AcquireError::ShutDown);
        }
        Ok(Hold::new(Arc::clone(self.engine), lock))
    }

    fn record(&self, outcome: Result<(), RoundLoss>, took: Duration) {
        let lock = self.spec.observed();
        let journal = &self.engine.shared.fanout.journal;
        journal.record(Event::Round {
            lock,
            outcome,
            took,
        });
    }

    /// Tells of a lost round.
    fn note(&self, lost: &Arc<Lost>, pause: Duration) {
        self.record(Err(lost.why), lost.took);
        let took = About(lost.took);
        let pause = About(pause);
        debug!(
            self.engine.shared.fanout.journal,
            "{:?}: lost round ({}) in {took}, next try in {pause}", self.spec.name, lost.why
        );
        match lost.finds_a_majority() {
            Some(true) => self.note_majority(),
            Some(false) => self.note_failure(lost),
            None => {}
        }
        // Once per manager: a newcomer would not expect to wait for quarantined servers. A wait
        // that is nearly over needs no line.
        let logged = &self.engine.shared.logged_quarantine;
        let is_long = |left| Duration::from_millis(10) < left;
        if lost.quarantine().is_some_and(is_long) && !logged.swap(true, Ordering::Relaxed) {
            self.warn_of(lost);
        }
    }

    /// Notes an answer of a majority, for the whole manager.
    fn note_majority(&self) {
        let outage = self.engine.shared.outage.lock().on_majority();
        if let Some(since) = outage {
            let lasted = About(time::tick().saturating_duration_since(since));
            info!(
                self.engine.shared.fanout.journal,
                "a majority of the nodes responds again, after {lasted}"
            );
        }
    }

    /// Notes an attempt without a majority.
    fn note_failure(&self, lost: &Lost) {
        if lost
            .rows
            .contains(&NodeAnswer::Failed(NodeFailure::ShutDown))
        {
            return;
        }
        let shared = &self.engine.shared;
        let is_news = shared.outage.lock().on_failure(lost.began, time::tick());
        if is_news {
            self.warn_of(lost);
        }
    }

    /// Warns, for the whole manager, that too few nodes vote.
    fn warn_of(&self, lost: &Lost) {
        let fanout = &self.engine.shared.fanout;
        let name = &self.spec.name;
        let rows = fanout.report(lost.rows.clone());
        let rows = Rows(&rows);
        warn!(
            fanout.journal,
            "{name:?}: no lock can be taken, no quorum: {rows}"
        );
    }

    /// When a call for a lock that this thread took itself has waited for a ttl.
    fn own_hold_at(&self) -> Option<Tick> {
        // Other holders may release a permit.
        let own = !self.spec.commands.has_slots && self.held_by() == HeldBy::ThisThread;
        own.then(|| self.call.terms.began.tick.checked_add(self.spec.ttl()))
            .flatten()
    }

    fn held_by(&self) -> HeldBy {
        self.engine.shared.queues.held_by(&self.spec.commands)
    }

    /// Logs that this thread has waited for a ttl for a lock that it took itself.
    ///
    /// Only a call that began so can be in this state: no thread takes a lock while it waits for
    /// it.
    fn note_own_hold(&self) {
        if self.held_by() == HeldBy::ThisThread {
            warn!(
                self.engine.shared.fanout.journal,
                "{:?}: this thread has waited for {} for a lock it took itself, a deadlock if it \
                 still has the guard: drop the guard first",
                self.spec.name,
                About(self.waited()),
            );
        }
    }

    /// The error of a call that gives up. It leaves its queue and the lists first.
    fn error(&mut self, why: Why) -> AcquireError {
        let fanout = &self.engine.shared.fanout;
        let name = self.spec.name.clone();
        let (lost, outage) = self.call.step(|call| (call.lost.clone(), call.outage));
        if let Some(lost) = lost.as_ref().filter(|it| it.why == RoundLoss::NoQuorum) {
            self.wait_for_rows();
            if why == Why::Hopeless && self.waits() && lost.finds_a_majority() == Some(false) {
                let rows = self.call.step(|call| call.rows());
                let lost = Arc::new(Lost {
                    rows,
                    ..Lost::clone(lost)
                });
                self.engine.shared.queues.give_up_for_all(&self.call, &lost);
            }
        }
        let nodes = fanout.report(self.call.step(|call| call.rows()));
        // Other rounds of the manager kept it from asking.
        let awaits_turn = !self.waits() || self.turn.borrow().waiting.is_some();
        self.leave(None);
        match why {
            Why::NoRandomness(reason) => return AcquireError::NoRandomness { reason },
            Why::NoToken => return AcquireError::KeyInUse { name, nodes },
            Why::Hopeless if self.waits() && outage.is_some() => {
                let Terms { began, until, .. } = self.call.terms;
                let end = began.tick.checked_add(OUTAGE_PAUSE).unwrap_or(began.tick);
                let end = until.map_or(end, |until| until.min(end));
                engine::sleep(end, &self.signals().collect::<Vec<_>>());
            }
            _ => {}
        }
        let stopped = self
            .stopped()
            .filter(|_| self.waits() || why == Why::Stopped);
        if let Some(stopped) = stopped {
            return stopped;
        }
        let waited = self.waited();
        let Some(lost) = lost else {
            return self.error_unasked(awaits_turn);
        };
        // The release of its grants, within a response timeout and the call's time, so that the
        // call leaves nothing behind if possible.
        if let Some(release) = &self.release {
            release.wait(self.deadline(fanout.response_timeout));
        }
        match lost.why {
            RoundLoss::Held | RoundLoss::Overtaken => AcquireError::Held {
                name,
                by: self.held_by(),
                nodes,
                waited,
            },
            RoundLoss::NoQuorum => AcquireError::NoQuorum {
                name,
                nodes,
                waited,
            },
            RoundLoss::TooLate => AcquireError::TooLate {
                name,
                took: lost.took,
                ttl: self.spec.ttl(),
            },
            RoundLoss::KeyInUse => AcquireError::KeyInUse { name, nodes },
        }
    }

    /// The error of a call that has asked no node: the manager holds the lock itself, other calls
    /// were first, or other rounds had all tickets.
    fn error_unasked(&self, awaits_turn: bool) -> AcquireError {
        let name = self.spec.name.clone();
        let waited = self.waited();
        if awaits_turn {
            return AcquireError::Busy { name, waited };
        }
        let by = self.held_by();
        let nodes = self.engine.shared.fanout.not_asked(time::tick());
        let votes = nodes.iter().filter(|it| it.answer == NodeAnswer::NotAsked);
        if by == HeldBy::Other && votes.count() < quorum(nodes.len()) {
            return AcquireError::NoQuorum {
                name,
                nodes,
                waited,
            };
        }
        AcquireError::Held {
            name,
            by,
            nodes,
            waited,
        }
    }

    /// Waits for the reasons of all nodes.
    fn wait_for_rows(&self) {
        let deadline = self.deadline(REASONS);
        while self.call.step(|call| call.has_open_rows()) && time::tick() < deadline {
            self.call.parker.sleep(Some(deadline));
        }
    }
}

/// What one step of the call looks at.
struct CallView<'a> {
    acquisition: &'a Acquisition<'a>,
    look: Look,
    is_stopped: bool,
}

impl View for CallView<'_> {
    fn time_for_all(&self, at: Moment) -> Option<u64> {
        self.look.time_for_all(at)
    }

    fn quarantined_of(&self, nodes: NodeSet, asked: Tick) -> Vec<(NodeId, NodeFailure)> {
        self.look.quarantined_of(nodes, asked)
    }

    fn notifying(&self) -> usize {
        self.look.notifying()
    }

    fn deadline(&self, now: Tick) -> Tick {
        self.look.deadline(now)
    }

    fn outage(&self) -> Option<Tick> {
        self.acquisition.engine.shared.outage.lock().since()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn take_turn(&self) -> Option<Duration> {
        let mut turn = self.acquisition.turn.borrow_mut();
        let ticket = match &turn.waiting {
            Some(waiting) => waiting.take()?,
            None => self.acquisition.engine.shared.admission.try_enter()?,
        };
        let waited = ticket.waited;
        *turn = Turn {
            waiting: None,
            ticket: Some(ticket),
        };
        Some(waited)
    }

    fn draw(&self) -> Result<OwnerToken, String> {
        draw_owner()
    }

    fn random(&self) -> f64 {
        fastrand::f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;
    use crate::config::Config;
    use crate::engine::NodeAddress;
    use crate::wire::{KeyTtls, LockCommands};

    /// A manager of one node, which cannot be reached and is not asked: other rounds have all
    /// tickets.
    fn full() -> (Arc<Engine>, Arc<LockSpec>) {
        let config = Config {
            outage_timeout: Duration::from_secs(3600),
            ..Config::default()
        };
        let engine = Arc::new(
            Engine::start(
                config,
                vec![NodeAddress::parse("redis://127.0.0.1:1").unwrap()],
            )
            .unwrap(),
        );
        engine.shared.admission.allow(0);
        let spec = LockSpec::new(
            &engine.shared.config,
            b"x",
            LockCommands::mutex(b"", b"x", KeyTtls::default()),
        );
        (engine, Arc::new(spec))
    }

    #[test]
    fn a_call_without_a_round_ticket_in_time_fails_as_busy() {
        let (engine, spec) = full();
        let soon = || time::deadline(Duration::from_millis(20));
        for patience in [
            WaitLimit::None,
            WaitLimit::Until(time::tick()),
            WaitLimit::Until(soon()),
        ] {
            let result = acquire(&engine, &spec, patience);
            assert!(
                matches!(result, Err(AcquireError::Busy { .. })),
                "{patience:?}: {result:?}"
            );
        }
        assert_eq!(
            engine
                .shared
                .fanout
                .journal
                .counters
                .snapshot()
                .rounds_without_quorum,
            0,
            "a node was asked"
        );
    }

    #[test]
    fn a_call_ends_one_connect_and_two_response_timeouts_after_its_limit() {
        let (engine, spec) = full();
        let config = &engine.shared.config;
        let slack = config.connect_timeout + config.response_timeout * 2;
        let until = time::deadline(Duration::from_secs(60));

        let end = |limit| Acquisition::new(&engine, &spec, limit).call.terms.end;
        assert_eq!(end(WaitLimit::Until(until)), Some(until + slack));
        assert_eq!(end(WaitLimit::Forever), None);
        let tries = Acquisition::new(&engine, &spec, WaitLimit::None);
        let last = tries.call.terms.began.tick + slack;
        assert_eq!(tries.call.terms.end, Some(last));
        assert_eq!(tries.deadline(Duration::from_secs(600)), last);

        engine.shared.admission.allow(1);
        let next = tries.step();
        assert!(matches!(next, Next::Ask(ask) if ask.deadline <= last));
    }

    /// Here it ends at the first moment at which it can: nobody looks after locks any more.
    #[test]
    fn h2_a_hold_that_ends_before_its_call_leaves_no_queue_and_no_owner() {
        let engine = Engine::start(
            Config::default(),
            vec![NodeAddress::parse("redis://127.0.0.1:1").unwrap()],
        )
        .unwrap();
        let engine = Arc::new(engine);
        let shared = &engine.shared;
        let spec = LockSpec::new(
            &shared.config,
            b"x",
            LockCommands::mutex(b"", b"x", KeyTtls::default()),
        );
        let spec = Arc::new(spec);
        shared.schedule.stop();
        for (limit, when) in [
            (WaitLimit::None, "after a try"),
            (WaitLimit::Forever, "after a wait"),
        ] {
            let mut call = Acquisition::new(&engine, &spec, limit);
            call.call.step(Call::grant_all);
            if call.waits() {
                shared.queues.join(&call.call);
            }
            let won = Won::just_now(&spec, Duration::from_secs(10));
            if let Some(entry) = call.call.entry {
                assert_eq!(entry.client, shared.queues.client);
                shared.queues.owners.insert(won.win.owner, &call.call);
            }
            let hold = call.guard(won.win).unwrap();
            assert!(shared.queues.is_empty() && !hold.is_valid(), "{when}");
        }
        assert_eq!(shared.fanout.journal.counters.snapshot().locks_lost, 2);
    }
}
