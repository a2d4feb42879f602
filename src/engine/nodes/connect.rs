//! Connecting: from the address to a logged-in server or member. Blocks, with deadlines.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use crate::error::{self, NodeFailure, TlsFailure};
use crate::session::Login;
use crate::session::pending_command::PendingCommand;
use crate::sys::{Registry, SOCKET, Socket};
use crate::time::{self, Moment, Now, Tick};
use crate::tls::Stream;
use crate::wire::{Address, Command, Conn, Dialogue, Endpoint, Security, log_in};

/// Largest number of addresses tried of a name: each opens a connection until one is established.
const ADDRESSES_MAX: usize = 16;

/// Every server answers this, if only with the demand for a password.
const PLAIN_QUESTION: &[u8] = b"PING\r\n";
/// First bytes of such answers.
const PLAIN_ANSWERS: &[u8] = b"+-";

/// The connecting thread.
pub(crate) trait Waits {
    /// Registry of its poll.
    fn registry(&self) -> &Registry;

    /// Sleeps until an event or the deadline. An error: the connection is not wanted any more.
    fn wait_until(&mut self, deadline: Tick) -> Result<(), NodeFailure>;
}

/// A connection after its login.
pub(crate) struct Opened {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) login: Login,
    /// Address of the server; none for a Unix socket.
    pub(super) to: Option<SocketAddr>,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Filled {
    /// No bytes.
    Nothing,
    /// Less than the space: the stream is empty.
    Short,
    /// As much as the space, or decrypted: there may be more.
    Full,
}

/// Writes as much as the system takes now. After an error the connection is unusable: half a
/// command may be written.
pub(super) fn write(conn: &mut Conn<PendingCommand>, stream: &mut dyn Stream) -> io::Result<()> {
    loop {
        let bytes = conn.poll_write();
        let written = match bytes {
            [] => stream.flush().map(|()| 0),
            bytes => stream.write(bytes),
        };
        match unless_blocked(written)?.unwrap_or(0) {
            0 => return Ok(()),
            written => conn.wrote(written),
        }
    }
}

/// What was moved; `None` if the call would block.
fn unless_blocked(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(None),
        moved => moved.map(Some),
    }
}

/// Reads once.
pub(super) fn read(conn: &mut Conn<PendingCommand>, stream: &mut dyn Stream) -> io::Result<Filled> {
    let space = conn.space();
    let room = space.len();
    let Some(read) = unless_blocked(stream.read(space))? else {
        return Ok(Filled::Nothing);
    };
    conn.filled(read);
    Ok(if read == room || stream.has_decrypted() {
        Filled::Full
    } else {
        Filled::Short
    })
}

/// Reads and writes until `poll` finds something in the input; none at the deadline.
pub(super) fn exchange<T>(
    conn: &mut Conn<PendingCommand>,
    stream: &mut dyn Stream,
    deadline: Tick,
    poll: impl Fn(&mut Conn<PendingCommand>, &dyn Stream) -> Result<Option<T>, NodeFailure>,
    thread: &mut dyn Waits,
) -> Result<Option<T>, NodeFailure> {
    loop {
        let filled = read(conn, stream);
        let written = write(conn, stream);
        // Read the input before the end of the connection: a refusing server sends its reason and
        // closes.
        if let Some(found) = poll(conn, stream)? {
            return Ok(Some(found));
        }
        let moved = filled.and_then(|filled| written.map(|()| filled));
        match moved.map_err(|err| lost(&err, conn, stream))? {
            // Only after an empty read the system announces the next bytes.
            Filled::Nothing if deadline <= time::tick() => return Ok(None),
            Filled::Nothing => thread.wait_until(deadline)?,
            Filled::Short | Filled::Full => {}
        }
    }
}

