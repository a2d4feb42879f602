#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

use proptest::prelude::*;

use super::*;
use crate::ids::Edition;

const HOUR: u64 = 3_600_000;
/// When the tests take place: milliseconds since 1970.
const NOW: u64 = 480_000 * HOUR;
const MINUTE: Duration = Duration::from_secs(60);

/// The record of a server that has kept its data for `served`, and with that id.
fn record(id: u64, served: Duration, sets: &[StoredSet]) -> GreetReply {
    let reply = GreetReply::of(Record::Kept, served);
    GreetReply {
        id: Some(id),
        edition: Edition::new(id),
        now: NOW * 1_000,
        sets: sets.into(),
        ..reply
    }
}

/// Old servers with these ids, whose addresses are the same letters; what each shows is not known yet.
fn own(addresses: &str) -> OwnServers {
    let letters: Vec<_> = addresses.chars().map(String::from).collect();
    OwnServers::new("web-1/7", letters.iter().map(|it| &**it))
}

fn id(letter: char) -> u64 {
    u64::from(letter)
}

/// A set of servers each of which is at the address of its own name.
fn set(size: usize, letters: &str) -> StoredSet {
    let servers = letters
        .chars()
        .map(|it| Listed {
            id: id(it),
            address: hash(&it.to_string()),
        })
        .collect();
    StoredSet {
        size,
        used: NOW / HOUR,
        joined: NOW - 10 * HOUR,
        changed: NOW - 10 * HOUR,
        label: "".into(),
        servers,
    }
}

/// All servers of a client show these sets.
fn met(addresses: &str, sets: &[StoredSet]) -> OwnServers {
    let mut own = own(addresses);
    for (at, letter) in addresses.chars().enumerate() {
        own.on_report(at, record(id(letter), 100 * MINUTE, sets));
    }
    own
}

fn is_due(own: &OwnServers, server: usize) -> bool {
    own.is_due(server, &own.judge(server))
}

fn letters(set: &StoredSet) -> String {
    set.servers
        .iter()
        .map(|it| char::from(u8::try_from(it.id).unwrap()))
        .collect()
}

/// What the first server is to note: the sets and their sizes.
fn noted(own: &OwnServers) -> Option<Vec<(String, usize)>> {
    Some(
        own.judge(0)
            .note?
            .iter()
            .map(|it| (letters(it), it.size))
            .collect(),
    )
}

fn majorities(servers: &[u64], quorum: usize) -> Vec<Vec<u64>> {
    let subsets = 0..1_u32 << servers.len();
    let pick = |bits: u32| {
        servers
            .iter()
            .enumerate()
            .filter(|it| bits & 1 << it.0 != 0)
            .map(|it| *it.1)
            .collect()
    };
    subsets
        .map(pick)
        .filter(|it: &Vec<u64>| it.len() == quorum)
        .collect()
}

/// All pairs of sets out of six servers, also of clients that have not met all of theirs.
#[test]
fn h26_sets_go_together_if_and_only_if_each_two_majorities_share_a_server() {
    let subset = |bits: u32| {
        (0..6_u32)
            .filter(|it| bits & 1 << it != 0)
            .map(u64::from)
            .collect::<Vec<u64>>()
    };
    let sizes = |servers: Vec<u64>| (servers.len()..=6).map(move |size| (size, servers.clone()));
    let sets: Vec<_> = (1..64).map(subset).flat_map(sizes).collect();
    for (size, servers) in &sets {
        for (other_size, others) in &sets {
            let [ours, theirs] = [(servers, size), (others, other_size)]
                .map(|(it, size)| majorities(it, quorum(*size)));
            let expected = ours.iter().all(|one| {
                theirs
                    .iter()
                    .all(|other| one.iter().any(|it| other.contains(it)))
            });
            let common = servers.iter().filter(|it| others.contains(it)).count();
            let found = go_together(common, (*size, servers.len()), (*other_size, others.len()));
            // One that cannot have a majority yet is in nobody's way.
            if !ours.is_empty() && !theirs.is_empty() {
                assert_eq!(
                    found, expected,
                    "{servers:?} of {size}, {others:?} of {other_size}"
                );
            }
        }
    }
}

