//! What users hold of the stand-ins.

use std::borrow::Borrow;
use std::fmt;
use std::io;
use std::ops::Index;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use quorlock::inspection::{Inspection, LockState, StoredKey};
use quorlock::{AcquireError, Builder, LockManager};
use uuid::Uuid;

use crate::node::Node;
use crate::server::Server;
use crate::store::Reply;

/// The first lock of somebody else.
const FIRST: &str = "quorlock-testing";
/// Time-outs that a busy machine keeps.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a lock lasts that was taken by [`Nodes::lose`]: milliseconds.
const HOLD_MAX: &[u8] = b"3600000";
/// How long something is waited for that a test expects, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(1);

/// Stand-ins for the servers of a [`LockManager`]: they run in this process and listen on loopback.
/// Dropping it ends them.
///
/// See the [crate](crate) for an example. As many as a test needs can run side by side, each with
/// nodes of its own.
pub struct Nodes {
    /// Takes locks for somebody else, where faults do not matter. Ends before the stand-ins do.
    others: OnceLock<LockManager>,
    nodes: Vec<Node>,
}

/// Who holds a lock: see [`Nodes::holder`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// What the manager [calls itself](Builder::owner_label): `host/process`, and its own label
    /// behind a slash. Empty if it gives no name, and of readers.
    pub label: String,
    /// On how many nodes.
    pub nodes: usize,
    /// Until the first of these nodes would let it go; `None` if none of them does by itself.
    pub remaining: Option<Duration>,
}

impl Nodes {
    /// Starts `n` stand-ins. They answer when this returns, which takes a few milliseconds.
    ///
    /// # Panics
    ///
    /// As [`try_start`](Nodes::try_start) fails.
    #[must_use]
    #[track_caller]
    pub fn start(n: usize) -> Nodes {
        Nodes::try_start(n).unwrap_or_else(|err| panic!("no stand-ins: {err}"))
    }

    /// Starts `n` stand-ins.
    ///
    /// # Errors
    ///
    /// There is no port on loopback, no file descriptor, or no thread. The text names what is
    /// needed.
    pub fn try_start(n: usize) -> io::Result<Nodes> {
        let servers = (0..n).map(Server::start).collect::<io::Result<Vec<_>>>()?;
        Ok(Nodes {
            others: OnceLock::new(),
            nodes: servers.into_iter().map(Node::new).collect(),
        })
    }

    /// Begins to build a manager for them: without [quarantine](Builder::quarantine), because they
    /// are new, and with time-outs that a busy machine keeps.
    ///
    /// Response timeout: 2 s. Connect timeout: 5 s. Ttl: 10 s. All can be set otherwise: the
    /// shorter the ttl, the sooner a guard learns of a [loss](Nodes::lose).
    pub fn manager(&self) -> Builder {
        builder(self.urls())
    }

