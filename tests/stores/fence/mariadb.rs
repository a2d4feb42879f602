//! MariaDB, which stands for MySQL too, with its own client.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use devnodes::eventually;
use quorlock::fence::MYSQL;

use crate::cases::{Session, assert_stale, cases, next_token};
use crate::child::{self, Client, Server};
use crate::machine::{Programs, or_skip};
use crate::sql::{Code, DATA, Db, Dialect, Failed, Fenced, Value};

const DIALECT: Dialect = Dialect {
    fence: MYSQL,
    begin: "START TRANSACTION",
    returns: false,
    // A deadlock of two registrations of a new name.
    again: &["1213"],
    own_register: "UPDATE tickets SET token = ? WHERE name = ? AND token <= ?",
    own_write: "UPDATE tickets SET remaining = ?, token = ? WHERE name = ? AND token <= ?",
};

struct MariaDb {
    programs: Programs,
    server: Server,
}

/// One server for all tests of this process.
fn server() -> Option<&'static MariaDb> {
    static SERVER: OnceLock<Option<MariaDb>> = OnceLock::new();
    let start = || or_skip("MariaDB", MariaDb::start());
    SERVER.get_or_init(start).as_ref()
}

impl MariaDb {
    fn start() -> Result<MariaDb, String> {
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
        let mariadb = MariaDb { programs, server };
        eventually("MariaDB answers", || {
            let create = "CREATE DATABASE IF NOT EXISTS tests CHARACTER SET utf8mb4";
            let mut client = mariadb.client();
            child::answers(client.args(["-e", create]), &mariadb.socket())
        });
        let mut session = mariadb.connect();
        for create in [DATA, MYSQL.create, MYSQL.create] {
            session.run(create, &[]).map_err(|_| mariadb.server.log())?;
        }
        Ok(mariadb)
    }

    fn socket(&self) -> PathBuf {
        self.server.folder.join("socket")
    }

    fn client(&self) -> Command {
        let mut client = self.programs.command("mariadb");
        client.args([
            "--no-defaults",
            "--batch",
            "--skip-column-names",
            "--unbuffered",
        ]);
        client.args([
            "--force",
            "--skip-reconnect",
            "--default-character-set=utf8mb4",
            "--socket",
        ]);
        client.arg(self.socket());
        client
    }

    fn connect(&self) -> Prompt {
        let mut command = self.client();
        command.arg("tests");
        Prompt {
            client: Client::start(command).unwrap(),
            prepared: HashMap::new(),
        }
    }

    fn fenced(&'static self, own_row: bool) -> Fenced<impl Fn() -> Prompt + Sync> {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!("tickets-{}", NAMES.fetch_add(1, Ordering::Relaxed));
        Fenced::new(DIALECT, name, own_row, || self.connect())
    }
}

struct Prompt {
    client: Client,
    /// Statements with parameters, by their text.
    prepared: HashMap<String, String>,
}

