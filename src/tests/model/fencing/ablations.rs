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
const ONE_CRASH: Accidents = Accidents {
    crashes: 1,
    ..NO_ACCIDENTS
};
const ONE_FLUSH: Accidents = Accidents {
    flushes: 1,
    ..NO_ACCIDENTS
};
const ONE_FORGOTTEN: Accidents = Accidents {
    forgets: 1,
    ..NO_ACCIDENTS
};

/// Only this is looked for.
const fn only(violation: &'static [Violation]) -> [&'static [Violation]; 3] {
    [violation, &[], &[]]
}

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

#[test]
fn a1_a_node_that_accepts_an_equal_proposal_is_found_out() {
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
fn a2_a_client_that_counts_refusers_is_found_out() {
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
        start.enter(0, Phase::Lost, RELEASE);
        let mut findings = Findings::default();
        world.search_from(start, &mut findings);
        assert_eq!(findings.violation, Some(Violation::TwoHold), "{findings:?}");
    }
}

#[test]
fn a4_a7_a_node_that_takes_its_own_counter_for_an_acceptance_is_found_out() {
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
fn a7_a_node_that_takes_an_equal_token_is_found_out() {
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
fn p1_a_node_that_raises_for_anyone_is_found_out() {
    let world = World {
        counters: [1, 1, 3],
        flaw: Flaw::Server(Mistake::RaisesForAnyone),
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::LaterHoldSmallerToken]),
            ..world
        },
        Violation::LaterHoldSmallerToken,
    );
}

#[test]
fn p5_a_node_that_raises_for_anyone_is_found_out_where_keys_vanish() {
    let world = World {
        flaw: Flaw::Server(Mistake::RaisesForAnyone),
        counters: [0, 0, 3],
        ..ASYNC
    };
    find(
        World {
            claims: only(&[Violation::GrantsAgainstTokens]),
            ..world
        },
        Violation::GrantsAgainstTokens,
    );
}

#[test]
fn r1_d7_an_extension_without_a_look_at_the_counter_is_found_out() {
    let world = World {
        extensions: 1,
        flaw: Flaw::Server(Mistake::ExtendsWithoutCounter),
        ..ASYNC
    };
    find(
        World {
            claims: only(&[Violation::Resurrected]),
            ..world
        },
        Violation::Resurrected,
    );
    find(
        World {
            claims: only(&[Violation::Revived]),
            ..world
        },
        Violation::Revived,
    );
}

/// A set key counts at once.
#[test]
fn r2_d8_a_key_that_is_set_without_a_look_at_the_counter_is_found_out() {
    let world = World {
        extensions: 1,
        sets: true,
        flaw: Flaw::Server(Mistake::SetsWithoutCounter),
        ..ASYNC
    };
    find(
        World {
            claims: only(&[Violation::Revived]),
            ..world
        },
        Violation::Revived,
    );
}

/// The counter may be that of a newer holder, who has come and gone there.
#[test]
fn d7_a_key_that_is_set_up_to_a_number_that_no_majority_has_confirmed_is_found_out() {
    find(
        World {
            extensions: 2,
            sets: true,
            flaw: Flaw::SetsUnconfirmed,
            left: Accidents {
                vanished: 1,
                ..NO_ACCIDENTS
            },
            claims: only(&[Violation::Revived]),
            ..ASYNC
        },
        Violation::Revived,
    );
}

#[test]
fn d9_an_extension_behind_the_release_is_found_out() {
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
    find(
        World {
            claims: only(&[Violation::Orphan]),
            ..world
        },
        Violation::Orphan,
    );
}

#[test]
fn e4_a_release_that_overtakes_the_acquire_is_found_out() {
    let world = World {
        lines: Lines::AnyOrder,
        ..World::new([1], Keys::Last)
    };
    find(
        World {
            claims: only(&[Violation::Orphan]),
            ..world
        },
        Violation::Orphan,
    );
}

#[test]
fn a3_a_client_that_takes_half_of_the_nodes_for_a_majority_is_found_out() {
    let world = World {
        flaw: Flaw::HalfIsEnough,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::TwoHold]),
            ..world
        },
        Violation::TwoHold,
    );
}

#[test]
fn a13_a_client_that_ignores_its_deadline_is_found_out() {
    let world = World {
        slow: true,
        flaw: Flaw::IgnoresDeadline,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::TwoHold]),
            ..world
        },
        Violation::TwoHold,
    );
}

#[test]
fn d4_a_client_that_believes_in_a_late_extension_is_found_out() {
    let world = World {
        slow: true,
        extensions: 1,
        flaw: Flaw::LateExtensionRevives,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::TwoHold]),
            ..world
        },
        Violation::TwoHold,
    );
}

#[test]
fn d1_d2_a_client_that_counts_on_the_promises_of_a_minority_is_found_out() {
    let world = World {
        extensions: 1,
        flaw: Flaw::MinorityExtends,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::TwoHold]),
            ..world
        },
        Violation::TwoHold,
    );
}

#[test]
fn l1_b6_without_quarantine_a_restart_with_nothing_is_found_out() {
    let world = World {
        clocks: Clocks::Good,
        left: ONE_CRASH,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::TwoHold]),
            ..world
        },
        Violation::TwoHold,
    );
}

#[test]
fn l1_without_a_record_a_flush_is_found_out() {
    let world = World {
        clocks: Clocks::Good,
        left: ONE_FLUSH,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::TwoHold]),
            ..world
        },
        Violation::TwoHold,
    );
}

/// Quarantine keeps others out. The order of tokens is then a matter of clocks.
#[test]
fn l3_bad_clocks_are_found_out_after_a_restart_with_nothing() {
    let world = World {
        guard: Guard::Record,
        left: ONE_CRASH,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::LaterStartSmallerToken]),
            ..world
        },
        Violation::LaterStartSmallerToken,
    );
}

