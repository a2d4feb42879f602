//! The commands of one connection, as bytes.

use std::time::Duration;

use crate::ids::Edition;
use crate::wire::keys::{PROBE, RECORD, in_slot, slot_of};
use crate::wire::script::{About, Asked, Kind, Script};

/// One command, packed once for all nodes of a round.
#[derive(Debug)]
pub(crate) struct Command {
    kind: Kind,
    about: About,
    script: Option<Script>,
    /// `EVALSHA`, ready to be written.
    bytes: Vec<u8>,
    /// Where in `bytes` the arguments after the hash begin.
    rest: usize,
    args: usize,
    /// The client may be in a waiting list after it, and should be subscribed to releases before.
    waits: bool,
    /// The shorter form in which it is sent again: where that ends in `bytes`, and its `args`.
    again: Option<(usize, usize)>,
    /// How long the lock's key can live because of it.
    life: Duration,
    /// How far before its end the edition begins that its script compares.
    edition: Option<usize>,
}

impl Command {
    /// The end of a command [that waits](Command::that_waits): the client is notified of releases over the connection.
    pub(crate) const IS_TOLD: &[u8] = b"1";
    const NOT_TOLD: u8 = b'0';
    /// The place of the edition among the arguments of a script that compares it: see [`Command::set_edition`].
    pub(crate) const EDITION: &[u8] = &[b'0'; Edition::LEN];
    const EDITION_AT: usize = 4;

    pub(crate) fn of_script(script: Script, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let (hash, number) = (script.hash(), keys.len().to_string());
        let head = [&b"EVALSHA"[..], hash.as_bytes()];
        let tail = || [number.as_bytes()].into_iter().chain(keys.iter().copied()).chain(args.iter().copied());
        let count = keys.len().saturating_add(args.len()).saturating_add(3);
        // In one piece, by hand: these are packed for every lock, and `redis::cmd` makes eight pieces of each.
        let len = head.into_iter().chain(tail()).map(packed_len).fold(packed_len(&[]), usize::saturating_add);
        let mut bytes = Vec::with_capacity(len);
        pack_number(&mut bytes, b'*', count);
        head.into_iter().for_each(|it| pack(&mut bytes, it));
        let rest = bytes.len();
        tail().for_each(|it| pack(&mut bytes, it));
        let about = match script {
            Script::AcquireMany => About::Several,
            Script::AcquireSlot => About::Slots,
            _ => About::One,
        };
        let kind = script.kind();
        let compares = matches!(kind, Kind::Acquire | Kind::Extend);
        let edition = args.get(Command::EDITION_AT..).filter(|_| compares).and_then(|it| {
            let (edition, behind) = it.split_first()?;
            let end = behind.iter().map(|it| packed_len(it)).fold(2, usize::saturating_add);
            (edition.len() == Edition::LEN).then(|| end.saturating_add(Edition::LEN))
        });
        let command = Command::without_script(kind, bytes);
        Command { about, script: Some(script), rest, args: count, edition, ..command }
    }

    /// Subscribes the connection that it is written to, to `channel`.
    pub(crate) fn subscribe(channel: &str) -> Command {
        let bytes = redis::cmd("SUBSCRIBE").arg(channel).get_packed_command();
        Command::without_script(Kind::Subscribe, bytes)
    }

    /// Asks for the node's time. For a node of which nothing but an answer is wanted.
    pub(crate) fn time() -> Command {
        Command::without_script(Kind::Time, redis::cmd("TIME").get_packed_command())
    }

    fn without_script(kind: Kind, bytes: Vec<u8>) -> Command {
        Command {
            kind,
            about: About::One,
            script: None,
            bytes,
            rest: 0,
            args: 0,
            waits: false,
            again: None,
            life: Duration::ZERO,
            edition: None,
        }
    }

    /// Marks the command as one that gives a lock's key so many milliseconds to live.
    pub(crate) fn that_keeps_it_for(self, ttl_ms: u64) -> Command {
        Command { life: Duration::from_millis(ttl_ms), ..self }
    }

    pub(crate) fn life(&self) -> Duration {
        self.life
    }

    /// Marks the command as one after which the client may be in a waiting list. Its last argument ends with [`Command::IS_TOLD`].
    pub(crate) fn that_waits(self) -> Command {
        Command { waits: true, ..self }
    }

