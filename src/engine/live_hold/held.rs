//! A held lock: its state, its end, and the notification of its listeners.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::listeners::{Callback, Listeners, LostReceiver, call_alone};
use crate::engine::nodes::fanout::Broadcast;
use crate::engine::round::admission::RoundTicket;
use crate::engine::round::attempt::{Grants, Won};
use crate::engine::round::pending::Pending;
use crate::engine::schedule::ScheduleEntry;
use crate::engine::shared::ManagerState;
use crate::engine::spec::LockSpec;
use crate::error::{Lost, LostReason, ReleaseError, Released};
use crate::ids::{ClientId, FencingToken, NodeSet, OwnerToken};
use crate::logic::confirmations::Confirmations;
use crate::logic::lease::{self, Ending, Lease};
use crate::logic::tally::{Held, ReleaseRound};
use crate::observer::{Event, ObservedLock};
use crate::stats::count;
use crate::sys::logging::{Level, debug, write_line};
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
    raised: bool,
    /// Start of the hold's age: the send of the winning acquire.
    pub(super) began: Moment,
    /// Client of a call that has waited: it may be in lists of nodes, and nodes may hand the lock over to its owner.
    pub(super) waited: Option<ClientId>,
    pub(super) shared: Arc<ManagerState>,
    pub(super) state: Mutex<HoldState>,
}

pub(super) struct HoldState {
    pub(super) lease: Lease,
    /// Send of the last confirmed round. Renewal counts from there.
    pub(super) renewed_at: Moment,
    /// Time of the first extension, until confirmed or not needed: the keys have the short life of a handed-over lock,
    /// or a voting node may lack the lock.
    pub(super) first_extension: Option<Moment>,
    /// Whether the keys have that short life.
    pub(super) is_handed_over: bool,
    /// Round ticket of a handed-over lock, until the first extension or the end of the hold.
    pub(super) first_life: Option<RoundTicket>,
    /// Number in its extensions: its token, or the largest counter shown by nodes, if larger.
    pub(super) number: u64,
    /// Whether a node without the key has shown a counter above the number of the last extension.
    pub(super) unhealed: bool,
    /// Renewal under way, and the time to give it up.
    pub(super) renewal: Option<UnderWay>,
    /// Nodes without an answer to a renewal. Its retries skip them.
    pub(super) owed: NodeSet,
    pub(super) confirmations: Confirmations,
    /// Further confirming nodes, until the first extension.
    pub(super) grants: Grants,
    /// Nodes that extended or healed the lock.
    pub(super) had: NodeSet,
    /// Time of the last check of a lock in doubt.
    pub(super) checked_at: Option<Tick>,
    /// Send of the last command that gave the fencing counters their full life.
    pub(super) counter_kept: Tick,
    /// Longest life that any command gave to the key: a release is worth sending for this time.
    pub(super) longest_ttl: Duration,
    pub(super) reached: NodeSet,
    /// No release is sent before: see [`HoldInner::keep_until`].
    pub(super) kept_until: Option<Tick>,
    listeners: Listeners,
    /// For a warning before the loss.
    pub(super) early: Listeners,
    /// The loss of which the listeners were notified.
    announced: Option<Lost>,
    /// Whether the log has a line about the long hold.
    pub(super) logged_long: bool,
    /// Some between a failed extension and the next confirmed one: whether the log has a line for it.
    pub(super) unextended: Option<bool>,
}

/// An extension without a waiting caller.
pub(super) trait Renewal: Send + Sync {
    /// Ends it and enters the lease in the schedule again. Called with nothing locked.
    fn give_up(&self);
}

/// A renewal, and the time to give it up.
type UnderWay = (Arc<dyn Renewal>, Tick);

/// A hold ended in time by its holder, with everything for its release, and its listeners for a late loss.
struct EndedHold {
    held: Held,
    reached: NodeSet,
    /// Time in which a release is worth sending.
    keep: Duration,
    renewed_at: Moment,
    listeners: Listeners,
}

/// A new loss, to be announced with nothing locked.
#[must_use]
pub(super) struct Loss {
    lost: Lost,
    reached: NodeSet,
    renewed_at: Moment,
    /// Dropped with nothing locked.
    _renewal: Option<UnderWay>,
    _first_life: Option<RoundTicket>,
}

