//! `greet.lua` and `meet.lua`.

use super::call::{Args, Outcome, Run};
use super::canary::{LONGEST, read_canary};
use super::number::number;
use super::reply::Reply;

pub(super) fn greet(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [key] = keys.array()?;
    let (own, heard, heard_on) = (args.number(1)?, args.number(2)?.min(LONGEST), args.number(3)?);
    let word = args.at(4);

    let mut canary = read_canary(run, key);
    let mut status = 1.0;
    if canary.is_statement {
        canary.run = run.run_id.as_bytes().to_vec();
    } else if canary.since.is_none() {
        status = 2.0;
    } else if canary.since.is_some_and(|since| run.now < since) || !canary.run.starts_with(run.run_id.as_bytes()) {
        status = 3.0;
    }
    if status != 1.0 {
        canary.begin_anew(run);
    } else if canary.origin == b"new" {
        status = 4.0;
    }
    let vouches = word == b"vouch" && canary.origin == b"new";
    let is_same = || format!("{:.0}", canary.since.unwrap_or(0.0)).as_bytes() == args.at(5);
    if vouches {
        (canary.since, canary.origin) = (Some(0.0), b"vouched".to_vec());
    } else if word == b"settle" && status == 4.0 && is_same() {
        (canary.since, canary.origin) = (Some(args.number(6)?), args.at(7).to_vec());
        status = if canary.origin == b"old" { 1.0 } else { status };
    }
    if canary.origin == b"vouched" {
        status = 5.0;
    }

    canary.longest = canary.longest.max(own.min(LONGEST));
    if heard_on == canary.day {
        canary.longest = canary.longest.max(heard);
    } else if heard_on == canary.day - 1.0 {
        canary.before = canary.before.max(heard);
    }
    let mut from = canary.since.unwrap_or(0.0);
    if args.len() == 6 && word != b"settle" {
        let owned = if vouches { 0.0 } else { canary.owned_since(args.at(5), args.at(6)).unwrap_or(run.now) };
        canary.note_owned(owned, args.at(5), args.at(6));
        from = from.max(owned);
    }
    canary.write(run, key);

    let (mut longest, mut day) = (canary.longest, canary.day);
    if longest < canary.before {
        (longest, day) = (canary.before, canary.day - 1.0);
    }
    let is_of_cluster = 4 < args.len() || word == b"slot";
    let reply = Reply::numbers([status, canary.kept_for(run), longest, day, 1.0]);
    Ok(if is_of_cluster { reply.and(Reply::number(from)) } else { reply })
}

/// How many sets are kept besides the client's own.
const SETS_MAX: usize = 4;
/// After how many hours a set counts as no longer used.
const UNUSED_AFTER: f64 = 24.0;
const HOUR: f64 = 3_600_000_000.0;

pub(super) fn meet(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [key] = keys.array()?;
    let [new_id, own, nodes_of_own, earlier] = args.array()?;
    let hour = (run.now / HOUR).floor();
    let found = run.keys.text(key).unwrap_or_default();
    let (format, id, rest) = noted(&found).filter(|it| it.1.len() <= 15).unwrap_or((&b"1"[..], new_id, &b""[..]));

    let (mut kept, mut nodes) = (Vec::new(), 0.0);
    if !own.is_empty() {
        kept.push([b" ", own, b" ", nodes_of_own, format!(" {hour:.0}").as_bytes()].concat());
    }
    for (print, count, at) in sets(rest) {
        let at = number(at).unwrap_or(0.0).min(hour);
        let is_own = print == own || earlier.windows(print.len()).any(|it| it == print);
        if print.len() == 16 && !is_own && hour - at < UNUSED_AFTER && kept.len() <= SETS_MAX {
            kept.push([b" ", print, b" ", count, format!(" {at:.0}").as_bytes()].concat());
            if !own.is_empty() && nodes == 0.0 {
                nodes = number(count).unwrap_or(0.0);
            }
        }
    }

    let value = [format, b" ", id, &kept.concat()].concat();
    if value != found {
        run.keys.set(key, &value, None);
    }
    Ok(Reply::numbers([number(id).unwrap_or(0.0), nodes]))
}

/// Format, id, and the sets, of what is stored.
fn noted(found: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (format, rest) = digits(found)?;
    let (id, rest) = digits(rest.strip_prefix(b" ")?)?;
    Some((format, id, rest))
}

/// Digits, at least one, and what is behind them.
fn digits(text: &[u8]) -> Option<(&[u8], &[u8])> {
    run_of(text, u8::is_ascii_digit)
}

fn run_of(text: &[u8], is: impl Fn(&u8) -> bool) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|it| !is(it)).unwrap_or(text.len());
    text.split_at_checked(end).filter(|it| !it.0.is_empty())
}

/// The sets: fingerprint, number of nodes, hour. What looks otherwise is passed over.
fn sets(mut text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
    std::iter::from_fn(move || {
        while let Some((_, behind)) = text.split_first() {
            if let Some((set, rest)) = set(text) {
                text = rest;
                return Some(set);
            }
            text = behind;
        }
        None
    })
}

type Set<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// A set that begins here, and what is behind it.
fn set(text: &[u8]) -> Option<(Set<'_>, &[u8])> {
    let (print, rest) = run_of(text.strip_prefix(b" ")?, u8::is_ascii_hexdigit)?;
    let (count, rest) = digits(rest.strip_prefix(b" ")?).filter(|it| it.0.len() <= 3)?;
    let (at, rest) = digits(rest.strip_prefix(b" ")?)?;
    Some(((print, count, at), rest))
}
