//! A job that runs once in a fleet, as a small command-line tool: started by cron on every machine, done by one.
//!
//! Without servers to work with, it starts three on this machine and runs two copies of itself at the same time:
//!
//! ```text
//! cargo run --example cli_job
//! ```
//!
//! With servers it is the tool itself. Start it in several terminals at once; `REDIS_NODES` can hold the URLs instead:
//!
//! ```text
//! cargo run --example cli_job -- redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3
//! ```
//!
//! One copy does the job; the others say who is at it, or that it is done, and exit with 0. The result is stored with
//! the fencing token of its writer, and the store refuses a token smaller than one that it has seen.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use devnodes::Servers;
use quorlock::error::{NodeAnswer, NodeReport};
use quorlock::{FencingToken, LockGuard, LockManager};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Which report: there is one for each. Any word.
const EDITION: &str = "REPORT_EDITION";

/// Set by the demonstration for its copies: the servers were started by it.
const NEW_SERVERS: &str = "REPORT_NEW_SERVERS";

/// The folder of the store.
const STORE: &str = "REPORT_STORE";

/// There is no need to wait for a job that another copy does. But when a fleet starts at the same moment, each copy may
/// get some of the servers and none a majority: `try_lock`, one attempt, could then be refused to all of them.
const SETTLE: Duration = Duration::from_millis(250);

fn main() -> Result {
    let urls = nodes();
    if urls.is_empty() {
        two_copies_at_the_same_time()
    } else {
        tool(&urls)
    }
}

/// From the command line, else from the environment, where commas or spaces are between them.
fn nodes() -> Vec<String> {
    let args: Vec<String> = env::args().skip(1).collect();
    if !args.is_empty() {
        return args;
    }
    quorlock::Node::split_urls(&env::var("REDIS_NODES").unwrap_or_default())
}

/// The tool.
fn tool(urls: &[String]) -> Result {
    let edition = env::var(EDITION).unwrap_or_else(|_| "today".into());
    let store = Store::open(
        env::var_os(STORE).map_or_else(|| env::temp_dir().join("quorlock-cli-job"), PathBuf::from),
    )?;
    let locks = LockManager::builder(urls)
        // The defaults suit servers in a network. This machine may still be busy compiling.
        .connect_timeout(Duration::from_secs(1))
        .response_timeout(Duration::from_secs(1))
        // Off only in the demonstration, whose servers are seconds old and protect nothing: they would have no vote for
        // the first ten. With servers that are new to locks the tool says so, and the next run of cron does the job.
        .quarantine(env::var_os(NEW_SERVERS).is_none())
        .build()?;

    let guard = match locks.mutex("cli-job-report").try_lock_for(SETTLE) {
        Ok(guard) => guard,
        Err(err) if err.is_held() => {
            let holder = |it: &NodeReport| match &it.answer {
                NodeAnswer::Held { holder, .. } => holder.clone(),
                _ => None,
            };
            let who = err
                .nodes()
                .iter()
                .find_map(holder)
                .unwrap_or_else(|| "somebody else".into());
            say(&format!("{who} is at it; nothing to do"));
            return Ok(());
        }
        Err(err) => return Err(err.into()),
    };
    // A lock means one at a time. That the job is done once is for the store to say, and to ask under the lock.
    if let Some(token) = store.has(&edition)? {
        say(&format!(
            "the report of {edition:?} was stored before, with token {token}; nothing to do"
        ));
        say(&format!(
            "(set {EDITION} to another word for another report)"
        ));
        return Ok(());
    }

    say(&format!(
        "the job is ours, with fencing token {}",
        guard.fencing_token()
    ));
    let report = write_report(&guard, &edition)?;
    store.put(guard.fencing_token(), &edition, &report)?;
    say(&format!("stored {report:?} in {}", store.folder.display()));
    let released = guard.release()?;
    say(&format!(
        "done; the release was confirmed by {} of {} servers",
        released.confirmed, released.nodes
    ));
    Ok(())
}

