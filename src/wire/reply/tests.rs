//! What replies are read as, and what is none.

use super::*;
use crate::wire::script::Script;
use proptest::prelude::*;

/// Status, counter, time left, entered, node time, which; and a text.
fn frame(numbers: [i64; 6], text: &str) -> String {
    let numbers: String = numbers.iter().map(|it| format!(":{it}\r\n")).collect();
    format!("*7\r\n{numbers}${}\r\n{text}\r\n", text.len())
}

#[test]
fn replies_of_the_scripts_are_read() {
    let read = |kind, frame: &str| Reply::read(kind, frame.as_bytes()).answer;
    assert_eq!(
        read(Kind::Acquire, &frame([0, 7, 1_500, 0, 9, 0], "web-3/4711")),
        Answer::Lock(LockReply {
            left: Some(Duration::from_millis(1500)),
            holder: Some("web-3/4711".into()),
            ..LockReply::new(LockStatus::Held, 7)
        })
    );
    assert_eq!(
        read(Kind::Acquire, &frame([0, 7, -1, 1, 9, 0], "")),
        Answer::Lock(LockReply {
            queued: true,
            ..LockReply::new(LockStatus::Held, 7)
        })
    );
    assert_eq!(
        read(Kind::Acquire, &frame([6, 7, 900, 1, 9, 0], "")),
        Answer::Lock(LockReply {
            left: Some(Duration::from_millis(900)),
            queued: true,
            ..LockReply::new(LockStatus::HeldByReaders, 7)
        })
    );
    assert_eq!(
        read(
            Kind::Subscribe,
            ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
        ),
        Answer::Subscribed
    );
    assert_eq!(
        read(Kind::Raise, &frame([2, 7, 0, 0, 9, 0], "")),
        Answer::with_counter(LockStatus::NotRaised, 7)
    );
    assert_eq!(
        read(Kind::Release, ":1\r\n"),
        Answer::Released { was_ours: true }
    );
    assert_eq!(
        read(Kind::Acquire, ":1700000000000000\r\n"),
        Answer::of(LockStatus::Accepted)
    );
    for kind in [Kind::Acquire, Kind::Raise, Kind::Extend] {
        assert_eq!(read(kind, ":-3\r\n"), Answer::Changed);
    }
    assert_eq!(
        read(Kind::Acquire, &frame([5, 7, 0, 0, 9, 0], "")),
        Answer::with_counter(LockStatus::ProposalTooFarAhead, 7)
    );
    assert_eq!(
        read(Kind::Extend, ":1700000000000000\r\n"),
        Answer::of(LockStatus::Extended)
    );
    assert_eq!(
        read(Kind::Extend, &frame([4, 7, 0, 0, 9, 0], "")),
        Answer::of(LockStatus::Healed)
    );
    assert_eq!(read(Kind::Release, "-NOSCRIPT x\r\n"), Answer::NoScript);
}

#[test]
fn every_status_of_a_script_is_a_separate_answer() {
    let read = |kind, frame: String| Reply::read(kind, frame.as_bytes()).answer;
    let acquire = |status: i64| read(Kind::Acquire, frame([status, 7, 900, 0, 9, 0], ""));
    for (status, reply) in [
        (2, Answer::with_counter(LockStatus::ProposalBehind, 7)),
        (5, Answer::with_counter(LockStatus::ProposalTooFarAhead, 7)),
        (7, Answer::with_counter(LockStatus::Shared, 7)),
        (-1, Answer::of(LockStatus::WrongType)),
        (-2, Answer::of(LockStatus::BadCounter)),
    ] {
        assert_eq!(acquire(status), reply);
    }
    let raise = |status: i64| read(Kind::Raise, frame([status, 7, 0, 0, 9, 0], ""));
    for (status, reply) in [
        (1, Answer::of(LockStatus::Raised)),
        (2, Answer::with_counter(LockStatus::NotRaised, 7)),
        (0, Answer::of(LockStatus::NotOurs)),
        (3, Answer::of(LockStatus::NotOurs)),
        (-1, Answer::of(LockStatus::BadCounter)),
        (-2, Answer::of(LockStatus::BadCounter)),
    ] {
        assert_eq!(raise(status), reply);
    }
    let extend = |status: i64| read(Kind::Extend, frame([status, 7, 0, 0, 9, 0], ""));
    for (status, reply) in [
        (1, Answer::of(LockStatus::Extended)),
        (2, Answer::of(LockStatus::Superseded)),
        (3, Answer::of(LockStatus::NotOurs)),
        (4, Answer::of(LockStatus::Healed)),
        (6, Answer::with_counter(LockStatus::Lifted, 7)),
        (0, Answer::with_counter(LockStatus::Gone, 7)),
        (-1, Answer::of(LockStatus::BadCounter)),
        (-2, Answer::of(LockStatus::BadCounter)),
    ] {
        assert_eq!(extend(status), reply);
    }
    let sync_record = |status: i64| {
        read(
            Kind::SyncRecord,
            format!(
                "*10\r\n:{status}\r\n:900\r\n:8\r\n:{}\r\n:9\r\n:3\r\n:1\r\n:0\r\n:2\r\n$44\r\nvolatile-ttl 000000000000009 000000000000004\r\n",
                status % 2
            ),
        )
    };
    for (status, record) in [
        (1, Record::Kept),
        (2, Record::Missing),
        (3, Record::Another),
        (4, Record::KeptFromNothing),
        (5, Record::Vouched),
        (6, Record::Off),
    ] {
        let shown = RecordReply {
            max_ttl: 8,
            is_stored: status % 2 == 1,
            record_version: RecordVersion::new(9),
            versions: "000000000000009 000000000000004".to_owned(),
            servers: 3,
            is_limited: true,
            append_only: Some(false),
            replicas: 2,
            evicts: Some("volatile-ttl".to_owned()),
            ..RecordReply::of(record, Duration::from_millis(900))
        };
        assert_eq!(sync_record(status), Answer::Record(shown));
    }
    assert_eq!(
        read(Kind::Release, ":0\r\n".to_owned()),
        Answer::Released { was_ours: false }
    );
}

