//! Connections to servers that live in the same run, and waiting for them. In the form of
//! `sys/os/socket.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use super::clock::{Sleeper, point};
use super::poll::{Readiness, Registry, Selector, Token};
use super::trace::trace;

/// Both directions of a connection.
#[derive(Default)]
struct Pipe {
    state: Mutex<PeerState>,
}

#[derive(Default)]
struct PeerState {
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// How many bytes may be on their way to the server; any number if 0.
    room: usize,
    client_closed: bool,
    server_closed: bool,
    /// Tasks of the server.
    server: Option<Arc<Sleeper>>,
    watched: Option<Watched>,
}

/// Where the readiness of a client's end is announced: at its edges, as `epoll` does.
struct Watched {
    selector: Arc<Selector>,
    token: Token,
    writable: bool,
    armed: bool,
}

impl PeerState {
    fn is_readable(&self) -> bool {
        !self.to_client.is_empty() || self.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.client_closed || self.server_closed
    }

    fn free(&self) -> usize {
        if self.room == 0 {
            usize::MAX
        } else {
            self.room.saturating_sub(self.to_server.len())
        }
    }

    /// Something has changed for the client.
    fn announce(&mut self) {
        if let Some(watched) = &mut self.watched {
            watched.armed = true;
            watched.selector.look();
        }
    }

    fn tell_server(&mut self) {
        self.server.take().into_iter().for_each(|it| it.wake());
    }
}

/// The client's end.
pub(crate) struct Socket(Arc<Pipe>);

/// The server's end.
pub(crate) struct Peer(Arc<Pipe>);

/// Connections that wait for their server, by port; a port that is not there refuses.
#[derive(Default)]
struct Net {
    ports: BTreeMap<u16, Port>,
}

struct Port {
    server: Arc<Sleeper>,
    new: Vec<Peer>,
}

thread_local! {
    static NET: RefCell<Net> = RefCell::default();
}

pub(crate) fn reset_net() {
    NET.take();
}

/// Takes the connections to `port` that are new. `server` is woken by the next one.
pub(crate) fn accept(port: u16, server: &Arc<Sleeper>) -> Vec<Peer> {
    NET.with_borrow_mut(|net| {
        let entry = net.ports.entry(port).or_insert_with(|| Port {
            server: Arc::clone(server),
            new: Vec::new(),
        });
        entry.server = Arc::clone(server);
        std::mem::take(&mut entry.new)
    })
}

impl Socket {
    /// Every name is this machine's.
    pub(crate) fn resolve(_host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
    }

    /// It is established at once.
    pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<Socket> {
        point();
        NET.with_borrow_mut(|net| {
            let port = net
                .ports
                .get_mut(&address.port())
                .ok_or(io::ErrorKind::ConnectionRefused)?;
            let pipe = Arc::new(Pipe::default());
            port.new.push(Peer(Arc::clone(&pipe)));
            port.server.wake();
            Ok(Socket(pipe))
        })
    }

    pub(crate) fn connect_unix(_path: &Path) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        Ok(true)
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.announce_to(registry, token, true);
        Ok(())
    }

    pub(crate) fn watch(
        &mut self,
        registry: &Registry,
        token: Token,
        writable: bool,
    ) -> io::Result<()> {
        point();
        self.announce_to(registry, token, writable);
        Ok(())
    }

    fn announce_to(&self, registry: &Registry, token: Token, writable: bool) {
        let selector = Arc::clone(registry.selector());
        trace(format_args!("watches, writable: {writable}"));
        let source: Weak<dyn Readiness> =
            Arc::downgrade(&(Arc::clone(&self.0) as Arc<dyn Readiness>));
        selector.watch(source);
        // What is so already is announced at once.
        self.0.state.lock().unwrap().watched = Some(Watched {
            selector: Arc::clone(&selector),
            token,
            writable,
            armed: true,
        });
        selector.look();
    }

    fn close(&self) {
        let mut state = self.0.state.lock().unwrap();
        state.client_closed = true;
        state.announce();
        state.tell_server();
    }

    pub(crate) fn has_unread(&self) -> bool {
        point();
        self.0.state.lock().unwrap().is_readable()
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        point();
        let mut state = self.0.state.lock().unwrap();
        let len = into.len().min(state.to_client.len());
        trace(format_args!("reads {len} bytes"));
        if len == 0 {
            let end = || io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the server");
            return if state.is_closed() {
                Err(end())
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        }
        state
            .to_client
            .drain(..len)
            .zip(into)
            .for_each(|(from, to)| *to = from);
        Ok(len)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        point();
        let mut state = self.0.state.lock().unwrap();
        if state.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let len = bytes.len().min(state.free());
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        trace(format_args!("writes {len} of {} bytes", bytes.len()));
        state.to_server.extend(&bytes[..len]);
        state.tell_server();
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

impl Readiness for Pipe {
    fn take(&self) -> Option<(Token, bool, bool)> {
        let mut state = self.state.lock().unwrap();
        let (readable, writable, closed) =
            (state.is_readable(), 0 < state.free(), state.is_closed());
        let watched = state.watched.as_mut()?;
        if !std::mem::take(&mut watched.armed) {
            return None;
        }
        let writable = writable && watched.writable;
        (readable || writable || closed).then_some((watched.token, readable, closed))
    }
}

impl Peer {
    /// From now on no more than `room` bytes are on their way to the server; any number if 0.
    pub(crate) fn set_room(&self, room: usize) {
        self.0.state.lock().unwrap().room = room;
    }

    /// Lets `server` be woken when something comes.
    pub(crate) fn wait(&self, server: &Arc<Sleeper>) {
        let mut state = self.0.state.lock().unwrap();
        state.server = Some(Arc::clone(server));
        if !state.to_server.is_empty() || state.client_closed {
            state.tell_server();
        }
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        point();
        let mut state = self.0.state.lock().unwrap();
        let bytes = std::mem::take(&mut state.to_server).into();
        if state.room != 0 {
            state.announce();
        }
        bytes
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        point();
        let mut state = self.0.state.lock().unwrap();
        state.to_client.extend(bytes);
        trace(format_args!("answers {}", bytes.escape_ascii()));
        state.announce();
    }

    pub(crate) fn close(&self) {
        point();
        let mut state = self.0.state.lock().unwrap();
        state.server_closed = true;
        state.announce();
    }

    /// The client is gone, and everything that it had written was read.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.0.state.lock().unwrap();
        state.server_closed || state.client_closed && state.to_server.is_empty()
    }
}
