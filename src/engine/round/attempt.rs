//! One attempt to get a lock: an acquire round, a raise round if fencing counters were ahead, and the removal of a lost
//! attempt; and its result.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::answer::{AcquireReply, Answer};
use crate::config::Config;
use crate::engine::nodes::fanout::{Broadcast, Fanout, Recipients};
use crate::engine::round::admission::RoundTicket;
use crate::engine::round::pending::Pending;
use crate::engine::spec::LockSpec;
use crate::error::{AcquireError, NodeAnswer, NodeFailure};
use crate::ids::{ClientId, FencingToken, NodeId, NodeSet, OwnerToken};
use crate::logic::acquire_round::{AcquireEnd, AcquireRound, LossReason, RaiseRound};
use crate::logic::ballot::Ballot;
use crate::logic::tally::ReleaseRound;
use crate::logic::{lease, pause, quorum, token};
use crate::observer::{Event, RoundOutcome};
use crate::stats::count;
use crate::sys::logging::debug;
use crate::time::{self, About, Moment, Now, Tick};
use crate::wire::{Entering, QueueEntry, QueuePolicy, QueueUpdate};

/// An attempt under way.
pub(crate) struct Attempt {
    owner: Owner,
    /// Clock reading before the first byte is sent, new for each attempt.
    pub(crate) sent: Now,
    use_until: Option<Moment>,
    /// Largest fencing counter seen before.
    seen: u64,
    /// Whether it enters the waiting lists of refusing nodes.
    pub(crate) enters: bool,
    pub(crate) deadline: Tick,
    pub(crate) round: Arc<Pending<AcquireRound>>,
    /// Round ticket, returned at its end.
    round_ticket: RoundTicket,
    /// Whether hand-overs won it: see [`Attempt::of_hand_overs`].
    is_handed_over: bool,
}

/// The owner of a call: one for all attempts, until a release of it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) token: OwnerToken,
    /// Owner of the call after that, if it keeps waiting.
    pub(crate) successor: OwnerToken,
    /// Nodes that may have got a command of it.
    pub(crate) reached: NodeSet,
    /// Whether some of them granted it the lock: the attempt claims the others.
    pub(crate) claims: bool,
}

impl Owner {
    pub(crate) fn draw() -> Result<Owner, NotWon> {
        let draw = || {
            OwnerToken::draw().map_err(|err| {
                let reason = err.to_string();
                NotWon::Failed(AcquireError::NoRandomness { reason })
            })
        };
        Ok(Owner {
            token: draw()?,
            successor: draw()?,
            reached: NodeSet::default(),
            claims: false,
        })
    }
}

impl Attempt {
    /// Prepares an attempt and its command.
    ///
    /// The time of the attempt begins here: the wait for its ticket does not count.
    pub(crate) fn prepare(
        fanout: &Fanout,
        round_ticket: RoundTicket,
        request: &Request,
        known: AttemptFacts,
        owner: Owner,
    ) -> Result<(Attempt, Broadcast), NotWon> {
        let sent = Now::read();
        let use_until = lease::use_until(sent.moment, request.spec.ttl(), request.margin);
        let seen = known.seen;
        let nodes = fanout.nodes.len();
        let time = fanout.time_for_all(sent.moment);
        let mut policy = QueuePolicy {
            since: request.since(fanout),
            only: known.only,
            ..request.policy
        };
        // Behind all others, in no list. While the nodes' time is unknown the place may be wrong; the answers show that
        // time.
        if known.has_no_place || time.is_none() {
            policy.since = u64::MAX;
            policy.enters = false;
        }
        let proposal = token::propose(time.unwrap_or(sent.moment.wall_micros()), seen);
        let proposal = proposal.ok_or_else(|| {
            let nodes = fanout.report(vec![NodeAnswer::Pending; nodes]);
            let name = request.spec.name.clone();
            NotWon::Failed(AcquireError::KeyInUse { name, nodes })
        })?;
        let mut round = AcquireRound::new(request.spec.rule(), proposal, use_until);
        round.known = seen;
        round.names = Arc::clone(&request.spec.names);
        let round = Arc::new(Pending::new(nodes, round));
        let ttl_ms = lease::millis(request.spec.ttl());
        let command = request
            .spec
            .commands
            .acquire(owner.token, ttl_ms, proposal, &policy);
        let broadcast = Broadcast {
            recipients: Recipients::ReadyMajority,
            ..Broadcast::new(command, &round)
        };
        let attempt = Attempt {
            owner,
            sent,
            use_until,
            seen,
            enters: policy.enters,
            deadline: request.limit(fanout.deadline(sent.tick)),
            round,
            round_ticket,
            is_handed_over: false,
        };
        Ok((attempt, broadcast))
    }

