//! The nodes of this model beside the scripts of a mutex and of readers.

use super::*;
use crate::ids::OwnerToken;
use crate::tests::model::recorded::{
    ALONE, LIFE, ONLY, Real, draw, millis, number, of_model, offer, token, walk,
};
use crate::wire::{KeyTtls, LockCommands, QueueUpdate};

const CLIENTS: usize = 4;
/// Of a node that has lost its data.
const QUARANTINE: u8 = FLOOR - SINCE;
/// The largest token, and the time at which commands are executed: none is refused for being ahead of it.
const LATEST: u8 = 24;
/// An extension that sets.
const SET: u8 = 64;
const LOCK: &str = "a";
const COUNTER: &str = "quorlock:fence:a";
const READERS: &str = "quorlock:readers:a";

struct Beside {
    world: World<CLIENTS>,
    model: State<CLIENTS>,
    real: Real,
    commands: LockCommands,
    owners: [OwnerToken; CLIENTS],
    /// Attempts that have sent anything.
    begun: [bool; CLIENTS],
}

impl Beside {
    fn new() -> Beside {
        let world = World {
            rules: [Rule::Exclusive, Rule::Shared, Rule::Shared, Rule::Exclusive],
            proposals: [0; CLIENTS],
            counters: [0; NODES],
            extensions: [1; CLIENTS],
            losses: 0,
            hands: 0,
            crashes: 0,
            to_the_end: true,
            whole: true,
            flaw: Flaw::None,
        };
        let real = Real::in_use(LATEST, millis(QUARANTINE));
        let commands = LockCommands::mutex(b"", LOCK.as_bytes(), KeyTtls::default());
        let model = world.start();
        let owners = [(); CLIENTS].map(|()| draw());
        Beside {
            world,
            model,
            real,
            commands,
            owners,
            begun: [false; CLIENTS],
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let me = random.usize(0..CLIENTS);
        let token = token(random, self.model.nodes[0].counter, LATEST);
        let before = self.model;
        match random.u8(0..22) {
            // The first command of an attempt, and once.
            0..=4 if !self.begun[me] => {
                self.world.proposals[me] = token;
                self.run(me, ACQUIRE, token);
            }
            5 | 6 => self.run(me, RAISE, token),
            7..=9 => self.run(me, EXTEND, token),
            10 | 11 => self.run(me, SET, token),
            12 | 13 => self.run(me, RELEASE, token),
            // Another attempt.
            14 | 15 if !self.model.nodes[0].has(me) && self.model.nodes[0].entries[me] == 0 => {
                self.begun[me] = false;
                self.owners[me] = draw();
            }
            16 if self.model.nodes[0].entries[me] != 0 => {
                // Its time is over, and it is still in the set.
                self.model.nodes[0].entries[me] = 0;
                let now = (self.real.now() / 1_000).to_string();
                let owner = self.owners[me].to_value();
                self.real
                    .plain(&[b"ZADD", READERS.as_bytes(), b"XX", now.as_bytes(), &owner]);
            }
            17 => {
                self.model.nodes[0].lock = Lock::Absent;
                self.real.delete(LOCK);
            }
            18 => {
                self.model.nodes[0].entries = [0; CLIENTS];
                self.real.delete(READERS);
            }
            // With nothing, or an older copy of the counter.
            19 | 20 if self.model.nodes[0].floor == 0 => {
                let node = &mut self.model.nodes[0];
                let older = if random.bool() {
                    0
                } else {
                    random.u8(0..=node.counter)
                };
                (node.lock, node.entries, node.counter, node.floor) =
                    (Lock::Absent, [0; CLIENTS], older, FLOOR);
                for key in [LOCK, READERS, COUNTER] {
                    self.real.delete(key);
                }
                if older != 0 {
                    self.real.plain(&[
                        b"SET",
                        COUNTER.as_bytes(),
                        number(older).to_string().as_bytes(),
                    ]);
                }
                self.real.go_to(SINCE);
                self.real.restart(older != 0);
                self.real.sync_record(ONLY, millis(QUARANTINE), 0);
                self.real.go_to(LATEST);
            }
            _ => {}
        }
        let node = &self.model.nodes[0];
        let lock = match self.real.text(LOCK).as_deref() {
            None => Lock::Absent,
            Some("quorlock:shared") => Lock::Shared,
            Some(_) => Lock::Writer(self.real.owner(LOCK, &self.owners).unwrap()),
        };
        assert_eq!(
            (lock, self.real.counter(COUNTER)),
            (node.lock, node.counter),
            "behind {before:?}"
        );
        if lock == Lock::Shared {
            let standing = self.real.standing(READERS);
            let stands =
                [0, 1, 2, 3].map(|it| standing.contains(&self.owners[it].to_value().to_vec()));
            assert_eq!(stands, node.entries.map(|it| it != 0), "behind {before:?}");
        }
    }

    fn run(&mut self, me: usize, command: u8, token: u8) {
        let before = self.model;
        self.begun[me] = true;
        let attempt = &mut self.model.attempts[me];
        (attempt.token, attempt.number, attempt.won) = (token, token, token.is_multiple_of(2));
        let owner = self.owners[me];
        let reads = self.world.rules[me] == Rule::Shared;
        let won = attempt.won;
        let commands = if reads {
            self.commands.to_read()
        } else {
            self.commands.clone()
        };
        attempt.sets = command == SET;
        let executed = if command == SET { EXTEND } else { command };
        let expected = self.world.execute(&mut self.model, me, 0, executed);
        let token = number(token);
        let sent = match command {
            ACQUIRE => commands.acquire(owner, LIFE, token, &ALONE),
            RAISE => commands.raise(owner, token),
            EXTEND | SET => commands.extend(owner, LIFE, token, command == SET, None),
            _ => commands.release(owner, offer(won.then_some(token)), QueueUpdate::None),
        };
        let found = self.real.send(ONLY, &sent);
        if command != RELEASE {
            let context = format!("{:?} of {me} in {before:?}", sent.kind);
            assert_eq!(said(found), expected, "{context}");
        }
    }
}

fn said(vote: Vote) -> Said {
    match vote {
        Vote::Acquire(AcquireReply::Accepted) => Said::Accepted,
        Vote::Acquire(AcquireReply::Behind { counter }) => Said::Behind(of_model(counter)),
        Vote::Acquire(AcquireReply::Shared { counter }) => Said::Shared(of_model(counter)),
        Vote::Acquire(
            AcquireReply::Held { counter, .. } | AcquireReply::HeldByReaders { counter, .. },
        ) => Said::Held(of_model(counter)),
        Vote::Raise(RaiseReply::Taken) => Said::Taken,
        Vote::Raise(RaiseReply::Above { counter }) => Said::Above(of_model(counter)),
        Vote::Extend(ExtendReply::Extended) => Said::Extended,
        Vote::Extend(ExtendReply::Healed) => Said::Healed,
        Vote::Extend(ExtendReply::Superseded) => Said::Superseded,
        Vote::Extend(ExtendReply::Lifted { counter }) => Said::Lifted(of_model(counter)),
        Vote::Extend(ExtendReply::Gone { counter }) => Said::Gone(of_model(counter)),
        Vote::Raise(RaiseReply::Gone) | Vote::Extend(ExtendReply::Taken) => Said::Gone(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_do_what_the_scripts_of_a_mutex_and_of_readers_do() {
    walk(|_| Beside::new(), Beside::step);
}
