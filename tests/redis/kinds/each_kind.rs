//! What holds for every kind of lock, and rests on scripts of that kind.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::{self, JoinHandle};

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::inspection::Inspection;
use quorlock::{AcquireError, CancelHandle, Hold, LockManager, LostReason};
use rustix::process::Signal;

use crate::support::*;
use crate::waiting::lists::*;

/// Kinds of locks, each of a name of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Mutex,
    Reader,
    Writer,
    Several,
    Permit,
}

pub(crate) const KINDS: [Kind; 5] = [
    Kind::Mutex,
    Kind::Reader,
    Kind::Writer,
    Kind::Several,
    Kind::Permit,
];

impl Kind {
    pub(crate) fn try_take(self, locks: &LockManager) -> Result<Hold, AcquireError> {
        Ok(match self {
            Kind::Mutex => locks.mutex("report").try_lock()?.into(),
            Kind::Reader => locks.rw_lock("read").try_read()?.into(),
            Kind::Writer => locks.rw_lock("written").try_write()?.into(),
            Kind::Several => locks.multi_lock(["a", "b"]).try_lock()?.into(),
            Kind::Permit => locks.semaphore("mail", 1).try_acquire()?.into(),
        })
    }

    /// What its holder refuses.
    pub(crate) fn try_against(self, locks: &LockManager) -> Result<Hold, AcquireError> {
        match self {
            Kind::Reader => Ok(locks.rw_lock("read").try_write()?.into()),
            _ => self.try_take(locks),
        }
    }

    /// Waits in a thread for what its holder keeps from others.
    pub(crate) fn wait(
        self,
        locks: &LockManager,
        cancel: &CancelHandle,
    ) -> JoinHandle<Result<Hold, AcquireError>> {
        let (locks, cancel) = (locks.clone(), cancel.clone());
        thread::spawn(move || {
            let write = |name| locks.rw_lock(name).cancelled_by(&cancel).write();
            Ok(match self {
                Kind::Mutex => locks.mutex("report").cancelled_by(&cancel).lock()?.into(),
                Kind::Reader => write("read")?.into(),
                Kind::Writer => write("written")?.into(),
                Kind::Several => {
                    let both = locks.multi_lock(["a", "b"]);
                    both.cancelled_by(&cancel).lock()?.into()
                }
                Kind::Permit => {
                    let permits = locks.semaphore("mail", 1);
                    permits.cancelled_by(&cancel).acquire()?.into()
                }
            })
        })
    }

    /// Where such a call is listed.
    pub(crate) fn list(self) -> String {
        match self {
            Kind::Permit => "quorlock:slot-waiting:mail".to_owned(),
            _ => list(self.keys()[0]),
        }
    }

    /// Takes it, and waits until it is on all servers.
    #[track_caller]
    pub(crate) fn take(self, locks: &LockManager, servers: &Servers) -> Hold {
        let hold = self.try_take(locks).unwrap();
        eventually("it is on all servers", || {
            servers.iter().all(|it| self.is_on(it))
        });
        hold
    }

    /// The keys that a server has while it is held there.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::Mutex => &["report"],
            Kind::Reader => &["read", "quorlock:readers:read"],
            Kind::Writer => &["written"],
            Kind::Several => &["a", "b"],
            Kind::Permit => &["quorlock:slot-0:mail"],
        }
    }

    fn counters(self) -> Vec<String> {
        match self {
            Kind::Mutex => vec![fence("report")],
            Kind::Reader => vec![fence("read")],
            Kind::Writer => vec![fence("written")],
            Kind::Several => vec![fence("a"), fence("b")],
            Kind::Permit => vec!["quorlock:slot-fence-0:mail".to_owned()],
        }
    }

    pub(crate) fn is_on(self, server: &Server) -> bool {
        self.keys().iter().all(|it| server.exists(it))
    }

    fn is_gone_from(self, server: &Server) -> bool {
        !self.keys().iter().any(|it| server.exists(it))
    }
}

#[track_caller]
pub(crate) fn nothing_is_left_of(kinds: &[Kind], servers: &Servers) {
    eventually("nothing is left", || {
        servers
            .iter()
            .all(|server| kinds.iter().all(|it| it.is_gone_from(server)))
    });
}

