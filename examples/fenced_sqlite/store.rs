//! The store of the example `fenced_redis` once more, as a row of a SQLite database: two statements, which the guide shows.
//! The row remembers the largest fencing token it has seen.

use std::path::Path;
use std::time::Duration;
use std::{error, fmt};

use quorlock::FencingToken;
use rusqlite::{Connection, OptionalExtension};

/// A new holder registers its token and reads. No row: a larger token was here.
const ENTER: &str = "UPDATE tickets SET token = ?1 WHERE token <= ?1 RETURNING left";
/// Check, write and record are one statement, and so one transaction.
const WRITE: &str = "UPDATE tickets SET left = ?2, token = ?1 WHERE token <= ?1";

/// The number of tickets in a new database.
pub const AT_FIRST: i64 = 10;

/// A database with one row: how many tickets are left, and the largest token seen.
pub struct Tickets {
    db: Connection,
}

/// What a holder that has registered its token may do. There is no other way to read and then write.
pub struct Entered<'a> {
    store: &'a Tickets,
    token: i64,
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
        db.execute_batch(
            "CREATE TABLE IF NOT EXISTS tickets (
                 id    INTEGER PRIMARY KEY CHECK (id = 1),
                 left  INTEGER NOT NULL,
                 token INTEGER NOT NULL
             ) STRICT",
        )?;
        db.execute(
            "INSERT OR IGNORE INTO tickets (id, left, token) VALUES (1, ?1, 0)",
            [AT_FIRST],
        )?;
        Ok(Tickets { db })
    }

    /// Registers the token of a new holder and reads, in one statement.
    ///
    /// # Errors
    ///
    /// A larger token was registered, or the database failed.
    pub fn enter(&self, token: FencingToken) -> Result<Entered<'_>, StoreError> {
        // Tokens are below 2^53: they fit.
        let token = i64::try_from(token.get()).unwrap_or(i64::MAX);
        match self
            .db
            .query_row(ENTER, [token], |row| row.get(0))
            .optional()?
        {
            Some(left) => Ok(Entered {
                store: self,
                token,
                left,
            }),
            None => Err(self.refused(token)),
        }
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

    fn refused(&self, token: i64) -> StoreError {
        let seen = self
            .db
            .query_row("SELECT token FROM tickets", [], |row| row.get(0));
        seen.map_or_else(StoreError::from, |seen| StoreError::Refused { token, seen })
    }
}

impl Entered<'_> {
    /// Writes one ticket less than was read.
    ///
    /// # Errors
    ///
    /// A larger token was registered meanwhile, or the database failed.
    pub fn sell(self) -> Result<(), StoreError> {
        match self
            .store
            .db
            .execute(WRITE, [self.token, self.left.saturating_sub(1)])?
        {
            0 => Err(self.store.refused(self.token)),
            _ => Ok(()),
        }
    }
}

/// Why the database did not do it.
#[derive(Debug)]
pub enum StoreError {
    /// A holder with a larger token was here.
    Refused {
        /// What was offered.
        token: i64,
        /// What has been seen.
        seen: i64,
    },
    /// The database failed.
    Db(rusqlite::Error),
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
    fn the_guide_shows_what_is_tested_here() {
        let page = include_str!("../../src/guide/safety.md");
        assert!(page.contains(ENTER) && page.contains(WRITE));
    }

    #[test]
    fn f6_a_smaller_token_is_refused_once_a_larger_one_is_registered() {
        let file = TempDb::new("smaller");
        let (first, second) = (
            Tickets::open(&file.0).unwrap(),
            Tickets::open(&file.0).unwrap(),
        );
        let slow = first.enter(token(33)).unwrap();
        let quick = second.enter(token(34)).unwrap();
        assert_eq!((slow.left, quick.left), (AT_FIRST, AT_FIRST));

        // Nothing has been written with 34, and still nothing with 33 may be written.
        assert!(matches!(
            slow.sell(),
            Err(StoreError::Refused {
                token: 33,
                seen: 34
            })
        ));
        assert_eq!(first.left().unwrap(), AT_FIRST);
        quick.sell().unwrap();
        assert!(matches!(
            first.enter(token(33)),
            Err(StoreError::Refused {
                token: 33,
                seen: 34
            })
        ));
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
                    let store = Tickets::open(&file.0).unwrap();
                    for _ in 0..50 {
                        let result = store.enter(token(tokens.fetch_add(1, Ordering::SeqCst)));
                        match result.and_then(Entered::sell) {
                            Ok(()) => sold.fetch_add(1, Ordering::SeqCst),
                            Err(StoreError::Refused { .. }) => {
                                refused.fetch_add(1, Ordering::SeqCst)
                            }
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
