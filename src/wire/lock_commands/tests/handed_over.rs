//! What the scripts of a lock do for calls that wait, on a stand-in for a server.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

use std::time::Duration;

use quorlock_testing::resp;
use quorlock_testing::store::{Notice, Store, Value};

use super::*;
use crate::answer::{Answer, LockStatus};
use crate::wire::command::Destination;
use crate::wire::reply::{Push, Reply, push};

/// What the server's clock shows: microseconds since 1970.
const NOW: u64 = 1_700_000_000_000_000;
const TTL: u64 = 10_000;
const LOCK: &str = "a";
const COUNTER: &str = "quorlock:fence:a";
const LIST: &str = "quorlock:waiting:a";
const MARK: &str = "quorlock:mark:a";
const READERS: &str = "quorlock:readers:a";
const SHARED: &str = "quorlock:shared";

/// A server that has been in use for a day.
struct Node {
    store: Store,
    now: u64,
    record_version: RecordVersion,
    /// A command that the access list forbids.
    forbidden: Option<&'static str>,
}

/// A call of a client of its own.
#[derive(Clone, Copy)]
struct Call {
    client: ClientId,
    owner: OwnerToken,
    since: u64,
}

impl Call {
    /// One that began so many microseconds after others.
    fn new(since: u64) -> Call {
        Call {
            client: ClientId::draw().unwrap(),
            owner: OwnerToken::draw().unwrap(),
            since: NOW - 1_000 + since,
        }
    }

    fn value(self) -> String {
        text(&self.owner.to_value())
    }

    fn channel(self) -> String {
        self.client.channel()
    }

    fn waits(self) -> QueuePolicy {
        QueuePolicy {
            since: self.since,
            entry: Some(QueueEntry {
                client: self.client,
                life: 60_000,
            }),
            enters: true,
        }
    }
}

impl Node {
    fn new() -> Node {
        let mut node = Node {
            store: Store::new("run"),
            now: NOW - 86_400_000_000,
            record_version: RecordVersion::new(1),
            forbidden: None,
        };
        node.sync_record();
        node.now = NOW;
        node
    }

    fn sync_record(&mut self) {
        let sync_command = SyncRecord {
            record_version: self.record_version,
            own: TTL,
            reported: 0,
            servers: 0,
            kind: SyncKind::Note,
        };
        self.run(&sync_record(&sync_command));
    }

    /// What it answers, and what it tells others.
    fn run_told(&mut self, command: &Command, is_notified: bool) -> (Answer, Vec<Notice>) {
        let to = Destination {
            with_source: true,
            is_notified,
            record_version: self.record_version,
            tag: None,
        };
        let mut bytes = Vec::new();
        command.write(&mut bytes, to);
        let (mut args, _) = resp::parse(&bytes).unwrap().unwrap();
        if let Some(word) = self.forbidden {
            let source = text(&args[1]).replace(word, "FORBIDDEN");
            args[1] = source.into_bytes();
        }
        let done = self.store.execute(&args, Duration::from_micros(self.now));
        let mut frame = Vec::new();
        done.reply.write_to(&mut frame, true);
        (Reply::read(command.kind, &frame).answer, done.notices)
    }

    fn run(&mut self, command: &Command) -> Answer {
        self.run_told(command, true).0
    }

    fn plain(&mut self, words: &[&str]) {
        drop(self.store.execute(words, Duration::from_micros(self.now)));
    }

    fn listens(&mut self, call: Call) {
        self.store.set_listeners(call.channel().as_bytes(), 1);
    }

    /// The call asks, listens, and is refused.
    fn enters(&mut self, commands: &LockCommands, call: Call) {
        self.listens(call);
        let acquire = commands.acquire(call.owner, TTL, NOW, &call.waits());
        assert!(self.run(&acquire).is_queued(), "it has the lock");
    }

    /// Somebody takes the lock with the token `NOW`.
    fn taken(&mut self, commands: &LockCommands) -> OwnerToken {
        let holder = OwnerToken::draw().unwrap();
        let alone = QueuePolicy {
            entry: None,
            ..Call::new(0).waits()
        };
        let answer = self.run(&commands.acquire(holder, TTL, NOW, &alone));
        let is_granted = answer.is_granted();
        assert!(is_granted, "{answer:?}");
        holder
    }

