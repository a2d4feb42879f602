//! What the servers' records show, and what greetings tell the servers: shared by the nodes of a manager.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::{GreetReply, Record};
use crate::error::{NodeFailure, NodeFinding};
use crate::ids::{Edition, NodeId};
use crate::logic::lease;
use crate::logic::quarantine_length::QuarantineLength;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex};
use crate::wire::{self, Command, Greeted, Greeting};

/// See the module.
#[derive(Debug)]
pub(crate) struct Records {
    quarantine: bool,
    nodes: u64,
    length: Mutex<QuarantineLength>,
    /// For how long a server has no vote that has lost its data: milliseconds.
    millis: AtomicU64,
    /// A lock was asked for. Until then servers are only looked at.
    is_used: AtomicBool,
}

impl Records {
    /// `own`: the quarantine that this manager needs; `None` without quarantine.
    pub(crate) fn new(own: Option<Duration>, nodes: usize) -> Records {
        let millis = own.map_or(0, lease::millis);
        let length = Mutex::new(QuarantineLength::new(millis, nodes));
        let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
        Records {
            quarantine: own.is_some(),
            nodes,
            length,
            millis: AtomicU64::new(millis),
            is_used: AtomicBool::new(false),
        }
    }

    /// For how long a server has no vote that has lost its data; `None` without quarantine.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        self.quarantine
            .then(|| Duration::from_millis(self.millis.load(Ordering::Relaxed)))
    }

    /// The longest quarantine that any program needs, as this node's servers have shown last; `None` before they have.
    pub(crate) fn shown_by(&self, node: NodeId) -> Option<Duration> {
        Some(self.length.lock().shown_by(node.index()))
            .filter(|it| *it != 0)
            .map(Duration::from_millis)
    }

    pub(crate) fn note_use(&self) {
        if !self.is_used() {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// A server's record: looked at only, until a lock is asked for.
    pub(crate) fn of_server(&self) -> Greeted {
        Greeted::Server {
            look: !self.is_used(),
            vouch: false,
        }
    }

    pub(crate) fn greet(&self, of: Greeted) -> Command {
        let length = self.length.lock();
        wire::greet(&Greeting {
            edition: Edition::draw(),
            own: length.own(),
            reported: length.largest(),
            servers: self.nodes,
            of,
        })
    }

    /// What tells a server that it has lost nothing.
    pub(crate) fn vouch(&self) -> Command {
        self.greet(Greeted::Server {
            look: false,
            vouch: true,
        })
    }

    /// Takes in what a record shows.
    pub(crate) fn on_report(&self, node: NodeId, shown: &GreetReply) {
        if self.quarantine {
            let mut length = self.length.lock();
            length.on_report(node.index(), shown.quarantine_length);
            self.millis
                .store(lease::millis(length.quarantine_length()), Ordering::Relaxed);
        }
    }

    /// Why this manager cannot use a server with this record: it has a quarantine and the manager has none, or the other way
    /// round.
    pub(crate) fn misfit(&self, shown: &GreetReply) -> Option<NodeFailure> {
        let on_server = shown.record != Record::Off;
        (on_server != self.quarantine).then_some(NodeFailure::QuarantineDiffers { on_server })
    }

    /// Whether the programs that this server knows have another number of servers.
    pub(crate) fn other_nodes(&self, shown: &GreetReply) -> Option<NodeFinding> {
        (shown.servers != 0 && shown.servers != self.nodes).then_some(NodeFinding::OtherNodes {
            there: shown.servers,
            here: self.nodes,
        })
    }

    /// Locks may be asked for of a server that has shown this: it keeps a record, and has our kind of quarantine.
    pub(crate) fn is_noted(&self, shown: &GreetReply) -> bool {
        shown.kept && self.misfit(shown).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(record: Record, quarantine_length: u64) -> GreetReply {
        GreetReply {
            quarantine_length,
            ..GreetReply::of(record, Duration::ZERO)
        }
    }

    #[test]
    fn h27_a_manager_uses_servers_with_its_own_kind_of_quarantine_alone() {
        for on_server in [true, false] {
            let record = if on_server { Record::Kept } else { Record::Off };
            let with = Records::new(Some(Duration::from_secs(1)), 1);
            let without = Records::new(None, 1);
            let failure = Some(NodeFailure::QuarantineDiffers { on_server });
            let (fits, misfits) = if on_server {
                (with, without)
            } else {
                (without, with)
            };
            assert_eq!(fits.misfit(&shown(record, 0)), None);
            assert_eq!(misfits.misfit(&shown(record, 0)), failure);
        }
    }

    #[test]
    fn h15_the_longest_quarantine_that_any_record_shows_is_that_of_all() {
        let records = Records::new(Some(Duration::from_secs(60)), 2);
        assert_eq!(records.quarantine(), Some(Duration::from_secs(60)));
        records.on_report(NodeId::new(1), &shown(Record::Kept, 90_000));
        assert_eq!(records.quarantine(), Some(Duration::from_secs(90)));
        assert_eq!(
            records.shown_by(NodeId::new(1)),
            Some(Duration::from_secs(90))
        );
        assert_eq!(records.shown_by(NodeId::new(0)), None);

        let without = Records::new(None, 1);
        without.on_report(NodeId::new(0), &shown(Record::Kept, 90_000));
        assert_eq!(without.quarantine(), None);
    }
}
