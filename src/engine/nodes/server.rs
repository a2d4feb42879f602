//! One node: a session, its socket, and the channel in which commands wait for it.
//!
//! Whoever gives a command writes it, if nobody else writes, and takes along what others have given. The worker alone reads. A
//! command is in the channel, then in the session, and in both places commands are in the order in which they were given.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::{Answer, ServerInfo};
use crate::engine::nodes::connect::{Filled, Opened, read, write};
use crate::engine::nodes::give_backs::GiveBacks;
use crate::error::{self, NodeFailure};
use crate::ids::{ClientId, NodeId};
use crate::logic::run_ids::RunIds;
use crate::observer::{Event, Upcall};
use crate::session::availability::{Availability, Health};
use crate::session::pending_command::PendingCommand;
use crate::session::record_rules::RecordRules;
use crate::session::{Session, SessionEvent, Vote};
use crate::stats::{Counters, NodeCounters, NodeStats, count};
use crate::sys::logging::{debug, trace};
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex, Receiver, Sender, fence, unbounded};
use crate::sys::{Registry, SOCKET, Socket, Waker};
use crate::time::{self, Now, Tick};
use crate::wire::{HandedOver, LockCommands};

/// See the module. Shared by its worker and everybody who sends.
pub(crate) struct Server {
    pub(crate) id: NodeId,
    pub(crate) address: Arc<str>,
    given: Sender<PendingCommand>,
    commands: Receiver<PendingCommand>,
    link: Mutex<Link>,
    /// What callers see of the session, published whenever it changes. Never locked for longer than a look.
    availability: Mutex<Availability>,
    waker: Waker,
    give_backs: Arc<GiveBacks>,
    pub(crate) common: NodeContext,
    pub(super) own_counters: NodeCounters,
}

/// What all nodes of a manager have in common.
#[derive(Clone)]
pub(crate) struct NodeContext {
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) counters: Arc<Counters>,
    pub(crate) upcall: Upcall,
    /// What the waiting lists call this manager.
    pub(crate) client: ClientId,
    pub(crate) events: Arc<dyn NodeEvents>,
    pub(crate) records: Arc<Records>,
    pub(crate) run_ids: Arc<Mutex<RunIds>>,
}

/// What the nodes report to the floors above them. Called by the thread that has noticed it, which may be any. Must not block, nor call anything of users.
pub(crate) trait NodeEvents: Send + Sync {
    /// `node` has handed a lock over. False if that is for nobody here: the node gets it back.
    fn handed_over(&self, node: NodeId, notice: &HandedOver) -> bool;

    /// A node's clock was set forward, and its status says so already.
    fn clock_stepped(&self);
}

/// What the records of all servers have shown, for all sessions of a manager.
#[derive(Debug)]
pub(crate) struct Records {
    settings: RecordRules,
    max_ttl: AtomicU64,
    /// A lock was asked for.
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

    /// The rules as they are now.
    pub(crate) fn rules(&self) -> RecordRules {
        let mut rules = self.settings;
        rules.max_ttl = self.max_ttl.load(Ordering::Relaxed);
        rules.is_used = self.is_used.load(Ordering::Relaxed);
        rules
    }

    /// All records are to have this `max_ttl`, or more.
    pub(crate) fn raise(&self, max_ttl: u64) {
        let mut rules = self.rules();
        let before = rules.max_ttl;
        rules.raise(max_ttl);
        if before < rules.max_ttl {
            self.max_ttl.fetch_max(rules.max_ttl, Ordering::Relaxed);
        }
    }
}

/// The session and its socket. Whoever has it locked may write, so that the order of writes is the order of commands.
pub(super) struct Link {
    pub(super) session: Session,
    /// None without a connection.
    socket: Option<Socket>,
    /// The worker is woken when the socket can be written.
    waits_to_write: bool,
    /// Why the socket cannot be written any more.
    broken: Option<NodeFailure>,
    /// When the worker ends, if it was asked to.
    stop_at: Option<Tick>,
}

