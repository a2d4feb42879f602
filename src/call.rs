//! One acquisition of a lock: what it asks of the nodes, and what their answers decide. Pure: no
//! clock, no thread, no log.
//!
//! ```text
//!      ┌────────── lost: it takes back its grants, or keeps them to claim the rest ──────────┐
//!      v                                                                                     │
//!   Waiting ─ in front, its time, a round ticket ─> Asking ─> Settling ─ counters ahead ─> Raising
//!      │ └──── a majority handed the lock over ──────────────────┤ │                         │
//!      │                                                         │ └───────> Won <───────────┘
//!      └─ stopped, its time is over, no hope ─> Over             └─ Lost, back to Waiting
//! ```
//!
//! [`Call::next`] says what to do now. Between two steps come answers, hand-overs, and the queue of
//! the manager. All rounds of a call have one owner, until a release of it was sent.
//!
//! A hand-over is the answer of that node to the last acquire of the call: a majority with one
//! token wins.

pub(crate) mod lost;
pub(crate) mod steps;

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, LockReply, LockStatus};
use crate::call::lost::Lost;
use crate::call::steps::{Ask, News, Next, Owner, Stay, TakeBack, Terms, View, Why, Win};
use crate::error::{NodeAnswer, NodeFailure, RoundLoss};
use crate::ids::{NodeId, NodeSet, OwnerToken};
use crate::logic::acquire_round::{AcquireEnd, AcquireRound, RaiseRound};
use crate::logic::ballot::{Ballot, Step, Votes};
use crate::logic::{lease, outage, pause, quorum, token};
use crate::time::{Moment, Now, Tick};
use crate::wire::HandedOver;

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    Asking,
    /// The acquire round is lost. Waits for the other nodes.
    Settling {
        until: Tick,
        is_last: bool,
    },
    Raising(Raising),
    Over,
}

#[derive(Clone, Debug)]
struct Raising {
    round: u32,
    deadline: Tick,
    token: u64,
    ballot: Ballot<RaiseRound>,
}

/// The last acquire of a call, or a hand-over by a majority since then.
#[derive(Clone, Debug)]
struct Asked {
    round: u32,
    sent: Now,
    deadline: Tick,
    use_until: Option<Moment>,
    /// Wait for its round ticket.
    waited: Duration,
    enters: bool,
    ballot: Ballot<AcquireRound>,
    timed_out: bool,
    /// Nodes that may have got it.
    reached: NodeSet,
    /// Nodes in quarantine that kept it from its majority.
    barred: Vec<(NodeId, NodeFailure)>,
    /// Whether the present owner has sent it.
    is_current: bool,
    is_handed_over: bool,
}

/// Hand-overs since the last acquire.
#[derive(Clone, Debug, Default)]
struct HandOvers {
    nodes: NodeSet,
    /// Time of the first hand-over.
    since: Option<Tick>,
    /// Hand-overs that count as votes, with their tokens.
    votes: Vec<(NodeId, u64)>,
    /// Shortest life of these.
    life: Duration,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    terms: Terms,
    phase: Phase,
    /// Rounds so far.
    rounds: u32,
    /// Time of the last answer.
    heard_at: Option<Tick>,
    asked: Asked,
    hand_overs: HandOvers,
    /// Its owner on the nodes.
    pub(crate) owner: Option<Owner>,
    /// Its owner before the last round was taken back.
    former: Option<OwnerToken>,
    /// Its place in the lists, once known.
    since: Option<u64>,
    /// The largest fencing counter that was seen.
    seen: u64,
    /// Whether its last round could not be won even without a holder: see
    /// [`pause::keeps_its_place`].
    has_no_place: bool,
    /// Whether it is in front of its queue and the manager does not hold the lock.
    is_admitted: bool,
    /// Time of the next round without a hand-over; at once if `None`.
    try_at: Option<Tick>,
    /// Wait for other nodes after the first hand-over.
    grace: Duration,
    tries: u32,
    /// Number of hand-overs at the start of the last round.
    handed_over: usize,
    false_alarms: u32,
    /// Start of its own outage: rounds without a majority.
    pub(crate) outage: Option<Tick>,
    pub(crate) lost: Option<Arc<Lost>>,
    /// Whether the last lost round may end the call.
    is_unjudged: bool,
    /// Lost round of the first call of the queue, which gave up.
    given_up: Option<Arc<Lost>>,
    pub(crate) news: Vec<News>,
}

