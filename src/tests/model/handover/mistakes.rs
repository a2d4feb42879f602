//! Each rule that is left out is found out.

use super::walks::STEPS;
use super::*;

/// What is left out, the lock that it harms, what that leads to, and the seed of a world that shows it.
const MISTAKES: &[(Flaw, Kind, Violation, u64)] = &[
    (Flaw::LeaseFromPush, Kind::Mutex, Violation::TwoHold, 116),
    (Flaw::LeaseOfFullTtl, Kind::Mutex, Violation::TwoHold, 82),
    (
        Flaw::PushBeforeAnswer,
        Kind::Mutex,
        Violation::OutOfOrder,
        7517,
    ),
    (Flaw::PushNotCompared, Kind::Mutex, Violation::TwoHold, 1564),
    (
        Flaw::PushOutlivesAsk,
        Kind::Mutex,
        Violation::TwoHold,
        24443,
    ),
    (Flaw::GrantOutlivesAsk, Kind::Mutex, Violation::TwoHold, 156),
    (
        Flaw::AnswersToEarlierAsks,
        Kind::Mutex,
        Violation::TwoHold,
        3773,
    ),
    (Flaw::MixesTokens, Kind::Mutex, Violation::OutOfOrder, 82204),
    (Flaw::MixesAnswers, Kind::Mutex, Violation::OutOfOrder, 2300),
    (
        Flaw::Server(Mistake::HandOverAcceptsEqual),
        Kind::Mutex,
        Violation::OutOfOrder,
        12392,
    ),
    (
        Flaw::Server(Mistake::HandOverStoresNothing),
        Kind::Mutex,
        Violation::TwoHold,
        19,
    ),
    (
        Flaw::Server(Mistake::HandOverStoresAnyway),
        Kind::Mutex,
        Violation::OutOfOrder,
        3,
    ),
    (
        Flaw::Server(Mistake::FinderStoresNothing),
        Kind::Mutex,
        Violation::OutOfOrder,
        3995,
    ),
    (Flaw::ReusesOwner, Kind::Mutex, Violation::TwoHold, 2655),
    (
        Flaw::CountsEarlierOwners,
        Kind::Mutex,
        Violation::TwoHold,
        792,
    ),
    (
        Flaw::Server(Mistake::DeletesAnyKey),
        Kind::Mutex,
        Violation::TwoHold,
        3,
    ),
    (
        Flaw::Server(Mistake::HandsOverBesideKey),
        Kind::Mutex,
        Violation::TwoHold,
        17,
    ),
    (
        Flaw::IgnoresQuarantine,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        1,
    ),
    (
        Flaw::JudgesQuarantineWhenRead,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        47,
    ),
    (
        Flaw::ForgetsEndSeenLate,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        2342,
    ),
    (
        Flaw::IgnoresRecordVersion,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        1899,
    ),
    (
        Flaw::Server(Mistake::OwnKeyKeepsLife),
        Kind::Mutex,
        Violation::TwoHold,
        11,
    ),
    (
        Flaw::FirstLifeAboveQuarantine,
        Kind::Mutex,
        Violation::TwoHold,
        18864,
    ),
    (Flaw::ExtendsAlone, Kind::Mutex, Violation::TwoHold, 6281),
    (
        Flaw::IgnoresSteps,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        1,
    ),
    (
        Flaw::PushShowsNoClock,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        1,
    ),
    (Flaw::LeaseFromPush, Kind::Readers, Violation::TwoHold, 124),
    (Flaw::MixesTokens, Kind::Readers, Violation::OutOfOrder, 346),
    (
        Flaw::Server(Mistake::OwnKeyKeepsLife),
        Kind::Readers,
        Violation::TwoHold,
        11,
    ),
    (
        Flaw::Server(Mistake::ReadersPassWriters),
        Kind::Readers,
        Violation::ReaderBeforeWriter,
        0,
    ),
    (
        Flaw::Server(Mistake::DeletesSharedLock),
        Kind::Readers,
        Violation::TwoHold,
        2,
    ),
    (
        Flaw::CountsReadersInAnyOrder,
        Kind::Readers,
        Violation::TwoHold,
        88887,
    ),
    (
        Flaw::ReadersNotCompared,
        Kind::Readers,
        Violation::TwoHold,
        816,
    ),
    (
        Flaw::PushShowsNoClock,
        Kind::Readers,
        Violation::CountedInQuarantine,
        21,
    ),
    (Flaw::HoldsWithOneName, Kind::Names, Violation::TwoHold, 13),
    (
        Flaw::Server(Mistake::HandsNothingOn),
        Kind::Names,
        Violation::Orphan,
        0,
    ),
    (Flaw::MixesPermits, Kind::Permits, Violation::TwoHold, 247),
    (
        Flaw::Server(Mistake::RefusalShowsNoCounter),
        Kind::Permits,
        Violation::OutOfOrder,
        30732,
    ),
    (
        Flaw::PushShowsNoClock,
        Kind::Permits,
        Violation::CountedInQuarantine,
        21,
    ),
    (
        Flaw::PromiseFromAnswer,
        Kind::Mutex,
        Violation::TwoHold,
        2588,
    ),
    (
        Flaw::PromiseFromAnswer,
        Kind::Readers,
        Violation::TwoHold,
        248,
    ),
    (
        Flaw::ExtendsInQuarantine,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        50,
    ),
    (
        Flaw::RevivedByAnswer,
        Kind::Mutex,
        Violation::OutOfOrder,
        1380,
    ),
    (
        Flaw::CountsSetAsKept,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        209,
    ),
    (
        Flaw::CountsSetAsKept,
        Kind::Readers,
        Violation::CountedInQuarantine,
        113,
    ),
    (
        Flaw::ExtendsBehindRelease,
        Kind::Mutex,
        Violation::Orphan,
        1,
    ),
    (
        Flaw::ExtendsBehindRelease,
        Kind::Readers,
        Violation::Orphan,
        0,
    ),
    (
        Flaw::RevivedByAnswer,
        Kind::Permits,
        Violation::OutOfOrder,
        10,
    ),
    (Flaw::ExtendsAlone, Kind::Names, Violation::TwoHold, 400),
];

