//! One server: give it a command, or get at once the reason why not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::{Answer, GreetReply};
use crate::engine::nodes::events::NodeEvents;
use crate::engine::nodes::job::{CommandQueue, Job};
use crate::engine::nodes::leaving::ListExits;
use crate::engine::nodes::link::{Link, LinkState};
use crate::engine::nodes::load::{Load, Room};
use crate::engine::nodes::records::Records;
use crate::engine::nodes::resend::Unconfirmed;
use crate::engine::nodes::status::Status;
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::{ClientId, NodeId};
use crate::logic::eligibility::{Change, Eligibility};
use crate::observer::Upcall;
use crate::stats::{Counters, NodeCounters, NodeStats, count};
use crate::sys::logging::{debug, info};
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex, fence};
use crate::sys::{Registry, Socket, Waker};
use crate::time::{Moment, Now, Tick};
use crate::wire::{Command, Conn, Plan, Waiter};

/// One server and the connection to it, shared by its worker and everybody who sends.
pub(crate) struct Server {
    pub(crate) id: NodeId,
    pub(crate) address: Arc<str>,
    pub(super) queue: CommandQueue,
    /// Set while the worker sleeps or is about to: only then it needs to be woken.
    asleep: AtomicBool,
    /// The worker looks by itself at whether the connection is worth keeping.
    watched: AtomicBool,
    pub(crate) standing: Standing,
    pub(crate) link: Link,
    /// Whether what the node grants counts: for the thread that hands out its answers.
    pub(super) eligibility: Mutex<Eligibility>,
    pub(crate) status: Status,
    /// End of the lease: see [`Server::has_lease`].
    lease_until: AtomicU64,
    /// Whether the log has said that the node does not respond.
    stall_logged: Arc<AtomicBool>,
    /// Releases that the server has not confirmed.
    pub(super) unconfirmed: Mutex<Unconfirmed>,
    leaving: Arc<ListExits>,
    /// What the node's waiting lists call this manager.
    client: ClientId,
    subscribe: Arc<Command>,
    /// Some call has waited, so a new connection listens from its beginning.
    wants_notices: AtomicBool,
    /// The connection listens.
    listening: AtomicBool,
    pub(crate) records: Arc<Records>,
    pub(super) counters: Arc<Counters>,
    pub(super) own_counters: Arc<NodeCounters>,
    pub(super) upcall: Upcall,
    pub(super) room: Arc<Room>,
    events: Arc<dyn NodeEvents>,
}

/// The shortest silence after which a connection can be given up, however short-lived its locks are: a server may be busy
/// for a moment, and a new connection to it would wait as well.
pub(crate) const MUTE_MIN: Duration = Duration::from_secs(1);

/// Commands that go out together: at most a release, and the acquire of whoever comes next.
pub(crate) type Jobs = [Option<Job>; 2];

/// How a node reaches its worker.
pub(crate) struct WorkerHandle {
    pub(crate) registry: Registry,
    pub(crate) waker: Waker,
}

/// What all nodes of a manager have in common.
#[derive(Clone)]
pub(crate) struct NodeContext {
    pub(crate) start: Tick,
    pub(crate) response_timeout: Duration,
    pub(crate) room: Arc<Room>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) upcall: Upcall,
    pub(crate) client: ClientId,
    pub(crate) events: Arc<dyn NodeEvents>,
    pub(crate) records: Arc<Records>,
}

impl Server {
    pub(crate) fn new(
        id: NodeId,
        address: Arc<str>,
        WorkerHandle { registry, waker }: WorkerHandle,
        common: NodeContext,
        eligibility: Eligibility,
    ) -> Server {
        let NodeContext {
            start,
            response_timeout,
            room,
            counters,
            upcall,
            client,
            events,
            ..
        } = common;
        let records = common.records;
        let (shown, of_all) = (Arc::clone(&address), Arc::clone(&records));
        Server {
            status: Status::new(
                id,
                shown,
                start,
                Arc::clone(&counters),
                upcall.clone(),
                of_all,
            ),
            link: Link::new(id, Load::new(start, response_timeout), registry, waker),
            id,
            address,
            queue: CommandQueue::default(),
            asleep: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            standing: Standing::default(),
            eligibility: Mutex::new(eligibility),
            lease_until: AtomicU64::new(u64::MAX),
            stall_logged: Arc::default(),
            unconfirmed: Mutex::default(),
            leaving: Arc::default(),
            client,
            subscribe: Arc::new(Command::subscribe(&client.channel())),
            wants_notices: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            records,
            counters,
            own_counters: Arc::default(),
            upcall,
            room,
            events,
        }
    }

