//! One stand-in: a listener, a thread for each connection, a store, and faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use crate::refusal::Refusal;
use crate::resp::{NoCommand, parse, push};
use crate::store::{Notice, Reply, Store};

/// How long a client may read nothing before its connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a listener rests after a connection that it could not take.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1);
/// How long the connection that ends a listener may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Server {
    index: usize,
    shared: Arc<Shared>,
    front: Door,
    /// For [`Nodes`](crate::Nodes) itself: faults do not reach it. Opened when it is first needed.
    back: Mutex<Option<Door>>,
}

/// A listener and its thread.
struct Door {
    addr: SocketAddr,
    thread: Option<JoinHandle<()>>,
    /// The same listener once more, by which its thread is woken; or the file descriptor for a last
    /// connection that wakes it.
    listener: Option<TcpListener>,
}

struct Shared {
    state: Mutex<State>,
    /// A fault was changed.
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    /// How many scripts it has run for its clients, or refused.
    pub(crate) commands: u64,
    connections: BTreeMap<u64, Connection>,
    last: u64,
    /// How often it has lost everything.
    starts: u64,
    /// By the numbers of their connections.
    threads: BTreeMap<u64, JoinHandle<()>>,
    is_over: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) is_down: bool,
    pub(crate) is_paused: bool,
    pub(crate) delay: Duration,
    pub(crate) refusal: Option<Refusal>,
    /// So many replies are not sent.
    pub(crate) dropped: u64,
}

struct Connection {
    stream: TcpStream,
    channels: BTreeSet<Vec<u8>>,
    resp3: bool,
    /// The client reads no more. What it has sent is run all the same, as a server does.
    is_gone: bool,
    is_back: bool,
}

impl Server {
    pub(crate) fn start(index: usize) -> io::Result<Server> {
        Server::start_at(index, 0)
    }

    /// `port`: 0 for any.
    pub(crate) fn start_at(index: usize, port: u16) -> io::Result<Server> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        // RACE: a client connects as soon as the port is open. It is answered when the process has
        // begun.
        let mut state = shared.state();
        let front = Door::open(index, &shared, (Ipv4Addr::LOCALHOST, port), false)?;
        state.begin(front.addr);
        drop(state);
        Ok(Server {
            index,
            shared,
            front,
            back: Mutex::default(),
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.front.addr
    }

    /// Where faults do not matter.
    pub(crate) fn open_back(&self) -> io::Result<SocketAddr> {
        let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
        let door = match back.take() {
            Some(door) => door,
            None => Door::open(self.index, &self.shared, (Ipv4Addr::LOCALHOST, 0), true)?,
        };
        Ok(back.insert(door).addr)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Changes how it behaves.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state().faults);
        self.shared.changed.notify_all();
    }

    /// Closes all connections of clients.
    pub(crate) fn hang_up(&self) {
        self.state().hang_up();
    }

    /// Loses everything, as a server does that is started again.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.starts += 1;
        state.begin(self.addr());
        state.hang_up();
    }

    /// Runs a command, whatever the faults are.
    pub(crate) fn execute(&self, command: &[&[u8]]) -> Reply {
        self.state().execute(command).0
    }
}

/// Is a server on this port of loopback until the process ends.
///
/// # Errors
///
/// The port is taken.
pub fn serve(port: u16) -> io::Result<()> {
    let _server = Server::start_at(0, port)?;
    loop {
        thread::park();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        {
            let mut state = self.state();
            state.is_over = true;
            state.connections.values().for_each(Connection::close);
        }
        self.shared.changed.notify_all();
        self.front.close();
        let back = self.back.get_mut().unwrap_or_else(PoisonError::into_inner);
        back.iter_mut().for_each(Door::close);
        let threads = std::mem::take(&mut self.state().threads);
        threads.into_values().for_each(|thread| drop(thread.join()));
    }
}

/// Shows nothing of what is stored: owner tokens are secrets.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addr", &self.addr())
            .finish_non_exhaustive()
    }
}

