//! What users hold of the stand-ins.

use std::fmt;
use std::io;
use std::ops::Index;
use std::time::Duration;

use crate::builder::Builder;
use crate::engine;
use crate::ids::{OwnerLabel, OwnerToken};
use crate::manager::LockManager;
use crate::sys::ahead::Ahead;
use crate::sys::wall_clock;
use crate::testing::refusal::Refusal;
use crate::testing::server::Server;
use crate::testing::servers::{Holder, NotStandIns, Servers, Taken, urls_of_env};
use crate::testing::store::{Reply, Value};
use crate::time::{deadline, tick};
use crate::wire::{Command, KeyTtls, Plan, QueuePolicy, QueueUpdate, beside};

/// How long a [`Hold`] lasts at most: milliseconds.
const HOLD_MAX: u64 = 3_600_000;
/// Twice the longest ttl.
const FENCING_TTL: Duration = Duration::from_secs(2 * 60 * 60);
/// How long [`Nodes::advance`] waits at most, and how often it looks.
const SETTLE_MAX: Duration = Duration::from_secs(10);
const SETTLE_PAUSE: Duration = Duration::from_micros(100);

/// Stand-ins for the servers of a [`LockManager`]: they run in this process and listen on loopback. Dropping it ends them. Or
/// [servers](Nodes::from_env), which have no faults.
///
/// See the [module](super) for an example. As many as a test needs can run at a time, each with nodes of its own.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<Node>,
    ahead: Ahead,
    /// Instead of `nodes`.
    servers: Option<Servers>,
}

impl Nodes {
    /// Starts so many stand-ins; they answer when this returns, which takes a few milliseconds.
    ///
    /// # Errors
    ///
    /// There is no port on loopback, no file descriptor, or no thread. The text says what is needed.
    pub fn start(n: usize) -> io::Result<Nodes> {
        let ahead = Ahead::default();
        let nodes = (0..n).map(|it| Ok(Node { server: Server::start(it, &ahead)? })).collect::<io::Result<_>>()?;
        Ok(Nodes { nodes, ahead, servers: None })
    }

    /// The servers in the environment variable `QUORLOCK_TEST_NODES`, URLs with commas or spaces
    /// [between them](Builder::split_urls); `n` stand-ins if it is not set. So a test that needs no faults runs on both.
    ///
    /// Nobody else uses the same names on the servers: these get a prefix that is drawn for this value. Dropping it deletes
    /// what has it, which blocks for a few round trips, and for about two seconds at most; what was left by managers that live
    /// longer expires by itself, within two hours.
    ///
    /// Servers cannot be broken from here. [`node`](Nodes::node) and [`are_stand_ins`](Nodes::are_stand_ins) are errors;
    /// `nodes[0]`, [`iter`](Nodes::iter) and [`advance`](Nodes::advance) panic.
    ///
    /// # Errors
    ///
    /// There is no port on loopback, no thread or no random number, or the URLs are wrong. Whether servers answer is not asked.
    ///
    /// ```
    /// use quorlock::testing::Nodes;
    ///
    /// let nodes = Nodes::from_env(3)?;
    /// let locks = nodes.manager().build()?;
    /// let other = nodes.hold("report").unwrap();
    /// assert!(locks.mutex("report").try_lock().unwrap_err().is_held());
    /// drop(other);
    /// nodes.node(0)?.down(); // an error on servers: such a test ends here
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_env(n: usize) -> io::Result<Nodes> {
        match urls_of_env() {
            None => Nodes::start(n),
            Some(urls) => Ok(Nodes { nodes: Vec::new(), ahead: Ahead::default(), servers: Some(Servers::new(urls)?) }),
        }
    }

    /// One of them, in order, and its faults.
    ///
    /// # Errors
    ///
    /// It is a [server](Nodes::from_env).
    ///
    /// # Panics
    ///
    /// There is no such node.
    pub fn node(&self, index: usize) -> Result<&Node, NotStandIns> {
        self.are_stand_ins().map(|()| &self[index])
    }

    /// Whether they have faults.
    ///
    /// # Errors
    ///
    /// They are [servers](Nodes::from_env).
    pub fn are_stand_ins(&self) -> Result<(), NotStandIns> {
        if self.servers.is_some() { Err(NotStandIns) } else { Ok(()) }
    }

    /// The stand-ins.
    #[track_caller]
    fn to_break(&self) -> &[Node] {
        if let Err(err) = self.are_stand_ins() {
            panic!("{err}");
        }
        &self.nodes
    }

