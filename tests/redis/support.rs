//! What the tests have in common.

use std::ffi::OsString;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, iter};

pub(crate) use devnodes::{ChildProcess, eventually_some, say};
use devnodes::{PATIENCE, Proxy, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, NodeReport};
use quorlock::{
    AcquireError, Builder, ExtendError, LockGuard, LockManager, LockName, Lost, LostReason,
    LostReceiver, ReleaseError,
};

pub(crate) type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Longer than any test waits: a key with this ttl that is gone was deleted, and did not expire.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Options under which a busy machine fails no test: for everything that is not about these limits. The servers of tests
/// are always new: only tests of the quarantine switch it on.
pub(crate) fn builder(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Builder {
    patient(crate::builder_for(urls))
}

/// With the same options.
pub(crate) fn patient(builder: Builder) -> Builder {
    builder
        .ttl(secs(20))
        .response_timeout(secs(5))
        .connect_timeout(secs(10))
        .outage_timeout(PATIENCE)
        .shutdown_grace(secs(5))
        .quarantine(false)
}

/// With a ttl that ends within a test, and a response timeout that is as long as it allows.
pub(crate) fn with_ttl(urls: impl IntoIterator<Item = impl AsRef<str>>, ttl: Duration) -> Builder {
    builder(urls).response_timeout(ttl / 4).ttl(ttl)
}

/// The same with a quarantine of that length.
pub(crate) fn with_quarantine(
    urls: impl IntoIterator<Item = impl AsRef<str>>,
    ttl: Duration,
) -> Builder {
    with_ttl(urls, ttl).quarantine(true).max_ttl(ttl)
}

/// The loss, when it is announced.
pub(crate) fn announced(lost: &LostReceiver) -> LostReason {
    lost.recv_timeout(PATIENCE)
        .expect("the loss is announced")
        .reason
}

/// The loss of the lock with this name.
pub(crate) fn loss(name: &str, reason: LostReason) -> Lost {
    Lost {
        name: LockName::new(name.as_bytes()),
        reason,
    }
}

/// An error that can be a loss.
pub(crate) trait Loss: std::fmt::Debug {
    fn reason(&self) -> Option<LostReason>;
}

impl Loss for Lost {
    fn reason(&self) -> Option<LostReason> {
        Some(self.reason)
    }
}

impl Loss for ExtendError {
    fn reason(&self) -> Option<LostReason> {
        if let ExtendError::Lost(lost) = self {
            return Some(lost.reason);
        }
        None
    }
}

impl Loss for ReleaseError {
    fn reason(&self) -> Option<LostReason> {
        if let ReleaseError::Lost(lost) = self {
            return Some(lost.reason);
        }
        None
    }
}

/// The result with the plain reason of the loss.
#[track_caller]
pub(crate) fn reason<T>(result: Result<T, impl Loss>) -> Result<T, LostReason> {
    result.map_err(|err| err.reason().unwrap_or_else(|| panic!("not lost: {err:?}")))
}

pub(crate) fn manager(servers: &Servers) -> LockManager {
    builder(servers.urls()).build().unwrap()
}

/// For tests in which nodes do not answer: the limit is spent in each of their rounds.
pub(crate) fn impatient(urls: impl IntoIterator<Item = String>) -> Builder {
    builder(urls).response_timeout(ms(250)).ttl(LONG)
}

/// A manager that is connected to all its nodes, so that a test does not depend on which connection comes first.
pub(crate) fn connected(builder: Builder, nodes: u64) -> LockManager {
    let locks = builder.build().unwrap();
    connect(&locks, nodes);
    locks
}

/// Takes and gives back locks until the manager has as many connections.
pub(crate) fn connect(locks: &LockManager, connections: u64) {
    // A single try: it does not make the manager listen for releases.
    let guard = lock_in_the_end(locks, "warm-up");
    eventually("all nodes are connected", || {
        connections <= locks.stats().connections
    });
    drop(guard);
}

/// New servers, and a manager with these options that is connected to all of them.
pub(crate) fn start_connected(
    n: usize,
    options: impl FnOnce(Vec<String>) -> Builder,
) -> (Servers, LockManager) {
    let servers = Servers::start(n).unwrap();
    let locks = connected(options(servers.urls()), n as u64);
    (servers, locks)
}

/// The same, with options that need the servers.
pub(crate) fn start_on_all(n: usize, options: fn(&Servers) -> Builder) -> (Servers, LockManager) {
    let servers = Servers::start(n).unwrap();
    let locks = connected(options(&servers), n as u64);
    (servers, locks)
}

/// New servers with a proxy in front of each, and a manager that is connected to all of them.
pub(crate) fn start_behind_proxies(
    n: usize,
    options: impl FnOnce(Vec<String>) -> Builder,
) -> (Servers, Vec<Proxy>, LockManager) {
    let servers = Servers::start(n).unwrap();
    let (proxies, urls) = proxies(&servers);
    let locks = connected(options(urls), n as u64);
    (servers, proxies, locks)
}

/// A proxy in front of each server.
pub(crate) fn proxies(servers: &Servers) -> (Vec<Proxy>, Vec<String>) {
    let proxies: Vec<_> = servers
        .iter()
        .map(|it| Proxy::start(it.addr()).unwrap())
        .collect();
    let urls = proxies.iter().map(Proxy::url).collect();
    (proxies, urls)
}

/// The address in the server's URL, which logs and errors show.
pub(crate) fn shown_address(server: &Server) -> String {
    server.url().rsplit(['/', '@']).next().unwrap().to_owned()
}

/// Keys of the server that are locks: not the counters that stay beside them.
pub(crate) fn lock_keys(server: &Server) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys = keys
        .as_array()
        .unwrap()
        .iter()
        .map(|it| String::from_utf8_lossy(it.as_bytes().unwrap()).into_owned());
    keys.filter(|it| !it.starts_with("quorlock:")).collect()
}

