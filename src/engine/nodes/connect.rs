//! A connection on its way: from the address to a server that may vote, or to a member that answers questions.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::answer::ServerInfo;
use crate::engine::nodes::plaintext_check::PlaintextCheck;
use crate::error::{self, NodeFailure, TlsFailure};
use crate::session::Login;
use crate::session::pending_command::PendingCommand;
use crate::sys::{Poll, SOCKET, Socket};
use crate::time::{self, Moment, Now, Tick};
use crate::tls::Session;
use crate::wire::{Address, Command, Conn, ConnEvent, Endpoint, Security};

/// How many addresses of a name are tried: each is a connection, as long as none is established.
const ADDRESSES_MAX: usize = 16;

/// One attempt to connect and log in, in steps that do not block.
///
/// The addresses of a name are begun one after another: the next one when one has failed, or when its share of the time is
/// over. An address that only swallows packets must not use up the time of the others. One that is merely slow goes on
/// beside them, and whichever is ready first is the node's connection.
pub(crate) struct Connecting {
    address: Address,
    /// What is sent to the server before it may vote.
    greet: Option<Command>,
    /// Addresses of the same name that have not been begun.
    untried: VecDeque<SocketAddr>,
    /// Those that are under way.
    tries: Vec<Try>,
    /// When the next address is begun whether or not the others have failed.
    next_at: Option<Tick>,
    /// When a server that has not answered the handshake of TLS is asked whether it speaks that.
    plaintext_check_at: Option<Tick>,
    plaintext_check: Option<PlaintextCheck>,
    deadline: Tick,
}

/// One address, on its way.
struct Try {
    /// Of a name's addresses.
    to: Option<SocketAddr>,
    socket: Socket,
    /// Once it is connected.
    login: Option<LoginUnderWay>,
}

/// A connection that logs in.
struct LoginUnderWay {
    conn: Conn<PendingCommand>,
    /// When it began.
    asked: Now,
    /// When the server had said what time it is. What follows, as the loading of scripts, takes time of its own.
    said_time: Option<Moment>,
}

/// How far an attempt to connect has come.
pub(crate) enum Progress {
    Wait,
    Done(Box<Opened>),
}

/// A connection on which the node may vote.
pub(crate) struct Opened {
    pub(crate) socket: Socket,
    pub(crate) login: Login,
}

/// How much a read found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Filled {
    /// Nothing was there.
    Nothing,
    /// Less than there was room for: the stream is empty.
    Short,
    /// As much as there was room for: there may be more.
    Full,
}

/// Writes what the system takes now. After an error the connection is of no use: half a command may be written.
pub(super) fn write(conn: &mut Conn<PendingCommand>, socket: &Socket) -> io::Result<()> {
    loop {
        let bytes = conn.poll_write();
        if bytes.is_empty() {
            return Ok(());
        }
        match socket.write(bytes)? {
            0 => return Ok(()),
            written => conn.wrote(written),
        }
    }
}

/// Reads once.
pub(super) fn read(conn: &mut Conn<PendingCommand>, socket: &Socket) -> io::Result<Filled> {
    let space = conn.space();
    let room = space.len();
    let Some(read) = socket.read(space)? else {
        return Ok(Filled::Nothing);
    };
    conn.filled(read);
    Ok(if read == room {
        Filled::Full
    } else {
        Filled::Short
    })
}

/// Why a connection has ended.
pub(super) enum CloseReason {
    /// It was not established, or broke. Another address may do better.
    Link(NodeFailure),
    /// The server has refused us, or its answer makes no sense.
    Server(NodeFailure),
}

impl From<CloseReason> for NodeFailure {
    fn from(reason: CloseReason) -> NodeFailure {
        match reason {
            CloseReason::Link(failure) | CloseReason::Server(failure) => failure,
        }
    }
}

