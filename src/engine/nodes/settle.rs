//! Greeting a server, or settling a slot on a lane (see `logic::slots`), before commands that compare the server's record.

use crate::answer::Answer;
use crate::engine::nodes::job::{Job, Step};
use crate::engine::nodes::lane::Lane;
use crate::engine::nodes::link::State;
use crate::engine::nodes::node::Node;
use crate::engine::nodes::records::Records;
use crate::error::NodeFailure;
use crate::logic::slots::{Admitted, Next};
use crate::stats::count;
use crate::time::{Moment, Now, Tick};
use crate::wire::{Greeted, Kind};

/// A command is sent so often for one round. Somebody deletes or sets the record all the time then.
const CHANGES_MAX: u8 = 16;

impl Node {
    /// Lets a command pass, or keeps it until the server is greeted; in a cluster, until the slot is known.
    pub(super) fn admit(&self, state: &mut State, mut job: Job, asked: Now) -> Option<Job> {
        if job.kind() == Kind::Release {
            state.releases = state.releases.wrapping_add(1);
        }
        job.releases = state.releases;
        let Some(lane) = &self.lane else {
            if !job.command.compares() || state.noted && state.held.is_none() {
                return Some(job);
            }
            self.hold(state, job, asked);
            return None;
        };
        let rests_on_it = matches!(job.kind(), Kind::Acquire | Kind::Raise | Kind::Extend | Kind::Release);
        let Some(slot) = job.command.slot().filter(|_| rests_on_it) else { return Some(job) };
        match state.slots.admit(slot, job) {
            Admitted::Pass(job) => return Some(job),
            Admitted::Wait => {}
            // RACE: the master's record is looked at after the slot's was written. Keys that are lost in between take the
            // slot's along; looked at before, it would vouch for them.
            Admitted::Ask => {
                let greet = self.records.greet(Greeted::Slot(slot), None);
                state.enqueue(Job::of_connection(greet.into()).that_settles(Step::Slot(slot)), asked);
                let greet = greet_master(&self.records, lane, slot, false);
                state.enqueue(Job::of_connection(greet.into()).that_settles(Step::Master(slot)), asked);
            }
        }
        None
    }

    /// Keeps a command until the server's record is known as it is now.
    fn hold(&self, state: &mut State, job: Job, asked: Now) {
        self.greet(state, asked);
        state.held.get_or_insert_default().push(job);
    }

    /// Greets the server, unless it is being greeted for commands that wait.
    fn greet(&self, state: &mut State, asked: Now) {
        if state.held.is_none() {
            let greet =
                self.other_users.greet(&mut state.told, Greeted::Server { look: false, vouch: false }, asked.tick);
            state.enqueue(Job::of_connection(greet.into()), asked);
            state.held = Some(Vec::new());
        }
    }

