//! What is done to nodes and to clients, and undone again.

use std::thread;
use std::time::Duration;

use devnodes::{ChildProcess, Clock, Error, Group, Proxy, Server};
use rustix::process::Signal;

use crate::clusters::Spot;
use crate::history::Effect;
use crate::judge::Judge;
use crate::nodes::{Node, primary, promote};
use crate::phase_signals::Phase;
use crate::support::{between, boot, times};

/// What can be done to a node.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum NodeFault {
    KillEmpty,
    KillKept,
    Pause,
    Flush,
    OutOfMemory,
    Password,
    ClockForward,
    ClockBack,
    /// By less than the margin allows for.
    ClockRate,
    ScriptFlush,
    /// Its access list forbids to tell a client of a hand-over, or to take one off a list.
    Forbid,
    /// The connections to it are closed, and new ones too for a while.
    Cut,
    /// Connections stay open, and nothing comes through.
    BlackHole,
    /// Answers come late, some later than the response timeout.
    Delay,
    /// Answers come byte by byte.
    Trickle,
    /// It hears commands long after those who sent them have given up.
    LateRequests,
    /// It does what it is told, and its answers come long after.
    LateReplies,
    /// Of a node that is several servers: its master dies, and a replica that may lack its last words is promoted.
    FailOver,
    /// Of a cluster: a replica becomes the master by agreement with that.
    HandOver,
    /// Of a cluster: a replica becomes the master without asking anybody.
    TakeOver,
    /// Of a cluster: a slot goes to another master with its keys.
    MoveSlot,
    /// Of a cluster: another master takes a slot, without its keys.
    LoseSlot,
    /// Of a cluster: all its servers are killed, and restart with what they had.
    Blackout,
}

/// A node, and the link over which clients reach it.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Node,
    /// None if they reach it directly: then nothing can be done to it.
    pub(crate) link: Option<&'a Proxy>,
}

/// What can be done to a client.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum ClientFault {
    StopInAcquire,
    StopInRenewal,
    StopInRelease,
    Kill,
    /// Its wall clock, to and fro.
    ClockSteps,
}

/// Servers read their clock once per turn of their loop: for so long after a step they may still show the old time.
const STALE_CLOCK_NANOS: u64 = 100_000_000;

impl NodeFault {
    pub(crate) const ALL: [NodeFault; 11] = [
        NodeFault::KillEmpty,
        NodeFault::KillKept,
        NodeFault::Pause,
        NodeFault::Flush,
        NodeFault::OutOfMemory,
        NodeFault::Password,
        NodeFault::ClockForward,
        NodeFault::ClockBack,
        NodeFault::ClockRate,
        NodeFault::ScriptFlush,
        NodeFault::Forbid,
    ];

    /// What can be done to the link to a node.
    pub(crate) const OF_LINKS: [NodeFault; 6] = [
        NodeFault::Cut,
        NodeFault::BlackHole,
        NodeFault::Delay,
        NodeFault::Trickle,
        NodeFault::LateRequests,
        NodeFault::LateReplies,
    ];

    /// What can be done to a cluster.
    pub(crate) const OF_CLUSTERS: [NodeFault; 10] = [
        NodeFault::KillEmpty,
        NodeFault::KillKept,
        NodeFault::Pause,
        NodeFault::Flush,
        NodeFault::FailOver,
        NodeFault::HandOver,
        NodeFault::TakeOver,
        NodeFault::MoveSlot,
        NodeFault::LoseSlot,
        NodeFault::Blackout,
    ];

    /// Whether another server takes the place of one that has the keys, and may lack some.
    pub(crate) fn can_be_cut(self) -> bool {
        matches!(self, NodeFault::FailOver | NodeFault::TakeOver)
    }

    /// To how many of these nodes it may be done at once.
    pub(crate) fn at_once(self, nodes: usize) -> usize {
        if self == NodeFault::Blackout {
            nodes.div_ceil(2) - 1
        } else {
            nodes
        }
    }

    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    pub(crate) fn needs_clock(self) -> bool {
        matches!(
            self,
            NodeFault::ClockForward | NodeFault::ClockBack | NodeFault::ClockRate
        )
    }

    pub(crate) fn effect(self) -> Effect {
        match self {
            NodeFault::KillEmpty
            | NodeFault::Flush
            | NodeFault::FailOver
            | NodeFault::TakeOver
            | NodeFault::LoseSlot => Effect::Forgets,
            NodeFault::ClockForward => Effect::Hastens,
            _ => Effect::None,
        }
    }

