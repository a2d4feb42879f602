//! The thread of one node: connects, reads answers, and writes the rest of the callers' commands.
//!
//! It sleeps in one place, on the socket and on its waker. It ends a broken or invalid connection,
//! but none with a late answer: releases, queued behind that answer, must run after it. Two
//! exceptions, because a middlebox may acknowledge bytes and lose them: a second connection gets
//! answers and this one none, or no answer has come until all keys of the commands under way have
//! expired.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::connect::{self, Filled, Opened, Waits};
use crate::engine::nodes::node_log::NodeLog;
use crate::engine::nodes::primary::{NodeAddress, Primary};
use crate::engine::nodes::server::{NodeContext, Server};
use crate::error::NodeFailure;
use crate::ids::NodeId;
use crate::logic::run_ids::BehindAddress;
use crate::observer::Event;
use crate::session::availability::Health;
use crate::stats::count;
use crate::sys::logging::{Level, error, warn, write_line};
use crate::sys::{Events, OwnThread, Poll, Registry, SOCKET, WAKE, Waker};
use crate::time::{self, Tick};
use crate::wire::{Security, SyncKind};

/// Pauses between attempts to connect: doubling, with a random part so that clients do not
/// synchronize.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(1);
/// Time in which a mute connection may still deliver an answer, once a second one has.
const ANEW: Duration = Duration::from_millis(100);

/// Next step of the thread.
enum Next {
    /// Waits for the first command.
    Wait,
    Connect {
        at: Tick,
    },
    /// Serves the connection.
    Serve,
}

pub(super) struct Worker {
    node: Arc<Server>,
    primary: Primary,
    log: NodeLog,
    poll: Poll,
    poll_events: Events,
    /// Failed attempts to connect since the last connection with an answer.
    failures: usize,
    /// Whether the last connection was lost before any answer: the node is not logged as up before
    /// its next answer.
    flapping: bool,
    behind: BehindAddress,
    /// First of two connections.
    probe: Option<Opened>,
    /// Address of the last connection.
    to: Option<SocketAddr>,
    logged_cannot_wait: bool,
}

