//! `acquire_slot.lua` and `release_slots.lua`.

use super::call::{Args, Leaving, Outcome, Run, Wish, wrong_number};
use super::canary::quarantine_left;
use super::counter::{NO_NUMBER, NO_TEXT, raise_counter, set_counter, set_counter_to, whole};
use super::number::{number, of_len};
use super::reply::Reply;
use super::reservation::{
    Line, Reserved, end_reservation, enter, keep_reservation, read_reservation, reserve, update_list,
};

/// What an acquire has found.
struct Slots<'a> {
    keys: Vec<&'a [u8]>,
    /// What is in each slot; a key of another type is as if an owner without a token had it.
    found: Vec<Option<Vec<u8>>>,
    me: &'a [u8],
}

impl Slots<'_> {
    fn is_free(&self, slot: usize) -> bool {
        self.found.get(slot).is_some_and(Option::is_none)
    }

    fn is_mine(&self, slot: usize) -> bool {
        self.found.get(slot).is_some_and(|it| it.as_deref() == Some(self.me))
    }

    fn free(&self) -> f64 {
        of_len(self.found.iter().filter(|it| it.is_none()).count())
    }

    /// Which are free or mine: hex digits, the first four slots first.
    fn digits(&self) -> String {
        let usable: Vec<_> = (0..self.keys.len()).map(|it| self.is_free(it) || self.is_mine(it)).collect();
        let digit = |four: &[bool]| four.iter().rev().fold(0_u8, |digit, it| (digit << 1) | u8::from(*it));
        usable.chunks(4).map(|it| format!("{:x}", digit(it))).collect()
    }

    /// `slot`: from 1, 0 for none.
    fn reply(&self, run: &Run<'_>, [status, counter, left, entered]: [f64; 4], slot: f64) -> Reply {
        let numbers = [status, counter, left, entered, run.now, slot, of_len(self.keys.len())];
        Reply::numbers(numbers).and(Reply::bulk(self.digits()))
    }
}

pub(super) fn acquire(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let ([slots, fences], more) = keys.groups(3)?;
    let [turn, list, canary] = more[..] else { return Err(wrong_number()) };
    let wish = Wish::of(args, 12)?;
    let (me, now, count) = (wish.me, run.now, slots.len());
    let line = Line { lock: slots.first().copied().unwrap_or_default(), list, turn };
    let mut misused = 0.0;
    let mut found: Vec<_> = slots.iter().map(|it| run.keys.text(it)).collect();
    for (i, (key, found)) in slots.iter().zip(&mut found).enumerate() {
        if found.is_none() && run.keys.exists(key) {
            (*found, misused) = (Some(Vec::new()), of_len(i) + 1.0);
        }
    }
    let slots = Slots { keys: slots, found, me: wish.owner };
    let reservation = run.keys.text(turn);

    // The command may be executed for the second time.
    let mut slot = (0..count).rfind(|it| slots.is_mine(*it));
    let first = (0..count).find(|it| number(args.at(10)) == Some(of_len(*it) + 1.0)).ok_or_else(wrong_number)?;
    let looks = if args.at(11) == b"1" { 1 } else { count };
    let in_turn = (first..count).chain(0..first).take(looks);
    slot = slot.or_else(|| in_turn.into_iter().find(|it| slots.is_free(*it)));

    let fence = slot.and_then(|it| fences.get(it)).copied().unwrap_or_default();
    let number_of = |slot: Option<usize>| slot.map_or(0.0, |it| of_len(it) + 1.0);
    let mut counter = Ok(None);
    if slot.is_some() {
        counter = run.keys.get(fence);
    }
    let whole_counter = counter.as_ref().ok().and_then(|it| whole(it.as_deref())).unwrap_or(0.0);
    if slot.is_some() && wish.is_far_ahead(now) && whole_counter + 1.0 < wish.proposal {
        return Ok(slots.reply(run, [5.0, whole_counter, 0.0, 0.0], number_of(slot)));
    }

    let mut reserved = Reserved::NONE;
    if let Some(reservation) = &reservation {
        reserved = read_reservation(run, reservation, list);
        let takes = slot.is_some_and(|it| !slots.is_mine(it));
        if takes && (reserved.is_for_nobody() || !reserved.is_for(me)) {
            let since = wish.limit(now);
            if has_one_for_each(run, line, &slots, &reserved, me, since) {
                reserved.left = 0.0;
            } else if reserved.is_for_nobody() {
                (reserved.whom, reserved.left) = reserve(run, line, me, since, None);
            } else if wish.is_unfair && since <= reserved.began {
                reserved.left = 0.0;
            }
            if 0.0 < reserved.left {
                let entered = wish.entry.map_or(0.0, |it| enter(run, line, it, &reserved.whom));
                return Ok(slots.reply(run, [3.0, whole_counter, reserved.left, entered], 0.0));
            }
        }
    }
    let Some(taken) = slot else {
        let ends = slots.keys.iter().map(|it| run.keys.pttl(it)).filter(|it| 0.0 <= *it);
        let soonest = ends.reduce(f64::min).unwrap_or(-1.0);
        if soonest < 0.0 && misused != 0.0 {
            return Ok(slots.reply(run, [NO_TEXT, 0.0, 0.0, 0.0], misused));
        }
        let entered = wish.entry.map_or(0.0, |it| enter(run, line, it, &reserved.whom));
        return Ok(slots.reply(run, [0.0, 0.0, soonest, entered], 0.0));
    };
    if reservation.is_some() {
        if !me.is_empty() {
            let _ = run.keys.zrem(list, &[me]);
        }
        if reserved.is_for_nobody() || reserved.is_for(me) {
            // Its turn is over. While others are free, the next in the list is told.
            if (0..count).any(|it| it != taken && slots.is_free(it)) {
                reserve(run, line, b"", f64::INFINITY, None);
            } else {
                end_reservation(run, line, None);
            }
        }
    }

    let mut quarantine_until = 0.0;
    let Ok(counter) = counter else {
        return Ok(slots.reply(run, [NO_TEXT, 0.0, 0.0, 0.0], number_of(slot)));
    };
    match &counter {
        None if wish.quarantine != 0.0 => {
            let left;
            (left, quarantine_until) = quarantine_left(run, canary, wish.quarantine);
            if 0.0 < left {
                return Ok(slots.reply(run, [4.0, 0.0, left, 0.0], 0.0));
            }
        }
        Some(counter) if whole_counter == 0.0 && counter != b"0" => {
            return Ok(slots.reply(run, [NO_NUMBER, 0.0, 0.0, 0.0], number_of(slot)));
        }
        _ => {}
    }
    if !slots.is_mine(taken) {
        run.keys.set(slots.keys.get(taken).copied().unwrap_or_default(), wish.owner, Some(wish.ttl));
    }
    let seen = whole_counter.max(quarantine_until);
    if seen < wish.proposal {
        set_counter(run, fence, wish.proposed, wish.life)?;
        return Ok(slots.reply(run, [1.0, 0.0, 0.0, 0.0], number_of(slot)));
    }
    if counter.is_none() && 0.0 < quarantine_until {
        set_counter_to(run, fence, quarantine_until, wish.life)?;
    }
    Ok(slots.reply(run, [2.0, seen, 0.0, 0.0], number_of(slot)))
}

