//! A node that is a cluster: which master serves a slot, and which of them have the leader lease.
//!
//! Each server tells its own view, and views differ while slots move or another master is promoted. Of two that claim a slot
//! the one with the newer configuration serves it. What a master grants counts only for a while after it was reported to be
//! one, together with a majority of the masters: whoever is promoted in its place asks a majority as well, and these know once
//! they have received the result.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::answer::cluster_view::{ClusterServer, View};
use crate::error::NodeFailure;
use crate::logic::quorum::quorum;

/// What a server said when it was asked who serves which slots.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Said {
    /// "These serve those."
    View(View),
    /// It said something else, or nothing.
    Failed(NodeFailure),
}

/// How many slots a cluster has.
pub(crate) const SLOTS: usize = 1 << 14;

/// Who serves what, as far as the servers that were asked say.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Map {
    /// Those that serve slots.
    pub(crate) masters: Vec<Master>,
    /// By slot: the place in `masters`.
    owners: Vec<Option<u16>>,
    /// So many masters have slots and have answered that whoever was promoted lately has asked one of them.
    pub(crate) has_majority: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Master {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The name that it announces.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) epoch: u64,
    /// It says so itself.
    pub(crate) says_so: bool,
    /// What it serves, from the first to the last.
    pub(crate) slots: Vec<(u16, u16)>,
}

impl Map {
    /// Of a group, whose master serves all slots.
    pub(crate) fn of_one(host: String, port: u16) -> Map {
        let slots = vec![(
            0,
            u16::try_from(SLOTS.saturating_sub(1)).unwrap_or(u16::MAX),
        )];
        let master = Master {
            host,
            port,
            name: None,
            epoch: 0,
            says_so: true,
            slots,
        };
        Map {
            masters: vec![master],
            owners: vec![Some(0); SLOTS],
            has_majority: true,
        }
    }

    /// The master that serves a slot, by its place.
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        self.owners
            .get(usize::from(slot))
            .copied()
            .flatten()
            .map(usize::from)
    }

    /// Whether every slot is served.
    pub(crate) fn is_whole(&self) -> bool {
        self.owners.iter().all(Option::is_some)
    }
}

/// A claim to slots: the newest that was reported of one server.
struct Claim<'a> {
    server: &'a ClusterServer,
    host: &'a str,
}

/// What follows from what the servers said. `asked`: at which host each was asked, `shown`: their addresses.
pub(crate) fn map(said: &[Said], asked: &[String], shown: &[Arc<str>]) -> Result<Map, NodeFailure> {
    let mut claims: BTreeMap<&str, Claim<'_>> = BTreeMap::new();
    for (said, asked) in said.iter().zip(asked) {
        let Said::View(view) = said else { continue };
        for server in &view.servers {
            // What a server says of itself counts: others may not know yet what it has lost.
            let is_newer = |it: &Claim<'_>| {
                (it.server.is_itself, it.server.epoch) < (server.is_itself, server.epoch)
            };
            if claims.get(&*server.id).is_none_or(is_newer) {
                let host = if server.host.is_empty() && server.is_itself {
                    asked
                } else {
                    &server.host
                };
                claims.insert(&server.id, Claim { server, host });
            }
        }
    }
    claims.retain(|_, it| it.server.is_master && !it.server.slots.is_empty());
    if claims.is_empty() {
        return Err(why_none(said, shown));
    }
    let claims: Vec<_> = claims.into_values().collect();
    let mut owners: Vec<Owner> = vec![Owner::default(); SLOTS];
    for (index, claim) in (0..).zip(&claims) {
        for (first, last) in &claim.server.slots {
            for slot in owners
                .iter_mut()
                .take(usize::from(*last).saturating_add(1))
                .skip(usize::from(*first))
            {
                slot.claim(index, claim.server.epoch);
            }
        }
    }
    let mut masters: Vec<_> = claims.iter().map(Claim::master).collect();
    let owners: Vec<_> = owners.into_iter().map(|it| it.of).collect();
    for (slot, owner) in (0..).zip(&owners) {
        if let Some(master) = owner.and_then(|it| masters.get_mut(usize::from(it))) {
            master.add(slot);
        }
    }
    let answered = claims.iter().filter(|it| it.server.is_itself).count();
    Ok(Map {
        has_majority: quorum(claims.len()) <= answered,
        masters,
        owners,
    })
}