impl Connecting {
    /// Begins. Resolving a name blocks, see [`Socket::resolve`], and its time is not part of `timeout`: where names
    /// are slow the node is down for longer, but it does come up.
    pub(crate) fn begin(
        address: &Address,
        greet: Option<Command>,
        timeout: Duration,
        poll: &Poll,
    ) -> Result<Connecting, NodeFailure> {
        let addresses = match &address.place {
            Endpoint::Tcp { host, port } => {
                Socket::resolve(host, *port).map_err(|err| cannot(&err))?
            }
            Endpoint::Unix(_) => Vec::new(),
        };
        Connecting::at(address, greet, addresses.into(), timeout, poll)
    }

    /// Begins with the addresses that the name has.
    pub(super) fn at(
        address: &Address,
        greet: Option<Command>,
        mut untried: VecDeque<SocketAddr>,
        timeout: Duration,
        poll: &Poll,
    ) -> Result<Connecting, NodeFailure> {
        untried.truncate(ADDRESSES_MAX);
        let now = time::tick();
        let deadline = now.checked_add(timeout).unwrap_or(now);
        let (address, tries) = (address.clone(), Vec::new());
        let half = timeout
            .checked_div(2)
            .filter(|_| address.is_to_be_secured());
        let plaintext_check_at = half.and_then(|it| now.checked_add(it));
        let mut connecting = Connecting {
            address,
            greet,
            untried,
            tries,
            next_at: None,
            plaintext_check_at,
            plaintext_check: None,
            deadline,
        };
        connecting.begin_next(poll, now)?;
        Ok(connecting)
    }

    /// When to call [`Connecting::step`] again at the latest.
    pub(crate) fn deadline(&self) -> Tick {
        let due = self.next_at.into_iter().chain(self.plaintext_check_at);
        due.fold(self.deadline, Tick::min)
    }

    /// The handshake of TLS is under way.
    fn is_securing(&self) -> bool {
        self.tries
            .iter()
            .filter_map(|it| it.login.as_ref())
            .any(|it| it.conn.is_securing())
    }

    /// Goes as far as it can now, until the deadline.
    pub(crate) fn step(&mut self, poll: &Poll, now: Tick) -> Result<Progress, NodeFailure> {
        if self.deadline <= now {
            if self.is_securing() {
                return Err(NodeFailure::Tls(TlsFailure::NoAnswer));
            }
            let talks = self.tries.iter().any(|it| it.login.is_some());
            let reason = if talks {
                "no answer to the login in time"
            } else {
                "no connection in time"
            };
            return Err(NodeFailure::Connect {
                reason: reason.to_owned(),
            });
        }
        let mut failure = None;
        let mut index = 0;
        while let Some(it) = self.tries.get_mut(index) {
            match it.step(&self.address, self.greet.as_ref()) {
                Ok(None) => index = index.saturating_add(1),
                Ok(Some(server_info)) => {
                    let Try {
                        socket,
                        login: Some(login),
                        ..
                    } = self.tries.swap_remove(index)
                    else {
                        continue;
                    };
                    let login = Login {
                        conn: login.conn,
                        server_info,
                        asked: login.asked,
                        said_time: login.said_time.unwrap_or_else(Moment::now),
                    };
                    return Ok(Progress::Done(Box::new(Opened { socket, login })));
                }
                Err(CloseReason::Server(failure)) => return Err(failure),
                Err(CloseReason::Link(why)) => {
                    drop(self.tries.swap_remove(index));
                    failure = Some(why);
                }
            }
        }
        if self.speaks_no_tls(poll, now) {
            return Err(NodeFailure::Tls(TlsFailure::NotTls));
        }
        if !self.untried.is_empty()
            && (failure.is_some() || self.next_at.is_some_and(|it| it <= now))
        {
            failure = self.begin_next(poll, now).err().or(failure);
        }
        match failure {
            Some(failure) if self.tries.is_empty() => Err(failure),
            _ => Ok(Progress::Wait),
        }
    }

    /// Whether a server that does not answer the handshake of TLS is found to speak without, after half of the time.
    fn speaks_no_tls(&mut self, poll: &Poll, now: Tick) -> bool {
        // Once, and whatever comes of it the deadline stays.
        if self.plaintext_check_at.take_if(|it| *it <= now).is_some() {
            let is_ignored = |it: &LoginUnderWay| it.conn.is_securing() && !it.conn.has_received();
            let ignored = self
                .tries
                .iter()
                .find(|it| it.login.as_ref().is_some_and(is_ignored));
            self.plaintext_check = ignored
                .and_then(|it| it.to)
                .and_then(|it| PlaintextCheck::begin(it, poll.registry()));
        }
        self.plaintext_check
            .as_mut()
            .is_some_and(PlaintextCheck::step)
    }

