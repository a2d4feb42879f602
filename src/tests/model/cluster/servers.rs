//! What servers do, and what befalls them.

use super::*;

/// Is told of each thing that may befall the servers.
type Each<'a> = dyn FnMut(&dyn Fn(&mut State)) + 'a;
/// The lock's key and the slot's canary, as a server has them.
type Kept = (Option<(usize, u8)>, Option<(u8, usize)>);

impl World {
    /// What a server does with a command: whether it granted, extended, released.
    pub(super) fn run(&self, state: &mut State, me: usize, server: usize, command: u8) -> bool {
        let (now, silence) = (state.now, self.silence());
        let Server { is_up, owns, migrates, key, canary, .. } = state.servers[server];
        // MOVED, or ASK and TRYAGAIN: keys of the command have left.
        if !is_up || !owns || migrates && (key.is_none() || canary.is_none()) {
            return false;
        }
        let it = &mut state.servers[server];
        it.key = it.key.filter(|it| now < it.1);
        let is_mine = it.key.is_some_and(|it| it.0 == me);
        match command {
            ACQUIRE => {
                if it.canary.is_none() && self.flaw != Flaw::NoCanary {
                    it.canary = Some((now, server));
                }
                let is_silent = it.canary.is_some_and(|it| now < it.0 + silence);
                if is_silent || it.key.is_some() {
                    return false;
                }
                it.key = Some((me, now + TTL));
            }
            EXTEND if is_mine => it.key = Some((me, now + TTL)),
            EXTEND => return false,
            _ if is_mine => it.key = None,
            _ => {}
        }
        true
    }

    /// The next of a client's looks at a server that owns the slot.
    pub(super) fn greet(&self, state: &mut State, me: usize, server: usize) {
        let now = state.now;
        let it = &mut state.servers[server];
        if it.migrates && it.canary.is_none() {
            return;
        }
        let known = &mut state.clients[me].known[server];
        let owned = |it: &mut Server| {
            let new = if self.flaw == Flaw::NoSilence { 0 } else { now };
            *it.owned.get_or_insert(new)
        };
        let is_own = |it: &Server| it.canary.filter(|it| it.1 == server || self.flaw == Flaw::NoSilence);
        *known = match (*known, is_own(it)) {
            (Known::Nothing, _) if self.flaw == Flaw::MasterFirst => Known::Looked { written: 0, owned: owned(it) },
            (Known::Nothing, Some((since, _))) if since + self.silence() <= now => Known::Since(since.max(owned(it))),
            // Another client is just settling it perhaps.
            (Known::Nothing, Some((since, _))) => Known::Greeted(since),
            (Known::Nothing, None) => {
                it.canary = Some((now, server));
                Known::Greeted(now)
            }
            // RACE: a flush in between takes the master's canary along, so it does not vouch for what was lost.
            (Known::Greeted(written), _) => Known::Looked { written, owned: owned(it) },
            (Known::Looked { owned, .. }, own) if self.flaw == Flaw::MasterFirst => match own {
                Some((since, _)) => Known::Since(since.max(owned)),
                None => {
                    it.canary = Some((owned, server));
                    Known::Since(owned)
                }
            },
            (Known::Looked { written, owned }, own) => {
                if own.is_some_and(|it| it.0 == written) || self.flaw == Flaw::SettlesBlindly {
                    it.canary = Some((owned, server));
                }
                match it.canary {
                    Some((since, _)) => Known::Since(since.max(owned)),
                    None => Known::Nothing,
                }
            }
            (known @ Known::Since(_), _) => known,
        };
    }

    /// Time does not pass before the slot begins to move, or the keys are flushed; and while something is late that takes no
    /// longer.
    pub(super) fn is_overdue(&self, state: &State) -> bool {
        let Some(moved) = state.moved else {
            return match self.cause {
                Cause::Nothing => !state.flushed,
                _ => !state.servers[OLD].migrates || START + SPREAD <= state.now,
            };
        };
        let learns = match self.cause {
            Cause::Partition { until } => until,
            _ => Some(SPREAD),
        };
        let goes_on = state.servers[OLD].owns && !state.is_back;
        !state.spread && moved + SPREAD <= state.now || goes_on && learns.is_some_and(|it| moved + it <= state.now)
    }

    /// All that can befall the servers next.
    pub(super) fn each_event(&self, state: &State, all: &mut Vec<State>) {
        let mut after = |change: &dyn Fn(&mut State)| {
            let mut next = *state;
            change(&mut next);
            all.push(next);
        };
        let [old, new] = state.servers;
        if !state.flushed {
            for server in [OLD, NEW].into_iter().filter(|it| state.servers[*it].owns) {
                after(&|it| {
                    it.flushed = true;
                    let server = &mut it.servers[server];
                    (server.key, server.canary, server.owned) = (None, None, None);
                });
            }
        }
        if state.moved.is_some() {
            self.each_after_the_move(state, &mut after);
            return;
        }
        match self.cause {
            Cause::Nothing => {}
            Cause::Migration if !old.migrates => after(&|it| it.servers[OLD].migrates = true),
            Cause::Migration => {
                if old.key.is_some() {
                    after(&|it| it.servers[NEW].key = it.servers[OLD].key.take());
                }
                if old.canary.is_some() {
                    after(&|it| it.servers[NEW].canary = it.servers[OLD].canary.take());
                }
                if old.key.is_none() && old.canary.is_none() {
                    after(&|it| self.own(it, new.key, new.canary));
                }
            }
            Cause::Promotion { loses } => {
                for (key, canary) in copies(&old, loses) {
                    after(&|it| {
                        self.own(it, key, canary);
                        it.servers[OLD] = Server { is_up: false, owns: false, key: None, ..old };
                    });
                }
            }
            Cause::Partition { .. } => {
                for (key, canary) in copies(&old, true) {
                    after(&|it| self.own(it, key, canary));
                }
            }
            Cause::Taken => after(&|it| self.own(it, None, None)),
        }
    }

    fn each_after_the_move(&self, state: &State, after: &mut Each<'_>) {
        let learns = !matches!(self.cause, Cause::Partition { until: None });
        if !state.spread {
            after(&|it| it.spread = true);
        }
        if state.servers[OLD].owns && !state.is_back && learns {
            // What it has of the slot is deleted.
            after(&|it| {
                let old = &mut it.servers[OLD];
                (old.owns, old.migrates, old.key, old.canary, old.owned) = (false, false, None, None, None);
            });
        }
        if self.cause == Cause::Migration && state.spread && !state.servers[OLD].owns && !state.is_back {
            after(&|it| {
                let new = &mut it.servers[NEW];
                let (key, canary) = (new.key.take(), new.canary.take());
                (new.owns, new.owned) = (false, None);
                let old = &mut it.servers[OLD];
                (old.owns, old.key, old.canary, it.is_back) = (true, key, canary, true);
            });
        }
    }

    /// The new server owns the slot from now on.
    fn own(&self, state: &mut State, key: Option<(usize, u8)>, canary: Option<(u8, usize)>) {
        let new = &mut state.servers[NEW];
        (new.owns, new.key, new.canary, new.owned) = (true, key, canary, None);
        state.moved = Some(state.now);
    }
}

/// What a replica has of that: of each key all or nothing, if it may have missed some.
fn copies(of: &Server, loses: bool) -> Vec<Kept> {
    let mut copies = vec![(of.key, of.canary)];
    if loses {
        copies.extend([(None, of.canary), (of.key, None), (None, None)]);
    }
    copies
}
