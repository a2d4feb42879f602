//! The commands of a server: those of scripts, those of connections, and a few by which a test
//! looks and sets.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds as _};

use crate::store::keyspace::{Keyspace, WrongType};
use crate::store::reply::Reply;

/// A message that a client published.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    pub channel: Vec<u8>,
    pub message: Vec<u8>,
}

/// What a server keeps, and what a command sees of it.
#[derive(Default)]
pub(super) struct Data {
    pub(super) keys: Keyspace,
    pub(super) run_id: String,
    /// Microseconds since 1970. It stands still while a script runs.
    pub(super) now: i64,
    /// When the process began: milliseconds since 1970.
    pub(super) began: Option<i64>,
    /// How many connections are subscribed to each channel.
    pub(super) listeners: BTreeMap<Vec<u8>, usize>,
    pub(super) notices: Vec<Notice>,
    /// How often each command was run, by clients and by scripts.
    pub(super) calls: BTreeMap<Vec<u8>, u64>,
}

/// An error, with its code.
pub(super) struct Refused(pub(super) String);

type Outcome = Result<Reply, Refused>;

impl From<WrongType> for Refused {
    fn from(_: WrongType) -> Refused {
        Refused("WRONGTYPE Operation against a key holding the wrong kind of value".to_owned())
    }
}

impl Data {
    /// Runs a command: its name and arguments.
    pub(super) fn execute<T: AsRef<[u8]>>(&mut self, command: &[T]) -> Reply {
        let Some((name, args)) = command.split_first() else {
            return Reply::Error("ERR no command".to_owned());
        };
        let name = self.count(name.as_ref());
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        self.run(&name, &args)
            .unwrap_or_else(|Refused(text)| Reply::Error(text))
    }

    /// Counts a call of a command. Its name in capitals.
    pub(super) fn count(&mut self, name: &[u8]) -> Vec<u8> {
        let name = name.to_ascii_uppercase();
        match self.calls.get_mut(&name) {
            Some(calls) => *calls += 1,
            None => drop(self.calls.insert(name.clone(), 1)),
        }
        name
    }

