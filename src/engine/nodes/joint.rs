//! One thread that drives all connections together while several callers are busy: it writes what has queued for every node,
//! waits for all sockets and hands out what comes. So one thread is woken by a command or an answer and not five, and what
//! many callers send goes out together.
//!
//! It drives like a caller that is alone: see `link.rs` and `drive.rs`. The workers sleep meanwhile, and go on to do all
//! else: they connect, end what is broken, send again, and write what does not fit. A node that is not ready is left to them.
//!
//! It begins when a caller finds that it is not alone, and leaves the connections to their workers when callers are alone
//! again for a moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::drive::{DriverSeat, Driving};
use crate::engine::nodes::node::Node;
use crate::sys::logging::error;
use crate::sys::sync::{AtomicBool, fence, is_anything_waiting};
use crate::sys::{self, WakeFd};
use crate::time;

/// It leaves when no two callers were busy for so long.
pub(crate) const MOMENT: Duration = Duration::from_millis(2);

/// See the module. Shared by all callers and the thread.
pub(crate) struct Joint {
    nodes: Vec<Arc<Node>>,
    seat: DriverSeat,
    /// The thread drives: what is sent is left to it.
    drives: AtomicBool,
    /// Set while the thread sleeps or is about to: only then it needs to be woken.
    asleep: AtomicBool,
    stopped: AtomicBool,
    /// It looks at no queue any more.
    ended: AtomicBool,
    wake_fd: Option<WakeFd>,
}

impl Joint {
    pub(crate) fn new(nodes: Vec<Arc<Node>>, seat: DriverSeat) -> Joint {
        Joint {
            nodes,
            seat,
            drives: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(true),
            wake_fd: if sys::CAN_WAIT_FOR_SEVERAL { WakeFd::new().ok() } else { None },
        }
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub(crate) fn seat(&self) -> &DriverSeat {
        &self.seat
    }

    /// Whether the thread drives.
    pub(crate) fn drives(&self) -> bool {
        self.drives.load(Ordering::SeqCst)
    }

    /// Lets the thread begin to drive if several callers are busy.
    pub(crate) fn begin(&self) {
        if !self.seat.is_alone() && !self.drives() {
            self.wake();
        }
    }

    /// Makes the thread look at all queues, after something was put into one.
    pub(crate) fn wake(&self) {
        // RACE: as in `Node::wake`: the thread says that it will sleep, or that it has ended, and then looks at the queues once
        // more; we put something there and then look at what it says.
        fence(Ordering::SeqCst);
        if self.ended.load(Ordering::SeqCst) {
            self.hand_on();
        } else if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(wake_fd) = &self.wake_fd
        {
            wake_fd.wake();
        }
    }

    /// The thread ends: from now on workers drive.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(wake_fd) = &self.wake_fd {
            wake_fd.wake();
        }
    }

    /// The thread's work.
    pub(crate) fn run(&self) {
        let Some(wake_fd) = &self.wake_fd else { return };
        self.ended.store(false, Ordering::SeqCst);
        while !self.stopped.load(Ordering::SeqCst) {
            if catch_unwind(AssertUnwindSafe(|| self.turn(wake_fd))).is_err() {
                self.drives.store(false, Ordering::SeqCst);
                error!("the thread that drives all connections panicked and goes on; please report this");
            }
        }
        self.ended.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.hand_on();
    }

    /// Drives while several callers are busy, and then sleeps.
    fn turn(&self, wake_fd: &WakeFd) {
        while !self.seat.is_alone() && !self.stopped.load(Ordering::SeqCst) {
            let Some(driving) = self.seat.take_jointly() else { break };
            self.drive(driving, wake_fd);
        }
        self.announce_sleep();
        self.hand_on();
        if !self.stopped.load(Ordering::SeqCst) {
            sys::wait_readable(std::iter::empty(), Some(wake_fd), None);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn drive<'a>(&'a self, mut driving: Driving<'a>, wake_fd: &WakeFd) {
        self.drives.store(true, Ordering::SeqCst);
        let mut last_busy = time::tick();
        loop {
            let now = time::tick();
            if !self.seat.is_alone() {
                last_busy = now;
            }
            let left = MOMENT.saturating_sub(now.saturating_duration_since(last_busy));
            // Lines for the log are written when nothing is locked, and while it drives something is.
            if left.is_zero() || is_anything_waiting() || self.stopped.load(Ordering::SeqCst) {
                break;
            }
            driving.take_missing(&self.nodes);
            driving.write(now);
            self.announce_sleep();
            // Nodes that it does not drive are their workers'.
            self.nodes.iter().filter(|it| it.has_queue() && !driving.has(it.id)).for_each(|it| it.wake());
            let can_wait = driving.wait(wake_fd, if driving.may_write() { Duration::ZERO } else { left });
            self.asleep.store(false, Ordering::SeqCst);
            if !can_wait {
                break;
            }
            driving.read();
        }
        // RACE: callers that see this leave nothing to the thread. What was left to it before, and was not written yet, is found
        // by `hand_on`, once the connections are their workers'.
        self.drives.store(false, Ordering::SeqCst);
    }

    fn announce_sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Wakes the workers of all nodes for which something has queued.
    fn hand_on(&self) {
        self.nodes.iter().filter(|it| it.has_queue()).for_each(|it| it.wake());
    }
}

/// With threads of the system.
#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::nodes::job::Job;
    use crate::sys::sync::is_anything_locked;
    use crate::sys::{Events, WAKE};
    use crate::wire::Command;

    #[test]
    fn what_is_for_a_node_that_cannot_be_driven_is_its_workers() {
        let (node, mut poll) = Node::unattended(Duration::from_millis(100));
        let (node, now) = (Arc::new(node), time::tick());
        node.fall_asleep();
        let joint = Joint::new(vec![Arc::clone(&node)], DriverSeat::new(Arc::new(())));
        let _busy = (joint.seat.busy(), joint.seat.busy());
        std::thread::scope(|scope| {
            scope.spawn(|| joint.run());
            while !joint.drives() {
                joint.wake();
                std::thread::yield_now();
            }
            node.give([Some(Job::of_connection(Arc::new(Command::time()))), None], now, false);
            joint.wake();

            let mut events = Events::with_capacity(8);
            poll.poll(&mut events, Some(Duration::from_secs(30))).unwrap();

            joint.stop();
            assert!(events.iter().any(|it| it.token() == WAKE), "nobody has told it");
        });
        assert!(!joint.drives() && node.has_queue() && !is_anything_locked());
    }
}
