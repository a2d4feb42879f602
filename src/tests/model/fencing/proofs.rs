//! What holds, in worlds that are searched completely. `--nocapture` shows how large they are.

use super::*;

/// As long as keys last, and with keys that vanish; here the first to start need not have the smaller number.
const TIMED: World<2> = World::new([2, 1], Keys::Last);
const ASYNC: World<2> = World::new([2, 1], Keys::Vanish);
const ONCE_VANISHED: Accidents = Accidents {
    vanished: 1,
    ..NO_ACCIDENTS
};
const ONCE_LOST: Accidents = Accidents {
    lost: 1,
    ..NO_ACCIDENTS
};
const ONCE_TWICE: Accidents = Accidents {
    twice: 1,
    ..NO_ACCIDENTS
};

/// Searches all of `world`.
fn hold<const A: usize>(name: &str, world: World<A>) -> Findings {
    let findings = world.search();
    let Findings {
        states,
        violation,
        course,
        ..
    } = &findings;
    assert!(
        violation.is_none(),
        "{name}: {violation:?} in {world:?}:\n{course}"
    );
    println!("{name}: {states} states");
    findings
}

/// Searches all of `world`, and makes sure that everybody can win in it, at once and by a raise.
fn hold_and_win<const A: usize>(name: &str, world: World<A>) -> Findings {
    let findings = hold(name, world);
    let Findings {
        won_at_once,
        won_by_raise,
        all_won,
        ..
    } = findings;
    assert!(
        0 < won_at_once && 0 < won_by_raise && 0 < all_won,
        "nothing happened: {findings:?}"
    );
    findings
}

/// The same with extensions, confirmed and with keys that they set.
fn hold_and_set<const A: usize>(name: &str, world: World<A>) -> Findings {
    let findings = hold_and_win(
        name,
        World {
            extensions: world.extensions.max(1),
            sets: true,
            ..world
        },
    );
    assert!(
        0 < findings.confirmed && 0 < findings.sets && 0 < findings.confirmed_by_set,
        "nothing happened: {findings:?}"
    );
    findings
}

/// With different and with equal proposals, at nodes that never saw the lock and at one that is ahead.
fn each_start(world: World<2>, check: impl Fn(World<2>)) {
    for proposals in [[2, 1], [1, 1]] {
        for counters in [[0, 0, 0], [0, 0, 3]] {
            check(World {
                proposals,
                counters,
                ..world
            });
        }
    }
}

#[test]
fn c6_tokens_are_ordered_like_grants_even_if_keys_vanish() {
    each_start(
        World {
            left: ONCE_VANISHED,
            ..ASYNC
        },
        |world| {
            hold_and_win("x1, one key vanishes", world);
        },
    );
    if long() {
        hold_and_win("x1, keys vanish", ASYNC);
        hold_and_win(
            "x1, keys vanish and commands are lost",
            World {
                left: Accidents {
                    lost: ANY,
                    vanished: ANY,
                    ..NO_ACCIDENTS
                },
                ..ASYNC
            },
        );
    }
    if longest() {
        each_start(ASYNC, |world| {
            hold_and_win("x1, keys vanish", world);
        });
    }
}

#[test]
fn c6_tokens_are_ordered_like_holds_as_long_as_keys_last() {
    each_start(
        World {
            left: ONCE_LOST,
            ..TIMED
        },
        |world| {
            hold_and_win("x2, one command lost", world);
        },
    );
}

#[test]
fn x3_x4_a_command_that_is_executed_twice_does_no_harm() {
    for proposals in [[2, 1], [1, 1]] {
        hold_and_win(
            "x4, one command twice",
            World {
                proposals,
                left: ONCE_TWICE,
                ..TIMED
            },
        );
    }
    if long() {
        let left = Accidents {
            twice: 1,
            vanished: 1,
            ..NO_ACCIDENTS
        };
        hold_and_win(
            "x3, one command twice, one key vanishes",
            World { left, ..ASYNC },
        );
    }
}

