//! The worlds that are searched, and why these.
//!
//! Three nodes: fewer have no minority, and more only make the same overlaps in more ways. Of the attempts one is a writer's:
//! what two writers do to each other is searched in `fencing`. A second reader matters where readers share what a node has: the lock key, its life, and the set. One accident matters
//! wherever a majority is then one node short; two make that the other majority.
//!
//! Counters differ in three ways, because a reader's number is what a majority shows: all the same ([`EVEN`]), one ahead, all
//! different ([`RAGGED`]); and they can be missing ([`FRESH`]). A writer's proposal is between them or above them all.
//!
//! `QUORLOCK_LONG=1` adds a second accident or a second reader to the worlds that have one. `QUORLOCK_LONG=2` visits besides
//! what attempts that are over change for a while: see [`World::whole`].

use super::*;

const W: Rule = Rule::Exclusive;
const R: Rule = Rule::Shared;

const EVEN: [u8; NODES] = [5, 5, 5];
const ONE_AHEAD: [u8; NODES] = [5, 5, 9];
const RAGGED: [u8; NODES] = [5, 7, 9];
const FRESH: [u8; NODES] = [0, 0, 0];
const BETWEEN: u8 = 8;
const ABOVE: u8 = 11;

fn world<const A: usize>(rules: [Rule; A], counters: [u8; NODES]) -> World<A> {
    World {
        rules,
        proposals: [BETWEEN; A],
        counters,
        extensions: [0; A],
        losses: 0,
        hands: 0,
        crashes: 0,
        to_the_end: false,
        whole: longest(),
        flaw: Flaw::None,
    }
}

#[test]
fn i2_numbers_of_readers_lie_between_writers_tokens_despite_data_loss() {
    for counters in [EVEN, ONE_AHEAD, RAGGED, FRESH] {
        let proposals = if long() {
            &[BETWEEN, ABOVE][..]
        } else {
            &[BETWEEN]
        };
        for proposal in proposals {
            let losses = if long() { 2 } else { 1 };
            assert_eq!(
                World {
                    losses,
                    proposals: [*proposal, 1],
                    ..world([W, R], counters)
                }
                .found(),
                None
            );
        }
    }
    let worlds = [
        world([W, R, R], ONE_AHEAD),
        World {
            losses: 1,
            ..world([W, R, R], EVEN)
        },
    ];
    for world in worlds.iter().filter(|_| long()) {
        assert_eq!(world.found(), None);
    }
}

/// The reader holds the lock with 5, and its acquire has come everywhere.
fn held_by_a_reader(world: &World<2>, entries: [bool; NODES]) -> State<2> {
    let mut start = world.start();
    world.begin(&mut start, 1);
    for (at, has) in entries.into_iter().enumerate() {
        if has {
            let said = world.run(&mut start, 1, at, ACQUIRE);
            world.step(&mut start, 1, Event::Answer(ACQUIRE, at, said));
        }
        start.nodes[at].sent[1] = 0;
        start.nodes[at].counted[1] = has;
    }
    start
}

#[test]
fn i5_no_reader_is_extended_behind_a_newer_writer_despite_data_loss() {
    // The third extension counts what was set after the second has lifted the counters.
    let world = World {
        extensions: [0, if long() { 3 } else { 2 }],
        losses: 1,
        ..world([W, R], EVEN)
    };
    for entries in [[true, true, false], [true, true, true]] {
        assert_eq!(world.search(held_by_a_reader(&world, entries)), None);
        let world = World { losses: 2, ..world };
        assert_eq!(
            long()
                .then(|| world.search(held_by_a_reader(&world, entries)))
                .flatten(),
            None
        );
    }
}

#[test]
fn i5_a_readers_entry_set_after_a_newer_writer_is_detected() {
    for (flaw, extensions, violation) in [
        (
            Flaw::Server(Mistake::SetsWithoutCounter),
            2,
            Violation::WrongNumber,
        ),
        // What the second sets counts in the third.
        (Flaw::SetsUnconfirmed, 3, Violation::Resurrected),
    ] {
        let world = World {
            extensions: [0, extensions],
            losses: 1,
            flaw,
            ..world([W, R], EVEN)
        };
        assert_eq!(
            world.search(held_by_a_reader(&world, [true, true, false])),
            Some(violation),
            "{flaw:?}"
        );
    }
}

#[test]
fn i5_no_hand_over_confirms_a_reader_behind_a_newer_writer() {
    for (flaw, found) in [
        (Flaw::None, None),
        (Flaw::CountsWhatItIsHanded, Some(Violation::WrongNumber)),
    ] {
        let world = World {
            extensions: [0, 2],
            losses: 1,
            hands: 1,
            flaw,
            ..world([W, R], EVEN)
        };
        let start = held_by_a_reader(&world, [true, true, false]);
        assert_eq!(world.search(start), found);
    }
}

