//! A writer that becomes a reader, without a moment at which another writer could come in.
//!
//! The hold of the writer ends here, and that of a reader begins, with the same owner, the same end and the same listeners.
//! The nodes are told by the reader's first extension: where the key is still the writer's, it makes the lock a shared one.
//! Both forms keep other writers out. So it does not matter which nodes it has come to: the next extension does the rest.

use std::sync::Arc;

use crate::engine::hold::held::{Ended, HeldLock, State};
use crate::engine::round::outcome::Grants;
use crate::engine::schedule::Slot;
use crate::engine::spec::LockSpec;
use crate::error::Lost;
use crate::ids::NodeSet;
use crate::sys::sync::Mutex;
use crate::time::Now;

impl HeldLock {
    /// Makes a hold of one of several readers out of this one; `id` is its own. Waits until a majority lets other readers in,
    /// for at most a response timeout.
    pub(crate) fn downgrade(&self, id: u64) -> Result<Arc<HeldLock>, Lost> {
        let (lease, confirmations, counter_kept, said_long) = {
            let state = self.state.lock();
            (state.lease, state.confirmations(), state.counter_kept, state.said_long)
        };
        // RACE: an extension that is confirmed in between would have moved the end. The older end is the earlier one.
        let Ended { reached, keep, renewed_at, listeners, .. } = self.end(true)?;
        let state = State {
            lease,
            renewed_at,
            number: self.token.get(),
            renewal: None,
            owed: NodeSet::default(),
            confirmations,
            grants: Grants::default(),
            checked_at: None,
            counter_kept,
            longest_ttl: keep,
            reached,
            listeners,
            said_long,
            said_not_extended: false,
        };
        let reader = Arc::new(HeldLock {
            id,
            slot: Slot::new(id),
            spec: Arc::new(LockSpec { plan: self.spec.plan.to_read(), ..LockSpec::clone(&self.spec) }),
            owner: self.owner,
            token: self.token,
            raised: false,
            began: self.began,
            in_lists: self.in_lists,
            shared: Arc::clone(&self.shared),
            state: Mutex::new(state),
        });
        let sent = reader.next_extension(&lease, Now::read());
        // RACE: enqueued before calls of this manager that want to read may ask the nodes.
        let (pending, enqueued) = reader.send_extension(&mut reader.state.lock(), sent, None);
        self.shared.fanout.hand_over(enqueued);
        self.shared.queues.share_hold(self.spec.plan.key(), self.id, id);
        let end = pending.wait(self.shared.fanout.deadline(sent.at.tick));
        reader.on_extension_end(end, sent, &pending, NodeSet::default());
        reader.remaining()?;
        Ok(reader)
    }
}
