//! The fencing protocol in a small world: the shipped rounds, and nodes that do what the scripts do.
//!
//! A few attempts at one lock on three nodes. Each attempt has its own connection to each node, on which its commands
//! stay in order; between connections there is no order at all. Commands and answers can be delayed for ever, and an
//! attempt can give up at any time. A limited number of times a command is lost, or a key vanishes: at any time
//! ([`Keys::Vanish`]), or never before its attempt is over ([`Keys::Last`]). All states that can be reached are visited,
//! but for those from which no two attempts can win any more.
//!
//! Checked whenever an attempt wins:
//!
//! - tokens differ;
//! - an attempt that started after another had won has the larger token;
//! - at every node that two winners count, their grants came in the order of their tokens;
//! - as long as keys last: no two hold at a time, and the later holder has the larger token.
//!
//! Each [`Flaw`] breaks the nodes or the driver on purpose, and must then be found: it shows that the checks bite.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::*;
use crate::logic::acquire::{AcquireEnd, AcquireRound, AcquireVote, RaiseRound, RaiseVote};

const NODES: usize = 3;

/// What a node said, as `AcquireVote` and `RaiseVote` have it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Said {
    Accepted,
    Behind(u8),
    Held(u8),
    Taken,
    Above(u8),
    Gone,
}

/// The answer of one node in an attempt's present round.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Answer {
    None,
    OnItsWay(Said),
    Counted(Said),
}

/// An attempt's connection to a node.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Line {
    /// Commands that the node has not executed, one bit each; the lowest is executed first, as each attempt sends them
    /// in this order and none of them twice.
    sent: u8,
    answer: Answer,
}

const ACQUIRE: u8 = 1;
const RAISE: u8 = 2;
const RELEASE: u8 = 4;

