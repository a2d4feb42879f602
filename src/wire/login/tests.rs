#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

use std::time::Duration;

use super::*;
use crate::answer::{Record, RecordReply};
use crate::ids::RecordVersion;
use crate::wire::{Script, SyncKind, SyncRecord};
use proptest::prelude::*;
use std::ops::Range;

/// Where the answers are in what a server says.
const INFO: Range<usize> = 1..3;
const ROLE: usize = INFO.end;
const GREET: usize = ROLE + 1;

const GREET_REPLY: &str = "*10\r\n:1\r\n:5000\r\n:10102\r\n:1\r\n:20000\r\n:7\r\n:0\r\n:2\r\n:0\r\n$16\r\n 000000000020000\r\n";

fn answers(hello: &str) -> Vec<String> {
    let mut all = vec![hello.to_owned()];
    all.extend([(); 2].map(|()| info("run_id:abc\r\nuptime:1\r\nx:y\r\n")));
    all.push("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned());
    all.push(GREET_REPLY.to_owned());
    all
}

fn record_reply() -> RecordReply {
    let shown = RecordReply::of(Record::Kept, Duration::from_secs(5));
    RecordReply {
        max_ttl: 10_102,
        record_version: RecordVersion::new(20_000),
        versions: "000000000020000".to_owned(),
        servers: 7,
        ..shown
    }
}

fn sync_record() -> Command {
    crate::wire::sync_record(&SyncRecord {
        record_version: RecordVersion::new(1),
        own: 10_102,
        reported: 0,
        servers: 3,
        kind: SyncKind::Note,
    })
}

/// A server that says this, one after another, and then closes the connection.
#[derive(Default)]
struct Says {
    replies: std::collections::VecDeque<Vec<u8>>,
    written: Vec<Vec<u8>>,
    /// How many replies had come each time it had said the time.
    reported_time: Vec<usize>,
    replied: usize,
}

impl Says {
    fn these(said: &[impl AsRef<[u8]>]) -> Says {
        Says {
            replies: said.iter().map(|it| it.as_ref().to_vec()).collect(),
            ..Says::default()
        }
    }
}

impl Dialogue for Says {
    fn write(&mut self, bytes: &[u8]) {
        self.written.push(bytes.to_vec());
    }

    fn reply(&mut self) -> Result<Vec<u8>, NodeFailure> {
        self.replied += 1;
        self.replies.pop_front().ok_or_else(closed)
    }

    fn note_time(&mut self) {
        self.reported_time.push(self.replied);
    }
}

fn closed() -> NodeFailure {
    NodeFailure::Disconnected {
        reason: "closed".to_owned(),
    }
}

fn talk(url: &str, said: &[String]) -> Result<ServerInfo, NodeFailure> {
    let mut server = Says::these(said);
    let end = log_in(
        &mut server,
        &Address::parse(url).unwrap(),
        Some(&sync_record()),
    );
    assert!(end.is_err() || server.replies.is_empty(), "unread");
    end
}

/// All parts in each answer: only the part that was asked for is read.
fn set_info(answers: &mut [String], text: &str) {
    answers[INFO].fill(info(text));
}

fn info(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[test]
fn a_primary_with_complete_answers_may_vote() {
    let mut answers = answers("%1\r\n+server\r\n$5\r\nredis\r\n");
    set_info(
        &mut answers,
        "# Server\r\nrun_id:abc\r\nredis_mode:standalone\r\n",
    );
    assert_eq!(
        talk("redis://a", &answers),
        Ok(ServerInfo {
            run_id: Some("abc".to_owned()),
            pushes: true,
            record_reply: Some(record_reply()),
            ..ServerInfo::default()
        })
    );
}

#[test]
fn the_product_and_version_of_a_server_are_read() {
    for (says, version) in [
        ("redis_version:7.0.15\r\n", Some("Redis 7.0.15")),
        (
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n",
            Some("Valkey 9.1.2"),
        ),
        (
            "redis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n",
            Some("Dragonfly df-v1.40.1"),
        ),
        ("", None),
    ] {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, &format!("{says}run_id:abc\r\n"));
        let Ok(info) = talk("redis://a", &answers) else {
            panic!("{says}")
        };
        assert_eq!(info.version.as_deref(), version, "{says}");
    }
}

/// What is written to a server that says this; and what it is, or why it may not vote.
fn whole_talk(
    sync_record: Option<&Command>,
    said: &[String],
) -> (Vec<String>, Result<ServerInfo, NodeFailure>) {
    let mut server = Says::these(said);
    let end = log_in(
        &mut server,
        &Address::parse("redis://a").unwrap(),
        sync_record,
    );
    let written = server.written.iter();
    let written = written.map(|it| it.escape_ascii().to_string());
    (written.collect(), end)
}

const NO_SCRIPT: &str = "-NOSCRIPT No matching script.\r\n";

/// By its hash first, since locks need EVALSHA.
#[test]
fn a_login_is_one_write_and_one_more_for_a_server_without_the_script() {
    let (sync_record, source) = (sync_record(), Script::SyncRecord.source());
    let shown = source.as_bytes().escape_ascii().to_string();
    let older = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";
    for is_older in [false, true] {
        for lacks_it in [false, true] {
            let mut said = answers(if is_older { older } else { "%0\r\n" });
            if is_older {
                said.extend(answers("+OK\r\n"));
            }
            if lacks_it {
                *said.last_mut().unwrap() = NO_SCRIPT.to_owned();
                said.push(GREET_REPLY.to_owned());
            }
            let (written, end) = whole_talk(Some(&sync_record), &said);
            assert!(end.is_ok_and(|it| it.record_reply.is_some()));
            assert_eq!(
                written.len(),
                1 + usize::from(is_older) + usize::from(lacks_it)
            );
            let has_source: Vec<_> = written.iter().map(|it| it.contains(&shown)).collect();
            let (last, before) = has_source.split_last().unwrap();
            assert!(
                *last == lacks_it && !before.contains(&true),
                "{has_source:?}"
            );
        }
    }
}

#[test]
fn a_server_that_has_the_script_of_the_sync_neither_way_ends_the_login() {
    let mut said = answers("%0\r\n");
    said[GREET] = NO_SCRIPT.to_owned();
    said.push(NO_SCRIPT.to_owned());
    let failure = talk("redis://a", &said);
    assert!(
        matches!(failure, Err(NodeFailure::Protocol { .. })),
        "{failure:?}"
    );
}

#[test]
fn b2_a_replica_has_no_vote() {
    let mut answers = answers("%0\r\n");
    set_info(&mut answers, "run_id:abc\r\n");
    answers[ROLE] =
        "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:1\r\n".to_owned();
    assert_eq!(talk("redis://a", &answers), Err(NodeFailure::Replica));
}

#[test]
fn b3_a_cluster_node_has_no_vote() {
    for mode in ["redis_mode:cluster\r\n", "server_mode:cluster\r\n"] {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, mode);
        assert_eq!(talk("redis://a", &answers), Err(NodeFailure::CLUSTER_NODE));
    }
}