/// Adds a user with these rules; a URL that logs in as it.
pub(crate) fn add_user(server: &Server, name: &str, rules: &str) -> String {
    let words = format!("ACL SETUSER {name} reset on >pw {rules}");
    let words: Vec<_> = words.split(' ').collect();
    server.command(&words).unwrap();
    format!("redis://{name}:pw@{}", server.addr())
}

/// The server answers `HELLO` as one that is too old for it, and so it announces nothing.
pub(crate) fn without_hello(builder: devnodes::Builder) -> devnodes::Builder {
    without(builder, "HELLO")
}

/// The server lacks this command, as hardening guides and providers have it.
pub(crate) fn without(builder: devnodes::Builder, command: &str) -> devnodes::Builder {
    // The other option makes the number of words even.
    let limit = ["--client-output-buffer-limit", "normal", "0", "0", "0"];
    let builder = builder.arg("--rename-command", command).arg("", limit[0]);
    builder.arg(limit[1], limit[2]).arg(limit[3], limit[4])
}

/// Sends the command to all servers.
pub(crate) fn command_all(servers: &Servers, words: &[&str]) {
    servers
        .iter()
        .for_each(|server| drop(server.command(words).unwrap()));
}

/// Sets `key` on all servers, as another client would.
pub(crate) fn set_all(servers: &Servers, key: &str, value: &str) {
    servers.iter().for_each(|server| set(server, key, value));
}

/// Deletes the key on all servers.
pub(crate) fn del_all(servers: &Servers, key: &str) {
    servers.iter().for_each(|server| del(server, key));
}

/// Waits until no server holds a lock.
#[track_caller]
pub(crate) fn nothing_is_left(servers: &Servers) {
    eventually("no lock is left on any server", || {
        servers
            .iter()
            .filter(|it| it.is_running() && !it.is_paused())
            .all(|it| lock_keys(it).is_empty())
    });
}