/// Whether there are more free slots than clients that come before `me`, whose call began at `since`.
fn has_one_for_each(
    run: &Run<'_>,
    line: Line<'_>,
    slots: &Slots<'_>,
    reserved: &Reserved,
    me: &[u8],
    since: f64,
) -> bool {
    let free = slots.free() - if reserved.is_for_nobody() { 0.0 } else { 1.0 };
    if free <= 0.0 {
        return false;
    }
    // As many as there are free slots, and one more: that is more than can matter.
    let looked_at =
        slots.found.iter().filter(|it| it.is_none()).count().saturating_add(usize::from(reserved.is_for_nobody()));
    let before = run.keys.zrange(line.list, 0, looked_at).into_iter().filter(|(member, entered)| {
        !reserved.is_for(member) && (*entered < since || *entered == since && &member[..] < me)
    });
    of_len(before.count()) < free
}

pub(super) fn release(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let ([slots, fences], more) = keys.groups(2)?;
    let [turn, list] = more[..] else { return Err(wrong_number()) };
    let line = Line { lock: slots.first().copied().unwrap_or_default(), list, turn };
    let (owner, keep) = (args.at(1), args.number(2)?);
    let leaving = Leaving::of(args, 4, 0)?;
    let reservation = run.keys.text(turn);
    let (mut deleted, mut is_free) = (0, false);
    // What is in a slot is read before any is deleted.
    let found: Vec<_> = slots.iter().map(|it| run.keys.text(it)).collect();
    for (i, (slot, fence)) in slots.iter().zip(&fences).enumerate() {
        let found = found.get(i).and_then(Option::as_deref);
        if found == Some(owner) && of_len(i) + 1.0 != keep {
            if !args.at(3).is_empty() {
                let counter = run.keys.text(fence);
                raise_counter(run, fence, counter.as_deref(), args.at(3), args.at(4));
            }
            run.keys.del(slot);
            (deleted, is_free) = (1, true);
        }
        is_free |= found.is_none();
    }
    let reply = Ok(Reply::Int(deleted));
    if reservation.is_none() && leaving.entry.is_none() {
        return reply;
    }

    let reserved = reservation.map_or(Reserved::NONE, |it| read_reservation(run, &it, list));
    update_list(run, line, &leaving, &reserved.whom);
    if !reserved.is_for_nobody() && !reserved.is_for(leaving.me) {
        keep_reservation(run, line);
    } else if is_free {
        reserve(run, line, leaving.me, leaving.limit(), None);
    } else {
        end_reservation(run, line, None);
    }
    reply
}