#[test]
fn each_rule_that_is_left_out_is_found_out() {
    let mut missed = vec![];
    for (flaw, kind, violation, seed) in MISTAKES.iter().copied() {
        let found = World::new(seed, kind, flaw).walk(STEPS);
        if found != Some(violation) {
            missed.push((flaw, kind, found, search(flaw, kind, violation)));
        }
        let found = World::new(seed, kind, Flaw::None).walk(STEPS);
        assert_eq!(found, None, "seed {seed} of {kind:?} without {flaw:?}");
    }
    assert!(
        missed.is_empty(),
        "seeds and steps that find these: {missed:#?}"
    );
}

/// How far a search without a known seed has to go.
#[test]
fn each_rule_that_is_left_out_is_found_out_from_any_seed() {
    for (flaw, kind, violation, _) in MISTAKES.iter().copied().filter(|_| longest()) {
        let (seed, steps) = search(flaw, kind, violation);
        println!("{flaw:?} of {kind:?}: {violation:?} with seed {seed:?} after {steps} steps");
    }
}

/// The first seed whose world shows this, if one of many does, and the steps until then.
fn search(flaw: Flaw, kind: Kind, violation: Violation) -> (Option<u64>, u64) {
    let mut steps = 0;
    for seed in 0..200_000 {
        let mut world = World::new(seed, kind, flaw);
        let found = world.walk(STEPS);
        steps += world.counts.of(Event::Step);
        if found == Some(violation) {
            return (Some(seed), steps);
        }
    }
    (None, steps)
}

/// Keys that vanish let a second holder in. The order of tokens stays: no extension behind a newer writer is confirmed.
fn walk_where_keys_vanish(seed: u64, kind: Kind, flaw: Flaw) -> Option<Violation> {
    let mut world = World::new(seed, kind, flaw);
    world.vanishes = 10;
    world.walk(STEPS)
}

#[test]
fn no_extension_is_confirmed_behind_a_newer_writer_where_keys_vanish() {
    let worlds = if long() { 10_000 } else { 200 };
    for kind in [Kind::Mutex, Kind::Readers, Kind::Names, Kind::Permits] {
        for seed in 0..worlds {
            let found = walk_where_keys_vanish(seed, kind, Flaw::None);
            assert_eq!(found, None, "seed {seed} of {kind:?}");
        }
    }
}

#[test]
fn a_key_that_is_set_whatever_the_counter_is_found_out() {
    let flaw = Flaw::Server(Mistake::SetsWithoutCounter);
    let shows = |kind, seed| {
        let found = walk_where_keys_vanish(seed, kind, flaw);
        let right = walk_where_keys_vanish(seed, kind, Flaw::None);
        (found, right) == (Some(Violation::OutOfOrder), None)
    };
    let mut missed = vec![];
    for (kind, seed) in [
        (Kind::Mutex, 12756),
        (Kind::Readers, 2227),
        (Kind::Names, 2848),
        (Kind::Permits, 77),
    ] {
        if !shows(kind, seed) {
            missed.push((kind, (0..20_000).find(|it| shows(kind, *it))));
        }
    }
    assert!(missed.is_empty(), "seeds that find these: {missed:?}");
}
