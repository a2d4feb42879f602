//! Many guards, given back together.

use std::sync::Arc;

use crate::engine::{Call, Engine, HeldLock, Leaving};
use crate::error::{Lost, ReleaseError};
use crate::lock::guard::{self, LockGuard};
use crate::time::{self, Tick};

/// So many releases are under way at once: few enough for every node to answer them within a response timeout.
const AT_ONCE: usize = 256;

/// A guard of any kind, for [`release_all`]. This crate alone implements it.
pub trait Guard: GiveBack {}

impl<G: GiveBack> Guard for G {}

/// What [`release_all`] needs of a guard.
pub trait GiveBack {
    /// The hold that ends with this guard; how it went, if none does.
    fn give_back(self) -> Result<LockGuard, Result<(), ReleaseError>>;
}

impl GiveBack for LockGuard {
    fn give_back(self) -> Result<LockGuard, Result<(), ReleaseError>> {
        Ok(self)
    }
}

/// Releases many locks together, 256 at a time: thousands take a few round trips, and not one each as with one drop after
/// the other.
///
/// Takes guards of every kind, of one manager or of several. Of [reentrant](crate::ReentrantGuard) guards, the last one of a
/// hold releases the lock.
///
/// Blocks for one round trip for each 256 guards. It waits as long as releases are confirmed, and one
/// [response timeout](crate::Builder::response_timeout) after the last of them. Then all others are sent without a wait.
///
/// Returns the result of each guard, in order.
///
/// # Errors
///
/// Of each guard, as for [`LockGuard::release`]. Releases that are [not confirmed](ReleaseError::NotConfirmed) stay queued;
/// where one never arrives the key expires within one ttl.
///
/// # Panics
///
/// If the iterator does. The guards that it has not handed out are dropped, the others may be released already.
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
#[doc(alias = "unlock_all")]
#[doc(alias = "drop_all")]
#[doc(alias = "release_many")]
pub fn release_all<G: Guard>(guards: impl IntoIterator<Item = G>) -> Vec<Result<(), ReleaseError>> {
    let mut guards = guards.into_iter();
    let (mut results, mut late) = (Vec::new(), None);
    loop {
        let holds = guards.by_ref().take(AT_ONCE).map(|guard| guard.give_back()?.into_parts().map_err(Err));
        let holds: Vec<Hold> = holds.collect();
        if holds.is_empty() {
            return results;
        }
        results.extend(release(&holds, &mut late));
    }
}

/// One hold, or how the release of its guard went.
type Hold = Result<(Arc<Engine>, Arc<HeldLock>), Result<(), ReleaseError>>;
/// Its release under way.
type Sent<'a> = (&'a Engine, Call<'a>, Leaving<'a>);

/// Releases these. `late`: when the wait for an earlier one ended without an answer in time.
fn release(holds: &[Hold], late: &mut Option<Tick>) -> Vec<Result<(), ReleaseError>> {
    let sent: Vec<_> = holds.iter().map(|hold| send(hold.as_ref().map_err(Clone::clone)?)).collect();
    sent.iter().flatten().for_each(|(.., leaving)| leaving.wake());
    let mut wait = |(engine, _call, leaving): Sent<'_>| {
        let until = late.unwrap_or_else(|| time::deadline(engine.shared().fanout.response_timeout()));
        let result = guard::confirmed(engine, leaving.wait(until)?);
        if result.is_err() && until <= time::tick() {
            *late = Some(until);
        }
        result.map(drop)
    };
    sent.into_iter().map(|sent| sent.map_or_else(|result| result, &mut wait)).collect()
}

fn send((engine, lock): &(Arc<Engine>, Arc<HeldLock>)) -> Result<Sent<'_>, Result<(), ReleaseError>> {
    let lost = |lost: Lost| Err(lost.into());
    let call = engine.begin_release().ok_or_else(|| lost(Lost::ShutDown))?;
    let leaving = lock.begin_release().map_err(lost)?;
    Ok((engine, call, leaving))
}
