//! Lives of a held lock on three nodes, by chance: the shipped [`Hold`], with servers, a network and clocks around it.
//!
//! One claim: while the lock is valid, no majority of nodes is free for another client. A node is free if it has no key
//! of ours and is not quarantined. Behind a step of a node's clock that the client has not seen yet, or has not checked,
//! the claim is not made: there the guide promises nothing.

use std::collections::VecDeque;

use fastrand::Rng;

use super::*;
use crate::answer::{Answer, LockStatus};
use crate::config::Margin;
use crate::error::{LostReason, QuarantineReason};
use crate::hold::promises::Promise;
use crate::hold::{Extension, Hold, News, Servers, Terms};
use crate::ids::NodeSet;
use crate::time::{self, Now, Tick};

const NODES: usize = 3;
const QUORUM: usize = 2;
const LOCK_TTL: u64 = 3_000;
const LONGEST: u64 = 6_000;

/// A mistake on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// A promise counts from its answer.
    FromAnswer,
    /// Each answer is one of the next node as well.
    MinorityIsEnough,
    /// An answer behind the end is dated back.
    AnswersBehindTheEnd,
    /// Steps of node clocks are forgotten.
    DoubtForgotten,
    /// The hold is not ended when its time is over.
    NeverEnded,
}

#[derive(Clone, Default)]
struct Node {
    /// End of our key.
    ours: Option<u64>,
    /// End of another client's key.
    theirs: u64,
    counter: u64,
    quarantined_until: u64,
    stepped_at: Option<u64>,
    seen_at: Option<u64>,
    asked: VecDeque<Extension>,
    answers: VecDeque<(Extension, Answer)>,
}

struct Life {
    rng: Rng,
    flaw: Flaw,
    start: Tick,
    /// Milliseconds.
    now: u64,
    /// The wall clock of the client, ahead by this.
    ahead: i64,
    hold: Hold,
    nodes: Vec<Node>,
    was_over: bool,
    seen: Seen,
}

/// What the lives together have seen, so that none of it is missing.
#[derive(Debug, Default)]
struct Seen {
    confirmed: u64,
    failed: u64,
    set: u64,
    gone: u64,
    by_clocks: u64,
    expired: u64,
}

impl Servers for Life {
    fn voting(&self, now: Tick) -> NodeSet {
        self.nodes_with(|it| self.tick(it.quarantined_until) <= now)
    }

    fn settable(&self, now: Tick) -> NodeSet {
        self.nodes_with(|it| it.seen_at.is_none_or(|at| self.tick(at + LONGEST) <= now))
    }

    fn has_stepped(&self, node: NodeId, since: Tick) -> bool {
        let seen_at = self.nodes[node.index()].seen_at;
        self.flaw != Flaw::DoubtForgotten && seen_at.is_some_and(|at| since <= self.tick(at))
    }

    fn time_for_all(&self, _now: Moment) -> Option<u64> {
        // Numbers of this world are smaller than any time.
        Some(1_000_000)
    }

    fn pause(&self, left: Duration, _now: Tick) -> Duration {
        Duration::from_millis(100).min(left)
    }
}

impl Life {
    fn new(seed: u64, flaw: Flaw) -> Life {
        let rng = Rng::with_seed(seed);
        let start = time::tick();
        let terms = Terms {
            nodes: NODES,
            ttl: Duration::from_millis(LOCK_TTL),
            margin: Margin {
                share: 0.0,
                fixed: Duration::ZERO,
            },
            renewed: true,
            hold_until: None,
            grant: Promise {
                round: 0,
                sent: Now {
                    moment: moment(0, 0),
                    tick: start,
                },
                until: moment(LOCK_TTL, 0),
                number: 7,
            },
            response_timeout: Duration::from_millis(300),
        };
        let mut hold = Hold::new(terms, false, NodeSet::default(), moment(0, 0));
        let mut nodes = vec![Node::default(); NODES];
        let granted = [0, 1, 2]
            .into_iter()
            .take(QUORUM + usize::from(seed.is_multiple_of(2)));
        for it in granted {
            nodes[it].ours = Some(LOCK_TTL);
            nodes[it].counter = 7;
            let granted = Answer::of(LockStatus::Accepted);
            hold.on_grant(id(it), &granted, true, false, moment(0, 0));
        }
        Life {
            rng,
            flaw,
            start,
            now: 0,
            ahead: 0,
            hold,
            nodes,
            was_over: false,
            seen: Seen::default(),
        }
    }