/// Connects and logs in. Name resolution blocks, see [`Socket::resolve`], and is not part of
/// `timeout`: with slow names the node is down for longer, but connects.
///
/// `sync_record`: command for the server's record; none for a member. `turn`: number of earlier
/// attempts. Each begins with another address of the name: an address that accepts the connection
/// and stays silent takes the time of the others.
pub(crate) fn connect(
    address: &Address,
    sync_record: Option<&Command>,
    timeout: Duration,
    turn: usize,
    thread: &mut dyn Waits,
) -> Result<Opened, NodeFailure> {
    let mut addresses = Vec::new();
    if let Endpoint::Tcp { host, port } = &address.place {
        addresses = Socket::resolve(host, *port).map_err(|err| cannot(&err))?;
    }
    connect_to(address, sync_record, timeout, turn, addresses, thread)
}

/// Begins the addresses of a name one after another: the next one after a failure, or after its
/// share of the time. An address that drops packets must not use up the time of the others. A slow
/// one goes on beside them. The first connection logs in.
pub(super) fn connect_to(
    address: &Address,
    sync_record: Option<&Command>,
    timeout: Duration,
    turn: usize,
    mut addresses: Vec<SocketAddr>,
    thread: &mut dyn Waits,
) -> Result<Opened, NodeFailure> {
    addresses.truncate(ADDRESSES_MAX);
    let first = turn.checked_rem(addresses.len()).unwrap_or(0);
    addresses.rotate_left(first);
    let mut untried = VecDeque::from(addresses);
    let mut begun = Vec::new();
    if let Endpoint::Unix(path) = &address.place {
        let socket = register(thread, Socket::connect_unix(path)).map_err(|err| cannot(&err))?;
        begun.push((None, socket));
    }
    let mut failure = connect_failure("the name has no address");
    let mut next_at = time::tick();
    let shares = u32::try_from(untried.len()).unwrap_or(u32::MAX);
    let share = timeout.checked_div(shares).unwrap_or(timeout);
    let half = time::deadline(timeout.checked_div(2).unwrap_or_default());
    let deadline = time::deadline(timeout);
    loop {
        let now = time::tick();
        if deadline <= now {
            return Err(connect_failure("no connection in time"));
        }
        if next_at <= now
            && let Some(to) = untried.pop_front()
        {
            match register(thread, Socket::connect_tcp(to)) {
                Ok(socket) => {
                    begun.push((Some(to), socket));
                    next_at = time::deadline(share);
                }
                Err(err) => failure = cannot(&err),
            }
            continue;
        }
        let connected = |(index, (_, socket)): (usize, &(Option<SocketAddr>, Socket))| {
            let connected = socket.is_connected();
            (!matches!(connected, Ok(false))).then_some((index, connected))
        };
        let Some((index, connected)) = begun.iter().enumerate().find_map(connected) else {
            if begun.is_empty() && untried.is_empty() {
                return Err(failure);
            }
            let until = if untried.is_empty() {
                deadline
            } else {
                next_at
            };
            thread.wait_until(until)?;
            continue;
        };
        let (to, socket) = begun.swap_remove(index);
        next_at = now;
        failure = match connected {
            Err(err) => cannot(&err),
            Ok(_) => match begin(address, sync_record, socket, to, half, deadline, thread) {
                // Another address may work.
                Err(failure @ NodeFailure::Disconnected { .. }) => failure,
                result => return result,
            },
        };
    }
}

fn register(thread: &dyn Waits, socket: io::Result<Socket>) -> io::Result<Socket> {
    let mut socket = socket?;
    socket.register(thread.registry(), SOCKET)?;
    Ok(socket)
}

/// Secures an established connection and logs in.
fn begin(
    address: &Address,
    sync_record: Option<&Command>,
    socket: Socket,
    to: Option<SocketAddr>,
    half: Tick,
    deadline: Tick,
    thread: &mut dyn Waits,
) -> Result<Opened, NodeFailure> {
    let asked = Now::read();
    let mut conn = Conn::begin(address.tag.clone());
    let mut stream = secure(address, socket)?;
    let secured = |_: &mut Conn<_>, stream: &dyn Stream| Ok((!stream.is_securing()).then_some(()));
    if exchange(&mut conn, &mut *stream, half, secured, thread)?.is_none() {
        if let Some(to) = to
            && is_plain(to, &mut *stream, deadline, thread)?
        {
            return Err(NodeFailure::Tls(TlsFailure::NotTls));
        }
        exchange(&mut conn, &mut *stream, deadline, secured, thread)?
            .ok_or(NodeFailure::Tls(TlsFailure::NoAnswer))?;
    }
    let mut line = Line {
        thread,
        conn,
        stream,
        deadline,
        reported_time: asked.moment,
    };
    let server_info = log_in(&mut line, address, sync_record)?;
    line.conn.on_login(&server_info)?;
    Ok(Opened {
        stream: line.stream,
        to,
        login: Login {
            conn: line.conn,
            server_info,
            asked,
            reported_time: line.reported_time,
        },
    })
}