    /// Begins with the next address that can be begun with. It gets an equal share of the time that is left.
    fn begin_next(&mut self, poll: &Poll, now: Tick) -> Result<(), NodeFailure> {
        self.next_at = None;
        let (to, socket) = next_socket(&self.address, &mut self.untried, poll)?;
        self.tries.push(Try {
            to,
            socket,
            login: None,
        });
        let left = self.deadline.saturating_duration_since(now);
        let shares = u32::try_from(self.untried.len())
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        self.next_at = left
            .checked_div(shares)
            .filter(|_| 1 < shares)
            .and_then(|it| now.checked_add(it));
        Ok(())
    }
}

impl Try {
    /// Goes as far as it can now; what the server said, once the node may vote.
    fn step(
        &mut self,
        address: &Address,
        greet: Option<&Command>,
    ) -> Result<Option<ServerInfo>, CloseReason> {
        let socket = &self.socket;
        let LoginUnderWay {
            conn, said_time, ..
        } = match &mut self.login {
            Some(login) => login,
            login @ None => match socket.is_connected() {
                Ok(false) => return Ok(None),
                Ok(true) => {
                    let conn = Conn::begin(
                        address,
                        greet,
                        secure(address).map_err(CloseReason::Server)?,
                    );
                    login.insert(LoginUnderWay {
                        conn,
                        asked: Now::read(),
                        said_time: None,
                    })
                }
                Err(err) => return Err(CloseReason::Link(cannot(&err))),
            },
        };
        if let Some(ConnEvent::Ready(server_info)) = advance(conn, socket)? {
            return Ok(Some(server_info));
        }
        *said_time = conn
            .login_has_time()
            .then(|| said_time.unwrap_or_else(Moment::now));
        Ok(None)
    }
}

/// Writes and reads until the first event, or until the socket has no more.
pub(super) fn advance(
    conn: &mut Conn<PendingCommand>,
    socket: &Socket,
) -> Result<Option<ConnEvent<PendingCommand>>, CloseReason> {
    loop {
        let written = write(conn, socket);
        let filled = read(conn, socket);
        // What has come is read before the end of the connection is believed: a server that refuses says why and closes.
        match conn.poll_event() {
            Ok(None) => {}
            Ok(event) => return Ok(event),
            // So ends one with TLS.
            Err(failure @ NodeFailure::Disconnected { .. }) => {
                return Err(CloseReason::Link(failure));
            }
            Err(failure) => {
                // With TLS the server receives the reason.
                let _ = write(conn, socket);
                return Err(CloseReason::Server(failure));
            }
        }
        match written.and(filled) {
            Err(err) => {
                let failure = conn.login_failure().map(CloseReason::Server);
                return Err(failure.unwrap_or_else(|| CloseReason::Link(lost(&err, conn))));
            }
            // Only now the system announces the next bytes.
            Ok(Filled::Nothing) => return Ok(None),
            Ok(Filled::Short | Filled::Full) => {}
        }
    }
}

/// What secures a connection that begins now. Reads files, if it is to be secured. The certificate has to be for the name in the
/// settings, or the host.
fn secure(address: &Address) -> Result<Option<Session>, NodeFailure> {
    match (&address.security, &address.place) {
        (Security::Plain, _) => Ok(None),
        (Security::Tls(setup), Endpoint::Tcp { host, .. }) => setup.begin(host).map(Some),
        // Never without, whatever comes.
        (Security::Tls(_) | Security::Wanted, _) => Err(NodeFailure::Internal),
    }
}

