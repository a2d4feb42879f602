//! Greeting a server before commands that compare its record.

use crate::answer::Answer;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::link::LinkState;
use crate::engine::nodes::server::Server;
use crate::error::NodeFailure;
use crate::stats::count;
use crate::time::{Moment, Now, Tick};
use crate::wire::{GreetKind, Kind};

/// A command is sent so often for one round. Somebody deletes or sets the record all the time then.
const CHANGES_MAX: u8 = 16;

const RECORD_CHANGES: &str = "its record changes all the time; check that no program deletes or sets the key quorlock:record there: MONITOR";

impl Server {
    /// Lets a command pass, or keeps it until the server is greeted.
    pub(super) fn admit(&self, state: &mut LinkState, mut job: Job, asked: Now) -> Option<Job> {
        if job.command.asked.kind == Kind::Release && !job.command.keeps_a_slot {
            state.releases = state.releases.wrapping_add(1);
        }
        job.releases = state.releases;
        let is_noted = state
            .noted
            .is_some_and(|max_ttl| self.records.is_longest(max_ttl));
        if !job.command.compares || is_noted && state.held.is_none() {
            return Some(job);
        }
        self.greet(state, asked);
        state.held.get_or_insert_default().push(job);
        None
    }

    /// Greets the server, unless it is being greeted for commands that wait.
    fn greet(&self, state: &mut LinkState, asked: Now) {
        if state.held.is_none() {
            let greet = self.records.greet(GreetKind::Note);
            state.conn.enqueue(Job::of_connection(greet.into()), asked);
            state.held = Some(Vec::new());
        }
    }

    /// Asks what a login asks: an operator can change settings while the server is connected.
    pub(super) fn look_again(&self, asked: Now) {
        let look = self.records.greet(GreetKind::Look);
        self.link.with(|state| {
            if state.is_open() {
                state.conn.enqueue(Job::of_connection(look.into()), asked);
                state.flush();
                state.note_shared();
            }
        });
    }

    /// The server has run none of these commands, because its record is another one than it was greeted with.
    pub(super) fn on_changed(&self, changed: &mut Vec<(Job, bool)>, now: Tick) {
        let asked = Now {
            tick: now,
            moment: Moment::now(),
        };
        let over = self.link.with(|state| {
            let mut over = Vec::new();
            if changed.iter().any(|(_, is_known)| !is_known) {
                self.greet(state, asked);
            }
            for (mut job, _) in changed.drain(..) {
                job.changes = job.changes.saturating_add(1);
                if job.is_overtaken(state.releases) {
                    over.push((job, Answer::Changed));
                } else if CHANGES_MAX <= job.changes {
                    over.push((job, Answer::Failed(NodeFailure::unsuitable(RECORD_CHANGES))));
                } else {
                    self.enqueue(state, job, asked);
                }
            }
            state.flush();
            state.note_shared();
            over
        });
        self.end(over);
    }

    /// The server has been greeted. Commands that waited for that are sent.
    pub(super) fn on_greeted(&self, answer: &Answer, now: Tick) {
        let asked = Now {
            tick: now,
            moment: Moment::now(),
        };
        let over = self.link.with(|state| {
            state.noted = match answer {
                Answer::Greet(shown) => self.records.noted(shown),
                _ => None,
            };
            if let Answer::Failed(
                failure @ (NodeFailure::QuarantineDiffers { .. }
                | NodeFailure::MaxTtl { .. }
                | NodeFailure::Unsuitable { .. }
                | NodeFailure::Disqualified { .. }),
            ) = answer
            {
                state.give_up(failure.clone());
            }
            let mut over = Vec::new();
            for job in state.held.take().into_iter().flatten() {
                match answer {
                    Answer::Failed(failure) => over.push((job, Answer::Failed(failure.clone()))),
                    _ if job.is_overtaken(state.releases) => over.push((job, Answer::Changed)),
                    _ => self.put(state, job, asked),
                }
            }
            state.flush();
            state.note_shared();
            over
        });
        self.end(over);
    }

    /// Answers commands that are not sent.
    fn end(&self, over: Vec<(Job, Answer)>) {
        for (mut job, answer) in over {
            if !job.answer(self.id, answer, true) {
                count(&self.counters.late_answers);
            }
        }
    }
}
