//! What is the same for all SQL databases: the table of `fence`, and a row of one's own.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use quorlock::FencingToken;
use quorlock::fence::{Sql, Stale};

use crate::cases::{Session, Store, assert_stale, next_token};

/// The same tests for an SQL database: `$database` is an expression for it, or `None` if it cannot
/// be had. `$slept` are transactions for [`slept_before_registration`].
macro_rules! sql_cases {
    ($database:expr, $slept:expr) => {
        mod table {
            use super::*;
            crate::cases::cases!($database.map(|it| it.fenced(false)));

            #[test]
            fn f9_a_reader_behind_a_later_writer_finds_its_token() {
                let Some(database) = $database else { return };
                crate::sql::readers(&database.fenced(false));
            }

            #[test]
            fn f9_names_of_the_fence_do_not_share_a_row() {
                let Some(database) = $database else { return };
                crate::sql::names(&database.fenced(false));
            }

            #[test]
            fn f9_a_holder_that_slept_before_its_registration_is_rejected() {
                let Some(database) = $database else { return };
                crate::sql::slept_before_registration(&database.fenced(false), &$slept);
            }
        }

        mod own_row {
            use super::*;
            crate::cases::cases!($database.map(|it| it.fenced(true)));
        }
    };
}
pub(crate) use sql_cases;

/// The data: a number per name, with a column for the way without the table.
pub(crate) const DATA: &str = "CREATE TABLE tickets (name varchar(40) PRIMARY KEY, remaining bigint NOT NULL, token bigint NOT NULL)";

/// A parameter of a statement.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Int(i64),
}

/// As a literal.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(f, "'{text}'"),
            Value::Int(number) => number.fmt(f),
        }
    }
}

/// The code of an error, such as `40001`.
pub(crate) type Code = String;

/// A connection.
pub(crate) trait Db: Send {
    /// Runs a statement, and returns the first column of its only row.
    fn run(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<Option<i64>, Code>;
}

/// Where statements differ.
#[derive(Clone, Copy)]
pub(crate) struct Dialect {
    pub(crate) fence: Sql,
    pub(crate) begin: &'static str,
    /// Whether `register` returns the token.
    pub(crate) returns: bool,
    /// With these codes a transaction is begun anew.
    pub(crate) again: &'static [&'static str],
    /// Of the own row. Parameters: token, name.
    pub(crate) own_register: &'static str,
    /// Parameters: number, token, name, token.
    pub(crate) own_write: &'static str,
}

/// A row of `tickets` in a database, fenced by the table or by its own column.
pub(crate) struct Fenced<C> {
    pub(crate) dialect: Dialect,
    pub(crate) name: String,
    pub(crate) own_row: bool,
    pub(crate) connect: C,
}

impl<D: Db + 'static, C: Fn() -> D + Sync> Fenced<C> {
    pub(crate) fn new(dialect: Dialect, own_row: bool, connect: C) -> Self {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!("tickets-{}", NAMES.fetch_add(1, Ordering::Relaxed));
        let row = format!("INSERT INTO tickets (name, remaining, token) VALUES ('{name}', 10, 0)");
        connect().run(&row, &[]).unwrap();
        Fenced {
            dialect,
            name,
            own_row,
            connect,
        }
    }

    pub(crate) fn holder(&self) -> Holder<'_, D> {
        Holder {
            db: (self.connect)(),
            dialect: self.dialect,
            name: &self.name,
            own_row: self.own_row,
        }
    }
}

impl<D: Db + 'static, C: Fn() -> D + Sync> Store for Fenced<C> {
    fn connect(&self) -> Box<dyn Session + '_> {
        Box::new(self.holder())
    }
}

pub(crate) struct Holder<'a, D> {
    pub(crate) db: D,
    dialect: Dialect,
    name: &'a str,
    own_row: bool,
}

/// Why a transaction did not end.
#[derive(Debug)]
pub(crate) enum Failed {
    Stale(Stale),
    Db(Code),
}

impl From<Code> for Failed {
    fn from(code: Code) -> Failed {
        Failed::Db(code)
    }
}

impl<D: Db> Holder<'_, D> {
    /// What the page says: in the transaction, before the first read.
    pub(crate) fn enter(&mut self, token: FencingToken) -> Result<(), Failed> {
        let (name, ours) = (Value::Text(self.name), token.as_i64());
        let fence = self.dialect.fence;
        let accepted = self.db.run(fence.register, &[name, Value::Int(ours)])?;
        if self.dialect.returns && accepted == Some(ours) {
            return Ok(());
        }
        let largest = self.db.run(fence.largest, &[name])?;
        assert!(!self.dialect.returns || largest != Some(ours));
        self.must_be(token, largest)
    }

    fn must_be(&self, ours: FencingToken, largest: Option<i64>) -> Result<(), Failed> {
        if largest == Some(ours.as_i64()) {
            return Ok(());
        }
        let seen = largest.and_then(|it| it.try_into().ok());
        Err(Failed::Stale(Stale { ours, seen }))
    }

    /// Statements of a transaction; a failed one is rolled back.
    fn transaction(
        &mut self,
        mut what: impl FnMut(&mut Self) -> Result<(), Failed>,
    ) -> Result<(), Stale> {
        loop {
            let begun = self.db.run(self.dialect.begin, &[]).map(drop);
            let done = begun.map_err(Failed::Db).and_then(|()| what(self));
            let result = done.and_then(|()| Ok(self.db.run("COMMIT", &[]).map(drop)?));
            if result.is_err() {
                let _ = self.db.run("ROLLBACK", &[]);
            }
            match result {
                Ok(()) => return Ok(()),
                Err(Failed::Stale(stale)) => return Err(stale),
                Err(Failed::Db(code)) if self.dialect.again.contains(&&*code) => {}
                Err(Failed::Db(code)) => panic!("{code}"),
            }
        }
    }

    pub(crate) fn set(&mut self, number: i64) -> Result<(), Code> {
        let set = format!(
            "UPDATE tickets SET remaining = {number} WHERE name = '{}'",
            self.name
        );
        self.db.run(&set, &[]).map(drop)
    }

    /// The own row's token after the statement, which must be ours.
    fn own(&mut self, token: FencingToken, sql: &str, with: &[Value<'_>]) -> Result<(), Failed> {
        self.db.run(sql, with)?;
        let largest = format!("SELECT token FROM tickets WHERE name = '{}'", self.name);
        let largest = self.db.run(&largest, &[])?;
        self.must_be(token, largest)
    }
}

