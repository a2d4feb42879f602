//! PostgreSQL, with psql as its client.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use devnodes::eventually;
use quorlock::fence::POSTGRES;

use crate::cases::{Session, assert_stale, cases, next_token};
use crate::child::{self, Client, Server};
use crate::machine::{Programs, below, or_skip};
use crate::sql::{Code, DATA, Db, Dialect, Failed, Fenced, Holder, Value};

const DIALECT: Dialect = Dialect {
    fence: POSTGRES,
    begin: "BEGIN",
    returns: true,
    again: &[],
    own_register: "UPDATE tickets SET token = $1 WHERE name = $2 AND token <= $3",
    own_write: "UPDATE tickets SET remaining = $1, token = $2 WHERE name = $3 AND token <= $4",
};

/// As an answer to two transactions that both read first.
const SERIALIZATION_FAILURE: &str = "40001";

/// The client has ended, because its connection has.
const GONE: &str = "gone";

struct Postgres {
    programs: Programs,
    server: Server,
}

/// One server for all tests of this process.
fn server() -> Option<&'static Postgres> {
    static SERVER: OnceLock<Option<Postgres>> = OnceLock::new();
    let start = || or_skip("PostgreSQL", Postgres::start());
    SERVER.get_or_init(start).as_ref()
}

impl Postgres {
    fn start() -> Result<Postgres, String> {
        let folders = |root: &Path| -> Vec<PathBuf> {
            let versions = below(&root.join("usr/lib/postgresql"));
            versions.map(|it| it.join("bin")).collect()
        };
        let programs = ["postgres", "initdb", "psql"];
        let programs = Programs::find("postgresql", &programs, folders, &["postgresql"])?;
        let folder = child::folder("postgres")?;
        let data = folder.join("data");
        let mut init = programs.command("initdb");
        init.args([
            "--no-sync",
            "--auth=trust",
            "--username=tests",
            "--encoding=UTF8",
            "-D",
        ]);
        child::run(child::unprivileged(init.arg(&data)))?;
        let mut server = programs.command("postgres");
        server.arg("-D").arg(&data).arg("-k").arg(&folder);
        for setting in ["listen_addresses=", "fsync=off", "synchronous_commit=off"] {
            server.args(["-c", setting]);
        }
        let server = Server::start(folder, &server)?;
        let postgres = Postgres { programs, server };
        eventually("PostgreSQL answers", || {
            let socket = postgres.server.folder.join(".s.PGSQL.5432");
            child::answers(postgres.client().args(["-c", "SELECT 1"]), &socket)
        });
        let mut session = postgres.connect();
        for create in [DATA, POSTGRES.create, POSTGRES.create] {
            session
                .run(create, &[])
                .map_err(|_| postgres.server.log())?;
        }
        Ok(postgres)
    }

    fn client(&self) -> Command {
        let mut client = self.programs.command("psql");
        client.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
        client.args(["--username=tests", "--dbname=postgres", "--host"]);
        client.arg(&self.server.folder);
        client
    }

    fn connect(&self) -> Psql {
        let client = Client::start(self.client()).unwrap();
        let prepared = HashMap::new();
        Psql { client, prepared }
    }

    fn fenced(&'static self, own_row: bool) -> Fenced<impl Fn() -> Psql + Sync> {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!("tickets-{}", NAMES.fetch_add(1, Ordering::Relaxed));
        Fenced::new(DIALECT, name, own_row, || self.connect())
    }
}

struct Psql {
    client: Client,
    /// Statements with parameters, by their text.
    prepared: HashMap<String, String>,
}

impl Psql {
    fn send(&mut self, sql: &str, parameters: &[Value<'_>]) {
        if parameters.is_empty() {
            return self.client.send(&format!("{sql};\n\\echo END :SQLSTATE\n"));
        }
        let count = self.prepared.len();
        let name = self.prepared.entry(sql.to_owned()).or_insert_with(|| {
            let name = format!("s{count}");
            self.client.send(&format!("PREPARE {name} AS {sql};\n"));
            name
        });
        let list: Vec<_> = parameters.iter().map(Value::to_string).collect();
        let text = format!(
            "EXECUTE {name}({});\n\\echo END :SQLSTATE\n",
            list.join(", ")
        );
        self.client.send(&text);
    }

    fn receive(&mut self) -> Result<Option<i64>, Code> {
        let mut first = None;
        loop {
            let line = self.client.line().ok_or(GONE)?;
            match line.strip_prefix("END ") {
                Some("00000") => return Ok(first),
                Some(code) => return Err(code.to_owned()),
                None => first = first.or(line.parse().ok()),
            }
        }
    }
}

impl Db for Psql {
    fn run(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<Option<i64>, Code> {
        self.send(sql, parameters);
        self.receive()
    }
}

mod table {
    use super::*;
    cases!(server().map(|it| it.fenced(false)));
}

mod own_row {
    use super::*;
    cases!(server().map(|it| it.fenced(true)));
}

/// The process of a session, and whether it waits for a lock.
fn process(holder: &mut Holder<'_, Psql>) -> i64 {
    let process = holder.db.run("SELECT pg_backend_pid()", &[]);
    process.unwrap().unwrap()
}

fn wait_until_blocked(postgres: &Postgres, process: i64) {
    let mut session = postgres.connect();
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"
    );
    eventually("the session waits for a row", || {
        session.run(&sql, &[]) == Ok(Some(1))
    });
}

/// A larger token or a smaller one, which waits until the transaction of another holder ends.
#[test]
fn f9_a_postgres_registration_waits_for_open_transactions() {
    let Some(postgres) = server() else { return };
    for begin in ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"] {
        for waits_with_larger in [true, false] {
            let store = postgres.fenced(false);
            let (mut first, mut second) = (store.holder(), store.holder());
            first.register(next_token()).unwrap();
            let mut tokens = [next_token(), next_token()];
            if !waits_with_larger {
                tokens.reverse();
            }
            let waiting = process(&mut second);
            first.db.run("BEGIN", &[]).unwrap();
            first.enter(tokens[0]).unwrap();
            second.db.run(begin, &[]).unwrap();
            let name = Value::Text(&store.name);
            let parameters = [name, Value::Int(tokens[1].as_i64())];
            second.db.send(POSTGRES.register, &parameters);
            wait_until_blocked(postgres, waiting);
            first.set(9).unwrap();
            first.db.run("COMMIT", &[]).unwrap();

            let expected = match (begin, waits_with_larger) {
                // It must begin anew.
                (_, _) if begin != "BEGIN" => Err(SERIALIZATION_FAILURE.to_owned()),
                (_, true) => Ok(Some(tokens[1].as_i64())),
                (_, false) => Ok(None),
            };
            assert_eq!(second.db.receive(), expected, "{begin}");
            if expected == Ok(Some(tokens[1].as_i64())) {
                assert_eq!(second.read(), 9);
            }
            second.db.run("ROLLBACK", &[]).unwrap();
        }
    }
}

