//! Processes with wrong clocks that are killed in every phase of a run, and a judge.
//!
//! A machine calls the job when its own clock says that the period has begun. The first one in the phase of a period is
//! killed. It is started again, as by cron, until a call of this period has ended.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `QUORLOCK_ONCE_PERIODS` | number of periods |
//! | `QUORLOCK_ONCE_PERIOD` | their length, milliseconds |
//! | `QUORLOCK_ONCE_LANES` | jobs with other names, side by side |

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use devnodes::{Clock, PATIENCE, Servers};
use quorlock::{LockManager, Once};
use rustix::process::Signal;

use crate::support::*;

/// Where a machine ends itself, as if it was killed there.
const PHASES: [&str; 4] = ["looked", "begun", "worked", "recorded"];

const JOB: Duration = ms(40);

fn setting(name: &str, default: u64) -> u64 {
    let given = env::var(name).ok().and_then(|it| it.parse().ok());
    given.unwrap_or(default)
}

fn length() -> Duration {
    ms(setting("QUORLOCK_ONCE_PERIOD", 6_000))
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

/// What a machine is to do: the period, its length in milliseconds, the phase in which it ends, the name, and the file of
/// the judge.
struct Order {
    period: u64,
    length: u64,
    phase: String,
    name: String,
    file: PathBuf,
}

impl Order {
    fn text(&self) -> String {
        let Order {
            period,
            length,
            phase,
            name,
            file,
        } = self;
        format!("{period} {length} {phase} {name} {}", file.display())
    }

    fn read(text: &str) -> Order {
        let [period, length, phase, name, file] = text.splitn(5, ' ').collect::<Vec<_>>()[..]
        else {
            panic!("{text}")
        };
        Order {
            period: period.parse().unwrap(),
            length: length.parse().unwrap(),
            phase: phase.to_owned(),
            name: name.to_owned(),
            file: file.into(),
        }
    }

    fn write(&self, what: &str) {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.file)
            .unwrap();
        file.write_all(format!("{what}\n").as_bytes()).unwrap();
    }

    /// Kills this process, if it is the first one in the phase.
    fn ends(&self, phase: &str) {
        let kill = self.file.with_extension(self.period.to_string());
        if self.phase == phase && File::create_new(kill).is_ok() {
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        }
    }

    /// Waits until this machine's clock says that the period has begun.
    fn wait(&self) {
        let begin = ms(self.period * self.length);
        while let Some(left) = begin.checked_sub(now()).filter(|it| !it.is_zero()) {
            thread::sleep(left.min(ms(20)));
        }
    }

    fn run(&self, locks: &LockManager) -> String {
        self.ends("looked");
        let job = locks.once(&self.name).every(ms(self.length));
        let found = job.run(|run| {
            self.ends("begun");
            thread::sleep(JOB);
            // With the fence of the resource.
            self.write(&format!("{} {}", run.period(), run.token()));
            self.ends("worked");
            Result::<_, String>::Ok(run.period())
        });
        match found {
            Ok(Once::Ran(period)) => {
                self.ends("recorded");
                format!("ran {period}")
            }
            Ok(Once::Done(record)) => format!("done {}", record.period),
            Ok(Once::Running(_)) => "running".to_owned(),
            Err(err) => format!("error {err}"),
        }
    }
}

#[test]
#[ignore = "a process of another test"]
fn child_that_is_a_machine() {
    let Some(urls) = parent_urls() else { return };
    // The lock of a killed machine is gone long before the end of its period.
    let locks = with_ttl(urls, length() / 3).build().unwrap();
    while let Some(order) = hear_parent() {
        let order = Order::read(&order);
        order.wait();
        say(order.run(&locks));
    }
}

/// A machine: a process, started again after each end.
struct Machine<'a> {
    urls: &'a [String],
    clock: Option<&'a Clock>,
    child: ChildProcess,
    /// Without a majority: the period, and why.
    errors: Vec<(u64, String)>,
}

impl Machine<'_> {
    fn start<'a>(urls: &'a [String], clock: Option<&'a Clock>) -> Machine<'a> {
        let child = Machine::child(urls, clock);
        Machine {
            urls,
            clock,
            child,
            errors: Vec::new(),
        }
    }

    fn child(urls: &[String], clock: Option<&Clock>) -> ChildProcess {
        let environment = clock.map(Clock::environment).into_iter().flatten();
        child_with("once::fleet::child_that_is_a_machine", urls, environment)
    }

    /// What it says at last. Killed, it is started again; one that finds the job under way asks again.
    fn obey(&mut self, order: &Order) -> String {
        loop {
            self.child.tell(&order.text());
            let Some(said) = self.child.hear_within(PATIENCE) else {
                self.child.wait();
                self.child = Machine::child(self.urls, self.clock);
                continue;
            };
            if let Some(error) = said.strip_prefix("error ") {
                // A machine that is too slow.
                self.errors.push((order.period, error.to_owned()));
            } else if said != "running" {
                return said;
            }
            thread::sleep(ms(50));
        }
    }
}

