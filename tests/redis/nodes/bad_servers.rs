//! Nodes that are no good: not Redis, not to be logged in to, not a master, not independent, full, busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use devnodes::{FakeServer, Proxy, Server, Servers, eventually};
use quorlock::AcquireError;
use quorlock::error::{NodeAnswer, NodeFailure};

use crate::nodes::lying_servers::speaking_for;
use crate::support::*;
use devnodes::fake::encoded;

/// Makes servers that are none, all of one kind.
type Fake = fn() -> Result<FakeServer, devnodes::Error>;

const FAKES: [(&str, Fake); 14] = [
    ("garbage", FakeServer::garbage),
    ("silent", FakeServer::silent),
    ("half a reply", FakeServer::half_reply),
    ("half a reply, closed", FakeServer::half_reply_and_close),
    ("a giant reply", || FakeServer::giant_bulk(1 << 40)),
    ("a large reply", || FakeServer::giant_bulk(60_000)),
    ("closed at once", FakeServer::accept_and_close),
    ("always OK", || FakeServer::replying(*b"+OK\r\n")),
    ("always 1", || FakeServer::replying(*b":1\r\n")),
    ("a grant", || {
        FakeServer::replying(*b"*4\r\n:1\r\n:0\r\n:1\r\n:0\r\n")
    }),
    ("a giant array", || {
        FakeServer::replying(*b"*1000000000\r\n")
    }),
    ("deep arrays", || {
        FakeServer::replying("*1\r\n".repeat(100_000).into_bytes())
    }),
    ("an endless line", || {
        FakeServer::replying(vec![b'+'; 1_000_000])
    }),
    ("pushes only", || {
        FakeServer::replying(*b">2\r\n+message\r\n+x\r\n")
    }),
];

#[test]
fn g4_g6_invalid_replies_cost_one_vote_and_are_never_a_grant() -> TestResult {
    let servers = Servers::start(2)?;

    // At the same time: the end of a manager waits a while for those that do not answer.
    thread::scope(|scope| {
        for (kind, fake) in FAKES {
            let servers = &servers;
            scope.spawn(move || {
                works_beside(servers, kind, &fake().unwrap());
                grants_nothing(&servers[0], kind, [fake().unwrap(), fake().unwrap()]);
            });
        }
    });

    nothing_is_left(&servers);
    Ok(())
}

fn works_beside(servers: &Servers, kind: &str, fake: &FakeServer) {
    let urls = [servers[0].url(), fake.url(), servers[1].url()];
    let manager = || {
        let options = builder(&urls).ttl(LONG).shutdown_grace(secs(1));
        options.build().unwrap()
    };
    let (locks, other) = (manager(), manager());
    for _ in 0..5 {
        let guard = locks.mutex(kind).try_lock().unwrap();
        assert_held(&other.mutex(kind).try_lock().unwrap_err());
        guard.extend(LONG).unwrap();
        assert_eq!(guard.release().unwrap().confirmed, 2, "{kind}");
    }
    drop(other.mutex(kind).try_lock().unwrap());
    eventually("it was asked", || 1 <= fake.connections());
}

fn grants_nothing(server: &Server, kind: &str, fakes: [FakeServer; 2]) {
    let urls = [fakes[0].url(), server.url(), fakes[1].url()];
    let options = builder(&urls).connect_timeout(secs(1)).ttl(LONG);
    let locks = options.response_timeout(secs(2)).build().unwrap();

    let err = locks.mutex(kind).try_lock().unwrap_err();

    assert_no_quorum(&err);
    for failure in [0, 2].map(|node| failure(&err, node)) {
        let fits = match kind {
            "garbage" | "a giant reply" | "a giant array" | "deep arrays" | "an endless line"
            | "pushes only" => matches!(failure, NodeFailure::Protocol { .. }),
            "half a reply, closed" | "closed at once" => {
                matches!(failure, NodeFailure::Disconnected { .. })
            }
            "silent" | "half a reply" => {
                matches!(failure, NodeFailure::Connect { .. } | NodeFailure::TimedOut)
            }
            _ => true,
        };
        assert!(fits, "{kind}: {failure:?}");
        assert!(failure.to_string().len() < 400, "{kind}: a long message");
    }
}

