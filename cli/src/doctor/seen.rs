//! What was seen of all servers, and what follows from its numbers.

use std::time::Duration;

use quorlock::error::{NodeAccess, NodeCheck};
use quorlock::inspection::Listing;

/// The part of an answer's time that a timeout leaves room for: an answer that takes four times as long is still in time.
pub(crate) const ROOM: u32 = 4;
/// What is proposed: so many times the slowest answer.
const PROPOSED: u32 = 10;
/// A ttl has room for so many response timeouts at least, or the library refuses it.
pub(crate) const TIMEOUTS_IN_A_TTL: u32 = 4;

/// Commands that calls need while they wait for a lock. Without them they ask now and then.
pub(crate) const FOR_WAITING: [&str; 4] = ["zadd", "zrange", "zrem", "publish"];
/// Commands that read-write locks need besides.
pub(crate) const FOR_READERS: [&str; 3] = ["zscore", "zremrangebyscore", "pubsub|numsub"];
/// Commands that `status` and `ls` need, and no lock.
pub(crate) const FOR_LOOKING: [&str; 4] = ["zcard", "zcount", "zrangebyscore", "scan"];

/// Those of the forbidden commands that every lock needs.
pub(crate) fn needed(forbidden: &[&'static str]) -> Vec<&'static str> {
    let known = [&FOR_WAITING[..], &FOR_READERS, &FOR_LOOKING, &["info"]].concat();
    forbidden.iter().copied().filter(|command| !known.contains(command)).collect()
}

/// What was seen of all nodes.
pub(crate) struct Seen {
    /// The last look. A server that refuses writes has failed, though it answers questions.
    pub(crate) checks: Vec<NodeCheck>,
    /// The slowest answer of each node.
    pub(crate) slowest: Vec<Option<Duration>>,
    pub(crate) access: Vec<NodeAccess>,
    /// What is stored on the nodes, if they were looked through.
    pub(crate) listing: Option<Listing>,
    pub(crate) response_timeout: Duration,
    pub(crate) quarantine: bool,
    /// The longest ttl of all programs, as far as we were told, and whether we were.
    pub(crate) max_ttl: (Duration, bool),
    /// The ttl that somebody wants to use.
    pub(crate) planned: Option<Duration>,
}

/// What a ttl would be like on these servers.
pub(crate) struct Plan {
    pub(crate) ttl: Duration,
    /// What a holder does not use, as clocks may differ in their speed.
    pub(crate) margin: Duration,
    /// How many extensions can be tried without an answer before the lock is lost.
    pub(crate) tries: u32,
    /// The shortest ttl for these servers, and the response timeout for it; none if no server has answered.
    pub(crate) shortest: Option<(Duration, Duration)>,
}

impl Seen {
    /// Whether each node can grant locks.
    pub(crate) fn votes(&self) -> impl Iterator<Item = bool> {
        let permits = |access: &NodeAccess| access.forbidden.as_ref().is_ok_and(|commands| needed(commands).is_empty());
        self.checks.iter().zip(&self.access).map(move |(check, access)| check.failure.is_none() && permits(access))
    }

    /// A response timeout that fits, if the one that is set does not.
    pub(crate) fn proposal(&self) -> Option<Duration> {
        let slowest = self.slowest.iter().flatten().max()?;
        (self.response_timeout < slowest.saturating_mul(ROOM)).then(|| proposed(*slowest))
    }

    pub(crate) fn plan(&self) -> Option<Plan> {
        let ttl = self.planned?;
        // That of the library, which nothing here changes: a hundredth and two milliseconds.
        let margin = ttl / 100 + Duration::from_millis(2);
        // An extension begins after a third.
        let time = (ttl - ttl / 3).saturating_sub(margin).as_millis() / self.response_timeout.as_millis().max(1);
        let shortest = self.slowest.iter().flatten().max().map(|it| proposed(*it));
        Some(Plan {
            ttl,
            margin,
            tries: u32::try_from(time).unwrap_or(u32::MAX),
            shortest: shortest.map(|it| (it.saturating_mul(TIMEOUTS_IN_A_TTL), it)),
        })
    }
}

/// To a hundred milliseconds, upward.
fn proposed(slowest: Duration) -> Duration {
    let millis = slowest.saturating_mul(PROPOSED).as_millis().div_ceil(100).saturating_mul(100);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX).max(100))
}