impl Call {
    pub(crate) fn new(terms: Terms) -> Call {
        let is_try = terms.rounds.is_some();
        Call {
            phase: Phase::Waiting,
            rounds: 0,
            heard_at: None,
            asked: Asked::nothing(&terms),
            terms,
            hand_overs: HandOvers::default(),
            owner: None,
            former: None,
            since: None,
            seen: 0,
            has_no_place: false,
            is_admitted: is_try,
            try_at: None,
            grace: Duration::ZERO,
            tries: 0,
            handed_over: 0,
            false_alarms: 0,
            outage: None,
            lost: None,
            is_unjudged: false,
            given_up: None,
            news: Vec::new(),
        }
    }

    fn waits(&self) -> bool {
        self.terms.waits()
    }

    fn quorum(&self) -> usize {
        quorum(self.terms.nodes)
    }

    /// The earlier one of `deadline` and the end of the call.
    fn limit(&self, deadline: Tick) -> Tick {
        self.terms.end.map_or(deadline, |end| end.min(deadline))
    }

    /// The next step. `view` was taken at `now` or later.
    ///
    /// RACE: T1, this call, looks at the nodes; T2, a node, shows a longer `max_ttl` and then
    /// grants the lock; T1 counts the grant of another node, which is in quarantine for longer now.
    /// Therefore T1 looks again behind the last answer.
    pub(crate) fn next(&mut self, view: &impl View, now: Now) -> Next {
        if self.heard_at > Some(now.tick) {
            return Next::Sleep(now.tick);
        }
        match &mut self.phase {
            Phase::Waiting => self.wait(view, now),
            Phase::Asking => self.ask_on(view, now),
            Phase::Settling { until, is_last } => {
                let (until, is_last) = (*until, *is_last);
                match self.lost_reason() {
                    _ if now.tick < until && self.has_open_rows() => Next::Sleep(until),
                    Some(RoundLoss::Held) => self.on_held(is_last, view, now),
                    Some(why) => self.lose(why, view, now),
                    None => self.lose(RoundLoss::Overtaken, view, now),
                }
            }
            Phase::Raising(raising) => {
                if raising.deadline <= now.tick {
                    let _ = raising.ballot.on_timeout(now.moment);
                }
                match raising.ballot.end() {
                    None => Next::Sleep(raising.deadline),
                    Some(_) => self.on_raised(view, now),
                }
            }
            Phase::Over => Next::Rest(None),
        }
    }

    /// Waits for its turn, and asks.
    fn wait(&mut self, view: &impl View, now: Now) -> Next {
        if std::mem::take(&mut self.is_unjudged) && self.is_settled(view, now) {
            return self.give_up(Why::Hopeless);
        }
        let is_stopped = view.is_stopped();
        if !is_stopped && let Some(lost) = self.given_up.take() {
            self.lost = Some(lost);
            self.asked = Asked::nothing(&self.terms);
            return self.give_up(Why::Hopeless);
        }
        let by_hand_overs = self.waits().then(|| self.won_by_hand_overs(view, now));
        if let Some(asked) = by_hand_overs.flatten() {
            self.handed_over = 0;
            self.asked = asked;
            self.phase = Phase::Asking;
            return self.ask_on(view, now);
        }
        let until = self.terms.until;
        let is_over = until.is_some_and(|it| it <= now.tick);
        if is_stopped {
            return self.give_up(Why::Stopped);
        }
        if is_over && self.waits() {
            return self.give_up(Why::TimeOver);
        }
        let limit = until.filter(|_| self.waits());
        if !self.is_admitted {
            return Next::Rest(limit);
        }
        if let Some(at) = self.next_try().filter(|at| now.tick < *at) {
            return Next::Rest(Some(limit.map_or(at, |it| it.min(at))));
        }
        match view.take_turn() {
            Some(waited) => self.ask(waited, view, now),
            None if is_over => self.give_up(Why::TimeOver),
            None => Next::AwaitTurn(until),
        }
    }

    fn give_up(&mut self, why: Why) -> Next {
        self.phase = Phase::Over;
        Next::GiveUp(why)
    }

    /// Whether the call ends with its last lost round.
    fn is_settled(&self, view: &impl View, now: Now) -> bool {
        let Some(lost) = &self.lost else { return false };
        let Some(rounds) = self.terms.rounds else {
            return lost.why == RoundLoss::KeyInUse
                || outage::is_of_access(&lost.rows)
                || self.outage.is_some_and(|own| {
                    let patience = self.terms.outage_timeout;
                    outage::is_hopeless(own, view.outage(), patience, now.tick)
                });
        };
        let next = self.try_at.unwrap_or(now.tick);
        rounds <= self.tries
            || !lost.is_undecided()
            || self.terms.end.is_some_and(|end| end <= next)
    }

