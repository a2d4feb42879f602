//! One thread that drives all connections together while several callers are busy: it writes what has queued for every node,
//! waits for all sockets and hands out what comes. So one thread is woken by a command or an answer and not five, and what
//! many callers send goes out together.
//!
//! It drives like a caller that is alone: see `link.rs` and `drive.rs`. The workers sleep meanwhile, and go on to do all
//! else: they connect, end what is broken, send again, and write what does not fit. A node that is not ready is left to them.
//!
//! It begins when a caller finds that it is not alone, and leaves the connections to their workers when callers are alone
//! again for a moment. It is started when it is needed first: many programs lock with one thread, and never need it.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::drive::{DriverSeat, Driving};
use crate::engine::nodes::node::Node;
use crate::sys::logging::{error, warn};
use crate::sys::sync::{AtomicBool, Mutex, fence, is_anything_waiting};
use crate::sys::{self, OwnThread, WakeFd};
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
    /// It looks at no queue: not yet, or not any more.
    ended: AtomicBool,
    /// It was started, or cannot be.
    started: AtomicBool,
    /// Once it was started. Not dropped here: in a forked child it names a thread of the parent; see `Engine`'s drop.
    thread: Mutex<Option<ManuallyDrop<OwnThread>>>,
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
            started: AtomicBool::new(false),
            thread: Mutex::new(None),
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
    pub(crate) fn begin(self: &Arc<Self>) {
        if !self.seat.is_alone() && !self.drives() {
            self.wake();
        }
    }

    /// Makes the thread look at all queues, after something was put into one. Call it with nothing locked.
    pub(crate) fn wake(self: &Arc<Self>) {
        // RACE: as in `Node::wake`: the thread says that it will sleep, or that it has ended, and then looks at the queues once
        // more; we put something there and then look at what it says.
        fence(Ordering::SeqCst);
        if self.ended.load(Ordering::SeqCst) {
            // First, so that nothing waits for the start.
            self.hand_on();
            self.start();
        } else if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(wake_fd) = &self.wake_fd
        {
            wake_fd.wake();
        }
    }

    /// Starts the thread if that was not done.
    fn start(self: &Arc<Self>) {
        if self.started.load(Ordering::Relaxed) || self.wake_fd.is_none() {
            return;
        }
        let mut place = self.thread.lock();
        // RACE: looked at with the place locked: `stop` finds the thread there, or it is not started any more.
        if self.stopped.load(Ordering::SeqCst) || self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let joint = Arc::clone(self);
        match OwnThread::spawn("quorlock-joint".to_owned(), move || joint.run()) {
            Ok(thread) => *place = Some(ManuallyDrop::new(thread)),
            Err(err) => {
                drop(place);
                warn!("the thread that drives all connections cannot be started: {err}; others do its work");
            }
        }
    }

    /// The thread ends, and is to be joined: from now on workers drive.
    pub(crate) fn stop(&self) -> Option<OwnThread> {
        self.stopped.store(true, Ordering::SeqCst);
        let thread = self.thread.lock().take().map(ManuallyDrop::into_inner);
        if let Some(wake_fd) = self.wake_fd.as_ref().filter(|_| thread.is_some()) {
            wake_fd.wake();
        }
        thread
    }

    /// The thread's work.
    fn run(&self) {
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
    use crate::sys::{Events, Poll, WAKE};
    use crate::wire::Command;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// All nodes have one, whose worker sleeps.
    fn joint_and_its_worker() -> (Arc<Joint>, Poll) {
        let (node, poll) = Node::unattended(Duration::from_millis(100));
        node.fall_asleep();
        (Arc::new(Joint::new(vec![Arc::new(node)], DriverSeat::new(Arc::new(())))), poll)
    }

    fn give_a_command(joint: &Arc<Joint>) {
        joint.nodes[0].give([Some(Job::of_connection(Arc::new(Command::time()))), None], time::tick(), false);
        joint.wake();
    }

    fn assert_worker_is_woken(mut poll: Poll) {
        let mut events = Events::with_capacity(8);
        poll.poll(&mut events, Some(PATIENCE)).unwrap();
        assert!(events.iter().any(|it| it.token() == WAKE), "nobody has told it");
    }

    #[test]
    fn what_is_for_a_node_that_cannot_be_driven_is_its_workers() {
        let (joint, poll) = joint_and_its_worker();
        let _busy = (joint.seat.busy(), joint.seat.busy());
        while !joint.drives() {
            joint.wake();
            std::thread::yield_now();
        }

        give_a_command(&joint);

        assert_worker_is_woken(poll);
        let thread = joint.stop().unwrap();
        assert!(matches!(thread.join_until(time::deadline(PATIENCE)), Some(Ok(()))));
        assert!(!joint.drives() && joint.nodes[0].has_queue() && !is_anything_locked());
    }

    #[test]
    fn the_thread_is_started_when_several_callers_are_busy_and_once() {
        let (joint, _poll) = joint_and_its_worker();
        let _first = joint.seat.busy();
        joint.begin();
        assert!(joint.thread.lock().is_none(), "a caller is alone");

        let _second = joint.seat.busy();
        joint.begin();
        // As others do that have found that it has not begun.
        joint.start();

        let threads = |joint: &Arc<Joint>| Arc::strong_count(joint) - 1;
        assert_eq!((threads(&joint), joint.thread.lock().is_some()), (1, true));
        joint.stop().unwrap().join_until(time::deadline(PATIENCE)).unwrap().unwrap();
        assert_eq!(threads(&joint), 0);
    }

    #[test]
    fn after_the_end_the_thread_is_not_started_and_workers_are_woken() {
        let (joint, poll) = joint_and_its_worker();
        let _busy = (joint.seat.busy(), joint.seat.busy());
        assert!(joint.stop().is_none());

        give_a_command(&joint);

        assert_worker_is_woken(poll);
        assert!(joint.stop().is_none(), "a thread that nobody joins");
    }
}
