//! A server of this model beside the scripts of a mutex, and `greet.lua` as masters of clusters are sent it.
//!
//! Each acquire of a free lock is of a new name, because the model has no counters. The slot stays: what moves slots is no script. The
//! master's record is written with the slot's: of the two, the model takes the later one, and the engine the slot's.

use super::*;
use crate::answer::{AcquireReply, Answer, ExtendReply, GreetReply};
use crate::ids::OwnerToken;
use crate::tests::model::recorded::{ALONE, Real, draw, millis, number, of_model, walk};
use crate::wire::{Greeted, KeyTtls, Plan, QueueUpdate, slot_of};

const LOCK: &str = "a";
/// Of the master's own record.
const OWN: u16 = 1;
/// A key lives through its last millisecond.
const LIFE: u64 = 999;

struct Beside {
    world: World,
    model: State,
    real: Real,
    plan: Plan,
    owners: [OwnerToken; 2],
}

impl Beside {
    fn new() -> Beside {
        let world = World {
            known: false,
            flushes: true,
            ..WORLD
        };
        let (mut model, real) = (world.start(), Real::new(START));
        model.servers[OLD].owned = None;
        let plan = Plan::mutex(b"", LOCK.as_bytes(), KeyTtls::default());
        Beside {
            world,
            model,
            real,
            plan,
            owners: [draw(), draw()],
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let (me, before) = (random.usize(0..2), self.model);
        match random.u8(0..16) {
            0..=5 => self.greet(me),
            6..=8 if self.model.servers[OLD].key.is_none_or(|it| it.0 != me) => {
                self.owners[me] = draw();
                if self.model.servers[OLD].key.is_none() {
                    self.real.delete("quorlock:fence:{a}");
                }
                self.run(me, ACQUIRE);
            }
            9 | 10 => self.run(me, EXTEND),
            11 => self.run(me, RELEASE),
            12 => {
                let server = &mut self.model.servers[OLD];
                (server.key, server.record, server.owned) = (None, None, None);
                self.real.plain(&[b"FLUSHALL"]);
                // The next record begins later than the one that is lost.
                self.pass();
            }
            13 => self.model.clients[me].known[OLD] = Known::Nothing,
            _ => self.pass(),
        }
        let server = &self.model.servers[OLD];
        let is_record = |key: &[u8]| {
            key.starts_with(b"quorlock:record:") && slot_of(key) == slot_of(LOCK.as_bytes())
        };
        let record = self
            .real
            .contents()
            .into_iter()
            .find(|(key, _)| is_record(key))
            .map(|(_, text)| since_of(&text));
        let owner = self.real.owner(LOCK, &self.owners);
        let expected = (
            server.key.map(|it| it.0 as u8),
            server.record.map(|it| it.since),
        );
        assert_eq!((owner, record), expected, "behind {before:?}");
    }

    fn pass(&mut self) {
        self.model.now += 1;
        self.real.go_to(self.model.now);
        let server = &mut self.model.servers[OLD];
        server.key = server.key.filter(|it| self.model.now < it.1);
    }

    fn run(&mut self, me: usize, command: u8) {
        let (before, owner) = (self.model, self.owners[me]);
        // Above the end of any quarantine: the model has no counters.
        let token = number(self.model.now + SILENCE + 1);
        let sent = match command {
            ACQUIRE => self.plan.acquire(owner, LIFE, token, &ALONE),
            EXTEND => self.plan.extend(owner, LIFE, token, false),
            _ => self.plan.release(owner, None, QueueUpdate::None),
        };
        let refuses = self.world.refuses(&self.model, me, OLD, command);
        let expected = (!refuses).then(|| self.world.run(&mut self.model, me, OLD, command));
        let found = match self.real.send_in_cluster(me, &sent, OWN) {
            Answer::Acquire(AcquireReply::Accepted | AcquireReply::Behind { .. }) => Some(true),
            Answer::Extend(ExtendReply::Extended) | Answer::Release(_) => Some(true),
            Answer::Acquire(AcquireReply::Held { .. }) => Some(false),
            Answer::Extend(ExtendReply::Gone { .. } | ExtendReply::Taken) => Some(false),
            Answer::Changed => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected, "{:?} of {me} in {before:?}", sent.kind());
    }

    /// The next of a client's looks.
    fn greet(&mut self, me: usize) {
        let (slot, before) = (slot_of(LOCK.as_bytes()), self.model);
        let known = self.model.clients[me].known[OLD];
        self.world.greet(&mut self.model, me, OLD);
        match (known, self.model.clients[me].known[OLD]) {
            (Known::Nothing, Known::Since(since)) => {
                let from = self
                    .ask(me, Greeted::Slot(slot))
                    .from
                    .max(self.ask_master(me).from);
                assert_eq!(of_model(from), since, "{me} greets in {before:?}");
            }
            (Known::Nothing, Known::Greeted(written)) => {
                assert_eq!(
                    of_model(self.ask(me, Greeted::Slot(slot)).from),
                    written,
                    "{me} greets in {before:?}"
                );
                if self.model.servers[OLD].owned.is_none() {
                    self.greet(me);
                }
            }
            (Known::Greeted(_), Known::Looked { owned, .. }) => {
                assert_eq!(
                    of_model(self.ask_master(me).from),
                    owned,
                    "{me} greets in {before:?}"
                );
            }
            (Known::Looked { written, owned }, known) => {
                let confirm = Greeted::Confirm {
                    slot,
                    found: number(written),
                    since: number(owned),
                    origin: "new",
                };
                let from = of_model(self.ask(me, confirm).from);
                match known {
                    Known::Since(since) => {
                        assert_eq!(from.max(owned), since, "{me} settles in {before:?}")
                    }
                    // The script begins a record where the model leaves that to the next look.
                    _ => {
                        let record = Record {
                            since: self.model.now,
                            of: OLD,
                            edition: self.model.draw(),
                        };
                        self.model.servers[OLD].record = Some(record);
                        self.model.clients[me].editions[OLD] = record.edition;
                    }
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, me: usize, of: Greeted<'_>) -> GreetReply {
        self.real.greet_in_cluster(me, millis(SILENCE), of, OWN)
    }

    fn ask_master(&mut self, me: usize) -> GreetReply {
        self.ask(
            me,
            Greeted::Master {
                slot: OWN,
                epoch: 1,
                slots: "0-16383",
                vouch: false,
            },
        )
    }
}

/// The second field of a record.
fn since_of(record: &[u8]) -> u8 {
    of_model(
        std::str::from_utf8(record)
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap(),
    )
}

#[test]
fn servers_do_what_acquire_extend_release_and_greet_do() {
    walk(|_| Beside::new(), Beside::step);
}
