//! The wait queues of a manager: one per lock with waiting calls, first come first served; and the
//! manager's holds.
//!
//! Only the first call of a queue asks the nodes, or all readers in front. No call asks while the
//! manager holds the lock alone: a release enters the first call in the nodes' lists. Nodes hand
//! the lock over to the first call there, of any manager, and publish that: it is their vote.
//!
//! Mutexes are locked in this order: the queues, then a call.

use std::collections::{HashMap, VecDeque};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::call::lost::Lost;
use crate::engine::call::CallInner;
use crate::engine::spec::LockSpec;
use crate::error::HeldBy;
use crate::ids::{ClientId, NodeId, OwnerToken};
use crate::logic::acquire_round::Rule;
use crate::observer::Journal;
use crate::stats::count;
use crate::sys::sync::Mutex;
use crate::sys::{ThreadId, this_thread};
use crate::time;
use crate::wire::{HandedOver, LockCommands};

/// Queues by lock key.
type WaitQueues = HashMap<Arc<[u8]>, WaitQueue>;

/// The queue of one lock.
#[derive(Default)]
struct WaitQueue {
    /// Holds of the manager.
    holds: Vec<HoldEntry>,
    calls: VecDeque<Arc<CallInner>>,
}

/// A hold of the manager.
struct HoldEntry {
    id: u64,
    /// Rule of the lock. None for a hold of a set with this lock, or for a permit: it shows the
    /// holder, and no call waits for it.
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
    fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.calls.is_empty()
    }

    /// Begins a hold of the calling thread. Without a `rule`: of a set with this lock, or of a
    /// permit.
    fn begin_hold(&mut self, id: u64, rule: Option<Rule>) {
        let taker = this_thread().id();
        self.holds.push(HoldEntry { id, rule, taker });
    }

    fn end_hold_of_set(&mut self, id: u64) {
        self.holds.retain(|it| it.id != id || it.rule.is_some());
    }

    /// Ends the hold; false without one of this id.
    fn end_hold(&mut self, id: u64) -> bool {
        let before = self.holds.len();
        self.holds.retain(|it| it.id != id || it.rule.is_none());
        self.holds.len() < before
    }

    /// Threads that took the manager's holds.
    fn takers(&self) -> impl Iterator<Item = ThreadId> {
        self.holds.iter().map(|it| it.taker)
    }

    /// The manager's hold, if it is exclusive.
    fn holder(&self) -> Option<u64> {
        let mut exclusive = self.holds.iter().filter(|it| it.is_exclusive());
        Some(exclusive.next()?.id)
    }

    /// Admits the calls in front unless the manager holds the lock alone: the first call, or all
    /// readers before the first writer. A writer asks although readers of the manager hold the
    /// lock: so it is in the nodes' lists before later readers.
    fn admit(&self) {
        let readers = self
            .calls
            .iter()
            .take_while(|it| it.spec.commands.is_shared);
        let admitted = match self.holder() {
            None => readers.count().max(1),
            Some(_) => 0,
        };
        for (place, waiting) in self.calls.iter().enumerate() {
            let is_admitted = place < admitted;
            let mut call = waiting.call.lock();
            if !is_admitted && !call.is_admitted() {
                // Nor are the calls behind it admitted.
                break;
            }
            let begins = call.admit(is_admitted);
            // The woken thread locks the call first.
            drop(call);
            if begins {
                waiting.parker.wake();
            }
        }
    }

    /// Ends the hold `id` for the first call, if the call can `enter` the waiting lists by the
    /// release.
    fn pass_on<T>(
        &mut self,
        id: u64,
        enter: impl FnOnce(&Arc<CallInner>) -> Option<T>,
    ) -> Option<T> {
        // Readers hand nothing over: a call behind them has asked already.
        let first = self.calls.front()?;
        if !first.spec.commands.has_slots && self.holder() != Some(id) {
            return None;
        }
        let entered = enter(first)?;
        self.end_hold(id);
        Some(entered)
    }
}

/// Waiting calls and their later holds, by the owner tokens on the nodes.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<OwnerToken, Arc<CallInner>>>);

impl Owners {
    fn get(&self, owner: OwnerToken) -> Option<Arc<CallInner>> {
        self.0.lock().get(&owner).cloned()
    }

    /// Called before a command of this owner is sent.
    pub(crate) fn insert(&self, owner: OwnerToken, call: &Arc<CallInner>) {
        self.0.lock().insert(owner, Arc::clone(call));
    }