#[test]
fn h22_readers_cause_no_loss_of_another_reader() {
    let fresh = World {
        proposals: [8, 12],
        extensions: [1, 0],
        to_the_end: true,
        ..world([R, R], FRESH)
    };
    assert_eq!(fresh.found(), None);
    let both = World {
        extensions: [1, 1],
        ..fresh
    };
    let larger = [
        both,
        World {
            crashes: 1,
            ..fresh
        },
        World {
            counters: RAGGED,
            ..both
        },
    ];
    for world in larger.iter().filter(|_| long()) {
        assert_eq!(world.found(), None);
    }
}

#[test]
fn h22_a_node_that_refuses_entries_below_its_counter_is_detected() {
    let flaw = Flaw::Server(Mistake::ExtendsOnlyBelow);
    let world = World {
        proposals: [8, 12],
        extensions: [1, 0],
        to_the_end: true,
        flaw,
        ..world([R, R], FRESH)
    };
    assert_eq!(world.found(), Some(Violation::ThrownOut));
}

/// A writer, and two readers that hold the lock. One has its entries at the first and the last node; the last one was emptied
/// since. There the entry of the other was set again, and a raise of it comes that was under way for long.
fn late_raise(world: &World<3>) -> State<3> {
    let mut start = world.start();
    for (reader, nodes) in [(1, [0, 1]), (2, [0, 2])] {
        (
            start.attempts[reader].phase,
            start.attempts[reader].won,
            start.attempts[reader].token,
        ) = (Phase::Holding, true, 5);
        for at in nodes {
            start.nodes[at].counted[reader] = true;
        }
    }
    for (node, readers) in start.nodes.iter_mut().zip([&[1, 2][..], &[1], &[1]]) {
        for reader in readers {
            node.server.let_reader_in(0, *reader, 1, Mistake::None);
            node.order[usize::from(*reader)] = 1;
        }
    }
    let emptied = &mut start.nodes[2];
    (emptied.server.locks[0].counter, emptied.server.record) = (0, FLOOR);
    (emptied.forgot[2], emptied.sent[1]) = (1, RAISE);
    start
}

#[test]
fn h27_a_counter_created_by_a_raise_proves_no_memory() {
    for flaw in [Flaw::None, Flaw::Server(Mistake::RaisesWithoutCounter)] {
        let world = World {
            flaw,
            proposals: [30; 3],
            ..world([W, R, R], EVEN)
        };
        assert_eq!(world.search(late_raise(&world)), None);
    }
    // It would let the writer in where nothing keeps a node from voting that forgot.
    let world = World {
        flaw: Flaw::NoSilence,
        proposals: [30; 3],
        ..world([W, R, R], EVEN)
    };
    assert_eq!(
        world.search(late_raise(&world)),
        Some(Violation::BesideAWriter)
    );
}

#[test]
fn i1_a_writer_holds_the_lock_alone() {
    assert_eq!(world([W, R, R], EVEN).found(), None);
    for counters in [RAGGED, FRESH] {
        assert_eq!(
            World {
                extensions: [1, 1],
                ..world([W, R], counters)
            }
            .found(),
            None
        );
    }
    if long() {
        assert_eq!(
            World {
                extensions: [0, 1, 0],
                ..world([W, R, R], EVEN)
            }
            .found(),
            None
        );
    }
}

#[test]
fn i3_an_empty_restart_admits_no_holder_beside_a_writer() {
    let world = World {
        crashes: 1,
        ..world([W, R], EVEN)
    };
    assert_eq!(
        World {
            extensions: [0, 1],
            ..world
        }
        .found(),
        None
    );
    assert_eq!(
        World {
            counters: ONE_AHEAD,
            ..world
        }
        .found(),
        None
    );
    if long() {
        assert_eq!(
            World {
                counters: RAGGED,
                extensions: [1, 1],
                ..world
            }
            .found(),
            None
        );
    }
}

#[test]
fn no_end_of_an_attempt_leaves_a_key_or_an_entry_behind() {
    for rules in [[W, R], [R, R]] {
        let world = World {
            to_the_end: true,
            ..world(rules, EVEN)
        };
        assert_eq!(world.found(), None);
        for crashes in [0, 1].iter().filter(|_| long()) {
            assert_eq!(
                World {
                    counters: RAGGED,
                    crashes: *crashes,
                    extensions: [1, 0],
                    ..world
                }
                .found(),
                None
            );
        }
    }
}

#[test]
fn i2_a_readers_number_from_an_arbitrary_majority_is_detected() {
    let world = World {
        flaw: Flaw::LargestOfAnyMajority,
        ..world([W, R], RAGGED)
    };
    assert_eq!(world.found(), Some(Violation::WrongNumber));
}

#[test]
fn i2_a_counter_raised_without_the_readers_entry_is_detected() {
    let world = World {
        losses: 1,
        flaw: Flaw::Server(Mistake::RaisesWithoutEntry),
        ..world([W, R], RAGGED)
    };
    assert_eq!(world.found(), Some(Violation::WrongNumber));
}

