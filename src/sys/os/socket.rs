//! A non-blocking stream, and its registration with a poll.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::event::Source;
use mio::{Interest, Registry, Token};

/// A connection over a dead link is given up after this time without an acknowledgement of sent
/// bytes. The kernel's own limit is a quarter of an hour.
///
/// Not a time-out for answers: a slow server acknowledges, and its connection is kept.
const DEAD_LINK: Duration = Duration::from_secs(15);
/// An idle connection is probed after this time, for the same reason.
const IDLE_PROBE: Duration = Duration::from_secs(15);

/// A non-blocking stream.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(mio::net::TcpStream),
    #[cfg(unix)]
    Unix(mio::net::UnixStream),
}

impl Socket {
    /// The addresses behind a name.
    ///
    /// Blocks while the name is resolved, for as long as the system's resolver takes: only for a
    /// node's thread.
    pub(crate) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(std::net::ToSocketAddrs::to_socket_addrs(&(host, port))?.collect())
    }

    /// Begins to connect. Does not wait: the stream is writable once it is connected.
    pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<Socket> {
        let stream = mio::net::TcpStream::connect(address)?;
        // A command must not wait for the acknowledgement of the one before it.
        stream.set_nodelay(true)?;
        watch_link(&stream);
        Ok(Socket::Tcp(stream))
    }

    #[cfg(unix)]
    pub(crate) fn connect_unix(path: &std::path::Path) -> io::Result<Socket> {
        Ok(Socket::Unix(mio::net::UnixStream::connect(path)?))
    }

    #[cfg(not(unix))]
    pub(crate) fn connect_unix(_path: &std::path::Path) -> io::Result<Socket> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "unix sockets are not available on this system",
        ))
    }

    /// Whether a connection that was begun is established; the error if it failed.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Socket::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
            #[cfg(unix)]
            Socket::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
        };
        match (error, peer) {
            (Some(err), _) => Err(err),
            (None, Ok(())) => Ok(true),
            (None, Err(err)) if err.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, Err(err)) => Err(err),
        }
    }

    /// Registers for the end of the connection attempt and for later input.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source()
            .register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Changes the registration: input, and with `writable` also room to write. A present state is
    /// announced at once.
    pub(crate) fn watch(
        &mut self,
        registry: &Registry,
        token: Token,
        writable: bool,
    ) -> io::Result<()> {
        let interest = if writable {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        self.source().reregister(registry, token, interest)
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Socket::Tcp(stream) => stream,
            #[cfg(unix)]
            Socket::Unix(stream) => stream,
        }
    }

    /// Whether a read would find bytes, the end or an error now. For threads that must not read.
    pub(crate) fn has_unread(&self) -> bool {
        #[cfg(unix)]
        {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let at_once = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let mut fds = [match self {
                Socket::Tcp(stream) => PollFd::new(stream, PollFlags::IN),
                Socket::Unix(stream) => PollFd::new(stream, PollFlags::IN),
            }];
            // An error of the poll shows nothing about the socket.
            poll(&mut fds, Some(&at_once)).is_ok_and(|it| it != 0)
        }
        #[cfg(not(unix))]
        {
            let Socket::Tcp(stream) = self;
            !stream
                .peek(&mut [0])
                .is_err_and(|err| err.kind() == io::ErrorKind::WouldBlock)
        }
    }
}

/// The end of the stream is an error.
impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = retry(|| match self {
            Socket::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.read(into),
        })?;
        if read == 0 {
            let closed = "closed by the server";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed));
        }
        Ok(read)
    }
}

/// Writes what the system takes now.
impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        retry(|| match self {
            Socket::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls again after a signal.
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn watch_link(stream: &mio::net::TcpStream) {
    use rustix::net::sockopt;
    // Without these options a dead link is noticed later; the lock does not depend on them.
    let millis = u32::try_from(DEAD_LINK.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(stream, millis);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, IDLE_PROBE);
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn watch_link(_stream: &mio::net::TcpStream) {
    let _not_available = (DEAD_LINK, IDLE_PROBE);
}
