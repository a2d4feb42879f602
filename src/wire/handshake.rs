//! What is said on a new connection before anything votes on it.
//!
//! One write, one read: log in (`HELLO 3`), choose the database, ask which scripts the server knows, who it is, and since when
//! it remembers. A server that does not know `HELLO` is asked again in the older protocol, on the same connection. One that
//! does not know all scripts is given the others, in one write more.
//!
//! A member that only says which server has its node's vote has a short login: user, password and name, in the older protocol.

use redis::{Cmd, ServerError, Value, cmd};

use crate::answer::{Answer, ServerInfo};
use crate::error::NodeFailure;
use crate::ids::Edition;
use crate::wire::address::Address;
use crate::wire::command::{Command, Destination, Naming};
use crate::wire::reply::Reply;
use crate::wire::script::{Kind, Script};
use crate::wire::{refusal, value};

/// What comes next.
#[cfg_attr(test, derive(Debug, Eq, PartialEq))]
pub(crate) enum HandshakeStep {
    /// Wait for more replies.
    Read,
    /// Write this, then wait for its replies.
    Write(Vec<u8>),
    /// The node may vote.
    Done(ServerInfo),
}

/// The handshake: replies in, next step out.
pub(crate) struct Handshake {
    /// The questions that are not answered yet, in order.
    open: std::collections::VecDeque<Expect>,
    /// The commands of the older protocol, if it comes to that.
    fallback: Option<(Vec<u8>, Vec<Expect>)>,
    /// The scripts that the connection needs.
    scripts: Vec<Script>,
    /// Those that the server does not know.
    unknown: Vec<Script>,
    /// What asks the server for its record, until it is answered.
    greet: Option<Vec<u8>>,
    server_info: ServerInfo,
    failure: Option<NodeFailure>,
    ask_again: bool,
    /// Whether the server is to be part of a cluster.
    in_cluster: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Expect {
    Hello,
    Auth,
    /// A name for people: whatever the answer is.
    Name,
    Select,
    /// Which scripts it knows.
    Known,
    Load(Script),
    Info(Section),
    Role,
    /// Last: it writes, and a server that refuses writes is recognized by its role first.
    Greet,
}

/// The parts of `INFO` that are read, one command each: older servers take one name only. Not all of it, because other
/// parts grow without end: any client may make up as many kinds of errors as it likes, and the server lists them
/// all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Section {
    Server,
    Replication,
}

impl Section {
    const ALL: [Section; 2] = [Section::Server, Section::Replication];

    fn name(self) -> &'static str {
        match self {
            Section::Server => "server",
            Section::Replication => "replication",
        }
    }
}

impl Handshake {
    /// Begins the handshake: the bytes to write first. `greet`: what to ask the server for its record.
    pub(crate) fn begin(address: &Address, greet: Option<&Command>) -> (Handshake, Vec<u8>) {
        let to = Destination {
            is_notified: false,
            edition: Edition::NONE,
            tag: address.tag.as_deref(),
        };
        let packed = |greet: &Command| {
            let mut bytes = Vec::new();
            greet.write(&mut bytes, Naming::Hash, to);
            bytes
        };
        let (greet, scripts) = (greet.map(packed), Script::needed());
        let older = login(address, &scripts, greet.as_deref(), false);
        let ((bytes, questions), fallback) = if address.is_member {
            (older, None)
        } else {
            (
                login(address, &scripts, greet.as_deref(), true),
                Some(older),
            )
        };
        let handshake = Handshake {
            open: questions.into(),
            fallback,
            scripts,
            unknown: Vec::new(),
            greet,
            server_info: ServerInfo::default(),
            failure: None,
            ask_again: false,
            in_cluster: address.tag.is_some(),
        };
        (handshake, bytes)
    }