    /// Begins to build a manager for them: without [quarantine](Builder::quarantine), because they are new, and with time-outs
    /// that a busy machine keeps.
    ///
    /// Response timeout: 2 s. Connect timeout: 5 s. Ttl: 10 s. All can be set otherwise: the shorter the ttl, the sooner a
    /// guard learns of a [loss](Nodes::lose).
    pub fn manager(&self) -> Builder {
        let mut builder = LockManager::builder(self.urls())
            .quarantine(false)
            .response_timeout(Duration::from_secs(2))
            .connect_timeout(Duration::from_secs(5));
        builder.config.ahead = self.ahead.clone();
        if let Some(servers) = &self.servers {
            builder.config.test_prefix = servers.prefix().to_vec();
            // What should stay nevertheless does not stay for a day.
            builder.config.fencing_ttl = Some(FENCING_TTL);
        }
        builder
    }

    /// The URL of each, in order: `redis://127.0.0.1:PORT`.
    pub fn urls(&self) -> Vec<String> {
        match &self.servers {
            Some(servers) => servers.urls().to_vec(),
            None => self.nodes.iter().map(Node::url).collect(),
        }
    }

    /// All of them, in order.
    ///
    /// # Panics
    ///
    /// They are [servers](Nodes::from_env).
    #[track_caller]
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.to_break().iter()
    }

    /// Takes the lock for somebody else, for an hour at most: a mutex, a [writer](crate::RwLock::write), one name of
    /// [several](LockManager::multi). `None` if no majority of the nodes gives it, because it is held. The name is with the
    /// manager's [prefix](Builder::prefix). Faults do not matter, and it blocks for nothing.
    ///
    /// Dropping it gives the lock back, and who waits is told.
    pub fn hold(&self, name: impl AsRef<[u8]>) -> Option<Hold<'_>> {
        let name = name.as_ref();
        match &self.servers {
            Some(servers) => servers.hold(name).map(Hold::of_guard),
            None => self.take(Plan::mutex(b"", name, KeyTtls::default()), &[]),
        }
    }

    /// The same as a [reader](crate::RwLock::read).
    pub fn hold_shared(&self, name: impl AsRef<[u8]>) -> Option<Hold<'_>> {
        let name = name.as_ref();
        match &self.servers {
            Some(servers) => servers.hold_shared(name).map(Hold::of_guard),
            None => self.take(Plan::mutex(b"", name, KeyTtls::default()).to_read(), &[]),
        }
    }

    /// The same for a permit of a [semaphore](LockManager::semaphore) that has `permits`, 1 to 256.
    pub fn hold_permit(&self, name: impl AsRef<[u8]>, permits: u8) -> Option<Hold<'_>> {
        let permits = permits.max(1);
        if let Some(servers) = &self.servers {
            return servers.hold_permit(name.as_ref(), permits).map(Hold::of_guard);
        }
        let plan = Plan::semaphore(b"", name.as_ref(), usize::from(permits), KeyTtls::default());
        (0..permits).find_map(|it| self.take(plan.of_slot(it), &[]))
    }

    /// `before`: a command that each node runs in the same step.
    fn take(&self, plan: Plan, before: &[u8]) -> Option<Hold<'_>> {
        let owner = OwnerToken::draw().ok()?;
        let plan = plan.signed(&OwnerLabel::new("stand-in", std::process::id(), ""));
        // Before everybody who waits.
        let policy = QueuePolicy { fair: true, since: 0, entry: None, enters: false, only: plan.slot() };
        let now = wall_clock().saturating_add(self.ahead.by());
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let acquire = plan.acquire(owner, HOLD_MAX, now, 0, &policy);
        let hold = Hold(Held::OnStandIns { nodes: self, plan: Box::new(plan), owner });
        let granted = self.nodes.iter().filter(|it| it.say(before, &acquire).as_ref().is_some_and(is_grant)).count();
        (self.nodes.len() / 2 < granted).then_some(hold)
    }

    /// The lock is gone, as if its time had run out everywhere: anybody may take it, and nobody is told. Who held it learns
    /// that when its guard is extended next, which is after a third of its ttl, or when it is released.
    ///
    /// Of a mutex, of readers and writers, and of each name of several; for permits there is
    /// [`expire_permits`](Nodes::expire_permits). The name is with the manager's prefix.
    pub fn expire(&self, name: impl AsRef<[u8]>) {
        if let Some(servers) = &self.servers {
            servers.expire(name.as_ref());
        }
        self.nodes.iter().for_each(|it| drop(it.server.say(&delete(name.as_ref()))));
    }

    /// The same of all permits of a [semaphore](LockManager::semaphore) that has `permits`, 1 to 256.
    /// [`hold_permit`](Nodes::hold_permit) then takes one for somebody else.
    pub fn expire_permits(&self, name: impl AsRef<[u8]>, permits: u8) {
        let name = name.as_ref();
        if let Some(servers) = &self.servers {
            servers.expire_permits(name, permits);
        }
        for slot in 0..permits {
            let key = beside(&format!("slot-{slot}"), name);
            self.nodes.iter().for_each(|it| drop(it.server.say(&delete(&key))));
        }
    }

    /// Somebody else takes the lock from whoever has it: as [`expire`](Nodes::expire) and [`hold`](Nodes::hold) in one step.
    /// `None` if a majority of the nodes keeps it for somebody who waits.
    pub fn lose(&self, name: impl AsRef<[u8]>) -> Option<Hold<'_>> {
        let name = name.as_ref();
        if self.servers.is_some() {
            self.expire(name);
            return self.hold(name);
        }
        self.take(Plan::mutex(b"", name, KeyTtls::default()), &delete(name))
    }

    /// Who holds the lock on a majority of the nodes, if anybody does. The name is with the manager's prefix. Of each node
    /// for itself, and of readers, [`LockManager::inspect`] says more.
    pub fn holder(&self, name: impl AsRef<[u8]>) -> Option<Holder> {
        if let Some(servers) = &self.servers {
            return servers.holder(name.as_ref());
        }
        let stored: Vec<_> = self.nodes.iter().filter_map(|it| it.stored(name.as_ref())).collect();
        stored.iter().find_map(|(value, _)| {
            let same = stored.iter().filter(|it| it.0 == *value);
            let nodes = same.clone().count();
            let remaining = same.filter_map(|it| it.1).min();
            // Behind the random part, which stays secret.
            let label = String::from_utf8_lossy(value.get(33..).unwrap_or_default()).into_owned();
            (self.nodes.len() / 2 < nodes).then_some(Holder { label, nodes, remaining })
        })
    }

    /// Adds to the time of these nodes and of all managers that [`manager`](Nodes::manager) has made: they are by so much later
    /// in an instant, as after a sleep of the machine. Beside that, time runs by itself.
    ///
    /// - A lock of which less was left is lost, and its keys have expired: `is_valid` says so at once, and who listens hears of
    ///   it. Otherwise it is extended if that is due: advance in steps that are shorter than half the ttl to let a long time
    ///   pass for a holder that is awake.
    /// - Calls that wait for a lock see their deadline nearer, and ask the nodes again if that is due. So they get a lock whose
    ///   holder is gone.
    /// - [Quarantines](Builder::quarantine) are shorter by so much.
    ///
    /// Time-outs of connections and answers are not: these take the time that they take. Nor are pauses between
    /// attempts to connect.
    ///
    /// Blocks: before that until no round is under way, which would otherwise seem to have taken so long (not while a node is
    /// [paused](Node::pause)), and then until the extensions that were due are answered. Each takes a response timeout at most,
    /// and 10 s in any case. More than a hundred years in all are never added. Nodes and managers of other `Nodes` are not touched. To a manager that was
    /// made for the [`urls`](Nodes::urls) in another way it looks as if the clocks of the nodes had been set forward.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let nodes = quorlock::testing::Nodes::start(3)?;
    /// let locks = nodes.manager().ttl(Duration::from_secs(10)).build()?;
    /// let guard = locks.mutex("report").try_lock()?;
    /// for _ in 0..100 {
    ///     nodes.advance(Duration::from_secs(4)); // it is extended again and again
    /// }
    /// assert!(guard.is_valid());
    /// nodes.advance(Duration::from_secs(10)); // the process was stopped, say
    /// assert!(!guard.is_valid());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// They are [servers](Nodes::from_env).
    #[track_caller]
    pub fn advance(&self, by: Duration) {
        let _stand_ins = self.to_break();
        let is_paused = self.nodes.iter().any(|it| it.server.state().faults.is_paused);
        let managers = self.ahead.add(by, if is_paused { Duration::ZERO } else { SETTLE_MAX });
        managers.iter().for_each(|it| it.on_advance(by));
        let until = deadline(SETTLE_MAX);
        while !managers.iter().all(|it| it.is_settled()) && tick() < until {
            engine::sleep(deadline(SETTLE_PAUSE), &[]);
        }
    }

    /// How many scripts all of them have run for their clients, or refused; 0 of servers.
    pub fn commands(&self) -> u64 {
        self.nodes.iter().map(Node::commands).fold(0, u64::saturating_add)
    }
}

