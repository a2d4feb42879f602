//! What a client does while its call holds: what the machine of its held lock decides.

use super::calls::{Known, Phase, node};
use super::network::Command;
use super::servers::Stamp;
use super::*;
use crate::config::Margin;
use crate::hold::promises::Promise;
use crate::hold::{Extension, Hold, News, Servers, Terms};
use crate::logic::quarantines::VoteKind;

/// A held lock.
pub(super) struct Holding {
    pub(super) locks: Locks,
    pub(super) token: u64,
    hold: Hold,
    /// Servers whose hand-overs have won it.
    pushed: Option<NodeSet>,
    /// Servers that have lost the key since their grant.
    gone: NodeSet,
    sent: Vec<SentExtension>,
    /// The first extension that was sent after a writer with a larger token had won.
    outdated: Option<u64>,
}

#[derive(Clone, Copy)]
struct SentExtension {
    tag: u64,
    extension: Extension,
    /// Servers that may still answer.
    open: NodeSet,
}

/// What a call has won, and by what.
pub(super) struct Won {
    pub(super) token: u64,
    pub(super) locks: Locks,
    pub(super) until: Moment,
    pub(super) road: Event,
    pub(super) pushed: Option<NodeSet>,
    pub(super) gone: NodeSet,
}

/// The servers, as a client sees them.
pub(super) struct View {
    voting: NodeSet,
    settable: NodeSet,
    stepped_at: [Option<Tick>; SERVERS_MAX],
    time: u64,
}

impl Servers for View {
    fn voting(&self, _now: Tick) -> NodeSet {
        self.voting
    }

    fn settable(&self, _now: Tick) -> NodeSet {
        self.settable
    }

    fn has_stepped(&self, node: NodeId, since: Tick) -> bool {
        self.stepped_at[node.index()].is_some_and(|it| since <= it)
    }

    fn time_for_all(&self, _now: Moment) -> Option<u64> {
        Some(self.time)
    }

    fn pause(&self, left: Duration, _now: Tick) -> Duration {
        span(2).min(left)
    }
}

impl World {
    fn view(&self, c: usize) -> View {
        let client = &self.clients[c];
        let now = self.tick(self.now);
        let max_ttl = Some(span(client.max_ttl));
        let servers = 0..self.servers.len();
        let votes = |s: &usize| {
            self.record_version(c, *s).is_some() && self.may_vote(c, *s, VoteKind::Grant, self.now)
        };
        let may_set = |s: &usize| client.known[*s].quarantines.may_set(now, max_ttl);
        View {
            voting: servers.clone().filter(votes).map(node).collect(),
            settable: servers.filter(may_set).map(node).collect(),
            stepped_at: client.known.map(|Known { stepped_at, .. }| stepped_at),
            time: self.now,
        }
    }

    fn holding(&mut self, c: usize) -> Option<&mut Holding> {
        match &mut self.clients[c].call.as_mut()?.phase {
            Phase::Holding(holding) => Some(holding),
            _ => None,
        }
    }

    /// A call has won.
    pub(super) fn hold(&mut self, c: usize, won: Won) {
        let Won {
            token,
            locks,
            until,
            road,
            pushed,
            gone,
        } = won;
        self.show(format_args!("{c} holds {locks:?} with {token}: {road:?}"));
        self.counts.add(road);
        let now = at(self.now);
        let renewed = self.random.bool();
        let sent = self.call(c).ask.sent;
        let grant = Promise {
            round: 0,
            sent: Now {
                moment: at(sent),
                tick: self.tick(sent),
            },
            until,
            number: token,
        };
        let terms = Terms {
            nodes: self.servers.len(),
            ttl: span(self.ttl),
            margin: Margin {
                share: 0.0,
                fixed: Duration::ZERO,
            },
            renewed,
            hold_until: self
                .one_in(8)
                .then(|| at(sent + self.random.u64(..3 * self.ttl))),
            grant,
            response_timeout: span(10),
        };
        let reached = (0..self.servers.len()).map(node).collect();
        let call = self.call(c);
        let wants = call.wants;
        call.phase = Phase::Holding(Holding {
            locks,
            token,
            hold: Hold::new(terms, pushed.is_some(), reached, now),
            pushed,
            gone,
            sent: vec![],
            outdated: None,
        });
        self.step_hold(c, |_, _, _| ());
        for lock in locks.iter().copied() {
            let last_token = self.last_tokens[lock];
            let is_in_order = match wants {
                Wants::Reads => last_token <= token,
                _ => last_token.max(self.last_numbers[lock]) < token,
            };
            // Where a key vanished, an older grant may be read late.
            if !is_in_order && self.orders_tokens() && self.vanishes == 0 {
                self.violate(Violation::OutOfOrder);
            }
            let last = match wants {
                Wants::Reads => &mut self.last_numbers[lock],
                _ => &mut self.last_tokens[lock],
            };
            *last = token.max(*last);
        }
        if wants == Wants::Permit(0) {
            self.send_release(c, Some(locks[0]), None);
        }
    }

