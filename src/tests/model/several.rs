//! Several names in a small world: shipped calls and holds, and nodes that do what the scripts do.
//!
//! A few attempts at two names, "a" and "b", on three nodes: of both together, and of one of them. Commands of an attempt come
//! to a node in their order, and each of them at any time or never; answers get lost; an attempt can give up at any time. A key
//! lasts as long as the attempt that counts on it, and may be gone any time after that. All states that can be reached are
//! visited.
//!
//! On purpose: no waiting lists, and no release that brings a token along.
//!
//! That the rules of one name hold for each of several is the claim here. The rules themselves, with clocks, restarts and
//! lost counters, are searched in `fencing`.

use super::clients::{self, ACQUIRE, Client, Done, Event, Phase, RAISE};
use super::ledgers::{Calm, Ledger, Reply, Sent, all, before, sent_at};
use super::servers::{
    ALL, ALONE, Acquire, Caller, Extend, Key, Locks, Mistake, Plain, Release, Said, Server, Turn,
    Wants,
};
use super::walk::World as _;
use super::*;
use crate::call::steps::Next;
use crate::ids::NodeSet;
use crate::logic::acquire_round::Rule;

const NODES: usize = 3;
const NAMES: usize = 2;

const BOTH: Locks = ALL;
const ONLY_A: Locks = ALONE[0];
const ONLY_B: Locks = ALONE[1];

/// What must not happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    /// Two hold a name at a time.
    TwoHold,
    /// A later holder of a name has a token that is not larger.
    TokenNotLarger,
    /// A node has some names of an attempt and not the others.
    Some,
    /// A node has names of an attempt behind its release.
    Orphan,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    Server(Mistake),
    /// A node takes one name after the other, and commands of others come in between.
    OneByOne,
}

