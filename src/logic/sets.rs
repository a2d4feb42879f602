//! Whether all clients use the same nodes.
//!
//! Two majorities out of different sets need not meet. So every node has an id, and a client that knows the ids of all its
//! nodes leaves a fingerprint of them on each. A client that finds another one there uses other nodes.

/// How many fingerprints of its own a client remembers: one for each node that has got another id, and more.
const EARLIER: usize = 64;

/// The ids of a client's nodes, as far as it knows them.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    ids: Vec<Option<u64>>,
    set: Option<u64>,
    /// Every fingerprint that was left on any of the nodes, the latest last.
    left: Vec<u64>,
}

impl Ids {
    pub(crate) fn new(nodes: usize) -> Ids {
        Ids { ids: vec![None; nodes], set: None, left: Vec::new() }
    }

    /// A node has said its id.
    pub(crate) fn hear(&mut self, node: usize, id: u64) {
        if let Some(known) = self.ids.get_mut(node) {
            *known = Some(id);
            self.set = self.fingerprint();
        }
    }

    /// The connection to a node has ended: behind the next one there may be another.
    pub(crate) fn forget(&mut self, node: usize) {
        if let Some(known) = self.ids.get_mut(node) {
            *known = None;
            self.set = None;
        }
    }

    /// The fingerprint of all nodes; `None` before each has said its id on its connection.
    pub(crate) fn set(&self) -> Option<u64> {
        self.set
    }

    /// What to leave on a node: the fingerprint, and those that were left before. Those are of the same nodes, before one of
    /// them lost its id with everything else. So they are not another client's.
    pub(crate) fn leave(&mut self) -> (Option<u64>, Vec<u64>) {
        let earlier: Vec<u64> = self.left.iter().copied().filter(|it| Some(*it) != self.set).collect();
        if let Some(set) = self.set {
            self.left.clone_from(&earlier);
            self.left.push(set);
            let surplus = self.left.len().saturating_sub(EARLIER);
            self.left.drain(..surplus);
        }
        (self.set, earlier)
    }

    /// FNV-1a over the ids, whatever their order.
    fn fingerprint(&self) -> Option<u64> {
        let mut ids = self.ids.iter().copied().collect::<Option<Vec<u64>>>()?;
        ids.sort_unstable();
        let bytes = ids.iter().flat_map(|it| it.to_be_bytes());
        Some(bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ids: &[u64]) -> Option<u64> {
        let mut known = Ids::new(ids.len());
        ids.iter().enumerate().for_each(|(node, id)| known.hear(node, *id));
        known.set()
    }

    #[test]
    fn nothing_is_left_before_all_nodes_were_met() {
        let mut ids = Ids::new(3);
        ids.hear(0, 7);
        ids.hear(2, 8);
        ids.hear(0, 9);
        assert_eq!(ids.leave(), (None, vec![]));
        ids.hear(1, 6);
        ids.hear(3, 1);
        assert_eq!(ids.leave(), (set(&[9, 6, 8]), vec![]), "there is no fourth");
    }

    #[test]
    fn clients_of_all_versions_leave_the_same_fingerprint() {
        // FNV-1a of eight bytes each, computed elsewhere.
        assert_eq!(set(&[0x0123_4567_89ab_cdef]), Some(0x9ed0_0e1a_f2c1_3f65));
        assert_eq!(set(&[7, 1 << 52, 300]), Some(0x73b3_787f_f707_e5bd));
    }

    #[test]
    fn nodes_with_other_ids_make_a_set_in_place_of_all_that_were_left_before() {
        let mut ids = Ids::new(2);
        let sets = [[7, 8], [7, 9], [6, 9]].map(|it| set(&it).unwrap());
        [(0, 7), (1, 8)].into_iter().for_each(|(node, id)| ids.hear(node, id));
        assert_eq!(ids.leave(), (Some(sets[0]), vec![]));
        assert_eq!(ids.leave(), (Some(sets[0]), vec![]));
        // The second one is left nowhere.
        [(1, 9), (0, 6)].into_iter().for_each(|(node, id)| ids.hear(node, id));
        assert_eq!(ids.leave(), (Some(sets[2]), vec![sets[0]]));
        ids.hear(0, 7);
        assert_eq!(ids.leave(), (Some(sets[1]), vec![sets[0], sets[2]]));
        ids.forget(1);
        assert_eq!(ids.leave(), (None, vec![sets[0], sets[2], sets[1]]));
        ids.hear(1, 8);
        assert_eq!(ids.leave(), (Some(sets[0]), vec![sets[2], sets[1]]));
        for id in 100..300 {
            ids.hear(1, id);
            assert!(ids.leave().1.len() <= EARLIER);
        }
    }

    proptest! {
        #[test]
        fn h15_sets_are_the_same_if_their_nodes_are_in_whatever_order(
            ids in prop::collection::vec(1..1_u64 << 53, 1..6), other in prop::collection::vec(1..4_u64, 1..4),
            another in prop::collection::vec(1..4_u64, 1..4),
        ) {
            let turned: Vec<_> = ids.iter().rev().copied().collect();
            prop_assert_eq!(set(&ids), set(&turned));
            let sorted = |ids: &[u64]| { let mut ids = ids.to_vec(); ids.sort_unstable(); ids };
            prop_assert_eq!(set(&other) == set(&another), sorted(&other) == sorted(&another));
        }
    }
}
