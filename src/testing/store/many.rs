//! `acquire_many.lua`, `raise_many.lua`, `extend_many.lua`, `release_many.lua`.

use super::call::{Args, Leaving, Outcome, Run, Wish, to_number, wrong_number};
use super::canary::quarantine_left;
use super::counter::{NO_NUMBER, NO_TEXT, raise_counter, read_counter, set_counter, set_counter_to, whole};
use super::mutex::Extension;
use super::number::{number, of_len};
use super::reply::Reply;
use super::reservation::{
    Line, Reserved, SHARED, end_reservation, enter, keep_reservation, label, read_reservation, reserve,
};

/// One of the locks: its keys, and what was found under them.
struct Lock<'a> {
    line: Line<'a>,
    fence: &'a [u8],
    owner: Option<Vec<u8>>,
    counter: Option<Vec<u8>>,
    reservation: Option<Vec<u8>>,
    /// For whom it is reserved, once that was looked at.
    reserved: Option<Reserved>,
}

impl<'a> Lock<'a> {
    fn all(run: &Run<'_>, keys: [Vec<&'a [u8]>; 4]) -> Vec<Lock<'a>> {
        let [locks, fences, turns, lists] = keys;
        let keys = locks.into_iter().zip(fences).zip(turns).zip(lists);
        let locks = keys.map(|(((lock, fence), turn), list)| {
            let [owner, counter, reservation] = [lock, fence, turn].map(|it| run.keys.text(it));
            Lock { line: Line { lock, list, turn }, fence, owner, counter, reservation, reserved: None }
        });
        locks.collect()
    }

    fn is_taken(&self, me: &[u8]) -> bool {
        self.owner.as_deref().is_some_and(|it| it != me)
    }

    /// Whether it is reserved for nobody else, as far as that was looked at.
    fn may_be_passed_on(&self, me: &[u8]) -> bool {
        self.reserved.as_ref().is_some_and(|it| it.is_for_nobody() || it.is_for(me))
    }
}

/// What is in the way of all of them: a key of another type, or a counter that is none, and of which.
fn unusable(run: &Run<'_>, locks: &[Lock<'_>]) -> Option<(f64, f64)> {
    let is_misused = |key: &[u8], found: &Option<Vec<u8>>| found.is_none() && run.keys.exists(key);
    let numbered = || locks.iter().enumerate().map(|(i, it)| (of_len(i) + 1.0, it));
    let counters = numbered().filter(|(_, it)| it.counter.is_some() && whole(it.counter.as_deref()).is_none());
    let bad = counters.map(|(i, _)| (NO_NUMBER, i)).next_back();
    let keys = numbered().map(|(i, it)| (i, it.line.lock, &it.owner));
    let keys = keys.chain(numbered().map(|(i, it)| (i, it.fence, &it.counter)));
    keys.filter(|(_, key, found)| is_misused(key, found)).map(|(i, ..)| (NO_TEXT, i)).next_back().or(bad)
}

