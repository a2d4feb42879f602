//! One campaign, from the start of its servers to the report.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use devnodes::{Clock, Proxy, Server, eventually};

use crate::client::Role;
use crate::faults::{ClientFault, NodeFault, Place, catch_up};
use crate::fleet::Fleet;
use crate::history::Fault;
use crate::judge::Judge;
use crate::last;
use crate::nodes::{Kind, Node, Nodes};
use crate::options::{seconds, seed};
use crate::steps::Steps;
use crate::support::*;
use crate::verdict::Report;
use crate::workloads::Workload;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) nodes: usize,
    /// What they are. If they are several servers each, faults are done in [`steps`](crate::steps).
    pub(crate) kind: Kind,
    /// Servers that do not know `HELLO`: nobody is told of a hand-over.
    pub(crate) old: bool,
    pub(crate) clients: u64,
    pub(crate) ttl: Duration,
    /// How many nodes may be in trouble at once, at most.
    pub(crate) hands: usize,
    pub(crate) node_faults: Vec<NodeFault>,
    pub(crate) client_faults: Vec<ClientFault>,
    /// What clients do, in turn.
    pub(crate) works: Vec<Workload>,
    pub(crate) lasts: Duration,
    pub(crate) seed: u64,
    /// Planted: every client claims more than its guard does.
    pub(crate) deaf: bool,
    /// Planted: the resource accepts what is stale.
    pub(crate) trusting: bool,
    /// Planted: the judge is not told what is done to nodes, and neither clients nor servers have a quarantine.
    pub(crate) secretive: bool,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) report: Report,
    /// By kind; of stops and kills also by the phase that they hit.
    pub(crate) faults: BTreeMap<String, u64>,
    /// Keys that were left when all clients had ended and no server or link was in trouble.
    pub(crate) orphans: Vec<String>,
    summary: String,
}

impl Plan {
    /// All works, and no faults. With the seed that was asked for, or a new one.
    pub(crate) fn new(name: &str, nodes: usize) -> Plan {
        Plan {
            name: name.to_owned(),
            nodes,
            kind: Kind::Servers,
            old: false,
            clients: 4,
            ttl: ms(500),
            hands: 1,
            node_faults: Vec::new(),
            client_faults: Vec::new(),
            works: Workload::ALL.to_vec(),
            lasts: Duration::ZERO,
            seed: seed(),
            deaf: false,
            trusting: false,
            secretive: false,
        }
    }

    /// Blocks until it is over, and before that until it is its [turn]. Small ones with a planted defect do not count.
    pub(crate) fn run(mut self) -> Outcome {
        let planted = self.deaf || self.trusting || self.secretive;
        let _turn = (self.kind != Kind::Servers || !planted).then(|| turn(self.kind));
        if !Clock::available() {
            announce(format_args!(
                "{}: clocks cannot be stepped on this system; faults of clocks are left out",
                self.name
            ));
            self.node_faults.retain(|it| !it.needs_clock());
            self.client_faults.retain(|it| !it.needs_clock());
        }
        Campaign::start(self).run()
    }

    /// The same for so many seconds, or as long as was asked for; nothing if it is a `long` one,
    /// and those were not asked for.
    ///
    /// # Panics
    ///
    /// A rule was broken; or the campaign was none: nobody did anything, or no fault was done; or
    /// without faults locks were lost.
    #[track_caller]
    pub(crate) fn run_safely(self, usual: f64, long: bool) -> Option<Outcome> {
        let lasts = seconds(usual, long)?;
        announce(format_args!(
            "{}: QUORLOCK_CAMPAIGN_SEED={}",
            self.name, self.seed
        ));
        let clients = self.clients;
        let (of_nodes, of_clients) = (&self.node_faults, &self.client_faults);
        let has_faults = !of_nodes.is_empty() || !of_clients.is_empty();
        let is_possible = |needs_clock: bool| !needs_clock || Clock::available();
        let can_be_done = of_nodes.iter().any(|it| is_possible(it.needs_clock()))
            || of_clients.iter().any(|it| is_possible(it.needs_clock()));
        let outcome = Plan { lasts, ..self }.run();
        let Outcome {
            report, summary, ..
        } = &outcome;
        let objections = report.objections.join("\n");
        assert_eq!(report.violations(), 0, "{summary}\n{objections}");
        assert_eq!(outcome.orphans, Vec::<String>::new(), "{summary}");
        for what in ["leases-valid", "writes"] {
            assert!(clients <= report.count(what), "{what}: {summary}");
        }
        let is_done = !outcome.faults.is_empty();
        assert!(is_done || !can_be_done, "no fault was done: {summary}");
        let lost = report.count("lost");
        assert!(has_faults || lost == 0, "{summary}");
        Some(outcome)
    }
}