    /// From now on hand-overs to this owner are given back.
    pub(crate) fn remove(&self, owner: OwnerToken) {
        let call = self.0.lock().remove(&owner);
        // Dropped with nothing locked.
        drop(call);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// All wait queues of a manager.
pub(crate) struct Queues {
    /// This manager in the lists of the nodes.
    pub(crate) client: ClientId,
    by_key: Mutex<WaitQueues>,
    pub(crate) owners: Arc<Owners>,
    journal: Arc<Journal>,
}

impl Queues {
    pub(crate) fn new(client: ClientId, journal: Arc<Journal>) -> Queues {
        Queues {
            client,
            by_key: Mutex::default(),
            owners: Arc::default(),
            journal,
        }
    }

    /// Begins the hold `id` of the calling thread.
    pub(crate) fn begin_hold(&self, spec: &LockSpec, id: u64) {
        let mut queues = self.by_key.lock();
        begin_hold(&mut queues, spec, id);
        change(&mut queues, &spec.commands.key, |queue| queue.admit());
    }

    /// The holder of the lock, or of one of several names, from the view of the calling thread.
    pub(crate) fn held_by(&self, commands: &LockCommands) -> HeldBy {
        let queues = self.by_key.lock();
        let held = iter::once(&commands.key)
            .chain(commands.multi_keys.iter())
            .filter_map(|it| queues.get(it));
        let mut takers = held.flat_map(WaitQueue::takers).peekable();
        if takers.peek().is_none() {
            HeldBy::Other
        } else if takers.any(|it| it == this_thread().id()) {
            HeldBy::ThisThread
        } else {
            HeldBy::ThisProcess
        }
    }

    /// Ends the hold `id` if a call waits and can `enter` the nodes' waiting lists by the release.
    /// The call must be [admitted](Queues::admit) afterwards.
    ///
    /// RACE: T1 ends the hold and is about to send the release; T2, a new call, asks the nodes
    /// before the release and is refused; the release removes T2 from the lists. Therefore without
    /// a waiting call the hold goes on until [`Queues::end_hold`], after the send.
    pub(crate) fn pass_on<T>(
        &self,
        commands: &LockCommands,
        id: u64,
        enter: impl FnOnce(&Arc<CallInner>) -> Option<T>,
    ) -> Option<T> {
        let mut queues = self.by_key.lock();
        let entered = queues.get_mut(&commands.key)?.pass_on(id, enter)?;
        end_multi(&mut queues, commands, id);
        Some(entered)
    }

    /// Admits the calls in front.
    pub(crate) fn admit(&self, key: &[u8]) {
        change(&mut self.by_key.lock(), key, |queue| queue.admit());
    }

    /// Ends the hold `id` without a hand-over. The next call asks by itself.
    pub(crate) fn end_hold(&self, commands: &LockCommands, id: u64) {
        let mut queues = self.by_key.lock();
        end_multi(&mut queues, commands, id);
        change(&mut queues, &commands.key, |queue| {
            if queue.end_hold(id) {
                queue.admit();
            }
        });
    }

    /// A node has handed a lock over, or has a call in its list. False without a call or hold for
    /// it.
    pub(crate) fn handed_over(&self, node: NodeId, notice: &HandedOver) -> bool {
        count(&self.journal.counters.notices);
        let Some(call) = notice.owner().and_then(|it| self.owners.get(it)) else {
            return false;
        };
        let now = time::tick();
        if !notice.is_question && call.step(|it| it.on_hand_over(node, notice, now)) {
            call.parker.wake();
        }
        true
    }

    /// Whether there is neither a waiting call nor a hold.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().is_empty() && self.owners.is_empty()
    }

    /// Adds a call to the end of the queue of its lock.
    pub(crate) fn join(&self, call: &Arc<CallInner>) {
        let mut by_key = self.by_key.lock();
        count(&self.journal.counters.waiting);
        let key = Arc::clone(&call.spec.commands.key);
        let queue = by_key.entry(key).or_default();
        queue.calls.push_back(Arc::clone(call));
        queue.admit();
    }

    /// Takes a call out of its queue, with the hold `held` if it has won.
    pub(crate) fn leave(&self, call: &Arc<CallInner>, held: Option<u64>) {
        let key = &call.spec.commands.key;
        let mut queues = self.by_key.lock();
        if let Some(queue) = queues.get_mut(key) {
            let before = queue.calls.len();
            queue.calls.retain(|it| !Arc::ptr_eq(it, call));
            if queue.calls.len() < before {
                self.journal.counters.waiting.fetch_sub(1, Relaxed);
            }
        }
        if let Some(id) = held {
            begin_hold(&mut queues, &call.spec, id);
        }
        change(&mut queues, key, |queue| queue.admit());
    }

    /// Ends the wait of all calls behind `call` that began before `lost`: it shows for them too
    /// that waiting is hopeless. A later call asks the nodes at least once.
    pub(crate) fn give_up_for_all(&self, call: &Arc<CallInner>, lost: &Arc<Lost>) {
        let by_key = self.by_key.lock();
        let queue = by_key.get(&call.spec.commands.key);
        let calls = queue.into_iter().flat_map(|it| &it.calls);
        for other in calls.filter(|it| !Arc::ptr_eq(it, call)) {
            if other.step(|it| it.give_up_with(lost)) {
                other.parker.wake();
            }
        }
    }
}

/// Changes the queue of a lock, if any. Removes an empty queue.
fn change(queues: &mut WaitQueues, key: &[u8], change: impl FnOnce(&mut WaitQueue)) {
    if let Some(queue) = queues.get_mut(key) {
        change(queue);
        if queue.is_empty() {
            queues.remove(key);
        }
    }
}

/// Begins the hold `id` of the calling thread, and of each of several names.
fn begin_hold(queues: &mut WaitQueues, spec: &LockSpec, id: u64) {
    for part in multi_keys(&spec.commands) {
        queues
            .entry(Arc::clone(part))
            .or_default()
            .begin_hold(id, None);
    }
    if !spec.commands.has_slots {
        queues
            .entry(Arc::clone(&spec.commands.key))
            .or_default()
            .begin_hold(id, Some(spec.rule()));
    }
}

/// Keys whose queues only show the holder: the names of a set, and a semaphore.
fn multi_keys(commands: &LockCommands) -> impl Iterator<Item = &Arc<[u8]>> {
    commands
        .multi_keys
        .iter()
        .chain(commands.has_slots.then_some(&commands.key))
}

/// Ends the hold `id` in the queues that only show the holder.
fn end_multi(queues: &mut WaitQueues, commands: &LockCommands, id: u64) {
    for part in multi_keys(commands) {
        change(queues, part, |queue| queue.end_hold_of_set(id));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::config::Config;
    use crate::engine::call::WaitLimit;
    use crate::wire::KeyTtls;

    fn commands() -> LockCommands {
        LockCommands::mutex(b"", b"x", KeyTtls::default())
    }

    fn call(commands: LockCommands) -> Arc<CallInner> {
        let config = Config::default();
        let spec = Arc::new(LockSpec::new(&config, b"x", commands));
        let client = ClientId::draw().unwrap();
        CallInner::new(&spec, &config, 3, client, WaitLimit::Forever)
    }

    fn writer() -> Arc<CallInner> {
        call(commands())
    }

    fn reader() -> Arc<CallInner> {
        call(commands().to_read())
    }

    fn queue(calls: &[&Arc<CallInner>]) -> WaitQueue {
        let mut queue = WaitQueue::default();
        calls
            .iter()
            .for_each(|it| queue.calls.push_back(Arc::clone(it)));
        queue
    }

    fn entered(first: &Arc<CallInner>) -> Option<Arc<CallInner>> {
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
            .calls
            .iter()
            .map(|it| it.call.lock().is_admitted())
            .collect()
    }

    #[test]
    fn a_writer_asks_alone_and_readers_ask_together_until_the_next_writer() {
        let write = [writer(), writer()];
        let read = [reader(), reader(), reader()];
        let mut queue = queue(&[&write[0], &read[0], &read[1], &write[1], &read[2]]);
        assert_eq!(asking(&queue), [true, false, false, false, false]);
        queue.calls.pop_front();
        assert_eq!(asking(&queue), [true, true, false, false]);
        queue.calls.pop_front();
        assert_eq!(asking(&queue), [true, false, false]);
        queue.calls.pop_front();
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
    fn calls_rest_behind_an_exclusive_hold_and_writers_ask_beside_readers() {
        let mut queue = queue(&[&writer()]);
        assert_eq!(asking(&queue), [true]);
        queue.begin_hold(7, Some(Rule::Exclusive));
        assert_eq!((asking(&queue), is_held(&queue)), (vec![false], true));
        assert!(queue.end_hold(7));
        queue.begin_hold(8, Some(Rule::Shared));
        assert_eq!((asking(&queue), is_held(&queue)), (vec![true], false));
    }

    #[test]
    fn a_hold_ends_once_and_alone() {
        let mut queue = WaitQueue::default();
        queue.begin_hold(8, Some(Rule::Shared));
        queue.begin_hold(5, Some(Rule::Shared));
        assert!(!queue.end_hold(7) && queue.end_hold(8) && !queue.end_hold(8) && !queue.is_empty());
        assert!(queue.end_hold(5) && queue.is_empty());
        queue.begin_hold(4, Some(Rule::Exclusive));
        assert!(!queue.is_empty() && queue.end_hold(4) && !queue.end_hold(4) && queue.is_empty());
    }

    #[test]
    fn a_queue_has_the_thread_of_each_hold_of_readers_and_sets_too() {
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
    fn a_release_by_the_only_holder_enters_the_first_call() {
        let mut queue = WaitQueue::default();
        queue.begin_hold(7, Some(Rule::Exclusive));
        assert!(
            queue.pass_on(7, entered).is_none() && is_held(&queue),
            "nobody waits: the hold goes on"
        );
        let first = reader();
        let second = reader();
        queue.calls.push_back(Arc::clone(&first));
        queue.calls.push_back(second);
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
    fn a_release_by_a_reader_enters_no_call() {
        let mut queue = queue(&[&writer()]);
        queue.begin_hold(7, Some(Rule::Shared));
        assert!(queue.pass_on(7, entered).is_none());
        assert!(queue.end_hold(7));
    }

    #[test]
    fn a_released_permit_goes_to_the_first_call_beside_other_holds() {
        let first = call(LockCommands::semaphore(b"", b"s", 2, KeyTtls::default()));
        let mut queue = queue(&[&first]);
        assert!(queue.pass_on(7, entered).is_some());
    }
}
