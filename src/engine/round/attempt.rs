//! One attempt to get a lock: an acquire round, a raise round if fencing counters were ahead, and if it was lost,
//! everything of it taken back.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::answer::{AcquireReply, Answer};
use crate::engine::nodes::drive::Driver;
use crate::engine::nodes::outgoing::Outgoing;
use crate::engine::round::admission::Slot;
use crate::engine::round::pending::Pending;
use crate::engine::round::run;
use crate::engine::shared::Shared;
use crate::engine::spec::LockSpec;
use crate::error::{NodeAnswer, NodeFailure, Rows};
use crate::ids::{FencingToken, NodeSet, OwnerToken};
use crate::logic::acquire::{AcquireEnd, AcquireRound, LossReason, RaiseRound};
use crate::logic::ballot::Ballot;
use crate::logic::tally::ReleaseRound;
use crate::logic::wait::{self, Obstacle};
use crate::logic::{quorum, token, validity};
use crate::stats::count;
use crate::sys::logging::{debug, info, warn};
use crate::time::{self, About, Moment, Tick};
use crate::wire::{Command, QueuePolicy, QueueUpdate};

/// What a call asks for.
pub(crate) struct Request {
    pub(crate) spec: Arc<LockSpec>,
    /// But for the place: see [`Request::since`].
    pub(crate) policy: QueuePolicy,
    pub(crate) began: Moment,
    pub(crate) place: OnceLock<u64>,
}

impl Request {
    /// When the call began, microseconds since 1970: calls of all clients are ordered by it.
    ///
    /// Does not change once the clocks of a majority are known. A call may have begun before that.
    pub(crate) fn since(&self, shared: &Shared) -> u64 {
        let time = || shared.fanout.time_for_all(self.began);
        if shared.fanout.askable().is_none() { *self.place.get_or_init(time) } else { time() }
    }
}

/// What a call knows from its attempts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// The largest fencing counter that was seen.
    pub(crate) seen: u64,
    /// It could not win its last round, whoever has the lock: see [`wait::keeps_its_place`].
    pub(crate) has_no_place: bool,
}

impl Known {
    /// How the next attempt deals with those who wait.
    fn policy(self, policy: QueuePolicy) -> QueuePolicy {
        if self.has_no_place { policy.without_place() } else { policy }
    }
}

/// Why there was no attempt.
#[derive(Debug)]
pub(crate) enum NoAttempt {
    /// No token: the reason.
    NoRandomness(String),
    /// The fencing counters are at their end.
    NoTokens,
}

/// An attempt on its way.
pub(crate) struct Attempt {
    owner: OwnerToken,
    /// Read before the first byte can leave, anew for every attempt.
    sent: Moment,
    /// The same, for what is not about leases.
    asked: Tick,
    use_until: Option<Moment>,
    /// For how many milliseconds a node was known to be quarantined that has forgotten.
    quarantine: u64,
    /// The largest fencing counter that was seen before.
    seen: u64,
    /// It enters the waiting lists of nodes that refuse it.
    pub(crate) enters: bool,
    pub(crate) deadline: Tick,
    /// It has to wait for connections first.
    connects: bool,
    pub(crate) round: Arc<Pending<AcquireRound>>,
    /// Others may begin when it has ended.
    slot: Slot,
}

/// What a won acquisition knows.
pub(crate) struct Won {
    pub(crate) spec: Arc<LockSpec>,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    /// The nodes were offered another one first.
    pub(crate) raised: bool,
    pub(crate) sent: Moment,
    /// The same moment.
    pub(crate) asked: Tick,
    pub(crate) use_until: Moment,
    /// Nodes to which the acquire may have come.
    pub(crate) reached: NodeSet,
    pub(crate) grants: Grants,
    /// The call may be in waiting lists, of nodes that refused it.
    pub(crate) in_lists: bool,
}

/// Which nodes granted a lock: also those whose answers come, or came, when it was won already.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    pub(crate) round: Option<Arc<Pending<AcquireRound>>>,
    /// Nodes on which it turned out to be gone.
    pub(crate) gone: NodeSet,
}

impl Grants {
    pub(crate) fn nodes(&self) -> NodeSet {
        self.round.as_ref().map_or(NodeSet::default(), |it| it.nodes_with(Answer::is_granted)).without(self.gone)
    }
}

/// A lost attempt, with everything of it taken back.
#[derive(Clone)]
pub(crate) struct LostAttempt {
    pub(crate) why: LossReason,
    pub(crate) rows: Vec<NodeAnswer>,
    pub(crate) round: Option<Arc<Pending<AcquireRound>>>,
    /// When it began.
    pub(crate) asked: Tick,
    pub(crate) took: Duration,
    /// The largest fencing counter that was seen.
    pub(crate) seen: u64,
    /// How many nodes have entered the call in their waiting lists.
    pub(crate) entered: usize,
    /// The release of what was granted, on its way.
    pub(crate) release: Option<Arc<Pending<ReleaseRound>>>,
}

