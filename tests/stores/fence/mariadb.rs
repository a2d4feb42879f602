//! MariaDB, which stands for MySQL too, with its own client.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use devnodes::eventually;
use quorlock::fence::MYSQL;

use crate::cases::{Session, next_token};
use crate::child::{self, Server};
use crate::machine::{Programs, or_skip};
use crate::shell::{Database, Words};
use crate::sql::{Db, Dialect, Value, sql_cases};

const DIALECT: Dialect = Dialect {
    fence: MYSQL,
    begin: "START TRANSACTION",
    returns: false,
    // A deadlock of two registrations of a new name.
    again: &["1213"],
    own_register: "UPDATE tickets SET token = ? WHERE name = ? AND token <= ?",
    own_write: "UPDATE tickets SET remaining = ?, token = ? WHERE name = ? AND token <= ?",
};

const WORDS: Words = Words {
    prepare: "PREPARE NAME FROM 'SQL';",
    execute: "EXECUTE NAME USING VALUES;",
    end: "SELECT 'END';",
    process: "SELECT connection_id()",
    blocked: "SELECT count(*) FROM information_schema.innodb_trx \
              WHERE trx_mysql_thread_id = PROCESS AND trx_state = 'LOCK WAIT'",
};

/// One server for all tests of this process.
fn server() -> Option<&'static Database> {
    static SERVER: OnceLock<Option<Database>> = OnceLock::new();
    SERVER.get_or_init(|| or_skip("MariaDB", start())).as_ref()
}

fn start() -> Result<Database, String> {
    let folders = |root: &Path| -> Vec<PathBuf> {
        let folders = ["usr/sbin", "usr/bin"];
        folders.iter().map(|it| root.join(it)).collect()
    };
    let packages = ["mariadb-server-core", "mariadb-client-core"];
    let programs = Programs::find("mariadb", &["mariadbd", "mariadb"], folders, &packages)?;
    let folder = child::folder("mariadb")?;
    let mut server = programs.command("mariadbd");
    server.arg("--no-defaults");
    // An empty folder: no users, no time zones, and databases of one's own.
    server
        .args(["--skip-grant-tables", "--skip-networking", "--datadir"])
        .arg(&folder);
    server.arg("--socket").arg(folder.join("socket"));
    server.args([
        "--innodb-buffer-pool-size=16M",
        "--innodb-flush-log-at-trx-commit=0",
    ]);
    if let Some(root) = &programs.root {
        server
            .arg("--lc-messages-dir")
            .arg(root.join("usr/share/mysql"));
        server
            .arg("--character-sets-dir")
            .arg(root.join("usr/share/mysql/charsets"));
    }
    let server = Server::start(folder, &server)?;
    let mariadb = Database {
        programs,
        server,
        dialect: DIALECT,
        words: &WORDS,
        client,
    };
    eventually("MariaDB answers", || {
        let create = "CREATE DATABASE IF NOT EXISTS tests CHARACTER SET utf8mb4";
        // Not yet to the database, which is the last argument.
        let mut client = program(&mariadb);
        let socket = mariadb.server.folder.join("socket");
        child::answers(client.args(["-e", create]), &socket)
    });
    mariadb.create()
}

fn program(mariadb: &Database) -> Command {
    let mut client = mariadb.programs.command("mariadb");
    client.args(["--no-defaults", "--batch", "--skip-column-names"]);
    client.args(["--unbuffered", "--force", "--skip-reconnect"]);
    client.args(["--default-character-set=utf8mb4", "--socket"]);
    client.arg(mariadb.server.folder.join("socket"));
    client
}

fn client(mariadb: &Database) -> Command {
    let mut client = program(mariadb);
    client.arg("tests");
    client
}

// Its read shows the old state, and the statement of `fence` the present one. With
// innodb_snapshot_isolation: the record has changed since the last read.
sql_cases!(server(), [(DIALECT.begin, &["1020"][..])]);

#[test]
fn f9_a_mariadb_registration_waits_for_open_transactions() {
    let Some(mariadb) = server() else { return };
    let levels = ["READ COMMITTED", "REPEATABLE READ"];
    let levels = levels.map(|it| format!("SET SESSION TRANSACTION ISOLATION LEVEL {it}"));
    for level in &levels {
        mariadb.registration_waits(&[(&[level, DIALECT.begin], None)]);
    }
}

/// Must fail to protect: the trap of the page.
#[test]
fn f9_a_plain_select_in_mariadb_does_not_detect_a_stale_holder() {
    let Some(mariadb) = server() else { return };
    let store = mariadb.fenced(false);
    let (mut first, mut second) = (store.holder(), store.holder());
    let (ours, next) = (next_token(), next_token());
    let off = "SET SESSION innodb_snapshot_isolation = OFF";
    // Older versions have no such variable, and this behaviour.
    let _ = first.db.run(off, &[]);
    first.register(ours).unwrap();
    first.db.run(DIALECT.begin, &[]).unwrap();
    first.read();
    second.register(next).unwrap();

    let name = Value::Text(&store.name);
    let parameters = [name, Value::Int(ours.as_i64())];
    first.db.run(MYSQL.register, &parameters).unwrap();
    let plain = MYSQL.largest.strip_suffix(" FOR UPDATE").unwrap();
    let seen = first.db.run(plain, &[name]);
    assert_eq!(seen, Ok(Some(ours.as_i64())), "the old token");
    let seen = first.db.run(MYSQL.largest, &[name]);
    assert_eq!(seen, Ok(Some(next.as_i64())), "the present one");
    first.db.run("ROLLBACK", &[]).unwrap();
}

#[test]
fn f9_the_timeout_of_the_page_ends_a_sleeping_mariadb_holder() {
    let Some(mariadb) = server() else { return };
    let timeout = "SET SESSION idle_transaction_timeout = 1";
    mariadb.timeout_ends_a_sleeping_holder(timeout);
}

/// The trap of the page: the same holder's second registration changes as many rows as a stale one's.
#[test]
fn f9_affected_rows_of_mariadb_do_not_reveal_a_stale_holder() {
    let Some(mariadb) = server() else { return };
    let store = mariadb.fenced(true);
    let mut holder = store.holder();
    let mut changed = |token: i64| {
        let name = &store.name;
        let sql = format!(
            "UPDATE tickets SET token = {token} WHERE name = '{name}' AND token <= {token}; \
             SELECT row_count()"
        );
        holder.db.run(&sql, &[]).unwrap()
    };
    assert_eq!(changed(34), Some(1));
    assert_eq!(changed(34), Some(0), "the same holder");
    assert_eq!(changed(33), Some(0), "a stale holder");
}

/// A name that the column has no room for is an error, or else a row without it: never a registration.
#[test]
fn f9_a_name_above_255_bytes_registers_nothing_in_mariadb() {
    let Some(mariadb) = server() else { return };
    let mut session = mariadb.connect();
    let name = "n".repeat(256);
    for mode in ["STRICT_TRANS_TABLES", ""] {
        session
            .run(&format!("SET SESSION sql_mode = '{mode}'"), &[])
            .unwrap();
        let registered = session.run(MYSQL.register, &[Value::Text(&name), Value::Int(7)]);
        assert_eq!(
            registered.is_err(),
            !mode.is_empty(),
            "{mode}: {registered:?}"
        );
        assert_eq!(
            session.run(MYSQL.largest, &[Value::Text(&name)]),
            Ok(None),
            "{mode}"
        );
    }
}
