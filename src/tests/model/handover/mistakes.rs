//! Each rule that is left out is found out.

use super::walks::STEPS;
use super::*;

/// What is left out, the lock that it harms, what that leads to, and the seed of a world that shows it.
const MISTAKES: &[(Flaw, Kind, Violation, u64)] = &[
    (Flaw::LeaseFromPush, Kind::Mutex, Violation::TwoHold, 19),
    (Flaw::LeaseOfFullTtl, Kind::Mutex, Violation::TwoHold, 99),
    (
        Flaw::PushBeforeAnswer,
        Kind::Mutex,
        Violation::OutOfOrder,
        25261,
    ),
    (Flaw::PushNotCompared, Kind::Mutex, Violation::TwoHold, 1310),
    (Flaw::PushOutlivesAsk, Kind::Mutex, Violation::TwoHold, 4074),
    (Flaw::GrantOutlivesAsk, Kind::Mutex, Violation::TwoHold, 782),
    (
        Flaw::AnswersToEarlierAsks,
        Kind::Mutex,
        Violation::TwoHold,
        3773,
    ),
    (Flaw::MixesTokens, Kind::Mutex, Violation::OutOfOrder, 46406),
    (Flaw::MixesAnswers, Kind::Mutex, Violation::OutOfOrder, 1932),
    (
        Flaw::HandOverAcceptsEqual,
        Kind::Mutex,
        Violation::OutOfOrder,
        12090,
    ),
    (
        Flaw::HandOverStoresNothing,
        Kind::Mutex,
        Violation::TwoHold,
        11287,
    ),
    (
        Flaw::HandOverStoresAnyway,
        Kind::Mutex,
        Violation::OutOfOrder,
        110,
    ),
    (
        Flaw::FinderStoresNothing,
        Kind::Mutex,
        Violation::OutOfOrder,
        1651,
    ),
    (Flaw::ReusesOwner, Kind::Mutex, Violation::TwoHold, 1983),
    (
        Flaw::CountsEarlierOwners,
        Kind::Mutex,
        Violation::TwoHold,
        1497,
    ),
    (
        Flaw::ReleaseComparesNothing,
        Kind::Mutex,
        Violation::TwoHold,
        8,
    ),
    (
        Flaw::HandsOverBesideKey,
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
        108,
    ),
    (
        Flaw::ForgetsEndSeenLate,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        3648,
    ),
    (
        Flaw::IgnoresRecordVersion,
        Kind::Mutex,
        Violation::CountedInQuarantine,
        796,
    ),
    (Flaw::OwnKeyKeepsLife, Kind::Mutex, Violation::TwoHold, 19),
    (
        Flaw::FirstLifeAboveQuarantine,
        Kind::Mutex,
        Violation::TwoHold,
        3404,
    ),
    (Flaw::ExtendsAlone, Kind::Mutex, Violation::TwoHold, 15587),
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
    (Flaw::LeaseFromPush, Kind::Readers, Violation::TwoHold, 227),
    (Flaw::MixesTokens, Kind::Readers, Violation::OutOfOrder, 329),
    (
        Flaw::OwnKeyKeepsLife,
        Kind::Readers,
        Violation::TwoHold,
        303,
    ),
    (
        Flaw::ReadersPassWriters,
        Kind::Readers,
        Violation::ReaderBeforeWriter,
        0,
    ),
    (
        Flaw::HandsOverBesideReaders,
        Kind::Readers,
        Violation::TwoHold,
        2,
    ),
    (
        Flaw::CountsReadersInAnyOrder,
        Kind::Readers,
        Violation::TwoHold,
        155006,
    ),
    (
        Flaw::ReadersNotCompared,
        Kind::Readers,
        Violation::TwoHold,
        527,
    ),
    (
        Flaw::PushShowsNoClock,
        Kind::Readers,
        Violation::CountedInQuarantine,
        21,
    ),
    (Flaw::HoldsWithOneName, Kind::Names, Violation::TwoHold, 143),
    (Flaw::HandsNothingOn, Kind::Names, Violation::Orphan, 0),
    (Flaw::MixesPermits, Kind::Permits, Violation::TwoHold, 56),
    (
        Flaw::RefusalShowsNoCounter,
        Kind::Permits,
        Violation::OutOfOrder,
        3143,
    ),
    (
        Flaw::PushShowsNoClock,
        Kind::Permits,
        Violation::CountedInQuarantine,
        1,
    ),
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
