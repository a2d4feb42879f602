//! A check does what locks do: it and locks agree, and it leaves nothing.

use std::thread;

use devnodes::{Server, eventually};
use quorlock::LockManager;

use crate::support::*;

#[test]
fn b11_a_check_and_locks_agree_on_a_server_without_a_command_and_at_once() -> TestResult {
    needs!(Settings);
    for command in [
        "EVALSHA",
        "EVAL",
        "INFO",
        "ROLE",
        "GET",
        "MGET",
        "SET",
        "DEL",
        "EXISTS",
        "PEXPIRE",
        "PTTL",
        "TIME",
        "ZADD",
        "ZPOPMIN",
        "ZREM",
        "PUBLISH",
        "SUBSCRIBE",
        "PUBSUB",
        "ZSCORE",
        "ZRANGE",
    ] {
        let server = without(Server::builder(), command).start()?;
        // Longer than the test waits.
        let locks = builder([server.url()]).outage_timeout(LONG).build()?;
        let row = locks.check_nodes().remove(0);
        let said = join(thread::spawn(move || {
            let guard = locks.mutex("report").lock()?;
            let extended = guard.extend(secs(1_000)).map(drop);
            Ok::<_, quorlock::AcquireError>((extended, guard.release().map(drop)))
        }));
        let works = matches!(said, Ok((Ok(()), Ok(()))));

        assert_eq!(row.failure.is_none(), works, "{command}: {row}, {said:?}");
        // Waiting calls poll without the others.
        let is_unneeded =
            works && ["ROLE", "ZPOPMIN", "PUBLISH", "SUBSCRIBE", "PUBSUB"].contains(&command);
        let names = |text: String| text.to_uppercase().contains(command);
        assert!(names(row.to_string()) || is_unneeded, "{command}: {row}");
        assert!(works || names(format!("{said:?}")), "{command}: {said:?}");
    }
    Ok(())
}

#[test]
fn b11_concurrent_checks_leave_no_key_and_change_no_record() -> TestResult {
    let server = Server::start()?;
    let locks = connected(builder([server.url()]), 1);
    let guard = lock_in_the_end(&locks, "report");
    let stored = || {
        let keys = server.command(&["KEYS", "*"]).unwrap();
        let mut keys = crate::waiting::lists::strings(&keys);
        keys.sort();
        let values: Vec<_> = keys.iter().map(|it| server.get(it)).collect();
        (keys, values)
    };
    let before = stored();
    let check = |locks: LockManager| {
        for _ in 0..20 {
            let row = locks.check_nodes().remove(0);
            assert!(row.is_fine(), "{row}");
        }
    };
    let managers = repeat(4, || builder([server.url()]).build().unwrap());
    let threads: Vec<_> = managers
        .into_iter()
        .map(|it| thread::spawn(move || check(it)))
        .collect();
    threads.into_iter().for_each(|it| join(it));

    eventually("what they set has expired", || stored() == before);
    assert_eq!(locks.stats().notices, 0);
    assert!(guard.is_valid());
    Ok(())
}
