//! Which nodes other clients use: shared by the nodes of a manager.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::MeetReply;
use crate::error::NodeFailure;
use crate::error::NodeFinding;
use crate::ids::NodeId;
use crate::logic::sets::Ids;
use crate::sys::fill_random;
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

    fn forget(&self, node: NodeId) {
        let mut ids = self.ids.lock();
        ids.forget(node.index());
        self.own.store(0, Ordering::Relaxed);
    }

    /// What a node is asked and told; nothing where the system has no random numbers.
    fn meet(&self) -> Option<Command> {
        let mut bytes = [0; 8];
        fill_random(&mut bytes).ok()?;
        let id = u64::from_ne_bytes(bytes) % IDS;
        let (set, earlier) = self.ids.lock().leave();
        Some(wire::meet(id.max(1), set, self.nodes, &earlier))
    }

    fn hear(&self, node: NodeId, id: u64) {
        let mut ids = self.ids.lock();
        ids.hear(node.index(), id);
        self.own.store(ids.set().unwrap_or(0), Ordering::Relaxed);
    }
}

/// When a node is asked again, on one connection.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    /// What it was last told of our nodes.
    told: Option<u64>,
    at: Option<Tick>,
    /// Not before that is it told that they have changed.
    news_at: Option<Tick>,
}

/// Who else uses a node.
pub(crate) struct OtherUsers {
    node: NodeId,
    /// Nothing without quarantine.
    sets: Option<Arc<Sets>>,
    /// How many nodes others use together with this one, if those are not ours; 0 if not.
    count: AtomicU64,
    /// Fingerprint of our nodes when that was heard and not yet believed; 0 if it was not.
    suspected: AtomicU64,
}

/// What follows from what a node has told of its other users.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Heard {
    Nothing,
    /// It is asked once more before it is believed.
    Suspected,
    /// Others use it with other nodes.
    Believed {
        is_news: bool,
    },
}

impl Meetings {
    /// Lets it be asked ahead of the next command, whenever it was asked last.
    pub(crate) fn ask_again(&mut self) {
        self.told = None;
    }

    /// Takes in what follows from its answer.
    pub(crate) fn on_answer(&mut self, heard: Heard, now: Tick) {
        match heard {
            Heard::Nothing => {}
            Heard::Suspected => self.ask_again(),
            Heard::Believed { .. } => self.at = now.checked_add(MEET_AGAIN),
        }
    }
}

impl OtherUsers {
    pub(crate) fn new(node: NodeId, sets: Option<Arc<Sets>>) -> OtherUsers {
        OtherUsers { node, sets, count: AtomicU64::new(0), suspected: AtomicU64::new(0) }
    }

    /// Asks the node for its id, and tells it which nodes we use, before what comes next: if it is time, or if that has
    /// changed.
    pub(crate) fn due(&self, meetings: &mut Meetings, now: Tick) -> Option<Command> {
        let sets = self.sets.as_ref()?;
        let own = sets.own.load(Ordering::Relaxed);
        let may_tell = meetings.news_at.is_none_or(|it| it <= now);
        let is_news = meetings.told.is_none_or(|it| own != 0 && own != it && may_tell);
        if !is_news && meetings.at.is_none_or(|it| now < it) {
            return None;
        }
        let (at, news_at) = (now.checked_add(MEET_EVERY), now.checked_add(NEWS_EVERY));
        *meetings = Meetings { told: Some(own), at, news_at };
        sets.meet()
    }

    /// The node's connection has ended.
    pub(crate) fn forget(&self) {
        if let Some(sets) = &self.sets {
            sets.forget(self.node);
        }
    }

    /// Whether the node has not been told yet which nodes we use, although we know.
    pub(crate) fn is_to_be_told(&self, meetings: &Meetings) -> bool {
        let own = self.sets.as_ref().map_or(0, |it| it.own.load(Ordering::Relaxed));
        own != 0 && meetings.told != Some(own)
    }

