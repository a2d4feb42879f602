//! A real server: started, killed, restarted.

use std::thread;

use devnodes::{Server, eventually};

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
fn waits_for_its_port_while_another_process_has_it() {
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
fn a_server_that_cannot_start_shows_its_log() {
    let error = Server::builder()
        .arg("--maxmemory", "nonsense")
        .start()
        .unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
}
