//! Readers and writers of one lock in a small world: the shipped calls, the shipped machine of a held lock, and nodes that do
//! what the scripts do.
//!
//! A few attempts at one lock on three nodes, of writers and of readers: acquire, raise, hold, extend, release.
//! Commands of an attempt come to a node in their order, and each of them at any time or never; answers get lost;
//! an attempt can give up, and a holder let go, at any time. All states that can be reached are visited, but for those from
//! which nothing can go wrong any more.
//!
//! There is no clock, only the order of ends. What an acquire or an extension gave a lock key or an entry lasts for as long as
//! the holder counts on it, and may end at any time after that; a lock key that outlasts several ends lasts for the last of
//! them. So every length of every ttl is tried.
//!
//! Checked, at each node that both have counted: a writer that was granted the lock before a reader has a token that is not
//! above the reader's number, and one that was after it has one that is; of two writers the later one has the larger token.
//! No extension is confirmed that was sent behind a newer writer. This holds also where nodes lose lock keys and sets at any
//! time ([`World::losses`]), with one exception: a reader that a writer has overtaken, because a node lost its entry, is extended
//! where its acquire came only after that writer had gone. Where nodes lose none, nobody holds the lock beside a writer, also if a
//! node restarts with nothing or with what it had at the beginning ([`World::crashes`]). Readers throw out no reader. And no end of an attempt leaves anything behind.
//!
//! Clocks, how a client learns that a node has lost something, what an attempt learns for the next one, and commands that are executed twice are searched in `fencing`, for the
//! writer, whose scripts and rounds these are. Which worlds, and why these: see `proofs`. For every rule there is a [`Flaw`],
//! which has to be found.

mod nodes;
mod proofs;

use super::clients::{self, ACQUIRE, Client, Done, Event, Phase, RAISE};
use super::ledgers::{all, sent_at};
use super::servers::{
    ALONE, Acquire, Caller, Extend, Key, Lock, Mistake, Release, Said, Server, Turn, Wants,
};
use super::walk::World as _;
use super::*;
use crate::call::steps::Next;
use crate::ids::NodeSet;
use crate::logic::acquire_round::Rule;

const NODES: usize = 3;

/// What must not happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    /// Somebody holds the lock beside a writer.
    BesideAWriter,
    /// It was won without a majority of nodes that count.
    NoMajority,
    /// Where both were counted, the number of the last writer or the order of tokens is wrong.
    WrongNumber,
    /// An extension is confirmed that was sent after a writer with a larger token had won.
    Resurrected,
    /// A node has something of an attempt behind its release.
    Orphan,
    /// A reader is not confirmed although all nodes have answered, nobody writes, and one node at most has lost anything, or has
    /// got its entry late and behind a newer counter.
    ThrownOut,
}

/// What is left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    Server(Mistake),
    /// A reader takes the largest counter of the majority that it gets, without a raise.
    LargestOfAnyMajority,
    /// An extension sets with the counter that a node has just shown, before those of a majority are lifted to it.
    SetsUnconfirmed,
    /// A set key counts as one that was there, also on a node that has forgotten everything.
    CountsSetAsKept,
    /// One node confirms an extension.
    ExtendsAlone,
    /// A promise is counted on for longer than the key lasts.
    OutlastsKey,
    /// An extension is sent behind the release.
    ExtendsBehindRelease,
    /// A node that restarts with nothing votes at once.
    NoSilence,
    /// An entry that a reader is handed while it holds counts as one that it had.
    CountsWhatItIsHanded,
}

/// Commands to a node are one bit each; the lowest comes first.
const EXTEND: u8 = 4;
const RELEASE: u8 = 8;
/// Behind a release by mistake.
const AGAIN: u8 = 16;

