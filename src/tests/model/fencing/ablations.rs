//! What the rules are good for: without each of them, the search must find what it prevents. The searches stop at the
//! first violation, which is one that takes the fewest moves.

use super::*;

const TIMED: World<2> = World::new([2, 1], Keys::Last);
const ASYNC: World<2> = World::new([2, 1], Keys::Vanish);
const RENEWED: World<2> = World {
    extensions: 1,
    sets: true,
    ..TIMED
};
const ONE_FORGOTTEN: Accidents = Accidents {
    forgets: 1,
    ..NO_ACCIDENTS
};

/// Searches `world` for its first violation.
fn find<const A: usize>(world: World<A>, expected: Violation) {
    let findings = world.search();
    assert_eq!(
        findings.violation,
        Some(expected),
        "{} states of {world:?}\n{}",
        findings.states,
        findings.course
    );
    println!(
        "{:?} {expected:?} in {} states:\n{}",
        world.flaw, findings.states, findings.course
    );
}

/// The same where only that is looked for.
fn find_only<const A: usize>(world: World<A>, expected: Violation) {
    let all = [FENCED, EXCLUSIVE, LEAVES_NOTHING];
    let claim = all.into_iter().flatten().find(|it| **it == expected);
    let claims = [claim.map_or(&[][..], std::slice::from_ref), &[], &[]];
    find(World { claims, ..world }, expected);
}

#[test]
fn a1_a_node_that_accepts_an_equal_proposal_is_detected() {
    let flaw = Flaw::Server(Mistake::AcceptsEqual);
    find(
        World {
            flaw,
            ..World::new([1, 1], Keys::Vanish)
        },
        Violation::SameToken,
    );
}

#[test]
fn a2_a_client_that_counts_refusals_is_detected() {
    find(
        World {
            flaw: Flaw::CountsRefusers,
            ..World::new([1, 1], Keys::Vanish)
        },
        Violation::SameToken,
    );
}

/// The first client has given up once, and its releases are still under way while it tries again.
#[test]
fn a5_a_late_release_does_no_harm_unless_a_value_is_used_again() {
    for flaw in [Flaw::ReusesValue, Flaw::Server(Mistake::DeletesAnyKey)] {
        let world = World {
            retry_of: [None, None, Some(0)],
            flaw,
            ..World::new([1, 1, 2], Keys::Last)
        };
        let mut start = world.start();
        start.enter(0, Phase::Lost, RELEASE, all());
        let mut findings = Findings::default();
        world.search_from(start, &mut findings);
        assert_eq!(findings.violation, Some(Violation::TwoHold), "{findings:?}");
    }
}

#[test]
fn a4_a7_a_counter_counted_as_an_acceptance_is_detected() {
    let left = Accidents {
        twice: 1,
        vanished: ANY,
        ..NO_ACCIDENTS
    };
    let world = World {
        flaw: Flaw::Server(Mistake::AcceptsItsOwn),
        left,
        ..World::new([1, 1], Keys::Vanish)
    };
    find(world, Violation::SameToken);
}

#[test]
fn a7_a_node_that_accepts_an_equal_token_is_detected() {
    find(
        World {
            flaw: Flaw::Server(Mistake::TakesEqual),
            ..World::new([1, 1], Keys::Vanish)
        },
        Violation::SameToken,
    );
}

/// The counterexample to the first proposal: no mishap but delay.
#[test]
fn p1_a_raise_without_a_check_of_the_owner_is_detected() {
    let world = World {
        counters: [1, 1, 3],
        flaw: Flaw::Server(Mistake::RaisesForAnyone),
        ..TIMED
    };
    find_only(world, Violation::LaterHoldSmallerToken);
}

#[test]
fn p5_a_raise_without_an_owner_check_is_detected_when_keys_vanish() {
    let world = World {
        flaw: Flaw::Server(Mistake::RaisesForAnyone),
        counters: [0, 0, 3],
        ..ASYNC
    };
    find_only(world, Violation::GrantsAgainstTokens);
}

#[test]
fn r1_d7_an_extension_without_a_counter_check_is_detected() {
    let world = World {
        extensions: 1,
        flaw: Flaw::Server(Mistake::ExtendsWithoutCounter),
        ..ASYNC
    };
    find_only(world, Violation::Resurrected);
    find_only(world, Violation::Revived);
}

/// A set key counts at once.
#[test]
fn r2_d8_a_key_set_without_a_counter_check_is_detected() {
    let world = World {
        extensions: 1,
        sets: true,
        flaw: Flaw::Server(Mistake::SetsWithoutCounter),
        ..ASYNC
    };
    find_only(world, Violation::Revived);
}

