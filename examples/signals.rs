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
//! What to copy is [`shutdown_on_signals`].

use std::env;
use std::error::Error;
use std::thread;
use std::time::Duration;

use devnodes::Servers;
use quorlock::{LockManager, Lost};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Ends the manager at the first signal, and the process at the second, should the first be of no use.
fn shutdown_on_signals(locks: &LockManager) -> Result {
    let (locks, mut signals) = (locks.clone(), Signals::new([SIGINT, SIGTERM])?);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            signals.forever().take(1).for_each(|_| locks.shutdown());
            signals
                .forever()
                .for_each(|signal| drop(emulate_default_handler(signal)));
        })?;
    Ok(())
}

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

/// A job of many steps, which ends early if the lock is lost: a shutdown is one of the ways in which it can be.
fn job(locks: &LockManager, in_the_middle: impl FnOnce() -> Result) -> Result {
    shutdown_on_signals(locks)?;
    let guard = locks.mutex("signals-job").lock()?;
    println!(
        "We hold the lock, with token {}, and work.",
        guard.fencing_token()
    );
    in_the_middle()?;
    loop {
        // Stands for a step of the work: a pause that ends early if the lock is lost.
        match guard.lost().recv_timeout(Duration::from_millis(200)) {
            Err(_) => guard.check()?,
            Ok(Lost::ShutDown) => break,
            Ok(lost) => return Err(lost.into()),
        }
    }
    println!(
        "We were asked to end: the lock has been given back, and what is not done is left to the next one."
    );
    Ok(())
}
