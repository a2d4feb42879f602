//! The masters of a node of several servers, and which of them a command goes to.
//!
//! It is one node with one vote. A group has one master, which serves all slots. In a cluster all keys of a lock are in one slot,
//! and each command of the lock goes to one master, that of the slot by the newest map. Nothing is sent twice inside a round:
//! whatever an old owner answers is its answer.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::answer::Answer;
use crate::config::Config;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::server::{Jobs, NodeContext, OfAll, Server, WorkerHandle};
use crate::engine::nodes::shard_conn::{ShardConn, ShardConns};
use crate::engine::nodes::sharded::confirm_slot::greet_master;
use crate::engine::nodes::sharded::routes::{Routes, Unrouted, serves};
use crate::engine::nodes::standing::{Health, Standing};
use crate::engine::nodes::worker::Worker;
use crate::error::{MemberReport, NodeFailure};
use crate::ids::NodeId;
use crate::logic::eligibility::Eligibility;
use crate::logic::group::Rhythm;
use crate::logic::run_ids::RunIds;
use crate::stats::NodeCounters;
use crate::sys::logging::debug;
use crate::sys::sync::Mutex;
use crate::sys::{OwnThread, Poll, WAKE, Waker, aside};
use crate::time::{self, Tick};
use crate::wire::{Address, Command, Endpoint, Group};

/// More masters are not asked: each has a thread and a connection, and a server may name any number of them.
pub(super) const SHARD_CONNS_MAX: usize = 256;
/// Fewer sentinels cannot outvote one that is wrong.
const SENTINELS_MIN: usize = 3;

/// See the module. Shared by callers, workers and the thread.
pub(crate) struct Shards {
    pub(super) id: NodeId,
    pub(super) address: Address,
    /// What is in the address.
    pub(super) group: Group,
    /// Of the map.
    pub(crate) standing: Standing,
    /// Wakes the thread.
    waker: Waker,
    of_all: OfAll,
    pub(super) config: Config,
    pub(super) common: NodeContext,
    run_ids: Arc<Mutex<RunIds>>,
    pub(super) rhythm: Rhythm,
    pub(super) state: Mutex<ShardsState>,
    /// What they said last, or the sentinels.
    pub(super) members: Mutex<Members>,
}

/// What the servers of a node said, or its sentinels.
#[derive(Clone, Default)]
pub(crate) struct Members {
    pub(crate) all: Vec<MemberReport>,
    /// Those with which something is wrong, in a line.
    pub(crate) failing: String,
}

#[derive(Default)]
pub(super) struct ShardsState {
    pub(super) routes: Arc<Routes>,
    /// Of the shard connections, in their order.
    pub(super) threads: Vec<OwnThread>,
    /// The map may be another by now.
    pub(super) is_probe_due: bool,
    pub(super) unrouted: Unrouted,
}

impl Shards {
    /// Touches no network.
    pub(crate) fn new(
        id: NodeId,
        address: Address,
        group: Group,
        config: &Config,
        common: NodeContext,
        run_ids: Arc<Mutex<RunIds>>,
        waker: Waker,
    ) -> Arc<Shards> {
        Arc::new(Shards {
            id,
            address,
            group,
            standing: Standing::default(),
            waker,
            of_all: OfAll {
                own_counters: Arc::default(),
            },
            rhythm: Rhythm::new(config.ttl, config.connect_timeout),
            config: config.clone(),
            common,
            run_ids,
            state: Mutex::default(),
            members: Mutex::default(),
        })
    }

