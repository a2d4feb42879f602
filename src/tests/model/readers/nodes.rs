//! What nodes do, and the accidents that befall a node.
//!
//! Stands for `acquire.lua`, `extend.lua`, `release.lua`, `acquire_shared.lua`,
//! `extend_shared.lua`, `release_shared.lua` and `record.lua`; `recorded` compares them. On purpose: no waiting lists, and an order
//! of ends in place of times.

use super::*;

impl<const A: usize> Node<A> {
    /// Whether it has the key or the entry of this attempt.
    pub(super) fn has(&self, me: usize) -> bool {
        match self.lock {
            Lock::Absent => false,
            Lock::Writer(it) => usize::from(it) == me,
            Lock::Shared => self.entries[me] != 0,
        }
    }

    fn is_silent(&self, attempts: &[Attempt; A]) -> bool {
        (0..A).any(|it| blocks(&attempts[it], self.forgot[it]))
    }

    /// Sets the lock key.
    fn lock(&mut self, lock: Lock, me: usize, end: u8) {
        (self.lock, self.lasts) = (lock, [0; A]);
        self.lasts[me] = end;
    }

    fn unlock(&mut self) {
        (self.lock, self.lasts) = (Lock::Absent, [0; A]);
    }

    /// The key or entry of this attempt is set here, after all others that are. Where it has been counted its first place says
    /// more: it still has that number.
    fn note(&mut self, me: usize) {
        if !self.counted[me] {
            self.order[me] = 1 + self.order.iter().max().unwrap();
        }
    }

    /// The same with two attempts in each other's place.
    pub(super) fn swap(&mut self, a: usize, b: usize) {
        self.lock = match self.lock {
            Lock::Writer(it) if usize::from(it) == a => Lock::Writer(b as u8),
            Lock::Writer(it) if usize::from(it) == b => Lock::Writer(a as u8),
            it => it,
        };
        for it in [
            &mut self.lasts,
            &mut self.entries,
            &mut self.forgot,
            &mut self.sent,
            &mut self.order,
        ] {
            it.swap(a, b);
        }
        self.promised.swap(a, b);
        self.said.swap(a, b);
        self.counted.swap(a, b);
    }

    /// Forgets what nobody looks at any more.
    pub(super) fn settle(&mut self, attempts: &[Attempt; A], flaw: Flaw) {
        for (me, attempt) in attempts.iter().enumerate() {
            if !blocks(attempt, self.forgot[me]) {
                self.forgot[me] = 0;
            }
            if attempt.phase == Phase::Over {
                // Of its ends none is later than another.
                self.lasts[me] = self.lasts[me].min(1);
                self.entries[me] = self.entries[me].min(1);
                self.promised[me] = 0;
            }
        }
        if self.lock != Lock::Shared && flaw != Flaw::KeepsOldEntries {
            // Deleted by who makes the lock a shared one.
            self.entries = [0; A];
        }
        let order = self.order;
        for place in &mut self.order {
            *place = (1..=*place).filter(|it| order.contains(it)).count() as u8;
        }
    }
}

/// Whether a node that forgot everything while this attempt was under way has to be silent for it.
fn blocks(attempt: &Attempt, forgot: u8) -> bool {
    attempt.phase.is_alive() && attempt.confirmed < forgot
}

impl<const A: usize> World<A> {
    /// What a node does with a command, and what the client makes of the answer.
    pub(super) fn run(&self, state: &mut State<A>, me: usize, node: usize, command: u8) -> Said {
        let is_silent =
            self.flaw != Flaw::NoSilence && state.nodes[node].is_silent(&state.attempts);
        match self.execute(state, me, node, command) {
            Said::Accepted | Said::Behind(_) | Said::Shared(_) if is_silent => Said::Silent,
            Said::Healed if is_silent && self.flaw == Flaw::CountsSetAsKept => Said::Healed,
            Said::Healed if is_silent => Said::Silent,
            Said::Taken | Said::Above(_) | Said::Extended | Said::Lifted(_) if is_silent => {
                Said::Silent
            }
            said => said,
        }
    }

    /// What a node does with a command.
    pub(super) fn execute(
        &self,
        state: &mut State<A>,
        me: usize,
        node: usize,
        command: u8,
    ) -> Said {
        let attempt = state.attempts[me];
        let proposal = self.proposal(state, me);
        let node = &mut state.nodes[node];
        match (command, self.rules[me] == Rule::Shared) {
            (ACQUIRE, true) => self.acquire_shared(node, me, proposal),
            (ACQUIRE, false) => self.acquire(node, me, proposal),
            (RAISE, true) => self.raise_shared(node, me, attempt.token),
            (RAISE, false) => Self::raise(node, me, attempt.token),
            (EXTEND | AGAIN, true) => self.extend_shared(node, me, attempt),
            (EXTEND | AGAIN, false) => self.extend(node, me, attempt),
            (_, true) => self.release_shared(node, me),
            (_, false) => Self::release(node, me, attempt),
        }
    }

