//! The set of servers changes under a fleet at work, as an operator does it: 3 → 5 → 3 servers, one server per deployment, and a
//! dead server is replaced behind its address. Long: see the [campaign's](crate) header.
//!
//! Two shortcuts show that the judge objects to a skipped set, and that `strict` refuses it.

use std::thread;
use std::time::Duration;

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::LockManager;
use quorlock::error::NodeCheck;

use crate::client::Role;
use crate::conductor::{is_left_alone, turn};
use crate::crew::{Crew, Told};
use crate::judge::{Judge, Manner};
use crate::nodes::{Kind, lock_keys};
use crate::options::{builder, seconds, seed};
use crate::support::*;
use crate::verdict::Report;
use crate::works::Work;

const FLEET: u64 = 12;
const HALF: u64 = FLEET / 2;
/// Names in use at once: the servers of the largest set.
const NAMES: usize = 5;
/// The fleet works for so long between two changes, in parts of the whole.
const PHASES: u32 = 8;

/// Of a fleet: it is to lose no lock to what is done here, however busy the machine is.
const TTL: Duration = Duration::from_secs(3);
const PACE: Duration = ms(250);
/// Of a shortcut.
const SHORT_TTL: Duration = ms(500);

/// What the operator has, and does.
struct Fleet {
    /// One more than there are names.
    servers: Servers,
    /// Each is the address of a server, as a name is that the operator owns.
    names: Vec<Proxy>,
    /// Which server each name leads to; the last is that of no name.
    behind: Vec<usize>,
    /// The names that all processes have.
    set: Vec<usize>,
    judge: Judge,
    crew: Crew,
    told: Told,
    rng: fastrand::Rng,
    phase: Duration,
    started: u64,
}

impl Fleet {
    /// Three new servers, and the fleet at work.
    fn start(phase: Duration, mut rng: fastrand::Rng) -> Fleet {
        let servers = Servers::start(NAMES + 1).unwrap();
        let names: Vec<_> = servers
            .iter()
            .take(NAMES)
            .map(|it| Proxy::start(it.addr()).unwrap())
            .collect();
        let judge = Judge::start(Manner {
            trusting: false,
            quarantine: true,
        });
        let behind = (0..=NAMES).collect();
        let role = Role {
            pace: PACE,
            strict: true,
            ..Role::new(&judge.address, TTL, Vec::new())
        };
        let crew = Crew::start(0, role, rng.fork());
        let (set, told) = (vec![0, 1, 2], Told::default());
        let mut fleet = Fleet {
            servers,
            names,
            behind,
            set,
            judge,
            crew,
            told,
            rng,
            phase,
            started: boot(),
        };
        vouch(&fleet.urls(), TTL);
        for seat in 1..=FLEET {
            fleet.recruit(seat);
        }
        fleet.work("three servers");
        fleet
    }

    fn urls(&self) -> Vec<String> {
        self.set.iter().map(|it| self.names[*it].url()).collect()
    }

    fn server(&self, name: usize) -> &Server {
        &self.servers[self.behind[name]]
    }

    /// A manager of the operator's, with the set as it is now.
    fn operator(&self) -> LockManager {
        builder(&self.urls(), TTL).strict(true).build().unwrap()
    }

    /// A new process, which has its seat, and so a lock, before it is ready.
    fn recruit(&mut self, seat: u64) {
        self.crew.role = Role {
            seat,
            urls: self.urls(),
            ..self.crew.role.clone()
        };
        let member = self.crew.recruit();
        member.wait_until_ready();
        self.crew.members.push(member);
    }

    /// The fleet works for a while, and everybody gets locks.
    fn work(&mut self, phase: &str) {
        thread::sleep(self.phase);
        self.expect_work(phase);
    }

    fn expect_work(&self, phase: &str) {
        let since = boot();
        let members: Vec<_> = self.crew.members.iter().map(|it| it.number).collect();
        eventually(
            &format!("{phase}: every process acquires a lock, and one of every work is acquired"),
            || {
                thread::sleep(ms(20));
                let (clients, works) = acquired(&self.judge, since);
                members.iter().all(|it| clients.contains(it))
                    && Work::ALL.iter().all(|it| works.contains(&it.name().into()))
            },
        );
        let after = Duration::from_nanos(boot() - self.started);
        announce(format_args!(
            "changing: {phase}, {} servers, {after:?}",
            self.set.len()
        ));
    }