    fn run(&mut self, name: &[u8], args: &[&[u8]]) -> Outcome {
        let keys = &mut self.keys;
        Ok(match (name, args) {
            (b"PING", []) => Reply::Status("PONG".to_owned()),
            (b"TIME", []) => Reply::bulks(
                [self.now / 1_000_000, self.now % 1_000_000].map(|part| part.to_string()),
            ),
            (b"GET", [key]) => Reply::or_nil(keys.text(key)?),
            (b"MGET", [_, ..]) => Reply::Array(
                args.iter()
                    .map(|key| Reply::or_nil(keys.text(key).ok().flatten()))
                    .collect(),
            ),
            (b"SET", [key, value, options @ ..]) => set(keys, key, value, options)?,
            (b"DEL", [_, ..]) => Reply::count(args.iter().filter(|key| keys.del(key)).count()),
            (b"EXISTS", [_, ..]) => {
                Reply::count(args.iter().filter(|key| keys.exists(key)).count())
            }
            (b"PTTL", [key]) => Reply::Int(keys.left(key)),
            (b"PEXPIRE", [key, life]) => {
                let life = integer(life)?;
                let ends = keys.after(life).ok_or_else(|| no_expiry("pexpire"))?;
                Reply::Int(i64::from(if life > 0 {
                    keys.expire(key, ends)
                } else {
                    keys.del(key)
                }))
            }
            (b"TYPE", [key]) => Reply::Status(keys.kind(key).to_owned()),
            (b"ZADD", [key, rest @ ..]) if rest.len() >= 2 => add(keys, key, rest)?,
            (b"ZREM", [key, members @ ..]) if !members.is_empty() => {
                Reply::count(keys.retain(key, |member, _| !members.contains(&member))?)
            }
            (b"ZPOPMIN", [key]) => {
                let popped = shown(keys.ranked(key)?.into_iter().take(1), true);
                if let Some(first) = keys.ranked(key)?.first().map(|it| it.0.to_vec()) {
                    keys.retain(key, |member, _| *member != first[..])?;
                }
                popped
            }
            (b"ZCARD", [key]) => Reply::count(keys.sorted(key)?.len()),
            (b"ZSCORE", [key, member]) => Reply::or_nil(
                keys.sorted(key)?
                    .get(*member)
                    .map(|score| score.to_string().into_bytes()),
            ),
            (b"ZCOUNT", [key, min, max]) => {
                let range = scores(min, max)?;
                Reply::count(
                    keys.sorted(key)?
                        .values()
                        .filter(|score| range.contains(score))
                        .count(),
                )
            }
            (b"ZREMRANGEBYSCORE", [key, min, max]) => {
                let range = scores(min, max)?;
                Reply::count(keys.retain(key, |_, score| !range.contains(&score))?)
            }
            (b"ZRANGE", [key, first, last, options @ ..]) => {
                let (first, last, with_scores) =
                    (integer(first)?, integer(last)?, is_with_scores(options)?);
                let members = keys.ranked(key)?;
                let (first, end) = (
                    place(first, members.len()),
                    place(last.saturating_add(1), members.len()),
                );
                // The last place of all is -1: there is none behind it.
                let end = if last == -1 { members.len() } else { end };
                shown(members.into_iter().take(end).skip(first), with_scores)
            }
            (b"ZRANGEBYSCORE", [key, min, max, options @ ..]) => {
                let range = scores(min, max)?;
                let (options, offset, count) = match options {
                    [options @ .., word, offset, count] if word.eq_ignore_ascii_case(b"limit") => {
                        (options, integer(offset)?, integer(count)?)
                    }
                    options => (options, 0, -1),
                };
                let with_scores = is_with_scores(options)?;
                let members = keys
                    .ranked(key)?
                    .into_iter()
                    .filter(|(_, score)| range.contains(score));
                // A negative count is no limit, and nothing stands at a negative offset.
                let count = if offset < 0 {
                    0
                } else {
                    usize::try_from(count).unwrap_or(usize::MAX)
                };
                shown(members.skip(size(offset)).take(count), with_scores)
            }
            (b"SCAN", [cursor, options @ ..]) => scan(keys, cursor, options)?,
            (b"KEYS", [pattern]) => {
                let prefix = prefix(pattern)?;
                Reply::bulks(
                    keys.iter()
                        .map(|(key, _)| key)
                        .filter(|key| key.starts_with(prefix)),
                )
            }
            (b"DBSIZE", []) => Reply::count(keys.iter().count()),
            (b"FLUSHALL", _) => {
                keys.clear();
                Reply::ok()
            }
            (b"HSET", [key, field, _]) => Reply::Int(i64::from(keys.put(key, "hash", field)?)),
            (b"SADD", [key, member]) => Reply::Int(i64::from(keys.put(key, "set", member)?)),
            (b"LPUSH", [key, element]) if !keys.exists(key) => {
                Reply::Int(i64::from(keys.put(key, "list", element)?))
            }
            (b"PUBLISH", [channel, message]) => {
                self.notices.push(Notice {
                    channel: channel.to_vec(),
                    message: message.to_vec(),
                });
                Reply::count(self.listeners(channel))
            }
            (b"PUBSUB", [word, channels @ ..]) if word.eq_ignore_ascii_case(b"numsub") => {
                let counts = channels
                    .iter()
                    .map(|it| [Reply::bulk(it), Reply::count(self.listeners(it))]);
                Reply::Array(counts.flatten().collect())
            }
            (b"PUBSUB", [word, pattern]) if word.eq_ignore_ascii_case(b"channels") => {
                let prefix = prefix(pattern)?;
                Reply::bulks(
                    self.listeners
                        .keys()
                        .filter(|channel| channel.starts_with(prefix)),
                )
            }
            (b"INFO", _) => Reply::bulk(self.info()),
            (b"ROLE", []) => Reply::Array(vec![
                Reply::bulk("master"),
                Reply::Int(0),
                Reply::Array(Vec::new()),
            ]),
            (b"AUTH" | b"CLIENT" | b"SELECT", _) => Reply::ok(),
            _ if KNOWN.contains(&name) => {
                let name = name.escape_ascii().to_string().to_lowercase();
                return Err(Refused(format!(
                    "{}, or a form of it that stand-ins do not have",
                    wrong_number(&name)
                )));
            }
            _ => {
                return Err(Refused(format!(
                    "ERR unknown command '{}': this is a stand-in",
                    name.escape_ascii()
                )));
            }
        })
    }