#[test]
fn the_policy_of_a_server_is_cut_and_has_no_control_characters() {
    let policy = format!("\x1b[2J{}", "x".repeat(50_000));
    let size = policy.len() + 1;
    let frame = format!(
        "*10\r\n:1\r\n:900\r\n:8\r\n:1\r\n:9\r\n:3\r\n:1\r\n:0\r\n:2\r\n${size}\r\n{policy} \r\n"
    );
    let Answer::Record(shown) = Reply::read(Kind::SyncRecord, frame.as_bytes()).answer else {
        panic!("no sync_command")
    };
    let shown = shown.evicts.unwrap();
    assert!(!shown.contains(char::is_control), "{shown:?}");
    assert!(shown.len() < 600, "{} bytes", shown.len());
}

#[test]
fn an_answer_about_several_names_shows_the_refused_one() {
    let read =
        |numbers: [i64; 6], text| Reply::read(Kind::Acquire, frame(numbers, text).as_bytes());
    let which = Some(1);
    let reply = |reply| Reply {
        answer: Answer::Lock(reply),
        time: Some(9),
    };
    for (number, status) in [(-1, LockStatus::WrongType), (-2, LockStatus::BadCounter)] {
        let expected = LockReply {
            which,
            ..LockReply::new(status, 0)
        };
        assert_eq!(read([number, 0, 0, 0, 9, 2], ""), reply(expected));
    }
    let held = LockReply {
        holder: Some("x".into()),
        which,
        ..LockReply::new(LockStatus::Held, 7)
    };
    assert_eq!(read([0, 7, -1, 0, 9, 2], "x"), reply(held));
    let by_readers = LockReply {
        left: Some(Duration::from_millis(900)),
        queued: true,
        which,
        ..LockReply::new(LockStatus::HeldByReaders, 7)
    };
    assert_eq!(read([6, 7, 900, 1, 9, 2], ""), reply(by_readers));
}

/// The scripts send zeros where a status has no such field.
#[test]
fn an_answer_has_no_field_beside_those_of_its_status() {
    for kind in [Kind::Acquire, Kind::Raise, Kind::Extend] {
        let mut read = 0;
        for status in -2..=7 {
            let numbers = [status, 7, 900, 1, 9, 0];
            let answer = Reply::read(kind, frame(numbers, "").as_bytes()).answer;
            let Answer::Lock(reply) = answer else {
                assert!(matches!(answer, Answer::Failed(_)), "{answer:?}");
                continue;
            };
            read += 1;
            if kind == Kind::Acquire && matches!(status, 0 | 6) {
                assert!(reply.queued && reply.left == Some(Duration::from_millis(900)));
            } else {
                let counter = reply.counter.unwrap_or(0);
                assert_eq!(reply, LockReply::new(reply.status, counter), "{kind:?}");
            }
        }
        let known = match kind {
            Kind::Acquire => 7,
            Kind::Raise => 6,
            _ => 8,
        };
        assert_eq!(read, known, "{kind:?}");
    }
}