    /// If it has to be sent again, it ends with `args`. The command begins with these and with `keys`.
    pub(crate) fn that_says_less_again(self, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let number = keys.len().to_string();
        let kept = [number.as_bytes()].into_iter().chain(keys.iter().copied()).chain(args.iter().copied());
        let end = kept.map(packed_len).fold(self.rest, usize::saturating_add);
        let args = keys.len().saturating_add(args.len()).saturating_add(3);
        Command { again: Some((end, args)), ..self }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// What its answer reads like.
    pub(crate) fn asked(&self) -> Asked {
        Asked { kind: self.kind, about: self.about }
    }

    /// The script that it runs, if it runs one.
    pub(crate) fn script(&self) -> Option<Script> {
        self.script
    }

    /// Writes the command. `is_told`: whether the connection can announce releases to this client.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>, is_told: bool) {
        out.extend_from_slice(&self.bytes);
        self.note_told(out, is_told);
    }

    /// The slot of its keys, in a cluster; `None` for what is about a server and no lock.
    pub(crate) fn slot(&self) -> Option<u16> {
        let first = self.keys()?.next()?;
        (first != RECORD && first != PROBE).then(|| slot_of(first))
    }

    /// Its keys.
    fn keys(&self) -> Option<impl Iterator<Item = &[u8]>> {
        self.script?;
        let mut args = Packed(self.bytes.get(self.rest..)?);
        let count = std::str::from_utf8(args.next()?).ok()?.parse().ok()?;
        Some(args.take(count))
    }

    /// Writes the command for a master of a cluster, where what belongs to no lock has a key in each slot. `how`: as it is, with
    /// its source, or again. `own`: a slot of that master.
    pub(crate) fn write_in_cluster(&self, out: &mut Vec<u8>, is_told: bool, how: Form, own: u16) {
        let mut whole = Vec::new();
        match how {
            Form::Hash => self.write_to(&mut whole, is_told),
            Form::Source => self.write_with_source_to(&mut whole, is_told),
            Form::Again => self.write_again_to(&mut whole, is_told),
        }
        let slot = self.slot().unwrap_or(own);
        let keys = self.keys().into_iter().flatten();
        // All that stands before the keys, the keys, and what stands behind them.
        let count = keys.map(packed_len).fold(0, usize::saturating_add);
        let number = Packed(self.bytes.get(self.rest..).unwrap_or_default()).next().map_or(0, packed_len);
        let head = match how {
            _ if self.script.is_none() => whole.len(),
            Form::Hash => self.rest,
            // Behind the source.
            Form::Source | Form::Again => {
                let rest = match how {
                    Form::Again => self.again.map_or(self.bytes.len(), |it| it.0),
                    _ => self.bytes.len(),
                };
                whole.len().saturating_sub(rest.saturating_sub(self.rest))
            }
        };
        let head = head.saturating_add(if self.script.is_some() { number } else { 0 });
        out.extend_from_slice(whole.get(..head).unwrap_or_default());
        for key in self.keys().into_iter().flatten() {
            if key == RECORD || key == PROBE { pack(out, &in_slot(key, slot)) } else { pack(out, key) }
        }
        out.extend_from_slice(whole.get(head.saturating_add(count)..).unwrap_or_default());
    }

    /// Writes the same command with the script's source in place of its hash: for a server that may not know the script.
    pub(crate) fn write_with_source_to(&self, out: &mut Vec<u8>, is_told: bool) {
        self.write_source(out, (self.bytes.len(), self.args), is_told);
    }

    /// The same for a server that does not know the script any more and has run nothing of it. Commands that were sent after
    /// it may have been run.
    pub(crate) fn write_again_to(&self, out: &mut Vec<u8>, is_told: bool) {
        self.write_source(out, self.again.unwrap_or((self.bytes.len(), self.args)), is_told);
    }

    fn write_source(&self, out: &mut Vec<u8>, (end, args): (usize, usize), is_told: bool) {
        let Some(script) = self.script else { return out.extend_from_slice(&self.bytes) };
        let source = script.source();
        out.extend_from_slice(format!("*{args}\r\n$4\r\nEVAL\r\n${}\r\n{source}\r\n", source.len()).as_bytes());
        out.extend_from_slice(self.bytes.get(self.rest..end).unwrap_or_default());
        self.note_told(out, is_told);
    }

    /// Sets the edition in the command that was written last, if its script compares one: commands are packed once for all
    /// nodes, and connections differ in this.
    pub(crate) fn set_edition(&self, out: &mut [u8], edition: Edition) {
        let begin = self.edition.and_then(|it| out.len().checked_sub(it));
        if let Some(place) = begin.and_then(|it| out.get_mut(it..)?.get_mut(..Edition::LEN)) {
            place.copy_from_slice(edition.text());
        }
    }

    /// Whether its script compares the edition of the server's record.
    pub(crate) fn compares(&self) -> bool {
        self.edition.is_some()
    }