    /// The server has run none of these commands, because its record is another one than it was greeted with.
    pub(super) fn on_changed(&self, changed: &mut Vec<(Job, bool)>, now: Tick) {
        let asked = Now { tick: now, moment: Moment::now() };
        let over = self.link.with(|state| {
            let mut over = Vec::new();
            if self.lane.is_none() && changed.iter().any(|(_, is_known)| !is_known) {
                self.greet(state, asked);
            }
            for (mut job, is_known) in changed.drain(..) {
                job.changes = job.changes.saturating_add(1);
                if is_overtaken(state, &job) {
                    over.push((job, Answer::Changed));
                } else if CHANGES_MAX <= job.changes {
                    over.push((job, Answer::Failed(NodeFailure::RecordChanged)));
                } else {
                    if let (Some(_), Some(slot), false) = (&self.lane, job.command.slot(), is_known) {
                        state.slots.doubt(slot);
                    }
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
        let asked = Now { tick: now, moment: Moment::now() };
        let over = self.link.with(|state| {
            state.noted = matches!(answer, Answer::Greet(it) if self.records.is_noted(*it));
            if let Answer::Failed(failure @ NodeFailure::QuarantineDiffers { .. }) = answer {
                state.give_up(failure.clone());
            }
            let mut over = Vec::new();
            for job in state.held.take().into_iter().flatten() {
                match answer {
                    Answer::Failed(failure) => over.push((job, Answer::Failed(failure.clone()))),
                    _ if is_overtaken(state, &job) => over.push((job, Answer::Changed)),
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

    /// Lets a master of a cluster note what it serves, if that is owed and it is connected.
    ///
    /// RACE: the connection may open at this moment. It is owed first, and looked at with the state locked, here and when the
    /// connection has been opened: one of the two greets.
    pub(super) fn greet_if_owed(&self, now: Tick) {
        let Some(lane) = &self.lane else { return };
        let asked = Now { tick: now, moment: Moment::now() };
        self.link.with(|state| {
            if state.is_open() && lane.takes_greeting() {
                let greet = greet_master(&self.records, lane, 0, false);
                state.enqueue(Job::of_connection(greet.into()), asked);
                state.flush();
                state.note_shared();
            }
        });
    }

    /// Takes the answer to a question about a slot.
    pub(super) fn take_step(&self, step: Step, answer: &Answer, now: Tick) {
        let Some(lane) = &self.lane else { return };
        let length = self.records.quarantine().unwrap_or_default();
        let reply = match answer {
            Answer::Greet(reply) => Ok(*reply),
            Answer::Failed(failure) => Err(failure.clone()),
            _ => Err(NodeFailure::Protocol { reason: "an answer to another command".to_owned() }),
        };
        if let (Step::Set, Ok(reply)) = (step, &reply) {
            self.hear_set(*reply);
        }
        if let (Step::Master(_), Ok(reply)) = (step, &reply) {
            lane.remember(*reply, now, self.records.quarantine());
        }
        let asked = Now { tick: now, moment: Moment::now() };
        let failed = self.link.with(|state| {
            let (waiting, settle) = match step {
                Step::Set => return None,
                Step::Slot(slot) => {
                    state.slots.on_slot(slot, reply);
                    return None;
                }
                Step::Settled(slot) => {
                    state.slots.on_settled(slot, reply, now, length);
                    return None;
                }
                Step::Master(slot) => match state.slots.on_master(slot, reply, now, length) {
                    Next::Settle { found, since, origin, waiting } => {
                        let greet = self.records.greet(Greeted::Settle { slot, found, since, origin }, None);
                        let settle = Job::of_connection(greet.into());
                        (waiting, Some(settle.that_settles(Step::Settled(slot))))
                    }
                    Next::Open(waiting) => (waiting, None),
                    Next::Fail(waiting, failure) => return Some((waiting, failure)),
                },
            };
            settle.into_iter().for_each(|it| state.enqueue(it, asked));
            waiting.into_iter().for_each(|it| self.put(state, it, asked));
            state.flush();
            state.note_shared();
            None
        });
        let Some((waiting, failure)) = failed else { return };
        lane.look();
        for mut job in waiting {
            job.answer(self.id, Answer::Failed(failure.clone()), false);
            if job.is_worth_retrying(&failure, now) {
                self.retry_later(job, now);
            }
        }
    }

    /// The master does not serve this slot, or not all of it: what is known of the slot is in doubt, and of the map.
    pub(super) fn doubt(&self, job: &Job) {
        if let Some(lane) = &self.lane {
            if let Some(slot) = job.command.slot() {
                self.link.with(|it| it.slots.doubt(slot));
            }
            lane.look();
        }
    }
}

/// Whether the command may not be sent any more, because its release may be on its way already. Where a round was won
/// without it and the lock is held, it is sent: the lock is to stand on this server as well.
///
/// RACE: whoever ends a round first closes it and then gives the releases, which takes the connection's state or the queue
/// behind it. So, with the state locked: if the round is still open, or no release came since the command was put in line, its
/// releases come behind what is sent now.
fn is_overtaken(state: &State, job: &Job) -> bool {
    job.releases != state.releases && !job.is_wanted()
}

/// Asks for a master's record. One that serves nothing is asked for the record of the slot in question, which it refuses.
pub(super) fn greet_master(records: &Records, lane: &Lane, slot: u16, vouch: bool) -> crate::wire::Command {
    let served = lane.served();
    let of = match served.last {
        Some(last) => Greeted::Master { slot: last, epoch: served.epoch, slots: &served.slots, vouch },
        None => Greeted::Slot(slot),
    };
    records.greet(of, None)
}