impl Door {
    fn open(
        index: usize,
        shared: &Arc<Shared>,
        (host, port): (Ipv4Addr, u16),
        is_back: bool,
    ) -> io::Result<Door> {
        let all = |it: TcpListener| Ok((it.try_clone()?, it.local_addr()?, it));
        let (ours, addr, listener) =
            TcpListener::bind((host, port))
                .and_then(all)
                .map_err(|err| {
                    let needs = "a stand-in needs a loopback interface, a free port and some file \
                descriptors (ulimit -n)";
                    io::Error::new(err.kind(), format!("no port on {host}: {err}; {needs}"))
                })?;
        let name = format!("quorlock-test-{index}");
        let theirs = Arc::clone(shared);
        let accept = move || accept(&theirs, &listener, &name, is_back);
        let thread = thread::Builder::new()
            .name(format!("quorlock-test-{index}"))
            .spawn(accept)?;
        Ok(Door {
            addr,
            thread: Some(thread),
            listener: Some(ours),
        })
    }

    /// Ends the thread, which looks whether all is over when a connection comes or cannot be taken.
    fn close(&mut self) {
        let is_woken = self.listener.take().is_some_and(wake);
        let is_heard = is_woken || TcpStream::connect_timeout(&self.addr, CONNECT_TIMEOUT).is_ok();
        // A thread that cannot be reached is left behind.
        self.thread
            .take()
            .filter(|_| is_heard)
            .map(JoinHandle::join);
    }
}

/// Ends the wait for a connection. True if it has.
///
/// RACE: a thread that waits for a connection has a file descriptor for it already, on Linux. So
/// where none is left the listener of another stand-in takes the one that this listener gives back,
/// and no connection could be made to wake it.
#[cfg(target_os = "linux")]
fn wake(listener: TcpListener) -> bool {
    TcpStream::from(std::os::fd::OwnedFd::from(listener))
        .shutdown(Shutdown::Both)
        .is_ok()
}

/// Other systems cannot do that: a connection has to come.
#[cfg(not(target_os = "linux"))]
fn wake(_: TcpListener) -> bool {
    false
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, name: &str, is_back: bool) {
    for stream in listener.incoming() {
        let mut state = shared.state();
        if state.is_over {
            return;
        }
        let Ok(stream) = stream else {
            // No file descriptor is left for it. The connection waits until there is one.
            drop(shared.changed.wait_timeout(state, ACCEPT_PAUSE));
            continue;
        };
        // A stand-in that is down keeps its port, so that nobody else takes it: its connections end
        // at once.
        if state.faults.is_down && !is_back {
            continue;
        }
        state.last += 1;
        let number = state.last;
        let Ok(writer) = stream.set_nodelay(true).and_then(|()| stream.try_clone()) else {
            continue;
        };
        let _ = writer.set_write_timeout(Some(WRITE_TIMEOUT));
        let connection = Connection {
            stream: writer,
            channels: BTreeSet::new(),
            resp3: false,
            is_gone: false,
            is_back,
        };
        state.connections.insert(number, connection);
        let theirs = Arc::clone(shared);
        match thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve_connection(&theirs, number, stream, is_back))
        {
            Ok(thread) => drop(state.threads.insert(number, thread)),
            Err(_) => state.close(number),
        }
    }
}

fn serve_connection(shared: &Shared, number: u64, mut stream: TcpStream, is_back: bool) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        let read = stream
            .read(&mut chunk)
            .ok()
            .filter(|len| *len != 0)
            .and_then(|len| chunk.get(..len));
        let Some(read) = read else { break };
        bytes.extend_from_slice(read);
        let mut state = if is_back {
            shared.state()
        } else {
            shared.wait()
        };
        let Ok(()) = state.answer(number, &mut bytes) else {
            break;
        };
    }
    let mut state = shared.state();
    state.close(number);
    // A thread that has ended keeps its stack for as long as somebody can join it.
    state.threads.remove(&number);
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for as long as the stand-in is paused, and for its delay.
    fn wait(&self) -> MutexGuard<'_, State> {
        let state = self.state();
        let delay = state.faults.delay;
        let waits = self.changed.wait_timeout_while(state, delay, |state| {
            !state.faults.delay.is_zero() && !state.is_over
        });
        let (state, _) = waits.unwrap_or_else(PoisonError::into_inner);
        let waits = self
            .changed
            .wait_while(state, |state| state.faults.is_paused && !state.is_over);
        waits.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection is to be closed.
