//! The simulated server beside one that runs the scripts.
//!
//! Both take the same random steps, at the same times: commands of each kind of lock, time that passes, keys that are
//! deleted, losses of data, syncs, calls that wait and hand-overs. Each answer and each message is compared, and what is
//! stored behind it.

use fastrand::Rng;

use super::real::{BEGIN, Real, draw, millis, number, of_model};
use super::*;
use crate::answer::{Answer, LockStatus};
use crate::ids::{ClientId, OwnerToken};
use crate::wire::{Entering, KeyTtls, LockCommands, Offer, QueueEntry, QueuePolicy, QueueUpdate};

const WALKS: u64 = 60;
const STEPS: usize = 60;

const CLIENTS: usize = 4;
/// Lives of what is granted, extended and handed over. Real ones are a millisecond shorter: what ends now is over.
const LIFE: u8 = 20;
const LONGER: u8 = 40;
const FIRST: u8 = 5;
const QUARANTINE: u8 = 6;
const SHORTER: u8 = 4;
/// When the server is older than any quarantine.
const START: u8 = 10;
/// The life of lists and marks: longer than a walk.
const LISTED: u64 = 3_600_000;

/// What the calls of a walk want.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Names([Locks; CLIENTS]),
    /// Every other one reads.
    Readers,
    Permits,
}

/// A simulated server of any form.
trait Form: Clone + Debug {
    type Number: Number + From<u8>;
    type Readers: Readers<Self::Number> + Debug;
    type Lists: Lists<Self::Number> + Clone + Debug;
    type Record: Stored<Self::Number> + Clone + Debug;
    const HAS_LISTS: bool;
    fn record(record: Option<Record>) -> Self::Record;
}

/// Bytes, as where all states are visited.
#[derive(Clone, Debug)]
struct Small;

impl Form for Small {
    type Number = u8;
    type Readers = [u8; CLIENTS];
    type Lists = ();
    type Record = u8;
    const HAS_LISTS: bool = false;

    fn record(record: Option<Record>) -> u8 {
        u8::try_from(record.quarantine_end()).unwrap()
    }
}

/// As in walks.
#[derive(Clone, Debug)]
struct Large;

impl Form for Large {
    type Number = u64;
    type Readers = Vec<(u64, u64)>;
    type Lists = [List<u64>; 2];
    type Record = Option<Record>;
    const HAS_LISTS: bool = true;

    fn record(record: Option<Record>) -> Option<Record> {
        record
    }
}

type Simulated<F> =
    Server<<F as Form>::Number, <F as Form>::Readers, <F as Form>::Lists, <F as Form>::Record, 2>;

struct Beside<F: Form> {
    kind: Kind,
    mistake: Mistake,
    server: Simulated<F>,
    record: Option<Record>,
    real: Real,
    time: u8,
    owners: [OwnerToken; CLIENTS],
    /// Two calls each.
    ids: [ClientId; 2],
    listens: [bool; 2],
    /// When the calls began, and how many have.
    since: [u64; CLIENTS],
    begun: u64,
    /// Who has synced the present record, and the longest quarantine that each was shown.
    synced: [bool; CLIENTS],
    shown: [u64; CLIENTS],
}

impl<F: Form> Beside<F> {
    fn new(kind: Kind, mistake: Mistake) -> Beside<F> {
        // Synced a day ago: it has kept all data for long.
        let mut real = Real::in_use(START, millis(QUARANTINE));
        (0..CLIENTS).for_each(|it| drop(real.sync_record(it, millis(QUARANTINE), 0)));
        let record = Some(Record::old(QUARANTINE.into()));
        Beside {
            kind,
            mistake,
            server: Server::new([F::Number::default(); 2], Lists::empty(), F::record(record)),
            record,
            real,
            time: START,
            owners: [(); CLIENTS].map(|()| draw()),
            ids: [(); 2].map(|()| ClientId::draw().unwrap()),
            listens: [false; 2],
            since: [1, 2, 3, 4],
            begun: 0,
            synced: [true; CLIENTS],
            shown: [QUARANTINE.into(); CLIENTS],
        }
    }

