//! What the nodes know of clients that wait: the lists, the marks, and the subscribers of notices. And calls that wait.

use std::array;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use devnodes::{PATIENCE, Reply, Server, Servers, eventually};
use quorlock::{AcquireError, Builder, LockGuard, LockManager};

use crate::support::*;

/// The lock that the tests of waiting are about.
pub(crate) const NAME: &str = "report";

/// Options under which a call that waits asks again in a minute at the earliest, and no key expires: nothing but a notice
/// gives it the lock within `PATIENCE`.
pub(crate) fn far(servers: &Servers) -> Builder {
    builder(servers.urls())
        .ttl(LONG)
        .retry_delay(secs(60), secs(60))
}

/// The same with the usual pauses between attempts.
pub(crate) fn near(servers: &Servers) -> Builder {
    builder(servers.urls()).ttl(LONG)
}

/// A manager with these options that is connected to all servers.
pub(crate) fn on_all(servers: &Servers, options: fn(&Servers) -> Builder) -> LockManager {
    connected(options(servers), u64::try_from(servers.len()).unwrap())
}

/// Three servers, and managers with these options that are connected to all of them.
pub(crate) fn with_managers<const N: usize>(
    options: fn(&Servers) -> Builder,
) -> (Servers, [LockManager; N]) {
    let servers = Servers::start(3).unwrap();
    let managers = array::from_fn(|_| on_all(&servers, options));
    (servers, managers)
}

/// The waiting list of `name`.
pub(crate) fn list(name: &str) -> String {
    format!("quorlock:waiting:{name}")
}

/// The key that exists while a call may wait for `name`.
pub(crate) fn mark(name: &str) -> String {
    format!("quorlock:mark:{name}")
}

const CHANNEL: &str = "quorlock:wake:";

/// The channel of a client's hand-overs.
pub(crate) fn channel(client: &str) -> String {
    format!("{CHANNEL}{client}")
}

/// What a server sends to a client to which it has handed the lock over, without a token: no vote, but the call asks again.
pub(crate) fn hand_over_message(member: &str, name: &str) -> String {
    let (kind, value) = member[16..].split_at(1);
    format!(
        "0 123456789012345 1000 0 {kind} {} {value} {name}",
        value.len()
    )
}

/// Makes the call of this entry ask again, as if the server had handed the lock over to it.
pub(crate) fn prod(server: &Server, member: &str, name: &str) {
    let message = hand_over_message(member, name);
    let to = channel(&client_of(member));
    server.command(&["PUBLISH", &to, &message]).unwrap();
}

/// The entry of a client's call in a waiting list: `kind` is "w" or "r", and `value` is what the lock's key gets.
pub(crate) fn member(client: &str, kind: &str, value: &str) -> String {
    format!("{client}{kind}{value}")
}

/// Whether the server can be asked.
pub(crate) fn is_up(server: &Server) -> bool {
    server.is_running() && !server.is_paused()
}

pub(crate) fn strings(reply: &Reply) -> Vec<String> {
    let texts = reply.as_array().unwrap().iter();
    texts.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// The entries in the waiting list of `name` there, first come first.
pub(crate) fn members_of(server: &Server, name: &str) -> Vec<String> {
    members_in(server, &list(name))
}

/// The same of a list.
pub(crate) fn members_in(server: &Server, list: &str) -> Vec<String> {
    strings(&server.command(&["ZRANGE", list, "0", "-1"]).unwrap())
}

/// The client of an entry in a waiting list.
pub(crate) fn client_of(member: &str) -> String {
    member.chars().take(16).collect()
}

/// The managers that wait for `name` there, first come first.
pub(crate) fn waiters_of(server: &Server, name: &str) -> Vec<String> {
    let members = members_of(server, name);
    members.iter().map(|it| client_of(it)).collect()
}

/// When the call began for which the manager `client` waits there, in microseconds since 1970.
pub(crate) fn since(server: &Server, name: &str, client: &str) -> Option<i64> {
    let entries = server.command(&["ZRANGE", &list(name), "0", "-1", "WITHSCORES"]);
    let entries = strings(&entries.unwrap());
    entries
        .chunks(2)
        .find(|it| it[0].starts_with(client))
        .map(|it| it[1].parse().unwrap())
}

/// The managers that listen for notices there.
pub(crate) fn listeners_of(server: &Server) -> Vec<String> {
    let command = ["PUBSUB", "CHANNELS", &format!("{CHANNEL}*")];
    let channels = strings(&server.command(&command).unwrap());
    let clients = channels.iter().map(|it| it.strip_prefix(CHANNEL).unwrap());
    clients.map(str::to_owned).collect()
}

/// Waits until so many managers wait for `name` on every server that can be asked, and listen there.
#[track_caller]
pub(crate) fn wait_until_listed(servers: &Servers, name: &str, count: usize) {
    wait_until_in(servers, &list(name), count);
}

/// The same for a list.
#[track_caller]
pub(crate) fn wait_until_in(servers: &Servers, list: &str, count: usize) {
    eventually("all waiting managers are on the lists and listen", || {
        servers.iter().filter(|it| is_up(it)).all(|server| {
            let (waiters, listeners) = (members_in(server, list), listeners_of(server));
            waiters.len() == count && waiters.iter().all(|it| listeners.contains(&client_of(it)))
        })
    });
}

/// Waits until none of these managers listens on any server that can be asked.
#[track_caller]
pub(crate) fn wait_until_deaf(servers: &Servers, members: &[String]) {
    eventually("they do not listen any more", || {
        let mut up = servers.iter().filter(|it| is_up(it));
        up.all(|it| listeners_of(it).iter().all(|it| !members.contains(it)))
    });
}

/// Waits until nothing is left on the servers but fencing counters: no lock, no list, no mark.
#[track_caller]
pub(crate) fn nothing_waits(servers: &Servers) {
    let stays = |key: &Reply| {
        let key = key.as_bytes().unwrap();
        let counters: [&[u8]; 2] = [b"quorlock:fence", b"quorlock:slot-fence"];
        counters.iter().any(|it| key.starts_with(it)) || key == RECORD.as_bytes()
    };
    let mut left = Vec::new();
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        left.clear();
        for server in servers.iter().filter(|it| is_up(it)) {
            let keys = server.command(&["KEYS", "*"]).unwrap();
            left.extend(
                keys.as_array()
                    .unwrap()
                    .iter()
                    .filter(|it| !stays(it))
                    .cloned(),
            );
        }
        if left.is_empty() {
            return;
        }
        thread::sleep(ms(2));
    }
    panic!("something is left on the servers: {left:?}");
}