/// A majority does not answer in time, because `hold` holds something up, until `go_on`.
fn is_late(hold: impl Fn(&Proxy), go_on: impl Fn(&Proxy)) -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    // A manager for each: a node that has not answered one call in time is not asked by the next.
    let locks = KINDS.map(|it| (it, connected(impatient(urls.clone()), 3)));
    nothing_is_left(&servers);
    let before = [1, 2].map(|it| scripts_run(&servers[it]));
    let acquires_and_releases = u64::try_from(2 * KINDS.len())?;

    proxies[1..].iter().for_each(&hold);
    thread::scope(|scope| {
        for (kind, locks) in &locks {
            scope.spawn(move || assert_no_quorum(&kind.try_take(locks).map(drop).unwrap_err()));
        }
    });
    proxies[1..].iter().for_each(go_on);

    for (node, before) in [1, 2].into_iter().zip(before) {
        eventually("acquires and releases have come", || {
            before + acquires_and_releases <= scripts_run(&servers[node])
        });
    }
    nothing_is_left_of(&KINDS, &servers);
    for counter in KINDS.iter().flat_map(|kind| kind.counters()) {
        assert_eq!(servers.holders(&counter), 3, "{counter}: never granted");
    }
    Ok(())
}

#[test]
fn e3_a_late_grant_of_any_kind_is_undone() -> TestResult {
    is_late(Proxy::hold_requests, Proxy::release_requests)
}

#[test]
fn a4_late_grants_of_any_kind_are_released() -> TestResult {
    is_late(Proxy::hold_replies, Proxy::release_replies)
}

#[test]
fn a6_a_command_of_any_kind_that_is_executed_twice_takes_no_token_again() -> TestResult {
    needs!(CommandMonitor);
    let (servers, locks) = start_connected(1, |urls| builder(urls).ttl(LONG).renew(false));
    for kind in KINDS {
        // The first on a connection carries the source.
        drop(kind.take(&locks, &servers));
        let mut monitor = servers[0].client()?;
        monitor.command(&["MONITOR"])?;
        let hold = kind.take(&locks, &servers);
        let words = loop {
            let line = monitor.receive()?;
            let words: Vec<_> = line
                .as_str()
                .unwrap_or_default()
                .split('"')
                .skip(1)
                .step_by(2)
                .collect();
            if matches!(words[..], ["EVALSHA", _, _, first, ..] if first == kind.keys()[0]) {
                break words.into_iter().map(str::to_owned).collect::<Vec<_>>();
            }
        };
        for key in kind.keys() {
            servers[0].command(&["PEXPIRE", key, "60000"])?;
        }
        let seen = || {
            let entries = ["ZRANGE", "quorlock:readers:read", "0", "-1"];
            let counters = kind.counters().into_iter().map(|it| servers[0].get(it));
            let counters: Vec<_> = counters.collect();
            format!("{:?} {counters:?}", servers[0].command(&entries))
        };
        let before = seen();

        let again = servers[0].command(&words)?;

        // Granted, and where that takes a token the counter is not below the proposal.
        let granted = if matches!(kind, Kind::Reader) { 7 } else { 2 };
        let status = again.as_array().and_then(|it| it[0].as_int());
        assert_eq!(status, Some(granted), "{kind:?}: {again:?}");
        for key in kind.keys() {
            assert!((60_001..=600_000).contains(&servers[0].pttl(key)), "{key}");
        }
        assert_eq!(seen(), before, "{kind:?}");
        drop(hold);
        nothing_is_left_of(&[kind], &servers);
    }
    Ok(())
}

/// T1 wins on two servers; the third has not run the command yet, and refuses it: it lost its scripts, or its record is another
/// one. The command is sent once more. Of a permit the release of other slots is on its way by then.
#[test]
fn d8_a_hold_of_any_kind_reaches_a_server_that_refused_it_after_the_round() -> TestResult {
    let spoils: [fn(&Server); 2] = [
        |server| drop(server.command(&["SCRIPT", "FLUSH"]).unwrap()),
        |server| drop(server.command(&["DEL", "quorlock:record"]).unwrap()),
    ];
    for spoil in spoils {
        let servers = Servers::start(3)?;
        let (proxies, urls) = proxies(&servers);
        // No extension, which would heal it.
        let locks = connected(builder(urls).ttl(LONG), 3);
        nothing_is_left(&servers);
        proxies[2].hold_requests();
        let holds = KINDS.map(|kind| kind.try_take(&locks).unwrap());
        spoil(&servers[2]);
        proxies[2].release_requests();
        for kind in KINDS {
            eventually("it is on the third as well", || kind.is_on(&servers[2]));
        }
        drop(holds);
        nothing_is_left_of(&KINDS, &servers);
    }
    Ok(())
}

