//! One call's way along a queue: it waits, asks the nodes or takes the attempt that was made for it, and leaves.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::fanout::Fanout;
use crate::engine::park::Signal;
use crate::engine::round::admission::{Admission, RoundTicket, RoundWait};
use crate::engine::round::attempt::Attempt;
use crate::engine::round::attempt::Request;
use crate::engine::round::outcome::{LostAttempt, NotWon, Won};
use crate::engine::wait::queue::{Handover, Ticket};
use crate::engine::wait::queues::Queues;
use crate::ids::NodeSet;
use crate::logic::pause;
use crate::logic::quorum;
use crate::stats::count;
use crate::sys::sync::Mutex;
use crate::time::{self, Tick};

/// For how long it is worth to tell a node that a call has stopped waiting: its list forgets by itself, and until then
/// it costs others the time of one reservation.
const LEAVE_FOR: Duration = Duration::from_secs(5);

/// What comes next for a call that waits.
pub(crate) enum WaitResult {
    /// An attempt has ended.
    Ended(Result<Won, NotWon>),
    /// The first call has given up because of an outage, after this attempt. It is over for all of them.
    GivenUp(LostAttempt),
    /// Time is up, or a signal was given.
    Stopped,
}

/// What a call waits for.
enum Woken {
    /// The nodes may be asked now.
    Try(RoundTicket),
    /// The thread that released the lock has asked them for this call.
    Sent(Attempt),
    /// The first call has given up because of an outage, after this attempt. It is over for all of them.
    GivenUp(LostAttempt),
    /// Time is up, or a signal was given.
    Stopped,
}

/// A call in its queue, until it is dropped.
pub(crate) struct QueuedCall<'a> {
    fanout: &'a Fanout,
    queues: &'a Queues,
    admission: &'a Arc<Admission>,
    ticket: Arc<Ticket>,
    tries: u32,
    /// The wait after the last attempt if no notice comes.
    pub(crate) pause: Duration,
    /// How many nodes had announced a release when the last attempt began.
    announced: usize,
    false_alarms: u32,
    /// Nodes that may have the call in their waiting lists.
    queued_at: NodeSet,
    /// To begin a round.
    turn: RoundWait,
    /// The hold that it became.
    held: Option<u64>,
}

