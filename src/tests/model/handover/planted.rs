//! Planted mistakes around the machines: what goes into a call is not what it should be.

use super::calls::Pushed;
use super::clients::{node, owner_token};
use super::*;
use crate::inspection::SecretValue;
use crate::logic::ballot::Votes;
use crate::wire::HandedOver;

/// Whether it answers an acquire; a call gets answers to raises, too.
pub(super) fn is_of_acquire(answer: &Answer) -> bool {
    use LockStatus::{NotOurs, NotRaised, Raised};
    !matches!(answer.status(), None | Some(Raised | NotRaised | NotOurs))
}

fn held(counter: u64) -> Answer {
    Answer::Lock(LockReply {
        queued: true,
        ..LockReply::new(LockStatus::Held, counter)
    })
}

impl World {
    /// The round to which an answer belongs, and the answer.
    pub(super) fn plant_in_answer(
        &mut self,
        c: usize,
        s: usize,
        round: u32,
        mut answer: Answer,
    ) -> (u32, Answer) {
        let flaw = self.flaw;
        let attempt = self.attempt(c);
        let reads = attempt.wants == Wants::Reads;
        let asked = &mut attempt.asked;
        if flaw == Flaw::AnswersToEarlierAsks && is_of_acquire(&answer) {
            return (asked.round, answer);
        }
        let is_not_compared = match flaw {
            Flaw::PushNotCompared => true,
            Flaw::ReadersNotCompared => reads,
            _ => false,
        };
        if let Answer::Lock(reply) = &mut answer
            && matches!(reply.status, LockStatus::Held | LockStatus::HeldByReaders)
            && is_not_compared
        {
            reply.counter = Some(0);
        } else if answer.is_accepted()
            && round == asked.round
            && let Some(mixed) = &mut asked.mixed
        {
            mixed.insert(node(s));
            answer = held(0);
        }
        (round, answer)
    }

    /// Grants from before an ask count for it.
    pub(super) fn plant_behind_ask(&mut self, c: usize, round: u32, earlier: &Votes) {
        let now = self.clocks();
        let call = &mut self.attempt(c).call;
        for (node, answer) in earlier.places() {
            if let Some(answer) = answer.filter(|it| it.is_accepted()) {
                call.on_answer(round, node, answer.clone(), true, now);
            }
        }
    }

    /// Pushes from before an ask come again behind its answer.
    pub(super) fn plant_behind_answer(&mut self, c: usize, s: usize, round: u32) {
        if self.flaw != Flaw::PushOutlivesAsk {
            return;
        }
        let now = self.tick(self.now);
        let attempt = self.attempt(c);
        if round == attempt.asked.round {
            for it in attempt.asked.pushed.iter().filter(|it| it.s == s) {
                attempt.call.on_hand_over(node(s), &it.notice, now);
            }
        }
    }

    /// The owner of a push, and the push.
    pub(super) fn plant_in_push(
        &mut self,
        c: usize,
        s: usize,
        mut owner: u64,
        mut notice: HandedOver,
    ) -> (u64, HandedOver) {
        let (now, clocks) = (self.now, self.clocks());
        let (unit, ttl, first_life) = (self.unit, self.ttl, self.first_life);
        let flaw = self.flaw;
        let client = &mut self.clients[c];
        let Some(attempt) = &mut client.attempt else {
            return (owner, notice);
        };
        let asked = &attempt.asked;
        match flaw {
            Flaw::LeaseFromPush => notice.life = unit * (now - asked.sent + first_life),
            Flaw::LeaseOfFullTtl => notice.life = unit * ttl,
            Flaw::CountsEarlierOwners if client.earlier.contains(&owner) => {
                owner = attempt.owner();
                notice.value = SecretValue::new(&owner_token(owner).to_value());
            }
            Flaw::PushBeforeAnswer if attempt.call.votes().get(node(s)).is_none() => {
                let refusal = held(0);
                let call = &mut attempt.call;
                call.on_answer(asked.round, node(s), refusal, true, clocks);
            }
            Flaw::MixesTokens => {
                let first = asked.pushed.iter().find_map(|it| it.notice.token);
                notice.token = notice.token.and(first.or(notice.token));
            }
            _ => {}
        }
        (owner, notice)
    }

    /// Servers that have accepted the ask count as if they had pushed the same.
    pub(super) fn plant_behind_push(&mut self, c: usize) {
        let now = self.tick(self.now);
        let attempt = self.attempt(c);
        let Some(Pushed { notice, .. }) = attempt.asked.pushed.last() else {
            return;
        };
        for s in (0..SERVERS_MAX).map(node) {
            if attempt.asked.mixed.is_some_and(|it| it.contains(s)) {
                attempt.call.on_hand_over(s, notice, now);
            }
        }
    }
}