/// The counter may be that of a newer holder, who has come and gone there.
#[test]
fn d7_a_key_set_up_to_an_unconfirmed_number_is_detected() {
    find_only(
        World {
            extensions: 2,
            sets: true,
            flaw: Flaw::SetsUnconfirmed,
            left: Accidents {
                vanished: 1,
                ..NO_ACCIDENTS
            },
            ..ASYNC
        },
        Violation::Revived,
    );
}

#[test]
fn d9_an_extension_behind_the_release_is_detected() {
    let left = Accidents {
        lost: 1,
        ..NO_ACCIDENTS
    };
    let world = World {
        extensions: 1,
        sets: true,
        left,
        flaw: Flaw::ExtendsBehindRelease,
        ..World::new([1], Keys::Last)
    };
    find_only(world, Violation::Orphan);
}

#[test]
fn e4_a_release_that_overtakes_the_acquire_is_detected() {
    let world = World {
        lines: Lines::AnyOrder,
        ..World::new([1], Keys::Last)
    };
    find_only(world, Violation::Orphan);
}

#[test]
fn a3_half_of_the_nodes_counted_as_a_majority_is_detected() {
    let world = World {
        flaw: Flaw::HalfIsEnough,
        ..TIMED
    };
    find_only(world, Violation::TwoHold);
}

#[test]
fn a13_a_client_that_ignores_its_deadline_is_detected() {
    let world = World {
        slow: true,
        flaw: Flaw::IgnoresDeadline,
        ..TIMED
    };
    find_only(world, Violation::TwoHold);
}

#[test]
fn d4_a_client_that_counts_a_late_extension_is_detected() {
    let world = World {
        slow: true,
        extensions: 1,
        flaw: Flaw::LateExtensionRevives,
        ..TIMED
    };
    find_only(world, Violation::TwoHold);
}

#[test]
fn d1_d2_a_lease_on_promises_of_a_minority_is_detected() {
    let world = World {
        extensions: 1,
        flaw: Flaw::MinorityExtends,
        ..TIMED
    };
    find_only(world, Violation::TwoHold);
}

#[test]
fn l1_b6_without_quarantine_an_empty_restart_is_detected() {
    let world = World {
        clocks: Clocks::Good,
        left: ONE_CRASH,
        ..TIMED
    };
    find_only(world, Violation::TwoHold);
}

#[test]
fn l1_without_a_record_a_flush_is_detected() {
    let world = World {
        clocks: Clocks::Good,
        left: ONE_FLUSH,
        ..TIMED
    };
    find_only(world, Violation::TwoHold);
}

/// Quarantine keeps others out. The order of tokens is then a matter of clocks.
#[test]
fn l3_bad_clocks_are_detected_after_an_empty_restart() {
    let world = World {
        guard: Guard::Record,
        left: ONE_CRASH,
        ..TIMED
    };
    find_only(world, Violation::LaterStartSmallerToken);
}

const ON_TIME: World<2> = World {
    clocks: Clocks::Apart(1),
    left: ONE_CRASH,
    ..TIMED
};

#[test]
fn h1_node_clocks_apart_by_more_than_the_quarantine_are_detected() {
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::Apart(QUARANTINE + 2),
        ..ON_TIME
    };
    find_only(world, Violation::LaterStartSmallerToken);
}

/// A client with a clock that is far ahead takes the lock; one with a right clock comes after the loss.
#[test]
fn h1_accepted_proposals_far_ahead_of_node_clocks_are_detected() {
    for flaw in [Flaw::RefusesNoProposal, Flaw::RefusesAheadOfQuarantine] {
        let world = World {
            guard: Guard::Record,
            clocks: Clocks::OfClients {
                by: QUARANTINE + 2,
                nodes: AHEAD,
            },
            flaw,
            ..ON_TIME
        };
        find_only(world, Violation::LaterStartSmallerToken);
    }
}

/// The other half of the quarantine is needed for the nodes' clocks.
#[test]
fn h1_node_clocks_apart_by_more_than_half_the_quarantine_are_detected() {
    let by = QUARANTINE + 2;
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::OfClients {
            by,
            nodes: by - AHEAD,
        },
        ..ON_TIME
    };
    find_only(world, Violation::LaterStartSmallerToken);
}

#[test]
fn a_client_that_counts_refused_proposals_is_detected() {
    let world = World {
        clocks: Clocks::OfClients {
            by: AHEAD + 1,
            nodes: 0,
        },
        flaw: Flaw::CountsAhead,
        ..TIMED
    };
    find(world, Violation::TwoHold);
}

#[test]
fn h1_a_shortened_quarantine_is_detected() {
    let world = World {
        guard: Guard::Record,
        flaw: Flaw::QuarantinedForNoTime,
        ..ON_TIME
    };
    find_only(world, Violation::SameToken);
}

