//! A client: its process, its view of each server, and what a message of a server counts for.

use std::cell::Cell;

use super::calls::Attempt;
use super::network::{Command, Message, Push, Round};
use super::servers::Stamp;
use super::*;
use crate::call;
use crate::error::QuarantineReason;
use crate::hold;
use crate::ids::{OwnerToken, RecordVersion};
use crate::inspection::SecretValue;
use crate::logic::quarantines::{QuarantineStart, Quarantines, VoteKind};
use crate::logic::quorum;
use crate::wire::HandedOver;

pub(super) struct Client {
    /// Of its process.
    pub(super) id: u64,
    /// No server pushes to it.
    pub(super) polls: bool,
    pub(super) stopped_until: u64,
    /// The longest that records have shown.
    pub(super) max_ttl: u64,
    pub(super) known: [Known; SERVERS_MAX],
    pub(super) attempt: Option<Attempt>,
    /// Owner tokens that were released.
    pub(super) earlier: Vec<u64>,
}

/// A server, as a client sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    quarantines: Quarantines,
    /// The steps of its clock that it has shown. The client knew the clock before the world began.
    clock_steps: u32,
    stepped_at: Option<Tick>,
    /// The first sync with the present record.
    synced_at: Option<Tick>,
}

/// All that a step of a call or a hold looks at.
pub(super) struct View {
    known: [Known; SERVERS_MAX],
    max_ttl: Duration,
    servers: usize,
    connected: NodeSet,
    notifying: usize,
    pub(super) time: u64,
    timeout: Duration,
    pause: Duration,
    random: f64,
    has_turn: bool,
    is_stopped: bool,
    /// Whether a call that yields keeps its owner, and that owner.
    reuses: bool,
    only_owner: Cell<Option<u64>>,
    /// The last number that was used.
    pub(super) last_id: Cell<u64>,
}

impl View {
    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        (0..self.servers).map(node)
    }

    /// Whether a majority can announce hand-overs.
    pub(super) fn is_notified(&self) -> bool {
        quorum(self.servers) <= self.notifying
    }

    fn quarantine(&self, node: NodeId, asked: Tick) -> Option<NodeFailure> {
        self.known[node.index()].quarantine(VoteKind::Grant, asked, self.max_ttl)
    }
}

impl call::steps::View for View {
    fn time_for_all(&self, _at: Moment) -> Option<u64> {
        Some(self.time)
    }

    fn quarantined_of(&self, nodes: NodeSet, asked: Tick) -> Vec<(NodeId, NodeFailure)> {
        let of_these = self.nodes().filter(|it| nodes.contains(*it));
        of_these
            .filter_map(|it| Some((it, self.quarantine(it, asked)?)))
            .collect()
    }

    fn notifying(&self) -> usize {
        self.notifying
    }

    fn deadline(&self, now: Tick) -> Tick {
        now + self.timeout
    }

    fn outage(&self) -> Option<Tick> {
        None
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn take_turn(&self) -> Option<Duration> {
        self.has_turn.then_some(Duration::ZERO)
    }

    fn draw(&self) -> Result<OwnerToken, String> {
        let next = self.last_id.get() + 1;
        self.last_id.set(next);
        let only = self.only_owner.get().unwrap_or(next);
        if self.reuses {
            self.only_owner.set(Some(only));
        }
        Ok(owner_token(only))
    }

    fn random(&self) -> f64 {
        self.random
    }
}

impl hold::Servers for View {
    fn voting(&self, now: Tick) -> NodeSet {
        let votes = |it: &NodeId| self.quarantine(*it, now).is_none();
        self.connected.both(self.nodes().filter(votes).collect())
    }

    fn settable(&self, now: Tick) -> NodeSet {
        let may_set = |it: &NodeId| {
            let quarantines = &self.known[it.index()].quarantines;
            quarantines.may_set(now, Some(self.max_ttl))
        };
        self.nodes().filter(may_set).collect()
    }

    fn has_stepped(&self, node: NodeId, since: Tick) -> bool {
        let stepped_at = self.known[node.index()].stepped_at;
        stepped_at.is_some_and(|it| since <= it)
    }