#[test]
fn a_password_that_is_changed_later_counts_from_the_next_connection_on() -> TestResult {
    needs!(Passwords);
    let (servers, locks) = start_connected(1, builder);

    servers[0].command(&["CONFIG", "SET", "requirepass", "later"])?;
    drop(locks.mutex("report").try_lock()?);
    servers[0].command(&["CLIENT", "KILL", "SKIPME", "yes"])?;
    let err = error_in_the_end(&locks, "report", |it| {
        says(failure(it, 0), "a password is required")
    });
    assert_no_quorum(&err);

    servers[0].command(&["CONFIG", "SET", "requirepass", ""])?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn b7_a_database_number_written_in_either_way_is_where_the_keys_are() -> TestResult {
    needs!(Databases);
    let servers = Servers::start(3)?;
    let with = |end: &str| {
        let urls = servers.iter().map(|it| it.url() + end);
        builder(urls).build().unwrap()
    };
    let locks = with("/3");

    let guard = locks.mutex("report").try_lock()?;

    assert_held(&with("?db=3").mutex("report").try_lock().unwrap_err());
    assert_eq!(servers.holders("report"), 0);
    // Database 0 is another lock.
    drop(manager(&servers).mutex("report").try_lock()?);
    drop(guard);
    drop(lock_in_the_end(&with("?db=3"), "report"));
    Ok(())
}

#[test]
fn unix_sockets_work_like_any_other_address() -> TestResult {
    needs!(UnixSockets);
    let servers = Servers::start_with(3, |it| it.unix_socket().password("pw"))?;
    let urls: Vec<_> = servers.iter().map(Server::unix_url).collect();
    let (by_path, by_port) = (builder(&urls).build()?, manager(&servers));

    let guard = by_path.mutex("report").try_lock()?;
    assert_held(&by_port.mutex("report").try_lock().unwrap_err());
    guard.extend(secs(20))?;
    guard.release()?;
    nothing_is_left(&servers);

    servers[0].kill()?;
    servers[1].kill()?;
    let err = error_in_the_end(&by_path, "report", |it| {
        matches!(it.nodes(), [a, b, _] if [a, b].into_iter().all(|it| {
            matches!(it.answer, NodeAnswer::Failed(NodeFailure::Connect { .. }))
        }))
    });
    assert!(err.to_string().contains("server.sock"), "{err}");
    Ok(())
}

#[test]
fn b2_replicas_have_no_vote_even_if_writable() -> TestResult {
    needs!(Replicas);
    let servers = Servers::start(3)?;
    let master = Server::start()?;
    let before = connected(builder(servers.urls()).ttl(LONG), 3);
    let replicate = ["REPLICAOF", "127.0.0.1", &master.port().to_string()];
    servers[0].command(&replicate)?;
    servers[1].command(&replicate)?;

    let err = manager(&servers).mutex("report").try_lock().unwrap_err();
    assert_failed(&err, &[0, 1], &NodeFailure::Replica);
    // Also where the connection is older than the change.
    let err = before.mutex("report").try_lock().unwrap_err();
    assert_failed(&err, &[0, 1], &NodeFailure::Replica);

    servers[0].command(&["CONFIG", "SET", "replica-read-only", "no"])?;
    servers[1].command(&["CONFIG", "SET", "replica-read-only", "no"])?;
    let err = manager(&servers).mutex("report").try_lock().unwrap_err();
    assert_failed(&err, &[0, 1], &NodeFailure::Replica);
    eventually("nothing of it is left", || {
        lock_keys(&servers[2]).is_empty()
    });

    servers[0].command(&["REPLICAOF", "NO", "ONE"])?;
    drop(lock_in_the_end(&before, "report"));
    Ok(())
}

#[test]
fn e5_servers_out_of_memory_grant_nothing_and_still_release_and_extend() -> TestResult {
    needs!(Settings);
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);

    command_all(&servers, &["CONFIG", "SET", "maxmemory", "1"]);

    let err = locks.mutex("other").try_lock().unwrap_err();
    assert_no_quorum(&err);
    assert!(2 <= failures(&err, "out of memory"), "{err:?}");
    guard.extend(LONG)?;
    assert!(guard.is_valid());
    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn b1_one_server_behind_two_addresses_has_one_vote() -> TestResult {
    let servers = Servers::start(2)?;
    let proxy = Proxy::start(servers[0].addr())?;
    let localhost = format!("redis://localhost:{}", servers[0].port());
    for double in [proxy.url(), localhost] {
        let urls = [servers[0].url(), double.clone(), servers[1].url()];
        let locks = builder(&urls).build()?;

        // The two real ones are a majority, as if the third were down.
        let guard = lock_in_the_end(&locks, "report");
        eventually("both hold it", || servers.holders("report") == 2);
        guard.release()?;

        servers[1].pause()?;
        let impatient = impatient(urls).connect_timeout(ms(500)).build()?;
        assert_no_quorum(&error_in_the_end(&impatient, "report", has_double));
        servers[1].resume()?;
        nothing_is_left(&servers);
    }
    Ok(())
}

fn has_double(err: &AcquireError) -> bool {
    let doubles = err
        .nodes()
        .iter()
        .filter(|it| matches!(&it.answer, NodeAnswer::Failed(NodeFailure::SameServer { other }) if *other != it.node));
    doubles.count() == 1
}

#[test]
fn a_key_of_another_type_costs_one_vote_on_a_minority_and_survives() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let is_hash = |server: &Server| {
        let kind = server.command(&["TYPE", "report"]).unwrap();
        kind.as_str() == Some("hash")
    };
    let add = |server: &Server| server.command(&["HSET", "report", "field", "value"]);
    add(&servers[0])?;

    let guard = locks.mutex("report").try_lock()?;
    guard.extend(secs(20))?;
    guard.release()?;

    add(&servers[1])?;
    let err = locks.mutex("report").lock().unwrap_err();
    assert!(matches!(err, AcquireError::KeyInUse { .. }), "{err:?}");
    eventually("nothing of ours is left", || !servers[2].exists("report"));
    assert!(is_hash(&servers[0]) && is_hash(&servers[1]));
    Ok(())
}