    /// Time of the next round; `None`: at once.
    fn next_try(&self) -> Option<Tick> {
        let HandOvers { nodes, since, .. } = &self.hand_overs;
        let in_time = since.and_then(|it| it.checked_add(self.grace));
        pause::next_try(self.try_at?, self.quorum(), nodes.len(), in_time)
    }

    /// Start of the call, microseconds since 1970: the order of calls of all clients. Fixed once
    /// the clocks of a majority are known.
    fn place(&mut self, view: &impl View) -> u64 {
        let began = self.terms.began.moment;
        if self.since.is_none() {
            self.since = view.time_for_all(began);
        }
        self.since.unwrap_or(began.wall_micros())
    }

    /// Begins an acquire round. Its time begins here: the wait for its ticket does not count.
    fn ask(&mut self, waited: Duration, view: &impl View, sent: Now) -> Next {
        let claims = !self.hand_overs.nodes.is_empty() || self.has_late_grant();
        let owner = match self.owner {
            Some(owner) => Ok(Owner { claims, ..owner }),
            None => Owner::draw(|| view.draw()),
        };
        let owner = match owner {
            Ok(owner) => *self.owner.insert(owner),
            Err(reason) => return self.give_up(Why::NoRandomness(reason)),
        };
        let time = view.time_for_all(sent.moment);
        let now = time.unwrap_or(sent.moment.wall_micros());
        let Some(proposal) = token::propose(now, self.seen) else {
            return self.give_up(Why::NoToken);
        };
        // Behind all others, in no list. While the nodes' time is unknown the place may be wrong;
        // the answers show that time.
        let is_last = self.has_no_place || time.is_none();
        let since = if is_last { u64::MAX } else { self.place(view) };
        let enters = !is_last && self.waits();
        let margin = self.terms.margin.of(self.terms.ttl);
        let use_until = lease::use_until(sent.moment, self.terms.ttl, margin);
        let mut round = AcquireRound::new(self.terms.rule, proposal, use_until);
        round.known = self.seen;
        round.names = Arc::clone(&self.terms.names);
        self.rounds = self.rounds.wrapping_add(1);
        let deadline = self.limit(view.deadline(sent.tick));
        self.asked = Asked {
            round: self.rounds,
            deadline,
            use_until,
            waited,
            enters,
            ..Asked::of_ballot(sent, Ballot::new(self.terms.nodes, round))
        };
        let hand_overs = std::mem::take(&mut self.hand_overs);
        self.handed_over = hand_overs.nodes.len();
        self.phase = Phase::Asking;
        Next::Ask(Ask {
            round: self.rounds,
            owner,
            deadline,
            proposal,
            since,
            enters,
        })
    }

    /// Whether a node has granted what was asked, after the end of the round.
    fn has_late_grant(&self) -> bool {
        self.asked.is_current && !self.asked.votes().nodes_with(Answer::is_granted).is_empty()
    }

    /// The nodes that took the command of the round.
    pub(crate) fn on_sent(&mut self, round: u32, taken: NodeSet) {
        if self.asked.round == round {
            self.asked.reached = self.asked.reached.union(taken);
        }
    }

    /// Takes an answer. `reached`: see
    /// [`ReplyHandler`](crate::session::pending_command::ReplyHandler). Returns whether it counts,
    /// and whether the call has a next step.
    pub(crate) fn on_answer(
        &mut self,
        round: u32,
        node: NodeId,
        answer: Answer,
        reached: bool,
        now: Now,
    ) -> (bool, bool) {
        self.heard_at = self.heard_at.max(Some(now.tick));
        let step = match &mut self.phase {
            Phase::Raising(raising) if raising.round == round => {
                raising.ballot.on_vote(node, answer, now.moment)
            }
            _ if self.asked.round == round => {
                if !reached {
                    self.asked.reached.remove(node);
                }
                self.asked.ballot.on_vote(node, answer, now.moment)
            }
            _ => Step::Late,
        };
        let settles = match self.phase {
            Phase::Settling { .. } => true,
            Phase::Over => self.lost.is_some(),
            _ => false,
        };
        (
            step != Step::Late,
            settles || matches!(step, Step::Decided(_)),
        )
    }

    /// Whether an answer to the round still matters.
    pub(crate) fn is_open(&self, round: u32) -> bool {
        match &self.phase {
            Phase::Raising(raising) if raising.round == round => raising.ballot.end().is_none(),
            _ => self.asked.round == round && self.asked.ballot.end().is_none(),
        }
    }

    pub(crate) fn has_open_rows(&self) -> bool {
        self.asked.votes().open() != 0
    }

    fn lost_reason(&self) -> Option<RoundLoss> {
        match self.asked.ballot.end()? {
            AcquireEnd::Lost(why) => Some(why),
            _ => None,
        }
    }

