//! Two programs whose sets of servers differ, or whose servers are replaced: every order of greetings, notes and grants.
//!
//! What a client makes of a record is the shipped [`OwnServers`](crate::logic::sets::OwnServers): see [`decisions`]. A server
//! stands for `greet.lua` and `acquire.lua`: it has a record and one lock, changes its sets only for a client that has seen the
//! present edition, and grants only to such a client. The clients want the same lock. Never may both hold it.
//!
//! On purpose:
//! - No editions but whether a client has seen the present one. A note is decided and written in one step, which comes at any time
//!   after the record was shown.
//! - A round takes less than a unit of time: what was granted to a client that does not hold is given back when time passes.
//! - A grant that does not count, a release, an attempt that is given up: left out. Each course with one of these holds is
//!   also a course without the grants that came to nothing, and these only keep others out.
//! - No renewals: see `leases` and `quarantines`.
//! - The servers of a set are noted in the order of their ids. It makes no difference to a decision, and for fewer states.

mod decisions;
mod proofs;
mod recorded;

use std::cell::RefCell;

use super::walk::Visited;
use decisions::{Decisions, Known};

/// Clients have so many servers at most. There are as many machines as letters, and a spare.
const SERVERS: usize = 5;
const MACHINES: usize = 8;
const X: usize = MACHINES - 1;
/// A lease and a quarantine last as long.
const TTL: u8 = 2;
const QUARANTINE: u8 = 2;
/// When the servers of the sets that are noted began, a spare may have begun before or after that, and the world begins.
const BEFORE: u8 = 0;
const LONG_AGO: u8 = 1;
const AFTER: u8 = 5;
const BEGIN: u8 = 10;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    /// A server counts whether or not it is new in the set.
    NewInTheSetCounts,
    /// A server counts whether or not it has lost its data.
    NoQuarantine,
}

/// Which grants count, of servers that are not in quarantine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Counts {
    /// Without `strict`: all, but for servers that are new in the set, as far as is known when they are a majority.
    All,
    /// With `strict`: besides, those of a server that does not refuse the client's set; looked at when the grant comes, and again
    /// when there is a majority. The servers have to be connected still.
    Strict,
    /// A flaw: looked at only when the grant comes.
    NotRefused,
    /// A flaw: those of a server whose record has the client's set, as far as the client knows its servers.
    Noted,
}

/// Whose set is noted when the world begins, on all servers of it. These clients have seen all of these records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Noted {
    None,
    OfTheFirst,
    OfBoth,
}

/// What a server has that is in no set which is noted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Spare {
    /// No record.
    New,
    /// A record since then, and another set in it, which nobody uses.
    Unused(u8),
    /// A record since then, and no set in it.
    NoSets(u8),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Loss {
    /// The record and the lock. Connections stay.
    All,
    /// The lock. The process is another, and has the record of the one before.
    Restart,
}

