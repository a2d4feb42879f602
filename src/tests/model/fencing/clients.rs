//! What clients do: the shipped rounds and the shipped lease, and around them what `engine` does with their decisions.

use super::*;

impl<const A: usize> World<A> {
    pub(super) fn may_start(&self, state: &State<A>, me: usize) -> bool {
        let earlier_is_over = self.retry_of[me].is_none_or(|it| state.attempts[it].phase.is_over());
        // Attempts that differ in nothing start in their order: the other orders are the same with other names.
        let in_order = (0..me).all(|it| {
            let alike = self.clocks != Clocks::Any || self.proposals[it] == self.proposals[me];
            let first =
                self.retry_of[it].is_none() && self.retry_of[me].is_none() && !self.is_retried(it);
            !(alike && first) || state.attempts[it].phase != Phase::Idle
        });
        state.attempts[me].phase == Phase::Idle && earlier_is_over && in_order
    }

    /// What an attempt's clock may show.
    pub(super) fn walls(&self, state: &State<A>, me: usize) -> Vec<u8> {
        let time = state.clock;
        match self.clocks {
            Clocks::Any => vec![self.proposals[me]],
            Clocks::Good => vec![time],
            Clocks::Apart(by) => (time..=time + by).collect(),
            Clocks::OfClients { by, .. } => vec![time.saturating_sub(by).max(1), time, time + by],
        }
    }

    pub(super) fn start_attempt(&self, state: &mut State<A>, me: usize, wall: u8) {
        let seen = self.retry_of[me].map_or(0, |it| state.attempts[it].seen);
        state.attempts[me].proposal =
            number(token::propose(u64::from(wall), u64::from(seen)).unwrap());
        state.attempts[me].after = (0..A)
            .filter(|it| state.attempts[*it].phase.has_won())
            .fold(0, |after, it| after | 1 << it);
        self.use_number(state, state.attempts[me].proposal);
        state.enter(me, Phase::Acquiring, ACQUIRE);
    }

    /// A good clock shows more than this from now on.
    fn use_number(&self, state: &mut State<A>, number: u8) {
        if self.clocks == Clocks::Good {
            state.clock = state.clock.max(number + 1);
        }
    }

    fn now(&self, attempt: &Attempt) -> Moment {
        let ignored = match attempt.phase {
            Phase::Holding => self.flaw == Flaw::LateExtensionRevives,
            _ => self.flaw == Flaw::IgnoresDeadline,
        };
        if attempt.late && !ignored {
            deadline()
        } else {
            in_time()
        }
    }

    /// Calls `visit` with every way in which the open round of `me` can be decided by answers that are on their way.
    ///
    /// Which answers came before the one that decides, and when, makes no difference to anybody. So they come all at
    /// once: those in a set, and one of them is the last.
    pub(super) fn each_decision(
        &self,
        state: &State<A>,
        me: usize,
        visit: &mut impl FnMut(u8, State<A>, Option<Violation>),
    ) {
        let mut arrived = 0;
        for (node, Node { lines, .. }) in state.nodes.iter().enumerate() {
            arrived |= u8::from(lines[me].answer != Answer::None) << node;
        }
        for heard in 1..=arrived {
            for last in 0..NODES {
                if heard & !arrived == 0 && heard & 1 << last != 0 {
                    let mut next = *state;
                    if let Some(violation) = self.hear(&mut next, me, heard, Some(last)) {
                        visit(heard, next, violation);
                    }
                }
            }
        }
    }

