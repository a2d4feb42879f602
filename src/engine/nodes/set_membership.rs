//! Which sets of servers programs use: shared by the nodes of a manager. See `logic::sets`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::{GreetReply, StoredSet};
use crate::engine::nodes::records::Records;
use crate::error::{NodeFailure, NodeFinding, QuarantineReason, ServerSet};
use crate::ids::NodeId;
use crate::logic::sets::{Judgement, OwnServers};
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex};
use crate::time::Tick;
use crate::wire::{Command, Greeted, NewSets};

/// A server is greeted no sooner after the last time because of what it shows: one that shows something else each time makes for
/// few commands.
const GREETED_EVERY: Duration = Duration::from_millis(100);
/// Later than that it is greeted again, so that its record shows that our set is in use: see `logic::sets::UNUSED_AFTER`.
const NOTED_EVERY: Duration = Duration::from_secs(60 * 60);

/// What the manager's servers show of our set and of others.
#[derive(Debug)]
pub(crate) struct Sets {
    own: Mutex<OwnServers>,
    /// A bit for each node: others use it in a set that does not go together with ours.
    refused: AtomicU64,
    /// Likewise: its greeting is due.
    due: AtomicU64,
    /// Likewise: nobody has looked whether its grants count since something became known.
    unsure: AtomicU64,
    /// The log has said that others use another set: one that does not go together with ours, one that does.
    warned: AtomicBool,
    informed: AtomicBool,
    /// A refused node has no vote.
    strict: bool,
}

impl Sets {
    pub(crate) fn new<'a>(
        label: &str,
        addresses: impl IntoIterator<Item = &'a str>,
        strict: bool,
    ) -> Sets {
        Sets {
            own: Mutex::new(OwnServers::new(label, addresses)),
            refused: AtomicU64::new(0),
            due: AtomicU64::new(0),
            unsure: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            informed: AtomicBool::new(false),
            strict,
        }
    }

    /// What is known has changed. What each record shows may mean something else now.
    fn change<T>(&self, change: impl FnOnce(&mut OwnServers) -> T) -> T {
        let mut own = self.own.lock();
        let result = change(&mut own);
        let (mut refused, mut due) = (0, 0);
        for node in 0..own.len() {
            let judged = own.judge(node);
            refused |= if judged.is_refused { bit(node) } else { 0 };
            due |= if own.is_due(node, &judged) {
                bit(node)
            } else {
                0
            };
        }
        self.refused.store(refused, Ordering::Relaxed);
        self.due.store(due, Ordering::Relaxed);
        self.unsure.store(u64::MAX, Ordering::Relaxed);
        result
    }
}

/// What one node shows of the sets that it is in.
pub(crate) struct InSets {
    node: NodeId,
    records: Arc<Records>,
    sets: Option<Arc<Sets>>,
    /// When its record was last seen.
    reported_at: Mutex<Option<Tick>>,
}

impl InSets {
    pub(crate) fn new(node: NodeId, records: Arc<Records>, sets: Option<Arc<Sets>>) -> InSets {
        InSets {
            node,
            records,
            sets,
            reported_at: Mutex::new(None),
        }
    }

    /// The greeting that is due ahead of the next command; `last`: when it was greeted last over this connection.
    pub(crate) fn due(
        &self,
        last: &mut Option<Tick>,
        of: Greeted<'_>,
        now: Tick,
    ) -> Option<Command> {
        self.sets.as_ref()?;
        let since = last.map(|it| now.saturating_duration_since(it));
        let is_due =
            since.is_none_or(|it| NOTED_EVERY <= it || GREETED_EVERY <= it && self.is_due());
        is_due.then(|| self.greet(last, of, now))
    }

    /// A greeting, which notes our set if that is to be noted.
    pub(crate) fn greet(&self, last: &mut Option<Tick>, of: Greeted<'_>, now: Tick) -> Command {
        *last = Some(now);
        let note = self.sets.as_ref().and_then(|it| {
            let own = it.own.lock();
            let edition = own.shown(self.node.index())?.edition;
            Some(NewSets {
                edition,
                sets: own.judge(self.node.index()).note?,
            })
        });
        self.records.greet(of, note.as_ref())
    }

    /// The connection has ended: behind the next one there may be another node.
    pub(crate) fn forget(&self) {
        if let Some(sets) = &self.sets {
            sets.change(|it| it.forget(self.node.index()));
        }
    }

    /// Whether its record is to be changed, or to be looked at again.
    pub(crate) fn is_due(&self) -> bool {
        self.sets.as_ref().is_some_and(|it| self.is_in(&it.due))
    }

