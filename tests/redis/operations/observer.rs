//! What an observer is told.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use devnodes::{PATIENCE, Servers, eventually};
use quorlock::error::{NodeFailure, QuarantineReason, RoundLoss};
use quorlock::observer::{Event, Observer};
use quorlock::{AcquireError, Builder, CancelHandle, LockGuard, LockManager, LostReason};

use crate::support::*;
use crate::waiting::lists::hold;

/// Remembers all that it is told.
#[derive(Default)]
struct Told(Mutex<Vec<Event>>);

impl Observer for Told {
    fn event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Told {
    fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    /// How many are so.
    fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.all().iter().filter(|it| is(it)).count()
    }

    /// Reasons of all losses.
    fn losses(&self) -> Vec<LostReason> {
        self.collect(|event| match event {
            Event::Lost { why, .. } => Some(*why),
            _ => None,
        })
    }

    fn collect<T>(&self, of: impl Fn(&Event) -> Option<T>) -> Vec<T> {
        self.all().iter().filter_map(of).collect()
    }

    #[track_caller]
    fn in_the_end(&self, what: &str, is: impl Fn(&Event) -> bool) {
        eventually(what, || 0 < self.count(&is));
    }

    /// What was told of the locks that the test is about, in words.
    fn story(&self) -> Vec<&'static str> {
        self.all().iter().filter_map(word).collect()
    }
}

/// What an event says about a lock; none if it is about a node, or the lock with which a test connects.
fn word(event: &Event) -> Option<&'static str> {
    let (lock, word) = match event {
        Event::Began { lock, .. } => (lock, "began"),
        Event::Acquired { lock, .. } => (lock, "acquired"),
        Event::NotAcquired { lock, .. } => (lock, "not acquired"),
        Event::Round {
            lock,
            outcome: Ok(()),
            ..
        } => (lock, "won"),
        Event::Round { lock, .. } => (lock, "lost round"),
        Event::Released {
            lock,
            confirmed: true,
            ..
        } => (lock, "released"),
        Event::Released { lock, .. } => (lock, "released, not confirmed"),
        Event::Lost { lock, .. } => (lock, "lost"),
        Event::Extended { lock, .. } => (lock, "extended"),
        Event::NotExtended { lock, .. } => (lock, "not extended"),
        Event::Healed { lock, .. } => (lock, "healed"),
        _ => return None,
    };
    (lock.name() != b"warm-up").then_some(word)
}

/// What an event says about a node that goes, comes, falls silent or answers again.
fn change(event: &Event) -> Option<String> {
    let (node, what) = match event {
        Event::NodeUp { node, .. } => (node, "is up"),
        Event::NodeDown { node, .. } => (node, "is down"),
        Event::NodeSilent { node, .. } => (node, "is silent"),
        Event::NodeAnswers { node, .. } => (node, "answers"),
        _ => return None,
    };
    Some(format!("{node} {what}"))
}

fn observed(builder: Builder) -> (LockManager, Arc<Told>) {
    let told = Arc::new(Told::default());
    let builder = builder.observer(Arc::<Told>::clone(&told));
    (builder.build().unwrap(), told)
}

/// The same, connected to three servers.
fn connected_and_observed(builder: Builder) -> (LockManager, Arc<Told>) {
    let (locks, told) = observed(builder);
    connect(&locks, 3);
    (locks, told)
}

