//! What nodes do, and the accidents that befall a node.
//!
//! Stands for `acquire.lua`, `extend.lua`, `release.lua` and `record.lua`; `recorded` compares them. On purpose: no
//! waiting lists; the quarantine begins with the loss, and not with the first sync after it.

use super::*;

impl<const A: usize> World<A> {
    /// A node executes a command. `keep`: an answer that is on its way already stays the one that arrives.
    pub(super) fn execute(
        &self,
        state: &mut State<A>,
        me: usize,
        node: usize,
        command: u8,
        keep: bool,
    ) -> Option<Violation> {
        let answer = match command {
            ACQUIRE => self.acquire(state, me, node),
            RAISE => self.raise(state, me, node),
            RELEASE => {
                self.release(state, me, node);
                return None;
            }
            _ => {
                let answer = self.extend(state, me, node, command);
                let revives = state
                    .newer(me)
                    .any(|other| state.nodes[node].lines[other].counted);
                let is_kept = matches!(answer, Said::Extended | Said::Set);
                if is_kept && revives && self.claims(Violation::Revived) {
                    return Some(Violation::Revived);
                }
                answer
            }
        };

        let Attempt {
            phase,
            proposal,
            token,
            round: sent,
            ..
        } = state.attempts[me];
        let round = round_of(command);
        // What comes to a holder before its first extension is one more grant. It matters behind a raised number only.
        let is_late_grant = phase == Phase::Holding && sent == 0 && 1 < self.extensions;
        let awaited = match command {
            ACQUIRE => phase == Phase::Acquiring || is_late_grant && proposal == token,
            RAISE => phase == Phase::Raising || is_late_grant,
            _ => {
                phase == Phase::Holding
                    && answer != Said::Superseded
                    && state.nodes[node].lines[me].round <= round
            }
        };
        let quarantined = state.nodes[node].is_quarantined() && self.is_quarantined(answer);
        let Node {
            key_rank, lines, ..
        } = &mut state.nodes[node];
        let line = &mut lines[me];
        let heard =
            matches!(line.answer, Answer::Counted(_)) || keep && line.answer != Answer::None;
        if awaited && !heard {
            line.answer = Answer::OnItsWay(answer);
            line.round = round;
            line.doubtful = quarantined && line.synced;
            if matches!(answer, Said::Accepted | Said::Behind(_) | Said::Taken) {
                line.rank = *key_rank;
            }
        }
        self.is_orphan(state, me, node, command)
            .then_some(Violation::Orphan)
    }

    /// Whether the client does not count an answer that was given in quarantine.
    fn is_quarantined(&self, answer: Said) -> bool {
        match answer {
            Said::Accepted | Said::Behind(_) | Said::Taken => self.guard == Guard::Record,
            Said::Extended => {
                self.guard == Guard::Record && self.flaw != Flaw::CountsExtensionsInQuarantine
            }
            Said::Set => {
                let counts = matches!(
                    self.flaw,
                    Flaw::CountsExtensionsInQuarantine | Flaw::CountsSetKeysInQuarantine
                );
                self.guard == Guard::Record && !counts
            }
            _ => false,
        }
    }

    /// Whether a node does nothing with a command, because the client connected with another record.
    pub(super) fn refuses(&self, state: &State<A>, me: usize, node: usize, command: u8) -> bool {
        let compares = match command {
            ACQUIRE => self.flaw != Flaw::AcquiresWithoutRecord,
            RELEASE => false,
            RAISE => true,
            _ => self.flaw != Flaw::ExtendsWithoutRecord,
        };
        compares && self.guard == Guard::Record && !state.nodes[node].lines[me].synced
    }

    pub(super) fn acquire(&self, state: &mut State<A>, me: usize, node: usize) -> Said {
        let value = self.value(me);
        let proposal = state.attempts[me].proposal;
        let most = self.most_ahead().map(|it| state.clock + it);
        let node = &mut state.nodes[node];
        if most.is_some_and(|it| it < proposal) && node.counter + 1 < proposal {
            return Said::Ahead(node.counter);
        }
        let is_lost = node.counter == 0 || node.counter < node.floor;
        let keeps = self.flaw == Flaw::TakesAnyCounter;
        let counter = if is_lost && !keeps {
            node.floor
        } else {
            node.counter
        };
        match node.key {
            Some(key) if key != value => return Said::Held(node.counter),
            // The command is executed for the second time.
            Some(_) if self.flaw == Flaw::AcceptsItsOwn && counter == proposal => {
                return Said::Accepted;
            }
            Some(_) => {}
            None => {
                node.key = Some(value);
                node.key_round = 0;
                node.key_rank = A as u8 + 2;
            }
        }
        node.counter = node.counter.max(proposal);
        let accepts = counter < proposal || self.flaw == Flaw::AcceptsEqual && counter == proposal;
        if accepts {
            Said::Accepted
        } else {
            Said::Behind(counter)
        }
    }

    /// How far a proposal may be ahead of the time that a good clock shows, at a node whose own clock is ahead of that, too.
    fn most_ahead(&self) -> Option<u8> {
        match (self.clocks, self.flaw) {
            (Clocks::OfClients { .. }, Flaw::RefusesNoProposal) => None,
            (Clocks::OfClients { nodes, .. }, Flaw::RefusesAheadOfQuarantine) => {
                Some(nodes + QUARANTINE)
            }
            (Clocks::OfClients { nodes, .. }, _) => Some(nodes + AHEAD),
            _ => None,
        }
    }