    /// Whether a node counts from the end of its quarantine instead of its counter.
    fn is_lost(&self, node: &Node<A>) -> bool {
        let from = match self.flaw {
            Flaw::TakesOldCounter => 0,
            Flaw::TakesCounterOfQuarantine => SINCE,
            _ => FLOOR,
        };
        node.counter == 0 || node.floor != 0 && node.counter < from
    }

    fn acquire(&self, node: &mut Node<A>, me: usize, proposal: u8) -> Said {
        if node.lock != Lock::Absent {
            return Said::Held(node.counter);
        }
        node.lock(Lock::Writer(me as u8), me, 1);
        node.note(me);
        let counter = if self.is_lost(node) {
            node.floor
        } else {
            node.counter
        };
        node.counter = proposal.max(node.counter);
        if proposal <= counter {
            Said::Behind(counter)
        } else {
            Said::Accepted
        }
    }

    fn acquire_shared(&self, node: &mut Node<A>, me: usize, proposal: u8) -> Said {
        match node.lock {
            Lock::Writer(_) => return Said::Held(node.counter),
            Lock::Absent => self.share(node, me, 1),
            Lock::Shared if self.flaw == Flaw::LastsForTheFirst => {}
            Lock::Shared => node.lasts[me] = 1,
        }
        node.entries[me] = 1;
        node.note(me);
        if self.is_lost(node) {
            node.counter = proposal.max(node.floor);
        }
        Said::Shared(node.counter)
    }

    /// Makes the lock a shared one.
    fn share(&self, node: &mut Node<A>, me: usize, end: u8) {
        node.lock(Lock::Shared, me, end);
        if self.flaw != Flaw::KeepsOldEntries {
            node.entries = [0; A];
        }
    }

    fn raise(node: &mut Node<A>, me: usize, token: u8) -> Said {
        if !node.has(me) || node.counter == 0 {
            Said::Gone(0)
        } else if token <= node.counter {
            Said::Above(node.counter)
        } else {
            node.counter = token;
            Said::Taken
        }
    }

    fn raise_shared(&self, node: &mut Node<A>, me: usize, number: u8) -> Said {
        let is_missing = node.counter == 0 && self.flaw != Flaw::RaisesWithoutCounter;
        if !node.has(me) && self.flaw != Flaw::RaisesWithoutEntry || is_missing {
            Said::Gone(0)
        } else if number < node.counter {
            Said::Above(node.counter)
        } else {
            node.counter = number;
            Said::Taken
        }
    }

    /// The end that an extension gives.
    fn end_of(&self, attempt: Attempt) -> u8 {
        attempt.extensions + u8::from(self.flaw != Flaw::OutlastsKey)
    }

    fn extend(&self, node: &mut Node<A>, me: usize, attempt: Attempt) -> Said {
        let end = self.end_of(attempt);
        let token = attempt.number;
        let is_set = self.flaw == Flaw::SetsWithoutCounter || node.counter <= token;
        match node.lock {
            _ if node.has(me) && token < node.counter => Said::Superseded,
            _ if node.has(me) => {
                node.lasts[me] = end;
                node.lift(token)
            }
            Lock::Absent if attempt.sets && is_set => {
                node.lock(Lock::Writer(me as u8), me, end);
                node.note(me);
                node.lift(token);
                Said::Healed
            }
            Lock::Absent => Said::Gone(node.counter),
            Lock::Shared if self.flaw == Flaw::ReadersPromiseForWriters => Said::Extended,
            _ => Said::Gone(0),
        }
    }

    fn extend_shared(&self, node: &mut Node<A>, me: usize, attempt: Attempt) -> Said {
        let end = self.end_of(attempt);
        let number = attempt.number;
        let stands = node.has(me);
        let is_ahead = number < node.counter;
        let is_not_set = !attempt.sets || is_ahead && self.flaw != Flaw::SetsWithoutCounter;
        let is_taken = matches!(node.lock, Lock::Writer(_));
        if !stands && (is_taken || is_not_set) {
            return Said::Gone(if is_taken { 0 } else { node.counter });
        }
        if is_ahead && stands && self.flaw == Flaw::ExtendsOnlyBelow {
            return Said::Superseded;
        }
        if node.lock == Lock::Shared {
            if self.flaw != Flaw::LastsForTheFirst {
                node.lasts[me] = end;
            }
        } else {
            self.share(node, me, end);
        }
        node.entries[me] = end;
        if !stands {
            node.note(me);
        }
        match (stands, is_ahead) {
            (false, _) => {
                node.lift(number);
                Said::Healed
            }
            (true, true) => Said::Lifted(node.counter),
            (true, false) => node.lift(number),
        }
    }