    /// The attempt of a waiting call by hand-overs with these `tokens` since its last `acquire`. `None` if they win
    /// nothing. `use_until`: counted from the send of that acquire, since the keys were set later.
    pub(crate) fn of_hand_overs(
        request: &Request,
        owner: Owner,
        acquire: &SentAcquire,
        tokens: &[(NodeId, u64)],
        use_until: Moment,
        now: Moment,
        round_ticket: RoundTicket,
    ) -> Option<Attempt> {
        let ballot = acquire
            .round
            .with_ballot(|it| it.of_hand_overs(tokens, Some(use_until), now))?;
        let round = Arc::new(Pending::of_ballot(ballot, owner.reached));
        let deadline = request.limit(acquire.sent.tick);
        Some(Attempt {
            owner,
            sent: acquire.sent,
            use_until: Some(use_until),
            seen: 0,
            enters: true,
            deadline,
            round,
            round_ticket,
            is_handed_over: true,
        })
    }

    /// Sends the attempt and waits for its result.
    pub(crate) fn run(
        self,
        fanout: &Fanout,
        request: &Request,
        broadcast: Broadcast,
    ) -> Result<Won, LostAttempt> {
        self.round.send(fanout, broadcast);
        self.finish(fanout, request)
    }

    /// Waits for the result of a sent attempt.
    pub(crate) fn finish(self, fanout: &Fanout, request: &Request) -> Result<Won, LostAttempt> {
        let mut end = self.round.wait(self.deadline);
        if request.policy.entry.is_some() && matches!(end, AcquireEnd::Lost(_)) {
            // A short wait for the other nodes: one release then gives back all grants, to the first waiting call.
            let grace = pause::grace(Moment::now().since(self.sent.moment), 0);
            self.round
                .wait_for_rows(self.deadline.min(time::deadline(grace)));
        }
        // The limit follows the first round. A round that connected, was cut short, or ended at once without a
        // reachable node shows nothing about load.
        let time = self.deadline.saturating_duration_since(self.sent.tick);
        let is_answered = end != AcquireEnd::Lost(LossReason::NoQuorum);
        let timed_out = self.round.timed_out();
        if time == fanout.response_timeout && (is_answered || timed_out) {
            self.round_ticket.adjust_limit(self.sent.tick, timed_out);
        }
        let nodes = fanout.nodes.len();
        let mut seen = self
            .seen
            .max(self.round.with_ballot(Ballot::<AcquireRound>::seen));
        let mut gone = NodeSet::default();
        let mut raised = false;
        let slot = self.round.with_ballot(Ballot::<AcquireRound>::slot);
        let spec = request.spec.of_slot(slot);
        let rule = request.spec.rule();
        let mut counted = match end {
            AcquireEnd::Won { token } => self
                .round
                .nodes_with(|it| rule.counts(it, token) && it.slot() == slot),
            _ => NodeSet::default(),
        };
        if let AcquireEnd::Raise { token } = end {
            count(&fanout.journal.counters.fencing_raises);
            let raise = Arc::new(Pending::new(
                nodes,
                RaiseRound::new(rule, token, self.use_until),
            ));
            let deadline = request.limit(time::deadline(fanout.response_timeout));
            let broadcast = Broadcast::new(spec.commands.raise(self.owner.token, token), &raise);
            raise.send(fanout, broadcast);
            end = raise.wait(deadline);
            seen = seen
                .max(token)
                .max(raise.with_ballot(Ballot::<RaiseRound>::seen));
            gone = raise.nodes_with(Answer::is_gone);
            counted = raise.nodes_with(|it| rule.counts(it, token));
            raised = true;
        }
        let quarantined_of = |of| fanout.quarantined_of(of, self.sent.tick);
        // RACE: T1 and T2 ask servers of which a majority is quarantined; each finds the other's keys there and gives
        // back its own. Therefore such refusals are no votes, and the open nodes decide whether a majority votes.
        let is_held = end == AcquireEnd::Lost(LossReason::Held);
        let lacks_votes = |of: NodeSet, quarantined: &[_]| {
            of.len().saturating_sub(quarantined.len()) < quorum(nodes)
        };
        if is_held {
            let answered = || self.round.nodes_with(|it| it.is_granted() || it.is_held());
            if lacks_votes(answered(), &quarantined_of(answered())) {
                self.round.wait_for_rows(self.deadline);
            }
            counted = answered();
        }
        // RACE: T1 counts a grant of a node after its known quarantine; T2 reads the record of another node of the
        // majority, with a longer ttl. Therefore T1 checks all of them once more.
        let quarantined = quarantined_of(counted);
        gone = gone.union(quarantined.iter().map(|it| it.0).collect());
        let is_decided = is_held || matches!(end, AcquireEnd::Won { .. });
        if is_decided && lacks_votes(counted, &quarantined) {
            for (node, failure) in quarantined {
                self.round.amend(node, NodeAnswer::Failed(failure));
            }
            end = AcquireEnd::Lost(LossReason::NoQuorum);
        }
        let took = Moment::now().since(self.sent.moment);
        let record = |outcome| {
            fanout.journal.record(Event::Round {
                lock: request.spec.observed(),
                outcome,
                took,
            })
        };
        if let AcquireEnd::Won { token } = end
            && let Some(use_until) = self.use_until
        {
            record(RoundOutcome::Won);
            debug!(
                fanout.journal,
                "{:?}: won in {}, token {token}, {:?}",
                request.spec.name,
                About(took),
                self.owner.token
            );
            // RACE: T1, this call, is refused by a node and enters its list; T2 releases the lock there, and the node hands
            // it over to T1; T1 raises its token and finds the key there. It has the short life of a hand-over.
            let handed = counted.without(self.round.nodes_with(Answer::is_granted));
            let is_handed_over = self.is_handed_over || !handed.is_empty();
            let grants = Grants {
                round: Some(Arc::clone(&self.round)),
                slot,
                gone,
                handed,
            };
            let client = request.policy.entry.map(|it| it.client);
            if let Some(keep) = spec.commands.keep(self.owner.token, client) {
                // Other slots that nodes granted, or may still grant, are given back. The call leaves the lists of
                // these nodes: the manager's next waiting call has the same entry.
                let others = self.reached().without(grants.nodes());
                if !others.is_empty() {
                    // RACE: behind the acquire, as in `take_back`.
                    let release = Broadcast::release(keep, others, spec.ttl());
                    fanout.send(release, time::tick());
                }
            }
            return Ok(Won {
                spec,
                owner: self.owner.token,
                token: FencingToken(token),
                raised,
                sent: self.sent,
                use_until,
                is_handed_over,
                reached: self.reached(),
                first_life: is_handed_over.then_some(self.round_ticket),
                grants,
                waited: client,
            });
        }
        let why = match end {
            AcquireEnd::Lost(why) => why,
            _ => LossReason::Overtaken,
        };
        record(match why {
            LossReason::Held => RoundOutcome::Held,
            LossReason::Overtaken => RoundOutcome::Overtaken,
            LossReason::KeyInUse => RoundOutcome::KeyInUse,
            LossReason::NoQuorum => RoundOutcome::NoQuorum,
            LossReason::TooLate => RoundOutcome::TooLate,
        });
        let rows = self.round.rows();
        let taken_back = self.take_back(fanout, request, &rows, pause::keeps_its_place(why));
        let began = self.sent.tick;
        let waited = self.round_ticket.waited;
        Err(LostAttempt {
            why,
            rows,
            round: self.round,
            began,
            took,
            waited,
            seen,
            enters: self.enters,
            is_released: taken_back.is_some(),
            release: taken_back.flatten(),
        })
    }