pub(super) fn acquire(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let (groups, more) = keys.groups(1)?;
    let [canary] = more[..] else { return Err(wrong_number()) };
    let mut locks = Lock::all(run, groups);
    let wish = Wish::of(args, 10)?;
    let (me, now) = (wish.me, run.now);

    let counters = || locks.iter().filter_map(|it| whole(it.counter.as_deref()));
    let mut largest = counters().fold(0.0, f64::max);
    let missing = locks.iter().any(|it| it.counter.is_none());
    if wish.is_far_ahead(now) && largest + 1.0 < wish.proposal {
        return Ok(Reply::numbers([5.0, largest, 0.0, 0.0, now, 0.0]));
    }
    let bad = unusable(run, &locks);
    let taken = locks.iter().position(|it| it.is_taken(wish.owner));
    let is_contended = locks.iter().any(|it| it.reservation.is_some());

    if taken.is_some() || is_contended {
        let mut which = taken;
        for (i, lock) in locks.iter_mut().enumerate() {
            let Some(reservation) = &lock.reservation else { continue };
            let mut reserved = read_reservation(run, reservation, lock.line.list);
            if which.is_none() && (reserved.is_for_nobody() || !reserved.is_for(me)) {
                let since = wish.limit(now);
                if reserved.is_for_nobody() {
                    (reserved.whom, reserved.left) = reserve(run, lock.line, me, since, None);
                } else if wish.is_unfair && since <= reserved.began {
                    reserved.left = 0.0;
                }
                if 0.0 < reserved.left {
                    which = Some(i);
                }
            }
            lock.reserved = Some(reserved);
        }
        if let Some((i, lock)) = which.and_then(|it| Some((it, locks.get(it)?))) {
            let owner = lock.owner.clone().filter(|_| taken.is_some());
            let (status, left) = match &owner {
                Some(owner) if owner == SHARED => (6.0, run.keys.pttl(lock.line.lock)),
                Some(_) => (0.0, run.keys.pttl(lock.line.lock)),
                None => (3.0, lock.reserved.as_ref().map_or(0.0, |it| it.left)),
            };
            let entered = refuse(run, &locks, i, &wish);
            let reply = Reply::numbers([status, largest, left, entered, now, of_len(i) + 1.0]);
            let holder = owner.filter(|_| status == 0.0).map(|it| Reply::Bulk(label(&it)));
            return Ok(holder.into_iter().fold(reply, Reply::and));
        }
        if bad.is_none() && !me.is_empty() {
            for lock in locks.iter().filter(|it| it.reserved.is_some()) {
                let _ = run.keys.zrem(lock.line.list, &[me]);
                if lock.may_be_passed_on(me) {
                    end_reservation(run, lock.line, None);
                }
            }
        }
    }

    if let Some((status, which)) = bad {
        return Ok(Reply::numbers([status, 0.0, 0.0, 0.0, now, which]));
    }
    let mut quarantine_until = 0.0;
    if missing && wish.quarantine != 0.0 {
        let left;
        (left, quarantine_until) = quarantine_left(run, canary, wish.quarantine);
        if 0.0 < left {
            return Ok(Reply::numbers([4.0, 0.0, left, 0.0, now, 0.0]));
        }
    }
    for lock in locks.iter().filter(|it| it.owner.is_none()) {
        run.keys.set(lock.line.lock, wish.owner, Some(wish.ttl));
    }
    if missing {
        largest = largest.max(quarantine_until);
    }
    if largest < wish.proposal {
        for lock in &locks {
            set_counter(run, lock.fence, wish.proposed, wish.life)?;
        }
        return Ok(Reply::number(now));
    }
    for lock in locks.iter().filter(|it| it.counter.is_none() && 0.0 < quarantine_until) {
        set_counter_to(run, lock.fence, quarantine_until, wish.life)?;
    }
    Ok(Reply::numbers([2.0, largest, 0.0, 0.0, now, 0.0]))
}

/// A client does not get the locks because of one of them: it enters the waiting list of that one, leaves the others, and
/// passes on those that are free. Returns 1 if it has entered.
fn refuse(run: &mut Run<'_>, locks: &[Lock<'_>], which: usize, wish: &Wish<'_>) -> f64 {
    let mut entered = 0.0;
    for (i, lock) in locks.iter().enumerate() {
        if let Some(entry) = wish.entry.filter(|_| i == which) {
            let reserved_for = lock.reserved.as_ref().map(|it| &it.whom[..]).unwrap_or_default();
            entered = enter(run, lock.line, entry, reserved_for);
        } else if lock.reservation.is_some() {
            if !wish.me.is_empty() {
                let _ = run.keys.zrem(lock.line.list, &[wish.me]);
            }
            if lock.may_be_passed_on(wish.me) {
                match lock.owner.as_deref() {
                    // Readers may have waited behind this call only.
                    Some(SHARED) => drop(reserve(run, lock.line, b"", f64::INFINITY, Some(b""))),
                    Some(_) => end_reservation(run, lock.line, None),
                    None => drop(reserve(run, lock.line, b"", f64::INFINITY, None)),
                }
            }
        }
    }
    entered
}

pub(super) fn raise(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let ([locks, fences], _) = keys.groups(0)?;
    let [me, token, life] = args.array()?;
    let (mut seen, mut owned) = (0.0_f64, true);
    for (lock, fence) in locks.iter().zip(&fences) {
        owned = owned && run.keys.text(lock).as_deref() == Some(me);
        match read_counter(run, fence, run.keys.text(fence).as_deref()) {
            Ok(number) => seen = seen.max(number),
            Err(wrong) => return Ok(Reply::numbers([wrong, 0.0])),
        }
    }
    if !owned {
        return Ok(Reply::numbers([0.0, seen]));
    }
    if to_number(token)? <= seen {
        return Ok(Reply::numbers([2.0, seen]));
    }
    for fence in fences {
        set_counter(run, fence, token, life)?;
    }
    Ok(Reply::numbers([1.0, seen]))
}

