//! What a world looks like at one moment.

use super::*;

/// The answer of one node in an attempt's present round.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Answer {
    None,
    /// Or it has come and nothing was decided by it.
    OnItsWay(Said),
    /// One of those that decide. Never stays.
    Counted(Said),
}

pub(super) const ACQUIRE: u8 = 1;
pub(super) const RAISE: u8 = 2;
/// One for each extension.
pub(super) const EXTEND: [u8; ROUNDS] = [4, 8, 16];
pub(super) const RELEASE: u8 = 32;
/// An extension that gets behind the release. Nobody but a flawed client sends it.
pub(super) const LATE_EXTEND: u8 = 64;

/// An attempt's connection to a node.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Line {
    /// Commands that the node has not executed, one bit each; the lowest is executed first, as each attempt sends them
    /// in this order and none of them twice.
    pub(super) sent: u8,
    pub(super) answer: Answer,
    /// During a raise, what the node said to the acquire, as far as that matters:
    /// [`Said::Behind`] for any grant, [`Said::Held`] for a refusal, [`Said::Silent`] for all else.
    /// Their counters are 0.
    pub(super) heard: Said,
    /// The extension that is answered; 0 for what went before.
    pub(super) round: u8,
    /// One more than the round of the last promise that has come; 0 without one.
    pub(super) promise: u8,
    /// The last answer of the node is that the key is gone: one more than its counter; otherwise 0.
    pub(super) gone: u8,
    /// The round from which promises of the node count.
    pub(super) counts_from: u8,
    /// The client has been synced with the record that the node has now.
    pub(super) synced: bool,
    /// The answer was given in quarantine, as the client knows.
    pub(super) doubtful: bool,
    /// Nothing that the attempt is granted here counts, nor what is set by an extension before this one: it was asked for when
    /// the node was quarantined. 0 for no such thing.
    pub(super) barred: u8,
    /// The place of the grant that is counted here among all that are, and of the present key.
    pub(super) rank: u8,
    /// This node is part of the attempt's majority.
    pub(super) counted: bool,
    /// The node is in quarantine until the attempt is over or has had this extension confirmed; 0 for neither.
    pub(super) blocks: u8,
}

/// A node, and everything else that is told apart by node.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Node<const A: usize> {
    /// The end of its key is the last round that gave it its full life: 0 for the acquire round, then the extensions.
    pub(super) server: Plain<u8, 1>,
    /// See [`Line::rank`].
    pub(super) key_rank: u8,
    /// Where time passes: one more than the time at which its quarantine began; 0 if it is not quarantined.
    pub(super) quarantined: u8,
    pub(super) lines: [Line; A],
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Phase {
    Idle,
    Acquiring,
    Raising,
    /// Won, and nobody has noticed an end yet.
    Holding,
    /// Won, then released or lost.
    Over,
    /// Never won.
    Lost,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Attempt {
    pub(super) phase: Phase,
    /// Its deadline has passed, and it does not know yet.
    pub(super) late: bool,
    pub(super) proposal: u8,
    /// What its raise offers; once it has won, what it won.
    pub(super) token: u8,
    /// The release brings the token along.
    pub(super) raised: bool,
    /// The largest counter that the next round of its call knows.
    pub(super) seen: u8,
    /// Who had won before this one started: one bit each.
    pub(super) after: u8,
    /// Extensions sent, and the last one confirmed.
    pub(super) round: u8,
    pub(super) confirmed: u8,
    /// The number of the next extension.
    pub(super) number: u8,
    pub(super) sent: [Sent; ROUNDS],
    /// Extensions that were sent when a newer holder had won: one bit each.
    pub(super) outdated: u8,
}

/// How often each mishap can still happen.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Accidents {
    /// A command does not reach its node.
    pub(super) lost: u8,
    /// A command is executed and stays under way.
    pub(super) twice: u8,
    /// A key vanishes before its time.
    pub(super) vanished: u8,
    /// A node restarts with nothing.
    pub(super) crashes: u8,
    /// A node restarts with all it had.
    pub(super) restarts: u8,
    /// A node loses all keys, but not its connections.
    pub(super) flushes: u8,
    /// A node loses the counter.
    pub(super) forgets: u8,
    /// A node gets an older copy of its keys, and keeps its connections.
    pub(super) restores: u8,
}

/// As often as it likes.
pub(super) const ANY: u8 = 7;

pub(super) const NO_ACCIDENTS: Accidents = Accidents {
    lost: 0,
    twice: 0,
    vanished: 0,
    crashes: 0,
    restarts: 0,
    flushes: 0,
    forgets: 0,
    restores: 0,
};