fn next_socket(
    address: &Address,
    untried: &mut VecDeque<SocketAddr>,
    poll: &Poll,
) -> Result<(Option<SocketAddr>, Socket), NodeFailure> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let to = untried.pop_front();
        let begun = match (&address.place, to) {
            (Endpoint::Tcp { .. }, Some(next)) => Socket::connect_tcp(next),
            (Endpoint::Tcp { .. }, None) => return Err(cannot(&last)),
            (Endpoint::Unix(path), _) => Socket::connect_unix(path),
        };
        match begun.and_then(|mut socket| socket.register(poll.registry(), SOCKET).map(|()| socket))
        {
            Ok(socket) => return Ok((to, socket)),
            Err(err) if untried.is_empty() => return Err(cannot(&err)),
            Err(err) => last = err,
        }
    }
}

pub(super) fn cannot(err: &io::Error) -> NodeFailure {
    NodeFailure::Connect {
        reason: error::reason(err),
    }
}

fn lost(err: &io::Error, conn: &Conn<PendingCommand>) -> NodeFailure {
    let mut reason = error::reason(err);
    if conn.is_securing() {
        return NodeFailure::Tls(TlsFailure::Closed { reason });
    }
    if !conn.has_received() {
        // As Redis does where TLS was expected.
        reason.push_str(
            " before it answered; if its port speaks TLS, the address begins with rediss://",
        );
    }
    NodeFailure::Disconnected { reason }
}