impl<'a> QueuedCall<'a> {
    /// Goes to the end of the queue.
    pub(crate) fn join(
        fanout: &'a Fanout,
        queues: &'a Queues,
        admission: &'a Arc<Admission>,
        request: Request,
    ) -> QueuedCall<'a> {
        let joined = time::tick();
        let ticket = Arc::new(Ticket {
            request,
            joined,
            parker: Arc::default(),
            state: Mutex::default(),
        });
        let plan = &ticket.request.spec.plan;
        queues.note_wait(plan);
        let mut by_key = queues.by_key.lock();
        count(&queues.counters.waiting);
        let queue = by_key.entry(Arc::clone(&plan.key)).or_default();
        queue.tickets.push_back(Arc::clone(&ticket));
        queue.admit();
        drop(by_key);
        QueuedCall {
            fanout,
            queues,
            admission,
            ticket,
            tries: 0,
            pause: Duration::ZERO,
            announced: 0,
            false_alarms: 0,
            queued_at: NodeSet::default(),
            turn: RoundWait::default(),
            held: None,
        }
    }

    /// Waits until the nodes may be asked and asks them, or until an attempt was made for the call and has ended; until
    /// `until`, or until one of `signals` is given.
    pub(crate) fn next(&mut self, until: Option<Tick>, signals: &[&Signal]) -> WaitResult {
        match self.wait(until, signals) {
            Woken::Try(round_ticket) => WaitResult::Ended(self.try_now(round_ticket)),
            Woken::Sent(attempt) => WaitResult::Ended(self.finish(attempt)),
            Woken::GivenUp(lost) => WaitResult::GivenUp(lost),
            Woken::Stopped => WaitResult::Stopped,
        }
    }

    /// Waits until there is something to do, until `until`, or until one of `signals` is given.
    fn wait(&mut self, until: Option<Tick>, signals: &[&Signal]) -> Woken {
        let parker = Arc::clone(&self.ticket.parker);
        let mut watching = None;
        loop {
            let (wake_at, asks) = {
                let mut state = self.ticket.state.lock();
                match std::mem::take(&mut state.handover) {
                    Handover::Sent(attempt) => {
                        state.asks = true;
                        return Woken::Sent(attempt);
                    }
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
                    Handover::None if state.may_ask => match state.next_try(self.queues.nodes) {
                        Some(at) if now < at => (Some(until.map_or(at, |it| it.min(at))), false),
                        _ => (until, true),
                    },
                    _ => (until, false),
                }
            };
            if let Some(round_ticket) = self.turn.wait(asks, self.admission, &parker) {
                return Woken::Try(round_ticket);
            }
            // Most calls need not sleep. The signals are looked at once more behind it.
            match watching {
                Some(_) => parker.sleep(wake_at),
                None => watching = Some(parker.watch(signals)),
            }
        }
    }

    /// Whether nothing but other rounds of this manager keeps the call from asking the nodes.
    pub(crate) fn waits_for_turn(&self) -> bool {
        self.turn.is_awaited()
    }

    /// Asks the nodes.
    fn try_now(&mut self, round_ticket: RoundTicket) -> Result<Won, NotWon> {
        let known = {
            let mut state = self.ticket.state.lock();
            self.announced = state.announced.len();
            (state.announced, state.announced_at) = (NodeSet::default(), None);
            state.asks = true;
            state.known
        };
        let result = Attempt::run(self.fanout, round_ticket, &self.ticket.request, known);
        result.inspect_err(|err| self.note(err))
    }

    /// Waits for the attempt that was made for this call.
    fn finish(&mut self, attempt: Attempt) -> Result<Won, NotWon> {
        self.turn = RoundWait::default();
        self.announced = 0;
        let result = attempt
            .finish(self.fanout, &self.ticket.request)
            .map_err(NotWon::Lost);
        result.inspect_err(|err| self.note(err))
    }

    /// Plans the next try after a lost one.
    fn note(&mut self, err: &NotWon) {
        let NotWon::Lost(lost) = err else { return };
        self.queued_at = self.queued_at.union(
            lost.round
                .as_ref()
                .map(|it| it.reached())
                .unwrap_or_default(),
        );
        let ((min, max), free_in) = (self.queues.pauses, lost.free_in());
        let majority = quorum(self.queues.nodes);
        let announced = majority <= lost.queued && majority <= self.fanout.listening();
        let known = self.ticket.state.lock().known.after(lost);
        let pause = match (announced, known.has_no_place) {
            (true, _) => pause::long_pause,
            (false, false) => pause::pause_in_a_list,
            (false, true) => pause::pause,
        };
        let pause = pause(self.tries, min, max, free_in, fastrand::f64());
        self.tries = self.tries.saturating_add(1);
        self.false_alarms = pause::false_alarms(self.false_alarms, self.announced, majority);
        self.pause = pause;
        let mut state = self.ticket.state.lock();
        state.asks = false;
        state.known = known;
        // The first attempt has not entered the lists, and the second may.
        let is_early = self.tries == 1 && !lost.enters && !known.has_no_place;
        let pause = if known.only.is_some() || is_early {
            Duration::ZERO
        } else {
            pause
        };
        state.try_at = time::tick().checked_add(pause);
        state.grace = pause::grace(lost.took, self.false_alarms);
        // It knows something newer.
        state.given_up = None;
    }

    /// Ends the wait of all calls of the queue that were there when `lost` began: what it found out about the nodes counts
    /// for them, too. A call that came later asks the nodes once at least.
    pub(crate) fn give_up_for_all(&self, lost: &LostAttempt) {
        let lost = Arc::new(lost.clone());
        let by_key = self.queues.by_key.lock();
        let Some(queue) = by_key.get(&self.ticket.request.spec.plan.key) else {
            return;
        };
        let others = queue
            .tickets
            .iter()
            .filter(|it| !Arc::ptr_eq(it, &self.ticket) && it.joined <= lost.asked);
        for ticket in others {
            ticket.state.lock().given_up = Some(Arc::clone(&lost));
            ticket.parker.wake();
        }
    }

    /// Leaves the queue. An attempt may have been made for the call meanwhile. Then its end is the result, and the call stays
    /// in the queue until it leaves with what it has won, or is dropped.
    pub(crate) fn stop(&mut self) -> Option<Result<Won, NotWon>> {
        self.leave().map(|attempt| self.finish(attempt))
    }

    /// Leaves the queue, unless an attempt was made for the call meanwhile: that has to be finished first.
    fn leave(&mut self) -> Option<Attempt> {
        self.turn = RoundWait::default();
        loop {
            {
                let mut by_key = self.queues.by_key.lock();
                let mut state = self.ticket.state.lock();
                match std::mem::take(&mut state.handover) {
                    Handover::Sent(attempt) => return Some(attempt),
                    Handover::None => {
                        drop(state);
                        // RACE: send the leave command first. The next call asks the nodes as soon as it is the first,
                        // and enters their lists by that. Sent later, the command would remove that entry, and the
                        // release would notify nobody.
                        self.leave_lists();
                        self.queues.remove(&mut by_key, &self.ticket, self.held);
                        return None;
                    }
                    // RACE: another thread is just sending it. It must not be ended before that.
                    Handover::Preparing { .. } => {
                        state.handover = Handover::Preparing { awaited: true }
                    }
                }
            }
            self.ticket.parker.sleep(None);
        }
    }

    /// Leaves the waiting lists of the nodes. Called with the queues locked: see [`Queues::released`].
    fn leave_lists(&mut self) {
        let queued_at = std::mem::take(&mut self.queued_at);
        if self.held.is_none()
            && queued_at != NodeSet::default()
            && let Some(waiter) = self.ticket.waiter()
        {
            self.queues.leave_lists(
                self.fanout,
                &self.ticket.request.spec.plan,
                waiter,
                queued_at,
                LEAVE_FOR,
            );
        }
    }

    /// Leaves the queue with the hold `id`.
    pub(crate) fn leave_with(mut self, id: u64) {
        self.held = Some(id);
    }
}

