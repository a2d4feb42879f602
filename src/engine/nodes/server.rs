//! One node: a session, its socket, and the channel in which commands wait for it.
//!
//! The caller that gives a command writes it together with other callers' commands, unless another
//! thread writes. Only the worker reads. In the channel and then in the session, commands keep the
//! order in which they were given.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::{Answer, ServerInfo};
use crate::engine::nodes::connect::{Filled, Opened, read, write};
use crate::engine::nodes::give_backs::GiveBacks;
use crate::error::{NodeFailure, disconnected};
use crate::ids::{ClientId, NodeId};
use crate::logic::run_ids::RunIds;
use crate::observer::{Event, Journal};
use crate::session::availability::{Availability, Health};
use crate::session::pending_command::PendingCommand;
use crate::session::record_rules::RecordRules;
use crate::session::{Session, SessionEvent, Vote};
use crate::stats::{NodeCounters, NodeStats, count};
use crate::sys::logging::{debug, trace};
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex, Receiver, Sender, fence, unbounded};
use crate::sys::{Registry, SOCKET, Waker};
use crate::time::{self, Now, Tick};
use crate::tls::Stream;
use crate::wire::{HandedOver, LockCommands};

/// See the module. Shared by its worker and all senders.
pub(crate) struct Server {
    pub(crate) id: NodeId,
    pub(crate) address: Arc<str>,
    given: Sender<PendingCommand>,
    commands: Receiver<PendingCommand>,
    link: Mutex<Link>,
    /// Copy of the session's state for callers, published with every change. Locked for a read or a
    /// copy only.
    availability: Mutex<Availability>,
    waker: Waker,
    give_backs: Arc<GiveBacks>,
    pub(crate) common: NodeContext,
    pub(super) own_counters: NodeCounters,
}

/// Common parts of all nodes of a manager.
#[derive(Clone)]
pub(crate) struct NodeContext {
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) journal: Arc<Journal>,
    /// This manager in the waiting lists.
    pub(crate) client: ClientId,
    pub(crate) events: Arc<dyn NodeEvents>,
    pub(crate) records: Arc<Records>,
    pub(crate) run_ids: Arc<Mutex<RunIds>>,
}

/// Events of the nodes for higher modules. Called by any thread. Must not block or call user code.
pub(crate) trait NodeEvents: Send + Sync {
    /// `node` has handed a lock over. False without a call or hold for it: the node gets the lock
    /// back.
    fn handed_over(&self, node: NodeId, notice: &HandedOver) -> bool;

    /// A node's clock was set forward. Its availability is already updated.
    fn clock_stepped(&self);
}

/// Facts from the records of all servers, for all sessions of a manager.
#[derive(Debug)]
pub(crate) struct Records {
    settings: RecordRules,
    max_ttl: AtomicU64,
    /// Whether a lock was asked for.
    pub(crate) is_used: AtomicBool,
}

impl Records {
    pub(crate) fn new(settings: RecordRules) -> Records {
        Records {
            settings,
            max_ttl: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
        }
    }

    /// The present rules.
    pub(crate) fn rules(&self) -> RecordRules {
        let mut rules = self.settings;
        rules.max_ttl = self.max_ttl.load(Ordering::Relaxed);
        rules.is_used = self.is_used.load(Ordering::Relaxed);
        rules
    }

    /// Raises the `max_ttl` for all records.
    pub(crate) fn raise(&self, max_ttl: u64) {
        let mut rules = self.rules();
        let before = rules.max_ttl;
        rules.raise(max_ttl);
        if before < rules.max_ttl {
            self.max_ttl.fetch_max(rules.max_ttl, Ordering::Relaxed);
        }
    }
}

/// The session and its stream. Only the thread with the mutex writes, so writes keep the order of
/// commands.
pub(super) struct Link {
    pub(super) session: Session,
    /// Stream of the connection, if connected.
    stream: Option<Box<dyn Stream>>,
    /// Whether the poll wakes the worker once the socket is writable.
    is_watched_to_write: bool,
    /// Failure of the last write.
    broken: Option<NodeFailure>,
    /// End of the worker, if asked to stop.
    stop_at: Option<Tick>,
}

/// Result of a worker's turn.
pub(super) struct Turn {
    /// Result of the read, or why the connection ends.
    pub(super) filled: Result<Filled, NodeFailure>,
    /// Whether the server has answered on this connection.
    pub(super) has_answered: bool,
    /// Time of the next turn; none if the worker was asked to stop and has no work left.
    pub(super) wakes_at: Option<Tick>,
    pub(super) now: Now,
    pub(super) events: Vec<SessionEvent>,
    pub(super) votes: Vec<Vote>,
    pub(super) notices: Vec<HandedOver>,
}

