//! Each rule that is left out is found out.

use super::walks::STEPS;
use super::*;

/// What is left out, the lock that it harms, what that leads to, and the seed of a world that shows it.
const MISTAKES: &[(Flaw, Kind, Violation, u64)] = &[
    (Flaw::LeaseFromPush, Kind::Mutex, Violation::TwoHold, 147),
    (Flaw::LeaseOfFullTtl, Kind::Mutex, Violation::TwoHold, 22),
    (
        Flaw::PushBeforeAnswer,
        Kind::Mutex,
        Violation::OutOfOrder,
        9920,
    ),
    (Flaw::PushNotCompared, Kind::Mutex, Violation::TwoHold, 708),
    (
        Flaw::PushOutlivesAsk,
        Kind::Mutex,
        Violation::TwoHold,
        62629,
    ),
    (Flaw::GrantOutlivesAsk, Kind::Mutex, Violation::TwoHold, 11),
    (
        Flaw::AnswersToEarlierAsks,
        Kind::Mutex,
        Violation::TwoHold,
        2321,
    ),
    (Flaw::MixesTokens, Kind::Mutex, Violation::OutOfOrder, 476),
    (Flaw::MixesAnswers, Kind::Mutex, Violation::OutOfOrder, 3208),
    (
        Flaw::Server(Mistake::HandOverStoresNothing),
        Kind::Mutex,
        Violation::TwoHold,
        4648,
    ),
    (
        Flaw::Server(Mistake::HandOverStoresAnyway),
        Kind::Mutex,
        Violation::OutOfOrder,
        182,
    ),
    (
        Flaw::Server(Mistake::FinderStoresNothing),
        Kind::Mutex,
        Violation::OutOfOrder,
        19325,
    ),
    (Flaw::ReusesOwner, Kind::Mutex, Violation::TwoHold, 139747),
    (
        Flaw::CountsEarlierOwners,
        Kind::Mutex,
        Violation::TwoHold,
        7359,
    ),
    (
        Flaw::Server(Mistake::DeletesAnyKey),
        Kind::Mutex,
        Violation::TwoHold,
        1,
    ),
    (
        Flaw::Server(Mistake::HandsOverBesideKey),
        Kind::Mutex,
        Violation::TwoHold,
        1,
    ),
    (
        Flaw::IgnoresQuarantine,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        14,
    ),
    (
        Flaw::JudgesQuarantineWhenRead,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        148,
    ),
    (
        Flaw::ForgetsEndSeenLate,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        3435,
    ),
    (
        Flaw::IgnoresRecordVersion,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        5958,
    ),
    (
        Flaw::Server(Mistake::OwnKeyKeepsLife),
        Kind::Mutex,
        Violation::TwoHold,
        6,
    ),
    (
        Flaw::FirstLifeAboveQuarantine,
        Kind::Mutex,
        Violation::TwoHold,
        2916,
    ),
    (Flaw::ExtendsAlone, Kind::Mutex, Violation::TwoHold, 788),
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
    (Flaw::LeaseFromPush, Kind::Readers, Violation::TwoHold, 3872),
    (
        Flaw::MixesTokens,
        Kind::Readers,
        Violation::OutOfOrder,
        1154,
    ),
    (
        Flaw::Server(Mistake::OwnKeyKeepsLife),
        Kind::Readers,
        Violation::TwoHold,
        7,
    ),
    (
        Flaw::Server(Mistake::ReadersPassWriters),
        Kind::Readers,
        Violation::ReaderBeforeWriter,
        2,
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
        123387,
    ),
    (
        Flaw::ReadersNotCompared,
        Kind::Readers,
        Violation::TwoHold,
        8166,
    ),
    (
        Flaw::PushShowsNoClock,
        Kind::Readers,
        Violation::CountedInQuarantine,
        21,
    ),
    (Flaw::HoldsWithOneName, Kind::Names, Violation::TwoHold, 2),
    (
        Flaw::Server(Mistake::HandsNothingOn),
        Kind::Names,
        Violation::Orphan,
        1,
    ),
    (Flaw::MixesPermits, Kind::Permits, Violation::TwoHold, 61),
    (
        Flaw::PromiseFromAnswer,
        Kind::Mutex,
        Violation::TwoHold,
        565,
    ),
    (
        Flaw::PromiseFromAnswer,
        Kind::Readers,
        Violation::TwoHold,
        147,
    ),
    (
        Flaw::ExtendsInQuarantine,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        13,
    ),
    (
        Flaw::RevivedByAnswer,
        Kind::Mutex,
        Violation::OutOfOrder,
        546,
    ),
    (
        Flaw::CountsSetAsKept,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        37,
    ),
    (
        Flaw::CountsSetAsKept,
        Kind::Readers,
        Violation::CountedInQuarantine,
        174,
    ),
    (
        Flaw::ExtendsBehindRelease,
        Kind::Mutex,
        Violation::Orphan,
        0,
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
        204,
    ),
    (Flaw::ExtendsAlone, Kind::Names, Violation::TwoHold, 4133),
];

#[test]
fn each_omitted_rule_is_detected() {
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
fn each_omitted_rule_is_detected_from_any_seed() {
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
fn a_key_set_despite_a_larger_counter_is_detected() {
    let flaw = Flaw::Server(Mistake::SetsWithoutCounter);
    let shows = |kind, seed| {
        let found = walk_where_keys_vanish(seed, kind, flaw);
        let right = walk_where_keys_vanish(seed, kind, Flaw::None);
        (found, right) == (Some(Violation::OutOfOrder), None)
    };
    let mut missed = vec![];
    for (kind, seed) in [
        (Kind::Mutex, 5006),
        (Kind::Readers, 401),
        (Kind::Names, 3448),
        (Kind::Permits, 389),
    ] {
        if !shows(kind, seed) {
            missed.push((kind, (0..20_000).find(|it| shows(kind, *it))));
        }
    }
    assert!(missed.is_empty(), "seeds that find these: {missed:?}");
}
