//! The commands of one connection, as bytes.

use crate::ids::{RecordVersion, wide};
use crate::wire::keys::{RECORD, in_slot_of};
use crate::wire::script::{Kind, Script};

/// One command, packed once for all nodes of a round. Each connection changes its parts in the
/// copy.
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Command {
    /// Form of its answer.
    pub(crate) kind: Kind,
    /// Script; without one, `text` is the whole command.
    pub(super) script: Option<Script>,
    /// Number of keys, keys and arguments of a script, packed.
    text: Vec<u8>,
    /// Number of keys and arguments.
    parts: usize,
    /// Place of the record's key in the text.
    record_at: Option<usize>,
    /// Place of the version in the text, if its script compares that with the version of the
    /// server's record.
    version_at: Option<usize>,
    /// Whether it releases all slots of a semaphore but that of a hold.
    pub(crate) keeps_a_slot: bool,
    /// Whether the client may be in a waiting list after it: it should be subscribed to releases
    /// before. The last argument ends with [`Command::IS_NOTIFIED`].
    pub(crate) waits: bool,
}

/// Parts of a command that depend on the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    /// Whether it has the source of the script instead of its hash.
    pub(crate) with_source: bool,
    /// Whether the server can announce releases to this client.
    pub(crate) is_notified: bool,
    /// Record version of the last sync.
    pub(crate) record_version: RecordVersion,
    /// Hash tag of all keys, in a cluster. Keys of no lock are in its slot.
    pub(crate) tag: Option<&'a [u8]>,
}

impl Command {
    /// End of a waiting command: the client gets releases on the connection.
    pub(crate) const IS_NOTIFIED: &[u8] = b"1";
    const NOT_NOTIFIED: u8 = b'0';
    /// Usual length of a command.
    const USUAL_LEN: usize = 512;

    pub(crate) fn of_script(script: Script, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let text = Vec::with_capacity(Command::USUAL_LEN);
        let mut command = Command::without_script(script.row().kind, text);
        command.script = Some(script);
        pack(&mut command.text, keys.len().to_string().as_bytes());
        for key in keys {
            if *key == RECORD {
                command.record_at = Some(command.text.len());
            }
            command.push(key);
        }
        args.iter().for_each(|arg| command.push(arg));
        command
    }

    /// Adds an argument.
    pub(crate) fn push(&mut self, arg: &[u8]) {
        pack(&mut self.text, arg);
        self.parts = self.parts.saturating_add(1);
    }

    /// Adds a number.
    pub(super) fn push_number(&mut self, number: u64) {
        let len = number.checked_ilog10().unwrap_or(0);
        pack_number(
            &mut self.text,
            b'$',
            usize::try_from(len).unwrap_or(0).saturating_add(1),
        );
        push_digits(&mut self.text, number);
        self.text.extend_from_slice(b"\r\n");
        self.parts = self.parts.saturating_add(1);
    }

    /// Adds the record version, which its script compares.
    pub(super) fn push_record_version(&mut self) {
        self.version_at = Some(self.text.len().saturating_add(b"$15\r\n".len()));
        self.push(&RecordVersion::NONE.0);
    }

    /// Whether its script compares the record version.
    pub(crate) fn compares(&self) -> bool {
        self.version_at.is_some()
    }

    /// Subscribes its connection to `channel`.
    pub(crate) fn subscribe(channel: &str) -> Command {
        Command::without_script(
            Kind::Subscribe,
            redis::cmd("SUBSCRIBE").arg(channel).get_packed_command(),
        )
    }

    /// Asks for the node's time, only to measure the answer.
    pub(crate) fn time() -> Command {
        Command::without_script(Kind::Time, redis::cmd("TIME").get_packed_command())
    }

    /// A command of a check, without a script.
    pub(super) fn plain(words: &[&[u8]]) -> Command {
        let packed = redis::Cmd::new().arg(words).get_packed_command();
        Command::without_script(Kind::Check, packed)
    }

