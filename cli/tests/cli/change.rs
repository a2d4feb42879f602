//! The procedures of `guide::servers_change`, played as the page has them: on real servers, under held locks.
//!
//! In a block of `console` a line with `#` is a step of the operator, a line with `$` a command of ours, and the rest is what that
//! says on stdout. Programs of the library use the servers meanwhile; they are strict, each holds a lock, and they contend for
//! another one. Where the page shows something else than what comes out, the test fails; with `QUORLOCK_WRITE_SESSIONS=1` it
//! writes the page instead.

use std::fs;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use devnodes::{PATIENCE, Servers, eventually};
use quorlock::{Builder, LockGuard, LockManager};

use crate::sessions::constant::Constant;
use crate::sessions::{page, with_session};
use crate::support::*;

const PAGE: &str = "src/guide/servers_change.md";
/// What begins an address in the page; its last number is that of the server, counted from one.
const NETWORK: &str = "10.0.0.";
/// The ttl and the longest one, so that a quarantine is short. A busy machine has to extend locks in time.
const TTL: Duration = Duration::from_secs(3);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(700);
const PROGRAMS: usize = 3;

fn program(urls: &[String]) -> Builder {
    let builder = LockManager::builder(urls)
        .ttl(TTL)
        .max_ttl(TTL)
        .response_timeout(RESPONSE_TIMEOUT);
    builder
        .connect_timeout(Duration::from_secs(10))
        .outage_timeout(PATIENCE)
        .owner_label("billing")
        .strict(true)
}

/// A program that holds a lock of its own, and takes another one again and again.
struct Program {
    held: LockGuard,
    ends: Arc<AtomicBool>,
    work: JoinHandle<()>,
}

impl Program {
    fn start(urls: &[String], number: usize, is_inside: &Arc<AtomicBool>) -> Program {
        let locks = program(urls).build().unwrap();
        let held = locks.mutex(format!("shard-{number}")).lock().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let (is_over, is_inside) = (Arc::clone(&ends), Arc::clone(is_inside));
        let work = thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let guard = locks.mutex("invoice").lock().unwrap();
                let is_first = !is_inside.swap(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(2));
                is_inside.store(false, Ordering::SeqCst);
                assert!(is_first || guard.check().is_err(), "two hold the lock");
                drop(guard);
            }
        });
        Program { held, ends, work }
    }

    /// Its lock was its own to the end.
    fn end(self) {
        self.ends.store(true, Ordering::SeqCst);
        self.work.join().unwrap();
        self.held.check().unwrap();
        self.held.release().unwrap();
    }
}

/// The servers of the page, the programs, and the operator.
struct Fleet {
    servers: Servers,
    is_down: Vec<bool>,
    /// The servers in the list that is deployed.
    set: Vec<usize>,
    programs: Vec<Program>,
    /// Locks that one more program holds.
    held: Vec<LockGuard>,
    is_inside: Arc<AtomicBool>,
    shown: String,
}

impl Fleet {
    /// The first servers are in use.
    fn new(set: usize) -> Result<Fleet, Box<dyn std::error::Error>> {
        // With their data: a restart alone costs them the vote.
        let servers = Servers::start_with(5, |it| it.appendonly())?;
        let (is_down, set) = (vec![false; servers.len()], (0..set).collect());
        let is_inside = Arc::new(AtomicBool::new(false));
        let mut fleet = Fleet {
            servers,
            is_down,
            set,
            programs: Vec::new(),
            held: Vec::new(),
            is_inside,
            shown: String::new(),
        };
        assert!(fleet.quorlock(&["vouch", "--yes"]).status.success());
        fleet.start_programs();
        Ok(fleet)
    }

    fn urls(&self) -> Vec<String> {
        self.set.iter().map(|it| self.servers[*it].url()).collect()
    }

