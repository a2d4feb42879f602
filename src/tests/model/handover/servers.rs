//! What servers do: `acquire`, `raise`, `extend` and `release` of each kind, with the hand-over.

use super::*;

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) locks: [Lock; LOCKS],
    /// One for each name, or the first one for all permits.
    lists: [List; LOCKS],
    pub(super) record: Option<StoredRecord>,
    /// By how much its clock was set forward, when last, and how often.
    ahead: u64,
    stepped_at: u64,
    clock_steps: u32,
    pub(super) hung_until: u64,
    /// The last owner tokens whose release was executed here.
    pub(super) released: VecDeque<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Lock {
    key: Key,
    /// 0 if there is none.
    pub(super) counter: u64,
}

#[derive(Debug, Default)]
enum Key {
    #[default]
    Free,
    Owned {
        owner: u32,
        until: u64,
    },
    /// Owner and end of each reader.
    Shared(Vec<(u32, u64)>),
}

/// Waiting calls, and until when a polling writer among them keeps readers out: the value of the mark.
#[derive(Debug, Default)]
struct List {
    waiting: Vec<Member>,
    closed_until: u64,
}

/// A waiting call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) since: u64,
    pub(super) owner: u32,
    pub(super) client: usize,
    /// Of the client's process.
    pub(super) id: u32,
    pub(super) reads: bool,
    pub(super) polls: bool,
}

impl Member {
    fn place(&self) -> (u64, u32) {
        (self.since, self.owner)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoredRecord {
    pub(super) record_version: u32,
    /// `None`: since before the world began.
    pub(super) since: Option<u64>,
    pub(super) max_ttl: u64,
}

/// What a message shows of the server's clock, and what no client sees: from when on grants may count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) clock_steps: u32,
    pub(super) counts_from: u64,
}

/// What a call wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wants {
    Names(Locks),
    Reads,
    Permit,
}

impl Wants {
    pub(super) fn locks(self) -> Locks {
        match self {
            Wants::Names(names) => names,
            Wants::Reads => ALONE[0],
            Wants::Permit => ALL,
        }
    }

    pub(super) fn rule(self) -> Rule {
        match self {
            Wants::Reads => Rule::Shared,
            _ => Rule::Exclusive,
        }
    }

    pub(super) fn is_several(self) -> bool {
        self == Wants::Names(ALL)
    }
}

/// Whose command it is, and about which locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) owner: u32,
    pub(super) locks: Locks,
    pub(super) rule: Rule,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    pub(super) owner: u32,
    pub(super) locks: Locks,
    /// The permit that was won.
    pub(super) keep: Option<usize>,
    /// Offered to the next owner.
    pub(super) next: u64,
    /// The call that stays, and the name in whose list.
    pub(super) stay: Option<(usize, Member)>,
}

impl Server {
    /// A server that has kept everything for long.
    pub(super) fn old(max_ttl: u64) -> Server {
        let record = Some(StoredRecord {
            record_version: 1,
            since: None,
            max_ttl,
        });
        Server {
            record,
            ..Server::default()
        }
    }

    pub(super) fn lose_data(&mut self) {
        *self = Server {
            hung_until: self.hung_until,
            ..Server::default()
        };
    }

    pub(super) fn vanish(&mut self, lock: usize) {
        self.locks[lock].key = Key::Free;
    }

    pub(super) fn step_clock(&mut self, now: u64, by: u64) {
        self.ahead += by;
        self.stepped_at = now;
        self.clock_steps += 1;
    }

    pub(super) fn record_version(&self) -> u32 {
        self.record.map_or(0, |record| record.record_version)
    }

    /// The end of the quarantine, which counters and tokens have to be above.
    fn quarantine_end(&self) -> u64 {
        let end = |record: StoredRecord| Some(record.since? + record.max_ttl);
        self.record.and_then(end).unwrap_or(0)
    }

    pub(super) fn stamp(&self, quarantine: u64) -> Stamp {
        let step_end = match self.clock_steps {
            0 => 0,
            _ => self.stepped_at + quarantine,
        };
        Stamp {
            clock_steps: self.clock_steps,
            counts_from: self.quarantine_end().max(step_end),
        }
    }

