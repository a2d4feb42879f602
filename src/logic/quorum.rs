//! What a majority is.

/// How many nodes make a majority of `nodes` *configured* ones; never count connected ones instead.
pub(crate) fn quorum(nodes: usize) -> usize {
    (nodes / 2).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a_quorum_is_more_than_half_of_the_configured_nodes() {
        let quorums: Vec<_> = (1..=7).map(quorum).collect();
        assert_eq!(quorums, [1, 2, 2, 3, 3, 4, 4]);
    }

    /// All sets of servers out of seven, as bits.
    fn lists() -> std::ops::Range<u32> {
        1..1 << 7
    }

    /// Whether a program of each list can hold the same lock, if these servers are dead.
    fn can_both_hold(one: u32, other: u32, dead: u32) -> bool {
        let count = |set: u32| usize::try_from(set.count_ones()).unwrap();
        let majorities = |list: u32| {
            lists().filter(move |votes| {
                votes & !(list & !dead) == 0 && quorum(count(list)) <= count(*votes)
            })
        };
        majorities(one).any(|votes| majorities(other).any(|others| votes & others == 0))
    }

    #[test]
    fn h26_majorities_of_lists_with_one_server_more_or_less_or_a_dead_one_replaced_share_a_server()
    {
        for list in lists() {
            for server in (0..7).map(|number| 1 << number) {
                assert!(
                    !can_both_hold(list, list ^ server, 0),
                    "{list:b} {server:b}"
                );
                for dead in (0..7)
                    .map(|number| 1 << number)
                    .filter(|dead| list & dead != 0)
                {
                    let replaced = list & !dead | server;
                    assert!(
                        !can_both_hold(list, replaced, dead),
                        "{list:b} {replaced:b}"
                    );
                }
            }
        }
        assert!(can_both_hold(0b111, 0b1011, 0), "ABC beside ABD");
        assert!(can_both_hold(0b111, 0b11111, 0), "two at once");
    }
}
