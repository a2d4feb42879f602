//! The terminal sessions that the documentation shows: made here, by the commands themselves, on real servers.
//!
//! What is different each time (addresses, processes, tokens, times) is replaced, see `constant`. Where a page shows something
//! else than what comes out, the test fails; with `QUORLOCK_WRITE_SESSIONS=1` it writes the pages instead.

pub(crate) mod constant;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use devnodes::{Servers, eventually};
use tempfile::TempDir;

use crate::sessions::constant::Constant;
use crate::support::*;

/// Pages with sessions in them: blocks of `console`, with the name of the session behind it.
const PAGES: [&str; 2] = ["src/guide/command.md", "README.md"];

/// What a shell says when a line is over, before its status.
const OVER: &str = "THE LINE IS OVER: ";

/// A user at a terminal.
struct Desk {
    servers: Servers,
    programs: TempDir,
    shown: String,
}

impl Desk {
    /// At servers that keep what they store and may vote; with a program to run.
    fn new() -> Result<Desk, Box<dyn std::error::Error>> {
        let servers = Servers::start_with(3, |it| it.appendonly())?;
        let programs = tempfile::tempdir()?;
        let report = programs.path().join("report");
        fs::write(
            &report,
            "#!/bin/sh\necho \"report: 12 pages, written with token $QUORLOCK_FENCING_TOKEN\"\n",
        )?;
        fs::set_permissions(&report, Permissions::from_mode(0o755))?;
        let desk = Desk {
            servers,
            programs,
            shown: String::new(),
        };
        let vouched = desk.command().args(["vouch", "--yes"]).output()?;
        assert!(
            vouched.status.success(),
            "{}{}",
            stdout(&vouched),
            stderr(&vouched)
        );
        Ok(desk)
    }

    /// Nothing of what is shown depends on how fast the machine is.
    fn command(&self) -> Command {
        let mut command = quorlock(&self.servers);
        command
            .env_remove("QUORLOCK_NO_QUARANTINE")
            .env("QUORLOCK_TTL", "10m")
            .env("NO_COLOR", "1");
        command
            .env("QUORLOCK_RESPONSE_TIMEOUT", "60")
            .env("QUORLOCK_CONNECT_TIMEOUT", "60");
        command
    }

    /// Types a line; what it says is to be waited for by [`Desk::finish`].
    fn begin(&mut self, line: &str) -> Terminal {
        self.shown.push_str(&format!("$ {line}\n"));
        let ours = Path::new(env!("CARGO_BIN_EXE_quorlock")).parent().unwrap();
        let path = format!(
            "{}:{}:{}",
            self.programs.path().display(),
            ours.display(),
            std::env::var("PATH").unwrap()
        );
        // A session of its own: whoever runs the tests keeps the terminal.
        let mut shell = Command::new("setsid");
        let script = format!("stty cols 120 rows 40; {line}; echo \"{OVER}$?\"");
        shell
            .args(["sh", "-c", &script])
            .env("PATH", path)
            .envs(variables(&self.command()));
        Terminal::start(&mut shell)
    }

    fn finish(&mut self, terminal: &Terminal, status: i32) {
        terminal.wait_for(&format!("{OVER}{status}\r\n"));
        let said = terminal.said().replace('\r', "");
        self.shown.push_str(said.split(OVER).next().unwrap());
    }

    /// Types a line, and waits until it is over.
    fn run(&mut self, line: &str, status: i32) {
        let terminal = self.begin(line);
        self.finish(&terminal, status);
    }

    /// Somebody else who holds the lock.
    fn other(&self, name: &str) -> Running {
        let other = Running::start(self.command().args(["run", name, "-c", "echo held; cat"]));
        assert_eq!(other.line().as_deref(), Some("held"));
        eventually("it is on all nodes", || {
            self.servers.holders(name) == self.servers.len()
        });
        other
    }

    fn is_waited_for(&self, name: &str, nodes: std::ops::Range<usize>) {
        let key = format!("quorlock:waiting:{name}");
        eventually("somebody waits", || {
            nodes.clone().all(|it| self.servers[it].exists(&key))
        });
    }

