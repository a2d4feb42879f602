//! A release or a probe under way: votes come in from the workers, one decision goes out.
//!
//! One shared place and one wake-up per round, at the decision. A channel per request, or a wake-up
//! per answer, costs half of the throughput.
//!
//! [`query_many`] waits for every answer.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::fanout::{Broadcast, Fanout};
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::{NodeId, NodeSet};
use crate::logic::ballot::{Ballot, Round, Step};
use crate::logic::tally::ProbeRound;
use crate::session::pending_command::ReplyHandler;
use crate::sys::sync::{Condvar, Mutex, MutexGuard};
use crate::time::{self, Moment, Tick};
use crate::wire::Command;

/// A round under way.
pub(crate) struct Pending<R: Round> {
    state: Mutex<RoundState<R>>,
    decided: Condvar,
}

struct RoundState<R: Round> {
    ballot: Ballot<R>,
    /// Nodes that were not asked.
    left_out: NodeSet,
}

impl<R: Round> Pending<R> {
    /// A round among the nodes `to`, or all. The other nodes count as failed.
    pub(crate) fn among(fanout: &Fanout, round: R, to: Option<NodeSet>) -> Arc<Pending<R>> {
        Arc::new(Pending::new(fanout.nodes.len(), round, to))
    }

    pub(crate) fn new(nodes: usize, round: R, to: Option<NodeSet>) -> Pending<R> {
        let ids = (0..).map(NodeId::new).take(nodes);
        let mut state = RoundState {
            ballot: Ballot::new(nodes, round),
            left_out: NodeSet::default(),
        };
        for node in ids.filter(|it| to.is_some_and(|to| !to.contains(*it))) {
            state.left_out.insert(node);
            state.take(node, Answer::Failed(NodeFailure::TimedOut));
        }
        Pending {
            state: Mutex::new(state),
            decided: Condvar::default(),
        }
    }

    /// Waits for the decision. At `deadline` the votes so far decide.
    ///
    /// It sleeps at once: on a busy machine each yield may cost a slice of the processor.
    pub(crate) fn wait(&self, deadline: Tick) -> R::End {
        let mut state = self.state.lock();
        loop {
            if let Some(end) = state.ballot.end() {
                return end;
            }
            if !self.decided.wait(&mut state, Some(deadline)) {
                let end = state.close();
                MutexGuard::unlocked(&mut state, || self.announce(end));
            }
        }
    }

    /// The decision, if any.
    pub(crate) fn end(&self) -> Option<R::End> {
        self.state.lock().ballot.end()
    }

    /// Ends the round now; false if it was over.
    #[cfg(all(test, quorlock_shuttle))]
    pub(crate) fn close(&self) -> bool {
        let end = self.state.lock().close();
        self.announce(end);
        end.is_some()
    }

    /// The rows of all nodes so far.
    pub(crate) fn rows(&self) -> Vec<NodeAnswer> {
        let state = self.state.lock();
        let row = |(node, row)| match state.left_out.contains(node) {
            true => NodeAnswer::NotAsked,
            false => row,
        };
        state.ballot.rows().map(row).collect()
    }

    /// Reads the votes.
    fn with_ballot<T>(&self, look: impl FnOnce(&Ballot<R>) -> T) -> T {
        look(&self.state.lock().ballot)
    }

    fn announce(&self, end: Option<R::End>) {
        if end.is_some() {
            self.decided.notify_all();
        }
    }
}

impl<R: Round> RoundState<R> {
    /// Takes a vote. Returns the end if the vote decides the round.
    fn take(&mut self, node: NodeId, vote: Answer) -> Option<R::End> {
        match self.ballot.on_vote(node, vote, Moment::now()) {
            Step::Decided(end) => Some(end),
            _ => None,
        }
    }

    /// Ends an open round: a time-out always decides.
    fn close(&mut self) -> Option<R::End> {
        let now = Moment::now();
        let Step::Decided(end) = self.ballot.on_timeout(now) else {
            return None;
        };
        Some(end)
    }
}

impl<R: Round> ReplyHandler for Pending<R> {
    fn deliver(&self, node: NodeId, answer: Answer, _reached: bool) -> bool {
        let mut state = self.state.lock();
        let counted = state.ballot.end().is_none();
        let end = state.take(node, answer);
        drop(state);
        self.announce(end);
        counted
    }

    fn is_open(&self) -> bool {
        self.end().is_none()
    }
}

/// Waits for the answers of all nodes, or of those in `to`, as long as a round lasts. Returns the
/// answer or failure of each, in node order.
pub(crate) fn query(
    fanout: &Fanout,
    command: Command,
    to: Option<NodeSet>,
) -> Vec<Result<Answer, NodeFailure>> {
    let answers = query_many(fanout, [NodeQuery { command, to }]);
    answers.into_iter().flatten().map(|it| it.0).collect()
}

/// Answer or failure of a node, and how long it took.
pub(crate) type Timed = (Result<Answer, NodeFailure>, Option<Duration>);

/// A command for all nodes, or for those in `to`.
pub(crate) struct NodeQuery {
    pub(crate) command: Command,
    pub(crate) to: Option<NodeSet>,
}

/// Sends several commands at once, each to its nodes. Returns the answers to each, in node order.
pub(crate) fn query_many(
    fanout: &Fanout,
    commands: impl IntoIterator<Item = NodeQuery>,
) -> Vec<Vec<Timed>> {
    let deadline = fanout.look().deadline(time::tick());
    let begin = |NodeQuery { command, to }| {
        let round = Pending::among(fanout, ProbeRound::default(), to);
        let sent = Moment::now();
        fanout.send(Broadcast::new(command, &round).to(to), time::tick());
        (round, sent)
    };
    let rounds: Vec<_> = commands.into_iter().map(begin).collect();
    let end = |(round, sent): (Arc<Pending<ProbeRound>>, Moment)| {
        round.wait(deadline);
        let timed = |node| round.with_ballot(|it| (it.answer(node).cloned(), it.took(node, sent)));
        fanout.ids().map(timed).collect()
    };
    rounds.into_iter().map(end).collect()
}
