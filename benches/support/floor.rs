//! The raw floor: the least that a lock on a majority of servers can cost from one thread.
//!
//! Five sockets, the same plain command written to each, one `poll` over all of them, and back as soon as
//! a majority has answered: no owner token, no script, no other thread, no time-out logic. A client that
//! keeps the promises of a lock cannot be quicker from one thread, so its cost reads as a ratio to this.
//!
//! Replies of the nodes that are not waited for are taken in later, by whichever round finds them, and
//! counted off against what their node still owes. They are never mistaken for votes of a newer round.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a round waits before it gives up. Only ever spent when a majority is gone.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// One connection to each node.
pub(crate) struct Floor {
    nodes: Vec<Node>,
    quorum: usize,
    command: Vec<u8>,
}

impl Floor {
    /// Connects to every node.
    ///
    /// # Errors
    ///
    /// If one cannot be reached: the floor is measured on healthy servers.
    pub(crate) fn connect(addrs: &[SocketAddr]) -> io::Result<Self> {
        let nodes = addrs.iter().map(Node::connect).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { quorum: nodes.len() / 2 + 1, nodes, command: Vec::new() })
    }

    /// Sets the key `name` where it is absent, then deletes it; each to a majority's answers.
    ///
    /// # Errors
    ///
    /// If a majority did not answer, or did not set the key, or a node answered with an error.
    pub(crate) fn pair(&mut self, name: &str) -> io::Result<Duration> {
        let start = Instant::now();
        // A token of the usual length, always the same: nobody else uses the name.
        let set = ["SET", name, "0123456789abcdef", "PX", "10000", "NX"];
        self.packed_round(&set)?;
        self.packed_round(&["DEL", name])?;
        Ok(start.elapsed())
    }

    fn packed_round(&mut self, words: &[&str]) -> io::Result<()> {
        let mut command = std::mem::take(&mut self.command);
        pack(words, &mut command);
        let done = self.round(&command);
        self.command = command;
        done
    }

    /// Writes `command` to all nodes and returns at the majority's last reply.
    ///
    /// # Errors
    ///
    /// As for [`pair`](Self::pair). A refusal (a null) is an error too.
    pub(crate) fn round(&mut self, command: &[u8]) -> io::Result<()> {
        for node in &mut self.nodes {
            node.send(command);
        }
        let mut answered = 0;
        while answered < self.quorum {
            let mut fds: Vec<PollFd<'_>> = self
                .nodes
                .iter()
                .filter(|node| node.alive)
                .map(|node| PollFd::new(&node.stream, PollFlags::IN))
                .collect();
            if fds.len() < self.quorum {
                return Err(io::Error::other("a majority of the nodes is gone"));
            }
            match poll(&mut fds, Some(&PATIENCE)) {
                Ok(0) => return Err(ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(err) => return Err(err.into()),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let alive = self.nodes.iter_mut().filter(|node| node.alive);
            for (node, _) in alive.zip(ready).filter(|(_, ready)| *ready) {
                if node.receive()? {
                    answered += 1;
                }
            }
        }
        Ok(())
    }
}

/// A connection, and the replies it has not brought yet.
struct Node {
    stream: TcpStream,
    /// Commands sent and not answered. The latest is answered when this reaches zero.
    owed: usize,
    /// Whether the next byte starts a reply.
    at_start: bool,
    alive: bool,
}

impl Node {
    fn connect(addr: &SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, owed: 0, at_start: true, alive: true })
    }

    fn send(&mut self, command: &[u8]) {
        if !self.alive {
            return;
        }
        // A command does not fit only if the node has not read for thousands of rounds; then it has no more say.
        match self.stream.write(command) {
            Ok(n) if n == command.len() => self.owed += 1,
            Ok(_) | Err(_) => self.alive = false,
        }
    }

    /// Reads what is there. True if that answered the latest command.
    fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 1024];
        let n = match self.stream.read(&mut bytes) {
            Ok(0) => {
                self.alive = false;
                return Ok(false);
            }
            Ok(n) => n,
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(_) => {
                self.alive = false;
                return Ok(false);
            }
        };
        // The replies asked for here have one line each: `+OK`, `:1`, or `$-1` for a refusal.
        for byte in bytes.iter().take(n) {
            if self.at_start && matches!(byte, b'-' | b'$') {
                let text = String::from_utf8_lossy(bytes.get(..n).unwrap_or_default());
                return Err(io::Error::other(format!("floor refused: {text:?}")));
            }
            self.at_start = *byte == b'\n';
            if self.at_start {
                self.owed = self.owed.saturating_sub(1);
            }
        }
        Ok(self.owed == 0)
    }
}

/// Writes `words` into `out` as a command for a Redis server.
fn pack(words: &[&str], out: &mut Vec<u8>) {
    out.clear();
    out.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(word.bytes());
        out.extend(b"\r\n");
    }
}
