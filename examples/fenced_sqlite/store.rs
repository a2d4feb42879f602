//! The store of the example `fenced_redis` once more, in a SQLite database: each holder registers its fencing token first, in
//! the transaction of what follows.

use std::path::Path;
use std::time::Duration;
use std::{error, fmt};

use quorlock::FencingToken;
use quorlock::fence::{SQLITE, Stale};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

/// The row in the table of tokens: the lock's name, or any other.
const NAME: &str = "tickets";

/// The number of tickets in a new database.
pub const AT_FIRST: i64 = 10;

/// A database with one row: how many tickets are left. Beside it the table of [`SQLITE`].
pub struct Tickets {
    db: Connection,
}

/// What a holder that has registered its token may do. There is no other way to read and then write.
pub struct Entered<'a> {
    store: &'a mut Tickets,
    token: FencingToken,
    /// As it was read after the token was registered.
    pub left: i64,
}

impl Tickets {
    /// Opens the database in `file`, and fills it if it is new.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub fn open(file: &Path) -> Result<Tickets, StoreError> {
        let db = Connection::open(file)?;
        // Another program writes: wait for it.
        db.busy_timeout(Duration::from_secs(10))?;
        db.execute_batch(SQLITE.create)?;
        db.execute_batch(
            "CREATE TABLE IF NOT EXISTS tickets (
                 id    INTEGER PRIMARY KEY CHECK (id = 1),
                 left  INTEGER NOT NULL
             ) STRICT",
        )?;
        db.execute(
            "INSERT OR IGNORE INTO tickets (id, left) VALUES (1, ?1)",
            [AT_FIRST],
        )?;
        Ok(Tickets { db })
    }

    /// Registers the token of a new holder and reads, in one transaction.
    ///
    /// # Errors
    ///
    /// A larger token was registered, or the database failed.
    pub fn enter(&mut self, token: FencingToken) -> Result<Entered<'_>, StoreError> {
        let transaction = self.begin(token)?;
        let left = transaction.query_row("SELECT left FROM tickets", [], |row| row.get(0))?;
        transaction.commit()?;
        Ok(Entered {
            store: self,
            token,
            left,
        })
    }

    /// For a program that only looks.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub fn left(&self) -> Result<i64, StoreError> {
        Ok(self
            .db
            .query_row("SELECT left FROM tickets", [], |row| row.get(0))?)
    }

    /// A transaction for a holder, until whose end no other one begins. Rolled back if the holder is stale.
    fn begin(&mut self, ours: FencingToken) -> Result<Transaction<'_>, StoreError> {
        // Not `Deferred`: it would look at the tokens before it waits.
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.db.transaction_with_behavior(behavior)?;
        let accepted = transaction
            .prepare_cached(SQLITE.register)?
            .query_row(params![NAME, ours.as_i64()], |row| row.get::<_, i64>(0))
            .optional()?;
        if accepted.is_some() {
            return Ok(transaction);
        }
        let seen = transaction.query_row(SQLITE.largest, [NAME], |row| row.get(0))?;
        let seen = Some(seen);
        Err(StoreError::Stale(Stale { ours, seen }))
    }
}

impl Entered<'_> {
    /// Writes one ticket less than was read.
    ///
    /// # Errors
    ///
    /// A larger token was registered since, or the database failed.
    pub fn sell(self) -> Result<(), StoreError> {
        let transaction = self.store.begin(self.token)?;
        let left = self.left.saturating_sub(1);
        transaction.execute("UPDATE tickets SET left = ?1", [left])?;
        Ok(transaction.commit()?)
    }
}

/// Why the database did not do it.
#[derive(Debug)]
pub enum StoreError {
    /// A holder with a larger token was here.
    Stale(Stale),
    /// The database failed.
    Db(rusqlite::Error),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Stale(stale) => stale.fmt(f),
            StoreError::Db(err) => err.fmt(f),
        }
    }
}

impl error::Error for StoreError {}

impl From<rusqlite::Error> for StoreError {
    fn from(err: rusqlite::Error) -> StoreError {
        StoreError::Db(err)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    use std::{env, fs, process, thread};

    use super::*;

    /// A database file that goes with the test.
    struct TempDb(std::path::PathBuf);

    impl TempDb {
        fn new(test: &str) -> TempDb {
            TempDb(env::temp_dir().join(format!("quorlock-store-{test}-{}.db", process::id())))
        }
    }

    impl Drop for TempDb {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::from(number)
    }

    #[test]
    fn f6_a_smaller_token_is_refused_once_a_larger_one_is_registered() {
        let file = TempDb::new("smaller");
        let (mut first, mut second) = (
            Tickets::open(&file.0).unwrap(),
            Tickets::open(&file.0).unwrap(),
        );
        let slow = first.enter(token(33)).unwrap();
        let quick = second.enter(token(34)).unwrap();
        assert_eq!((slow.left, quick.left), (AT_FIRST, AT_FIRST));

        let (ours, seen) = (token(33), Some(34));
        let stale = Stale { ours, seen };
        // Nothing has been written with 34, and still nothing with 33 may be written.
        assert!(matches!(slow.sell(), Err(StoreError::Stale(it)) if it == stale));
        assert_eq!(quick.store.left().unwrap(), AT_FIRST);
        quick.sell().unwrap();
        assert!(matches!(first.enter(token(33)), Err(StoreError::Stale(it)) if it == stale));
        // The same holder may come again, and the next one.
        first.enter(token(34)).unwrap().sell().unwrap();
        first.enter(token(35)).unwrap().sell().unwrap();
        assert_eq!(first.left().unwrap(), AT_FIRST - 3);
    }

    #[test]
    fn f6_no_accepted_write_is_lost_however_holders_overlap() {
        let file = TempDb::new("overlap");
        Tickets::open(&file.0).unwrap();
        let (tokens, sold, refused) = (AtomicU64::new(1), AtomicI64::new(0), AtomicI64::new(0));

        // No lock protects anything here: the worst that can happen to locks.
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut store = Tickets::open(&file.0).unwrap();
                    for _ in 0..50 {
                        let result = store.enter(token(tokens.fetch_add(1, Ordering::SeqCst)));
                        match result.and_then(Entered::sell) {
                            Ok(()) => sold.fetch_add(1, Ordering::SeqCst),
                            Err(StoreError::Stale(_)) => refused.fetch_add(1, Ordering::SeqCst),
                            Err(StoreError::Db(err)) => panic!("{err}"),
                        };
                    }
                });
            }
        });

        let (sold, refused) = (sold.into_inner(), refused.into_inner());
        assert_eq!(
            Tickets::open(&file.0).unwrap().left().unwrap(),
            AT_FIRST - sold
        );
        assert_eq!(sold + refused, 200);
        assert!(0 < sold);
    }
}
