//! What goes to one node, in order, and what is owed in return.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::drive::Reader;
use crate::engine::nodes::job::{Handed, Job};
use crate::sys::{Socket, Watch};
use crate::time::{Moment, Tick};
use crate::wire::Kind;

/// A command that was written, or is about to be, and has no answer yet.
pub(crate) struct InFlight {
    pub(crate) job: Job,
    /// It was given to this side.
    pub(crate) given: Handed,
    /// When it was put in line.
    pub(crate) since: Tick,
    /// The same moment.
    pub(crate) asked_at: Moment,
    /// Whether it carries the script's source.
    pub(crate) with_source: bool,
    /// Where its last byte is among all that were given to the connection.
    end: u64,
    /// The last command of a batch that was written at once.
    ends_batch: bool,
}

/// The writing half of a node: guarded by one mutex, so that the order of writes is the order of owed answers.
#[derive(Default)]
pub(crate) struct Outbox {
    socket: Option<Arc<Socket>>,
    /// Who reads the answers.
    pub(crate) reader: Reader,
    /// What of the socket is announced to the worker.
    pub(crate) watch: Watch,
    /// It can carry pushes.
    pub(crate) pushes: bool,
    /// The client's channel was asked for on it.
    pub(crate) subscribed: bool,
    /// The node has refused that.
    pub(crate) is_deaf: bool,
    /// The worker has written since a caller took over reading: somebody else waits for answers as well.
    pub(crate) shared: bool,
    /// The scripts whose source was written on it.
    introduced: Vec<Kind>,
    owed: VecDeque<InFlight>,
    unsent: Vec<u8>,
    /// Where the bytes that the system has not taken yet begin.
    unsent_from: usize,
    /// How many bytes the system has taken.
    sent: u64,
    /// Batches that were written and are not answered to their end.
    batches: usize,
    /// When the node is to be told again what quarantine we need; `None` if it is not told.
    pub(crate) greet_at: Option<Moment>,
    /// What it was told of other nodes.
    pub(crate) news: u64,
    /// What it was last told of our nodes, and when it is to be asked again who uses it.
    pub(crate) met: Option<u64>,
    pub(crate) meet_at: Option<Tick>,
    /// Not before that is it told that they have changed.
    pub(crate) news_at: Option<Tick>,
    /// Until when a lock can stand there because of any command on this connection.
    stands_until: Option<Tick>,
}

impl Outbox {
    /// Begins with a new connection, on which nothing is owed.
    pub(crate) fn open(&mut self, socket: Arc<Socket>, pushes: bool) {
        *self = Outbox { socket: Some(socket), pushes, ..Outbox::default() };
    }

    /// Ends with the connection: everything that is still owed on it.
    pub(crate) fn close(&mut self) -> VecDeque<InFlight> {
        if let Some(socket) = &self.socket {
            // A caller may be waiting on it.
            socket.shut_down();
        }
        std::mem::take(self).owed
    }

    pub(crate) fn socket(&self) -> Option<&Arc<Socket>> {
        self.socket.as_ref()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Nothing waits to be written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Nothing is owed.
    pub(crate) fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// Puts a command in line behind all others.
    pub(crate) fn push(&mut self, job: Job, now: Tick) {
        let is_told = self.pushes && !self.is_deaf;
        let kind = job.kind();
        if kind.is_introduced() && !self.introduced.contains(&kind) {
            self.introduced.push(kind);
            job.command.write_with_source_to(&mut self.unsent, is_told);
            self.owe(job, now, true);
            return;
        }
        job.command.write_to(&mut self.unsent, is_told);
        self.owe(job, now, false);
    }

    /// Puts a command in line again, behind all others, whose script the server does not know.
    pub(crate) fn push_again(&mut self, job: Job, now: Tick) {
        job.command.write_again_to(&mut self.unsent, self.pushes && !self.is_deaf);
        self.owe(job, now, true);
    }

    fn owe(&mut self, mut job: Job, since: Tick, with_source: bool) {
        self.stands_until = self.stands_until.max(since.checked_add(job.command.life()));
        // Once: what is sent again later was not given any earlier.
        let given = job.handed.take().unwrap_or(Handed { at: since, ahead: self.owed.len() });
        let end = self.sent.saturating_add(len(self.unsent.len().saturating_sub(self.unsent_from)));
        self.owed.push_back(InFlight {
            job,
            given,
            since,
            asked_at: Moment::now(),
            with_source,
            end,
            ends_batch: false,
        });
    }

    /// Writes what the system takes now. After an error the connection is of no use: half a command may be written.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        if let Some(last) = self.owed.back_mut()
            && !last.ends_batch
        {
            last.ends_batch = true;
            self.batches = self.batches.saturating_add(1);
        }
        while let Some(rest @ [_, ..]) = self.unsent.get(self.unsent_from..) {
            match socket.write(rest)? {
                0 => {
                    self.forget_sent();
                    return Ok(());
                }
                written => {
                    self.unsent_from = self.unsent_from.saturating_add(written);
                    self.sent = self.sent.saturating_add(len(written));
                }
            }
        }
        self.unsent.clear();
        self.unsent_from = 0;
        Ok(())
    }

