//! A held lock between threads: lock, step, unlock, do what came out. [`Hold`] decides; this sends
//! extensions, brings their answers, notifies listeners, and releases.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, LockStatus};
use crate::call::steps::Win;
use crate::engine::admission::RoundTicket;
use crate::engine::call::CallInner;
use crate::engine::listeners::{Callback, Listeners, LostReceiver, call_alone};
use crate::engine::nodes::fanout::{Broadcast, Enqueued, Recipients};
use crate::engine::round::Pending;
use crate::engine::schedule::Due;
use crate::engine::shared::ManagerState;
use crate::engine::spec::LockSpec;
use crate::error::{ExtendError, Lost, LostReason, ReleaseError, Released, Rows};
use crate::hold::promises::Promise;
use crate::hold::{Extension, Hold, News, Renewal, Servers, Terms};
use crate::ids::{ClientId, FencingToken, NodeId, NodeSet};
use crate::logic::tally::ReleaseRound;
use crate::logic::{lease, retries};
use crate::observer::{Event, HeldLock};
use crate::session::pending_command::ReplyHandler;
use crate::stats::count;
use crate::sys::logging::{Level, debug, warn, write_line};
use crate::sys::sync::{Condvar, Mutex};
use crate::time::{self, About, Moment, Now, Tick};
use crate::wire::{Command, Offer, QueueUpdate};

/// A won call, to become a hold.
pub(crate) struct Won {
    pub(crate) spec: Arc<LockSpec>,
    pub(crate) win: Win,
    /// Its late grants count as well.
    pub(crate) call: Arc<CallInner>,
    /// Of a handed-over lock.
    pub(crate) round_ticket: Option<RoundTicket>,
}

#[cfg(test)]
impl Won {
    /// A lock won now, granted by all nodes, that ends after `time_left`.
    pub(crate) fn just_now(spec: &Arc<LockSpec>, time_left: Duration) -> Won {
        let call = CallInner::granted(spec);
        let sent = Now::read();
        Won {
            spec: Arc::clone(spec),
            win: Win {
                owner: crate::ids::OwnerToken::draw().unwrap(),
                token: 1,
                raised: false,
                sent,
                use_until: sent.moment.checked_add(time_left).unwrap(),
                is_handed_over: false,
                reached: NodeSet::default(),
                slot: None,
                gone: NodeSet::default(),
                handed: NodeSet::default(),
                others: NodeSet::default(),
                took: Duration::ZERO,
            },
            call,
            round_ticket: None,
        }
    }
}

/// One held lock, shared by its guard, the renewal and the extensions under way.
pub(crate) struct HoldInner {
    pub(crate) id: u64,
    pub(crate) spec: Arc<LockSpec>,
    pub(crate) win: Win,
    pub(crate) token: FencingToken,
    /// Client of a call that has waited: it may be in lists of nodes, and nodes may hand the lock
    /// over to its owner.
    waited: Option<ClientId>,
    shared: Arc<ManagerState>,
    pub(super) state: Mutex<HoldState>,
    /// Notified of the end of an extension.
    extended: Condvar,
}

pub(super) struct HoldState {
    pub(super) hold: Hold,
    /// Its late grants count until the first extension.
    call: Option<Arc<CallInner>>,
    /// Round ticket of a handed-over lock, until the first extension or the end of the hold.
    round_ticket: Option<RoundTicket>,
    /// No release is sent before: see [`HoldInner::keep_until`].
    kept_until: Option<Tick>,
    listeners: Listeners,
    /// For a warning before the loss.
    early: Listeners,
    /// The loss of which the listeners were notified.
    announced: Option<Lost>,
}

impl HoldState {
    /// Takes the grants that have come in since, before a step that depends on each node.
    fn note_grants(&mut self, win: &Win, now: Moment) {
        let Some(call) = &self.call else { return };
        call.with_votes(|votes| {
            for (node, answer) in votes.places() {
                let Some(answer) = answer else { continue };
                let is_short = win.handed.contains(node);
                let counts = answer.slot() == win.slot && !win.gone.contains(node);
                let is_granted = is_short || answer.is_granted() && counts;
                self.hold.on_grant(node, answer, is_granted, is_short, now);
            }
        });
    }
}

