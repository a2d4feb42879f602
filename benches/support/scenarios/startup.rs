//! What does it cost to run a command under a lock?
//!
//! `quorlock run NAME -- true` on five servers, beside `flock FILE true`, which asks no server; `redis-cli`, where there is one,
//! which sets and deletes a key on one server; and `true` alone. The order rotates. Processor time is that of all processes
//! that take part: the command `quorlock` has a guardian.

use std::env;
use std::path::PathBuf;

use crate::support::Result;
use crate::support::build::build;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::Setting;
use crate::support::starter::{Took, start};
use crate::support::stats::{Table, num};

/// The one that all are compared with.
const FLOCK: &str = "flock FILE true";

pub(crate) fn run(setting: &Setting) -> Result {
    let (times, rounds) = setting.size((20, 5), (10, 2));
    setting.begin(&format!(
        "startup: a command under a lock, {} runs of {} processes each",
        setting.runs(),
        times * rounds
    ));
    println!("building the command");
    let program = match build("\"name\":\"quorlock\"", &["--package", "quorlock-cli"]) {
        Ok(program) => program.display().to_string(),
        Err(err) => {
            println!("it cannot be built, going on without it: {err}");
            return Ok(());
        }
    };
    let nodes = Nodes::start()?;
    let variables = [
        ("QUORLOCK_NODES", nodes.urls().join(",")),
        ("QUORLOCK_NO_QUARANTINE", "true".to_owned()),
    ];
    let commands = commands(&program, nodes.addrs()?[0].port());
    let mut runs = Runs::new(commands.iter().map(|it| it.0));
    for _ in 0..setting.runs() {
        let mut seen: Vec<Vec<Took>> = commands.iter().map(|_| Vec::new()).collect();
        for turn in 0..rounds {
            for i in (0..commands.len()).map(|i| (i + turn) % commands.len()) {
                seen[i].push(start(times, &commands[i].1, &variables)?);
            }
        }
        for (who, seen) in seen.iter().enumerate() {
            let mean =
                |number: fn(&Took) -> f64| seen.iter().map(number).sum::<f64>() / seen.len() as f64;
            runs.push(
                who,
                Took {
                    wall_ms: mean(|it| it.wall_ms),
                    cpu_ms: mean(|it| it.cpu_ms),
                },
            );
        }
    }
    print(&runs);
    Ok(())
}

/// What is run, and how it is called.
fn commands(program: &str, port: u16) -> Vec<(&'static str, Vec<String>)> {
    let words = |it: &[&str]| it.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
    let file = env::temp_dir()
        .join(format!("quorlock-bench-{port}.lock"))
        .display()
        .to_string();
    let mut commands = vec![
        ("true", words(&["true"])),
        (FLOCK, words(&["flock", &file, "true"])),
        (
            "quorlock run NAME -- true",
            words(&[program, "run", "bench:startup", "--", "true"]),
        ),
        (
            "quorlock status NAME",
            words(&[program, "status", "bench:startup"]),
        ),
    ];
    if is_there("redis-cli") {
        let set = format!(
            "redis-cli -p {port} SET bench:cli x NX PX 30000 && true && redis-cli -p {port} DEL bench:cli"
        );
        commands.push((
            "redis-cli SET && true && redis-cli DEL",
            words(&["sh", "-c", &set]),
        ));
    } else {
        println!("no redis-cli here, going on without it");
    }
    commands.retain(|it| it.0 != FLOCK || is_there("flock"));
    commands
}

fn is_there(program: &str) -> bool {
    let folders: Vec<PathBuf> = env::var_os("PATH")
        .map(|it| env::split_paths(&it).collect())
        .unwrap_or_default();
    folders.iter().any(|it| it.join(program).is_file())
}

fn print(runs: &Runs<Took>) {
    let mut table = Table::new(&[
        "",
        "x flock",
        "above flock ms",
        "wall ms",
        "x flock cpu",
        "cpu ms",
    ]);
    let flock = runs.find(FLOCK);
    for (who, name) in runs.names() {
        let ratio =
            |number: fn(&Took) -> f64| flock.map_or(f64::NAN, |it| runs.ratio(who, it, number));
        let above = flock.map_or(f64::NAN, |it| runs.excess(who, it, |it| it.wall_ms));
        table.row(vec![
            name.to_owned(),
            num(ratio(|it| it.wall_ms), 2),
            num(above, 2),
            num(runs.median(who, |it| it.wall_ms), 2),
            num(ratio(|it| it.cpu_ms), 2),
            num(runs.median(who, |it| it.cpu_ms), 2),
        ]);
    }
    table.print();
}