#[test]
fn d8_a_hold_of_any_kind_outlives_an_empty_restart_of_one_server_after_another() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(secs(20)));
    let holds = KINDS.map(|it| (it, it.take(&locks, &servers)));
    for server in 0..3 {
        servers[server].restart_empty()?;
        for (kind, hold) in &holds {
            eventually("it is there again", || {
                let _ = hold.extend(secs(20));
                kind.is_on(&servers[server])
            });
        }
    }
    assert!(holds.iter().all(|it| it.1.check().is_ok()));
    drop(holds);
    nothing_is_left_of(&KINDS, &servers);
    Ok(())
}

/// A server that has lost the lock grants it to somebody else for a moment, and keeps the larger counter.
#[test]
fn d8_a_contended_hold_of_any_kind_survives_loss_on_each_server() -> TestResult {
    let servers = Servers::start(3)?;
    let build = || connected(builder(servers.urls()).ttl(LONG), 3);
    let (locks, others) = (build(), build());
    let holds = KINDS.map(|it| (it, it.take(&locks, &servers)));
    for server in &servers {
        for (kind, hold) in &holds {
            kind.keys().iter().for_each(|it| del(server, it));
            assert!(kind.try_against(&others).is_err(), "{kind:?}");
            eventually("what they were granted is given back", || {
                let nodes = others.stats().nodes;
                nodes.iter().all(|it| it.unanswered == 0 && it.queued == 0)
            });
            eventually("it is there again", || {
                hold.extend(LONG).unwrap();
                kind.is_on(server)
            });
        }
    }
    drop(holds);
    nothing_is_left_of(&KINDS, &servers);
    Ok(())
}

#[test]
fn d12_a_hold_of_any_kind_is_renewed_and_one_without_renewal_is_lost_at_its_end() -> TestResult {
    let servers = Servers::start(3)?;
    let options = || with_ttl(servers.urls(), secs(3));
    let locks = connected(options(), 3);
    let fixed = connected(options().renew(false).prefix("fixed:"), 3);
    let renewed = KINDS.map(|it| it.try_take(&locks).unwrap());
    let fixed = KINDS.map(|it| it.try_take(&fixed).unwrap());

    for hold in &fixed {
        assert_eq!(announced(&hold.lost()), LostReason::LeaseOver);
        assert_eq!(reason(hold.check()), Err(LostReason::LeaseOver));
    }

    assert!(renewed.iter().all(|it| it.check().is_ok()));
    assert!(4 <= locks.stats().extensions);
    Ok(())
}

/// Keys of another type, and counters that are none. Sets of readers that are left over are deleted;
/// lists and marks decide nothing about the holder.
#[test]
fn i7_j4_k7_foreign_data_of_any_kind_are_in_use_except_those_of_its_queue() -> TestResult {
    let (servers, locks) = start_connected(1, builder);
    for kind in KINDS {
        let (counters, list) = (kind.counters(), kind.list());
        let locks_of_kind = kind.keys().iter().map(|it| (*it).to_owned());
        let mark = list.replace("waiting", "mark");
        let keys = locks_of_kind.chain(counters.clone()).chain([list, mark]);
        let of_another_type =
            keys.map(|key| ["HSET".to_owned(), key, "f".to_owned(), "v".to_owned()].to_vec());
        let nonsense = counters
            .into_iter()
            .map(|key| ["SET".to_owned(), key, "12x".to_owned()].to_vec());
        for command in of_another_type.chain(nonsense) {
            let key = &command[1];
            let is_obstacle = !["readers", "waiting", "mark"]
                .iter()
                .any(|it| key.contains(it));
            del(&servers[0], key);
            servers[0].command(&command)?;

            match kind.try_take(&locks) {
                Err(AcquireError::KeyInUse { .. }) => assert!(is_obstacle, "{command:?}"),
                taken => assert!(!is_obstacle && taken.is_ok(), "{command:?}: {taken:?}"),
            }

            del(&servers[0], key);
            nothing_is_left_of(&[kind], &servers);
        }
    }
    Ok(())
}

fn panics<G>(_: &G) {
    resume_unwind(Box::new("on purpose"))
}

#[test]
fn f3_a_guard_of_any_kind_that_is_dropped_by_a_panic_is_released_on_all_nodes() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    for kind in KINDS {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _hold = kind.take(&locks, &servers);
            resume_unwind(Box::new("on purpose"));
        }));
        assert!(panicked.is_err());
        nothing_is_left_of(&[kind], &servers);
    }
    let closures: [&dyn Fn(); 5] = [
        &|| drop(locks.mutex("report").with(panics)),
        &|| drop(locks.rw_lock("read").read_with(panics)),
        &|| drop(locks.rw_lock("written").write_with(panics)),
        &|| drop(locks.multi_lock(["a", "b"]).with(panics)),
        &|| drop(locks.semaphore("mail", 1).with(panics)),
    ];
    for closure in closures {
        let panic = catch_unwind(AssertUnwindSafe(closure)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    }
    nothing_is_left_of(&KINDS, &servers);
    Ok(())
}

