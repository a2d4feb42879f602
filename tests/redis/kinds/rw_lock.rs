//! The read-write lock: who excludes whom, what a reader knows of writers, and how readers' locks end.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};

use devnodes::{PATIENCE, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeReport};
use quorlock::{
    AcquireError, CancelHandle, LockManager, LostReason, ReadGuard, WithError, WriteGuard,
};

use crate::support::*;
use crate::waiting::lists::*;

const NAME: &str = "catalog";

/// Where the readers of a lock are.
fn readers(name: &str) -> String {
    format!("quorlock:readers:{name}")
}

fn is_shared(server: &Server) -> bool {
    server.get(NAME).as_deref() == Some(b"quorlock:shared")
}

/// How many entries of readers there are on each server.
fn entries(servers: &Servers) -> Vec<i64> {
    servers
        .iter()
        .map(|it| {
            it.command(&["ZCARD", &readers(NAME)])
                .unwrap()
                .as_int()
                .unwrap()
        })
        .collect()
}

/// Reads; returns once the entry is on every server.
#[track_caller]
fn read(locks: &LockManager, servers: &Servers) -> ReadGuard {
    let before = entries(servers);
    let guard = locks.rw_lock(NAME).try_read().unwrap();
    eventually("the entry is on all servers", || {
        entries(servers)
            .iter()
            .zip(&before)
            .all(|(now, it)| it < now)
    });
    guard
}

#[track_caller]
fn assert_held_by_readers(err: &AcquireError) {
    assert_held(err);
    let by_readers = |it: &NodeReport| {
        matches!(
            it.answer,
            NodeAnswer::HeldByReaders {
                left: Some(_),
                name: None
            }
        )
    };
    assert!(err.nodes().iter().any(by_readers), "{err}");
    assert_contains(err, "held by readers");
}

#[test]
fn i1_readers_share_the_lock_and_writers_do_not() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let other = connected(builder(servers.urls()), 3);
    let (here, there) = (locks.rw_lock(NAME), other.rw_lock(NAME));

    let first = read(&locks, &servers);
    let second = read(&other, &servers);
    let third = read(&locks, &servers);
    for lock in [&here, &there] {
        assert_held_by_readers(&lock.try_write().unwrap_err());
    }
    assert_held_by_readers(&other.mutex(NAME).try_lock().unwrap_err());
    assert_held_by_readers(&other.reentrant_mutex(NAME).try_lock().unwrap_err());
    assert_held(&other.multi_lock([NAME, "another"]).try_lock().unwrap_err());

    first.release()?;
    third.release()?;
    assert_held_by_readers(&here.try_write().unwrap_err());
    assert!(second.is_valid());
    second.release()?;

    let writer = here.try_write()?;
    assert_held(&there.try_read().unwrap_err());
    assert_held(&here.try_read().unwrap_err());
    assert_held(&there.try_write().unwrap_err());
    writer.release()?;
    let mutex = other.mutex(NAME).try_lock()?;
    assert_held(&here.try_read().unwrap_err());
    drop(mutex);
    let both = other.multi_lock([NAME, "another"]).try_lock()?;
    assert_held(&here.try_read().unwrap_err());
    drop(both);
    drop(here.try_read()?);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn i1_readers_and_clients_of_the_plain_layout_exclude_each_other() -> TestResult {
    let (servers, locks) = start_connected(3, builder);

    let guard = read(&locks, &servers);
    for server in &servers {
        let said = server.command(&["SET", NAME, "foreign", "NX", "PX", "600000"])?;
        assert!(said.as_str().is_none(), "{said:?}");
    }
    guard.release()?;
    servers
        .iter()
        .for_each(|it| set_px(it, NAME, "foreign", 600_000));
    let err = locks.rw_lock(NAME).try_read().unwrap_err();
    assert_held(&err);
    // The third is not waited for.
    let is_held = |it: &&NodeReport| {
        matches!(
            it.answer,
            NodeAnswer::Held {
                left: Some(_),
                holder: None,
                ..
            }
        )
    };
    let refusals = err.nodes().iter().filter(is_held).count();
    assert!(2 <= refusals, "{err}");
    Ok(())
}

