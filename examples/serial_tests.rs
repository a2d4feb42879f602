//! Tests of several processes that share something only one may use at a time: a database, a port, a licence.
//!
//! `cargo test` runs one process per test file, and a build server runs many, so a `Mutex` in the program is not
//! enough. Copy [`exclusive`] into your tests and hold its guard for as long as a test needs the thing:
//!
//! ```ignore
//! #[test]
//! fn a_refund_is_booked() {
//!     let _alone = exclusive("bookings-database");
//!     // … whatever the test does; panics release the lock as well
//! }
//! ```
//!
//! To see it work:
//!
//! ```text
//! cargo run --example serial_tests
//! ```
//!
//! starts three servers on this machine, and three processes that count in one file: first each as it likes, then with
//! `exclusive`.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{self, Command};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use devnodes::Servers;
use quorlock::{LockGuard, LockManager};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Waits until no other test in any process uses `name`, and keeps all others out until the guard is dropped.
///
/// The servers are those in `REDIS_NODES`, with commas or spaces between the URLs; the same for all processes. Each
/// process has one manager for all its tests, and connects when the first of them wants a lock. A process that is
/// killed keeps the others waiting for at most the ttl.
///
/// # Panics
///
/// Without `REDIS_NODES`, or if no majority of the servers can be reached, or after ten minutes: in a test that is how
/// to say so.
#[track_caller]
fn exclusive(name: &str) -> LockGuard {
    static LOCKS: LazyLock<LockManager> = LazyLock::new(|| {
        let nodes = env::var("REDIS_NODES").expect("REDIS_NODES: URLs of the Redis servers for locks between tests");
        LockManager::builder(nodes.split([',', ' ']).filter(|it| !it.is_empty()))
            // Test machines are busy machines.
            .connect_timeout(Duration::from_secs(2))
            .response_timeout(Duration::from_secs(2))
            // Servers for tests are started with them, and would have no vote for eleven seconds. What a restart in the
            // middle could break is a test run.
            .quarantine(false)
            .build()
            .unwrap_or_else(|err| panic!("REDIS_NODES: {err}"))
    });
    let lock = LOCKS.mutex(format!("exclusive-{name}"));
    match lock.try_lock_for(Duration::from_secs(600)) {
        Ok(guard) => guard,
        Err(err) => panic!("exclusive({name:?}): {err}"),
    }
}

const PROCESSES: u32 = 3;
const ROUNDS: u32 = 40;

fn main() -> Result {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--count", file] => count(Path::new(file), || None),
        ["--count-exclusively", file] => count(Path::new(file), || Some(exclusive("counter"))),
        _ => demonstrate(),
    }
}

/// What each process does: adds one to the number in the file, again and again. Where others do so between the read and
/// the write, their additions are lost; where one reads while another writes, it finds nothing and begins at 0.
fn count(file: &Path, alone: impl Fn() -> Option<LockGuard>) -> Result {
    for _ in 0..ROUNDS {
        let _alone = alone();
        let number: u32 = fs::read_to_string(file)?.trim().parse().unwrap_or(0);
        thread::yield_now(); // an invitation
        fs::write(file, (number + 1).to_string())?;
    }
    Ok(())
}

fn demonstrate() -> Result {
    let servers = Servers::start(3)?;
    let nodes = servers.urls().join(" ");
    let file = env::temp_dir().join(format!("quorlock-serial-tests-{}", process::id()));
    println!(
        "{PROCESSES} processes add 1 to the number in a file, {ROUNDS} times each: {} in all.",
        PROCESSES * ROUNDS
    );

    let without = run_processes("--count", &file, &nodes)?;
    println!("  each as it likes: the file says {without}, because they get in each other's way");
    let with = run_processes("--count-exclusively", &file, &nodes)?;
    println!("  with exclusive(): the file says {with}, because one at a time reads and writes");
    fs::remove_file(file)?;

    if with == PROCESSES * ROUNDS { Ok(()) } else { Err("the lock did not keep them apart".into()) }
}

fn run_processes(what: &str, file: &Path, nodes: &str) -> Result<u32> {
    fs::write(file, "0")?;
    let start = |_| Command::new(env::current_exe()?).arg(what).arg(file).env("REDIS_NODES", nodes).spawn();
    let processes = (0..PROCESSES).map(start).collect::<std::io::Result<Vec<_>>>()?;
    for mut process in processes {
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("a process: {status}").into());
        }
    }
    Ok(fs::read_to_string(file)?.trim().parse()?)
}