/// A node, and everything else that is told apart by node. Nodes are alike, so states that differ only in which is
/// which are one state: they are kept sorted.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Node<const A: usize> {
    /// The value of the lock key.
    key: Option<u8>,
    counter: u8,
    /// The attempts that were granted here, in this order.
    grants: [Option<u8>; A],
    lines: [Line; A],
    /// The winners whose majority this node is part of.
    counted: [bool; A],
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Phase {
    Idle,
    Acquiring,
    Raising,
    Holding { token: u8 },
    Released { token: u8 },
    Lost,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Attempt<const A: usize> {
    phase: Phase,
    /// The token of its raise, while a command with it may be under way.
    raise: u8,
    /// Who had won before this one started.
    after: [bool; A],
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct State<const A: usize> {
    attempts: [Attempt<A>; A],
    nodes: [Node<A>; NODES],
    /// How many commands can still be lost, and how many keys vanish before their time.
    accidents: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    /// As long as their attempt is not over.
    Last,
    /// At any time.
    Vanish,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// A node accepts a proposal that equals its counter.
    AcceptsEqual,
    /// A node acknowledges a raise to what its counter is already.
    TakesEqual,
    /// A node raises its counter whosever key stands there.
    RaisesForAnyone,
    /// The client counts nodes that granted, but did not accept.
    CountsRefusers,
    /// All attempts of a client use one value for the key.
    ReusesValue,
}

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
struct World<const A: usize> {
    proposals: [u8; A],
    /// The earlier attempt of the same client, which must be over first.
    retry_of: [Option<usize>; A],
    counters: [u8; NODES],
    keys: Keys,
    /// How many commands are lost, and how many keys vanish before their time.
    accidents: u8,
    flaw: Flaw,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    SameToken,
    LaterStartSmallerToken,
    GrantsAgainstTokens,
    LaterHoldSmallerToken,
    TwoHold,
}

/// What was seen on a search.
#[derive(Debug, Default)]
struct Findings {
    states: u64,
    won_at_once: u64,
    won_by_raise: u64,
    /// States in which every attempt has won.
    all_won: u64,
    violations: Vec<Violation>,
}

impl<const A: usize> World<A> {
    fn start(&self) -> State<A> {
        let line = Line { sent: 0, answer: Answer::None };
        let node = |counter| Node { key: None, counter, grants: [None; A], lines: [line; A], counted: [false; A] };
        State {
            attempts: [Attempt { phase: Phase::Idle, raise: 0, after: [false; A] }; A],
            nodes: self.counters.map(node),
            accidents: self.accidents,
        }
    }

    /// Visits every state that can be reached from `start`, or stops at the first violation.
    fn search(&self, start: State<A>, findings: &mut Findings) {
        let mut visited = HashSet::with_hasher(BuildHasherDefault::<Mix>::default());
        let mut open = vec![start];
        let mut next = Vec::new();
        while let Some(state) = open.pop() {
            self.successors(&state, &mut next, findings);
            if !findings.violations.is_empty() {
                break;
            }
            for mut state in next.drain(..) {
                state.nodes.sort_unstable();
                // It takes two winners to violate anything, and one of them still has to win.
                let winners = state.attempts.iter().filter(|it| it.phase.token().is_some()).count();
                let lost = state.attempts.iter().filter(|it| it.phase == Phase::Lost).count();
                if winners + lost < A && 2 <= A - lost {
                    if visited.insert(state.clone()) {
                        open.push(state);
                    }
                } else {
                    findings.all_won += u64::from(winners == A);
                }
            }
        }
        findings.states += visited.len() as u64;
    }

    fn successors(&self, state: &State<A>, next: &mut Vec<State<A>>, findings: &mut Findings) {
        for me in 0..A {
            match state.attempts[me].phase {
                Phase::Idle if self.retry_of[me].is_none_or(|it| state.attempts[it].phase.is_over()) => {
                    let mut state = state.clone();
                    state.attempts[me].after = std::array::from_fn(|it| state.attempts[it].phase.token().is_some());
                    state.enter(me, Phase::Acquiring, ACQUIRE);
                    next.push(state);
                }
                Phase::Acquiring | Phase::Raising => {
                    let mut silent = state.clone();
                    self.hear(&mut silent, me, None, findings);
                    next.push(silent);
                    for node in 0..NODES {
                        if let Answer::OnItsWay(_) = state.nodes[node].lines[me].answer {
                            let mut state = state.clone();
                            self.hear(&mut state, me, Some(node), findings);
                            next.push(state);
                        }
                    }
                }
                Phase::Holding { token } => {
                    let mut state = state.clone();
                    state.enter(me, Phase::Released { token }, RELEASE);
                    next.push(state);
                }
                Phase::Idle | Phase::Released { .. } | Phase::Lost => {}
            }
            for node in 0..NODES {
                if state.nodes[node].lines[me].sent != 0 {
                    if let Some(mut lost) = state.after_accident() {
                        lost.take_command(me, node);
                        lost.forget_raise(me);
                        next.push(lost);
                    }
                    let mut executed = state.clone();
                    self.execute(&mut executed, me, node);
                    executed.forget_raise(me);
                    next.push(executed);
                }
            }
        }
        for (node, Node { key, .. }) in state.nodes.iter().enumerate() {
            let Some(key) = key else { continue };
            let unused = |it: usize| self.value(it) != *key || state.attempts[it].phase.is_over();
            let state = match self.keys {
                _ if (0..A).all(unused) => Some(state.clone()),
                Keys::Vanish => state.after_accident(),
                Keys::Last => None,
            };
            if let Some(mut state) = state {
                state.nodes[node].key = None;
                next.push(state);
            }
        }
    }

    fn value(&self, attempt: usize) -> u8 {
        match self.retry_of[attempt] {
            Some(earlier) if self.flaw == Flaw::ReusesValue => self.value(earlier),
            _ => attempt as u8,
        }
    }

    /// What the scripts do.
    fn execute(&self, state: &mut State<A>, me: usize, node: usize) {
        let command = state.take_command(me, node);
        let Attempt { phase, raise, .. } = state.attempts[me];
        let node = &mut state.nodes[node];
        let (value, counter) = (self.value(me), node.counter);
        let answer = match command {
            ACQUIRE if node.key.is_some_and(|it| it != value) => Said::Held(counter),
            ACQUIRE => {
                if node.key.is_none()
                    && let Some(place) = node.grants.iter_mut().find(|it| it.is_none())
                {
                    *place = Some(me as u8);
                }
                node.key = Some(value);
                let proposal = self.proposals[me];
                if counter < proposal || (self.flaw == Flaw::AcceptsEqual && counter == proposal) {
                    node.counter = proposal;
                    Said::Accepted
                } else {
                    Said::Behind(counter)
                }
            }
            RAISE if node.key != Some(value) && self.flaw != Flaw::RaisesForAnyone => Said::Gone,
            RAISE if counter < raise || (self.flaw == Flaw::TakesEqual && counter == raise) => {
                node.counter = raise;
                Said::Taken
            }
            RAISE => Said::Above(counter),
            _ => {
                if node.key == Some(value) {
                    node.key = None;
                }
                return;
            }
        };
        // An answer to a round that is over would be late, and change nothing.
        if (command, phase) == (ACQUIRE, Phase::Acquiring) || (command, phase) == (RAISE, Phase::Raising) {
            node.lines[me].answer = Answer::OnItsWay(answer);
        }
    }

    /// The answer of `node` arrives, or the attempt stops waiting; the round decides.
    fn hear(&self, state: &mut State<A>, me: usize, node: Option<usize>, findings: &mut Findings) {
        let by_raise = state.attempts[me].phase == Phase::Raising;
        let counted = |said| match (said, self.flaw) {
            (Said::Behind(_), Flaw::CountsRefusers) => Said::Accepted,
            _ => said,
        };
        // The votes of an open round have no order: no part of them decided anything, which `replay` checks.
        let past: Vec<_> = (0..NODES)
            .filter_map(|it| match state.nodes[it].lines[me].answer {
                Answer::Counted(said) => Some((it, counted(said))),
                _ => None,
            })
            .collect();
        let news = node.map(|it| match state.nodes[it].lines[me].answer {
            Answer::OnItsWay(said) => {
                state.nodes[it].lines[me].answer = Answer::Counted(said);
                (it, counted(said))
            }
            other => panic!("{other:?} cannot arrive"),
        });
        let step = if by_raise {
            let round = RaiseRound::new(NODES, u64::from(state.attempts[me].raise), Some(deadline()));
            replay(round, &past, news, raise_vote)
        } else {
            let round = AcquireRound::new(NODES, u64::from(self.proposals[me]), Some(deadline()));
            replay(round, &past, news, acquire_vote)
        };
        match step {
            Step::Wait => {}
            Step::Decided(AcquireEnd::Won { token }) => {
                let token = u8::try_from(token).unwrap();
                for node in &mut state.nodes {
                    node.counted[me] = match node.lines[me].answer {
                        Answer::Counted(said) => matches!(counted(said), Said::Accepted | Said::Taken),
                        _ => false,
                    };
                }
                *(if by_raise { &mut findings.won_by_raise } else { &mut findings.won_at_once }) += 1;
                state.enter(me, Phase::Holding { token }, 0);
                findings.violations.extend(self.violation(state, me, token));
            }
            Step::Decided(AcquireEnd::Raise { token }) => {
                state.attempts[me].raise = u8::try_from(token).unwrap();
                state.enter(me, Phase::Raising, RAISE);
            }
            Step::Decided(AcquireEnd::Lost(_)) => state.enter(me, Phase::Lost, RELEASE),
            Step::Late => panic!("an open round took no vote"),
        }
    }

    /// What is wrong with the win of `me`, compared with those who have won before.
    fn violation(&self, state: &State<A>, me: usize, token: u8) -> Option<Violation> {
        (0..A).filter(|it| *it != me).find_map(|other| {
            let others = state.attempts[other].phase.token()?;
            if others == token {
                return Some(Violation::SameToken);
            }
            if state.attempts[me].after[other] && token < others {
                return Some(Violation::LaterStartSmallerToken);
            }
            for node in state.nodes.iter().filter(|it| it.counted[me] && it.counted[other]) {
                let place = |of| node.grants.iter().position(|it| *it == Some(of as u8));
                // A flawed node can be counted without a grant; that has no place in an order.
                if let (Some(mine), Some(theirs)) = (place(me), place(other))
                    && (mine < theirs) != (token < others)
                {
                    return Some(Violation::GrantsAgainstTokens);
                }
            }
            if self.keys == Keys::Last {
                if matches!(state.attempts[other].phase, Phase::Holding { .. }) {
                    return Some(Violation::TwoHold);
                }
                if token < others {
                    return Some(Violation::LaterHoldSmallerToken);
                }
            }
            None
        })
    }
}

impl Phase {
    /// The token of a winner.
    fn token(self) -> Option<u8> {
        match self {
            Phase::Holding { token } | Phase::Released { token } => Some(token),
            Phase::Idle | Phase::Acquiring | Phase::Raising | Phase::Lost => None,
        }
    }

    fn is_over(self) -> bool {
        matches!(self, Phase::Released { .. } | Phase::Lost)
    }
}

impl<const A: usize> State<A> {
    /// A copy to which an accident may be done, if there are any left.
    fn after_accident(&self) -> Option<State<A>> {
        Some(State { accidents: self.accidents.checked_sub(1)?, ..self.clone() })
    }

    /// Puts an attempt into `phase`, sends `command` to all nodes and drops answers to what went before.
    fn enter(&mut self, me: usize, phase: Phase, command: u8) {
        self.attempts[me].phase = phase;
        for node in &mut self.nodes {
            node.lines[me].sent |= command;
            node.lines[me].answer = Answer::None;
        }
    }

    fn take_command(&mut self, me: usize, node: usize) -> u8 {
        let sent = &mut self.nodes[node].lines[me].sent;
        let first = *sent & sent.wrapping_neg();
        *sent &= !first;
        first
    }

    /// Makes states equal that differ only in a number that nobody will read again.
    fn forget_raise(&mut self, me: usize) {
        let under_way = self.nodes.iter().any(|it| it.lines[me].sent & RAISE != 0);
        if self.attempts[me].phase != Phase::Raising && !under_way {
            self.attempts[me].raise = 0;
        }
    }
}

/// The standard library's hasher takes most of the time of a debug build. A poor hash costs time, never a state: the
/// set compares states as a whole.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u8(number as u8);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u8(number as u8);
    }
}

