//! Extensions of a held lock, by renewal or by its holder, and their results.
//!
//! Extensions alone erode a lock: every node restarted without its data no longer holds it. After too many of them the
//! lock is lost. So once a majority has confirmed the lock, *healing* sets lost keys again.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, ExtendReply};
use crate::engine::live_hold::held::{HoldInner, HoldState, Renewal};
use crate::engine::nodes::fanout::{Broadcast, Enqueued, Recipients};
use crate::engine::round::attempt::Grants;
use crate::engine::round::pending::Pending;
use crate::engine::schedule::{Announcement, Due, ScheduleEntry};
use crate::error::{ExtendError, LostReason, NodeAnswer, NodeFailure, Rows};
use crate::ids::{NodeId, NodeSet};
use crate::logic::ballot::Ballot;
use crate::logic::confirmations::{Confirmations, Failed};
use crate::logic::lease::{self, Extended};
use crate::logic::tally::{ExtendEnd, ExtendRound};
use crate::logic::{quorum, retries, token};
use crate::observer::{Event, HeldLock};
use crate::session::pending_command::ReplyHandler;
use crate::sys::logging::{Level, debug, warn, write_line};
use crate::sys::sync::Mutex;
use crate::time::{self, About, Moment, Now, Tick};

/// A sent extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extending {
    ttl: Duration,
    pub(super) at: Now,
    /// End of the lease, if the extension is confirmed.
    until: Moment,
}

impl Due for HoldInner {
    fn entry(&self) -> &ScheduleEntry {
        &self.entry
    }

    /// Announces the end of the lease, or extends it if due. Called by the renewal thread.
    fn on_due(self: Arc<Self>, now: Now, batch: &mut Enqueued) -> Option<Duration> {
        let Now { moment, tick } = now;
        let fanout = &self.shared.fanout;
        let mut state = self.state.lock();
        // Not in the first life of a handed-over lock, which is always short.
        if state.lease.is_held()
            && state.lease.ends_in(moment) <= lease::renew_after(self.spec.ttl())
            && !state.is_handed_over
        {
            let lost = self.lost_by(state.lease.reason_of_end());
            let early = std::mem::take(&mut state.early);
            drop(state);
            early.notify(&lost, &self.shared.callbacks);
            // RACE: T1, the renewal thread, unlocks; T2 releases the lock or loses it. Therefore T1 decides only now.
            state = self.state.lock();
        }
        if let Some(loss) = self.end_by_clock(&mut state, moment) {
            drop(state);
            self.announce(loss);
            return None;
        }
        if !state.lease.is_held() {
            // Released: now, if the lock was kept.
            if let Some(kept_until) = state.kept_until.filter(|_| state.lease.lost().is_none()) {
                let kept_for = kept_until.saturating_duration_since(tick);
                if !kept_for.is_zero() {
                    return Some(kept_for);
                }
                self.release_rest(&state);
                batch.asked = batch.asked.union(state.reached);
            }
            // RACE: T1, the renewal thread, plans the next step of the lock; T2 releases it and removes its entry; T1
            // enters it again. Therefore T1 removes it here, when that entry is due.
            drop(state);
            self.shared.schedule.remove(&self.entry);
            return None;
        }
        if state.lease.is_renewed()
            && !state.logged_long
            && lease::LONG_HOLD <= moment.since(self.began)
        {
            state.logged_long = true;
            warn!(
                self.shared.fanout.journal,
                "{:?}: held for {} and still extended, {:?}",
                self.spec.name,
                About(lease::LONG_HOLD),
                self.owner
            );
        }
        if let Some((renewal, give_up_at)) = &state.renewal {
            if tick < *give_up_at {
                return Some(
                    give_up_at
                        .saturating_duration_since(tick)
                        .min(state.lease.ends_in(moment)),
                );
            }
            let renewal = Arc::clone(renewal);
            drop(state);
            renewal.give_up();
            return None;
        }
        let is_first = state
            .first_extension
            .is_some_and(|it| moment.has_reached(it));
        if is_first && !state.is_handed_over {
            // A node without an answer may still grant the lock. While servers are slow, extensions only make them
            // slower.
            let confirmed = state.confirmations().confirmed;
            let lacking = fanout.voting(tick).without(confirmed);
            let owed = lacking.without(state.grants.answered());
            if lacking.without(owed).is_empty() {
                state.first_extension = None;
            }
        }
        let ttl = self.spec.ttl();
        let recheck = self.recheck_in(&state, tick);
        let due_in = |after| state.due_in(state.extend_at(after), recheck, moment);
        // The thread may come early, for other locks that are due.
        if !due_in(lease::renew_with_others_after(ttl)).is_zero() {
            return Some(due_in(lease::renew_after(ttl)));
        }
        // A doubt needs an answer from all nodes now.
        let owed = if recheck.is_some() {
            NodeSet::default()
        } else {
            state.owed
        };
        if fanout.nodes.len().saturating_sub(owed.len()) < quorum(fanout.nodes.len()) {
            return Some(self.retry_after(&state, now));
        }
        if recheck.is_some() {
            state.checked_at = Some(tick);
            state.unhealed = false;
        }
        let sent = self.next_extension(&state, now);
        // Enqueued with the state locked: see `end`.
        let (extension, enqueued) = self.send_extension(&mut state, sent, Some(owed));
        let give_up = fanout.response_timeout;
        state.renewal = Some((extension, tick.checked_add(give_up).unwrap_or(tick)));
        batch.asked = batch.asked.union(enqueued.asked);
        batch.refused.extend(enqueued.refused);
        Some(give_up.min(state.lease.ends_in(moment)))
    }