    /// Takes one reply.
    pub(crate) fn on_reply(&mut self, frame: &[u8]) -> Result<HandshakeStep, NodeFailure> {
        let value = value::read(frame).ok_or_else(|| NodeFailure::Protocol {
            reason: "an answer that cannot be read".to_owned(),
        })?;
        let Some(question) = self.open.pop_front() else {
            return Err(NodeFailure::Protocol {
                reason: "an answer to nothing".to_owned(),
            });
        };
        if question == Expect::Greet {
            self.take_greet_reply(Reply::read(Kind::Greet, frame).answer);
        } else {
            self.take(question, &value);
        }
        if let Some(failure) = self.failure.take_if(|it| refusal::is_of_accepting(it)) {
            // It said so when the connection came, whatever it was asked, and says nothing else.
            return Err(failure);
        }
        if !self.open.is_empty() {
            return Ok(HandshakeStep::Read);
        }
        if self.ask_again {
            self.ask_again = false;
            if let Some((bytes, questions)) = self.fallback.take() {
                self.failure = None;
                self.unknown.clear();
                self.server_info = ServerInfo::default();
                self.open = questions.into();
                return Ok(HandshakeStep::Write(bytes));
            }
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if !self.unknown.is_empty() => Ok(HandshakeStep::Write(self.load())),
            None => Ok(HandshakeStep::Done(self.server_info.clone())),
        }
    }

    /// Gives the server the scripts that it does not know, and asks again what it could not answer without them.
    fn load(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for script in std::mem::take(&mut self.unknown) {
            cmd("SCRIPT")
                .arg("LOAD")
                .arg(script.source())
                .write_packed_command(&mut bytes);
            self.open.push_back(Expect::Load(script));
        }
        if let Some(greet) = self.greet.take() {
            bytes.extend_from_slice(&greet);
            self.open.push_back(Expect::Greet);
        }
        bytes
    }

    /// What has gone wrong so far: the better reason if the server closes the connection after it.
    pub(crate) fn failure(&self) -> Option<NodeFailure> {
        self.failure.clone()
    }

    /// Whether the server has said what time it is.
    pub(crate) fn has_time(&self) -> bool {
        self.server_info.time.is_some()
    }

    fn take(&mut self, question: Expect, value: &Value) {
        let failure = match (question, value) {
            (Expect::Hello, Value::ServerError(error)) => {
                // It does not know the protocol or the command, in whatever words.
                self.ask_again = is_refused(error) && self.fallback.is_some();
                Some(refusal::of_login(error))
            }
            (Expect::Hello, _) => {
                self.server_info.pushes = true;
                None
            }
            (Expect::Auth, Value::ServerError(error)) => Some(refusal::of_login(error)),
            (Expect::Select, Value::ServerError(error)) => Some(match refusal::of(error) {
                refusal::Refusal::Failure(NodeFailure::Refused { .. }) => {
                    NodeFailure::unsuitable(BAD_DATABASE)
                }
                refusal::Refusal::Failure(failure) => failure,
                refusal::Refusal::NoScript => NodeFailure::unsuitable(BAD_DATABASE),
            }),
            (Expect::Known, value) => self.take_known(value).err(),
            (Expect::Load(script), value) => load_failure(script, value),
            (Expect::Info(section), Value::VerbatimString { text, .. }) => {
                self.take_info(section, text)
            }
            (Expect::Info(section), Value::BulkString(bytes)) => {
                self.take_info(section, &String::from_utf8_lossy(bytes))
            }
            (Expect::Role, Value::Array(members)) => match members.first() {
                Some(Value::BulkString(role)) if role == b"slave" => Some(NodeFailure::Replica),
                Some(Value::BulkString(role)) if role == b"sentinel" => Some(NodeFailure::SENTINEL),
                Some(Value::BulkString(role)) if role == ACTIVE_REPLICA.as_bytes() => {
                    Some(NodeFailure::MULTI_MASTER)
                }
                Some(Value::BulkString(_) | Value::SimpleString(_)) => None,
                _ => Some(bad_answer("ROLE")),
            },
            // The access list may forbid INFO and ROLE. The node votes all the same, and cannot be checked.
            (Expect::Info(_) | Expect::Role, Value::ServerError(error))
                if error.code() == "NOPERM" =>
            {
                None
            }
            (Expect::Role, Value::ServerError(error)) => {
                self.server_info.proxied = is_refused(error);
                failure_of(error).filter(|_| !self.server_info.proxied)
            }
            (Expect::Info(_), Value::ServerError(error)) => failure_of(error),
            (Expect::Auth | Expect::Select, Value::Okay)
            | (Expect::Name, Value::Okay | Value::ServerError(_)) => None,
            _ => Some(bad_answer("the login")),
        };
        // The first failure counts: those after it are its consequences. Unless the server says what it is: then those
        // before it are consequences of that, as a Sentinel has no scripts.
        let is_consequence = question == Expect::Select || failure == Some(NodeFailure::PROXY);
        let is_what_it_is =
            !is_consequence && matches!(failure, Some(NodeFailure::Unsuitable { .. }));
        if self.failure.is_none() || is_what_it_is {
            self.failure = failure;
        }
    }

