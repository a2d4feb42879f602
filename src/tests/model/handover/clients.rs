//! What a client does until its call holds: with what it reads, and of its own accord.

use super::calls::{Ask, Call, Client, Known, Phase, Push, node, until};
use super::holders::Won;
use super::network::{Command, Message};
use super::servers::Stamp;
use super::*;
use crate::logic::quarantines::VoteKind;

impl World {
    pub(super) fn new_client(&mut self) -> Client {
        Client {
            id: self.fresh(),
            polls: self.one_in(5),
            stopped_until: 0,
            max_ttl: self.ttl,
            known: [Known::default(); SERVERS_MAX],
            call: None,
            earlier: vec![],
        }
    }

    pub(super) fn call(&mut self, c: usize) -> &mut Call {
        self.clients[c].call.as_mut().unwrap()
    }

    /// A client reads a message.
    pub(super) fn read(&mut self, c: usize, s: usize, message: Message, stamp: Stamp) {
        self.show(format_args!("{c} reads {message:?} of n{s}"));
        let now = self.tick(self.now);
        let is_push = matches!(message, Message::Push(_));
        let hides_clock = self.flaw == Flaw::PushShowsNoClock && is_push;
        let client = &mut self.clients[c];
        if !hides_clock && self.flaw != Flaw::IgnoresSteps {
            client.known[s].show_clock(stamp, now);
        }
        match message {
            Message::Synced(record_version, record) => {
                self.lines[c][s].record_version = Some(record_version);
                client.max_ttl = client.max_ttl.max(record.max_ttl);
                let served = span(self.now - record.since.unwrap_or(0));
                client.known[s].synced(now, served, span(client.max_ttl), self.flaw);
            }
            Message::Reply(tag, answer) => {
                if answer == Answer::Changed {
                    self.lines[c][s].record_version = None;
                    let sync_record = self.sync_command(c);
                    self.send(c, s, sync_record);
                }
                self.on_answer(c, s, tag, answer, stamp);
            }
            Message::Push(push) => self.on_push(c, s, push, stamp),
        }
    }

    fn on_answer(&mut self, c: usize, s: usize, tag: u64, answer: Answer, stamp: Stamp) {
        let now = at(self.now);
        let Some(call) = &self.clients[c].call else {
            return;
        };
        if call.ask.tag != tag && matches!(call.phase, Phase::Holding(_)) {
            return self.on_extended(c, s, tag, answer, stamp);
        }
        let sent = call.ask.sent;
        let answer = match answer {
            Answer::Changed => FAILED,
            grant if grant.is_granted() && !self.may_vote(c, s, VoteKind::Grant, sent) => FAILED,
            answer => answer,
        };
        let is_early = sent < stamp.counts_from && answer.is_granted();
        let notices = self.random.bool();
        let is_acquire = matches!(answer, Answer::Acquire(_));
        let any_ask = self.flaw == Flaw::AnswersToEarlierAsks && is_acquire;
        let call = self.call(c);
        let is_own = match &call.phase {
            Phase::Asking => call.ask.tag == tag,
            Phase::Raising { tag: own, .. } => *own == tag,
            Phase::Holding(_) => {
                call.ask.ballot.on_late_vote(node(s), answer);
                if is_early {
                    self.violate(Violation::CountedInQuarantine);
                }
                self.step_hold(c, |_, _, _| ());
                return;
            }
        };
        if is_own && notices {
            call.seen = call.seen.max(answer.counter().unwrap_or(0));
        }
        if is_own && let Some(which) = answer.which() {
            call.waits_for = usize::from(which);
        }
        match &mut call.phase {
            Phase::Asking if is_own || any_ask => {
                let step = call.ask.ballot.on_vote(node(s), answer, now);
                if is_early && step != Step::Late {
                    self.violate(Violation::CountedInQuarantine);
                }
                match step {
                    Step::Decided(end) => self.conclude_ask(c, end),
                    Step::Wait | Step::Late => self.count_pushes(c),
                }
            }
            Phase::Raising { ballot, locks, .. } if is_own => {
                let locks = *locks;
                let step = ballot.on_vote(node(s), answer, now);
                let gone = ballot.votes().nodes_with(Answer::is_gone);
                if let Step::Decided(AcquireEnd::Won { token }) = step {
                    let until = until(sent, self.ttl).unwrap();
                    self.hold(
                        c,
                        Won {
                            token,
                            locks,
                            until,
                            road: Event::HoldByRaise,
                            pushed: None,
                            gone,
                        },
                    );
                }
            }
            _ => {}
        }
    }

