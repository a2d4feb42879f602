//! Confirming a slot on a server of a cluster, before commands that rest on its record: see `logic::slots`.

use crate::answer::Answer;
use crate::engine::nodes::job::{ClusterQuery, Job};
use crate::engine::nodes::link::LinkState;
use crate::engine::nodes::records::Records;
use crate::engine::nodes::server::Server;
use crate::engine::nodes::shard_conn::{Served, ShardConn};
use crate::error::NodeFailure;
use crate::logic::slots::{Admitted, SlotStep};
use crate::time::{Moment, Now, Tick};
use crate::wire::{Command, Greeted, Kind};

impl Server {
    /// Lets a command of a cluster pass, or keeps it until its slot is known.
    pub(crate) fn admit_by_slot(
        &self,
        shard_conn: &ShardConn,
        state: &mut LinkState,
        job: Job,
        asked: Now,
    ) -> Option<Job> {
        let rests_on_it = matches!(
            job.kind(),
            Kind::Acquire | Kind::Raise | Kind::Extend | Kind::Release
        );
        let Some(slot) = job.command.slot().filter(|_| rests_on_it) else {
            return Some(job);
        };
        match state.slots.admit(slot, job) {
            Admitted::Pass(job) => return Some(job),
            Admitted::Wait => {}
            // RACE: the master's record is looked at after the slot's was written. Keys that are lost in between take the
            // slot's along; looked at before, it would vouch for them.
            Admitted::Ask => {
                let greet = self.records.greet(Greeted::Slot(slot));
                state.enqueue(
                    Job::of_connection(greet.into()).that_confirms(ClusterQuery::Slot(slot)),
                    asked,
                );
                let greet = greet_master(&self.records, shard_conn, slot, false);
                state.enqueue(
                    Job::of_connection(greet.into()).that_confirms(ClusterQuery::Master(slot)),
                    asked,
                );
            }
        }
        None
    }

    /// Lets a master of a cluster note what it serves, if that is owed and it is connected.
    ///
    /// RACE: the connection may open at this moment. It is owed first, and looked at with the state locked, here and when the
    /// connection has been opened: one of the two greets.
    pub(crate) fn greet_if_owed(&self, now: Tick) {
        let Some(shard_conn) = self.with_slots() else {
            return;
        };
        let asked = Now {
            tick: now,
            moment: Moment::now(),
        };
        self.link.with(|state| {
            if state.is_open() && shard_conn.takes_greeting() {
                let greet = greet_master(&self.records, shard_conn, 0, false);
                state.enqueue(Job::of_connection(greet.into()), asked);
                state.flush();
                state.note_shared();
            }
        });
    }

    /// Takes the answer to a question about a slot.
    pub(crate) fn take_step(&self, step: ClusterQuery, answer: &Answer, now: Tick) {
        let Some(shard_conn) = self.with_slots() else {
            return;
        };
        let length = self.records.quarantine().unwrap_or_default();
        let reply = match answer {
            Answer::Greet(reply) => Ok(reply.clone()),
            Answer::Failed(failure) => Err(failure.clone()),
            _ => Err(NodeFailure::of_another_command()),
        };
        if let (ClusterQuery::Master(_), Ok(reply)) = (step, &reply) {
            shard_conn.remember(reply, now, self.records.quarantine());
        }
        let asked = Now {
            tick: now,
            moment: Moment::now(),
        };
        let failed = self.link.with(|state| {
            let (waiting, confirm) = match step {
                ClusterQuery::Slot(slot) => {
                    state.slots.on_slot(slot, reply);
                    return None;
                }
                ClusterQuery::Confirmed(slot) => {
                    state.slots.on_confirmed(slot, reply, now, length);
                    return None;
                }
                ClusterQuery::Master(slot) => match state.slots.on_master(slot, reply, now, length)
                {
                    SlotStep::Confirm {
                        found,
                        since,
                        origin,
                        waiting,
                    } => {
                        let greet = self.records.greet(Greeted::Confirm {
                            slot,
                            found,
                            since,
                            origin,
                        });
                        let confirm = Job::of_connection(greet.into());
                        (
                            waiting,
                            Some(confirm.that_confirms(ClusterQuery::Confirmed(slot))),
                        )
                    }
                    SlotStep::Open(waiting) => (waiting, None),
                    SlotStep::Fail(waiting, failure) => return Some((waiting, failure)),
                },
            };
            confirm.into_iter().for_each(|it| state.enqueue(it, asked));
            waiting
                .into_iter()
                .for_each(|it| self.put(state, it, asked));
            state.flush();
            state.note_shared();
            None
        });
        let Some((waiting, failure)) = failed else {
            return;
        };
        shard_conn.request_probe();
        for mut job in waiting {
            job.answer(self.id, Answer::Failed(failure.clone()), false);
            if job.is_worth_retrying(&failure, now) {
                self.retry_later(job, now);
            }
        }
    }

    /// The master does not serve this slot, or not all of it: what is known of the slot is in doubt, and of the map.
    pub(crate) fn suspect_slot(&self, job: &Job) {
        if let Some(shard_conn) = self.with_slots() {
            if let Some(slot) = job.command.slot() {
                self.link.with(|it| it.slots.suspect(slot));
            }
            shard_conn.request_probe();
        }
    }
}

/// Asks for a master's record. One that serves nothing is asked for the record of the slot in question, which it refuses.
pub(super) fn greet_master(
    records: &Records,
    shard_conn: &ShardConn,
    slot: u16,
    vouch: bool,
) -> Command {
    let served = shard_conn.served();
    let of = match &served {
        Some(Served {
            last, epoch, slots, ..
        }) => Greeted::Master {
            slot: *last,
            epoch: *epoch,
            slots,
            vouch,
        },
        None => Greeted::Slot(slot),
    };
    records.greet(of)
}
