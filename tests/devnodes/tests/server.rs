//! A real server: started, asked, paused, killed, restarted.

use std::thread;

use devnodes::{PATIENCE, Reply, Server, Servers, eventually};

#[test]
fn answers_commands() {
    let server = Server::start().unwrap();
    assert!(server.is_running());
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(
        server.command(&["SET", "k", "v", "PX", "60000"]).unwrap(),
        Reply::Simple("OK".into())
    );
    assert_eq!(server.get("k"), Some(b"v".to_vec()));
    assert_eq!(server.get("none"), None);
    assert!(server.exists(b"k"));
    assert!((1..=60_000).contains(&server.pttl("k")));
    assert_eq!(server.pttl("none"), -2);
    assert_eq!(server.key_count(), 1);
    assert_eq!(server.info("process_id"), Some(server.pid().to_string()));
    assert_eq!(server.info("no_such_field"), None);
    assert!(
        server.log().contains("Ready to accept connections"),
        "{}",
        server.log()
    );

    let refused = server.command(&["INCR", "k"]).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("INCR was answered: ERR value is not an integer"),
        "{refused}"
    );
    assert_eq!(
        server
            .command(&["EVAL", "return {1, false, {ARGV[1]}}", "0", "a"])
            .unwrap(),
        {
            Reply::Array(vec![
                Reply::Int(1),
                Reply::Nil,
                Reply::Array(vec![Reply::Bulk(b"a".to_vec())]),
            ])
        }
    );
}

#[test]
fn its_own_connection_survives_being_closed() {
    let server = Server::start().unwrap();
    server.command(&["SET", "k", "v"]).unwrap();
    let mut other = server.client().unwrap();
    other
        .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .unwrap();
    assert_eq!(server.get("k"), Some(b"v".to_vec()));
}

#[test]
fn pauses_and_resumes() {
    let server = Server::start().unwrap();
    let mut client = server.client().unwrap();
    server.pause().unwrap();
    assert!(server.is_running() && server.is_paused());
    client.send(&["SET", "k", "v"]).unwrap();
    server.resume().unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Simple("OK".into()));
    assert!(!server.is_paused());
}

#[test]
fn restarts_empty_on_the_same_port_from_any_state() {
    let server = Server::start().unwrap();
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "k", "v"]).unwrap();
    server.restart().unwrap();
    assert_eq!((server.port(), server.key_count()), (port, 0));
    assert_ne!(server.pid(), pid);

    server.command(&["SET", "k", "v"]).unwrap();
    server.pause().unwrap();
    server.restart().unwrap();
    assert!(!server.is_paused());
    assert_eq!(server.key_count(), 0);

    server.kill().unwrap();
    server.kill().unwrap();
    assert!(!server.is_running());
    assert!(server.pause().is_err());
    assert!(server.command(&["PING"]).is_err());
    server.restart().unwrap();
    assert!(server.is_running());
    assert_eq!(server.key_count(), 0);
}

#[test]
fn waits_for_its_port_when_somebody_else_has_it() {
    let server = Server::start().unwrap();
    server.kill().unwrap();
    let other = std::net::TcpListener::bind(server.addr()).unwrap();
    thread::scope(|scope| {
        let restarting = scope.spawn(|| server.restart());
        eventually("the server cannot bind", || {
            server.log().contains("Address already in use")
        });
        drop(other);
        restarting.join().unwrap().unwrap();
    });
    assert_eq!(server.key_count(), 0);
}

#[test]
fn notices_that_a_server_ends_by_itself() {
    let server = Server::start().unwrap();
    server.command(&["SHUTDOWN", "NOSAVE"]).unwrap_err();
    eventually("the server ends", || !server.is_running());
    server.restart().unwrap();
    assert_eq!(server.key_count(), 0);
}

#[test]
fn takes_options_a_password_and_a_unix_socket() {
    let server = Server::builder()
        .arg("--maxmemory", "8mb")
        .password("p/w")
        .unix_socket()
        .start()
        .unwrap();
    assert_eq!(
        server.url(),
        format!("redis://:p%2Fw@127.0.0.1:{}", server.port())
    );
    let url = server.unix_url();
    let path = url
        .strip_prefix("redis+unix://")
        .unwrap()
        .strip_suffix("?pass=p%2Fw")
        .unwrap();
    std::os::unix::net::UnixStream::connect(path).unwrap();
    assert_eq!(server.info("maxmemory").as_deref(), Some("8388608"));
    assert_eq!(
        server
            .command(&["CONFIG", "GET", "save"])
            .unwrap()
            .as_array()
            .unwrap()[1]
            .as_str(),
        Some("")
    );

    let mut stranger = devnodes::Client::connect(server.addr(), None).unwrap();
    assert!(
        matches!(stranger.request(&["PING"]).unwrap(), Reply::Error(text) if text.starts_with("NOAUTH"))
    );
    server.restart().unwrap();
    assert_eq!(server.key_count(), 0);
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    let error = Server::builder()
        .arg("--maxmemory", "nonsense")
        .start()
        .unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
}

#[test]
fn removes_its_folder() {
    let server = Server::builder().unix_socket().start().unwrap();
    let url = server.unix_url();
    let folder = std::path::Path::new(url.strip_prefix("redis+unix://").unwrap())
        .parent()
        .unwrap()
        .to_owned();
    assert!(folder.is_dir());
    drop(server);
    assert!(!folder.exists());
}

#[test]
fn counts_holders() {
    let servers = Servers::start(3).unwrap();
    assert_eq!(
        (servers.len(), servers.urls().len(), servers.iter().count()),
        (3, 3, 3)
    );
    assert_eq!(servers.holders("k"), 0);
    for server in &servers {
        server.command(&["SET", "k", "v"]).unwrap();
    }
    assert_eq!(servers.holders("k"), 3);
    servers[0].pause().unwrap();
    servers[1].kill().unwrap();
    assert_eq!(servers.holders("k"), 1);

    thread::scope(|scope| {
        let waiting = scope.spawn(|| servers.wait_until_free("k"));
        servers[2].command(&["DEL", "k"]).unwrap();
        waiting.join().unwrap().unwrap();
    });
    servers[0].resume().unwrap();
    assert_eq!(servers.holders("k"), 1);
}

#[test]
fn many_start_at_once() {
    let servers = Servers::start_with(12, |b| b.password("pw")).unwrap();
    let ports: std::collections::HashSet<u16> = servers.iter().map(Server::port).collect();
    assert_eq!(ports.len(), 12);
    assert!(servers.iter().all(Server::is_running));
}

#[test]
fn is_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Server>();
    shared::<Servers>();
    shared::<devnodes::Proxy>();
    shared::<devnodes::FakeServer>();
    assert!(PATIENCE.as_secs() >= 30);
}
