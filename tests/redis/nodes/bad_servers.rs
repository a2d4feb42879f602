//! Nodes that are no good: not Redis, not to be logged in to, not a master, not independent, full, busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use devnodes::{FakeServer, PATIENCE, Proxy, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, LockManager};

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
fn g4_one_of_three_servers_with_invalid_replies_costs_no_lock() -> TestResult {
    let servers = Servers::start(2)?;

    // At the same time: the end of a manager waits a while for those that do not answer.
    thread::scope(|scope| {
        for (kind, fake) in FAKES {
            let servers = &servers;
            scope.spawn(move || works_beside(servers, kind, &fake().unwrap()));
        }
    });

    nothing_is_left(&servers);
    Ok(())
}

fn patient(urls: &[String]) -> LockManager {
    builder(urls)
        .ttl(LONG)
        .shutdown_grace(secs(1))
        .build()
        .unwrap()
}

fn works_beside(servers: &Servers, kind: &str, fake: &FakeServer) {
    let urls = [servers[0].url(), fake.url(), servers[1].url()];
    let (locks, other) = (patient(&urls), patient(&urls));
    for _ in 0..5 {
        let guard = locks.mutex(kind).try_lock().unwrap();
        assert_held(&other.mutex(kind).try_lock().unwrap_err());
        guard.extend(LONG).unwrap();
        assert_eq!(guard.release().unwrap().confirmed, 2, "{kind}");
    }
    drop(other.mutex(kind).try_lock().unwrap());
    eventually("it was asked", || 1 <= fake.connections());
}

