//! The login of a new connection, before its first vote.
//!
//! One write, one read: log in (`HELLO 3`), choose the database, read run id and replication, and
//! sync the record. A server without the script of the sync gets its source in one more write. A
//! server without `HELLO` gets the older protocol, on the same connection.
//!
//! A member that only names its node's server has a short login: user, password and name, in the
//! older protocol.

use redis::{Cmd, ServerError, Value, cmd, parse_redis_value};

use crate::answer::{Answer, ServerInfo};
use crate::error::NodeFailure;
use crate::ids::RecordVersion;
use crate::wire::address::{Address, Credentials};
use crate::wire::command::{Command, Destination};
use crate::wire::refusal;
use crate::wire::reply::Reply;
use crate::wire::script::Kind;

/// The connection during the login.
pub(crate) trait Dialogue {
    /// Writes behind everything before.
    fn write(&mut self, bytes: &[u8]);

    /// Waits for the next reply.
    fn reply(&mut self) -> Result<Vec<u8>, NodeFailure>;

    /// Notes the time after the reply with the server's time.
    fn note_time(&mut self);
}

/// Logs in and returns the facts about the server. `sync_record`: command for its record; none for
/// a member.
pub(crate) fn log_in(
    server: &mut dyn Dialogue,
    address: &Address,
    sync_record: Option<&Command>,
) -> Result<ServerInfo, NodeFailure> {
    let mut login = Questions {
        server,
        address,
        sync_record,
        info: ServerInfo::default(),
        failure: None,
    };
    let end = login.run();
    // An earlier failure is the better reason if the server then closes the connection.
    match login.failure {
        Some(failure) => Err(failure),
        None => end.map(|()| login.info),
    }
}

/// A command to a member.
pub(crate) fn question(words: &[&str]) -> Vec<u8> {
    Cmd::new().arg(words).get_packed_command()
}

/// The answer of a member.
pub(crate) fn answer(frame: &[u8]) -> Result<Value, NodeFailure> {
    match read(frame)? {
        Value::ServerError(error) => {
            Err(refusal::of(&error).unwrap_or_else(|| bad_answer("a question")))
        }
        value => Ok(value),
    }
}

fn read(frame: &[u8]) -> Result<Value, NodeFailure> {
    parse_redis_value(frame).map_err(|_| NodeFailure::protocol("an answer that cannot be read"))
}

struct Questions<'a> {
    server: &'a mut dyn Dialogue,
    address: &'a Address,
    /// Command for the server's record; none for a member.
    sync_record: Option<&'a Command>,
    info: ServerInfo,
    /// First failure so far.
    failure: Option<NodeFailure>,
}

