//! A SQLite database that checks fencing tokens: a holder that slept through the end of its lock does no harm.
//!
//! ```text
//! cargo run --package fenced-sqlite
//! ```
//!
//! starts three lock servers on this machine and ends them again. It compiles SQLite from source and so needs a C
//! compiler, which is why it is a package of its own and not one of the examples beside it. `fenced_redis` shows the
//! same without one. To use servers of your own, give their URLs behind `--`.
//!
//! What to copy is in `store.rs`: two statements.

mod store;

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process;
use std::time::Duration;

use devnodes::Servers;
use quorlock::LockManager;
use store::Tickets;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const NAME: &str = "tickets";

/// For waits that end by themselves long before.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result {
    let folder = env::temp_dir().join(format!("quorlock-fenced-sqlite-{}", process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = run(&folder.join("tickets.db"));
    fs::remove_dir_all(&folder)?;
    outcome
}

fn run(file: &Path) -> Result {
    let mut urls: Vec<String> = env::args().skip(1).collect();
    let servers = Servers::start(if urls.is_empty() { 3 } else { 0 })?;
    urls.extend(servers.urls());

    // Two programs, each with its own lock manager and its own connection to the database.
    let (first, second) = (connect(&urls)?, connect(&urls)?);
    let (first_store, second_store) = (Tickets::open(file)?, Tickets::open(file)?);
    println!("A database with {} tickets, and a lock on {} servers.", first_store.left()?, urls.len());

    println!("\n1. The first holder");
    let stale = first.mutex(NAME).renew(false).lock()?;
    let entered = first_store.enter(stale.fencing_token())?;
    println!("   holds the lock, registers its fencing token {}, and reads:", stale.fencing_token());
    println!("   {} left. Then it is stopped for longer than its lock lasts.", entered.left);
    // Stands for the stop: nothing renews this lock.
    stale.lost().recv_timeout(PATIENCE)?;

    println!("\n2. The second holder");
    let guard = second.mutex(NAME).try_lock_for(PATIENCE)?;
    let successor = second_store.enter(guard.fencing_token())?;
    println!("   holds the lock, registers its fencing token {}, and reads:", guard.fencing_token());
    println!("   {} left.", successor.left);

    println!("\n3. The first one wakes up");
    println!("   and sells a ticket without a look at the clock. The second has not written anything yet.");
    match entered.sell() {
        Err(err) => println!("   The database: {err}"),
        Ok(()) => return Err("the database took a write from a holder whose lock had gone to another".into()),
    }

    println!("\n4. The second one sells a ticket");
    successor.sell()?;
    guard.release()?;
    println!("   The database: {} left.", second_store.left()?);
    if second_store.left()? != store::AT_FIRST - 1 {
        return Err("one ticket was sold, and the number left does not fit".into());
    }
    Ok(())
}

fn connect(urls: &[String]) -> Result<LockManager> {
    let locks = LockManager::builder(urls)
        // Short, because this program waits for a lock to run out.
        .ttl(Duration::from_secs(2))
        // The defaults suit servers in a network. This machine may still be busy compiling.
        .connect_timeout(Duration::from_secs(1))
        .response_timeout(Duration::from_millis(500))
        // Only here, where the servers are seconds old: they would have no vote for the first two.
        .quarantine(false);
    Ok(locks.build()?)
}
