//! What commands of locks say.

use super::*;
use crate::answer::Which;
use crate::wire::command::Naming;

#[test]
fn the_lock_key_is_the_name_and_keys_beside_it_put_the_kind_first() {
    let plan = Plan::mutex(b"app:", b"report", KeyTtls::default());
    assert_eq!(*plan.key, *b"app:report");
}

const TTLS: KeyTtls = KeyTtls { fence: 604_800_000 };
const FENCE_LIFE: &str = "604800000";
const RECORD_KEY: &str = "quorlock:record";
const EDITION: &str = "000000000000000";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Of a waiting call that began at 1700000000000001.
fn entering(entry: QueueEntry) -> QueuePolicy {
    QueuePolicy {
        since: 1_700_000_000_000_001,
        entry: Some(entry),
        enters: true,
        only: None,
    }
}

fn staying(entry: QueueEntry, which: Which) -> QueueUpdate {
    QueueUpdate::Stay {
        entry,
        since: 5,
        which,
    }
}

pub(super) fn assert_sent(command: &Command, script: Script, keys: &[&str], args: &[&str]) {
    let [keys, args] = [keys, args].map(|it| it.iter().map(|it| it.as_bytes()).collect::<Vec<_>>());
    let [sent, expected] = [command, &Command::of_script(script, &keys, &args)]
        .map(|it| it.packed().escape_ascii().to_string());
    assert_eq!(sent, expected);
}

#[test]
fn the_commands_of_a_mutex_have_the_keys_and_arguments_that_its_scripts_state() {
    let (client, owner) = (ClientId::draw().unwrap(), OwnerToken::draw().unwrap());
    let (me, token) = (&*text(&client.0), &*text(&owner.to_value()));
    let plan = Plan::mutex(b"app:", b"a", TTLS);
    let (lock, fence) = ("app:a", "quorlock:fence:app:a");
    let (list, turn) = ("quorlock:waiters:app:a", "quorlock:turn:app:a");
    let waiter = Waiter::Client(client);
    let entry = QueueEntry { waiter, life: 9 };

    let since = "1700000000000001";
    let (script, keys) = (Script::Acquire, &[lock, fence, list, turn, RECORD_KEY]);
    let acquire = |policy| plan.acquire(owner, 1, 2, &policy);
    let always = [token, "1", "2", FENCE_LIFE, EDITION];
    assert_sent(
        &acquire(entering(entry)),
        script,
        keys,
        &[&always[..], &[&*format!("{since} 9 {me} 1")]].concat(),
    );
    let last = "18446744073709551615";
    assert_sent(
        &acquire(entering(entry).without_place()),
        script,
        keys,
        &[&always[..], &[&*format!("{last}  {me} 1")]].concat(),
    );
    let alone = QueuePolicy {
        entry: None,
        ..entering(entry)
    };
    assert_sent(
        &acquire(alone),
        script,
        keys,
        &[&always[..], &[&*format!("{since}   1")]].concat(),
    );

    assert_sent(
        &plan.raise(owner, 4),
        Script::Raise,
        &[lock, fence],
        &[token, "4", FENCE_LIFE],
    );
    let extends = |command: &Command, more: &[&str]| {
        assert_sent(
            command,
            Script::Extend,
            &[lock, fence, RECORD_KEY],
            &[&always[..], more].concat(),
        );
    };
    extends(&plan.extend(owner, 1, 2, false), &[]);
    extends(&plan.extend(owner, 1, 2, true), &["keep"]);
    extends(&plan.heal(owner, 1, 2), &["heal"]);

    let releases = |update, args: &[&str]| {
        let raised = [&[token, "8", FENCE_LIFE], &args[1..]].concat();
        assert_sent(
            &plan.release(owner, None, update),
            Script::Release,
            &[lock, list, turn],
            args,
        );
        assert_sent(
            &plan.release(owner, Some(8), update),
            Script::Release,
            &[lock, list, turn, fence],
            &raised,
        );
    };
    releases(QueueUpdate::None, &[token]);
    releases(QueueUpdate::Leave(waiter), &[token, me]);
    releases(
        QueueUpdate::HandOver { waiter, since: 5 },
        &[token, me, "5"],
    );
    releases(staying(entry, None), &[token, me, "5", "9", "1"]);
}

