//! What clients do: the shipped call and the shipped hold, and around them what `engine` does with
//! their decisions.

use super::calls::Decision;
use super::nodes::round_of;
use super::*;
use crate::tests::model::ledgers::{before, sent_at, until};

impl<const A: usize> World<A> {
    pub(super) fn may_start(&self, state: &State<A>, me: usize) -> bool {
        let earlier_is_over = self.retry_of[me].is_none_or(|it| state.attempts[it].phase.is_over());
        // Attempts that differ in nothing start in their order: the other orders are the same with other names.
        let in_order = (0..me).all(|it| {
            let alike = self.clocks != Clocks::Any || self.proposals[it] == self.proposals[me];
            let first =
                self.retry_of[it].is_none() && self.retry_of[me].is_none() && !self.is_retried(it);
            !(alike && first) || state.attempts[it].phase != Phase::Idle
        });
        state.attempts[me].phase == Phase::Idle && earlier_is_over && in_order
    }

    /// What an attempt's clock may show.
    pub(super) fn walls(&self, state: &State<A>, me: usize) -> Vec<u8> {
        let time = state.clock;
        match self.clocks {
            Clocks::Any => vec![self.proposals[me]],
            Clocks::Good => vec![time],
            Clocks::Apart(by) => (time..=time + by).collect(),
            Clocks::OfClients { by, .. } => vec![time.saturating_sub(by).max(1), time, time + by],
        }
    }

    pub(super) fn start_attempt(&self, state: &mut State<A>, me: usize, wall: u8) {
        state.attempts[me].proposal = self.proposal(state, me, wall);
        state.attempts[me].after = (0..A)
            .filter(|it| state.attempts[*it].phase.has_won())
            .fold(0, |after, it| after | 1 << it);
        self.use_number(state, state.attempts[me].proposal);
        state.enter(me, Phase::Acquiring, ACQUIRE, all());
    }

    /// A good clock shows more than this from now on.
    fn use_number(&self, state: &mut State<A>, number: u8) {
        if self.clocks == Clocks::Good {
            state.clock = state.clock.max(number + 1);
        }
    }

    /// Calls `visit` with every way in which the open round of `me` can be decided by answers that are on their way.
    ///
    /// Which answers came before the one that decides, and when, makes no difference to anybody. So they come all at
    /// once: those in a set, and one of them is the last.
    pub(super) fn each_decision(
        &self,
        state: &State<A>,
        me: usize,
        visit: &mut impl FnMut(u8, State<A>, Option<Violation>),
    ) {
        let mut arrived = 0;
        let raises = state.attempts[me].phase == Phase::Raising;
        for (node, Node { lines, .. }) in state.nodes.iter().enumerate() {
            let line = &lines[me];
            let is_open = line.answer != Answer::None && !(raises && line.has_acquired());
            arrived |= u8::from(is_open) << node;
        }
        for heard in 1..=arrived {
            for last in 0..NODES {
                if heard & !arrived == 0 && heard & 1 << last != 0 {
                    let is_set = |node: usize| {
                        heard & 1 << node != 0
                            && state.nodes[node].lines[me].answer == Answer::OnItsWay(Said::Healed)
                    };
                    // Whether a promise of that node is over makes a difference there.
                    let times: &[bool] = if (0..NODES).any(is_set) {
                        &[false, true]
                    } else {
                        &[false]
                    };
                    for at_end in times {
                        let mut next = *state;
                        if let Some(violation) =
                            self.hear(&mut next, me, heard, Some(last), *at_end)
                        {
                            visit(heard, next, violation);
                        }
                    }
                }
            }
        }
    }

    /// An answer that is on its way arrives.
    fn arrive(&self, state: &mut State<A>, me: usize, node: usize) {
        let quarantined = state.nodes[node].is_quarantined();
        let line = &mut state.nodes[node].lines[me];
        let Answer::OnItsWay(said) = line.answer else {
            return;
        };
        line.answer = Answer::Counted(match said {
            _ if line.doubtful && quarantined => Said::Silent,
            Said::Accepted | Said::Behind(_) | Said::Taken if line.barred != 0 && line.synced => {
                Said::Silent
            }
            Said::Healed if line.round < line.barred && line.synced => Said::Silent,
            Said::Behind(_) if self.flaw == Flaw::CountsRefusers => Said::Accepted,
            Said::Ahead(_) if self.flaw == Flaw::CountsAhead => Said::Accepted,
            _ => said,
        });
    }

    /// An answer to the acquire arrives during the raise.
    pub(super) fn hear_late(&self, state: &State<A>, me: usize, node: usize) -> Option<State<A>> {
        let mut state = *state;
        let is_raising = state.attempts[me].phase == Phase::Raising;
        if !is_raising || !state.nodes[node].lines[me].has_acquired() {
            return None;
        }
        self.arrive(&mut state, me, node);
        state.nodes[node].lines[me].note_acquired();
        Some(state)
    }