#[test]
fn i5_entries_kept_when_the_lock_is_shared_again_are_detected() {
    for (flaw, found) in [
        (
            Flaw::Server(Mistake::KeepsOldEntries),
            Some(Violation::WrongNumber),
        ),
        (Flaw::None, None),
    ] {
        let world = World {
            losses: 1,
            flaw,
            ..world([W, R, R], RAGGED)
        };
        // A reader is about to raise the counters of two nodes. One of them has lost the lock key meanwhile, and not the set.
        let mut start = world.start();
        start.losses = 0;
        world.begin(&mut start, 1);
        for at in 1..NODES {
            let said = world.run(&mut start, 1, at, ACQUIRE);
            world.step(&mut start, 1, Event::Answer(ACQUIRE, at, said));
        }
        for node in &mut start.nodes {
            node.sent[1] = RAISE;
        }
        start.nodes[1].server.vanish(0);
        if flaw != Flaw::None || long() {
            assert_eq!(world.search(start), found);
        }
    }
}

#[test]
fn i1_a_release_that_frees_a_lock_with_readers_is_detected() {
    let world = World {
        flaw: Flaw::Server(Mistake::DeletesSharedLock),
        ..world([W, R, R], EVEN)
    };
    assert_eq!(world.found(), Some(Violation::BesideAWriter));
}

#[test]
fn i4_a_lock_with_the_ttl_of_its_first_reader_only_is_detected() {
    let world = World {
        flaw: Flaw::Server(Mistake::LastsForTheFirst),
        ..world([W, R, R], EVEN)
    };
    assert_eq!(world.found(), Some(Violation::BesideAWriter));
}

/// A writer had the lock at two nodes, and the third has missed it. One of the two has lost that, and has what it had before.
fn missed_by_two(world: &World<2>, token: u8) -> State<2> {
    let mut start = world.start();
    start.attempts[0] = Attempt {
        phase: Phase::Over,
        won: true,
        token,
        ..start.attempts[0]
    };
    for node in &mut start.nodes[..2] {
        node.server.locks[0].counter = token;
        (node.order[0], node.counted[0]) = (1, true);
    }
    let old = start.nodes[2].server.locks[0].counter;
    start.nodes[0].server.lose([old], FLOOR);
    (start.attempts[1].is_late, start.crashes) = (true, 0);
    start
}

#[test]
fn h17_a_reader_behind_restored_nodes_is_not_below_the_last_writer() {
    for (flaw, found) in [
        (Flaw::None, None),
        (
            Flaw::Server(Mistake::TakesCountersFrom(0)),
            Some(Violation::WrongNumber),
        ),
    ] {
        let world = World {
            flaw,
            crashes: 1,
            proposals: [BETWEEN, 1],
            ..world([W, R], EVEN)
        };
        assert_eq!(world.search(missed_by_two(&world, BETWEEN)), found);
        // And from the writer on.
        assert_eq!(world.found(), found);
    }
    // By a clock that is ahead both numbers are above the time when the quarantine began.
    for (flaw, found) in [
        (Flaw::None, None),
        (
            Flaw::Server(Mistake::TakesCountersFrom(SINCE)),
            Some(Violation::WrongNumber),
        ),
    ] {
        let world = World {
            flaw,
            crashes: 1,
            proposals: [1; 2],
            ..world([W, R], [SINCE + 1; NODES])
        };
        assert_eq!(world.search(missed_by_two(&world, SINCE + 2)), found);
    }
}

#[test]
fn i3_a_vote_without_quarantine_after_data_loss_is_detected() {
    let world = World {
        crashes: 1,
        flaw: Flaw::NoSilence,
        ..world([W, R], EVEN)
    };
    assert_eq!(world.found(), Some(Violation::BesideAWriter));
}

#[test]
fn i1_a_false_promise_is_detected() {
    // Of the writer: how often it may extend, and the nodes that may restart.
    for (flaw, crashes, violation) in [
        (Flaw::None, 0, None),
        (Flaw::None, 1, None),
        (Flaw::ExtendsAlone, 0, Some(Violation::BesideAWriter)),
        (Flaw::OutlastsKey, 0, Some(Violation::BesideAWriter)),
        (
            Flaw::Server(Mistake::ReadersPromiseForWriters),
            1,
            Some(Violation::WrongNumber),
        ),
        (Flaw::CountsSetAsKept, 1, Some(Violation::WrongNumber)),
    ] {
        let world = World {
            crashes,
            flaw,
            extensions: [1, 0],
            ..world([W, R], EVEN)
        };
        assert_eq!(world.found(), violation, "{flaw:?}");
    }
}

#[test]
fn no_extension_is_sent_behind_a_release() {
    for rules in [[W, R], [R, R]] {
        let world = World {
            to_the_end: true,
            flaw: Flaw::ExtendsBehindRelease,
            extensions: [1, 0],
            ..world(rules, EVEN)
        };
        assert_eq!(world.found(), Some(Violation::Orphan));
    }
}
