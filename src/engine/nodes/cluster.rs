//! A node that is a cluster: its lanes, which of them a command goes to, and the thread that asks who serves which slots.
//!
//! The cluster is one node with one vote: all keys of a lock are in one slot, and each command of the lock goes to one lane, that
//! of the slot by the newest map. Nothing is sent twice inside a round: whatever an old owner answers is its answer.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::answer::Answer;
use crate::config::Config;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::lane::{Lane, Lanes, Served};
use crate::engine::nodes::member::Member;
use crate::engine::nodes::members::AllMembers;
use crate::engine::nodes::node::{Health, Jobs, Node, NodeContext, WorkerHandle};
use crate::engine::nodes::routes::{Homeless, Routes, serves};
use crate::engine::nodes::settle::greet_master;
use crate::engine::nodes::worker::Worker;
use crate::error::{MemberAnswer, NodeFailure};
use crate::logic::cluster::{Map, Master, SLOTS, Said, map};
use crate::logic::eligibility::Eligibility;
use crate::logic::group::Rhythm;
use crate::logic::run_ids::RunIds;
use crate::sys::logging::{Level, debug, error, info, warn, write_line};
use crate::sys::sync::Mutex;
use crate::sys::{OwnThread, Poll, WAKE, Waker, aside};
use crate::time::{self, Moment, Tick};
use crate::wire::{Address, Command, Group, Place, slot_of_set};

/// What is answered to many commands at once makes for one look, and the next comes no sooner.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// More masters are not asked: each has a thread and a connection, and a server may name any number of them.
const LANES_MAX: usize = 256;
/// The thread waits for its lanes' threads for so long after the deadline: they end by themselves then.
const LAST_WRITES: Duration = Duration::from_millis(40);

/// See the module. Shared by callers, workers and the thread.
pub(crate) struct Cluster {
    /// What others know as the node. It has no connection: its worker is the thread.
    pub(crate) node: Arc<Node>,
    address: Address,
    config: Config,
    common: NodeContext,
    run_ids: Arc<Mutex<RunIds>>,
    rhythm: Rhythm,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    routes: Arc<Routes>,
    /// Of the lanes, in their order.
    threads: Vec<OwnThread>,
    /// The map may be another by now.
    look: bool,
    homeless: Homeless,
}

impl Cluster {
    /// `node`: see there. Touches no network.
    pub(crate) fn new(
        node: Arc<Node>,
        address: Address,
        config: &Config,
        common: NodeContext,
        run_ids: Arc<Mutex<RunIds>>,
    ) -> Arc<Cluster> {
        let rhythm = Rhythm::new(config.ttl, config.connect_timeout);
        let config = config.clone();
        Arc::new(Cluster { node, address, config, common, run_ids, rhythm, state: Mutex::default() })
    }

    /// All lanes there are now.
    pub(crate) fn lanes(&self) -> Vec<Arc<Node>> {
        self.routes().lanes.clone()
    }

    fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.state.lock().routes)
    }

    /// The lanes that serve slots.
    pub(crate) fn serving(&self) -> Vec<Arc<Node>> {
        self.routes().lanes.iter().filter(|it| serves(it)).cloned().collect()
    }

    /// Why a command is not to be given to the cluster now, if so.
    pub(crate) fn refusal(&self, command: &Command, patience: Duration, now: Tick) -> Option<NodeFailure> {
        let routes = self.routes();
        if !routes.has_map {
            return self.node.refusal_after(patience, now);
        }
        match routes.owner(command.slot()) {
            Some(lane) => lane.refusal_after(patience, now),
            None => {
                self.look();
                Some(nobody())
            }
        }
    }

    /// Why one of its lanes, or the cluster, is not to be asked now, if so.
    pub(crate) fn any_refusal(&self, now: Tick) -> Option<NodeFailure> {
        self.node.refusal(now).or_else(|| self.serving().iter().find_map(|it| it.refusal(now)))
    }

    /// Gives commands to the lanes of their slots, one behind the other.
    pub(crate) fn give(&self, jobs: Jobs, now: Tick, directly: bool) {
        for job in jobs.into_iter().flatten() {
            let slot = job.command.slot();
            let mut state = self.state.lock();
            let routes = Arc::clone(&state.routes);
            // RACE: what is kept for the slot came before this.
            let is_served = routes.owner(slot).is_some();
            let is_kept = if is_served { state.homeless.has(slot) } else { job.is_worth_keeping(now) };
            if is_kept || !routes.has_map {
                state.homeless.keep(job);
                drop(state);
                if !routes.has_map {
                    // Otherwise the thread looks after it when the map is another.
                    self.node.link.wake_worker();
                }
                continue;
            }
            drop(state);
            // RACE: the map may be another by now. A release, which comes after this, goes to the lane of this one as well.
            if let Some(mut job) = routes.give(job, now, directly) {
                job.answer(self.node.id, Answer::Failed(nobody()), false);
            }
        }
    }

    /// Gives a command to one of the lanes that serve slots, whatever its slot is.
    pub(crate) fn give_to(&self, lane: usize, job: Job, now: Tick) -> Result<(), NodeFailure> {
        let serving = self.serving();
        let lane = serving.get(lane).ok_or_else(nobody)?;
        if let Some(failure) = lane.refusal(now) {
            return Err(failure);
        }
        lane.give([Some(job), None], now, false);
        lane.wake();
        Ok(())
    }

    /// Lets a master note what it serves: now, or when it is connected.
    fn greet(&self, lane: &Node, of: &Lane, now: Tick) {
        if self.common.records.is_used() {
            of.owe_greeting();
            lane.greet_if_owed(now);
            lane.call_up();
        }
    }

    /// What tells each of the lanes that serve slots that its master has lost nothing.
    pub(crate) fn vouch(&self) -> Vec<Command> {
        let command = |it: &Arc<Node>| Some(greet_master(&self.common.records, it.lane.as_ref()?, 0, true));
        self.serving().iter().filter_map(command).collect()
    }

    /// What is known of slots is asked again.
    pub(crate) fn doubt_all(&self) {
        self.lanes().iter().for_each(|it| it.link.with(|it| it.slots.doubt_all()));
    }

    /// Until when a round that begins now may have to wait for a connection first.
    pub(crate) fn connects_until(&self, now: Tick) -> Option<Tick> {
        let timeout = self.config.connect_timeout;
        let lanes = self.lanes();
        let lanes = lanes.iter().filter(|it| serves(it)).filter_map(|it| it.connects_until(now, timeout));
        lanes.chain(self.node.connects_until(now, timeout)).max()
    }

    /// How many slots no master serves, as far as is known.
    pub(crate) fn not_served(&self) -> usize {
        self.routes().owners.iter().filter(|it| it.is_none()).count()
    }

    /// The lanes end with the thread; what they have still to bring is brought until `deadline`.
    pub(crate) fn stop(&self, deadline: Tick) {
        self.node.stop(deadline);
        // RACE: a release may be on its way to its lane. Then the thread stops the lanes, behind that.
        if !self.state.lock().homeless.is_empty() {
            return;
        }
        self.lanes().iter().for_each(|it| it.stop(deadline));
    }
}

impl Lanes for Cluster {
    fn look(&self) {
        self.state.lock().look = true;
        self.node.link.wake_worker();
    }

    fn take_over(&self, lane: usize, job: Job) -> Option<Job> {
        if job.is_for_past_owner {
            return Some(job);
        }
        let routes = self.routes();
        // As long as nobody serves it, it stays where it is.
        match job.command.slot().and_then(|it| routes.place_of_owner(it)) {
            Some(own) if own != lane => routes.give(job, time::tick(), false),
            _ => Some(job),
        }
    }

    fn take(&self, job: Job) {
        self.give([Some(job), None], time::tick(), false);
    }
}

