//! A master with replicas, and sentinels that watch it.

use std::time::{Duration, Instant};

use crate::server::OwnTls;
use crate::servers::{cut_replication, places};
use crate::tls::{Authority, Certificate};
use crate::wait::{wait_for, wait_for_longer};
use crate::{Builder, Error, Server, Servers};

/// What the sentinels call the master.
pub(crate) const MASTER: &str = "locks";

/// How a group is to be started. Made by [`Group::builder`].
#[derive(Debug, Clone, Default)]
pub struct GroupBuilder {
    replicas: usize,
    sentinels: usize,
    password: Option<String>,
    sentinel_password: Option<String>,
    by_name: bool,
    own_tls: Option<OwnTls>,
}

/// A master, its replicas, and sentinels that promote one of them where the master is gone.
#[derive(Debug)]
pub struct Group {
    /// The first begins as the master, the others as its replicas.
    pub servers: Servers,
    /// Three in most tests, or none.
    pub sentinels: Servers,
    password: Option<String>,
    options: String,
}

impl GroupBuilder {
    /// Sentinels that watch the master; none by default.
    pub fn sentinels(mut self, count: usize) -> Self {
        self.sentinels = count;
        self
    }

    /// The servers want this password. The URLs carry it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// The sentinels want this one.
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// The sentinels know the master by a name, and give that away.
    pub fn by_name(mut self) -> Self {
        self.by_name = true;
        self
    }

    /// All of them speak TLS too, and among each other nothing else: see [`Builder::own_tls`].
    pub fn own_tls(mut self, certificate: &Certificate, authority: &Authority) -> Self {
        self.own_tls = Some(OwnTls::new(certificate, authority));
        self
    }

    /// Starts everything; blocks until the replicas have the master's data and the sentinels know each other.
    pub fn start(self) -> Result<Group, Error> {
        let password = self.password.as_deref();
        let servers = Servers::start_with(self.replicas.saturating_add(1), |it| {
            it.replicating(password, self.own_tls.as_ref())
        })?;
        let mut group = Group {
            servers,
            sentinels: Servers::start(0)?,
            password: self.password.clone(),
            options: String::new(),
        };
        for replica in group.servers.iter().skip(1) {
            replicate(replica, &group.servers[0], password)?;
        }
        let conf = self.conf(&group.servers[0]);
        group.sentinels = Servers::start_with(self.sentinels, |it| Builder {
            sentinel: Some(conf.clone()),
            own_tls: self.own_tls.clone(),
            password: self.sentinel_password.clone(),
            ..it
        })?;
        if let Some(password) = &self.sentinel_password {
            group.options = format!("?sentinel_password={password}");
        }
        group.wait_for_sentinels()?;
        Ok(group)
    }

    fn conf(&self, master: &Server) -> String {
        let (host, names) = if self.by_name {
            ("localhost", "yes")
        } else {
            ("127.0.0.1", "no")
        };
        let (port, quorum) = (master.addr_for_others().port(), self.sentinels / 2 + 1);
        // Quick, for tests.
        let mut conf = format!(
            "sentinel resolve-hostnames {names}\nsentinel announce-hostnames {names}\n\
             sentinel monitor {MASTER} {host} {port} {quorum}\n\
             sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 2000\n"
        );
        if let Some(password) = &self.password {
            conf += &format!("sentinel auth-pass {MASTER} {password}\n");
        }
        if let Some(password) = &self.sentinel_password {
            conf += &format!("sentinel sentinel-pass {password}\n");
        }
        conf
    }
}

impl Group {
    /// A master with so many replicas.
    pub fn builder(replicas: usize) -> GroupBuilder {
        GroupBuilder {
            replicas,
            ..GroupBuilder::default()
        }
    }

    /// The same, started, without sentinels.
    pub fn start(replicas: usize) -> Result<Group, Error> {
        Self::builder(replicas).start()
    }

    /// `redis+replicated://HOST:PORT,HOST:PORT,…`
    pub fn replicated_url(&self) -> String {
        let places = places(self.password.as_deref(), &self.servers, Server::addr);
        format!("redis+replicated://{places}")
    }

    /// `redis+sentinel://HOST:PORT,HOST:PORT,…/locks`
    pub fn sentinel_url(&self) -> String {
        let places = places(self.password.as_deref(), &self.sentinels, Server::addr);
        format!("redis+sentinel://{places}/{MASTER}{}", self.options)
    }

    /// Promotes a replica, as people do by hand. Nobody tells the old master.
    pub fn promote(&self, index: usize) -> Result<(), Error> {
        self.servers[index]
            .command(&["REPLICAOF", "NO", "ONE"])
            .map(drop)
    }