impl Worker {
    /// Starts the thread of a node, in front of `threads`, and the watchers of its members, behind
    /// them. Touches no network: it connects at its first command.
    pub(super) fn start(
        id: NodeId,
        address: NodeAddress,
        common: NodeContext,
        threads: &mut Vec<OwnThread>,
    ) -> io::Result<Arc<Server>> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let shown = Arc::clone(&address.shown);
        let node = Arc::new(Server::new(id, shown, waker, common));
        let primary = Primary::start(address, &node, threads)?;
        let worker = Worker {
            log: NodeLog::new(Arc::clone(&node)),
            node: Arc::clone(&node),
            primary,
            poll,
            poll_events: Events::with_capacity(8),
            failures: 0,
            flapping: false,
            behind: BehindAddress::default(),
            probe: None,
            to: None,
            logged_cannot_wait: false,
        };
        let thread = OwnThread::spawn(format!("quorlock-{id}"), move || worker.run())?;
        threads.insert(0, thread);
        Ok(node)
    }

    /// Runs until the node is stopped.
    fn run(mut self) {
        let mut next = Some(Next::Wait);
        while let Some(step) = next {
            // A bad reply must cost one connection, not the node's vote for the rest of the
            // process.
            next = catch_unwind(AssertUnwindSafe(|| self.step(step))).unwrap_or_else(|_| {
                let Server { id, address, .. } = &*self.node;
                error!(
                    self.node.common.journal,
                    "{id}: {address}: its thread panicked and reconnects; please report this"
                );
                Some(self.on_disconnected(&NodeFailure::Internal))
            });
        }
        self.on_disconnected(&NodeFailure::ShutDown);
    }

    /// None: asked to stop, without work left.
    fn step(&mut self, step: Next) -> Option<Next> {
        match step {
            Next::Wait => {
                while !self.node.has_commands() {
                    self.wait(None, false)?;
                }
                Some(Next::Connect { at: time::tick() })
            }
            Next::Connect { at } => {
                while time::tick() < at {
                    self.wait(Some(at), false)?;
                }
                Some(match self.connect() {
                    Err(NodeFailure::ShutDown) => return None,
                    // Until the first lock there is time to check whether the address leads to the
                    // same server twice.
                    Ok(opened)
                        if self.probe.is_none()
                            && self.primary.confirmed_until().is_none()
                            && !self.node.common.records.rules().is_used =>
                    {
                        self.probe = Some(opened);
                        Next::Connect { at }
                    }
                    Ok(opened) => match self.on_connected(opened) {
                        Ok(()) => Next::Serve,
                        Err(failure) => self.on_disconnected(&failure),
                    },
                    Err(failure) => self.on_disconnected(&failure),
                })
            }
            Next::Serve => match self.serve() {
                Ok(()) => None,
                Err(NodeFailure::Stalled) if !self.is_answered_anew() => Some(Next::Serve),
                Err(failure) => Some(self.lose_connection(&failure)),
            },
        }
    }

    /// Sleeps until `until`, or until there is work. None: asked to stop, and allowed to.
    /// `connects`: see [`Server::stop_at`].
    fn wait(&mut self, until: Option<Tick>, connects: bool) -> Option<()> {
        let now = time::tick();
        let stop_at = self.node.stop_at(connects, now);
        if stop_at.is_some_and(|it| it <= now) {
            return None;
        }
        self.sleep(until.into_iter().chain(stop_at).min(), now);
        Some(())
    }

    /// Sleeps until `until`, a socket event or a wake-up.
    fn sleep(&mut self, until: Option<Tick>, now: Tick) {
        let timeout = until.map(|it| it.saturating_duration_since(now));
        if let Err(err) = self.poll.poll(&mut self.poll_events, timeout)
            && err.kind() != io::ErrorKind::Interrupted
        {
            let level = if self.logged_cannot_wait {
                Level::Debug
            } else {
                Level::Error
            };
            self.logged_cannot_wait = true;
            let Server { id, address, .. } = &*self.node;
            write_line!(
                self.node.common.journal,
                level,
                "{id}: {address}: cannot wait for its socket: {err}"
            );
        }
    }

    /// Connects and logs in. Half of the time is for finding the server.
    fn connect(&mut self) -> Result<Opened, NodeFailure> {
        let connect_timeout = self.node.common.connect_timeout;
        let deadline = time::deadline(connect_timeout);
        if self.failures == 0 {
            self.node.with(|link| link.session.connect(deadline));
        }
        self.primary.begin_search();
        let half = connect_timeout.checked_div(2).unwrap_or_default();
        let found_by = deadline.checked_sub(half).unwrap_or(deadline);
        let address = loop {
            if let Some(found) = self.primary.find(found_by <= time::tick()) {
                break found?;
            }
            self.wait_until(found_by)?;
        };
        let rules = self.node.common.records.rules();
        // A server is only looked at until a lock is asked for.
        let sync_record = rules.sync_record(if rules.is_used {
            SyncKind::Note
        } else {
            SyncKind::Look
        });
        let left = deadline.saturating_duration_since(time::tick());
        let opened = connect::connect(&address, Some(&sync_record), left, self.failures, self);
        if let Security::Tls(setup) = &address.security
            && let Some(reason) = setup.take_warning()
        {
            warn!(
                self.node.common.journal,
                "TLS: the changed files cannot be loaded, so the previous ones stay in use: \
                 {reason}"
            );
        }
        opened
    }

    /// Begins a connection, unless the server has no vote.
    fn on_connected(&mut self, mut opened: Opened) -> Result<(), NodeFailure> {
        let node = Arc::clone(&self.node);
        let first = self.probe.take();
        let server_info = &mut opened.login.server_info;
        if self.renew_confirmation()? {
            // The URL has its replicas.
            server_info.has_members = true;
        } else {
            // A server that ended its connection may have restarted.
            let first = first.and_then(|mut first| {
                let is_open = connect::read(&mut first.login.conn, &mut *first.stream).is_ok();
                first.login.server_info.run_id.filter(|_| is_open)
            });
            let mut is_several = false;
            // The first one again: both servers are alive.
            for run_id in [&first, &server_info.run_id, &first].into_iter().flatten() {
                is_several = self.behind.is_several(run_id, time::tick());
            }
            if is_several {
                return Err(NodeFailure::SEVERAL);
            }
        }
        node.with(|link| link.session.check(server_info))?;
        if let Some(run_id) = &server_info.run_id {
            let mut run_ids = node.common.run_ids.lock();
            run_ids
                .claim(node.id, run_id, time::tick())
                .map_err(|other| NodeFailure::SameServer { other })?;
        }
        count(&node.own_counters.connections);
        if !self.flapping {
            self.log.up();
        }
        node.common.journal.record(Event::NodeUp {
            node: node.id,
            address: Arc::clone(&node.address),
        });
        self.to = opened.to;
        node.open(opened);
        Ok(())
    }

    /// Whether a second connection gets answers, beside a mute one that still gets none: a firewall
    /// or balancer has lost the first one.
    ///
    /// A slow or stopped server answers on neither, and then on the first one first. So its
    /// commands keep their order. But two connections may deliver answers in another order than the
    /// server has written them: hence the wait.
    fn is_answered_anew(&mut self) -> bool {
        // Runs a script: a server can answer other commands while it holds scripts back.
        let sync_record = self.node.common.records.rules().sync_record(SyncKind::Look);
        let server = self.primary.server.clone();
        // Not by name: nobody reads while the system resolves it.
        let to = self.to.into_iter().collect();
        let timeout = self.node.common.connect_timeout;
        let second = connect::connect_to(&server, Some(&sync_record), timeout, 0, to, self);
        let until = time::deadline(ANEW);
        while second.is_ok() && self.is_stalled() && time::tick() < until {
            self.sleep(Some(until), time::tick());
        }
        second.is_ok() && self.is_stalled()
    }

    fn is_stalled(&self) -> bool {
        let refusal = self.node.refusal(Duration::ZERO, time::tick());
        refusal == Some(NodeFailure::Stalled)
    }

    /// Renews the lease of grants while the members name the server. False without members.
    fn renew_confirmation(&mut self) -> Result<bool, NodeFailure> {
        let Some(lease) = self.primary.confirmed_until() else {
            return Ok(false);
        };
        let until = lease?;
        self.node
            .with(|link| link.session.confirmed_until = Some(until));
        Ok(true)
    }

    /// Serves an open connection until it is lost or the worker has to stop.
    fn serve(&mut self) -> Result<(), NodeFailure> {
        let node = Arc::clone(&self.node);
        let mut is_readable = true;
        let mut is_closing = false;
        loop {
            self.renew_confirmation()?;
            let turn = node.turn(is_readable, self.poll.registry());
            // Callers may read the effects of events as soon as they have their votes.
            turn.events.into_iter().for_each(|it| self.log.note(it));
            node.deliver(turn.votes);
            for notice in turn.notices {
                node.take_notice(&notice, turn.now);
            }
            if turn.has_answered && (self.flapping || self.failures != 0) {
                self.failures = 0;
                self.flapping = false;
                self.log.up();
            }
            let filled = turn.filled?;
            let Some(wakes_at) = turn.wakes_at else {
                return Ok(());
            };
            // After a short read the poll announces the next bytes, but not an end that came with
            // the last ones.
            if filled == Filled::Full || is_closing && filled == Filled::Short {
                is_readable = true;
                continue;
            }
            self.sleep(Some(wakes_at), time::tick());
            is_readable = false;
            for event in self.poll_events.iter().filter(|it| it.token() == SOCKET) {
                is_closing |= event.is_read_closed() || event.is_error();
                is_readable |= event.is_readable() || is_closing;
            }
        }
    }

    /// Ends a failed connection.
    fn lose_connection(&mut self, failure: &NodeFailure) -> Next {
        self.flapping = !self.node.with(|link| link.session.has_answered);
        if !self.flapping {
            self.failures = 0;
        }
        if self.failures != 0 {
            // No answer since it connected.
            return self.on_disconnected(failure);
        }
        // The first reconnect follows at once, and commands wait for it: most lost connections are
        // restarts, or proxies that close idle ones.
        let until = time::deadline(self.node.common.connect_timeout);
        self.disconnect(failure, Health::Connecting { until });
        Next::Connect { at: time::tick() }
    }

    /// Ends the connection or the attempt. Commands are refused until the next one.
    fn on_disconnected(&mut self, failure: &NodeFailure) -> Next {
        self.disconnect(failure, Health::Down(failure.clone()));
        let pause = RETRY_FIRST
            .saturating_mul(1 << self.failures.min(10))
            .min(RETRY_LAST);
        let pause = pause.saturating_add(pause.mul_f64(fastrand::f64() / 4.0));
        self.failures = self.failures.saturating_add(1);
        Next::Connect {
            at: time::deadline(pause),
        }
    }

    /// Closes the connection: commands without an answer get the failure, and releases are kept.
    fn disconnect(&mut self, failure: &NodeFailure, health: Health) {
        let node = Arc::clone(&self.node);
        let (was_idle, votes) = node.close(failure, health);
        node.common.run_ids.lock().leave(node.id, time::tick());
        self.log.down(failure, was_idle);
        node.deliver(votes);
        let events = node.with(|link| std::mem::take(&mut link.session.events));
        events.into_iter().for_each(|it| self.log.note(it));
    }
}

impl Waits for Worker {
    fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    fn wait_until(&mut self, deadline: Tick) -> Result<(), NodeFailure> {
        // A connection beside a mute one is not wanted after an answer there.
        let is_wanted = !self.node.is_up() || self.is_stalled();
        let waited = self.wait(Some(deadline), true).filter(|()| is_wanted);
        waited.ok_or(NodeFailure::ShutDown)
    }
}