pub(super) const ONE_CRASH: Accidents = Accidents {
    crashes: 1,
    ..NO_ACCIDENTS
};
pub(super) const ONE_FLUSH: Accidents = Accidents {
    flushes: 1,
    ..NO_ACCIDENTS
};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct State<const A: usize> {
    pub(super) attempts: [Attempt; A],
    pub(super) nodes: [Node<A>; NODES],
    pub(super) left: Accidents,
    /// What a good clock shows: more than any number in use.
    pub(super) clock: u8,
}

impl Line {
    /// The answer to the acquire is on its way.
    pub(super) fn has_acquired(&self) -> bool {
        use Said::{Accepted, Ahead, Behind, Held};
        matches!(
            self.answer,
            Answer::OnItsWay(Accepted | Behind(_) | Ahead(_) | Held(_))
        )
    }

    /// Notes what has arrived as what the raise needs to know of it.
    pub(super) fn note_acquired(&mut self) {
        if let Answer::Counted(said) = self.answer {
            self.answer = Answer::None;
            self.doubtful = false;
            self.heard = heard(said);
        }
    }
}

/// See [`Line::heard`].
pub(super) fn heard(said: Said) -> Said {
    match said.vote() {
        vote if vote.is_granted() => Said::Behind(0),
        vote if vote.is_held() => Said::Held(0),
        _ => Said::Silent,
    }
}

impl Phase {
    pub(super) fn is_over(self) -> bool {
        matches!(self, Phase::Over | Phase::Lost)
    }

    pub(super) fn has_won(self) -> bool {
        matches!(self, Phase::Holding | Phase::Over)
    }

    /// Started, and not over.
    pub(super) fn is_alive(self) -> bool {
        matches!(self, Phase::Acquiring | Phase::Raising | Phase::Holding)
    }
}

impl<const A: usize> Node<A> {
    /// It forgot something, and attempts that it may have had part in are still alive.
    pub(super) fn is_quarantined(&self) -> bool {
        self.quarantined != 0 || self.is_blocked()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.lines.iter().any(|it| it.blocks != 0)
    }
}

impl<const A: usize> State<A> {
    /// Puts an attempt into `phase`, sends `command` to the nodes `to` and drops answers to what
    /// went before.
    pub(super) fn enter(&mut self, me: usize, phase: Phase, command: u8, to: NodeSet) {
        self.attempts[me].phase = phase;
        for (id, node) in ids().zip(&mut self.nodes) {
            let line = &mut node.lines[me];
            if to.contains(id) {
                line.sent |= command;
            }
            line.answer = Answer::None;
            line.round = 0;
            line.doubtful = false;
        }
    }

    /// An attempt raises. Answers to its acquire can still arrive.
    pub(super) fn raise(&mut self, me: usize) {
        self.attempts[me].phase = Phase::Raising;
        for node in &mut self.nodes {
            let line = &mut node.lines[me];
            line.sent |= RAISE;
            line.note_acquired();
        }
    }

    /// What the attempt has been promised.
    pub(super) fn ledger(&self, me: usize) -> Ledger {
        let Attempt {
            token,
            round,
            confirmed,
            number,
            sent,
            ..
        } = self.attempts[me];
        Ledger {
            token,
            promises: self.nodes.map(|it| it.lines[me].promise),
            gone: self.nodes.map(|it| it.lines[me].gone),
            counts_from: self.nodes.map(|it| it.lines[me].counts_from),
            round,
            confirmed,
            number,
            sent,
        }
    }

    pub(super) fn set_ledger(&mut self, me: usize, ledger: &Ledger) {
        let attempt = &mut self.attempts[me];
        attempt.round = ledger.round;
        attempt.confirmed = ledger.confirmed;
        attempt.number = ledger.number;
        attempt.sent = ledger.sent;
        for (node, it) in self.nodes.iter_mut().enumerate() {
            it.lines[me].promise = ledger.promises[node];
            it.lines[me].gone = ledger.gone[node];
            it.lines[me].counts_from = ledger.counts_from[node];
        }
    }

    /// Commands after which the attempt's key may stand on the node.
    pub(super) fn setting(&self, me: usize) -> u8 {
        let mut commands = ACQUIRE | LATE_EXTEND;
        for (command, sent) in EXTEND.iter().zip(&self.attempts[me].sent) {
            if sent.sets {
                commands |= command;
            }
        }
        commands
    }

    /// Numbers the grants of each node anew, in their order, so that equal orders are equal states.
    fn rank_grants(&mut self) {
        for node in &mut self.nodes {
            let mut used = 1 | 1_u8 << node.key_rank;
            for line in &node.lines {
                used |= 1 << line.rank;
            }
            if used & (used + 1) == 0 {
                // No number is left out.
                continue;
            }
            let mut rank = 0;
            for old in 1..=A as u8 + 2 {
                let mut found = node.key_rank == old;
                for line in &node.lines {
                    found |= line.rank == old;
                }
                if found {
                    rank += 1;
                    if node.key_rank == old {
                        node.key_rank = rank;
                    }
                    for line in &mut node.lines {
                        if line.rank == old {
                            line.rank = rank;
                        }
                    }
                }
            }
        }
    }

