//! One stand-in: a listener, a thread for each connection, a store, and faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::sys::ahead::Ahead;
use crate::sys::sync::{Condvar, Mutex, MutexGuard};
use crate::sys::{OwnThread, wall_clock};
use crate::testing::bytes::{NoCommand, parse, push};
use crate::testing::refusal::Refusal;
use crate::testing::store::{Done, Notice, Reply, Store};
use crate::time::deadline;

/// How long a client may take nothing before its connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long no connection is taken after one that could not be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1);
/// How long the end of a thread is waited for.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// A file descriptor that is free when the last connection is made, which ends it.
    reserve: Option<TcpListener>,
}

struct Shared {
    state: Mutex<State>,
    /// A fault was changed.
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    ahead: Ahead,
    pub(super) store: Store,
    pub(super) faults: Faults,
    /// How many scripts it has run for its clients, or refused.
    pub(super) commands: u64,
    connections: BTreeMap<u64, Connection>,
    last: u64,
    /// How often it has forgotten everything.
    starts: u64,
    /// By the numbers of their connections; 0 accepts them.
    threads: BTreeMap<u64, OwnThread>,
    is_over: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) is_down: bool,
    pub(super) is_paused: bool,
    pub(super) delay: Duration,
    pub(super) refusal: Option<Refusal>,
    /// So many answers are not given.
    pub(super) dropped: u64,
}

struct Connection {
    stream: TcpStream,
    channels: BTreeSet<Vec<u8>>,
    resp3: bool,
    /// Nobody reads there any more. What has been sent is run still, as a server does.
    is_gone: bool,
}

impl Server {
    /// Its clock is ahead by so much.
    pub(super) fn start(index: usize, ahead: &Ahead) -> io::Result<Server> {
        let (listener, addr, reserve) = listen(Ipv4Addr::LOCALHOST)?;
        let mut state = State { ahead: ahead.clone(), ..State::default() };
        state.begin(addr);
        // As if it had been used before: that spares each connection a round trip.
        state.store.learn_scripts();
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let server = Server { addr, shared: Arc::clone(&shared), reserve: Some(reserve) };
        let name = format!("quorlock-test-{index}");
        let thread = OwnThread::spawn(name.clone(), move || accept(&shared, &listener, &name))?;
        server.state().threads.insert(0, thread);
        Ok(server)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Changes how it behaves.
    pub(super) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state().faults);
        self.shared.changed.notify_all();
    }

    /// Closes all connections.
    pub(super) fn hang_up(&self) {
        self.state().hang_up();
    }

    /// Forgets everything, as a server does that is started again.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.starts = state.starts.saturating_add(1);
        state.begin(self.addr);
        state.hang_up();
    }

    /// Runs commands as if somebody had sent them, whatever the faults are, and nothing in between. Returns what it says to
    /// the last.
    pub(super) fn say(&self, bytes: &[u8]) -> Option<Reply> {
        let (mut rest, mut last) = (bytes, None);
        let mut state = self.state();
        while let Ok(Some((command, len))) = parse(rest) {
            last = Some(state.execute(&command).reply);
            rest = rest.get(len..)?;
        }
        last
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.state();
            state.is_over = true;
            state.hang_up();
            std::mem::take(&mut state.threads)
        };
        self.shared.changed.notify_all();
        drop(self.reserve.take());
        // It looks at `is_over` when a connection comes, or cannot be taken.
        drop(TcpStream::connect_timeout(&self.addr, GRACE));
        let deadline = deadline(GRACE);
        threads.into_values().for_each(|it| drop(it.join_until(deadline)));
    }
}

/// Shows nothing of what is stored: owner tokens are secrets.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// A listener, where it is, and a copy of it.
fn listen(on: Ipv4Addr) -> io::Result<(TcpListener, SocketAddr, TcpListener)> {
    let all = |it: TcpListener| Ok((it.try_clone()?, it.local_addr()?, it));
    TcpListener::bind((on, 0)).and_then(all).map_err(|err| {
        let needs = "a stand-in needs a loopback interface, a free port and some file descriptors (ulimit -n)";
        io::Error::new(err.kind(), format!("no port on {on}: {err}; {needs}"))
    })
}