/// Whoever takes a part of an answer for another counts each that follows for another command.
#[test]
fn h18_an_answer_about_a_lock_has_one_form_exactly() {
    let good = frame([0, 7, -1, 0, 9, 2], "x");
    for nonsense in [
        good.replace("*7", "*6"),
        good.replace("*7", "*8"),
        good.replace("$1", "$2"),
        good.replace("$1", "$0"),
        good.replace("$1\r\nx", ":3"),
        good.replace(":-1\r\n", ""),
        good.clone() + "x",
        good.clone() + "\r\n",
        good.replace(":7", ":-7"),
        frame([6, 7, 900, 1, 9, 2], "x"),
        frame([1, 7, 0, 0, 9, 0], ""),
        frame([2, 7, 0, 0, 9, 0], "x"),
        frame([8, 7, 0, 0, 9, 0], ""),
        // With a lock or a slot where no answer has one.
        frame([5, 7, 0, 0, 9, 2], ""),
        frame([7, 7, 0, 0, 9, 2], ""),
        frame([0, 7, -1, 0, 9, -1], ""),
        frame([2, 7, 0, 0, 9, 257], ""),
        "*2\r\n:2\r\n:7\r\n".to_owned(),
        ":1\r\n".to_owned(),
        ":1000000\r\n".to_owned(),
        ":1700000000000000\r\n:1\r\n".to_owned(),
    ] {
        let answer = Reply::read(Kind::Acquire, nonsense.as_bytes()).answer;
        let is_none = matches!(answer, Answer::Failed(NodeFailure::Protocol { .. }));
        assert!(is_none, "{nonsense:?}: {answer:?}");
    }
    for other in [Kind::Raise, Kind::Extend, Kind::Release] {
        let answer = Reply::read(other, good.as_bytes()).answer;
        assert!(matches!(answer, Answer::Failed(_)), "{other:?}: {answer:?}");
    }
}

#[test]
fn an_answer_about_slots_says_which_was_granted() {
    let read = |frame: &str| Reply::read(Kind::Acquire, frame.as_bytes());
    for (status, counter) in [(1, None), (2, Some(7))] {
        let answer = Answer::of_slot(2, counter);
        assert_eq!(
            read(&frame([status, 7, 0, 0, 9, 3], "")),
            Reply {
                answer,
                time: Some(9)
            }
        );
    }
    let whole = frame([1, 0, 0, 0, 9, 256], "");
    assert_eq!(read(&whole).answer, Answer::of_slot(255, None));
    for nonsense in [
        // With a text.
        frame([1, 0, 0, 0, 9, 3], "3"),
        frame([2, 7, 0, 0, 9, 3], "3"),
        // Without a slot.
        frame([1, 0, 0, 0, 9, 0], ""),
        frame([1, 0, 0, 0, 9, 257], ""),
        frame([1, 0, 0, 0, 9, 1], "") + "x",
        frame([1, -1, 0, 0, 9, 1], ""),
    ] {
        assert!(
            matches!(
                read(&nonsense).answer,
                Answer::Failed(NodeFailure::Protocol { .. })
            ),
            "{nonsense}"
        );
    }
}

#[test]
fn a_reply_is_read_by_the_kind_of_its_command() {
    let read = |kind, frame: &str| Reply::read(kind, frame.as_bytes()).answer;
    let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    assert_eq!(
        read(Kind::Release, wrong_type),
        Answer::Released { was_ours: false },
        "somebody else's"
    );
    assert_eq!(
        read(Kind::Acquire, wrong_type),
        Answer::Failed(NodeFailure::KeyInUse {
            name: None,
            what: NodeFailure::ANOTHER_TYPE
        })
    );
    let time = "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n";
    let others = ALL.into_iter().filter(|kind| *kind != Kind::Time);
    for kind in others.chain([Kind::SyncRecord]) {
        assert!(
            matches!(
                read(kind, time),
                Answer::Failed(NodeFailure::Protocol { .. })
            ),
            "{kind:?}"
        );
    }
    let stored = "*8\r\n:0\r\n:0\r\n:-1\r\n:0\r\n:0\r\n:1\r\n$0\r\n\r\n:0\r\n";
    assert!(matches!(read(Kind::Inspect, stored), Answer::Inspect(_)));
    for kind in [
        Kind::Acquire,
        Kind::Raise,
        Kind::Extend,
        Kind::Release,
        Kind::SyncRecord,
        Kind::Time,
    ] {
        assert!(
            matches!(
                read(kind, stored),
                Answer::Failed(NodeFailure::Protocol { .. })
            ),
            "{kind:?}"
        );
    }
}

