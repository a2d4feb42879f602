//! Visits every state of a world.

use std::fmt::Write as _;

use super::walk::Visited;
use super::*;

/// No world here is meant to be larger: it would not end within minutes. Those that take minutes are.
const STATES_MAX: usize = 5_000_000;

/// A command of an attempt to a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Sending {
    attempt: usize,
    node: usize,
    command: u8,
}

/// What happens between two states. Nodes and attempts are counted from 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Move {
    Start {
        attempt: usize,
    },
    Extend {
        attempt: usize,
    },
    Release {
        attempt: usize,
    },
    DeadlinePasses {
        attempt: usize,
    },
    StopsWaiting {
        attempt: usize,
        heard: u8,
    },
    /// One bit for each node whose answer arrives.
    Hear {
        attempt: usize,
        nodes: u8,
    },
    /// The answer to the acquire arrives during the raise.
    HearLate {
        attempt: usize,
        node: usize,
    },
    Execute(Sending),
    ExecuteAndKeep(Sending),
    Lose(Sending),
    KeyExpires {
        node: usize,
    },
    KeyVanishes {
        node: usize,
    },
    Restart {
        node: usize,
        memory: bool,
    },
    Flush {
        node: usize,
    },
    ForgetCounter {
        node: usize,
    },
    Restore {
        node: usize,
        counter: u8,
    },
    /// The client is told that the record is another one, and sends the command no more.
    Drop(Sending),
    QuarantineEnds {
        node: usize,
    },
}

/// What was seen on a search.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) states: usize,
    pub(super) won_at_once: u64,
    pub(super) won_by_raise: u64,
    pub(super) confirmed: u64,
    /// Keys set by extensions, and extensions confirmed with the help of one.
    pub(super) sets: u64,
    pub(super) confirmed_by_set: u64,
    /// Acquires or raises that did not count because of a quarantine.
    pub(super) quarantined: u64,
    /// Moves after which every attempt has won.
    pub(super) all_won: u64,
    pub(super) violation: Option<Violation>,
    /// How it came to that.
    pub(super) course: String,
}

/// Searches what can come after a hold with a token far ahead of all clocks, which `knows` nodes have for a counter, of whom
/// the first two are its majority; `crashes` nodes restart with nothing.
pub(super) fn after_a_hold(knows: usize, crashes: u8) -> Findings {
    let claims = [FENCED, EXCLUSIVE, &[][..]];
    let left = Accidents {
        crashes,
        ..NO_ACCIDENTS
    };
    let world = World {
        guard: Guard::Record,
        left,
        claims,
        clocks: Clocks::Apart(1),
        ..World::new([1, 1], Keys::Last)
    };
    let mut start = world.start();
    start.attempts[0] = Attempt {
        phase: Phase::Holding,
        token: 12,
        ..start.attempts[0]
    };
    for (number, node) in start.nodes.iter_mut().enumerate().take(knows) {
        node.server = Server::new([12], (), 0);
        node.server.keep(0, 0, 0);
        node.lines[0].counted = number < 2;
    }
    let mut findings = Findings::default();
    world.search_from(start, &mut findings);
    findings
}

impl<const A: usize> World<A> {
    /// Visits every state that can be reached from `start`, the nearest ones first, or stops at the first violation.
    pub(super) fn search_from(&self, start: State<A>, findings: &mut Findings) {
        let mut visited = Visited::new(start.sorted());
        let mut at = 0;
        while findings.violation.is_none()
            && let Some(state) = visited.get(at)
        {
            self.each_move(&state, &mut |step, mut next, violation| {
                if let Some(violation) = violation.filter(|it| self.claims(*it)) {
                    if findings.violation.is_none() {
                        findings.violation = Some(violation);
                        findings.course = self.course(start, &visited, at, step);
                    }
                    return;
                }
                next.tidy(self);
                findings.note(&state, &next, step);
                if !next.is_settled(self) {
                    visited.insert(next.sorted(), at);
                }
            });
            at += 1;
            assert!(
                longest() || visited.len() < STATES_MAX,
                "does not end: {findings:?}"
            );
        }
        findings.states += visited.len();
    }

    /// Calls `visit` with everything that can happen next.
    fn each_move(
        &self,
        state: &State<A>,
        visit: &mut impl FnMut(Move, State<A>, Option<Violation>),
    ) {
        for me in 0..A {
            self.each_move_of_client(state, me, visit);
            for node in 0..NODES {
                self.each_move_on_line(state, me, node, visit);
            }
        }
        for node in 0..NODES {
            self.each_move_of_node(state, node, visit);
        }
    }

