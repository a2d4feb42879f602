//! `acquire_shared.lua`, `raise_shared.lua`, `extend_shared.lua`, `release_shared.lua`.

use super::call::{Args, Leaving, Outcome, Run, Wish, to_number, wrong_number};
use super::canary::quarantine_left;
use super::counter::{NO_TEXT, keep_counter, read_counter, set_counter, set_counter_to, whole};
use super::mutex::{Extension, stay_reserved};
use super::reply::Reply;
use super::reservation::{
    Line, RESERVATION, Reserved, SHARED, end_reservation, enter, is_notified, is_reader, label, read_reservation,
    reserve, reserved_for_others, told, update_list,
};

/// How many members of the waiting list one run looks at.
const SEEN_MAX: usize = 1000;
/// No entry of a reader lasts for longer: milliseconds.
const ENTRY_MAX: f64 = 7_200_000.0;

pub(super) fn acquire(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, fence, list, turn, canary, readers] = keys.array()?;
    let line = Line { lock, list, turn };
    let wish = Wish::of(args, 10)?;
    let (now, ms, me) = (run.now, run.ms(), wish.me);
    let [found, counter, reservation] = [lock, fence, turn].map(|it| run.keys.text(it));

    // For whom the lock is reserved besides this call; and whether readers that wait are told if it comes in.
    let mut tell_readers = None;
    if reservation.is_some() || found.as_deref().is_some_and(|it| it != SHARED) {
        let reserved = reservation.as_ref().map_or(Reserved::NONE, |it| read_reservation(run, it, list));
        let others = reserved_for_others(&reserved.whom, me);
        let mut comes_in = others != reserved.whom;
        if found.is_some() && !comes_in {
            comes_in = run.keys.zscore(readers, wish.owner).ok().flatten().is_some_and(|it| ms < it);
        }
        let refusal = Refusal { line, wish: &wish, counter: counter.as_deref(), before: reserved.whom.clone() };
        if let Some(owner) = found.as_deref().filter(|it| *it != SHARED) {
            let left = run.keys.pttl(lock);
            return Ok(refusal.reply(run, 0.0, left, &reserved, others).and(Reply::Bulk(label(owner))));
        }
        let limit = match &found {
            Some(_) if wish.is_unfair => 0.0,
            _ => wish.limit(now),
        };
        let is_for_writer = !reserved.is_for_nobody() && !reserved.whom.starts_with(b"*");
        if comes_in {
            // Nobody stands before it.
        } else if found.is_none() && is_for_writer {
            if !wish.is_unfair || reserved.began < limit {
                return Ok(refusal.reply(run, 3.0, reserved.left, &reserved, others));
            }
        } else if let Some((writer, began)) = writer_before(run, list, limit) {
            if found.is_none() && reserved.is_for_nobody() {
                let (whom, left) = reserve(run, line, me, limit, None);
                let refusal = Refusal { before: whom.clone(), ..refusal };
                return Ok(refusal.reply(run, 3.0, left, &reserved, whom));
            }
            if !is_notified(began) && reserved.is_for_nobody() {
                // It polls, and nobody knows whether it is still there.
                let reserved = Reserved { whom: writer.clone(), left: RESERVATION, began };
                reserved.store(run, turn);
                let refusal = Refusal { before: writer.clone(), ..refusal };
                return Ok(refusal.reply(run, 3.0, RESERVATION, &reserved, writer));
            }
            return Ok(refusal.reply(run, 3.0, RESERVATION, &reserved, others));
        }
        tell_readers = Some((is_for_writer, others));
    }

    let mut seen = match read_counter(run, fence, counter.as_deref()) {
        Ok(seen) => seen,
        Err(wrong) => return Ok(Reply::numbers([wrong, 0.0, 0.0, 0.0, now])),
    };
    if counter.is_none() {
        seen = wish.proposal;
        if wish.is_far_ahead(now) {
            return Ok(Reply::numbers([5.0, 0.0, 0.0, 0.0, now]));
        }
        if wish.quarantine != 0.0 {
            let (left, quarantine_until) = quarantine_left(run, canary, wish.quarantine);
            if 0.0 < left {
                return Ok(Reply::numbers([4.0, 0.0, left, 0.0, now]));
            }
            seen = seen.max(quarantine_until);
        }
    }

    let mut lasts = wish.ttl;
    if found.is_some() {
        lasts = run.keys.pttl(lock);
    } else if run.keys.set_new(lock, SHARED, wish.ttl) {
        run.keys.del(readers);
    } else {
        return Ok(Reply::numbers([NO_TEXT, 0.0, 0.0, 0.0, now]));
    }
    let Ok(added) = run.keys.zadd_new(readers, ms + wish.ttl, wish.owner) else {
        if found.is_none() {
            run.keys.del(lock);
        }
        return Ok(Reply::numbers([NO_TEXT, 0.0, 0.0, 0.0, now]));
    };
    if added {
        if 0.0 <= lasts && lasts < wish.ttl {
            lasts = wish.ttl;
            run.keys.expire(lock, wish.ttl);
        }
        run.keys.expire(readers, if lasts < 0.0 { ENTRY_MAX } else { lasts });
    }
    if counter.is_none() {
        set_counter_to(run, fence, seen, wish.life)?;
    } else {
        keep_counter(run, fence, wish.life);
    }
    if let Some((is_for_writer, others)) = tell_readers {
        if !me.is_empty() {
            let _ = run.keys.zrem(list, &[me]);
        }
        if !is_for_writer {
            reserve(run, line, b"", f64::INFINITY, Some(&others));
        }
    }
    Ok(Reply::numbers([7.0, seen, 0.0, 0.0, now]))
}

