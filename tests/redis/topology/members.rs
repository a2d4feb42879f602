//! Members of nodes: those that are down, those that lie, and nodes that are given as what they are not.

use std::net::SocketAddr;

use devnodes::{Cluster, FakeServer, Group, Server, SlowNames, eventually, say};
use quorlock::Builder;
use quorlock::error::NodeFailure;

use crate::support::*;
use crate::topology::replicated::failure_in_the_end;

/// A Sentinel, or a server of a cluster, by whose words the server at this port is the primary.
pub(crate) fn naming(port: impl Fn() -> u16 + Send + Sync + 'static) -> FakeServer {
    let serve = move |conn: &mut devnodes::FakeConn| {
        while let Some(command) = conn.read_command() {
            let port = port().to_string();
            let answer = match &command[0][..] {
                b"SENTINEL" => format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()),
                b"CLUSTER" => format!(
                    "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n"
                ),
                _ => "+OK\r\n".to_owned(),
            };
            if !conn.write(answer.as_bytes()) {
                return;
            }
        }
    };
    FakeServer::start(serve).unwrap()
}

/// A node of each kind, of which two members answer.
struct Nodes {
    group: Group,
    cluster: Cluster,
}

impl Nodes {
    fn start() -> Result<Nodes, devnodes::Error> {
        Ok(Nodes {
            group: Group::builder(1).sentinels(2).start()?,
            cluster: Cluster::builder(2).start()?,
        })
    }

    /// Three members each, of which one is this.
    fn urls(&self, bad: &str) -> [String; 3] {
        let places = |servers: &devnodes::Servers| {
            let places = servers.iter().map(|it| it.addr().to_string());
            places.collect::<Vec<_>>().join(",")
        };
        [
            format!(
                "redis+sentinel://{bad},{}/locks",
                places(&self.group.sentinels)
            ),
            format!("redis+cluster://{bad},{}", places(&self.cluster.servers)),
            format!("redis+replicated://{bad},{}", places(&self.group.servers)),
        ]
    }
}

/// All keys are in one slot.
fn pinned(url: &str) -> Builder {
    builder([url]).prefix("{locks}:").connect_timeout(secs(2))
}

#[test]
fn the_first_lock_after_the_start_needs_no_member_that_is_down() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    let (nodes, down) = (Nodes::start()?, Server::start()?);
    down.kill()?;
    let (silent, garbage) = (FakeServer::silent()?, FakeServer::garbage()?);
    let places = [&down.addr(), &silent.addr(), &garbage.addr()].map(SocketAddr::to_string);
    for bad in places
        .into_iter()
        .chain(["no-such-name.invalid".to_owned()])
    {
        for url in nodes.urls(&bad) {
            let locks = pinned(&url).build()?;
            let guard = locks.mutex("report").try_lock();
            drop(guard.map_err(|err| format!("{url}: {err}"))?);
        }
    }
    Ok(())
}

fn places_of(server: &FakeServer) -> String {
    server.addr().to_string()
}

/// The manager is in another process, whose resolver is ours.
#[test]
fn h23_an_unresolved_member_costs_its_own_answer_only() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    needs!(SteppedClocks);
    let folder = tempfile::tempdir()?;
    let (names, nodes) = (SlowNames::create(folder.path())?, Nodes::start()?);
    names.hang()?;
    let child = child_with(
        "topology::members::child_with_a_slow_member_name",
        &nodes.urls("slow"),
        names.environment(),
    );
    assert_eq!(child.hear(), "all nodes vote");
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_with_a_slow_member_name() {
    let Some(urls) = parent_urls() else { return };
    for url in urls {
        let locks = pinned(&url).build().unwrap();
        drop(locks.mutex("report").try_lock().unwrap());
    }
    say("all nodes vote");
}

#[test]
fn one_member_of_three_that_names_a_wrong_server_changes_nothing() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    let (nodes, decoy) = (Nodes::start()?, Server::start()?);
    let port = decoy.port();
    let liar = naming(move || port);
    let owner = nodes.cluster.owner_of("{locks}").unwrap();
    let right = [&nodes.group.servers[0], &nodes.cluster.servers[owner]];
    for (url, server) in nodes.urls(&places_of(&liar)).iter().zip(right) {
        let locks = pinned(url).ttl(secs(4)).response_timeout(secs(1)).build()?;
        let guard = locks.mutex("report").try_lock()?;
        assert!(server.exists("{locks}:report"));
        let asked = liar.commands_seen().len();
        eventually("it is asked again", || {
            asked + 3 < liar.commands_seen().len()
        });
        assert!(guard.is_valid() && server.exists("{locks}:report"));
        assert_eq!(locks.stats().connections, 1, "{url}");
    }
    assert_eq!(decoy.key_count(), 0);
    Ok(())
}

#[test]
fn disagreeing_members_name_no_primary_and_the_error_has_each() -> TestResult {
    needs!(Sentinels);
    let servers = devnodes::Servers::start(3)?;
    let ports = [0, 1, 2].map(|it: usize| servers[it].port());
    let members = ports.map(|port| naming(move || port));
    let places = members.each_ref().map(places_of).join(",");
    for url in [
        format!("redis+sentinel://{places}/locks"),
        format!("redis+cluster://{places}"),
    ] {
        let failure = failure_in_the_end(&pinned(&url).build()?, |_| true);
        assert_matches!(failure, NodeFailure::NoPrimary { .. });
        for (member, port) in members.iter().zip(ports) {
            let row = format!("{}: 127.0.0.1:{port}", member.addr());
            assert!(failure.to_string().contains(&row), "{failure}");
        }
    }
    assert!(servers.iter().all(|it| it.key_count() == 0));
    Ok(())
}

#[test]
fn b3_a_node_given_as_another_kind_is_refused_with_the_right_form() -> TestResult {
    needs!(Sentinels);
    needs!(Clusters);
    let (nodes, single) = (Nodes::start()?, Server::start()?);
    let (servers, sentinels) = (&nodes.group.servers, &nodes.group.sentinels);
    let [watched, clustered, _] = nodes.urls("127.0.0.1:1");
    // The other members are down.
    let single = format!("{},127.0.0.1:1,127.0.0.1:2", single.addr());
    for (url, words, what_to_write) in [
        (servers[1].url(), "a replica; ", "redis+replicated://host"),
        (
            sentinels[0].url(),
            "a Sentinel, which stores nothing; give the address of a primary",
            "redis+sentinel://host",
        ),
        (
            nodes.cluster.servers[0].url(),
            "part of a cluster; ",
            "redis+cluster://host,host and a hash tag",
        ),
        (
            format!("redis+cluster://{single}"),
            "not part of a cluster; ",
            "redis://host",
        ),
        (
            format!("redis+sentinel://{single}/locks"),
            "refused: ERR unknown command",
            "SENTINEL",
        ),
        (
            format!("redis+replicated://{}", sentinels[0].addr()),
            "a Sentinel, ",
            "redis+sentinel://host",
        ),
        (
            watched.replace("/locks", "/other"),
            "its Sentinels know no primary other; ",
            "correct the URL",
        ),
    ] {
        let failure = failure_in_the_end(&pinned(&url).build()?, |_| true);
        assert!(says(&failure, words), "{url}: {failure}");
        assert!(failure.to_string().contains(what_to_write), "{failure}");
    }
    let err = builder([clustered]).build().unwrap_err();
    assert!(err.to_string().contains(".prefix(\"{locks}:\")"), "{err}");
    Ok(())
}
