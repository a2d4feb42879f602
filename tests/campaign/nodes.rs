//! The nodes of a campaign: servers, or groups of servers, or clusters.

use std::thread;

use devnodes::{Builder, Clock, Cluster, Error, Group, Server};

use crate::clusters;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Servers,
    Groups,
    Clusters,
}

pub(crate) enum Node {
    Server(Box<Server>),
    /// A primary and a replica, watched by Sentinels or not.
    Group(Group),
    /// Three primaries with a replica each.
    Cluster(Cluster),
}

pub(crate) struct Nodes(pub(crate) Vec<Node>);

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
        let start = |index: usize| {
            Ok(match kind {
                Kind::Servers => Node::Server(Box::new(server(old)?)),
                Kind::Groups => {
                    let sentinels = if index + 1 < count { 3 } else { 0 };
                    Node::Group(Group::builder(1).sentinels(sentinels).start()?)
                }
                Kind::Clusters => {
                    let cluster = Cluster::builder(3).replicas(1);
                    let cluster = cluster.arg("--appendonly", "yes");
                    Node::Cluster(cluster.arg("--appendfsync", "no").start()?)
                }
            })
        };
        // They take seconds each.
        thread::scope(|scope| {
            let starting: Vec<_> = (0..count)
                .map(|index| scope.spawn(move || start(index)))
                .collect();
            let started = starting.into_iter().map(|node| node.join().unwrap());
            Nodes(started.collect::<Result<_, Error>>().unwrap())
        })
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let url = |node: &Node| match node {
            Node::Server(server) => server.url(),
            Node::Group(group) if group.sentinels.is_empty() => group.replicated_url(),
            Node::Group(group) => group.sentinel_url(),
            Node::Cluster(cluster) => cluster.url(),
        };
        self.0.iter().map(url).collect()
    }

    pub(crate) fn all_servers(&self) -> impl Iterator<Item = &Server> {
        self.0.iter().flat_map(|node| match node {
            Node::Server(server) => vec![&**server],
            Node::Group(group) => group.servers.iter().collect(),
            Node::Cluster(cluster) => cluster.servers.iter().collect(),
        })
    }

    /// Keys that are locks, or permits, or readers: not the counters and lists that stay beside them.
    pub(crate) fn lock_keys(&self) -> Vec<String> {
        self.primaries().flat_map(lock_keys).collect()
    }

    /// Deletes all keys, those of replicas too.
    pub(crate) fn empty(&self) {
        for primary in self.primaries() {
            primary.command(&["FLUSHALL"]).unwrap();
        }
    }

    /// Those that clients ask.
    fn primaries(&self) -> impl Iterator<Item = &Server> {
        self.0.iter().flat_map(|node| match node {
            Node::Server(server) => vec![&**server],
            Node::Group(group) => vec![&group.servers[group.master().unwrap()]],
            Node::Cluster(cluster) => {
                let primaries = cluster.masters().into_iter();
                primaries.map(|index| &cluster.servers[index]).collect()
            }
        })
    }
}

fn server(old: bool) -> Result<Server, Error> {
    let mut server = Server::builder().appendonly();
    if old {
        server = without_hello(server);
    }
    if Clock::available() {
        server = server.stepped_clock();
    }
    server.start()
}

impl Node {
    /// The server, if it is the only one.
    pub(crate) fn single(&self) -> Option<&Server> {
        match self {
            Node::Server(server) => Some(&**server),
            _ => None,
        }
    }

    /// Lets the replicas of a node that is several servers hear of nothing.
    pub(crate) fn cut_replication(&self) -> Result<(), Error> {
        match self {
            Node::Server(_) => Ok(()),
            Node::Group(group) => group.cut_replication(),
            Node::Cluster(cluster) => cluster.cut_replication(),
        }
    }

    /// Lets other servers take over, without a loss of keys.
    pub(crate) fn hand_over(&self) -> Result<(), Error> {
        match self {
            Node::Server(_) => Ok(()),
            Node::Group(group) => {
                let old = primary(group)?;
                group.demote(old, promote(group, old)?)
            }
            Node::Cluster(cluster) => clusters::hand_over(cluster),
        }
    }
}

pub(crate) fn primary(group: &Group) -> Result<usize, Error> {
    group.master().ok_or_else(|| Error::new("no primary"))
}

/// Another server of the group; its place.
pub(crate) fn promote(group: &Group, old: usize) -> Result<usize, Error> {
    if !group.sentinels.is_empty() {
        return group.fail_over(old);
    }
    let new = usize::from(old == 0);
    group.promote(new)?;
    Ok(new)
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
