//! Visits every state of a small world.
//!
//! How large the worlds are is printed, for those who ask with `--nocapture`; and how it came to a violation, which is seen
//! where a test fails.
#![allow(clippy::print_stdout, reason = "for who reads a test")]

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

use super::*;

/// What can happen in a world, and what must not.
pub(super) trait World: Debug {
    type State: Copy + Debug + Eq + Hash;
    type Violation: Copy + Debug;

    /// All that can come next.
    fn next(&self, state: &Self::State) -> Vec<Self::State>;

    /// What is wrong with `state`, or with how it became what it is.
    fn violation(&self, before: &Self::State, state: &Self::State) -> Option<Self::Violation>;

    /// The one that stands for all states that are like this one; `None` if nothing more can go wrong.
    fn settle(&self, state: Self::State) -> Option<Self::State>;

    /// Visits all that can come of `start`, the nearest states first, up to a violation.
    fn search(&self, start: Self::State) -> Option<Self::Violation> {
        let mut visited = Visited::new(self.settle(start).unwrap());
        let mut at = 0;
        while let Some(state) = visited.get(at) {
            for next in self.next(&state) {
                if let Some(violation) = self.violation(&state, &next) {
                    println!("{violation:?} in {self:?}, which came about like this:");
                    visited
                        .way(at)
                        .iter()
                        .for_each(|it| println!("{:?}", visited.states[*it]));
                    println!("{next:?}");
                    return Some(violation);
                }
                if let Some(next) = self.settle(next) {
                    visited.insert(next, at);
                }
            }
            at += 1;
        }
        println!("{at} states of {self:?}");
        None
    }
}

/// States in the order in which they were found, each once, and a table to find them again. The standard library's
/// sets take most of the time of a debug build.
pub(super) struct Visited<S> {
    states: Vec<S>,
    /// Where each was found from.
    parents: Vec<u32>,
    /// A part of the hash, and the place in `states` plus one; 0 for none.
    table: Vec<(u32, u32)>,
}

impl<S: Copy + Eq + Hash> Visited<S> {
    pub(super) fn new(start: S) -> Visited<S> {
        let mut visited = Visited {
            states: vec![],
            parents: vec![],
            table: vec![(0, 0); 1 << 12],
        };
        visited.insert(start, 0);
        visited
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<S> {
        self.states.get(at).copied()
    }

    /// The places of all states on the way to the one at `at`.
    pub(super) fn way(&self, at: usize) -> Vec<usize> {
        let mut way = vec![at];
        while let Some(last) = way.last().copied().filter(|it| *it != 0) {
            way.push(self.parents[last] as usize);
        }
        way.reverse();
        way
    }

    pub(super) fn insert(&mut self, state: S, parent: usize) {
        if self.table.len() < 2 * self.states.len() {
            self.grow();
        }
        let hash = hash(&state);
        let tag = (hash >> 32) as u32;
        let mask = self.table.len() - 1;
        let mut place = hash as usize & mask;
        loop {
            let (found, at) = self.table[place];
            if at == 0 {
                break;
            }
            if found == tag && self.states[at as usize - 1] == state {
                return;
            }
            place = (place + 1) & mask;
        }
        self.states.push(state);
        self.parents.push(parent as u32);
        self.table[place] = (tag, self.states.len() as u32);
    }

    fn grow(&mut self) {
        let len = 4 * self.table.len();
        self.table = vec![(0, 0); len];
        for (at, state) in self.states.iter().enumerate() {
            let hash = hash(state);
            let mut place = hash as usize & (len - 1);
            while self.table[place].1 != 0 {
                place = (place + 1) & (len - 1);
            }
            self.table[place] = ((hash >> 32) as u32, at as u32 + 1);
        }
    }
}

fn hash(state: &impl Hash) -> u64 {
    let hash = BuildHasherDefault::<Words>::default().hash_one(state);
    hash ^ hash >> 29
}

/// A poor hash costs time, never a state: states are compared as a whole.
#[derive(Default)]
struct Words(u64);

impl Words {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for Words {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while let Some((word, rest)) = bytes.split_first_chunk() {
            self.add(u64::from_ne_bytes(*word));
            bytes = rest;
        }
        let mut word = 0;
        while let [byte, rest @ ..] = bytes {
            word = word << 8 | u64::from(*byte);
            bytes = rest;
        }
        self.add(word);
    }

    fn write_u8(&mut self, word: u8) {
        self.add(word.into());
    }

    fn write_isize(&mut self, word: isize) {
        self.add(word as u64);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }
}