    /// Does it, holds it for a while, and undoes it. `told` is called with when it took effect.
    pub(crate) fn inflict(
        self,
        Place { node, link }: Place<'_>,
        ttl: Duration,
        rng: &mut fastrand::Rng,
        told: impl Fn(NodeFault, u64, u64),
    ) -> Result<(), Error> {
        if let Some(link) = link.filter(|_| NodeFault::OF_LINKS.contains(&self)) {
            let from = boot();
            self.inflict_on(link, ttl, rng);
            told(self, from, boot());
            return Ok(());
        }
        let server = match node {
            Node::Server(server) => &**server,
            Node::Group(group) => {
                return fail_over(group, ttl, rng, |from, to| told(self, from, to));
            }
            Node::Cluster(cluster) => {
                let spot = Spot::find(cluster)?;
                if !NodeFault::ALL.contains(&self) {
                    return spot.inflict(self, ttl, rng, told);
                }
                spot.server()
            }
        };
        let rate = if rng.bool() { 8_000 } else { -8_000 };
        let forbidden = ["-publish", "-zpopmin"][rng.usize(..2)];
        let mut hold = |from: f64, to: f64| thread::sleep(between(rng, ttl, from, to));
        let from = boot();
        match self {
            NodeFault::KillEmpty => {
                server.kill()?;
                told(self, from, boot());
                hold(0.0, 1.5);
                server.restart_empty()?;
            }
            NodeFault::KillKept => {
                server.kill()?;
                told(self, from, boot());
                hold(0.0, 1.5);
                server.restart()?;
            }
            NodeFault::Pause => {
                server.pause()?;
                hold(0.1, 3.0);
                server.resume()?;
                told(self, from, boot());
            }
            NodeFault::Flush => {
                server.command(&["FLUSHALL"])?;
                told(self, from, boot());
            }
            NodeFault::OutOfMemory => {
                server.command(&["CONFIG", "SET", "maxmemory", "1"])?;
                hold(0.2, 1.5);
                server.command(&["CONFIG", "SET", "maxmemory", "0"])?;
                told(self, from, boot());
            }
            NodeFault::Password => {
                let mut client = server.client()?;
                client.command(&["CONFIG", "SET", "requirepass", "changed"])?;
                // Who is logged in stays so: only new connections are refused.
                client.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])?;
                client.command(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
                hold(0.2, 1.5);
                client.command(&["CONFIG", "SET", "requirepass", ""])?;
                told(self, from, boot());
            }
            NodeFault::ClockForward => {
                server.step_clock_forward(times(ttl, [0.2, 1.0, 10.0][rng.usize(..3)]))?;
                told(self, from, boot() + STALE_CLOCK_NANOS);
            }
            NodeFault::ClockBack => {
                if server.clock_ahead()? < -3 * i64::try_from(ttl.as_nanos()).unwrap_or(0) {
                    return catch_up(server, &told);
                }
                server.step_clock_back(times(ttl, [0.2, 1.0, 3.0][rng.usize(..3)]))?;
                told(self, from, boot());
            }
            NodeFault::ClockRate => {
                server.set_clock_rate(rate)?;
                hold(0.5, 3.0);
                server.set_clock_rate(0)?;
                told(self, from, boot());
            }
            NodeFault::ScriptFlush => {
                server.command(&["SCRIPT", "FLUSH"])?;
                told(self, from, boot());
            }
            NodeFault::Forbid => {
                server.command(&["ACL", "SETUSER", "default", forbidden])?;
                hold(0.2, 1.5);
                server.command(&["ACL", "SETUSER", "default", "+publish", "+zpopmin"])?;
                told(self, from, boot());
            }
            other => panic!("{other:?} is none of a server"),
        }
        Ok(())
    }

    /// The same to a link. A client's response timeout is a fifth of the ttl.
    fn inflict_on(self, link: &Proxy, ttl: Duration, rng: &mut fastrand::Rng) {
        let delay = between(rng, ttl, 0.02, 0.4);
        let mut hold = |from: f64, to: f64| thread::sleep(between(rng, ttl, from, to));
        match self {
            NodeFault::Cut => {
                link.refuse(true);
                link.cut();
                hold(0.0, 1.0);
                link.refuse(false);
            }
            NodeFault::BlackHole => {
                link.black_hole(true);
                hold(0.1, 2.0);
                link.black_hole(false);
                // What was open is of no use any more; a network would find that out as well, in its time.
                link.cut();
            }
            NodeFault::Delay => {
                link.set_delay(delay);
                hold(0.2, 2.0);
                link.set_delay(Duration::ZERO);
            }
            NodeFault::Trickle => {
                link.trickle(delay / 20);
                hold(0.2, 2.0);
                link.trickle(Duration::ZERO);
            }
            NodeFault::LateRequests => {
                link.hold_requests();
                hold(0.1, 3.0);
                link.release_requests();
            }
            NodeFault::LateReplies => {
                link.hold_replies();
                hold(0.1, 3.0);
                link.release_replies();
            }
            other => panic!("{other:?} is none of a link"),
        }
    }
}