impl Drop for QueuedCall<'_> {
    fn drop(&mut self) {
        while let Some(attempt) = self.leave() {
            // What is taken back enters the lists: see `take_back`.
            self.queued_at = self.queued_at.union(attempt.round.reached());
            attempt.abandon(self.fanout, &self.ticket.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::config::Config;
    use crate::engine::nodes::primary::NodeAddress;
    use crate::engine::{Engine, LockSpec, Shared};
    use crate::ids::NodeId;
    use crate::logic::acquire_round::LossReason;
    use crate::wire::{KeyTtls, LAST, Plan};

    /// A manager of three nodes that nobody can reach.
    fn engine() -> Engine {
        let addresses = (1..=3)
            .map(|port| NodeAddress::parse(&format!("redis://127.0.0.1:{port}")).unwrap())
            .collect();
        Engine::start(Config::default(), addresses).unwrap()
    }

    fn join(shared: &Shared) -> QueuedCall<'_> {
        let plan = Plan::mutex(b"", b"x", KeyTtls::default());
        let spec = Arc::new(LockSpec::new(&shared.config, b"x", plan));
        let request = Request::new(
            &spec,
            &shared.config,
            Some(shared.queues.waiter(spec.rule())),
        );
        QueuedCall::join(&shared.fanout, &shared.queues, &shared.admission, request)
    }

    fn commands(shared: &Shared) -> u64 {
        shared.counters.snapshot(Vec::new()).commands
    }

    /// An attempt that has come to all nodes, as far as anybody knows.
    fn attempt(shared: &Shared, ticket: &Ticket) -> Attempt {
        let Ok((attempt, _)) = ticket.prepare(&shared.fanout, shared.admission.enter()) else {
            panic!("no attempt")
        };
        attempt.round.set_reached(shared.fanout.ids().collect());
        attempt
    }

    /// A queued call to which a hold of the same manager is passed on, and the attempt that is made for it.
    fn passed_on(shared: &Shared) -> (QueuedCall<'_>, Arc<Ticket>, Attempt) {
        let queued = join(shared);
        shared.queues.begin_hold(&queued.ticket.request.spec, 7);
        let ticket = shared
            .queues
            .pass_on(&queued.ticket.request.spec.plan, 7)
            .unwrap();
        let attempt = attempt(shared, &ticket);
        (queued, ticket, attempt)
    }

    #[test]
    fn a_call_that_ends_when_its_attempt_was_made_takes_it_back_and_leaves_the_lists() {
        let engine = engine();
        let shared = &engine.shared;
        let (queued, ticket, attempt) = passed_on(shared);
        let (round, before) = (Arc::clone(&attempt.round), commands(shared));

        ticket.hand_over(attempt);
        drop(queued);

        assert!(round.is_over());
        assert_eq!(
            commands(shared) - before,
            2 * 3,
            "a release and a leave command for each node"
        );
        assert_eq!(shared.counters.snapshot(Vec::new()).waiting, 0);
        assert!(shared.queues.by_key.lock().is_empty());
    }

    #[test]
    fn a_call_that_ends_while_its_attempt_is_sent_waits_for_it_and_takes_it_back() {
        let engine = engine();
        let shared = &engine.shared;
        let (queued, ticket, attempt) = passed_on(shared);
        let (round, before) = (Arc::clone(&attempt.round), commands(shared));

        thread::scope(|scope| {
            scope.spawn(|| {
                let until = time::tick().checked_add(Duration::from_secs(30)).unwrap();
                while !matches!(
                    ticket.state.lock().handover,
                    Handover::Preparing { awaited: true }
                ) {
                    assert!(time::tick() < until, "it does not wait for its attempt");
                    thread::yield_now();
                }
                assert_eq!(commands(shared), before);
                ticket.hand_over(attempt);
            });
            drop(queued);
        });

        assert!(round.is_over());
        assert_eq!(commands(shared) - before, 2 * 3);
        assert!(shared.queues.by_key.lock().is_empty());
    }

    #[test]
    fn h4_a_call_that_reached_no_majority_is_behind_all_others_until_it_does() {
        let engine = engine();
        let shared = &engine.shared;
        let mut place = join(shared);
        let ticket = Arc::clone(&place.ticket);
        assert!(
            !attempt(shared, &ticket).enters,
            "no clock of a node is known"
        );
        assert_eq!(
            ticket.since(&shared.fanout),
            place.ticket.request.began.wall_micros()
        );

        let Err(NotWon::Lost(lost)) = place.try_now(shared.admission.enter()) else {
            panic!("nobody was asked")
        };

        assert_eq!(lost.why, LossReason::NoQuorum);
        assert_eq!(ticket.since(&shared.fanout), LAST);
        place.note(
            &LostAttempt {
                why: LossReason::Held,
                ..lost
            }
            .into(),
        );
        assert_eq!(
            ticket.since(&shared.fanout),
            place.ticket.request.began.wall_micros()
        );
    }

    #[test]
    fn h8_who_came_after_the_last_attempt_of_a_call_that_gives_up_makes_one_of_his_own() {
        let engine = engine();
        let shared = &engine.shared;
        let (first, mut second) = (join(shared), join(shared));
        let last = LostAttempt::without_tokens(3, 0);
        while time::tick() <= last.asked {}
        let mut third = join(shared);

        first.give_up_for_all(&last);
        drop(first);

        assert!(matches!(second.wait(None, &[]), Woken::GivenUp(_)));
        drop(second);
        assert!(matches!(third.wait(None, &[]), Woken::Try(_)));
    }

    #[test]
    fn a_notice_goes_to_the_first_call_and_is_answered_where_no_call_waits_for_it() {
        let engine = engine();
        let shared = &engine.shared;
        let (first, second) = (join(shared), join(shared));
        let key = Arc::clone(&first.ticket.request.spec.plan.key);
        let answers = || {
            let mut answers = 0;
            shared
                .queues
                .released(NodeId::new(0), &key, &mut |_| answers += 1);
            answers
        };

        assert_eq!(answers(), 0);
        let announced = [&first, &second].map(|it| it.ticket.state.lock().announced.len());
        assert_eq!(announced, [1, 0]);

        shared.queues.begin_hold(&first.ticket.request.spec, 7);
        assert_eq!(answers(), 1, "the manager holds it itself");
        let plan = first.ticket.request.spec.plan.clone();
        drop((first, second));
        shared.queues.end_hold(&plan, 7);
        assert_eq!(answers(), 1, "no call waits");
    }

    #[test]
    fn a_permit_goes_to_the_first_call_unless_that_asks_or_was_handed_one() {
        let engine = engine();
        let shared = &engine.shared;
        let plan = Plan::semaphore(b"", b"x", 2, KeyTtls::default());
        let spec = Arc::new(LockSpec::new(&shared.config, b"x", plan));
        let join = || {
            let request = Request::new(
                &spec,
                &shared.config,
                Some(shared.queues.waiter(spec.rule())),
            );
            QueuedCall::join(&shared.fanout, &shared.queues, &shared.admission, request)
        };
        let pass_on = || shared.queues.pass_on(&spec.plan, 7);
        // A ticket that is left as it is would be waited for.
        let is_for_nobody = || pass_on().inspect(|it| it.let_ask()).is_none();
        assert!(is_for_nobody(), "nobody waits");
        let (mut first, _second) = (join(), join());

        let next = pass_on().unwrap();
        assert!(Arc::ptr_eq(&next, &first.ticket));
        assert!(is_for_nobody(), "what it was handed would be lost");
        next.hand_over(attempt(shared, &next));
        let Woken::Sent(sent) = first.wait(None, &[]) else {
            panic!("nothing was sent")
        };
        assert!(is_for_nobody(), "it asks");

        // Nobody is there that could answer.
        let _ = first.finish(sent);
        assert!(!is_for_nobody(), "it has asked");
    }

    #[test]
    fn a_call_that_was_on_no_list_and_was_given_no_attempt_sends_nothing_when_it_leaves() {
        let engine = engine();
        let shared = &engine.shared;

        drop(join(shared));

        assert_eq!(commands(shared), 0);
        assert!(shared.queues.by_key.lock().is_empty());
    }
}
