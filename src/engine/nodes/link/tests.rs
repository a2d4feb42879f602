//! A connection with sockets of the system; see `src/tests/schedules` for threads that meet.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::*;
use crate::engine::nodes::deliver;
use crate::engine::nodes::server::Server;
use crate::ids::OwnerToken;
use crate::sys::{Events, Poll};
use crate::time;
use crate::wire::{KeyTtls, Kind, Plan, QueueUpdate, Script};

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a command is, about.
const LENGTH: usize = 64 * 1024;
/// Together longer than what two systems keep of it in between.
const MANY: usize = 200;
const ANSWER: &[u8] = b":0\r\n";

/// A node without a worker, and the other end of its connection.
struct Connected {
    node: Server,
    start: Tick,
    server: TcpStream,
    poll: Poll,
}

impl Connected {
    fn new() -> Connected {
        let (node, poll) = Server::unattended(RESPONSE_TIMEOUT);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = Socket::connect_tcp(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        socket.register(poll.registry(), SOCKET).unwrap();
        let start = crate::time::tick();
        node.open(socket, Conn::ready(false), None, [], start);
        Connected {
            node,
            start,
            server,
            poll,
        }
    }

    /// One that has sent one command.
    fn asked() -> Connected {
        let mut it = Connected::new();
        let question = Arc::new(Command::time());
        let mut bytes = question.packed();
        it.node
            .give([Some(Job::of_connection(question)), None], it.start, true);
        it.server.read_exact(&mut bytes).unwrap();
        it
    }

    fn answer(&mut self) {
        self.server
            .write_all(b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n")
            .unwrap();
        self.until_readable();
    }

    fn until_readable(&self) {
        while !self.has_unread() {
            std::thread::yield_now();
        }
    }

    fn has_unread(&self) -> bool {
        self.node
            .link
            .with(|it| it.socket.as_ref().unwrap().has_unread())
    }

    /// Long after the response timeout.
    fn refusal(&self) -> Option<NodeFailure> {
        self.node
            .refusal(RESPONSE_TIMEOUT, self.start + RESPONSE_TIMEOUT * 10)
    }

    /// What is announced to the worker now: readable, and closed.
    fn announced(&mut self) -> (bool, bool) {
        let mut events = Events::with_capacity(8);
        self.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        let events: Vec<_> = events.iter().filter(|it| it.token() == SOCKET).collect();
        (
            events.iter().any(|it| it.is_readable()),
            events.iter().any(|it| it.is_read_closed()),
        )
    }

    fn release(&self) -> Arc<Command> {
        let plan = Plan::mutex(b"", &vec![b'x'; LENGTH / 3], KeyTtls::default());
        Arc::new(plan.release(OwnerToken::nobody(), None, QueueUpdate::None))
    }

    /// Gives commands to the connection, as the worker does.
    fn ask(&self, commands: usize) {
        let command = self.release();
        let jobs = (0..commands)
            .map(|_| Job::release(Arc::clone(&command), None, self.start))
            .collect();
        self.node
            .link
            .with(|it| self.node.write(it, jobs, self.start));
    }

    fn in_flight(&self) -> usize {
        self.node.link.load.in_flight()
    }

    /// Reads until so many answers have been handed out, or until it is broken.
    fn receive(&self, answers: usize) -> Option<()> {
        let before = self.in_flight();
        while before < self.in_flight() + answers {
            deliver::turn(&self.node, Driver::Worker)?;
        }
        Some(())
    }

    fn is_flushed(&self) -> bool {
        self.node.link.with(|it| it.conn.is_flushed())
    }
}

#[test]
fn h7_a_node_that_answers_what_it_was_not_sent_yet_is_given_up() {
    let mut it = Connected::new();
    it.ask(MANY);
    assert!(!it.is_flushed(), "the systems keep too much");

    // It reads nothing.
    it.server.write_all(&ANSWER.repeat(MANY)).unwrap();

    assert_eq!(it.receive(MANY), None);
    let broken = it.node.link.with(|it| it.broken());
    assert!(
        matches!(broken, Some(NodeFailure::Protocol { .. })),
        "{broken:?}"
    );
    assert!(
        0 < it.in_flight(),
        "what it has not been sent has no answer"
    );
}

#[test]
fn h7_what_a_slow_node_was_sent_is_not_kept_while_more_is_given_to_it() {
    let mut it = Connected::new();
    it.ask(MANY);
    let mut bytes = it.release().packed();

    // Never so fast that everything was sent once.
    for _ in 0..2 * MANY {
        it.server.read_exact(&mut bytes).unwrap();
        it.server.write_all(ANSWER).unwrap();
        it.receive(1).unwrap();
        it.ask(1);
        assert!(!it.is_flushed());
    }

    let kept = it.node.link.with(|it| it.conn.kept());
    assert!(kept <= 2 * MANY * bytes.len(), "{kept} bytes are kept");
}

#[test]
fn h6_a_node_whose_answer_lies_unread_is_asked_however_old_it_is() {
    let mut it = Connected::asked();
    assert_eq!(
        it.refusal(),
        Some(NodeFailure::Stalled),
        "it has not answered"
    );

    it.answer();

    assert_eq!(it.refusal(), None);
}

#[test]
fn h21_a_node_is_silent_for_longer_before_it_refuses_what_counts_late() {
    let it = Connected::asked();
    let patience = RESPONSE_TIMEOUT * 10;

    assert_eq!(it.node.refusal(patience, it.start + patience), None);
    assert_eq!(
        it.node.refusal(patience, it.start + patience * 2),
        Some(NodeFailure::Stalled)
    );
}

#[test]
fn h6_a_node_whose_answer_was_read_and_is_being_handed_out_is_asked() {
    let mut it = Connected::asked();
    it.answer();

    let turn = it.node.link.turn(Driver::Worker).unwrap();

    assert_eq!(
        turn.batch.unwrap().answers.len(),
        1,
        "it is not handed out yet"
    );
    assert_eq!(it.refusal(), None);
}

#[test]
fn h6_a_node_that_has_answered_in_time_is_not_stalled_for_who_reads_it_late() {
    let mut it = Connected::asked();
    it.answer();

    it.receive(1).unwrap();

    assert_eq!(it.refusal(), None);
}

#[test]
fn h6_a_node_that_has_hung_up_is_not_called_silent() {
    let it = Connected::asked();

    it.server.shutdown(std::net::Shutdown::Both).unwrap();
    it.until_readable();

    assert_eq!(it.refusal(), None, "its worker is to find the end");
}

#[test]
fn what_comes_is_announced_to_the_worker_exactly_while_it_drives_and_what_was_left_when_it_begins_again()
 {
    let mut it = Connected::asked();
    it.announced();
    assert!(it.node.link.take().is_some());

    it.answer();
    assert_eq!(
        it.announced(),
        (false, false),
        "a worker that sleeps is not woken"
    );
    assert!(it.node.link.leave(Driver::Idle));
    assert_eq!(it.announced(), (false, false));
    it.node.link.end_idle();

    assert_eq!(it.announced(), (true, false));
}

#[test]
fn an_end_that_came_with_the_last_bytes_is_announced_when_the_worker_begins_to_drive() {
    let mut it = Connected::asked();
    it.announced();
    assert!(it.node.link.take().is_some());
    it.answer();
    it.server.shutdown(std::net::Shutdown::Both).unwrap();

    it.node.link.leave(Driver::Worker);
    let until = time::deadline(Duration::from_secs(30));
    while it.announced() != (true, true) {
        assert!(time::tick() < until, "the end is not announced");
        thread::yield_now();
    }

    it.receive(1).unwrap();
    assert!(deliver::turn(&it.node, Driver::Worker).is_none());
    assert!(matches!(
        it.node.link.with(|it| it.broken()),
        Some(NodeFailure::Disconnected { .. })
    ));
}

#[test]
fn only_the_driver_reads_and_nobody_takes_its_place_before_all_is_handed_out() {
    let mut it = Connected::asked();
    it.answer();
    assert!(it.node.link.turn(Driver::Caller).is_none());

    let batch = it.node.link.turn(Driver::Worker).unwrap().batch.unwrap();
    assert!(it.node.link.take().is_none() && it.node.link.turn(Driver::Worker).is_none());
    it.node.link.end_turn(Driver::Worker, batch);

    assert!(it.node.link.take().is_some());
    assert!(
        it.node.link.turn(Driver::Worker).is_none() && it.node.link.turn(Driver::Caller).is_some()
    );
}

#[test]
fn a_connection_that_is_idle_is_its_workers_as_soon_as_somebody_writes() {
    let it = Connected::asked();
    assert!(it.node.link.take().is_some() && it.node.link.leave(Driver::Idle));

    it.node.give(
        [Some(Job::of_connection(Arc::new(Command::time()))), None],
        it.start,
        true,
    );

    assert_eq!(it.node.link.with(|it| it.driver()), Driver::Worker);
}

#[test]
fn a_connection_on_which_its_worker_has_written_for_others_is_not_left_idle() {
    let it = Connected::new();
    assert!(it.node.link.take().is_some());

    it.ask(1);

    assert!(!it.node.link.leave(Driver::Idle));
    assert_eq!(it.node.link.with(|it| it.driver()), Driver::Worker);
}

#[test]
fn a_connection_that_broke_while_its_answers_are_handed_out_ends_after_that() {
    let mut it = Connected::asked();
    it.server
        .write_all(b"*2\r\n$1\r\n7\r\n$1\r\n7\r\n?\r\n")
        .unwrap();
    it.until_readable();
    let batch = it.node.link.turn(Driver::Worker).unwrap().batch.unwrap();
    assert_eq!(
        (batch.answers.len(), it.node.link.with(|it| it.broken())),
        (1, None)
    );

    it.node.link.end_turn(Driver::Worker, batch);

    assert!(it.node.link.with(|it| it.broken()).is_some());
}

#[test]
fn a_connection_that_ends_under_its_driver_wakes_it_and_the_next_one_is_the_workers() {
    let mut it = Connected::asked();
    it.answer();
    let socket = it.node.link.take().unwrap();
    let batch = it.node.link.turn(Driver::Caller).unwrap().batch.unwrap();

    assert_eq!(it.node.close().len(), 0);

    assert!(socket.has_unread(), "it waits for ever");
    it.node.link.end_turn(Driver::Caller, batch);
    assert!(it.node.link.turn(Driver::Caller).is_none() && !it.node.link.leave(Driver::Idle));
    assert_eq!(it.node.link.with(|it| it.driver()), Driver::Worker);
}

#[test]
fn what_a_command_needs_is_sent_before_it() {
    let (node, _poll) = Server::unattended(RESPONSE_TIMEOUT);
    let waits =
        Command::of_script(Script::Acquire, &[b"a"], &[b"x", Command::IS_NOTIFIED]).that_waits();
    let mut state = LinkState {
        conn: Conn::ready(true),
        ..LinkState::default()
    };

    node.enqueue(&mut state, Job::of_connection(Arc::new(waits)), Now::read());

    let sent: Vec<_> = state.conn.close().map(|it| it.command.asked.kind).collect();
    assert_eq!(sent, [Kind::Subscribe, Kind::Acquire]);
}