/// See [`NodeFault::FailOver`]. The old primary becomes a replica.
fn fail_over(
    group: &Group,
    ttl: Duration,
    rng: &mut fastrand::Rng,
    told: impl Fn(u64, u64),
) -> Result<(), Error> {
    let old = primary(group)?;
    let from = boot();
    group.servers[old].kill()?;
    let new = promote(group, old)?;
    told(from, boot());
    thread::sleep(between(rng, ttl, 0.0, 1.0));
    group.servers[old].restart()?;
    group.demote(old, new)
}

/// Steps a clock that is behind forward to the system's time. Keys that were set while it was behind would otherwise
/// outlive their ttl.
pub(crate) fn catch_up(server: &Server, told: &impl Fn(NodeFault, u64, u64)) -> Result<(), Error> {
    let from = boot();
    let behind = server.clock_ahead()?.min(0).unsigned_abs();
    if 0 < behind {
        server.step_clock_forward(Duration::from_nanos(behind))?;
        told(NodeFault::ClockForward, from, boot() + STALE_CLOCK_NANOS);
    }
    Ok(())
}

impl ClientFault {
    pub(crate) const ALL: [ClientFault; 5] = [
        ClientFault::StopInAcquire,
        ClientFault::StopInRenewal,
        ClientFault::StopInRelease,
        ClientFault::Kill,
        ClientFault::ClockSteps,
    ];

    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    pub(crate) fn needs_clock(self) -> bool {
        self == ClientFault::ClockSteps
    }

    /// Does it. The result says in which phase it really happened, if it did, and whether the client is dead now.
    pub(crate) fn inflict(
        self,
        (number, child, clock): (u64, &mut ChildProcess, Option<&Clock>),
        ttl: Duration,
        rng: &mut fastrand::Rng,
        judge: &Judge,
    ) -> Result<(Option<String>, bool), Error> {
        let stop = match self {
            ClientFault::StopInAcquire => Some(Phase::Acquire),
            ClientFault::StopInRenewal => Some(Phase::Renewal),
            ClientFault::StopInRelease => Some(Phase::Release),
            ClientFault::Kill => None,
            ClientFault::ClockSteps => {
                let (Some(clock), by) = (clock, between(rng, ttl, 0.1, 10.0)) else {
                    return Ok((None, false));
                };
                if clock.ahead()? < 0 {
                    clock.step_forward(by * 2)?
                } else {
                    clock.step_back(by * 2)?
                }
                thread::sleep(between(rng, ttl, 0.0, 0.5));
                return Ok((Some("any".to_owned()), false));
            }
        };
        let phase = stop.unwrap_or_else(|| Phase::ALL[rng.usize(..3)]);
        // A round trip with its two ends takes some hundred microseconds here; some signals come
        // after it.
        let delay = if rng.u8(..4) == 0 {
            rng.u64(..20_000)
        } else {
            rng.u64(..600)
        };
        child.tell(&format!(
            "{} {} {delay}",
            if stop.is_some() { "stop" } else { "kill" },
            phase.name()
        ));
        let said = child.hear_within(ttl * 3).unwrap_or_else(|| {
            child.tell("never-mind");
            child.hear()
        });
        let Some(where_) = said.strip_prefix("signalled in ") else {
            return Ok((None, false));
        };
        if stop.is_none() {
            assert!(!child.wait().success());
            return Ok((Some(where_.to_owned()), true));
        }
        child.wait_until_stopped();
        let from = boot();
        thread::sleep(between(rng, ttl, 0.5, 3.0));
        let to = boot();
        child.signal(Signal::CONT);
        judge.history().stops.push((number, from, to));
        Ok((Some(where_.to_owned()), false))
    }
}
