//! A node whose master is watched by sentinels: `redis+sentinel://`.

use devnodes::{FakeServer, Group, Proxy, Server, Servers, eventually};
use quorlock::Node;
use quorlock::error::{MemberAnswer, NodeFailure};
use quorlock::{Builder, LockManager};

use crate::replicated::{
    Nodes, QUARANTINE, assert_no_second_holder, fails_over, failure_in_the_end, vouched,
};
use crate::support::*;

fn watched() -> Group {
    Group::builder(1).sentinels(3).start().unwrap()
}

fn one(group: &Group) -> LockManager {
    builder([group.sentinel_url()]).build().unwrap()
}

/// A sentinel that says forever what it was told to.
fn stuck(named: &Server, epoch: u64) -> FakeServer {
    let (port, epoch) = (named.port().to_string(), epoch.to_string());
    let place = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
    let master = format!(
        "*2\r\n$12\r\nconfig-epoch\r\n${}\r\n{epoch}\r\n",
        epoch.len()
    );
    FakeServer::start(move |conn| {
        while let Some(command) = conn.read_command() {
            let answer = match (&command[0][..], command.get(1).map(|it| &it[..])) {
                (b"SENTINEL", Some(b"MASTER")) => &master[..],
                (b"SENTINEL", _) => &place,
                _ => "+OK\r\n",
            };
            if !conn.write(answer.as_bytes()) {
                return;
            }
        }
    })
    .unwrap()
}

fn url_of(sentinels: &[String]) -> String {
    format!("redis+sentinel://{}/locks", sentinels.join(","))
}

fn places(servers: &Servers) -> Vec<String> {
    servers.iter().map(|it| it.addr().to_string()).collect()
}

fn fail_over(group: &Group) {
    group.servers[0].kill().unwrap();
    assert_eq!(group.fail_over(0).unwrap(), 1);
}

#[test]
fn the_master_that_sentinels_name_has_the_node_s_vote() -> TestResult {
    needs!(Sentinels);
    let group = watched();
    let locks = builder([group.sentinel_url()]).strict(true).build()?;
    let guard = locks.mutex("report").try_lock()?;
    assert!(group.servers[0].exists("report"));
    guard.release()?;
    let checks = locks.check_nodes();
    assert!(checks[0].is_fine(), "{}", checks[0]);
    assert_eq!(
        *checks[0].address,
        format!("{}/locks", places(&group.sentinels).join(","))
    );
    Ok(())
}

#[test]
fn sentinels_and_servers_have_passwords_of_their_own() -> TestResult {
    needs!(Sentinels);
    let group = Group::builder(1)
        .sentinels(3)
        .password("s3rver")
        .sentinel_password("s3ntinel")
        .start()?;
    drop(one(&group).mutex("report").try_lock()?);

    // Apart from the URL.
    let plain = url_of(&places(&group.sentinels));
    let apart = |server, sentinel| {
        let node = Node::url(&plain)
            .credentials(None, server)
            .sentinel_credentials(None, sentinel);
        patient(LockManager::builder(node)).build().unwrap()
    };
    drop(apart("s3rver", "s3ntinel").mutex("report").try_lock()?);

    let failure = failure_in_the_end(&apart("s3rver", "0ther"), |_| true);
    assert!(
        says(&failure, "login refused by its sentinels"),
        "{failure}"
    );
    let failure = failure_in_the_end(
        &builder([&plain]).credentials(None, "s3rver").build()?,
        |_| true,
    );
    assert!(
        says(&failure, "login refused by its sentinels"),
        "a server's password is not for sentinels: {failure}"
    );
    let failure = failure_in_the_end(&apart("0ther", "s3ntinel"), |_| true);
    assert!(says(&failure, "login refused; "), "{failure}");
    Ok(())
}

#[test]
fn sentinels_may_give_names_in_place_of_addresses() -> TestResult {
    needs!(Sentinels);
    let group = Group::builder(1).sentinels(1).by_name().start()?;
    let reply = group.sentinels[0].command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks"])?;
    assert_eq!(reply.as_array().unwrap()[0].as_str(), Some("localhost"));

    let _guard = one(&group).mutex("report").try_lock()?;

    assert!(group.servers[0].exists("report"));
    Ok(())
}

#[test]
fn a_sentinel_that_is_behind_or_down_or_hangs_changes_nothing() -> TestResult {
    needs!(Sentinels);
    let group = watched();
    let old = stuck(&group.servers[1], 0);
    let mut sentinels = places(&group.sentinels);
    sentinels[0] = old.addr().to_string();
    let locks = builder([url_of(&sentinels)])
        .connect_timeout(secs(1))
        .build()?;
    drop(lock_in_the_end(&locks, "report"));
    assert!(!old.commands_seen().is_empty() && group.servers[0].exists(fence("report")));

    for down in [Server::kill, Server::pause] {
        down(&group.sentinels[0])?;
        let mut sentinels = places(&group.sentinels);
        sentinels.rotate_left(1);
        let locks = builder([url_of(&sentinels)])
            .connect_timeout(secs(1))
            .build()?;
        drop(lock_in_the_end(&locks, "report"));
        group.sentinels[0].restart()?;
    }
    Ok(())
}

#[test]
fn while_only_some_sentinels_know_the_newest_master_nobody_is_the_master() -> TestResult {
    needs!(Sentinels);
    let servers = Servers::start(2)?;
    let (new, old) = (
        stuck(&servers[1], 8),
        [stuck(&servers[0], 7), stuck(&servers[0], 7)],
    );
    let sentinels = [&new, &old[0], &old[1]].map(|it| it.addr().to_string());
    let locks = builder([url_of(&sentinels)]).build()?;

    let failure = failure_in_the_end(&locks, |_| true);

    assert!(
        says(
            &failure,
            "no majority of its sentinels names the newest master"
        ),
        "{failure}"
    );
    let newest = format!("127.0.0.1:{} by configuration 8", servers[1].port());
    assert!(failure.to_string().contains(&newest), "{failure}");
    Ok(())
}

