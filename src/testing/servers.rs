//! Servers in place of stand-ins.

use std::env;
use std::io;
use std::time::Duration;

use crate::builder::Builder;
use crate::engine;
use crate::ids::OwnerToken;
use crate::inspection::{Inspection, LockState, StoredKey};
use crate::kinds::Permit;
use crate::lock::{LockGuard, ReadGuard};
use crate::manager::LockManager;
use crate::time::{deadline, tick};

/// Has the servers for tests, with commas or spaces between their URLs.
pub(super) const NODES: &str = "QUORLOCK_TEST_NODES";

/// How long what was left is looked for at most, and how often.
const CLEAN_MAX: Duration = Duration::from_secs(2);
const CLEAN_PAUSE: Duration = Duration::from_millis(20);

/// The servers for tests, if there are any.
pub(super) fn urls_of_env() -> Option<Vec<String>> {
    let urls = Builder::split_urls(&env::var(NODES).unwrap_or_default());
    (!urls.is_empty()).then_some(urls)
}

/// These are servers, and not stand-ins: they cannot be broken, and their time is real. See [`Nodes::from_env`](super::Nodes::from_env).
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("these are servers, given by QUORLOCK_TEST_NODES: only stand-ins have faults and a time that can be changed")]
#[non_exhaustive]
pub struct NotStandIns;

/// Who holds a lock: see [`Nodes::holder`](super::Nodes::holder).
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// What the manager [calls itself](crate::Builder::owner_label): `host/process`, and its own label behind a slash. Empty if it
    /// says nothing, and of readers.
    pub label: String,
    /// On how many nodes.
    pub nodes: usize,
    /// Until the first of these nodes would let it go; `None` if none of them does by itself.
    pub remaining: Option<Duration>,
}

/// Servers, and a manager that does what others do to the locks of a test.
#[derive(Debug)]
pub(super) struct Servers {
    urls: Vec<String>,
    prefix: Vec<u8>,
    others: LockManager,
}

/// What the others hold. Dropping it gives that back.
pub(super) enum Taken {
    Lock { _guard: LockGuard },
    Shared { _guard: ReadGuard },
    Permit { _guard: Permit },
}

impl Servers {
    pub(super) fn new(urls: Vec<String>) -> io::Result<Servers> {
        let drawn = OwnerToken::draw().map_err(io::Error::other)?;
        let prefix = format!("quorlock-test-{:016x}:", drawn.number()).into_bytes();
        let mut others = LockManager::builder(&urls)
            .quarantine(false)
            .response_timeout(Duration::from_secs(2))
            .connect_timeout(Duration::from_secs(5))
            .owner_label(Some("test"));
        others.config.test_prefix.clone_from(&prefix);
        let invalid = |err| io::Error::new(io::ErrorKind::InvalidInput, format!("{NODES}: {err}"));
        Ok(Servers { others: others.build().map_err(invalid)?, urls, prefix })
    }

    pub(super) fn urls(&self) -> &[String] {
        &self.urls
    }

    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    pub(super) fn hold(&self, name: &[u8]) -> Option<Taken> {
        Some(Taken::Lock { _guard: self.others.mutex(name).try_lock().ok()? })
    }

    pub(super) fn hold_shared(&self, name: &[u8]) -> Option<Taken> {
        Some(Taken::Shared { _guard: self.others.rw_lock(name).try_read().ok()? })
    }

    pub(super) fn hold_permit(&self, name: &[u8], permits: u8) -> Option<Taken> {
        Some(Taken::Permit { _guard: self.others.semaphore(name, usize::from(permits)).try_acquire().ok()? })
    }

    pub(super) fn expire(&self, name: &[u8]) {
        if let Ok(seen) = self.others.inspect(name) {
            drop(self.others.admin().release(&seen));
        }
    }

    pub(super) fn expire_permits(&self, name: &[u8], permits: u8) {
        let seen = self.others.semaphore(name, usize::from(permits)).inspect().unwrap_or_default();
        seen.iter().for_each(|it| drop(self.others.admin().release(it)));
    }

    pub(super) fn holder(&self, name: &[u8]) -> Option<Holder> {
        let seen = self.others.inspect(name).ok()?;
        let (label, remaining) = match seen.state() {
            LockState::Held { holder, left } => (holder.as_deref().unwrap_or_default().to_owned(), left),
            LockState::Read { left, .. } => (String::new(), left),
            _ => return None,
        };
        Some(Holder { label, nodes: held_on(&seen), remaining })
    }
}

fn held_on(seen: &Inspection) -> usize {
    let is_held = |key: &StoredKey| matches!(key, StoredKey::Held { .. } | StoredKey::Read { .. });
    seen.nodes().iter().filter(|it| it.stored.as_ref().is_ok_and(|it| is_held(&it.key))).count()
}

/// Waiting lists stay: they expire within seconds.
impl Drop for Servers {
    fn drop(&mut self) {
        let until = deadline(CLEAN_MAX);
        while matches!(self.others.clean(), Ok(true)) && tick() < until {
            // Of a lock that is reserved for somebody the counter stays until that is over.
            engine::sleep(deadline(CLEAN_PAUSE), &[]);
        }
    }
}
