//! A node that is a cluster, in a small world: two servers, one slot that moves between them, one name in it, two clients.
//!
//! However the slot moves, the cluster has one vote: it never gives two that count at the same time. And nobody's key stays in
//! it when its releases have been done, apart from what expires.
//!
//! The slot goes from the old server to the new one key by key; or because the new one is promoted in the place of the old one,
//! with what it has been told, or less; or it is taken without its keys. The old one dies, or learns of it, or does not: it
//! goes on for a client that is cut off together with it. Clients learn of it at any time, and what they have sent is done in
//! order on each connection, at any time. Each client acquires the lock once, extends it once, and releases it at any time.
//! Keys are deleted by a flush, once. All states that can be reached are visited.
//!
//! The rules here are those of the engine, in fewer words; each of them has a [`Flaw`], which has to be found. A server stands for
//! `greet.lua` in a cluster, `acquire.lua`, `extend.lua`, `release.lua` and `record.lua`; `recorded` compares them. On purpose: no
//! counters, no waiting lists, and a slot's record is set back whatever it began with.

mod proofs;
mod recorded;
mod servers;

use super::walk::World as _;
use super::*;

/// How long a vote and a key last.
const TTL: u8 = 1;
/// For so long a client believes what it was told of who owns the slot.
const BELIEF: u8 = 1;
/// For so long not all servers know that the slot has moved.
const SPREAD: u8 = 1;
/// For so long a server is silent that the slot has moved to.
const SILENCE: u8 = TTL + BELIEF + SPREAD;
/// When it begins; everything was well before, for longer than a silence.
const START: u8 = 10;
const END: u8 = START + SILENCE + TTL;

const OLD: usize = 0;
const NEW: usize = 1;
/// The client that is cut off together with the old server, if one is.
const CUT_OFF: usize = 0;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    /// Both clients have a vote of the cluster at the same time.
    TwoVotes,
    /// A key stays behind that no client will release any more.
    Left,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    /// The new owner of a slot votes at once.
    NoSilence,
    /// It is silent for no longer than a lock lasts.
    ShortSilence,
    /// A grant counts whoever owned the slot lately.
    NoBelief,
    /// Who owns the slot is believed on its own word alone.
    OwnWord,
    /// A release goes to the owner that the client knows by now, and not behind the acquire.
    NotBehindTheAcquire,
    /// A release that is refused because the slot is moving or has moved is not sent again.
    NotAgain,
    /// The record of the master is looked at before that of the slot.
    MasterFirst,
    /// What the master's says is written into that of the slot, whatever became of it meanwhile.
    SettlesBlindly,
    /// A server whose record of the slot is gone or another one grants and extends locks all the same.
    NoComparison,
}

/// Why the slot moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cause {
    Nothing,
    /// Key by key. It may come back in the end.
    Migration,
    /// By agreement, or because the old owner died: what it told nobody is lost then.
    Promotion {
        loses: bool,
    },
    /// The same, while the old one goes on until it learns of it: at last after so long, if it does.
    Partition {
        until: Option<u8>,
    },
    /// Without its keys.
    Taken,
}

#[derive(Clone, Copy, Debug)]
struct World {
    cause: Cause,
    flushes: bool,
    extends: bool,
    /// The slot has been in use.
    known: bool,
    flaw: Flaw,
}

const WORLD: World = World {
    cause: Cause::Nothing,
    flushes: false,
    extends: false,
    known: true,
    flaw: Flaw::None,
};

/// Commands of a client to a server, one bit each; the lowest comes first.
const ACQUIRE: u8 = 1;
const EXTEND: u8 = 2;
const RELEASE: u8 = 4;

/// Of the slot: since when whose process keeps what it is told. The edition is any number that the other one has not.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Record {
    since: u8,
    of: usize,
    edition: u8,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Server {
    is_up: bool,
    /// It says that the slot is its own.
    owns: bool,
    /// It is giving the slot away: what it does not have any more it does not answer for.
    migrates: bool,
    /// Whose lock it is, and until when.
    key: Option<(usize, u8)>,
    record: Option<Record>,
    /// The record of the master: since when it owns the slot, and remembers; not written since that changed.
    owned: Option<u8>,
}