    /// What it tells whom when this owner releases, and offers this token.
    fn release(
        &mut self,
        commands: &LockCommands,
        owner: OwnerToken,
        token: u64,
        update: QueueUpdate,
    ) -> Vec<(String, HandedOver)> {
        let offer = Offer {
            token,
            raised: None,
        };
        let (answer, notices) = self.run_told(&commands.release(owner, offer, update), true);
        assert!(matches!(answer, Answer::Released { .. }), "{answer:?}");
        told(notices)
    }

    fn text(&mut self, key: &str) -> Option<String> {
        let now = Duration::from_micros(self.now);
        let found = self
            .store
            .contents(now)
            .find(|(name, _)| *name == key.as_bytes())?;
        match found.1.value {
            Value::Text(value) => Some(text(value)),
            _ => Some("of another type".to_owned()),
        }
    }

    fn left(&mut self, key: &str) -> Option<i64> {
        let now = Duration::from_micros(self.now);
        let found = self
            .store
            .contents(now)
            .find(|(name, _)| *name == key.as_bytes())?;
        found.1.left
    }

    /// The owners in a set or a list: the last 32 digits of each member.
    fn members(&mut self, key: &str) -> Vec<String> {
        let now = Duration::from_micros(self.now);
        let found = self
            .store
            .contents(now)
            .find(|(name, _)| *name == key.as_bytes());
        let Some(Value::Sorted(members)) = found.map(|(_, stored)| stored.value) else {
            return Vec::new();
        };
        let mut ranked: Vec<_> = members.iter().collect();
        ranked.sort_by(|one, other| one.1.total_cmp(other.1));
        ranked
            .into_iter()
            .map(|(member, _)| text(&member[member.len() - 32..]))
            .collect()
    }
}

/// What clients read of it, and on which channels.
fn told(notices: Vec<Notice>) -> Vec<(String, HandedOver)> {
    let read = |notice: Notice| {
        let mut frame = Vec::new();
        resp::push(
            &mut frame,
            true,
            [b"message", &notice.channel, &notice.message],
            None,
        );
        let Push::Message(Some(handed_over)) = push(&frame) else {
            panic!("{}", notice.message.escape_ascii())
        };
        (text(&notice.channel), handed_over)
    };
    notices.into_iter().map(read).collect()
}

fn mutex() -> LockCommands {
    LockCommands::mutex(b"", b"a", TTLS)
}

/// What a call is told.
fn handed(call: Call, token: Option<u64>, reads: bool) -> (String, HandedOver) {
    let handed_over = HandedOver {
        token,
        record_version: RecordVersion::new(1),
        life: TTLS.handed_over_ms,
        time: NOW,
        asked_from: None,
        reads,
        is_question: false,
        value: SecretValue::new(call.value().as_bytes()),
        key: LOCK.as_bytes().to_vec(),
    };
    (call.channel(), handed_over)
}

#[test]
fn a_release_hands_the_lock_to_each_call_in_the_order_in_which_they_began() {
    let mut node = Node::new();
    let commands = mutex();
    let mut owner = node.taken(&commands);
    let [first, second, third] = [1, 2, 3].map(Call::new);
    for call in [second, third, first] {
        node.enters(&commands, call);
    }
    for (call, token) in [first, second, third].into_iter().zip(NOW + 1..) {
        let told = node.release(&commands, owner, token, QueueUpdate::None);

        assert_eq!(told, [handed(call, Some(token), false)]);
        assert_eq!(node.text(LOCK), Some(call.value()));
        assert_eq!(node.left(LOCK), Some(800), "a short life");
        assert_eq!(node.text(COUNTER), Some(token.to_string()));
        owner = call.owner;
    }

    assert_eq!(
        node.release(&commands, owner, NOW + 9, QueueUpdate::None),
        []
    );
    assert_eq!(node.text(LOCK), None, "nobody waits any more");
    assert_eq!((node.text(LIST), node.text(MARK)), (None, None));
    assert_eq!(node.text(COUNTER), Some((NOW + 3).to_string()));
}

