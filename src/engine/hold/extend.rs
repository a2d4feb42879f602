//! The extensions of a held lock: renewal, those that its holder asks for, and what they show about the lock.
//!
//! An extension alone erodes: every node that is restarted without its data is one that no longer holds the lock, and
//! after the last one that a majority can do without, the lock is lost. So once a majority has confirmed the lock, its key
//! is set again where it is gone.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, ExtendReply};
use crate::engine::hold::held::{HeldLock, State};
use crate::engine::nodes::job::Sink;
use crate::engine::nodes::outgoing::{Enqueued, Outgoing};
use crate::engine::round::outcome::Grants;
use crate::engine::round::pending::Pending;
use crate::engine::schedule::{Due, Rest, Slot};
use crate::error::{ExtendError, Lost, Rows};
use crate::ids::{NodeId, NodeSet};
use crate::logic::confirmations::{Confirmations, Failed, Verdict};
use crate::logic::lease::{self, Extended, Lease};
use crate::logic::tally::{ExtendEnd, ExtendRound};
use crate::logic::{quorum, token, validity};
use crate::observer::{Event, Hold};
use crate::stats::count;
use crate::sys::logging::{Level, debug, write_line};
use crate::sys::sync::Mutex;
use crate::time::{self, About, Moment, Now, Tick};

/// An extension that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extending {
    ttl: Duration,
    pub(super) at: Now,
    /// When the lease ends if it is confirmed.
    until: Moment,
}

impl Due for HeldLock {
    fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Announces the end of the lease, or extends it if that is due. Called by the renewal thread.
    fn on_due(self: Arc<Self>, now: Now, batch: &mut Enqueued) -> Option<Duration> {
        let Now { moment, tick } = now;
        let fanout = &self.shared.fanout;
        let mut state = self.state.lock();
        if let Some(loss) = self.end_by_clock(&mut state, moment) {
            drop(state);
            self.announce(loss);
            return None;
        }
        if !state.lease.is_held() {
            return None;
        }
        if state.lease.is_renewed() && !state.said_long && lease::LONG_HOLD <= moment.since(self.began) {
            state.said_long = true;
            let name = &self.spec.name;
            write_line!(
                Level::Warn,
                "{name}: held for {} and still extended, {:?}",
                About(lease::LONG_HOLD),
                self.owner
            );
        }
        if let Some((pending, give_up_at)) = &state.renewal {
            if tick < *give_up_at {
                return Some(give_up_at.saturating_duration_since(tick).min(state.lease.ends_in(moment)));
            }
            let pending = Arc::clone(pending);
            drop(state);
            self.close(&pending);
            return None;
        }
        let doubt = self.doubt(&state, tick);
        let wait = |renew_after| {
            let due = state.renewed_at.checked_add(renew_after).unwrap_or(moment);
            state.lease.next_event(due, moment).min(doubt.unwrap_or(Duration::MAX))
        };
        // It may be looked at a little early, because others are due.
        if !wait(lease::renew_with_others_after(self.spec.ttl())).is_zero() {
            return Some(wait(lease::renew_after(self.spec.ttl())));
        }
        // A doubt has to be settled at once.
        let owed = if doubt.is_some() { NodeSet::default() } else { state.owed };
        if fanout.len().saturating_sub(owed.len()) < quorum(fanout.len()) {
            return Some(self.retry_after(&state, now));
        }
        if doubt.is_some() {
            state.checked_at = Some(tick);
        }
        let sent = self.next_extension(&state.lease, now);
        // Enqueued with the state locked: see `end`.
        let (pending, enqueued) = self.send_extension(&mut state, sent, Some(owed));
        let give_up = fanout.response_timeout();
        state.renewal = Some((pending, tick.checked_add(give_up).unwrap_or(tick)));
        batch.merge(enqueued);
        Some(give_up.min(state.lease.ends_in(moment)))
    }

    fn left(&self, now: Moment) -> Duration {
        self.state.lock().lease.ends_in(now)
    }

    fn hold(&self) -> Option<Hold> {
        let now = Moment::now();
        let until = self.state.lock().lease.valid_until(now).ok()?;
        let (age, left) = (now.since(self.began), now.until(until));
        Some(Hold { lock: self.spec.observed(), token: self.token, age, left })
    }

    fn on_stop(self: Arc<Self>) -> Option<Rest> {
        let loss = self.end_for(Lost::ShutDown)?;
        Some(Box::new(move || self.announce(loss)))
    }
}