    /// The release of a holder brings its token along.
    pub(super) fn release(&self, state: &mut State<A>, me: usize, node: usize) {
        let Attempt { phase, token, .. } = state.attempts[me];
        let node = &mut state.nodes[node];
        let mine = node.key == Some(self.value(me));
        let lifts = if self.flaw == Flaw::ReleaseLiftsForAnyone {
            true
        } else {
            mine && node.counter != 0
        };
        if phase.has_won() && lifts {
            node.counter = node.counter.max(token);
        }
        if mine || self.flaw == Flaw::DeletesAnyKey {
            node.key = None;
        }
    }

    pub(super) fn raise(&self, state: &mut State<A>, me: usize, node: usize) -> Said {
        let value = self.value(me);
        let token = state.attempts[me].token;
        let node = &mut state.nodes[node];
        let counter = node.counter;
        if (node.key != Some(value) || counter == 0) && self.flaw != Flaw::RaisesForAnyone {
            Said::Gone(0)
        } else if counter < token || self.flaw == Flaw::TakesEqual && counter == token {
            node.counter = token;
            Said::Taken
        } else {
            Said::Above(counter)
        }
    }

    pub(super) fn extend(&self, state: &mut State<A>, me: usize, node: usize, command: u8) -> Said {
        let value = self.value(me);
        let round = round_of(command);
        let attempt = &state.attempts[me];
        let late = Sent {
            number: attempt.token,
            sets: true,
        };
        let Sent { number, sets } = match round {
            0 => late,
            _ => attempt.sent[usize::from(round) - 1],
        };
        let node = &mut state.nodes[node];
        match node.key {
            Some(key) if key == value => {
                if number < node.counter && self.flaw != Flaw::ExtendsWithoutCounter {
                    return Said::Superseded;
                }
                node.key_round = node.key_round.max(round);
                node.counter = node.counter.max(number);
                Said::Extended
            }
            Some(_) => Said::Gone(0),
            None if sets && (node.counter <= number || self.flaw == Flaw::SetsWithoutCounter) => {
                node.key = Some(value);
                node.key_round = round;
                node.counter = node.counter.max(number);
                Said::Set
            }
            None => Said::Gone(node.counter),
        }
    }

    /// Whether the command has left a key that nothing of the attempt will take away.
    fn is_orphan(&self, state: &State<A>, me: usize, node: usize, command: u8) -> bool {
        let node = &state.nodes[node];
        let over = state.attempts[me].phase.is_over();
        over && command & state.setting(me) != 0
            && node.key == Some(self.value(me))
            && node.lines[me].sent & RELEASE == 0
    }

    /// A node goes down and comes back, with or without what it had stored. Its connections break: of each, the
    /// commands that were written are lost, and those that were not are sent on the next one. A release is never said
    /// to be lost: it is the last command, so that is the same as never executed.
    pub(super) fn restart(
        &self,
        state: &State<A>,
        node: usize,
        memory: bool,
        visit: &mut impl FnMut(State<A>),
    ) {
        let mut restarted = *state;
        if !memory {
            restarted.forget(node, true);
        }
        self.block(&mut restarted, node);
        let mut open = vec![(0, restarted)];
        while let Some((me, state)) = open.pop() {
            if me == A {
                visit(state);
                continue;
            }
            open.push((me + 1, state));
            let mut state = state;
            let lost = |line: &Line| line.sent & !RELEASE;
            while lost(&state.nodes[node].lines[me]) != 0 {
                let line = &mut state.nodes[node].lines[me];
                line.sent &= !(lost(line) & lost(line).wrapping_neg());
                open.push((me + 1, state));
            }
        }
    }

    /// What all know of a node is outdated, and it is in quarantine, if there is any.
    pub(super) fn block(&self, state: &mut State<A>, node: usize) {
        if self.guard == Guard::None {
            return;
        }
        for (attempt, line) in state.attempts.iter().zip(&mut state.nodes[node].lines) {
            line.synced = false;
            if attempt.phase.is_alive() {
                line.blocks = attempt.round + 1;
            }
        }
        if matches!(self.clocks, Clocks::Apart(_) | Clocks::OfClients { .. }) {
            state.nodes[node].quarantined = state.clock + 1;
            state.nodes[node].floor = state.clock + self.length();
        }
    }

    fn length(&self) -> u8 {
        if self.flaw == Flaw::QuarantinedForNoTime {
            0
        } else {
            QUARANTINE
        }
    }

    /// The quarantine of a node ends, if it may now. Its own clock shows when.
    pub(super) fn end_quarantine(&self, state: &State<A>, node: usize) -> Option<State<A>> {
        let mut state = *state;
        let ended = &mut state.nodes[node];
        let began = ended
            .quarantined
            .checked_sub(1)
            .filter(|_| !ended.is_blocked())?;
        state.clock = state.clock.max(began + self.length());
        ended.quarantined = 0;
        let counts = matches!(
            self.flaw,
            Flaw::CountsWhatWasAskedBefore | Flaw::TakesAnyCounter
        );
        for (attempt, line) in state.attempts.iter().zip(&mut ended.lines) {
            if attempt.phase.is_alive() && !counts {
                line.barred = attempt.round + 1;
            }
        }
        Some(state)
    }
}

/// The extension that a command is; 0 for another one.
pub(super) fn round_of(command: u8) -> u8 {
    (1..)
        .zip(EXTEND)
        .find(|it| it.1 == command)
        .map_or(0, |it| it.0)
}

impl<const A: usize> State<A> {
    /// A node loses its counter, and its key if told so.
    pub(super) fn forget(&mut self, node: usize, key: bool) {
        let node = &mut self.nodes[node];
        node.counter = 0;
        if key {
            node.key = None;
        }
    }

    /// Those who have won with a larger token than `me`.
    pub(super) fn newer(&self, me: usize) -> impl Iterator<Item = usize> {
        let token = self.attempts[me].token;
        (0..A).filter(move |it| {
            let other = &self.attempts[*it];
            *it != me && other.phase.has_won() && token < other.token
        })
    }
}
