//! The commands of one connection, as bytes.

use std::time::Duration;

use crate::ids::Edition;
use crate::wire::keys::{RECORD, in_slot_of};
use crate::wire::script::{CommandSubject, Kind, ReplyFormat, Script};

/// One command, for all nodes of a round: packed when it is written, as connections differ in some of it.
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Command {
    /// What its answer reads like.
    pub(crate) asked: ReplyFormat,
    /// Otherwise `text` is the whole command, packed.
    pub(super) script: Option<Script>,
    /// The keys and arguments, one behind the other.
    text: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// How many are keys.
    keys: usize,
    /// How many arguments it has when it is sent again, if that are fewer.
    pub(super) again: Option<usize>,
    /// Its script compares the edition of the server's record.
    pub(crate) compares: bool,
    /// It releases all slots of a semaphore but one: that of a hold.
    pub(crate) keeps_a_slot: bool,
    /// The client may be in a waiting list after it, and should be subscribed to releases before. Its last argument ends
    /// with [`Command::IS_NOTIFIED`].
    pub(crate) waits: bool,
    /// How long the lock's key can live because of it.
    pub(super) life: Duration,
}

/// How a command names its script.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Naming {
    Hash,
    /// With its source, for a server that may not know the script.
    Source,
    /// With its source, for a server that does not know the script any more and has run nothing of it. Commands that were sent
    /// after it may have been run.
    Again,
}

/// What a command has from the connection that it is written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    /// Releases can be announced to this client.
    pub(crate) is_notified: bool,
    /// Of the record that the client was greeted with.
    pub(crate) edition: Edition,
    /// In a cluster the hash tag of all keys. What belongs to no lock has a key in its slot.
    pub(crate) tag: Option<&'a [u8]>,
}

impl Command {
    /// The end of a command that waits: the client is notified of releases over the connection.
    pub(crate) const IS_NOTIFIED: &[u8] = b"1";
    const NOT_NOTIFIED: u8 = b'0';
    /// The place of the edition among the arguments of a script that compares it.
    pub(crate) const EDITION: &[u8] = &[b'0'; Edition::LEN];
    const EDITION_AT: usize = 4;

    pub(crate) fn of_script(script: Script, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let all = || keys.iter().chain(args);
        let mut text = Vec::with_capacity(all().map(|it| it.len()).fold(0, usize::saturating_add));
        let pushed = all().map(|it| {
            text.extend_from_slice(it);
            text.len()
        });
        let ends = pushed.collect();
        let about = match script {
            Script::AcquireMany => CommandSubject::Several,
            Script::AcquireSlot => CommandSubject::Slots,
            _ => CommandSubject::One,
        };
        let kind = script.row().kind;
        let compares = matches!(kind, Kind::Acquire | Kind::Extend)
            && args
                .get(Command::EDITION_AT)
                .is_some_and(|it| it.len() == Edition::LEN);
        Command {
            asked: ReplyFormat { kind, about },
            script: Some(script),
            ends,
            keys: keys.len(),
            compares,
            ..Command::without_script(kind, text)
        }
    }

    /// Subscribes the connection that it is written to, to `channel`.
    pub(crate) fn subscribe(channel: &str) -> Command {
        Command::without_script(
            Kind::Subscribe,
            redis::cmd("SUBSCRIBE").arg(channel).get_packed_command(),
        )
    }

    /// Asks for the node's time. For a node of which nothing but an answer is wanted.
    pub(crate) fn time() -> Command {
        Command::without_script(Kind::Time, redis::cmd("TIME").get_packed_command())
    }

    /// The same, and whether the node takes writes.
    pub(crate) fn check() -> Command {
        Command::of_script(Script::Check, &[RECORD], &[])
    }

    /// A command for a server or Sentinel that has no vote here: its answer comes as it is.
    pub(crate) fn of_words(words: &[&str]) -> Command {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        Command::without_script(Kind::Member, command.get_packed_command())
    }