impl Claim<'_> {
    fn master(&self) -> Master {
        let ClusterServer {
            port,
            epoch,
            is_itself,
            ..
        } = *self.server;
        let name = Some(&*self.server.name)
            .filter(|it| !it.is_empty())
            .map(Arc::from);
        Master {
            host: self.host.to_owned(),
            port,
            name,
            epoch,
            says_so: is_itself,
            slots: Vec::new(),
        }
    }
}

impl Master {
    fn add(&mut self, slot: u16) {
        match self.slots.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(slot) => *last = slot,
            _ => self.slots.push((slot, slot)),
        }
    }
}

/// Who claims a slot.
#[derive(Clone, Copy, Default)]
struct Owner {
    of: Option<u16>,
    epoch: Option<u64>,
}

impl Owner {
    fn claim(&mut self, by: u16, epoch: u64) {
        if self.epoch < Some(epoch) {
            (self.of, self.epoch) = (Some(by), Some(epoch));
        } else if self.epoch == Some(epoch) {
            // Nobody can tell.
            self.of = None;
        }
    }
}

fn why_none(said: &[Said], shown: &[Arc<str>]) -> NodeFailure {
    let failures = || {
        said.iter().filter_map(|it| {
            if let Said::Failed(failure) = it {
                Some(failure)
            } else {
                None
            }
        })
    };
    // What somebody has to mend is said as it is.
    match failures().find(|it| it.needs_somebody()) {
        Some(failure) => failure.clone(),
        None => {
            let reason = format!(
                "no server of the cluster says who serves which slots: {}",
                rows(said, shown)
            );
            NodeFailure::NoMaster {
                reason: reason.into(),
                said: Vec::new(),
            }
        }
    }
}

