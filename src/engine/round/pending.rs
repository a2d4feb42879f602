//! A round that is under way: votes come in from the workers, one decision goes out.
//!
//! One shared place per round and one wake-up, at the decision. A channel per request, or a wake-up per answer, costs
//! half of the throughput.

use std::fmt;

use crate::answer::{AcquireReply, Answer, ExtendReply, RaiseReply, ReleaseReply};
use crate::engine::nodes::job::Sink;
use crate::error::{NodeAnswer, NodeFailure, Quarantine};
use crate::ids::{NodeId, NodeSet};
use crate::logic::acquire::{AcquireRound, AcquireVote, RaiseRound, RaiseVote};
use crate::logic::tally::{ExtendRound, ExtendVote, ProbeRound, ReleaseRound, ReleaseVote};
use crate::logic::{Round, Step};
use crate::sys::sync::{Condvar, Mutex, MutexGuard};
use crate::time::{self, Moment, Tick};

/// How a kind of round reads answers.
pub(crate) trait Reads: Round<End: Copy + Send + 'static> + Send + 'static {
    /// It is of no use to ask fewer nodes than a majority.
    const NEEDS_A_MAJORITY: bool = false;

    /// The vote in an answer, and the row that it makes in a report.
    fn read(answer: Answer) -> (Self::Vote, NodeAnswer);
}

/// A round under way.
pub(crate) struct Pending<R: Round> {
    state: Mutex<State<R>>,
    decided: Condvar,
    /// Told of every answer that comes after the decision.
    answered: Condvar,
    /// Called by the thread that decides the round, with nothing locked.
    hook: Option<Hook<R>>,
}

type Hook<R> = Box<dyn Fn(&<R as Round>::End) + Send + Sync>;

/// When a round was decided, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) at: Moment,
    /// Not by votes.
    pub(crate) timed_out: bool,
}

struct State<R: Round> {
    round: R,
    end: Option<R::End>,
    ended: Option<Ended>,
    rows: Vec<Option<NodeAnswer>>,
    /// Nodes to which something of the command may have come.
    reached: NodeSet,
}

impl<R: Round> fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

impl<R: Reads> Pending<R> {
    pub(crate) fn new(nodes: usize, round: R) -> Pending<R> {
        Pending::with_hook(nodes, round, None)
    }

    pub(crate) fn with_hook(nodes: usize, round: R, hook: Option<Hook<R>>) -> Pending<R> {
        let rows = vec![None; nodes];
        let state = State { round, end: None, ended: None, rows, reached: NodeSet::default() };
        Pending { state: Mutex::new(state), decided: Condvar::new(), answered: Condvar::new(), hook }
    }

    /// Remembers to which nodes the command was given.
    pub(crate) fn set_reached(&self, nodes: NodeSet) {
        let mut state = self.state.lock();
        state.reached = state.reached.union(nodes);
    }

    pub(crate) fn reached(&self) -> NodeSet {
        self.state.lock().reached
    }

