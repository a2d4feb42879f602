//! The input buffer, and the length of the first reply in it, checked before its content.
//!
//! The `redis` crate's parser has no limit on lengths. This module checks the announced lengths
//! first, so that a broken or hostile server cannot make us hold a gigabyte, count for ever or
//! recurse until the stack ends.

use std::ops::Range;

/// The longest line: a simple string, an error, a number.
const LINE_MAX: usize = 64 * 1024;
/// The longest string. `INFO` of a busy server is about ten kilobytes.
const BULK_MAX: usize = 64 * 1024;
/// The longest array: the ranges of slots of a large cluster.
const ARRAY_MAX: usize = 1_024;
/// Real replies are two deep.
const DEPTH_MAX: usize = 4;
/// All of one reply.
const TOTAL_MAX: usize = 256 * 1024;

/// First bytes of an alert and of a handshake.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// Input that is not a complete reply yet. Belongs to one connection.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// Start of the first untaken reply.
    start: usize,
    /// End of the input.
    end: usize,
}

impl Inbox {
    const READ_SIZE: usize = 16_384;

    /// Space for the next read. Drops taken replies.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start != 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end = self.end.saturating_sub(self.start);
            self.start = 0;
        }
        if self.bytes.len() < self.end.saturating_add(Self::READ_SIZE) {
            // Bounded: a too long reply is refused by its announced length.
            self.bytes
                .resize(self.end.saturating_add(Self::READ_SIZE), 0);
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// Adds `len` bytes read into the [space](Inbox::space).
    pub(crate) fn filled(&mut self, len: usize) {
        self.end = self.end.saturating_add(len).min(self.bytes.len());
    }

    /// Untaken input.
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Takes the next complete reply; [`Inbox::get`] reads it. An error: the bytes are no Redis
    /// reply. Close the connection.
    pub(crate) fn take_reply(&mut self) -> Result<Option<Range<usize>>, String> {
        let Some(len) = reply_len(self.rest())? else {
            return Ok(None);
        };
        let end = self.start.saturating_add(len);
        Ok(Some(std::mem::replace(&mut self.start, end)..end))
    }

    /// Whether the input is an alert or handshake of TLS.
    pub(crate) fn is_of_tls(&self) -> bool {
        self.rest()
            .first()
            .is_some_and(|it| TLS_RECORDS.contains(it))
    }

    #[cfg(test)]
    pub(crate) fn unread(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether all input was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// A buffer with this input.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Inbox {
        Inbox {
            bytes: bytes.to_vec(),
            start: 0,
            end: bytes.len(),
        }
    }

    pub(crate) fn get(&self, reply: Range<usize>) -> &[u8] {
        self.bytes.get(reply).unwrap_or_default()
    }
}

/// Length of the reply at the start of `bytes`; `None` if incomplete.
pub(crate) fn reply_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    let mut scan = Scan { bytes, at: 0 };
    let complete = scan.value(0)?.is_some();
    if TOTAL_MAX < scan.at {
        return Err(format!("a reply of more than {TOTAL_MAX} bytes"));
    }
    Ok(complete.then_some(scan.at))
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// Skips one value; `None` if incomplete.
    fn value(&mut self, depth: usize) -> Result<Option<()>, String> {
        if DEPTH_MAX < depth {
            return Err(format!("a reply more than {DEPTH_MAX} levels deep"));
        }
        let Some(kind) = self.bytes.get(self.at).copied() else {
            return Ok(None);
        };
        let known = b"+-:_#,($=!*~>%|".contains(&kind);
        if !known {
            return Err(format!(
                "a reply that begins with '{}'",
                kind.escape_ascii()
            ));
        }
        self.at = self.at.saturating_add(1);
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        match kind {
            b'$' | b'=' | b'!' => self.bulk(length(line, BULK_MAX)?),
            b'*' | b'~' | b'>' => self.members(length(line, ARRAY_MAX)?, 1, depth),
            b'%' => self.members(length(line, ARRAY_MAX)?, 2, depth),
            b'|' => Err("an attribute, which was not asked for".to_owned()),
            _ => Ok(Some(())),
        }
    }

    /// The rest of the line, without its end.
    fn line(&mut self) -> Result<Option<&'a [u8]>, String> {
        let bytes: &'a [u8] = self.bytes;
        let rest = bytes.get(self.at..).unwrap_or_default();
        let searched = rest.get(..LINE_MAX.min(rest.len())).unwrap_or_default();
        match searched.windows(2).position(|it| it == b"\r\n") {
            Some(len) => {
                self.at = self.at.saturating_add(len).saturating_add(2);
                Ok(rest.get(..len))
            }
            None if rest.len() < LINE_MAX => Ok(None),
            None => Err(format!("a line of more than {LINE_MAX} bytes")),
        }
    }

    fn bulk(&mut self, len: Option<usize>) -> Result<Option<()>, String> {
        let Some(len) = len else { return Ok(Some(())) };
        let end = self.at.saturating_add(len);
        self.at = end.saturating_add(2);
        match self.bytes.get(end..self.at) {
            Some(b"\r\n") => Ok(Some(())),
            Some(_) => Err("a string that does not end where it should".to_owned()),
            None => Ok(None),
        }
    }

    fn members(
        &mut self,
        len: Option<usize>,
        each: usize,
        depth: usize,
    ) -> Result<Option<()>, String> {
        for _ in 0..len.unwrap_or(0).saturating_mul(each) {
            if self.value(depth.saturating_add(1))?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }
}