    /// Waits for the decision of the acquire round.
    fn ask_on(&mut self, view: &impl View, now: Now) -> Next {
        let asked = &mut self.asked;
        if asked.ballot.end().is_none() && asked.deadline <= now.tick {
            asked.timed_out = true;
            let _ = asked.ballot.on_timeout(now.moment);
        }
        let Some(end) = asked.ballot.end() else {
            return Next::Sleep(asked.deadline);
        };
        // The limit of rounds follows the first round. A round that connected, was cut short, or
        // ended at once without a reachable node shows nothing about load.
        let time = asked.deadline.saturating_duration_since(asked.sent.tick);
        let is_answered = end != AcquireEnd::Lost(RoundLoss::NoQuorum);
        if time == self.terms.response_timeout && (is_answered || asked.timed_out) {
            let (asked, timed_out) = (asked.sent.tick, asked.timed_out);
            self.news.push(News::Load { asked, timed_out });
        }
        self.seen = self.seen.max(asked.ballot.seen());
        match end {
            AcquireEnd::Won { token } => {
                let slot = asked.ballot.slot();
                let rule = self.terms.rule;
                let is_vote = |it: &Answer| rule.counts(it, token) && it.slot() == slot;
                let counted = asked.votes().nodes_with(is_vote);
                self.check(token, counted, NodeSet::default(), false, view, now)
            }
            AcquireEnd::Raise { token } => self.raise(token, now),
            AcquireEnd::Lost(_) => {
                // A short wait for the other nodes: one release then gives back all grants, to the
                // first waiting call.
                let grace = pause::grace(now.moment.since(asked.sent.moment), 0);
                let until = now.tick.checked_add(grace).unwrap_or(now.tick);
                let until = if self.terms.rounds.is_some() {
                    now.tick
                } else {
                    until
                };
                let until = until.min(asked.deadline);
                self.phase = Phase::Settling {
                    until,
                    is_last: false,
                };
                self.next(view, now)
            }
        }
    }

    fn raise(&mut self, token: u64, now: Now) -> Next {
        let Some(owner) = &self.owner else {
            return self.give_up(Why::Stopped);
        };
        let asked = &self.asked;
        let timeout = now.tick.checked_add(self.terms.response_timeout);
        let deadline = self.limit(timeout.unwrap_or(now.tick));
        let round = RaiseRound::new(self.terms.rule, token, asked.use_until);
        self.rounds = self.rounds.wrapping_add(1);
        self.seen = self.seen.max(token);
        let next = Next::Raise {
            round: self.rounds,
            owner: owner.token,
            slot: asked.ballot.slot(),
            token,
            deadline,
        };
        self.phase = Phase::Raising(Raising {
            round: self.rounds,
            deadline,
            token,
            ballot: Ballot::new(self.terms.nodes, round),
        });
        next
    }

    fn on_raised(&mut self, view: &impl View, now: Now) -> Next {
        let Phase::Raising(raising) = &self.phase else {
            return self.give_up(Why::Stopped);
        };
        let (votes, token) = (raising.ballot.votes(), raising.token);
        self.seen = self.seen.max(raising.ballot.seen());
        match raising.ballot.end() {
            Some(AcquireEnd::Lost(why)) => self.lose(why, view, now),
            _ => {
                let counted = votes.nodes_with(|it| self.terms.rule.counts(it, token));
                let gone = votes.nodes_with(Answer::is_gone);
                self.check(token, counted, gone, true, view, now)
            }
        }
    }

    fn lacks_votes(&self, of: NodeSet, quarantined: &[(NodeId, NodeFailure)]) -> bool {
        of.len().saturating_sub(quarantined.len()) < self.quorum()
    }

    /// RACE: T1 and T2 ask servers of which a majority is quarantined; each finds the other's keys
    /// there and gives back its own. Therefore such refusals are no votes, and the open nodes
    /// decide whether a majority votes.
    fn on_held(&mut self, is_last: bool, view: &impl View, now: Now) -> Next {
        let asked = &self.asked;
        let answered = asked
            .votes()
            .nodes_with(|it| it.is_granted() || it.is_held());
        let quarantined = view.quarantined_of(answered, asked.sent.tick);
        let deadline = asked.deadline;
        if !self.lacks_votes(answered, &quarantined) {
            return self.lose(RoundLoss::Held, view, now);
        }
        if !is_last && self.has_open_rows() {
            self.phase = Phase::Settling {
                until: deadline,
                is_last: true,
            };
            return self.next(view, now);
        }
        self.asked.barred = quarantined;
        self.lose(RoundLoss::NoQuorum, view, now)
    }