#[derive(Clone, Copy, Debug)]
struct World {
    /// The addresses of the servers of each client. One letter, one machine; behind one address there may come to be [`X`].
    sets: [&'static str; 2],
    noted: Noted,
    spares: Spare,
    /// C dies, and this spare comes behind its address.
    replaced_by: Option<Spare>,
    /// One server loses this.
    loss: Option<Loss>,
    /// So many connections of each client end for no reason.
    ends: [u8; 2],
    /// So much time passes.
    ticks: u8,
    counts: Counts,
    flaw: Flaw,
}

const WORLD: World = World {
    sets: ["ABC", "ABC"],
    noted: Noted::OfTheFirst,
    spares: Spare::New,
    replaced_by: None,
    loss: None,
    ends: [0; 2],
    ticks: 0,
    counts: Counts::Strict,
    flaw: Flaw::None,
};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Record {
    id: u8,
    since: u8,
    sets: u16,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Machine {
    record: Option<Record>,
    key: Option<usize>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Client {
    knows: Known,
    /// Of each server a bit: the record has not changed since it was seen; the connection has ended; it has granted the lock, and
    /// that counts.
    current: u8,
    ended: u8,
    granted: u8,
    /// From when on grants of each server count.
    counts_from: [u8; SERVERS],
    held_since: Option<u8>,
    ends: u8,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    now: u8,
    machines: [Machine; MACHINES],
    clients: [Client; 2],
    is_replaced: bool,
    is_lost: bool,
}

#[derive(Debug, Default)]
struct Findings {
    /// How it came about.
    two_hold: Option<String>,
    held: [bool; 2],
    /// A server's grants did not count for this client, because of the other set.
    refused: [bool; 2],
    /// Both clients have met all their servers and seen all records, and neither can ever have a majority.
    are_stuck: bool,
    states: usize,
}

struct Search {
    world: World,
    decisions: RefCell<Decisions>,
}

impl World {
    fn search(self) -> Findings {
        let search = Search {
            world: self,
            decisions: RefCell::new(Decisions::new(self.sets)),
        };
        let mut visited = Visited::new(search.start());
        let (mut findings, mut at) = (Findings::default(), 0);
        while let Some(state) = visited.get(at) {
            for (which, client) in state.clients.iter().enumerate() {
                findings.held[which] |= client.held_since.is_some();
                findings.refused[which] |=
                    search.decisions.borrow().refused(which, client.knows) != 0;
            }
            findings.are_stuck |= [0, 1].iter().all(|it| search.is_stuck(&state, *it));
            if state.clients.iter().all(|it| it.held_since.is_some()) {
                let way = visited
                    .way(at)
                    .into_iter()
                    .filter_map(|it| visited.get(it))
                    .collect::<Vec<_>>();
                findings.two_hold = Some(search.told(&way));
                break;
            }
            search.each_next(&state, |next| visited.insert(search.settle(next), at));
            at += 1;
        }
        findings.states = visited.len();
        findings
    }
}

impl Search {
    fn size(&self, client: usize) -> usize {
        self.world.sets[client].len()
    }

    fn address(&self, client: usize, server: usize) -> usize {
        usize::from(self.world.sets[client].as_bytes()[server] - b'A')
    }

    /// What answers a client at the address of one of its servers.
    fn machine(&self, state: &State, client: usize, server: usize) -> usize {
        let address = self.address(client, server);
        if state.is_replaced && address == C {
            X
        } else {
            address
        }
    }

    /// Which one of a client's servers that is.
    fn server_at(&self, state: &State, which: usize, machine: usize) -> Option<usize> {
        (0..self.size(which)).find(|it| self.machine(state, which, *it) == machine)
    }

    fn start(&self) -> State {
        let client = |which: usize| Client {
            knows: self.decisions.borrow().nothing(which),
            current: 0,
            ended: 0,
            granted: 0,
            counts_from: [0; SERVERS],
            held_since: None,
            ends: self.world.ends[which],
        };
        let mut state = State {
            now: LONG_AGO,
            machines: [Machine::default(); MACHINES],
            clients: [client(0), client(1)],
            is_replaced: false,
            is_lost: false,
        };
        let noted = match self.world.noted {
            Noted::None => 0..0,
            Noted::OfTheFirst => 0..1,
            Noted::OfBoth => 0..2,
        };
        for which in noted.clone() {
            for server in 0..self.size(which) {
                self.make(
                    &mut state,
                    self.address(which, server),
                    Spare::NoSets(LONG_AGO),
                );
            }
        }
        // Each notes its own. Then both look once more, in the present.
        for now in [LONG_AGO, LONG_AGO, BEGIN] {
            state.now = now;
            for which in noted.clone() {
                (0..2 * self.size(which))
                    .for_each(|it| self.greet(&mut state, which, it % self.size(which)));
            }
        }
        state.now = BEGIN;
        state
            .clients
            .iter_mut()
            .for_each(|it| it.counts_from = [0; SERVERS]);
        for which in [0, 1] {
            for server in 0..self.size(which) {
                self.make(&mut state, self.address(which, server), self.world.spares);
            }
        }
        self.make(&mut state, X, self.world.replaced_by.unwrap_or(Spare::New));
        state
    }

    fn make(&self, state: &mut State, machine: usize, spare: Spare) {
        let mut decisions = self.decisions.borrow_mut();
        let (since, sets) = match spare {
            Spare::New => return,
            Spare::Unused(since) => (since, decisions.unused(id(machine))),
            Spare::NoSets(since) => (since, decisions.no_sets()),
        };
        state.machines[machine].record.get_or_insert(Record {
            id: id(machine),
            since,
            sets,
        });
    }

    /// The one that stands for all states that differ only in what nobody will look at again.
    fn settle(&self, mut state: State) -> State {
        for client in &mut state.clients {
            for from in &mut client.counts_from {
                *from = if *from <= state.now {
                    0
                } else {
                    (*from).min(BEGIN + self.world.ticks + 1)
                };
            }
        }
        state
    }

    fn each_next(&self, state: &State, mut visit: impl FnMut(State)) {
        for which in [0, 1] {
            for server in 0..self.size(which) {
                self.each_of_client(state, which, server, &mut visit);
            }
        }
        if self.world.replaced_by.is_some() && !state.is_replaced {
            let mut next = *state;
            self.end_connections(&mut next, C);
            (next.is_replaced, next.machines[C].key) = (true, None);
            visit(next);
        }
        if let Some(loss) = self.world.loss.filter(|_| !state.is_lost) {
            for machine in (0..MACHINES).filter(|it| state.machines[*it].record.is_some()) {
                visit(self.lose(state, machine, loss));
            }
        }
        if state.now < BEGIN + self.world.ticks {
            let mut next = State {
                now: state.now + 1,
                ..*state
            };
            for which in [0, 1] {
                let client = &mut next.clients[which];
                client.held_since = client.held_since.filter(|it| next.now < it + TTL);
                if client.held_since.is_none() {
                    client.granted = 0;
                    next.machines
                        .iter_mut()
                        .for_each(|it| it.key = it.key.filter(|it| *it != which));
                }
            }
            visit(next);
        }
    }

    fn each_of_client(
        &self,
        state: &State,
        which: usize,
        server: usize,
        visit: &mut impl FnMut(State),
    ) {
        let (client, bit) = (state.clients[which], 1 << server);
        let mut next = *state;
        if client.ended & bit != 0
            || 0 < client.ends
                && self
                    .decisions
                    .borrow()
                    .is_shown(which, client.knows, server)
        {
            let it = &mut next.clients[which];
            it.ends -= u8::from(client.ended & bit == 0);
            it.ended &= !bit;
            it.current &= !bit;
            it.knows = self.decisions.borrow_mut().forget(which, it.knows, server);
            visit(next);
        }
        if client.ended & bit != 0 {
            return;
        }
        let is_current = client.current & bit != 0;
        if !is_current || self.decisions.borrow().is_due(which, client.knows, server) {
            next = *state;
            self.greet(&mut next, which, server);
            visit(next);
        }
        let machine = self.machine(state, which, server);
        let counts = self
            .decisions
            .borrow()
            .counting(which, client.knows, self.world.counts)
            & bit
            != 0;
        let is_free =
            is_current && client.held_since.is_none() && state.machines[machine].key.is_none();
        if is_free && client.counts_from[server] <= state.now && counts {
            next = *state;
            next.machines[machine].key = Some(which);
            let it = &mut next.clients[which];
            it.granted |= bit;
            let is_quorum = self.size(which) < 2 * it.granted.count_ones() as usize;
            it.held_since = is_quorum.then_some(state.now);
            let granted = it.granted;
            if !is_quorum || granted & !self.in_the_end(&next, which) == 0 {
                visit(next);
            }
        }
    }

    /// Whose grants still count when there is a majority.
    fn in_the_end(&self, state: &State, which: usize) -> u8 {
        let (decisions, client) = (self.decisions.borrow(), state.clients[which]);
        let is_old = |server: usize| {
            let from = decisions.heard(which, client.knows, server) + QUARANTINE;
            self.world.flaw != Flaw::None
                || from.saturating_sub(decisions.member_for(which, client.knows, server))
                    <= state.now
        };
        let old = (0..self.size(which))
            .filter(|it| is_old(*it))
            .fold(0, |bits, it| bits | 1 << it);
        match self.world.counts {
            Counts::All => old,
            Counts::Strict => old & decisions.in_the_end(which, client.knows),
            Counts::NotRefused | Counts::Noted => u8::MAX,
        }
    }

    /// `greet.lua`, and what the client does with its answer.
    fn greet(&self, state: &mut State, which: usize, server: usize) {
        let (machine, bit) = (self.machine(state, which, server), 1 << server);
        let mut decisions = self.decisions.borrow_mut();
        let knows = state.clients[which].knows;
        let is_current = state.clients[which].current & bit != 0;
        let record = &mut state.machines[machine].record;
        let found = *record;
        let it = record.get_or_insert_with(|| {
            let id = id(machine) + if state.is_lost { MACHINES as u8 } else { 0 };
            Record {
                id,
                since: state.now,
                sets: decisions.alone(self.size(which), id, state.now),
            }
        });
        if let Some(note) = decisions
            .note(which, knows, server)
            .filter(|_| is_current && found.is_some())
        {
            it.sets = note;
        }
        let shown = *it;
        if found != Some(shown) {
            self.change(state, machine);
        }
        let client = &mut state.clients[which];
        client.current |= bit;
        client.knows = decisions.hear(which, knows, server, shown, state.now);
        let served = state.now - shown.since;
        let member_for = decisions.member_for(which, client.knows, server);
        let (served, member_for) = match self.world.flaw {
            Flaw::None => (served, member_for),
            Flaw::NewInTheSetCounts => (served, u8::MAX),
            Flaw::NoQuarantine => (u8::MAX, u8::MAX),
        };
        let from = (state.now + QUARANTINE).saturating_sub(served.min(member_for));
        client.counts_from[server] = client.counts_from[server].max(from);
    }

    /// The record has another edition.
    fn change(&self, state: &mut State, machine: usize) {
        for which in [0, 1] {
            if let Some(server) = self.server_at(state, which, machine) {
                state.clients[which].current &= !(1 << server);
            }
        }
    }

    fn is_stuck(&self, state: &State, which: usize) -> bool {
        let (size, client, decisions) = (
            self.size(which),
            state.clients[which],
            self.decisions.borrow(),
        );
        let is_settled = |it: usize| {
            client.current & (1 << it) != 0 && !decisions.is_due(which, client.knows, it)
        };
        let refused = decisions.refused(which, client.knows).count_ones() as usize;
        (0..size).all(is_settled) && client.ended == 0 && 2 * (size - refused) <= size
    }

    fn end_connections(&self, state: &mut State, machine: usize) {
        self.change(state, machine);
        for which in [0, 1] {
            if let Some(server) = self.server_at(state, which, machine)
                && self
                    .decisions
                    .borrow()
                    .is_shown(which, state.clients[which].knows, server)
            {
                state.clients[which].ended |= 1 << server;
            }
        }
    }

    fn lose(&self, state: &State, machine: usize, loss: Loss) -> State {
        let mut next = State {
            is_lost: true,
            ..*state
        };
        let it = &mut next.machines[machine];
        it.key = None;
        match loss {
            Loss::All => {
                it.record = None;
                self.change(&mut next, machine);
            }
            Loss::Restart => {
                it.record = it.record.map(|it| Record {
                    since: state.now,
                    ..it
                });
                self.end_connections(&mut next, machine);
            }
        }
        next
    }

    /// How it came about, a line each.
    fn told(&self, way: &[State]) -> String {
        let decisions = self.decisions.borrow();
        way.iter()
            .map(|state| {
                let mut line = format!("{}:", state.now);
                for (machine, it) in state.machines.iter().enumerate() {
                    if let Some(record) = it.record {
                        let letter = char::from(if machine == X { b'X' } else { b'A' + machine as u8 });
                        line += &format!(" {letter}{:?} {}", it.key, decisions.shown(record));
                    }
                }
                for (which, it) in state.clients.iter().enumerate() {
                    let refused = decisions.refused(which, it.knows);
                    line += &format!(
                        "\n    {which} shown {:05b} current {:05b} refused {refused:05b} granted {:05b} from {:?} held {:?}",
                        decisions.all_shown(which, it.knows),
                        it.current,
                        it.granted,
                        it.counts_from,
                        it.held_since
                    );
                }
                line + "\n"
            })
            .collect()
    }
}

const C: usize = 2;

/// Of a machine's first record.
fn id(machine: usize) -> u8 {
    machine as u8 + 1
}