/// `nodes[0]` is the first.
///
/// # Panics
///
/// There is no such node, or they are [servers](Nodes::from_env).
impl Index<usize> for Nodes {
    type Output = Node;

    #[expect(clippy::indexing_slicing, reason = "as documented, and as of any list")]
    #[track_caller]
    fn index(&self, index: usize) -> &Node {
        &self.to_break()[index]
    }
}

/// The command that deletes a key.
fn delete(key: &[u8]) -> Vec<u8> {
    [format!("*2\r\n$3\r\nDEL\r\n${}\r\n", key.len()).as_bytes(), key, b"\r\n"].concat()
}

/// Whether a reply to an acquire is a grant. A counter that is ahead does not matter to a hold without a token.
fn is_grant(reply: &Reply) -> bool {
    match reply {
        Reply::Int(_) => true,
        Reply::Array(members) => matches!(members.first(), Some(Reply::Int(1 | 2 | 7))),
        _ => false,
    }
}

/// A lock that somebody else holds: see [`Nodes::hold`]. Dropping it gives the lock back.
#[must_use = "the lock is given back when this is dropped"]
pub struct Hold<'a>(Held<'a>);

enum Held<'a> {
    OnStandIns {
        nodes: &'a Nodes,
        plan: Box<Plan>,
        owner: OwnerToken,
    },
    /// Gives it back by itself.
    OnServers {
        _guard: Taken,
    },
}