#[test]
fn a_cluster_server_is_detected_by_its_answer_to_the_sync() {
    for moved in [
        "-MOVED 13047 127.0.0.1:6381\r\n",
        "-CLUSTERDOWN Hash slot not served\r\n",
    ] {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, "run_id:abc\r\n");
        answers[GREET] = moved.to_owned();
        assert_eq!(talk("redis://a", &answers), Err(NodeFailure::CLUSTER_NODE));
    }
}

#[test]
fn b3_a_sentinel_is_detected_by_its_role_and_not_by_unknown_commands() {
    let mut answers = answers("%0\r\n");
    answers[GREET] = "-ERR unknown command 'EVAL', with args beginning with: 'x' \r\n".to_owned();
    let unknown = talk("redis://a", &answers).unwrap_err();
    assert!(matches!(unknown, NodeFailure::Access { .. }), "{unknown:?}");

    let role = "*2\r\n$8\r\nsentinel\r\n*0\r\n".to_owned();
    set_info(&mut answers, "redis_mode:sentinel\r\n");
    assert_eq!(talk("redis://a", &answers), Err(NodeFailure::SENTINEL));
    set_info(&mut answers, "run_id:abc\r\n");
    answers[ROLE] = role;
    assert_eq!(talk("redis://a", &answers), Err(NodeFailure::SENTINEL));
}

