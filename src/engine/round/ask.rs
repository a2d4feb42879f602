//! Commands for several nodes, of which every answer is of interest.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::fanout::Outgoing;
use crate::engine::round::pending::Pending;
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::NodeSet;
use crate::logic::tally::ProbeRound;
use crate::time::{self, Moment, Tick};
use crate::wire::Command;

/// Waits for the answers of all nodes, or of those in `to`, until `deadline`: what each has answered, or why it has not
/// answered as it should, in node order.
pub(crate) fn ask(
    fanout: &Fanout,
    command: Command,
    to: Option<NodeSet>,
    deadline: Tick,
) -> Vec<Result<Answer, NodeFailure>> {
    ask_timed(fanout, command, to, deadline)
        .into_iter()
        .map(|(answer, _)| answer)
        .collect()
}

/// What a node has answered, or why it has not answered as it should; and how long that took.
pub(crate) type Timed = (Result<Answer, NodeFailure>, Option<Duration>);

/// A command for all nodes, or for those in `to`.
pub(crate) struct NodeQuery {
    pub(crate) command: Command,
    pub(crate) to: Option<NodeSet>,
}

/// Several commands at once, each for its nodes: the answers to each, in node order, at `deadline` at the latest.
pub(crate) fn ask_many(
    fanout: &Fanout,
    commands: impl IntoIterator<Item = NodeQuery>,
    deadline: Tick,
) -> Vec<Vec<Timed>> {
    let begin = |NodeQuery { command, to }| {
        let (round, sent) = (round(fanout, to), Moment::now());
        let outgoing = Outgoing::ask(command, &round).to(to);
        fanout.send(outgoing, None, time::tick());
        (round, sent)
    };
    let rounds: Vec<_> = commands.into_iter().map(begin).collect();
    let end = |(round, sent): (Arc<Pending<ProbeRound>>, Moment)| {
        round.wait(deadline);
        answers(fanout, &round, sent)
    };
    rounds.into_iter().map(end).collect()
}

/// The same of one, and how long each took.
pub(crate) fn ask_timed(
    fanout: &Fanout,
    command: Command,
    to: Option<NodeSet>,
    deadline: Tick,
) -> Vec<Timed> {
    let (round, sent) = (round(fanout, to), Moment::now());
    round.run(fanout, Outgoing::ask(command, &round).to(to), deadline);
    answers(fanout, &round, sent)
}

/// A round that is over when the nodes in `to` have answered.
fn round(fanout: &Fanout, to: Option<NodeSet>) -> Arc<Pending<ProbeRound>> {
    let round = Arc::new(Pending::new(fanout.nodes.len(), ProbeRound::default()));
    for node in fanout
        .ids()
        .filter(|it| to.is_some_and(|to| !to.contains(*it)))
    {
        round.leave_out(node, NodeAnswer::NotAsked);
    }
    round
}

fn answers(fanout: &Fanout, round: &Pending<ProbeRound>, sent: Moment) -> Vec<Timed> {
    fanout
        .ids()
        .map(|node| round.with_ballot(|it| (it.answer(node).cloned(), it.took(node, sent))))
        .collect()
}
