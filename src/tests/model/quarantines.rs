//! Two programs whose ttls differ, and servers that forget: who is quarantined for how long, in every order of what can happen.
//!
//! Somebody holds the lock for [`LONG`]: from the beginning of the world on, or it comes then and takes the lock. Nodes restart
//! empty, or come back with an old copy of what they had, always without the lock. Another client needs a short quarantine, was
//! started just now or has known the nodes from before, and takes the lock when a majority grants it and counts for it. It must
//! not have it before [`LONG`] is over. The holder comes back to nodes that restarted, or is cut off from them for good; and
//! there may be a witness: a third client, with a short ttl, that has known the nodes from before.
//!
//! What clients know and pass on is the shipped [`QuarantineLength`]; a node stands for `greet.lua`; `recorded` compares
//! them. On purpose: no editions but whether a client was greeted with the present one; and no waiting: a node is asked,
//! greets if it must, and grants, in one step, but for the holder. A round takes less than a unit of time. All states that
//! can be reached are visited.

mod proofs;
mod recorded;

use super::walk::Visited;
use crate::logic::quarantine_length::QuarantineLength;

const NODES: usize = 3;
const MAJORITY: usize = 2;
/// How long the holder's lease lasts, and so the quarantine that it needs.
const LONG: u64 = 4;
/// What others need, if they do not know better. Rounds are over within half of it.
const SHORT: u64 = 2;
/// A client that can come back to a node has done so after as long, since it tries all the time. Less than [`SHORT`].
const COMES_BACK: u64 = 1;
/// Time enough for a quarantine of [`LONG`] after the last restart.
const END: u64 = LONG + LAST_RESTART + 1;
const LAST_RESTART: u64 = 1;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    /// The record does not show which process keeps it.
    NoRunId,
    /// Nodes do not keep what they are told.
    NotKept,
    /// Clients do not take in what nodes show.
    NotHeard,
    /// Clients do not pass it on.
    NotPassedOn,
    /// A longer quarantine that turns up does not lengthen one that has begun.
    NotLengthened,
    /// A longer quarantine does not change the record's edition.
    SameEdition,
    /// A node that had a quarantine counts whatever the others have shown since.
    NoOthers,
    /// It counts if they have shown anything since its quarantine began, and not since the middle.
    OthersFromTheBeginning,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Comeback {
    Empty,
    WithAnOldCopy,
}

#[derive(Clone, Copy, Debug)]
struct World {
    /// How many nodes may restart, and how they come back.
    restarts: usize,
    comeback: Comeback,
    /// Where the holder has its key, and which nodes know how long a quarantine it needs. Of a holder that comes: which nodes it
    /// reaches.
    held: [bool; NODES],
    told: [bool; NODES],
    /// The holder comes, and takes the lock.
    holder_comes: bool,
    /// The holder comes back to nodes that have restarted.
    holder_returns: bool,
    /// The witness is there, and comes back to them.
    witness: bool,
    /// The quarantine that the other client needs itself.
    own: u64,
    /// The other client has known the nodes from before. It does not reach all of them.
    is_idle: bool,
    reached: [bool; NODES],
    flaw: Flaw,
}

const WORLD: World = World {
    restarts: NODES,
    comeback: Comeback::Empty,
    held: [true; NODES],
    told: [true; NODES],
    holder_comes: false,
    holder_returns: false,
    witness: false,
    own: SHORT,
    is_idle: false,
    reached: [true; NODES],
    flaw: Flaw::None,
};

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Node {
    restarted_at: Option<u64>,
    record: Option<Record>,
    /// The holder's key is there. In a round of the holder or of the other client: this node has granted the lock.
    held: bool,
    granted: [bool; 2],
    /// Of the three clients, who has greeted this process, and who with the record that it has now.
    greeted: [bool; 3],
    current: [bool; 3],
    /// Since when the node remembers, as the other client knows; and how long a quarantine it made of that.
    begun: Option<(u64, u64)>,
    /// When the node has shown the other client last that this is so, since the world began.
    shown: Option<u64>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Record {
    /// `None`: since before the world began.
    since: Option<u64>,
    is_of_this_process: bool,
    longest: u64,
}

const HOLDER: usize = 0;
const WITNESS: usize = 1;
const OTHER: usize = 2;
/// The other client's place in [`Node::granted`].
const TO_OTHER: usize = 1;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    now: u64,
    held_since: Option<u64>,
    nodes: [Node; NODES],
    /// What nodes have shown each client.
    heard: [[u64; NODES]; 3],
}

/// Whether the other client got the lock, and too early; in how many states it was looked for.
#[derive(Debug, Default)]
struct Findings {
    got_it_late: bool,
    /// How it came to two holders.
    two_hold: Option<Vec<State>>,
    states: usize,
}

