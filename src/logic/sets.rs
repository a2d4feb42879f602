//! Which sets of servers may be in use at once, and what a client makes of those that a server's record shows.
//!
//! Majorities of two sets need not meet. So each server's record has the sets that programs use: at most two, the one in use and
//! one that replaces it. A client whose set does not go together with these is refused. A new or changed set changes the edition
//! of the record, so every other client notices it with its next command.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{GreetReply, Listed, Record, StoredSet};
use crate::error::ServerSet;
use crate::ids::NodeId;

/// A set that nobody has noted for so many hours is not in use any more.
const UNUSED_AFTER: u64 = 24;
const MILLIS_PER_HOUR: u64 = 3_600_000;
/// The sets in use at once.
const SETS_MAX: usize = 2;
/// Clocks of two servers differ by less: milliseconds.
const CLOCKS_DIFFER: u64 = 10_000;

/// A client's own servers, and what their records show.
#[derive(Debug)]
pub(crate) struct OwnServers {
    label: Arc<str>,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    address: u32,
    /// As long as it is connected.
    shown: Option<GreetReply>,
    /// A record showed this server at our server's address. Ours is to be asked once more which one it is.
    replaced_by: Option<u64>,
    in_doubt: bool,
}

/// What a server's record means for a client.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Judgement {
    /// For how long it has been in our set, or in one that goes together with it.
    pub(crate) member_for: Duration,
    /// What its record is to have.
    pub(crate) note: Option<Vec<StoredSet>>,
    /// Another set in use, and whether it goes together with ours.
    pub(crate) other: Option<(StoredSet, bool)>,
    /// Our set is not noted, because that one is in the way.
    pub(crate) is_refused: bool,
}