    fn ends_in(&self, now: Moment) -> Duration {
        self.state.lock().lease.ends_in(now)
    }

    fn hold(&self) -> Option<HeldLock> {
        let now = Moment::now();
        let state = self.state.lock();
        let until = state.lease.valid_until(now).ok()?;
        let confirmed = state.confirmations().confirmed;
        drop(state);
        let fanout = &self.shared.fanout;
        let missing = fanout.voting(time::tick()).without(confirmed);
        Some(HeldLock {
            lock: self.spec.observed(),
            token: self.token,
            age: now.since(self.began),
            left: now.until(until),
            missing_on: fanout.ids().filter(|it| missing.contains(*it)).collect(),
        })
    }

    fn is_unextended(&self) -> bool {
        self.state.lock().unextended.is_some()
    }

    fn on_stop(self: Arc<Self>) -> Option<Announcement> {
        let loss = self.end_for(LostReason::ShutDown)?;
        Some(Box::new(move || self.announce(loss)))
    }
}

impl HoldState {
    /// Time of the extension `after` this time since the last one, or since the lock was won. `None`: no clock shows
    /// it.
    fn extend_at(&self, after: Duration) -> Option<Moment> {
        let renew_at = self.renewed_at.checked_add(after)?;
        Some(
            self.first_extension
                .map_or(renew_at, |it| it.earliest(renew_at)),
        )
    }

    /// Time until the next step: the extension at `extend_at`, the end of the lease, or a `recheck`.
    fn due_in(
        &self,
        extend_at: Option<Moment>,
        recheck: Option<Duration>,
        now: Moment,
    ) -> Duration {
        let extend_at = extend_at.unwrap_or(now);
        let event = if self.is_handed_over && self.lease.may_extend(now) {
            // Also without renewal.
            now.until(extend_at).min(self.lease.ends_in(now))
        } else {
            self.lease.next_event(extend_at, now)
        };
        event.min(recheck.unwrap_or(Duration::MAX))
    }
}

impl HoldInner {
    /// Time until a majority has to confirm the lock early: node clocks were set forward so that the lock is in doubt,
    /// or a node cannot be healed before.
    fn recheck_in(&self, state: &HoldState, tick: Tick) -> Option<Duration> {
        let stepped = self.shared.fanout.stepped_since(state.confirmations.since);
        let is_sure = stepped.is_empty() || !state.confirmations().is_suspect(stepped);
        if is_sure && !state.unhealed {
            return None;
        }
        let next = state
            .checked_at
            .and_then(|it| it.checked_add(lease::check_pause(self.spec.ttl())));
        Some(next.map_or(Duration::ZERO, |it| it.saturating_duration_since(tick)))
    }

