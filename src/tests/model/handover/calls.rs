//! A client's call until it holds: sends what [`Call`] decides, and brings it the answers.

use std::sync::Arc;

use super::clients::{View, node};
use super::holders::Holding;
use super::network::{Command, Push, Round, Tag};
use super::planted::is_of_acquire;
use super::servers::Stamp;
use super::*;
use crate::call::Call;
use crate::call::steps::{Ask, News, Next, TakeBack, Terms, View as _};
use crate::wire::HandedOver;

/// A call, from its first step to its release.
pub(super) struct Attempt {
    pub(super) id: u64,
    pub(super) wants: Wants,
    pub(super) call: Call,
    /// Owner tokens to which hand-overs are not given back.
    owners: Vec<u64>,
    pub(super) asked: Asked,
    /// The last raise.
    raise: Option<u32>,
    pub(super) is_stopped: bool,
    pub(super) holding: Option<Holding>,
}

/// The last ask.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) round: u32,
    pub(super) sent: u64,
    /// Servers had granted the call something before.
    pub(super) is_claim: bool,
    /// Pushes since then.
    pub(super) pushed: Vec<Pushed>,
    /// Servers that accepted it, where their answers are mixed with pushes.
    pub(super) mixed: Option<NodeSet>,
}

/// A push that was read.
#[derive(Clone)]
pub(super) struct Pushed {
    pub(super) s: usize,
    pub(super) lock: usize,
    pub(super) notice: HandedOver,
}

impl Attempt {
    /// A command of its owner about these locks.
    pub(super) fn caller(&self, owner: u64, locks: Locks) -> Caller<u64> {
        let rule = self.wants.rule();
        Caller { owner, locks, rule }
    }

    pub(super) fn owner(&self) -> u64 {
        self.call.owner.map_or(0, |it| it.token.number())
    }

    /// The locks of a grant.
    pub(super) fn locks(&self, slot: Option<u8>) -> Locks {
        match (self.wants, slot) {
            (Wants::Permit(_), Some(slot)) => ALONE[usize::from(slot)],
            (wants, _) => wants.locks(),
        }
    }

    /// What it has been granted, or pushed.
    fn has_grants(&self) -> bool {
        let granted = self.call.votes().nodes_with(Answer::is_granted);
        !granted.is_empty() || !self.asked.pushed.is_empty()
    }
}

impl World {
    pub(super) fn attempt(&mut self, c: usize) -> &mut Attempt {
        self.clients[c].attempt.as_mut().unwrap()
    }

