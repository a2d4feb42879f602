//! A node's connection, and which thread drives it.
//!
//! One thread at a time drives a connection: it reads, and hands out what it has read. The worker is the thread that drives
//! when nobody else does. [`Driver`], in the connection's state, says who that is, and nothing else does:
//!
//! ```text
//!              take                     leave, after a round
//!   Worker -----------> Caller ---------------------------------> Idle
//!     ^   <----------------           take                       |  |
//!     |        leave       ^-------------------------------------+  |
//!     +--------------------------------------------------------------+
//!        somebody writes, or it has been idle for too long
//! ```
//!
//! Only the caller itself ends its driving: it may wait for the socket, and would not notice. A connection that ends is
//! the exception, and wakes it. The readiness to be read is announced to the worker's poll exactly while the worker drives,
//! and what is so already is announced when it begins; so nothing that has come is missed in a hand-over, and a worker that
//! does not drive sleeps on.
//!
//! Whoever has the state locked may write, so that the order of writes is the order of commands.

use std::io;
use std::sync::Arc;

use crate::answer::Answer;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::load::Load;
use crate::error::{self, NodeFailure};
use crate::ids::NodeId;
use crate::logic::way::{Answers, Way, in_time};
use crate::sys::logging::{debug, trace};
use crate::sys::sync::Mutex;
use crate::sys::{Registry, SOCKET, Socket, Waker, Watch};
use crate::time::{Now, Tick};
use crate::wire::{Command, Conn, ConnEvent, Reply};

/// Who drives a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Driver {
    #[default]
    Worker,
    /// A caller that waits for its round, or for a notice.
    Caller,
    /// Nobody, for a moment.
    Idle,
}

/// See the module.
pub(crate) struct Link {
    id: NodeId,
    state: Mutex<LinkState>,
    pub(crate) load: Load,
    /// Where the worker waits for the socket.
    registry: Registry,
    waker: Waker,
}

/// All of a connection, guarded by one mutex.
#[derive(Default)]
pub(crate) struct LinkState {
    pub(super) conn: Conn<Job>,
    socket: Option<Arc<Socket>>,
    driver: Driver,
    /// The driver is handing out what it has read. Nobody takes its place before that is done, so that two batches of
    /// answers of one node are never handed out at a time.
    delivers: bool,
    /// The worker has written while a caller drives: somebody else waits for answers as well.
    shared: bool,
    /// What of the socket is announced to the worker.
    watch: Watch,
    /// Why the connection is of no use any more: its worker ends it.
    broken: Option<NodeFailure>,
    /// The worker has been woken for that.
    said_broken: bool,
    /// Something that makes sense has come back on this connection.
    answered: bool,
    way: Way,
    answers: Answers,
    /// The `max_ttl` of the server's record, if the record is as it was asked to be.
    pub(super) noted: Option<u64>,
    /// Commands that wait until the server is greeted, if it is being greeted for them.
    pub(super) held: Option<Vec<Job>>,
    /// How many releases of whole locks the node has been given.
    pub(super) releases: u64,
    /// Kept for its memory.
    spare: Batch,
}

/// What was read in one turn, for whoever waits for it.
#[derive(Default)]
pub(crate) struct Batch {
    pub(super) answers: Vec<Answered>,
    /// Commands whose script the server does not know, and that nobody wants any more.
    pub(super) unwanted: Vec<Job>,
    /// Commands that the server has not run, because its record is another one than they say; and whether it has been greeted
    /// since they were sent.
    pub(super) changed: Vec<(Job, bool)>,
    /// Locks that were released.
    pub(super) notices: Vec<Vec<u8>>,
    /// An answer came within the response timeout.
    pub(super) in_time: bool,
}

/// A command and its answer.
pub(crate) struct Answered {
    pub(super) job: Job,
    pub(super) asked: Now,
    pub(super) reply: Reply,
}

/// How much a read found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Filled {
    /// Nothing was there.
    Nothing,
    /// Less than there was room for: the stream is empty, unless the other side has closed it.
    Short,
    /// As much as there was room for: there may be more.
    Full,
}

/// What a turn has found.
pub(crate) struct ReadTurn {
    pub(crate) filled: Filled,
    /// When it was read.
    pub(crate) now: Now,
    /// Handed out by whoever took the turn, who then says so: see [`Link::end_turn`].
    pub(crate) batch: Option<Batch>,
}

/// Writes what the system takes now. After an error the connection is of no use: half a command may be written.
pub(crate) fn write<T: AsRef<Command>>(conn: &mut Conn<T>, socket: &Socket) -> io::Result<()> {
    loop {
        let bytes = conn.poll_write();
        if bytes.is_empty() {
            return Ok(());
        }
        match socket.write(bytes)? {
            0 => return Ok(()),
            written => conn.wrote(written),
        }
    }
}

