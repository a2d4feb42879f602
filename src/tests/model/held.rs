//! The round of a release, in every course.

use super::*;
use crate::logic::tally::{ReleaseEnd, ReleaseRound};

const DELETED: Vote = Vote::Released { was_ours: true };

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
fn e7_a_release_counts_confirmations_and_ends_at_its_decision() {
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
