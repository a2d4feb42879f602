//! The shipped call of an attempt. A state has what the call was [`Told`], and the call is built
//! anew for each decision. It steps after each answer.
//!
//! Of the answers to its acquire a raise needs to know only which nodes granted, and which refused:
//! the counters are in its token. Calls are pure, so that each course is run once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::answer::LockStatus;
use crate::call::Call;
use crate::call::steps::{Next, Terms};
use crate::error::QuarantineReason;
use crate::ids::OwnerToken;
use crate::tests::model::ledgers::{Known, LIFE, NO_MARGIN, now, sent_at, until};

/// What a step of a call comes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Decision {
    /// To this token.
    Raise(u8),
    Win {
        token: u8,
        raised: bool,
        /// Nodes whose key the hold counts on.
        granted: [bool; NODES],
    },
    Loss {
        /// Nodes that get a release.
        to: NodeSet,
        /// The largest counter that the next round of the call knows; 0 if there is none.
        seen: u8,
    },
}

/// All that the decision of a call depends on.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Told {
    owner: u8,
    /// In a second round: the owner of the first one, and the largest counter that it showed.
    earlier: Option<(u8, u8)>,
    /// After a lost round there may be another one.
    retries: bool,
    /// The proposal; of a raise, the token.
    number: u8,
    /// Of a raise: see [`Line::heard`].
    acquired: Option<[Said; NODES]>,
    /// Nodes in quarantine, as far as the client knows.
    quarantined: [bool; NODES],
    /// What has arrived of the round, or [`Said::Nothing`].
    answers: [Said; NODES],
    /// The node that answers behind the others, or the end of the round.
    last: Option<u8>,
    /// The lease is over then.
    is_late: bool,
    half_is_enough: bool,
}

impl Known for Told {
    fn time(&self) -> u64 {
        // Any proposal below the token, with one counter between them, leads to a raise to it.
        let less = u8::from(self.acquired.is_some());
        (self.number - less).into()
    }

    fn quarantined_of(&self, nodes: NodeSet) -> Vec<(NodeId, NodeFailure)> {
        let barred = NodeFailure::Quarantined {
            left: LIFE,
            why: QuarantineReason::Restarted,
        };
        let is_barred = |it: &NodeId| nodes.contains(*it) && self.quarantined[it.index()];
        ids()
            .filter(is_barred)
            .map(|it| (it, barred.clone()))
            .collect()
    }

    fn owner(&self) -> OwnerToken {
        owner(self.owner)
    }
}

fn number(number: u64) -> u8 {
    u8::try_from(number).unwrap()
}

/// The token of an owner that nodes know by this number.
fn owner(number: u8) -> OwnerToken {
    let mut digits = [b'0'; 32];
    digits[31] += number;
    OwnerToken::of_value(&digits).unwrap()
}

/// A call with a round under way.
struct Asking {
    call: Call,
    round: u32,
    proposal: u8,
}

impl Asking {
    fn tell(&mut self, node: NodeId, said: Said, at: Moment) {
        let vote = match said {
            Said::Gone(_) => Vote::of(LockStatus::NotOurs),
            said => said.vote(),
        };
        self.call.on_answer(self.round, node, vote, true, now(at));
    }

    /// One more step, at the end of the round if it is `over`.
    fn step(&mut self, told: &Told, at: Moment, over: bool) -> Option<Decision> {
        let mut now = now(at);
        if over {
            now.tick += LIFE;
        }
        Some(match self.call.next(told, now) {
            Next::Sleep(_) => return None,
            Next::Raise { round, token, .. } => {
                self.round = round;
                Decision::Raise(number(token))
            }
            Next::Won(win) => {
                assert_eq!((win.owner, win.use_until), (owner(told.owner), until(0)));
                let votes = self.call.votes();
                let has_granted = |node| votes.get(node).is_some_and(Vote::is_granted);
                let counts = |node| {
                    win.handed.contains(node) || has_granted(node) && !win.gone.contains(node)
                };
                Decision::Win {
                    token: number(win.token),
                    raised: win.raised,
                    granted: std::array::from_fn(|node| counts(NodeId::new(node as u8))),
                }
            }
            Next::TakeBack(release) => {
                assert_eq!(release.owner, owner(told.owner));
                // At the beginning of time a proposal is one more than what the call knows.
                let seen = match self.call.next(&told.at_first(), now) {
                    Next::Ask(ask) => number(ask.proposal) - 1,
                    Next::GiveUp(_) => 0,
                    other => panic!("{other:?} behind a lost round"),
                };
                Decision::Loss {
                    to: release.to,
                    seen,
                }
            }
            other => panic!("{other:?} in a round"),
        })
    }
}