#[test]
fn a_readers_commands_have_the_keys_and_arguments_that_its_scripts_state() {
    let (client, owner) = (ClientId::draw().unwrap(), OwnerToken::draw().unwrap());
    let (me, token) = (
        &*format!("{}r12", text(&client.0)),
        &*text(&owner.to_value()),
    );
    let entry = QueueEntry {
        waiter: Waiter::Reader(client, 12),
        life: 9,
    };
    let plan = Plan::mutex(b"", b"a", TTLS).to_read();
    let (fence, list, turn) = ("quorlock:fence:a", "quorlock:waiters:a", "quorlock:turn:a");
    let readers = "quorlock:readers:a";
    assert_eq!((&*plan.key, plan.key_len), (&b"a"[..], 1));

    assert_sent(
        &plan.acquire(owner, 1, 2, &entering(entry)),
        Script::AcquireShared,
        &["a", fence, list, turn, RECORD_KEY, readers],
        &[
            token,
            "1",
            "2",
            FENCE_LIFE,
            EDITION,
            &format!("1700000000000001 9 {me} 1"),
        ],
    );
    assert_sent(
        &plan.raise(owner, 4),
        Script::RaiseShared,
        &["a", fence, readers],
        &[token, "4", FENCE_LIFE],
    );
    assert_sent(
        &plan.heal(owner, 1, 2),
        Script::ExtendShared,
        &["a", fence, RECORD_KEY, readers, list, turn],
        &[token, "1", "2", FENCE_LIFE, EDITION, "heal"],
    );
    assert_sent(
        &plan.release(owner, Some(8), staying(entry, None)),
        Script::ReleaseShared,
        &["a", list, turn, readers],
        &[token, me, "5", "9", "1"],
    );
}

#[test]
fn the_commands_of_several_locks_have_their_keys_kind_by_kind_and_the_arguments_that_the_scripts_state()
 {
    let (client, owner) = (ClientId::draw().unwrap(), OwnerToken::draw().unwrap());
    let plan = Plan::several(b"", [&b"a"[..], b"b"].into_iter(), TTLS);
    let (me, token) = (
        &*format!("{}/{}", text(&client.0), text(&plan.key)),
        &*text(&owner.to_value()),
    );
    let entry = QueueEntry {
        waiter: Waiter::Client(client),
        life: 9,
    };
    let (locks, fences) = (["a", "b"], ["quorlock:fence:a", "quorlock:fence:b"]);
    let (turns, lists) = (
        ["quorlock:turn:a", "quorlock:turn:b"],
        ["quorlock:waiters:a", "quorlock:waiters:b"],
    );

    assert_sent(
        &plan.acquire(owner, 1, 2, &entering(entry)),
        Script::AcquireMany,
        &[&locks[..], &fences, &turns, &lists, &[RECORD_KEY]].concat(),
        &[
            token,
            "1",
            "2",
            FENCE_LIFE,
            EDITION,
            &format!("1700000000000001 9 {me} 1"),
        ],
    );
    let few = [locks, fences].concat();
    assert_sent(
        &plan.raise(owner, 4),
        Script::Raise,
        &few,
        &[token, "4", FENCE_LIFE],
    );
    assert_sent(
        &plan.heal(owner, 1, 2),
        Script::Extend,
        &[&few[..], &[RECORD_KEY]].concat(),
        &[token, "1", "2", FENCE_LIFE, EDITION, "heal"],
    );
    let releases = |raised, update, args: &[&str]| {
        let keys = [locks, fences, turns, lists].concat();
        assert_sent(
            &plan.release(owner, raised, update),
            Script::ReleaseMany,
            &keys,
            args,
        );
    };
    releases(
        None,
        QueueUpdate::Leave(entry.waiter),
        &[token, "", FENCE_LIFE, me],
    );
    releases(
        Some(8),
        staying(entry, Some(1)),
        &[token, "8", FENCE_LIFE, me, "5", "9", "2", "1"],
    );
    releases(
        None,
        staying(entry, None),
        &[token, "", FENCE_LIFE, me, "5", "9", "1", "1"],
    );
}

