//! Passwords and owner tokens are shown nowhere.

use devnodes::{FakeServer, Servers, eventually};
use quorlock::CancelHandle;

use crate::support::*;

#[test]
fn no_printed_value_shows_a_password_or_an_owner_token() -> TestResult {
    needs!(Passwords);
    let servers = Servers::start_with(3, |it| it.password("hunter2"))?;
    let builder = builder(servers.urls()).ttl(LONG);
    let mut shown = format!("{builder:?}");
    let locks = builder.build()?;
    let report = locks.mutex("report").cancelled_by(&CancelHandle::new());
    let guard = report.lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let value = String::from_utf8(servers[0].get("report").unwrap())?;
    let (token, holder) = value.split_once(' ').unwrap();
    assert_eq!(token.len(), 32);

    let held = report.try_lock().unwrap_err();
    shown += &format!("{locks:?} {report:?} {guard:?} {held:?} {held}");
    servers[0].kill()?;
    servers[1].kill()?;
    let err = error_in_the_end(&locks, "other", |it| !it.is_held());
    shown += &format!("{err:?} {err} {:?}", locks.stats());
    let err = guard
        .extend(LONG)
        .map_or_else(|it| it, |()| panic!("two nodes are down"));
    shown += &format!("{err:?} {err} {:?}", guard.lost());
    let err = guard.release().unwrap_err();
    shown += &format!("{err:?} {err}");

    assert!(
        shown.contains("report") && shown.contains(&shown_address(&servers[0])),
        "{shown}"
    );
    assert!(shown.contains(&format!("held by {holder}")), "{shown}");
    for secret in ["hunter2", &token[..9], &token[8..]] {
        assert!(!shown.contains(secret), "{shown}");
    }
    Ok(())
}

#[test]
fn a_password_given_apart_from_the_urls_opens_the_nodes_and_is_shown_nowhere() -> TestResult {
    needs!(Passwords);
    let servers = Servers::start_with(3, |it| it.password("hunt/er?2#@%"))?;
    let bare: Vec<_> = servers
        .iter()
        .map(|it| format!("redis://{}", it.addr()))
        .collect();
    let builder = |urls: &[String]| builder(urls).credentials(Some("default"), "hunt/er?2#@%");
    let mut shown = format!("{:?}", builder(&bare));

    let locks = builder(&bare).build()?;
    let guard = locks.mutex("report").lock()?;
    shown += &format!("{locks:?} {guard:?}");
    drop(guard);
    assert_eq!(locks.stats().connection_failures, 0);

    // A password in a URL goes before it.
    let mut wrong = bare;
    wrong[0] = format!("redis://:hunt%2Ferror@{}", servers[0].addr());
    let locks = builder(&wrong).build()?;
    eventually("the one with the wrong password is refused", || {
        drop(locks.mutex("report").lock().unwrap());
        1 <= locks.stats().connection_failures
    });
    let checks = locks.check_nodes();
    shown += &format!("{checks:?}");
    let refused = checks[0].failure.as_ref().unwrap();
    assert!(says(refused, "login refused; "), "{checks:?}");
    let failed = checks.iter().filter(|it| it.failure.is_some());
    assert_eq!(failed.count(), 1, "{checks:?}");
    for secret in ["hunt", "default"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    Ok(())
}

/// Whether it shows the name or the password with which these tests log in.
pub(crate) fn shows_login(text: &str) -> bool {
    text.contains("hunter2") || text.contains("zoe")
}

/// A server that answers a command whose name is in the list as it says there, and everything else with OK.
pub(crate) fn answering(answers: &'static [(&'static str, &'static str)]) -> FakeServer {
    FakeServer::start(move |conn| {
        while let Some(command) = conn.read_command() {
            let answer = answers
                .iter()
                .find(|it| it.0.as_bytes() == command[0])
                .map_or("+OK", |it| it.1);
            if !conn.write(format!("{answer}\r\n").as_bytes()) {
                return;
            }
        }
    })
    .unwrap()
}

/// Servers that repeat what they were sent to log in with, in every form that an answer has.
pub(crate) const ECHOES: [&[(&str, &str)]; 9] = [
    &[(
        "HELLO",
        "-WRONGPASS invalid username-password pair: zoe hunter2",
    )],
    &[(
        "HELLO",
        "-NOPERM User zoe has no permissions to run 'hello', password hunter2",
    )],
    &[
        (
            "HELLO",
            "-ERR unknown command `HELLO`, with args beginning with: `3` `AUTH` `zoe` `hunter2`",
        ),
        (
            "AUTH",
            "-ERR wrong number of arguments for AUTH zoe hunter2",
        ),
    ],
    &[
        ("HELLO", "-NOPROTO zoe hunter2"),
        (
            "AUTH",
            "-ERR AUTH <zoe> <hunter2> called without any password configured",
        ),
    ],
    &[("HELLO", "-LOADING zoe hunter2")],
    &[("HELLO", "-ERR max number of clients reached zoe hunter2")],
    &[("HELLO", "-ZOE hunter2 zoe")],
    &[("HELLO", "+zoe hunter2"), ("INFO", "+zoe hunter2")],
    &[("HELLO", "hunter2 zoe is no reply at all")],
];