    /// Takes the grants that have come in since, then steps, and checks what came out.
    pub(super) fn step_hold<T>(
        &mut self,
        c: usize,
        step: impl FnOnce(&mut Hold, Now, &View) -> T,
    ) -> Option<T> {
        let now = self.clocks();
        let view = self.view(c);
        let call = self.clients[c].call.as_mut()?;
        let Phase::Holding(holding) = &mut call.phase else {
            return None;
        };
        let slot = (call.wants == Wants::Permit(0)).then_some(holding.locks[0] as u8);
        for (node, answer) in call.ask.ballot.votes().places() {
            let is_pushed = holding.pushed.is_some_and(|it| it.contains(node));
            let is_grant =
                |it: &Answer| it.is_granted() && it.slot() == slot && !holding.gone.contains(node);
            if let Some(answer) = answer {
                let is_grant = is_pushed || is_grant(answer);
                let hold = &mut holding.hold;
                hold.on_grant(node, answer, is_grant, false, now.moment);
            }
        }
        let result = step(&mut holding.hold, now, &view);
        let news = std::mem::take(&mut holding.hold.news);
        let (locks, token) = (holding.locks, holding.token);
        let is_held = holding.hold.left(now.moment).is_ok();
        let outdated = holding.outdated;
        let is_outdated = outdated.is_some_and(|it| it <= holding.hold.promises.round());
        for it in news {
            self.show(format_args!("{c}: {it:?}"));
            match it {
                News::Extended { .. } => {
                    self.counts.add(Event::Extension);
                    let is_newer = self.vanishes == 0 && self.is_overtaken(locks, token);
                    if (is_newer || is_outdated) && self.orders_tokens() {
                        self.violate(Violation::OutOfOrder);
                    }
                }
                News::Healed(_) => self.counts.add(Event::Set),
                News::Lost(_) => self.counts.add(Event::Lost),
                _ => {}
            }
        }
        if is_held && self.vanishes == 0 {
            self.check_alone(c, locks);
        }
        Some(result)
    }

    /// Whether somebody with a larger number than this token has won since.
    fn is_overtaken(&self, locks: Locks, token: u64) -> bool {
        locks.iter().any(|lock| token < self.last_tokens[*lock])
    }

