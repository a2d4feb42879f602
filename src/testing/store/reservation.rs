//! `reservation.lua`: which of the waiting clients may take a free lock.

use super::call::{Entry, Leaving, Run};
use super::number::number;

/// The value of the lock key while it is shared by readers.
pub(super) const SHARED: &[u8] = b"quorlock:shared";
/// How long a reservation lasts: milliseconds.
pub(super) const RESERVATION: f64 = 1000.0;
/// How many clients that are gone one run removes from the list.
const REMOVED_MAX: usize = 1000;

/// The keys of a waiting list, and the lock that its clients wait for.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) lock: &'a [u8],
    pub(super) list: &'a [u8],
    /// The reservation.
    pub(super) turn: &'a [u8],
}

/// For whom the lock is reserved.
#[derive(Clone, Debug)]
pub(super) struct Reserved {
    /// Empty for nobody.
    pub(super) whom: Vec<u8>,
    /// Milliseconds.
    pub(super) left: f64,
    /// When the call of that client began.
    pub(super) began: f64,
}

impl Reserved {
    pub(super) const NONE: Reserved = Reserved { whom: Vec::new(), left: 0.0, began: f64::INFINITY };

    pub(super) fn is_for(&self, me: &[u8]) -> bool {
        self.whom == me
    }

    pub(super) fn is_for_nobody(&self) -> bool {
        self.whom.is_empty()
    }

    /// As what is stored, from now on.
    fn value(&self, run: &Run<'_>) -> Vec<u8> {
        let till = format!("{:.0} ", run.ms() + self.left);
        [till.as_bytes(), &self.whom, format!(" {:.0}", self.began).as_bytes()].concat()
    }

    pub(super) fn store(&self, run: &mut Run<'_>, turn: &[u8]) {
        let value = self.value(run);
        run.keys.replace(turn, &value);
    }
}

/// What a reservation says: until when, for whom, and when that call began, as text.
fn parts(value: &[u8]) -> Option<(f64, &[u8], &[u8])> {
    let (till, whom, behind) = beginning(value)?;
    let began = behind.strip_prefix(b" ").unwrap_or(behind);
    began.iter().all(u8::is_ascii_digit).then_some((till, whom, began))
}

/// Until when, for whom, and what is behind that.
fn beginning(value: &[u8]) -> Option<(f64, &[u8], &[u8])> {
    let digits = value.iter().position(|it| !it.is_ascii_digit())?;
    let (till, rest) = value.split_at_checked(digits)?;
    let rest = rest.strip_prefix(b" ")?;
    let is_blank = |it: &u8| it.is_ascii_whitespace() || *it == 0x0b;
    let end = rest.iter().position(is_blank).unwrap_or(rest.len());
    let (whom, behind) = rest.split_at_checked(end).filter(|it| !it.0.is_empty())?;
    Some((number(till)?, whom, behind))
}

/// Until when the lock is reserved, in milliseconds since 1970.
pub(super) fn till(value: &[u8]) -> Option<f64> {
    beginning(value).map(|it| it.0)
}

pub(super) fn read_reservation(run: &mut Run<'_>, value: &[u8], list: &[u8]) -> Reserved {
    let Some((till, whom, began)) = parts(value) else { return Reserved::NONE };
    let left = till - run.ms();
    if left <= 0.0 || RESERVATION < left {
        let members: Vec<_> = members(whom).collect();
        let _ = run.keys.zrem(list, &members);
        return Reserved::NONE;
    }
    Reserved { whom: whom.to_vec(), left, began: number(began).unwrap_or(f64::INFINITY) }
}

fn members(whom: &[u8]) -> impl Iterator<Item = &[u8]> {
    whom.split(|it| b"*,".contains(it)).filter(|it| !it.is_empty())
}

/// The lock is reserved for no client any more. `me` leaves the list, if it is given.
pub(super) fn end_reservation(run: &mut Run<'_>, line: Line<'_>, me: Option<&[u8]>) {
    let mut waits = run.keys.exists(line.list);
    if let Some(me) = me.filter(|_| waits)
        && run.keys.zrem(line.list, &[me]) == Ok(1.0)
    {
        waits = run.keys.exists(line.list);
    }
    if waits {
        run.keys.replace(line.turn, b"0 ");
    } else {
        run.keys.del(line.turn);
    }
}

pub(super) fn is_reader(member: &[u8]) -> bool {
    let digits = member.iter().position(|it| !it.is_ascii_hexdigit());
    digits.is_some_and(|it| it != 0 && member.get(it) == Some(&b'r'))
}

/// What a client is told instead of the lock key, if it waits for more than this lock.
pub(super) fn told<'a>(member: &'a [u8], lock: &'a [u8]) -> &'a [u8] {
    if 16 < member.len() { member.get(17..).unwrap_or_default() } else { lock }
}