    /// Whether what was asked at `asked` counts: the [members](crate::engine::nodes::primary) of the node had named this server
    /// shortly before. Always, for a plain address.
    pub(super) fn has_lease(&self, asked: Moment) -> bool {
        asked.boot_micros() <= self.lease_until.load(Ordering::Acquire)
    }

    /// Members name this server, and that counts for what is asked until then.
    pub(super) fn set_lease(&self, until: Moment) {
        self.lease_until
            .store(until.boot_micros(), Ordering::Release);
    }

    /// Why the node is not to be asked now, if so: it is down, or silent for longer than `patience`.
    pub(crate) fn refusal(&self, patience: Duration, now: Tick) -> Option<NodeFailure> {
        if let Some(failure) = self.standing.refusal(now) {
            return Some(failure);
        }
        // Said after the response timeout, whatever the patience.
        if !self.is_stalled(now) {
            return None;
        }
        // Callers write by themselves, so the worker may not have looked since the answers are due.
        if !self.watched.swap(true, Ordering::AcqRel) {
            self.link.wake_worker();
        }
        self.link
            .load
            .is_due_for(patience, now)
            .then_some(NodeFailure::Stalled)
    }

    /// Whether the node is silent: an answer has been due for longer than the response timeout, and has not come. It is not
    /// asked again until it has caught up: what was sent already will be answered in order, and more would only make its
    /// backlog longer.
    ///
    /// An answer that has come and that nobody has read yet is not the node's delay: on a busy machine the thread that would
    /// read it waits for a processor. So nobody goes by the age of what is under way alone.
    ///
    /// Reads nothing, so that it can be asked with anything locked but the connection.
    pub(crate) fn is_stalled(&self, now: Tick) -> bool {
        let stalled = self.link.load.is_overdue(now) && self.link.is_silent(now);
        if stalled && !self.stall_logged.swap(true, Ordering::AcqRel) {
            info!("{}: not responding: {}", self.id, self.address);
            self.upcall.tell_silence(self.id, &self.stall_logged, true);
        }
        stalled
    }

    /// Answers have come in time: says so once.
    pub(crate) fn note_answers(&self) {
        if self.stall_logged.load(Ordering::Acquire)
            && self.stall_logged.swap(false, Ordering::AcqRel)
        {
            info!("{}: responding again: {}", self.id, self.address);
            self.upcall.tell_silence(self.id, &self.stall_logged, false);
        }
    }

    /// Whether a call may begin a round without outrunning this node.
    pub(crate) fn has_room(&self, now: Tick) -> bool {
        !self.standing.is_up() || self.link.load.has_room(self.queue.len(), now)
    }
}

/// Commands.
impl Server {
    /// Takes commands whatever the node's health, one behind the other and in one write: releases must not be dropped.
    ///
    /// `directly`: the caller writes them itself if the connection has nothing else to write. That spares the worker a
    /// wake-up when there is little to do, and batching is better when there is much. Otherwise the worker must be
    /// [woken](Server::wake).
    pub(crate) fn give(&self, jobs: Jobs, now: Tick, directly: bool) {
        let jobs = if directly {
            self.write_directly(jobs, now)
        } else {
            Some(jobs)
        };
        for mut job in jobs.into_iter().flatten().flatten() {
            count(&self.counters.commands);
            job.is_alone = self.link.load.in_flight() == 0 && self.queue.is_empty();
            self.queue.push(job);
        }
    }

    /// Writes them, or gives them back.
    fn write_directly(&self, jobs: Jobs, now: Tick) -> Option<Jobs> {
        let mut jobs = Some(jobs);
        let written = self.link.try_with(|state| {
            // RACE: commands are taken out of the queue only with the connection locked. So an empty queue, seen
            // with the connection locked, means that every command given earlier is on the connection already, and ours goes
            // behind it.
            if !state.is_open() || !state.conn.is_flushed() || !self.queue.is_empty() {
                return jobs.take();
            }
            let asked = Now {
                tick: now,
                moment: Moment::now(),
            };
            for mut job in jobs.take().into_iter().flatten().flatten() {
                count(&self.counters.commands);
                job.is_alone = state.conn.in_flight() == 0;
                self.enqueue(state, job, asked);
            }
            state.flush();
            state.end_idle();
            None
        });
        // If it is broken the worker is woken, and if bytes did not fit, it is woken when there is room.
        written.unwrap_or(jobs)
    }

    /// Puts a command behind all others, and before it what it needs: a greeting, a subscription.
    ///
    /// RACE: what is released between an entry in a waiting list and the subscription would be announced to nobody. Both
    /// go over this connection, in this order.
    pub(crate) fn enqueue(&self, state: &mut LinkState, job: Job, asked: Now) {
        if let Some(job) = self.admit(state, job, asked) {
            self.put(state, job, asked);
        }
    }