impl Told {
    fn at_first(&self) -> Told {
        Told {
            number: 0,
            acquired: None,
            ..*self
        }
    }

    /// The call that asks.
    fn ask(&self) -> Asking {
        let at = now(sent_at(0));
        let mut call = Call::new(Terms {
            nodes: NODES,
            rule: Rule::Exclusive,
            ttl: LIFE,
            margin: NO_MARGIN,
            names: Arc::default(),
            is_single: true,
            rounds: Some(1 + u32::from(self.earlier.is_some()) + u32::from(self.retries)),
            began: at,
            until: None,
            end: None,
            response_timeout: LIFE,
            pauses: (Duration::ZERO, Duration::ZERO),
            outage_timeout: LIFE,
        });
        if let Some((owner, seen)) = self.earlier {
            // Contenders split the nodes between them.
            let earlier = Told {
                owner,
                quarantined: [false; NODES],
                ..*self
            };
            let Next::Ask(ask) = call.next(&earlier, at) else {
                panic!("{call:?} does not ask")
            };
            let held = Said::Held(seen);
            for (node, said) in ids().zip([Said::Accepted, held, held]) {
                call.on_answer(ask.round, node, said.vote(), true, at);
            }
            let next = call.next(&earlier, at);
            assert!(matches!(next, Next::TakeBack(_)), "{next:?}");
        }
        let Next::Ask(ask) = call.next(self, at) else {
            panic!("{call:?} does not ask")
        };
        call.on_sent(ask.round, all());
        Asking {
            call,
            round: ask.round,
            proposal: number(ask.proposal),
        }
    }

    /// The call before the answers to its round.
    fn call(&self) -> Asking {
        let mut asking = self.ask();
        let Some(acquired) = self.acquired else {
            return asking;
        };
        for what in [Said::Behind(0), Said::Held(0), Said::Silent] {
            for (node, _) in ids().zip(acquired).filter(|it| it.1 == what) {
                let said = match what {
                    Said::Behind(_) => Said::Behind(self.number - 1),
                    other => other,
                };
                asking.tell(node, said, sent_at(0));
            }
        }
        let decision = asking.step(self, sent_at(0), false);
        assert_eq!(decision, Some(Decision::Raise(self.number)), "{self:?}");
        asking
    }

    /// `None` if the last answer decides nothing, or one before it does.
    fn decide(&self) -> Option<Decision> {
        let mut asking = self.call();
        let last = self.last.map(NodeId::new);
        let answers = ids().zip(self.answers);
        for (node, said) in answers.filter(|it| Some(it.0) != last && it.1 != Said::Nothing) {
            self.tell(&mut asking, node, said, in_time());
            if asking.step(self, in_time(), false).is_some() {
                return None;
            }
        }
        let at = if self.is_late { deadline() } else { in_time() };
        if let Some(last) = last {
            self.tell(&mut asking, last, self.answers[last.index()], at);
        }
        asking.step(self, at, last.is_none())
    }

    fn tell(&self, asking: &mut Asking, node: NodeId, said: Said, at: Moment) {
        asking.tell(node, said, at);
        // One of three is half of them, rounded down.
        if self.half_is_enough && said == Said::Accepted {
            ids().for_each(|other| asking.tell(other, said, at));
        }
    }
}

thread_local! {
    static DECISIONS: RefCell<HashMap<Told, Option<Decision>>> = RefCell::default();
}

