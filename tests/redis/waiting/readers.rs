//! Waiting for a read-write lock: who goes in before whom, and that everybody does in the end.

use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};

use devnodes::{PATIENCE, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeReport};
use quorlock::{AcquireError, CancelHandle, LockManager, ReadGuard, WriteGuard};

use crate::kinds::rw_lock::{entries, read};
use crate::support::*;
use crate::waiting::lists::*;

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
    let first = read(&one, &servers, NAME);
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
        let first = read(&one, &servers, NAME);
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
        eventually("all read on all servers", || {
            entries(&servers, NAME) == [4, 4, 4]
        });
        assert!(first.is_valid());
        drop((first, guards));
        nothing_waits(&servers);
    }
    Ok(())
}

#[test]
fn i8_a_dead_writer_on_the_list_blocks_no_reader() -> TestResult {
    let (servers, [one, two]) = with_managers(far);
    let first = read(&one, &servers, NAME);
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
    let first = read(&one, &servers, NAME);
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
    let mut child = child("waiting::readers::child_that_reads", &servers.urls());
    assert_eq!(child.hear(), "held");
    let other = read(&locks, &servers, NAME);
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
    let readers = format!("quorlock:readers:{NAME}");
    eventually("it reads there too", || {
        first.extend(LONG).unwrap();
        last.exists(&readers)
    });

    let second = read(&two, &servers, NAME);
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