    /// Puts a command behind all others.
    pub(super) fn put(&self, state: &mut LinkState, job: Job, asked: Now) {
        if job.command.waits {
            self.wants_notices.store(true, Ordering::Relaxed);
            self.subscribe(state, asked);
        }
        state.conn.enqueue(job, asked);
    }

    fn subscribe(&self, state: &mut LinkState, asked: Now) {
        if state.conn.may_subscribe() {
            state
                .conn
                .enqueue(Job::of_connection(Arc::clone(&self.subscribe)), asked);
        }
    }

    /// Wakes the worker if it sleeps; call after commands were given.
    pub(crate) fn wake(&self) {
        // RACE: the worker announces that it will sleep and then looks at its queue once more; we put into the queue
        // and then look at the announcement. One of the two sees the other, in whatever order they run.
        fence(Ordering::SeqCst);
        if self.link.load.is_idle() {
            // What has queued may wait for an answer, which nobody would read.
            self.link.end_idle();
        }
        if self.link.load.may_write()
            && self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
        {
            self.link.wake_worker();
        }
    }

    /// What is known of it.
    pub(crate) fn stats(&self) -> NodeStats {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        NodeStats {
            node: self.id,
            address: Arc::clone(&self.address),
            up: self.standing.is_up(),
            silent: self.stall_logged.load(Ordering::Acquire),
            unanswered: self.link.load.in_flight(),
            queued: self.queue.len(),
            answers: of(&self.own_counters.answers),
            failures: of(&self.own_counters.failures),
            connections: of(&self.own_counters.connections),
            connection_failures: of(&self.own_counters.connection_failures),
        }
    }

    /// Asks the worker to end: at once if nothing is left to do, at `deadline` in any case.
    pub(crate) fn stop(&self, deadline: Tick) {
        self.standing.stop(deadline);
        self.link.wake_worker();
    }
}

/// Answers.
impl Server {
    /// Whether releases are announced on this connection.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// The answer to the subscription has come.
    pub(super) fn set_listening(&self, answer: &Answer) {
        let listening = *answer == Answer::Subscribed;
        if !listening {
            debug!(
                "{}: no notices of releases, so waiting calls poll: {}",
                self.id,
                NodeAnswer::from(answer)
            );
        }
        self.listening.store(listening, Ordering::Release);
    }

    /// The node has announced a release. If nobody waits for it, a command is queued: the worker must be [woken](Server::wake).
    pub(super) fn take_notice(&self, key: &[u8], now: Tick) {
        self.events.released(self.id, key, &mut |plan| {
            let leave = plan.map(|it| it.leave(Waiter::Client(self.client)));
            if let Some(leave) = leave.or_else(|| Plan::leave_key(key, self.client))
                && let Some(answer) = self.leaving.begin(key)
            {
                let job = Job::release(Arc::new(leave), Some(answer), now);
                self.give([Some(job), None], now, false);
            }
        });
    }

    /// Publishes what is known of the node now.
    ///
    /// RACE: published before the leases are looked at, and whoever enters one in the schedule looks at the status after
    /// that: no step of its clock is missed.
    pub(super) fn publish_eligibility(
        &self,
        eligibility: &Eligibility,
        news: Option<Change>,
        now: Tick,
    ) {
        if self.status.publish_eligibility(eligibility, news, now) {
            self.events.clock_stepped();
        }
    }

    /// Keeps a release that the server has refused; the worker sends it again after a pause.
    pub(super) fn retry_later(&self, job: Job, now: Tick) {
        let refused = self.unconfirmed.lock().keep_refused(job, now);
        if refused.overflowed {
            self.status.say_overflow(now);
        }
        if refused.is_first {
            // It has to plan its sleep anew.
            self.link.wake_worker();
        }
    }

    /// The server has taken one that it had refused.
    pub(super) fn retry_now(&self) {
        if self.unconfirmed.lock().on_taken() {
            self.link.wake_worker();
        }
    }

    /// Why this manager could take no lock there, as the last login has shown.
    pub(crate) fn misfit(&self) -> Option<NodeFailure> {
        self.records
            .misfit(&self.status.server_info()?.greet_reply?)
    }
}

/// The worker's side.
impl Server {
    /// Begins with a new connection, and gives it what was left from the time before.
    pub(crate) fn open(
        &self,
        socket: Socket,
        conn: Conn<Job>,
        greeted: Option<GreetReply>,
        again: impl IntoIterator<Item = Job>,
        now: Tick,
    ) {
        self.listening.store(false, Ordering::Release);
        let asked = Now::read();
        self.link.open(Arc::new(socket), conn, |state| {
            state.noted = greeted.and_then(|shown| self.records.noted(&shown));
            if self.wants_notices.load(Ordering::Relaxed) {
                self.subscribe(state, asked);
            }
            again
                .into_iter()
                .for_each(|job| self.enqueue(state, job, Now { tick: now, ..asked }));
        });
    }

