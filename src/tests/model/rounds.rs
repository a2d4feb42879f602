//! The rounds of an acquisition, in every course.
//!
//! Orders. A round knows nodes only as places for votes, so with the nodes in one order and every *list* of votes, all
//! orders of answers are covered; that the places make no difference is then checked with every order of fewer nodes
//! or of fewer kinds of votes.

use super::*;
use crate::answer::LockStatus;
use crate::error::RoundLoss;
use crate::logic::acquire_round::{AcquireEnd, AcquireRound, RaiseRound, Rule};
use crate::logic::token::LIMIT;

const PROPOSAL: u64 = 10;

const ACCEPTED: Vote = Vote::of(LockStatus::Accepted);
const UNUSABLE: Vote = Vote::of(LockStatus::BadCounter);
const TAKEN: Vote = Vote::of(LockStatus::Raised);
const GONE: Vote = Vote::of(LockStatus::NotOurs);

const fn behind(counter: u64) -> Vote {
    Vote::with_counter(LockStatus::ProposalBehind, counter)
}

const fn held(counter: u64) -> Vote {
    Vote::with_counter(LockStatus::Held, counter)
}

const fn above(counter: u64) -> Vote {
    Vote::with_counter(LockStatus::NotRaised, counter)
}

fn is_held(vote: &Vote) -> bool {
    matches!(
        vote.status(),
        Some(LockStatus::Held | LockStatus::HeldByReaders)
    )
}

fn is_behind(vote: &Vote) -> bool {
    vote.is(LockStatus::ProposalBehind)
}

/// Counters below, at and above the proposal, some of them different, so that a largest one taken from the wrong votes
/// shows. The first vote is none that a script gives: a node that did not accept must not be counted even if its
/// counter is no obstacle, and without this vote the check of counters alone would do.
const ACQUIRE_VOTES: [Vote; 9] = [
    behind(4),
    ACCEPTED,
    behind(PROPOSAL),
    behind(13),
    held(3),
    Vote::with_counter(LockStatus::HeldByReaders, PROPOSAL),
    held(15),
    UNUSABLE,
    FAILED,
];

fn acquire_round() -> AcquireRound {
    AcquireRound::new(Rule::Exclusive, PROPOSAL, Some(deadline()))
}

fn acquire_oracle(facts: &Facts<'_>) -> Step<AcquireEnd> {
    let nodes = facts.nodes;
    let failed = facts.count(|it| *it == FAILED) + facts.quarantined();
    let unusable = facts.count(|it| *it == UNUSABLE);
    let held = facts.count(is_held);
    let accepted = facts.count(|it| *it == ACCEPTED);
    let granted = accepted + facts.count(is_behind);
    let largest = facts
        .votes
        .iter()
        .fold(0, |largest, it| largest.max(counter(it)));

    if !facts.within_reach(granted) {
        // Blame what alone is enough to explain it. A lock is held where a majority votes.
        let why = if !majority(nodes, nodes - failed) {
            RoundLoss::NoQuorum
        } else if !majority(nodes, nodes - unusable) {
            RoundLoss::KeyInUse
        } else if !majority(nodes, nodes - failed - unusable) {
            RoundLoss::NoQuorum
        } else if majority(nodes, granted + held) {
            RoundLoss::Held
        } else {
            return Step::Wait;
        };
        return Step::Decided(AcquireEnd::Lost(why));
    }
    if facts.late {
        return Step::Decided(AcquireEnd::Lost(RoundLoss::TooLate));
    }
    if !majority(nodes, granted) {
        return Step::Wait;
    }
    if majority(nodes, accepted) && largest < PROPOSAL {
        Step::Decided(AcquireEnd::Won { token: PROPOSAL })
    } else {
        Step::Decided(AcquireEnd::Raise {
            token: largest.max(PROPOSAL) + 1,
        })
    }
}

/// Every list of votes of every length. For five nodes the deadline passes on both clocks at once: which of them says
/// so is a matter of `Moment` alone, and four nodes have covered it; so they have the vote that no script gives.
#[test]
fn a3_no_answers_win_without_a_majority_in_time() {
    let mut courses = 0;
    let all_clocks = if long() { 1..=5 } else { 1..=4 };
    let votes = &ACQUIRE_VOTES;
    for (nodes, kinds, late) in [
        (all_clocks, &votes[..], &too_late()[..]),
        (5..=5, &votes[1..], &[deadline()]),
    ] {
        let plan = Plan {
            nodes,
            every_order: false,
            kinds,
            late,
            echoes: &[],
            stragglers: &ACCEPTED,
        };
        courses += plan.each_course(|course| play(acquire_round(), course, acquire_oracle));
    }
    assert!(long() || courses == 422_864, "{courses}");
}

