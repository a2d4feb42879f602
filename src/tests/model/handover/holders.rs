//! A client's held lock: sends what [`Hold`] decides, brings it the answers, and checks it against
//! all others.

use super::calls::Attempt;
use super::clients::{View, node};
use super::network::{Command, Round, Tag};
use super::servers::Stamp;
use super::*;
use crate::call::steps::Win;
use crate::hold::promises::Promise;
use crate::hold::{Extension, Hold, News, Terms};

/// A held lock.
pub(super) struct Holding {
    locks: Locks,
    win: Win,
    hold: Hold,
    sent: Vec<SentExtension>,
    /// The first extension that was sent after a writer with a larger token had won.
    outdated: Option<u64>,
}

#[derive(Clone, Copy)]
struct SentExtension {
    extension: Extension,
    /// Servers that may still answer.
    open: NodeSet,
}

impl World {
    fn holding(&mut self, c: usize) -> Option<&mut Holding> {
        self.clients[c].attempt.as_mut()?.holding.as_mut()
    }

    /// A call has won.
    pub(super) fn hold(&mut self, c: usize, win: Win) {
        let now = self.moment();
        let renewed = self.random.bool();
        let longer = self.random.u64(..2 * self.ttl);
        let max_hold = self.one_in(8).then(|| self.span(self.ttl + longer));
        let ttl = self.span(self.ttl);
        let terms = Terms {
            nodes: self.servers.len(),
            ttl,
            margin: NO_MARGIN,
            renewed,
            hold_until: max_hold.and_then(|it| win.sent.moment.checked_add(it)),
            grant: Promise {
                round: 0,
                sent: win.sent,
                until: win.use_until,
                number: win.token,
            },
            response_timeout: self.span(10),
        };
        let attempt = self.attempt(c);
        let (wants, id) = (attempt.wants, win.owner.number());
        let first = attempt.asked.pushed.first().map(|it| it.lock);
        let locks = match wants {
            // Permits that were pushed count with a mistake only.
            Wants::Permit(_) if win.slot.is_none() => ALONE[first.unwrap_or(0)],
            _ => attempt.locks(win.slot),
        };
        let road = match wants {
            _ if win.raised => Event::HoldByRaise,
            Wants::Reads if win.is_handed_over => Event::ReaderByPush,
            _ if win.is_handed_over => Event::HoldByPush,
            _ if attempt.asked.is_claim => Event::HoldByClaim,
            _ => Event::HoldByAsk,
        };
        let kept = Release {
            keep: Some(locks[0]),
            ..Release::of(attempt.caller(id, wants.locks()))
        };
        let hold = Hold::new(terms, win.is_handed_over, win.reached, now);
        let (token, others) = (win.token, win.others);
        attempt.holding = Some(Holding {
            locks,
            win,
            hold,
            sent: vec![],
            outdated: None,
        });
        self.show(format_args!("{c} holds {locks:?} with {token}: {road:?}"));
        self.counts.add(road);
        self.step_hold(c, |_, _, _| ());
        if self.holds(c).is_none() {
            self.violate(Violation::WonNothing);
        }
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
        if matches!(wants, Wants::Permit(_)) {
            self.send_release(c, kept, others);
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
        let Attempt { call, holding, .. } = self.clients[c].attempt.as_mut()?;
        let holding = holding.as_mut()?;
        let win = &holding.win;
        for (node, answer) in call.votes().places() {
            let Some(answer) = answer else { continue };
            let is_short = win.handed.contains(node);
            let counts = answer.slot() == win.slot && !win.gone.contains(node);
            let is_granted = is_short || answer.is_granted() && counts;
            let hold = &mut holding.hold;
            hold.on_grant(node, answer, is_granted, is_short, now.moment);
        }
        let result = step(&mut holding.hold, now, &view);
        let news = std::mem::take(&mut holding.hold.news);
        let (locks, token) = (holding.locks, holding.win.token);
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
        let Attempt { holding, wants, .. } = self.clients[c].attempt.as_ref()?;
        let holding = holding.as_ref()?;
        let is_held = holding.hold.left(self.moment()).is_ok();
        is_held.then_some((holding.locks, *wants))
    }

    /// Nobody else holds what this client holds from now on.
    fn check_alone(&mut self, c: usize, locks: Locks) {
        let reads = self.attempt(c).wants == Wants::Reads;
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
            return self.release_hold(c, false);
        }
        match self.random.u32(..12) {
            0..2 => self.extend_hold(c, true),
            2..6 => self.extend_hold(c, false),
            6..8 => {
                let released = self.step_hold(c, |hold, now, _| hold.release(now.moment).is_ok());
                self.release_hold(c, released == Some(true));
            }
            _ => {}
        }
    }

