//! One account of what happens: the events, the log lines and the counters of each fault.
//!
//! A logger is the whole process's: one child process plays all rows, one after another.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use devnodes::{FakeServer, Need, Proxy, Server, Servers, eventually, lacks};
use quorlock::error::NodeFailure;
use quorlock::observer::{Event, Observer};
use quorlock::{Builder, CancelHandle, LockManager, LostReason, Stats};

use crate::operations::incidents::fits;
use crate::operations::log_lines::{heard, listen};
use crate::support::*;
use crate::waiting::lists::hold;

/// Keeps all events.
#[derive(Default)]
struct Events(Mutex<Vec<Event>>);

impl Observer for Events {
    fn event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Events {
    fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    /// Those of locks in their order, then those of each node. Repeated words and pairs of words
    /// count once.
    fn words(&self) -> Vec<String> {
        let of_node = |word: &String| word.starts_with('n').then(|| word[..2].to_owned());
        let mut words: Vec<_> = self.all().iter().filter_map(word).collect();
        words.sort_by_key(of_node);
        words.dedup();
        let mut short: Vec<String> = Vec::new();
        for word in words {
            short.push(word);
            if let [.., a, b, c, d] = &short[..]
                && (a, b) == (c, d)
            {
                short.truncate(short.len() - 2);
            }
        }
        short
    }

    #[track_caller]
    fn wait_for(&self, word: &str) {
        eventually(word, || self.words().iter().any(|it| it == word));
    }
}

/// An event in words; none for single answers, and for the lock with which a test connects.
fn word(event: &Event) -> Option<String> {
    let variant = |debug: String| debug.split([' ', '(']).next().unwrap().to_owned();
    let (lock, word) = match event {
        Event::Began { lock, .. } => (lock, "began".to_owned()),
        Event::Acquired { lock, .. } => (lock, "acquired".to_owned()),
        Event::NotAcquired { lock, error, .. } => (lock, variant(format!("{error:?}"))),
        Event::Round { lock, outcome, .. } => match outcome {
            Ok(()) => (lock, "won".to_owned()),
            Err(why) => (lock, format!("round: {why:?}")),
        },
        Event::Released {
            lock, confirmed, ..
        } => {
            let word = if *confirmed {
                "released"
            } else {
                "not confirmed"
            };
            (lock, word.to_owned())
        }
        Event::Lost { lock, why, .. } => (lock, format!("lost: {why:?}")),
        Event::Extended { lock, .. } => (lock, "extended".to_owned()),
        Event::NotExtended { lock, .. } => (lock, "unextended".to_owned()),
        Event::Healed { lock, node, .. } => (lock, format!("{node} heals")),
        Event::NodeUp { node, .. } => return Some(format!("{node} up")),
        Event::NodeDown { why, .. } if variant(format!("{why:?}")) == "ShutDown" => return None,
        Event::NodeDown { node, .. } => return Some(format!("{node} down")),
        Event::NodeSilent { node, .. } => return Some(format!("{node} silent")),
        Event::NodeAnswers { node, .. } => return Some(format!("{node} answers")),
        Event::NodeQuarantined { node, why, .. } => return Some(format!("{node} {why:?}")),
        _ => return None,
    };
    (lock.name() != b"warm-up").then_some(word)
}

fn observed(builder: Builder) -> (LockManager, Arc<Events>) {
    let events = Arc::<Events>::default();
    let builder = builder.observer(Arc::<Events>::clone(&events));
    (builder.build().unwrap(), events)
}

/// The same, connected to three servers.
fn connected_and_observed(builder: Builder) -> (LockManager, Arc<Events>) {
    let (locks, events) = observed(builder);
    connect(&locks, 3);
    // Events come a moment behind the counters.
    (0..3).for_each(|node| events.wait_for(&format!("n{node} up")));
    (locks, events)
}

/// What a fault shows to an operator.
struct Row {
    fault: &'static str,
    play: fn() -> Account,
    /// In words, with commas between.
    events: &'static str,
    /// All above DEBUG, each once. `…` stands for anything.
    lines: &'static [&'static str],
    /// Of [`COUNTERS`], those that grow, with commas between.
    counters: &'static str,
}

