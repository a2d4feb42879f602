//! Servers that are none: they answer what a test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::port::Acceptor;
use crate::{Client, Error, Reply, lock};

/// A command's name and arguments.
pub type Command = Vec<Vec<u8>>;

/// A listener that runs a closure for each connection, in a thread of its own. Dropping it closes all connections.
#[derive(Debug)]
pub struct FakeServer {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    seen: Mutex<Vec<Command>>,
    /// Also those that are closed already: a test has few.
    streams: Mutex<Vec<TcpStream>>,
}

impl FakeServer {
    /// Runs `serve` for each connection; the connection is closed when it returns.
    pub fn start(serve: impl Fn(&mut FakeConn) + Send + Sync + 'static) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let serve = Arc::new(serve);
        let theirs = shared.clone();
        let acceptor = Acceptor::start("devnodes-fake", move |listener| {
            for stream in listener.incoming() {
                if theirs.stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    let _ = handle(stream, serve.clone(), theirs.clone());
                }
            }
        })?;
        Ok(Self { acceptor, shared })
    }

    /// Answers as the server at this address would, except where `instead` has another answer, which may be empty.
    pub fn speaking_for(
        server: SocketAddr,
        instead: impl Fn(&mut Client, &[Vec<u8>]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::start(move |conn| {
            let Ok(mut to) = Client::connect(server, None) else {
                return;
            };
            while let Some(command) = conn.read_command() {
                let reply = match instead(&mut to, &command) {
                    Some(reply) => reply,
                    // The real one is asked in the older protocol, whose answers this client knows too.
                    None if command[0] == b"HELLO" => b"%0\r\n".to_vec(),
                    None => match to.request(&command) {
                        Ok(reply) => encoded(&reply),
                        Err(_) => return,
                    },
                };
                if !conn.write(&reply) {
                    return;
                }
            }
        })
    }

    /// Reads all commands and answers none.
    pub fn silent() -> Result<Self, Error> {
        Self::start(|conn| while conn.read_command().is_some() {})
    }

    /// Answers every command with the same bytes.
    pub fn replying(bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        Self::start(move |conn| while conn.read_command().is_some() && conn.write(&bytes) {})
    }

    /// Answers every command with a line that is not RESP.
    pub fn garbage() -> Result<Self, Error> {
        Self::replying(*b"\x00\xff\xfeHTTP/1.1 400 Bad Request\r\n\r\n")
    }

    /// Answers the first command with the beginning of a bulk reply, and then nothing; stays connected.
    pub fn half_reply() -> Result<Self, Error> {
        Self::start(|conn| {
            if conn.read_command().is_some() && conn.write(b"$100\r\nhalf") {
                while conn.read_command().is_some() {}
            }
        })
    }

    /// As [`half_reply`](Self::half_reply), but closes the connection.
    pub fn half_reply_and_close() -> Result<Self, Error> {
        Self::start(|conn| {
            let _ = conn.read_command().is_some() && conn.write(b"$100\r\nhalf");
        })
    }

    /// Answers the first command with a bulk reply of `len` bytes, and streams zeros for as long as somebody reads:
    /// never more than `len`, so a large one.
    pub fn giant_bulk(len: u64) -> Result<Self, Error> {
        Self::start(move |conn| {
            if conn.read_command().is_none() || !conn.write(format!("${len}\r\n").as_bytes()) {
                return;
            }
            let zeros = vec![0; 64 * 1024];
            let mut left = len;
            while left > 0 {
                let now = usize::try_from(left).map_or(zeros.len(), |left| left.min(zeros.len()));
                if !conn.write(&zeros[..now]) {
                    return;
                }
                left -= now as u64;
            }
            if conn.write(b"\r\n") {
                while conn.read_command().is_some() {}
            }
        })
    }

    /// Accepts connections and closes them without reading.
    pub fn accept_and_close() -> Result<Self, Error> {
        Self::start(|_| ())
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.acceptor.addr()
    }

    /// Every command read so far, of all connections, in the order of reading.
    pub fn commands_seen(&self) -> Vec<Command> {
        lock(&self.shared.seen).clone()
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for stream in lock(&self.shared.streams).iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        lock(&self.shared.streams).len()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.acceptor.stop();
        // The closures end when their connections do; they are not waited for, as a test may block one on purpose.
        self.cut();
    }
}

/// One client's connection, as the closure of [`FakeServer::start`] sees it.
#[derive(Debug)]
pub struct FakeConn {
    stream: BufReader<TcpStream>,
    shared: Arc<Shared>,
}

impl FakeConn {
    /// The next command; blocks for it. `None` if the client closed, or sent anything but an array of bulk strings.
    pub fn read_command(&mut self) -> Option<Command> {
        let count = self.read_number('*')?;
        let mut command = Command::new();
        for _ in 0..count {
            let mut arg = vec![0; self.read_number('$')?];
            self.stream.read_exact(&mut arg).ok()?;
            self.stream.read_exact(&mut [0; 2]).ok()?;
            command.push(arg);
        }
        lock(&self.shared.seen).push(command.clone());
        Some(command)
    }

    /// Sends bytes as they are. False if the client is gone.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    fn read_number(&mut self, mark: char) -> Option<usize> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        line.strip_suffix("\r\n")?.strip_prefix(mark)?.parse().ok()
    }
}

fn handle<F>(stream: TcpStream, serve: Arc<F>, shared: Arc<Shared>) -> std::io::Result<()>
where
    F: Fn(&mut FakeConn) + Send + Sync + 'static,
{
    stream.set_nodelay(true)?;
    lock(&shared.streams).push(stream.try_clone()?);
    thread::Builder::new()
        .name("devnodes-fake".into())
        .spawn(move || {
            let mut conn = FakeConn {
                stream: BufReader::new(stream),
                shared,
            };
            serve(&mut conn);
            // The copy kept for Drop would hold it open.
            let _ = conn.stream.get_ref().shutdown(Shutdown::Both);
        })?;
    Ok(())
}

/// A reply as a server sends it.
pub fn encoded(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Simple(text) => format!("+{text}\r\n").into_bytes(),
        Reply::Error(text) => format!("-{text}\r\n").into_bytes(),
        Reply::Int(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Bulk(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        Reply::Nil => b"$-1\r\n".to_vec(),
        Reply::Array(items) => {
            let count = format!("*{}\r\n", items.len()).into_bytes();
            count
                .into_iter()
                .chain(items.iter().flat_map(encoded))
                .collect()
        }
    }
}
