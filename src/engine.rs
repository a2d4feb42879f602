//! Threads, channels and shared state: the only place that has any.
//!
//! ARCHITECTURE.md has a row for each part.

pub(crate) mod admission;
pub(crate) mod call;
pub(crate) mod health;
pub(crate) mod held;
mod inspect;
pub(crate) mod listeners;
pub(crate) mod nodes;
pub(crate) mod park;
pub(crate) mod process;
pub(crate) mod queue;
mod renewal;
pub(crate) mod round;
pub(crate) mod schedule;
pub(crate) mod shared;
pub(crate) mod spec;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::error::AcquireError;
use crate::ids::ClientId;
use crate::logic::outage::Outage;
use crate::logic::pause;
use crate::observer::Journal;
use crate::time::{self, Tick};

pub(crate) use crate::engine::admission::{RoundTicket, Waiting};
pub(crate) use crate::engine::call::{CallInner, WaitLimit, draw_owner};
pub(crate) use crate::engine::held::{HoldInner, Won};
pub use crate::engine::listeners::LostReceiver;
pub use crate::engine::park::CancelHandle;
pub(crate) use crate::engine::park::{Signal, Watching, sleep};
pub(crate) use crate::engine::process::Process;
pub(crate) use crate::engine::round::Pending;
pub(crate) use crate::engine::shared::ManagerState;
pub(crate) use crate::engine::spec::LockSpec;

pub(crate) use crate::engine::nodes::primary::{NodeAddress, OVERLAP};

use crate::engine::listeners::Callbacks;
use crate::engine::nodes::fanout::Fanout;
pub(crate) use crate::engine::nodes::fanout::{Broadcast, Look};
use crate::engine::queue::Queues;
use crate::engine::schedule::Schedule;
use crate::engine::shared::NodeEventHandler;
use crate::sys::OwnThread;
use crate::sys::logging::{error, warn};
use crate::sys::sync::{AtomicBool, AtomicU64, Condvar, Mutex};

/// Time for the last write of a worker, after the deadline of a shutdown.
const LAST_WRITE: Duration = Duration::from_millis(50);

/// A running manager: its threads and their shared state. Ends with the last handle or guard.
pub(crate) struct Engine {
    pub(crate) shared: Arc<ManagerState>,
    /// Given at shutdown. Wakes all waiting calls.
    pub(crate) shutdown: Signal,
    calls: Mutex<Calls>,
    /// Notified when the last call under way or the shutdown has ended.
    ended: Condvar,
}

/// Acquisitions and releases under way. The workers end after them.
struct Calls {
    under_way: usize,
    /// The threads of all nodes, then those of watchers and the renewal. Taken by the first
    /// shutdown.
    threads: Option<Vec<OwnThread>>,
    /// Latest end of the shutdown, once begun. No call begins any more, and the shutdown alone
    /// releases the held locks.
    over_at: Option<Tick>,
    is_over: bool,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("nodes", &self.shared.fanout.nodes.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts the threads. Touches no network.
    pub(crate) fn start(config: Config, addresses: Vec<NodeAddress>) -> io::Result<Engine> {
        let client = ClientId::draw().map_err(io::Error::other)?;
        let journal = Journal::start(config.observer.clone())?;
        let queues = Arc::new(Queues::new(client, Arc::clone(&journal)));
        let schedule = Arc::new(Schedule::default());
        let events = Arc::new(NodeEventHandler {
            queues: Arc::clone(&queues),
            schedule: Arc::clone(&schedule),
        });
        let (fanout, mut threads) =
            Fanout::start(addresses, &config, Arc::clone(&journal), client, events)
                // No thread stays behind.
                .inspect_err(|_| drop(journal.close()))?;
        let shared = Arc::new(ManagerState {
            outage: Mutex::new(Outage::new(pause::longest_pause(config.retry_max))),
            admission: Arc::default(),
            next_lock: AtomicU64::new(0),
            logged_quarantine: AtomicBool::new(false),
            callbacks: Callbacks::new(journal),
            process: Process::this(),
            config,
            fanout,
            schedule,
            queues,
        });
        let for_renewal = Arc::clone(&shared);
        let renewal = OwnThread::spawn("quorlock-renewal".to_owned(), move || {
            renewal::run(&for_renewal)
        });
        threads.push(renewal.inspect_err(|_| {
            shared.fanout.stop(time::tick());
            shared.fanout.journal.close();
        })?);
        let calls = Calls {
            under_way: 0,
            threads: Some(threads),
            over_at: None,
            is_over: false,
        };
        Ok(Engine {
            shared,
            shutdown: Signal::default(),
            calls: Mutex::new(calls),
            ended: Condvar::default(),
        })
    }

    /// Runs `work` while holding off the end of the workers. An error after the begin of a
    /// shutdown, and in a forked child, which has no threads for it.
    pub(crate) fn operate<T>(
        &self,
        work: impl FnOnce(&Arc<ManagerState>) -> T,
    ) -> Result<T, AcquireError> {
        // Before anything is locked: see `Process`.
        if self.shared.process.is_forked() {
            return Err(AcquireError::Forked);
        }
        self.count(|| work(&self.shared))
            .ok_or(AcquireError::ShutDown)
    }

    /// Runs `work` as a call under way. `None` after the begin of a shutdown. Waits for the
    /// releases of a shutdown that begins during `work`: the process may end with this call.
    pub(crate) fn count<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let result = self.begin().map(|_call| work());
        self.await_releases();
        result
    }

