//! What commands do, and the scripts that do it.

use std::sync::OnceLock;

use sha1_smol::Sha1;

/// The commands that scripts use and whose right `scripts/probe.lua` tries, as access lists call them.
pub(crate) const PROBED: [&str; 20] = [
    "get",
    "mget",
    "set",
    "del",
    "exists",
    "pexpire",
    "pttl",
    "time",
    "zadd",
    "zrange",
    "zrem",
    "publish",
    "zscore",
    "zremrangebyscore",
    "pubsub|numsub",
    "zcard",
    "zcount",
    "zrangebyscore",
    "scan",
    "info",
];

/// What a command does, and so how its reply reads. Several scripts may do the same, each for another form of lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Acquire,
    Raise,
    Extend,
    Release,
    /// Tells how long a quarantine we need, and asks since when the node remembers.
    Greet,
    /// Asks for the node's id, and tells it which nodes we use.
    Meet,
    /// Opens the channel of this client. No script.
    Subscribe,
    /// Asks what the node stores about a lock.
    Inspect,
    /// Asks which commands the access list forbids.
    Probe,
    /// Asks which locks have left something on the node.
    List,
    /// Asks which keys are there.
    Present,
    /// Asks for the node's time. No script.
    Time,
}

/// A script.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Script {
    Acquire,
    Raise,
    Extend,
    Release,
    AcquireMany,
    RaiseMany,
    ExtendMany,
    ReleaseMany,
    AcquireSlot,
    ReleaseSlots,
    Greet,
    Meet,
    AcquireShared,
    RaiseShared,
    ExtendShared,
    ReleaseShared,
    Inspect,
    Probe,
    List,
    Present,
}

impl Script {
    /// The scripts that every lock needs, and those that quarantine needs: a server that does not know them is given them in
    /// the login. The first command of another script on a connection carries its source instead, and takes no longer for that.
    const OF_LOCKS: [Script; 3] = [Script::Acquire, Script::Extend, Script::Release];
    const OF_QUARANTINE: [Script; 2] = [Script::Meet, Script::Greet];

    pub(crate) const ALL: [Script; 20] = [
        Script::Acquire,
        Script::Raise,
        Script::Extend,
        Script::Release,
        Script::AcquireMany,
        Script::RaiseMany,
        Script::ExtendMany,
        Script::ReleaseMany,
        Script::AcquireShared,
        Script::RaiseShared,
        Script::ExtendShared,
        Script::ReleaseShared,
        Script::AcquireSlot,
        Script::ReleaseSlots,
        Script::Greet,
        Script::Meet,
        Script::Inspect,
        Script::Probe,
        Script::List,
        Script::Present,
    ];