    fn each_move_of_client(
        &self,
        state: &State<A>,
        me: usize,
        visit: &mut impl FnMut(Move, State<A>, Option<Violation>),
    ) {
        let attempt = state.attempts[me];
        if self.may_start(state, me) {
            for wall in self.walls(state, me) {
                let mut next = *state;
                self.start_attempt(&mut next, me, wall);
                visit(Move::Start { attempt: me }, next, None);
            }
        }
        if !attempt.phase.is_alive() {
            return;
        }
        let gives_up = attempt.phase != Phase::Holding && (self.slow || self.is_retried(me));
        if !attempt.late {
            let mut next = *state;
            self.pass_deadline(&mut next, me);
            visit(Move::DeadlinePasses { attempt: me }, next, None);
        }
        if gives_up {
            self.stop_waiting(state, me, visit);
        }
        self.each_decision(state, me, &mut |nodes, next, violation| {
            visit(Move::Hear { attempt: me, nodes }, next, violation);
        });
        if attempt.phase == Phase::Holding && self.slow {
            let mut next = *state;
            self.end_hold(&mut next, me);
            visit(Move::Release { attempt: me }, next, None);
        }
        if self.may_extend(state, me) {
            let mut next = *state;
            if self.send_extension(&mut next, me) {
                visit(Move::Extend { attempt: me }, next, None);
            }
        }
    }

    /// An attempt stops waiting. What it has heard until then matters only to one that will try again.
    fn stop_waiting(
        &self,
        state: &State<A>,
        me: usize,
        visit: &mut impl FnMut(Move, State<A>, Option<Violation>),
    ) {
        for heard in 0..1 << NODES {
            let arrived = |node: usize| state.nodes[node].lines[me].answer != Answer::None;
            if heard == 0
                || self.is_retried(me) && (0..NODES).all(|it| heard & 1 << it == 0 || arrived(it))
            {
                let mut next = *state;
                if let Some(violation) = self.hear(&mut next, me, heard, None, false) {
                    visit(Move::StopsWaiting { attempt: me, heard }, next, violation);
                }
            }
        }
    }

    fn each_move_on_line(
        &self,
        state: &State<A>,
        me: usize,
        node: usize,
        visit: &mut impl FnMut(Move, State<A>, Option<Violation>),
    ) {
        if let Some(next) = self.hear_late(state, me, node) {
            visit(Move::HearLate { attempt: me, node }, next, None);
        }
        let line = &state.nodes[node].lines[me];
        let mut waiting = line.sent;
        while waiting != 0 {
            let command = waiting & waiting.wrapping_neg();
            waiting &= !command;
            if self.lines == Lines::InOrder && command != line.sent & line.sent.wrapping_neg() {
                break;
            }
            let sending = Sending {
                attempt: me,
                node,
                command,
            };
            let taken = |mut state: State<A>| {
                state.nodes[node].lines[me].sent &= !command;
                state
            };
            let mut state = *state;
            let line = *line;
            if self.refuses(&state, me, node, command) {
                visit(Move::Drop(sending), taken(state), None);
                // Or it syncs the node, and sends the command again. What it learns by that matters with an answer only.
                state.nodes[node].lines[me].synced = true;
            }
            let state = &state;
            for before in [Some(*state), self.hear_in_passing(state, me, node, command)] {
                let Some(before) = before else { continue };
                let mut next = taken(before);
                let violation = self.execute(&mut next, me, node, command, false);
                visit(Move::Execute(sending), next, violation);
            }
            if command == RELEASE {
                // Lost or executed again: the same as late, or as nothing.
                continue;
            }
            if let Some(next) = state.after(|it| &mut it.lost) {
                visit(Move::Lose(sending), taken(next), None);
            }
            if let Some(after) = state.after(|it| &mut it.twice) {
                let mut next = after;
                let violation = self.execute(&mut next, me, node, command, false);
                visit(Move::ExecuteAndKeep(sending), next, violation);
            }
            if self.left.twice != 0 && line.answer != Answer::None {
                // Executed again, and the first answer is the one that arrives.
                let mut next = taken(*state);
                let violation = self.execute(&mut next, me, node, command, true);
                visit(Move::Execute(sending), next, violation);
            }
        }
    }

