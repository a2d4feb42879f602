//! The first contact with the nodes, and the calls that wait for it.
//!
//! Fencing tokens and places in waiting lists go by the nodes' clocks. These are known as soon as nodes are connected: so
//! the first calls of a manager wait for that, before their first round, which would have to wait for it anyway.

use std::sync::atomic::Ordering;

use crate::engine::park::Signal;
use crate::ids::{NodeId, NodeSet};
use crate::logic::contact::Contact;
use crate::sys::sync::{AtomicBool, Mutex};

pub(crate) struct Contacts {
    contact: Mutex<Contact>,
    /// For all calls but the first ones: nothing has to be locked.
    has_majority: AtomicBool,
    over: Signal,
}

impl Contacts {
    pub(crate) fn new(nodes: usize) -> Contacts {
        Contacts {
            contact: Mutex::new(Contact::new(nodes)),
            has_majority: AtomicBool::new(false),
            over: Signal::default(),
        }
    }

    /// The node's clock is known, and it may be asked from now on.
    pub(crate) fn note_answered(&self, node: NodeId) {
        self.note(|it| it.on_answered(node));
    }

    /// There was no connection to the node.
    pub(crate) fn note_failed(&self, node: NodeId) {
        self.note(|it| it.on_failed(node));
    }

    fn note(&self, news: impl FnOnce(&mut Contact)) {
        if self.has_majority() {
            return;
        }
        let is_over = {
            let mut contact = self.contact.lock();
            news(&mut contact);
            self.has_majority
                .store(contact.has_majority(), Ordering::Release);
            contact.is_over()
        };
        if is_over {
            self.over.give();
        }
    }

    /// Whether a majority has answered.
    pub(crate) fn has_majority(&self) -> bool {
        self.has_majority.load(Ordering::Acquire)
    }

    /// Given when a majority has answered, or cannot answer now.
    pub(crate) fn over(&self) -> &Signal {
        &self.over
    }

    /// The nodes that have answered, as long as these are no majority.
    ///
    /// RACE: a round that goes by our own clock, because it began before a majority had answered, must not be won with nodes
    /// that come up under it. So no other node is asked.
    pub(crate) fn minority(&self) -> Option<NodeSet> {
        if self.has_majority() {
            None
        } else {
            Some(self.contact.lock().answered())
        }
    }
}
