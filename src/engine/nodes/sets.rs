//! Which nodes other clients use: shared by the nodes of a manager.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::GreetReply;
use crate::engine::nodes::records::Records;
use crate::error::NodeFailure;
use crate::error::NodeFinding;
use crate::ids::NodeId;
use crate::logic::sets::Ids;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex};
use crate::time::Tick;
use crate::wire::{Command, Greeted, Set};

/// News of our nodes are told no sooner after the last: one that shows another id each time makes for few commands.
const NEWS_EVERY: Duration = Duration::from_secs(1);

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

    fn forget(&self, node: NodeId) {
        let mut ids = self.ids.lock();
        ids.forget(node.index());
        self.own.store(0, Ordering::Relaxed);
    }

    fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// What a node is told; nothing as long as it is not known.
    fn set(&self) -> Option<Set> {
        let (print, earlier) = self.ids.lock().leave();
        Some(Set { print: print?, earlier, nodes: self.nodes })
    }

    fn hear(&self, node: NodeId, id: u64) {
        let mut ids = self.ids.lock();
        ids.hear(node.index(), id);
        self.own.store(ids.set().unwrap_or(0), Ordering::Relaxed);
    }
}

/// Which of our sets a node was told over one connection, and when.
#[derive(Debug, Default)]
pub(crate) struct Told {
    own: u64,
    /// Not before that it is told another one.
    next_at: Option<Tick>,
}

impl Told {
    /// It is told again, whatever it was told last.
    pub(crate) fn tell_again(&mut self) {
        *self = Told::default();
    }
}

/// What one node says of other clients' sets.
pub(crate) struct OtherUsers {
    node: NodeId,
    records: Arc<Records>,
    sets: Option<Arc<Sets>>,
    /// How many nodes are in another set, of which it is one; 0 if there is none. A hint until it is confirmed.
    count: AtomicU64,
    /// Of which of our sets it has shown that once.
    suspected: AtomicU64,
}

/// What follows from what a node has shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Heard {
    Nothing,
    /// Others use another set perhaps: it is told ours once more.
    Suspected,
    Believed {
        /// It is the first of the manager's nodes.
        is_news: bool,
    },
}

impl OtherUsers {
    pub(crate) fn new(node: NodeId, records: Arc<Records>, sets: Option<Arc<Sets>>) -> OtherUsers {
        OtherUsers { node, records, sets, count: AtomicU64::new(0), suspected: AtomicU64::new(0) }
    }

    /// The greeting that is due ahead of the next command, because the node was not told yet which nodes we use.
    pub(crate) fn due(&self, told: &mut Told, of: Greeted<'_>, now: Tick) -> Option<Command> {
        let may_tell = told.next_at.is_none_or(|it| it <= now);
        (self.is_to_be_told(told) && may_tell).then(|| self.greet(told, of, now))
    }

    /// A greeting, with our set if that is known.
    pub(crate) fn greet(&self, told: &mut Told, of: Greeted<'_>, now: Tick) -> Command {
        let set = self.sets.as_ref().and_then(|it| it.set());
        if let Some(set) = &set {
            *told = Told { own: set.print, next_at: now.checked_add(NEWS_EVERY) };
        }
        self.records.greet(of, set.as_ref())
    }

    /// The connection has ended: behind the next one there may be another node.
    pub(crate) fn forget(&self) {
        if let Some(sets) = &self.sets {
            sets.forget(self.node);
        }
    }

    /// Whether we know which nodes we use, and the node was not told.
    pub(crate) fn is_to_be_told(&self, told: &Told) -> bool {
        let own = self.sets.as_ref().map_or(0, |it| it.own());
        own != 0 && told.own != own
    }

    pub(crate) fn hear(&self, GreetReply { id, others, .. }: GreetReply) -> Heard {
        let Some(sets) = &self.sets else { return Heard::Nothing };
        if let Some(id) = id {
            sets.hear(self.node, id);
        }
        let own = sets.own();
        if own == 0 {
            // One of our nodes is not connected, and may be another when it is: then nobody can tell whose set is which.
            return Heard::Nothing;
        }
        if others == 0 {
            self.count.store(0, Ordering::Relaxed);
            self.suspected.store(0, Ordering::Relaxed);
            return Heard::Nothing;
        }
        // RACE: it was told what we knew when it was asked. If one of our nodes has lost its data, others of us may have been
        // there before, and left what we are only about to hear. So it is asked once more before it is believed.
        if self.suspected.swap(own, Ordering::Relaxed) != own {
            return Heard::Suspected;
        }
        self.count.store(others, Ordering::Relaxed);
        Heard::Believed { is_news: !sets.warned.swap(true, Ordering::Relaxed) }
    }