#[test]
fn the_claim_of_a_hand_over_gets_the_full_ttl() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let [first, second] = [1, 2].map(Call::new);
    node.enters(&commands, first);
    node.enters(&commands, second);
    node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    let claim = commands.acquire(first.owner, TTL, NOW + 5, &first.waits());
    let answer = node.run(&claim);

    assert_eq!(answer, Answer::of(LockStatus::Accepted));
    assert_eq!(node.left(LOCK), Some(10_000));
    assert_eq!(node.text(COUNTER), Some((NOW + 5).to_string()));
    assert_eq!(node.members(LIST), [second.value()]);
}

#[test]
fn a_dead_client_is_skipped_and_removed_from_the_list() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let [gone, gone_too, there, last] = [1, 2, 3, 4].map(Call::new);
    for call in [gone, gone_too, there, last] {
        node.enters(&commands, call);
    }
    for call in [gone, gone_too] {
        node.store.set_listeners(call.channel().as_bytes(), 0);
    }

    let told = node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    // The token that reached no client.
    assert_eq!(told.last(), Some(&handed(there, Some(NOW + 1), false)));
    assert_eq!(node.text(LOCK), Some(there.value()));
    assert_eq!(node.text(COUNTER), Some((NOW + 1).to_string()));
    assert_eq!(node.members(LIST), [last.value()]);
}

#[test]
fn a_release_with_dead_waiters_only_frees_the_lock() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let readers = commands.to_read();
    for (call, waits_for) in [(Call::new(1), &commands), (Call::new(2), &readers)] {
        node.enters(waits_for, call);
        node.store.set_listeners(call.channel().as_bytes(), 0);
    }

    node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    let left = [LOCK, LIST, MARK, READERS].map(|key| node.text(key));
    assert_eq!(left, [None, None, None, None]);
}

/// The token that reached no client is offered again.
#[test]
fn a7_a_hand_over_past_a_gone_writer_keeps_the_offered_token() {
    let mut node = Node::new();
    let commands = mutex();
    let reads = commands.to_read();
    let holder = node.taken(&commands);
    let [gone, reader, gone_too, writer] = [1, 2, 3, 4].map(Call::new);
    for (call, waits_for) in [
        (gone, &commands),
        (reader, &reads),
        (gone_too, &commands),
        (writer, &commands),
    ] {
        node.enters(waits_for, call);
    }
    for call in [gone, gone_too] {
        node.store.set_listeners(call.channel().as_bytes(), 0);
    }

    let told = node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    let read = handed(reader, Some(NOW), true);
    assert_eq!(told, [read]);
    let told = node.release(&reads, reader.owner, NOW + 1, QueueUpdate::None);
    assert_eq!(told.last(), Some(&handed(writer, Some(NOW + 1), false)));
}

/// Its entry says that by half a microsecond.
#[test]
fn a_client_that_polls_is_handed_the_lock_without_a_listener() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let polls = Call::new(1);
    let acquire = commands.acquire(polls.owner, TTL, NOW, &polls.waits());
    node.run_told(&acquire, false);

    node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    assert_eq!(node.text(LOCK), Some(polls.value()));
}

#[test]
fn a_release_is_not_handed_back_to_its_waiting_sender() {
    for (others, next) in [
        (&[][..], None),
        (&[9], None),
        (&[1], Some(0)),
        (&[9, 1, 2], Some(1)),
    ] {
        let mut node = Node::new();
        let commands = mutex();
        let me = Call::new(5);
        let acquire = commands.acquire(me.owner, TTL, NOW, &me.waits());
        assert!(node.run(&acquire).is_granted());
        node.listens(me);
        let others: Vec<_> = others.iter().map(|since| Call::new(*since)).collect();
        for call in &others {
            node.enters(&commands, *call);
        }
        let stays = OwnerToken::draw().unwrap();
        let update = QueueUpdate::Enter(Entering {
            entry: me.waits().entry.unwrap(),
            since: me.since,
            which: None,
            member: commands.member(stays),
            yields: true,
        });

        let told = node.release(&commands, me.owner, NOW + 1, update);

        let next: Option<Call> = next.map(|place: usize| others[place]);
        let expected: Vec<_> = next
            .into_iter()
            .map(|call| handed(call, Some(NOW + 1), false))
            .collect();
        assert_eq!(told, expected);
        assert_eq!(node.text(LOCK), next.map(Call::value));
        let listed = node.members(LIST);
        assert!(listed.contains(&text(&stays.to_value())), "{listed:?}");
        assert!(!listed.contains(&me.value()), "{listed:?}");
        // Once that is free it has its place: nobody who began later gets in before it.
        if let Some(next) = next {
            let rest = others.iter().filter(|call| call.since < me.since).count() - 1;
            if rest == 0 {
                let told = node.release(&commands, next.owner, NOW + 2, QueueUpdate::None);
                assert_eq!(told[0].0, me.channel());
            }
        }
    }
}

