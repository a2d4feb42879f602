//! Stand-ins as if they were the servers of the crate `devnodes`, with as much of its interface as they can have.
//!
//! They have no processes, logs or configurations of their own, and know few commands. What is asked of them and is not here
//! does not compile, and what they do not know is an error.

use std::net::SocketAddr;
use std::ops::Index;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorlock::testing::Nodes;

pub use servers::{
    ChildProcess, Client, Clock, Error, FakeConn, FakeServer, PATIENCE, Proxy, Reply, client, eventually, fake, say,
};

/// One stand-in.
#[derive(Debug)]
pub struct Server {
    /// It alone.
    nodes: Nodes,
    is_down: AtomicBool,
    is_paused: AtomicBool,
}

/// How one is to be started: with options, which stand-ins do not have.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    options: Vec<String>,
}

impl Builder {
    fn with(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// An option of a server.
    pub fn arg(self, name: &str, value: &str) -> Self {
        self.with(format!("{name} {value}"))
    }

    /// A password.
    pub fn password(self, _: &str) -> Self {
        self.with("password")
    }

    /// A socket in the file system.
    pub fn unix_socket(self) -> Self {
        self.with("socket")
    }

    /// Data on disk.
    pub fn appendonly(self) -> Self {
        self.with("data on disk")
    }

    /// Each has a time of its own.
    pub fn stepped_clock(self) -> Self {
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// It was given an option, or there is no port.
    pub fn start(self) -> Result<Server, Error> {
        match &self.options[..] {
            [] => Server::start(),
            options => Err(Error::new(format!("stand-ins have no {}", options.join(", ")))),
        }
    }
}

impl Server {
    /// To start one with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub fn start() -> Result<Server, Error> {
        let nodes = Nodes::start(1).map_err(|it| Error::new(it.to_string()))?;
        Ok(Server { nodes, is_down: AtomicBool::new(false), is_paused: AtomicBool::new(false) })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    /// The same, as an address.
    ///
    /// # Panics
    ///
    /// Never: its URL has one.
    pub fn addr(&self) -> SocketAddr {
        self.url().trim_start_matches("redis://").parse().expect("its URL is an address")
    }

    /// The port of that.
    pub fn port(&self) -> u16 {
        self.addr().port()
    }

    /// There is none.
    ///
    /// # Panics
    ///
    /// Always.
    pub fn unix_url(&self) -> String {
        panic!("stand-ins have no sockets in the file system")
    }

    /// Sets its clock forward.
    ///
    /// # Errors
    ///
    /// None.
    pub fn step_clock_forward(&self, by: Duration) -> Result<(), Error> {
        self.nodes.advance(by);
        Ok(())
    }

    /// Does not set its clock back.
    ///
    /// # Errors
    ///
    /// Always: time only goes on.
    pub fn step_clock_back(&self, _: Duration) -> Result<(), Error> {
        Err(Error::new("the clocks of stand-ins cannot be set back"))
    }

    /// Ends it: everything that it has stored is gone.
    ///
    /// # Errors
    ///
    /// None. A process could have some.
    pub fn kill(&self) -> Result<(), Error> {
        self.is_down.store(true, Ordering::Relaxed);
        self.nodes[0].down();
        self.nodes[0].forget();
        self.nodes[0].resume();
        self.is_paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Starts it again, with nothing stored.
    ///
    /// # Errors
    ///
    /// As [`kill`](Server::kill).
    pub fn restart(&self) -> Result<(), Error> {
        self.kill()?;
        self.nodes[0].up();
        self.is_down.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The same: it never keeps anything.
    ///
    /// # Errors
    ///
    /// As [`kill`](Server::kill).
    pub fn restart_empty(&self) -> Result<(), Error> {
        self.restart()
    }

    /// It reads nothing until it is resumed.
    ///
    /// # Errors
    ///
    /// As [`kill`](Server::kill).
    pub fn pause(&self) -> Result<(), Error> {
        self.nodes[0].pause();
        self.is_paused.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// It reads again.
    ///
    /// # Errors
    ///
    /// As [`kill`](Server::kill).
    pub fn resume(&self) -> Result<(), Error> {
        self.nodes[0].resume();
        self.is_paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// True until it is killed.
    pub fn is_running(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
    }

    /// True between [`pause`](Server::pause) and [`resume`](Server::resume).
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// A connection of its own.
    ///
    /// # Errors
    ///
    /// It is down.
    pub fn client(&self) -> Result<Client, Error> {
        Client::connect(self.addr(), None)
    }

    /// Sends one command.
    ///
    /// # Errors
    ///
    /// It is down, or answers with an error.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Reply, Error> {
        self.client()?.command(args)
    }

    /// The string stored at `key`.
    ///
    /// # Panics
    ///
    /// It does not answer.
    #[track_caller]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.command(&[b"GET", key.as_ref()]).unwrap().as_bytes().map(<[u8]>::to_vec)
    }

    /// Milliseconds until `key` goes: -1 if never, -2 if there is none.
    ///
    /// # Panics
    ///
    /// It does not answer.
    #[track_caller]
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> i64 {
        self.command(&[b"PTTL", key.as_ref()]).unwrap().as_int().unwrap()
    }

    /// Whether there is a `key`.
    ///
    /// # Panics
    ///
    /// It does not answer.
    #[track_caller]
    pub fn exists(&self, key: impl AsRef<[u8]>) -> bool {
        self.command(&[b"EXISTS", key.as_ref()]).unwrap().as_int() == Some(1)
    }

    /// How many keys there are.
    ///
    /// # Panics
    ///
    /// It does not answer.
    #[track_caller]
    pub fn key_count(&self) -> usize {
        let count = self.command(&["DBSIZE"]).unwrap().as_int();
        count.and_then(|it| usize::try_from(it).ok()).unwrap()
    }

    /// One field of `INFO`.
    ///
    /// # Panics
    ///
    /// It does not answer.
    #[track_caller]
    pub fn info(&self, field: &str) -> Option<String> {
        if field == "cmdstat_evalsha" {
            return Some(format!("calls={},usec=0", self.nodes[0].commands()));
        }
        let said = self.command(&["INFO"]).unwrap();
        said.as_str()?.lines().find_map(|it| it.strip_prefix(field)?.strip_prefix(':').map(str::to_owned))
    }
}

/// Several of them.
#[derive(Debug)]
pub struct Servers(Vec<Server>);

impl Servers {
    /// Starts so many.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub fn start(n: usize) -> Result<Servers, Error> {
        (0..n).map(|_| Server::start()).collect::<Result<_, _>>().map(Servers)
    }

    /// The same with options.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub fn start_with(n: usize, options: impl Fn(Builder) -> Builder) -> Result<Self, Error> {
        (0..n).map(|_| options(Server::builder()).start()).collect::<Result<_, _>>().map(Servers)
    }

    /// The URL of each, in order.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Server::url).collect()
    }

    /// All of them, in order.
    pub fn iter(&self) -> slice::Iter<'_, Server> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if none were asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// On how many of those that can be asked `key` exists.
    #[track_caller]
    pub fn holders(&self, key: impl AsRef<[u8]>) -> usize {
        self.iter().filter(|it| it.is_running() && !it.is_paused() && it.exists(&key)).count()
    }

    /// Blocks until `key` exists on none that can be asked.
    ///
    /// # Errors
    ///
    /// None: it panics if the key stays.
    #[track_caller]
    pub fn wait_until_free(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        eventually("the key is gone from all of them", || self.holders(&key) == 0);
        Ok(())
    }
}

impl Index<usize> for Servers {
    type Output = Server;

    fn index(&self, index: usize) -> &Server {
        &self.0[index]
    }
}

impl<'a> IntoIterator for &'a Servers {
    type Item = &'a Server;
    type IntoIter = slice::Iter<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
