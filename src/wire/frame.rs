//! Where one reply ends, found before anything of it is believed.
//!
//! The `redis` crate's parser has no limit on lengths. This looks at the announced lengths first, so that a broken or
//! hostile server cannot make us hold a gigabyte, count for ever or recurse until the stack ends.

/// The longest line: a simple string, an error, a number.
const LINE_MAX: usize = 64 * 1024;
/// The longest string. `INFO` of a busy server is about ten kilobytes.
const BULK_MAX: usize = 64 * 1024;
/// The longest array. The longest real reply has five members; pushes and `ROLE` a few more.
const ARRAY_MAX: usize = 1024;
/// Real replies are two deep.
const DEPTH_MAX: usize = 4;
/// All of one reply.
const TOTAL_MAX: usize = 256 * 1024;

/// The length of the reply at the start of `bytes`; `None` if its end has not come yet.
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
    /// Passes over one value; `None` if the bytes end before it does.
    fn value(&mut self, depth: usize) -> Result<Option<()>, String> {
        if DEPTH_MAX < depth {
            return Err(format!("a reply more than {DEPTH_MAX} levels deep"));
        }
        let Some(kind) = self.bytes.get(self.at).copied() else { return Ok(None) };
        let known = b"+-:_#,($=!*~>%|".contains(&kind);
        if !known {
            return Err(format!("a reply that begins with '{}'", kind.escape_ascii()));
        }
        self.at = self.at.saturating_add(1);
        let Some(line) = self.line()? else { return Ok(None) };
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

    fn members(&mut self, len: Option<usize>, each: usize, depth: usize) -> Result<Option<()>, String> {
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
    let digits = std::str::from_utf8(line).ok().filter(|it| it.bytes().all(|it| it.is_ascii_digit()));
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
                assert_eq!(reply_len(&reply[..end]), Ok(None), "{}", reply[..end].escape_ascii());
            }
            let followed = [reply, b"+NEXT\r\n"].concat();
            assert_eq!(reply_len(&followed), Ok(Some(reply.len())), "{}", reply.escape_ascii());
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
            format!("*8\r\n{}", format!("${BULK_MAX}\r\n{}\r\n", "x".repeat(BULK_MAX)).repeat(8)),
        ] {
            assert!(reply_len(bad.as_bytes()).is_err(), "{}", &bad[..20.min(bad.len())]);
        }
    }

    proptest! {
        #[test]
        fn g4_no_bytes_at_all_make_it_panic(bytes: Vec<u8>) {
            let _ = reply_len(&bytes);
        }

        #[test]
        fn g4_what_has_an_end_here_has_one_for_the_parser(bytes in "[-+:$*#_,%>=~!0-9a-c\r\n]{0,24}") {
            if let Ok(Some(len)) = reply_len(bytes.as_bytes()) {
                prop_assert!(len <= bytes.len());
                let _ = redis::parse_redis_value(&bytes.as_bytes()[..len]);
            }
        }
    }
}
