//! What campaigns are run with.

use std::env;
use std::time::Duration;

use quorlock::{Builder, LockManager};

use crate::support::times;

/// The hash tag of all locks: in a cluster they are in one slot.
pub(crate) const TAG: &str = "campaign";

/// The clients' managers.
pub(crate) fn builder(urls: &[String], ttl: Duration) -> Builder {
    let builder = LockManager::builder(urls)
        .prefix(format!("{{{TAG}}}:"))
        .ttl(ttl)
        .max_ttl(ttl);
    // What a client sends at its end is sent, however busy the machine is.
    builder
        .response_timeout(times(ttl, 0.2))
        .outage_timeout(ttl * 2)
        .shutdown_grace(Duration::from_secs(60))
}

/// How long a campaign lasts: what was asked for, or `usual`. `None` if it is one of the long ones, and those were not
/// asked for.
pub(crate) fn seconds(usual: f64, long: bool) -> Option<Duration> {
    if let Some(asked) = read::<f64>("QUORLOCK_CAMPAIGN_SECONDS") {
        return Some(Duration::from_secs_f64(asked));
    }
    if long && env::var_os("QUORLOCK_LONG").is_none() {
        eprintln!("skipped: set QUORLOCK_LONG=1 to run it");
        return None;
    }
    Some(Duration::from_secs_f64(usual))
}

/// The seed that was asked for, or a new one.
pub(crate) fn seed() -> u64 {
    read("QUORLOCK_CAMPAIGN_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000))
}

fn read<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = env::var(variable).ok().filter(|it| !it.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is {text:?}, which is no number")),
    )
}
