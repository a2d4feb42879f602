//! Error replies of a server, sorted by remedy.

use std::borrow::Cow;
use std::sync::Arc;

use redis::ServerError;

use crate::error::NodeFailure;
use crate::ids::OwnerLabel;
use crate::wire::script::Script;

/// Longest quoted text of a server, in characters.
const SHOWN: usize = 160;
/// Quoted digits of a long hex number: as many as the log shows of an owner token.
const HEX_SHOWN: usize = 8;
/// The same for a holder's label: container ids have twelve digits, and a token has 32.
const HEX_SHOWN_OF_A_HOLDER: usize = 16;

/// The commands after the login. A server may lack them.
const SENT: [&str; 6] = ["EVALSHA", "EVAL", "SUBSCRIBE", "TIME", "SET", "DEL"];

const OUT_OF_MEMORY: &str = "out of memory; raise maxmemory, or use a dedicated server for locks";
const LONG_SCRIPT: &str = "busy with a long script; find the client that runs it: SLOWLOG GET";
const TOO_MANY_CLIENTS: &str =
    "too many clients; raise maxclients, or close connections: CLIENT LIST";
const PROTECTED_MODE: &str = "in protected mode, so it serves its own machine only; set a password \
    there and give it in the node's URL";

fn not_permitted(message: &str) -> NodeFailure {
    NodeFailure::Access {
        reason: format!("not permitted: {message}; see the ACL line in the guide").into(),
    }
}

/// The failed command of a script: servers before 7.2 show its line only.
fn in_script(details: &str) -> Option<String> {
    let line = details.split("@user_script:").nth(1)?;
    let line = line.split(['.', ':']).next()?.parse().ok()?;
    let mut scripts = Script::ALL.into_iter();
    let script = scripts.find(|it| details.contains(it.hash()))?;
    let (_, call) = script.lines().take(line).last()?.rsplit_once("call(\"")?;
    Some(format!("'{}': ", call.split('"').next()?.to_lowercase()))
}

/// Sorts an error reply to a command; none if the server lacks the script and has run nothing. Not
/// for the login, where servers echo its arguments.
pub(crate) fn of(error: &ServerError) -> Option<NodeFailure> {
    let details = error.details().unwrap_or_default();
    if error.code() == "NOSCRIPT" {
        return None;
    }
    // Servers before 7.0 wrap an error inside a script into one of their own, with its code in the
    // middle.
    let wrapped = ["OOM", "MISCONF", "NOREPLICAS", "READONLY", "WRONGTYPE"]
        .into_iter()
        .find(|code| {
            error.code() == "ERR"
                && details.contains("@user_script")
                && details.split([' ', '-']).any(|word| word == *code)
        });
    let message = || shown(&format!("{} {details}", error.code()));
    Some(match wrapped.unwrap_or(error.code()) {
        "LOADING" => NodeFailure::Loading,
        "READONLY" | "MASTERDOWN" => NodeFailure::Replica,
        "OOM" => NodeFailure::WritesRefused {
            reason: OUT_OF_MEMORY.into(),
        },
        "MISCONF" | "NOREPLICAS" => {
            let reason = format!("refuses writes: {}; check its disk and its log", message());
            NodeFailure::WritesRefused {
                reason: reason.into(),
            }
        }
        "BUSY" => NodeFailure::Busy {
            reason: LONG_SCRIPT.into(),
        },
        "NOAUTH" => NodeFailure::NO_PASSWORD,
        "WRONGPASS" => NodeFailure::WRONG_PASSWORD,
        "NOPERM" => not_permitted(&message()),
        "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" => {
            NodeFailure::SlotNotServed { message: message() }
        }
        "CROSSSLOT" => NodeFailure::CLUSTER_NODE,
        "ERR" if details.contains("cluster support disabled") => NodeFailure::NO_CLUSTER,
        "WRONGTYPE" => NodeFailure::KeyInUse {
            name: None,
            what: NodeFailure::ANOTHER_TYPE,
        },
        "DENIED" if details.contains("protected mode") => NodeFailure::access(PROTECTED_MODE),
        "ERR" if details.contains("max number of clients") => NodeFailure::Busy {
            reason: TOO_MANY_CLIENTS.into(),
        },
        // A forbidden command of a script, in the words of Valkey and Redis; and a renamed command.
        "ERR"
            if [
                "ACL failure in script",
                "The user executing the script can't",
                "Unknown Redis command",
                "unknown command",
            ]
            .iter()
            .any(|it| details.contains(it))
                // Members are asked of another kind of server.
                && !details.contains("SENTINEL") =>
        {
            // Without arguments, which differ between servers.
            let text = message();
            let text = text.split(", with").next().unwrap_or_default();
            not_permitted(&(in_script(details).unwrap_or_default() + text))
        }
        _ => NodeFailure::Refused { message: message() },
    })
}

