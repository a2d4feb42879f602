//! A held lock: its state, its end, and the listeners that are notified when it is lost.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::listeners::{Callback, Callbacks, Listeners, LostReceiver};
use crate::engine::nodes::fanout::Broadcast;
use crate::engine::round::admission::RoundTicket;
use crate::engine::round::attempt::{Grants, Won};
use crate::engine::round::pending::Pending;
use crate::engine::schedule::ScheduleEntry;
use crate::engine::shared::ManagerState;
use crate::engine::spec::LockSpec;
use crate::engine::wait::queue::Ticket;
use crate::error::{Lost, ReleaseError, Released};
use crate::ids::{ClientId, FencingToken, NodeSet, OwnerToken};
use crate::logic::confirmations::Confirmations;
use crate::logic::lease::{self, Ending, Lease};
use crate::logic::tally::{Held, ReleaseRound};
use crate::observer::{Event, ObservedLock};
use crate::stats::count;
use crate::sys::logging::{Level, write_line};
use crate::sys::sync::Mutex;
use crate::time::{self, Moment, Tick};
use crate::wire::{Command, Offer, QueueUpdate};

/// One held lock, shared by its guard, the renewal and the extensions under way.
pub(crate) struct HoldInner {
    pub(crate) id: u64,
    pub(super) entry: ScheduleEntry,
    pub(crate) spec: Arc<LockSpec>,
    pub(super) owner: OwnerToken,
    pub(crate) token: FencingToken,
    pub(super) raised: bool,
    /// When it was won, or sent for: the hold's age counts from there.
    pub(super) began: Moment,
    /// The call may be in waiting lists, of nodes that refused it.
    pub(super) in_lists: Option<ClientId>,
    /// Nodes may hand the lock over to its owner: its call has waited.
    pub(super) waited: bool,
    pub(super) shared: Arc<ManagerState>,
    pub(super) state: Mutex<HoldState>,
}

pub(super) struct HoldState {
    pub(super) lease: Lease,
    /// When the last confirmed round was sent: renewal counts from there.
    pub(super) renewed_at: Moment,
    /// When it is extended for the first time, until that is confirmed, or was not needed: its keys have the life of a lock that was
    /// handed over, or it may lack a node that has a vote.
    pub(super) first_extension: Option<Moment>,
    /// Its keys have that life.
    pub(super) is_handed_over: bool,
    /// Others may hold what they are handed over when it has ended, or the hold.
    pub(super) first_life: Option<RoundTicket>,
    /// The number that its extensions carry: its token, or the largest counter that nodes have shown, if that is larger.
    pub(super) number: u64,
    /// A node that has lost the key has shown a counter above the number of the last extension.
    pub(super) unhealed: bool,
    /// The renewal that is under way, and when it is given up.
    pub(super) renewal: Option<UnderWay>,
    /// Nodes that owe the answer to a renewal: its retries leave them out.
    pub(super) owed: NodeSet,
    pub(super) confirmations: Confirmations,
    /// Nodes that have confirmed it besides, until the first extension.
    pub(super) grants: Grants,
    /// When it was in doubt and was checked.
    pub(super) checked_at: Option<Tick>,
    /// When a command was last sent that gave the fencing counters their full life.
    pub(super) counter_kept: Tick,
    /// The longest life that any command gave to the key: a release is worth sending for so long.
    pub(super) longest_ttl: Duration,
    pub(super) reached: NodeSet,
    pub(super) listeners: Listeners,
    /// The listeners have been notified of the loss.
    is_announced: bool,
    /// The log has said that it is held for long.
    pub(super) logged_long: bool,
    /// Since the last extension that failed, until one is confirmed: whether a line was written for it.
    pub(super) unextended: Option<bool>,
}

/// An extension that nobody waits for.
pub(super) trait Renewal: Send + Sync {
    /// Ends it now, and enters the lease in the schedule anew. Called with nothing locked.
    fn give_up(&self);
}

/// A renewal, and when it is given up.
type UnderWay = (Arc<dyn Renewal>, Tick);

/// A hold that its holder has ended in time: what is to be released, and the listeners, if that finds it lost.
pub(super) struct EndedHold {
    held: Held,
    pub(super) reached: NodeSet,
    /// How long a release is worth sending.
    pub(super) keep: Duration,
    pub(super) renewed_at: Moment,
    pub(super) listeners: Listeners,
}

