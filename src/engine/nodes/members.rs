//! All members of a node that is more than one process, asked side by side by the thread that looks after the node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::member::{Member, ProbeContext};
use crate::engine::nodes::resolve::Resolver;
use crate::ids::NodeId;
use crate::sys::logging::debug;
use crate::sys::{Events, Poll};
use crate::time::{self, Tick};
use crate::wire::{Address, Endpoint, Group, Question};

/// See the module.
pub(super) struct AllMembers {
    node: NodeId,
    address: Address,
    /// What is in the address.
    in_url: Vec<Endpoint>,
    question: Question,
    all: Vec<Member>,
    resolver: Resolver,
    poll: Poll,
    events: Events,
}

impl AllMembers {
    /// Those that are in the address of `node`. `poll`: where the thread waits, for them and for those that wake it; `wake` does.
    pub(super) fn new(
        node: NodeId,
        address: Address,
        group: &Group,
        poll: Poll,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> AllMembers {
        let mut members = AllMembers {
            node,
            address,
            in_url: group.members().to_vec(),
            question: Question::to(group),
            all: Vec::new(),
            resolver: Resolver::new(wake),
            poll,
            events: Events::with_capacity(16),
        };
        members.know(&[]);
        members
    }

    pub(super) fn each(&self) -> &[Member] {
        &self.all
    }

    pub(super) fn each_mut(&mut self) -> &mut [Member] {
        &mut self.all
    }

    /// Their addresses, as they are shown.
    pub(super) fn shown(&self) -> Vec<Arc<str>> {
        self.all
            .iter()
            .map(|it| it.place().to_string().into())
            .collect()
    }

    /// From now on there are these beside those of the address, each with what its certificate is for, if that is not its host.
    /// True if some are new.
    pub(super) fn know(&mut self, others: &[(Endpoint, Option<Arc<str>>)]) -> bool {
        let AllMembers { in_url, all, .. } = self;
        // What is in the address is what its host says, whatever it announces.
        let of_url = in_url.iter().map(|it| (it, None));
        let others = others
            .iter()
            .filter(|it| !in_url.contains(&it.0))
            .map(|it| (&it.0, it.1.clone()));
        let wanted: Vec<_> = of_url.chain(others).collect();
        all.retain(|it| wanted.iter().any(|wanted| wanted.0 == it.place()));
        let mut has_new = false;
        for (place, name) in wanted {
            match all.iter_mut().find(|it| it.place() == place) {
                Some(known) => known.call(name),
                None => {
                    all.push(Member::new(
                        self.address.of_member(place.clone(), name),
                        self.question.clone(),
                    ));
                    has_new = true;
                }
            }
        }
        has_new
    }

    /// Asks them all, and waits until they have answered, for `time` at most, or until it is to stop. What they have said is
    /// theirs, see [`Member::end`].
    pub(super) fn ask(&mut self, now: Tick, time: Duration, is_to_stop: impl Fn() -> bool) {
        let deadline = now.checked_add(time).unwrap_or(now);
        let half = time
            .checked_div(2)
            .and_then(|it| now.checked_add(it))
            .unwrap_or(deadline);
        self.do_each(time, false, Member::begin);
        loop {
            let is_late = half <= time::tick();
            self.do_each(time, is_late, Member::step);
            if self.next_is_long() {
                // It reads on.
                continue;
            }
            let now = time::tick();
            if deadline <= now || self.all.iter().all(|it| it.said().is_some()) || is_to_stop() {
                return;
            }
            let next = if is_late { deadline } else { half };
            let until = self
                .all
                .iter()
                .filter_map(Member::due)
                .fold(next, Tick::min);
            self.wait(Some(until.saturating_duration_since(now)));
        }
    }

    /// Whether another one begins to give its long answer: those of all at a time would be too much.
    fn next_is_long(&mut self) -> bool {
        !self.all.iter_mut().any(Member::keeps_turn) && self.all.iter_mut().any(Member::takes_turn)
    }

    fn do_each(
        &mut self,
        timeout: Duration,
        is_late: bool,
        mut does: impl FnMut(&mut Member, &ProbeContext<'_>),
    ) {
        let AllMembers {
            all,
            resolver,
            poll,
            ..
        } = self;
        let asking = ProbeContext {
            resolver,
            poll,
            timeout,
            is_late,
        };
        all.iter_mut().for_each(|it| does(it, &asking));
    }

    /// Sleeps until there is something to do.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        if let Err(err) = self.poll.poll(&mut self.events, timeout)
            && err.kind() != io::ErrorKind::Interrupted
        {
            debug!("{}: cannot wait for its servers: {err}", self.node);
        }
    }
}

/// With sockets of the system.
#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;
    use crate::error::{MemberAnswer, NodeFailure};

