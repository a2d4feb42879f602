//! The options of `run`, `once`, `check` and `hold`.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use clap::ArgGroup;
use quorlock::LockManager;
use quorlock::once::Job;

use crate::options::{duration, time_of_day};
use crate::taking::Taking;

/// Ends the help of `run`.
const RUN: &str = "\
quorlock waits for the lock and extends it while the command runs. It releases the lock when the \
command and all its processes have ended. Signals (INT, TERM, HUP, QUIT, USR1, USR2) end the wait, \
or go to the command and its processes.

If no majority of the servers extends the lock, the processes get TERM, then KILL before the lock \
expires. If quorlock itself is killed, stopped or starved, a second process, the guardian, sends \
KILL. If the keys are deleted or taken away, the next extension detects this, up to a third of the \
ttl later; another program may hold the lock by then.

Not covered:
  - a process that leaves the group: setsid, jobs of an interactive shell
  - a process of another user: run `sudo quorlock`, not `quorlock run NAME -- sudo`
  - KILL or STOP for quorlock and its guardian together; a suspended machine, for a \
moment after it resumes
Only storage that checks the fencing token covers these cases.

The command gets QUORLOCK_NAME, QUORLOCK_FENCING_TOKEN (with -s the token of the last writer) and \
QUORLOCK_LEASE, the file for `quorlock check`, in TMPDIR (/tmp), XDG_RUNTIME_DIR or /dev/shm.

Exit status: that of the command, or 128+N if signal N ended it. Otherwise:
   64  invalid options                     77  wrong password or missing permission
   69  no majority of the servers          78  invalid configuration, the key is not a lock, or the
   70  fault of this machine, or a bug         command takes a lock that it runs under
   75  lock held by others (-E)            79  lock lost, command ended
  128+N  signal N ended the wait     126, 127  command not executable, not found

Examples:
  quorlock run nightly-report -- report --all        waits for the lock
  quorlock run -n -E 0 -q index -- index --update    skips it while another machine runs it
  quorlock run -w 30 deploy -c 'build && push'       waits for half a minute; runs a shell command
  quorlock run --permits 3 mail -- send-mail         as one of three";

#[derive(Debug, clap::Args)]
#[command(
    after_help = RUN,
    override_usage = "quorlock run [OPTIONS] <NAME>... -- <CMD>...\n       quorlock run [OPTIONS] \
        <NAME>... -c <STRING>"
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Time from TERM to KILL if the lock is lost; at most half of the ttl less 1 s [default: 5s,
    /// or that limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// Shell command to run if the lock is lost. It is not killed; quorlock waits for it
    #[arg(long, value_name = "STRING")]
    pub(crate) on_lost: Option<String>,
    /// Shell command to run instead of CMD
    #[arg(
        short = 'c',
        long = "command",
        value_name = "STRING",
        conflicts_with = "command"
    )]
    pub(crate) line: Option<String>,
    /// Command to run, with its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present = "line")]
    pub(crate) command: Vec<OsString>,
}

/// Ends the help of `once`.
const ONCE: &str = "\
The servers record each success, and later calls of the period find it. After a failure or a crash \
the next call runs the command again. It gets QUORLOCK_PERIOD, too. If its effect is in one \
database, put the record there.

Exit status: that of the command; 0 if it is done already; as for `quorlock run`; and:
   69  with --at-most-once: servers have lost data, it may have run
   73  the command succeeded, and no majority has its record
   75  somebody runs it (-E)
   76  a run at most once was broken off: look what it has done, then give --again

Examples:
  quorlock once -q --every 1d --at 03:00 nightly-report -- report --all   for cron
  quorlock once --keep 24h payment:4711 -- pay 4711                       an idempotency key";

#[derive(Debug, clap::Args)]
#[command(
    after_help = ONCE,
    override_usage = "quorlock once [OPTIONS] <--every|--fire-time|--keep> <TIME> <NAME> -- \
        <CMD>...",
    mut_args(|it| match it.get_id().as_str() {
        "shared" | "exclusive" | "permits" => it.hide(true),
        "wait" => it.help("Wait at most TIME while somebody runs it [default: 0]"),
        _ => it,
    }),
    group = ArgGroup::new("plan").required(true).args(["every", "fire_time", "keep"])
)]
pub(crate) struct Planned {
    /// Once per period of this length, counted from 1970 in UTC: 1d, 1h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    every: Option<Duration>,
    /// Begin of the periods, in UTC: the time of a daily job
    #[arg(long, value_name = "HH:MM", default_value = "00:00", value_parser = time_of_day)]
    at: Duration,
    /// Once per time of a scheduler: seconds since 1970, the same on all machines
    #[arg(long, value_name = "UNIX")]
    fire_time: Option<u32>,
    /// Once per name, for TIME after a run
    #[arg(long, value_name = "TIME", value_parser = duration)]
    keep: Option<Duration>,
    /// Never run it twice, even if a run was broken off
    #[arg(long)]
    at_most_once: bool,
    /// Record a failure like a success
    #[arg(long)]
    failures_count: bool,
    /// Run it although an earlier run was broken off
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    pub(crate) run: Run,
}

impl Planned {
    pub(crate) fn job(&self, locks: &LockManager, name: &str) -> Job {
        let job = locks.once(name).at(self.at).again(self.again);
        let job = job.failures_count(self.failures_count);
        let job = match (self.every, self.fire_time, self.keep) {
            (Some(every), ..) => job.every(every),
            (_, Some(time), _) => {
                job.fire_time(SystemTime::UNIX_EPOCH + Duration::from_secs(time.into()))
            }
            (.., keep) => job.keep(keep.unwrap_or_default()),
        };
        let taking = &self.run.taking;
        let job = job.wait_for(taking.wait.filter(|_| !taking.no_wait).unwrap_or_default());
        if self.at_most_once {
            job.at_most_once()
        } else {
            job
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads the file QUORLOCK_LEASE, which has the time until which the processes may run without an \
extension. Contacts no server.

Exit status: 0 held; 79 not held; 70 cannot read the file

Example, between the steps of a script:
  quorlock check --at-least 5s || exit")]
pub(crate) struct Check {
    /// Require the lock for TIME from now, even without an extension
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    pub(crate) at_least: Duration,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes a line for each event: `held TOKEN`, then `lost REASON` or `released`. The token is larger \
than the tokens of all earlier holders; with -s it is the token of the last writer. The end of \
stdin or a signal ends the wait as well.

Exit status: 0 released; 79 lost; 75 (-E) held by others, or stdin ended during the wait; 69 no \
majority of the servers; 128+N signal N ended the wait

Examples:
  quorlock hold nightly-report                holds until Ctrl-D or Ctrl-C
  quorlock hold --json -w 30 nightly-report   for programs")]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Hold until a signal comes, not until stdin ends
    #[arg(long)]
    pub(crate) until_signal: bool,
    /// Write JSON, an object in each line
    #[arg(long)]
    pub(crate) json: bool,
}
