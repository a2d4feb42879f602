//! What `greet.lua` does with the sets of servers in a record.

use super::super::recorded::Real;
use crate::answer::{Answer, GreetReply, Listed, StoredSet};
use crate::ids::Edition;
use crate::wire::{self, Greeted, Greeting, NewSets};

/// When the tests take place: microseconds since 1970.
const NOW: u64 = 1_800_000_000_000_000;

fn greet(real: &mut Real, draw: u64, of: Greeted<'_>, sets: Option<&NewSets>) -> GreetReply {
    let greeting = Greeting {
        edition: Edition::new(draw),
        own: 10_000,
        reported: 0,
        size: 3,
        sets,
        of,
    };
    let Answer::Greet(reply) = real.send(0, &wire::greet(&greeting)) else {
        panic!("no answer to a greeting")
    };
    reply
}

const NOTE: Greeted<'static> = Greeted::Server {
    look: false,
    vouch: false,
};
const LOOK: Greeted<'static> = Greeted::Server {
    look: true,
    vouch: false,
};
const VOUCH: Greeted<'static> = Greeted::Server {
    look: false,
    vouch: true,
};

fn noted(edition: u64) -> NewSets {
    let servers = [7, 8].map(|id| Listed { id, address: 0xab });
    let set = StoredSet {
        size: 3,
        used: 1,
        joined: 2,
        changed: 3,
        label: "web-1/7".into(),
        servers: servers.into(),
    };
    NewSets {
        edition: Edition::new(edition),
        sets: vec![set],
    }
}

/// The one set of a record that nobody has noted a set in: this server, since then.
fn alone(id: u64, joined: u64) -> [StoredSet; 1] {
    let (used, changed) = (NOW / 3_600_000_000, NOW / 1_000);
    [StoredSet {
        size: 3,
        used,
        joined,
        changed,
        label: "".into(),
        servers: vec![Listed { id, address: 0 }],
    }]
}

#[test]
fn a_new_record_has_one_server_alone_and_what_is_noted_takes_its_place() {
    let mut real = Real::at(NOW);
    assert!(greet(&mut real, 10, LOOK, None).sets.is_empty() && real.contents().is_empty());
    assert_eq!(
        *greet(&mut real, 11, NOTE, None).sets,
        alone(11, NOW / 1_000)
    );

    let stale = greet(&mut real, 12, NOTE, Some(&noted(10)));
    assert_eq!(
        (&*stale.sets, stale.edition),
        (&alone(11, NOW / 1_000)[..], Edition::new(11)),
        "it has seen another record"
    );
    let written = greet(&mut real, 13, NOTE, Some(&noted(11)));
    assert_eq!(
        (&*written.sets, written.edition, written.kept),
        (&noted(11).sets[..], Edition::new(13), true)
    );
    assert_eq!(
        *greet(
            &mut real,
            14,
            LOOK,
            Some(&NewSets {
                sets: vec![],
                ..noted(13)
            })
        )
        .sets,
        noted(11).sets
    );

    real.restart(true);
    assert_eq!(
        *greet(&mut real, 15, NOTE, None).sets,
        noted(11).sets,
        "they outlive a restart"
    );
}

#[test]
fn what_was_decided_about_a_record_that_is_lost_leaves_nothing_in_the_next() {
    let mut real = Real::at(NOW);
    greet(&mut real, 11, NOTE, None);
    real.restart(false);
    assert!(greet(&mut real, 12, NOTE, Some(&noted(11))).sets.is_empty());
}

#[test]
fn a_record_that_an_operator_has_begun_or_confirmed_has_had_its_server_for_ever() {
    let mut real = Real::at(NOW);
    real.plain(&[b"SET", b"quorlock:record", b"0"]);
    assert_eq!(*greet(&mut real, 11, NOTE, None).sets, alone(11, 0));

    let mut real = Real::at(NOW);
    greet(&mut real, 11, NOTE, None);
    let edition = greet(&mut real, 12, NOTE, Some(&noted(11))).edition;
    assert_eq!(edition, Edition::new(12));
    assert_eq!(*greet(&mut real, 13, VOUCH, None).sets, alone(11, 0));
}