const ROWS: [Row; 14] = [
    Row {
        fault: "no fault",
        play: nothing,
        events: "began, won, acquired, extended, released",
        lines: &[],
        counters: "rounds_won, releases, extensions",
    },
    Row {
        fault: "a lock that another manager holds",
        play: held,
        events: "began, round: Held, Held",
        lines: &[],
        counters: "rounds_held",
    },
    Row {
        fault: "a key of another type on all servers",
        play: key_in_use,
        events: "began, round: KeyInUse, KeyInUse",
        lines: &[],
        counters: "rounds_held",
    },
    Row {
        fault: "new servers",
        play: new_servers,
        events: "began, round: NoQuorum, NoQuorum, began, round: NoQuorum, NoQuorum, \
                 n0 New, n1 New, n2 New",
        lines: &[
            "INFO n0: … quarantined for …: no lock data, so the server is new …",
            "INFO n1: … quarantined for …: no lock data, so the server is new …",
            "INFO n2: … quarantined for …: no lock data, so the server is new …",
            "WARN \"report\": no lock can be taken, no quorum: … more: no lock data, so the \
             server is new …; wait, or vouch for it if it is new and nobody holds a lock…",
        ],
        counters: "rounds_without_quorum",
    },
    Row {
        fault: "all servers emptied",
        play: emptied,
        events: "began, round: NoQuorum, won, acquired, released, n0 New, n1 New, n2 New",
        lines: &[
            "INFO n0: … quarantined for …: no lock data, so the server is new …",
            "INFO n1: … quarantined for …: no lock data, so the server is new …",
            "INFO n2: … quarantined for …: no lock data, so the server is new …",
            "WARN \"report\": no lock can be taken, no quorum: …",
        ],
        counters: "rounds_won, rounds_without_quorum, releases",
    },
    Row {
        fault: "a server killed and restarted",
        play: killed,
        events: "n0 down, n0 up",
        lines: &["INFO n0: down: …", "INFO n0: up after …"],
        counters: "connections, connection_failures",
    },
    Row {
        fault: "two servers killed and restarted",
        play: two_killed,
        events: "began, round: NoQuorum, won, acquired, released, n0 down, n0 up, n1 down, n1 up",
        lines: &[
            "INFO n0: down: …",
            "INFO n1: down: …",
            "WARN \"report\": no lock can be taken, no quorum: …",
            "INFO n0: up after …",
            "INFO n1: up after …",
            "INFO a majority of the nodes responds again, after …",
        ],
        counters: "rounds_won, rounds_without_quorum, releases, connections, connection_failures",
    },
    Row {
        fault: "a server paused and resumed",
        play: paused,
        events: "n1 silent, n1 answers",
        lines: &["INFO n1: not responding: …", "INFO n1: responding again: …"],
        counters: "",
    },
    // As balancers close what is idle, every half a minute.
    Row {
        fault: "idle connections closed",
        play: idle_closed,
        events: "n0 down, n0 up, n1 down, n1 up, n2 down, n2 up",
        lines: &[],
        counters: "connections, connection_failures",
    },
    Row {
        fault: "a first connection that fails",
        play: garbage_first,
        events: "n0 up, n0 down, n0 up",
        lines: &[
            "WARN n0: down: …: not a Redis answer: …",
            "WARN \"warm-up\": no lock can be taken, …",
            "INFO n0: up after …",
            "INFO a majority of the nodes responds again, after …",
        ],
        counters: "rounds_won, rounds_without_quorum, releases, connections, connection_failures",
    },
    Row {
        fault: "two servers paused under a held lock",
        play: unextended,
        events: "began, won, acquired, unextended, extended, released",
        // Twice, as it is played twice.
        lines: &[
            "WARN \"report\": not extended, … min left, …",
            "INFO \"report\": extended again in …",
            "WARN \"report\": not extended, … min left, …",
            "INFO \"report\": extended again in …",
        ],
        counters: "rounds_won, releases, extensions, extensions_failed",
    },
    Row {
        fault: "a key removed on one server",
        play: healed,
        events: "began, won, acquired, extended, released, n1 heals",
        lines: &[],
        counters: "rounds_won, releases, extensions, healed",
    },
    Row {
        fault: "a key removed on all servers",
        play: removed,
        events: "began, won, acquired, lost: Gone, \
                 began, won, acquired, unextended, lost: Gone",
        lines: &["WARN \"report\": LOST, …", "WARN \"other\": LOST, …"],
        counters: "rounds_won, extensions_failed, locks_lost",
    },
    Row {
        fault: "a forgotten guard, and a guard held to the shutdown",
        play: ended,
        events: "began, won, acquired, lost: LeaseOver, began, won, acquired, lost: ShutDown",
        lines: &["WARN \"report\": LOST, …", "INFO \"kept\": LOST, …"],
        counters: "rounds_won, locks_lost",
    },
];

