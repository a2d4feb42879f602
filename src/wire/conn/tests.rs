//! A connection against a model of a server: every split of every byte stream, and every order of what can happen to it.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

mod garbled;

use std::collections::VecDeque;
use std::sync::LazyLock;

use super::*;
use crate::ids::OwnerToken;

/// What a command of these tests is sent for: a number of its own, which is also the owner in it.
#[derive(Debug)]
struct Tag {
    id: u8,
    command: Command,
}

impl AsRef<Command> for Tag {
    fn as_ref(&self) -> &Command {
        &self.command
    }
}

fn script(script: Script, id: u8) -> Tag {
    Tag {
        id,
        command: Command::of_script(script, &[b"key"], &[&[id], b"\r\n"]),
    }
}

/// Each script and its source, which is put together only once.
static SOURCES: LazyLock<Vec<(Script, String)>> = LazyLock::new(|| {
    Script::ALL
        .into_iter()
        .map(|script| (script, script.source()))
        .collect()
});

/// A server as the rules have it: it runs commands one after another, each to its end, and answers each. A script that it
/// does not know it does not run.
#[derive(Default)]
struct Server {
    /// What has come and was not run.
    bytes: Vec<u8>,
    unknown: Vec<Script>,
    /// Of every script that has run: which it is, and its owner.
    ran: Vec<(Script, u8)>,
    /// The owners of all commands that were answered.
    answered: Vec<u8>,
}

impl Server {
    /// Takes the next complete command out of what has come.
    fn next(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut at = 0;
        let mut line = |sign: u8| {
            let rest = &self.bytes[at..];
            let len = rest.windows(2).position(|it| it == b"\r\n")?;
            assert_eq!(
                rest[0], sign,
                "half a command was written, and then something else"
            );
            at += len + 2;
            let number: usize = std::str::from_utf8(&rest[1..len]).unwrap().parse().unwrap();
            let begin = at;
            at += if sign == b'$' { number + 2 } else { 0 };
            Some((number, begin))
        };
        let (count, _) = line(b'*')?;
        let args: Option<Vec<_>> = (0..count)
            .map(|_| {
                line(b'$').and_then(|(len, begin)| {
                    self.bytes.get(begin..begin + len + 2).map(<[u8]>::to_vec)
                })
            })
            .collect();
        let args = args?
            .into_iter()
            .map(|mut it| it.drain(..it.len() - 2).collect())
            .collect();
        self.bytes.drain(..at);
        Some(args)
    }

    /// Runs one command, if one is there; what it says.
    fn serve(&mut self) -> Option<Vec<u8>> {
        let args = self.next()?;
        let script = match &args[0][..] {
            b"SUBSCRIBE" => return Some(b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n".to_vec()),
            b"TIME" => return Some(b"*2\r\n$1\r\n7\r\n$1\r\n7\r\n".to_vec()),
            b"EVALSHA" => Script::ALL
                .into_iter()
                .find(|it| it.hash().as_bytes() == args[1])
                .unwrap(),
            b"EVAL" => {
                let (script, _) = *SOURCES
                    .iter()
                    .find(|(_, source)| source.as_bytes() == args[1])
                    .unwrap();
                self.unknown.retain(|it| *it != script);
                script
            }
            other => panic!("{}", other.escape_ascii()),
        };
        let id = args[4][0];
        self.answered.push(id);
        if self.unknown.contains(&script) {
            return Some(b"-NOSCRIPT No matching script.\r\n".to_vec());
        }
        self.ran.push((script, id));
        Some(match script {
            // A grant that is a time, and the time is the owner's number.
            Script::Acquire | Script::Extend => {
                format!(":{}\r\n", 2_000_000 + u64::from(id)).into_bytes()
            }
            Script::Release => b":1\r\n".to_vec(),
            _ => b"*7\r\n:7\r\n:7\r\n:0\r\n:0\r\n:9\r\n:0\r\n$0\r\n\r\n".to_vec(),
        })
    }
}

fn write_all(conn: &mut Conn<Tag>) -> Vec<u8> {
    let bytes = conn.poll_write().to_vec();
    conn.wrote(bytes.len());
    bytes
}

fn read(conn: &mut Conn<Tag>, bytes: &[u8]) {
    conn.space()[..bytes.len()].copy_from_slice(bytes);
    conn.filled(bytes.len());
}

/// All that has come, without the times.
fn events(conn: &mut Conn<Tag>) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        found.push(match conn.poll_event() {
            Ok(Some(ConnEvent::Answer { tag, reply, .. })) => format!("{} {reply:?}", tag.id),
            Ok(Some(ConnEvent::UnknownScript { tag, .. })) => format!("{} is unknown", tag.id),
            Ok(Some(other)) => format!("{other:?}"),
            Ok(None) => return found,
            Err(failure) => {
                found.push(format!("{failure:?}"));
                return found;
            }
        });
    }
}

