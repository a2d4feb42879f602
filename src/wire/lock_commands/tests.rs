//! What commands of locks say.

mod handed_over;

use super::*;
use crate::inspection::SecretValue;

#[test]
fn the_lock_key_is_the_name_and_keys_beside_it_put_the_kind_first() {
    let commands = LockCommands::mutex(b"app:", b"report", KeyTtls::default());
    assert_eq!(*commands.key, *b"app:report");
}

const TTLS: KeyTtls = KeyTtls {
    fence: 604_800_000,
    handed_over_ms: 800,
};
const FENCE_LIFE: &str = "604800000";
const RECORD_KEY: &str = "quorlock:record";
const RECORD_VERSION: &str = "000000000000000";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Of a waiting call that began at 1700000000000001.
fn entering(entry: QueueEntry) -> QueuePolicy {
    QueuePolicy {
        since: 1_700_000_000_000_001,
        entry: Some(entry),
        enters: true,
    }
}

/// Of a call behind all others, in no list.
fn without_place(entry: QueueEntry) -> QueuePolicy {
    QueuePolicy {
        since: u64::MAX,
        enters: false,
        ..entering(entry)
    }
}

fn staying(entry: QueueEntry, which: Which, owner: OwnerToken) -> QueueUpdate {
    QueueUpdate::Enter(Entering {
        entry,
        since: 5,
        which,
        member: [b"w", &owner.to_value()[..]].concat(),
        yields: true,
    })
}

/// A release that offers token 12, of an owner whose token was not raised, or was raised to 8; and how it says that.
const OFFERS: [(Offer, &str); 2] = [
    (
        Offer {
            token: 12,
            raised: None,
        },
        "12 604800000 800 0 -",
    ),
    (
        Offer {
            token: 12,
            raised: Some(8),
        },
        "12 604800000 800 8 -",
    ),
];

/// Whose keys are not sorted by kind.
fn in_order<'a>(lock: &'a str, beside: &'a [String; 4]) -> [&'a str; 6] {
    let [fence, mark, waiting, readers] = beside.each_ref().map(String::as_str);
    [lock, fence, RECORD_KEY, mark, waiting, readers]
}

fn beside(name: &str) -> [String; 4] {
    ["fence", "mark", "waiting", "readers"].map(|kind| format!("quorlock:{kind}:{name}"))
}

pub(super) fn assert_sent(command: &Command, script: Script, keys: &[&str], args: &[&str]) {
    let [keys, args] = [keys, args].map(|it| it.iter().map(|it| it.as_bytes()).collect::<Vec<_>>());
    let [sent, expected] = [command, &Command::of_script(script, &keys, &args)]
        .map(|it| it.packed().escape_ascii().to_string());
    assert_eq!(sent, expected);
}

#[test]
fn the_commands_of_a_mutex_have_the_keys_and_arguments_that_its_scripts_state() {
    let client = ClientId::draw().unwrap();
    let owner = OwnerToken::draw().unwrap();
    let me = &*text(&client.0);
    let token = &*text(&owner.to_value());
    let commands = LockCommands::mutex(b"app:", b"a", TTLS);
    let beside = beside("app:a");
    let keys = in_order("app:a", &beside);
    let entry = QueueEntry { client, life: 9 };

    let since = "1700000000000001";
    let acquires = |policy: QueuePolicy, waits: &str| {
        let args = [token, "1", "2", FENCE_LIFE, RECORD_VERSION, waits];
        let acquire = commands.acquire(owner, 1, 2, &policy);
        assert_sent(&acquire, Script::Acquire, &keys, &args);
    };
    acquires(entering(entry), &format!("{since} 9 {me} 800 - 1"));
    let last = "18446744073709551615";
    acquires(without_place(entry), &format!("{last}  {me} 800 - 1"));
    let alone = QueuePolicy {
        entry: None,
        ..entering(entry)
    };
    acquires(alone, &format!("{since}   800 - 1"));

    let extends = |command: &Command, more: &[&str]| {
        let always = [token, "1", "2", FENCE_LIFE, RECORD_VERSION];
        assert_sent(
            command,
            Script::Extend,
            &keys,
            &[&always[..], more].concat(),
        );
    };
    extends(&commands.extend(owner, 1, 2, false, None), &["keep"]);
    extends(&commands.extend(owner, 1, 2, true, None), &["set"]);
    extends(
        &commands.extend(owner, 1, 2, true, Some(client)),
        &["set", me],
    );
    let raise = commands.raise(owner, 2);
    extends(&raise, &["raise"]);
    assert_eq!(
        (raise.kind, commands.extend(owner, 1, 2, true, None).kind),
        (Kind::Raise, Kind::Extend)
    );

    let next = OwnerToken::draw().unwrap();
    let enters = format!("1 9 1 w{} 1", text(&next.to_value()));
    for (offer, said) in OFFERS {
        let releases = |update, args: &[&str]| {
            let release = commands.release(owner, offer, update);
            let args = [&[token, said], args].concat();
            assert_sent(&release, Script::Release, &keys, &args);
        };
        releases(QueueUpdate::None, &[]);
        releases(QueueUpdate::Leave(client), &[me]);
        releases(staying(entry, None, next), &[me, "5", &enters]);
    }
}