    /// Whether the masters share the slots; otherwise there is one.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.group, Group::Cluster(_))
    }

    pub(crate) fn own_counters(&self) -> &NodeCounters {
        &self.of_all.own_counters
    }

    pub(crate) fn members(&self) -> Members {
        self.members.lock().clone()
    }

    pub(super) fn wake(&self) {
        if let Err(err) = self.waker.wake() {
            debug!(
                "{}: cannot wake the thread that queries its servers: {err}",
                self.id
            );
        }
    }

    /// Makes the thread ask for the map if nothing has done that before.
    pub(crate) fn call_up(&self) {
        self.standing.call_up();
        self.wake();
    }

    /// All shard connections there are now.
    pub(crate) fn shard_conns(&self) -> Vec<Arc<Server>> {
        self.routes().shard_conns.clone()
    }

    pub(super) fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.state.lock().routes)
    }

    /// The shard connections that serve slots.
    pub(crate) fn serving(&self) -> Vec<Arc<Server>> {
        self.routes()
            .shard_conns
            .iter()
            .filter(|it| serves(it))
            .cloned()
            .collect()
    }

    /// Why a command, or any, is not to be given to the cluster now, if so.
    pub(crate) fn refusal(
        &self,
        command: Option<&Command>,
        patience: Duration,
        now: Tick,
    ) -> Option<NodeFailure> {
        let routes = self.routes();
        // What is any command to a group goes to its master. To a cluster it may go to any of them.
        if !routes.has_map || command.is_none() && self.is_cluster() {
            return self.standing.refusal(now);
        }
        match routes.owner(command.and_then(Command::slot)) {
            Some(server) => server.refusal_after(patience, now),
            None => {
                self.request_probe();
                Some(nobody())
            }
        }
    }

    /// Why one of its shard connections, or the cluster, is not to be asked now, if so.
    pub(crate) fn any_refusal(&self, now: Tick) -> Option<NodeFailure> {
        self.standing
            .refusal(now)
            .or_else(|| self.serving().iter().find_map(|it| it.refusal(now)))
    }

    /// Gives commands to the shard connections of their slots, one behind the other.
    pub(crate) fn give(&self, jobs: Jobs, now: Tick, directly: bool) {
        for job in jobs.into_iter().flatten() {
            let slot = job.command.slot();
            let mut state = self.state.lock();
            let routes = Arc::clone(&state.routes);
            // RACE: what is kept for the slot came before this.
            let is_served = routes.owner(slot).is_some();
            let is_kept = if is_served {
                state.unrouted.has(slot)
            } else {
                job.is_worth_keeping(now)
            };
            if is_kept || !routes.has_map {
                state.unrouted.keep(job);
                drop(state);
                if !routes.has_map {
                    // Otherwise the thread looks after it when the map is another.
                    self.wake();
                }
                continue;
            }
            drop(state);
            // RACE: the map may be another by now. A release, which comes after this, goes to the shard connection of this
            // one as well.
            if let Some(mut job) = routes.give(job, now, directly) {
                job.answer(self.id, Answer::Failed(nobody()), false);
            }
        }
    }

    /// Lets a master note what it serves: now, or when it is connected.
    pub(super) fn greet(&self, server: &Server, of: &ShardConn, now: Tick) {
        if of.has_slots && self.common.records.is_used() {
            of.owe_greeting();
            server.greet_if_owed(now);
            server.call_up();
        }
    }

    /// What tells each of the shard connections that serve slots that its master has lost nothing.
    pub(crate) fn vouch(&self) -> Vec<Command> {
        let command = |it: &Arc<Server>| match it.with_slots() {
            Some(shard_conn) => greet_master(&self.common.records, shard_conn, 0, true),
            None => it.records.vouch(),
        };
        self.serving().iter().map(command).collect()
    }

    /// What is known of slots is asked again.
    pub(crate) fn suspect_all(&self) {
        self.shard_conns()
            .iter()
            .for_each(|it| it.link.with(|it| it.slots.suspect_all()));
    }

    /// Until when a round that begins now may have to wait for a connection first.
    pub(crate) fn connects_until(&self, now: Tick) -> Option<Tick> {
        let timeout = self.config.connect_timeout;
        let shard_conns = self.shard_conns();
        let shard_conns = shard_conns
            .iter()
            .filter(|it| serves(it))
            .filter_map(|it| it.standing.connects_until(now, timeout));
        shard_conns
            .chain(self.standing.connects_until(now, timeout))
            .max()
    }

    /// How many slots no master serves, as far as is known.
    pub(crate) fn not_served(&self) -> usize {
        self.routes()
            .owners
            .iter()
            .filter(|it| it.is_none())
            .count()
    }

    /// The shard connections end with the thread; what they have still to bring is brought until `deadline`.
    pub(crate) fn stop(&self, deadline: Tick) {
        self.standing.stop(deadline);
        self.wake();
        // RACE: a release may be on its way to its shard connection. Then the thread stops the shard connections, behind
        // that.
        if !self.state.lock().unrouted.is_empty() {
            return;
        }
        self.shard_conns().iter().for_each(|it| it.stop(deadline));
    }
}

impl ShardConns for Shards {
    fn request_probe(&self) {
        self.state.lock().is_probe_due = true;
        self.wake();
    }

    fn take_over(&self, index: usize, job: Job) -> Option<Job> {
        if job.is_for_past_owner {
            return Some(job);
        }
        let routes = self.routes();
        // As long as nobody serves it, it stays where it is.
        match routes
            .owner(job.command.slot())
            .and_then(|it| it.shard_conn.as_ref())
        {
            Some(own) if own.index != index => routes.give(job, time::tick(), false),
            _ => Some(job),
        }
    }

    fn take(&self, job: Job) {
        self.give([Some(job), None], time::tick(), false);
    }
}

pub(super) fn nobody() -> NodeFailure {
    NodeFailure::SlotNotServed {
        said: "no master of the map has it".to_owned(),
    }
}

