//! Two programs with different `max_ttl`, and servers that lose their data: who is quarantined for how long, in every order of
//! losses and syncs.
//!
//! The program with the longer one holds the lock for [`LONG`]: from the beginning of the world on, or it takes the lock first.
//! Nodes restart empty, or come back with an old copy of their data, or have them swapped for other data of the same process whose
//! record is old; always without the lock. A client of the other program was
//! started just now, or has known the nodes from before. It takes the lock when a majority grants it and counts for it, and must
//! not have it before [`LONG`] is over. The holder comes back to nodes that lost their data, or is cut off from them for good.
//! There may be a witness: a client of either program that has started just now.
//!
//! On purpose: no waiting. A node is asked, synced if it must be, and grants, in one step. A client asks all nodes that it reaches in one unit of time, in any
//! order, and may have won before the last of them answers. All states that can be reached are visited.

mod proofs;

use super::servers::Record;
use super::walk::Visited;

const NODES: usize = 3;
const MAJORITY: usize = 2;
/// The `max_ttl` of the two programs, and so the quarantines that their locks need.
const LONG: u64 = 5;
const SHORT: u64 = 3;
/// A client that can come back to a node has done so after as long, since it tries all the time. [`SHORT`] is longer, even if
/// the last loss comes between.
const COMES_BACK: u64 = 1;
/// Time enough for a quarantine of [`LONG`] after the last loss.
const END: u64 = LONG + LAST_LOSS + 1;
const LAST_LOSS: u64 = 1;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    /// The record does not show which process keeps it.
    NoRunId,
    /// A client does not take in what records show, and goes by its own `max_ttl`.
    NotHeard,
    /// It goes by what it knew when it synced a node.
    NotLengthened,
    /// It does not pass on to a node what other records have.
    NotPassedOn,
    /// It does so for a node without a record only.
    NotRaised,
    /// A record with another `max_ttl` has the same version.
    SameRecordVersion,
    /// A client whose `max_ttl` is longer than the record's counts the node.
    NotRefused,
    /// It raises the record's to its own.
    OwnRaises,
    /// It goes by the age of a record that did not grow out of the one it had from the same process.
    NoLineage,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Comeback {
    Empty,
    WithAnOldCopy,
    /// The same process, with a record of its own from before the world.
    Swapped,
}

#[derive(Clone, Copy, Debug)]
struct World {
    /// How many nodes may lose their data, and how they come back.
    losses: usize,
    comeback: Comeback,
    /// The `max_ttl` in the record of each node when the world begins.
    records: [u64; NODES],
    /// Where the holder has its key.
    held: [bool; NODES],
    /// The holder comes, and takes the lock.
    holder_comes: bool,
    /// The holder comes back to nodes that have lost their data.
    holder_returns: bool,
    /// The `max_ttl` of the witness, if there is one.
    witness: Option<u64>,
    /// Which nodes the holder, the witness and the other client reach.
    reached: [[bool; NODES]; 3],
    /// The other client has known the nodes from before.
    is_idle: bool,
    /// The `max_ttl` of the other client.
    own: u64,
    flaw: Flaw,
}

const WORLD: World = World {
    losses: NODES,
    comeback: Comeback::Empty,
    records: [LONG; NODES],
    held: [true; NODES],
    holder_comes: false,
    holder_returns: false,
    witness: None,
    reached: [[true; NODES]; 3],
    is_idle: false,
    own: SHORT,
    flaw: Flaw::None,
};

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Node {
    lost_at: Option<u64>,
    /// Who has synced it first since.
    first: Option<usize>,
    record: Option<Record>,
    /// The holder's key is there. In a round of the holder or of the other client: this node has granted the lock.
    held: bool,
    granted: [bool; 2],
    /// Of the three clients, who has synced this process with these data, who has with those before, and who with the record that
    /// it has now.
    synced: [bool; 3],
    had_others: [bool; 3],
    current: [bool; 3],
    /// Since when the node remembers, as the holder and the other client know; and how long a quarantine they made of that.
    begun: [Option<(u64, u64)>; 2],
    /// The other client has asked it in this unit of time.
    is_asked: bool,
}

const HOLDER: usize = 0;
const WITNESS: usize = 1;
const OTHER: usize = 2;

/// A client's place in [`Node::granted`] and [`Node::begun`], if it takes locks.
fn place(client: usize) -> Option<usize> {
    [Some(0), None, Some(1)][client]
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    now: u64,
    held_since: Option<u64>,
    nodes: [Node; NODES],
    /// The longest `max_ttl` that records have shown each client.
    shown: [u64; 3],
}

/// How two can come to hold the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Case {
    /// All nodes have lost their data, and no client with the longer `max_ttl` has come first at any of them.
    AllLost,
    /// So it is with a majority of them.
    MajorityLost,
    Other,
}

/// What was found, and in how many states it was looked for.
#[derive(Debug, Default)]
struct Findings {
    got_it_late: bool,
    /// How it came to two holders, the first way of each case.
    two_hold: Vec<(Case, Vec<State>)>,
    states: usize,
}