    fn time_for_all(&self, _now: Moment) -> Option<u64> {
        Some(self.time)
    }

    fn pause(&self, left: Duration, _now: Tick) -> Duration {
        self.pause.min(left)
    }
}

impl Known {
    fn quarantine(&self, kind: VoteKind, asked: Tick, max_ttl: Duration) -> Option<NodeFailure> {
        let remaining = self
            .quarantines
            .quarantine_remaining(kind, asked, Some(max_ttl));
        remaining.map(|(left, why)| NodeFailure::Quarantined { left, why })
    }

    /// An answer shows the server's clock.
    fn show_clock(&mut self, stamp: Stamp, seen: Tick) {
        if self.clock_steps < stamp.clock_steps {
            self.clock_steps = stamp.clock_steps;
            self.quarantines.step(seen);
            self.stepped_at = Some(seen);
        }
    }
}

pub(super) fn node(s: usize) -> NodeId {
    NodeId::new(s as u8)
}

/// The token of an owner that servers know by this number.
pub(super) fn owner_token(number: u64) -> OwnerToken {
    OwnerToken::of_value(format!("{number:032x}").as_bytes()).unwrap()
}

impl World {
    pub(super) fn new_client(&mut self) -> Client {
        Client {
            id: self.fresh(),
            polls: self.one_in(5),
            stopped_until: 0,
            max_ttl: self.ttl,
            known: [Known::default(); SERVERS_MAX],
            attempt: None,
            earlier: vec![],
        }
    }

    /// What a client sees now.
    pub(super) fn view(&mut self, c: usize) -> View {
        let servers = self.servers.len();
        let is_connected = |s: &usize| self.record_version(c, *s).is_some();
        let connected: NodeSet = (0..servers).filter(is_connected).map(node).collect();
        let client = &self.clients[c];
        let attempt = client.attempt.as_ref();
        let reuses = self.flaw == Flaw::ReusesOwner;
        let owner = attempt.map(Attempt::owner).filter(|it| reuses && *it != 0);
        View {
            known: client.known,
            max_ttl: self.span(client.max_ttl),
            servers,
            connected,
            notifying: if client.polls { 0 } else { connected.len() },
            reuses,
            only_owner: Cell::new(owner),
            is_stopped: attempt.is_some_and(|it| it.is_stopped),
            last_id: Cell::new(self.last_id),
            timeout: self.span(self.patience),
            pause: self.span(2),
            time: if self.one_in(self.wrong_clocks) {
                FAR
            } else {
                self.time_for_all()
            },
            random: self.random.f64(),
            has_turn: !self.one_in(8),
        }
    }

    /// What a client takes for the time of all servers.
    fn time_for_all(&mut self) -> u64 {
        if self.good_clocks {
            self.now
        } else {
            self.random.u64(1..9)
        }
    }

    /// Offers the next owner a token above this one.
    pub(super) fn offer(&mut self, above: u64) -> u64 {
        let time = self.time_for_all();
        token::propose(time, above).unwrap_or_default()
    }

    /// A client reads a message.
    pub(super) fn read(&mut self, c: usize, s: usize, message: Message, stamp: Stamp) {
        self.show(format_args!("{c} reads {message:?} of n{s}"));
        if let Message::Push(push) = message {
            let notice = self.judge_push(c, s, &push, stamp);
            return self.on_push(c, s, push, notice, stamp);
        }
        let now = self.tick(self.now);
        if self.flaw != Flaw::IgnoresSteps {
            self.clients[c].known[s].show_clock(stamp, now);
        }
        match message {
            Message::Synced(record_version, record) => self.on_synced(c, s, record_version, record),
            Message::Reply(tag, answer) => {
                if answer == Answer::Changed {
                    self.lines[c][s].record_version = None;
                    let sync_record = self.sync_command(c);
                    self.send(c, s, sync_record);
                }
                let answer = self.judge(c, s, tag.sent, answer);
                match tag.round {
                    Round::Call(round) => self.on_answer(c, s, tag, round, answer, stamp),
                    Round::Hold(round) => self.on_extended(c, s, tag, round, answer, stamp),
                }
            }
            Message::Push(_) => {}
        }
    }

