//! The worlds that are searched, and what each flaw does in one of them. `--nocapture` shows how large they are.
#![allow(clippy::print_stdout, reason = "for who reads a test")]

use super::super::long;
use super::*;

#[track_caller]
fn searched(world: World) -> Findings {
    let findings = world.search();
    let Findings {
        two_hold,
        held,
        refused,
        states,
        ..
    } = &findings;
    println!(
        "{states} states, two hold {}, held {held:?}, refused {refused:?}: {world:?}",
        two_hold.is_some()
    );
    findings
}

#[track_caller]
fn check_safe(world: World) {
    let Findings { two_hold, held, .. } = searched(world);
    assert!(two_hold.is_none(), "{world:?}:\n{}", two_hold.unwrap());
    // It is not safe because nothing happens.
    assert_eq!(held, [true; 2], "{world:?}");
}

#[track_caller]
fn check_unsafe(world: World) {
    assert!(searched(world).two_hold.is_some(), "{world:?}");
}

/// Whether each majority of the one shares a server with each of the other: tried, not computed.
fn go_together([ours, theirs]: [&str; 2]) -> bool {
    let bits = |set: &str| set.bytes().fold(0_u32, |bits, it| bits | 1 << (it - b'A'));
    let majorities = |set: u32| {
        (0..1_u32 << 8).filter(move |it| it & !set == 0 && set.count_ones() < 2 * it.count_ones())
    };
    majorities(bits(ours)).all(|one| majorities(bits(theirs)).all(|other| one & other != 0))
}

/// Of all pairs of sets one for each way in which they can differ: how many servers the first has, how many of these the second
/// has too, and how many others.
fn pairs() -> Vec<[&'static str; 2]> {
    let most = if long() { SERVERS } else { 4 };
    let mut pairs = vec![];
    for first in 1..=most {
        for common in 0..=first {
            for others in usize::from(common == 0)..=most - common {
                let letters = "ABCDEFG";
                if let Some(others) = letters.get(first..first + others) {
                    pairs.push([
                        &letters[..first],
                        String::leak(letters[..common].to_owned() + others),
                    ]);
                }
            }
        }
    }
    pairs
}

/// How many servers only the second has, and whether these are a majority of it.
fn needs_no_common_server([first, second]: [&str; 2]) -> bool {
    second.len() < 2 * second.chars().filter(|it| !first.contains(*it)).count()
}

/// Servers of the second set that are not in the first have an old record: no grant has to wait for them.
const OLD: World = World {
    spares: Spare::NoSets(AFTER),
    ..WORLD
};

#[test]
fn h26_two_hold_without_strict_if_and_only_if_two_majorities_share_no_server() {
    for sets in pairs() {
        let world = World {
            sets,
            counts: Counts::All,
            ..OLD
        };
        let Findings {
            two_hold,
            held,
            refused,
            ..
        } = searched(world);
        assert_eq!(
            two_hold.is_none(),
            go_together(sets),
            "{world:?}: {two_hold:?}"
        );
        assert!(
            !refused[0],
            "{world:?}: the one that was there is not refused"
        );
        if go_together(sets) {
            assert_eq!((held, refused), ([true; 2], [false; 2]), "{world:?}");
        }
    }
}

/// Only one whose majority lies outside of the set in use has nobody who could refuse it: a list of other servers altogether.
#[test]
fn h26_who_comes_later_with_strict_and_a_set_that_does_not_fit_gets_no_majority() {
    let check = |world: World| {
        let Findings {
            two_hold,
            held,
            refused,
            ..
        } = searched(world);
        assert_eq!(
            two_hold.is_some(),
            needs_no_common_server(world.sets),
            "{world:?}: {}",
            two_hold.unwrap_or_default()
        );
        assert!(
            !refused[0],
            "{world:?}: the one that was there is not refused"
        );
        // The second may: as long as it knows none but those that both have it is like the first.
        assert!(held[0], "{world:?}");
    };
    pairs()
        .into_iter()
        .for_each(|sets| check(World { sets, ..OLD }));
    let strict = World {
        sets: ["ABC", "ABD"],
        ends: [0, 1],
        ..OLD
    };
    check(strict);
    check(World {
        spares: Spare::New,
        ticks: QUARANTINE,
        ..strict
    });
}

