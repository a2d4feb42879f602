//! `acquire.lua`, `raise.lua`, `extend.lua`, `release.lua`.

use super::call::{Args, Leaving, Outcome, Run, Wish, to_number, wrong_number};
use super::canary::quarantine_left;
use super::counter::{keep_counter, raise_counter, read_counter, set_counter, set_counter_to, whole};
use super::keyspace::WrongType;
use super::reply::Reply;
use super::reservation::{
    Line, Reserved, SHARED, end_reservation, enter, keep_reservation, label, read_reservation, reserve,
    reserved_for_others, update_list,
};

pub(super) fn acquire(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, fence, list, turn, canary] = keys.array()?;
    let line = Line { lock, list, turn };
    let wish = Wish::of(args, 10)?;
    let now = run.now;
    if wish.is_far_ahead(now) {
        let counter = whole(run.keys.text(fence).as_deref()).unwrap_or(0.0);
        if counter + 1.0 < wish.proposal {
            return Ok(Reply::numbers([5.0, counter, 0.0, 0.0, now]));
        }
    }

    let taken = run.keys.set_new(lock, wish.owner, wish.ttl);
    if !taken || run.keys.exists(turn) {
        let mut owner = wish.owner.to_vec();
        if !taken {
            let Some(found) = run.keys.text(lock) else {
                return Ok(Reply::numbers([-1.0, 0.0, 0.0, 0.0, now]));
            };
            owner = found;
        }
        let reservation = run.keys.text(turn);
        let mut reserved = Reserved::NONE;
        if let Some(reservation) = &reservation {
            reserved = read_reservation(run, reservation, list);
            if taken && (reserved.is_for_nobody() || !reserved.is_for(wish.me)) {
                let since = wish.limit(now);
                if reserved.is_for_nobody() {
                    (reserved.whom, reserved.left) = reserve(run, line, wish.me, since, None);
                } else if wish.is_unfair && since <= reserved.began {
                    reserved.left = 0.0;
                }
                if 0.0 < reserved.left {
                    run.keys.del(lock);
                    return Ok(refuse(run, 3.0, reserved.left, fence, line, &wish, &reserved));
                }
            }
        }
        let left = run.keys.pttl(lock);
        if owner == SHARED {
            return Ok(refuse(run, 6.0, left, fence, line, &wish, &reserved));
        }
        if owner != wish.owner {
            return Ok(refuse(run, 0.0, left, fence, line, &wish, &reserved).and(Reply::Bulk(label(&owner))));
        }
        if reservation.is_some() && !wish.me.is_empty() {
            if reserved.is_for_nobody() || reserved.is_for(wish.me) {
                end_reservation(run, line, Some(wish.me));
            } else {
                let _ = run.keys.zrem(list, &[wish.me]);
            }
        }
    }

    let Ok(seen) = set_counter(run, fence, wish.proposed, wish.life) else {
        run.keys.del(lock);
        return Ok(Reply::numbers([-1.0, 0.0, 0.0, 0.0, now]));
    };
    let Some(seen) = seen else {
        let (mut left, mut quarantine_until) = (0.0, 0.0);
        if wish.quarantine != 0.0 {
            (left, quarantine_until) = quarantine_left(run, canary, wish.quarantine);
        }
        if left != 0.0 {
            run.keys.del(lock);
            run.keys.del(fence);
            return Ok(Reply::numbers([4.0, 0.0, left, 0.0, now]));
        }
        if quarantine_until < wish.proposal {
            return Ok(Reply::number(now));
        }
        set_counter_to(run, fence, quarantine_until, wish.life)?;
        return Ok(Reply::numbers([2.0, quarantine_until, 0.0, 0.0, now]));
    };
    if seen.len() == wish.proposed.len() && &seen[..] < wish.proposed {
        return Ok(Reply::number(now));
    }
    let number = whole(Some(&seen));
    if number.is_some_and(|it| it < wish.proposal) {
        return Ok(Reply::number(now));
    }
    set_counter(run, fence, &seen, wish.life)?;
    if let Some(number) = number {
        return Ok(Reply::numbers([2.0, number, 0.0, 0.0, now]));
    }
    run.keys.del(lock);
    Ok(Reply::numbers([-2.0, 0.0, 0.0, 0.0, now]))
}

