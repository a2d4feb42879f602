//! Free ports on loopback, from below the range that the system hands to outgoing connections.
//!
//! Two things go wrong with ports from inside that range, as binding port 0 gives them. While a killed server's port
//! is free, an outgoing connection of another program may take it, and the server cannot come back. And a client that keeps
//! connecting to the closed port can be given that same port as its own end: it is then connected to itself.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

use rustix::net::{Shutdown, shutdown};

use crate::{Error, lock};

/// The lowest port handed out.
const LOWEST: u16 = 10_000;

/// So far above its own port a server of a cluster listens for the others.
pub(crate) const BUS: u16 = 10_000;

/// Where outgoing connections start if the system does not say: Linux' default.
const DEFAULT_OUTGOING: u16 = 32_768;

/// Ports of this process's servers, whether up or down, so that no other server moves in while one is down.
static TAKEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A port kept for one server until dropped. Other processes may still take it while nothing listens.
#[derive(Debug)]
pub(crate) struct Port(u16);

impl Port {
    /// Chooses a port that nothing listens on right now.
    pub(crate) fn choose() -> Result<Self, Error> {
        let (listener, port) = listen_reserved()?;
        drop(listener);
        Ok(port)
    }

    /// The same, and the port 10,000 above it, where the servers of a cluster talk to each other.
    pub(crate) fn choose_with_bus() -> Result<(Self, Self), Error> {
        let outgoing = first_outgoing_port();
        for _ in 0..200 {
            let port = Self::choose()?;
            let bus = port.0.checked_add(BUS).filter(|it| *it < outgoing);
            let bus = bus.and_then(|it| reserve(it).ok().flatten());
            if let Some((_, bus)) = bus {
                return Ok((port, bus));
            }
        }
        Err(Error::new(
            "no two free ports on 127.0.0.1, 10,000 apart, in 200 tries",
        ))
    }

    pub(crate) fn number(&self) -> u16 {
        self.0
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.0))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        lock(&TAKEN).remove(&self.0);
    }
}

/// Listens on a fresh port of 127.0.0.1.
fn listen_reserved() -> Result<(TcpListener, Port), Error> {
    let outgoing = first_outgoing_port();
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..200 {
        let wanted = if outgoing > LOWEST + 1000 {
            LOWEST + u16::try_from(random() % u64::from(outgoing - LOWEST)).unwrap_or(0)
        } else {
            0 // no room below: let the system choose
        };
        match reserve(wanted) {
            Ok(Some(reserved)) => return Ok(reserved),
            Ok(None) => {}
            Err(e) => last = e,
        }
    }
    Err(Error::of("no free port on 127.0.0.1 in 200 tries", last))
}

/// Listens on this port; not if it is kept for another server.
fn reserve(wanted: u16) -> io::Result<Option<(TcpListener, Port)>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted))?;
    let number = listener.local_addr()?.port();
    let is_free = lock(&TAKEN).insert(number);
    Ok(is_free.then_some((listener, Port(number))))
}

/// A listener on a port of its own, and the thread that accepts connections.
#[derive(Debug)]
pub(crate) struct Acceptor {
    port: Port,
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// `accept` takes connections until it sees that it is to end: it looks whenever one comes.
    pub(crate) fn start(
        name: &str,
        accept: impl FnOnce(&TcpListener) + Send + 'static,
    ) -> Result<Acceptor, Error> {
        let (listener, port) = listen_reserved()?;
        let listener = Arc::new(listener);
        let thread = thread::Builder::new().name(name.into()).spawn({
            let listener = listener.clone();
            move || accept(&listener)
        });
        let thread = thread.map_err(|e| Error::of(format!("starting the thread {name}"), e))?;
        Ok(Acceptor {
            port,
            listener,
            thread: Some(thread),
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Ends it, and waits for the thread if that has noticed.
    pub(crate) fn stop(&mut self) {
        let woken = stop_listening(&self.listener);
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Ends the listening, and the `accept` that a thread blocks in. False if that thread may not have noticed.
///
/// Closing alone would not do: a thread that starts a process at this moment has a copy of the socket for a while.
fn stop_listening(listener: &TcpListener) -> bool {
    // Linux wakes `accept` with this. Where it is an error, one more connection does.
    shutdown(listener, Shutdown::Both).is_ok()
        || listener
            .local_addr()
            .is_ok_and(|at| TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok())
}

fn first_outgoing_port() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(DEFAULT_OUTGOING)
}

/// A number that differs between threads, processes and calls: std seeds its hash maps so.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