/// A push: the lock `a b` is handed over with token 7, by a server whose record has this version.
fn handed_over(record_version: &RecordVersion) -> Vec<u8> {
    let record_version = str::from_utf8(&record_version.0).unwrap();
    let message = format!("7 {record_version} 900 0 w 32 {} a b", "0".repeat(32));
    sent_on_channel(message.as_bytes())
}

fn sent_on_channel(message: &[u8]) -> Vec<u8> {
    let frame = format!(">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n${}\r\n", message.len());
    [frame.as_bytes(), message, b"\r\n"].concat()
}

#[test]
fn answers_match_their_commands_however_bytes_are_cut() {
    let asked = || {
        let mut conn = Conn::ready(true);
        let subscribe = Tag {
            id: 9,
            command: Command::subscribe("x"),
        };
        let commands = [
            Script::Acquire,
            Script::AcquireShared,
            Script::Release,
            Script::AcquireShared,
            Script::Extend,
        ]
        .into_iter()
        .zip(1..);
        let commands = commands.map(|(it, id)| script(it, id));
        commands
            .chain([subscribe])
            .for_each(|it| conn.enqueue(it, Now::read()));
        (write_all(&mut conn), conn)
    };
    let mut server = Server {
        bytes: asked().0,
        unknown: vec![Script::Release],
        ..Server::default()
    };
    let mut said = server.serve().unwrap();
    said.extend(handed_over(&RecordVersion::NONE));
    while let Some(reply) = server.serve() {
        said.extend(reply);
    }
    // An answer to nothing.
    said.extend(b":1\r\n+OK\r\n");
    let mut whole = asked().1;
    read(&mut whole, &said);
    let expected = events(&mut whole);
    assert_eq!(expected.len(), 6 + 1 + 1, "{expected:#?}");
    assert!(
        expected[3].contains("3 is unknown") && expected[7].contains("an answer to nothing"),
        "{expected:#?}"
    );

    for first in 0..said.len() {
        for second in first..said.len() {
            let mut conn = asked().1;
            let mut found = Vec::new();
            for part in [&said[..first], &said[first..second], &said[second..]] {
                read(&mut conn, part);
                found.extend(events(&mut conn));
                if found.len() == expected.len() {
                    // Nobody reads on behind an error.
                    break;
                }
            }
            assert_eq!(found, expected, "cut at {first} and {second}");
        }
    }
}

#[test]
fn login_answers_in_any_split_are_read_once_and_in_order() {
    let replies = [
        "%0\r\n",
        "*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "$12\r\nrun_id:abc\r\n\r\n",
        "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
    ];
    let said = replies.concat();
    for cut in 0..said.len() {
        let mut conn = Conn::<Tag>::ready(false);
        conn.push_bytes(b"PING");
        assert_eq!(write_all(&mut conn), b"PING");
        let mut found = Vec::new();
        for part in [&said[..cut], &said[cut..]] {
            read(&mut conn, part.as_bytes());
            while let Some(reply) = conn.poll_reply().unwrap() {
                found.push(String::from_utf8(reply).unwrap());
            }
        }
        assert_eq!(found, replies, "cut at {cut}");
        let info = ServerInfo {
            pushes: true,
            ..ServerInfo::default()
        };
        assert!(conn.on_login(&info).is_ok() && conn.may_subscribe());
    }
}

/// What can happen to a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// A round begins.
    Acquire,
    /// The oldest round that is open ends, and releases what it may have.
    End,
    Write,
    WriteSome,
    Serve,
    Read,
    ReadSome,
    /// The server forgets all scripts.
    Forget,
}

const STEPS: [Step; 8] = [
    Step::Acquire,
    Step::End,
    Step::Write,
    Step::WriteSome,
    Step::Serve,
    Step::Read,
    Step::ReadSome,
    Step::Forget,
];

/// So many steps, in every order.
const DEPTH: usize = 8;
const ROUNDS: u8 = 2;

/// A connection, its server, and what the rules say about them.
struct World {
    conn: Conn<Tag>,
    server: Server,
    /// What the server has said and the connection has not read.
    said: Vec<u8>,
    /// Commands without an answer, by their owners.
    expected: VecDeque<u8>,
    begun: u8,
    ended: u8,
    /// The owners of all commands that were answered.
    answered: Vec<u8>,
}

