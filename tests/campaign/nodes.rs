//! The nodes of a campaign: servers, or groups of servers, or clusters.

use std::thread;

use devnodes::{Builder, Clock, Cluster, Error, Group, Server, Servers};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Servers,
    /// Each node is a master and a replica: the first are watched by sentinels, the last is not.
    Groups,
    /// Each is three masters with a replica each.
    Clusters,
}

pub(crate) struct Nodes {
    /// They are either these
    pub(crate) servers: Servers,
    /// or these
    pub(crate) groups: Vec<Group>,
    /// or these.
    pub(crate) clusters: Vec<Cluster>,
}

/// What a server that is too old for `HELLO` answers. The other option is there to make the words even.
fn without_hello(it: Builder) -> Builder {
    let limit = ["--client-output-buffer-limit", "normal", "0", "0", "0"];
    it.arg("--rename-command", "HELLO")
        .arg("", limit[0])
        .arg(limit[1], limit[2])
        .arg(limit[3], limit[4])
}

impl Nodes {
    /// `old`: single servers do not know `HELLO`, so nobody is told of a hand-over, and calls that wait poll.
    pub(crate) fn start(kind: Kind, count: usize, old: bool) -> Nodes {
        let of = |it: Kind| if it == kind { count } else { 0 };
        let stepped = Clock::available();
        let options = |it: Builder| {
            let it = if old { without_hello(it) } else { it };
            if stepped {
                it.appendonly().stepped_clock()
            } else {
                it.appendonly()
            }
        };
        let servers = Servers::start_with(of(Kind::Servers), options).unwrap();
        let sentinels = |it: usize| if it + 1 < count { 3 } else { 0 };
        let groups = at_once(of(Kind::Groups), |it| {
            Group::builder(1).sentinels(sentinels(it)).start()
        });
        let clusters = at_once(of(Kind::Clusters), |_| {
            Cluster::builder(3)
                .replicas(1)
                .arg("--appendonly", "yes")
                .arg("--appendfsync", "no")
                .start()
        });
        Nodes {
            servers,
            groups,
            clusters,
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let of_group = |it: &Group| {
            if it.sentinels.is_empty() {
                it.replicated_url()
            } else {
                it.sentinel_url()
            }
        };
        let several = self
            .groups
            .iter()
            .map(of_group)
            .chain(self.clusters.iter().map(Cluster::url));
        self.servers.urls().into_iter().chain(several).collect()
    }

    pub(crate) fn all_servers(&self) -> impl Iterator<Item = &Server> {
        let clusters = self.clusters.iter().flat_map(|it| it.servers.iter());
        self.servers
            .iter()
            .chain(self.groups.iter().flat_map(|it| it.servers.iter()))
            .chain(clusters)
    }

    /// Lets the replicas of a node that is several servers hear of nothing.
    pub(crate) fn cut_replication(&self, node: usize) -> Result<(), Error> {
        self.groups
            .get(node)
            .map_or(Ok(()), Group::cut_replication)?;
        self.clusters
            .get(node)
            .map_or(Ok(()), Cluster::cut_replication)
    }

    /// Keys that are locks, or permits, or readers: not the counters and lists that stay beside them.
    pub(crate) fn lock_keys(&self) -> Vec<String> {
        self.masters().into_iter().flat_map(lock_keys).collect()
    }

    /// Deletes all keys, those of replicas too.
    pub(crate) fn empty(&self) {
        for master in self.masters() {
            master.command(&["FLUSHALL"]).unwrap();
        }
    }

    /// Those that clients ask.
    fn masters(&self) -> Vec<&Server> {
        let of_group = |it: &'_ Group| it.master().unwrap();
        let of_groups = self.groups.iter().map(|it| &it.servers[of_group(it)]);
        let of_clusters = self
            .clusters
            .iter()
            .flat_map(|it| it.masters().into_iter().map(|index| &it.servers[index]));
        self.servers
            .iter()
            .chain(of_groups)
            .chain(of_clusters)
            .collect()
    }
}

/// They take seconds each.
fn at_once<T: Send>(count: usize, start: impl Fn(usize) -> Result<T, Error> + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let start = &start;
        let starting: Vec<_> = (0..count)
            .map(|it| scope.spawn(move || start(it)))
            .collect();
        starting
            .into_iter()
            .map(|it| it.join().unwrap().unwrap())
            .collect()
    })
}

pub(crate) fn lock_keys(server: &Server) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys = keys
        .as_array()
        .unwrap()
        .iter()
        .map(|it| String::from_utf8_lossy(it.as_bytes().unwrap()).into_owned());
    let slot = |it: &str| it.starts_with(|it: char| it.is_ascii_digit());
    keys.filter(|it| match it.strip_prefix("quorlock:") {
        Some(beside) => {
            beside.starts_with("readers:") || beside.strip_prefix("slot-").is_some_and(slot)
        }
        None => true,
    })
    .collect()
}