impl HeldLock {
    /// How long until it has to be checked whether a majority holds the lock still, if clocks of nodes have been set
    /// forward so that this is in doubt.
    fn doubt(&self, state: &State, tick: Tick) -> Option<Duration> {
        let stepped = self.shared.fanout.stepped_since(state.confirmations.since());
        if stepped == NodeSet::default() || !state.confirmations().is_doubtful(stepped) {
            return None;
        }
        let next = state.checked_at.and_then(|it| it.checked_add(lease::check_pause(self.spec.ttl())));
        Some(next.map_or(Duration::ZERO, |it| it.saturating_duration_since(tick)))
    }

    /// An extension for `ttl` from `at`.
    fn extension(&self, ttl: Duration, at: Now) -> Extending {
        let margin = self.shared.config.margin.of(ttl);
        // Counted from before the send; a clock that cannot show it gives no extension.
        let until = validity::use_until(at.moment, ttl, margin).unwrap_or(at.moment);
        Extending { ttl, at, until }
    }

    /// An extension that nobody has asked for.
    pub(super) fn next_extension(&self, lease: &Lease, at: Now) -> Extending {
        if lease.is_renewed() {
            return self.extension(self.spec.ttl(), at);
        }
        // No more than what is left was asked for. Keys live longer by what is rounded, and the lease does not.
        let sent = self.extension(self.shared.config.margin.ttl_for(lease.ends_in(at.moment)), at);
        Extending { until: lease.end().earliest(sent.until), ..sent }
    }

    /// A node has confirmed the extension that was sent at `sent`.
    fn note_confirmed(&self, node: NodeId, sent: Tick) {
        let mut state = self.state.lock();
        if state.confirmations.since() == sent {
            state.confirmations = state.confirmations.and(NodeSet::from_iter([node]));
        }
    }

    /// Extends for `ttl` from now, and waits for the answers.
    pub(crate) fn extend(self: &Arc<Self>, ttl: Duration) -> Result<(), ExtendError> {
        if self.shared.is_forked() {
            return Err(Lost::Forked.into());
        }
        if let Some(problem) = self.shared.config.ttl_problem(ttl) {
            return Err(ExtendError::BadTtl(problem));
        }
        let ttl = validity::whole_millis(ttl);
        let sent = self.extension(ttl, Now::read());
        let (pending, enqueued) = {
            let mut state = self.state.lock();
            state.lease.valid_until(sent.at.moment)?;
            if !state.lease.may_extend(sent.at.moment) {
                return Err(Lost::MaxHold.into());
            }
            self.send_extension(&mut state, sent, None)
        };
        self.shared.fanout.hand_over(enqueued);
        let end = pending.wait(self.shared.fanout.deadline(sent.at.tick));
        self.on_extension_end(end, sent, &pending, NodeSet::default());
        match (end, self.remaining()) {
            (_, Err(lost)) => Err(lost.into()),
            (ExtendEnd::Confirmed, Ok(_)) => Ok(()),
            (ExtendEnd::Gone | ExtendEnd::NotConfirmed, Ok(_)) => {
                Err(ExtendError::NoQuorum { nodes: self.shared.fanout.report(pending.rows()) })
            }
        }
    }

    /// Enqueues an extension. A renewal looks after its own end, and leaves out nodes that owe the answer to one; a caller that
    /// waits for one asks all and looks after its end itself.
    pub(super) fn send_extension(
        self: &Arc<Self>,
        state: &mut State,
        sent: Extending,
        renewal: Option<NodeSet>,
    ) -> (Arc<Pending<ExtendRound>>, Enqueued) {
        let Extending { ttl, at: Now { tick, .. }, .. } = sent;
        let fanout = &self.shared.fanout;
        let hook = renewal.map(|_| {
            let this = Arc::clone(self);
            let hook: Box<dyn Fn(&ExtendEnd) + Send + Sync> = Box::new(move |end| this.on_renewal_end(*end, sent));
            hook
        });
        let pending = Arc::new(Pending::with_hook(fanout.len(), ExtendRound, hook));
        let ttl_ms = validity::millis(ttl);
        let keep = self.keeps_counter(state, tick);
        let (number, is_renewal) = (state.number, renewal.is_some());
        let command = self.spec.plan.extend(self.owner, ttl_ms, number, keep);
        let (round, lock) = (Arc::clone(&pending), Arc::clone(self));
        let extension = Arc::new(Extension { round, lock, sent, number, is_renewal, said: Mutex::default() });
        let outgoing = Outgoing::ask(command, &extension);
        let enqueued = match renewal {
            None => fanout.enqueue(outgoing, tick),
            Some(owed) => {
                let others: NodeSet = fanout.ids().collect::<NodeSet>().without(owed);
                let mut enqueued = fanout.enqueue(outgoing.patiently().to(Some(others)), tick);
                enqueued.leave_out(fanout.ids().filter(|it| owed.contains(*it)), &pending);
                state.owed = state.owed.union(enqueued.taken);
                enqueued
            }
        };
        pending.set_reached(enqueued.taken);
        state.reached = state.reached.union(enqueued.taken);
        state.longest_ttl = state.longest_ttl.max(ttl);
        (pending, enqueued)
    }