    fn is_in(&self, bits: &AtomicU64) -> bool {
        bits.load(Ordering::Relaxed) & bit(self.node.index()) != 0
    }

    /// Takes in what its record shows: gives back for how long it has been in our set, and what the log is to say of another.
    pub(crate) fn on_report(
        &self,
        shown: &GreetReply,
        now: Tick,
    ) -> (Duration, Option<NodeFinding>) {
        let Some(sets) = &self.sets else {
            return (Duration::MAX, None);
        };
        let Judgement {
            member_for, other, ..
        } = sets.change(|own| {
            own.on_report(self.node.index(), shown.clone());
            own.judge(self.node.index())
        });
        *self.reported_at.lock() = Some(now);
        let is_news = |fits: bool| {
            !(if fits { &sets.informed } else { &sets.warned }).swap(true, Ordering::Relaxed)
        };
        let news = other
            .is_some_and(|it| is_news(it.1))
            .then(|| self.finding())
            .flatten();
        (member_for, news)
    }

    /// For how long what it grants does not count yet that was asked for at `asked`: it is new in our set.
    pub(crate) fn left(
        &self,
        asked: Tick,
        length: Option<Duration>,
    ) -> Option<(Duration, QuarantineReason)> {
        let sets = self.sets.as_ref().filter(|it| self.is_in(&it.unsure))?;
        self.left_of(&sets.own.lock(), asked, length)
    }

    fn left_of(
        &self,
        own: &OwnServers,
        asked: Tick,
        length: Option<Duration>,
    ) -> Option<(Duration, QuarantineReason)> {
        own.shown(self.node.index())?;
        let reported_at = (*self.reported_at.lock())?;
        let member_for = own.judge(self.node.index()).member_for;
        let member_for = member_for.saturating_add(asked.saturating_duration_since(reported_at));
        Some((
            length?.checked_sub(member_for).filter(|it| !it.is_zero())?,
            QuarantineReason::New,
        ))
    }

    /// Whether others use it together with other servers than we do, and whether that is safe.
    pub(crate) fn finding(&self) -> Option<NodeFinding> {
        self.finding_of(&self.sets.as_ref()?.own.lock())
    }

    fn finding_of(&self, own: &OwnServers) -> Option<NodeFinding> {
        let (StoredSet { size, label, .. }, is_safe) = own.judge(self.node.index()).other?;
        Some(NodeFinding::OtherNodes {
            there: size.try_into().ok()?,
            here: own.len().try_into().ok()?,
            label,
            is_safe,
        })
    }

    /// Why its votes do not count, if they do not because of that.
    pub(crate) fn failure(&self) -> Option<NodeFailure> {
        let sets = self.sets.as_ref().filter(|it| self.is_refused(it))?;
        self.disqualified(&sets.own.lock())
    }

    fn is_refused(&self, sets: &Sets) -> bool {
        sets.strict && self.is_in(&sets.refused)
    }

    fn disqualified(&self, own: &OwnServers) -> Option<NodeFailure> {
        Some(NodeFailure::Disqualified {
            finding: self.finding_of(own)?,
        })
    }

    /// Why what it granted that was asked for at `asked` does not count, as far as all nodes are known now.
    ///
    /// RACE: a client that knows few of its nodes cannot tell yet whether its set goes together with others, and whether a node is
    /// in it. What a node grants then is looked at again when a majority has granted.
    pub(crate) fn why_not(
        &self,
        asked: Tick,
        length: Option<Duration>,
        is_cluster: bool,
    ) -> Option<NodeFailure> {
        let sets = self.sets.as_ref().filter(|it| self.is_in(&it.unsure))?;
        let own = sets.own.lock();
        let is_gone = own.shown(self.node.index()).is_none();
        if self.is_refused(sets) {
            return self.disqualified(&own);
        }
        if let Some((left, why)) = self.left_of(&own, asked, length) {
            return Some(NodeFailure::Quarantined { left, why });
        }
        if sets.strict && is_gone && !is_cluster {
            return Some(NodeFailure::Disconnected {
                reason: "since it has granted".to_owned(),
            });
        }
        // It stays so until something else is known, which nobody can take in at this moment.
        if !is_gone {
            sets.unsure
                .fetch_and(!bit(self.node.index()), Ordering::Relaxed);
        }
        None
    }

    /// All sets that it shows.
    pub(crate) fn all(&self) -> Vec<ServerSet> {
        self.sets
            .as_ref()
            .map_or_else(Vec::new, |it| it.own.lock().all(self.node.index()))
    }

