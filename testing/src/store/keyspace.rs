//! The keys of a server: strings and sorted sets, with an expiry or without. Keys of other types
//! exist only to be in the way.

use std::collections::{BTreeMap, BTreeSet};

/// What a key holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(Vec<u8>),
    /// Members and their scores.
    Sorted(BTreeMap<Vec<u8>, f64>),
    /// The type's name, as `TYPE` reports it, and its members or fields.
    Other(&'static str, BTreeSet<Vec<u8>>),
}

/// The key is of another type than the command is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct WrongType;

struct Entry {
    value: Value,
    /// Milliseconds since 1970.
    ends: Option<i64>,
}

/// What is stored under a key.
#[derive(Debug)]
pub struct Stored<'a> {
    pub value: &'a Value,
    /// Milliseconds until it expires.
    pub left: Option<i64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Milliseconds since 1970.
    now: i64,
}

impl Keyspace {
    /// Sets the time, in milliseconds since 1970, and removes what has expired: a key lives through
    /// its last millisecond.
    pub(super) fn go_to(&mut self, now: i64) {
        self.now = now;
        self.entries
            .retain(|_, entry| entry.ends.is_none_or(|ends| now <= ends));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Stored<'_>)> {
        let left = |entry: &Entry| entry.ends.map(|ends| ends - self.now);
        self.entries.iter().map(move |(key, entry)| {
            (
                &key[..],
                Stored {
                    value: &entry.value,
                    left: left(entry),
                },
            )
        })
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    fn value(&self, key: &[u8]) -> Option<&Value> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    pub(super) fn kind(&self, key: &[u8]) -> &'static str {
        match self.value(key) {
            None => "none",
            Some(Value::Text(_)) => "string",
            Some(Value::Sorted(_)) => "zset",
            Some(Value::Other(kind, _)) => kind,
        }
    }

    pub(super) fn exists(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn text(&self, key: &[u8]) -> Result<Option<Vec<u8>>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WrongType),
        }
    }

    /// When it expires: milliseconds since 1970.
    pub(super) fn ends(&self, key: &[u8]) -> Option<i64> {
        self.entries.get(key).and_then(|entry| entry.ends)
    }

    /// Milliseconds; -1 if it has no expiry, -2 if there is no such key.
    pub(super) fn left(&self, key: &[u8]) -> i64 {
        self.entries
            .get(key)
            .map_or(-2, |entry| entry.ends.map_or(-1, |ends| ends - self.now))
    }

    pub(super) fn set(&mut self, key: &[u8], text: &[u8], ends: Option<i64>) {
        self.entries.insert(
            key.to_vec(),
            Entry {
                value: Value::Text(text.to_vec()),
                ends,
            },
        );
    }

    pub(super) fn del(&mut self, key: &[u8]) -> bool {
        self.entries.remove(key).is_some()
    }

    /// The time `life` milliseconds from now, if there is such a time.
    pub(super) fn after(&self, life: i64) -> Option<i64> {
        self.now.checked_add(life)
    }

    /// Sets when a key expires: milliseconds since 1970. Whether there is such a key.
    pub(super) fn expire(&mut self, key: &[u8], ends: i64) -> bool {
        self.entries
            .get_mut(key)
            .map(|entry| entry.ends = Some(ends))
            .is_some()
    }

    /// A field of a hash, a member of a set, an element of a list. Whether it is new there.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        kind: &'static str,
        item: &[u8],
    ) -> Result<bool, WrongType> {
        let new = || Entry {
            value: Value::Other(kind, BTreeSet::new()),
            ends: None,
        };
        match &mut self.entries.entry(key.to_vec()).or_insert_with(new).value {
            Value::Other(is, items) if *is == kind => Ok(items.insert(item.to_vec())),
            _ => Err(WrongType),
        }
    }

    /// The members of a sorted set, and their scores; empty if there is none.
    pub(super) fn sorted(&self, key: &[u8]) -> Result<&BTreeMap<Vec<u8>, f64>, WrongType> {
        static EMPTY: BTreeMap<Vec<u8>, f64> = BTreeMap::new();
        match self.value(key) {
            None => Ok(&EMPTY),
            Some(Value::Sorted(members)) => Ok(members),
            Some(_) => Err(WrongType),
        }
    }

    /// The same in order.
    pub(super) fn ranked(&self, key: &[u8]) -> Result<Vec<(&[u8], f64)>, WrongType> {
        let mut members: Vec<_> = self
            .sorted(key)?
            .iter()
            .map(|(member, score)| (&member[..], *score))
            .collect();
        // Stable: members of one score stay in the order of the map.
        members.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        Ok(members)
    }

    /// Whether the member is new.
    pub(super) fn add(&mut self, key: &[u8], score: f64, member: &[u8]) -> Result<bool, WrongType> {
        let new = || Entry {
            value: Value::Sorted(BTreeMap::new()),
            ends: None,
        };
        match &mut self.entries.entry(key.to_vec()).or_insert_with(new).value {
            Value::Sorted(members) => Ok(members.insert(member.to_vec(), score).is_none()),
            _ => Err(WrongType),
        }
    }

    /// Keeps these members of a sorted set; how many were removed.
    pub(super) fn retain(
        &mut self,
        key: &[u8],
        keep: impl Fn(&[u8], f64) -> bool,
    ) -> Result<usize, WrongType> {
        let before = self.sorted(key)?.len();
        let Some(Entry {
            value: Value::Sorted(members),
            ..
        }) = self.entries.get_mut(key)
        else {
            return Ok(0);
        };
        members.retain(|member, score| keep(member, *score));
        let after = members.len();
        if after == 0 {
            self.del(key);
        }
        Ok(before - after)
    }
}