    fn listeners(&self, channel: &[u8]) -> usize {
        self.listeners.get(channel).copied().unwrap_or_default()
    }

    /// All sections at once: clients look for the lines that they need.
    fn info(&self) -> String {
        let now = self.now / 1000;
        let uptime = self.began.map_or(0, |began| (now - began).max(0)) / 1000;
        let calls = self.calls.iter().map(|(name, calls)| {
            format!(
                "cmdstat_{}:calls={calls},usec=0\r\n",
                String::from_utf8_lossy(name).to_lowercase()
            )
        });
        let fields = format!(
            "# \
             Server\r\nredis_version:7.4.0\r\nredis_mode:standalone\r\nrun_id:{}\r\n\
             server_time_usec:{}\r\n\
             uptime_in_seconds:{uptime}\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
             aof_enabled:0\r\nrole:master\r\nconnected_slaves:0\r\n",
            self.run_id, self.now
        );
        fields + &calls.collect::<String>()
    }
}

/// Commands with arguments.
const KNOWN: [&[u8]; 26] = [
    b"PING",
    b"TIME",
    b"GET",
    b"MGET",
    b"SET",
    b"DEL",
    b"EXISTS",
    b"PTTL",
    b"PEXPIRE",
    b"TYPE",
    b"ZADD",
    b"ZREM",
    b"ZPOPMIN",
    b"ZCARD",
    b"ZSCORE",
    b"ZCOUNT",
    b"ZREMRANGEBYSCORE",
    b"ZRANGE",
    b"ZRANGEBYSCORE",
    b"SCAN",
    b"KEYS",
    b"HSET",
    b"SADD",
    b"LPUSH",
    b"PUBLISH",
    b"PUBSUB",
];

/// With `NX` or `XX`, `GET`, `PX` and milliseconds or `KEEPTTL`, in any order.
fn set(keys: &mut Keyspace, key: &[u8], value: &[u8], options: &[&[u8]]) -> Outcome {
    let (mut only, mut gets, mut ends) = (None, false, None);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"NX" if only != Some(true) => only = Some(false),
            b"XX" if only != Some(false) => only = Some(true),
            b"GET" => gets = true,
            b"KEEPTTL" => ends = keys.ends(key),
            b"PX" => {
                let life = integer(options.next().ok_or_else(syntax)?)?;
                ends = Some(
                    keys.after(life)
                        .filter(|_| life > 0)
                        .ok_or_else(|| no_expiry("set"))?,
                );
            }
            _ => return Err(syntax()),
        }
    }
    let is_allowed = only.is_none_or(|only| only == keys.exists(key));
    let before = if gets { keys.text(key)? } else { None };
    if is_allowed {
        keys.set(key, value, ends);
    }
    Ok(match (gets, is_allowed) {
        (true, _) => Reply::or_nil(before),
        (false, true) => Reply::ok(),
        (false, false) => Reply::Nil,
    })
}

/// With `NX` or `XX`, and pairs of a score and a member.
fn add(keys: &mut Keyspace, key: &[u8], args: &[&[u8]]) -> Outcome {
    let (only, is_greater, args) = match args {
        [word, rest @ ..] if word.eq_ignore_ascii_case(b"nx") => (Some(false), false, rest),
        [word, rest @ ..] if word.eq_ignore_ascii_case(b"xx") => (Some(true), false, rest),
        [word, rest @ ..] if word.eq_ignore_ascii_case(b"gt") => (None, true, rest),
        args => (None, false, args),
    };
    let (pairs, []) = args.as_chunks::<2>() else {
        return Err(syntax());
    };
    if pairs.is_empty() {
        return Err(syntax());
    }
    let pairs = pairs
        .iter()
        .map(|[score, member]| Ok((float(score)?, *member)))
        .collect::<Result<Vec<_>, Refused>>()?;
    let mut added = 0;
    for (score, member) in pairs {
        let before = keys.sorted(key)?.get(member).copied();
        let is_larger = before.is_none_or(|it| it < score);
        if only.is_none_or(|only| only == before.is_some()) && (is_larger || !is_greater) {
            added += usize::from(keys.add(key, score, member)?);
        }
    }
    Ok(Reply::count(added))
}