/// Every order of the nodes, and each of them says everything once more right after its vote.
#[test]
fn a3_no_order_of_answers_and_no_second_answer_makes_a_difference() {
    let few = [ACCEPTED, behind(13), FAILED];
    let echoes = [ACCEPTED, held(99), FAILED];
    let every_order = true;
    let stragglers = &ACCEPTED;
    let mut courses = 0;
    let five = if long() {
        &few[..]
    } else {
        &[ACCEPTED, FAILED]
    };
    for (nodes, kinds) in [
        (1..=3, &ACQUIRE_VOTES[..]),
        (4..=4, &few[..]),
        (5..=5, five),
    ] {
        let plan = Plan {
            nodes,
            every_order,
            kinds,
            late: &[deadline()],
            echoes: &echoes,
            stragglers,
        };
        courses += plan.each_course(|course| play(acquire_round(), course, acquire_oracle));
    }
    assert!(long() || courses == 86_835, "{courses}");
}

#[test]
fn a3_a_node_that_is_none_of_ours_has_no_vote() {
    for nodes in 1..=5_u8 {
        let mut round = Ballot::new(
            usize::from(nodes),
            AcquireRound::new(Rule::Exclusive, PROPOSAL, Some(deadline())),
        );
        for stranger in nodes..=u8::MAX {
            assert_eq!(
                round.on_vote(NodeId::new(stranger), ACCEPTED, in_time()),
                Step::Late
            );
        }
        assert_eq!(
            round.on_timeout(in_time()),
            Step::Decided(AcquireEnd::Lost(RoundLoss::NoQuorum))
        );
    }
}

#[test]
fn a13_a_deadline_beyond_every_clock_is_never_met() {
    let plan = Plan {
        nodes: 1..=3,
        every_order: false,
        kinds: &ACQUIRE_VOTES,
        late: &[in_time()],
        echoes: &[],
        stragglers: &ACCEPTED,
    };
    plan.each_course(|course| {
        let round = AcquireRound::new(Rule::Exclusive, PROPOSAL, None);
        play(round, course, |facts| {
            acquire_oracle(&Facts {
                late: true,
                ..*facts
            })
        });
    });
    for nodes in 1..=3 {
        let mut round = Ballot::new(nodes, RaiseRound::new(Rule::Exclusive, TOKEN, None));
        assert_eq!(
            round.on_vote(NodeId::new(0), TAKEN, in_time()),
            Step::Decided(AcquireEnd::Lost(RoundLoss::TooLate))
        );
    }
}

/// The oracle's answers once more, as the promises that users rely on: about the history alone, and without a case
/// distinction that a mistake could hide in.
#[test]
fn a2_a_round_that_is_won_had_a_majority_in_time_and_the_largest_number() {
    let mut won = 0;
    for nodes in 1..=4_u8 {
        each_list(&ACQUIRE_VOTES, usize::from(nodes), &mut |votes| {
            for late_from in 0..=votes.len() {
                let mut round = Ballot::new(
                    votes.len(),
                    AcquireRound::new(Rule::Exclusive, PROPOSAL, Some(deadline())),
                );
                let ends: Vec<_> = (0..nodes)
                    .zip(votes)
                    .enumerate()
                    .filter_map(|(event, (node, vote))| {
                        let now = if late_from <= event {
                            deadline()
                        } else {
                            in_time()
                        };
                        match round.on_vote(NodeId::new(node), vote.clone(), now) {
                            Step::Decided(end) => Some((event, end)),
                            Step::Wait | Step::Late => None,
                        }
                    })
                    .collect();
                let [(event, end)] = ends[..] else {
                    panic!("{ends:?} after {votes:?}")
                };
                let known = &votes[..=event];
                let granted = known
                    .iter()
                    .filter(|it| **it == ACCEPTED || is_behind(it))
                    .count();
                match end {
                    AcquireEnd::Won { token } => {
                        won += 1;
                        let accepted = known.iter().filter(|it| **it == ACCEPTED).count();
                        assert!(
                            majority(votes.len(), accepted) && event < late_from,
                            "{known:?}"
                        );
                        assert_eq!(token, PROPOSAL);
                        assert!(known.iter().all(|it| counter(it) < token), "{known:?}");
                    }
                    AcquireEnd::Raise { token } => {
                        assert!(
                            majority(votes.len(), granted) && event < late_from,
                            "{known:?}"
                        );
                        assert!(
                            PROPOSAL < token && known.iter().all(|it| counter(it) < token),
                            "{known:?}"
                        );
                    }
                    AcquireEnd::Lost(_) => {
                        assert!(
                            late_from <= event || !majority(votes.len(), granted),
                            "{known:?}"
                        );
                    }
                }
            }
        });
    }
    assert_eq!(won, 53);
}