    fn each_move_of_node(
        &self,
        state: &State<A>,
        node: usize,
        visit: &mut impl FnMut(Move, State<A>, Option<Violation>),
    ) {
        let Lock { key, counter, .. } = state.nodes[node].server.locks[0];
        if let Key::Owned { owner, until } = key {
            // Every command that gave the key its life was sent before this attempt's last confirmed one, or the
            // attempt no longer acts on it.
            let expires = (0..A).filter(|it| self.value(*it) == owner).all(|it| {
                let attempt = &state.attempts[it];
                !attempt.phase.is_alive()
                    || attempt.late
                    || self.keys == Keys::Last && until < attempt.confirmed
            });
            let without_key = |mut state: State<A>| {
                state.nodes[node].server.vanish(0);
                state
            };
            if expires {
                visit(Move::KeyExpires { node }, without_key(*state), None);
            } else if let Some(next) = state.after(|it| &mut it.vanished) {
                visit(Move::KeyVanishes { node }, without_key(next), None);
            }
        }
        if let Some(next) = self.end_quarantine(state, node) {
            visit(Move::QuarantineEnds { node }, next, None);
        }
        if let Some(next) = state.after(|it| &mut it.crashes) {
            self.restart(&next, node, false, &mut |it| {
                visit(
                    Move::Restart {
                        node,
                        memory: false,
                    },
                    it,
                    None,
                )
            });
        }
        if let Some(next) = state.after(|it| &mut it.restarts) {
            self.restart(&next, node, true, &mut |it| {
                visit(Move::Restart { node, memory: true }, it, None)
            });
        }
        if (key, counter) != (Key::Free, 0)
            && let Some(mut next) = state.after(|it| &mut it.flushes)
        {
            next.forget(node, true);
            self.block(&mut next, node);
            visit(Move::Flush { node }, next, None);
        }
        for older in 0..counter {
            if let Some(mut next) = state.after(|it| &mut it.restores) {
                // With a key that it had not then it would have lost less.
                next.forget(node, true);
                next.nodes[node].server.locks[0].counter = older;
                self.block(&mut next, node);
                visit(
                    Move::Restore {
                        node,
                        counter: older,
                    },
                    next,
                    None,
                );
            }
        }
        if counter != 0
            && let Some(mut next) = state.after(|it| &mut it.forgets)
        {
            next.forget(node, false);
            visit(Move::ForgetCounter { node }, next, None);
        }
    }

    /// How a search got from `start` to what it was visiting, and `last`: one line for each move. Nodes keep their
    /// numbers on the way.
    fn course(
        &self,
        start: State<A>,
        visited: &Visited<State<A>>,
        at: usize,
        last: Move,
    ) -> String {
        let mut course = String::new();
        let mut state = start;
        for next in visited.way(at).into_iter().skip(1) {
            let mut found = None;
            self.each_move(&state, &mut |step, mut it, _| {
                it.tidy(self);
                if found.is_none() && Some(it.sorted()) == visited.get(next) {
                    found = Some((step, it));
                }
            });
            let Some((step, it)) = found else {
                panic!("no way from {state:?}")
            };
            let _ = writeln!(course, "  {step:?}");
            state = it;
        }
        let _ = writeln!(
            course,
            "  {last:?} (or the same on another node), from {state:#?}"
        );
        course
    }
}

impl<const A: usize> State<A> {
    /// A copy to which an accident may be done, if there are any of the kind left.
    fn after(&self, kind: impl Fn(&mut Accidents) -> &mut u8) -> Option<State<A>> {
        let mut state = *self;
        let left = kind(&mut state.left);
        if *left != ANY {
            *left = left.checked_sub(1)?;
        }
        Some(state)
    }
}

impl Findings {
    fn note<const A: usize>(&mut self, before: &State<A>, after: &State<A>, step: Move) {
        if let Move::Execute(Sending { attempt, node, .. }) = step {
            let line = &after.nodes[node].lines[attempt];
            let is_on_its_way = |said| line.answer == Answer::OnItsWay(said);
            self.quarantined += u64::from(line.doubtful || is_on_its_way(Said::Silent));
            self.sets += u64::from(is_on_its_way(Said::Healed));
        }
        let Move::Hear { attempt: me, nodes } = step else {
            return;
        };
        let old = &before.attempts[me];
        let new = &after.attempts[me];
        if !old.phase.has_won() && new.phase.has_won() {
            *(if old.phase == Phase::Raising {
                &mut self.won_by_raise
            } else {
                &mut self.won_at_once
            }) += 1;
            self.all_won += u64::from(after.attempts.iter().all(|it| it.phase.has_won()));
        }
        if old.confirmed < new.confirmed {
            let is_set = |node: usize| {
                nodes & 1 << node != 0
                    && before.nodes[node].lines[me].answer == Answer::OnItsWay(Said::Healed)
            };
            self.confirmed += 1;
            self.confirmed_by_set += u64::from((0..NODES).any(is_set));
        }
    }
}
