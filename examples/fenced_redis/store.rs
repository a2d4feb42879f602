//! The resource: a number on a Redis server, with the largest fencing token beside it.
//!
//! Two rules make it safe, whatever happens to locks and clocks. A token smaller than the largest one is rejected, in the same
//! script as the write. And a holder registers its token *before its first read*: from then on a slower holder cannot
//! change what this one has read.
//!
//! The token is as safe as the data beside it: a server that loses the one in a crash loses the other.

use std::{error, fmt};

use quorlock::FencingToken;
use quorlock::fence::{REDIS, Stale};
use redis::{Connection, RedisError, Script, Value};

/// The number of tickets in a new store.
pub(crate) const AT_FIRST: i64 = 10;

/// In a cluster both are on one server: the name in braces decides.
const TOKEN: &str = "{tickets}:fence";
const LEFT: &str = "{tickets}:left";

/// How many tickets are left, and the largest token seen, on a server that is none of those of the lock.
pub(crate) struct Tickets {
    server: Connection,
}

/// What a holder that has registered its token may do. There is no other way to read and then write.
pub(crate) struct Entered<'a> {
    store: &'a mut Tickets,
    token: FencingToken,
    /// As it was read after the token was registered.
    pub(crate) left: i64,
}

impl Tickets {
    /// Connects to the server, and fills the store if it is new.
    pub(crate) fn open(url: &str) -> Result<Tickets, StoreError> {
        let mut server = redis::Client::open(url)?.get_connection()?;
        let _: i64 = redis::cmd("SETNX")
            .arg(LEFT)
            .arg(AT_FIRST)
            .query(&mut server)?;
        Ok(Tickets { server })
    }

    /// Registers the token of a new holder and reads, in one script.
    pub(crate) fn enter(&mut self, token: FencingToken) -> Result<Entered<'_>, StoreError> {
        let left = self.run(token, &["GET", LEFT])?;
        Ok(Entered {
            left: redis::from_redis_value(left).map_err(RedisError::from)?,
            store: self,
            token,
        })
    }

    /// For a program that only looks.
    pub(crate) fn left(&mut self) -> Result<i64, StoreError> {
        Ok(redis::cmd("GET").arg(LEFT).query(&mut self.server)?)
    }

    /// Runs a command on [`LEFT`], unless a larger token was registered.
    fn run(&mut self, ours: FencingToken, command: &[&str]) -> Result<Value, StoreError> {
        let script = Script::new(REDIS);
        let mut script = script.key(TOKEN);
        script.key(LEFT).arg(ours.get()).arg(command);
        let (accepted, reply): (bool, Value) = script.invoke(&mut self.server)?;
        if accepted {
            return Ok(reply);
        }
        let seen = redis::from_redis_value(reply).ok();
        Err(StoreError::Stale(Stale { ours, seen }))
    }
}

impl Entered<'_> {
    /// Writes one ticket less than was read.
    pub(crate) fn sell(self) -> Result<(), StoreError> {
        let left = (self.left - 1).to_string();
        self.store.run(self.token, &["SET", LEFT, &left])?;
        Ok(())
    }
}

/// Why the store did not do it.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// A holder with a larger token was here.
    Stale(Stale),
    /// The server failed.
    Server(RedisError),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Stale(stale) => stale.fmt(f),
            StoreError::Server(err) => err.fmt(f),
        }
    }
}

impl error::Error for StoreError {}

impl From<RedisError> for StoreError {
    fn from(err: RedisError) -> StoreError {
        StoreError::Server(err)
    }
}