    /// Nodes that may have got a command of its owner.
    fn reached(&self) -> NodeSet {
        self.owner.reached.union(self.round.reached())
    }

    /// Removes everything that a lost attempt may have left on the nodes. `None` if there is nothing to remove and the
    /// call keeps its owner; otherwise the release of the grants, under way. `stays`: the call keeps its place in the
    /// lists.
    fn take_back(
        &self,
        fanout: &Fanout,
        request: &Request,
        answers: &[NodeAnswer],
        stays: bool,
    ) -> Option<Option<Arc<Pending<ReleaseRound>>>> {
        if request.policy.entry.is_some() && self.round.reached().is_empty() {
            // No node got the command. While servers are slow, a release for each such attempt would slow them down
            // further. A hand-over lasts for a second.
            return None;
        }
        let mut to = self.reached();
        let mut granted = 0_usize;
        let asked = self.round.reached();
        let mut may_have_granted = NodeSet::default();
        for (node, answer) in fanout.ids().zip(answers) {
            match answer {
                NodeAnswer::Granted
                | NodeAnswer::GrantedBehind
                | NodeAnswer::Failed(NodeFailure::Quarantined { .. }) => {
                    granted = granted.saturating_add(1);
                    may_have_granted.insert(node);
                }
                // Only these answers prove that no key of ours is there. An entry may be.
                NodeAnswer::Held { .. } | NodeAnswer::HeldByReaders { .. }
                    if request.policy.entry.is_none() =>
                {
                    to.remove(node)
                }
                NodeAnswer::Pending | NodeAnswer::Failed(_) if asked.contains(node) => {
                    may_have_granted.insert(node);
                }
                _ => {}
            }
        }
        // RACE: T1, this call, loses its round before a quarantined server has answered; T2, the server, grants the
        // lock; T1 waits for other servers and claims nothing. Therefore T1 takes back such a possible grant.
        // A key there is no vote, and its holder could not heal the lock.
        let quarantined = fanout.quarantined_of(may_have_granted, self.sent.tick);
        let claims = self.owner.claims && !may_have_granted.is_empty();
        let goes_on = quarantined.is_empty() && !claims;
        if stays && request.policy.entry.is_some() && goes_on {
            // The call is in the lists, and a release hands the lock over to it. It claims the grants once.
            return None;
        }
        // RACE: T1, this call, gives up on a node; T2, the node, grants the lock late. Therefore T1 puts the release
        // behind the acquire, on the only connection to the node: the node runs them in that order.
        //
        // One gap stays open on purpose. If the connection breaks between the two, the node may run the acquire from
        // the old socket after the release from the new one. The key then stays for one ttl and the node refuses all
        // clients for that time. Nobody counted the vote, so there is no second holder.
        let update = match request.policy.entry {
            None => QueueUpdate::None,
            // A release hands the lock over to earlier calls, never to its own.
            Some(entry) if stays => QueueUpdate::Enter(Entering {
                entry,
                since: request.since(fanout),
                which: self.round.with_ballot(Ballot::<AcquireRound>::in_the_way),
                member: request.spec.commands.member(self.owner.successor),
                yields: true,
            }),
            Some(entry) => QueueUpdate::Leave(entry.client),
        };
        let offer = fanout.offer(self.round.with_ballot(Ballot::<AcquireRound>::proposal));
        let command = request
            .spec
            .commands
            .release(self.owner.token, offer, update);
        let round =
            (granted != 0).then(|| Pending::among(fanout, ReleaseRound::new(granted), Some(to)));
        let release =
            Broadcast::release(command, to, request.spec.ttl()).answered_to(round.as_ref());
        fanout.send(release, time::tick());
        Some(round)
    }
}