impl HoldInner {
    pub(crate) fn new(shared: Arc<ManagerState>, id: u64, won: Won) -> HoldInner {
        let config = &shared.config;
        let now = Moment::now();
        let win = won.win;
        let terms = Terms {
            nodes: shared.fanout.nodes.len(),
            ttl: won.spec.ttl(),
            margin: config.margin,
            renewed: won.spec.renew,
            grant: Promise {
                round: 0,
                sent: win.sent,
                until: win.use_until,
                number: win.token,
            },
            hold_until: config
                .max_hold
                .and_then(|it| win.sent.moment.checked_add(it)),
            response_timeout: config.response_timeout,
        };
        let mut state = HoldState {
            hold: Hold::new(terms, win.is_handed_over, win.reached, now),
            call: Some(Arc::clone(&won.call)),
            round_ticket: won.round_ticket,
            kept_until: None,
            listeners: Listeners::default(),
            early: Listeners::default(),
            announced: None,
        };
        state.note_grants(&win, now);
        HoldInner {
            id,
            spec: won.spec,
            token: FencingToken(win.token),
            win,
            waited: won.call.entry.map(|it| it.client),
            shared,
            state: Mutex::new(state),
            extended: Condvar::default(),
        }
    }

    /// Locks, steps, unlocks, does what came out.
    fn step<T>(&self, step: impl FnOnce(&mut HoldState, Now) -> T) -> T {
        let (result, news) = self.step_only(step);
        if !news.is_empty() {
            self.carry_out(&news);
        }
        result
    }

    /// What is left to do is done with nothing locked: a loss and a warning are announced, and a
    /// failure is logged.
    fn step_only<T>(&self, step: impl FnOnce(&mut HoldState, Now) -> T) -> (T, Vec<News>) {
        let now = Now::read();
        let mut state = self.state.lock();
        let result = step(&mut state, now);
        let news = std::mem::take(&mut state.hold.news);
        let ends_first_life = |it: &News| matches!(it, News::Lost(_) | News::Extended { .. });
        let _round_ticket = state
            .round_ticket
            .take_if(|_| news.iter().any(ends_first_life));
        // Unlocked before the ticket is dropped.
        let state = state;
        let (spec, owner) = (&self.spec, self.win.owner);
        let journal = &self.shared.fanout.journal;
        let name = &spec.name;
        // Recorded before anybody else can see it.
        for it in &news {
            let lock = spec.observed();
            journal.record(match *it {
                News::Extended { took, left, again } => {
                    let (level, again) = if again {
                        (Level::Info, "again ")
                    } else {
                        (Level::Debug, "")
                    };
                    let about = About(took);
                    write_line!(
                        journal,
                        level,
                        "{name:?}: extended {again}in {about}, {owner:?}"
                    );
                    Event::Extended { lock, took, left }
                }
                News::NotExtended { left } => Event::NotExtended { lock, left },
                News::Healed(node) => {
                    debug!(journal, "{name:?}: its lost key was set again on {node}");
                    Event::Healed { lock, node }
                }
                News::Lost(why) => {
                    let held = now.moment.since(self.win.sent.moment);
                    // Keys stay until the guard is dropped or they expire: the protected work may
                    // continue. Those that an extension has set do not.
                    match why {
                        LostReason::ShutDown => self.release_rest(&state, state.hold.reached),
                        LostReason::Gone => self.release_rest(&state, state.hold.left_behind()),
                        _ => {}
                    }
                    Event::Lost { lock, held, why }
                }
                News::HeldLong => {
                    let age = About(lease::LONG_HOLD);
                    warn!(
                        journal,
                        "{name:?}: held for {age} and still extended, {owner:?}"
                    );
                    continue;
                }
                News::Expiring(_) => continue,
            });
        }
        (result, news)
    }

    /// Enters the next step in the schedule.
    ///
    /// RACE: T1 plans the next step; T2 releases the lock and removes its entry; T1 enters it.
    /// Therefore both have the state locked.
    fn plan(self: &Arc<Self>, state: &mut HoldState, now: Now) {
        if let Some(wait) = state.hold.next_in(now, &self.shared.fanout)
            && !self
                .shared
                .schedule
                .enter(Arc::<HoldInner>::clone(self), wait)
        {
            state.hold.lose(LostReason::ShutDown);
        }
    }

    /// Begins to look after the lock.
    pub(crate) fn start(self: &Arc<Self>) {
        self.step(|state, now| self.plan(state, now));
    }

