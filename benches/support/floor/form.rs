//! What the floor sends: the commands of a pair.
//!
//! *Plain* is what the other clients send: `SET NX PX`, and a script of one line that compares and deletes. *Ours* is
//! what a manager sends, word for word: a server is asked what it was told when a manager locked and released once, and
//! what differs from pair to pair in that is drawn anew. So this cannot fall behind the library.

use std::process;
use std::time::{Duration, SystemTime};

use devnodes::Client;

use super::wire::{Out, RECORD_VERSION, pack};
use crate::support::Result;

/// As everybody's.
pub(crate) const TTL_MS: &str = "10000";
/// Deletes a lock that its owner holds.
pub(crate) const DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";

/// The name of the lock whose commands are recorded.
const RECORDED: &str = "bench:recorded";
/// Digits of an owner's token.
const TOKEN: usize = 32;
/// Digits of a fencing token, and of a time, in microseconds since 1970.
const MICROS: usize = 16;

/// The commands of a pair, with gaps.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    acquire: Vec<Word>,
    release: Vec<Word>,
}

#[derive(Clone, Debug)]
enum Word {
    Text(String),
    /// The lock's name, between a beginning and an end.
    Name(String, String),
    /// The owner's token, with an end.
    Owner(String),
    /// A time, with an end.
    Micros(String),
    /// Of the record of the node that it is sent to.
    RecordVersion,
}

impl Form {
    /// What others send; `delete` is the hash of [`DELETE`].
    pub(crate) fn plain(delete: &str) -> Self {
        let text = |it: &str| Word::Text(it.to_owned());
        let (name, owner) = (
            || Word::Name(String::new(), String::new()),
            || Word::Owner(String::new()),
        );
        let acquire = vec![
            text("SET"),
            name(),
            owner(),
            text("NX"),
            text("PX"),
            text(TTL_MS),
        ];
        let release = vec![text("EVALSHA"), text(delete), text("1"), name(), owner()];
        Self { acquire, release }
    }

    /// What `run_pair` sends to the node of `client`: it runs a pair of ours on the name that it is given.
    ///
    /// # Errors
    ///
    /// If that are not two commands in which a token can be found.
    pub(crate) fn record(
        mut client: Client,
        run_pair: impl FnOnce(&str) -> Result,
    ) -> Result<Self> {
        client.command(&["MONITOR"])?;
        run_pair(RECORDED)?;
        let mut commands = Vec::new();
        while commands.len() < 2 {
            let line = client.receive()?;
            let line = line.as_str().unwrap_or_default();
            // What scripts call is shown too.
            if line.contains(RECORDED) && !line.contains(" lua] ") {
                commands.push(words(line));
            }
        }
        let mut gaps = commands
            .into_iter()
            .map(|it| it.into_iter().map(Word::of).collect::<Vec<_>>());
        let (acquire, release) = (
            gaps.next().unwrap_or_default(),
            gaps.next().unwrap_or_default(),
        );
        let is_owner = |it: &Word| matches!(it, Word::Owner(_));
        if ![&acquire, &release]
            .iter()
            .all(|it| it.iter().any(is_owner))
        {
            return Err(
                format!("cannot tell what a pair sends from {acquire:?} and {release:?}").into(),
            );
        }
        Ok(Self { acquire, release })
    }

    /// The commands for one lock.
    pub(crate) fn of_lock(&self, name: &str) -> Pair {
        Pair {
            acquire: Packed::new(&self.acquire, name),
            release: Packed::new(&self.release, name),
            owner: 0,
        }
    }
}

impl Word {
    /// Finds the gaps in a recorded word.
    fn of(word: String) -> Self {
        if let Some((before, after)) = word.split_once(RECORDED) {
            return Self::Name(before.to_owned(), after.to_owned());
        }
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        if digits == MICROS && (word.len() == MICROS || word[MICROS..].starts_with(' ')) {
            return Self::Micros(word[MICROS..].to_owned());
        }
        if digits == RECORD_VERSION && word.len() == RECORD_VERSION {
            return Self::RecordVersion;
        }
        match word.split_at_checked(TOKEN) {
            // A hash goes on with digits.
            Some((token, rest))
                if token.bytes().all(|it| it.is_ascii_hexdigit())
                    && !rest.starts_with(|it: char| it.is_ascii_hexdigit()) =>
            {
                Self::Owner(rest.to_owned())
            }
            _ => Self::Text(word),
        }
    }
}

/// The words in a line of `MONITOR`: each in quotation marks, as they come behind the time and the client.
fn words(line: &str) -> Vec<String> {
    line.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The commands of a pair on one lock, and who holds it.
pub(crate) struct Pair {
    acquire: Packed,
    release: Packed,
    owner: u64,
}

impl Pair {
    /// Writes the command that acquires, for a new owner.
    pub(crate) fn acquire(&mut self, out: &mut Out) {
        self.owner += 1;
        self.acquire.write(self.owner, out);
    }

    /// Writes the command that releases what was acquired last.
    pub(crate) fn release(&self, out: &mut Out) {
        self.release.write(self.owner, out);
    }
}

/// A command as bytes, and where its gaps are.
struct Packed {
    bytes: Vec<u8>,
    owners: Vec<usize>,
    micros: Vec<usize>,
    record_versions: Vec<usize>,
}

impl Packed {
    fn new(words: &[Word], name: &str) -> Self {
        let texts: Vec<String> = words
            .iter()
            .map(|word| match word {
                Word::Text(text) => text.clone(),
                Word::Name(before, after) => format!("{before}{name}{after}"),
                // The number of the process, so that two of them are two owners.
                Word::Owner(rest) => format!("{:016x}{:016x}{rest}", process::id(), 0),
                Word::Micros(rest) => format!("{}{rest}", "0".repeat(MICROS)),
                Word::RecordVersion => "0".repeat(RECORD_VERSION),
            })
            .collect();
        let mut packed = Self {
            bytes: Vec::new(),
            owners: Vec::new(),
            micros: Vec::new(),
            record_versions: Vec::new(),
        };
        pack(
            &texts.iter().map(String::as_str).collect::<Vec<_>>(),
            &mut packed.bytes,
        );
        let mut end = packed.bytes.len();
        for (word, text) in words.iter().zip(&texts).rev() {
            let begin = end - 2 - text.len();
            match word {
                Word::Owner(_) => packed.owners.push(begin + TOKEN - MICROS),
                Word::Micros(_) => packed.micros.push(begin),
                Word::RecordVersion => packed.record_versions.push(begin),
                Word::Text(_) | Word::Name(..) => {}
            }
            end = begin - format!("${}\r\n", text.len()).len();
        }
        packed
    }

    fn write(&self, owner: u64, out: &mut Out) {
        let begin = out.bytes.len();
        out.record_versions
            .extend(self.record_versions.iter().map(|at| begin + at));
        out.bytes.extend_from_slice(&self.bytes);
        let command = &mut out.bytes[begin..];
        self.owners
            .iter()
            .for_each(|at| digits(&mut command[*at..][..MICROS], owner, 16));
        if !self.micros.is_empty() {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO);
            let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
            self.micros
                .iter()
                .for_each(|at| digits(&mut command[*at..][..MICROS], now, 10));
        }
    }
}

fn digits(into: &mut [u8], mut number: u64, base: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number % base) as usize];
        number /= base;
    }
}
