//! Readers and writers of one lock in a small world: the shipped rounds, the shipped machine of a held lock, and nodes that do
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

mod ledger;
mod nodes;
mod proofs;

use super::servers::{
    ALONE, Acquire, Caller, Extend, Key, Lock, Mistake, Release, Said, Server, Turn, Wants,
};
use super::walk::World as _;
use super::*;
use crate::answer::LockStatus;
use crate::logic::acquire_round::{AcquireEnd, AcquireRound, RaiseRound, Rule};

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

/// Commands of an attempt to a node, one bit each; the lowest comes first.
const ACQUIRE: u8 = 1;
const RAISE: u8 = 2;
const EXTEND: u8 = 4;
const RELEASE: u8 = 8;
/// Behind a release by mistake.
const AGAIN: u8 = 16;

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Phase {
    Idle,
    Acquiring,
    Raising,
    Holding,
    Over,
}

/// A node, and everything else that is told apart by node. Ends are numbered: 1 is that of the acquire, 2 that of the first
/// extension, and so on; 0 is none.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Node<const A: usize> {
    /// Its record shows when its quarantine ends, or ended; 0 if it has forgotten nothing. It began at [`SINCE`].
    server: Server<u8, [u8; A], (), u8, 1>,
    /// What it grants or extends does not count until each of these is over, or has had this extension confirmed; 0 for nothing.
    forgot: [u8; A],
    sent: [u8; A],
    said: [Said; A],
    /// The attempts that have counted the node.
    counted: [bool; A],
    /// The last promise to each: 1 that of the acquire, 2 that of the first extension, and so on; 0 for none.
    promised: [u8; A],
    /// In which order keys and entries were set here that are or may be counted.
    order: [u8; A],
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Attempt {
    phase: Phase,
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
    /// Numbers of all its extensions.
    numbers: [u8; EXTENSIONS_MAX],
    /// Of the next extension.
    next: Next,
    /// It was not confirmed by answers of all nodes.
    refused: bool,
    /// Extensions sent, and the last one confirmed.
    extensions: u8,
    confirmed: u8,
}

const EXTENSIONS_MAX: usize = 3;

/// The number that an extension would have, and whether it would set missing keys.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Next {
    number: u8,
    sets: bool,
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

impl Phase {
    fn is_alive(self) -> bool {
        !matches!(self, Phase::Idle | Phase::Over)
    }

    fn holds(self) -> bool {
        self == Phase::Holding
    }
}

