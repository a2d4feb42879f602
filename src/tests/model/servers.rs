//! The simulated server of all models: it does by hand what the scripts do. `recorded` compares it with them.
//!
//! A server is as small as its model needs: `N` is the type of owners, tokens and ends, `R` has the readers of a lock, `L`
//! the waiting lists, `V` the record. Where all states are visited these are bytes, and what a model has no use for takes
//! no room. Ends are those of the model: times, or numbers of the commands that gave a key its life.
//!
//! A server answers with what the library's parser makes of replies. [`Said`] is the same as states have it.
//!
//! On purpose: a server in quarantine hands locks over, which only makes it worse. A refused call for a permit is shown
//! the largest counter. Counters have no end.

mod lists;
mod readers;
mod real;
mod record;
mod recorded;
mod said;
mod scripts;

pub(super) use self::lists::{HandOver, List, Lists, Member};
pub(super) use self::readers::Readers;
pub(super) use self::record::{Record, Stored};
pub(super) use self::said::Said;
use super::*;
use crate::logic::acquire_round::Rule;

/// Locks of a server, by their numbers.
pub(super) type Locks = &'static [usize];
pub(super) const ALL: Locks = &[0, 1];
pub(super) const ALONE: [Locks; 2] = [&[0], &[1]];

/// An owner, a token or an end.
pub(super) trait Number: Copy + Debug + Default + Ord + Into<u64> {}

impl Number for u8 {}
impl Number for u64 {}

/// What a server leaves out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mistake {
    None,
    /// It accepts a proposal that equals its counter.
    AcceptsEqual,
    /// It says "accepted" twice when it executes an acquire twice.
    AcceptsItsOwn,
    /// It acknowledges a raise to what its counter is already.
    TakesEqual,
    /// It raises its counter whosever key is set there.
    RaisesForAnyone,
    /// It raises the counter for readers without an entry.
    RaisesWithoutEntry,
    /// It raises a counter that it has not, for readers.
    RaisesWithoutCounter,
    /// It raises the counters where it has only some of the names.
    RaisesWithOneMissing,
    /// It deletes the key whosever it is.
    DeletesAnyKey,
    /// The release of a reader deletes the lock, whoever else reads.
    DeletesSharedLock,
    /// It releases the first name only.
    ReleasesSome,
    /// A release lifts the counter whosever key is set there, and creates it.
    ReleaseLiftsForAnyone,
    /// It extends whatever its counter is, as on the page that describes Redlock.
    ExtendsWithoutCounter,
    /// It does not extend a reader's entry if its counter is above the reader's number.
    ExtendsOnlyBelow,
    /// It sets a missing key or entry whatever its counter is.
    SetsWithoutCounter,
    /// It says that all were extended when it has only some of the names.
    CountsWithOneMissing,
    /// It confirms a writer where readers have the lock.
    ReadersPromiseForWriters,
    /// It compares a token with the counter of the first name only.
    TokenAboveTheFirst,
    /// It compares a token with the counter of another slot.
    AnotherSlotsCounter,
    /// It takes a counter as it finds it: one that is missing for 0, and an old one for what it is.
    TakesAnyCounter,
    /// It takes a counter from so much on for what it is, instead of from the end of its quarantine.
    TakesCountersFrom(u8),
    /// It keeps the entries that it had when it makes the lock a shared one.
    KeepsOldEntries,
    /// The lock lasts for as long as the first reader of it does.
    LastsForTheFirst,
    /// It does not renew the life of the caller's own key.
    OwnKeyKeepsLife,
    /// A hand-over accepts a token that equals the counter.
    HandOverAcceptsEqual,
    /// A hand-over does not store the token.
    HandOverStoresNothing,
    /// A hand-over stores the token whatever the counter is.
    HandOverStoresAnyway,
    /// A hand-over by an acquire that finds the lock free does not store the token.
    FinderStoresNothing,
    /// A release hands over beside another owner's key.
    HandsOverBesideKey,
    /// A release of a call that stays in the lists hands nothing on.
    HandsNothingOn,
    /// Readers are handed the lock although a living writer waits before them.
    ReadersPassWriters,
    /// A reader that finds the lock free offers its proposal unchecked.
    OffersUnchecked,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Key<N> {
    Free,
    Owned { owner: N, until: N },
    Shared,
}

/// A name, or a slot of a semaphore.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Lock<N, R> {
    pub(super) key: Key<N>,
    /// 0 if there is none.
    pub(super) counter: N,
    /// Each reader's entry and its end.
    pub(super) readers: R,
    /// The ends that the key outlasts while the lock is shared.
    pub(super) lasts: R,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Server<N, R, L, V, const K: usize> {
    pub(super) locks: [Lock<N, R>; K],
    pub(super) lists: L,
    pub(super) record: V,
}

/// Without readers and lists.
pub(super) type Plain<V, const K: usize> = Server<u8, (), (), V, K>;

/// Whose command it is, and about which locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<N> {
    pub(super) owner: N,
    pub(super) locks: Locks,
    pub(super) rule: Rule,
}

/// What an acquire is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wants {
    Names(Locks),
    Reads,
    /// Any slot, beginning with this one.
    Permit(usize),
}

