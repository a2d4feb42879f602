//! A client's state: its call, the answers to its last ask, the pushes since then, and the quarantines of servers.

use super::holders::Holding;
use super::servers::Stamp;
use super::*;
use crate::answer::{self, RecordReply};
use crate::error::QuarantineReason;
use crate::logic::lease;
use crate::logic::quarantines::{QuarantineStart, Quarantines, VoteKind};

pub(super) struct Client {
    /// Of its process.
    pub(super) id: u64,
    /// No server pushes to it.
    pub(super) polls: bool,
    pub(super) stopped_until: u64,
    /// The longest that records have shown.
    pub(super) max_ttl: u64,
    pub(super) known: [Known; SERVERS_MAX],
    pub(super) call: Option<Call>,
    /// Owner tokens that were released.
    pub(super) earlier: Vec<u64>,
}

/// A server, as a client sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) quarantines: Quarantines,
    /// The steps of its clock that it has shown. The client has seen the clock before the world began.
    clock_steps: u32,
    pub(super) stepped_at: Option<Tick>,
}

/// A call, from its first ask to its release.
pub(super) struct Call {
    pub(super) wants: Wants,
    pub(super) owner: u64,
    pub(super) since: u64,
    /// The largest counter that it uses for proposals.
    pub(super) seen: u64,
    /// The name in whose lists it waits.
    pub(super) waits_for: usize,
    pub(super) ask: Ask,
    pub(super) phase: Phase,
}

/// The last ask, or a yield. A yield stands for an ask that every server has answered with "held" and no counter: servers
/// get its owner token with it, so every push for that token is younger.
pub(super) struct Ask {
    pub(super) tag: u64,
    pub(super) sent: u64,
    pub(super) proposal: u64,
    /// Servers had granted the call something before.
    pub(super) is_claim: bool,
    pub(super) ballot: Ballot<AcquireRound>,
    pub(super) pushed: [Option<Push>; SERVERS_MAX],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Push {
    pub(super) owner: u64,
    /// 0: the server's counter is not below what was offered.
    pub(super) token: u64,
    /// The name or permit.
    pub(super) lock: usize,
    pub(super) record_version: u64,
    pub(super) read_at: u64,
}

#[expect(clippy::large_enum_variant, reason = "most phases are holds")]
pub(super) enum Phase {
    Asking,
    Raising {
        tag: u64,
        /// The permit that a majority granted.
        locks: Locks,
        ballot: Ballot<RaiseRound>,
    },
    Holding(Holding),
}

/// A majority of pushes.
pub(super) struct Pushed {
    pub(super) token: u64,
    pub(super) lock: usize,
    pub(super) until: Moment,
    pub(super) by: NodeSet,
}

pub(super) fn node(s: usize) -> NodeId {
    NodeId::new(s as u8)
}

pub(super) fn until(sent: u64, life: u64) -> Option<Moment> {
    lease::use_until(at(sent), span(life), Duration::ZERO)
}

impl Client {
    /// The call as servers list it.
    pub(super) fn member(&self, client: usize) -> Member<u64> {
        let call = self.call.as_ref().unwrap();
        Member {
            since: call.since,
            owner: call.owner,
            client,
            id: self.id,
            reads: call.wants == Wants::Reads,
            polls: self.polls,
        }
    }
}

impl Call {
    pub(super) fn caller(&self) -> Caller<u64> {
        let locks = match &self.phase {
            Phase::Asking => self.wants.locks(),
            Phase::Raising { locks, .. } | Phase::Holding(Holding { locks, .. }) => locks,
        };
        let owner = self.owner;
        let rule = self.wants.rule();
        Caller { owner, locks, rule }
    }

    fn answer(&self, s: usize) -> Option<&Answer> {
        self.ask.ballot.votes().get(node(s))
    }

    /// The counter that a server showed when it refused what was asked last.
    fn refused_with(&self, s: usize) -> Option<u64> {
        match self.answer(s) {
            Some(Answer::Acquire(
                AcquireReply::Held { counter, .. } | AcquireReply::HeldByReaders { counter, .. },
            )) => Some(*counter),
            _ => None,
        }
    }

    /// Whether a server has granted it something, or pushed.
    pub(super) fn has_grants(&self, servers: usize) -> bool {
        (0..servers)
            .any(|s| self.ask.pushed[s].is_some() || self.answer(s).is_some_and(Answer::is_granted))
    }

