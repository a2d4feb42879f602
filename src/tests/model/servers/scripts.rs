//! What a server does with a command.

use super::*;
use crate::answer::{LockReply, LockStatus};

impl<N: Number> Turn<'_, N> {
    fn is_too_far(&self, proposal: N) -> bool {
        self.latest.is_some_and(|latest| latest < proposal)
    }
}

impl<N: Number, R: Readers<N>, L: Lists<N>, V: Stored<N>, const K: usize> Server<N, R, L, V, K> {
    /// The largest of these.
    fn counter(&self, locks: Locks, mistake: Mistake) -> N {
        let counted = match mistake {
            Mistake::TokenAboveTheFirst => 1,
            _ => K,
        };
        let counters = locks.iter().take(counted);
        let counters = counters.map(|it| self.locks[*it].counter);
        counters.max().unwrap_or_default()
    }

    /// Whether nobody can tell from a counter what was granted here.
    fn is_lost(&self, counter: N, mistake: Mistake) -> bool {
        match mistake {
            Mistake::TakesAnyCounter => false,
            Mistake::TakesCountersFrom(least) => {
                counter == N::default()
                    || counter < self.record.quarantine_end() && counter.into() < least.into()
            }
            _ => counter == N::default() || counter < self.record.quarantine_end(),
        }
    }

    /// What a token has to be above where this is the counter.
    fn floor(&self, counter: N, mistake: Mistake) -> N {
        if self.is_lost(counter, mistake) {
            self.record.quarantine_end()
        } else {
            counter
        }
    }

    /// Whether a lock has another owner, or readers.
    fn is_others(&self, lock: usize, owner: N) -> bool {
        !self.is_free(lock) && self.owner(lock) != Some(owner)
    }

    fn held(&self, lock: usize, counter: N, which: Option<usize>, queued: bool) -> Vote {
        let status = match self.locks[lock].key {
            Key::Shared => LockStatus::HeldByReaders,
            _ => LockStatus::Held,
        };
        Vote::Lock(LockReply {
            which: which.map(|it| u8::try_from(it).unwrap()),
            queued,
            ..LockReply::new(status, counter.into())
        })
    }

    pub(in super::super) fn acquire(
        &mut self,
        turn: &mut Turn<'_, N>,
        acquire: Acquire<N>,
    ) -> Vote {
        match acquire.wants {
            Wants::Names(names) => self.acquire_names(turn, acquire, names),
            Wants::Reads => self.acquire_shared(turn, acquire),
            Wants::Permit(first) => self.acquire_slot(turn, acquire, first),
        }
    }

    fn acquire_names(&mut self, turn: &mut Turn<'_, N>, acquire: Acquire<N>, names: Locks) -> Vote {
        let Acquire {
            owner,
            proposal,
            member,
            enters,
            ..
        } = acquire;
        let entering = member.filter(|_| enters);
        let counter = self.counter(names, turn.mistake);
        if turn.is_too_far(proposal) && counter.into() + 1 < proposal.into() {
            return Vote::with_counter(LockStatus::ProposalTooFarAhead, counter.into());
        }
        let mut which = names.iter().position(|it| self.is_others(*it, owner));
        if let Some(me) = &member {
            self.leave(owner);
            for (place, lock) in names.iter().copied().enumerate() {
                if which.is_none() && self.is_free(lock) {
                    self.hand_over_found(turn, lock, proposal, me);
                    which = Some(place).filter(|_| !self.is_free(lock));
                }
            }
        }
        let Some(which) = which else {
            return match self.grant(acquire, names, turn.mistake) {
                None => Vote::of(LockStatus::Accepted),
                Some(counter) => Vote::with_counter(LockStatus::ProposalBehind, counter.into()),
            };
        };
        for (place, lock) in names.iter().copied().enumerate() {
            // Calls may wait behind this one only.
            if self.has(lock, owner) {
                self.vanish(lock);
            }
            if place != which && self.owner(lock).is_none() {
                self.hand_over(turn, lock, proposal, None);
            }
        }
        let lock = names[which];
        if let Some(me) = entering {
            self.enter(turn, lock, me);
        }
        let place = Some(which).filter(|_| 1 < names.len());
        self.held(lock, counter, place, entering.is_some())
    }

