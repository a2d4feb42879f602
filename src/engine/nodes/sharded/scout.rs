//! The thread that asks the servers of a node who is the master, or who serves which slots, and looks after the shard
//! connections.
//!
//! It asks all of them side by side, over connections of its own that it keeps, and waits for none of them longer than half of the
//! connect timeout. A master counts for as long as it was said to be one shortly before.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::member::Member;
use crate::engine::nodes::members::AllMembers;
use crate::engine::nodes::server::Server;
use crate::engine::nodes::shard_conn::Served;
use crate::engine::nodes::sharded::shards::{Members, SHARD_CONNS_MAX, Shards, nobody};
use crate::engine::nodes::standing::Health;
use crate::error::{MemberAnswer, NodeFailure};
use crate::logic::cluster_map::{Map, Master, SLOTS, Said, map};
use crate::logic::group::{ends_a_master, failing, named_master, only_master, reports};
use crate::observer::Event;
use crate::stats::count;
use crate::sys::Poll;
use crate::sys::logging::{Level, debug, error, info, warn, write_line};
use crate::time::{self, Moment, Tick};
use crate::wire::{Endpoint, Group};

/// What is answered to many commands at once makes for one probe, and the next comes no sooner.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The thread waits for its shard connections' threads for so long after the deadline: they end by themselves then.
const LAST_WRITES: Duration = Duration::from_millis(40);

/// The thread's side.
pub(crate) struct Scout {
    shards: Arc<Shards>,
    members: AllMembers,
    /// The master of a group, as the log has said.
    master: Option<Endpoint>,
    /// Why there is no map, likewise.
    said: Option<NodeFailure>,
    said_holes: bool,
    /// The last probe has led to servers that had not been asked.
    has_learned: bool,
}

impl Scout {
    /// `poll`: where they are woken that belong to `shards`.
    pub(crate) fn new(shards: Arc<Shards>, poll: Poll) -> Scout {
        let woken = Arc::downgrade(&shards);
        let wake = move || woken.upgrade().iter().for_each(|it| it.wake());
        let members = AllMembers::new(shards.id, shards.address.clone(), &shards.group, poll, wake);
        Scout {
            shards,
            members,
            master: None,
            said: None,
            said_holes: false,
            has_learned: false,
        }
    }

