//! The extensions of a held lock: renewal, those that its holder asks for, and what they show about the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, ExtendReply};
use crate::engine::hold::healing::{Extension, Healing};
use crate::engine::hold::held::{Grants, HeldLock, State};
use crate::engine::nodes::outgoing::{Enqueued, Outgoing};
use crate::engine::round::pending::Pending;
use crate::error::{ExtendError, Lost, Rows};
use crate::ids::{NodeId, NodeSet};
use crate::logic::confirmations::{Confirmations, Failed, Verdict};
use crate::logic::lease::{self, Extended};
use crate::logic::tally::{ExtendEnd, ExtendRound};
use crate::logic::validity;
use crate::stats::count;
use crate::sys::logging::{Level, write_line};
use crate::time::{self, About, Moment, Tick};

/// An extension that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) ttl: Duration,
    pub(super) at: Moment,
    /// The same moment.
    pub(super) tick: Tick,
}

impl HeldLock {
    /// How long until it has to be checked whether a majority holds the lock still, if clocks of nodes have been set
    /// forward so that this is in doubt.
    pub(super) fn doubt(&self, state: &State, tick: Tick) -> Option<Duration> {
        let stepped = self.shared.fanout.stepped_since(state.confirmations.since());
        if stepped == NodeSet::default() || !state.confirmations().is_doubtful(stepped) {
            return None;
        }
        let next = state.checked_at.and_then(|it| it.checked_add(lease::check_pause(self.ttl)));
        Some(next.map_or(Duration::ZERO, |it| it.saturating_duration_since(tick)))
    }

    /// A node has confirmed the extension that was sent at `sent`.
    pub(crate) fn note_confirmed(&self, node: NodeId, sent: Tick) {
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
        let sent = Sent { ttl, at: Moment::now(), tick: time::tick() };
        let (pending, enqueued) = {
            let mut state = self.state.lock();
            state.lease.valid_until(sent.at)?;
            if !state.lease.may_extend(sent.at) {
                return Err(Lost::MaxHold.into());
            }
            self.send_extension(&mut state, sent, false)
        };
        self.shared.fanout.hand_over(enqueued, false);
        let end = pending.wait(self.shared.fanout.deadline(sent.tick));
        self.on_extension_end(end, sent, &pending);
        match (end, self.remaining()) {
            (_, Err(lost)) => Err(lost.into()),
            (ExtendEnd::Confirmed, Ok(_)) => Ok(()),
            (ExtendEnd::Gone | ExtendEnd::NotConfirmed, Ok(_)) => {
                Err(ExtendError::NoQuorum { nodes: self.shared.fanout.report(pending.rows()) })
            }
        }
    }

    /// Puts an extension in line. A renewal looks after its own end; whoever waits for one does that himself.
    pub(super) fn send_extension(
        self: &Arc<Self>,
        state: &mut State,
        sent: Sent,
        renewal: bool,
    ) -> (Arc<Pending<ExtendRound>>, Enqueued) {
        let Sent { ttl, tick, .. } = sent;
        let nodes = self.shared.fanout.len();
        let hook = renewal.then(|| {
            let this = Arc::clone(self);
            let hook: Box<dyn Fn(&ExtendEnd) + Send + Sync> = Box::new(move |end| this.on_renewal_end(*end, sent));
            hook
        });
        let pending = Arc::new(Pending::with_hook(nodes, ExtendRound, hook));
        let (ttl_ms, quarantine) = (validity::millis(ttl), self.shared.fanout.quarantine());
        let keep = self.keeps_counter(state, tick);
        let command = self.plan.extend(self.owner, ttl_ms, self.token.get(), quarantine, keep);
        let extension = Arc::new(Extension::new(Arc::clone(&pending), Arc::clone(self), ttl, tick));
        let enqueued = self.shared.fanout.enqueue(Outgoing::ask(command, &extension), tick);
        pending.set_reached(enqueued.taken);
        state.reached = state.reached.union(enqueued.taken);
        state.longest_ttl = state.longest_ttl.max(ttl);
        (pending, enqueued)
    }

    /// Whether the extension that is sent at `tick` has to give the fencing counters their full life again.
    ///
    /// On status as it is sent: a node that it does not come to has the time of many others.
    fn keeps_counter(&self, state: &mut State, tick: Tick) -> bool {
        let Some(life) = self.shared.config.fencing_ttl else { return false };
        let keep = lease::keep_counter_after(life) <= tick.saturating_duration_since(state.counter_kept);
        if keep {
            state.counter_kept = tick;
        }
        keep
    }

