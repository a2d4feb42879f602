//! A held lock: what its nodes have promised, and the next step for it. Pure: no clock, no thread, no log.
//!
//! ```text
//!   Held ── its time is over, too few nodes have it, their clocks step, the manager ends ──> Lost(reason)
//!     └─── its holder lets go in time ─────────────────────────────────────────────────────> Released
//! ```
//!
//! Neither is ever held again. While held, each answer of a node changes the [ledger](promises); the ledger says how
//! long the lease lasts. [`Hold::on_due`] is the plan: an extension, or the time until the next step. An extension ends
//! as *confirmed*, or as *failed*: then it is repeated after a pause. Late answers count for the ledger all the same.
//!
//! An extension sets missing keys, where the counter is not above the number that a majority has confirmed. A set key
//! is a grant: it counts at once, on a server that may grant.

pub(crate) mod promises;

use std::time::Duration;

use crate::answer::{Answer, ExtendReply};
use crate::config::Margin;
use crate::error::{LostReason, NodeAnswer};
use crate::hold::promises::{Promise, Promises};
use crate::ids::{NodeId, NodeSet};
use crate::logic::{lease, quorum, token};
use crate::time::{Moment, Now, Tick};

/// What is fixed about a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) nodes: usize,
    pub(crate) ttl: Duration,
    pub(crate) margin: Margin,
    /// Whether it is extended before its end.
    pub(crate) renewed: bool,
    /// Start of its age.
    pub(crate) began: Moment,
    /// Extensions end here, and so does the lease.
    pub(crate) hold_until: Option<Moment>,
    pub(crate) token: u64,
    pub(crate) response_timeout: Duration,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Held,
    Lost(LostReason),
    Released,
}

/// A command that extends the lock on the nodes `to`, and sets it on those in `sets` that lack it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    pub(crate) promise: Promise,
    pub(crate) ttl: Duration,
    pub(crate) to: NodeSet,
    pub(crate) sets: NodeSet,
    /// Time to give it up.
    pub(crate) ends_at: Tick,
    /// Whether a caller waits for it.
    pub(crate) is_awaited: bool,
}

/// What a hold asks of the servers.
pub(crate) trait Servers {
    /// Connected nodes without a quarantine.
    fn voting(&self, now: Tick) -> NodeSet;

    /// Nodes on which a lost key may be set again: not for a while after a step of their clock.
    fn settable(&self, now: Tick) -> NodeSet;

    /// Nodes with a known clock step forward at `since` or later.
    fn stepped_since(&self, since: Tick) -> NodeSet;

    /// See [`clock_offset::time_for_all`](crate::logic::clock_offset::time_for_all).
    fn time_for_all(&self, now: Moment) -> Option<u64>;

    /// Pause after an extension without a majority, with this time left of the lease.
    fn pause(&self, left: Duration, now: Tick) -> Duration;
}

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum News {
    /// A majority confirmed an extension. `again`: after a failure that the log has.
    Extended {
        took: Duration,
        left: Duration,
        again: bool,
    },
    NotExtended {
        left: Duration,
    },
    /// A missing key was set.
    Healed(NodeId),
    /// The lock is about to be lost.
    Expiring(LostReason),
    HeldLong,
    Lost(LostReason),
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    terms: Terms,
    phase: Phase,
    pub(crate) promises: Promises,
    /// Number in its extensions: its token, or the largest counter shown by nodes, if larger.
    number: u64,
    /// The last confirmed round.
    confirmed: u64,
    /// Time of the first extension, until confirmed or not needed: its promises are short, or a voting node may lack
    /// the lock.
    first_at: Option<Moment>,
    /// Whether all its promises are those of a hand-over.
    is_handed_over: bool,
    /// The last extension.
    extension: Option<Extension>,
    /// Nodes without an answer to it; `None` once it is over.
    open: Option<NodeSet>,
    /// Nodes without an answer to a renewal. Its retries skip them.
    owed: NodeSet,
    retry_at: Option<Moment>,
    /// Time of the last check of a lock in doubt.
    checked_at: Option<Tick>,
    /// Whether a node lacks the lock because the last extension was not allowed to set it.
    is_unset: bool,
    /// Some between a failed extension and the next confirmed one: whether the log has a line for it.
    pub(crate) unextended: Option<bool>,
    logged_long: bool,
    /// Nodes that may have got a command of its owner.
    pub(crate) reached: NodeSet,
    /// Longest life that any command gave to its keys: a release is worth sending for this time.
    pub(crate) longest_ttl: Duration,
    pub(crate) news: Vec<News>,
}