    fn wants(&self, me: usize) -> Wants {
        match self.kind {
            Kind::Names(names) => Wants::Names(names[me]),
            Kind::Readers if me % 2 == 1 => Wants::Reads,
            Kind::Readers => Wants::Names(ALONE[0]),
            Kind::Permits => Wants::Permit((self.owners[me].number() % 2) as usize),
        }
    }

    fn commands(&self, me: usize) -> LockCommands {
        let ttls = KeyTtls {
            handed_over_ms: real_life(FIRST),
            ..KeyTtls::default()
        };
        match self.wants(me) {
            Wants::Names(&[name]) => LockCommands::mutex(b"", [b"a", b"b"][name], ttls),
            Wants::Names(_) => LockCommands::multi(b"", [&b"a"[..], b"b"].into_iter(), ttls),
            Wants::Reads => LockCommands::mutex(b"", b"a", ttls).to_read(),
            Wants::Permit(_) => LockCommands::semaphore(b"", b"s", 2, ttls),
        }
    }

    /// The keys of a lock, of its counter and of its readers.
    fn keys(&self, lock: usize) -> [String; 3] {
        match self.kind {
            Kind::Permits => ["slot", "slot-fence", "slot-readers"]
                .map(|kind| format!("quorlock:{kind}-{lock}:s")),
            _ => ["", "quorlock:fence:", "quorlock:readers:"]
                .map(|kind| format!("{kind}{}", ["a", "b"][lock])),
        }
    }

    fn member(&self, me: usize) -> Option<Member<F::Number>> {
        F::HAS_LISTS.then(|| Member {
            since: self.since[me],
            owner: owner::<F>(me),
            client: me % 2,
            id: 0,
            reads: self.wants(me) == Wants::Reads,
            polls: false,
        })
    }

    fn entry(&self, me: usize) -> QueueEntry {
        QueueEntry {
            client: self.ids[me % 2],
            life: LISTED,
        }
    }

    /// Whether the server has anything of this owner.
    fn is_left(&self, me: usize) -> bool {
        let me = owner::<F>(me);
        let is_entry = |it: &Lock<_, F::Readers>| it.readers.end_of(me).is_some();
        let is_listed = |it: usize| {
            let list = self.server.lists.get(it);
            list.is_some_and(|it| it.waiting.iter().any(|it| it.owner == me))
        };
        (0..2).any(|it| self.server.has(it, me) || is_listed(it))
            || self.server.locks.iter().any(is_entry)
    }

    /// The next call of a client.
    fn begin(&mut self, me: usize) {
        self.owners[me] = draw();
        self.begun += 1;
        self.since[me] = BEGIN + self.begun;
    }

    fn latest(&self) -> u8 {
        let record = self.record.as_ref().unwrap();
        self.time + u8::try_from(record.max_ttl / 2).unwrap()
    }

    /// An error shows what differs.
    fn step(&mut self, random: &mut Rng) -> Result<(), String> {
        let me = random.usize(0..CLIENTS);
        let lock = random.usize(0..2);
        self.server.expire(self.time.into());
        match random.u8(0..34) {
            0..=8 => {
                if !self.is_left(me) && random.bool() {
                    self.begin(me);
                }
                self.send(me, Command::Acquire, random)?;
            }
            9..=11 => self.send(me, Command::Raise, random)?,
            12..=15 => self.send(me, Command::Extend { sets: false }, random)?,
            16..=18 => self.send(me, Command::Extend { sets: true }, random)?,
            19..=23 => self.send(me, Command::Release, random)?,
            24 => self.send(me, Command::Keep, random)?,
            25 | 31 => self.send(me, Command::Yield, random)?,
            32 => {
                self.server.vanish(lock);
                self.real.delete(&self.keys(lock)[0]);
            }
            26 => {
                self.server.locks[lock].counter = F::Number::default();
                self.real.delete(&self.keys(lock)[1]);
            }
            27 => {
                self.server.locks[lock].readers = Readers::none();
                self.real.delete(&self.keys(lock)[2]);
            }
            28 if !F::HAS_LISTS => self.lose(random),
            28 => self.listens[me % 2] ^= true,
            29 => self.sync(me, random),
            _ => {
                self.time += random.u8(1..4);
                self.real.go_to(self.time);
                self.server.expire(self.time.into());
            }
        }
        self.compare()
    }

