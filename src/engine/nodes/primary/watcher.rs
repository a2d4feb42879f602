//! The thread of one member, with a connection of its own.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::choice::Report;
use super::question::Question;
use crate::engine::nodes::connect::{Opened, Waits, cannot, connect, exchange};
use crate::error::NodeFailure;
use crate::sys::{Events, Poll, Registry};
use crate::time::{self, Moment, Tick};
use crate::wire::{Address, Endpoint, answer};

/// Pause between two questions to a member.
pub(super) const QUESTION_PAUSE: Duration = Duration::from_millis(500);

/// See the module. Ends with the channel of questions, after a name resolution under way.
pub(super) struct Watcher<F> {
    pub(super) member: Address,
    pub(super) question: Question,
    /// Longest time for a connection, and for an answer.
    pub(super) timeout: Duration,
    /// Where the thread waits for its connection.
    pub(super) poll: Poll,
    pub(super) asked: Receiver<()>,
    /// Takes each answer.
    pub(super) report: F,
}

impl<F: Fn(Report)> Watcher<F> {
    /// Asks on each message, and then at least once per pause. Keeps the connection until a
    /// question has no answer.
    pub(super) fn run(mut self) {
        let mut kept = None;
        let mut failures = 0_usize;
        let mut next = self.asked.recv().map_err(RecvTimeoutError::from);
        while next != Err(RecvTimeoutError::Disconnected) {
            let asked = Moment::now();
            let member = self.member.clone();
            let open = match kept.take() {
                Some(open) => Ok(open),
                None => connect(&member, None, self.timeout, failures, &mut self),
            };
            let mut named = open.and_then(|mut open| {
                let answer = self.query(&mut open)?;
                kept = Some(open);
                Ok(answer)
            });
            // Their logins are others than those of servers.
            if let (Question::Sentinel(_), Err(NodeFailure::Access { reason })) =
                (&self.question, &mut named)
            {
                reason
                    .to_mut()
                    .push_str(" (of the Sentinels: ?sentinel_password=…)");
            }
            failures = match &named {
                Ok(_) => 0,
                Err(_) => failures.wrapping_add(1),
            };
            (self.report)(Report { asked, named });
            next = self.asked.recv_timeout(QUESTION_PAUSE);
        }
    }

    fn query(&mut self, open: &mut Opened) -> Result<Option<Endpoint>, NodeFailure> {
        let conn = &mut open.login.conn;
        conn.push_bytes(&self.question.packed());
        let deadline = time::deadline(self.timeout);
        let stream = &mut *open.stream;
        let reply = exchange(conn, stream, deadline, |conn, _| conn.poll_reply(), self)?;
        let reply = answer(&reply.ok_or(NodeFailure::TimedOut)?)?;
        self.question.read(&reply, &self.member.place)
    }
}

impl<F: Fn(Report)> Waits for Watcher<F> {
    fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    fn wait_until(&mut self, deadline: Tick) -> Result<(), NodeFailure> {
        let left = deadline.saturating_duration_since(time::tick());
        let woken = self.poll.poll(&mut Events::with_capacity(4), Some(left));
        woken.map_err(|err| cannot(&err))
    }
}