#[test]
fn e5_a_busy_server_fails_as_busy_and_gets_its_refused_release_again() -> TestResult {
    needs!(Settings);
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);

    let _endless = [make_busy(&servers[0]), make_busy(&servers[1])];
    let err = locks.mutex("other").try_lock().unwrap_err();
    assert_no_quorum(&err);
    for node in 0..2 {
        assert_matches!(failure(&err, node), NodeFailure::Busy { .. });
    }
    end_script(&servers[0]);
    assert_eq!(guard.release()?.confirmed, 2);
    end_script(&servers[1]);

    drop(lock_in_the_end(&locks, "other"));
    nothing_is_left(&servers);
    Ok(())
}

/// As where a proxy loses its place: each answer behind it would be that of the command before.
#[test]
fn h18_answers_out_of_step_cost_the_connection_and_no_round() -> TestResult {
    let servers = Servers::start(3)?;
    let [once, seen] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let fake = speaking_for(&servers[0], {
        let (once, seen) = (Arc::clone(&once), Arc::clone(&seen));
        move |to, command| {
            if command[0] != b"EVALSHA" || !once.load(Ordering::SeqCst) {
                return None;
            }
            let reply = to.request(command).unwrap();
            // A release.
            if reply.as_int() != Some(1) {
                return Some(encoded(&reply));
            }
            once.store(false, Ordering::SeqCst);
            seen.store(true, Ordering::SeqCst);
            Some(b":1\r\n:1\r\n".to_vec())
        }
    });
    let locks = connected(
        builder([fake.url(), servers[1].url(), servers[2].url()]).ttl(LONG),
        3,
    );
    drop(lock_in_the_end(&locks, "report"));
    let before = locks.stats();
    once.store(true, Ordering::SeqCst);
    eventually("an answer comes twice", || {
        drop(locks.mutex("report").try_lock().unwrap());
        seen.load(Ordering::SeqCst)
    });

    eventually("the connection is another one", || {
        drop(locks.mutex("report").try_lock().unwrap());
        before.connections < locks.stats().connections
    });

    for _ in 0..20 {
        let guard = locks.mutex("report").try_lock()?;
        eventually("it is on all nodes", || servers.holders("report") == 3);
        guard.release()?;
        nothing_is_left(&servers);
    }
    assert_eq!(locks.stats().connections, before.connections + 1);
    Ok(())
}

/// Runs a script that does not end; returns once the server answers everybody that it is busy.
fn make_busy(server: &Server) -> devnodes::Client {
    server
        .command(&["CONFIG", "SET", "lua-time-limit", "20"])
        .unwrap();
    let mut client = server.client().unwrap();
    client.send(&["EVAL", "while true do end", "0"]).unwrap();
    eventually("it is busy", || server.command(&["PING"]).is_err());
    client
}

fn end_script(server: &Server) {
    server.command(&["SCRIPT", "KILL"]).unwrap();
    eventually("it has ended", || server.command(&["PING"]).is_ok());
}
