//! What a client does while its call holds.

use super::calls::{Extension, Hold, Phase, node, until};
use super::network::Command;
use super::servers::Wants;
use super::*;
use crate::ids::NodeSet;
use crate::logic::lease::{Extended, Lease};
use crate::logic::quarantines::VoteKind;
use crate::logic::tally::{ExtendEnd, ExtendRound};

impl World {
    /// A call has won.
    pub(super) fn hold(
        &mut self,
        c: usize,
        token: u64,
        locks: Locks,
        until: Option<Moment>,
        road: Event,
    ) {
        self.show(format_args!("{c} holds {locks:?} with {token}: {road:?}"));
        self.counts.add(road);
        let call = self.call(c);
        let wants = call.wants;
        call.phase = Phase::Holding(Hold {
            locks,
            token,
            number: token,
            lease: Lease::new(until.unwrap(), None, true),
            extension: None,
        });
        self.check_alone(c, locks);
        for lock in locks.iter().copied() {
            let last_token = self.last_tokens[lock];
            let is_in_order = match wants {
                Wants::Reads => last_token <= token,
                _ => last_token.max(self.last_numbers[lock]) < token,
            };
            if !is_in_order && self.orders_tokens() {
                self.violate(Violation::OutOfOrder);
            }
            let last = match wants {
                Wants::Reads => &mut self.last_numbers[lock],
                _ => &mut self.last_tokens[lock],
            };
            *last = token.max(*last);
        }
        if wants == Wants::Permit {
            self.send_release(c, Some(locks[0]), None);
        }
    }

    /// What this client's call holds now, if its lease is not over.
    fn holds(&self, c: usize) -> Option<(Locks, Wants)> {
        let call = self.clients[c].call.as_ref()?;
        match &call.phase {
            Phase::Holding(hold) if hold.lease.valid_until(at(self.now)).is_ok() => {
                Some((hold.locks, call.wants))
            }
            _ => None,
        }
    }

    /// Nobody else holds what this client holds from now on.
    fn check_alone(&mut self, c: usize, locks: Locks) {
        let reads = self.call(c).wants == Wants::Reads;
        for other in (0..CLIENTS).filter(|other| *other != c) {
            let Some((others, wants)) = self.holds(other) else {
                continue;
            };
            let both_read = reads && wants == Wants::Reads;
            if !both_read && others.iter().any(|lock| locks.contains(lock)) {
                self.violate(Violation::TwoHold);
            }
        }
    }

    pub(super) fn act_as_holder(&mut self, c: usize) {
        if self.holds(c).is_none() {
            self.counts.add(Event::LeaseOver);
            return self.end_call(c);
        }
        match self.random.u32(..12) {
            0..4 => self.extend_hold(c),
            4..8 => self.end_call(c),
            _ => {}
        }
    }

    /// Rule 14, and all later extensions.
    fn extend_hold(&mut self, c: usize) {
        let tag = self.fresh();
        let sent = self.now;
        let ballot = Ballot::new(self.servers.len(), ExtendRound);
        let call = self.call(c);
        let caller = call.caller();
        let Phase::Holding(hold) = &mut call.phase else {
            return;
        };
        hold.extension = Some(Extension { tag, sent, ballot });
        let token = hold.number;
        for s in 0..self.servers.len() {
            self.send_extension(c, s, |record_version| Command::Extend {
                tag,
                caller,
                token,
                heals: false,
                record_version,
            });
        }
    }

    fn send_extension(&mut self, c: usize, s: usize, command: impl Fn(u32) -> Command) {
        if let Some(record_version) = self.record_version(c, s) {
            self.send(c, s, command(record_version));
        }
    }

    /// A server has answered to an extension.
    pub(super) fn on_extended(&mut self, c: usize, s: usize, tag: u32, answer: Answer) {
        let now = at(self.now);
        let Some(call) = &self.clients[c].call else {
            return;
        };
        let Phase::Holding(Hold {
            extension: Some(extension),
            ..
        }) = &call.phase
        else {
            return;
        };
        let sent = extension.sent;
        if extension.tag != tag {
            return;
        }
        let is_barred = answer.is_extended() && !self.may_vote(c, s, VoteKind::Extension, sent);
        let answer = if is_barred { FAILED } else { answer };
        let is_enough = self.flaw == Flaw::ExtendsAlone && answer.is_extended();
        let new_until = until(sent, self.ttl);
        let call = self.call(c);
        let reads = call.wants == Wants::Reads;
        let caller = call.caller();
        let Phase::Holding(hold) = &mut call.phase else {
            return;
        };
        if reads {
            hold.number = hold.number.max(answer.counter().unwrap_or(0));
        }
        let number = hold.number;
        let token = hold.token;
        let ballot = &mut hold.extension.as_mut().unwrap().ballot;
        let is_gone = answer.is_gone();
        let end = match ballot.on_vote(node(s), answer, now) {
            Step::Decided(_) | Step::Wait if is_enough => Some(ExtendEnd::Confirmed),
            Step::Decided(end) => Some(end),
            Step::Wait | Step::Late => None,
        };
        let is_confirmed = ballot.end() == Some(ExtendEnd::Confirmed);
        let gone = match end {
            Some(_) => ballot.votes().nodes_with(Answer::is_gone),
            None => [node(s)].into_iter().filter(|_| is_gone).collect(),
        };
        let is_longer = end == Some(ExtendEnd::Confirmed)
            && hold.lease.on_extended(new_until.unwrap(), now) == Extended::Longer;
        if is_longer {
            self.counts.add(Event::Extension);
            self.check_alone(c, caller.locks);
            let last = caller.locks.iter().map(|lock| self.last_tokens[*lock]);
            if last.max() > Some(token) && self.orders_tokens() {
                self.violate(Violation::OutOfOrder);
            }
        }
        if end == Some(ExtendEnd::Gone) {
            self.end_call(c);
        } else if is_confirmed {
            self.heal(c, gone, |record_version| Command::Extend {
                tag: 0,
                caller,
                token: number,
                heals: true,
                record_version,
            });
        }
    }

    /// Sets again what is gone at these servers.
    fn heal(&mut self, c: usize, gone: NodeSet, command: impl Fn(u32) -> Command) {
        let now = self.tick(self.now);
        let max_ttl = Some(span(self.clients[c].max_ttl));
        for s in 0..self.servers.len() {
            let quarantines = self.clients[c].known[s].quarantines;
            if gone.contains(node(s)) && quarantines.may_heal(now, max_ttl) {
                self.counts.add(Event::Heal);
                self.send_extension(c, s, &command);
            }
        }
    }
}