    /// Enqueues an extension. With the state locked, so that a release follows it.
    fn send(self: &Arc<Self>, state: &mut HoldState, extension: Extension, batch: &mut Enqueued) {
        let Extension {
            promise,
            ttl,
            to,
            sets,
            ..
        } = extension;
        state.call = None;
        let sent = Arc::new(SentExtension {
            lock: Arc::clone(self),
            extension,
        });
        for (is_set, nodes) in [(true, to.both(sets)), (false, to.without(sets))] {
            if nodes.is_empty() {
                continue;
            }
            let ttl_ms = lease::millis(ttl);
            let commands = &self.spec.commands;
            let command =
                commands.extend(self.win.owner, ttl_ms, promise.number, is_set, self.waited);
            // A late answer counts.
            let recipients = if extension.is_awaited {
                Recipients::Ready
            } else {
                Recipients::Patient
            };
            let broadcast = Broadcast {
                recipients,
                ..Broadcast::new(command, &sent).to(Some(nodes))
            };
            let enqueued = self.shared.fanout.enqueue(broadcast, promise.sent.tick);
            state.hold.on_sent(&extension, enqueued.taken);
            batch.asked = batch.asked.union(enqueued.asked);
            batch.refused.extend(enqueued.refused);
        }
    }

    /// Extends for `ttl` from now and waits for the answers.
    pub(crate) fn extend(self: &Arc<Self>, ttl: Duration) -> Result<(), ExtendError> {
        self.remaining()?;
        if let Some(problem) = self.shared.config.ttl_problem(ttl) {
            return Err(ExtendError::BadTtl(problem));
        }
        let ttl = lease::whole_millis(ttl);
        let fanout = &self.shared.fanout;
        let ends_at = fanout.look().deadline(time::tick());
        let mut batch = Enqueued::default();
        let extension = self.step(|state, now| {
            state.note_grants(&self.win, now.moment);
            let extension = state.hold.extend(ttl, now, ends_at, fanout)?;
            self.send(state, extension, &mut batch);
            Ok(extension)
        });
        let extension = extension.map_err(|reason| self.lost_by(reason))?;
        fanout.dispatch(batch);
        let mut state = self.state.lock();
        while state.hold.awaits(&extension, Moment::now())
            && self.extended.wait(&mut state, Some(ends_at))
        {}
        drop(state);
        let (is_confirmed, rows) = self.step(|state, now| {
            state.hold.fail_overdue(now, fanout);
            self.plan(state, now);
            let promises = &state.hold.promises;
            let is_confirmed = promises.confirm(&extension.promise, now.moment);
            (is_confirmed, promises.rows())
        });
        self.remaining()?;
        if is_confirmed {
            return Ok(());
        }
        Err(ExtendError::NoQuorum {
            nodes: fanout.report(rows),
        })
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
        // The renewal thread may be late, as this process was.
        let left = self.step(|state, now| state.hold.end_by_clock(now.moment));
        left.map_err(|reason| self.lost_by(reason))
    }

    /// A channel for the loss, or for an `early` warning of it. It closes without a message if
    /// there is none.
    pub(crate) fn lost(&self, early: bool) -> LostReceiver {
        if self.shared.process.is_forked() {
            // Checked before anything is locked: see `Process`.
            return LostReceiver::of(self.lost_by(LostReason::Forked));
        }
        let mut state = self.state.lock();
        match state.announced.clone() {
            Some(lost) => LostReceiver::of(lost),
            _ if early => state.early.listen(),
            _ => state.listeners.listen(),
        }
    }

    /// Sends no release before this time.
    pub(crate) fn keep_until(&self, until: Tick) {
        let mut state = self.state.lock();
        state.kept_until = state.kept_until.max(Some(until));
    }

    pub(crate) fn on_lost(&self, callback: Callback) {
        if self.shared.process.is_forked() {
            // Not with the manager's callbacks: in a forked child no mutex of the manager may be
            // locked.
            return call_alone(callback, self.lost_by(LostReason::Forked));
        }
        let mut state = self.state.lock();
        let Some(lost) = state.announced.clone() else {
            return state.listeners.callbacks.push(callback);
        };
        drop(state);
        self.shared.callbacks.call(vec![callback], &lost);
    }