impl Hold {
    /// A hold that was won by the promises that follow.
    pub(crate) fn new(terms: Terms, is_handed_over: bool, reached: NodeSet, now: Moment) -> Hold {
        Hold {
            terms,
            phase: Phase::Held,
            promises: Promises::new(terms.nodes),
            number: terms.token,
            confirmed: 0,
            first_at: now.checked_add(lease::FIRST_EXTENSION),
            is_handed_over,
            extension: None,
            open: None,
            owed: NodeSet::default(),
            retry_at: None,
            checked_at: None,
            is_unset: false,
            unextended: None,
            logged_long: false,
            reached,
            longest_ttl: terms.ttl,
            news: Vec::new(),
        }
    }

    /// Takes the answer of a node to the acquire, with its promise if that is a grant.
    pub(crate) fn on_grant(
        &mut self,
        node: NodeId,
        answer: &Answer,
        grant: Option<Promise>,
        now: Moment,
    ) {
        if self.is_held() && self.extension.is_none() {
            let grant = grant.map(|it| self.capped(it));
            self.promises
                .note(node, answer.clone(), grant, now, |_| false);
        }
    }

    fn capped(&self, promise: Promise) -> Promise {
        let hold_until = self.terms.hold_until;
        let until = hold_until.map_or(promise.until, |it| promise.until.earliest(it));
        Promise { until, ..promise }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost(_))
    }

    /// Time left of the lease, or how the lock was lost. The clock decides, announced or not. After a loss by the clock
    /// the caller must call [`Hold::end_by_clock`] with the same `now`: a clock that is set back must not make the
    /// lock held again.
    pub(crate) fn left(&self, now: Moment) -> Result<Duration, LostReason> {
        match self.phase {
            Phase::Held => match self.promises.left(now) {
                Duration::ZERO => Err(self.reason_of_end(now)),
                left => Ok(left),
            },
            Phase::Lost(reason) => Err(reason),
            // Only a thread in a race with the release comes here. For it the lock is gone.
            Phase::Released => Err(LostReason::Gone),
        }
    }

    pub(crate) fn ends_in(&self, now: Moment) -> Duration {
        self.left(now).unwrap_or_default()
    }

    /// How it is lost at its end without an extension.
    fn reason_of_end(&self, now: Moment) -> LostReason {
        let left = self.promises.left(now);
        let ends_there = |it| now.until(it) <= left;
        if self.terms.hold_until.is_some_and(ends_there) {
            LostReason::MaxHold
        } else if self.terms.renewed {
            LostReason::Expired
        } else {
            LostReason::LeaseOver
        }
    }

    /// Ends the hold for `reason`, if held.
    pub(crate) fn lose(&mut self, reason: LostReason) {
        if self.is_held() {
            self.phase = Phase::Lost(reason);
            self.open = None;
            self.news.push(News::Lost(reason));
        }
    }

    /// Ends the hold if its time is over.
    ///
    /// RACE: T1 sends an extension; the lease ends; T2 brings the answer. Therefore the lock stays lost: another
    /// client may have held it in between.
    pub(crate) fn end_by_clock(&mut self, now: Moment) {
        if let Err(reason) = self.left(now) {
            self.lose(reason);
        }
    }

    /// Ends the hold for its holder, in time: the end of each node's promise. Otherwise how it was lost.
    pub(crate) fn release(&mut self, now: Moment) -> Result<Vec<Option<Moment>>, LostReason> {
        self.end_by_clock(now);
        self.left(now)?;
        self.phase = Phase::Released;
        self.open = None;
        Ok(self.promises.ends(now))
    }

    /// Whether an extension may be sent now.
    fn may_extend(&self, now: Moment) -> bool {
        let is_over = |it| now.has_reached(it);
        self.left(now).is_ok() && !self.terms.hold_until.is_some_and(is_over)
    }

    /// An extension by its holder, for `ttl`, to all nodes. `None` if it is not held, or its longest hold is over.
    pub(crate) fn extend(
        &mut self,
        ttl: Duration,
        now: Now,
        ends_at: Tick,
        servers: &impl Servers,
    ) -> Option<Extension> {
        self.may_extend(now.moment).then(|| {
            let extension = self.extension(ttl, now, NodeSet::default(), ends_at, servers);
            self.ask(Extension {
                is_awaited: true,
                ..extension
            })
        })
    }

    /// An extension for `ttl` from now to all nodes but `owed`.
    fn extension(
        &self,
        ttl: Duration,
        now: Now,
        owed: NodeSet,
        ends_at: Tick,
        servers: &impl Servers,
    ) -> Extension {
        // If no clock can show the end, the extension gains nothing.
        let until = lease::use_until(now.moment, ttl, self.terms.margin.of(ttl));
        let promise = Promise {
            round: self.promises.next_round(),
            sent: now,
            until: until.unwrap_or(now.moment),
            number: self.number,
        };
        let all = (0..).map(NodeId::new).take(self.terms.nodes);
        let to = all.filter(|it| !owed.contains(*it)).collect();
        // A raised number is confirmed first: a majority without this counter proves that there was no newer holder.
        let is_confirmed = self.number <= self.promises.number();
        Extension {
            promise: self.capped(promise),
            ttl,
            to,
            sets: if is_confirmed {
                servers.settable(now.tick)
            } else {
                NodeSet::default()
            },
            ends_at,
            is_awaited: false,
        }
    }

    fn ask(&mut self, extension: Extension) -> Extension {
        self.retry_at = None;
        self.is_unset = false;
        self.open = Some(extension.to);
        self.promises.ask(extension.to);
        self.longest_ttl = self.longest_ttl.max(extension.ttl);
        self.extension = Some(extension);
        extension
    }

    /// `taken`: the nodes that get the extension. The others refuse it.
    pub(crate) fn on_sent(&mut self, extension: &Extension, taken: NodeSet) {
        self.reached = self.reached.union(taken);
        if !extension.is_awaited {
            self.owed = self.owed.union(taken);
        }
    }

    fn is_last(&self, extension: &Extension) -> bool {
        self.extension
            .is_some_and(|it| it.promise.round == extension.promise.round)
    }

    /// The last extension, while its end is open.
    fn under_way(&self) -> Option<Extension> {
        self.extension.filter(|_| self.open.is_some())
    }

    /// Whether the end of the extension is open.
    pub(crate) fn is_open(&self, extension: &Extension) -> bool {
        self.open.is_some() && self.is_last(extension)
    }

    /// Time until a majority has to confirm the lock early: node clocks were set forward so that the lock is in doubt
    /// then, or a missing key was not set.
    fn recheck_in(&self, Now { moment, tick }: Now, servers: &impl Servers) -> Option<Duration> {
        if self.is_unset && self.number <= self.promises.number() {
            return Some(Duration::ZERO);
        }
        let doubt = self
            .promises
            .sure_left(|it| servers.stepped_since(it), moment);
        let due = if self.is_unset {
            Duration::ZERO
        } else {
            doubt?
        };
        let pause = lease::check_pause(self.terms.ttl);
        let next = self.checked_at.and_then(|it| it.checked_add(pause));
        Some(next.map_or(due, |it| it.saturating_duration_since(tick).max(due)))
    }

    /// Time until the next step, with an extension `after` this time since the last one; `None` if it is over.
    fn due_in(&self, after: Duration, now: Now, recheck: Option<Duration>) -> Option<Duration> {
        let Now { moment, tick } = now;
        let left = self.left(moment).ok()?;
        if let Some(extension) = self.under_way() {
            return Some(extension.ends_at.saturating_duration_since(tick).min(left));
        }
        let mut wait = left;
        if (self.terms.renewed || self.is_handed_over) && self.may_extend(moment) {
            let due = after.saturating_sub(self.promises.age(moment));
            let first = self.first_at.map_or(due, |it| moment.until(it).min(due));
            wait = wait.min(self.retry_at.map_or(first, |it| moment.until(it)));
        }
        Some(wait.min(recheck.unwrap_or(wait)))
    }

    /// Time until the next step; `None` if the hold is over.
    pub(crate) fn next_in(&self, now: Now, servers: &impl Servers) -> Option<Duration> {
        // Nothing is checked beside an extension under way.
        let recheck = self
            .open
            .map_or_else(|| self.recheck_in(now, servers), |_| None);
        self.due_in(lease::renew_after(self.terms.ttl), now, recheck)
    }

    /// An extension, if due. The renewal thread may come early, for other locks that are due.
    pub(crate) fn on_due(&mut self, now: Now, servers: &impl Servers) -> Option<Extension> {
        let Now { moment, tick } = now;
        self.end_by_clock(moment);
        let Terms {
            ttl,
            nodes,
            renewed,
            began,
            ..
        } = self.terms;
        let left = self.left(moment).ok()?;
        // Not in the first life of a handed-over lock, which is always short.
        if left <= lease::renew_after(ttl) && !self.is_handed_over {
            self.news.push(News::Expiring(self.reason_of_end(moment)));
        }
        if renewed && !self.logged_long && lease::LONG_HOLD <= moment.since(began) {
            self.logged_long = true;
            self.news.push(News::HeldLong);
        }
        if self.under_way().is_some_and(|it| it.ends_at <= tick) {
            self.fail(now, servers);
        }
        if self.first_at.is_some_and(|it| moment.has_reached(it)) && !self.is_handed_over {
            // A node without an answer may still grant the lock. While servers are slow, extensions only make them
            // slower.
            let lacking = servers.voting(tick).without(self.promises.kept(moment));
            if lacking.both(self.promises.answered()).is_empty() {
                self.first_at = None;
            }
        }
        let recheck = self.recheck_in(now, servers);
        let after = lease::renew_with_others_after(ttl);
        if !self.due_in(after, now, recheck)?.is_zero() {
            return None;
        }
        let is_check = recheck == Some(Duration::ZERO);
        // A doubt needs an answer from all nodes now.
        let owed = if is_check {
            NodeSet::default()
        } else {
            self.owed
        };
        if nodes.saturating_sub(owed.len()) < quorum(nodes) {
            self.retry_at = moment.checked_add(servers.pause(left, tick));
            return None;
        }
        if is_check {
            self.checked_at = Some(tick);
        }
        let ends_at = tick
            .checked_add(self.terms.response_timeout)
            .unwrap_or(tick);
        if renewed || self.is_handed_over {
            return Some(self.ask(self.extension(ttl, now, owed, ends_at, servers)));
        }
        // Only for the time left. Rounding lengthens the life of the keys, not the lease.
        let rest = self.extension(self.terms.margin.ttl_for(left), now, owed, ends_at, servers);
        let until = moment
            .checked_add(left)
            .unwrap_or(moment)
            .earliest(rest.promise.until);
        let promise = Promise {
            until,
            ..rest.promise
        };
        Some(self.ask(Extension { promise, ..rest }))
    }

    /// Takes the answer of a node to an extension. Whether the extension was open.
    pub(crate) fn on_answer(
        &mut self,
        extension: &Extension,
        node: NodeId,
        answer: Answer,
        now: Now,
        servers: &impl Servers,
    ) -> bool {
        let moment = now.moment;
        if !extension.is_awaited {
            self.owed.remove(node);
        }
        let left = match self.left(moment) {
            Ok(left) => left,
            Err(reason) => {
                self.lose(reason);
                return false;
            }
        };
        let was_open = self.is_open(extension);
        let Extension { promise, .. } = *extension;
        let answer = self
            .promises
            .counted(node, answer, promise.number, self.terms.token);
        let kept = answer.is_extended().then_some(promise);
        let is_set = answer == Answer::Extend(ExtendReply::Healed);
        if kept.is_some() && (is_set || !self.promises.runs(node, moment)) {
            self.news.push(News::Healed(node));
        }
        self.promises.note(node, answer, kept, moment, |since| {
            servers.stepped_since(since).contains(node)
        });
        if let Some(open) = self.open.as_mut().filter(|_| was_open) {
            open.remove(node);
        }
        if self.promises.are_gone() {
            self.news.push(News::NotExtended {
                left: Duration::ZERO,
            });
            self.lose(LostReason::Gone);
            return was_open;
        }
        if self.confirmed < self.promises.round() {
            self.confirm(left, moment);
        }
        if promise.round <= self.confirmed {
            self.compare_counters(extension, now, servers);
        } else if was_open && self.open.is_some_and(NodeSet::is_empty) {
            self.fail(now, servers);
        }
        was_open
    }

    /// A majority has confirmed the lock in a later round. `left`: before.
    fn confirm(&mut self, left: Duration, now: Moment) {
        self.confirmed = self.promises.round();
        self.first_at = None;
        self.is_handed_over = false;
        self.retry_at = None;
        // The next renewal is no retry: a hanging node refuses its command.
        self.owed = NodeSet::default();
        if self
            .extension
            .is_some_and(|it| it.promise.round <= self.confirmed)
        {
            self.open = None;
        }
        let again = self.unextended.take() == Some(true);
        let took = self.promises.age(now);
        self.news.push(News::Extended { took, left, again });
    }

    /// Behind a confirmed extension. A counter above its number comes from another call that was granted an emptied
    /// node and gave the lock back, from other readers, or from a newer holder. The next extension follows at once and
    /// lifts the counters of nodes with the key. If a majority has the key, there was no newer holder, and the
    /// extension after that sets missing keys.
    fn compare_counters(&mut self, extension: &Extension, now: Now, servers: &impl Servers) {
        if let Some(largest) = self.promises.counters().max()
            && self.number < largest
        {
            let time = servers.time_for_all(now.moment);
            let time = time.unwrap_or(now.moment.wall_micros());
            let spare = self.terms.nodes.saturating_sub(quorum(self.terms.nodes));
            let seen = token::largest_seen(self.promises.counters(), time, spare);
            self.number = self.number.max(seen);
        }
        if self.is_last(extension) {
            let gone = self.promises.gone();
            let unasked = || servers.settable(now.tick).without(extension.sets);
            self.is_unset = !gone.is_empty()
                && (extension.promise.number < self.number || !gone.both(unasked()).is_empty());
        }
    }

    /// Whether a step has changed the next one.
    pub(crate) fn has_changed(&self) -> bool {
        self.is_unset || !self.news.is_empty()
    }

    /// The extension under way has no majority.
    pub(crate) fn fail(&mut self, now: Now, servers: &impl Servers) {
        let Now { moment, tick } = now;
        self.open = None;
        self.promises.close();
        let Ok(left) = self.left(moment) else { return };
        self.news.push(News::NotExtended { left });
        let asked = self.extension.map_or(tick, |it| it.promise.sent.tick);
        if self
            .promises
            .are_lost(|it| servers.stepped_since(it), asked, moment)
        {
            return self.lose(LostReason::NodeClock);
        }
        self.unextended.get_or_insert(false);
        self.retry_at = moment.checked_add(servers.pause(left, tick));
    }

    /// Whether the end of the extension is open, or that of a later one, which confirms it too.
    pub(crate) fn awaits(&self, extension: &Extension, now: Moment) -> bool {
        self.open.is_some() && !self.has_confirmed(extension, now)
    }

    /// Whether a majority has confirmed the extension, or a later one for as long.
    pub(crate) fn has_confirmed(&self, extension: &Extension, now: Moment) -> bool {
        self.promises.confirm(&extension.promise, now)
    }

    /// The rows of a report.
    pub(crate) fn rows(&self) -> Vec<NodeAnswer> {
        self.promises.rows()
    }
}

#[cfg(test)]
mod tests;