/// What a turn of the worker has found.
pub(super) struct Turn {
    /// How much was read, or why the connection is of no use any more.
    pub(super) filled: Result<Filled, NodeFailure>,
    /// Something that makes sense has come on this connection.
    pub(super) has_answered: bool,
    /// When the next turn is due; none if the worker was asked to stop and nothing is left to do.
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
                socket: None,
                waits_to_write: false,
                broken: None,
                stop_at: None,
            }),
            waker,
            give_backs: Arc::default(),
            common,
            own_counters: NodeCounters::default(),
        }
    }

    /// Looks at what is known of the session.
    pub(crate) fn availability<T>(&self, look: impl FnOnce(&Availability) -> T) -> T {
        look(&self.availability.lock())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.availability(Availability::is_up)
    }

    /// Why a command is not sent now, if so: see [`Availability::refusal`]. Does not block, also with something locked.
    ///
    /// RACE: T1, the worker, finds the server silent; T2, the server, answers; T1 waits for a processor and does not read that.
    /// Therefore a server whose answers lie unread is no longer called silent here.
    pub(crate) fn refusal(&self, patience: Duration, now: Tick) -> Option<NodeFailure> {
        let refusal = self.availability(|it| it.refusal(patience, now))?;
        if refusal != NodeFailure::Stalled {
            return Some(refusal);
        }
        let refusal = {
            let link = self.link.lock();
            let has_unread = link.socket.as_ref().is_some_and(Socket::has_unread);
            let shown = link.session.availability();
            shown.refusal(patience, now).filter(|_| !has_unread)
        };
        if self.has_commands() {
            self.wake_worker();
        }
        refusal
    }

    /// Whether a call may begin a round without outrunning this node.
    pub(crate) fn has_room(&self) -> bool {
        self.availability(|it| it.has_room(self.commands.len()))
    }

    /// Takes a command, behind all others. It is written by [`Server::flush`]. Does not block, also with something locked.
    pub(crate) fn give(&self, command: PendingCommand) {
        count(&self.common.counters.commands);
        // The receiver is ours, so it is there.
        let _ = self.given.send(command);
    }

    /// Writes what was given, unless another thread has the session, and reports what is refused. Call it with nothing locked.
    pub(crate) fn flush(&self, now: Now) {
        while self.has_commands() {
            // RACE: T1 finds that commands wait for an answer; T2, the worker, has taken that and found the channel empty. Therefore
            // T1 looks after it has given its command, and T2 looks at the channel after it has published.
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

    /// What the server last said about itself.
    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        self.with(|link| link.session.server_info.clone())
    }

    /// What is known of it.
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

    /// Asks the worker to end: at once if nothing is left to do, at `deadline` in any case.
    pub(crate) fn stop(&self, deadline: Tick) {
        self.with(|link| {
            link.stop_at = Some(deadline);
            link.session.is_stopping = true;
        });
        self.wake_worker();
    }

    /// Makes the worker take a turn, now or next. Its poll keeps that until it polls.
    pub(crate) fn wake_worker(&self) {
        if let Err(err) = self.waker.wake() {
            debug!("{}: cannot wake its thread: {err}", self.id);
        }
    }
}

/// The worker.
impl Server {
    /// RACE: T1 has written what was given, and has the session locked; T2 gives a command and does not get the session; T1
    /// unlocks. Therefore whoever has locked it looks at the channel after that.
    pub(super) fn has_commands(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.commands.is_empty()
    }

    /// When the worker ends, if it was asked to; now if nothing is left to do. `connects`: it connects to the server.
    pub(super) fn stop_at(&self, connects: bool, now: Tick) -> Option<Tick> {
        let queued = !self.commands.is_empty();
        self.with(|link| {
            let has_work = link.session.has_work(queued, connects);
            link.stop_at.map(|it| if has_work { it } else { now })
        })
    }

    /// Begins with a connection, which is registered at the worker's poll.
    pub(super) fn open(&self, Opened { socket, login }: Opened) {
        self.with(|link| {
            link.socket = Some(socket);
            link.waits_to_write = true;
            link.broken = None;
            link.session.open(login, Now::read());
        });
    }

    /// Reads once, if `is_readable`, and writes what is due and what was given.
    pub(super) fn turn(&self, is_readable: bool, registry: &Registry) -> Turn {
        self.with(|link| link.turn(is_readable, &self.commands, registry))
    }

