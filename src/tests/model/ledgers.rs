//! The shipped machine of a held lock, for worlds whose states are small: a state records what the machine's ledger shows, and
//! the machine is built anew for each decision.
//!
//! Time is as short as can be. Each extension is sent a little after the one before, and each promise ends a whole life after its
//! send: see [`sent_at`] and [`until`].

use std::sync::OnceLock;

use super::*;
use crate::answer::LockStatus;
use crate::call::steps::View;
use crate::config::Margin;
use crate::hold::promises::{Promise, Promises};
use crate::hold::{Extension, Hold, Servers, Terms};
use crate::ids::{NodeSet, OwnerToken};
use crate::time::{Now, Tick};

const NODES: usize = 3;
/// The most extensions of a hold.
pub(super) const ROUNDS: usize = 3;
const STEP: u64 = TTL / 10;
/// Of a key. The shortest margin is a nanosecond.
pub(super) const LIFE: Duration = Duration::from_nanos(TTL + 1);

pub(super) const NO_MARGIN: Margin = Margin {
    share: 0.0,
    fixed: Duration::ZERO,
};

/// What an extension carries.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Sent {
    pub(super) number: u8,
    /// It sets missing keys.
    pub(super) sets: bool,
}

impl Sent {
    /// A command that is no extension.
    pub(super) fn of(number: u8) -> Sent {
        Sent {
            number,
            sets: false,
        }
    }
}

/// What is recorded of a hold.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) struct Ledger {
    pub(super) token: u8,
    /// Node by node: 0 without a promise; otherwise one more than its round.
    pub(super) promises: [u8; NODES],
    /// Where the last answer is that the key is gone: one more than the counter that came with it; otherwise 0.
    pub(super) gone: [u8; NODES],
    /// The round from which promises count there: its key was found removed before.
    pub(super) counts_from: [u8; NODES],
    /// Extensions sent, and the last one that a majority has confirmed.
    pub(super) round: u8,
    pub(super) confirmed: u8,
    /// The number of the next extension.
    pub(super) number: u8,
    pub(super) sent: [Sent; ROUNDS],
}

/// Servers without quarantines and clock steps, as far as the hold asks. What is quarantined does not come as an answer.
pub(super) struct Calm {
    pub(super) settable: bool,
}

impl Servers for Calm {
    fn voting(&self, _now: Tick) -> NodeSet {
        all()
    }

    fn settable(&self, _now: Tick) -> NodeSet {
        if self.settable {
            all()
        } else {
            NodeSet::default()
        }
    }

    fn has_stepped(&self, _node: NodeId, _since: Tick) -> bool {
        false
    }

    fn time_for_all(&self, _now: Moment) -> Option<u64> {
        None
    }

    fn pause(&self, _left: Duration, _now: Tick) -> Duration {
        Duration::ZERO
    }
}

/// What a call knows that waits for nobody.
pub(super) trait Known {
    /// The nodes' time, and so its proposal.
    fn time(&self) -> u64;

    fn owner(&self) -> OwnerToken;

    /// Of these nodes, those in quarantine.
    fn quarantined_of(&self, nodes: NodeSet) -> Vec<(NodeId, NodeFailure)>;
}

impl<K: Known> View for K {
    fn time_for_all(&self, _at: Moment) -> Option<u64> {
        Some(self.time())
    }

    fn quarantined_of(&self, nodes: NodeSet, _asked: Tick) -> Vec<(NodeId, NodeFailure)> {
        Known::quarantined_of(self, nodes)
    }

    fn notifying(&self) -> usize {
        0
    }

    fn deadline(&self, now: Tick) -> Tick {
        now + LIFE
    }

    fn outage(&self) -> Option<Tick> {
        None
    }

    fn is_stopped(&self) -> bool {
        false
    }