pub(super) fn extend(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let ([locks, fences], more) = keys.groups(1)?;
    let [canary] = more[..] else { return Err(wrong_number()) };
    let wish = Extension::of(args)?;
    let now = run.now;
    let mut found = Vec::new();
    for (lock, fence) in locks.into_iter().zip(fences) {
        let (owner, counter) = (run.keys.text(lock), run.keys.text(fence));
        match read_counter(run, fence, counter.as_deref()) {
            Ok(number) => found.push((lock, fence, owner, counter, number)),
            Err(wrong) => return Ok(Reply::numbers([wrong, 0.0, now, 0.0])),
        }
    }
    let seen = found.iter().map(|it| it.4).fold(0.0, f64::max);
    let missing = found.iter().any(|it| it.3.is_none());
    let gone = found.iter().any(|it| it.2.is_none());
    let mut taken = found.iter().any(|it| it.2.as_deref().is_some_and(|owner| owner != wish.me));
    let mut heals = wish.heals && gone && !taken && seen <= wish.token;
    if heals {
        // A key of another type is not gone.
        taken = found.iter().any(|it| it.2.is_none() && run.keys.exists(it.0));
        heals = !taken;
    }
    for (lock, _, owner, _, number) in &found {
        if owner.as_deref() == Some(wish.me) && *number <= wish.token {
            wish.extend(run, lock);
        } else if owner.is_none() && heals {
            run.keys.set(lock, wish.me, Some(wish.ttl));
        }
    }
    let failed = match () {
        () if taken => Some(3.0),
        () if gone && !heals => Some(0.0),
        () if wish.token < seen => Some(2.0),
        () => None,
    };
    if let Some(status) = failed {
        return Ok(Reply::numbers([status, seen, now, 0.0]));
    }

    let mut status = if heals { 4.0 } else { 1.0 };
    let quarantine = if missing { wish.quarantine_left(run, canary) } else { 0.0 };
    for (_, fence, _, counter, number) in found {
        if counter.is_none() && 0.0 < quarantine {
            status = Extension::in_quarantine(status);
        } else {
            wish.settle_counter(run, fence, number)?;
        }
    }
    if status == 1.0 { Ok(Reply::number(now)) } else { Ok(Reply::numbers([status, seen, now, quarantine])) }
}

pub(super) fn release(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let (groups, _) = keys.groups(0)?;
    let locks = Lock::all(run, groups);
    let leaving = Leaving::of(args, 3, 1)?;
    let (owner, way) = (args.at(1), number(args.at(7)));
    for lock in locks.iter().filter(|it| it.owner.as_deref() == Some(owner)) {
        if !args.at(2).is_empty() {
            raise_counter(run, lock.fence, lock.counter.as_deref(), args.at(2), args.at(3));
        }
    }
    let owned = locks.iter().filter(|it| it.owner.as_deref() == Some(owner));
    let deleted = owned.map(|it| run.keys.del(it.line.lock)).count();
    let reply = Ok(Reply::Int(i64::from(deleted == locks.len())));
    if leaving.entry.is_none() && locks.iter().all(|it| it.reservation.is_none()) {
        return reply;
    }

    for (i, lock) in locks.iter().enumerate() {
        let entry = leaving.entry.filter(|_| way == Some(of_len(i) + 1.0));
        if lock.reservation.is_none() && entry.is_none() {
            continue;
        }
        let line = lock.line;
        let reserved = lock.reservation.as_ref().map_or(Reserved::NONE, |it| read_reservation(run, it, line.list));
        if let Some(entry) = entry {
            enter(run, line, entry, &reserved.whom);
        } else if !leaving.me.is_empty() && (leaving.entry.is_some() || leaving.since.is_none()) {
            let _ = run.keys.zrem(line.list, &[leaving.me]);
        }
        let is_free = lock.owner.as_deref().is_none_or(|it| it == owner);
        if !reserved.is_for_nobody() && !reserved.is_for(leaving.me) {
            keep_reservation(run, line);
        } else if is_free {
            let comes_before = entry.is_some() || leaving.since.is_some() && leaving.entry.is_none();
            let (me, since) = if comes_before { (leaving.me, leaving.limit()) } else { (&b""[..], f64::INFINITY) };
            reserve(run, line, me, since, None);
        } else if lock.owner.as_deref() == Some(SHARED) {
            // Readers may have waited behind this call only.
            reserve(run, line, b"", f64::INFINITY, Some(b""));
        } else {
            end_reservation(run, line, None);
        }
    }
    reply
}