    /// The URL of each, in order: `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    /// Takes the lock for somebody else: a mutex, a [writer](quorlock::RwLock::write), one name of
    /// [several](LockManager::multi_lock). Dropping the result releases the lock, and waiting calls
    /// are notified.
    ///
    /// The name is with the manager's [prefix](Builder::prefix). Faults do not matter: this is as
    /// fast on stand-ins that are down.
    ///
    /// # Panics
    ///
    /// The lock is not free.
    #[track_caller]
    pub fn hold(&self, name: impl AsRef<[u8]>) -> Hold<'_> {
        Hold::of(self.others().mutex(name).try_lock())
    }

    /// Takes the lock for somebody else as a [reader](quorlock::RwLock::read).
    ///
    /// # Panics
    ///
    /// The lock is neither free nor shared.
    #[track_caller]
    pub fn hold_shared(&self, name: impl AsRef<[u8]>) -> Hold<'_> {
        Hold::of(self.others().rw_lock(name).try_read())
    }

    /// Takes a permit for somebody else, of a [semaphore](LockManager::semaphore) that has
    /// `permits`, 1 to 256.
    ///
    /// # Panics
    ///
    /// All permits are taken.
    #[track_caller]
    pub fn hold_permit(&self, name: impl AsRef<[u8]>, permits: usize) -> Hold<'_> {
        Hold::of(self.others().semaphore(name, permits).try_acquire())
    }

    /// Deletes the lock, as if its time had run out everywhere: anybody may take it, and nobody is
    /// notified. Its holder learns of the loss by the next extension of the guard, after a third of
    /// the ttl, or by its release.
    ///
    /// Of a mutex, of readers and writers, and of each name of several; for permits there is
    /// [`expire_permits`](Nodes::expire_permits). The name is with the manager's prefix.
    pub fn expire(&self, name: impl AsRef<[u8]>) {
        let name = name.as_ref();
        self.nodes
            .iter()
            .for_each(|node| drop(node.server().execute(&[b"DEL", name])));
    }

    /// [`expire`](Nodes::expire) for all permits of a [semaphore](LockManager::semaphore) that has
    /// `permits`, 1 to 256. [`hold_permit`](Nodes::hold_permit) then takes one for somebody else.
    pub fn expire_permits(&self, name: impl AsRef<[u8]>, permits: usize) {
        self.release_all(
            self.others()
                .semaphore(name, permits)
                .inspect()
                .into_iter()
                .flatten(),
        );
    }

    fn release_all(&self, seen: impl IntoIterator<Item = impl Borrow<Inspection>>) {
        seen.into_iter()
            .for_each(|seen| drop(self.others().admin().release(seen.borrow())));
    }

    /// Somebody else takes the lock from whoever has it. The name is with the manager's prefix.
    pub fn lose(&self, name: impl AsRef<[u8]>) -> Hold<'_> {
        let name = name.as_ref();
        // As a plain client writes it, whatever stands there: in one step on each node, so that no
        // waiting call comes between.
        let value = format!(
            "{} stand-in/{}",
            Uuid::new_v4().simple(),
            std::process::id()
        );
        let set = [&b"SET"[..], name, value.as_bytes(), b"PX", HOLD_MAX];
        self.nodes
            .iter()
            .for_each(|node| drop(node.server().execute(&set)));
        Hold {
            held: Held::Taken {
                nodes: self,
                name: name.to_vec(),
                value: value.into_bytes(),
            },
        }
    }

    /// Who holds the lock on a majority of the nodes; `None` if nobody does. The name is with the
    /// manager's prefix. For each node and each reader see
    /// [`Mutex::inspect`](quorlock::Mutex::inspect).
    #[must_use]
    pub fn holder(&self, name: impl AsRef<[u8]>) -> Option<Holder> {
        let seen = self.others().mutex(name).inspect().ok()?;
        let (label, remaining) = match seen.state() {
            LockState::Held { holder, left } => {
                (holder.as_deref().unwrap_or_default().to_owned(), left)
            }
            LockState::Read { left, .. } => (String::new(), left),
            _ => return None,
        };
        Some(Holder {
            label,
            nodes: nodes_with_key(&seen),
            remaining,
        })
    }

    /// Whether no node stores the lock any more.
    #[must_use]
    pub fn is_free(&self, name: impl AsRef<[u8]>) -> bool {
        self.others()
            .mutex(name)
            .inspect()
            .is_ok_and(|seen| nodes_with_key(&seen) == 0)
    }

    /// Blocks until no node stores the lock any more. A release returns as soon as a majority has
    /// it, and the drop of a guard on another thread takes a moment: this waits for both.
    ///
    /// # Panics
    ///
    /// The lock is still there after a minute.
    #[track_caller]
    pub fn wait_until_free(&self, name: impl AsRef<[u8]>) {
        let name = name.as_ref();
        if !eventually(|| self.is_free(name)) {
            panic!(
                "{:?} is not free after a minute: {}",
                shown(name),
                self.state(name)
            );
        }
    }

    /// Blocks until `n` callers wait for locks, whatever their names.
    ///
    /// Stand-ins see what servers see: a manager that waits for a lock is one caller, whatever the
    /// number of its threads, and each call for a shared lock is one. A caller that waits for
    /// several names is one for each held name. To count the calls of one manager, use
    /// [`stats`](LockManager::stats).
    ///
    /// # Panics
    ///
    /// Fewer wait after a minute.
    #[track_caller]
    pub fn wait_until_waiting(&self, n: usize) {
        let mut waiting = 0;
        let is_so = eventually(|| {
            waiting = self.waiting();
            n <= waiting
        });
        assert!(
            is_so,
            "{waiting} callers wait after a minute, and not {n}: threads of one manager count once \
             for each lock"
        );
    }

    /// How many callers wait on a majority of the nodes.
    fn waiting(&self) -> usize {
        let found = self
            .others()
            .list("*")
            .map(|it| it.locks().to_vec())
            .unwrap_or_default();
        let on_majority = |seen: &Inspection| {
            let mut counts: Vec<_> = seen
                .nodes()
                .iter()
                .map(|node| node.stored.as_ref().map_or(0, |stored| stored.waiting))
                .collect();
            counts.sort_unstable();
            // The largest number that more than half of the nodes reach.
            counts
                .get(counts.len().saturating_sub(1) / 2)
                .copied()
                .unwrap_or_default()
        };
        // The slots of a semaphore share a list.
        let lists = found.chunk_by(|a, b| a.name() == b.name());
        let waiting: u64 = lists
            .map(|slots| slots.iter().map(on_majority).max().unwrap_or_default())
            .sum();
        usize::try_from(waiting).unwrap_or(usize::MAX)
    }

    /// How many scripts all of them have run for their clients, or refused.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.nodes.iter().map(Node::commands).sum()
    }

    fn others(&self) -> &LockManager {
        self.try_others()
            .unwrap_or_else(|err| panic!("no manager for the stand-ins: {err}"))
    }

    fn try_others(&self) -> Result<&LockManager, Box<dyn std::error::Error>> {
        if let Some(others) = self.others.get() {
            return Ok(others);
        }
        let urls = self.nodes.iter().map(Node::open_back);
        let urls = urls.collect::<io::Result<_>>()?;
        let others = builder(urls).owner_label("stand-in").build()?;
        // All are connected after this, and vote after a first lock. A lock before that would be on
        // two of three until it is extended.
        others.mutex(FIRST).inspect()?;
        // A reader leaves no fencing counter.
        drop(others.rw_lock(FIRST).try_read());
        Ok(self.others.get_or_init(|| others))
    }

    fn state(&self, name: &[u8]) -> String {
        self.others()
            .mutex(name)
            .inspect()
            .map_or_else(|err| err.to_string(), |seen| seen.state().to_string())
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.urls()).finish()
    }
}

