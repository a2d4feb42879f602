//! What is done to a node that is a cluster, and undone again.

use std::thread;
use std::time::Duration;

use devnodes::{Cluster, Error, Server};

use crate::faults::NodeFault;
use crate::options::TAG;
use crate::support::{between, boot};

/// A cluster, and who serves the slot of all locks.
#[derive(Clone, Copy)]
pub(crate) struct Spot<'a> {
    cluster: &'a Cluster,
    slot: u16,
    owner: usize,
}

impl<'a> Spot<'a> {
    pub(crate) fn find(cluster: &'a Cluster) -> Result<Spot<'a>, Error> {
        let slot = cluster.slot_of(TAG);
        let owner = cluster.owner(slot);
        let owner = owner.ok_or_else(|| Error::new("nobody serves the slot"))?;
        Ok(Spot {
            cluster,
            slot,
            owner,
        })
    }

    pub(crate) fn server(&self) -> &'a Server {
        &self.cluster.servers[self.owner]
    }

    fn replica(&self) -> Result<usize, Error> {
        self.cluster
            .replica_of(self.owner)
            .ok_or_else(|| Error::new("no replica"))
    }

    /// Some other master.
    fn other(&self, rng: &mut fastrand::Rng) -> Result<usize, Error> {
        let mut others = self.cluster.masters();
        others.retain(|it| *it != self.owner);
        rng.choice(others)
            .ok_or_else(|| Error::new("no other master"))
    }

    /// See [`NodeFault::inflict`]: those faults that only clusters have, and failovers.
    pub(crate) fn inflict(
        self,
        fault: NodeFault,
        ttl: Duration,
        rng: &mut fastrand::Rng,
        told: impl Fn(NodeFault, u64, u64),
    ) -> Result<(), Error> {
        let Spot {
            cluster,
            slot,
            owner,
        } = self;
        let server = self.server();
        let from = boot();
        match fault {
            NodeFault::FailOver => {
                cluster.kill(owner)?;
                told(fault, from, boot());
                hold(rng, ttl, 0.0, 1.0);
                server.restart()?;
            }
            NodeFault::HandOver => {
                cluster.fail_over(self.replica()?)?;
                told(fault, from, boot());
            }
            NodeFault::TakeOver => {
                let replica = self.replica()?;
                // The old master is gone, or does not hear of it for a while, or hears of it at once.
                let fate = rng.u8(..3);
                match fate {
                    0 => server.kill()?,
                    1 => server.pause()?,
                    _ => {}
                }
                cluster.take_over(replica)?;
                told(fault, from, boot());
                hold(rng, ttl, 0.0, 1.0);
                match fate {
                    0 => server.restart()?,
                    1 => server.resume()?,
                    _ => {}
                }
            }
            NodeFault::MoveSlot => {
                let migration = cluster.begin_migration(slot, self.other(rng)?)?;
                hold(rng, ttl, 0.0, 0.5);
                migration.move_keys()?;
                hold(rng, ttl, 0.0, 0.5);
                migration.finish()?;
                told(fault, from, boot());
            }
            NodeFault::LoseSlot => {
                cluster.take_slot(slot, self.other(rng)?)?;
                told(fault, from, boot());
                // And back: to a master that has had it all the time, for whoever did not look.
                if rng.bool() {
                    let from = boot();
                    cluster.take_slot(slot, owner)?;
                    told(fault, from, boot());
                }
            }
            NodeFault::Blackout => {
                for it in &cluster.servers {
                    it.kill()?;
                }
                told(fault, from, boot());
                hold(rng, ttl, 0.0, 1.0);
                for it in &cluster.servers {
                    it.restart()?;
                }
            }
            other => panic!("{other:?} is none of a cluster"),
        }
        Ok(())
    }
}

/// Lets the owner of the slot change twice, by agreement: no key is lost.
pub(crate) fn hand_over(cluster: &Cluster) -> Result<(), Error> {
    let spot = Spot::find(cluster)?;
    cluster.migrate(spot.slot, spot.other(&mut fastrand::Rng::with_seed(0))?)?;
    cluster.fail_over(Spot::find(cluster)?.replica()?)?;
    cluster.wait_until_well()
}

fn hold(rng: &mut fastrand::Rng, ttl: Duration, from: f64, to: f64) {
    thread::sleep(between(rng, ttl, from, to));
}