    /// No answer will come from this server.
    pub(super) fn fail(&mut self, c: usize, s: usize) {
        let now = at(self.now);
        if let Some(call) = &mut self.clients[c].call
            && let Phase::Asking = call.phase
            && let Step::Decided(end) = call.ask.ballot.on_vote(node(s), FAILED, now)
        {
            self.conclude_ask(c, end);
        }
        self.fail_extensions(c, s);
    }

    fn conclude_ask(&mut self, c: usize, end: AcquireEnd) {
        let ttl = self.ttl;
        let call = self.call(c);
        let locks = match (call.wants, call.ask.ballot.slot()) {
            (Wants::Permit(_), Some(slot)) => ALONE[usize::from(slot)],
            (wants, _) => wants.locks(),
        };
        let road = match call.ask.is_claim {
            true => Event::HoldByClaim,
            false => Event::HoldByAsk,
        };
        let until = until(call.ask.sent, ttl).unwrap();
        match end {
            AcquireEnd::Won { token } => self.hold(
                c,
                Won {
                    token,
                    locks,
                    until,
                    road,
                    pushed: None,
                    gone: NodeSet::default(),
                },
            ),
            AcquireEnd::Raise { token } => self.send_raise(c, token, locks),
            AcquireEnd::Lost(_) => {}
        }
    }

    fn send_raise(&mut self, c: usize, token: u64, locks: Locks) {
        let tag = self.fresh();
        let now = at(self.now);
        let ttl = self.ttl;
        let servers = self.servers.len();
        let call = self.call(c);
        call.seen = call.seen.max(token);
        let granted = call.ask.ballot.votes().nodes_with(Answer::is_granted);
        let round = RaiseRound::new(call.wants.rule(), token, until(call.ask.sent, ttl));
        let ballot = Ballot::new(servers, round);
        call.phase = Phase::Raising { tag, locks, ballot };
        let caller = call.caller();
        for s in 0..servers {
            let command = Command::Raise { tag, caller, token };
            let is_sent = granted.contains(node(s)) && self.send(c, s, command);
            if !is_sent && let Phase::Raising { ballot, .. } = &mut self.call(c).phase {
                let _ = ballot.on_vote(node(s), FAILED, now);
            }
        }
    }

    /// Rule 8.
    fn on_push(&mut self, c: usize, s: usize, push: Push, stamp: Stamp) {
        let earlier = &self.clients[c].earlier;
        let is_earlier = self.flaw == Flaw::CountsEarlierOwners && earlier.contains(&push.owner);
        let call = self.clients[c].call.as_ref();
        let Some(call) = call.filter(|call| call.owner == push.owner || is_earlier) else {
            return self.release_unknown(c, s, push.owner);
        };
        let sent = call.ask.sent;
        let may_vote = match self.flaw {
            Flaw::IgnoresQuarantine => true,
            Flaw::JudgesQuarantineWhenRead => self.may_vote(c, s, VoteKind::Grant, self.now),
            _ => self.may_vote(c, s, VoteKind::Grant, sent),
        };
        let is_current = self.lines[c][s].record_version == Some(push.record_version);
        let is_hint = match (call.wants, self.flaw) {
            (_, Flaw::HoldsWithOneName) => false,
            (Wants::Reads, Flaw::CountsReadersInAnyOrder | Flaw::ReadersNotCompared) => false,
            (Wants::Reads, _) => !self.in_order,
            (wants, _) => wants.is_several(),
        };
        let is_vote = may_vote
            && (is_current || self.flaw == Flaw::IgnoresRecordVersion)
            && call.is_vote(s, &push, self.flaw)
            && !is_hint;
        let outlives = self.flaw == Flaw::PushOutlivesAsk && may_vote && is_current;
        // One that is no vote is a reason to claim.
        let kept = Push {
            token: if is_vote || outlives { push.token } else { 0 },
            read_at: self.now,
            ..push
        };
        if call.wants.is_several() {
            self.counts.add(Event::NamePushed);
        }
        let call = self.call(c);
        let is_asking = matches!(call.phase, Phase::Asking);
        let place = &mut call.ask.pushed[s];
        if place.is_none_or(|old| old.token < kept.token) {
            *place = Some(kept);
        }
        if is_asking && is_vote && sent < stamp.counts_from {
            self.violate(Violation::CountedInQuarantine);
        }
        self.count_pushes(c);
    }

