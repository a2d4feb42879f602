//! The server process of each node, so that no process votes twice.
//!
//! A process shows the same run id at each of its addresses. Nodes with the same run id share one vote. The first of
//! them has the vote until it has been disconnected so long that all its granted locks are over.
//!
//! They may still be two processes: copies of one virtual machine, or a node that pretends to be another. The manager
//! cannot tell which one is right, and it makes no difference. Two majorities then share at least one node besides the
//! pair: `n - 1` votes are left, and each majority has more than half of `n`.

use std::collections::HashSet;
use std::time::Duration;

use crate::ids::NodeId;
use crate::time::Tick;

/// The last run id of each node, and its double.
#[derive(Clone, Debug)]
pub(crate) struct RunIds {
    nodes: Vec<Shown>,
    /// Longest life of a granted lock.
    longest: Duration,
}

#[derive(Clone, Debug)]
struct Shown {
    of: NodeId,
    /// Kept only by the node with the vote.
    run_id: Option<String>,
    double: Option<NodeId>,
    /// Start of its time without a connection.
    away_since: Option<Tick>,
}

impl Shown {
    fn of(of: NodeId) -> Shown {
        Shown {
            of,
            run_id: None,
            double: None,
            away_since: None,
        }
    }
}

/// Another node has the run id already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DuplicateServer {
    pub(crate) other: NodeId,
    /// Whether the pair is new.
    pub(crate) is_news: bool,
}

impl RunIds {
    /// `longest` is the longest ttl, and the margin.
    pub(crate) fn new(nodes: usize, longest: Duration) -> RunIds {
        let of = (0..).map(NodeId::new).take(nodes);
        RunIds {
            nodes: of.map(Shown::of).collect(),
            longest,
        }
    }

    /// Notes the run id of a newly connected `node`. If another node has the same one, the two share one vote, and the
    /// other node has it.
    ///
    /// A node keeps its claim for a while after a disconnect: it may have confirmed a held lock, and its double would
    /// confirm that lock again.
    pub(crate) fn claim(
        &mut self,
        node: NodeId,
        run_id: &str,
        now: Tick,
    ) -> Result<(), DuplicateServer> {
        let Some(own) = self.nodes.get_mut(node.index()) else {
            return Ok(());
        };
        if own.run_id.as_deref() == Some(run_id) {
            own.away_since = None;
            return Ok(());
        }
        let mut others = self.nodes.iter_mut().filter(|it| it.of != node);
        let other = others
            .find(|it| it.run_id.as_deref() == Some(run_id))
            .map(|shown| {
                let has_left = shown
                    .away_since
                    .is_some_and(|away| self.longest < now.saturating_duration_since(away));
                if has_left {
                    shown.run_id = None;
                }
                (shown.of, has_left)
            });
        let has_vote = other.is_none_or(|it| it.1);
        let other = other.map(|it| it.0);
        let before = self.double_of(node);
        // Its last run id may have paired it with another node.
        self.nodes
            .iter_mut()
            .filter(|it| it.double == Some(node))
            .for_each(|it| it.double = None);
        if let Some(own) = self.nodes.get_mut(node.index()) {
            *own = Shown {
                run_id: has_vote.then(|| run_id.to_owned()),
                double: other,
                ..Shown::of(node)
            };
        }
        let Some(other) = other else { return Ok(()) };
        if let Some(shown) = self.nodes.get_mut(other.index()) {
            shown.double = Some(node);
        }
        if has_vote {
            Ok(())
        } else {
            Err(DuplicateServer {
                other,
                is_news: before != Some(other),
            })
        }
    }

    /// Notes the end of the connection of `node`, if any.
    pub(crate) fn leave(&mut self, node: NodeId, now: Tick) {
        if let Some(shown) = self.nodes.get_mut(node.index()) {
            shown.away_since.get_or_insert(now);
        }
    }

    /// The other node with the same run id, if any.
    pub(crate) fn double_of(&self, node: NodeId) -> Option<NodeId> {
        self.nodes.get(node.index())?.double
    }
}

/// Successive processes behind one address, with the time of each first answer.
#[derive(Debug, Default)]
pub(crate) struct BehindAddress(Vec<(String, Tick)>);