    /// Takes in what the node has told.
    pub(crate) fn hear(&self, MeetReply { id, others }: MeetReply) -> Heard {
        let Some(sets) = &self.sets else { return Heard::Nothing };
        if let Some(id) = id {
            sets.hear(self.node, id);
        }
        let own = sets.own.load(Ordering::Relaxed);
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

    /// That others use it together with other nodes, if that is so.
    pub(crate) fn finding(&self) -> Option<NodeFinding> {
        let there = Some(self.count.load(Ordering::Relaxed)).filter(|it| *it != 0)?;
        Some(NodeFinding::OtherNodes { there, here: self.sets.as_ref()?.nodes })
    }

    /// The same, where the node has no vote because of that.
    pub(crate) fn failure(&self) -> Option<NodeFailure> {
        let finding = self.finding().filter(|_| self.sets.as_ref().is_some_and(|it| it.strict))?;
        Some(NodeFailure::Disqualified { finding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    fn users(sets: &Arc<Sets>) -> OtherUsers {
        OtherUsers::new(NodeId::new(0), Some(Arc::clone(sets)))
    }

    fn id(index: u8) -> NodeId {
        NodeId::new(index)
    }

    #[test]
    fn a_node_is_asked_first_and_every_ten_minutes_and_when_there_is_news() {
        let sets = Arc::new(Sets::new(2, false));
        let (users, mut meetings, start) = (users(&sets), Meetings::default(), time::tick());
        let after = |seconds| start.checked_add(Duration::from_secs(seconds)).unwrap();
        let mut is_met = |now| users.due(&mut meetings, now).is_some();
        assert!(is_met(start) && !is_met(after(599)));
        assert!(is_met(after(600)) && !is_met(after(601)));

        sets.hear(id(0), 7);
        assert!(!is_met(after(602)), "the other has said nothing yet");
        sets.hear(id(1), 8);
        assert!(is_met(after(603)) && !is_met(after(604)));
        // One is not connected, and is the same when it is again.
        sets.forget(id(1));
        assert!(!is_met(after(605)));
        sets.hear(id(1), 8);
        assert!(!is_met(after(606)));
    }

    #[test]
    fn a_node_that_says_another_id_each_time_makes_for_one_command_a_second() {
        let sets = Arc::new(Sets::new(1, false));
        let (users, mut meetings, start) = (users(&sets), Meetings::default(), time::tick());
        let mut asked = 0;
        for millis in 0..10_000 {
            let now = start.checked_add(Duration::from_millis(millis)).unwrap();
            asked += u32::from(users.due(&mut meetings, now).is_some());
            meetings.on_answer(users.hear(MeetReply { id: Some(millis + 1), others: 0 }), now);
        }
        assert_eq!(asked, 10);
    }

    #[test]
    fn a_node_that_others_use_with_other_nodes_is_asked_once_more_before_it_is_believed_and_often_after_that() {
        let sets = Arc::new(Sets::new(1, true));
        let (users, mut meetings, start) = (users(&sets), Meetings::default(), time::tick());
        let after = |seconds| start.checked_add(Duration::from_secs(seconds)).unwrap();
        let reply = MeetReply { id: Some(7), others: 3 };
        assert!(users.due(&mut meetings, start).is_some());

        meetings.on_answer(users.hear(reply), start);
        assert_eq!((users.failure(), users.due(&mut meetings, start).is_some()), (None, true));

        let heard = users.hear(reply);
        assert_eq!(heard, Heard::Believed { is_news: true });
        meetings.on_answer(heard, start);
        assert_eq!(
            users.failure(),
            Some(NodeFailure::Disqualified { finding: NodeFinding::OtherNodes { there: 3, here: 1 } })
        );
        assert!(users.due(&mut meetings, after(9)).is_none() && users.due(&mut meetings, after(10)).is_some());
        assert_eq!(users.hear(reply), Heard::Believed { is_news: false });
        assert_eq!(users.hear(MeetReply { id: Some(7), others: 0 }), Heard::Nothing);
        assert_eq!(users.failure(), None);
    }

    #[test]
    fn without_quarantine_no_node_is_asked_which_it_is() {
        assert!(OtherUsers::new(id(0), None).due(&mut Meetings::default(), time::tick()).is_none());
    }
}
