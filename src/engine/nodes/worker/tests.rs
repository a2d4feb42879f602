//! A worker whose turns are taken one by one, with a socket of the system.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::engine::nodes::deliver;
use crate::engine::nodes::link::Filled;
use crate::sys::Socket;
use crate::wire::{Command, Conn};

/// A node that was asked twice, the worker that has its connection, and the other end of that.
fn asked_twice() -> (Arc<Server>, Worker, std::net::TcpStream) {
    let (node, poll) = Server::unattended(Duration::from_millis(100));
    let (node, now) = (Arc::new(node), time::tick());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = Socket::connect_tcp(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    socket.register(poll.registry(), SOCKET).unwrap();
    node.open(socket, Conn::ready(false), None, [], now);
    let ask = || Some(Job::of_connection(Arc::new(Command::time())));
    node.give([ask(), ask()], now, true);
    let mut worker = worker(&node, poll);
    worker.phase = WorkerPhase::Open;
    worker.facts_at = time::deadline(FACTS_EVERY);
    (node, worker, server)
}

fn worker(of: &Arc<Server>, poll: Poll) -> Worker {
    let address = NodeAddress::parse("redis://a").unwrap();
    let config = Config::default();
    let wake = Arc::new(|| {});
    let primary = Primary::start(address, of.id, &config, wake, &mut Vec::new()).unwrap();
    let run_ids = Arc::new(Mutex::new(RunIds::new(1, Duration::ZERO)));
    Worker::new(Arc::clone(of), primary, &config, run_ids, poll)
}

#[test]
fn h9_a_connection_is_not_given_up_while_the_last_that_has_come_on_it_is_handed_out() {
    let (node, mut worker, mut server) = asked_twice();
    let late = time::tick() + MUTE_MIN * 10;
    server
        .write_all(b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n")
        .unwrap();
    assert!(node.link.take().is_some());
    let batch = loop {
        if let Some(batch) = node.link.turn(Driver::Caller).unwrap().batch {
            break batch;
        }
    };
    assert_eq!(node.link.load.in_flight(), 1, "the other one has no answer");

    let mut driven = Driven::new(Arc::clone(&node), None);
    driven.readable = false;
    for _ in 0..3 {
        // It does not sleep for long.
        node.link.wake_worker();
        let end = worker.prepare(&node, &mut driven, late);
        assert_eq!(
            end,
            Ok(()),
            "the next connection would begin under the caller"
        );
    }
    node.link.end_turn(Driver::Caller, batch);

    let end = worker.prepare(&node, &mut driven, late);
    assert!(
        matches!(end, Err(NodeFailure::Disconnected { .. })),
        "{end:?}"
    );
}

#[test]
fn a_notice_that_a_caller_reads_for_a_call_that_waits_wakes_no_worker() {
    let (node, mut worker, mut server) = asked_twice();
    assert!(node.link.take().is_some());
    node.fall_asleep();

    server
        .write_all(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$6\r\nreport\r\n")
        .unwrap();
    while deliver::turn(&node, Driver::Caller).unwrap() == Filled::Nothing {}

    worker
        .poll
        .poll(&mut worker.events, Some(Duration::ZERO))
        .unwrap();
    assert!(worker.events.is_empty());
}

#[test]
fn b5_what_a_login_has_asked_is_asked_again_every_minute() {
    let (node, mut worker, server) = asked_twice();
    let mut driven = Driven::new(Arc::clone(&node), None);
    server.set_nonblocking(true).unwrap();
    let mut asked = |after: Duration| {
        node.link.wake_worker();
        worker
            .prepare(&node, &mut driven, time::tick() + after)
            .unwrap();
        let mut bytes = vec![0; 4096];
        let read = (&server).read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).contains("look")
    };
    assert!(!asked(FACTS_EVERY / 2));
    assert!(asked(FACTS_EVERY));
    assert!(!asked(FACTS_EVERY * 3 / 2));
    assert!(asked(FACTS_EVERY * 3));
}
