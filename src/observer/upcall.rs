//! The only place that calls an observer, and never with anything of ours locked.

use std::fmt;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::observer::event::{Event, Observer};
use crate::sys::aside;
use crate::sys::logging::error;
use crate::sys::sync::{AtomicBool, in_turn};

/// Tells the observer, if there is one. Without one it costs a look at a pointer.
#[derive(Clone, Default)]
pub(crate) struct Upcall(Option<Arc<Observed>>);

struct Observed {
    observer: Arc<dyn Observer>,
    /// It has panicked.
    off: AtomicBool,
}

// A panic of the observer is caught, and is its last call.
impl UnwindSafe for Upcall {}
impl RefUnwindSafe for Upcall {}

impl fmt::Debug for Upcall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Upcall(..)"
        } else {
            "Upcall(none)"
        })
    }
}

impl Upcall {
    pub(crate) fn to(observer: Arc<dyn Observer>) -> Upcall {
        Upcall(Some(Arc::new(Observed {
            observer,
            off: AtomicBool::new(false),
        })))
    }

    /// Tells it, as soon as this thread has nothing locked. The event is made only if there is an observer.
    #[inline]
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(observed) = &self.0 {
            let event = event();
            let observed = Arc::clone(observed);
            // Where what is a user's is done, and not inside the observer.
            aside::tell(move || in_turn(move || observed.call(&event)));
        }
    }
}

impl Observed {
    fn call(&self, event: &Event) {
        if self.off.load(Relaxed) {
            return;
        }
        // It may run in destructors that give locks back: those must not end by a panic of it.
        let panicked = catch_unwind(AssertUnwindSafe(|| self.observer.event(event))).is_err();
        if panicked && !self.off.swap(true, Relaxed) {
            error!("the observer panicked and is no longer called");
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(not(quorlock_shuttle))]
    use std::time::Duration;

    use super::*;
    use crate::ids::NodeId;
    #[cfg(not(quorlock_shuttle))]
    use crate::sys::aside::BackgroundQueue;
    use crate::sys::sync::{Mutex, is_anything_locked};
    #[cfg(not(quorlock_shuttle))]
    use crate::time;

    fn silent() -> Event {
        Event::NodeSilent {
            node: NodeId::new(0),
        }
    }

    #[test]
    fn h11_an_observer_is_called_when_everything_is_unlocked_and_in_order() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let upcall = Upcall::to(Arc::new(move |event: &Event| {
            assert!(!is_anything_locked());
            tells.lock().push(matches!(event, Event::NodeSilent { .. }));
        }));
        let ours = Mutex::new(());

        let locked = ours.lock();
        upcall.tell(silent);
        upcall.tell(|| Event::NodeAnswers {
            node: NodeId::new(0),
        });
        drop(locked);

        assert_eq!(*told.lock(), [true, false]);
    }

    #[test]
    fn an_observer_that_panics_is_not_called_again_and_ends_no_thread_of_ours() {
        let calls = Arc::new(Mutex::new(0));
        let counts = Arc::clone(&calls);
        let upcall = Upcall::to(Arc::new(move |_: &Event| {
            *counts.lock() += 1;
            panic!("an observer that panics");
        }));

        for _ in 0..3 {
            upcall.tell(silent);
        }

        assert_eq!(*calls.lock(), 1);
    }

    /// What an observer is told that causes one more event, three times. `tells` tells it of the first.
    fn caused_by_itself(tells: impl FnOnce(Upcall)) -> String {
        let told = Arc::new(Mutex::new(String::new()));
        let notes = Arc::clone(&told);
        let upcall = Arc::new(Mutex::new(Upcall::default()));
        let again = Arc::clone(&upcall);
        let observer = move |event: &Event| {
            let Event::NodeSilent { node } = event else {
                return;
            };
            notes.lock().push_str(&format!("({node}"));
            if node.index() < 3 {
                let upcall = again.lock().clone();
                upcall.tell(|| Event::NodeSilent {
                    node: NodeId::new([1, 2, 3][node.index()]),
                });
            }
            notes.lock().push(')');
        };
        *upcall.lock() = Upcall::to(Arc::new(observer));

        let first = upcall.lock().clone();
        tells(first);

        *upcall.lock() = Upcall::default();
        let told = told.lock();
        told.clone()
    }

    #[test]
    fn what_an_observer_causes_itself_is_told_after_it() {
        assert_eq!(caused_by_itself(|it| it.tell(silent)), "(n0)(n1)(n2)(n3)");
    }

    #[cfg(not(quorlock_shuttle))]
    #[test]
    fn what_an_observer_causes_itself_is_told_after_it_also_for_threads_of_ours() {
        let aside = Arc::new(BackgroundQueue::new("test", 8, Duration::ZERO));
        let runs = Arc::clone(&aside);
        let told = caused_by_itself(|it| {
            let _left =
                aside::leave_to(Some(Arc::new(move |work| assert!(runs.run(work).is_ok()))));
            it.tell(silent);
            aside.end(time::deadline(Duration::from_secs(30)));
        });
        assert_eq!(told, "(n0)(n1)(n2)(n3)");
    }

    #[test]
    fn no_event_is_made_for_nobody() {
        Upcall::default().tell(|| panic!("it was made"));
    }
}