/// What the answer to a call that is not let in needs.
struct Refusal<'a> {
    line: Line<'a>,
    wish: &'a Wish<'a>,
    counter: Option<&'a [u8]>,
    /// For whom the lock is reserved.
    before: Vec<u8>,
}

impl Refusal<'_> {
    /// The call enters the waiting list in the same step. `others`: for whom else the lock is reserved.
    fn reply(&self, run: &mut Run<'_>, status: f64, left: f64, reserved: &Reserved, others: Vec<u8>) -> Reply {
        let mut entered = 0.0;
        if let Some(entry) = self.wish.entry {
            if !others.is_empty() && others != self.before {
                Reserved { whom: others.clone(), ..reserved.clone() }.store(run, self.line.turn);
            }
            entered = enter(run, self.line, entry, &others);
        }
        Reply::numbers([status, whole(self.counter).unwrap_or(0.0), left, entered, run.now])
    }
}

/// The first writer in the list that is still there, if it began before `limit`, and when that was. Those that are gone are
/// removed.
fn writer_before(run: &mut Run<'_>, list: &[u8], limit: f64) -> Option<(Vec<u8>, f64)> {
    let (mut gone, mut size, mut at, mut writer, mut is_done) = (Vec::new(), 1_usize, 0_usize, None, false);
    while !is_done && size != 0 {
        let some = run.keys.zrange(list, at, size);
        is_done = some.len() < size;
        for (member, entered) in some {
            if limit <= entered {
                is_done = true;
                break;
            }
            if !is_reader(&member) {
                if is_notified(entered) && run.listeners(&member) == 0 {
                    gone.push(member);
                } else {
                    (writer, is_done) = (Some((member, entered)), true);
                    break;
                }
            }
        }
        at = at.saturating_add(size);
        size = size.saturating_mul(8).min(SEEN_MAX.saturating_sub(at));
    }
    let _ = run.keys.zrem(list, &gone);
    writer
}

pub(super) fn raise(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, fence, readers] = keys.array()?;
    let [me, number, life] = args.array()?;
    let (found, counter) = (run.keys.text(lock), run.keys.text(fence));
    let seen = match read_counter(run, fence, counter.as_deref()) {
        Ok(seen) => seen,
        Err(wrong) => return Ok(Reply::numbers([wrong, 0.0])),
    };
    let is_shared = found.as_deref() == Some(SHARED);
    let Ok(score) = (if is_shared { run.keys.zscore(readers, me) } else { Ok(None) }) else {
        return Ok(Reply::numbers([NO_TEXT, 0.0]));
    };
    if score.is_none_or(|it| it <= run.ms()) {
        return Ok(Reply::numbers([0.0, seen]));
    }
    let wanted = to_number(number)?;
    if wanted < seen {
        return Ok(Reply::numbers([2.0, seen]));
    }
    if seen < wanted {
        set_counter(run, fence, number, life)?;
    }
    Ok(Reply::numbers([1.0, seen]))
}

