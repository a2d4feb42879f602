//! The thread of one node: connects, writes what has queued as one pipeline, reads answers as they come.
//!
//! Full duplex: it does not wait for the answers to one batch before it writes the next. It sleeps in one place, on
//! the socket and on its wake-up. A connection is given up when it breaks or talks nonsense, and not because an
//! answer is late: what is queued behind that answer, releases above all, must run behind it. Only when no answer has come
//! for so long that everything that is under way has expired, it is given up as well: bytes may be acknowledged by
//! something whose far side is gone.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::config::Config;
use crate::engine::nodes::connect::{Connecting, Opened, Progress};
use crate::engine::nodes::drive::{self, Driven};
use crate::engine::nodes::job::Job;
use crate::engine::nodes::link::{self, Driver};
use crate::engine::nodes::primary::{NodeAddress, Primary};
use crate::engine::nodes::server::{Health, MUTE_MIN, NodeContext, Server, WorkerHandle};
use crate::error::NodeFailure;
use crate::ids::NodeId;
use crate::logic::eligibility::{Eligibility, Times};
use crate::logic::run_ids::{BehindAddress, Double, RunIds};
use crate::observer::Event;
use crate::stats::count;
use crate::sys::logging::{Level, debug, error, info, warn, write_line};
use crate::sys::sync::Mutex;
use crate::sys::{Events, OwnThread, Poll, SOCKET, WAKE, Waker, aside};
use crate::time::{self, Now, Tick};
use crate::wire::Address;

/// Pauses between attempts to connect: doubling, and a random part on top so that clients do not come in step.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(1);

/// How often a worker looks again that was asked to stop, or whose connection seems to be mute.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How often a server is asked again what the login has asked.
const FACTS_EVERY: Duration = Duration::from_secs(60);

/// Where the worker is with its connection.
enum WorkerPhase {
    /// Nobody has used the node yet.
    Unused,
    /// Members of the node are asked for the server.
    Finding {
        deadline: Tick,
    },
    Connecting(Box<Connecting>),
    Open,
    Down {
        retry_at: Tick,
    },
}

pub(crate) struct Worker {
    server: Arc<Server>,
    primary: Primary,
    connect_timeout: Duration,
    run_ids: Arc<Mutex<RunIds>>,
    poll: Poll,
    events: Events,
    phase: WorkerPhase,
    /// Failed attempts to connect since the node was up.
    failures: u32,
    /// Since when the log says that the node is down.
    down_since: Option<Tick>,
    /// The last connection was established, and lost before it had answered anything: the node is not called up again
    /// before it answers.
    flapping: bool,
    behind: BehindAddress,
    /// The first of two connections.
    first: Option<Box<Opened>>,
    /// When the server is asked again what the login has asked.
    facts_at: Tick,
    said_cannot_wait: bool,
}

enum Flow {
    Go,
    Stop,
}