#[test]
fn a_readers_commands_have_the_keys_and_arguments_that_its_scripts_state() {
    let client = ClientId::draw().unwrap();
    let owner = OwnerToken::draw().unwrap();
    let me = &*text(&client.0);
    let token = &*text(&owner.to_value());
    let entry = QueueEntry { client, life: 9 };
    let commands = LockCommands::mutex(b"", b"a", TTLS).to_read();
    let beside = beside("a");
    let keys = in_order("a", &beside);
    assert_eq!((&*commands.key, commands.key_len), (&b"a"[..], 1));

    assert_sent(
        &commands.acquire(owner, 1, 2, &entering(entry)),
        Script::AcquireShared,
        &keys,
        &[
            token,
            "1",
            "2",
            FENCE_LIFE,
            RECORD_VERSION,
            &format!("1700000000000001 9 {me} 800 - 1"),
        ],
    );
    assert_sent(
        &commands.raise(owner, 4),
        Script::ExtendShared,
        &keys,
        &[token, "1", "4", FENCE_LIFE, RECORD_VERSION, "raise"],
    );
    assert_sent(
        &commands.extend(owner, 1, 2, true, None),
        Script::ExtendShared,
        &keys,
        &[token, "1", "2", FENCE_LIFE, RECORD_VERSION, "set"],
    );
    let next = OwnerToken::draw().unwrap();
    let enters = format!("1 9 1 w{} 1", text(&next.to_value()));
    let (offer, said) = OFFERS[0];
    assert_sent(
        &commands.release(owner, offer, staying(entry, None, next)),
        Script::ReleaseShared,
        &keys,
        &[token, said, me, "5", &enters],
    );
}

#[test]
fn commands_of_several_names_match_the_heads_of_their_scripts() {
    let client = ClientId::draw().unwrap();
    let owner = OwnerToken::draw().unwrap();
    let commands = LockCommands::multi(b"", [&b"a"[..], b"b"].into_iter(), TTLS);
    let me = &*text(&client.0);
    let token = &*text(&owner.to_value());
    let entry = QueueEntry { client, life: 9 };
    let beside = ["a", "b"].map(beside);
    let [a, b] = &beside;
    let mut keys = vec!["a", "b", &a[0], &b[0], RECORD_KEY];
    keys.extend((1..4).flat_map(|it| [&*a[it], &*b[it]]));

    assert_sent(
        &commands.acquire(owner, 1, 2, &entering(entry)),
        Script::Acquire,
        &keys,
        &[
            token,
            "1",
            "2",
            FENCE_LIFE,
            RECORD_VERSION,
            &format!("1700000000000001 9 {me} 800 - 1"),
        ],
    );
    assert_sent(
        &commands.extend(owner, 1, 2, true, None),
        Script::Extend,
        &keys,
        &[token, "1", "2", FENCE_LIFE, RECORD_VERSION, "set"],
    );
    let next = OwnerToken::draw().unwrap();
    let next_value = text(&next.to_value());
    for (offer, said) in OFFERS {
        let releases = |update, args: &[&str]| {
            let args = [&[token, said], args].concat();
            let release = commands.release(owner, offer, update);
            assert_sent(&release, Script::Release, &keys, &args);
        };
        releases(QueueUpdate::Leave(client), &[me]);
        // The list of the name that is in the way, from 1; the first where that is not known.
        for (which, place) in [(Some(1), 2), (None, 1)] {
            let enters = format!("{place} 9 1 w{next_value} 1");
            releases(staying(entry, which, next), &[me, "5", &enters]);
        }
    }
}