/// The first client gives up, and its releases are still under way while it tries again.
#[test]
fn x6_a_finished_attempt_does_not_disturb_the_next_one() {
    let world = World {
        retry_of: [None, None, Some(0)],
        ..World::new([1, 1, 1], Keys::Last)
    };
    let mut start = world.start();
    start.enter(0, Phase::Lost, RELEASE, all());
    let mut findings = Findings::default();
    world.search_from(start, &mut findings);
    assert_eq!(findings.violation, None, "{}", findings.course);
    assert!(0 < findings.won_at_once, "nothing happened: {findings:?}");
    println!("x6, releases under way: {} states", findings.states);
    if long() {
        hold_and_win("x6, three attempts of two clients", world);
    }
}

#[test]
fn x8_three_clients_exclude_each_other() {
    if long() {
        let world = World::new([1, 1, 1], Keys::Last);
        hold_and_win(
            "x8, good clocks",
            World {
                clocks: Clocks::Good,
                ..world
            },
        );
    }
    if longest() {
        for proposals in [[1, 1, 1], [3, 2, 1]] {
            hold_and_win("x8", World::new(proposals, Keys::Last));
        }
    }
}

/// Orphans aside, which live for a ttl, safety does not need the order of commands.
#[test]
fn e4_commands_in_any_order_leave_orphans_but_no_second_holder() {
    let lines = Lines::AnyOrder;
    hold_and_set(
        "any order, keys last",
        World {
            lines,
            claims: [FENCED, EXCLUSIVE, &[]],
            ..TIMED
        },
    );
    hold_and_win(
        "any order, one key vanishes",
        World {
            lines,
            left: ONCE_VANISHED,
            claims: [FENCED, &[], &[]],
            ..ASYNC
        },
    );
}

#[test]
fn r3_d7_no_renewal_is_confirmed_after_a_newer_holder() {
    let findings = hold_and_win(
        "r3, one key vanishes",
        World {
            extensions: 1,
            left: ONCE_VANISHED,
            ..ASYNC
        },
    );
    assert!(
        0 < findings.confirmed && findings.sets == 0,
        "nothing happened: {findings:?}"
    );
}

#[test]
fn r4_d8_no_key_that_is_set_brings_back_a_lock_after_a_newer_holder() {
    hold_and_set(
        "r4, one key vanishes",
        World {
            left: ONCE_VANISHED,
            ..ASYNC
        },
    );
    // The second has the counter that was in the way of the first, and the third sets keys up to that.
    if long() {
        hold_and_set(
            "r4, one key vanishes, two extensions",
            World {
                extensions: 2,
                left: ONCE_VANISHED,
                ..ASYNC
            },
        );
    }
    if longest() {
        hold_and_set(
            "r4, one key vanishes, three extensions",
            World {
                extensions: 3,
                left: ONCE_VANISHED,
                ..ASYNC
            },
        );
        hold_and_set("r4, keys vanish", ASYNC);
    }
}

#[test]
fn r5_extensions_that_set_keys_exclude_others() {
    hold_and_set(
        "r5, one command lost",
        World {
            left: ONCE_LOST,
            ..TIMED
        },
    );
    hold_and_set(
        "r5, one counter ahead",
        World {
            counters: [0, 0, 3],
            ..TIMED
        },
    );
    if long() {
        hold_and_set(
            "r5, two extensions",
            World {
                extensions: 2,
                ..TIMED
            },
        );
    }
}

/// Deadlines pass before clients notice. Whatever comes after is too late: a majority, and an extension.
#[test]
fn a13_d4_votes_behind_the_deadline_are_too_late() {
    hold_and_win(
        "slow clients",
        World {
            slow: true,
            ..TIMED
        },
    );
    if long() {
        let findings = hold_and_win(
            "slow clients, renewed",
            World {
                slow: true,
                extensions: 1,
                ..TIMED
            },
        );
        assert!(0 < findings.confirmed, "nothing happened: {findings:?}");
    }
    if longest() {
        hold_and_set(
            "slow clients, renewed, with keys set",
            World {
                slow: true,
                ..TIMED
            },
        );
    }
}

