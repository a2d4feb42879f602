//! Who calls a node silent while others read.

use std::sync::Arc;

use super::{ms, patiently, spawn};
use crate::answer::ServerInfo;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::node::Node;
use crate::engine::nodes::worker::SOCKET;
use crate::sys::Socket;
use crate::sys::checked::{Peer, Sleeper, accept};
use crate::time;
use crate::wire::Command;

const PORT: u16 = 7000;

/// A node without a worker, that has sent one command, and the other end of its connection.
fn node() -> (Arc<Node>, Arc<Socket>, Peer) {
    let (node, poll) = Node::unattended(ms(100));
    accept(PORT, 0, &Sleeper::new());
    let socket = Arc::new(Socket::connect(PORT, poll.registry(), SOCKET).unwrap());
    let peer = accept(PORT, 0, &Sleeper::new()).pop().unwrap();
    assert!(node.open(Arc::clone(&socket), &ServerInfo::default(), std::iter::empty(), time::tick()));
    node.give([Some(Job::of_connection(Arc::new(Command::time()))), None], time::tick(), true);
    (Arc::new(node), socket, peer)
}

#[test]
fn h6_a_node_whose_answer_is_being_read_is_not_called_silent() {
    patiently(4_000, || {
        let (node, socket, peer) = node();
        let late = time::tick() + ms(1_000);
        assert!(node.is_stalled(late), "it has not answered");
        peer.write(b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n");

        let (theirs, connection) = (Arc::clone(&node), Arc::clone(&socket));
        let reader = spawn("reader", move || {
            theirs.intake.lock().receive(&theirs, &connection).unwrap();
        });
        for _ in 0..3 {
            assert!(!node.is_stalled(late));
        }

        reader.join();
        assert!(!node.is_stalled(late));
    });
}
