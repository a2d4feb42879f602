//! The thread that asks one member, over a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::choice::Report;
use super::question::Question;
use crate::engine::nodes::connect::{Connecting, Opened, Progress, advance, cannot};
use crate::error::NodeFailure;
use crate::session::pending_command::PendingCommand;
use crate::sys::{Events, Poll};
use crate::time::{self, Moment, Now, Tick};
use crate::wire::{Address, ConnEvent, Endpoint};

/// Pause between two questions to a member.
pub(super) const ASKED_EVERY: Duration = Duration::from_millis(500);

/// See the module. It ends when nobody can ask any more; a name that is being resolved keeps it until then.
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
    /// Asks when it is told to, and then at least once per pause. A connection is kept until a question has no answer.
    pub(super) fn run(mut self) {
        let mut kept = None;
        let mut next = self.asked.recv().map_err(RecvTimeoutError::from);
        while next != Err(RecvTimeoutError::Disconnected) {
            let asked = Moment::now();
            let open = kept.take().map_or_else(|| self.connect(), Ok);
            let said = open.and_then(|mut open| {
                let named = self.ask(&mut open);
                kept = named.is_ok().then_some(open);
                named
            });
            (self.report)(Report { asked, said });
            next = self.asked.recv_timeout(ASKED_EVERY);
        }
    }

    fn connect(&mut self) -> Result<Box<Opened>, NodeFailure> {
        let mut connecting = Connecting::begin(&self.member, None, self.timeout, &self.poll)?;
        loop {
            match connecting.step(&self.poll, time::tick())? {
                Progress::Done(open) => return Ok(open),
                Progress::Wait => self.wait(connecting.deadline())?,
            }
        }
    }

    fn ask(&mut self, open: &mut Opened) -> Result<Option<Endpoint>, NodeFailure> {
        let deadline = time::deadline(self.timeout);
        let question = PendingCommand::new(Arc::new(self.question.command()), None);
        open.login.conn.enqueue(question, Now::read());
        loop {
            match advance(&mut open.login.conn, &open.socket)? {
                Some(ConnEvent::Member(answer)) => {
                    return self.question.read(&answer, &self.member.place);
                }
                Some(_) => return Err(NodeFailure::of_another_command()),
                None if deadline <= time::tick() => return Err(NodeFailure::TimedOut),
                None => self.wait(deadline)?,
            }
        }
    }

    fn wait(&mut self, until: Tick) -> Result<(), NodeFailure> {
        let left = until.saturating_duration_since(time::tick());
        let woken = self.poll.poll(&mut Events::with_capacity(4), Some(left));
        woken.map_err(|err| cannot(&err))
    }
}