/// Reads once.
pub(crate) fn read<T: AsRef<Command>>(conn: &mut Conn<T>, socket: &Socket) -> io::Result<Filled> {
    let space = conn.space();
    let room = space.len();
    let Some(read) = socket.read(space)? else {
        return Ok(Filled::Nothing);
    };
    conn.filled(read);
    Ok(if read == room {
        Filled::Full
    } else {
        Filled::Short
    })
}

fn disconnected(err: &io::Error) -> NodeFailure {
    NodeFailure::Disconnected {
        reason: error::reason(err),
    }
}

impl Link {
    pub(crate) fn new(id: NodeId, load: Load, registry: Registry, waker: Waker) -> Link {
        Link {
            id,
            state: Mutex::default(),
            load,
            registry,
            waker,
        }
    }

    /// Works on the connection with its state locked.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut LinkState) -> T) -> T {
        let mut state = self.state.lock();
        let result = work(&mut state);
        self.settle(&mut state);
        result
    }

    /// The same, unless somebody else has locked it.
    pub(crate) fn try_with<T>(&self, work: impl FnOnce(&mut LinkState) -> T) -> Option<T> {
        let mut state = self.state.try_lock()?;
        let result = work(&mut state);
        self.settle(&mut state);
        Some(result)
    }

    /// At the end of every change.
    fn settle(&self, state: &mut LinkState) {
        let watch = match (state.driver, state.conn.is_flushed()) {
            (Driver::Worker, true) => Watch::Read,
            (Driver::Worker, false) => Watch::ReadAndWrite,
            (Driver::Caller | Driver::Idle, true) => Watch::Nothing,
            (Driver::Caller | Driver::Idle, false) => Watch::Write,
        };
        if watch != state.watch
            && let Some(socket) = &state.socket
        {
            match socket.watch(&self.registry, SOCKET, state.watch, watch) {
                Ok(()) => state.watch = watch,
                Err(err) => debug!("{}: cannot wait for its socket: {err}", self.id),
            }
        }
        if state.broken.is_some()
            && !state.delivers
            && !std::mem::replace(&mut state.said_broken, true)
        {
            self.wake_worker();
        }
        self.load.publish(&state.conn, state.driver == Driver::Idle);
    }

    /// Makes the worker take a turn, now or next. Its poll keeps that until it polls.
    pub(crate) fn wake_worker(&self) {
        if let Err(err) = self.waker.wake() {
            debug!("{}: cannot wake its thread: {err}", self.id);
        }
    }

    /// Begins with a connection that is ready, driven by the worker. It is registered there for everything.
    pub(crate) fn open(
        &self,
        socket: Arc<Socket>,
        conn: Conn<Job>,
        begin: impl FnOnce(&mut LinkState),
    ) {
        self.with(|state| {
            *state = LinkState {
                conn,
                socket: Some(socket),
                ..LinkState::default()
            };
            begin(state);
        });
    }

    /// Ends with the connection: what was never answered.
    pub(crate) fn close(&self) -> Vec<Job> {
        self.with(|state| {
            let LinkState {
                conn, socket, held, ..
            } = std::mem::take(state);
            if let Some(socket) = socket {
                // A caller may be waiting for it.
                socket.shutdown();
            }
            conn.close().chain(held.into_iter().flatten()).collect()
        })
    }

    /// Lets a caller drive from now on; the socket, if that is possible. Only for who has the seat.
    pub(crate) fn take(&self) -> Option<Arc<Socket>> {
        self.with(|state| {
            let socket = Arc::clone(state.socket.as_ref()?);
            // Of bytes that did not fit, its worker waits until there is room.
            let is_free = !state.delivers && state.broken.is_none() && state.conn.is_flushed();
            if is_free {
                (state.driver, state.shared) = (Driver::Caller, false);
            }
            is_free.then_some(socket)
        })
    }

    /// The caller drives no longer. True if the connection is idle now.
    pub(crate) fn leave(&self, to: Driver) -> bool {
        self.with(|state| {
            if state.driver != Driver::Caller {
                // It was closed meanwhile.
                return false;
            }
            state.driver = if state.shared || state.broken.is_some() {
                Driver::Worker
            } else {
                to
            };
            (state.delivers, state.shared) = (false, false);
            state.driver == Driver::Idle
        })
    }

    /// Lets the worker drive if nobody does.
    pub(crate) fn end_idle(&self) {
        self.with(LinkState::end_idle);
    }

    /// Reads once, if `me` drives it and has handed out what it read before. `None` if not, or if the connection is broken.
    ///
    /// RACE: a worker may have been woken for bytes before a caller took its place. The caller reads them, and what it
    /// leaves is announced to the worker when that drives again.
    pub(crate) fn turn(&self, me: Driver) -> Option<ReadTurn> {
        let mut state = self.state.lock();
        let turn = state.turn(me, self);
        self.settle(&mut state);
        turn
    }

    /// What `me` has read is handed out.
    pub(crate) fn end_turn(&self, me: Driver, batch: Batch) {
        self.with(|state| {
            // Otherwise the connection is another one by now.
            if state.driver == me {
                (state.delivers, state.spare) = (false, batch);
            }
        });
    }

    /// Whether an answer is overdue and has not come.
    ///
    /// RACE: what is read is taken out of the socket and handed to its commands in one step, with the state locked. So if
    /// the socket is found empty with the state locked, what has no answer then has not been answered.
    pub(crate) fn is_silent(&self, now: Tick) -> bool {
        let state = self.state.lock();
        let Some(socket) = &state.socket else {
            return false;
        };
        // The oldest may be another one by now.
        !socket.has_unread() && self.load.is_overdue(now)
    }
}

