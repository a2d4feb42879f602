//! What nodes do, and the accidents that befall a node.
//!
//! On purpose: no waiting lists, and an order of ends in place of times.

use super::*;

impl<const A: usize> Node<A> {
    /// Whether it has the key or the entry of this attempt.
    pub(super) fn has(&self, me: usize) -> bool {
        self.server.has(0, me as u8)
    }

    fn lock(&self) -> &Lock<u8, [u8; A]> {
        &self.server.locks[0]
    }

    /// The ends that the lock key outlasts.
    fn lasts(&self) -> [u8; A] {
        let mut lasts = self.lock().lasts;
        if let Key::Owned { owner, until } = self.lock().key {
            lasts[usize::from(owner)] = until;
        }
        lasts
    }

    fn is_silent(&self, attempts: &[Attempt; A]) -> bool {
        (0..A).any(|it| blocks(&attempts[it], self.forgot[it]))
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
        let [lock] = &mut self.server.locks;
        if let Key::Owned { owner, .. } = &mut lock.key {
            *owner = match usize::from(*owner) {
                it if it == a => b as u8,
                it if it == b => a as u8,
                _ => *owner,
            };
        }
        for it in [
            &mut lock.lasts,
            &mut lock.readers,
            &mut self.forgot,
            &mut self.sent,
            &mut self.order,
        ] {
            it.swap(a, b);
        }
        self.counted.swap(a, b);
    }

    /// Forgets what nobody looks at any more.
    pub(super) fn settle(&mut self, attempts: &[Attempt; A], flaw: Flaw) {
        let [lock] = &mut self.server.locks;
        for (me, attempt) in attempts.iter().enumerate() {
            if !blocks(attempt, self.forgot[me]) {
                self.forgot[me] = 0;
            }
            if attempt.phase == Phase::Over {
                // Of its ends none is later than another.
                lock.lasts[me] = lock.lasts[me].min(1);
                lock.readers[me] = lock.readers[me].min(1);
                match &mut lock.key {
                    Key::Owned { owner, until } if usize::from(*owner) == me => {
                        *until = 1.min(*until);
                    }
                    _ => {}
                }
            }
        }
        if lock.key != Key::Shared && flaw != Flaw::Server(Mistake::KeepsOldEntries) {
            // Deleted by who makes the lock a shared one.
            lock.readers = [0; A];
        }
        let order = self.order;
        for place in &mut self.order {
            *place = (1..=*place).filter(|it| order.contains(it)).count() as u8;
        }
    }
}

fn is_alive(attempt: &Attempt) -> bool {
    !matches!(attempt.phase, Phase::Idle | Phase::Over)
}

/// Whether a node that forgot everything while this attempt was under way has to be silent for it.
fn blocks(attempt: &Attempt, forgot: u8) -> bool {
    is_alive(attempt) && attempt.confirmed < forgot
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
        let server = &mut node.server;
        let mistake = self.mistake();
        let rule = self.rules[me];
        let caller = Caller {
            owner: me as u8,
            locks: ALONE[0],
            rule,
        };
        let said = match command {
            ACQUIRE => {
                let wants = match rule {
                    Rule::Exclusive => Wants::Names(caller.locks),
                    Rule::Shared => Wants::Reads,
                };
                let acquire = Acquire {
                    owner: caller.owner,
                    wants,
                    proposal,
                    until: 1,
                    member: None,
                    enters: false,
                };
                server.acquire(&mut Turn::of(mistake), acquire).into()
            }
            RAISE => server.raise(mistake, caller, attempt.token).into(),
            EXTEND | AGAIN => {
                let extend = Extend {
                    number: attempt.number,
                    until: attempt.extensions + u8::from(self.flaw != Flaw::OutlastsKey),
                    sets: attempt.sets,
                };
                server.extend(mistake, caller, extend).into()
            }
            _ => {
                // The raise may not have come here; without one, the acquire has brought this number.
                let release = Release {
                    raised: if attempt.won { attempt.token } else { 0 },
                    ..Release::of(caller)
                };
                server.release(&mut Turn::of(mistake), release);
                Said::Nothing
            }
        };
        if matches!(
            said,
            Said::Accepted | Said::Behind(_) | Said::Shared(_) | Said::Healed
        ) {
            node.note(me);
        }
        said
    }

    fn mistake(&self) -> Mistake {
        match self.flaw {
            Flaw::Server(mistake) => mistake,
            _ => Mistake::None,
        }
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
        let Lock { key, readers, .. } = *node.lock();
        let lasts = node.lasts();
        for me in ends(readers) {
            // The release of one that is over does no less.
            let is_alive = state.attempts[me].phase != Phase::Over;
            if key == Key::Shared && is_alive && Self::is_over(state, me, readers[me]) {
                after(&|it| it.nodes[at].server.locks[0].readers[me] = 0);
            }
        }
        let is_over = ends(lasts).all(|it| Self::is_over(state, it, lasts[it]));
        let is_released = ends(lasts)
            .chain(ends(readers))
            .all(|it| state.attempts[it].phase == Phase::Over);
        if key != Key::Free && is_over && !is_released {
            // The set of readers has the same life.
            after(&|it| {
                it.nodes[at].server.vanish(0);
                it.nodes[at].server.locks[0].readers = [0; A];
            });
        }
        if state.losses != 0 && key != Key::Free {
            after(&|it| {
                it.nodes[at].server.vanish(0);
                it.losses -= 1;
            });
        }
        if state.losses != 0 && key == Key::Shared {
            after(&|it| {
                it.nodes[at].server.locks[0].readers = [0; A];
                it.losses -= 1;
            });
        }
        // It was refused here, and waits in the list.
        let is_handed = |it: &usize| {
            let is_held =
                state.attempts[*it].phase == Phase::Holding && self.rules[*it] == Rule::Shared;
            is_held && !node.has(*it) && node.sent[*it] == 0 && !node.counted[*it]
        };
        let is_open = !matches!(key, Key::Owned { .. });
        for me in (0..A).filter(|it| state.hands != 0 && is_open && is_handed(it)) {
            after(&|it| {
                let node = &mut it.nodes[at];
                node.server.let_reader_in(0, me as u8, 1, self.mistake());
                node.note(me);
                it.hands -= 1;
                if self.flaw == Flaw::CountsWhatItIsHanded {
                    self.step(it, me, Event::Answer(ACQUIRE, at, Said::Accepted));
                }
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
                    node.server.lose([counter], FLOOR);
                    node.forgot = it
                        .attempts
                        .map(|it| if is_alive(&it) { 1 + it.extensions } else { 0 });
                    it.crashes -= 1;
                });
            }
        }
    }
}
