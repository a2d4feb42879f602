//! What the health check says of nodes that are more than one server, of what stands between, and with `strict`.

use devnodes::{Group, Server, eventually};
use quorlock::LockManager;
use quorlock::error::{MemberAnswer, NodeCheck, NodeFailure, NodeFinding};

use crate::replicated::failure_in_the_end;
use crate::support::*;

/// The only node, once that holds of it.
#[track_caller]
fn check_in_the_end(locks: &LockManager, holds: impl Fn(&NodeCheck) -> bool) -> NodeCheck {
    let mut found = None;
    eventually("the check says so", || {
        found = Some(locks.check_nodes().swap_remove(0)).filter(&holds);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_sentinel_that_is_down_is_found_while_the_others_are_enough() -> TestResult {
    needs!(Sentinels);
    let group = Group::builder(1).sentinels(3).start()?;
    let locks = builder([group.sentinel_url()]).strict(true).build()?;
    let check = check_in_the_end(&locks, NodeCheck::is_fine);
    assert_eq!(check.members.len(), 3);
    assert!(
        check
            .members
            .iter()
            .all(|it| matches!(it.answer, MemberAnswer::Named { .. })),
        "{:?}",
        check.members
    );

    group.sentinels[1].kill()?;

    let check = check_in_the_end(&locks, |it| !it.findings.is_empty());
    assert_eq!(check.failure, None, "it votes, with strict too");
    let [NodeFinding::MembersFail { said }] = &check.findings[..] else {
        panic!("{check}")
    };
    let address = group.sentinels[1].addr().to_string();
    assert!(
        said.starts_with(&format!("{address}: ")) && said.contains("refused"),
        "{said}"
    );
    assert_eq!(*check.members[1].address, *address);
    Ok(())
}

#[test]
fn fewer_than_three_sentinels_in_an_address_are_found() -> TestResult {
    needs!(Sentinels);
    let group = Group::builder(0).sentinels(1).start()?;
    let locks = builder([group.sentinel_url()]).strict(true).build()?;
    let check = check_in_the_end(&locks, |it| it.failure.is_none());
    assert_eq!(check.findings, [NodeFinding::FewSentinels { count: 1 }]);
    drop(locks.mutex("report").try_lock()?);
    Ok(())
}

#[test]
fn what_does_not_know_role_is_taken_for_a_proxy_and_has_no_vote_with_strict() -> TestResult {
    needs!(Replicas);
    // As it is where something stands between. The other option makes the number of words even.
    let limit = ["--client-output-buffer-limit", "normal", "0", "0", "0"];
    let server = Server::builder()
        .arg("--rename-command", "ROLE")
        .arg("", limit[0])
        .arg(limit[1], limit[2]);
    let server = server.arg(limit[3], limit[4]).start()?;
    let locks = builder([server.url()]).build()?;
    drop(lock_in_the_end(&locks, "report"));
    assert_eq!(
        check_in_the_end(&locks, |_| true).findings,
        [NodeFinding::Proxied]
    );

    let strict = builder([server.url()]).strict(true).build()?;
    let failure = failure_in_the_end(&strict, |_| true);
    assert_eq!(
        failure,
        NodeFailure::Disqualified {
            finding: NodeFinding::Proxied
        }
    );
    Ok(())
}
