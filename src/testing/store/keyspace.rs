//! The keys of a server: strings and sorted sets, with an end or without. Of other types there is what makes them such.

use std::collections::{BTreeMap, BTreeSet};

use super::number::of_len;

/// What a key holds.
#[derive(Clone, PartialEq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    /// Members and their scores.
    Sorted(BTreeMap<Vec<u8>, f64>),
    /// Of a type that is none of ours, as `TYPE` says it; what is in it, or the names of that.
    Other(&'static str, BTreeSet<Vec<u8>>),
}

/// The key is of another type than the command is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct WrongType;

struct Entry {
    value: Value,
    /// When it ends: milliseconds since 1970.
    ends: Option<f64>,
}

/// What is stored under a key.
pub(crate) struct Stored<'a> {
    pub(crate) value: &'a Value,
    /// Until it ends, in milliseconds.
    pub(crate) left: Option<f64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Milliseconds since 1970.
    now: f64,
    /// What it was first.
    began: Option<f64>,
}

impl Keyspace {
    /// From now on it is this time, in microseconds since 1970. What has ended is gone: in its last millisecond a key is
    /// still there.
    pub(super) fn go_to(&mut self, micros: f64) {
        self.now = (micros / 1000.0).floor();
        self.began.get_or_insert(self.now);
        self.entries.retain(|_, it| it.ends.is_none_or(|ends| self.now <= ends));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Stored<'_>)> {
        let stored = |it: &'_ Entry| it.ends.map(|ends| ends - self.now);
        self.entries.iter().map(move |(key, it)| (&key[..], Stored { value: &it.value, left: stored(it) }))
    }