/// Commands to a node are one bit each; the lowest comes first. The first extension, and the second:
const EXTEND: [u8; 2] = [4, 8];
const RELEASE: u8 = 16;

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Node<const A: usize> {
    /// The end of a key is the last command that has set or extended it: the acquire (0) or an extension.
    server: Plain<(), NAMES>,
    sent: [u8; A],
    /// See [`Ledger`].
    promises: [u8; A],
    gone: [u8; A],
    counts_from: [u8; A],
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Attempt {
    phase: Phase,
    client: Option<Client>,
    token: u8,
    /// Of a holder; what it has of single nodes is in [`Node`].
    ledger: Ledger,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State<const A: usize> {
    attempts: [Attempt; A],
    nodes: [Node<A>; NODES],
    /// The largest token of any holder so far, name by name.
    largest: [u8; NAMES],
}

#[derive(Clone, Copy, Debug)]
struct World<const A: usize> {
    wants: [Locks; A],
    proposals: [u8; A],
    /// Extensions of a hold.
    extensions: u8,
    flaw: Flaw,
}

impl<const A: usize> World<A> {
    fn start(&self, counters: [[u8; NAMES]; NODES]) -> State<A> {
        State {
            attempts: [Attempt {
                phase: Phase::Idle,
                client: None,
                token: 0,
                ledger: Ledger::default(),
            }; A],
            nodes: counters.map(|counters| Node {
                server: Server::new(counters, (), ()),
                sent: [0; A],
                promises: [0; A],
                gone: [0; A],
                counts_from: [0; A],
            }),
            largest: [0; NAMES],
        }
    }

    fn names(&self, me: usize) -> impl Iterator<Item = usize> {
        self.wants[me].iter().copied()
    }

    fn is_mine(node: &Node<A>, me: usize, name: usize) -> bool {
        node.server.has(name, me as u8)
    }

    /// What a node does with a command.
    fn run(&self, node: &mut Node<A>, me: usize, command: u8, sent: Sent) -> Said {
        let Sent { number, sets } = sent;
        let owner = u8::try_from(me).unwrap();
        let locks = self.wants[me];
        let server = &mut node.server;
        let mistake = match self.flaw {
            Flaw::Server(mistake) => mistake,
            _ => Mistake::None,
        };
        let caller = Caller {
            owner,
            locks,
            rule: Rule::Exclusive,
        };
        match command {
            ACQUIRE if self.flaw == Flaw::OneByOne && server.is_free(locks[0]) => {
                server.keep(locks[0], owner, 0);
                node.sent[me] |= ACQUIRE;
                Said::Nothing
            }
            ACQUIRE => {
                let acquire = Acquire {
                    owner,
                    wants: Wants::Names(locks),
                    proposal: number,
                    until: 0,
                    member: None,
                    enters: false,
                };
                let before = *server;
                let said = server.acquire(&mut Turn::of(mistake), acquire).into();
                if self.flaw == Flaw::OneByOne && matches!(said, Said::Held(_)) {
                    *server = before;
                }
                said
            }
            RAISE => server.raise(mistake, caller, number).into(),
            _ if EXTEND.contains(&command) => {
                let extend = Extend {
                    number,
                    until: round_of(command),
                    sets,
                };
                server.extend(mistake, caller, extend).into()
            }
            _ => {
                server.release(&mut Turn::of(mistake), Release::of(caller));
                Said::Nothing
            }
        }
    }

    fn send(state: &mut State<A>, me: usize, to: NodeSet, command: u8) {
        clients::among(&mut state.nodes, to).for_each(|it| it.sent[me] |= command);
    }

    fn begin(&self, state: &mut State<A>, me: usize) {
        Self::carry_out(state, me, &clients::begin(false, self.proposals[me]));
    }

    fn step(state: &mut State<A>, me: usize, event: Event) {
        if let Some(client) = state.attempts[me].client {
            Self::carry_out(state, me, &client.step(event));
        }
    }

    /// Carries out what a call wants done.
    fn carry_out(state: &mut State<A>, me: usize, done: &Done) {
        state.attempts[me].client = Some(done.client);
        for next in done.steps.iter() {
            let own = &mut state.attempts[me];
            match next {
                Next::Raise { token, .. } => {
                    own.token = u8::try_from(*token).unwrap();
                    Self::send(state, me, all(), RAISE);
                }
                Next::TakeBack(release) => Self::send(state, me, release.to, RELEASE),
                Next::GiveUp(_) => (own.phase, own.client) = (Phase::Over, None),
                Next::Won(win) => {
                    (own.phase, own.client) = (Phase::Holding, None);
                    own.token = u8::try_from(win.token).unwrap();
                    let ledger = Ledger::new(own.token, done.client.promised());
                    Self::record(state, me, ledger);
                }
                _ => {
                    own.phase = Phase::Calling;
                    Self::send(state, me, all(), ACQUIRE);
                }
            }
        }
    }

    fn let_go(state: &mut State<A>, me: usize) {
        state.attempts[me].phase = Phase::Over;
        Self::send(state, me, all(), RELEASE);
    }

    fn ledger(state: &State<A>, me: usize) -> Ledger {
        Ledger {
            promises: state.nodes.map(|it| it.promises[me]),
            gone: state.nodes.map(|it| it.gone[me]),
            counts_from: state.nodes.map(|it| it.counts_from[me]),
            ..state.attempts[me].ledger
        }
    }

    fn record(state: &mut State<A>, me: usize, ledger: Ledger) {
        for (node, it) in state.nodes.iter_mut().enumerate() {
            it.promises[me] = ledger.promises[node];
            it.gone[me] = ledger.gone[node];
            it.counts_from[me] = ledger.counts_from[node];
        }
        state.attempts[me].ledger = Ledger {
            promises: Default::default(),
            gone: Default::default(),
            counts_from: Default::default(),
            ..ledger
        };
    }

    fn extend(state: &State<A>, me: usize) -> State<A> {
        let mut next = *state;
        let mut ledger = Self::ledger(state, me);
        assert!(ledger.extend(false, &Calm { settable: true }));
        let command = EXTEND[usize::from(ledger.round) - 1];
        Self::record(&mut next, me, ledger);
        Self::send(&mut next, me, all(), command);
        next
    }

    /// The answer of a node to an extension comes: early in the lease, and just before its end.
    fn hear(state: &State<A>, me: usize, reply: Reply, all: &mut Vec<State<A>>) {
        let old = Self::ledger(state, me);
        for at in [sent_at(old.round), before(old.confirmed)] {
            let mut next = *state;
            let mut ledger = old;
            match ledger.hear([reply.clone()].into_iter(), at) {
                Some(true) => Self::record(&mut next, me, ledger),
                _ => Self::let_go(&mut next, me),
            }
            all.push(next);
        }
    }

    /// Whether a key may be gone by itself.
    fn may_expire(state: &State<A>, key: Key<u8>) -> bool {
        let Key::Owned { owner, until } = key else {
            return false;
        };
        let Attempt { phase, ledger, .. } = state.attempts[usize::from(owner)];
        phase == Phase::Over || until < ledger.confirmed
    }

    /// A node executes the next command of an attempt: with an answer that comes, and with one that does not.
    fn executed(&self, state: &State<A>, me: usize, node: usize, all: &mut Vec<State<A>>) {
        let sent = state.nodes[node].sent[me];
        let command = sent & sent.wrapping_neg();
        if command == 0 {
            return;
        }
        let own = &state.attempts[me];
        let (phase, ledger) = (own.phase, own.ledger);
        let round = round_of(command);
        let sent = match round {
            0 if command == ACQUIRE => Sent::of(self.proposals[me]),
            0 => Sent::of(own.token),
            _ => ledger.sent[usize::from(round) - 1],
        };
        let mut next = *state;
        next.nodes[node].sent[me] &= !command;
        let said = self.run(&mut next.nodes[node], me, command, sent);
        if said != Said::Nothing {
            all.push(next);
        }
        let is_heard = round != 0 && phase == Phase::Holding && ledger.confirmed < self.extensions;
        if let Some(answer) = said.to_extension().filter(|_| is_heard) {
            let reply = Reply {
                round,
                node,
                answer,
            };
            return Self::hear(&next, me, reply, all);
        }
        if round == 0 && said != Said::Nothing {
            Self::step(&mut next, me, Event::Answer(command, node, said));
        }
        all.push(next);
    }

    /// Whether nothing more can go wrong: with one that is left there is nothing to compare. What is left behind is looked
    /// at with one attempt alone.
    fn is_settled(&self, state: &State<A>) -> bool {
        let mut left = state.attempts.iter().filter(|it| it.phase != Phase::Over);
        let first = left.next();
        let second = left.next();
        let nobody_held = state.largest == [0; NAMES];
        let holds = first.is_none_or(|it| it.phase == Phase::Holding);
        1 < A && self.flaw == Flaw::None && second.is_none() && (nobody_held || holds)
    }
}

impl<const A: usize> walk::World for World<A> {
    type State = State<A>;
    type Violation = Violation;

    fn next(&self, state: &State<A>) -> Vec<State<A>> {
        let mut all = Vec::new();
        for me in 0..A {
            let Attempt { phase, ledger, .. } = state.attempts[me];
            let mut next = *state;
            match phase {
                Phase::Idle => self.begin(&mut next, me),
                Phase::Calling => Self::step(&mut next, me, Event::TimeOut),
                Phase::Holding => Self::let_go(&mut next, me),
                Phase::Over => {}
            }
            all.push(next);
            if phase == Phase::Holding && ledger.round < self.extensions {
                all.push(Self::extend(state, me));
            }
            for node in 0..NODES {
                self.executed(state, me, node, &mut all);
            }
        }
        for (node, name) in (0..NODES).flat_map(|node| (0..NAMES).map(move |name| (node, name))) {
            if Self::may_expire(state, state.nodes[node].server.locks[name].key) {
                let mut next = *state;
                next.nodes[node].server.vanish(name);
                all.push(next);
            }
        }
        all
    }

    fn violation(&self, before: &State<A>, state: &State<A>) -> Option<Violation> {
        let holds = |it: usize| state.attempts[it].phase == Phase::Holding;
        for name in 0..NAMES {
            if 1 < (0..A)
                .filter(|it| holds(*it) && self.wants[*it].contains(&name))
                .count()
            {
                return Some(Violation::TwoHold);
            }
        }
        for me in (0..A).filter(|it| holds(*it)) {
            let is_new = before.attempts[me].phase == Phase::Calling;
            if is_new
                && self
                    .names(me)
                    .any(|it| state.attempts[me].token <= before.largest[it])
            {
                return Some(Violation::TokenNotLarger);
            }
        }
        for me in 0..A {
            for node in &state.nodes {
                let has = self
                    .names(me)
                    .filter(|it| Self::is_mine(node, me, *it))
                    .count();
                // Where nobody has deleted one, and before those of an attempt that is over expire one by one.
                let is_whole = self.extensions == 0;
                if is_whole
                    && has != 0
                    && has < self.names(me).count()
                    && state.attempts[me].phase != Phase::Over
                {
                    return Some(Violation::Some);
                }
                if has != 0 && node.sent[me] == 0 && state.attempts[me].phase == Phase::Over {
                    return Some(Violation::Orphan);
                }
            }
        }
        None
    }

    /// Nodes are alike: states that differ only in which is which are one.
    fn settle(&self, mut state: State<A>) -> Option<State<A>> {
        for me in 0..A {
            if state.attempts[me].phase == Phase::Holding {
                let token = state.attempts[me].token;
                self.names(me)
                    .for_each(|it| state.largest[it] = state.largest[it].max(token));
            }
        }
        for me in 0..A {
            // Nothing comes after the last confirmation but the end.
            let Attempt { phase, ledger, .. } = state.attempts[me];
            if phase != Phase::Holding || ledger.confirmed == self.extensions {
                let is_held = phase == Phase::Holding;
                let under_way = state.nodes.iter().fold(0, |all, it| all | it.sent[me]);
                let mut left = Ledger::default();
                if is_held {
                    (left.round, left.confirmed) = (ledger.round, ledger.confirmed);
                }
                for (command, sent) in EXTEND.iter().zip(0..) {
                    if under_way & command != 0 {
                        left.sent[sent] = ledger.sent[sent];
                    }
                }
                state.attempts[me].ledger = left;
                for node in &mut state.nodes {
                    (node.promises[me], node.gone[me]) = (0, 0);
                }
            }
        }
        clients::sort(&mut state.nodes, &mut state.attempts, |it| &mut it.client);
        (!self.is_settled(&state)).then_some(state)
    }
}

/// The extension that a command is; 0 for another one.
fn round_of(command: u8) -> u8 {
    (1..)
        .zip(EXTEND)
        .find(|it| it.1 == command)
        .map_or(0, |it| it.0)
}

const PAIR: World<2> = World {
    wants: [BOTH, BOTH],
    proposals: [2, 1],
    extensions: 0,
    flaw: Flaw::None,
};
const WITH_ONE: World<2> = World {
    wants: [BOTH, ONLY_B],
    ..PAIR
};
const FRESH: [[u8; NAMES]; NODES] = [[0; NAMES]; NODES];

/// The first holds both names on all nodes, and somebody has deleted one key.
fn held<const A: usize>(world: &World<A>) -> State<A> {
    let mut state = world.start(FRESH);
    state.attempts[0].phase = Phase::Holding;
    state.attempts[0].token = 2;
    World::record(&mut state, 0, Ledger::new(2, [true; NODES]));
    for node in &mut state.nodes {
        node.server = Server::new([2; NAMES], (), ());
        (0..NAMES).for_each(|it| node.server.keep(it, 0, 0));
    }
    state.nodes[0].server.vanish(0);
    state.largest = [2; NAMES];
    state
}

#[test]
fn a14_several_names_are_held_by_one_at_a_time_each_and_their_tokens_grow() {
    let ragged = [[0, 1], [1, 0], [3, 0]];
    let mut worlds = vec![];
    for (world, counters) in [(WITH_ONE, FRESH), (PAIR, FRESH), (WITH_ONE, ragged)] {
        worlds.extend([[1, 1], [2, 1], [1, 2]].map(|proposals| (world, proposals, counters)));
    }
    if long() {
        worlds.push((PAIR, [2, 1], ragged));
    }
    for (world, proposals, counters) in worlds {
        let world = World { proposals, ..world };
        assert_eq!(world.search(world.start(counters)), None);
    }
}

#[test]
fn an_attempt_at_several_names_leaves_none_of_them_behind() {
    for counters in [FRESH, [[0, 1], [1, 0], [3, 0]]] {
        let world = World {
            wants: [BOTH],
            proposals: [2],
            extensions: 0,
            flaw: Flaw::None,
        };
        assert_eq!(world.search(world.start(counters)), None);
    }
}

#[test]
fn several_names_and_each_of_them_alone_are_held_by_one_at_a_time() {
    let world = World {
        wants: [BOTH, ONLY_A, ONLY_B],
        proposals: [1, 1, 1],
        extensions: 0,
        flaw: Flaw::None,
    };
    if longest() {
        assert_eq!(world.search(world.start(FRESH)), None);
    }
    // The rest of it: who has one name, and who then wants both.
    let mut start = world.start(FRESH);
    for node in &mut start.nodes[..2] {
        node.server = Server::new([1, 0], (), ());
        node.server.keep(0, 1, 0);
    }
    (start.attempts[1].phase, start.attempts[1].token) = (Phase::Holding, 1);
    start.largest[0] = 1;
    start.attempts[2].phase = Phase::Over;
    assert_eq!(world.search(start), None);
}

#[test]
fn several_names_exclude_after_extensions_and_a_lost_key() {
    for wants in [[BOTH, BOTH], [BOTH, ONLY_A], [BOTH, ONLY_B]] {
        let world = World {
            wants,
            extensions: 1,
            ..PAIR
        };
        assert_eq!(world.search(held(&world)), None);
        if long() {
            let world = World {
                extensions: 2,
                ..world
            };
            assert_eq!(world.search(held(&world)), None);
        }
    }
}

#[test]
fn a14_names_taken_one_by_one_are_detected() {
    let world = World {
        flaw: Flaw::OneByOne,
        ..PAIR
    };
    assert_eq!(world.search(world.start(FRESH)), Some(Violation::Some));
}

#[test]
fn d13_a_node_that_counts_without_one_name_is_detected() {
    let world = World {
        wants: [BOTH, ONLY_A],
        extensions: 1,
        flaw: Flaw::Server(Mistake::CountsWithOneMissing),
        ..PAIR
    };
    assert_eq!(world.search(held(&world)), Some(Violation::TwoHold));
}

#[test]
fn a14_a_token_above_the_counter_of_one_name_only_is_detected() {
    let world = World {
        proposals: [1, 2],
        flaw: Flaw::Server(Mistake::TokenAboveTheFirst),
        ..WITH_ONE
    };
    let start = |world: &World<2>| {
        // The other has had its name before, and all nodes know.
        let mut start = world.start([[0, 2]; NODES]);
        (start.attempts[1].phase, start.largest[1]) = (Phase::Over, 2);
        start
    };
    assert_eq!(world.search(start(&world)), Some(Violation::TokenNotLarger));
    let fixed = World {
        flaw: Flaw::None,
        ..world
    };
    assert_eq!(fixed.search(start(&fixed)), None);
}

#[test]
fn a_release_of_some_names_is_detected() {
    let world = World {
        flaw: Flaw::Server(Mistake::ReleasesSome),
        ..PAIR
    };
    assert_eq!(world.search(world.start(FRESH)), Some(Violation::Orphan));
}

#[test]
fn a_raise_that_counts_without_one_name_is_detected() {
    for (flaw, expected) in [
        (
            Flaw::Server(Mistake::RaisesWithOneMissing),
            Some(Violation::TwoHold),
        ),
        (Flaw::None, None),
    ] {
        let world = World {
            wants: [BOTH, ONLY_A],
            proposals: [1, 3],
            extensions: 1,
            flaw,
        };
        // Two nodes have granted both names, and somebody has deleted a key since.
        let mut start = world.start([[1; NAMES]; NODES]);
        world.begin(&mut start, 0);
        for at in 0..2 {
            let node = &mut start.nodes[at];
            node.sent[0] &= !ACQUIRE;
            let said = world.run(node, 0, ACQUIRE, Sent::of(1));
            World::step(&mut start, 0, Event::Answer(ACQUIRE, at, said));
        }
        start.nodes[0].server.vanish(0);
        assert_eq!(world.search(start), expected);
    }
}