impl<D: Db> Session for Holder<'_, D> {
    fn register(&mut self, token: FencingToken) -> Result<(), Stale> {
        self.transaction(|it| {
            if !it.own_row {
                return it.enter(token);
            }
            let with = [
                Value::Int(token.as_i64()),
                Value::Text(it.name),
                Value::Int(token.as_i64()),
            ];
            it.own(token, it.dialect.own_register, &with)
        })
    }

    fn read(&mut self) -> i64 {
        let sql = format!("SELECT remaining FROM tickets WHERE name = '{}'", self.name);
        self.db.run(&sql, &[]).unwrap().expect("there is a row")
    }

    fn write(&mut self, token: FencingToken, number: i64) -> Result<(), Stale> {
        self.transaction(|it| {
            if !it.own_row {
                it.enter(token)?;
                return Ok(it.set(number)?);
            }
            let (ours, name) = (Value::Int(token.as_i64()), Value::Text(it.name));
            it.own(
                token,
                it.dialect.own_write,
                &[Value::Int(number), ours, name, ours],
            )
        })
    }
}

/// The rule of the page for readers in a transaction: register 0, which locks the row, and compare the largest token.
pub(crate) fn readers<D: Db + 'static, C: Fn() -> D + Sync>(store: &Fenced<C>) {
    let (mut reader, mut writer) = (store.holder(), store.holder());
    // Nobody has written yet: 0 creates the row, and stands behind no token.
    let fence = store.dialect.fence;
    let name = Value::Text(&store.name);
    let largest = |it: &mut Holder<'_, D>| {
        it.db.run(store.dialect.begin, &[]).unwrap();
        it.db.run(fence.register, &[name, Value::Int(0)]).unwrap();
        let largest = it.db.run(fence.largest, &[name]).unwrap();
        it.db.run("COMMIT", &[]).unwrap();
        largest.expect("there is a row")
    };
    assert_eq!(largest(&mut reader), 0);
    let last_writer = next_token();
    writer.register(last_writer).unwrap();
    assert_eq!(largest(&mut reader), last_writer.as_i64());
    // A reader takes no writer's place.
    writer.write(last_writer, 4).unwrap();
    let later = next_token();
    writer.register(later).unwrap();
    assert!(
        last_writer.as_i64() < largest(&mut reader),
        "the reader is stale"
    );
}

/// Names that a database may take for one.
pub(crate) fn names<D: Db + 'static, C: Fn() -> D + Sync>(store: &Fenced<C>) {
    let (mut db, fence) = ((store.connect)(), store.dialect.fence);
    let names = ["Names", "names", "names ", "nämes", "names:ä"];
    for (name, token) in names.iter().zip(1..) {
        let (name, token) = (Value::Text(name), Value::Int(token));
        db.run(fence.register, &[name, token]).unwrap();
    }
    for (name, token) in names.iter().zip(1..) {
        let largest = db.run(fence.largest, &[Value::Text(name)]);
        assert_eq!(largest, Ok(Some(token)), "{name:?}");
    }
}

/// With each of these beginnings of its transaction; and the errors that some databases have
/// instead of a refusal.
pub(crate) fn slept_before_registration<D: Db + 'static, C: Fn() -> D + Sync>(
    store: &Fenced<C>,
    transactions: &[(&str, &[&str])],
) {
    for (begin, errors) in transactions {
        let (mut first, mut second) = (store.holder(), store.holder());
        let (ours, next) = (next_token(), next_token());
        first.register(ours).unwrap();
        first.db.run(begin, &[]).unwrap();
        let read = first.read();
        second.register(next).unwrap();
        second.write(next, read - 1).unwrap();

        match first.enter(ours) {
            Err(Failed::Stale(stale)) => assert_eq!(stale.seen, Some(next.get()), "{begin}"),
            Err(Failed::Db(code)) => assert!(errors.contains(&&*code), "{begin}: {code}"),
            Ok(()) => panic!("{begin}: a stale holder was accepted"),
        }
        first.db.run("ROLLBACK", &[]).unwrap();
        assert_stale(first.write(ours, read - 1), ours, next);
        assert_eq!(second.read(), read - 1);
    }
}