impl Hold<'_> {
    fn of_guard(guard: Taken) -> Hold<'static> {
        Hold(Held::OnServers { _guard: guard })
    }
}

impl fmt::Debug for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Held::OnStandIns { nodes, plan, owner } = &self.0 {
            let release = plan.release(*owner, None, QueueUpdate::None);
            nodes.nodes.iter().for_each(|it| drop(it.say(&[], &release)));
        }
    }
}

/// One stand-in, and what can go wrong with it. Nothing here blocks.
#[derive(Debug)]
pub struct Node {
    server: Server,
}

impl Node {
    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.server.addr())
    }

    /// Ends all connections, and each new one at once, until it is [up](Node::up) again. It keeps what it has stored.
    pub fn down(&self) {
        self.server.change(|it| it.is_down = true);
        self.server.hang_up();
    }

    /// Takes connections again.
    pub fn up(&self) {
        self.server.change(|it| it.is_down = false);
    }

    /// Loses everything that it has stored, and its connections: a server that was started again and keeps nothing on disk.
    pub fn forget(&self) {
        self.server.forget();
    }

    /// Reads nothing until it [goes on](Node::resume), and so answers nothing: a process that is stopped.
    pub fn pause(&self) {
        self.server.change(|it| it.is_paused = true);
    }

    /// Reads again: it first runs all that has come meanwhile.
    pub fn resume(&self) {
        self.server.change(|it| it.is_paused = false);
    }

    /// Runs and answers everything that comes so much later; zero for at once.
    pub fn delay(&self, by: Duration) {
        self.server.change(|it| it.delay = by);
    }

    /// Runs no script, and says this instead; `None` to run them again.
    pub fn refuse(&self, why: impl Into<Option<Refusal>>) {
        let why = why.into();
        self.server.change(|it| it.refusal = why);
    }

    /// Runs the next `n` scripts and does not answer them: the connection ends in place of each answer.
    pub fn drop_replies(&self, n: u64) {
        self.server.change(|it| it.dropped = n);
    }

    /// How many scripts it has run for its clients, or refused.
    pub fn commands(&self) -> u64 {
        self.server.state().commands
    }

    fn say(&self, before: &[u8], command: &Command) -> Option<Reply> {
        let mut bytes = before.to_vec();
        command.write_with_source_to(&mut bytes, false);
        self.server.say(&bytes)
    }

    /// The value of a lock, and how long it lasts.
    fn stored(&self, name: &[u8]) -> Option<(Vec<u8>, Option<Duration>)> {
        let mut state = self.server.state();
        let now = state.now();
        let (_, it) = state.store.contents(now).find(|it| it.0 == name)?;
        let Value::Text(value) = it.value else { return None };
        Some((value.clone(), it.left.map(|ms| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default())))
    }
}