/// A connection during its login.
struct Line<'a> {
    thread: &'a mut dyn Waits,
    conn: Conn<PendingCommand>,
    stream: Box<dyn Stream>,
    deadline: Tick,
    reported_time: Moment,
}

impl Dialogue for Line<'_> {
    fn write(&mut self, bytes: &[u8]) {
        self.conn.push_bytes(bytes);
    }

    fn reply(&mut self) -> Result<Vec<u8>, NodeFailure> {
        exchange(
            &mut self.conn,
            &mut *self.stream,
            self.deadline,
            |conn, _| conn.poll_reply(),
            self.thread,
        )?
        .ok_or_else(|| connect_failure("no answer to the login in time"))
    }

    fn note_time(&mut self) {
        self.reported_time = Moment::now();
    }
}

/// Whether a server without an answer to the TLS handshake, on the connection `secured`, speaks
/// plain Redis.
///
/// A Redis port without TLS does not answer a handshake: it waits for the end of a line. So a
/// second connection sends a harmless command. A server that answers speaks no TLS.
fn is_plain(
    to: SocketAddr,
    secured: &mut dyn Stream,
    deadline: Tick,
    thread: &mut dyn Waits,
) -> Result<bool, NodeFailure> {
    let Ok(mut socket) = register(thread, Socket::connect_tcp(to)) else {
        return Ok(false);
    };
    let mut is_asked = false;
    let mut answer = [0];
    while !secured.is_readable() && time::tick() < deadline {
        // No wait for a partial write.
        is_asked = is_asked
            || matches!(socket.is_connected(), Ok(true)) && socket.write(PLAIN_QUESTION).is_ok();
        if is_asked && !matches!(unless_blocked(socket.read(&mut answer)), Ok(None)) {
            return Ok(PLAIN_ANSWERS.contains(&answer[0]));
        }
        thread.wait_until(deadline)?;
    }
    Ok(false)
}

/// Secures a new connection, if its URL asks for TLS. Reads files. The certificate must be for the
/// name in the settings, or the host.
fn secure(address: &Address, socket: Socket) -> Result<Box<dyn Stream>, NodeFailure> {
    match (&address.security, &address.place) {
        (Security::Plain, _) => Ok(Box::new(socket)),
        (Security::Tls(setup), Endpoint::Tcp { host, .. }) => setup.secure(host, socket),
        // Never without TLS.
        (Security::Tls(_) | Security::Wanted, _) => Err(NodeFailure::Internal),
    }
}

pub(super) fn cannot(err: &io::Error) -> NodeFailure {
    connect_failure(&error::reason(err))
}

fn connect_failure(reason: &str) -> NodeFailure {
    NodeFailure::Connect {
        reason: reason.to_owned(),
    }
}

