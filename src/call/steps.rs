//! What goes into the steps of a call, and what comes out.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Which;
use crate::call::lost::Lost;
use crate::config::Margin;
use crate::error::NodeFailure;
use crate::ids::{LockName, NodeId, NodeSet, OwnerToken};
use crate::logic::acquire_round::Rule;
use crate::time::{Moment, Now, Tick};

/// Rounds of one try, if contenders split the nodes between them or pushed each other's fencing
/// counters, so that possibly none got the lock. Otherwise a fleet that starts a job at the same
/// second would often find everyone refused and nobody at work.
pub(crate) const UNDECIDED_MAX: u32 = 4;

/// What is fixed about a call.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) nodes: usize,
    pub(crate) rule: Rule,
    pub(crate) ttl: Duration,
    /// Time by which leases end earlier for their holder than for the nodes.
    pub(crate) margin: Margin,
    /// Several names of the lock, in the order of its commands.
    pub(crate) names: Arc<[LockName]>,
    /// Whether it has one name and no slots: a hand-over is a vote.
    pub(crate) is_single: bool,
    /// Most rounds of a try; `None` for a call that waits, in the lists of the nodes.
    pub(crate) rounds: Option<u32>,
    pub(crate) began: Now,
    /// End of the wait; of a try, for its first round ticket.
    pub(crate) until: Option<Tick>,
    /// End of all rounds.
    pub(crate) end: Option<Tick>,
    pub(crate) response_timeout: Duration,
    /// Shortest and longest pause between rounds.
    pub(crate) pauses: (Duration, Duration),
    pub(crate) outage_timeout: Duration,
}

/// What a call asks of everything else.
pub(crate) trait View {
    /// See [`clock_offset::time_for_all`](crate::logic::clock_offset::time_for_all).
    fn time_for_all(&self, at: Moment) -> Option<u64>;

    /// Those of `nodes` whose grants do not count for commands sent at `asked`, with the reason.
    fn quarantined_of(&self, nodes: NodeSet, asked: Tick) -> Vec<(NodeId, NodeFailure)>;

    /// Number of nodes that can announce hand-overs.
    fn notifying(&self) -> usize;

    /// End of a round that begins now.
    fn deadline(&self, now: Tick) -> Tick;

    /// Start of the manager's outage.
    fn outage(&self) -> Option<Tick>;

    /// Whether to begin no further round.
    fn is_stopped(&self) -> bool;

    /// A round ticket, and the wait for it: the call keeps it until the round is over. `None` if
    /// none is free.
    fn take_turn(&self) -> Option<Duration>;

    /// A new owner, or why there is no randomness.
    fn draw(&self) -> Result<OwnerToken, String>;

    /// From 0 to 1.
    fn random(&self) -> f64;
}

/// What to do.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// Sleep until then, or until something comes. A round is under way.
    Sleep(Tick),
    /// The same between rounds.
    Rest(Option<Tick>),
    /// The same, as one of the calls that wait for a round ticket.
    AwaitTurn(Option<Tick>),
    Ask(Ask),
    /// Raises the counters to the token, on all nodes.
    Raise {
        round: u32,
        owner: OwnerToken,
        slot: Option<u8>,
        token: u64,
        deadline: Tick,
    },
    TakeBack(TakeBack),
    Won(Box<Win>),
    GiveUp(Why),
}

/// An acquire.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) round: u32,
    pub(crate) owner: Owner,
    pub(crate) deadline: Tick,
    pub(crate) proposal: u64,
    /// Its place in the lists.
    pub(crate) since: u64,
    /// Whether it enters the lists of refusing nodes.
    pub(crate) enters: bool,
}

/// A release of the owner of a lost round.
#[derive(Clone, Debug)]
pub(crate) struct TakeBack {
    pub(crate) owner: OwnerToken,
    pub(crate) to: NodeSet,
    /// Number of grants among them.
    pub(crate) grants: usize,
    /// The offer to the next owner is above it.
    pub(crate) above: u64,
    /// The call stays in the lists.
    pub(crate) stays: Option<Stay>,
}

/// The entry of a call that stays in the lists behind a release of its owner.
#[derive(Clone, Debug)]
pub(crate) struct Stay {
    pub(crate) owner: OwnerToken,
    pub(crate) since: u64,
    /// In the list of which of several locks.
    pub(crate) which: Which,
}

/// A won call.
#[derive(Clone, Debug)]
pub(crate) struct Win {
    pub(crate) owner: OwnerToken,
    pub(crate) token: u64,
    /// Whether the nodes got another proposal first.
    pub(crate) raised: bool,
    /// Clock reading before the first byte was sent.
    pub(crate) sent: Now,
    pub(crate) use_until: Moment,
    /// Whether nodes handed it over, for a short life.
    pub(crate) is_handed_over: bool,
    /// Nodes that may have got a command of the owner.
    pub(crate) reached: NodeSet,
    /// Slot of a semaphore. Other granted slots are given back.
    pub(crate) slot: Option<u8>,
    /// Nodes whose grant does not count: the key is lost, or they are quarantined.
    pub(crate) gone: NodeSet,
    /// Nodes that handed the lock over and took the raised token.
    pub(crate) handed: NodeSet,
    /// Nodes that may have granted another slot.
    pub(crate) others: NodeSet,
    pub(crate) took: Duration,
}

/// Why a call gives up.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Why {
    Stopped,
    TimeOver,
    /// Lost, and a further round would show nothing else.
    Hopeless,
    NoRandomness(String),
    /// There is no fencing token above those that nodes have shown.
    NoToken,
}

/// What is to be told.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// A round that lasted for a response timeout at most was answered, or not in time: it shows
    /// the load.
    Load { asked: Tick, timed_out: bool },
    /// Hand-overs to this owner are given back from now on.
    Forgotten(OwnerToken),
    /// A lost round. `pause`: until the next one.
    Lost { lost: Arc<Lost>, pause: Duration },
}

/// The owner of a call: one for all rounds, until a release of it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) token: OwnerToken,
    /// Owner of the call after that, if it keeps waiting.
    pub(crate) successor: OwnerToken,
    /// Nodes that may have got a command of it.
    pub(crate) reached: NodeSet,
    /// Whether some of them granted it the lock: the round claims the others.
    pub(super) claims: bool,
}

impl Terms {
    /// Whether the call waits, in the lists of the nodes.
    pub(crate) fn waits(&self) -> bool {
        self.rounds.is_none()
    }
}

impl Owner {
    pub(super) fn draw(draw: impl Fn() -> Result<OwnerToken, String>) -> Result<Owner, String> {
        Ok(Owner {
            token: draw()?,
            successor: draw()?,
            reached: NodeSet::default(),
            claims: false,
        })
    }
}