fn counter(vote: &Vote) -> u64 {
    match vote {
        Vote::Lock(reply) => reply.counter.unwrap_or(0),
        _ => 0,
    }
}

#[test]
fn a_token_that_a_script_could_not_compare_is_never_offered() {
    for (counter, end) in [
        (LIMIT - 2, AcquireEnd::Raise { token: LIMIT - 1 }),
        (LIMIT - 1, AcquireEnd::Lost(RoundLoss::KeyInUse)),
        (LIMIT, AcquireEnd::Lost(RoundLoss::KeyInUse)),
        (u64::MAX, AcquireEnd::Lost(RoundLoss::KeyInUse)),
    ] {
        // More nodes than a majority can do without show it.
        let mut round = Ballot::new(
            3,
            AcquireRound::new(Rule::Exclusive, PROPOSAL, Some(deadline())),
        );
        assert_eq!(
            round.on_vote(NodeId::new(0), behind(counter), in_time()),
            Step::Wait
        );
        assert_eq!(
            round.on_vote(NodeId::new(1), behind(counter), in_time()),
            Step::Decided(end),
            "{counter}"
        );
        assert_eq!(round.seen(), counter);

        // A single one is not believed.
        let mut round = Ballot::new(
            3,
            AcquireRound::new(Rule::Exclusive, PROPOSAL, Some(deadline())),
        );
        assert_eq!(
            round.on_vote(NodeId::new(0), held(counter), in_time()),
            Step::Wait
        );
        assert_eq!(
            round.on_vote(NodeId::new(1), ACCEPTED, in_time()),
            Step::Wait
        );
        let won = Step::Decided(AcquireEnd::Won { token: PROPOSAL });
        assert_eq!(
            round.on_vote(NodeId::new(2), ACCEPTED, in_time()),
            won,
            "{counter}"
        );
    }
}

const TOKEN: u64 = 20;

/// A counter below the token comes with "above" only if it was lost in between: not counted, and no reason to give up.
const RAISE_VOTES: [Vote; 6] = [
    TAKEN,
    above(TOKEN - 1),
    above(TOKEN),
    above(TOKEN + 1),
    GONE,
    FAILED,
];

fn raise_round() -> RaiseRound {
    RaiseRound::new(Rule::Exclusive, TOKEN, Some(deadline()))
}

fn raise_oracle(facts: &Facts<'_>) -> Step<AcquireEnd> {
    let taken = facts.count(|it| *it == TAKEN);
    let failed = facts.count(|it| *it == FAILED) + facts.quarantined();
    let overtaken = facts.votes.iter().any(|it| TOKEN <= counter(it));
    let lost = |why| Step::Decided(AcquireEnd::Lost(why));

    if facts.late {
        lost(RoundLoss::TooLate)
    } else if overtaken {
        lost(RoundLoss::Overtaken)
    } else if majority(facts.nodes, taken) {
        Step::Decided(AcquireEnd::Won { token: TOKEN })
    } else if !majority(facts.nodes, facts.nodes - failed) {
        lost(RoundLoss::NoQuorum)
    } else if !facts.within_reach(taken) {
        lost(RoundLoss::Overtaken)
    } else {
        Step::Wait
    }
}

#[test]
fn a7_no_answers_to_a_raise_win_unless_a_majority_took_the_token_in_time() {
    let mut courses = 0;
    for (nodes, late) in [(1..=4, &too_late()[..]), (5..=5, &[deadline()])] {
        let plan = Plan {
            nodes,
            every_order: false,
            kinds: &RAISE_VOTES,
            late,
            echoes: &[],
            stragglers: &TAKEN,
        };
        courses += plan.each_course(|course| play(raise_round(), course, raise_oracle));
    }
    assert_eq!(courses, 99_652);
}

#[test]
fn a7_no_order_of_answers_to_a_raise_and_no_second_answer_makes_a_difference() {
    let few = [TAKEN, GONE, FAILED];
    let echoes = [TAKEN, above(99), FAILED];
    let every_order = true;
    let stragglers = &TAKEN;
    let mut courses = 0;
    let five = if long() { &few[..] } else { &[TAKEN, FAILED] };
    for (nodes, kinds) in [(1..=3, &RAISE_VOTES[..]), (4..=4, &few[..]), (5..=5, five)] {
        let plan = Plan {
            nodes,
            every_order,
            kinds,
            late: &[deadline()],
            echoes: &echoes,
            stragglers,
        };
        courses += plan.each_course(|course| play(raise_round(), course, raise_oracle));
    }
    assert!(long() || courses == 69_924, "{courses}");
}
