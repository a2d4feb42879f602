//! The blocking loop: attempts, with a wait after each lost one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::{
    self, Attempt, AttemptFacts, CancelHandle, Engine, HoldInner, LockSpec, LostAttempt,
    ManagerState, NotWon, Owner, QueuedCall, Request, RoundTicket, Woken, Won,
};
use crate::error::{AcquireError, HeldBy, NodeAnswer, NodeFailure, Rows};
use crate::lock::hold::Hold;
use crate::logic::acquire_round::LossReason;
use crate::logic::{outage, pause, quorum};
use crate::observer::Event;
use crate::sys::logging::{debug, info, warn};
use crate::time::{self, About, Tick};

/// Rounds of one `try_lock`, if contenders split the nodes between them or pushed each other's fencing counters, so
/// that possibly none got the lock. Otherwise a fleet that starts a job at the same second would often find everyone
/// refused and nobody at work.
const UNDECIDED_MAX: u32 = 4;
/// Wait of an error for the reasons of further nodes.
const REASONS: Duration = Duration::from_millis(20);
/// Shortest duration of a call in an outage, if its timeout allows it: a program that retries in a loop does not spin.
const OUTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Limit of a call's wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// One attempt.
    None,
    /// Until then.
    Until(Tick),
    /// As long as it takes.
    Forever,
}

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
        let result = match patience {
            WaitLimit::None => call.once(true),
            WaitLimit::Until(until) if until <= call.began => call.once(false),
            WaitLimit::Until(until) => call.wait(Some(until)),
            WaitLimit::Forever => call.wait(None),
        };
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

/// A call under way.
struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    spec: &'a Arc<LockSpec>,
    began: Tick,
    /// End of all rounds.
    end: Option<Tick>,
    /// Start of its own outage: attempts without a majority.
    outage: Option<Tick>,
    /// Last lost attempt.
    lost: Option<LostAttempt>,
    /// Whether the observer has its `Acquired` event.
    won: bool,
}