/// A client that knows few of its servers cannot tell yet that its set does not fit.
#[test]
fn two_hold_if_grants_are_judged_only_when_they_come() {
    for counts in [Counts::NotRefused, Counts::Noted] {
        let world = World {
            sets: ["ABC", "ABD"],
            counts,
            ..OLD
        };
        check_unsafe(world);
        // With servers that nobody used before: they have been in the set for a quarantine, and a connection ends.
        check_unsafe(World {
            spares: Spare::New,
            ticks: QUARANTINE,
            ends: [0, 1],
            ..world
        });
    }
    check_unsafe(World {
        sets: ["ABC", "ABCDE"],
        counts: Counts::NotRefused,
        ..OLD
    });
}

/// A limit. Each has noted its set on servers on which the other has not.
#[test]
fn two_hold_whose_sets_do_not_fit_and_begin_at_once_on_servers_that_know_neither() {
    for counts in [Counts::NotRefused, Counts::Strict] {
        check_unsafe(World {
            sets: ["ABC", "ABD"],
            noted: Noted::None,
            spares: Spare::NoSets(LONG_AGO),
            counts,
            ..WORLD
        });
    }
}

#[test]
fn h26_sets_that_go_together_may_begin_at_once() {
    for sets in [["ABC", "ABC"], ["AB", "ABC"], ["AB", "AC"]] {
        check_safe(World {
            sets,
            noted: Noted::None,
            spares: Spare::NoSets(LONG_AGO),
            ..WORLD
        });
    }
}

/// C dies, and another server is behind its address.
const REPLACED: World = World {
    noted: Noted::OfBoth,
    ticks: QUARANTINE,
    ..WORLD
};

#[test]
fn h26_a_server_that_takes_a_place_counts_once_it_was_in_the_set_for_a_quarantine() {
    for spare in [Spare::New, Spare::Unused(BEFORE), Spare::Unused(AFTER)] {
        check_safe(World {
            replaced_by: Some(spare),
            ..REPLACED
        });
        if spare != Spare::New {
            check_unsafe(World {
                replaced_by: Some(spare),
                flaw: Flaw::NewInTheSetCounts,
                ..REPLACED
            });
        }
    }
    check_safe(World {
        replaced_by: Some(Spare::New),
        noted: Noted::OfTheFirst,
        ..REPLACED
    });
}

/// A client that has met the spare alone takes the old set in its record for its own, if that has as many servers: the spare has
/// long been in it. So it is looked at again when the others are known.
#[test]
fn h26_a_spare_of_another_set_of_this_size_does_not_count_though_it_is_met_first() {
    for spare in [Spare::Unused(BEFORE), Spare::Unused(AFTER)] {
        let world = World {
            replaced_by: Some(spare),
            noted: Noted::OfTheFirst,
            ..REPLACED
        };
        check_safe(world);
        check_unsafe(World {
            counts: Counts::NotRefused,
            ..world
        });
    }
}

/// A limit: a record without any set, which nobody writes, is that of a server that was there before all sets.
#[test]
fn two_hold_if_a_spare_with_an_old_record_and_no_sets_takes_a_place() {
    for since in [BEFORE, AFTER] {
        check_unsafe(World {
            replaced_by: Some(Spare::NoSets(since)),
            ..REPLACED
        });
    }
}

#[test]
fn h26_a_server_that_lost_its_locks_is_silent_for_programs_of_both_sets() {
    for loss in [Loss::All, Loss::Restart] {
        for sets in [["ABC", "ABC"], ["AB", "ABC"]] {
            let world = World {
                sets,
                noted: Noted::OfBoth,
                loss: Some(loss),
                ticks: QUARANTINE,
                ..WORLD
            };
            check_safe(world);
            check_unsafe(World {
                flaw: Flaw::NoQuarantine,
                ..world
            });
        }
    }
}

/// The other set still lists the server by its old id: whoever notes the new one does so in both.
#[test]
fn h26_nobody_is_refused_for_good_if_a_server_is_emptied_while_two_sets_are_in_use() {
    for loss in [Loss::All, Loss::Restart] {
        let world = World {
            sets: ["ABC", "ABCD"],
            noted: Noted::OfBoth,
            loss: Some(loss),
            ..WORLD
        };
        assert!(!searched(world).are_stuck, "{world:?}");
    }
}
