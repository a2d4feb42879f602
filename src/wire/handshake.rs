//! What is said on a new connection before anything votes on it.
//!
//! One write, one read: log in (`HELLO 3`), choose the database, load the scripts, ask who the server is, and since when it
//! remembers. A server that does not know `HELLO` is asked again in the older protocol, on the same connection.

use redis::{Cmd, Value, cmd};

use crate::answer::{Answer, ServerInfo};
use crate::error::NodeFailure;
use crate::wire::command::Command;
use crate::wire::script::{Kind, Script};
use crate::wire::{Address, Reply, refusal};

/// What comes next.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Next {
    /// Wait for more replies.
    Read,
    /// Write this, then wait for its replies.
    Write(Vec<u8>),
    /// The node may vote.
    Done(ServerInfo),
}

/// The handshake: replies in, next step out.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// The questions that are not answered yet, in order.
    open: std::collections::VecDeque<Expect>,
    /// The commands of the older protocol, if it comes to that.
    fallback: Option<(Vec<u8>, Vec<Expect>)>,
    server_info: ServerInfo,
    failure: Option<NodeFailure>,
    ask_again: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Expect {
    Hello,
    Auth,
    /// A name for people: whatever the answer is.
    Name,
    Select,
    Load(Script),
    Info(Section),
    Role,
    /// Last: it writes, and what cannot be written to is told by what it is.
    Greet,
}

/// The parts of `INFO` that are read, one command each: older servers take one name only. Not all of it, because other
/// parts grow without end: any client may make up as many kinds of errors as it likes, and the server lists them
/// all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Section {
    Server,
    Memory,
    Replication,
}

impl Section {
    const ALL: [Section; 3] = [Section::Server, Section::Memory, Section::Replication];

    fn name(self) -> &'static str {
        match self {
            Section::Server => "server",
            Section::Memory => "memory",
            Section::Replication => "replication",
        }
    }
}

impl Handshake {
    /// Begins the handshake: the bytes to write first. `greet`: what to ask the server for its memory.
    pub(crate) fn begin(address: &Address, greet: Option<&Command>) -> (Handshake, Vec<u8>) {
        let (bytes, questions) = login(address, greet, true);
        let handshake = Handshake {
            open: questions.into(),
            fallback: Some(login(address, greet, false)),
            server_info: ServerInfo::default(),
            failure: None,
            ask_again: false,
        };
        (handshake, bytes)
    }