    /// Makes this server a replica of the other; blocks until it has its data.
    pub fn demote(&self, index: usize, master: usize) -> Result<(), Error> {
        replicate(
            &self.servers[index],
            &self.servers[master],
            self.password.as_deref(),
        )
    }

    /// Lets no replica hear of anything any more, until [`demote`](Self::demote); blocks until none does.
    pub fn cut_replication(&self) -> Result<(), Error> {
        // Or sentinels would not promote one that has been cut off for long. They have to be told to: they think for as long
        // that a master is there.
        let patience = [
            "SENTINEL",
            "SET",
            MASTER,
            "down-after-milliseconds",
            "600000",
        ];
        self.sentinels
            .iter()
            .try_for_each(|it| it.command(&patience).map(drop))?;
        cut_replication(self.servers.iter())
    }

    /// Which of those that run says that it is the master, by its place; none if several do.
    pub fn master(&self) -> Option<usize> {
        let mut masters = (0..self.servers.len())
            .filter(|it| self.servers[*it].is_running() && self.servers[*it].is_primary());
        masters.next().filter(|_| masters.next().is_none())
    }

    /// Which server a sentinel names, by its place; none if it names no server of the group.
    fn named_by(&self, sentinel: usize) -> Option<usize> {
        let reply = self.sentinels[sentinel]
            .command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])
            .ok()?;
        let port = reply.as_array()?.get(1)?.as_int()?;
        self.servers.iter().position(|it| it.listens_at(port))
    }

    /// Tells the sentinels to promote a replica in place of `old`, which may be gone. Blocks until all sentinels that run name
    /// another server, and it is a master; its place.
    pub fn fail_over(&self, old: usize) -> Result<usize, Error> {
        let mut told: Option<Instant> = None;
        let mut new = None;
        // Sentinels on a machine that has stood still for two seconds do nothing for half a minute.
        wait_for_longer(
            3,
            || {
                format!(
                    "the sentinels promote a replica; they name {new:?}",
                    new = self.named_by(0)
                )
            },
            || {
                // It refuses while it has not heard of the replicas for a moment, and gives up if it has heard nothing good of
                // them.
                let is_due = told.is_none_or(|it| Duration::from_secs(3) < it.elapsed());
                if is_due && self.named_by(0) == Some(old) {
                    told = self.sentinels[0]
                        .command(&["SENTINEL", "FAILOVER", MASTER])
                        .is_ok()
                        .then(Instant::now);
                }
                let running = (0..self.sentinels.len()).filter(|it| {
                    self.sentinels[*it].is_running() && !self.sentinels[*it].is_paused()
                });
                let named: Vec<_> = running.map(|it| self.named_by(it)).collect();
                new = named
                    .first()
                    .copied()
                    .flatten()
                    .filter(|it| *it != old && named.iter().all(|n| *n == Some(*it)));
                new.is_some_and(|it| self.servers[it].is_primary())
            },
        )?;
        new.ok_or_else(|| Error::new("no new master"))
    }

    /// Blocks until each sentinel knows the others and all replicas.
    pub fn wait_for_sentinels(&self) -> Result<(), Error> {
        for sentinel in &self.sentinels {
            // They meet by that. Newer servers let tests have it shorter; the other periods are deadlines as well.
            let _ = sentinel.command(&["SENTINEL", "DEBUG", "publish-period", "100"]);
        }
        let all = |field: &str, count: usize| {
            self.sentinels
                .iter()
                .all(|it| field_of(it, field).is_some_and(|it| it == count.to_string()))
        };
        let (others, replicas) = (
            self.sentinels.len().saturating_sub(1),
            self.servers.len().saturating_sub(1),
        );
        wait_for(
            || "the sentinels find each other and the replicas".to_owned(),
            || all("num-other-sentinels", others) && all("num-slaves", replicas),
        )
    }
}

/// A field of what a sentinel says about the master.
fn field_of(sentinel: &Server, name: &str) -> Option<String> {
    let reply = sentinel.command(&["SENTINEL", "MASTER", MASTER]).ok()?;
    let mut fields = reply.as_array()?.chunks(2);
    fields
        .find_map(|it| (it[0].as_str() == Some(name)).then(|| it[1].as_str().map(str::to_owned))?)
}

fn replicate(replica: &Server, master: &Server, password: Option<&str>) -> Result<(), Error> {
    replica.command(&["CONFIG", "SET", "masterauth", password.unwrap_or_default()])?;
    replica.command(&[
        "REPLICAOF",
        "127.0.0.1",
        &master.addr_for_others().port().to_string(),
    ])?;
    wait_for(
        || format!("{} replicates {}", replica.addr(), master.addr()),
        || replica.info("master_link_status").as_deref() == Some("up"),
    )
}