    /// Rule 8, as far as it is about what was answered: the push is younger than the ask.
    pub(super) fn is_vote(&self, s: usize, push: &Push, flaw: Flaw) -> bool {
        let is_compared = match flaw {
            Flaw::PushNotCompared => false,
            Flaw::ReadersNotCompared => self.wants != Wants::Reads,
            _ => true,
        };
        match self.refused_with(s) {
            _ if push.token == 0 => false,
            Some(_) if !is_compared => true,
            Some(counter) if self.wants == Wants::Reads => counter <= push.token,
            Some(counter) => counter < push.token,
            None if self.answer(s).is_none() => flaw == Flaw::PushBeforeAnswer,
            None => false,
        }
    }

    /// Rule 9: the first token that a majority has pushed.
    pub(super) fn won_by_push(&self, world: &World) -> Option<Pushed> {
        let flaw = world.flaw;
        let votes = || {
            (0..world.servers.len()).filter_map(|s| {
                let push = self.ask.pushed[s].filter(|push| self.is_vote(s, push, flaw))?;
                Some((s, push))
            })
        };
        let is_same = |one: &Push, other: &Push| {
            (one.token == other.token || flaw == Flaw::MixesTokens)
                && (one.lock == other.lock || flaw == Flaw::MixesPermits)
        };
        votes().find_map(|(_, one)| {
            let same = || votes().filter(|(_, push)| is_same(push, &one));
            let token = same().map(|it| it.1.token).max().unwrap();
            let token = match flaw {
                Flaw::MixesAnswers => token.max(self.ask.proposal),
                _ => token,
            };
            let life = match flaw {
                Flaw::LeaseOfFullTtl => world.ttl,
                _ => world.first_life,
            };
            let sent = match flaw {
                Flaw::LeaseFromPush => same().map(|it| it.1.read_at).min().unwrap(),
                _ => self.ask.sent,
            };
            let until = until(sent, life);
            let round = AcquireRound::new(self.wants.rule(), token, until);
            let mut ballot = Ballot::new(world.servers.len(), round);
            let now = at(world.now);
            for s in 0..world.servers.len() {
                let answer = self.answer(s);
                if same().all(|it| it.0 != s)
                    && let Some(answer) = answer
                {
                    let counts = flaw == Flaw::MixesAnswers && answer.is_accepted();
                    let vote = match answer.counter() {
                        _ if counts => answer.clone(),
                        Some(counter) => held(counter, 0),
                        None => FAILED,
                    };
                    let _ = ballot.on_vote(node(s), vote, now);
                }
            }
            for (s, _) in same() {
                let _ = ballot.on_vote(node(s), self.as_answer(token, one.lock), now);
            }
            let by = ballot.votes().nodes_with(Answer::is_granted);
            match ballot.end() {
                Some(AcquireEnd::Won { token }) => Some(Pushed {
                    token,
                    lock: one.lock,
                    until: until?,
                    by,
                }),
                _ => None,
            }
        })
    }

    /// The grant that a push stands for.
    fn as_answer(&self, token: u64, lock: usize) -> Answer {
        Answer::Acquire(match self.wants {
            Wants::Names(_) => AcquireReply::Accepted,
            Wants::Reads => AcquireReply::Shared { counter: token },
            Wants::Permit(_) => AcquireReply::Slot {
                slot: lock as u8,
                counter: None,
            },
        })
    }
}

impl Known {
    /// The server has been synced.
    ///
    /// A quarantine that was over by then is stored as of just before its end: an ask from before that end does not count.
    /// An answer is read before the next sync, so only a push can come so late.
    pub(super) fn synced(&mut self, seen: Tick, served: Duration, max_ttl: Duration, flaw: Flaw) {
        let is_kept = flaw != Flaw::ForgetsEndSeenLate;
        let over = match served.checked_sub(max_ttl) {
            Some(over) if is_kept => over + span(1),
            _ => Duration::ZERO,
        };
        let shown = RecordReply::of(answer::Record::Kept, served - over);
        let began = QuarantineStart {
            seen: seen - over,
            served: shown.served,
            why: QuarantineReason::Restarted,
        };
        self.quarantines.begin(began, max_ttl);
    }

    /// A message shows the server's clock.
    pub(super) fn show_clock(&mut self, stamp: Stamp, seen: Tick) {
        if self.clock_steps < stamp.clock_steps {
            self.clock_steps = stamp.clock_steps;
            self.quarantines.step(seen);
            self.stepped_at = Some(seen);
        }
    }
}

impl World {
    /// Whether what was asked of a server at that time counts.
    pub(super) fn may_vote(&self, c: usize, s: usize, asks: VoteKind, asked: u64) -> bool {
        let client = &self.clients[c];
        let left = client.known[s].quarantines.quarantine_remaining(
            asks,
            self.tick(asked),
            Some(span(client.max_ttl)),
        );
        left.is_none()
    }
}