    /// The command, as it is deployed together with the programs: what comes of it.
    fn quorlock(&self, args: &[&str]) -> Output {
        let mut command: Command = quorlock_at(&self.urls());
        command
            .env_remove("QUORLOCK_NO_QUARANTINE")
            .env("QUORLOCK_MAX_TTL", "3");
        command.env("QUORLOCK_RESPONSE_TIMEOUT", "700ms");
        command.args(args).output().unwrap()
    }

    fn start_programs(&mut self) {
        let urls = self.urls();
        self.programs = (0..PROGRAMS)
            .map(|it| Program::start(&urls, it, &self.is_inside))
            .collect();
        self.wait_until_noted();
    }

    fn wait_until_noted(&self) {
        eventually("the list is in use, and its servers vote", || {
            self.is_noted()
        });
    }

    /// Whether the living servers vote, and have the number of the list in their records.
    fn is_noted(&self) -> bool {
        // A new one sees what a program sees that starts now.
        let rows = program(&self.urls()).build().unwrap().check_nodes();
        rows.iter()
            .zip(&self.set)
            .filter(|(_, server)| !self.is_down[**server])
            .all(|(row, _)| row.is_fine())
    }

    /// No held lock was lost.
    fn check(&self, step: &str) {
        for program in &self.programs {
            program
                .held
                .check()
                .unwrap_or_else(|err| panic!("{step}: {err}"));
            assert!(!program.work.is_finished(), "{step}: a program has ended");
        }
        for guard in &self.held {
            guard.check().unwrap_or_else(|err| panic!("{step}: {err}"));
        }
    }

    /// What the operator does.
    fn take(&mut self, step: &str) {
        let servers = numbers(step);
        match step
            .split(&[' ', ','][..])
            .find(|it| !it.starts_with(NETWORK))
            .unwrap_or_default()
        {
            "has" => {
                self.servers[servers[0]].kill().unwrap();
                self.is_down[servers[0]] = true;
            }
            "Start" => {
                self.servers[servers[0]].restart_empty().unwrap();
                self.is_down[servers[0]] = false;
            }
            "Stop" => servers
                .iter()
                .for_each(|it| self.servers[*it].kill().unwrap()),
            "Restart" => self.servers[servers[0]].restart().unwrap(),
            "Deploy" if self.programs.is_empty() => {
                self.set = servers;
                self.start_programs();
            }
            "Deploy" => self.deploy(servers),
            "Delete" => servers.iter().for_each(|server| {
                let deleted = self.servers[*server].command(&["DEL", "quorlock:record"]);
                assert!(deleted.is_ok());
            }),
            "End" => self.programs.drain(..).for_each(Program::end),
            _ => panic!("no step: {step}"),
        }
    }

    /// One program after another ends and starts with the new list.
    fn deploy(&mut self, set: Vec<usize>) {
        self.set = set;
        let urls = self.urls();
        for number in 0..self.programs.len() {
            self.programs.remove(number).end();
            self.programs
                .insert(number, Program::start(&urls, number, &self.is_inside));
            self.check("a deployment");
        }
        self.wait_until_noted();
    }

    /// A line with one of our commands, and what it says. Its status counts if the line shows that.
    fn run(&self, line: &str) -> String {
        let (command, shows_status) = line
            .strip_suffix("; echo \"status $?\"")
            .map_or((line, false), |it| (it, true));
        let words: Vec<_> = command.split(' ').collect();
        assert_eq!(words[0], "quorlock", "{line}");
        let output = self.quorlock(&words[1..]);
        let status = output.status.code().unwrap();
        assert!(
            shows_status || status == 0,
            "{line}: {}{}",
            stdout(&output),
            stderr(&output)
        );
        stdout(&output)
            + &if shows_status {
                format!("status {status}\n")
            } else {
                String::new()
            }
    }
}

/// The servers whose addresses are in a step.
fn numbers(step: &str) -> Vec<usize> {
    let numbers = step
        .split(NETWORK)
        .skip(1)
        .map(|it| it.split(|it: char| !it.is_ascii_digit()).next().unwrap());
    numbers.map(|it| it.parse::<usize>().unwrap() - 1).collect()
}

