//! One real server process.

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Child;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use std::{env, thread};

use rustix::process::{Signal, kill_process};

use crate::child::has_stopped;
use crate::client::{Client, Reply};
use crate::find;
use crate::launch::*;
use crate::port::BUS;
use crate::tls::{Authority, Certificate, Terminator, in_front_of, put_in_front_of};
use crate::wait::wait_for;
use crate::watchdog::Watchdog;
use crate::{Clock, Error, lock};

/// How a server is to be started. Made by [`Server::builder`].
#[derive(Debug, Clone, Default)]
pub struct Builder {
    pub(crate) args: Vec<OsString>,
    pub(crate) password: Option<String>,
    pub(crate) unix_socket: bool,
    /// The configuration of a sentinel, if it is one.
    pub(crate) sentinel: Option<String>,
    pub(crate) env: Vec<(OsString, OsString)>,
    /// One of a cluster: it has a second port, for the others of it.
    pub(crate) cluster: bool,
    /// It connects to others from an address of its own: see [`Server::source`].
    pub(crate) own_source: bool,
    pub(crate) stepped_clock: bool,
    pub(crate) own_tls: Option<OwnTls>,
}

/// Of a server with TLS of its own. Servers talk to each other by it, and not without.
#[derive(Debug, Clone)]
pub(crate) struct OwnTls {
    pub(crate) certificate: Certificate,
    /// As PEM.
    pub(crate) authority: String,
}

impl OwnTls {
    pub(crate) fn new(certificate: &Certificate, authority: &Authority) -> Self {
        Self {
            certificate: certificate.clone(),
            authority: authority.pem().to_owned(),
        }
    }
}

impl Builder {
    /// Adds an option and its value, such as `.arg("--maxmemory", "1mb")`. Later ones win, also over this crate's own.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.into(), value.into()]);
        self
    }

    /// Every connection must authenticate. The URLs carry the password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Also listens on a unix socket, see [`Server::unix_url`].
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Adds a variable to the server's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Writes every change to a file before it is answered to, so that [`Server::restart`] brings back what was there.
    pub fn appendonly(self) -> Self {
        // With `everysec` a server keeps writes to itself for up to two seconds while a sync takes long.
        self.arg("--appendonly", "yes").arg("--appendfsync", "no")
    }

    /// Gives the server a wall clock of its own, for [`Server::step_clock_forward`] and the like. Linux only: ask
    /// [`Clock::available`] first.
    pub fn stepped_clock(mut self) -> Self {
        self.stepped_clock = true;
        self
    }

    /// Also speaks TLS, on [another port](Server::tls_addr), with this certificate; trusts the authority, and asks clients for no
    /// certificate. A server that was built without TLS does not start: the error is [`Error::is_no_tls`].
    pub fn own_tls(mut self, certificate: &Certificate, authority: &Authority) -> Self {
        self.own_tls = Some(OwnTls::new(certificate, authority));
        self
    }

    /// One of several that replicate each other, with this password.
    pub(crate) fn replicating(mut self, password: Option<&str>, own_tls: Option<&OwnTls>) -> Self {
        self.own_tls = own_tls.cloned();
        if let Some(password) = password {
            self = self.password(password).arg("--masterauth", password);
        }
        // It waits five seconds for further replicas otherwise.
        self.arg("--repl-diskless-sync-delay", "0")
    }

    /// Whether it is as [`Server::start`] starts it, but for its clock.
    pub(crate) fn has_no_options(&self) -> bool {
        let is_alone =
            self.sentinel.is_none() && !self.cluster && !self.own_source && self.own_tls.is_none();
        is_alone && self.args.is_empty() && self.password.is_none() && !self.unix_socket
    }

    /// Starts the server; blocks until it answers.
    ///
    /// # Errors
    ///
    /// There is no server binary, or the server ended or did not answer: the end of its log is in the message.
    pub fn start(self) -> Result<Server, Error> {
        Server::start_with(self)
    }
}

/// A server on 127.0.0.1 that keeps nothing on disk, unless told to. Dropping it kills it and removes its folder.
///
/// Shared by reference: every method takes `&self`.
#[derive(Debug)]
pub struct Server {
    /// Kept: it ends when it is dropped. Before the port is free: what stands in front of the next server on it would end as well.
    _front: Option<Terminator>,
    setup: Setup,
    process: Mutex<Process>,
    /// With the start it belongs to: one from before a restart is of no use.
    client: Mutex<Option<(u64, Client)>>,
    watchdog: Mutex<Watchdog>,
    clock: Option<Clock>,
}

