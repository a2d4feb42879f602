//! One command for one server, with the handler of its answer.

use std::sync::Arc;

use crate::answer::Answer;
use crate::ids::NodeId;
use crate::time::Tick;
use crate::wire::{Command, Kind};

/// Handler of the answer to a command.
pub(crate) trait ReplyHandler: Send + Sync {
    /// Takes the answer of `node`. `reached` is false only if no byte of the command can have
    /// reached the node.
    ///
    /// Called at most once per node, on a worker's thread or on the sender's own. Must not block.
    /// False for an answer too late to count.
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool;

    /// Whether an answer still matters.
    fn is_open(&self) -> bool;
}

/// A command without an answer so far.
pub(crate) struct PendingCommand {
    pub(crate) command: Arc<Command>,
    /// Whether it was sent with no other command under way: its answer shows the round trip.
    pub(super) is_alone: bool,
    /// Handler of the answer; none after the answer.
    pub(super) handler: Option<Arc<dyn ReplyHandler>>,
    /// End of the resends of a release. After that the key has expired.
    keep_until: Option<Tick>,
    /// Whether the server refused it before.
    pub(super) was_refused: bool,
    /// Number of runs with another record version on the server.
    pub(super) changes: u8,
    /// Number of releases before it: see [`PendingCommand::is_overtaken`].
    pub(super) releases: u64,
}

impl AsRef<Command> for PendingCommand {
    fn as_ref(&self) -> &Command {
        &self.command
    }
}

impl PendingCommand {
    /// A command whose answer matters only now.
    pub(crate) fn new(
        command: Arc<Command>,
        handler: Option<Arc<dyn ReplyHandler>>,
    ) -> PendingCommand {
        PendingCommand {
            command,
            is_alone: false,
            handler,
            keep_until: None,
            was_refused: false,
            changes: 0,
            releases: 0,
        }
    }

    /// A release, worth sending until `keep_until`, with or without a handler.
    pub(crate) fn release(
        command: Arc<Command>,
        handler: Option<Arc<dyn ReplyHandler>>,
        keep_until: Tick,
    ) -> PendingCommand {
        PendingCommand {
            keep_until: Some(keep_until),
            ..PendingCommand::new(command, handler)
        }
    }

    /// Whether it is a release whose key may still exist.
    pub(super) fn is_worth_keeping(&self, now: Tick) -> bool {
        self.command.kind == Kind::Release && self.keep_until.is_some_and(|it| now < it)
    }

    /// Whether a command that did not run must not be sent again, because its release may be under
    /// way. The command of a lock won without it is sent: the lock should be on this server too.
    /// `releases`: number of releases so far.
    ///
    /// RACE: T1 closes a round and then gives the releases; T2 comes here. The round is still open,
    /// or no release came since the command was sent. Therefore the releases are in the channel or
    /// not given yet, and run after the command of T2.
    ///
    /// Not handled: the release of all slots of a semaphore but one, after a won round, does not
    /// count. A permit's command sent behind it can take another slot on this server, which is
    /// given back with the permit or expires.
    pub(super) fn is_overtaken(&self, releases: u64) -> bool {
        // Releases and syncs are always sent.
        self.releases != releases
            && !matches!(self.command.kind, Kind::Release | Kind::SyncRecord)
            && self.handler.as_ref().is_none_or(|it| !it.is_open())
    }
}
