//! What holds for every kind of lock, and rests on scripts of that kind.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::{self, JoinHandle};

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::{AcquireError, CancelHandle, Hold, LockManager, LostReason};

use crate::support::*;
use crate::waiting::lists;

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
            _ => lists::list(self.keys()[0]),
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
