//! The nodes of this model beside the scripts of a semaphore, and of a mutex for the raise of a slot.

use super::*;
use crate::ids::OwnerToken;
use crate::tests::model::recorded::{ALONE, LIFE, ONLY, Real, draw, number, of_model, token, walk};
use crate::wire::{KeyTtls, LockCommands, Offer, QueueUpdate};

const CLIENTS: usize = 3;
const KEYS: [&str; SLOTS] = ["quorlock:slot-0:s", "quorlock:slot-1:s"];
const COUNTERS: [&str; SLOTS] = ["quorlock:slot-fence-0:s", "quorlock:slot-fence-1:s"];

struct Beside {
    world: World<CLIENTS>,
    node: Node<CLIENTS>,
    real: Real,
    owners: [OwnerToken; CLIENTS],
}

impl Beside {
    fn new() -> Beside {
        let world = World {
            first: [0; CLIENTS],
            proposals: [0; CLIENTS],
            counters: [0; SLOTS],
            flaw: Flaw::None,
        };
        Beside {
            world,
            node: world.start().nodes[0],
            real: Real::in_use(1, LIFE),
            owners: [(); CLIENTS].map(|()| draw()),
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let me = random.usize(0..CLIENTS);
        let slot = random.u8(0..SLOTS as u8);
        let token = token(random, self.node.counters[usize::from(slot)], 11);
        let command = match random.u8(0..12) {
            0..=4 => ACQUIRE,
            5 | 6 => RAISE,
            7 => KEEP,
            8 | 9 => RELEASE,
            10 => {
                self.node.slots[usize::from(slot)] = None;
                return self.real.delete(KEYS[usize::from(slot)]);
            }
            _ => {
                self.node.counters[usize::from(slot)] = 0;
                return self.real.delete(COUNTERS[usize::from(slot)]);
            }
        };
        if command == ACQUIRE {
            // An attempt acquires once: the next one has another token, and begins where that says.
            if self.node.slots.contains(&Some(me as u8)) {
                return;
            }
            self.owners[me] = draw();
            self.world.first[me] = (self.owners[me].number() % SLOTS as u64) as u8;
            self.world.proposals[me] = token;
        }
        let before = self.node;
        let owner = self.owners[me];
        let number = number(token);
        let commands = LockCommands::semaphore(b"", b"s", SLOTS, KeyTtls::default());
        let sent = match command {
            ACQUIRE => commands.acquire(owner, LIFE, number, &ALONE),
            RAISE => commands.of_slot(slot).raise(owner, number),
            KEEP => commands.of_slot(slot).keep(owner, None).unwrap(),
            // The model has no release that brings a token: see `fencing`.
            _ => commands.release(owner, Offer::default(), QueueUpdate::None),
        };
        let attempt = Attempt {
            phase: Phase::Holding,
            slot,
            token,
        };
        let expected = self.world.run(&mut self.node, me, command, attempt);
        let found = self.real.send(ONLY, &sent);
        if expected != Said::Nothing {
            assert_eq!(
                said(found),
                expected,
                "{:?} of {me} in {before:?}",
                sent.kind
            );
        }
        let owners = KEYS.map(|it| self.real.owner(it, &self.owners));
        let counters = COUNTERS.map(|it| self.real.counter(it));
        assert_eq!(
            (owners, counters),
            (self.node.slots, self.node.counters),
            "{:?} of {me} behind {before:?}",
            sent.kind
        );
    }
}

fn said(vote: Vote) -> Said {
    match vote {
        Vote::Acquire(AcquireReply::Slot { slot, counter, .. }) => {
            Said::Slot(slot, counter.map(of_model))
        }
        Vote::Acquire(AcquireReply::Held { .. }) => Said::Held,
        Vote::Raise(RaiseReply::Taken) => Said::Taken,
        Vote::Raise(RaiseReply::Above { counter }) => Said::Above(of_model(counter)),
        Vote::Raise(RaiseReply::Gone) => Said::Gone,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_do_what_the_scripts_of_a_semaphore_do() {
    walk(|_| Beside::new(), Beside::step);
}