#[test]
fn a_cluster_server_is_detected_despite_a_database_number() {
    let mut answers = answers("%0\r\n");
    set_info(&mut answers, "redis_mode:cluster\r\n");
    answers.insert(
        1,
        "-ERR SELECT is not allowed in cluster mode\r\n".to_owned(),
    );
    assert_eq!(
        talk("redis://a/1", &answers),
        Err(NodeFailure::CLUSTER_NODE)
    );
}

#[test]
fn uptime_server_time_and_promotion_are_read() {
    let mut answers = answers("%0\r\n");
    let zeros = "0".repeat(40);
    for (id, offset, promoted) in [
        (&zeros[..], "-1", false),
        (&zeros, "7", false),
        ("8af3", "-1", false),
        ("8af3", "7", true),
    ] {
        set_info(
            &mut answers,
            &format!(
                "run_id:abc\r\nuptime_in_seconds:-3599\r\nserver_time_usec:1700000000000001\r\n\
             master_replid2:{id}\r\nsecond_repl_offset:{offset}\r\n"
            ),
        );
        let Ok(server_info) = talk("redis://a", &answers) else {
            panic!()
        };
        assert_eq!(
            (server_info.uptime, server_info.time),
            (Some(-3599), Some(1_700_000_000_000_001))
        );
        assert_eq!(server_info.promoted, promoted, "{id} {offset}");
    }
}

#[test]
fn a_server_that_is_too_old_has_no_vote() {
    for (version, too_old) in [
        ("2.8.4", true),
        ("6.0.16", true),
        ("6.2.0", false),
        ("7.0.15", false),
        ("255.255.255", false),
        ("x", false),
    ] {
        let mut answers = answers("%0\r\n");
        set_info(
            &mut answers,
            &format!("redis_version:{version}\r\nrun_id:abc\r\n"),
        );
        let failure = talk("redis://a", &answers).err();
        assert_eq!(
            failure,
            too_old.then(|| NodeFailure::Unsuitable {
                reason: format!("Redis {version} is too old; use 6.2 or newer, or Valkey").into(),
            })
        );
    }
}

#[test]
fn a_server_with_concurrent_scripts_has_no_vote() {
    let mut answers = answers("%0\r\n");
    // As it answers where scripts are switched off.
    answers[GREET] = "-ERR unknown command\r\n".to_owned();
    set_info(
        &mut answers,
        "garnet_version:1.0.93\r\nrun_id:abc\r\nredis_version:7.4.3\r\n",
    );
    assert_eq!(
        talk("redis://a", &answers),
        Err(NodeFailure::unsuitable(
            "Garnet 1.0.93, which runs scripts side by side, so two clients may get one lock; use Redis or Valkey"
        ))
    );
}

#[test]
fn a_multi_master_server_has_no_vote() {
    let mut answers = answers("%0\r\n");
    set_info(
        &mut answers,
        "redis_version:6.3.4\r\nrun_id:abc\r\nrole:active-replica\r\n",
    );
    assert_eq!(talk("redis://a", &answers), Err(NodeFailure::MULTI_MASTER));
    set_info(&mut answers, "run_id:abc\r\n");
    answers[ROLE] = "*1\r\n$14\r\nactive-replica\r\n".to_owned();
    assert_eq!(talk("redis://a", &answers), Err(NodeFailure::MULTI_MASTER));
}

#[test]
fn a_server_without_the_role_command_is_a_proxy() {
    for (role, proxied) in [
        ("-ERR unknown command 'ROLE'\r\n", true),
        ("-ERR command is not allowed\r\n", true),
        ("-NOPERM no permissions\r\n", false),
        ("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n", false),
    ] {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, "run_id:abc\r\n");
        answers[ROLE] = role.to_owned();
        let Ok(server_info) = talk("redis://a", &answers) else {
            panic!("{role}")
        };
        assert_eq!(server_info.proxied, proxied, "{role}");
    }
}

#[test]
fn what_cannot_describe_itself_is_a_proxy_in_whatever_words_it_says_so() {
    for refusal in [
        "-ERR unknown command 'INFO', with args beginning with: 'server' \r\n",
        "-ERR unsupported command 'info'\r\n",
        "-ERR handle request, command is not allowed\r\n",
    ] {
        let mut asked = answers("%0\r\n");
        asked[INFO.start] = refusal.to_owned();
        assert_eq!(talk("redis://a", &asked), Err(NodeFailure::PROXY));
        // Of HELLO too: no password is wrong.
        let end = talk("redis://:pw@a", &answers(refusal));
        assert_eq!(end, Err(closed()), "{refusal}");
    }
}

