//! A session without a socket: its gates, bytes cut at every place, and random commands, answers, losses and times.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::answer::{LockStatus, Record};
use crate::config::Config;
use crate::ids::{NodeId, OwnerToken, RecordVersion};
use crate::wire::{KeyTtls, LockCommands, Offer, QueuePolicy, QueueUpdate, Script};

const TIMEOUT: Duration = Duration::from_millis(100);
const ALONE: QueuePolicy = QueuePolicy {
    since: 0,
    entry: None,
    enters: false,
};
/// Answers to [`Command::time`] and to a release.
const TIME_REPLY: &[u8] = b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n";
const RELEASED: &[u8] = b":1\r\n";

/// What became of commands, by their numbers.
type Log = Arc<Mutex<Vec<(usize, Answer, bool)>>>;

struct Asker {
    number: usize,
    is_open: AtomicBool,
    log: Log,
}

impl ReplyHandler for Asker {
    fn deliver(&self, _: NodeId, answer: Answer, reached: bool) -> bool {
        self.log
            .lock()
            .unwrap()
            .push((self.number, answer, reached));
        true
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }
}

/// A session, and what became of its commands.
struct Tried {
    session: Session,
    log: Log,
    now: Now,
    given: usize,
}

impl Tried {
    fn new(quarantine: bool) -> Tried {
        let config = Config {
            quarantine,
            ..Config::default()
        };
        let now = Now::read();
        let rules = RecordRules::new(&config, 1);
        Tried {
            session: Session::new(rules, TIMEOUT, ClientId::draw().unwrap(), now),
            log: Log::default(),
            now,
            given: 0,
        }
    }

    /// One that is connected to a server without quarantine.
    fn open() -> Tried {
        let mut tried = Tried::new(false);
        tried.connect();
        tried
    }

    fn connect(&mut self) {
        let record_reply = Some(RecordReply {
            is_stored: true,
            ..RecordReply::of(Record::Off, Duration::ZERO)
        });
        let server_info = ServerInfo {
            run_id: Some("one".to_owned()),
            record_reply,
            ..ServerInfo::default()
        };
        self.open_with(server_info);
    }

    fn open_with(&mut self, server_info: ServerInfo) {
        let login = Login {
            conn: Conn::ready(true),
            server_info,
            asked: self.now,
            reported_time: self.now.moment,
        };
        self.session.open(login, self.now);
    }

    fn later(&mut self, by: Duration) {
        self.now = Now {
            tick: self.now.tick + by,
            moment: self.now.moment.checked_add(by).unwrap(),
        };
    }

    fn handler(&mut self) -> Option<Arc<dyn ReplyHandler>> {
        self.given += 1;
        Some(Arc::new(Asker {
            number: self.given,
            is_open: AtomicBool::new(true),
            log: Arc::clone(&self.log),
        }))
    }

    fn give(&mut self, command: Command) {
        let handler = self.handler();
        let command = PendingCommand::new(Arc::new(command), handler);
        self.session.enqueue(command, self.now);
    }

    fn give_release(&mut self) {
        let handler = self.handler();
        let keep_until = self.now.tick + Duration::from_secs(100);
        let release = PendingCommand::release(Arc::new(release()), handler, keep_until);
        self.session.enqueue(release, self.now);
    }

    /// Writes everything: the bytes.
    fn write(&mut self) -> Vec<u8> {
        let bytes = self.session.conn.poll_write().to_vec();
        self.session.conn.wrote(bytes.len());
        bytes
    }

    fn wrote(&mut self, what: &str) -> bool {
        String::from_utf8_lossy(&self.write()).contains(what)
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), NodeFailure> {
        while !bytes.is_empty() {
            let space = self.session.conn.space();
            let len = space.len().min(bytes.len());
            space[..len].copy_from_slice(&bytes[..len]);
            self.session.conn.filled(len);
            bytes = &bytes[len..];
            self.session.on_bytes(self.now)?;
        }
        Ok(())
    }