    fn take_turn(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn draw(&self) -> Result<OwnerToken, String> {
        Ok(self.owner())
    }

    fn random(&self) -> f64 {
        0.0
    }
}

pub(super) fn all() -> NodeSet {
    ids().collect()
}

pub(super) fn ids() -> impl Iterator<Item = NodeId> {
    (0..).map(NodeId::new).take(NODES)
}

pub(super) fn now(moment: Moment) -> Now {
    static TICK: OnceLock<Tick> = OnceLock::new();
    let tick = *TICK.get_or_init(crate::time::tick);
    Now { moment, tick }
}

/// When an extension is sent; 0 for the acquire.
pub(super) fn sent_at(round: u8) -> Moment {
    at(STEP * u64::from(round))
}

/// The end of its promises.
pub(super) fn until(round: u8) -> Moment {
    at(STEP * u64::from(round) + TTL)
}

/// The last moment before that.
pub(super) fn before(round: u8) -> Moment {
    at(STEP * u64::from(round) + TTL - 1)
}

/// An extension as it is sent.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// Of the extension that is answered.
    pub(super) round: u8,
    pub(super) node: usize,
    pub(super) answer: Vote,
}

impl Ledger {
    /// A hold that was won with these nodes.
    pub(super) fn new(token: u8, granted: [bool; NODES]) -> Ledger {
        let mut ledger = Ledger {
            token,
            number: token,
            promises: granted.map(u8::from),
            ..Ledger::default()
        };
        let hold = ledger.hold();
        ledger.read(hold);
        ledger
    }

    fn extension(&self, round: u8) -> Extension {
        let Sent { number, sets } = self.sent[usize::from(round) - 1];
        let sent = now(sent_at(round));
        let promise = Promise {
            round: round.into(),
            sent,
            until: until(round),
            number: number.into(),
        };
        Extension {
            promise,
            ttl: LIFE,
            to: all(),
            sets: if sets { all() } else { NodeSet::default() },
            ends_at: sent.tick,
            is_awaited: true,
        }
    }

    /// The machine that has come to this.
    fn hold(&self) -> Hold {
        let servers = Calm { settable: true };
        let terms = Terms {
            nodes: NODES,
            ttl: LIFE,
            margin: NO_MARGIN,
            renewed: true,
            hold_until: None,
            grant: Promise {
                round: 0,
                sent: now(sent_at(0)),
                until: until(0),
                number: self.token.into(),
            },
            response_timeout: LIFE,
        };
        let mut hold = Hold::new(terms, false, all(), sent_at(0));
        let promises = || ids().zip(self.promises).filter(|it| it.1 != 0);
        for (node, _) in promises() {
            let answer = Vote::of(LockStatus::Accepted);
            hold.on_grant(node, &answer, true, false, sent_at(0));
        }
        let feed = |hold: &mut Hold, round: u8, node: NodeId, answer: Vote| {
            let extension = self.extension(round);
            let now = now(sent_at(self.round));
            hold.on_answer(&extension, node, &answer, now, &servers);
        };
        let removed_in = |round: u8| {
            ids()
                .zip(self.counts_from)
                .filter(move |it| it.1 == round + 1)
        };
        for round in 1..=self.round {
            let ttl = LIFE;
            let sent = now(sent_at(round));
            assert!(
                hold.extend(ttl, sent, sent.tick, &servers).is_ok(),
                "{self:?}"
            );
            for (node, promise) in promises().filter(|it| it.1 == round + 1) {
                feed(&mut hold, promise - 1, node, Vote::of(LockStatus::Extended));
            }
            for (node, _) in removed_in(round).filter(|_| round < self.round) {
                feed(&mut hold, round, node, Vote::of(LockStatus::Healed));
                feed(&mut hold, round, node, Vote::of(LockStatus::Superseded));
            }
        }
        let mut feed = |round, node, answer| feed(&mut hold, round, node, answer);
        if self.token < self.number {
            // A node has shown this number. It may have answered again since.
            let (node, _) = promises().max_by_key(|it| it.1).unwrap();
            let counter = self.number.into();
            feed(
                self.confirmed,
                node,
                Vote::with_counter(LockStatus::Gone, counter),
            );
            feed(self.confirmed, node, Vote::of(LockStatus::Superseded));
        }
        // Those first that have answered again since: too many at once are a loss.
        let mut removed: Vec<_> = removed_in(self.round).map(|it| it.0).collect();
        removed.sort_by_key(|it| self.gone[it.index()] != 0);
        for node in removed.into_iter().filter(|_| self.round != 0) {
            feed(self.round, node, Vote::of(LockStatus::Healed));
            if self.gone[node.index()] == 0 {
                feed(self.round, node, Vote::of(LockStatus::Superseded));
            }
        }
        for (node, gone) in ids().zip(self.gone).filter(|it| it.1 != 0) {
            let counter = u64::from(gone) - 1;
            feed(
                self.round,
                node,
                Vote::with_counter(LockStatus::Gone, counter),
            );
        }
        assert!(hold.is_held(), "{self:?}");
        assert_eq!(
            hold.promises.round(),
            u64::from(self.confirmed),
            "{self:?}: {hold:?}"
        );
        hold
    }