impl Questions<'_> {
    fn run(&mut self) -> Result<(), NodeFailure> {
        let is_member = self.sync_record.is_none();
        if is_member || !self.exchange(true)? {
            self.info = ServerInfo::default();
            self.failure = None;
            self.exchange(false)?;
        }
        Ok(())
    }

    /// Writes the commands and reads the answers one by one. False: the server lacks the newer
    /// protocol.
    fn exchange(&mut self, newer: bool) -> Result<bool, NodeFailure> {
        self.server.write(&self.questions(newer));
        let mut is_known = true;
        if newer {
            self.info.pushes = true;
            if let Value::ServerError(error) = self.value()? {
                // An unknown protocol or command, in any wording.
                is_known = failure_of(&error) != NodeFailure::PROXY;
                if is_known {
                    self.fail(refusal::of_login(&error))?;
                }
            }
        } else {
            if self.address.login.is_some()
                && let Some(error) = self.okay()?
            {
                self.fail(refusal::of_login(&error))?;
            }
            // A name for people. Any answer will do.
            self.okay()?;
        }
        if self.address.database != 0
            && let Some(error) = self.okay()?
        {
            let failure = Some(failure_of(&error)).filter(|it| *it != NodeFailure::PROXY);
            self.failure
                .get_or_insert(failure.unwrap_or(NodeFailure::unsuitable(BAD_DATABASE)));
        }
        let Some(sync_record) = self.sync_record else {
            return Ok(is_known);
        };
        let server = self.info()?;
        self.server.note_time();
        self.read_server(&server)?;
        let replication = self.info()?;
        self.read_replication(&replication)?;
        self.read_role()?;
        // Last, because it writes: a server that refuses writes is recognized by its role first.
        if self.read_sync()? && self.failure.is_none() {
            self.server.write(&self.packed(sync_record, true));
            if self.read_sync()? {
                return Err(no_record());
            }
        }
        Ok(is_known)
    }

    fn packed(&self, sync_record: &Command, with_source: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let to = Destination {
            with_source,
            is_notified: false,
            record_version: RecordVersion::NONE,
            tag: self.address.tag.as_deref(),
        };
        sync_record.write(&mut bytes, to);
        bytes
    }

    fn questions(&self, newer: bool) -> Vec<u8> {
        let Address {
            login,
            client_name,
            database,
            ..
        } = self.address;
        let mut bytes = Vec::new();
        let mut push = |command: &Cmd| command.write_packed_command(&mut bytes);
        if newer {
            let mut hello = cmd("HELLO");
            hello.arg(3);
            if let Some(Credentials { user, password }) = login {
                let user = user.as_deref().unwrap_or("default");
                hello.arg("AUTH").arg(user).arg(password);
            }
            push(hello.arg("SETNAME").arg(client_name));
        } else {
            if let Some(Credentials { user, password }) = login {
                push(cmd("AUTH").arg(user).arg(password));
            }
            push(cmd("CLIENT").arg("SETNAME").arg(client_name));
        }
        if *database != 0 {
            push(cmd("SELECT").arg(database));
        }
        if let Some(sync_record) = self.sync_record {
            // One command each: older servers take one name only. Not all sections, because some
            // grow without limit: a client can create any number of error kinds, and the server
            // lists them all.
            push(cmd("INFO").arg("server"));
            push(cmd("INFO").arg("replication"));
            push(&cmd("ROLE"));
            // By its hash: locks need EVALSHA.
            bytes.extend(self.packed(sync_record, false));
        }
        bytes
    }

    fn value(&mut self) -> Result<Value, NodeFailure> {
        read(&self.server.reply()?)
    }

    /// Reads the result of a command; the error if refused.
    fn okay(&mut self) -> Result<Option<ServerError>, NodeFailure> {
        match self.value()? {
            Value::Okay => Ok(None),
            Value::ServerError(error) => Ok(Some(error)),
            _ => Err(bad_answer("the login")),
        }
    }

    /// Notes a failure. The first one counts, because later ones are its consequences. An
    /// identification of the server replaces earlier ones: a Sentinel, for example, has no
    /// databases. An error ends the login.
    fn fail(&mut self, failure: NodeFailure) -> Result<(), NodeFailure> {
        // The server sends this at the connection, before any command, and nothing else.
        if refusal::is_of_accepting(&failure) {
            return Err(failure);
        }
        let says_what_it_is =
            matches!(failure, NodeFailure::Unsuitable { .. }) && failure != NodeFailure::PROXY;
        if says_what_it_is || self.failure.is_none() {
            self.failure = Some(failure);
        }
        Ok(())
    }

    /// A section of `INFO`; empty if the access list forbids it. The node votes nevertheless,
    /// unchecked.
    fn info(&mut self) -> Result<String, NodeFailure> {
        match self.value()? {
            Value::VerbatimString { text, .. } => return Ok(text),
            Value::BulkString(bytes) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Value::ServerError(error) if error.code() == "NOPERM" => {}
            Value::ServerError(error) => self.fail(failure_of(&error))?,
            _ => return Err(bad_answer("the login")),
        }
        Ok(String::new())
    }

    fn read_server(&mut self, text: &str) -> Result<(), NodeFailure> {
        let field = |name| field(text, name);
        self.info.run_id = field("run_id")
            .filter(|it| !it.is_empty())
            .map(str::to_owned);
        self.info.uptime = field("uptime_in_seconds").and_then(|it| it.parse().ok());
        self.info.time = field("server_time_usec").and_then(|it| it.parse().ok());
        let version = VERSIONS
            .iter()
            .find_map(|(name, key)| Some(format!("{name} {}", field(key)?)));
        self.info.version = version.map(|it| refusal::shown(&it));
        // The name since Valkey 9.
        let mode = field("redis_mode").or_else(|| field("server_mode"));
        let in_cluster = self.address.tag.is_some();
        let unsuitable = |reason: String| NodeFailure::Unsuitable {
            reason: reason.into(),
        };
        let failure = if let Some(version) = field("garnet_version") {
            unsuitable(format!(
                "Garnet {}, which runs scripts side by side, so two clients may get one lock; use \
                 Redis or Valkey",
                refusal::shown(version)
            ))
        } else if let Some(version) = field("redis_version").filter(|it| is_too_old(it)) {
            let version = refusal::shown(version);
            unsuitable(format!(
                "Redis {version} is too old; use 6.2 or newer, or Valkey"
            ))
        } else {
            match mode {
                Some("cluster") if !in_cluster => NodeFailure::CLUSTER_NODE,
                Some("standalone") if in_cluster => NodeFailure::NO_CLUSTER,
                Some("sentinel") => NodeFailure::SENTINEL,
                _ => return Ok(()),
            }
        };
        self.fail(failure)
    }

    fn read_replication(&mut self, text: &str) -> Result<(), NodeFailure> {
        // Its history as a replica: no offset and no id without one.
        self.info.promoted = field(text, "second_repl_offset")
            .is_some_and(|it| !it.starts_with('-'))
            && field(text, "master_replid2").is_some_and(|id| id.bytes().any(|it| it != b'0'));
        match field(text, "role") {
            Some(ACTIVE_REPLICA) => self.fail(NodeFailure::MULTI_MASTER),
            _ => Ok(()),
        }
    }

    fn read_role(&mut self) -> Result<(), NodeFailure> {
        match self.value()? {
            Value::Array(members) => {
                let Some(Value::BulkString(role)) = members.first() else {
                    return Err(bad_answer("ROLE"));
                };
                match str::from_utf8(role) {
                    Ok("slave") => self.fail(NodeFailure::Replica),
                    Ok("sentinel") => self.fail(NodeFailure::SENTINEL),
                    Ok(ACTIVE_REPLICA) => self.fail(NodeFailure::MULTI_MASTER),
                    _ => Ok(()),
                }
            }
            Value::ServerError(error) if error.code() == "NOPERM" => Ok(()),
            Value::ServerError(error) => {
                let failure = failure_of(&error);
                self.info.proxied = failure == NodeFailure::PROXY;
                if self.info.proxied {
                    return Ok(());
                }
                self.fail(failure)
            }
            _ => Err(bad_answer("the login")),
        }
    }

    /// True: the server lacks the script.
    fn read_sync(&mut self) -> Result<bool, NodeFailure> {
        match Reply::read(Kind::SyncRecord, &self.server.reply()?).answer {
            Answer::Record(reply) => self.info.record_reply = Some(reply),
            // There is no record and none can be stored. Everything but locks works.
            Answer::Failed(NodeFailure::WritesRefused { .. }) => {}
            // The access list may forbid INFO, which would show the cluster.
            Answer::Failed(NodeFailure::SlotNotServed { .. }) if self.address.tag.is_none() => {
                self.fail(NodeFailure::CLUSTER_NODE)?;
            }
            Answer::Failed(failure) => self.fail(failure)?,
            Answer::NoScript => return Ok(true),
            _ => return Err(no_record()),
        }
        Ok(false)
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

const BAD_DATABASE: &str = "it has no such database; correct the number at the end of the URL";

/// Fields of server versions. Servers derived from Redis also have the Redis version.
const VERSIONS: [(&str, &str); 4] = [
    ("Valkey", "valkey_version"),
    ("Garnet", "garnet_version"),
    ("Dragonfly", "dragonfly_version"),
    ("Redis", "redis_version"),
];

/// KeyDB's role of one of several servers that accept writes and merge them.
const ACTIVE_REPLICA: &str = "active-replica";

/// Whether the version is too old for the scripts. False for any other text.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|it| it.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) < (6, 2),
        _ => false,
    }
}

fn failure_of(error: &ServerError) -> NodeFailure {
    match refusal::of(error) {
        None | Some(NodeFailure::Refused { .. }) => NodeFailure::PROXY,
        // An unknown command.
        Some(NodeFailure::Access { .. }) if error.code() == "ERR" => NodeFailure::PROXY,
        Some(failure) => failure,
    }
}

fn no_record() -> NodeFailure {
    NodeFailure::protocol("no record in the answer to a sync")
}

fn bad_answer(to: &str) -> NodeFailure {
    NodeFailure::protocol(format!("no answer to {to}"))
}

#[cfg(test)]
mod tests;
