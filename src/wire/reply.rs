//! Replies into facts.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::{PushKind, Value, parse_redis_value};

use crate::answer::{
    AcquireReply, Answer, ExtendReply, FreeSlots, GreetReply, RaiseReply, Record, ReleaseReply,
    Which,
};
use crate::config::RESERVED;
use crate::error::NodeFailure;
use crate::ids::{Edition, OwnerLabel};
use crate::inspection::{SecretValue, StoredKey, StoredLock, StoredReader};
use crate::wire::frame;
use crate::wire::refusal;
use crate::wire::script::{CommandSubject, Kind, ReplyFormat};

/// What came back, and the time that the node's clock showed, where the command asks for it: microseconds since 1970.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) time: Option<u64>,
}

impl Reply {
    /// Reads the reply to a command. Never fails: what has a form that this command is never answered in is
    /// [`NodeFailure::Protocol`], and nothing else is.
    pub(crate) fn read(asked: impl Into<ReplyFormat>, frame: &[u8]) -> Reply {
        let ReplyFormat { kind, about } = asked.into();
        if matches!(kind, Kind::Acquire | Kind::Extend) && frame == CHANGED {
            return Reply::without_time(Answer::Changed);
        }
        if kind == Kind::Acquire
            && let Some((numbers, holder)) = refusal_by_holder(about, frame)
        {
            return held(numbers, holder).unwrap_or_else(|| Reply::without_time(nonsense()));
        }
        if kind == Kind::Acquire
            && about == CommandSubject::Slots
            && let Some(reply) = slots(frame)
        {
            return reply.unwrap_or_else(|| Reply::without_time(nonsense()));
        }
        if let Some(numbers) = numbers(ReplyFormat { kind, about }, frame) {
            return read(kind, numbers).unwrap_or_else(|| Reply::without_time(nonsense()));
        }
        Reply::without_time(match parse_redis_value(frame) {
            Ok(Value::Push { .. })
                if kind == Kind::Subscribe && push(frame) == Push::Subscribed =>
            {
                Answer::Subscribed
            }
            Ok(Value::Array(parts)) if kind == Kind::Time => {
                return time(&parts).unwrap_or_else(|| Reply::without_time(nonsense()));
            }
            Ok(Value::Array(parts)) if kind == Kind::Inspect => {
                return inspected(&parts).unwrap_or_else(|| Reply::without_time(nonsense()));
            }
            Ok(Value::Array(parts)) if kind == Kind::Greet => {
                greeted(&parts).unwrap_or_else(nonsense)
            }
            Ok(Value::Array(parts)) if kind == Kind::List => listed(parts).unwrap_or_else(nonsense),
            Ok(Value::ServerError(error)) if !refusal::is_garbled(frame, &error) => {
                match refusal::of(&error) {
                    None => Answer::NoScript,
                    // Whoever has that key, it is not a lock of ours.
                    Some(NodeFailure::KeyInUse { .. }) if kind == Kind::Release => {
                        Answer::Release(ReleaseReply::NotOurs)
                    }
                    Some(failure) => Answer::Failed(failure),
                }
            }
            _ => nonsense(),
        })
    }

    fn without_time(answer: Answer) -> Reply {
        Reply { answer, time: None }
    }
}