fn lost(err: &io::Error, conn: &Conn<PendingCommand>, stream: &dyn Stream) -> NodeFailure {
    let mut reason = match error::disconnected(err) {
        NodeFailure::Disconnected { reason } => reason,
        failure => return failure,
    };
    if stream.is_securing() {
        return NodeFailure::Tls(TlsFailure::Closed { reason });
    }
    if !conn.has_replied() {
        // As Redis does if TLS was expected.
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
    #![expect(
        clippy::disallowed_methods,
        reason = "servers of tests run in threads of their own"
    )]

    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::ids::RecordVersion;
    use crate::sys::{Events, Poll};
    use crate::wire::{SyncKind, SyncRecord, sync_record};

    struct Thread(Poll);

    impl Waits for Thread {
        fn registry(&self) -> &Registry {
            self.0.registry()
        }

        fn wait_until(&mut self, deadline: Tick) -> Result<(), NodeFailure> {
            let left = deadline.saturating_duration_since(time::tick());
            self.0
                .poll(&mut Events::with_capacity(4), Some(left))
                .map_err(|err| cannot(&err))
        }
    }

    fn sync_command() -> Command {
        sync_record(&SyncRecord {
            record_version: RecordVersion::new(1),
            own: 10_102,
            reported: 0,
            servers: 3,
            kind: SyncKind::Note,
        })
    }

    fn connect_from(
        turn: usize,
        addresses: &[SocketAddr],
        timeout: Duration,
    ) -> Result<Opened, NodeFailure> {
        connect_to(
            &Address::parse("redis://a-name").unwrap(),
            Some(&sync_command()),
            timeout,
            turn,
            addresses.to_vec(),
            &mut Thread(Poll::new().unwrap()),
        )
    }

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Answers all connections: the failure shows that it was asked.
    fn loading(listener: TcpListener) -> JoinHandle<()> {
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream
                    .unwrap()
                    .write_all(b"-LOADING x\r\n".repeat(16).as_slice());
            }
        })
    }

    #[test]
    fn g3_the_addresses_of_one_name_are_tried_one_after_another() {
        let ((gone, refuses), (listens, loads)) = (listener(), listener());
        drop(gone);
        loading(listens);

        let end = connect_from(0, &[refuses, loads], Duration::from_secs(30));

        assert_eq!(end.err(), Some(NodeFailure::Loading));
    }

    #[test]
    fn g3_a_name_without_an_answering_address_is_one_failure() {
        let (gone, refuses) = listener();
        drop(gone);

        let end = connect_from(0, &[refuses; 3], Duration::from_secs(30));

        let Some(NodeFailure::Connect { reason }) = end.err() else {
            panic!()
        };
        assert!(reason.contains("refused"), "{reason}");
    }

    /// An address at which nobody ever answers a connection, as behind a firewall that drops
    /// packets.
    struct Deaf {
        listener: TcpListener,
        address: SocketAddr,
        _queue: Vec<TcpStream>,
    }

    impl Deaf {
        fn new() -> Deaf {
            let (listener, address) = listener();
            // Nobody accepts, so the queue of connections is full in the end, and what comes then
            // is dropped.
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
            let queue = std::iter::from_fn(connect).collect();
            Deaf {
                listener,
                address,
                _queue: queue,
            }
        }
    }

    #[test]
    fn h13_a_silent_address_leaves_time_for_the_next_one() {
        let deaf = Deaf::new();
        let (listens, loads) = listener();
        loading(listens);
        let begin = time::tick();

        let addresses = [deaf.address, deaf.address, loads];
        let end = connect_from(0, &addresses, Duration::from_millis(4_500));

        assert_eq!(end.err(), Some(NodeFailure::Loading));
        let took = time::tick().saturating_duration_since(begin);
        assert!(Duration::from_secs(3) <= took, "{took:?}");
    }

    #[test]
    fn h13_a_slow_connect_continues_beside_the_next_ones() {
        let slow = Deaf::new();
        let deaf = Deaf::new();
        let addresses = [slow.address, deaf.address];
        // The system repeats its packet after one second, and after three: when the other address
        // was begun.
        let answers = thread::spawn(move || {
            thread::sleep(Duration::from_millis(2_600));
            loading(slow.listener)
        });

        let end = connect_from(0, &addresses, Duration::from_secs(5));

        assert_eq!(end.err(), Some(NodeFailure::Loading));
        answers.join().unwrap();
    }

    #[test]
    fn h13_the_attempt_after_a_silent_login_begins_with_another_address() {
        let ((_mute, says_nothing), (listens, loads)) = (listener(), listener());
        loading(listens);
        let addresses = [says_nothing, loads];

        let first = connect_from(0, &addresses, Duration::from_millis(300)).err();
        let second = connect_from(1, &addresses, Duration::from_secs(30)).err();

        assert_eq!(
            first,
            Some(connect_failure("no answer to the login in time"))
        );
        assert_eq!(second, Some(NodeFailure::Loading));
    }
}