    fn on_synced(&mut self, c: usize, s: usize, record_version: u64, record: Record) {
        let seen = self.tick(self.now);
        let line = &mut self.lines[c][s];
        let is_new = line.record_version.replace(record_version) != Some(record_version);
        let served = self.span(self.now - record.since.unwrap_or(0));
        let max_ttl = self.clients[c].max_ttl.max(record.max_ttl);
        let length = self.span(max_ttl);
        let client = &mut self.clients[c];
        client.max_ttl = max_ttl;
        let known = &mut client.known[s];
        if is_new {
            known.synced_at = Some(seen);
        }
        let began = QuarantineStart {
            seen,
            served,
            why: QuarantineReason::Restarted,
        };
        known.quarantines.begin(began, length);
    }

    /// Whether what was asked of a server at that time counts, or why not.
    fn quarantine(&self, c: usize, s: usize, kind: VoteKind, asked: u64) -> Option<NodeFailure> {
        let client = &self.clients[c];
        client.known[s].quarantine(kind, self.tick(asked), self.span(client.max_ttl))
    }

    /// The vote in an answer.
    fn judge(&self, c: usize, s: usize, sent: u64, answer: Answer) -> Answer {
        let is_set = answer == Answer::of(LockStatus::Healed);
        let kind = match &answer {
            Answer::Changed => return FAILED,
            it if it.is_extended() && self.flaw == Flaw::ExtendsInQuarantine => return answer,
            it if it.is_granted() => VoteKind::Grant,
            _ if is_set && self.flaw != Flaw::CountsSetAsKept => VoteKind::Grant,
            it if it.is_extended() => VoteKind::Extension,
            _ => return answer,
        };
        let barred = self.quarantine(c, s, kind, sent);
        barred.map_or(answer, Answer::Failed)
    }

    /// The vote in a push.
    fn judge_push(&self, c: usize, s: usize, push: &Push, stamp: Stamp) -> HandedOver {
        let known = &self.clients[c].known[s];
        let flaw = self.flaw;
        let is_same = self.lines[c][s].record_version == Some(push.record_version)
            || flaw == Flaw::IgnoresRecordVersion;
        let is_ordered = self.in_order
            || !push.reads
            || matches!(
                flaw,
                Flaw::CountsReadersInAnyOrder | Flaw::ReadersNotCompared
            );
        let has_stepped = known.clock_steps < stamp.clock_steps
            && !matches!(flaw, Flaw::PushShowsNoClock | Flaw::IgnoresSteps);
        let is_vote = push.token != 0 && is_same && is_ordered && !has_stepped;
        let synced_at = known.synced_at.unwrap_or(self.start);
        let max_ttl = self.span(self.clients[c].max_ttl);
        let left = match known.quarantine(VoteKind::Grant, synced_at, max_ttl) {
            Some(NodeFailure::Quarantined { left, .. }) => left,
            _ => Duration::ZERO,
        };
        let asked_from = match flaw {
            Flaw::IgnoresQuarantine => Some(self.start),
            Flaw::JudgesQuarantineWhenRead => {
                let barred = self.quarantine(c, s, VoteKind::Grant, self.now);
                barred.is_none().then_some(self.start)
            }
            Flaw::ForgetsEndSeenLate if left.is_zero() => Some(self.start),
            _ => synced_at.checked_add(left),
        };
        HandedOver {
            token: Some(push.token).filter(|_| is_vote),
            record_version: RecordVersion::NONE,
            life: self.unit * self.first_life,
            time: 0,
            asked_from,
            reads: push.reads,
            is_question: false,
            value: SecretValue::new(&owner_token(push.owner).to_value()),
            key: vec![],
        }
    }

    /// A push for an owner token that is not in use.
    pub(super) fn release_unknown(&mut self, c: usize, s: usize, owner: u64) {
        let caller = Caller {
            owner,
            locks: ALL,
            rule: Rule::Shared,
        };
        self.send(c, s, Command::Release(Release::of(caller)));
    }
}
