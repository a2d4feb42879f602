//! Small worlds, tested completely: every course that one to five nodes can take, every short life of a lease, every
//! order of messages between two clients and three nodes. Nothing here is sampled, except in `arithmetic`, whose
//! numbers are too many, in `handover`, whose worlds are too large, and in `servers`, which compares the simulated
//! servers of the models with the scripts.
//!
//! The oracles are written from the rules (see `token` and the safety chapter of the guide), not from the code: they
//! look at the votes so far as a whole, and ask "what can still become of this?" by trying what can.
//!
//! `QUORLOCK_LONG=1` leaves out the reductions that keep the suite short; each test says which those are. A few worlds
//! take minutes, and are searched with `QUORLOCK_LONG=2` only.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "numbers in here are tiny, and an overflow fails the test as it should"
)]

mod arithmetic;
mod clients;
mod fencing;
mod handover;
mod held;
mod leases;
mod ledgers;
mod once;
mod quarantines;
mod readers;
mod rounds;
mod servers;
mod several;
mod slots;
mod walk;

use std::fmt::Debug;
use std::time::Duration;

use crate::answer::Answer as Vote;
use crate::error::NodeFailure;
use crate::ids::NodeId;
use crate::logic::ballot::{Ballot, Round, Step};
use crate::time::Moment;

/// Whether to run what `cargo test` alone leaves out.
fn long() -> bool {
    std::env::var_os("QUORLOCK_LONG").is_some_and(|it| it == "1" || it == "2")
}

/// Whether to run what takes minutes.
fn longest() -> bool {
    std::env::var_os("QUORLOCK_LONG").is_some_and(|it| it == "2")
}

fn at(nanos: u64) -> Moment {
    apart(BOOT + nanos, WALL + nanos)
}

/// A moment that the two clocks disagree about.
fn apart(boot: u64, wall: u64) -> Moment {
    Moment::at(Duration::from_nanos(boot), Duration::from_nanos(wall))
}

const BOOT: u64 = 100_000_000_000;
const WALL: u64 = 5_000_000_000_000;
const TTL: u64 = 1_000;

fn deadline() -> Moment {
    at(TTL)
}

fn in_time() -> Moment {
    at(TTL - 1)
}

/// The deadline has passed: on both clocks, long ago, and on one clock only.
fn too_late() -> [Moment; 4] {
    [
        at(TTL),
        at(u64::MAX / 2),
        apart(BOOT + TTL, 0),
        apart(0, WALL + TTL),
    ]
}

/// More than half, in the words of the paper.
fn majority(nodes: usize, of_them: usize) -> bool {
    nodes < 2 * of_them
}

/// One course of a round: who answers what, in which order, and when time runs out.
struct Course<'a> {
    /// All nodes, in the order in which they answer.
    order: &'a [u8],
    /// Their votes. Fewer than nodes: the round is closed after them.
    votes: &'a [Vote],
    /// The first event that comes after the deadline.
    late_from: usize,
    late: Moment,
    /// What each node says a second time, right after its vote.
    echoes: &'a [Vote],
    /// What the nodes say that answer after the round was closed.
    stragglers: &'a Vote,
}

/// What a node says that cannot vote.
const FAILED: Vote = Vote::Failed(NodeFailure::Stalled);

/// What an oracle knows.
struct Facts<'a> {
    nodes: usize,
    /// One vote each of different nodes.
    votes: &'a [Vote],
    /// No further votes will come.
    closed: bool,
    late: bool,
}

impl Facts<'_> {
    fn count(&self, what: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|it| what(it)).count()
    }

    /// Nodes that can still vote.
    fn open(&self) -> usize {
        if self.closed {
            0
        } else {
            self.nodes - self.votes.len()
        }
    }

    /// Nodes that have not voted and never will.
    fn quarantined(&self) -> usize {
        if self.closed {
            self.nodes - self.votes.len()
        } else {
            0
        }
    }

    /// Whether those who said `yes` can become a majority, whatever it takes.
    fn within_reach(&self, yes: usize) -> bool {
        (0..=self.open()).any(|more| majority(self.nodes, yes + more))
    }
}

