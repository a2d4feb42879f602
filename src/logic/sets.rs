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
use crate::logic::quorum::quorum;

/// A set that nobody has noted for so many hours is not in use any more.
const UNUSED_AFTER: u64 = 24;
const MILLIS_PER_HOUR: u64 = 3_600_000;
/// The sets in use at once.
const SETS_MAX: usize = 2;
/// For so long an operator's word holds that a server is new or has lost nothing, until its first set is noted: milliseconds.
const SAID_FOR: u64 = 3_600_000;
/// Clocks of two servers differ by less: milliseconds.
const CLOCKS_DIFFER: u64 = 10_000;

/// A client's own servers, and what their records show.
#[derive(Debug)]
pub(crate) struct OwnServers {
    label: Arc<str>,
    servers: Vec<OwnServer>,
}

#[derive(Debug)]
struct OwnServer {
    address: u32,
    /// As long as it is connected.
    shown: Option<GreetReply>,
    /// A record showed this server at our server's address. Ours is to be asked once more which one it is.
    replaced_by: Option<u64>,
    is_suspect: bool,
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
        let server = |it: &str| OwnServer {
            address: hash(it),
            shown: None,
            replaced_by: None,
            is_suspect: false,
        };
        OwnServers {
            label: label.into(),
            servers: addresses.into_iter().map(server).collect(),
        }
    }

    /// A server's record shows this.
    pub(crate) fn on_report(&mut self, server: usize, shown: GreetReply) {
        if let Some(known) = self.servers.get_mut(server) {
            (known.shown, known.is_suspect) = (Some(shown), false);
        }
        self.suspect_replaced();
    }

    /// The connection has ended: behind the next one there may be another server.
    pub(crate) fn forget(&mut self, server: usize) {
        if let Some(known) = self.servers.get_mut(server) {
            *known = OwnServer {
                address: known.address,
                shown: None,
                replaced_by: None,
                is_suspect: false,
            };
        }
    }

    /// RACE: our server S loses its data and gets another id. Another client notes it at server T. T shows us that before S does,
    /// and S, as we know it, seems to be in no set of T's. So S is asked once more before T's record is believed. The same if S is an
    /// old server that is new at its address: asked once more it notes our set, and is younger than T's then.
    fn suspect_replaced(&mut self) {
        let shown: Vec<_> = self
            .servers
            .iter()
            .filter_map(|it| Some(Arc::clone(&it.shown.as_ref()?.sets)))
            .collect();
        for set in shown.iter().flat_map(|it| it.iter()) {
            for (at, place) in self.displaced(set, None) {
                let (Some(ours), Some(listed)) = (self.servers.get_mut(at), set.servers.get(place))
                else {
                    continue;
                };
                if !is_younger(ours.shown.as_ref(), set) && ours.replaced_by != Some(listed.id) {
                    (ours.replaced_by, ours.is_suspect) = (Some(listed.id), true);
                }
            }
        }
    }

    /// Our servers that are not in a set, in which another server is listed with their address; and where that is.
    fn displaced(&self, set: &StoredSet, of: Option<usize>) -> Vec<(usize, usize)> {
        let known = self.known(of);
        let is_displaced = |at: usize, ours: &OwnServer| {
            let id = ours.id(of == Some(at))?;
            let place = set
                .servers
                .iter()
                .position(|it| it.address == ours.address)?;
            let is_ours = |id: u64| known.iter().any(|it| it.id == id);
            let listed = set.servers.get(place).is_some_and(|it| !is_ours(it.id));
            (listed && set.servers.iter().all(|it| it.id != id)).then_some(place)
        };
        self.servers
            .iter()
            .enumerate()
            .filter_map(|(at, it)| Some((at, is_displaced(at, it)?)))
            .collect()
    }

    /// Whether the server's greeting is due, of whose record this was made: it is in doubt which one it is, or the record is to be
    /// changed.
    pub(crate) fn is_due(&self, server: usize, judged: &Judgement) -> bool {
        judged.note.is_some() || self.servers.get(server).is_some_and(|it| it.is_suspect)
    }

    /// What a server's record showed last.
    pub(crate) fn shown(&self, server: usize) -> Option<&GreetReply> {
        self.servers.get(server)?.shown.as_ref()
    }

    /// What the record of a server means, as far as our servers are known.
    pub(crate) fn judge(&self, server: usize) -> Judgement {
        let Some(shown) = self.shown(server) else {
            return Judgement::default();
        };
        let now = shown.now / 1_000;
        let hour = now / MILLIS_PER_HOUR;
        let sets = shown.sets.iter().filter(|it| !is_alone(it));
        let of = Some(server);
        let mut others: Vec<_> = sets.clone().map(|it| self.renewed(it, of, now)).collect();
        let is_renewed = !others.iter().eq(sets);
        let ours = others
            .iter()
            .enumerate()
            .find_map(|(at, it)| Some((at, self.merged(it, of)?)));
        let (at, stored, servers) = match ours {
            Some((at, servers)) => (at, Some(others.remove(at)), servers),
            None => (usize::MAX, None, self.known_or_listed(&others, of)),
        };
        others.retain(|it| hour.saturating_sub(it.used) < UNUSED_AFTER);
        let is_noted = !is_renewed && stored.as_ref().is_some_and(|it| it.servers == servers);

        let met = |it: &StoredSet| (it.size, it.servers.len());
        let is_listed = |it: &OwnServer| servers.iter().any(|listed| listed.address == it.address);
        // A server without a record is new, and so in no other set.
        let new = self
            .servers
            .iter()
            .filter(|it| it.shown.as_ref().is_some_and(|it| it.id.is_none()) && !is_listed(it));
        let ours_met = (self.len(), servers.len().saturating_add(new.count()));
        let is_unsafe =
            |it: &&StoredSet| !go_together(common(&servers, &it.servers), ours_met, met(it));
        let all = (self.len(), self.len());
        let is_safe =
            |it: &&StoredSet| go_together(common(&servers, &it.servers), all, (it.size, it.size));
        let in_the_way = others
            .iter()
            .find(is_unsafe)
            .or_else(|| others.get(SETS_MAX.saturating_sub(1)));
        let safe = || others.iter().find(is_safe).map(|it| (it.clone(), true));
        let other = in_the_way.map(|it| (it.clone(), false)).or_else(safe);
        if in_the_way.is_some() && !is_noted {
            return Judgement {
                member_for: Duration::MAX,
                note: None,
                other,
                is_refused: true,
            };
        }
        // An operator's word, and nobody has noted a set since.
        let is_said = shown
            .sets
            .iter()
            .all(|it| is_alone(it) && it.joined == 0 && now <= it.changed.saturating_add(SAID_FOR));
        let joined = match &stored {
            Some(it) => it.joined,
            None if !others.is_empty() => 0,
            None if is_said => since(shown),
            // A program made its record and met no other server, or other programs have used it: it may lack what the servers of
            // our set have granted without it.
            None => now,
        };
        let member_for = if joined == 0 {
            Duration::MAX
        } else {
            Duration::from_millis(now.saturating_sub(joined))
        };
        // As long as too few servers are known no lock can be had, or nobody can tell what is safe.
        let may_note = stored.is_some()
            || quorum(self.len()) <= servers.len() && others.iter().all(|it| is_safe(&it));
        let is_current = is_noted && stored.as_ref().is_some_and(|it| it.used == hour);
        let changed = stored.map_or(now, |it| it.changed);
        let note = (may_note && !is_current).then(|| {
            let (size, label) = (self.len(), Arc::clone(&self.label));
            let mut sets = others.clone();
            // It stays in its place: clients that put their own first would change the record for each other for ever.
            sets.insert(
                at.min(others.len()),
                StoredSet {
                    size,
                    used: hour,
                    joined,
                    changed,
                    label,
                    servers,
                },
            );
            // As long as another record may list the id that this server had before: see `is_younger`.
            let is_recent =
                |it: &&StoredSet| hour.saturating_sub(it.changed / MILLIS_PER_HOUR) < UNUSED_AFTER;
            sets.extend(
                shown
                    .sets
                    .iter()
                    .filter(|it| is_alone(it) && it.joined == 0)
                    .filter(is_recent)
                    .cloned(),
            );
            sets
        });
        Judgement {
            member_for,
            note,
            other,
            is_refused: false,
        }
    }

    /// What the server's record is to have if no program uses another set any more.
    pub(crate) fn without_others(&self, server: usize) -> Vec<StoredSet> {
        let Some(GreetReply {
            id: Some(id),
            now,
            sets,
            ..
        }) = self.shown(server)
        else {
            return Vec::new();
        };
        let ours: Vec<_> = sets
            .iter()
            .filter(|it| !is_alone(it) && self.is_ours(it))
            .cloned()
            .collect();
        let (now, label) = (now / 1_000, Arc::clone(&self.label));
        let servers = vec![Listed {
            id: *id,
            address: 0,
        }];
        let alone = || StoredSet {
            size: self.len(),
            used: 0,
            joined: now,
            changed: now,
            label,
            servers,
        };
        if ours.is_empty() && !sets.is_empty() {
            vec![alone()]
        } else {
            ours
        }
    }

    /// All sets that the server's record shows.
    pub(crate) fn all(&self, server: usize) -> Vec<ServerSet> {
        let Some(shown) = self.shown(server) else {
            return Vec::new();
        };
        let hours = |it: &StoredSet| (shown.now / 1_000 / MILLIS_PER_HOUR).saturating_sub(it.used);
        let known = self.known_or_listed(&shown.sets, None);
        let all = (self.len(), self.len());
        let public = |it: &StoredSet| ServerSet {
            size: it.size,
            nodes: self.in_common(it),
            is_ours: self.is_ours(it),
            is_safe: go_together(common(&known, &it.servers), all, (it.size, it.size)),
            is_in_use: hours(it) < UNUSED_AFTER,
            label: Arc::clone(&it.label),
            used: Duration::from_secs(hours(it).saturating_mul(60 * 60)),
        };
        shown
            .sets
            .iter()
            .filter(|it| !is_alone(it))
            .map(public)
            .collect()
    }

    /// Which of our servers are in a set.
    fn in_common(&self, set: &StoredSet) -> Vec<NodeId> {
        let ids = (0..)
            .zip(&self.servers)
            .filter_map(|(node, it)| Some((NodeId::new(node), it.shown.as_ref()?.id?)));
        ids.filter(|it| set.servers.iter().any(|listed| listed.id == it.1))
            .map(|it| it.0)
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    /// Those of our servers whose ids are known. For the record `of` a server its own is.
    fn known(&self, of: Option<usize>) -> Vec<Listed> {
        let listed = |(at, it): (usize, &OwnServer)| {
            Some(Listed {
                id: it.id(of == Some(at))?,
                address: it.address,
            })
        };
        self.servers.iter().enumerate().filter_map(listed).collect()
    }

    /// The same, and of the others those that are listed in these sets with the same address: they are down or emptied, perhaps.
    fn known_or_listed(&self, sets: &[StoredSet], of: Option<usize>) -> Vec<Listed> {
        let mut known = self.known(of);
        for ours in self
            .servers
            .iter()
            .filter(|it| it.shown.as_ref().is_none_or(|it| it.id.is_none()))
        {
            let listed = sets
                .iter()
                .flat_map(|it| &it.servers)
                .find(|it| it.address == ours.address);
            known.extend(
                listed
                    .filter(|listed| known.iter().all(|it| it.id != listed.id))
                    .copied()
                    .as_ref(),
            );
        }
        known
    }

    /// A set of a record as it is now: with those of our servers that have taken the place of a listed one, at its address and with
    /// younger data than the set. They have lost their data, or are new behind that address. In all sets: during a deployment a
    /// server is in two, and if its id were another in each of them, these would not go together.
    ///
    /// Younger: the one that was replaced, if it is still there, cannot take its place back. Its clients are refused.
    fn renewed(&self, set: &StoredSet, of: Option<usize>, now: u64) -> StoredSet {
        let mut renewed = set.clone();
        for (at, place) in self.displaced(set, of) {
            let (Some(ours), Some(listed)) = (self.servers.get(at), renewed.servers.get_mut(place))
            else {
                continue;
            };
            if let Some(id) = ours
                .id(of == Some(at))
                .filter(|_| is_younger(ours.shown.as_ref(), set))
            {
                listed.id = id;
                renewed.changed = now;
            }
        }
        renewed
    }

    /// The servers of a set together with those of ours that it lacks; `None` if it is not our set: if one that we know is none of
    /// its servers.
    fn merged(&self, set: &StoredSet, of: Option<usize>) -> Option<Vec<Listed>> {
        let lacks = |ours: &Listed| set.servers.iter().all(|it| it.id != ours.id);
        let servers: Vec<_> = set
            .servers
            .iter()
            .copied()
            .chain(self.known(of).into_iter().filter(lacks))
            .collect();
        let is_ours = set.size == self.len()
            && servers.len() <= set.size
            && self.displaced(set, of).is_empty();
        is_ours.then_some(servers)
    }

    fn is_ours(&self, set: &StoredSet) -> bool {
        self.merged(&self.renewed(set, None, 0), None).is_some()
    }
}