/// Feeds a shipped round with `past` votes and then with `news`, or closes it.
fn replay<R: Round>(
    mut round: R,
    past: &[(usize, Said)],
    news: Option<(usize, Said)>,
    vote: impl Fn(Said) -> R::Vote,
) -> Step<R::End> {
    for (node, said) in past {
        let step = round.on_vote(NodeId::new(*node as u8), vote(*said), in_time());
        assert!(matches!(step, Step::Wait), "decided by a part of the votes that had left it open");
    }
    match news {
        Some((node, said)) => round.on_vote(NodeId::new(node as u8), vote(said), in_time()),
        None => round.on_timeout(in_time()),
    }
}

fn acquire_vote(said: Said) -> AcquireVote {
    match said {
        Said::Accepted => AcquireVote::Accepted,
        Said::Behind(counter) => AcquireVote::Behind { counter: u64::from(counter) },
        Said::Held(counter) => AcquireVote::Held { counter: u64::from(counter), entered: false },
        other => panic!("{other:?} is no answer to an acquire"),
    }
}

fn raise_vote(said: Said) -> RaiseVote {
    match said {
        Said::Taken => RaiseVote::Taken,
        Said::Above(counter) => RaiseVote::Above { counter: u64::from(counter) },
        Said::Gone => RaiseVote::Gone,
        other => panic!("{other:?} is no answer to a raise"),
    }
}

