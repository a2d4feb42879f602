//! One command for one server, and who wants its answer.

use std::sync::Arc;

use crate::answer::Answer;
use crate::ids::NodeId;
use crate::time::Tick;
use crate::wire::{Command, Kind};

/// Who wants the answer to a command.
pub(crate) trait ReplyHandler: Send + Sync {
    /// Takes the answer of `node`. `reached` is false only if nothing of the command can have come to the node.
    ///
    /// Called once per node at most, on a worker's thread or on the sender's own; must not block. False if it came too
    /// late to count.
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool;

    /// Whether an answer can still make a difference.
    fn is_open(&self) -> bool;
}

/// A command that has no answer yet.
pub(crate) struct PendingCommand {
    pub(crate) command: Arc<Command>,
    /// Nothing else was under way when it was sent: its answer shows the round trip.
    pub(super) is_alone: bool,
    /// Who wants the answer; nobody, once it has been given.
    pub(super) handler: Option<Arc<dyn ReplyHandler>>,
    /// A release is sent again after a reconnect until then: after that the key has expired by itself.
    keep_until: Option<Tick>,
    /// The server has refused it, and it is sent again.
    pub(super) was_refused: bool,
    /// How often the server's record was another one when it was run.
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

    /// A release, which is worth sending until `keep_until` whether or not anybody waits for it.
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

    /// Whether this is a release that can still find a key.
    pub(super) fn is_worth_keeping(&self, now: Tick) -> bool {
        self.command.kind == Kind::Release && self.keep_until.is_some_and(|it| now < it)
    }

    /// Whether a command that was not run must not be sent again, because its release may be on its way. The command of a lock
    /// that was won without it is sent: the lock is to be on this server too. `releases`: number of releases by now.
    ///
    /// RACE: T1 ends a round: it closes the round, then gives the releases. T2 comes here. The round is still open, or no release
    /// came since the command was sent; therefore the releases are in the channel or not given yet, and run behind what T2 sends.
    ///
    /// Not handled: the release of all slots of a semaphore but one, which follows a won round, does not count. A permit's command
    /// that is sent behind it can take another slot on this server. It is given back with the permit or expires.
    pub(super) fn is_overtaken(&self, releases: u64) -> bool {
        // A release is always of use, and a sync.
        self.releases != releases
            && !matches!(self.command.kind, Kind::Release | Kind::SyncRecord)
            && self.handler.as_ref().is_none_or(|it| !it.is_open())
    }
}