struct Campaign {
    plan: Plan,
    nodes: Nodes,
    /// Over which clients reach them, if something is to be done to those.
    links: Vec<Proxy>,
    /// Whoever has one of these may do something to the node.
    hold_of_nodes: Vec<Mutex<()>>,
    judge: Judge,
    last_loss: Mutex<u64>,
    faults: Mutex<BTreeMap<String, u64>>,
    until: u64,
}

impl Campaign {
    fn start(plan: Plan) -> Campaign {
        let nodes = Nodes::start(plan.kind, plan.nodes, plan.old);
        let judge = Judge::start(plan.trusting);
        let is_of_link = |it: &NodeFault| NodeFault::OF_LINKS.contains(it);
        let needs_links = plan.node_faults.iter().any(is_of_link);
        let servers = nodes.0.iter().filter_map(Node::single);
        let linked = servers.filter(|_| needs_links);
        let links = linked.map(|it| Proxy::start(it.addr()).unwrap()).collect();
        let hold_of_nodes = (0..plan.nodes).map(|_| Mutex::new(())).collect();
        let until = boot() + nanos(plan.lasts);
        let (last_loss, faults) = (Mutex::new(0), Mutex::default());
        Campaign {
            plan,
            nodes,
            links,
            hold_of_nodes,
            judge,
            last_loss,
            faults,
            until,
        }
    }

