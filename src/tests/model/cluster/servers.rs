//! What servers do, and what befalls them.

use super::*;

/// Is told of each thing that may befall the servers.
type Each<'a> = dyn FnMut(&dyn Fn(&mut State)) + 'a;
/// The lock's key and the slot's record, as a server has them.
type Kept = (Option<(usize, u8)>, Option<Record>);

impl World {
    /// What a server does with a command: whether it granted, extended, released.
    pub(super) fn run(&self, state: &mut State, me: usize, server: usize, command: u8) -> bool {
        let now = state.now;
        if state.servers[server].has_left() {
            return false;
        }
        let it = &mut state.servers[server];
        it.key = it.key.filter(|it| now < it.1);
        let is_mine = it.key.is_some_and(|it| it.0 == me);
        match command {
            ACQUIRE if it.key.is_some() => return false,
            ACQUIRE => it.key = Some((me, now + TTL)),
            EXTEND if is_mine => it.key = Some((me, now + TTL)),
            EXTEND => return false,
            _ if is_mine => it.key = None,
            _ => {}
        }
        true
    }

    /// Whether a server does nothing with a command, because the slot's record is another one than the client knows.
    pub(super) fn refuses(&self, state: &State, me: usize, server: usize, command: u8) -> bool {
        let it = &state.servers[server];
        let is_known = it
            .record
            .is_some_and(|it| it.edition == state.clients[me].editions[server]);
        command != RELEASE && !it.has_left() && !is_known && self.flaw != Flaw::NoComparison
    }

    /// The next of a client's looks at a server that owns the slot.
    pub(super) fn greet(&self, state: &mut State, me: usize, server: usize) {
        let (now, edition) = (state.now, state.draw());
        let it = &mut state.servers[server];
        if it.migrates && it.record.is_none() {
            return;
        }
        let begin = |since: u8| {
            Some(Record {
                since,
                of: server,
                edition,
            })
        };
        let owned = |it: &mut Server| {
            let new = if self.flaw == Flaw::NoSilence { 0 } else { now };
            *it.owned.get_or_insert(new)
        };
        // Of two records the later one begins later, by a microsecond at least. Here the edition tells them apart.
        let had = state.clients[me].editions[server];
        let known = &mut state.clients[me].known[server];
        let looks_at_slot = !matches!(*known, Known::Greeted(_));
        let is_own = |it: &Server| {
            it.record
                .filter(|it| it.of == server || self.flaw == Flaw::NoSilence)
        };
        *known = match (*known, is_own(it)) {
            (Known::Nothing, _) if self.flaw == Flaw::MasterFirst => Known::Looked {
                written: 0,
                owned: owned(it),
            },
            (Known::Nothing, Some(Record { since, .. })) if since + self.silence() <= now => {
                Known::Since(since.max(owned(it)))
            }
            // Another client is just settling it perhaps.
            (Known::Nothing, Some(Record { since, .. })) => Known::Greeted(since),
            (Known::Nothing, None) => {
                it.record = begin(now);
                Known::Greeted(now)
            }
            // RACE: a flush in between takes the master's record along, so it does not vouch for what was lost.
            (Known::Greeted(written), _) => Known::Looked {
                written,
                owned: owned(it),
            },
            (Known::Looked { owned, .. }, own) if self.flaw == Flaw::MasterFirst => match own {
                Some(Record { since, .. }) => Known::Since(since.max(owned)),
                None => {
                    it.record = begin(owned);
                    Known::Since(owned)
                }
            },
            (Known::Looked { written, owned }, own) => {
                let is_same = own.is_some_and(|it| it.since == written && it.edition == had);
                if is_same && written != owned || self.flaw == Flaw::SettlesBlindly {
                    it.record = begin(owned);
                }
                match it.record {
                    Some(Record { since, .. }) => Known::Since(since.max(owned)),
                    None => Known::Nothing,
                }
            }
            (Known::Since(_), _) => return,
        };
        if looks_at_slot {
            state.clients[me].editions[server] = it.record.map_or(0, |it| it.edition);
        }
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
        !state.spread && moved + SPREAD <= state.now
            || goes_on && learns.is_some_and(|it| moved + it <= state.now)
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
                    (server.key, server.record, server.owned) = (None, None, None);
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
                if old.record.is_some() {
                    after(&|it| it.servers[NEW].record = it.servers[OLD].record.take());
                }
                if old.key.is_none() && old.record.is_none() {
                    after(&|it| self.own(it, new.key, new.record));
                }
            }
            Cause::Promotion { loses } => {
                for (key, record) in copies(&old, loses) {
                    after(&|it| {
                        self.own(it, key, record);
                        it.servers[OLD] = Server {
                            is_up: false,
                            owns: false,
                            key: None,
                            ..old
                        };
                    });
                }
            }
            Cause::Partition { .. } => {
                for (key, record) in copies(&old, true) {
                    after(&|it| self.own(it, key, record));
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
                (old.owns, old.migrates, old.key, old.record, old.owned) =
                    (false, false, None, None, None);
            });
        }
        if self.cause == Cause::Migration
            && state.spread
            && !state.servers[OLD].owns
            && !state.is_back
        {
            after(&|it| {
                let new = &mut it.servers[NEW];
                let (key, record) = (new.key.take(), new.record.take());
                (new.owns, new.owned) = (false, None);
                let old = &mut it.servers[OLD];
                (old.owns, old.key, old.record, it.is_back) = (true, key, record, true);
            });
        }
    }

    /// The new server owns the slot from now on.
    fn own(&self, state: &mut State, key: Option<(usize, u8)>, record: Option<Record>) {
        let new = &mut state.servers[NEW];
        (new.owns, new.key, new.record, new.owned) = (true, key, record, None);
        state.moved = Some(state.now);
    }
}

impl Server {
    /// MOVED, or ASK and TRYAGAIN: keys of a command have left.
    fn has_left(&self) -> bool {
        !self.is_up || !self.owns || self.migrates && (self.key.is_none() || self.record.is_none())
    }
}

impl State {
    /// An edition that nobody has.
    pub(super) fn draw(&self) -> u8 {
        let known = self.clients.iter().flat_map(|it| it.editions);
        let used: Vec<_> = self
            .servers
            .iter()
            .filter_map(|it| Some(it.record?.edition))
            .chain(known)
            .collect();
        (1..).find(|it| !used.contains(it)).unwrap()
    }

    /// Numbers editions in the order of servers: which number it is makes no difference.
    pub(super) fn number_editions(&mut self) {
        let [old, new] = self.servers.map(|it| it.record.map_or(0, |it| it.edition));
        let number = |it: u8| match it {
            0 => 0,
            _ if it == old => 1,
            _ if it == new => 2,
            _ => 0,
        };
        for record in self.servers.iter_mut().filter_map(|it| it.record.as_mut()) {
            record.edition = number(record.edition);
        }
        for client in &mut self.clients {
            client.editions = client.editions.map(number);
        }
    }
}

/// What a replica has of that: of each key all or nothing, if it may have missed some.
fn copies(of: &Server, loses: bool) -> Vec<Kept> {
    let mut copies = vec![(of.key, of.record)];
    if loses {
        copies.extend([(None, of.record), (of.key, None), (None, None)]);
    }
    copies
}
