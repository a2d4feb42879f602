//! The nodes of this model beside the scripts of several locks, and of a mutex for an attempt at one name.

use super::*;
use crate::ids::OwnerToken;
use crate::tests::model::recorded::{ALONE, LIFE, ONLY, Real, draw, number, of_model, token, walk};
use crate::wire::{KeyTtls, LockCommands, Offer, QueueUpdate};

const CLIENTS: usize = 3;
const LOCKS: [&str; NAMES] = ["a", "b"];
/// What the extension gives a key.
const LONGER: u64 = 2 * LIFE;
const COUNTERS: [&str; NAMES] = ["quorlock:fence:a", "quorlock:fence:b"];

struct Beside {
    world: World<CLIENTS>,
    node: Node<CLIENTS>,
    real: Real,
    all_commands: [LockCommands; CLIENTS],
    owners: [OwnerToken; CLIENTS],
    /// Attempts that have extended.
    has_extended: [bool; CLIENTS],
}

impl Beside {
    fn new(wants: [[bool; NAMES]; CLIENTS]) -> Beside {
        let world = World {
            wants,
            proposals: [0; CLIENTS],
            extensions: 1,
            flaw: Flaw::None,
        };
        let commands = |wants: [bool; NAMES]| {
            let names: Vec<_> = (0..NAMES)
                .filter(|it| wants[*it])
                .map(|it| LOCKS[it].as_bytes())
                .collect();
            match names[..] {
                [name] => LockCommands::mutex(b"", name, KeyTtls::default()),
                _ => LockCommands::multi(b"", names.into_iter(), KeyTtls::default()),
            }
        };
        let node = world.start([[0; NAMES]; NODES]).nodes[0];
        let owners = [(); CLIENTS].map(|()| draw());
        Beside {
            world,
            node,
            real: Real::in_use(1, LIFE),
            all_commands: wants.map(commands),
            owners,
            has_extended: [false; CLIENTS],
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let me = random.usize(0..CLIENTS);
        let before = self.node;
        let counter = before.counters[random.usize(0..NAMES)];
        let token = token(random, counter, 11);
        let command = match random.u8(0..14) {
            0..=3 => {
                if self
                    .world
                    .names(me)
                    .all(|it| !World::is_mine(&before, me, it))
                {
                    // Another attempt.
                    (self.owners[me], self.has_extended[me]) = (draw(), false);
                }
                // An attempt acquires before it extends.
                if self.has_extended[me] {
                    return;
                }
                ACQUIRE
            }
            4 | 5 => RAISE,
            6..=9 => EXTEND[0],
            10 | 11 => RELEASE,
            12 => {
                let name = random.usize(0..NAMES);
                self.node.keys[name] = None;
                return self.real.delete(LOCKS[name]);
            }
            _ => {
                let name = random.usize(0..NAMES);
                self.node.counters[name] = 0;
                return self.real.delete(COUNTERS[name]);
            }
        };
        let commands = &self.all_commands[me];
        let owner = self.owners[me];
        let number = number(token);
        let with = Sent {
            number: token,
            sets: random.bool(),
        };
        let sent = match command {
            ACQUIRE => commands.acquire(owner, LIFE, number, &ALONE),
            RAISE => commands.raise(owner, number),
            _ if command == EXTEND[0] => commands.extend(owner, LONGER, number, with.sets, None),
            // The model has no release that brings a token: see `fencing`.
            _ => commands.release(owner, Offer::default(), QueueUpdate::None),
        };
        self.has_extended[me] |= command == EXTEND[0];
        let expected = self.world.run(&mut self.node, me, command, with);
        let found = self.real.send(ONLY, &sent);
        if expected != Said::Nothing {
            assert_eq!(
                said(found),
                expected,
                "{:?} of {me} in {before:?}",
                sent.kind
            );
        }
        let found = LOCKS.map(|lock| {
            let life = u8::from(self.real.left(lock)? == LONGER as i64);
            Some(Key {
                owner: self.real.owner(lock, &self.owners)?,
                life,
            })
        });
        let counters = COUNTERS.map(|it| self.real.counter(it));
        let expected = (self.node.keys, self.node.counters);
        assert_eq!(
            (found, counters),
            expected,
            "{:?} of {me} behind {before:?}",
            sent.kind
        );
    }
}

fn said(vote: Vote) -> Said {
    match vote {
        Vote::Acquire(AcquireReply::Accepted) => Said::Accepted,
        Vote::Acquire(AcquireReply::Behind { counter }) => Said::Behind(of_model(counter)),
        Vote::Acquire(AcquireReply::Held { counter, .. }) => Said::Held(of_model(counter)),
        Vote::Raise(RaiseReply::Taken) => Said::Taken,
        Vote::Raise(RaiseReply::Above { counter }) => Said::Above(of_model(counter)),
        Vote::Extend(ExtendReply::Extended) => Said::Extended,
        Vote::Extend(ExtendReply::Healed) => Said::Set,
        Vote::Extend(ExtendReply::Superseded) => Said::Superseded,
        Vote::Extend(ExtendReply::Gone { counter }) => Said::Gone(of_model(counter)),
        Vote::Raise(RaiseReply::Gone) | Vote::Extend(ExtendReply::Taken) => Said::Foreign,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_do_what_the_scripts_of_several_locks_do() {
    walk(|_| Beside::new([BOTH, ONLY_A, ONLY_B]), Beside::step);
    walk(|_| Beside::new([BOTH, BOTH, ONLY_B]), Beside::step);
}