    fn tick(&self, at: u64) -> Tick {
        self.start + Duration::from_millis(at)
    }

    fn clocks(&self) -> Now {
        Now {
            moment: moment(self.now, self.ahead),
            tick: self.tick(self.now),
        }
    }

    fn nodes_with(&self, is_so: impl Fn(&Node) -> bool) -> NodeSet {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|it| is_so(it.1)).map(|it| id(it.0)).collect()
    }

    /// One step of anybody; false where the claim is broken.
    fn step(&mut self) -> bool {
        let node = self.rng.usize(..NODES);
        let now = self.now;
        match self.rng.u8(..100) {
            0..=19 => self.now += self.rng.u64(1..200),
            20 => self.now += self.rng.u64(200..4_000),
            21 => self.ahead += self.rng.i64(-500..500),
            22..=36 => self.look(),
            37..=39 => {
                let ttl = Duration::from_millis(self.rng.u64(500..LONGEST));
                let ends_at = self.tick(now + 300);
                let mut hold = self.hold.clone();
                if let Ok(it) = hold.extend(ttl, self.clocks(), ends_at, self) {
                    self.hold = hold;
                    self.send(&it);
                }
            }
            40..=64 => self.run(node),
            65..=93 => self.answer(node),
            94..=95 => {
                self.nodes[node] = Node {
                    quarantined_until: now + LONGEST,
                    // The connection is over, and the client knows the new process.
                    answers: self.nodes[node].answers.drain(..).collect(),
                    ..Node::default()
                };
            }
            96 => {
                let by = self.rng.u64(500..LONGEST);
                let it = &mut self.nodes[node];
                it.stepped_at = Some(now);
                it.ours = it.ours.map(|end| end.saturating_sub(by));
                it.theirs = it.theirs.saturating_sub(by);
            }
            _ => {
                let is_free = self.is_free(node);
                let leaves = if self.rng.bool() { 0 } else { 400 };
                let it = &mut self.nodes[node];
                if is_free && it.theirs <= now {
                    it.counter = it.counter.max(7) + 1;
                    it.theirs = now + leaves;
                }
            }
        }
        self.claim()
    }

    fn is_free(&self, node: usize) -> bool {
        let it = &self.nodes[node];
        it.ours.is_none_or(|end| end <= self.now) && it.quarantined_until <= self.now
    }

    /// The renewal thread looks.
    fn look(&mut self) {
        if self.flaw == Flaw::NeverEnded && self.hold.left(self.clocks().moment).is_err() {
            return;
        }
        let mut hold = self.hold.clone();
        let extension = hold.on_due(self.clocks(), self);
        self.hold = hold;
        if let Some(it) = extension {
            self.send(&it);
        }
    }

    fn send(&mut self, extension: &Extension) {
        self.hold.on_sent(extension, extension.to);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if extension.to.contains(id(index)) && self.rng.u8(..8) != 0 {
                node.asked.push_back(*extension);
            }
        }
    }

    /// The script runs on the node.
    fn run(&mut self, index: usize) {
        let now = self.now;
        let node = &mut self.nodes[index];
        let Some(extension) = node.asked.pop_front() else {
            return;
        };
        let ttl = u64::try_from(extension.ttl.as_millis()).unwrap();
        let number = extension.promise.number;
        let counter = node.counter;
        let reply = if now < node.theirs {
            Answer::of(LockStatus::NotOurs)
        } else {
            match node.ours.filter(|end| now < *end) {
                Some(_) if number < counter => Answer::of(LockStatus::Superseded),
                Some(end) => {
                    node.ours = Some(end.max(now + ttl));
                    node.counter = number;
                    Answer::of(LockStatus::Extended)
                }
                None if counter <= number && extension.sets.contains(id(index)) => {
                    node.ours = Some(now + ttl);
                    node.counter = number;
                    Answer::of(LockStatus::Healed)
                }
                None => Answer::with_counter(LockStatus::Gone, counter),
            }
        };
        node.answers.push_back((extension, reply));
    }

    /// An answer arrives: judged as the session judges, then told to the hold.
    fn answer(&mut self, index: usize) {
        let (now, start) = (self.now, self.start);
        let node = &mut self.nodes[index];
        let Some((mut extension, mut answer)) = node.answers.pop_front() else {
            return;
        };
        if node.stepped_at.is_some() && node.seen_at < node.stepped_at {
            node.seen_at = Some(now);
        }
        let asked = extension.promise.sent.tick.duration_since(start);
        let asked = u64::try_from(asked.as_millis()).unwrap();
        let quarantined = |why| {
            let left = Duration::from_millis(1);
            Answer::Failed(NodeFailure::Quarantined { left, why })
        };
        let is_set = answer == Answer::of(LockStatus::Healed);
        if answer.is_extended() && asked < node.quarantined_until {
            answer = quarantined(QuarantineReason::New);
        } else if is_set && node.seen_at.is_some_and(|at| asked < at + LONGEST) {
            answer = quarantined(QuarantineReason::ClockStep);
        }
        let mut clocks = self.clocks();
        match self.flaw {
            Flaw::FromAnswer => {
                extension.promise.until = clocks.moment.checked_add(extension.ttl).unwrap();
            }
            Flaw::AnswersBehindTheEnd => clocks.moment = extension.promise.sent.moment,
            _ => {}
        }
        let also = (self.flaw == Flaw::MinorityIsEnough).then_some((index + 1) % NODES);
        for it in [index].into_iter().chain(also) {
            let mut hold = self.hold.clone();
            hold.on_answer(&extension, id(it), &answer, clocks, self);
            self.hold = hold;
        }
    }

    fn claim(&mut self) -> bool {
        let clocks = self.clocks();
        for news in std::mem::take(&mut self.hold.news) {
            match news {
                News::Extended { .. } => self.seen.confirmed += 1,
                News::NotExtended { .. } => self.seen.failed += 1,
                News::Healed(_) => self.seen.set += 1,
                News::Lost(LostReason::Gone) => self.seen.gone += 1,
                News::Lost(LostReason::NodeClock) => self.seen.by_clocks += 1,
                News::Lost(_) => self.seen.expired += 1,
                _ => {}
            }
        }
        let is_valid = self.hold.left(clocks.moment).is_ok();
        if self.was_over && is_valid {
            return false;
        }
        if !is_valid && self.flaw != Flaw::AnswersBehindTheEnd && self.flaw != Flaw::NeverEnded {
            let _ = self.hold.end_by_clock(clocks.moment);
        }
        self.was_over |= !is_valid;
        let is_seen = |it: &Node| it.stepped_at.is_none_or(|at| Some(at) <= it.seen_at);
        let in_doubt = self.hold.next_in(clocks, self) == Some(Duration::ZERO);
        let is_checked = !in_doubt && self.nodes.iter().all(is_seen) && !self.is_checking();
        let free = (0..NODES).filter(|it| self.is_free(*it)).count();
        !(is_valid && is_checked && QUORUM <= free)
    }

    /// Whether a check is under way, or its pause.
    fn is_checking(&self) -> bool {
        let doubt = |node, since| self.has_stepped(node, since);
        self.hold.promises.sure_left(doubt, self.clocks().moment) == Some(Duration::ZERO)
    }
}

