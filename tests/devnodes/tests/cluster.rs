//! Clusters.

use devnodes::{Cluster, Error};

fn set(cluster: &Cluster, at: usize, key: &str) -> Result<(), Error> {
    cluster.servers[at].command(&["SET", key, "1"]).map(drop)
}

#[track_caller]
fn refused(cluster: &Cluster, at: usize, key: &str) -> String {
    set(cluster, at, key).unwrap_err().to_string()
}

/// The same, if it was refused.
fn refused_at_all(cluster: &Cluster, at: usize, key: &str) -> String {
    set(cluster, at, key)
        .err()
        .map(|it| it.to_string())
        .unwrap_or_default()
}

#[test]
fn slots_fail_over_and_move_with_their_keys_and_without_them() -> Result<(), Error> {
    let cluster = Cluster::start(3)?;
    let servers = &cluster.servers;
    let [a, b] = [0, 1].map(|it| cluster.name_at(it, "a"));
    set(&cluster, 0, &a)?;
    assert!(refused(&cluster, 1, &a).contains("MOVED"));

    // By agreement, and back.
    cluster.fail_over(3)?;
    cluster.wait_until_well()?;
    assert!(servers[3].exists(&a));
    cluster.fail_over(0)?;
    cluster.wait_until_well()?;

    // Step by step.
    let slot = cluster.slot_of(&a);
    let migration = cluster.begin_migration(slot, 1)?;
    set(&cluster, 0, &a)?;
    assert!(refused(&cluster, 0, &format!("{{{a}}}2")).contains("ASK"));
    assert_eq!(migration.keys()?.join(" "), a);
    migration.move_key(&a)?;
    assert!(refused(&cluster, 0, &a).contains("ASK"));
    migration.finish()?;
    assert!(servers[1].exists(&a));
    assert_eq!(cluster.owner_of(&a), Some(1));
    cluster.migrate(slot, 0)?;
    assert!(servers[0].exists(&a));

    cluster.take_slot(slot, 2)?;
    devnodes::eventually("its keys are deleted", || servers[0].key_count() == 0);
    assert!(!servers[2].exists(&a));

    // A hole is the end of all, unless they are told otherwise.
    cluster.drop_slot(slot)?;
    devnodes::eventually("a hole", || {
        refused(&cluster, 1, &b).contains("CLUSTERDOWN")
    });
    cluster.add_slot(slot, 0)?;
    cluster.wait_until_well()?;
    set(&cluster, 1, &b)
}

#[test]
fn a_cut_off_primary_serves_beside_its_successor() -> Result<(), Error> {
    let cluster = Cluster::builder(3).replicas(1).cuttable().start()?;
    let key = cluster.name_at(0, "a");
    assert_eq!(cluster.cut_off(0)?, 3);
    set(&cluster, 0, &key)?;
    set(&cluster, 3, &key)?;
    assert!(refused(&cluster, 4, &key).contains("MOVED"));

    // It serves no longer than its timeout allows.
    cluster.servers[0].command(&["CONFIG", "SET", "cluster-node-timeout", "500"])?;
    devnodes::eventually("it notices", || {
        refused_at_all(&cluster, 0, &key).contains("CLUSTERDOWN")
    });
    Ok(())
}