#[test]
fn i2_the_last_writer_of_a_reader_is_the_writer_before_it_and_is_below_the_next() -> TestResult {
    let (_servers, locks) = start_connected(3, builder);
    let lock = locks.rw_lock(NAME);

    let nobody = lock.try_read()?;
    let none = nobody.last_writer();
    drop(nobody);
    for _ in 0..5 {
        let writer = lock.try_write()?;
        let token = writer.fencing_token();
        assert!(none < token);
        drop(writer);
        let (one, two) = (lock.try_read()?, lock.try_read()?);
        assert_eq!((one.last_writer(), two.last_writer()), (token, token));
    }
    Ok(())
}

#[test]
fn i2_a_reader_raises_counters_without_an_agreeing_majority() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    for (server, counter) in servers.iter().zip(["700", "300", "500"]) {
        set(server, &fence(NAME), counter);
    }

    let guard = locks.rw_lock(NAME).try_read()?;

    assert_eq!(locks.stats().fencing_raises, 1);
    let last = guard.last_writer().get().to_string();
    assert!(["500", "700"].contains(&&*last), "{last}");
    let has_it = |it: &&Server| it.get(fence(NAME)).unwrap() == last.as_bytes();
    assert!(2 <= servers.iter().filter(has_it).count());
    let one = guard.last_writer();
    drop(guard);
    assert!(one < locks.rw_lock(NAME).try_write()?.fencing_token());
    Ok(())
}

#[test]
fn i4_the_longest_ttl_of_readers_lengthens_the_lock_until_that_reader_ends() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).max_ttl(LONG));
    let short = read(&locks, &servers);
    assert!(servers.iter().all(|it| it.pttl(NAME) <= 20_000));

    short.extend(secs(400))?;
    eventually("the key lives as long as the entry", || {
        servers.iter().all(|it| 300_000 < it.pttl(NAME))
    });
    let before = entries(&servers);
    let other = locks.rw_lock(NAME).try_read()?;
    eventually("the other has come", || entries(&servers) != before);
    short.release()?;

    eventually("no longer than the other's", || {
        servers.iter().all(|it| it.pttl(NAME) <= 20_000)
    });
    other.release()?;
    Ok(())
}

#[test]
fn i4_a_removed_entry_is_healed_and_a_deleted_lock_is_lost() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(3)));
    let guard = read(&locks, &servers);

    // Readers' set alone on one server, and the lock itself on none.
    del(&servers[0], &readers(NAME));
    eventually("the entry is set again", || {
        servers[0].exists(readers(NAME))
    });
    del(&servers[1], NAME);
    eventually("the lock is set again", || is_shared(&servers[1]));
    eventually("both are counted", || 2 <= locks.stats().healed);
    assert!(guard.is_valid());

    let lost = guard.lost();
    for server in servers.iter().take(2) {
        del(server, NAME);
        set_px(server, NAME, "foreign", 600_000);
    }
    assert_eq!(announced(&lost), LostReason::Gone);
    Ok(())
}

#[test]
fn i4_a_reader_is_not_healed_beside_a_foreign_key() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(3)));
    let guard = read(&locks, &servers);

    // Of a client that knows no counter.
    del(&servers[2], &readers(NAME));
    set(&servers[2], NAME, "foreign");
    wait_for_extensions(&locks, 3);

    assert_eq!(servers[2].get(NAME).as_deref(), Some(&b"foreign"[..]));
    let has_entry = servers[2].exists(readers(NAME));
    assert!(!has_entry, "an entry beside another client's key");
    assert_eq!(locks.stats().healed, 0);
    assert!(guard.is_valid());
    Ok(())
}

#[test]
fn i5_a_leftover_set_revives_no_reader() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).renew(false).ttl(LONG));
    let old = read(&locks, &servers);
    del_all(&servers, NAME);

    let new = locks.rw_lock(NAME).try_read()?;
    eventually("only the new entry is there", || {
        entries(&servers) == [1, 1, 1]
    });
    drop(new);

    drop(locks.rw_lock(NAME).try_write()?);
    assert!(old.release().is_err());
    Ok(())
}

#[test]
fn d5_no_extension_shortens_the_entry_of_a_reader() -> TestResult {
    let (servers, locks) = start_connected(1, |urls| builder(urls).renew(false).ttl(LONG));
    let guard = locks.rw_lock(NAME).try_read()?;
    let entry = || servers[0].command(&["ZRANGE", &readers(NAME), "0", "-1", "WITHSCORES"]);
    let before = entry()?;

    guard.extend(LONG / 2)?;

    assert_eq!(entry()?, before);
    Ok(())
}