/// The reply to `TIME`: seconds and microseconds, as text.
fn time(parts: &[Value]) -> Option<Reply> {
    let part = |part: &Value| match part {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = parts else {
        return None;
    };
    let time = part(seconds)?
        .checked_mul(1_000_000)?
        .checked_add(part(micros)?)?;
    Some(Reply {
        answer: Answer::Time,
        time: Some(time),
    })
}

/// What a node stores about a lock.
fn inspected(parts: &[Value]) -> Option<Reply> {
    let number = |it: &Value| {
        if let Value::Int(it) = it {
            Some(*it)
        } else {
            None
        }
    };
    let text = |it: &Value| match it {
        Value::BulkString(it) if !has_swallowed(it) => Some(SecretValue::new(it)),
        _ => None,
    };
    // Negative: none, or no end.
    let natural = |it: i64| u64::try_from(it).ok();
    let millis = |it: i64| natural(it).map(Duration::from_millis);
    let [
        what,
        left,
        counter,
        waiting,
        since,
        reserved,
        time,
        value,
        count,
        readers @ ..,
    ] = parts
    else {
        return None;
    };
    let (time, value, count) = (
        natural(number(time)?)?,
        text(value)?,
        natural(number(count)?)?,
    );
    if usize::try_from(count).is_ok_and(|count| count < readers.len() / 2) {
        return None;
    }
    let key = match number(what)? {
        0 => StoredKey::Missing,
        1 => StoredKey::Held {
            holder: holder_in(value.as_bytes()),
            value,
        },
        3 => {
            let (readers, []) = readers.as_chunks::<2>() else {
                return None;
            };
            let reader = |[value, left]: &[Value; 2]| {
                let (value, left) = (text(value)?, millis(number(left)?)?);
                Some(StoredReader {
                    holder: holder_in(value.as_bytes()),
                    left,
                    value,
                })
            };
            let readers = readers.iter().map(reader).collect::<Option<_>>()?;
            StoredKey::Read { count, readers }
        }
        -1 => StoredKey::OtherType,
        2 => StoredKey::Foreign,
        _ => return None,
    };
    let since = natural(number(since)?).filter(|it| *it != 0);
    let stored = StoredLock {
        left: millis(number(left)?).filter(|_| key != StoredKey::Missing),
        key,
        counter: natural(number(counter)?),
        waiting: natural(number(waiting)?)?,
        waiting_for: since.map(|it| Duration::from_micros(time.saturating_sub(it))),
        reserved: millis(number(reserved)?).filter(|it| !it.is_zero()),
    };
    Some(Reply {
        answer: Answer::Inspect(Box::new(stored)),
        time: Some(time),
    })
}

/// What a server's record shows.
fn greeted(parts: &[Value]) -> Option<Answer> {
    let number = |it: &Value| {
        if let Value::Int(it) = it {
            u64::try_from(*it).ok()
        } else {
            None
        }
    };
    let (Value::BulkString(policy), parts) = parts.split_last()? else {
        return None;
    };
    let policy = std::str::from_utf8(policy)
        .ok()
        .filter(|it| !it.contains('\r'))?;
    let numbers: Vec<_> = parts.iter().map(number).collect::<Option<_>>()?;
    let [
        status,
        served,
        max_ttl,
        kept,
        edition,
        servers,
        limited,
        logged,
        replicas,
    ] = numbers[..]
    else {
        return None;
    };
    let record = match status {
        1 => Record::Kept,
        2 => Record::Missing,
        3 => Record::Another,
        4 => Record::KeptFromNothing,
        5 => Record::Vouched,
        6 => Record::Off,
        _ => return None,
    };
    Some(Answer::Greet(GreetReply {
        record,
        served: Duration::from_millis(served),
        max_ttl,
        kept: kept == 1,
        edition: Edition::new(edition),
        servers,
        evicts: (!matches!(policy, "" | "noeviction")).then(|| refusal::shown(policy)),
        is_limited: limited != 0,
        append_only: (logged < 2).then_some(logged == 1),
        replicas,
    }))
}

/// Keys of a node, and where to go on.
fn listed(parts: Vec<Value>) -> Option<Answer> {
    let mut parts = parts.into_iter();
    let Some(Value::BulkString(next)) = parts.next() else {
        return None;
    };
    let next = std::str::from_utf8(&next).ok()?.parse().ok()?;
    let too_many = match parts.next() {
        Some(Value::Int(0)) => false,
        Some(Value::Int(1)) => true,
        _ => return None,
    };
    let keys = parts.map(|it| match it {
        Value::BulkString(key) if key.starts_with(RESERVED) && !has_swallowed(&key) => Some(key),
        _ => None,
    });
    Some(Answer::Listed {
        next,
        too_many,
        keys: keys.collect::<Option<_>>()?,
    })
}

/// Who says in a lock's value that it is its own: behind 32 digits and a space.
fn holder_in(value: &[u8]) -> Option<Arc<str>> {
    let (token, label) = value.split_at_checked(32)?;
    let label = label
        .strip_prefix(b" ")
        .filter(|it| it.len() <= OwnerLabel::MAX)?;
    if token.iter().all(u8::is_ascii_hexdigit) {
        refusal::shown_holder(label)
    } else {
        None
    }
}

/// The largest number of numbers that a script returns.
const NUMBERS_MAX: usize = 8;

/// The reply of a script that found another record than its client was greeted with.
const CHANGED: &[u8] = b":-3\r\n";

/// A reply that is one number above this is a time, and means "granted": no status is as large, and no node's clock shows
/// so little for longer than a second.
const STATUS_MAX: i64 = 1_000_000;

/// How many numbers the script returns, where it returns several. An acquire of several locks adds which of them it is about.
///
/// Exactly as many: with one more it would have swallowed the answer behind it, and each command after that would be given the
/// answer of another.
fn members_of(ReplyFormat { kind, about }: ReplyFormat) -> usize {
    match kind {
        Kind::Acquire if about == CommandSubject::Several => 6,
        // And what was free, see `slots`.
        Kind::Acquire if about == CommandSubject::Slots => 8,
        Kind::Acquire => 5,
        Kind::Extend => 3,
        Kind::Raise => 2,
        _ => 1,
    }
}

/// The numbers that the script of this kind returns; `None` if the reply has another form.
///
/// Read here and not by the crate's parser: this is the reply to nearly every command, and a caller waits for it. The parser takes a microsecond and a dozen allocations for what is a few additions.
fn numbers(asked: ReplyFormat, frame: &[u8]) -> Option<[i64; NUMBERS_MAX]> {
    let mut numbers = [0; NUMBERS_MAX];
    let mut lines = frame
        .strip_suffix(b"\r\n")?
        .split(|it| *it == b'\n')
        .map(|it| it.strip_suffix(b"\r").unwrap_or(it));
    let first = lines.next()?;
    if let Some(number) = number(first, b':') {
        // Nothing may follow: half of a frame in other words is none of ours.
        if lines.next().is_some() {
            return None;
        }
        return match asked.kind {
            Kind::Release => Some([number, 0, 0, 0, 0, 0, 0, 0]),
            // The short form of the ordinary outcome.
            Kind::Acquire if STATUS_MAX < number => Some([1, 0, 0, 0, number, 0, 0, 0]),
            Kind::Extend if STATUS_MAX < number => Some([1, 0, number, 0, 0, 0, 0, 0]),
            _ => None,
        };
    }
    let given = usize::try_from(number(first, b'*')?).ok()?;
    if given < 2 || given != members_of(asked) {
        return None;
    }
    let places = numbers.get_mut(..given)?;
    for place in places {
        *place = number(lines.next()?, b':')?;
    }
    lines.next().is_none().then_some(numbers)
}

/// The refusal of a node on which somebody holds the lock: the numbers, and behind them who it is.
fn refusal_by_holder(about: CommandSubject, frame: &[u8]) -> Option<([i64; NUMBERS_MAX], &[u8])> {
    let (body, count) = match about {
        CommandSubject::One => (frame.strip_prefix(b"*6\r\n")?, 5),
        CommandSubject::Several => (frame.strip_prefix(b"*7\r\n")?, 6),
        CommandSubject::Slots => return None,
    };
    // No number has a dollar sign in it.
    let (head, text) = body.split_at_checked(body.iter().position(|it| *it == b'$')?)?;
    let mut lines = head.strip_suffix(b"\r\n")?.split(|it| *it == b'\n');
    let mut numbers = [0; NUMBERS_MAX];
    for place in numbers.iter_mut().take(count) {
        let line = lines.next()?;
        *place = number(line.strip_suffix(b"\r").unwrap_or(line), b':')?;
    }
    let (len, text) = text.split_at_checked(text.iter().position(|it| *it == b'\n')?)?;
    let holder = text.strip_prefix(b"\n")?.strip_suffix(b"\r\n")?;
    let len = number(len.strip_suffix(b"\r")?, b'$')?;
    let is_whole = lines.next().is_none() && usize::try_from(len) == Ok(holder.len());
    (is_whole && !has_swallowed(holder)).then_some((numbers, holder))
}

fn held(
    [status, counter, left, queued, time, which, ..]: [i64; NUMBERS_MAX],
    holder: &[u8],
) -> Option<Reply> {
    let answer = AcquireReply::Held {
        counter: u64::try_from(counter).ok().filter(|_| status == 0)?,
        // Negative: no end. It must not be read as "free now".
        left: u64::try_from(left).ok().map(Duration::from_millis),
        queued: queued == 1,
        holder: refusal::shown_holder(holder),
        which: index(which),
    };
    Some(Reply {
        answer: Answer::Acquire(answer),
        time: u64::try_from(time).ok(),
    })
}

/// What a node says of the slots of a semaphore: seven numbers, and behind them what was free. `None` if it is none of that;
/// what is inside is `None` if it makes no sense.
fn slots(frame: &[u8]) -> Option<Option<Reply>> {
    let body = frame.strip_prefix(b"*8\r\n")?;
    let mut lines = body
        .split(|it| *it == b'\n')
        .map(|it| it.strip_suffix(b"\r").unwrap_or(it));
    let mut read_slots = || {
        let mut numbers = [0; NUMBERS_MAX];
        for place in numbers.iter_mut().take(6) {
            *place = number(lines.next()?, b':')?;
        }
        let count = usize::try_from(number(lines.next()?, b':')?).ok()?;
        let (len, digits) = (number(lines.next()?, b'$')?, lines.next()?);
        let is_whole = lines.next()?.is_empty() && lines.next().is_none();
        if !is_whole
            || usize::try_from(len) != Ok(digits.len())
            || digits.len() != count.div_ceil(4)
        {
            return None;
        }
        let mut free = FreeSlots::default();
        for (i, digit) in digits.iter().enumerate() {
            let digit = char::from(*digit).to_digit(16)?;
            for bit in (0..4).filter(|it| digit & 1 << it != 0) {
                free.insert(u8::try_from(i.checked_mul(4)?.checked_add(bit)?).ok()?);
            }
        }
        let [status, counter, left, queued, time, slot, ..] = numbers;
        if !matches!(status, 0..=2) {
            return read(
                Kind::Acquire,
                [status, counter, left, queued, time, 0, 0, 0],
            );
        }
        let counter = u64::try_from(counter).ok()?;
        let answer = match (status, index(slot)) {
            (0, None) => {
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                AcquireReply::Held {
                    counter,
                    left,
                    queued: queued == 1,
                    holder: None,
                    which: None,
                }
            }
            (1, Some(slot)) if usize::from(slot) < count => AcquireReply::Slot {
                slot,
                counter: None,
                free,
            },
            (2, Some(slot)) if usize::from(slot) < count => AcquireReply::Slot {
                slot,
                counter: Some(counter),
                free,
            },
            _ => return None,
        };
        Some(Reply {
            answer: Answer::Acquire(answer),
            time: u64::try_from(time).ok(),
        })
    };
    Some(read_slots())
}

/// Which of several locks: scripts count from 1.
fn index(which: i64) -> Which {
    u8::try_from(which.checked_sub(1)?).ok()
}

fn number(line: &[u8], sign: u8) -> Option<i64> {
    std::str::from_utf8(line.strip_prefix(&[sign])?)
        .ok()?
        .parse()
        .ok()
}

/// `None` for a status or a number that the script of this kind does not return.
fn read(
    kind: Kind,
    [status, counter, third, fourth, fifth, sixth, ..]: [i64; NUMBERS_MAX],
) -> Option<Reply> {
    let counter = || u64::try_from(counter).ok();
    // Negative: no end. It must not be read as "free now".
    let left = u64::try_from(third).ok().map(Duration::from_millis);
    let (queued, which) = (fourth == 1, index(sixth));
    let time = match kind {
        Kind::Acquire => u64::try_from(fifth).ok(),
        Kind::Extend => u64::try_from(third).ok(),
        _ => None,
    };
    let answer = match (kind, status) {
        (Kind::Acquire, 1) => Answer::Acquire(AcquireReply::Accepted),
        (Kind::Acquire, 2) => Answer::Acquire(AcquireReply::Behind {
            counter: counter()?,
        }),
        (Kind::Acquire, 3) => Answer::Acquire(AcquireReply::Reserved {
            counter: counter()?,
            left: left?,
            queued,
            which,
        }),
        (Kind::Acquire, 5) => Answer::Acquire(AcquireReply::Ahead {
            counter: counter()?,
        }),
        (Kind::Acquire, 6) => Answer::Acquire(AcquireReply::HeldByReaders {
            counter: counter()?,
            left,
            queued,
            which,
        }),
        (Kind::Acquire, 7) => Answer::Acquire(AcquireReply::Shared {
            counter: counter()?,
        }),
        (Kind::Acquire, -1) => Answer::Acquire(AcquireReply::WrongType { which }),
        (Kind::Acquire, -2) => Answer::Acquire(AcquireReply::BadCounter { which }),
        (Kind::Raise, 1) => Answer::Raise(RaiseReply::Taken),
        (Kind::Raise, 2) => Answer::Raise(RaiseReply::Above {
            counter: counter()?,
        }),
        (Kind::Raise, 0) => Answer::Raise(RaiseReply::Gone),
        (Kind::Raise, -1 | -2) => Answer::Raise(RaiseReply::Unusable),
        (Kind::Extend, 1) => Answer::Extend(ExtendReply::Extended),
        (Kind::Extend, 2) => Answer::Extend(ExtendReply::Superseded),
        (Kind::Extend, 3) => Answer::Extend(ExtendReply::Taken),
        (Kind::Extend, 4) => Answer::Extend(ExtendReply::Healed),
        (Kind::Extend, 6) => Answer::Extend(ExtendReply::Lifted {
            counter: counter()?,
        }),
        (Kind::Extend, 0) => Answer::Extend(ExtendReply::Gone {
            counter: counter()?,
        }),
        (Kind::Extend, -1 | -2) => Answer::Extend(ExtendReply::Unusable),
        (Kind::Release, 1) => Answer::Release(ReleaseReply::Deleted),
        (Kind::Release, 0) => Answer::Release(ReleaseReply::NotOurs),
        _ => return None,
    };
    Some(Reply { answer, time })
}

/// What a server said unasked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Push {
    /// Nothing: it is an ordinary reply.
    None,
    /// The confirmation of a subscription: the one push that answers a command.
    Subscribed,
    /// A message on the client's channel: the key of a lock that was released.
    Message(Vec<u8>),
    /// Something else, which nobody asked for.
    Other,
}