    /// Set when the command is written: commands are packed once for all nodes, and nodes differ in this.
    fn note_told(&self, out: &mut [u8], is_told: bool) {
        if self.waits
            && !is_told
            && let [.., told, b'\r', b'\n'] = out
        {
            *told = Command::NOT_TOLD;
        }
    }
}

/// How a command names its script.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Form {
    Hash,
    Source,
    /// With its source, and the shorter form in which it is sent again.
    Again,
}

/// The arguments of a packed command.
struct Packed<'a>(&'a [u8]);

impl<'a> Iterator for Packed<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_at_checked(self.0.iter().position(|it| *it == b'\n')?.checked_add(1)?)?;
        let len = std::str::from_utf8(len.strip_prefix(b"$")?.strip_suffix(b"\r\n")?).ok()?.parse().ok()?;
        let (arg, rest) = rest.split_at_checked(len)?;
        self.0 = rest.strip_prefix(b"\r\n")?;
        Some(arg)
    }
}

fn pack(out: &mut Vec<u8>, arg: &[u8]) {
    pack_number(out, b'$', arg.len());
    out.extend_from_slice(arg);
    out.extend_from_slice(b"\r\n");
}

/// A sign, a number, a line end.
fn pack_number(out: &mut Vec<u8>, sign: u8, number: usize) {
    out.push(sign);
    push_digits(out, number);
    out.extend_from_slice(b"\r\n");
}

fn push_digits(out: &mut Vec<u8>, number: usize) {
    if 10 <= number {
        push_digits(out, number / 10);
    }
    out.push(u8::try_from(number % 10).unwrap_or(0).saturating_add(b'0'));
}

