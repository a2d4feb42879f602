//! A server of this model beside the scripts of a mutex, and `greet.lua` as masters of clusters are sent it.
//!
//! Each acquire of a free lock is of a new name, because the model has no counters. The slot stays: what moves slots is no script. The
//! master's canary is written with the slot's: of the two, the model takes the later one, and the engine the slot's.

use super::*;
use crate::answer::{AcquireReply, Answer, ExtendReply, GreetReply};
use crate::ids::OwnerToken;
use crate::tests::model::recorded::{ALONE, Real, draw, millis, number, of_model, walk};
use crate::wire::{self, Greeting, KeyTtls, Plan, QueueUpdate, slot_of};

const LOCK: &str = "a";
/// Of the master's own canary.
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
        let world = World { known: false, flushes: true, ..WORLD };
        let (mut model, real) = (world.start(), Real::new(START));
        model.servers[OLD].owned = None;
        let plan = Plan::mutex(b"", LOCK.as_bytes(), KeyTtls::default());
        Beside { world, model, real, plan, owners: [draw(), draw()] }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let (me, before) = (random.usize(0..2), self.model);
        match random.u8(0..16) {
            0..=5 => self.greet(me),
            6..=8 if self.model.servers[OLD].key.is_none_or(|it| it.0 != me) => {
                self.owners[me] = draw();
                // A lock that is held keeps its counter: an extension that finds none asks for the quarantine.
                if self.model.servers[OLD].key.is_none() {
                    self.real.delete("quorlock:fence:{a}");
                }
                self.run(me, ACQUIRE);
            }
            9 | 10 => self.run(me, EXTEND),
            11 => self.run(me, RELEASE),
            12 => {
                let server = &mut self.model.servers[OLD];
                (server.key, server.canary, server.owned) = (None, None, None);
                self.real.plain(&[b"FLUSHALL"]);
            }
            13 => self.model.clients[me].known[OLD] = Known::Nothing,
            _ => {
                self.model.now += 1;
                self.real.go_to(self.model.now);
                let server = &mut self.model.servers[OLD];
                server.key = server.key.filter(|it| self.model.now < it.1);
            }
        }
        let server = &self.model.servers[OLD];
        let is_canary = |key: &[u8]| key.starts_with(b"quorlock:canary:") && slot_of(key) == slot_of(LOCK.as_bytes());
        let canary = self.real.contents().into_iter().find(|(key, _)| is_canary(key)).map(|(_, text)| since_of(&text));
        let owner = self.real.owner(LOCK, &self.owners);
        let expected = (server.key.map(|it| it.0 as u8), server.canary.map(|it| it.0));
        assert_eq!((owner, canary), expected, "behind {before:?}");
    }

    fn run(&mut self, me: usize, command: u8) {
        let (before, owner, length) = (self.model, self.owners[me], millis(SILENCE));
        let token = number(self.model.now);
        let sent = match command {
            ACQUIRE => self.plan.acquire(owner, LIFE, token, length, &ALONE),
            EXTEND => self.plan.extend(owner, LIFE, token, length, false),
            _ => self.plan.release(owner, None, QueueUpdate::None),
        };
        let expected = self.world.run(&mut self.model, me, OLD, command);
        let found = match self.real.send_in_cluster(&sent, OWN) {
            Answer::Acquire(AcquireReply::Accepted | AcquireReply::Behind { .. }) => true,
            Answer::Extend(ExtendReply::Extended) | Answer::Release(_) => true,
            Answer::Acquire(AcquireReply::Held { .. } | AcquireReply::Forgot { .. }) => false,
            Answer::Extend(ExtendReply::Gone { .. } | ExtendReply::Taken) => false,
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
                let from = self.ask(&Greeting::Slot(slot)).from.max(self.ask_master().from);
                assert_eq!(of_model(from), since, "{me} greets in {before:?}");
            }
            (Known::Nothing, Known::Greeted(written)) => {
                assert_eq!(of_model(self.ask(&Greeting::Slot(slot)).from), written, "{me} greets in {before:?}");
                if self.model.servers[OLD].owned.is_none() {
                    self.greet(me);
                }
            }
            (Known::Greeted(_), Known::Looked { owned, .. }) => {
                assert_eq!(of_model(self.ask_master().from), owned, "{me} greets in {before:?}");
            }
            (Known::Looked { written, owned }, known) => {
                let settle = Greeting::Settle { slot, found: number(written), since: number(owned), origin: "new" };
                let from = of_model(self.ask(&settle).from);
                match known {
                    Known::Since(since) => assert_eq!(from.max(owned), since, "{me} settles in {before:?}"),
                    // The script begins a canary where the model leaves that to the next look.
                    _ => self.model.servers[OLD].canary = Some((self.model.now, OLD)),
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, greeting: &Greeting<'_>) -> GreetReply {
        match self.real.send_in_cluster(&wire::greet_in_cluster(millis(SILENCE), 0, 0, greeting), OWN) {
            Answer::Greet(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn ask_master(&mut self) -> GreetReply {
        self.ask(&Greeting::Master { slot: OWN, epoch: 1, slots: "0-16383", vouch: false })
    }
}

/// The second field of a canary.
fn since_of(canary: &[u8]) -> u8 {
    of_model(std::str::from_utf8(canary).unwrap().split(' ').nth(1).unwrap().parse().unwrap())
}

#[test]
fn servers_do_what_acquire_extend_release_and_greet_do() {
    walk(|_| Beside::new(), Beside::step);
}
