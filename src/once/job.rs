//! A job and its run: look, lock, look, work, record, release.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;

use crate::answer::Answer;
use crate::engine::nodes::fanout::Fanout;
use crate::engine::round::query;
use crate::engine::sleep;
use crate::error::{AcquireError, NodeAnswer, NodeReport, Rows};
use crate::ids::{FencingToken, OwnerToken};
use crate::inspection::LockState;
use crate::kinds::methods::{LockHandle, named, patience, setters, shown};
use crate::lock::LockGuard;
use crate::logic::quorum;
use crate::manager::LockManager;
use crate::once::rules::{
    Due, NodeReply, Plan, RunRecord, RunState, Verdict, jobs, judge, latest, median, micros, note,
    since_1970, system_time,
};
use crate::sys::logging::warn;
use crate::sys::sync::Mutex;
use crate::time::{self, Moment, Tick};
use crate::wire::{Command, LockCommands};

/// Wait for a lock that nobody seems to hold.
const CONTEST: Duration = Duration::from_millis(500);
/// Pause before a record is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// A job that runs once per period in the whole fleet, or work that is done once.
///
/// A cheap description, made by [`LockManager::once`](crate::LockManager::once). Choose what makes
/// two runs the same one:
///
/// | method | once per |
/// | --- | --- |
/// | [`every`](Job::every), [`at`](Job::at) | period, by the clocks of the nodes |
/// | [`fire_time`](Job::fire_time) | time of a scheduler |
/// | [`keep`](Job::keep), [`made_at`](Job::made_at) | name: an idempotency key |
///
/// Its lock is the [`mutex`](crate::LockManager::mutex) of that name.
#[derive(Clone)]
pub struct Job {
    inner: LockHandle,
    plan: Plan,
    at: Duration,
    made_at: Option<SystemTime>,
    wait: Duration,
    at_most_once: bool,
    failures_count: bool,
    when_unsure: WhenUnsure,
    again: bool,
}

/// What a call came to.
#[derive(Clone, Debug, Eq, PartialEq)]
#[must_use = "without a look nobody knows whether the job ran"]
pub enum Once<T> {
    /// The closure ran and succeeded. A majority of the nodes has its record.
    Ran(T),
    /// It has run in this period, or in a later one. The closure was not called.
    Done(RunRecord),
    /// Somebody holds the lock of the job, and is probably running it: the label of the holder, if
    /// it has one. The closure was not called.
    Running(Option<Arc<str>>),
}

/// What to do if nobody can know whether the job has run: [`Job::when_unsure`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WhenUnsure {
    /// Run it, perhaps for the second time, with a warning in the log.
    Run,
    /// Return [`OnceError::Unsure`].
    Refuse,
}

/// Why a job did not run, or ran and is not recorded. `T` and `E`: value and error of the closure.
///
/// The closure was called with [`Failed`](OnceError::Failed) and
/// [`NotRecorded`](OnceError::NotRecorded) only.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OnceError<T, E> {
    /// The lock was not acquired, or the description cannot be used.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// Too many nodes have lost their data since the period began: one that is gone may have had
    /// the record of a run. Only with [`at_most_once`](crate::once::Job::at_most_once) or
    /// [`WhenUnsure::Refuse`](crate::once::WhenUnsure::Refuse).
    #[error(
        "may have run: no majority has kept its data since the period began: {}",
        Rows(nodes)
    )]
    Unsure {
        /// What each node answered.
        nodes: Vec<NodeReport>,
    },
    /// An [`at_most_once`](crate::once::Job::at_most_once) run has begun and was broken off. Look
    /// what it has done; then run the job with [`again`](crate::once::Job::again), or leave it.
    #[error("a run was broken off: {0}; look what it has done, then run it again or leave it")]
    Abandoned(RunRecord),
    /// The last run had another kind of period. Use another name, or the same period in all
    /// programs.
    #[error("another program has another period: {0}; use another name")]
    OtherPeriod(RunRecord),
    /// The closure returned this error. It is recorded with
    /// [`failures_count`](crate::once::Job::failures_count) only.
    #[error("{0}")]
    Failed(E),
    /// The closure succeeded, and no majority has its record before the end of the lock: it may run
    /// again in this period.
    #[error(
        "it ran, and no majority has recorded it: {}; it may run again",
        Rows(nodes)
    )]
    NotRecorded {
        /// The value of the closure.
        value: T,
        /// What each node answered.
        nodes: Vec<NodeReport>,
    },
}