    /// An extension for `ttl` from `at`.
    fn extension(&self, ttl: Duration, at: Now) -> Extending {
        let margin = self.shared.config.margin.of(ttl);
        // Counted from before the send. If no clock can show the end, the extension gains nothing.
        let until = lease::use_until(at.moment, ttl, margin).unwrap_or(at.moment);
        Extending { ttl, at, until }
    }

    /// An extension by renewal.
    pub(super) fn next_extension(&self, state: &HoldState, at: Now) -> Extending {
        let lease = &state.lease;
        // The keys of a handed-over lock do not have their full life yet.
        if lease.is_renewed() || state.is_handed_over {
            return self.extension(self.spec.ttl(), at);
        }
        // Only for the time left. Rounding lengthens the life of the keys, not the lease.
        let sent = self.extension(
            self.shared.config.margin.ttl_for(lease.ends_in(at.moment)),
            at,
        );
        Extending {
            until: lease.end().earliest(sent.until),
            ..sent
        }
    }

    /// Extends for `ttl` from now and waits for the answers.
    pub(crate) fn extend(self: &Arc<Self>, ttl: Duration) -> Result<(), ExtendError> {
        self.remaining()?;
        if let Some(problem) = self.shared.config.ttl_problem(ttl) {
            return Err(ExtendError::BadTtl(problem));
        }
        let ttl = lease::whole_millis(ttl);
        let sent = self.extension(ttl, Now::read());
        let (extension, enqueued) = {
            let mut state = self.state.lock();
            if !state.lease.may_extend(sent.at.moment) {
                // Lost or released before, or the longest hold is over.
                drop(state);
                self.remaining()?;
                return Err(self.lost_by(LostReason::MaxHold).into());
            }
            self.send_extension(&mut state, sent, None)
        };
        let end = extension.wait(enqueued);
        self.remaining()?;
        if end == ExtendEnd::Confirmed {
            return Ok(());
        }
        Err(ExtendError::NoQuorum {
            nodes: self.shared.fanout.report(extension.round.rows()),
        })
    }

    /// Enqueues an extension. A renewal skips nodes without an answer to an earlier renewal. An extension with a
    /// [waiting](Extension::wait) caller goes to all.
    pub(super) fn send_extension(
        self: &Arc<Self>,
        state: &mut HoldState,
        sent: Extending,
        renewal: Option<NodeSet>,
    ) -> (Arc<Extension>, Enqueued) {
        let fanout = &self.shared.fanout;
        let tick = sent.at.tick;
        let number = state.number;
        let keep = self.shared.config.fencing_ttl.is_some_and(|life| {
            let kept_for = tick.saturating_duration_since(state.counter_kept);
            lease::keep_counter_after(life) <= kept_for
        });
        // Noted at the send: a node that misses this one gets many others.
        if keep {
            state.counter_kept = tick;
        }
        let keep = keep || self.waited.is_some();
        let mut command =
            self.spec
                .commands
                .extend(self.owner, lease::millis(sent.ttl), number, keep);
        if let Some(client) = self.waited {
            command.push(&client.0);
        }
        let extension = Arc::new(Extension {
            lock: Arc::clone(self),
            round: Pending::new(fanout.nodes.len(), ExtendRound),
            sent,
            number,
            is_renewal: renewal.is_some(),
            settled: Mutex::default(),
        });
        let broadcast = Broadcast::new(command, &extension);
        let enqueued = match renewal {
            None => fanout.enqueue(broadcast, tick),
            Some(owed) => {
                for node in fanout.ids().filter(|it| owed.contains(*it)) {
                    extension
                        .round
                        .leave_out(node, NodeAnswer::Failed(NodeFailure::Stalled));
                }
                let others = fanout.ids().collect::<NodeSet>().without(owed);
                let renewal = Broadcast {
                    to: Some(others),
                    recipients: Recipients::Patient,
                    ..broadcast
                };
                let enqueued = fanout.enqueue(renewal, tick);
                state.owed = state.owed.union(enqueued.taken);
                enqueued
            }
        };
        state.reached = state.reached.union(enqueued.taken);
        state.longest_ttl = state.longest_ttl.max(sent.ttl);
        (extension, enqueued)
    }

