//! Replies into facts.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::{PushKind, Value, parse_redis_value};

use crate::answer::{Answer, JobRecord, LockReply, LockStatus, Record, RecordReply};
use crate::config::RESERVED;
use crate::error::NodeFailure;
use crate::ids::{OwnerLabel, OwnerToken, RecordVersion};
use crate::inspection::{SecretValue, StoredKey, StoredLock, StoredReader};
use crate::time::Tick;
use crate::wire::frame;
use crate::wire::refusal;
use crate::wire::script::Kind;

/// An answer, and the node's time if the command asks for it: microseconds since 1970.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) time: Option<u64>,
}

impl Reply {
    /// Reads the reply to a command. Never fails: a form that no answer to this command has is
    /// [`NodeFailure::Protocol`], and nothing else is.
    pub(crate) fn read(kind: Kind, frame: &[u8]) -> Reply {
        Reply::of(kind, frame).unwrap_or_else(|| {
            let reason = "an answer of another form than the script gives";
            Reply::without_time(Answer::Failed(NodeFailure::protocol(reason)))
        })
    }

    fn of(kind: Kind, frame: &[u8]) -> Option<Reply> {
        if let Some(reply) = lock_reply(kind, frame) {
            return Some(reply);
        }
        let answer = match parse_redis_value(frame).ok()? {
            Value::Push { .. } if kind == Kind::Subscribe && push(frame) == Push::Subscribed => {
                Answer::Subscribed
            }
            Value::Array(parts) if kind == Kind::Time => return time(&parts),
            Value::Array(_) | Value::Int(_) | Value::Okay if kind == Kind::Check => Answer::Time,
            Value::Array(parts) if kind == Kind::Inspect => return inspected(&parts),
            Value::Array(parts) if kind == Kind::Look => return looked(&parts),
            Value::Int(CHANGED) if kind == Kind::Look => Answer::Changed,
            Value::Int(status @ 0..=1) if kind == Kind::Look => Answer::Noted(status == 1),
            Value::Array(parts) if kind == Kind::SyncRecord => synced(&parts)?,
            Value::Array(parts) if kind == Kind::List => listed(parts)?,
            Value::ServerError(error) if !refusal::is_garbled(frame, &error) => {
                match refusal::of(&error) {
                    None => Answer::NoScript,
                    // That key is not a lock of ours.
                    Some(NodeFailure::KeyInUse { .. }) if kind == Kind::Release => {
                        Answer::Released { was_ours: false }
                    }
                    Some(failure) => Answer::Failed(failure),
                }
            }
            _ => return None,
        };
        Some(Reply::without_time(answer))
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

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// A number that is never negative.
fn natural(value: &Value) -> Option<u64> {
    u64::try_from(number(value)?).ok()
}

/// The state of a lock on a node.
fn inspected(parts: &[Value]) -> Option<Reply> {
    let text = |value: &Value| match value {
        Value::BulkString(value) if !has_swallowed(value) => Some(SecretValue::new(value)),
        _ => None,
    };
    let [
        what,
        left,
        counter,
        waiting,
        since,
        time,
        value,
        count,
        readers @ ..,
    ] = parts
    else {
        return None;
    };
    let time = natural(time)?;
    let value = text(value)?;
    let count = natural(count)?;
    // Half a reader comes from the next answer, in a frame with a corrupted length.
    let (readers, []) = readers.as_chunks::<2>() else {
        return None;
    };
    if usize::try_from(count).is_ok_and(|count| count < readers.len()) {
        return None;
    }
    let key = match number(what)? {
        0 => StoredKey::Missing,
        1 => StoredKey::Held {
            holder: holder_in(value.as_bytes()),
            value,
        },
        3 => {
            let reader = |[value, left]: &[Value; 2]| {
                let value = text(value)?;
                let left = Duration::from_millis(natural(left)?);
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
    // Negative: none, or no expiry.
    let [left, counter, since] =
        [number(left)?, number(counter)?, number(since)?].map(|it| u64::try_from(it).ok());
    let since = since.filter(|it| *it != 0);
    let stored = StoredLock {
        left: left
            .map(Duration::from_millis)
            .filter(|_| key != StoredKey::Missing),
        key,
        counter,
        waiting: natural(waiting)?,
        waiting_for: since.map(|it| Duration::from_micros(time.saturating_sub(it))),
    };
    Some(Reply {
        answer: Answer::Inspect(Box::new(stored)),
        time: Some(time),
    })
}

/// What is recorded of a job.
fn looked(parts: &[Value]) -> Option<Reply> {
    let [Value::Int(holds), kept, time, Value::BulkString(text)] = parts else {
        return None;
    };
    let (time, text) = (natural(time)?, String::from_utf8_lossy(text));
    let job = JobRecord {
        is_ours: *holds == 1,
        kept_since: natural(kept)?,
        time,
        text: Some(text).filter(|it| !it.contains('\r'))?.into_owned(),
    };
    Some(Reply {
        answer: Answer::Job(job),
        time: Some(time),
    })
}

/// The facts in a server's record.
fn synced(parts: &[Value]) -> Option<Answer> {
    let (Value::BulkString(text), parts) = parts.split_last()? else {
        return None;
    };
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|it| !it.contains('\r'))?;
    let (policy, versions) = text.split_once(' ')?;
    let numbers: Vec<_> = parts.iter().map(natural).collect::<Option<_>>()?;
    let [
        status,
        served,
        max_ttl,
        stored,
        record_version,
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
    Some(Answer::Record(RecordReply {
        record,
        served: Duration::from_millis(served),
        max_ttl,
        is_stored: stored == 1,
        record_version: RecordVersion::new(record_version),
        versions: versions.to_owned(),
        servers,
        evicts: (!matches!(policy, "" | "noeviction")).then(|| refusal::shown(policy)),
        is_limited: limited != 0,
        append_only: (logged < 2).then_some(logged == 1),
        replicas,
    }))
}

/// Keys of a node, and the next cursor.
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
    let keys = parts.map(|value| match value {
        Value::BulkString(key) if key.starts_with(RESERVED) && !has_swallowed(&key) => Some(key),
        _ => None,
    });
    Some(Answer::Listed {
        next,
        too_many,
        keys: keys.collect::<Option<_>>()?,
    })
}

/// The label in a lock's value, after 32 digits and a space.
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

/// A single number above this is a time, and means "granted": no status is as large, and no node's
/// clock shows so little for longer than a second.
const STATUS_MAX: i64 = 1_000_000;
/// Status of a script that found another record version than in its command.
const CHANGED: i64 = -3;

/// Reads the reply of a lock script: a single number, or the list in `scripts/acquire.lua`. `None`
/// if no script of this kind returns it.
///
/// Parsed here and not by the crate: this is the reply to nearly every command, and a caller waits
/// for it. The crate takes a microsecond and a dozen allocations for a few additions.
fn lock_reply(kind: Kind, mut frame: &[u8]) -> Option<Reply> {
    use Kind::{Acquire, Extend, Raise, Release};
    use LockStatus::*;
    let single = take_number(&mut frame, b':');
    let ([status, counter, left, queued, time, which], text) = match single {
        // Nothing may follow.
        Some(_) if !frame.is_empty() => return None,
        Some(time) if STATUS_MAX < time => ([1, 0, 0, 0, time, 0], &b""[..]),
        Some(status) => {
            return Some(Reply::without_time(match (kind, status) {
                (Release, 0 | 1) => Answer::Released {
                    was_ours: status == 1,
                },
                (Acquire | Raise | Extend, CHANGED) => Answer::Changed,
                _ => return None,
            }));
        }
        None => list(frame)?,
    };
    // All statuses that the scripts return.
    let status = match (kind, status) {
        (Acquire, 0) => Held,
        (Acquire, 1) => Accepted,
        (Acquire, 2) => ProposalBehind,
        (Acquire, 5) => ProposalTooFarAhead,
        (Acquire, 6) => HeldByReaders,
        (Acquire, 7) => Shared,
        (Acquire, -1) => WrongType,
        (Acquire, -2) => BadCounter,
        (Raise, 1) => Raised,
        (Raise, 2) => NotRaised,
        (Raise, 0 | 3) => NotOurs,
        (Extend, 0) => Gone,
        (Extend, 1) => Extended,
        (Extend, 2) => Superseded,
        (Extend, 3) => NotOurs,
        (Extend, 4) => Healed,
        (Extend, 6) => Lifted,
        (Raise | Extend, -1 | -2) => BadCounter,
        _ => return None,
    };
    // Scripts count from 1.
    let which = match which {
        0 => None,
        _ => Some(u8::try_from(which.checked_sub(1)?).ok()?),
    };
    // Which statuses have a text, and which a slot or one of several locks.
    let is_possible = match status {
        Held => true,
        _ if !text.is_empty() => false,
        Accepted => single.is_some() != which.is_some(),
        ProposalBehind | HeldByReaders | WrongType | BadCounter => true,
        _ => which.is_none(),
    };
    let mut reply = LockReply {
        which,
        holder: refusal::shown_holder(text),
        ..LockReply::new(status, u64::try_from(counter).ok()?)
    };
    if matches!(status, Held | HeldByReaders) {
        // Negative: no expiry. It must not be read as "free now".
        reply.left = u64::try_from(left).ok().map(Duration::from_millis);
        reply.queued = queued == 1;
    }
    is_possible.then_some(Reply {
        answer: Answer::Lock(reply),
        time: u64::try_from(time).ok(),
    })
}

/// Status, counter, time left, entered, node time, which; and the text.
///
/// Exactly this many members: with one more it would contain the next answer, and each later
/// command would get the answer of another.
fn list(mut frame: &[u8]) -> Option<([i64; 6], &[u8])> {
    if take_number(&mut frame, b'*')? != 7 {
        return None;
    }
    let mut numbers = [0; 6];
    for place in &mut numbers {
        *place = take_number(&mut frame, b':')?;
    }
    let len = take_number(&mut frame, b'$')?;
    let text = frame.strip_suffix(b"\r\n")?;
    let is_whole = usize::try_from(len) == Ok(text.len()) && !has_swallowed(text);
    is_whole.then_some((numbers, text))
}

/// Takes the number on the first line, after a sign.
fn take_number(rest: &mut &[u8], sign: u8) -> Option<i64> {
    let end = rest.iter().position(|it| *it == b'\n')?;
    let (line, behind) = rest.split_at_checked(end)?;
    let digits = line.strip_prefix(&[sign])?.strip_suffix(b"\r")?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    *rest = behind.get(1..)?;
    Some(number)
}

/// A hand-over of a lock to a waiting call, for a short life: see `scripts/handover.lua`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct HandedOver {
    /// Fencing token, if it is the server's counter now; for a reader, the counter.
    pub(crate) token: Option<u64>,
    /// Of the server's record.
    pub(crate) record_version: RecordVersion,
    /// Milliseconds.
    pub(crate) life: u64,
    /// Node time, microseconds since 1970.
    pub(crate) time: u64,
    /// Commands sent earlier do not count: see `Session::judge_hand_over`.
    pub(crate) asked_from: Option<Tick>,
    /// Whether the call is a reader.
    pub(crate) reads: bool,
    /// Whether nothing was handed over: a missing call leaves the list.
    pub(crate) is_question: bool,
    /// Owner token and label of the new holder.
    pub(crate) value: SecretValue,
    pub(crate) key: Vec<u8>,
}

impl HandedOver {
    fn read(message: &[u8]) -> Option<HandedOver> {
        let mut parts = message.splitn(7, |it| *it == b' ');
        let mut part = || parts.next();
        let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse::<u64>().ok();
        let token = number(part()?)?;
        let record_version = part()?.try_into().ok()?;
        let life = number(part()?)?;
        let time = number(part()?)?;
        let kind = part()?;
        if !matches!(kind, b"r" | b"w" | b"q") {
            return None;
        }
        let len = usize::try_from(number(part()?)?).ok()?;
        let (value, key) = part()?.split_at_checked(len)?;
        Some(HandedOver {
            token: Some(token).filter(|it| *it != 0),
            record_version: RecordVersion(record_version),
            life,
            time,
            asked_from: None,
            reads: kind == b"r",
            is_question: kind == b"q",
            value: SecretValue::new(value),
            key: key.strip_prefix(b" ")?.to_vec(),
        })
    }

    /// Owner token of the new holder.
    pub(crate) fn owner(&self) -> Option<OwnerToken> {
        OwnerToken::of_value(self.value.as_bytes())
    }
}

/// A push of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Push {
    /// An ordinary reply.
    None,
    /// Confirmation of a subscription: the only push that answers a command.
    Subscribed,
    /// A message on the client's channel; none if invalid: anybody may publish there.
    Message(Option<HandedOver>),
    /// Any other push.
    Other,
}

/// Reads a reply as a push.
pub(crate) fn push(frame: &[u8]) -> Push {
    if frame.first() != Some(&b'>') {
        return Push::None;
    }
    let Ok(Value::Push { kind, data }) = parse_redis_value(frame) else {
        return Push::Other;
    };
    match (kind, &data[..]) {
        (PushKind::Subscribe, [Value::BulkString(channel), Value::Int(_)])
            if !has_swallowed(channel) =>
        {
            Push::Subscribed
        }
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)])
            if !has_swallowed(channel) && !has_swallowed(message) =>
        {
            Push::Message(HandedOver::read(message))
        }
        _ => Push::Other,
    }
}

/// Whether a text contains a line break and then the beginning of other replies, because its length
/// was corrupted. Scripts return no such text. A notice with such a name costs the connection.
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