    /// Ends with the connection, or with the attempt. True if there was one and nothing had waited for an answer; and what
    /// became of commands, to be [delivered](Server::deliver).
    pub(super) fn close(&self, failure: &NodeFailure, health: Health) -> (bool, Vec<Vote>) {
        self.with(|link| {
            let was_open = link.socket.take().is_some();
            let now = Now::read();
            let is_idle = link.session.close(failure, health, now.tick);
            link.write(&self.commands, now);
            (was_open && is_idle, std::mem::take(&mut link.session.votes))
        })
    }

    /// Hands out votes, with nothing locked.
    pub(super) fn deliver(&self, votes: Vec<Vote>) {
        for vote in votes {
            trace!("{}: {:?}", self.id, vote.answer);
            if let Some(took) = vote.took {
                count(&self.own_counters.answers);
                let mut failure = None;
                if let Answer::Failed(why) = &vote.answer {
                    count(&self.own_counters.failures);
                    failure = Some(why);
                }
                self.common.upcall.tell(|| Event::NodeReply {
                    node: self.id,
                    took,
                    failure: failure.cloned(),
                });
            }
            let is_late = vote
                .handler
                .is_some_and(|it| !it.deliver(self.id, vote.answer, vote.reached));
            if is_late && vote.took.is_some() {
                count(&self.common.counters.late_answers);
            }
        }
    }

    /// The server has handed a lock over. What is for nobody here, it gets back; but not what no lock is: anybody may publish, and
    /// could have any key deleted here whose value is known.
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

    /// Works on the session, publishes what callers see of it, and writes what was given meanwhile. Call it with nothing locked.
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
    /// Takes commands along and writes, as far as the session and the system take it.
    fn write(&mut self, commands: &Receiver<PendingCommand>, now: Now) {
        if self.session.availability().takes_commands(now.tick) {
            commands
                .try_iter()
                .for_each(|command| self.session.enqueue(command, now));
        }
        if let Some(socket) = &self.socket
            && self.broken.is_none()
            && let Err(err) = write(&mut self.session.conn, socket)
        {
            self.broken = Some(disconnected(&err));
        }
    }

    /// Whether the worker has to look at the connection, if there is one: it is broken, has to be written when there is room, or
    /// would be looked at too late.
    fn needs_worker(&mut self, now: Tick) -> bool {
        self.socket.is_some()
            && (self.broken.is_some()
                || !self.session.conn.is_flushed()
                || self.session.is_unwatched(now))
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
            // RACE: T1 finds the socket empty and is stopped; T2, the server, answers in time; T1 goes on when that is overdue.
            // Therefore the time before the look counts.
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

    /// Reads once, also where the server would be called silent at `now`: its answer may lie unread.
    fn read(&mut self, is_readable: bool, now: Tick) -> Result<Filled, NodeFailure> {
        match &self.socket {
            Some(socket) if is_readable || self.session.is_overdue(now) => {
                read(&mut self.session.conn, socket).map_err(|err| disconnected(&err))
            }
            _ => Ok(Filled::Nothing),
        }
    }

    /// Lets the worker be woken when the socket can be written, exactly while something waits for that.
    fn watch(&mut self, registry: &Registry) -> Result<(), NodeFailure> {
        let waits_to_write = !self.session.conn.is_flushed();
        if let Some(socket) = &mut self.socket
            && waits_to_write != self.waits_to_write
        {
            socket
                .watch(registry, SOCKET, waits_to_write)
                .map_err(|err| disconnected(&err))?;
            self.waits_to_write = waits_to_write;
        }
        Ok(())
    }
}

fn disconnected(err: &io::Error) -> NodeFailure {
    NodeFailure::Disconnected {
        reason: error::reason(err),
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
    fn h7_only_what_is_the_value_of_a_lock_is_given_back() {
        let address = NodeAddress::parse("redis://127.0.0.1:1").unwrap();
        let engine = Engine::start(Config::default(), vec![address]).unwrap();
        let shared = &engine.shared;
        let commands_for = |value: &[u8], key: &str| {
            let before = shared.fanout.counters.snapshot().commands;
            let notice = HandedOver {
                token: Some(7),
                record_version: RecordVersion::NONE,
                life: 1_000,
                time: 0,
                asked_from: None,
                reads: false,
                value: SecretValue::new(value),
                key: key.as_bytes().to_vec(),
            };
            for node in &shared.fanout.nodes {
                node.take_notice(&notice, Now::read());
            }
            shared.fanout.counters.snapshot().commands - before
        };
        // A counter, and what anybody may know.
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