#[test]
fn semaphore_acquires_have_all_slot_keys_and_holds_their_own() {
    let client = ClientId::draw().unwrap();
    let owner = OwnerToken::draw().unwrap();
    let commands = LockCommands::semaphore(b"", b"s", 2, TTLS);
    let me = &*text(&client.0);
    let token = &*text(&owner.to_value());
    let entry = QueueEntry { client, life: 9 };
    let slots = ["quorlock:slot-0:s", "quorlock:slot-1:s"];
    let fences = ["quorlock:slot-fence-0:s", "quorlock:slot-fence-1:s"];
    let of_all = ["quorlock:slot-mark:s", "quorlock:slot-waiting:s"];
    let keys = [&slots[..], &fences, &[RECORD_KEY], &of_all].concat();

    let acquires = |policy, slot: &str| {
        let waits = format!("1700000000000001 9 {me} 800 {slot} 1");
        let args = [token, "1", "2", FENCE_LIFE, RECORD_VERSION, &waits];
        let acquire = commands.acquire(owner, 1, 2, &policy);
        assert_sent(&acquire, Script::Acquire, &keys, &args);
    };
    let begins_at = owner.number() % 2 + 1;
    acquires(entering(entry), &begins_at.to_string());
    let releases =
        |command: &Command, args: &[&str]| assert_sent(command, Script::Release, &keys, args);
    let next = OwnerToken::draw().unwrap();
    let enters = format!("1 9 1 w{} 1", text(&next.to_value()));
    for (offer, said) in OFFERS {
        // It keeps no slot.
        let said = &*said.replace('-', "0");
        releases(
            &commands.release(owner, offer, QueueUpdate::None),
            &[token, said],
        );
        releases(
            &commands.release(owner, offer, staying(entry, None, next)),
            &[token, said, me, "5", &enters],
        );
    }

    let held = commands.of_slot(1);
    assert_eq!(
        (&held.key, commands.slot, held.slot),
        (&commands.key, None, Some(1))
    );
    let own = [
        slots[1],
        fences[1],
        RECORD_KEY,
        of_all[0],
        of_all[1],
        "quorlock:slot-readers-1:s",
    ];
    assert_sent(
        &held.extend(owner, 1, 2, true, None),
        Script::Extend,
        &own,
        &[token, "1", "2", FENCE_LIFE, RECORD_VERSION, "set"],
    );
    releases(
        &held.release(owner, Offer::default(), QueueUpdate::None),
        &[token, "0 604800000 800 0 0"],
    );
    let keeps = "0 604800000 800 0 2";
    releases(&held.keep(owner, None).unwrap(), &[token, keeps]);
    releases(
        &held.keep(owner, Some(client)).unwrap(),
        &[token, keeps, me],
    );
}

#[test]
fn only_a_semaphore_has_slots() {
    let several = LockCommands::multi(b"", [&b"a"[..], b"b"].into_iter(), TTLS);
    let mutex = LockCommands::mutex(b"", b"a", TTLS);
    for commands in [mutex.to_read(), mutex, several] {
        assert!(
            !commands.has_slots && commands.slot.is_none() && commands.of_slot(1).slot.is_none(),
            "{commands:?}"
        );
        assert!(
            commands.keep(OwnerToken::nobody(), None).is_none(),
            "{commands:?}"
        );
    }
    let semaphore = LockCommands::semaphore(b"", b"s", 1, TTLS);
    assert!(semaphore.has_slots && semaphore.of_slot(0).has_slots);
}

#[test]
fn only_a_set_of_names_has_several_keys() {
    let set = LockCommands::multi(b"p:", [&b"a"[..], b"b"].into_iter(), TTLS);
    assert!(
        set.multi_keys
            .iter()
            .map(|it| &**it)
            .eq([&b"p:a"[..], b"p:b"])
    );
    let mutex = LockCommands::mutex(b"p:", b"a", TTLS);
    for commands in [
        mutex.to_read(),
        mutex,
        LockCommands::semaphore(b"p:", b"a", 2, TTLS),
    ] {
        assert_eq!(commands.multi_keys.len(), 0, "{commands:?}");
    }
}