    fn note_failed_extension(&self, left: Duration) {
        self.shared.fanout.journal.record(Event::NotExtended {
            lock: self.spec.observed(),
            left,
        });
    }

    /// Logs a missing majority for an extension: once until the next confirmed one, and for one lock a second. If other
    /// locks are not extended either, the line has their number. Called with nothing locked.
    fn note_not_extended(&self, round: &Pending<ExtendRound>, now: Moment) {
        let (left, warns) = {
            let mut state = self.state.lock();
            if !state.lease.is_held() {
                return;
            }
            let named = state.unextended.unwrap_or(false);
            let warns = !named && self.shared.retries.lock().may_warn(time::tick());
            state.unextended = Some(named || warns);
            (state.lease.ends_in(now), warns)
        };
        let level = if warns { Level::Warn } else { Level::Debug };
        let report = || self.shared.fanout.report(round.rows());
        if warns
            && let Some((count, first)) =
                retries::summary(self.shared.schedule.unextended(), |lock| lock.left)
        {
            write_line!(
                self.shared.fanout.journal,
                level,
                "{count} locks not extended, the first (\"{}\") ends in {}: {}",
                first.lock,
                About(first.left),
                Rows(&report())
            );
            return;
        }
        write_line!(
            self.shared.fanout.journal,
            level,
            "{:?}: not extended, {} left, {:?}: {}",
            self.spec.name,
            About(left),
            self.owner,
            Rows(&report())
        );
    }

    /// Pause of a lock after an extension without a majority. Called with its state locked.
    fn retry_after(&self, state: &HoldState, Now { moment, tick }: Now) -> Duration {
        let fanout = &self.shared.fanout;
        let left = state.lease.ends_in(moment);
        let least = lease::retry_after(fanout.response_timeout);
        self.shared
            .retries
            .lock()
            .wait(least, left, fanout.is_late(tick), tick)
            .min(left)
    }

    /// Enters the lease in the schedule, for the next extension or its end, if the lock is held.
    pub(crate) fn plan_next(self: &Arc<Self>, confirmed: bool, now: Moment) {
        let extend_at = {
            let state = self.state.lock();
            if !state.lease.is_held() {
                return;
            }
            if confirmed {
                state.extend_at(lease::renew_after(self.spec.ttl()))
            } else {
                now.checked_add(self.retry_after(
                    &state,
                    Now {
                        moment: now,
                        tick: time::tick(),
                    },
                ))
            }
        };
        let due_in = || {
            let state = self.state.lock();
            state
                .lease
                .is_held()
                .then(|| state.due_in(extend_at, self.recheck_in(&state, time::tick()), now))
        };
        let Some(wait) = due_in() else { return };
        self.shared
            .schedule
            .enter(Arc::<HoldInner>::clone(self), wait);
        // RACE: T1 reads the state; T2 releases the lock and has no entry to remove; T1 enters a released lease. It
        // would stay in memory until due. Or T2, a node, sets its clock forward after the thread has looked at all
        // other leases. Therefore T1 reads the state again after the entry.
        match due_in() {
            None => self.shared.schedule.remove(&self.entry),
            Some(sooner) if sooner < wait => self
                .shared
                .schedule
                .enter(Arc::<HoldInner>::clone(self), sooner),
            Some(_) => {}
        }
    }
}

/// An extension under way, with its late answers.
pub(super) struct Extension {
    lock: Arc<HoldInner>,
    round: Pending<ExtendRound>,
    sent: Extending,
    number: u64,
    /// No caller waits for it.
    is_renewal: bool,
    settled: Mutex<Settled>,
}

/// Result of an extension so far.
#[derive(Default)]
struct Settled {
    end: Option<ExtendEnd>,
    /// Nodes with a lost key, where healing set it again.
    healed: NodeSet,
}

impl Extension {
    /// Waits for the answers and handles the end.
    pub(super) fn wait(&self, enqueued: Enqueued) -> ExtendEnd {
        let fanout = &self.lock.shared.fanout;
        fanout.dispatch(enqueued);
        let end = self.round.wait(fanout.deadline(self.sent.at.tick));
        self.settle(true);
        end
    }