    /// How many bytes are kept for the system to take.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.unsent.len()
    }

    /// Makes room: where more is always given than the system has taken, all is never sent. Not each time, as the rest is
    /// moved.
    fn forget_sent(&mut self) {
        if self.unsent.len() / 2 < self.unsent_from {
            self.unsent.drain(..self.unsent_from);
            self.unsent_from = 0;
        }
    }

    /// Whether the next answer would come before its command was sent: no server knows what to answer then.
    pub(crate) fn is_ahead(&self) -> bool {
        self.owed.front().is_some_and(|it| self.sent < it.end)
    }

    /// Takes the command that the next answer belongs to. Answers come in the order of commands, so an answer that
    /// is late is still that command's and nobody else's.
    pub(crate) fn pop(&mut self) -> Option<InFlight> {
        let owed = self.owed.pop_front()?;
        if owed.ends_batch {
            self.batches = self.batches.saturating_sub(1);
        }
        Some(owed)
    }

    /// How many answers are owed.
    pub(crate) fn owes(&self) -> usize {
        self.owed.len()
    }

    /// What the next answer belongs to.
    pub(crate) fn next_kind(&self) -> Option<Kind> {
        self.owed.front().map(|it| it.job.kind())
    }

    /// How many batches are under way.
    pub(crate) fn batches(&self) -> usize {
        self.batches
    }

    /// Since when the oldest answer is owed.
    pub(crate) fn oldest(&self) -> Option<Tick> {
        self.owed.front().map(|it| it.since)
    }

    /// When the connection is worth nothing any more if no answer comes: the oldest is owed for `patience`, and whatever
    /// its commands have set has expired. `None` if none is owed. A node that owes answers is sent nothing that sets
    /// anything, so this does not move on for ever.
    ///
    /// Before that nobody may give it up: a release that has to run behind an acquire is only sure to do so on the same
    /// connection. After that it does not matter. One gap stays open, as it does when a connection breaks: a server that
    /// was stopped can run the acquire when it goes on, from the old connection, and the key stays for one ttl. Nobody
    /// counted that vote.
    pub(crate) fn give_up_at(&self, patience: Duration) -> Option<Tick> {
        self.stands_until.max(self.oldest()?.checked_add(patience))
    }
}

fn len(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::OwnerToken;
    use crate::time;
    use crate::wire::{KeyTtls, Plan, QueuePolicy, QueueUpdate};

    const PATIENCE: Duration = Duration::from_secs(1);

    fn plan() -> Plan {
        Plan::mutex(b"", b"a", KeyTtls::default())
    }

    fn acquire(ttl_ms: u64) -> Job {
        let policy = QueuePolicy { fair: true, since: 1, entry: None, enters: false };
        Job::of_connection(Arc::new(plan().acquire(OwnerToken::nobody(), ttl_ms, 1, 0, &policy)))
    }

    fn release() -> Job {
        Job::of_connection(Arc::new(plan().release(OwnerToken::nobody(), None, QueueUpdate::None)))
    }

    #[test]
    fn h9_a_connection_is_worth_something_until_all_that_its_owed_commands_set_has_expired() {
        let start = time::tick();
        let after = |millis| start.checked_add(Duration::from_millis(millis)).unwrap();
        let mut outbox = Outbox::default();
        assert_eq!(outbox.give_up_at(PATIENCE), None, "nothing is owed");

        outbox.push(release(), start);
        assert_eq!(outbox.give_up_at(PATIENCE), Some(after(1_000)), "it sets nothing");
        outbox.push(acquire(20_000), after(100));
        outbox.push(acquire(5_000), after(200));
        outbox.push(release(), after(20_000));
        assert_eq!(
            outbox.give_up_at(PATIENCE),
            Some(after(20_100)),
            "the longest life, not the oldest or the last one"
        );

        for _ in 0..4 {
            assert!(outbox.pop().is_some());
        }
        assert_eq!(outbox.give_up_at(PATIENCE), None, "all is answered");
        outbox.push(release(), after(15_000));
        assert_eq!(outbox.give_up_at(PATIENCE), Some(after(20_100)), "but the lock that it releases may stand");
        assert!(outbox.pop().is_some());
        outbox.push_again(acquire(2_000), after(30_000));
        assert_eq!(outbox.give_up_at(PATIENCE), Some(after(32_000)), "what has expired does not count any more");
        outbox.push_again(acquire(100), after(30_000));
        assert_eq!(outbox.give_up_at(Duration::from_secs(9)), Some(after(39_000)), "and patience is kept in any case");
    }
}