    /// What this client's call holds now.
    fn holds(&self, c: usize) -> Option<(Locks, Wants)> {
        let call = self.clients[c].call.as_ref()?;
        match &call.phase {
            Phase::Holding(it) if it.hold.left(at(self.now)).is_ok() => {
                Some((it.locks, call.wants))
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
            0..2 => self.extend_hold(c, true),
            2..6 => self.extend_hold(c, false),
            6..8 => {
                let _ = self.step_hold(c, |hold, now, _| hold.release(now.moment));
                self.release_hold(c);
            }
            _ => {}
        }
    }

    fn release_hold(&mut self, c: usize) {
        let caller = self.call(c).caller();
        let number = self.call(c).seen;
        self.end_call(c);
        if self.flaw == Flaw::ExtendsBehindRelease {
            for s in 0..self.servers.len() {
                if let Some(record_version) = self.record_version(c, s) {
                    let command = Command::Extend {
                        tag: 0,
                        caller,
                        number,
                        life: self.ttl,
                        sets: true,
                        record_version,
                    };
                    self.send(c, s, command);
                }
            }
        }
    }

    /// An extension by the holder, or what the machine does by itself.
    fn extend_hold(&mut self, c: usize, is_asked_for: bool) {
        let ttl = span(self.ttl);
        let extension = self.step_hold(c, |hold, now, servers| {
            if is_asked_for {
                hold.extend(ttl, now, now.tick + span(10), servers).ok()
            } else {
                hold.on_due(now, servers)
            }
        });
        let Some(Some(extension)) = extension else {
            return;
        };
        let tag = self.fresh();
        let caller = self.call(c).caller();
        let Extension {
            promise,
            ttl,
            to,
            sets,
            ..
        } = extension;
        let mut taken = NodeSet::default();
        let mut refused = vec![];
        for s in (0..self.servers.len()).filter(|s| to.contains(node(*s))) {
            let is_sent = self.record_version(c, s).is_some_and(|record_version| {
                let command = Command::Extend {
                    tag,
                    caller,
                    number: promise.number,
                    life: ttl.as_millis() as u64,
                    sets: sets.contains(node(s)),
                    record_version,
                };
                self.send(c, s, command)
            });
            if is_sent {
                taken.insert(node(s));
            } else {
                refused.push(s);
            }
        }
        let open = taken;
        let holding = self.holding(c);
        let overtaken = holding.map(|it| (it.locks, it.token));
        let overtaken = overtaken.is_some_and(|it| self.is_overtaken(it.0, it.1));
        let Some(holding) = self.holding(c) else {
            return;
        };
        holding.sent.push(SentExtension {
            tag,
            extension,
            open,
        });
        holding.hold.on_sent(&extension, taken);
        if overtaken {
            holding.outdated.get_or_insert(promise.round);
        }
        for s in refused {
            self.deliver(c, s, extension, FAILED);
        }
    }

    fn deliver(&mut self, c: usize, s: usize, extension: Extension, answer: Answer) {
        let flaw = self.flaw;
        let servers = self.servers.len();
        let mut extension = extension;
        if flaw == Flaw::PromiseFromAnswer {
            let sent = self.clocks();
            let until = sent.moment.checked_add(extension.ttl).unwrap();
            extension.promise = Promise {
                sent,
                until,
                ..extension.promise
            };
        }
        let _ = self.step_hold(c, |hold, now, view| {
            let now = match flaw {
                Flaw::RevivedByAnswer => extension.promise.sent,
                _ => now,
            };
            let is_enough = flaw == Flaw::ExtendsAlone && answer.is_extended();
            for other in (0..servers).filter(|it| is_enough && *it != s) {
                hold.on_answer(&extension, node(other), &answer, now, view);
            }
            hold.on_answer(&extension, node(s), &answer, now, view);
        });
    }

    /// A server has answered to an extension.
    pub(super) fn on_extended(
        &mut self,
        c: usize,
        s: usize,
        tag: u64,
        answer: Answer,
        stamp: Stamp,
    ) {
        let Some(extension) = self.answered(c, s, |it| it.tag == tag).pop() else {
            return;
        };
        // When the extension was sent, on the world's clock.
        let sent = extension.promise.sent.tick.duration_since(self.start);
        let sent = sent.as_millis() as u64;
        let is_set = answer == Answer::Extend(ExtendReply::Healed);
        let kind = match is_set && self.flaw != Flaw::CountsSetAsKept {
            true => VoteKind::Grant,
            false => VoteKind::Extension,
        };
        let is_barred = answer.is_extended()
            && self.flaw != Flaw::ExtendsInQuarantine
            && !self.may_vote(c, s, kind, sent);
        let answer = match answer {
            Answer::Changed => FAILED,
            _ if is_barred => FAILED,
            answer => answer,
        };
        if is_set && answer != FAILED && sent < stamp.counts_from {
            self.violate(Violation::CountedInQuarantine);
        }
        self.deliver(c, s, extension, answer);
    }

    /// No answer will come from this server to any extension.
    pub(super) fn fail_extensions(&mut self, c: usize, s: usize) {
        for extension in self.answered(c, s, |_| true) {
            self.deliver(c, s, extension, FAILED);
        }
    }

    /// Removes a server from those that may still answer such extensions.
    fn answered(
        &mut self,
        c: usize,
        s: usize,
        is_such: impl Fn(&SentExtension) -> bool,
    ) -> Vec<Extension> {
        let Some(holding) = self.holding(c) else {
            return vec![];
        };
        let mut found = vec![];
        for it in &mut holding.sent {
            if it.open.contains(node(s)) && is_such(it) {
                it.open.remove(node(s));
                found.push(it.extension);
            }
        }
        holding.sent.retain(|it| !it.open.is_empty());
        found
    }
}
