//! One node: one vote, whether one server keeps it or several.

use std::borrow::Cow;
use std::io;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::Config;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::server::{Jobs, NodeContext, Server, WorkerHandle};
use crate::engine::nodes::sharded::scout::Scout;
use crate::engine::nodes::sharded::shards::{Members, Shards};
use crate::engine::nodes::worker::Worker;
use crate::error::NodeFailure;
use crate::ids::NodeId;
use crate::logic::eligibility::Eligibility;
use crate::logic::run_ids::RunIds;
use crate::stats::{NodeCounters, NodeStats};
use crate::sys::sync::Mutex;
use crate::sys::{OwnThread, Poll, WAKE, Waker, aside};
use crate::time::{Moment, Tick};
use crate::wire::{Address, Command, Endpoint};

/// See the module.
pub(crate) struct VotingNode {
    pub(crate) id: NodeId,
    pub(crate) address: Arc<str>,
    kept_by: KeptBy,
}

enum KeptBy {
    Server(Arc<Server>),
    /// Several, each of which may be the master.
    Shards(Arc<Shards>),
}

impl VotingNode {
    /// Starts its threads, which are put to `threads`. Touches no network.
    pub(super) fn start(
        id: NodeId,
        address: Address,
        config: &Config,
        common: NodeContext,
        run_ids: Arc<Mutex<RunIds>>,
        threads: &mut Vec<OwnThread>,
    ) -> io::Result<VotingNode> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let shown = address.shown();
        if let Endpoint::Group(group) = address.place.clone() {
            let shards = Shards::new(id, address, group, config, common, run_ids, waker);
            let scout = Scout::new(Arc::clone(&shards), poll);
            threads.push(aside::spawn(format!("quorlock-{id}-scout"), move || {
                scout.run()
            })?);
            return Ok(VotingNode {
                id,
                address: shown,
                kept_by: KeptBy::Shards(shards),
            });
        }
        let handle = WorkerHandle {
            registry: poll.registry().try_clone()?,
            waker,
        };
        let eligibility = Eligibility::new(config.quarantine_length(), config.margin.share);
        let server = Arc::new(Server::new(
            id,
            Arc::clone(&shown),
            handle,
            common,
            eligibility,
        ));
        let worker = Worker::new(Arc::clone(&server), address, config, run_ids, poll);
        threads.push(aside::spawn(format!("quorlock-{id}"), move || {
            worker.run()
        })?);
        Ok(VotingNode {
            id,
            address: shown,
            kept_by: KeptBy::Server(server),
        })
    }

    /// All servers that it is spread over, as far as they are known; the only one otherwise.
    pub(crate) fn servers(&self) -> Cow<'_, [Arc<Server>]> {
        match &self.kept_by {
            KeptBy::Server(server) => Cow::Borrowed(slice::from_ref(server)),
            KeptBy::Shards(shards) => Cow::Owned(shards.shard_conns()),
        }
    }

    /// Those of them that serve something.
    pub(crate) fn serving(&self) -> Cow<'_, [Arc<Server>]> {
        match &self.kept_by {
            KeptBy::Server(_) => self.servers(),
            KeptBy::Shards(shards) => Cow::Owned(shards.serving()),
        }
    }

    /// The server that keeps all of it now, if one does.
    pub(crate) fn only_server(&self) -> Option<Arc<Server>> {
        match &self.kept_by {
            KeptBy::Server(server) => Some(Arc::clone(server)),
            KeptBy::Shards(shards) if shards.is_cluster() => None,
            KeptBy::Shards(shards) => shards.serving().pop(),
        }
    }

    /// Whether it is spread over several servers, each of which has some of the locks.
    pub(crate) fn is_spread(&self) -> bool {
        matches!(&self.kept_by, KeptBy::Shards(shards) if shards.is_cluster())
    }

    /// What its servers said last, or its sentinels, if it is several.
    pub(crate) fn members(&self) -> Members {
        match &self.kept_by {
            KeptBy::Server(_) => Members::default(),
            KeptBy::Shards(shards) => shards.members(),
        }
    }

    /// How many parts of it nobody serves, as far as is known.
    pub(crate) fn not_served(&self) -> usize {
        match &self.kept_by {
            KeptBy::Server(_) => 0,
            KeptBy::Shards(shards) => shards.not_served(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.serving().iter().any(|it| it.standing.is_up())
    }

    /// Why this command, or any, is not to be given to it now, if so: a node refuses it only after a silence of more than
    /// `patience`.
    pub(super) fn refusal(
        &self,
        command: Option<&Command>,
        patience: Duration,
        now: Tick,
    ) -> Option<NodeFailure> {
        match &self.kept_by {
            KeptBy::Server(server) => server.refusal_after(patience, now),
            KeptBy::Shards(shards) => shards.refusal(command, patience, now),
        }
    }

    /// Why it, or one of its servers, is not to be asked now, if so.
    pub(super) fn any_refusal(&self, now: Tick) -> Option<NodeFailure> {
        match &self.kept_by {
            KeptBy::Server(server) => server.refusal(now),
            KeptBy::Shards(shards) => shards.any_refusal(now),
        }
    }

    /// Until when a round that begins now may have to wait for a connection first.
    pub(super) fn connects_until(&self, now: Tick, connect_timeout: Duration) -> Option<Tick> {
        match &self.kept_by {
            KeptBy::Server(server) => server.standing.connects_until(now, connect_timeout),
            KeptBy::Shards(shards) => shards.connects_until(now),
        }
    }

    /// Makes it connect if nothing has done that before.
    pub(super) fn call_up(&self) {
        match &self.kept_by {
            KeptBy::Server(server) => server.call_up(),
            KeptBy::Shards(shards) => shards.call_up(),
        }
    }

    /// Gives commands to the servers that they are for: see [`Server::give`].
    pub(super) fn give(&self, jobs: Jobs, now: Tick, directly: bool) {
        match &self.kept_by {
            KeptBy::Server(server) => server.give(jobs, now, directly),
            KeptBy::Shards(shards) => shards.give(jobs, now, directly),
        }
    }

    /// Gives a command to one of those that serve something.
    pub(super) fn give_to(&self, part: usize, job: Job, now: Tick) -> Result<(), NodeFailure> {
        let serving = self.serving();
        let Some(server) = serving.get(part) else {
            return Err(NodeFailure::SlotNotServed {
                said: "no master of the map has it".to_owned(),
            });
        };
        if let Some(failure) = server.refusal(now) {
            return Err(failure);
        }
        server.give([Some(job), None], now, false);
        server.wake();
        Ok(())
    }

    /// Wakes its worker if something has queued. Those of several are woken when something is given to them.
    pub(super) fn wake(&self) {
        if let KeptBy::Server(server) = &self.kept_by
            && server.has_queue()
        {
            server.wake();
        }
    }

    /// Clears doubts that it has forgotten something: what tells each of those that serve something so.
    pub(crate) fn vouch(&self) -> Vec<Command> {
        match &self.kept_by {
            KeptBy::Server(server) => vec![server.records.vouch()],
            KeptBy::Shards(shards) => shards.vouch(),
        }
    }

    /// Its servers have received that: what else is known of them is asked again.
    pub(crate) fn suspect_all(&self) {
        if let KeptBy::Shards(shards) = &self.kept_by {
            shards.suspect_all();
        }
    }

    /// What its clock may show, from and to, in microseconds since 1970. Of several, all that any may show.
    pub(super) fn clock_shows(&self, now: Moment) -> Option<(u64, u64)> {
        let each = self.serving();
        let each = each.iter().filter_map(|it| it.status.clock_shows(now));
        each.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// What is known of it.
    pub(crate) fn stats(&self) -> NodeStats {
        let of = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let NodeCounters {
            answers,
            failures,
            connections,
            connection_failures,
        } = match &self.kept_by {
            KeptBy::Server(server) => &*server.own_counters,
            KeptBy::Shards(shards) => shards.own_counters(),
        };
        let servers = self.servers();
        NodeStats {
            node: self.id,
            address: Arc::clone(&self.address),
            up: self.is_up(),
            silent: servers.iter().any(|it| it.is_said_to_be_silent()),
            unanswered: servers.iter().map(|it| it.link.load.in_flight()).sum(),
            queued: servers.iter().map(|it| it.queue.len()).sum(),
            answers: of(answers),
            failures: of(failures),
            connections: of(connections),
            connection_failures: of(connection_failures),
        }
    }

    /// Asks its threads to end: at once if nothing is left to do, at `deadline` in any case.
    pub(super) fn stop(&self, deadline: Tick) {
        match &self.kept_by {
            KeptBy::Server(server) => server.stop(deadline),
            KeptBy::Shards(shards) => shards.stop(deadline),
        }
    }
}