    /// Checks the quarantines of the nodes that have granted the lock once more.
    ///
    /// RACE: T1 counts a grant of a node after its known quarantine; T2 reads the record of another
    /// node of the majority, with a longer ttl. Therefore T1 checks all of them.
    fn check(
        &mut self,
        token: u64,
        counted: NodeSet,
        gone: NodeSet,
        raised: bool,
        view: &impl View,
        now: Now,
    ) -> Next {
        let Some(owner) = self.owner else {
            return self.give_up(Why::Stopped);
        };
        let asked = &self.asked;
        let quarantined = view.quarantined_of(counted, asked.sent.tick);
        let Some(use_until) = asked
            .use_until
            .filter(|_| !self.lacks_votes(counted, &quarantined))
        else {
            self.asked.barred = quarantined;
            return self.lose(RoundLoss::NoQuorum, view, now);
        };
        // RACE: T1, this call, is refused by a node and enters its list; T2 releases the lock
        // there, and the node hands it over to T1; T1 raises its token and finds the key there. It
        // has the short life of a hand-over.
        let handed = counted.without(asked.votes().nodes_with(Answer::is_granted));
        let gone = gone.union(quarantined.iter().map(|it| it.0).collect());
        let mut lasts_until = use_until;
        if counted.without(handed).without(gone).len() < self.quorum() {
            let end = lease::first_use_until(asked.sent.moment, self.terms.ttl, self.terms.margin);
            lasts_until = end.map_or(use_until, |it| it.earliest(use_until));
        }
        // RACE: T1, a worker, takes the grants in time; T2, this call, runs again behind the end of
        // the lease.
        if now.moment.has_reached(lasts_until) {
            return self.lose(RoundLoss::TooLate, view, now);
        }
        let reached = owner.reached.union(asked.reached);
        let slot = asked.ballot.slot();
        let grants = asked
            .votes()
            .nodes_with(|it| it.is_granted() && it.slot() == slot);
        let win = Win {
            owner: owner.token,
            token,
            raised,
            sent: asked.sent,
            use_until,
            is_handed_over: asked.is_handed_over || !handed.is_empty(),
            reached,
            slot,
            gone,
            handed,
            others: reached.without(grants.without(gone)),
            took: now.moment.since(asked.sent.moment),
        };
        self.phase = Phase::Over;
        self.outage = None;
        Next::Won(Box::new(win))
    }

    /// Ends a lost round: plans the next one, and takes back what the nodes have granted.
    fn lose(&mut self, why: RoundLoss, view: &impl View, now: Now) -> Next {
        self.phase = Phase::Waiting;
        let asked = &self.asked;
        let (waited, enters) = (asked.waited, asked.enters);
        let lost = Arc::new(Lost {
            why,
            rows: asked.rows(),
            began: asked.sent.tick,
            took: now.moment.since(asked.sent.moment),
        });
        let queued = asked.ballot.queued();
        let keeps_place = pause::keeps_its_place(why);
        let take_back = self.take_back(&lost, keeps_place, view, now.tick);
        self.has_no_place = self.waits() && !keeps_place;
        self.plan(&lost, queued, enters, view, now);
        // The wait for other calls of this manager is no outage.
        self.outage = self.outage.and_then(|it| it.checked_add(waited));
        match lost.finds_a_majority() {
            Some(true) => self.outage = None,
            Some(false) => self.outage = self.outage.or(Some(now.tick)),
            None => {}
        }
        self.lost = Some(lost);
        self.is_unjudged = true;
        // This round is newer.
        self.given_up = None;
        take_back.map_or(Next::Rest(Some(now.tick)), Next::TakeBack)
    }

    /// Plans the next round.
    fn plan(&mut self, lost: &Arc<Lost>, queued: usize, enters: bool, view: &impl View, now: Now) {
        let majority = self.quorum();
        let announced = majority <= queued && majority <= view.notifying();
        let (min, max) = self.terms.pauses;
        let (free_in, random) = (lost.free_in(), view.random());
        let mut pause = pause::pause(announced, self.tries, min, max, free_in, random);
        if self.waits() && !announced && !self.has_no_place {
            pause = pause::in_a_list(pause);
        }
        self.tries = self.tries.saturating_add(1);
        self.false_alarms = pause::false_alarms(self.false_alarms, self.handed_over, majority);
        // The first round did not enter the lists. The second one may.
        let is_early = self.waits() && self.tries == 1 && !enters && !self.has_no_place;
        if is_early {
            pause = Duration::ZERO;
        }
        self.try_at = now.tick.checked_add(pause);
        self.grace = pause::grace(lost.took, self.false_alarms);
        let lost = Arc::clone(lost);
        self.news.push(News::Lost { lost, pause });
    }

