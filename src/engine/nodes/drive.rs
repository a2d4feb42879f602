//! A caller that is alone does the work of the workers itself: it writes to all nodes, waits on all their sockets and
//! reads what comes, as a program of one thread would. That spares five wake-ups a round, which cost more than all the
//! rest of it. A call that waits for notices does so at the wheel, too: it reads what comes, for everybody else as well,
//! and its next round costs no wake-up either.
//!
//! Who reads a node's connection is decided with its outbox locked: its worker, a caller at the wheel, or nobody for a
//! moment. A worker that does not read has its socket's readiness switched off, so that it sleeps on. After a round
//! the caller leaves the connections to nobody: often the next round follows at once. If none follows, the renewal
//! thread gives them back to their workers, a few milliseconds later; answers that were still open are read then.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::nodes::events::Events;
use crate::engine::nodes::intake::Intake;
use crate::engine::nodes::node::Node;
use crate::engine::park::Parker;
use crate::ids::NodeSet;
use crate::sys;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, is_anything_waiting};
use crate::sys::{Socket, WakeFd};
use crate::time::{self, Tick};

/// For how long connections are left to nobody after a round, at least; twice that at most.
pub(crate) const LINGER: Duration = Duration::from_millis(2);
/// With response timeouts shorter than this, an answer that lies unread for a moment could pass for a late one.
const RESPONSE_TIMEOUT_MIN: Duration = Duration::from_millis(20);

/// Who reads the connection of a node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Reader {
    #[default]
    Worker,
    Caller,
    Nobody,
}

/// The one place at which a caller can sit, and what is left after it.
pub(crate) struct Wheel {
    events: Arc<dyn Events>,
    seat: Mutex<Seat>,
    /// Rounds that were driven.
    rounds: AtomicU64,
    /// Connections may be left to nobody.
    lingering: AtomicBool,
    /// Wakes a caller who waits for notices at the wheel.
    wake_fd: OnceLock<Option<Arc<WakeFd>>>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Seat {
    #[default]
    Free,
    /// The manager is shutting down, and soon nobody looks after what a caller leaves.
    Closed,
}

/// A caller at the wheel. It reads all connections that are up and not stalled.
pub(crate) struct Driver<'a> {
    wheel: &'a Wheel,
    nodes: Vec<Driven<'a>>,
    _seat: MutexGuard<'a, Seat>,
}

struct Driven<'a> {
    node: &'a Node,
    socket: Arc<Socket>,
    intake: MutexGuard<'a, Intake>,
}

impl Wheel {
    pub(crate) fn new(events: Arc<dyn Events>) -> Wheel {
        let (seat, rounds, lingering) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
        Wheel { events, seat, rounds, lingering, wake_fd: OnceLock::new() }
    }

    /// Takes the wheel, if that is possible now; otherwise the workers do their work.
    pub(crate) fn take<'a>(&'a self, nodes: &'a [Arc<Node>], now: Tick) -> Option<Driver<'a>> {
        if !sys::CAN_WAIT_FOR_SEVERAL || nodes.iter().any(|it| it.response_timeout() < RESPONSE_TIMEOUT_MIN) {
            return None;
        }
        let seat = self.seat.try_lock().filter(|it| **it == Seat::Free)?;
        let mut driver = Driver { wheel: self, nodes: Vec::with_capacity(nodes.len()), _seat: seat };
        for node in nodes {
            if node.is_connecting() {
                // Its worker delivers, and could decide the round while we wait for the others.
                return None;
            }
            if !node.is_up() {
                continue;
            }
            // RACE: the intake is locked only while reading is ours. A worker that finds it locked leaves what has come
            // to us, and hears of it again only when we leave.
            let socket = node.take_reading()?;
            let Some(intake) = node.intake.try_lock() else {
                node.leave_reading(Reader::Worker);
                return None;
            };
            driver.nodes.push(Driven { node, socket, intake });
            if node.is_stalled(now) {
                // It does not answer, and its worker waits for it.
                if let Some(driven) = driver.nodes.pop() {
                    driven.leave(Reader::Worker);
                }
            }
        }
        Some(driver)
    }

    /// `None` if the system has no more of them.
    fn wake_fd(&self) -> Option<Arc<WakeFd>> {
        self.wake_fd.get_or_init(|| WakeFd::new().ok().map(Arc::new)).clone()
    }

    /// Whether connections may have been left to nobody; then [`Wheel::look_after`] has to be called every
    /// [`LINGER`].
    pub(crate) fn is_lingering(&self) -> bool {
        self.lingering.load(Ordering::Acquire)
    }

