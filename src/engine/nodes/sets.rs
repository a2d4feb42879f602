//! Which nodes other clients use: shared by the nodes of a manager.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::MeetReply;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::node::Node;
use crate::engine::nodes::outbox::Outbox;
use crate::error::NodeFailure;
use crate::error::NodeFinding;
use crate::logic::sets::Ids;
use crate::sys::logging::warn;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex};
use crate::time::Tick;
use crate::wire::{self, Command};

/// A node is asked again before the first command after so long: others may have come that use other nodes.
const MEET_EVERY: Duration = Duration::from_secs(10 * 60);
/// Or after so long, while it says that there are such.
const MEET_AGAIN: Duration = Duration::from_secs(10);
/// News of our nodes are told no sooner after the last: one that says another id each time makes for few commands.
const NEWS_EVERY: Duration = Duration::from_secs(1);
/// Ids are below: a script's numbers are exact so far.
const IDS: u64 = 1_000_000_000_000_000;

/// What the manager's nodes say of themselves and of others.
#[derive(Debug)]
pub(crate) struct Sets {
    ids: Mutex<Ids>,
    /// How many nodes the manager has.
    nodes: u64,
    /// Fingerprint of the manager's own set, to be read by everybody; 0 as long as it is not known.
    own: AtomicU64,
    warned: AtomicBool,
    /// A node that others use in another set has no vote.
    strict: bool,
}

impl Sets {
    pub(crate) fn new(nodes: usize, strict: bool) -> Sets {
        let ids = Mutex::new(Ids::new(nodes));
        let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
        Sets { ids, nodes, own: AtomicU64::new(0), warned: AtomicBool::new(false), strict }
    }

    fn forget(&self, node: usize) {
        let mut ids = self.ids.lock();
        ids.forget(node);
        self.own.store(0, Ordering::Relaxed);
    }

    /// What a node is asked and told; nothing where the system has no random numbers.
    fn meet(&self) -> Option<Command> {
        let id = getrandom::u64().ok()? % IDS;
        let (set, earlier) = self.ids.lock().leave();
        Some(wire::meet(id.max(1), set, self.nodes, &earlier))
    }

    fn hear(&self, node: usize, id: u64) {
        let mut ids = self.ids.lock();
        ids.hear(node, id);
        self.own.store(ids.set().unwrap_or(0), Ordering::Relaxed);
    }
}

impl Node {
    /// Asks it for its id, and tells it which nodes we use, before what comes next: if it is time, or if that has changed.
    pub(crate) fn meet_if_due(&self, outbox: &mut Outbox, now: Tick) {
        let Some(sets) = &self.sets else { return };
        let own = sets.own.load(Ordering::Relaxed);
        let may_tell = outbox.news_at.is_none_or(|it| it <= now);
        let is_news = outbox.met.is_none_or(|it| own != 0 && own != it && may_tell);
        if !is_news && outbox.meet_at.is_none_or(|it| now < it) {
            return;
        }
        outbox.met = Some(own);
        outbox.news_at = now.checked_add(NEWS_EVERY);
        outbox.meet_at = now.checked_add(MEET_EVERY);
        if let Some(meet) = sets.meet() {
            outbox.push(Job::of_connection(Arc::new(meet)), now);
        }
    }

    /// Its connection has ended.
    pub(crate) fn forget_meeting(&self) {
        if let Some(sets) = &self.sets {
            sets.forget(self.id.index());
        }
    }

    /// Asks it ahead of the next command, whenever it was asked last.
    pub(crate) fn meet_again(&self) {
        self.with_outbox(|it| it.met = None);
    }

    /// Whether it has not been told yet which nodes we use, although we know.
    pub(crate) fn is_to_be_met(&self) -> bool {
        let own = self.sets.as_ref().map_or(0, |it| it.own.load(Ordering::Relaxed));
        own != 0 && self.with_outbox(|it| it.met != Some(own))
    }