#[test]
fn h26_one_server_more_or_less_goes_with_the_set_in_use_and_two_do_not() {
    for (ours, theirs, is_safe) in [
        ("ABCD", "ABC", true),
        ("AB", "ABC", true),
        ("ABCE", "ABCD", true),
        ("ABD", "ABC", false),
        ("ABCDE", "ABC", false),
        ("A", "ABC", false),
    ] {
        let theirs = set(theirs.len(), theirs);
        let judged = met(ours, std::slice::from_ref(&theirs)).judge(0);
        assert_eq!(judged.other, Some((theirs, is_safe)), "{ours}");
        assert_eq!(
            (judged.note.is_some(), judged.is_refused),
            (is_safe, !is_safe),
            "{ours}"
        );
        assert_eq!(
            judged.member_for,
            Duration::MAX,
            "{ours}: a server in use is not new"
        );
    }
}

#[test]
fn h26_a_third_set_is_refused_until_the_first_has_not_been_used_for_a_day() {
    let (first, second) = (set(3, "ABC"), set(4, "ABCD"));
    let third = met("ABCE", &[first.clone(), second.clone()]);
    assert_eq!(third.judge(0).other, Some((second.clone(), false)));

    let unused = StoredSet {
        used: NOW / HOUR - 24,
        ..first.clone()
    };
    let third = met("ABCE", &[unused, second.clone()]);
    assert_eq!(third.judge(0).other, Some((second.clone(), true)));
    assert_eq!(
        noted(&third),
        Some(vec![("ABCD".to_owned(), 4), ("ABCE".to_owned(), 4)])
    );
    let last_hour = StoredSet {
        used: NOW / HOUR - 23,
        ..first
    };
    assert_eq!(met("ABCE", &[last_hour, second]).judge(0).note, None);
}

#[test]
fn h26_who_is_there_goes_on_whatever_comes_after() {
    let own = met("ABC", &[set(3, "ABC"), set(5, "ABCDE")]);
    let other = Some((set(5, "ABCDE"), false));
    assert_eq!(
        own.judge(0),
        Judgement {
            member_for: 600 * MINUTE,
            note: None,
            other,
            is_refused: false
        }
    );
    assert!(!is_due(&own, 0));
}

#[test]
fn a_set_is_noted_as_far_as_it_is_known_and_each_hour() {
    let mut own = own("ABC");
    own.on_report(0, record(id('A'), MINUTE, &[]));
    assert!(!is_due(&own, 0), "no other server is known");
    own.on_report(2, record(id('C'), MINUTE, &[]));
    assert_eq!(noted(&own), Some(vec![("AC".to_owned(), 3)]));
    let noted_then = own.judge(0).note.unwrap();
    own.on_report(0, record(id('A'), MINUTE, &noted_then));
    assert!(!is_due(&own, 0));
    own.on_report(1, record(id('B'), MINUTE, &[]));
    assert_eq!(noted(&own), Some(vec![("ACB".to_owned(), 3)]));

    let hour_ago = StoredSet {
        used: NOW / HOUR - 1,
        ..set(3, "ABC")
    };
    let again = met("ABC", std::slice::from_ref(&hour_ago))
        .judge(0)
        .note
        .unwrap();
    assert_eq!(
        (again[0].used, again[0].joined, &*again[0].label),
        (NOW / HOUR, hour_ago.joined, "web-1/7")
    );
    assert!(!is_due(&met("AB", &[set(2, "AB")]), 0));
    // One server is its whole set.
    assert_eq!(noted(&met("A", &[])), Some(vec![("A".to_owned(), 1)]));
}

