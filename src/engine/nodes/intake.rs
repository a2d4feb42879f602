//! The reading half of a node: bytes into answers, answers to whoever waits for them.

use std::ops::Range;
use std::time::Duration;

use crate::answer::{AcquireReply, Answer, ExtendReply, GreetReply, RaiseReply};
use crate::engine::nodes::node::Node;
use crate::engine::nodes::outbox::InFlight;
use crate::error::{self, NodeFailure};
use crate::logic::eligibility::{Eligibility, Times};
use crate::logic::pace::{Allowance, Sample};
use crate::stats::count;
use crate::sys::Socket;
use crate::sys::logging::trace;
use crate::time::{self, Moment, Tick};
use crate::wire::{self, Filled, Inbox, Kind, Push, Reply};

/// A node says with every answer for how long it is quarantined, and each is on its way for another time: the log has been told,
/// unless it is longer by more than that.
const SILENCE_IS_NEWS: Duration = Duration::from_secs(1);

/// What has come from a node and is not dealt with yet. Guarded by one mutex: one thread reads at a time, so that
/// answers meet their commands in order.
pub(crate) struct Intake {
    inbox: Inbox,
    /// Something that makes sense has come back on this connection.
    pub(crate) answered: bool,
    /// A caller that was reading found that the connection is of no use; the worker ends it.
    pub(crate) broken: Option<NodeFailure>,
    /// Whether what the node grants counts.
    pub(crate) eligibility: Eligibility,
    allowance: Allowance,
    /// Kept for their memory.
    replies: Vec<Range<usize>>,
    answers: Vec<(Range<usize>, InFlight)>,
}

impl Intake {
    pub(crate) fn new(eligibility: Eligibility) -> Intake {
        let (replies, answers) = (Vec::new(), Vec::new());
        let allowance = Allowance::default();
        Intake { inbox: Inbox::new(), answered: false, broken: None, eligibility, allowance, replies, answers }
    }

    /// Begins with a new connection; `inbox` may hold bytes that came behind the login.
    pub(crate) fn begin(&mut self, inbox: Inbox) {
        (self.inbox, self.answered, self.broken) = (inbox, false, None);
        self.allowance = Allowance::default();
        (self.replies, self.answers) = (Vec::new(), Vec::new());
    }

    /// Reads once and hands out the replies that are complete. Each belongs to the oldest command without one.
    ///
    /// An error ends the connection; what had come before it has been handed out.
    pub(crate) fn receive(&mut self, node: &Node, socket: &Socket) -> Result<Filled, NodeFailure> {
        let _reading = node.begin_reading();
        let filled = self
            .inbox
            .fill(|into| socket.read(into))
            .map_err(|err| NodeFailure::Disconnected { reason: error::reason(&err) })?;
        if filled == Filled::Nothing {
            return Ok(filled);
        }
        let found = self.inbox.take_replies(&mut self.replies);
        let is_possible = self.hand_out(node);
        // What is answered keeps nobody from sending more: a node that answers without reading could have any number of
        // commands queued here.
        if !is_possible {
            return Err(NodeFailure::Protocol { reason: "an answer to what was not sent yet".to_owned() });
        }
        found.map_err(|reason| NodeFailure::Protocol { reason })?;
        Ok(filled)
    }

    /// False if one of them comes before its command: it and those behind it are no answers.
    fn hand_out(&mut self, node: &Node) -> bool {
        if self.replies.is_empty() {
            return true;
        }
        let mut is_possible = true;
        let (inbox, answers) = (&self.inbox, &mut self.answers);
        let mut notices = Vec::new();
        let replies = self.replies.drain(..);
        node.with_outbox(|outbox| {
            for reply in replies {
                let belongs = match wire::push(inbox.get(reply.clone())) {
                    Push::None => true,
                    Push::Subscribed => outbox.next_kind() == Some(Kind::Subscribe),
                    Push::Message(key) => {
                        notices.push(key);
                        false
                    }
                    Push::Other => false,
                };
                if belongs && outbox.is_ahead() {
                    is_possible = false;
                    break;
                }
                if belongs && let Some(owed) = outbox.pop() {
                    answers.push((reply, owed));
                }
            }
        });
        let (now, moment) = (time::tick(), Moment::now());
        if let Some((_, last)) = answers.last() {
            let took = now.saturating_duration_since(last.given.at);
            let sample = Sample { now, answers: answers.len(), took, ahead: last.given.ahead };
            self.allowance.on_answers(sample, node.response_timeout());
            node.note_allowance(&self.allowance, now);
        }
        for (reply, owed) in answers.drain(..) {
            node.note_answers(node.response_timeout() < now.saturating_duration_since(owed.since));
            let reply = Reply::read(owed.job.kind(), inbox.get(reply));
            trace!("{}: {:?}", node.id, reply.answer);
            self.answered |= !matches!(reply.answer, Answer::Failed(NodeFailure::Protocol { .. }));
            let times = Times { asked: owed.since, asked_at: owed.asked_at, answered: now, answered_at: moment };
            let answer = judge(node, &mut self.eligibility, reply, times);
            take_answer(node, owed, answer, now);
        }
        for key in notices {
            node.take_notice(&key, now);
        }
        // What waited for an answer, to be written together, is written now: by the worker, whoever has read this.
        if node.has_queue() {
            node.wake();
        }
        is_possible
    }
}

