//! A held lock: what its nodes have promised, and the next step for it. Pure: no clock, no thread,
//! no log.
//!
//! ```text
//! Held ── its time is over, too few nodes have it, clocks step, the manager ends ──> Lost(reason)
//!   └─── its holder lets go in time ───────────────────────────────────────────────> Released
//! ```
//!
//! Neither is ever held again. While held, each answer of a node changes the [ledger](promises);
//! the ledger says how long the lease lasts. [`Hold::on_due`] is the plan: an extension, or the
//! time until the next step. An extension ends as *confirmed*, or as *failed*: then it is repeated
//! after a pause. Late answers count for the ledger all the same.
//!
//! An extension sets missing keys, where the counter is not above the number that a majority has
//! confirmed. A set key is a grant: it counts at once, on a server that may grant.

pub(crate) mod promises;

use std::time::Duration;

use crate::answer::Answer;
use crate::config::Margin;
use crate::error::LostReason;
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
    /// Extensions end here, and so does the lease.
    pub(crate) hold_until: Option<Moment>,
    /// The promise in each grant, with the token as its number. Its send is the start of its age.
    pub(crate) grant: Promise,
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

    /// Whether the node's clock has a known step forward at `since` or later.
    fn has_stepped(&self, node: NodeId, since: Tick) -> bool;

    /// See [`clock_offset::time_for_all`](crate::logic::clock_offset::time_for_all).
    fn time_for_all(&self, now: Moment) -> Option<u64>;

    /// Pause after an extension without a majority, with this time left of the lease.
    fn pause(&self, left: Duration, now: Tick) -> Duration;
}

/// What became of the last extension.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Renewal {
    #[default]
    Confirmed,
    Failed,
    /// The log has a line for it.
    FailureLogged,
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
    /// Time of the first extension, until confirmed or not needed: its promises are short, or a
    /// voting node may lack the lock.
    first_at: Option<Moment>,
    /// Whether all its promises are those of a hand-over.
    is_handed_over: bool,
    /// The extension under way, to the nodes without an answer.
    open: Option<Extension>,
    /// Nodes without an answer to a renewal. Its retries skip them.
    owed: NodeSet,
    /// Nodes that got the key anew from an extension, since the last confirmed one.
    healed: NodeSet,
    retry_at: Option<Moment>,
    /// Time of the last check of a lock in doubt.
    checked_at: Option<Tick>,
    /// Whether a node lacks the lock because the last extension was not allowed to set it.
    is_unset: bool,
    pub(crate) renewal: Renewal,
    logged_long: bool,
    /// Nodes that may have got a command of its owner.
    pub(crate) reached: NodeSet,
    /// Longest life that any command gave to its keys: a release is worth sending for this time.
    pub(crate) keep_releases_for: Duration,
    pub(crate) news: Vec<News>,
}

impl Hold {
    /// A hold that was won by the promises that follow.
    pub(crate) fn new(terms: Terms, is_handed_over: bool, reached: NodeSet, now: Moment) -> Hold {
        Hold {
            terms,
            phase: Phase::Held,
            promises: Promises::new(terms.nodes),
            number: terms.grant.number,
            confirmed: 0,
            first_at: now.checked_add(lease::FIRST_EXTENSION),
            is_handed_over,
            open: None,
            owed: NodeSet::default(),
            healed: NodeSet::default(),
            retry_at: None,
            checked_at: None,
            is_unset: false,
            renewal: Renewal::default(),
            logged_long: false,
            reached,
            keep_releases_for: terms.ttl,
            news: Vec::new(),
        }
    }

    /// Takes the answer of a node to the acquire. Not behind an extension. `is_short`: the key has
    /// the life of a hand-over.
    pub(crate) fn on_grant(
        &mut self,
        node: NodeId,
        answer: &Answer,
        is_granted: bool,
        is_short: bool,
        now: Moment,
    ) {
        if self.is_held() && self.promises.asked == 0 {
            let mut grant = self.terms.grant;
            let (start, token) = (grant.sent.moment, grant.number);
            let end = lease::first_use_until(start, self.terms.ttl, self.terms.margin);
            if is_short && let Some(end) = end {
                grant.until = end;
            }
            grant.until = self.capped(grant.until);
            let grant = is_granted.then_some(grant);
            self.promises
                .note(node, answer, grant, token, now, |_| false);
        }
    }