/// Each of them counts from when its record was made; what was in no set, or in others, counts from now.
#[test]
fn h26_a_server_that_is_new_in_the_set_counts_as_one_that_may_have_forgotten() {
    let of = |sets: &[StoredSet]| met("ABC", sets).judge(0).member_for;
    assert_eq!(
        of(&[]),
        100 * MINUTE,
        "a new record, or one that an operator began"
    );
    assert_eq!(of(&[set(3, "ABC")]), 600 * MINUTE);
    assert_eq!(
        of(&[set(3, "A")]),
        Duration::ZERO,
        "a program made the record, and met no other server"
    );
    assert_eq!(
        of(&[StoredSet {
            joined: 0,
            changed: NOW,
            ..set(3, "A")
        }]),
        100 * MINUTE,
        "an operator began the record"
    );
    assert_eq!(
        of(&[StoredSet {
            joined: 0,
            ..set(3, "A")
        }]),
        Duration::ZERO,
        "hours ago"
    );
    let unused = |letters| StoredSet {
        used: NOW / HOUR - 30,
        ..set(3, letters)
    };
    assert_eq!(
        of(&[unused("AXY")]),
        Duration::ZERO,
        "a spare that was used otherwise"
    );
    assert_eq!(
        of(&[unused("ABC")]),
        600 * MINUTE,
        "a fleet that runs once a week"
    );
    assert_eq!(
        of(&[set(4, "ABCD")]),
        Duration::MAX,
        "each majority of that set meets ours"
    );

    let mut vouched = own("ABC");
    for (at, letter) in "ABC".chars().enumerate() {
        let shown = record(id(letter), MINUTE, &[]);
        vouched.on_report(
            at,
            GreetReply {
                record: Record::Vouched,
                ..shown
            },
        );
    }
    let judged = vouched.judge(0);
    assert_eq!(
        (judged.member_for, judged.note.unwrap()[0].joined),
        (Duration::MAX, 0)
    );
}

/// The client of A, B and what is behind C's address, which was X when A was met last.
fn with_another_behind_c(served: Duration, sets: &[StoredSet]) -> OwnServers {
    let mut own = own("ABC");
    own.on_report(0, record(id('A'), 100 * MINUTE, sets));
    own.on_report(1, record(id('B'), 100 * MINUTE, sets));
    own.on_report(2, record(id('X'), served, &[]));
    own
}

#[test]
fn h26_a_set_that_differs_by_a_server_that_lost_its_data_since_is_the_same() {
    let own = with_another_behind_c(MINUTE, &[set(3, "ABC")]);
    assert_eq!(noted(&own), Some(vec![("ABX".to_owned(), 3)]));
    let judged = own.judge(0);
    assert_eq!((judged.other, judged.member_for), (None, 600 * MINUTE));
    let set = &judged.note.unwrap()[0];
    assert_eq!((set.changed, set.joined), (NOW, NOW - 10 * HOUR));
}

/// In the middle of a deployment. Clients of either set may be the first to note it.
#[test]
fn h26_a_server_that_lost_its_data_is_replaced_in_both_sets_by_clients_of_either() {
    let stored = [set(4, "ABCD"), set(3, "ABC")];
    for (ours, replaced) in [("ABC", 2), ("ABCD", 3), ("ABCD", 2)] {
        let mut own = met(ours, &stored);
        own.on_report(replaced, record(id('X'), MINUTE, &[]));
        let letter = ours.chars().nth(replaced).unwrap().to_string();
        let judged = own.judge(0);
        let with = |it: &str| it.replace(&letter, "X");
        assert!(
            !judged.is_refused && judged.other.as_ref().unwrap().1,
            "{ours}: {judged:?}"
        );
        assert_eq!(
            noted(&own),
            Some(vec![(with("ABCD"), 4), (with("ABC"), 3)]),
            "{ours}"
        );
        let changed: Vec<_> = judged
            .note
            .unwrap()
            .iter()
            .map(|it| it.changed == NOW)
            .collect();
        assert_eq!(
            changed,
            [true, replaced != 3],
            "{ours}: what was replaced cannot come back, to either"
        );
    }
    // Also by one that is new there.
    let mut own = met("ABC", &stored[..1]);
    own.on_report(2, record(id('X'), MINUTE, &[]));
    assert_eq!(
        noted(&own),
        Some(vec![("ABXD".to_owned(), 4), ("ABX".to_owned(), 3)])
    );
}