    /// Sets keys and counters. Answers the counter, or end of a quarantine, that the proposal is not above.
    fn grant(&mut self, acquire: Acquire<N>, locks: Locks, mistake: Mistake) -> Option<N> {
        let Acquire {
            owner,
            proposal,
            until,
            ..
        } = acquire;
        let compared = match mistake {
            Mistake::AnotherSlotsCounter => ALONE[0],
            _ => locks,
        };
        let floor = self.floor(self.counter(compared, mistake), mistake);
        let mut is_again = false;
        for lock in locks.iter().copied() {
            let has = self.has(lock, owner);
            is_again |= has;
            if !has || mistake != Mistake::OwnKeyKeepsLife {
                self.keep(lock, owner, until);
            }
            let counter = &mut self.locks[lock].counter;
            *counter = proposal.max(*counter);
        }
        let accepts_equal = match mistake {
            Mistake::AcceptsEqual => true,
            Mistake::AcceptsItsOwn => is_again,
            _ => false,
        };
        let accepts = floor < proposal || floor == proposal && accepts_equal;
        Some(floor).filter(|_| !accepts)
    }

    fn acquire_shared(&mut self, turn: &mut Turn<'_, N>, acquire: Acquire<N>) -> Vote {
        let Acquire {
            owner,
            proposal,
            until,
            member,
            enters,
            ..
        } = acquire;
        let entering = member.filter(|_| enters);
        let mistake = turn.mistake;
        let stands = self.has(0, owner);
        let is_far = turn.is_too_far(proposal);
        let offer = match mistake {
            Mistake::OffersUnchecked => proposal,
            _ if is_far => N::default(),
            _ => proposal,
        };
        let counter = self.locks[0].counter;
        if member.is_some() {
            self.leave(owner);
        }
        let is_ahead = match &member {
            Some(me) if !stands && self.owner(0).is_none() => {
                self.hand_over_found(turn, 0, offer, me)
            }
            _ => false,
        };
        if is_ahead || self.owner(0).is_some() {
            if let Some(me) = entering {
                self.enter(turn, 0, me);
            }
            return self.held(0, counter, None, entering.is_some());
        }
        let is_lost = self.is_lost(counter, mistake);
        if is_lost && is_far {
            return Vote::with_counter(LockStatus::ProposalTooFarAhead, 0);
        }
        if !stands || mistake != Mistake::OwnKeyKeepsLife {
            self.let_reader_in(0, owner, until, mistake);
        }
        if is_lost {
            self.locks[0].counter = proposal.max(self.record.quarantine_end());
        }
        // Readers after it, before the next writer.
        if member.is_some() {
            self.hand_over(turn, 0, offer, None);
        }
        Vote::with_counter(LockStatus::Shared, self.locks[0].counter.into())
    }

    fn acquire_slot(&mut self, turn: &mut Turn<'_, N>, acquire: Acquire<N>, first: usize) -> Vote {
        let Acquire {
            owner,
            proposal,
            member,
            enters,
            ..
        } = acquire;
        let entering = member.filter(|_| enters);
        let order = || (0..K).map(|it| (it + first) % K);
        let mut chosen = order().filter(|it| self.has(*it, owner)).last();
        let wanted = chosen.or_else(|| order().find(|it| self.is_free(*it)));
        let counter = wanted.map_or(N::default(), |it| self.locks[it].counter);
        let is_far = turn.is_too_far(proposal) && counter.into() + 1 < proposal.into();
        if is_far && wanted.is_some() {
            return Vote::with_counter(LockStatus::ProposalTooFarAhead, counter.into());
        }
        if member.is_some() {
            self.leave(owner);
        }
        for slot in order() {
            if chosen.is_none() && self.is_free(slot) {
                if let Some(me) = &member {
                    self.hand_over_found(turn, slot, proposal, me);
                }
                chosen = Some(slot).filter(|it| self.is_free(*it));
            }
        }
        let Some(slot) = chosen else {
            if let Some(me) = entering {
                self.enter(turn, 0, me);
            }
            let counter = self.counter(ALL, turn.mistake);
            return self.held(0, counter, None, entering.is_some());
        };
        let counter = self.grant(acquire, ALONE[slot], turn.mistake);
        Vote::of_slot(u8::try_from(slot).unwrap(), counter.map(N::into))
    }

