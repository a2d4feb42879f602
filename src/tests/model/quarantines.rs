//! Two programs whose ttls differ, and servers that forget: who is quarantined for how long, in every order of what can happen.
//!
//! Somebody holds the lock for [`LONG`], from the beginning of the world on. Nodes restart empty, or come back with an old
//! copy of what they had, always without the lock. A client that needs a short quarantine itself, and was started just now,
//! greets nodes whenever it can, and takes the lock when a majority grants it and counts for it. It must not have it before
//! [`LONG`] is over. The holder comes back to nodes that restarted, or is cut off from them for good; and there may be a
//! witness: a third client, with a short ttl, that has known the nodes from before.
//!
//! What clients know and pass on is the shipped [`Longest`]; a node stands for `greet.lua` and `canary.lua`; `recorded` compares
//! them. On purpose: no days. All states that can be reached are visited.

mod recorded;

use std::collections::HashSet;

use crate::logic::longest::{Longest, Told};

const NODES: usize = 3;
const MAJORITY: usize = 2;
/// How long the holder's lease lasts, and so the quarantine that it needs.
const LONG: u64 = 4;
/// What others need, if they do not know better.
const SHORT: u64 = 2;
/// A client that can come back to a node has done so after as long, since it tries all the time. Less than [`SHORT`].
const COMES_BACK: u64 = 1;
/// Time enough for a quarantine of [`LONG`] after the last restart.
const END: u64 = LONG + LAST_RESTART + 1;
const LAST_RESTART: u64 = 1;
const DAY: u64 = 20_000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    /// The canary does not say whose it is.
    NoRunId,
    /// Nodes do not keep what they are told.
    NotKept,
    /// Clients do not listen to what nodes tell.
    NotHeard,
    /// Clients do not pass it on.
    NotPassedOn,
    /// A longer quarantine that turns up does not lengthen one that has begun, here or there.
    NotLengthened,
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
    /// Where the holder has its key, and which nodes know how long a quarantine it needs.
    held: [bool; NODES],
    told: [bool; NODES],
    /// The holder comes back to nodes that have restarted.
    holder_returns: bool,
    /// The witness is there, and comes back to them.
    witness: bool,
    /// The quarantine that the other client needs itself.
    own: u64,
    flaw: Flaw,
}

const WORLD: World = World {
    restarts: NODES,
    comeback: Comeback::Empty,
    held: [true; NODES],
    told: [true; NODES],
    holder_returns: false,
    witness: false,
    own: SHORT,
    flaw: Flaw::None,
};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Node {
    restarted_at: Option<u64>,
    canary: Option<Canary>,
    /// Of the three clients, who has greeted this process: the holder, the witness, the other.
    greeted: [bool; 3],
    /// Since when the node remembers, as the other client knows; and how long a quarantine it made of that.
    begun: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Canary {
    /// `None`: since before the world began.
    since: Option<u64>,
    is_of_this_process: bool,
    longest: u64,
}

const HOLDER: usize = 0;
const WITNESS: usize = 1;
const OTHER: usize = 2;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    now: u64,
    nodes: [Node; NODES],
    /// What nodes have told the witness and the other client.
    heard: [[u64; NODES]; 3],
}

/// When the other client got the lock, at the earliest; in how many states it was looked for.
#[derive(Debug)]
struct Findings {
    got_it_at: Option<u64>,
    states: usize,
}

impl Findings {
    fn two_hold(&self) -> bool {
        self.got_it_at.is_some_and(|it| it < LONG)
    }
}

impl Canary {
    /// Whether the node votes for a name without a counter, for a client that needs a quarantine of this length.
    fn is_old_enough(&self, now: u64, length: u64) -> bool {
        self.since.is_none_or(|since| since + length.max(self.longest) <= now)
    }
}

impl World {
    fn start(&self) -> State {
        let node = |it: usize| Node {
            restarted_at: None,
            canary: Some(Canary {
                since: None,
                is_of_this_process: true,
                longest: if self.told[it] { LONG } else { SHORT },
            }),
            greeted: [self.told[it], self.witness, false],
            begun: None,
        };
        let known = [0, 1, 2].map(|it| if self.witness && self.told[it] { LONG } else { 0 });
        State { now: 0, nodes: [0, 1, 2].map(node), heard: [[0; NODES], known, [0; NODES]] }
    }

    fn search(&self) -> Findings {
        let start = self.start();
        let mut seen = HashSet::from([start]);
        let mut open = vec![start];
        let mut got_it_at: Option<u64> = None;
        while let Some(state) = open.pop() {
            if (0..NODES).filter(|it| self.counts(&state, *it)).count() >= MAJORITY {
                got_it_at = Some(got_it_at.map_or(state.now, |it| it.min(state.now)));
            }
            self.each_next(&state, |next| {
                if seen.insert(next) {
                    open.push(next);
                }
            });
        }
        Findings { got_it_at, states: seen.len() }
    }

    fn each_next(&self, state: &State, mut visit: impl FnMut(State)) {
        let restarted = state.nodes.iter().filter(|it| it.restarted_at.is_some()).count();
        for node in 0..NODES {
            let it = state.nodes[node];
            if it.restarted_at.is_none() && restarted < self.restarts && state.now <= LAST_RESTART {
                let mut next = *state;
                next.nodes[node] = self.restarted(state, node);
                visit(next);
            }
            for client in [HOLDER, WITNESS, OTHER] {
                let returns = [self.holder_returns, self.witness, true][client];
                if returns && !it.greeted[client] {
                    visit(self.greet(state, node, client));
                }
            }
        }
        // Time does not pass for a client that is on its way back.
        let is_late = |it: &Node, client: usize| {
            it.restarted_at.is_some_and(|at| at + COMES_BACK <= state.now) && !it.greeted[client]
        };
        let waits = state
            .nodes
            .iter()
            .any(|it| self.holder_returns && is_late(it, HOLDER) || self.witness && is_late(it, WITNESS));
        if state.now < END && !waits {
            visit(State { now: state.now + 1, ..*state });
        }
    }