/// The last acquire of a call.
pub(crate) struct SentAcquire {
    pub(crate) sent: Now,
    pub(crate) round: Arc<Pending<AcquireRound>>,
}

impl SentAcquire {
    /// The acquire of a call that enters the waiting lists by a release of the lock: a round refused by every node,
    /// with the token of the lock as the counter. Its owner is new, so any hand-over to it was set after the release.
    pub(crate) fn by_release(request: &Request, fanout: &Fanout, token: u64) -> SentAcquire {
        let sent = Now::read();
        let round = AcquireRound::new(request.spec.rule(), token, None);
        let mut ballot = Ballot::new(fanout.nodes.len(), round);
        for node in fanout.ids() {
            let held = AcquireReply::Held {
                counter: token,
                left: None,
                queued: true,
                holder: None,
                which: None,
            };
            ballot.on_late_vote(node, Answer::Acquire(held));
        }
        SentAcquire {
            sent,
            round: Arc::new(Pending::of_ballot(ballot, NodeSet::default())),
        }
    }
}

/// Life of a waiting list in longest pauses, so that live calls do not drop out.
const PAUSES_IN_A_LIFE: u32 = 3;

/// The request of a call.
pub(crate) struct Request {
    pub(crate) spec: Arc<LockSpec>,
    /// Time by which the lease ends earlier for its holder than for the nodes.
    pub(crate) margin: Duration,
    /// Place in the lists, except for its start: see [`Request::since`].
    pub(crate) policy: QueuePolicy,
    pub(crate) began: Moment,
    /// End of all rounds of the call.
    end: Option<Tick>,
    place: OnceLock<u64>,
}

