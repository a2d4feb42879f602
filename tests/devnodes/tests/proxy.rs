//! How the proxy misbehaves where a test of locks would not notice that it does not.

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
    let error = client.receive().unwrap_err().to_string();
    let is_open = error.contains("reading a reply");
    assert!(is_open, "a time-out, not an end: {error}");
    client.set_timeout(devnodes::PATIENCE).unwrap();
}

#[test]
fn bytes_pass_slowly_and_all_of_them() {
    let (_server, proxy) = both();
    let mut client = connect(&proxy);
    let mut ten_take = |least: u64| {
        let start = Instant::now();
        (0..10).for_each(|_| client.send(&["PING"]).unwrap());
        (0..10).for_each(|_| assert_eq!(client.receive().unwrap(), pong()));
        assert!(start.elapsed() >= Duration::from_millis(least));
    };
    proxy.trickle(Duration::from_millis(3));
    ten_take(69 * 3); // ten times +PONG\r\n: a pause before each byte but the first
    proxy.trickle(Duration::ZERO);
    proxy.narrow(1000);
    ten_take(140); // ten times *1\r\n$4\r\nPING\r\n
    proxy.narrow(0);
    proxy.set_delay(Duration::from_millis(60));
    ten_take(60);
    proxy.set_delay(Duration::from_secs(3600));
    client.send(&["PING"]).unwrap();
    assert_silent(&mut client);
    proxy.set_delay(Duration::ZERO); // reaches what is waiting already
    assert_eq!(client.receive().unwrap(), pong());
    let big = vec![b'x'; 3_000_000];
    client.command(&[b"SET".as_slice(), b"k", &big]).unwrap();
    assert_eq!(client.command(&["GET", "k"]).unwrap(), Reply::Bulk(big));
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn held_requests_arrive_after_their_client_has_gone_unless_they_were_cut() {
    let (server, proxy) = both();
    for is_cut in [false, true] {
        let mut client = connect(&proxy);
        client.command(&["SET", "k", "old"]).unwrap();
        proxy.hold_requests();
        client.send(&["SET", "k", "new"]).unwrap();
        assert_silent(&mut client);
        if is_cut {
            proxy.cut();
            assert!(client.receive().is_err());
        }
        drop(client);
        assert_eq!(server.get("k").unwrap(), b"old");
        proxy.release_requests();
        if is_cut {
            assert_eq!(connect(&proxy).command(&["PING"]).unwrap(), pong());
            assert_eq!(server.get("k").unwrap(), b"old");
        } else {
            let arrives = || server.get("k").unwrap() == b"new";
            eventually("the late request arrives", arrives);
        }
    }
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
    proxy.black_hole(false);
    assert_silent(&mut old);
    assert_eq!(connect(&proxy).command(&["PING"]).unwrap(), pong());
    assert!(!server.exists("k"));
}