/// What a client knows of a server.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Known {
    Nothing,
    /// It has written the record of the slot, then.
    Greeted(u8),
    /// And has looked at the master's.
    Looked {
        written: u8,
        owned: u8,
    },
    /// The server remembers since then.
    Since(u8),
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Phase {
    Idle,
    Acquiring,
    Holding,
    Over,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Client {
    phase: Phase,
    /// Where its map has the slot, and where its acquire went.
    map: usize,
    acquired: usize,
    /// When its acquire left; until when its vote counts.
    sent: u8,
    until: u8,
    extended: Option<u8>,
    /// When it was last told that this server owns the slot: it had asked then.
    told: [Option<u8>; 2],
    known: [Known; 2],
    /// Of the slot's record, as each server has shown it last; 0 for one that is not there any more.
    editions: [u8; 2],
    queue: [u8; 2],
    /// Where its release went as the owner's, and whether it was refused there.
    released: usize,
    kept: bool,
}

const CLIENT: Client = Client {
    phase: Phase::Idle,
    map: OLD,
    acquired: OLD,
    sent: 0,
    until: 0,
    extended: None,
    told: [None; 2],
    known: [Known::Nothing; 2],
    editions: [0; 2],
    queue: [0; 2],
    released: OLD,
    kept: false,
};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct State {
    now: u8,
    servers: [Server; 2],
    clients: [Client; 2],
    /// When the new server began to own the slot; whether the others know.
    moved: Option<u8>,
    spread: bool,
    is_back: bool,
    flushed: bool,
}

impl World {
    fn start(&self) -> State {
        let server = |it: usize| Server {
            is_up: true,
            owns: it == OLD,
            migrates: false,
            key: None,
            record: (it == OLD && self.known).then_some(Record {
                since: 0,
                of: OLD,
                edition: 1,
            }),
            owned: (it == OLD).then_some(0),
        };
        State {
            now: START,
            servers: [server(OLD), server(NEW)],
            clients: [CLIENT; 2],
            moved: None,
            spread: false,
            is_back: false,
            flushed: !self.flushes,
        }
    }

    fn found(&self) -> Option<Violation> {
        self.search(self.start())
    }

    fn silence(&self) -> u8 {
        match self.flaw {
            Flaw::ShortSilence => TTL,
            _ => SILENCE,
        }
    }

    /// Whether a client can ask this server anything.
    fn reaches(&self, state: &State, client: usize, server: usize) -> bool {
        let is_cut = matches!(self.cause, Cause::Partition { .. }) && state.moved.is_some();
        state.servers[server].is_up && (!is_cut || (client == CUT_OFF) == (server == OLD))
    }

    /// Whether a client is told, and may believe, that the server owns the slot.
    fn is_confirmed(&self, state: &State, client: usize, server: usize) -> bool {
        let by_itself = self.reaches(state, client, server) && state.servers[server].owns;
        // Most masters say it; who is cut off with one of them cannot ask them.
        let is_cut = matches!(self.cause, Cause::Partition { .. })
            && state.moved.is_some()
            && client == CUT_OFF;
        let by_most =
            !is_cut && (state.is_back || state.spread) == (state.is_back || server == NEW);
        by_itself && (by_most || self.flaw == Flaw::OwnWord)
    }

    fn is_believed(&self, state: &State, client: usize, server: usize) -> bool {
        self.flaw == Flaw::NoBelief
            || state.clients[client].told[server].is_some_and(|it| state.now < it + BELIEF)
    }

    /// Whether what the server has just done for the client counts. The engine looks at when it was asked for, or for the last
    /// time, which is no later.
    fn counts(&self, state: &State, client: usize, server: usize) -> bool {
        let Known::Since(since) = state.clients[client].known[server] else {
            return false;
        };
        since + self.silence() <= state.now && self.is_believed(state, client, server)
    }

    /// All that clients can do next.
    fn each_step(&self, state: &State, me: usize, all: &mut Vec<State>) {
        let client = state.clients[me];
        let mut after = |change: &dyn Fn(&mut State)| {
            let mut next = *state;
            change(&mut next);
            all.push(next);
        };
        for server in [OLD, NEW] {
            let is_over = client.phase == Phase::Over;
            if !is_over && self.is_confirmed(state, me, server) {
                after(&|it| it.clients[me].told[server] = Some(it.now));
            }
            if server != client.map && self.reaches(state, me, server) && state.servers[server].owns
            {
                after(&|it| {
                    it.clients[me].map = server;
                    it.clients[me].known = [Known::Nothing; 2];
                });
            }
            if !is_over
                && self.reaches(state, me, server)
                && state.servers[server].owns
                && client.map == server
            {
                after(&|it| self.greet(it, me, server));
            }
        }
        let map = client.map;
        match client.phase {
            Phase::Idle if matches!(client.known[map], Known::Since(_)) => after(&|it| {
                let own = &mut it.clients[me];
                (own.phase, own.acquired, own.sent) = (Phase::Acquiring, map, it.now);
                own.queue[map] |= ACQUIRE;
            }),
            Phase::Holding if self.extends && client.extended.is_none() => after(&|it| {
                it.clients[me].extended = Some(it.now);
                it.clients[me].queue[map] |= EXTEND;
            }),
            _ => {}
        }
        if matches!(client.phase, Phase::Acquiring | Phase::Holding) {
            after(&|it| self.release(&mut it.clients[me]));
        }
        if client.kept && self.flaw != Flaw::NotAgain {
            after(&|it| {
                let own = &mut it.clients[me];
                (own.kept, own.released) = (false, map);
                own.queue[map] |= RELEASE;
            });
        }
    }

    /// A client learns that the slot's record is another one, and looks anew. What it has asked for is asked again, if it is
    /// still wanted then, or is not.
    fn refused(&self, state: &State, me: usize, server: usize, command: u8) -> Vec<State> {
        let Client { phase, map, .. } = state.clients[me];
        let is_wanted =
            [(ACQUIRE, Phase::Acquiring), (EXTEND, Phase::Holding)].contains(&(command, phase));
        let mut again = *state;
        again.clients[me].known[server] = Known::Nothing;
        let mut over = again;
        over.clients[me].queue[server] &= !command;
        self.hear(&mut over, me, server, command, false);
        if is_wanted && map == server {
            vec![again, over]
        } else {
            vec![over]
        }
    }

    fn release(&self, own: &mut Client) {
        own.phase = Phase::Over;
        own.released = own.map;
        if self.flaw != Flaw::NotBehindTheAcquire || own.acquired == own.map {
            own.queue[own.acquired] |= RELEASE;
        }
        own.queue[own.map] |= RELEASE;
    }

    /// What a client makes of an answer to its command; `done` if it was granted, extended, released.
    fn hear(&self, state: &mut State, me: usize, server: usize, command: u8, done: bool) {
        let client = state.clients[me];
        match (command, client.phase) {
            (ACQUIRE, Phase::Acquiring) if done && self.counts(state, me, server) => {
                (state.clients[me].phase, state.clients[me].until) =
                    (Phase::Holding, client.sent + TTL);
            }
            (ACQUIRE, Phase::Acquiring) => self.release(&mut state.clients[me]),
            (EXTEND, Phase::Holding) => {
                let sent = client.extended.unwrap_or_default();
                if done && self.counts(state, me, server) {
                    state.clients[me].until = sent + TTL;
                }
            }
            (RELEASE, _) => {
                // RACE: the keys may have left while it was on its way to who owned the slot when it was sent.
                state.clients[me].kept |= !done && server == client.released;
            }
            _ => {}
        }
    }
}

impl walk::World for World {
    type State = State;
    type Violation = Violation;

    fn next(&self, state: &State) -> Vec<State> {
        let mut all = Vec::new();
        for me in [0, 1] {
            self.each_step(state, me, &mut all);
            for server in [OLD, NEW] {
                let sent = state.clients[me].queue[server];
                let command = sent & sent.wrapping_neg();
                if command != 0 && self.refuses(state, me, server, command) {
                    all.extend(self.refused(state, me, server, command));
                } else if command != 0 {
                    let mut next = *state;
                    next.clients[me].queue[server] &= !command;
                    let done = self.run(&mut next, me, server, command);
                    self.hear(&mut next, me, server, command, done);
                    all.push(next);
                }
            }
        }
        self.each_event(state, &mut all);
        if state.now < END && !self.is_overdue(state) {
            let mut next = *state;
            next.now += 1;
            all.push(next);
        }
        all
    }

    fn violation(&self, _: &State, state: &State) -> Option<Violation> {
        let votes = |it: &Client| it.phase == Phase::Holding && state.now < it.until;
        if state.clients.iter().all(votes) {
            return Some(Violation::TwoVotes);
        }
        let settled =
            state.servers.iter().filter(|it| it.owns).count() == 1 && !state.servers[OLD].migrates;
        let is_left = |server: &Server, me: usize| {
            let (client, key) = (
                &state.clients[me],
                server.key.filter(|it| it.0 == me && state.now < it.1),
            );
            client.phase == Phase::Over
                && client.queue == [0; 2]
                && key.is_some()
                && server.owns
                && (!client.kept || self.flaw == Flaw::NotAgain)
        };
        let left = settled
            && state
                .servers
                .iter()
                .any(|it| (0..2).any(|me| is_left(it, me)));
        // Of what a master was told that is cut off the others know nothing.
        let left = left && !matches!(self.cause, Cause::Partition { .. });
        left.then_some(Violation::Left)
    }

    fn settle(&self, mut state: State) -> Option<State> {
        let now = state.now;
        // What is older than any silence is as old as it can be.
        let old = |it: u8| if it + SILENCE <= now { 0 } else { it };
        for server in &mut state.servers {
            server.key = server.key.filter(|it| now < it.1);
            server.record = server.record.map(|it| Record {
                since: old(it.since),
                ..it
            });
            server.owned = server.owned.map(old);
        }
        state.number_editions();
        state.moved = state.moved.map(|it| it.max(now.saturating_sub(SPREAD)));
        for client in &mut state.clients {
            for known in &mut client.known {
                if let Known::Since(since) = known {
                    *since = old(*since);
                }
            }
            for told in &mut client.told {
                *told = told.filter(|it| now < *it + BELIEF);
            }
            if client.phase == Phase::Holding && client.until <= now {
                // It has lost what it held. Its release is under way.
                self.release(client);
            }
            if client.phase == Phase::Over {
                let Client {
                    map,
                    queue,
                    released,
                    kept,
                    editions,
                    ..
                } = *client;
                *client = Client {
                    phase: Phase::Over,
                    map,
                    queue,
                    released,
                    kept,
                    editions,
                    ..CLIENT
                };
                for (edition, queue) in client.editions.iter_mut().zip(queue) {
                    *edition = if queue & (ACQUIRE | EXTEND) == 0 {
                        0
                    } else {
                        *edition
                    };
                }
                if queue.iter().all(|it| it & RELEASE == 0) {
                    client.released = OLD;
                }
            }
        }
        // Without a partition clients are alike: states that differ only in which is which are one.
        if !matches!(self.cause, Cause::Partition { .. }) && state.clients[1] < state.clients[0] {
            state.clients.swap(0, 1);
            for server in &mut state.servers {
                server.key = server.key.map(|it| (1 - it.0, it.1));
            }
        }
        let is_over = |it: &Client| it.phase == Phase::Over && it.queue == [0; 2] && !it.kept;
        let nothing_comes = state.clients.iter().all(is_over)
            || END <= now && state.clients.iter().all(|it| it.phase != Phase::Holding);
        (!nothing_comes).then_some(state)
    }
}