    /// The answers of the nodes in `heard` arrive, that of `last` after the others; or, without it, the attempt stops
    /// waiting after them. `None` if that does not decide the round, or some of them would have done so before.
    pub(super) fn hear(
        &self,
        state: &mut State<A>,
        me: usize,
        heard: u8,
        last: Option<usize>,
    ) -> Option<Option<Violation>> {
        for (node, it) in state.nodes.iter_mut().enumerate() {
            let quarantined = it.is_quarantined();
            let line = &mut it.lines[me];
            if let Answer::OnItsWay(said) = line.answer
                && heard & 1 << node != 0
            {
                line.answer = Answer::Counted(match said {
                    _ if line.doubtful && quarantined => Said::Quarantined,
                    Said::Accepted | Said::Behind(_) | Said::Taken
                        if line.barred && line.synced =>
                    {
                        Said::Quarantined
                    }
                    Said::Behind(_) if self.flaw == Flaw::CountsRefusers => Said::Accepted,
                    Said::Ahead(_) if self.flaw == Flaw::CountsAhead => Said::Accepted,
                    _ => said,
                });
            }
        }
        let attempt = state.attempts[me];
        let now = self.now(&attempt);
        let mut seen = 0;
        let decided = match attempt.phase {
            Phase::Acquiring => {
                let end = match last.map(|it| state.nodes[it].lines[me].answer) {
                    Some(Answer::Counted(Said::Accepted)) if self.flaw == Flaw::HalfIsEnough => {
                        AcquireEnd::Won {
                            token: u64::from(attempt.proposal),
                        }
                    }
                    _ => {
                        let round = AcquireRound::new(
                            Rule::Exclusive,
                            u64::from(attempt.proposal),
                            Some(deadline()),
                        );
                        replay(round, state, me, last, now, acquire_vote, |it| {
                            seen = number(it.seen())
                        })?
                    }
                };
                self.on_acquire_end(state, me, end)
            }
            Phase::Raising => {
                let round =
                    RaiseRound::new(Rule::Exclusive, u64::from(attempt.token), Some(deadline()));
                let end = replay(round, state, me, last, now, raise_vote, |it| {
                    seen = number(it.seen())
                })?;
                self.on_acquire_end(state, me, end)
            }
            Phase::Holding if attempt.renewal == Renewal::Open => {
                let end = replay(ExtendRound, state, me, last, now, extend_vote, |_| {})?;
                self.on_extension_end(state, me, end)
            }
            Phase::Holding => {
                self.send_heals(state, me);
                None
            }
            Phase::Idle | Phase::Over | Phase::Lost => panic!("nobody waits for this"),
        };
        let known = &mut state.attempts[me].seen;
        *known = seen.max(*known);
        Some(decided)
    }

    fn on_acquire_end(
        &self,
        state: &mut State<A>,
        me: usize,
        end: AcquireEnd,
    ) -> Option<Violation> {
        match end {
            AcquireEnd::Won { token } => {
                for node in &mut state.nodes {
                    let line = &mut node.lines[me];
                    line.counted =
                        matches!(line.answer, Answer::Counted(Said::Accepted | Said::Taken));
                }
                state.attempts[me].token = number(token);
                state.enter(me, Phase::Holding, 0);
                self.violation_of_win(state, me)
            }
            AcquireEnd::Raise { token } => {
                state.attempts[me].token = number(token);
                state.attempts[me].seen = state.attempts[me].seen.max(number(token));
                self.use_number(state, number(token));
                state.enter(me, Phase::Raising, RAISE);
                None
            }
            AcquireEnd::Lost(_) => {
                state.enter(me, Phase::Lost, RELEASE);
                None
            }
        }
    }

    /// The lease of an attempt that holds.
    fn lease() -> Lease {
        Lease::new(deadline(), None, true)
    }

    pub(super) fn may_extend(&self, state: &State<A>, me: usize) -> bool {
        let attempt = &state.attempts[me];
        attempt.phase == Phase::Holding
            && attempt.renewal != Renewal::Open
            && attempt.round < self.extensions
            && Self::lease().may_extend(self.now(attempt))
    }

    pub(super) fn send_extension(&self, state: &mut State<A>, me: usize) {
        let outdated = state.newer(me).next().is_some();
        let attempt = &mut state.attempts[me];
        let command = EXTEND[usize::from(attempt.round)];
        attempt.round += 1;
        attempt.renewal = Renewal::Open;
        attempt.outdated = outdated;
        state.enter(me, Phase::Holding, command);
    }