impl Shards {
    /// The shard connection for a master; a new one if there is none.
    pub(super) fn shard_conn_at(self: &Arc<Self>, place: &Endpoint) -> io::Result<Arc<Server>> {
        let address = self.address.at(place.clone());
        let shown = address.shown();
        let mut state = self.state.lock();
        let ShardsState {
            routes, threads, ..
        } = &mut *state;
        let in_use = || {
            routes
                .shard_conns
                .iter()
                .filter(|it| it.standing.stop_at().is_none())
        };
        if let Some(server) = in_use().find(|it| it.address == shown) {
            return Ok(Arc::clone(server));
        }
        if SHARD_CONNS_MAX <= in_use().count() {
            return Err(io::Error::other("more masters than a cluster has"));
        }
        // Masters whose addresses change now and then leave nothing behind for ever.
        let free = routes.free_place(threads);
        let index = free.unwrap_or(routes.shard_conns.len());
        let voter = free
            .and_then(|it| routes.shard_conns.get(it)?.shard_conn.as_ref())
            .map(|it| it.voter);
        let voter = voter.unwrap_or_else(|| self.run_ids.lock().enter(self.id));
        let this: Weak<Shards> = Arc::downgrade(self);
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let handle = WorkerHandle {
            registry: poll.registry().try_clone()?,
            waker,
        };
        let eligibility =
            Eligibility::new(self.config.quarantine_length(), self.config.margin.share);
        let server = Server::new(self.id, shown, handle, self.common.clone(), eligibility);
        let few_sentinels = match &self.group {
            Group::Sentinel { sentinels, .. } => {
                Some(sentinels.len()).filter(|it| *it < SENTINELS_MIN)
            }
            Group::Replicated(_) | Group::Cluster(_) => None,
        };
        let shard_conn = ShardConn::new(index, voter, self.is_cluster(), few_sentinels, this);
        let server = Arc::new(server.into_shard_conn(shard_conn, &self.of_all));
        let run_ids = Arc::clone(&self.run_ids);
        let worker = Worker::new(Arc::clone(&server), address, &self.config, run_ids, poll);
        let name = format!("quorlock-{}-{index}", self.id);
        let thread = aside::spawn(name, move || worker.run())?;
        let shard_conns = &mut Arc::make_mut(routes).shard_conns;
        match shard_conns.get_mut(index).zip(threads.get_mut(index)) {
            Some(place) => (*place.0, *place.1) = (Arc::clone(&server), thread),
            None => {
                shard_conns.push(Arc::clone(&server));
                threads.push(thread);
            }
        }
        Ok(server)
    }

    /// Commands go by this map from now on.
    pub(super) fn install(
        &self,
        owners: Vec<Option<usize>>,
        shard_conns: &[Arc<Server>],
        now: Tick,
    ) {
        {
            let mut state = self.state.lock();
            let routes = Arc::make_mut(&mut state.routes);
            // As long as anything that the old owner was asked can stand there.
            let until = now.checked_add(self.config.longest_life()).unwrap_or(now);
            routes.moved.retain(|_, it| now < it.1);
            let before = std::mem::replace(&mut routes.owners, owners);
            for (slot, before) in (0..).zip(before) {
                let now_at = routes.place_of_owner(slot);
                if let Some(before) = before.filter(|it| now_at != Some(*it)) {
                    routes.moved.insert(slot, (before, until));
                }
            }
            routes.has_map = true;
        }
        let stale = |it: &&Arc<Server>| !shard_conns.iter().any(|server| Arc::ptr_eq(server, it));
        for server in self.shard_conns().iter().filter(stale) {
            self.end(server);
            // What it could not bring goes to others now. Nobody else wakes one that is no master.
            server.link.wake_worker();
            // What was given to it until then can be of use no more.
            let idle_since = server
                .shard_conn
                .as_ref()
                .map_or(now, |it| it.is_idle_since(now));
            if idle_since
                .checked_add(self.config.longest_life())
                .is_some_and(|it| it < now)
            {
                server.stop(now);
            }
        }
    }

    /// There is no master any more.
    pub(super) fn dissolve(&self, why: &NodeFailure) {
        self.standing.set_health(Health::Down(why.clone()));
        {
            let mut state = self.state.lock();
            let routes = Arc::make_mut(&mut state.routes);
            (routes.has_map, routes.owners) = (false, Vec::new());
        }
        self.shard_conns().iter().for_each(|it| self.end(it));
    }

    /// It serves nothing any more. A master that is none has nothing to say, and what it was asked is sent to its successor; of a
    /// cluster it may have to take releases still.
    fn end(&self, server: &Server) {
        let Some(of) = &server.shard_conn else { return };
        of.serve(None);
        if !self.is_cluster() {
            server.end_leader_lease();
            server.link.with(|it| {
                if it.is_open() {
                    it.give_up(of.why_idle())
                }
            });
        }
    }
}
