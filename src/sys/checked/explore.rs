//! Which task runs next, and when time passes.

use std::cell::Cell;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use super::clock::{reset_clock, run_clock, stop_clock};
use super::socket::reset_net;

/// The clock is the first task that a run starts.
const CLOCK: usize = 1;
const SEED: u64 = 0x5eed;
/// More steps than any run needs: one that takes them turns in a circle.
const STEPS_MAX: usize = 200_000;

thread_local! {
    static HASTE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From here on time passes at one in `haste` steps, whatever else could run. With `None`, as at
/// the beginning of a run, it passes only while everybody sleeps: then nothing is late, and a
/// wake-up that was lost shows as time that has passed.
pub(crate) fn set_haste(haste: Option<u64>) {
    HASTE.set(haste);
}

/// Runs `body` under many schedules. Half of them are random at every step; the other half follow
/// random priorities that change twice, which finds what needs one thread to be slow for long.
///
/// The same schedules every time. `SHUTTLE_RANDOM_SEED=n` tries others, `QUORLOCK_SCHEDULES=n` n
/// times as many.
pub(crate) fn check(schedules: usize, body: impl Fn() + Clone + Send + Sync + 'static) {
    let times: f64 = std::env::var("QUORLOCK_SCHEDULES")
        .ok()
        .and_then(|it| it.parse().ok())
        .unwrap_or(1.0);
    let half = (schedules as f64 * times / 2.0) as usize;
    run(
        Patient::new(RandomScheduler::new_from_seed(SEED, half)),
        body.clone(),
    );
    run(
        Patient::new(PctScheduler::new_from_seed(SEED, 3, half)),
        body,
    );
}

fn run(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || {
        reset_clock();
        reset_net();
        set_haste(None);
        fastrand::seed(SEED);
        let clock = shuttle::thread::Builder::new()
            .name("clock".to_owned())
            .spawn(run_clock)
            .unwrap();
        body();
        stop_clock();
        clock.join().unwrap();
    });
}

/// Lets the clock wait for the others.
struct Patient<S> {
    inner: S,
    random: fastrand::Rng,
}

impl<S> Patient<S> {
    fn new(inner: S) -> Patient<S> {
        Patient {
            inner,
            random: fastrand::Rng::with_seed(SEED),
        }
    }
}

impl<S: Scheduler> Scheduler for Patient<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        let schedule = self.inner.new_execution()?;
        self.random = fastrand::Rng::with_seed(schedule.seed);
        Some(schedule)
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let is_clock = |it: &&Task| it.id() == TaskId::from(CLOCK);
        let hasty = HASTE.get().is_some_and(|it| self.random.u64(..it) == 0);
        match runnable.iter().copied().find(is_clock) {
            Some(clock) if hasty || runnable.len() == 1 => Some(clock.id()),
            Some(_) => {
                let others: Vec<&Task> = runnable
                    .iter()
                    .copied()
                    .filter(|it| !is_clock(it))
                    .collect();
                self.inner.next_task(&others, current, is_yielding)
            }
            None => self.inner.next_task(runnable, current, is_yielding),
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.inner.next_u64()
    }
}