/// How often the server was asked to run a script, by its hash or by its source.
pub(crate) fn scripts_run(server: &Server) -> u64 {
    calls(server, "evalsha") + calls(server, "eval")
}

/// How often the server has run a command.
pub(crate) fn calls(server: &Server, command: &str) -> u64 {
    let stat = server.info(&format!("cmdstat_{command}"));
    stat.unwrap_or_default()
        .split(',')
        .find_map(|field| field.strip_prefix("calls="))
        .map_or(0, |calls| calls.parse().unwrap())
}

/// Sets `key` as another client would.
pub(crate) fn set(server: &Server, key: &str, value: &str) {
    server.command(&["SET", key, value]).unwrap();
}

pub(crate) fn set_px(server: &Server, key: &str, value: &str, millis: u64) {
    server
        .command(&["SET", key, value, "PX", &millis.to_string()])
        .unwrap();
}

pub(crate) fn del(server: &Server, key: &str) {
    server.command(&["DEL", key]).unwrap();
}

/// Microseconds since 1970, by the server's clock.
pub(crate) fn time_at(server: &Server) -> u64 {
    let time = server.command(&["TIME"]).unwrap();
    let [seconds, micros] = [0, 1].map(|part| time.as_array().unwrap()[part].as_int().unwrap());
    u64::try_from(seconds * 1_000_000 + micros).unwrap()
}

/// The key of a server's record.
pub(crate) const RECORD: &str = "quorlock:record";

/// A server's record: see `src/wire/scripts/record.lua`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Record {
    pub(crate) record_version: String,
    /// Microseconds since 1970.
    pub(crate) since: u64,
    /// Milliseconds.
    pub(crate) max_ttl: u64,
    pub(crate) format: String,
    pub(crate) run_id: String,
    pub(crate) origin: String,
    /// How many servers its programs have.
    pub(crate) servers: String,
    /// What stands behind that.
    pub(crate) rest: String,
}

impl Record {
    /// Of a server that has kept everything for ever, and whose programs need no quarantine.
    pub(crate) fn of_ever(server: &Server) -> Record {
        Record {
            record_version: "000000000000001".to_owned(),
            since: 1,
            max_ttl: 0,
            format: "1".to_owned(),
            run_id: server.info("run_id").unwrap(),
            origin: "old".to_owned(),
            servers: "0".to_owned(),
            rest: String::new(),
        }
    }

    /// The same with a change, written to the server.
    pub(crate) fn write_changed(server: &Server, change: impl FnOnce(&mut Record)) {
        let mut record = Record::of_ever(server);
        change(&mut record);
        record.write(server);
    }

    pub(crate) fn write(&self, server: &Server) {
        set(server, RECORD, &self.text());
    }

    pub(crate) fn text(&self) -> String {
        let Record {
            record_version,
            since,
            max_ttl,
            format,
            run_id,
            origin,
            servers,
            rest,
        } = self;
        let end = since + 1000 * max_ttl;
        format!("{record_version} {since:016} {end:016} {format} {run_id} {origin} {servers}{rest}")
    }
}

/// What the server has stored; `None` if that is no record.
pub(crate) fn record(server: &Server) -> Option<Record> {
    let text = String::from_utf8(server.get(RECORD)?).ok()?;
    let mut fields = text.splitn(8, ' ').map(str::to_owned);
    let mut next = || fields.next();
    let record_version = next()?;
    let [since, end] = [next()?.parse().ok()?, next()?.parse().ok()?];
    Some(Record {
        record_version,
        since,
        max_ttl: u64::checked_sub(end, since)? / 1000,
        format: next()?,
        run_id: next()?,
        origin: next()?,
        servers: next()?,
        rest: next().map_or(String::new(), |it| format!(" {it}")),
    })
}

/// Where a lock's fencing counter is.
pub(crate) fn fence(name: &str) -> String {
    format!("quorlock:fence:{name}")
}

/// A counter as a clock that is an hour ahead leaves it.
pub(crate) fn in_an_hour() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(now.as_micros()).unwrap() + 3_600_000_000
}