impl Request {
    /// `client`: of a waiting call, which enters the nodes' waiting lists.
    pub(crate) fn new(
        spec: &Arc<LockSpec>,
        config: &Config,
        client: Option<ClientId>,
        end: Option<Tick>,
    ) -> Request {
        let life = pause::longest_pause(config.retry_max).saturating_mul(PAUSES_IN_A_LIFE);
        let life = lease::millis(life);
        let entry = client.map(|client| QueueEntry { client, life });
        let began = Moment::now();
        let policy = QueuePolicy {
            since: began.wall_micros(),
            entry,
            enters: client.is_some(),
            only: None,
        };
        Request {
            spec: Arc::clone(spec),
            margin: config.margin.of(spec.ttl()),
            policy,
            began,
            end,
            place: OnceLock::new(),
        }
    }

    /// The earlier one of `deadline` and the end of the call.
    pub(super) fn limit(&self, deadline: Tick) -> Tick {
        self.end.map_or(deadline, |end| end.min(deadline))
    }

    /// Start of the call, microseconds since 1970: the order of calls of all clients.
    ///
    /// Fixed once the clocks of a majority are known.
    pub(crate) fn since(&self, fanout: &Fanout) -> u64 {
        if let Some(place) = self.place.get() {
            return *place;
        }
        // Not within `get_or_init`: this locks.
        match fanout.time_for_all(self.began) {
            Some(time) => *self.place.get_or_init(|| time),
            None => self.began.wall_micros(),
        }
    }
}

/// Facts from the attempts of a call so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttemptFacts {
    /// The largest fencing counter that was seen.
    pub(crate) seen: u64,
    /// Whether its last round could not be won even without a holder: see [`pause::keeps_its_place`].
    pub(crate) has_no_place: bool,
    /// Slot of a semaphore that is free at a majority, after nodes granted different slots.
    pub(crate) only: Option<u8>,
}

impl AttemptFacts {
    /// The facts after a lost attempt.
    pub(crate) fn after(self, lost: &LostAttempt) -> AttemptFacts {
        let mut only = None;
        // One try for this slot, then a random one again.
        if lost.why == LossReason::Held && self.only.is_none() {
            only = lost.round.with_ballot(Ballot::<AcquireRound>::common_slot);
        }
        AttemptFacts {
            seen: self.seen.max(lost.seen),
            has_no_place: !pause::keeps_its_place(lost.why),
            only,
        }
    }
}

/// A won acquisition.
pub(crate) struct Won {
    pub(crate) spec: Arc<LockSpec>,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    /// Whether the nodes got another proposal first.
    pub(crate) raised: bool,
    /// Clock reading before the first byte was sent.
    pub(crate) sent: Now,
    pub(crate) use_until: Moment,
    /// Whether nodes handed it over, for a short life.
    pub(crate) is_handed_over: bool,
    pub(crate) first_life: Option<RoundTicket>,
    /// Nodes that may have got the acquire.
    pub(crate) reached: NodeSet,
    pub(crate) grants: Grants,
    /// Client of a call that has waited: it may be in lists of nodes, and nodes may hand the lock over to its owner.
    pub(crate) waited: Option<ClientId>,
}