impl OwnServers {
    /// `addresses`: of our servers, as a program spells them.
    pub(crate) fn new<'a>(label: &str, addresses: impl IntoIterator<Item = &'a str>) -> OwnServers {
        let server = |it: &str| Server { address: hash(it), shown: None, replaced_by: None, in_doubt: false };
        OwnServers { label: label.into(), servers: addresses.into_iter().map(server).collect() }
    }

    /// A server's record shows this.
    pub(crate) fn hear(&mut self, server: usize, shown: GreetReply) {
        if let Some(known) = self.servers.get_mut(server) {
            (known.shown, known.in_doubt) = (Some(shown), false);
        }
        self.doubt_what_was_replaced(server);
    }

    /// The connection has ended: behind the next one there may be another server.
    pub(crate) fn forget(&mut self, server: usize) {
        if let Some(known) = self.servers.get_mut(server) {
            *known = Server { address: known.address, shown: None, replaced_by: None, in_doubt: false };
        }
    }

    /// RACE: our server S loses its data and gets another id. Another client notes it at server T. T shows us that before S does,
    /// and S, as we know it, seems to be in no set of T's. So S is asked once more before T's record is believed.
    fn doubt_what_was_replaced(&mut self, server: usize) {
        let Some(shown) = self.servers.get(server).and_then(|it| it.shown.clone()) else { return };
        let known = self.known();
        let sets = shown.sets.iter().filter(|it| it.size == self.size() && self.merged(it).is_none());
        for set in sets.cloned().collect::<Vec<_>>() {
            for ours in &mut self.servers {
                let id = ours.shown.as_ref().and_then(|it| it.id);
                let there = set.servers.iter().find(|it| it.address == ours.address && Some(it.id) != id);
                if let Some(there) = there.filter(|it| !known.iter().any(|known| known.id == it.id))
                    && ours.replaced_by != Some(there.id)
                    && id.is_some()
                {
                    (ours.replaced_by, ours.in_doubt) = (Some(there.id), true);
                }
            }
        }
    }

    /// Whether the server's greeting is due: it is in doubt which one it is, or its record is to be changed.
    pub(crate) fn is_due(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(|it| it.in_doubt) || self.judge(server).note.is_some()
    }

    /// What a server's record showed last.
    pub(crate) fn shown(&self, server: usize) -> Option<&GreetReply> {
        self.servers.get(server)?.shown.as_ref()
    }

    /// What the record of a server means, as far as our servers are known.
    pub(crate) fn judge(&self, server: usize) -> Judgement {
        let Some(shown) = self.shown(server) else { return Judgement::default() };
        let now = shown.now / 1_000;
        let hour = now / MILLIS_PER_HOUR;
        let mut others: Vec<_> = shown.sets.iter().filter(|it| !is_alone(it)).cloned().collect();
        let ours = others.iter().enumerate().find_map(|(at, it)| Some((at, self.merged(it)?)));
        let (at, stored, servers) = match ours {
            Some((at, servers)) => (at, Some(others.remove(at)), servers),
            None => (usize::MAX, None, self.known_or_listed(&others)),
        };
        others.retain(|it| hour.saturating_sub(it.used) < UNUSED_AFTER);
        if let Some(stored) = &stored {
            replace_in(&mut others, &stored.servers, &servers, now);
        }
        let is_noted = stored.as_ref().is_some_and(|it| it.servers == servers);

        let met = |it: &StoredSet| (it.size, count(&it.servers));
        let is_listed = |it: &Server| servers.iter().any(|listed| listed.address == it.address);
        // A server without a record is new, and so in no other set.
        let new =
            self.servers.iter().filter(|it| it.shown.as_ref().is_some_and(|it| it.id.is_none()) && !is_listed(it));
        let ours_met = (self.size(), count(&servers).saturating_add(count(new)));
        let is_unsafe = |it: &&StoredSet| !go_together(common(&servers, &it.servers), ours_met, met(it));
        let all = (self.size(), self.size());
        let is_safe = |it: &&StoredSet| go_together(common(&servers, &it.servers), all, (it.size, it.size));
        let in_the_way = others.iter().find(is_unsafe).or_else(|| others.get(SETS_MAX.saturating_sub(1)));
        let safe = || others.iter().find(is_safe).map(|it| (it.clone(), true));
        let other = in_the_way.map(|it| (it.clone(), false)).or_else(safe);
        if in_the_way.is_some() && !is_noted {
            return Judgement { member_for: Duration::MAX, note: None, other, is_refused: true };
        }
        let joined = match &stored {
            Some(it) => it.joined,
            None if !others.is_empty() => 0,
            None if shown.sets.is_empty() => since(shown),
            // A program made its record and met no other server, or other programs have used it: it may lack what the servers of
            // our set have granted without it.
            None => now,
        };
        let member_for = if joined == 0 { Duration::MAX } else { Duration::from_millis(now.saturating_sub(joined)) };
        // As long as too few servers are known no lock can be had, or nobody can tell what is safe.
        let may_note =
            stored.is_some() || quorum_of(self.size()) <= count(&servers) && others.iter().all(|it| is_safe(&it));
        let is_current = is_noted && stored.as_ref().is_some_and(|it| it.used == hour);
        let changed = stored.filter(|it| it.servers.iter().all(|it| servers.contains(it))).map_or(now, |it| it.changed);
        let note = (may_note && !is_current).then(|| {
            let (size, label) = (self.size(), Arc::clone(&self.label));
            let mut sets = others.clone();
            // It stays in its place: clients that put their own first would change the record for each other for ever.
            sets.insert(at.min(others.len()), StoredSet { size, used: hour, joined, changed, label, servers });
            sets
        });
        Judgement { member_for, note, other, is_refused: false }
    }

    /// What the server's record is to have if no program uses another set any more.
    pub(crate) fn without_others(&self, server: usize) -> Vec<StoredSet> {
        let sets = self.shown(server).map(|it| Arc::clone(&it.sets)).unwrap_or_default();
        sets.iter().filter(|it| !is_alone(it) && self.merged(it).is_some()).cloned().collect()
    }

    /// All sets that the server's record shows.
    pub(crate) fn all(&self, server: usize) -> Vec<ServerSet> {
        let Some(shown) = self.shown(server) else { return Vec::new() };
        let hours = |it: &StoredSet| (shown.now / 1_000 / MILLIS_PER_HOUR).saturating_sub(it.used);
        let known = self.known_or_listed(&shown.sets);
        let all = (self.size(), self.size());
        let public = |it: &StoredSet| ServerSet {
            size: it.size,
            nodes: self.in_common(it),
            is_ours: self.merged(it).is_some(),
            is_safe: go_together(common(&known, &it.servers), all, (it.size, it.size)),
            is_in_use: hours(it) < UNUSED_AFTER,
            label: Arc::clone(&it.label),
            used: Duration::from_secs(hours(it).saturating_mul(60 * 60)),
        };
        shown.sets.iter().filter(|it| !is_alone(it)).map(public).collect()
    }

    /// Which of our servers are in a set.
    fn in_common(&self, set: &StoredSet) -> Vec<NodeId> {
        let ids = (0..).zip(&self.servers).filter_map(|(node, it)| Some((NodeId::new(node), it.shown.as_ref()?.id?)));
        ids.filter(|it| set.servers.iter().any(|listed| listed.id == it.1)).map(|it| it.0).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    fn size(&self) -> u64 {
        u64::try_from(self.servers.len()).unwrap_or(u64::MAX)
    }

    /// Those of our servers whose ids are known.
    fn known(&self) -> Vec<Listed> {
        self.identified().map(|(id, server, _)| Listed { id, address: server.address }).collect()
    }

    /// The same, and of the others those that are listed in these sets with the same address: they are down or emptied, perhaps.
    fn known_or_listed(&self, sets: &[StoredSet]) -> Vec<Listed> {
        let mut known = self.known();
        for ours in self.servers.iter().filter(|it| it.shown.as_ref().is_none_or(|it| it.id.is_none())) {
            let listed = sets.iter().flat_map(|it| &it.servers).find(|it| it.address == ours.address);
            known.extend(listed.filter(|listed| known.iter().all(|it| it.id != listed.id)).copied().as_ref());
        }
        known
    }

    fn identified(&self) -> impl Iterator<Item = (u64, &Server, &GreetReply)> {
        self.servers.iter().filter(|it| !it.in_doubt).filter_map(|it| {
            let shown = it.shown.as_ref()?;
            Some((shown.id?, it, shown))
        })
    }

    /// The servers of a set together with those of ours that it lacks; `None` if it is not our set. It is ours if all that we
    /// know is in it, or has taken the place of one of its servers: at the same address, and with data that are younger than the
    /// set.
    ///
    /// Younger: the one that was replaced, if it is still there, cannot take its place back. Its clients are refused.
    fn merged(&self, set: &StoredSet) -> Option<Vec<Listed>> {
        let mut servers = set.servers.clone();
        for (id, ours, shown) in self.identified() {
            let listed = Listed { id, address: ours.address };
            if servers.iter().any(|it| it.id == id) {
                continue;
            }
            let joined = shown.sets.iter().filter(|it| it.size == self.size()).map(|it| it.joined).max();
            let since = since(shown).max(joined.unwrap_or(0));
            match servers.iter_mut().find(|it| it.address == ours.address) {
                Some(place) if set.changed <= since.saturating_add(CLOCKS_DIFFER) => *place = listed,
                Some(_) => return None,
                None => servers.push(listed),
            }
        }
        let has_all = self.known().iter().all(|ours| servers.iter().any(|it| it.id == ours.id));
        let fits = u64::try_from(servers.len()).is_ok_and(|it| it <= set.size);
        (set.size == self.size() && has_all && fits).then_some(servers)
    }
}