    /// Makes states equal that differ only in what nobody will read again.
    pub(super) fn tidy(&mut self, world: &World<A>) {
        for me in 0..A {
            let mut under_way = 0;
            for node in &self.nodes {
                under_way |= node.lines[me].sent;
            }
            let attempt = &mut self.attempts[me];
            let phase = attempt.phase;
            if under_way & ACQUIRE == 0 && phase != Phase::Acquiring {
                attempt.proposal = 0;
            }
            if under_way & RELEASE == 0 && phase.is_over() {
                attempt.raised = false;
            }
            if under_way & RAISE == 0 && phase == Phase::Lost {
                attempt.token = 0;
            }
            if phase != Phase::Acquiring && phase != Phase::Raising {
                attempt.after = 0;
            }
            if phase.is_over() {
                attempt.late = false;
                attempt.round = 0;
                attempt.confirmed = 0;
                attempt.number = 0;
                attempt.outdated = 0;
            }
            // Nothing comes after the last confirmation but the end.
            let is_last = phase == Phase::Holding && attempt.confirmed == world.extensions;
            if phase.is_over() || is_last {
                for (command, sent) in EXTEND.iter().zip(&mut attempt.sent) {
                    if under_way & command == 0 {
                        *sent = Sent::default();
                    }
                }
                for node in &mut self.nodes {
                    let line = &mut node.lines[me];
                    (line.promise, line.gone, line.counts_from) = (0, 0, 0);
                    (line.answer, line.round) = (Answer::None, 0);
                }
            }
            if is_last {
                attempt.number = 0;
                attempt.outdated = 0;
            }
            if !world.is_retried(me) {
                attempt.seen = 0;
            }
            let Attempt { confirmed, .. } = *attempt;
            let setting = self.setting(me);
            for node in &mut self.nodes {
                let mine = node.server.has(0, world.value(me));
                let line = &mut node.lines[me];
                if phase.is_over() {
                    line.answer = Answer::None;
                    line.blocks = 0;
                    line.barred = 0;
                    line.synced = true;
                    // Nothing that is under way here can do anything.
                    if !mine && line.sent & setting == 0 && !world.flaw.acts_without_key() {
                        line.sent = 0;
                    }
                } else if line.blocks <= confirmed {
                    line.blocks = 0;
                }
                if line.answer == Answer::None {
                    line.round = 0;
                }
                if phase != Phase::Raising {
                    line.heard = Said::Nothing;
                } else if line.has_acquired() {
                    line.answer = Answer::OnItsWay(match line.answer {
                        Answer::OnItsWay(Said::Held(_)) => Said::Held(0),
                        Answer::OnItsWay(Said::Ahead(_)) => Said::Ahead(0),
                        _ => Said::Behind(0),
                    });
                } else if line.heard == Said::Nothing && line.sent & ACQUIRE == 0 {
                    line.heard = Said::Silent;
                }
                if phase == Phase::Lost || (phase.has_won() && !line.counted) {
                    line.rank = 0;
                }
            }
        }
        for node in &mut self.nodes {
            let owner = node.server.owner(0);
            let owner = owner.map(|it| self.attempts[usize::from(it)].phase);
            if !matches!(owner, Some(Phase::Acquiring | Phase::Raising))
                && world.flaw != Flaw::ReusesValue
            {
                node.key_rank = 0;
            }
            if world.keys == Keys::Vanish || owner.is_none_or(Phase::is_over) {
                node.server.forget_end(0);
            }
            if !node.is_quarantined() {
                for line in &mut node.lines {
                    line.doubtful = false;
                }
            }
        }
        self.rank_grants();
    }

    /// Whether nothing more can go wrong from here.
    pub(super) fn is_settled(&self, world: &World<A>) -> bool {
        let mut lost = 0;
        let mut over = 0;
        for attempt in &self.attempts {
            lost += usize::from(attempt.phase == Phase::Lost);
            over += usize::from(attempt.phase == Phase::Over);
        }
        // With one winner only there is nothing to compare; what is left behind has to be looked at until the end.
        lost + over == A && !world.claims(Violation::Orphan) || 1 < A && A <= lost + 1
    }

    /// Nodes are alike: states that differ only in which is which are one state.
    pub(super) fn sorted(mut self) -> State<A> {
        self.nodes.sort_unstable();
        self
    }
}