struct Close;

impl From<NoCommand> for Close {
    fn from(_: NoCommand) -> Close {
        Close
    }
}

impl Connection {
    fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl State {
    /// A new process with nothing stored.
    fn begin(&mut self, addr: SocketAddr) {
        // The id of a process: 40 digits.
        let run_id = format!(
            "{:010}{:010}{:020}",
            std::process::id(),
            addr.port(),
            self.starts
        );
        self.store = Store::new(&run_id);
        // Its uptime runs from now on.
        drop(self.store.contents(now()));
        let open: Vec<_> = self
            .connections
            .values()
            .flat_map(|it| it.channels.iter().cloned())
            .collect();
        open.iter()
            .for_each(|channel| self.count_listeners(channel));
    }

    fn hang_up(&mut self) {
        let of_clients = self
            .connections
            .iter()
            .filter(|(_, it)| !it.is_back)
            .map(|(number, _)| *number);
        let of_clients: Vec<_> = of_clients.collect();
        of_clients.into_iter().for_each(|number| self.close(number));
    }

    fn close(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        connection.close();
        connection
            .channels
            .iter()
            .for_each(|channel| self.count_listeners(channel));
    }

    fn count_listeners(&mut self, channel: &[u8]) {
        let count = self
            .connections
            .values()
            .filter(|it| it.channels.contains(channel))
            .count();
        self.store.set_listeners(channel, count);
    }

    /// Runs all complete commands that have come on a connection, and answers them.
    fn answer(&mut self, number: u64, bytes: &mut Vec<u8>) -> Result<(), Close> {
        let (mut replies, mut end) = (Vec::new(), Ok(()));
        while end.is_ok() {
            match parse(bytes) {
                Ok(None) => break,
                Ok(Some((command, len))) => {
                    bytes.drain(..len);
                    end = self.run(number, &command, &mut replies);
                }
                Err(err) => end = Err(err.into()),
            }
        }
        self.write(number, &replies);
        end
    }

    fn run(&mut self, number: u64, command: &[Vec<u8>], out: &mut Vec<u8>) -> Result<(), Close> {
        let connection = self.connections.get_mut(&number).ok_or(Close)?;
        let (is_back, resp3) = (connection.is_back, connection.resp3);
        let name = command
            .first()
            .map(|name| name.to_ascii_uppercase())
            .unwrap_or_default();
        let second = command.get(1).map(|word| &word[..]).unwrap_or_default();
        match &name[..] {
            b"HELLO" => {
                connection.resp3 = second == b"3";
                out.extend_from_slice(if connection.resp3 {
                    b"%1\r\n"
                } else {
                    b"*2\r\n"
                });
                out.extend_from_slice(b"$6\r\nserver\r\n$5\r\nredis\r\n");
            }
            b"CLIENT" if second.eq_ignore_ascii_case(b"kill") => {
                self.kill_others(number, command).write_to(out, resp3)
            }
            b"SUBSCRIBE" => {
                connection.channels.insert(second.to_vec());
                push(
                    out,
                    resp3,
                    [&b"subscribe"[..], second],
                    Some(connection.channels.len()),
                );
                self.count_listeners(second);
            }
            b"EVALSHA" | b"EVAL" if !is_back => {
                let (reply, counts) = match &self.faults.refusal {
                    Some(refusal) => (Reply::Error(refusal.text().to_owned()), true),
                    None => self.execute(command),
                };
                self.commands += u64::from(counts);
                if let Some(left) = self.faults.dropped.checked_sub(1) {
                    self.faults.dropped = left;
                    return Err(Close);
                }
                reply.write_to(out, resp3);
            }
            _ => self.execute(command).0.write_to(out, resp3),
        }
        Ok(())
    }

    /// `CLIENT KILL SKIPME yes`; with `TYPE pubsub`, only of those that listen.
    fn kill_others(&mut self, own: u64, command: &[Vec<u8>]) -> Reply {
        let only_listening = command
            .iter()
            .any(|word| word.eq_ignore_ascii_case(b"pubsub"));
        let is_meant =
            |it: &Connection| !it.is_back && (!only_listening || !it.channels.is_empty());
        let others = self
            .connections
            .iter()
            .filter(|(number, it)| **number != own && is_meant(it));
        let others: Vec<_> = others.map(|(number, _)| *number).collect();
        others.iter().for_each(|number| self.close(*number));
        Reply::count(others.len())
    }

    /// The reply, and whether a script was run.
    fn execute<T: AsRef<[u8]>>(&mut self, command: &[T]) -> (Reply, bool) {
        let done = self.store.execute(command, now());
        for Notice { channel, message } in done.notices {
            let listening = self
                .connections
                .iter()
                .filter(|(_, it)| it.channels.contains(&channel));
            let listening: Vec<_> = listening.map(|(number, it)| (*number, it.resp3)).collect();
            for (number, resp3) in listening {
                let mut sent = Vec::new();
                push(
                    &mut sent,
                    resp3,
                    [&b"message"[..], &channel, &message],
                    None,
                );
                self.write(number, &sent);
            }
        }
        (done.reply, done.ran.is_some())
    }

    fn write(&mut self, number: u64, bytes: &[u8]) {
        let open = self
            .connections
            .get_mut(&number)
            .filter(|it| !it.is_gone && !bytes.is_empty());
        let Some(connection) = open else { return };
        connection.is_gone = connection.stream.write_all(bytes).is_err();
    }
}

/// Since 1970.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(server: &Server) -> TcpStream {
        TcpStream::connect(server.addr()).unwrap()
    }

    fn wait_until_no_connection_is_left(server: &Server) {
        while !server.state().threads.is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_stand_in_without_loopback_reports_the_cause() {
        // An address for examples: no machine has it.
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let err = Door::open(0, &shared, (Ipv4Addr::new(192, 0, 2, 1), 0), false)
            .err()
            .unwrap();
        assert_eq!(err.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(
            err.to_string().starts_with("no port on 192.0.2.1: "),
            "{err}"
        );
        assert!(
            err.to_string().contains("needs a loopback interface"),
            "{err}"
        );
    }

    #[test]
    fn commands_sent_before_a_connection_ended_are_run_without_a_reader() {
        let server = Server::start(0).unwrap();
        let mut stream = connect(&server);
        stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        // A writer learns at once of the end of a connection with an unread reply.
        while stream.peek(&mut [0; 7]).unwrap() < 7 {}
        server.change(|faults| faults.is_paused = true);
        let set = |key: &str| format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n$1\r\nx\r\n");
        stream
            .write_all(format!("{}{}{}", set("a"), set("b"), set("c")).as_bytes())
            .unwrap();
        drop(stream);
        server.change(|faults| faults.is_paused = false);
        wait_until_no_connection_is_left(&server);
        assert_eq!(
            server.execute(&[b"EXISTS", b"a", b"b", b"c"]),
            Reply::Int(3)
        );
    }

    #[test]
    fn connections_that_have_ended_leave_no_threads() {
        let server = Server::start(0).unwrap();
        for _ in 0..20 {
            let mut stream = connect(&server);
            stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
            stream.read_exact(&mut [0; 7]).unwrap();
        }
        wait_until_no_connection_is_left(&server);
    }

    #[test]
    fn faults_do_not_affect_the_control_connection() {
        let server = Server::start(0).unwrap();
        let back = server.open_back().unwrap();
        assert_eq!(server.open_back().unwrap(), back);
        server.change(|faults| {
            *faults = Faults {
                is_down: true,
                is_paused: true,
                refusal: Some(Refusal::Busy),
                dropped: 9,
                ..Faults::default()
            }
        });
        let mut stream = TcpStream::connect(back).unwrap();
        stream
            .write_all(b"*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 7\r\n$1\r\n0\r\n")
            .unwrap();
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!((&reply, server.state().commands), (b":7\r\n", 0));
        server.hang_up();
        stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        stream.read_exact(&mut [0; 7]).unwrap();
    }
}
