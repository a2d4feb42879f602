//! Plain sockets to all nodes, driven by one thread: every command goes to every node, and counts as decided as soon as
//! a majority has answered it the same way.
//!
//! All nodes get the same commands in the same order, so one list of them serves all, and each node has its place in
//! it. Answers that nobody waits for any more are taken in later, and never mistaken for those of a newer command.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a turn waits before it gives up. Only ever spent when something is wrong.
const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
/// Ends what is said at the beginning.
const PONG: &[u8] = b"+PONG\r\n";

/// One connection to each node.
pub(crate) struct Wire {
    nodes: Vec<Node>,
    quorum: usize,
    /// Commands that some node has not answered yet, oldest first.
    sent: VecDeque<Sent>,
    /// How many came before those.
    done: u64,
    /// To be written by the next turn.
    out: Out,
}

/// What is to be written to all nodes.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
    /// Where each node has the version of its record in it.
    pub(crate) record_versions: Vec<usize>,
}

impl Out {
    pub(crate) fn append(&mut self, other: &Out) {
        self.record_versions
            .extend(other.record_versions.iter().map(|at| self.bytes.len() + at));
        self.bytes.extend_from_slice(&other.bytes);
    }
}

/// Where a server of ours keeps its record.
const RECORD: &str = "quorlock:record";
/// Digits of the version, with which a record begins.
pub(crate) const RECORD_VERSION: usize = 15;

/// A command on its way.
struct Sent {
    tag: usize,
    yes: usize,
    no: usize,
}

/// A command that a majority has answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    /// Whose command it was, as they said when they sent it.
    pub(crate) tag: usize,
    pub(crate) granted: bool,
}

impl Wire {
    /// Connects to every node and says `hello` there, for all of which there is one answer or more each.
    ///
    /// Returns what the last node answered.
    ///
    /// # Errors
    ///
    /// If a node cannot be reached: the floor is measured on healthy servers.
    pub(crate) fn connect(addrs: &[SocketAddr], hello: &[&[&str]]) -> io::Result<(Self, String)> {
        let mut said = String::new();
        let mut nodes = Vec::new();
        for addr in addrs {
            let (node, answers) = Node::connect(addr, hello)?;
            nodes.push(node);
            said = answers;
        }
        let quorum = nodes.len() / 2 + 1;
        Ok((
            Self {
                nodes,
                quorum,
                sent: VecDeque::new(),
                done: 0,
                out: Out::default(),
            },
            said,
        ))
    }

    /// Adds a command, which the next turn sends to all nodes, and which is reported under this tag.
    pub(crate) fn push(&mut self, tag: usize, write: impl FnOnce(&mut Out)) {
        write(&mut self.out);
        self.sent.push_back(Sent { tag, yes: 0, no: 0 });
    }

    /// Sends what was added, waits for something to come, and enters in `decided` what is decided by it.
    ///
    /// # Errors
    ///
    /// If a connection broke, nothing came, or a node answered with neither yes nor no.
    pub(crate) fn turn(&mut self, decided: &mut Vec<Decided>) -> io::Result<()> {
        self.turn_or(None, decided)
    }

    /// The same, which ends as well when there is something to read at `bell`.
    ///
    /// # Errors
    ///
    /// As for [`turn`](Self::turn).
    pub(crate) fn turn_or(
        &mut self,
        bell: Option<&UnixStream>,
        decided: &mut Vec<Decided>,
    ) -> io::Result<()> {
        let Out {
            bytes,
            record_versions,
        } = &mut self.out;
        for node in &mut self.nodes {
            record_versions.iter().for_each(|at| {
                bytes[*at..][..RECORD_VERSION].copy_from_slice(&node.record_version)
            });
            node.write(bytes)?;
        }
        bytes.clear();
        record_versions.clear();
        let mut fds: Vec<PollFd<'_>> = self.nodes.iter().map(Node::poll_fd).collect();
        fds.extend(bell.map(|it| PollFd::new(it, PollFlags::IN)));
        match poll(&mut fds, Some(&PATIENCE)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(err) => return Err(err.into()),
        }
        let ready = fds.iter().zip(0_u32..).fold(0_u64, |all, (it, at)| {
            all | u64::from(!it.revents().is_empty()) << at
        });
        let Self {
            nodes,
            sent,
            done,
            quorum,
            ..
        } = self;
        for (node, _) in nodes
            .iter_mut()
            .zip(0_u32..)
            .filter(|(_, at)| ready >> at & 1 == 1)
        {
            let mut at = node.answered;
            node.read(|granted| {
                let Some(sent) = sent.get_mut((at - *done) as usize) else {
                    return false;
                };
                at += 1;
                let votes = if granted { &mut sent.yes } else { &mut sent.no };
                *votes += 1;
                if *votes == *quorum {
                    decided.push(Decided {
                        tag: sent.tag,
                        granted,
                    });
                }
                true
            })?;
            node.answered = at;
        }
        let least = nodes.iter().map(|it| it.answered).min().unwrap_or(*done);
        sent.drain(..(least - *done) as usize);
        *done = least;
        Ok(())
    }

