//! A semaphore in a small world: the shipped calls, and nodes that do what the scripts for slots do.
//!
//! First every round by itself: whatever nodes answer, and in whatever order. Then two and three attempts at the permits of
//! one semaphore on three nodes, each command executed at any time or never, answers lost, attempts given up. A key
//! lasts as long as the attempt that counts on it. All states that can be reached are visited.
//!
//! On purpose: no waiting lists, and no release that brings a token along.
//!
//! A slot is a lock of its own: clocks, restarts and lost counters are searched for one lock, in `fencing`.

use super::clients::{self, ACQUIRE, Client, Done, Event, Phase, RAISE};
use super::ledgers::all;
use super::servers::{
    ALL, ALONE, Acquire, Caller, Mistake, Plain, Release, Said, Server, Turn, Wants,
};
use super::walk::World as _;
use super::*;
use crate::answer::LockStatus;
use crate::call::steps::Next;
use crate::error::RoundLoss;
use crate::ids::NodeSet;
use crate::logic::acquire_round::{AcquireEnd, AcquireRound, Rule};

const NODES: usize = 3;
const SLOTS: usize = 2;

fn granted(slot: u8, counter: Option<u64>) -> Vote {
    Vote::of_slot(slot, counter)
}

fn held() -> Vote {
    Vote::with_counter(LockStatus::Held, 0)
}

const PROPOSAL: u64 = 10;

/// What a node can answer, in a semaphore of three slots.
fn votes() -> Vec<Vote> {
    let slots =
        (0..3).flat_map(|slot| [None, Some(7), Some(12)].map(|counter| granted(slot, counter)));
    slots.chain([held(), FAILED]).collect()
}

/// By the rules: the end of a round of which these votes have come in this order.
fn expected(nodes: usize, votes: &[Vote]) -> Option<AcquireEnd> {
    for n in 1..=votes.len() {
        let votes = &votes[..n];
        let open = nodes - n;
        let of = |slot: u8| {
            votes
                .iter()
                .filter(|it| it.slot() == Some(slot))
                .collect::<Vec<_>>()
        };
        if let Some(slot) = (0..3).find(|it| majority(nodes, of(*it).len())) {
            let accepted = of(slot).iter().filter(|it| it.is_accepted()).count();
            let seen = of(slot)
                .iter()
                .filter_map(|it| it.counter())
                .max()
                .unwrap_or(0);
            return Some(if majority(nodes, accepted) && seen < PROPOSAL {
                AcquireEnd::Won { token: PROPOSAL }
            } else {
                AcquireEnd::Raise {
                    token: seen.max(PROPOSAL) + 1,
                }
            });
        }
        if !(0..3).any(|it| majority(nodes, of(it).len() + open)) {
            let failed = votes.iter().filter(|it| **it == FAILED).count();
            // So many have failed that the others are none.
            if !majority(nodes, nodes - failed) {
                return Some(AcquireEnd::Lost(RoundLoss::NoQuorum));
            }
            if majority(nodes, votes.len() - failed) {
                return Some(AcquireEnd::Lost(RoundLoss::Held));
            }
        }
    }
    None
}

#[test]
fn a15_only_a_majority_that_granted_one_slot_wins_a_round() {
    for nodes in 1..=if long() { 5 } else { 4 } {
        let all = votes();
        for course in 0..all.len().pow(u32::try_from(nodes).unwrap()) {
            let votes: Vec<_> = (0..nodes)
                .map(|i| all[course / all.len().pow(i as u32) % all.len()].clone())
                .collect();
            let mut ballot = Ballot::new(
                nodes,
                AcquireRound::new(Rule::Exclusive, PROPOSAL, Some(deadline())),
            );
            for (node, vote) in (0..).map(NodeId::new).zip(&votes) {
                let _ = ballot.on_vote(node, vote.clone(), in_time());
            }
            assert_eq!(ballot.end(), expected(nodes, &votes), "{votes:?}");
            if matches!(
                ballot.end(),
                Some(AcquireEnd::Won { .. } | AcquireEnd::Raise { .. })
            ) {
                let of = |slot| votes.iter().filter(|it| it.slot() == Some(slot)).count();
                assert!(
                    ballot.slot().is_some_and(|it| majority(nodes, of(it))),
                    "{votes:?}"
                );
            }
        }
    }
}