    /// Whether the extension that is sent at `tick` has to give the fencing counters their full life again.
    ///
    /// Noted as it is sent: a node that it does not come to has the time of many others.
    fn keeps_counter(&self, state: &mut State, tick: Tick) -> bool {
        let Some(life) = self.shared.config.fencing_ttl else { return false };
        let keep = lease::keep_counter_after(life) <= tick.saturating_duration_since(state.counter_kept);
        if keep {
            state.counter_kept = tick;
        }
        keep
    }

    /// Nodes that still have the lock, or have lost it, have shown these counters. Where they are above a reader's number, other
    /// readers have lifted them, or made them on a node that was emptied; or a writer has. Its next extension lifts those of the
    /// nodes that still have its entry: if a majority has it, there was no writer, and the others can be healed.
    fn note_counters(&self, shown: &[u64]) {
        if self.spec.plan.is_shared() && !shown.is_empty() {
            let fanout = &self.shared.fanout;
            let (time, spare) = (fanout.time_for_all(Moment::now()), fanout.len().saturating_sub(quorum(fanout.len())));
            let largest = token::largest_seen(shown.iter().copied(), time, spare);
            let mut state = self.state.lock();
            state.number = state.number.max(largest);
        }
    }

    /// Sets the key again on nodes that have lost it and have no counter above `number`. A majority has just confirmed the lock, and
    /// has no smaller one.
    fn heal(self: &Arc<Self>, nodes: NodeSet, number: u64, ttl: Duration) {
        let Now { moment, tick } = Now::read();
        let enqueued = {
            // RACE: enqueued with the state locked, like an extension: see `end`. Behind the release it would leave a key that
            // nobody deletes.
            let mut state = self.state.lock();
            if !state.lease.may_extend(moment) {
                return;
            }
            let fanout = &self.shared.fanout;
            let ttl_ms = validity::millis(ttl);
            let command = self.spec.plan.heal(self.owner, ttl_ms, number);
            let healing = Arc::new(Healing(Arc::clone(self)));
            let nodes = fanout.that_may_heal(nodes, tick);
            let enqueued = fanout.enqueue(Outgoing::ask(command, &healing).to(Some(nodes)), tick);
            state.reached = state.reached.union(enqueued.taken);
            enqueued
        };
        self.shared.fanout.hand_over(enqueued);
    }

    /// A renewal was decided, by a worker or by its time-out.
    fn on_renewal_end(self: &Arc<Self>, end: ExtendEnd, sent: Extending) {
        // It is put there before the state, with which it was sent, is unlocked.
        let renewal = self.state.lock().renewal.take();
        if let Some((pending, _)) = renewal {
            self.on_extension_end(end, sent, &pending, NodeSet::default());
        }
    }

