//! A node that is a primary and its replicas: `redis+replicated://`.

use std::time::Duration;

use devnodes::{Group, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{Builder, LockManager};

use crate::support::*;

/// Long enough that nothing of it passes by itself while a test looks.
pub(crate) const QUARANTINE: Duration = secs(600);

/// What the first node said in the end to a call for `name`.
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
fn the_primary_among_replicas_is_found_at_any_place_of_the_list() -> TestResult {
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
        assert!(checks[0].is_fine(), "its replicas are fine: {}", checks[0]);
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
    assert!(says(&failure, "login refused; "), "{failure}");
    Ok(())
}

#[test]
fn a_demoted_primary_loses_its_clients_to_the_new_one() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let locks = one(&group);
    drop(locks.mutex("report").try_lock()?);

    group.promote(1)?;
    group.demote(0, 1)?;

    let _guard = lock_in_the_end(&locks, "report");
    assert_eq!(group.servers[1].info("role").as_deref(), Some("master"));
    assert!(group.servers[1].exists("report"));
    Ok(())
}

#[test]
fn an_unconfirmed_release_is_sent_to_the_next_primary() -> TestResult {
    needs!(Replicas);
    for refuses in [true, false] {
        let group = Group::start(1)?;
        let (old, new) = (&group.servers[0], &group.servers[1]);
        let locks = builder([group.replicated_url()])
            .response_timeout(ms(300))
            .ttl(LONG)
            .build()?;
        let guard = lock_in_the_end(&locks, "report");
        eventually("the replica has it", || new.exists("report"));

        if refuses {
            group.promote(1)?;
            group.demote(0, 1)?;
            drop(guard);
        } else {
            old.pause()?;
            drop(guard);
            old.kill()?;
            failure_in_the_end(&locks, |it| matches!(it, NodeFailure::NoPrimary { .. }));
            group.promote(1)?;
        }

        eventually("it is given back there", || !new.exists("report"));
    }
    Ok(())
}

#[test]
fn of_two_primaries_neither_counts_and_the_error_names_them() -> TestResult {
    needs!(Replicas);
    let group = Group::start(1)?;
    let locks = one(&group);
    drop(locks.mutex("another").try_lock()?);

    // Under a connection that goes on.
    group.promote(1)?;
    let two = |it: &NodeFailure| says(it, "two primaries, ");
    let failure = failure_in_the_end(&locks, two);
    for server in &group.servers {
        let address = server.addr().to_string();
        assert!(failure.to_string().contains(&address), "{failure}");
    }
    // And for a new client.
    failure_in_the_end(&one(&group), two);

    group.demote(0, 1)?;
    let _guard = lock_in_the_end(&locks, "report");
    assert!(group.servers[1].exists("report"));
    Ok(())
}

#[test]
fn a_node_without_a_primary_reports_its_members_and_costs_one_vote() -> TestResult {
    needs!(Replicas);
    let (group, singles) = (Group::start(1)?, Servers::start(2)?);
    group.servers[0].kill()?;
    let urls = [group.replicated_url()].into_iter().chain(singles.urls());
    let locks = builder(urls).build()?;

    let guard = locks.mutex("report").lock()?;

    let checks = locks.check_nodes();
    let Some(failure @ NodeFailure::NoPrimary { .. }) = &checks[0].failure else {
        panic!("{}", checks[0])
    };
    let said = failure.to_string();
    assert!(
        said.contains("a replica") && said.contains("refused"),
        "{said}"
    );
    assert!(checks[1].is_fine() && checks[2].is_fine());
    guard.release()?;
    nothing_is_left(&singles);
    Ok(())
}