    /// A client does something of its own accord.
    pub(super) fn act(&mut self, c: usize) {
        match &self.clients[c].attempt {
            Some(attempt) if attempt.holding.is_some() => self.act_as_holder(c),
            Some(_) => self.step_call(c),
            None => {
                if self.one_in(3) {
                    self.begin(c);
                }
            }
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
        let mut attempt = self.new_attempt(wants);
        attempt.call.admit(true);
        self.clients[c].attempt = Some(attempt);
        self.step_call(c);
    }

    fn new_attempt(&mut self, wants: Wants) -> Attempt {
        let has_slots = self.kind == Kind::Permits;
        let counts_all = matches!(self.flaw, Flaw::HoldsWithOneName | Flaw::MixesPermits);
        let patience = self.random.u64(1..4 * self.ttl);
        let until = self.one_in(8).then(|| self.tick(self.now + patience));
        let timeout = self.span(self.patience);
        let call = Call::new(Terms {
            nodes: self.servers.len(),
            rule: wants.rule(),
            ttl: self.span(self.ttl),
            margin: NO_MARGIN,
            names: Arc::default(),
            is_single: counts_all || !wants.is_several() && !has_slots,
            rounds: None,
            began: self.clocks(),
            until,
            end: until.map(|it| it + 2 * timeout),
            response_timeout: timeout,
            pauses: (self.span(1), self.span(2 * u64::from(self.calm))),
            outage_timeout: Duration::from_secs(3_600),
        });
        Attempt {
            id: self.fresh(),
            wants,
            call,
            owners: vec![],
            asked: Asked::default(),
            raise: None,
            is_stopped: false,
            holding: None,
        }
    }

    /// Begins the next call of a client. It enters the lists by the release of a lock with this
    /// token.
    pub(super) fn enter_by_release(
        &mut self,
        c: usize,
        wants: Wants,
        token: u64,
        to: NodeSet,
    ) -> Option<(usize, Member<u64>)> {
        let view = self.view(c);
        if !view.is_notified() || wants == Wants::Reads || self.one_in(2) {
            return None;
        }
        let mut attempt = self.new_attempt(wants);
        let now = self.clocks();
        let view = self.view(c);
        let draw = || view.draw();
        let (owner, since) = attempt.call.enter(token, to, view.time, draw, now)?;
        self.last_id = view.last_id.get();
        self.counts.add(Event::Enter);
        let owner = owner.token.number();
        attempt.call.set_grace(self.span(1));
        attempt.call.admit(true);
        attempt.owners.push(owner);
        attempt.asked.sent = self.now;
        self.clients[c].attempt = Some(attempt);
        let member = Member {
            since,
            owner,
            client: c,
            id: self.clients[c].id,
            reads: false,
            polls: false,
        };
        Some((wants.locks()[0], member))
    }

    /// One step of a call.
    fn step_call(&mut self, c: usize) {
        if self.one_in(200) {
            self.counts.add(Event::Leave);
            self.attempt(c).is_stopped = true;
        }
        let view = self.view(c);
        let now = self.clocks();
        let flaw = self.flaw;
        let attempt = self.attempt(c);
        let had_grants = attempt.has_grants();
        let owner = attempt.owner();
        let keeps_grants = flaw == Flaw::GrantOutlivesAsk;
        let earlier = keeps_grants.then(|| attempt.call.votes().clone());
        let next = attempt.call.next(&view, now);
        self.take_news(c, &view);
        match next {
            Next::Ask(ask) => {
                self.ask(c, &ask, had_grants);
                let is_same = ask.owner.token.number() == owner;
                if let Some(earlier) = earlier.filter(|_| is_same) {
                    self.plant_behind_ask(c, ask.round, &earlier);
                }
            }
            Next::Raise {
                round,
                owner,
                slot,
                token,
                ..
            } => {
                let attempt = self.attempt(c);
                let caller = attempt.caller(owner.number(), attempt.locks(slot));
                attempt.raise = Some(round);
                self.send_round(c, round, |tag, _| Command::Raise { tag, caller, token });
            }
            Next::TakeBack(release) => {
                if release.stays.is_some() {
                    self.counts.add(Event::Yield);
                }
                self.attempt(c).asked.pushed.clear();
                self.take_back(c, &release);
            }
            Next::Won(win) => {
                self.hold(c, *win);
                let _ = self.attempt(c).call.leave(false);
                self.take_news(c, &view);
            }
            Next::GiveUp(_) => {
                let release = self.attempt(c).call.leave(true);
                if let Some(release) = release {
                    self.take_back(c, &release);
                }
                self.clients[c].attempt = None;
            }
            Next::Sleep(_) | Next::Rest(_) | Next::AwaitTurn(_) => {}
        }
    }

    /// Notes what a step of the call has used and forgotten.
    fn take_news(&mut self, c: usize, view: &View) {
        self.last_id = view.last_id.get();
        let reuses = self.flaw == Flaw::ReusesOwner;
        let Attempt { call, owners, .. } = self.attempt(c);
        for it in std::mem::take(&mut call.news) {
            if let News::Forgotten(owner) = it {
                owners.retain(|it| *it != owner.number() || reuses);
            }
        }
    }

    fn ask(&mut self, c: usize, ask: &Ask, is_claim: bool) {
        let owner = ask.owner.token.number();
        let Client { id, polls, .. } = self.clients[c];
        let keeps_pushes = self.flaw == Flaw::PushOutlivesAsk;
        let mixes = self.flaw == Flaw::MixesAnswers && self.random.bool();
        let sent = self.now;
        let attempt = self.attempt(c);
        for owner in [ask.owner.token, ask.owner.successor] {
            if !attempt.owners.contains(&owner.number()) {
                attempt.owners.push(owner.number());
            }
        }
        let pushed = std::mem::take(&mut attempt.asked.pushed);
        attempt.asked = Asked {
            round: ask.round,
            sent,
            is_claim,
            pushed: if keeps_pushes { pushed } else { vec![] },
            mixed: mixes.then(NodeSet::default),
        };
        let wants = match attempt.wants {
            // All servers begin at the same slot.
            Wants::Permit(_) => Wants::Permit((owner % LOCKS as u64) as usize),
            wants => wants,
        };
        let me = Member {
            since: ask.since,
            owner,
            client: c,
            id,
            reads: wants == Wants::Reads,
            polls,
        };
        let taken = self.send_round(c, ask.round, |tag, record_version| Command::Acquire {
            tag,
            me,
            enters: ask.enters,
            wants,
            proposal: ask.proposal,
            record_version,
        });
        self.attempt(c).call.on_sent(ask.round, taken);
    }

    /// Sends a command of a round to all servers with which the client was synced. Returns them.
    fn send_round(
        &mut self,
        c: usize,
        round: u32,
        command: impl Fn(Tag, u64) -> Command,
    ) -> NodeSet {
        let tag = Tag {
            attempt: self.attempt(c).id,
            round: Round::Call(round),
            sent: self.now,
        };
        let now = self.clocks();
        let mut taken = NodeSet::default();
        for s in 0..self.servers.len() {
            match self.record_version(c, s) {
                Some(record_version) if self.send(c, s, command(tag, record_version)) => {
                    taken.insert(node(s));
                }
                _ => {
                    let call = &mut self.attempt(c).call;
                    call.on_answer(round, node(s), FAILED, false, now);
                }
            }
        }
        taken
    }

    /// Sends a release of what the call may have.
    fn take_back(&mut self, c: usize, release: &TakeBack) {
        let Client { id, polls, .. } = self.clients[c];
        let next = self.offer(release.above);
        let attempt = self.attempt(c);
        let locks = attempt.wants.locks();
        let reads = attempt.wants == Wants::Reads;
        let stay = release.stays.as_ref().map(|it| {
            let list = locks[usize::from(it.which.unwrap_or(0))];
            let member = Member {
                since: it.since,
                owner: it.owner.number(),
                client: c,
                id,
                reads,
                polls,
            };
            (list, member)
        });
        let caller = attempt.caller(release.owner.number(), locks);
        let command = Release {
            next,
            stay,
            yields: stay.is_some(),
            ..Release::of(caller)
        };
        self.send_release(c, command, release.to);
    }

    /// Releases an owner token; where there is no connection, as the first command of the next one.
    pub(super) fn send_release(&mut self, c: usize, release: Release<u64>, to: NodeSet) {
        for (s, line) in self.lines[c].iter_mut().enumerate() {
            if to.contains(node(s)) {
                line.commands.push_back(Command::Release(release));
            }
        }
        if release.keep.is_none() {
            let earlier = &mut self.clients[c].earlier;
            earlier.push(release.caller.owner);
            earlier.drain(..earlier.len().saturating_sub(3));
        }
    }

    /// A server has answered to a round of a call.
    pub(super) fn on_answer(
        &mut self,
        c: usize,
        s: usize,
        tag: Tag,
        round: u32,
        answer: Answer,
        stamp: Stamp,
    ) {
        let attempt = self.clients[c].attempt.as_ref();
        if attempt.is_none_or(|it| it.id != tag.attempt) {
            return;
        }
        let now = self.clocks();
        let is_acquire = is_of_acquire(&answer);
        let is_early = is_acquire && tag.sent < stamp.counts_from && answer.is_granted();
        let (round, answer) = self.plant_in_answer(c, s, round, answer);
        let attempt = self.attempt(c);
        let is_held = attempt.holding.is_some() && round == attempt.asked.round;
        let (counts, is_next) = attempt.call.on_answer(round, node(s), answer, true, now);
        if is_early && (counts || is_held) {
            self.violate(Violation::CountedInQuarantine);
        }
        self.plant_behind_answer(c, s, round);
        if is_held {
            self.step_hold(c, |_, _, _| ());
        } else if is_next && !self.one_in(4) {
            self.step_call(c);
        }
    }

    /// No answer will come from this server.
    pub(super) fn fail(&mut self, c: usize, s: usize) {
        let now = self.clocks();
        if let Some(attempt) = &mut self.clients[c].attempt {
            for round in [Some(attempt.asked.round), attempt.raise]
                .into_iter()
                .flatten()
            {
                attempt.call.on_answer(round, node(s), FAILED, true, now);
            }
        }
        self.fail_extensions(c, s);
    }

    /// A server has pushed that it handed a lock over.
    pub(super) fn on_push(
        &mut self,
        c: usize,
        s: usize,
        push: Push,
        notice: HandedOver,
        stamp: Stamp,
    ) {
        let now = self.clocks();
        let (owner, notice) = self.plant_in_push(c, s, push.owner, notice);
        let attempt = self.clients[c].attempt.as_mut();
        let Some(attempt) = attempt.filter(|it| it.owners.contains(&owner)) else {
            return self.release_unknown(c, s, push.owner);
        };
        let counted = attempt.call.nodes_that_handed_over();
        let is_next = attempt.call.on_hand_over(node(s), &notice, now.tick);
        let counted = attempt.call.nodes_that_handed_over().without(counted);
        let is_early = attempt.asked.sent < stamp.counts_from && !counted.is_empty();
        let is_several = attempt.wants.is_several();
        let is_held = attempt.holding.is_some();
        let lock = push.lock;
        attempt.asked.pushed.push(Pushed { s, lock, notice });
        if is_several {
            self.counts.add(Event::NamePushed);
        }
        if is_early {
            self.violate(Violation::CountedInQuarantine);
        }
        self.plant_behind_push(c);
        if is_held {
            self.step_hold(c, |_, _, _| ());
        } else if is_next && !self.one_in(4) {
            self.step_call(c);
        }
    }
}