/// The job itself, in steps. After each it makes sure that it is still alone.
fn write_report(guard: &LockGuard, edition: &str) -> Result<String> {
    let mut report = edition.to_owned();
    for (step, part) in ["orders", "invoices", "totals"].into_iter().enumerate() {
        stand_in_for_work(guard);
        // A lost lock ends the job here, with the way it was lost as the error.
        guard.check()?;
        say(&format!("step {} of 3: {part}", step + 1));
        report = format!("{report}, {part}");
    }
    Ok(report)
}

/// 200 ms, or until the lock is lost: a pause that holders of a lock can afford.
fn stand_in_for_work(guard: &LockGuard) {
    let _ = guard.lost().recv_timeout(Duration::from_millis(200));
}

/// What the lock protects: a folder with one file per result, named after the fencing token of its writer. The one with
/// the largest token is the latest.
///
/// Stands for a database, where it would be one statement: `UPDATE … SET token = ?1 … WHERE token < ?1`.
struct Store {
    folder: PathBuf,
}

impl Store {
    fn open(folder: PathBuf) -> Result<Store> {
        fs::create_dir_all(&folder)?;
        Ok(Store { folder })
    }

    /// Refuses a writer whose lock went on to another one, however late it comes. If that one writes between the check
    /// and the write here, the result of this one is still not the latest.
    fn put(&self, token: FencingToken, edition: &str, report: &str) -> Result {
        self.put_number(token.get(), edition, report)
    }

    fn put_number(&self, token: u64, edition: &str, report: &str) -> Result {
        let latest = self.tokens()?.into_iter().max();
        if let Some(latest) = latest
            && token <= latest
        {
            return Err(format!("refused: token {token} is not larger than {latest}").into());
        }
        // In one step: no reader finds half a result.
        let unfinished = self.folder.join(format!("unfinished-{}", process::id()));
        fs::write(&unfinished, format!("{edition}\n{report}\n"))?;
        Ok(fs::rename(unfinished, self.folder.join(token.to_string()))?)
    }

    /// The token with which the report of `edition` was stored, if it was.
    fn has(&self, edition: &str) -> Result<Option<u64>> {
        for token in self.tokens()? {
            let text = fs::read_to_string(self.folder.join(token.to_string()))?;
            if text.lines().next() == Some(edition) {
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    fn tokens(&self) -> Result<Vec<u64>> {
        let mut tokens = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            tokens.extend(
                file?
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse::<u64>().ok()),
            );
        }
        Ok(tokens)
    }
}

fn say(line: &str) {
    println!("job {}: {line}", process::id());
}

/// The demonstration: servers, two copies, and a writer that comes too late.
fn two_copies_at_the_same_time() -> Result {
    println!("No servers given: starting three, and two copies of this program at the same time.");
    let servers = Servers::start(3)?;
    let folder = env::temp_dir().join(format!("quorlock-cli-job-{}", process::id()));
    let outcome = run_copies(&servers.urls(), &folder);
    fs::remove_dir_all(&folder)?;
    outcome
}

fn run_copies(urls: &[String], folder: &Path) -> Result {
    let store = Store::open(folder.to_owned())?;
    let program = env::current_exe()?;
    let start = || {
        let mut command = Command::new(&program);
        command
            .args(urls)
            .env(NEW_SERVERS, "yes")
            .env(STORE, folder)
            .env(EDITION, "today")
            .spawn()
    };
    for mut copy in [start()?, start()?] {
        let status = copy.wait()?;
        if !status.success() {
            return Err(format!("job {}: {status}", copy.id()).into());
        }
    }

    let tokens = store.tokens()?;
    let [token] = tokens[..] else {
        return Err(format!("the job was done {} times", tokens.len()).into());
    };
    println!("Both have ended well, and the job was done once.");

    println!("A writer with an older token comes late, say from a machine that was asleep:");
    let late = store.put_number(token - 1, "today", "old news");
    println!("  {}", late.err().ok_or("the store took an older token")?);
    Ok(())
}
