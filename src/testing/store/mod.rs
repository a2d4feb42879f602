//! What a node does, without a server: the keys that it stores, and a native twin of each of our scripts.
//!
//! Pure: no thread, no socket, no clock. Commands and the time go in, replies and notices come out. The checker of schedules
//! has its servers run it.
//!
//! A twin does what its script does, line by line, and with the numbers of Lua: doubles. That is no proof, so
//! `tests/conformance` runs both and compares every reply and every key. What a script does where an access list forbids one
//! of its commands has no twin.
//!
//! Nothing here names the rest of the crate: `tests/conformance` includes this folder by its path.
#![warn(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing, clippy::unwrap_used)]

mod call;
mod canary;
mod counter;
mod inspect;
mod keyspace;
mod many;
mod mutex;
mod node;
mod number;
mod plain;
mod reply;
mod reservation;
mod search;
mod shared;
mod slots;
mod twins;

use std::collections::BTreeSet;
use std::time::Duration;

use sha1_smol::Sha1;

pub(crate) use call::Notice;
use call::{Args, Refused, Run};
use keyspace::Keyspace;
pub(crate) use keyspace::{Stored, Value};
pub(crate) use reply::Reply;
pub(crate) use twins::{TWINS, Twin};

/// What one server keeps.
#[derive(Default)]
pub(crate) struct Store {
    keys: Keyspace,
    /// The id of the process, as `INFO` shows it.
    run_id: String,
    /// Hashes of the scripts that it was given.
    scripts: BTreeSet<&'static str>,
}

/// What a command has led to.
pub(crate) struct Done {
    pub(crate) reply: Reply,
    /// What was published, in order.
    pub(crate) notices: Vec<Notice>,
    /// The script that was run.
    pub(crate) ran: Option<&'static Twin>,
}

impl Store {
    /// An empty one. `run_id`: letters and digits.
    pub(crate) fn new(run_id: &str) -> Store {
        Store { run_id: run_id.to_owned(), ..Store::default() }
    }

    /// The server is given all scripts.
    pub(crate) fn learn_scripts(&mut self) {
        self.scripts.extend(TWINS.iter().map(|it| it.hash));
    }

    /// What is stored at `now`, in the order of the keys.
    pub(crate) fn contents(&mut self, now: Duration) -> impl Iterator<Item = (&[u8], Stored<'_>)> {
        self.keys.go_to(number::micros(now));
        self.keys.iter()
    }

    /// Runs a command. `now`: what the server's clock shows, since 1970. `listeners`: on how many connections a channel is
    /// open.
    pub(crate) fn execute(&mut self, command: &[Vec<u8>], now: Duration, listeners: &dyn Fn(&[u8]) -> usize) -> Done {
        let now = number::micros(now);
        self.keys.go_to(now);
        let (name, args) = command.split_first().map_or((&[][..], command), |(name, args)| (&name[..], args));
        let name = name.to_ascii_uppercase();
        let script = match (&name[..], args) {
            (b"EVALSHA", [hash, ..]) => self.known(hash),
            (b"EVAL", [source, ..]) => self.learn(source),
            (b"PUBLISH", [channel, message]) => {
                let heard = Reply::number(number::of_len(listeners(channel)));
                let notice = Notice { channel: channel.clone(), message: message.clone() };
                return Done { notices: vec![notice], ..Done::plain(Ok(heard)) };
            }
            (b"SCRIPT", _) => return Done::plain(self.script(Args::new(args))),
            _ => return Done::plain(plain::execute(&mut self.keys, &self.run_id, now, &name, Args::new(args))),
        };
        let twin = match script {
            Ok(twin) => twin,
            Err(refused) => return Done::plain(Err(refused)),
        };
        let mut run = Run { keys: &mut self.keys, now, run_id: &self.run_id, listeners, notices: Vec::new() };
        let reply = twin.run(&mut run, Args::new(args));
        let notices = run.notices;
        Done { notices, ran: Some(twin), ..Done::plain(reply) }
    }

    fn known(&self, hash: &[u8]) -> Result<&'static Twin, Refused> {
        let twin = TWINS.iter().find(|it| it.hash.as_bytes() == hash && self.scripts.contains(it.hash));
        twin.ok_or_else(|| Refused("NOSCRIPT No matching script. Please use EVAL.".to_owned()))
    }

    fn learn(&mut self, source: &[u8]) -> Result<&'static Twin, Refused> {
        let hash = Sha1::from(source).digest().to_string();
        let twin = TWINS.iter().find(|it| it.hash == hash).ok_or_else(|| {
            Refused(
                "ERR this is a stand-in for a server: it runs the scripts of this version of quorlock only".to_owned(),
            )
        })?;
        self.scripts.insert(twin.hash);
        Ok(twin)
    }

    fn script(&mut self, args: Args<'_>) -> Result<Reply, Refused> {
        match &args.at(1).to_ascii_uppercase()[..] {
            b"EXISTS" => {
                let is_known = |hash: &[u8]| self.scripts.iter().any(|it| it.as_bytes() == hash);
                Ok(Reply::Array(args.rest(1).iter().map(|it| Reply::Int(i64::from(is_known(it)))).collect()))
            }
            b"LOAD" => Ok(Reply::bulk(self.learn(args.at(2))?.hash)),
            b"FLUSH" => {
                self.scripts.clear();
                Ok(Reply::OK)
            }
            _ => Err(plain::unknown(b"SCRIPT")),
        }
    }
}

impl Done {
    fn plain(reply: Result<Reply, Refused>) -> Done {
        let reply = reply.unwrap_or_else(|Refused(text)| Reply::Error(text));
        Done { reply, notices: Vec::new(), ran: None }
    }
}
