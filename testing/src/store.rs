//! What a server does, without sockets, threads or clocks: commands and the time go in, replies and
//! messages come out.
//!
//! It knows commands, and runs the scripts that it is sent. `tests/commands` compares its commands
//! with those of real servers. The checker of schedules has its servers run it too, so nothing here
//! names `quorlock`.

mod commands;
mod keyspace;
mod lua;
mod reply;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sha1_smol::Sha1;

pub use commands::Notice;
use commands::{Data, Refused, integer, wrong_number};
pub use keyspace::{Stored, Value};
pub use reply::Reply;

/// What one server keeps.
#[derive(Default)]
pub struct Store {
    data: Data,
    /// The sources of the scripts that it was sent, by their hashes.
    scripts: HashMap<String, Arc<[u8]>>,
}

/// The hash and the source of a script.
type Script = (String, Arc<[u8]>);

/// What a command has led to.
#[derive(Debug)]
pub struct Done {
    pub reply: Reply,
    /// What was published, in order.
    pub notices: Vec<Notice>,
    /// The hash of the script that was run.
    pub ran: Option<String>,
}

impl Store {
    /// An empty one. `run_id`: letters and digits. Its uptime begins with its first command.
    #[must_use]
    pub fn new(run_id: &str) -> Store {
        Store {
            data: Data {
                run_id: run_id.to_owned(),
                ..Data::default()
            },
            ..Store::default()
        }
    }

    /// On how many connections a channel is open, as `PUBLISH` and `PUBSUB` report it.
    pub fn set_listeners(&mut self, channel: &[u8], count: usize) {
        if count == 0 {
            self.data.listeners.remove(channel);
        } else {
            self.data.listeners.insert(channel.to_vec(), count);
        }
    }

    /// What is stored at `now`, in the order of the keys.
    pub fn contents(&mut self, now: Duration) -> impl Iterator<Item = (&[u8], Stored<'_>)> {
        self.go_to(now);
        self.data.keys.iter()
    }

    /// Runs a command. `now`: what the server's clock shows, since 1970.
    pub fn execute<T: AsRef<[u8]>>(&mut self, command: &[T], now: Duration) -> Done {
        self.go_to(now);
        let (reply, ran) = match self.script_of(command) {
            Some(Ok((sha, source))) => (self.run_script(&sha, &source, &command[2..]), Some(sha)),
            Some(Err(reply)) => (reply, None),
            None => (self.plain(command), None),
        };
        Done {
            reply,
            notices: std::mem::take(&mut self.data.notices),
            ran,
        }
    }

    fn go_to(&mut self, now: Duration) {
        self.data.now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let now = self.data.now / 1000;
        self.data.began.get_or_insert(now);
        self.data.keys.go_to(now);
    }

    /// The script that a command runs, with its hash.
    fn script_of<T: AsRef<[u8]>>(&mut self, command: &[T]) -> Option<Result<Script, Reply>> {
        let [name, args @ ..] = command else {
            return None;
        };
        let name = name.as_ref().to_ascii_lowercase();
        Some(match (&name[..], args) {
            (b"eval", [source, _, ..]) => {
                self.data.count(b"EVAL");
                Ok(self.learn(source.as_ref()))
            }
            (b"evalsha", [sha, _, ..]) => {
                self.data.count(b"EVALSHA");
                let sha = String::from_utf8_lossy(sha.as_ref()).to_lowercase();
                let source = self.scripts.get(&sha).cloned();
                let unknown =
                    || Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
                source.map(|source| (sha, source)).ok_or_else(unknown)
            }
            (b"eval" | b"evalsha", _) => {
                Err(Reply::Error(wrong_number(&String::from_utf8_lossy(&name))))
            }
            _ => return None,
        })
    }

    fn learn(&mut self, source: &[u8]) -> Script {
        let sha = Sha1::from(source).digest().to_string();
        let source = self
            .scripts
            .entry(sha.clone())
            .or_insert_with(|| source.into());
        (sha, Arc::clone(source))
    }

    /// `args`: the number of keys, the keys, the arguments.
    fn run_script<T: AsRef<[u8]>>(&mut self, sha: &str, source: &[u8], args: &[T]) -> Reply {
        let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.as_ref().to_vec()).collect();
        let split = number_of_keys(&args).map(|keys| args[1..].split_at(keys));
        let (keys, args) = match split {
            Ok(split) => split,
            Err(Refused(text)) => return Reply::Error(text),
        };
        let (data, reply) = lua::run(std::mem::take(&mut self.data), sha, source, keys, args);
        self.data = data;
        reply
    }

    fn plain<T: AsRef<[u8]>>(&mut self, command: &[T]) -> Reply {
        let [name, args @ ..] = command else {
            return self.data.execute(command);
        };
        if !name.as_ref().eq_ignore_ascii_case(b"SCRIPT") {
            return self.data.execute(command);
        }
        let [word, args @ ..] = args else {
            return Reply::Error(wrong_number("script"));
        };
        match (&word.as_ref().to_ascii_uppercase()[..], args) {
            (b"LOAD", [source]) => Reply::bulk(self.learn(source.as_ref()).0),
            (b"EXISTS", hashes) => {
                let is_known = |hash: &T| {
                    self.scripts
                        .contains_key(&String::from_utf8_lossy(hash.as_ref()).to_lowercase())
                };
                Reply::Array(
                    hashes
                        .iter()
                        .map(|hash| Reply::Int(i64::from(is_known(hash))))
                        .collect(),
                )
            }
            (b"FLUSH", _) => {
                self.scripts.clear();
                Reply::ok()
            }
            (b"LOAD", _) => Reply::Error(wrong_number("script|load")),
            _ => Reply::Error("ERR unknown subcommand of SCRIPT".to_owned()),
        }
    }
}

/// How many of a script's arguments are keys. The first one states it.
fn number_of_keys(args: &[Vec<u8>]) -> Result<usize, Refused> {
    let count = integer(args.first().map_or(&b""[..], Vec::as_slice))?;
    let count = usize::try_from(count)
        .map_err(|_| Refused("ERR Number of keys can't be negative".to_owned()))?;
    let is_there = count < args.len();
    is_there.then_some(count).ok_or_else(|| {
        Refused("ERR Number of keys can't be greater than number of args".to_owned())
    })
}
