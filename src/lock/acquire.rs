//! The blocking loop: a round, and if it was lost, take back, wait, try again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::debug;

use crate::engine::{self, CancelHandle, Core, Engine, HeldLock, Pending, Won};
use crate::error::{AcquireError, NodeAnswer};
use crate::ids::{FencingToken, LockName, NodeSet, OwnerToken};
use crate::lock::LockGuard;
use crate::logic::acquire::{AcquireEnd, AcquireRound, RaiseRound, Why};
use crate::logic::tally::ReleaseRound;
use crate::logic::wait::{self, Obstacle};
use crate::logic::{token, validity};
use crate::stats::count;
use crate::time::{self, Moment, Tick};
use crate::wire::Plan;

/// Rounds of one `try_lock`, if those before may have been lost to contenders of whom none got the lock: they split the
/// nodes between them, or pushed each other's fencing counters. Without a second try a fleet that starts a job at the
/// same second would often find everyone refused and nobody at work.
const UNDECIDED_MAX: u32 = 4;
/// How long an error waits for the reasons of nodes that were not needed to decide it.
const REASONS: Duration = Duration::from_millis(20);

/// Everything that one call of a lock method needs.
pub(crate) struct Request<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) name: &'a LockName,
    pub(crate) plan: &'a Arc<Plan>,
    /// Whole milliseconds, checked.
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
    pub(crate) cancel: Option<&'a CancelHandle>,
}

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// One attempt.
    None,
    /// Until then.
    Until(Tick),
    /// As long as it takes.
    Forever,
}

/// A lost attempt, with everything of it taken back.
struct Lost {
    why: Why,
    round: Arc<Pending<AcquireRound>>,
    took: Duration,
    /// The largest fencing counter that was seen.
    seen: u64,
    /// The release of what was granted, on its way.
    release: Option<Arc<Pending<ReleaseRound>>>,
}

impl Lost {
    /// Whether it may be that nobody got the lock: something was granted to us, and to others the rest.
    fn is_undecided(&self) -> bool {
        let granted = |it: &NodeAnswer| matches!(it, NodeAnswer::Granted | NodeAnswer::GrantedBehind);
        match self.why {
            Why::Overtaken => true,
            Why::Held => self.round.rows().iter().any(granted),
            Why::NoQuorum | Why::TooLate | Why::KeyInUse => false,
        }
    }
}