/// Every choice of counters for three nodes, up to the order of the nodes.
fn counters(values: &[u8]) -> Vec<[u8; NODES]> {
    let mut all = vec![];
    each_list(values, NODES, &mut |it| all.extend(<[u8; NODES]>::try_from(it).ok().filter(|it| it.is_sorted())));
    all
}

const TWO_CLIENTS: [Option<usize>; 2] = [None, None];
/// The third attempt is the first client's second.
const ONE_TRIES_AGAIN: [Option<usize>; 3] = [None, None, Some(0)];

/// Searches the worlds of two clients with these parameters one after another, until one has a violation.
fn two_clients(counters: &[[u8; NODES]], keys: Keys, accidents: u8, flaw: Flaw) -> Findings {
    let mut findings = Findings::default();
    for counters in counters {
        for proposals in [[1, 1], [2, 1]] {
            if findings.violations.is_empty() {
                let counters = *counters;
                let world = World { proposals, retry_of: TWO_CLIENTS, counters, keys, accidents, flaw };
                world.search(world.start(), &mut findings);
            }
        }
    }
    findings
}

fn check_two_clients(counters: &[[u8; NODES]], keys: Keys, accidents: u8) -> Findings {
    let findings = two_clients(counters, keys, accidents, Flaw::None);
    assert_eq!(findings.violations, []);
    assert!(0 < findings.won_by_raise && 0 < findings.all_won, "nothing happened: {findings:?}");
    findings
}

