//! The ledger of a hold: what each node has promised, and its last answer.
//!
//! ```text
//!   sent            answer                      until        may expire
//!    |---- round ----|--------- usable ----------|-- margin --|
//!    |------------------------- ttl ---------------------------|
//! ```
//!
//! A grant, a late grant, a hand-over and an extension are the same: *the key is yours here until then*. A node starts
//! its countdown when the command arrives, which is never before the send. So a promise counts from its send.
//!
//! A majority of promises that are not over meets every other majority in a node that still has the key, or that is
//! quarantined for as long. So the lease lasts until the majority's part of them is over: until the latest end that a
//! majority reaches.
//!
//! A key expires by its node's wall clock. After a step forward it expires early, and the node may grant the lock to
//! another client while the holder counts on it. So a promise is in *doubt* if its node's clock was set forward later.

use std::cmp::Reverse;
use std::time::Duration;

use crate::answer::{Answer, ExtendReply};
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
    answer: Option<Answer>,
    /// The round from which its promises count: its key was found removed before.
    counts_from: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Promises {
    of: Vec<Entry>,
    /// The last question.
    round: u64,
}

impl Promises {
    pub(crate) fn new(nodes: usize) -> Promises {
        Promises {
            of: vec![Entry::default(); nodes],
            round: 0,
        }
    }

    /// Takes the `answer` of a node, with its promise if it has one. Nothing shortens a promise, as no command shortens
    /// the life of a key, but for a step of the node's clock.
    pub(crate) fn note(
        &mut self,
        node: NodeId,
        answer: Answer,
        promise: Option<Promise>,
        now: Moment,
        in_doubt: impl Fn(Tick) -> bool,
    ) {
        let runs = self.runs(node, now);
        let Some(entry) = self.of.get_mut(node.index()) else {
            return;
        };
        // A promised key was removed, or expired early, and the extension has set it again. That is a loss: no extension
        // under way counts there.
        let is_set = match &answer {
            Answer::Extend(ExtendReply::Healed) => true,
            // Of answers to extensions only this one, behind a clock step.
            Answer::Failed(NodeFailure::Quarantined { why, .. }) => {
                *why == QuarantineReason::ClockStep
            }
            _ => false,
        };
        let is_removed = is_set && runs;
        if is_removed {
            entry.counts_from = self.round.saturating_add(1);
        }
        if is_removed || promise.is_some_and(|it| it.round < entry.counts_from) {
            entry.answer = Some(Answer::Extend(ExtendReply::Gone { counter: 0 }));
            return;
        }
        entry.answer = Some(answer);
        let Some(new) = promise else { return };
        let old = entry.promise.unwrap_or(new);
        let is_longer = now.until(old.until) <= now.until(new.until);
        entry.promise = Some(Promise {
            round: old.round.max(new.round),
            sent: if old.round < new.round {
                new.sent
            } else {
                old.sent
            },
            until: if is_longer || in_doubt(old.sent.tick) {
                new.until
            } else {
                old.until
            },
            number: old.number.max(new.number),
        });
    }

    /// The next question.
    pub(crate) fn next_round(&self) -> u64 {
        self.round.saturating_add(1)
    }

    /// Asks the nodes `to`, and forgets earlier answers. The other nodes are behind.
    pub(crate) fn ask(&mut self, to: NodeSet) {
        self.round = self.next_round();
        let behind = Some(Answer::Failed(NodeFailure::Stalled));
        for (id, entry) in (0..).map(NodeId::new).zip(&mut self.of) {
            entry.answer = behind.clone().filter(|_| !to.contains(id));
        }
    }

    /// The question is over.
    pub(crate) fn close(&mut self) {
        for entry in &mut self.of {
            let late = Answer::Failed(NodeFailure::TimedOut);
            entry.answer.get_or_insert(late);
        }
    }

    /// The largest of these that a majority of promises reaches.
    fn by_majority<T: Ord>(&self, of: impl Fn(&Promise) -> T) -> Option<T> {
        let promises = self.of.iter().filter_map(|it| it.promise.as_ref());
        let mut all: Vec<T> = promises.map(of).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        all.into_iter().nth(quorum(self.of.len()).saturating_sub(1))
    }

