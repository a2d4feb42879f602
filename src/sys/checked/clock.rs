//! Time that passes only when the clock's task is scheduled, and threads that sleep.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::OnceLock;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use shuttle::future::block_on;

/// One per run: all tasks of a run share one thread of the system.
#[derive(Default)]
struct Clock {
    now: Duration,
    /// For how long the machine has been suspended.
    suspended: Duration,
    /// Who wants to be woken when, and a number to tell them apart.
    timers: BTreeMap<(Duration, u64), Arc<Sleeper>>,
    next: u64,
    stopped: bool,
    idle: Option<Waker>,
}

thread_local! {
    static CLOCK: RefCell<Clock> = RefCell::default();
}

/// A place where the checker may let another task run.
pub(crate) fn point() {
    if !std::thread::panicking() {
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// A point in time for waiting and for time-outs.
pub(crate) type Tick = Instant;

pub(crate) fn tick() -> Tick {
    start() + now()
}

/// How far into the run `at` is.
pub(super) fn since_start(at: Tick) -> Duration {
    at.saturating_duration_since(start())
}

fn start() -> Tick {
    static START: OnceLock<Tick> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

pub(crate) fn boot_clock() -> Duration {
    Duration::from_secs(1_000) + now_with_suspend()
}

/// A year of sense, so that fencing proposals are whole numbers of the usual size.
pub(crate) fn wall_clock() -> Duration {
    Duration::from_secs(1_800_000_000) + now_with_suspend()
}

/// Since the beginning of the run.
pub(crate) fn now() -> Duration {
    CLOCK.with_borrow(|it| it.now)
}

/// Suspends the machine: for so long clocks go on that go on in suspend, and nobody runs.
pub(crate) fn suspend(by: Duration) {
    point();
    CLOCK.with_borrow_mut(|it| it.suspended += by);
}

/// Since the beginning of the run, with the time in suspend.
pub(crate) fn now_with_suspend() -> Duration {
    CLOCK.with_borrow(|it| it.now + it.suspended)
}

pub(crate) fn reset_clock() {
    CLOCK.take();
}

/// The clock's task: goes on to the first time at which somebody wants to be woken. When it is
/// scheduled is up to the scheduler.
pub(crate) fn run_clock() {
    loop {
        block_on(poll_fn(|cx| {
            CLOCK.with_borrow_mut(|it| {
                if it.stopped || !it.timers.is_empty() {
                    return Poll::Ready(());
                }
                it.idle = Some(cx.waker().clone());
                Poll::Pending
            })
        }));
        point();
        let due = CLOCK.with_borrow_mut(|it| {
            if it.stopped {
                return None;
            }
            let Some(((at, _), _)) = it.timers.first_key_value() else {
                return Some(Vec::new());
            };
            it.now = it.now.max(*at);
            let rest = it.timers.split_off(&(it.now, u64::MAX));
            Some(
                std::mem::replace(&mut it.timers, rest)
                    .into_values()
                    .collect(),
            )
        });
        let Some(due) = due else { return };
        due.iter().for_each(|it| it.look());
    }
}

pub(crate) fn stop_clock() {
    let idle = CLOCK.with_borrow_mut(|it| {
        it.stopped = true;
        it.idle.take()
    });
    idle.into_iter().for_each(Waker::wake);
}

/// One thread's sleep.
#[derive(Default)]
pub(crate) struct Sleeper {
    state: Mutex<SleeperState>,
}

#[derive(Default)]
struct SleeperState {
    woken: bool,
    waker: Option<Waker>,
}

impl Sleeper {
    pub(crate) fn new() -> Arc<Sleeper> {
        Arc::default()
    }

    /// Ends the sleep. No place for the checker: those who call this have one of their own.
    pub(crate) fn wake(&self) {
        self.state.lock().unwrap().woken = true;
        self.look();
    }

    /// Lets the thread look at the clock again.
    fn look(&self) {
        let waker = self.state.lock().unwrap().waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Sleeps until somebody wakes the thread, or until `deadline`: false then.
    pub(crate) fn sleep(self: &Arc<Self>, deadline: Option<Duration>) -> bool {
        let timer = deadline.map(|at| {
            CLOCK.with_borrow_mut(|it| {
                it.next += 1;
                it.timers.insert((at, it.next), Arc::clone(self));
                it.idle.take().into_iter().for_each(Waker::wake);
                (at, it.next)
            })
        });
        let woken = block_on(poll_fn(|cx| {
            let mut state = self.state.lock().unwrap();
            if state.woken || deadline.is_some_and(|it| it <= now()) {
                return Poll::Ready(state.woken);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        }));
        if let Some(timer) = timer {
            CLOCK.with_borrow_mut(|it| it.timers.remove(&timer));
        }
        woken
    }
}