    /// An extension has ended, in time or late: `late` have confirmed it after the end of the round.
    pub(super) fn on_extension_end(
        self: &Arc<Self>,
        end: ExtendEnd,
        sent: Extending,
        round: &Pending<ExtendRound>,
        late: NodeSet,
    ) {
        let now = Moment::now();
        let extended = round.nodes_with(Answer::is_extended).union(late);
        let counters = &self.shared.counters;
        match end {
            ExtendEnd::Confirmed => {
                let mut state = self.state.lock();
                let left = state.lease.ends_in(now);
                match state.lease.on_extended(sent.until, now) {
                    it @ (Extended::Longer | Extended::NotLonger) => {
                        if it == Extended::Longer {
                            state.confirmations = Confirmations::new(self.shared.fanout.len(), extended, sent.at.tick);
                            state.grants = Grants::default();
                        }
                        // The next renewal is no retry: a node that hangs is seen by the command that it refuses.
                        state.owed = NodeSet::default();
                        // One that was sent later may have been confirmed before.
                        if now.since(sent.at.moment) < now.since(state.renewed_at) {
                            state.renewed_at = sent.at.moment;
                        }
                        let again = std::mem::take(&mut state.said_not_extended);
                        drop(state);
                        count(&counters.extensions);
                        let took = now.since(sent.at.moment);
                        self.shared.fanout.upcall.tell(|| Event::Extended { lock: self.spec.observed(), took, left });
                        let level = if again { Level::Info } else { Level::Debug };
                        let (again, took) = (if again { "again " } else { "" }, About(took));
                        write_line!(level, "{}: extended {again}in {took}, {:?}", self.spec.name, self.owner);
                    }
                    Extended::TooLate => {
                        let loss = self.end_by_clock(&mut state, now);
                        drop(state);
                        self.note_failed_extension(Duration::ZERO);
                        if let Some(loss) = loss {
                            self.announce(loss);
                        }
                        return;
                    }
                    Extended::Released => return,
                }
            }
            ExtendEnd::Gone => {
                self.note_failed_extension(Duration::ZERO);
                self.lose(Lost::Gone);
                return;
            }
            ExtendEnd::NotConfirmed => {
                let left = self.state.lock().lease.ends_in(now);
                self.note_failed_extension(left);
                let gone = round.nodes_with(Answer::is_gone);
                if self.is_lost_by_clock(sent, extended, gone) {
                    self.lose(Lost::NodeClock);
                    return;
                }
                self.note_not_extended(round, now);
            }
        }
        self.plan_next(end == ExtendEnd::Confirmed, now);
    }

    fn note_failed_extension(&self, left: Duration) {
        count(&self.shared.counters.extensions_failed);
        self.shared.fanout.upcall.tell(|| Event::NotExtended { lock: self.spec.observed(), left });
    }

    /// Says that no majority has extended it, and how much time is left: once, until it is extended again, and for one lock
    /// a second.
    fn note_not_extended(&self, round: &Pending<ExtendRound>, now: Moment) {
        let (left, said) = {
            let mut state = self.state.lock();
            if !state.lease.is_held() {
                return;
            }
            let may_say = !state.said_not_extended;
            let said = may_say.then(|| self.shared.retries.lock().say(time::tick())).flatten();
            state.said_not_extended |= said.is_some();
            (state.lease.ends_in(now), said)
        };
        let level = if said.is_some() { Level::Warn } else { Level::Debug };
        let others = match said {
            None | Some(0) => String::new(),
            Some(unsaid) => format!("; {unsaid} other failed extensions since the last such line"),
        };
        let (name, left, report) = (&self.spec.name, About(left), || self.shared.fanout.report(round.rows()));
        write_line!(level, "{name}: not extended, {left} left, {:?}: {}{others}", self.owner, Rows(&report()));
    }

    /// How long a lock waits that no majority has extended. With its state locked.
    fn retry_after(&self, state: &State, Now { moment, tick }: Now) -> Duration {
        let (fanout, left) = (&self.shared.fanout, state.lease.ends_in(moment));
        let least = lease::retry_after(fanout.response_timeout());
        self.shared.retries.lock().wait(least, left, fanout.is_late(tick), tick).min(left)
    }

    /// Whether too few nodes hold the lock for sure, after an extension that `extended` and `gone` have answered so.
    fn is_lost_by_clock(&self, sent: Extending, extended: NodeSet, gone: NodeSet) -> bool {
        let confirmations = self.state.lock().confirmations();
        let stepped_since = |it: Tick| self.shared.fanout.stepped_since(it);
        let failed = Failed { extended, gone, stepped: stepped_since(sent.at.tick) };
        confirmations.judge(stepped_since(confirmations.since()), failed) == Verdict::Lost
    }

    /// Enters the lease in the schedule: for the next extension, or for its end.
    pub(crate) fn plan_next(self: &Arc<Self>, confirmed: bool, now: Moment) {
        let wait = {
            let state = self.state.lock();
            if !state.lease.is_held() {
                return;
            }
            let due = if confirmed {
                state.renewed_at.checked_add(lease::renew_after(self.spec.ttl()))
            } else {
                now.checked_add(self.retry_after(&state, Now { moment: now, tick: time::tick() }))
            };
            state.lease.next_event(due.unwrap_or(now), now)
        };
        self.shared.schedule.plan(Arc::<HeldLock>::clone(self), wait);
        // RACE: a release that ran between the look at the state and the entry has removed nothing. The entry would
        // find a released lease and do nothing, but would keep it in memory until then. Likewise a node's clock that was
        // set forward in between: the thread has looked at all leases but this one.
        let (is_held, doubt) = {
            let state = self.state.lock();
            (state.lease.is_held(), self.doubt(&state, time::tick()))
        };
        if !is_held {
            self.shared.schedule.remove(&self.slot);
        } else if let Some(doubt) = doubt {
            self.shared.schedule.plan(Arc::<HeldLock>::clone(self), doubt.min(wait));
        }
    }

