//! A holder's decisions: the shipped machine, made anew from what the state of the world has of it.
//!
//! Small states are compared and kept by the million, so none has the machine itself in it. What an attempt and the nodes'
//! answers and promises have of it is handed to a new one, which then decides.

use super::*;
use crate::config::Margin;
use crate::hold::promises::Promise;
use crate::hold::{Extension, Hold, Servers, Terms};
use crate::ids::NodeSet;
use crate::time::{Now, Tick};

/// Long enough for all that happens.
const LEASE: u64 = 1_000_000_000;

/// All nodes are connected, and no clock was set.
struct AllNodes;

impl Servers for AllNodes {
    fn voting(&self, _now: Tick) -> NodeSet {
        all_nodes()
    }

    fn settable(&self, _now: Tick) -> NodeSet {
        all_nodes()
    }

    fn has_stepped(&self, _node: NodeId, _since: Tick) -> bool {
        false
    }

    fn time_for_all(&self, _now: Moment) -> Option<u64> {
        Some(0)
    }

    fn pause(&self, _left: Duration, _now: Tick) -> Duration {
        Duration::ZERO
    }
}

fn all_nodes() -> NodeSet {
    (0..).map(NodeId::new).take(NODES).collect()
}

fn id(node: usize) -> NodeId {
    NodeId::new(node as u8)
}

/// Each round's promises end later than those before.
fn until(round: u64) -> Moment {
    at(LEASE + round)
}

fn extend(hold: &mut Hold, now: Now) -> Option<Extension> {
    hold.extend(Duration::from_nanos(LEASE), now, now.tick, &AllNodes)
        .ok()
}

impl<const A: usize> World<A> {
    /// The machine of a holder, and its last extension.
    fn hold(&self, state: &State<A>, me: usize, now: Now) -> (Hold, Option<Extension>) {
        let own = &state.attempts[me];
        let last = u64::from(own.extensions);
        let terms = Terms {
            nodes: NODES,
            ttl: Duration::from_nanos(LEASE),
            margin: Margin {
                share: 0.0,
                fixed: Duration::ZERO,
            },
            renewed: true,
            hold_until: None,
            grant: Promise {
                round: 0,
                sent: now,
                until: until(0),
                number: own.token.into(),
            },
            response_timeout: Duration::ZERO,
        };
        let mut hold = Hold::new(terms, false, all_nodes(), now.moment);
        // Those whose first promise came with a set key are granted nothing before.
        let is_new = |node: &Node<A>| node.said[me] == Said::Healed;
        let nodes = || (0..).map(id).zip(&state.nodes);
        for (id, node) in nodes() {
            let is_handed = self.flaw == Flaw::CountsWhatItIsHanded && node.has(me);
            if (node.promised[me] != 0 || is_handed) && !is_new(node) {
                let granted = Vote::of(LockStatus::Accepted);
                hold.on_grant(id, &granted, true, false, now.moment);
            }
        }
        let mut sent: Vec<Extension> = vec![];
        for round in 1..=last {
            let number = u64::from(own.numbers[round as usize - 1]);
            let confirmed = hold.promises.round();
            // What made it lift its number: a majority had confirmed it, and one showed a counter above.
            if let Some(extension) = sent.get((confirmed as usize).wrapping_sub(1))
                && let Some((id, _)) = nodes().find(|it| confirmed < it.1.promised[me].into())
            {
                let lifted = Vote::with_counter(LockStatus::Lifted, number);
                let _ = hold.on_answer(extension, id, &lifted, now, &AllNodes);
            }
            let mut extension = extend(&mut hold, now).unwrap();
            extension.promise.until = until(round);
            extension.promise.number = number;
            for (id, node) in nodes().filter(|it| round < it.1.promised[me].into()) {
                if !is_new(node) {
                    let extended = Vote::of(LockStatus::Extended);
                    let _ = hold.on_answer(&extension, id, &extended, now, &AllNodes);
                }
            }
            sent.push(extension);
        }
        let last = sent.pop();
        if let Some(extension) = &last {
            for is_set in [false, true] {
                for (id, node) in nodes().filter(|it| is_new(it.1) == is_set) {
                    if node.said[me] != Said::Nothing {
                        let vote = node.said[me].vote();
                        let _ = hold.on_answer(extension, id, &vote, now, &AllNodes);
                    }
                }
            }
        }
        (hold, last)
    }

    fn now() -> Now {
        Now {
            moment: at(0),
            tick: crate::time::tick(),
        }
    }

    /// What an extension would be that is sent now.
    pub(super) fn next_extension(&self, state: &State<A>, me: usize) -> Next {
        let now = Self::now();
        Self::next_of(&mut self.hold(state, me, now).0, now)
    }

    fn next_of(hold: &mut Hold, now: Now) -> Next {
        extend(hold, now).map_or(Next::default(), |it| Next {
            number: it.promise.number as u8,
            sets: !it.sets.is_empty(),
        })
    }

    /// A holder reads the answer of a node to its last extension.
    pub(super) fn hear(&self, state: &mut State<A>, me: usize, node: usize, said: Said) {
        let now = Self::now();
        let (mut hold, extension) = self.hold(state, me, now);
        let extension = extension.unwrap();
        let vote = said.vote();
        let is_enough = self.flaw == Flaw::ExtendsAlone && vote.is_extended();
        for other in (0..NODES).filter(|it| is_enough && *it != node) {
            let _ = hold.on_answer(&extension, id(other), &vote, now, &AllNodes);
        }
        let _ = hold.on_answer(&extension, id(node), &vote, now, &AllNodes);
        if hold.is_lost() {
            return Self::send(state, me, Phase::Over, RELEASE);
        }
        let ends = hold.promises.ends(now.moment);
        for (node, end) in state.nodes.iter_mut().zip(&ends) {
            if *end == Some(extension.promise.until) {
                node.promised[me] = 1 + extension.promise.round as u8;
            }
        }
        let is_kept = ends[node] == Some(extension.promise.until);
        let is_gone = hold.promises.gone().contains(id(node));
        let own = &mut state.attempts[me];
        let number = own.number;
        state.nodes[node].counted[me] |= is_kept;
        state.nodes[node].said[me] = match said {
            Said::Healed if is_gone && is_kept => Said::SetAgain,
            Said::Lifted(counter) if is_gone => Said::Gone(counter),
            Said::Extended | Said::Healed if is_gone => Said::Gone(number),
            said => said,
        };
        own.confirmed = hold.promises.round() as u8;
        let next = Self::next_of(&mut hold, now);
        assert!(own.next.number <= next.number, "{own:?}, {next:?}");
        own.next = next;
        let all_said = state.nodes.iter().all(|it| it.said[me] != Said::Nothing);
        // It stands on the other nodes alone: this one has lost everything, or its first entry, of a late acquire, is behind a
        // newer counter. Nothing tells such an entry from one that was handed over behind a newer writer.
        let is_no_help = |it: &&Node<A>| {
            let is_late =
                it.promised[me] == 0 && matches!(it.said[me], Said::Gone(it) if own.number < it);
            it.server.record != 0 || is_late
        };
        let stands = NODES - state.nodes.iter().filter(is_no_help).count();
        own.refused = all_said && own.confirmed < own.extensions && majority(NODES, stands);
    }
}