impl World {
    fn new() -> World {
        World {
            conn: Conn::ready(false),
            server: Server::default(),
            said: Vec::new(),
            expected: VecDeque::new(),
            begun: 0,
            ended: 0,
            answered: Vec::new(),
        }
    }

    /// Does what is possible; false if nothing is, and then nothing has changed.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Acquire if self.begun < ROUNDS => {
                self.begun += 1;
                self.enqueue(script(Script::Acquire, self.begun));
            }
            Step::End if self.ended < self.begun => {
                self.ended += 1;
                self.enqueue(script(Script::Release, self.ended));
            }
            Step::Write | Step::WriteSome if !self.conn.is_flushed() => {
                let bytes = self.conn.poll_write();
                let len = if step == Step::Write {
                    bytes.len()
                } else {
                    bytes.len().div_ceil(2)
                };
                self.server.bytes.extend_from_slice(&bytes[..len]);
                self.conn.wrote(len);
            }
            Step::Serve => match self.server.serve() {
                Some(reply) => self.said.extend(reply),
                None => return false,
            },
            Step::Read | Step::ReadSome if !self.said.is_empty() => {
                let len = if step == Step::Read {
                    self.said.len()
                } else {
                    self.said.len().div_ceil(2)
                };
                let bytes: Vec<_> = self.said.drain(..len).collect();
                read(&mut self.conn, &bytes);
                self.take_events();
            }
            Step::Forget if self.server.unknown.is_empty() => {
                self.server.unknown = Script::ALL.to_vec()
            }
            _ => return false,
        }
        true
    }

    fn enqueue(&mut self, tag: Tag) {
        self.expected.push_back(tag.id);
        self.conn.enqueue(tag, Now::read());
    }

    fn take_events(&mut self) {
        while let Some(event) = self.conn.poll_event().unwrap() {
            let (ConnEvent::Answer { tag, .. } | ConnEvent::UnknownScript { tag, .. }) = &event
            else {
                panic!("{event:?}")
            };
            assert_eq!(
                self.expected.pop_front(),
                Some(tag.id),
                "an answer met another command"
            );
            self.answered.push(tag.id);
            match event {
                ConnEvent::Answer {
                    tag,
                    reply: Reply { answer, time },
                    ..
                } => match tag.command.kind {
                    Kind::Acquire => assert_eq!(time, Some(2_000_000 + u64::from(tag.id))),
                    _ => assert_eq!(answer, Answer::Released { was_ours: true }),
                },
                // As the session does.
                ConnEvent::UnknownScript { tag, .. }
                    if tag.command.kind == Kind::Release || self.ended < tag.id =>
                {
                    self.expected.push_back(tag.id);
                    self.conn.put(tag, Now::read(), true);
                }
                _ => {}
            }
        }
    }

    fn assert_rules(&self) {
        assert_eq!(
            self.answered,
            self.server.answered[..self.answered.len()],
            "answers met other commands"
        );
        assert_eq!(self.conn.in_flight(), self.expected.len());
        let mut released = Vec::new();
        for (kind, id) in &self.server.ran {
            assert!(
                *kind == Script::Release || !released.contains(&id),
                "{kind:?} of {id} came behind its release"
            );
            released.extend((*kind == Script::Release).then_some(id));
        }
    }

    /// Goes on until nothing happens any more.
    fn finish(&mut self) {
        while [Step::Write, Step::Serve, Step::Read]
            .into_iter()
            .any(|it| self.step(it))
        {}
        assert!(self.expected.is_empty(), "not all was answered");
        assert_eq!((self.conn.batches, self.conn.oldest()), (0, None));
        let released = self
            .server
            .ran
            .iter()
            .filter(|(kind, _)| *kind == Script::Release)
            .count();
        assert_eq!(
            released,
            usize::from(self.ended),
            "each once, whatever the server has forgotten"
        );
    }
}

#[test]
fn in_every_order_answers_match_and_no_command_runs_behind_its_release() {
    fn explore(steps: &[Step], seen: &mut usize) {
        let replay = || {
            let mut world = World::new();
            steps.iter().for_each(|it| assert!(world.step(*it)));
            world
        };
        let mut unchanged = None;
        for step in STEPS {
            let mut world = unchanged.take().unwrap_or_else(replay);
            if !world.step(step) {
                unchanged = Some(world);
                continue;
            }
            *seen += 1;
            world.assert_rules();
            let open = world.expected.clone();
            if steps.len() + 1 < DEPTH {
                // It may end here: everybody is told.
                assert_eq!(
                    world.conn.close().map(|it| it.id).collect::<VecDeque<_>>(),
                    open
                );
                explore(&[steps, &[step]].concat(), seen);
            } else {
                world.finish();
                world.assert_rules();
            }
        }
    }
    let mut seen = 0;
    explore(&[], &mut seen);
    assert!(10_000 < seen, "{seen}");
}