    /// The node as another process.
    fn restarted(&self, state: &State, node: usize) -> Node {
        let canary = state.nodes[node].canary.filter(|_| self.comeback == Comeback::WithAnOldCopy);
        let canary = canary.map(|it| Canary { is_of_this_process: self.flaw == Flaw::NoRunId, ..it });
        Node { restarted_at: Some(state.now), canary, greeted: [false; 3], begun: None }
    }

    fn longest(&self, state: &State, client: usize) -> Longest {
        let mut longest = Longest::new([LONG, SHORT, self.own][client], NODES);
        for (node, millis) in state.heard[client].into_iter().enumerate() {
            if self.flaw != Flaw::NotHeard {
                longest.hear(node, Told { millis, day: DAY });
            }
        }
        longest
    }

    /// A client greets a node.
    fn greet(&self, state: &State, node: usize, client: usize) -> State {
        let mut next = *state;
        let longest = self.longest(state, client);
        let it = &mut next.nodes[node];
        let before = it.canary.map_or(0, |it| it.longest);
        let mut canary = it.canary.filter(|it| it.is_of_this_process).unwrap_or(Canary {
            since: Some(state.now),
            is_of_this_process: true,
            longest: before,
        });
        let passed_on = if self.flaw == Flaw::NotPassedOn { 0 } else { longest.to_pass_on().millis };
        let told = canary.longest.max(longest.own()).max(passed_on);
        if self.flaw != Flaw::NotKept {
            canary.longest = told;
        }
        it.canary = Some(canary);
        it.greeted[client] = true;
        next.heard[client][node] = canary.longest;
        if client == OTHER {
            let length = u64::try_from(self.longest(&next, OTHER).quarantine_length().as_millis()).unwrap();
            next.nodes[node].begun = canary.since.map(|it| (it, length));
        }
        next
    }

    /// Whether the node grants the lock to the other client, and that counts.
    fn counts(&self, state: &State, node: usize) -> bool {
        let it = &state.nodes[node];
        let is_free = it.restarted_at.is_some() || !self.held[node];
        let (true, Some(canary)) = (is_free && it.greeted[OTHER], it.canary) else { return false };
        let known = u64::try_from(self.longest(state, OTHER).quarantine_length().as_millis()).unwrap();
        let lengthened = self.flaw != Flaw::NotLengthened;
        let client =
            it.begun.is_none_or(|(since, length)| since + if lengthened { known } else { length } <= state.now);
        // Only a node that has no counter looks at its canary again.
        let looks = it.restarted_at.is_some() && self.comeback == Comeback::Empty && lengthened;
        client && (!looks || canary.is_old_enough(state.now, known))
    }
}

fn check_safe(world: World) {
    let findings = world.search();
    assert!(!findings.two_hold(), "{world:?}: {findings:?}");
    // It is not safe because nothing happens.
    assert!(findings.got_it_at.is_some() && 1_000 < findings.states, "{world:?}: {findings:?}");
}

fn check_unsafe(world: World) {
    let findings = world.search();
    assert!(findings.two_hold(), "{world:?}: {findings:?}");
}

#[test]
fn h15_a_holder_that_comes_back_to_servers_that_were_all_restarted_empty_keeps_others_out() {
    let world = World { holder_returns: true, ..WORLD };
    check_safe(world);
    // This needs the number of the holder to be kept, and the holder to come back before a short quarantine is over.
    check_unsafe(World { flaw: Flaw::NotKept, ..world });
    check_unsafe(World { flaw: Flaw::NotLengthened, ..world });
    check_unsafe(World { own: COMES_BACK - 1, ..world });
}

/// The holder is cut off. One node that took no part in its majority knows its number.
const CUT_OFF: World = World { restarts: 1, held: [true, true, false], ..WORLD };

#[test]
fn h15_a_holder_that_is_cut_off_is_safe_as_long_as_fewer_than_a_majority_of_nodes_forget() {
    check_safe(CUT_OFF);
    check_unsafe(World { flaw: Flaw::NotHeard, ..CUT_OFF });
    check_unsafe(World { flaw: Flaw::NotLengthened, ..CUT_OFF });
    // A node that the holder has never reached, and nobody else who knew.
    check_unsafe(World { told: [true, true, false], ..CUT_OFF });
}

#[test]
fn h15_clients_tell_nodes_what_a_holder_that_is_cut_off_cannot() {
    let world = World { restarts: NODES, witness: true, ..CUT_OFF };
    check_safe(world);
    check_safe(World { told: [true, true, false], restarts: 1, ..world });
    check_unsafe(World { flaw: Flaw::NotPassedOn, ..world });
}

/// What is left, and what the guide says about it.
#[test]
fn h15_where_a_majority_forgets_and_nobody_who_knows_comes_back_only_a_number_that_all_share_keeps_others_out() {
    for restarts in [MAJORITY, NODES] {
        check_unsafe(World { restarts, ..CUT_OFF });
        check_unsafe(World { restarts, ..WORLD });
        check_safe(World { restarts, own: LONG, ..CUT_OFF });
        check_safe(World { restarts, own: LONG, ..WORLD });
    }
}

#[test]
fn h16_servers_that_come_back_with_old_data_keep_others_out_though_nobody_else_knows_anything() {
    for held in [WORLD.held, CUT_OFF.held] {
        let world = World { comeback: Comeback::WithAnOldCopy, held, ..WORLD };
        check_safe(world);
        check_unsafe(World { flaw: Flaw::NoRunId, ..world });
    }
}
