//! The waiting calls of one lock and the manager's holds of it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::config::Margin;
use crate::engine::nodes::fanout::{Broadcast, Fanout};
use crate::engine::park::Parker;
use crate::engine::round::admission::{Admission, RoundTicket};
use crate::engine::round::attempt::{
    Attempt, AttemptFacts, LostAttempt, NotWon, Owner, Request, SentAcquire,
};
use crate::engine::round::pending::Pending;
use crate::ids::{NodeId, NodeSet, OwnerToken};
use crate::logic::acquire_round::{AcquireRound, Rule};
use crate::logic::lease;
use crate::logic::pause;
use crate::logic::quorum;
use crate::session::pending_command::ReplyHandler;
use crate::sys::sync::Mutex;
use crate::sys::{ThreadId, this_thread};
use crate::time::{self, Moment, Tick};
use crate::wire::{Entering, HandedOver};

/// Queues by lock key.
pub(super) type WaitQueues = HashMap<Arc<[u8]>, WaitQueue>;

/// The queue of one lock.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// Holds of the manager.
    holds: Vec<HoldEntry>,
    pub(super) tickets: VecDeque<Arc<Ticket>>,
}

/// A hold of the manager.
struct HoldEntry {
    id: u64,
    /// Rule of the lock. None for a hold of a set with this lock, or for a permit: it shows the holder, and no call
    /// waits for it.
    rule: Option<Rule>,
    /// Thread that took the lock. The guard may be on another thread now.
    taker: ThreadId,
}

impl HoldEntry {
    fn is_exclusive(&self) -> bool {
        self.rule == Some(Rule::Exclusive)
    }
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.tickets.is_empty()
    }

    /// Begins a hold of the calling thread. Without a `rule`: of a set with this lock, or of a permit.
    pub(super) fn begin_hold(&mut self, id: u64, rule: Option<Rule>) {
        let taker = this_thread().id();
        self.holds.push(HoldEntry { id, rule, taker });
    }

    pub(super) fn end_hold_of_set(&mut self, id: u64) {
        self.holds.retain(|it| it.id != id || it.rule.is_some());
    }

    /// Ends the hold; false without one of this id.
    pub(super) fn end_hold(&mut self, id: u64) -> bool {
        let before = self.holds.len();
        self.holds.retain(|it| it.id != id || it.rule.is_none());
        self.holds.len() < before
    }

    /// Threads that took the manager's holds.
    pub(super) fn takers(&self) -> impl Iterator<Item = ThreadId> {
        self.holds.iter().map(|it| it.taker)
    }

    /// The manager's hold, if it is exclusive.
    fn holder(&self) -> Option<u64> {
        let mut exclusive = self.holds.iter().filter(|it| it.is_exclusive());
        Some(exclusive.next()?.id)
    }

    /// Admits the calls in front unless the manager holds the lock alone: the first call, or all readers before the first
    /// writer. A writer asks although readers of the manager hold the lock: so it is in the nodes' lists before later
    /// readers.
    pub(super) fn admit(&self) {
        let readers = self
            .tickets
            .iter()
            .take_while(|it| it.request.spec.commands.is_shared);
        let admitted = match self.holder() {
            None => readers.count().max(1),
            Some(_) => 0,
        };
        for (place, ticket) in self.tickets.iter().enumerate() {
            let mut state = ticket.state.lock();
            let is_admitted = place < admitted;
            if !is_admitted && !state.is_admitted {
                // Nor are the calls behind it admitted.
                break;
            }
            let begins = is_admitted && !state.is_admitted;
            let is_in_lists = state.acquire.is_some() && !state.known.has_no_place;
            if begins && !is_in_lists {
                state.try_at = None;
            }
            state.is_admitted = is_admitted;
            // The woken thread locks the ticket first.
            drop(state);
            if begins {
                ticket.parker.wake();
            }
        }
    }

    /// Ends the hold `id` for the first call, if the call can `enter` the waiting lists by the release.
    pub(super) fn pass_on<T>(
        &mut self,
        id: u64,
        enter: impl FnOnce(&Arc<Ticket>) -> Option<T>,
    ) -> Option<T> {
        // Readers hand nothing over: a call behind them has asked already.
        let first = self.tickets.front()?;
        if !first.request.spec.commands.has_slots && self.holder() != Some(id) {
            return None;
        }
        let entered = enter(first)?;
        self.end_hold(id);
        Some(entered)
    }
}