/// The answer to a client that does not get the lock. It enters the waiting list in the same step.
fn refuse(
    run: &mut Run<'_>,
    status: f64,
    left: f64,
    fence: &[u8],
    line: Line<'_>,
    wish: &Wish<'_>,
    reserved: &Reserved,
) -> Reply {
    let counter = whole(run.keys.text(fence).as_deref()).unwrap_or(0.0);
    let entered = wish.entry.map_or(0.0, |it| enter(run, line, it, &reserved.whom));
    Reply::numbers([status, counter, left, entered, run.now])
}

pub(super) fn raise(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, fence] = keys.array()?;
    let [me, token, life] = args.array()?;
    let (owner, counter) = (run.keys.text(lock), run.keys.text(fence));
    let seen = match read_counter(run, fence, counter.as_deref()) {
        Ok(seen) => seen,
        Err(wrong) => return Ok(Reply::numbers([wrong, 0.0])),
    };
    if owner.as_deref() != Some(me) {
        return Ok(Reply::numbers([0.0, seen]));
    }
    if to_number(token)? <= seen {
        return Ok(Reply::numbers([2.0, seen]));
    }
    set_counter(run, fence, token, life)?;
    Ok(Reply::numbers([1.0, seen]))
}

/// The arguments of a script that extends.
pub(super) struct Extension<'a> {
    pub(super) me: &'a [u8],
    pub(super) ttl: f64,
    pub(super) token: f64,
    /// As it was sent.
    pub(super) token_text: &'a [u8],
    /// Of the counter.
    pub(super) life: &'a [u8],
    pub(super) quarantine: f64,
    /// The counter gets its full life again.
    pub(super) keeps: bool,
    pub(super) heals: bool,
}