/// An announced length; `None` for -1, the null of older protocols.
fn length(line: &[u8], max: usize) -> Result<Option<usize>, String> {
    if line == b"-1" {
        return Ok(None);
    }
    let digits = std::str::from_utf8(line)
        .ok()
        .filter(|text| text.bytes().all(|it| it.is_ascii_digit()));
    match digits.and_then(|it| it.parse::<usize>().ok()) {
        Some(len) if len <= max => Ok(Some(len)),
        Some(len) => Err(format!("a length of {len}, more than {max}")),
        None => Err("a length that is not a number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REPLIES: [&[u8]; 12] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\n\r\n\r\n\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*3\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n_\r\n",
        b"%1\r\n+server\r\n$5\r\nredis\r\n",
        b">2\r\n+message\r\n=5\r\ntxt:x\r\n",
        b"#t\r\n",
    ];

    #[test]
    fn g4_every_split_of_a_reply_waits_for_its_rest() {
        for reply in REPLIES {
            for end in 0..reply.len() {
                assert_eq!(
                    reply_len(&reply[..end]),
                    Ok(None),
                    "{}",
                    reply[..end].escape_ascii()
                );
            }
            let followed = [reply, b"+NEXT\r\n"].concat();
            assert_eq!(
                reply_len(&followed),
                Ok(Some(reply.len())),
                "{}",
                reply.escape_ascii()
            );
        }
    }

    #[test]
    fn g4_lengths_counts_and_nesting_are_refused_before_the_bytes_come() {
        for bad in [
            "$1073741824\r\n".to_owned(),
            "$18446744073709551616\r\n".to_owned(),
            "$-2\r\n".to_owned(),
            "$+5\r\n".to_owned(),
            "$\r\n".to_owned(),
            "*1000000\r\n".to_owned(),
            "%99999\r\n".to_owned(),
            "*1\r\n".repeat(6),
            "|1\r\n+a\r\n+b\r\n+c\r\n".to_owned(),
            "HTTP/1.1 400 Bad Request\r\n".to_owned(),
            "\0\0\0\0".to_owned(),
            "$1\r\nabc".to_owned(),
            format!("+{}", "x".repeat(LINE_MAX)),
            format!(
                "*8\r\n{}",
                format!("${BULK_MAX}\r\n{}\r\n", "x".repeat(BULK_MAX)).repeat(8)
            ),
        ] {
            assert!(
                reply_len(bad.as_bytes()).is_err(),
                "{}",
                &bad[..20.min(bad.len())]
            );
        }
    }

    #[test]
    fn g4_the_longest_and_deepest_of_real_replies_pass() {
        // HELLO of a server with modules, one of them with arguments; ROLE of a master with
        // replicas; INFO.
        let module = "%4\r\n+name\r\n+a\r\n+ver\r\n:1\r\n+path\r\n+b\r\n+args\r\n*1\r\n+c\r\n";
        let hello = format!(
            "%7\r\n{}+modules\r\n*20\r\n{}",
            "+key\r\n+value\r\n".repeat(6),
            module.repeat(20)
        );
        let replica = "*3\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n$1\r\n0\r\n";
        let role = format!("*3\r\n$6\r\nmaster\r\n:0\r\n*40\r\n{}", replica.repeat(40));
        let info = format!("=60004\r\ntxt:{}\r\n", "x".repeat(60_000));
        // A lock with as many readers as are named.
        let reader = format!("$96\r\n{}\r\n:1\r\n", "x".repeat(96));
        let readers = format!("*209\r\n{}{}", ":1\r\n".repeat(9), reader.repeat(100));
        for reply in [hello, role, info, readers] {
            assert_eq!(reply_len(reply.as_bytes()), Ok(Some(reply.len())));
            assert!(redis::parse_redis_value(reply.as_bytes()).is_ok());
        }
    }

    #[test]
    fn g4_a_reply_may_reach_each_limit_exactly() {
        let bulk = |len: usize| format!("${len}\r\n{}\r\n", "x".repeat(len));
        let array = |len: usize| format!("*{len}\r\n{}", ":1\r\n".repeat(len));
        let map = |len: usize| format!("%{len}\r\n{}", ":1\r\n".repeat(2 * len));
        let line = |len: usize| format!("+{}\r\n", "x".repeat(len));
        let deep = |depth: usize| format!("{}:1\r\n", "*1\r\n".repeat(depth));
        // Three of the longest strings, and one that makes it so long in all.
        let total = |len: usize| {
            format!(
                "*4\r\n{}{}",
                bulk(BULK_MAX).repeat(3),
                bulk(len - 3 * bulk(BULK_MAX).len() - 14)
            )
        };
        assert_eq!(
            (total(TOTAL_MAX).len(), TOTAL_MAX, BULK_MAX, LINE_MAX),
            (262_144, 262_144, 65_536, 65_536)
        );
        for (fits, too_much) in [
            (total(TOTAL_MAX), total(TOTAL_MAX + 1)),
            (bulk(BULK_MAX), bulk(BULK_MAX + 1)),
            (array(ARRAY_MAX), array(ARRAY_MAX + 1)),
            (map(ARRAY_MAX), map(ARRAY_MAX + 1)),
            (line(LINE_MAX - 2), line(LINE_MAX + 1)),
            (deep(DEPTH_MAX), deep(DEPTH_MAX + 1)),
        ] {
            assert_eq!(reply_len(fits.as_bytes()), Ok(Some(fits.len())));
            assert!(reply_len(too_much.as_bytes()).is_err());
        }
    }

    #[test]
    fn g4_announced_sizes_are_refused_by_their_first_line_alone() {
        let numbers = [
            "65537",
            "1000000000000",
            "9223372036854775807",
            "18446744073709551615",
            "99999999999999999999",
        ];
        for number in numbers.into_iter().chain([
            "-2",
            "-9223372036854775808",
            "+1",
            "0x1",
            "1e3",
            " 1",
            "1 ",
            "",
        ]) {
            for kind in ["$", "=", "!", "*", "~", ">", "%"] {
                let line = format!("{kind}{number}\r\n");
                assert!(reply_len(line.as_bytes()).is_err(), "{}", line.trim_end());
            }
        }
    }

    /// Replies of every type, nested as deep as is allowed and a level more, with lengths that are
    /// true.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let line = "[ -~]{0,12}";
        let bytes = prop::collection::vec(any::<u8>(), 0..20);
        let leaf = prop_oneof![
            (prop::sample::select(&b"+-"[..]), line).prop_map(|(kind, it)| format!(
                "{}{it}\r\n",
                char::from(kind)
            )
            .into_bytes()),
            any::<i64>().prop_map(|it| format!(":{it}\r\n").into_bytes()),
            prop::sample::select(vec![
                "$-1\r\n",
                "*-1\r\n",
                "_\r\n",
                "#t\r\n",
                "#f\r\n",
                ",1.5\r\n",
                "(12345678901234567890\r\n"
            ])
            .prop_map(|it| it.as_bytes().to_vec()),
            (prop::sample::select(&b"$!"[..]), bytes).prop_map(|(kind, it)| [
                format!("{}{}\r\n", char::from(kind), it.len()).as_bytes(),
                &it,
                b"\r\n"
            ]
            .concat()),
        ];
        leaf.prop_recursive(5, 24, 4, |inner| {
            (
                prop::sample::select(&b"*~>%"[..]),
                prop::collection::vec(inner, 0..4),
            )
                .prop_map(|(kind, mut members)| {
                    if kind == b'%' && members.len() % 2 == 1 {
                        members.pop();
                    }
                    let count = if kind == b'%' {
                        members.len() / 2
                    } else {
                        members.len()
                    };
                    [
                        format!("{}{count}\r\n", char::from(kind)).into_bytes(),
                        members.concat(),
                    ]
                    .concat()
                })
        })
    }

    proptest! {
        #[test]
        fn g4_no_bytes_cause_a_panic(bytes: Vec<u8>) {
            let _ = reply_len(&bytes);
        }

        #[test]
        fn g4_the_end_of_a_reply_is_within_the_received_bytes(bytes in "[-+:$*#_,%>=~!0-9a-c\r\n]{0,24}") {
            if let Ok(Some(len)) = reply_len(bytes.as_bytes()) {
                prop_assert!(len <= bytes.len());
                let _ = redis::parse_redis_value(&bytes.as_bytes()[..len]);
            }
        }

        #[test]
        fn g4_replies_of_every_type_have_one_end_in_any_split(reply in reply(), behind: Vec<u8>) {
            match reply_len(&reply) {
                // Too deep: known as soon as the depth is reached, and never taken back.
                Err(why) => prop_assert!(why.contains("levels deep"), "{}", why),
                Ok(found) => {
                    prop_assert_eq!(found, Some(reply.len()));
                    prop_assert_eq!(reply_len(&[&reply[..], &behind].concat()), Ok(Some(reply.len())));
                    for end in 0..reply.len() {
                        prop_assert_eq!(reply_len(&reply[..end]), Ok(None), "{}", reply[..end].escape_ascii());
                    }
                }
            }
        }
    }
}
