//! A real Redis Cluster.

use std::sync::{Mutex, MutexGuard};

use crate::server::OwnTls;
use crate::servers::places;
use crate::tls::{Authority, Certificate};
use crate::wait::wait_for;
use crate::{Builder, Error, Server, Servers, lock};

mod bus;
mod failover;
mod map;
mod migration;

use bus::Bus;
use map::{Member, is_ready, members};
pub use migration::Migration;

/// How many slots there are.
const SLOTS: usize = 16_384;

/// How long a server is silent before the others begin to think that it is gone: so long that a busy machine does not
/// bring it about.
const PATIENT: &str = "60000";

/// How a cluster is to be started. Made by [`Cluster::builder`].
#[derive(Debug, Clone, Default)]
pub struct ClusterBuilder {
    masters: usize,
    replicas: usize,
    password: Option<String>,
    args: Vec<(String, String)>,
    own_tls: Option<OwnTls>,
    bus: bool,
}

/// Masters that share the slots, and their replicas. Nothing fails over unless a test asks for it.
#[derive(Debug)]
pub struct Cluster {
    /// First come the masters, then their replicas: of three masters with a replica each, 3 is the replica of 0.
    pub servers: Servers,
    ids: Vec<String>,
    password: Option<String>,
    bus: Option<Bus>,
    /// Which server is cut off from the others.
    cut_off: Mutex<Option<usize>>,
    /// RACE: two servers that get slots at the same time may take the same number for that, and one of them loses a slot again.
    /// So slots get new owners one after the other.
    changing: Mutex<()>,
}

impl ClusterBuilder {
    /// Replicas of each master; none by default.
    pub fn replicas(mut self, each: usize) -> Self {
        self.replicas = each;
        self
    }

    /// The servers want this password. The URLs carry it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Where nobody owns a slot, the others are still served (`cluster-require-full-coverage no`).
    pub fn partial(self) -> Self {
        self.arg("--cluster-require-full-coverage", "no")
    }

    /// Adds an option of all servers and its value.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// All of them speak TLS too, and among each other nothing else: see [`Builder::own_tls`].
    pub fn own_tls(mut self, certificate: &Certificate, authority: &Authority) -> Self {
        self.own_tls = Some(OwnTls::new(certificate, authority));
        self
    }

    /// The servers can be [cut off](Cluster::cut_off) from each other. Linux only: elsewhere not every address of 127.0.0.0/8 is
    /// this machine.
    pub fn cuttable(mut self) -> Self {
        self.bus = true;
        self
    }

    /// Starts everything; blocks until all is well, see [`Cluster::wait_until_well`]. That takes two seconds: a master
    /// waits as long before it serves anybody.
    pub fn start(self) -> Result<Cluster, Error> {
        let count = self.masters.saturating_mul(self.replicas.saturating_add(1));
        let servers = Servers::start_with(count, |it| self.options(it))?;
        let id = |it: &Server| {
            it.command(&["CLUSTER", "MYID"])?
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| Error::new("no CLUSTER MYID"))
        };
        let ids = servers.iter().map(id).collect::<Result<_, _>>()?;
        let bus = self.bus.then(|| Bus::start(&servers)).transpose()?;
        let (cut_off, changing) = (Mutex::default(), Mutex::default());
        let cluster = Cluster {
            servers,
            ids,
            password: self.password,
            bus,
            cut_off,
            changing,
        };
        cluster.form(self.masters)?;
        Ok(cluster)
    }

    fn options(&self, it: Builder) -> Builder {
        let it = it
            .cluster()
            .arg("--cluster-node-timeout", PATIENT)
            .arg("--cluster-migration-barrier", "99")
            .arg("--cluster-replica-validity-factor", "0")
            .arg("--cluster-replica-no-failover", "yes");
        let mut it = self
            .args
            .iter()
            .fold(it, |it, (name, value)| it.arg(name, value));
        it.own_source = self.bus;
        it.replicating(self.password.as_deref(), self.own_tls.as_ref())
    }
}

impl Cluster {
    /// To start a cluster of so many masters.
    pub fn builder(masters: usize) -> ClusterBuilder {
        ClusterBuilder {
            masters,
            ..ClusterBuilder::default()
        }
    }

    /// So many masters, each with a replica.
    pub fn start(masters: usize) -> Result<Cluster, Error> {
        Self::builder(masters).replicas(1).start()
    }

