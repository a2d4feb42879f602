//! What is the same for database servers that are reached by their own command-line clients.

use std::collections::HashMap;
use std::process::Command;
use std::thread;
use std::time::Duration;

use devnodes::{ChildProcess, eventually};

use crate::cases::{Session, next_token};
use crate::child::Server;
use crate::machine::Programs;
use crate::sql::{Code, DATA, Db, Dialect, Fenced, Value};

/// A server, and how its client is started.
pub(crate) struct Database {
    pub(crate) programs: Programs,
    pub(crate) server: Server,
    pub(crate) dialect: Dialect,
    pub(crate) words: &'static Words,
    pub(crate) client: fn(&Database) -> Command,
}

/// The words of a server and its client.
pub(crate) struct Words {
    /// With NAME and SQL.
    pub(crate) prepare: &'static str,
    /// With NAME and VALUES.
    pub(crate) execute: &'static str,
    /// Writes END, and a code behind it or an error before it.
    pub(crate) end: &'static str,
    /// The process of a session.
    pub(crate) process: &'static str,
    /// 1 if PROCESS waits for a row.
    pub(crate) blocked: &'static str,
}

impl Database {
    /// Creates the tables, those of `fence` twice.
    pub(crate) fn create(self) -> Result<Database, String> {
        let fence = self.dialect.fence.create;
        let mut session = self.connect();
        for create in [DATA, fence, fence] {
            session.run(create, &[]).map_err(|_| self.server.log())?;
        }
        Ok(self)
    }

    pub(crate) fn connect(&self) -> Shell {
        let client = (self.client)(self);
        // Its errors come between its other lines.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$@" 2>&1"#, "sh"]);
        command.arg(client.get_program()).args(client.get_args());
        for (name, value) in client.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        Shell {
            client: ChildProcess::run(command, ""),
            words: self.words,
            prepared: HashMap::new(),
        }
    }

    pub(crate) fn fenced(&'static self, own_row: bool) -> Fenced<impl Fn() -> Shell + Sync> {
        Fenced::new(self.dialect, own_row, || self.connect())
    }

    pub(crate) fn wait_until_blocked(&self, process: i64) {
        let mut session = self.connect();
        let sql = self.words.blocked.replace("PROCESS", &process.to_string());
        eventually("the session waits for a row", || {
            // InnoDB shows an old state to whoever looks again within 100 ms.
            thread::sleep(Duration::from_millis(150));
            session.run(&sql, &[]) == Ok(Some(1))
        });
    }

    /// A larger token or a smaller one, which waits until the transaction of another holder ends:
    /// with each of these beginnings of its own transaction, and the error behind which it must
    /// begin anew.
    pub(crate) fn registration_waits(&'static self, transactions: &[(&[&str], Option<&str>)]) {
        let fence = self.dialect.fence;
        for (begin, error) in transactions {
            for waits_with_larger in [true, false] {
                let store = self.fenced(false);
                let (mut first, mut second) = (store.holder(), store.holder());
                first.register(next_token()).unwrap();
                let mut tokens = [next_token(), next_token()];
                if !waits_with_larger {
                    tokens.reverse();
                }
                let [ours, waiting] = tokens.map(|it| it.as_i64());
                let process = second.db.run(self.words.process, &[]).unwrap().unwrap();
                first.db.run(self.dialect.begin, &[]).unwrap();
                first.enter(tokens[0]).unwrap();
                for statement in *begin {
                    second.db.run(statement, &[]).unwrap();
                }
                let name = Value::Text(&store.name);
                second.db.send(fence.register, &[name, Value::Int(waiting)]);
                self.wait_until_blocked(process);
                first.set(9).unwrap();
                first.db.run("COMMIT", &[]).unwrap();

                let answer = second.db.receive();
                if let Some(error) = error {
                    assert_eq!(answer, Err((*error).to_owned()), "{begin:?}");
                } else {
                    let is_returned = self.dialect.returns && waits_with_larger;
                    assert_eq!(answer, Ok(is_returned.then_some(waiting)), "{begin:?}");
                    let largest = second.db.run(fence.largest, &[name]);
                    assert_eq!(largest, Ok(Some(ours.max(waiting))), "{begin:?}");
                    assert_eq!(second.read(), 9, "{begin:?}");
                }
                second.db.run("ROLLBACK", &[]).unwrap();
            }
        }
    }

    /// The statement of the page ends the session of a holder that sleeps in its transaction.
    pub(crate) fn timeout_ends_a_sleeping_holder(&'static self, timeout: &str) {
        let store = self.fenced(false);
        let (mut first, mut second) = (store.holder(), store.holder());
        let (ours, next) = (next_token(), next_token());
        first.db.run(timeout, &[]).unwrap();
        first.db.run(self.dialect.begin, &[]).unwrap();
        first.enter(ours).unwrap();
        first.set(3).unwrap();

        // Waits until the first session has been ended.
        second.register(next).unwrap();
        let left = second.read();
        assert_eq!(left, 10, "nothing of the first transaction is left");
        let late = first.set(3);
        assert!(late.is_err(), "{late:?}");
    }
}

/// A connection: a client that reads statements from its input.
pub(crate) struct Shell {
    client: ChildProcess,
    words: &'static Words,
    /// Statements with parameters, by their text.
    prepared: HashMap<String, String>,
}

impl Shell {
    pub(crate) fn send(&mut self, sql: &str, parameters: &[Value<'_>]) {
        let mut statement = format!("{sql};");
        if !parameters.is_empty() {
            let count = self.prepared.len();
            let name = self.prepared.entry(sql.to_owned()).or_insert_with(|| {
                let name = format!("s{count}");
                let prepare = self.words.prepare.replace("NAME", &name);
                self.client.tell(&prepare.replace("SQL", sql));
                name
            });
            let values: Vec<_> = parameters.iter().map(Value::to_string).collect();
            let execute = self.words.execute.replace("NAME", name);
            statement = execute.replace("VALUES", &values.join(", "));
        }
        self.client.tell(&statement);
        self.client.tell(self.words.end);
    }

    pub(crate) fn receive(&mut self) -> Result<Option<i64>, Code> {
        let (mut first, mut error) = (None, None);
        loop {
            // It ends if its connection does.
            let line = self.client.hear_or_end().ok_or("gone")?;
            if let Some(code) = line.strip_prefix("END") {
                let code = Some(code.trim()).filter(|it| !["", "00000"].contains(it));
                let error = error.or(code.map(str::to_owned));
                return error.map_or(Ok(first), Err);
            }
            let code = line
                .strip_prefix("ERROR ")
                .and_then(|it| it.split(' ').next());
            // In MariaDB there is no END without a connection.
            if let Some(gone @ ("1927" | "2006" | "2013" | "4031")) = code {
                return Err(gone.to_owned());
            }
            error = error.or(code.map(str::to_owned));
            first = first.or(line.parse().ok());
        }
    }
}

impl Db for Shell {
    fn run(&mut self, sql: &str, parameters: &[Value<'_>]) -> Result<Option<i64>, Code> {
        self.send(sql, parameters);
        self.receive()
    }
}
