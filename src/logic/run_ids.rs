//! The server process of each node, so that no process votes twice.
//!
//! A process shows the same run id at each of its addresses. Nodes with the same run id share one
//! vote. The first of them has the vote until it has been disconnected so long that all its granted
//! locks are over.
//!
//! They may still be two processes: copies of one virtual machine, or a node that pretends to be
//! another. The manager cannot tell which one is right, and it makes no difference. Two majorities
//! then share at least one node besides the pair: `n - 1` votes are left, and each majority has
//! more than half of `n`.

use std::collections::HashSet;
use std::time::Duration;

use crate::ids::NodeId;
use crate::time::Tick;

/// Which node votes for each run id.
#[derive(Clone, Debug)]
pub(crate) struct RunIds {
    /// The claim of each node; none without a vote.
    claims: Vec<Option<Claim>>,
    /// Longest life of a granted lock.
    longest: Duration,
}

#[derive(Clone, Debug)]
struct Claim {
    run_id: String,
    /// Start of the node's time without a connection.
    away_since: Option<Tick>,
}

impl RunIds {
    /// `longest` is the longest ttl, and the margin.
    pub(crate) fn new(nodes: usize, longest: Duration) -> RunIds {
        RunIds {
            claims: vec![None; nodes],
            longest,
        }
    }

    /// Gives a newly connected `node` the vote for its run id. An error: the other node that has
    /// this vote.
    ///
    /// A node keeps its claim for a while after a disconnect: it may have confirmed a held lock,
    /// and a second node would confirm that lock again.
    pub(crate) fn claim(&mut self, node: NodeId, run_id: &str, now: Tick) -> Result<(), NodeId> {
        for (other, claim) in (0..).map(NodeId::new).zip(&mut self.claims) {
            if other != node
                && let Some(Claim { away_since, .. }) =
                    claim.as_ref().filter(|it| it.run_id == run_id)
            {
                let away =
                    away_since.map_or(Duration::ZERO, |it| now.saturating_duration_since(it));
                if away <= self.longest {
                    self.set(node, None);
                    return Err(other);
                }
                *claim = None;
            }
        }
        let (run_id, away_since) = (run_id.to_owned(), None);
        self.set(node, Some(Claim { run_id, away_since }));
        Ok(())
    }

    /// Notes the end of the connection of `node`, if any.
    pub(crate) fn leave(&mut self, node: NodeId, now: Tick) {
        if let Some(Some(claim)) = self.claims.get_mut(node.index()) {
            claim.away_since.get_or_insert(now);
        }
    }

    fn set(&mut self, node: NodeId, claim: Option<Claim>) {
        if let Some(own) = self.claims.get_mut(node.index()) {
            *own = claim;
        }
    }
}

/// Successive processes behind one address, with the time of each first answer.
#[derive(Debug, Default)]
pub(crate) struct BehindAddress(Vec<(String, Tick)>);

impl BehindAddress {
    /// Notes that the address leads to `run_id`. True if it leads to several processes by turns,
    /// now or minutes ago: an id that returns after another one was alive all along. After a
    /// restart the old id never returns.
    pub(crate) fn is_several(&mut self, run_id: &str, now: Tick) -> bool {
        let BehindAddress(shown) = self;
        shown.retain(|it| now.saturating_duration_since(it.1) < SEVERAL_FOR);
        if shown.last().is_none_or(|it| it.0 != run_id) {
            shown.push((run_id.to_owned(), now));
        }
        if SHOWN_MAX < shown.len() {
            shown.remove(0);
        }
        shown.iter().map(|it| &it.0).collect::<HashSet<_>>().len() < shown.len()
    }
}