impl LostAttempt {
    /// Nothing was sent: there is no fencing token that could be proposed.
    pub(crate) fn without_tokens(nodes: usize, seen: u64) -> LostAttempt {
        let rows = vec![NodeAnswer::Pending; nodes];
        let took = Duration::ZERO;
        let asked = time::tick();
        LostAttempt { why: LossReason::KeyInUse, rows, round: None, asked, took, seen, entered: 0, release: None }
    }

    /// Whether it may be that nobody got the lock: something was granted to us, and to others the rest.
    pub(crate) fn is_undecided(&self) -> bool {
        match self.why {
            LossReason::Overtaken => true,
            LossReason::Held => self.rows.iter().any(NodeAnswer::is_granted),
            // The next attempt knows the nodes' time.
            LossReason::NoQuorum => self.rows.contains(&NodeAnswer::Failed(NodeFailure::ClockBehind)),
            LossReason::TooLate | LossReason::KeyInUse => false,
        }
    }

    /// Whether a majority of the nodes can be asked; `None` if the attempt says nothing about it.
    pub(crate) fn finds_a_majority(&self) -> Option<bool> {
        match self.why {
            LossReason::NoQuorum => Some(self.waits_for_quarantine()),
            LossReason::Held | LossReason::TooLate | LossReason::Overtaken => Some(true),
            LossReason::KeyInUse => None,
        }
    }

    /// Whether a majority will be there when the quarantine of nodes is over: that is no outage.
    fn waits_for_quarantine(&self) -> bool {
        let quarantined = |it: &&NodeAnswer| matches!(it, NodeAnswer::Failed(NodeFailure::Quarantined { .. }));
        let failed = |it: &&NodeAnswer| matches!(it, NodeAnswer::Failed(_));
        let (quarantined, failed) =
            (self.rows.iter().filter(quarantined).count(), self.rows.iter().filter(failed).count());
        let gone = failed.saturating_sub(quarantined);
        quarantined != 0 && quorum(self.rows.len()) <= self.rows.len().saturating_sub(gone)
    }

    /// The nodes whose quarantine stands in the way, and for how long: until enough of them vote.
    pub(crate) fn quarantine(&self) -> Option<(usize, Duration)> {
        let left = |it: &NodeAnswer| match it {
            NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Some(*left),
            _ => None,
        };
        let lasts: Vec<_> = self.rows.iter().filter_map(left).collect();
        let longest = lasts.iter().copied().max()?;
        self.waits_for_quarantine().then_some((lasts.len(), longest))
    }

    /// The earliest time at which a majority of the nodes can be free if nobody releases anything.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        wait::free_in(&obstacles(&self.rows))
    }
}

/// A majority has answered.
fn note_majority(shared: &Shared) {
    let outage = shared.outage.lock().on_majority();
    if let Some(since) = outage {
        info!("a majority of the nodes answers again, after {}", About(time::tick().saturating_duration_since(since)));
    }
}

/// None has.
fn note_failure(shared: &Shared, request: &Request, lost: &LostAttempt) {
    if lost.rows.contains(&NodeAnswer::Failed(NodeFailure::ShutDown)) {
        return;
    }
    let is_news = shared.outage.lock().on_failure(lost.asked, time::tick());
    if is_news {
        let rows = shared.fanout.report(lost.rows.clone());
        warn!(
            "{}: no lock can be taken, because no majority of the nodes has a vote: {}",
            request.spec.name,
            Rows(&rows)
        );
    }
}

/// What stands in the way at each node.
fn obstacles(answers: &[NodeAnswer]) -> Vec<Obstacle> {
    let obstacle = |it: &NodeAnswer| match it {
        NodeAnswer::Granted | NodeAnswer::GrantedBehind => Obstacle::Free,
        NodeAnswer::Held { left: Some(left), .. }
        | NodeAnswer::Reserved { left }
        | NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Obstacle::Until(*left),
        _ => Obstacle::Unknown,
    };
    answers.iter().map(obstacle).collect()
}