impl Request<'_> {
    /// Acquires the lock, or says why not.
    pub(crate) fn acquire(&self, patience: Patience) -> Result<LockGuard, AcquireError> {
        let core = self.engine.core();
        if core.is_forked() {
            // Before anything is locked: see `Core`.
            return Err(AcquireError::Forked);
        }
        let Some(_call) = self.engine.begin_acquire() else { return Err(AcquireError::ShutDown) };
        let began = time::tick();
        let mut tries = 0_u32;
        let mut seen = 0;
        // Since when no majority could be reached.
        let mut outage: Option<Tick> = None;
        loop {
            if let Some(err) = self.stopped(began) {
                return Err(err);
            }
            let lost = match self.attempt(seen)? {
                Ok(won) => return self.hold(won),
                Err(lost) => lost,
            };
            seen = seen.max(lost.seen);
            let now = time::tick();
            let until = match patience {
                Patience::None if lost.is_undecided() && tries < UNDECIDED_MAX.saturating_sub(1) => None,
                Patience::None => return Err(self.give_up(lost, began)),
                Patience::Until(until) if until <= now => return Err(self.give_up(lost, began)),
                Patience::Until(until) => Some(until),
                Patience::Forever => None,
            };
            match lost.why {
                Why::NoQuorum => {
                    let since = *outage.get_or_insert(now);
                    if core.config.outage_patience <= now.saturating_duration_since(since) {
                        return Err(self.give_up(lost, began));
                    }
                }
                Why::KeyInUse => return Err(self.give_up(lost, began)),
                Why::Held | Why::TooLate | Why::Overtaken => outage = None,
            }
            let free_in = wait::free_in(&obstacles(&lost.round.rows()));
            let pause = wait::pause(tries, core.config.retry_min, core.config.retry_max, free_in, fastrand::f64());
            tries = tries.saturating_add(1);
            debug!("{}: lost round ({:?}) in {:?}, next try in {pause:?}", self.name, lost.why, lost.took);
            let wake = now.checked_add(pause).unwrap_or(now);
            let wake = until.map_or(wake, |it| it.min(wake));
            self.sleep(wake);
        }
    }

    fn sleep(&self, until: Tick) {
        let shut_down = self.engine.shut_down_signal();
        match self.cancel {
            Some(cancel) => engine::sleep(until, &[shut_down, cancel.signal()]),
            None => engine::sleep(until, &[shut_down]),
        }
    }

    /// Why no further round may begin, if so.
    fn stopped(&self, began: Tick) -> Option<AcquireError> {
        if self.engine.shut_down_signal().is_given() {
            return Some(AcquireError::ShutDown);
        }
        let cancelled = self.cancel.is_some_and(CancelHandle::is_cancelled);
        cancelled.then(|| AcquireError::Cancelled { waited: time::tick().saturating_duration_since(began) })
    }

    /// The error of the last attempt. Waits, within a response timeout, until what was granted is given back, so that
    /// nothing of the call is left where it can be helped.
    fn give_up(&self, lost: Lost, began: Tick) -> AcquireError {
        let core = self.engine.core();
        if let Some(release) = lost.release {
            release.wait(engine::deadline(core.fanout.response_timeout()));
        }
        if lost.why == Why::NoQuorum {
            lost.round.wait_for_rows(engine::deadline(REASONS));
        }
        let nodes = core.fanout.report(lost.round.rows());
        let waited = time::tick().saturating_duration_since(began);
        match lost.why {
            Why::Held | Why::Overtaken => AcquireError::Held { nodes, waited },
            Why::NoQuorum => AcquireError::NoQuorum { nodes, waited },
            Why::TooLate => AcquireError::TooLate { took: lost.took, ttl: self.ttl },
            Why::KeyInUse => AcquireError::KeyInUse { nodes },
        }
    }

    /// One attempt: an acquire round, and a raise round if fencing counters were ahead.
    fn attempt(&self, seen: u64) -> Result<Result<Won, Lost>, AcquireError> {
        let core = self.engine.core();
        let _busy = core.fanout.busy();
        let owner = OwnerToken::draw().map_err(|err| AcquireError::NoRandomness { reason: err.to_string() })?;
        // Read before the first byte can leave, anew for every attempt.
        let (sent, tick) = (Moment::now(), time::tick());
        let use_until = validity::use_until(sent, self.ttl, core.config.margin.of(self.ttl));
        let nodes = core.fanout.len();
        let proposal = token::propose(sent.wall_micros(), seen);
        let round = Arc::new(Pending::new(nodes, AcquireRound::new(nodes, proposal.unwrap_or(0), use_until)));
        let Some(proposal) = proposal else {
            return Ok(Err(Lost { why: Why::KeyInUse, round, took: Duration::ZERO, seen, release: None }));
        };
        let deadline = core.fanout.deadline(tick);
        let mut end = core.round(self.plan.acquire(owner, validity::millis(self.ttl), proposal), &round, deadline);
        let mut seen = seen.max(round.with_round(AcquireRound::seen));
        if let AcquireEnd::Raise { token } = end {
            count(&core.counters.fencing_raises);
            let raise = Arc::new(Pending::new(nodes, RaiseRound::new(nodes, token, use_until)));
            let deadline = engine::deadline(core.fanout.response_timeout());
            end = core.round(self.plan.raise(owner, token), &raise, deadline);
            seen = seen.max(token).max(raise.with_round(RaiseRound::seen));
        }
        let took = Moment::now().since(sent);
        match (end, use_until) {
            (AcquireEnd::Won { token }, Some(use_until)) => {
                count(&core.counters.rounds_won);
                debug!("{}: won in {took:?}, token {token}, {owner:?}", self.name);
                Ok(Ok(Won {
                    name: self.name.clone(),
                    plan: Arc::clone(self.plan),
                    owner,
                    token: FencingToken::new(token),
                    ttl: self.ttl,
                    renewed: self.renewed,
                    sent,
                    use_until,
                    reached: round.reached(),
                }))
            }
            (end, _) => {
                let why = if let AcquireEnd::Lost(why) = end { why } else { Why::Overtaken };
                count(match why {
                    Why::Held | Why::Overtaken | Why::KeyInUse => &core.counters.rounds_held,
                    Why::NoQuorum => &core.counters.rounds_without_quorum,
                    Why::TooLate => &core.counters.rounds_too_late,
                });
                let release = self.take_back(owner, round.reached(), &round.rows());
                Ok(Err(Lost { why, round, took, seen, release }))
            }
        }
    }

    /// Takes back whatever a lost attempt may have left on the nodes.
    fn take_back(
        &self,
        owner: OwnerToken,
        reached: NodeSet,
        answers: &[NodeAnswer],
    ) -> Option<Arc<Pending<ReleaseRound>>> {
        let core = self.engine.core();
        let mut to = reached;
        let mut granted = 0_usize;
        for (node, answer) in core.fanout.ids().zip(answers) {
            match answer {
                NodeAnswer::Granted | NodeAnswer::GrantedBehind => granted = granted.saturating_add(1),
                // The only answer that proves that nothing of ours is there.
                NodeAnswer::Held { .. } => to.remove(node),
                _ => {}
            }
        }
        // RACE: a node may grant the lock after we have given up on it. We do not wait to find out. The release goes
        // into the same line as the acquire, and a worker talks to its node over one connection, so the node runs
        // them in that order: whatever the late acquire does, the release undoes.
        //
        // One gap stays open on purpose. If the connection itself breaks between the two, the node may still find the
        // acquire in the old socket after it has run the release from the new one. The key then stays for one ttl.
        // Nobody counted that vote, so there is no second holder; the price is a node that refuses everyone until the
        // key expires.
        let command = self.plan.release(owner);
        if granted == 0 {
            core.fanout.release(command, to, self.ttl, None);
            return None;
        }
        let nodes = core.fanout.len();
        let pending = Arc::new(Pending::new(nodes, ReleaseRound::new(nodes, granted)));
        core.fanout.release(command, to, self.ttl, Some(&pending));
        Some(pending)
    }

    fn hold(&self, won: Won) -> Result<LockGuard, AcquireError> {
        let core: &Arc<Core> = self.engine.core();
        let id = core.next_lock.fetch_add(1, Ordering::Relaxed);
        let lock = Arc::new(HeldLock::new(Arc::clone(core), id, won));
        lock.plan_next(true, Moment::now());
        let guard = LockGuard::new(Arc::clone(self.engine), lock);
        if self.engine.shut_down_signal().is_given() {
            // Nobody would look after it. Dropped here, it is released before the workers end.
            drop(guard);
            return Err(AcquireError::ShutDown);
        }
        Ok(guard)
    }
}

/// What stands in the way at each node.
fn obstacles(answers: &[NodeAnswer]) -> Vec<Obstacle> {
    let obstacle = |it: &NodeAnswer| match it {
        NodeAnswer::Granted | NodeAnswer::GrantedBehind => Obstacle::Free,
        NodeAnswer::Held { left: Some(left) } => Obstacle::Until(*left),
        _ => Obstacle::Unknown,
    };
    answers.iter().map(obstacle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_an_answer_are_not_taken_for_free() {
        let answers = [NodeAnswer::Held { left: None }, NodeAnswer::NotWaitedFor, NodeAnswer::Granted];
        assert_eq!(obstacles(&answers), [Obstacle::Unknown, Obstacle::Unknown, Obstacle::Free]);
    }
}