#[test]
fn a_queue_key_of_several_keys_is_stable_and_never_a_lock_name() {
    let set = |names: &[&'static str]| {
        LockCommands::multi(b"p:", names.iter().map(|it| it.as_bytes()), TTLS)
    };
    let semaphore =
        |name: &str, permits| LockCommands::semaphore(b"p:", name.as_bytes(), permits, TTLS);
    assert_eq!(set(&["a", "b"]).key, set(&["a", "b"]).key);
    assert_eq!(
        semaphore("a", 2).key,
        semaphore("a", 3).key,
        "calls that say another number wait with it"
    );
    let different = [
        set(&["a"]),
        set(&["a", "b"]),
        set(&["a", "c"]),
        set(&["ab"]),
        semaphore("a", 2),
        semaphore("b", 2),
    ];
    for (place, commands) in different.iter().enumerate() {
        assert!(
            LockCommands::mutex(b"", &commands.key, TTLS).is_reserved,
            "{commands:?}"
        );
        assert_eq!(
            different.iter().position(|it| it.key == commands.key),
            Some(place),
            "{commands:?}"
        );
    }
}

/// The name of a slot's semaphore may look like a slot.
#[test]
fn a_hand_over_without_a_call_is_released_by_its_key() {
    let client = ClientId::draw().unwrap();
    let me = text(&client.0);
    let value = "0123456789abcdef0123456789abcdef web-3/4711";
    let of_lock = |key: &str| in_order(key, &beside(key)).map(str::to_owned);
    let of_slot = [
        "quorlock:slot-7:quorlock:slot-8:s",
        "quorlock:slot-fence-7:quorlock:slot-8:s",
        RECORD_KEY,
        "quorlock:slot-mark:quorlock:slot-8:s",
        "quorlock:slot-waiting:quorlock:slot-8:s",
        "quorlock:slot-readers-7:quorlock:slot-8:s",
    ]
    .map(str::to_owned);
    for (reads, script, keys) in [
        (false, Script::Release, of_lock("app:a")),
        (true, Script::ReleaseShared, of_lock("app:a")),
        (false, Script::Release, of_slot),
        // No slot has these numbers.
        (false, Script::Release, of_lock("quorlock:slot-07:s")),
        (false, Script::Release, of_lock("quorlock:slot-256:s")),
    ] {
        let notice = HandedOver {
            token: Some(7),
            record_version: RecordVersion::NONE,
            life: 900,
            time: 0,
            asked_from: None,
            reads,
            is_question: false,
            value: SecretValue::new(value.as_bytes()),
            key: keys[0].clone().into(),
        };
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let command = LockCommands::give_back_handed_over(&notice, client);
        // It offers no token: whoever comes next asks for one.
        assert_sent(&command, script, &keys, &[value, "0 0 900 0 -", &me]);
        assert!(!command.waits);
    }
}

#[test]
fn the_length_of_several_names_is_that_of_all_of_them_with_their_prefixes() {
    let names = [&b"a"[..], b"report"];
    assert_eq!(LockCommands::mutex(b"app:", names[1], TTLS).key_len, 10);
    assert_eq!(
        LockCommands::multi(b"app:", names.into_iter(), TTLS).key_len,
        15
    );
    assert_eq!(
        LockCommands::semaphore(b"app:", names[1], 200, TTLS).key_len,
        10
    );
}

#[test]
fn reserved_names_are_recognised_with_their_prefix() {
    assert!(LockCommands::mutex(b"", b"quorlock:fence:a", KeyTtls::default()).is_reserved);
    assert!(LockCommands::mutex(b"quor", b"lock:x", KeyTtls::default()).is_reserved);
    assert!(!LockCommands::mutex(b"app:", b"quorlock:x", KeyTtls::default()).is_reserved);
    for (name, reserved) in [(b"quorlock:x", true), (b"quorlockly", false)] {
        let with = |names: [&'static [u8]; 2]| {
            LockCommands::multi(b"", names.into_iter(), KeyTtls::default())
        };
        assert_eq!(
            with([b"a", name]).is_reserved,
            reserved,
            "{}",
            name.escape_ascii()
        );
        assert_eq!(
            LockCommands::semaphore(b"", name, 2, KeyTtls::default()).is_reserved,
            reserved
        );
    }
}

#[test]
fn a_list_entry_has_the_kind_and_the_key_value_of_its_call() {
    let owner = OwnerToken::draw().unwrap();
    for commands in LockCommands::of_each_kind(TTLS) {
        let commands = LockCommands {
            label: OwnerLabel::new("web-3", 4711, "nightly"),
            ..commands
        };
        let kind = if commands.is_shared { "r" } else { "w" };
        let member = format!("{kind}{} web-3/4711/nightly", text(&owner.to_value()));
        assert_eq!(text(&commands.member(owner)), member);
    }
}