    fn form(&self, masters: usize) -> Result<(), Error> {
        // RACE: each is a master at first. Two of the same number change theirs when they notice, which takes seconds, and who has
        // just been given a slot may lose it again to the larger one. So replicas-to-be have numbers as well.
        for (epoch, server) in (1_u64..).zip(self.servers.iter()) {
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()])?;
        }
        for (index, master) in self.servers.iter().take(masters).enumerate() {
            let slots = (0..SLOTS)
                .filter(|it| it * masters / SLOTS == index)
                .map(|it| it.to_string());
            let command: Vec<_> = ["CLUSTER", "ADDSLOTS"]
                .map(str::to_owned)
                .into_iter()
                .chain(slots)
                .collect();
            master.command(&command)?;
        }
        for index in 0..self.servers.len() {
            self.meet(index, index + 1..self.servers.len())?;
        }
        wait_for(
            || format!("the servers of a cluster meet\n{}", self.described()),
            || self.are_linked(),
        )?;
        for index in masters..self.servers.len() {
            self.servers[index].command(&["CLUSTER", "REPLICATE", &self.ids[index % masters]])?;
        }
        self.wait_until_well()
    }

    /// A server greets others, whether it knows them or not: they hear what it owns, within a tenth of a second.
    fn meet(&self, server: usize, others: impl IntoIterator<Item = usize>) -> Result<(), Error> {
        others
            .into_iter()
            .filter(|it| *it != server)
            .try_for_each(|it| {
                let port = self.servers[it].addr_for_others().port().to_string();
                let bus = self.bus.as_ref().map(|bus| bus.port(it));
                let command = ["CLUSTER", "MEET", "127.0.0.1", &port]
                    .into_iter()
                    .chain(bus.as_deref());
                self.servers[server]
                    .command(&command.collect::<Vec<_>>())
                    .map(drop)
            })
    }

    /// `redis+cluster://HOST:PORT,HOST:PORT,…` with all servers.
    pub fn url(&self) -> String {
        let places = places(self.password.as_deref(), &self.servers, Server::addr);
        format!("redis+cluster://{places}")
    }

    /// `rediss+cluster://HOST:PORT,HOST:PORT,…` with all servers and their ports for TLS.
    ///
    /// # Panics
    ///
    /// The cluster was started without [`ClusterBuilder::own_tls`].
    #[track_caller]
    pub fn tls_url(&self) -> String {
        let places = places(self.password.as_deref(), &self.servers, Server::tls_addr);
        format!("rediss+cluster://{places}")
    }

    /// What a server is called inside the cluster.
    pub fn id(&self, server: usize) -> &str {
        &self.ids[server]
    }

    /// The slot of a key.
    ///
    /// # Panics
    ///
    /// As the questions below: no server answers.
    #[track_caller]
    pub fn slot_of(&self, key: &str) -> u16 {
        let one = self.present().next().expect("a server that runs");
        let slot = self.servers[one].command(&["CLUSTER", "KEYSLOT", key]).ok();
        slot.and_then(|it| u16::try_from(it.as_int()?).ok())
            .expect("CLUSTER KEYSLOT is answered with a number")
    }

    /// Which server owns the slot of a key; none if nobody does, or if they do not agree.
    #[track_caller]
    pub fn owner_of(&self, key: &str) -> Option<usize> {
        self.owner(self.slot_of(key))
    }

    /// Which server owns a slot; none if nobody does, or if they do not agree.
    pub fn owner(&self, slot: u16) -> Option<usize> {
        self.said_owner(slot, self.present())?
    }

    /// A name that begins with this, and whose slot this server owns.
    #[track_caller]
    pub fn name_at(&self, server: usize, begin: &str) -> String {
        let mut names = (0..10_000).map(|it| format!("{begin}-{it}"));
        names
            .find(|it| self.owner_of(it) == Some(server))
            .expect("a name in a slot of that server")
    }

    /// Whether a server serves the slot of a key, and has the key.
    pub fn is_at(&self, server: usize, key: &str) -> bool {
        self.servers[server]
            .command(&["EXISTS", key])
            .is_ok_and(|it| it.as_int() == Some(1))
    }

    /// Blocks until all servers that run agree who owns what, serve it, reach each other, and replicas have their master's
    /// data.
    pub fn wait_until_well(&self) -> Result<(), Error> {
        wait_for(
            || format!("all is well in a cluster\n{}", self.described()),
            || {
                self.are_linked()
                    && self.agree()
                    && self.present().all(|it| is_ready(&self.servers[it]))
            },
        )
    }

    /// Moves a slot with all its keys, as operators do; blocks until all know.
    pub fn migrate(&self, slot: u16, to: usize) -> Result<(), Error> {
        self.begin_migration(slot, to)?.finish()
    }

    /// Begins to move a slot: nothing is moved yet.
    ///
    /// # Errors
    ///
    /// Nobody owns it, or the servers do not agree.
    pub fn begin_migration(&self, slot: u16, to: usize) -> Result<Migration<'_>, Error> {
        let from = self
            .owner(slot)
            .ok_or_else(|| Error::new("nobody owns the slot"))?;
        let migration = Migration {
            cluster: self,
            slot,
            from,
            to,
        };
        migration.begin()?;
        Ok(migration)
    }

    /// Makes the slot a master's without the keys in it, as repairs do; blocks until all know. They are deleted.
    pub fn take_slot(&self, slot: u16, by: usize) -> Result<(), Error> {
        let _changing = self.changing();
        let server = &self.servers[by];
        server.command(&["CLUSTER", "BUMPEPOCH"])?;
        server.command(&[
            "CLUSTER",
            "SETSLOT",
            &slot.to_string(),
            "NODE",
            &self.ids[by],
        ])?;
        self.wait_for_owner(slot, Some(by))
    }

    /// Makes a hole: nobody owns the slot any more. Blocks until all know.
    pub fn drop_slot(&self, slot: u16) -> Result<(), Error> {
        let _changing = self.changing();
        let is_known = || {
            // Who still hears that somebody owns it takes it up again.
            for it in self.present() {
                let _ = self.servers[it].command(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
            }
            self.said_owner(slot, self.present()) == Some(None)
        };
        wait_for(
            || format!("nobody owns slot {slot}\n{}", self.described()),
            is_known,
        )
    }

    /// Fills such a hole.
    pub fn add_slot(&self, slot: u16, to: usize) -> Result<(), Error> {
        let _changing = self.changing();
        self.servers[to].command(&["CLUSTER", "ADDSLOTS", &slot.to_string()])?;
        self.wait_for_owner(slot, Some(to))
    }

    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    pub(crate) fn wait_for_owner(&self, slot: u16, owner: Option<usize>) -> Result<(), Error> {
        wait_for(
            || {
                format!(
                    "all know that {owner:?} owns slot {slot}\n{}",
                    self.described()
                )
            },
            || self.agree() && self.said_owner(slot, self.present()) == Some(owner),
        )
    }

    /// A slot of a master, or of the master of a replica.
    fn slot_behind(&self, server: usize) -> Result<u16, Error> {
        let view = self.view(server).unwrap_or_default();
        let find = |id: &str| view.iter().find(|it| it.id == id);
        let own = find(&self.ids[server]);
        let master = own.and_then(|it| it.master.as_deref().map_or(Some(it), find));
        let slot = master.and_then(|it| it.slots.first()).map(|it| *it.start());
        slot.ok_or_else(|| Error::new(format!("{server} stands for no slot\n{}", self.described())))
    }

    /// The owner of whom they all say so; none if they do not agree.
    fn said_owner(&self, slot: u16, servers: impl Iterator<Item = usize>) -> Option<Option<usize>> {
        let mut said = servers.map(|it| {
            let owner = self.view(it)?.into_iter().find(|it| it.owns(slot));
            Some(owner.and_then(|owner| self.ids.iter().position(|it| *it == owner.id)))
        });
        let first = said.next()??;
        said.all(|it| it == Some(first)).then_some(first)
    }

    /// Whether each of them knows and reaches all others.
    fn are_linked(&self) -> bool {
        let reaches = |view: &[Member], id| view.iter().any(|it| it.id == id && it.is_well());
        self.present().all(|it| {
            self.view(it).is_some_and(|view| {
                self.present()
                    .all(|other| reaches(&view, self.ids[other].as_str()))
            })
        })
    }

    /// Whether they say of each server what that says of itself. Who does not know is told: by themselves they take seconds.
    fn agree(&self) -> bool {
        let views: Vec<_> = self
            .present()
            .filter_map(|it| Some((it, self.view(it)?)))
            .collect();
        let said = |view: &[Member], of: usize| {
            let member = view.iter().find(|it| it.id == self.ids[of])?;
            Some((member.master.clone(), member.epoch, member.slots.clone()))
        };
        views.iter().fold(true, |agree, (server, own)| {
            let others = views
                .iter()
                .filter(|(_, it)| said(it, *server) != said(own, *server))
                .map(|it| it.0);
            let others: Vec<_> = others.collect();
            let _ = self.meet(*server, others.iter().copied());
            agree && others.is_empty()
        })
    }

    /// The servers that can be asked.
    fn present(&self) -> impl Iterator<Item = usize> {
        let cut_off = *lock(&self.cut_off);
        let is_present = move |it: &usize| {
            Some(*it) != cut_off && self.servers[*it].is_running() && !self.servers[*it].is_paused()
        };
        (0..self.servers.len()).filter(is_present)
    }

    /// What a server says; nothing if it does not answer.
    fn view(&self, server: usize) -> Option<Vec<Member>> {
        members(&self.servers[server]).ok()
    }

    /// What each server says, for failed tests.
    fn described(&self) -> String {
        let said = |it| match self.servers[it].command(&["CLUSTER", "NODES"]) {
            Ok(reply) => format!("{it} says:\n{}", reply.as_str().unwrap_or_default()),
            Err(e) => format!("{it}: {e}"),
        };
        self.present().map(said).collect::<Vec<_>>().join("\n")
    }
}

impl Builder {
    /// One of a cluster.
    fn cluster(mut self) -> Self {
        self.cluster = true;
        self.arg("--cluster-enabled", "yes")
            .arg("--cluster-config-file", "nodes.conf")
    }
}
