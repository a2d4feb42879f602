//! Readers of a lock, or ends that are told apart by owner.

use super::*;

pub(in super::super) trait Readers<N>: Clone {
    fn none() -> Self;
    fn end_of(&self, owner: N) -> Option<N>;
    /// Never shortens what is there.
    fn keep(&mut self, owner: N, until: N);
    fn remove(&mut self, owner: N);
    fn retain(&mut self, stays: impl Fn(N) -> bool);
    fn is_empty(&self) -> bool;
}

/// Where nobody reads.
impl<N> Readers<N> for () {
    fn none() -> Self {}

    fn end_of(&self, _owner: N) -> Option<N> {
        None
    }

    fn keep(&mut self, _owner: N, _until: N) {
        panic!("no reader comes here");
    }

    fn remove(&mut self, _owner: N) {}

    fn retain(&mut self, _stays: impl Fn(N) -> bool) {}

    fn is_empty(&self) -> bool {
        true
    }
}

/// The end of each owner; 0 for none.
impl<const A: usize> Readers<u8> for [u8; A] {
    fn none() -> Self {
        [0; A]
    }

    fn end_of(&self, owner: u8) -> Option<u8> {
        Some(self[usize::from(owner)]).filter(|it| *it != 0)
    }

    fn keep(&mut self, owner: u8, until: u8) {
        let end = &mut self[usize::from(owner)];
        *end = until.max(*end);
    }

    fn remove(&mut self, owner: u8) {
        self[usize::from(owner)] = 0;
    }

    fn retain(&mut self, stays: impl Fn(u8) -> bool) {
        for end in self {
            *end = if stays(*end) { *end } else { 0 };
        }
    }

    fn is_empty(&self) -> bool {
        *self == [0; A]
    }
}

/// Owners and ends.
impl<N: Number> Readers<N> for Vec<(N, N)> {
    fn none() -> Self {
        Vec::new()
    }

    fn end_of(&self, owner: N) -> Option<N> {
        self.iter().find(|it| it.0 == owner).map(|it| it.1)
    }

    fn keep(&mut self, owner: N, until: N) {
        match self.iter_mut().find(|it| it.0 == owner) {
            Some(it) => it.1 = until.max(it.1),
            None => self.push((owner, until)),
        }
    }

    fn remove(&mut self, owner: N) {
        Vec::retain(self, |it| it.0 != owner);
    }

    fn retain(&mut self, stays: impl Fn(N) -> bool) {
        Vec::retain(self, |it| stays(it.1));
    }

    fn is_empty(&self) -> bool {
        Vec::is_empty(self)
    }
}