    /// What makes its record show no set but ours.
    pub(crate) fn forget_others(&self, of: Greeted<'_>) -> Option<Command> {
        let own = self.sets.as_ref()?.own.lock();
        let edition = own.shown(self.node.index())?.edition;
        Some(self.records.greet(
            of,
            Some(&NewSets {
                edition,
                sets: own.without_others(self.node.index()),
            }),
        ))
    }
}

fn bit(node: usize) -> u64 {
    1 << node
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Record;
    use crate::ids::Edition;
    use crate::time;

    const SERVER: Greeted<'static> = Greeted::Server {
        look: false,
        vouch: false,
    };

    fn nodes(strict: bool) -> [InSets; 2] {
        let sets = Arc::new(Sets::new("web-1/7", ["a:6379", "b:6379"], strict));
        let node = |it| {
            let records = Arc::new(Records::new(Some(Duration::from_secs(1)), 2));
            InSets::new(NodeId::new(it), records, Some(Arc::clone(&sets)))
        };
        [node(0), node(1)]
    }

    fn shown(id: u64, sets: &[StoredSet]) -> GreetReply {
        let edition = Edition::new(id);
        GreetReply {
            id: Some(id),
            edition,
            sets: sets.into(),
            ..GreetReply::of(Record::Kept, Duration::ZERO)
        }
    }

    /// A set that only the first of the two servers is in.
    fn foreign() -> StoredSet {
        let servers = [7, 100, 101].map(|id| crate::answer::Listed { id, address: 1 });
        StoredSet {
            size: 3,
            used: 0,
            joined: 0,
            changed: 0,
            label: "".into(),
            servers: servers.into(),
        }
    }

    #[test]
    fn a_node_is_greeted_once_its_record_is_to_change_and_each_hour() {
        let ([one, other], mut last, start) = (nodes(false), None, time::tick());
        let after = |seconds| start.checked_add(Duration::from_secs(seconds)).unwrap();
        let mut is_greeted = |now| one.due(&mut last, SERVER, now).is_some();
        assert!(is_greeted(start) && !is_greeted(start));
        let _ = one.on_report(&shown(7, &[]), start);
        assert!(!is_greeted(after(1)), "the other has shown nothing yet");
        let _ = other.on_report(&shown(8, &[]), start);
        assert!(is_greeted(after(2)));
        let noted = one.sets.as_ref().unwrap().own.lock().judge(0).note.unwrap();
        let _ = one.on_report(&shown(7, &noted), after(2));
        assert!(!is_greeted(after(3)) && !is_greeted(after(3_600)) && is_greeted(after(3_602)));
    }

    #[test]
    fn a_node_that_shows_another_id_each_time_makes_for_ten_commands_a_second() {
        let ([one, other], mut last, start) = (nodes(false), None, time::tick());
        let _ = other.on_report(&shown(1_000_000, &[]), start);
        let mut greeted = 0;
        for millis in 0..10_000 {
            let now = start.checked_add(Duration::from_millis(millis)).unwrap();
            greeted += u32::from(one.due(&mut last, SERVER, now).is_some());
            let _ = one.on_report(&shown(millis + 1, &[]), now);
        }
        assert_eq!(greeted, 100);
    }

    #[test]
    fn a_node_in_a_set_that_does_not_go_with_ours_is_refused_by_strict_alone() {
        for strict in [false, true] {
            let ([one, other], now) = (nodes(strict), time::tick());
            let _ = other.on_report(&shown(8, &[]), now);
            let (_, news) = one.on_report(&shown(7, &[foreign()]), now);
            let finding = NodeFinding::OtherNodes {
                there: 3,
                here: 2,
                label: "".into(),
                is_safe: false,
            };
            assert_eq!(news.as_ref(), Some(&finding));
            assert_eq!(
                one.failure(),
                strict.then_some(NodeFailure::Disqualified { finding })
            );
            assert_eq!(
                (
                    other.failure(),
                    one.on_report(&shown(7, &[foreign()]), now).1
                ),
                (None, None),
                "it is said once"
            );

            let _ = one.on_report(&shown(7, &[]), now);
            assert_eq!(one.failure(), None);
        }
    }

    #[test]
    fn without_quarantine_no_node_is_greeted_for_its_sets() {
        let node = InSets::new(NodeId::new(0), Arc::new(Records::new(None, 1)), None);
        let now = time::tick();
        assert_eq!(
            node.on_report(&shown(7, &[foreign()]), now),
            (Duration::MAX, None)
        );
        assert!(node.due(&mut None, SERVER, now).is_none() && node.failure().is_none());
    }
}