#[test]
fn events_of_a_hold_have_its_name_and_class_from_start_to_end() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(builder(servers.urls()));

    let guard = locks.mutex("order:7").class("order").lock()?;
    let expected_token = guard.fencing_token();
    guard.release()?;
    locks.shutdown();

    assert_eq!(told.story(), ["began", "won", "acquired", "released"]);
    for event in told.all() {
        match event {
            Event::Acquired { lock, token, .. } if lock.name() == b"order:7" => {
                assert_eq!(
                    (token, lock.class(), lock.to_string().as_str()),
                    (expected_token, "order", "order:7")
                );
            }
            Event::Acquired { lock, .. } => assert_eq!(lock.class(), "other"),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn a_failed_call_is_an_event_with_its_error() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(builder(servers.urls()));
    let guard = hold(&manager(&servers), &servers, "report");

    let err = locks.mutex("report").try_lock().unwrap_err();
    assert_held(&err);
    let cancel = CancelHandle::new();
    cancel.cancel();
    assert!(locks.mutex("report").cancelled_by(&cancel).lock().is_err());
    for server in &servers {
        server.command(&["LPUSH", "a list", "x"])?;
    }
    assert!(locks.mutex("a list").lock().is_err());
    let quarantined = builder(servers.urls()).quarantine(true).max_ttl(LONG);
    let (new, told_of_new) = observed(quarantined.outage_timeout(secs(0)));
    assert_no_quorum(&new.mutex("free").try_lock().unwrap_err());
    // What is refused before any node could be asked is not told.
    locks.shutdown();
    assert_eq!(
        locks.mutex("report").lock().unwrap_err(),
        AcquireError::ShutDown
    );
    assert!(new.mutex("quorlock:x").lock().is_err());

    new.shutdown();
    let errors = told.collect(|event| match event {
        Event::NotAcquired { error, .. } => Some(error.clone()),
        _ => None,
    });
    assert_matches!(
        errors[..],
        [
            AcquireError::Held { .. },
            AcquireError::Cancelled,
            AcquireError::KeyInUse { .. }
        ]
    );
    assert_eq!(told_of_new.story(), ["began", "lost round", "not acquired"]);
    let outcomes = told.collect(|event| match event {
        Event::Round { outcome, .. } => Some(*outcome),
        _ => None,
    });
    let held = outcomes.iter().filter(|it| **it == Err(RoundLoss::Held));
    assert_eq!(held.count(), 1);
    drop(guard);
    Ok(())
}

#[test]
fn a_loss_is_one_event_of_its_extension_or_release() -> TestResult {
    for extends in [true, false] {
        let servers = Servers::start(3)?;
        let (locks, told) = connected_and_observed(builder(servers.urls()).ttl(LONG));
        let guard = hold(&locks, &servers, "report");

        del_all(&servers, "report");
        if extends {
            assert!(guard.extend(LONG).is_err());
            drop(guard);
        } else {
            assert!(guard.release().is_err());
        }
        locks.shutdown();

        let mut expected = vec!["began", "won", "acquired", "not extended", "lost"];
        expected.retain(|it| extends || *it != "not extended");
        // The first of the removed keys is one of a minority.
        let mut story = told.story();
        story.retain(|it| *it != "healed");
        assert_eq!(story, expected);
        assert_eq!(told.losses(), [LostReason::Gone]);
    }
    Ok(())
}

#[test]
fn the_end_of_an_abandoned_lease_is_an_event() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(builder(servers.urls()));
    let ending = locks.mutex("report").ttl(secs(20)).renew(false).lock()?;
    drop(ending);
    locks.shutdown();
    assert_eq!(told.losses(), []);

    let (locks, told) = observed(with_ttl(servers.urls(), ms(200)).renew(false));
    std::mem::forget(lock_in_the_end(&locks, "other"));
    eventually("the loss is told", || {
        told.losses() == [LostReason::LeaseOver]
    });
    Ok(())
}

#[test]
fn events_of_extensions_have_the_rest_of_the_lease() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(impatient(servers.urls()));
    let guard = hold(&locks, &servers, "report");
    // On a busy machine an answer may come too late, and a later one in time.
    eventually("it is extended", || guard.extend(LONG).is_ok());

    servers[0].pause()?;
    servers[1].pause()?;
    assert!(guard.extend(LONG).is_err());
    eventually("the failure is told", || {
        told.story().contains(&"not extended")
    });

    let extended = told.collect(|event| match event {
        Event::Extended { left, .. } => Some(*left),
        _ => None,
    });
    let failed = told.collect(|event| match event {
        Event::NotExtended { left, .. } => Some(*left),
        _ => None,
    });
    for lefts in [extended, failed] {
        let is_most = |left: &Duration| LONG / 2 < *left && *left < LONG;
        assert!(!lefts.is_empty() && lefts.iter().all(is_most), "{lefts:?}");
    }
    assert_eq!(told.losses(), []);
    servers[0].resume()?;
    servers[1].resume()?;
    Ok(())
}

#[test]
fn a_healed_key_is_an_event_with_its_node() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(builder(servers.urls()).ttl(LONG));
    let guard = hold(&locks, &servers, "report");

    del(&servers[1], "report");
    guard.extend(LONG)?;

    told.in_the_end(
        "it is told",
        |it| matches!(it, Event::Healed { node, .. } if node.index() == 1),
    );
    Ok(())
}