    fn without_script(kind: Kind, text: Vec<u8>) -> Command {
        Command {
            asked: ReplyFormat {
                kind,
                about: CommandSubject::One,
            },
            script: None,
            text,
            ends: Vec::new(),
            keys: 0,
            again: None,
            compares: false,
            keeps_a_slot: false,
            waits: false,
            life: Duration::ZERO,
        }
    }

    /// Its keys and arguments.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let begins = [0].into_iter().chain(self.ends.iter().copied());
        begins
            .zip(&self.ends)
            .map(|(begin, end)| self.text.get(begin..*end).unwrap_or_default())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, naming: Naming, to: Destination<'_>) {
        let Some(script) = self.script else {
            return out.extend_from_slice(&self.text);
        };
        let all = self.ends.len();
        let again = self
            .again
            .filter(|_| naming == Naming::Again)
            .map(|it| it.saturating_add(self.keys));
        let count = again.map_or(all, |it| it.min(all));
        // By hand: these are packed for every lock, and `redis::cmd` makes eight pieces of each.
        out.reserve(
            self.text
                .len()
                .saturating_add(all.saturating_mul(8))
                .saturating_add(80),
        );
        pack_number(out, b'*', count.saturating_add(3));
        if naming == Naming::Hash {
            pack(out, b"EVALSHA");
            pack(out, script.hash().as_bytes());
        } else {
            pack(out, b"EVAL");
            pack(out, script.source().as_bytes());
        }
        pack(out, self.keys.to_string().as_bytes());
        let edition_at = self
            .compares
            .then(|| self.keys.saturating_add(Command::EDITION_AT));
        for (index, part) in self.parts().take(count).enumerate() {
            match to.tag {
                Some(tag) if index < self.keys && part == RECORD => {
                    pack(out, &in_slot_of(tag, part));
                }
                _ if Some(index) == edition_at => pack(out, &to.edition.0),
                _ => pack(out, part),
            }
        }
        if self.waits
            && !to.is_notified
            && let [.., flag, b'\r', b'\n'] = &mut out[..]
        {
            *flag = Command::NOT_NOTIFIED;
        }
    }
}

#[cfg(test)]
impl Command {
    /// Marks the command as one after which the client may be in a waiting list.
    pub(crate) fn that_waits(self) -> Command {
        Command {
            waits: true,
            ..self
        }
    }

    /// As it is written to a server that was not greeted.
    pub(crate) fn packed(&self) -> Vec<u8> {
        self.packed_as(Naming::Hash)
    }

    pub(crate) fn packed_as(&self, naming: Naming) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out, naming, Destination::UNGREETED);
        out
    }
}