    const PROBE: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_secs(2);
    const ROLE: &str = "*1\r\n$4\r\nROLE\r\n";
    const MASTER: &[u8] = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
    const REPLICA: &[u8] = b"*5\r\n$5\r\nslave\r\n$1\r\na\r\n:1\r\n$9\r\nconnected\r\n:1\r\n";

    /// The members of a group at these addresses.
    fn members(of: &[&TcpListener]) -> AllMembers {
        let places: Vec<_> = of
            .iter()
            .map(|it| it.local_addr().unwrap().to_string())
            .collect();
        let address =
            crate::wire::parse_url(&format!("redis+replicated://{}", places.join(","))).unwrap();
        let Endpoint::Group(group) = address.place.clone() else {
            panic!()
        };
        AllMembers::new(NodeId::new(0), address, &group, Poll::new().unwrap(), || {})
    }

    fn probe(members: &mut AllMembers, time: Duration) -> Vec<MemberAnswer> {
        members.ask(time::tick(), time, || false);
        members.each_mut().iter_mut().map(Member::end).collect()
    }

    fn read(server: &mut TcpStream) -> String {
        let mut bytes = [0; 1_024];
        let len = server.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    /// Accepts a connection, and answers its login.
    fn log_in(listener: &TcpListener) -> TcpStream {
        let (mut server, _) = listener.accept().unwrap();
        assert!(read(&mut server).contains("SETNAME"));
        server.write_all(b"+OK\r\n").unwrap();
        server
    }

    /// What they say in a probe, while somebody else serves.
    fn probe_beside<T: Send>(
        members: &mut AllMembers,
        time: Duration,
        serve: impl FnOnce() -> T + Send,
    ) -> (Vec<MemberAnswer>, T) {
        thread::scope(|scope| {
            let server = scope.spawn(serve);
            let said = probe(members, time);
            (said, server.join().unwrap())
        })
    }

    #[test]
    fn a_late_answer_is_not_counted_and_the_member_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut members = members(&[&listener]);
        let silent = [MemberAnswer::Failed(NodeFailure::TimedOut)];
        let (said, mut server) = probe_beside(&mut members, SHORT, || {
            let mut server = log_in(&listener);
            assert_eq!(read(&mut server), ROLE);
            server
        });
        assert_eq!(said, silent);
        // It is not asked once more before it has answered.
        assert_eq!(probe(&mut members, SHORT), silent);
        server.write_all(REPLICA).unwrap();
        let (said, ()) = probe_beside(&mut members, PROBE, || {
            assert_eq!(read(&mut server), ROLE);
            server.write_all(MASTER).unwrap();
        });
        assert_eq!(said, [MemberAnswer::Master]);
    }

    #[test]
    fn a_kept_connection_that_was_closed_is_replaced_in_the_same_probe() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut members = members(&[&listener]);
        for _ in 0..2 {
            let (said, ()) = probe_beside(&mut members, PROBE, || {
                let mut server = log_in(&listener);
                assert_eq!(read(&mut server), ROLE);
                server.write_all(MASTER).unwrap();
            });
            assert_eq!(said, [MemberAnswer::Master]);
        }
    }

    #[test]
    fn a_connection_without_three_answers_is_given_up_and_no_member_waits_for_another() {
        let (silent, fine) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        let mut members = members(&[&silent, &fine]);
        silent.set_nonblocking(true).unwrap();
        let (mut kept, mut unanswered) = (None, Vec::new());
        for number in 1..=4 {
            let (said, server) = probe_beside(&mut members, SHORT, || {
                let mut server = kept.take().unwrap_or_else(|| log_in(&fine));
                assert_eq!(read(&mut server), ROLE);
                server.write_all(MASTER).unwrap();
                server
            });
            kept = Some(server);
            assert_eq!(
                said,
                [
                    MemberAnswer::Failed(NodeFailure::TimedOut),
                    MemberAnswer::Master
                ]
            );
            unanswered.extend(silent.accept().ok());
            assert_eq!(
                unanswered.len(),
                if number < 4 { 1 } else { 2 },
                "probe {number}"
            );
        }
    }
}
