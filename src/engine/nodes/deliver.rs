//! What an answer counts for, and to whom it goes.

use crate::answer::{AcquireReply, Answer, ExtendReply, GreetReply, RaiseReply};
use crate::engine::nodes::link::{Answered, Batch, Driver, Filled};
use crate::engine::nodes::server::Server;
use crate::error::NodeFailure;
use crate::logic::eligibility::{Eligibility, Times};
use crate::logic::quarantines::Ask;
use crate::observer::Event;
use crate::stats::count;
use crate::sys::logging::trace;
use crate::time::Now;
use crate::wire::{Kind, Reply};

/// One turn at a connection that `me` drives: reads once, and hands out what has come. `None` if somebody else drives it, or
/// if it is broken.
pub(crate) fn turn(server: &Server, me: Driver) -> Option<Filled> {
    let turn = server.link.turn(me)?;
    if let Some(mut batch) = turn.batch {
        deliver(server, &mut batch, turn.now);
        server.link.end_turn(me, batch);
    }
    Some(turn.filled)
}

/// The connection is not locked meanwhile. What belongs to users comes after all of it.
fn deliver(server: &Server, batch: &mut Batch, now: Now) {
    let mut eligibility = server.eligibility.lock();
    let mut is_gone = false;
    if std::mem::take(&mut batch.in_time) {
        server.note_answers();
    }
    for Answered {
        mut job,
        asked,
        reply,
    } in batch.answers.drain(..)
    {
        trace!("{}: {:?}", server.id, reply.answer);
        let times = Times {
            asked: asked.tick,
            asked_at: asked.moment,
            answered: now.tick,
            answered_at: now.moment,
        };
        let answer = judge(server, &mut eligibility, reply, times);
        count(&server.own_counters.answers);
        if matches!(answer, Answer::Failed(_)) {
            count(&server.own_counters.failures);
        }
        server.upcall.tell(|| {
            let failure = if let Answer::Failed(failure) = &answer {
                Some(failure.clone())
            } else {
                None
            };
            Event::NodeReply {
                node: server.id,
                took: now.tick.saturating_duration_since(asked.tick),
                failure,
            }
        });
        match job.command.asked.kind {
            Kind::Subscribe => server.set_listening(&answer),
            kind => {
                if kind == Kind::Greet {
                    server.on_greeted(&answer, now.tick);
                }
                is_gone |= matches!(answer, Answer::Extend(ExtendReply::Gone { .. }));
                let is_taken = !matches!(answer, Answer::Failed(_));
                let retries = !is_taken && job.is_worth_keeping(now.tick);
                match &answer {
                    // They have ended the connection.
                    Answer::Failed(NodeFailure::Replica | NodeFailure::Loading) => {}
                    Answer::Failed(failure) => server.status.note_refusal(failure, now.tick),
                    _ => {}
                }
                if !job.answer(server.id, answer, true) {
                    count(&server.counters.late_answers);
                }
                if is_taken && job.was_refused {
                    server.retry_now();
                }
                if retries {
                    // A server that is busy or cannot write refuses releases as well, and the key would stay for its ttl.
                    server.retry_later(job, now.tick);
                }
            }
        }
    }
    for mut job in batch.unwanted.drain(..) {
        job.answer(server.id, Answer::NoScript, true);
        count(&server.counters.late_answers);
    }
    if is_gone {
        // The server may have evicted it.
        server.look_again(now);
    }
    if !batch.changed.is_empty() {
        server.on_changed(&mut batch.changed, now.tick);
    }
    for key in batch.notices.drain(..) {
        server.take_notice(&key, now.tick);
    }
    drop(eligibility);
    server.room.note_answers();
    // What waited for an answer, to be written together, is written now.
    if !server.queue.is_empty() {
        server.wake();
    }
}