#[test]
fn f9_a_postgres_holder_that_slept_before_its_registration_is_rejected() {
    let Some(postgres) = server() else { return };
    for begin in ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"] {
        let store = postgres.fenced(false);
        let (mut first, mut second) = (store.holder(), store.holder());
        let (ours, next) = (next_token(), next_token());
        first.register(ours).unwrap();
        first.db.run(begin, &[]).unwrap();
        let read = first.read();
        second.register(next).unwrap();
        second.write(next, read - 1).unwrap();

        match first.enter(ours) {
            Err(Failed::Stale(stale)) => {
                assert_eq!((stale.seen, begin), (Some(next.get()), "BEGIN"))
            }
            Err(Failed::Db(code)) => {
                assert_eq!(code, SERIALIZATION_FAILURE);
                assert_ne!(begin, "BEGIN");
            }
            Ok(()) => panic!("{begin}: a stale holder was accepted"),
        }
        first.db.run("ROLLBACK", &[]).unwrap();
        assert_stale(first.write(ours, read - 1), ours, next);
        assert_eq!(second.read(), read - 1);
    }
}

#[test]
fn f9_the_timeout_of_the_page_ends_a_sleeping_postgres_holder() {
    let Some(postgres) = server() else { return };
    let store = postgres.fenced(false);
    let (mut first, mut second) = (store.holder(), store.holder());
    let (ours, next) = (next_token(), next_token());
    let timeout = "SET idle_in_transaction_session_timeout = '300ms'";
    first.db.run(timeout, &[]).unwrap();
    first.db.run("BEGIN", &[]).unwrap();
    first.enter(ours).unwrap();
    first.set(3).unwrap();

    // Waits until the first session has been ended.
    second.register(next).unwrap();
    assert_eq!(
        second.read(),
        10,
        "nothing of the first transaction is left"
    );
    let late = first.set(3);
    assert!(late.is_err(), "{late:?}");
}

/// The page's single statement: register and write at once.
#[test]
fn f9_one_postgres_statement_registers_and_writes_or_does_neither() {
    let Some(postgres) = server() else { return };
    let store = postgres.fenced(false);
    let (mut first, mut second) = (store.holder(), store.holder());
    let one = crate::page::code("WITH fence AS").replace("{}", POSTGRES.register);
    let (ours, next) = (next_token(), next_token());
    let sell = |it: &mut Holder<'_, Psql>, token: quorlock::FencingToken| {
        let parameters = [Value::Text(&store.name), Value::Int(token.as_i64())];
        it.db.run(&one, &parameters)
    };
    assert_eq!(sell(&mut first, ours), Ok(Some(9)));
    assert_eq!(sell(&mut first, ours), Ok(Some(8)));

    // Behind an open transaction with a larger token.
    let waiting = process(&mut first);
    second.db.run("BEGIN", &[]).unwrap();
    second.enter(next).unwrap();
    first
        .db
        .send(&one, &[Value::Text(&store.name), Value::Int(ours.as_i64())]);
    wait_until_blocked(postgres, waiting);
    second.set(7).unwrap();
    second.db.run("COMMIT", &[]).unwrap();
    assert_eq!(first.db.receive(), Ok(None));
    assert_eq!(sell(&mut first, ours), Ok(None));
    assert_eq!(sell(&mut second, next), Ok(Some(6)));
}

#[test]
fn f9_a_reader_behind_a_later_writer_finds_its_token_in_postgres() {
    let Some(postgres) = server() else { return };
    crate::sql::readers(&postgres.fenced(false));
}

#[test]
fn f9_names_of_the_fence_do_not_share_a_row_in_postgres() {
    let Some(postgres) = server() else { return };
    crate::sql::names(&mut postgres.connect(), &DIALECT);
}
