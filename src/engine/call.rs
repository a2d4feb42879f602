//! A call between threads: its own, the workers with answers and hand-overs, and those that release
//! a lock of its manager.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::call::Call;
use crate::call::steps::{Ask, TakeBack, Terms, UNDECIDED_MAX};
use crate::config::Config;
use crate::engine::nodes::fanout::{Broadcast, Fanout, Recipients};
use crate::engine::park::Parker;
use crate::engine::round::Pending;
use crate::engine::spec::LockSpec;
use crate::ids::{ClientId, NodeId, NodeSet, OwnerToken};
use crate::logic::ballot::Votes;
use crate::logic::tally::ReleaseRound;
use crate::logic::{lease, pause, quorum};
use crate::session::pending_command::ReplyHandler;
use crate::sys::sync::Mutex;
use crate::time::{self, Now, Tick};
use crate::wire::{Command, Entering, QueueEntry, QueuePolicy, QueueUpdate};

/// Life of a waiting list in longest pauses, so that live calls do not drop out.
const PAUSES_IN_A_LIFE: u32 = 3;
/// Time in which a leaving call is worth a command. Later a node drops the call when it comes first
/// in its list: see `scripts/handover.lua`.
const LEAVE_FOR: Duration = Duration::from_secs(60);

/// Limit of a call's wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// One attempt.
    None,
    /// Until then.
    Until(Tick),
    /// As long as it takes.
    Forever,
}

/// One call.
pub(crate) struct CallInner {
    pub(crate) spec: Arc<LockSpec>,
    /// Its entry in the lists of the nodes; none for a try.
    pub(crate) entry: Option<QueueEntry>,
    pub(crate) terms: Terms,
    pub(crate) parker: Arc<Parker>,
    pub(super) call: Mutex<Call>,
}

impl CallInner {
    /// A call that begins now. `client`: of this manager.
    pub(crate) fn new(
        spec: &Arc<LockSpec>,
        config: &Config,
        nodes: usize,
        client: ClientId,
        patience: WaitLimit,
    ) -> Arc<CallInner> {
        let life = pause::longest_pause(config.retry_max).saturating_mul(PAUSES_IN_A_LIFE);
        let life = lease::millis(life);
        let entry = QueueEntry { client, life };
        let began = Now::read();
        let now = began.tick;
        let (rounds, until) = match patience {
            WaitLimit::None => (Some(UNDECIDED_MAX), Some(now)),
            WaitLimit::Until(until) if until <= now => (Some(1), Some(now)),
            WaitLimit::Until(until) => (None, Some(until)),
            WaitLimit::Forever => (None, None),
        };
        // Time for a connection, a turn or a raise, and a round.
        let timeout = config.response_timeout;
        let slack = config
            .connect_timeout
            .saturating_add(timeout.saturating_mul(2));
        let end = until.and_then(|it| it.checked_add(slack));
        // For the turns of all rounds of a try together.
        let turn_until = now.checked_add(timeout).min(end);
        let commands = &spec.commands;
        let terms = Terms {
            nodes,
            rule: spec.rule(),
            ttl: spec.ttl(),
            margin: config.margin,
            names: Arc::clone(&spec.names),
            is_single: commands.multi_keys.is_empty() && !commands.has_slots,
            rounds,
            began,
            until: rounds.map_or(until, |_| turn_until),
            end,
            response_timeout: timeout,
            pauses: (config.retry_min, config.retry_max),
            outage_timeout: config.outage_timeout,
        };
        Arc::new(CallInner {
            spec: Arc::clone(spec),
            entry: terms.waits().then_some(entry),
            terms: terms.clone(),
            parker: Arc::default(),
            call: Mutex::new(Call::new(terms)),
        })
    }

    /// Locks, steps, unlocks.
    pub(crate) fn step<T>(&self, step: impl FnOnce(&mut Call) -> T) -> T {
        step(&mut self.call.lock())
    }

    /// Reads the answers to the last acquire, late ones included.
    pub(crate) fn with_votes(&self, look: impl FnOnce(&Votes)) {
        look(self.call.lock().votes());
    }

    /// Sends the acquire of a round.
    pub(crate) fn ask(self: &Arc<Self>, ask: &Ask, fanout: &Fanout) {
        let policy = QueuePolicy {
            since: ask.since,
            entry: self.entry,
            enters: ask.enters,
        };
        let ttl_ms = lease::millis(self.spec.ttl());
        let commands = &self.spec.commands;
        let command = commands.acquire(ask.owner.token, ttl_ms, ask.proposal, &policy);
        let broadcast = Broadcast {
            recipients: Recipients::ReadyMajority,
            ..Broadcast::new(command, &self.round(ask.round))
        };
        let taken = fanout.send(broadcast, time::tick());
        self.call.lock().on_sent(ask.round, taken);
    }