/// A release that was given to the nodes, and may not be written.
#[must_use]
pub(crate) struct PendingRelease<'a> {
    lock: &'a HoldInner,
    /// The call of this manager that comes next, if it enters the waiting lists by it.
    next: Option<Arc<Ticket>>,
    ended: EndedHold,
    round: Arc<Pending<ReleaseRound>>,
    round_ticket: RoundTicket,
}

impl PendingRelease<'_> {
    /// Writes it. The next call may ask then.
    pub(crate) fn flush(&self) {
        self.lock.shared.fanout.flush(self.ended.reached);
        self.admit_next();
    }

    /// Lets calls ask the nodes that come next. Not before the release was sent: they would be refused if their acquire came first.
    /// If one has entered the waiting lists by the release, the hold is over in the queue.
    fn admit_next(&self) {
        let HoldInner { shared, spec, .. } = self.lock;
        if self.next.is_some() {
            shared.queues.admit(&spec.commands.key);
        } else {
            shared.queues.end_hold(&spec.commands, self.lock.id);
        }
    }

    /// Waits until a majority has confirmed it, until `deadline` at most.
    pub(crate) fn wait(self, deadline: Tick) -> Result<Released, ReleaseError> {
        let end = self.round.wait(deadline);
        drop(self.round_ticket);
        let lock = self.lock;
        let fanout = &lock.shared.fanout;
        if end.lost {
            count(&fanout.counters.locks_lost);
            lock.notify(Lost::Gone, self.ended.renewed_at, self.ended.listeners);
            return Err(Lost::Gone.into());
        }
        count(if end.enough {
            &fanout.counters.releases
        } else {
            &fanout.counters.releases_unconfirmed
        });
        lock.tell(|lock, held| Event::Released {
            lock,
            held,
            confirmed: end.enough,
        });
        if end.enough {
            Ok(Released {
                confirmed: end.confirmed,
                nodes: fanout.nodes.len(),
            })
        } else {
            Err(ReleaseError::NotConfirmed {
                confirmed: end.confirmed,
                nodes: fanout.report(self.round.rows()),
            })
        }
    }
}

/// A hold that was lost just now, which has to be announced, with nothing locked.
#[must_use]
pub(super) struct Loss {
    reason: Lost,
    reached: NodeSet,
    renewed_at: Moment,
    /// These are dropped with nothing locked.
    _renewal: Option<UnderWay>,
    _first_life: Option<RoundTicket>,
}

impl HoldState {
    /// What the lease rests on for all that is known by now.
    pub(super) fn confirmations(&self) -> Confirmations {
        self.confirmations.and(self.grants.nodes())
    }
}

impl HoldInner {
    pub(crate) fn new(shared: Arc<ManagerState>, id: u64, won: Won) -> HoldInner {
        let hold_until = shared
            .config
            .max_hold
            .and_then(|it| won.sent.moment.checked_add(it));
        let state = HoldState {
            lease: Lease::new(won.use_until, hold_until, won.spec.renew),
            renewed_at: won.sent.moment,
            first_extension: Moment::now().checked_add(lease::FIRST_EXTENSION),
            is_handed_over: won.is_handed_over,
            first_life: won.first_life,
            number: won.token.get(),
            unhealed: false,
            renewal: None,
            owed: NodeSet::default(),
            confirmations: Confirmations::new(
                shared.fanout.nodes.len(),
                NodeSet::default(),
                won.sent.tick,
            ),
            grants: won.grants,
            checked_at: None,
            counter_kept: won.sent.tick,
            longest_ttl: won.spec.ttl(),
            reached: won.reached,
            listeners: Listeners::default(),
            is_announced: false,
            logged_long: false,
            unextended: None,
        };
        HoldInner {
            id,
            entry: ScheduleEntry::new(id),
            spec: won.spec,
            owner: won.owner,
            token: won.token,
            raised: won.raised,
            began: won.sent.moment,
            in_lists: won.in_lists,
            waited: won.waited,
            shared,
            state: Mutex::new(state),
        }
    }

    /// How much of the lease is left, or how it was lost. Reads the clock; asks nobody.
    pub(crate) fn remaining(&self) -> Result<Duration, Lost> {
        if self.shared.process.is_forked() {
            return Err(Lost::Forked);
        }
        let now = Moment::now();
        let mut state = self.state.lock();
        let valid = state.lease.valid_until(now);
        let loss = self.end_by_clock(&mut state, now);
        drop(state);
        if let Some(loss) = loss {
            // First seen here: the renewal thread may be late, as this process was.
            self.announce(loss);
        }
        valid.map(|until| now.until(until))
    }