#[derive(Debug)]
struct Process {
    /// Never reaped before [`Server::end`], so its id stays its own.
    child: Child,
    ended: bool,
    paused: bool,
    starts: u64,
}

impl Server {
    /// Starts a server without a password; blocks until it answers.
    pub fn start() -> Result<Self, Error> {
        Self::builder().start()
    }

    /// To start a server with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn start_with(mut spec: Builder) -> Result<Self, Error> {
        let binary = find::decided()?;
        let folder = tempfile::Builder::new()
            .prefix("devnodes-")
            .tempdir_in(env::temp_dir())
            .map_err(|e| Error::of("a folder for a server", e))?;
        let clock = spec
            .stepped_clock
            .then(|| Clock::create(folder.path()))
            .transpose()?;
        spec.env.extend(clock.iter().flat_map(Clock::environment));
        let mut watchdog = Watchdog::start(folder.path())?;
        let mut setup = Setup {
            ports: Ports::choose(&spec)?,
            spec,
            binary,
            folder,
        };
        for _ in 0..20 {
            match launch(&setup, &mut watchdog) {
                Ok(child) => {
                    return Ok(Self {
                        _front: put_in_front_of(setup.ports.plain.addr())?,
                        setup,
                        process: Mutex::new(Process::new(child, 1)),
                        client: Mutex::new(None),
                        watchdog: Mutex::new(watchdog),
                        clock,
                    });
                }
                Err(Failed::PortTaken(_)) => setup.ports = Ports::choose(&setup.spec)?,
                Err(Failed::Other(e)) => return Err(e),
            }
        }
        Err(Error::new(
            "20 ports in a row were taken before the server could bind them",
        ))
    }

    /// `redis://127.0.0.1:PORT`, with `:password@` if there is one. `rediss://` and another port if TLS was
    /// put in front of it.
    pub fn url(&self) -> String {
        let (scheme, addr) =
            in_front_of(self.addr()).map_or(("redis", self.addr()), |front| ("rediss", front));
        match &self.setup.spec.password {
            Some(password) => format!("{scheme}://:{}@{addr}", encoded(password)),
            None => format!("{scheme}://{addr}"),
        }
    }

    /// `redis+unix:///path`, with `?pass=password` if there is one.
    ///
    /// # Panics
    ///
    /// The server was started without [`Builder::unix_socket`].
    #[track_caller]
    pub fn unix_url(&self) -> String {
        assert!(
            self.setup.spec.unix_socket,
            "started without .unix_socket()"
        );
        let path = socket_path(self.setup.folder.path());
        let path = path.display();
        match &self.setup.spec.password {
            Some(password) => format!("redis+unix://{path}?pass={}", encoded(password)),
            None => format!("redis+unix://{path}"),
        }
    }

    /// Where it listens, also while it is down: a restart keeps the port.
    pub fn addr(&self) -> SocketAddr {
        self.setup.ports.plain.addr()
    }

    /// The port of [`addr`](Self::addr).
    pub fn port(&self) -> u16 {
        self.setup.ports.plain.number()
    }

    /// Where it listens for TLS.
    ///
    /// # Panics
    ///
    /// The server was started without [`Builder::own_tls`].
    #[track_caller]
    pub fn tls_addr(&self) -> SocketAddr {
        let port = self.setup.ports.tls.as_ref();
        port.expect("started with .own_tls()").addr()
    }

    /// Whether it listens there, for TLS or without.
    pub(crate) fn listens_at(&self, port: i64) -> bool {
        let Ports { plain, tls, .. } = &self.setup.ports;
        let mut ports = [plain].into_iter().chain(tls);
        ports.any(|it| i64::from(it.number()) == port)
    }

    /// Where servers talk to each other.
    pub(crate) fn addr_for_others(&self) -> SocketAddr {
        self.setup.ports.for_others().addr()
    }

    /// Where the others of a cluster reach it.
    pub(crate) fn bus(&self) -> Option<SocketAddr> {
        let addr = self.addr_for_others();
        Some(SocketAddr::new(addr.ip(), addr.port().checked_add(BUS)?))
    }

    /// Where its connections to others come from, if that is an address of its own.
    pub(crate) fn source(&self) -> IpAddr {
        source_of(&self.setup.ports.plain).into()
    }

    /// The process id; of the last process, if it is down.
    pub fn pid(&self) -> u32 {
        self.process().child.id()
    }

    /// Everything the server has logged, restarts included.
    pub fn log(&self) -> String {
        read_log(self.setup.folder.path())
    }

    /// Stops the process where it is (SIGSTOP) and returns when it has stopped.
    ///
    /// The system still accepts connections for it, and takes bytes; nothing is answered before [`resume`](Self::resume).
    pub fn pause(&self) -> Result<(), Error> {
        let mut process = self.process();
        process.signal(Signal::STOP)?;
        process.paused = true;
        let id = process.child.id();
        wait_for(
            || format!("the server on port {} stops", self.port()),
            || has_stopped(id),
        )
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) -> Result<(), Error> {
        let mut process = self.process();
        process.signal(Signal::CONT)?;
        process.paused = false;
        Ok(())
    }

    /// Kills the process (SIGKILL) and returns when it is gone. Its port stays reserved. Nothing happens if it is down.
    pub fn kill(&self) -> Result<(), Error> {
        self.end(&mut self.process())
    }

    /// Starts it again on the same port, killing it first if it is up; blocks until it answers. It is empty, unless it
    /// was started with [`Builder::appendonly`].
    pub fn restart(&self) -> Result<(), Error> {
        let mut process = self.process();
        self.end(&mut process)?;
        self.launch_again(&mut process)
    }

    /// As [`restart`](Self::restart), but empty in any case.
    pub fn restart_empty(&self) -> Result<(), Error> {
        let mut process = self.process();
        self.end(&mut process)?;
        // Redis 7 has a folder of files, Redis 6 one file.
        for name in ["appendonlydir", "appendonly.aof"] {
            let path = self.setup.folder.path().join(name);
            let gone = if path.is_dir() {
                fs::remove_dir_all(path)
            } else if path.exists() {
                fs::remove_file(path)
            } else {
                Ok(())
            };
            gone.map_err(|e| Error::of("emptying a server", e))?;
        }
        self.launch_again(&mut process)
    }

    fn launch_again(&self, process: &mut Process) -> Result<(), Error> {
        let mut watchdog = lock(&self.watchdog);
        let mut tries = 0;
        let child = loop {
            match launch(&self.setup, &mut watchdog) {
                Ok(child) => break child,
                // Another program has the port for a moment, and it must be this port.
                Err(Failed::PortTaken(_)) if tries < 50 => {
                    tries += 1;
                    thread::sleep(Duration::from_millis(100));
                }
                Err(Failed::PortTaken(e) | Failed::Other(e)) => return Err(e),
            }
        };
        *process = Process::new(child, process.starts.wrapping_add(1));
        Ok(())
    }

    /// Steps the server's wall clock while it runs: keys expire earlier by that much. It stays stepped over a restart.
    /// Blocks until the server shows it, unless that is down or paused.
    ///
    /// # Panics
    ///
    /// As those below: the server was started without [`Builder::stepped_clock`].
    #[track_caller]
    pub fn step_clock_forward(&self, by: Duration) -> Result<(), Error> {
        self.clock().step_forward(by)?;
        self.wait_for_clock()
    }

    /// Steps the server's wall clock back while it runs: keys live longer by that much.
    #[track_caller]
    pub fn step_clock_back(&self, by: Duration) -> Result<(), Error> {
        self.clock().step_back(by)?;
        self.wait_for_clock()
    }

    /// Redis looks at its clock in every turn of its loop. Valkey counts on from an earlier look, so a step shows up later.
    fn wait_for_clock(&self) -> Result<(), Error> {
        let set = || format!("the clock of {} shows what was set", self.addr());
        wait_for(set, || {
            // A server that is paused, or down, or busy shows nothing to anybody.
            if !self.is_running() || self.is_paused() {
                return true;
            }
            let (Some(shown), Ok(expected)) = (self.time(), self.clock().now()) else {
                return true;
            };
            shown.abs_diff(expected) < 50_000_000
        })
    }

    /// What its clock shows, in nanoseconds since 1970, if it tells.
    fn time(&self) -> Option<i64> {
        let reply = self.command(&["TIME"]).ok()?;
        let parts: Vec<i64> = reply
            .as_array()?
            .iter()
            .filter_map(|it| it.as_str()?.parse().ok())
            .collect();
        let [seconds, micros] = parts[..] else {
            return None;
        };
        seconds
            .checked_mul(1_000_000)?
            .checked_add(micros)?
            .checked_mul(1_000)
    }

    /// Lets the server's wall clock run fast from now on, by so many parts per million; slow, if negative.
    #[track_caller]
    pub fn set_clock_rate(&self, ppm: i64) -> Result<(), Error> {
        self.clock().set_rate(ppm)
    }

    /// How far the server's wall clock is ahead of the system's right now, in nanoseconds.
    #[track_caller]
    pub fn clock_ahead(&self) -> Result<i64, Error> {
        self.clock().ahead()
    }

    /// True while the process exists, paused or not.
    pub fn is_running(&self) -> bool {
        let process = self.process();
        !process.ended && !has_exited(&process.child)
    }

    /// True between [`pause`](Self::pause) and [`resume`](Self::resume).
    pub fn is_paused(&self) -> bool {
        let process = self.process();
        process.paused && !process.ended
    }

    /// A connection of its own, authenticated.
    pub fn client(&self) -> Result<Client, Error> {
        Client::connect(self.addr(), self.setup.spec.password.as_deref())
    }

    /// Sends one command, over a connection that this server object keeps for its own questions.
    ///
    /// # Errors
    ///
    /// The server is down or silent for [`PATIENCE`](crate::PATIENCE), or answered with an error.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Reply, Error> {
        let starts = self.process().starts;
        let mut kept = lock(&self.client);
        if let Some((_, mut client)) = kept.take().filter(|(of, _)| *of == starts) {
            // A test may have closed it (CLIENT KILL): nothing was done then, and a new connection is as good.
            match client.request(args) {
                Err(e) if e == Client::closed() => {}
                Err(e) => return Err(e),
                Ok(reply) => {
                    *kept = Some((starts, client));
                    return reply.or_error(args);
                }
            }
        }
        let mut client = self.client()?;
        let reply = client.request(args)?;
        *kept = Some((starts, client));
        reply.or_error(args)
    }

    /// How many keys there are.
    ///
    /// # Panics
    ///
    /// As the other questions below: the server does not answer, or the key holds something else.
    #[track_caller]
    pub fn key_count(&self) -> usize {
        let count = self
            .ask(&["DBSIZE"])
            .as_int()
            .and_then(|n| usize::try_from(n).ok());
        count.expect("DBSIZE is answered with a number")
    }

    /// Whether it says that it is no replica.
    pub(crate) fn is_primary(&self) -> bool {
        let role = self.command(&["ROLE"]).ok();
        let role = role.as_ref().and_then(Reply::as_array);
        role.is_some_and(|it| it.first().and_then(Reply::as_str) == Some("master"))
    }

    /// The string stored at `key`.
    #[track_caller]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.ask(&[b"GET".as_slice(), key.as_ref()])
            .as_bytes()
            .map(<[u8]>::to_vec)
    }

    /// Milliseconds until `key` goes: -1 if never, -2 if there is none.
    #[track_caller]
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> i64 {
        self.ask(&[b"PTTL".as_slice(), key.as_ref()])
            .as_int()
            .expect("PTTL is answered with a number")
    }

    /// Whether there is a `key`.
    #[track_caller]
    pub fn exists(&self, key: impl AsRef<[u8]>) -> bool {
        self.ask(&[b"EXISTS".as_slice(), key.as_ref()]).as_int() == Some(1)
    }

    /// One field of `INFO all`, such as `connected_clients`. This object's own connection is among them.
    #[track_caller]
    pub fn info(&self, field: &str) -> Option<String> {
        info_field(&self.ask(&["INFO", "all"]), field)
    }

    #[track_caller]
    fn ask<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        match self.command(args) {
            Ok(reply) => reply,
            Err(e) => panic!("the server on port {}: {e}", self.port()),
        }
    }

    #[track_caller]
    fn clock(&self) -> &Clock {
        self.clock
            .as_ref()
            .expect("the server was started with .stepped_clock()")
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        lock(&self.process)
    }

    fn end(&self, process: &mut Process) -> Result<(), Error> {
        if process.ended {
            return Ok(());
        }
        let told = end(&mut process.child, &mut lock(&self.watchdog));
        process.ended = true;
        process.paused = false;
        told
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() && !self.process().ended && !self.is_running() {
            eprintln!(
                "the server on port {} has ended by itself: {}",
                self.port(),
                self.log()
            );
        }
        let _ = self.kill();
    }
}

impl Process {
    fn new(child: Child, starts: u64) -> Process {
        Process {
            child,
            ended: false,
            paused: false,
            starts,
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        if self.ended || has_exited(&self.child) {
            return Err(Error::new("the server is down"));
        }
        kill_process(id_of(&self.child)?, signal).map_err(|e| Error::of("sending a signal", e))
    }
}

/// A password as URLs write it.
fn encoded(password: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    password
        .bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}