type Counter = (&'static str, fn(&Stats) -> u64);

const COUNTERS: [Counter; 11] = [
    ("rounds_won", |it| it.rounds_won),
    ("rounds_held", |it| it.rounds_held),
    ("rounds_without_quorum", |it| it.rounds_without_quorum),
    ("releases", |it| it.releases),
    ("releases_unconfirmed", |it| it.releases_unconfirmed),
    ("extensions", |it| it.extensions),
    ("extensions_failed", |it| it.extensions_failed),
    ("healed", |it| it.healed),
    ("locks_lost", |it| it.locks_lost),
    ("connections", |it| it.connections),
    ("connection_failures", |it| it.connection_failures),
];

/// A manager whose account begins now.
struct Account {
    locks: LockManager,
    events: Arc<Events>,
    lines: usize,
    stats: Stats,
    /// Servers that are there to the end.
    kept: Vec<Box<dyn Any>>,
}

impl Account {
    fn of((locks, events): (LockManager, Arc<Events>)) -> Account {
        events.0.lock().unwrap().clear();
        let (lines, stats, kept) = (heard().len(), locks.stats(), Vec::new());
        Account {
            locks,
            events,
            lines,
            stats,
            kept,
        }
    }

    /// Of a manager with these options that is connected to three servers.
    fn start(options: fn(Vec<String>) -> Builder) -> (Servers, Account) {
        let servers = secret_servers();
        let account = Account::of(connected_and_observed(options(servers.urls())));
        (servers, account)
    }

    fn keeping(mut self, kept: impl Any) -> Account {
        self.kept.push(Box::new(kept));
        self
    }

    fn lines(&self) -> Vec<String> {
        heard().split_off(self.lines)
    }

    /// Waits for a line.
    #[track_caller]
    fn logs(&self, begin: &str) {
        eventually(begin, || {
            self.lines().iter().any(|it| it.starts_with(begin))
        });
    }

    /// What differs from the row.
    fn differs(self, row: &Row) -> Option<String> {
        self.locks.shutdown();
        let mut events = self.events.words();
        // A busy machine may add these.
        let noise = ["silent", "answers", "heals"];
        let is_noise = |it: &String| noise.iter().any(|end| it.ends_with(end));
        events.retain(|it| !is_noise(it) || row.events.contains(it.as_str()));

        let mut lines = self.lines();
        lines.retain(|it| !it.starts_with("DEBUG") && !it.starts_with("TRACE"));
        let mut missing = row.lines.to_vec();
        missing.retain(|line| {
            let fitting = lines.iter().position(|it| fits(line, it));
            fitting.map(|at| lines.remove(at)).is_none()
        });
        lines.retain(|it| !it.contains(": not responding: ") && !it.contains(": responding again"));

        let stats = self.locks.stats();
        let grows = |(_, of): &&Counter| of(&self.stats) < of(&stats);
        let mut grown: Vec<_> = COUNTERS.iter().filter(grows).map(|it| it.0).collect();
        grown.retain(|it| *it != "healed" || row.counters.contains(it));

        let found = (events.join(", "), grown.join(", "));
        let is_right = found.0 == row.events && found.1 == row.counters;
        (!is_right || !lines.is_empty() || !missing.is_empty()).then(|| {
            format!(
                "{}: {found:?}, missing {missing:?}, more {lines:?}",
                row.fault
            )
        })
    }
}

/// Three servers, with a password where they can have one.
fn secret_servers() -> Servers {
    let has_password = !lacks(Need::Passwords);
    let options = |it: devnodes::Builder| {
        if has_password {
            it.password("hunter2")
        } else {
            it
        }
    };
    Servers::start_with(3, options).unwrap()
}

#[test]
fn every_fault_has_its_events_log_lines_and_counters() {
    assert_passes("operations::account::child_that_plays_all_rows");
}

#[test]
#[ignore = "a process of another test"]
fn child_that_plays_all_rows() {
    let Some(_) = parent_urls() else { return };
    listen();
    let differences = ROWS.iter().filter_map(|row| {
        eprintln!("{}", row.fault);
        (row.play)().differs(row)
    });
    let differences: Vec<_> = differences.collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let all = heard().join("\n");
    assert!(!all.contains("hunter2"), "{all}");
    // Owner tokens are 32 hex digits, and shown by their start.
    let words = all.split(|it: char| !it.is_ascii_hexdigit());
    assert_eq!(words.filter(|it| it.len() == 32).count(), 0, "{all}");
    passed();
}

fn lasting(urls: Vec<String>) -> Builder {
    builder(urls).ttl(LONG)
}

fn nothing() -> Account {
    let (servers, account) = Account::start(lasting);
    let guard = hold(&account.locks, &servers, "report");
    guard.extend(LONG).unwrap();
    guard.release().unwrap();
    let checks = account.locks.check_nodes();
    assert!(checks.iter().all(|it| it.failure.is_none()));
    account.keeping(servers)
}

fn held() -> Account {
    let (servers, account) = Account::start(lasting);
    let guard = hold(&manager(&servers), &servers, "report");
    let err = account.locks.mutex("report").try_lock().unwrap_err();
    assert_held(&err);
    account.keeping((servers, guard))
}

fn key_in_use() -> Account {
    let (servers, account) = Account::start(lasting);
    command_all(&servers, &["LPUSH", "report", "x"]);
    assert!(account.locks.mutex("report").lock().is_err());
    // What is refused before any node could be asked is no event.
    account.locks.shutdown();
    assert!(account.locks.mutex("report").lock().is_err());
    account.keeping(servers)
}

fn new_servers() -> Account {
    let servers = secret_servers();
    let options = builder(servers.urls()).quarantine(true).max_ttl(LONG);
    let (locks, events) = observed(options.outage_timeout(secs(0)));
    // A check begins no quarantine.
    eventually("all are connected", || {
        locks.check_nodes().iter().all(|it| it.version.is_some())
    });
    assert_eq!(locks.stats().quarantined, []);
    (0..3).for_each(|node| events.wait_for(&format!("n{node} up")));
    assert_eq!(events.words(), ["n0 up", "n1 up", "n2 up"]);
    let account = Account::of((locks, events));
    for _ in 0..2 {
        assert_no_quorum(&account.locks.mutex("report").try_lock().unwrap_err());
    }
    (0..3).for_each(|node| account.events.wait_for(&format!("n{node} New")));
    account.keeping(servers)
}

fn emptied() -> Account {
    let servers = secret_servers();
    set_all(&servers, RECORD, "0");
    let (locks, events) = observed(with_quarantine(servers.urls(), secs(2)));
    let votes = || locks.check_nodes().iter().all(|it| it.failure.is_none());
    eventually("the servers are old enough to vote", votes);
    let account = Account::of((locks, events));
    command_all(&servers, &["FLUSHALL"]);
    drop(account.locks.mutex("report").lock().unwrap());
    (0..3).for_each(|node| account.events.wait_for(&format!("n{node} New")));
    account.keeping(servers)
}

fn killed() -> Account {
    let (servers, account) = Account::start(lasting);
    servers[0].kill().unwrap();
    account.logs("DEBUG n0: still down");
    servers[0].restart().unwrap();
    account.events.wait_for("n0 up");
    account.keeping(servers)
}

fn two_killed() -> Account {
    let (servers, account) = Account::start(lasting);
    for node in 0..2 {
        servers[node].kill().unwrap();
        account.logs(&format!("INFO n{node}: down: "));
    }
    let report = account.locks.mutex("report");
    let waiting = thread::spawn(move || report.lock().unwrap());
    // While it still waits.
    account.logs("WARN \"report\": no lock can be taken");
    eventually("it asks again", || {
        3 <= account.locks.stats().rounds_without_quorum
    });
    for node in 0..2 {
        servers[node].restart().unwrap();
        account.events.wait_for(&format!("n{node} up"));
    }
    drop(join(waiting));
    account.keeping(servers)
}

fn paused() -> Account {
    let (servers, account) = Account::start(impatient);
    servers[1].pause().unwrap();
    let _ = account.locks.check_nodes();
    account.events.wait_for("n1 silent");
    servers[1].resume().unwrap();
    // Behind a long pause it answers on another connection, to the next command.
    eventually("n1 answers", || {
        let _ = account.locks.check_nodes();
        account.events.words().contains(&"n1 answers".to_owned())
    });
    account.keeping(servers)
}

fn idle_closed() -> Account {
    let servers = Servers::start(3).unwrap();
    let (proxies, urls) = proxies(&servers);
    let account = Account::of(connected_and_observed(builder(urls)));
    eventually("nothing is under way", || {
        let seen = account.locks.mutex("report").inspect().unwrap();
        seen.nodes().iter().all(|it| it.stored.is_ok())
    });
    proxies.iter().for_each(Proxy::cut);
    (0..3).for_each(|node| account.events.wait_for(&format!("n{node} up")));
    account.keeping((servers, proxies))
}

fn garbage_first() -> Account {
    let server = Server::start().unwrap();
    let fails = AtomicBool::new(true);
    let fake = FakeServer::speaking_for(server.addr(), move |_, command| {
        let is_about_lock = command.iter().any(|it| it.ends_with(b"warm-up"));
        let is_first = is_about_lock && fails.swap(false, Ordering::SeqCst);
        is_first.then(|| b"garbage\r\n".to_vec())
    })
    .unwrap();
    let account = Account::of(observed(builder([fake.url()])));
    drop(lock_in_the_end(&account.locks, "warm-up"));
    account.keeping((server, fake))
}

fn unextended() -> Account {
    let (servers, account) = Account::start(impatient);
    let guard = hold(&account.locks, &servers, "report");
    for turn in 1..=2 {
        let count = |begin| {
            account
                .lines()
                .iter()
                .filter(|it| it.starts_with(begin))
                .count()
        };
        (0..2).for_each(|node| servers[node].pause().unwrap());
        // A second after the last warning at the earliest.
        let fail = || assert!(guard.extend(LONG).is_err());
        eventually("the log warns", || {
            fail();
            turn <= count("WARN")
        });
        (0..3).for_each(|_| fail());
        (0..2).for_each(|node| servers[node].resume().unwrap());
        eventually("it is extended", || guard.extend(LONG).is_ok());
        eventually("the log has that", || {
            turn == count("INFO \"report\": extended")
        });
    }
    let all = account.events.all();
    let lefts = all.iter().filter_map(|event| match event {
        Event::Extended { left, .. } | Event::NotExtended { left, .. } => Some(*left),
        _ => None,
    });
    assert!(
        lefts.into_iter().all(|it| LONG / 2 < it && it < LONG),
        "{all:?}"
    );
    drop(guard);
    account.keeping(servers)
}

fn healed() -> Account {
    let (servers, account) = Account::start(lasting);
    let guard = hold(&account.locks, &servers, "report");
    del(&servers[1], "report");
    guard.extend(LONG).unwrap();
    account.events.wait_for("n1 heals");
    drop(guard);
    account.keeping(servers)
}

fn removed() -> Account {
    let (servers, account) = Account::start(lasting);
    let guard = hold(&account.locks, &servers, "report");
    del_all(&servers, "report");
    assert!(guard.release().is_err());
    let guard = hold(&account.locks, &servers, "other");
    del_all(&servers, "other");
    assert!(guard.extend(LONG).is_err());
    drop(guard);
    account.keeping(servers)
}

fn ended() -> Account {
    let (servers, account) = Account::start(|urls| lasting(urls).response_timeout(ms(500)));
    let brief = account.locks.mutex("report").ttl(secs(2)).renew(false);
    std::mem::forget(brief.lock().unwrap());
    account.events.wait_for("lost: LeaseOver");
    let kept = account.locks.mutex("kept").lock().unwrap();
    account.locks.shutdown();
    assert_eq!(reason(kept.check()), Err(LostReason::ShutDown));
    account.keeping(servers)
}

#[test]
fn each_answer_is_an_event_with_its_node_and_failure() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let (locks, events) = connected_and_observed(builder(servers.urls()).ttl(LONG));
    servers[2].command(&["CONFIG", "SET", "min-replicas-to-write", "1"])?;
    drop(locks.mutex("report").try_lock()?);

    let answers = |expected: usize, refuses: bool| {
        eventually("the answer of each node", || {
            events.all().iter().any(|it| match it {
                Event::NodeReply { node, failure, .. } if node.index() == expected => {
                    refuses == matches!(failure, Some(NodeFailure::WritesRefused { .. }))
                }
                _ => false,
            })
        });
    };
    (0..3).for_each(|node| answers(node, false));
    answers(2, true);
    Ok(())
}

