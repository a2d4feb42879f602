//! A release hands the lock over: random walks through that protocol, with the shipped machines of
//! a call and of a held lock.
//!
//! Four clients compete on three or five servers: as writers of one name, as readers and writers, for one or several names,
//! or for the permits of a semaphore. A server that frees a lock gives it to the first waiting call for a short *first
//! life*, and pushes that to its client. The client counts the push as the server's vote for its last ask.
//!
//! The clients are [`Call`] and [`Hold`]. The model brings them views, answers and pushes, at any
//! time. Clients stop between any two steps. They leave, extend, renew and release at random.
//!
//! Connections keep the order of commands. After a break the server may still execute a part of them, at any later time.
//! Pushes of a cluster's bus come in any order ([`World::in_order`]). Clients stop and crash. Servers hang, restart without
//! data, lose all data or one counter, get a longer quarantine, or have their clock set forward.
//!
//! Where keys vanish unnoticed ([`World::vanishes`]), only extensions are checked: none is confirmed behind a newer writer.
//!
//! Checked: see [`Violation`]. Each [`Flaw`] leaves out one rule; `mistakes` has a world for each that shows it.
//!
//! Left out: servers' clocks with different rates, tries, waiting calls beside a hold of their
//! client, failover. Counters are lost alone only where pushes are in order: otherwise an old push
//! looks young. Steps of clocks are checked for clients that have seen the clock before.
//!
//! [`Call`]: crate::call::Call
//! [`Hold`]: crate::hold::Hold
#![allow(clippy::print_stdout, reason = "for who reads a test")]

mod calls;
mod clients;
mod holders;
mod mistakes;
mod network;
mod planted;
mod servers;
mod walks;

use std::collections::VecDeque;

use fastrand::Rng;

use self::clients::Client;
use self::network::Line;
use self::servers::Server;
use super::ledgers::NO_MARGIN;
use super::servers::{
    ALL, ALONE, Acquire, Caller, Extend, HandOver, List, Lists, Locks, Member, Mistake, Record,
    Release, Stored, Turn, Wants,
};
use super::*;
use crate::answer::{Answer, LockReply, LockStatus};
use crate::ids::NodeSet;
use crate::logic::acquire_round::Rule;
use crate::logic::{lease, token};
use crate::time::{Now, Tick};

const SERVERS_MAX: usize = 5;
const CLIENTS: usize = 4;
/// Names of a lock, or permits of a semaphore.
const LOCKS: usize = 2;
/// A proposal of a clock that is far ahead.
const FAR: u64 = 1 << 40;
/// The time at which a world begins: longer than any quarantine.
const BEGIN: u64 = 1_000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    /// Two hold the same name or permit, and not both as readers.
    TwoHold,
    /// A writer's token is not above those before it, or a reader's number is below the last writer's.
    OutOfOrder,
    /// The client counts a grant that the server made in quarantine.
    CountedInQuarantine,
    /// A server lets a reader in although a living writer waits before it.
    ReaderBeforeWriter,
    /// A server still has something of a call after its release.
    Orphan,
    /// A counter is far ahead of all clocks of servers.
    FarAhead,
    /// A call wins a lock that is over.
    WonNothing,
}

/// What calls want.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Mutex,
    Readers,
    Names,
    Permits,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    None,
    Server(Mistake),
    /// The lease of a pushed lock counts from the push.
    LeaseFromPush,
    /// A pushed lock is trusted for the full ttl.
    LeaseOfFullTtl,
    /// A push counts before the server has answered the last ask.
    PushBeforeAnswer,
    /// A push is not compared with the counter of the refusal.
    PushNotCompared,
    /// A push stays when the call asks again.
    PushOutlivesAsk,
    /// A grant stays when the call asks again.
    GrantOutlivesAsk,
    /// Answers to earlier asks count.
    AnswersToEarlierAsks,
    /// Pushes with different tokens make a majority, with the first one.
    MixesTokens,
    /// A server that has accepted the last ask counts like one that pushes.
    MixesAnswers,
    /// A call that yields keeps its owner token.
    ReusesOwner,
    /// Pushes for earlier owner tokens count.
    CountsEarlierOwners,
    /// Pushes of a server in quarantine count.
    IgnoresQuarantine,
    /// A push counts if the server may vote when the push is read.
    JudgesQuarantineWhenRead,
    /// A quarantine that is over when the server is synced counts for nothing asked before its end.
    ForgetsEndSeenLate,
    /// The version of a push is not compared.
    IgnoresRecordVersion,
    /// The first life is longer than a quarantine.
    FirstLifeAboveQuarantine,
    /// One server alone confirms an extension.
    ExtendsAlone,
    /// The promise of an extension counts from its answer.
    PromiseFromAnswer,
    /// An extension counts whatever the quarantine of its server.
    ExtendsInQuarantine,
    /// An answer behind the end of the lease counts as of its send.
    RevivedByAnswer,
    /// A set key counts as one that was there, whatever the quarantine.
    CountsSetAsKept,
    /// An extension is sent behind the release.
    ExtendsBehindRelease,
    /// Readers' pushes count where they come in any order.
    CountsReadersInAnyOrder,
    /// The same, and they are not compared with the counter of the refusal.
    ReadersNotCompared,
    /// A push of one name counts for all that the call wants.
    HoldsWithOneName,
    /// Pushes of permits make a majority, also of different ones.
    MixesPermits,
    /// A push counts whatever it shows of the server's clock.
    PushShowsNoClock,
    /// A client does not quarantine a server after a step of its clock.
    IgnoresSteps,
}

