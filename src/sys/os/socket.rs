//! The bytes' way in and out: a non-blocking stream, and waiting for it.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::event::Source;
use mio::{Interest, Registry, Token};

/// A connection to a server that is alive as a process and dead as a link is given up after this time without an
/// acknowledgement of what was sent. The kernel's own patience is a quarter of an hour.
///
/// Not a time-out for answers: a server that is merely slow acknowledges, and its connection is kept.
const DEAD_LINK: Duration = Duration::from_secs(15);
/// An idle connection is probed after this time, for the same reason.
const IDLE_PROBE: Duration = Duration::from_secs(15);

/// A non-blocking stream. Reading and writing take `&self`: another thread may be waiting for it.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(mio::net::TcpStream),
    #[cfg(unix)]
    Unix(mio::net::UnixStream),
}

impl Socket {
    /// The addresses behind a name.
    ///
    /// Blocks while the name is resolved, for as long as the system's resolver takes: only for a thread of the node's
    /// own, or of the name's.
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

    /// Announces to the waiting thread behind `registry` when the connection is established, and what comes then.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source()
            .register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Changes what is announced to the thread behind `registry`. What is so already is announced at once.
    pub(crate) fn watch(
        &self,
        registry: &Registry,
        token: Token,
        from: Watch,
        to: Watch,
    ) -> io::Result<()> {
        #[cfg(unix)]
        {
            use std::os::fd::AsRawFd;
            let fd = match self {
                Socket::Tcp(stream) => stream.as_raw_fd(),
                Socket::Unix(stream) => stream.as_raw_fd(),
            };
            let mut socket = mio::unix::SourceFd(&fd);
            match (from.interest(), to.interest()) {
                (None, Some(interest)) => socket.register(registry, token, interest),
                (Some(_), Some(interest)) => socket.reregister(registry, token, interest),
                (Some(_), None) => socket.deregister(registry),
                (None, None) => Ok(()),
            }
        }
        #[cfg(not(unix))]
        {
            // Announced all the time there, as `register` has asked.
            let _not_changed = (registry, token, from, to);
            Ok(())
        }
    }

    /// Ends both directions: wakes whoever waits on the socket.
    pub(crate) fn shutdown(&self) {
        // It may be broken already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Socket::Tcp(stream) => stream,
            #[cfg(unix)]
            Socket::Unix(stream) => stream,
        }
    }

    /// Writes what the system takes now; 0 if it takes nothing.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        retry(|| match self {
            Socket::Tcp(stream) => (&mut &*stream).write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
        })
        .map(|it| it.unwrap_or(0))
    }

    /// Whether a read would find something now: bytes, the end or an error. For whoever must not read.
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
            // An error says nothing about the socket.
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

    /// Reads what is there; `None` if nothing is there now. The end of the stream is an error.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let read = retry(|| match self {
            Socket::Tcp(stream) => (&mut &*stream).read(into),
            #[cfg(unix)]
            Socket::Unix(stream) => (&mut &*stream).read(into),
        })?;
        match read {
            Some(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "closed by the server",
            )),
            read => Ok(read),
        }
    }
}

/// Calls again after a signal; `None` if the call would block.
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(len) => return Ok(Some(len)),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(err) => return Err(err),
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

/// What is announced to the thread that waits for a socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Watch {
    /// Nothing at all, not even that the connection broke.
    Nothing,
    Read,
    Write,
    #[default]
    ReadAndWrite,
}

impl Watch {
    #[cfg(unix)]
    fn interest(self) -> Option<Interest> {
        match self {
            Watch::Nothing => None,
            Watch::Read => Some(Interest::READABLE),
            Watch::Write => Some(Interest::WRITABLE),
            Watch::ReadAndWrite => Some(Interest::READABLE | Interest::WRITABLE),
        }
    }
}

/// Whether [`wait_readable`] works here.
pub(crate) const CAN_WAIT_FOR_SEVERAL: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Wakes a thread that waits in [`wait_readable`].
#[derive(Debug)]
pub(crate) struct WakeFd {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fd: rustix::fd::OwnedFd,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl WakeFd {
    pub(crate) fn new() -> io::Result<WakeFd> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(WakeFd {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn wake(&self) {
        // It fails only if it has been rung 2^64 times.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    fn drain(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl WakeFd {
    pub(crate) fn new() -> io::Result<WakeFd> {
        Ok(WakeFd {})
    }

    pub(crate) fn wake(&self) {}
}

/// Waits until at least one of the sockets can be read or is broken, until the descriptor is rung, or until `timeout`
/// (`None`: without end); which of them, in order.
///
/// `None` if the system does not let us wait. A signal ends the wait early, with none.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn wait_readable<'a>(
    sockets: impl Iterator<Item = &'a Socket>,
    wake_fd: Option<&WakeFd>,
    timeout: Option<Duration>,
) -> Option<Vec<bool>> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds: Vec<PollFd<'_>> = sockets
        .map(|it| match it {
            Socket::Tcp(stream) => PollFd::new(stream, PollFlags::IN),
            Socket::Unix(stream) => PollFd::new(stream, PollFlags::IN),
        })
        .collect();
    fds.extend(wake_fd.map(|it| PollFd::new(&it.fd, PollFlags::IN)));
    let timeout = timeout
        .map(rustix::time::Timespec::try_from)
        .transpose()
        .ok()?;
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(_) => return None,
    }
    let mut ready: Vec<bool> = fds.iter().map(|it| !it.revents().is_empty()).collect();
    if let Some(wake_fd) = wake_fd
        && ready.pop() == Some(true)
    {
        wake_fd.drain();
    }
    Some(ready)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn wait_readable<'a>(
    _sockets: impl Iterator<Item = &'a Socket>,
    _bell: Option<&WakeFd>,
    _timeout: Option<Duration>,
) -> Option<Vec<bool>> {
    None
}
