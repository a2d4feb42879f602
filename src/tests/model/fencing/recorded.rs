//! The nodes of this model beside the scripts of a mutex.

use super::*;
use crate::ids::OwnerToken;
use crate::tests::model::recorded::{ALONE, BEGIN, LIFE, Real, draw, millis, number, of_model, token, walk};
use crate::wire::{self, KeyTtls, Plan, QueueUpdate};

const CLIENTS: usize = 3;

struct Beside {
    world: World<CLIENTS>,
    model: State<CLIENTS>,
    real: Real,
    plan: Plan,
    owners: [OwnerToken; CLIENTS],
}

impl Beside {
    fn new(guard: Guard) -> Beside {
        let world = World { guard, clocks: Clocks::Apart(0), ..World::new([0; CLIENTS], Keys::Vanish) };
        // Greeted a day ago: it has kept all data for long.
        let mut real = Real::at(BEGIN - 86_400_000_000);
        real.send(&wire::greet(millis(QUARANTINE), 0, 0));
        let model = world.start();
        real.go_to(model.clock);
        let plan = Plan::mutex(b"", b"a", KeyTtls::default());
        Beside { world, model, real, plan, owners: [(); CLIENTS].map(|()| draw()) }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let (me, offered) = (random.usize(0..CLIENTS), token(random, self.model.nodes[0].counter, 13));
        let Beside { world, model, real, plan, owners } = self;
        let owner = owners[me];
        let quarantine = if world.guard == Guard::Canary { millis(QUARANTINE) } else { 0 };
        let has_won = random.bool();
        let attempt = &mut model.attempts[me];
        (attempt.proposal, attempt.token) = (offered, offered);
        attempt.phase = if has_won { Phase::Over } else { Phase::Lost };
        let token = number(offered);
        let before = *model;
        match random.u8(0..20) {
            // In its place among the commands of a client, so before any heal.
            0..=4 if !(model.nodes[0].is_quarantined() && model.nodes[0].key == Some(me as u8)) => {
                let expected = world.acquire(model, me, 0);
                let found = said(real.send(&plan.acquire(owner, LIFE, token, quarantine, &ALONE)));
                // Somebody's key is in the way of a refusal that the model has no second word for.
                let is_held = expected == Said::Quarantined && before.nodes[0].key.is_some();
                let expected = if is_held { Said::Held(0) } else { expected };
                assert_eq!(found, expected, "acquire of {me} in {before:?}");
            }
            5 | 6 => {
                let expected = world.raise(model, me, 0);
                assert_eq!(said(real.send(&plan.raise(owner, token))), expected, "raise of {me} in {before:?}");
            }
            7..=9 => {
                let expected = world.extend(model, me, 0, 1);
                let doubtful =
                    model.nodes[0].is_quarantined() && world.is_quarantined(expected, model.nodes[0].counter);
                let expected = if doubtful { Said::Quarantined } else { expected };
                let found = real.send(&plan.extend(owner, LIFE, token, quarantine, random.bool()));
                assert_eq!(said(found), expected, "extension by {me} in {before:?}");
            }
            // A client heals where its key is gone.
            10..=12 if model.nodes[0].key != Some(me as u8) => {
                world.heal(model, me, 0, 1);
                let healed = model.nodes[0].key == Some(me as u8);
                let found = real.send(&plan.heal(owner, LIFE, token, quarantine));
                assert_eq!(found == Vote::Extend(ExtendReply::Healed), healed, "heal by {me} in {before:?}: {found:?}");
            }
            13..=15 => {
                world.release(model, me, 0);
                real.send(&plan.release(owner, has_won.then_some(token), QueueUpdate::None));
            }
            16 => {
                model.nodes[0].key = None;
                real.delete("a");
            }
            17 => {
                model.forget(0, false);
                real.delete("quorlock:fence:{a}");
            }
            18 if world.guard == Guard::Canary => {
                // Of attempts that are alive others than this node take care.
                model.attempts.iter_mut().for_each(|it| it.phase = Phase::Lost);
                model.forget(0, true);
                world.block(model, 0);
                real.restart(false);
                real.send(&wire::greet(millis(QUARANTINE), 0, 0));
            }
            _ => {
                if let Some(next) = world.end_quarantine(model, 0) {
                    *model = next;
                    real.go_to(next.clock);
                }
            }
        }
        let node = &self.model.nodes[0];
        let found = (self.real.owner("a", &self.owners), self.real.counter("quorlock:fence:{a}"));
        assert_eq!(found, (node.key, node.counter), "behind {before:?}");
    }
}

fn said(vote: Vote) -> Said {
    match vote {
        Vote::Acquire(AcquireReply::Accepted) => Said::Accepted,
        Vote::Acquire(AcquireReply::Behind { counter }) => Said::Behind(of_model(counter)),
        Vote::Acquire(AcquireReply::Held { counter, .. }) => Said::Held(of_model(counter)),
        Vote::Acquire(AcquireReply::Forgot { .. }) | Vote::Extend(ExtendReply::Forgot { .. }) => Said::Quarantined,
        Vote::Raise(RaiseReply::Taken) => Said::Taken,
        Vote::Raise(RaiseReply::Above { counter }) => Said::Above(of_model(counter)),
        Vote::Extend(ExtendReply::Extended) => Said::Extended,
        Vote::Extend(ExtendReply::Superseded) => Said::Superseded,
        Vote::Raise(RaiseReply::Gone) | Vote::Extend(ExtendReply::Gone { .. } | ExtendReply::Taken) => Said::Gone,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_do_what_acquire_raise_extend_and_release_do() {
    for guard in [Guard::None, Guard::Canary] {
        walk(|_| Beside::new(guard), Beside::step);
    }
}
