//! A writer that becomes a reader, without a moment at which another writer could come in.
//!
//! The hold of the writer ends here, and that of a reader begins, with the same owner, the same end and the same listeners.
//! The nodes are told by the reader's first extension: where the key is still the writer's, it makes the lock a shared one.
//! Both forms keep other writers out. So it does not matter which nodes it has come to: the next extension does the rest.

use std::sync::Arc;

use crate::engine::live_hold::held::HoldInner;
use crate::engine::round::attempt::{Grants, Won};
use crate::error::Lost;
use crate::time::Now;

impl HoldInner {
    /// Makes a hold of one of several readers out of this one; `id` is its own. Waits until a majority lets other readers in,
    /// for at most a response timeout.
    pub(crate) fn downgrade(&self, id: u64) -> Result<Arc<HoldInner>, Lost> {
        let lease = self.state.lock().lease;
        // RACE: an extension that is confirmed in between would have moved the end. The older end is the earlier one.
        let ended = self.end()?;
        let state = self.state.lock();
        let won = Won {
            spec: self.spec.to_read(),
            owner: self.owner,
            token: self.token,
            raised: false,
            sent: Now {
                moment: ended.renewed_at,
                tick: state.counter_kept,
            },
            use_until: lease.end(),
            reached: ended.reached,
            grants: Grants::default(),
            is_handed_over: state.is_handed_over,
            // It is extended at once.
            first_life: None,
            in_lists: self.in_lists,
            waited: self.waited,
        };
        let mut reader = HoldInner::new(Arc::clone(&self.shared), id, won);
        reader.began = self.began;
        let of_reader = reader.state.get_mut();
        of_reader.lease = lease;
        of_reader.confirmations = state.confirmations();
        of_reader.longest_ttl = ended.keep;
        of_reader.listeners = ended.listeners;
        of_reader.logged_long = state.logged_long;
        of_reader.number = state.number;
        drop(state);
        let reader = Arc::new(reader);
        // RACE: enqueued before calls of this manager that want to read may ask the nodes.
        let (extension, enqueued) = {
            let mut state = reader.state.lock();
            let sent = reader.next_extension(&state, Now::read());
            reader.send_extension(&mut state, sent, None)
        };
        self.shared
            .queues
            .share_hold(&self.spec.commands.key, self.id, id);
        extension.wait(enqueued);
        reader.remaining()?;
        Ok(reader)
    }
}