    /// Rule 9.
    fn count_pushes(&mut self, c: usize) {
        let call = self.clients[c].call.as_ref().unwrap();
        if !matches!(call.phase, Phase::Asking) {
            return;
        }
        if let Some(pushed) = call.won_by_push(self) {
            let (locks, road) = match call.wants {
                Wants::Names(names) => (names, Event::HoldByPush),
                Wants::Reads => (ALONE[0], Event::ReaderByPush),
                Wants::Permit(_) => (ALONE[pushed.lock], Event::HoldByPush),
            };
            self.hold(
                c,
                Won {
                    token: pushed.token,
                    locks,
                    until: pushed.until,
                    road,
                    pushed: Some(pushed.by),
                    gone: NodeSet::default(),
                },
            );
        }
    }

    /// Rule 12: a push for an owner token that is not in use.
    fn release_unknown(&mut self, c: usize, s: usize, owner: u64) {
        let caller = Caller {
            owner,
            locks: ALL,
            rule: Rule::Shared,
        };
        let release = Release {
            next: self.propose(0),
            ..Release::of(caller)
        };
        self.send(c, s, Command::Release(release));
    }

    /// A client does something of its own accord.
    pub(super) fn act(&mut self, c: usize) {
        let Some(call) = &self.clients[c].call else {
            if c < self.active && self.one_in(3) {
                self.begin(c);
            }
            return;
        };
        if let Phase::Holding(_) = call.phase {
            return self.act_as_holder(c);
        }
        let servers = self.servers.len();
        let votes = call.ask.ballot.votes();
        // One in so many asks, yields or leaves.
        let [asks, yields, leaves] = if votes.open() != 0 {
            [200, 400, 600]
        } else if votes.nodes_with(|answer| *answer == FAILED).len() == servers {
            [6, 100, 200]
        } else if call.has_grants(servers) {
            [6, 9, 200]
        } else {
            [8 * self.calm, 200, 100 * self.calm]
        };
        if self.one_in(asks) {
            self.ask(c);
        } else if self.one_in(yields) {
            self.yield_to_earlier(c);
        } else if self.one_in(leaves) {
            self.counts.add(Event::Leave);
            self.end_call(c);
        }
    }

    fn begin(&mut self, c: usize) {
        let wants = match self.kind {
            Kind::Mutex => Wants::Names(ALONE[0]),
            Kind::Readers if self.random.u32(..3) == 0 => Wants::Names(ALONE[0]),
            Kind::Readers => Wants::Reads,
            Kind::Names => Wants::Names([ALONE[0], ALONE[1], ALL, ALL][self.random.usize(..4)]),
            Kind::Permits => Wants::Permit(0),
        };
        self.clients[c].call = Some(Call {
            wants,
            owner: self.fresh(),
            since: self.now,
            seen: 0,
            waits_for: wants.locks()[0],
            ask: self.new_ask(wants.rule(), 0, 0),
            phase: Phase::Asking,
        });
        self.ask(c);
    }