    fn release_hold(&mut self, c: usize, is_in_time: bool) {
        let Some(attempt) = self.clients[c].attempt.take() else {
            return;
        };
        let Some(Holding {
            win, hold, locks, ..
        }) = &attempt.holding
        else {
            return;
        };
        let owner = win.owner.number();
        let number = win.token;
        let stay = if is_in_time {
            self.enter_by_release(c, attempt.wants, number, hold.reached)
        } else {
            None
        };
        let release = Release {
            stay,
            raised: if win.raised { number } else { 0 },
            next: self.offer(number),
            ..Release::of(attempt.caller(owner, attempt.wants.locks()))
        };
        self.send_release(c, release, hold.reached);
        if self.flaw == Flaw::ExtendsBehindRelease {
            let caller = attempt.caller(owner, locks);
            let tag = Tag {
                attempt: attempt.id,
                round: Round::Hold(0),
                sent: self.now,
            };
            for s in 0..self.servers.len() {
                if let Some(record_version) = self.record_version(c, s) {
                    let command = Command::Extend {
                        tag,
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
        let (ttl, timeout) = (self.span(self.ttl), self.span(10));
        let extension = self.step_hold(c, |hold, now, servers| {
            if is_asked_for {
                hold.extend(ttl, now, now.tick + timeout, servers).ok()
            } else {
                hold.on_due(now, servers)
            }
        });
        let Some(Some(extension)) = extension else {
            return;
        };
        let attempt = self.attempt(c);
        let Some(holding) = &attempt.holding else {
            return;
        };
        let (locks, token) = (holding.locks, holding.win.token);
        let caller = attempt.caller(holding.win.owner.number(), locks);
        let tag = Tag {
            attempt: attempt.id,
            round: Round::Hold(extension.promise.round),
            sent: self.now,
        };
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
                    life: (ttl.as_millis() as u64).div_ceil(self.unit),
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
        let overtaken = self.is_overtaken(locks, token);
        let Some(holding) = self.holding(c) else {
            return;
        };
        let open = taken;
        holding.sent.push(SentExtension { extension, open });
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
        tag: Tag,
        round: u64,
        answer: Answer,
        stamp: Stamp,
    ) {
        let attempt = self.clients[c].attempt.as_ref();
        if attempt.is_none_or(|it| it.id != tag.attempt) {
            return;
        }
        let Some(extension) = self.answered(c, s, |it| it.promise.round == round).pop() else {
            return;
        };
        let is_set = answer == Answer::of(LockStatus::Healed);
        if is_set && tag.sent < stamp.counts_from {
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
        is_such: impl Fn(&Extension) -> bool,
    ) -> Vec<Extension> {
        let Some(holding) = self.holding(c) else {
            return vec![];
        };
        let mut found = vec![];
        for it in &mut holding.sent {
            if it.open.contains(node(s)) && is_such(&it.extension) {
                it.open.remove(node(s));
                found.push(it.extension);
            }
        }
        holding.sent.retain(|it| !it.open.is_empty());
        found
    }
}
