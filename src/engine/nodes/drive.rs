//! A caller that is alone drives the connections itself: it writes to all nodes, waits for all their sockets and reads what
//! comes, as a program of one thread would. That spares five wake-ups a round, which cost more than all the rest of it. A
//! call that waits for notices drives as well: it reads what comes, for all other calls too, and its next round costs no
//! wake-up either.
//!
//! After a round the caller leaves the connections idle: often the next round follows at once. If none follows, the renewal
//! thread gives them back to their workers, a few milliseconds later; answers that were still open are read then.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::nodes::deliver;
use crate::engine::nodes::events::NodeEvents;
use crate::engine::nodes::link::{Driver, Filled};
use crate::engine::nodes::server::Server;
use crate::engine::park::Parker;
use crate::ids::NodeSet;
use crate::sys;
use crate::sys::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, fence, is_anything_waiting,
};
use crate::sys::{Socket, WakeFd};
use crate::time::{self, Tick};

/// For how long connections are idle after a round, at least; twice that at most.
pub(crate) const IDLE_MIN: Duration = Duration::from_millis(2);
/// With response timeouts shorter than this, an answer that lies unread for a moment could pass for a late one.
const RESPONSE_TIMEOUT_MIN: Duration = Duration::from_millis(20);

/// Lets one caller at a time drive the connections, and looks after those that it leaves.
pub(crate) struct DriverSeat {
    events: Arc<dyn NodeEvents>,
    seat: Mutex<Seat>,
    /// Callers that wait for a round of theirs right now.
    busy: AtomicUsize,
    /// Rounds that were driven.
    rounds: AtomicU64,
    /// Connections may be idle.
    has_idle: AtomicBool,
    /// Wakes a caller that waits for notices.
    wake_fd: OnceLock<Option<Arc<WakeFd>>>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Seat {
    #[default]
    Free,
    /// The manager is shutting down, and soon nobody looks after what a caller leaves.
    Closed,
}

/// A connection that a thread drives.
pub(crate) struct Driven {
    server: Arc<Server>,
    /// Where a caller waits for it.
    socket: Option<Arc<Socket>>,
    /// There may be something to read.
    pub(super) readable: bool,
    /// The other side has closed: reads must go on to the end.
    pub(super) closing: bool,
}

impl Driven {
    pub(super) fn new(server: Arc<Server>, socket: Option<Arc<Socket>>) -> Driven {
        Driven {
            server,
            socket,
            readable: true,
            closing: false,
        }
    }
}

/// Drives connections: the worker its own, a caller those of all nodes. `wait` waits until some may be read, and takes note
/// of which; false ends it.
///
/// False if a connection is not the caller's any more, or is broken: its worker ends it, and that can decide the round. The
/// round tells the caller of that, and no socket does.
pub(super) fn drive(
    me: Driver,
    nodes: &mut [Driven],
    mut wait: impl FnMut(&mut [Driven]) -> bool,
) -> bool {
    while wait(nodes) {
        for it in nodes.iter_mut().filter(|it| it.readable) {
            it.readable = match deliver::turn(&it.server, me) {
                // After a short read the next bytes are announced, but not an end that had come with the last ones.
                Some(filled) => filled == Filled::Full || (it.closing && filled == Filled::Short),
                None if me == Driver::Caller => return false,
                // A caller drives, and reads what is there; or it is broken, and the worker sees that next.
                None => false,
            };
        }
    }
    true
}

/// See [`DriverSeat::busy`].
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A caller that drives all connections that are up and not stalled, until this is dropped.
pub(crate) struct Driving<'a> {
    seat: &'a DriverSeat,
    nodes: Vec<Driven>,
    _taken: MutexGuard<'a, Seat>,
}

impl DriverSeat {
    pub(crate) fn new(events: Arc<dyn NodeEvents>) -> DriverSeat {
        let (seat, rounds, has_idle) =
            (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
        DriverSeat {
            events,
            seat,
            busy: AtomicUsize::new(0),
            rounds,
            has_idle,
            wake_fd: OnceLock::new(),
        }
    }

    /// Counts a caller as busy with rounds while the result lives.
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(&self.busy)
    }

    /// Whether no two callers are busy.
    pub(super) fn is_alone(&self) -> bool {
        self.busy.load(Ordering::Relaxed) <= 1
    }