    /// Sends another command of a round to all nodes.
    pub(crate) fn send(self: &Arc<Self>, round: u32, command: Command, fanout: &Fanout) {
        fanout.send(Broadcast::new(command, &self.round(round)), time::tick());
    }

    fn round(self: &Arc<Self>, round: u32) -> Arc<CallRound> {
        Arc::new(CallRound {
            call: Arc::clone(self),
            round,
        })
    }

    /// Sends a release of a lost round. Returns the round of its answers, if nodes have granted
    /// something.
    pub(crate) fn take_back(
        &self,
        release: TakeBack,
        fanout: &Fanout,
    ) -> Option<Arc<Pending<ReleaseRound>>> {
        let to = release.to;
        let round = (release.grants != 0)
            .then(|| Pending::among(fanout, ReleaseRound::new(release.grants), Some(to)));
        let command = self.release_command(release, fanout);
        let release = Broadcast::release(command, to, self.spec.ttl());
        fanout.send(release.answered_to(round.as_ref()), time::tick());
        round
    }

    /// Sends the release of a call that has left.
    pub(crate) fn leave(&self, release: TakeBack, fanout: &Fanout) {
        let to = release.to;
        let command = self.release_command(release, fanout);
        fanout.send(Broadcast::release(command, to, LEAVE_FOR), time::tick());
    }

    fn release_command(&self, release: TakeBack, fanout: &Fanout) -> Command {
        let update = match (self.entry, release.stays) {
            (None, _) => QueueUpdate::None,
            // A release hands the lock over to earlier calls, never to its own.
            (Some(entry), Some(stay)) => QueueUpdate::Enter(Entering {
                entry,
                since: stay.since,
                which: stay.which,
                member: self.spec.commands.member(stay.owner),
                yields: true,
            }),
            (Some(entry), None) => QueueUpdate::Leave(entry.client),
        };
        let offer = fanout.offer(release.above);
        self.spec.commands.release(release.owner, offer, update)
    }

    /// Enters the nodes' waiting lists by a release of the lock with this token, sent to the nodes
    /// `to`. `None` if the call is in the lists, is about to ask, or would get no message.
    pub(crate) fn enter_by_release(
        &self,
        fanout: &Fanout,
        token: u64,
        to: NodeSet,
    ) -> Option<(OwnerToken, Entering)> {
        let look = fanout.look();
        let since = look.time_for_all(self.terms.began.moment)?;
        let is_notified = quorum(fanout.nodes.len()) <= look.notifying();
        // An acquire of its own skips stalled nodes.
        if !is_notified || fanout.is_late(time::tick()) {
            return None;
        }
        self.enter(token, to, since)
    }

    /// The same, with its place if it has none.
    pub(crate) fn enter(
        &self,
        token: u64,
        to: NodeSet,
        since: u64,
    ) -> Option<(OwnerToken, Entering)> {
        let entry = self.entry?;
        let now = Now::read();
        let (owner, since) = self.step(|call| call.enter(token, to, since, draw_owner, now))?;
        let entering = Entering {
            entry,
            since,
            which: None,
            member: self.spec.commands.member(owner.token),
            yields: false,
        };
        Some((owner.token, entering))
    }
}

pub(crate) fn draw_owner() -> Result<OwnerToken, String> {
    OwnerToken::draw().map_err(|err| err.to_string())
}

/// A round of a call, and where its answers go.
pub(super) struct CallRound {
    call: Arc<CallInner>,
    round: u32,
}

impl ReplyHandler for CallRound {
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool {
        let now = Now::read();
        let step = |call: &mut Call| call.on_answer(self.round, node, answer, reached, now);
        let (counts, is_next) = self.call.step(step);
        if is_next {
            self.call.parker.wake();
        }
        counts
    }

    fn is_open(&self) -> bool {
        self.call.call.lock().is_open(self.round)
    }
}

#[cfg(test)]
impl CallInner {
    /// A try that every node has granted.
    pub(crate) fn granted(spec: &Arc<LockSpec>) -> Arc<CallInner> {
        let client = ClientId::draw().unwrap();
        let nodes = usize::from(NodeSet::MAX);
        let call = CallInner::new(spec, &Config::default(), nodes, client, WaitLimit::None);
        call.step(Call::grant_all);
        call
    }
}