/// A node, and everything else that is told apart by node. Ends are numbered: 1 is that of the acquire, 2 that of the first
/// extension, and so on; 0 is none.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Node<const A: usize> {
    /// Its record shows when its quarantine ends, or ended; 0 if it has forgotten nothing. It began at [`SINCE`].
    server: Server<u8, [u8; A], (), u8, 1>,
    /// What it grants or extends does not count until each of these is over, or has had this extension confirmed; 0 for nothing.
    forgot: [u8; A],
    sent: [u8; A],
    /// The attempts that have counted the node.
    counted: [bool; A],
    /// In which order keys and entries were set here that are or may be counted.
    order: [u8; A],
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Attempt {
    phase: Phase,
    client: Option<Client>,
    /// What its raise offers; once it has won, its token or number.
    token: u8,
    won: bool,
    /// It began after a node had restarted.
    is_late: bool,
    /// Its first extension that was sent after a writer with a larger token had won; 0 for none.
    outdated: u8,
    /// The number of its last extension, and whether that sets missing keys.
    number: u8,
    sets: bool,
    /// It was not confirmed by answers of all nodes.
    refused: bool,
    /// Extensions sent, and the last one confirmed.
    extensions: u8,
    confirmed: u8,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct State<const A: usize> {
    attempts: [Attempt; A],
    nodes: [Node<A>; NODES],
    losses: u8,
    hands: u8,
    crashes: u8,
}

#[derive(Clone, Copy, Debug)]
struct World<const A: usize> {
    rules: [Rule; A],
    /// What each proposes. Counters that are missing are 0.
    proposals: [u8; A],
    counters: [u8; NODES],
    /// How often each may extend.
    extensions: [u8; A],
    /// Lock keys, or sets of readers, that may be lost.
    losses: u8,
    /// Entries that readers may be handed while they hold.
    hands: u8,
    /// Nodes that may restart with nothing, or with what they had at the beginning.
    crashes: u8,
    /// Goes on when nothing but an orphan can come any more.
    to_the_end: bool,
    /// Visits also what commands of an attempt that is over change for a while.
    whole: bool,
    flaw: Flaw,
}

/// Above all tokens that anybody has had when a node restarts: its quarantine begins, and ends. The proposals that come later
/// are partly above that: clocks are not exact.
const SINCE: u8 = 15;
const FLOOR: u8 = 20;
const LATER: u8 = 10;

impl<const A: usize> World<A> {
    fn start(&self) -> State<A> {
        let attempt = Attempt {
            phase: Phase::Idle,
            client: None,
            token: 0,
            won: false,
            is_late: false,
            outdated: 0,
            number: 0,
            sets: false,
            refused: false,
            extensions: 0,
            confirmed: 0,
        };
        let node = |counter| Node {
            server: Server::new([counter], (), 0),
            forgot: [0; A],
            sent: [0; A],
            counted: [false; A],
            order: [0; A],
        };
        State {
            attempts: [attempt; A],
            nodes: self.counters.map(node),
            losses: self.losses,
            hands: self.hands,
            crashes: self.crashes,
        }
    }

    fn found(&self) -> Option<Violation> {
        self.search(self.start())
    }

    fn proposal(&self, state: &State<A>, me: usize) -> u8 {
        self.proposals[me] + if state.attempts[me].is_late { LATER } else { 0 }
    }

    fn send(state: &mut State<A>, me: usize, to: NodeSet, command: u8) {
        clients::among(&mut state.nodes, to).for_each(|it| it.sent[me] |= command);
    }

    fn let_go(state: &mut State<A>, me: usize) {
        let own = &mut state.attempts[me];
        (own.phase, own.client) = (Phase::Over, None);
        Self::send(state, me, all(), RELEASE);
    }

    fn send_extension(&self, state: &mut State<A>, me: usize) {
        let token = state.attempts[me].token;
        let is_newer =
            |it: usize| self.rules[it] == Rule::Exclusive && token < state.attempts[it].token;
        let outdated = (0..A).any(|it| state.attempts[it].won && is_newer(it));
        let own = &mut state.attempts[me];
        own.extensions += 1;
        if outdated && own.outdated == 0 {
            own.outdated = own.extensions;
        }
        let client = own.client.unwrap().step(Event::Extend).client;
        (own.number, own.sets) = client.hold(|_, extension| {
            let extension = extension.unwrap();
            (extension.promise.number as u8, !extension.sets.is_empty())
        });
        own.client = Some(client);
        own.sets |= self.flaw == Flaw::SetsUnconfirmed;
        own.refused = false;
        Self::send(state, me, all(), EXTEND);
    }

    fn begin(&self, state: &mut State<A>, me: usize) {
        let reads = self.rules[me] == Rule::Shared;
        let done = clients::begin(reads, self.proposal(state, me));
        self.carry_out(state, me, &done);
    }

    fn step(&self, state: &mut State<A>, me: usize, event: Event) {
        if let Some(client) = state.attempts[me].client {
            self.carry_out(state, me, &client.step(event));
        }
    }

    /// Carries out what a call wants done.
    fn carry_out(&self, state: &mut State<A>, me: usize, done: &Done) {
        state.attempts[me].client = Some(done.client);
        let takes_largest = self.flaw == Flaw::LargestOfAnyMajority;
        for next in done.steps.iter() {
            let own = &mut state.attempts[me];
            match next {
                Next::Raise { .. } if takes_largest && self.rules[me] == Rule::Shared => {
                    let granted = done.client.votes(|it| it.nodes_with(Vote::is_granted));
                    for node in (0..NODES).filter(|it| granted.contains(clients::id(*it))) {
                        self.step(state, me, Event::Answer(RAISE, node, Said::Taken));
                    }
                }
                Next::Raise { token, .. } => {
                    own.token = u8::try_from(*token).unwrap();
                    Self::send(state, me, all(), RAISE);
                }
                Next::TakeBack(release) => Self::send(state, me, release.to, RELEASE),
                Next::GiveUp(_) => (own.phase, own.client) = (Phase::Over, None),
                Next::Won(win) => {
                    (own.phase, own.won) = (Phase::Holding, true);
                    own.token = u8::try_from(win.token).unwrap();
                    let nodes = &mut state.nodes;
                    clients::among(nodes, done.counted).for_each(|it| it.counted[me] = true);
                }
                _ => {
                    own.phase = Phase::Calling;
                    Self::send(state, me, all(), ACQUIRE);
                }
            }
        }
    }

    /// A holder reads the answer of a node to its last extension.
    fn hear(&self, state: &mut State<A>, me: usize, node: usize, said: Said) {
        let is_enough = self.flaw == Flaw::ExtendsAlone && said.vote().is_extended();
        let others = (0..NODES).filter(|it| is_enough && *it != node);
        for node in others.chain([node]) {
            self.step(state, me, Event::Answer(EXTEND, node, said));
        }
        let own = &mut state.attempts[me];
        let client = own.client.unwrap();
        if client.hold(|it, _| it.is_lost()) {
            return Self::let_go(state, me);
        }
        client.hold(|hold, last| {
            let promises = &hold.promises;
            let ends = promises.ends(sent_at(0));
            own.confirmed = promises.round() as u8;
            state.nodes[node].counted[me] |= ends[node] == last.map(|it| it.promise.until);
            // It stands on the other nodes alone: this one has lost everything, or its first entry, of a late acquire, is behind
            // a newer counter. Nothing tells such an entry from one that was handed over behind a newer writer.
            let counters = promises.counters().enumerate();
            let is_no_help = |(node, counter): &(usize, u64)| {
                let is_gone = promises.gone().contains(clients::id(*node));
                let is_late = ends[*node].is_none() && is_gone && u64::from(own.number) < *counter;
                state.nodes[*node].server.record != 0 || is_late
            };
            let stands = NODES - counters.filter(is_no_help).count();
            own.refused = promises.open().is_empty()
                && own.confirmed < own.extensions
                && majority(NODES, stands);
        });
    }

    /// All that clients can do next.
    fn each_step(&self, state: &State<A>, me: usize, all: &mut Vec<State<A>>) {
        let Attempt {
            phase, extensions, ..
        } = state.attempts[me];
        let mut after = |change: &dyn Fn(&mut State<A>)| {
            let mut next = *state;
            change(&mut next);
            all.push(next);
        };
        if phase == Phase::Idle {
            after(&|it| {
                it.attempts[me].is_late = it.crashes < self.crashes;
                self.begin(it, me);
            });
        }
        if phase == Phase::Calling {
            after(&|it| self.step(it, me, Event::TimeOut));
        }
        if phase == Phase::Holding {
            after(&|it| Self::let_go(it, me));
        }
        if phase == Phase::Holding && !state.is_extending(me) && extensions < self.extensions[me] {
            after(&|it| self.send_extension(it, me));
        }
        for node in 0..NODES {
            self.executed(state, me, node, all);
        }
    }

    /// A node executes the next command of an attempt: with an answer that comes, and with one that does not.
    fn executed(&self, state: &State<A>, me: usize, node: usize, all: &mut Vec<State<A>>) {
        let sent = state.nodes[node].sent[me];
        let command = sent & sent.wrapping_neg();
        if command == 0 {
            return;
        }
        let mut next = *state;
        next.nodes[node].sent[me] &= !command;
        let said = self.run(&mut next, me, node, command);
        if command == RELEASE && self.flaw == Flaw::ExtendsBehindRelease {
            next.nodes[node].sent[me] |= AGAIN;
        }
        match (command, state.attempts[me].phase) {
            (ACQUIRE | RAISE, Phase::Calling) => {
                all.push(next);
                self.step(&mut next, me, Event::Answer(command, node, said));
            }
            (EXTEND, Phase::Holding) => {
                all.push(next);
                self.hear(&mut next, me, node, said);
            }
            // Between what an attempt that is over had sent before, others would be refused: the same as not asked.
            (_, Phase::Over) if !self.whole => {
                while let left @ 1.. = next.nodes[node].sent[me] {
                    next.nodes[node].sent[me] &= left - 1;
                    let _ = self.run(&mut next, me, node, left & left.wrapping_neg());
                }
            }
            _ => {}
        }
        all.push(next);
    }

    /// Whether two attempts differ in their names only.
    fn alike(&self, a: usize, b: usize) -> bool {
        let what = |it: usize| {
            (
                self.rules[it] == Rule::Shared,
                self.proposals[it],
                self.extensions[it],
            )
        };
        what(a) == what(b)
    }

    /// Whether this attempt may send another extension.
    fn may_extend(&self, attempt: &Attempt, me: usize) -> bool {
        attempt.extensions < self.extensions[me]
    }

    /// Whether this attempt may still be counted by a node that does not count it yet.
    fn may_gain(&self, state: &State<A>, me: usize) -> bool {
        let Attempt { phase, won, .. } = state.attempts[me];
        phase != Phase::Over
            && (!won || state.is_extending(me) || self.may_extend(&state.attempts[me], me))
    }

    /// Whether two that matter to each other may still come to hold the lock, or to be counted.
    fn may_go_wrong(&self, state: &State<A>) -> bool {
        let writes = |it: usize| self.rules[it] == Rule::Exclusive;
        let matters = |it: usize| state.attempts[it].won || state.attempts[it].phase != Phase::Over;
        pairs::<A>().any(|(a, b)| (writes(a) || writes(b)) && matters(b) && self.may_gain(state, a))
    }
}

impl<const A: usize> walk::World for World<A> {
    type State = State<A>;
    type Violation = Violation;

    fn next(&self, state: &State<A>) -> Vec<State<A>> {
        let mut all = Vec::new();
        (0..A).for_each(|me| self.each_step(state, me, &mut all));
        (0..NODES).for_each(|node| self.each_accident(state, node, &mut all));
        all
    }

    fn violation(&self, before: &State<A>, state: &State<A>) -> Option<Violation> {
        let own = |it: usize| &state.attempts[it];
        for (a, b) in pairs::<A>() {
            let both_hold = own(a).phase == Phase::Holding && own(b).phase == Phase::Holding;
            if self.losses == 0 && both_hold && self.rules[a] == Rule::Exclusive {
                return Some(Violation::BesideAWriter);
            }
            if !own(a).won || !own(b).won {
                continue;
            }
            for (node, old) in state.nodes.iter().zip(&before.nodes) {
                // At this node `a` came before `b`.
                let fits = match (self.rules[a], self.rules[b]) {
                    (Rule::Shared, Rule::Shared) => true,
                    (_, Rule::Shared) => own(a).token <= own(b).token,
                    _ => own(a).token < own(b).token,
                } || !(node.counted[a] && node.counted[b]);
                if node.counted != old.counted && node.order[a] < node.order[b] && !fits {
                    return Some(Violation::WrongNumber);
                }
            }
        }
        let has_writer = self.rules.contains(&Rule::Exclusive);
        if self.losses == 0 && !has_writer && (0..A).any(|it| own(it).refused) {
            return Some(Violation::ThrownOut);
        }
        let counted = |me: usize| state.nodes.iter().filter(|it| it.counted[me]).count();
        if (0..A).any(|it| own(it).won && !majority(NODES, counted(it))) {
            return Some(Violation::NoMajority);
        }
        let is_outdated = |it: &Attempt| it.outdated != 0 && it.outdated <= it.confirmed;
        if state.attempts.iter().any(is_outdated) {
            return Some(Violation::Resurrected);
        }
        for node in state.nodes.iter().filter(|_| self.to_the_end) {
            let is_done = |it: &usize| own(*it).phase == Phase::Over && node.sent[*it] == 0;
            if (0..A).filter(is_done).any(|it| node.has(it))
                || (0..A).all(|it| is_done(&it)) && !node.server.is_free(0)
            {
                return Some(Violation::Orphan);
            }
        }
        None
    }

    fn settle(&self, mut state: State<A>) -> Option<State<A>> {
        if !self.to_the_end && !self.may_go_wrong(&state) {
            return None;
        }
        for me in 0..A {
            let (may_gain, Attempt { phase, won, .. }) =
                (self.may_gain(&state, me), state.attempts[me]);
            let is_extending = state.is_extending(me);
            let may_extend = phase != Phase::Over && self.may_extend(&state.attempts[me], me);
            for node in &mut state.nodes {
                if !may_gain && !node.counted[me] {
                    node.order[me] = 0;
                }
                // What a reader that gave up does where a counter is, its release undoes: others would be refused for a while.
                let drops = phase == Phase::Over
                    && node.sent[me] & ACQUIRE != 0
                    && self.rules[me] == Rule::Shared;
                if drops && node.server.locks[0].counter != 0 && !self.whole {
                    node.sent[me] = 0;
                }
            }
            if !may_extend && !is_extending && won {
                let own = &mut state.attempts[me];
                (own.outdated, own.client) = (0, None);
            }
            if phase == Phase::Over {
                let own = &mut state.attempts[me];
                (own.extensions, own.confirmed, own.token) =
                    (0, 0, if won { own.token } else { 0 });
                if !is_extending && self.flaw != Flaw::ExtendsBehindRelease {
                    (own.number, own.sets) = (0, false);
                }
            }
        }
        for node in &mut state.nodes {
            node.settle(&state.attempts, self.flaw);
        }
        state.sort();
        for (a, b) in pairs::<A>().filter(|(a, b)| a < b && self.alike(*a, *b)) {
            if state.attempts[b] <= state.attempts[a] {
                let mut other = state;
                other.attempts.swap(a, b);
                other.nodes.iter_mut().for_each(|it| it.swap(a, b));
                other.sort();
                state = state.min(other);
            }
        }
        Some(state)
    }
}

impl<const A: usize> State<A> {
    /// Nodes are alike: states that differ only in which is which are one.
    fn sort(&mut self) {
        clients::sort(&mut self.nodes, &mut self.attempts, |it| &mut it.client);
    }

    /// Whether an extension of this attempt is under way.
    fn is_extending(&self, me: usize) -> bool {
        let is_sent = |it: &Node<A>| it.sent[me] & (EXTEND | AGAIN) != 0;
        self.nodes.iter().any(is_sent)
    }
}

/// All pairs of different attempts.
fn pairs<const A: usize>() -> impl Iterator<Item = (usize, usize)> {
    (0..A * A)
        .map(|it| (it / A, it % A))
        .filter(|(a, b)| a != b)
}
