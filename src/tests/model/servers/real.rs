//! A server that runs the scripts. The library's own plans make the commands, and its own parser reads the replies.

use std::collections::HashMap;

use quorlock_testing::resp;
use quorlock_testing::store::{Store, Value};

use super::*;
use crate::answer::RecordReply;
use crate::ids::{ClientId, OwnerToken, RecordVersion};
use crate::wire::{self, Command, Destination, Reply, SyncKind, SyncRecord};

/// What the clock of a node shows when a model's clock shows 0: microseconds since 1970.
pub(super) const BEGIN: u64 = 20_000 * 86_400_000_000;
/// Between a model's times, and its tokens: a second.
const UNIT: u64 = 1_000_000;

/// The token that stands for a model's number, or the time. 0 stands for none.
pub(super) fn number(of_model: u8) -> u64 {
    if of_model == 0 {
        0
    } else {
        BEGIN + UNIT * u64::from(of_model)
    }
}

/// The model's number.
pub(super) fn of_model(number: u64) -> u8 {
    let units = number.checked_sub(BEGIN).map_or(0, |it| it / UNIT);
    assert_eq!(
        self::number(u8::try_from(units).unwrap()),
        number,
        "no number of the model"
    );
    u8::try_from(units).unwrap()
}

pub(super) fn millis(units: u8) -> u64 {
    UNIT / 1_000 * u64::from(units)
}

pub(super) fn draw() -> OwnerToken {
    OwnerToken::draw().unwrap()
}

/// A node with the scripts.
pub(super) struct Real {
    store: Store,
    notices: Vec<Vec<u8>>,
    /// Microseconds since 1970.
    now: u64,
    starts: u32,
    /// What each client connected with last.
    record_versions: HashMap<usize, RecordVersion>,
    /// How many were drawn.
    drawn: u64,
}

impl Real {
    /// With nothing stored but its record, which client 0 has been synced with. The quarantine has ended before the model's
    /// beginning.
    pub(super) fn in_use(at: u8, quarantine: u64) -> Real {
        let mut real = Real {
            store: Store::new("run0"),
            notices: Vec::new(),
            now: BEGIN - 86_400_000_000,
            starts: 0,
            record_versions: HashMap::new(),
            drawn: 0,
        };
        real.sync_record(0, quarantine, 0);
        real.go_to(at);
        real
    }

    /// The model's clock shows this.
    pub(super) fn go_to(&mut self, at: u8) {
        self.now = BEGIN + UNIT * u64::from(at);
    }

    /// Another process, which has what this one has stored if `memory`.
    pub(super) fn restart(&mut self, memory: bool) {
        let kept = if memory { self.contents() } else { Vec::new() };
        self.starts += 1;
        self.store = Store::new(&format!("run{}", self.starts));
        for (key, text) in kept {
            self.plain(&[b"SET", &key, &text]);
        }
    }

    /// All strings.
    pub(super) fn contents(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let text = |value: &Value| {
            if let Value::Text(text) = value {
                Some(text.clone())
            } else {
                None
            }
        };
        let now = Duration::from_micros(self.now);
        self.store
            .contents(now)
            .filter_map(|(key, it)| Some((key.to_vec(), text(it.value)?)))
            .collect()
    }

    /// A client needs a quarantine of `own` milliseconds, and has been shown `heard` by other nodes.
    pub(super) fn sync_record(&mut self, client: usize, own: u64, heard: u64) -> RecordReply {
        let command = self.sync_command(own, heard, SyncKind::Note);
        let Vote::Record(reply) = self.send(client, &command) else {
            panic!("no answer to a sync_command")
        };
        reply
    }

    fn sync_command(&mut self, own: u64, heard: u64, kind: SyncKind) -> Command {
        self.drawn += 1;
        wire::sync_record(&SyncRecord {
            record_version: RecordVersion::new(self.drawn),
            own,
            reported: heard,
            servers: 0,
            kind,
        })
    }

    /// On a client's connection.
    pub(super) fn send(&mut self, client: usize, command: &Command) -> Vote {
        let record_version = self
            .record_versions
            .get(&client)
            .copied()
            .unwrap_or(RecordVersion::NONE);
        let mut bytes = Vec::new();
        command.write(
            &mut bytes,
            Destination {
                with_source: true,
                is_notified: true,
                record_version,
                tag: None,
            },
        );
        let answer = self.run(command.kind, &bytes);
        if let Vote::Record(synced) = &answer {
            self.record_versions.insert(client, synced.record_version);
        }
        answer
    }

    fn run(&mut self, kind: wire::Kind, bytes: &[u8]) -> Vote {
        let (args, _) = resp::parse(bytes).unwrap().unwrap();
        let done = self.store.execute(&args, Duration::from_micros(self.now));
        let mut frame = Vec::new();
        let notices = done.notices.into_iter().map(|it| it.message);
        self.notices.extend(notices.filter(|it| !it.is_empty()));
        done.reply.write_to(&mut frame, true);
        Reply::read(kind, &frame).answer
    }

    /// Whether a client listens to its messages.
    pub(super) fn set_listener(&mut self, client: ClientId, listens: bool) {
        let channel = client.channel();
        self.store
            .set_listeners(channel.as_bytes(), usize::from(listens));
    }

    /// What was published since the last look.
    pub(super) fn messages(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.notices)
    }

    /// A command that is no script.
    pub(super) fn plain(&mut self, command: &[&[u8]]) {
        drop(self.store.execute(command, Duration::from_micros(self.now)));
    }

    pub(super) fn delete(&mut self, key: &str) {
        self.plain(&[b"DEL", key.as_bytes()]);
    }

    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        let found = self
            .contents()
            .into_iter()
            .find(|(name, _)| name == key.as_bytes());
        found.map(|(_, text)| String::from_utf8(text).unwrap())
    }

    /// A counter as the model has it.
    pub(super) fn counter(&mut self, key: &str) -> u8 {
        self.text(key)
            .map_or(0, |text| of_model(text.parse().unwrap()))
    }

    /// For how many milliseconds a key is there.
    pub(super) fn left(&mut self, key: &str) -> Option<i64> {
        let now = Duration::from_micros(self.now);
        self.store
            .contents(now)
            .find(|(name, _)| *name == key.as_bytes())?
            .1
            .left
    }

    /// The members of a sorted set with a larger score than its clock shows, in milliseconds.
    pub(super) fn standing(&mut self, key: &str) -> Vec<Vec<u8>> {
        let now = self.now;
        let found = self
            .store
            .contents(Duration::from_micros(now))
            .find(|(name, _)| *name == key.as_bytes());
        let Some(Value::Sorted(members)) = found.map(|(_, it)| it.value) else {
            return Vec::new();
        };
        let ms = (now / 1_000) as f64;
        members
            .iter()
            .filter(|(_, end)| **end > ms)
            .map(|(member, _)| member.clone())
            .collect()
    }
}