    /// What removes everything that a lost round may have left on the nodes; `None` if the call
    /// keeps its owner and its grants, to claim the rest. `stays`: the call keeps its place in the
    /// lists.
    fn take_back(
        &mut self,
        lost: &Lost,
        stays: bool,
        view: &impl View,
        now: Tick,
    ) -> Option<TakeBack> {
        let (asked, owner) = (&self.asked, self.owner?);
        let waits = self.waits();
        let granted = asked.votes().nodes_with(Answer::is_granted);
        let reached = owner.reached.union(asked.reached);
        let grants = lost.grants();
        let may_have_granted = grants.union(lost.unanswered().both(asked.reached));
        // Only a refusal proves that no key of ours is there. An entry may be.
        let to = if waits {
            reached
        } else {
            reached.without(lost.refusals())
        };
        // No node got the command. While servers are slow, a release for each such round would slow
        // them down further. A hand-over lasts for a second.
        let is_unsent = asked.reached.is_empty();
        // RACE: T1, this call, loses its round before a quarantined server has answered; T2, the
        // server, grants the lock; T1 waits for other servers and claims nothing. Therefore T1
        // takes back such a possible grant. A key there is no vote, and its holder could not heal
        // the lock.
        let quarantined = view.quarantined_of(may_have_granted, asked.sent.tick);
        let claims = owner.claims && !may_have_granted.is_empty();
        let proposal = asked.ballot.proposal();
        let which = asked.ballot.in_the_way();
        if waits && (is_unsent || stays && quarantined.is_empty() && !claims) {
            // The call is in the lists, and a release hands the lock over to it. It claims the
            // grants once.
            self.owner = Some(Owner { reached, ..owner });
            self.keep(granted, now);
            return None;
        }
        // RACE: T1, this call, gives up on a node; T2, the node, grants the lock late. Therefore T1
        // puts the release behind the acquire, on the only connection to the node: the node runs
        // them in that order.
        //
        // One gap stays open on purpose. If the connection breaks between the two, the node may run
        // the acquire from the old socket after the release from the new one. The key then stays
        // for one ttl and the node refuses all clients for that time. Nobody counted the vote, so
        // there is no second holder.
        let since = self.place(view);
        let stays = (waits && stays).then_some(Stay {
            owner: owner.successor,
            since,
            which,
        });
        self.drop_owner(Owner { reached, ..owner }, stays.is_some(), view);
        Some(TakeBack {
            owner: owner.token,
            to,
            grants: grants.len(),
            above: proposal,
            stays,
        })
    }

    /// Keeps grants of a lost round. The call waits for hand-overs of other nodes, and then asks.
    fn keep(&mut self, granted: NodeSet, since: Tick) {
        if !granted.is_empty() {
            self.hand_overs.nodes = self.hand_overs.nodes.union(granted);
            self.hand_overs.since.get_or_insert(since);
        }
    }

    /// The owner of a lost round goes.
    ///
    /// RACE: T1, the holder, releases the lock, and nodes hand it over to this call; T2, this call,
    /// takes back its round there, and no node hands over what a call gives back to itself.
    /// Therefore messages to the former owner, earlier or later, make the call ask.
    fn drop_owner(&mut self, before: Owner, stays: bool, view: &impl View) {
        self.owner = None;
        let HandOvers { nodes, since, .. } = std::mem::take(&mut self.hand_overs);
        self.hand_overs.nodes = nodes;
        self.hand_overs.since = since;
        self.asked.is_current = false;
        if !self.waits() {
            return;
        }
        if let Some(former) = self.former.replace(before.token) {
            self.news.push(News::Forgotten(former));
        }
        // Its entries in the lists are those of the successor.
        match view.draw().ok().filter(|_| stays) {
            Some(successor) => {
                self.owner = Some(Owner {
                    token: before.successor,
                    successor,
                    ..before
                });
            }
            None => self.news.push(News::Forgotten(before.successor)),
        }
    }

    /// Ends the call in its queue. What is to be released if it `leaves` without the lock.
    pub(crate) fn leave(&mut self, leaves: bool) -> Option<TakeBack> {
        self.phase = Phase::Over;
        if !self.waits() {
            return None;
        }
        self.news.extend(self.former.take().map(News::Forgotten));
        let owner = self.owner?;
        self.news.push(News::Forgotten(owner.successor));
        if !leaves {
            return None;
        }
        self.news.push(News::Forgotten(owner.token));
        (!owner.reached.is_empty()).then_some(TakeBack {
            owner: owner.token,
            to: owner.reached,
            grants: 0,
            above: self.seen,
            stays: None,
        })
    }
}

