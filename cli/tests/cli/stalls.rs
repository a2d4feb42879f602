//! A machine that stands still, and tests that count on one that runs.
//!
//! A lock that nobody extends in time is lost, and a process that is to end another one has to run for that. So the tests of
//! losses, with their short ttls, prove something only if no process has to wait for its turn for long: a test that fails
//! while one had to is made once more.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use crate::run::boot_clock;
use crate::support::TestResult;

/// As long as the turn of `quorlock run` before it is the guardian's: whoever runs that late may be too late.
const STALL: Duration = Duration::from_millis(100);

const LOOK: Duration = Duration::from_millis(5);

/// More often a machine does not stand still while the same test runs.
const ATTEMPTS: u32 = 10;

/// Makes a test, once more if it failed and the machine stood still meanwhile.
pub(crate) fn on_a_machine_that_runs(test: impl Fn() -> TestResult) -> TestResult {
    attempts(test, Watch::start, Watch::longest)
}

fn attempts<W>(
    test: impl Fn() -> TestResult,
    watch: fn() -> W,
    longest: fn(W) -> Duration,
) -> TestResult {
    for attempt in 1.. {
        let watching = watch();
        let done = catch_unwind(AssertUnwindSafe(&test));
        let stall = longest(watching);
        match done {
            Ok(Ok(())) => break,
            failed if stall < STALL || attempt == ATTEMPTS => {
                return failed.unwrap_or_else(|panic| resume_unwind(panic));
            }
            _ => eprintln!("the machine stood still for {stall:?}: once more"),
        }
    }
    Ok(())
}

/// A thread that wants to run all the while, as the processes of the tests do.
struct Watch {
    end: Sender<()>,
    thread: JoinHandle<f64>,
}

impl Watch {
    fn start() -> Watch {
        let (end, ended) = channel::<()>();
        let thread = spawn(move || {
            let (mut last, mut longest) = (boot_clock(), 0.0);
            // Once at least, however late it runs.
            loop {
                sleep(LOOK);
                let now = boot_clock();
                longest = f64::max(longest, now - last);
                last = now;
                if ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                    return longest;
                }
            }
        });
        Watch { end, thread }
    }

    /// How long it did not run.
    fn longest(self) -> Duration {
        drop(self.end);
        Duration::from_secs_f64(self.thread.join().unwrap())
    }
}

#[test]
fn a_test_that_fails_is_made_once_more_only_if_the_machine_stood_still() -> TestResult {
    use std::cell::Cell;
    let failing = |times: u32| {
        let made = Cell::new(0);
        move || {
            made.set(made.get() + 1);
            if made.get() <= times {
                Err(format!("the {}th", made.get()).into())
            } else {
                Ok(())
            }
        }
    };
    let text = |it: TestResult| it.unwrap_err().to_string();
    let (still, runs) = (|()| STALL, |()| STALL - LOOK);
    attempts(failing(3), || (), still)?;
    assert_eq!(text(attempts(failing(1), || (), runs)), "the 1th");
    assert_eq!(
        text(attempts(failing(u32::MAX), || (), still)),
        format!("the {ATTEMPTS}th")
    );
    let panics = || attempts(|| panic!("as asserted"), || (), runs);
    assert!(catch_unwind(panics).is_err());

    assert!(LOOK <= Watch::start().longest());
    Ok(())
}