    /// What became of commands since it was asked last.
    fn votes(&mut self) -> Vec<(usize, Answer, bool)> {
        for vote in std::mem::take(&mut self.session.votes) {
            if let Some(handler) = vote.handler {
                handler.deliver(NodeId::new(0), vote.answer, vote.reached);
            }
        }
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn is_refused(&self, patience: Duration) -> bool {
        let shown = self.session.availability();
        shown.refusal(patience, self.now.tick) == Some(NodeFailure::Stalled)
    }
}

fn commands() -> LockCommands {
    LockCommands::mutex(b"", b"x", KeyTtls::default())
}

fn release() -> Command {
    commands().release(OwnerToken::nobody(), Offer::default(), QueueUpdate::None)
}

fn acquire() -> Command {
    commands().acquire(OwnerToken::nobody(), 1_000, 7, &ALONE)
}

/// What a server with a record of this version says of a lock that it hands over, at this time.
fn handed_over_at(time: u64, record_version: &RecordVersion) -> Vec<u8> {
    let record_version = str::from_utf8(&record_version.0).unwrap();
    let message = format!(
        "7 {record_version} 900 {time} w 32 {} report",
        "0".repeat(32)
    );
    let frame = format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n", message.len());
    [frame, message, "\r\n".to_owned()].concat().into_bytes()
}

fn handed_over_push(record_version: &RecordVersion) -> Vec<u8> {
    handed_over_at(0, record_version)
}

/// The tokens that servers have handed over, if they can be votes.
fn tokens(tried: &Tried) -> Vec<Option<u64>> {
    tried.session.notices.iter().map(|it| it.token).collect()
}

fn failed(failure: NodeFailure) -> Answer {
    Answer::Failed(failure)
}

#[test]
fn a_command_waits_for_a_connection_and_is_refused_without() {
    let mut tried = Tried::new(false);
    assert!(
        !tried.session.availability().takes_commands(tried.now.tick),
        "unused"
    );
    tried.session.connect(tried.now.tick + TIMEOUT);
    assert!(!tried.session.availability().takes_commands(tried.now.tick));

    let down = Health::Down(NodeFailure::Loading);
    tried
        .session
        .close(&NodeFailure::Loading, down, tried.now.tick);
    assert!(tried.session.availability().takes_commands(tried.now.tick));
    tried.give(Command::time());
    tried.give_release();

    let refused = |number| (number, failed(NodeFailure::Loading), false);
    assert_eq!(tried.votes(), [refused(1), refused(2)]);
    tried.connect();
    assert!(tried.wrote("EVALSHA"), "the release is kept");
}

#[test]
fn h27_a_command_waits_until_the_server_is_synced() {
    let mut tried = Tried::new(true);
    tried.open_with(ServerInfo {
        run_id: Some("one".to_owned()),
        ..ServerInfo::default()
    });
    tried.give(acquire());
    tried.give(acquire());
    let kinds = |tried: &mut Tried| {
        let conn = std::mem::take(&mut tried.session.conn);
        conn.close().map(|it| it.command.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&mut tried), [Kind::SyncRecord]);

    let kept = RecordReply {
        is_stored: true,
        max_ttl: 10_000,
        ..RecordReply::of(Record::Kept, Duration::from_secs(100))
    };
    tried.session.on_synced(&Answer::Record(kept), tried.now);

    assert_eq!(kinds(&mut tried), [Kind::Acquire, Kind::Acquire]);
}

#[test]
fn h27_commands_that_wait_for_a_sync_fail_with_it() {
    let mut tried = Tried::new(true);
    tried.open_with(ServerInfo::default());
    tried.give(acquire());
    let failure = NodeFailure::QuarantineDiffers { on_server: false };

    tried.session.on_synced(&failed(failure.clone()), tried.now);

    assert_eq!(tried.votes(), [(1, failed(failure.clone()), true)]);
    assert_eq!(tried.session.on_bytes(tried.now), Err(failure));
}

/// As after a process was stopped, which reads answers before it has asked which server is the primary.
#[test]
fn grants_of_an_unconfirmed_primary_do_not_count() {
    let mut tried = Tried::open();
    let granted = || Reply {
        answer: Answer::of(LockStatus::Accepted),
        time: None,
    };
    let now = tried.now;
    let judged = |session: &mut Session, by: Duration| {
        let asked = Now {
            tick: now.tick + by,
            moment: now.moment.checked_add(by).unwrap(),
        };
        session.judge(
            granted(),
            Timing {
                asked,
                answered: asked,
            },
        )
    };
    let second = Duration::from_secs(1);
    assert_eq!(judged(&mut tried.session, second), granted().answer);

    tried.session.confirmed_until = now.moment.checked_add(second);

    assert_eq!(judged(&mut tried.session, second), granted().answer);
    assert_eq!(
        judged(&mut tried.session, second * 2),
        failed(NodeFailure::UNCONFIRMED)
    );
}

/// What a server says that has just stored its record, with a quarantine of ten seconds.
fn new_server() -> ServerInfo {
    ServerInfo {
        run_id: Some("one".to_owned()),
        record_reply: Some(RecordReply {
            is_stored: true,
            max_ttl: 10_000,
            ..RecordReply::of(Record::Missing, Duration::ZERO)
        }),
        ..ServerInfo::default()
    }
}

#[test]
fn b1_a_grant_of_a_server_that_is_new_does_not_count() {
    let mut tried = Tried::new(true);
    tried.open_with(new_server());
    tried.give(acquire());
    tried.write();

    tried.receive(b":1800000000000000\r\n").unwrap();

    let votes = tried.votes();
    assert!(
        matches!(
            &votes[..],
            [(1, Answer::Failed(NodeFailure::Quarantined { .. }), true)]
        ),
        "{votes:?}"
    );
}

/// Otherwise a call could win with it, find that it has no vote, and lose its place in all lists.
#[test]
fn b1_a_hand_over_does_not_count_for_an_ask_within_the_quarantine() {
    let mut tried = Tried::new(true);
    tried.open_with(new_server());
    let ends = tried.now.tick + Duration::from_secs(10);
    for _ in 0..2 {
        tried
            .receive(&handed_over_push(&RecordVersion::NONE))
            .unwrap();
        let notice = tried.session.notices.pop().unwrap();
        assert!(notice.asked_from.is_some_and(|it| ends <= it));
        tried.later(Duration::from_secs(11));
    }
}

#[test]
fn b5_a_server_that_may_evict_is_refused_and_checked_every_minute() {
    let mut tried = Tried::open();
    let mut evicts = ServerInfo {
        record_reply: Some(RecordReply {
            evicts: Some("volatile-ttl".to_owned()),
            is_limited: true,
            ..RecordReply::of(Record::Off, Duration::ZERO)
        }),
        ..ServerInfo::default()
    };
    let failure = Some(NodeFailure::evicts("volatile-ttl"));
    assert_eq!(tried.session.check(&mut evicts).err(), failure);

    for asks in [false, true, false, true] {
        tried.later(SYNC_EVERY / 2);
        tried.session.on_time(tried.now);
        assert_eq!(tried.wrote("look"), asks);
    }
}

#[test]
fn h6_a_server_with_an_empty_socket_and_an_overdue_answer_is_stalled() {
    let mut tried = Tried::open();
    tried.give(Command::time());
    tried.write();
    tried.session.on_empty(tried.now.tick).unwrap();
    tried.later(TIMEOUT * 5);
    assert!(
        !tried.is_refused(Duration::ZERO),
        "its answer may lie unread"
    );

    tried.session.on_empty(tried.now.tick).unwrap();

    assert!(tried.is_refused(Duration::ZERO) && tried.is_refused(TIMEOUT));
    assert!(!tried.is_refused(TIMEOUT * 10), "h21: more patience");
    assert!(matches!(tried.session.events[..], [SessionEvent::Silent]));

    tried.receive(TIME_REPLY).unwrap();

    assert!(!tried.is_refused(Duration::ZERO), "it has caught up");
    tried.give(Command::time());
    tried.write();
    tried.receive(TIME_REPLY).unwrap();
    assert!(matches!(
        tried.session.events[1..],
        [SessionEvent::Responding]
    ));
}

#[test]
fn h9_a_mute_connection_is_compared_with_a_second_one_once_a_second() {
    let mut tried = Tried::open();
    tried.give(Command::time());
    tried.write();
    let start = tried.now.tick;
    let end = |tried: &mut Tried, millis| {
        tried
            .session
            .on_empty(start + Duration::from_millis(millis))
    };
    assert_eq!(end(&mut tried, 999), Ok(()));
    assert_eq!(tried.session.plan(start), start + MUTE_MIN);

    for second in 1..5 {
        assert_eq!(end(&mut tried, second * 1_000), Err(NodeFailure::Stalled));
        assert_eq!(end(&mut tried, second * 1_000 + 999), Ok(()));
    }

    // An answer to an earlier command came late, so the connection is slow and works.
    tried.give(Command::time());
    tried.write();
    tried.later(MUTE_MIN * 6);
    tried.receive(TIME_REPLY).unwrap();
    assert_eq!(end(&mut tried, 6_999), Ok(()));
    assert_eq!(end(&mut tried, 7_000), Err(NodeFailure::Stalled));
}

#[test]
fn h9_a_connection_without_answers_ends_when_all_keys_have_expired() {
    for (has_quarantine, seconds) in [(true, 10), (false, 60)] {
        let mut tried = Tried::new(has_quarantine);
        tried.connect();
        tried.give(Command::time());
        tried.write();
        let mut end = |seconds| {
            let now = tried.now.tick + Duration::from_secs(seconds);
            tried.session.on_empty(now)
        };
        assert_eq!(end(seconds), Err(NodeFailure::Stalled));
        assert_eq!(end(seconds + 1), Err(NodeFailure::TimedOut));
    }
}

#[test]
fn h6_a_worker_is_woken_only_for_deadlines_before_its_plan() {
    let mut tried = Tried::open();
    assert!(tried.now.tick + TIMEOUT * 10 < tried.session.plan(tried.now.tick));
    tried.give(Command::time());
    assert!(tried.session.is_unwatched(tried.now.tick));

    let planned = tried.session.plan(tried.now.tick);
    assert!(!tried.session.is_unwatched(tried.now.tick));
    tried.now.tick = planned;
    assert!(tried.session.is_overdue(planned));

    tried.write();
    tried.session.on_empty(planned).unwrap();
    tried.session.plan(planned);
    tried.give_release();
    assert!(!tried.session.is_unwatched(planned), "its silence is known");

    // As long as it is used, nobody wakes its thread.
    tried.write();
    tried.receive(&[TIME_REPLY, RELEASED].concat()).unwrap();
    // Also behind a hand-over, which comes while nothing is under way.
    for _ in 0..2 {
        assert!(tried.session.plan(tried.now.tick) <= tried.now.tick + TIMEOUT * 2);
    }
    tried.give(Command::time());
    assert!(!tried.session.is_unwatched(tried.now.tick));
}

#[test]
fn h7_an_answer_before_its_command_is_sent_ends_the_connection() {
    let mut tried = Tried::open();
    tried.give(Command::time());

    let end = tried.receive(TIME_REPLY);

    assert!(matches!(end, Err(NodeFailure::Protocol { .. })), "{end:?}");
    assert!(tried.votes().is_empty());
}

#[test]
fn h7_sent_bytes_are_freed_while_a_slow_server_is_given_more() {
    let mut tried = Tried::open();
    let length = release().packed().len();
    for _ in 0..100 {
        tried.give_release();
    }
    // Never so fast that everything was sent once.
    for _ in 0..1_000 {
        assert!(!tried.session.conn.poll_write().is_empty());
        tried.session.conn.wrote(length);
        tried.receive(RELEASED).unwrap();
        tried.give_release();
    }
    let kept = tried.session.conn.kept();
    assert!(kept <= 300 * length, "{kept} bytes are kept");
}

#[test]
fn a_subscription_precedes_its_acquire() {
    let mut tried = Tried::open();
    tried.give(
        Command::of_script(Script::Acquire, &[b"a"], &[b"x", Command::IS_NOTIFIED]).with_wait(),
    );

    let conn = std::mem::take(&mut tried.session.conn);
    let sent: Vec<_> = conn.close().map(|it| it.command.kind).collect();
    assert_eq!(sent, [Kind::Subscribe, Kind::Acquire]);
}

#[test]
fn commands_wait_briefly_for_an_answer_and_are_written_together() {
    let mut tried = Tried::open();
    let takes = |tried: &Tried| tried.session.availability().takes_commands(tried.now.tick);
    // A round trip of no time.
    tried.give(Command::time());
    tried.write();
    tried.receive(TIME_REPLY).unwrap();
    assert!(takes(&tried));
    tried.give(Command::time());
    tried.write();
    assert!(!takes(&tried));

    tried.later(Duration::from_millis(11));
    assert!(takes(&tried), "a server that is slow gets releases");
}

#[test]
fn bytes_may_be_cut_at_every_place() {
    let transcript = [
        TIME_REPLY,
        &handed_over_push(&RecordVersion::NONE),
        RELEASED,
        TIME_REPLY,
    ]
    .concat();
    for cut in 0..transcript.len() {
        let mut tried = Tried::open();
        tried.give(Command::time());
        tried.give_release();
        tried.give(Command::time());
        tried.write();

        tried.receive(&transcript[..cut]).unwrap();
        tried.receive(&transcript[cut..]).unwrap();

        let answered: Vec<_> = tried.votes().into_iter().map(|it| it.0).collect();
        assert_eq!(answered, [1, 2, 3], "cut at {cut}");
        assert_eq!(tokens(&tried), [Some(7)]);
    }
}

/// RACE: T1, this process, is stopped and goes on when T2 has promoted another server. T1 reads old messages first.
#[test]
fn an_unconfirmed_primary_hands_over_no_token() {
    let mut tried = Tried::open();
    let record_version = RecordVersion::NONE;
    let until = tried.now.moment.checked_add(TIMEOUT).unwrap();
    tried.session.confirmed_until = Some(until);
    tried.receive(&handed_over_push(&record_version)).unwrap();
    tried.later(TIMEOUT);
    tried.receive(&handed_over_push(&record_version)).unwrap();
    tried.later(Duration::from_micros(1));
    tried.receive(&handed_over_push(&record_version)).unwrap();

    assert_eq!(tokens(&tried), [Some(7), Some(7), None]);
}

#[test]
fn h17_a_hand_over_with_an_unsynced_record_has_no_token() {
    let mut tried = Tried::open();
    let other = RecordVersion::new(2);
    tried.receive(&handed_over_push(&other)).unwrap();
    assert_eq!(tokens(&tried), [None]);
}

/// RACE: T2, the server, has its clock set forward and deletes what others hold; it hands that over to T1 before any answer.
#[test]
fn c4_a_hand_over_with_a_clock_step_has_no_token_and_no_quarantine() {
    const TIME: u64 = 1_800_000_000_000_000;
    let mut tried = Tried::open();
    tried.give(Command::time());
    tried.write();
    tried.receive(TIME_REPLY).unwrap();
    tried.later(Duration::from_secs(1));
    for time in [TIME + 1_000_000, TIME + 3_000_000, TIME + 1_000_000] {
        tried
            .receive(&handed_over_at(time, &RecordVersion::NONE))
            .unwrap();
    }
    assert_eq!(tokens(&tried), [Some(7), None, Some(7)]);
    assert_eq!(
        tried.session.availability().stepped_at,
        None,
        "anybody may publish"
    );
}

/// RACE: T1 asks; T2, the server, loses its data, and its new quarantine passes before T1 syncs it again.
#[test]
fn h17_a_hand_over_counts_for_asks_with_this_record_and_connection() {
    let mut tried = Tried::open();
    let begun = tried.now.tick;
    let hands_over_from = |tried: &mut Tried| {
        tried.later(Duration::from_secs(1));
        tried
            .receive(&handed_over_push(&RecordVersion::NONE))
            .unwrap();
        tried.session.notices.pop().and_then(|it| it.asked_from)
    };
    assert_eq!(hands_over_from(&mut tried), Some(begun));
    let shown = |number| RecordReply {
        is_stored: true,
        record_version: RecordVersion::new(number),
        ..RecordReply::of(Record::Off, Duration::ZERO)
    };
    let mut synced = begun;
    for (number, is_new) in [(2, true), (2, false), (3, true)] {
        let timing = Timing {
            asked: tried.now,
            answered: tried.now,
        };
        tried.session.judge_record(&shown(number), timing);
        if is_new {
            synced = tried.now.tick;
        }
        assert_eq!(hands_over_from(&mut tried), Some(synced), "{number}");
    }
    tried.connect();
    let connected = tried.now.tick;
    assert_eq!(hands_over_from(&mut tried), Some(connected));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask,
    Release,
    Answer,
    Later,
    Lose,
    Connect,
}

proptest! {
    /// Against a model: a queue of commands. Each has one answer, in order; what is lost fails, and releases are sent again.
    #[test]
    fn each_command_has_one_answer_despite_losses_and_releases_are_kept(
        steps in prop::collection::vec(prop::sample::select(vec![
            Step::Ask, Step::Ask, Step::Release, Step::Release, Step::Answer, Step::Answer, Step::Answer, Step::Later,
            Step::Lose, Step::Connect,
        ]), 1..80),
    ) {
        let mut tried = Tried::open();
        let mut is_open = true;
        // What has no answer, by its number, and whether it is a release; and how many releases are kept.
        let mut waits: VecDeque<(usize, bool)> = VecDeque::new();
        let mut kept = 0;
        for step in steps {
            let mut expected = Vec::new();
            match step {
                Step::Ask | Step::Release => {
                    let is_release = matches!(step, Step::Release);
                    if is_release {
                        tried.give_release();
                    } else {
                        tried.give(Command::time());
                    }
                    if is_open {
                        waits.push_back((tried.given, is_release));
                    } else {
                        expected.push((tried.given, false));
                        kept += usize::from(is_release);
                    }
                }
                Step::Answer => {
                    if let Some((number, is_release)) = waits.pop_front() {
                        tried.write();
                        tried.receive(if is_release { RELEASED } else { TIME_REPLY }).unwrap();
                        // Nobody waits any more for a release that is sent again.
                        expected.extend((number != 0).then_some((number, true)));
                    }
                }
                Step::Later => tried.later(TIMEOUT / 10),
                Step::Lose => {
                    let down = Health::Down(NodeFailure::Loading);
                    let was_idle = tried.session.close(&NodeFailure::Loading, down, tried.now.tick);
                    prop_assert_eq!(was_idle, waits.is_empty());
                    is_open = false;
                    for (number, is_release) in waits.drain(..) {
                        expected.extend((number != 0).then_some((number, true)));
                        kept += usize::from(is_release);
                    }
                }
                Step::Connect if !is_open => {
                    tried.connect();
                    is_open = true;
                    waits.extend(std::iter::repeat_n((0, true), std::mem::take(&mut kept)));
                }
                Step::Connect => {}
            }
            let votes: Vec<_> = tried.votes().into_iter().map(|it| (it.0, it.2)).collect();
            prop_assert_eq!(votes, expected);
            prop_assert_eq!(tried.session.availability().unanswered, waits.len());
        }
    }

    /// `PROPTEST_CASES=1000000` looks for ten minutes.
    #[test]
    fn h18_no_bytes_of_a_server_cause_a_panic(
        bytes in prop::collection::vec(prop_oneof![
            Just(b"\r\n".to_vec()), Just(b"*2\r\n".to_vec()), Just(b"$3\r\n".to_vec()), Just(b":1\r\n".to_vec()),
            Just(b"-NOSCRIPT x\r\n".to_vec()), Just(b"-ERR x\r\n".to_vec()), Just(b">3\r\n".to_vec()), Just(b"_\r\n".to_vec()),
            Just(b"$7\r\nmessage\r\n".to_vec()), Just(TIME_REPLY.to_vec()), prop::collection::vec(any::<u8>(), 0..6),
        ], 0..40),
    ) {
        let mut tried = Tried::open();
        for _ in 0..3 {
            tried.give(Command::time());
            tried.give_release();
            tried.give(acquire());
        }
        tried.write();
        let end = tried.receive(&bytes.concat());
        let ended = tried.votes().len();
        tried.session.close(&NodeFailure::ShutDown, Health::Unused, tried.now.tick);
        prop_assert_eq!(ended + tried.votes().len(), 9, "each has one answer: {:?}", end);
    }
}