    /// Ends an extension that has timed out; its end enters the lease in the schedule anew.
    fn close(self: &Arc<Self>, pending: &Arc<Pending<ExtendRound>>) {
        if !pending.close() {
            // RACE: a worker has decided it in this moment. Its end is dealt with there; entering the lease here as well
            // costs one look more.
            self.plan_next(false, Moment::now());
        }
    }
}

/// An extension under way.
struct Extension {
    round: Arc<Pending<ExtendRound>>,
    lock: Arc<HeldLock>,
    sent: Extending,
    number: u64,
    is_renewal: bool,
    said: Mutex<Said>,
}

/// What nodes have answered to an extension, in time or late.
#[derive(Default)]
struct Said {
    extended: NodeSet,
    /// Nodes that do not have the lock any more.
    gone: NodeSet,
    /// Those of them that have lost the key, and where it was not set again yet.
    to_heal: NodeSet,
    /// Counters that are not the number of the extension.
    shown: Vec<u64>,
    /// How it has ended late.
    end: Option<ExtendEnd>,
}

impl Extension {
    /// How it has ended for good, and whether just now, because of a late answer.
    ///
    /// RACE: what nodes say is noted before it is delivered to the round, and looked at after that. The thread that sees the end
    /// also sees every node that answered before, and one that delivers a later answer sees the end itself.
    fn end(&self, said: &mut Said) -> (Option<ExtendEnd>, bool) {
        match self.round.end() {
            Some(ExtendEnd::NotConfirmed) if said.end.is_none() => {
                let nodes = self.lock.shared.fanout.len();
                said.end = ExtendEnd::of(nodes, said.extended.len(), said.gone.len());
                (said.end, said.end.is_some())
            }
            Some(ExtendEnd::NotConfirmed) => (said.end, false),
            end => (end, false),
        }
    }
}

impl Sink for Extension {
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool {
        let Extension { round, lock, sent, number, .. } = self;
        if self.is_renewal {
            lock.state.lock().owed.remove(node);
        }
        let (extended, gone) = (answer.is_extended(), answer.is_gone());
        if extended || gone {
            let mut said = self.said.lock();
            let noted = if extended { &mut said.extended } else { &mut said.gone };
            noted.insert(node);
            if matches!(answer, Answer::Extend(ExtendReply::Gone { .. })) {
                said.to_heal.insert(node);
            }
            said.shown.extend(answer.counter());
        }
        let counted = round.deliver(node, answer, reached);
        let (end, late, heal, shown) = {
            let mut said = self.said.lock();
            let (end, is_late) = self.end(&mut said);
            let is_confirmed = end == Some(ExtendEnd::Confirmed);
            let (heal, shown) = if is_confirmed {
                (std::mem::take(&mut said.to_heal), said.shown.clone())
            } else {
                (NodeSet::default(), Vec::new())
            };
            (end, is_late.then_some(said.extended), heal, shown)
        };
        match (end, late) {
            (Some(end), Some(late)) if lock.state.lock().lease.is_held() => {
                lock.on_extension_end(end, *sent, round, late)
            }
            // The round does not need it any more, but one more node has confirmed the lock.
            (Some(ExtendEnd::Confirmed), None) if extended && !counted => lock.note_confirmed(node, sent.at.tick),
            _ => {}
        }
        lock.note_counters(&shown);
        if heal != NodeSet::default() {
            lock.heal(heal, *number, sent.ttl);
        }
        counted
    }

    fn is_open(&self) -> bool {
        self.round.is_open()
    }
}

/// Takes the answers to a healing, only to count them.
struct Healing(Arc<HeldLock>);

impl Sink for Healing {
    fn deliver(&self, node: NodeId, answer: Answer, _reached: bool) -> bool {
        if answer == Answer::Extend(ExtendReply::Healed) {
            count(&self.0.shared.counters.healed);
            debug!("{}: set again on {node}", self.0.spec.name);
            let HeldLock { spec, shared, .. } = &*self.0;
            shared.fanout.upcall.tell(|| Event::Healed { lock: spec.observed(), node });
        }
        true
    }

    /// It is not sent again to a server that has forgotten its scripts: the next extension comes soon enough.
    fn is_open(&self) -> bool {
        false
    }
}
