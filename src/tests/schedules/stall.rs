//! Who calls a node silent while others read.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{ms, patiently, spawn};
use crate::engine::nodes::deliver;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::link::Driver;
use crate::engine::nodes::server::Server;
use crate::sys::checked::{Peer, Sleeper, accept};
use crate::sys::{SOCKET, Socket};
use crate::time;
use crate::wire::{Command, Conn};

const PORT: u16 = 7000;

/// A node without a worker, that has sent one command, and the other end of its connection.
fn node() -> (Arc<Server>, Peer) {
    let (node, poll) = Server::unattended(ms(100));
    accept(PORT, &Sleeper::new());
    let mut socket = Socket::connect_tcp(SocketAddr::from(([127, 0, 0, 1], PORT))).unwrap();
    socket.register(poll.registry(), SOCKET).unwrap();
    let peer = accept(PORT, &Sleeper::new()).pop().unwrap();
    node.open(socket, Conn::ready(false), None, [], time::tick());
    node.give(
        [Some(Job::of_connection(Arc::new(Command::time()))), None],
        time::tick(),
        true,
    );
    (Arc::new(node), peer)
}

#[test]
fn h6_a_node_whose_answer_is_being_read_is_not_called_silent() {
    patiently(4_000, || {
        let (node, peer) = node();
        let late = time::tick() + ms(1_000);
        assert!(node.is_stalled(late), "it has not answered");
        peer.write(b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n");

        let theirs = Arc::clone(&node);
        let reader = spawn("reader", move || {
            deliver::turn(&theirs, Driver::Worker).unwrap();
        });
        for _ in 0..3 {
            assert!(!node.is_stalled(late));
        }

        reader.join();
        assert!(!node.is_stalled(late));
    });
}
