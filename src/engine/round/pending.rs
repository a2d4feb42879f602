//! A round under way: votes come in from the workers, one decision goes out.
//!
//! One shared place and one wake-up per round, at the decision. A channel per request, or a wake-up per answer, costs
//! half of the throughput.
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
    /// Notified of every answer.
    answered: Condvar,
}

struct RoundState<R: Round> {
    ballot: Ballot<R>,
    /// Whether the time-out decided the round.
    timed_out: bool,
    /// Rows that differ from the votes. Few rounds have any.
    amended: Vec<(NodeId, NodeAnswer)>,
    /// Nodes that may have got the command.
    reached: NodeSet,
}

impl<R: Round> Pending<R> {
    pub(crate) fn new(nodes: usize, round: R) -> Pending<R> {
        Pending::of_ballot(Ballot::new(nodes, round), NodeSet::default())
    }

    /// A round with the votes of `ballot`. `reached`: nodes that may have got its command.
    pub(crate) fn of_ballot(ballot: Ballot<R>, reached: NodeSet) -> Pending<R> {
        Pending {
            state: Mutex::new(RoundState {
                ballot,
                timed_out: false,
                amended: Vec::new(),
                reached,
            }),
            decided: Condvar::default(),
            answered: Condvar::default(),
        }
    }

    /// A round among the nodes `to`, or all. The other nodes count as failed.
    pub(crate) fn among(fanout: &Fanout, round: R, to: Option<NodeSet>) -> Arc<Pending<R>> {
        let pending = Arc::new(Pending::new(fanout.nodes.len(), round));
        let is_left_out = |node: &NodeId| to.is_some_and(|to| !to.contains(*node));
        for node in fanout.ids().filter(is_left_out) {
            pending.leave_out(node, NodeAnswer::NotAsked);
        }
        pending
    }

    /// Adds nodes that got the command.
    pub(crate) fn set_reached(&self, nodes: NodeSet) {
        let mut state = self.state.lock();
        state.reached = state.reached.union(nodes);
    }

    pub(crate) fn reached(&self) -> NodeSet {
        self.state.lock().reached
    }

    /// Sends the command of the round.
    pub(crate) fn send(&self, fanout: &Fanout, broadcast: Broadcast) {
        let taken = fanout.send(broadcast, time::tick());
        self.set_reached(taken);
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

    pub(crate) fn is_over(&self) -> bool {
        self.end().is_some()
    }

    /// The decision, if any.
    pub(crate) fn end(&self) -> Option<R::End> {
        self.state.lock().ballot.end()
    }

    /// Whether the time-out decided the round.
    pub(crate) fn timed_out(&self) -> bool {
        self.state.lock().timed_out
    }

    /// Ends the round now; false if it was over.
    #[cfg(all(test, quorlock_shuttle))]
    pub(crate) fn close(&self) -> bool {
        let end = self.state.lock().close();
        self.announce(end);
        end.is_some()
    }

    /// Waits for every answer, also after the decision, until `deadline`: for reports.
    pub(crate) fn wait_for_rows(&self, deadline: Tick) {
        let mut state = self.state.lock();
        while state.ballot.votes().open() != 0 && self.answered.wait(&mut state, Some(deadline)) {}
    }

    /// The rows of all nodes so far.
    pub(crate) fn rows(&self) -> Vec<NodeAnswer> {
        let state = self.state.lock();
        let amended = |node| {
            state
                .amended
                .iter()
                .rev()
                .find(|(it, _)| *it == node)
                .map(|(_, row)| row.clone())
        };
        state
            .ballot
            .rows()
            .map(|(node, row)| amended(node).unwrap_or(row))
            .collect()
    }

    /// Corrects a row after the end.
    pub(crate) fn amend(&self, node: NodeId, row: NodeAnswer) {
        self.state.lock().amended.push((node, row));
    }

    /// Nodes with such an answer so far.
    pub(crate) fn nodes_with(&self, what: impl Fn(&Answer) -> bool) -> NodeSet {
        self.state.lock().ballot.votes().nodes_with(what)
    }

    /// Reads the votes.
    pub(crate) fn with_ballot<T>(&self, look: impl FnOnce(&Ballot<R>) -> T) -> T {
        look(&self.state.lock().ballot)
    }

    /// Counts a skipped node as failed. `row`: its row in reports.
    pub(crate) fn leave_out(&self, node: NodeId, row: NodeAnswer) {
        let mut state = self.state.lock();
        if state.ballot.votes().get(node).is_none() {
            state.amended.push((node, row));
        }
        let end = state.take(node, Answer::Failed(NodeFailure::TimedOut));
        drop(state);
        self.announce(end);
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
        if self.ballot.end().is_some() {
            self.ballot.on_late_vote(node, vote);
            return None;
        }
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
        self.timed_out = true;
        Some(end)
    }
}

impl<R: Round> ReplyHandler for Pending<R> {
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool {
        let mut state = self.state.lock();
        if !reached {
            state.reached.remove(node);
        }
        let counted = state.ballot.end().is_none();
        let end = state.take(node, answer);
        drop(state);
        self.announce(end);
        // Costs nothing without a waiting thread, which is the usual case.
        self.answered.notify_all();
        counted
    }

    fn is_open(&self) -> bool {
        !self.is_over()
    }
}

/// Waits for the answers of all nodes, or of those in `to`, as long as a round lasts. Returns the answer or failure of
/// each, in node order.
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
    let deadline = fanout.deadline(time::tick());
    let begin = |NodeQuery { command, to }| {
        let round = Pending::among(fanout, ProbeRound::default(), to);
        let sent = Moment::now();
        round.send(fanout, Broadcast::new(command, &round).to(to));
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