fn id(index: usize) -> NodeId {
    NodeId::new(u8::try_from(index).unwrap())
}

fn moment(millis: u64, ahead: i64) -> Moment {
    let boot = Duration::from_millis(100_000 + millis);
    Moment::at(
        boot,
        Duration::from_millis((9_000_000 + millis).saturating_add_signed(ahead)),
    )
}

/// Lives so many lives; the first that breaks the claim, and what they have seen.
fn live(flaw: Flaw, lives: u64) -> (Option<u64>, Seen) {
    let mut seen = Seen::default();
    for seed in 0..lives {
        let mut life = Life::new(seed, flaw);
        life.seen = seen;
        for _ in 0..150 {
            if !life.step() {
                return (Some(seed), life.seen);
            }
        }
        seen = life.seen;
    }
    (None, seen)
}

#[test]
fn d4_while_a_lock_is_valid_no_majority_is_free() {
    let lives = if long() { 400_000 } else { 8_000 };
    let (broken, seen) = live(Flaw::None, lives);
    assert_eq!(broken, None, "by this seed");
    let Seen {
        confirmed,
        failed,
        set,
        gone,
        by_clocks,
        expired,
    } = seen;
    for count in [confirmed, failed, set, gone, by_clocks, expired] {
        assert!(100 < count, "{seen:?}");
    }
}

#[test]
fn each_mistake_in_the_ledger_of_a_lock_is_found() {
    for flaw in [
        Flaw::FromAnswer,
        Flaw::MinorityIsEnough,
        Flaw::AnswersBehindTheEnd,
        Flaw::DoubtForgotten,
        Flaw::NeverEnded,
    ] {
        let (broken, _) = live(flaw, 20_000);
        assert!(broken.is_some(), "{flaw:?}");
    }
}
