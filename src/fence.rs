//! Statements for storage that rejects stale holders. [`guide::fencing`](crate::guide::fencing)
//! shows how to use them.
//!
//! Texts only: nothing here connects to a storage. Check and write must be one transaction, which
//! only your code can make.
//!
//! ```
//! use quorlock::{FencingToken, fence::{self, Stale}};
//!
//! /// One transaction of a SQL database.
//! trait Transaction {
//!     fn execute(&mut self, sql: &str, name: &str, token: i64);
//!     fn query(&mut self, sql: &str, name: &str) -> Option<i64>;
//! }
//!
//! /// First in each transaction of a holder. After an error, roll back.
//! fn enter(tx: &mut impl Transaction, ours: FencingToken) -> Result<(), Stale> {
//!     tx.execute(fence::MYSQL.register, "tickets", ours.as_i64());
//!     let largest = tx.query(fence::MYSQL.largest, "tickets");
//!     if largest == Some(ours.as_i64()) {
//!         return Ok(());
//!     }
//!     Err(Stale { ours, seen: largest.and_then(|it| it.try_into().ok()) })
//! }
//! ```

use crate::ids::FencingToken;

/// The statements of one SQL dialect, with its placeholders.
///
/// The table `quorlock_fence` has a row per name: the largest registered token. Take the name of
/// the lock, or any other name of the protected data, of 255 bytes at most.
///
/// In each transaction of a holder, before its first read: run [`register`](Self::register), then
/// [`largest`](Self::largest). If that token is not exactly the holder's, or there is no row, roll
/// back.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sql {
    /// Creates the table. Without parameters; for your migrations.
    pub create: &'static str,
    /// Parameters: name, [token](FencingToken::as_i64). Registers the token unless a larger one is
    /// registered. Locks the row until the end of the transaction.
    ///
    /// [`POSTGRES`] and [`SQLITE`] return the token, or no row if a larger one is registered. That
    /// answer is enough there.
    pub register: &'static str,
    /// Parameter: name. Returns the largest registered token, and locks the row like `register`.
    pub largest: &'static str,
}

/// For PostgreSQL 9.5 and later.
pub const POSTGRES: Sql = Sql {
    create: "CREATE TABLE IF NOT EXISTS quorlock_fence (name text PRIMARY KEY, token bigint NOT \
        NULL)",
    register: "INSERT INTO quorlock_fence AS it (name, token) VALUES ($1, $2) \
               ON CONFLICT (name) DO UPDATE SET token = excluded.token \
               WHERE it.token <= excluded.token RETURNING token",
    largest: "SELECT token FROM quorlock_fence WHERE name = $1 FOR UPDATE",
};

/// For MySQL and MariaDB.
///
/// Do not count affected rows in place of [`Sql::largest`]: a stale holder and the same holder's
/// second registration both change none.
pub const MYSQL: Sql = Sql {
    create: "CREATE TABLE IF NOT EXISTS quorlock_fence \
             (name varbinary(255) PRIMARY KEY, token bigint NOT NULL) ENGINE = InnoDB",
    register: "INSERT INTO quorlock_fence (name, token) VALUES (?, ?) \
               ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))",
    largest: "SELECT token FROM quorlock_fence WHERE name = ? FOR UPDATE",
};

/// For SQLite 3.37 and later. Begin with `BEGIN IMMEDIATE`.
pub const SQLITE: Sql = Sql {
    create: "CREATE TABLE IF NOT EXISTS quorlock_fence (name text PRIMARY KEY, token integer NOT \
        NULL) STRICT",
    register: "INSERT INTO quorlock_fence AS it (name, token) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET token = excluded.token \
               WHERE it.token <= excluded.token RETURNING token",
    largest: "SELECT token FROM quorlock_fence WHERE name = ?1",
};

/// A script for Redis and Valkey, for `EVAL`: registers a token and runs one command, unless a
/// larger token is registered.
///
/// | parameter | meaning |
/// | --- | --- |
/// | `KEYS[1]` | key of the largest token. In a cluster with the hash tag of the data |
/// | `KEYS[2]` and on | keys of the command |
/// | `ARGV[1]` | token |
/// | `ARGV[2]` and on | command and arguments, as `GET`, `{tickets}:left`. None: registers only |
///
/// Returns two values: 1 and the reply of the command, or 0 and the larger registered token. Then
/// nothing is changed.
pub const REDIS: &str = include_str!("fence/run.lua");

/// Storage rejected a fencing token, because a later holder has registered a larger one. For the
/// errors of your own code.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the storage rejected fencing token {ours}: a later holder registered {}; drop this work and \
     take the lock again",
    .seen.map_or("a larger one".to_owned(), |it| it.to_string())
)]
pub struct Stale {
    /// The token of the rejected holder.
    pub ours: FencingToken,
    /// The largest registered token, if the storage reported it.
    pub seen: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_error_has_both_tokens_and_the_remedy() {
        let (ours, seen) = (FencingToken(33), Some(34));
        assert_eq!(
            Stale { ours, seen }.to_string(),
            "the storage rejected fencing token 33: a later holder registered 34; drop this work \
             and take the lock again"
        );
        let unknown = Stale { ours, seen: None }.to_string();
        assert!(unknown.contains("registered a larger one;"), "{unknown}");
    }
}