#[test]
fn a_node_that_fails_recovers_or_stalls_is_an_event() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) =
        connected_and_observed(builder(servers.urls()).response_timeout(ms(250)).ttl(LONG));
    eventually("all are up", || {
        told.count(|it| matches!(it, Event::NodeUp { .. })) == 3
    });
    let cycle_until = |what: &str| {
        eventually(what, || {
            let _ = locks.mutex("warm-up").try_lock();
            told.all().iter().filter_map(change).any(|it| it == what)
        });
    };

    servers[0].kill()?;
    cycle_until("n0 is down");
    servers[0].restart()?;
    eventually("n0 is up again", || {
        let _ = locks.mutex("warm-up").try_lock();
        told.count(|it| change(it).as_deref() == Some("n0 is up")) == 2
    });

    servers[1].pause()?;
    cycle_until("n1 is silent");
    servers[1].resume()?;
    cycle_until("n1 answers");

    let addresses: Vec<_> = servers.iter().map(shown_address).collect();
    for event in told.all() {
        if let Event::NodeUp { node, address, .. } | Event::NodeDown { node, address, .. } = event {
            assert_eq!(*address, *addresses[node.index()]);
        }
    }
    locks.shutdown();
    let reasons = told.collect(|event| match event {
        Event::NodeDown { why, .. } => Some(why.clone()),
        _ => None,
    });
    let ends = reasons.iter().filter(|it| **it == NodeFailure::ShutDown);
    assert_eq!(ends.count(), 3);
    Ok(())
}

#[test]
fn each_answer_is_an_event_with_its_node_and_failure() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(builder(servers.urls()).ttl(LONG));
    for node in 0..3 {
        let is_good = |it: &Event| matches!(it, Event::NodeReply { node: it, failure: None, .. } if it.index() == node);
        told.in_the_end("a good answer", is_good);
    }

    servers[2].command(&["CONFIG", "SET", "min-replicas-to-write", "1"])?;
    drop(locks.mutex("report").try_lock()?);

    told.in_the_end("a failure", |it| match it {
        Event::NodeReply {
            node,
            failure: Some(failure),
            ..
        } => node.index() == 2 && matches!(failure, NodeFailure::WritesRefused { .. }),
        _ => false,
    });
    Ok(())
}

#[test]
fn checks_begin_no_quarantine_without_lock_calls() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = observed(builder(servers.urls()).quarantine(true));
    for _ in 0..3 {
        assert!(locks.check_nodes().iter().all(|it| !it.is_fine()));
        assert_eq!(locks.stats().quarantined, []);
    }
    servers[1].restart_empty()?;
    eventually("it is connected again", || {
        locks.check_nodes().iter().all(|it| it.version.is_some())
    });

    assert!(locks.mutex("report").try_lock().is_err());

    let is_quarantine = |it: &Event| matches!(it, Event::NodeQuarantined { .. });
    told.in_the_end("now it begins", is_quarantine);
    assert_ne!(locks.stats().quarantined, []);
    let all = told.all();
    let mut before = all
        .iter()
        .take_while(|it| !matches!(it, Event::Began { .. }));
    assert!(!before.any(is_quarantine), "{all:?}");
    Ok(())
}

#[test]
fn a_quarantine_is_an_event_with_a_reason() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = observed(builder(servers.urls()).quarantine(true));
    assert!(locks.mutex("report").try_lock().is_err());

    for node in 0..3 {
        told.in_the_end("it is told", |it| match it {
            Event::NodeQuarantined {
                node: it,
                left,
                why,
                ..
            } => it.index() == node && *why == QuarantineReason::New && !left.is_zero(),
            _ => false,
        });
    }
    Ok(())
}