    fn new_ask(&mut self, rule: Rule, proposal: u64, seen: u64) -> Ask {
        let mut round = AcquireRound::new(rule, proposal, until(self.now, self.ttl));
        round.known = seen;
        Ask {
            tag: self.fresh(),
            sent: self.now,
            proposal,
            is_claim: false,
            ballot: Ballot::new(self.servers.len(), round),
            pushed: [None; SERVERS_MAX],
        }
    }

    /// Asks all servers, for the first time, again, or as a claim: with one owner token.
    fn ask(&mut self, c: usize) {
        let now = at(self.now);
        let servers = self.servers.len();
        let me = self.clients[c].member(c);
        let seen = self.call(c).seen;
        let wants = self.call(c).wants;
        let mut proposal = self.propose(seen);
        if self.one_in(self.wrong_clocks) {
            proposal = FAR;
        }
        let mut ask = self.new_ask(wants.rule(), proposal, seen);
        ask.is_claim = self.call(c).has_grants(servers);
        if self.flaw == Flaw::PushOutlivesAsk {
            ask.pushed = self.call(c).ask.pushed;
        }
        let tag = ask.tag;
        for s in 0..servers {
            let accepted = self.call(c).ask.ballot.votes().get(node(s));
            let accepted = accepted.filter(|answer| answer.is_accepted()).cloned();
            if self.flaw == Flaw::GrantOutlivesAsk
                && let Some(accepted) = accepted
            {
                let _ = ask.ballot.on_vote(node(s), accepted, now);
            }
            if let Some(record_version) = self.record_version(c, s) {
                self.send(
                    c,
                    s,
                    Command::Acquire {
                        tag,
                        me,
                        wants,
                        proposal,
                        record_version,
                    },
                );
            } else {
                let _ = ask.ballot.on_vote(node(s), FAILED, now);
            }
        }
        let call = self.call(c);
        call.ask = ask;
        call.phase = Phase::Asking;
    }

    /// Rule 11: gives back what it was granted to who began earlier, and stays in the lists with a new owner token.
    fn yield_to_earlier(&mut self, c: usize) {
        self.counts.add(Event::Yield);
        let owner = match self.flaw {
            Flaw::ReusesOwner => self.call(c).owner,
            _ => self.fresh(),
        };
        self.send_release(c, None, Some(owner));
        let now = at(self.now);
        let rule = self.call(c).wants.rule();
        let mut ask = self.new_ask(rule, 0, 0);
        for s in 0..self.servers.len() {
            let _ = ask.ballot.on_vote(node(s), held(0, 0), now);
        }
        let call = self.call(c);
        call.owner = owner;
        call.ask = ask;
        call.phase = Phase::Asking;
        if self.one_in(3) {
            self.ask(c);
        }
    }

    /// Releases the call's owner token at all servers; where there is no connection, as the first command of the next one.
    pub(super) fn send_release(&mut self, c: usize, keep: Option<usize>, stays_as: Option<u64>) {
        let me = self.clients[c].member(c);
        let call = self.call(c);
        let wants = call.wants;
        let waits_for = call.waits_for;
        let token = match &call.phase {
            Phase::Holding(holding) => holding.token,
            _ => 0,
        };
        let seen = token.max(call.seen);
        let release = Release {
            caller: Caller {
                owner: me.owner,
                locks: wants.locks(),
                rule: wants.rule(),
            },
            keep,
            raised: 0,
            next: self.propose(seen),
            stay: stays_as.map(|owner| (waits_for, Member { owner, ..me })),
        };
        for line in &mut self.lines[c] {
            line.commands.push_back(Command::Release(release));
        }
        let earlier = &mut self.clients[c].earlier;
        if keep.is_none() {
            earlier.push(me.owner);
            earlier.drain(..earlier.len().saturating_sub(3));
        }
    }

    pub(super) fn end_call(&mut self, c: usize) {
        self.send_release(c, None, None);
        self.clients[c].call = None;
    }
}