    /// For how long it has been used, in milliseconds.
    pub(super) fn age(&self) -> f64 {
        self.began.map_or(0.0, |it| (self.now - it).max(0.0))
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// `GET`.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, WrongType> {
        match self.entries.get(key).map(|it| &it.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WrongType),
        }
    }

    /// `TYPE`.
    pub(super) fn kind(&self, key: &[u8]) -> &'static str {
        match self.entries.get(key).map(|it| &it.value) {
            None => "none",
            Some(Value::Text(_)) => "string",
            Some(Value::Sorted(_)) => "zset",
            Some(Value::Other(kind, _)) => kind,
        }
    }

    /// `HSET` of one field, `SADD` of one member, `LPUSH`: whether that is new there.
    pub(super) fn put(&mut self, key: &[u8], kind: &'static str, item: &[u8]) -> Result<bool, WrongType> {
        let new = || Entry { value: Value::Other(kind, BTreeSet::new()), ends: None };
        match &mut self.entries.entry(key.to_vec()).or_insert_with(new).value {
            Value::Other(is, items) if *is == kind => Ok(items.insert(item.to_vec())),
            _ => Err(WrongType),
        }
    }

    /// As `MGET`, for which a key of another type is none.
    pub(super) fn text(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get(key).ok().flatten()
    }

    pub(super) fn exists(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    /// `PTTL`: milliseconds; -1 if it has no end, -2 if there is none.
    pub(super) fn pttl(&self, key: &[u8]) -> f64 {
        self.entries.get(key).map_or(-2.0, |it| it.ends.map_or(-1.0, |ends| ends - self.now))
    }

    /// `SET`, whatever was there. `life`: milliseconds, at least 1.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8], life: Option<f64>) {
        let entry = Entry { value: Value::Text(value.to_vec()), ends: life.map(|it| self.now + it) };
        self.entries.insert(key.to_vec(), entry);
    }

    /// `SET` with `NX`; whether it was set.
    pub(super) fn set_new(&mut self, key: &[u8], value: &[u8], life: f64) -> bool {
        let is_new = !self.exists(key);
        if is_new {
            self.set(key, value, Some(life));
        }
        is_new
    }

    /// `SET` with `XX` and `KEEPTTL`.
    pub(super) fn replace(&mut self, key: &[u8], value: &[u8]) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.value = Value::Text(value.to_vec());
        }
    }

    /// `SET` with `GET`: what was there.
    pub(super) fn exchange(
        &mut self,
        key: &[u8],
        value: &[u8],
        life: Option<f64>,
    ) -> Result<Option<Vec<u8>>, WrongType> {
        let before = self.get(key)?;
        self.set(key, value, life);
        Ok(before)
    }

    /// Whether it was there.
    pub(super) fn del(&mut self, key: &[u8]) -> bool {
        self.entries.remove(key).is_some()
    }

    /// `PEXPIRE`, for so many milliseconds; whether there is such a key.
    pub(super) fn expire(&mut self, key: &[u8], life: f64) -> bool {
        if life <= 0.0 {
            return self.del(key);
        }
        let now = self.now;
        self.entries.get_mut(key).map(|it| it.ends = Some(now + life)).is_some()
    }

    fn sorted(&self, key: &[u8]) -> Result<Option<&BTreeMap<Vec<u8>, f64>>, WrongType> {
        match self.entries.get(key).map(|it| &it.value) {
            None => Ok(None),
            Some(Value::Sorted(it)) => Ok(Some(it)),
            Some(_) => Err(WrongType),
        }
    }

    fn sorted_mut(&mut self, key: &[u8]) -> Result<Option<&mut BTreeMap<Vec<u8>, f64>>, WrongType> {
        match self.entries.get_mut(key).map(|it| &mut it.value) {
            None => Ok(None),
            Some(Value::Sorted(it)) => Ok(Some(it)),
            Some(_) => Err(WrongType),
        }
    }

    /// `ZADD`; whether the member is new.
    pub(super) fn zadd(&mut self, key: &[u8], score: f64, member: &[u8]) -> Result<bool, WrongType> {
        if let Some(members) = self.sorted_mut(key)? {
            return Ok(members.insert(member.to_vec(), score).is_none());
        }
        let value = Value::Sorted(BTreeMap::from([(member.to_vec(), score)]));
        self.entries.insert(key.to_vec(), Entry { value, ends: None });
        Ok(true)
    }

    /// `ZADD` with `NX`.
    pub(super) fn zadd_new(&mut self, key: &[u8], score: f64, member: &[u8]) -> Result<bool, WrongType> {
        Ok(self.zscore(key, member)?.is_none() && self.zadd(key, score, member)?)
    }

    /// `ZREM`; how many were there.
    pub(super) fn zrem<M: AsRef<[u8]>>(&mut self, key: &[u8], members: &[M]) -> Result<f64, WrongType> {
        let before = self.zcard(key)?;
        self.zretain(key, |member, _| !members.iter().any(|it| it.as_ref() == member))?;
        Ok(before - self.zcard(key)?)
    }

    pub(super) fn zretain(&mut self, key: &[u8], keep: impl Fn(&[u8], f64) -> bool) -> Result<(), WrongType> {
        let Some(members) = self.sorted_mut(key)? else { return Ok(()) };
        members.retain(|member, score| keep(member, *score));
        if members.is_empty() {
            self.del(key);
        }
        Ok(())
    }

    pub(super) fn zscore(&self, key: &[u8], member: &[u8]) -> Result<Option<f64>, WrongType> {
        Ok(self.sorted(key)?.and_then(|it| it.get(member)).copied())
    }

    pub(super) fn zcard(&self, key: &[u8]) -> Result<f64, WrongType> {
        Ok(self.sorted(key)?.map_or(0.0, |it| of_len(it.len())))
    }

    /// All members in order, with their scores.
    pub(super) fn zall(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, f64)>, WrongType> {
        let members = self.sorted(key)?.into_iter().flatten();
        let mut members: Vec<_> = members.map(|(member, score)| (member.clone(), *score)).collect();
        members.sort_by(|(a, of_a), (b, of_b)| of_a.total_cmp(of_b).then_with(|| a.cmp(b)));
        Ok(members)
    }

    /// `ZRANGE`, so many from place `from` on. A key of another type has none.
    pub(super) fn zrange(&self, key: &[u8], from: usize, count: usize) -> Vec<(Vec<u8>, f64)> {
        self.zall(key).unwrap_or_default().into_iter().skip(from).take(count).collect()
    }
}