impl World {
    fn start(&self) -> State {
        let is_told = |it: usize| self.told[it] && !self.holder_comes;
        let node = |it: usize| Node {
            restarted_at: None,
            record: Some(Record {
                since: None,
                is_of_this_process: true,
                longest: if is_told(it) { LONG } else { SHORT },
            }),
            held: self.held[it] && !self.holder_comes,
            granted: [false; 2],
            greeted: [is_told(it), self.witness, self.is_idle],
            current: [is_told(it), self.witness, self.is_idle],
            begun: None,
            shown: None,
        };
        let known = |from_before: bool| {
            [0, 1, 2].map(|it| {
                if !from_before {
                    0
                } else if is_told(it) {
                    LONG
                } else {
                    SHORT
                }
            })
        };
        let held_since = if self.holder_comes { None } else { Some(0) };
        let heard = [[0; NODES], known(self.witness), known(self.is_idle)];
        State {
            now: 0,
            held_since,
            nodes: [0, 1, 2].map(node),
            heard,
        }
    }

    fn search(&self) -> Findings {
        let mut visited = Visited::new(self.start());
        let (mut findings, mut at) = (Findings::default(), 0);
        while let Some(state) = visited.get(at) {
            if MAJORITY <= (0..NODES).filter(|it| self.counts(&state, *it)).count() {
                findings.got_it_late |= state.held_since.is_some();
                if state.held_since.is_some_and(|it| state.now < it + LONG) {
                    findings.two_hold = Some(
                        visited
                            .way(at)
                            .into_iter()
                            .filter_map(|it| visited.get(it))
                            .collect(),
                    );
                    break;
                }
            }
            self.each_next(&state, |next| {
                if let Some(next) = self.settle(next) {
                    visited.insert(next, at);
                }
            });
            at += 1;
        }
        findings.states = visited.len();
        findings
    }

    /// The one that stands for all states that differ only in what nobody will look at again; `None` if nothing more can
    /// happen.
    fn settle(&self, mut state: State) -> Option<State> {
        if state.held_since.is_none() && LAST_RESTART < state.now {
            return None;
        }
        let returns = self.holder_returns || self.holder_comes && state.held_since.is_none();
        let is_young = state
            .nodes
            .map(|it| it.record.is_some_and(|it| it.since.is_some()));
        for (node, it) in state.nodes.iter_mut().enumerate() {
            for (client, acts) in [(HOLDER, returns), (WITNESS, self.witness), (OTHER, true)] {
                it.current[client] &= acts;
                it.greeted[client] &= acts && client != OTHER;
            }
            // A quarantine that is yet to come has its middle later.
            let others = (0..NODES).any(|other| other != node && is_young[other]);
            it.shown = it.shown.filter(|it| *it == state.now || others);
            it.granted[HOLDER] &= state.held_since.is_none();
        }
        // States that differ only in which node is which are one, where nodes are alike.
        for (a, b) in [(0, 1), (1, 2), (0, 1)] {
            let is_alike = self.reached[a] == self.reached[b]
                && (!self.holder_comes || self.told[a] == self.told[b]);
            let of = |it: usize| (state.nodes[it], state.heard.map(|heard| heard[it]));
            if is_alike && of(b) < of(a) {
                state.nodes.swap(a, b);
                state.heard.iter_mut().for_each(|it| it.swap(a, b));
            }
        }
        Some(state)
    }

    fn each_next(&self, state: &State, mut visit: impl FnMut(State)) {
        let restarted = state
            .nodes
            .iter()
            .filter(|it| it.restarted_at.is_some())
            .count();
        for node in 0..NODES {
            let it = state.nodes[node];
            if it.restarted_at.is_none() && restarted < self.restarts && state.now <= LAST_RESTART {
                let mut next = *state;
                next.nodes[node] = self.restarted(state, node);
                visit(next);
            }
            let comes = self.holder_comes && state.held_since.is_none() && self.told[node];
            for (client, greets) in [
                (HOLDER, comes || self.holder_returns),
                (WITNESS, self.witness),
            ] {
                if greets && !it.current[client] {
                    visit(self.greet(state, node, client));
                }
            }
            if comes
                && it.current[HOLDER]
                && it.restarted_at.is_none()
                && !it.held
                && !it.granted[TO_OTHER]
            {
                visit(Self::grant_to_holder(state, node));
            }
            let is_answered = it.current[OTHER]
                && it.shown == Some(state.now)
                && (it.held || it.granted[TO_OTHER]);
            if self.reached[node] && !is_answered {
                // It gives the lock back at once, or keeps it while the round lasts.
                let mut next = self.ask(state, node);
                visit(next);
                next.nodes[node].granted[TO_OTHER] = !next.nodes[node].held;
                visit(next);
            }
        }
        // Time does not pass for a client that is on its way back.
        let is_late = |it: &Node, client: usize| {
            it.restarted_at
                .is_some_and(|at| at + COMES_BACK <= state.now)
                && !it.greeted[client]
        };
        let waits = state.nodes.iter().any(|it| {
            self.holder_returns && is_late(it, HOLDER) || self.witness && is_late(it, WITNESS)
        });
        if state.now < END && !waits {
            let mut next = State {
                now: state.now + 1,
                ..*state
            };
            for node in &mut next.nodes {
                node.granted = [false; 2];
                node.held &= next.held_since.is_some();
            }
            visit(next);
        }
    }