#[test]
fn a_server_without_hello_is_asked_in_the_older_protocol() {
    let mut answers = answers("-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n");
    set_info(&mut answers, "run_id:abc\r\n");
    let mut server = Says::these(&answers);
    let address = Address::parse("redis://:pw@a").unwrap();
    assert_eq!(
        log_in(&mut server, &address, Some(&sync_record())),
        Err(closed())
    );
    assert!(server.written[1].starts_with(b"*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n"));
}

#[test]
fn a_server_that_refuses_the_name_of_a_connection_may_vote() {
    let no_hello = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";
    for answer in [
        "+OK\r\n",
        "-NOPERM User x has no permissions to run the 'client|setname' command\r\n",
        "-ERR x\r\n",
    ] {
        let said = [answers(no_hello), answers(answer)].concat();
        let mut server = Says::these(&said);
        let end = log_in(
            &mut server,
            &Address::parse("redis://a").unwrap(),
            Some(&sync_record()),
        );
        assert!(end.is_ok(), "{end:?}");
        assert!(server.written[0].windows(8).any(|it| it == b"quorlock"));
        let older = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\nquorlock\r\n";
        assert!(server.written[1].starts_with(older));
    }
}

/// A member has no vote, so nothing is asked but for its login.
#[test]
fn the_login_of_a_member_is_short_and_in_the_older_protocol() {
    let mut server = Says::these(&["+OK\r\n", "+OK\r\n"]);
    let address = Address::parse("redis://ann:pw@a").unwrap();
    assert_eq!(
        log_in(&mut server, &address, None),
        Ok(ServerInfo::default())
    );
    assert_eq!(server.written.len(), 1);
    assert!(server.written[0].starts_with(b"*3\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$2\r\npw\r\n*3"));
}

#[test]
fn a_refusal_before_a_disconnect_is_the_failure() {
    let said = ["-WRONGPASS invalid username-password pair\r\n"];
    let said = said.map(str::to_owned);
    assert_eq!(
        talk("redis://:pw@a", &said),
        Err(NodeFailure::WRONG_PASSWORD)
    );
    assert_eq!(talk("redis://:pw@a", &[]), Err(closed()));
}

#[test]
fn a_repeated_login_reads_the_server_time_again() {
    let older = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";
    let said = [answers(older), answers("+OK\r\n")].concat();
    let mut server = Says::these(&said);
    let address = Address::parse("redis://a").unwrap();
    assert!(log_in(&mut server, &address, Some(&sync_record())).is_ok());
    assert_eq!(server.reported_time, [2, 5 + 2]);
}

#[test]
fn login_errors_are_typed_and_never_echoed() {
    let mut answers = answers("-WRONGPASS invalid username-password pair: ann secret\r\n");
    answers[INFO.start] = "-NOAUTH Authentication required.\r\n".to_owned();
    let err = talk("redis://ann:secret@a", &answers).unwrap_err();
    assert_eq!(err, NodeFailure::WRONG_PASSWORD);
    assert!(!format!("{err} {err:?}").contains("secret"));
}

#[test]
fn each_part_of_info_is_asked_for_and_read_in_both_protocols() {
    let mut server = Says::default();
    let address = Address::parse("redis://a").unwrap();
    assert!(log_in(&mut server, &address, Some(&sync_record())).is_err());
    let first = String::from_utf8_lossy(&server.written[0]).into_owned();
    for part in ["$6\r\nserver\r\n", "$11\r\nreplication\r\n"] {
        assert!(
            first.contains(&format!("*2\r\n$4\r\nINFO\r\n{part}")),
            "{part}"
        );
    }
    let mut answers = answers("%0\r\n");
    let text = "txt:run_id:abc\r\n";
    answers[INFO].fill(format!("={}\r\n{text}\r\n", text.len()));
    let Ok(server_info) = talk("redis://a", &answers) else {
        panic!()
    };
    assert_eq!(server_info.run_id.as_deref(), Some("abc"));
}

