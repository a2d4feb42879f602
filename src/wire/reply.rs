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
        let asked = asked.into();
        if matches!(asked.kind, Kind::Acquire | Kind::Extend) && frame == CHANGED {
            return Reply::without_time(Answer::Changed);
        }
        of_script(asked, frame)
            .or_else(|| parsed(asked.kind, frame))
            .unwrap_or_else(|| {
                Reply::without_time(Answer::Failed(NodeFailure::Protocol {
                    reason: "an answer of another form than the script gives".to_owned(),
                }))
            })
    }

    fn without_time(answer: Answer) -> Reply {
        Reply { answer, time: None }
    }
}

/// A reply that the crate's parser reads; `None` if the command is never answered in its form.
fn parsed(kind: Kind, frame: &[u8]) -> Option<Reply> {
    Some(Reply::without_time(
        match (kind, parse_redis_value(frame).ok()?) {
            (Kind::Subscribe, _) if push(frame) == Push::Subscribed => Answer::Subscribed,
            (Kind::Time, Value::Array(parts)) => return time(&parts),
            (Kind::Inspect, Value::Array(parts)) => return inspected(&parts),
            (Kind::Greet, Value::Array(parts)) => greeted(&parts)?,
            (Kind::List, Value::Array(parts)) => listed(parts)?,
            (_, Value::ServerError(error)) if !refusal::is_garbled(frame, &error) => {
                match refusal::of(&error) {
                    None => Answer::NoScript,
                    // Whoever has that key, it is not a lock of ours.
                    Some(NodeFailure::KeyInUse { .. }) if kind == Kind::Release => {
                        Answer::Release(ReleaseReply::NotOurs)
                    }
                    Some(failure) => Answer::Failed(failure),
                }
            }
            _ => return None,
        },
    ))
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
const NUMBERS_MAX: usize = 7;

/// The reply of a script that found another record than its client was greeted with.
const CHANGED: &[u8] = b":-3\r\n";

/// A reply that is one number above this is a time, and means "granted": no status is as large, and no node's clock shows
/// so little for longer than a second.
const STATUS_MAX: i64 = 1_000_000;

/// The reply of a script that returns numbers, and perhaps a text behind them; `None` if the script of this kind does not return
/// that.
///
/// Read here and not by the crate's parser: this is the reply to nearly every command, and a caller waits for it. The parser takes a microsecond and a dozen allocations for what is a few additions.
///
/// Exactly as many numbers: with one more it would have swallowed the answer behind it, and each command after that would be
/// given the answer of another.
fn of_script(ReplyFormat { kind, about }: ReplyFormat, frame: &[u8]) -> Option<Reply> {
    if let Some((number, rest)) = line(frame, b':') {
        // Nothing may follow: half of a frame in other words is none of ours.
        let numbers = match kind {
            _ if !rest.is_empty() => return None,
            Kind::Release => [number, 0, 0, 0, 0, 0, 0],
            // The short form of the ordinary outcome.
            Kind::Acquire if STATUS_MAX < number => [1, 0, 0, 0, number, 0, 0],
            Kind::Extend if STATUS_MAX < number => [1, 0, number, 0, 0, 0, 0],
            _ => return None,
        };
        return read(kind, numbers, None);
    }
    let (members, mut rest) = line(frame, b'*')?;
    let mut numbers = [0; NUMBERS_MAX];
    let mut count = 0_usize;
    while let Some((number, behind)) = line(rest, b':') {
        *numbers.get_mut(count)? = number;
        count = count.saturating_add(1);
        rest = behind;
    }
    let mut text = None;
    if !rest.is_empty() {
        let (len, behind) = line(rest, b'$')?;
        text = Some(behind.strip_suffix(b"\r\n")?);
        if usize::try_from(len).ok() != text.map(<[u8]>::len) {
            return None;
        }
    }
    if usize::try_from(members) != Ok(count.saturating_add(usize::from(text.is_some()))) {
        return None;
    }
    match (kind, about, count) {
        (Kind::Acquire, CommandSubject::Slots, 7) => slots(numbers, text?),
        // An acquire of several locks adds which of them it is about. Behind a refusal stands who holds the lock.
        (Kind::Acquire, CommandSubject::One, 5) | (Kind::Acquire, CommandSubject::Several, 6) => {
            read(kind, numbers, text)
        }
        (Kind::Extend, _, 3) | (Kind::Raise, _, 2) => read(kind, numbers, text),
        _ => None,
    }
}

/// The number in the first line, and what stands behind that line.
fn line(bytes: &[u8], sign: u8) -> Option<(i64, &[u8])> {
    let end = bytes.windows(2).position(|it| it == b"\r\n")?;
    let (line, rest) = bytes.split_at_checked(end)?;
    let digits = std::str::from_utf8(line.strip_prefix(&[sign])?).ok()?;
    Some((digits.parse().ok()?, rest.get(2..)?))
}

/// What a node says of the slots of a semaphore. `digits`: which were free there.
fn slots(
    [status, counter, left, queued, time, slot, count]: [i64; NUMBERS_MAX],
    digits: &[u8],
) -> Option<Reply> {
    let count = usize::try_from(count).ok()?;
    if digits.len() != count.div_ceil(4) {
        return None;
    }
    let mut free = FreeSlots::default();
    for (i, digit) in digits.iter().enumerate() {
        let digit = char::from(*digit).to_digit(16)?;
        for bit in (0..4).filter(|it| digit & 1 << it != 0) {
            free.insert(u8::try_from(i.checked_mul(4)?.checked_add(bit)?).ok()?);
        }
    }
    let slot = match (status, index(slot)) {
        (1 | 2, Some(slot)) if usize::from(slot) < count => slot,
        (1 | 2, _) | (0, Some(_)) => return None,
        _ => {
            let holder: Option<&[u8]> = (status == 0).then_some(b"");
            return read(
                Kind::Acquire,
                [status, counter, left, queued, time, 0, 0],
                holder,
            );
        }
    };
    let counter = u64::try_from(counter).ok()?;
    Some(Reply {
        answer: Answer::Acquire(AcquireReply::Slot {
            slot,
            counter: (status == 2).then_some(counter),
            free,
        }),
        time: u64::try_from(time).ok(),
    })
}

/// Which of several locks: scripts count from 1.
fn index(which: i64) -> Which {
    u8::try_from(which.checked_sub(1)?).ok()
}

/// `None` for a status or a number that the script of this kind does not return. `holder`: who holds the lock, behind a refusal
/// for that alone.
fn read(
    kind: Kind,
    [status, counter, third, fourth, fifth, sixth, ..]: [i64; NUMBERS_MAX],
    holder: Option<&[u8]>,
) -> Option<Reply> {
    let is_held = (kind, status) == (Kind::Acquire, 0);
    if is_held != holder.is_some() || holder.is_some_and(has_swallowed) {
        return None;
    }
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
        (Kind::Acquire, 0) => Answer::Acquire(AcquireReply::Held {
            counter: counter()?,
            left,
            queued,
            holder: refusal::shown_holder(holder?),
            which,
        }),
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