    /// Time left of the lease.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        self.by_majority(|it| now.until(it.until))
            .unwrap_or_default()
    }

    /// Time since the send of the last confirmed round.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        self.by_majority(|it| Reverse(now.since(it.sent.moment)))
            .map_or(Duration::MAX, |it| it.0)
    }

    /// The last round that a majority has confirmed.
    pub(crate) fn round(&self) -> u64 {
        self.by_majority(|it| it.round).unwrap_or_default()
    }

    /// The largest number that a majority has confirmed: a newer holder has a larger one.
    pub(crate) fn number(&self) -> u64 {
        self.by_majority(|it| it.number).unwrap_or_default()
    }

    /// Whether a majority has promised as much.
    pub(crate) fn confirm(&self, promise: &Promise, now: Moment) -> bool {
        self.by_majority(|it| {
            promise.round <= it.round && now.until(promise.until) <= now.until(it.until)
        }) == Some(true)
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
        self.nodes_with(|_, it| it.answer.as_ref().is_some_and(Answer::is_gone))
    }

    /// Whether too few nodes can have the lock for a majority.
    pub(crate) fn are_gone(&self) -> bool {
        self.of.len().saturating_sub(quorum(self.of.len())) < self.gone().len()
    }

    /// Whether the promise of the node is not over.
    pub(crate) fn runs(&self, node: NodeId, now: Moment) -> bool {
        let entry = self.of.get(node.index());
        entry.is_some_and(|it| it.promise.is_some_and(|it| !now.has_reached(it.until)))
    }

    fn running(&self, now: Moment) -> NodeSet {
        self.nodes_with(|id, _| self.runs(id, now))
    }

    /// Nodes that have the lock, as far as known.
    pub(crate) fn kept(&self, now: Moment) -> NodeSet {
        self.running(now).without(self.gone())
    }

    pub(crate) fn answered(&self) -> NodeSet {
        self.nodes_with(|_, it| it.answer.is_some())
    }

    /// Nodes whose clock was not set forward since their promise; `None` if that is so of all.
    fn sure(&self, stepped_since: &impl Fn(Tick) -> NodeSet, now: Moment) -> Option<NodeSet> {
        let sent = |it: &Entry| it.promise.map(|it| it.sent.tick);
        let first = self.of.iter().filter_map(sent).min()?;
        // Usually none.
        if stepped_since(first).is_empty() {
            return None;
        }
        let running = self.running(now);
        let is_sure =
            |id, it: &Entry| sent(it).is_some_and(|since| !stepped_since(since).contains(id));
        let sure = running.both(self.nodes_with(is_sure));
        (sure != running).then_some(sure)
    }

    /// If promises are in doubt, the time left of a lease without them: zero if no majority is left.
    pub(crate) fn sure_left(
        &self,
        stepped_since: impl Fn(Tick) -> NodeSet,
        now: Moment,
    ) -> Option<Duration> {
        let nodes = self.sure(&stepped_since, now)?;
        let mut sure = self.clone();
        for (id, entry) in (0..).map(NodeId::new).zip(&mut sure.of) {
            entry.promise.take_if(|_| !nodes.contains(id));
        }
        Some(sure.left(now))
    }

    /// Whether too few nodes certainly have the lock, after an extension without a majority that was sent at `asked`.
    /// After a clock step during it the answer is unknown: it has to be sent again.
    pub(crate) fn are_lost(
        &self,
        stepped_since: impl Fn(Tick) -> NodeSet,
        asked: Tick,
        now: Moment,
    ) -> bool {
        self.running(now).both(stepped_since(asked)).is_empty()
            && self
                .sure(&stepped_since, now)
                .is_some_and(|it| it.without(self.gone()).len() < quorum(self.of.len()))
    }

    /// The `answer` of a node to a command with this number, as it counts for the holder of `token`.
    ///
    /// RACE: T1 is refused by a node, waits in its list, and wins with other nodes; T2, a writer, is granted the lock
    /// there and releases it; the node hands it over to T1. Therefore a key or an entry behind a newer counter counts
    /// only where the node had promised one, or behind a number that a majority has confirmed.
    pub(crate) fn counted(&self, node: NodeId, answer: Answer, number: u64, token: u64) -> Answer {
        let counter = answer.counter().unwrap_or(number).max(number);
        let had = self
            .of
            .get(node.index())
            .is_some_and(|it| it.promise.is_some());
        if answer.is_extended() && !had && token < counter && self.number() < counter {
            return Answer::Extend(ExtendReply::Gone { counter });
        }
        answer
    }

    /// Counters that nodes have shown.
    pub(crate) fn counters(&self) -> impl Iterator<Item = u64> {
        self.of
            .iter()
            .filter_map(|it| it.answer.as_ref()?.counter())
    }

    /// The end of each node's promise, if it is not over.
    pub(crate) fn ends(&self, now: Moment) -> Vec<Option<Moment>> {
        let end = |it: &Entry| {
            it.promise
                .map(|it| it.until)
                .filter(|it| !now.has_reached(*it))
        };
        self.of.iter().map(end).collect()
    }

    #[cfg(test)]
    pub(crate) fn counts_from(&self) -> Vec<u64> {
        self.of.iter().map(|it| it.counts_from).collect()
    }

    /// The rows of a report.
    pub(crate) fn rows(&self) -> Vec<NodeAnswer> {
        let row = |it: &Entry| {
            it.answer
                .as_ref()
                .map_or(NodeAnswer::Pending, NodeAnswer::from)
        };
        self.of.iter().map(row).collect()
    }
}