/// A run under way: the guard of its lock, and more.
#[derive(Debug)]
pub struct Run {
    guard: LockGuard,
    due: Due,
    /// About the time of `due`, on our clock.
    looked: Tick,
    note: Mutex<String>,
}

impl Deref for Run {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl Run {
    /// The fencing token of the run: larger than that of every earlier run. Does not block.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.fencing_token()
    }

    /// The number of the period: its begin since 1970 and [`at`](Job::at), divided by its length.
    /// Of a [`fire_time`](Job::fire_time) its milliseconds since 1970; 0 for [`keep`](Job::keep).
    /// Does not block.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.due.period
    }

    /// Sets the text that later callers find in the [record](RunRecord::note): up to 256 characters
    /// in one line; more is cut. Control characters become blanks. Does not block.
    pub fn note(&self, text: impl AsRef<str>) {
        *self.note.lock() = note(text.as_ref());
    }

    fn record(&self, state: RunState) -> RunRecord {
        let Due {
            period, kind, now, ..
        } = self.due;
        RunRecord {
            state,
            period,
            token: self.token(),
            began: system_time(now),
            at: system_time(now.saturating_add(micros(waited(self.looked)))),
            kind,
            by: self.guard.0.lock.spec.commands.label.0.to_string(),
            note: self.note.lock().clone(),
        }
    }
}

impl LockManager {
    /// Describes a job that runs once per period in the whole fleet, or work that is done once: see
    /// [`guide::once`](crate::guide::once). Does not block; contacts no node.
    ///
    /// Names are those of [mutexes](LockManager::mutex), and the job holds the mutex of its name
    /// while it runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use quorlock::Once;
    ///
    /// let hours = |it: u64| Duration::from_secs(it * 3_600);
    /// let report = locks.once("nightly-report").every(hours(24)).at(hours(3));
    /// match report.run(|run| std::io::Result::Ok(run.token()))? {
    ///     Once::Ran(token) => println!("written with token {token}"),
    ///     Once::Done(record) => println!("not again: {record}"),
    ///     Once::Running(_) => println!("another machine writes it"),
    /// }
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[must_use]
    #[doc(alias("idempotency", "schedule", "cron", "lock_at_least_for"))]
    pub fn once(&self, name: impl AsRef<[u8]>) -> Job {
        let mutex = |prefix: &_, ttls| LockCommands::mutex(prefix, name.as_ref(), ttls);
        Job {
            inner: LockHandle::new(&self.engine, name.as_ref(), mutex),
            plan: Plan::Keep(Duration::ZERO),
            at: Duration::ZERO,
            made_at: None,
            wait: Duration::ZERO,
            at_most_once: false,
            failures_count: false,
            when_unsure: WhenUnsure::Run,
            again: false,
        }
    }
}

named!(Job);
setters!(Job);
shown!(Job, name);

