//! Setting a held lock again on nodes that have lost it.
//!
//! An extension alone erodes: every node that is restarted without its data is one that no longer holds the lock, and
//! after the last one that a majority can do without, the lock is lost. So whoever has just been confirmed by a majority
//! sets its key again where it is gone.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, ExtendReply};
use crate::engine::hold::held::HeldLock;
use crate::engine::nodes::job::Sink;
use crate::engine::round::pending::Pending;
use crate::ids::{NodeId, NodeSet};
use crate::logic::tally::{ExtendEnd, ExtendRound};
use crate::sys::logging::debug;
use crate::sys::sync::Mutex;
use crate::time::Tick;

/// An extension under way: the round, and the nodes that turned out to have lost the key.
pub(crate) struct Extension {
    round: Arc<Pending<ExtendRound>>,
    lock: Arc<HeldLock>,
    ttl: Duration,
    sent: Tick,
    gone: Mutex<NodeSet>,
}

impl Extension {
    pub(crate) fn new(round: Arc<Pending<ExtendRound>>, lock: Arc<HeldLock>, ttl: Duration, sent: Tick) -> Extension {
        Extension { round, lock, ttl, sent, gone: Mutex::default() }
    }
}

impl Sink for Extension {
    fn deliver(&self, node: NodeId, answer: Answer, reached: bool) -> bool {
        if answer == Answer::Extend(ExtendReply::Gone) {
            self.gone.lock().insert(node);
        }
        let extended = answer == Answer::Extend(ExtendReply::Extended);
        let counted = self.round.deliver(node, answer, reached);
        if extended && !counted {
            // The round needs it no more, and the lock stands the firmer.
            self.lock.note_confirmed(node, self.sent);
        }
        // RACE: noted before it is delivered, and looked at after: whoever sees the round confirmed also sees every node
        // that answered before that, and one that answers later sees it confirmed itself.
        if self.round.end() == Some(ExtendEnd::Confirmed) {
            let gone = std::mem::take(&mut *self.gone.lock());
            if gone != NodeSet::default() {
                self.lock.heal(gone, self.ttl);
            }
        }
        counted
    }

    fn is_open(&self) -> bool {
        self.round.is_open()
    }
}

/// Who waits for the answer to a healing: nobody but the count.
pub(crate) struct Healing(pub(crate) Arc<HeldLock>);

impl Sink for Healing {
    fn deliver(&self, node: NodeId, answer: Answer, _reached: bool) -> bool {
        if answer == Answer::Extend(ExtendReply::Healed) {
            self.0.note_healed();
            debug!("{}: set again on {node}", self.0.name());
        }
        true
    }

    /// It is not sent again to a server that has forgotten its scripts: the next extension comes soon enough.
    fn is_open(&self) -> bool {
        false
    }
}