/// The queue of the manager, and hand-overs.
impl Call {
    /// Whether the call may ask. Returns whether that is new, and the call has a next step.
    pub(crate) fn admit(&mut self, is_admitted: bool) -> bool {
        let begins = is_admitted && !self.is_admitted;
        let is_in_lists = self.asked.is_current && !self.has_no_place;
        if begins && !is_in_lists {
            self.try_at = None;
        }
        self.is_admitted = is_admitted;
        begins
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Ends the wait: `lost` shows for this call too that waiting is hopeless. False if the call
    /// began later.
    pub(crate) fn give_up_with(&mut self, lost: &Arc<Lost>) -> bool {
        let is_older = self.terms.began.tick <= lost.began;
        if is_older {
            self.given_up = Some(Arc::clone(lost));
        }
        is_older
    }

    /// `node` has handed the lock over to this call or its hold. Returns whether the call has a
    /// next step.
    ///
    /// RACE: T1, this call, asks; T2, the node, has handed the lock over before, and the key has
    /// expired since; T1 reads the message behind the answer. Therefore a hand-over is a vote only
    /// behind the answer to the last acquire, and the next acquire drops it. It counts only if the
    /// node had no quarantine when that acquire was sent, also behind the win.
    ///
    /// RACE: T1, the call, wins a handed-over slot; T2, a worker, delivers that message behind the
    /// answers. Therefore nothing is given back here: a won permit gives back all other slots.
    pub(crate) fn on_hand_over(&mut self, node: NodeId, notice: &HandedOver, now: Tick) -> bool {
        let is_current = self.owner.map(|it| it.token) == notice.owner();
        let asked = &mut self.asked;
        let is_timely = notice.asked_from.is_some_and(|it| it <= asked.sent.tick);
        if asked.is_current && asked.is_handed_over {
            if is_current
                && is_timely
                && let Some(vote) = asked.ballot.vote_with(notice.token)
            {
                asked.ballot.on_late_vote(node, vote);
            }
            return false;
        }
        // One name of several, or one slot of a semaphore, is no vote.
        let is_vote = is_current && asked.is_current && self.terms.is_single;
        if let Some(token) = notice.token.filter(|_| is_vote)
            && is_timely
            && asked.ballot.may_follow(node, token)
            && !self.hand_overs.nodes.contains(node)
        {
            let life = Duration::from_millis(notice.life);
            let hand_overs = &mut self.hand_overs;
            hand_overs.life = match hand_overs.votes[..] {
                [] => life,
                _ => hand_overs.life.min(life),
            };
            hand_overs.votes.push((node, token));
        }
        self.hand_overs.nodes.insert(node);
        self.hand_overs.since.get_or_insert(now);
        let so_far = self.hand_overs.nodes.len();
        // Once to begin the wait for other nodes, and once for a majority. The thread may not have
        // the result of the entering release yet.
        so_far == 1 && self.is_admitted || so_far == self.quorum()
    }

    /// The round won by hand-overs of a majority, if the lease allows it. Otherwise the call claims
    /// the lock in its turn. Its lease counts from the send of the last acquire, since the keys
    /// were set later.
    ///
    /// RACE: T1, another client, releases many locks at once; T2, slow servers, hand them over to
    /// calls of this manager; T3, the renewal thread, has to extend all of them within one short
    /// life. Therefore each has a round ticket until its first extension.
    fn won_by_hand_overs(&self, view: &impl View, now: Now) -> Option<Asked> {
        let HandOvers { votes, life, .. } = &self.hand_overs;
        let asked = &self.asked;
        if votes.len() < self.quorum() || !asked.is_current || asked.is_handed_over {
            return None;
        }
        // RACE: T1 wins with little time left; T2 answers the first extension after the end of the
        // lease. Therefore a call with slow answers or a short rest of the lease asks again.
        let until = lease::use_until(asked.sent.moment, *life, self.terms.margin.of(*life))?;
        let least = lease::FIRST_EXTENSION.saturating_add(self.grace.saturating_mul(2));
        if now.moment.until(until) < least.max(life.checked_div(4)?) {
            return None;
        }
        let ballot = asked.ballot.of_hand_overs(votes, Some(until), now.moment)?;
        let waited = view.take_turn()?;
        Some(Asked {
            deadline: self.limit(asked.sent.tick),
            use_until: Some(until),
            waited,
            reached: self.owner?.reached,
            is_handed_over: true,
            ..Asked::of_ballot(asked.sent, ballot)
        })
    }

    /// Enters the lists of the nodes `to` by a release of the lock with this token: its owner and
    /// its place, `since` if it has none. `None` if the call is in the lists or is about to ask.
    ///
    /// It is an acquire that every node has refused, with the token of the lock as the counter. Its
    /// owner is new, so any hand-over to it was set after the release.
    ///
    /// RACE: T1, the call, loses a round and releases its owner; T2, the releasing thread, enters
    /// the call as that owner behind the release, and nobody removes it. Therefore T2 draws a new
    /// owner, and not during a round.
    ///
    /// RACE: T2 enters the call here; T1 leaves the queue; T2 sends the release, which enters the
    /// call in the lists. Therefore a hand-over to a missing owner is given back.
    pub(crate) fn enter(
        &mut self,
        token: u64,
        to: NodeSet,
        since: u64,
        draw: impl Fn() -> Result<OwnerToken, String>,
        now: Now,
    ) -> Option<(Owner, u64)> {
        if !self.waits() || !matches!(self.phase, Phase::Waiting) || self.owner.is_some() {
            return None;
        }
        let owner = Owner {
            reached: to,
            ..Owner::draw(draw).ok()?
        };
        self.owner = Some(owner);
        self.asked = self.refused_by_all(token, now);
        // Without a message: the lock may be handed over for a short life only.
        self.try_at = now.tick.checked_add(lease::FIRST_LIFE.mul_f64(0.5));
        // RACE: T1 enters this call; T2, an earlier release, admits it as the first call; T3, the
        // first node, hands the lock over. Therefore the call waits for other nodes until T1 knows
        // the duration of its release.
        self.grace = lease::FIRST_EXTENSION;
        Some((owner, *self.since.get_or_insert(since)))
    }

    /// An acquire that every node has refused, with this counter.
    fn refused_by_all(&self, counter: u64, now: Now) -> Asked {
        let held = Answer::Lock(LockReply {
            queued: true,
            ..LockReply::new(LockStatus::Held, counter)
        });
        let round = AcquireRound::new(self.terms.rule, counter, None);
        let mut ballot = Ballot::new(self.terms.nodes, round);
        for node in (0..).map(NodeId::new).take(self.terms.nodes) {
            ballot.on_late_vote(node, held.clone());
        }
        Asked::of_ballot(now, ballot)
    }

    /// Sets the wait for other nodes, from a hand-over that took `took`.
    pub(crate) fn set_grace(&mut self, took: Duration) {
        self.grace = pause::grace(took, 0);
    }

    /// Answers to the last acquire, late ones included.
    pub(crate) fn votes(&self) -> &Votes {
        self.asked.votes()
    }

    /// The rows of all nodes: of its last round, or of the one that ended the calls of its queue.
    pub(crate) fn rows(&self) -> Vec<NodeAnswer> {
        match (self.asked.rows(), &self.lost) {
            (rows, _) if !rows.is_empty() => rows,
            (_, Some(lost)) => lost.rows.clone(),
            (_, None) => vec![NodeAnswer::Pending; self.terms.nodes],
        }
    }
}

impl Asked {
    /// Nothing was asked.
    fn nothing(terms: &Terms) -> Asked {
        let round = AcquireRound::new(terms.rule, 0, None);
        Asked {
            is_current: false,
            ..Asked::of_ballot(terms.began, Ballot::new(0, round))
        }
    }