    /// Takes in what the node has told.
    pub(crate) fn take_meeting(&self, MeetReply { id, others }: MeetReply, now: Tick) {
        let Some(sets) = &self.sets else { return };
        if let Some(id) = id {
            sets.hear(self.id.index(), id);
        }
        let own = sets.own.load(Ordering::Relaxed);
        if own == 0 {
            // One of our nodes is not connected, and may be another when it is: then nobody can tell whose set is which.
            return;
        }
        if others == 0 {
            self.used_otherwise.store(0, Ordering::Relaxed);
            self.suspected.store(0, Ordering::Relaxed);
            return;
        }
        // RACE: it was told what we knew when it was asked. If one of our nodes has lost its data, others of us may have been
        // there before, and left what we are only about to hear. So it is asked once more before it is believed.
        if self.suspected.swap(own, Ordering::Relaxed) != own {
            self.meet_again();
            return;
        }
        self.used_otherwise.store(others, Ordering::Relaxed);
        self.with_outbox(|it| it.meet_at = now.checked_add(MEET_AGAIN));
        if !sets.warned.swap(true, Ordering::Relaxed) {
            let finding = NodeFinding::OtherNodes { there: others, here: sets.nodes };
            warn!("{}: {}: {finding}", self.id, self.address);
        }
    }

    /// That others use it together with other nodes, if that is so.
    pub(crate) fn other_nodes(&self) -> Option<NodeFinding> {
        let there = Some(self.used_otherwise.load(Ordering::Relaxed)).filter(|it| *it != 0)?;
        Some(NodeFinding::OtherNodes { there, here: self.sets.as_ref()?.nodes })
    }

    /// The same, where it has no vote because of that.
    pub(crate) fn refused_for_other_nodes(&self) -> Option<NodeFailure> {
        let finding = self.other_nodes().filter(|_| self.sets.as_ref().is_some_and(|it| it.strict))?;
        Some(NodeFailure::Disqualified { finding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;
    use crate::wire::Kind;

    fn node(sets: &Arc<Sets>) -> Node {
        let (mut node, _) = Node::unattended(Duration::from_secs(1));
        node.sets = Some(Arc::clone(sets));
        node
    }

    /// Whether the node is asked because of one more command.
    fn is_met(node: &Node, outbox: &mut Outbox, now: Tick) -> bool {
        node.push(outbox, Job::of_connection(Arc::new(Command::time())), now);
        let sent: Vec<_> = std::iter::from_fn(|| outbox.pop().map(|it| it.job.kind())).collect();
        assert!(matches!(sent[..], [Kind::Meet, Kind::Time] | [Kind::Time]), "{sent:?}");
        sent.len() == 2
    }

    #[test]
    fn a_node_is_asked_first_and_every_ten_minutes_and_when_there_is_news() {
        let sets = Arc::new(Sets::new(2, false));
        let (node, mut outbox, start) = (node(&sets), Outbox::default(), time::tick());
        let after = |seconds| start.checked_add(Duration::from_secs(seconds)).unwrap();
        assert!(is_met(&node, &mut outbox, start) && !is_met(&node, &mut outbox, after(599)));
        assert!(is_met(&node, &mut outbox, after(600)) && !is_met(&node, &mut outbox, after(601)));

        sets.hear(0, 7);
        assert!(!is_met(&node, &mut outbox, after(602)), "the other has said nothing yet");
        sets.hear(1, 8);
        assert!(is_met(&node, &mut outbox, after(603)) && !is_met(&node, &mut outbox, after(604)));
        // One is not connected, and is the same when it is again.
        sets.forget(1);
        assert!(!is_met(&node, &mut outbox, after(605)));
        sets.hear(1, 8);
        assert!(!is_met(&node, &mut outbox, after(606)));
    }

    #[test]
    fn a_node_that_says_another_id_each_time_makes_for_one_command_a_second() {
        let sets = Arc::new(Sets::new(1, false));
        let (node, mut outbox, start) = (node(&sets), Outbox::default(), time::tick());
        let mut asked = 0;
        for millis in 0..10_000 {
            let now = start.checked_add(Duration::from_millis(millis)).unwrap();
            asked += u32::from(is_met(&node, &mut outbox, now));
            node.take_meeting(MeetReply { id: Some(millis + 1), others: 0 }, now);
        }
        assert_eq!(asked, 10);
    }

    #[test]
    fn without_quarantine_no_node_is_asked_which_it_is() {
        let (node, _) = Node::unattended(Duration::from_secs(1));
        assert!(!is_met(&node, &mut Outbox::default(), time::tick()));
    }
}