    /// A channel that carries the loss, if there will be one, and is closed without a message if there is none.
    pub(crate) fn lost(&self) -> LostReceiver {
        if self.shared.process.is_forked() {
            // Looked at before anything is locked: see `Process`.
            return LostReceiver::of(Lost::Forked);
        }
        let mut state = self.state.lock();
        match state.lease.lost() {
            Some(lost) if state.is_announced => LostReceiver::of(lost),
            _ => state.listeners.listen(self.shared.process),
        }
    }

    pub(crate) fn on_lost(&self, callback: Callback) {
        if self.shared.process.is_forked() {
            // Beside all others: in a forked child nothing that the manager has may be locked.
            return Callbacks::default().call(vec![callback], Lost::Forked);
        }
        let lost = {
            let mut state = self.state.lock();
            match state.lease.lost() {
                Some(lost) if state.is_announced => lost,
                _ => return state.listeners.callbacks.push(callback),
            }
        };
        self.shared.callbacks.call(vec![callback], lost);
    }

    /// Gives the lock back: "not held" from here on. Waits until a majority has confirmed, for at most a response timeout.
    ///
    /// If it was lost before, or turns out to have been, the error says how. The listeners have been notified then, or are
    /// being.
    pub(crate) fn release(&self) -> Result<Released, ReleaseError> {
        let began = time::tick();
        let release = self.begin_release()?;
        let ManagerState {
            fanout, admission, ..
        } = &*self.shared;
        let deadline = time::deadline(fanout.response_timeout);
        fanout.yield_to_a_crowd();
        if let Some(next) = &release.next {
            fanout.flush(release.ended.reached);
            release.round.wait(deadline);
            // Mostly it has been woken by those who have handed the lock over. If not, it waits for that from here on.
            next.set_grace(time::tick().saturating_duration_since(began));
            release.admit_next();
        } else {
            release.flush();
            release.round.spin(fanout, admission);
        }
        release.wait(deadline)
    }