    /// Releases the lock: "not held" from here on. Waits for a majority, for at most a response
    /// timeout.
    ///
    /// The error says how the lock was lost, before or as found now. Its listeners are notified or
    /// about to be.
    ///
    /// A kept lock is not held from here on either. The renewal thread sends its release in time.
    pub(crate) fn release(self: &Arc<Self>) -> Result<Released, ReleaseError> {
        let began = time::tick();
        let fanout = &self.shared.fanout;
        // RACE: T1, the renewal, extends the lock; T2, this thread, releases it without waiting; a
        // node runs the release first and answers the extension "not yours". Therefore T2 changes
        // the state first, so that T1 reports no loss. T1 enqueues with the state locked, so all
        // extensions run before the release.
        let ended = self.step(|state, now| {
            // RACE: T1, this thread, ends the hold; T2, the renewal thread, finds it ended and
            // sends the release of a kept lock; the release of T1 finds no key, and its lock counts
            // as lost. Therefore T1 says in the same step that it is not kept.
            state.kept_until = state.kept_until.filter(|it| began < *it);
            let reached = state.hold.reached;
            let ended = state.hold.release(now.moment);
            let promised = ended.map_err(|reason| {
                self.release_rest(state, reached);
                (reason, reached)
            })?;
            self.shared.schedule.remove(self.id);
            let times = (state.kept_until, state.hold.keep_releases_for);
            let early = std::mem::take(&mut state.early);
            let to_drop = (early, state.round_ticket.take());
            let listeners = std::mem::take(&mut state.listeners);
            Ok((promised, reached, times, listeners, to_drop))
        });
        // The rest is dropped here, with nothing locked.
        let (promised, reached, (kept_until, keep_for), listeners, _) =
            ended.map_err(|(reason, reached)| {
                fanout.flush(reached);
                self.lost_by(reason)
            })?;
        if let Some(kept_until) = kept_until {
            return Ok(self.release_later(kept_until, began, &promised));
        }
        let round = ReleaseRound::of_held(promised);
        let round = Pending::among(fanout, round, Some(reached));
        let round_ticket = self.shared.admission.enter();
        let deadline = self.send_release(&round, reached, keep_for, began);
        let end = round.wait(deadline);
        drop(round_ticket);
        if end.lost {
            let lost = self.lost_by(LostReason::Gone);
            self.record_end(Err(lost.reason));
            self.notify(&lost, listeners);
            return Err(lost.into());
        }
        self.record_end(Ok(end.enough));
        let (confirmed, nodes) = (end.confirmed, fanout.nodes.len());
        if end.enough {
            return Ok(Released { confirmed, nodes });
        }
        let nodes = fanout.report(round.rows());
        let err = ReleaseError::NotConfirmed { confirmed, nodes };
        debug!(fanout.journal, "{:?}: {err}", self.spec.name);
        Err(err)
    }

    /// Ends the hold of a kept lock on this side only.
    fn release_later(
        self: &Arc<Self>,
        kept_until: Tick,
        began: Tick,
        promised: &[Option<Moment>],
    ) -> Released {
        let kept_for = kept_until.saturating_duration_since(began);
        let this = Arc::<HoldInner>::clone(self);
        // Without a schedule the keys expire by themselves.
        let _ = self.shared.schedule.enter(this, kept_for);
        // The next calls ask the nodes themselves.
        self.shared.queues.end_hold(&self.spec.commands, self.id);
        self.record_end(Ok(true));
        Released {
            confirmed: promised.iter().flatten().count(),
            nodes: self.shared.fanout.nodes.len(),
        }
    }

    /// Sends the release, and lets the next calls ask. The next call of this manager enters the
    /// lists of the nodes by it, if it can. Returns the end of the wait for the answers.
    fn send_release(
        &self,
        round: &Arc<Pending<ReleaseRound>>,
        reached: NodeSet,
        keep_for: Duration,
        began: Tick,
    ) -> Tick {
        let ManagerState { fanout, queues, .. } = &*self.shared;
        let commands = &self.spec.commands;
        let next = queues.pass_on(commands, self.id, |next| {
            let (owner, entering) = next.enter_by_release(fanout, self.token.get(), reached)?;
            queues.owners.insert(owner, next);
            Some((Arc::clone(next), entering))
        });
        let (next, update) = match next {
            Some((next, entering)) => {
                count(&fanout.journal.counters.hand_overs);
                (Some(next), QueueUpdate::Enter(entering))
            }
            None => (None, self.update()),
        };
        let release = Broadcast::release(self.release_command(update), reached, keep_for);
        // No node refuses it.
        drop(fanout.enqueue(release.answered_to(Some(round)), time::tick()));
        let deadline = time::deadline(fanout.response_timeout);
        fanout.yield_to_a_crowd();
        fanout.flush(reached);
        // The next calls may ask the nodes. Not before the release was sent: an earlier acquire
        // would be refused.
        if let Some(next) = next {
            round.wait(deadline);
            // Usually the hand-overs have woken the next call. Otherwise its wait for them begins
            // here.
            let took = time::tick().saturating_duration_since(began);
            next.step(|call| call.set_grace(took));
            queues.admit(&commands.key);
        } else {
            queues.end_hold(commands, self.id);
        }
        deadline
    }