/// A reply of `inspect.lua`, of these members: a number, or text behind a dollar sign.
fn inspected_of(members: &[&str]) -> Answer {
    let member = |it: &&str| match it.strip_prefix('$') {
        Some(text) => format!("${}\r\n{text}\r\n", text.len()),
        None => format!(":{it}\r\n"),
    };
    let frame = format!(
        "*{}\r\n{}",
        members.len(),
        members.iter().map(member).collect::<String>()
    );
    Reply::read(Kind::Inspect, frame.as_bytes()).answer
}

#[test]
fn the_stored_state_of_a_lock_is_read() {
    let stored = |members: &[&str]| match inspected_of(members) {
        Answer::Inspect(stored) => *stored,
        other => panic!("{other:?}"),
    };
    let secs = Duration::from_secs;
    let value = |text: &str| SecretValue::new(text.as_bytes());
    let token = "0123456789abcdef0123456789abcdef";
    let free = stored(&["0", "0", "-1", "0", "0", "1700000000000000", "$", "0"]);
    let nothing = StoredLock {
        key: StoredKey::Missing,
        left: None,
        counter: None,
        waiting: 0,
        waiting_for: None,
    };
    assert_eq!(free, nothing);

    let text = format!("{token} web-3/4711");
    let of = [
        "1",
        "2000",
        "7",
        "3",
        "1699999999000000",
        "1700000000000000",
        &format!("${text}"),
        "0",
    ];
    let expected = StoredLock {
        key: StoredKey::Held {
            holder: Some("web-3/4711".into()),
            value: value(&text),
        },
        left: Some(secs(2)),
        counter: Some(7),
        waiting: 3,
        waiting_for: Some(secs(1)),
    };
    assert_eq!(stored(&of), expected);

    for foreign in [
        "x",
        "0123",
        &format!("{token}x web"),
        &token.replace('0', "g"),
        &format!("{text}{}", "y".repeat(96)),
    ] {
        let of = ["1", "-1", "-2", "0", "0", "1", &format!("${foreign}"), "0"];
        let key = StoredKey::Held {
            holder: None,
            value: value(foreign),
        };
        assert_eq!(
            stored(&of),
            StoredLock {
                key,
                ..nothing.clone()
            }
        );
    }

    let of = [
        "3",
        "2000",
        "-2",
        "0",
        "0",
        "1",
        "$",
        "9",
        &format!("${text}"),
        "1000",
        "$x",
        "3000",
    ];
    let first = StoredReader {
        holder: Some("web-3/4711".into()),
        left: secs(1),
        value: value(&text),
    };
    let second = StoredReader {
        holder: None,
        left: secs(3),
        value: value("x"),
    };
    let key = StoredKey::Read {
        count: 9,
        readers: vec![first, second],
    };
    assert_eq!(
        stored(&of),
        StoredLock {
            key,
            left: Some(secs(2)),
            ..nothing.clone()
        }
    );

    for (what, key) in [("-1", StoredKey::OtherType), ("2", StoredKey::Foreign)] {
        let of = [what, "5000", "-1", "0", "0", "1", "$", "0"];
        assert_eq!(
            stored(&of),
            StoredLock {
                key,
                left: Some(secs(5)),
                ..nothing.clone()
            }
        );
    }
}

#[test]
fn g6_a_malformed_inspection_reply_is_a_failure() {
    let good = ["3", "2000", "5", "1", "1", "1", "$", "1", "$x", "1000"];
    assert!(matches!(inspected_of(&good), Answer::Inspect(_)));
    let nonsense = |members: &[&str]| {
        let answer = inspected_of(members);
        assert!(
            matches!(answer, Answer::Failed(NodeFailure::Protocol { .. })),
            "{members:?}: {answer:?}"
        );
    };
    for end in [0, 1, 7, 9] {
        nonsense(&good[..end]);
    }
    // The answer behind it, where nothing is read.
    for what in ["0", "1", "2", "-1"] {
        nonsense(&[what, "9", "5", "1", "1", "1", "$", "0", "1700000000000001"]);
    }
    for (place, other) in [
        (0, "4"),
        (0, "-2"),
        (0, "$3"),
        (1, "$1"),
        (2, "$1"),
        (3, "-1"),
        (4, "$1"),
        (5, "-1"),
        (5, "$1"),
        (6, "1"),
        (7, "-1"),
        (7, "$1"),
        (8, "1"),
        (9, "-1"),
        (9, "$1"),
    ] {
        let mut members = good;
        members[place] = other;
        nonsense(&members);
    }
}