/// Whether a server sends this at the connection, before any command.
pub(crate) fn is_of_accepting(failure: &NodeFailure) -> bool {
    let (NodeFailure::Access { reason } | NodeFailure::Busy { reason }) = failure else {
        return false;
    };
    [PROTECTED_MODE, TOO_MANY_CLIENTS].contains(&&**reason)
}

/// Whether the reply is a corrupted answer, or the answer to a corrupted command.
pub(crate) fn is_garbled(frame: &[u8], error: &ServerError) -> bool {
    let line = frame.strip_suffix(b"\r\n").unwrap_or(frame);
    let is_line = line.get(1).is_some_and(u8::is_ascii_alphabetic)
        && !line.iter().any(|it| b"\r\n".contains(it));
    let unknown = error
        .details()
        .and_then(|it| it.strip_prefix("unknown command "));
    let named = unknown.and_then(|it| it.split(['\'', '`']).nth(1));
    !is_line || named.is_some_and(|named| !SENT.iter().any(|it| it.eq_ignore_ascii_case(named)))
}

/// Sorts an error reply to a login command, without a quotation.
pub(crate) fn of_login(error: &ServerError) -> NodeFailure {
    match of(error) {
        Some(failure @ (NodeFailure::Loading | NodeFailure::Busy { .. })) => failure,
        // A fixed text quotes nothing.
        Some(
            failure @ NodeFailure::Access {
                reason: Cow::Borrowed(_),
            },
        ) => failure,
        Some(NodeFailure::Access { .. }) => not_permitted("HELLO or AUTH"),
        _ => NodeFailure::WRONG_PASSWORD,
    }
}

/// Text of a server for a log line: cut, with control characters escaped, and long hex numbers
/// shortened. Servers quote arguments of refused commands, and owner tokens are among ours: a token
/// is enough to release the lock. Not covered: a server that writes them in another form to get
/// them into our log.
pub(crate) fn shown(text: &str) -> String {
    cut(text, SHOWN, HEX_SHOWN)
}

/// The label in a lock's value, in the same way; `None` without one.
pub(crate) fn shown_holder(label: &[u8]) -> Option<Arc<str>> {
    let shown = || {
        cut(
            &String::from_utf8_lossy(label),
            OwnerLabel::MAX,
            HEX_SHOWN_OF_A_HOLDER,
        )
    };
    (!label.is_empty()).then(|| shown().into())
}