#[test]
fn h7_an_answer_to_half_a_command_ends_the_connection_behind_others() {
    let mut conn = Conn::<Tag>::ready(false);
    [1, 2]
        .into_iter()
        .for_each(|id| conn.enqueue(script(Script::Release, id), Now::read()));
    let half = conn.poll_write().len() / 2;
    conn.wrote(half);
    read(&mut conn, b":1\r\n:1\r\n");

    assert!(matches!(
        conn.poll_event(),
        Ok(Some(ConnEvent::Answer {
            tag: Tag { id: 1, .. },
            ..
        }))
    ));
    assert!(matches!(
        conn.poll_event(),
        Err(NodeFailure::Protocol { .. })
    ));

    assert_eq!(conn.close().map(|it| it.id).collect::<Vec<_>>(), [2]);
}

#[test]
fn h7_sent_bytes_are_freed_while_the_backlog_grows() {
    let length = script(Script::Release, 1).command.packed();
    // Whole commands at a time, and pieces of them.
    for piece in [length.len(), length.len() - 1] {
        let mut conn = Conn::<Tag>::ready(false);
        conn.enqueue(script(Script::Release, 1), Now::read());
        for _ in 0..100 {
            conn.enqueue(script(Script::Release, 1), Now::read());
            assert!(length.len() < conn.poll_write().len());
            conn.wrote(piece);
            assert!(
                conn.kept() <= 3 * length.len() + 200,
                "{} bytes are kept",
                conn.kept()
            );
        }
    }
}

#[test]
fn a_script_comes_with_its_source_once_on_a_connection() {
    let mut conn = Conn::<Tag>::default();
    let mut with_source = |kind| {
        conn.enqueue(script(kind, 1), Now::read());
        write_all(&mut conn).windows(6).any(|it| it == b"\nEVAL\r")
    };
    assert_eq!(
        [
            Script::Inspect,
            Script::Inspect,
            Script::Acquire,
            Script::Inspect
        ]
        .map(&mut with_source),
        [true, false, true, false]
    );

    // Sent with its source it is not sent again: the server has another reason.
    read(&mut conn, b"-NOSCRIPT x\r\n-NOSCRIPT x\r\n");
    assert!(matches!(
        conn.poll_event(),
        Ok(Some(ConnEvent::Answer { .. }))
    ));
    let Ok(Some(ConnEvent::UnknownScript { tag, .. })) = conn.poll_event() else {
        panic!()
    };
    conn.put(tag, Now::read(), true);
    assert!(write_all(&mut conn).windows(6).any(|it| it == b"\nEVAL\r"));
}