    /// Counts a call while the result lives.
    fn begin(&self) -> Option<Operation<'_>> {
        let mut calls = self.calls.lock();
        // RACE: T1 begins a call; T2 begins a shutdown. Both use the locked count; therefore T2
        // waits for T1, or T1 ends here.
        if calls.over_at.is_some() {
            return None;
        }
        calls.under_way = calls.under_way.saturating_add(1);
        Some(Operation { engine: self })
    }

    /// Waits for the releases of a shutdown, within its time. A call under way must not call this.
    pub(crate) fn await_shutdown(&self) {
        // Before anything is locked: see `Process`.
        if !self.shared.process.is_forked() {
            self.await_releases();
        }
    }

    /// The same in the process of the manager.
    fn await_releases(&self) {
        let mut calls = self.calls.lock();
        if let Some(over_at) = calls.over_at {
            while !calls.is_over && self.ended.wait(&mut calls, Some(over_at)) {}
        }
    }

    /// Ends everything within `grace`. Held locks are lost and released, waiting calls return,
    /// queued commands are sent and threads are joined. Then the losses are announced.
    pub(crate) fn shutdown(&self, grace: Duration) {
        if self.shared.process.is_forked() {
            // The threads are the parent's.
            return;
        }
        let deadline = time::deadline(grace);
        let over_at = deadline.checked_add(LAST_WRITE).unwrap_or(deadline);
        let threads = {
            let mut calls = self.calls.lock();
            calls.over_at.get_or_insert(over_at);
            calls.threads.take()
        };
        let Some(threads) = threads else {
            return self.await_shutdown();
        };
        self.shutdown.give();
        let ManagerState {
            schedule, fanout, ..
        } = &*self.shared;
        let losses = schedule.stop();
        fanout.flush(fanout.ids().collect());
        // Acquisitions end their rounds and give won locks back. Releases end their rounds.
        let mut calls = self.calls.lock();
        while calls.under_way != 0 && self.ended.wait(&mut calls, Some(deadline)) {}
        drop(calls);
        fanout.stop(deadline);
        let mut threads = threads.into_iter();
        let workers = threads.by_ref().take(fanout.nodes.len());
        workers.for_each(|it| self.join(it, over_at));
        self.calls.lock().is_over = true;
        self.ended.notify_all();
        // Last: the process may end with a notified thread. Nobody waits for observers or for the
        // name of a member.
        losses.into_iter().for_each(|it| it.announce_stop());
        threads.for_each(|it| self.join(it, over_at));
        // Keeps the queued lines and events, unless the logger or the observer blocks.
        if let Some(thread) = self.shared.fanout.journal.close() {
            thread.join_until(over_at);
        }
    }

    /// Joins a thread until `deadline`. A running thread is left behind, with a line in the log.
    fn join(&self, thread: OwnThread, deadline: Tick) {
        let journal = &self.shared.fanout.journal;
        let name = thread.name().to_owned();
        match thread.join_until(deadline) {
            None => warn!(
                journal,
                "{name}: still busy after the shutdown grace, so it is left running"
            ),
            Some(Err(_)) => error!(journal, "{name}: ended by a panic"),
            Some(Ok(())) => {}
        }
    }
}

/// A call under way: see [`Engine::begin`].
struct Operation<'a> {
    engine: &'a Engine,
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut calls = self.engine.calls.lock();
        calls.under_way = calls.under_way.saturating_sub(1);
        if calls.under_way == 0 {
            self.engine.ended.notify_all();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.shared.process.is_forked() {
            // These handles belong to threads of the parent. New threads of this process may have
            // the same ids. To drop the handles would detach them, and their joins would panic.
            std::mem::forget(self.calls.get_mut().threads.take());
            return;
        }
        self.shutdown(self.shared.config.shutdown_grace);
        self.shared.callbacks.close();
    }
}
