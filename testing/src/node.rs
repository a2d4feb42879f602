//! One stand-in.

use std::io;
use std::time::Duration;

use crate::refusal::Refusal;
use crate::server::Server;

/// One stand-in, and what can go wrong with it. Nothing here blocks.
#[derive(Debug)]
pub struct Node {
    server: Server,
}

impl Node {
    pub(crate) fn new(server: Server) -> Node {
        Node { server }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// The URL where faults do not matter.
    pub(crate) fn open_back(&self) -> io::Result<String> {
        self.server
            .open_back()
            .map(|addr| format!("redis://{addr}"))
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.server.addr())
    }

    /// Ends all connections, and each new one at once, until it is [up](Node::up) again. It keeps
    /// what it has stored.
    pub fn down(&self) {
        self.server.change(|it| it.is_down = true);
        self.server.hang_up();
    }

    /// Takes connections again.
    pub fn up(&self) {
        self.server.change(|it| it.is_down = false);
    }

    /// Loses everything that it has stored, and its connections: a server that was started again
    /// and keeps nothing on disk.
    pub fn forget(&self) {
        self.server.forget();
    }

    /// Reads nothing until it [goes on](Node::resume), and so answers nothing: a process that is
    /// stopped.
    pub fn pause(&self) {
        self.server.change(|it| it.is_paused = true);
    }

    /// Reads again: it first runs all that has come meanwhile.
    pub fn resume(&self) {
        self.server.change(|it| it.is_paused = false);
    }

    /// Runs and answers everything that comes so much later; zero for at once.
    pub fn delay(&self, by: Duration) {
        self.server.change(|it| it.delay = by);
    }

    /// Runs no script, and says this instead; `None` to run them again.
    pub fn refuse(&self, why: impl Into<Option<Refusal>>) {
        let why = why.into();
        self.server.change(|it| it.refusal = why);
    }

    /// Runs the next `n` scripts and does not answer them: the connection ends in place of each
    /// answer.
    pub fn drop_replies(&self, n: u64) {
        self.server.change(|it| it.dropped = n);
    }

    /// How many scripts it has run for its clients, or refused.
    pub fn commands(&self) -> u64 {
        self.server.state().commands
    }
}