/// Asserts that every node has answered that it released something.
#[track_caller]
pub(crate) fn assert_released(rows: &[NodeReport]) {
    let is_released = |row: &NodeReport| row.answer == NodeAnswer::Released;
    assert!(rows.iter().all(is_released), "{rows:?}");
}

/// What the node said in the round that failed.
pub(crate) fn answer(err: &AcquireError, node: usize) -> &NodeAnswer {
    assert_eq!(err.nodes()[node].node.index(), node);
    &err.nodes()[node].answer
}

/// Why the node failed in that round.
#[track_caller]
pub(crate) fn failure(err: &AcquireError, node: usize) -> &NodeFailure {
    match answer(err, node) {
        NodeAnswer::Failed(failure) => failure,
        other => panic!("n{node} did not fail but said {other:?}: {err}"),
    }
}

/// How many nodes have failed in that round with a text that begins with these words.
pub(crate) fn failures(err: &AcquireError, words: &str) -> usize {
    let rows = err.nodes().iter();
    rows.filter(|row| matches!(&row.answer, NodeAnswer::Failed(failure) if says(failure, words)))
        .count()
}

/// Whether the failure's text begins with these words: kinds of failures have several texts.
pub(crate) fn says(failure: &NodeFailure, words: &str) -> bool {
    failure.to_string().starts_with(words)
}

/// Asserts that no quorum was reached, and that these nodes failed in this way.
#[track_caller]
pub(crate) fn assert_failed(err: &AcquireError, nodes: &[usize], expected: &NodeFailure) {
    assert_no_quorum(err);
    for node in nodes {
        assert_eq!(failure(err, *node), expected, "{err}");
    }
}

/// Asserts that the text contains these words, and shows it if not.
#[track_caller]
pub(crate) fn assert_contains(text: impl ToString, words: &str) {
    let text = text.to_string();
    assert!(text.contains(words), "{text}");
}

#[track_caller]
pub(crate) fn assert_no_quorum(err: &AcquireError) {
    assert!(matches!(err, AcquireError::NoQuorum { .. }), "{err:?}");
}

#[track_caller]
pub(crate) fn assert_held(err: &AcquireError) {
    assert!(err.is_held(), "{err:?}");
}

/// Takes the lock with [`try_lock`](quorlock::Mutex::try_lock), and again until it works: for nodes that come back.
#[track_caller]
pub(crate) fn lock_in_the_end(locks: &LockManager, name: &str) -> LockGuard {
    eventually_some("the lock can be taken", || {
        locks.mutex(name).try_lock().ok()
    })
}

/// Tries once for the lock "report" in a thread. It is not renewed.
pub(crate) fn try_in_thread(locks: &LockManager) -> JoinHandle<Result<LockGuard, AcquireError>> {
    let report = locks.mutex("report").renew(false);
    thread::spawn(move || report.try_lock())
}

/// The same; returns when its commands are sent.
pub(crate) fn attempt_under_way(
    locks: &LockManager,
) -> JoinHandle<Result<LockGuard, AcquireError>> {
    let commands = locks.stats().commands;
    let attempt = try_in_thread(locks);
    eventually("the attempt is under way", || {
        commands < locks.stats().commands
    });
    attempt
}

/// Waits until a try for the lock ends in an error that looks as it should; returns it.
#[track_caller]
pub(crate) fn error_in_the_end(
    locks: &LockManager,
    name: &str,
    looks: impl Fn(&AcquireError) -> bool,
) -> AcquireError {
    let mut last = String::new();
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match locks.mutex(name).try_lock() {
            Err(err) if looks(&err) => return err,
            Err(err) => last = format!("{err:?}"),
            Ok(_) => last = "the lock was taken".to_owned(),
        }
        thread::sleep(ms(2));
    }
    panic!("no try ended as it should; the last: {last}");
}

