//! The worlds that are searched, and what each flaw does in one of them. `--nocapture` shows how large they are.
#![allow(clippy::print_stdout, reason = "for who reads a test")]

use super::*;

/// Two can hold the lock in these cases alone, and if the other client was started just now: one that has known the nodes from
/// before brings the longer `max_ttl` along.
#[track_caller]
fn check(world: World, cases: &[Case]) {
    for is_idle in [false, true] {
        let world = World { is_idle, ..world };
        let findings = world.search();
        let cases = if is_idle { &[] } else { cases };
        let ways = findings.two_hold.iter().map(|it| format!("{it:?}\n"));
        assert_eq!(
            findings.cases(),
            cases,
            "{world:?}:\n{}",
            ways.collect::<String>()
        );
        // It is not safe because nothing happens.
        let Findings {
            got_it_late,
            states,
            ..
        } = findings;
        assert!(got_it_late && 100 < states, "{world:?}: {states} states");
        println!("{states} states of {world:?}");
    }
}

#[track_caller]
fn check_unsafe(world: World, case: Case) {
    let findings = world.search();
    assert!(
        findings.cases().contains(&case),
        "{world:?}: {:?}",
        findings.cases()
    );
}

/// One loses its data. The holder has its key on two nodes.
const ONE: World = World {
    losses: 1,
    held: [true, true, false],
    ..WORLD
};

const WITNESSES: [Option<u64>; 3] = [None, Some(SHORT), Some(LONG)];
/// The holder has its key on the first node, and the other client does not reach that one.
const NOT_THE_FIRST: [[bool; NODES]; 3] = [[true; NODES], [true; NODES], [false, true, true]];

#[test]
fn h15_data_loss_of_a_minority_is_safe_in_every_partition() {
    for witness in WITNESSES {
        for reached in [WORLD.reached, NOT_THE_FIRST] {
            check(
                World {
                    witness,
                    reached,
                    ..ONE
                },
                &[],
            );
        }
    }
    let flaw = Flaw::NotHeard;
    check_unsafe(World { flaw, ..ONE }, Case::Other);
    // Another has made the record, and the one of a third node comes in the middle of a round.
    let witness = Some(SHORT);
    let flaw = Flaw::NotLengthened;
    check_unsafe(
        World {
            witness,
            flaw,
            ..ONE
        },
        Case::Other,
    );
}

/// The claim of the guide.
#[test]
fn h15_two_holds_need_total_data_loss_and_a_shorter_max_ttl_first() {
    for held in [WORLD.held, ONE.held] {
        // The holder is cut off, and so are all others of its program; or another client of it comes.
        for witness in [None, Some(LONG)] {
            let world = World {
                held,
                witness,
                ..WORLD
            };
            check(world, &[Case::AllLost]);
            check(World { own: LONG, ..world }, &[]);
            check(
                World {
                    losses: MAJORITY,
                    ..world
                },
                &[],
            );
        }
        // The holder comes back, and knows better.
        let returns = World {
            held,
            holder_returns: true,
            ..WORLD
        };
        // A short witness makes for a million states.
        let is_tried = |it: &Option<u64>| *it != Some(SHORT) || held == WORLD.held;
        for witness in WITNESSES.into_iter().filter(is_tried) {
            check(World { witness, ..returns }, &[]);
        }
        for flaw in [Flaw::NotPassedOn, Flaw::NotRaised, Flaw::SameRecordVersion] {
            check_unsafe(World { flaw, ..returns }, Case::AllLost);
        }
        // It has to come back before a short quarantine is over.
        let own = COMES_BACK - 1;
        check_unsafe(World { own, ..returns }, Case::AllLost);
    }
    // Who comes first raises what others write after that.
    let first = World {
        witness: Some(LONG),
        reached: NOT_THE_FIRST,
        ..WORLD
    };
    check(first, &[]);
    for flaw in [Flaw::NotPassedOn, Flaw::NotRaised] {
        check_unsafe(World { flaw, ..first }, Case::MajorityLost);
    }
}

/// More faults at once: the holder and all of its program are cut off from a majority that has lost its data, or end.
#[test]
fn h15_after_majority_loss_a_shorter_max_ttl_counts_until_raised() {
    for held in [WORLD.held, ONE.held] {
        let world = World {
            held,
            losses: MAJORITY,
            reached: NOT_THE_FIRST,
            ..WORLD
        };
        check(world, &[Case::MajorityLost]);
        let witness = Some(LONG);
        check(World { witness, ..world }, &[]);
        // The one that is left shows it too late.
        let witness = Some(SHORT);
        let reached = WORLD.reached;
        check(
            World {
                witness,
                reached,
                ..world
            },
            &[Case::MajorityLost],
        );
    }
}

/// A program takes the lock whose `max_ttl` is longer than that of the servers, or of one of them.
#[test]
fn h15_a_longer_max_ttl_gets_no_vote_before_all_servers_have_it() {
    let two = [true, true, false];
    let comes = World {
        losses: 1,
        holder_comes: true,
        records: [SHORT; NODES],
        reached: [two, two, [false, true, true]],
        ..WORLD
    };
    let findings = comes.search();
    assert_eq!((findings.cases(), findings.got_it_late), (vec![], false));
    for flaw in [Flaw::NotRefused, Flaw::OwnRaises] {
        check_unsafe(World { flaw, ..comes }, Case::Other);
    }
    // Raised on two of three, and on all.
    let records = [LONG, LONG, SHORT];
    check_unsafe(World { records, ..comes }, Case::Other);
    let records = [LONG; NODES];
    check(World { records, ..comes }, &[]);
}

#[test]
fn h16_servers_that_return_with_old_data_are_quarantined() {
    for held in [WORLD.held, ONE.held] {
        let world = World {
            comeback: Comeback::WithAnOldCopy,
            held,
            ..WORLD
        };
        check(world, &[]);
        let flaw = Flaw::NoRunId;
        assert!(!World { flaw, ..world }.search().cases().is_empty());
    }
}

/// The holder has its key in data that are swapped for others, of which the record is old. Whoever has known the nodes from before
/// finds that out; a client that was started just now cannot, as the guide says.
#[test]
fn h17_swapped_data_grant_nothing_to_clients_with_an_earlier_record() {
    for held in [WORLD.held, ONE.held] {
        for losses in [1, MAJORITY, NODES] {
            let idle = World {
                comeback: Comeback::Swapped,
                is_idle: true,
                losses,
                held,
                ..WORLD
            };
            let findings = idle.search();
            assert_eq!(findings.cases(), [], "{idle:?}: {:?}", findings.two_hold);
            // A majority is without the holder's key.
            let is_free = held == ONE.held || MAJORITY <= losses;
            assert_eq!(findings.got_it_late, is_free, "{idle:?}");
            assert!(100 < findings.states, "{idle:?}");
            let two_hold = |world: World| !world.search().two_hold.is_empty();
            let flaw = Flaw::NoLineage;
            assert_eq!(two_hold(World { flaw, ..idle }), is_free, "{idle:?}");
            let is_idle = false;
            assert_eq!(two_hold(World { is_idle, ..idle }), is_free, "a new client");
        }
    }
}
