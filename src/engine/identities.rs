//! Which server process each node is, so that one process does not vote twice.

use crate::engine::sync::Mutex;
use crate::ids::NodeId;

/// The run id that each node showed last, and who shows the same one.
#[derive(Debug)]
pub(crate) struct Identities {
    nodes: Mutex<Vec<Shown>>,
}

#[derive(Clone, Debug, Default)]
struct Shown {
    /// Of the one that has the vote.
    run_id: Option<String>,
    double: Option<NodeId>,
}

/// Another node has shown the run id before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Double {
    pub(crate) other: NodeId,
    /// Nobody has been told of it yet.
    pub(crate) is_news: bool,
}

impl Identities {
    pub(crate) fn new(nodes: usize) -> Identities {
        Identities { nodes: Mutex::new(vec![Shown::default(); nodes]) }
    }

    /// Notes that `node` says to be the process `run_id`. If another node has said so before, they have one vote together,
    /// and it is that one's.
    ///
    /// A node keeps what it claimed while its connection is down: otherwise its double would take over the vote, and
    /// which of the two counts would change back and forth. Nobody can tell from here which of two is right if they are
    /// not one: so the pair is said to whoever looks, at both nodes.
    pub(crate) fn claim(&self, node: NodeId, run_id: &str) -> Result<(), Double> {
        let mut nodes = self.nodes.lock();
        let other = nodes.iter().enumerate().find_map(|(i, it)| {
            let other = NodeId::new(u8::try_from(i).ok()?);
            (other != node && it.run_id.as_deref() == Some(run_id)).then_some(other)
        });
        let before = nodes.get(node.index()).and_then(|it| it.double);
        // Whoever was paired with it by what it said before is so no more.
        nodes.iter_mut().filter(|it| it.double == Some(node)).for_each(|it| it.double = None);
        if let Some(shown) = nodes.get_mut(node.index()) {
            let run_id = if other.is_some() { None } else { Some(run_id.to_owned()) };
            *shown = Shown { run_id, double: other };
        }
        let Some(other) = other else { return Ok(()) };
        if let Some(shown) = nodes.get_mut(other.index()) {
            shown.double = Some(node);
        }
        Err(Double { other, is_news: before != Some(other) })
    }

    /// Which other node showed the same run id, if one did.
    pub(crate) fn double_of(&self, node: NodeId) -> Option<NodeId> {
        self.nodes.lock().get(node.index())?.double
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_one_process_has_one_vote_until_it_is_another_process() {
        let (n0, n1) = (NodeId::new(0), NodeId::new(1));
        let identities = Identities::new(2);
        assert_eq!(identities.claim(n0, "a"), Ok(()));
        assert_eq!(identities.claim(n0, "a"), Ok(()), "a reconnect");
        assert_eq!(identities.claim(n1, "a"), Err(Double { other: n0, is_news: true }));
        assert_eq!(identities.claim(n1, "a"), Err(Double { other: n0, is_news: false }));
        assert_eq!(identities.claim(n0, "b"), Ok(()), "a restart");
        assert_eq!(identities.claim(n1, "a"), Ok(()));
    }

    #[test]
    fn b1_two_nodes_that_show_the_same_run_id_are_known_for_it_both_until_one_shows_another() {
        let [n0, n1, n2] = [0, 1, 2].map(NodeId::new);
        let identities = Identities::new(3);
        let doubles = || [n0, n1, n2].map(|it| identities.double_of(it));
        assert!(identities.claim(n2, "a").is_ok() && identities.claim(n0, "b").is_ok());
        assert_eq!(doubles(), [None; 3]);
        assert!(identities.claim(n1, "a").is_err());
        assert_eq!(doubles(), [None, Some(n2), Some(n1)]);
        assert!(identities.claim(n1, "c").is_ok());
        assert_eq!(doubles(), [None; 3]);
        assert!(identities.claim(n1, "a").is_err() && identities.claim(n2, "d").is_ok());
        assert_eq!(doubles(), [None; 3], "the pair ends when either of them shows another one");
    }
}