    /// It comes back as another process: with nothing, or with an older copy of its counters.
    fn lose(&mut self, random: &mut Rng) {
        let has_copy = random.bool();
        let counters = self.server.locks.each_ref().map(|it| {
            let most = u8::try_from(it.counter.into()).unwrap();
            if has_copy { random.u8(0..=most) } else { 0 }
        });
        for (lock, older) in counters.into_iter().enumerate() {
            let [key, counter, readers] = self.keys(lock);
            for key in [&key, &counter, &readers] {
                self.real.delete(key);
            }
            if older != 0 {
                let older = number(older).to_string();
                self.real
                    .plain(&[b"SET", counter.as_bytes(), older.as_bytes()]);
            }
        }
        self.real.restart(has_copy);
        self.record = self.record.filter(|_| has_copy).map(Record::of_another);
        self.sync(random.usize(0..CLIENTS), random);
        let counters = counters.map(F::Number::from);
        self.server.lose(counters, F::record(self.record));
    }

    fn sync(&mut self, me: usize, random: &mut Rng) {
        let own = if random.bool() { QUARANTINE } else { SHORTER };
        self.sync_with(me, own);
    }

    fn sync_with(&mut self, me: usize, own: u8) {
        let reported = u8::try_from(self.shown[me]).unwrap();
        let found = self.real.sync_record(me, millis(own), millis(reported));
        let now = self.time.into();
        let record = Record::synced(self.record, now, own.into(), reported.into());
        if self.record != Some(record) {
            self.synced = [false; CLIENTS];
        }
        self.synced[me] = true;
        self.shown[me] = self.shown[me].max(record.max_ttl);
        self.record = Some(record);
        self.server.record = F::record(self.record);
        assert_eq!(found.max_ttl, 1_000 * record.max_ttl, "{me} syncs");
        let served = u64::try_from(found.served.as_millis()).unwrap();
        let age = record
            .since
            .map_or(86_400_000 + 1_000 * now, |it| 1_000 * (now - it));
        assert_eq!(served, age, "{me} syncs");
    }

    /// A number near the counters. Between two of them is a microsecond there, and a second here: so none that is one more than
    /// a counter is too far ahead.
    fn token(&self, random: &mut Rng) -> u8 {
        let counters = self.server.locks.each_ref().map(|it| it.counter.into());
        let near = u8::try_from(counters[random.usize(0..2)]).unwrap();
        let most = self.latest() + 3;
        let token = match random.bool() {
            true => (near + random.u8(0..3)).saturating_sub(1).clamp(1, most),
            false => random.u8(1..=most),
        };
        let is_next = |it: &u64| it + 1 == u64::from(token);
        if self.latest() < token && counters.iter().any(is_next) {
            self.latest()
        } else {
            token
        }
    }