/// The id of a process: 40 digits.
fn run_id(addr: SocketAddr, starts: u64) -> String {
    format!("{:010}{:010}{starts:020}", std::process::id(), addr.port())
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, name: &str) {
    for stream in listener.incoming() {
        let mut state = shared.state.lock();
        if state.is_over {
            return;
        }
        if stream.is_err() {
            // There is no file descriptor for it, and it is there until there is one.
            shared.changed.wait_until(&mut state, deadline(ACCEPT_PAUSE));
        }
        // One that is down still has its port, so that nobody else takes it: its connections end at once.
        let Some(stream) = stream.ok().filter(|_| !state.faults.is_down) else { continue };
        state.last = state.last.saturating_add(1);
        let number = state.last;
        let Ok(writer) = stream.set_nodelay(true).and_then(|()| stream.try_clone()) else { continue };
        let _ = writer.set_write_timeout(Some(WRITE_TIMEOUT));
        let connection = Connection { stream: writer, channels: BTreeSet::new(), resp3: false, is_gone: false };
        state.connections.insert(number, connection);
        let theirs = Arc::clone(shared);
        match OwnThread::spawn(name.to_owned(), move || serve(&theirs, number, stream)) {
            Ok(thread) => drop(state.threads.insert(number, thread)),
            Err(_) => state.close(number),
        }
    }
}

fn serve(shared: &Shared, number: u64, mut stream: TcpStream) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        let read = stream.read(&mut chunk).ok().filter(|it| *it != 0).and_then(|it| chunk.get(..it));
        let Some(read) = read else { break };
        bytes.extend_from_slice(read);
        let mut state = shared.wait();
        let Ok(()) = state.answer(number, &mut bytes) else { break };
    }
    let mut state = shared.state.lock();
    state.close(number);
    // A thread that has ended keeps its stack until nobody can join it any more.
    state.threads.remove(&number);
}

impl Shared {
    /// Waits for as long as the node is paused, and for its delay.
    fn wait(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let until = deadline(state.faults.delay);
        while !state.faults.delay.is_zero() && !state.is_over {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        while state.faults.is_paused && !state.is_over {
            self.changed.wait(&mut state);
        }
        state
    }
}

/// The connection is to be closed.
struct Close;

impl From<NoCommand> for Close {
    fn from(_: NoCommand) -> Close {
        Close
    }
}

impl State {
    /// What its clock shows, since 1970.
    pub(super) fn now(&self) -> Duration {
        wall_clock().saturating_add(self.ahead.by())
    }

    /// A new process with nothing stored, which counts its time from now on.
    fn begin(&mut self, addr: SocketAddr) {
        self.store = Store::new(&run_id(addr, self.starts));
        drop(self.store.contents(self.now()));
    }