/// As on the page: each of n nodes lets k holders in, and a client is in with a majority.
#[test]
fn nodes_that_only_count_holders_grant_too_many_permits() {
    for (nodes, permits, inside) in [(3, 2, 3), (3, 10, 15), (5, 10, 16), (5, 1, 1)] {
        let quorum = nodes / 2 + 1;
        let mut room = vec![permits; nodes];
        let mut clients = 0;
        loop {
            // The next one is let in where there is most room.
            let mut order: Vec<_> = (0..nodes).collect();
            order.sort_by_key(|it| usize::MAX - room[*it]);
            if order.iter().take(quorum).any(|it| room[*it] == 0) {
                break;
            }
            order.iter().take(quorum).for_each(|it| room[*it] -= 1);
            clients += 1;
        }
        assert_eq!(clients, inside, "{permits} permits at {nodes} nodes");
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    /// More hold than there are permits.
    TooMany,
    /// Two hold the same one.
    TwoInOne,
    /// A later holder of a slot has a token that is not larger.
    TokenNotLarger,
    /// A node keeps a slot for an attempt that did not win it, or is over.
    Stray,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    Server(Mistake),
    /// The client adds up votes for different slots.
    AddsUpSlots,
    /// The client does not give back what nodes have granted besides its slot.
    KeepsStrays,
}

/// Commands to a node are one bit each; the lowest comes first.
const KEEP: u8 = 4;
const RELEASE: u8 = 8;

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Node<const A: usize> {
    server: Plain<(), SLOTS>,
    sent: [u8; A],
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Attempt {
    phase: Phase,
    client: Option<Client>,
    slot: u8,
    token: u8,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State<const A: usize> {
    attempts: [Attempt; A],
    nodes: [Node<A>; NODES],
    /// The largest token of any holder so far, slot by slot.
    largest: [u8; SLOTS],
}

#[derive(Clone, Copy, Debug)]
struct World<const A: usize> {
    /// The slot at which each begins.
    first: [u8; A],
    proposals: [u8; A],
    counters: [u8; SLOTS],
    flaw: Flaw,
}

impl<const A: usize> World<A> {
    fn start(&self) -> State<A> {
        let node = Node {
            server: Server::new(self.counters, (), ()),
            sent: [0; A],
        };
        let attempt = Attempt {
            phase: Phase::Idle,
            client: None,
            slot: 0,
            token: 0,
        };
        State {
            attempts: [attempt; A],
            nodes: [node; NODES],
            largest: self.counters,
        }
    }

    fn found(&self) -> Option<Violation> {
        self.search(self.start())
    }

    /// What a node does with a command.
    fn run(&self, node: &mut Node<A>, me: usize, command: u8, attempt: Attempt) -> Said {
        let Attempt { slot, token, .. } = attempt;
        let slot = usize::from(slot);
        let mistake = match self.flaw {
            Flaw::Server(mistake) => mistake,
            _ => Mistake::None,
        };
        let turn = &mut Turn::of(mistake);
        let caller = Caller {
            owner: u8::try_from(me).unwrap(),
            locks: ALL,
            rule: Rule::Exclusive,
        };
        match command {
            ACQUIRE => {
                let acquire = Acquire {
                    owner: caller.owner,
                    wants: Wants::Permit(usize::from(self.first[me])),
                    proposal: self.proposals[me],
                    until: 0,
                    member: None,
                    enters: false,
                };
                node.server.acquire(turn, acquire).into()
            }
            RAISE => {
                let locks = ALONE[slot];
                let caller = Caller { locks, ..caller };
                node.server.raise(mistake, caller, token).into()
            }
            _ => {
                let release = Release {
                    keep: Some(slot).filter(|_| command == KEEP),
                    ..Release::of(caller)
                };
                node.server.release(turn, release);
                Said::Nothing
            }
        }
    }

    fn send(state: &mut State<A>, me: usize, to: NodeSet, command: u8) {
        clients::among(&mut state.nodes, to).for_each(|it| it.sent[me] |= command);
    }

    /// Carries out what a call wants done.
    fn carry_out(&self, state: &mut State<A>, me: usize, done: &Done) {
        state.attempts[me].client = Some(done.client);
        for next in done.steps.iter() {
            let own = &mut state.attempts[me];
            match next {
                Next::Raise { slot, token, .. } => {
                    (own.slot, own.token) = (slot.unwrap(), u8::try_from(*token).unwrap());
                    Self::send(state, me, all(), RAISE);
                }
                Next::TakeBack(release) => Self::send(state, me, release.to, RELEASE),
                Next::GiveUp(_) => (own.phase, own.client) = (Phase::Over, None),
                Next::Won(win) => {
                    (own.phase, own.client) = (Phase::Holding, None);
                    (own.slot, own.token) = (win.slot.unwrap(), u8::try_from(win.token).unwrap());
                    if self.flaw != Flaw::KeepsStrays {
                        Self::send(state, me, win.others, KEEP);
                    }
                }
                _ => {
                    own.phase = Phase::Calling;
                    Self::send(state, me, all(), ACQUIRE);
                }
            }
        }
    }

    fn step(&self, state: &mut State<A>, me: usize, mut event: Event) {
        let Some(client) = state.attempts[me].client else {
            return;
        };
        if let Event::Answer(_, _, Said::Slot(slot, _)) = &mut event
            && self.flaw == Flaw::AddsUpSlots
        {
            *slot = client
                .votes(|it| it.places().find_map(|it| it.1?.slot()))
                .unwrap_or(*slot);
        }
        self.carry_out(state, me, &client.step(event));
    }
}

impl<const A: usize> walk::World for World<A> {
    type State = State<A>;
    type Violation = Violation;

    fn next(&self, state: &State<A>) -> Vec<State<A>> {
        let mut all = Vec::new();
        for me in 0..A {
            let attempt = state.attempts[me];
            let mut next = *state;
            match attempt.phase {
                Phase::Idle => {
                    self.carry_out(&mut next, me, &clients::begin(false, self.proposals[me]));
                }
                Phase::Calling => self.step(&mut next, me, Event::TimeOut),
                Phase::Holding => {
                    next.attempts[me].phase = Phase::Over;
                    Self::send(&mut next, me, ledgers::all(), RELEASE);
                }
                Phase::Over => {}
            }
            all.push(next);
            for node in 0..NODES {
                let sent = state.nodes[node].sent[me];
                let command = sent & sent.wrapping_neg();
                if command == 0 {
                    continue;
                }
                let mut next = *state;
                next.nodes[node].sent[me] &= !command;
                let said = self.run(&mut next.nodes[node], me, command, attempt);
                if attempt.phase == Phase::Calling && said != Said::Nothing {
                    // The answer gets lost, or comes.
                    all.push(next);
                    self.step(&mut next, me, Event::Answer(command, node, said));
                }
                all.push(next);
            }
        }
        all
    }

    fn violation(&self, before: &State<A>, state: &State<A>) -> Option<Violation> {
        let holders = || (0..A).filter(|it| state.attempts[*it].phase == Phase::Holding);
        if SLOTS < holders().count() {
            return Some(Violation::TooMany);
        }
        for me in holders() {
            let Attempt { slot, token, .. } = state.attempts[me];
            if self.flaw != Flaw::AddsUpSlots
                && holders().any(|it| it != me && state.attempts[it].slot == slot)
            {
                return Some(Violation::TwoInOne);
            }
            let is_new = before.attempts[me].phase != Phase::Holding;
            if self.flaw != Flaw::AddsUpSlots
                && is_new
                && token <= before.largest[usize::from(slot)]
            {
                return Some(Violation::TokenNotLarger);
            }
        }
        for (me, attempt) in state.attempts.iter().enumerate() {
            for node in state.nodes.iter().filter(|it| it.sent[me] == 0) {
                let is_mine = |it: usize| node.server.has(it, me as u8);
                let has_other = (0..SLOTS).any(|it| is_mine(it) && it != usize::from(attempt.slot));
                let has_any = (0..SLOTS).any(is_mine);
                if attempt.phase == Phase::Holding && has_other
                    || attempt.phase == Phase::Over && has_any
                {
                    return Some(Violation::Stray);
                }
            }
        }
        None
    }

    /// Nodes are alike: states that differ only in which is which are one.
    fn settle(&self, mut state: State<A>) -> Option<State<A>> {
        for attempt in state
            .attempts
            .iter()
            .filter(|it| it.phase == Phase::Holding)
        {
            let largest = &mut state.largest[usize::from(attempt.slot)];
            *largest = attempt.token.max(*largest);
        }
        clients::sort(&mut state.nodes, &mut state.attempts, |it| &mut it.client);
        Some(state)
    }
}

const TWO: World<2> = World {
    first: [0, 1],
    proposals: [2, 1],
    counters: [0, 0],
    flaw: Flaw::None,
};
const THREE: World<3> = World {
    first: [0, 1, 0],
    proposals: [1, 1, 1],
    counters: [0, 0],
    flaw: Flaw::None,
};

#[test]
fn a15_no_more_hold_than_there_are_permits_and_tokens_of_each_slot_grow() {
    for (first, proposals, counters) in [
        ([0, 1], [2, 1], [0, 0]),
        ([0, 0], [1, 1], [0, 0]),
        ([0, 0], [2, 2], [1, 3]),
    ] {
        assert_eq!(
            World {
                first,
                proposals,
                counters,
                ..TWO
            }
            .found(),
            None
        );
    }
    if longest() {
        assert_eq!(THREE.found(), None);
    }
}

#[test]
fn a15_added_votes_for_different_slots_are_detected() {
    // The counterexample of the page: the first has a permit at n0 and n1, the second at n1 and n2.
    let world = World {
        counters: [1, 1],
        proposals: [1, 1, 2],
        ..THREE
    };
    let mut start = world.start();
    for (me, nodes) in [(0, [0, 1]), (1, [1, 2])] {
        start.attempts[usize::from(me)] = Attempt {
            phase: Phase::Holding,
            client: None,
            slot: me,
            token: 1,
        };
        nodes
            .into_iter()
            .for_each(|it| start.nodes[it].server.keep(usize::from(me), me, 0));
    }
    assert_eq!(
        World {
            flaw: Flaw::AddsUpSlots,
            ..world
        }
        .search(start),
        Some(Violation::TooMany)
    );
    assert_eq!(world.search(start), None);
}

#[test]
fn a15_a_token_compared_with_another_slots_counter_is_detected() {
    let world = World {
        first: [1, 1],
        counters: [0, 2],
        flaw: Flaw::Server(Mistake::AnotherSlotsCounter),
        ..TWO
    };
    assert_eq!(world.found(), Some(Violation::TokenNotLarger));
    assert_eq!(
        World {
            flaw: Flaw::None,
            ..world
        }
        .found(),
        None
    );
}

#[test]
fn a15_unreleased_slots_are_detected() {
    assert_eq!(
        World {
            first: [0, 0],
            flaw: Flaw::KeepsStrays,
            ..TWO
        }
        .found(),
        Some(Violation::Stray)
    );
}