    /// The session, as it is shown in the pages.
    fn session(self) -> String {
        let addresses: Vec<_> = self
            .servers
            .iter()
            .map(|it| it.addr().to_string())
            .collect();
        Constant::new(addresses).text(&self.shown)
    }
}

fn variables(command: &Command) -> Vec<(String, String)> {
    let text = |it: &std::ffi::OsStr| it.to_str().unwrap().to_owned();
    command
        .get_envs()
        .filter_map(|(name, value)| Some((text(name), text(value?))))
        .collect()
}

fn run() -> Result<String, Box<dyn std::error::Error>> {
    let mut desk = Desk::new()?;
    let mut other = desk.other("nightly-report");
    desk.run(
        "quorlock run -n -q nightly-report -- report --all; echo \"status $?\"",
        0,
    );
    let terminal = desk.begin("quorlock run -v nightly-report -- report --all");
    terminal.wait_for("nightly-report: waiting for ");
    other.close_stdin();
    assert_eq!(other.status(), Some(0));
    desk.finish(&terminal, 0);
    Ok(desk.session())
}

fn status() -> Result<String, Box<dyn std::error::Error>> {
    let mut desk = Desk::new()?;
    desk.servers[2].kill()?;
    let mut other =
        Running::start(
            desk.command()
                .args(["run", "nightly-report", "-c", "echo held; cat"]),
        );
    assert_eq!(other.line().as_deref(), Some("held"));
    eventually("it is on both nodes", || {
        desk.servers
            .iter()
            .take(2)
            .all(|it| it.exists("nightly-report"))
    });
    let waiting = Running::start(desk.command().args(["run", "nightly-report", "--", "true"]));
    desk.is_waited_for("nightly-report", 0..2);
    desk.run("quorlock status nightly-report", 0);
    drop(waiting);
    other.close_stdin();
    assert_eq!(other.status(), Some(0));
    Ok(desk.session())
}

fn doctor() -> Result<String, Box<dyn std::error::Error>> {
    let mut desk = Desk::new()?;
    desk.servers[1].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    desk.servers[1].command(&["CONFIG", "SET", "maxmemory", "100mb"])?;
    desk.servers[2].kill()?;
    desk.run("quorlock doctor; echo \"status $?\"", 0);
    Ok(desk.session())
}

pub(crate) fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// The page with this session in its blocks; and how many there are.
pub(crate) fn with_session(text: &str, name: &str, session: &str) -> (String, usize) {
    let (begin, end) = (format!("```console {name}\n"), "```");
    let mut parts = text.split(&begin);
    let mut done = parts.next().unwrap_or_default().to_owned();
    let mut blocks = 0;
    for part in parts {
        let (_, rest) = part
            .split_once(&format!("\n{end}"))
            .expect("a block that ends");
        done.push_str(&format!("{begin}{session}{end}{rest}"));
        blocks += 1;
    }
    (done, blocks)
}

#[test]
fn the_pages_show_real_terminal_sessions() -> TestResult {
    let writes = std::env::var_os("QUORLOCK_WRITE_SESSIONS").is_some();
    for (name, session) in [
        ("run", run()?),
        ("status", status()?),
        ("doctor", doctor()?),
    ] {
        let mut all = 0;
        for file in PAGES.map(page) {
            let text = fs::read_to_string(&file)?;
            let (with_session, blocks) = with_session(&text, name, &session);
            all += blocks;
            if writes {
                fs::write(&file, &with_session)?;
            }
            let advice = "with QUORLOCK_WRITE_SESSIONS=1 this test writes it";
            assert!(
                writes || text == with_session,
                "{}: {name}: {advice}:\n{session}",
                file.display()
            );
        }
        assert!(all > 0, "no page shows the session {name}:\n{session}");
    }
    Ok(())
}

#[test]
fn a_page_with_an_outdated_session_is_detected() {
    let page = "a\n```console run\n$ x\nold\n```\nb\n```console other\n$ x\n```\n";
    let (with_session, blocks) = with_session(page, "run", "$ x\nnew\n");
    assert_eq!(
        with_session,
        "a\n```console run\n$ x\nnew\n```\nb\n```console other\n$ x\n```\n"
    );
    assert_eq!(blocks, 1);
    assert_eq!(self::with_session(page, "none", "").1, 0);
}
