//! A network: this program, run once more with [`FLAG`], passes on what clients and servers say to each other, later.
//!
//! Each server has a port of its own here, and a thread that passes on everything for it, with a queue for each
//! direction of each connection. So the threads need little time, and a delay shifts what comes through without
//! slowing it: nothing waits for what came before it to arrive.
//!
//! Every piece takes half of the round trip, and up to a fifth of that longer; one of a hundred takes five times as
//! long, and what follows on the same connection comes behind it, as after a lost packet. The way to the last server is
//! [longer](SLOW) by a factor. Only connecting takes no time.
//!
//! ```text
//! --proxy <round trip in microseconds> <url> ...
//! <- <port> ...
//! ```
//!
//! It ends when its input does.

mod flow;

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use self::flow::Link;
use super::line::{addrs, number};
use super::stats::cpu_of;

/// The first argument of such a process.
pub(crate) const FLAG: &str = "--proxy";
/// How many times as long it takes to the last server and back.
pub(crate) const SLOW: u32 = 10;

/// A running one.
pub(crate) struct Proxy {
    child: Child,
    /// Its end is the end of the process.
    _input: ChildStdin,
    addrs: Vec<SocketAddr>,
}

impl Proxy {
    /// Starts one before the servers at these URLs.
    ///
    /// # Errors
    ///
    /// If the process does not start, or does not say where it listens.
    pub(crate) fn start(round_trip: Duration, urls: &[String]) -> io::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args([FLAG, &round_trip.as_micros().to_string()])
            .args(urls)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("the proxy does not say where it listens");
        let input = child.stdin.take().ok_or_else(missing)?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or_else(missing)?).read_line(&mut line)?;
        let ports = line
            .split_whitespace()
            .map(number)
            .collect::<io::Result<Vec<u16>>>()?;
        if ports.len() != urls.len() {
            return Err(missing());
        }
        let addrs = ports
            .into_iter()
            .map(|it| SocketAddr::from((Ipv4Addr::LOCALHOST, it)))
            .collect();
        Ok(Self {
            child,
            _input: input,
            addrs,
        })
    }

    /// Where clients connect to, in the order of the servers.
    pub(crate) fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Processor time of the process.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        cpu_of(self.child.id())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Passes on until the input ends.
pub(crate) fn run(args: &[String]) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("a proxy of the bench: {err}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &[String]) -> io::Result<()> {
    let (round_trip, urls) = args
        .split_first()
        .ok_or_else(|| io::Error::other("no round trip"))?;
    let (way, targets) = (Duration::from_micros(number(round_trip)?) / 2, addrs(urls)?);
    let mut ports = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        ports.push(listener.local_addr()?.port().to_string());
        let way = if i + 1 == targets.len() {
            way * SLOW
        } else {
            way
        };
        let mut link = Link::new(listener, *target, way, i as u64)?;
        thread::Builder::new()
            .name(format!("link {i}"))
            .spawn(move || {
                let Err(err) = link.run();
                eprintln!("a proxy of the bench: link {i}: {err}");
            })?;
    }
    println!("{}", ports.join(" "));
    io::stdout().flush()?;
    io::stdin().lines().try_for_each(|it| it.map(drop))
}
