//! SQLite, compiled into this program.

use std::time::Duration;

use devnodes::PATIENCE;
use quorlock::fence::SQLITE;
use rusqlite::types::{ToSqlOutput, Value as Owned};
use rusqlite::{Connection, ToSql, params_from_iter};
use tempfile::TempDir;

use crate::cases::{Session, assert_stale, next_token};
use crate::sql::{Code, DATA, Db, Dialect, Fenced, Value, sql_cases};

pub(crate) const DIALECT: Dialect = Dialect {
    fence: SQLITE,
    begin: "BEGIN IMMEDIATE",
    returns: true,
    again: &[],
    own_register: "UPDATE tickets SET token = ? WHERE name = ? AND token <= ?",
    own_write: "UPDATE tickets SET remaining = ?, token = ? WHERE name = ? AND token <= ?",
};

/// A database in a folder that goes with it.
struct Sqlite(TempDir);

impl Sqlite {
    fn new() -> Sqlite {
        let sqlite = Sqlite(tempfile::tempdir().unwrap());
        let db = sqlite.connect();
        // In this mode readers see an old state beside a writer. In the other one they would lock it out.
        let mode: String = db
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .unwrap();
        assert_eq!(mode, "wal");
        db.execute_batch(DATA).unwrap();
        for _ in 0..2 {
            db.execute_batch(SQLITE.create).unwrap();
        }
        sqlite
    }

    fn connect(&self) -> Connection {
        let db = Connection::open(self.0.path().join("data.db")).unwrap();
        // Another holder writes: wait for it.
        db.busy_timeout(PATIENCE).unwrap();
        // Nobody pulls the plug here.
        db.pragma_update(None, "synchronous", "off").unwrap();
        db
    }

    fn fenced(self, own_row: bool) -> Fenced<impl Fn() -> Connection + Sync> {
        Fenced::new(DIALECT, own_row, move || self.connect())
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Value::Text(text) => text.to_sql(),
            Value::Int(number) => Ok(ToSqlOutput::Owned(Owned::Integer(*number))),
        }
    }
}

impl Db for Connection {
    fn run(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<Option<i64>, Code> {
        let mut statement = self.prepare_cached(sql).unwrap();
        let code = |err: rusqlite::Error| match err {
            rusqlite::Error::SqliteFailure(code, _) => code.extended_code.to_string(),
            other => panic!("{other}"),
        };
        let parameters = params_from_iter(parameters);
        if statement.column_count() == 0 {
            return statement.execute(parameters).map(|_| None).map_err(code);
        }
        // To the end: only then has an INSERT … RETURNING done its work.
        let rows = statement.query_map(parameters, |row| row.get(0));
        let rows = rows.and_then(|rows| rows.collect::<rusqlite::Result<Vec<i64>>>());
        rows.map(|rows| rows.first().copied()).map_err(code)
    }
}

// The trap: BEGIN, without IMMEDIATE, reads an old state; then the registration fails as busy
// (SQLITE_BUSY_SNAPSHOT), however long it waits.
sql_cases!(Some(Sqlite::new()), [("BEGIN", &["517"][..])]);

#[test]
fn f9_a_sleeping_holder_in_a_sqlite_transaction_excludes_others() {
    let store = Sqlite::new().fenced(false);
    let (mut first, mut second) = (store.holder(), store.holder());
    let (ours, next) = (next_token(), next_token());
    second.db.busy_timeout(Duration::ZERO).unwrap();

    first.db.run("BEGIN IMMEDIATE", &[]).unwrap();
    first.enter(ours).unwrap();
    let busy = rusqlite::ffi::SQLITE_BUSY.to_string();
    assert_eq!(second.db.run("BEGIN IMMEDIATE", &[]), Err(busy));
    first.set(9).unwrap();
    first.db.run("COMMIT", &[]).unwrap();

    second.register(next).unwrap();
    assert_eq!(second.read(), 9);
    assert_stale(first.write(ours, 7), ours, next);
}