#[test]
fn j3_k6_cancelled_and_dead_calls_of_any_kind_block_no_other() -> TestResult {
    let (servers, [holder, leaver, waiter]) = with_managers(far);
    let held = KINDS.map(|kind| (kind, kind.take(&holder, &servers)));
    let listed = |count| {
        for kind in KINDS {
            wait_until_in(&servers, &kind.list(), count);
        }
    };
    let mut dead = child("kinds::each_kind::child_that_waits", &servers.urls());
    assert_eq!(dead.hear(), "waits");
    listed(1);
    let client = client_of(&members_in(&servers[0], &KINDS[0].list())[0]);
    let cancel = CancelHandle::new();
    let cancelled = KINDS.map(|kind| kind.wait(&leaver, &cancel));
    listed(2);
    let waiting = KINDS.map(|kind| kind.wait(&waiter, &CancelHandle::new()));
    listed(3);

    cancel.cancel();
    for call in cancelled {
        assert!(matches!(join(call), Err(AcquireError::Cancelled)));
    }
    listed(2);
    dead.signal(Signal::KILL);
    assert!(!dead.wait().success());
    wait_until_deaf(&servers, &[client]);

    for ((_, hold), next) in held.into_iter().zip(waiting) {
        hold.release()?;
        join(next)?.release()?;
    }
    nothing_waits(&servers);
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_waits() {
    let Some(urls) = parent_urls() else { return };
    let locks: LockManager = builder(&urls)
        .ttl(LONG)
        .retry_delay(secs(60), secs(60))
        .build()
        .unwrap();
    let calls = KINDS.map(|kind| kind.wait(&locks, &CancelHandle::new()));
    eventually("all wait", || locks.stats().waiting == calls.len() as u64);
    say("waits");
    wait_for_parent();
}

/// As where a leave command was lost with its connection. The call listens, as it has waited before.
#[test]
fn h28_j3_k6_a_hand_over_to_an_ended_call_is_passed_on_at_once() -> TestResult {
    let (servers, [holder, gone, other]) = with_managers(far);
    for kind in KINDS {
        let list = kind.list();
        let held = kind.take(&holder, &servers);
        let cancel = CancelHandle::new();
        let cancelled = kind.wait(&gone, &cancel);
        wait_until_in(&servers, &list, 1);
        let member = members_in(&servers[0], &list).remove(0);
        cancel.cancel();
        assert!(join(cancelled).is_err());
        wait_until_in(&servers, &list, 0);
        let waiting = kind.wait(&other, &CancelHandle::new());
        wait_until_in(&servers, &list, 1);
        for server in &servers {
            server.command(&["ZADD", &list, "1", &member])?;
        }
        let before = gone.stats().notices;

        held.release()?;

        // Nothing but what the other manager passes on can have let it in.
        join(waiting)?.release()?;
        eventually("all have handed it over", || {
            before + 3 <= gone.stats().notices
        });
        nothing_waits(&servers);
    }
    Ok(())
}

/// Monitors subscribe to patterns.
#[test]
fn h3_dead_entries_are_skipped_beside_a_pattern_subscriber() -> TestResult {
    // Stand-ins know no PSUBSCRIBE either.
    needs!(CommandMonitor);
    let (servers, [holder, other]) = with_managers(far);
    let monitor = |server: &Server| {
        let mut client = server.client().unwrap();
        client.command(&["PSUBSCRIBE", "*"]).unwrap();
        client
    };
    let _monitors: Vec<_> = servers.iter().map(monitor).collect();
    for (kind, has_next) in KINDS
        .into_iter()
        .flat_map(|it| [false, true].map(|next| (it, next)))
    {
        let list = kind.list();
        let held = kind.take(&holder, &servers);
        let waiting = kind.wait(&other, &CancelHandle::new());
        wait_until_in(&servers, &list, 1);
        let next = has_next.then(|| kind.wait(&holder, &CancelHandle::new()));
        eventually("the next call waits", || {
            holder.stats().waiting == u64::from(has_next)
        });
        let dead = (1..7).map(|it: u64| member(&format!("{it:016x}"), "w", &format!("{it:032x}")));
        let dead: Vec<_> = dead.collect();
        for (since, member) in dead.iter().enumerate() {
            command_all(&servers, &["ZADD", &list, &since.to_string(), member]);
        }

        held.release()?;

        // A majority has handed it over in one step.
        let is_left = |it: &&Server| members_in(it, &list).iter().any(|it| dead.contains(it));
        let left = servers.iter().filter(is_left).count();
        assert!(left <= 1, "{kind:?}: {left} servers");
        join(waiting)?.release()?;
        if let Some(next) = next {
            join(next)?.release()?;
        }
        nothing_waits(&servers);
    }
    Ok(())
}

/// A waiting call gets the lock on two servers, and the third refuses it.
fn wins_beside_a_foreign_key<T>(
    servers: &Servers,
    list: &str,
    key: &str,
    call: impl FnOnce() -> JoinHandle<T>,
) -> T {
    set_all(servers, key, "foreign");
    let call = call();
    wait_until_in(servers, list, 1);
    let member = members_in(&servers[0], list).remove(0);
    for server in [&servers[0], &servers[1]] {
        del(server, key);
        prod(server, &member, key);
    }
    join(call)
}

#[test]
fn h3_a_holder_of_any_kind_is_in_no_list_of_a_server_that_refused_it() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    let is_listed = |list: &str| servers.iter().any(|it| !members_in(it, list).is_empty());
    for kind in KINDS {
        let (list, key) = (kind.list(), kind.keys()[0]);
        let hold = wins_beside_a_foreign_key(&servers, &list, key, || {
            kind.wait(&locks, &CancelHandle::new())
        })?;
        eventually("the holder is in no list", || !is_listed(&list));
        assert!(hold.is_valid(), "{kind:?}");
        hold.release()?;
        del(&servers[2], key);
    }
    let lock = locks.rw_lock(NAME);
    let reader = wins_beside_a_foreign_key(&servers, &list(NAME), NAME, || {
        thread::spawn(move || lock.read())
    })?;
    eventually("the reader is in no list", || !is_listed(&list(NAME)));
    assert!(reader.is_valid());
    reader.release()?;
    del(&servers[2], NAME);
    nothing_waits(&servers);
    Ok(())
}