#[test]
fn only_a_readers_lock_is_shared() {
    assert_eq!(
        LockCommands::of_each_kind(TTLS)
            .iter()
            .filter(|commands| commands.is_shared)
            .count(),
        1
    );
    assert!(LockCommands::mutex(b"", b"a", TTLS).to_read().is_shared);
}

#[test]
fn every_command_of_a_hold_has_the_same_value_with_the_label_behind_the_token() {
    let label = OwnerLabel::new("web-3", 4711, "nightly");
    let owner = OwnerToken::draw().unwrap();
    let token = text(&owner.to_value());
    let policy = QueuePolicy {
        since: 1,
        entry: None,
        enters: false,
    };
    let full = format!("{token} web-3/4711/nightly");
    let signed = LockCommands::of_each_kind(TTLS).map(|it| {
        (
            LockCommands {
                label: label.clone(),
                ..it
            },
            &full,
        )
    });
    for (commands, value) in LockCommands::of_each_kind(TTLS)
        .map(|it| (it, &token))
        .into_iter()
        .chain(signed)
    {
        for command in [
            commands.acquire(owner, 1, 1, &policy),
            commands.raise(owner, 1),
            commands.extend(owner, 1, 1, true, None),
            commands.release(owner, Offer::default(), QueueUpdate::None),
        ] {
            let bytes = command.packed();
            let argument = format!("\r\n${}\r\n{value}\r\n", value.len());
            let found = bytes
                .windows(argument.len())
                .filter(|it| *it == argument.as_bytes())
                .count();
            assert_eq!(found, 1, "{}", bytes.escape_ascii());
        }
    }
}

#[test]
fn each_command_shows_whether_its_client_stays_on_a_list() {
    let owner = OwnerToken::nobody();
    let entry = QueueEntry {
        client: ClientId::draw().unwrap(),
        life: 9_999,
    };
    let client = entry.client;
    let stays = staying(entry, None, OwnerToken::draw().unwrap());
    for commands in LockCommands::of_each_kind(TTLS) {
        let alone = QueuePolicy {
            entry: None,
            enters: false,
            ..entering(entry)
        };
        for (policy, waits) in [
            (alone, false),
            (entering(entry), true),
            (without_place(entry), true),
        ] {
            let command = commands.acquire(owner, 1_500, 1, &policy);
            assert_eq!(command.waits, waits, "{commands:?} {policy:?}");
        }
        for command in [
            commands.extend(owner, 1_500, 1, false, Some(client)),
            commands.extend(owner, 1_500, 1, true, None),
        ] {
            assert!(!command.waits, "{commands:?}");
        }
        let release = |update| commands.release(owner, Offer::default(), update);
        for (command, waits) in [
            (commands.raise(owner, 1), false),
            (release(QueueUpdate::None), false),
            (release(QueueUpdate::Leave(client)), false),
            (release(stays.clone()), true),
        ] {
            assert_eq!(command.waits, waits, "{commands:?}");
        }
    }
}

fn same(command: &Command, script: Script, keys: &[&[u8]], args: &[&[u8]]) {
    let [sent, expected] = [command, &Command::of_script(script, keys, args)]
        .map(|it| it.packed().escape_ascii().to_string());
    assert_eq!(sent, expected);
}

const OPERATOR_TTLS: KeyTtls = KeyTtls {
    fence: 9,
    handed_over_ms: 800,
};

#[test]
fn an_operators_commands_have_the_keys_and_arguments_that_the_scripts_state() {
    let fence = b"quorlock:fence:a";
    let list = b"quorlock:waiting:a";
    let mark = b"quorlock:mark:a";
    let readers = b"quorlock:readers:a";
    let lock = LockKeys::named(b"a", None);
    same(
        &lock.inspect(),
        Script::Inspect,
        &[b"a", fence, list, readers],
        &[b"100", b"512"],
    );
    let keys: [&[u8]; 6] = [b"a", fence, RECORD, mark, list, readers];
    same(
        &lock.take(b"v", false, OPERATOR_TTLS),
        Script::Release,
        &keys,
        &[b"v", b"0 9 800 0 -"],
    );
    same(
        &lock.take(b"v", true, OPERATOR_TTLS),
        Script::ReleaseShared,
        &keys,
        &[b"v", b"0 9 800 0 -"],
    );
}