    /// Ends with the connection: everything that was not answered.
    pub(super) fn close(&self) -> Vec<Job> {
        self.listening.store(false, Ordering::Release);
        self.link.close()
    }

    /// Writes what has queued, unless enough is under way; `again` before it.
    pub(super) fn write(&self, state: &mut LinkState, again: Vec<Job>, now: Tick) {
        let mut wrote = !state.conn.is_flushed() || !again.is_empty();
        // Read once for all that are written together, and before.
        let asked = Now {
            tick: now,
            moment: Moment::now(),
        };
        again
            .into_iter()
            .for_each(|job| self.enqueue(state, job, asked));
        if self.link.load.may_follow(state.conn.batches) && !self.queue.is_empty() {
            self.queue
                .take()
                .for_each(|job| self.enqueue(state, job, asked));
            wrote = true;
        }
        state.flush();
        if wrote {
            state.note_shared();
        }
    }

    /// Announces that the worker is about to sleep.
    pub(super) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Notes whether the worker looks by itself at what has no answer.
    pub(super) fn set_watched(&self, watched: bool) {
        self.watched.store(watched, Ordering::Release);
    }
}

#[cfg(test)]
impl Server {
    /// One that has no worker, and the poll of the worker that it does not have.
    pub(crate) fn unattended(response_timeout: Duration) -> (Server, crate::sys::Poll) {
        let poll = crate::sys::Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        let waker = Waker::new(poll.registry(), crate::sys::WAKE).unwrap();
        let common = NodeContext {
            start: crate::time::tick(),
            response_timeout,
            room: Arc::default(),
            client: ClientId::draw().unwrap(),
            counters: Arc::new(Counters::default()),
            upcall: Upcall::default(),
            events: Arc::new(()),
            records: Arc::new(Records::new(
                &crate::config::Config {
                    quarantine: false,
                    ..crate::config::Config::default()
                },
                1,
            )),
        };
        let worker_handle = WorkerHandle { registry, waker };
        (
            Server::new(
                NodeId::new(0),
                "n0".into(),
                worker_handle,
                common,
                Eligibility::new(None, 0.01),
            ),
            poll,
        )
    }
}

/// What is known of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) enum Health {
    /// Nothing was ever sent, so nobody has tried to connect.
    #[default]
    Unused,
    /// The first attempt, or the first after a connection was lost. Commands wait for it until then.
    Connecting {
        until: Tick,
    },
    Up,
    /// Commands are refused at once, and not kept.
    Down(NodeFailure),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Standing {
    up: AtomicBool,
    health: Mutex<Health>,
    stop_at: Mutex<Option<Tick>>,
}

impl Standing {
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    pub(crate) fn set_health(&self, health: Health) {
        let up = matches!(health, Health::Up);
        *self.health.lock() = health;
        self.up.store(up, Ordering::Release);
    }

    /// Why commands are refused at once, if they are.
    pub(super) fn refusal(&self, now: Tick) -> Option<NodeFailure> {
        if self.is_up() {
            return None;
        }
        match &*self.health.lock() {
            Health::Up | Health::Unused => None,
            Health::Connecting { until } if now < *until => None,
            // The name server or the network takes longer than allowed; the thread is still at it.
            Health::Connecting { .. } => Some(NodeFailure::Connect {
                reason: "no connection in time".to_owned(),
            }),
            Health::Down(failure) => Some(failure.clone()),
        }
    }

    /// Whether a round that begins now may have to wait for a connection first.
    pub(crate) fn is_connecting(&self) -> bool {
        !self.is_up()
            && matches!(
                *self.health.lock(),
                Health::Unused | Health::Connecting { .. }
            )
    }

    /// Until when a round that begins now may have to wait for a connection first.
    pub(super) fn connects_until(&self, now: Tick, connect_timeout: Duration) -> Option<Tick> {
        if self.is_up() {
            return None;
        }
        match *self.health.lock() {
            Health::Unused => now.checked_add(connect_timeout),
            Health::Connecting { until } => Some(until),
            Health::Up | Health::Down(_) => None,
        }
    }

    /// Asks the thread to end: at once if nothing is left to do, at `deadline` in any case. It has to be woken.
    pub(super) fn stop(&self, deadline: Tick) {
        *self.stop_at.lock() = Some(deadline);
    }

    pub(super) fn stop_at(&self) -> Option<Tick> {
        *self.stop_at.lock()
    }
}
