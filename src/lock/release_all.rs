//! Many guards, released together.

use std::sync::Arc;

use crate::engine::{Engine, HoldInner, Operation, PendingRelease};
use crate::error::{LostReason, ReleaseError};
use crate::lock::hold::Hold;
use crate::time::{self, Tick};

/// Number of releases under way at once: few enough for every node to answer them within a response timeout.
const AT_ONCE: usize = 256;

/// Releases many locks together, 256 at a time: thousands take a few round trips. One drop after the other takes a
/// round trip each.
///
/// Takes guards of every kind, of one manager or of several. A [reentrant](crate::ReentrantGuard) guard is released by itself.
///
/// Blocks for one round trip per 256 guards, as long as releases are confirmed. One [response
/// timeout](crate::Builder::response_timeout) after the last confirmation it sends all others without a wait.
///
/// Returns the result of each guard, in order.
///
/// # Errors
///
/// Of each guard, as for [`Hold::release`]. [Unconfirmed](ReleaseError::NotConfirmed) releases stay queued. Where one
/// never arrives, the key expires within one ttl.
///
/// # Panics
///
/// If the iterator does. All guards that are not released by then are dropped.
///
/// # Examples
///
/// ```
/// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
/// let shards = (0..1000).map(|shard| locks.mutex(format!("shard:{shard}")).lock());
/// let guards = shards.collect::<Result<Vec<_>, _>>()?;
///
/// let failed = quorlock::release_all(guards).into_iter().filter(Result::is_err).count();
/// assert_eq!(failed, 0);
/// # Ok(())
/// # }
/// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
/// ```
#[doc(alias("unlock_all", "drop_all", "release_many"))]
pub fn release_all<H: Into<Hold>>(
    holds: impl IntoIterator<Item = H>,
) -> Vec<Result<(), ReleaseError>> {
    let mut holds = holds.into_iter();
    let mut results = Vec::new();
    let mut late = None;
    loop {
        // Holds until the iterator has given all of them: if it panics, their drops release them.
        let some: Vec<Hold> = holds.by_ref().take(AT_ONCE).map(Into::into).collect();
        let some: Vec<Parts> = some.into_iter().map(Hold::into_parts).collect();
        if some.is_empty() {
            return results;
        }
        results.extend(release(&some, &mut late));
    }
}

/// Parts of a hold, unless it ended before.
type Parts = Result<(Arc<Engine>, Arc<HoldInner>), ReleaseError>;
/// Its release under way.
type SentRelease<'a> = (&'a Engine, Operation<'a>, PendingRelease<'a>);

/// Releases these. `late`: end of the wait for an earlier release without an answer in time.
fn release(holds: &[Parts], late: &mut Option<Tick>) -> Vec<Result<(), ReleaseError>> {
    let sent: Vec<_> = holds
        .iter()
        .map(|hold| -> Result<SentRelease<'_>, ReleaseError> {
            let (engine, lock) = hold.as_ref().map_err(Clone::clone)?;
            let call = engine
                .begin()
                .ok_or_else(|| lock.lost_by(LostReason::ShutDown))?;
            Ok((engine, call, lock.begin_release()?))
        })
        .collect();
    sent.iter()
        .flatten()
        .for_each(|(.., leaving)| leaving.flush());
    let mut wait = |(engine, _call, leaving): SentRelease<'_>| {
        let until = late.unwrap_or_else(|| time::deadline(engine.shared.fanout.response_timeout));
        let result = leaving.wait(until);
        if matches!(result, Err(ReleaseError::NotConfirmed { .. })) && until <= time::tick() {
            *late = Some(until);
        }
        result.map(drop)
    };
    let results = sent
        .into_iter()
        .map(|sent| sent.and_then(&mut wait))
        .collect();
    // After the end of all of them: the shutdown waits for these calls.
    for (engine, _) in holds.iter().flatten() {
        engine.await_shutdown();
    }
    results
}
