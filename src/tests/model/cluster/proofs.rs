//! The worlds that are visited, and what each flaw does in one of them.

use super::*;

const CUT: World = World {
    cause: Cause::Partition { until: None },
    ..WORLD
};
const FAILED: World = World {
    cause: Cause::Promotion { loses: true },
    ..WORLD
};
const MIGRATED: World = World {
    cause: Cause::Migration,
    ..WORLD
};
const TAKEN: World = World {
    cause: Cause::Taken,
    ..WORLD
};
const FLUSHED: World = World {
    flushes: true,
    known: false,
    ..WORLD
};

/// `QUORLOCK_LONG=1` adds extensions, and slots that were never used to the larger worlds.
#[track_caller]
fn check_safe(world: World) {
    let is_large = matches!(world.cause, Cause::Migration | Cause::Taken);
    for known in [true, false]
        .into_iter()
        .take(if is_large && !long() { 1 } else { 2 })
    {
        for extends in [false, true].into_iter().take(if long() { 2 } else { 1 }) {
            let world = World {
                known,
                extends,
                ..world
            };
            assert_eq!(world.found(), None, "{world:?}");
        }
    }
}

#[track_caller]
fn check_flaw(world: World, flaw: Flaw, violation: Violation) {
    assert_eq!(
        World { flaw, ..world }.found(),
        Some(violation),
        "{flaw:?} in {world:?}"
    );
}

#[test]
fn a_cluster_has_one_vote_while_a_slot_is_migrated_and_comes_back_and_no_key_is_left() {
    check_safe(MIGRATED);
}

#[test]
fn a_cluster_has_one_vote_when_a_replica_is_promoted_whatever_it_has_missed() {
    check_safe(FAILED);
    check_safe(World {
        cause: Cause::Promotion { loses: false },
        ..WORLD
    });
}

#[test]
fn a_cluster_has_one_vote_when_a_slot_is_taken_without_its_keys() {
    check_safe(TAKEN);
}

#[test]
fn a_cluster_has_one_vote_when_a_master_is_cut_off_with_a_client_for_ever() {
    check_safe(CUT);
}

#[test]
fn a_cluster_has_one_vote_when_its_keys_are_flushed() {
    check_safe(FLUSHED);
}

#[test]
fn an_owner_of_a_slot_that_votes_at_once_or_too_soon_makes_two_votes() {
    check_flaw(FAILED, Flaw::NoSilence, Violation::TwoVotes);
    check_flaw(TAKEN, Flaw::NoSilence, Violation::TwoVotes);
    check_flaw(TAKEN, Flaw::ShortSilence, Violation::TwoVotes);
}

/// What it says itself is worth something only where it is sure to hear soon that another has been promoted.
#[test]
fn a_master_that_is_believed_for_ever_or_on_its_own_word_makes_two_votes() {
    check_flaw(CUT, Flaw::NoBelief, Violation::TwoVotes);
    check_flaw(CUT, Flaw::OwnWord, Violation::TwoVotes);
    let hears = World {
        cause: Cause::Partition {
            until: Some(SPREAD),
        },
        flaw: Flaw::OwnWord,
        ..WORLD
    };
    assert_eq!(hears.found(), None);
}

#[test]
fn a_release_that_does_not_go_behind_the_acquire_or_is_sent_once_only_leaves_a_key() {
    check_flaw(MIGRATED, Flaw::NotBehindTheAcquire, Violation::Left);
    check_flaw(MIGRATED, Flaw::NotAgain, Violation::Left);
}

#[test]
fn a_slot_that_its_master_vouches_for_before_it_is_looked_at_or_whatever_became_of_it_makes_two_votes()
 {
    check_flaw(FLUSHED, Flaw::MasterFirst, Violation::TwoVotes);
    check_flaw(FLUSHED, Flaw::SettlesBlindly, Violation::TwoVotes);
}

#[test]
fn a_server_that_does_not_compare_the_record_of_a_slot_makes_two_votes() {
    check_flaw(
        World {
            known: true,
            ..FLUSHED
        },
        Flaw::NoComparison,
        Violation::TwoVotes,
    );
}