    fn without_script(kind: Kind, text: Vec<u8>) -> Command {
        Command {
            kind,
            script: None,
            text,
            parts: 0,
            record_at: None,
            version_at: None,
            keeps_a_slot: false,
            waits: false,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, to: Destination<'_>) {
        let Some(script) = self.script else {
            return out.extend_from_slice(&self.text);
        };
        pack_number(out, b'*', self.parts.saturating_add(3));
        if to.with_source {
            pack(out, b"EVAL");
            pack(out, script.source().as_bytes());
        } else {
            pack(out, b"EVALSHA");
            pack(out, script.hash().as_bytes());
        }
        let begin = out.len();
        out.extend_from_slice(&self.text);
        if let Some(at) = self.version_at
            && let Some(place) = out.get_mut(begin.saturating_add(at)..)
            && let Some(place) = place.first_chunk_mut()
        {
            *place = to.record_version.0;
        }
        if self.waits
            && !to.is_notified
            && let [.., flag, b'\r', b'\n'] = &mut out[..]
        {
            *flag = Command::NOT_NOTIFIED;
        }
        if let Some(tag) = to.tag
            && let Some(at) = self.record_at
        {
            let rest = out.split_off(begin.saturating_add(at));
            pack(out, &in_slot_of(tag, RECORD));
            let mut packed = Vec::new();
            pack(&mut packed, RECORD);
            out.extend_from_slice(rest.get(packed.len()..).unwrap_or_default());
        }
    }
}

#[cfg(test)]
impl Command {
    /// Marks the command as one after which the client may be in a waiting list.
    pub(crate) fn with_wait(self) -> Command {
        Command {
            waits: true,
            ..self
        }
    }

    /// The bytes for a server before its sync.
    pub(crate) fn packed(&self) -> Vec<u8> {
        self.packed_as(false)
    }

    pub(crate) fn packed_as(&self, with_source: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let to = Destination {
            with_source,
            ..Destination::NOT_SYNCED
        };
        self.write(&mut out, to);
        out
    }
}

#[cfg(test)]
impl Destination<'_> {
    /// A server before its sync that announces releases.
    pub(crate) const NOT_SYNCED: Destination<'static> = Destination {
        with_source: false,
        is_notified: true,
        record_version: RecordVersion::NONE,
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
    push_digits(out, wide(number));
    out.extend_from_slice(b"\r\n");
}

pub(super) fn push_digits(out: &mut Vec<u8>, number: u64) {
    if 10 <= number {
        push_digits(out, number / 10);
    }
    out.push(u8::try_from(number % 10).unwrap_or(0).saturating_add(b'0'));
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Destination<'static> = Destination::NOT_SYNCED;

    fn written(command: &Command, with_source: bool, to: Destination<'_>) -> Vec<u8> {
        let mut out = b"before".to_vec();
        command.write(&mut out, Destination { with_source, ..to });
        out.split_off(b"before".len())
    }

    #[test]
    fn a_command_is_packed_in_the_standard_form() {
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
            assert!(written(&command, false, THERE) == expected("EVALSHA", script.hash()));
            assert!(written(&command, true, THERE) == expected("EVAL", &script.source()));
        }
    }

    #[test]
    fn in_a_cluster_keys_without_a_lock_are_in_the_slot_of_the_tag() {
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
        for with_source in [false, true] {
            assert!(
                written(&command, with_source, there) == expected.packed_as(with_source),
                "{with_source}"
            );
        }
        let time = Command::time();
        assert_eq!(written(&time, false, there), time.packed());
    }

    #[test]
    fn h17_a_command_has_the_record_version_of_its_connection() {
        let keys: [&[u8]; 2] = [b"a", RECORD];
        let args: [&[u8]; 7] = [
            b"1",
            b"2",
            b"3",
            b"4",
            &RecordVersion::NONE.0,
            b"6",
            Command::IS_NOTIFIED,
        ];
        let record_version = RecordVersion::new(123_456_789_012_345);
        for (script, compares) in [
            (Script::Acquire, true),
            (Script::ExtendShared, true),
            (Script::Release, false),
        ] {
            let mut command = Command::of_script(script, &keys, &args[..4]);
            if compares {
                command.push_record_version();
            } else {
                command.push(args[4]);
            }
            command.push(args[5]);
            command.push(args[6]);
            assert_eq!(command.compares(), compares);
            let with = if compares {
                record_version
            } else {
                RecordVersion::NONE
            };
            let expected = Command::of_script(
                script,
                &keys,
                &[&args[..4], &[&with.0], &args[5..]].concat(),
            );
            for with_source in [false, true] {
                assert!(
                    written(
                        &command,
                        with_source,
                        Destination {
                            record_version,
                            ..THERE
                        }
                    ) == expected.packed_as(with_source),
                    "{script:?}"
                );
            }
        }
    }

    #[test]
    fn a_waiting_command_has_a_flag_for_messages() {
        let keys: [&[u8]; 1] = [b"a"];
        let command =
            Command::of_script(Script::Acquire, &keys, &[b"x", Command::IS_NOTIFIED]).with_wait();
        for (is_notified, flag) in [(true, b"1"), (false, b"0")] {
            let expected = Command::of_script(Script::Acquire, &keys, &[b"x", flag]);
            assert!(command.waits && !expected.waits);
            for with_source in [false, true] {
                assert!(
                    written(
                        &command,
                        with_source,
                        Destination {
                            is_notified,
                            ..THERE
                        }
                    ) == expected.packed_as(with_source)
                );
            }
        }
    }
}