/// An attempt that began in the quarantine is counted after it.
#[test]
fn h1_h17_a_missing_or_old_counter_used_unchecked_is_detected() {
    let world = World {
        guard: Guard::Record,
        flaw: Flaw::Server(Mistake::TakesAnyCounter),
        ..ON_TIME
    };
    for left in [
        ONE_CRASH,
        Accidents {
            restores: 1,
            ..NO_ACCIDENTS
        },
    ] {
        find_only(World { left, ..world }, Violation::LaterStartSmallerToken);
    }
}

#[test]
fn h1_a_counter_ahead_of_all_clocks_breaks_order_after_a_restart() {
    let world = World {
        guard: Guard::Record,
        counters: [0, 0, 9],
        ..ON_TIME
    };
    find_only(world, Violation::LaterStartSmallerToken);
}

#[test]
fn h1_order_breaks_once_losses_leave_a_token_without_a_majority() {
    for (knows, crashes) in [(2, 1), (3, 2)] {
        let findings = after_a_hold(knows, crashes);
        assert_eq!(
            findings.violation,
            Some(Violation::LaterStartSmallerToken),
            "{findings:?}"
        );
    }
}

/// The holder's node is flushed, and the late release of an earlier one makes a counter there. That is no sign of memory.
#[test]
fn h1_a_late_release_with_a_raise_allows_no_second_hold() {
    for flaw in [Flaw::Server(Mistake::ReleaseLiftsForAnyone), Flaw::None] {
        let claims = [FENCED, EXCLUSIVE, &[][..]];
        let world = World {
            guard: Guard::Record,
            left: ONE_FLUSH,
            claims,
            flaw,
            ..World::new([1, 1, 1], Keys::Last)
        };
        let world = World {
            clocks: Clocks::Apart(0),
            ..world
        };
        let mut start = world.start();
        start.clock = 4;
        start.attempts[0] = Attempt {
            phase: Phase::Over,
            token: 1,
            raised: true,
            ..start.attempts[0]
        };
        start.attempts[1] = Attempt {
            phase: Phase::Holding,
            token: 3,
            ..start.attempts[1]
        };
        for node in &mut start.nodes[..2] {
            node.server = Server::new([3], (), 0);
            node.server.keep(0, 1, 0);
            node.lines[0].sent = RELEASE;
            node.lines[1].counted = true;
        }
        let mut findings = Findings::default();
        world.search_from(start, &mut findings);
        assert_eq!(
            findings.violation, None,
            "{} states, {flaw:?}: {}",
            findings.states, findings.course
        );
        // Without the record that would be found.
        let mut findings = Findings::default();
        World {
            guard: Guard::None,
            ..world
        }
        .search_from(start, &mut findings);
        assert_eq!(
            findings.violation,
            Some(Violation::TwoHold),
            "{} states, {flaw:?}",
            findings.states
        );
    }
}

#[test]
fn l5_l6_the_loss_of_a_counter_alone_is_detected() {
    let world = World {
        left: Accidents {
            vanished: ANY,
            ..ONE_FORGOTTEN
        },
        ..World::new([1, 1], Keys::Vanish)
    };
    find_only(world, Violation::SameToken);
    let world = World {
        clocks: Clocks::Good,
        left: ONE_FORGOTTEN,
        ..TIMED
    };
    find_only(world, Violation::LaterHoldSmallerToken);
}

/// A rival who was granted there before the restart and still waits for another node; a key of ours that the node has
/// set since, and that is extended there while it runs out elsewhere.
#[test]
fn r6_extensions_counted_in_quarantine_are_detected() {
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::Good,
        flaw: Flaw::CountsExtensionsInQuarantine,
        left: ONE_CRASH,
        ..RENEWED
    };
    find_only(world, Violation::TwoHold);
}

/// The same with a key that an extension has set there.
#[test]
fn r6_keys_set_in_quarantine_and_counted_are_detected() {
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::Good,
        flaw: Flaw::CountsSetKeysInQuarantine,
        left: ONE_FLUSH,
        ..RENEWED
    };
    find_only(world, Violation::TwoHold);
}

#[test]
fn h17_acquires_without_a_record_check_are_detected() {
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::Good,
        flaw: Flaw::AcquiresWithoutRecord,
        left: ONE_FLUSH,
        ..TIMED
    };
    find_only(world, Violation::TwoHold);
}

/// As with extensions that count in quarantine: the client does not know of any.
#[test]
fn h17_extensions_without_a_record_check_are_detected() {
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::Good,
        flaw: Flaw::ExtendsWithoutRecord,
        left: ONE_FLUSH,
        ..RENEWED
    };
    find_only(world, Violation::TwoHold);
}
