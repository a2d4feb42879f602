//! A job of one period in a small world: two callers, three nodes, and the shipped judgement of what the nodes show.
//!
//! Each caller sets its keys where there are none, then asks each node once at any time, decides, works, and sends its
//! record to each node, where it runs at any time or never. Keys expire at any time, also between two steps of a caller: the
//! adversary is stronger than locks allow. Nodes lose their data and are new from then on. Whoever finds a record copies
//! it. All states that can be reached are visited.
//!
//! Two successes must never be confirmed, and nobody may find the job done before it has succeeded. Each rule that is
//! left out breaks one of the two.
//!
//! On purpose: no key is set behind the first look. Late grants and extensions do that. With them two successes are
//! possible here, and so a record counts within the lease only: see `record` in `once/job.rs`.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::walk::World;
use super::*;
use crate::answer::JobRecord;
use crate::once::{Due, NodeReply, Verdict, judge};

const NODES: usize = 3;
const CALLERS: usize = 2;

/// What a caller may leave out.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Mistake {
    #[default]
    None,
    /// Nodes count without the caller's key on them.
    WithoutKey,
    /// Nodes count that have lost their data in this period.
    NewNodes,
    /// A record is written whoever holds the lock.
    AnyOwner,
    /// One node is enough for a record.
    Minority,
    /// The record comes before the work.
    RecordFirst,
}

const ALL: [Mistake; 6] = [
    Mistake::None,
    Mistake::WithoutKey,
    Mistake::NewNodes,
    Mistake::AnyOwner,
    Mistake::Minority,
    Mistake::RecordFirst,
];