/// Time for which an address with several processes is not trusted.
const SEVERAL_FOR: Duration = Duration::from_secs(10 * 60);
/// Limit for a constantly restarting server.
const SHOWN_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn b10_a_returning_run_id_shows_several_servers_at_one_address() {
        let now = time::tick();
        let mut behind = BehindAddress::default();
        for (second, run_id, is_several) in [
            (0, "a", false),
            (1, "a", false),
            (2, "b", false),
            (3, "b", false),
            (4, "c", false),
            (5, "a", true),
            (6, "a", true),
            (7, "d", true),
            (599, "d", true),
            (600, "d", false),
            (1300, "e", false),
            (1301, "d", false),
        ] {
            assert_eq!(
                behind.is_several(run_id, after(now, second)),
                is_several,
                "{second}"
            );
        }
        for restart in 0..99 {
            assert!(!behind.is_several(&restart.to_string(), after(now, 3000)));
        }
        assert_eq!(behind.0.len(), SHOWN_MAX);
    }

    const LONGEST: Duration = Duration::from_secs(10);

    fn after(begin: Tick, seconds: u64) -> Tick {
        begin.checked_add(Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn b1_nodes_with_one_run_id_share_a_vote_until_it_changes() {
        let n0 = NodeId::new(0);
        let n1 = NodeId::new(1);
        let now = time::tick();
        let mut run_ids = RunIds::new(2, LONGEST);
        assert_eq!(run_ids.claim(n0, "a", now), Ok(()));
        assert_eq!(run_ids.claim(n0, "a", now), Ok(()), "a reconnect");
        assert_eq!(run_ids.claim(n1, "a", now), Err(n0));
        assert_eq!(run_ids.claim(n1, "a", now), Err(n0));
        assert_eq!(run_ids.claim(n0, "b", now), Ok(()), "a restart");
        assert_eq!(run_ids.claim(n1, "a", now), Ok(()));
    }

    #[test]
    fn b1_a_node_absent_for_the_longest_ttl_leaves_its_vote_to_a_duplicate() {
        let ([n0, n1], begin) = ([0, 1].map(NodeId::new), time::tick());
        let mut run_ids = RunIds::new(2, LONGEST);
        assert_eq!(run_ids.claim(n0, "a", begin), Ok(()));
        assert_eq!(run_ids.claim(n1, "a", begin), Err(n0));
        run_ids.leave(n0, after(begin, 5));
        // Attempts that fail.
        run_ids.leave(n0, after(begin, 14));
        assert_eq!(run_ids.claim(n1, "a", after(begin, 15)), Err(n0));

        assert_eq!(run_ids.claim(n1, "a", after(begin, 16)), Ok(()));

        assert_eq!(run_ids.claim(n0, "a", after(begin, 17)), Err(n1));
    }

    /// What a node can do, at a time.
    #[derive(Clone, Copy, Debug)]
    enum Deed {
        Claim(u8),
        Leave(u8),
        /// Time passes.
        Pass(u64),
    }

    /// All orders in which two nodes show one run id, or go: what the one granted never counts
    /// together with what the other grants, as long as a lock can last.
    #[test]
    fn b1_in_every_order_grants_of_one_run_id_count_for_one_node() {
        use Deed::{Claim, Leave, Pass};
        let deeds = [Claim(0), Claim(1), Leave(0), Leave(1), Pass(6), Pass(11)];
        let begin = time::tick();
        let length = 6_u32;
        let mut worlds = 0_u32;
        let mut both_had_it = 0_u32;
        let mut nobody_had_it = 0_u32;
        for world in 0..deeds.len().pow(length) {
            let mut run_ids = RunIds::new(2, LONGEST);
            let mut seconds = 0;
            let mut up = [false; 2];
            let mut counted_at = [None; 2];
            for place in 0..length {
                match deeds[world / deeds.len().pow(place) % deeds.len()] {
                    Claim(node) => {
                        let claimed = run_ids
                            .claim(NodeId::new(node), "a", after(begin, seconds))
                            .is_ok();
                        up[usize::from(node)] = claimed;
                        let other = 1 - usize::from(node);
                        let idle = |it: u64| LONGEST.as_secs() < seconds - it;
                        // The pair loses one vote, and not both for ever.
                        let free = !up[other] && counted_at[other].is_none_or(idle);
                        nobody_had_it += u32::from(free && !claimed);
                    }
                    Leave(node) => {
                        run_ids.leave(NodeId::new(node), after(begin, seconds));
                        up[usize::from(node)] = false;
                    }
                    Pass(time) => seconds += time,
                }
                // A node that is up grants all the time.
                for node in [0, 1] {
                    counted_at[node] = if up[node] {
                        Some(seconds)
                    } else {
                        counted_at[node]
                    };
                }
                if let [Some(one), Some(other)] = counted_at {
                    assert!(
                        LONGEST.as_secs() < u64::abs_diff(one, other),
                        "{world}: {counted_at:?}"
                    );
                    both_had_it += 1;
                }
                assert!(up != [true; 2], "{world}: both vote");
            }
            worlds += 1;
        }
        assert_eq!((worlds, nobody_had_it), (46_656, 0));
        assert!(
            1_000 < both_had_it,
            "the vote was hardly ever passed on: {both_had_it}"
        );
    }
}
