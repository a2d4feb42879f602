//! Settling a slot on a lane: see `logic::slots`.

use crate::answer::Answer;
use crate::engine::nodes::job::{Job, Step};
use crate::engine::nodes::lane::Lane;
use crate::engine::nodes::link::State;
use crate::engine::nodes::memory::QuarantineLength;
use crate::engine::nodes::node::Node;
use crate::error::NodeFailure;
use crate::logic::slots::{Admitted, Next};
use crate::time::{Moment, Now, Tick};
use crate::wire::{Greeting, Kind};

impl Node {
    /// Lets a command pass, or keeps it until the slot is known, in a cluster.
    pub(super) fn admit(&self, state: &mut State, job: Job, asked: Now) -> Option<Job> {
        let (Some(lane), Some(length)) = (&self.lane, &self.quarantine_length) else { return Some(job) };
        let rests_on_it = matches!(job.kind(), Kind::Acquire | Kind::Raise | Kind::Extend | Kind::Release);
        let Some(slot) = job.command.slot().filter(|_| rests_on_it) else { return Some(job) };
        match state.slots.admit(slot, job) {
            Admitted::Pass(job) => return Some(job),
            Admitted::Wait => {}
            // RACE: the master's canary is looked at after the slot's was written. Keys that are lost in between take the
            // slot's along; looked at before, it would vouch for them.
            Admitted::Ask => {
                let greet = length.greet_in_cluster(&Greeting::Slot(slot));
                state.enqueue(Job::of_connection(greet.into()).that_settles(Step::Slot(slot)), asked);
                let greet = greet_master(length, lane, slot, false);
                state.enqueue(Job::of_connection(greet.into()).that_settles(Step::Master(slot)), asked);
            }
        }
        None
    }

    /// Takes the answer to a question about a slot.
    pub(super) fn take_step(&self, step: Step, answer: &Answer, now: Tick) {
        let (Some(lane), Some(length)) = (&self.lane, &self.quarantine_length) else { return };
        let reply = match answer {
            Answer::Greet(reply) => Ok(*reply),
            Answer::Failed(failure) => Err(failure.clone()),
            _ => Err(NodeFailure::Protocol { reason: "an answer to another command".to_owned() }),
        };
        if let (Step::Master(_), Ok(reply)) = (step, &reply) {
            lane.remember(*reply, now);
        }
        let asked = Now { tick: now, moment: Moment::now() };
        let failed = self.link.with(|state| {
            let (waiting, settle) = match step {
                Step::Slot(slot) => {
                    state.slots.on_slot(slot, reply);
                    return None;
                }
                Step::Settled(slot) => {
                    state.slots.on_settled(slot, reply, now, length.get());
                    return None;
                }
                Step::Master(slot) => match state.slots.on_master(slot, reply, now, length.get()) {
                    Next::Settle { found, since, origin, waiting } => {
                        let greeting = Greeting::Settle { slot, found, since, origin };
                        let settle = Job::of_connection(length.greet_in_cluster(&greeting).into());
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

/// Asks for a master's canary. One that serves nothing is asked for the canary of the slot in question, which it refuses.
pub(super) fn greet_master(length: &QuarantineLength, lane: &Lane, slot: u16, vouch: bool) -> crate::wire::Command {
    let served = lane.served();
    match served.last {
        Some(last) => {
            let greeting = Greeting::Master { slot: last, epoch: served.epoch, slots: &served.slots, vouch };
            length.greet_in_cluster(&greeting)
        }
        None => length.greet_in_cluster(&Greeting::Slot(slot)),
    }
}
