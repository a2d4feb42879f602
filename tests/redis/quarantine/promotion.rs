//! A server that was a replica may lack what its master granted last, whatever its record says.

use devnodes::eventually;

use crate::quarantine::record::*;
use crate::support::*;

#[test]
fn h16_a_promoted_replica_with_a_long_uptime_is_quarantined_for_new_clients() -> TestResult {
    needs!(Replicas);
    // Else a master waits five seconds for more replicas.
    needs!(SteppedClocks);
    let servers = aged(2, |it| it.arg("--repl-diskless-sync-delay", "0"));
    let (master, replica) = (&servers[0], &servers[1]);
    remember(master, 0);
    let guard = strict([master.url()]).build()?.mutex("report").try_lock()?;
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])?;
    eventually("it has everything", || {
        record(replica) == record(master) && replica.exists("report")
    });

    master.kill()?;
    replica.command(&["REPLICAOF", "NO", "ONE"])?;
    del(replica, "report");

    let first = quarantine_of(replica);
    assert!(secs(500) < first, "{first:?}");
    let kept = record(replica).unwrap();
    assert!(kept.run_id.starts_with(&run_id(replica)), "{kept:?}");
    // The next client is told how much of it is left.
    eventually("the next one hears of less", || {
        let next = quarantine_of(replica);
        assert!(secs(300) < next, "{next:?} after {first:?}");
        next + ms(500) < first
    });
    assert_eq!(record(replica), Some(kept), "and it has begun once");
    drop(guard);
    Ok(())
}

/// Of what the master in between has granted it knows nothing, and its record is its own.
#[test]
fn h16_a_primary_that_was_a_replica_in_between_is_quarantined_without_a_restart() -> TestResult {
    needs!(Replicas);
    needs!(SteppedClocks);
    let server = &aged(1, |it| it)[0];
    remember(server, 0);
    assert_eq!(quarantine_of(server), secs(0));

    // That master is gone before it has told it anything.
    server.command(&["REPLICAOF", "127.0.0.1", "1"])?;
    server.command(&["REPLICAOF", "NO", "ONE"])?;

    assert!(secs(500) < quarantine_of(server));
    let (kept, run_id) = (record(server).unwrap().run_id, run_id(server));
    assert!(kept.starts_with(&run_id) && run_id != kept, "{kept}");
    Ok(())
}

#[test]
fn a_server_that_drops_its_promotion_id_stays_the_same() -> TestResult {
    needs!(Replicas);
    needs!(SteppedClocks);
    let server = &aged(1, |it| it)[0];
    Record::write_changed(server, |it| it.run_id += &"7".repeat(40));
    assert_eq!(quarantine_of(server), secs(0));
    Ok(())
}

/// Of three servers one has the last writer's token, one came back with older data, and its quarantine is over, and one was away.
#[test]
fn h27_a_server_with_old_data_gives_no_reader_a_number_older_than_its_record() -> TestResult {
    needs!(SteppedClocks);
    let servers = aged(3, |it| it);
    let now = time_at(&servers[0]);
    let micros = |ago: u64| now - 1_000_000 * ago;
    let token = micros(900);
    for (server, counter) in servers.iter().zip([token, micros(1_200), micros(1_200)]) {
        remember(server, 0);
        set(server, &fence("report"), &counter.to_string());
    }
    Record::write_changed(&servers[1], |it| it.since = micros(700));
    servers[0].kill().unwrap();

    let locks = strict(servers.urls()).build()?;
    let number = locks.rw_lock("report").read()?.last_writer().get();

    assert!(token <= number, "{token} of the writer before {number}");
    Ok(())
}
