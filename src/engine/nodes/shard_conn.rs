//! A shard connection: the connection to one master of a node of several servers, and what is known of it.
//!
//! All shard connections of a node have its id, and each is a [`Server`](super::server::Server) with a worker of its own,
//! so everything that holds for the one connection to a server holds for each. Which of them a command goes to is decided
//! in `shards.rs`. Here is what passes between the two.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::answer::GreetReply;
use crate::engine::nodes::job::Job;
use crate::error::{NodeFailure, QuarantineReason};
use crate::logic::quarantines::{Ask, Quarantines};
use crate::logic::run_ids::Voter;
use crate::sys::sync::{AtomicBool, Mutex};
use crate::time::Tick;
use crate::wire::Address;

/// All shard connections of a node.
pub(crate) trait ShardConns: Send + Sync {
    /// The map may be another by now: it is asked for.
    fn request_probe(&self);

    /// Takes a release whose slot another shard connection serves than this one; gives it back if that is not so.
    fn take_over(&self, index: usize, job: Job) -> Option<Job>;

    /// Takes a command for the shard connection of its slot.
    fn take(&self, job: Job);
}

/// What a master of a cluster serves, as the map says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Served {
    pub(crate) epoch: u64,
    /// As `0-5460,7000-7000`.
    pub(crate) slots: Arc<str>,
    /// The slot in which its record is: the last one, because slots that are moved away are the first ones mostly.
    pub(crate) last: u16,
    /// The name that it announces.
    pub(crate) name: Option<Arc<str>>,
}

pub(crate) struct ShardConn {
    /// Its place among the shard connections.
    pub(crate) index: usize,
    /// Its place among all that show run ids.
    pub(crate) voter: Voter,
    /// Of a cluster: slots have records of their own.
    pub(crate) has_slots: bool,
    /// How many sentinels look after it, if that is too few.
    pub(crate) few_sentinels: Option<usize>,
    shard_conns: Weak<dyn ShardConns>,
    /// `None` of one that is the master no longer, or serves nothing.
    served: Mutex<Option<Served>>,
    /// Since when it serves nothing.
    idle_since: Mutex<Option<Tick>>,
    /// Of its master's record, as it was shown last.
    quarantines: Mutex<Quarantines>,
    /// It serves the slot whose record says which node the cluster is.
    /// Its master is to note what it serves, once it is connected.
    owes_greeting: AtomicBool,
}

impl ShardConn {
    pub(super) fn new(
        index: usize,
        voter: Voter,
        has_slots: bool,
        few_sentinels: Option<usize>,
        shard_conns: Weak<dyn ShardConns>,
    ) -> ShardConn {
        let (served, idle_since, quarantines) =
            (Mutex::default(), Mutex::default(), Mutex::default());
        let owes_greeting = AtomicBool::new(false);
        ShardConn {
            index,
            voter,
            has_slots,
            few_sentinels,
            shard_conns,
            served,
            idle_since,
            quarantines,
            owes_greeting,
        }
    }

    pub(crate) fn shard_conns(&self) -> Option<Arc<dyn ShardConns>> {
        self.shard_conns.upgrade()
    }

    pub(crate) fn request_probe(&self) {
        if let Some(shard_conns) = self.shard_conns() {
            shard_conns.request_probe();
        }
    }

    /// Those of these releases that are for this shard connection; the others go to theirs.
    pub(crate) fn own_of(&self, jobs: Vec<Job>) -> Vec<Job> {
        let Some(shard_conns) = self.shard_conns() else {
            return jobs;
        };
        jobs.into_iter()
            .filter_map(|it| shard_conns.take_over(self.index, it))
            .collect()
    }

    pub(crate) fn serves(&self) -> bool {
        self.served.lock().is_some()
    }

    /// What its master serves, if it is known to be one.
    pub(super) fn served(&self) -> Option<Served> {
        self.served.lock().clone()
    }

    /// Where to connect to; nowhere if it serves nothing.
    pub(crate) fn address(&self, own: &Address) -> Option<Address> {
        let served = self.served()?;
        Some(if self.has_slots {
            own.of_master(served.last, served.name)
        } else {
            own.clone()
        })
    }

    /// Why there is no connection to one that serves nothing.
    pub(crate) fn why_idle(&self) -> NodeFailure {
        match self.has_slots {
            true => NodeFailure::SlotNotServed {
                said: "it serves no slots any more".to_owned(),
            },
            false => NodeFailure::Disconnected {
                reason: "it is the master no longer".to_owned(),
            },
        }
    }

    /// Takes note of what it serves now. True if that has changed, or since when.
    pub(super) fn serve(&self, served: Option<Served>) -> bool {
        if served.is_some() {
            *self.idle_since.lock() = None;
        }
        let what = |it: &Option<Served>| it.as_ref().map(|it| (it.epoch, Arc::clone(&it.slots)));
        let before = std::mem::replace(&mut *self.served.lock(), served.clone());
        what(&before) != what(&served)
    }

    pub(crate) fn owe_greeting(&self) {
        self.owes_greeting.store(true, Ordering::Relaxed);
    }

    /// Whether its master is to be greeted now. True once.
    pub(crate) fn takes_greeting(&self) -> bool {
        self.owes_greeting.swap(false, Ordering::Relaxed)
    }

    /// Since when it serves nothing; it serves nothing now.
    pub(crate) fn is_idle_since(&self, now: Tick) -> Tick {
        *self.idle_since.lock().get_or_insert(now)
    }

    pub(crate) fn remember(&self, shown: &GreetReply, now: Tick, length: Option<Duration>) {
        *self.quarantines.lock() = Quarantines::of(shown, now, length.unwrap_or_default());
    }

    /// For how long slots that were never used do not count there, and why.
    pub(crate) fn left(
        &self,
        now: Tick,
        length: Option<Duration>,
    ) -> Option<(Duration, QuarantineReason)> {
        self.quarantines.lock().left(Ask::Grant, now, length)
    }
}