/// What an answer counts for: a grant of a node that may have forgotten who holds the lock is none.
fn judge(node: &Node, eligibility: &mut Eligibility, Reply { answer, time }: Reply, times: Times) -> Answer {
    eligibility.lasts(node.quarantine_length());
    if time.is_some() {
        let news = eligibility.on_time(time, times);
        node.publish_eligibility(eligibility, news, times.answered);
    }
    let left = match answer {
        Answer::Acquire(AcquireReply::Forgot { left }) => {
            let known = eligibility.quarantine_left(times.answered);
            if known < left {
                if known.saturating_add(SILENCE_IS_NEWS) < left {
                    node.note_forgotten(left);
                }
                eligibility.quarantine(left, times.answered);
                node.publish_eligibility(eligibility, None, times.answered);
            }
            // What the node says is not all that is known of it.
            let left = left.max(eligibility.quarantine_left(times.answered));
            return Answer::Failed(NodeFailure::Quarantined { left, why: eligibility.why(times.answered) });
        }
        Answer::Greet(reply) => {
            node.take_memory(reply);
            eligibility.lasts(node.quarantine_length());
            let news = eligibility.on_memory(reply, times);
            node.publish_eligibility(eligibility, news, times.answered);
            return answer;
        }
        Answer::Meet(reply) => {
            node.take_meeting(reply, times.answered);
            return answer;
        }
        Answer::Acquire(AcquireReply::Accepted | AcquireReply::Behind { .. })
        | Answer::Raise(RaiseReply::Taken | RaiseReply::Above { .. }) => {
            if let Some(failure) = node.refused_for_other_nodes() {
                return Answer::Failed(failure);
            }
            eligibility.quarantine_left(times.asked)
        }
        // RACE: the key may have been set there since the restart, by an acquire or a healing of ours that was on its way.
        // Before that the node may have granted the lock to somebody who counts that grant and is still collecting votes.
        // Counted here, our lease would go on while our other keys run out, and he would get the majority that we had.
        Answer::Extend(ExtendReply::Extended) => eligibility.restarted_for(times.asked),
        _ => return answer,
    };
    if left.is_zero() {
        answer
    } else {
        Answer::Failed(NodeFailure::Quarantined { left, why: eligibility.why(times.answered) })
    }
}

fn take_answer(node: &Node, mut owed: InFlight, answer: Answer, now: Tick) {
    if answer == Answer::NoScript && !owed.with_source {
        send_with_source(node, owed, now);
        return;
    }
    match owed.job.kind() {
        Kind::Subscribe => return node.set_listening(&answer),
        Kind::Meet => return,
        Kind::Greet => {
            let kept = matches!(answer, Answer::Greet(GreetReply { kept: true, .. }));
            node.with_outbox(|it| node.plan_to_greet(it, kept, owed.asked_at));
        }
        _ => {}
    }
    let refused = matches!(answer, Answer::Failed(_));
    if let Answer::Failed(failure) = &answer {
        node.note_refusal(failure, now);
    }
    if !owed.job.answer(node.id, answer, true) {
        count(&node.counters.late_answers);
    }
    if !refused && owed.job.was_refused {
        node.note_taken_again();
    }
    if refused && owed.job.is_worth_keeping(now) {
        // A server that is busy or cannot write refuses releases as well, and the key would stay for its ttl.
        node.put_back(owed.job, now);
    }
}

