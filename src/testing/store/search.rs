//! `list.lua`, `present.lua` and `probe.lua`: what an operator asks a node.

use super::call::{Args, Outcome, Run};
use super::number::{int, of_len};
use super::reply::Reply;

/// Servers go through their keys in an order of their own, and name places in it by numbers of their own. Here the order is
/// that of the keys, and a place is how many were passed.
pub(super) fn list(run: &mut Run<'_>, _keys: Args<'_>, args: Args<'_>) -> Outcome {
    let (from, count) = (args.number(1)?, args.number(2)?);
    let prefix = args.at(3).strip_suffix(b"*").unwrap_or(args.at(3));
    let (max, longest, mut room) = (args.number(4)?, args.number(5)?, args.number(6)?);
    let all = || run.keys.iter().map(|it| it.0).zip(0_u32..).map(|(key, at)| (key, f64::from(at)));
    let page = all().filter(|(_, at)| from <= *at && *at < from + count);
    let next = if all().any(|(_, at)| from + count <= at) { int(from + count) } else { 0 };
    let mut found = Vec::new();
    for key in page.filter_map(|(key, _)| key.strip_prefix(prefix).filter(|it| is_of_a_lock(it)).map(|_| key)) {
        if longest < of_len(key.len()) {
            continue;
        }
        room -= of_len(key.len());
        if of_len(found.len()) == max || room < 0.0 {
            if args.at(2) == b"1" {
                break;
            }
            return Ok(Reply::Array(vec![Reply::bulk(args.at(1)), Reply::Int(1)]));
        }
        found.push(Reply::bulk(key));
    }
    let head = vec![Reply::bulk(next.to_string()), Reply::Int(0)];
    Ok(Reply::Array([head, found].concat()))
}

/// A counter, or the set of a lock's readers; `key`: behind what all our keys begin with.
fn is_of_a_lock(key: &[u8]) -> bool {
    let ends = |rest: &[u8]| matches!(rest.first(), Some(b'-' | b':'));
    if [&b"fence"[..], b"readers"].iter().any(|it| key.strip_prefix(*it).is_some_and(ends)) {
        return true;
    }
    let number = key.strip_prefix(b"slot-fence-").unwrap_or_default();
    let digits = number.iter().take_while(|it| it.is_ascii_digit()).count();
    0 < digits && number.split_at_checked(digits).is_some_and(|it| ends(it.1))
}

pub(super) fn present(run: &mut Run<'_>, keys: Args<'_>, _args: Args<'_>) -> Outcome {
    let digits: Vec<u8> = keys.all().map(|it| if run.keys.exists(it) { b'1' } else { b'0' }).collect();
    Ok(Reply::Bulk(digits))
}

/// Nothing is forbidden here.
pub(super) fn probe(_run: &mut Run<'_>, _keys: Args<'_>, _args: Args<'_>) -> Outcome {
    Ok(Reply::bulk(""))
}