#[test]
fn a_command_asks_for_no_message_after_a_refused_subscription() {
    for (answer, told) in [
        (&b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"[..], b'1'),
        (b"-NOPERM x\r\n", b'0'),
    ] {
        let mut conn = Conn::ready(true);
        assert!(conn.may_subscribe());
        conn.enqueue(
            Tag {
                id: 9,
                command: Command::subscribe("x"),
            },
            Now::read(),
        );
        assert!(!conn.may_subscribe());
        write_all(&mut conn);
        read(&mut conn, answer);
        assert_eq!(events(&mut conn).len(), 1);

        let command = Command::of_script(Script::Acquire, &[b"key"], &[b"x", Command::IS_NOTIFIED])
            .with_wait();
        conn.enqueue(Tag { id: 1, command }, Now::read());

        assert_eq!(write_all(&mut conn).iter().rev().nth(2), Some(&told));
    }
}

#[test]
fn a_batch_is_under_way_until_its_last_command_is_answered() {
    let mut conn = Conn::<Tag>::default();
    let mut batches = Vec::new();
    let answer = |conn: &mut Conn<Tag>| {
        read(conn, b":1\r\n");
        assert_eq!(events(conn).len(), 1);
        conn.batches
    };
    [1, 2]
        .into_iter()
        .for_each(|id| conn.enqueue(script(Script::Release, id), Now::read()));
    batches.push(conn.batches);
    write_all(&mut conn);
    // Looked at again, with nothing more to write.
    write_all(&mut conn);
    batches.push(conn.batches);
    conn.enqueue(script(Script::Release, 3), Now::read());
    write_all(&mut conn);
    batches.push(conn.batches);
    assert_eq!(conn.in_flight(), 3);
    batches.extend([answer(&mut conn), answer(&mut conn), answer(&mut conn)]);

    assert_eq!(batches, [0, 1, 2, 2, 1, 0]);
    assert_eq!(conn.in_flight(), 0);
}

#[test]
fn an_invalid_reply_ends_the_connection() {
    let mut conn = Conn::<Tag>::default();
    read(&mut conn, b"HTTP/1.1 400\r\n");
    assert!(conn.poll_reply().is_err());
}

#[test]
fn h18_extra_bytes_behind_the_login_end_the_connection() {
    for more in [":1\r\n", ":1\r", ":"] {
        let mut conn = Conn::<Tag>::default();
        read(&mut conn, format!("%0\r\n{more}").as_bytes());
        assert!(matches!(conn.poll_reply(), Ok(Some(_))));
        let end = conn.on_login(&ServerInfo::default());
        assert!(matches!(end, Err(NodeFailure::Protocol { .. })), "{more}");
    }
}

#[test]
fn h17_no_answer_counts_behind_readonly_or_loading() {
    for said in ["-READONLY x\r\n", "-MASTERDOWN x\r\n", "-LOADING x\r\n"] {
        let mut conn = Conn::<Tag>::default();
        [1, 2]
            .into_iter()
            .for_each(|id| conn.enqueue(script(Script::Acquire, id), Now::read()));
        write_all(&mut conn);
        read(&mut conn, format!("{said}:1700000000000000\r\n").as_bytes());
        assert!(
            matches!(
                conn.poll_event(),
                Ok(Some(ConnEvent::Answer {
                    tag: Tag { id: 1, .. },
                    ..
                }))
            ),
            "{said}"
        );
        for _ in 0..2 {
            assert!(
                matches!(conn.poll_event(), Err(NodeFailure::Disconnected { .. })),
                "{said}"
            );
        }
        assert_eq!(
            conn.close().map(|it| it.id).collect::<Vec<_>>(),
            [2],
            "unknown"
        );
    }
}

#[test]
fn h18_an_unsolicited_push_ends_the_connection() {
    let mut conn = Conn::ready(true);
    conn.enqueue(script(Script::Release, 1), Now::read());
    write_all(&mut conn);
    read(
        &mut conn,
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n:1\r\n",
    );
    assert!(matches!(
        conn.poll_event(),
        Err(NodeFailure::Protocol { .. })
    ));
    assert_eq!(conn.in_flight(), 1);
}

/// What it was handed before it lost its data says nothing of what it has granted since.
#[test]
fn h17_a_lock_that_another_record_handed_over_has_no_token() {
    let synced = RecordVersion::new(1);
    for (record_version, token) in [
        (synced, Some(7)),
        (RecordVersion::new(2), None),
        (RecordVersion::NONE, None),
    ] {
        let mut conn = Conn::<Tag> {
            record_version: synced,
            ..Conn::ready(true)
        };
        read(&mut conn, &handed_over(&record_version));
        let Ok(Some(ConnEvent::HandedOver(notice))) = conn.poll_event() else {
            panic!("{record_version:?}: nobody is told")
        };
        assert_eq!(notice.token, token, "{record_version:?}");
        assert_eq!(
            (notice.key.as_slice(), notice.owner()),
            (&b"a b"[..], Some(OwnerToken::nobody())),
            "whoever waits asks"
        );
    }
}

/// Whoever may publish could end all connections otherwise.
#[test]
fn h18_a_malformed_message_is_ignored() {
    let mut conn = Conn::ready(true);
    conn.enqueue(script(Script::Release, 1), Now::read());
    write_all(&mut conn);
    for message in [&b""[..], b"report", b"7", b"x x x x x x", &[0xff; 40]] {
        read(&mut conn, &sent_on_channel(message));
        assert!(matches!(conn.poll_event(), Ok(None)), "{message:?}");
        assert_eq!(conn.in_flight(), 1);
    }
    read(&mut conn, b":1\r\n");
    assert_eq!(events(&mut conn).len(), 1);
}

#[test]
fn a_connection_without_pushes_subscribes_to_no_messages() {
    let mut conn = Conn::ready(false);
    assert!(!conn.may_subscribe());
    let command = || {
        Command::of_script(Script::Acquire, &[b"key"], &[b"x", Command::IS_NOTIFIED]).with_wait()
    };

    conn.enqueue(
        Tag {
            id: 1,
            command: command(),
        },
        Now::read(),
    );
    assert_eq!(write_all(&mut conn).iter().rev().nth(2), Some(&b'0'));

    conn.put(
        Tag {
            id: 1,
            command: command(),
        },
        Now::read(),
        true,
    );
    assert_eq!(write_all(&mut conn).iter().rev().nth(2), Some(&b'0'));
}
