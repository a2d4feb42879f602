//! Masters that are replaced by their replicas.

use std::time::{Duration, Instant};

use crate::cluster::PATIENT;
use crate::cluster::map::is_ready;
use crate::servers::cut_replication;
use crate::wait::wait_for;
use crate::{Cluster, Error, lock};

/// How long a server is silent before the others begin to think that it is gone, while a test waits for a failover.
const HASTY: &str = "1000";

impl Cluster {
    /// Makes a replica the master by agreement with that (`CLUSTER FAILOVER`): nothing that was granted is lost. Blocks
    /// until all know.
    pub fn fail_over(&self, replica: usize) -> Result<(), Error> {
        self.promote(replica, &["CLUSTER", "FAILOVER"])
    }

    /// Makes a replica the master without asking anybody (`CLUSTER FAILOVER TAKEOVER`). Blocks until all know.
    pub fn take_over(&self, replica: usize) -> Result<(), Error> {
        self.promote(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"])
    }

    fn promote(&self, replica: usize, command: &[&str]) -> Result<(), Error> {
        let _changing = self.changing();
        let slot = self.slot_behind(replica)?;
        // It gives up by itself after five seconds, and refuses where its connection to its master is just being made.
        let mut begun: Option<Instant> = None;
        let is_done = || {
            if begun.is_none_or(|it| Duration::from_secs(6) < it.elapsed()) {
                // Who was not elected, or has voted on the same master, waits for some of these timeouts.
                if begun.is_some() && self.set_timeout(HASTY).is_err() {
                    return false;
                }
                begun = self.servers[replica]
                    .command(command)
                    .is_ok()
                    .then(Instant::now);
            }
            self.owner(slot) == Some(replica)
        };
        wait_for(
            || format!("{replica} becomes the master\n{}", self.described()),
            is_done,
        )?;
        self.set_timeout(PATIENT)
    }

    fn set_timeout(&self, timeout: &str) -> Result<(), Error> {
        let set = |it: usize| {
            self.servers[it]
                .command(&["CONFIG", "SET", "cluster-node-timeout", timeout])
                .map(drop)
        };
        self.present().try_for_each(set)
    }

    /// Kills a master; blocks until the others have noticed and made a replica of it the master, and all know. Returns
    /// which. More than half of the masters have to be left.
    pub fn kill(&self, master: usize) -> Result<usize, Error> {
        let slot = self.slot_behind(master)?;
        self.servers[master].kill()?;
        self.wait_for_successor(master, slot)
    }

    /// Cuts a master off from the other servers, which goes on serving clients, until its `cluster-node-timeout` of a minute is
    /// over. Blocks until the others have made a replica of it the master, and all of them know. Returns which: both serve the same
    /// slots now. No other method here asks the one that is cut off.
    ///
    /// # Panics
    ///
    /// The cluster was started without [`cuttable`](ClusterBuilder::cuttable).
    #[track_caller]
    pub fn cut_off(&self, master: usize) -> Result<usize, Error> {
        let bus = self.bus.as_ref().expect("started with .cuttable()");
        let slot = self.slot_behind(master)?;
        bus.cut(&self.servers, master);
        *lock(&self.cut_off) = Some(master);
        self.wait_for_successor(master, slot)
    }

    fn wait_for_successor(&self, master: usize, slot: u16) -> Result<usize, Error> {
        let elect = |no_failover: &str| {
            let command = ["CONFIG", "SET", "cluster-replica-no-failover", no_failover];
            self.present()
                .try_for_each(|it| self.servers[it].command(&command).map(drop))
        };
        elect("no")?;
        self.set_timeout(HASTY)?;
        let mut new = None;
        wait_for(
            || {
                format!(
                    "a replica takes the place of {master}\n{}",
                    self.described()
                )
            },
            || {
                // It may own the slots a moment before it serves them.
                new = self
                    .owner(slot)
                    .filter(|it| *it != master && is_ready(&self.servers[*it]));
                new.is_some()
            },
        )?;
        self.set_timeout(PATIENT)?;
        elect("yes")?;
        new.ok_or_else(|| Error::new("no new master"))
    }

    /// Lets no replica hear of new keys any more; blocks until none does.
    pub fn cut_replication(&self) -> Result<(), Error> {
        cut_replication(self.present().map(|it| &self.servers[it]))
    }

    /// Takes that back; blocks until [all is well](Self::wait_until_well).
    pub fn restore_replication(&self) -> Result<(), Error> {
        let password = self.password.as_deref().unwrap_or_default();
        for it in self.present() {
            self.servers[it].command(&["CONFIG", "SET", "masterauth", password])?;
        }
        self.wait_until_well()
    }

    /// The server that replicates this master; none if none does.
    pub fn replica_of(&self, master: usize) -> Option<usize> {
        let port = self.servers[master].port().to_string();
        let port_of = |it: usize| self.servers[it].info("master_port");
        let mut replicas = self.present().filter(|it| !self.servers[*it].is_primary());
        replicas.find(|it| port_of(*it).as_deref() == Some(&port))
    }

    /// Those that say that they are masters.
    pub fn masters(&self) -> Vec<usize> {
        self.present()
            .filter(|it| self.servers[*it].is_primary())
            .collect()
    }
}
