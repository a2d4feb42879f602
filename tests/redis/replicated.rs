//! A node that is a master and its replicas: `redis+replicated://`.

use std::time::Duration;

use devnodes::{FakeServer, Group, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, Builder, LockGuard, LockManager};

use crate::log_lines;
use crate::support::*;

/// Long enough that nothing of it passes by itself while a test looks.
pub(crate) const QUARANTINE: Duration = secs(600);

/// A node that is a group, and two that are single servers.
pub(crate) struct Nodes {
    pub(crate) group: Group,
    pub(crate) singles: Servers,
    /// The group's URL comes first.
    pub(crate) urls: Vec<String>,
}

impl Nodes {
    pub(crate) fn start(group: Group, url: fn(&Group) -> String) -> Nodes {
        let singles = Servers::start(2).unwrap();
        let urls = [url(&group)].into_iter().chain(singles.urls()).collect();
        Nodes {
            group,
            singles,
            urls,
        }
    }
}

/// What the group's node said in the end to a call for `name`.
#[track_caller]
pub(crate) fn failure_in_the_end(
    locks: &LockManager,
    looks: impl Fn(&NodeFailure) -> bool,
) -> NodeFailure {
    let err = error_in_the_end(
        locks,
        "report",
        |err| matches!(err.nodes().first().map(|it| &it.answer), Some(NodeAnswer::Failed(failure)) if looks(failure)),
    );
    failure(&err, 0).clone()
}

fn one(group: &Group) -> LockManager {
    builder([group.replicated_url()]).build().unwrap()
}

/// With quarantine, on servers that are new and that somebody has vouched for.
pub(crate) fn vouched(builder: Builder) -> LockManager {
    let locks = builder.quarantine(true).build().unwrap();
    eventually("somebody vouches for all nodes", || {
        locks.admin().vouch().iter().all(|it| it.failure.is_none())
    });
    locks
}

#[test]
fn the_master_among_replicas_is_found_wherever_it_stands_in_the_list() -> TestResult {
    needs!(Replicas);
    let group = Group::start(2)?;
    let [a, b, c] = [0, 1, 2].map(|it| group.servers[it].addr());
    for list in [
        format!("{a},{b},{c}"),
        format!("{c},{b},{a}"),
        format!("{b},{a}"),
        format!("{a}"),
    ] {
        let locks = builder([format!("redis+replicated://{list}")])
            .strict(true)
            .build()?;
        let guard = locks.mutex("report").try_lock()?;
        assert!(group.servers[0].exists("report"));
        guard.release()?;
        let checks = locks.check_nodes();
        assert!(
            checks[0].is_fine(),
            "that it has replicas is what it was given as: {}",
            checks[0]
        );
        assert_eq!(*checks[0].address, *list);
    }
    Ok(())
}

#[test]
fn the_servers_of_a_node_share_a_login_and_a_database() -> TestResult {
    needs!(Replicas);
    let group = Group::builder(1).password("s3cret").start()?;
    let locks = builder([format!("{}/3", group.replicated_url())]).build()?;
    let _guard = locks.mutex("report").try_lock()?;
    group.servers[0].command(&["SELECT", "3"])?;
    assert!(group.servers[0].exists("report"));

    let wrong = builder([group.replicated_url().replace("s3cret", "other")]).build()?;
    let failure = failure_in_the_end(&wrong, |_| true);
    assert!(matches!(failure, NodeFailure::NoMaster { .. }), "{failure}");
    assert!(
        failure.to_string().contains("login refused") && !failure.to_string().contains("other"),
        "{failure}"
    );
    Ok(())
}

#[test]
fn a_promoted_replica_is_found_at_the_next_connection() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let locks = one(&group);
    drop(locks.mutex("report").try_lock()?);

    group.servers[0].kill()?;
    let failure = failure_in_the_end(&locks, |_| true);
    assert!(!says(&failure, TWO_MASTERS), "{failure}");
    group.promote(1)?;

    let _guard = lock_in_the_end(&locks, "report");
    assert!(group.servers[1].exists("report"));
    Ok(())
}

#[test]
fn a_master_that_is_made_a_replica_under_its_clients_loses_them_to_the_new_one() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let locks = one(&group);
    drop(locks.mutex("report").try_lock()?);

    group.promote(1)?;
    group.demote(0, 1)?;

    let _guard = lock_in_the_end(&locks, "report");
    eventually("both have it", || {
        group.servers.iter().all(|it| it.exists("report"))
    });
    assert_eq!(group.servers[1].info("role").as_deref(), Some("master"));
    Ok(())
}