#[test]
fn a_leaving_call_passes_its_hand_over_on() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let [first, second] = [1, 2].map(Call::new);
    node.enters(&commands, first);
    node.enters(&commands, second);
    node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    let leave = QueueUpdate::Leave(first.client);
    let told = node.release(&commands, first.owner, NOW + 2, leave);

    assert_eq!(told, [handed(second, Some(NOW + 2), false)]);
    assert_eq!(node.text(LOCK), Some(second.value()));
}

#[test]
fn an_unclaimed_hand_over_goes_to_the_next_call() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let [first, second] = [1, 2].map(Call::new);
    node.enters(&commands, first);
    node.enters(&commands, second);
    let told_first = node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    let give_back = LockCommands::give_back_handed_over(&told_first[0].1, first.client);
    let (answer, notices) = node.run_told(&give_back, true);

    assert_eq!(answer, Answer::Released { was_ours: true });
    // Nobody has offered a token: it asks for one.
    assert_eq!(told(notices), [handed(second, None, false)]);
    assert_eq!(node.text(LOCK), Some(second.value()));
    assert_eq!(node.text(COUNTER), Some((NOW + 1).to_string()));
    // Said once more it ends nobody's lock.
    assert_eq!(node.run(&give_back), Answer::Released { was_ours: false });
    assert_eq!(node.text(LOCK), Some(second.value()));
}

#[test]
fn readers_before_the_first_writer_get_the_lock_together() {
    let mut node = Node::new();
    let commands = mutex();
    let reads = commands.to_read();
    let holder = node.taken(&commands);
    let [first, second, gone, writer, behind] = [1, 2, 3, 4, 5].map(Call::new);
    for (call, commands) in [
        (behind, &reads),
        (writer, &commands),
        (gone, &reads),
        (second, &reads),
        (first, &reads),
    ] {
        node.enters(commands, call);
    }
    node.store.set_listeners(gone.channel().as_bytes(), 0);

    let told = node.release(&commands, holder, NOW + 1, QueueUpdate::None);

    // The counter as it is.
    let expected = [first, second].map(|call| handed(call, Some(NOW), true));
    assert_eq!(told, expected);
    assert_eq!(node.text(COUNTER), Some(NOW.to_string()));
    assert_eq!(node.text(LOCK).as_deref(), Some(SHARED));
    let mut readers = node.members(READERS);
    readers.sort();
    let mut expected = [first, second].map(Call::value);
    expected.sort();
    assert_eq!(readers, expected);
    assert_eq!(node.left(LOCK), Some(800));
    assert_eq!(node.members(LIST), [writer, behind].map(Call::value));

    // The last of them hands it to the writer, and that to the reader behind it.
    assert_eq!(
        node.release(&reads, first.owner, NOW + 2, QueueUpdate::None),
        []
    );
    assert_eq!(
        node.release(&reads, second.owner, NOW + 3, QueueUpdate::None),
        [handed(writer, Some(NOW + 3), false)]
    );
    assert_eq!(
        node.release(&commands, writer.owner, NOW + 4, QueueUpdate::None),
        [handed(behind, Some(NOW + 3), true)]
    );
}

#[test]
fn a_writer_that_leaves_lets_in_the_readers_behind_it() {
    let mut node = Node::new();
    let commands = mutex();
    let reads = commands.to_read();
    let holder = node.taken(&reads);
    let [writer, reader] = [1, 2].map(Call::new);
    node.enters(&commands, writer);
    node.enters(&reads, reader);

    let leave = QueueUpdate::Leave(writer.client);
    let told = node.release(&commands, writer.owner, NOW + 1, leave);

    let number = node.text(COUNTER).unwrap().parse().unwrap();
    assert_eq!(told, [handed(reader, Some(number), true)]);
    let mut readers = node.members(READERS);
    readers.sort();
    let mut expected = [text(&holder.to_value()), reader.value()];
    expected.sort();
    assert_eq!(readers, expected);
}

