//! Waiting lists, and the hand-over of free locks to waiting calls.

use super::*;

/// Waiting calls, and until when a polling writer among them keeps readers out: the value of the mark.
#[derive(Clone, Debug)]
pub(in super::super) struct List<N> {
    pub(in super::super) waiting: Vec<Member<N>>,
    closed_until: N,
}

/// A waiting call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in super::super) struct Member<N> {
    pub(in super::super) since: u64,
    pub(in super::super) owner: N,
    pub(in super::super) client: usize,
    /// Of the client's process.
    pub(in super::super) id: u64,
    pub(in super::super) reads: bool,
    pub(in super::super) polls: bool,
}

/// A lock was handed over, and the client gets a message.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct HandOver<N> {
    pub(in super::super) to: Member<N>,
    pub(in super::super) lock: usize,
    /// 0: the counter is not below what was offered.
    pub(in super::super) token: N,
}

impl<N: Number> Member<N> {
    pub(in super::super) fn place(&self) -> (u64, N) {
        (self.since, self.owner)
    }
}

/// The lists of a server, one for each name, or the first one for all slots.
pub(in super::super) trait Lists<N> {
    fn empty() -> Self;
    fn get(&self, list: usize) -> Option<&List<N>>;
    fn get_mut(&mut self, list: usize) -> Option<&mut List<N>>;
}

/// Where nobody waits.
impl<N> Lists<N> for () {
    fn empty() -> Self {}

    fn get(&self, _list: usize) -> Option<&List<N>> {
        None
    }

    fn get_mut(&mut self, _list: usize) -> Option<&mut List<N>> {
        None
    }
}

impl<N: Number, const K: usize> Lists<N> for [List<N>; K] {
    fn empty() -> Self {
        std::array::from_fn(|_| List {
            waiting: Vec::new(),
            closed_until: N::default(),
        })
    }

    fn get(&self, list: usize) -> Option<&List<N>> {
        <[_]>::get(self, list)
    }

    fn get_mut(&mut self, list: usize) -> Option<&mut List<N>> {
        <[_]>::get_mut(self, list)
    }
}

impl<N: Number> Turn<'_, N> {
    /// The list in which calls for this lock wait.
    pub(super) fn list(&self, lock: usize) -> usize {
        if self.has_slots { 0 } else { lock }
    }

    /// Whether a waiting writer keeps readers out.
    pub(in super::super) fn is_alive(&self, list: &List<N>, member: &Member<N>) -> bool {
        if member.polls {
            self.time < list.closed_until
        } else {
            (self.listens)(member)
        }
    }
}

impl<N: Number, R: Readers<N>, L: Lists<N>, V: Stored<N>, const K: usize> Server<N, R, L, V, K> {
    pub(super) fn enter(&mut self, turn: &Turn<'_, N>, lock: usize, me: Member<N>) {
        let stops_readers = me.polls && !me.reads && !self.is_free(lock);
        if let Some(list) = self.lists.get_mut(turn.list(lock)) {
            list.waiting.retain(|member| member.owner != me.owner);
            list.waiting.push(me);
            list.waiting.sort_by_key(Member::place);
            if stops_readers {
                list.closed_until = turn.first_until;
            }
        }
    }

    pub(super) fn leave(&mut self, owner: N) {
        for list in 0..K {
            if let Some(list) = self.lists.get_mut(list) {
                list.waiting.retain(|member| member.owner != owner);
            }
        }
    }

    /// Gives a free lock to the first waiting call, and a free or shared one to all readers before the first living writer,
    /// but to no call behind `before`. Answers whether a living writer waits there.
    pub(super) fn hand_over(
        &mut self,
        turn: &mut Turn<'_, N>,
        lock: usize,
        token: N,
        before: Option<(u64, N)>,
    ) -> bool {
        let none = N::default();
        let passes = turn.mistake == Mistake::ReadersPassWriters;
        while let Some(list) = self.lists.get_mut(turn.list(lock)) {
            let is_shared = matches!(self.locks[lock].key, Key::Shared);
            let reader = list.waiting.iter().position(|it| passes && it.reads);
            let place = reader.unwrap_or(0);
            let Some(first) = list.waiting.get(place).copied() else {
                return false;
            };
            if before.is_some_and(|it| it <= first.place()) {
                return false;
            }
            if is_shared && !first.reads && turn.is_alive(list, &first) {
                return true;
            }
            list.waiting.remove(place);
            if is_shared && !first.reads || !first.polls && !(turn.listens)(&first) {
                continue;
            }
            let counter = self.locks[lock].counter;
            let floor = counter.max(self.record.quarantine_end());
            let said = match turn.mistake {
                _ if first.reads && floor <= counter => counter,
                _ if first.reads => none,
                Mistake::HandOverAcceptsEqual if token == floor => token,
                Mistake::HandOverStoresAnyway => token,
                _ if floor < token => token,
                _ => none,
            };
            turn.handed.push(HandOver {
                to: first,
                lock,
                token: said,
            });
            if first.reads {
                self.let_reader_in(lock, first.owner, turn.first_until, turn.mistake);
                continue;
            }
            self.locks[lock].key = Key::Owned {
                owner: first.owner,
                until: turn.first_until,
            };
            if said != none && turn.mistake != Mistake::HandOverStoresNothing {
                self.locks[lock].counter = said;
            }
            return false;
        }
        false
    }

    /// As [`Server::hand_over`], for an acquire that finds the lock free.
    pub(super) fn hand_over_found(
        &mut self,
        turn: &mut Turn<'_, N>,
        lock: usize,
        token: N,
        me: &Member<N>,
    ) -> bool {
        let counter = self.locks[lock].counter;
        let is_ahead = self.hand_over(turn, lock, token, Some(me.place()));
        if turn.mistake == Mistake::FinderStoresNothing {
            self.locks[lock].counter = counter;
        }
        is_ahead
    }
}