    fn hang_up(&mut self) {
        for connection in std::mem::take(&mut self.connections).into_values() {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }

    fn close(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }

    /// Runs all complete commands that have come on a connection, and answers them.
    fn answer(&mut self, number: u64, bytes: &mut Vec<u8>) -> Result<(), Close> {
        let (mut answers, mut end) = (Vec::new(), Ok(()));
        while end.is_ok() {
            let Some((command, len)) = parse(bytes)? else { break };
            bytes.drain(..len);
            // What is told in between comes in its place.
            self.write(number, &std::mem::take(&mut answers));
            end = self.run(number, &command, &mut answers);
        }
        self.write(number, &answers);
        end
    }

    fn run(&mut self, number: u64, command: &[Vec<u8>], out: &mut Vec<u8>) -> Result<(), Close> {
        let connection = self.connections.get_mut(&number).ok_or(Close)?;
        let name = command.first().map(|it| it.to_ascii_uppercase()).unwrap_or_default();
        let second = command.get(1).map(|it| &it[..]).unwrap_or_default();
        match &name[..] {
            b"HELLO" => {
                connection.resp3 = second == b"3";
                out.extend_from_slice(if connection.resp3 { b"%1\r\n" } else { b"*2\r\n" });
                out.extend_from_slice(b"$6\r\nserver\r\n$5\r\nredis\r\n");
            }
            b"CLIENT" if second.eq_ignore_ascii_case(b"kill") => {
                let resp3 = connection.resp3;
                self.kill_others(number, command).write_to(out, resp3);
            }
            b"PUBSUB" if second.eq_ignore_ascii_case(b"channels") => {
                let resp3 = connection.resp3;
                let begin = command.get(2).map(|it| it.strip_suffix(b"*").unwrap_or(it)).unwrap_or_default();
                let open = self.connections.values().flat_map(|it| &it.channels).filter(|it| it.starts_with(begin));
                let open: BTreeSet<_> = open.collect();
                Reply::Array(open.into_iter().map(Reply::bulk).collect()).write_to(out, resp3);
            }
            b"AUTH" | b"CLIENT" | b"SELECT" => Reply::OK.write_to(out, connection.resp3),
            b"SUBSCRIBE" => {
                connection.channels.insert(second.to_vec());
                push(out, connection.resp3, [&b"subscribe"[..], second], Some(connection.channels.len()));
            }
            b"EVALSHA" | b"EVAL" => {
                let (reply, counts) = match &self.faults.refusal {
                    Some(refusal) => (Reply::Error(refusal.text().to_owned()), true),
                    None => {
                        let done = self.execute(command);
                        (done.reply, done.ran.is_some())
                    }
                };
                self.commands = self.commands.saturating_add(u64::from(counts));
                if let Some(left) = self.faults.dropped.checked_sub(1) {
                    self.faults.dropped = left;
                    return Err(Close);
                }
                let resp3 = self.connections.get(&number).is_some_and(|it| it.resp3);
                reply.write_to(out, resp3);
            }
            _ => {
                let resp3 = connection.resp3;
                self.execute(command).reply.write_to(out, resp3);
            }
        }
        Ok(())
    }

    /// `CLIENT KILL SKIPME yes`; with `TYPE pubsub`, of those that listen only.
    fn kill_others(&mut self, own: u64, command: &[Vec<u8>]) -> Reply {
        let only_listening = command.iter().any(|it| it.eq_ignore_ascii_case(b"pubsub"));
        let others = self.connections.iter().filter(|it| *it.0 != own && !(only_listening && it.1.channels.is_empty()));
        let others: Vec<_> = others.map(|it| *it.0).collect();
        others.iter().for_each(|it| self.close(*it));
        Reply::Int(i64::try_from(others.len()).unwrap_or(i64::MAX))
    }

    fn execute(&mut self, command: &[Vec<u8>]) -> Done {
        let (connections, now) = (&self.connections, self.now());
        let listeners = |channel: &[u8]| connections.values().filter(|it| it.channels.contains(channel)).count();
        let mut done = self.store.execute(command, now, &listeners);
        for Notice { channel, message } in std::mem::take(&mut done.notices) {
            let listening = self.connections.iter().filter(|it| it.1.channels.contains(&channel));
            let listening: Vec<_> = listening.map(|(number, it)| (*number, it.resp3)).collect();
            for (number, resp3) in listening {
                let mut told = Vec::new();
                push(&mut told, resp3, [&b"message"[..], &channel, &message], None);
                self.write(number, &told);
            }
        }
        done
    }

    fn write(&mut self, number: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&number).filter(|it| !it.is_gone && !bytes.is_empty()) else {
            return;
        };
        connection.is_gone = connection.stream.write_all(bytes).is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_without_loopback_says_what_it_needs() {
        // Addresses for examples: no machine has one.
        let err = listen(Ipv4Addr::new(192, 0, 2, 1)).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(err.to_string().starts_with("no port on 192.0.2.1: "), "{err}");
        assert!(err.to_string().contains("needs a loopback interface"), "{err}");
    }

    #[test]
    fn what_was_sent_before_a_connection_ended_is_run_though_nobody_reads_the_answers() {
        let server = Server::start(0, &Ahead::default()).unwrap();
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        // The end of a connection with an answer that nobody has read is heard at once by who writes to it.
        while stream.peek(&mut [0; 7]).unwrap() < 7 {}
        server.state().faults.is_paused = true;
        let set = |key: &str| format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n$1\r\nx\r\n");
        stream.write_all(format!("{}{}{}", set("a"), set("b"), set("c")).as_bytes()).unwrap();
        drop(stream);
        {
            server.state().faults.is_paused = false;
            server.shared.changed.notify_all();
        }
        while server.state().threads.len() != 1 {
            std::thread::yield_now();
        }
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.write_all(b"*4\r\n$6\r\nEXISTS\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n").unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b":3\r\n");
    }

    #[test]
    fn connections_to_a_stand_in_that_have_ended_leave_no_threads() {
        let server = Server::start(0, &Ahead::default()).unwrap();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(server.addr()).unwrap();
            stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
            stream.read_exact(&mut [0; 7]).unwrap();
        }
        while server.state().threads.len() != 1 {
            std::thread::yield_now();
        }
    }
}