    /// Includes a raised token: it may have missed the node that must keep it.
    fn release_command(&self, update: QueueUpdate) -> Command {
        let token = self.token.get();
        let offer = Offer {
            raised: self.win.raised.then_some(token),
            ..self.shared.fanout.offer(token)
        };
        self.spec.commands.release(self.win.owner, offer, update)
    }

    /// From now on hand-overs to its owner are given back.
    fn remove_owner(&self) {
        // Checked before anything is locked: see `Process`.
        if self.waited.is_some() && !self.shared.process.is_forked() {
            self.shared.queues.owners.remove(self.win.owner);
        }
    }

    fn update(&self) -> QueueUpdate {
        self.waited.map_or(QueueUpdate::None, QueueUpdate::Leave)
    }

    #[cfg(test)]
    pub(crate) fn lose(&self, reason: LostReason) {
        self.step(|state, _| state.hold.lose(reason));
    }

    /// Enqueues the release of a lost or kept lock on the nodes `to`, unless it is still kept.
    /// Called with the state locked, so that it follows every extension; the caller flushes.
    fn release_rest(&self, state: &HoldState, to: NodeSet) {
        if state.kept_until.is_some_and(|it| time::tick() < it) {
            return;
        }
        let command = self.release_command(self.update());
        let release = Broadcast::release(command, to, state.hold.keep_releases_for);
        // No node refuses it.
        drop(self.shared.fanout.enqueue(release, time::tick()));
    }

    /// Called with nothing locked.
    fn carry_out(&self, news: &[News]) {
        self.extended.notify_all();
        for it in news {
            match *it {
                News::NotExtended { left } => self.log_failure(left),
                News::Expiring(reason) => {
                    let early = std::mem::take(&mut self.state.lock().early);
                    early.notify(&self.lost_by(reason), &self.shared.callbacks);
                }
                News::Lost(reason) => self.announce(self.lost_by(reason)),
                _ => {}
            }
        }
    }

    /// Logs a missing majority for an extension: once until the next confirmed one, and for one
    /// lock a second. If other locks are not extended either, the line has their number.
    fn log_failure(&self, left: Duration) {
        let ManagerState {
            fanout, schedule, ..
        } = &*self.shared;
        let (warns, rows) = {
            let mut state = self.state.lock();
            if !state.hold.is_held() {
                return;
            }
            let warns = state.hold.renewal != Renewal::FailureLogged
                && fanout.retries.lock().may_warn(time::tick());
            if warns {
                state.hold.renewal = Renewal::FailureLogged;
            }
            (warns, fanout.report(state.hold.promises.rows()))
        };
        let (journal, rows) = (&fanout.journal, Rows(&rows));
        let others = if warns {
            schedule.held(true)
        } else {
            Vec::new()
        };
        let level = if warns { Level::Warn } else { Level::Debug };
        if let Some((count, first)) = retries::summary(others, |lock| lock.left) {
            let (lock, left) = (&first.lock, About(first.left));
            write_line!(
                journal,
                level,
                "{count} locks not extended, the first (\"{lock}\") ends in {left}: {rows}"
            );
        } else {
            let (name, left, owner) = (&self.spec.name, About(left), self.win.owner);
            write_line!(
                journal,
                level,
                "{name:?}: not extended, {left} left, {owner:?}: {rows}"
            );
        }
    }

    /// Ends everything that belongs to the hold and notifies the listeners.
    fn announce(&self, lost: Lost) {
        self.shared.schedule.remove(self.id);
        self.remove_owner();
        self.shared.queues.end_hold(&self.spec.commands, self.id);
        let mut state = self.state.lock();
        state.announced = Some(lost.clone());
        let listeners = std::mem::take(&mut state.listeners);
        let early = std::mem::take(&mut state.early);
        let reached = state.hold.reached;
        drop(state);
        self.shared.fanout.flush(reached);
        early.notify(&lost, &self.shared.callbacks);
        self.notify(&lost, listeners);
    }

