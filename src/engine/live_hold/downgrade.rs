//! A writer that becomes a reader, without a moment at which another writer could come in.
//!
//! The hold of the writer ends here, and that of a reader begins, with the same owner, the same end and the same listeners.
//! The nodes are told by the reader's first extension: where the key is still the writer's, it makes the lock a shared one.
//! Both forms keep other writers out. So it does not matter which nodes it has come to: the next extension does the rest.

use std::sync::Arc;

use crate::engine::live_hold::held::{EndedHold, LiveHold};
use crate::engine::round::attempt::{Grants, Won};
use crate::engine::spec::LockSpec;
use crate::error::Lost;
use crate::time::Now;

impl LiveHold {
    /// Makes a hold of one of several readers out of this one; `id` is its own. Waits until a majority lets other readers in,
    /// for at most a response timeout.
    pub(crate) fn downgrade(&self, id: u64) -> Result<Arc<LiveHold>, Lost> {
        let (lease, confirmations, counter_kept, said_long, number, is_handed_over) = {
            let state = self.state.lock();
            (
                state.lease,
                state.confirmations(),
                state.counter_kept,
                state.said_long,
                state.number,
                state.is_handed_over,
            )
        };
        // RACE: an extension that is confirmed in between would have moved the end. The older end is the earlier one.
        let EndedHold {
            reached,
            keep,
            renewed_at,
            listeners,
            ..
        } = self.end()?;
        let won = Won {
            spec: Arc::new(LockSpec {
                plan: self.spec.plan.to_read(),
                ..LockSpec::clone(&self.spec)
            }),
            owner: self.owner,
            token: self.token,
            raised: false,
            sent: Now {
                moment: renewed_at,
                tick: counter_kept,
            },
            use_until: lease.end(),
            reached,
            grants: Grants::default(),
            is_handed_over,
            // It is extended at once.
            first_life: None,
            in_lists: self.in_lists,
            waited: self.waited,
        };
        let mut reader = LiveHold::new(Arc::clone(&self.shared), id, won);
        reader.began = self.began;
        let state = reader.state.get_mut();
        state.lease = lease;
        state.confirmations = confirmations;
        state.longest_ttl = keep;
        state.listeners = listeners;
        state.said_long = said_long;
        state.number = number;
        let reader = Arc::new(reader);
        // RACE: enqueued before calls of this manager that want to read may ask the nodes.
        let (extension, enqueued) = {
            let mut state = reader.state.lock();
            let sent = reader.next_extension(&state, Now::read());
            reader.send_extension(&mut state, sent, None)
        };
        self.shared
            .queues
            .share_hold(&self.spec.plan.key, self.id, id);
        extension.wait(enqueued);
        reader.remaining()?;
        Ok(reader)
    }
}