/// `nodes[0]` is the first.
///
/// # Panics
///
/// There is no such node.
impl Index<usize> for Nodes {
    type Output = Node;

    #[track_caller]
    fn index(&self, index: usize) -> &Node {
        &self.nodes[index]
    }
}

/// A lock that somebody else holds: see [`Nodes::hold`]. Dropping it releases the lock.
#[must_use = "the lock is released when this is dropped"]
pub struct Hold<'a> {
    held: Held<'a>,
}

enum Held<'a> {
    /// A guard, which releases by itself.
    ByGuard { _guard: Box<dyn Send + 'a> },
    Taken {
        nodes: &'a Nodes,
        name: Vec<u8>,
        value: Vec<u8>,
    },
}

impl<'a> Hold<'a> {
    #[track_caller]
    fn of(taken: Result<impl Send + 'a, AcquireError>) -> Hold<'a> {
        let guard = taken.unwrap_or_else(|err| panic!("a hold is impossible: {err}"));
        let _guard = Box::new(guard);
        Hold {
            held: Held::ByGuard { _guard },
        }
    }
}

impl fmt::Debug for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let Held::Taken { nodes, name, value } = &self.held else {
            return;
        };
        let ours = Reply::Bulk(value.clone());
        let left = nodes
            .nodes
            .iter()
            .filter(|node| node.server().execute(&[b"GET", name]) == ours)
            .count();
        // Fewer are nobody's lock, and another may have it on the others.
        if nodes.nodes.len() / 2 < left {
            nodes.release_all(nodes.others().mutex(name).inspect());
        }
    }
}

fn builder(urls: Vec<String>) -> Builder {
    LockManager::builder(urls)
        .quarantine(false)
        .response_timeout(RESPONSE_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
}

fn nodes_with_key(seen: &Inspection) -> usize {
    let is_there = |key: &StoredKey| !matches!(key, StoredKey::Missing);
    seen.nodes()
        .iter()
        .filter(|node| {
            node.stored
                .as_ref()
                .is_ok_and(|stored| is_there(&stored.key))
        })
        .count()
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Whether it becomes so in time.
fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        if until < Instant::now() {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}