impl<'a> Extension<'a> {
    pub(super) fn of(args: Args<'a>) -> Result<Extension<'a>, super::call::Refused> {
        if args.len() != 5 && args.len() != 6 {
            return Err(wrong_number());
        }
        Ok(Extension {
            me: args.at(1),
            ttl: args.number(2)?,
            token: args.number(3)?,
            token_text: args.at(3),
            life: args.at(4),
            quarantine: args.number(5)?,
            keeps: args.len() == 6,
            heals: args.at(6) == b"heal",
        })
    }

    /// Gives a key its full length of life again, and never a shorter one. Returns how long it had.
    pub(super) fn extend(&self, run: &mut Run<'_>, lock: &[u8]) -> f64 {
        let left = run.keys.pttl(lock);
        if 0.0 <= left && left < self.ttl {
            run.keys.expire(lock, self.ttl);
        }
        left
    }

    pub(super) fn keep_counter(&self, run: &mut Run<'_>, fence: &[u8]) {
        if self.keeps {
            keep_counter(run, fence, self.life);
        }
    }

    /// The counter is the token now, or lives on.
    pub(super) fn settle_counter(&self, run: &mut Run<'_>, fence: &[u8], seen: f64) -> Result<(), WrongType> {
        if seen < self.token {
            set_counter(run, fence, self.token_text, self.life)?;
        } else {
            self.keep_counter(run, fence);
        }
        Ok(())
    }

    /// The status of a lock without a counter, on a node in quarantine.
    pub(super) fn in_quarantine(status: f64) -> f64 {
        if status == 1.0 { 5.0 } else { status }
    }

    /// How long the quarantine of this node lasts, if it has one.
    pub(super) fn quarantine_left(&self, run: &mut Run<'_>, canary: &[u8]) -> f64 {
        if self.quarantine == 0.0 { 0.0 } else { quarantine_left(run, canary, self.quarantine).0 }
    }
}

pub(super) fn extend(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let [lock, fence, canary] = keys.array()?;
    let wish = Extension::of(args)?;
    let now = run.now;
    let (owner, counter) = (run.keys.text(lock), run.keys.text(fence));
    let is_ours = owner.as_deref() == Some(wish.me);
    if is_ours && counter.as_deref() == Some(wish.token_text) {
        wish.extend(run, lock);
        wish.keep_counter(run, fence);
        return Ok(Reply::number(now));
    }
    let seen = match read_counter(run, fence, counter.as_deref()) {
        Ok(seen) => seen,
        Err(wrong) => return Ok(Reply::numbers([wrong, 0.0, now, 0.0])),
    };
    if owner.is_some() && !is_ours {
        return Ok(Reply::numbers([3.0, seen, now, 0.0]));
    }
    if owner.is_none() && (!wish.heals || wish.token < seen) {
        return Ok(Reply::numbers([0.0, seen, now, 0.0]));
    }
    if wish.token < seen {
        return Ok(Reply::numbers([2.0, seen, now, 0.0]));
    }

    let (mut status, mut left) = (1.0, 0.0);
    if is_ours {
        left = wish.extend(run, lock);
    } else if run.keys.set_new(lock, wish.me, wish.ttl) {
        status = 4.0;
    } else {
        return Ok(Reply::numbers([3.0, seen, now, 0.0]));
    }

    if counter.is_none() {
        let quarantine = wish.quarantine_left(run, canary);
        if 0.0 < quarantine {
            return Ok(Reply::numbers([Extension::in_quarantine(status), seen, now, quarantine]));
        }
    }
    wish.settle_counter(run, fence, seen)?;
    Ok(Reply::numbers([status, seen, now, left]))
}

pub(super) fn release(run: &mut Run<'_>, keys: Args<'_>, args: Args<'_>) -> Outcome {
    let (lock, list, turn, fence) = (keys.at(1), keys.at(2), keys.at(3), keys.get(4));
    if args.len() == 0 || !(3..=4).contains(&keys.len()) {
        return Err(wrong_number());
    }
    let line = Line { lock, list, turn };
    let leaving = Leaving::of(args, if fence.is_some() { 3 } else { 1 }, 0)?;
    let (owner, reservation) = (run.keys.text(lock), run.keys.text(turn));
    let mut deleted = false;
    if owner.as_deref() == Some(args.at(1)) {
        if let Some(fence) = fence {
            let counter = run.keys.text(fence);
            raise_counter(run, fence, counter.as_deref(), args.at(2), args.at(3));
        }
        deleted = run.keys.del(lock);
    }
    let reply = Ok(Reply::Int(i64::from(deleted)));
    if reservation.is_none() && leaving.entry.is_none() {
        return reply;
    }

    let reserved = reservation.map_or(Reserved::NONE, |it| read_reservation(run, &it, list));
    update_list(run, line, &leaving, &reserved.whom);
    let others = reserved_for_others(&reserved.whom, leaving.me);
    if owner.as_deref() == Some(SHARED) && (others.is_empty() || others.starts_with(b"*")) {
        reserve(run, line, b"", f64::INFINITY, Some(&others));
        return reply;
    }
    if !others.is_empty() {
        stay_reserved(run, line, &reserved, others);
        return reply;
    }
    if deleted || owner.is_none() {
        reserve(run, line, leaving.me, leaving.limit(), None);
    } else {
        end_reservation(run, line, None);
    }
    reply
}

/// The lock stays reserved for clients that were notified, without those who have left.
pub(super) fn stay_reserved(run: &mut Run<'_>, line: Line<'_>, reserved: &Reserved, others: Vec<u8>) {
    if others != reserved.whom {
        Reserved { whom: others, ..reserved.clone() }.store(run, line.turn);
    }
    keep_reservation(run, line);
}
