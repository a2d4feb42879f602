//! Incidents, played on real servers: what the guide's page `operations` quotes is what comes.
//!
//! The page has a section for each incident, and in it the lines and the metrics by which it is recognised. They are read from
//! there, so page and crate cannot drift apart. A logger is the whole process's, so each incident has a process of its own.

use std::collections::BTreeSet;
use std::thread;

use devnodes::{Clock, Need, Servers, eventually, lacks};
use quorlock::error::{NodeCheck, NodeFailure};
use quorlock::{Builder, CancelHandle, LockManager, LostReason};
use rustix::process::Signal;

use crate::operations::log_lines::{heard, listen};
use crate::operations::recorder;
use crate::support::{
    self, LONG, announced, assert_passes_with, assert_released, child, child_urls, connected,
    lock_in_the_end, ms, parent_urls, passed, proxies, say, secs, set_all,
};

const PAGE: &str = include_str!("../../../src/guide/operations.md");
const METRICS: &str = include_str!("../../../src/guide/metrics.md");
const ALERTS: &str = include_str!("../../../examples/prometheus/alerts.yml");

/// The incident that another process notices.
const OF_HOLDER: usize = 6;

/// A title of the page, how the incident is played, and whether it can be.
type Incident = (&'static str, fn(&mut Section), fn() -> bool);

/// In the order of the page.
const INCIDENTS: [Incident; 10] = [
    ("A server was killed", killed, || !lacks(Need::ClosedPorts)),
    ("A server hangs", hung, || true),
    ("A server was restarted empty", restarted_empty, || true),
    ("A server is slow", slow, || true),
    ("A server is full", full, || !lacks(Need::Settings)),
    ("A server's clock was stepped", stepped, Clock::available),
    ("A holder was stopped", holder_stopped, || true),
    ("Many wait for one lock", herd, || true),
    ("A lock is never given back", leaked, || true),
    ("A password is wrong", wrong_password, || {
        !lacks(Need::Passwords)
    }),
];

/// An incident's section of the page: the lines that it quotes, and how many of them have come.
struct Section {
    lines: Vec<&'static str>,
    came: usize,
    metrics: Watch,
    /// How long the log was when the incident began.
    before: usize,
}

/// A line of the page, in which `…` stands for anything.
pub(crate) fn fits(quoted: &str, line: &str) -> bool {
    let parts: Vec<_> = quoted.split('…').collect();
    let (first, last) = (parts[0], parts[parts.len() - 1]);
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    for part in &parts[1..] {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    // What stands at the end may stand before as well.
    rest.is_empty() || line.ends_with(last)
}

/// What the page says of an incident.
struct Quoted {
    title: &'static str,
    /// Its first block.
    lines: Vec<&'static str>,
    /// Its second.
    metrics: Vec<&'static str>,
    alert: Option<&'static str>,
}

/// The page's sections on incidents.
fn sections() -> Vec<Quoted> {
    let part = PAGE
        .split("\n# ")
        .find(|it| it.starts_with("Incidents\n"))
        .unwrap();
    let sections = part.split("\n## ").skip(1);
    sections
        .map(|it| {
            let title = it.lines().next().unwrap();
            let blocks: Vec<_> = it
                .split("```text\n")
                .skip(1)
                .map(|it| it.split("```").next().unwrap())
                .collect();
            let [lines, metrics] = blocks[..] else {
                panic!("{title}: {} blocks", blocks.len())
            };
            let alert = it
                .split("the alert `")
                .nth(1)
                .and_then(|it| it.split('`').next());
            Quoted {
                title,
                lines: lines.lines().collect(),
                metrics: metrics.lines().collect(),
                alert,
            }
        })
        .collect()
}

/// What the metrics of this process are to show.
struct Watch {
    lines: Vec<&'static str>,
    since: std::collections::BTreeMap<String, usize>,
}

impl Watch {
    fn of(incident: usize) -> Watch {
        recorder::install();
        Watch {
            lines: sections()[incident].metrics.clone(),
            since: Default::default(),
        }
    }

    fn begins(&mut self) {
        self.since = recorder::lengths();
    }

    #[track_caller]
    fn shows_all(&self) {
        for line in &self.lines {
            eventually(line, || recorder::is_so(line, &self.since));
        }
    }

    fn watched(builder: Builder) -> Builder {
        builder.observer(std::sync::Arc::new(
            quorlock::observer::MetricsObserver::new(),
        ))
    }
}

/// As elsewhere, and its metrics are watched.
fn builder(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Builder {
    Watch::watched(support::builder(urls))
}

fn impatient(urls: impl IntoIterator<Item = String>) -> Builder {
    Watch::watched(support::impatient(urls))
}

fn manager(servers: &Servers) -> LockManager {
    builder(servers.urls()).build().unwrap()
}

/// With quarantine, on servers that somebody has vouched for.
fn vouched(builder: Builder) -> LockManager {
    let locks = builder.quarantine(true).build().unwrap();
    eventually("all vote", || {
        locks.admin().vouch().iter().all(|it| it.failure.is_none())
    });
    locks
}

/// What an operator sees of the lock.
fn inspected(operator: &LockManager) -> Vec<String> {
    let seen = operator.mutex("report").inspect().unwrap();
    vec![format!("inspect: {}", seen.state())]
}

impl Section {
    fn of(incident: usize) -> Section {
        Section {
            lines: sections()[incident].lines.clone(),
            came: 0,
            before: 0,
            metrics: Watch::of(incident),
        }
    }

    /// What was logged up to here does not count.
    fn begins(&mut self) {
        self.before = heard().len();
        self.metrics.begins();
    }

    /// Waits until the next line of the page is shown.
    #[track_caller]
    fn shows(&mut self, mut show: impl FnMut() -> Vec<String>) {
        let quoted = self.lines[self.came];
        eventually(quoted, || {
            show().iter().any(|it| fits(quoted, &it.replace('\n', " ")))
        });
        self.came += 1;
    }

    /// Waits until the next line of the page is in the log.
    #[track_caller]
    fn logs(&mut self, mut meanwhile: impl FnMut()) {
        let before = self.before;
        self.shows(|| {
            meanwhile();
            heard().split_off(before)
        });
    }
}

/// For those who look into a test that has failed.
impl Drop for Section {
    fn drop(&mut self) {
        if thread::panicking() {
            let loud = |it: &String| !it.starts_with("TRACE") && !it.starts_with("DEBUG");
            heard()
                .into_iter()
                .filter(loud)
                .for_each(|it| eprintln!("{it}"));
        }
    }
}

/// Nothing is over before all that the page quotes has come.
#[test]
fn every_incident_is_recognised_by_the_lines_and_metrics_of_the_page() {
    for (place, (title, _, is_possible)) in INCIDENTS.iter().enumerate() {
        eprintln!("{title}");
        if is_possible() {
            let name = "operations::incidents::child_that_plays";
            assert_passes_with(name, &place.to_string());
        }
    }
}

#[test]
#[ignore = "a process of another test"]
fn child_that_plays() {
    let [incident] = &child_urls()[..] else {
        return;
    };
    let incident = incident.parse().unwrap();
    listen();
    let mut section = Section::of(incident);
    INCIDENTS[incident].1(&mut section);
    assert_eq!(section.came, section.lines.len());
    if incident != OF_HOLDER {
        section.metrics.shows_all();
    }
    passed();
}

#[test]
fn every_incident_of_the_page_is_played_with_its_own_warnings() {
    let sections = sections();
    assert_eq!(
        sections.iter().map(|it| it.title).collect::<Vec<_>>(),
        INCIDENTS.map(|it| it.0)
    );
    let mut warnings = BTreeSet::new();
    for Quoted { title, lines, .. } in sections {
        assert!(!lines.is_empty(), "{title}");
        for line in lines {
            let (level, text) = line.split_once(' ').unwrap();
            let is_known = ["INFO", "WARN", "error:", "inspect:"].contains(&level);
            assert!(is_known, "{title}: {line}");
            let is_precise = 8 < text.replace('…', "").len();
            assert!(is_precise, "{title}: {line} fits too much");
            let is_new = level != "WARN" || warnings.insert(line);
            assert!(is_new, "{title}: {line} stands twice");
        }
    }
}

#[test]
fn every_incident_has_distinct_existing_metrics_and_alerts() {
    let sections = sections();
    for section in &sections {
        let (title, alert) = (section.title, section.alert);
        for line in &section.metrics {
            let name = line.split(['{', ' ']).next().unwrap();
            let exists = METRICS.contains(&format!("`{name}`"));
            assert!(exists, "{title}: {name} does not exist");
        }
        for other in sections.iter().filter(|it| it.title != title) {
            let all_there = section.metrics.iter().all(|it| other.metrics.contains(it));
            assert!(!all_there, "{title} looks like {}", other.title);
        }
        let exists = alert.is_none_or(|it| ALERTS.contains(&format!("alert: {it}\n")));
        assert!(exists, "{title}: {alert:?}");
    }
}

#[test]
fn a_pattern_of_the_page_matches_whole_lines_with_filled_gaps() {
    assert!(fits("WARN n0: … is …", "WARN n0: 10.0.0.1 is down") && fits("a … c", "a b c c"));
    for other in [
        "WARN n1: 10.0.0.1 is down",
        "WARN n0: 10.0.0.1 down",
        "INFO WARN n0: a is b",
    ] {
        assert!(!fits("WARN n0: … is …", other), "{other}");
    }
    assert!(!fits("a … c", "a b c d") && !fits("a", "ab"));
}

/// Waits until the first `n` nodes are seen to fail in this way.
#[track_caller]
fn fail(locks: &LockManager, n: usize, how: impl Fn(&NodeFailure) -> bool) {
    let fails = |it: &NodeCheck| it.failure.as_ref().is_some_and(&how);
    eventually("they are seen to fail", || {
        locks.check_nodes().iter().take(n).all(fails)
    });
}

fn try_once(locks: &LockManager) {
    drop(locks.mutex("report").try_lock());
}

fn killed(page: &mut Section) {
    let servers = Servers::start(3).unwrap();
    let locks = connected(builder(servers.urls()).outage_timeout(secs(0)), 3);
    page.begins();
    servers[0].kill().unwrap();
    page.logs(|| try_once(&locks));
    servers[1].kill().unwrap();
    fail(&locks, 2, |it| matches!(it, NodeFailure::Connect { .. }));
    page.logs(|| try_once(&locks));

    servers[0].restart().unwrap();
    page.logs(|| try_once(&locks));
    page.logs(|| try_once(&locks));
    drop(lock_in_the_end(&locks, "report"));
}

fn hung(page: &mut Section) {
    let servers = Servers::start(3).unwrap();
    let locks = connected(impatient(servers.urls()).outage_timeout(secs(0)), 3);
    page.begins();
    servers[0].pause().unwrap();
    servers[1].pause().unwrap();
    // The log says one thing of an outage: first all is to be as it is described.
    fail(&locks, 2, |it| *it == NodeFailure::Stalled);
    page.logs(|| ());
    page.logs(|| try_once(&locks));

    servers[0].resume().unwrap();
    page.logs(|| try_once(&locks));
    drop(lock_in_the_end(&locks, "report"));
}

fn restarted_empty(page: &mut Section) {
    let servers = Servers::start(3).unwrap();
    let locks = vouched(builder(servers.urls()).max_ttl(LONG));
    let guard = lock_in_the_end(&locks, "report");
    page.begins();
    servers[0].restart().unwrap();
    page.logs(|| drop(locks.check_nodes()));
    page.logs(|| drop(locks.check_nodes()));
    // What is held is set there again.
    eventually("it is healed", || {
        guard.extend(LONG).is_ok() && servers[0].exists("report")
    });
    servers[1].restart().unwrap();
    fail(&locks, 2, |it| {
        matches!(it, NodeFailure::Quarantined { .. })
    });
    page.logs(|| drop(locks.mutex("invoice").try_lock()));
    // The second came too soon after the first.
    page.logs(|| drop(guard.extend(LONG)));
}

fn slow(page: &mut Section) {
    let servers = Servers::start(3).unwrap();
    let (proxies, urls) = proxies(&servers);
    let locks = connected(impatient(urls), 3);
    let guard = lock_in_the_end(&locks, "report");
    page.begins();
    let before = locks.stats().late_answers;
    proxies[..2].iter().for_each(|it| it.set_delay(ms(600)));
    page.logs(|| drop(guard.extend(LONG)));
    page.logs(|| drop(guard.extend(LONG)));
    // A server that hangs has none.
    eventually("answers come late", || {
        before + 2 <= locks.stats().late_answers
    });

    proxies.iter().for_each(|it| it.set_delay(ms(0)));
    page.logs(|| drop(guard.extend(LONG)));
    page.logs(|| drop(locks.check_nodes()));
    guard.check().unwrap();
}

fn full(page: &mut Section) {
    let servers = Servers::start(3).unwrap();
    let locks = connected(builder(servers.urls()).outage_timeout(secs(0)), 3);
    let limit = |bytes| {
        for server in servers.iter().take(2) {
            let set = ["CONFIG", "SET", "maxmemory", bytes];
            server.command(&set).unwrap();
        }
    };
    page.begins();
    limit("1");
    page.logs(|| try_once(&locks));
    page.logs(|| try_once(&locks));

    limit("0");
    drop(lock_in_the_end(&locks, "report"));
}

fn stepped(page: &mut Section) {
    let servers = Servers::start_with(3, |it| it.stepped_clock()).unwrap();
    let locks = vouched(builder(servers.urls()).ttl(LONG));
    let guard = locks.mutex("report").renew(false).lock().unwrap();
    eventually("it is on all nodes", || servers.holders("report") == 3);
    page.begins();
    servers[0].step_clock_forward(secs(40)).unwrap();
    page.logs(|| drop(locks.check_nodes()));
    page.logs(|| ());
    servers
        .iter()
        .for_each(|it| it.step_clock_forward(2 * LONG).unwrap());
    page.logs(|| drop(guard.extend(LONG)));
}

fn holder_stopped(page: &mut Section) {
    let servers = Servers::start(3).unwrap();
    let holder = child(
        "operations::incidents::child_that_is_stopped",
        &servers.urls(),
    );
    page.shows(|| {
        assert_eq!(holder.hear(), "held");
        holder.signal(Signal::STOP);
        holder.wait_until_stopped();
        let next = manager(&servers).mutex("report").lock().unwrap();
        holder.signal(Signal::CONT);
        let line = holder.hear();
        assert!(next.is_valid());
        // One that was stopped between a look at the clock and its extension is told by the nodes: then once more.
        vec![line]
    });
}

/// Tells what its log says of the loss, each time.
#[test]
#[ignore = "a process of another test"]
fn child_that_is_stopped() {
    let Some(urls) = parent_urls() else { return };
    listen();
    let metrics = Watch::of(OF_HOLDER);
    let locks = builder(urls)
        .response_timeout(ms(250))
        .ttl(secs(1))
        .build()
        .unwrap();
    loop {
        let before = heard().len();
        let guard = lock_in_the_end(&locks, "report");
        let lost = guard.lost();
        say("held");
        let lost = announced(&lost);
        let line = || {
            heard()
                .split_off(before)
                .into_iter()
                .find(|it| it.contains("LOST"))
        };
        eventually("it is in the log", || line().is_some());
        if lost == LostReason::Expired {
            metrics.shows_all();
        }
        say(line().unwrap());
    }
}

fn herd(page: &mut Section) {
    const CALLS: u64 = 50;
    let servers = Servers::start(3).unwrap();
    let all = || connected(builder(servers.urls()), 3);
    let (holder, locks, operator) = (all(), all(), all());
    let guard = lock_in_the_end(&holder, "report");
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let cancel = CancelHandle::new();
    let report = locks.mutex("report").cancelled_by(&cancel);
    thread::scope(|scope| {
        (0..CALLS).for_each(|_| drop(scope.spawn(|| drop(report.lock()))));
        eventually("all wait", || locks.stats().waiting == CALLS);
        page.shows(|| {
            let err = operator.mutex("report").try_lock_for(ms(20)).unwrap_err();
            vec![format!("error: {err}")]
        });
        page.shows(|| inspected(&operator));

        cancel.cancel();
    });
    drop(guard);
}

fn leaked(page: &mut Section) {
    let servers = Servers::start(3).unwrap();
    // A program that forgets its guard.
    let locks = builder(servers.urls())
        .response_timeout(ms(250))
        .ttl(secs(1))
        .max_hold(ms(1300));
    let locks = locks.build().unwrap();
    page.logs(|| {
        let before = locks.stats().locks_lost;
        std::mem::forget(lock_in_the_end(&locks, "report"));
        eventually("it is lost", || before < locks.stats().locks_lost);
    });
    // A client that sets no expiry.
    eventually("it has expired", || servers.holders("report") == 0);
    set_all(&servers, "report", "somebody");
    let operator = manager(&servers);
    page.shows(|| {
        let err = operator.mutex("report").try_lock().unwrap_err();
        vec![format!("error: {err}")]
    });
    page.shows(|| inspected(&operator));

    let seen = operator.mutex("report").inspect().unwrap();
    assert_released(&operator.admin().release(&seen).unwrap());
    drop(lock_in_the_end(&operator, "report"));
}

fn wrong_password(page: &mut Section) {
    let servers = Servers::start_with(3, |it| it.password("hunter2")).unwrap();
    let urls: Vec<_> = servers
        .iter()
        .map(|it| format!("redis://{}", it.addr()))
        .collect();
    let locks = builder(&urls)
        .outage_timeout(secs(0))
        .credentials(None, "wrong")
        .build()
        .unwrap();
    fail(&locks, 3, |it| crate::support::says(it, "login refused; "));
    page.logs(|| ());
    page.logs(|| try_once(&locks));

    let locks = builder(&urls).credentials(None, "hunter2").build().unwrap();
    drop(lock_in_the_end(&locks, "report"));
}