const ON_TIME: World<2> = World {
    clocks: Clocks::Apart(1),
    left: ONE_CRASH,
    ..TIMED
};

#[test]
fn h1_clocks_of_nodes_that_are_apart_by_more_than_the_silence_are_found_out() {
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::Apart(QUARANTINE + 2),
        ..ON_TIME
    };
    find(
        World {
            claims: only(&[Violation::LaterStartSmallerToken]),
            ..world
        },
        Violation::LaterStartSmallerToken,
    );
}

/// A client with a clock that is far ahead takes the lock; one with a right clock comes after the loss.
#[test]
fn h1_nodes_that_take_proposals_far_ahead_of_their_clocks_are_found_out() {
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
        find(
            World {
                claims: only(&[Violation::LaterStartSmallerToken]),
                ..world
            },
            Violation::LaterStartSmallerToken,
        );
    }
}

/// The other half of the quarantine is needed for the nodes' clocks.
#[test]
fn h1_clocks_of_nodes_that_are_apart_by_more_than_half_the_silence_are_found_out() {
    let by = QUARANTINE + 2;
    let world = World {
        guard: Guard::Record,
        clocks: Clocks::OfClients {
            by,
            nodes: by - AHEAD,
        },
        ..ON_TIME
    };
    find(
        World {
            claims: only(&[Violation::LaterStartSmallerToken]),
            ..world
        },
        Violation::LaterStartSmallerToken,
    );
}

#[test]
fn a_client_that_counts_nodes_that_refused_its_proposal_is_found_out() {
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
fn h1_a_silence_that_is_cut_short_is_found_out() {
    let world = World {
        guard: Guard::Record,
        flaw: Flaw::QuarantinedForNoTime,
        ..ON_TIME
    };
    find(
        World {
            claims: only(&[Violation::SameToken]),
            ..world
        },
        Violation::SameToken,
    );
}

/// An attempt that began in the quarantine is counted after it.
#[test]
fn h1_h17_a_counter_that_is_missing_or_old_and_taken_as_it_is_is_found_out() {
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
        let world = World {
            left,
            claims: only(&[Violation::LaterStartSmallerToken]),
            ..world
        };
        find(world, Violation::LaterStartSmallerToken);
    }
}

#[test]
fn h1_a_counter_that_is_ahead_of_all_clocks_is_found_out_after_a_restart_with_nothing() {
    let world = World {
        guard: Guard::Record,
        counters: [0, 0, 9],
        ..ON_TIME
    };
    find(
        World {
            claims: only(&[Violation::LaterStartSmallerToken]),
            ..world
        },
        Violation::LaterStartSmallerToken,
    );
}

#[test]
fn h1_a_token_that_only_a_majority_knows_is_not_known_after_one_loss_nor_one_that_all_know_after_two()
 {
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
fn h1_a_release_that_lifts_counters_for_anyone_lets_nobody_in() {
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
fn l5_l6_a_counter_that_is_lost_alone_is_found_out() {
    let world = World {
        left: Accidents {
            vanished: ANY,
            ..ONE_FORGOTTEN
        },
        ..World::new([1, 1], Keys::Vanish)
    };
    find(
        World {
            claims: only(&[Violation::SameToken]),
            ..world
        },
        Violation::SameToken,
    );
    let world = World {
        clocks: Clocks::Good,
        left: ONE_FORGOTTEN,
        ..TIMED
    };
    find(
        World {
            claims: only(&[Violation::LaterHoldSmallerToken]),
            ..world
        },
        Violation::LaterHoldSmallerToken,
    );
}

/// A rival who was granted there before the restart and still waits for another node; a key of ours that the node has
/// set since, and that is extended there while it runs out elsewhere.
#[test]
fn r6_extensions_that_count_in_quarantine_are_found_out() {
    let world = World {
        clocks: Clocks::Good,
        flaw: Flaw::CountsExtensionsInQuarantine,
        left: ONE_CRASH,
        ..RENEWED
    };
    let claims = only(&[Violation::TwoHold]);
    find(
        World {
            guard: Guard::Record,
            claims,
            ..world
        },
        Violation::TwoHold,
    );
}

/// The same with a key that an extension has set there.
#[test]
fn r6_keys_that_an_extension_sets_in_quarantine_and_that_count_are_found_out() {
    let world = World {
        clocks: Clocks::Good,
        flaw: Flaw::CountsSetKeysInQuarantine,
        ..RENEWED
    };
    let claims = only(&[Violation::TwoHold]);
    find(
        World {
            guard: Guard::Record,
            left: ONE_FLUSH,
            claims,
            ..world
        },
        Violation::TwoHold,
    );
}

#[test]
fn h17_acquires_that_do_not_compare_the_record_are_found_out() {
    let world = World {
        clocks: Clocks::Good,
        flaw: Flaw::AcquiresWithoutRecord,
        left: ONE_FLUSH,
        ..TIMED
    };
    let claims = only(&[Violation::TwoHold]);
    find(
        World {
            guard: Guard::Record,
            claims,
            ..world
        },
        Violation::TwoHold,
    );
}

/// As with extensions that count in quarantine: the client does not know of any.
#[test]
fn h17_extensions_that_do_not_compare_the_record_are_found_out() {
    let world = World {
        clocks: Clocks::Good,
        flaw: Flaw::ExtendsWithoutRecord,
        ..RENEWED
    };
    let claims = only(&[Violation::TwoHold]);
    find(
        World {
            guard: Guard::Record,
            left: ONE_FLUSH,
            claims,
            ..world
        },
        Violation::TwoHold,
    );
}