    /// Goes on until `count` commands are decided.
    ///
    /// # Errors
    ///
    /// As for [`turn`](Self::turn).
    pub(crate) fn turns(&mut self, count: usize) -> io::Result<Vec<Decided>> {
        let mut decided = Vec::with_capacity(count);
        while decided.len() < count {
            self.turn(&mut decided)?;
        }
        Ok(decided)
    }

    /// How many commands the slowest node has still to answer.
    pub(crate) fn owed(&self) -> usize {
        self.sent.len()
    }

    /// The largest number that a majority of the nodes has published.
    pub(crate) fn heard(&self) -> u64 {
        let mut heard: Vec<u64> = self.nodes.iter().map(|it| it.heard).collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        heard[self.quorum - 1]
    }
}

struct Node {
    stream: TcpStream,
    /// Of its record, if it has one.
    record_version: [u8; RECORD_VERSION],
    /// What did not fit into the socket.
    pending: Vec<u8>,
    /// How many commands it has answered.
    answered: u64,
    /// The beginning of a line.
    line: Vec<u8>,
    /// So many lines to come belong to a published message, the number in the last one.
    published: usize,
    heard: u64,
    /// So many values to come belong to an answer that is a list.
    values: usize,
}

impl Node {
    fn connect(addr: &SocketAddr, hello: &[&[&str]]) -> io::Result<(Self, String)> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let mut words = Vec::new();
        for command in hello.iter().chain([&["GET", RECORD][..], &["PING"]].iter()) {
            pack(command, &mut words);
        }
        stream.write_all(&words)?;
        let mut said = Vec::new();
        let mut bytes = [0; 1024];
        while !said.ends_with(PONG) {
            match stream.read(&mut bytes)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => said.extend_from_slice(&bytes[..n]),
            }
        }
        stream.set_nonblocking(true)?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let record_version = said
            .lines()
            .filter_map(|it| it.split_once(' '))
            .find_map(|(first, _)| first.as_bytes().try_into().ok());
        let node = Self {
            stream,
            record_version: record_version.unwrap_or_default(),
            pending: Vec::new(),
            answered: 0,
            line: Vec::new(),
            published: 0,
            heard: 0,
            values: 0,
        };
        Ok((node, said))
    }

    fn poll_fd(&self) -> PollFd<'_> {
        let out = if self.pending.is_empty() {
            PollFlags::empty()
        } else {
            PollFlags::OUT
        };
        PollFd::new(&self.stream, PollFlags::IN | out)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.pending.extend_from_slice(bytes);
            let pending = std::mem::take(&mut self.pending);
            return self.write(&pending);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => {
                    self.pending = rest.to_vec();
                    break;
                }
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }

    /// Reads what is there, and tells `vote` of each answer; it says whether one was expected.
    fn read(&mut self, mut vote: impl FnMut(bool) -> bool) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let n = match self.stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(err) => return Err(err),
        };
        for piece in bytes[..n].split_inclusive(|it| *it == b'\n') {
            self.line.extend_from_slice(piece);
            let Some(line) = self.line.strip_suffix(b"\r\n") else {
                continue;
            };
            if self.published > 0 {
                self.published -= 1;
                if self.published == 0 {
                    let heard = str::from_utf8(line).ok().and_then(|it| it.parse().ok());
                    self.heard = self.heard.max(heard.unwrap_or(0));
                }
            } else if self.values > 0 {
                // A text has its length in a line before it.
                self.values -= usize::from(!line.starts_with(b"$"));
            } else if line.starts_with(b">") {
                // Three texts, each with its length before it.
                self.published = 6;
            } else {
                // The answers to the commands that are sent here have one line each, but for refusals of ours.
                let granted = match line {
                    [b'*', count @ ..] => {
                        let count = str::from_utf8(count).ok().and_then(|it| it.parse().ok());
                        self.values = count.ok_or_else(|| unexpected(line))?;
                        false
                    }
                    b"$-1" | b"_" | b":0" => false,
                    [b'+' | b':', ..] => true,
                    _ => return Err(unexpected(line)),
                };
                if !vote(granted) {
                    return Err(unexpected(line));
                }
            }
            self.line.clear();
        }
        Ok(())
    }
}

fn unexpected(line: &[u8]) -> io::Error {
    io::Error::other(format!("the floor was answered {}", line.escape_ascii()))
}

/// Writes `words` to `out` as a command for a Redis server.
pub(crate) fn pack(words: &[&str], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(word.bytes());
        out.extend(b"\r\n");
    }
}

/// The hashes of the scripts that were loaded, in order.
pub(crate) fn hashes<const N: usize>(said: &str) -> io::Result<[String; N]> {
    let hashes: Vec<String> = said
        .lines()
        .filter(|it| it.len() == 40)
        .map(str::to_owned)
        .collect();
    hashes
        .try_into()
        .map_err(|_| io::Error::other("a script was not loaded"))
}