fn nobody() -> NodeFailure {
    NodeFailure::SlotNotServed { said: "no master of the map has it".to_owned() }
}

/// The thread's side.
pub(crate) struct Mapper {
    cluster: Arc<Cluster>,
    members: AllMembers,
    /// Why there is no map, as the log has said.
    said: Option<NodeFailure>,
    said_holes: bool,
    /// The last look has led to servers that had not been asked.
    has_learned: bool,
}

impl Mapper {
    /// `seeds`: those of the address. `poll`: the one that the cluster's node wakes.
    pub(crate) fn new(cluster: Arc<Cluster>, seeds: &Group, poll: Poll) -> Mapper {
        let node = Arc::downgrade(&cluster.node);
        let wake = move || node.upgrade().iter().for_each(|it| it.link.wake_worker());
        let members = AllMembers::new(cluster.node.id, cluster.address.clone(), seeds, poll, wake);
        Mapper { cluster, members, said: None, said_holes: false, has_learned: false }
    }

    /// Runs until it is stopped.
    pub(crate) fn run(mut self) {
        let cluster = Arc::clone(&self.cluster);
        let node = Arc::clone(&cluster.node);
        let (mut next, mut soonest) = (time::tick(), time::tick());
        let mut is_used = false;
        loop {
            let now = time::tick();
            let (is_empty, look) = {
                let state = cluster.state.lock();
                (state.homeless.is_empty(), state.look)
            };
            if node.stop_at().is_some_and(|it| it <= now || is_empty) {
                break;
            }
            if !is_used && (node.is_called_up() || !is_empty) {
                is_used = true;
                let until = now.checked_add(cluster.config.connect_timeout).unwrap_or(now);
                node.set_health(Health::Connecting { until });
            }
            if is_used && (next <= now || look && soonest <= now) {
                let had_learned = std::mem::take(&mut self.has_learned);
                cluster.state.lock().look = false;
                if catch_unwind(AssertUnwindSafe(|| self.look(now, had_learned))).is_err() {
                    error!("{}: the thread that asks its cluster panicked and goes on; please report this", node.id);
                }
                soonest = time::deadline(LOOK_AGAIN);
                if self.has_learned && !had_learned {
                    // They are asked at once. Not again and again, whatever servers say.
                    (cluster.state.lock().look, soonest) = (true, now);
                }
                next = now.checked_add(cluster.rhythm.every).unwrap_or(now).max(soonest);
                self.house();
            }
            let look = cluster.state.lock().look;
            let until = if look { soonest.min(next) } else { next };
            let mut timeout = is_used.then(|| until.saturating_duration_since(time::tick()));
            if node.stop_at().is_some() {
                timeout = Some(timeout.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN));
            }
            self.members.wait(timeout);
        }
        self.end();
    }

    /// Asks all members, and takes note of what follows. `had_learned`: the look before has led to new ones.
    fn look(&mut self, now: Tick, had_learned: bool) {
        let began = Moment::now();
        let cluster = &self.cluster;
        self.members.ask(now, cluster.rhythm.look, || cluster.node.stop_at().is_some());
        let shown = self.members.shown();
        let hosts: Vec<_> = self.members.each().iter().map(|it| host_of(it.place())).collect();
        let said: Vec<_> = self.members.each_mut().iter_mut().map(said_by).collect();
        match map(&said, &hosts, &shown) {
            Ok(map) if LANES_MAX < map.masters.len() => {
                let reason = format!("{} masters, more than a cluster has", map.masters.len());
                self.miss(NodeFailure::Protocol { reason });
            }
            Ok(map) => {
                let places: Vec<_> = map.masters.iter().map(place_of).collect();
                let names = map.masters.iter().map(|it| it.name.clone());
                self.has_learned = self.members.know(&places.iter().cloned().zip(names).collect::<Vec<_>>());
                // Before anybody is told of the first map, a majority of the masters has answered, if there are so many.
                let is_enough = map.has_majority || had_learned || !self.has_learned;
                if is_enough || self.cluster.routes().has_map {
                    self.take(&map, places, began);
                }
            }
            Err(failure) => self.miss(failure),
        }
    }

    fn take(&mut self, map: &Map, places: Vec<Place>, began: Moment) {
        let cluster = Arc::clone(&self.cluster);
        let mut lanes = Vec::new();
        for (master, place) in map.masters.iter().zip(places) {
            match cluster.lane_at(&place) {
                Ok(lane) => lanes.push((lane, master)),
                Err(err) => {
                    error!("{}: {place}: no thread for it: {err}", cluster.node.id);
                    return;
                }
            }
        }
        let now = time::tick();
        let slot_of_set = slot_of_set();
        for (index, (lane, master)) in (0..).zip(&lanes) {
            let Some(of) = &lane.lane else { continue };
            let changed = of.serve(served(master), map.owner(slot_of_set) == Some(index));
            if changed {
                // What it serves, or since when, is another. What it has lost is noted there, because it may get it back.
                lane.link.with(|it| it.slots.doubt_all());
                cluster.greet(lane, of, now);
            }
            if master.says_so && map.has_majority {
                lane.believe_until(began.checked_add(cluster.rhythm.believed).unwrap_or(began));
            }
        }
        let owners = (0..=u16::MAX).take(SLOTS).map(|slot| {
            let lane = map.owner(slot).and_then(|it| lanes.get(it))?;
            lane.0.lane.as_ref().map(|it| it.index)
        });
        cluster.install(owners.collect(), &lanes, now);
        if !matches!(cluster.node.health(), Health::Up) {
            cluster.node.set_health(Health::Up);
            lanes.iter().for_each(|it| it.0.call_up());
            info!("{}: {}: a cluster of {} masters", cluster.node.id, cluster.node.address, lanes.len());
        }
        self.said = None;
        let holes = !map.is_whole();
        if holes && !std::mem::replace(&mut self.said_holes, true) {
            warn!("{}: {}: some slots of the cluster are served by no master", cluster.node.id, cluster.node.address);
        }
        self.said_holes = holes;
    }

    /// There is no map now. The one there was stays: what its masters grant counts as long as they are believed.
    fn miss(&mut self, failure: NodeFailure) {
        let node = &self.cluster.node;
        if self.said.as_ref().is_none_or(|it| it.kind() != failure.kind()) {
            let level = if failure.needs_somebody() { Level::Warn } else { Level::Info };
            write_line!(level, "{}: {}: {failure}", node.id, node.address);
        }
        if !self.cluster.routes().has_map {
            node.set_health(Health::Down(failure.clone()));
            node.note_failed();
        }
        self.said = Some(failure);
    }

    /// Looks after what has no lane: it goes to the lane that there is now, or is refused, or waits on.
    fn house(&self) {
        let now = time::tick();
        let node = &self.cluster.node;
        let health = node.health();
        loop {
            let (routes, jobs) = {
                let mut state = self.cluster.state.lock();
                (Arc::clone(&state.routes), state.homeless.take())
            };
            let (mut kept, mut gone) = (VecDeque::new(), Vec::new());
            for job in jobs {
                let slot = job.command.slot();
                let left = if routes.has_map { routes.give(job, now, false) } else { Some(job) };
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
                        job.answer(node.id, Answer::Failed(failure), false);
                    }
                    None => kept.push_back(job),
                }
            }
            if !self.cluster.state.lock().homeless.put_back(kept, gone) {
                return;
            }
        }
    }

    fn end(&self) {
        let node = &self.cluster.node;
        let deadline = node.stop_at().unwrap_or_else(time::tick);
        node.set_health(Health::Down(NodeFailure::ShutDown));
        let (threads, left) = {
            let mut state = self.cluster.state.lock();
            Arc::make_mut(&mut state.routes).has_map = false;
            (std::mem::take(&mut state.threads), state.homeless.take())
        };
        for mut job in left {
            job.answer(node.id, Answer::Failed(NodeFailure::ShutDown), false);
        }
        self.cluster.lanes().iter().for_each(|it| it.stop(deadline));
        let deadline = deadline.checked_add(LAST_WRITES).unwrap_or(deadline);
        for thread in threads {
            if thread.join_until(deadline).is_none() {
                debug!("{}: a lane is still busy", node.id);
            }
        }
    }
}