impl Wants {
    pub(super) fn locks(self) -> Locks {
        match self {
            Wants::Names(names) => names,
            Wants::Reads => ALONE[0],
            Wants::Permit(_) => ALL,
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

#[derive(Clone, Copy, Debug)]
pub(super) struct Acquire<N> {
    pub(super) owner: N,
    pub(super) wants: Wants,
    pub(super) proposal: N,
    /// The end of what is granted.
    pub(super) until: N,
    /// The waiting call.
    pub(super) member: Option<Member<N>>,
    /// Whether it enters the list where it is refused.
    pub(super) enters: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Extend<N> {
    pub(super) number: N,
    pub(super) until: N,
    /// Missing keys, too.
    pub(super) sets: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Release<N> {
    pub(super) caller: Caller<N>,
    /// The slot that was won.
    pub(super) keep: Option<usize>,
    /// The token, if it was raised; otherwise 0.
    pub(super) raised: N,
    /// Offered to the next owner.
    pub(super) next: N,
    /// The call that stays or enters, and the lock in whose list.
    pub(super) stay: Option<(usize, Member<N>)>,
    /// Nothing is handed over to that call, or to calls behind it.
    pub(super) yields: bool,
}

impl<N: Number> Release<N> {
    pub(super) fn of(caller: Caller<N>) -> Release<N> {
        Release {
            caller,
            keep: None,
            raised: N::default(),
            next: N::default(),
            stay: None,
            yields: false,
        }
    }
}

/// What a command finds at a server beside what is stored there, and what it sends to waiting calls.
pub(super) struct Turn<'a, N> {
    pub(super) mistake: Mistake,
    /// What the server's clock shows.
    pub(super) time: N,
    /// The largest proposal that is not too far ahead of it, if there is one.
    pub(super) latest: Option<N>,
    /// The end of what is handed over.
    pub(super) first_until: N,
    /// The locks are slots, with one list.
    pub(super) has_slots: bool,
    /// Whether the server counts a listener for this call.
    pub(super) listens: &'a dyn Fn(&Member<N>) -> bool,
    pub(super) handed: Vec<HandOver<N>>,
}

impl<N: Number> Turn<'static, N> {
    /// Where no call waits.
    pub(super) fn of(mistake: Mistake) -> Turn<'static, N> {
        Turn {
            mistake,
            time: N::default(),
            latest: None,
            first_until: N::default(),
            has_slots: false,
            listens: &|_| false,
            handed: Vec::new(),
        }
    }
}

impl<N: Number, R: Readers<N>, L: Lists<N>, V: Stored<N>, const K: usize> Server<N, R, L, V, K> {
    pub(super) fn new(counters: [N; K], lists: L, record: V) -> Self {
        let locks = counters.map(|counter| Lock {
            key: Key::Free,
            counter,
            readers: R::none(),
            lasts: R::none(),
        });
        Server {
            locks,
            lists,
            record,
        }
    }

    pub(super) fn is_free(&self, lock: usize) -> bool {
        matches!(self.locks[lock].key, Key::Free)
    }

    /// Whether it has the key or the entry of this owner.
    pub(super) fn has(&self, lock: usize, owner: N) -> bool {
        let lock = &self.locks[lock];
        match lock.key {
            Key::Free => false,
            Key::Owned { owner: other, .. } => other == owner,
            Key::Shared => lock.readers.end_of(owner).is_some(),
        }
    }

    /// Without that what readers have.
    pub(super) fn owner(&self, lock: usize) -> Option<N> {
        match self.locks[lock].key {
            Key::Owned { owner, .. } => Some(owner),
            _ => None,
        }
    }

    /// Sets the owner's key, and never shortens its life.
    pub(super) fn keep(&mut self, lock: usize, owner: N, until: N) {
        let key = &mut self.locks[lock].key;
        let until = match *key {
            Key::Owned { until: old, .. } => until.max(old),
            _ => until,
        };
        *key = Key::Owned { owner, until };
    }

    /// Sets a reader's entry, and makes a free lock a shared one.
    pub(super) fn let_reader_in(&mut self, lock: usize, owner: N, until: N, mistake: Mistake) {
        let lock = &mut self.locks[lock];
        if !matches!(lock.key, Key::Shared) {
            (lock.key, lock.lasts) = (Key::Shared, R::none());
            if mistake != Mistake::KeepsOldEntries {
                lock.readers = R::none();
            }
            lock.lasts.keep(owner, until);
        } else if mistake != Mistake::LastsForTheFirst {
            lock.lasts.keep(owner, until);
        }
        lock.readers.keep(owner, until);
    }

    /// The key expires, or is lost.
    pub(super) fn vanish(&mut self, lock: usize) {
        let lock = &mut self.locks[lock];
        (lock.key, lock.lasts) = (Key::Free, R::none());
    }

    /// Nobody looks at the end of its key any more.
    pub(super) fn forget_end(&mut self, lock: usize) {
        if let Key::Owned { until, .. } = &mut self.locks[lock].key {
            *until = N::default();
        }
    }

    /// Loses all data, and has this instead of its counters and its record.
    pub(super) fn lose(&mut self, counters: [N; K], record: V) {
        let lists = L::empty();
        *self = Server::new(counters, lists, record);
    }

    /// What ends by this time is gone.
    pub(super) fn expire(&mut self, time: N) {
        for it in 0..K {
            let lock = &mut self.locks[it];
            lock.readers.retain(|until| time < until);
            let is_over = match lock.key {
                Key::Free => false,
                Key::Owned { until, .. } => until <= time,
                Key::Shared => {
                    lock.lasts.retain(|until| time < until);
                    lock.lasts.is_empty()
                }
            };
            if is_over {
                self.vanish(it);
            }
        }
    }
}