#[test]
fn h26_what_has_older_data_takes_no_place_and_gets_none_back() {
    // A spare that was there before the set. It is asked once more before the others' records are believed.
    let mut own = with_another_behind_c(100 * 60 * MINUTE, &[set(3, "ABC")]);
    assert_eq!((own.judge(0).other, is_due(&own, 2)), (None, true));
    own.on_report(2, record(id('X'), 100 * 60 * MINUTE, &[]));
    assert_eq!(own.judge(0).other, Some((set(3, "ABC"), false)));

    // X has taken C's place, and this client is connected to C.
    let replaced = StoredSet {
        changed: NOW,
        ..set(3, "ABC")
    };
    let servers = [
        &replaced.servers[..2],
        &[Listed {
            id: id('X'),
            address: hash("C"),
        }],
    ]
    .concat();
    let replaced = StoredSet {
        servers,
        ..replaced
    };
    let mut own = met("ABC", std::slice::from_ref(&replaced));
    assert_eq!(
        (own.judge(0).other, is_due(&own, 2)),
        (None, true),
        "C may have been emptied: it is asked once more"
    );
    own.on_report(2, record(id('C'), 100 * MINUTE, &[set(3, "ABC")]));
    assert_eq!(
        own.judge(0).other,
        Some((replaced.clone(), false)),
        "it has not"
    );
    assert!(!is_due(&own, 2));
    own.on_report(2, record(id('X'), Duration::ZERO, &[]));
    assert_eq!((own.judge(0).other, noted(&own)), (None, None));
}

#[test]
fn h26_a_spare_takes_a_place_once_it_is_new_in_the_set() {
    let mut own = with_another_behind_c(100 * 60 * MINUTE, &[set(3, "ABC")]);
    assert_eq!(
        own.judge(2).note.unwrap()[0].servers.len(),
        3,
        "what it is to note, asked once more"
    );
    let joined = StoredSet {
        joined: NOW,
        changed: NOW,
        ..set(3, "X")
    };
    own.on_report(2, record(id('X'), 100 * 60 * MINUTE, &[joined]));
    assert_eq!(noted(&own), Some(vec![("ABX".to_owned(), 3)]));
}

/// C is dead, and D takes its place in two steps.
#[test]
fn h26_a_server_that_is_down_is_taken_for_what_was_listed_at_its_address() {
    let mut own = own("ABCD");
    for at in [0, 1, 3] {
        let sets = if at == 3 { vec![] } else { vec![set(3, "ABC")] };
        own.on_report(
            at,
            record(id("ABCD".chars().nth(at).unwrap()), MINUTE, &sets),
        );
    }
    assert_eq!(
        noted(&own),
        Some(vec![("ABC".to_owned(), 3), ("ABDC".to_owned(), 4)])
    );
}

/// Whether it is safe shows when the others are met: until then those that are met count, and nothing is noted.
#[test]
fn h26_a_set_of_which_too_little_is_known_is_neither_noted_nor_refused() {
    let mut own = own("ABCDE");
    let stored = [set(3, "ABC")];
    for at in 0..4 {
        own.on_report(
            at,
            record(id("ABCD".chars().nth(at).unwrap()), MINUTE, &stored),
        );
        let judged = own.judge(0);
        assert_eq!(
            (judged.note, judged.other, judged.is_refused),
            (None, None, false),
            "{at}"
        );
    }
    let new = GreetReply {
        id: None,
        ..record(0, Duration::ZERO, &[])
    };
    for shown in [new, record(id('E'), MINUTE, &[])] {
        own.on_report(4, shown);
        assert!(own.judge(0).is_refused);
    }
}

