//! Grants that count once replicas have them.

use super::*;
use crate::wire::address::WaitFor;

const ONE: WaitFor = WaitFor { replicas: 1, millis: 50 };
const WAIT: &[u8] = b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$2\r\n50\r\n";

fn asked(kinds: &[Script]) -> (Conn<Tag>, Vec<u8>) {
    let mut conn = Conn::that_waits(ONE);
    for (id, kind) in (0..).zip(kinds) {
        conn.enqueue(script(*kind, id), Now::read());
    }
    let bytes = write_all(&mut conn);
    (conn, bytes)
}

/// What comes of these replies, however they are cut.
fn comes(kinds: &[Script], replies: &[u8]) -> Vec<String> {
    let mut all: Vec<_> = (0..=replies.len())
        .map(|cut| {
            let mut conn = asked(kinds).0;
            read(&mut conn, &replies[..cut]);
            let mut found = events(&mut conn);
            read(&mut conn, &replies[cut..]);
            found.extend(events(&mut conn));
            assert_eq!((conn.batches(), conn.in_flight(), conn.oldest()), (0, 0, None));
            found
        })
        .collect();
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn one_wait_is_behind_each_batch_that_can_grant_something_and_none_behind_others() {
    for (kinds, waits) in [
        (&[Script::Acquire, Script::Release][..], true),
        (&[Script::Release, Script::Raise], true),
        (&[Script::Extend], true),
        (&[Script::Release, Script::Release], false),
    ] {
        let (mut conn, bytes) = asked(kinds);
        assert_eq!(bytes.ends_with(WAIT), waits, "{kinds:?}");
        assert_eq!(bytes.windows(WAIT.len()).filter(|it| *it == WAIT).count(), usize::from(waits));
        assert_eq!((conn.batches(), conn.poll_write().is_empty()), (1, true));
        conn.enqueue(script(Script::Release, 9), Now::read());
        assert!(!write_all(&mut conn).ends_with(WAIT), "the batch after it");
    }
}

#[test]
fn grants_count_once_enough_replicas_have_them_and_refusals_at_once() {
    let kinds = [Script::Acquire, Script::Release, Script::Extend];
    let replies = b":2000007\r\n:1\r\n:2000008\r\n";
    let (mut conn, _) = asked(&kinds);
    read(&mut conn, replies);
    let found = events(&mut conn);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("1 "), "the release: {found:?}");
    assert_eq!((conn.in_flight(), conn.batches(), conn.oldest().is_some()), (2, 1, true));

    let enough = comes(&kinds, &[&replies[..], b":1\r\n"].concat());
    assert!(enough[1].contains("Accepted") && enough[2].contains("Extended"), "{enough:?}");
    let too_few = comes(&kinds, &[&replies[..], b":0\r\n"].concat());
    for (found, id) in too_few[1..].iter().zip([0, 2]) {
        assert!(found.starts_with(&format!("{id} ")), "{found}");
        assert!(found.contains("NotReplicated { acknowledged: 0, needed: 1 }"), "{found}");
    }
    let forbidden = comes(&kinds, &[&replies[..], b"-NOPERM no\r\n"].concat());
    assert!(forbidden[1].contains("NoPermission"), "{forbidden:?}");
}

#[test]
fn a_connection_that_ends_before_the_replicas_have_answered_leaves_its_grants_unanswered_and_in_order() {
    let (mut conn, _) = asked(&[Script::Acquire, Script::Extend]);
    conn.enqueue(script(Script::Release, 2), Now::read());
    read(&mut conn, b":2000007\r\n:2000008\r\n");
    assert!(events(&mut conn).is_empty());
    assert_eq!(conn.close().map(|it| it.id).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_notice_may_come_before_the_replicas_have_answered() {
    let notice = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\nkey\r\n";
    let found = comes(&[Script::Acquire], &[&b":2000007\r\n"[..], notice, b":1\r\n"].concat());
    assert!(found[0].starts_with("Released") && found[1].contains("Accepted"), "{found:?}");
}
