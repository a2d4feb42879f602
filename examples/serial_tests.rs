//! Tests of several processes that share something only one may use at a time: a database, a port, a licence.
//!
//! `cargo test` runs one process per test file, and a build server runs many, so a `Mutex` in the program is not enough.
//! `testing::serial`, of the feature `testing`, is one line in a test:
//!
//! ```ignore
//! #[test]
//! fn a_refund_is_booked() {
//!     let _alone = quorlock::testing::serial("bookings-database");
//!     // … whatever the test does; panics release the lock as well
//! }
//! ```
//!
//! To see it work:
//!
//! ```text
//! cargo run --features testing --example serial_tests
//! ```
//!
//! starts three servers on this machine, and three processes that count in one file: first each as it likes, then with
//! `serial` by a file, which keeps apart what runs on one machine, and then with `serial` on the servers, which does that for
//! many machines.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{self, Command};
use std::thread;

use devnodes::Servers;
use quorlock::testing::{self, Serial};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const PROCESSES: u32 = 3;
const ROUNDS: u32 = 40;

fn main() -> Result {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--count", file] => count(Path::new(file), || None),
        ["--count-serially", file] => count(Path::new(file), || Some(testing::serial("counter"))),
        _ => demonstrate(),
    }
}

/// What each process does: adds one to the number in the file, again and again. Where others do so between the read and
/// the write, their additions are lost; where one reads while another writes, it finds nothing and begins at 0.
fn count(file: &Path, alone: impl Fn() -> Option<Serial>) -> Result {
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

    let without = run_processes("--count", &file, "")?;
    println!("  each as it likes: the file says {without}, because they get in each other's way");
    let with = run_processes("--count-serially", &file, "")?;
    println!("  with serial(), by a file: the file says {with}, because one at a time reads and writes");
    let on_servers = run_processes("--count-serially", &file, &nodes)?;
    println!("  with serial(), on the servers: the file says {on_servers}");
    fs::remove_file(file)?;

    if [with, on_servers] == [PROCESSES * ROUNDS; 2] { Ok(()) } else { Err("the lock did not keep them apart".into()) }
}

fn run_processes(what: &str, file: &Path, nodes: &str) -> Result<u32> {
    fs::write(file, "0")?;
    let start = |_| Command::new(env::current_exe()?).arg(what).arg(file).env("QUORLOCK_TEST_NODES", nodes).spawn();
    let processes = (0..PROCESSES).map(start).collect::<std::io::Result<Vec<_>>>()?;
    for mut process in processes {
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("a process: {status}").into());
        }
    }
    Ok(fs::read_to_string(file)?.trim().parse()?)
}