    /// Runs until it is stopped.
    pub(crate) fn run(mut self) {
        let shards = Arc::clone(&self.shards);
        let (mut next, mut soonest) = (time::tick(), time::tick());
        let mut is_used = false;
        loop {
            let now = time::tick();
            let (is_empty, is_probe_due) = {
                let state = shards.state.lock();
                (state.unrouted.is_empty(), state.is_probe_due)
            };
            if shards
                .standing
                .stop_at()
                .is_some_and(|it| it <= now || is_empty)
            {
                break;
            }
            if !is_used && (shards.standing.is_called_up() || !is_empty) {
                is_used = true;
                let until = now
                    .checked_add(shards.config.connect_timeout)
                    .unwrap_or(now);
                shards.standing.set_health(Health::Connecting { until });
            }
            if is_used && (next <= now || is_probe_due && soonest <= now) {
                let had_learned = std::mem::take(&mut self.has_learned);
                shards.state.lock().is_probe_due = false;
                if catch_unwind(AssertUnwindSafe(|| self.probe(now, had_learned))).is_err() {
                    error!(
                        "{}: the thread that queries its servers panicked and continues; please report this",
                        shards.id
                    );
                }
                soonest = time::deadline(LOOK_AGAIN);
                if self.has_learned && !had_learned {
                    // They are asked at once. Not again and again, whatever servers say.
                    (shards.state.lock().is_probe_due, soonest) = (true, now);
                }
                next = now
                    .checked_add(shards.rhythm.every)
                    .unwrap_or(now)
                    .max(soonest);
                self.route_pending();
            }
            let is_probe_due = shards.state.lock().is_probe_due;
            let until = if is_probe_due {
                soonest.min(next)
            } else {
                next
            };
            let mut timeout = is_used.then(|| until.saturating_duration_since(time::tick()));
            if shards.standing.stop_at().is_some() {
                timeout = Some(timeout.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN));
            }
            self.members.wait(timeout);
        }
        self.end();
    }

    /// Asks all members, and takes note of what follows. `had_learned`: the probe before has led to new ones.
    fn probe(&mut self, now: Tick, had_learned: bool) {
        let began = Moment::now();
        let shards = Arc::clone(&self.shards);
        self.members.ask(now, shards.rhythm.probe_timeout, || {
            shards.standing.stop_at().is_some()
        });
        let map = if shards.is_cluster() {
            self.map_of_cluster()
        } else {
            self.map_of_group()
        };
        match map {
            Ok(map) if SHARD_CONNS_MAX < map.masters.len() => {
                let reason = format!("{} masters, more than a cluster has", map.masters.len());
                self.miss(NodeFailure::Protocol { reason });
            }
            Ok(map) => {
                let places: Vec<_> = map.masters.iter().map(place_of).collect();
                if shards.is_cluster() {
                    let names = map.masters.iter().map(|it| it.name.clone());
                    self.has_learned = self
                        .members
                        .know(&places.iter().cloned().zip(names).collect::<Vec<_>>());
                }
                // Before anybody is told of the first map, a majority of the masters has answered, if there are so many.
                let is_enough = map.has_majority || had_learned || !self.has_learned;
                if is_enough || shards.routes().has_map {
                    self.take(&map, places, began);
                }
            }
            Err(failure) => self.miss(failure),
        }
    }

    fn map_of_cluster(&mut self) -> Result<Map, NodeFailure> {
        let shown = self.members.shown();
        let hosts: Vec<_> = self
            .members
            .each()
            .iter()
            .map(|it| host_of(it.place()))
            .collect();
        let said: Vec<_> = self.members.each_mut().iter_mut().map(said_by).collect();
        map(&said, &hosts, &shown)
    }

    /// Its master serves everything.
    fn map_of_group(&mut self) -> Result<Map, NodeFailure> {
        let shown = self.members.shown();
        let said: Vec<_> = self
            .members
            .each_mut()
            .iter_mut()
            .map(Member::end)
            .collect();
        let master = match &self.shards.group {
            Group::Sentinel { master, .. } => named_master(&said, &shown, master),
            group => only_master(&said, &shown).and_then(|it| match group.members().get(it) {
                Some(Endpoint::Tcp { host, port }) => Ok((host.clone(), *port)),
                _ => Err(NodeFailure::Internal),
            }),
        };
        let all = reports(&said, &shown);
        let failing = failing(
            &all,
            master.as_ref().ok().map(|(host, port)| (&**host, *port)),
        );
        *self.shards.members.lock() = Members { all, failing };
        master.map(|(host, port)| Map::of_one(host, port))
    }

    fn take(&mut self, map: &Map, places: Vec<Endpoint>, began: Moment) {
        let shards = Arc::clone(&self.shards);
        let shard_conns: io::Result<Vec<_>> =
            places.iter().map(|it| shards.shard_conn_at(it)).collect();
        let shard_conns = match shard_conns {
            Ok(shard_conns) => shard_conns,
            Err(err) => {
                error!(
                    "{}: cannot start a thread for one of its servers: {err}",
                    shards.id
                );
                return;
            }
        };
        let now = time::tick();
        for (server, master) in shard_conns.iter().zip(&map.masters) {
            let Some(of) = &server.shard_conn else {
                continue;
            };
            let changed = of.serve(served(master));
            if changed && of.has_slots {
                // What it serves, or since when, is another. What it has lost is noted there, because it may get it back.
                server.link.with(|it| it.slots.suspect_all());
                shards.greet(server, of, now);
            }
            if master.says_so && map.has_majority {
                server.set_leader_lease(
                    began
                        .checked_add(shards.rhythm.leader_lease)
                        .unwrap_or(began),
                );
            }
        }
        let owners = (0..=u16::MAX).take(SLOTS).map(|slot| {
            let server = map.owner(slot).and_then(|it| shard_conns.get(it))?;
            server.shard_conn.as_ref().map(|it| it.index)
        });
        shards.install(owners.collect(), &shard_conns, now);
        let is_news = !shards.is_cluster() && self.master.as_ref() != places.first();
        if is_news && let Some(master) = places.first() {
            info!(
                "{}: {}: the primary is {master}",
                shards.id,
                shards.address.shown()
            );
            self.master = Some(master.clone());
        }
        if !matches!(shards.standing.health(), Health::Up) {
            shards.standing.set_health(Health::Up);
            if shards.is_cluster() {
                info!(
                    "{}: {}: a cluster of {} primaries",
                    shards.id,
                    shards.address.shown(),
                    shard_conns.len()
                );
            }
        }
        shard_conns
            .iter()
            .filter(|it| !it.standing.is_up())
            .for_each(|it| it.call_up());
        self.said = None;
        let holes = !map.is_whole();
        if holes && !std::mem::replace(&mut self.said_holes, true) {
            warn!(
                "{}: {}: some slots of the cluster have no primary",
                shards.id,
                shards.address.shown()
            );
        }
        self.said_holes = holes;
    }

    /// There is no map now. The one there was stays: what its masters grant counts as long as they are believed. A group has no
    /// master any more when its leader lease has ended, or when it is gone.
    fn miss(&mut self, failure: NodeFailure) {
        let shards = &self.shards;
        let has_leader_lease =
            |it: &Arc<Server>| it.standing.is_up() && it.has_leader_lease(Moment::now());
        let is_master = !ends_a_master(&failure) && shards.serving().iter().any(has_leader_lease);
        let stays = (shards.is_cluster() || is_master) && shards.routes().has_map;
        if self
            .said
            .as_ref()
            .is_none_or(|it| it.kind() != failure.kind())
        {
            let level = if failure.needs_somebody() {
                Level::Warn
            } else {
                Level::Info
            };
            let down = if stays { "" } else { "down: " };
            write_line!(
                level,
                "{}: {down}{}: {failure}",
                shards.id,
                shards.address.shown()
            );
        }
        if !stays {
            let is_news = !matches!(shards.standing.health(), Health::Down(_));
            if is_news && !shards.serving().iter().any(|it| it.standing.is_up()) {
                count(&shards.common.counters.connection_failures);
                count(&shards.own_counters().connection_failures);
                let (node, address, why) = (shards.id, shards.address.shown(), failure.clone());
                shards
                    .common
                    .upcall
                    .tell(|| Event::NodeDown { node, address, why });
            }
            shards.dissolve(&failure);
            shards.common.contacts.note_failed(shards.id);
        }
        self.said = Some(failure);
    }

    /// Looks after what has no shard connection: it goes to the shard connection that there is now, or is refused, or waits
    /// on.
    fn route_pending(&self) {
        let now = time::tick();
        let shards = &self.shards;
        let health = shards.standing.health();
        loop {
            let (routes, jobs) = {
                let mut state = self.shards.state.lock();
                (Arc::clone(&state.routes), state.unrouted.take())
            };
            let (mut kept, mut gone) = (VecDeque::new(), Vec::new());
            for job in jobs {
                let slot = job.command.slot();
                let left = if routes.has_map {
                    routes.give(job, now, false)
                } else {
                    Some(job)
                };
                let Some(mut job) = left else {
                    gone.push(slot);
                    continue;
                };
                let failure = match &health {
                    _ if routes.has_map => Some(nobody()),
                    Health::Down(failure) => Some(failure.clone()),
                    _ => None,
                };
                match failure.filter(|_| !job.is_worth_keeping(now)) {
                    Some(failure) => {
                        gone.push(slot);
                        job.answer(shards.id, Answer::Failed(failure), false);
                    }
                    None => kept.push_back(job),
                }
            }
            if !self.shards.state.lock().unrouted.put_back(kept, gone) {
                return;
            }
        }
    }

    fn end(&self) {
        let shards = &self.shards;
        let deadline = shards.standing.stop_at().unwrap_or_else(time::tick);
        shards
            .standing
            .set_health(Health::Down(NodeFailure::ShutDown));
        let (threads, left) = {
            let mut state = self.shards.state.lock();
            Arc::make_mut(&mut state.routes).has_map = false;
            (std::mem::take(&mut state.threads), state.unrouted.take())
        };
        for mut job in left {
            job.answer(shards.id, Answer::Failed(NodeFailure::ShutDown), false);
        }
        self.shards
            .shard_conns()
            .iter()
            .for_each(|it| it.stop(deadline));
        let deadline = deadline.checked_add(LAST_WRITES).unwrap_or(deadline);
        for thread in threads {
            if thread.join_until(deadline).is_none() {
                debug!("{}: a shard connection is still busy", shards.id);
            }
        }
    }
}

fn said_by(member: &mut Member) -> Said {
    let view = member.view();
    match (member.end(), view) {
        (MemberAnswer::Failed(failure), _) => Said::Failed(failure),
        (_, Some(view)) => Said::View(view),
        (_, None) => Said::Failed(NodeFailure::Internal),
    }
}

fn served(master: &Master) -> Option<Served> {
    let range = |it: &(u16, u16)| format!("{}-{}", it.0, it.1);
    let slots = master.slots.iter().map(range).collect::<Vec<_>>().join(",");
    let last = master.slots.last()?.1;
    Some(Served {
        epoch: master.epoch,
        slots: slots.into(),
        last,
        name: master.name.clone(),
    })
}

fn place_of(master: &Master) -> Endpoint {
    Endpoint::Tcp {
        host: master.host.clone(),
        port: master.port,
    }
}

fn host_of(place: &Endpoint) -> String {
    match place {
        Endpoint::Tcp { host, .. } => host.clone(),
        _ => String::new(),
    }
}