    /// No answer belongs to round 0.
    fn of_ballot(sent: Now, ballot: Ballot<AcquireRound>) -> Asked {
        Asked {
            round: 0,
            sent,
            deadline: sent.tick,
            use_until: None,
            waited: Duration::ZERO,
            enters: true,
            ballot,
            timed_out: false,
            reached: NodeSet::default(),
            barred: Vec::new(),
            is_current: true,
            is_handed_over: false,
        }
    }

    fn votes(&self) -> &Votes {
        self.ballot.votes()
    }

    fn rows(&self) -> Vec<NodeAnswer> {
        let barred = |node| self.barred.iter().find(|it| it.0 == node);
        let row = |(node, row)| barred(node).map_or(row, |it| NodeAnswer::Failed(it.1.clone()));
        self.ballot.rows().map(row).collect()
    }
}

#[cfg(test)]
impl Call {
    /// Every node grants what was asked.
    pub(crate) fn grant_all(&mut self) {
        let mut asked = self.refused_by_all(0, Now::read());
        let round = AcquireRound::new(self.terms.rule, 1, None);
        asked.ballot = Ballot::new(self.terms.nodes, round);
        for node in (0..).map(NodeId::new).take(self.terms.nodes) {
            asked
                .ballot
                .on_late_vote(node, Answer::of(LockStatus::Accepted));
        }
        self.asked = asked;
    }
}

#[cfg(test)]
mod tests;