/// One attempt, and everything that can befall a node and a line.
#[test]
fn d9_e4_an_executed_release_leaves_no_key() {
    let left = Accidents {
        lost: 1,
        vanished: 1,
        crashes: 1,
        ..NO_ACCIDENTS
    };
    let claims: [&'static [Violation]; 3] = [&[Violation::Orphan], &[], &[]];
    let world = World {
        extensions: 1,
        sets: true,
        guard: Guard::Record,
        left,
        claims,
        ..World::new([1], Keys::Vanish)
    };
    let findings = hold("one attempt", world);
    assert!(
        0 < findings.sets && 0 < findings.won_at_once,
        "nothing happened: {findings:?}"
    );
    if long() {
        let left = Accidents {
            lost: 0,
            twice: 1,
            flushes: 1,
            ..left
        };
        hold(
            "one attempt, two extensions",
            World {
                extensions: 2,
                left,
                ..world
            },
        );
    }
}

/// Nodes that forget, in the two ways in which that is noticed: `good` clocks, and no claim about single nodes.
const FORGETFUL: World<2> = World {
    clocks: Clocks::Good,
    claims: [FENCED, EXCLUSIVE, &[Violation::Orphan]],
    ..TIMED
};

fn check_quarantine(findings: &Findings) {
    assert!(0 < findings.quarantined, "nothing happened: {findings:?}");
}

#[test]
fn l2_l4_b6_nodes_that_restart_empty_allow_no_second_hold() {
    let left = Accidents {
        crashes: 2,
        ..NO_ACCIDENTS
    };
    check_quarantine(&hold_and_win(
        "l4, two restarts",
        World {
            guard: Guard::Record,
            left,
            ..FORGETFUL
        },
    ));
}

#[test]
fn l4_a_record_keeps_nodes_that_were_flushed_from_voting() {
    let left = Accidents {
        flushes: 2,
        ..NO_ACCIDENTS
    };
    check_quarantine(&hold_and_win(
        "l4, two flushes",
        World {
            guard: Guard::Record,
            left,
            ..FORGETFUL
        },
    ));
}

#[test]
fn l3_quarantine_excludes_others_with_any_clocks() {
    let claims: [&'static [Violation]; 3] = [&[Violation::TwoHold], &[], &[]];
    check_quarantine(&hold_and_win(
        "l3, any clocks",
        World {
            guard: Guard::Record,
            left: ONE_CRASH,
            claims,
            ..TIMED
        },
    ));
}

#[test]
fn l6_good_clocks_keep_tokens_in_order_despite_one_lost_counter() {
    let left = Accidents {
        forgets: 1,
        ..NO_ACCIDENTS
    };
    let claims: [&'static [Violation]; 3] = [
        &[Violation::LaterStartSmallerToken, Violation::TwoHold],
        &[],
        &[],
    ];
    hold_and_win(
        "l6, one counter lost",
        World {
            left,
            claims,
            ..FORGETFUL
        },
    );
}

/// Time passes while nodes are quarantined, and clocks are apart by less.
const ON_TIME: World<2> = World {
    clocks: Clocks::Apart(1),
    ..FORGETFUL
};

#[test]
fn h1_tokens_grow_after_restarts_if_clocks_differ_by_less_than_quarantine() {
    let left = Accidents {
        crashes: 1,
        ..NO_ACCIDENTS
    };
    check_quarantine(&hold_and_win(
        "h1, one restart",
        World {
            guard: Guard::Record,
            left,
            ..ON_TIME
        },
    ));
    if long() {
        let left = Accidents { crashes: 2, ..left };
        check_quarantine(&hold_and_win(
            "h1, two restarts",
            World {
                guard: Guard::Record,
                left,
                ..ON_TIME
            },
        ));
    }
    if longest() {
        check_quarantine(&hold_and_set(
            "h1, renewed",
            World {
                guard: Guard::Record,
                left,
                ..ON_TIME
            },
        ));
    }
}

#[test]
fn h17_tokens_grow_over_a_node_that_gets_an_older_copy_of_its_data() {
    let left = Accidents {
        restores: 1,
        ..NO_ACCIDENTS
    };
    check_quarantine(&hold_and_win(
        "h17, one older copy",
        World {
            guard: Guard::Record,
            left,
            ..ON_TIME
        },
    ));
    let start = World {
        counters: [2, 3, 0],
        ..ON_TIME
    };
    check_quarantine(&hold_and_win(
        "h17, one older copy",
        World {
            guard: Guard::Record,
            left,
            ..start
        },
    ));
}

/// Where counters are missing, either is enough: that the client counts no grant that it asked for before the end of the
/// quarantine, or that the node counts from that end.
#[test]
fn h1_tokens_grow_even_if_asks_within_the_quarantine_count() {
    let world = World {
        guard: Guard::Record,
        flaw: Flaw::CountsWhatWasAskedBefore,
        left: ONE_CRASH,
        ..ON_TIME
    };
    check_quarantine(&hold_and_win("h1, asked in the silence", world));
}

#[test]
fn h1_tokens_grow_with_any_clocks_while_nodes_keep_their_data() {
    hold_and_win(
        "h1, clocks far apart",
        World {
            clocks: Clocks::Apart(2 * QUARANTINE),
            ..TIMED
        },
    );
}

/// Clients' clocks are wrong by less than nodes refuse, by as much as they just take, and by more than a quarantine.
#[test]
fn h1_tokens_grow_after_data_loss_with_any_client_clocks() {
    for (by, nodes, crashes, restores) in [
        (1, 0, 1, 0),
        (AHEAD, 0, 1, 0),
        (QUARANTINE + 2, 0, 1, 0),
        (QUARANTINE, AHEAD, 1, 0),
        (QUARANTINE, AHEAD, 0, 1),
    ] {
        let left = Accidents {
            crashes,
            restores,
            ..NO_ACCIDENTS
        };
        let world = World {
            guard: Guard::Record,
            clocks: Clocks::OfClients { by, nodes },
            left,
            ..ON_TIME
        };
        check_quarantine(&hold_and_win(&format!("h1, clients apart by {by}"), world));
    }
}

/// Whatever clocks show, and however far counters are ahead of them.
#[test]
fn h1_tokens_grow_after_one_loss_behind_a_token_on_all_nodes() {
    let findings = after_a_hold(3, 1);
    assert_eq!(findings.violation, None, "{}", findings.course);
    assert!(
        0 < findings.all_won && 0 < findings.quarantined,
        "nothing happened: {findings:?}"
    );
}

#[test]
fn r6_an_empty_restart_under_extensions_that_set_keys_is_safe() {
    check_quarantine(&hold_and_set(
        "r6, one restart",
        World {
            guard: Guard::Record,
            left: ONE_CRASH,
            ..FORGETFUL
        },
    ));
    if longest() {
        let twice = Accidents {
            crashes: 2,
            ..NO_ACCIDENTS
        };
        hold_and_set(
            "r6, two restarts",
            World {
                guard: Guard::Record,
                left: twice,
                ..FORGETFUL
            },
        );
        hold_and_set(
            "r6, two extensions",
            World {
                guard: Guard::Record,
                extensions: 2,
                left: ONE_CRASH,
                ..FORGETFUL
            },
        );
    }
}

#[test]
fn r6_a_flush_under_extensions_that_set_keys_is_safe() {
    let world = World {
        guard: Guard::Record,
        left: ONE_FLUSH,
        ..FORGETFUL
    };
    check_quarantine(&hold_and_set("r6, flush", world));
    if longest() {
        hold_and_set(
            "r6, flush, two extensions",
            World {
                extensions: 2,
                ..world
            },
        );
    }
}

#[test]
fn r6_a_restart_with_data_under_extensions_that_set_keys_is_safe() {
    if long() {
        let left = Accidents {
            restarts: 1,
            ..NO_ACCIDENTS
        };
        check_quarantine(&hold_and_set(
            "r6, restart",
            World {
                guard: Guard::Record,
                left,
                ..FORGETFUL
            },
        ));
    }
}