    fn send(&mut self, me: usize, command: Command, random: &mut Rng) -> Result<(), String> {
        let before = self.server.clone();
        let number_of_model = self.token(random);
        let token = number(number_of_model);
        let slot = random.u8(0..2);
        let is_raised = random.bool();
        let wants = self.wants(me);
        let is_permit = matches!(wants, Wants::Permit(_));
        let commands = self.commands(me);
        let of_hold = commands.of_slot(slot);
        let own = self.owners[me];
        let update = match F::HAS_LISTS {
            true => QueueUpdate::Leave(self.ids[me % 2]),
            false => QueueUpdate::None,
        };
        // A call that yields stays, with another owner token of its client.
        let heir = (me + 2) % CLIENTS;
        match command {
            Command::Keep if !is_permit => return Ok(()),
            Command::Yield if !F::HAS_LISTS || self.is_left(heir) => return Ok(()),
            Command::Yield if self.wants(heir) != wants && !is_permit => return Ok(()),
            Command::Yield => self.begin(heir),
            _ => {}
        }
        let waits_for = match wants {
            Wants::Names(names) => random.usize(0..names.len()),
            Wants::Reads | Wants::Permit(_) => 0,
        };
        let raised = is_raised.then_some(token);
        let mut stay = None;
        let enters = random.u8(..8) != 0;
        let yields = random.bool();
        let sent = match command {
            Command::Acquire => {
                let policy = QueuePolicy {
                    since: self.since[me],
                    entry: F::HAS_LISTS.then(|| self.entry(me)),
                    enters,
                };
                commands.acquire(own, real_life(LIFE), token, &policy)
            }
            Command::Raise => of_hold.raise(own, token),
            Command::Extend { sets } => of_hold.extend(own, real_life(LONGER), token, sets, None),
            Command::Keep => {
                let client = F::HAS_LISTS.then_some(self.ids[me % 2]);
                of_hold.keep(own, client).unwrap()
            }
            Command::Yield => {
                let entering = Entering {
                    entry: self.entry(me),
                    since: self.since[heir],
                    which: Some(u8::try_from(waits_for).unwrap()),
                    member: commands.member(self.owners[heir]),
                    yields,
                };
                let which = wants.locks()[waits_for];
                stay = self.member(heir).map(|it| (which, it));
                let offer = Offer { token, raised };
                commands.release(own, offer, QueueUpdate::Enter(entering))
            }
            Command::Release => {
                let offer = Offer { token, raised };
                commands.release(own, offer, update)
            }
        };
        let listens = self.listens;
        let time = F::Number::from(self.time);
        let turn = &mut Turn {
            mistake: self.mistake,
            time,
            latest: Some(self.latest().into()),
            first_until: (self.time + FIRST).into(),
            has_slots: is_permit,
            listens: &|member| listens[member.client],
            handed: Vec::new(),
        };
        for it in 0..2 {
            self.real.set_listener(self.ids[it], self.listens[it]);
        }
        let locks = match command {
            Command::Raise | Command::Extend { .. } if is_permit => ALONE[usize::from(slot)],
            _ => wants.locks(),
        };
        let caller = Caller {
            owner: owner::<F>(me),
            locks,
            rule: wants.rule(),
        };
        let number = F::Number::from(number_of_model);
        let compares = !matches!(command, Command::Release | Command::Keep | Command::Yield);
        let expected = match command {
            _ if compares && !self.synced[me] => Some(Answer::Changed),
            Command::Acquire => Some(self.server.acquire(
                turn,
                Acquire {
                    owner: caller.owner,
                    wants,
                    proposal: number,
                    until: (self.time + LIFE).into(),
                    member: self.member(me),
                    enters,
                },
            )),
            Command::Raise => Some(self.server.raise(self.mistake, caller, number)),
            Command::Extend { sets } => {
                let until = (self.time + LONGER).into();
                let extend = Extend {
                    number,
                    until,
                    sets,
                };
                Some(self.server.extend(self.mistake, caller, extend))
            }
            Command::Release | Command::Keep | Command::Yield => {
                let keeps = command == Command::Keep;
                let none = F::Number::default();
                let release = Release {
                    caller,
                    keep: keeps.then_some(slot.into()),
                    raised: if is_raised && !keeps && wants != Wants::Reads {
                        number
                    } else {
                        none
                    },
                    next: if keeps { none } else { number },
                    stay,
                    yields: yields && stay.is_some(),
                };
                self.server.release(turn, release);
                None
            }
        };
        let found = self.real.send(me, &sent);
        let context =
            || format!("{command:?} of {me} with {number_of_model} at {time:?} in {before:?}");
        if let Some(expected) = expected {
            let found = as_in_model(found, is_permit);
            same(&found, &as_stored(expected, is_permit), context)?;
        }
        let handed: Vec<_> = turn
            .handed
            .iter()
            .map(|it| (it.to.owner.into(), it.lock, it.token.into()))
            .collect();
        let messages = self.messages();
        same(&messages, &handed, context)
    }