impl<const A: usize> World<A> {
    /// What an attempt was told so far of a round.
    fn told(&self, state: &State<A>, me: usize, number: u8) -> Told {
        let attempt = &state.attempts[me];
        let lines = state.nodes.map(|it| it.lines[me]);
        let quarantined = state.nodes.map(|it| {
            let line = &it.lines[me];
            let is_quarantined = self.guard == Guard::Record && it.is_quarantined();
            line.synced && (is_quarantined || line.barred != 0) || line.doubtful && is_quarantined
        });
        Told {
            owner: self.value(me),
            earlier: self.retry_of[me].map(|it| (self.value(it), state.attempts[it].seen)),
            retries: self.is_retried(me),
            number,
            acquired: (attempt.phase == Phase::Raising).then_some(lines.map(|it| it.heard)),
            quarantined,
            answers: lines.map(|it| match it.answer {
                Answer::Counted(said) => said,
                _ => Said::Nothing,
            }),
            last: None,
            is_late: false,
            half_is_enough: self.flaw == Flaw::HalfIsEnough,
        }
    }

    /// What an attempt proposes when its clock shows this time.
    pub(super) fn proposal(&self, state: &State<A>, me: usize, time: u8) -> u8 {
        self.told(state, me, time).ask().proposal
    }

    /// What the counted answers come to, that of `last` after the others, or the end of the round
    /// after them. `None` if that decides nothing, or some of them would have done so before.
    pub(super) fn decide(
        &self,
        state: &State<A>,
        me: usize,
        last: Option<usize>,
        is_late: bool,
    ) -> Option<Decision> {
        let Attempt {
            phase,
            proposal,
            token,
            ..
        } = state.attempts[me];
        let number = match phase {
            Phase::Raising => token,
            _ => proposal,
        };
        let told = Told {
            last: last.map(|it| it as u8),
            is_late,
            ..self.told(state, me, number)
        };
        DECISIONS.with_borrow_mut(|all| *all.entry(told).or_insert_with(|| told.decide()))
    }
}

/// Beside one that has been through it all.
#[test]
fn a_rebuilt_call_decides_as_the_original_call() {
    let (mut won, mut lost, mut late) = (0, 0, 0);
    for seed in 0..if long() { 200_000 } else { 20_000 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let told = Told {
            owner: 1,
            earlier: random.bool().then_some((0, random.u8(..4))),
            retries: random.bool(),
            number: random.u8(1..5),
            acquired: None,
            quarantined: [false; NODES],
            answers: [Said::Nothing; NODES],
            last: None,
            is_late: false,
            half_is_enough: false,
        };
        let mut original = told.ask();
        let asked = original.round;
        let said = [(); NODES].map(|()| match random.u8(..5) {
            0 | 1 => Said::Accepted,
            2 => Said::Behind(random.u8(3..9)),
            3 => Said::Held(random.u8(..9)),
            _ => Said::Silent,
        });
        let mut order = [0, 1, 2];
        random.shuffle(&mut order);
        let mut acquired = [Said::Nothing; NODES];
        let mut unheard = order.iter().copied();
        let decision = unheard.by_ref().find_map(|node| {
            acquired[node] = heard(said[node]);
            original.tell(NodeId::new(node as u8), said[node], in_time());
            original.step(&told, in_time(), false)
        });
        let Some(Decision::Raise(number)) = decision else {
            continue;
        };
        for node in unheard.filter(|_| random.bool()) {
            late += 1;
            acquired[node] = heard(said[node]);
            let (node, vote) = (NodeId::new(node as u8), said[node].vote());
            let call = &mut original.call;
            call.on_answer(asked, node, vote, true, now(in_time()));
        }
        let told = Told {
            number,
            acquired: Some(acquired),
            quarantined: [(); NODES].map(|()| random.u8(..6) == 0),
            ..told
        };
        let mut rebuilt = told.call();
        random.shuffle(&mut order);
        for node in order.map(|it| NodeId::new(it as u8)) {
            let said = match random.u8(..6) {
                0..3 => Said::Taken,
                3 => Said::Above(random.u8(..12)),
                4 => Said::Gone(0),
                _ => Said::Silent,
            };
            let is_late = random.u8(..8) == 0;
            let at = if is_late { deadline() } else { in_time() };
            let [one, other] = [&mut original, &mut rebuilt].map(|it| {
                it.tell(node, said, at);
                it.step(&told, at, false)
            });
            assert_eq!(one, other, "{seed}: {told:?}");
            match one {
                Some(Decision::Win { .. }) => won += 1,
                Some(_) => lost += 1,
                None => continue,
            }
            break;
        }
    }
    assert!(0 < won && 0 < lost && 0 < late, "{won}, {lost}, {late}");
}