#[test]
fn a_key_of_another_type_is_never_overwritten() {
    for other in [&["HSET", LOCK, "x", "y"][..], &["SADD", LOCK, "x"]] {
        let mut node = Node::new();
        let commands = mutex();
        let holder = node.taken(&commands);
        let writer = Call::new(1);
        let reader = Call::new(2);
        node.enters(&commands, writer);
        node.enters(&commands.to_read(), reader);
        node.plain(&["DEL", LOCK]);
        node.plain(other);

        assert_eq!(
            node.release(&commands, holder, NOW + 1, QueueUpdate::None),
            []
        );

        assert_eq!(node.text(LOCK).as_deref(), Some("of another type"));
        assert_eq!(node.members(LIST), [writer, reader].map(Call::value));
        assert_eq!(node.text(COUNTER), Some(NOW.to_string()));
    }
}

/// Whether an access list forbids it or the key has another type: calls wait without it.
#[test]
fn where_the_list_cannot_be_read_a_release_leaves_the_lock_free() {
    for spoil in [
        |node: &mut Node| node.forbidden = Some("ZPOPMIN"),
        |node: &mut Node| {
            node.plain(&["DEL", LIST]);
            node.plain(&["SADD", LIST, "x"]);
        },
    ] {
        let mut node = Node::new();
        let commands = mutex();
        let holder = node.taken(&commands);
        let waiting = Call::new(1);
        node.enters(&commands, waiting);
        spoil(&mut node);

        assert_eq!(
            node.release(&commands, holder, NOW + 1, QueueUpdate::None),
            []
        );

        assert_eq!(node.text(LOCK), None);
        assert_eq!(node.text(COUNTER), Some(NOW.to_string()));
        // Nothing keeps others out.
        node.taken(&commands.to_read());
    }
}

#[test]
fn a_hand_over_without_publish_permission_sends_no_message() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let waiting = Call::new(1);
    node.enters(&commands, waiting);
    node.forbidden = Some("PUBLISH");

    assert_eq!(
        node.release(&commands, holder, NOW + 1, QueueUpdate::None),
        []
    );

    assert_eq!(node.text(LOCK), Some(waiting.value()), "it asks in time");
}

#[test]
fn a7_a_token_is_handed_over_only_above_the_counter() {
    let above = (NOW + 2).to_string();
    let equal = (NOW + 1).to_string();
    let below = NOW.to_string();
    for (counter, token) in [
        (None, Some(NOW + 1)),
        (Some(&*below), Some(NOW + 1)),
        (Some(&equal), None),
        (Some(&above), None),
        // What is no time of 16 digits is compared by whoever asks.
        (Some("7"), None),
        (Some("90000000000000000"), None),
        (Some("abcdefghijklmnop"), None),
    ] {
        let mut node = Node::new();
        let commands = mutex();
        let holder = node.taken(&commands);
        let waiting = Call::new(1);
        node.enters(&commands, waiting);
        match counter {
            Some(counter) => node.plain(&["SET", COUNTER, counter]),
            None => node.plain(&["DEL", COUNTER]),
        }

        let told = node.release(&commands, holder, NOW + 1, QueueUpdate::None);

        assert_eq!(told, [handed(waiting, token, false)], "{counter:?}");
        assert_eq!(node.text(LOCK), Some(waiting.value()));
        let stored = token.map(|number| number.to_string());
        let expected = stored.or(counter.map(str::to_owned));
        assert_eq!(node.text(COUNTER), expected);
    }
}

