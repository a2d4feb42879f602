//! One call in a queue: it waits, asks the nodes or takes a hand-over, and leaves.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::fanout::{Broadcast, Fanout};
use crate::engine::park::Signal;
use crate::engine::round::admission::{Admission, RoundTicket, RoundWait};
use crate::engine::round::attempt::{Attempt, LostAttempt, NotWon, Owner, Request, Won};
use crate::engine::wait::queue::{HandOvers, Ticket};
use crate::engine::wait::queues::Queues;
use crate::ids::OwnerToken;
use crate::logic::acquire_round::AcquireRound;
use crate::logic::ballot::Ballot;
use crate::logic::pause;
use crate::stats::count;
use crate::sys::sync::Mutex;
use crate::time::{self, Tick};
use crate::wire::QueueUpdate;

/// Time in which a leaving call is worth a command. Later a node drops the call when it comes first in its list: see
/// `scripts/handover.lua`.
const LEAVE_FOR: Duration = Duration::from_secs(60);

/// Reason for the end of a wait.
pub(crate) enum Woken {
    /// The call may ask the nodes: see [`QueuedCall::try_now`].
    Try(RoundTicket),
    /// Nodes have handed the lock over: see [`QueuedCall::finish`].
    Won(Attempt),
    /// The first call gave up in an outage after this attempt. The wait of all calls is over.
    GivenUp(LostAttempt),
    /// The deadline has passed, or a signal was given.
    Stopped,
}

/// A call in its queue until dropped.
pub(crate) struct QueuedCall<'a> {
    fanout: &'a Fanout,
    queues: &'a Queues,
    admission: &'a Arc<Admission>,
    ticket: Arc<Ticket>,
    tries: u32,
    /// Wait after the last attempt without a notice.
    pub(crate) pause: Duration,
    /// Number of hand-overs at the start of the last attempt.
    handed_over: usize,
    false_alarms: u32,
    /// Turn to begin a round.
    pub(crate) turn: RoundWait,
    /// Hold of the call, once won.
    held: Option<u64>,
}