fn inspections(kind: Kind, locks: &LockManager) -> Result<Vec<Inspection>, AcquireError> {
    match kind {
        Kind::Several => locks.multi_lock(["a", "b"]).inspect(),
        Kind::Permit => locks.semaphore("mail", 1).inspect(),
        _ => Ok(vec![locks.rw_lock(kind.keys()[0]).inspect()?]),
    }
}

#[test]
fn e5_releases_and_hand_overs_work_on_full_servers() -> TestResult {
    needs!(Settings);
    let (servers, [holder, gone, other]) = with_managers(far);
    let full = |is_full: bool| {
        let bytes = if is_full { "1" } else { "0" };
        command_all(&servers, &["CONFIG", "SET", "maxmemory", bytes]);
    };
    for kind in KINDS {
        let mark = kind.list().replace("waiting", "mark");
        let wait = |locks| kind.wait(locks, &CancelHandle::new());
        let take = || {
            full(false);
            kind.take(&holder, &servers)
        };
        // Nobody waits.
        let held = take();
        full(true);
        held.release()?;
        nothing_waits(&servers);

        // A call of the same manager, of another one, and both.
        for (has_next, has_other) in [(true, false), (false, true), (true, true)] {
            let held = take();
            let other = has_other.then(|| wait(&other));
            wait_until_in(&servers, &kind.list(), usize::from(has_other));
            let next = has_next.then(|| wait(&holder));
            eventually("the next call waits", || {
                holder.stats().waiting == u64::from(has_next)
            });
            full(true);
            held.release()?;
            // A full server grants nothing to a call that comes too late for its hand-over, and asks.
            full(false);
            for call in other.into_iter().chain(next) {
                join(call)?.release()?;
            }
            nothing_waits(&servers);
        }

        // A call leaves. Then it is handed the lock that it no longer wants.
        let held = take();
        let cancel = CancelHandle::new();
        let leaving = kind.wait(&gone, &cancel);
        wait_until_in(&servers, &kind.list(), 1);
        let member = members_in(&servers[0], &kind.list()).remove(0);
        full(true);
        cancel.cancel();
        assert!(join(leaving).is_err());
        wait_until_in(&servers, &kind.list(), 0);
        full(false);
        for server in &servers {
            server.command(&["ZADD", &kind.list(), "1", &member])?;
            set_px(server, &mark, "", 600_000);
        }
        full(true);
        held.release()?;
        nothing_waits(&servers);

        // An operator releases it.
        let held = take();
        full(true);
        for seen in inspections(kind, &other)? {
            other.admin().release(&seen)?;
        }
        let is_left = || servers.iter().any(|it| kind.is_on(it));
        eventually("nothing of it is left", || !is_left());
        drop(held);
        nothing_waits(&servers);
    }
    Ok(())
}
