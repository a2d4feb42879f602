//! The rounds of a held lock, in every course. They know no time: the lease decides what an answer is still worth.

use super::*;
use crate::answer::{ExtendReply, ReleaseReply};
use crate::logic::tally::{ExtendEnd, ExtendRound, ReleaseEnd, ReleaseRound};

const EXTENDED: Vote = Vote::Extend(ExtendReply::Extended);
const GONE: Vote = Vote::Extend(ExtendReply::Gone { counter: 0 });
const DELETED: Vote = Vote::Release(ReleaseReply::Deleted);

const EXTEND_VOTES: [Vote; 4] = [
    EXTENDED,
    GONE,
    Vote::Extend(ExtendReply::Superseded),
    FAILED,
];

fn extend_oracle(facts: &Facts<'_>) -> Step<ExtendEnd> {
    // What every way in which the open nodes may answer leads to; certain if all of them lead to the same.
    let mut extended_or_not = [false; 2];
    let mut gone_or_not = [false; 2];
    for more_extended in 0..=facts.open() {
        let extended = facts.count(|it| *it == EXTENDED) + more_extended;
        extended_or_not[usize::from(majority(facts.nodes, extended))] = true;
    }
    for more_gone in 0..=facts.open() {
        let others = facts.nodes - facts.count(|it| *it == GONE) - more_gone;
        gone_or_not[usize::from(!majority(facts.nodes, others))] = true;
    }
    match (extended_or_not, gone_or_not) {
        ([false, true], _) => Step::Decided(ExtendEnd::Confirmed),
        (_, [false, true]) => Step::Decided(ExtendEnd::Gone),
        ([true, false], [true, false]) => Step::Decided(ExtendEnd::NotConfirmed),
        _ => Step::Wait,
    }
}

#[test]
fn d1_d3_an_extension_is_confirmed_or_the_lock_gone_only_by_a_majority_and_at_once() {
    let mut courses = 0;
    for every_order in [false, true] {
        let plan = Plan {
            nodes: if every_order && !long() { 1..=4 } else { 1..=5 },
            every_order,
            kinds: &EXTEND_VOTES,
            late: &[deadline()],
            echoes: if every_order { &[EXTENDED, GONE] } else { &[] },
            stragglers: &EXTENDED,
        };
        courses += plan.each_course(|course| {
            play(ExtendRound, course, extend_oracle);
        });
    }
    assert!(long() || courses == 60_500, "{courses}");
}

#[test]
fn d3_half_of_the_nodes_is_enough_to_lose_a_lock_but_not_to_keep_it() {
    let mut round = Ballot::new(4, ExtendRound);
    assert_eq!(
        round.on_vote(NodeId::new(0), EXTENDED, in_time()),
        Step::Wait
    );
    assert_eq!(
        round.on_vote(NodeId::new(1), EXTENDED, in_time()),
        Step::Wait
    );
    assert_eq!(round.on_vote(NodeId::new(2), GONE, in_time()), Step::Wait);
    assert_eq!(
        round.on_vote(NodeId::new(3), GONE, in_time()),
        Step::Decided(ExtendEnd::Gone)
    );
}

fn release_oracle(facts: &Facts<'_>, needed: usize) -> Step<ReleaseEnd> {
    let confirmed = facts.count(|it| *it != FAILED);
    let can_be_enough = (0..=facts.open()).any(|more| needed <= confirmed + more);
    if needed <= confirmed || !can_be_enough {
        Step::Decided(ReleaseEnd {
            confirmed,
            enough: can_be_enough,
            lost: false,
        })
    } else {
        Step::Wait
    }
}

/// For every number of nodes that can be needed, and one more than there are.
#[test]
fn e7_a_release_counts_who_confirmed_and_ends_as_soon_as_it_is_certain() {
    let mut courses = 0;
    for every_order in [false, true] {
        let plan = Plan {
            nodes: if every_order && !long() { 1..=4 } else { 1..=5 },
            every_order,
            kinds: &[DELETED, FAILED],
            late: &[deadline()],
            echoes: if every_order { &[DELETED, FAILED] } else { &[] },
            stragglers: &DELETED,
        };
        courses += plan.each_course(|course| {
            let nodes = course.order.len();
            for needed in 0..=nodes + 1 {
                play(ReleaseRound::new(needed), course, |facts| {
                    release_oracle(facts, needed)
                });
            }
        });
    }
    assert!(long() || courses == 4_920, "{courses}");
}