/// Options: the fields that each sets.
macro_rules! options {
    ($(
        $(#[$about:meta])*
        $name:ident($($arg:ident: $type:ty)?) $($field:ident = $value:expr),+;
    )*) => {
        impl Job {
            $($(#[$about])* #[must_use] pub fn $name(mut self, $($arg: $type)?) -> Job {
                $(self.$field = $value;)+
                self
            })*
        }
    };
}

options! {
    /// Once per period of this length. Periods are counted from 1970 in UTC, by the median of the
    /// nodes' clocks.
    ///
    /// A call up to a quarter of the period early, or half an hour if that is less, belongs to the
    /// next period: the clock of an instance may be ahead. At least 1 s.
    ///
    /// A name keeps its length: with another one the call is an [`OnceError::OtherPeriod`], until
    /// the last record has expired after two periods.
    every(length: Duration) plan = Plan::Every(length);

    /// Offset of the periods of [`every`](Job::every): the time of a daily job, in UTC. Below the
    /// length.
    ///
    /// Set it, even if the job is called at that time only: a period should begin just before its
    /// job. Servers that were restarted after its begin do not know what they have lost.
    ///
    /// Default: 0.
    at(offset: Duration) at = offset;

    /// Once per time of a scheduler, which all instances compute alike: for time zones and months.
    /// To the millisecond. Records live for a day; a call for an earlier time than that of the last
    /// record finds it done.
    fire_time(time: SystemTime) plan = Plan::FireTime(time);

    /// Once per name, for `life` after a run: an idempotency key. At least 1 s.
    keep(life: Duration) plan = Plan::Keep(life);

    /// When the order was made, for [`keep`](Job::keep): nobody ran it earlier. Without it servers
    /// must have kept their data for the whole `life` to be [sure](WhenUnsure). If it is longer ago
    /// than `life`, nobody is sure.
    made_at(time: SystemTime) made_at = Some(time);

    /// Whether to wait, without a limit, while another caller runs the job. Then the call returns
    /// [`Once::Done`], or runs it if that one has failed.
    ///
    /// Default: false.
    wait(wait: bool) wait = Duration::MAX.saturating_mul(wait.into());

    /// Waits for at most `timeout` while another caller runs the job. See [`wait`](Job::wait).
    wait_for(timeout: Duration) wait = timeout;

    /// Never runs it twice in a period. A majority has recorded the begin before the closure is
    /// called; a run that was broken off is [`OnceError::Abandoned`] for later callers, also one
    /// whose closure has returned an error. A person decides.
    ///
    /// Costs one round trip. If no majority records the begin, the call is
    /// [`AcquireError::NoQuorum`], and later ones may be [`OnceError::Abandoned`].
    at_most_once() at_most_once = true, when_unsure = WhenUnsure::Refuse;

    /// Runs the job although an earlier run was broken off: see [`OnceError::Abandoned`].
    ///
    /// Default: false.
    again(again: bool) again = again;

    /// Whether an error of the closure is recorded like a success, as [failed](RunState::Failed). A
    /// panic is not.
    ///
    /// Default: false: the next caller runs the job.
    failures_count(count: bool) failures_count = count;

    /// What to do if no majority of nodes has kept its data since before the period, so that nobody
    /// can know whether the job has run.
    ///
    /// Default: [`WhenUnsure::Run`]. [`at_most_once`](Job::at_most_once) sets
    /// [`WhenUnsure::Refuse`].
    when_unsure(when_unsure: WhenUnsure) when_unsure = when_unsure;
}

impl Job {
    /// The last record on any node, of any period. For people and health pages.
    ///
    /// Changes nothing. Blocks as [`Mutex::inspect`](crate::Mutex::inspect) does.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::inspect`](crate::Mutex::inspect); and [`AcquireError::NoQuorum`] if no
    /// majority answered.
    pub fn last_run(&self) -> Result<Option<RunRecord>, AcquireError> {
        self.inner.check()?;
        Ok(latest(&self.look(None)?.answers))
    }

    /// Calls `work` if the job has not run in this period, and records its success.
    ///
    /// If the job is done, the call blocks for one round trip and takes no lock. Otherwise it takes
    /// the lock as [`try_lock`](crate::Mutex::try_lock) does, or waits for it
    /// ([`wait`](Job::wait)), and blocks for three more round trips and for the time of `work`.
    /// Contenders that split the nodes delay it for one ttl at most. The lock is extended while
    /// `work` runs. It can be lost all the same, and the next caller runs the job, too: pass the
    /// [token](Run::token) to the storage, and [check](crate::Hold::check) between steps.
    ///
    /// If `work` returns an error or panics, nothing is recorded, and the next caller runs the job.
    ///
    /// # Errors
    ///
    /// [`OnceError`] has a row for each. A value of `work` without a record is in
    /// [`OnceError::NotRecorded`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::{Duration, SystemTime};
    /// use quorlock::{Once, OnceError};
    ///
    /// let (id, made_at) = (4711, SystemTime::now());
    /// let pay = || {
    ///     let job = locks.once(format!("payment:{id}"));
    ///     let payment = job.keep(Duration::from_secs(86_400)).made_at(made_at);
    ///     payment.wait(true).run(|run| {
    ///         run.note("receipt 12");
    ///         std::io::Result::Ok(12)
    ///     })
    /// };
    /// assert_eq!(pay()?, Once::Ran(12));
    /// let Once::Done(record) = pay()? else { panic!() };
    /// assert_eq!(record.note, "receipt 12");
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    pub fn run<T, E>(
        &self,
        work: impl FnOnce(&Run) -> Result<T, E>,
    ) -> Result<Once<T>, OnceError<T, E>> {
        self.plan.check()?;
        self.inner.check()?;
        // Without a majority the lock has the error.
        if let Ok(Seen {
            verdict: Verdict::Done(record),
            ..
        }) = self.look(None)
        {
            return Ok(Once::Done(record));
        }
        let guard = match self.take()? {
            Ok(guard) => guard,
            Err(by) => return Ok(Once::Running(by)),
        };
        // With a new time: the wait for the lock may have been long.
        let owner = Some(guard.0.lock.win.owner);
        let mut seen = self.look(owner)?;
        if seen.verdict == Verdict::Unsure {
            // Sets the lock on nodes without it. A failure shows with the next look.
            let _ = guard.extend(self.inner.spec.ttl());
            seen = self.look(owner)?;
        }
        let Seen { due, looked, .. } = seen;
        match seen.verdict {
            Verdict::Nothing => {}
            Verdict::Done(record) => return Ok(Once::Done(record)),
            Verdict::Begun(record) => return Err(OnceError::Abandoned(record)),
            Verdict::OtherPeriod(record) => return Err(OnceError::OtherPeriod(record)),
            Verdict::Unsure => {
                let nodes = self.report(seen.answers);
                if self.when_unsure == WhenUnsure::Refuse {
                    return Err(OnceError::Unsure { nodes });
                }
                warn!(
                    self.fanout().journal,
                    "{:?}: runs, perhaps again: no majority has kept its data since the period \
                     began: {}",
                    self.inner.spec.name,
                    Rows(&nodes)
                );
            }
        }
        let run = Run {
            guard,
            due,
            looked,
            note: Mutex::default(),
        };
        if self.at_most_once {
            self.record(&run, RunState::Begun)?;
        }
        let value = match work(&run) {
            Ok(value) => value,
            Err(error) => {
                if self.failures_count {
                    // Otherwise the next caller runs it.
                    let _ = self.record(&run, RunState::Failed);
                }
                return Err(OnceError::Failed(error));
            }
        };
        match self.record(&run, RunState::Done) {
            Ok(()) => Ok(Once::Ran(value)),
            Err(err) => Err(OnceError::NotRecorded {
                value,
                nodes: err.nodes().to_vec(),
            }),
        }
    }

    fn fanout(&self) -> &Fanout {
        &self.inner.engine.shared.fanout
    }

    /// Asks all nodes. Those that have lost their vote by now have no answer.
    fn ask(&self, command: Command) -> Result<Vec<NodeReply>, AcquireError> {
        self.inner.engine.operate(|shared| {
            let (fanout, asked) = (&shared.fanout, time::tick());
            let mut answers = query(fanout, command, None);
            for (node, failure) in fanout.look().quarantined_of(fanout.ids().collect(), asked) {
                if let Some(answer) = answers.get_mut(node.index()) {
                    *answer = Err(failure);
                }
            }
            answers
        })
    }

    /// Asks all nodes what is recorded, and whether `owner` holds the lock.
    fn look(&self, owner: Option<OwnerToken>) -> Result<Seen, AcquireError> {
        let (looked, commands) = (time::tick(), &self.inner.spec.commands);
        let answers = self.ask(commands.look(owner))?;
        let Some(time) = median(&answers, Moment::now().wall_micros()) else {
            return Err(self.no_quorum(answers, looked));
        };
        let due = self.plan.due(self.at, self.made_at, time);
        let verdict = judge(&due, &answers, self.again);
        if let Verdict::Done(record) = &verdict {
            let text = record.text();
            if jobs(&answers).any(|it| it.text != text) {
                // A record outlives its nodes, one after another. It is true, so it can only keep
                // others from a run.
                let age = time.saturating_sub(since_1970(record.at));
                let life = due.life.saturating_sub(age);
                let _ = self.ask(commands.record(None, &text, life));
            }
        }
        Ok(Seen {
            answers,
            due,
            looked,
            verdict,
        })
    }

    fn no_quorum(&self, answers: Vec<NodeReply>, since: Tick) -> AcquireError {
        AcquireError::NoQuorum {
            name: self.inner.spec.name.clone(),
            nodes: self.report(answers),
            waited: waited(since),
        }
    }

    fn report(&self, answers: Vec<NodeReply>) -> Vec<NodeReport> {
        let row = |it: NodeReply| it.map_or_else(NodeAnswer::Failed, |it| NodeAnswer::from(&it));
        self.fanout().report(answers.into_iter().map(row).collect())
    }

    /// The guard; or the label of the holder. A refused call alone does not show that there is one:
    /// contenders may have split the nodes, and would all leave the job to another. Then they wait
    /// for their turn.
    fn take(&self) -> Result<Result<LockGuard, Option<Arc<str>>>, AcquireError> {
        let (began, mut wait) = (time::tick(), self.wait);
        loop {
            match self.inner.take(patience(wait)) {
                Err(err) if err.is_held() => {
                    if let LockState::Held { holder, .. } = self.inner.inspect()?.state() {
                        return Ok(Err(holder));
                    }
                    // Keys of a crashed program are gone by then.
                    if self.wait.saturating_add(self.inner.spec.ttl()) < waited(began) {
                        return Err(err);
                    }
                    wait = CONTEST;
                }
                result => return result.map(Ok),
            }
        }
    }

    /// Records the run on a majority, within the time of its lock.
    fn record(&self, run: &Run, state: RunState) -> Result<(), AcquireError> {
        let began = time::tick();
        let text = run.record(state).text();
        let owner = Some(run.guard.0.lock.win.owner);
        loop {
            let command = self.inner.spec.commands.record(owner, &text, run.due.life);
            let answers = self.ask(command)?;
            let has = |it: &&NodeReply| **it == Ok(Answer::Noted(true));
            let is_recorded = quorum(answers.len()) <= answers.iter().filter(has).count();
            // RACE: T1, this call, is paused, and its lock ends; T2 runs the job; a late grant of
            // T1 comes in where T2 has released. Therefore only a record within the lease counts:
            // until then T2 has no lock.
            if run.check().is_err() {
                return Err(self.no_quorum(answers, began));
            }
            if is_recorded {
                return Ok(());
            }
            // Sets the lock on nodes without it.
            let _ = run.extend(self.inner.spec.ttl());
            sleep(time::deadline(PAUSE), &[&self.inner.engine.shutdown]);
        }
    }
}

/// The answers of all nodes.
struct Seen {
    answers: Vec<NodeReply>,
    due: Due,
    looked: Tick,
    verdict: Verdict,
}

fn waited(began: Tick) -> Duration {
    time::tick().saturating_duration_since(began)
}