    /// Records what the machine has come to, and checks when it ends.
    fn read(&mut self, mut hold: Hold) {
        let ends = hold.promises.ends(sent_at(0));
        let rounds = (0..=self.round).collect::<Vec<_>>();
        let of_end = |end: &Option<Moment>| {
            end.map_or(0, |it| {
                rounds.iter().find(|of| until(**of) == it).unwrap() + 1
            })
        };
        let gone = hold.promises.gone();
        let mut counters = hold.promises.counters();
        for (node, end) in ends.iter().enumerate() {
            self.promises[node] = of_end(end);
        }
        for (node, id) in ids().enumerate() {
            let counter = counters.next().unwrap();
            self.gone[node] = if gone.contains(id) {
                u8::try_from(counter + 1).unwrap()
            } else {
                0
            };
        }
        self.confirmed = u8::try_from(hold.promises.round()).unwrap();
        for (own, it) in self.counts_from.iter_mut().zip(hold.promises.counts_from()) {
            *own = u8::try_from(it).unwrap();
        }
        drop(counters);
        // It is held exactly as long as a majority has promised.
        assert_eq!(
            hold.left(before(self.confirmed)),
            Ok(Duration::from_nanos(1)),
            "{self:?}"
        );
        let next = now(sent_at(self.round + 1));
        let ttl = LIFE;
        let extension = hold
            .extend(ttl, next, next.tick, &Calm { settable: true })
            .unwrap();
        self.number = u8::try_from(extension.promise.number).unwrap();
        let _ = hold.end_by_clock(until(self.confirmed));
        assert!(hold.is_lost(), "{self:?}");
        assert!(
            !hold.is_held() && hold.left(sent_at(0)).is_err(),
            "{self:?}"
        );
    }

    /// Takes one more answer to the acquire.
    pub(super) fn grant(&mut self, node: usize, answer: &Vote) {
        let mut hold = self.hold();
        let node = NodeId::new(u8::try_from(node).unwrap());
        hold.on_grant(node, answer, answer.is_granted(), false, sent_at(0));
        self.read(hold);
    }

    /// Sends the next extension; `None` if it is too late for that.
    pub(super) fn extend(&mut self, is_late: bool, servers: &Calm) -> bool {
        let mut hold = self.hold();
        let at = if is_late {
            until(self.confirmed)
        } else {
            sent_at(self.round + 1)
        };
        let ttl = LIFE;
        let Ok(sent) = hold.extend(ttl, now(at), now(at).tick, servers) else {
            return false;
        };
        self.sent[usize::from(self.round)] = Sent {
            number: u8::try_from(sent.promise.number).unwrap(),
            sets: sent.sets == all(),
        };
        self.round += 1;
        assert_eq!(sent.promise.until, until(self.round));
        self.gone = [0; NODES];
        true
    }

