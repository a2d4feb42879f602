//! Downgrade of a writer to a reader, without a gap for another writer.
//!
//! The writer's hold ends and a reader's begins, with the same owner, end and listeners. The reader's first extension
//! makes the lock a shared one on each node that still has the writer's key. Both forms exclude other writers. So a
//! node that misses the extension does no harm: the next extension does the rest.

use std::sync::Arc;

use crate::engine::live_hold::held::HoldInner;
use crate::engine::round::attempt::{Grants, Won};
use crate::error::Lost;
use crate::time::Now;

impl HoldInner {
    /// Turns this hold into the reader's hold `id`. Waits until a majority admits other readers, for at most a response
    /// timeout.
    pub(crate) fn downgrade(&self, id: u64) -> Result<Arc<HoldInner>, Lost> {
        let lease = self.state.lock().lease;
        // RACE: T1 reads the lease; T2 confirms an extension and moves the end; T1 ends the hold. Therefore the reader
        // has the older end, which is the earlier one.
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
            // The reader is extended at once.
            first_life: None,
            waited: self.waited,
        };
        let mut reader = HoldInner::new(Arc::clone(&self.shared), id, won);
        reader.began = self.began;
        let of_reader = reader.state.get_mut();
        of_reader.lease = lease;
        of_reader.confirmations = state.confirmations();
        of_reader.had = state.had.union(of_reader.confirmations.confirmed);
        of_reader.longest_ttl = ended.keep;
        of_reader.listeners = ended.listeners;
        of_reader.logged_long = state.logged_long;
        of_reader.number = state.number;
        drop(state);
        let reader = Arc::new(reader);
        // RACE: T1 shares the hold in the queue; T2, a reading call, asks the nodes before the lock is shared there.
        // Therefore T1 enqueues the extension first.
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