/// Servers go through their keys in an order of their own. Here the order is that of the keys, and
/// the cursor counts those that were passed.
fn scan(keys: &Keyspace, cursor: &[u8], options: &[&[u8]]) -> Outcome {
    let cursor = integer(cursor).map_err(|_| Refused("ERR invalid cursor".to_owned()))?;
    let (mut from, mut count, mut begin) = (size(cursor), 10, &b""[..]);
    for option in options.chunks(2) {
        match option {
            [word, pattern] if word.eq_ignore_ascii_case(b"match") => begin = prefix(pattern)?,
            [word, number] if word.eq_ignore_ascii_case(b"count") => {
                count = Some(size(integer(number)?))
                    .filter(|count| *count > 0)
                    .ok_or_else(syntax)?;
            }
            _ => return Err(syntax()),
        }
    }
    let page: Vec<_> = keys
        .iter()
        .map(|(key, _)| key)
        .skip(from)
        .take(count)
        .collect();
    from += page.len();
    let next = if from < keys.iter().count() { from } else { 0 };
    let found = Reply::bulks(page.into_iter().filter(|key| key.starts_with(begin)));
    Ok(Reply::Array(vec![Reply::bulk(next.to_string()), found]))
}

fn shown<'a>(members: impl Iterator<Item = (&'a [u8], f64)>, with_scores: bool) -> Reply {
    let of_one = |(member, score): (&[u8], f64)| {
        [
            Some(Reply::bulk(member)),
            with_scores.then(|| Reply::bulk(score.to_string())),
        ]
        .into_iter()
        .flatten()
    };
    Reply::Array(members.flat_map(of_one).collect())
}

fn is_with_scores(options: &[&[u8]]) -> Result<bool, Refused> {
    match options {
        [] => Ok(false),
        [word] if word.eq_ignore_ascii_case(b"withscores") => Ok(true),
        _ => Err(syntax()),
    }
}

/// A place among these members, counted from the end if it is negative.
fn place(number: i64, members: usize) -> usize {
    if number < 0 {
        members.saturating_sub(usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX))
    } else {
        size(number)
    }
}

/// Scores between two bounds. A bound with `(` before it is not part of the range.
fn scores(min: &[u8], max: &[u8]) -> Result<(Bound<f64>, Bound<f64>), Refused> {
    let bound = |text: &[u8]| match text.strip_prefix(b"(") {
        Some(text) => float(text).map(Bound::Excluded),
        None => float(text).map(Bound::Included),
    };
    let bounds = (bound(min), bound(max));
    let (Ok(min), Ok(max)) = bounds else {
        return Err(Refused("ERR min or max is not a float".to_owned()));
    };
    Ok((min, max))
}

/// The text before the star, which is the pattern's only one.
fn prefix(pattern: &[u8]) -> Result<&[u8], Refused> {
    let prefix = pattern
        .strip_suffix(b"*")
        .filter(|prefix| !prefix.iter().any(|byte| b"*?[\\".contains(byte)));
    prefix
        .ok_or_else(|| Refused("ERR stand-ins know patterns with one star at their end".to_owned()))
}

fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

fn syntax() -> Refused {
    Refused("ERR syntax error".to_owned())
}

pub(super) fn wrong_number(command: &str) -> String {
    format!("ERR wrong number of arguments for '{command}' command")
}

fn no_expiry(command: &str) -> Refused {
    Refused(format!("ERR invalid expire time in '{command}' command"))
}

fn parsed<T: std::str::FromStr>(text: &[u8], problem: &str) -> Result<T, Refused> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| Refused(problem.to_owned()))
}

pub(super) fn integer(text: &[u8]) -> Result<i64, Refused> {
    parsed(text, "ERR value is not an integer or out of range")
}

fn float(text: &[u8]) -> Result<f64, Refused> {
    let number: f64 = parsed(text, "ERR value is not a valid float")?;
    if number.is_nan() {
        Err(Refused("ERR value is not a valid float".to_owned()))
    } else {
        Ok(number)
    }
}