#[derive(Debug)]
struct Period {
    mistake: Mistake,
    restarts: u8,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Decision {
    Run,
    Done,
    Leave,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Node {
    /// The caller whose key is there, plus one.
    key: u8,
    is_new: bool,
    has_record: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Phase {
    /// It sets its keys, and looks.
    #[default]
    Looks,
    Works,
    /// It has sent its record.
    Records,
    /// A majority has confirmed its record.
    Confirmed,
    Ended,
}

/// A look at a node: 0 not yet or no answer, otherwise 1 and the bits of what it shows.
type Shown = u8;
const OURS: u8 = 1;
const NEW: u8 = 2;
const RECORD: u8 = 4;

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Caller {
    phase: Phase,
    shown: [Shown; NODES],
    /// Nodes to which its record is under way, and those that have confirmed it.
    sent: u8,
    confirmed: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct State {
    nodes: [Node; NODES],
    callers: [Caller; CALLERS],
    restarts: u8,
    /// Whether a caller has succeeded, and whether a record of it was written.
    succeeded: bool,
    recorded: bool,
    found_done: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    /// Two callers were told that their success is recorded.
    TwoSuccesses,
    /// A caller found the job done, and nobody has done it.
    NoRun,
}

/// Of a period that began at 500.
const DUE: Due = Due {
    kind: 9,
    period: 7,
    first: 500,
    life: 2_000,
    now: 1_000,
};

/// The same, looked up: worlds ask often.
fn decide(mistake: Mistake, shown: [Shown; NODES]) -> Decision {
    static DECISIONS: OnceLock<HashMap<(Mistake, [Shown; NODES]), Decision>> = OnceLock::new();
    let all = DECISIONS.get_or_init(|| {
        let shown = (0..9_u16.pow(3)).map(|it| [it % 9, it / 9 % 9, it / 81].map(|it| it as Shown));
        let every = |mistake| {
            shown
                .clone()
                .map(move |it| ((mistake, it), judged(mistake, it)))
        };
        ALL.into_iter().flat_map(every).collect()
    });
    all[&(mistake, shown)]
}

/// What the shipped code says to such answers.
fn judged(mistake: Mistake, shown: [Shown; NODES]) -> Decision {
    let reply = |shown: Shown| -> NodeReply {
        let Some(bits) = shown.checked_sub(1) else {
            return Err(NodeFailure::TimedOut);
        };
        let is_new = bits & NEW != 0 && mistake != Mistake::NewNodes;
        Ok(Vote::Job(JobRecord {
            is_ours: bits & OURS != 0 || mistake == Mistake::WithoutKey,
            kept_since: if is_new { 900 } else { 100 },
            time: DUE.now,
            text: if bits & RECORD == 0 {
                String::new()
            } else {
                "1 done 7 5 1 2 9 a ".to_owned()
            },
        }))
    };
    match judge(&DUE, &shown.map(reply), false) {
        Verdict::Nothing => Decision::Run,
        Verdict::Done(_) => Decision::Done,
        _ => Decision::Leave,
    }
}

/// One look for all that the shipped code decides alike, whatever the other nodes show.
fn alike(mistake: Mistake, shown: Shown) -> Shown {
    let decided = |it| decide(mistake, [it; NODES]);
    (1..=shown)
        .find(|it| decided(*it) == decided(shown))
        .unwrap_or(shown)
}

impl Period {
    fn next_of(&self, state: &State, me: usize, all: &mut Vec<State>) {
        let caller = state.callers[me];
        let mut add = |change: &dyn Fn(&mut State, &mut Caller)| {
            let (mut next, mut caller) = (*state, caller);
            change(&mut next, &mut caller);
            next.callers[me] = caller;
            all.push(next);
        };
        let key = me as u8 + 1;
        let records_first = self.mistake == Mistake::RecordFirst;
        match caller.phase {
            Phase::Looks => {
                for i in 0..NODES {
                    let node = state.nodes[i];
                    if caller.shown[i] != 0 {
                        continue;
                    }
                    if node.key == 0 && caller.shown == [0; NODES] {
                        add(&|state, _| state.nodes[i].key = key);
                    }
                    let bits = u8::from(node.key == key) * OURS
                        + u8::from(node.is_new) * NEW
                        + u8::from(node.has_record) * RECORD;
                    let shown = alike(self.mistake, 1 + bits);
                    add(&|_, caller| caller.shown[i] = shown);
                }
                match decide(self.mistake, caller.shown) {
                    Decision::Run if records_first => add(&|_, caller| {
                        caller.phase = Phase::Records;
                        caller.sent = 0b111;
                    }),
                    Decision::Run => add(&|_, caller| caller.phase = Phase::Works),
                    Decision::Done => add(&|state, caller| {
                        caller.phase = Phase::Ended;
                        state.found_done = true;
                    }),
                    // It asks the others, or ends.
                    Decision::Leave => {}
                }
            }
            Phase::Works => {
                add(&|_, caller| caller.phase = Phase::Ended);
                add(&|state, caller| {
                    state.succeeded = true;
                    caller.phase = if records_first {
                        Phase::Confirmed
                    } else {
                        Phase::Records
                    };
                    caller.sent = if records_first { 0 } else { 0b111 };
                });
            }
            Phase::Records => {
                for i in 0..NODES {
                    let bit = 1 << i;
                    if caller.sent & bit == 0 {
                        continue;
                    }
                    let fits = state.nodes[i].key == key || self.mistake == Mistake::AnyOwner;
                    add(&|state, caller| {
                        caller.sent &= !bit;
                        if fits {
                            state.nodes[i].has_record = true;
                            state.recorded = true;
                            caller.confirmed |= bit;
                        }
                    });
                }
                let needed = if self.mistake == Mistake::Minority {
                    1
                } else {
                    2
                };
                if needed <= caller.confirmed.count_ones() {
                    add(&|_, caller| {
                        caller.phase = if records_first {
                            Phase::Works
                        } else {
                            Phase::Confirmed
                        };
                    });
                }
                // Its answers are lost, or the process ends. What it has sent may still run.
            }
            Phase::Confirmed | Phase::Ended => {}
        }
    }
}

impl World for Period {
    type State = State;
    type Violation = Violation;

    fn next(&self, state: &State) -> Vec<State> {
        let mut all = vec![];
        for me in 0..CALLERS {
            self.next_of(state, me, &mut all);
        }
        for i in 0..NODES {
            let mut change = |change: &dyn Fn(&mut Node)| {
                let mut next = *state;
                change(&mut next.nodes[i]);
                all.push(next);
            };
            if state.nodes[i].key != 0 {
                change(&|node| node.key = 0);
            }
            if state.recorded && !state.nodes[i].has_record {
                change(&|node| node.has_record = true);
            }
            if state.restarts < self.restarts {
                let mut next = *state;
                next.restarts += 1;
                next.nodes[i] = Node {
                    is_new: true,
                    ..Node::default()
                };
                all.push(next);
            }
        }
        all
    }

    fn violation(&self, _before: &State, state: &State) -> Option<Violation> {
        let confirmed = state
            .callers
            .iter()
            .filter(|it| it.phase == Phase::Confirmed);
        if 1 < confirmed.count() {
            return Some(Violation::TwoSuccesses);
        }
        // Whoever works may still succeed.
        let may_succeed = state.callers.iter().any(|it| it.phase == Phase::Works);
        (state.found_done && !state.succeeded && !may_succeed).then_some(Violation::NoRun)
    }

    fn settle(&self, state: State) -> Option<State> {
        let mut state = state;
        for caller in &mut state.callers {
            if caller.phase != Phase::Looks {
                caller.shown = [0; NODES];
            }
        }
        // The nodes are alike, and so are the callers.
        let place = |state: &State, i: usize| {
            let of = |it: &Caller| (it.shown[i], it.sent >> i & 1, it.confirmed >> i & 1);
            let node = state.nodes[i];
            (
                node.key,
                node.is_new,
                node.has_record,
                state.callers.each_ref().map(of),
            )
        };
        let sorted = |state: State| {
            let mut order = [0, 1, 2];
            order.sort_by_key(|i| place(&state, *i));
            let moved = |bits: u8| (0..NODES).map(|i| (bits >> order[i] & 1) << i).sum();
            State {
                nodes: order.map(|i| state.nodes[i]),
                callers: state.callers.map(|it| Caller {
                    shown: order.map(|i| it.shown[i]),
                    sent: moved(it.sent),
                    confirmed: moved(it.confirmed),
                    ..it
                }),
                ..state
            }
        };
        let key = |it: &State| {
            let callers = it
                .callers
                .map(|it| (it.phase as u8, it.shown, it.sent, it.confirmed));
            (callers, [0, 1, 2].map(|i| place(it, i)))
        };
        let mut other = state;
        other.callers.reverse();
        for node in &mut other.nodes {
            node.key = [0, 2, 1][usize::from(node.key)];
        }
        let (one, other) = (sorted(state), sorted(other));
        Some(if key(&other) < key(&one) { other } else { one })
    }
}

#[test]
fn m1_m3_m4_no_course_of_a_period_has_two_successes_or_is_found_done_without_one() {
    let restarts = if long() { 3 } else { 2 };
    let mistake = Mistake::None;
    let found = Period { mistake, restarts }.search(State::default());
    assert_eq!(found, None);
}

#[test]
fn each_rule_of_a_job_is_needed() {
    for (mistake, expected) in [
        (Mistake::WithoutKey, Violation::TwoSuccesses),
        (Mistake::NewNodes, Violation::TwoSuccesses),
        (Mistake::AnyOwner, Violation::TwoSuccesses),
        (Mistake::Minority, Violation::TwoSuccesses),
        (Mistake::RecordFirst, Violation::NoRun),
    ] {
        let restarts = 3;
        let found = Period { mistake, restarts }.search(State::default());
        assert_eq!(found, Some(expected), "{mistake:?}");
    }
}
