//! Three nodes that are clusters each.

use std::thread;
use std::time::Instant;

use devnodes::{Cluster, eventually};
use quorlock::Builder;

use crate::replicated::vouched;
use crate::support::*;

#[test]
fn a_lock_outlives_a_failover_in_one_of_three_clusters_and_the_end_of_another_and_its_release_leaves_nothing()
-> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let clusters = thread::scope(|scope| {
        let starting = [0, 1, 0]
            .map(|it| scope.spawn(move || Cluster::builder(3).replicas(it).start().unwrap()));
        starting.map(|it| it.join().unwrap())
    });
    let ttl = secs(5);
    let short = |it: Builder| {
        vouched(
            it.ttl(ttl)
                .max_ttl(ttl)
                .response_timeout(secs(1))
                .connect_timeout(secs(1)),
        )
    };
    let of_all = || builder(clusters.iter().map(Cluster::url));
    let (here, there, of_one) = (
        short(of_all()),
        short(of_all()),
        short(builder([clusters[1].url()])),
    );
    let name = clusters[0].name_at(0, "report");
    let guard = here.mutex(&name).lock()?;

    clusters[1].fail_over(3)?;
    // In the same slot.
    eventually("the new master votes", || {
        of_one.mutex(format!("{{{name}}}")).try_lock().is_ok()
    });
    assert!(guard.is_valid());
    clusters[0]
        .servers
        .iter()
        .try_for_each(devnodes::Server::kill)?;
    let since = Instant::now();

    eventually("it is renewed where it still can be", || {
        assert!(guard.is_valid());
        assert!(there.mutex(&name).try_lock().is_err());
        ttl < since.elapsed()
    });
    assert_eq!(guard.release()?.confirmed, 2);
    for cluster in &clusters[1..] {
        let owner = cluster.owner_of(&name).unwrap();
        assert!(!cluster.servers[owner].exists(&name));
    }
    drop(lock_in_the_end(&there, &name));
    Ok(())
}