    /// Gives all connections back to their workers, for good. Waits for a caller that is at the wheel, until `deadline`.
    pub(crate) fn close(&self, nodes: &[Arc<Node>], deadline: Tick) {
        if let Some(mut seat) = self.seat.try_lock_until(deadline) {
            *seat = Seat::Closed;
        }
        for node in nodes {
            node.settle();
        }
    }

    /// Gives connections that were left to nobody back to their workers, unless rounds go on. `seen` is the caller's,
    /// between calls.
    pub(crate) fn look_after(&self, nodes: &[Arc<Node>], seen: &mut u64) {
        let rounds = self.rounds.load(Ordering::Acquire);
        if std::mem::replace(seen, rounds) != rounds {
            return;
        }
        // RACE: taken back before the connections are looked at. A driver that leaves in between announces it anew.
        self.lingering.store(false, Ordering::Release);
        for node in nodes {
            node.settle();
        }
    }
}

impl Driven<'_> {
    /// Stops reading. True if the connection is left to nobody.
    fn leave(self, to: Reader) -> bool {
        let Driven { node, intake, .. } = self;
        let broken = intake.broken.is_some();
        // RACE: the worker must find the intake unlocked when it gets up, and what has come is announced to it once.
        drop(intake);
        let is_left = node.leave_reading(to);
        if broken {
            node.report_broken();
        }
        is_left
    }
}

/// Leaves the wheel: the workers read.
impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Driver<'_> {
    /// Whether an answer of one of `asked` would be read by somebody else.
    pub(crate) fn misses(&self, asked: NodeSet) -> bool {
        let mut missed = asked;
        self.nodes.iter().for_each(|it| missed.remove(it.node.id));
        missed != NodeSet::default()
    }

    /// Reads until `is_over`, or until `deadline` has come, then leaves the wheel.
    pub(crate) fn drive(mut self, is_over: &dyn Fn() -> bool, deadline: Tick, in_company: impl Fn() -> bool) {
        while !is_over() {
            let left = deadline.saturating_duration_since(time::tick());
            if left.is_zero() {
                break;
            }
            let Some(readable) = self.wait_readable(None, Some(left)) else { break };
            if !self.receive(readable) {
                // Its worker ends the connection, and that can decide the round. We are told by the round then,
                // not by a socket: back to the ordinary way of waiting.
                return;
            }
        }
        self.wheel.rounds.fetch_add(1, Ordering::AcqRel);
        if in_company() {
            return;
        }
        let mut lingers = false;
        for driven in self.nodes.drain(..) {
            lingers |= driven.leave(Reader::Nobody);
        }
        let wheel = self.wheel;
        drop(self);
        if lingers && !wheel.lingering.swap(true, Ordering::AcqRel) {
            wheel.events.left_unread();
        }
    }

    /// Waits at the wheel, for notices: reads what comes, for everybody, until `until`, or until `parker` is woken. False
    /// if that is no longer possible, and the workers must read.
    pub(crate) fn listen(&mut self, until: Option<Tick>, parker: &Parker) -> bool {
        let Some(wake_fd) = self.wheel.wake_fd() else { return false };
        let readable = parker.sleep_elsewhere(&wake_fd, || {
            let left = until.map(|it| it.saturating_duration_since(time::tick()));
            self.wait_readable(Some(&wake_fd), left)
        });
        match readable {
            // With lines for the log it leaves the wheel: they are written when nothing is locked, and it may stay for long.
            Some(Some(readable)) => self.receive(readable) && !is_anything_waiting(),
            Some(None) => false,
            None => true,
        }
    }

    fn wait_readable(&self, wake_fd: Option<&WakeFd>, timeout: Option<Duration>) -> Option<Vec<bool>> {
        sys::wait_readable(self.nodes.iter().map(|it| &*it.socket), wake_fd, timeout)
    }

    /// Reads what has come. False if a connection is of no use any more.
    fn receive(&mut self, readable: Vec<bool>) -> bool {
        for (driven, readable) in self.nodes.iter_mut().zip(readable) {
            if readable && let Err(failure) = driven.intake.receive(driven.node, &driven.socket) {
                driven.intake.broken = Some(failure);
                return false;
            }
        }
        true
    }

    /// Gives all connections back to their workers, at once.
    fn give_back(&mut self) {
        for driven in self.nodes.drain(..) {
            driven.leave(Reader::Worker);
        }
    }
}