impl BehindAddress {
    /// Notes that the address leads to `run_id`. True if it leads to several processes by turns, now or minutes ago: an
    /// id that returns after another one was alive all along. After a restart the old id never returns.
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
    fn b10_a_process_that_comes_back_after_another_shows_several_behind_an_address() {
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
    fn b1_one_process_has_one_vote_until_it_is_another_process() {
        let n0 = NodeId::new(0);
        let n1 = NodeId::new(1);
        let now = time::tick();
        let mut run_ids = RunIds::new(2, LONGEST);
        assert_eq!(run_ids.claim(n0, "a", now), Ok(()));
        assert_eq!(run_ids.claim(n0, "a", now), Ok(()), "a reconnect");
        assert_eq!(
            run_ids.claim(n1, "a", now),
            Err(DuplicateServer {
                other: n0,
                is_news: true
            })
        );
        assert_eq!(
            run_ids.claim(n1, "a", now),
            Err(DuplicateServer {
                other: n0,
                is_news: false
            })
        );
        assert_eq!(run_ids.claim(n0, "b", now), Ok(()), "a restart");
        assert_eq!(run_ids.claim(n1, "a", now), Ok(()));
    }

    #[test]
    fn b1_two_nodes_that_show_the_same_run_id_are_known_for_it_both_until_one_shows_another() {
        let ([n0, n1, n2], now) = ([0, 1, 2].map(NodeId::new), time::tick());
        let mut run_ids = RunIds::new(3, LONGEST);
        let doubles = |it: &RunIds| [n0, n1, n2].map(|node| it.double_of(node));
        assert!(run_ids.claim(n2, "a", now).is_ok() && run_ids.claim(n0, "b", now).is_ok());
        assert_eq!(doubles(&run_ids), [None; 3]);
        assert!(run_ids.claim(n1, "a", now).is_err());
        assert_eq!(doubles(&run_ids), [None, Some(n2), Some(n1)]);
        assert!(run_ids.claim(n2, "a", now).is_ok());
        assert_eq!(
            doubles(&run_ids),
            [None, Some(n2), Some(n1)],
            "a reconnect of the node with the vote changes nothing"
        );
        assert_eq!(
            run_ids.claim(n1, "a", now),
            Err(DuplicateServer {
                other: n2,
                is_news: false
            })
        );
        assert!(run_ids.claim(n1, "c", now).is_ok());
        assert_eq!(doubles(&run_ids), [None; 3]);
        assert!(run_ids.claim(n1, "a", now).is_err() && run_ids.claim(n2, "d", now).is_ok());
        assert_eq!(
            doubles(&run_ids),
            [None; 3],
            "the pair ends when either of them shows another one"
        );
    }

    #[test]
    fn b1_who_has_been_away_for_the_longest_ttl_leaves_the_vote_to_its_double() {
        let ([n0, n1], begin) = ([0, 1].map(NodeId::new), time::tick());
        let mut run_ids = RunIds::new(2, LONGEST);
        assert_eq!(run_ids.claim(n0, "a", begin), Ok(()));
        assert_eq!(
            run_ids.claim(n1, "a", begin),
            Err(DuplicateServer {
                other: n0,
                is_news: true
            })
        );
        run_ids.leave(n0, after(begin, 5));
        // Attempts that fail.
        run_ids.leave(n0, after(begin, 14));
        assert_eq!(
            run_ids.claim(n1, "a", after(begin, 15)),
            Err(DuplicateServer {
                other: n0,
                is_news: false
            })
        );

        assert_eq!(run_ids.claim(n1, "a", after(begin, 16)), Ok(()));

        assert_eq!(
            [n0, n1].map(|it| run_ids.double_of(it)),
            [Some(n1), Some(n0)]
        );
        assert_eq!(
            run_ids.claim(n0, "a", after(begin, 17)),
            Err(DuplicateServer {
                other: n1,
                is_news: false
            })
        );
    }

    /// What a node can do, at a time.
    #[derive(Clone, Copy, Debug)]
    enum Deed {
        Claim(u8),
        Leave(u8),
        /// Time passes.
        Pass(u64),
    }

    /// All orders in which two nodes show one run id, or go: what the one granted never counts together with what the other
    /// grants, as long as a lock can last.
    #[test]
    fn b1_whoever_comes_first_what_two_nodes_of_one_run_id_grant_never_counts_together() {
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
