//! A network that misbehaves on command.
//!
//! Each connection has two directions, each with a thread that reads and one that writes, and a queue between them. So
//! a delay shifts what comes through without slowing it, and what is held back is not lost.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::port::Acceptor;
use crate::tls::in_front_of;
use crate::{Error, lock};

/// Stands between a client and a server. Every setting takes effect at once, also on open connections, unless it says
/// otherwise. Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    is_secure: bool,
    settings: Mutex<Settings>,
    /// Told of every change to the settings, and of cut connections.
    changed: Condvar,
    links: Mutex<Vec<Arc<Link>>>,
    accepted: AtomicUsize,
}

#[derive(Debug, Default, Clone)]
struct Settings {
    delay: Duration,
    trickle: Duration,
    narrow: u32,
    hold_requests: bool,
    hold_replies: bool,
    black_hole: bool,
    refuse: bool,
    /// The servers of new connections, by turns.
    targets: Vec<SocketAddr>,
    shut_out: Option<IpAddr>,
    stopped: bool,
}

/// One client's connection, and the one made to the server for it.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    /// None if it fell into a black hole on arrival.
    server: Option<TcpStream>,
    /// Set once and for all: what was swallowed is missing from the stream.
    swallows: AtomicBool,
    cut: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

impl Proxy {
    /// Listens on a port of its own and passes everything on to `target`, which need not be up; to what speaks TLS for it, if
    /// something does.
    pub fn start(target: SocketAddr) -> Result<Self, Error> {
        let front = in_front_of(target);
        let shared = Arc::new(Shared {
            is_secure: front.is_some(),
            settings: Mutex::new(Settings {
                targets: vec![front.unwrap_or(target)],
                ..Settings::default()
            }),
            changed: Condvar::new(),
            links: Mutex::default(),
            accepted: AtomicUsize::new(0),
        });
        let theirs = shared.clone();
        let acceptor =
            Acceptor::start("devnodes-proxy", move |listener| accept(listener, &theirs))?;
        Ok(Self { acceptor, shared })
    }

    /// `redis://127.0.0.1:PORT`, without a password; `rediss://` where TLS passes through it.
    pub fn url(&self) -> String {
        format!(
            "redis{}://{}",
            if self.shared.is_secure { "s" } else { "" },
            self.addr()
        )
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.acceptor.addr()
    }

    /// Passes new connections on to another server, as a name does that has another address now.
    pub fn lead_to(&self, target: SocketAddr) {
        let target = in_front_of(target).unwrap_or(target);
        self.shared.set(|it| it.targets = vec![target]);
    }

    /// Passes every second connection on to another server, as a balancer does.
    pub fn spread_to(&self, second: SocketAddr) {
        let second = in_front_of(second).unwrap_or(second);
        self.shared.set(|it| it.targets.push(second));
    }