/// What happens often enough to be counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Step,
    HoldByAsk,
    HoldByRaise,
    HoldByClaim,
    HoldByPush,
    ReaderByPush,
    HandOver,
    /// Two or more readers are handed the lock in one step.
    ReaderGroup,
    /// A call that wants several names yields one that it was handed to the next.
    NameHandedOn,
    /// A push read by a call with several names.
    NamePushed,
    Yield,
    /// A call enters the lists by the release of its client's lock.
    Enter,
    Leave,
    Extension,
    /// A missing key was set.
    Set,
    Lost,
    LeaseOver,
    Restart,
    Emptied,
    LostCounter,
    ClockStep,
    Crash,
}

const EVENTS: [Event; Event::Crash as usize + 1] = [
    Event::Step,
    Event::HoldByAsk,
    Event::HoldByRaise,
    Event::HoldByClaim,
    Event::HoldByPush,
    Event::ReaderByPush,
    Event::HandOver,
    Event::ReaderGroup,
    Event::NameHandedOn,
    Event::NamePushed,
    Event::Yield,
    Event::Enter,
    Event::Leave,
    Event::Extension,
    Event::Set,
    Event::Lost,
    Event::LeaseOver,
    Event::Restart,
    Event::Emptied,
    Event::LostCounter,
    Event::ClockStep,
    Event::Crash,
];

/// How often each event happened.
#[derive(Clone, Copy, Default)]
struct Counts([u64; EVENTS.len()]);