/// The server may have forgotten larger ones.
#[test]
fn a7_a_token_before_the_end_of_the_quarantine_is_not_handed_over() {
    for reads in [false, true] {
        let mut node = Node::new();
        let commands = mutex();
        let holder = node.taken(&commands);
        let waiting = Call::new(1);
        let waits_for = if reads {
            commands.to_read()
        } else {
            commands.clone()
        };
        node.enters(&waits_for, waiting);
        // It has lost its record. The quarantine ends at NOW + TTL.
        node.plain(&["DEL", RECORD_KEY]);
        node.sync_record();
        node.now += 1_000 * TTL;

        let told = node.release(&commands, holder, NOW + 1, QueueUpdate::None);

        let (channel, handed) = handed(waiting, None, reads);
        let time = node.now;
        assert_eq!(told, [(channel, HandedOver { time, ..handed })]);
        assert_eq!(node.text(COUNTER), Some(NOW.to_string()));
    }
}

/// Its vote would not count.
#[test]
fn b1_a_server_in_quarantine_or_without_a_record_hands_nothing_over() {
    for has_record in [false, true] {
        let mut node = Node::new();
        let commands = mutex();
        let waiting = Call::new(1);
        let holder = node.taken(&commands);
        node.enters(&commands, waiting);
        node.plain(&["DEL", RECORD_KEY]);
        if has_record {
            node.sync_record();
        }
        assert_eq!(
            node.release(&commands, holder, NOW + 1, QueueUpdate::None),
            []
        );
        assert_eq!(
            (node.text(LOCK), node.members(LIST)),
            (None, vec![waiting.value()])
        );
    }
}

#[test]
fn a_later_call_that_finds_the_lock_free_makes_the_hand_over_and_is_refused() {
    let mut node = Node::new();
    let commands = mutex();
    let holder = node.taken(&commands);
    let [first, later] = [1, 2].map(Call::new);
    node.enters(&commands, first);
    // It has expired.
    node.plain(&["DEL", LOCK]);

    node.listens(later);
    let asks = commands.acquire(later.owner, TTL, NOW + 3, &later.waits());
    let (answer, notices) = node.run_told(&asks, true);

    assert!(answer.is_held(), "{answer:?}");
    assert_eq!(told(notices), [handed(first, Some(NOW + 3), false)]);
    assert_eq!(node.text(LOCK), Some(first.value()));
    assert_eq!(node.members(LIST), [later.value()]);
    // Whoever began before all gets it.
    node.plain(&["DEL", LOCK]);
    let earliest = Call::new(0);
    let asks = commands.acquire(earliest.owner, TTL, NOW + 4, &earliest.waits());
    assert_eq!(
        node.run_told(&asks, true),
        (Answer::of(LockStatus::Accepted), Vec::new())
    );
    let release = node.release(&commands, holder, NOW + 5, QueueUpdate::None);
    assert_eq!(release, [], "another's lock is not handed over");
}

#[test]
fn each_of_several_locks_and_each_permit_is_handed_to_the_first_in_its_list() {
    let mut node = Node::new();
    let set = LockCommands::multi(b"", [&b"a"[..], b"b"].into_iter(), TTLS);
    let holder = node.taken(&set);
    let [first, second] = [1, 2].map(Call::new);
    node.enters(&LockCommands::mutex(b"", b"b", TTLS), first);
    node.enters(&mutex(), second);
    let told = node.release(&set, holder, NOW + 1, QueueUpdate::None);
    let of_b = HandedOver {
        key: b"b".to_vec(),
        ..handed(first, Some(NOW + 1), false).1
    };
    let expected = [
        handed(second, Some(NOW + 1), false),
        (first.channel(), of_b),
    ];
    assert_eq!(told, expected);

    let mut node = Node::new();
    let semaphore = LockCommands::semaphore(b"", b"s", 2, TTLS);
    let holders = [(); 2].map(|()| node.taken(&semaphore));
    let [first, second] = [1, 2].map(Call::new);
    node.enters(&semaphore, second);
    node.enters(&semaphore, first);
    let mut slots = Vec::new();
    for (holder, call) in holders.into_iter().zip([first, second]) {
        let told = node.release(&semaphore, holder, NOW + 1, QueueUpdate::None);
        let [(channel, handed_over)] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(*channel, call.channel());
        let slot = text(&handed_over.key);
        assert_eq!(node.text(&slot), Some(call.value()));
        slots.push(slot);
    }
    slots.sort();
    assert_eq!(slots, ["quorlock:slot-0:s", "quorlock:slot-1:s"]);
}
