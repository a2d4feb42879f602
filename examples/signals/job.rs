//! A long job, and what ends it at a signal.

use std::error::Error;
use std::thread;
use std::time::Duration;

use quorlock::{LockManager, LostReason};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Ends the manager at the first signal, and the process at the second, should the shutdown not end it.
pub(crate) fn shutdown_on_signals(locks: &LockManager) -> Result {
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

/// A job of many steps, which ends early if the lock is lost: a shutdown is one of the ways in which it can be.
pub(crate) fn job(locks: &LockManager, in_the_middle: impl FnOnce() -> Result) -> Result {
    shutdown_on_signals(locks)?;
    let guard = locks.mutex("signals-job").lock()?;
    println!(
        "We hold the lock, with token {}, and work.",
        guard.fencing_token()
    );
    in_the_middle()?;
    let lost = loop {
        // Stands for a step of the work: a pause that ends early if the lock is lost.
        let _ = guard.lost().recv_timeout(Duration::from_millis(200));
        if let Err(lost) = guard.check() {
            break lost;
        }
    };
    if lost.reason != LostReason::ShutDown {
        return Err(lost.into());
    }
    println!(
        "We were asked to end: the lock has been given back, and what is not done is left to the next one."
    );
    Ok(())
}