/// How many bytes an argument takes: a sign, its length, a line end, itself, a line end.
fn packed_len(arg: &[u8]) -> usize {
    let digits = arg.len().checked_ilog10().map_or(1, |it| usize::try_from(it).unwrap_or(0).saturating_add(1));
    arg.len().saturating_add(digits).saturating_add(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_its_source_is_the_same_command() {
        for script in Script::ALL {
            let (keys, args): ([&[u8]; 2], [&[u8]; 2]) = ([b"a\r\n", b""], [b"1", b"\xff"]);
            let mut eval = redis::cmd("EVAL");
            eval.arg(script.source()).arg(2).arg(&keys).arg(&args);

            let mut with_source = Vec::new();
            Command::of_script(script, &keys, &args).write_with_source_to(&mut with_source, true);

            assert_eq!(with_source, eval.get_packed_command());
        }
    }

    #[test]
    fn a_command_is_packed_as_any_client_packs_it() {
        let long = [b'x'; 1_000];
        let many: Vec<&[u8]> = [0, 1, 2, 3, 4, 8, 9, 10, 99, 100, 1_000].map(|it| &long[..it]).into();
        let lists: [&[&[u8]]; 3] = [&[], &[b"", b"a\r\n"], &many];
        for keys in lists {
            for args in lists {
                let mut evalsha = redis::cmd("EVALSHA");
                evalsha.arg(Script::Acquire.hash()).arg(keys.len()).arg(keys).arg(args);

                let command = Command::of_script(Script::Acquire, keys, args);

                assert_eq!(command.bytes, evalsha.get_packed_command());
                assert!(command.bytes.capacity() <= command.bytes.len().saturating_add(2), "it is grown");
            }
        }
    }

    #[test]
    fn in_a_cluster_a_record_is_one_of_the_slot_and_nothing_else_changes() {
        let name = b"\r\n$15\r\nquorlock:record\r\n{x}";
        let keys: [&[u8]; 4] = [name, b"b{x}", RECORD, b"c{x}"];
        let args: [&[u8]; 3] = [b"quorlock:record", b"", Command::IS_TOLD];
        let command = Command::of_script(Script::Acquire, &keys, &args).that_waits();
        let record = in_slot(RECORD, slot_of(b"x"));
        let expected_keys: [&[u8]; 4] = [name, b"b{x}", &record, b"c{x}"];
        let expected = Command::of_script(Script::Acquire, &expected_keys, &args).that_waits();
        assert_eq!(command.slot(), Some(slot_of(b"x")));
        for is_told in [true, false] {
            let (mut hash, mut source) = (Vec::new(), Vec::new());
            command.write_in_cluster(&mut hash, is_told, Form::Hash, 7);
            command.write_in_cluster(&mut source, is_told, Form::Source, 7);
            let (mut expected_hash, mut expected_source) = (Vec::new(), Vec::new());
            expected.write_to(&mut expected_hash, is_told);
            expected.write_with_source_to(&mut expected_source, is_told);
            assert!((hash, source) == (expected_hash, expected_source), "told: {is_told}");
        }
        // What is sent again is shorter.
        let more: [&[u8]; 3] = [b"1", b"quorlock:record", b"2"];
        let command = Command::of_script(Script::Release, &keys, &more).that_says_less_again(&keys, &[b"1"]);
        let mut again = Vec::new();
        command.write_in_cluster(&mut again, true, Form::Again, 7);
        let mut expected = Vec::new();
        Command::of_script(Script::Release, &expected_keys, &[b"1"]).write_with_source_to(&mut expected, true);
        assert!(again == expected);

        // What is about a server is in a slot of its own.
        let greet = Command::of_script(Script::Greet, &[RECORD], &[b"1"]);
        let (mut written, mut expected) = (Vec::new(), Vec::new());
        greet.write_in_cluster(&mut written, true, Form::Hash, 7);
        Command::of_script(Script::Greet, &[&in_slot(RECORD, 7)], &[b"1"]).write_to(&mut expected, true);
        assert_eq!((greet.slot(), written), (None, expected));
        let mut time = Vec::new();
        Command::time().write_in_cluster(&mut time, true, Form::Hash, 7);
        assert_eq!((time, Command::time().slot()), (Command::time().bytes, None));
    }

    #[test]
    fn h17_a_command_has_the_edition_of_the_connection_that_it_is_written_to() {
        let keys: [&[u8]; 2] = [b"a", RECORD];
        let args: [&[u8]; 7] = [b"1", b"2", b"3", b"4", Command::EDITION, b"6", Command::IS_TOLD];
        let edition = Edition::new(123_456_789_012_345);
        for (script, compares) in [(Script::Acquire, true), (Script::ExtendShared, true), (Script::Release, false)] {
            let command = Command::of_script(script, &keys, &args);
            assert_eq!(command.compares(), compares);
            let with = if compares { edition.text() } else { Command::EDITION };
            let expected = Command::of_script(script, &keys, &[&args[..4], &[with], &args[5..]].concat());
            let (mut hash, mut source) = (b"before".to_vec(), Vec::new());
            command.write_to(&mut hash, true);
            command.set_edition(&mut hash, edition);
            command.write_with_source_to(&mut source, true);
            command.set_edition(&mut source, edition);
            let mut expected_source = Vec::new();
            expected.write_with_source_to(&mut expected_source, true);
            assert!(hash == [b"before", &expected.bytes[..]].concat() && source == expected_source, "{script:?}");
        }
    }

    #[test]
    fn a_command_that_waits_says_whether_its_client_is_told() {
        for is_told in [true, false] {
            let told: &[u8] = if is_told { b"1" } else { b"0" };
            let keys: [&[u8]; 1] = [b"a"];
            let command = Command::of_script(Script::Acquire, &keys, &[b"x", Command::IS_TOLD]).that_waits();
            let expected = Command::of_script(Script::Acquire, &keys, &[b"x", told]);
            assert!(command.waits() && !expected.waits());
            let (mut bytes, mut with_source, mut expected_source) = (b"before".to_vec(), Vec::new(), Vec::new());

            command.write_to(&mut bytes, is_told);
            command.write_with_source_to(&mut with_source, is_told);

            assert_eq!(bytes, [b"before", &expected.bytes[..]].concat());
            expected.write_with_source_to(&mut expected_source, true);
            assert_eq!(with_source, expected_source);
        }
    }

    #[test]
    fn h3_a_command_that_says_less_again_does_so_only_again() {
        let keys: [&[u8]; 1] = [b"a"];
        // The number of all arguments has a digit more.
        for more in [1, 9] {
            let args = vec![&b"12"[..]; more];
            let whole = Command::of_script(Script::Release, &keys, &[&[&b"x"[..]], &args[..]].concat());
            let expected = whole.bytes.clone();
            let mut expected_source = Vec::new();
            whole.write_with_source_to(&mut expected_source, true);
            let command = whole.that_says_less_again(&keys, &[b"x"]);
            let (mut bytes, mut again, mut expected_again) = (Vec::new(), Vec::new(), Vec::new());
            let mut with_source = Vec::new();

            command.write_to(&mut bytes, true);
            command.write_again_to(&mut again, true);

            assert_eq!(bytes, expected);
            command.write_with_source_to(&mut with_source, true);
            assert_eq!(with_source, expected_source);
            Command::of_script(Script::Release, &keys, &[b"x"]).write_with_source_to(&mut expected_again, true);
            assert_eq!(again, expected_again);
        }
    }
}