/// Callers.
impl Server {
    pub(crate) fn new(id: NodeId, address: Arc<str>, waker: Waker, common: NodeContext) -> Server {
        let (given, commands) = unbounded();
        let session = Session::new(
            common.records.rules(),
            common.response_timeout,
            common.client,
            Now::read(),
        );
        Server {
            id,
            address,
            given,
            commands,
            availability: Mutex::new(session.availability()),
            link: Mutex::new(Link {
                session,
                stream: None,
                is_watched_to_write: false,
                broken: None,
                stop_at: None,
            }),
            waker,
            give_backs: Arc::default(),
            common,
            own_counters: NodeCounters::default(),
        }
    }

    /// Reads the published state of the session.
    pub(crate) fn availability<T>(&self, look: impl FnOnce(&Availability) -> T) -> T {
        look(&self.availability.lock())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.availability(Availability::is_up)
    }

    /// Reason to refuse a command now, if any: see [`Availability::refusal`]. Does not block. Safe
    /// with something locked.
    ///
    /// RACE: T1, the worker, finds the server silent; T2, the server, answers; T1 waits for a
    /// processor and does not read. Therefore a server with unread answers does not count as silent
    /// here.
    pub(crate) fn refusal(&self, patience: Duration, now: Tick) -> Option<NodeFailure> {
        let refusal = self.availability(|it| it.refusal(patience, now))?;
        if refusal != NodeFailure::Stalled {
            return Some(refusal);
        }
        let refusal = {
            let mut link = self.link.lock();
            let has_unread = link
                .stream
                .as_mut()
                .is_some_and(|stream| stream.is_readable());
            let shown = link.session.availability();
            shown.refusal(patience, now).filter(|_| !has_unread)
        };
        if self.has_commands() {
            self.wake_worker();
        }
        refusal
    }

    /// Takes a command, behind all others. [`Server::flush`] writes it. Does not block. Safe with
    /// something locked.
    pub(crate) fn give(&self, command: PendingCommand) {
        count(&self.common.journal.counters.commands);
        // The receiver is in this struct, so it exists.
        let _ = self.given.send(command);
    }

    /// Writes the given commands, unless another thread has the session, and reports refusals.
    /// Called with nothing locked.
    pub(crate) fn flush(&self, now: Now) {
        while self.has_commands() {
            // RACE: T1 reads that commands wait for an answer; T2, the worker, has read that answer
            // and found the channel empty. Therefore T1 reads after it has given its command, and
            // T2 checks the channel after it has published.
            let (takes, is_unused) = self.availability(|shown| {
                (
                    shown.takes_commands(now.tick),
                    matches!(shown.health, Health::Unused),
                )
            });
            if is_unused {
                // The worker waits for its first command.
                self.wake_worker();
            }
            if !takes {
                return;
            }
            let Some(mut link) = self.link.try_lock() else {
                return;
            };
            let (needs_worker, votes) = self.update(&mut link, |link| {
                link.write(&self.commands, now);
                let needs_worker = link.needs_worker(now.tick);
                (needs_worker, std::mem::take(&mut link.session.votes))
            });
            drop(link);
            if needs_worker {
                self.wake_worker();
            }
            self.deliver(votes);
        }
    }

    /// Last facts about the server.
    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        self.with(|link| link.session.server_info.clone())
    }

    /// Statistics of the node.
    pub(crate) fn stats(&self) -> NodeStats {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let shown = self.availability(Availability::clone);
        NodeStats {
            node: self.id,
            address: Arc::clone(&self.address),
            up: shown.is_up(),
            silent: shown.is_silent,
            unanswered: shown.unanswered,
            queued: self.commands.len(),
            answers: of(&self.own_counters.answers),
            failures: of(&self.own_counters.failures),
            connections: of(&self.own_counters.connections),
            connection_failures: of(&self.own_counters.connection_failures),
        }
    }

    /// Asks the worker to end: at once without work, at `deadline` in any case.
    pub(crate) fn stop(&self, deadline: Tick) {
        self.with(|link| {
            link.stop_at = Some(deadline);
            link.session.is_stopping = true;
        });
        self.wake_worker();
    }

    /// Makes the worker take a turn. The wake-up lasts until its next poll.
    pub(crate) fn wake_worker(&self) {
        if let Err(err) = self.waker.wake() {
            debug!(
                self.common.journal,
                "{}: cannot wake its thread: {err}", self.id
            );
        }
    }
}

