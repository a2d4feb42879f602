//! The ledger of a hold: what each node has promised, and its last answer.
//!
//! ```text
//!   sent            answer                      until        may expire
//!    |---- round ----|--------- usable ----------|-- margin --|
//!    |------------------------- ttl ---------------------------|
//! ```
//!
//! A grant, a late grant, a hand-over and an extension are the same: *the key is yours here until
//! then*. A node starts its countdown when the command arrives, which is never before the send. So
//! a promise counts from its send.
//!
//! A majority of promises that are not over meets every other majority in a node that still has the
//! key, or that is quarantined for as long. So the lease lasts until the majority's part of them is
//! over: until the latest end that a majority reaches.
//!
//! A key expires by its node's wall clock. After a step forward it expires early, and the node may
//! grant the lock to another client while the holder counts on it. So a promise is in *doubt* if
//! its node's clock was set forward later.

use std::cmp::Reverse;
use std::time::Duration;

use crate::answer::{Answer, LockStatus};
use crate::error::{NodeAnswer, NodeFailure, QuarantineReason};
use crate::ids::{NodeId, NodeSet};
use crate::logic::quorum;
use crate::time::{Moment, Now, Tick};

/// The promise of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// The command: 0 for the acquire, then the extensions in their order.
    pub(crate) round: u64,
    /// Before its command was sent.
    pub(crate) sent: Now,
    /// The holder must not count on the node's key from then on.
    pub(crate) until: Moment,
    /// The fencing counter of the node is not below.
    pub(crate) number: u64,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    promise: Option<Promise>,
    /// Since the last question.
    answer: Option<NodeAnswer>,
    /// That came with it, or in its command.
    counter: u64,
    /// The round from which its promises count: its key was found removed before.
    counts_from: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Promises {
    of: Vec<Entry>,
    /// The last question.
    pub(crate) asked: u64,
}

impl Promises {
    pub(crate) fn new(nodes: usize) -> Promises {
        Promises {
            of: vec![Entry::default(); nodes],
            asked: 0,
        }
    }

    fn quorum(&self) -> usize {
        quorum(self.of.len())
    }

    /// Takes the `answer` of a node to the holder of `token`, with its promise if it has one.
    /// Whether it has the key anew, and whether the key is not ours.
    ///
    /// Nothing shortens a promise, as no command shortens the life of a key, but for a step of the
    /// node's clock.
    ///
    /// RACE: T1 is refused by a node, waits in its list, and wins with other nodes; T2, a writer,
    /// is granted the lock there and releases it; the node hands it over to T1. Therefore a key or
    /// an entry behind a newer counter counts only where the node had promised one, or behind a
    /// number that a majority has confirmed.
    pub(crate) fn note(
        &mut self,
        node: NodeId,
        answer: &Answer,
        promise: Option<Promise>,
        token: u64,
        now: Moment,
        in_doubt: impl Fn(Tick) -> bool,
    ) -> (bool, bool) {
        let runs = self.runs(node, now);
        let number = promise.map_or(0, |it| it.number);
        let counter = answer.counter().unwrap_or_default().max(number);
        let is_newer = answer.is_extended()
            && token < counter
            && !self.has_majority(|it| counter <= it.number);
        let Some(entry) = self.of.get_mut(node.index()) else {
            return (false, false);
        };
        let promise = promise.filter(|_| !is_newer || entry.promise.is_some());
        // A promised key was removed, or expired early, and the extension has set it again. That is
        // a loss: no extension under way counts there.
        let is_set = match answer {
            // Of answers to extensions only this one, behind a clock step.
            Answer::Failed(NodeFailure::Quarantined { why, .. }) => {
                *why == QuarantineReason::ClockStep
            }
            _ => answer.is(LockStatus::Healed),
        };
        let is_anew = promise.is_some() && (is_set || !runs);
        let is_removed = is_set && runs;
        if is_removed {
            entry.counts_from = self.asked.saturating_add(1);
        }
        let new = promise.filter(|it| entry.counts_from <= it.round);
        let is_gone = is_removed || answer.is_gone() || answer.is_extended() && new.is_none();
        entry.counter = counter;
        entry.answer = Some(if is_gone {
            NodeAnswer::Gone
        } else {
            NodeAnswer::from(answer)
        });
        if let Some(new) = new {
            let old = entry.promise.unwrap_or(new);
            let is_later = old.round < new.round;
            // RACE: T1, the holder, asks for an end; T2, the renewal, for one that is the same by
            // one of two clocks and earlier by the other; T1 compares its end by the other.
            // Therefore the later end has to be later now.
            let is_longer = now.until(old.until) < now.until(new.until);
            entry.promise = Some(Promise {
                round: old.round.max(new.round),
                sent: if is_later { new.sent } else { old.sent },
                until: if is_longer || in_doubt(old.sent.tick) {
                    new.until
                } else {
                    old.until
                },
                number: old.number.max(new.number),
            });
        }
        (is_anew, is_gone)
    }

    /// Asks all nodes but `owed`, which are behind, and forgets earlier answers.
    pub(crate) fn ask(&mut self, owed: NodeSet) -> NodeSet {
        self.asked = self.asked.saturating_add(1);
        for (id, entry) in (0..).map(NodeId::new).zip(&mut self.of) {
            let is_behind = owed.contains(id);
            entry.answer = is_behind.then_some(NodeAnswer::Failed(NodeFailure::Stalled));
            entry.counter = 0;
        }
        self.nodes_with(|_, it| it.answer.is_none())
    }