    fn run(self) -> Outcome {
        let mut rng = fastrand::Rng::with_seed(self.plan.seed);
        let mut fleet = self.recruit(rng.fork());
        let in_steps = self.plan.kind != Kind::Servers;
        thread::scope(|scope| {
            let hands: Vec<_> = (0..self.plan.hands)
                .map(|_| {
                    let rng = rng.fork();
                    scope.spawn(|| {
                        if in_steps {
                            self.take_steps(rng)
                        } else {
                            self.trouble_nodes(rng)
                        }
                    })
                })
                .collect();
            self.trouble_clients(&mut fleet);
            for hand in hands {
                hand.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
        self.heal();

        // Everybody gets a lock, and every lock is got, now that all is well.
        let healed = boot();
        eventually(
            "every client acquires a lock after the healing, and one of every work is acquired",
            || {
                thread::sleep(ms(20));
                let have = self.judge.history().acquired_since(healed);
                let mut clients = fleet.members.iter().map(|it| it.number.to_string());
                clients.all(|it| have.contains(&it))
                    && self.plan.works.iter().all(|it| have.contains(it.name()))
            },
        );
        // By now everything has expired that clients have left who were killed or found no way to a node.
        sleep_until(healed + nanos(self.plan.ttl) + 20_000_000);
        let rounds = fleet.finish();
        eventually("the servers have read all that clients have sent", || {
            self.nodes.all_servers().all(is_left_alone)
        });
        if self.plan.old {
            // Who is dead and polls is handed the lock for as long as it is on a list.
            eventually("what the dead were handed has expired", || {
                self.nodes.lock_keys().is_empty()
            });
        }
        let mut orphans = self.nodes.lock_keys();
        if orphans.is_empty() && self.plan.kind != Kind::Servers {
            orphans = last::left_behind(&self.nodes, !self.plan.secretive);
        }
        self.outcome(rounds, orphans)
    }

    fn recruit(&self, rng: fastrand::Rng) -> Fleet {
        let Plan {
            ttl,
            deaf,
            clients,
            kind,
            ref works,
            ..
        } = self.plan;
        let links: Vec<_> = self.links.iter().map(Proxy::url).collect();
        let urls = if links.is_empty() {
            self.nodes.urls()
        } else {
            links
        };
        let role = Role {
            number: 0,
            judge: self.judge.address.clone(),
            ttl,
            seed: 0,
            works: works.clone(),
            deaf,
            quarantine: !self.plan.secretive,
            slow: kind != Kind::Servers,
            urls,
        };
        Fleet::start(clients, role, rng)
    }

    fn trouble_nodes(&self, mut rng: fastrand::Rng) {
        let Plan {
            node_faults, ttl, ..
        } = &self.plan;
        let mut queue: Vec<NodeFault> = Vec::new();
        while boot() < self.until && !node_faults.is_empty() {
            if queue.is_empty() {
                queue.clone_from(node_faults);
                rng.shuffle(&mut queue);
            }
            let node = rng.usize(..self.plan.nodes);
            let Ok(_hold) = self.hold_of_nodes[node].try_lock() else {
                thread::sleep(ms(1));
                continue;
            };
            let Some(fault) = queue.pop() else { continue };
            if fault == NodeFault::KillEmpty || fault == NodeFault::Flush {
                self.wait_for_last_loss();
            }
            let told = |fault: NodeFault, from, to| self.note(fault, node, (from, to));
            let place = Place {
                node: &self.nodes.0[node],
                link: self.links.get(node),
            };
            let done = fault.inflict(place, *ttl, &mut rng, told);
            done.unwrap_or_else(|err| panic!("{fault:?} on n{node}: {err}"));
            thread::sleep(between(&mut rng, *ttl, 0.0, 0.6));
        }
    }

    /// The same to nodes that are several servers each.
    fn take_steps(&self, rng: fastrand::Rng) {
        let Plan {
            node_faults,
            ttl,
            nodes,
            ..
        } = &self.plan;
        let mut steps = Steps::new(rng, *nodes, node_faults);
        while boot() < self.until {
            let Some(step) = steps.next() else { return };
            if step.cut.is_some() {
                step.nodes
                    .iter()
                    .for_each(|(node, _)| self.nodes.0[*node].cut_replication().unwrap());
            }
            thread::sleep(times(*ttl, step.cut.unwrap_or(0.0)));
            thread::scope(|scope| {
                for (turn, (node, rng)) in (0_u32..).zip(&step.nodes) {
                    let wait = times(*ttl, step.apart) * turn;
                    let fault = step.fault;
                    scope.spawn(move || {
                        thread::sleep(wait);
                        self.take_step(fault, *node, rng.clone());
                    });
                }
            });
            // Only locks that are held can be lost, and after a loss nodes are silent.
            let since = boot();
            while boot() < self.until && !self.is_acquired_since(since, self.work_of_now()) {
                thread::sleep(ms(20));
            }
            thread::sleep(times(*ttl, step.rest));
        }
    }

    fn take_step(&self, fault: NodeFault, node: usize, mut rng: fastrand::Rng) {
        let told = |fault: NodeFault, from, to| self.note(fault, node, (from, to));
        let place = Place {
            node: &self.nodes.0[node],
            link: None,
        };
        let mut done = fault.inflict(place, self.plan.ttl, &mut rng, told);
        if let Node::Cluster(cluster) = place.node {
            cluster.end_migrations();
            done = done.and_then(|()| cluster.restore_replication());
        }
        done.unwrap_or_else(|err| panic!("{fault:?} on n{node}: {err}"));
    }

    /// What clients do now.
    fn work_of_now(&self) -> Workload {
        let is_slow = self.plan.kind != Kind::Servers;
        Workload::of_now(&self.plan.works, self.plan.ttl, is_slow)
    }

    fn is_acquired_since(&self, since: u64, work: Workload) -> bool {
        let have = self.judge.history().acquired_since(since);
        have.contains(work.name())
    }

    fn note(&self, fault: NodeFault, node: usize, times: (u64, u64)) {
        *self.faults.lock().unwrap().entry(fault.name()).or_default() += 1;
        if !self.plan.secretive {
            self.tell_of_fault(fault, node, times);
        }
    }

    fn tell_of_fault(&self, fault: NodeFault, node: usize, (from, to): (u64, u64)) {
        let stepped = self.nodes.0[node].single().filter(|_| Clock::available());
        let ahead = stepped.map_or(0, |it| it.clock_ahead().unwrap());
        self.judge.history().faults.push(Fault {
            kind: fault.name(),
            effect: fault.effect(),
            node,
            from,
            to,
            epoch: epoch(ahead),
        });
    }

    /// A node is silent for a ttl after a loss of memory: more of them, and nobody would get a
    /// lock.
    fn wait_for_last_loss(&self) {
        let mut last = self.last_loss.lock().unwrap();
        if !self.plan.secretive {
            sleep_until(*last + nanos(self.plan.ttl));
        }
        *last = boot();
    }

    fn trouble_clients(&self, fleet: &mut Fleet) {
        let Plan {
            client_faults, ttl, ..
        } = &self.plan;
        let mut queue: Vec<ClientFault> = Vec::new();
        while boot() < self.until {
            if client_faults.is_empty() {
                sleep_until(self.until);
                return;
            }
            if queue.is_empty() {
                queue.clone_from(client_faults);
                fleet.rng.shuffle(&mut queue);
            }
            let Some(fault) = queue.pop() else { continue };
            let i = fleet.rng.usize(..fleet.members.len());
            let member = &mut fleet.members[i];
            let whom = (member.number, &mut member.child, member.clock.as_ref());
            let done = fault.inflict(whom, *ttl, &mut fleet.rng, &self.judge);
            let (phase, dead) = done.unwrap_or_else(|err| panic!("{fault:?}: {err}"));
            if let Some(phase) = phase {
                let name = format!("{}:{phase}", fault.name());
                *self.faults.lock().unwrap().entry(name).or_default() += 1;
            }
            if dead {
                fleet.members[i] = fleet.recruit();
                fleet.members[i].wait_until_ready();
            }
            thread::sleep(between(&mut fleet.rng, *ttl, 0.0, 0.4));
        }
    }

    fn heal(&self) {
        for server in self.nodes.all_servers() {
            let is_well = server.is_running() && !server.is_paused();
            assert!(is_well, "every fault undoes itself");
        }
        for (i, node) in self.nodes.0.iter().enumerate() {
            if let Some(server) = node.single().filter(|_| Clock::available()) {
                server.set_clock_rate(0).unwrap();
                let told = |fault, from, to| self.tell_of_fault(fault, i, (from, to));
                catch_up(server, &told).unwrap();
            }
        }
    }

    fn outcome(self, rounds: [u64; 4], orphans: Vec<String>) -> Outcome {
        let Plan {
            name,
            nodes,
            ttl,
            clients,
            seed,
            ..
        } = &self.plan;
        let (report, faults) = (self.judge.report(), self.faults.into_inner().unwrap());
        let [won, held, renewed, lost] = rounds;
        let leases = report.count("leases");
        let mut summary = format!(
            "{name}: {nodes} nodes, {clients} clients, ttl {ttl:?}, seed {seed}: {} % of rounds \
             refused, {renewed} renewals, {lost} lost; ",
            100 * held / (won + held).max(1),
        );
        let counts = report.counts.iter().chain(&faults);
        for (what, number) in counts {
            let _ = write!(summary, "{number} {what}, ");
        }
        #[expect(clippy::cast_precision_loss, reason = "a bound in two digits")]
        let bound = 3.0 / leases.max(1) as f64;
        let violations = report.violations();
        let _ = write!(summary, "{violations} violations (95 % bound {bound:.1e})");
        let _ = write!(summary, ", {} orphans", orphans.len());
        announce(&summary);
        Outcome {
            report,
            faults,
            orphans,
            summary,
        }
    }
}

impl Outcome {
    /// How often it was done.
    pub(crate) fn done(&self, fault: &str) -> u64 {
        let of = |name: &str| name.split(':').next() == Some(fault);
        let faults = self.faults.iter().filter(|(name, _)| of(name));
        faults.map(|(_, number)| number).sum()
    }
}

/// A process runs two campaigns at a time on single servers, and one on nodes that are several servers, which have little to do
/// while these change their roles.
pub(crate) fn turn(kind: Kind) -> MutexGuard<'static, ()> {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    static ON_SERVERS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
    static ON_SEVERAL: Mutex<()> = Mutex::new(());
    let turns = match kind {
        Kind::Servers => &ON_SERVERS[STARTED.fetch_add(1, Ordering::Relaxed) % ON_SERVERS.len()],
        _ => &ON_SEVERAL,
    };
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether no client is connected any more.
pub(crate) fn is_left_alone(server: &Server) -> bool {
    let clients = server.command(&["CLIENT", "LIST"]).unwrap();
    !String::from_utf8_lossy(clients.as_bytes().unwrap()).contains(" name=quorlock")
}