    fn take_known(&mut self, value: &Value) -> Result<(), NodeFailure> {
        match value {
            Value::Array(known) if known.len() == self.scripts.len() => {
                for (script, known) in self.scripts.iter().zip(known) {
                    match known {
                        Value::Int(0) => self.unknown.push(*script),
                        Value::Int(1) => {}
                        _ => return Err(bad_answer("SCRIPT EXISTS")),
                    }
                }
            }
            // The access list may forbid to ask.
            Value::ServerError(error) if error.code() == "NOPERM" => {
                self.unknown.clone_from(&self.scripts)
            }
            Value::ServerError(error) => return failure_of(error).map_or(Ok(()), Err),
            _ => return Err(bad_answer("SCRIPT EXISTS")),
        }
        Ok(())
    }

    fn take_greet_reply(&mut self, answer: Answer) {
        let failure = match answer {
            Answer::Greet(reply) => {
                self.server_info.greet_reply = Some(reply);
                self.greet = None;
                return;
            }
            // It is asked again, with its script behind the others that it does not know.
            Answer::NoScript if self.greet.is_some() => {
                if !self.unknown.contains(&Script::Greet) {
                    self.unknown.push(Script::Greet);
                }
                return;
            }
            // There is no record and none can be stored. It can be asked for everything but locks.
            Answer::Failed(NodeFailure::WritesRefused { .. }) => return,
            // The access list may forbid INFO, which says that it is part of a cluster.
            Answer::Failed(NodeFailure::SlotNotServed { .. }) if !self.in_cluster => {
                NodeFailure::CLUSTER_NODE
            }
            Answer::Failed(failure) => failure,
            _ => NodeFailure::Protocol {
                reason: "no memory in the answer to a greeting".to_owned(),
            },
        };
        self.failure.get_or_insert(failure);
    }

    fn take_info(&mut self, section: Section, text: &str) -> Option<NodeFailure> {
        let field = |name: &str| {
            text.lines().find_map(|line| {
                line.trim_end()
                    .strip_prefix(name)?
                    .strip_prefix(':')
                    .map(str::to_owned)
            })
        };
        let number = |name| field(name).and_then(|it| it.parse::<u64>().ok());
        match section {
            Section::Server => {
                self.server_info.run_id = field("run_id").filter(|it| !it.is_empty());
                self.server_info.uptime = field("uptime_in_seconds").and_then(|it| it.parse().ok());
                self.server_info.time = number("server_time_usec");
                // A server that is made after Redis says first which Redis it is like.
                let named = |name: &str, it: &str| Some(format!("{name} {}", field(it)?));
                let version = OTHER_SERVERS
                    .iter()
                    .find_map(|(name, field)| named(name, field));
                let version = version.or_else(|| named("Redis", "redis_version"));
                self.server_info.version = version.map(|it| refusal::shown(&it));
                if let Some(version) = field("garnet_version") {
                    return Some(not_atomic(&refusal::shown(&version)));
                }
                if let Some(version) = field("redis_version").filter(|it| is_too_old(it)) {
                    return Some(too_old(&refusal::shown(&version)));
                }
                // Valkey has called it so since its version 9.
                match field("redis_mode")
                    .or_else(|| field("server_mode"))
                    .as_deref()
                {
                    Some("cluster") if self.in_cluster => None,
                    Some("cluster") => Some(NodeFailure::CLUSTER_NODE),
                    Some("standalone") if self.in_cluster => Some(NodeFailure::NO_CLUSTER),
                    Some("sentinel") => Some(NodeFailure::SENTINEL),
                    _ => None,
                }
            }
            Section::Replication => {
                // The history that it had as a replica: no offset and no id if it never was one.
                self.server_info.promoted = field("second_repl_offset")
                    .is_some_and(|it| !it.starts_with('-'))
                    && field("master_replid2").is_some_and(|it| it.bytes().any(|it| it != b'0'));
                field("role")
                    .filter(|it| it == ACTIVE_REPLICA)
                    .map(|_| NodeFailure::MULTI_MASTER)
            }
        }
    }
}