#[test]
fn the_commands_of_a_semaphore_have_the_keys_of_all_slots_and_those_of_a_hold_its_own() {
    let (client, owner) = (ClientId::draw().unwrap(), OwnerToken::draw().unwrap());
    let plan = Plan::semaphore(b"", b"s", 2, TTLS);
    let (me, token) = (
        &*format!("{}/{}", text(&client.0), text(&plan.key)),
        &*text(&owner.to_value()),
    );
    let entry = QueueEntry {
        waiter: Waiter::Client(client),
        life: 9,
    };
    let (slots, fences) = (
        ["quorlock:slot-0:s", "quorlock:slot-1:s"],
        ["quorlock:slot-fence-0:s", "quorlock:slot-fence-1:s"],
    );
    let keys = [
        slots,
        fences,
        ["quorlock:slot-turn:s", "quorlock:slot-waiters:s"],
    ]
    .concat();

    let acquires = |policy, first, only| {
        assert_sent(
            &plan.acquire(owner, 1, 2, &policy),
            Script::AcquireSlot,
            &[&keys[..], &[RECORD_KEY]].concat(),
            &[
                token,
                "1",
                "2",
                FENCE_LIFE,
                EDITION,
                first,
                only,
                &format!("1700000000000001 9 {me} 1"),
            ],
        );
    };
    acquires(
        entering(entry),
        if owner.number() % 2 == 0 { "1" } else { "2" },
        "0",
    );
    acquires(
        QueuePolicy {
            only: Some(0),
            ..entering(entry)
        },
        "1",
        "1",
    );
    acquires(
        QueuePolicy {
            only: Some(1),
            ..entering(entry)
        },
        "2",
        "1",
    );
    let releases =
        |command: &Command, args: &[&str]| assert_sent(command, Script::ReleaseSlots, &keys, args);
    releases(
        &plan.release(owner, None, QueueUpdate::None),
        &[token, "0", "", FENCE_LIFE],
    );
    releases(
        &plan.release(owner, Some(8), staying(entry, None)),
        &[token, "0", "8", FENCE_LIFE, me, "5", "9", "1"],
    );

    let held = plan.of_slot(1);
    assert_eq!(
        (&held.key, plan.slot, held.slot),
        (&plan.key, None, Some(1))
    );
    let own = [slots[1], fences[1]];
    assert_sent(
        &held.raise(owner, 4),
        Script::Raise,
        &own,
        &[token, "4", FENCE_LIFE],
    );
    assert_sent(
        &held.heal(owner, 1, 2),
        Script::Extend,
        &[&own[..], &[RECORD_KEY]].concat(),
        &[token, "1", "2", FENCE_LIFE, EDITION, "heal"],
    );
    releases(
        &held.release(owner, None, QueueUpdate::None),
        &[token, "0", "", FENCE_LIFE],
    );
    releases(
        &held.keep(owner, None).unwrap(),
        &[token, "2", "", FENCE_LIFE],
    );
    releases(
        &held.keep(owner, Some(entry.waiter)).unwrap(),
        &[token, "2", "", FENCE_LIFE, me],
    );
}

#[test]
fn only_a_semaphore_has_slots_and_only_others_are_noted() {
    let several = Plan::several(b"", [&b"a"[..], b"b"].into_iter(), TTLS);
    let mutex = Plan::mutex(b"", b"a", TTLS);
    for plan in [mutex.to_read(), mutex, several] {
        assert!(
            plan.is_noted && plan.slot.is_none() && plan.of_slot(1).slot.is_none(),
            "{plan:?}"
        );
        assert!(plan.keep(OwnerToken::nobody(), None).is_none(), "{plan:?}");
    }
    let semaphore = Plan::semaphore(b"", b"s", 1, TTLS);
    assert!(!semaphore.is_noted && !semaphore.of_slot(0).is_noted);
}