/// Others leave larger counters as they come and go, on all servers or on all but the one that is emptied.
#[test]
fn h22_a_reader_survives_data_loss_while_others_raise_counters() -> TestResult {
    for is_emptied in [false, true] {
        let servers = Servers::start(3)?;
        let locks = connected(with_ttl(servers.urls(), secs(3)), 3);
        let guard = read(&locks, &servers);
        let lost = guard.lost();
        for (at, more) in (0..servers.len()).zip(1..) {
            let healed = locks.stats().healed;
            let number = (guard.last_writer().get() + more).to_string();
            let lifted = (0..servers.len()).filter(|other| !is_emptied || *other != at);
            lifted.for_each(|other| set(&servers[other], &fence(NAME), &number));
            if is_emptied {
                servers[at].command(&["FLUSHALL"])?;
            } else {
                del(&servers[at], NAME);
            }
            eventually("it is healed, or lost", || {
                healed < locks.stats().healed || lost.try_recv().is_ok()
            });
            guard.check()?;
        }
    }
    Ok(())
}

#[test]
fn g6_a_reader_raises_no_counter_to_an_outlier_of_one_node() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).renew(false).ttl(LONG));
    let guard = read(&locks, &servers);
    let absurd = in_an_hour() + 48 * 3_600_000_000;
    let shown = |server: &Server| server.get(fence(NAME)).unwrap();
    let before = shown(&servers[1]);
    set(&servers[0], &fence(NAME), &absurd.to_string());
    del(&servers[0], NAME);

    let extended = scripts_run(&servers[0]);
    eventually("it was shown, and extended since", || {
        guard.extend(LONG).unwrap();
        extended + 10 < scripts_run(&servers[0])
    });

    assert!(servers.iter().skip(1).all(|it| shown(it) == before));
    Ok(())
}

/// A rolling restart: the next server goes as soon as the one before votes again and has everybody who reads.
#[test]
fn h22_readers_survive_rolling_empty_restarts_beside_new_readers() -> TestResult {
    let servers = Servers::start(3)?;
    let strict = || with_quarantine(servers.urls(), secs(4));
    let programs: Vec<_> = (0..4).map(|_| connected(strict(), 3)).collect();
    let read = |it: &LockManager| it.rw_lock(NAME).read().unwrap();
    let guards: Vec<_> = programs.iter().map(read).collect();
    let members = |server: &Server| {
        let members = members_in(server, &readers(NAME));
        members.into_iter().collect::<HashSet<_>>()
    };
    eventually("all are everywhere", || entries(&servers) == [4, 4, 4]);
    let stay = members(&servers[0]);
    let (came, is_over) = (AtomicU64::new(0), AtomicBool::new(false));

    thread::scope(|scope| {
        for locks in &programs {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    came.fetch_add(u64::from(locks.rw_lock(NAME).try_read().is_ok()), SeqCst);
                    thread::sleep(ms(5));
                }
            });
        }
        let end = catch_unwind(AssertUnwindSafe(|| {
            for server in servers
                .iter()
                .cycle()
                .take(if long_tests() { 30 } else { 3 })
            {
                server.kill().unwrap();
                server.restart().unwrap();
                eventually("it is quarantined", || {
                    programs.iter().all(|it| !it.stats().quarantined.is_empty())
                });
                eventually("all are there again", || stay.is_subset(&members(server)));
                eventually("it votes again", || {
                    programs.iter().all(|it| it.stats().quarantined.is_empty())
                });
                let before = came.load(SeqCst);
                eventually("others have come", || before + 4 <= came.load(SeqCst));
                guards.iter().for_each(|it| it.check().unwrap());
            }
        }));
        is_over.store(true, SeqCst);
        if let Err(panic) = end {
            resume_unwind(panic);
        }
    });
    for guard in guards {
        guard.release()?;
    }
    Ok(())
}

#[test]
fn read_and_write_closures_hold_the_lock_and_report_a_loss() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let lock = locks.rw_lock(NAME);

    assert!(lock.read_with(|guard| guard.is_valid())?);
    let token = lock.write_with(|it| it.fencing_token())?;
    assert_eq!(lock.read_with(|it| it.last_writer())?, token);
    let lost = lock.read_with(|_| {
        del_all(&servers, NAME);
        7
    });
    assert_matches!(lost, Err(WithError::Lost(lost)) if lost.reason == LostReason::Gone);
    Ok(())
}

