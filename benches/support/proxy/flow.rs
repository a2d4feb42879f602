//! One server's thread of the proxy.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// One piece of so many is late by a factor.
const LATE_ONE_OF: u32 = 100;
const LATE: u32 = 5;

/// The connections to one server, and where they come from.
pub(crate) struct Link {
    listener: TcpListener,
    target: SocketAddr,
    way: Duration,
    rng: Rng,
    pipes: Vec<Pipe>,
}

/// A client's connection, and the one made for it: an end each, and what came in there.
struct Pipe {
    ends: [TcpStream; 2],
    flows: [Flow; 2],
}

/// One direction of a connection.
#[derive(Default)]
struct Flow {
    /// Pieces, and when they have arrived; an empty one for the end.
    queue: VecDeque<(Instant, Vec<u8>)>,
    /// So much of the first has been written.
    written: usize,
    /// There is no room for more in the socket.
    is_full: bool,
    /// Nothing more comes in.
    is_read: bool,
    /// Nothing more goes out.
    is_written: bool,
}

impl Link {
    /// One that takes `way` in each direction, at least. The seed is for what differs from piece to piece.
    pub(crate) fn new(
        listener: TcpListener,
        target: SocketAddr,
        way: Duration,
        seed: u64,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            target,
            way,
            rng: Rng::with_seed(seed),
            pipes: Vec::new(),
        })
    }

    /// Passes on what comes, for ever.
    pub(crate) fn run(&mut self) -> io::Result<Infallible> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let now = Instant::now();
            self.pipes
                .retain_mut(|it| it.write(now).is_ok() && !it.flows.iter().all(|it| it.is_written));
            let next = self
                .pipes
                .iter()
                .flat_map(|it| &it.flows)
                .filter_map(Flow::next)
                .min();
            let ready = self.wait(next)?;
            if ready[0] {
                self.accept()?;
            }
            for (i, _) in ready[1..].iter().enumerate().filter(|it| *it.1) {
                let delay = self.delay();
                self.pipes[i / 2].read(i % 2, &mut buffer, delay);
            }
        }
    }

    /// Waits until something can be read or written, or the next piece arrives. Whether the listener, and the ends one
    /// after the other, can be looked at.
    fn wait(&self, next: Option<Instant>) -> io::Result<Vec<bool>> {
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for pipe in &self.pipes {
            for (end, (stream, own)) in pipe.ends.iter().zip(&pipe.flows).enumerate() {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, !own.is_read);
                flags.set(PollFlags::OUT, pipe.flows[1 - end].is_full);
                fds.push(PollFd::new(stream, flags));
            }
        }
        let left = next.map(|it| it.saturating_duration_since(Instant::now()));
        let left = left
            .map(Timespec::try_from)
            .transpose()
            .map_err(io::Error::other)?;
        match poll(&mut fds, left.as_ref()) {
            Ok(_) => Ok(fds.iter().map(|it| !it.revents().is_empty()).collect()),
            Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
            Err(err) => Err(err.into()),
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        match self.listener.accept() {
            Ok((client, _)) => {
                // A server that is down refuses: then so does this, by closing.
                let Ok(server) = TcpStream::connect(self.target) else {
                    return Ok(());
                };
                for stream in [&client, &server] {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                }
                self.pipes.push(Pipe {
                    ends: [client, server],
                    flows: Default::default(),
                });
                Ok(())
            }
            Err(err)
                if matches!(
                    err.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionAborted
                ) =>
            {
                Ok(())
            }
            Err(err) => Err(err),
        }
    }

    /// How long the next piece takes.
    fn delay(&mut self) -> Duration {
        let way = self.way + self.way.mul_f64(self.rng.f64() / 5.0);
        if self.rng.u32(..LATE_ONE_OF) == 0 {
            way * LATE
        } else {
            way
        }
    }
}

impl Pipe {
    /// Takes in what has come at one end. It arrives at the other after `delay`, and after what came before it.
    fn read(&mut self, end: usize, buffer: &mut [u8], delay: Duration) {
        // What was full may have room again.
        self.flows[1 - end].is_full = false;
        let flow = &mut self.flows[end];
        if flow.is_read {
            return;
        }
        let n = match self.ends[end].read(buffer) {
            Ok(n) => n,
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return;
            }
            Err(_) => 0,
        };
        flow.is_read = n == 0;
        let last = flow.queue.back().map(|it| it.0);
        let arrives = Instant::now() + delay;
        flow.queue.push_back((
            last.map_or(arrives, |it| it.max(arrives)),
            buffer[..n].to_vec(),
        ));
    }

    /// Writes what has arrived.
    fn write(&mut self, now: Instant) -> io::Result<()> {
        for (from, flow) in self.flows.iter_mut().enumerate() {
            let mut to = &self.ends[1 - from];
            while let Some((_, piece)) =
                flow.queue.front().filter(|it| it.0 <= now && !flow.is_full)
            {
                if piece.is_empty() {
                    flow.is_written = true;
                    // The other side may have gone first.
                    drop(to.shutdown(Shutdown::Write));
                } else {
                    match to.write(&piece[flow.written..]) {
                        Ok(n) => flow.written += n,
                        Err(err) if err.kind() == ErrorKind::Interrupted => continue,
                        Err(err) if err.kind() == ErrorKind::WouldBlock => {
                            flow.is_full = true;
                            break;
                        }
                        Err(err) => return Err(err),
                    }
                }
                if flow.written == piece.len() {
                    flow.queue.pop_front();
                    flow.written = 0;
                }
            }
        }
        Ok(())
    }
}

impl Flow {
    /// When there is more to write.
    fn next(&self) -> Option<Instant> {
        self.queue.front().filter(|_| !self.is_full).map(|it| it.0)
    }
}
