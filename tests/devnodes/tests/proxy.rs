//! Every way in which the proxy misbehaves, in front of a real server.

use std::time::{Duration, Instant};

use devnodes::{Client, Proxy, Reply, Server, eventually};

/// For "nothing comes": long enough that an answer on loopback would have come, and the only waiting here.
const SHORT: Duration = Duration::from_millis(50);

fn both() -> (Server, Proxy) {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    (server, proxy)
}

fn connect(proxy: &Proxy) -> Client {
    Client::connect(proxy.addr(), None).unwrap()
}

fn pong() -> Reply {
    Reply::Simple("PONG".into())
}

#[track_caller]
fn assert_silent(client: &mut Client) {
    client.set_timeout(SHORT).unwrap();
    let error = client.receive().unwrap_err();
    assert!(
        error.to_string().contains("reading a reply"),
        "a time-out, not an end: {error}"
    );
    client.set_timeout(devnodes::PATIENCE).unwrap();
}

#[test]
fn passes_bytes_on_and_counts_connections() {
    let (_server, proxy) = both();
    assert_eq!(proxy.url(), format!("redis://{}", proxy.addr()));
    let mut client = connect(&proxy);
    let big = vec![b'x'; 3_000_000];
    client.command(&[b"SET".as_slice(), b"k", &big]).unwrap();
    assert_eq!(client.command(&["GET", "k"]).unwrap(), Reply::Bulk(big));
    assert_eq!((proxy.connections(), proxy.open_connections()), (1, 1));
    drop(client);
    eventually("the connection is closed", || proxy.open_connections() == 0);
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn delays_replies_without_adding_up() {
    let (_server, proxy) = both();
    let mut client = connect(&proxy);
    proxy.set_delay(Duration::from_millis(60));
    let start = Instant::now();
    client.command(&["PING"]).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(60));

    proxy.set_delay(Duration::from_secs(3600));
    client.send(&["PING"]).unwrap();
    assert_silent(&mut client);
    proxy.set_delay(Duration::ZERO); // reaches what is waiting already
    assert_eq!(client.receive().unwrap(), pong());
}

#[test]
fn holds_replies_of_commands_that_were_carried_out() {
    let (server, proxy) = both();
    let mut client = connect(&proxy);
    proxy.hold_replies();
    client.send(&["SET", "k", "v"]).unwrap();
    eventually("the server has the key", || server.exists("k"));
    assert_silent(&mut client);
    proxy.release_replies();
    assert_eq!(client.receive().unwrap(), Reply::Simple("OK".into()));
}

#[test]
fn holds_requests_and_delivers_them_after_the_client_has_gone() {
    let (server, proxy) = both();
    let mut client = connect(&proxy);
    client.command(&["PING"]).unwrap();
    proxy.hold_requests();
    client.send(&["SET", "k", "v"]).unwrap();
    assert_silent(&mut client);
    drop(client);
    eventually("the client has gone", || proxy.open_connections() == 0);
    assert!(!server.exists("k"));
    proxy.release_requests();
    eventually("the late request arrives", || server.exists("k"));
}

#[test]
fn cuts_connections_and_drops_held_requests() {
    let (server, proxy) = both();
    let (mut one, mut two) = (connect(&proxy), connect(&proxy));
    one.command(&["PING"]).unwrap();
    two.command(&["PING"]).unwrap();
    proxy.hold_requests();
    one.send(&["SET", "k", "v"]).unwrap();
    assert_silent(&mut one);
    proxy.cut();
    assert_eq!(proxy.open_connections(), 0);
    assert!(one.receive().is_err());
    assert!(two.receive().is_err());
    proxy.release_requests();
    assert_eq!(connect(&proxy).command(&["PING"]).unwrap(), pong());
    assert!(!server.exists("k"));
}

#[test]
fn refuses_new_connections_only() {
    let (_server, proxy) = both();
    let mut old = connect(&proxy);
    old.command(&["PING"]).unwrap();
    proxy.refuse(true);
    assert!(connect(&proxy).command(&["PING"]).is_err());
    assert_eq!(old.command(&["PING"]).unwrap(), pong());
    proxy.refuse(false);
    assert_eq!(connect(&proxy).command(&["PING"]).unwrap(), pong());
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn a_black_hole_drops_bytes_and_keeps_connections_open() {
    let (server, proxy) = both();
    let mut old = connect(&proxy);
    old.command(&["PING"]).unwrap();
    proxy.black_hole(true);
    let mut new = connect(&proxy);
    for client in [&mut old, &mut new] {
        client.send(&["SET", "k", "v"]).unwrap();
        assert_silent(client);
    }
    assert_eq!(proxy.open_connections(), 2);
    proxy.black_hole(false);
    assert_silent(&mut old);
    assert_eq!(connect(&proxy).command(&["PING"]).unwrap(), pong());
    assert!(!server.exists("k"));
    drop((old, new));
    eventually("all are closed", || proxy.open_connections() == 0);
}

#[test]
fn trickles_replies() {
    let (_server, proxy) = both();
    let mut client = connect(&proxy);
    proxy.trickle(Duration::from_millis(3));
    let start = Instant::now();
    assert_eq!(client.command(&["PING"]).unwrap(), pong());
    assert!(start.elapsed() >= Duration::from_millis(6 * 3)); // +PONG\r\n: six pauses before the last byte
    proxy.trickle(Duration::ZERO);
    assert_eq!(client.command(&["PING"]).unwrap(), pong());
}

#[test]
fn a_narrow_line_takes_its_time_for_every_byte() {
    let (_server, proxy) = both();
    let mut client = connect(&proxy);
    proxy.narrow(1000);
    let start = Instant::now();
    for _ in 0..10 {
        client.send(&["PING"]).unwrap();
    }
    for _ in 0..10 {
        assert_eq!(client.receive().unwrap(), pong());
    }
    assert!(start.elapsed() >= Duration::from_millis(140)); // ten times *1\r\n$4\r\nPING\r\n
    proxy.narrow(0);
    assert_eq!(client.command(&["PING"]).unwrap(), pong());
}

#[test]
fn dropping_closes_everything() {
    let (_server, proxy) = both();
    let mut client = connect(&proxy);
    client.command(&["PING"]).unwrap();
    let addr = proxy.addr();
    proxy.hold_replies();
    client.send(&["PING"]).unwrap();
    drop(proxy);
    assert!(client.receive().is_err());
    assert!(Client::connect(addr, None).is_err());
}