    /// Like [`HoldInner::release`], but does not wait, and only gives the release to the nodes: it never waits for its turn. The
    /// result has to be [flushed](PendingRelease::flush), whatever happens, and then [waited for](PendingRelease::wait).
    pub(crate) fn begin_release(&self) -> Result<PendingRelease<'_>, Lost> {
        let ManagerState { fanout, queues, .. } = &*self.shared;
        let ended = self.end()?;
        let round = ReleaseRound::of_held(fanout.nodes.len(), ended.held);
        let round = Pending::among(fanout, round, Some(ended.reached));
        let round_ticket = self.shared.admission.enter();
        let next = queues.pass_on(&self.spec.commands, self.id, |next| {
            let entering = next.enter_by_release(fanout, self.token.get(), ended.reached)?;
            Some((Arc::clone(next), entering))
        });
        let (next, update) = match next {
            Some((next, entering)) => {
                count(&fanout.counters.hand_overs);
                (Some(next), QueueUpdate::Enter(entering))
            }
            None => (None, self.update()),
        };
        let release = Broadcast::release(self.release_command(update), ended.reached, ended.keep);
        // No node refuses it.
        drop(fanout.enqueue(release.answered_to(Some(&round)), time::tick()));
        Ok(PendingRelease {
            lock: self,
            next,
            ended,
            round,
            round_ticket,
        })
    }

    /// Ends the hold on this side: it reads "not held" from here on. If it was over, the error says how; the release of what is
    /// left of it on the nodes is queued then.
    pub(super) fn end(&self) -> Result<EndedHold, Lost> {
        let now = Moment::now();
        // RACE: the renewal may be extending this lock right now, and we do not wait for it. The state changes
        // first, so an extension that is answered "not yours", because our release got there before it, is not
        // reported as a loss. Extensions are enqueued with this state locked, so all of them run before the release
        // that follows here.
        let mut state = self.state.lock();
        match state.lease.release(now) {
            Ending::Released { until } => {
                let held = Held {
                    confirmed: state.confirmations().confirmed,
                    until,
                };
                let renewal = state.renewal.take();
                let first_life = state.first_life.take();
                let ended = EndedHold {
                    held,
                    reached: state.reached,
                    keep: state.longest_ttl,
                    renewed_at: state.renewed_at,
                    listeners: std::mem::take(&mut state.listeners),
                };
                drop(state);
                drop((renewal, first_life));
                self.shared.schedule.remove(&self.entry);
                Ok(ended)
            }
            Ending::LostNow(reason) => {
                let loss = self.begin_loss(&mut state, reason);
                self.release_rest(&state);
                drop(state);
                self.announce(loss);
                Err(reason)
            }
            // RACE: the thread that ended it notifies the listeners, and may not have done so yet.
            Ending::LostBefore(reason) => {
                self.release_rest(&state);
                let reached = state.reached;
                drop(state);
                self.shared.fanout.flush(reached);
                Err(reason)
            }
        }
    }

    /// Carries a token that was raised: a node that the raise did not come to may be all that remembers it one day.
    fn release_command(&self, update: QueueUpdate) -> Command {
        let token = self.token.get();
        let offer = Offer {
            raised: self.raised.then_some(token),
            ..self.shared.fanout.offer(token)
        };
        self.spec.commands.release(self.owner, offer, update)
    }

    /// What is handed over to its owner from now on is given back.
    fn remove_owner(&self) {
        if self.waited {
            self.shared.queues.owners.remove(self.owner);
        }
    }

    fn update(&self) -> QueueUpdate {
        self.in_lists.map_or(QueueUpdate::None, QueueUpdate::Leave)
    }

    /// Ends the lease for `reason` and notifies the listeners, once. Nothing happens if it was over already.
    pub(crate) fn lose(&self, reason: Lost) {
        if let Some(loss) = self.end_for(reason) {
            self.announce(loss);
        }
    }

    /// Like [`HoldInner::lose`], but it is left to the caller to announce the loss.
    pub(super) fn end_for(&self, reason: Lost) -> Option<Loss> {
        let mut state = self.state.lock();
        let lost = state.lease.lose(reason);
        lost.then(|| self.begin_loss(&mut state, reason))
    }

    /// Lets the clock end the lease, if it is time.
    pub(super) fn end_by_clock(&self, state: &mut HoldState, now: Moment) -> Option<Loss> {
        let reason = state.lease.on_tick(now)?;
        Some(self.begin_loss(state, reason))
    }

    /// The lease has just been lost: counts that. What is left of it on the nodes stays there until its user has let go of it, or
    /// expires: the work that it protects may still go on. A shutdown lets go of all.
    fn begin_loss(&self, state: &mut HoldState, reason: Lost) -> Loss {
        count(&self.shared.fanout.counters.locks_lost);
        if reason == Lost::ShutDown {
            self.release_rest(state);
        }
        Loss {
            reason,
            reached: state.reached,
            renewed_at: state.renewed_at,
            _renewal: state.renewal.take(),
            _first_life: state.first_life.take(),
        }
    }

    /// Enqueues the release of a lock that was lost; the caller flushes it. With the state locked: every extension that was
    /// sent comes before it.
    fn release_rest(&self, state: &HoldState) {
        let command = self.release_command(self.update());
        let release = Broadcast::release(command, state.reached, state.longest_ttl);
        // No node refuses it.
        drop(self.shared.fanout.enqueue(release, time::tick()));
    }

    /// Ends everything that goes with the hold, and notifies the listeners.
    pub(super) fn announce(&self, loss: Loss) {
        self.shared.fanout.flush(loss.reached);
        self.shared.schedule.remove(&self.entry);
        self.remove_owner();
        self.shared.queues.end_hold(&self.spec.commands, self.id);
        let listeners = {
            let mut state = self.state.lock();
            state.is_announced = true;
            std::mem::take(&mut state.listeners)
        };
        self.notify(loss.reason, loss.renewed_at, listeners);
    }

    /// Tells the observer of the end of the hold.
    fn tell(&self, event: impl FnOnce(ObservedLock, Duration) -> Event) {
        self.shared
            .fanout
            .upcall
            .tell(|| event(self.spec.observed(), Moment::now().since(self.began)));
    }

    /// The observer and the log come last, because they may take their time.
    fn notify(&self, reason: Lost, renewed_at: Moment, listeners: Listeners) {
        listeners.notify(reason, &self.shared.callbacks);
        self.tell(|lock, held| Event::Lost {
            lock,
            held,
            why: reason,
        });
        let age = Moment::now().since(renewed_at);
        // A shutdown is what the program wanted.
        let level = if reason == Lost::ShutDown {
            Level::Info
        } else {
            Level::Warn
        };
        let why = reason.to_string();
        write_line!(
            level,
            "{:?}: LOST, last extended {} ago: {}, {:?}",
            self.spec.name,
            time::About(age),
            why.trim_start_matches("lock lost: "),
            self.owner
        );
    }
}

/// Behind its release, which undoes what nodes hand over before it.
impl Drop for HoldInner {
    fn drop(&mut self) {
        self.remove_owner();
    }
}