pub(super) fn extend(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, fence, canary, readers, list, turn] = keys.array()?;
    let wish = Extension::of(args)?;
    let (now, ms) = (run.now, run.ms());
    let (found, counter) = (run.keys.text(lock), run.keys.text(fence));
    let seen = match read_counter(run, fence, counter.as_deref()) {
        Ok(seen) => seen,
        Err(wrong) => return Ok(Reply::numbers([wrong, 0.0, now, 0.0])),
    };
    let was_writer = found.as_deref() == Some(wish.me);
    let is_shared = found.as_deref() == Some(SHARED);
    if found.is_some() && !is_shared && !was_writer {
        return Ok(Reply::numbers([3.0, seen, now, 0.0]));
    }
    let Ok(score) = (if is_shared { run.keys.zscore(readers, wish.me) } else { Ok(None) }) else {
        return Ok(Reply::numbers([NO_TEXT, 0.0, now, 0.0]));
    };
    let stands = was_writer || score.is_some_and(|it| ms < it);
    if !stands && (!wish.heals || wish.token < seen) {
        return Ok(Reply::numbers([0.0, seen, now, 0.0]));
    }
    if wish.token < seen {
        return Ok(Reply::numbers([2.0, seen, now, 0.0]));
    }

    let mut lasts = if found.is_some() { run.keys.pttl(lock) } else { wish.ttl };
    if found.is_none() && !run.keys.set_new(lock, SHARED, wish.ttl) {
        return Ok(Reply::numbers([3.0, seen, now, 0.0]));
    }
    if was_writer {
        run.keys.set(lock, SHARED, (0.0 <= lasts).then_some(lasts.max(1.0)));
    }
    if !is_shared {
        run.keys.del(readers);
    }
    // What a writer has been given it keeps as a reader.
    let till = score.unwrap_or(0.0).max(ms + wish.ttl).max(if was_writer { ms + lasts } else { 0.0 });
    run.keys.zadd(readers, till, wish.me)?;
    let left = if found.is_some() { lasts } else { 0.0 };
    if 0.0 <= lasts && lasts < wish.ttl {
        lasts = wish.ttl;
        run.keys.expire(lock, wish.ttl);
    }
    run.keys.expire(readers, if lasts < 0.0 { ENTRY_MAX } else { lasts });

    if let Some(reservation) = run.keys.text(turn).filter(|_| was_writer) {
        let reserved = read_reservation(run, &reservation, list);
        if reserved.is_for_nobody() || reserved.whom.starts_with(b"*") {
            reserve(run, Line { lock, list, turn }, b"", f64::INFINITY, Some(&reserved.whom));
        }
    }

    let status = if stands { 1.0 } else { 4.0 };
    if counter.is_none() {
        let quarantine = wish.quarantine_left(run, canary);
        if 0.0 < quarantine {
            return Ok(Reply::numbers([Extension::in_quarantine(status), seen, now, quarantine]));
        }
    }
    wish.settle_counter(run, fence, seen)?;
    if status == 1.0 && seen == wish.token {
        return Ok(Reply::number(now));
    }
    Ok(Reply::numbers([status, seen, now, left.max(0.0)]))
}

pub(super) fn release(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, list, turn, readers] = keys.array()?;
    if args.len() == 0 {
        return Err(wrong_number());
    }
    let line = Line { lock, list, turn };
    let (owner, leaving) = (args.at(1), Leaving::of(args, 1, 0)?);
    let [found, reservation] = [lock, turn].map(|it| run.keys.text(it));
    let (mut ended, mut is_free, mut is_cut) = (0.0, found.is_none(), false);
    if found.as_deref() == Some(owner) {
        run.keys.del(lock);
        (ended, is_free) = (1.0, true);
    } else if found.as_deref() == Some(SHARED) {
        ended = run.keys.zrem(readers, &[owner])?;
        let ms = run.ms();
        run.keys.zretain(readers, |_, score| ms < score)?;
        match run.keys.zall(readers)?.last().map(|it| it.1 - ms) {
            None => {
                run.keys.del(lock);
                run.keys.del(readers);
                is_free = true;
            }
            Some(left) => {
                let before = run.keys.pttl(lock);
                if left < before {
                    run.keys.expire(lock, left);
                    run.keys.expire(readers, left);
                }
                // A reader that is alive is extended when a third of its life is over.
                is_cut = 3.0 * left < 2.0 * before;
            }
        }
    }
    let reply = Ok(Reply::number(ended));
    if reservation.is_none() && leaving.entry.is_none() {
        return reply;
    }

    let reserved = reservation.map_or(Reserved::NONE, |it| read_reservation(run, &it, list));
    let others = reserved_for_others(&reserved.whom, leaving.me);
    update_list(run, line, &leaving, &others);
    if !others.is_empty() {
        stay_reserved(run, line, &reserved, others);
    } else if is_free {
        reserve(run, line, leaving.me, leaving.limit(), None);
    } else {
        end_reservation(run, line, None);
        // The first writer has been told of a longer life. It stays in the list, and asks for how long it is now.
        let first = run.keys.zrange(list, 0, 1).into_iter().next().filter(|it| is_cut && !is_reader(&it.0));
        if let Some((first, _)) = first {
            run.tell(&first, told(&first, lock));
        }
    }
    reply
}
