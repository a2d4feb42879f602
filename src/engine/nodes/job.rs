//! One command for one node, and who wants its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::answer::Answer;
use crate::ids::NodeId;
use crate::sys::sync::{AtomicBool, Receiver, Sender, unbounded};
use crate::time::Tick;
use crate::wire::{Command, Kind};

/// Where a worker delivers what became of a command.
pub(crate) trait Sink: Send + Sync {
    /// Takes the answer of `node`. `reached` is false only if nothing of the command can have come to the node.
    ///
    /// Called once per node at most, on a worker's thread or on the sender's own; must not block. False if it came too
    /// late to count.
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool;

    /// Whether an answer can still make a difference.
    fn is_open(&self) -> bool;
}

/// One command for one node.
pub(crate) struct Job {
    pub(crate) command: Arc<Command>,
    /// Nothing else of ours was under way when it was given: its answer shows how long the way takes.
    pub(crate) is_alone: bool,
    /// Who wants the answer; nobody, once it has been given.
    sink: Option<Arc<dyn Sink>>,
    /// A release is sent again after a reconnect until then: after that the key has expired by itself.
    keep_until: Option<Tick>,
    /// The server has refused it, and it is sent again.
    pub(crate) was_refused: bool,
    /// How often the server's record was another one when it was run.
    pub(crate) changes: u8,
    /// How many releases the node had been given when this was put in line: see [`Job::is_overtaken`].
    pub(crate) releases: u64,
}

impl AsRef<Command> for Job {
    fn as_ref(&self) -> &Command {
        &self.command
    }
}

impl Job {
    /// A command whose answer matters only now.
    pub(crate) fn new(command: Arc<Command>, sink: Option<Arc<dyn Sink>>) -> Job {
        Job {
            command,
            is_alone: false,
            sink,
            keep_until: None,
            was_refused: false,
            changes: 0,
            releases: 0,
        }
    }

    /// A command whose answer says something about the connection, and to nobody else.
    pub(crate) fn of_connection(command: Arc<Command>) -> Job {
        Job::new(command, None)
    }

    /// A release, which is worth sending until `keep_until` whether or not anybody waits for it.
    pub(crate) fn release(
        command: Arc<Command>,
        sink: Option<Arc<dyn Sink>>,
        keep_until: Tick,
    ) -> Job {
        Job {
            keep_until: Some(keep_until),
            ..Job::new(command, sink)
        }
    }

    /// Gives the answer to whoever wants it, once; false if it came too late to count.
    pub(crate) fn answer(&mut self, node: NodeId, answer: Answer, reached: bool) -> bool {
        self.sink
            .take()
            .is_none_or(|it| it.deliver(node, answer, reached))
    }

    /// Whether this is a release that can still find a key.
    pub(crate) fn is_worth_keeping(&self, now: Tick) -> bool {
        self.command.asked.kind == Kind::Release && self.keep_until.is_some_and(|it| now < it)
    }

    /// Whether the command is still of use: a release always is, and a greeting.
    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self.command.asked.kind, Kind::Release | Kind::Greet)
            || self.sink.as_ref().is_some_and(|it| it.is_open())
    }

    /// Whether a refused command must not be sent again, because its release may be on its way. The command of a lock that was
    /// won without it is sent: the lock is to be on this server too. `releases`: of the connection's state, now.
    ///
    /// RACE: T1 ends a round: it closes the round, then gives the releases, which takes the connection's state or the queue
    /// behind it. T2 comes here with the state locked. If the round is still open, or no release came since the command was put
    /// in line, the releases therefore run behind what T2 sends.
    ///
    /// Not handled: the release of all slots of a semaphore but one, which follows a won round, does not count. A permit's command
    /// that is sent behind it can take another slot on this server. It is given back with the permit or expires.
    pub(super) fn is_overtaken(&self, releases: u64) -> bool {
        self.releases != releases && !self.is_wanted()
    }
}

/// See the module. Only emptied with the connection locked, so that commands are put on it in the order of this queue.
pub(crate) struct CommandQueue {
    sender: Sender<Job>,
    receiver: Receiver<Job>,
    /// Nobody takes them any more.
    is_closed: AtomicBool,
}

impl Default for CommandQueue {
    fn default() -> CommandQueue {
        let (sender, receiver) = unbounded();
        CommandQueue {
            sender,
            receiver,
            is_closed: AtomicBool::new(false),
        }
    }
}

impl CommandQueue {
    /// Puts a command behind all others. After the end of the worker it is dropped: its sender finds out by its own
    /// time-out.
    pub(crate) fn push(&self, job: Job) {
        if self.is_closed() {
            return;
        }
        // The receiver is ours, so it is there.
        let _ = self.sender.send(job);
        // RACE: it was closed since we looked, and emptied before we sent. Nobody would ever look again, and what waits for
        // the answer would keep all of the manager alive.
        if self.is_closed() {
            self.clear();
        }
    }

    /// Takes all commands, in order.
    pub(crate) fn take(&self) -> impl Iterator<Item = Job> {
        self.receiver.try_iter()
    }

    /// Takes no more commands; what is still in it is dropped.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.receiver.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn clear(&self) {
        self.take().for_each(drop);
    }
}