/// Waiting calls and their later holds, by the owner tokens on the nodes.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<OwnerToken, Arc<Ticket>>>);

impl Owners {
    pub(super) fn get(&self, owner: OwnerToken) -> Option<Arc<Ticket>> {
        self.0.lock().get(&owner).cloned()
    }

    /// Called before a command of this owner is sent.
    fn insert(&self, owner: Owner, ticket: &Arc<Ticket>) {
        let mut owners = self.0.lock();
        owners.insert(owner.token, Arc::clone(ticket));
        owners.insert(owner.successor, Arc::clone(ticket));
    }

    /// From now on hand-overs to this owner are given back.
    pub(crate) fn remove(&self, owner: OwnerToken) {
        let ticket = self.0.lock().remove(&owner);
        // Dropped with nothing locked.
        drop(ticket);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// One call's place in a queue.
pub(crate) struct Ticket {
    pub(crate) request: Request,
    pub(super) joined: Tick,
    pub(super) margin: Margin,
    pub(super) owners: Arc<Owners>,
    pub(super) parker: Arc<Parker>,
    pub(super) state: Mutex<TicketState>,
}

#[derive(Default)]
pub(super) struct TicketState {
    /// Whether the call is in front of its queue and the manager does not hold the lock.
    pub(super) is_admitted: bool,
    /// Whether an attempt is under way.
    pub(super) has_attempt: bool,
    /// Time of the next attempt without a hand-over; at once if `None`.
    pub(super) try_at: Option<Tick>,
    /// Its owner on the nodes.
    pub(super) owner: Option<Owner>,
    /// Its owner before the last attempt was taken back.
    pub(super) former: Option<OwnerToken>,
    /// Its last acquire as the present owner.
    pub(super) acquire: Option<SentAcquire>,
    pub(super) hand_overs: HandOvers,
    /// Wait for other nodes after the first hand-over.
    pub(super) grace: Duration,
    pub(super) known: AttemptFacts,
    /// Last attempt of the first call, which gave up in an outage.
    pub(super) given_up: Option<Arc<LostAttempt>>,
}

/// Hand-overs since the last acquire.
#[derive(Default)]
pub(super) struct HandOvers {
    pub(super) nodes: NodeSet,
    /// Time of the first hand-over.
    pub(super) since: Option<Tick>,
    /// Hand-overs that count as votes, with their tokens.
    votes: Vec<(NodeId, u64)>,
    /// Shortest life of these.
    life: Duration,
    /// Round that they have won.
    won: Option<Arc<Pending<AcquireRound>>>,
}

impl TicketState {
    /// Time of the next attempt; `None`: at once.
    pub(super) fn next_try(&self, quorum: usize) -> Option<Tick> {
        let HandOvers {
            nodes: by, since, ..
        } = &self.hand_overs;
        let in_time = since.and_then(|it| it.checked_add(self.grace));
        pause::next_try(self.try_at?, quorum, by.len(), in_time)
    }
}

impl Ticket {
    /// `node` has handed the lock over to this call or its hold.
    ///
    /// RACE: T1, this call, asks; T2, the node, has handed the lock over before, and the key has expired since; T1
    /// reads the message behind the answer. Therefore a hand-over is a vote only behind the answer to the last acquire,
    /// and the next acquire drops it.
    ///
    /// RACE: T1, the call, wins a handed-over slot; T2, a worker, delivers that message behind the answers. Therefore
    /// nothing is given back here: a won permit gives back all other slots.
    pub(super) fn handed_over(&self, node: NodeId, notice: &HandedOver, quorum: usize) {
        let commands = &self.request.spec.commands;
        let mut state = self.state.lock();
        let is_current = state.owner.map(|it| it.token) == notice.owner();
        if let Some(won) = &state.hand_overs.won {
            let won = Arc::clone(won);
            drop(state);
            if is_current && let Some(vote) = won.with_ballot(|it| it.vote_with(notice.token)) {
                won.deliver(node, vote, true);
            }
            return;
        }
        // One name of several, or one slot of a semaphore, is no vote.
        let is_vote = is_current && commands.multi_keys.is_empty() && !commands.has_slots;
        if let Some(acquire) = &state.acquire
            && let Some(token) = notice.token.filter(|_| is_vote)
            && notice.asked_from.is_some_and(|it| it <= acquire.sent.tick)
            && acquire.round.with_ballot(|it| it.may_follow(node, token))
            && !state.hand_overs.nodes.contains(node)
        {
            let life = Duration::from_millis(notice.life);
            let hand_overs = &mut state.hand_overs;
            hand_overs.life = match hand_overs.votes[..] {
                [] => life,
                _ => hand_overs.life.min(life),
            };
            hand_overs.votes.push((node, token));
        }
        let hand_overs = &mut state.hand_overs;
        hand_overs.nodes.insert(node);
        hand_overs.since.get_or_insert_with(time::tick);
        let so_far = hand_overs.nodes.len();
        let is_admitted = state.is_admitted;
        drop(state);
        // Once to begin the wait for other nodes, and once for a majority. The thread may not have the result of the
        // entering release yet.
        if so_far == 1 && is_admitted || so_far == quorum {
            self.parker.wake();
        }
    }

    /// The attempt won by hand-overs of a majority, if the lease allows it. Otherwise the call claims the lock in its
    /// turn.
    ///
    /// RACE: T1, another client, releases many locks at once; T2, slow servers, hand them over to calls of this
    /// manager; T3, the renewal thread, has to extend all of them within one short life. Therefore each has a round
    /// ticket until its first extension.
    pub(super) fn won_by_hand_overs(
        &self,
        state: &mut TicketState,
        quorum: usize,
        admission: &Arc<Admission>,
    ) -> Option<Attempt> {
        let HandOvers { votes, life, .. } = &state.hand_overs;
        if votes.len() < quorum {
            return None;
        }
        // RACE: T1 wins with little time left; T2 answers the first extension after the end of the lease. Therefore a
        // call with slow answers or a short rest of the lease asks again.
        let acquire = state.acquire.as_ref()?;
        let now = Moment::now();
        let use_until = lease::use_until(acquire.sent.moment, *life, self.margin.of(*life))?;
        let least = lease::FIRST_EXTENSION.saturating_add(state.grace.saturating_mul(2));
        if now.until(use_until) < least.max(life.checked_div(4)?) {
            return None;
        }
        let attempt = Attempt::of_hand_overs(
            &self.request,
            state.owner?,
            acquire,
            votes,
            use_until,
            now,
            admission.try_enter()?,
        )?;
        state.hand_overs.won = Some(Arc::clone(&attempt.round));
        Some(attempt)
    }

    /// Enters the nodes' waiting lists by a release of the lock with this token, sent to the nodes `to`. `None` if the
    /// call is in the lists, is about to ask, or would get no message.
    pub(crate) fn enter_by_release(
        self: &Arc<Self>,
        fanout: &Fanout,
        token: u64,
        to: NodeSet,
    ) -> Option<Entering> {
        fanout.time_for_all(self.request.began)?;
        let is_notified = quorum(fanout.nodes.len()) <= fanout.notifying();
        // An acquire of its own skips stalled nodes.
        if !is_notified || fanout.is_late(time::tick()) {
            return None;
        }
        self.enter(fanout, token, to)
    }

    /// RACE: T1, the call, loses an attempt and releases its owner; T2, this thread, enters the call as that owner
    /// behind the release, and nobody removes it. Therefore T2 draws a new owner, and not during an attempt.
    ///
    /// RACE: T2 enters the call here; T1 leaves the queue; T2 sends the release, which enters the call in the lists.
    /// Therefore a hand-over to a missing owner is given back.
    pub(super) fn enter(
        self: &Arc<Self>,
        fanout: &Fanout,
        token: u64,
        to: NodeSet,
    ) -> Option<Entering> {
        let entry = self.request.policy.entry?;
        let mut state = self.state.lock();
        if state.has_attempt || state.owner.is_some() {
            return None;
        }
        let owner = Owner {
            reached: to,
            ..Owner::draw().ok()?
        };
        state.owner = Some(owner);
        state.acquire = Some(SentAcquire::by_release(&self.request, fanout, token));
        // Without a message: the lock may be handed over for a short life only.
        state.try_at = time::tick().checked_add(lease::FIRST_LIFE.mul_f64(0.5));
        // RACE: T1 enters this call; T2, an earlier release, admits it as the first call; T3, the first node, hands the
        // lock over. Therefore the call waits for other nodes until T1 knows the duration of its release.
        state.grace = lease::FIRST_EXTENSION;
        drop(state);
        self.owners.insert(owner, self);
        Some(Entering {
            entry,
            since: self.request.since(fanout),
            which: None,
            member: self.request.spec.commands.member(owner.token),
            yields: false,
        })
    }

    /// Prepares an attempt, to be sent by the caller.
    pub(super) fn prepare(
        self: &Arc<Self>,
        fanout: &Fanout,
        round_ticket: RoundTicket,
    ) -> Result<(Attempt, Broadcast), NotWon> {
        let mut state = self.state.lock();
        // Grants after the end of the last attempt.
        let acquire = state.acquire.as_ref();
        let has_late_grant =
            acquire.is_some_and(|it| !it.round.nodes_with(Answer::is_granted).is_empty());
        let owner = match state.owner {
            Some(owner) => Owner {
                claims: !state.hand_overs.nodes.is_empty() || has_late_grant,
                ..owner
            },
            None => Owner::draw()?,
        };
        // Noted before anything can fail: the leaving call removes it from the owners.
        state.owner = Some(owner);
        let known = state.known;
        drop(state);
        self.owners.insert(owner, self);
        let (attempt, broadcast) =
            Attempt::prepare(fanout, round_ticket, &self.request, known, owner)?;
        state = self.state.lock();
        state.acquire = Some(SentAcquire {
            sent: attempt.sent,
            round: Arc::clone(&attempt.round),
        });
        state.hand_overs = HandOvers::default();
        Ok((attempt, broadcast))
    }

    /// Sets the wait for other nodes, from a hand-over that took `took`.
    pub(crate) fn set_grace(&self, took: Duration) {
        self.state.lock().grace = pause::grace(took, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::config::Config;
    use crate::engine::round::attempt::Request;
    use crate::engine::spec::LockSpec;
    use crate::wire::{KeyTtls, LockCommands};

    fn commands() -> LockCommands {
        LockCommands::mutex(b"", b"x", KeyTtls::default())
    }

    fn call(commands: LockCommands) -> Arc<Ticket> {
        let config = Config::default();
        let spec = Arc::new(LockSpec::new(&config, b"x", commands));
        let request = Request::new(&spec, &config, None, None);
        Arc::new(Ticket {
            request,
            joined: time::tick(),
            margin: config.margin,
            owners: Arc::default(),
            parker: Arc::default(),
            state: Mutex::default(),
        })
    }

    fn writer() -> Arc<Ticket> {
        call(commands())
    }

    fn reader() -> Arc<Ticket> {
        call(commands().to_read())
    }

    fn queue(tickets: &[&Arc<Ticket>]) -> WaitQueue {
        let mut queue = WaitQueue::default();
        tickets
            .iter()
            .for_each(|it| queue.tickets.push_back(Arc::clone(it)));
        queue
    }

    fn entered(first: &Arc<Ticket>) -> Option<Arc<Ticket>> {
        Some(Arc::clone(first))
    }

    /// The manager holds the lock alone.
    fn is_held(queue: &WaitQueue) -> bool {
        queue.holder().is_some()
    }

    /// Which of the calls may ask the nodes, in their order.
    fn asking(queue: &WaitQueue) -> Vec<bool> {
        queue.admit();
        queue
            .tickets
            .iter()
            .map(|it| it.state.lock().is_admitted)
            .collect()
    }

    #[test]
    fn a_writer_asks_alone_and_readers_ask_together_until_the_next_writer() {
        let write = [writer(), writer()];
        let read = [reader(), reader(), reader()];
        let mut queue = queue(&[&write[0], &read[0], &read[1], &write[1], &read[2]]);
        assert_eq!(asking(&queue), [true, false, false, false, false]);
        queue.tickets.pop_front();
        assert_eq!(asking(&queue), [true, true, false, false]);
        queue.tickets.pop_front();
        assert_eq!(asking(&queue), [true, false, false]);
        queue.tickets.pop_front();
        assert_eq!(asking(&queue), [true, false]);
    }

    #[test]
    fn a_call_for_several_names_and_one_for_a_slot_ask_alone() {
        for commands in [
            LockCommands::multi(b"", [&b"a"[..], b"b"].into_iter(), KeyTtls::default()),
            LockCommands::semaphore(b"", b"s", 2, KeyTtls::default()),
        ] {
            let queue = queue(&[&call(commands.clone()), &call(commands)]);
            assert_eq!(asking(&queue), [true, false]);
        }
    }

    #[test]
    fn nobody_asks_while_the_manager_holds_the_lock_alone_and_a_writer_asks_while_it_reads() {
        let mut queue = queue(&[&writer()]);
        assert_eq!(asking(&queue), [true]);
        queue.begin_hold(7, Some(Rule::Exclusive));
        assert_eq!((asking(&queue), is_held(&queue)), (vec![false], true));
        assert!(queue.end_hold(7));
        queue.begin_hold(8, Some(Rule::Shared));
        assert_eq!((asking(&queue), is_held(&queue)), (vec![true], false));
    }

    #[test]
    fn a_hold_ends_once_and_no_other_with_it() {
        let mut queue = WaitQueue::default();
        queue.begin_hold(8, Some(Rule::Shared));
        queue.begin_hold(5, Some(Rule::Shared));
        assert!(!queue.end_hold(7) && queue.end_hold(8) && !queue.end_hold(8) && !queue.is_empty());
        assert!(queue.end_hold(5) && queue.is_empty());
        queue.begin_hold(4, Some(Rule::Exclusive));
        assert!(!queue.is_empty() && queue.end_hold(4) && !queue.end_hold(4) && queue.is_empty());
    }

    #[test]
    fn a_queue_knows_who_took_each_hold_also_of_readers_and_of_sets() {
        let mut queue = WaitQueue::default();
        let (me, other) = thread::scope(|scope| {
            let begin = || {
                queue.begin_hold(7, Some(Rule::Shared));
                this_thread().id()
            };
            (this_thread().id(), scope.spawn(begin).join().unwrap())
        });
        queue.begin_hold(8, Some(Rule::Shared));
        queue.begin_hold(7, None);
        assert!(queue.takers().eq([other, me, me]));
        queue.end_hold_of_set(7);
        assert!(queue.takers().eq([other, me]), "a reader's hold is another");
        assert!(queue.end_hold(7) && queue.takers().eq([me]));
        assert!(queue.end_hold(8) && queue.is_empty());
        queue.begin_hold(9, Some(Rule::Exclusive));
        assert!(queue.takers().eq([me]) && queue.end_hold(9));
        queue.begin_hold(10, None);
        assert!(
            !queue.is_empty() && !is_held(&queue) && !queue.end_hold(10),
            "nobody waits for a set's hold"
        );
    }

    #[test]
    fn a_lock_is_handed_on_by_its_only_holder_to_the_first_call() {
        let mut queue = WaitQueue::default();
        queue.begin_hold(7, Some(Rule::Exclusive));
        assert!(
            queue.pass_on(7, entered).is_none() && is_held(&queue),
            "nobody waits: the hold goes on"
        );
        let first = reader();
        let second = reader();
        queue.tickets.push_back(Arc::clone(&first));
        queue.tickets.push_back(second);
        assert!(
            queue.pass_on(8, entered).is_none() && is_held(&queue),
            "another hold"
        );

        let none = queue.pass_on(7, |_| None::<()>);
        assert!(none.is_none() && is_held(&queue), "it does not enter");

        let next = queue.pass_on(7, entered);
        assert!(next.is_some_and(|it| Arc::ptr_eq(&it, &first)) && !is_held(&queue));
    }

    #[test]
    fn a_reader_hands_nothing_on() {
        let mut queue = queue(&[&writer()]);
        queue.begin_hold(7, Some(Rule::Shared));
        assert!(queue.pass_on(7, entered).is_none());
        assert!(queue.end_hold(7));
    }

    #[test]
    fn a_call_that_comes_to_the_front_asks_at_once_and_one_that_was_there_keeps_its_time() {
        let calls = [writer(), writer()];
        let mut queue = queue(&[&calls[0], &calls[1]]);
        let later = Some(time::tick());
        assert_eq!(asking(&queue), [true, false]);
        calls.iter().for_each(|it| it.state.lock().try_at = later);
        assert_eq!(asking(&queue), [true, false]);
        assert!(calls.iter().all(|it| it.state.lock().try_at == later));
        queue.tickets.pop_front();
        assert_eq!(
            (asking(&queue), calls[1].state.lock().try_at),
            (vec![true], None)
        );
    }

    #[test]
    fn a_permit_is_handed_on_to_the_first_call_whoever_holds_others() {
        let first = call(LockCommands::semaphore(b"", b"s", 2, KeyTtls::default()));
        let mut queue = queue(&[&first]);
        assert!(queue.pass_on(7, entered).is_some());
    }
}