    fn has(&self, lock: usize, owner: u32) -> bool {
        match &self.locks[lock].key {
            Key::Free => false,
            Key::Owned { owner: other, .. } => *other == owner,
            Key::Shared(readers) => readers.iter().any(|reader| reader.0 == owner),
        }
    }

    /// The largest of these.
    fn counter(&self, locks: Locks) -> u64 {
        let counters = locks.iter().map(|lock| self.locks[*lock].counter);
        counters.max().unwrap_or(0)
    }

    fn is_free(&self, lock: usize) -> bool {
        matches!(self.locks[lock].key, Key::Free)
    }

    /// Takes the owner's key or entry away. Answers whether it was there.
    fn take(&mut self, lock: usize, owner: u32) -> bool {
        let had = self.has(lock, owner);
        match &mut self.locks[lock].key {
            Key::Shared(readers) if 1 < readers.len() => readers.retain(|it| it.0 != owner),
            key if had => *key = Key::Free,
            _ => {}
        }
        had
    }

    /// Sets the owner's key, and never shortens its life.
    fn keep(&mut self, lock: usize, owner: u32, until: u64) {
        let key = &mut self.locks[lock].key;
        let old = match key {
            Key::Owned { until, .. } => *until,
            _ => 0,
        };
        let until = until.max(old);
        *key = Key::Owned { owner, until };
    }

    fn let_reader_in(&mut self, owner: u32, until: u64) {
        let key = &mut self.locks[0].key;
        if !matches!(key, Key::Shared(_)) {
            *key = Key::Shared(vec![]);
        }
        if let Key::Shared(readers) = key {
            match readers.iter_mut().find(|reader| reader.0 == owner) {
                Some(reader) => reader.1 = reader.1.max(until),
                None => readers.push((owner, until)),
            }
        }
    }
}

/// All of these run at one server, `s`.
impl World {
    fn server_time(&self, s: usize) -> u64 {
        self.now + self.servers[s].ahead
    }

    pub(super) fn expire(&mut self, s: usize) {
        let time = self.server_time(s);
        for lock in &mut self.servers[s].locks {
            let is_over = match &mut lock.key {
                Key::Free => false,
                Key::Owned { until, .. } => *until <= time,
                Key::Shared(readers) => {
                    readers.retain(|reader| time < reader.1);
                    readers.is_empty()
                }
            };
            if is_over {
                lock.key = Key::Free;
            }
        }
    }

    /// Which list calls for this lock wait in.
    fn list(&self, lock: usize) -> usize {
        if self.kind == Kind::Permits { 0 } else { lock }
    }

    fn enter(&mut self, s: usize, lock: usize, me: Member) {
        let stops_readers = me.polls && !me.reads && !self.servers[s].is_free(lock);
        let closed_until = self.server_time(s) + self.first_life;
        let list = self.list(lock);
        let list = &mut self.servers[s].lists[list];
        list.waiting.retain(|member| member.owner != me.owner);
        list.waiting.push(me);
        list.waiting.sort_by_key(Member::place);
        if stops_readers {
            list.closed_until = closed_until;
        }
    }

    fn leave(&mut self, s: usize, owner: u32) {
        for list in &mut self.servers[s].lists {
            list.waiting.retain(|member| member.owner != owner);
        }
    }

    /// Whether a waiting writer keeps readers out.
    fn is_alive(&self, s: usize, list: usize, member: &Member) -> bool {
        if member.polls {
            self.server_time(s) < self.servers[s].lists[list].closed_until
        } else {
            self.lines[member.client][s].listens(member.id)
        }
    }