#[test]
fn a_slot_is_inspected_by_its_key_and_counter_and_the_common_list() {
    let slot = LockKeys::named(b"a", Some(7));
    let key = b"quorlock:slot-7:a";
    let fence = b"quorlock:slot-fence-7:a";
    let none = b"quorlock:slot-readers-7:a";
    let list = b"quorlock:slot-waiting:a";
    let mark = b"quorlock:slot-mark:a";
    same(
        &slot.inspect(),
        Script::Inspect,
        &[key, fence, list, none],
        &[b"100", b"512"],
    );
    same(
        &slot.take(b"v", false, OPERATOR_TTLS),
        Script::Release,
        &[key, fence, RECORD, mark, list, none],
        &[b"v", b"0 9 800 0 -"],
    );
}

#[test]
fn the_commands_of_a_job_have_the_keys_and_arguments_that_its_scripts_state() {
    let commands = LockCommands::mutex(b"app:", b"a", TTLS);
    let owner = OwnerToken::draw().unwrap();
    let token = owner.to_value();
    let keys: [&[u8]; 3] = [b"app:a", b"quorlock:done:app:a", RECORD];
    same(&commands.look(None), Script::OnceLook, &keys, &[]);
    let with_lock: [&[u8]; 2] = [&token, RECORD_VERSION.as_bytes()];
    same(
        &commands.look(Some(owner)),
        Script::OnceLook,
        &keys,
        &with_lock,
    );
    assert!(commands.look(Some(owner)).compares() && !commands.look(None).compares());
    let copy: [&[u8]; 2] = [b"1 done", b"7"];
    same(
        &commands.record(None, "1 done", 7_999),
        Script::OnceRecord,
        &keys,
        &copy,
    );
    let own: [&[u8]; 3] = [b"1 done", b"1", &token];
    same(
        &commands.record(Some(owner), "1 done", 0),
        Script::OnceRecord,
        &keys,
        &own,
    );
}

#[test]
fn the_search_for_locks_has_the_key_and_arguments_that_its_script_states() {
    let written = |command: &Command| command.packed().escape_ascii().to_string();
    let args: [&[u8]; 6] = [b"17", b"500", b"quorlock:*", b"60", b"60000", b"200000"];
    let expected = Command::of_script(Script::List, &[b"quorlock:record"], &args);
    assert_eq!(
        written(&list(ScanPlace {
            cursor: 17,
            count: 500
        })),
        written(&expected)
    );
}

/// The words of a command without hex digits, which differ between owners and times.
fn shape(command: &Command) -> Vec<String> {
    let packed = text(&command.packed());
    let words = packed.lines().skip(2).step_by(2);
    words
        .map(|word| word.replace(|it: char| it.is_ascii_hexdigit(), ""))
        .collect()
}

#[test]
fn b11_a_check_sends_commands_of_locks_on_own_keys() {
    const RECORD_AT: usize = 5;
    for prefix in ["", "x:", "{x}"] {
        let commands = check(prefix.as_bytes());
        let [_, of_locks @ .., _] = &commands[..] else {
            panic!("{commands:?}")
        };
        assert_eq!(of_locks.len(), 10);
        for (part, is_shared) in of_locks.chunks(5).zip([false, true]) {
            let mutex = LockCommands::mutex(prefix.as_bytes(), b"quorlock:check:1", TTLS);
            let lock = if is_shared { mutex.to_read() } else { mutex };
            let owner = OwnerToken::nobody();
            let entry = QueueEntry {
                client: ClientId([b'0'; 16]),
                life: 999,
            };
            let acquire = || lock.acquire(owner, 999, 1, &entering(entry));
            let release = || lock.release(owner, Offer::default(), QueueUpdate::None);
            let extend = lock.extend(owner, 9999, 1, true, None);
            let sent = [acquire(), acquire(), extend, release(), release()];
            for (checked, sent) in part.iter().zip(&sent) {
                let (mut here, mut there) = (shape(checked), shape(sent));
                assert_ne!(here.remove(RECORD_AT), there.remove(RECORD_AT));
                assert_eq!(here, there);
            }
        }
        // In a cluster all keys are in the slot of the prefix, and permitted by the access list.
        for command in &commands {
            let packed = text(&command.packed());
            let keys = packed.lines().filter(|it| it.contains("quorlock:"));
            for key in keys {
                assert!(key.contains(&format!("{prefix}quorlock:check:")), "{key}");
                let is_ours = key.starts_with(prefix) || key.starts_with("quorlock:");
                assert!(is_ours, "{key}");
            }
        }
    }
}
