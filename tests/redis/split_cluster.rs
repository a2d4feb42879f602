//! A cluster whose servers do not hear each other: the old master and the replica that was promoted in its place serve the same
//! slots side by side, and a client is cut off together with the old one.

use devnodes::{Cluster, Proxy, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, Builder, LockGuard, LockManager};

use crate::replicated::vouched;
use crate::support::*;

/// Three masters with a replica each, and two servers beside it. Two managers use all of them, and two the cluster alone.
struct Split {
    cluster: Cluster,
    _singles: Servers,
    /// To those single servers that this side does not reach once it is split.
    ways: [Proxy; 2],
    /// Who will be cut off together with the old master.
    here: [LockManager; 2],
    there: [LockManager; 2],
    /// Of which each is for one of the two. In one slot of the master that is cut off, as each slot is silent from when it is asked
    /// for first.
    names: [String; 2],
}

impl Split {
    fn start(options: fn(Builder) -> Builder) -> Result<Split, Box<dyn std::error::Error>> {
        let cluster = Cluster::builder(3).replicas(1).cuttable().start()?;
        for server in cluster.servers.iter() {
            server.command(&["ACL", "SETUSER", "here", "on", ">pw", "~*", "&*", "+@all"])?;
        }
        let singles = Servers::start(2)?;
        let ways = [
            Proxy::start(singles[0].addr())?,
            Proxy::start(singles[1].addr())?,
        ];
        let ours = cluster.url().replace("://", "://here:pw@");
        let make = |urls: Vec<String>| options(builder(urls));
        let there = [
            vec![cluster.url()],
            vec![cluster.url(), ways[0].url(), singles[1].url()],
        ]
        .map(|it| vouched(make(it)));
        let here = [
            vec![ours.clone()],
            vec![ours, singles[0].url(), ways[1].url()],
        ]
        .map(|it| vouched(make(it)));
        let tag = cluster.name_at(0, "report");
        let names = ["alone", "among"].map(|it| format!("{{{tag}}}-{it}"));
        // All know the slot.
        for locks in here.iter().chain(&there) {
            names.iter().for_each(|it| drop(lock_in_the_end(locks, it)));
        }
        Ok(Split {
            cluster,
            _singles: singles,
            ways,
            here,
            there,
            names,
        })
    }

    /// Cuts the old master off, together with `here`, which holds a lock of each of the two managers: neither the new master nor the
    /// single server of the other side has heard of these.
    fn split(&self) -> Result<[LockGuard; 2], Box<dyn std::error::Error>> {
        let close = |way: &Proxy| {
            way.refuse(true);
            way.cut();
        };
        self.cluster.cut_replication()?;
        close(&self.ways[1]);
        let guards = [0, 1].map(|it: usize| lock_in_the_end(&self.here[it], &self.names[it]));
        close(&self.ways[0]);
        for server in self.cluster.servers.iter().skip(1) {
            server.command(&["ACL", "DELUSER", "here"])?;
        }
        assert_eq!(self.cluster.cut_off(0)?, 3);
        Ok(guards)
    }

    /// A name in the same slot that nobody holds.
    fn other(&self) -> String {
        format!("{}-other", self.names[0])
    }

    /// Both grant what they are asked.
    fn both_serve(&self) -> TestResult {
        for it in [0, 3] {
            set(&self.cluster.servers[it], &self.other(), "1");
            let master = self.cluster.servers[it].info("role");
            assert_eq!(master.as_deref(), Some("master"));
        }
        Ok(())
    }
}

fn is_silent(err: &AcquireError) -> bool {
    matches!(
        answer(err, 0),
        NodeAnswer::Failed(NodeFailure::Quarantined { .. })
    )
}

#[test]
fn while_an_old_master_of_a_cluster_and_the_new_one_serve_side_by_side_nobody_else_gets_what_is_held_at_the_old_one()
-> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let split = Split::start(|it| it.ttl(LONG))?;
    let guards = split.split()?;
    for name in &split.names {
        assert!(split.cluster.servers[0].exists(name) && !split.cluster.servers[3].exists(name));
    }

    for (locks, name) in split.there.iter().zip(&split.names) {
        eventually("the new master is asked and keeps silent", || {
            match locks.mutex(name).try_lock() {
                Ok(_) => panic!("a second holder"),
                Err(err) => is_silent(&err),
            }
        });
    }
    assert!(guards.iter().all(|guard| guard.is_valid()));
    // Nor does the old one count any more, for those who do not hear the others.
    let other = split.other();
    error_in_the_end(&split.here[0], &other, |err| {
        says(failure(err, 0), UNCONFIRMED)
    });
    split.both_serve()?;

    // It serves no longer than its timeout allows, and is the other one's replica in the end.
    split.cluster.servers[0].command(&["CONFIG", "SET", "cluster-node-timeout", "500"])?;
    eventually("the old one notices", || {
        split.cluster.servers[0]
            .command(&["SET", &other, "1"])
            .is_err()
    });
    split.cluster.join_again()?;
    assert_eq!(split.cluster.owner_of(&other), Some(3));
    Ok(())
}

#[test]
fn who_is_cut_off_together_with_an_old_master_of_a_cluster_has_lost_its_lock_before_the_other_side_can_have_it()
-> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let quick = |it: Builder| {
        it.ttl(secs(1))
            .max_ttl(secs(1))
            .response_timeout(ms(250))
            .connect_timeout(ms(400))
    };
    let split = Split::start(quick)?;
    let guards = split.split()?;

    // Until they hear of the new one they may get it at the old one: after it was lost there.
    let other = split.other();
    for locks in &split.there {
        error_in_the_end(locks, &other, is_silent);
    }
    for ((locks, name), guard) in split.there.iter().zip(&split.names).zip(&guards) {
        let theirs = lock_in_the_end(locks, name);
        assert!(!guard.is_valid(), "two hold it");
        assert!(theirs.is_valid() && split.cluster.servers[3].exists(name));
    }
    split.both_serve()
}
