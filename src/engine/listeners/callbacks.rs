//! Users' functions, called when a lock is lost: one after another, on one thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Lost;
use crate::sys::aside::Aside;
use crate::sys::logging::error;
use crate::sys::sync::{afterwards, is_anything_locked};

/// What a user wants to have called.
pub(crate) type Callback = Box<dyn FnOnce(Lost) + Send>;

/// The callbacks of one manager that are due. They may block, and may drop guards and the manager: so they run on a
/// thread of their own, which has nothing locked, and wait for no logger. No thread waits for it: at a shutdown, too, it calls
/// what is due.
pub(crate) struct Callbacks(Arc<Aside>);

impl Default for Callbacks {
    fn default() -> Callbacks {
        Callbacks(Arc::new(Aside::new(
            "quorlock-on-lost",
            usize::MAX,
            Duration::ZERO,
        )))
    }
}

impl Callbacks {
    /// Calls them all, in this order, behind those of earlier calls. Does not wait.
    pub(crate) fn call(&self, callbacks: Vec<Callback>, lost: Lost) {
        for callback in callbacks {
            if let Err(left) = self.0.run(Box::new(move || call(callback, lost))) {
                left.into_iter().for_each(afterwards);
            }
        }
    }
}

fn call(callback: Callback, lost: Lost) {
    debug_assert!(!is_anything_locked(), "a callback with something locked");
    if catch_unwind(AssertUnwindSafe(|| callback(lost))).is_err() {
        error!("an on_lost callback panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn callbacks_run_one_after_another_on_one_thread_and_a_panic_ends_none_of_the_others() {
        let callbacks = Callbacks::default();
        let (said, hear) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let first: Callback = Box::new(move |_| wait.recv_timeout(PATIENCE).unwrap());
        callbacks.call(vec![first], Lost::Gone);
        for number in 0..1_000 {
            let said = said.clone();
            let callback: Callback = Box::new(move |lost| {
                said.send((number, lost, std::thread::current().id()))
                    .unwrap();
                assert!(number % 2 == 0, "a callback that panics");
            });
            callbacks.call(vec![callback], Lost::Expired);
        }
        assert!(
            hear.try_recv().is_err(),
            "beside the first, which is not over"
        );

        go_on.send(()).unwrap();

        let heard: Vec<_> = (0..1_000)
            .map(|_| hear.recv_timeout(PATIENCE).unwrap())
            .collect();
        assert!(
            heard
                .iter()
                .enumerate()
                .all(|(i, it)| *it == (i, Lost::Expired, heard[0].2))
        );
    }
}