    /// Gives a free lock to the first waiting call, and a free or shared one to all readers before the first living writer,
    /// but to no call behind `before`. Answers whether a living writer waits there.
    fn hand_over(&mut self, s: usize, lock: usize, token: u64, before: Option<(u64, u32)>) -> bool {
        let list = self.list(lock);
        let mut group = 0;
        loop {
            let is_shared = matches!(self.servers[s].locks[lock].key, Key::Shared(_));
            let waiting = &self.servers[s].lists[list].waiting;
            let passes = self.flaw == Flaw::ReadersPassWriters;
            let reader = waiting.iter().position(|it| passes && it.reads);
            let place = reader.unwrap_or(0);
            let Some(first) = waiting.get(place).copied() else {
                return false;
            };
            if before.is_some_and(|it| it <= first.place()) {
                return false;
            }
            if is_shared && !first.reads && self.is_alive(s, list, &first) {
                return true;
            }
            self.servers[s].lists[list].waiting.remove(place);
            if is_shared && !first.reads {
                continue;
            }
            let server = &self.servers[s];
            let counter = server.locks[lock].counter;
            let floor = counter.max(server.quarantine_end());
            let said = match self.flaw {
                _ if first.reads && floor <= counter => counter,
                _ if first.reads => 0,
                Flaw::HandOverAcceptsEqual if token == floor => token,
                Flaw::HandOverStoresAnyway => token,
                _ if floor < token => token,
                _ => 0,
            };
            if !self.push(s, &first, lock, said) && !first.polls {
                continue;
            }
            self.counts.add(Event::HandOver);
            let until = self.server_time(s) + self.first_life;
            if first.reads {
                self.servers[s].let_reader_in(first.owner, until);
                self.check_order(s, &first);
                group += 1;
                if group == 2 {
                    self.counts.add(Event::ReaderGroup);
                }
                continue;
            }
            let server = &mut self.servers[s];
            server.locks[lock].key = Key::Owned {
                owner: first.owner,
                until,
            };
            if said != 0 && self.flaw != Flaw::HandOverStoresNothing {
                server.locks[lock].counter = said;
            }
            if FAR <= said {
                self.violate(Violation::FarAhead);
            }
            return false;
        }
    }

    /// Checks that no living writer waits before a reader that comes in.
    fn check_order(&mut self, s: usize, reader: &Member) {
        let is_before = |it: &&Member| !it.reads && it.place() < reader.place();
        let waiting = &self.servers[s].lists[0].waiting;
        let mut writers = waiting.iter().filter(is_before);
        if writers.any(|writer| self.is_alive(s, 0, writer)) {
            self.violate(Violation::ReaderBeforeWriter);
        }
    }

    /// As [`World::hand_over`], for an acquire that finds the lock free.
    fn hand_over_found(&mut self, s: usize, lock: usize, token: u64, me: &Member) -> bool {
        let counter = self.servers[s].locks[lock].counter;
        let is_ahead = self.hand_over(s, lock, token, Some(me.place()));
        if self.flaw == Flaw::FinderStoresNothing {
            self.servers[s].locks[lock].counter = counter;
        }
        is_ahead
    }

    pub(super) fn acquire(&mut self, s: usize, me: Member, wants: Wants, proposal: u64) -> Answer {
        match wants {
            // The answer "not looked at".
            Wants::Names(_) | Wants::Permit if FAR <= proposal => FAILED,
            Wants::Names(names) => self.acquire_names(s, me, names, proposal),
            Wants::Reads => self.acquire_shared(s, me, proposal),
            Wants::Permit => self.acquire_permit(s, me, proposal),
        }
    }

    fn acquire_names(&mut self, s: usize, me: Member, names: Locks, proposal: u64) -> Answer {
        let is_others =
            |server: &Server, lock: usize| !server.is_free(lock) && !server.has(lock, me.owner);
        let mut which = names
            .iter()
            .find(|lock| is_others(&self.servers[s], **lock));
        for lock in names {
            if which.is_none() && self.servers[s].is_free(*lock) {
                self.hand_over_found(s, *lock, proposal, &me);
                which = Some(lock).filter(|lock| is_others(&self.servers[s], **lock));
            }
        }
        self.leave(s, me.owner);
        if let Some(which) = which {
            for lock in names {
                // Calls may wait behind this one only.
                if self.servers[s].is_free(*lock) {
                    self.hand_over(s, *lock, proposal, None);
                }
            }
            self.enter(s, *which, me);
            return held(self.servers[s].counter(names), *which);
        }
        Answer::Acquire(match self.grant(s, me.owner, names, proposal) {
            None => AcquireReply::Accepted,
            Some(counter) => AcquireReply::Behind { counter },
        })
    }