impl Findings {
    fn cases(&self) -> Vec<Case> {
        self.two_hold.iter().map(|it| it.0).collect()
    }
}

impl World {
    fn start(&self) -> State {
        let is_from_before = [!self.holder_comes, false, self.is_idle];
        let node = |it: usize| {
            let known = [0, 1, 2].map(|client| is_from_before[client] && self.reached[client][it]);
            Node {
                lost_at: None,
                first: None,
                record: Some(Record::old(self.records[it])),
                held: self.held[it] && !self.holder_comes,
                granted: [false; 2],
                synced: known,
                had_others: [false; 3],
                current: known,
                begun: [None; 2],
                is_asked: false,
            }
        };
        let shown = |client: usize| {
            (0..NODES)
                .filter(|it| is_from_before[client] && self.reached[client][*it])
                .map(|it| self.records[it])
                .max()
                .unwrap_or(0)
        };
        State {
            now: 0,
            held_since: (!self.holder_comes).then_some(0),
            nodes: [0, 1, 2].map(node),
            shown: [0, 1, 2].map(shown),
        }
    }

    fn search(&self) -> Findings {
        let mut visited = Visited::new(self.start());
        let mut findings = Findings::default();
        let mut at = 0;
        while let Some(state) = visited.get(at) {
            let is_held = state.held_since.is_some_and(|it| state.now < it + LONG);
            if self.wins(&state, OTHER) {
                findings.got_it_late |= state.held_since.is_some() && !is_held;
                let case = self.case(&state);
                if is_held && findings.two_hold.iter().all(|it| it.0 != case) {
                    let way = visited.way(at).into_iter();
                    let way = way.filter_map(|it| visited.get(it)).collect();
                    findings.two_hold.push((case, way));
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

    fn case(&self, state: &State) -> Case {
        let is_of_others = |it: &&Node| {
            let is_long = it.first.is_some_and(|it| self.own(it) == LONG);
            it.lost_at.is_some() && !is_long
        };
        match state.nodes.iter().filter(is_of_others).count() {
            NODES => Case::AllLost,
            MAJORITY => Case::MajorityLost,
            _ => Case::Other,
        }
    }

    /// The one that stands for all states that differ only in what nobody will look at again; `None` if nothing more can
    /// happen.
    fn settle(&self, mut state: State) -> Option<State> {
        if state.held_since.is_none() && LAST_LOSS < state.now {
            return None;
        }
        // States that differ only in which node is which are one, where nodes are alike.
        for (a, b) in [(0, 1), (1, 2), (0, 1)] {
            let is_alike = self.reached.iter().all(|it| it[a] == it[b]);
            if is_alike && state.nodes[b] < state.nodes[a] {
                state.nodes.swap(a, b);
            }
        }
        Some(state)
    }

    fn each_next(&self, state: &State, mut visit: impl FnMut(State)) {
        let lost = state.nodes.iter().filter(|it| it.lost_at.is_some()).count();
        let comes = self.holder_comes && state.held_since.is_none();
        for node in 0..NODES {
            let it = state.nodes[node];
            if it.lost_at.is_none() && lost < self.losses && state.now <= LAST_LOSS {
                let mut next = *state;
                next.nodes[node] = self.lost(state, node);
                visit(next);
            }
            for (client, syncs) in [
                (HOLDER, comes || self.holder_returns),
                (WITNESS, self.witness.is_some()),
            ] {
                if syncs && self.reached[client][node] && self.is_due(state, node, client) {
                    visit(self.sync_record(state, node, client));
                }
            }
            let may_hold = comes && self.reached[HOLDER][node] && it.lost_at.is_none();
            if may_hold && !it.held && !it.granted[1] && !self.is_due(state, node, HOLDER) {
                visit(self.grant_to_holder(state, node));
            }
            if self.reached[OTHER][node] && !it.is_asked {
                // It gives the lock back at once, or keeps it while the round lasts.
                let mut next = self.ask(state, node);
                visit(next);
                next.nodes[node].granted[1] = !next.nodes[node].held;
                visit(next);
            }
        }
        // Time does not pass for a client that is on its way back, nor for one that has asked some nodes and not all. One that is
        // refused tries again; one that is not may be idle.
        let is_late = |node: usize, client: usize| {
            let it = &state.nodes[node];
            let is_back = it.lost_at.unwrap_or(0) + COMES_BACK <= state.now;
            let is_refused = self.own(client) == LONG && self.is_due(state, node, client);
            self.reached[client][node] && is_back && (!it.synced[client] || is_refused)
        };
        let asks = state.nodes.iter().any(|it| it.is_asked);
        let waits = (0..NODES).any(|it| {
            self.holder_returns && is_late(it, HOLDER)
                || self.witness.is_some() && is_late(it, WITNESS)
                || asks && self.reached[OTHER][it] && !state.nodes[it].is_asked
        });
        if state.now < END && !waits {
            let mut next = State {
                now: state.now + 1,
                ..*state
            };
            for node in &mut next.nodes {
                node.is_asked = false;
                node.granted = [false; 2];
                node.held &= next.held_since.is_some();
            }
            visit(next);
        }
    }

    /// The node as another process, or emptied.
    fn lost(&self, state: &State, node: usize) -> Node {
        let record = state.nodes[node]
            .record
            .filter(|_| self.comeback != Comeback::Empty);
        let is_swapped_in = self.comeback == Comeback::Swapped;
        let record = record.map(|it| Record {
            is_swapped_in,
            is_of_this_process: is_swapped_in || self.flaw == Flaw::NoRunId,
            ..it
        });
        let had_others = if is_swapped_in {
            state.nodes[node].synced
        } else {
            [false; 3]
        };
        // What it has granted was heard.
        Node {
            lost_at: Some(state.now),
            record,
            held: false,
            synced: [false; 3],
            had_others,
            current: [false; 3],
            begun: [None; 2],
            ..state.nodes[node]
        }
    }

    fn own(&self, client: usize) -> u64 {
        [LONG, self.witness.unwrap_or(SHORT), self.own][client]
    }

    /// What a client passes on to a node.
    fn reported(&self, state: &State, client: usize) -> u64 {
        match self.flaw {
            Flaw::NotPassedOn | Flaw::NotHeard => 0,
            Flaw::OwnRaises => state.shown[client].max(self.own(client)),
            _ => state.shown[client],
        }
    }

    /// How long a client takes a quarantine to last.
    fn length(&self, state: &State, client: usize) -> u64 {
        let shown = if self.flaw == Flaw::NotHeard {
            0
        } else {
            state.shown[client]
        };
        shown.max(self.own(client))
    }

    /// Whether a client syncs the node before the next command: it does not know the record, or knows of a larger one.
    fn is_due(&self, state: &State, node: usize, client: usize) -> bool {
        let it = state.nodes[node];
        let stored = it.record.map_or(0, |it| it.max_ttl);
        !it.current[client] || self.flaw != Flaw::NotRaised && stored < self.reported(state, client)
    }

    /// A client syncs a node.
    fn sync_record(&self, state: &State, node: usize, client: usize) -> State {
        let mut next = *state;
        let reported = self.reported(state, client);
        let it = &mut next.nodes[node];
        let known = it.record.filter(|it| it.is_of_this_process);
        let stored = it.record.map_or(0, |it| it.max_ttl);
        let reported = if self.flaw == Flaw::NotRaised && stored != 0 {
            0
        } else {
            reported
        };
        let record = Record::synced(it.record, state.now, self.own(client), reported);
        let is_same = if self.flaw == Flaw::SameRecordVersion {
            known.is_some()
        } else {
            known == Some(record)
        };
        if !is_same {
            it.current = [false; 3];
        }
        if it.lost_at.is_some() {
            it.first = it.first.or(Some(client));
        }
        it.record = Some(record);
        // It had another record from this process, out of which this one did not grow.
        let is_other = it.had_others[client] && !it.synced[client] && self.flaw != Flaw::NoLineage;
        (it.synced[client], it.current[client]) = (true, true);
        next.shown[client] = next.shown[client].max(record.max_ttl);
        if let Some(place) = place(client) {
            let length = self.length(&next, client);
            let since = if is_other {
                Some(state.now)
            } else {
                record.since
            };
            let begun = &mut next.nodes[node].begun[place];
            // What it has seen itself stays.
            *begun = since.max(begun.map(|it| it.0)).map(|it| (it, length));
        }
        next
    }

    fn grant_to_holder(&self, state: &State, node: usize) -> State {
        let mut next = *state;
        (next.nodes[node].held, next.nodes[node].granted[0]) = (true, true);
        if self.wins(&next, HOLDER) {
            next.held_since = Some(state.now);
        }
        next
    }

    /// The other client asks a node for something, and syncs it first if it must.
    fn ask(&self, state: &State, node: usize) -> State {
        let mut next = if self.is_due(state, node, OTHER) {
            self.sync_record(state, node, OTHER)
        } else {
            *state
        };
        next.nodes[node].is_asked = true;
        next
    }

    fn wins(&self, state: &State, client: usize) -> bool {
        let counts = |it: &&Node| self.counts(state, it, client);
        MAJORITY <= state.nodes.iter().filter(counts).count()
    }

    /// Whether the node has granted the lock to a client, and that counts.
    fn counts(&self, state: &State, node: &Node, client: usize) -> bool {
        let place = place(client).unwrap();
        let fits = node.record.is_some_and(|it| self.own(client) <= it.max_ttl);
        let is_over = |(since, length): (u64, u64)| {
            let length = if self.flaw == Flaw::NotLengthened {
                length
            } else {
                self.length(state, client)
            };
            since + length <= state.now
        };
        node.granted[place]
            && (fits || self.flaw == Flaw::NotRefused)
            && node.begun[place].is_none_or(is_over)
    }
}