    pub(in super::super) fn raise(
        &mut self,
        mistake: Mistake,
        caller: Caller<N>,
        token: N,
    ) -> Vote {
        let Caller { owner, locks, rule } = caller;
        let counter = self.counter(locks, mistake);
        let is_mine = |it: &usize| self.has(*it, owner);
        let is_counted = |it: &usize| self.locks[*it].counter != N::default();
        let reads = rule == Rule::Shared;
        let has_keys = locks.iter().all(is_mine)
            || match mistake {
                Mistake::RaisesForAnyone => true,
                Mistake::RaisesWithoutEntry => reads,
                Mistake::RaisesWithOneMissing => locks.iter().any(is_mine),
                _ => false,
            };
        let has_counters = locks.iter().all(is_counted)
            || match mistake {
                Mistake::RaisesForAnyone | Mistake::RaisesWithOneMissing => true,
                Mistake::RaisesWithoutCounter => reads,
                _ => false,
            };
        let takes_equal = reads || mistake == Mistake::TakesEqual;
        if !has_keys || !has_counters {
            Vote::of(LockStatus::NotOurs)
        } else if counter < token || token == counter && takes_equal {
            locks.iter().for_each(|it| self.locks[*it].counter = token);
            Vote::of(LockStatus::Raised)
        } else {
            Vote::with_counter(LockStatus::NotRaised, counter.into())
        }
    }

    /// Extends what is there, and sets what is missing.
    pub(in super::super) fn extend(
        &mut self,
        mistake: Mistake,
        caller: Caller<N>,
        extend: Extend<N>,
    ) -> Vote {
        match caller.rule {
            Rule::Exclusive => self.extend_exclusive(mistake, caller, extend),
            Rule::Shared => self.extend_shared(mistake, caller, extend),
        }
    }

    fn extend_exclusive(&mut self, mistake: Mistake, caller: Caller<N>, extend: Extend<N>) -> Vote {
        let Caller { owner, locks, .. } = caller;
        let Extend {
            number,
            until,
            sets,
        } = extend;
        let seen = self.counter(locks, mistake);
        let counter = seen.into();
        let extends_any = mistake == Mistake::ExtendsWithoutCounter;
        let sets_any = mistake == Mistake::SetsWithoutCounter;
        let is_taken = locks.iter().any(|it| self.is_others(*it, owner));
        let is_gone = locks.iter().any(|it| self.is_free(*it));
        let sets = sets && is_gone && !is_taken && (seen <= number || sets_any);
        for lock in locks.iter().copied() {
            let is_below = self.locks[lock].counter <= number || extends_any;
            let has = self.has(lock, owner);
            if has && is_below || sets && !has {
                self.keep(lock, owner, until);
            }
        }
        let is_shared = locks
            .iter()
            .any(|it| matches!(self.locks[*it].key, Key::Shared));
        match mistake {
            Mistake::ReadersPromiseForWriters if is_shared => {
                return Vote::of(LockStatus::Extended);
            }
            Mistake::CountsWithOneMissing => {}
            _ if is_taken => return Vote::of(LockStatus::NotOurs),
            _ if is_gone && !sets => return Vote::with_counter(LockStatus::Gone, counter),
            _ => {}
        }
        if number < seen && !sets && !extends_any {
            return Vote::of(LockStatus::Superseded);
        }
        self.lift(locks, number);
        match sets {
            true => Vote::of(LockStatus::Healed),
            false => Vote::of(LockStatus::Extended),
        }
    }

