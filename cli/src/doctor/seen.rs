//! The results of all checks, and numbers derived from them.

use std::time::Duration;

use quorlock::error::NodeCheck;
use quorlock::inspection::Listing;

/// The response timeout must allow answers slower than the slowest one by this factor.
pub(crate) const ROOM: u32 = 4;
/// The proposed response timeout, in slowest answers.
const PROPOSED: u32 = 10;
/// The shortest valid ttl, in response timeouts.
pub(crate) const TIMEOUTS_IN_A_TTL: u32 = 4;

/// The results of all checks.
pub(crate) struct Seen {
    /// The last check. A server that rejects writes has failed.
    pub(crate) checks: Vec<NodeCheck>,
    /// The slowest answer of each node.
    pub(crate) slowest: Vec<Option<Duration>>,
    /// The stored locks, unless --no-keys.
    pub(crate) listing: Option<Listing>,
    pub(crate) response_timeout: Duration,
    pub(crate) quarantine: bool,
    /// The ttl of --for.
    pub(crate) planned: Option<Duration>,
}

/// The properties of a ttl on these servers.
pub(crate) struct Plan {
    pub(crate) ttl: Duration,
    /// The unused end of the ttl: clocks differ in their speed.
    pub(crate) margin: Duration,
    /// The number of unanswered extensions before the lock is lost.
    pub(crate) tries: u32,
    /// The shortest ttl and its response timeout; none without any answer.
    pub(crate) shortest: Option<(Duration, Duration)>,
}

impl Seen {
    /// A better response timeout, if the setting is too short.
    pub(crate) fn proposal(&self) -> Option<Duration> {
        let slowest = self.slowest.iter().flatten().max()?;
        (self.response_timeout < slowest.saturating_mul(ROOM)).then(|| proposed(*slowest))
    }

    pub(crate) fn plan(&self) -> Option<Plan> {
        let ttl = self.planned?;
        // The default of the library: 1 % and 2 ms.
        let margin = ttl / 100 + Duration::from_millis(2);
        // An extension begins after a third.
        let time = (ttl - ttl / 3).saturating_sub(margin).as_millis()
            / self.response_timeout.as_millis().max(1);
        let shortest = self.slowest.iter().flatten().max().map(|it| proposed(*it));
        Some(Plan {
            ttl,
            margin,
            tries: u32::try_from(time).unwrap_or(u32::MAX),
            shortest: shortest.map(|it| (it.saturating_mul(TIMEOUTS_IN_A_TTL), it)),
        })
    }
}

/// Rounded up to 100 ms.
fn proposed(slowest: Duration) -> Duration {
    let millis = slowest
        .saturating_mul(PROPOSED)
        .as_millis()
        .div_ceil(100)
        .saturating_mul(100);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX).max(100))
}
