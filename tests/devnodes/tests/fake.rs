//! The servers that are none.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use devnodes::{Client, Error, FakeServer, Reply, eventually};

fn connect(fake: &FakeServer) -> Client {
    Client::connect(fake.addr(), None).unwrap()
}

fn ping(fake: &FakeServer) -> Result<Reply, Error> {
    connect(fake).request(&["PING"])
}

#[test]
fn answers_from_a_closure() {
    let fake = FakeServer::start(|conn| {
        while let Some(command) = conn.read_command() {
            let reply = if command[0] == b"PING" {
                b"+PONG\r\n".as_slice()
            } else {
                b"-ERR no\r\n"
            };
            conn.write(reply);
        }
    })
    .unwrap();
    assert_eq!(fake.url(), format!("redis://{}", fake.addr()));
    let mut client = connect(&fake);
    assert_eq!(
        client.command(&["PING"]).unwrap(),
        Reply::Simple("PONG".into())
    );
    assert_eq!(
        client
            .request(&[b"SET".as_slice(), b"\r\n\0", b""])
            .unwrap(),
        Reply::Error("ERR no".into())
    );
    let seen = fake.commands_seen();
    assert_eq!(
        seen,
        [
            vec![b"PING".to_vec()],
            vec![b"SET".to_vec(), b"\r\n\0".to_vec(), b"".to_vec()]
        ]
    );
    assert_eq!(fake.connections(), 1);
}

#[test]
fn replying() {
    let fake = FakeServer::replying(*b"-READONLY no\r\n").unwrap();
    for _ in 0..2 {
        assert_eq!(ping(&fake).unwrap(), Reply::Error("READONLY no".into()));
    }
    assert_eq!(fake.commands_seen().len(), 2);
}

#[test]
fn silent_and_half() {
    for fake in [
        FakeServer::silent().unwrap(),
        FakeServer::half_reply().unwrap(),
    ] {
        let mut client = connect(&fake);
        client.set_timeout(Duration::from_millis(50)).unwrap();
        let error = client.request(&["PING"]).unwrap_err();
        assert!(
            error.to_string().starts_with("reading a"),
            "a time-out, not an end: {error}"
        );
        eventually("the command is seen", || fake.commands_seen().len() == 1);
    }
    let error = ping(&FakeServer::half_reply_and_close().unwrap()).unwrap_err();
    assert!(
        error.to_string().starts_with("reading a bulk reply"),
        "{error}"
    );
}

#[test]
fn garbage() {
    let error = ping(&FakeServer::garbage().unwrap()).unwrap_err();
    assert!(error.to_string().contains("not a RESP2 reply"), "{error}");
}

#[test]
fn giant_bulk() {
    let small = FakeServer::giant_bulk(200_000).unwrap();
    assert_eq!(ping(&small).unwrap(), Reply::Bulk(vec![0; 200_000]));

    let giant = FakeServer::giant_bulk(1 << 40).unwrap();
    let mut stream = TcpStream::connect(giant.addr()).unwrap();
    std::io::Write::write_all(&mut stream, b"*1\r\n$4\r\nPING\r\n").unwrap();
    let mut read = vec![0; 1_000_000];
    stream.read_exact(&mut read).unwrap();
    assert!(read.starts_with(b"$1099511627776\r\n\0\0"));
}

#[test]
fn accept_and_close() {
    let fake = FakeServer::accept_and_close().unwrap();
    assert!(ping(&fake).is_err());
    eventually("it is counted", || fake.connections() == 1);
    assert!(fake.commands_seen().is_empty());
}

#[test]
fn dropping_closes_connections() {
    let fake = FakeServer::silent().unwrap();
    let mut client = connect(&fake);
    let addr = fake.addr();
    client.send(&["PING"]).unwrap();
    eventually("it is served", || fake.commands_seen().len() == 1);
    drop(fake);
    assert!(client.receive().is_err());
    assert!(Client::connect(addr, None).is_err());
}