    /// Handles the end once, and again if late answers change it. `first`: also the first end; otherwise its waiting
    /// caller handles it.
    fn settle(&self, first: bool) {
        let lock = &self.lock;
        let (end, is_late) = {
            // RACE: T1 and T2 bring late answers; T1 reads the end; T2's answer makes another of it. With this locked while the
            // end is read, T1 notes its end first or reads T2's. So each end is dealt with once, and none after a later one.
            let mut settled = self.settled.lock();
            let Some(end) = self.round.with_ballot(Ballot::end_for_good) else {
                return;
            };
            if settled.end == Some(end) || (settled.end.is_none() && !first) {
                return;
            }
            (end, settled.end.replace(end).is_some())
        };
        if is_late || self.is_renewal {
            let mut state = lock.state.lock();
            if !state.lease.is_held() {
                return;
            }
            // The state has this renewal: the next is sent only after its first end.
            if !is_late {
                state.renewal = None;
            }
        }
        let now = Moment::now();
        match end {
            ExtendEnd::Confirmed => self.confirm(now),
            ExtendEnd::Gone => {
                lock.note_failed_extension(Duration::ZERO);
                lock.lose(LostReason::Gone);
            }
            ExtendEnd::NotConfirmed => {
                lock.note_failed_extension(lock.ends_in(now));
                if self.is_lost_by_clock() {
                    lock.lose(LostReason::NodeClock);
                } else {
                    lock.note_not_extended(&self.round, now);
                }
            }
        }
        lock.plan_next(end == ExtendEnd::Confirmed, now);
    }

    /// A majority has confirmed the lock.
    fn confirm(&self, now: Moment) {
        let lock = &*self.lock;
        let fanout = &lock.shared.fanout;
        let at = self.sent.at;
        let took = now.since(at.moment);
        let mut state = lock.state.lock();
        let left = state.lease.ends_in(now);
        match state.lease.on_extended(self.sent.until, now) {
            Extended::Longer => {
                let extended = self.round.nodes_with(Answer::is_extended);
                state.confirmations = Confirmations::new(fanout.nodes.len(), extended, at.tick);
                state.grants = Grants::default();
            }
            Extended::NotLonger => {}
            Extended::TooLate => {
                let loss = lock.end_by_clock(&mut state, now);
                drop(state);
                lock.note_failed_extension(Duration::ZERO);
                if let Some(loss) = loss {
                    lock.announce(loss);
                }
                return;
            }
            Extended::Released => return,
        }
        state.first_extension = None;
        state.is_handed_over = false;
        let first_life = state.first_life.take();
        // The next renewal is no retry: a hanging node refuses its command.
        state.owed = NodeSet::default();
        // A later extension may have been confirmed before.
        if took < now.since(state.renewed_at) {
            state.renewed_at = at.moment;
        }
        let again = std::mem::take(&mut state.unextended) == Some(true);
        drop(state);
        drop(first_life);
        fanout.journal.record(Event::Extended {
            lock: lock.spec.observed(),
            took,
            left,
        });
        let level = if again { Level::Info } else { Level::Debug };
        write_line!(
            fanout.journal,
            level,
            "{:?}: extended {}in {}, {:?}",
            lock.spec.name,
            if again { "again " } else { "" },
            About(took),
            lock.owner
        );
    }

    /// Whether too few nodes certainly hold the lock after a failed extension.
    fn is_lost_by_clock(&self) -> bool {
        let confirmations = self.lock.state.lock().confirmations();
        let stepped_since = |it: Tick| self.lock.shared.fanout.stepped_since(it);
        let failed = Failed {
            extended: self.round.nodes_with(Answer::is_extended),
            gone: self.round.nodes_with(Answer::is_gone),
            stepped: stepped_since(self.sent.at.tick),
        };
        confirmations.are_lost(stepped_since(confirmations.since), failed)
    }