impl HoldState {
    /// The nodes on which the lease rests, including late grants.
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
            had: NodeSet::default(),
            checked_at: None,
            counter_kept: won.sent.tick,
            longest_ttl: won.spec.ttl(),
            reached: won.reached,
            kept_until: None,
            listeners: Listeners::default(),
            early: Listeners::default(),
            announced: None,
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
            waited: won.waited,
            shared,
            state: Mutex::new(state),
        }
    }

    /// The loss with the name of the lock.
    pub(crate) fn lost_by(&self, reason: LostReason) -> Lost {
        Lost {
            name: self.spec.name.clone(),
            reason,
        }
    }

    /// Time left of the lease, or how it was lost. Reads the clock; asks no node.
    pub(crate) fn remaining(&self) -> Result<Duration, Lost> {
        if self.shared.process.is_forked() {
            return Err(self.lost_by(LostReason::Forked));
        }
        let now = Moment::now();
        let mut state = self.state.lock();
        let valid = state.lease.valid_until(now);
        let loss = self.end_by_clock(&mut state, now);
        drop(state);
        if let Some(loss) = loss {
            // The renewal thread may be late, as this process was.
            self.announce(loss);
        }
        Ok(now.until(valid.map_err(|reason| self.lost_by(reason))?))
    }

    /// A channel for the loss, or for an `early` warning of it. It closes without a message if there is none.
    pub(crate) fn lost(&self, early: bool) -> LostReceiver {
        if self.shared.process.is_forked() {
            // Checked before anything is locked: see `Process`.
            return LostReceiver::of(self.lost_by(LostReason::Forked));
        }
        let mut state = self.state.lock();
        match state.announced.clone() {
            Some(lost) => LostReceiver::of(lost),
            _ if early => state.early.listen(self.shared.process),
            _ => state.listeners.listen(self.shared.process),
        }
    }

    /// Sends no release before this time.
    pub(crate) fn keep_until(&self, until: Tick) {
        let mut state = self.state.lock();
        state.kept_until = state.kept_until.max(Some(until));
    }

    pub(crate) fn on_lost(&self, callback: Callback) {
        if self.shared.process.is_forked() {
            // Not with the manager's callbacks: in a forked child no mutex of the manager may be locked.
            return call_alone(callback, self.lost_by(LostReason::Forked));
        }
        let mut state = self.state.lock();
        let Some(lost) = state.announced.clone() else {
            return state.listeners.callbacks.push(callback);
        };
        drop(state);
        self.shared.callbacks.call(vec![callback], &lost);
    }

    /// Releases the lock: "not held" from here on. Waits for a majority, for at most a response timeout.
    ///
    /// The error says how the lock was lost, before or as found now. Its listeners are notified or about to be.
    ///
    /// A kept lock is not held from here on either. The renewal thread sends its release in time.
    pub(crate) fn release(self: &Arc<Self>) -> Result<Released, ReleaseError> {
        let began = time::tick();
        // RACE: T1, this thread, ends the hold; T2, the renewal thread, finds it ended and sends the release of a kept
        // lock; the release of T1 finds no key, and its lock counts as lost. Therefore T1 first says that it is not kept.
        let kept_until = {
            let mut state = self.state.lock();
            state.kept_until = state.kept_until.filter(|it| began < *it);
            state.kept_until
        };
        let ended = self.end()?;
        let ManagerState {
            fanout,
            schedule,
            queues,
            ..
        } = &*self.shared;
        let commands = &self.spec.commands;
        let nodes = fanout.nodes.len();
        if let Some(kept_until) = kept_until {
            let kept_for = kept_until.saturating_duration_since(began);
            schedule.enter(Arc::<HoldInner>::clone(self), kept_for);
            // The next calls ask the nodes themselves.
            queues.end_hold(commands, self.id);
            self.record_end(|lock, held| Event::Released {
                lock,
                held,
                confirmed: true,
            });
            return Ok(Released {
                confirmed: ended.held.confirmed.len(),
                nodes,
            });
        }
        let round = ReleaseRound::of_held(nodes, ended.held);
        let round = Pending::among(fanout, round, Some(ended.reached));
        let round_ticket = self.shared.admission.enter();
        let next = queues.pass_on(commands, self.id, |next| {
            let entering = next.enter_by_release(fanout, self.token.get(), ended.reached)?;
            Some((Arc::clone(next), entering))
        });
        let (next, update) = match next {
            Some((next, entering)) => {
                count(&fanout.journal.counters.hand_overs);
                (Some(next), QueueUpdate::Enter(entering))
            }
            None => (None, self.update()),
        };
        let release = Broadcast::release(self.release_command(update), ended.reached, ended.keep);
        // No node refuses it.
        drop(fanout.enqueue(release.answered_to(Some(&round)), time::tick()));
        let deadline = time::deadline(fanout.response_timeout);
        fanout.yield_to_a_crowd();
        fanout.flush(ended.reached);
        // The next calls may ask the nodes. Not before the release was sent: an earlier acquire would be refused.
        if let Some(next) = next {
            round.wait(deadline);
            // Usually the hand-overs have woken the next call. Otherwise its wait for them begins here.
            next.set_grace(time::tick().saturating_duration_since(began));
            queues.admit(&commands.key);
        } else {
            queues.end_hold(commands, self.id);
        }
        let end = round.wait(deadline);
        drop(round_ticket);
        if end.lost {
            let lost = self.lost_by(LostReason::Gone);
            self.record_loss(lost.reason);
            self.notify(&lost, ended.renewed_at, ended.listeners);
            return Err(lost.into());
        }
        self.record_end(|lock, held| Event::Released {
            lock,
            held,
            confirmed: end.enough,
        });
        if end.enough {
            return Ok(Released {
                confirmed: end.confirmed,
                nodes,
            });
        }
        let err = ReleaseError::NotConfirmed {
            confirmed: end.confirmed,
            nodes: fanout.report(round.rows()),
        };
        debug!(fanout.journal, "{:?}: {err}", self.spec.name);
        Err(err)
    }

    /// Ends the hold on this side: "not held" from here on. The error says how it was over before; the release of its
    /// leftovers on the nodes is then queued.
    fn end(&self) -> Result<EndedHold, Lost> {
        let now = Moment::now();
        // RACE: T1, the renewal, extends the lock; T2, this thread, releases it without waiting; a node runs the
        // release first and answers the extension "not yours". Therefore T2 changes the state first, so that T1 reports
        // no loss. T1 enqueues with the state locked, so all extensions run before the release.
        let mut state = self.state.lock();
        match state.lease.release(now) {
            Ending::Released { until } => {
                let held = Held {
                    confirmed: state.confirmations().confirmed,
                    until,
                };
                let renewal = state.renewal.take();
                let first_life = state.first_life.take();
                let early = std::mem::take(&mut state.early);
                let ended = EndedHold {
                    held,
                    reached: state.reached,
                    keep: state.longest_ttl,
                    renewed_at: state.renewed_at,
                    listeners: std::mem::take(&mut state.listeners),
                };
                drop(state);
                drop((renewal, first_life, early));
                self.shared.schedule.remove(&self.entry);
                Ok(ended)
            }
            Ending::LostNow(reason) => {
                let loss = self.begin_loss(&mut state, reason);
                self.release_rest(&state);
                drop(state);
                self.announce(loss);
                Err(self.lost_by(reason))
            }
            // RACE: T1 has ended the hold and is about to notify the listeners; T2 comes here. Therefore T2 returns the
            // loss without a notification.
            Ending::LostBefore(reason) => {
                self.release_rest(&state);
                let reached = state.reached;
                drop(state);
                self.shared.fanout.flush(reached);
                Err(self.lost_by(reason))
            }
        }
    }

    /// Includes a raised token: it may have missed the node that must keep it.
    fn release_command(&self, update: QueueUpdate) -> Command {
        let token = self.token.get();
        let offer = Offer {
            raised: self.raised.then_some(token),
            ..self.shared.fanout.offer(token)
        };
        self.spec.commands.release(self.owner, offer, update)
    }

    /// From now on hand-overs to its owner are given back.
    fn remove_owner(&self) {
        // Checked before anything is locked: see `Process`.
        if self.waited.is_some() && !self.shared.process.is_forked() {
            self.shared.queues.owners.remove(self.owner);
        }
    }

    fn update(&self) -> QueueUpdate {
        self.waited.map_or(QueueUpdate::None, QueueUpdate::Leave)
    }

    /// Ends the lease for `reason` and notifies the listeners, if the lock was held.
    pub(crate) fn lose(&self, reason: LostReason) {
        if let Some(loss) = self.end_for(reason) {
            self.announce(loss);
        }
    }

    /// Like [`HoldInner::lose`]; the caller announces the loss.
    pub(super) fn end_for(&self, reason: LostReason) -> Option<Loss> {
        let mut state = self.state.lock();
        let lost = state.lease.lose(reason);
        lost.then(|| self.begin_loss(&mut state, reason))
    }

    /// Ends the lease if its time is over.
    pub(super) fn end_by_clock(&self, state: &mut HoldState, now: Moment) -> Option<Loss> {
        let reason = state.lease.on_tick(now)?;
        Some(self.begin_loss(state, reason))
    }

    /// Records a new loss. The keys stay until the guard is dropped or they expire: the protected work may continue. A
    /// shutdown releases them.
    fn begin_loss(&self, state: &mut HoldState, reason: LostReason) -> Loss {
        self.record_loss(reason);
        if reason == LostReason::ShutDown {
            self.release_rest(state);
        }
        Loss {
            lost: self.lost_by(reason),
            reached: state.reached,
            renewed_at: state.renewed_at,
            _renewal: state.renewal.take(),
            _first_life: state.first_life.take(),
        }
    }

    /// Enqueues the release of a lost or kept lock, unless it is still kept. Called with the state locked, so that it
    /// follows every extension; the caller flushes.
    pub(super) fn release_rest(&self, state: &HoldState) {
        if state.kept_until.is_some_and(|it| time::tick() < it) {
            return;
        }
        let command = self.release_command(self.update());
        let release = Broadcast::release(command, state.reached, state.longest_ttl);
        // No node refuses it.
        drop(self.shared.fanout.enqueue(release, time::tick()));
    }

    /// Ends everything that belongs to the hold and notifies the listeners.
    pub(super) fn announce(&self, loss: Loss) {
        self.shared.fanout.flush(loss.reached);
        self.shared.schedule.remove(&self.entry);
        self.remove_owner();
        self.shared.queues.end_hold(&self.spec.commands, self.id);
        let mut state = self.state.lock();
        state.announced = Some(loss.lost.clone());
        let listeners = std::mem::take(&mut state.listeners);
        let early = std::mem::take(&mut state.early);
        drop(state);
        early.notify(&loss.lost, &self.shared.callbacks);
        self.notify(&loss.lost, loss.renewed_at, listeners);
    }

    /// Records the loss before anybody else can see it.
    fn record_loss(&self, why: LostReason) {
        self.record_end(|lock, held| Event::Lost { lock, held, why });
    }

    fn record_end(&self, event: impl FnOnce(ObservedLock, Duration) -> Event) {
        self.shared
            .fanout
            .journal
            .record(event(self.spec.observed(), Moment::now().since(self.began)));
    }

    fn notify(&self, lost: &Lost, renewed_at: Moment, listeners: Listeners) {
        let age = Moment::now().since(renewed_at);
        // The program asked for a shutdown.
        let level = if lost.reason == LostReason::ShutDown {
            Level::Info
        } else {
            Level::Warn
        };
        write_line!(
            self.shared.fanout.journal,
            level,
            "{:?}: LOST, last extended {} ago: {}, {:?}",
            lost.name,
            time::About(age),
            lost.reason.to_string().trim_start_matches("lock lost: "),
            self.owner
        );
        listeners.notify(lost, &self.shared.callbacks);
    }
}

/// After its release, which undoes earlier hand-overs.
impl Drop for HoldInner {
    fn drop(&mut self) {
        self.remove_owner();
    }
}
