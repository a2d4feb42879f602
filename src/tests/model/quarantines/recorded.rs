//! The nodes of this model beside `greet.lua`, and `acquire.lua` of a name without a counter.

use super::*;
use crate::answer::{AcquireReply, Answer};
use crate::tests::model::recorded::{ALONE, LIFE, Real, draw, walk};
use crate::wire::{self, KeyTtls, Plan, QueueUpdate};

/// The model's 0. One of its units is a millisecond.
const BEGIN: u64 = DAY * 86_400_000_000 + 60_000_000;

struct Beside {
    world: World,
    model: State,
    real: Real,
}

impl Beside {
    /// A client has kept the node in use since long ago: the model's beginning.
    fn new(random: &mut fastrand::Rng) -> Beside {
        let comeback = if random.bool() { Comeback::Empty } else { Comeback::WithAnOldCopy };
        let world = World { comeback, holder_returns: true, witness: true, ..WORLD };
        let mut model = world.start();
        let mut real = Real::at(BEGIN - 60_000_000);
        real.send(&wire::greet(LONG, 0, 0));
        real.go_to_micros(BEGIN);
        model.now = 0;
        Beside { world, model, real }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let before = self.model;
        match random.u8(0..10) {
            0..=4 => {
                let client = random.usize(0..3);
                let longest = self.world.longest(&self.model, client);
                let passed_on = longest.to_pass_on();
                self.model = self.world.greet(&self.model, 0, client);
                let found = self.real.send(&wire::greet(longest.own(), passed_on.millis, passed_on.day));
                let Answer::Greet(found) = found else { panic!("{found:?}") };
                let canary = self.model.nodes[0].canary.unwrap();
                assert_eq!(found.longest, canary.longest, "{client} greets in {before:?}");
                let served = u64::try_from(found.served.as_millis()).unwrap();
                let expected = canary.since.map_or(self.model.now + 60_000, |it| self.model.now - it);
                assert_eq!(served, expected, "{client} greets in {before:?}");
            }
            // It has been greeted before it is asked for anything.
            5..=7 if self.model.nodes[0].canary.is_some_and(|it| it.is_of_this_process) => {
                let length = random.u64(1..=LONG);
                let plan = Plan::mutex(b"", b"a", KeyTtls::default());
                let owner = draw();
                let found = self.real.send(&plan.acquire(owner, LIFE, self.real.now(), length, &ALONE));
                let is_silent = matches!(found, Answer::Acquire(AcquireReply::Forgot { .. }));
                let votes = self.model.nodes[0].canary.unwrap().is_old_enough(self.model.now, length);
                assert_eq!(is_silent, !votes, "{found:?} for {length} in {before:?}");
                self.real.send(&plan.release(owner, None, QueueUpdate::None));
                // The next name is as new.
                self.real.delete("quorlock:fence:{a}");
            }
            8 => {
                self.model.nodes[0] = self.world.restarted(&self.model, 0);
                self.real.restart(self.world.comeback == Comeback::WithAnOldCopy);
            }
            _ => {
                self.model.now += 1;
                self.real.go_to_micros(BEGIN + 1_000 * self.model.now);
            }
        }
    }
}

#[test]
fn nodes_do_what_greet_and_canary_do() {
    walk(Beside::new, Beside::step);
}
