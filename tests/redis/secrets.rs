//! Passwords and owner tokens are shown nowhere.

use devnodes::{Servers, eventually};
use quorlock::CancelHandle;

use crate::support::*;

#[test]
fn nothing_that_can_be_printed_shows_a_password_or_an_owner_token() -> TestResult {
    let servers = Servers::start_with(3, |it| it.password("hunter2"))?;
    let builder = builder(servers.urls()).ttl(LONG);
    let mut shown = format!("{builder:?}");
    let locks = builder.build()?;
    let report = locks.mutex("report").cancelled_by(&CancelHandle::new());
    let guard = report.lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let value = String::from_utf8(servers[0].get("report").unwrap())?;
    assert_eq!(value.len(), 32);

    let held = report.try_lock().unwrap_err();
    shown += &format!("{locks:?} {report:?} {guard:?} {held:?} {held}");
    servers[0].kill()?;
    servers[1].kill()?;
    let err = error_in_the_end(&locks, "other", |it| !it.is_held());
    shown += &format!("{err:?} {err} {:?}", locks.stats());
    let err = guard.extend(LONG).map_or_else(|it| it, |()| panic!("two nodes are down"));
    shown += &format!("{err:?} {err} {:?}", guard.lost());
    let err = guard.release().unwrap_err();
    shown += &format!("{err:?} {err}");

    assert!(shown.contains("report") && shown.contains(&servers[0].port().to_string()), "{shown}");
    for secret in ["hunter2", &value, &value[8..]] {
        assert!(!shown.contains(secret), "{shown}");
    }
    Ok(())
}

#[test]
fn a_wrong_password_is_not_repeated_whatever_the_server_says() -> TestResult {
    // As old servers do: they quote what they do not understand.
    let fake = devnodes::FakeServer::start(|conn| {
        while let Some(command) = conn.read_command() {
            let words = command.iter().map(|it| String::from_utf8_lossy(it).into_owned()).collect::<Vec<_>>();
            let reply = format!("-ERR unknown command with args beginning with: {}\r\n", words.join(" "));
            if !conn.write(reply.replace("\r\n-", " ").as_bytes()) {
                return;
            }
        }
    })?;
    let locks = builder([format!("redis://zoe:hunter2@{}", fake.addr())]).build()?;

    let err = locks.mutex("report").try_lock().unwrap_err();

    assert_no_quorum(&err);
    let shown = format!("{err} {err:?} {locks:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("zoe"), "{shown}");
    Ok(())
}