    /// Delays each piece of a reply by this much after its arrival. Zero, the default, ends it.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.set(|s| s.delay = delay);
    }

    /// Passes replies on one byte at a time, with this pause after each. Zero, the default, ends it.
    pub fn trickle(&self, pause: Duration) {
        self.shared.set(|s| s.trickle = pause);
    }

    /// Passes on so many bytes of requests a second on each connection, as a server does that has more to do than it can:
    /// what comes faster waits in line. Zero, the default, ends it.
    ///
    /// How many it is in a second does not depend on how busy the machine is: what is late is caught up with.
    pub fn narrow(&self, bytes_per_second: u32) {
        self.shared.set(|s| s.narrow = bytes_per_second);
    }

    /// Keeps replies back. The server still gets the requests, and does what they say.
    pub fn hold_replies(&self) {
        self.shared.set(|s| s.hold_replies = true);
    }

    /// Sends on the replies that were kept back.
    pub fn release_replies(&self) {
        self.shared.set(|s| s.hold_replies = false);
    }

    /// Keeps requests back, also those of clients that give up meanwhile.
    pub fn hold_requests(&self) {
        self.shared.set(|s| s.hold_requests = true);
    }

    /// Sends on the requests that were kept back, late as they are.
    pub fn release_requests(&self) {
        self.shared.set(|s| s.hold_requests = false);
    }

    /// Closes all connections, on both sides. What was kept back is lost. New connections are welcome.
    pub fn cut(&self) {
        for link in lock(&self.shared.links).drain(..) {
            link.cut();
        }
        self.shared.set(|_| ());
    }

    /// While true, new connections are accepted and closed at once. Open ones stay.
    pub fn refuse(&self, refuse: bool) {
        self.shared.set(|s| s.refuse = refuse);
    }

    /// Closes all connections of clients at this address, and lets nobody in who comes from there; none, the default, ends it.
    pub(crate) fn shut_out(&self, from: Option<IpAddr>) {
        // The lock order as below.
        let mut links = lock(&self.shared.links);
        links.retain(|link| {
            let stays = !link.is_from(from);
            if !stays {
                link.cut();
            }
            stays
        });
        self.shared.set(|s| s.shut_out = from);
    }

    /// While true, connections stay open and new ones are accepted, but all bytes are swallowed, both ways.
    ///
    /// A connection that was open meanwhile swallows for good: bytes are missing from it. Those made afterwards work.
    pub fn black_hole(&self, black_hole: bool) {
        // The lock order everywhere: links, then settings. See `admit`.
        let links = lock(&self.shared.links);
        if black_hole {
            for link in links.iter() {
                link.swallows.store(true, Ordering::SeqCst);
            }
        }
        self.shared.set(|s| s.black_hole = black_hole);
    }

    /// How many connections were ever accepted, refused ones included.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.set(|s| s.stopped = true);
        self.cut();
        self.acceptor.stop();
        self.cut(); // what came in between
    }
}