    /// The answers of the nodes in `heard` arrive, that of `last` after the others; or, without it, the attempt stops
    /// waiting after them. To a holder they come early in its lease, or `at_end`. `None` if that does not decide anything,
    /// or some of them would have done so before.
    pub(super) fn hear(
        &self,
        state: &mut State<A>,
        me: usize,
        heard: u8,
        last: Option<usize>,
        at_end: bool,
    ) -> Option<Option<Violation>> {
        for node in (0..NODES).filter(|it| heard & 1 << it != 0) {
            self.arrive(state, me, node);
        }
        let attempt = state.attempts[me];
        match attempt.phase {
            Phase::Acquiring | Phase::Raising => {
                let is_late = attempt.late && self.flaw != Flaw::IgnoresDeadline;
                let decision = self.decide(state, me, last, is_late)?;
                Some(self.on_decision(state, me, decision))
            }
            Phase::Holding => self.hear_as_holder(state, me, last, at_end),
            Phase::Idle | Phase::Over | Phase::Lost => panic!("nobody waits for this"),
        }
    }

    fn on_decision(
        &self,
        state: &mut State<A>,
        me: usize,
        decision: Decision,
    ) -> Option<Violation> {
        match decision {
            Decision::Win {
                token,
                raised,
                granted,
            } => {
                for (node, is_granted) in state.nodes.iter_mut().zip(granted) {
                    let line = &mut node.lines[me];
                    let is_vote =
                        matches!(line.answer, Answer::Counted(Said::Accepted | Said::Taken));
                    line.counted = is_vote && is_granted;
                }
                let attempt = &mut state.attempts[me];
                (attempt.token, attempt.raised) = (token, raised);
                state.enter(me, Phase::Holding, 0, all());
                state.set_ledger(me, &Ledger::new(token, granted));
                self.violation_of_win(state, me)
            }
            Decision::Raise(token) => {
                state.attempts[me].token = token;
                self.use_number(state, token);
                state.raise(me);
                None
            }
            Decision::Loss { to, seen } => {
                state.attempts[me].seen = seen;
                state.enter(me, Phase::Lost, RELEASE, to);
                None
            }
        }
    }

    pub(super) fn may_extend(&self, state: &State<A>, me: usize) -> bool {
        let attempt = &state.attempts[me];
        attempt.phase == Phase::Holding && attempt.round < self.extensions
    }

    /// False if that is too late.
    pub(super) fn send_extension(&self, state: &mut State<A>, me: usize) -> bool {
        let mut ledger = state.ledger(me);
        let servers = Calm {
            settable: self.sets,
        };
        let attempt = &state.attempts[me];
        let is_late = attempt.late && self.flaw != Flaw::LateExtensionRevives;
        if !ledger.extend(is_late, &servers) {
            return false;
        }
        let round = ledger.round;
        let sent = &mut ledger.sent[usize::from(round) - 1];
        sent.sets |= self.flaw == Flaw::SetsUnconfirmed;
        state.set_ledger(me, &ledger);
        let is_outdated = state.newer(me).next().is_some();
        state.attempts[me].outdated |= u8::from(is_outdated) << (round - 1);
        for node in &mut state.nodes {
            let line = &mut node.lines[me];
            line.sent |= EXTEND[usize::from(round) - 1];
            if line.round == 0 {
                line.answer = Answer::None;
            }
        }
        true
    }

    /// The answers that are counted now come to a holder, that of `last` after the others.
    fn hear_as_holder(
        &self,
        state: &mut State<A>,
        me: usize,
        last: Option<usize>,
        at_end: bool,
    ) -> Option<Option<Violation>> {
        let attempt = state.attempts[me];
        let old = state.ledger(me);
        let mut heard: Vec<_> = (0..NODES).filter(|it| Some(*it) != last).collect();
        heard.extend(last);
        let mut replies = Vec::new();
        for node in heard {
            let line = &mut state.nodes[node].lines[me];
            let Answer::Counted(said) = line.answer else {
                continue;
            };
            line.answer = Answer::None;
            if line.round == 0 {
                // One by one.
                let is_alone = Some(node) == last && replies.is_empty();
                return is_alone
                    .then(|| self.hear_late_grant(state, me, node, said))
                    .flatten();
            }
            let Some(answer) = said.to_extension() else {
                // The ledger takes it for none.
                return None;
            };
            let round = line.round;
            let reply = |node| Reply {
                round,
                node,
                answer: answer.clone(),
            };
            replies.push(reply(node));
            // Enough for a majority.
            if self.flaw == Flaw::MinorityExtends && matches!(said, Said::Extended | Said::Healed) {
                replies.extend((0..NODES).filter(|it| *it != node).take(1).map(reply));
            }
        }
        let is_late = attempt.late && self.flaw != Flaw::LateExtensionRevives;
        let now = if is_late {
            until(old.confirmed)
        } else if at_end {
            before(old.confirmed)
        } else {
            sent_at(old.round)
        };
        let mut ledger = old;
        if !ledger.hear(replies.into_iter(), now)? {
            self.end_hold(state, me);
            return Some(None);
        }
        if !ledger.differs(&old) {
            return None;
        }
        state.set_ledger(me, &ledger);
        if ledger.confirmed == old.confirmed {
            return Some(None);
        }
        state.attempts[me].late = false;
        let is_outdated = attempt.outdated >> (ledger.confirmed - 1) & 1 != 0;
        if is_outdated && self.claims(Violation::Resurrected) {
            return Some(Some(Violation::Resurrected));
        }
        let others = (0..A).any(|it| it != me && state.is_holding(it));
        Some((others && self.claims(Violation::TwoHold)).then_some(Violation::TwoHold))
    }