    fn release(node: &mut Node<A>, me: usize, Attempt { won, token, .. }: Attempt) -> Said {
        if node.has(me) {
            // The raise may not have come here; without one, the acquire has brought this number.
            if won && node.counter != 0 {
                node.counter = token.max(node.counter);
            }
            node.unlock();
        }
        Said::Nothing
    }

    fn release_shared(&self, node: &mut Node<A>, me: usize) -> Said {
        if node.lock == Lock::Shared {
            node.entries[me] = 0;
            if node.entries == [0; A] || self.flaw == Flaw::DeletesSharedLock {
                node.unlock();
                node.entries = [0; A];
            } else if self.flaw != Flaw::LastsForTheFirst {
                node.lasts = node.entries;
            }
        }
        Said::Nothing
    }

    /// Whether what lasts until this end of an attempt may be gone.
    fn is_over(state: &State<A>, me: usize, end: u8) -> bool {
        state.attempts[me].phase == Phase::Over || end <= state.attempts[me].confirmed
    }

    /// All that can happen to a node by itself.
    pub(super) fn each_accident(&self, state: &State<A>, at: usize, all: &mut Vec<State<A>>) {
        let node = &state.nodes[at];
        let mut after = |change: &dyn Fn(&mut State<A>)| {
            let mut next = *state;
            change(&mut next);
            all.push(next);
        };
        let ends = |ends: [u8; A]| (0..A).filter(move |it| ends[*it] != 0);
        for me in ends(node.entries) {
            // The release of one that is over does no less.
            let is_alive = state.attempts[me].phase != Phase::Over;
            if node.lock == Lock::Shared && is_alive && Self::is_over(state, me, node.entries[me]) {
                after(&|it| it.nodes[at].entries[me] = 0);
            }
        }
        let is_over = ends(node.lasts).all(|it| Self::is_over(state, it, node.lasts[it]));
        let is_released = ends(node.lasts)
            .chain(ends(node.entries))
            .all(|it| state.attempts[it].phase == Phase::Over);
        if node.lock != Lock::Absent && is_over && !is_released {
            // The set of readers has the same life.
            after(&|it| {
                it.nodes[at].unlock();
                it.nodes[at].entries = [0; A];
            });
        }
        if state.losses != 0 && node.lock != Lock::Absent {
            after(&|it| {
                it.nodes[at].unlock();
                it.losses -= 1;
            });
        }
        if state.losses != 0 && node.lock == Lock::Shared {
            after(&|it| {
                it.nodes[at].entries = [0; A];
                it.losses -= 1;
            });
        }
        // It was refused here, and waits in the list.
        let is_handed = |it: &usize| {
            let is_held = state.attempts[*it].phase.holds() && self.rules[*it] == Rule::Shared;
            is_held && !node.has(*it) && node.sent[*it] == 0 && !node.counted[*it]
        };
        let is_open = !matches!(node.lock, Lock::Writer(_));
        for me in (0..A).filter(|it| state.hands != 0 && is_open && is_handed(it)) {
            after(&|it| {
                let node = &mut it.nodes[at];
                if node.lock == Lock::Absent {
                    self.share(node, me, 1);
                }
                node.lasts[me] = 1;
                node.entries[me] = 1;
                node.note(me);
                it.hands -= 1;
            });
        }
        if state.crashes != 0 {
            let oldest = self.counters.into_iter().min().unwrap();
            for counter in [0, oldest]
                .into_iter()
                .take(if oldest == 0 { 1 } else { 2 })
            {
                after(&|it| {
                    let node = &mut it.nodes[at];
                    node.unlock();
                    (node.entries, node.counter, node.floor) = ([0; A], counter, FLOOR);
                    node.forgot = it.attempts.map(|it| {
                        if it.phase.is_alive() {
                            1 + it.extensions
                        } else {
                            0
                        }
                    });
                    it.crashes -= 1;
                });
            }
        }
    }
}

impl<const A: usize> Node<A> {
    /// The end of an extension: the counter gets to what the holder has.
    fn lift(&mut self, token: u8) -> Said {
        self.counter = token.max(self.counter);
        Said::Extended
    }
}