/// What each of them said, in a line.
fn rows(said: &[Said], shown: &[Arc<str>]) -> String {
    let row = |(said, shown): (&Said, &Arc<str>)| match said {
        Said::View(_) => format!("{shown}: that nobody serves any"),
        Said::Failed(failure) => format!("{shown}: {failure}"),
    };
    said.iter()
        .zip(shown)
        .map(row)
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: &str, epoch: u64, slots: &[(u16, u16)]) -> ClusterServer {
        let (id, host, name, slots) = (id.to_owned(), id.to_owned(), String::new(), slots.to_vec());
        ClusterServer {
            id,
            host,
            name,
            port: 1,
            epoch,
            is_itself: false,
            is_master: true,
            slots,
        }
    }

    /// What `id` says.
    fn says(id: &str, servers: &[ClusterServer]) -> Said {
        let own = |it: &ClusterServer| ClusterServer {
            is_itself: it.id == id,
            ..it.clone()
        };
        Said::View(View {
            servers: servers.iter().map(own).collect(),
        })
    }

    fn silent() -> Said {
        Said::Failed(NodeFailure::TimedOut)
    }

    fn read(said: &[Said]) -> Result<Map, NodeFailure> {
        let asked: Vec<_> = (0..said.len()).map(|it| format!("asked{it}")).collect();
        let shown: Vec<Arc<str>> = asked.iter().map(|it| (&**it).into()).collect();
        map(said, &asked, &shown)
    }

    fn owner(map: &Map, slot: u16) -> Option<&str> {
        map.owner(slot).map(|it| &*map.masters[it].host)
    }

    #[test]
    fn of_two_masters_that_claim_a_slot_the_newer_configuration_counts_and_of_two_equal_ones_neither()
     {
        let (a, b) = (
            server("a", 1, &[(0, 9)]),
            server("b", 2, &[(5, 9), (20, 20)]),
        );
        let map = read(&[
            says("a", &[a.clone(), server("b", 2, &[])]),
            says("b", &[a.clone(), b.clone()]),
        ])
        .unwrap();
        assert_eq!(
            [4, 5, 9, 10, 20].map(|it| owner(&map, it)),
            [Some("a"), Some("b"), Some("b"), None, Some("b")]
        );
        assert!(map.has_majority && !map.is_whole());
        assert_eq!(
            map.masters
                .iter()
                .map(|it| it.slots.clone())
                .collect::<Vec<_>>(),
            [vec![(0, 4)], vec![(5, 9), (20, 20)]]
        );

        let equal = server("b", 1, &[(5, 9)]);
        let map = read(&[says("a", &[a]), says("b", &[equal])]).unwrap();
        assert_eq!([4, 5].map(|it| owner(&map, it)), [Some("a"), None]);
    }

    #[test]
    fn what_a_master_says_of_itself_counts_more_than_what_others_say_of_it() {
        // It has lost a slot, and others do not know yet. And it was made a replica.
        let (before, now) = (server("a", 1, &[(0, 9)]), server("a", 1, &[(0, 8)]));
        let map = read(&[
            says("c", &[before.clone(), server("c", 3, &[(90, 90)])]),
            says("a", &[now]),
        ])
        .unwrap();
        assert_eq!([8, 9].map(|it| owner(&map, it)), [Some("a"), None]);
        let replica = ClusterServer {
            is_master: false,
            slots: Vec::new(),
            ..before.clone()
        };
        let map = read(&[
            says("c", &[before, server("c", 3, &[(90, 90)])]),
            says("a", &[replica]),
        ])
        .unwrap();
        assert_eq!((owner(&map, 8), owner(&map, 90)), (None, Some("c")));
    }

    #[test]
    fn a_map_is_believed_if_a_majority_of_the_masters_has_answered() {
        let all = [
            server("a", 1, &[(0, 0)]),
            server("b", 2, &[(1, 1)]),
            server("c", 3, &[(2, 2)]),
        ];
        let majority = |said: &[Said]| read(said).unwrap().has_majority;
        assert!(!majority(&[says("a", &all), silent(), silent()]));
        assert!(majority(&[says("a", &all), silent(), says("c", &all)]));
        // A replica's answer is none of a master.
        let mut with_replica = all.to_vec();
        with_replica.push(ClusterServer {
            is_master: false,
            slots: Vec::new(),
            ..server("d", 1, &[])
        });
        assert!(!majority(&[
            says("a", &all),
            says("d", &with_replica),
            silent()
        ]));
        // Nor does the same one count twice.
        assert!(!majority(&[says("a", &all), says("a", &all), silent()]));
        let map = read(&[says("a", &all), silent(), says("c", &all)]).unwrap();
        assert_eq!(
            map.masters.iter().map(|it| it.says_so).collect::<Vec<_>>(),
            [true, false, true]
        );
        assert_eq!(
            owner(&map, 1),
            Some("b"),
            "no report of it, and nobody serves its slot in its place"
        );
    }

    #[test]
    fn a_server_that_does_not_know_how_it_is_reached_is_where_it_was_asked() {
        let mut alone = server("a", 1, &[(0, 16_383)]);
        alone.host = String::new();
        let map = read(&[silent(), says("a", &[alone])]).unwrap();
        assert_eq!((owner(&map, 7), map.is_whole()), (Some("asked1"), true));
    }

    #[test]
    fn the_name_of_a_master_is_what_it_announces_and_what_others_say_only_where_it_says_nothing() {
        let named = |name: &str| ClusterServer {
            name: name.to_owned(),
            ..server("a", 1, &[(0, 9)])
        };
        let other = server("b", 2, &[(10, 16_383)]);
        let name = |said: &[Said]| read(said).unwrap().masters[0].name.clone();
        let before = says("b", &[named("before"), other.clone()]);
        assert_eq!(
            name(&[before.clone(), says("a", &[named("now"), other.clone()])]).as_deref(),
            Some("now")
        );
        assert_eq!(
            name(&[before.clone(), says("a", &[named(""), other])]),
            None
        );
        assert_eq!(name(&[before, silent()]).as_deref(), Some("before"));
    }

    #[test]
    fn without_a_map_it_is_said_what_each_said_or_what_somebody_has_to_mend() {
        let failure = read(&[silent(), silent()]).unwrap_err();
        let said = "who serves which slots: asked0: no answer in time; asked1: no answer in time";
        assert!(failure.to_string().ends_with(said), "{failure}");
        let no_cluster = || Said::Failed(NodeFailure::NO_CLUSTER);
        assert_eq!(
            read(&[silent(), no_cluster()]),
            Err(NodeFailure::NO_CLUSTER)
        );
        assert!(matches!(
            read(&[says("a", &[server("a", 0, &[])])]),
            Err(NodeFailure::NoMaster { .. })
        ));
    }
}