impl OwnServer {
    /// Its id, if that is known and not in doubt, or if it `shows` what is looked at.
    fn id(&self, shows: bool) -> Option<u64> {
        self.shown
            .as_ref()
            .filter(|_| shows || !self.is_suspect)?
            .id
    }
}

/// Whether a server's record, its data, or its time in our set began after the set was changed.
fn is_younger(shown: Option<&GreetReply>, set: &StoredSet) -> bool {
    let began = |it: &StoredSet| if is_alone(it) { it.changed } else { it.joined };
    let latest = |it: &GreetReply| it.sets.iter().map(began).max().unwrap_or(0).max(since(it));
    shown.is_some_and(|it| set.changed <= latest(it).saturating_add(CLOCKS_DIFFER))
}

/// A program made the record of a server, and had met no other. It says since when there is this record; JOINED is 0 if an operator
/// has begun it.
fn is_alone(set: &StoredSet) -> bool {
    set.servers.len() < 2 && set.size != 1
}

fn common(servers: &[Listed], others: &[Listed]) -> usize {
    servers
        .iter()
        .filter(|it| others.iter().any(|other| other.id == it.id))
        .count()
}

/// Whether each majority of the one set shares a server with each of the other. Of each set: its size, and how many of its servers
/// can be in a majority; `common`: how many of these are in both.
///
/// Those that a client has met can be. All can be, if the answer is to hold whatever the others turn out to be.
fn go_together(
    common: usize,
    (size, servers): (usize, usize),
    (other_size, others): (usize, usize),
) -> bool {
    // Of a majority, so many at least are of those in common.
    let of_common =
        |size, servers: usize| quorum(size).saturating_sub(servers.saturating_sub(common));
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
    address.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests;