#[cfg(test)]
impl Destination<'_> {
    /// A server that was not greeted, and tells of releases.
    pub(crate) const UNGREETED: Destination<'static> = Destination {
        is_notified: true,
        edition: Edition::NONE,
        tag: None,
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Destination<'static> = Destination::UNGREETED;

    fn written(command: &Command, naming: Naming, to: Destination<'_>) -> Vec<u8> {
        let mut out = b"before".to_vec();
        command.write(&mut out, naming, to);
        out.split_off(b"before".len())
    }

    #[test]
    fn a_command_is_packed_as_any_client_packs_it() {
        let long = [b'x'; 1_000];
        let many: Vec<&[u8]> = [0, 1, 2, 3, 4, 8, 9, 10, 99, 100, 1_000]
            .map(|it| &long[..it])
            .into();
        let lists: [&[&[u8]]; 3] = [&[], &[b"\xff", b"a\r\n"], &many];
        for (script, keys, args) in Script::ALL
            .into_iter()
            .flat_map(|it| lists.map(|keys| lists.map(|args| (it, keys, args))))
            .flatten()
        {
            let expected = |name: &str, script: &str| {
                redis::cmd(name)
                    .arg(script)
                    .arg(keys.len())
                    .arg(keys)
                    .arg(args)
                    .get_packed_command()
            };
            let command = Command::of_script(script, keys, args);
            assert!(written(&command, Naming::Hash, THERE) == expected("EVALSHA", script.hash()));
            assert!(written(&command, Naming::Source, THERE) == expected("EVAL", &script.source()));
        }
    }

    #[test]
    fn in_a_cluster_what_belongs_to_no_lock_is_in_the_slot_of_the_hash_tag() {
        let keys: [&[u8]; 3] = [b"{x}quorlock:record", RECORD, b"{x}c"];
        let args: [&[u8]; 3] = [b"quorlock:record", b"", Command::IS_NOTIFIED];
        let there = Destination {
            tag: Some(b"x"),
            ..THERE
        };
        let command = Command::of_script(Script::Acquire, &keys, &args);
        let [first, _, last] = keys;
        let keys = [first, b"quorlock:record:{x}", last];
        let expected = Command::of_script(Script::Acquire, &keys, &args);
        for naming in [Naming::Hash, Naming::Source, Naming::Again] {
            assert!(
                written(&command, naming, there) == expected.packed_as(naming),
                "{naming:?}"
            );
        }
        let time = Command::time();
        assert_eq!(written(&time, Naming::Hash, there), time.packed());
    }

    #[test]
    fn h17_a_command_has_the_edition_of_the_connection_that_it_is_written_to() {
        let keys: [&[u8]; 2] = [b"a", RECORD];
        let args: [&[u8]; 7] = [
            b"1",
            b"2",
            b"3",
            b"4",
            Command::EDITION,
            b"6",
            Command::IS_NOTIFIED,
        ];
        let edition = Edition::new(123_456_789_012_345);
        for (script, compares) in [
            (Script::Acquire, true),
            (Script::ExtendShared, true),
            (Script::Release, false),
        ] {
            let command = Command::of_script(script, &keys, &args);
            assert_eq!(command.compares, compares);
            let with = if compares {
                &edition.0
            } else {
                Command::EDITION
            };
            let expected =
                Command::of_script(script, &keys, &[&args[..4], &[with], &args[5..]].concat());
            for naming in [Naming::Hash, Naming::Source] {
                let packed = redis_packed(&expected, naming);
                assert!(
                    written(&command, naming, Destination { edition, ..THERE }) == packed,
                    "{script:?}"
                );
            }
        }
    }

    /// Without any difference.
    fn redis_packed(command: &Command, naming: Naming) -> Vec<u8> {
        let script = command.script.unwrap();
        let mut all = match naming {
            Naming::Hash => redis::cmd("EVALSHA").arg(script.hash()).to_owned(),
            Naming::Source | Naming::Again => redis::cmd("EVAL").arg(script.source()).to_owned(),
        };
        all.arg(command.keys)
            .arg(command.parts().collect::<Vec<_>>())
            .get_packed_command()
    }

    #[test]
    fn a_command_that_waits_says_whether_its_client_is_told() {
        let keys: [&[u8]; 1] = [b"a"];
        let command =
            Command::of_script(Script::Acquire, &keys, &[b"x", Command::IS_NOTIFIED]).that_waits();
        for (is_notified, flag) in [(true, b"1"), (false, b"0")] {
            let expected = Command::of_script(Script::Acquire, &keys, &[b"x", flag]);
            assert!(command.waits && !expected.waits);
            for naming in [Naming::Hash, Naming::Source] {
                assert!(
                    written(
                        &command,
                        naming,
                        Destination {
                            is_notified,
                            ..THERE
                        }
                    ) == expected.packed_as(naming)
                );
            }
        }
    }

    #[test]
    fn h3_a_command_that_says_less_again_does_so_only_again() {
        let keys: [&[u8]; 1] = [b"a"];
        // The number of all arguments has a digit more.
        for more in [1, 9] {
            let args = vec![&b"12"[..]; more];
            let whole =
                Command::of_script(Script::Release, &keys, &[&[&b"x"[..]], &args[..]].concat());
            let less = Command::of_script(Script::Release, &keys, &[b"x"]);
            let [hash, source] = [Naming::Hash, Naming::Source].map(|it| whole.packed_as(it));
            let command = Command {
                again: Some(1),
                ..whole
            };
            assert_eq!(
                (command.packed(), command.packed_as(Naming::Source)),
                (hash, source)
            );
            assert_eq!(
                command.packed_as(Naming::Again),
                less.packed_as(Naming::Source)
            );
        }
    }
}