/// Takes the lock; returns once its key is set on every server that can be asked, so that no command of it is still to come.
#[track_caller]
pub(crate) fn hold(locks: &LockManager, servers: &Servers, name: &str) -> LockGuard {
    // A server that the release of an earlier holder has not reached would refuse it.
    eventually("the lock is free on all servers", || {
        servers.holders(name) == 0
    });
    let guard = lock_in_the_end(locks, name);
    eventually("the lock is on all servers", || {
        servers.holders(name) == servers.iter().filter(|it| is_up(it)).count()
    });
    guard
}

/// A call that waits, in a thread, and what comes of it.
pub(crate) type Waiter = JoinHandle<Result<LockGuard, AcquireError>>;

/// Waits for the lock in a thread.
pub(crate) fn wait_in_thread(lock: quorlock::Mutex) -> Waiter {
    thread::spawn(move || lock.lock())
}

/// Waits for the lock in a thread; returns once so many managers are on the lists of all servers.
#[track_caller]
pub(crate) fn listed(servers: &Servers, count: usize, lock: quorlock::Mutex) -> Waiter {
    let name = String::from_utf8(lock.name().to_vec()).unwrap();
    let waiter = wait_in_thread(lock);
    wait_until_listed(servers, &name, count);
    waiter
}

/// A call of each manager that waits for [`NAME`], one behind the other in the lists of all servers.
#[track_caller]
pub(crate) fn line_up(servers: &Servers, managers: &[LockManager]) -> Vec<Waiter> {
    let managers = managers.iter().enumerate();
    managers
        .map(|(i, locks)| listed(servers, i + 1, locks.mutex(NAME)))
        .collect()
}

/// Asserts that the waiting call gets the lock, and leaves nothing when it has given it back.
#[track_caller]
pub(crate) fn assert_gets_in(waiter: Waiter, servers: &Servers) {
    drop(join(waiter).unwrap());
    nothing_waits(servers);
}

/// Starts a call of the manager that waits, and returns once it does: later ones are behind it.
#[track_caller]
pub(crate) fn queue_up<T: Send + 'static>(
    locks: &LockManager,
    call: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let before = locks.stats().waiting;
    let thread = thread::spawn(call);
    eventually("the call is among those that wait", || {
        before < locks.stats().waiting
    });
    thread
}

/// As [`queue_up`], for the lock [`NAME`].
#[track_caller]
pub(crate) fn queue(locks: &LockManager) -> Waiter {
    let lock = locks.mutex(NAME);
    queue_up(locks, move || lock.lock())
}

/// Which contenders have had the lock, and when.
#[derive(Clone, Default)]
pub(crate) struct Order(Arc<Mutex<Vec<(String, Instant)>>>);

impl Order {
    pub(crate) fn note(&self, who: &str) {
        let mut order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        order.push((who.to_owned(), Instant::now()));
    }

    /// Starts a call that waits for the lock, notes that it has it, and gives it back. Later ones are behind it.
    #[track_caller]
    pub(crate) fn queue(
        &self,
        locks: &LockManager,
        lock: quorlock::Mutex,
        who: &str,
    ) -> JoinHandle<()> {
        let (order, who) = (self.clone(), who.to_owned());
        queue_up(locks, move || {
            let guard = lock.lock().unwrap();
            order.note(&who);
            drop(guard);
        })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        order.iter().map(|(who, _)| who.clone()).collect()
    }

    /// The longest time from one note to the next.
    pub(crate) fn longest_gap(&self) -> Duration {
        let order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gaps = order.windows(2).map(|it| it[1].1 - it[0].1);
        gaps.max().unwrap_or_default()
    }
}
