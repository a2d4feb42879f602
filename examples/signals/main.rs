//! A program that is asked to end gives its locks back at once, instead of leaving them to expire.
//!
//! ```text
//! cargo run --example signals
//! ```
//!
//! starts three servers on this machine, takes a lock for a long job, and is asked to end in the middle: here by itself,
//! with the signal that service managers and container runtimes send. With servers of your own it goes on until you press
//! ctrl-c:
//!
//! ```text
//! cargo run --example signals -- redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3
//! ```
//!
//! What to copy is `shutdown_on_signals` in `job.rs`.

mod job;

use std::env;
use std::time::Duration;

use devnodes::Servers;
use quorlock::LockManager;

use self::job::{Result, job};

fn main() -> Result {
    let urls: Vec<String> = env::args().skip(1).collect();
    if !urls.is_empty() {
        return job(&LockManager::builder(&urls).build()?, || Ok(()));
    }
    println!("No servers given: starting three.");
    let servers = Servers::start(3)?;
    // Only here, where the servers are seconds old and protect nothing: they would have no vote for the first ten.
    let builder = || {
        LockManager::builder(servers.urls())
            .quarantine(false)
            .connect_timeout(Duration::from_secs(1))
    };
    let builder = || builder().response_timeout(Duration::from_secs(1));
    job(&builder().build()?, || {
        println!("We send ourselves SIGTERM, as a service manager would.");
        Ok(rustix::process::kill_process(
            rustix::process::getpid(),
            rustix::process::Signal::TERM,
        )?)
    })?;
    // Without the handler it would be there for another ten seconds.
    let guard = builder().build()?.mutex("signals-job").try_lock()?;
    println!(
        "Somebody else takes the lock at once, with token {}.",
        guard.fencing_token()
    );
    Ok(())
}