impl Worker {
    /// Starts the thread of a node, in front of `threads`, and those that watch its members, behind them. Touches no network: it
    /// connects when it gets its first command.
    pub(super) fn start(
        id: NodeId,
        address: NodeAddress,
        config: &Config,
        common: NodeContext,
        run_ids: Arc<Mutex<RunIds>>,
        threads: &mut Vec<OwnThread>,
    ) -> io::Result<Arc<Server>> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let registry = poll.registry().try_clone()?;
        let handle = WorkerHandle { registry, waker };
        let eligibility = Eligibility::new(common.records.quarantine(), config.margin.share);
        let server = Arc::new(Server::new(
            id,
            Arc::clone(&address.shown),
            handle,
            common,
            eligibility,
        ));
        let woken = Arc::clone(&server);
        let wake = Arc::new(move || woken.link.wake_worker());
        let primary = Primary::start(address, id, config, wake, threads)?;
        let worker = Worker::new(Arc::clone(&server), primary, config, run_ids, poll);
        let thread = aside::spawn(format!("quorlock-{id}"), move || worker.run())?;
        threads.insert(0, thread);
        Ok(server)
    }

    fn new(
        server: Arc<Server>,
        primary: Primary,
        config: &Config,
        run_ids: Arc<Mutex<RunIds>>,
        poll: Poll,
    ) -> Worker {
        Worker {
            server,
            primary,
            connect_timeout: config.connect_timeout,
            run_ids,
            poll,
            events: Events::with_capacity(8),
            phase: WorkerPhase::Unused,
            failures: 0,
            down_since: None,
            flapping: false,
            behind: BehindAddress::default(),
            first: None,
            facts_at: time::tick(),
            said_cannot_wait: false,
        }
    }

    /// Runs until the node is stopped.
    pub(crate) fn run(mut self) {
        loop {
            // One bad reply must cost one connection, not this node's vote for the rest of the process.
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(Flow::Go) => {}
                Ok(Flow::Stop) => break,
                Err(_) => {
                    error!(
                        "{}: {}: its thread panicked and reconnects; please report this",
                        self.server.id, self.server.address
                    );
                    self.go_down(&NodeFailure::Internal);
                }
            }
        }
        self.go_down(&NodeFailure::ShutDown);
        self.server.queue.close();
    }

    fn turn(&mut self) -> Flow {
        let now = time::tick();
        if self.is_done(now) {
            return Flow::Stop;
        }
        match std::mem::replace(&mut self.phase, WorkerPhase::Unused) {
            WorkerPhase::Unused if self.server.queue.is_empty() => self.sleep(None),
            WorkerPhase::Unused => self.connect(now),
            WorkerPhase::Down { retry_at } if retry_at <= now => self.connect(now),
            WorkerPhase::Down { retry_at } => {
                self.phase = WorkerPhase::Down { retry_at };
                self.refuse_queue();
                self.sleep(Some(retry_at));
            }
            WorkerPhase::Finding { deadline } => self.find(deadline, now),
            WorkerPhase::Connecting(connecting) => self.go_on_connecting(*connecting, now),
            WorkerPhase::Open => {
                self.phase = WorkerPhase::Open;
                if let Err(failure) = self.serve() {
                    self.lose_connection(&failure);
                }
            }
        }
        Flow::Go
    }

    /// Whether it was asked to stop, and can.
    fn is_done(&self, now: Tick) -> bool {
        self.server
            .standing
            .stop_at()
            .is_some_and(|deadline| deadline <= now || !self.has_work())
    }

    /// Whether a worker that was asked to stop still has something to bring to its server.
    fn has_work(&self) -> bool {
        let queued = !self.server.queue.is_empty();
        match self.phase {
            // The answers of a hung node are not waited for: it has what was written, and runs it when it goes on.
            WorkerPhase::Open => {
                let (flushed, answered) = self
                    .server
                    .link
                    .with(|it| (it.conn.is_flushed(), it.conn.in_flight() == 0));
                queued || !flushed || !(answered || self.server.is_stalled(time::tick()))
            }
            WorkerPhase::Finding { .. } | WorkerPhase::Connecting(_) => {
                queued || !self.server.unconfirmed.lock().is_empty()
            }
            WorkerPhase::Unused => queued,
            WorkerPhase::Down { .. } => false,
        }
    }

    /// Sleeps until there is something to do, or until `deadline`.
    fn sleep(&mut self, deadline: Option<Tick>) {
        let stop_at = self.server.standing.stop_at().map(|it| {
            time::tick()
                .checked_add(LOOK_AGAIN)
                .map_or(it, |look| it.min(look))
        });
        let deadline = [deadline, stop_at].into_iter().flatten().min();
        self.server.fall_asleep();
        // RACE: see `Server::wake`: the queue is looked at once more after the announcement.
        let may_write =
            !matches!(self.phase, WorkerPhase::Open) || self.server.link.load.may_write();
        let queued = !self.server.queue.is_empty() && may_write;
        let timeout = if !queued {
            deadline.map(|it| it.saturating_duration_since(time::tick()))
        } else {
            Some(Duration::ZERO)
        };
        self.wait(timeout);
        self.server.wake_up();
    }

    /// Waits for the socket or a wake-up. While a connection is being opened nobody calls `fall_asleep` before it:
    /// commands that queue meanwhile wait for the connection and are no reason to get up.
    fn wait(&mut self, timeout: Option<Duration>) {
        if let Err(err) = self.poll.poll(&mut self.events, timeout)
            && err.kind() != io::ErrorKind::Interrupted
        {
            let level = if self.said_cannot_wait {
                Level::Debug
            } else {
                Level::Error
            };
            self.said_cannot_wait = true;
            write_line!(
                level,
                "{}: {}: cannot wait for its socket: {err}",
                self.server.id,
                self.server.address
            );
        }
    }

    fn connect(&mut self, now: Tick) {
        let deadline = now.checked_add(self.connect_timeout).unwrap_or(now);
        if self.failures == 0 {
            self.server
                .standing
                .set_health(Health::Connecting { until: deadline });
        }
        self.primary.ask();
        self.find(deadline, now);
    }

    /// Connects as soon as it is known where the server is. Half of the time is for that.
    fn find(&mut self, deadline: Tick, now: Tick) {
        let half = self.connect_timeout.checked_div(2).unwrap_or_default();
        let left = deadline.saturating_duration_since(now);
        match self.primary.find(left <= half) {
            Some(Ok(address)) => self.connect_to(&address, left),
            Some(Err(failure)) => self.go_down(&failure),
            None => {
                self.phase = WorkerPhase::Finding { deadline };
                self.refuse_queue();
                let wait = left.saturating_sub(half);
                let stop_at = self.server.standing.stop_at();
                let until_stop = stop_at.map(|it| it.saturating_duration_since(now));
                self.wait(Some(until_stop.map_or(wait, |it| it.min(wait))));
            }
        }
    }

    fn connect_to(&mut self, address: &Address, timeout: Duration) {
        let records = &self.server.records;
        match Connecting::begin(address, Some(records.in_login()), timeout, &self.poll) {
            Ok(connecting) => self.phase = WorkerPhase::Connecting(Box::new(connecting)),
            Err(failure) => self.go_down(&failure),
        }
    }

    fn go_on_connecting(&mut self, mut connecting: Connecting, now: Tick) {
        match connecting.step(&self.poll, now) {
            Ok(Progress::Wait) => {
                // Of a node that is down nobody waits for this attempt.
                self.refuse_queue();
                let deadline = self
                    .server
                    .standing
                    .stop_at()
                    .map_or(connecting.deadline(), |it| it.min(connecting.deadline()));
                self.phase = WorkerPhase::Connecting(Box::new(connecting));
                self.wait(Some(deadline.saturating_duration_since(now)));
            }
            // Whoever only looks has the time to see whether the address leads to the same server once more.
            Ok(Progress::Done(opened))
                if self.first.is_none()
                    && self.primary.lease().is_none()
                    && !self.server.records.is_used() =>
            {
                self.first = Some(opened);
                self.connect(now);
            }
            Ok(Progress::Done(opened)) => self.come_up(*opened),
            Err(failure) => self.go_down(&failure),
        }
    }

    fn come_up(
        &mut self,
        Opened {
            socket,
            conn,
            mut server_info,
            asked,
            said_time,
        }: Opened,
    ) {
        let first = self.first.take();
        match self.primary.lease() {
            Some(Ok(until)) => {
                self.server.set_lease(until);
                // That is what the node was given as.
                server_info.has_members = true;
            }
            Some(Err(failure)) => return self.go_down(&failure),
            None => {
                // What has ended its connection may have been restarted.
                let first = first.and_then(|mut it| {
                    let is_open = link::read(&mut it.conn, &it.socket).is_ok();
                    it.server_info.run_id.filter(|_| is_open)
                });
                let now = time::tick();
                let mut is_several = false;
                // The first once more: it is alive beside the second.
                for run_id in [&first, &server_info.run_id, &first].into_iter().flatten() {
                    is_several = self.behind.is_several(run_id, now);
                }
                if is_several {
                    return self.go_down(&NodeFailure::SEVERAL);
                }
            }
        }
        server_info.other_nodes = server_info
            .greet_reply
            .as_ref()
            .and_then(|reply| self.server.records.other_nodes(reply));
        if let Some(reply) = &server_info.greet_reply {
            self.server.records.raise(reply.max_ttl);
        }
        if let Some(failure) = self.server.records.refusal(&server_info) {
            self.go_down(&failure);
            return;
        }
        if let Some(run_id) = &server_info.run_id
            && let Err(Double { other, is_news }) = self.claim(run_id)
        {
            if is_news {
                let Server { id, address, .. } = &*self.server;
                warn!(
                    "{id}: {address}: the same server as {other}, or one of them shows a false run ID: the two are counted as one"
                );
            }
            self.go_down(&NodeFailure::SameServer { other });
            return;
        }
        count(&self.server.counters.connections);
        count(&self.server.own_counters.connections);
        if !self.flapping {
            self.log_up();
        }
        self.server.status.publish_server_info(&server_info);
        let now = time::tick();
        {
            let mut eligibility = self.server.eligibility.lock();
            eligibility.length = self.server.records.quarantine();
            let times = Times {
                asked: asked.tick,
                asked_at: asked.moment,
                answered: now,
                answered_at: said_time,
            };
            let news = eligibility.on_connect(&server_info, times);
            self.server.publish_eligibility(&eligibility, news, now);
        }
        // Releases of the time before come first: they are older than anything in the queue.
        let again = self.server.unconfirmed.lock().take_all(now);
        self.server
            .open(socket, conn, server_info.greet_reply, again, now);
        self.server.standing.set_health(Health::Up);
        self.facts_at = now.checked_add(FACTS_EVERY).unwrap_or(now);
        let Server {
            id,
            address,
            upcall,
            ..
        } = &*self.server;
        upcall.tell(|| Event::NodeUp {
            node: *id,
            address: Arc::clone(address),
        });
        self.phase = WorkerPhase::Open;
    }

    fn claim(&self, run_id: &str) -> Result<(), Double> {
        let node = self.server.id;
        self.run_ids.lock().claim(node, run_id, time::tick())
    }

    fn log_up(&mut self) {
        match self.down_since.take() {
            Some(since) => {
                let down = time::tick().saturating_duration_since(since);
                info!(
                    "{}: up after {}: {}",
                    self.server.id,
                    time::About(down),
                    self.server.address
                );
            }
            None => debug!("{}: connected: {}", self.server.id, self.server.address),
        }
    }

    /// Drives an open connection until it is lost, or until the worker is to stop.
    fn serve(&mut self) -> Result<(), NodeFailure> {
        let server = Arc::clone(&self.server);
        let mut result = Ok(());
        drive::drive(
            Driver::Worker,
            &mut [Driven::new(Arc::clone(&server), None)],
            |driven| {
                let now = time::tick();
                if self.is_done(now) {
                    return false;
                }
                result = driven
                    .iter_mut()
                    .try_for_each(|it| self.prepare(&server, it, now));
                result.is_ok()
            },
        );
        result
    }

    /// Writes what has queued, and sleeps until there may be something to read.
    fn prepare(
        &mut self,
        server: &Server,
        driven: &mut Driven,
        now: Tick,
    ) -> Result<(), NodeFailure> {
        match self.primary.lease() {
            Some(Ok(until)) => server.set_lease(until),
            Some(Err(failure)) => return Err(failure),
            None => {}
        }
        if self.facts_at <= now {
            self.facts_at = now.checked_add(FACTS_EVERY).unwrap_or(now);
            server.look_again(Now::read());
        }
        let (again, next_again) = server.unconfirmed.lock().take_due(now);
        let patience = server.link.load.response_timeout.max(MUTE_MIN);
        let (broken, has_answered, give_up_at) = server.link.with(|state| {
            server.write(state, again, now);
            let give_up_at = state.conn.give_up_at(patience);
            server.set_watched(give_up_at.is_some());
            (state.broken(), state.has_answered(), give_up_at)
        });
        if has_answered && self.failures != 0 {
            self.failures = 0;
            self.flapping = false;
            self.log_up();
        }
        if let Some(failure) = broken {
            return Err(failure);
        }
        if driven.readable {
            return Ok(());
        }
        let look_at = match give_up_at {
            Some(at) if at <= now => {
                // An answer that has come and that nobody has read yet makes it worth keeping.
                if server.is_stalled(now) {
                    let reason = "no answer to anything any more".to_owned();
                    server
                        .link
                        .with(|it| it.give_up(NodeFailure::Disconnected { reason }));
                }
                now.checked_add(LOOK_AGAIN)
            }
            at => at,
        };
        let due = [next_again, look_at, Some(self.facts_at)];
        self.sleep(due.into_iter().flatten().min());
        for event in self.events.iter().filter(|it| it.token() == SOCKET) {
            let closing = event.is_error() || event.is_read_closed();
            driven.readable |= event.is_readable() || closing;
            driven.closing |= closing;
        }
        Ok(())
    }

    /// The connection is of no use any more.
    fn lose_connection(&mut self, failure: &NodeFailure) {
        self.flapping = self.server.link.with(|it| !it.has_answered());
        if !self.flapping {
            self.failures = 0;
        }
        if self.failures != 0 {
            // It has not answered anything since it came up.
            self.go_down(failure);
            return;
        }
        // The first attempt to come back is made at once, and commands wait for it: most lost connections are
        // restarts, and proxies that close what is idle.
        let now = time::tick();
        let until = now.checked_add(self.connect_timeout).unwrap_or(now);
        self.server
            .standing
            .set_health(Health::Connecting { until });
        self.disconnect(failure);
        self.phase = WorkerPhase::Down { retry_at: now };
    }

    /// Ends the connection, or the attempt, and refuses what comes until the next one.
    fn go_down(&mut self, failure: &NodeFailure) {
        self.server
            .standing
            .set_health(Health::Down(failure.clone()));
        self.disconnect(failure);
        self.refuse_queue();
        let pause = RETRY_FIRST
            .saturating_mul(2_u32.saturating_pow(self.failures.min(10)))
            .min(RETRY_LAST);
        let pause = pause.saturating_add(pause.mul_f64(fastrand::f64() / 4.0));
        self.failures = self.failures.saturating_add(1);
        let now = time::tick();
        self.phase = WorkerPhase::Down {
            retry_at: now.checked_add(pause).unwrap_or(now),
        };
    }

    /// Closes the connection: every waiting command gets its failure, and releases are kept.
    fn disconnect(&mut self, failure: &NodeFailure) {
        let was_open = matches!(self.phase, WorkerPhase::Open);
        self.phase = WorkerPhase::Unused;
        let unanswered = self.server.close();
        let is_lost = matches!(failure, NodeFailure::Disconnected { .. });
        let is_idle = was_open && is_lost && unanswered.is_empty();
        self.run_ids.lock().leave(self.server.id, time::tick());
        let Server {
            id,
            address,
            upcall,
            ..
        } = &*self.server;
        upcall.tell(|| Event::NodeDown {
            node: *id,
            address: Arc::clone(address),
            why: failure.clone(),
        });
        if *failure != NodeFailure::ShutDown {
            count(&self.server.counters.connection_failures);
            count(&self.server.own_counters.connection_failures);
            let (now, was_down) = (time::tick(), self.down_since.is_some());
            let level = match was_down {
                _ if self.server.status.may_warn_of(failure, now) => Level::Warn,
                false if !is_idle => Level::Info,
                _ => Level::Debug,
            };
            let still = if was_down { "still " } else { "" };
            write_line!(
                level,
                "{}: {still}down: {}: {failure}",
                self.server.id,
                self.server.address
            );
            // Balancers end idle connections: that nothing waited for this one is no news unless the next attempt fails.
            if !is_idle {
                self.down_since.get_or_insert(now);
            }
        }
        for mut job in unanswered {
            job.answer(self.server.id, Answer::Failed(failure.clone()), true);
            self.keep(job);
        }
    }

    /// Answers what has queued with the reason why no connection is expected, if so: nothing of it has come to the server.
    fn refuse_queue(&mut self) {
        let Health::Down(failure) = self.server.standing.health() else {
            return;
        };
        let queued: Vec<_> = self
            .server
            .link
            .with(|_| self.server.queue.take().collect());
        for mut job in queued {
            job.answer(self.server.id, Answer::Failed(failure.clone()), false);
            self.keep(job);
        }
    }

    /// Keeps a release for the next connection.
    fn keep(&mut self, job: Job) {
        let now = time::tick();
        if self.server.unconfirmed.lock().keep(job, now) {
            self.server.status.say_overflow(now);
        }
    }
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests;
