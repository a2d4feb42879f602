//! Time that is added.

use std::thread;
use std::time::Duration;

use devnodes::{Client, PATIENCE, eventually};
use quorlock::testing::{Nodes, Refusal};
use quorlock::{
    AcquireError, LockGuard, LockManager, Lost, NodeFailure, Permit, ReadGuard, ReentrantGuard, WriteGuard,
};

use crate::{LONG, TestResult, connected, failures, ms, patient, three};

/// A hold of each kind of lock.
struct Guards {
    mutex: LockGuard,
    several: LockGuard,
    reentrant: ReentrantGuard,
    writer: WriteGuard,
    permit: Permit,
    reader: ReadGuard,
}

impl Guards {
    fn try_take(locks: &LockManager) -> Result<Guards, AcquireError> {
        Ok(Guards {
            mutex: locks.mutex("mutex").try_lock()?,
            several: locks.multi(["one", "two"]).try_lock()?,
            reentrant: locks.reentrant_mutex("reentrant").try_lock()?,
            writer: locks.rw_lock("written").try_write()?,
            permit: locks.semaphore("permits", 1).try_acquire()?,
            reader: locks.rw_lock("read").try_read()?,
        })
    }

    fn all_but_the_reader(&self) -> [&LockGuard; 5] {
        [&self.mutex, &self.several, &self.reentrant, &self.writer, &self.permit]
    }

    fn valid(&self) -> usize {
        let others = self.all_but_the_reader().into_iter().filter(|it| it.is_valid() && it.check().is_ok()).count();
        others + usize::from(self.reader.is_valid())
    }

    fn remaining(&self) -> Vec<Duration> {
        self.all_but_the_reader().into_iter().map(LockGuard::remaining).chain([self.reader.remaining()]).collect()
    }

    fn lost(&self) -> Vec<Option<Lost>> {
        let others = self.all_but_the_reader().into_iter().map(LockGuard::lost).chain([self.reader.lost()]);
        others.map(|it| it.recv_timeout(PATIENCE).ok()).collect()
    }
}

/// Whether somebody else has a lock of each kind.
fn all_are_held(locks: &LockManager) -> bool {
    let held = |it: Result<(), AcquireError>| it.is_err_and(|it| it.is_held());
    held(locks.mutex("mutex").try_lock().map(drop))
        && held(locks.multi(["one", "two"]).try_lock().map(drop))
        && held(locks.reentrant_mutex("reentrant").try_lock().map(drop))
        && held(locks.rw_lock("written").try_write().map(drop))
        && held(locks.semaphore("permits", 1).try_acquire().map(drop))
        && held(locks.rw_lock("read").try_write().map(drop))
}

#[test]
fn a_lock_of_any_kind_is_lost_at_once_when_its_ttl_is_added_and_anybody_may_take_it() -> TestResult {
    let (nodes, locks) = three()?;
    let elsewhere = connected(patient(&nodes), 3);
    let guards = Guards::try_take(&locks)?;
    assert!(all_are_held(&elsewhere));

    nodes.advance(LONG);

    assert_eq!(guards.remaining(), [Duration::ZERO; 6]);
    assert_eq!(guards.valid(), 0);
    assert_eq!(guards.lost(), [Some(Lost::Expired); 6]);
    assert_eq!(nodes.holder("mutex"), None);
    assert_eq!(Guards::try_take(&elsewhere)?.valid(), 6);
    Ok(())
}

#[test]
fn a_lock_of_any_kind_is_extended_when_that_is_due_and_is_held_for_as_long_as_its_holder_is_awake() -> TestResult {
    let (nodes, locks) = three()?;
    let elsewhere = connected(patient(&nodes), 3);
    let guards = Guards::try_take(&locks)?;
    // Less than the longest hold in all, and half of it is more than the ttl.
    for step in 1..=6 {
        nodes.advance(LONG / 2);

        assert_eq!((step, guards.valid()), (step, 6));
        assert!(guards.remaining().iter().all(|it| LONG / 2 < *it), "{:?}", guards.remaining());
    }
    assert_eq!(locks.stats().extensions, 36);
    assert_eq!(locks.stats().locks_lost, 0);
    let is_long = |it: Duration| LONG / 2 < it;
    eventually("all nodes have it", || nodes.holder("mutex").and_then(|it| it.remaining).is_some_and(is_long));
    assert!(all_are_held(&elsewhere));
    Ok(())
}

