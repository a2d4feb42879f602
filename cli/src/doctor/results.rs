//! The results of all checks, and numbers derived from them.

use std::time::Duration;

use quorlock::error::NodeCheck;
use quorlock::inspection::Listing;

/// The response timeout must allow answers slower than the slowest one by this factor.
pub(crate) const ROOM: u32 = 4;
/// The proposed response timeout, in slowest answers.
const PROPOSED: u32 = 10;

/// The results of all checks.
pub(crate) struct Results {
    /// The last check. A server that rejects writes has failed.
    pub(crate) checks: Vec<NodeCheck>,
    /// The slowest answer of each node.
    pub(crate) slowest: Vec<Option<Duration>>,
    /// The stored locks, unless --no-keys.
    pub(crate) listing: Option<Listing>,
    pub(crate) response_timeout: Duration,
    pub(crate) quarantine: bool,
}

impl Results {
    /// A better response timeout, if the setting is too short: rounded up to 100 ms.
    pub(crate) fn proposal(&self) -> Option<Duration> {
        let slowest = self.slowest.iter().flatten().max()?;
        let proposed = slowest.saturating_mul(PROPOSED).as_millis().div_ceil(100);
        let proposed = u64::try_from(proposed.saturating_mul(100)).unwrap_or(u64::MAX);
        (self.response_timeout < slowest.saturating_mul(ROOM))
            .then(|| Duration::from_millis(proposed))
    }
}