    /// What a command does that runs it.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Script::Acquire | Script::AcquireMany | Script::AcquireShared | Script::AcquireSlot => Kind::Acquire,
            Script::Raise | Script::RaiseMany | Script::RaiseShared => Kind::Raise,
            Script::Extend | Script::ExtendMany | Script::ExtendShared => Kind::Extend,
            Script::Release | Script::ReleaseMany | Script::ReleaseShared | Script::ReleaseSlots => Kind::Release,
            Script::Greet => Kind::Greet,
            Script::Meet => Kind::Meet,
            Script::Inspect => Kind::Inspect,
            Script::Probe => Kind::Probe,
            Script::List => Kind::List,
            Script::Present => Kind::Present,
        }
    }

    /// The scripts that a server has to know before it may vote.
    pub(crate) fn needed(with_quarantine: bool) -> Vec<Script> {
        let of_quarantine = Script::OF_QUARANTINE.into_iter().filter(|_| with_quarantine);
        Script::OF_LOCKS.into_iter().chain(of_quarantine).collect()
    }

    /// Whether its first command on a connection carries the source.
    pub(crate) fn is_introduced(self) -> bool {
        !Script::OF_LOCKS.contains(&self) && !Script::OF_QUARANTINE.contains(&self)
    }

    pub(crate) fn source(self) -> String {
        self.lines().collect()
    }

    /// The SHA-1 of the source in hex: 40 digits.
    ///
    /// Of scripts that are used alone, and without their source in one piece: it is on the way to the first lock of a program.
    pub(crate) fn hash(self) -> &'static str {
        static HASHES: [OnceLock<String>; Script::ALL.len()] = [const { OnceLock::new() }; Script::ALL.len()];
        let hash = || {
            let mut sha = Sha1::new();
            self.lines().for_each(|it| sha.update(it.as_bytes()));
            sha.digest().to_string()
        };
        let place = Script::ALL.iter().position(|it| *it == self).and_then(|it| HASHES.get(it));
        place.map_or("", |it| it.get_or_init(hash))
    }

    /// The lines of the source, and the parts that it has in common with others: servers have no means for scripts to share
    /// code. Without comments, which are half of it: each program hashes it, and servers are sent it and keep it.
    fn lines(self) -> impl Iterator<Item = &'static str> {
        let with_parts = self.text().split_inclusive('\n').flat_map(|line| {
            let part = match line.trim() {
                "-- include reservation.lua" => include_str!("scripts/reservation.lua"),
                "-- include canary.lua" => include_str!("scripts/canary.lua"),
                "-- include counter.lua" => include_str!("scripts/counter.lua"),
                _ => line,
            };
            part.split_inclusive('\n')
        });
        with_parts.filter(|it| !it.trim_start().starts_with("--"))
    }

    fn text(self) -> &'static str {
        match self {
            Script::Acquire => include_str!("scripts/acquire.lua"),
            Script::AcquireMany => include_str!("scripts/acquire_many.lua"),
            Script::Raise => include_str!("scripts/raise.lua"),
            Script::RaiseMany => include_str!("scripts/raise_many.lua"),
            Script::Extend => include_str!("scripts/extend.lua"),
            Script::ExtendMany => include_str!("scripts/extend_many.lua"),
            Script::Release => include_str!("scripts/release.lua"),
            Script::ReleaseMany => include_str!("scripts/release_many.lua"),
            Script::AcquireSlot => include_str!("scripts/acquire_slot.lua"),
            Script::ReleaseSlots => include_str!("scripts/release_slots.lua"),
            Script::Greet => include_str!("scripts/greet.lua"),
            Script::Meet => include_str!("scripts/meet.lua"),
            Script::AcquireShared => include_str!("scripts/acquire_shared.lua"),
            Script::RaiseShared => include_str!("scripts/raise_shared.lua"),
            Script::ExtendShared => include_str!("scripts/extend_shared.lua"),
            Script::ReleaseShared => include_str!("scripts/release_shared.lua"),
            Script::Inspect => include_str!("scripts/inspect.lua"),
            Script::Probe => include_str!("scripts/probe.lua"),
            Script::List => include_str!("scripts/list.lua"),
            Script::Present => include_str!("scripts/present.lua"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn no_script_touches_a_key_that_was_not_passed() {
        // Some servers refuse that. A key that is not in KEYS would be made from text in the script, and the only such texts
        // are the name of a channel and the value of a shared lock.
        for script in Script::ALL {
            let source = script.source();
            let made: Vec<_> = source.lines().filter(|it| it.contains("quorlock:")).collect();
            let fine = [
                "\"quorlock:shared\"",
                "(\"PUBLISH\", \"quorlock:wake:\" .. ",
                "(\"PUBSUB\", \"NUMSUB\", \"quorlock:wake:\" .. ",
                "\"PUBLISH\", \"quorlock:wake:\" .. ",
                "\"PUBSUB\", \"NUMSUB\", \"quorlock:wake:\" .. ",
            ];
            assert!(made.iter().all(|line| fine.iter().any(|it| line.contains(it))), "{made:?}");
        }
    }

    #[test]
    fn every_command_that_a_script_uses_is_tried_by_the_probe() {
        // `COMMAND` or `PUBSUB|NUMSUB`, in quotes.
        let used = |script: Script| -> Vec<String> {
            let source = script.source();
            let calls = source.split("call(\"").skip(1).filter_map(|it| it.split(')').next());
            let words = calls.map(|it| it.split('"').step_by(2).take(2).collect::<Vec<_>>());
            words.map(|it| if it[0] == "PUBSUB" { it.join("|").to_lowercase() } else { it[0].to_lowercase() }).collect()
        };
        let others = Script::ALL.into_iter().filter(|it| *it != Script::Probe);
        for command in others.flat_map(used) {
            assert!(PROBED.contains(&&*command), "{command}");
        }
        for command in PROBED {
            assert!(Script::Probe.text().contains(&format!("(\"{command}\", ")), "{command}");
        }
    }

    #[test]
    fn every_script_is_one_of_all_and_none_is_there_twice() {
        for script in Script::ALL {
            assert_eq!(Script::ALL.iter().filter(|it| it.hash() == script.hash()).count(), 1, "{script:?}");
            assert_eq!(script.hash(), redis::Script::new(&script.source()).get_hash(), "{script:?}");
            assert!(!script.source().contains("--"), "{script:?}");
        }
    }

    #[test]
    fn a_script_has_the_code_of_what_it_includes() {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wire/scripts");
        let mut included = 0;
        for script in Script::ALL {
            for name in script.text().lines().filter_map(|it| it.trim().strip_prefix("-- include ")) {
                let part = fs::read_to_string(scripts.join(name)).unwrap();
                let is_code = |it: &&str| !it.trim_start().starts_with("--");
                let code: String = part.split_inclusive('\n').filter(is_code).collect();
                assert!(script.source().contains(&code), "{script:?}: {name}");
                included += 1;
            }
        }
        assert_ne!(included, 0);
    }

    #[test]
    fn every_script_states_its_interface() {
        for script in Script::ALL {
            let text = script.text();
            assert!(text.starts_with("-- ") && text.contains("-- KEYS[1]") && text.contains("-- Returns"));
        }
    }
}