    /// Lets the caller drive if it is alone and that is possible now; otherwise others do. `servers`: one for each node.
    pub(crate) fn take(&self, servers: &[Arc<Server>], now: Tick) -> Option<Driving<'_>> {
        if !self.is_alone() || !sys::CAN_WAIT_FOR_SEVERAL {
            return None;
        }
        if servers
            .iter()
            .any(|it| it.link.load.response_timeout < RESPONSE_TIMEOUT_MIN)
        {
            return None;
        }
        let taken = self.seat.try_lock().filter(|it| **it == Seat::Free)?;
        let mut driving = Driving {
            seat: self,
            nodes: Vec::with_capacity(servers.len()),
            _taken: taken,
        };
        for server in servers {
            if server.standing.is_connecting() {
                // Its worker delivers, and could decide the round while we wait for the others.
                return None;
            }
            if !server.standing.is_up() {
                continue;
            }
            let socket = server.link.take()?;
            let server = Arc::clone(server);
            if server.is_stalled(now) {
                // It does not answer, and its worker waits for it.
                server.link.leave(Driver::Worker);
            } else {
                driving.nodes.push(Driven::new(server, Some(socket)));
            }
        }
        Some(driving)
    }

    /// `None` if the system has no more of them.
    fn wake_fd(&self) -> Option<Arc<WakeFd>> {
        self.wake_fd
            .get_or_init(|| WakeFd::new().ok().map(Arc::new))
            .clone()
    }

    /// Whether connections may be idle; then [`DriverSeat::is_quiet`] has to be asked every [`IDLE_MIN`].
    pub(crate) fn has_idle(&self) -> bool {
        self.has_idle.load(Ordering::Acquire)
    }

    /// Lets no caller drive any more. Waits for one that does, until `deadline`. What it has left idle is the caller's to end.
    pub(crate) fn close(&self, deadline: Tick) {
        if let Some(mut seat) = self.seat.try_lock_until(deadline) {
            *seat = Seat::Closed;
        }
    }

    /// Whether no rounds go on, so that idle connections are to be given back to their workers. `seen` is the caller's, between
    /// calls.
    pub(crate) fn is_quiet(&self, seen: &mut u64) -> bool {
        let rounds = self.rounds.load(Ordering::Acquire);
        if std::mem::replace(seen, rounds) != rounds {
            return false;
        }
        // RACE: taken back before the connections are looked at. A caller that leaves some in between announces it anew.
        self.has_idle.store(false, Ordering::Release);
        true
    }
}

/// From now on the workers drive.
impl Drop for Driving<'_> {
    fn drop(&mut self) {
        for driven in self.nodes.drain(..) {
            driven.server.link.leave(Driver::Worker);
        }
    }
}

impl Driving<'_> {
    /// Whether an answer of one of `asked` would be read by another thread.
    pub(crate) fn misses(&self, asked: NodeSet) -> bool {
        let mut missed = asked;
        self.nodes.iter().for_each(|it| missed.remove(it.server.id));
        missed != NodeSet::default()
    }

    /// Drives until `is_over`, or until `deadline` has come, and leaves the connections idle.
    pub(crate) fn drive(mut self, is_over: &dyn Fn() -> bool, deadline: Tick) {
        let goes_on = drive(Driver::Caller, &mut self.nodes, |nodes| {
            if is_over() {
                return false;
            }
            let left = deadline.saturating_duration_since(time::tick());
            !left.is_zero() && wait_readable(nodes, None, Some(left))
        });
        if !goes_on {
            // Back to the ordinary way of waiting.
            return;
        }
        self.seat.rounds.fetch_add(1, Ordering::AcqRel);
        let mut has_idle = false;
        for driven in self.nodes.drain(..) {
            has_idle |= leave_idle(&driven.server);
        }
        let seat = self.seat;
        drop(self);
        if has_idle && !seat.has_idle.swap(true, Ordering::AcqRel) {
            seat.events.left_unread();
        }
    }

    /// Waits for notices: reads once what comes, for everybody, before `until`, and before `parker` is woken. False if the
    /// caller must not drive any more.
    pub(crate) fn listen(&mut self, until: Option<Tick>, parker: &Parker) -> bool {
        let Some(wake_fd) = self.seat.wake_fd() else {
            return false;
        };
        let (mut waits, mut can_wait) = (true, true);
        let goes_on = drive(Driver::Caller, &mut self.nodes, |nodes| {
            let waited = std::mem::take(&mut waits).then(|| {
                parker.sleep_elsewhere(&wake_fd, || {
                    let left = until.map(|it| it.saturating_duration_since(time::tick()));
                    wait_readable(nodes, Some(&wake_fd), left)
                })
            });
            can_wait &= waited.flatten() != Some(false);
            waited.flatten() == Some(true)
        });
        // Lines for the log are written when nothing is locked. While it drives something is, and that may take long.
        goes_on && can_wait && !is_anything_waiting() && self.seat.is_alone()
    }
}

/// The caller drives the connection no longer. True if it is idle now.
///
/// RACE: another caller may have queued a command that waits for an answer, and found that this one drives. It looks at who
/// drives after that, and we look at the queue after we have left.
fn leave_idle(server: &Server) -> bool {
    let is_idle = server.link.leave(Driver::Idle);
    fence(Ordering::SeqCst);
    let is_needed = is_idle && !server.queue.is_empty();
    if is_needed {
        server.link.end_idle();
    }
    is_idle && !is_needed
}

/// Waits until some of the nodes' sockets can be read, the descriptor is woken, or `timeout` is over. False if the system
/// does not let us wait.
fn wait_readable(
    nodes: &mut [Driven],
    wake_fd: Option<&WakeFd>,
    timeout: Option<Duration>,
) -> bool {
    let sockets = nodes.iter().filter_map(|it| it.socket.as_deref());
    let Some(readable) = sys::wait_readable(sockets, wake_fd, timeout) else {
        return false;
    };
    nodes
        .iter_mut()
        .zip(readable)
        .for_each(|(it, readable)| it.readable = readable);
    true
}