#[test]
fn a_page_of_listed_keys_is_read() {
    let listed = |frame: &str| Reply::read(Kind::List, frame.as_bytes()).answer;
    let keys = vec![b"quorlock:fence:a".to_vec()];
    assert_eq!(
        listed("*3\r\n$2\r\n17\r\n:0\r\n$16\r\nquorlock:fence:a\r\n"),
        Answer::Listed {
            next: 17,
            too_many: false,
            keys
        }
    );
    let none = Answer::Listed {
        next: u64::MAX,
        too_many: true,
        keys: Vec::new(),
    };
    assert_eq!(listed("*2\r\n$20\r\n18446744073709551615\r\n:1\r\n"), none);
    for wrong in [
        "*2\r\n:17\r\n:0\r\n",
        "*2\r\n$1\r\nx\r\n:0\r\n",
        "*2\r\n$1\r\n1\r\n:2\r\n",
        "*3\r\n$1\r\n1\r\n:0\r\n:1\r\n",
        "*1\r\n$1\r\n1\r\n",
    ] {
        assert!(
            matches!(listed(wrong), Answer::Failed(NodeFailure::Protocol { .. })),
            "{wrong}"
        );
    }
}

#[test]
fn the_nodes_time_is_read() {
    for (kind, frame) in [
        (Kind::Acquire, ":1700000000000001\r\n"),
        (
            Kind::Acquire,
            "*7\r\n:0\r\n:7\r\n:-1\r\n:1\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
        ),
        (
            Kind::Extend,
            "*7\r\n:1\r\n:7\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
        ),
        (Kind::Time, "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n"),
    ] {
        let time = Reply::read(kind, frame.as_bytes()).time;
        assert_eq!(time, Some(1_700_000_000_000_001), "{kind:?}");
    }
    assert_eq!(Reply::read(Kind::Release, b":1\r\n").time, None);
}

#[test]
fn g6_a_reply_that_no_script_returns_is_a_failure() {
    for frame in [
        "+OK\r\n",
        ":7\r\n",
        ":1000000\r\n",
        ":-1700000000000000\r\n",
        ":1x\r\n",
        ":1\n:1\r\n",
        ":1\nx\r\n",
        "*4\r\n:1\r\n:0\r\n:0\r\n:0\n\r\n",
        "*0\r\n",
        "*1\r\n:9\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n+1\r\n",
        "*2\r\n:2\r\n:-5\r\n",
        "*4\r\n:0\r\n:5\r\n:1\r\n:9\r\n",
        "*5\r\n:3\r\n:5\r\n:-1\r\n:0\r\n:9\r\n",
        "*5\r\n:4\r\n:5\r\n:-1\r\n:0\r\n:9\r\n",
        "*5\r\n:9\r\n:5\r\n:1\r\n:0\r\n:9\r\n",
        "*5\r\n:0\r\n:5\r\n:1\r\n:0\r\n:9\r\n",
        "*6\r\n:0\r\n:5\r\n:1\r\n:0\r\n:9\r\n:9\r\n",
        "*6\r\n:0\r\n:5\r\n:1\r\n:0\r\n$1\r\n9\r\n$1\r\nx\r\n",
        "*6\r\n:0\r\n:5\r\n:1\r\n:0\r\n:9\r\n$2\r\nx\r\n",
        "*6\r\n:0\r\n:5\r\n:1\r\n:0\r\n:9\r\n$-1\r\n",
        "*6\r\n:2\r\n:5\r\n:1\r\n:0\r\n:9\r\n$1\r\nx\r\n",
        "*6\r\n:1\r\n:5\r\n:1\r\n:0\r\n:1700000000000000\r\n$1\r\nx\r\n",
        "*2\r\n$1\r\nx\r\n$1\r\n1\r\n",
        "*1\r\n$1\r\n1\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n",
        "$1\r\n1\r\n",
        "_\r\n",
    ] {
        let kinds = Script::ALL
            .map(|script| script.row().kind)
            .into_iter()
            .chain([Kind::Subscribe, Kind::Time]);
        for kind in kinds {
            let answer = Reply::read(kind, frame.as_bytes()).answer;
            assert!(
                matches!(answer, Answer::Failed(NodeFailure::Protocol { .. })),
                "{kind:?} {frame}: {answer:?}"
            );
        }
    }
}