#[cfg(test)]
impl Won {
    /// A lock won now, granted by all nodes, that ends after `lasts`.
    pub(crate) fn just_now(spec: &Arc<LockSpec>, time_left: Duration) -> Won {
        let sent = Now::read();
        let mut ballot = Ballot::new(NodeSet::MAX.into(), AcquireRound::new(spec.rule(), 1, None));
        for node in (0..NodeSet::MAX).map(NodeId::new) {
            ballot.on_late_vote(node, Answer::Acquire(AcquireReply::Accepted));
        }
        Won {
            spec: Arc::clone(spec),
            owner: OwnerToken::draw().unwrap(),
            token: FencingToken(1),
            raised: false,
            sent,
            use_until: sent.moment.checked_add(time_left).unwrap(),
            is_handed_over: false,
            first_life: None,
            reached: NodeSet::default(),
            grants: Grants {
                round: Some(Arc::new(Pending::of_ballot(ballot, NodeSet::default()))),
                ..Grants::default()
            },
            waited: None,
        }
    }
}

/// Nodes that granted a lock, with late answers.
#[derive(Default)]
pub(crate) struct Grants {
    pub(crate) round: Option<Arc<Pending<AcquireRound>>>,
    /// Slot of a semaphore. Other granted slots are given back.
    pub(crate) slot: Option<u8>,
    /// Nodes whose grant does not count: the key is lost, or they are quarantined.
    pub(crate) gone: NodeSet,
    /// Nodes that handed the lock over and took the raised token.
    pub(crate) handed: NodeSet,
}

impl Grants {
    pub(crate) fn nodes(&self) -> NodeSet {
        self.nodes_with(|it| it.is_granted() && it.slot() == self.slot)
            .without(self.gone)
    }

    fn nodes_with(&self, what: impl Fn(&Answer) -> bool) -> NodeSet {
        let nodes = self.round.as_ref().map(|round| round.nodes_with(what));
        nodes.unwrap_or_default()
    }
}

/// A lost attempt, taken back on all nodes.
#[derive(Clone)]
pub(crate) struct LostAttempt {
    pub(crate) why: LossReason,
    pub(crate) rows: Vec<NodeAnswer>,
    pub(crate) round: Arc<Pending<AcquireRound>>,
    /// Start of the attempt.
    pub(crate) began: Tick,
    pub(crate) took: Duration,
    /// Wait for its round ticket.
    pub(crate) waited: Duration,
    /// The largest fencing counter that was seen.
    pub(crate) seen: u64,
    /// Whether it asked to enter the waiting lists.
    pub(crate) enters: bool,
    /// Whether a release of its owner was sent.
    pub(crate) is_released: bool,
    /// Release of the grants, under way.
    pub(crate) release: Option<Arc<Pending<ReleaseRound>>>,
}

#[cfg(test)]
impl LostAttempt {
    /// An attempt that reached no node.
    pub(crate) fn of_nobody(nodes: usize) -> LostAttempt {
        let round = AcquireRound::new(crate::logic::acquire_round::Rule::Exclusive, 0, None);
        LostAttempt {
            why: LossReason::KeyInUse,
            rows: vec![NodeAnswer::Pending; nodes],
            round: Arc::new(Pending::new(nodes, round)),
            began: time::tick(),
            took: Duration::ZERO,
            waited: Duration::ZERO,
            seen: 0,
            enters: true,
            is_released: false,
            release: None,
        }
    }
}

impl LostAttempt {
    /// Whether possibly no call got the lock: some nodes granted it to this call, the others to other calls.
    pub(crate) fn is_undecided(&self) -> bool {
        match self.why {
            LossReason::Overtaken => true,
            LossReason::Held => self.rows.iter().any(NodeAnswer::is_granted),
            // The next attempt has the nodes' time.
            LossReason::NoQuorum => self
                .rows
                .contains(&NodeAnswer::Failed(NodeFailure::ClockBehind)),
            LossReason::TooLate | LossReason::KeyInUse => false,
        }
    }