#[derive(Debug, Default)]
struct Report {
    periods: u64,
    /// How often a machine was told "ran", and how often the job did its work, by period.
    ran: BTreeMap<u64, u64>,
    works: BTreeMap<u64, Vec<u64>>,
    /// The phase of the kill, by period.
    kills: BTreeMap<u64, &'static str>,
    /// Without a majority: the period, and why.
    errors: Vec<(u64, String)>,
}

/// One lane: four machines, all of them called in each period, and a kill in some phase of every `nth`.
fn lane(
    urls: &[String],
    clocks: &[Clock],
    folder: &Path,
    lane: u64,
    periods: u64,
    length: u64,
    nth: u64,
) -> Report {
    let file = folder.join(format!("lane-{lane}"));
    let name = format!("job-{lane}");
    let mut machines: Vec<_> = (0..4)
        .map(|it| Machine::start(urls, clocks.get(it)))
        .collect();
    let mut report = Report::default();
    let mut kills = lane as usize;
    for turn in 0..periods {
        let period = now().as_millis() as u64 / length + 1;
        let mut phase = "never";
        if turn % nth == 0 {
            phase = PHASES[kills % PHASES.len()];
            kills += 1;
            report.kills.insert(period, phase);
        }
        let order = Order {
            period,
            length,
            phase: phase.to_owned(),
            name: name.clone(),
            file: file.clone(),
        };
        let said: Vec<_> = thread::scope(|scope| {
            let calls: Vec<_> = machines
                .iter_mut()
                .map(|machine| scope.spawn(|| machine.obey(&order)))
                .collect();
            calls.into_iter().map(|it| it.join().unwrap()).collect()
        });
        report.periods += 1;
        report.ran.entry(period).or_default();
        for said in said {
            match said.split_once(' ') {
                Some(("ran", period)) => {
                    *report.ran.entry(period.parse().unwrap()).or_default() += 1;
                }
                Some(("done", _)) => {}
                _ => panic!("{said}"),
            }
        }
    }
    report.errors = machines.into_iter().flat_map(|it| it.errors).collect();
    for line in fs::read_to_string(&file).unwrap_or_default().lines() {
        let (period, token) = line.split_once(' ').unwrap();
        let works = report.works.entry(period.parse().unwrap()).or_default();
        works.push(token.parse().unwrap());
    }
    report
}

#[test]
fn m1_m4_m6_killed_machines_with_wrong_clocks_run_once_per_period() -> TestResult {
    let periods = setting("QUORLOCK_ONCE_PERIODS", if long_tests() { 100 } else { 4 });
    let length = length().as_millis() as u64;
    let lanes = setting("QUORLOCK_ONCE_LANES", 1);
    let nth = setting("QUORLOCK_ONCE_NTH", if periods < 20 { 1 } else { 10 });
    let servers = Servers::start(3)?;
    let folders = repeat(4, || tempfile::tempdir().unwrap());
    let mut clocks = Vec::new();
    for (folder, ahead) in folders.iter().zip([-250_i64, 250, -120, 120]) {
        if Clock::available() {
            let clock = Clock::create(folder.path())?;
            let by = ms(ahead.unsigned_abs());
            if ahead < 0 {
                clock.step_back(by)?
            } else {
                clock.step_forward(by)?
            }
            clocks.push(clock);
        }
    }
    let (urls, folder) = (servers.urls(), folders[0].path());
    let reports: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes)
            .map(|number| {
                let (urls, clocks) = (&urls, &clocks);
                scope.spawn(move || lane(urls, clocks, folder, number, periods, length, nth))
            })
            .collect();
        lanes.into_iter().map(|it| it.join().unwrap()).collect()
    });

    for report in reports {
        let (mut twice, mut outages) = (0, 0);
        for (period, ran) in &report.ran {
            let works = report.works.get(period).map_or(0, Vec::len);
            // A machine that was killed behind its work or its record was not told.
            assert!(*ran <= 1, "two successes in {period}: {report:?}");
            let is_outage = report.errors.iter().any(|it| it.0 == *period);
            outages += u64::from(works == 0);
            assert!(1 <= works || is_outage, "no run in {period}: {report:?}");
            // Only a kill between the work and its record repeats it, and always.
            let repeats = report.kills.get(period) == Some(&"worked");
            let is_right = works == 1 + usize::from(repeats);
            assert!(
                is_right || is_outage,
                "{works} runs in {period}: {report:?}"
            );
            twice += u64::from(1 < works);
        }
        for tokens in report.works.values() {
            assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        }
        let Report {
            periods, errors, ..
        } = &report;
        eprintln!(
            "{periods} periods, {twice} with a repeated run, {outages} without a majority, {} errors",
            errors.len()
        );
    }
    Ok(())
}
