//! The steps from one set of servers to another.
//!
//! Two sets are compatible if each majority of one shares a server with each majority of the other: then their programs exclude
//! each other. Sets that differ by one server are compatible. So are sets of even size with one server swapped. Sets of odd size
//! with one server swapped are not: {A, C} of ABC and {B, D} of ABD share no server.

/// A deployment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Step<T> {
    /// All servers of the set.
    pub(crate) nodes: Vec<T>,
    pub(crate) adds: Option<T>,
    pub(crate) removes: Option<T>,
}

/// The deployments from one set to the other, none for equal sets. Each step is compatible with the step before. No set is
/// smaller than the smaller one of the two. Servers are removed from the end of the list.
pub(crate) fn steps<T: Clone + PartialEq>(from: &[T], to: &[T]) -> Vec<Step<T>> {
    let (mut nodes, mut steps) = (from.to_vec(), Vec::new());
    loop {
        let missing = to.iter().find(|it| !nodes.contains(it)).cloned();
        let unwanted = nodes.iter().rev().find(|it| !to.contains(it)).cloned();
        let is_even = nodes.len().is_multiple_of(2);
        let (adds, removes) = match (missing, unwanted) {
            (None, None) => return steps,
            (Some(add), Some(_)) if !is_even => (Some(add), None),
            swap_or_single => swap_or_single,
        };
        nodes.retain(|it| Some(it) != removes.as_ref());
        nodes.extend(adds.clone());
        steps.push(Step {
            nodes: nodes.clone(),
            adds,
            removes,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chars(text: &str) -> Vec<char> {
        text.chars().collect()
    }

    /// The sets of all steps.
    fn way(from: &str, to: &str) -> String {
        let sets = steps(&chars(from), &chars(to))
            .into_iter()
            .map(|it| it.nodes.iter().collect());
        sets.collect::<Vec<String>>().join(" ")
    }

    #[test]
    fn each_deployment_adds_one_removes_one_or_swaps_one_in_an_even_set() {
        for (from, to, expected) in [
            ("ABC", "ABC", ""),
            ("ABC", "CAB", ""),
            ("ABC", "ABD", "ABCD ABD"),
            ("ABC", "ABCDE", "ABCD ABCDE"),
            ("ABCDE", "ABC", "ABCD ABC"),
            ("ABCDE", "ABCDF", "ABCDEF ABCDF"),
            ("ABC", "DEF", "ABCD ABDE ADEF DEF"),
            ("ABCD", "ABCE", "ABCE"),
            ("ABCD", "EFGH", "ABCE ABEF AEFG EFGH"),
            ("ABCD", "ABE", "ABCE ABE"),
            ("A", "B", "AB B"),
            ("ABC", "D", "ABCD ABD AD D"),
        ] {
            assert_eq!(way(from, to), expected, "{from} to {to}");
        }
    }

    #[test]
    fn steps_name_what_changes() {
        let changes = steps(&chars("ABC"), &chars("DEF"))
            .into_iter()
            .map(|it| (it.adds, it.removes));
        let expected = [
            (Some('D'), None),
            (Some('E'), Some('C')),
            (Some('F'), Some('B')),
            (None, Some('A')),
        ];
        assert_eq!(changes.collect::<Vec<_>>(), expected);
    }

    /// All sets of servers out of six, as bits.
    fn sets() -> impl Iterator<Item = u32> {
        1..1 << 6
    }

    fn majorities(set: u32) -> impl Iterator<Item = u32> {
        sets().filter(move |it| it & !set == 0 && set.count_ones() / 2 < it.count_ones())
    }

    /// By counting: the servers that two majorities take out of the common ones at least are more than there are.
    fn go_together(one: u32, other: u32) -> bool {
        let common = (one & other).count_ones();
        let needed =
            |set: u32| (set.count_ones() / 2 + 1).saturating_sub(set.count_ones() - common);
        common < needed(one) + needed(other)
    }

    #[test]
    fn the_formula_agrees_with_all_pairs_of_majorities() {
        for one in sets() {
            for other in sets() {
                let meet = majorities(one).all(|it| majorities(other).all(|its| it & its != 0));
                assert_eq!(go_together(one, other), meet, "{one:b} {other:b}");
            }
        }
        assert!(
            go_together(0b111, 0b1111)
                && !go_together(0b111, 0b1011)
                && !go_together(0b111, 0b11111)
        );
    }

    #[test]
    fn every_way_leads_there_by_sets_that_go_together_and_none_is_small() {
        let list = |set: u32| (0..6).filter(|it| set >> it & 1 == 1).collect::<Vec<u32>>();
        let bits = |nodes: &[u32]| nodes.iter().fold(0, |set, it| set | 1 << it);
        for from in sets() {
            for to in sets() {
                let (mut at, mut changes) = (from, 0);
                for step in steps(&list(from), &list(to)) {
                    let next = bits(&step.nodes);
                    assert!(go_together(at, next), "{from:b} to {to:b}: {at:b} {next:b}");
                    assert!(
                        from.count_ones().min(to.count_ones()) <= next.count_ones(),
                        "{from:b} to {to:b}: {next:b}"
                    );
                    assert_eq!(
                        at ^ next,
                        bits(
                            &step
                                .adds
                                .into_iter()
                                .chain(step.removes)
                                .collect::<Vec<_>>()
                        )
                    );
                    changes += (at ^ next).count_ones();
                    at = next;
                }
                // So none that leaves comes back.
                assert_eq!(
                    (at, changes),
                    (to, (from ^ to).count_ones()),
                    "{from:b} to {to:b}"
                );
            }
        }
    }
}
