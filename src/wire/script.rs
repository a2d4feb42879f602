//! Kinds of commands, and their scripts.

use std::sync::OnceLock;

use sha1_smol::Sha1;

/// Kind of a command and of its reply. Several scripts may have one kind, each for another form of
/// lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Acquire,
    Raise,
    Extend,
    Release,
    /// Updates the server's record, and asks for the age of its data.
    SyncRecord,
    /// Subscribes to the channel of this client. No script.
    Subscribe,
    /// Asks for the state of a lock.
    Inspect,
    /// Asks for locks with keys on the node.
    List,
    /// Asks what is recorded of a job, or records a run of it.
    Look,
    /// Asks for the node's time. No script.
    Time,
    /// Any command in a check of the node: only errors count.
    Check,
}

/// Row of a script.
pub(crate) struct Row {
    pub(crate) kind: Kind,
    text: &'static str,
    /// The SHA-1 of the source in hex: 40 digits.
    hash: OnceLock<String>,
}

/// The table of all scripts: the kind of each, and its file.
macro_rules! scripts {
    ($($name:ident: $kind:ident, $file:literal;)*) => {
        /// A script.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(crate) enum Script {
            $($name),*
        }

        impl Script {
            pub(crate) const ALL: [Script; [$($file),*].len()] = [$(Script::$name),*];

            pub(crate) fn row(self) -> &'static Row {
                match self {
                    $(Script::$name => {
                        const TEXT: &str = include_str!(concat!("scripts/", $file));
                        static ROW: Row =
                            Row { kind: Kind::$kind, text: TEXT, hash: OnceLock::new() };
                        &ROW
                    })*
                }
            }
        }
    };
}

scripts! {
    Acquire: Acquire, "acquire.lua";
    Extend: Extend, "extend.lua";
    Release: Release, "release.lua";
    AcquireShared: Acquire, "acquire_shared.lua";
    ExtendShared: Extend, "extend_shared.lua";
    ReleaseShared: Release, "release_shared.lua";
    SyncRecord: SyncRecord, "sync_record.lua";
    Inspect: Inspect, "inspect.lua";
    List: List, "list.lua";
    OnceLook: Look, "once_look.lua";
    OnceRecord: Look, "once_record.lua";
}

impl Script {
    pub(crate) fn source(self) -> String {
        self.lines().collect()
    }

    /// Computed for used scripts only, and line by line: it delays the first lock of a program.
    pub(crate) fn hash(self) -> &'static str {
        self.row().hash.get_or_init(|| {
            let mut sha = Sha1::new();
            self.lines().for_each(|it| sha.update(it.as_bytes()));
            sha.digest().to_string()
        })
    }

    /// Lines of the source with its includes: scripts on servers cannot share code. Without
    /// comments, which are half of it: each program hashes it, and servers keep it.
    pub(super) fn lines(self) -> impl Iterator<Item = &'static str> {
        let with_parts = self.row().text.split_inclusive('\n').flat_map(|line| {
            let part = match line.trim() {
                "-- include handover.lua" => include_str!("scripts/handover.lua"),
                "-- include record.lua" => include_str!("scripts/record.lua"),
                "-- include counter.lua" => include_str!("scripts/counter.lua"),
                "-- include record_version.lua" => include_str!("scripts/record_version.lua"),
                "-- include clock.lua" => include_str!("scripts/clock.lua"),
                "-- include reply.lua" => include_str!("scripts/reply.lua"),
                _ => line,
            };
            part.split_inclusive('\n')
        });
        with_parts.filter(|it| !it.trim_start().starts_with("--"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn no_script_touches_a_key_that_was_not_passed() {
        // Some servers refuse that. A key that is not in KEYS would be made from text in the
        // script, and the only such texts are the name of a channel and the value of a shared lock.
        for script in Script::ALL {
            let source = script.source();
            let made: Vec<_> = source
                .lines()
                .filter(|it| it.contains("quorlock:"))
                .collect();
            let fine = [
                "\"quorlock:shared\"",
                "\"quorlock:wake:\" .. string.sub(member, 1, 16)",
            ];
            assert!(
                made.iter()
                    .all(|line| fine.iter().any(|it| line.contains(it))),
                "{made:?}"
            );
        }
    }

    #[test]
    fn every_script_file_is_listed_once() {
        for script in Script::ALL {
            assert_eq!(
                Script::ALL
                    .iter()
                    .filter(|it| it.hash() == script.hash())
                    .count(),
                1,
                "{script:?}"
            );
            assert_eq!(
                script.hash(),
                redis::Script::new(&script.source()).get_hash(),
                "{script:?}"
            );
            assert!(!script.source().contains("--"), "{script:?}");
        }
    }

    #[test]
    fn a_script_has_the_code_of_its_includes() {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wire/scripts");
        let mut included = 0;
        for script in Script::ALL {
            for name in script
                .row()
                .text
                .lines()
                .filter_map(|it| it.trim().strip_prefix("-- include "))
            {
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
            let text = script.row().text;
            assert!(
                text.starts_with("-- ") && text.contains("-- KEYS") && text.contains("-- Returns")
            );
        }
    }
}