impl LinkState {
    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    #[cfg(test)]
    pub(crate) fn driver(&self) -> Driver {
        self.driver
    }

    pub(crate) fn has_answered(&self) -> bool {
        self.answered
    }

    /// Why the connection is of no use any more, once everything that came before that is handed out.
    pub(crate) fn broken(&self) -> Option<NodeFailure> {
        self.broken.clone().filter(|_| !self.delivers)
    }

    /// The connection is of no use any more: its worker ends it, which is woken.
    ///
    /// RACE: a caller may be handing out what came last. The next connection must not begin under it: see
    /// [`LinkState::broken`].
    pub(crate) fn give_up(&mut self, failure: NodeFailure) {
        self.broken.get_or_insert(failure);
    }

    /// Writes what the system takes now.
    pub(crate) fn flush(&mut self) {
        if let Some(socket) = &self.socket
            && self.broken.is_none()
            && let Err(err) = write(&mut self.conn, socket)
        {
            self.broken = Some(disconnected(&err));
        }
    }

    /// Somebody has written who does not drive: the answers must be read.
    pub(crate) fn end_idle(&mut self) {
        if self.driver == Driver::Idle {
            self.driver = Driver::Worker;
        }
    }

    /// The worker has written: so others than the caller that drives wait for answers.
    pub(crate) fn note_shared(&mut self) {
        self.end_idle();
        self.shared |= self.driver == Driver::Caller;
    }

    fn turn(&mut self, me: Driver, link: &Link) -> Option<ReadTurn> {
        if self.driver != me || self.delivers || self.broken.is_some() {
            return None;
        }
        let LinkState { conn, socket, .. } = self;
        let filled = match read(conn, socket.as_ref()?) {
            Ok(filled) => filled,
            Err(err) => {
                self.broken = Some(disconnected(&err));
                return None;
            }
        };
        let now = Now::read();
        let batch = if filled == Filled::Nothing {
            None
        } else {
            self.take_events(now, link)
        };
        self.delivers = batch.is_some();
        Some(ReadTurn { filled, now, batch })
    }

    /// Everything that has come. An error breaks the connection; what had come before it counts.
    fn take_events(&mut self, now: Now, link: &Link) -> Option<Batch> {
        let mut batch = std::mem::take(&mut self.spare);
        let (mut count, mut again) = (0_usize, false);
        let mut note = |job: &mut Job, asked: Now| {
            let took = now.tick.saturating_duration_since(asked.tick);
            // If it is sent again, others may be.
            if std::mem::take(&mut job.is_alone) {
                self.way.on_answer(now.tick, took);
            }
            batch.in_time |= took <= link.load.response_timeout;
            (count, self.answered) = (count.saturating_add(1), true);
        };
        loop {
            match self.conn.poll_event() {
                Ok(Some(ConnEvent::Answer {
                    mut tag,
                    asked,
                    reply,
                })) => {
                    note(&mut tag, asked);
                    batch.answers.push(Answered {
                        job: tag,
                        asked,
                        reply,
                    });
                }
                Ok(Some(ConnEvent::UnknownScript { mut tag, asked })) => {
                    note(&mut tag, asked);
                    trace!("{}: {:?}", link.id, Answer::NoScript);
                    if tag.is_overtaken(self.releases) {
                        batch.unwanted.push(tag);
                    } else {
                        self.conn.enqueue_again(tag, now);
                        again = true;
                    }
                }
                Ok(Some(ConnEvent::Changed {
                    mut tag,
                    asked,
                    is_known,
                })) => {
                    note(&mut tag, asked);
                    batch.changed.push((tag, is_known));
                }
                Ok(Some(ConnEvent::Released { key })) => batch.notices.push(key),
                Ok(Some(ConnEvent::Ready(_) | ConnEvent::Member(_))) => {}
                Ok(None) => break,
                Err(failure) => {
                    self.broken = Some(failure);
                    break;
                }
            }
        }
        if count != 0 {
            let way = self.way.shortest();
            self.answers
                .on_answers(count, in_time(way, link.load.response_timeout), now.tick);
            link.load
                .publish_answers(way, self.answers.in_two_windows(), now.tick);
        }
        if again {
            self.flush();
            self.note_shared();
        }
        Some(batch)
    }
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests;