#[test]
fn refusals_during_the_login_are_failures_except_acl_denials() {
    let old = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";
    let auth = |answer: &str| {
        let said = [answers(old), vec![answer.to_owned()]].concat();
        talk("redis://:pw@a", &said).err()
    };
    assert_eq!(
        auth("-WRONGPASS invalid password\r\n"),
        Some(NodeFailure::WRONG_PASSWORD)
    );
    assert_eq!(auth("+OK\r\n"), Some(closed()));

    let with = |place, answer: &str| {
        let mut answers = answers("%0\r\n");
        answers[place] = answer.to_owned();
        talk("redis://a", &answers).err()
    };
    for place in [INFO.start, ROLE] {
        assert_eq!(
            with(place, "-LOADING it is\r\n"),
            Some(NodeFailure::Loading)
        );
        assert_eq!(with(place, "-NOPERM no permissions\r\n"), None);
    }
    // It keeps no record, so it grants nothing; for everything else it can be asked.
    assert_eq!(with(GREET, "-OOM command not allowed\r\n"), None);
    assert_eq!(
        with(GREET, "-LOADING it is\r\n"),
        Some(NodeFailure::Loading)
    );
    for nonsense in ["+OK\r\n", "*0\r\n"] {
        let failure = with(GREET, nonsense);
        assert!(
            matches!(failure, Some(NodeFailure::Protocol { .. })),
            "{nonsense}"
        );
    }

    let mut answers = answers("%0\r\n");
    answers.insert(1, "-ERR DB index is out of range\r\n".to_owned());
    assert_eq!(
        talk("redis://a/99", &answers),
        Err(NodeFailure::unsuitable(BAD_DATABASE))
    );
}

/// Something that a server may say to any question, and should not.
fn nonsense() -> impl Strategy<Value = Vec<u8>> {
    let of_others = answers("%0\r\n")
        .into_iter()
        .chain(["+OK\r\n".to_owned()])
        .collect::<Vec<_>>();
    prop_oneof![
        prop::sample::select(of_others).prop_map(String::into_bytes),
        prop::collection::vec(info_line(), 0..4).prop_map(|it| info(&it.join("\r\n")).into_bytes()),
        ("[A-Z]{1,10}", "[ -~]{0,20}")
            .prop_map(|(code, text)| format!("-{code} {text}\r\n").into_bytes()),
        "[-+:$*_#,%>]-?[0-9]{0,20}\r\n".prop_map(String::into_bytes),
        any::<Vec<u8>>(),
    ]
}

fn info_line() -> impl Strategy<Value = String> {
    let keys = [
        "redis_version",
        "redis_mode",
        "run_id",
        "uptime_in_seconds",
        "role",
        "",
        "\0",
        "redis_version:redis_mode",
    ];
    let values = [
        "",
        "7.0.15",
        "6",
        "-1",
        "18446744073709551616",
        "cluster",
        "sentinel",
        "master",
        "NaN",
        ":",
        "\u{fffd}",
    ];
    (
        prop::sample::select(keys.to_vec()),
        prop::sample::select(values.to_vec()),
    )
        .prop_map(|(k, v)| format!("{k}:{v}"))
}

proptest! {
    #[test]
    fn g5_no_dialogue_panics_and_none_ends_well_without_an_answer_to_each_question(
        wrong in prop::collection::vec(prop::option::weighted(0.1, nonsense()), GREET + 1),
        cut in 0..=GREET + 1,
        behind in prop::collection::vec(nonsense(), 0..9),
    ) {
        let right = answers("%0\r\n").into_iter().map(String::into_bytes);
        let mut said: Vec<_> = wrong.into_iter().zip(right).map(|(wrong, right)| wrong.unwrap_or(right)).collect();
        said.truncate(cut);
        if cut == GREET + 1 {
            said.extend(behind);
        }
        let mut server = Says::these(&said);
        match log_in(&mut server, &Address::parse("redis://:pw@a").unwrap(), Some(&sync_record())) {
            Ok(_) => prop_assert_eq!(cut, GREET + 1),
            Err(failure) => prop_assert!(failure.to_string().chars().count() < 2_000),
        }
    }

    #[test]
    fn g5_a_server_with_correct_answers_may_vote_despite_odd_info(text: String) {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, &text);
        let end = talk("redis://a", &answers);
        // Unless by chance it says something that is asked for.
        let done = end.is_ok();
        prop_assert!(done || text.contains("redis_"), "{end:?}");
    }
}