/// Plays `course` and compares every step with the oracle's. Checks for every kind of round: it is decided at the
/// first vote at which the oracle is certain, closing always ends it, it ends once, nobody votes twice.
fn play<R>(round: R, course: &Course<'_>, oracle: impl Fn(&Facts<'_>) -> Step<R::End>)
where
    R: Round<End: PartialEq + Debug>,
{
    let Course {
        order,
        votes,
        late_from,
        ..
    } = *course;
    let nodes = order.len();
    let mut round = Ballot::new(nodes, round);
    let mut over = false;
    for event in 0..=votes.len() {
        let closed = event == votes.len();
        let late = late_from <= event;
        let now = if late { course.late } else { in_time() };
        let node = order.get(event).copied().map(NodeId::new);
        let step = match node {
            Some(node) if !closed => round.on_vote(node, votes[event].clone(), now),
            _ => round.on_timeout(now),
        };
        let known = &votes[..votes.len().min(event + 1)];
        let expected = if over {
            Step::Late
        } else {
            oracle(&Facts {
                nodes,
                votes: known,
                closed,
                late,
            })
        };
        assert_eq!(
            step, expected,
            "{nodes} nodes: {known:?} of {order:?}, closed {closed}, late {late}"
        );
        over |= step != Step::Wait;
        if let Some(node) = node.filter(|_| !closed) {
            for echo in course.echoes {
                assert_eq!(
                    round.on_vote(node, echo.clone(), now),
                    Step::Late,
                    "{echo:?} of {node} after {known:?}"
                );
            }
        }
    }
    assert!(over, "{nodes} nodes: open for ever after {votes:?}");
    for node in &order[votes.len()..] {
        assert_eq!(
            round.on_vote(NodeId::new(*node), course.stragglers.clone(), in_time()),
            Step::Late,
            "after {votes:?}"
        );
    }
    assert_eq!(
        round.on_timeout(in_time()),
        Step::Late,
        "ended twice after {votes:?}"
    );
}

/// Calls `visit` with every list of `len` things out of `kinds`.
fn each_list<V: Clone>(kinds: &[V], len: usize, visit: &mut impl FnMut(&[V])) {
    fn grow<V: Clone>(kinds: &[V], len: usize, list: &mut Vec<V>, visit: &mut impl FnMut(&[V])) {
        if list.len() == len {
            return visit(list);
        }
        for kind in kinds {
            list.push(kind.clone());
            grow(kinds, len, list, visit);
            list.pop();
        }
    }
    grow(kinds, len, &mut Vec::new(), visit);
}

/// Every order of the nodes.
fn orders(nodes: u8) -> Vec<Vec<u8>> {
    let mut orders = vec![vec![]];
    for node in 0..nodes {
        orders = orders
            .iter()
            .flat_map(|order| {
                (0..=order.len()).map(move |place| {
                    let mut order = order.clone();
                    order.insert(place, node);
                    order
                })
            })
            .collect();
    }
    orders
}

/// Which courses to play.
struct Plan<'a> {
    nodes: std::ops::RangeInclusive<u8>,
    /// Every order of the nodes, or just the one in which they are configured.
    every_order: bool,
    kinds: &'a [Vote],
    late: &'a [Moment],
    echoes: &'a [Vote],
    stragglers: &'a Vote,
}

impl Plan<'_> {
    /// Every list of votes of none to all nodes, the round closed after them, with time running out before any of
    /// these events or never. Answers how many courses that makes.
    fn each_course(&self, mut visit: impl FnMut(&Course<'_>)) -> u64 {
        let mut courses = 0;
        for nodes in self.nodes.clone() {
            let orders = if self.every_order {
                orders(nodes)
            } else {
                vec![(0..nodes).collect()]
            };
            for votes in 0..=usize::from(nodes) {
                each_list(self.kinds, votes, &mut |votes| {
                    for order in &orders {
                        for late_from in 0..=votes.len() + 1 {
                            // Which clock says so makes no difference to a course on which neither does.
                            let never = votes.len() < late_from;
                            for late in if never { &self.late[..1] } else { self.late } {
                                courses += 1;
                                let echoes = self.echoes;
                                let stragglers = self.stragglers;
                                visit(&Course {
                                    order,
                                    votes,
                                    late_from,
                                    late: *late,
                                    echoes,
                                    stragglers,
                                });
                            }
                        }
                    }
                });
            }
        }
        courses
    }
}
