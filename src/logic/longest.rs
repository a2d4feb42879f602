//! How long a node is quarantined that has forgotten: the longest quarantine that anybody needs, as far as one can know.
//!
//! What such a node has forgotten was granted for the ttl of *its* holder, which may be longer than ours. So every client
//! tells every node, on every connection, how long a quarantine it needs, and nodes tell each other through clients. A node
//! that forgets also forgets what it was told. Then the other nodes still know it, and clients do.

use std::time::Duration;

/// No client needs more, in milliseconds: twice the longest ttl that is allowed. A node that says more is not believed.
const LONGEST_MAX: u64 = 2 * 60 * 60 * 1_000;

/// How long a quarantine somebody needs, as a node has told.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Told {
    pub(crate) millis: u64,
    /// When somebody last asked for it: days since 1970. It is passed on with the number, so that passing it on does not keep
    /// the number alive: nodes forget what nobody has asked for today or yesterday.
    pub(crate) day: u64,
}

/// The longest quarantine that we need, and what each node has told last.
#[derive(Clone, Debug)]
pub(crate) struct Longest {
    own: u64,
    told: Vec<Told>,
}

impl Longest {
    pub(crate) fn new(own: u64, nodes: usize) -> Longest {
        Longest { own, told: vec![Told::default(); nodes] }
    }

    /// A node has answered what we told it. It knows now what we know, unless that is too long ago.
    pub(crate) fn hear(&mut self, node: usize, told: Told) {
        if let Some(last) = self.told.get_mut(node) {
            *last = Told { millis: told.millis.min(LONGEST_MAX), ..told };
        }
    }

    /// The longest that anybody needs: how long every node is quarantined that has forgotten.
    pub(crate) fn quarantine_length(&self) -> Duration {
        Duration::from_millis(self.own.max(self.largest().millis))
    }

    /// What a node has told last, in milliseconds: 0 before it has.
    pub(crate) fn told_by(&self, node: usize) -> u64 {
        self.told.get(node).map_or(0, |it| it.millis)
    }

    /// What every node is told besides our own number, if that is not the longest. The node that told us is told it too, for
    /// it may have forgotten it since.
    pub(crate) fn to_pass_on(&self) -> Told {
        Some(self.largest()).filter(|it| self.own < it.millis).unwrap_or_default()
    }

    fn largest(&self) -> Told {
        self.told.iter().copied().max_by_key(|it| (it.millis, it.day)).unwrap_or_default()
    }

    pub(crate) fn own(&self) -> u64 {
        self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(millis: u64, day: u64) -> Told {
        Told { millis, day }
    }

    #[test]
    fn h15_the_longest_silence_that_any_node_tells_of_is_that_of_all() {
        let mut longest = Longest::new(1_000, 3);
        assert_eq!((longest.quarantine_length().as_millis(), longest.to_pass_on()), (1_000, told(0, 0)));
        longest.hear(0, told(1_000, 7));
        assert_eq!((longest.told_by(0), longest.told_by(1), longest.told_by(9)), (1_000, 0, 0));
        assert_eq!((longest.to_pass_on(), longest.own()), (told(0, 0), 1_000), "it is told our own number anyway");

        longest.hear(1, told(30_000, 7));
        longest.hear(0, told(1_000, 8));
        assert_eq!((longest.quarantine_length().as_millis(), longest.to_pass_on()), (30_000, told(30_000, 7)));
        // Of equal ones the later, which is remembered for longer.
        longest.hear(2, told(30_000, 8));
        assert_eq!(longest.to_pass_on(), told(30_000, 8));
        longest.hear(9, told(99_000, 8));
        assert_eq!(longest.quarantine_length().as_millis(), 30_000, "no such node");
        longest.hear(2, told(u64::MAX, u64::MAX));
        assert_eq!(longest.quarantine_length().as_secs(), 7_200, "nor does anybody need that");
    }

    #[test]
    fn h15_a_number_that_nobody_has_used_for_long_fades_with_the_nodes() {
        let mut longest = Longest::new(1_000, 2);
        [0, 1].into_iter().for_each(|it| longest.hear(it, told(30_000, 7)));

        longest.hear(0, told(1_000, 9));
        assert_eq!(longest.quarantine_length().as_millis(), 30_000, "the other one may not know that yet");
        longest.hear(1, told(1_000, 9));
        assert_eq!(longest.quarantine_length().as_millis(), 1_000);
    }
}