impl Prompt {
    fn send(&mut self, sql: &str, parameters: &[Value<'_>]) {
        if parameters.is_empty() {
            return self.client.send(&format!("{sql}; SELECT 'END';\n"));
        }
        let count = self.prepared.len();
        let name = self.prepared.entry(sql.to_owned()).or_insert_with(|| {
            let name = format!("s{count}");
            self.client.send(&format!("PREPARE {name} FROM '{sql}';\n"));
            name
        });
        let (mut set, mut using) = (Vec::new(), Vec::new());
        for (at, value) in parameters.iter().enumerate() {
            set.push(format!("@v{at} = {value}"));
            using.push(format!("@v{at}"));
        }
        let (set, using) = (set.join(", "), using.join(", "));
        let text = format!("SET {set}; EXECUTE {name} USING {using}; SELECT 'END';\n");
        self.client.send(&text);
    }

    fn receive(&mut self) -> Result<Option<i64>, Code> {
        let (mut first, mut error) = (None, None);
        loop {
            let line = self.client.line().ok_or("gone")?;
            if line == "END" {
                return error.map_or(Ok(first), Err);
            }
            let code = line
                .strip_prefix("ERROR ")
                .and_then(|it| it.split(' ').next());
            // Without a connection there is no END either.
            if let Some(gone @ ("1927" | "2006" | "2013" | "4031")) = code {
                return Err(gone.to_owned());
            }
            error = error.or(code.map(str::to_owned));
            first = first.or(line.parse().ok());
        }
    }
}

impl Db for Prompt {
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

fn wait_until_blocked(mariadb: &MariaDb, process: i64) {
    let mut session = mariadb.connect();
    let sql = format!(
        "SELECT count(*) FROM information_schema.innodb_trx \
         WHERE trx_mysql_thread_id = {process} AND trx_state = 'LOCK WAIT'"
    );
    eventually("the session waits for a row", || {
        // InnoDB shows an old state to whoever looks again within 100 ms.
        thread::sleep(Duration::from_millis(150));
        session.run(&sql, &[]) == Ok(Some(1))
    });
}

#[test]
fn f9_a_mariadb_registration_waits_for_open_transactions() {
    let Some(mariadb) = server() else { return };
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        for waits_with_larger in [true, false] {
            let store = mariadb.fenced(false);
            let (mut first, mut second) = (store.holder(), store.holder());
            first.register(next_token()).unwrap();
            let mut tokens = [next_token(), next_token()];
            if !waits_with_larger {
                tokens.reverse();
            }
            let process = second
                .db
                .run("SELECT connection_id()", &[])
                .unwrap()
                .unwrap();
            let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            second.db.run(&set, &[]).unwrap();
            first.db.run(DIALECT.begin, &[]).unwrap();
            first.enter(tokens[0]).unwrap();
            second.db.run(DIALECT.begin, &[]).unwrap();
            let name = Value::Text(&store.name);
            second
                .db
                .send(MYSQL.register, &[name, Value::Int(tokens[1].as_i64())]);
            wait_until_blocked(mariadb, process);
            first.set(9).unwrap();
            first.db.run("COMMIT", &[]).unwrap();

            assert_eq!(second.db.receive(), Ok(None), "{level}");
            let largest = second.db.run(MYSQL.largest, &[name]);
            let expected = tokens.iter().max().unwrap().as_i64();
            assert_eq!(largest, Ok(Some(expected)), "{level}");
            assert_eq!(second.read(), 9, "{level}");
            second.db.run("ROLLBACK", &[]).unwrap();
        }
    }
}

#[test]
fn f9_a_mariadb_holder_that_slept_before_its_registration_is_rejected() {
    let Some(mariadb) = server() else { return };
    let store = mariadb.fenced(false);
    let (mut first, mut second) = (store.holder(), store.holder());
    let (ours, next) = (next_token(), next_token());
    first.register(ours).unwrap();
    first.db.run(DIALECT.begin, &[]).unwrap();
    let read = first.read();
    second.register(next).unwrap();
    second.write(next, read - 1).unwrap();

    // Its read shows the old state, and the statement of `fence` the present one.
    let stale = match first.enter(ours) {
        Err(Failed::Stale(stale)) => stale.seen == Some(next.get()),
        // With innodb_snapshot_isolation: the record has changed since the last read.
        Err(Failed::Db(code)) => code == "1020",
        Ok(()) => false,
    };
    assert!(stale, "a stale holder was accepted");
    first.db.run("ROLLBACK", &[]).unwrap();
    assert_stale(first.write(ours, read - 1), ours, next);
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
    let store = mariadb.fenced(false);
    let (mut first, mut second) = (store.holder(), store.holder());
    let (ours, next) = (next_token(), next_token());
    let timeout = "SET SESSION idle_transaction_timeout = 1";
    first.db.run(timeout, &[]).unwrap();
    first.db.run(DIALECT.begin, &[]).unwrap();
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

#[test]
fn f9_a_reader_behind_a_later_writer_finds_its_token_in_mariadb() {
    let Some(mariadb) = server() else { return };
    crate::sql::readers(&mariadb.fenced(false));
}

#[test]
fn f9_names_of_the_fence_do_not_share_a_row_in_mariadb() {
    let Some(mariadb) = server() else { return };
    crate::sql::names(&mut mariadb.connect(), &DIALECT);
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
