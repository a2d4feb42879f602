//! `quorlock run` and `quorlock check`.

mod folders;
mod inherited;
mod losses;
mod processes;
mod starters;
mod statuses;
mod surroundings;
mod terminal;
mod waiting;

use std::fs;
use std::path::{Path, PathBuf};

use devnodes::{Servers, eventually};
use quorlock::{LockGuard, LockManager};
use rustix::process::{Pid, Signal, kill_process, test_kill_process, test_kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::support::*;

/// The clock that all processes of the machine share: seconds.
pub(crate) fn boot_clock() -> f64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// Commands that say when they lived, and do not end for a TERM: three generations of them, in files of a folder.
struct Beats {
    folder: TempDir,
}

impl Beats {
    fn new() -> Beats {
        let folder = tempfile::tempdir().unwrap();
        // Each writes its group, and then the time, again and again.
        let script = r#"
            trap '' TERM INT HUP
            if [ "$1" -lt 3 ]; then sh "$0" $(($1 + 1)) & fi
            [ "$1" = 1 ] && echo $$ >"${0%/*}/group"
            while :; do read now rest </proc/uptime; echo "$now" >>"${0%/*}/beats-$1"; sleep 0.04; done
        "#;
        fs::write(folder.path().join("beat.sh"), script).unwrap();
        Beats { folder }
    }

    /// The command that beats.
    fn command(&self) -> [String; 3] {
        [
            "sh".to_owned(),
            self.folder.path().join("beat.sh").display().to_string(),
            "1".to_owned(),
        ]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn of(&self, generation: u32) -> Vec<f64> {
        let text =
            fs::read_to_string(self.file(&format!("beats-{generation}"))).unwrap_or_default();
        // Of a line that is not complete only its beginning is there: an earlier time.
        text.lines().filter_map(|it| it.parse().ok()).collect()
    }

    fn wait_for_all_three(&self) {
        eventually("all generations live", || {
            (1..=3).all(|it| self.of(it).len() > 1) && self.file("group").exists()
        });
    }

    fn group(&self) -> Pid {
        pid(&fs::read_to_string(self.file("group")).unwrap())
    }

    fn wait_until_gone(&self) {
        eventually("the group is gone", || {
            test_kill_process_group(self.group()).is_err()
        });
    }

    /// When the last of them lived, in seconds of the clock of all processes.
    fn last(&self) -> f64 {
        (1..=3).flat_map(|it| self.of(it)).fold(0.0, f64::max)
    }
}

/// The processes that `quorlock` has started: their ids and command lines.
fn children(of: Pid) -> Vec<(Pid, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let (Ok(stat), Ok(line)) = (
            fs::read_to_string(path.join("stat")),
            fs::read_to_string(path.join("cmdline")),
        ) else {
            continue;
        };
        let Some((_, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        let mut words = rest.split_whitespace();
        let (state, parent) = (words.next(), words.next().and_then(|it| it.parse().ok()));
        if parent == Some(of.as_raw_nonzero().get()) && state != Some("Z") {
            found.push((
                pid(&entry.file_name().to_string_lossy()),
                line.replace('\0', " "),
            ));
        }
    }
    found
}

fn guardian(of: &Running) -> Option<Pid> {
    children(of.pid())
        .into_iter()
        .find(|(_, line)| line.contains("__guard"))
        .map(|it| it.0)
}

fn is_stopped(pid: Pid) -> bool {
    let tasks = Path::new("/proc")
        .join(pid.as_raw_nonzero().to_string())
        .join("task");
    let mut stats = fs::read_dir(tasks)
        .unwrap()
        .flatten()
        .map(|it| fs::read_to_string(it.path().join("stat")).unwrap());
    stats.all(|it| it.rsplit_once(')').unwrap().1.trim_start().starts_with('T'))
}

/// Somebody who waits for the lock until it can be taken; and when that was.
fn next_holder(locks: &LockManager) -> (LockGuard, f64) {
    let guard = locks.mutex("report").lock().unwrap();
    (guard, boot_clock())
}

/// A short lease: its ttl in seconds, and the options for it. A busy machine has to extend it in time.
const TTL: f64 = 3.0;
const SHORT: [&str; 4] = ["--ttl", "3", "--response-timeout", "700ms"];

fn stop(running: &Running) {
    kill_process(running.pid(), Signal::STOP).unwrap();
    eventually("it has stopped", || is_stopped(running.pid()));
}
