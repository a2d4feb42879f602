//! Scripts and the commands that run them.

use std::sync::LazyLock;

use redis::Script;

/// What a command does, and so how its reply reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Acquire,
    Raise,
    Extend,
    Release,
    /// Opens the channel of this client. No script.
    Subscribe,
    /// Asks for the node's time. No script.
    Time,
}

impl Kind {
    /// Those that are scripts: a connection loads each before it is used.
    pub(crate) const SCRIPTS: [Kind; 4] = [Kind::Acquire, Kind::Raise, Kind::Extend, Kind::Release];

    /// The source of the script; empty if it is none.
    pub(crate) fn source(self) -> &'static str {
        self.script().map_or("", |it| &it.0)
    }

    /// The SHA-1 of the source in hex: 40 digits; empty if it is no script.
    pub(crate) fn hash(self) -> &'static str {
        self.script().map_or("", |it| it.1.get_hash())
    }

    fn script(self) -> Option<&'static (String, Script)> {
        static SCRIPTS: LazyLock<[(String, Script); 4]> = LazyLock::new(|| {
            [
                include_str!("scripts/acquire.lua"),
                include_str!("scripts/raise.lua"),
                include_str!("scripts/extend.lua"),
                include_str!("scripts/release.lua"),
            ]
            .map(|source| {
                // Servers have no means for scripts to share code.
                let source = source
                    .replace("-- include turn.lua\n", include_str!("scripts/turn.lua"))
                    .replace("-- include canary.lua\n", include_str!("scripts/canary.lua"));
                let script = Script::new(&source);
                (source, script)
            })
        });
        let [acquire, raise, extend, release] = &*SCRIPTS;
        match self {
            Kind::Acquire => Some(acquire),
            Kind::Raise => Some(raise),
            Kind::Extend => Some(extend),
            Kind::Release => Some(release),
            Kind::Subscribe | Kind::Time => None,
        }
    }
}

/// One command, packed once for all nodes of a round.
#[derive(Debug)]
pub(crate) struct Command {
    kind: Kind,
    /// `EVALSHA`, ready to be written.
    bytes: Vec<u8>,
    /// Where in `bytes` the arguments after the hash begin.
    rest: usize,
    args: usize,
    /// The client may be in a waiting list after it, and should hear of releases before.
    waits: bool,
}

impl Command {
    pub(crate) fn script(kind: Kind, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(kind.hash()).arg(keys.len()).arg(keys).arg(args);
        let bytes = cmd.get_packed_command();
        let args = keys.len().saturating_add(args.len()).saturating_add(3);
        // The start up to here has a fixed layout: "*N", "$7", "EVALSHA", "$40", the hash, a line end after each.
        let rest = format!("*{args}\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n", kind.hash()).len();
        Command { kind, bytes, rest, args, waits: false }
    }

    /// Listens to `channel` on the connection that this is written to.
    pub(crate) fn subscribe(channel: &str) -> Command {
        let bytes = redis::cmd("SUBSCRIBE").arg(channel).get_packed_command();
        Command { kind: Kind::Subscribe, bytes, rest: 0, args: 0, waits: false }
    }

    /// Asks for the node's time: something to answer for a node that is only looked at.
    pub(crate) fn time() -> Command {
        Command { kind: Kind::Time, bytes: redis::cmd("TIME").get_packed_command(), rest: 0, args: 0, waits: false }
    }

    /// Marks the command as one after which the client may be in a waiting list.
    pub(crate) fn that_waits(self) -> Command {
        Command { waits: true, ..self }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same command with the script's source in place of its hash: for a server that has forgotten the script.
    pub(crate) fn with_source(&self) -> Vec<u8> {
        if matches!(self.kind, Kind::Subscribe | Kind::Time) {
            return self.bytes.clone();
        }
        let source = self.kind.source();
        let mut bytes = format!("*{}\r\n$4\r\nEVAL\r\n${}\r\n{source}\r\n", self.args, source.len()).into_bytes();
        bytes.extend_from_slice(self.bytes.get(self.rest..).unwrap_or_default());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_its_source_is_the_same_command() {
        for kind in Kind::SCRIPTS {
            let (keys, args): ([&[u8]; 2], [&[u8]; 2]) = ([b"a\r\n", b""], [b"1", b"\xff"]);
            let mut eval = redis::cmd("EVAL");
            eval.arg(kind.source()).arg(2).arg(&keys).arg(&args);

            assert_eq!(Command::script(kind, &keys, &args).with_source(), eval.get_packed_command());
        }
    }

    #[test]
    fn every_script_states_its_interface() {
        for kind in Kind::SCRIPTS {
            let source = kind.source();
            assert!(source.starts_with("-- ") && source.contains("-- KEYS[1]") && source.contains("-- Returns"));
        }
    }
}