impl Cluster {
    /// The lane for a master; a new one if there is none.
    fn lane_at(self: &Arc<Self>, place: &Place) -> io::Result<Arc<Node>> {
        let address = self.address.at(place.clone());
        let shown = address.shown();
        let mut state = self.state.lock();
        let State { routes, threads, .. } = &mut *state;
        let in_use = || routes.lanes.iter().filter(|it| it.stop_at().is_none());
        if let Some(lane) = in_use().find(|it| it.address == shown) {
            return Ok(Arc::clone(lane));
        }
        if LANES_MAX <= in_use().count() {
            return Err(io::Error::other("more masters than a cluster has"));
        }
        // Masters whose addresses change now and then leave nothing behind for ever.
        let free = routes.free_place(threads);
        let index = free.unwrap_or(routes.lanes.len());
        let voter = free.and_then(|it| routes.lanes.get(it)?.lane.as_ref()).map(|it| it.voter);
        let voter = voter.unwrap_or_else(|| self.run_ids.lock().enter(self.node.id));
        let this: Weak<Cluster> = Arc::downgrade(self);
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let handle = WorkerHandle { registry: poll.registry().try_clone()?, waker };
        let eligibility = Eligibility::new(self.config.quarantine_length(), self.config.margin.share);
        let node = Node::new(self.node.id, shown, handle, self.common.clone(), eligibility);
        let lane = Arc::new(node.into_lane(Lane::new(index, voter, this), &self.node));
        let run_ids = Arc::clone(&self.run_ids);
        let worker = Worker::new(Arc::clone(&lane), address, None, &self.config, run_ids, poll);
        let name = format!("quorlock-{}-{index}", self.node.id);
        let thread = aside::spawn(name, move || worker.run())?;
        let lanes = &mut Arc::make_mut(routes).lanes;
        match lanes.get_mut(index).zip(threads.get_mut(index)) {
            Some(place) => (*place.0, *place.1) = (Arc::clone(&lane), thread),
            None => {
                lanes.push(Arc::clone(&lane));
                threads.push(thread);
            }
        }
        Ok(lane)
    }

    /// Commands go by this map from now on.
    fn install(&self, owners: Vec<Option<usize>>, lanes: &[(Arc<Node>, &Master)], now: Tick) {
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
        let stale = |it: &&Arc<Node>| !lanes.iter().any(|(lane, _)| Arc::ptr_eq(lane, it));
        for lane in routes.lanes.iter().filter(stale) {
            let Some(of) = &lane.lane else { continue };
            of.serve(Served::default(), false);
            // What was given to it until then can be of use no more.
            if of.is_idle_since(now).checked_add(self.config.longest_life()).is_some_and(|it| it < now) {
                lane.stop(now);
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

fn served(master: &Master) -> Served {
    let range = |it: &(u16, u16)| format!("{}-{}", it.0, it.1);
    let slots = master.slots.iter().map(range).collect::<Vec<_>>().join(",");
    let last = master.slots.last().map(|it| it.1);
    Served { epoch: master.epoch, slots: slots.into(), last, name: master.name.clone() }
}

fn place_of(master: &Master) -> Place {
    Place::Tcp { host: master.host.clone(), port: master.port }
}

fn host_of(place: &Place) -> String {
    match place {
        Place::Tcp { host, .. } => host.clone(),
        _ => String::new(),
    }
}
