//! The nodes of this model beside `sync_record.lua`, and `acquire.lua` of clients that were synced.

use super::*;
use crate::answer::{AcquireReply, Answer};
use crate::tests::model::recorded::{ALONE, BEGIN, LIFE, Real, draw, walk};
use crate::wire::{KeyTtls, LockCommands, Offer, QueueUpdate};

struct Beside {
    world: World,
    model: State,
    real: Real,
}

impl Beside {
    /// The holder has kept the node in use since long ago, and the others have started just now: the model's beginning. One of
    /// its units is a millisecond.
    fn new(random: &mut fastrand::Rng) -> Beside {
        let comeback = if random.bool() {
            Comeback::Empty
        } else {
            Comeback::WithAnOldCopy
        };
        let world = World {
            comeback,
            witness: Some(SHORT),
            ..WORLD
        };
        let mut real = Real::at(BEGIN - 60_000_000);
        real.sync_record(HOLDER, LONG, 0);
        real.go_to_micros(BEGIN);
        Beside {
            world,
            model: world.start(),
            real,
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let client = random.usize(0..3);
        let before = self.model;
        match random.u8(0..10) {
            0..=3 => {
                let reported = self.world.reported(&self.model, client);
                self.model = self.world.sync_record(&self.model, 0, client);
                let found = self
                    .real
                    .sync_record(client, self.world.own(client), reported);
                let record = self.model.nodes[0].record.unwrap();
                assert_eq!(
                    found.max_ttl, record.max_ttl,
                    "{client} syncs in {before:?}"
                );
                let served = u64::try_from(found.served.as_millis()).unwrap();
                let expected = record
                    .since
                    .map_or(self.model.now + 60_000, |it| self.model.now - it);
                assert_eq!(served, expected, "{client} syncs in {before:?}");
            }
            4..=7 => {
                let commands = LockCommands::mutex(b"", b"a", KeyTtls::default());
                let owner = draw();
                let found = self.real.send(
                    client,
                    &commands.acquire(owner, LIFE, self.real.now(), &ALONE),
                );
                let is_granted = matches!(
                    found,
                    Answer::Acquire(AcquireReply::Accepted | AcquireReply::Behind { .. })
                );
                assert_eq!(
                    is_granted, before.nodes[0].current[client],
                    "{found:?} for {client} in {before:?}"
                );
                assert!(
                    is_granted || found == Answer::Changed,
                    "{found:?} for {client} in {before:?}"
                );
                self.real.send(
                    client,
                    &commands.release(owner, Offer::default(), QueueUpdate::None),
                );
            }
            8 => {
                self.model.nodes[0] = self.world.lost(&self.model, 0);
                // What it has shown is forgotten in some of the clients, which start anew.
                self.model.shown[client] = 0;
                // The connections break, and the login of the next ones syncs.
                self.real
                    .restart(self.world.comeback == Comeback::WithAnOldCopy);
                self.real.disconnect();
            }
            _ => {
                self.model.now += 1;
                self.real.go_to_micros(BEGIN + 1_000 * self.model.now);
            }
        }
    }
}

#[test]
fn nodes_do_what_sync_and_acquire_do() {
    walk(Beside::new, Beside::step);
}
