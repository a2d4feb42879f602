//! What holds, in walks through many worlds.

use super::*;

/// Of each world.
pub(super) const STEPS: u64 = 3_000;

/// What happens with every kind of lock.
const ALWAYS: &[Event] = &[
    Event::HoldByAsk,
    Event::HoldByRaise,
    Event::HoldByClaim,
    Event::HandOver,
    Event::Yield,
    Event::Enter,
    Event::Leave,
    Event::Extension,
    Event::Set,
    Event::LeaseOver,
    Event::Restart,
    Event::Emptied,
    Event::LostCounter,
    Event::ClockStep,
    Event::Crash,
];

/// Walks through so many worlds, in which nothing goes wrong and each of these happens a hundred times.
fn hold(kind: Kind, happens: &[Event]) {
    let worlds = match () {
        () if longest() => 300_000,
        () if long() => 30_000,
        () => 1_500,
    };
    let mut counts = Counts::default();
    for seed in 0..worlds {
        let mut world = World::new(seed, kind, Flaw::None);
        if let Some(violation) = world.walk(STEPS) {
            show(seed, kind);
            panic!("{violation:?} with seed {seed} of {kind:?}");
        }
        counts.merge(&world.counts);
    }
    println!("{kind:?}: {:?}", counts.all());
    for event in ALWAYS.iter().chain(happens) {
        assert!(100 <= counts.of(*event), "{kind:?}: {event:?} is rare");
    }
}

/// Walks through a world once more, and prints what happens in it.
fn show(seed: u64, kind: Kind) {
    let mut world = World::new(seed, kind, Flaw::None);
    world.is_shown = true;
    world.walk(STEPS);
}

#[test]
fn a_lock_that_is_handed_over_has_one_holder_and_tokens_in_order() {
    hold(Kind::Mutex, &[Event::HoldByPush]);
}

#[test]
fn readers_that_are_handed_a_lock_hold_it_beside_no_writer() {
    hold(
        Kind::Readers,
        &[Event::HoldByPush, Event::ReaderByPush, Event::ReaderGroup],
    );
}

#[test]
fn names_that_are_handed_over_one_by_one_have_one_holder_each() {
    hold(
        Kind::Names,
        &[Event::HoldByPush, Event::NamePushed, Event::NameHandedOn],
    );
}

#[test]
fn permits_that_are_handed_over_have_one_holder_each() {
    hold(Kind::Permits, &[]);
}

#[test]
fn h1_a_reader_with_a_wrong_clock_moves_no_counter_ahead_by_a_hand_over() {
    let found = |flaw| {
        (0..300).find_map(|seed| {
            let mut world = World::new(seed, Kind::Readers, flaw);
            world.wrong_clocks = 20;
            world.walk(STEPS)
        })
    };
    assert_eq!(found(Flaw::None), None);
    assert_eq!(
        found(Flaw::Server(Mistake::OffersUnchecked)),
        Some(Violation::FarAhead)
    );
}
