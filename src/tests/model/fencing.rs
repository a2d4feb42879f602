//! The protocol in a small world: the shipped [`Call`] and the shipped [`Hold`], and nodes that do
//! what the scripts do.
//!
//! A few attempts at one lock on three nodes: acquire, raise, hold, extend, release. Each attempt has its own
//! connection to each node, on which its commands stay in order ([`Lines::InOrder`]); between connections there is no
//! order at all. Commands and answers can be delayed for ever, and an attempt can give up at any time. Other mishaps
//! come as often as the world says ([`Accidents`]): lost commands, commands that are executed twice, keys that vanish
//! early, nodes that restart with or without what they had stored, or have an older copy of it. Where keys last ([`Keys::Last`]), a key lasts for
//! as long as the attempt that counts on it. All states that can be reached are visited, but for those from which
//! nothing can go wrong any more.
//!
//! Checked, as far as a world claims it: see [`Violation`]. Each [`Flaw`] breaks the nodes or the driver on purpose, and
//! must then be found: it shows that the checks bite.
//!
//! Calls are tries: of one round, or of two where a client tries again. Left out: waiting calls,
//! which claim the rest of their grants and are handed locks (see `handover`), and answers that come
//! between a decision and the next step.
//!
//! [`Call`]: crate::call::Call
//! [`Hold`]: crate::hold::Hold
#![allow(
    clippy::print_stdout,
    reason = "how large the worlds are, for those who ask with --nocapture"
)]

mod ablations;
mod calls;
mod clients;
mod nodes;
mod proofs;
mod search;
mod state;

use self::search::{Findings, after_a_hold};
use self::state::*;
use super::*;
use crate::ids::NodeSet;
use crate::logic::acquire_round::Rule;
use crate::tests::model::ledgers::{Calm, Ledger, ROUNDS, Reply, Sent, all, ids};
use crate::tests::model::servers::{
    ALONE, Acquire, Caller, Extend, Key, Lock, Locks, Mistake, Plain, Release, Said, Server, Turn,
    Wants,
};

const NODES: usize = 3;
const LOCK: Locks = ALONE[0];

/// What must not happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Violation {
    /// Two win with one token.
    SameToken,
    /// An attempt that started after another had won has the smaller token.
    LaterStartSmallerToken,
    /// At a node that two winners count, their grants did not come in the order of their tokens.
    GrantsAgainstTokens,
    /// An extension that was sent after somebody had won with a larger token is confirmed.
    Resurrected,
    /// On a node that is part of a winner's majority, a key with a smaller token is extended or set again. Not so where
    /// nodes forget: an attempt that is over may do that, and takes it back with the release that follows.
    Revived,
    /// A command has left a key of an attempt that was released there before.
    Orphan,
    /// Two hold at a time.
    TwoHold,
    /// The later holder has the smaller token.
    LaterHoldSmallerToken,
}

/// What is true whatever becomes of keys and counters, but for how clocks go if counters are lost.
const FENCED: &[Violation] = &[
    Violation::SameToken,
    Violation::LaterStartSmallerToken,
    Violation::GrantsAgainstTokens,
    Violation::Resurrected,
];

/// What is true besides where nodes keep what they store until it expires.
const EXCLUSIVE: &[Violation] = &[Violation::TwoHold, Violation::LaterHoldSmallerToken];

/// What is true besides where nodes execute commands in their order, and do not forget.
const LEAVES_NOTHING: &[Violation] = &[Violation::Revived, Violation::Orphan];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    /// As long as the attempt that counts on them can act.
    Last,
    /// At any time.
    Vanish,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Clocks {
    /// What an attempt proposes is in [`World::proposals`].
    Any,
    /// A clock that is read later shows more than all numbers in use.
    Good,
    /// Nodes' clocks show the same time but for up to so much, and what a client proposes is what one of them shows,
    /// whatever its own clock is. Time passes only while a node is quarantined: by [`QUARANTINE`].
    Apart(u8),
    /// What a client proposes is what its own clock shows: the time, or so much more or less. Nodes refuse what is ahead of
    /// their clock by more than [`AHEAD`]. Their clocks show the same time but for up to `nodes`.
    OfClients { by: u8, nodes: u8 },
}

/// How far time goes on while a node is quarantined that has forgotten, where time goes on at all. More than counters can get
/// ahead by what two attempts raise them.
const QUARANTINE: u8 = 4;
const AHEAD: u8 = QUARANTINE / 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lines {
    InOrder,
    /// A node executes the commands of an attempt in any order.
    AnyOrder,
}