    /// Takes one reply.
    pub(crate) fn on_reply(&mut self, frame: &[u8]) -> Result<Next, NodeFailure> {
        let value = redis::parse_redis_value(frame)
            .map_err(|_| NodeFailure::Protocol { reason: "an answer that cannot be read".to_owned() })?;
        let Some(question) = self.open.pop_front() else {
            return Err(NodeFailure::Protocol { reason: "an answer to nothing".to_owned() });
        };
        if question == Expect::Greet {
            self.take_memory(Reply::read(Kind::Greet, frame).answer);
        } else {
            self.take(question, &value);
        }
        if let Some(failure @ (NodeFailure::ProtectedMode | NodeFailure::TooManyClients)) = &self.failure {
            // It said so when the connection came, whatever it was asked, and says nothing else.
            return Err(failure.clone());
        }
        if !self.open.is_empty() {
            return Ok(Next::Read);
        }
        if self.ask_again {
            self.ask_again = false;
            if let Some((bytes, questions)) = self.fallback.take() {
                self.failure = None;
                self.server_info = ServerInfo::default();
                self.open = questions.into();
                return Ok(Next::Write(bytes));
            }
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Next::Done(self.server_info.clone())),
        }
    }

    /// What has gone wrong so far: the better reason if the server closes the connection after it.
    pub(crate) fn failure(&self) -> Option<NodeFailure> {
        self.failure.clone()
    }

    fn take(&mut self, question: Expect, value: &Value) {
        let failure = match (question, value) {
            (Expect::Hello, Value::ServerError(error)) => {
                let old = error.code() == "NOPROTO" || error.details().is_some_and(|it| it.contains("unknown command"));
                self.ask_again = old && self.fallback.is_some();
                Some(refusal::of_login(error))
            }
            (Expect::Hello, _) => {
                self.server_info.pushes = true;
                None
            }
            (Expect::Auth, Value::ServerError(error)) => Some(refusal::of_login(error)),
            (Expect::Select, Value::ServerError(error)) => Some(match refusal::of(error) {
                refusal::Refusal::Failure(NodeFailure::Refused { .. }) => NodeFailure::BadDatabase,
                refusal::Refusal::Failure(failure) => failure,
                refusal::Refusal::NoScript => NodeFailure::BadDatabase,
            }),
            (Expect::Load(script), value) => load_failure(script, value),
            (Expect::Info(section), Value::VerbatimString { text, .. }) => self.take_info(section, text),
            (Expect::Info(section), Value::BulkString(bytes)) => {
                self.take_info(section, &String::from_utf8_lossy(bytes))
            }
            (Expect::Role, Value::Array(members)) => match members.first() {
                Some(Value::BulkString(role)) if role == b"slave" => Some(NodeFailure::Replica),
                Some(Value::BulkString(role)) if role == b"sentinel" => Some(NodeFailure::Sentinel),
                _ => None,
            },
            // The access list may forbid INFO and ROLE. The node votes all the same, and cannot be checked.
            (Expect::Info(_) | Expect::Role, Value::ServerError(error)) if error.code() == "NOPERM" => None,
            (Expect::Info(_) | Expect::Role, Value::ServerError(error)) => match refusal::of(error) {
                refusal::Refusal::Failure(failure) => Some(failure),
                refusal::Refusal::NoScript => None,
            },
            _ => None,
        };
        // The first failure counts: those after it are its consequences. Unless the server says what it is: then those
        // before it are consequences of that, as a Sentinel has no scripts.
        if self.failure.is_none() || matches!(failure, Some(NodeFailure::Sentinel | NodeFailure::ClusterNode)) {
            self.failure = failure;
        }
    }

    fn take_memory(&mut self, answer: Answer) {
        let failure = match answer {
            Answer::Greet(memory) => {
                self.server_info.memory = Some(memory);
                return;
            }
            Answer::Failed(failure) => failure,
            _ => NodeFailure::Protocol { reason: "no memory in the answer to a greeting".to_owned() },
        };
        self.failure.get_or_insert(failure);
    }

    fn take_info(&mut self, section: Section, text: &str) -> Option<NodeFailure> {
        let field = |name: &str| {
            text.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
        };
        let number = |name| field(name).and_then(|it| it.parse::<u64>().ok());
        match section {
            Section::Server => {
                self.server_info.run_id = field("run_id").filter(|it| !it.is_empty());
                self.server_info.uptime = field("uptime_in_seconds").and_then(|it| it.parse().ok());
                self.server_info.time = number("server_time_usec");
                if let Some(version) = field("redis_version").filter(|it| is_too_old(it)) {
                    return Some(NodeFailure::TooOld { version: refusal::shown(&version) });
                }
                match field("redis_mode").as_deref() {
                    Some("cluster") => Some(NodeFailure::ClusterNode),
                    Some("sentinel") => Some(NodeFailure::Sentinel),
                    _ => None,
                }
            }
            Section::Memory => {
                let policy = field("maxmemory_policy").filter(|it| it != "noeviction");
                let policy = policy.map(|it| refusal::shown(&it))?;
                if number("maxmemory") == Some(0) {
                    self.server_info.would_evict = Some(policy);
                    return None;
                }
                Some(NodeFailure::Evicts { policy })
            }
            Section::Replication => {
                self.server_info.replicas = number("connected_slaves").unwrap_or(0);
                // The history that it had as a replica: no offset and no id if it never was one.
                self.server_info.promoted = field("second_repl_offset").is_some_and(|it| !it.starts_with('-'))
                    && field("master_replid2").is_some_and(|it| it.bytes().any(|it| it != b'0'));
                None
            }
        }
    }
}

