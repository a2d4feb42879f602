//! Names and ttls: any bytes, most durations, and clear errors for the rest.

use std::time::Duration;

use devnodes::Servers;
use quorlock::error::BuildProblem;
use quorlock::{AcquireError, ExtendError};

use crate::support::*;

const NAME_MAX: usize = 64 * 1024;

#[test]
fn any_bytes_are_a_name_and_the_key_is_exactly_the_name() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));
    let longest = vec![b'x'; NAME_MAX];
    let names: [&[u8]; 12] = [
        b"report",
        b"",
        b" ",
        b"\0",
        b"\xff\xfe\x80",
        b"a\r\nDEL b\r\n",
        b"{report}",
        b"a}b{c",
        b"{",
        "\u{fc}n\u{ef}c\u{f6}de".as_bytes(),
        b"quorlock",
        &longest,
    ];

    for name in names {
        let guard = first.mutex(name).try_lock()?;
        assert!(2 <= servers.holders(name), "{}", name.escape_ascii());
        assert_held(&second.mutex(name).try_lock().unwrap_err());
        guard.release()?;
        servers.wait_until_free(name)?;
        let before = second.mutex(name).try_lock()?.fencing_token();
        assert!(before < first.mutex(name).try_lock()?.fencing_token());
    }
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_prefix_is_part_of_the_key() -> TestResult {
    let servers = Servers::start(3)?;
    let prefixed = builder(servers.urls()).prefix("app:").build()?;
    let plain = manager(&servers);

    let guard = prefixed.mutex("report").try_lock()?;

    assert!(2 <= servers.holders("app:report"));
    assert_eq!(servers.holders("report"), 0);
    assert_eq!(prefixed.mutex("report").name(), b"report");
    assert_held(&plain.mutex("app:report").try_lock().unwrap_err());
    drop(plain.mutex("report").try_lock()?);
    // A reserved name, and no reserved key.
    drop(prefixed.mutex("quorlock:fence:a").try_lock()?);
    drop(guard);
    servers.wait_until_free("app:report")?;
    Ok(())
}

#[test]
fn a12_a_ttl_that_cannot_work_is_refused_without_asking_a_node() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = manager(&servers);
    let bad = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(999),
        ms(99),
        secs(3601),
        secs(60 * 60 * 24 * 365 * 500),
        Duration::MAX,
    ];

    let is_bad = |it: &AcquireError| {
        matches!(
            it,
            AcquireError::BadTtl(BuildProblem::BadOption { option: "ttl", .. })
        )
    };
    for ttl in bad {
        let err = locks.mutex("report").ttl(ttl).try_lock().unwrap_err();
        assert!(is_bad(&err), "{ttl:?}: {err:?}");
    }
    // Allowed as such, but not with this response timeout.
    let err = locks.mutex("report").ttl(secs(1)).lock().unwrap_err();
    assert!(is_bad(&err), "{err:?}");
    assert_eq!(locks.stats().commands, 0);

    let guard = locks.mutex("report").try_lock()?;
    for ttl in bad {
        assert_matches!(guard.extend(ttl), Err(ExtendError::BadTtl(_)));
    }
    assert!(guard.is_valid());
    Ok(())
}