/// What keeps a node that forgot everything from voting until every attempt is over that was alive then, or has been
/// extended since by others.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guard {
    None,
    /// The node's record changes, so it refuses what compares the record until the client has synced it again. From then on the
    /// client knows that it forgot: what it grants, takes or extends does not count before the end of the quarantine, nor
    /// what it grants to an attempt that began before that.
    Record,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// With [`Mistake::TakesAnyCounter`] the client also counts a grant after the quarantine, whenever it asked for that.
    Server(Mistake),
    /// The client has keys set up to a number that a node has just shown, before a majority has confirmed that.
    SetsUnconfirmed,
    /// A node compares the record in no acquire.
    AcquiresWithoutRecord,
    /// A node compares the record in no extension.
    ExtendsWithoutRecord,
    /// The client counts nodes that granted, but did not accept.
    CountsRefusers,
    /// The client takes N/2 nodes for a majority.
    HalfIsEnough,
    /// All attempts of a client use one value for the key.
    ReusesValue,
    /// The client does not look at the clock when a majority has granted.
    IgnoresDeadline,
    /// The client believes in an extension that was confirmed after the deadline.
    LateExtensionRevives,
    /// The client counts the promise of one node as that of all.
    MinorityExtends,
    /// The client counts extensions by a node in quarantine, where a key may stand that nobody was to count.
    CountsExtensionsInQuarantine,
    /// The client takes a key that a node has set for one that was there, and counts it in quarantine.
    CountsSetKeysInQuarantine,
    /// The client sends an extension behind the release.
    ExtendsBehindRelease,
    /// The client counts a grant after the quarantine, whenever it asked for that.
    CountsWhatWasAskedBefore,
    /// A node is quarantined until nobody is left who knew it before, and no longer.
    QuarantinedForNoTime,
    /// A node refuses no proposal that is ahead of its clock.
    RefusesNoProposal,
    /// A node refuses only what is ahead of its clock by more than its quarantine.
    RefusesAheadOfQuarantine,
    /// The client counts a node that refused its proposal.
    CountsAhead,
}

impl Flaw {
    /// Whether a node may do something for an attempt whose key is not set there.
    fn acts_without_key(self) -> bool {
        let mistakes = [
            Mistake::RaisesForAnyone,
            Mistake::DeletesAnyKey,
            Mistake::ReleaseLiftsForAnyone,
        ];
        self == Flaw::ReusesValue || mistakes.map(Flaw::Server).contains(&self)
    }
}

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
struct World<const A: usize> {
    proposals: [u8; A],
    clocks: Clocks,
    /// The earlier attempt of the same client, which must be over first.
    retry_of: [Option<usize>; A],
    counters: [u8; NODES],
    keys: Keys,
    lines: Lines,
    /// How often a holder sends an extension: at most [`ROUNDS`] times.
    extensions: u8,
    /// Extensions set missing keys.
    sets: bool,
    /// Clients notice some time later that a deadline has passed.
    slow: bool,
    left: Accidents,
    guard: Guard,
    flaw: Flaw,
    claims: [&'static [Violation]; 3],
}

impl<const A: usize> World<A> {
    /// Attempts of as many clients, at nodes that have never had anything to do with them.
    const fn new(proposals: [u8; A], keys: Keys) -> World<A> {
        World {
            proposals,
            clocks: Clocks::Any,
            retry_of: [None; A],
            counters: [0; NODES],
            keys,
            lines: Lines::InOrder,
            extensions: 0,
            sets: false,
            slow: false,
            left: match keys {
                Keys::Last => NO_ACCIDENTS,
                Keys::Vanish => Accidents {
                    vanished: ANY,
                    ..NO_ACCIDENTS
                },
            },
            guard: Guard::None,
            flaw: Flaw::None,
            claims: match keys {
                Keys::Last => [FENCED, EXCLUSIVE, LEAVES_NOTHING],
                Keys::Vanish => [FENCED, &[], LEAVES_NOTHING],
            },
        }
    }

    fn claims(&self, violation: Violation) -> bool {
        self.claims.iter().any(|it| it.contains(&violation))
    }

    fn value(&self, attempt: usize) -> u8 {
        match self.retry_of[attempt] {
            Some(earlier) if self.flaw == Flaw::ReusesValue => self.value(earlier),
            _ => attempt as u8,
        }
    }

    fn is_retried(&self, attempt: usize) -> bool {
        self.retry_of.contains(&Some(attempt))
    }

    fn start(&self) -> State<A> {
        let line = Line {
            sent: 0,
            answer: Answer::None,
            heard: Said::Nothing,
            round: 0,
            promise: 0,
            gone: 0,
            counts_from: 0,
            synced: true,
            doubtful: false,
            barred: 0,
            rank: 0,
            counted: false,
            blocks: 0,
        };
        let attempt = Attempt {
            phase: Phase::Idle,
            late: false,
            proposal: 0,
            token: 0,
            raised: false,
            seen: 0,
            after: 0,
            round: 0,
            confirmed: 0,
            number: 0,
            sent: [Sent::default(); ROUNDS],
            outdated: 0,
        };
        State {
            attempts: [attempt; A],
            nodes: self.counters.map(|counter| Node {
                server: Server::new([counter], (), 0),
                key_rank: 0,
                quarantined: 0,
                lines: [line; A],
            }),
            left: self.left,
            clock: if self.clocks == Clocks::Any { 0 } else { 1 },
        }
    }

    fn search(&self) -> Findings {
        let mut findings = Findings::default();
        self.search_from(self.start(), &mut findings);
        findings
    }
}
