//! PostgreSQL, with psql as its client.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use devnodes::eventually;
use quorlock::fence::POSTGRES;

use crate::cases::next_token;
use crate::child::{self, Server};
use crate::machine::{Programs, below, or_skip};
use crate::shell::{Database, Shell, Words};
use crate::sql::{Db, Dialect, Holder, Value, sql_cases};

const DIALECT: Dialect = Dialect {
    fence: POSTGRES,
    begin: "BEGIN",
    returns: true,
    again: &[],
    own_register: "UPDATE tickets SET token = $1 WHERE name = $2 AND token <= $3",
    own_write: "UPDATE tickets SET remaining = $1, token = $2 WHERE name = $3 AND token <= $4",
};

const WORDS: Words = Words {
    prepare: "PREPARE NAME AS SQL;",
    execute: "EXECUTE NAME(VALUES);",
    end: "\\echo END :SQLSTATE",
    process: "SELECT pg_backend_pid()",
    blocked: "SELECT count(*) FROM pg_stat_activity WHERE pid = PROCESS AND wait_event_type = 'Lock'",
};

/// As an answer to two transactions that both read first.
const SERIALIZATION_FAILURE: &str = "40001";

const REPEATABLE_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";

/// One server for all tests of this process.
fn server() -> Option<&'static Database> {
    static SERVER: OnceLock<Option<Database>> = OnceLock::new();
    SERVER
        .get_or_init(|| or_skip("PostgreSQL", start()))
        .as_ref()
}

fn start() -> Result<Database, String> {
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
    let postgres = Database {
        programs,
        server,
        dialect: DIALECT,
        words: &WORDS,
        client,
    };
    eventually("PostgreSQL answers", || {
        let socket = postgres.server.folder.join(".s.PGSQL.5432");
        child::answers(client(&postgres).args(["-c", "SELECT 1"]), &socket)
    });
    postgres.create()
}

fn client(postgres: &Database) -> Command {
    let mut client = postgres.programs.command("psql");
    client.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
    client.args(["--username=tests", "--dbname=postgres", "--host"]);
    client.arg(&postgres.server.folder);
    client
}

sql_cases!(
    server(),
    [
        ("BEGIN", &[][..]),
        (REPEATABLE_READ, &[SERIALIZATION_FAILURE]),
    ]
);

#[test]
fn f9_a_postgres_registration_waits_for_open_transactions() {
    let Some(postgres) = server() else { return };
    postgres.registration_waits(&[
        (&["BEGIN"], None),
        (&[REPEATABLE_READ], Some(SERIALIZATION_FAILURE)),
    ]);
}

#[test]
fn f9_the_timeout_of_the_page_ends_a_sleeping_postgres_holder() {
    let Some(postgres) = server() else { return };
    let timeout = "SET idle_in_transaction_session_timeout = '300ms'";
    postgres.timeout_ends_a_sleeping_holder(timeout);
}

/// The page's single statement: register and write at once.
#[test]
fn f9_one_postgres_statement_registers_and_writes_or_does_neither() {
    let Some(postgres) = server() else { return };
    let store = postgres.fenced(false);
    let (mut first, mut second) = (store.holder(), store.holder());
    let one = crate::page::code("WITH fence AS").replace("{}", POSTGRES.register);
    let (ours, next) = (next_token(), next_token());
    let sell = |it: &mut Holder<'_, Shell>, token: quorlock::FencingToken| {
        let parameters = [Value::Text(&store.name), Value::Int(token.as_i64())];
        it.db.run(&one, &parameters)
    };
    assert_eq!(sell(&mut first, ours), Ok(Some(9)));
    assert_eq!(sell(&mut first, ours), Ok(Some(8)));

    // Behind an open transaction with a larger token.
    let waiting = first.db.run(WORDS.process, &[]).unwrap().unwrap();
    second.db.run("BEGIN", &[]).unwrap();
    second.enter(next).unwrap();
    first
        .db
        .send(&one, &[Value::Text(&store.name), Value::Int(ours.as_i64())]);
    postgres.wait_until_blocked(waiting);
    second.set(7).unwrap();
    second.db.run("COMMIT", &[]).unwrap();
    assert_eq!(first.db.receive(), Ok(None));
    assert_eq!(sell(&mut first, ours), Ok(None));
    assert_eq!(sell(&mut second, next), Ok(Some(6)));
}