#[test]
fn h18_an_error_impossible_for_the_command_is_no_answer() {
    let read = |frame: &str| Reply::read(Kind::Release, frame.as_bytes()).answer;
    for garbled in [
        "-2\r\n",
        "-\r\n",
        "--ERR x\r\n",
        "-ERR x\n:1\r\n",
        "-ERR x\r:1\r\n",
        "!5\r\nERR x\r\n",
        "-ERR unknown command '$40', with args beginning with: \r\n",
        "-ERR unknown command `app:report`, with args beginning with: `EVALSHA`\r\n",
    ] {
        assert!(
            matches!(read(garbled), Answer::Failed(NodeFailure::Protocol { .. })),
            "{garbled}"
        );
    }
    let renamed = read("-ERR unknown command 'EVALSHA', with args beginning with: 'x'\r\n");
    let Answer::Failed(NodeFailure::Access { reason }) = renamed else {
        panic!("{renamed:?}")
    };
    assert!(reason.contains("'EVALSHA';"), "{reason}");
    let refused = read("-upstream failure\r\n");
    assert!(matches!(
        refused,
        Answer::Failed(NodeFailure::Refused { .. })
    ));
}

#[test]
fn a_refusal_with_a_negative_counter_is_invalid() {
    let answer = Reply::read(
        Kind::Acquire,
        b"*6\r\n:0\r\n:-5\r\n:1\r\n:0\r\n:9\r\n$0\r\n\r\n",
    )
    .answer;
    assert!(
        matches!(answer, Answer::Failed(NodeFailure::Protocol { .. })),
        "{answer:?}"
    );
}

