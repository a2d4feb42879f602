//! Replies into values.
//!
//! The parser of the `redis` crate takes ten microseconds for a reply that it reads for the first time in a program, and a
//! program that locks once reads each for the first time. So what servers ordinarily say is read here; it reads the rest,
//! errors above all.

use redis::{PushKind, Value, VerbatimFormat};

/// Reads one reply; `None` if it cannot be read.
pub(crate) fn read(frame: &[u8]) -> Option<Value> {
    match value(frame) {
        Some((value, [])) => Some(value),
        _ => redis::parse_redis_value(frame).ok(),
    }
}

/// The value at the start of `bytes`, and what is behind it; `None` for what is not read here.
fn value(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let (sign, bytes) = bytes.split_first()?;
    let (line, rest) = bytes.split_at_checked(bytes.iter().position(|it| *it == b'\r')?)?;
    let (line, rest) = (std::str::from_utf8(line).ok()?, rest.strip_prefix(b"\r\n")?);
    match sign {
        b':' => Some((Value::Int(line.parse().ok()?), rest)),
        b'$' | b'=' => {
            let (text, rest) = rest.split_at_checked(line.parse().ok()?)?;
            let value = if *sign == b'$' {
                Value::BulkString(text.to_vec())
            } else {
                verbatim(text)?
            };
            Some((value, rest.strip_prefix(b"\r\n")?))
        }
        b'*' => members(line, rest).map(|(data, rest)| (Value::Array(data), rest)),
        b'>' => {
            let (mut data, rest) = members(line, rest)?;
            let kind = match data.first()? {
                Value::BulkString(kind) if kind == b"message" => PushKind::Message,
                Value::BulkString(kind) if kind == b"subscribe" => PushKind::Subscribe,
                _ => return None,
            };
            data.remove(0);
            Some((Value::Push { kind, data }, rest))
        }
        b'%' => {
            let pairs: usize = line.parse().ok()?;
            let (data, rest) = members(&pairs.checked_mul(2)?.to_string(), rest)?;
            let mut data = data.into_iter();
            let pairs = std::iter::from_fn(|| Some((data.next()?, data.next()?)));
            Some((Value::Map(pairs.collect()), rest))
        }
        _ => None,
    }
}

fn verbatim(text: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(text.strip_prefix(b"txt:")?).ok()?;
    Some(Value::VerbatimString {
        format: VerbatimFormat::Text,
        text: text.to_owned(),
    })
}

fn members<'a>(count: &str, mut bytes: &'a [u8]) -> Option<(Vec<Value>, &'a [u8])> {
    let mut members = Vec::new();
    for _ in 0..count.parse::<usize>().ok()? {
        let (member, rest) = value(bytes)?;
        members.push(member);
        bytes = rest;
    }
    Some((members, bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::frame::reply_len;

    fn assert_same(frame: &[u8]) {
        assert_eq!(
            read(frame),
            redis::parse_redis_value(frame).ok(),
            "{}",
            frame.escape_ascii()
        );
    }

    #[test]
    fn what_servers_ordinarily_say_is_read_here_and_as_the_redis_crate_reads_it() {
        let said: [&[u8]; 9] = [
            b":1\r\n",
            b":-12\r\n",
            b"$0\r\n\r\n",
            b"$5\r\na\r\nb\xff\r\n",
            b"=7\r\ntxt:a\r\n\r\n",
            b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
            b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n",
            b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$3\r\nkey\r\n",
        ];
        for frame in said {
            assert!(
                value(frame).is_some_and(|(_, rest)| rest.is_empty()),
                "{}",
                frame.escape_ascii()
            );
            assert_same(frame);
        }
    }

    #[test]
    fn what_servers_seldom_say_is_read_as_well() {
        let said: [&[u8]; 13] = [
            b"+OK\r\n",
            b"+PONG\r\n",
            b"-NOSCRIPT No matching script.\r\n",
            b"!7\r\nERR a\r\n\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"_\r\n",
            b"*2\r\n:1\r\n+OK\r\n",
            b"=5\r\nmkd:a\r\n",
            b"=5\r\ntxt:\xff\r\n",
            b">2\r\n+invalidate\r\n*0\r\n",
            b">0\r\n",
            b">2\r\n$10\r\ninvalidate\r\n*0\r\n",
        ];
        for frame in said {
            assert!(value(frame).is_none(), "{}", frame.escape_ascii());
            assert_same(frame);
        }
        for nonsense in [
            &b""[..],
            b":\r\n",
            b":1",
            b":1\r",
            b"$3\r\nab\r\n",
            b"$1\r\nabc",
            b"*1\r\n",
            b"%1\r\n:1\r\n",
        ] {
            assert_eq!(read(nonsense), None, "{}", nonsense.escape_ascii());
        }
    }

    /// A reply, and parts of replies, perhaps with a few bytes that are others.
    fn said() -> impl Strategy<Value = Vec<u8>> {
        let word = prop::sample::select(vec![
            "message",
            "subscribe",
            "txt:a",
            "mkd:a",
            "key",
            "",
            "\r\n",
            "1",
            "-1",
            "+2",
        ]);
        let leaf = (prop::sample::select(b"+-:$=!_#,(".to_vec()), word).prop_map(|(sign, word)| {
            let text = match sign {
                b'$' | b'=' | b'!' => format!("{}\r\n{word}\r\n", word.len()),
                _ => format!("{word}\r\n"),
            };
            [&[sign], text.as_bytes()].concat()
        });
        let reply = leaf.prop_recursive(3, 12, 4, |inner| {
            (
                prop::sample::select(b"*>%~".to_vec()),
                prop::collection::vec(inner, 0..5),
            )
                .prop_map(|(sign, mut members)| {
                    let mut count = members.len();
                    if sign == b'%' {
                        members.truncate(count & !1);
                        count /= 2;
                    }
                    [
                        format!("{}{count}\r\n", char::from(sign)).into_bytes(),
                        members.concat(),
                    ]
                    .concat()
                })
        });
        (
            reply,
            prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        )
            .prop_map(|(mut reply, others)| {
                others
                    .iter()
                    .for_each(|(at, byte)| *at.get_mut(&mut reply) = *byte);
                reply
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_reply_reads_as_the_redis_crate_reads_it(said in said()) {
            if reply_len(&said) == Ok(Some(said.len())) {
                assert_same(&said);
            }
        }
    }
}