    /// Who was handed which lock with which token.
    fn messages(&mut self) -> Vec<(u64, usize, u64)> {
        let keys = [self.keys(0), self.keys(1)];
        let owners = self.owners;
        let read = |message: Vec<u8>| {
            let text = String::from_utf8(message).unwrap();
            let parts: Vec<_> = text.split(' ').collect();
            let [token, _, _, _, kind, _, value, key] = parts[..] else {
                panic!("{text:?}");
            };
            let is_own = |it: &OwnerToken| it.to_value() == value.as_bytes();
            let to = owners
                .iter()
                .position(is_own)
                .map_or(UNKNOWN, |it| it as u64);
            let lock = keys.iter().position(|it| it[0] == key).unwrap();
            let token = of_model(token.parse().unwrap()).into();
            (kind != "q").then_some((to, lock, token))
        };
        self.real.messages().into_iter().filter_map(read).collect()
    }

    fn compare(&mut self) -> Result<(), String> {
        for lock in 0..2 {
            let [key, counter, readers] = self.keys(lock);
            let expected = &self.server.locks[lock];
            let ends = |it: &F::Readers| {
                let end = |me| it.end_of(owner::<F>(me)).map(F::Number::into);
                (0..CLIENTS).map(end).collect::<Vec<Option<u64>>>()
            };
            let context = || format!("{lock} at {}: {:?}", self.time, self.server);
            let (holder, until) = match expected.key {
                Key::Free => (None, None),
                Key::Owned { owner, until } => (Some(owner.into()), Some(until.into())),
                Key::Shared => (
                    Some(SHARED),
                    ends(&expected.lasts).into_iter().max().flatten(),
                ),
            };
            let now = u64::from(self.time);
            let left = until.map(|it| i64::try_from(1_000 * (it - now) - 1).unwrap());
            let found = match self.real.text(&key).as_deref() {
                None => None,
                Some("quorlock:shared") => Some(SHARED),
                Some(value) => {
                    let is_own = |it: &OwnerToken| it.to_value() == value.as_bytes();
                    let place = self.owners.iter().position(is_own);
                    Some(place.map_or(UNKNOWN, |it| it as u64))
                }
            };
            same(&(found, self.real.left(&key)), &(holder, left), context)?;
            let found = u64::from(self.real.counter(&counter));
            same(&found, &expected.counter.into(), context)?;
            if expected.key == Key::Shared {
                let found = self.real.standing(&readers);
                let has = |it: &OwnerToken| found.contains(&it.to_value().to_vec());
                let stands: Vec<_> = self.owners.iter().map(has).collect();
                let expected: Vec<_> = ends(&expected.readers)
                    .iter()
                    .map(Option::is_some)
                    .collect();
                same(&stands, &expected, context)?;
            }
        }
        Ok(())
    }
}

/// In place of an owner.
const SHARED: u64 = 99;
const UNKNOWN: u64 = 98;

fn same<T: PartialEq + Debug>(
    found: &T,
    expected: &T,
    context: impl Fn() -> String,
) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let context = context();
    Err(format!(
        "found {found:?} and expected {expected:?}: {context}"
    ))
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Command {
    Acquire,
    Raise,
    Extend { sets: bool },
    Release,
    Keep,
    Yield,
}

fn owner<F: Form>(me: usize) -> F::Number {
    u8::try_from(me).unwrap().into()
}

/// In milliseconds.
fn real_life(life: u8) -> u64 {
    millis(life) - 1
}

/// With the model's counters, and without what no model looks at.
fn as_in_model(mut answer: Answer, is_permit: bool) -> Answer {
    if let Answer::Lock(reply) = &mut answer {
        reply.counter = reply.counter.map(|it| of_model(it).into());
    }
    as_stored(answer, is_permit)
}

fn as_stored(mut answer: Answer, is_permit: bool) -> Answer {
    if let Answer::Lock(reply) = &mut answer {
        reply.left = None;
        reply.holder = None;
        if is_permit && reply.status == LockStatus::Held {
            reply.counter = Some(0);
        }
    }
    answer
}