    /// Called after a majority confirmed the lock. Notes later confirmations and the shown counters. Heals nodes that
    /// have lost the key and whose counter is not above the number of this extension: the majority has no smaller one.
    ///
    /// A counter above that number comes from another call that was granted an emptied node and gave the lock back,
    /// from other readers, or from a newer holder. The next extension follows at once and lifts the counters of nodes
    /// with the key. If a majority has the key, there was no newer holder, and the other nodes can be healed.
    fn after_confirmation(&self) {
        let HoldInner {
            shared,
            spec,
            owner,
            ..
        } = &*self.lock;
        let fanout = &shared.fanout;
        let Now { moment, tick } = Now::read();
        let shown: Vec<_> = self.round.with_ballot(|ballot| {
            ballot
                .votes()
                .places()
                .filter_map(|(_, answer)| answer?.counter())
                .collect()
        });
        let nodes = fanout.nodes.len();
        let time = (!shown.is_empty())
            .then(|| fanout.time_for_all(moment).unwrap_or(moment.wall_micros()));
        let largest = time.map(|time| {
            token::largest_seen(shown.into_iter(), time, nodes.saturating_sub(quorum(nodes)))
        });
        let lost = {
            let mut settled = self.settled.lock();
            let lost = self
                .round
                .nodes_with(|it| matches!(it, Answer::Extend(ExtendReply::Gone { .. })));
            lost.without(std::mem::replace(&mut settled.healed, lost))
        };
        let (enqueued, unhealed) = {
            // RACE: T1 sends the healing; T2 releases the lock in between, and the healing leaves a key that nobody
            // deletes. Therefore T1 enqueues with the state locked, as extensions do: see `end`.
            let mut state = self.lock.state.lock();
            state.number = largest.map_or(state.number, |it| it.max(state.number));
            if state.confirmations.since == self.sent.at.tick {
                state.confirmations = state
                    .confirmations
                    .and(self.round.nodes_with(Answer::is_extended));
            }
            if lost.is_empty() || !state.lease.may_extend(moment) {
                return;
            }
            let command = spec
                .commands
                .heal(*owner, lease::millis(self.sent.ttl), self.number);
            let healing = Arc::new(Healing(Arc::clone(&self.lock)));
            let nodes = fanout.healable(lost, tick);
            let enqueued = fanout.enqueue(Broadcast::new(command, &healing).to(Some(nodes)), tick);
            state.reached = state.reached.union(enqueued.taken);
            state.unhealed |= self.number < state.number;
            (enqueued, state.unhealed)
        };
        fanout.dispatch(enqueued);
        if unhealed {
            self.lock.plan_next(true, moment);
        }
    }
}

impl Renewal for Extension {
    fn give_up(&self) {
        self.round.close();
        // RACE: T1, a worker, decides the round; T2, this thread, closes it. Therefore both call `settle`, which
        // handles an end once.
        self.settle(true);
    }
}

impl ReplyHandler for Extension {
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool {
        let Extension {
            lock,
            round,
            is_renewal,
            ..
        } = self;
        let mut state = lock.state.lock();
        if *is_renewal {
            state.owed.remove(node);
        }
        let had = state.had.union(state.grants.nodes()).contains(node);
        let raised = Some(self.number).filter(|it| lock.token.get() < *it);
        let answer = ExtendRound::counted(answer, had, raised);
        if answer.is_extended() {
            state.had.insert(node);
        }
        drop(state);
        let counted = round.deliver(node, answer, reached);
        self.settle(*is_renewal);
        if round.with_ballot(Ballot::end_for_good) == Some(ExtendEnd::Confirmed) {
            self.after_confirmation();
        }
        counted
    }

    fn is_open(&self) -> bool {
        self.round.is_open()
    }
}

/// Counts the answers to a healing.
struct Healing(Arc<HoldInner>);

impl ReplyHandler for Healing {
    fn deliver(&self, node: NodeId, answer: Answer, _reached: bool) -> bool {
        let is_healed = answer == Answer::Extend(ExtendReply::Healed);
        if is_healed || answer == Answer::Extend(ExtendReply::Extended) {
            self.0.state.lock().had.insert(node);
        }
        if is_healed {
            let HoldInner { spec, shared, .. } = &*self.0;
            debug!(
                shared.fanout.journal,
                "{:?}: its lost key was set again on {node}", spec.name
            );
            shared.fanout.journal.record(Event::Healed {
                lock: spec.observed(),
                node,
            });
        }
        true
    }

    /// Not sent again to a server without the script: the next extension follows soon.
    fn is_open(&self) -> bool {
        false
    }
}