/// A call that waits to read, behind all that wait already.
#[track_caller]
fn queue_reader(locks: &LockManager) -> JoinHandle<Result<ReadGuard, AcquireError>> {
    let lock = locks.rw_lock(NAME);
    queue_up(locks, move || lock.read())
}

#[track_caller]
fn queue_writer(locks: &LockManager) -> JoinHandle<Result<WriteGuard, AcquireError>> {
    let lock = locks.rw_lock(NAME);
    queue_up(locks, move || lock.write())
}

/// Readers of four managers, two of each.
#[test]
fn i8_readers_behind_a_writer_get_the_lock_together() -> TestResult {
    let servers = Servers::start(3)?;
    let managers = repeat(4, || on_all(&servers, far));
    let writer = hold(&managers[0], &servers, NAME);
    let all = Arc::new(Barrier::new(8));
    let readers: Vec<_> = (0..8)
        .map(|it| {
            let (locks, all) = (&managers[it % 4], Arc::clone(&all));
            let lock = locks.rw_lock(NAME);
            queue_up(locks, move || {
                let guard = lock.read().unwrap();
                // Each waits for all the others with the lock held.
                all.wait();
                guard.release().unwrap();
            })
        })
        .collect();
    // Those of the writer's manager ask no node while that has it alone.
    wait_until_listed_readers(&servers, 6);

    writer.release()?;

    readers.into_iter().for_each(join);
    nothing_waits(&servers);
    Ok(())
}

/// Waits until so many calls that want to read are in the lists of all servers.
#[track_caller]
fn wait_until_listed_readers(servers: &Servers, count: usize) {
    let readers = |server| {
        let members = members_of(server, NAME).into_iter();
        members.filter(|it| it.as_bytes()[16] == b'r').count()
    };
    eventually("the readers are in the lists", || {
        servers.iter().all(|it| readers(it) == count)
    });
}

#[test]
fn a_waiting_writer_keeps_later_readers_out_and_is_before_them() -> TestResult {
    let (servers, [one, two, three]) = with_managers(far);
    let first = read(&one, &servers);
    let writer = queue_writer(&two);
    wait_until_listed(&servers, NAME, 1);

    let err = three.rw_lock(NAME).try_read().unwrap_err();
    assert_held(&err);
    let is_read = |row: &NodeReport| matches!(row.answer, NodeAnswer::HeldByReaders { .. });
    assert!(err.nodes().iter().any(is_read), "{err:?}");
    let reader = queue_reader(&three);
    // And of the manager that reads itself: a read within a read ends with its time.
    assert_held(&one.rw_lock(NAME).try_read_for(secs(1)).unwrap_err());
    let local = queue_reader(&one);
    wait_until_listed_readers(&servers, 2);
    first.release()?;

    let writer = join(writer)?;
    assert!(!reader.is_finished() && !local.is_finished());
    writer.release()?;
    let both = (join(reader)?, join(local)?);
    drop(both);
    nothing_waits(&servers);
    Ok(())
}

/// Also where another program has made the lock last for ever.
#[test]
fn i8_readers_behind_a_leaving_writer_get_the_lock() -> TestResult {
    for is_without_end in [false, true] {
        let (servers, [one, two, three]) = with_managers(far);
        let first = read(&one, &servers);
        let cancel = CancelHandle::new();
        let lock = two.rw_lock(NAME).cancelled_by(&cancel);
        let writer = queue_up(&two, move || lock.write());
        wait_until_listed(&servers, NAME, 1);
        let readers = [&three, &three, &one].map(queue_reader);
        wait_until_listed_readers(&servers, 3);
        if is_without_end {
            command_all(&servers, &["PERSIST", NAME]);
        }

        cancel.cancel();

        assert!(matches!(join(writer), Err(AcquireError::Cancelled)));
        let guards = readers.map(|it| join(it).unwrap());
        eventually("all read on all servers", || entries(&servers) == [4, 4, 4]);
        assert!(first.is_valid());
        drop((first, guards));
        nothing_waits(&servers);
    }
    Ok(())
}