    /// One more grant comes before the first extension.
    fn hear_late_grant(
        &self,
        state: &mut State<A>,
        me: usize,
        node: usize,
        said: Said,
    ) -> Option<Option<Violation>> {
        if !said.vote().is_granted() || state.attempts[me].late {
            return None;
        }
        let mut ledger = state.ledger(me);
        ledger.grant(node, &said.vote());
        state.set_ledger(me, &ledger);
        Some(None)
    }

    /// An answer to an earlier extension comes just now and decides nothing. A later answer takes its place. `None` if it does
    /// decide something, or does not matter.
    pub(super) fn hear_in_passing(
        &self,
        state: &State<A>,
        me: usize,
        node: usize,
        command: u8,
    ) -> Option<State<A>> {
        let Attempt { phase, late, .. } = state.attempts[me];
        let line = &state.nodes[node].lines[me];
        let is_replaced = 0 < line.round && line.round < round_of(command);
        let is_promise = matches!(line.answer, Answer::OnItsWay(Said::Extended | Said::Healed));
        if phase != Phase::Holding || late || !is_replaced || !is_promise {
            return None;
        }
        let mut state = *state;
        self.arrive(&mut state, me, node);
        let line = &mut state.nodes[node].lines[me];
        let Answer::Counted(said) = line.answer else {
            return None;
        };
        line.answer = Answer::None;
        let reply = Reply {
            round: line.round,
            node,
            answer: said.to_extension()?,
        };
        let old = state.ledger(me);
        let mut ledger = old;
        let now = before(old.confirmed);
        let is_held = ledger.hear([reply].into_iter(), now)?;
        if !is_held || ledger.differs(&old) {
            return None;
        }
        state.set_ledger(me, &ledger);
        Some(state)
    }

    /// The holder gives the lock back, or notices that its time is over.
    pub(super) fn end_hold(&self, state: &mut State<A>, me: usize) {
        let late = if self.flaw == Flaw::ExtendsBehindRelease {
            LATE_EXTEND
        } else {
            0
        };
        state.enter(me, Phase::Over, RELEASE | late, all());
    }

    /// The deadline of an attempt passes. Clients that are not slow notice at once.
    pub(super) fn pass_deadline(&self, state: &mut State<A>, me: usize) {
        let attempt = &mut state.attempts[me];
        attempt.late = true;
        if self.slow {
            return;
        }
        if attempt.phase == Phase::Holding {
            self.end_hold(state, me);
        } else {
            let decided = self.hear(state, me, 0, None, false);
            assert_eq!(
                (decided, state.attempts[me].phase),
                (Some(None), Phase::Lost),
                "decided by waiting"
            );
        }
    }

    /// What is wrong with the win of `me`, compared with those who have won before.
    fn violation_of_win(&self, state: &State<A>, me: usize) -> Option<Violation> {
        let Attempt { token, after, .. } = state.attempts[me];
        let mut all = vec![];
        for (other, attempt) in state.attempts.iter().enumerate() {
            if other == me || !attempt.phase.has_won() {
                continue;
            }
            if attempt.token == token {
                all.push(Violation::SameToken);
            }
            if after & 1 << other != 0 && token < attempt.token {
                all.push(Violation::LaterStartSmallerToken);
            }
            for node in &state.nodes {
                let mine = &node.lines[me];
                let theirs = &node.lines[other];
                // A flawed node can be counted without a grant; that has no place in an order.
                let known = mine.rank != 0 && theirs.rank != 0;
                if mine.counted
                    && theirs.counted
                    && known
                    && (mine.rank < theirs.rank) != (token < attempt.token)
                {
                    all.push(Violation::GrantsAgainstTokens);
                }
            }
            if state.is_holding(other) {
                all.push(Violation::TwoHold);
            }
            if token < attempt.token {
                all.push(Violation::LaterHoldSmallerToken);
            }
        }
        all.into_iter().find(|it| self.claims(*it))
    }
}

impl<const A: usize> State<A> {
    /// Whether it has won, and its time is not over.
    fn is_holding(&self, attempt: usize) -> bool {
        let attempt = &self.attempts[attempt];
        attempt.phase == Phase::Holding && !attempt.late
    }
}