/// With sockets of the system.
#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::wire::Script;

    #[test]
    fn g3_the_addresses_of_one_name_are_tried_one_after_another() {
        let (listens, gone) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        let addresses = [gone.local_addr().unwrap(), listens.local_addr().unwrap()];
        drop(gone);
        listens.set_nonblocking(true).unwrap();
        let address = Address::parse("redis://two-addresses").unwrap();
        let poll = Poll::new().unwrap();

        let mut connecting = Connecting::at(
            &address,
            None,
            addresses.into(),
            Duration::from_secs(30),
            &poll,
        )
        .unwrap();
        while listens.accept().is_err() {
            // An error ends the test, at the latest when the time to connect is over.
            assert!(matches!(
                connecting.step(&poll, time::tick()),
                Ok(Progress::Wait)
            ));
            std::thread::yield_now();
        }

        // And none that is left.
        assert!(connecting.untried.is_empty());
    }

    #[test]
    fn g3_a_name_of_which_no_address_answers_is_one_failure() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [gone.local_addr().unwrap(); 3];
        drop(gone);
        let (address, poll) = (
            Address::parse("redis://three-addresses").unwrap(),
            Poll::new().unwrap(),
        );

        let mut connecting = Connecting::at(
            &address,
            None,
            addresses.into(),
            Duration::from_secs(30),
            &poll,
        )
        .unwrap();
        let failure = loop {
            match connecting.step(&poll, time::tick()) {
                Ok(_) => std::thread::yield_now(),
                Err(failure) => break failure,
            }
        };

        let NodeFailure::Connect { reason } = failure else {
            panic!("{failure:?}")
        };
        assert!(reason.contains("refused"), "{reason}");
    }

    /// An address at which nobody ever answers a connection, as behind a firewall that drops packets.
    struct Deaf {
        listener: TcpListener,
        _queue: Vec<std::net::TcpStream>,
    }

    impl Deaf {
        fn new() -> Deaf {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            // Nobody accepts, so the queue of connections is full in the end, and what comes then is dropped.
            let connect =
                || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
            let queue = std::iter::from_fn(connect).collect();
            Deaf {
                listener,
                _queue: queue,
            }
        }

        fn address(&self) -> SocketAddr {
            self.listener.local_addr().unwrap()
        }
    }

    #[test]
    fn h13_an_address_that_swallows_packets_leaves_time_for_the_next_one() {
        let deaf = Deaf::new();
        let listens = TcpListener::bind("127.0.0.1:0").unwrap();
        listens.set_nonblocking(true).unwrap();
        let addresses = [
            deaf.address(),
            deaf.address(),
            listens.local_addr().unwrap(),
        ];
        let (address, poll) = (
            Address::parse("redis://three-addresses").unwrap(),
            Poll::new().unwrap(),
        );
        let timeout = Duration::from_secs(60);
        let mut connecting =
            Connecting::at(&address, None, addresses.into(), timeout, &poll).unwrap();

        let begin = time::tick();
        let after = |seconds| begin.checked_add(Duration::from_secs(seconds)).unwrap();
        for (seconds, untried) in [(1, 2), (19, 2), (21, 1), (39, 1), (41, 0)] {
            assert!(matches!(
                connecting.step(&poll, after(seconds)),
                Ok(Progress::Wait)
            ));
            assert_eq!(
                connecting.untried.len(),
                untried,
                "after {seconds} of 60 seconds"
            );
            assert!(after(seconds) < connecting.deadline() && connecting.deadline() <= after(61));
        }

        while listens.accept().is_err() {
            std::thread::yield_now();
        }
        assert!(connecting.step(&poll, after(61)).is_err());
    }

    #[test]
    fn h1_the_time_of_a_server_counts_from_when_it_was_said_and_not_from_when_the_scripts_are_loaded()
     {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [listener.local_addr().unwrap()];
        let (address, poll) = (Address::parse("redis://one").unwrap(), Poll::new().unwrap());
        let timeout = Duration::from_secs(60);
        let mut connecting =
            Connecting::at(&address, None, addresses.into(), timeout, &poll).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut opened = None;
        // Steps until the server has been asked for this.
        let mut ask_until = |server: &mut std::net::TcpStream, last: &str| {
            let (mut asked, mut bytes) = (Vec::new(), [0; 65_536]);
            while !String::from_utf8_lossy(&asked).contains(last) && opened.is_none() {
                if let Progress::Done(done) = connecting.step(&poll, time::tick()).unwrap() {
                    opened = Some(done);
                }
                match server.read(&mut bytes) {
                    Ok(read) => asked.extend_from_slice(&bytes[..read]),
                    Err(_) => std::thread::yield_now(),
                }
            }
            opened.take()
        };
        let scripts = Script::needed();

        assert!(ask_until(&mut server, "ROLE").is_none());
        let info = "$33\r\nserver_time_usec:1700000000000001\r\n";
        let known = format!("*{}\r\n{}", scripts.len(), ":0\r\n".repeat(scripts.len()));
        let role = "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
        write!(server, "%0\r\n{known}{}{role}", info.repeat(2)).unwrap();
        assert!(ask_until(&mut server, &scripts.last().unwrap().source()).is_none());
        let loading = Moment::now();
        let hashes: String = scripts
            .iter()
            .map(|it| format!("$40\r\n{}\r\n", it.hash()))
            .collect();
        server.write_all(hashes.as_bytes()).unwrap();
        let opened = ask_until(&mut server, "nothing more").unwrap();

        assert_eq!(opened.login.server_info.time, Some(1_700_000_000_000_001));
        assert!(opened.login.said_time.boot_micros() <= loading.boot_micros());
    }

    #[test]
    fn h13_an_address_that_is_slow_goes_on_while_others_are_begun() {
        let slow = TcpListener::bind("127.0.0.1:0").unwrap();
        let deaf = Deaf::new();
        let addresses = [slow.local_addr().unwrap(), deaf.address()];
        let (address, poll) = (
            Address::parse("redis://two-addresses").unwrap(),
            Poll::new().unwrap(),
        );
        let mut connecting = Connecting::at(
            &address,
            None,
            addresses.into(),
            Duration::from_secs(60),
            &poll,
        )
        .unwrap();
        let begin = time::tick();
        let mut far = slow.accept().unwrap().0;

        // Its login is not answered within its share, and then it is.
        let late = begin.checked_add(Duration::from_secs(40)).unwrap();
        assert!(matches!(connecting.step(&poll, late), Ok(Progress::Wait)));
        assert_eq!((connecting.untried.len(), connecting.tries.len()), (0, 2));
        std::io::Write::write_all(&mut far, b"-LOADING x\r\n".repeat(16).as_slice()).unwrap();
        let failure = loop {
            match connecting.step(&poll, late) {
                Ok(_) => std::thread::yield_now(),
                Err(failure) => break failure,
            }
        };

        assert_eq!(failure, NodeFailure::Loading);
    }
}