/// Whether it is notified over the connection that entered it; it polls if not.
pub(super) fn is_notified(entered: f64) -> bool {
    entered % 1.0 == 0.0
}

/// For whom else than `me` the lock is reserved; empty for nobody.
pub(super) fn reserved_for_others(whom: &[u8], me: &[u8]) -> Vec<u8> {
    if !whom.starts_with(b"*") {
        return if whom == me { Vec::new() } else { whom.to_vec() };
    }
    let others: Vec<_> = members(whom).filter(|it| *it != me).collect();
    if others.is_empty() { Vec::new() } else { [b"*", &others.join(&b","[..])[..]].concat() }
}

/// Reserves the lock for the first client in the list that is still there, unless `me`, whose call began at `since`, comes
/// before it. `expected`: the readers for which it is reserved already, while it is shared.
///
/// Returns for whom it is reserved now, and for how long `me` may not take it.
pub(super) fn reserve(
    run: &mut Run<'_>,
    line: Line<'_>,
    me: &[u8],
    since: f64,
    expected: Option<&[u8]>,
) -> (Vec<u8>, f64) {
    let (mut gone, mut readers, mut whom, mut began) = (Vec::new(), Vec::new(), Vec::new(), None);
    let (mut at, mut size, mut left, mut is_done) = (0_usize, 1_usize, 0.0, false);
    while !is_done && size != 0 {
        let some = run.keys.zrange(line.list, at, size);
        is_done = some.len() < size;
        for (member, entered) in some {
            let reads = is_reader(&member);
            let is_behind = since < entered || since == entered && me < &member[..];
            if member == me || is_behind || !reads && (expected.is_some() || !readers.is_empty()) {
                is_done = true;
                break;
            }
            let what = if reads { line.lock } else { told(&member, line.lock) };
            let is_told = run.tell(&member, what) != 0;
            if is_told || is_notified(entered) {
                gone.push(member.clone());
            }
            if is_told || !is_notified(entered) {
                left = RESERVATION;
                began = began.or(Some(entered));
                if !reads {
                    (whom, is_done) = (member, true);
                    break;
                }
                readers.push(member);
            }
        }
        at = at.saturating_add(size);
        size = size.saturating_mul(8).min(REMOVED_MAX.saturating_sub(at));
    }
    let _ = run.keys.zrem(line.list, &gone);
    let expected = expected.filter(|it| !it.is_empty());
    if !readers.is_empty() || expected.is_some() {
        let all = expected.and_then(|it| it.get(1..)).map(<[u8]>::to_vec).into_iter().chain(readers);
        whom = [b"*", &all.collect::<Vec<_>>().join(&b","[..])[..]].concat();
    }
    if whom.is_empty() {
        end_reservation(run, line, None);
        left = if is_done { 0.0 } else { 1.0 };
    } else {
        let reserved = Reserved { whom: whom.clone(), left: RESERVATION, began: began.unwrap_or(0.0) };
        reserved.store(run, line.turn);
    }
    (whom, left)
}

/// Enters a call in the list; 1 if that was done.
pub(super) fn enter(run: &mut Run<'_>, line: Line<'_>, entry: Entry<'_>, reserved_for: &[u8]) -> f64 {
    let score = if entry.is_told { entry.since } else { entry.since + 0.5 };
    if run.keys.zadd(line.list, score, entry.member).is_err() {
        return 0.0;
    }
    let mut kept = run.keys.pttl(line.list);
    if kept < entry.life {
        run.keys.expire(line.list, entry.life);
        kept = entry.life;
    }
    if reserved_for.is_empty() || reserved_for == entry.member {
        run.keys.set(line.turn, b"0 ", Some(kept));
    } else {
        run.keys.expire(line.turn, kept);
    }
    1.0
}

/// A release: the call that goes on waiting enters the list, and a client without one leaves it.
pub(super) fn update_list(run: &mut Run<'_>, line: Line<'_>, leaving: &Leaving<'_>, reserved_for: &[u8]) {
    if let Some(entry) = leaving.entry {
        enter(run, line, entry, reserved_for);
    } else if !leaving.me.is_empty() && leaving.since.is_none() {
        let _ = run.keys.zrem(line.list, &[leaving.me]);
    }
}

/// The lock stays reserved for others. If the list is empty, only this reservation needs to live.
pub(super) fn keep_reservation(run: &mut Run<'_>, line: Line<'_>) {
    if !run.keys.exists(line.list) {
        run.keys.expire(line.turn, RESERVATION);
    }
}

/// The label in the value of a lock, behind the random part.
pub(super) fn label(owner: &[u8]) -> Vec<u8> {
    let is_named = owner.len() <= 96 && owner.iter().position(|it| !it.is_ascii_hexdigit()) == Some(32);
    let label = owner.get(32..).and_then(|it| it.strip_prefix(b" ")).filter(|_| is_named);
    label.unwrap_or_default().to_vec()
}