/// Whatever has taken the place of a server in our set has taken it in the other as well.
///
/// RACE: during a deployment two sets list server S. S loses its data and gets another id. Clients of either set see the old id in
/// the other's. So the two would not go together, each would be refused because of the other, and nobody would note the new id.
fn replace_in(others: &mut [StoredSet], listed: &[Listed], servers: &[Listed], now: u64) {
    for (old, new) in listed.iter().zip(servers).filter(|(old, new)| old.id != new.id) {
        for set in others.iter_mut().filter(|set| set.servers.iter().all(|it| it.id != new.id)) {
            if let Some(place) = set.servers.iter_mut().find(|it| it.id == old.id) {
                place.id = new.id;
                set.changed = now;
            }
        }
    }
}

/// A program made the record of a server, and had met no other.
fn is_alone(set: &StoredSet) -> bool {
    count(&set.servers) < 2 && set.size != 1
}

fn common(servers: &[Listed], others: &[Listed]) -> u64 {
    count(servers.iter().filter(|it| others.iter().any(|other| other.id == it.id)))
}

fn count(servers: impl IntoIterator) -> u64 {
    u64::try_from(servers.into_iter().count()).unwrap_or(u64::MAX)
}

fn quorum_of(size: u64) -> u64 {
    (size / 2).saturating_add(1)
}

/// Whether each majority of the one set shares a server with each of the other. Of each set: its size, and how many of its servers
/// can be in a majority; `common`: how many of these are in both.
///
/// Those that a client has met can be. All can be, if the answer is to hold whatever the others turn out to be.
fn go_together(common: u64, (size, servers): (u64, u64), (other_size, others): (u64, u64)) -> bool {
    // Of a majority, so many at least are of those in common.
    let of_common = |size, servers: u64| quorum_of(size).saturating_sub(servers.saturating_sub(common));
    common < of_common(size, servers).saturating_add(of_common(other_size, others))
}

/// Since when a server has kept its data: milliseconds since 1970, or 0 for ever.
fn since(shown: &GreetReply) -> u64 {
    if shown.record == Record::Vouched {
        return 0;
    }
    (shown.now / 1_000).saturating_sub(u64::try_from(shown.served.as_millis()).unwrap_or(u64::MAX))
}

/// FNV-1a.
fn hash(address: &str) -> u32 {
    address.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