    /// Sets the key again on nodes that have lost it. A majority has just confirmed the lock.
    pub(crate) fn heal(self: &Arc<Self>, nodes: NodeSet, ttl: Duration) {
        let (now, tick) = (Moment::now(), time::tick());
        let enqueued = {
            // RACE: put in line with the state locked, like an extension: see `release`. Behind the release it would leave
            // a key that nobody deletes.
            let mut state = self.state.lock();
            if !state.lease.may_extend(now) {
                return;
            }
            let fanout = &self.shared.fanout;
            let (ttl_ms, quarantine) = (validity::millis(ttl), fanout.quarantine());
            let command = self.plan.heal(self.owner, ttl_ms, self.token.get(), quarantine);
            let healing = Arc::new(Healing(Arc::clone(self)));
            let nodes = fanout.that_may_heal(nodes, tick);
            let enqueued = fanout.enqueue(Outgoing::ask(command, &healing).to(Some(nodes)), tick);
            state.reached = state.reached.union(enqueued.taken);
            enqueued
        };
        self.shared.fanout.hand_over(enqueued, false);
    }

    pub(crate) fn note_healed(&self) {
        count(&self.shared.counters.healed);
    }

    /// A renewal was decided, by a worker or by its time-out.
    fn on_renewal_end(self: &Arc<Self>, end: ExtendEnd, sent: Sent) {
        // It is put there before the state, with which it was sent, is unlocked.
        let renewal = self.state.lock().renewal.take();
        if let Some((pending, _)) = renewal {
            self.on_extension_end(end, sent, &pending);
        }
    }

    fn on_extension_end(self: &Arc<Self>, end: ExtendEnd, sent: Sent, round: &Pending<ExtendRound>) {
        let now = Moment::now();
        let extended = round.nodes_with(|it| *it == Answer::Extend(ExtendReply::Extended));
        let counters = &self.shared.counters;
        match end {
            ExtendEnd::Confirmed => {
                let margin = self.shared.config.margin.of(sent.ttl);
                // The deadline is counted from before the send; a clock that cannot show it gives no extension.
                let until = validity::use_until(sent.at, sent.ttl, margin).unwrap_or(sent.at);
                let mut state = self.state.lock();
                match state.lease.on_extended(until, now) {
                    it @ (Extended::Longer | Extended::NotLonger) => {
                        if it == Extended::Longer {
                            state.confirmations = Confirmations::new(self.shared.fanout.len(), extended, sent.tick);
                            state.grants = Grants::default();
                        }
                        state.renewed_at = sent.at;
                        let again = std::mem::take(&mut state.said_not_extended);
                        drop(state);
                        count(&counters.extensions);
                        let level = if again { Level::Info } else { Level::Debug };
                        let again = if again { "again " } else { "" };
                        let took = About(now.since(sent.at));
                        write_line!(level, "{}: extended {again}in {took}, {:?}", self.name, self.owner);
                    }
                    Extended::TooLate => {
                        let loss = self.end_by_clock(&mut state, now);
                        drop(state);
                        count(&counters.extensions_failed);
                        if let Some(loss) = loss {
                            self.announce(loss);
                        }
                        return;
                    }
                    Extended::Released => return,
                }
            }
            ExtendEnd::Gone => {
                count(&counters.extensions_failed);
                self.lose(Lost::Gone);
                return;
            }
            ExtendEnd::NotConfirmed => {
                count(&counters.extensions_failed);
                let gone = round.nodes_with(Answer::is_gone);
                if self.has_lost_its_footing(sent, extended, gone) {
                    self.lose(Lost::NodeClock);
                    return;
                }
                self.note_not_extended(round, now);
            }
        }
        self.plan_next(end == ExtendEnd::Confirmed, now);
    }

    /// Says that no majority has extended it, and how much time is left: once, until it is extended again.
    fn note_not_extended(&self, round: &Pending<ExtendRound>, now: Moment) {
        let (left, said) = {
            let mut state = self.state.lock();
            if !state.lease.is_held() {
                return;
            }
            (state.lease.ends_in(now), std::mem::replace(&mut state.said_not_extended, true))
        };
        let level = if said { Level::Debug } else { Level::Warn };
        let rows = self.shared.fanout.report(round.rows());
        let (name, left, rows) = (&self.name, About(left), Rows(&rows));
        write_line!(level, "{name}: not extended, {left} left, {:?}: {rows}", self.owner);
    }

    /// Whether too few nodes hold the lock for sure, after an extension that `extended` and `gone` have answered so.
    fn has_lost_its_footing(&self, sent: Sent, extended: NodeSet, gone: NodeSet) -> bool {
        let confirmations = self.state.lock().confirmations();
        let stepped_since = |it: Tick| self.shared.fanout.stepped_since(it);
        let failed = Failed { extended, gone, stepped: stepped_since(sent.tick) };
        confirmations.judge(stepped_since(confirmations.since()), failed) == Verdict::Lost
    }
}