    /// Whether a majority of the nodes is reachable; `None` if the attempt shows nothing about that.
    pub(crate) fn finds_a_majority(&self) -> Option<bool> {
        match self.why {
            LossReason::NoQuorum => Some(self.quarantine().is_some()),
            LossReason::Held | LossReason::TooLate | LossReason::Overtaken => Some(true),
            LossReason::KeyInUse => None,
        }
    }

    /// Number of quarantined nodes in the way, and the time until enough of them vote. That is no outage. `None` if
    /// there is no majority even then.
    pub(crate) fn quarantine(&self) -> Option<(usize, Duration)> {
        let left = |row: &NodeAnswer| match row {
            NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Some(*left),
            _ => None,
        };
        let times_left: Vec<_> = self.rows.iter().filter_map(left).collect();
        let longest = times_left.iter().copied().max()?;
        let failed = |it: &&NodeAnswer| matches!(it, NodeAnswer::Failed(_));
        let failed = self.rows.iter().filter(failed).count();
        let gone = failed.saturating_sub(times_left.len());
        (quorum(self.rows.len()) <= self.rows.len().saturating_sub(gone))
            .then_some((times_left.len(), longest))
    }

    /// Earliest time at which a majority can be free without a release.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let free_in = |row: &NodeAnswer| match row {
            // This grant is being taken back.
            NodeAnswer::Granted | NodeAnswer::GrantedBehind => Some(Duration::ZERO),
            // The key expires then, unless its owner extends it.
            NodeAnswer::Held { left, .. } | NodeAnswer::HeldByReaders { left, .. } => *left,
            NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Some(*left),
            _ => None,
        };
        let nodes: Vec<_> = self.rows.iter().map(free_in).collect();
        pause::free_in(&nodes)
    }
}

/// Reason for a failed attempt.
pub(crate) enum NotWon {
    Lost(LostAttempt),
    /// Nothing was sent.
    Failed(AcquireError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::QuarantineReason;

    #[test]
    fn an_outage_is_one_whoever_else_is_quarantined() {
        let failed = || NodeAnswer::Failed(NodeFailure::Stalled);
        let quarantined = || {
            NodeAnswer::Failed(NodeFailure::Quarantined {
                left: Duration::from_secs(9),
                why: QuarantineReason::New,
            })
        };
        let waits = |rows| {
            LostAttempt {
                why: LossReason::NoQuorum,
                rows,
                ..LostAttempt::of_nobody(3)
            }
            .finds_a_majority()
                == Some(true)
        };

        assert!(waits(vec![quarantined(), quarantined(), quarantined()]));
        assert!(waits(vec![quarantined(), failed(), NodeAnswer::Granted]));
        assert!(
            waits(vec![quarantined(), failed(), NodeAnswer::Pending]),
            "perhaps that one would have voted"
        );
        assert!(!waits(vec![quarantined(), failed(), failed()]));
        assert!(!waits(vec![failed(), failed(), NodeAnswer::Granted]));

        let quarantine = |rows| {
            LostAttempt {
                rows,
                ..LostAttempt::of_nobody(3)
            }
            .quarantine()
        };
        assert_eq!(
            quarantine(vec![quarantined(), failed(), quarantined()]),
            Some((2, Duration::from_secs(9)))
        );
        assert_eq!(quarantine(vec![quarantined(), failed(), failed()]), None);
        assert_eq!(
            quarantine(vec![NodeAnswer::Granted, failed(), NodeAnswer::Granted]),
            None
        );
    }

    #[test]
    fn nodes_without_an_answer_are_not_taken_for_free() {
        let answers = [
            NodeAnswer::Held {
                left: None,
                holder: None,
                name: None,
            },
            NodeAnswer::Pending,
            NodeAnswer::Granted,
        ];
        let lost = LostAttempt {
            rows: answers.to_vec(),
            ..LostAttempt::of_nobody(3)
        };
        assert_eq!(lost.free_in(), None);
    }
}