    fn on_extension_end(
        &self,
        state: &mut State<A>,
        me: usize,
        end: ExtendEnd,
    ) -> Option<Violation> {
        let mut lease = Self::lease();
        let now = self.now(&state.attempts[me]);
        match end {
            ExtendEnd::Gone => {
                assert!(lease.lose(LostReason::Gone));
                self.end_hold(state, me);
                return None;
            }
            ExtendEnd::NotConfirmed if self.flaw != Flaw::MinorityExtends => {
                state.attempts[me].renewal = Renewal::None;
                state.enter(me, Phase::Holding, 0);
                return None;
            }
            ExtendEnd::Confirmed | ExtendEnd::NotConfirmed => {}
        }
        match lease.on_extended(at(2 * TTL), now) {
            Extended::Longer | Extended::NotLonger => {
                assert_eq!(lease.valid_until(now), Ok(at(2 * TTL)))
            }
            Extended::TooLate => {
                assert!(lease.on_tick(now).is_some(), "too late, but not over");
                self.end_hold(state, me);
                return None;
            }
            Extended::Released => panic!("a released lease waits for nothing"),
        }
        let attempt = &mut state.attempts[me];
        attempt.confirmed = attempt.round;
        attempt.renewal = Renewal::Confirmed;
        attempt.late = false;
        let outdated = attempt.outdated;
        self.send_heals(state, me);
        if outdated && self.claims(Violation::Resurrected) {
            return Some(Violation::Resurrected);
        }
        let others = (0..A).any(|it| it != me && state.is_holding(it));
        (others && self.claims(Violation::TwoHold)).then_some(Violation::TwoHold)
    }

    /// After a confirmed extension: heals where the key was said to be gone.
    fn send_heals(&self, state: &mut State<A>, me: usize) {
        let Attempt {
            round, mut shown, ..
        } = state.attempts[me];
        let valid = Self::lease()
            .valid_until(self.now(&state.attempts[me]))
            .is_ok();
        for node in &mut state.nodes {
            let line = &mut node.lines[me];
            match line.answer {
                Answer::Counted(Said::Gone(counter)) if self.heals && valid => {
                    if round == 1 {
                        shown = shown.max(counter);
                    }
                    line.sent |= match self.flaw {
                        Flaw::HealsBehindRelease => LATE_HEAL,
                        _ => HEAL[usize::from(round) - 1],
                    };
                }
                Answer::OnItsWay(Said::Gone(_)) if self.heals => continue,
                _ => {}
            }
            line.answer = Answer::None;
        }
        state.attempts[me].shown = shown;
    }

    /// The holder gives the lock back, or notices that its time is over.
    pub(super) fn end_hold(&self, state: &mut State<A>, me: usize) {
        state.enter(me, Phase::Over, RELEASE);
    }

    /// The deadline of an attempt passes. Clients that are not slow notice at once.
    pub(super) fn pass_deadline(&self, state: &mut State<A>, me: usize) {
        let attempt = &mut state.attempts[me];
        attempt.late = true;
        if self.slow {
            return;
        }
        let now = self.now(attempt);
        if attempt.phase == Phase::Holding {
            let mut released = Self::lease();
            let mut lost = Self::lease();
            assert!(
                matches!(released.release(in_time()), Ending::Released { .. })
                    && !released.is_held()
            );
            assert!(lost.on_tick(now).is_some() && !lost.is_held());
            self.end_hold(state, me);
        } else {
            let decided = self.hear(state, me, 0, None);
            assert_eq!(
                (decided, state.attempts[me].phase),
                (Some(None), Phase::Lost),
                "decided by waiting"
            );
        }
    }