/// Reads a reply as a push.
pub(crate) fn push(frame: &[u8]) -> Push {
    if frame.first() != Some(&b'>') {
        return Push::None;
    }
    let Ok(Value::Push { kind, mut data }) = parse_redis_value(frame) else {
        return Push::Other;
    };
    match (kind, &mut data[..]) {
        (PushKind::Subscribe, [Value::BulkString(channel), Value::Int(_)])
            if !has_swallowed(channel) =>
        {
            Push::Subscribed
        }
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(key)])
            if !has_swallowed(channel) && !has_swallowed(key) =>
        {
            Push::Message(std::mem::take(key))
        }
        _ => Push::Other,
    }
}

/// Whether what stands behind a line break in a text may be the beginning of other replies, because the text's length was changed
/// on the way. Scripts return no such text. A notice with such a name costs the connection.
fn has_swallowed(text: &[u8]) -> bool {
    let breaks = text
        .windows(2)
        .enumerate()
        .filter(|(_, it)| it == b"\r\n")
        .map(|(at, _)| at.saturating_add(2));
    breaks.into_iter().any(|begin| {
        let mut rest = [text.get(begin..).unwrap_or_default(), b"\r\n"].concat();
        while let Ok(Some(len)) = frame::reply_len(&rest)
            && len != 0
        {
            rest.drain(..len);
        }
        frame::reply_len(&rest).is_ok()
    })
}

fn nonsense() -> Answer {
    Answer::Failed(NodeFailure::Protocol {
        reason: "an answer of another form than the script gives".to_owned(),
    })
}