/// Random walks, the same in each run but for the secrets of owners, up to a difference.
fn differs<F: Form>(kind: Kind, mistake: Mistake) -> Option<String> {
    // Some mistakes show seldom.
    let walks = match mistake {
        Mistake::None if !long() => WALKS,
        _ => 20 * WALKS,
    };
    (0..walks).find_map(|seed| {
        let mut random = Rng::with_seed(seed);
        let mut beside = Beside::<F>::new(kind, mistake);
        let mut steps = (0..STEPS).map(|_| beside.step(&mut random));
        let difference = steps.find_map(Result::err)?;
        Some(format!("seed {seed}: {difference}"))
    })
}

fn compare<F: Form>(kind: Kind) {
    assert_eq!(differs::<F>(kind, Mistake::None), None);
}

const BOTH: Locks = ALL;
const MUTEX: Kind = Kind::Names([ALONE[0]; CLIENTS]);
const SEVERAL: Kind = Kind::Names([BOTH, ALONE[0], BOTH, ALONE[0]]);

#[test]
fn simulated_servers_match_the_scripts_of_a_mutex() {
    compare::<Small>(MUTEX);
    compare::<Large>(MUTEX);
}

#[test]
fn simulated_servers_match_the_scripts_of_readers() {
    compare::<Small>(Kind::Readers);
    compare::<Large>(Kind::Readers);
}

#[test]
fn simulated_servers_match_the_scripts_of_several_names() {
    let other = Kind::Names([BOTH, ALONE[1], BOTH, ALONE[0]]);
    for kind in [SEVERAL, other] {
        compare::<Small>(kind);
        compare::<Large>(kind);
    }
}

#[test]
fn simulated_servers_match_the_scripts_of_a_semaphore() {
    compare::<Small>(Kind::Permits);
    compare::<Large>(Kind::Permits);
}

/// The refusal of a semaphore is not compared: see there.
#[test]
fn each_mistake_of_a_simulated_server_differs_from_the_scripts() {
    type Differs = fn(Kind, Mistake) -> Option<String>;
    const SMALL: Differs = differs::<Small>;
    const LARGE: Differs = differs::<Large>;
    let found: [(Differs, Kind, &[Mistake]); 6] = [
        (
            SMALL,
            MUTEX,
            &[
                Mistake::AcceptsEqual,
                Mistake::AcceptsItsOwn,
                Mistake::TakesEqual,
                Mistake::RaisesForAnyone,
                Mistake::DeletesAnyKey,
                Mistake::ReleaseLiftsForAnyone,
                Mistake::ExtendsWithoutCounter,
                Mistake::SetsWithoutCounter,
                Mistake::TakesAnyCounter,
                Mistake::TakesCountersFrom(0),
                Mistake::OwnKeyKeepsLife,
            ],
        ),
        (
            SMALL,
            Kind::Readers,
            &[
                Mistake::RaisesWithoutEntry,
                Mistake::RaisesWithoutCounter,
                Mistake::DeletesSharedLock,
                Mistake::ExtendsOnlyBelow,
                Mistake::SetsWithoutCounter,
                Mistake::ReadersPromiseForWriters,
                Mistake::KeepsOldEntries,
                Mistake::LastsForTheFirst,
                Mistake::OwnKeyKeepsLife,
            ],
        ),
        (
            SMALL,
            SEVERAL,
            &[
                Mistake::RaisesWithOneMissing,
                Mistake::ReleasesSome,
                Mistake::CountsWithOneMissing,
                Mistake::TokenAboveTheFirst,
            ],
        ),
        (SMALL, Kind::Permits, &[Mistake::AnotherSlotsCounter]),
        (
            LARGE,
            MUTEX,
            &[
                Mistake::HandOverAcceptsEqual,
                Mistake::HandOverStoresNothing,
                Mistake::HandOverStoresAnyway,
                Mistake::FinderStoresNothing,
                Mistake::HandsOverBesideKey,
                Mistake::HandsNothingOn,
            ],
        ),
        (
            LARGE,
            Kind::Readers,
            &[Mistake::ReadersPassWriters, Mistake::OffersUnchecked],
        ),
    ];
    let mut missed = vec![];
    for (differs, kind, mistakes) in found {
        let misses = |it: &Mistake| differs(kind, *it).is_none();
        missed.extend(mistakes.iter().copied().filter(misses));
    }
    assert_eq!(missed, []);
}