const BAD_DATABASE: &str = "it has no such database; correct the number at the end of the URL";

fn not_atomic(version: &str) -> NodeFailure {
    let reason = format!(
        "Garnet {version}, which runs scripts side by side, so two clients may get one lock; use Redis or Valkey"
    );
    NodeFailure::Unsuitable {
        reason: reason.into(),
    }
}

fn too_old(version: &str) -> NodeFailure {
    NodeFailure::Unsuitable {
        reason: format!("Redis {version} is too old; use 6.2 or newer, or Valkey").into(),
    }
}

/// Servers that are made after Redis, and where they say their version.
const OTHER_SERVERS: [(&str, &str); 3] = [
    ("Valkey", "valkey_version"),
    ("Garnet", "garnet_version"),
    ("Dragonfly", "dragonfly_version"),
];

/// What KeyDB calls one of several servers that take writes and merge them.
const ACTIVE_REPLICA: &str = "active-replica";

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
        Value::ServerError(error) => failure_of(error),
        Value::BulkString(hash) if hash == script.hash().as_bytes() => None,
        Value::SimpleString(hash) if hash == script.hash() => None,
        _ => Some(bad_answer("SCRIPT LOAD")),
    }
}

fn is_refused(error: &ServerError) -> bool {
    matches!(
        refusal::of(error),
        refusal::Refusal::Failure(NodeFailure::Refused { .. })
    )
}

fn failure_of(error: &ServerError) -> Option<NodeFailure> {
    match refusal::of(error) {
        refusal::Refusal::Failure(NodeFailure::Refused { .. }) => Some(NodeFailure::PROXY),
        refusal::Refusal::Failure(failure) => Some(failure),
        refusal::Refusal::NoScript => None,
    }
}

fn bad_answer(to: &str) -> NodeFailure {
    NodeFailure::Protocol {
        reason: format!("no answer to {to}"),
    }
}

fn login(
    address: &Address,
    scripts: &[Script],
    greet: Option<&[u8]>,
    resp3: bool,
) -> (Vec<u8>, Vec<Expect>) {
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
            hello
                .arg("AUTH")
                .arg(address.user.as_deref().unwrap_or("default"))
                .arg(password);
        }
        ask(
            Expect::Hello,
            hello.arg("SETNAME").arg(&address.client_name),
        );
    } else {
        if let Some(password) = &address.password {
            let mut auth = cmd("AUTH");
            if let Some(user) = &address.user {
                auth.arg(user);
            }
            ask(Expect::Auth, auth.arg(password));
        }
        ask(
            Expect::Name,
            cmd("CLIENT").arg("SETNAME").arg(&address.client_name),
        );
    }
    if address.database != 0 {
        ask(Expect::Select, cmd("SELECT").arg(address.database));
    }
    if address.is_member {
        return (bytes, questions);
    }
    let hashes: Vec<_> = scripts.iter().map(|it| it.hash()).collect();
    ask(Expect::Known, cmd("SCRIPT").arg("EXISTS").arg(hashes));
    for section in Section::ALL {
        ask(Expect::Info(section), cmd("INFO").arg(section.name()));
    }
    ask(Expect::Role, &cmd("ROLE"));
    if let Some(greet) = greet {
        bytes.extend_from_slice(greet);
        questions.push(Expect::Greet);
    }
    (bytes, questions)
}

#[cfg(test)]
mod tests;
