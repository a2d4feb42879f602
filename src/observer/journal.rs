//! The account of what happens: counters, log lines and events.
//!
//! Every thread counts at once. Lines and events go to the thread `quorlock-events` in the order in
//! which they happened. That thread alone calls the logger and the observer: a slow, blocking or
//! panicking one costs lines and events, and nothing else.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::{NodeFailure, RoundLoss};
use crate::observer::event::{Event, Observer};
use crate::stats::{Counters, count};
use crate::sys::OwnThread;
use crate::sys::background::BackgroundQueue;
use crate::sys::logging::{self, Level, SourceLocation, error};
use crate::sys::sync::AtomicBool;

/// Most lines and events that wait for the thread; further ones are dropped.
const QUEUED_MAX: usize = 16 * 1024;

/// See the module. One per manager.
pub(crate) struct Journal {
    pub(crate) counters: Counters,
    observer: Option<Arc<UserObserver>>,
    queue: BackgroundQueue,
}

impl Journal {
    /// Starts the thread.
    pub(crate) fn start(observer: Option<Arc<UserObserver>>) -> io::Result<Arc<Journal>> {
        Ok(Arc::new(Journal {
            counters: Counters::default(),
            observer,
            queue: BackgroundQueue::start("quorlock-events")?,
        }))
    }

    /// Counts the event, and queues it for the observer. Does not block.
    pub(crate) fn record(&self, event: Event) {
        if let Some(counter) = self.counter(&event) {
            count(counter);
        }
        self.observe(|| event);
    }

    /// The same for an event without a counter, which is made only if there is an observer.
    pub(crate) fn observe(&self, event: impl FnOnce() -> Event) {
        if let Some(observer) = &self.observer {
            let observer = Arc::clone(observer);
            let event = event();
            self.queue(move || observer.call(&event));
        }
    }

    fn counter(&self, event: &Event) -> Option<&AtomicU64> {
        let counters = &self.counters;
        Some(match event {
            Event::Round { outcome, .. } => match outcome {
                Ok(()) => &counters.rounds_won,
                Err(RoundLoss::Held | RoundLoss::Overtaken | RoundLoss::KeyInUse) => {
                    &counters.rounds_held
                }
                Err(RoundLoss::NoQuorum) => &counters.rounds_without_quorum,
                Err(RoundLoss::TooLate) => &counters.rounds_too_late,
            },
            Event::Released {
                confirmed: true, ..
            } => &counters.releases,
            Event::Released { .. } => &counters.releases_unconfirmed,
            Event::Lost { .. } => &counters.locks_lost,
            Event::Extended { .. } => &counters.extensions,
            Event::NotExtended { .. } => &counters.extensions_failed,
            Event::Healed { .. } => &counters.healed,
            Event::NodeUp { .. } => &counters.connections,
            Event::NodeDown { why, .. } if *why != NodeFailure::ShutDown => {
                &counters.connection_failures
            }
            _ => return None,
        })
    }

    /// Queues a line for the logger. Does not block.
    pub(crate) fn log(&self, level: Level, location: SourceLocation, text: String) {
        self.queue(move || logging::write(level, location, &text));
    }

    /// Queues a user's callback that has no thread of its own. Does not block.
    pub(crate) fn run(&self, callback: impl FnOnce() + Send + 'static) {
        self.queue.run(usize::MAX, callback);
    }

    fn queue(&self, work: impl FnOnce() + Send + 'static) {
        if !self.queue.run(QUEUED_MAX, work) {
            count(&self.counters.dropped_events);
        }
    }

    /// Ends the thread behind the queued lines and events, and returns it for a join. Later ones
    /// are dropped.
    pub(crate) fn close(&self) -> Option<OwnThread> {
        self.queue.close()
    }
}

/// The user's observer.
pub(crate) struct UserObserver {
    observer: Box<dyn Observer>,
    /// A panic of the observer was its last call.
    has_panicked: AtomicBool,
}

impl UnwindSafe for UserObserver {}
impl RefUnwindSafe for UserObserver {}

impl fmt::Debug for UserObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer(..)")
    }
}

impl UserObserver {
    pub(crate) fn new(observer: impl Observer + 'static) -> Arc<UserObserver> {
        Arc::new(UserObserver {
            observer: Box::new(observer),
            has_panicked: AtomicBool::new(false),
        })
    }

    fn call(&self, event: &Event) {
        if self.has_panicked.load(Relaxed) {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| self.observer.event(event))).is_err() {
            self.has_panicked.store(true, Relaxed);
            error!(self, "the observer panicked and is no longer called");
        }
    }

    /// This is the thread that calls the logger.
    fn log(&self, level: Level, location: SourceLocation, text: String) {
        logging::write(level, location, &text);
    }
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use std::sync::{Mutex, OnceLock, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::ids::NodeId;
    use crate::time;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn silent(node: u8) -> Event {
        Event::NodeSilent {
            node: NodeId::new(node),
        }
    }

    fn end(journal: &Journal) {
        let thread = journal.close().unwrap();
        let joined = thread.join_until(time::deadline(PATIENCE));
        joined.expect("the thread has ended").unwrap();
    }

    #[test]
    fn a_panicking_observer_is_not_called_again_and_ends_no_thread() {
        let calls = Arc::new(Mutex::new(0));
        let counts = Arc::clone(&calls);
        let journal = Journal::start(Some(UserObserver::new(move |_: &Event| {
            *counts.lock().unwrap_or_else(|it| it.into_inner()) += 1;
            panic!("a panicking observer");
        })))
        .unwrap();

        (0..3).for_each(|node| journal.record(silent(node)));
        end(&journal);

        assert_eq!(*calls.lock().unwrap_or_else(|it| it.into_inner()), 1);
    }

    #[test]
    fn no_event_is_built_without_an_observer() {
        let journal = Journal::start(None).unwrap();
        journal.observe(|| panic!("it was made"));
        end(&journal);
    }

    #[test]
    fn h11_events_that_an_observer_causes_come_after_it_returns() {
        let place = Arc::new(OnceLock::<Arc<Journal>>::new());
        let own = Arc::clone(&place);
        let (sender, receiver) = mpsc::channel();
        let observer = UserObserver::new(move |event: &Event| {
            let Event::NodeSilent { node } = event else {
                return;
            };
            sender.send(format!("({node}")).unwrap();
            if node.index() < 2 {
                own.get().unwrap().record(silent([1, 2][node.index()]));
            }
            sender.send(")".to_owned()).unwrap();
        });
        let journal = place.get_or_init(|| Journal::start(Some(observer)).unwrap());

        journal.record(silent(0));

        let told: String = (0..6)
            .map(|_| receiver.recv_timeout(PATIENCE).unwrap())
            .collect();
        assert_eq!(told, "(n0)(n1)(n2)");
        end(journal);
    }
}