#[test]
fn c6_tokens_are_ordered_like_grants_even_if_keys_vanish() {
    let findings = check_two_clients(&[[0, 0, 0]], Keys::Vanish, 1);
    assert!(0 < findings.won_at_once);
    assert_eq!(findings.states, 227_935);
}

#[test]
fn c6_tokens_are_ordered_like_holds_as_long_as_keys_last() {
    let findings = check_two_clients(&[[0, 0, 0]], Keys::Last, 1);
    assert_eq!(findings.states, 86_625);
}

#[test]
fn c6_tokens_are_ordered_like_holds_when_counters_were_ahead() {
    let findings = check_two_clients(&[[0, 0, 3]], Keys::Last, 0);
    assert_eq!(findings.states, 146_058);
}

/// All small counters while keys last, and more of them than above with an accident. Takes minutes.
#[test]
fn c6_tokens_are_ordered_from_all_small_counters() {
    if long() {
        check_two_clients(&counters(&[0, 1, 3]), Keys::Last, 0);
        check_two_clients(&[[0, 0, 1], [0, 1, 3]], Keys::Vanish, 1);
    }
}

/// Whether the checks see what `flaw` does.
fn find(flaw: Flaw, counters: &[[u8; NODES]], keys: Keys, accidents: u8) -> Violation {
    let findings = two_clients(counters, keys, accidents, flaw);
    findings.violations.first().copied().unwrap_or_else(|| panic!("{flaw:?} not found: {findings:?}"))
}

#[test]
fn a_node_that_accepts_an_equal_proposal_is_found_out() {
    assert_eq!(find(Flaw::AcceptsEqual, &[[0, 0, 0]], Keys::Vanish, 1), Violation::SameToken);
}

#[test]
fn a7_a_node_that_takes_an_equal_token_is_found_out() {
    assert_eq!(find(Flaw::TakesEqual, &[[0, 0, 0]], Keys::Vanish, 1), Violation::SameToken);
}

#[test]
fn a_node_that_raises_for_anyone_is_found_out() {
    assert_eq!(find(Flaw::RaisesForAnyone, &[[1, 1, 3]], Keys::Last, 0), Violation::LaterHoldSmallerToken);
}

#[test]
fn a_client_that_counts_refusers_is_found_out() {
    assert_eq!(find(Flaw::CountsRefusers, &[[0, 0, 0]], Keys::Vanish, 1), Violation::SameToken);
}

/// The first client has given up once, and its releases are still under way while it tries again.
#[test]
fn a5_a_late_release_does_no_harm_unless_a_value_is_used_again() {
    for (flaw, violations) in [(Flaw::None, vec![]), (Flaw::ReusesValue, vec![Violation::TwoHold])] {
        let (retry_of, keys) = (ONE_TRIES_AGAIN, Keys::Last);
        let world = World { proposals: [1, 1, 2], retry_of, counters: [0, 0, 0], keys, accidents: 0, flaw };
        let mut start = world.start();
        start.enter(0, Phase::Lost, RELEASE);

        let mut findings = Findings::default();
        world.search(start, &mut findings);

        assert_eq!(findings.violations, violations, "{findings:?}");
    }
}
