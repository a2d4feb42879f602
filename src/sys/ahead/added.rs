//! What is added, and who is told.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
#[cfg(not(quorlock_shuttle))]
use std::thread_local;
use std::time::Duration;

#[cfg(quorlock_shuttle)]
use shuttle::thread_local;

/// More is never added in all, in nanoseconds: a hundred years. Fencing tokens are times, and nodes count in doubles.
const MAX: u64 = 100 * 366 * 86_400 * 1_000_000_000;

/// By how much the time of some managers, and of their nodes, is ahead of the clocks. It only grows.
#[derive(Clone, Default)]
pub(crate) struct Ahead(Arc<Shared>);

#[derive(Default)]
struct Shared {
    nanos: AtomicU64,
    managers: Mutex<Vec<Weak<dyn OnAdvance>>>,
    /// How many rounds are under way.
    rounds: Mutex<usize>,
    none_is: Condvar,
}

/// Who has to know that time was added.
pub(crate) trait OnAdvance: Send + Sync {
    /// So much was added just now.
    fn on_advance(&self, by: Duration);

    /// All that has become due by that has been done.
    fn is_settled(&self) -> bool;
}

thread_local! {
    static HERE: RefCell<Option<Ahead>> = const { RefCell::new(None) };
}

/// For what manager the calling thread works.
pub(crate) fn here() -> Ahead {
    HERE.try_with(|it| it.borrow().clone()).ok().flatten().unwrap_or_default()
}

/// By how much the calling thread is ahead.
pub(crate) fn added() -> Duration {
    HERE.try_with(|it| it.borrow().as_ref().map(Ahead::by)).ok().flatten().unwrap_or_default()
}

/// The thread works for a manager until this is dropped, and then for whom it did before.
#[must_use]
pub(crate) struct Entered {
    before: Option<Ahead>,
    /// It is that thread's.
    _here: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = HERE.try_with(|it| *it.borrow_mut() = self.before.take());
    }
}

/// A round is under way while this lives, so nothing is added: it would look as if the nodes had taken that long to answer.
pub(crate) struct UnderWay(Option<Ahead>);

impl UnderWay {
    pub(crate) fn begin() -> UnderWay {
        let here = HERE.try_with(|it| it.borrow().clone()).ok().flatten();
        if let Some(ahead) = &here {
            let mut rounds = lock(&ahead.0.rounds);
            *rounds = rounds.saturating_add(1);
        }
        UnderWay(here)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(ahead) = &self.0 else { return };
        let mut rounds = lock(&ahead.0.rounds);
        *rounds = rounds.saturating_sub(1);
        if *rounds == 0 {
            ahead.0.none_is.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ahead {
    pub(crate) fn by(&self) -> Duration {
        Duration::from_nanos(self.0.nanos.load(Ordering::SeqCst))
    }

    /// Lets the calling thread work for managers that are ahead by this.
    pub(crate) fn enter(&self) -> Entered {
        let before = HERE.try_with(|it| it.borrow_mut().replace(self.clone())).ok().flatten();
        Entered { before, _here: PhantomData }
    }

    /// Lets a manager know of whatever is added.
    pub(crate) fn tell(&self, manager: Weak<dyn OnAdvance>) {
        lock(&self.0.managers).push(manager);
    }

    /// Adds to it between two rounds, if there is such a time within `wait`. Returns the managers, which have to be told.
    pub(crate) fn add(&self, by: Duration, wait: Duration) -> Vec<Arc<dyn OnAdvance>> {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |it: u64| Some(it.saturating_add(by).min(MAX));
        {
            // RACE: with the rounds locked: one that begins now knows what was added.
            let _rounds = self.0.none_is.wait_timeout_while(lock(&self.0.rounds), wait, |it| *it != 0);
            let _ = self.0.nanos.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        }
        let mut managers = lock(&self.0.managers);
        managers.retain(|it| it.strong_count() != 0);
        managers.iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ahead").field(&self.by()).finish()
    }
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests start threads themselves")]

    use super::*;

    const S: Duration = Duration::from_secs(1);
    const NO: Duration = Duration::ZERO;

    #[test]
    fn a_thread_is_ahead_while_it_works_for_a_manager_and_by_what_that_one_is() {
        let (one, other) = (Ahead::default(), Ahead::default());
        one.add(5 * S, NO);
        assert_eq!(added(), Duration::ZERO);
        {
            let _one = one.enter();
            assert_eq!(added(), 5 * S);
            {
                let _other = other.enter();
                assert_eq!(added(), Duration::ZERO);
                other.add(S, NO);
                assert_eq!((added(), here().by()), (S, S));
            }
            one.add(S, NO);
            assert_eq!(added(), 6 * S);
        }
        assert_eq!(added(), Duration::ZERO);
        one.add(Duration::MAX, NO);
        assert_eq!(one.by(), Duration::from_nanos(MAX), "and no more");
    }

    #[test]
    fn nothing_is_added_while_a_round_is_under_way_unless_that_takes_too_long() {
        let ahead = Ahead::default();
        let _ahead = ahead.enter();
        let rounds = (UnderWay::begin(), UnderWay::begin());
        ahead.add(S, NO);
        assert_eq!(added(), S);
        let theirs = ahead.clone();
        let adds = std::thread::spawn(move || theirs.add(S, Duration::MAX).len());
        drop(rounds.0);
        // It waits, or is about to.
        assert_eq!(added(), S);
        drop(rounds.1);
        assert_eq!(adds.join().unwrap(), 0);
        assert_eq!(added(), 2 * S);
    }
}