impl Attempt {
    /// Prepares an attempt, and the command to send. `on_end` is called by the thread that decides the round.
    ///
    /// Its time runs from here on: what the call has waited for its slot does not count.
    pub(crate) fn prepare(
        shared: &Shared,
        slot: Slot,
        request: &Request,
        known: Known,
        policy: QueuePolicy,
        on_end: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Result<(Attempt, Command), NoAttempt> {
        let owner = OwnerToken::draw().map_err(|err| NoAttempt::NoRandomness(err.to_string()))?;
        let (sent, asked) = (Moment::now(), time::tick());
        let ttl = request.spec.ttl();
        let use_until = validity::use_until(sent, ttl, shared.config.margin.of(ttl));
        let (seen, policy) = (known.seen, known.policy(QueuePolicy { since: request.since(shared), ..policy }));
        let proposal = token::propose(shared.fanout.time_for_all(sent), seen).ok_or(NoAttempt::NoTokens)?;
        let nodes = shared.fanout.len();
        let round = AcquireRound::new(proposal, use_until).after(seen);
        let hook = on_end.map(|it| -> Box<dyn Fn(&AcquireEnd) + Send + Sync> { Box::new(move |_| it()) });
        let round = Arc::new(Pending::with_hook(nodes, round, hook));
        let quarantine = shared.fanout.quarantine();
        let command = request.spec.plan.acquire(owner, validity::millis(ttl), proposal, quarantine, &policy);
        let (enters, deadline) = (policy.enters, shared.fanout.deadline(asked));
        let connects = shared.fanout.response_timeout() < deadline.saturating_duration_since(asked);
        let attempt =
            Attempt { owner, sent, asked, use_until, quarantine, seen, enters, deadline, connects, round, slot };
        Ok((attempt, command))
    }

    /// Sends it, and waits until it is won or lost.
    pub(crate) fn run(
        shared: &Shared,
        slot: Slot,
        request: &Request,
        known: Known,
        driver: Option<Driver<'_>>,
    ) -> Result<Result<Won, LostAttempt>, NoAttempt> {
        if driver.is_none() {
            shared.fanout.keep_pace();
        }
        let _busy = shared.fanout.busy();
        // Looked at before the clocks are: see there.
        let askable = shared.fanout.askable();
        let (attempt, command) = Attempt::prepare(shared, slot, request, known, request.policy, None)?;
        if let Some(askable) = askable {
            for (node, row) in shared.fanout.left_out(askable) {
                attempt.round.leave_out(node, row);
            }
        }
        let outgoing = Outgoing::ask(command, &attempt.round).to(askable).for_majority();
        let end = run::run(&shared.fanout, outgoing, &attempt.round, driver, attempt.deadline);
        Ok(attempt.conclude(shared, request, end))
    }

    /// Waits for an attempt that somebody else has sent.
    pub(crate) fn finish(self, shared: &Shared, request: &Request) -> Result<Won, LostAttempt> {
        let _busy = shared.fanout.busy();
        let end = self.round.wait(self.deadline);
        self.conclude(shared, request, end)
    }

    /// Ends it, and takes back what it may have left.
    pub(crate) fn abandon(self, shared: &Shared, request: &Request) {
        self.round.close();
        self.take_back(shared, request, &self.round.rows(), true);
    }

    /// Lets the limit learn from how long the first round took. One that connected, or was over at once because nobody
    /// could be asked, says nothing about queues.
    fn learn(&self, end: AcquireEnd) {
        let Some(ended) = self.round.ended() else { return };
        let answered = end != AcquireEnd::Lost(LossReason::NoQuorum);
        if !self.connects && (answered || ended.timed_out) {
            self.slot.learn(self.asked, ended.at.since(self.sent), !ended.timed_out);
        }
    }

    fn conclude(self, shared: &Shared, request: &Request, mut end: AcquireEnd) -> Result<Won, LostAttempt> {
        self.learn(end);
        let nodes = shared.fanout.len();
        let mut seen = self.seen.max(self.round.with_ballot(Ballot::<AcquireRound>::seen));
        let (mut gone, mut raised) = (NodeSet::default(), false);
        let mut granted = self.round.nodes_with(|it| *it == Answer::Acquire(AcquireReply::Accepted));
        if let AcquireEnd::Raise { token } = end {
            count(&shared.counters.fencing_raises);
            let raise = Arc::new(Pending::new(nodes, RaiseRound::new(token, self.use_until)));
            let deadline = time::deadline(shared.fanout.response_timeout());
            let outgoing = Outgoing::ask(request.spec.plan.raise(self.owner, token), &raise);
            end = run::run(&shared.fanout, outgoing, &raise, None, deadline);
            seen = seen.max(token).max(raise.with_ballot(Ballot::<RaiseRound>::seen));
            gone = raise.nodes_with(Answer::is_gone);
            granted = raise.nodes_with(Answer::is_granted);
            raised = true;
        }
        // RACE: a grant was counted as far as quarantines were known then. A node whose grant came later may have told, right
        // before it, that somebody needs a longer one.
        let mut quarantined = Vec::new();
        if matches!(end, AcquireEnd::Won { .. }) && self.quarantine < shared.fanout.quarantine() {
            quarantined = shared.fanout.quarantined_of(granted, self.asked);
            if granted.len().saturating_sub(quarantined.len()) < quorum(nodes) {
                end = AcquireEnd::Lost(LossReason::NoQuorum);
            }
        }
        let took = Moment::now().since(self.sent);
        if let (AcquireEnd::Won { token }, Some(use_until)) = (end, self.use_until) {
            note_majority(shared);
            count(&shared.counters.rounds_won);
            debug!("{}: won in {}, token {token}, {:?}", request.spec.name, About(took), self.owner);
            return Ok(Won {
                spec: Arc::clone(&request.spec),
                owner: self.owner,
                token: FencingToken::new(token),
                raised,
                sent: self.sent,
                asked: self.asked,
                use_until,
                reached: self.round.reached(),
                grants: Grants { round: Some(self.round), gone },
                in_lists: request.policy.entry.is_some(),
            });
        }
        let why = if let AcquireEnd::Lost(why) = end { why } else { LossReason::Overtaken };
        count(match why {
            LossReason::Held | LossReason::Overtaken | LossReason::KeyInUse => &shared.counters.rounds_held,
            LossReason::NoQuorum => &shared.counters.rounds_without_quorum,
            LossReason::TooLate => &shared.counters.rounds_too_late,
        });
        for (node, failure) in quarantined {
            self.round.amend(node, NodeAnswer::Failed(failure));
        }
        let rows = self.round.rows();
        let release = self.take_back(shared, request, &rows, wait::keeps_its_place(why));
        let entered = self.round.with_ballot(Ballot::entered);
        let lost = LostAttempt { why, rows, round: Some(self.round), asked: self.asked, took, seen, entered, release };
        match lost.finds_a_majority() {
            Some(true) => note_majority(shared),
            Some(false) => note_failure(shared, request, &lost),
            None => {}
        }
        Err(lost)
    }
    /// Takes back whatever a lost attempt may have left on the nodes. `stays`: the call keeps its place in their lists.
    fn take_back(
        &self,
        shared: &Shared,
        request: &Request,
        answers: &[NodeAnswer],
        stays: bool,
    ) -> Option<Arc<Pending<ReleaseRound>>> {
        let mut to = self.round.reached();
        let mut granted = 0_usize;
        for (node, answer) in shared.fanout.ids().zip(answers) {
            match answer {
                NodeAnswer::Granted
                | NodeAnswer::GrantedBehind
                | NodeAnswer::Failed(NodeFailure::Quarantined { .. }) => granted = granted.saturating_add(1),
                // The only answers that prove that no key of ours is there. An entry may be.
                NodeAnswer::Held { .. } | NodeAnswer::Reserved { .. } if stays || !self.enters => to.remove(node),
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
        let since = request.since(shared);
        let update = match request.policy.entry {
            None => QueueUpdate::None,
            Some(entry) if stays => QueueUpdate::Stay { entry, since },
            Some(entry) => QueueUpdate::Leave(entry.client),
        };
        let command = request.spec.plan.release(self.owner, None, update);
        let fanout = &shared.fanout;
        let round = || run::of_release(fanout, ReleaseRound::new(granted), to);
        let round = (granted != 0).then(round);
        let release = Outgoing::release(command, to, request.spec.ttl(), round.as_ref());
        fanout.send(release, None, None, time::tick()).finish();
        round
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Quarantine;

    #[test]
    fn an_outage_is_one_whoever_else_is_quarantined() {
        let failed = || NodeAnswer::Failed(NodeFailure::Stalled);
        let quarantined =
            || NodeAnswer::Failed(NodeFailure::Quarantined { left: Duration::from_secs(9), why: Quarantine::New });
        let waits = |rows| LostAttempt { rows, ..LostAttempt::without_tokens(3, 0) }.waits_for_quarantine();

        assert!(waits(vec![quarantined(), quarantined(), quarantined()]));
        assert!(waits(vec![quarantined(), failed(), NodeAnswer::Granted]));
        assert!(waits(vec![quarantined(), failed(), NodeAnswer::Pending]), "perhaps that one would have voted");
        assert!(!waits(vec![quarantined(), failed(), failed()]));
        assert!(!waits(vec![failed(), failed(), NodeAnswer::Granted]));

        let quarantine = |rows| LostAttempt { rows, ..LostAttempt::without_tokens(3, 0) }.quarantine();
        assert_eq!(quarantine(vec![quarantined(), failed(), quarantined()]), Some((2, Duration::from_secs(9))));
        assert_eq!(quarantine(vec![quarantined(), failed(), failed()]), None);
        assert_eq!(quarantine(vec![NodeAnswer::Granted, failed(), NodeAnswer::Granted]), None);
    }

    #[test]
    fn nodes_without_an_answer_are_not_taken_for_free() {
        let answers = [NodeAnswer::Held { left: None, holder: None }, NodeAnswer::Pending, NodeAnswer::Granted];
        assert_eq!(obstacles(&answers), [Obstacle::Unknown, Obstacle::Unknown, Obstacle::Free]);
    }
}