#[test]
fn a_release_that_a_master_has_not_confirmed_is_brought_to_the_next_one() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let locks = builder([group.replicated_url()])
        .response_timeout(ms(300))
        .ttl(LONG)
        .build()?;
    let guard = lock_in_the_end(&locks, "report");
    eventually("the replica has it", || group.servers[1].exists("report"));

    group.servers[0].pause()?;
    drop(guard);
    group.servers[0].kill()?;
    failure_in_the_end(&locks, |it| matches!(it, NodeFailure::NoMaster { .. }));
    // By then nobody tries to reach the old one any more.
    let asked = || {
        group.servers[1]
            .info("cmdstat_role")
            .and_then(|it| it[6..it.find(',')?].parse::<u64>().ok())
            .unwrap_or(0)
    };
    let before = asked();
    eventually("it is asked again and again", || before + 4 <= asked());
    group.promote(1)?;

    eventually("it is given back there", || {
        !group.servers[1].exists("report")
    });
    Ok(())
}

#[test]
fn a_release_that_a_former_master_refuses_is_brought_to_the_next_one() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let locks = builder([group.replicated_url()]).ttl(LONG).build()?;
    let guard = lock_in_the_end(&locks, "report");
    eventually("the replica has it", || group.servers[1].exists("report"));

    group.promote(1)?;
    group.demote(0, 1)?;
    drop(guard);

    eventually("it is given back there", || {
        !group.servers[1].exists("report")
    });
    Ok(())
}

#[test]
fn of_two_masters_neither_counts_and_the_error_names_them() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let locks = one(&group);
    drop(locks.mutex("another").try_lock()?);

    // Under a connection that goes on.
    group.promote(1)?;
    let two = |it: &NodeFailure| says(it, TWO_MASTERS);
    let failure = failure_in_the_end(&locks, two);
    for server in &group.servers {
        assert!(
            failure.to_string().contains(&server.addr().to_string()),
            "{failure}"
        );
    }
    // And for who comes anew.
    failure_in_the_end(&one(&group), two);

    group.demote(0, 1)?;
    let _guard = lock_in_the_end(&locks, "report");
    assert!(group.servers[1].exists("report"));
    Ok(())
}

#[test]
fn two_masters_are_worth_a_warning() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    group.promote(1)?;
    let child = child(
        "replicated::child_that_sees_two_masters",
        &[group.replicated_url()],
    );
    let line = child.hear();
    assert!(
        line.starts_with("WARN n0: down: ") && line.contains("two of its servers say"),
        "{line}"
    );
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_sees_two_masters() {
    let urls = child_urls();
    if urls.is_empty() {
        return;
    }
    log_lines::listen();
    let locks = builder(urls).build().unwrap();
    failure_in_the_end(&locks, |it| says(it, TWO_MASTERS));
    let warnings = || {
        log_lines::heard()
            .into_iter()
            .filter(|it| it.starts_with("WARN n0"))
            .collect::<Vec<_>>()
    };
    // The call is told first.
    eventually("the log warns", || !warnings().is_empty());
    assert_eq!(warnings().len(), 1, "once: {:?}", log_lines::heard());
    say(&warnings()[0]);
    wait_for_parent();
}

#[test]
fn a_member_that_hangs_or_is_down_or_talks_nonsense_costs_nothing_but_the_connect_timeout()
-> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    group.servers[1].pause()?;
    let (silent, garbage, down) = (
        FakeServer::silent()?,
        FakeServer::garbage()?,
        Server::start()?,
    );
    down.kill()?;
    let others = [silent.addr(), garbage.addr(), down.addr()]
        .map(|it| it.to_string())
        .join(",");
    let url = format!("{},{others}", group.replicated_url());
    let locks = builder([url]).connect_timeout(ms(600)).build()?;

    let guard = lock_in_the_end(&locks, "report");
    guard.release()?;

    // It is asked again and again, and the connection goes on.
    let looks = silent.commands_seen().len();
    eventually("it is asked again", || {
        looks + 2 < garbage.commands_seen().len()
    });
    drop(locks.mutex("report").try_lock()?);
    assert_eq!(locks.stats().connections, 1);
    Ok(())
}

#[test]
fn a_group_without_a_master_costs_the_others_nothing_and_says_what_its_servers_are() -> TestResult {
    needs!(Replicas);
    let nodes = Nodes::start(Group::start(1)?, Group::replicated_url);
    nodes.group.servers[0].kill()?;
    let locks = builder(nodes.urls.clone()).build()?;

    let guard = locks.mutex("report").lock()?;

    let checks = locks.check_nodes();
    let Some(failure @ NodeFailure::NoMaster { .. }) = &checks[0].failure else {
        panic!("{}", checks[0])
    };
    let said = failure.to_string();
    assert!(
        said.contains("a replica") && said.contains("refused"),
        "{said}"
    );
    assert!(checks[1].is_fine() && checks[2].is_fine());
    guard.release()?;
    nothing_is_left(&nodes.singles);
    Ok(())
}