#[test]
fn what_is_added_is_neither_the_real_clock_nor_that_of_other_nodes_and_their_managers() -> TestResult {
    let (nodes, locks) = three()?;
    let (others, elsewhere) = three()?;
    let guards = (Guards::try_take(&locks)?, Guards::try_take(&elsewhere)?);

    others.advance(2 * LONG);

    assert_eq!((guards.0.valid(), guards.1.valid()), (6, 0));
    // In the midst of a call of one, the other is what it is.
    let (tell, told) = std::sync::mpsc::channel();
    let guard = locks.mutex("inside").try_lock()?;
    let late = elsewhere.mutex("late").try_lock()?;
    late.on_lost(move |_| {
        let _ = tell.send((guard.is_valid(), guard.release().is_ok()));
    });
    others.advance(LONG);
    assert_eq!(told.recv_timeout(PATIENCE)?, (true, true));
    assert_eq!((locks.stats().locks_lost, locks.stats().clock_steps), (0, 0));
    assert_eq!((elsewhere.stats().locks_lost, elsewhere.stats().clock_steps), (7, 0));
    assert!(nodes.holder("mutex").is_some() && others.holder("mutex").is_none());
    Ok(())
}

/// A manager whose calls do not ask again by themselves while a test runs.
fn slow_to_ask(nodes: &Nodes) -> LockManager {
    connected(patient(nodes).retry_delay(Duration::from_secs(60), Duration::from_secs(60)), 3)
}

#[test]
fn a_call_that_waits_finds_its_deadline_nearer() -> TestResult {
    let nodes = Nodes::start(3)?;
    let locks = slow_to_ask(&nodes);
    let _other = nodes.hold("report").unwrap();
    let report = locks.mutex("report");
    let waits = thread::spawn(move || report.try_lock_for(LONG).map(drop));
    eventually("it has asked, and waits", || locks.stats().rounds_held != 0 && locks.stats().waiting == 1);

    nodes.advance(LONG - Duration::from_secs(60));
    assert!(!waits.is_finished());
    nodes.advance(Duration::from_secs(60));

    eventually("it is over", || waits.is_finished());
    let err = waits.join().unwrap().unwrap_err();
    assert!(matches!(&err, AcquireError::Held { waited, .. } if LONG <= *waited), "{err:?}");
    Ok(())
}

#[test]
fn a_call_that_waits_for_a_holder_that_is_gone_gets_the_lock_when_its_ttl_is_added() -> TestResult {
    let nodes = Nodes::start(3)?;
    let locks = slow_to_ask(&nodes);
    let other = nodes.hold("report").unwrap();
    let report = locks.mutex("report");
    let waits = thread::spawn(move || report.lock().map(drop));
    eventually("it has asked, and waits", || locks.stats().rounds_held != 0 && locks.stats().waiting == 1);

    nodes.advance(Duration::from_secs(60 * 60));

    eventually("it is over", || waits.is_finished());
    waits.join().unwrap()?;
    drop(other);
    Ok(())
}

#[test]
fn a_quarantine_is_over_when_its_time_is_added_and_who_waits_for_that_goes_on() -> TestResult {
    let nodes = Nodes::start(3)?;
    let locks = patient(&nodes).quarantine(true).max_ttl(LONG).outage_timeout(PATIENCE).build()?;
    let quarantined = |err: AcquireError| failures(&err).iter().any(|it| matches!(it, NodeFailure::Quarantined { .. }));
    eventually("they have no vote", || locks.mutex("report").try_lock().is_err_and(quarantined));
    eventually("all of them are connected", || 3 <= locks.stats().connections);
    let report = locks.mutex("report");
    let waits = thread::spawn(move || report.lock().map(drop));
    eventually("it waits", || locks.stats().waiting == 1);

    nodes.advance(LONG / 2);
    assert!(locks.mutex("another").try_lock().is_err_and(quarantined));
    // What is known of a node's memory is known to the second.
    nodes.advance(LONG / 2 + Duration::from_secs(10));

    eventually("it is over", || waits.is_finished());
    waits.join().unwrap()?;
    assert!(locks.mutex("another").try_lock().is_ok());
    assert_eq!(locks.stats().clock_steps, 0);
    Ok(())
}