/// The worker.
impl Server {
    /// RACE: T1 has written the given commands and holds the session; T2 gives a command and does
    /// not get the session; T1 unlocks. Therefore each thread checks the channel after it has
    /// unlocked the session.
    pub(super) fn has_commands(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.commands.is_empty()
    }

    /// End of the worker, if asked to stop; now without work. `connects`: whether it connects to
    /// the server.
    pub(super) fn stop_at(&self, connects: bool, now: Tick) -> Option<Tick> {
        let queued = !self.commands.is_empty();
        self.with(|link| {
            let has_work = link.session.has_work(queued, connects);
            link.stop_at.map(|it| if has_work { it } else { now })
        })
    }

    /// Begins a connection, which is registered at the worker's poll.
    pub(super) fn open(&self, Opened { stream, login, .. }: Opened) {
        self.with(|link| {
            link.stream = Some(stream);
            link.is_watched_to_write = true;
            link.broken = None;
            link.session.open(login, Now::read());
        });
    }

    /// Reads once if `is_readable`, and writes due and given commands.
    pub(super) fn turn(&self, is_readable: bool, registry: &Registry) -> Turn {
        self.with(|link| link.turn(is_readable, &self.commands, registry))
    }

    /// Ends the connection or the attempt. True if there was a connection without commands under
    /// way. Also returns votes to [deliver](Server::deliver).
    pub(super) fn close(&self, failure: &NodeFailure, health: Health) -> (bool, Vec<Vote>) {
        self.with(|link| {
            let was_open = link.stream.take().is_some();
            let now = Now::read();
            let is_idle = link.session.close(failure, health, now.tick);
            link.write(&self.commands, now);
            (was_open && is_idle, std::mem::take(&mut link.session.votes))
        })
    }

    /// Delivers votes. Called with nothing locked.
    pub(super) fn deliver(&self, votes: Vec<Vote>) {
        for vote in votes {
            trace!(self.common.journal, "{}: {:?}", self.id, vote.answer);
            if let Some(took) = vote.took {
                count(&self.own_counters.answers);
                let mut failure = None;
                if let Answer::Failed(why) = &vote.answer {
                    count(&self.own_counters.failures);
                    failure = Some(why);
                }
                self.common.journal.observe(|| Event::NodeReply {
                    node: self.id,
                    took,
                    failure: failure.cloned(),
                });
            }
            let is_late = vote
                .handler
                .is_some_and(|it| !it.deliver(self.id, vote.answer, vote.reached));
            if is_late && vote.took.is_some() {
                count(&self.common.journal.counters.late_answers);
            }
        }
    }

    /// Handles a hand-over. A lock for a missing call is given back. Other messages are not:
    /// anybody may publish, and could have any key with a known value deleted.
    pub(super) fn take_notice(&self, notice: &HandedOver, now: Now) {
        if self.common.events.handed_over(self.id, notice) || notice.owner().is_none() {
            return;
        }
        let given_back = self.give_backs.begin(notice.value.as_bytes(), &notice.key);
        if let Some(given_back) = given_back {
            let command = LockCommands::give_back_handed_over(notice, self.common.client);
            self.give(PendingCommand::release(
                Arc::new(command),
                Some(given_back),
                now.tick,
            ));
        }
        self.flush(now);
    }

    /// Works on the session, publishes its availability, and writes commands given during the work.
    /// Called with nothing locked.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Link) -> T) -> T {
        let result = self.update(&mut self.link.lock(), work);
        if self.has_commands() {
            self.flush(Now::read());
        }
        result
    }

    fn update<T>(&self, link: &mut Link, work: impl FnOnce(&mut Link) -> T) -> T {
        link.session.rules = self.common.records.rules();
        let result = work(link);
        self.common.records.raise(link.session.rules.max_ttl);
        *self.availability.lock() = link.session.availability();
        result
    }
}

impl Link {
    /// Moves commands into the session and writes, as far as session and system allow.
    fn write(&mut self, commands: &Receiver<PendingCommand>, now: Now) {
        if self.session.availability().takes_commands(now.tick) {
            commands
                .try_iter()
                .for_each(|command| self.session.enqueue(command, now));
        }
        if let Some(stream) = &mut self.stream
            && self.broken.is_none()
            && let Err(err) = write(&mut self.session.conn, &mut **stream)
        {
            self.broken = Some(disconnected(&err));
        }
    }