    fn capped(&self, until: Moment) -> Moment {
        let hold_until = self.terms.hold_until;
        hold_until.map_or(until, |it| until.earliest(it))
    }

    pub(crate) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost(_))
    }

    /// Time left of the lease, or how the lock was lost. The clock decides, announced or not.
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

    /// The same as [`Hold::left`], and ends the hold if its time is over: a clock that is set back
    /// must not make the lock held again.
    ///
    /// RACE: T1 sends an extension; the lease ends; T2 brings the answer. Therefore the lock stays
    /// lost: another client may have held it in between.
    pub(crate) fn end_by_clock(&mut self, now: Moment) -> Result<Duration, LostReason> {
        let left = self.left(now);
        if let Err(reason) = left {
            self.lose(reason);
        }
        left
    }

    /// Ends the hold for its holder, in time: the end of each node's promise. Otherwise how it was
    /// lost.
    pub(crate) fn release(&mut self, now: Moment) -> Result<Vec<Option<Moment>>, LostReason> {
        self.end_by_clock(now)?;
        self.phase = Phase::Released;
        self.open = None;
        Ok(self.promises.ends(now))
    }

    /// An extension by its holder, for `ttl`, to all nodes. Otherwise how it was lost.
    pub(crate) fn extend(
        &mut self,
        ttl: Duration,
        now: Now,
        ends_at: Tick,
        servers: &impl Servers,
    ) -> Result<Extension, LostReason> {
        self.end_by_clock(now.moment)?;
        Ok(self.ask(ttl, None, None, ends_at, now, servers))
    }

    /// Begins an extension for `ttl`, and not beyond `end`. `owed`: nodes without the command if no
    /// caller waits for it.
    fn ask(
        &mut self,
        ttl: Duration,
        end: Option<Moment>,
        owed: Option<NodeSet>,
        ends_at: Tick,
        now: Now,
        servers: &impl Servers,
    ) -> Extension {
        // If no clock can show the end, the extension gains nothing.
        let until = lease::use_until(now.moment, ttl, self.terms.margin.of(ttl));
        let until = self.capped(until.unwrap_or(now.moment));
        let number = self.number;
        let to = self.promises.ask(owed.unwrap_or_default());
        let promise = Promise {
            round: self.promises.asked,
            sent: now,
            until: end.map_or(until, |it| until.earliest(it)),
            number,
        };
        // A raised number is confirmed first: a majority without this counter proves that there was
        // no newer holder.
        let sets = if self.promises.has_majority(|it| number <= it.number) {
            servers.settable(now.tick)
        } else {
            NodeSet::default()
        };
        self.retry_at = None;
        self.is_unset = false;
        self.keep_releases_for = self.keep_releases_for.max(ttl);
        *self.open.insert(Extension {
            promise,
            ttl,
            to,
            sets,
            ends_at,
            is_awaited: owed.is_none(),
        })
    }

    /// `taken`: the nodes that get the extension. The others refuse it.
    pub(crate) fn on_sent(&mut self, extension: &Extension, taken: NodeSet) {
        self.reached = self.reached.union(taken);
        if !extension.is_awaited {
            self.owed = self.owed.union(taken);
        }
    }

    /// Whether the end of the extension is open.
    pub(crate) fn is_open(&self, extension: &Extension) -> bool {
        let round = extension.promise.round;
        self.open.is_some_and(|it| it.promise.round == round)
    }

    /// Time until a majority has to confirm the lock early: node clocks were set forward so that
    /// the lock is in doubt then, or a missing key was not set.
    fn check_in(&self, Now { moment, tick }: Now, servers: &impl Servers) -> Option<Duration> {
        let due = if self.is_unset {
            // Another number needs a majority first.
            if self.promises.has_majority(|it| self.number <= it.number) {
                return Some(Duration::ZERO);
            }
            Duration::ZERO
        } else {
            self.promises
                .sure_left(|node, since| servers.has_stepped(node, since), moment)?
        };
        let pause = lease::check_pause(self.terms.ttl);
        let next = self.checked_at.and_then(|it| it.checked_add(pause));
        Some(next.map_or(due, |it| it.saturating_duration_since(tick).max(due)))
    }

    /// Time until the next step, with a renewal `after` this time since the last one, and whether
    /// it is a check; `None` if the hold is over.
    fn plan(&self, after: Duration, now: Now, servers: &impl Servers) -> Option<(Duration, bool)> {
        let Now { moment, tick } = now;
        let left = self.left(moment).ok()?;
        // Nothing is checked beside an extension under way.
        if let Some(open) = &self.open {
            let wait = open.ends_at.saturating_duration_since(tick).min(left);
            return Some((wait, false));
        }
        let is_renewed = self.terms.renewed || self.is_handed_over;
        let renewal = is_renewed.then(|| after.saturating_sub(self.promises.age(moment)));
        let first = self.first_at.map(|it| moment.until(it));
        let soonest = renewal.into_iter().chain(first).min();
        let retry = self.retry_at.map(|it| moment.until(it));
        // A failed check is repeated too, of a lease without renewal.
        let repeats = soonest.is_some() || self.checked_at.is_some();
        let due = retry.filter(|_| repeats).or(soonest);
        let check = self.check_in(now, servers);
        let wait = due.into_iter().chain(check).fold(left, Duration::min);
        Some((wait, check == Some(Duration::ZERO)))
    }

    /// Time until the next step; `None` if the hold is over.
    pub(crate) fn next_in(&self, now: Now, servers: &impl Servers) -> Option<Duration> {
        Some(
            self.plan(lease::renew_after(self.terms.ttl), now, servers)?
                .0,
        )
    }

    /// An extension, if due. The renewal thread may come early, for other locks that are due.
    pub(crate) fn on_due(&mut self, now: Now, servers: &impl Servers) -> Option<Extension> {
        let Now { moment, tick } = now;
        let Terms {
            ttl,
            nodes,
            margin,
            renewed,
            grant,
            response_timeout,
            ..
        } = self.terms;
        let left = self.end_by_clock(moment).ok()?;
        self.fail_overdue(now, servers);
        // Not in the first life of a handed-over lock, which is always short.
        if left <= lease::renew_after(ttl) && !self.is_handed_over {
            self.news.push(News::Expiring(self.reason_of_end(moment)));
        }
        if renewed && !self.logged_long && lease::LONG_HOLD <= moment.since(grant.sent.moment) {
            self.logged_long = true;
            self.news.push(News::HeldLong);
        }
        if self.first_at.is_some_and(|it| moment.has_reached(it)) && !self.is_handed_over {
            // A node without an answer may still grant the lock. While servers are slow, extensions
            // only make them slower.
            let known = servers.voting(tick).without(self.promises.open());
            if known.without(self.promises.kept(moment)).is_empty() {
                self.first_at = None;
            }
        }
        let (wait, is_check) = self.plan(lease::renew_with_others_after(ttl), now, servers)?;
        if !wait.is_zero() {
            return None;
        }
        // A doubt needs an answer from all nodes now.
        let owed = if is_check {
            self.checked_at = Some(tick);
            NodeSet::default()
        } else {
            self.owed
        };
        if nodes.saturating_sub(owed.len()) < quorum(nodes) {
            self.retry_at = moment.checked_add(servers.pause(left, tick));
            return None;
        }
        // A lease without renewal ends at the same time as before. Rounding lengthens the life of
        // the keys, not the lease.
        let end = if renewed {
            None
        } else if self.is_handed_over {
            // Its promises are short, and its ttl began when it was won.
            let rest = ttl.saturating_sub(lease::FIRST_EXTENSION);
            self.first_at
                .and_then(|it| lease::use_until(it, rest, margin.of(ttl)))
        } else {
            moment.checked_add(left)
        };
        let ttl = end.map_or(ttl, |it| margin.ttl_for(moment.until(it)));
        let ends_at = tick.checked_add(response_timeout).unwrap_or(tick);
        Some(self.ask(ttl, end, Some(owed), ends_at, now, servers))
    }

    /// Takes the answer of a node to an extension. Whether the extension was open.
    pub(crate) fn on_answer(
        &mut self,
        extension: &Extension,
        node: NodeId,
        answer: &Answer,
        now: Now,
        servers: &impl Servers,
    ) -> bool {
        let moment = now.moment;
        let Extension { promise, sets, .. } = *extension;
        if !extension.is_awaited {
            self.owed.remove(node);
        }
        let Ok(left) = self.end_by_clock(moment) else {
            return false;
        };
        let is_open = self.is_open(extension);
        let still_open = self.open.as_mut().filter(|_| is_open).map(|it| {
            it.to.remove(node);
            it.to
        });
        let kept = answer.is_extended().then_some(promise);
        let in_doubt = |since| servers.has_stepped(node, since);
        let token = self.terms.grant.number;
        let (is_anew, is_gone) = self
            .promises
            .note(node, answer, kept, token, moment, in_doubt);
        if is_anew {
            self.healed.insert(node);
            self.news.push(News::Healed(node));
        }
        if is_gone && self.promises.are_gone() {
            let left = Duration::ZERO;
            self.news.push(News::NotExtended { left });
            self.lose(LostReason::Gone);
            return is_open;
        }
        if self.confirmed < promise.round {
            self.confirm(left, moment);
        }
        if promise.round <= self.confirmed {
            self.compare_counters(promise, sets, now, servers);
        } else if still_open.is_some_and(NodeSet::is_empty) {
            self.fail(now, servers);
        }
        is_open
    }

    /// Looks whether a majority has confirmed the lock in a later round. `left`: before.
    fn confirm(&mut self, left: Duration, now: Moment) {
        let round = self.promises.round();
        if round <= self.confirmed {
            return;
        }
        self.confirmed = round;
        self.first_at = None;
        self.is_handed_over = false;
        self.retry_at = None;
        // The next renewal is no retry: a hanging node refuses its command.
        self.owed = NodeSet::default();
        self.healed = NodeSet::default();
        self.open.take_if(|it| it.promise.round <= round);
        let again = std::mem::take(&mut self.renewal) == Renewal::FailureLogged;
        let took = self.promises.age(now);
        self.news.push(News::Extended { took, left, again });
    }

    /// Behind a confirmed extension. A counter above its number comes from another call that was
    /// granted an emptied node and gave the lock back, from other readers, or from a newer holder.
    /// The next extension follows at once and lifts the counters of nodes with the key. If a
    /// majority has the key, there was no newer holder, and the extension after that sets missing
    /// keys.
    fn compare_counters(
        &mut self,
        promise: Promise,
        sets: NodeSet,
        now: Now,
        servers: &impl Servers,
    ) {
        let counters = || self.promises.counters();
        if counters().any(|it| self.number < it) {
            let time = servers.time_for_all(now.moment);
            let time = time.unwrap_or(now.moment.wall_micros());
            let spare = self.terms.nodes.saturating_sub(quorum(self.terms.nodes));
            let seen = token::largest_seen(counters(), time, spare);
            self.number = self.number.max(seen);
        }
        if promise.round == self.promises.asked {
            let gone = self.promises.gone();
            let unasked = || servers.settable(now.tick).without(sets);
            self.is_unset = !gone.is_empty()
                && (promise.number < self.number || !gone.both(unasked()).is_empty());
        }
    }

    /// Nodes on which a loss leaves a key that an extension has set: it protects no work, and keeps
    /// others out.
    pub(crate) fn left_behind(&self) -> NodeSet {
        self.promises.gone().union(self.healed)
    }

    /// Whether a step has changed the next one.
    pub(crate) fn has_changed(&self) -> bool {
        self.is_unset || !self.news.is_empty()
    }

    /// Ends the extension under way if its time is over.
    pub(crate) fn fail_overdue(&mut self, now: Now, servers: &impl Servers) {
        if self.open.is_some_and(|it| it.ends_at <= now.tick) {
            self.fail(now, servers);
        }
    }

    /// The extension under way has no majority.
    pub(crate) fn fail(&mut self, now: Now, servers: &impl Servers) {
        let Now { moment, tick } = now;
        let asked = self.open.take().map_or(tick, |it| it.promise.sent.tick);
        let Ok(left) = self.left(moment) else { return };
        self.news.push(News::NotExtended { left });
        let has_stepped = |node, since| servers.has_stepped(node, since);
        if self.promises.are_lost(has_stepped, asked, moment) {
            return self.lose(LostReason::NodeClock);
        }
        if self.renewal == Renewal::Confirmed {
            self.renewal = Renewal::Failed;
        }
        self.retry_at = moment.checked_add(servers.pause(left, tick));
    }

    /// Whether the end of the extension is open, or that of a later one, which confirms it too.
    pub(crate) fn awaits(&self, extension: &Extension, now: Moment) -> bool {
        self.open.is_some() && !self.promises.confirm(&extension.promise, now)
    }
}

#[cfg(test)]
mod tests;