/// Whether the scripts do not run there. What is not a version is left to show itself.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|it| it.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) < (6, 2),
        _ => false,
    }
}

fn load_failure(script: Script, value: &Value) -> Option<NodeFailure> {
    match value {
        Value::ServerError(error) => match refusal::of(error) {
            refusal::Refusal::Failure(failure) => Some(failure),
            refusal::Refusal::NoScript => None,
        },
        Value::BulkString(hash) if hash == script.hash().as_bytes() => None,
        Value::SimpleString(hash) if hash == script.hash() => None,
        _ => Some(NodeFailure::Protocol { reason: "no script hash in the answer to SCRIPT LOAD".to_owned() }),
    }
}

fn login(address: &Address, greet: Option<&Command>, resp3: bool) -> (Vec<u8>, Vec<Expect>) {
    let mut bytes = Vec::new();
    let mut questions = Vec::new();
    let mut ask = |question, command: &Cmd| {
        command.write_packed_command(&mut bytes);
        questions.push(question);
    };
    if resp3 {
        let mut hello = cmd("HELLO");
        hello.arg(3);
        if let Some(password) = &address.password {
            hello.arg("AUTH").arg(address.user.as_deref().unwrap_or("default")).arg(password);
        }
        ask(Expect::Hello, hello.arg("SETNAME").arg(&address.client_name));
    } else {
        if let Some(password) = &address.password {
            let mut auth = cmd("AUTH");
            if let Some(user) = &address.user {
                auth.arg(user);
            }
            ask(Expect::Auth, auth.arg(password));
        }
        ask(Expect::Name, cmd("CLIENT").arg("SETNAME").arg(&address.client_name));
    }
    if address.database != 0 {
        ask(Expect::Select, cmd("SELECT").arg(address.database));
    }
    for script in Script::LOADED_AHEAD {
        ask(Expect::Load(script), cmd("SCRIPT").arg("LOAD").arg(script.source()));
    }
    for section in Section::ALL {
        ask(Expect::Info(section), cmd("INFO").arg(section.name()));
    }
    ask(Expect::Role, &cmd("ROLE"));
    if let Some(greet) = greet {
        greet.write_with_source_to(&mut bytes, false);
        questions.push(Expect::Greet);
    }
    (bytes, questions)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::answer::{Canary, GreetReply};
    use proptest::prelude::*;
    use std::ops::Range;

    /// Where the answers are in what a server says.
    const LOADED: Range<usize> = 1..1 + Script::LOADED_AHEAD.len();
    const INFO: Range<usize> = LOADED.end..LOADED.end + Section::ALL.len();
    const ROLE: usize = INFO.end;

    fn answers(hello: &str) -> Vec<String> {
        let mut all = vec![hello.to_owned()];
        all.extend(Script::LOADED_AHEAD.map(|it| format!("$40\r\n{}\r\n", it.hash())));
        all.extend([(); 3].map(|()| info("run_id:abc\r\nuptime:1\r\nx:y\r\n")));
        all.push("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned());
        all.push("*5\r\n:1\r\n:5000\r\n:10102\r\n:20000\r\n:1\r\n".to_owned());
        all
    }

    fn memory() -> GreetReply {
        let served = Duration::from_secs(5);
        GreetReply { canary: Canary::Kept, served, longest: 10_102, day: 20_000, kept: true }
    }

    fn begin(url: &str) -> Handshake {
        Handshake::begin(&Address::parse(url).unwrap(), Some(&crate::wire::greet(10_102, 0, 0))).0
    }

    fn talk(url: &str, answers: &[String]) -> Result<Next, NodeFailure> {
        let mut handshake = begin(url);
        let mut last = Ok(Next::Read);
        for answer in answers {
            assert_eq!(last, Ok(Next::Read));
            last = handshake.on_reply(answer.as_bytes());
        }
        last
    }

    /// All parts in each answer: only the part that was asked for is read.
    fn set_info(answers: &mut [String], text: &str) {
        answers[INFO].fill(info(text));
    }

    fn info(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    #[test]
    fn a_master_that_answers_everything_may_vote() {
        let mut answers = answers("%1\r\n+server\r\n$5\r\nredis\r\n");
        set_info(&mut answers, "# Server\r\nrun_id:abc\r\nredis_mode:standalone\r\n");
        assert_eq!(
            talk("redis://a", &answers),
            Ok(Next::Done(ServerInfo {
                run_id: Some("abc".to_owned()),
                pushes: true,
                memory: Some(memory()),
                ..ServerInfo::default()
            }))
        );
    }

    #[test]
    fn b2_a_replica_has_no_vote() {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, "run_id:abc\r\n");
        answers[ROLE] = "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:1\r\n".to_owned();
        assert_eq!(talk("redis://a", &answers), Err(NodeFailure::Replica));
    }

    #[test]
    fn b3_a_cluster_node_has_no_vote() {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, "redis_mode:cluster\r\n");
        assert_eq!(talk("redis://a", &answers), Err(NodeFailure::ClusterNode));
    }

    #[test]
    fn b3_a_sentinel_is_told_by_what_it_says_it_is_and_not_by_what_it_does_not_know() {
        let mut answers = answers("%0\r\n");
        answers[LOADED].fill("-ERR unknown command 'SCRIPT', with args beginning with: 'LOAD' \r\n".to_owned());
        let unknown = talk("redis://a", &answers).unwrap_err();
        assert!(matches!(unknown, NodeFailure::Refused { .. }), "{unknown}");

        let role = "*2\r\n$8\r\nsentinel\r\n*0\r\n".to_owned();
        set_info(&mut answers, "redis_mode:sentinel\r\n");
        assert_eq!(talk("redis://a", &answers), Err(NodeFailure::Sentinel));
        set_info(&mut answers, "run_id:abc\r\n");
        answers[ROLE] = role;
        assert_eq!(talk("redis://a", &answers), Err(NodeFailure::Sentinel));
    }

    #[test]
    fn a_database_number_of_a_cluster_node_does_not_hide_what_it_is() {
        let mut answers = answers("%0\r\n");
        set_info(&mut answers, "redis_mode:cluster\r\n");
        answers.insert(1, "-ERR SELECT is not allowed in cluster mode\r\n".to_owned());
        assert_eq!(talk("redis://a/1", &answers), Err(NodeFailure::ClusterNode));
    }

    #[test]
    fn b5_a_server_that_may_evict_locks_has_no_vote() {
        for (policy, limit, failure) in [
            ("noeviction", "0", None),
            ("noeviction", "1000", None),
            ("allkeys-lru", "0", None),
            ("allkeys-lru", "1000", Some("allkeys-lru")),
            ("volatile-ttl", "1000", Some("volatile-ttl")),
            ("volatile-ttl", "x", Some("volatile-ttl")),
        ] {
            let mut answers = answers("%0\r\n");
            set_info(&mut answers, &format!("run_id:abc\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n"));
            let failure = failure.map(|it| NodeFailure::Evicts { policy: it.to_owned() });
            let talked = talk("redis://a", &answers);
            assert_eq!(talked.as_ref().err(), failure.as_ref(), "{policy} {limit}");
            if let Ok(Next::Done(server_info)) = talked {
                assert_eq!(server_info.would_evict.is_some(), policy != "noeviction");
            }
        }
    }

    #[test]
    fn what_a_server_says_about_its_start_and_its_past_is_read() {
        let mut answers = answers("%0\r\n");
        let zeros = "0".repeat(40);
        for (id, offset, promoted) in
            [(&zeros[..], "-1", false), (&zeros, "7", false), ("8af3", "-1", false), ("8af3", "7", true)]
        {
            set_info(
                &mut answers,
                &format!(
                    "run_id:abc\r\nuptime_in_seconds:-3599\r\nserver_time_usec:1700000000000001\r\nconnected_slaves:2\r\n\
                 master_replid2:{id}\r\nsecond_repl_offset:{offset}\r\n"
                ),
            );
            let Ok(Next::Done(server_info)) = talk("redis://a", &answers) else { panic!() };
            assert_eq!((server_info.uptime, server_info.time), (Some(-3599), Some(1_700_000_000_000_001)));
            assert_eq!((server_info.replicas, server_info.promoted), (2, promoted), "{id} {offset}");
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
            set_info(&mut answers, &format!("redis_version:{version}\r\nrun_id:abc\r\n"));
            let failure = talk("redis://a", &answers).err();
            assert_eq!(failure, too_old.then(|| NodeFailure::TooOld { version: version.to_owned() }));
        }
    }

    #[test]
    fn a_server_without_hello_is_asked_in_the_older_protocol() {
        let mut answers = answers("-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n");
        set_info(&mut answers, "run_id:abc\r\n");
        let Ok(Next::Write(bytes)) = talk("redis://:pw@a", &answers) else { panic!() };
        assert!(bytes.starts_with(b"*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n"));
    }

    #[test]
    fn a_server_that_refuses_the_name_of_a_connection_may_vote() {
        let no_hello = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";
        for answer in
            ["+OK\r\n", "-NOPERM User x has no permissions to run the 'client|setname' command\r\n", "-ERR x\r\n"]
        {
            let (mut handshake, first) =
                Handshake::begin(&Address::parse("redis://a").unwrap(), Some(&crate::wire::greet(1, 0, 0)));
            assert!(first.windows(8).any(|it| it == b"quorlock"));
            let mut last = Ok(Next::Read);
            for answer in answers(no_hello) {
                last = handshake.on_reply(answer.as_bytes());
            }
            let Ok(Next::Write(bytes)) = &last else { panic!("{last:?}") };
            assert!(bytes.starts_with(b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\nquorlock\r\n"));
            for answer in answers(answer) {
                last = handshake.on_reply(answer.as_bytes());
            }
            assert!(matches!(last, Ok(Next::Done(_))), "{last:?}");
        }
    }

    #[test]
    fn login_errors_are_typed_and_never_echoed() {
        let mut answers = answers("-WRONGPASS invalid username-password pair: ann secret\r\n");
        answers[INFO.start] = "-NOAUTH Authentication required.\r\n".to_owned();
        let err = talk("redis://ann:secret@a", &answers).unwrap_err();
        assert_eq!(err, NodeFailure::WrongPassword);
        assert!(!format!("{err} {err:?}").contains("secret"));
    }

    #[test]
    fn each_part_of_info_is_asked_for_and_read_in_both_protocols() {
        let (_, first) = Handshake::begin(&Address::parse("redis://a").unwrap(), None);
        let first = String::from_utf8_lossy(&first).into_owned();
        for part in ["$6\r\nserver\r\n", "$6\r\nmemory\r\n", "$11\r\nreplication\r\n"] {
            assert!(first.contains(&format!("*2\r\n$4\r\nINFO\r\n{part}")), "{part}");
        }
        let mut answers = answers("%0\r\n");
        let text = "txt:run_id:abc\r\n";
        answers[INFO].fill(format!("={}\r\n{text}\r\n", text.len()));
        let Ok(Next::Done(server_info)) = talk("redis://a", &answers) else { panic!() };
        assert_eq!(server_info.run_id.as_deref(), Some("abc"));
    }

    #[test]
    fn what_a_server_refuses_while_it_is_asked_is_its_failure_but_for_what_the_access_list_forbids() {
        let old = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";
        let auth = |answer: &str| {
            let mut handshake = begin("redis://:pw@a");
            answers(old).iter().for_each(|it| drop(handshake.on_reply(it.as_bytes())));
            assert_eq!(handshake.on_reply(answer.as_bytes()), Ok(Next::Read));
            handshake.failure()
        };
        assert_eq!(auth("-WRONGPASS invalid password\r\n"), Some(NodeFailure::WrongPassword));
        assert_eq!(auth("+OK\r\n"), None);

        let with = |place, answer: &str| {
            let mut answers = answers("%0\r\n");
            answers[place] = answer.to_owned();
            talk("redis://a", &answers).err()
        };
        for place in [INFO.start, ROLE] {
            assert_eq!(with(place, "-LOADING it is\r\n"), Some(NodeFailure::Loading));
            assert_eq!(with(place, "-NOPERM no permissions\r\n"), None);
        }
        assert_eq!(with(ROLE + 1, "-OOM command not allowed\r\n"), Some(NodeFailure::OutOfMemory));
        let hash = Script::LOADED_AHEAD[0].hash();
        assert_eq!(with(LOADED.start, &format!("+{hash}\r\n")), None);
        assert!(matches!(with(LOADED.start, "+abc\r\n"), Some(NodeFailure::Protocol { .. })));

        let mut answers = answers("%0\r\n");
        answers.insert(1, "-ERR DB index is out of range\r\n".to_owned());
        assert_eq!(talk("redis://a/99", &answers), Err(NodeFailure::BadDatabase));
    }

    /// Something that a server may say to any question, and should not.
    fn nonsense() -> impl Strategy<Value = Vec<u8>> {
        let of_others = answers("%0\r\n").into_iter().chain(["+OK\r\n".to_owned()]).collect::<Vec<_>>();
        prop_oneof![
            prop::sample::select(of_others).prop_map(String::into_bytes),
            prop::collection::vec(info_line(), 0..4).prop_map(|it| info(&it.join("\r\n")).into_bytes()),
            ("[A-Z]{1,10}", "[ -~]{0,20}").prop_map(|(code, text)| format!("-{code} {text}\r\n").into_bytes()),
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
        let values =
            ["", "7.0.15", "6", "-1", "18446744073709551616", "cluster", "sentinel", "master", "NaN", ":", "\u{fffd}"];
        (prop::sample::select(keys.to_vec()), prop::sample::select(values.to_vec()))
            .prop_map(|(k, v)| format!("{k}:{v}"))
    }

    proptest! {
        #[test]
        fn g5_no_dialogue_panics_and_none_ends_well_without_the_hash_of_every_script(
            wrong in prop::collection::vec(prop::option::weighted(0.1, nonsense()), ROLE + 2),
            behind in prop::collection::vec(nonsense(), 0..9),
        ) {
            let right = answers("%0\r\n").into_iter().map(String::into_bytes);
            let said = wrong.into_iter().zip(right).map(|(wrong, right)| wrong.unwrap_or(right)).chain(behind);
            let mut handshake = begin("redis://:pw@a");
            let mut hashes = Vec::new();
            for frame in said {
                let text = String::from_utf8_lossy(&frame).into_owned();
                hashes.extend(Script::LOADED_AHEAD.iter().map(|it| it.hash()).filter(|it| text.contains(it)));
                match handshake.on_reply(&frame) {
                    Ok(Next::Read | Next::Write(_)) => {}
                    Ok(Next::Done(_)) => {
                        prop_assert!(Script::LOADED_AHEAD.iter().all(|it| hashes.contains(&it.hash())));
                        break;
                    }
                    Err(failure) => {
                        prop_assert!(failure.to_string().chars().count() < 2_000);
                        break;
                    }
                }
            }
        }

        #[test]
        fn g5_a_server_that_says_what_it_should_may_vote_whatever_its_info_is(text: String) {
            let mut answers = answers("%0\r\n");
            set_info(&mut answers, &text);
            let end = talk("redis://a", &answers);
            // Unless by chance it says something that is asked for.
            let done = matches!(end, Ok(Next::Done(_)));
            prop_assert!(done || text.contains("redis_"), "{end:?}");
        }
    }
}