    /// All processes are restarted one after another with this set. None of the old one is left then, and the operator says so.
    fn deploy(&mut self, set: Vec<usize>) {
        self.deploy_with(set, |_| ());
    }

    /// The same; something happens when half of them have been restarted.
    fn deploy_with(&mut self, set: Vec<usize>, happens: impl FnOnce(&Fleet)) {
        self.set = set;
        self.rng.shuffle(&mut self.crew.members);
        self.restart(HALF);
        happens(self);
        self.restart(FLEET - HALF);

        let operator = self.operator();
        let rows = operator.admin().forget_sets().unwrap();
        let is_right = |row: &NodeCheck| {
            let server = self.server(self.set[row.node.index()]);
            row.round_trip.is_some() == server.is_running() && row.sets.iter().all(|it| it.is_ours)
        };
        assert!(rows.iter().all(is_right), "{rows:#?}");
    }

    fn restart(&mut self, processes: u64) {
        for _ in 0..processes {
            // Those that were restarted are behind it.
            let mut member = self.crew.members.remove(0);
            member.tell_to_finish();
            let seat = member.seat;
            if self.rng.bool() {
                member.finish(&mut self.told);
                self.recruit(seat);
            } else {
                // The new one comes before the old one has ended.
                self.recruit(seat);
                member.finish(&mut self.told);
            }
        }
    }

    /// Until nothing more can be missed when a server goes, as an operator does it.
    fn wait_for_votes(&self) {
        // Each look is that of a program that starts now: one that stays counts by its own clock what it saw first.
        eventually("every server votes", || {
            self.operator()
                .check_nodes()
                .iter()
                .all(|it| it.failure.is_none())
        });
        // Programs that were busy have seen the new server later than it answered, and so its vote is later for them.
        thread::sleep(ms(1_000));
    }

    /// Kills a server. When it dies, and when this returns, every lock is on all others: each has been extended since it was acquired,
    /// or since the death. An extension sets again what a server lacks, if a majority has the lock.
    fn lose(&self, name: usize) {
        thread::sleep(TTL / 2);
        self.server(name).kill().unwrap();
        thread::sleep(TTL / 2);
    }

    /// Names that are in no use, each in front of an empty server.
    fn spare(&mut self) -> [usize; 2] {
        let mut spare: Vec<_> = (0..NAMES).filter(|it| !self.set.contains(it)).collect();
        self.rng.shuffle(&mut spare);
        spare
            .iter()
            .for_each(|it| self.server(*it).restart_empty().unwrap());
        [spare[0], spare[1]]
    }

    fn with(&self, name: usize) -> Vec<usize> {
        self.set.iter().copied().chain([name]).collect()
    }

    fn without(&self, name: usize) -> Vec<usize> {
        self.set.iter().copied().filter(|it| *it != name).collect()
    }

    fn any(&mut self) -> usize {
        self.set[self.rng.usize(..self.set.len())]
    }

    /// 3 → 5 → 3 servers. One dies on the way.
    fn grow_and_shrink(&mut self) {
        let [fourth, fifth] = self.spare();
        self.deploy(self.with(fourth));
        self.work("one server more");
        if self.rng.bool() {
            // Without it, the new one has no vote yet when the next one comes.
            self.wait_for_votes();
        }
        let with = self.with(fifth);
        let dead = with[self.rng.usize(..with.len())];
        if self.rng.bool() {
            self.wait_for_votes();
            self.deploy_with(with, |it| it.lose(dead));
        } else {
            self.deploy(with);
            self.work("two servers more");
            self.wait_for_votes();
            self.server(dead).kill().unwrap();
        }
        self.work("a server of five is dead");
        self.deploy(self.without(dead));
        self.work("without the dead server");

        let surplus = self.any();
        let without = self.without(surplus);
        if self.rng.bool() {
            self.wait_for_votes();
            let emptied = without[0];
            self.deploy_with(without, |it| {
                it.lose(emptied);
                it.server(emptied).restart_empty().unwrap();
            });
        } else {
            self.deploy(without);
        }
        self.work("three servers again");
    }