    /// The largest of these that a majority of promises reaches.
    fn by_majority<T: Ord>(&self, of: impl Fn(NodeId, &Promise) -> T) -> Option<T> {
        // Several times for each answer: without an allocation.
        let mut all = [const { None }; NodeSet::PLACES];
        let entries = (0..).map(NodeId::new).zip(&self.of);
        for (place, (id, entry)) in all.iter_mut().zip(entries) {
            *place = entry.promise.as_ref().map(|it| of(id, it));
        }
        let all = all.get_mut(..self.of.len())?;
        all.sort_unstable_by(|one, other| other.cmp(one));
        all.get_mut(self.quorum().saturating_sub(1))?.take()
    }

    /// Whether that is so of a majority of promises.
    pub(crate) fn has_majority(&self, is_so: impl Fn(&Promise) -> bool) -> bool {
        let promises = self.of.iter().filter_map(|it| it.promise.as_ref());
        self.quorum() <= promises.filter(|it| is_so(it)).count()
    }

    /// Time left of the lease.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        self.by_majority(|_, it| now.until(it.until))
            .unwrap_or_default()
    }

    /// Time since the send of the last confirmed round.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        self.by_majority(|_, it| Reverse(now.since(it.sent.moment)))
            .map_or(Duration::MAX, |it| it.0)
    }

    /// The last round that a majority has confirmed.
    pub(crate) fn round(&self) -> u64 {
        self.by_majority(|_, it| it.round).unwrap_or_default()
    }

    /// Whether a majority has promised as much.
    pub(crate) fn confirm(&self, promise: &Promise, now: Moment) -> bool {
        self.has_majority(|it| {
            promise.round <= it.round && now.until(promise.until) <= now.until(it.until)
        })
    }

    fn nodes_with(&self, is_so: impl Fn(NodeId, &Entry) -> bool) -> NodeSet {
        let nodes = (0..).map(NodeId::new).zip(&self.of);
        nodes
            .filter(|(id, it)| is_so(*id, it))
            .map(|it| it.0)
            .collect()
    }

    /// Nodes whose last answer is that the key is not ours.
    pub(crate) fn gone(&self) -> NodeSet {
        self.nodes_with(|_, it| it.answer == Some(NodeAnswer::Gone))
    }

    /// Whether too few nodes can have the lock for a majority.
    pub(crate) fn are_gone(&self) -> bool {
        self.of.len().saturating_sub(self.gone().len()) < self.quorum()
    }

    /// Whether the promise of the node is not over.
    fn runs(&self, node: NodeId, now: Moment) -> bool {
        self.running(now).contains(node)
    }

    fn running(&self, now: Moment) -> NodeSet {
        self.nodes_with(|_, it| it.promise.is_some_and(|it| !now.has_reached(it.until)))
    }

    /// Nodes that have the lock, as far as known.
    pub(crate) fn kept(&self, now: Moment) -> NodeSet {
        self.running(now).without(self.gone())
    }

    /// Nodes without an answer since the last question.
    pub(crate) fn open(&self) -> NodeSet {
        self.nodes_with(|_, it| it.answer.is_none())
    }

    /// Running promises of nodes whose clock was not set forward since; `None` if that is so of
    /// all.
    fn sure(&self, has_stepped: &impl Fn(NodeId, Tick) -> bool, now: Moment) -> Option<NodeSet> {
        let running = self.running(now);
        let has_stepped =
            |id, it: &Entry| it.promise.is_some_and(|it| has_stepped(id, it.sent.tick));
        let doubtful = running.both(self.nodes_with(has_stepped));
        (!doubtful.is_empty()).then_some(running.without(doubtful))
    }

    /// If promises are in doubt, the time left of a lease without them: zero if no majority is
    /// left.
    pub(crate) fn sure_left(
        &self,
        has_stepped: impl Fn(NodeId, Tick) -> bool,
        now: Moment,
    ) -> Option<Duration> {
        let sure = self.sure(&has_stepped, now)?;
        self.by_majority(|id, it| {
            let until = Some(it.until).filter(|_| sure.contains(id));
            until.map_or(Duration::ZERO, |it| now.until(it))
        })
    }

    /// Whether too few nodes certainly have the lock, after an extension without a majority that
    /// was sent at `asked`. After a clock step during it the answer is unknown: it has to be sent
    /// again.
    pub(crate) fn are_lost(
        &self,
        has_stepped: impl Fn(NodeId, Tick) -> bool,
        asked: Tick,
        now: Moment,
    ) -> bool {
        let stepped = self.nodes_with(|id, _| has_stepped(id, asked));
        let sure = self.sure(&has_stepped, now);
        self.running(now).both(stepped).is_empty()
            && sure.is_some_and(|it| it.without(self.gone()).len() < self.quorum())
    }

    /// Counters that nodes have shown; 0 for none.
    pub(crate) fn counters(&self) -> impl Iterator<Item = u64> {
        self.of.iter().map(|it| it.counter)
    }

    /// The end of each node's promise, if it is not over.
    pub(crate) fn ends(&self, now: Moment) -> Vec<Option<Moment>> {
        let end = |it: &Entry| Some(it.promise?.until).filter(|it| !now.has_reached(*it));
        self.of.iter().map(end).collect()
    }

    #[cfg(test)]
    pub(crate) fn counts_from(&self) -> Vec<u64> {
        self.of.iter().map(|it| it.counts_from).collect()
    }

    /// The rows of a report at the end of a question.
    pub(crate) fn rows(&self) -> Vec<NodeAnswer> {
        let late = NodeAnswer::Failed(NodeFailure::TimedOut);
        let row = |it: &Entry| it.answer.as_ref().unwrap_or(&late).clone();
        self.of.iter().map(row).collect()
    }
}
