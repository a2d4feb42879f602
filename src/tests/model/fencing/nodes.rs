//! What nodes do, and the accidents that befall a node.
//!
//! On purpose: no waiting lists; the quarantine begins with the loss, and not with the first sync after it.

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
                let is_kept = matches!(answer, Said::Extended | Said::Healed);
                if is_kept && revives && self.claims(Violation::Revived) {
                    return Some(Violation::Revived);
                }
                answer
            }
        };

        let Attempt {
            phase, round: sent, ..
        } = state.attempts[me];
        let round = round_of(command);
        // What comes to a holder before its first extension is one more grant. It matters behind a raised number only.
        let is_late_grant = phase == Phase::Holding && sent == 0 && 1 < self.extensions;
        let awaited = match command {
            ACQUIRE if phase == Phase::Raising => {
                // A node has one vote.
                let line = &state.nodes[node].lines[me];
                line.answer == Answer::None && line.heard == Said::Nothing
            }
            ACQUIRE => phase == Phase::Acquiring || is_late_grant,
            RAISE => phase == Phase::Raising,
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
            Said::Healed => {
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

    fn mistake(&self) -> Mistake {
        match self.flaw {
            Flaw::Server(mistake) => mistake,
            _ => Mistake::None,
        }
    }

    fn caller(&self, me: usize) -> Caller<u8> {
        Caller {
            owner: self.value(me),
            locks: LOCK,
            rule: Rule::Exclusive,
        }
    }

    fn acquire(&self, state: &mut State<A>, me: usize, node: usize) -> Said {
        let turn = &mut Turn {
            latest: self.most_ahead().map(|it| state.clock + it),
            ..Turn::of(self.mistake())
        };
        let acquire = Acquire {
            owner: self.value(me),
            wants: Wants::Names(LOCK),
            proposal: state.attempts[me].proposal,
            until: 0,
            member: None,
            enters: false,
        };
        let node = &mut state.nodes[node];
        let was_free = node.server.is_free(0);
        let said = node.server.acquire(turn, acquire).into();
        if was_free && !node.server.is_free(0) {
            node.key_rank = A as u8 + 2;
        }
        said
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

    /// The release of a holder brings a raised token along.
    fn release(&self, state: &mut State<A>, me: usize, node: usize) {
        let Attempt { raised, token, .. } = state.attempts[me];
        let release = Release {
            raised: if raised { token } else { 0 },
            ..Release::of(self.caller(me))
        };
        let turn = &mut Turn::of(self.mistake());
        state.nodes[node].server.release(turn, release);
    }

    fn raise(&self, state: &mut State<A>, me: usize, node: usize) -> Said {
        let Attempt { token, .. } = state.attempts[me];
        let server = &mut state.nodes[node].server;
        server.raise(self.mistake(), self.caller(me), token).into()
    }

    fn extend(&self, state: &mut State<A>, me: usize, node: usize, command: u8) -> Said {
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
        let extend = Extend {
            number,
            until: round,
            sets,
        };
        let server = &mut state.nodes[node].server;
        server
            .extend(self.mistake(), self.caller(me), extend)
            .into()
    }

    /// Whether the command has left a key that nothing of the attempt will take away.
    fn is_orphan(&self, state: &State<A>, me: usize, node: usize, command: u8) -> bool {
        let node = &state.nodes[node];
        let over = state.attempts[me].phase.is_over();
        over && command & state.setting(me) != 0
            && node.server.has(0, self.value(me))
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
            state.nodes[node].server.record = state.clock + self.length();
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
            Flaw::CountsWhatWasAskedBefore | Flaw::Server(Mistake::TakesAnyCounter)
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
        let server = &mut self.nodes[node].server;
        server.locks[0].counter = 0;
        if key {
            server.vanish(0);
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