    /// No process is restarted.
    fn replace_a_dead_server(&mut self, elsewhere: bool) {
        self.wait_for_votes();
        let name = self.any();
        self.lose(name);
        self.expect_work("a server of three is dead");
        if elsewhere {
            self.behind.swap(name, NAMES);
            self.server(name).restart_empty().unwrap();
            self.names[name].lead_to(self.server(name).addr());
        } else {
            self.server(name).restart_empty().unwrap();
        }
        self.work("an empty server is in its place");
        self.wait_for_votes();
        self.work("the empty server votes");
    }

    /// What is wrong with all that was done.
    fn finish(mut self) {
        // Everything of the last phase is done by everybody.
        self.expect_work("the end");
        let last = self.crew.finish();
        self.told.add(last);
        let running = || self.servers.iter().filter(|it| it.is_running());
        eventually("the servers have read all that clients have sent", || {
            running().all(is_left_alone)
        });
        let orphans: Vec<_> = running().flat_map(lock_keys).collect();

        let report = self.judge.report();
        let [won, held, renewed, lost] = self.told.sums;
        announce(format_args!(
            "changing: {} acquisitions, {won} rounds won, {held} held, {renewed} renewals, {lost} lost, {} writes, {} violations",
            report.count("leases"),
            report.count("writes"),
            report.violations(),
        ));
        assert_eq!(report.violations(), 0, "{report}");
        let lines = &self.told.lines;
        assert_eq!(
            (lost, orphans),
            (0, Vec::new()),
            "locks lost, and keys left: {lines:#?}"
        );
        // No two sets were in use that do not go together, and a majority has always had a vote; on a busy machine a late one.
        let untrue = ["in a set of", "no lock can be taken", "no majority", "Lost"];
        let is_late = |it: &str| it.contains("in time") || it.contains("not responding");
        let is_true = |it: &&String| is_late(it) || untrue.iter().all(|part| !it.contains(part));
        let (others, wrong): (Vec<_>, Vec<_>) = lines.iter().partition(is_true);
        others
            .iter()
            .for_each(|it| announce(format_args!("changing: {it}")));
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// Lets new servers vote, as an operator does who has set them up.
fn vouch(urls: &[String], ttl: Duration) {
    let operator = builder(urls, ttl).build().unwrap();
    eventually("new servers vote", || {
        operator
            .admin()
            .vouch()
            .iter()
            .all(|it| it.failure.is_none())
    });
}

/// The clients that have acquired a lock since then, and the works.
fn acquired(judge: &Judge, since: u64) -> (Vec<u64>, Vec<String>) {
    let answer = judge.ask(&format!("acquired-since {since}"));
    let (clients, works): (Vec<_>, Vec<_>) =
        answer.split(' ').partition(|it| it.parse::<u64>().is_ok());
    (
        clients.iter().map(|it| it.parse().unwrap()).collect(),
        works.into_iter().map(str::to_owned).collect(),
    )
}

#[test]
fn h26_a_fleet_goes_from_three_to_five_and_back_and_replaces_a_dead_server() {
    let Some(lasts) = seconds(2.4, true) else {
        return;
    };
    let seed = seed();
    announce(format_args!("changing: QUORLOCK_CAMPAIGN_SEED={seed}"));
    let _turn = turn(Kind::Servers);
    let until = boot() + nanos(lasts);
    let phase = (lasts / PHASES).min(TTL);
    let mut fleet = Fleet::start(phase, fastrand::Rng::with_seed(seed));
    loop {
        fleet.grow_and_shrink();
        let elsewhere = fleet.rng.bool();
        fleet.replace_a_dead_server(elsewhere);
        if until <= boot() {
            break;
        }
    }
    fleet.finish();
}

/// From three servers to five in one step: half of the processes has been restarted with the new list. The ways are cut so that
/// each half can reach a majority of its own.
struct Shortcut {
    judge: Judge,
    /// The old half comes first.
    crew: Crew,
    /// Of each half, the ways to its servers.
    ways: [Vec<Proxy>; 2],
    servers: Servers,
}

impl Shortcut {
    fn take(strict: bool) -> Shortcut {
        let servers = Servers::start(NAMES).unwrap();
        let ways = [3, NAMES].map(|it| {
            servers
                .iter()
                .take(it)
                .map(|it| Proxy::start(it.addr()).unwrap())
                .collect()
        });
        let [old, new]: &[Vec<Proxy>; 2] = &ways;
        let urls = |half: &[Proxy]| half.iter().map(Proxy::url).collect::<Vec<_>>();
        vouch(&urls(new), SHORT_TTL);
        let judge = Judge::start(Manner {
            trusting: false,
            quarantine: true,
        });
        let works = vec![Work::Registers];
        let role = Role {
            works,
            strict,
            ..Role::new(&judge.address, SHORT_TTL, urls(old))
        };
        let mut crew = Crew::start(HALF, role, fastrand::Rng::with_seed(1));
        let operator = builder(&urls(old), SHORT_TTL).build().unwrap();
        let is_noted = |it: &NodeCheck| it.sets.iter().any(|it| it.nodes.len() == old.len());
        eventually("the old set is in use", || {
            operator.check_nodes().iter().all(is_noted)
        });
        for way in new.iter().take(2).chain(&old[2..]) {
            way.refuse(true);
            way.cut();
        }
        crew.role.urls = urls(new);
        for _ in 0..HALF {
            let member = crew.recruit();
            member.wait_until_ready();
            crew.members.push(member);
        }
        Shortcut {
            judge,
            crew,
            ways,
            servers,
        }
    }

    /// Whether each half has acquired locks since then: everybody of the first, anybody of the second.
    fn acquired(&self, since: u64) -> [bool; 2] {
        let (clients, _) = acquired(&self.judge, since);
        let has = |it: &u64| clients.contains(it);
        [
            (1..=HALF).all(|it| has(&it)),
            (HALF + 1..=2 * HALF).any(|it| has(&it)),
        ]
    }

    /// The report, and what all have told.
    fn finish(mut self) -> (Report, Vec<String>) {
        self.ways.iter().flatten().for_each(|it| it.refuse(false));
        let told = self.crew.finish();
        eventually("the servers have read all that clients have sent", || {
            self.servers.iter().all(is_left_alone)
        });
        (self.judge.report(), told.lines)
    }
}

fn says_that_two_can_hold(line: &str) -> bool {
    line.contains("in a set of 3 servers, not in this one of 5; two programs can hold")
}

#[test]
fn h26_a_fleet_that_skips_a_set_is_seen_to_overlap_and_its_log_says_why() {
    if seconds(1.0, true).is_none() {
        return;
    }
    let shortcut = Shortcut::take(false);
    let since = boot();
    eventually("both halves acquire locks", || {
        shortcut.acquired(since) == [true, true]
    });
    thread::sleep(SHORT_TTL);

    let (report, lines) = shortcut.finish();

    assert!(0 < report.objections_to("overlap"), "{report}");
    assert!(
        lines.iter().any(|it| says_that_two_can_hold(it)),
        "{lines:#?}"
    );
}

#[test]
fn h26_a_fleet_that_skips_a_set_is_refused_under_strict_and_nothing_overlaps() {
    let Some(lasts) = seconds(1.0, true) else {
        return;
    };
    let shortcut = Shortcut::take(true);
    let since = boot();
    thread::sleep(lasts);
    eventually("the old half acquires locks", || {
        shortcut.acquired(since)[0]
    });
    assert!(!shortcut.acquired(0)[1], "the new one has none");

    let (report, lines) = shortcut.finish();

    assert_eq!(report.violations(), 0, "{report}");
    assert!(
        lines
            .iter()
            .any(|it| it.contains("refused by Builder::strict")),
        "{lines:#?}"
    );
}