/// The server has forgotten the script and has run nothing, so the command is sent once more, with the source.
fn send_with_source(node: &Node, owed: InFlight, now: Tick) {
    let unwanted = node.with_outbox(|outbox| {
        // RACE: a round that is over has queued its releases already, and an acquire sent now would run behind them
        // and leave its key. Whoever ends a round first closes it and then gives the releases, which takes the
        // outbox or the queue behind it. So, with the outbox locked: if the round is still open, its releases come
        // after what is put in line here.
        if owed.job.is_wanted() {
            outbox.push_again(owed.job, now);
            None
        } else {
            Some(owed.job)
        }
    });
    match unwanted {
        Some(mut job) => {
            job.answer(node.id, Answer::NoScript, true);
            count(&node.counters.late_answers);
        }
        // Written by the worker, whoever has read this.
        None => node.wake_now(),
    }
}

/// With sockets of the system.
#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    #![expect(clippy::arithmetic_side_effects, reason = "a test may overflow: it fails then")]

    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::answer::ServerInfo;
    use crate::engine::nodes::job::Job;
    use crate::engine::nodes::worker::SOCKET;
    use crate::ids::OwnerToken;
    use crate::sys::Poll;
    use crate::wire::{Command, KeyTtls, Plan, QueueUpdate};

    /// How long a command is, about.
    const LENGTH: usize = 64 * 1024;
    /// Together longer than what two systems keep of it in between.
    const MANY: usize = 200;
    const ANSWER: &[u8] = b":0\r\n";

    /// A node without a worker, and the other end of its connection.
    struct Connected {
        node: Node,
        socket: Arc<Socket>,
        server: TcpStream,
        command: Arc<Command>,
        _poll: Poll,
    }

    impl Connected {
        fn new() -> Connected {
            let (node, poll) = Node::unattended(Duration::from_secs(30));
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut socket = Socket::connect_tcp(listener.local_addr().unwrap()).unwrap();
            let server = listener.accept().unwrap().0;
            socket.register(poll.registry(), SOCKET).unwrap();
            let socket = Arc::new(socket);
            assert!(node.open(Arc::clone(&socket), &ServerInfo::default(), std::iter::empty(), time::tick()));
            let plan = Plan::mutex(b"", &vec![b'x'; LENGTH / 3], KeyTtls::default());
            let command = Arc::new(plan.release(OwnerToken::nobody(), None, QueueUpdate::None));
            Connected { node, socket, server, command, _poll: poll }
        }

        /// Gives commands to the connection, as the worker does.
        fn ask(&self, commands: usize) {
            self.node.with_outbox(|outbox| {
                let job = || Job::release(Arc::clone(&self.command), None, time::tick());
                (0..commands).for_each(|_| outbox.push(job(), time::tick()));
                outbox.flush().unwrap();
            });
        }

        /// Reads until so many answers have been handed out, or an error.
        fn receive(&self, answers: usize) -> Result<(), NodeFailure> {
            let owed = self.node.with_outbox(|it| it.owes());
            while owed < self.node.with_outbox(|it| it.owes()) + answers {
                self.node.intake.lock().receive(&self.node, &self.socket)?;
            }
            Ok(())
        }
    }

    #[test]
    fn h7_a_node_that_answers_what_it_was_not_sent_yet_is_given_up() {
        let mut it = Connected::new();
        it.ask(MANY);
        assert!(!it.node.with_outbox(|outbox| outbox.is_flushed()), "the systems keep too much");

        // It reads nothing.
        it.server.write_all(&ANSWER.repeat(MANY)).unwrap();

        let failure = it.receive(MANY).unwrap_err();
        assert!(matches!(failure, NodeFailure::Protocol { .. }), "{failure:?}");
        assert!(0 < it.node.with_outbox(|outbox| outbox.owes()), "what it has not been sent it owes");
    }

    #[test]
    fn h7_what_a_slow_node_was_sent_is_not_kept_while_more_is_given_to_it() {
        let mut it = Connected::new();
        it.ask(MANY);
        let mut length = Vec::new();
        it.node.with_outbox(|_| it.command.write_to(&mut length, false));
        let mut bytes = vec![0; length.len()];

        // Never so fast that everything was sent once.
        for _ in 0..2 * MANY {
            it.server.read_exact(&mut bytes).unwrap();
            it.server.write_all(ANSWER).unwrap();
            it.receive(1).unwrap();
            it.ask(1);
            assert!(!it.node.with_outbox(|outbox| outbox.is_flushed()));
        }

        let kept = it.node.with_outbox(|outbox| outbox.kept());
        assert!(kept <= 2 * MANY * bytes.len(), "{kept} bytes are kept");
    }
}