    /// The node as another process.
    fn restarted(&self, state: &State, node: usize) -> Node {
        let record = state.nodes[node]
            .record
            .filter(|_| self.comeback == Comeback::WithAnOldCopy);
        let record = record.map(|it| Record {
            is_of_this_process: self.flaw == Flaw::NoRunId,
            ..it
        });
        // What it has granted was heard.
        Node {
            restarted_at: Some(state.now),
            record,
            held: false,
            greeted: [false; 3],
            current: [false; 3],
            begun: None,
            ..state.nodes[node]
        }
    }

    fn longest(&self, state: &State, client: usize) -> QuarantineLength {
        let mut longest = QuarantineLength::new([LONG, SHORT, self.own][client], NODES);
        for (node, millis) in state.heard[client].into_iter().enumerate() {
            if self.flaw != Flaw::NotHeard {
                longest.on_report(node, millis);
            }
        }
        longest
    }

    /// How long the other client takes a quarantine to last.
    fn length(&self, state: &State) -> u64 {
        u64::try_from(self.longest(state, OTHER).quarantine_length().as_millis()).unwrap()
    }

    /// A client greets a node.
    fn greet(&self, state: &State, node: usize, client: usize) -> State {
        let mut next = *state;
        let longest = self.longest(state, client);
        let it = &mut next.nodes[node];
        let before = it.record.map_or(0, |it| it.longest);
        let known = it.record.filter(|it| it.is_of_this_process);
        let mut record = known.unwrap_or(Record {
            since: Some(state.now),
            is_of_this_process: true,
            longest: before,
        });
        let heard = if self.flaw == Flaw::NotPassedOn {
            0
        } else {
            longest.largest()
        };
        let is_young = record.since.is_some_and(|since| state.now - since < heard);
        let shown = record
            .longest
            .max(longest.own())
            .max(if is_young { heard } else { 0 });
        if self.flaw != Flaw::NotKept {
            record.longest = shown;
        }
        let is_same = if self.flaw == Flaw::SameEdition {
            known.is_some()
        } else {
            known == Some(record)
        };
        if !is_same {
            it.current = [false; 3];
        }
        it.record = Some(record);
        (it.greeted[client], it.current[client]) = (true, true);
        next.heard[client][node] = shown;
        if client == OTHER {
            let length = self.length(&next);
            next.nodes[node].begun = record.since.map(|it| (it, length));
        }
        next
    }

    /// It has kept all data for long, so the holder counts it.
    fn grant_to_holder(state: &State, node: usize) -> State {
        let mut next = *state;
        (next.nodes[node].held, next.nodes[node].granted[HOLDER]) = (true, true);
        if MAJORITY <= next.nodes.iter().filter(|it| it.granted[HOLDER]).count() {
            next.held_since = Some(state.now);
        }
        next
    }

    /// The other client asks a node for something, and greets it first if it must.
    fn ask(&self, state: &State, node: usize) -> State {
        let mut next = if state.nodes[node].current[OTHER] {
            *state
        } else {
            self.greet(state, node, OTHER)
        };
        let it = &mut next.nodes[node];
        it.shown = Some(state.now);
        next
    }

    /// Whether the node has granted the lock to the other client, and that counts.
    fn counts(&self, state: &State, node: usize) -> bool {
        let Node { granted, begun, .. } = state.nodes[node];
        let known = self.length(state);
        let is_over = |(since, length): (u64, u64)| {
            let length = if self.flaw == Flaw::NotLengthened {
                length
            } else {
                known
            };
            let from = if self.flaw == Flaw::OthersFromTheBeginning {
                since
            } else {
                since + known / 2
            };
            let is_behind = |it: usize| {
                self.reached[it] && state.nodes[it].shown.is_none_or(|shown| shown < from)
            };
            let waits =
                self.flaw != Flaw::NoOthers && (0..NODES).any(|it| it != node && is_behind(it));
            since + length <= state.now && !waits
        };
        granted[TO_OTHER] && begun.is_none_or(is_over)
    }
}
