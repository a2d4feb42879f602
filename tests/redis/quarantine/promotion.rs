//! A server that was a replica may lack what its master granted last, whatever its record says.

use devnodes::eventually;

use crate::quarantine::record::*;
use crate::support::*;

#[test]
fn h16_a_promoted_replica_that_has_been_up_for_long_is_silent_for_clients_that_never_knew_it()
-> TestResult {
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

    let first = quarantine(&strict([replica.url()]).build()?);
    assert!(secs(500) < first, "{first:?}");
    let kept = record(replica).unwrap();
    assert!(kept.run_id.starts_with(&run_id(replica)), "{kept:?}");
    // The next client is told how much of it is left.
    eventually("the next one hears of less", || {
        let next = quarantine(&strict([replica.url()]).build().unwrap());
        assert!(secs(300) < next, "{next:?} after {first:?}");
        next + ms(500) < first
    });
    assert_eq!(record(replica), Some(kept), "and it has begun once");
    drop(guard);
    Ok(())
}

/// Of what the master in between has granted it knows nothing, and its record is its own.
#[test]
fn h16_a_master_that_was_a_replica_in_between_is_silent_although_it_was_never_restarted()
-> TestResult {
    needs!(Replicas);
    needs!(SteppedClocks);
    let servers = aged(1, |it| it);
    let server = &servers[0];
    remember(server, 0);
    assert_eq!(quarantine(&strict([server.url()]).build()?), secs(0));

    // That master is gone before it has told it anything.
    server.command(&["REPLICAOF", "127.0.0.1", "1"])?;
    server.command(&["REPLICAOF", "NO", "ONE"])?;

    assert!(secs(500) < quarantine(&strict([server.url()]).build()?));
    let kept = record(server).unwrap();
    assert!(
        kept.run_id.starts_with(&run_id(server)) && run_id(server) != kept.run_id,
        "{kept:?}"
    );
    Ok(())
}

#[test]
fn a_server_that_forgets_after_an_hour_that_it_was_promoted_is_the_same() -> TestResult {
    needs!(Replicas);
    needs!(SteppedClocks);
    let servers = aged(1, |it| it);
    let server = &servers[0];
    Record {
        run_id: run_id(server) + &"7".repeat(40),
        ..Record::of_ever(server)
    }
    .write(server);
    assert_eq!(quarantine(&strict([server.url()]).build()?), secs(0));
    Ok(())
}

/// Of three servers one has the last writer's token, one came back with older data, and its quarantine is over, and one was away.
#[test]
fn h27_a_server_with_old_data_gives_no_reader_a_number_that_is_older_than_its_memory() -> TestResult
{
    needs!(SteppedClocks);
    let servers = aged(3, |it| it);
    let now = time_at(&servers[0]);
    let micros = |ago: u64| now - 1_000_000 * ago;
    let token = micros(900);
    for (server, counter) in servers.iter().zip([token, micros(1_200), micros(1_200)]) {
        remember(server, 0);
        set(server, &fence("report"), &counter.to_string());
    }
    Record {
        since: micros(700),
        ..Record::of_ever(&servers[1])
    }
    .write(&servers[1]);
    servers[0].kill().unwrap();

    let number = strict(servers.urls())
        .build()
        .unwrap()
        .rw_lock("report")
        .read()
        .unwrap()
        .last_writer()
        .get();

    assert!(
        token <= number,
        "{number} is below the token of the writer before it, {token}"
    );
    Ok(())
}