fn cut(text: &str, max: usize, hex_max: usize) -> String {
    let mut shown = String::new();
    let mut digits = 0_usize;
    for (len, it) in text.chars().enumerate() {
        if len == max {
            shown.push('…');
            break;
        }
        digits = if it.is_ascii_hexdigit() {
            digits.saturating_add(1)
        } else {
            0
        };
        match digits.checked_sub(hex_max) {
            // The text has no quotation marks around it.
            None | Some(0) if matches!(it, '\'' | '"') => shown.push(it),
            None | Some(0) => shown.extend(it.escape_debug()),
            Some(1) => shown.push_str(".."),
            Some(_) => {}
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sort(line: &str) -> Option<NodeFailure> {
        match redis::parse_redis_value(format!("{line}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => of(&error),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn g6_each_error_code_has_its_own_failure() {
        for (line, failure) in [
            (
                "-LOADING Redis is loading the dataset in memory",
                NodeFailure::Loading,
            ),
            (
                "-READONLY You can't write against a read only replica.",
                NodeFailure::Replica,
            ),
            ("-MASTERDOWN Link with MASTER is down", NodeFailure::Replica),
            (
                "-OOM command not allowed when used memory > 'maxmemory'.",
                NodeFailure::WritesRefused {
                    reason: OUT_OF_MEMORY.into(),
                },
            ),
            (
                "-BUSY Redis is busy running a script.",
                NodeFailure::Busy {
                    reason: LONG_SCRIPT.into(),
                },
            ),
            ("-NOAUTH Authentication required.", NodeFailure::NO_PASSWORD),
            (
                "-WRONGPASS invalid username-password pair",
                NodeFailure::WRONG_PASSWORD,
            ),
            (
                "-MOVED 3999 127.0.0.1:6381",
                NodeFailure::SlotNotServed {
                    message: "MOVED 3999 127.0.0.1:6381".to_owned(),
                },
            ),
            (
                "-ASK 3999 127.0.0.1:6381",
                NodeFailure::SlotNotServed {
                    message: "ASK 3999 127.0.0.1:6381".to_owned(),
                },
            ),
            (
                "-TRYAGAIN Multiple keys",
                NodeFailure::SlotNotServed {
                    message: "TRYAGAIN Multiple keys".to_owned(),
                },
            ),
            (
                "-CLUSTERDOWN Hash slot not served",
                NodeFailure::SlotNotServed {
                    message: "CLUSTERDOWN Hash slot not served".to_owned(),
                },
            ),
            ("-CROSSSLOT Keys in request", NodeFailure::CLUSTER_NODE),
            (
                "-ERR This instance has cluster support disabled",
                NodeFailure::NO_CLUSTER,
            ),
            (
                "-ERR max number of clients reached",
                NodeFailure::Busy {
                    reason: TOO_MANY_CLIENTS.into(),
                },
            ),
            (
                "-DENIED Redis is running in protected mode because protected mode is enabled and \
                 no password is set.",
                NodeFailure::access(PROTECTED_MODE),
            ),
            (
                "-ERR Error running script (call to f_1): @user_script:44: @user_script: 44: -OOM \
                 command not allowed",
                NodeFailure::WritesRefused {
                    reason: OUT_OF_MEMORY.into(),
                },
            ),
        ] {
            assert_eq!(sort(line), Some(failure), "{line}");
        }
        assert_eq!(sort("-NOSCRIPT No matching script."), None);
    }

    #[test]
    fn g6_refused_writes_are_found_by_code_and_not_by_text() {
        for line in [
            "-MISCONF Errors writing to the AOF file",
            "-NOREPLICAS Not enough good replicas to write.",
        ] {
            assert!(
                matches!(sort(line), Some(NodeFailure::WritesRefused { .. })),
                "{line}"
            );
        }
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        assert_eq!(
            sort(wrong_type),
            Some(NodeFailure::KeyInUse {
                name: None,
                what: NodeFailure::ANOTHER_TYPE
            })
        );
        for line in [
            "-ERR READONLY is a word",
            "-DENIED for another reason",
            "-X in @user_script: OOM",
        ] {
            assert!(
                matches!(sort(line), Some(NodeFailure::Refused { .. })),
                "{line}"
            );
        }
    }

    #[test]
    fn a_refused_login_shows_reasons_other_than_the_password() {
        let login = |line: &str| match redis::parse_redis_value(format!("{line}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => of_login(&error),
            other => panic!("{other:?}"),
        };
        for (line, failure) in [
            ("-LOADING it is", NodeFailure::Loading),
            (
                "-BUSY it is",
                NodeFailure::Busy {
                    reason: LONG_SCRIPT.into(),
                },
            ),
            (
                "-NOAUTH HELLO must be called with the client already authenticated",
                NodeFailure::NO_PASSWORD,
            ),
            (
                "-ERR max number of clients reached",
                NodeFailure::Busy {
                    reason: TOO_MANY_CLIENTS.into(),
                },
            ),
            (
                "-DENIED running in protected mode",
                NodeFailure::access(PROTECTED_MODE),
            ),
            (
                "-NOPERM ann has no permissions",
                not_permitted("HELLO or AUTH"),
            ),
            ("-ERR anything else", NodeFailure::WRONG_PASSWORD),
        ] {
            assert_eq!(login(line), failure, "{line}");
        }
    }

    #[test]
    fn a_command_of_a_script_denied_by_acl_is_not_permitted() {
        for line in [
            "-NOPERM User locks has no permissions to run the 'eval' command",
            "-ERR The user executing the script can't run this command or subcommand script: 89, \
             on @user_script:1.",
            "-ERR Error running script (call to f_3): @user_script:1: @user_script: 1: The user \
             executing the script can't access at least one of the keys mentioned in the command \
             arguments",
            "-ERR ACL failure in script: User locks has no permissions to run the 'set' command \
             script: on @user_script:1.",
        ] {
            assert!(
                matches!(sort(line), Some(NodeFailure::Access { .. })),
                "{line}"
            );
        }
    }

    #[test]
    fn the_line_of_a_script_error_names_the_refused_command() {
        for (script, command) in [
            (Script::Extend, "PTTL"),
            (Script::ExtendShared, "ZSCORE"),
            (Script::SyncRecord, "GET"),
        ] {
            let source = script.source();
            let call = format!("redis.call(\"{command}\"");
            let line = 1 + source.lines().position(|it| it.contains(&call)).unwrap();
            let (hash, name) = (script.hash(), format!("'{}': ", command.to_lowercase()));
            for error in [
                format!(
                    "-ERR The user executing the script can't run this command or subcommand \
                     script: {hash}, on @user_script:{line}."
                ),
                format!(
                    "-ERR Error running script (call to f_{hash}): @user_script:{line}: \
                     @user_script: {line}: The user executing the script can't run this command or \
                     subcommand"
                ),
                format!(
                    "-ERR Unknown Redis command called from script script: {hash}, on \
                     @user_script:{line}."
                ),
            ] {
                let failure = sort(&error).unwrap().to_string();
                assert!(failure.contains(&name), "{failure}");
            }
        }
        for (hash, line) in [
            (Script::Extend.hash(), "0"),
            (Script::Extend.hash(), "x"),
            ("f00", "1"),
        ] {
            let error = format!(
                "-ERR The user executing the script can't x script: {hash}, on @user_script:{line}."
            );
            let failure = sort(&error).unwrap().to_string();
            assert!(failure.starts_with("not permitted: ERR"), "{failure}");
        }
    }

    #[test]
    fn texts_of_a_server_are_cut_and_escaped() {
        let text = shown(&format!("a\u{1b}[31m\n{}", "x".repeat(1_000)));
        assert!(text.starts_with("a\\u{1b}[31m\\nx") && text.chars().count() < 200);
    }

    #[test]
    fn of_long_hex_numbers_only_the_beginning_is_shown() {
        for (text, expected) in [
            ("`0123456789abcdef0123456789abcdef` `x`", "`01234567..` `x`"),
            ("0123456789ABCDEF", "01234567.."),
            ("12345678", "12345678"),
            ("123456789", "12345678.."),
            ("a1b2c3d4-a1b2c3d4", "a1b2c3d4-a1b2c3d4"),
            ("Error 7.0.15", "Error 7.0.15"),
        ] {
            assert_eq!(shown(text), expected);
        }
        let end_of_what_is_shown = format!("{}{}", "x".repeat(SHOWN - 12), "f".repeat(32));
        assert_eq!(
            shown(&end_of_what_is_shown),
            format!("{}ffffffff..…", "x".repeat(SHOWN - 12))
        );
    }

    #[test]
    fn a_holder_label_is_shown_short_escaped_and_without_a_token() {
        let shown = |label: &[u8]| shown_holder(label).map(|it| it.to_string());
        assert_eq!(shown(b""), None);
        assert_eq!(
            shown(b"web-3/4711/nightly").as_deref(),
            Some("web-3/4711/nightly")
        );
        assert_eq!(
            shown(b"3f2a9c4b1d2e/1").as_deref(),
            Some("3f2a9c4b1d2e/1"),
            "a container"
        );
        assert_eq!(
            shown(b"0123456789abcdef0123456789abcdef/1").as_deref(),
            Some("0123456789abcdef../1")
        );
        assert_eq!(
            shown(b"a\x1b[2J\r\n\xff").as_deref(),
            Some("a\\u{1b}[2J\\r\\n\u{fffd}")
        );
        assert_eq!(shown(&[b'x'; 5_000]), Some("x".repeat(63) + "…"));
    }

    proptest! {
        #[test]
        fn g6_server_texts_become_one_short_line_without_control_characters(text: String) {
            let shown = shown(&text);
            // Each character is escaped to ten at most.
            prop_assert!(shown.chars().count() <= 10 * SHOWN + 1);
            let harmful = |it: char| it.is_control() || matches!(it, '\u{2028}'..='\u{202e}');
            prop_assert!(!shown.contains(harmful), "{shown:?}");
        }

        #[test]
        fn g6_login_failures_repeat_no_text_of_the_server(code in "[A-Z]{1,12}", text in "[ -~]{0,60}") {
            // As it answers who does not know the command, or the password.
            let line = format!("-{code} {text} 'zoe' 'hunter2'\r\n");
            let Ok(redis::Value::ServerError(error)) = redis::parse_redis_value(line.as_bytes()) else { panic!() };
            let failure = of_login(&error);
            let said = format!("{failure} {failure:?}");
            prop_assert!(!said.contains("zoe") && !said.contains("hunter2"), "{}", said);
        }
    }
}
