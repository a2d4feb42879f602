//! A stream of answers in which one byte was inserted, lost or changed, anywhere.

use super::*;
use crate::wire::keys::RECORD;

/// What a command is, and an answer to it.
type Said = (Asking, &'static str);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asking {
    Run(Script),
    Raise,
    Subscribe,
    Time,
    /// Nothing: a lock is handed over.
    Nothing,
}

use Asking::*;

const GRANTED: &str = ":1700000000000001\r\n";

/// Each kind of command, in each form of its answer.
const SAID: [Said; 37] = [
    (Run(Script::Acquire), GRANTED),
    (
        Run(Script::Acquire),
        "*7\r\n:2\r\n:1700000000000002\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::Acquire),
        "*7\r\n:6\r\n:7\r\n:900\r\n:1\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::Acquire),
        "*7\r\n:0\r\n:7\r\n:900\r\n:1\r\n:1700000000000001\r\n:0\r\n$4\r\nweb3\r\n",
    ),
    (
        Run(Script::Acquire),
        "*7\r\n:0\r\n:0\r\n:-1\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::Acquire),
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    ),
    (Run(Script::Acquire), "-NOSCRIPT No matching script.\r\n"),
    (
        Run(Script::AcquireShared),
        "*7\r\n:7\r\n:7\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::Acquire),
        "*7\r\n:6\r\n:7\r\n:900\r\n:1\r\n:1700000000000001\r\n:2\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::Acquire),
        "*7\r\n:0\r\n:7\r\n:900\r\n:1\r\n:1700000000000001\r\n:2\r\n$1\r\nx\r\n",
    ),
    (
        Run(Script::Acquire),
        "*7\r\n:1\r\n:0\r\n:0\r\n:0\r\n:1700000000000001\r\n:3\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::Acquire),
        "*7\r\n:2\r\n:7\r\n:0\r\n:0\r\n:1700000000000001\r\n:1\r\n$0\r\n\r\n",
    ),
    (Raise, GRANTED),
    (
        Raise,
        "*7\r\n:0\r\n:0\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Raise,
        "*7\r\n:2\r\n:1700000000000002\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Raise,
        "*7\r\n:-1\r\n:0\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (Run(Script::Extend), GRANTED),
    (
        Run(Script::Extend),
        "*7\r\n:1\r\n:7\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::Extend),
        "*7\r\n:0\r\n:0\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (
        Run(Script::ExtendShared),
        "*7\r\n:6\r\n:1\r\n:0\r\n:0\r\n:1700000000000001\r\n:0\r\n$0\r\n\r\n",
    ),
    (Run(Script::Release), ":1\r\n"),
    (Run(Script::Release), ":0\r\n"),
    (Run(Script::ReleaseShared), ":1\r\n"),
    (
        Run(Script::Release),
        "-BUSY Redis is busy running a script.\r\n",
    ),
    (
        Run(Script::SyncRecord),
        "*10\r\n:1\r\n:900\r\n:8\r\n:1\r\n:123456789012345\r\n:3\r\n:1\r\n:0\r\n:2\r\n$43\r\nallkeys-lru 123456789012345 000000000000001\r\n",
    ),
    (Run(Script::Acquire), ":-3\r\n"),
    (Run(Script::Extend), ":-3\r\n"),
    (
        Run(Script::Inspect),
        "*8\r\n:0\r\n:-1\r\n:-1\r\n:0\r\n:0\r\n:1700000000000001\r\n$0\r\n\r\n:0\r\n",
    ),
    (
        Run(Script::Inspect),
        "*8\r\n:1\r\n:9\r\n:7\r\n:1\r\n:1\r\n:1700000000000001\r\n$2\r\nme\r\n:0\r\n",
    ),
    (
        Run(Script::Inspect),
        "*10\r\n:3\r\n:9\r\n:7\r\n:0\r\n:0\r\n:1700000000000001\r\n$0\r\n\r\n:1\r\n$2\r\nme\r\n:9\r\n",
    ),
    (Run(Script::List), "*2\r\n$1\r\n0\r\n:0\r\n"),
    (
        Run(Script::List),
        "*4\r\n$2\r\n17\r\n:0\r\n$16\r\nquorlock:fence:a\r\n$16\r\nquorlock:fence:b\r\n",
    ),
    (Time, "*2\r\n$10\r\n1700000000\r\n$6\r\n000001\r\n"),
    (Subscribe, ">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"),
    (Subscribe, "-NOPERM No permissions to access a channel\r\n"),
    (
        Nothing,
        ">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$31\r\n7 123456789012345 900 0 w 3 a a\r\n",
    ),
    (
        Nothing,
        ">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$36\r\n0 123456789012345 900 r 3 abc report\r\n",
    ),
];

/// Bytes that mean something, and one of each kind that does not.
const BYTES: &[u8] = b"\r\n+-:_$!*>=0123456789a";

impl Asking {
    fn tag(self) -> Option<Tag> {
        let command = match self {
            Run(Script::SyncRecord) => Command::of_script(Script::SyncRecord, &[RECORD], &[b"1"]),
            Run(script) => Command::of_script(script, &[b"key"], &[b"1"]),
            Raise => {
                let mut command = Command::of_script(Script::Extend, &[b"key"], &[b"1"]);
                command.kind = Kind::Raise;
                command
            }
            Subscribe => Command::subscribe("x"),
            Time => Command::time(),
            Nothing => return None,
        };
        Some(Tag { id: 0, command })
    }
}

/// A few answers in a row: the commands, the bytes, and where each answer begins.
struct Stream {
    said: Vec<Said>,
    asked: Vec<Tag>,
    scripts: Vec<Script>,
    now: Now,
    bytes: Vec<u8>,
    begins: Vec<usize>,
}

/// What became of a stream in which a byte is another.
#[derive(Debug, Eq, PartialEq)]
enum End {
    /// The connection ended.
    Ended,
    /// All was answered.
    Whole,
    /// More would have to come: an answer was taken for a part of the one before it.
    Waits,
}

impl Stream {
    fn of(said: &[Said]) -> Stream {
        let asked = said.iter().filter_map(|it| it.0.tag()).collect();
        let mut stream = Stream {
            said: said.to_vec(),
            asked,
            scripts: Script::ALL.to_vec(),
            now: Now::read(),
            bytes: Vec::new(),
            begins: Vec::new(),
        };
        for (asking, frame) in said {
            if *asking != Nothing {
                stream.begins.push(stream.bytes.len());
            }
            stream.bytes.extend_from_slice(frame.as_bytes());
        }
        stream
    }

    /// Reads `bytes`, which are the stream's but for one at `at`, and `more` of them. Panics if an answer is counted for another
    /// command than its own: if it does not begin where that of the command does.
    fn read(&self, bytes: &[u8], at: usize, more: isize) -> End {
        // Each script is known there.
        let mut conn = Conn {
            pushes: true,
            introduced: self.scripts.clone(),
            ..Conn::default()
        };
        conn.inbox = Inbox::of(bytes);
        self.asked.iter().for_each(|it| conn.enqueue(it, self.now));
        let len = conn.poll_write().len();
        conn.wrote(len);
        let mut answered = 0;
        let mut begin = of_nonsense(bytes);
        loop {
            let event = match conn.poll_event() {
                Ok(Some(event)) => event,
                Ok(None) => {
                    return if answered == self.begins.len() {
                        End::Whole
                    } else {
                        End::Waits
                    };
                }
                Err(_) => return End::Ended,
            };
            if !matches!(event, ConnEvent::HandedOver(_)) {
                let own = self.begins[answered];
                let own = if at < own {
                    own.checked_add_signed(more).unwrap()
                } else {
                    own
                };
                assert_eq!(
                    begin,
                    own,
                    "of another command, in {:?}: {}",
                    self.said,
                    bytes.escape_ascii()
                );
                answered += 1;
            }
            begin = bytes.len() - conn.inbox.unread();
            begin += of_nonsense(&bytes[begin..]);
        }
    }

    /// Every stream that is this one but for one byte of the first answer.
    fn garble(&self, counts: &mut [usize; 3]) {
        let first = self.said[0].1.len();
        let is_digit = |at: usize| self.bytes.get(at).is_some_and(u8::is_ascii_digit);
        for at in 0..=first {
            // In the middle of a long number each digit is like the next one.
            if 3 <= at && (at - 3..=at + 1).all(is_digit) {
                continue;
            }
            let (before, rest) = self.bytes.split_at(at);
            let behind = rest.get(1..).unwrap_or_default();
            let mut count = |bytes: &[u8], more| match self.read(bytes, at, more) {
                End::Ended => counts[0] += 1,
                End::Whole => counts[1] += 1,
                End::Waits => counts[2] += 1,
            };
            count(&[before, behind].concat(), -1);
            for byte in BYTES {
                count(&[before, &[*byte], rest].concat(), 1);
                count(&[before, &[*byte], behind].concat(), 0);
            }
        }
    }
}

/// The length of messages in front that make no sense: nobody is told of them.
fn of_nonsense(bytes: &[u8]) -> usize {
    let mut len = 0;
    if bytes.first() == Some(&b'>') {
        let mut inbox = Inbox::of(bytes);
        while let Ok(Some(reply)) = inbox.take_reply()
            && push(inbox.get(reply)) == Push::Message(None)
        {
            len = bytes.len() - inbox.unread();
        }
    }
    len
}

#[test]
fn h18_one_wrong_byte_shifts_no_answer_to_another_command() {
    let mut counts = [0; 3];
    // Of the same kind: an answer that moves up has the form that is expected.
    let behind = |at: usize| [SAID[at]; 4];
    let release = SAID[22];
    let present = SAID[36];
    let mut behinds = vec![[present, release, present, release]];
    behinds.extend([0, 16, 22, 34].map(behind));
    if std::env::var_os("QUORLOCK_LONG").is_some() {
        behinds.extend([1, 9, 12, 20, 26, 29, 32, 35, 36].map(behind));
    }
    for first in SAID {
        for behind in &behinds {
            let stream = Stream::of(&[&[first], &behind[..]].concat());
            assert_eq!(stream.read(&stream.bytes, usize::MAX, 0), End::Whole);
            stream.garble(&mut counts);
        }
    }
    assert!(counts.iter().all(|it| 1_000 < *it), "{counts:?}");
}