    /// Of a release: whether it is confirmed, or how it finds the lock lost.
    fn record_end(&self, end: Result<bool, LostReason>) {
        let lock = self.spec.observed();
        let held = Moment::now().since(self.win.sent.moment);
        self.shared.fanout.journal.record(match end {
            Ok(confirmed) => Event::Released {
                lock,
                held,
                confirmed,
            },
            Err(why) => Event::Lost { lock, held, why },
        });
    }

    fn notify(&self, lost: &Lost, listeners: Listeners) {
        let age = self.state.lock().hold.promises.age(Moment::now());
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
            About(age),
            lost.reason.to_string().trim_start_matches("lock lost: "),
            self.win.owner
        );
        listeners.notify(lost, &self.shared.callbacks);
    }
}

impl Due for HoldInner {
    fn id(&self) -> u64 {
        self.id
    }

    fn on_due(self: Arc<Self>, batch: &mut Enqueued) {
        self.step(|state, now| {
            state.note_grants(&self.win, now.moment);
            if let Some(extension) = state.hold.on_due(now, &self.shared.fanout) {
                self.send(state, extension, batch);
            }
            if state.hold.is_held() {
                return self.plan(state, now);
            }
            // Released: now, if the lock was kept.
            if let Some(kept_until) = state.kept_until.filter(|_| !state.hold.is_lost()) {
                let wait = kept_until.saturating_duration_since(now.tick);
                let due = Arc::<HoldInner>::clone(&self);
                if !wait.is_zero() && self.shared.schedule.enter(due, wait) {
                    return;
                }
                self.release_rest(state, state.hold.reached);
                batch.asked = batch.asked.union(state.hold.reached);
            }
            self.shared.schedule.remove(self.id);
        });
    }

    fn ends_in(&self, now: Moment) -> Duration {
        self.state.lock().hold.left(now).unwrap_or_default()
    }

    fn hold(&self, is_failing: bool) -> Option<HeldLock> {
        let Now { moment, tick } = Now::read();
        let mut state = self.state.lock();
        state.note_grants(&self.win, moment);
        let hold = &state.hold;
        let left = hold.left(moment).ok()?;
        let kept = hold.promises.kept(moment);
        let is_asked_for = !is_failing || hold.renewal != Renewal::Confirmed;
        drop(state);
        let fanout = &self.shared.fanout;
        let missing = fanout.voting(tick).without(kept);
        is_asked_for.then(|| HeldLock {
            lock: self.spec.observed(),
            token: self.token,
            age: moment.since(self.win.sent.moment),
            left,
            missing_on: fanout.ids().filter(|it| missing.contains(*it)).collect(),
        })
    }

    fn stop(self: Arc<Self>) -> bool {
        let news = self
            .step_only(|state, _| state.hold.lose(LostReason::ShutDown))
            .1;
        !news.is_empty()
    }

    fn announce_stop(self: Arc<Self>) {
        self.carry_out(&[News::Lost(LostReason::ShutDown)]);
    }
}

/// An extension sent, and where its answers go.
struct SentExtension {
    lock: Arc<HoldInner>,
    extension: Extension,
}

impl ReplyHandler for SentExtension {
    fn deliver(&self, node: NodeId, answer: Answer, _reached: bool) -> bool {
        let SentExtension { lock, extension } = self;
        // RACE: T1 sends an extension; the lock is lost; T2, a node, sets the key, which is in the
        // way of others. Therefore T1 releases it there.
        let is_set = answer.is(LockStatus::Healed);
        let to = NodeSet::from_iter(is_set.then_some(node));
        let counted = lock.step(|state, now| {
            let counted = state
                .hold
                .on_answer(extension, node, &answer, now, &lock.shared.fanout);
            if state.hold.has_changed() {
                lock.plan(state, now);
            }
            if is_set && state.hold.is_lost() {
                lock.release_rest(state, to);
            }
            counted
        });
        lock.shared.fanout.flush(to);
        counted
    }

    fn is_open(&self) -> bool {
        self.lock.state.lock().hold.is_open(&self.extension)
    }
}

/// After its release, which undoes earlier hand-overs.
impl Drop for HoldInner {
    fn drop(&mut self) {
        self.remove_owner();
    }
}