/// Its id is another, though it has kept all data.
#[test]
fn h26_a_server_whose_record_an_operator_has_begun_anew_is_in_the_same_set() {
    let begun = StoredSet {
        joined: 0,
        changed: NOW,
        ..set(3, "X")
    };
    let mut own = met("ABC", &[set(3, "ABC")]);
    own.on_report(2, record(id('X'), 100 * 60 * MINUTE, &[begun]));
    assert_eq!(noted(&own), Some(vec![("ABX".to_owned(), 3)]));
}

#[test]
fn a_server_that_is_not_connected_is_not_known() {
    let mut own = met("ABC", &[set(3, "ABD")]);
    assert_eq!(own.judge(0).other, Some((set(3, "ABD"), false)));
    own.forget(2);
    assert_eq!(own.judge(0).other, None, "it may be D when it is back");
    assert_eq!(own.judge(2), Judgement::default());
    assert!(!is_due(&own, 2));
}

proptest! {
    /// Two clients note what they know on one server, whatever each has met, and in whatever order.
    #[test]
    fn h26_what_two_clients_note_goes_together(
        turns in prop::collection::vec((any::<bool>(), 0..4_usize), 1..30),
        sets in prop::sample::select(vec![["ABC", "ABC"], ["ABC", "ABD"], ["ABC", "ABCD"], ["ABC", "ABCDE"], ["ABCD", "ABCE"]]),
    ) {
        let mut clients = sets.map(own);
        let mut stored: Vec<StoredSet> = Vec::new();
        for (which, server) in turns {
            let (client, letters) = (&mut clients[usize::from(which)], sets[usize::from(which)]);
            if let Some(letter) = letters.chars().nth(server) {
                let shown = if letter == 'A' { &stored[..] } else { &[] };
                client.on_report(server, record(id(letter), MINUTE, shown));
            }
            client.on_report(0, record(id('A'), MINUTE, &stored));
            if let Some(note) = client.judge(0).note {
                stored = note;
            }
            prop_assert!(stored.len() <= SETS_MAX, "{stored:?}");
            for (one, other) in stored.iter().flat_map(|one| stored.iter().map(move |other| (one, other))) {
                let common = common(&one.servers, &other.servers);
                let sizes = [one, other].map(|it| (it.size, it.servers.len()));
                prop_assert!(go_together(common, sizes[0], sizes[1]), "{stored:?}");
            }
        }
    }
}

/// RACE: an operator sets A's record to "0", and A gets another id. A shows our set before B, which lists the id before, is asked
/// again; or B was down.
#[test]
fn h26_a_record_that_an_operator_began_is_known_to_be_younger_when_it_has_our_set() {
    let listed = set(3, "ABC");
    let mut own = met("ABC", std::slice::from_ref(&listed));
    let begun = StoredSet {
        size: 3,
        used: NOW / HOUR,
        joined: 0,
        changed: NOW,
        label: "".into(),
        servers: vec![Listed { id: 7, address: 0 }],
    };
    // It has kept its data for longer than the set is there.
    own.on_report(0, record(7, 1_000 * MINUTE, std::slice::from_ref(&begun)));
    let noted = own.judge(0).note.unwrap();
    own.on_report(0, record(7, 1_000 * MINUTE, &noted));
    own.on_report(
        1,
        record(id('B'), 100 * MINUTE, std::slice::from_ref(&listed)),
    );
    for server in [1, 2] {
        let judged = own.judge(server);
        assert!(!judged.is_refused, "{judged:?}");
        assert_eq!(judged.note.unwrap()[0].servers[0].id, 7);
    }
    assert!(!is_due(&own, 0), "it stands there");
    let is_said = |it: &StoredSet| it.joined == 0;
    assert!(noted.iter().any(is_said) && own.judge(0).member_for == 1_000 * MINUTE);
    let tomorrow = GreetReply {
        now: (NOW + 24 * HOUR) * 1_000,
        ..record(7, 2_440 * MINUTE, &noted)
    };
    own.on_report(0, tomorrow);
    assert!(
        !own.judge(0).note.unwrap().iter().any(is_said),
        "nobody needs to know any more"
    );
}