#[test]
fn every_call_and_every_hold_has_one_end_event() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(builder(servers.urls()).ttl(LONG));
    let cancel = CancelHandle::new();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (mutex, cancel) = (locks.mutex("report").cancelled_by(&cancel), cancel.clone());
            thread::spawn(move || {
                for turn in 0..50 {
                    match (thread + turn) % 3 {
                        0 => drop(mutex.try_lock()),
                        1 => drop(mutex.try_lock_for(ms(2))),
                        _ => drop(mutex.lock()),
                    }
                    if turn == 40 {
                        cancel.cancel();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(join);
    let held = locks.mutex("kept").lock()?;
    locks.shutdown();
    assert!(locks.mutex("report").lock().is_err());
    drop(held);

    let of = |word: &str| told.story().into_iter().filter(|it| *it == word).count();
    assert!(0 < of("not acquired") && 0 < of("released"));
    assert_eq!(of("began"), of("acquired") + of("not acquired"));
    assert_eq!(of("acquired"), of("released") + of("lost"));
    assert_eq!(told.losses(), [LostReason::ShutDown]);
    Ok(())
}

#[test]
fn every_kind_of_lock_has_its_class_in_the_same_events() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, told) = connected_and_observed(builder(servers.urls()).ttl(LONG));
    let rw_lock = locks.rw_lock("catalog").class("jobs");
    let mut told_before = told.all().len();
    let mut tells = |what: &str| {
        let story = |events: &[Event]| events.iter().filter_map(word).collect::<Vec<_>>();
        eventually(what, || 4 <= story(&told.all()[told_before..]).len());
        let events = told.all().split_off(told_before);
        told_before += events.len();
        let expected = ["began", "won", "acquired", "released"];
        assert_eq!(story(&events), expected, "{what}");
        for event in events.into_iter().filter(|event| word(event).is_some()) {
            if let Event::Began { lock, .. }
            | Event::Acquired { lock, .. }
            | Event::Released { lock, .. } = event
            {
                assert_eq!(lock.class(), "jobs", "{what}");
                assert_eq!(lock.shared_class().map(|it| &**it), Some("jobs"), "{what}");
            }
        }
    };

    drop(locks.mutex("report").class("jobs").lock()?);
    tells("a mutex");
    let again = locks.reentrant_mutex("again").class("jobs");
    drop((again.lock()?, again.lock()?));
    tells("a lock that its thread takes twice");
    drop(rw_lock.read()?);
    tells("a reader");
    drop(rw_lock.write()?);
    tells("a writer");
    drop(locks.multi_lock(["a", "b"]).class("jobs").lock()?);
    tells("several names");
    drop(locks.semaphore("mail", 2).class("jobs").acquire()?);
    tells("a permit");
    Ok(())
}

#[test]
fn h11_an_observer_may_ask_manager_and_guards_whenever_it_is_called() -> TestResult {
    let servers = Servers::start(3)?;
    // Not the manager itself, which would keep itself alive, but what a program has of it somewhere.
    let known: Arc<OnceLock<(LockManager, LockGuard)>> = Arc::default();
    let asks = Arc::clone(&known);
    let observer = Arc::new(move |_: &Event| {
        if let Some((locks, guard)) = asks.get() {
            let _ = (
                locks.stats(),
                locks.held(),
                guard.is_valid(),
                guard.remaining(),
                guard.lost().try_recv(),
            );
        }
    });
    let options = builder(servers.urls()).ttl(LONG);
    let locks = options.observer(observer).build()?;
    let watched = lock_in_the_end(&locks, "watched");
    assert!(known.set((locks.clone(), watched)).is_ok());
    connect(&locks, 3);
    servers[0].kill()?;
    let failures = locks.stats().connection_failures;
    eventually("it is noticed", || {
        drop(locks.mutex("warm-up").try_lock());
        failures < locks.stats().connection_failures
    });
    servers[0].restart()?;
    let guard = lock_in_the_end(&locks, "report");
    guard.extend(LONG)?;
    guard.release()?;
    del_all(&servers, "watched");
    assert!(known.get().unwrap().1.extend(LONG).is_err());
    locks.shutdown();
    Ok(())
}

#[test]
fn an_observer_that_drops_the_last_manager_ends_it() -> TestResult {
    let servers = Servers::start(3)?;
    let last: Arc<Mutex<Option<LockManager>>> = Arc::default();
    let drops = Arc::clone(&last);
    let observer: Arc<dyn Observer> = Arc::new(move |event: &Event| {
        if let Event::NodeDown { .. } = event {
            let locks = drops.lock().unwrap().take();
            drop(locks);
        }
    });
    let locks = builder(servers.urls())
        .ttl(LONG)
        .shutdown_grace(ms(100))
        .observer(Arc::clone(&observer))
        .build()?;
    connect(&locks, 3);
    *last.lock().unwrap() = Some(locks);

    servers[0].kill()?;

    eventually("it is dropped", || last.lock().unwrap().is_none());
    // Every thread of the manager has it.
    eventually("nothing is left of the manager", || {
        Arc::strong_count(&observer) == 1
    });
    Ok(())
}

#[test]
fn h19_an_observer_that_blocks_delays_no_renewal_and_no_call() -> TestResult {
    let servers = Servers::start(3)?;
    let ((reached, is_reached), (let_go, waits)) = (bounded(1), bounded::<()>(0));
    let observer = Arc::new(move |event: &Event| {
        if let Event::Extended { .. } = event {
            let _ = reached.try_send(());
            let _ = waits.recv_timeout(PATIENCE);
        }
    });
    let locks = builder(servers.urls())
        .response_timeout(ms(750))
        .ttl(secs(4))
        .observer(observer)
        .build()?;
    connect(&locks, 3);
    let guard = lock_in_the_end(&locks, "report");
    is_reached.recv_timeout(PATIENCE).expect("it is reached");

    let before = locks.stats().extensions;
    eventually("it is renewed", || before + 3 <= locks.stats().extensions);
    drop(lock_in_the_end(&locks, "other"));

    guard.check()?;
    drop(let_go);
    Ok(())
}