    fn extend_shared(&mut self, mistake: Mistake, caller: Caller<N>, extend: Extend<N>) -> Vote {
        let Caller { owner, locks, .. } = caller;
        let Extend {
            number,
            until,
            sets,
        } = extend;
        let seen = self.locks[0].counter;
        let counter = seen.into();
        if self.owner(0).is_some() {
            return Vote::of(LockStatus::NotOurs);
        }
        let stands = self.has(0, owner);
        let is_set = sets && (seen <= number || mistake == Mistake::SetsWithoutCounter);
        if !stands && !is_set {
            return Vote::with_counter(LockStatus::Gone, counter);
        }
        if stands && number < seen && mistake == Mistake::ExtendsOnlyBelow {
            return Vote::of(LockStatus::Superseded);
        }
        self.let_reader_in(0, owner, until, mistake);
        self.lift(locks, number);
        match stands {
            false => Vote::of(LockStatus::Healed),
            true if number < seen => Vote::with_counter(LockStatus::Lifted, counter),
            true => Vote::of(LockStatus::Extended),
        }
    }

    fn lift(&mut self, locks: Locks, number: N) {
        for lock in locks {
            let counter = &mut self.locks[*lock].counter;
            *counter = number.max(*counter);
        }
    }

    /// Takes what the owner has of a lock. Answers whether it had anything.
    fn take(&mut self, lock: usize, caller: Caller<N>, mistake: Mistake) -> bool {
        let had = self.has(lock, caller.owner);
        let is_shared = matches!(self.locks[lock].key, Key::Shared);
        if is_shared && caller.rule == Rule::Shared {
            let is_any = mistake == Mistake::DeletesSharedLock;
            let it = &mut self.locks[lock];
            it.readers.remove(caller.owner);
            if it.readers.is_empty() || is_any {
                it.readers = R::none();
                self.vanish(lock);
            } else if mistake != Mistake::LastsForTheFirst {
                it.lasts = it.readers.clone();
            }
            return had || is_any;
        }
        let is_any = mistake == Mistake::DeletesAnyKey && self.owner(lock).is_some();
        if had && !is_shared || is_any {
            self.vanish(lock);
        }
        had || is_any
    }

    pub(in super::super) fn release(&mut self, turn: &mut Turn<'_, N>, release: Release<N>) {
        let Release {
            caller,
            keep,
            raised,
            next,
            stay,
            yields,
        } = release;
        let none = N::default();
        let mistake = turn.mistake;
        let locks = match mistake {
            Mistake::ReleasesSome => &caller.locks[..1],
            _ => caller.locks,
        };
        self.leave(caller.owner);
        if let Some((lock, member)) = stay {
            self.enter(turn, lock, member);
        }
        let keeps_all = mistake == Mistake::HandsNothingOn && yields;
        for lock in locks.iter().copied() {
            if keeps_all {
                continue;
            }
            // What is kept may be gone: then it is handed over as well.
            let is_given = keep != Some(lock);
            let is_mine = is_given && self.owner(lock) == Some(caller.owner);
            let was_own = is_given && self.take(lock, caller, mistake);
            let counter = &mut self.locks[lock].counter;
            let lifts = is_mine && *counter != none || mistake == Mistake::ReleaseLiftsForAnyone;
            if raised != none && lifts {
                *counter = raised.max(*counter);
            }
            let is_own_list = |it: &(usize, Member<N>)| turn.list(it.0) == turn.list(lock);
            let before = stay
                .filter(|it| yields && is_own_list(it))
                .map(|it| it.1.place());
            if self.owner(lock).is_none() || mistake == Mistake::HandsOverBesideKey {
                let offer = if was_own { next } else { none };
                self.hand_over(turn, lock, offer, before);
            }
        }
    }
}