impl<'a> QueuedCall<'a> {
    /// Joins the end of the queue.
    pub(crate) fn join(
        fanout: &'a Fanout,
        queues: &'a Queues,
        admission: &'a Arc<Admission>,
        request: Request,
    ) -> QueuedCall<'a> {
        let joined = time::tick();
        let ticket = Arc::new(Ticket {
            request,
            joined,
            margin: queues.margin,
            owners: Arc::clone(&queues.owners),
            parker: Arc::default(),
            state: Mutex::default(),
        });
        let commands = &ticket.request.spec.commands;
        let mut by_key = queues.by_key.lock();
        count(&queues.journal.counters.waiting);
        let queue = by_key.entry(Arc::clone(&commands.key)).or_default();
        queue.tickets.push_back(Arc::clone(&ticket));
        queue.admit();
        drop(by_key);
        QueuedCall {
            fanout,
            queues,
            admission,
            ticket,
            tries: 0,
            pause: Duration::ZERO,
            handed_over: 0,
            false_alarms: 0,
            turn: RoundWait::default(),
            held: None,
        }
    }

    /// Waits for something to do, until `until` or one of the `signals`.
    pub(crate) fn wait(&mut self, until: Option<Tick>, signals: &[&Signal]) -> Woken {
        let parker = Arc::clone(&self.ticket.parker);
        let mut watching = None;
        loop {
            let (wake_at, asks) = {
                let mut state = self.ticket.state.lock();
                if let Some(lost) = &state.given_up
                    && !signals.iter().any(|it| it.is_given())
                {
                    return Woken::GivenUp(LostAttempt::clone(lost));
                }
                if let Some(attempt) =
                    self.ticket
                        .won_by_hand_overs(&mut state, self.queues.quorum, self.admission)
                {
                    state.has_attempt = true;
                    return Woken::Won(attempt);
                }
                let now = time::tick();
                if until.is_some_and(|it| it <= now) || signals.iter().any(|it| it.is_given()) {
                    return Woken::Stopped;
                }
                match state.next_try(self.queues.quorum) {
                    _ if !state.is_admitted => (until, false),
                    Some(at) if now < at => (Some(until.map_or(at, |it| it.min(at))), false),
                    _ => (until, true),
                }
            };
            if let Some(round_ticket) = self.turn.wait(asks, self.admission, &parker) {
                self.ticket.state.lock().has_attempt = true;
                return Woken::Try(round_ticket);
            }
            // Most calls need no sleep. The signals are checked once more after the watch begins.
            match watching {
                Some(_) => parker.sleep(wake_at),
                None => watching = Some(parker.watch(signals)),
            }
        }
    }

    /// Asks the nodes.
    pub(crate) fn try_now(&mut self, round_ticket: RoundTicket) -> Result<Won, NotWon> {
        self.handed_over = self.ticket.state.lock().hand_overs.nodes.len();
        let (attempt, broadcast) = self.ticket.prepare(self.fanout, round_ticket)?;
        let result = attempt.run(self.fanout, &self.ticket.request, broadcast);
        self.note(result)
    }

    /// Finishes an attempt won by hand-overs.
    pub(crate) fn finish(&mut self, attempt: Attempt) -> Result<Won, NotWon> {
        self.turn = RoundWait::default();
        self.handed_over = 0;
        let result = attempt.finish(self.fanout, &self.ticket.request);
        self.note(result)
    }

    /// Plans the next try after a lost attempt.
    fn note(&mut self, result: Result<Won, LostAttempt>) -> Result<Won, NotWon> {
        let lost = match result {
            Ok(won) => return Ok(won),
            Err(lost) => lost,
        };
        self.note_owner(&lost);
        let majority = self.queues.quorum;
        let queued = lost.round.with_ballot(Ballot::<AcquireRound>::queued);
        let announced = majority <= queued && majority <= self.fanout.notifying();
        let known = self.ticket.state.lock().known.after(&lost);
        let (min, max) = self.queues.pauses;
        let random = fastrand::f64();
        let mut pause = pause::pause(announced, self.tries, min, max, lost.free_in(), random);
        if !announced && !known.has_no_place {
            pause = pause::in_a_list(pause);
        }
        self.tries = self.tries.saturating_add(1);
        self.false_alarms = pause::false_alarms(self.false_alarms, self.handed_over, majority);
        self.pause = pause;
        let mut state = self.ticket.state.lock();
        state.has_attempt = false;
        state.known = known;
        // The first attempt did not enter the lists. The second one may.
        let is_early = self.tries == 1 && !lost.enters && !known.has_no_place;
        let pause = if known.only.is_some() || is_early {
            Duration::ZERO
        } else {
            pause
        };
        state.try_at = time::tick().checked_add(pause);
        state.grace = pause::grace(lost.took, self.false_alarms);
        // This attempt is newer.
        state.given_up = None;
        drop(state);
        Err(NotWon::Lost(lost))
    }

    /// Updates the owner of the call after a lost attempt.
    fn note_owner(&self, lost: &LostAttempt) {
        let round = &lost.round;
        let reached = round.reached();
        let mut state = self.ticket.state.lock();
        if let Some(owner) = &mut state.owner {
            owner.reached = owner.reached.union(reached);
        }
        if !lost.is_released {
            // The call waits for hand-overs of other nodes, and then asks.
            let granted = round.nodes_with(Answer::is_granted);
            if !granted.is_empty() {
                let hand_overs = &mut state.hand_overs;
                hand_overs.nodes = hand_overs.nodes.union(granted);
                hand_overs.since.get_or_insert_with(time::tick);
            }
            return;
        }
        let Some(before) = state.owner.take() else {
            return;
        };
        // RACE: T1, the holder, releases the lock, and nodes hand it over to this call; T2, this call, takes back its
        // attempt there, and no node hands over what a call gives back to itself. Therefore messages to the former
        // owner, earlier or later, make the call ask.
        let HandOvers { nodes, since, .. } = std::mem::take(&mut state.hand_overs);
        state.hand_overs.nodes = nodes;
        state.hand_overs.since = since;
        state.acquire = None;
        if let Some(former) = state.former.replace(before.token) {
            self.queues.owners.remove(former);
        }
        // Its entries in the lists are those of the successor.
        match OwnerToken::draw() {
            Ok(successor) if pause::keeps_its_place(lost.why) => {
                state.owner = Some(Owner {
                    token: before.successor,
                    successor,
                    ..before
                });
            }
            _ => self.queues.owners.remove(before.successor),
        }
    }

    /// Ends the wait of all calls that joined before `lost` began: its result about the nodes counts for them too. A
    /// later call asks the nodes at least once.
    pub(crate) fn give_up_for_all(&self, lost: &LostAttempt) {
        let lost = Arc::new(lost.clone());
        let by_key = self.queues.by_key.lock();
        let Some(queue) = by_key.get(&self.ticket.request.spec.commands.key) else {
            return;
        };
        let others = queue
            .tickets
            .iter()
            .filter(|ticket| !Arc::ptr_eq(ticket, &self.ticket) && ticket.joined <= lost.began);
        for ticket in others {
            ticket.state.lock().given_up = Some(Arc::clone(&lost));
            ticket.parker.wake();
        }
    }

    /// Leaves the nodes' waiting lists and gives back hand-overs, unless the call holds the lock.
    fn leave_lists(&self) {
        let state = self.ticket.state.lock();
        let owner = state.owner;
        let former = state.former;
        drop(state);
        if let Some(former) = former {
            self.queues.owners.remove(former);
        }
        let Some(owner) = owner else { return };
        self.queues.owners.remove(owner.successor);
        if self.held.is_some() {
            return;
        }
        let request = &self.ticket.request;
        if !owner.reached.is_empty()
            && let Some(entry) = request.policy.entry
        {
            let commands = &request.spec.commands;
            let seen = self.ticket.state.lock().known.seen;
            let update = QueueUpdate::Leave(entry.client);
            let leave = commands.release(owner.token, self.fanout.offer(seen), update);
            let leave = Broadcast::release(leave, owner.reached, LEAVE_FOR);
            self.fanout.send(leave, time::tick());
        }
        self.queues.owners.remove(owner.token);
    }

    /// Leaves the queue with the hold `id`.
    pub(crate) fn leave_with(mut self, id: u64) {
        self.held = Some(id);
    }
}

impl Drop for QueuedCall<'_> {
    fn drop(&mut self) {
        self.turn = RoundWait::default();
        let mut by_key = self.queues.by_key.lock();
        self.queues.remove(&mut by_key, &self.ticket, self.held);
        drop(by_key);
        self.leave_lists();
    }
}

#[cfg(test)]
mod tests;