    /// Sets keys and counters. Answers the counter, or end of a quarantine, that the proposal is not above.
    fn grant(&mut self, s: usize, owner: u32, locks: Locks, proposal: u64) -> Option<u64> {
        let until = self.server_time(s) + self.ttl;
        let server = &mut self.servers[s];
        let floor = server.counter(locks).max(server.quarantine_end());
        for lock in locks {
            let keeps_life = self.flaw == Flaw::OwnKeyKeepsLife && server.has(*lock, owner);
            let lock = &mut server.locks[*lock];
            if !keeps_life {
                lock.key = Key::Owned { owner, until };
            }
            lock.counter = lock.counter.max(proposal);
        }
        Some(floor).filter(|floor| proposal <= *floor)
    }

    fn acquire_shared(&mut self, s: usize, me: Member, proposal: u64) -> Answer {
        let stands = self.servers[s].has(0, me.owner);
        let is_owned = |server: &Server| matches!(server.locks[0].key, Key::Owned { .. });
        let is_far = FAR <= proposal;
        let offer = match self.flaw {
            Flaw::OffersUnchecked => proposal,
            _ if is_far => 0,
            _ => proposal,
        };
        let is_ahead =
            !stands && !is_owned(&self.servers[s]) && self.hand_over_found(s, 0, offer, &me);
        if is_ahead || is_owned(&self.servers[s]) {
            self.enter(s, 0, me);
            return held(self.servers[s].locks[0].counter, 0);
        }
        self.leave(s, me.owner);
        let server = &self.servers[s];
        let is_lost =
            server.locks[0].counter == 0 || server.locks[0].counter < server.quarantine_end();
        if is_lost && is_far {
            return FAILED;
        }
        if !stands {
            self.check_order(s, &me);
        }
        let until = self.server_time(s) + self.ttl;
        let server = &mut self.servers[s];
        if !stands || self.flaw != Flaw::OwnKeyKeepsLife {
            server.let_reader_in(me.owner, until);
        }
        let floor = server.quarantine_end();
        let counter = &mut server.locks[0].counter;
        if *counter == 0 || *counter < floor {
            *counter = proposal.max(floor);
        }
        Answer::Acquire(AcquireReply::Shared { counter: *counter })
    }

    fn acquire_permit(&mut self, s: usize, me: Member, proposal: u64) -> Answer {
        let mut chosen = (0..LOCKS).find(|slot| self.servers[s].has(*slot, me.owner));
        for slot in 0..LOCKS {
            if chosen.is_none() && self.servers[s].is_free(slot) {
                self.hand_over_found(s, slot, proposal, &me);
                chosen = Some(slot).filter(|slot| self.servers[s].is_free(*slot));
            }
        }
        let Some(slot) = chosen else {
            self.enter(s, 0, me);
            let shows = self.flaw != Flaw::RefusalShowsNoCounter;
            return held(
                if shows {
                    self.servers[s].counter(ALL)
                } else {
                    0
                },
                0,
            );
        };
        self.leave(s, me.owner);
        Answer::Acquire(AcquireReply::Slot {
            slot: slot as u8,
            counter: self.grant(s, me.owner, ALONE[slot], proposal),
            free: FreeSlots::default(),
        })
    }

    pub(super) fn raise(&mut self, s: usize, caller: Caller, token: u64) -> Answer {
        let Caller { owner, locks, rule } = caller;
        let server = &mut self.servers[s];
        let counter = server.counter(locks);
        let is_whole = |lock: &usize| server.has(*lock, owner) && server.locks[*lock].counter != 0;
        Answer::Raise(if !locks.iter().all(is_whole) {
            RaiseReply::Gone
        } else if token < counter || token == counter && rule == Rule::Exclusive {
            RaiseReply::Above { counter }
        } else {
            locks
                .iter()
                .for_each(|lock| server.locks[*lock].counter = token);
            RaiseReply::Taken
        })
    }