    /// Takes answers at one time, one after the other. `None` if the last one changes nothing, or one before it ends or confirms
    /// the lock. `Some(false)`: it is lost.
    pub(super) fn hear(
        &mut self,
        replies: impl Iterator<Item = Reply>,
        at: Moment,
    ) -> Option<bool> {
        let old = *self;
        let mut hold = self.hold();
        let mut replies = replies.peekable();
        while let Some(Reply {
            round,
            node,
            answer,
        }) = replies.next()
        {
            let extension = self.extension(round);
            let node = NodeId::new(u8::try_from(node).unwrap());
            let servers = Calm { settable: true };
            hold.on_answer(&extension, node, &answer, now(at), &servers);
            let is_over = !hold.is_held() || hold.promises.round() != u64::from(old.confirmed);
            if is_over && replies.peek().is_some() {
                return None;
            }
        }
        if !hold.is_held() {
            return Some(false);
        }
        self.read(hold);
        Some(true)
    }

    /// Whether the hold ends otherwise, or sends another number, than before.
    pub(super) fn differs(&self, before: &Ledger) -> bool {
        (self.confirmed, self.number) != (before.confirmed, before.number)
    }
}

/// Beside one that has been through it all.
#[test]
fn a_rebuilt_hold_behaves_as_the_original_hold() {
    let servers = Calm { settable: true };
    let ttl = LIFE;
    let (mut lost, mut raised, mut kept_unset) = (0, 0, 0);
    for seed in 0..if long() { 200_000 } else { 20_000 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut granted = [true; NODES];
        granted[random.usize(0..NODES)] = random.bool();
        let mut ledger = Ledger::new(3, granted);
        let mut hold = ledger.hold();
        // A node answers in order, and once.
        let mut answered = [0; NODES];
        for _ in 0..12 {
            let context = format!("{seed}: {ledger:?}, {hold:?}");
            if usize::from(ledger.round) < ROUNDS && random.u8(0..4) == 0 {
                let next = now(sent_at(ledger.round + 1));
                let sent = hold.extend(ttl, next, next.tick, &servers).unwrap();
                assert!(ledger.extend(false, &servers));
                let Sent { number, sets } = ledger.sent[usize::from(ledger.round) - 1];
                let expected = (sent.promise.number, sent.sets == all());
                assert_eq!((u64::from(number), sets), expected, "{context}");
                raised += u64::from(3 < number && sets);
                kept_unset += u64::from(3 < number && !sets);
                continue;
            }
            let node = random.usize(0..NODES);
            if ledger.round == answered[node] {
                continue;
            }
            let round = random.u8(answered[node] + 1..=ledger.round);
            answered[node] = round;
            let Sent { number, sets } = ledger.sent[usize::from(round) - 1];
            let counter = random.u64(0..7);
            let answer = match random.u8(0..6) {
                0 | 1 => Vote::with_counter(LockStatus::Gone, counter),
                2 => Vote::of(LockStatus::Superseded),
                3 if sets => Vote::of(LockStatus::Healed),
                _ => Vote::of(LockStatus::Extended),
            };
            let at = if random.bool() {
                sent_at(ledger.round)
            } else {
                before(ledger.confirmed)
            };
            let extension = ledger.extension(round);
            assert_eq!(extension.promise.number, u64::from(number));
            let id = NodeId::new(u8::try_from(node).unwrap());
            hold.on_answer(&extension, id, &answer, now(at), &servers);
            let reply = Reply {
                round,
                node,
                answer,
            };
            let is_held = ledger.hear([reply.clone()].into_iter(), at);
            assert_eq!(is_held, Some(hold.is_held()), "{reply:?} behind {context}");
            if !hold.is_held() {
                lost += 1;
                break;
            }
            let again = ledger.hold();
            let number = |promises: &Promises| {
                (0..10).rfind(|number| promises.has_majority(|it| *number <= it.number))
            };
            let shown = |hold: &Hold| {
                let promises = &hold.promises;
                let gone = promises.gone();
                let counters = ids().zip(promises.counters());
                let counters: Vec<_> = counters.filter(|it| gone.contains(it.0)).collect();
                let ends = promises.ends(sent_at(0));
                (ends, gone, counters, promises.round(), number(promises))
            };
            assert_eq!(shown(&again), shown(&hold), "{reply:?} behind {context}");
        }
    }
    assert!(
        0 < lost && 0 < raised && 0 < kept_unset,
        "{lost}, {raised}, {kept_unset}"
    );
}