#[test]
fn a_replica_that_sentinels_name_as_the_master_has_no_vote() -> TestResult {
    needs!(Sentinels);
    let group = Group::start(1)?;
    let wrong = stuck(&group.servers[1], 1);
    let locks = builder([url_of(&[wrong.addr().to_string()])]).build()?;

    let failure = failure_in_the_end(&locks, |_| true);

    let NodeFailure::NoMaster { said, .. } = failure else {
        panic!("{failure}")
    };
    assert_eq!(
        (&*said[0].address, &said[0].answer),
        (
            &*group.servers[1].addr().to_string(),
            &MemberAnswer::Replica
        )
    );
    Ok(())
}

#[test]
fn sentinels_that_know_no_such_master_and_servers_that_are_no_sentinels_say_so() -> TestResult {
    needs!(Sentinels);
    let group = watched();
    let url = group.sentinel_url().replace("/locks", "/other");
    let failure = failure_in_the_end(&builder([url]).build()?, |_| true);
    assert!(
        says(&failure, "its sentinels know no master other; "),
        "{failure}"
    );

    let failure = failure_in_the_end(&builder([url_of(&places(&group.servers))]).build()?, |_| {
        true
    });
    assert!(says(&failure, "0 of 2 sentinels answered"), "{failure}");
    assert!(failure.to_string().contains("not a Sentinel"), "{failure}");

    // And the other way round.
    let url = group
        .sentinel_url()
        .replace("sentinel", "replicated")
        .replace("/locks", "");
    let failure = failure_in_the_end(&builder([url]).build()?, |_| true);
    assert!(
        failure
            .to_string()
            .contains("a Sentinel, which stores nothing"),
        "{failure}"
    );
    Ok(())
}

#[test]
fn a_node_whose_sentinels_cannot_be_reached_has_no_vote_after_a_while_although_its_master_lives()
-> TestResult {
    needs!(Sentinels);
    let group = Group::builder(1).sentinels(3).start()?;
    let proxies: Vec<_> = group
        .sentinels
        .iter()
        .map(|it| Proxy::start(it.addr()).unwrap())
        .collect();
    let sentinels: Vec<_> = proxies.iter().map(|it| it.addr().to_string()).collect();
    let locks = builder([url_of(&sentinels)])
        .ttl(secs(1))
        .response_timeout(ms(250))
        .connect_timeout(ms(400));
    let locks = locks.build()?;
    drop(lock_in_the_end(&locks, "report"));

    // One of them is not missed.
    proxies[0].black_hole(true);
    eventually("they are asked again", || 2 <= proxies[0].connections());
    drop(lock_in_the_end(&locks, "report"));

    proxies[1].black_hole(true);
    let unreachable = |it: &NodeFailure| says(it, "1 of 3 sentinels answered");
    failure_in_the_end(&locks, unreachable);
    assert!(group.servers[0].is_running());

    proxies[1].black_hole(false);
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

/// The hole that `greet` closes: if this fails, the test below proves nothing.
#[test]
fn without_quarantine_a_failover_by_sentinels_makes_two_holders() -> TestResult {
    needs!(Sentinels);
    let nodes = Nodes::start(watched(), Group::sentinel_url);
    let (other, guard) = fails_over(&nodes, |it| it.quarantine(false), fail_over);

    let theirs = lock_in_the_end(&other, "report");

    assert!(guard.is_valid() && theirs.is_valid(), "two hold it");
    Ok(())
}

#[test]
fn h16_a_replica_that_sentinels_promoted_does_not_help_to_break_a_lock() -> TestResult {
    needs!(Sentinels);
    let nodes = Nodes::start(watched(), Group::sentinel_url);
    let (other, guard) = fails_over(
        &nodes,
        |it| it.quarantine(true).max_ttl(QUARANTINE),
        fail_over,
    );

    assert_no_second_holder(&nodes, &other, &guard);
    // The same, and until all sentinels have heard of it.
    assert_eq!(
        record(&nodes.group.servers[1]).unwrap().longest,
        600_000 + 6_002 + 12_000 + 5_000
    );
    Ok(())
}

#[test]
fn a_hold_outlives_a_failover_by_sentinels_and_the_node_joins_again_after_its_quarantine()
-> TestResult {
    needs!(Sentinels);
    if !long_tests() {
        return Ok(());
    }
    let nodes = Nodes::start(watched(), Group::sentinel_url);
    let short = |it: Builder| {
        it.ttl(secs(4))
            .max_ttl(secs(4))
            .response_timeout(secs(1))
            .connect_timeout(ms(400))
    };
    let locks = vouched(short(builder(nodes.urls.clone())));
    let guard = locks.mutex("report").lock()?;

    // They notice that themselves.
    nodes.group.servers[0].kill()?;
    assert_eq!(nodes.group.wait_for_failover(0)?, 1);

    let failure = || locks.check_nodes()[0].failure.clone();
    eventually("its master is another one", || {
        matches!(failure(), Some(NodeFailure::Quarantined { .. }))
    });
    assert!(guard.is_valid(), "the others confirm it");
    eventually("it joins again", || failure().is_none());
    guard.release()?;
    nodes.singles[0].kill()?;
    let _guard = locks.mutex("report").lock()?;
    assert!(nodes.group.servers[1].exists("report"));
    Ok(())
}