/// What an answer counts for: a grant of a node that may have forgotten who holds the lock is none.
fn judge(
    server: &Server,
    eligibility: &mut Eligibility,
    Reply { answer, time }: Reply,
    times: Times,
) -> Answer {
    eligibility.length = server.records.quarantine();
    if time.is_some() {
        let news = eligibility.on_time(time, times);
        server.publish_eligibility(eligibility, news, times.answered);
    }
    let ask = match answer {
        Answer::Greet(shown) => return on_greeting(server, eligibility, shown, times),
        Answer::Acquire(
            AcquireReply::Accepted
            | AcquireReply::Behind { .. }
            | AcquireReply::Shared { .. }
            | AcquireReply::Slot { .. },
        )
        | Answer::Raise(RaiseReply::Taken | RaiseReply::Above { .. }) => Ask::Grant,
        // RACE: the key may have been set there since the restart, by an acquire or a healing of ours that was on its way.
        // Before that the node may have granted the lock to another client, which counts that grant and is still collecting
        // votes. Counted here, our lease would go on while our other keys run out, and that client would get the majority
        // that we had.
        Answer::Extend(ExtendReply::Extended | ExtendReply::Lifted { .. }) => Ask::Extension,
        _ => return answer,
    };
    why_not(server, eligibility, ask, times).map_or(answer, Answer::Failed)
}

fn on_greeting(
    server: &Server,
    eligibility: &mut Eligibility,
    shown: GreetReply,
    times: Times,
) -> Answer {
    server.records.raise(shown.max_ttl);
    let mut server_info = server.status.server_info().unwrap_or_default();
    server_info.greet_reply = Some(shown.clone());
    server.status.publish_server_info(&server_info);
    if let Some(failure) = server.records.refusal(&server_info) {
        return Answer::Failed(failure);
    }
    let length = server.records.quarantine();
    eligibility.length = length;
    let news = eligibility.on_record(&shown, times);
    server.publish_eligibility(eligibility, news, times.answered);
    Answer::Greet(shown)
}

/// Why an answer does not count.
fn why_not(
    server: &Server,
    eligibility: &Eligibility,
    ask: Ask,
    times: Times,
) -> Option<NodeFailure> {
    if !server.has_lease(times.asked_at) {
        return Some(NodeFailure::UNCONFIRMED);
    }
    let (left, why) = eligibility.left(ask, times.asked)?;
    Some(NodeFailure::Quarantined { left, why })
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::time::Moment;

    fn at(tick: crate::time::Tick, second: u64) -> Times {
        let moment = Moment::at(Duration::from_secs(second), Duration::from_secs(second));
        Times {
            asked: tick,
            asked_at: moment,
            answered: tick,
            answered_at: moment,
        }
    }

    /// As after a process was stopped, which reads answers before it has asked which server is the primary.
    #[test]
    fn what_a_server_was_asked_when_nobody_had_confirmed_for_long_that_it_is_the_primary_does_not_count()
     {
        let (server, _poll) = Server::unattended(Duration::from_millis(100));
        let (mut eligibility, tick) = (Eligibility::new(None, 0.01), crate::time::tick());
        let granted = [
            Answer::Acquire(AcquireReply::Accepted),
            Answer::Acquire(AcquireReply::Behind { counter: 1 }),
            Answer::Acquire(AcquireReply::Shared { counter: 1 }),
            Answer::Raise(RaiseReply::Taken),
            Answer::Extend(ExtendReply::Extended),
        ];
        let mut judged = |answer: &Answer, second| {
            judge(
                &server,
                &mut eligibility,
                Reply {
                    answer: answer.clone(),
                    time: None,
                },
                at(tick, second),
            )
        };
        for answer in &granted {
            assert_eq!(
                judged(answer, 1_000_000),
                *answer,
                "one server is its own primary"
            );
        }

        server.set_lease(at(tick, 3).asked_at);

        for answer in &granted {
            assert_eq!(judged(answer, 3), *answer);
            assert_eq!(judged(answer, 4), Answer::Failed(NodeFailure::UNCONFIRMED));
        }
        // What is no grant counts, whichever server is the primary.
        let gone = Answer::Extend(ExtendReply::Gone { counter: 0 });
        assert_eq!(judged(&gone, 4), gone);
    }
}