#[test]
fn what_is_added_is_no_time_without_an_answer() -> TestResult {
    let nodes = Nodes::start(1)?;
    let locks = connected(patient(&nodes), 1);
    nodes[0].pause();
    let report = locks.mutex("report").ttl(2 * LONG);
    let waits = thread::spawn(move || report.try_lock_for(3 * LONG).map(drop));
    eventually("it waits", || locks.stats().waiting == 1);

    nodes.advance(LONG);
    nodes[0].resume();

    eventually("it is over", || waits.is_finished());
    waits.join().unwrap()?;
    assert_eq!(locks.stats().connection_failures, 0);
    Ok(())
}

#[test]
fn a_lock_that_cannot_be_extended_is_lost_when_its_time_has_passed() -> TestResult {
    let (nodes, locks) = three()?;
    let guard = locks.mutex("report").try_lock()?;
    nodes.iter().for_each(|it| it.refuse(Refusal::OutOfMemory));

    nodes.advance(LONG / 2);
    assert!(guard.is_valid());
    assert_ne!(locks.stats().extensions_failed, 0, "it was due");
    nodes.advance(LONG / 2);

    assert!(!guard.is_valid());
    assert_eq!(guard.lost().recv_timeout(PATIENCE)?, Lost::Expired);
    Ok(())
}

#[test]
fn the_longest_hold_is_over_and_a_lock_without_renewal_is_over_when_that_was_added() -> TestResult {
    let nodes = Nodes::start(3)?;
    let locks = connected(patient(&nodes).max_hold(Some(3 * LONG / 2)), 3);
    let (long, short) = (locks.mutex("long").try_lock()?, locks.mutex("short").renew(false).try_lock()?);
    nodes.advance(LONG / 2);
    assert!(long.is_valid() && short.is_valid() && short.remaining() <= LONG / 2);
    short.extend(LONG)?;
    assert!(LONG / 2 < short.remaining());
    nodes.advance(LONG / 2);
    assert!(long.is_valid() && short.is_valid());
    nodes.advance(LONG / 2);
    assert_eq!((long.check(), short.check()), (Err(Lost::MaxHold), Err(Lost::LeaseOver)));
    assert_eq!(locks.stats().clock_steps, 0);
    Ok(())
}

#[test]
fn a_manager_that_was_made_otherwise_takes_it_for_a_step_of_the_clocks() -> TestResult {
    let nodes = Nodes::start(3)?;
    let locks = LockManager::builder(nodes.urls()).quarantine(false).response_timeout(ms(2_000)).ttl(LONG);
    let locks = connected(locks, 3);
    let guard = locks.mutex("report").try_lock()?;
    nodes.advance(2 * LONG);
    eventually("it is lost", || guard.extend(LONG).is_err() && !guard.is_valid());
    assert_ne!(locks.stats().clock_steps, 0);
    Ok(())
}

#[test]
fn no_time_and_too_much_time_can_be_added() -> TestResult {
    let (nodes, locks) = three()?;
    let guard = locks.mutex("report").try_lock()?;
    nodes.advance(Duration::ZERO);
    assert!(guard.is_valid());
    nodes.advance(Duration::MAX);
    assert!(!guard.is_valid());
    nodes.advance(Duration::MAX);
    assert!(locks.mutex("report").try_lock()?.is_valid());
    Ok(())
}

#[test]
fn time_that_is_added_before_anybody_connects_is_time_that_a_node_has_been_up() -> TestResult {
    let nodes = Nodes::start(1)?;
    nodes.advance(LONG);
    let mut client = Client::connect(nodes[0].url().trim_start_matches("redis://").parse()?, None)?;
    let info = client.command(&["INFO"])?;
    let uptime = info.as_str().and_then(|it| it.split_once("uptime_in_seconds:")?.1.lines().next()?.parse().ok());
    assert!(uptime >= Some(LONG.as_secs()), "{uptime:?}");
    Ok(())
}
