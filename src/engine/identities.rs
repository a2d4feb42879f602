//! Which server process each node is, so that one process does not vote twice.

use crate::engine::sync::Mutex;
use crate::ids::NodeId;

/// The run id that each node showed last.
#[derive(Debug)]
pub(crate) struct Identities {
    run_ids: Mutex<Vec<Option<String>>>,
}

impl Identities {
    pub(crate) fn new(nodes: usize) -> Identities {
        Identities { run_ids: Mutex::new(vec![None; nodes]) }
    }

    /// Notes that `node` is the process `run_id`; the other node if that one is the same process.
    ///
    /// A node keeps what it claimed while its connection is down: otherwise its double would take over the vote, and
    /// which of the two counts would change back and forth.
    pub(crate) fn claim(&self, node: NodeId, run_id: &str) -> Result<(), NodeId> {
        let mut run_ids = self.run_ids.lock();
        let double = run_ids.iter().enumerate().find_map(|(i, it)| {
            let other = NodeId::new(u8::try_from(i).ok()?);
            (other != node && it.as_deref() == Some(run_id)).then_some(other)
        });
        if let Some(place) = run_ids.get_mut(node.index()) {
            *place = if double.is_some() { None } else { Some(run_id.to_owned()) };
        }
        double.map_or(Ok(()), Err)
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
        assert_eq!(identities.claim(n1, "a"), Err(n0));
        assert_eq!(identities.claim(n0, "b"), Ok(()), "a restart");
        assert_eq!(identities.claim(n1, "a"), Ok(()));
    }
}
