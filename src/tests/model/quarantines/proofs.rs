//! The worlds that are searched, and what each flaw does in one of them. `--nocapture` shows how large they are.
#![allow(clippy::print_stdout, reason = "for who reads a test")]

use super::*;

/// Whether the other client was started just now, or has known the nodes from before.
#[track_caller]
fn check_safe(world: World) {
    for is_idle in [false, true] {
        let world = World { is_idle, ..world };
        let findings = world.search();
        let two_hold = findings
            .two_hold
            .iter()
            .flatten()
            .map(|it| format!("{it:?}\n"))
            .collect::<String>();
        assert!(findings.two_hold.is_none(), "{world:?}:\n{two_hold}");
        // It is not safe because nothing happens.
        let Findings {
            got_it_late,
            states,
            ..
        } = findings;
        assert!(got_it_late && 1_000 < states, "{world:?}: {states} states");
        println!("{states} states of {world:?}");
    }
}

#[track_caller]
fn check_unsafe(world: World) {
    let findings = world.search();
    assert!(findings.two_hold.is_some(), "{world:?}: {findings:?}");
}

#[test]
fn h15_a_holder_that_comes_back_to_servers_that_were_all_restarted_empty_keeps_others_out() {
    let world = World {
        holder_returns: true,
        ..WORLD
    };
    check_safe(world);
    // This needs the number of the holder to be kept and to change the record's edition, and the holder to come back before a
    // short quarantine is over.
    check_unsafe(World {
        flaw: Flaw::NotKept,
        ..world
    });
    check_unsafe(World {
        flaw: Flaw::SameEdition,
        ..world
    });
    check_unsafe(World {
        own: COMES_BACK - 1,
        ..world
    });
}

/// The holder is cut off. One node that took no part in its majority knows its number.
const CUT_OFF: World = World {
    restarts: 1,
    held: [true, true, false],
    ..WORLD
};
/// The other client does not reach the node that the holder still has.
const NOT_THE_FIRST: [bool; NODES] = [false, true, true];

#[test]
fn h15_a_holder_that_is_cut_off_is_safe_as_long_as_fewer_than_a_majority_of_nodes_forget() {
    check_safe(CUT_OFF);
    check_safe(World {
        reached: NOT_THE_FIRST,
        ..CUT_OFF
    });
    check_unsafe(World {
        flaw: Flaw::NotHeard,
        ..CUT_OFF
    });
    check_unsafe(World {
        flaw: Flaw::NotLengthened,
        ..CUT_OFF
    });
    // A node that the holder has never reached: the other one tells.
    let told = [true, true, false];
    check_safe(World { told, ..CUT_OFF });
    check_unsafe(World {
        told,
        flaw: Flaw::NoOthers,
        ..CUT_OFF
    });
    check_unsafe(World {
        told,
        reached: NOT_THE_FIRST,
        ..CUT_OFF
    });
}

#[test]
fn h15_clients_tell_nodes_what_a_holder_that_is_cut_off_cannot() {
    let world = World {
        restarts: NODES,
        witness: true,
        ..CUT_OFF
    };
    check_safe(world);
    check_safe(World {
        told: [true, true, false],
        restarts: 1,
        ..world
    });
    check_safe(World {
        told: [true, true, false],
        restarts: 1,
        reached: NOT_THE_FIRST,
        ..world
    });
    check_unsafe(World {
        flaw: Flaw::NotPassedOn,
        ..world
    });
}

/// The other client has known the nodes since long ago; the holder comes, and is told of no loss.
const COMES: World = World {
    holder_comes: true,
    restarts: 1,
    is_idle: true,
    ..WORLD
};

#[test]
fn h15_a_client_that_has_not_asked_since_another_came_with_a_longer_ttl_asks_before_it_counts() {
    check_safe(COMES);
    check_unsafe(World {
        flaw: Flaw::NoOthers,
        ..COMES
    });
    check_unsafe(World {
        flaw: Flaw::OthersFromTheBeginning,
        ..COMES
    });
    check_unsafe(World {
        flaw: Flaw::SameEdition,
        ..COMES
    });
    // There is one that the holder never reaches.
    let told = [true, true, false];
    check_safe(World { told, ..COMES });
    check_unsafe(World {
        told,
        flaw: Flaw::NoOthers,
        ..COMES
    });
    check_unsafe(World {
        told,
        reached: NOT_THE_FIRST,
        ..COMES
    });
}

/// What is left, and what the guide says about it.
#[test]
fn h15_where_a_majority_forgets_and_nobody_who_knows_comes_back_only_a_number_that_all_share_keeps_others_out()
 {
    for held in [WORLD.held, CUT_OFF.held] {
        let world = World { held, ..WORLD };
        check_unsafe(world);
        check_safe(World { own: LONG, ..world });
        let world = World {
            restarts: MAJORITY,
            ..world
        };
        check_unsafe(World {
            reached: NOT_THE_FIRST,
            ..world
        });
        check_safe(World {
            reached: NOT_THE_FIRST,
            own: LONG,
            ..world
        });
        // The one that has kept its data shows the number.
        check_safe(world);
        check_unsafe(World {
            flaw: Flaw::NoOthers,
            ..world
        });
    }
}

#[test]
fn h16_servers_that_come_back_with_old_data_keep_others_out_though_nobody_else_knows_anything() {
    for held in [WORLD.held, CUT_OFF.held] {
        let world = World {
            comeback: Comeback::WithAnOldCopy,
            held,
            ..WORLD
        };
        check_safe(world);
        check_unsafe(World {
            flaw: Flaw::NoRunId,
            ..world
        });
    }
}