#[test]
fn g6_a_majority_with_invalid_replies_is_never_a_grant() -> TestResult {
    let servers = Servers::start(1)?;
    for (kind, fake) in FAKES {
        let fakes = [fake()?, fake()?];
        let urls = [fakes[0].url(), servers[0].url(), fakes[1].url()];
        let locks = builder(&urls)
            .connect_timeout(secs(1))
            .response_timeout(secs(2))
            .ttl(LONG)
            .build()?;

        let err = locks.mutex(kind).try_lock().unwrap_err();

        assert_no_quorum(&err);
        for node in [0, 2] {
            let failure = failure(&err, node);
            let fits = match kind {
                "garbage" | "a giant reply" | "a giant array" | "deep arrays"
                | "an endless line" | "pushes only" => {
                    matches!(failure, NodeFailure::Protocol { .. })
                }
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
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn error_replies_to_the_login_have_their_own_failures() -> TestResult {
    for (reply, expected) in [
        ("LOADING Redis is loading the dataset", "loading its data"),
        ("ERR max number of clients reached", "too many clients; "),
        ("BUSY Redis is busy running", "busy with a long script; "),
        ("WRONGPASS invalid username-password", "login refused; "),
    ] {
        let fake = FakeServer::replying(format!("-{reply}\r\n"))?;
        let locks = builder([fake.url()]).build()?;

        let err = locks.mutex("report").try_lock().unwrap_err();

        assert_no_quorum(&err);
        assert!(says(failure(&err, 0), expected), "{err}");
    }
    Ok(())
}

#[test]
fn a_server_in_protected_mode_is_reported_as_such() -> TestResult {
    // It speaks first, as servers do there.
    let fake = FakeServer::start(|conn| {
        let said = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set \
                    for the default user. In this mode connections are only accepted from the loopback interface.\r\n";
        if conn.write(said.as_bytes()) {
            while conn.read_command().is_some() {}
        }
    })?;
    let locks = builder([fake.url()]).build()?;

    let checks = locks.check_nodes();

    let failure = checks[0].failure.as_ref().unwrap();
    assert!(says(failure, "in protected mode"), "{failure}");
    assert_contains(&checks[0], "set a password");
    Ok(())
}

#[test]
fn g4_a_server_with_thousands_of_error_kinds_keeps_its_vote() -> TestResult {
    let servers = Servers::start(1)?;
    let mut anybody = servers[0].client()?;
    for i in 0..2_500 {
        let error = format!("MYERR_{i:06} {}", "x".repeat(20));
        // Servers before 7.0 count by the first word, as it stands in the reply.
        let _refused = anybody.request(&["EVAL", "return redis.error_reply(ARGV[1])", "0", &error]);
    }
    let all = anybody.command(&["INFO", "everything"])?;
    println!("INFO has {} bytes", all.as_bytes().map_or(0, <[u8]>::len));

    let locks = manager(&servers);

    assert_eq!(locks.check_nodes()[0].failure, None);
    drop(locks.mutex("report").try_lock()?);
    Ok(())
}

#[test]
fn g5_passwords_and_users_are_checked_before_any_vote() -> TestResult {
    needs!(Passwords);
    let servers = Servers::start_with(3, |it| it.password("s3cret/+ pw"))?;
    let at = |login: &str| -> Vec<_> {
        servers
            .iter()
            .map(|it| format!("redis://{login}{}", it.addr()))
            .collect()
    };
    for server in &servers {
        server.command(&["ACL", "SETUSER", "ann", "on", ">pw of ann", "~*", "+@all"])?;
        add_user(server, "bob", "~* +@all -evalsha -eval");
        add_user(server, "eve", "~elsewhere* +@all");
        add_user(server, "min", "~* +@all -info -role");
    }

    for urls in [servers.urls(), at("ann:pw%20of%20ann@"), at("min:pw@")] {
        let locks = builder(&urls).build()?;
        drop(locks.mutex("report").try_lock()?);
    }
    for login in ["", ":wrong@", "ann:wrong@", "nobody:s3cret@"] {
        let locks = builder(at(login)).build()?;
        let err = locks.mutex("report").try_lock().unwrap_err();
        assert_no_quorum(&err);
        // The round is over with the second of them.
        let words = match login {
            "" => "a password is required",
            _ => "login refused; ",
        };
        assert!(2 <= failures(&err, words), "{login}: {err:?}");
        assert!(!format!("{err} {err:?}").contains("s3cret"));
    }
    for login in ["bob:pw@", "eve:pw@"] {
        let locks = builder(at(login)).build()?;
        let err = locks.mutex("report").try_lock().unwrap_err();
        assert_no_quorum(&err);
        assert!(2 <= failures(&err, "not permitted"), "{login}: {err:?}");
        assert!(!err.to_string().contains("pw"), "{err}");
    }
    nothing_is_left(&servers);
    Ok(())
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
fn a_database_number_is_where_the_keys_are() -> TestResult {
    needs!(Databases);
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls().iter().map(|it| format!("{it}/3"))).build()?;

    let guard = locks.mutex("report").try_lock()?;

    assert_eq!(servers.holders("report"), 0);
    let there = |server: &Server| {
        let mut client = server.client().unwrap();
        client.command(&["SELECT", "3"]).unwrap();
        client
            .command(&["EXISTS", "report", &fence("report")])
            .unwrap()
            .as_int()
    };
    assert!(2 <= servers.iter().filter(|it| there(it) == Some(2)).count());
    // Database 0 is another lock.
    drop(manager(&servers).mutex("report").try_lock()?);
    drop(guard);
    eventually("only the counters are left", || {
        servers.iter().all(|it| there(it) == Some(1))
    });
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
fn servers_with_too_few_replicas_refuse_writes() -> TestResult {
    needs!(Settings);
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    for i in 0..2 {
        servers[i].command(&["CONFIG", "SET", "min-replicas-to-write", "1"])?;
    }

    let err = locks.mutex("report").try_lock().unwrap_err();
    assert_no_quorum(&err);
    for node in 0..2 {
        assert_matches!(failure(&err, node), NodeFailure::WritesRefused { .. });
    }

    servers[1].command(&["CONFIG", "SET", "min-replicas-to-write", "0"])?;
    drop(locks.mutex("report").try_lock()?);
    nothing_is_left(&servers);
    Ok(())
}

/// As proxies answer that pass on some commands only.
#[test]
fn a_majority_of_unsuitable_proxies_ends_a_wait_at_once() -> TestResult {
    let fake = || {
        FakeServer::start(|conn| {
            while let Some(command) = conn.read_command() {
                let reply = match command[0].as_slice() {
                    b"CLIENT" => "+OK\r\n".to_owned(),
                    other => format!("-ERR unsupported command '{}'\r\n", other.escape_ascii()),
                };
                if !conn.write(reply.as_bytes()) {
                    return;
                }
            }
        })
    };
    let (fakes, server) = ([fake()?, fake()?], Server::start()?);
    let urls = [fakes[0].url(), fakes[1].url(), server.url()];
    let locks = builder(urls).outage_timeout(secs(3_600)).build()?;

    let err = locks.mutex("report").try_lock_for(PATIENCE).unwrap_err();

    assert_no_quorum(&err);
    assert!(says(failure(&err, 0), "a proxy, "), "{err}");
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
fn a_key_of_another_type_is_in_use_and_survives() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let is_hash =
        |i: usize| servers[i].command(&["TYPE", "report"]).unwrap().as_str() == Some("hash");
    servers[0].command(&["HSET", "report", "field", "value"])?;

    // On a minority it is one failed node.
    let guard = locks.mutex("report").try_lock()?;
    guard.extend(secs(20))?;
    guard.release()?;
    assert!(is_hash(0));

    servers[1].command(&["HSET", "report", "field", "value"])?;
    for _ in 0..3 {
        let err = locks.mutex("report").try_lock().unwrap_err();
        assert!(matches!(err, AcquireError::KeyInUse { .. }), "{err:?}");
        for node in 0..2 {
            assert_matches!(
                failure(&err, node),
                NodeFailure::KeyInUse { name: None, .. }
            );
        }
    }
    let err = locks.mutex("report").lock().unwrap_err();
    assert!(matches!(err, AcquireError::KeyInUse { .. }), "{err:?}");
    eventually("nothing of ours is left", || !servers[2].exists("report"));
    assert!(is_hash(0) && is_hash(1));
    Ok(())
}

#[test]
fn servers_busy_with_a_script_fail_as_busy_and_recover() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()).ttl(LONG), 3);
    let endless = [make_busy(&servers[0]), make_busy(&servers[1])];

    let err = locks.mutex("report").try_lock().unwrap_err();
    assert_no_quorum(&err);
    for node in 0..2 {
        assert_matches!(failure(&err, node), NodeFailure::Busy { .. });
    }
    servers.iter().take(2).for_each(end_script);
    drop(endless);

    drop(lock_in_the_end(&locks, "report"));
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn e5_a_release_that_a_busy_server_refuses_is_sent_again() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let locks: LockManager = connected(builder(servers.urls()).ttl(LONG), 3);
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);

    let _endless = make_busy(&servers[0]);
    assert_eq!(guard.release()?.confirmed, 2);
    end_script(&servers[0]);

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