    /// What is wrong with the win of `me`, compared with those who have won before.
    fn violation_of_win(&self, state: &State<A>, me: usize) -> Option<Violation> {
        let Attempt { token, after, .. } = state.attempts[me];
        let mut all = vec![];
        for (other, attempt) in state.attempts.iter().enumerate() {
            if other == me || !attempt.phase.has_won() {
                continue;
            }
            if attempt.token == token {
                all.push(Violation::SameToken);
            }
            if after & 1 << other != 0 && token < attempt.token {
                all.push(Violation::LaterStartSmallerToken);
            }
            for node in &state.nodes {
                let mine = &node.lines[me];
                let theirs = &node.lines[other];
                // A flawed node can be counted without a grant; that has no place in an order.
                let known = mine.rank != 0 && theirs.rank != 0;
                if mine.counted
                    && theirs.counted
                    && known
                    && (mine.rank < theirs.rank) != (token < attempt.token)
                {
                    all.push(Violation::GrantsAgainstTokens);
                }
            }
            if state.is_holding(other) {
                all.push(Violation::TwoHold);
            }
            if token < attempt.token {
                all.push(Violation::LaterHoldSmallerToken);
            }
        }
        all.into_iter().find(|it| self.claims(*it))
    }
}

impl<const A: usize> State<A> {
    /// Whether it has won, and its time is not over.
    fn is_holding(&self, attempt: usize) -> bool {
        let attempt = &self.attempts[attempt];
        attempt.phase == Phase::Holding && !attempt.late
    }
}

fn number(number: u64) -> u8 {
    u8::try_from(number).unwrap()
}

/// Feeds a shipped round with the votes that were heard, that of `last` after the others, or closes it. `None` if the
/// round is not decided by that, or was before. `look` sees the round after that.
fn replay<R: Round, const A: usize>(
    round: R,
    state: &State<A>,
    me: usize,
    last: Option<usize>,
    now: Moment,
    vote: impl Fn(Said) -> Vote,
    look: impl FnOnce(&Ballot<R>),
) -> Option<R::End> {
    let mut round = Ballot::new(NODES, round);
    for (node, Node { lines, .. }) in state.nodes.iter().enumerate() {
        if let Answer::Counted(said) = lines[me].answer
            && Some(node) != last
            && !matches!(
                round.on_vote(NodeId::new(node as u8), vote(said), in_time()),
                Step::Wait
            )
        {
            return None;
        }
    }
    let step = match last.map(|it| (it, state.nodes[it].lines[me].answer)) {
        Some((node, Answer::Counted(said))) => {
            round.on_vote(NodeId::new(node as u8), vote(said), now)
        }
        Some((_, answer)) => panic!("{answer:?} cannot arrive"),
        None => round.on_timeout(now),
    };
    look(&round);
    match step {
        Step::Wait => None,
        Step::Decided(end) => Some(end),
        Step::Late => panic!("an open round took no vote"),
    }
}

fn acquire_vote(said: Said) -> Vote {
    Vote::Acquire(match said {
        Said::Accepted => AcquireReply::Accepted,
        Said::Behind(counter) => AcquireReply::Behind {
            counter: u64::from(counter),
        },
        Said::Ahead(counter) => AcquireReply::Ahead {
            counter: u64::from(counter),
        },
        Said::Held(counter) => AcquireReply::Held {
            counter: u64::from(counter),
            left: None,
            queued: false,
            holder: None,
            which: None,
        },
        Said::Quarantined => return FAILED,
        other => panic!("{other:?} is no answer to an acquire"),
    })
}

fn raise_vote(said: Said) -> Vote {
    Vote::Raise(match said {
        Said::Taken => RaiseReply::Taken,
        Said::Above(counter) => RaiseReply::Above {
            counter: u64::from(counter),
        },
        Said::Gone(_) => RaiseReply::Gone,
        Said::Quarantined => return FAILED,
        other => panic!("{other:?} is no answer to a raise"),
    })
}

fn extend_vote(said: Said) -> Vote {
    Vote::Extend(match said {
        Said::Extended => ExtendReply::Extended,
        Said::Superseded => ExtendReply::Superseded,
        Said::Gone(counter) => ExtendReply::Gone {
            counter: u64::from(counter),
        },
        Said::Quarantined => return FAILED,
        other => panic!("{other:?} is no answer to an extension"),
    })
}