#[test]
fn only_a_set_has_parts_which_are_the_keys_of_its_names() {
    let set = Plan::several(b"p:", [&b"a"[..], b"b"].into_iter(), TTLS);
    assert!(set.parts.iter().map(|it| &**it).eq([&b"p:a"[..], b"p:b"]));
    let mutex = Plan::mutex(b"p:", b"a", TTLS);
    for plan in [
        mutex.to_read(),
        mutex,
        Plan::semaphore(b"p:", b"a", 2, TTLS),
    ] {
        assert_eq!(plan.parts.len(), 0, "{plan:?}");
    }
}

#[test]
fn what_stands_for_several_keys_is_the_same_for_the_same_ones_and_no_lock_has_it() {
    let set =
        |names: &[&'static str]| Plan::several(b"p:", names.iter().map(|it| it.as_bytes()), TTLS);
    let semaphore = |name: &str, permits| Plan::semaphore(b"p:", name.as_bytes(), permits, TTLS);
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
    for (place, plan) in different.iter().enumerate() {
        assert!(Plan::mutex(b"", &plan.key, TTLS).is_reserved, "{plan:?}");
        assert_eq!(
            different.iter().position(|it| it.key == plan.key),
            Some(place),
            "{plan:?}"
        );
    }
}

#[test]
fn a_client_leaves_the_list_of_a_lock_by_its_key_and_not_that_of_what_no_lock_is_called() {
    let client = ClientId::draw().unwrap();
    let me = text(&client.0);
    let nobody = text(&OwnerToken::nobody().to_value());
    let keys = ["app:a", "quorlock:waiters:app:a", "quorlock:turn:app:a"];
    let leave = Plan::leave_key(b"app:a", client).unwrap();
    assert_sent(&leave, Script::Release, &keys, &[&nobody, &me]);
    let set = Plan::several(b"", [&b"a"[..], b"b"].into_iter(), TTLS);
    assert!(Plan::leave_key(&set.key, client).is_none());
}

#[test]
fn the_length_of_several_names_is_that_of_all_of_them_with_their_prefixes() {
    let names = [&b"a"[..], b"report"];
    assert_eq!(Plan::mutex(b"app:", names[1], TTLS).key_len, 10);
    assert_eq!(Plan::several(b"app:", names.into_iter(), TTLS).key_len, 15);
    assert_eq!(Plan::semaphore(b"app:", names[1], 200, TTLS).key_len, 10);
}

#[test]
fn reserved_names_are_recognised_with_their_prefix() {
    assert!(Plan::mutex(b"", b"quorlock:fence:a", KeyTtls::default()).is_reserved);
    assert!(Plan::mutex(b"quor", b"lock:x", KeyTtls::default()).is_reserved);
    assert!(!Plan::mutex(b"app:", b"quorlock:x", KeyTtls::default()).is_reserved);
    for (name, reserved) in [(b"quorlock:x", true), (b"quorlockly", false)] {
        let with =
            |names: [&'static [u8]; 2]| Plan::several(b"", names.into_iter(), KeyTtls::default());
        assert_eq!(
            with([b"a", name]).is_reserved,
            reserved,
            "{}",
            name.escape_ascii()
        );
        assert_eq!(
            Plan::semaphore(b"", name, 2, KeyTtls::default()).is_reserved,
            reserved
        );
    }
}

#[test]
fn only_a_readers_lock_is_shared() {
    assert_eq!(
        Plan::of_each_form(TTLS)
            .iter()
            .filter(|plan| plan.is_shared)
            .count(),
        1
    );
    assert!(Plan::mutex(b"", b"a", TTLS).to_read().is_shared);
}

#[test]
fn a_key_that_no_lock_is_called_by_does_not_tell_the_lists() {
    let of_its_own = |plan: Plan| plan.has_lists_of_its_own();
    assert!(of_its_own(Plan::several(
        b"",
        [&b"a"[..], b"b"].into_iter(),
        TTLS
    )));
    assert!(of_its_own(Plan::semaphore(b"", b"s", 2, TTLS).of_slot(1)));
    let mutex = Plan::mutex(b"", b"a", TTLS);
    assert!(!of_its_own(mutex.to_read()) && !of_its_own(mutex));
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
        only: None,
    };
    let full = format!("{token} web-3/4711/nightly");
    let signed = Plan::of_each_form(TTLS).map(|it| {
        (
            Plan {
                label: label.clone(),
                ..it
            },
            &full,
        )
    });
    for (plan, value) in Plan::of_each_form(TTLS)
        .map(|it| (it, &token))
        .into_iter()
        .chain(signed)
    {
        for command in [
            plan.acquire(owner, 1, 1, &policy),
            plan.raise(owner, 1),
            plan.extend(owner, 1, 1, true),
            plan.heal(owner, 1, 1),
            plan.release(owner, None, QueueUpdate::None),
        ] {
            let (bytes, argument) = (
                command.packed(),
                format!("\r\n${}\r\n{value}\r\n", value.len()),
            );
            let found = bytes
                .windows(argument.len())
                .filter(|it| *it == argument.as_bytes())
                .count();
            assert_eq!(found, 1, "{}", bytes.escape_ascii());
        }
    }
}

#[test]
fn every_command_says_for_how_long_its_lock_can_live_and_whether_the_client_may_be_in_a_list_after_it()
 {
    let owner = OwnerToken::nobody();
    let waiter = Waiter::Client(ClientId::draw().unwrap());
    let entry = QueueEntry {
        waiter,
        life: 9_999,
    };
    for plan in Plan::of_each_form(TTLS) {
        let alone = QueuePolicy {
            entry: None,
            enters: false,
            ..entering(entry)
        };
        for (policy, waits) in [
            (alone, false),
            (entering(entry), true),
            (entering(entry).without_place(), true),
        ] {
            let command = plan.acquire(owner, 1_500, 1, &policy);
            assert_eq!(
                (command.life.as_millis(), command.waits),
                (1_500, waits),
                "{plan:?} {policy:?}"
            );
        }
        for command in [
            plan.extend(owner, 1_500, 1, true),
            plan.heal(owner, 1_500, 1),
        ] {
            assert_eq!(
                (command.life.as_millis(), command.waits),
                (1_500, false),
                "{plan:?}"
            );
        }
        for (command, waits) in [
            (plan.raise(owner, 1), false),
            (plan.release(owner, None, QueueUpdate::None), false),
            (plan.leave(waiter), false),
            (
                plan.release(owner, None, QueueUpdate::HandOver { waiter, since: 5 }),
                false,
            ),
            (plan.release(owner, None, staying(entry, None)), true),
        ] {
            assert_eq!(
                (command.life.as_millis(), command.waits),
                (0, waits),
                "{plan:?}"
            );
        }
    }
    assert!(Command::time().life.is_zero());
}

#[test]
fn h3_a_release_that_is_sent_again_says_nothing_of_the_list_unless_the_call_stays_in_it() {
    let owner = OwnerToken::draw().unwrap();
    let waiter = Waiter::Client(ClientId::draw().unwrap());
    let entry = QueueEntry {
        waiter,
        life: 9_999,
    };
    for plan in Plan::of_each_form(TTLS) {
        let again = |update| {
            text(
                &plan
                    .release(owner, Some(8), update)
                    .packed_as(Naming::Again),
            )
        };
        let (silent, stays) = (again(QueueUpdate::None), again(staying(entry, None)));
        assert_eq!(again(QueueUpdate::Leave(waiter)), silent);
        assert_eq!(again(QueueUpdate::HandOver { waiter, since: 5 }), silent);
        let client = text(&plan.member(waiter));
        assert!(
            stays.contains(&client) && !silent.contains(&client),
            "{stays}"
        );
    }
}