    /// What is wrong with the node, if others use it with other nodes than we do.
    pub(crate) fn finding(&self) -> Option<NodeFinding> {
        let there = Some(self.count.load(Ordering::Relaxed)).filter(|it| *it != 0)?;
        Some(NodeFinding::OtherNodes { there, here: self.sets.as_ref()?.nodes })
    }

    /// Why its grants do not count, if they do not because of that.
    pub(crate) fn failure(&self) -> Option<NodeFailure> {
        let finding = self.finding().filter(|_| self.sets.as_ref().is_some_and(|it| it.strict))?;
        Some(NodeFailure::Disqualified { finding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Record;
    use crate::time;

    fn users(sets: &Arc<Sets>) -> OtherUsers {
        let records = Arc::new(Records::new(Some(Duration::from_secs(1)), 1));
        OtherUsers::new(NodeId::new(0), records, Some(Arc::clone(sets)))
    }

    fn id(index: u8) -> NodeId {
        NodeId::new(index)
    }

    fn shown(id: u64, others: u64) -> GreetReply {
        GreetReply { id: Some(id), others, ..GreetReply::of(Record::Kept, Duration::ZERO) }
    }

    const SERVER: Greeted<'static> = Greeted::Server { look: false, vouch: false };

    #[test]
    fn a_node_is_told_which_nodes_we_use_once_that_is_known_and_when_it_changes() {
        let sets = Arc::new(Sets::new(2, false));
        let (users, mut told, start) = (users(&sets), Told::default(), time::tick());
        let after = |seconds| start.checked_add(Duration::from_secs(seconds)).unwrap();
        let mut is_told = |now| users.due(&mut told, SERVER, now).is_some();
        assert!(!is_told(start));
        sets.hear(id(0), 7);
        assert!(!is_told(after(2)), "the other has shown nothing yet");
        sets.hear(id(1), 8);
        assert!(is_told(after(3)) && !is_told(after(4)) && !is_told(after(100_000)));
        // One is not connected, and is the same when it is again.
        sets.forget(id(1));
        assert!(!is_told(after(100_001)));
        sets.hear(id(1), 8);
        assert!(!is_told(after(100_002)));
        sets.hear(id(1), 9);
        assert!(is_told(after(100_003)));
    }

    #[test]
    fn a_node_that_shows_another_id_each_time_makes_for_one_command_a_second() {
        let sets = Arc::new(Sets::new(1, false));
        let (users, mut told, start) = (users(&sets), Told::default(), time::tick());
        let mut asked = 0;
        for millis in 0..10_000 {
            let now = start.checked_add(Duration::from_millis(millis)).unwrap();
            asked += u32::from(users.due(&mut told, SERVER, now).is_some());
            users.hear(shown(millis + 1, 0));
        }
        assert_eq!(asked, 10);
    }

    #[test]
    fn a_node_that_others_use_with_other_nodes_is_told_ours_once_more_before_it_is_believed() {
        let sets = Arc::new(Sets::new(1, true));
        let users = users(&sets);

        assert_eq!((users.hear(shown(7, 3)), users.failure()), (Heard::Suspected, None));
        assert_eq!(users.hear(shown(7, 3)), Heard::Believed { is_news: true });
        assert_eq!(
            users.failure(),
            Some(NodeFailure::Disqualified { finding: NodeFinding::OtherNodes { there: 3, here: 1 } })
        );
        assert_eq!(users.hear(shown(7, 3)), Heard::Believed { is_news: false });
        assert_eq!((users.hear(shown(7, 0)), users.failure()), (Heard::Nothing, None));
    }

    #[test]
    fn without_quarantine_no_node_is_told_which_nodes_we_use() {
        let records = Arc::new(Records::new(None, 1));
        let users = OtherUsers::new(id(0), records, None);
        assert_eq!(users.hear(shown(7, 3)), Heard::Nothing);
        assert!(users.due(&mut Told::default(), SERVER, time::tick()).is_none());
    }
}