    /// Whether a connection needs the worker: it is broken, waits to be writable, or would be
    /// checked too late.
    fn needs_worker(&mut self, now: Tick) -> bool {
        self.stream.is_some()
            && (self.broken.is_some() || self.waits_to_write() || self.session.is_unwatched(now))
    }

    fn waits_to_write(&self) -> bool {
        !self.session.conn.is_flushed()
            || self
                .stream
                .as_ref()
                .is_some_and(|stream| stream.wants_write())
    }

    fn turn(
        &mut self,
        is_readable: bool,
        commands: &Receiver<PendingCommand>,
        registry: &Registry,
    ) -> Turn {
        let looked_at = time::tick();
        let read = self.read(is_readable, looked_at);
        let now = Now::read();
        let filled = read.and_then(|filled| {
            if filled != Filled::Nothing {
                self.session.on_bytes(now)?;
            }
            // RACE: T1 finds the socket empty and is paused; T2, the server, answers in time; T1
            // continues when the answer is overdue. Therefore the time before the read counts.
            if filled != Filled::Full {
                self.session.on_empty(looked_at)?;
            }
            self.session.on_time(now);
            self.write(commands, now);
            self.watch(registry)?;
            self.broken.take().map_or(Ok(filled), Err)
        });
        let stops = self.stop_at.is_some_and(|stop_at| {
            stop_at <= now.tick || !self.session.has_work(!commands.is_empty(), false)
        });
        let planned = self.session.plan(now.tick);
        Turn {
            filled,
            has_answered: self.session.has_answered,
            wakes_at: (!stops).then(|| self.stop_at.map_or(planned, |it| it.min(planned))),
            now,
            events: std::mem::take(&mut self.session.events),
            votes: std::mem::take(&mut self.session.votes),
            notices: std::mem::take(&mut self.session.notices),
        }
    }

    /// Reads once, also before the server counts as silent at `now`: its answer may be unread.
    fn read(&mut self, is_readable: bool, now: Tick) -> Result<Filled, NodeFailure> {
        match &mut self.stream {
            Some(stream) if is_readable || self.session.is_overdue(now) => {
                read(&mut self.session.conn, &mut **stream).map_err(|err| disconnected(&err))
            }
            _ => Ok(Filled::Nothing),
        }
    }

    /// Lets a writable socket wake the worker, exactly while bytes wait to be written.
    fn watch(&mut self, registry: &Registry) -> Result<(), NodeFailure> {
        let waits_to_write = self.waits_to_write();
        if let Some(stream) = &mut self.stream
            && waits_to_write != self.is_watched_to_write
        {
            stream
                .socket()
                .watch(registry, SOCKET, waits_to_write)
                .map_err(|err| disconnected(&err))?;
            self.is_watched_to_write = waits_to_write;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::Engine;
    use crate::engine::nodes::primary::NodeAddress;
    use crate::ids::{OwnerToken, RecordVersion};
    use crate::inspection::SecretValue;

    #[test]
    fn h7_only_values_of_locks_are_given_back() {
        let address = NodeAddress::parse("redis://127.0.0.1:1").unwrap();
        let engine = Engine::start(Config::default(), vec![address]).unwrap();
        let shared = &engine.shared;
        let commands_for = |value: &[u8], key: &str| {
            let before = shared.fanout.journal.counters.snapshot().commands;
            let notice = HandedOver {
                token: Some(7),
                record_version: RecordVersion::NONE,
                life: 1_000,
                time: 0,
                asked_from: None,
                reads: false,
                is_question: false,
                value: SecretValue::new(value),
                key: key.as_bytes().to_vec(),
            };
            for node in &shared.fanout.nodes {
                node.take_notice(&notice, Now::read());
            }
            shared.fanout.journal.counters.snapshot().commands - before
        };
        // A counter and public data.
        for (value, key) in [
            (&b"1700000000000000"[..], "quorlock:fence:a"),
            (b"", "a"),
            (b"on", "feature"),
            (b"quorlock:shared", "a"),
        ] {
            assert_eq!(commands_for(value, key), 0, "{key}");
        }
        let owner = OwnerToken::draw().unwrap().to_value();
        assert_eq!(commands_for(&owner, "a"), 1);
        let labelled = [&owner[..], b" web-3/4711"].concat();
        assert_eq!(commands_for(&labelled, "b"), 1);
    }
}