    /// Waits until the round is decided; at `deadline` it is decided with the votes that are there.
    pub(crate) fn wait(&self, deadline: Tick) -> R::End {
        let mut state = self.state.lock();
        loop {
            if let Some(end) = state.end {
                return end;
            }
            if self.decided.wait_until(&mut state, deadline).timed_out() {
                let end = state.close();
                MutexGuard::unlocked(&mut state, || self.announce(end));
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end().is_some()
    }

    /// How it was decided, if it was.
    pub(crate) fn end(&self) -> Option<R::End> {
        self.state.lock().end
    }

    /// When it was decided, if it was.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.state.lock().ended
    }

    /// Ends the round now; false if it was over already.
    pub(crate) fn close(&self) -> bool {
        let end = self.state.lock().close();
        self.announce(end);
        end.is_some()
    }

    /// Waits until every node has answered, also after the decision, or until `deadline`: for reports.
    pub(crate) fn wait_for_rows(&self, deadline: Tick) {
        let mut state = self.state.lock();
        while state.rows.iter().any(Option::is_none) && !self.answered.wait_until(&mut state, deadline).timed_out() {}
    }

    /// What each node answered so far.
    pub(crate) fn rows(&self) -> Vec<NodeAnswer> {
        let state = self.state.lock();
        state.rows.iter().map(|it| it.clone().unwrap_or(NodeAnswer::Pending)).collect()
    }

    /// What an answer turns out to be worth.
    pub(crate) fn amend(&self, node: NodeId, row: NodeAnswer) {
        if let Some(place) = self.state.lock().rows.get_mut(node.index()) {
            *place = Some(row);
        }
    }

    /// The nodes with an answer like this so far.
    pub(crate) fn nodes_with(&self, what: impl Fn(&NodeAnswer) -> bool) -> NodeSet {
        let state = self.state.lock();
        let rows = state.rows.iter().zip((0..).map(NodeId::new));
        rows.filter(|(row, _)| row.as_ref().is_some_and(&what)).map(|(_, node)| node).collect()
    }

    /// Looks at the round itself.
    pub(crate) fn with_round<T>(&self, look: impl FnOnce(&R) -> T) -> T {
        look(&self.state.lock().round)
    }

    /// Counts a vote that no worker delivers.
    pub(crate) fn put(&self, node: NodeId, vote: R::Vote, row: NodeAnswer) {
        let end = {
            let mut state = self.state.lock();
            state.take(node, vote, row)
        };
        self.announce(end);
    }

    fn announce(&self, end: Option<R::End>) {
        if let Some(end) = end {
            if let Some(hook) = &self.hook {
                hook(&end);
            }
            self.decided.notify_all();
        }
    }
}

impl<R: Reads> State<R> {
    fn take(&mut self, node: NodeId, vote: R::Vote, row: NodeAnswer) -> Option<R::End> {
        let now = Moment::now();
        match self.round.on_vote(node, vote, now) {
            Step::Wait => self.note(node, row),
            // It changes nothing, and it is a better row than none.
            Step::Late => self.note(node, row),
            Step::Decided(end) => {
                self.note(node, row);
                (self.end, self.ended) = (Some(end), Some(Ended { at: now, timed_out: false }));
                return Some(end);
            }
        }
        None
    }

    fn note(&mut self, node: NodeId, row: NodeAnswer) {
        if let Some(place @ None) = self.rows.get_mut(node.index()) {
            *place = Some(row);
        }
    }

    /// The end, if the round was open: its time-out always ends it.
    fn close(&mut self) -> Option<R::End> {
        let now = Moment::now();
        let Step::Decided(end) = self.round.on_timeout(now) else { return None };
        (self.end, self.ended) = (Some(end), Some(Ended { at: now, timed_out: true }));
        for row in &mut self.rows {
            row.get_or_insert(NodeAnswer::Failed(NodeFailure::TimedOut));
        }
        Some(end)
    }
}

impl<R: Reads> Sink for Pending<R> {
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool {
        let (vote, row) = R::read(answer);
        let (counted, end) = {
            let mut state = self.state.lock();
            if !reached {
                state.reached.remove(node);
            }
            (state.end.is_none(), state.take(node, vote, row))
        };
        self.announce(end);
        // Costs nothing while nobody waits for it, which is nearly always.
        self.answered.notify_all();
        counted
    }

    fn is_open(&self) -> bool {
        !self.is_over()
    }
}

/// The deadline of a round that begins now.
pub(crate) fn deadline(timeout: std::time::Duration) -> Tick {
    let now = time::tick();
    now.checked_add(timeout).unwrap_or(now)
}

fn unexpected() -> NodeAnswer {
    NodeAnswer::Failed(NodeFailure::Protocol { reason: "an answer to another command".to_owned() })
}

fn failed(answer: Answer) -> NodeAnswer {
    match answer {
        Answer::Failed(failure) => NodeAnswer::Failed(failure),
        Answer::NoScript => NodeAnswer::Failed(NodeFailure::Refused { message: "the script is gone".to_owned() }),
        Answer::Acquire(_)
        | Answer::Raise(_)
        | Answer::Extend(_)
        | Answer::Release(_)
        | Answer::Greet(_)
        | Answer::Meet(_)
        | Answer::Subscribed
        | Answer::Time => unexpected(),
    }
}

impl Reads for AcquireRound {
    const NEEDS_A_MAJORITY: bool = true;

