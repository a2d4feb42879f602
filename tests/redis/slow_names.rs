//! Members of nodes whose names the system's resolver keeps for itself. The managers are in another process, whose resolver is ours.

use devnodes::{Clock, Cluster, Group, Server, SlowNames, eventually, say};
use quorlock::LockManager;
use quorlock::error::MemberAnswer;

use crate::support::*;

#[test]
fn h23_a_member_whose_name_is_not_resolved_costs_its_own_answer_and_no_more() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    if !Clock::available() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let names = SlowNames::create(folder.path())?;
    let (group, cluster) = (Group::builder(1).sentinels(3).start()?, Cluster::start(1)?);
    let slow = [&group.sentinels[2], &group.servers[1]];
    let by_name = |url: String, server: &Server| {
        let (address, port) = (server.addr().to_string(), server.port());
        url.replace(&address, &format!("slow:{port}"))
    };
    let urls = [
        by_name(group.sentinel_url(), slow[0]),
        by_name(group.replicated_url(), slow[1]),
        // Not one of the cluster, and no less slow.
        format!("{},slow:{}", cluster.url(), slow[1].port()),
    ];
    let mut child = child_with(
        "slow_names::child_whose_names_are_slow",
        &urls,
        names.environment(),
    );
    assert_eq!(child.hear(), "all members have answered");

    names.hang()?;
    for server in slow {
        server.kill()?;
    }
    child.go_on();
    assert_eq!(child.hear(), "all nodes vote");
    group.sentinels[2].restart()?;
    child.go_on();
    assert_eq!(child.hear(), "it was found where it had been");
    names.resolve()?;
    child.go_on();
    assert_eq!(child.hear(), "its name is resolved");
    assert!(child.wait().success());
    Ok(())
}

/// What the member says that has a name.
fn named(locks: &LockManager) -> String {
    let check = locks.check_nodes().remove(0);
    let member = check
        .members
        .into_iter()
        .find(|it| it.address.starts_with("slow"));
    match member.map(|it| it.answer) {
        Some(MemberAnswer::Failed(failure)) => failure.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
#[ignore = "a process of another test"]
fn child_whose_names_are_slow() {
    let urls = child_urls();
    if urls.is_empty() {
        return;
    }
    // A look at all members takes half of the connect timeout while a name hangs, and there are several looks here.
    let quick = |url| {
        builder([url])
            .response_timeout(secs(1))
            .connect_timeout(secs(2))
            .build()
            .unwrap()
    };
    let build = || urls.iter().map(quick).collect::<Vec<_>>();
    let before = build();
    before
        .iter()
        .for_each(|locks| drop(lock_in_the_end(locks, "report")));
    eventually("the sentinel answers", || {
        named(&before[0]).contains("Named")
    });
    eventually("the replica answers", || {
        named(&before[1]).contains("Replica")
    });
    say("all members have answered");

    wait_for_parent();
    let after = build();
    for locks in &before[..2] {
        // In a look that was over though the name was not resolved.
        eventually("it is asked where it was", || {
            named(locks).contains("refused")
        });
    }
    before
        .iter()
        .chain(&after)
        .for_each(|locks| drop(lock_in_the_end(locks, "report")));
    assert!(
        after[..2]
            .iter()
            .all(|locks| named(locks).contains("not resolved yet")),
        "{}",
        named(&after[0])
    );
    say("all nodes vote");

    wait_for_parent();
    eventually("it is asked where it was", || {
        named(&before[0]).contains("Named")
    });
    assert!(named(&after[0]).contains("not resolved yet"));
    say("it was found where it had been");

    wait_for_parent();
    eventually("it is found by its name", || {
        named(&after[0]).contains("Named")
    });
    say("its name is resolved");
}