/// The steps and commands of a session in the page.
fn steps(text: &str, name: &str) -> Vec<String> {
    let (_, block) = text
        .split_once(&format!("```console {name}\n"))
        .unwrap_or_else(|| panic!("no session {name}"));
    let lines = block.split("```").next().unwrap_or_default().lines();
    lines
        .filter(|it| it.starts_with("# ") || it.starts_with("$ "))
        .map(str::to_owned)
        .collect()
}

/// Plays a session, and compares it with the page. Gives back what all commands said.
fn play(name: &str, fleet: &mut Fleet) -> Result<String, Box<dyn std::error::Error>> {
    static WRITES: Mutex<()> = Mutex::new(());
    for line in steps(&fs::read_to_string(page(PAGE))?, name) {
        let said = match line.split_at(2) {
            ("# ", step) => {
                fleet.take(step);
                String::new()
            }
            (_, command) => fleet.run(command),
        };
        fleet.check(&line);
        fleet.shown.push_str(&format!("{line}\n{said}"));
    }
    let addresses = fleet
        .servers
        .iter()
        .map(|it| it.addr().to_string())
        .collect();
    let session = Constant::new(addresses).text(&fleet.shown);
    fleet.programs.drain(..).for_each(Program::end);

    let _alone = WRITES.lock().unwrap();
    let text = fs::read_to_string(page(PAGE))?;
    let (with_session, _) = with_session(&text, name, &session);
    let writes = std::env::var_os("QUORLOCK_WRITE_SESSIONS").is_some();
    if writes {
        fs::write(page(PAGE), &with_session)?;
    }
    assert!(
        writes || text == with_session,
        "{name}: with QUORLOCK_WRITE_SESSIONS=1 this test writes:\n{session}"
    );
    Ok(session)
}

#[test]
fn h26_a_new_server_at_a_dead_ones_address_costs_no_lock_and_no_deployment() -> TestResult {
    let said = play("same-address", &mut Fleet::new(3)?)?;
    assert!(said.ends_with("3 of 3 servers vote\n"), "{said}");
    Ok(())
}

#[test]
fn h26_a_dead_server_is_replaced_by_one_with_another_address_without_a_lost_lock() -> TestResult {
    let said = play("other-address", &mut Fleet::new(3)?)?;
    assert!(said.ends_with("3 of 3 servers vote\n"), "{said}");
    Ok(())
}

#[test]
fn h26_three_servers_become_five_under_held_locks() -> TestResult {
    let said = play("three-to-five", &mut Fleet::new(3)?)?;
    assert!(said.ends_with("5 of 5 servers vote\n"), "{said}");
    Ok(())
}

#[test]
fn h26_five_servers_become_three_under_held_locks() -> TestResult {
    play("five-to-three", &mut Fleet::new(5)?)?;
    Ok(())
}

#[test]
fn h26_five_servers_in_place_of_three_at_once_need_all_programs_to_end() -> TestResult {
    let said = play("stop-all", &mut Fleet::new(3)?)?;
    assert!(said.ends_with("5 of 5 servers vote\n"), "{said}");
    Ok(())
}

/// And two of three at once, which is why there is a wait between.
#[test]
fn h26_servers_restart_one_after_another_under_two_hundred_locks_and_none_is_lost() -> TestResult {
    if std::env::var_os("QUORLOCK_LONG").is_none() {
        eprintln!("skipped: set QUORLOCK_LONG=1 to run it");
        return Ok(());
    }
    let mut fleet = Fleet::new(3)?;
    let locks = program(&fleet.urls()).build()?;
    fleet.held = (0..200)
        .map(|it| locks.mutex(format!("job-{it}")).lock())
        .collect::<Result<_, _>>()?;
    play("restarts", &mut fleet)?;

    fleet.take("Restart 10.0.0.1.");
    fleet.take("Restart 10.0.0.2.");
    eventually("all locks are lost", || {
        fleet.held.iter().all(|it| it.check().is_err())
    });
    Ok(())
}