impl<'a> Acquisition<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        spec: &'a Arc<LockSpec>,
        patience: WaitLimit,
    ) -> Acquisition<'a> {
        let config = &engine.shared.config;
        let began = time::tick();
        let waits_until = match patience {
            WaitLimit::None => Some(began),
            WaitLimit::Until(until) => Some(until.max(began)),
            WaitLimit::Forever => None,
        };
        // Time for a connection, a turn or a raise, and a round.
        let slack = config
            .connect_timeout
            .saturating_add(config.response_timeout.saturating_mul(2));
        let end = waits_until.and_then(|it| it.checked_add(slack));
        Acquisition {
            engine,
            spec,
            began,
            end,
            outage: None,
            lost: None,
            won: false,
        }
    }

    /// The end of `timeout`, or of the call.
    fn deadline(&self, timeout: Duration) -> Tick {
        let deadline = time::deadline(timeout);
        self.end.map_or(deadline, |end| end.min(deadline))
    }

    fn waited(&self) -> Duration {
        time::tick().saturating_duration_since(self.began)
    }

    fn signals(&self) -> Vec<&'a engine::Signal> {
        let cancel = self.spec.cancel.as_ref().map(|cancel| &cancel.signal);
        [Some(&self.engine.shutdown), cancel]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Reason to begin no further round, if any.
    fn stopped(&self) -> Option<AcquireError> {
        if self.engine.shutdown.is_given() {
            return Some(AcquireError::ShutDown);
        }
        let cancelled = self
            .spec
            .cancel
            .as_ref()
            .is_some_and(CancelHandle::is_cancelled);
        cancelled.then_some(AcquireError::Cancelled)
    }

    /// The guard of a won lock. `note` notes the hold in the queue of its lock.
    ///
    /// RACE: T1, this thread, enters the hold in the schedule; T2, the renewal thread, ends it, because the process was
    /// paused for longer than the ttl; T1 notes it in the queue, where it never ends, with all later calls behind it.
    /// Therefore T1 notes it first.
    fn guard(&mut self, won: Won, note: impl FnOnce(u64)) -> Result<Hold, AcquireError> {
        let shared: &Arc<ManagerState> = &self.engine.shared;
        self.note_majority();
        let id = shared.next_lock.fetch_add(1, Ordering::Relaxed);
        let lock = Arc::new(HoldInner::new(Arc::clone(shared), id, won));
        note(id);
        self.won = true;
        shared.fanout.journal.observe(|| Event::Acquired {
            lock: self.spec.observed(),
            waited: self.waited(),
            token: lock.token,
            ttl: self.spec.ttl(),
        });
        lock.start();
        if self.engine.shutdown.is_given() {
            // No thread would extend the lock. A drop would wait for the shutdown, which waits for this call.
            let _ = lock.release();
            return Err(AcquireError::ShutDown);
        }
        Ok(Hold::new(Arc::clone(self.engine), lock))
    }

    /// Makes one attempt, as a new owner.
    fn attempt(
        &self,
        round_ticket: RoundTicket,
        request: &Request,
        known: AttemptFacts,
    ) -> Result<Won, NotWon> {
        let fanout = &self.engine.shared.fanout;
        let (attempt, broadcast) =
            Attempt::prepare(fanout, round_ticket, request, known, Owner::draw()?)?;
        attempt
            .run(fanout, request, broadcast)
            .map_err(NotWon::Lost)
    }

    /// One attempt, without a place in the queue. `to_the_end`: repeated while possibly no call got the lock.
    fn once(&mut self, to_the_end: bool) -> Result<Hold, AcquireError> {
        let shared = &self.engine.shared;
        let request = Request::new(self.spec, &shared.config, None, self.end);
        let mut known = AttemptFacts::default();
        // For all tries together.
        let turn_until = self.deadline(shared.config.response_timeout);
        for tries in 0..UNDECIDED_MAX {
            if let Some(err) = self.stopped() {
                return Err(err);
            }
            let Some(round_ticket) = shared.admission.wait(turn_until, &self.signals()) else {
                return Err(self.stopped().unwrap_or_else(|| self.without_turn()));
            };
            match self.attempt(round_ticket, &request, known) {
                Ok(won) => return self.guard(won, |id| shared.queues.begin_hold(self.spec, id)),
                Err(NotWon::Failed(error)) => return Err(error),
                Err(NotWon::Lost(lost)) => {
                    known = AttemptFacts {
                        has_no_place: false,
                        ..known.after(&lost)
                    };
                    let again = to_the_end && lost.is_undecided();
                    let pause = pause::pause(
                        false,
                        tries,
                        shared.config.retry_min,
                        shared.config.retry_max,
                        lost.free_in(),
                        fastrand::f64(),
                    );
                    // The next slot is known.
                    let pause = if known.only.is_some() {
                        Duration::ZERO
                    } else {
                        pause
                    };
                    self.note(lost, pause);
                    if !again || self.end.is_some_and(|end| end <= self.deadline(pause)) {
                        break;
                    }
                    if tries.saturating_add(1) < UNDECIDED_MAX {
                        engine::sleep(time::deadline(pause), &self.signals());
                    }
                }
            }
        }
        Err(self.give_up())
    }

    /// Attempts until the lock is won or until `until`, in the manager's queue.
    fn wait(&mut self, until: Option<Tick>) -> Result<Hold, AcquireError> {
        let shared = &self.engine.shared;
        let signals = self.signals();
        // Other holders may release a permit.
        let own = !self.spec.commands.has_slots
            && shared.queues.held_by(&self.spec.commands) == HeldBy::ThisThread;
        let mut warn_at = if own {
            self.began.checked_add(self.spec.ttl())
        } else {
            None
        };
        let client = Some(shared.queues.client);
        let request = Request::new(self.spec, &shared.config, client, self.end);
        let mut queued =
            QueuedCall::join(&shared.fanout, &shared.queues, &shared.admission, request);
        loop {
            let wake_at = warn_at.filter(|it| until.is_none_or(|until| *it < until));
            let result = match queued.wait(wake_at.or(until), &signals) {
                Woken::Try(round_ticket) => queued.try_now(round_ticket),
                Woken::Won(attempt) => queued.finish(attempt),
                Woken::GivenUp(lost) => {
                    self.lost = Some(lost);
                    drop(queued);
                    return Err(self.give_up_in_outage(until));
                }
                Woken::Stopped
                    if self.stopped().is_none() && wake_at.is_some_and(|it| it <= time::tick()) =>
                {
                    warn_at = None;
                    self.note_own_hold();
                    continue;
                }
                Woken::Stopped => {
                    // Only other rounds of this manager keep the call from asking the nodes.
                    let waits_for_turn = queued.turn.is_awaited();
                    drop(queued);
                    return Err(self.stopped().unwrap_or_else(|| {
                        if waits_for_turn {
                            self.without_turn()
                        } else {
                            self.give_up()
                        }
                    }));
                }
            };
            match result {
                Ok(won) => return self.guard(won, |id| queued.leave_with(id)),
                Err(NotWon::Failed(error)) => return Err(error),
                Err(NotWon::Lost(lost)) => self.note(lost, queued.pause),
            }
            if self.is_hopeless() {
                if let Some(lost) = self
                    .lost
                    .as_ref()
                    .filter(|it| it.finds_a_majority() == Some(false))
                {
                    queued.give_up_for_all(lost);
                }
                drop(queued);
                return Err(self.give_up_in_outage(until));
            }
        }
    }

    /// The error of a call that an outage ends, or a key in use.
    fn give_up_in_outage(&mut self, until: Option<Tick>) -> AcquireError {
        if self.outage.is_some() {
            let end = self.began.checked_add(OUTAGE_PAUSE).unwrap_or(self.began);
            engine::sleep(until.map_or(end, |until| until.min(end)), &self.signals());
        }
        self.stopped().unwrap_or_else(|| self.give_up())
    }

    fn note(&mut self, lost: LostAttempt, pause: Duration) {
        let took = About(lost.took);
        let pause = About(pause);
        debug!(
            self.engine.shared.fanout.journal,
            "{:?}: lost round ({}) in {took}, next try in {pause}", self.spec.name, lost.why
        );
        self.note_quarantine(&lost);
        // The wait for other calls of this manager is no outage.
        self.outage = self.outage.and_then(|it| it.checked_add(lost.waited));
        match lost.finds_a_majority() {
            Some(true) => {
                self.outage = None;
                self.note_majority();
            }
            Some(false) => {
                self.outage.get_or_insert_with(time::tick);
                self.note_failure(&lost);
            }
            None => {}
        }
        self.lost = Some(lost);
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
    fn note_failure(&self, lost: &LostAttempt) {
        if lost
            .rows
            .contains(&NodeAnswer::Failed(NodeFailure::ShutDown))
        {
            return;
        }
        let shared = &self.engine.shared;
        let is_news = shared.outage.lock().on_failure(lost.began, time::tick());
        if is_news {
            let rows = shared.fanout.report(lost.rows.clone());
            let name = &self.spec.name;
            let rows = Rows(&rows);
            warn!(
                self.engine.shared.fanout.journal,
                "{name:?}: no lock can be taken, no quorum: {rows}"
            );
        }
    }

    /// Logs a wait for quarantined servers, once per manager: a newcomer would not expect it.
    fn note_quarantine(&self, lost: &LostAttempt) {
        // A quarantine that is nearly over needs no line.
        let is_long = |waits: &(usize, Duration)| {
            lost.why == LossReason::NoQuorum && Duration::from_millis(10) < waits.1
        };
        let Some((quarantined, left)) = lost.quarantine().filter(is_long) else {
            return;
        };
        let shared = &self.engine.shared;
        if !shared.logged_quarantine.swap(true, Ordering::Relaxed) {
            let rows = shared.fanout.report(lost.rows.clone()).into_iter();
            let rows = rows.filter(|row| {
                matches!(
                    row.answer,
                    NodeAnswer::Failed(NodeFailure::Quarantined { .. })
                )
            });
            let which: Vec<_> = rows
                .map(|it| format!("{} ({})", it.node, it.address))
                .collect();
            warn!(
                self.engine.shared.fanout.journal,
                "{:?}: no lock can be taken for {} more: {quarantined} of {} servers are new or were restarted and may have lost \
                 locks that are still held: {}; wait, as lock() does; if the servers are new and nobody holds a lock, run \
                 `quorlock vouch` or call `admin().vouch()` to skip the wait",
                self.spec.name,
                About(left),
                shared.fanout.nodes.len(),
                which.join(", "),
            );
        }
    }

    /// The error of a call without its turn; that of its last attempt if it had one.
    fn without_turn(&mut self) -> AcquireError {
        if self.lost.is_some() {
            return self.give_up();
        }
        AcquireError::Busy {
            name: self.spec.name.clone(),
            waited: self.waited(),
        }
    }

    /// Whether a further wait is useless.
    fn is_hopeless(&self) -> bool {
        let shared = &self.engine.shared;
        let patience = shared.config.outage_timeout;
        let of_manager = || shared.outage.lock().since();
        let is_settled = |lost: &LostAttempt| {
            lost.why == LossReason::KeyInUse || outage::is_of_access(&lost.rows)
        };
        self.lost.as_ref().is_some_and(is_settled)
            || self
                .outage
                .is_some_and(|own| outage::is_hopeless(own, of_manager(), patience, time::tick()))
    }

    /// Logs that this thread has waited for a ttl for a lock that it took itself.
    ///
    /// Only a call that began so can be in this state: no thread takes a lock while it waits for it.
    fn note_own_hold(&self) {
        if self.engine.shared.queues.held_by(&self.spec.commands) == HeldBy::ThisThread {
            warn!(
                self.engine.shared.fanout.journal,
                "{:?}: this thread has waited for {} for a lock it took itself, a deadlock if it still has the guard: drop the \
                 guard first",
                self.spec.name,
                About(self.waited()),
            );
        }
    }

    /// The error of the last attempt. Waits for the release of its grants, within a response timeout and the call's
    /// time, so that the call leaves nothing behind if possible.
    fn give_up(&mut self) -> AcquireError {
        let shared = &self.engine.shared;
        let waited = self.waited();
        let name = self.spec.name.clone();
        let by = shared.queues.held_by(&self.spec.commands);
        let Some(lost) = self.lost.take() else {
            // The manager holds the lock itself, or other calls were first. No node was asked.
            let nodes = shared.fanout.not_asked(time::tick());
            let votes = nodes.iter().filter(|it| it.answer == NodeAnswer::NotAsked);
            if by == HeldBy::Other && votes.count() < quorum(nodes.len()) {
                return AcquireError::NoQuorum {
                    name,
                    nodes,
                    waited,
                };
            }
            return AcquireError::Held {
                name,
                by,
                nodes,
                waited,
            };
        };
        if let Some(release) = &lost.release {
            release.wait(self.deadline(shared.fanout.response_timeout));
        }
        if lost.why == LossReason::NoQuorum {
            lost.round.wait_for_rows(self.deadline(REASONS));
        }
        let nodes = shared.fanout.report(lost.round.rows());
        match lost.why {
            LossReason::Held | LossReason::Overtaken => AcquireError::Held {
                name,
                by,
                nodes,
                waited,
            },
            LossReason::NoQuorum => AcquireError::NoQuorum {
                name,
                nodes,
                waited,
            },
            LossReason::TooLate => AcquireError::TooLate {
                name,
                took: lost.took,
                ttl: self.spec.ttl(),
            },
            LossReason::KeyInUse => AcquireError::KeyInUse { name, nodes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::NodeAddress;
    use crate::wire::{KeyTtls, LockCommands};

    /// A manager of one node, which cannot be reached and is not asked: other rounds have all tickets.
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
    fn a_call_that_may_not_wait_for_its_turn_until_an_outage_would_end_it_says_busy() {
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
    fn all_that_a_call_waits_for_ends_a_connect_timeout_and_two_response_timeouts_after_its_patience()
     {
        let (engine, spec) = full();
        let config = &engine.shared.config;
        let slack = config.connect_timeout + config.response_timeout * 2;
        let until = time::deadline(Duration::from_secs(60));

        let waits = Acquisition::new(&engine, &spec, WaitLimit::Until(until));
        assert_eq!(waits.end, Some(until + slack));
        assert_eq!(waits.deadline(Duration::from_secs(600)), until + slack);
        let tries = Acquisition::new(&engine, &spec, WaitLimit::None);
        assert_eq!(tries.end, Some(tries.began + slack));
        assert!(tries.deadline(Duration::ZERO) <= time::tick());
        assert_eq!(
            Acquisition::new(&engine, &spec, WaitLimit::Forever).end,
            None
        );

        let over = Some(time::tick());
        let request = Request::new(&spec, config, None, over);
        let round_ticket = engine.shared.admission.enter();
        let (attempt, _) = Attempt::prepare(
            &engine.shared.fanout,
            round_ticket,
            &request,
            AttemptFacts::default(),
            Owner::draw().unwrap_or_else(|_| panic!("no owner")),
        )
        .unwrap_or_else(|_| panic!("no attempt"));
        assert_eq!(Some(attempt.deadline), over);
    }

    /// Here it ends at the first moment at which it can: nobody looks after locks any more.
    #[test]
    fn h2_a_hold_that_ends_before_its_call_has_returned_leaves_no_line() {
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
        let client = Some(shared.queues.client);
        let spec = Arc::new(spec);
        let mut call = Acquisition::new(&engine, &spec, WaitLimit::None);
        shared.schedule.stop();
        let won = || Won::just_now(&spec, Duration::from_secs(10));

        let tried = call
            .guard(won(), |id| shared.queues.begin_hold(&spec, id))
            .unwrap();
        assert!(shared.queues.is_empty() && !tried.is_valid(), "after a try");

        let queued = QueuedCall::join(
            &shared.fanout,
            &shared.queues,
            &shared.admission,
            Request::new(&spec, &shared.config, client, None),
        );
        let waited = call.guard(won(), |id| queued.leave_with(id)).unwrap();
        assert!(
            shared.queues.is_empty() && !waited.is_valid(),
            "after a wait"
        );
        drop((tried, waited));
        assert_eq!(shared.fanout.journal.counters.snapshot().locks_lost, 2);
    }
}
