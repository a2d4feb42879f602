//! A node whose primary is named by Sentinels: `redis+sentinel://`.

use devnodes::{Group, Proxy, Servers, eventually};
use quorlock::error::NodeFailure;
use quorlock::{LockManager, Node};

use crate::support::*;
use crate::topology::members::naming;
use crate::topology::replicated::failure_in_the_end;

fn url_of(sentinels: &[String]) -> String {
    format!("redis+sentinel://{}/locks", sentinels.join(","))
}

fn places(servers: &Servers) -> Vec<String> {
    servers.iter().map(|it| it.addr().to_string()).collect()
}

#[test]
fn sentinels_and_servers_have_passwords_of_their_own() -> TestResult {
    needs!(Sentinels);
    let group = Group::builder(1)
        .sentinels(3)
        .password("s3rver")
        .sentinel_password("s3ntinel")
        .start()?;
    let locks = builder([group.sentinel_url()]).build()?;
    drop(locks.mutex("report").try_lock()?);

    // Apart from the URL.
    let plain = url_of(&places(&group.sentinels));
    let apart = |server, sentinel| {
        let node = Node::url(&plain)
            .credentials(None, server)
            .sentinel_credentials(None, sentinel);
        patient(LockManager::builder(node)).build().unwrap()
    };
    drop(apart("s3rver", "s3ntinel").mutex("report").try_lock()?);

    // The password of the servers is not for Sentinels.
    let of_servers_only = builder([&plain]).credentials(None, "s3rver").build()?;
    for (locks, words, of_sentinels) in [
        (apart("s3rver", "0ther"), "login refused; ", true),
        (of_servers_only, "a password is required, ", true),
        (apart("0ther", "s3ntinel"), "login refused; ", false),
    ] {
        let failure = failure_in_the_end(&locks, |_| true);
        assert!(says(&failure, words), "{failure}");
        let names_option = failure.to_string().contains("sentinel_password");
        assert_eq!(names_option, of_sentinels, "{failure}");
    }
    Ok(())
}

#[test]
fn sentinels_may_give_names_in_place_of_addresses() -> TestResult {
    needs!(Sentinels);
    let group = Group::builder(1).sentinels(3).by_name().start()?;
    let reply = group.sentinels[0].command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks"])?;
    assert_eq!(reply.as_array().unwrap()[0].as_str(), Some("localhost"));

    let locks = builder([group.sentinel_url()]).build()?;
    let _guard = locks.mutex("report").try_lock()?;

    assert!(group.servers[0].exists("report"));
    Ok(())
}

#[test]
fn a_replica_that_sentinels_name_as_the_primary_has_no_vote() -> TestResult {
    needs!(Sentinels);
    let group = Group::start(1)?;
    let port = group.servers[1].port();
    let wrong = [(); 3].map(|()| naming(move || port));
    let locks = builder([url_of(&wrong.each_ref().map(|it| it.addr().to_string()))]).build()?;

    let failure = failure_in_the_end(&locks, |_| true);

    assert_eq!(failure, NodeFailure::Replica);
    Ok(())
}

#[test]
fn a_node_without_a_majority_of_sentinels_loses_its_vote() -> TestResult {
    needs!(Sentinels);
    let group = Group::builder(1).sentinels(3).start()?;
    let proxies: Vec<_> = group
        .sentinels
        .iter()
        .map(|it| Proxy::start(it.addr()).unwrap())
        .collect();
    let sentinels: Vec<_> = proxies.iter().map(|it| it.addr().to_string()).collect();
    let locks = builder([url_of(&sentinels)])
        .ttl(secs(4))
        .response_timeout(secs(1))
        .connect_timeout(ms(400))
        .build()?;
    drop(lock_in_the_end(&locks, "report"));

    // One of them is not missed: the connection goes on.
    proxies[0].black_hole(true);
    eventually("it is asked again", || 2 <= proxies[0].connections());
    drop(locks.mutex("report").try_lock()?);
    assert_eq!(locks.stats().connections, 1);

    proxies[1].black_hole(true);
    let failure = failure_in_the_end(&locks, |it| says(it, "too few members name the same"));
    let silent = failure.to_string().matches("no answer ").count();
    assert_eq!(silent, 2, "{failure}");
    assert!(group.servers[0].is_running());

    proxies[1].black_hole(false);
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}