    fn read(answer: Answer) -> (AcquireVote, NodeAnswer) {
        match answer {
            Answer::Acquire(AcquireReply::Accepted) => (AcquireVote::Accepted, NodeAnswer::Granted),
            Answer::Acquire(AcquireReply::Behind { counter }) => {
                (AcquireVote::Behind { counter }, NodeAnswer::GrantedBehind)
            }
            Answer::Acquire(AcquireReply::Held { counter, left, entered, holder }) => {
                (AcquireVote::Held { counter, entered }, NodeAnswer::Held { left, holder })
            }
            Answer::Acquire(AcquireReply::Reserved { counter, left, entered }) => {
                (AcquireVote::Held { counter, entered }, NodeAnswer::Reserved { left })
            }
            Answer::Acquire(AcquireReply::WrongType) | Answer::Failed(NodeFailure::WrongType) => {
                (AcquireVote::Unusable, NodeAnswer::Failed(NodeFailure::WrongType))
            }
            Answer::Acquire(AcquireReply::BadCounter) => {
                (AcquireVote::Unusable, NodeAnswer::Failed(NodeFailure::BadCounter))
            }
            Answer::Acquire(AcquireReply::Ahead { counter }) => {
                (AcquireVote::Ahead { counter }, NodeAnswer::Failed(NodeFailure::ClockBehind))
            }
            other => (AcquireVote::Failed, failed(other)),
        }
    }
}

impl Reads for RaiseRound {
    fn read(answer: Answer) -> (RaiseVote, NodeAnswer) {
        match answer {
            Answer::Raise(RaiseReply::Taken) => (RaiseVote::Taken, NodeAnswer::Granted),
            Answer::Raise(RaiseReply::Above { counter }) => (RaiseVote::Above { counter }, NodeAnswer::GrantedBehind),
            Answer::Raise(RaiseReply::Gone) => (RaiseVote::Gone, NodeAnswer::Gone),
            Answer::Raise(RaiseReply::Unusable) => (RaiseVote::Failed, NodeAnswer::Failed(NodeFailure::BadCounter)),
            other => (RaiseVote::Failed, failed(other)),
        }
    }
}

impl Reads for ExtendRound {
    fn read(answer: Answer) -> (ExtendVote, NodeAnswer) {
        match answer {
            Answer::Extend(ExtendReply::Extended) => (ExtendVote::Extended, NodeAnswer::Extended),
            Answer::Extend(ExtendReply::Superseded) => (ExtendVote::Superseded, NodeAnswer::Superseded),
            Answer::Extend(ExtendReply::Gone | ExtendReply::Taken) => (ExtendVote::Gone, NodeAnswer::Gone),
            Answer::Extend(ExtendReply::Unusable) => (ExtendVote::Failed, NodeAnswer::Failed(NodeFailure::BadCounter)),
            Answer::Extend(ExtendReply::Forgot { left }) => {
                (ExtendVote::Failed, NodeAnswer::Failed(NodeFailure::Quarantined { left, why: Quarantine::Emptied }))
            }
            other => (ExtendVote::Failed, failed(other)),
        }
    }
}

impl Reads for ProbeRound {
    fn read(answer: Answer) -> (Option<NodeFailure>, NodeAnswer) {
        let failure = match answer {
            Answer::Time | Answer::Greet(_) => None,
            other => match failed(other) {
                NodeAnswer::Failed(failure) => Some(failure),
                _ => None,
            },
        };
        (failure, NodeAnswer::Pending)
    }
}

impl Reads for ReleaseRound {
    fn read(answer: Answer) -> (ReleaseVote, NodeAnswer) {
        match answer {
            Answer::Release(ReleaseReply::Deleted) => (ReleaseVote::Deleted, NodeAnswer::Released),
            Answer::Release(ReleaseReply::NotOurs) => (ReleaseVote::NotOurs, NodeAnswer::Released),
            other => (ReleaseVote::Failed, failed(other)),
        }
    }
}
