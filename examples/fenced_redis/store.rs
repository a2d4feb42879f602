//! The resource: a hash on a Redis server that remembers the largest fencing token it has seen.
//!
//! Two rules make it safe, whatever happens to locks and clocks. A token smaller than the one in the hash is refused, in
//! the same script as the write. And a holder registers its token *before its first read*: from then on a slower holder
//! cannot change what this one has read.
//!
//! The token is as safe as the data beside it: a server that loses the one in a crash loses the other.

use std::{error, fmt};

use quorlock::FencingToken;
use redis::{Connection, RedisError, Script};

/// The number of tickets in a new store.
pub(crate) const AT_FIRST: i64 = 10;

const KEY: &str = "tickets";

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
        let _: i64 = redis::cmd("HSETNX")
            .arg(KEY)
            .arg("left")
            .arg(AT_FIRST)
            .query(&mut server)?;
        Ok(Tickets { server })
    }

    /// Registers the token of a new holder and reads, in one script.
    pub(crate) fn enter(&mut self, token: FencingToken) -> Result<Entered<'_>, StoreError> {
        let enter = Script::new(include_str!("enter.lua"));
        let left = self.run(enter.key(KEY).arg(token.get()), token)?;
        Ok(Entered {
            store: self,
            token,
            left,
        })
    }

    /// For a program that only looks.
    pub(crate) fn left(&mut self) -> Result<i64, StoreError> {
        Ok(redis::cmd("HGET")
            .arg(KEY)
            .arg("left")
            .query(&mut self.server)?)
    }

    fn run(
        &mut self,
        script: &redis::ScriptInvocation<'_>,
        token: FencingToken,
    ) -> Result<i64, StoreError> {
        let (done, number): (bool, i64) = script.invoke(&mut self.server)?;
        if done {
            Ok(number)
        } else {
            Err(StoreError::Refused {
                token,
                seen: number,
            })
        }
    }
}

impl Entered<'_> {
    /// Writes one ticket less than was read.
    pub(crate) fn sell(self) -> Result<(), StoreError> {
        let write = Script::new(include_str!("write.lua"));
        self.store.run(
            write.key(KEY).arg(self.token.get()).arg(self.left - 1),
            self.token,
        )?;
        Ok(())
    }
}

/// Why the store did not do it.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// A holder with a larger token was here.
    Refused {
        /// What was offered.
        token: FencingToken,
        /// What has been seen.
        seen: i64,
    },
    /// The server failed.
    Server(RedisError),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Refused { token, seen } => {
                write!(
                    f,
                    "refused: token {token} is smaller than {seen}, seen here"
                )
            }
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
