//! The options of the commands that hold a lock, or run under one.

use std::ffi::OsString;
use std::time::Duration;

use crate::options::{duration, switch};
use crate::taking::Taking;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The lock is waited for, extended while the command runs, and released when the command and all its processes have ended. \
Signals (INT, TERM, HUP, QUIT, USR1, USR2) go to the command and its processes, or end the wait.

If the lock can no longer be extended, the processes get TERM, and KILL so early that they are gone before the lock can be \
anybody else's, also if quorlock itself is killed, stopped or starved: a second process, the guardian, sees to that.

Not covered: a process that leaves the group (setsid, the jobs of an interactive shell); one that becomes another user's \
(write sudo quorlock, and not quorlock run NAME -- sudo); a KILL for quorlock and its guardian alike; and a machine that \
stands still as a whole: when it goes on, the command may run for a moment before it is killed. Only storage that checks \
the token closes that gap.

The command has QUORLOCK_NAME, QUORLOCK_FENCING_TOKEN (with -s that of the last writer) and QUORLOCK_LEASE, the file that \
`quorlock check` reads.

Ends with the status of the command, or 128 and the number of the signal that ended it. And with
   75  the lock was not to be had in time (-E)      126  the command cannot be executed
   69  no majority of the servers can be asked      127  there is no such command
   79  the lock was lost, the command was killed    64   options that make no sense
   77  a wrong password, or an access list          78   a configuration that cannot be used
  128+ a signal of this number ended the wait       70   a fault of this machine, or of quorlock

Examples:
  quorlock run nightly-report -- report --all         waits for the lock
  quorlock run -n -E 0 -q nightly-report -- report    for cron: one machine does it, the others are content
  quorlock run -w 30 deploy -c 'build && push'        waits for half a minute; a line for the shell
  quorlock run --permits 3 mail -- send-mail          as one of three")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// So long after TERM comes KILL, if the lock can no longer be extended; a second less than half of the ttl at most
    /// [default: 5s]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_KILL_AFTER", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// A line for the shell, run beside the command when the lock is lost: it is not killed, and is waited for
    #[arg(long, value_name = "STRING", env = "QUORLOCK_ON_LOST")]
    pub(crate) on_lost: Option<String>,
    /// A line for the shell, in place of a command
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    pub(crate) line: Option<String>,
    /// The command, and its options
    #[arg(last = true, value_name = "CMD", required_unless_present = "line")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Asks no server: it reads the file that QUORLOCK_LEASE names, which says how long the processes may run if the lock is not \
extended. Ends with 0 if it is held for that long, and 79 if not.

Example, between the steps of a script:
  quorlock check --at-least 5s || exit")]
pub(crate) struct Check {
    /// For so long from now, even if nothing extends it [default: for this moment]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_AT_LEAST", value_parser = duration)]
    pub(crate) at_least: Option<Duration>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Says a line for each thing that happens: `held TOKEN` once the lock is held, `lost REASON` or `released` when it is not \
any more. The token is larger than that of every earlier holder; with -s it is that of the last writer. \
When stdin ends during the wait, or a signal comes, the wait ends.

Ends with 0 if the lock was released, 79 if it was lost, 75 (-E) if it was not to be had in time, 69 if no majority of the \
servers can be asked, 128 and the number of the signal that ended the wait.

Examples:
  quorlock hold nightly-report                holds it until Ctrl-D or Ctrl-C
  quorlock hold --json -w 30 nightly-report   for programs: see the page on the command")]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Only a signal ends it: for programs that are started without a stdin
    #[arg(long, env = "QUORLOCK_UNTIL_SIGNAL", value_parser = switch())]
    pub(crate) until_signal: bool,
    /// Says it in JSON, an object in each line
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}