#[test]
fn i8_a_dead_writer_on_the_list_blocks_no_reader() -> TestResult {
    let (servers, [one, two]) = with_managers(far);
    let first = read(&one, &servers);
    // One that was notified over its connection, and one that polls.
    for (since, client) in [("5", "00000000000000aa"), ("5.5", "00000000000000bb")] {
        let member = &member(client, "w", &client.repeat(2));
        for server in &servers {
            server.command(&["ZADD", &list(NAME), since, member])?;
            set_px(server, &mark(NAME), "", 600_000);
        }
        let mut guard = None;
        // RACE: who gets in has asked a majority. The others take it off their lists when they are asked again.
        let is_listed = |it: &Server| members_of(it, NAME).contains(member);
        eventually("a reader gets in", || {
            guard = two.rw_lock(NAME).try_read().ok();
            guard.is_some() && !servers.iter().any(is_listed)
        });
        drop(guard);
    }
    drop(first);
    drop(one.rw_lock(NAME).try_write()?);
    nothing_waits(&servers);
    Ok(())
}

/// As where its connections were cut when it gave up, for longer than its leave command is kept.
#[test]
fn i8_an_ended_writer_of_a_live_process_blocks_no_reader() -> TestResult {
    let (servers, [one, two, three]) = with_managers(far);
    let first = read(&one, &servers);
    let cancel = CancelHandle::new();
    let lock = two.rw_lock(NAME).cancelled_by(&cancel);
    let writer = queue_up(&two, move || lock.write());
    wait_until_listed(&servers, NAME, 1);
    let member = members_of(&servers[0], NAME).remove(0);
    cancel.cancel();
    assert!(matches!(join(writer), Err(AcquireError::Cancelled)));
    wait_until_listed(&servers, NAME, 0);
    for server in &servers {
        server.command(&["ZADD", &list(NAME), "1", &member])?;
        set_px(server, &mark(NAME), "", 600_000);
    }

    let second = three.rw_lock(NAME).try_read_for(PATIENCE)?;

    wait_until_listed(&servers, NAME, 0);
    drop((first, second));
    nothing_waits(&servers);
    Ok(())
}

/// The fault of other read-write locks over Redis: readers that go on reading keep what a dead one has left alive.
#[test]
fn i6_a_dead_reader_delays_a_writer_by_its_ttl_only_while_others_read() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(near(&servers), 3);
    let mut child = child("kinds::rw_lock::child_that_reads", &servers.urls());
    assert_eq!(child.hear(), "held");
    let other = read(&locks, &servers);
    child.signal(rustix::process::Signal::KILL);
    child.wait();
    other.extend(secs(600))?;

    other.release()?;

    // A release waits for a majority.
    let is_short = |left: i64| left <= 2_000 && left != -1;
    eventually("no longer than the dead one's", || {
        servers.iter().all(|it| is_short(it.pttl(NAME)))
    });
    drop(locks.rw_lock(NAME).write()?);
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_reads() {
    let Some(urls) = parent_urls() else { return };
    let locks = with_ttl(urls, secs(2)).build().unwrap();
    let mut guard = None;
    eventually("the lock can be taken", || {
        guard = locks.rw_lock(NAME).try_read().ok();
        guard.is_some()
    });
    say("held");
    wait_for_parent();
}

/// A server that refused it has it in its list, and gets the entry by an extension before it hands the lock over.
#[test]
fn h22_a_hand_over_to_a_reader_shortens_no_entry_it_has() -> TestResult {
    let (servers, [one, two]) = with_managers(near);
    let last = &servers[2];
    set_px(last, NAME, "another's", 600_000);
    let first = one.rw_lock(NAME).read()?;
    eventually("it is in the list there", || {
        members_of(last, NAME).len() == 1
    });
    del(last, NAME);
    eventually("it reads there too", || {
        first.extend(LONG).unwrap();
        last.exists(readers(NAME))
    });

    let second = read(&two, &servers);
    second.release()?;

    let left = last.pttl(NAME);
    assert!(300_000 < left, "{left} ms are left");
    // Longer than the life of a lock that is handed over. Then another server loses the lock.
    thread::sleep(ms(1_100));
    del(&servers[0], NAME);
    let writer = two.rw_lock(NAME).try_write();
    assert!(first.is_valid());
    assert_held(&writer.unwrap_err());
    Ok(())
}