#[test]
fn every_call_and_every_hold_has_one_end_event() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, events) = connected_and_observed(builder(servers.urls()).ttl(LONG));
    let cancel = CancelHandle::new();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (mutex, cancel) = (locks.mutex("report").cancelled_by(&cancel), cancel.clone());
            thread::spawn(move || {
                for turn in 0..50 {
                    match (thread + turn) % 3 {
                        0 => drop(mutex.try_lock()),
                        1 => drop(mutex.try_lock_for(ms(2))),
                        _ => drop(mutex.lock()),
                    }
                    if turn == 40 {
                        cancel.cancel();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(join);
    let held = locks.mutex("kept").lock()?;
    locks.shutdown();
    drop(held);

    let all = events.all();
    let of = |is: fn(&Event) -> bool| all.iter().filter(|it| is(it)).count();
    let acquired = of(|it| matches!(it, Event::Acquired { .. }));
    let refused = of(|it| matches!(it, Event::NotAcquired { .. }));
    let released = of(|it| matches!(it, Event::Released { .. }));
    assert!(0 < refused && 0 < released);
    assert_eq!(
        of(|it| matches!(it, Event::Began { .. })),
        acquired + refused
    );
    assert_eq!(of(|it| matches!(it, Event::Lost { .. })), 1);
    assert_eq!(acquired, released + 1);
    Ok(())
}

#[test]
fn every_kind_of_lock_has_its_name_and_class_in_the_same_events() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, events) = connected_and_observed(builder(servers.urls()).ttl(LONG));
    let check = |kind: &str, token: Option<u64>| {
        eventually(kind, || 4 <= events.words().len());
        assert_eq!(
            events.words(),
            ["began", "won", "acquired", "released"],
            "{kind}"
        );
        let all = std::mem::take(&mut *events.0.lock().unwrap());
        for event in all.into_iter().filter(|it| word(it).is_some()) {
            if let Event::Acquired { token: told, .. } = event {
                assert!(token.is_none_or(|it| it == told.get()), "{kind}");
            }
            if let Event::Began { lock, .. }
            | Event::Acquired { lock, .. }
            | Event::Released { lock, .. } = event
            {
                assert_eq!(lock.class(), "jobs", "{kind}");
                assert_eq!(lock.shared_class().map(|it| &**it), Some("jobs"), "{kind}");
                assert!(lock.to_string().contains("report"), "{kind}: {lock}");
            }
        }
    };
    let rw_lock = locks.rw_lock("report").class("jobs");
    let again = locks.reentrant_mutex("report").class("jobs");
    let several = locks.multi_lock(["report", "b"]).class("jobs");

    let classes = events.all();
    let is_other = |it: &Event| matches!(it, Event::Began { lock, .. } if lock.class() == "other");
    assert!(classes.iter().any(is_other), "without a class: {classes:?}");
    events.0.lock().unwrap().clear();
    let guard = locks.mutex("report").class("jobs").lock()?;
    let token = guard.fencing_token().get();
    drop(guard);
    check("a mutex", Some(token));
    drop((again.lock()?, again.lock()?));
    check("a lock that its thread takes twice", None);
    drop(rw_lock.read()?);
    check("a reader", None);
    drop(rw_lock.write()?);
    check("a writer", None);
    drop(several.lock()?);
    check("several names", None);
    drop(locks.semaphore("report", 2).class("jobs").acquire()?);
    check("a permit", None);
    Ok(())
}