#[test]
fn the_same_server_by_two_names_has_one_vote() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let server = Server::start()?;
    let master = &group.servers[0];
    let urls = [
        group.replicated_url(),
        server.url(),
        format!("redis://localhost:{}", master.port()),
    ];
    let locks = builder(urls).build()?;
    drop(locks.mutex("report").lock()?);

    let doubles = || {
        let checks = locks.check_nodes();
        checks
            .iter()
            .filter(|it| matches!(it.failure, Some(NodeFailure::SameServer { .. })))
            .count()
    };
    eventually("one of them has no vote", || doubles() == 1);
    Ok(())
}

/// A manager holds a lock on the group and one server, and the group's master dies before its replica has heard of it. The
/// replica is promoted, and another manager, which has all three nodes, wants the lock.
pub(crate) fn fails_over(
    nodes: &Nodes,
    options: fn(Builder) -> Builder,
    fail_over: fn(&Group),
) -> (LockManager, LockGuard) {
    let other = options(builder(nodes.urls.clone())).build().unwrap();
    eventually("they vote", || {
        other.admin().vouch().iter().all(|it| it.failure.is_none())
    });
    let holder = options(builder(nodes.urls[..2].to_vec()))
        .ttl(secs(300))
        .build()
        .unwrap();
    nodes.group.cut_replication().unwrap();
    let guard = lock_in_the_end(&holder, "report");
    assert_eq!(
        [
            nodes.group.servers.holders("report"),
            nodes.singles.holders("report")
        ],
        [1, 1]
    );

    fail_over(&nodes.group);

    (other, guard)
}

fn promote(group: &Group) {
    group.servers[0].kill().unwrap();
    group.promote(1).unwrap();
}

/// The hole that `greet` closes: if this fails, the test below proves nothing.
#[test]
fn without_quarantine_a_failover_makes_two_holders() -> TestResult {
    needs!(Replicas);
    let nodes = Nodes::start(Group::start(1)?, Group::replicated_url);
    let (other, guard) = fails_over(&nodes, |it| it.quarantine(false), promote);

    let theirs = lock_in_the_end(&other, "report");

    assert!(guard.is_valid() && theirs.is_valid(), "two hold it");
    Ok(())
}

#[test]
fn h16_a_promoted_replica_does_not_help_to_break_a_lock() -> TestResult {
    needs!(Replicas);
    let nodes = Nodes::start(Group::start(1)?, Group::replicated_url);
    let (other, guard) = fails_over(
        &nodes,
        |it| it.quarantine(true).max_ttl(QUARANTINE),
        promote,
    );

    assert_no_second_holder(&nodes, &other, &guard);
    // With the margin, and for how long others may count what the old master grants.
    assert_eq!(
        record(&nodes.group.servers[1]).unwrap().longest,
        600_000 + 6_002 + 12_000
    );
    Ok(())
}

/// Neither for those who knew the old master nor for those who come anew.
pub(crate) fn assert_no_second_holder(nodes: &Nodes, other: &LockManager, guard: &LockGuard) {
    let new = builder(nodes.urls.clone())
        .quarantine(true)
        .max_ttl(QUARANTINE)
        .build()
        .unwrap();
    for locks in [other, &new] {
        let failure = failure_in_the_end(locks, |it| matches!(it, NodeFailure::Quarantined { .. }));
        let NodeFailure::Quarantined { left, .. } = failure else {
            panic!("{failure}")
        };
        assert!(secs(300) < left, "{left:?}");
        let err = locks.mutex("report").try_lock().unwrap_err();
        assert!(
            matches!(
                err,
                AcquireError::NoQuorum { .. } | AcquireError::Held { .. }
            ),
            "{err}"
        );
    }
    assert!(guard.is_valid());
}

#[test]
fn a_hold_outlives_the_failover_of_one_node_which_joins_again_after_its_quarantine() -> TestResult {
    needs!(Replicas);
    let nodes = Nodes::start(Group::start(1)?, Group::replicated_url);
    let short = |it: Builder| {
        it.ttl(secs(1))
            .max_ttl(secs(1))
            .response_timeout(ms(250))
            .connect_timeout(ms(400))
    };
    let locks = vouched(short(builder(nodes.urls.clone())));
    let guard = locks.mutex("report").lock()?;

    promote(&nodes.group);

    let quarantined = || locks.check_nodes()[0].failure.is_some();
    eventually("its master is another one", || {
        matches!(
            locks.check_nodes()[0].failure,
            Some(NodeFailure::Quarantined { .. })
        )
    });
    assert!(guard.is_valid(), "the others confirm it");
    eventually("it joins again", || !quarantined());
    assert!(guard.is_valid());
    guard.extend(secs(1))?;
    guard.release()?;
    // Without one of the others.
    nodes.singles[0].kill()?;
    let _guard = locks.mutex("report").lock()?;
    assert!(nodes.group.servers[1].exists("report"));
    Ok(())
}