/// Waits until the manager has had this many more extensions confirmed.
#[track_caller]
pub(crate) fn wait_for_extensions(locks: &LockManager, more: u64) {
    let before = locks.stats().extensions;
    eventually("locks are extended", || {
        before + more <= locks.stats().extensions
    });
}

/// Waits until the manager has had this many more refusals: a call is really waiting.
#[track_caller]
pub(crate) fn wait_for_refusals(locks: &LockManager, more: u64) {
    let before = locks.stats().rounds_held;
    eventually("a waiter is refused", || {
        before + more <= locks.stats().rounds_held
    });
}

/// Joins a thread; a panic in it goes on here. Gives up where it hangs.
#[track_caller]
pub(crate) fn join<T>(thread: JoinHandle<T>) -> T {
    eventually("a thread ends", || thread.is_finished());
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Ends the test at once on a backend without what it needs: `needs!(AccessLists);`
macro_rules! needs {
    ($need:ident) => {
        if devnodes::lacks(devnodes::Need::$need) {
            return Ok(());
        }
    };
}
pub(crate) use needs;

/// Whether the tests that take long were asked for; says so if not.
pub(crate) fn long_tests() -> bool {
    let asked = env::var_os("QUORLOCK_LONG").is_some();
    if !asked {
        eprintln!("skipped: set QUORLOCK_LONG=1 to run it");
    }
    asked
}

/// Where a child process finds its servers.
const CHILD_URLS: &str = "QUORLOCK_CHILD_URLS";

/// Runs the ignored test `name` in a process of its own, which finds the servers with [`child_urls`].
pub(crate) fn child(name: &str, urls: &[String]) -> ChildProcess {
    child_with(name, urls, iter::empty())
}

/// The same, with variables in its environment.
pub(crate) fn child_with(
    name: &str,
    urls: &[String],
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> ChildProcess {
    ChildProcess::start(
        name,
        variables
            .into_iter()
            .chain([(CHILD_URLS.into(), urls.join(" ").into())]),
    )
}

/// Runs the ignored test `name` in a process of its own, with servers of its own. It has to end with [`passed`].
#[track_caller]
pub(crate) fn assert_passes(name: &str) {
    assert_passes_with(name, "none");
}

/// The same with an argument, which it finds with [`child_urls`].
#[track_caller]
pub(crate) fn assert_passes_with(name: &str, argument: &str) {
    let mut child = child(name, &[argument.to_owned()]);
    let said = child.hear_within(4 * PATIENCE);
    assert_eq!(said.as_deref(), Some(PASSED), "{name}");
    assert!(child.wait().success(), "{name}");
}

const PASSED: &str = "passed";

/// In a child process: the end of a test that its parent runs with [`assert_passes`].
pub(crate) fn passed() {
    say(PASSED);
}

/// In a child process: its servers. `None` elsewhere, and then there is nothing to do.
pub(crate) fn parent_urls() -> Option<Vec<String>> {
    Some(child_urls()).filter(|urls| !urls.is_empty())
}

/// The same; empty elsewhere.
pub(crate) fn child_urls() -> Vec<String> {
    let urls = env::var(CHILD_URLS).unwrap_or_default();
    urls.split_whitespace().map(str::to_owned).collect()
}

/// In a child process: waits until the parent lets it go on.
pub(crate) fn wait_for_parent() {
    let _ = hear_parent();
}

/// In a child process: waits for what the parent tells; nothing, once it is gone.
pub(crate) fn hear_parent() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).unwrap();
    (0 < read).then(|| line.trim_end().to_owned())
}

/// `n` times the same.
pub(crate) fn repeat<T>(n: usize, make: impl FnMut() -> T) -> Vec<T> {
    iter::repeat_with(make).take(n).collect()
}

/// Asserts that the value matches the pattern, and shows it if not.
macro_rules! assert_matches {
    ($value:expr, $($pattern:tt)+) => {
        match &$value {
            value => assert!(matches!(value, $($pattern)+), "{value:?}"),
        }
    };
}
pub(crate) use assert_matches;