    /// Extends what is there, and sets what is missing.
    pub(super) fn extend(
        &mut self,
        s: usize,
        caller: Caller,
        number: u64,
        life: u64,
        sets: bool,
    ) -> Answer {
        let Caller { owner, locks, rule } = caller;
        let until = self.server_time(s) + life;
        let flaw = self.flaw;
        let server = &mut self.servers[s];
        let counter = server.counter(locks);
        let is_missing = |lock: &usize| !server.has(*lock, owner);
        let is_gone = locks.iter().any(is_missing);
        let is_taken = locks.iter().filter(|lock| is_missing(lock)).any(|lock| {
            let key = &server.locks[*lock].key;
            !(matches!(key, Key::Free) || rule == Rule::Shared && matches!(key, Key::Shared(_)))
        });
        let is_below = counter <= number || flaw == Flaw::SetsBelowCounter;
        let sets = sets && is_gone && !is_taken && is_below;
        for lock in locks {
            let has = server.has(*lock, owner);
            if rule == Rule::Shared && (has || sets) {
                server.let_reader_in(owner, until);
            } else if sets && !has || has && server.locks[*lock].counter <= number {
                server.keep(*lock, owner, until);
            }
        }
        Answer::Extend(if is_taken {
            ExtendReply::Taken
        } else if is_gone && !sets {
            ExtendReply::Gone { counter }
        } else if number < counter && rule == Rule::Exclusive && !(sets && is_below) {
            ExtendReply::Superseded
        } else {
            locks
                .iter()
                .for_each(|lock| server.locks[*lock].counter = counter.max(number));
            match sets {
                true => ExtendReply::Healed,
                false if number < counter => ExtendReply::Lifted { counter },
                false => ExtendReply::Extended,
            }
        })
    }

    pub(super) fn release(&mut self, s: usize, release: Release) {
        let Release {
            owner,
            locks,
            keep,
            next,
            stay,
        } = release;
        if keep.is_none() && stay.is_none_or(|it| it.1.owner != owner) {
            let released = &mut self.servers[s].released;
            released.push_back(owner);
            released.drain(..released.len().saturating_sub(8));
        }
        self.leave(s, owner);
        if let Some((lock, member)) = stay {
            self.enter(s, lock, member);
        }
        let keeps_all = self.flaw == Flaw::HandsNothingOn && stay.is_some();
        for lock in locks.iter().copied() {
            if keep == Some(lock) || keeps_all {
                continue;
            }
            let server = &mut self.servers[s];
            let mut was_own = server.take(lock, owner);
            let frees = matches!(
                (self.flaw, &server.locks[lock].key),
                (Flaw::ReleaseComparesNothing, Key::Owned { .. })
                    | (Flaw::HandsOverBesideReaders, Key::Shared(_))
            );
            if frees {
                was_own = true;
                server.locks[lock].key = Key::Free;
            }
            let is_own_list = |it: &(usize, Member)| self.list(it.0) == self.list(lock);
            let before = stay.filter(is_own_list).map(|it| it.1.place());
            let is_owned = matches!(self.servers[s].locks[lock].key, Key::Owned { .. });
            if !is_owned || self.flaw == Flaw::HandsOverBesideKey {
                self.hand_over(s, lock, if was_own { next } else { 0 }, before);
            }
            let goes_on = locks == ALL && self.kind == Kind::Names && stay.is_some();
            if was_own && goes_on && !self.servers[s].is_free(lock) {
                self.counts.add(Event::NameHandedOn);
            }
        }
        let in_list = |list: &List| list.waiting.iter().any(|it| it.owner == owner);
        let server = &self.servers[s];
        let left = (0..LOCKS).any(|lock| keep != Some(lock) && server.has(lock, owner));
        let is_left = left || server.lists.iter().any(in_list);
        if is_left && stay.is_none_or(|it| it.1.owner != owner) {
            self.violate(Violation::Orphan);
        }
    }
}