#[test]
fn pushes_are_not_read_as_replies() {
    assert_eq!(push(b":1\r\n"), Push::None);
    assert_eq!(
        push(b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$6\r\nreport\r\n"),
        Push::Message(None)
    );
    for other in [
        ">1\r\n+x\r\n",
        ">0\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n:1\r\n",
        ">2\r\n+invalidate\r\n*0\r\n",
    ] {
        assert_eq!(push(other.as_bytes()), Push::Other, "{other}");
    }
}

const NOW: u64 = 1_700_000_000_000_000;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What a server says of a lock that it hands over.
fn handed_over(parts: [&str; 4], value: &str, key: &str) -> String {
    let [token, record_version, life, kind] = parts;
    let len = value.len();
    format!("{token} {record_version} {life} {NOW} {kind} {len} {value} {key}")
}

#[test]
fn a_hand_over_message_is_read() {
    let parts = ["7", "123456789012345", "900", "w"];
    for value in [TOKEN, &format!("{TOKEN} web-3/4711/nightly job")] {
        for key in ["a", "app: two  words ", " ", "", "w 32 x"] {
            let message = handed_over(parts, value, key);
            let read = push(&said(message.as_bytes()));
            let expected = HandedOver {
                token: Some(7),
                record_version: RecordVersion(*b"123456789012345"),
                life: 900,
                time: NOW,
                asked_from: None,
                reads: false,
                is_question: false,
                value: SecretValue::new(value.as_bytes()),
                key: key.as_bytes().to_vec(),
            };
            assert_eq!(read, Push::Message(Some(expected.clone())), "{message}");
            assert_eq!(expected.owner().unwrap().to_value(), TOKEN.as_bytes());
        }
    }
    let read = |parts| HandedOver::read(handed_over(parts, TOKEN, "a").as_bytes()).unwrap();
    let without = read(["0", "123456789012345", "900", "r"]);
    assert_eq!((without.token, without.reads), (None, true));
}

fn said(message: &[u8]) -> Vec<u8> {
    let head = format!(">3\r\n$7\r\nmessage\r\n$1\r\na\r\n${}\r\n", message.len());
    [head.as_bytes(), message, b"\r\n"].concat()
}

#[test]
fn g6_a_message_that_no_script_publishes_hands_nothing_over() {
    let good = ["7", "123456789012345", "900", "w"];
    let with = |place: usize, other| {
        let mut parts = good;
        parts[place] = other;
        handed_over(parts, TOKEN, "a")
    };
    let mut messages = [
        "",
        " ",
        "     ",
        "7",
        "report",
        "7 123456789012345 900 0 w",
        "7 123456789012345 900 0 w 32",
    ]
    .map(str::to_owned)
    .to_vec();
    for other in ["", "-1", "x", "7.0", "18446744073709551616", " 7"] {
        messages.push(with(0, other));
        messages.push(with(2, other));
    }
    messages.extend(["", "12345678901234", "1234567890123456"].map(|it| with(1, it)));
    messages.extend(["", "x", "W", "ww", "rw"].map(|it| with(3, it)));
    // The length of the value is another one.
    for len in [
        "",
        "x",
        "-1",
        "31",
        "33",
        "34",
        "35",
        "18446744073709551615",
    ] {
        messages.push(format!("7 123456789012345 900 0 w {len} {TOKEN} a"));
    }
    for message in messages {
        assert_eq!(HandedOver::read(message.as_bytes()), None, "{message:?}");
        assert_eq!(push(&said(message.as_bytes())), Push::Message(None));
    }
    // Whoever publishes may say what it likes of the owner: then it is nobody here.
    for value in ["", "x", &TOKEN[1..], &TOKEN.replace('0', "g")] {
        let read = HandedOver::read(handed_over(good, value, "a").as_bytes()).unwrap();
        assert_eq!(read.owner(), None, "{value:?}");
    }
}

#[test]
fn the_record_of_a_job_is_read() {
    let read = |frame: &str| Reply::read(Kind::Look, frame.as_bytes());
    let looked = |text: &str| format!("*4\r\n:1\r\n:7\r\n:9\r\n${}\r\n{text}\r\n", text.len());
    let record = "1 done 7 9 1 2 3 a/1 müde";
    let job = JobRecord {
        is_ours: true,
        kept_since: 7,
        time: 9,
        text: record.to_owned(),
    };
    let reply = read(&looked(record));
    assert_eq!((reply.answer, reply.time), (Answer::Job(job), Some(9)));
    for (frame, answer) in [
        (":-3\r\n", Answer::Changed),
        (":1\r\n", Answer::Noted(true)),
        (":0\r\n", Answer::Noted(false)),
    ] {
        assert_eq!(read(frame).answer, answer);
    }
    for frame in [
        ":2\r\n",
        ":-1\r\n",
        "*4\r\n:1\r\n:-7\r\n:9\r\n$0\r\n\r\n",
        "*4\r\n:1\r\n:7\r\n:-9\r\n$0\r\n\r\n",
        "*3\r\n:1\r\n:7\r\n:9\r\n",
        &looked("1 done\r\n:1"),
    ] {
        let answer = read(frame).answer;
        assert!(
            matches!(answer, Answer::Failed(NodeFailure::Protocol { .. })),
            "{frame:?}"
        );
    }
    // Another program's bytes cost the record, and not the connection.
    let garbage = b"*4\r\n:0\r\n:7\r\n:9\r\n$1\r\n\xff\r\n";
    assert!(matches!(
        Reply::read(Kind::Look, garbage).answer,
        Answer::Job(_)
    ));
}

#[test]
fn a_hand_over_message_shows_no_secret() {
    let message = handed_over(["7", "123456789012345", "900", "w"], TOKEN, "a");
    let shown = format!("{:?}", push(&said(message.as_bytes())));
    assert!(
        shown.contains("HandedOver") && !shown.contains(&TOKEN[..8]),
        "{shown}"
    );
}

const ALL: [Kind; 9] = [
    Kind::List,
    Kind::Look,
    Kind::Acquire,
    Kind::Raise,
    Kind::Extend,
    Kind::Release,
    Kind::Inspect,
    Kind::Subscribe,
    Kind::Time,
];

/// Whether the answer gives something to the caller, who acts on it.
fn is_grant(answer: &Answer) -> bool {
    answer.is_accepted()
        || answer.slot().is_some()
        || answer.is(LockStatus::Raised)
        || answer.is_extended()
        || matches!(
            answer,
            Answer::Released { was_ours: true } | Answer::Noted(true)
        )
}

/// Whether the scripts say "done" in this form: the number 1 or a time, or numbers of which 1 or "some were set" is the first, or "granted
/// behind a counter" with the slot. Read by the parser, as a second opinion.
fn says_done(frame: &[u8]) -> bool {
    match redis::parse_redis_value(frame) {
        Ok(Value::Int(status)) => status == 1 || STATUS_MAX < status,
        Ok(Value::Array(members)) => {
            let is_slot = matches!(members.get(5), Some(Value::Int(slot)) if 0 < *slot);
            let is_done = match members.first() {
                Some(Value::Int(1 | 4)) => true,
                Some(Value::Int(2)) => is_slot,
                _ => false,
            };
            is_done && members.len() == 7
        }
        _ => false,
    }
}

/// Numbers that a script returns, and those at which arithmetic ends.
fn number_text() -> impl Strategy<Value = String> {
    let ends = [
        i64::MIN,
        i64::MIN + 1,
        -(1 << 53),
        -2,
        -1,
        0,
        1,
        2,
        3,
        (1 << 53) - 1,
        1 << 53,
        (1 << 53) + 1,
        i64::MAX,
    ];
    let words = [
        "9223372036854775808",
        "-9223372036854775809",
        "1e3",
        "1.0",
        "+1",
        "01",
        "",
        "-",
        " 1",
        "0x1",
        "1\n",
    ];
    prop_oneof![
        8 => prop::sample::select(ends.to_vec()).prop_map(|it| it.to_string()),
        2 => any::<i64>().prop_map(|it| it.to_string()),
        1 => prop::sample::select(words.to_vec()).prop_map(str::to_owned),
    ]
}

/// What a hostile script could return: nearly what ours return.
fn numbers_frame() -> impl Strategy<Value = String> {
    let text = prop_oneof![Just("$0\r\n\r\n"), Just("$1\r\nf\r\n"), Just("")];
    (
        prop::collection::vec(number_text(), 0..8),
        any::<bool>(),
        text,
    )
        .prop_map(|(numbers, short, text)| match &numbers[..] {
            [only] if short => format!(":{only}\r\n"),
            [_, _, _, _, _, _] => format!(
                "*7\r\n{}{text}",
                numbers
                    .iter()
                    .map(|it| format!(":{it}\r\n"))
                    .collect::<String>()
            ),
            all => format!(
                "*{}\r\n{}",
                all.len(),
                all.iter()
                    .map(|it| format!(":{it}\r\n"))
                    .collect::<String>()
            ),
        })
}

proptest! {
    #[test]
    fn g4_no_bytes_panic_and_only_script_replies_are_grants(bytes: Vec<u8>, mark in "[-+:*>$%_#]") {
        for frame in [bytes.clone(), [mark.as_bytes(), &bytes, b"\r\n"].concat()] {
            for kind in ALL {
                let answer = Reply::read(kind, &frame).answer;
                prop_assert!(!is_grant(&answer) || says_done(&frame), "{:?} {}", kind, frame.escape_ascii());
            }
        }
        let _ = push(&[b">", &bytes[..]].concat());
    }

    #[test]
    fn g6_hostile_numbers_never_turn_into_other_numbers(frame in numbers_frame()) {
        for kind in ALL {
            let answer = Reply::read(kind, frame.as_bytes()).answer;
            prop_assert!(!is_grant(&answer) || says_done(frame.as_bytes()), "{:?} {:?}", kind, frame);
            let Answer::Lock(reply) = answer else {
                continue;
            };
            // A negative time is "no end", and never "free now".
            if let Some(left) = reply.left {
                let millis = i64::try_from(left.as_millis()).unwrap();
                prop_assert!(frame.contains(&millis.to_string()) || frame.contains("+1") || frame.contains("01"));
            }
            prop_assert!(reply.counter.is_none_or(|it| i64::try_from(it).is_ok()));
        }
    }

    #[test]
    fn g6_no_error_is_a_grant(code in "[A-Z]{0,12}", text in "[ -~]{0,40}") {
        for kind in ALL {
            let frame = format!("-{code} {text}\r\n");
            prop_assert!(!is_grant(&Reply::read(kind, frame.as_bytes()).answer), "{}", frame);
        }
    }

    #[test]
    fn g4_no_message_panics_and_published_values_are_read_back(
        token: u64, life: u64, value: Vec<u8>, key: Vec<u8>, noise in prop::collection::vec(any::<u8>(), 0..60), at: prop::sample::Index,
    ) {
        let _ = HandedOver::read(&noise);
        let head = format!("{token} 123456789012345 {life} {NOW} r {} ", value.len());
        let message = [head.as_bytes(), &value, b" ", &key].concat();
        let read = HandedOver::read(&message).unwrap();
        prop_assert_eq!((read.token.unwrap_or(0), read.life), (token, life));
        prop_assert_eq!((read.value.as_bytes(), &read.key), (&value[..], &key));
        // Cut, or with noise within.
        let at = at.index(message.len().saturating_add(1));
        let _ = HandedOver::read(&message[..at]);
        let _ = HandedOver::read(&[&message[..at], &noise, &message[at..]].concat());
        let _ = push(&said(&[&message[..at], &noise].concat()));
    }

    #[test]
    fn g6_pushes_answer_nothing_but_a_subscription(kind in "[a-z]{1,12}", data: Vec<u8>) {
        let frame = [format!(">2\r\n+{kind}\r\n${}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat();
        for command in Script::ALL.map(|script| script.row().kind) {
            let answer = Reply::read(command, &frame).answer;
            let failed = matches!(answer, Answer::Failed(NodeFailure::Protocol { .. }));
            prop_assert!(failed, "{answer:?}");
        }
        let subscribed = Reply::read(Kind::Subscribe, &frame).answer == Answer::Subscribed;
        prop_assert_eq!(subscribed, kind == "subscribe");
    }
}
