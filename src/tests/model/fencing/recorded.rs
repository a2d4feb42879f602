//! The nodes of this model beside the scripts of a mutex.

use super::*;
use crate::ids::OwnerToken;
use crate::tests::model::recorded::{
    ALONE, LIFE, Real, draw, millis, number, of_model, offer, token, walk,
};
use crate::wire::{KeyTtls, LockCommands, QueueUpdate};

const CLIENTS: usize = 3;

/// Syncs first wherever the record is gone. Never asks for anything.
const WITNESS: usize = CLIENTS;

struct Beside {
    world: World<CLIENTS>,
    model: State<CLIENTS>,
    real: Real,
    commands: LockCommands,
    owners: [OwnerToken; CLIENTS],
}

impl Beside {
    fn new() -> Beside {
        let world = World {
            guard: Guard::Record,
            clocks: Clocks::OfClients { by: 0, nodes: 0 },
            ..World::new([0; CLIENTS], Keys::Vanish)
        };
        let model = world.start();
        // Synced a day ago: it has kept all data for long.
        let mut real = Real::in_use(model.clock, millis(QUARANTINE));
        for client in 0..CLIENTS {
            real.sync_record(client, millis(QUARANTINE), 0);
        }
        let commands = LockCommands::mutex(b"", b"a", KeyTtls::default());
        Beside {
            world,
            model,
            real,
            commands,
            owners: [(); CLIENTS].map(|()| draw()),
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let me = random.usize(0..CLIENTS);
        let offered = token(random, self.model.nodes[0].counter, 13);
        let Node { counter, .. } = self.model.nodes[0];
        // One more than a counter is a microsecond there, and a second here.
        let is_ahead = self.model.clock + AHEAD < offered;
        let offered = offered - u8::from(is_ahead && offered == counter + 1);
        let has_won = random.bool();
        let attempt = &mut self.model.attempts[me];
        (attempt.proposal, attempt.token) = (offered, offered);
        let extension = |sets| Sent {
            number: offered,
            sets,
        };
        attempt.sent = [false, true, true].map(extension);
        attempt.phase = if has_won { Phase::Over } else { Phase::Lost };
        let before = self.model;
        let command = match random.u8(0..22) {
            0..=4 => ACQUIRE,
            5 | 6 => RAISE,
            7..=9 => EXTEND[0],
            10..=12 => EXTEND[1],
            13..=15 => RELEASE,
            other => {
                self.accident(other, random);
                return self.check(&before);
            }
        };
        let refuses = self.world.refuses(&self.model, me, 0, command);
        let expected = if refuses {
            None
        } else {
            Some(self.expect(me, command))
        };
        let found = self.send(me, command, offered, has_won);
        let context = || format!("{command} of {me} in {before:?}");
        match expected {
            None => {
                assert_eq!(found, Vote::Changed, "{}", context());
                self.real.sync_record(me, millis(QUARANTINE), 0);
                self.model.nodes[0].lines[me].synced = true;
            }
            Some(Some(expected)) => assert_eq!(said(found), expected, "{}", context()),
            Some(None) => {}
        }
        self.check(&before);
    }

    /// What the model's node says, where it has an answer.
    fn expect(&mut self, me: usize, command: u8) -> Option<Said> {
        let world = &self.world;
        let model = &mut self.model;
        match command {
            ACQUIRE => Some(world.acquire(model, me, 0)),
            RAISE => Some(world.raise(model, me, 0)),
            RELEASE => {
                world.release(model, me, 0);
                None
            }
            _ => Some(world.extend(model, me, 0, command)),
        }
    }

    fn send(&mut self, me: usize, command: u8, token: u8, has_won: bool) -> Vote {
        let commands = &self.commands;
        let owner = self.owners[me];
        let token = number(token);
        let sent = match command {
            ACQUIRE => commands.acquire(owner, LIFE, token, &ALONE),
            RAISE => commands.raise(owner, token),
            RELEASE => commands.release(owner, offer(has_won.then_some(token)), QueueUpdate::None),
            _ => commands.extend(owner, LIFE, token, command != EXTEND[0], None),
        };
        self.real.send(me, &sent)
    }

    fn accident(&mut self, which: u8, random: &mut fastrand::Rng) {
        let Beside {
            world, model, real, ..
        } = self;
        let counter = model.nodes[0].counter;
        match which {
            16 => {
                model.nodes[0].key = None;
                real.delete("a");
            }
            17 => {
                model.forget(0, false);
                real.delete("quorlock:fence:a");
            }
            18 | 19 => {
                // Of attempts that are alive others than this node take care.
                model
                    .attempts
                    .iter_mut()
                    .for_each(|it| it.phase = Phase::Lost);
                model.forget(0, true);
                let has_copy = which == 19 && 1 < counter;
                if has_copy {
                    // Another process, which has an older copy.
                    model.nodes[0].counter = random.u8(1..counter);
                    real.delete("a");
                    let older = number(model.nodes[0].counter).to_string();
                    real.plain(&[b"SET", b"quorlock:fence:a", older.as_bytes()]);
                }
                world.block(model, 0);
                real.restart(has_copy);
                real.sync_record(WITNESS, millis(QUARANTINE), 0);
            }
            _ => {
                if let Some(next) = world.end_quarantine(model, 0) {
                    *model = next;
                    real.go_to(next.clock);
                }
            }
        }
    }

    fn check(&mut self, before: &State<CLIENTS>) {
        let node = &self.model.nodes[0];
        let found = (
            self.real.owner("a", &self.owners),
            self.real.counter("quorlock:fence:a"),
        );
        assert_eq!(found, (node.key, node.counter), "behind {before:?}");
    }
}

fn said(vote: Vote) -> Said {
    match vote {
        Vote::Acquire(AcquireReply::Accepted) => Said::Accepted,
        Vote::Acquire(AcquireReply::Behind { counter }) => Said::Behind(of_model(counter)),
        Vote::Acquire(AcquireReply::Ahead { counter }) => Said::Ahead(of_model(counter)),
        Vote::Acquire(AcquireReply::Held { counter, .. }) => Said::Held(of_model(counter)),
        Vote::Raise(RaiseReply::Taken) => Said::Taken,
        Vote::Raise(RaiseReply::Above { counter }) => Said::Above(of_model(counter)),
        Vote::Extend(ExtendReply::Extended) => Said::Extended,
        Vote::Extend(ExtendReply::Healed) => Said::Set,
        Vote::Extend(ExtendReply::Superseded) => Said::Superseded,
        Vote::Extend(ExtendReply::Gone { counter }) => Said::Gone(of_model(counter)),
        Vote::Raise(RaiseReply::Gone) | Vote::Extend(ExtendReply::Taken) => Said::Gone(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_do_what_acquire_raise_extend_and_release_do() {
    walk(|_| Beside::new(), Beside::step);
}
