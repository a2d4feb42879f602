//! Where commands go: the shard connections by slot, and what has no shard connection yet.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::engine::nodes::job::Job;
use crate::engine::nodes::server::Server;
use crate::engine::nodes::shard_conn::ShardConn;
use crate::sys::OwnThread;
use crate::time::Tick;

/// So many releases are kept whose slots nobody serves.
const UNROUTED_MAX: usize = 16 * 1024;

/// Where commands go. Replaced as a whole, so whoever gives commands by it has nothing locked.
#[derive(Clone, Default)]
pub(super) struct Routes {
    pub(super) shard_conns: Vec<Arc<Server>>,
    /// By slot: the place of its shard connection.
    pub(super) owners: Vec<Option<usize>>,
    pub(super) has_map: bool,
    /// The shard connections that served slots before, and until when what they were asked for them can stand there.
    pub(super) moved: HashMap<u16, (usize, Tick)>,
}

impl Routes {
    pub(super) fn owner(&self, slot: Option<u16>) -> Option<&Arc<Server>> {
        // What is about no lock can be asked anywhere.
        let Some(slot) = slot else {
            return self.shard_conns.iter().find(|it| serves(it));
        };
        self.shard_conns.get(self.place_of_owner(slot)?)
    }

    pub(super) fn place_of_owner(&self, slot: u16) -> Option<usize> {
        self.owners.get(usize::from(slot)).copied().flatten()
    }

    /// Gives a command to its shard connection; gives it back if there is none.
    pub(super) fn give(&self, job: Job, now: Tick, directly: bool) -> Option<Job> {
        let slot = job.command.slot();
        let Some(server) = self.owner(slot) else {
            return Some(job);
        };
        // RACE: an acquire may be on its way to the shard connection that served the slot before, which does not know yet
        // that it does not, or serves it after all. The release goes behind it there as well; who does not serve the slot
        // refuses it.
        let before = slot
            .and_then(|it| self.moved.get(&it))
            .filter(|it| now < it.1);
        if let Some(server) = before.and_then(|it| self.shard_conns.get(it.0))
            && let Some(again) = job.for_past_owner()
        {
            server.give([Some(again), None], now, false);
            server.wake();
        }
        server.give([Some(job), None], now, directly);
        server.wake();
        None
    }

    /// The place of a shard connection that has ended, if nothing is given to it any more. `threads`: those of the shard
    /// connections.
    pub(super) fn free_place(&self, threads: &[OwnThread]) -> Option<usize> {
        let is_named = |place| {
            self.owners.contains(&Some(place)) || self.moved.values().any(|it| it.0 == place)
        };
        let ended = self
            .shard_conns
            .iter()
            .zip(threads)
            .map(|it| it.0.standing.stop_at().is_some() && it.1.is_over());
        ended
            .enumerate()
            .find_map(|(place, ended)| (ended && !is_named(place)).then_some(place))
    }
}

pub(super) fn serves(server: &Arc<Server>) -> bool {
    server.shard_conn.as_ref().is_some_and(ShardConn::serves)
}

/// Commands before there is a map, and releases for slots that nobody serves.
#[derive(Default)]
pub(super) struct Unrouted {
    /// In order.
    jobs: VecDeque<Job>,
    /// How many there are for each slot, with those that were [taken](Unrouted::take).
    of_slot: HashMap<Option<u16>, usize>,
}

impl Unrouted {
    /// There are none, nor any on their way to a shard connection.
    pub(super) fn is_empty(&self) -> bool {
        self.of_slot.is_empty()
    }

    /// Whether what comes for this slot now has to wait behind others.
    pub(super) fn has(&self, slot: Option<u16>) -> bool {
        self.of_slot.contains_key(&slot)
    }

    pub(super) fn keep(&mut self, job: Job) {
        if self.jobs.len() == UNROUTED_MAX
            && let Some(oldest) = self.jobs.pop_front()
        {
            self.note_gone(oldest.command.slot());
        }
        let count = self.of_slot.entry(job.command.slot()).or_default();
        *count = count.saturating_add(1);
        self.jobs.push_back(job);
    }

    /// All of them. What comes for their slots waits until they were [put back](Unrouted::put_back).
    pub(super) fn take(&mut self) -> VecDeque<Job> {
        std::mem::take(&mut self.jobs)
    }

    /// Those that have no shard connection still, before all that came since; `gone`: the slots of the others. True if some
    /// of them came behind others that are gone.
    pub(super) fn put_back(&mut self, mut kept: VecDeque<Job>, gone: Vec<Option<u16>>) -> bool {
        let is_waited_for = !gone.is_empty() && !self.jobs.is_empty();
        gone.into_iter().for_each(|it| self.note_gone(it));
        kept.append(&mut self.jobs);
        self.jobs = kept;
        is_waited_for
    }

    /// One for this slot is where it belongs, or is none any more.
    fn note_gone(&mut self, slot: Option<u16>) {
        let Some(count) = self.of_slot.get_mut(&slot) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.of_slot.remove(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClientId;
    use crate::wire::{KeyTtls, Plan, Waiter};

    /// A command for a lock.
    fn job(name: &[u8]) -> Job {
        let plan = Plan::mutex(b"", name, KeyTtls::default());
        Job::of_connection(Arc::new(
            plan.leave(Waiter::Client(ClientId::draw().unwrap())),
        ))
    }

    fn slots(jobs: &VecDeque<Job>) -> Vec<Option<u16>> {
        jobs.iter().map(|it| it.command.slot()).collect()
    }

    #[test]
    fn what_comes_for_a_slot_waits_behind_what_is_on_its_way_to_the_lane_of_that_slot() {
        let (a, b) = (job(b"a").command.slot(), job(b"b").command.slot());
        let mut unrouted = Unrouted::default();
        [b"a", b"b", b"a"]
            .iter()
            .for_each(|it| unrouted.keep(job(*it)));
        let mut taken = unrouted.take();
        assert_eq!(slots(&taken), [a, b, a]);
        assert!(unrouted.has(a) && unrouted.has(b) && !unrouted.has(None) && !unrouted.is_empty());

        // Two are given to a shard connection, while another one comes for their slot.
        unrouted.keep(job(b"a"));
        let kept = VecDeque::from([taken.remove(1).unwrap()]);
        assert!(
            unrouted.put_back(kept, vec![a, a]),
            "nobody looks after what came"
        );
        assert!(unrouted.has(a));

        let taken = unrouted.take();
        assert_eq!(slots(&taken), [b, a], "what was kept came before");
        assert!(!unrouted.put_back(VecDeque::new(), vec![b, a]));
        assert!(unrouted.is_empty() && !unrouted.has(a) && !unrouted.has(b));
    }

    #[test]
    fn h23_the_oldest_of_too_many_is_given_up_and_nothing_waits_for_it() {
        let mut unrouted = Unrouted::default();
        unrouted.keep(job(b"a"));
        (0..UNROUTED_MAX).for_each(|_| unrouted.keep(job(b"b")));
        assert!(!unrouted.has(job(b"a").command.slot()));
        assert_eq!(unrouted.take().len(), UNROUTED_MAX);
    }
}
