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
}
