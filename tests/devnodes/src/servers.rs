//! Several servers, as a lock needs them.

use std::net::SocketAddr;
use std::ops::Index;
use std::slice;
use std::thread;

use crate::server::{Builder, Server};
use crate::wait::wait_for;
use crate::{Error, PATIENCE};

/// Independent servers, numbered from 0. Dropping it kills them all.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Server>,
}

impl Servers {
    /// Starts `n` servers at once; blocks until all answer.
    ///
    /// # Errors
    ///
    /// The first failure, as [`Builder::start`]; the others are killed again.
    pub fn start(n: usize) -> Result<Self, Error> {
        Self::start_with(n, |builder| builder)
    }

    /// As [`start`](Self::start), with options: `Servers::start_with(3, |b| b.password("pw"))`.
    pub fn start_with(n: usize, options: impl Fn(Builder) -> Builder) -> Result<Self, Error> {
        let servers = thread::scope(|scope| {
            let starting: Vec<_> = (0..n)
                .map(|_| {
                    let builder = options(Server::builder());
                    scope.spawn(|| builder.start())
                })
                .collect();
            let started = starting.into_iter().map(|start| start.join());
            started
                .map(|s| s.unwrap_or_else(|_| Err(Error::new("a start panicked"))))
                .collect::<Result<_, _>>()
        })?;
        Ok(Self { servers })
    }

    /// The URL of each, in order.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Server::url).collect()
    }

    /// All of them, in order.
    pub fn iter(&self) -> slice::Iter<'_, Server> {
        self.servers.iter()
    }

    /// How many there are, running or not.
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// True if none were asked for.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// On how many servers `key` exists. Those that are down or paused cannot be asked and are not counted.
    #[track_caller]
    pub fn holders(&self, key: impl AsRef<[u8]>) -> usize {
        self.iter()
            .filter(|server| server.is_running() && !server.is_paused() && server.exists(&key))
            .count()
    }

    /// Blocks until `key` exists on no server that can be asked; looks every 2 ms.
    pub fn wait_until_free(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        let key = key.as_ref();
        let what = || {
            let (holders, key) = (self.holders(key), String::from_utf8_lossy(key));
            format!(
                "{key} goes from all servers; it is on {holders} of {} after {PATIENCE:?}",
                self.len()
            )
        };
        wait_for(what, || self.holders(key) == 0)
    }
}

/// How a URL names the servers of a group or a cluster: `:PASSWORD@HOST:PORT,HOST:PORT,…`
pub(crate) fn places(
    password: Option<&str>,
    servers: &Servers,
    place: fn(&Server) -> SocketAddr,
) -> String {
    let login = password.map(|it| format!(":{it}@")).unwrap_or_default();
    let places: Vec<_> = servers.iter().map(|it| place(it).to_string()).collect();
    login + &places.join(",")
}

/// Lets no replica among these servers hear of anything any more; blocks until none does.
pub(crate) fn cut_replication<'a>(servers: impl Iterator<Item = &'a Server>) -> Result<(), Error> {
    let (replicas, primaries): (Vec<_>, Vec<_>) = servers.partition(|it| !it.is_primary());
    // Refused, they try again and again.
    for replica in &replicas {
        replica.command(&["CONFIG", "SET", "masterauth", "wrong"])?;
    }
    for primary in primaries {
        primary.command(&["CLIENT", "KILL", "TYPE", "replica"])?;
    }
    let is_cut = |it: &&Server| it.info("master_link_status").as_deref() == Some("down");
    wait_for(
        || "the replicas lose their primaries".to_owned(),
        || replicas.iter().all(is_cut),
    )
}

impl Index<usize> for Servers {
    type Output = Server;

    fn index(&self, index: usize) -> &Server {
        &self.servers[index]
    }
}

impl<'a> IntoIterator for &'a Servers {
    type Item = &'a Server;
    type IntoIter = slice::Iter<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
