//! A Redis server that checks fencing tokens: a holder that slept through the end of its lock does no harm.
//!
//! ```text
//! cargo run --example fenced_redis
//! ```
//!
//! starts four servers on this machine and ends them again: three for the lock, and a fourth that holds the data. A
//! server with data is no node of the lock: it does one thing, and checks the token of every writer.
//!
//! What to copy is in `store.rs`. `fenced_sqlite` has the same store in SQL.

mod store;

use std::error::Error;
use std::time::Duration;

use devnodes::{Server, Servers};
use quorlock::LockManager;
use store::Tickets;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const NAME: &str = "tickets";

/// For waits that end by themselves long before.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result {
    let (nodes, data) = (Servers::start(3)?, Server::start()?);
    // Two programs, each with its own lock manager and its own connection to the data.
    let (first, second) = (connect(&nodes)?, connect(&nodes)?);
    let (mut first_store, mut second_store) =
        (Tickets::open(&data.url())?, Tickets::open(&data.url())?);
    println!(
        "A server with {} tickets, and a lock on three others.",
        first_store.left()?
    );

    println!("\n1. The first holder");
    let stale = first.mutex(NAME).renew(false).lock()?;
    let entered = first_store.enter(stale.fencing_token())?;
    println!(
        "   holds the lock, registers its fencing token {}, and reads:",
        stale.fencing_token()
    );
    println!(
        "   {} left. Then it is stopped for longer than its lock lasts.",
        entered.left
    );
    // Stands for the stop: nothing renews this lock.
    stale.lost().recv_timeout(PATIENCE)?;

    println!("\n2. The second holder");
    let guard = second.mutex(NAME).try_lock_for(PATIENCE)?;
    let successor = second_store.enter(guard.fencing_token())?;
    println!(
        "   holds the lock, registers its fencing token {}, and reads:",
        guard.fencing_token()
    );
    println!("   {} left.", successor.left);

    println!("\n3. The first one wakes up");
    println!(
        "   and sells a ticket without a look at the clock. The second has not written anything yet."
    );
    match entered.sell() {
        Err(err) => println!("   The server: {err}"),
        Ok(()) => {
            return Err(
                "the server took a write from a holder whose lock had gone to another".into(),
            );
        }
    }

    println!("\n4. The second one sells a ticket");
    successor.sell()?;
    guard.release()?;
    println!("   The server: {} left.", second_store.left()?);
    if second_store.left()? != store::AT_FIRST - 1 {
        return Err("one ticket was sold, and the number left does not fit".into());
    }
    Ok(())
}

fn connect(nodes: &Servers) -> Result<LockManager> {
    let locks = LockManager::builder(nodes.urls())
        // Short, because this program waits for a lock to run out.
        .ttl(Duration::from_secs(2))
        // The defaults suit servers in a network. This machine may still be busy compiling.
        .connect_timeout(Duration::from_secs(1))
        .response_timeout(Duration::from_millis(500))
        // Only here, where the servers are seconds old: they would have no vote for the first two.
        .quarantine(false);
    Ok(locks.build()?)
}
