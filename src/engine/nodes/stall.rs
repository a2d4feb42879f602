//! Whether a node is silent: it owes an answer for longer than the response timeout, and none has come.
//!
//! An answer that has come and that nobody has read yet is not the node's delay: on a busy machine the thread that would
//! read it waits for a processor. So nobody goes by the age of what is owed alone.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::node::Node;
use crate::logic::pace::{self, Allowance};
use crate::sys::logging::info;
use crate::time::Tick;

/// Somebody reads and hands out what has come, until this is dropped.
pub(crate) struct Reading<'a>(&'a Node);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reads.fetch_add(1, Ordering::SeqCst);
    }
}

impl Node {
    /// Notes that somebody reads. The intake must be locked.
    pub(crate) fn begin_reading(&self) -> Reading<'_> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Reading(self)
    }

    /// Whether the node is silent. It is not asked again until it has caught up: what was sent already will be answered in
    /// order, and more would only make its backlog longer.
    ///
    /// Reads nothing, so that it can be asked with anything locked but the outbox.
    pub(crate) fn is_stalled(&self, now: Tick) -> bool {
        let stalled = self.is_overdue(now) && self.is_silent(now);
        if stalled && !self.stall_logged.swap(true, Ordering::AcqRel) {
            info!("{}: not responding: {}", self.id, self.address);
        }
        stalled
    }

    /// Answers have come; so many commands may be under way now.
    pub(crate) fn note_allowance(&self, allowance: &Allowance, now: Tick) {
        self.answered_at.store(self.nanos(now), Ordering::Relaxed);
        self.allowed.store(allowance.commands(), Ordering::Relaxed);
        self.each.store(u64::try_from(allowance.each().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long whoever begins a round waits first, so that this node keeps up.
    pub(crate) fn pause(&self, now: Tick) -> Duration {
        let (owes, allowed) = (self.owes(), self.allowed.load(Ordering::Relaxed));
        if owes <= allowed || !self.is_up() {
            return Duration::ZERO;
        }
        let since = self.nanos(now).saturating_sub(self.answered_at.load(Ordering::Relaxed));
        let (each, since) = (self.each.load(Ordering::Relaxed), Duration::from_nanos(since));
        pace::pause(owes.saturating_sub(allowed), Duration::from_nanos(each), since, self.response_timeout)
    }

    /// Says once that answers come again.
    pub(crate) fn note_answers(&self, late: bool) {
        if !late && self.stall_logged.load(Ordering::Acquire) && self.stall_logged.swap(false, Ordering::AcqRel) {
            info!("{}: responding again: {}", self.id, self.address);
        }
    }

    /// Whether an answer is owed for longer than the response timeout. It may be there, unread.
    fn is_overdue(&self, now: Tick) -> bool {
        let Some(oldest) = self.oldest.load(Ordering::Acquire).checked_sub(1) else { return false };
        let age = self.nanos(now).saturating_sub(oldest);
        self.response_timeout.as_nanos() < u128::from(age)
    }

    /// Whether the answer that is overdue has not come.
    ///
    /// RACE: a reader takes the bytes first, and the command that they answer later. So this looks at the socket between two
    /// looks at the readers. If none was at work, and none has begun, then all that had come was handed out when the
    /// socket was found empty, and what was owed then has not come.
    fn is_silent(&self, now: Tick) -> bool {
        let outbox = self.outbox.lock();
        let Some(socket) = outbox.socket() else { return false };
        let reads = self.reads.load(Ordering::SeqCst);
        let is_empty = reads.is_multiple_of(2) && !socket.has_unread();
        // The oldest that is owed may be another one by now.
        is_empty && self.is_overdue(now) && self.reads.load(Ordering::SeqCst) == reads
    }
}

/// With sockets of the system; see `checks` for threads that read meanwhile.
#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    #![expect(clippy::arithmetic_side_effects, reason = "a test may overflow: it fails then")]

    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::answer::ServerInfo;
    use crate::engine::nodes::job::Job;
    use crate::engine::nodes::worker::SOCKET;
    use crate::error::NodeFailure;
    use crate::sys::Poll;
    use crate::sys::Socket;
    use crate::wire::Command;

    const RESPONSE_TIMEOUT: Duration = Duration::from_millis(100);

    /// A node whose worker never gets a processor, and its server, to which it has sent one command.
    struct Unattended {
        node: Node,
        socket: Arc<Socket>,
        server: TcpStream,
        _poll: Poll,
    }

    impl Unattended {
        fn new() -> Unattended {
            let (node, poll) = Node::unattended(RESPONSE_TIMEOUT);
            let start = node.start;
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut socket = Socket::connect_tcp(listener.local_addr().unwrap()).unwrap();
            let mut server = listener.accept().unwrap().0;
            socket.register(poll.registry(), SOCKET).unwrap();
            let socket = Arc::new(socket);
            assert!(node.open(Arc::clone(&socket), &ServerInfo::default(), std::iter::empty(), start));
            let question = Arc::new(Command::time());
            let mut bytes = Vec::new();
            question.write_to(&mut bytes, false);
            node.give([Some(Job::of_connection(question)), None], start, true);
            server.read_exact(&mut bytes).unwrap();
            Unattended { node, socket, server, _poll: poll }
        }

        fn answer(&mut self) {
            self.server.write_all(b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n").unwrap();
            while !self.socket.has_unread() {
                std::thread::yield_now();
            }
        }

        /// Long after the response timeout.
        fn refusal(&self) -> Option<NodeFailure> {
            self.node.refusal(self.node.start + RESPONSE_TIMEOUT * 10)
        }
    }

    #[test]
    fn h6_a_node_whose_answer_lies_unread_is_asked_however_old_it_is() {
        let mut it = Unattended::new();
        assert_eq!(it.refusal(), Some(NodeFailure::Stalled), "it has not answered");

        it.answer();

        assert_eq!(it.refusal(), None);
    }

    #[test]
    fn h6_a_node_whose_answer_was_read_and_is_being_handed_out_is_asked() {
        let it = Unattended::new();

        let reading = it.node.begin_reading();
        assert_eq!(it.refusal(), None);
        drop(reading);

        assert_eq!(it.refusal(), Some(NodeFailure::Stalled), "nothing came of it");
    }

    #[test]
    fn h6_a_node_that_has_answered_in_time_is_not_stalled_for_who_reads_it_late() {
        let mut it = Unattended::new();
        it.answer();

        it.node.intake.lock().receive(&it.node, &it.socket).unwrap();

        assert_eq!(it.refusal(), None);
    }

    #[test]
    fn h6_a_node_that_has_hung_up_is_not_called_silent() {
        let it = Unattended::new();

        it.server.shutdown(std::net::Shutdown::Both).unwrap();
        while !it.socket.has_unread() {
            std::thread::yield_now();
        }

        assert_eq!(it.refusal(), None, "its worker is to find the end");
    }
}