impl Counts {
    fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    fn of(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    fn all(&self) -> Vec<(Event, u64)> {
        EVENTS
            .iter()
            .map(|event| (*event, self.of(*event)))
            .collect()
    }

    fn merge(&mut self, other: &Counts) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}

/// How rare each mishap is: one in so many steps of the kind; 0 for never.
#[derive(Clone, Copy, Debug)]
struct Faults {
    breaks: u32,
    crashes: u32,
    stops: u32,
    hangs: u32,
    /// Restarts without data.
    restarts: u32,
    /// Data lost under open connections, and records with a longer quarantine.
    empties: u32,
    counters: u32,
    clock_steps: u32,
}

struct World {
    kind: Kind,
    flaw: Flaw,
    faults: Faults,
    random: Rng,
    /// The beginning, on the clock for waiting.
    start: Tick,
    now: u64,
    /// Milliseconds between two times of the world: a first life is a second.
    unit: u64,
    ttl: u64,
    /// How long calls wait for answers.
    patience: u64,
    /// The life of a lock that is handed over.
    first_life: u64,
    /// Clients propose the time; otherwise any small number.
    good_clocks: bool,
    /// Pushes come on the connection of the answers.
    in_order: bool,
    /// How many clients want the lock.
    active: usize,
    /// Prints what happens.
    is_shown: bool,
    /// One in so many steps of time passes.
    slowness: u32,
    /// One in so many pushes that are under way arrives.
    disorder: u32,
    /// How long calls wait before they ask without a cause.
    calm: u32,
    /// One in so many steps comes from a clock that is far ahead.
    wrong_clocks: u32,
    servers: Vec<Server>,
    /// Of each client to each server.
    lines: Vec<Vec<Line>>,
    clients: Vec<Client>,
    /// One in so many steps a key vanishes, and nobody is shown that. Then only the order of tokens holds.
    vanishes: u32,
    last_id: u64,
    /// The largest tokens of writers so far, and the largest numbers of readers.
    last_tokens: [u64; LOCKS],
    last_numbers: [u64; LOCKS],
    counts: Counts,
    violation: Option<Violation>,
}

impl World {
    fn new(seed: u64, kind: Kind, flaw: Flaw) -> World {
        let mut random = Rng::with_seed(seed);
        let mut pick = |rates: &[u32]| rates[random.usize(..rates.len())];
        let when = |is_so: bool, rate: u32| if is_so { rate } else { 0 };
        // Of these, most worlds show nothing.
        let needs_old_pushes = flaw == Flaw::CountsReadersInAnyOrder;
        let needs_breaks = flaw == Flaw::ReusesOwner;
        let has_slow_pushes = pick(&[0, 0, 0, 1]) == 1 || needs_old_pushes;
        let in_order = !has_slow_pushes && pick(&[0, 1, 1]) == 1;
        let loses = !has_slow_pushes && pick(&[0, 1]) == 1;
        let steps = !has_slow_pushes && !loses && pick(&[0, 1, 1]) == 1;
        let forgets = in_order && !loses && pick(&[0, 1]) == 1;
        let faults = Faults {
            breaks: match pick(&[0, 10, 60, 300]) {
                _ if needs_breaks => 5,
                rate => when(!has_slow_pushes, rate),
            },
            crashes: when(!has_slow_pushes && !steps, pick(&[0, 30, 150])),
            stops: pick(&[0, 5, 30]),
            hangs: pick(&[0, 15, 60]),
            restarts: when(loses, pick(&[15, 50, 150])),
            empties: when(loses, pick(&[0, 15, 100])),
            counters: when(forgets, pick(&[1, 5, 30, 150])),
            clock_steps: when(steps, pick(&[15, 50, 150])),
        };
        let good_clocks = (loses || pick(&[0, 1]) == 1) && !needs_old_pushes;
        let servers = pick(&[3, 3, 3, 5]) as usize;
        let active = pick(&[2, 3, 4]) as usize;
        let slowness = pick(&[1, 2, 6]);
        let disorder = pick(&[1, 3, 12]);
        let calm = pick(&[1, 4, 20]);
        let patience = pick(&[5, 15, 60]).into();
        let ttl = random.u64(40..120);
        let first_life = random.u64(8..48).min(ttl);
        let mut world = World {
            kind,
            flaw,
            faults,
            start: crate::time::tick(),
            now: BEGIN,
            unit: 0,
            ttl,
            patience,
            first_life: match flaw {
                Flaw::FirstLifeAboveQuarantine => first_life + 3 * ttl,
                _ => first_life,
            },
            good_clocks,
            in_order,
            active,
            is_shown: false,
            slowness,
            disorder,
            calm,
            wrong_clocks: 0,
            vanishes: 0,
            servers: vec![],
            lines: vec![],
            clients: vec![],
            last_id: 1,
            last_tokens: [0; LOCKS],
            last_numbers: [0; LOCKS],
            counts: Counts::default(),
            violation: None,
            random,
        };
        if has_slow_pushes {
            // A push outlasts what was handed over.
            world.active = CLIENTS;
            world.slowness = 1;
            world.disorder = 60;
            world.calm = 1;
            world.first_life = 8 + world.first_life - first_life;
        }
        let life = match flaw {
            Flaw::FirstLifeAboveQuarantine => world.first_life - 3 * ttl,
            _ => world.first_life,
        };
        world.unit = lease::millis(lease::FIRST_LIFE).div_ceil(life);
        world.servers = (0..servers).map(|_| Server::old(ttl)).collect();
        for _ in 0..CLIENTS {
            let client = world.new_client();
            world.clients.push(client);
            world
                .lines
                .push((0..servers).map(|_| Line::default()).collect());
        }
        world
    }

    /// Walks for so many steps, or to the first violation.
    fn walk(&mut self, steps: u64) -> Option<Violation> {
        for _ in 0..steps {
            self.step();
            if self.violation.is_some() {
                break;
            }
        }
        self.violation
    }

    fn one_in(&mut self, rate: u32) -> bool {
        rate != 0 && self.random.u32(..rate) == 0
    }

    /// An owner token, an version, a client id or the tag of a command that was never used.
    fn fresh(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn span(&self, time: u64) -> Duration {
        Duration::from_millis(self.unit * time)
    }

    fn tick(&self, time: u64) -> Tick {
        self.start + self.span(time)
    }

    fn moment(&self) -> Moment {
        at(1_000_000 * self.unit * self.now)
    }

    fn clocks(&self) -> Now {
        Now {
            moment: self.moment(),
            tick: self.tick(self.now),
        }
    }

    fn violate(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    fn show(&self, what: std::fmt::Arguments<'_>) {
        if self.is_shown {
            println!("{} {what}", self.now);
        }
    }

    /// Whether tokens are in order where no rule is left out: no rule is about counters that are lost alone.
    fn orders_tokens(&self) -> bool {
        self.faults.counters == 0
    }
}