impl Shared {
    fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut lock(&self.settings));
        self.changed.notify_all();
    }

    /// Blocks until `ready` says that nothing is left to wait for: it returns how long to wait at most. False if the
    /// link was cut meanwhile.
    fn wait(&self, link: &Link, ready: impl Fn(&Settings) -> Option<Duration>) -> bool {
        let mut settings = lock(&self.settings);
        loop {
            if link.cut.load(Ordering::SeqCst) {
                return false;
            }
            let Some(longest) = ready(&settings) else {
                return true;
            };
            settings = match self.changed.wait_timeout(settings, longest) {
                Ok((settings, _)) => settings,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Link {
    fn is_from(&self, address: Option<IpAddr>) -> bool {
        address.is_some() && self.client.peer_addr().ok().map(|it| it.ip()) == address
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let settings = lock(&shared.settings).clone();
        if settings.stopped {
            return;
        }
        let Ok(client) = client else { continue };
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let target = settings.targets[number % settings.targets.len()];
        if settings.refuse {
            let _ = client.shutdown(Shutdown::Both);
            continue;
        }
        // On loopback this is quick: a server that is down refuses, one that is paused has a queue.
        let server = if settings.black_hole {
            None
        } else {
            TcpStream::connect_timeout(&target, Duration::from_secs(1)).ok()
        };
        if server.is_none() && !settings.black_hole {
            let _ = client.shutdown(Shutdown::Both);
            continue;
        }
        let _ = admit(client, server, shared);
    }
}

fn admit(
    client: TcpStream,
    server: Option<TcpStream>,
    shared: &Arc<Shared>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let link = Arc::new(Link {
        client: client.try_clone()?,
        server: server.as_ref().map(TcpStream::try_clone).transpose()?,
        swallows: AtomicBool::new(server.is_none()),
        cut: AtomicBool::new(false),
    });
    {
        let mut links = lock(&shared.links);
        let settings = lock(&shared.settings);
        if settings.stopped || link.is_from(settings.shut_out) {
            link.cut();
            return Ok(());
        }
        if settings.black_hole {
            link.swallows.store(true, Ordering::SeqCst); // it came on while this one was connecting
        }
        links.push(link.clone());
    }
    let server_writer = server.as_ref().map(TcpStream::try_clone).transpose()?;
    if let Some(server) = server {
        server.set_nodelay(true)?;
        pump(
            Direction::Replies,
            server,
            Some(client.try_clone()?),
            link.clone(),
            shared,
        )?;
    }
    pump(Direction::Requests, client, server_writer, link, shared)
}

/// Starts the two threads of one direction.
fn pump(
    direction: Direction,
    from: TcpStream,
    to: Option<TcpStream>,
    link: Arc<Link>,
    shared: &Arc<Shared>,
) -> std::io::Result<()> {
    let (queue, queued) = mpsc::channel();
    let spawn = |name: &str| thread::Builder::new().name(format!("devnodes-{name}"));
    if let Some(to) = to {
        let (link, shared) = (link.clone(), shared.clone());
        spawn("writer").spawn(move || write(direction, &queued, to, &link, &shared))?;
    }
    let shared = shared.clone();
    spawn("reader").spawn(move || {
        read(from, &queue, &link);
        if direction == Direction::Requests {
            if link.swallows.load(Ordering::SeqCst) {
                link.cut(); // nothing is left to pass on
                shared.set(|_| ());
            }
            lock(&shared.links).retain(|other| !Arc::ptr_eq(other, &link));
        }
    })?;
    Ok(())
}

fn read(mut from: TcpStream, queue: &Sender<(Instant, Vec<u8>)>, link: &Link) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !link.swallows.load(Ordering::SeqCst) {
            // Fails when the writer is gone; the peer may still be sending, and is listened to.
            let _ = queue.send((Instant::now(), buffer[..count].to_vec()));
        }
    }
}

fn write(
    direction: Direction,
    queued: &Receiver<(Instant, Vec<u8>)>,
    mut to: TcpStream,
    link: &Link,
    shared: &Shared,
) {
    const LONG: Duration = Duration::from_secs(3600);
    /// Bytes that come through a narrow line together.
    const PIECE: usize = 128;
    // When the next byte may come through a narrow line.
    let mut free_at = Instant::now();
    while let Ok((arrived, bytes)) = queued.recv() {
        let due = |settings: &Settings| match direction {
            Direction::Requests => settings.hold_requests.then_some(LONG),
            Direction::Replies if settings.hold_replies => Some(LONG),
            Direction::Replies => settings
                .delay
                .checked_sub(arrived.elapsed())
                .filter(|left| !left.is_zero()),
        };
        if !shared.wait(link, due) {
            return;
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            if link.swallows.load(Ordering::SeqCst) {
                break;
            }
            let settings = lock(&shared.settings).clone();
            let slow = direction == Direction::Replies && !settings.trickle.is_zero();
            let narrow = direction == Direction::Requests && settings.narrow != 0;
            let piece = if slow {
                1
            } else if narrow {
                rest.len().min(PIECE)
            } else {
                rest.len()
            };
            let (now, later) = rest.split_at(piece);
            if narrow {
                let takes = Duration::from_secs(piece as u64) / settings.narrow;
                free_at = free_at.max(arrived) + takes;
                let until = |s: &Settings| {
                    free_at
                        .checked_duration_since(Instant::now())
                        .filter(|it| s.narrow != 0 && !it.is_zero())
                };
                if !shared.wait(link, until) {
                    return;
                }
            }
            if to.write_all(now).is_err() {
                // The other side is gone. Tell the one that still sends, or it would wait for ever.
                let _ = link.client.shutdown(Shutdown::Both);
                return;
            }
            rest = later;
            let wrote = Instant::now();
            let pause = |s: &Settings| {
                s.trickle
                    .checked_sub(wrote.elapsed())
                    .filter(|left| slow && !left.is_zero())
            };
            if !shared.wait(link, pause) {
                return;
            }
        }
    }
    // The end comes after all that was queued. It is not passed on by a black hole.
    if !link.swallows.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Write);
    }
}
