//! Masters that are replaced by their replicas.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::cluster::PATIENT;
use crate::cluster::bus::Bus;
use crate::wait::wait_for;
use crate::{Cluster, Error};

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
                begun = self.servers[replica].command(command).is_ok().then(Instant::now);
            }
            self.owner(slot) == Some(replica)
        };
        wait_for(|| format!("{replica} becomes the master\n{}", self.described()), is_done)
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
        *self.cut_off.lock().unwrap_or_else(PoisonError::into_inner) = Some(master);
        self.wait_for_successor(master, slot)
    }

    /// Ends that; blocks until all is well.
    pub fn join_again(&self) -> Result<(), Error> {
        *self.cut_off.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.bus.iter().for_each(Bus::join);
        // Whose replication was cut hears its master again.
        let password = self.password.as_deref().unwrap_or_default();
        for it in self.present() {
            self.servers[it].command(&["CONFIG", "SET", "masterauth", password])?;
        }
        self.wait_until_well()
    }

    fn wait_for_successor(&self, master: usize, slot: u16) -> Result<usize, Error> {
        let set = |it: usize, name: &str, to: &str| self.servers[it].command(&["CONFIG", "SET", name, to]).map(drop);
        for it in self.present() {
            set(it, "cluster-replica-no-failover", "no")?;
            set(it, "cluster-node-timeout", HASTY)?;
        }
        let mut new = None;
        wait_for(
            || format!("a replica takes the place of {master}\n{}", self.described()),
            || {
                new = self.owner(slot).filter(|it| *it != master);
                new.is_some()
            },
        )?;
        for it in self.present() {
            set(it, "cluster-node-timeout", PATIENT)?;
            set(it, "cluster-replica-no-failover", "yes")?;
        }
        new.ok_or_else(|| Error::new("no new master"))
    }

    /// Lets no replica hear of new keys any more; blocks until none does.
    pub fn cut_replication(&self) -> Result<(), Error> {
        let is_replica = |it: &usize| self.servers[*it].info("role").as_deref() == Some("slave");
        let (replicas, masters): (Vec<_>, Vec<_>) = self.present().partition(is_replica);
        // Refused, they try again and again.
        for it in &replicas {
            self.servers[*it].command(&["CONFIG", "SET", "masterauth", "wrong"])?;
        }
        for it in masters {
            self.servers[it].command(&["CLIENT", "KILL", "TYPE", "replica"])?;
        }
        let cut = |it: &usize| self.servers[*it].info("master_link_status").as_deref() == Some("down");
        wait_for(|| "the replicas lose their masters".to_owned(), || replicas.iter().all(cut))
    }
}