impl<const A: usize> World<A> {
    fn start(&self) -> State<A> {
        let attempt = Attempt {
            phase: Phase::Idle,
            token: 0,
            won: false,
            is_late: false,
            outdated: 0,
            number: 0,
            sets: false,
            numbers: [0; EXTENSIONS_MAX],
            next: Next::default(),
            refused: false,
            extensions: 0,
            confirmed: 0,
        };
        let node = |counter| Node {
            server: Server::new([counter], (), 0),
            forgot: [0; A],
            sent: [0; A],
            said: [Said::Nothing; A],
            counted: [false; A],
            promised: [0; A],
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

    /// Sends a command to all nodes, and forgets what was said before.
    fn send(state: &mut State<A>, me: usize, phase: Phase, command: u8) {
        state.attempts[me].phase = phase;
        for node in &mut state.nodes {
            node.sent[me] |= command;
            node.said[me] = Said::Nothing;
        }
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
        own.number = own.next.number;
        own.sets = own.next.sets || self.flaw == Flaw::SetsUnconfirmed;
        own.numbers[usize::from(own.extensions) - 1] = own.number;
        own.refused = false;
        Self::send(state, me, Phase::Holding, EXTEND);
    }

    /// What an attempt makes of what the nodes have said, or of its time-out.
    fn decide(&self, state: &mut State<A>, me: usize, closed: bool) {
        let said = state.nodes.map(|it| it.said[me]);
        let votes = (0..)
            .map(NodeId::new)
            .zip(said)
            .filter(|it| it.1 != Said::Nothing)
            .map(|it| (it.0, it.1.vote()));
        let Attempt { phase, token, .. } = state.attempts[me];
        let rule = self.rules[me];
        match phase {
            Phase::Acquiring => {
                let proposal = u64::from(self.proposal(state, me));
                match round_after(
                    NODES,
                    AcquireRound::new(rule, proposal, Some(deadline())),
                    votes,
                    closed,
                )
                .end()
                {
                    Some(AcquireEnd::Won { token }) => self.win(state, me, token),
                    Some(AcquireEnd::Raise { .. })
                        if rule == Rule::Shared && self.flaw == Flaw::LargestOfAnyMajority =>
                    {
                        let largest = said.iter().filter_map(|it| {
                            if let Said::Shared(it) = it {
                                Some(*it)
                            } else {
                                None
                            }
                        });
                        state.attempts[me].token = largest.max().unwrap();
                        (state.attempts[me].phase, state.attempts[me].won) = (Phase::Holding, true);
                        for node in state
                            .nodes
                            .iter_mut()
                            .filter(|it| matches!(it.said[me], Said::Shared(_)))
                        {
                            node.counted[me] = true;
                            node.promised[me] = 1;
                        }
                        state.attempts[me].next = self.next_extension(state, me);
                    }
                    Some(AcquireEnd::Raise { token }) => {
                        state.attempts[me].token = u8::try_from(token).unwrap();
                        Self::send(state, me, Phase::Raising, RAISE);
                    }
                    Some(AcquireEnd::Lost(_)) => Self::send(state, me, Phase::Over, RELEASE),
                    None => {}
                }
            }
            Phase::Raising => {
                match round_after(
                    NODES,
                    RaiseRound::new(rule, token.into(), Some(deadline())),
                    votes,
                    closed,
                )
                .end()
                {
                    Some(AcquireEnd::Won { token }) => self.win(state, me, token),
                    Some(_) => Self::send(state, me, Phase::Over, RELEASE),
                    None => {}
                }
            }
            _ => {}
        }
    }

    fn win(&self, state: &mut State<A>, me: usize, token: u64) {
        let own = &mut state.attempts[me];
        (own.phase, own.won, own.token) = (Phase::Holding, true, u8::try_from(token).unwrap());
        for node in state
            .nodes
            .iter_mut()
            .filter(|it| it.said[me].vote().is_granted())
        {
            node.promised[me] = 1;
        }
        for node in state
            .nodes
            .iter_mut()
            .filter(|it| self.rules[me].counts(&it.said[me].vote(), token))
        {
            node.counted[me] = true;
        }
        state.attempts[me].next = self.next_extension(state, me);
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
                Self::send(it, me, Phase::Acquiring, ACQUIRE);
            });
        }
        if matches!(phase, Phase::Acquiring | Phase::Raising) {
            after(&|it| self.decide(it, me, true));
        }
        if phase.holds() {
            after(&|it| Self::send(it, me, Phase::Over, RELEASE));
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
            (ACQUIRE, Phase::Acquiring) | (RAISE, Phase::Raising) => {
                all.push(next);
                next.nodes[node].said[me] = said;
                self.decide(&mut next, me, false);
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
            let both_hold = own(a).phase.holds() && own(b).phase.holds();
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
                let is_awaited = matches!(phase, Phase::Acquiring | Phase::Raising) || is_extending;
                if !is_awaited {
                    node.said[me] = Said::Nothing;
                }
                if !may_extend && !is_extending && won {
                    node.promised[me] = 0;
                }
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
            if !may_extend && won {
                state.attempts[me].next = Next::default();
            }
            if !may_extend && !is_extending && won {
                state.attempts[me].outdated = 0;
                state.attempts[me].numbers = [0; EXTENSIONS_MAX];
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
        state.nodes.sort_unstable();
        for (a, b) in pairs::<A>().filter(|(a, b)| a < b && self.alike(*a, *b)) {
            if state.attempts[b] <= state.attempts[a] {
                let mut other = state;
                other.attempts.swap(a, b);
                other.nodes.iter_mut().for_each(|it| it.swap(a, b));
                other.nodes.sort_unstable();
                state = state.min(other);
            }
        }
        Some(state)
    }
}

impl<const A: usize> State<A> {
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
