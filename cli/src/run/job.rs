//! A running command: its processes, the guardian and the lock, until all processes are gone.

use std::io;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use quorlock::{Hold, LostReason};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use signal_hook::consts::SIGPIPE;

use crate::exit::{Exit, Failed};
use crate::holding::Run;
use crate::lease::{Lease, VARIABLE};
use crate::run::group::{Group, ourselves, shell};
use crate::run::guardian::Guardian;
use crate::run::signals::{Event, Events};
use crate::run::terminal::Terminal;
use crate::run::times::Times;
use crate::signals::is_ignored;
use crate::stderr::say;
use crate::{clock, lease};

/// The argument of the helper that becomes the command.
pub(crate) const TASK: &str = "__start";

/// The same, where SIGPIPE stays ignored.
pub(crate) const TASK_WITHOUT_PIPE: &str = "__start-without-pipe";

/// The interval of looks for the end of a group: the system does not announce it.
const GROUP_LOOK: Duration = Duration::from_millis(20);

/// A smaller difference is no extension, but that of two clock readings.
const GRAIN: Duration = Duration::from_millis(10);

/// The longest wait for killed processes: a process that nobody waits for stays.
const GONE_AFTER: Duration = Duration::from_secs(1);

/// Why the command has to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Why {
    /// The lock was lost, or could not be extended.
    Lost,
    /// There is no guardian any more.
    NoGuardian,
    /// The command has ended and has left processes.
    Left,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    why: Why,
    kill_at: Duration,
    killed: bool,
}

pub(crate) struct Job<'a> {
    run: &'a Run,
    hold: &'a Hold,
    /// Variables that tell of the lock.
    of_lock: &'a [(&'static str, String)],
    events: &'a Events,
    times: Times,
    lease: Lease,
    guardian: Guardian,
    replaced: bool,
    group: Group,
    terminal: Terminal,
    /// Stopped at a read of the terminal while we are in the background.
    wants_terminal: bool,
    kill_at: Duration,
    ending: Option<Ending>,
    said_lost: bool,
    on_lost: Option<Pid>,
    /// The status of the command, once it has ended.
    status: Option<WaitStatus>,
}

impl<'a> Job<'a> {
    /// Starts the command and its guardian.
    pub(crate) fn start(
        run: &'a Run,
        hold: &'a Hold,
        of_lock: &'a [(&'static str, String)],
        of_locks: String,
        events: &'a Events,
        times: Times,
    ) -> io::Result<Job<'a>> {
        adopt_orphans();
        events.hold_on()?;
        let path = lease::new_path(&of_locks)?;
        // RACE: quorlock can be killed at each of these lines. The guardian is there before the
        // file, and removes it. The command begins when the gate opens, after the guardian has its
        // group. A gate that is never opened ends the helper, see `lease`, also if one of these
        // lines fails.
        let mut guardian = Guardian::start(&path)?;
        let lease = Lease::create(path, of_locks)?;
        let ignores_pipe = is_ignored(SIGPIPE);
        let mut command = ourselves(if ignores_pipe {
            TASK_WITHOUT_PIPE
        } else {
            TASK
        })?;
        match &run.line {
            Some(line) => command.args(parts(&shell(line))),
            None => command.args(&run.command),
        };
        command
            .envs(of_lock.iter().cloned())
            .env(VARIABLE, lease.path());
        let group = Group(Pid::from_child(&command.spawn()?));
        let kill_at = times.kill_at(clock::now(), hold.remaining());
        guardian.watch(group, times.guardian_at(kill_at))?;
        let mut terminal = Terminal::ours();
        terminal.give_if_used(group);
        if let Err(err) = lease.open_gate(kill_at) {
            // Nothing was started.
            guardian.dismiss();
            return Err(err);
        }
        Ok(Job {
            run,
            hold,
            of_lock,
            events,
            times,
            lease,
            guardian,
            replaced: false,
            group,
            terminal,
            wants_terminal: false,
            kill_at,
            ending: None,
            said_lost: false,
            on_lost: None,
            status: None,
        })
    }

    /// Waits until all processes of the command are gone.
    pub(crate) fn finish(mut self) -> Result<u8, Failed> {
        loop {
            // At each look: the command may have ended already, and a SIGCHLD can get lost.
            self.reap();
            if self.status.is_some() && self.group_is_gone() {
                break;
            }
            self.look();
            match self.events.receiver.recv_timeout(self.pause()) {
                Ok(Event::Signal(number, of_manager)) => self.forward(number, of_manager),
                Ok(Event::Stop) => self.say("a command that holds a lock cannot be suspended"),
                Ok(Event::Child | Event::Lost)
                | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        self.terminal.take_back();
        self.wait_for_on_lost();
        let status = self.status;
        // The guardian may have killed it first.
        let killed = status.and_then(WaitStatus::terminating_signal) == Some(Signal::KILL.as_raw());
        let overdue = killed && self.kill_at <= clock::now() + GRAIN;
        let why = self
            .ending
            .map(|it| it.why)
            .or_else(|| overdue.then_some(Why::Lost));
        self.guardian.dismiss();
        match why {
            Some(Why::Lost) => Err(Failed::new(
                Exit::LOST,
                "the lock was lost while the command ran: the command was ended",
            )),
            Some(Why::NoGuardian) => Err(Failed::new(
                Exit::INTERNAL,
                "the guardian was killed twice: the command was ended",
            )),
            Some(Why::Left) | None => Ok(status.map_or(0, number)),
        }
    }

    /// Checks the lock, and ends the command if it is time.
    fn look(&mut self) {
        // Read before the lock: see `Times::kill_at`.
        let now = clock::now();
        if let Err(lost) = self.hold.check() {
            self.lose(now, lost.reason);
        } else if self.ending.is_none() {
            let kill_at = self.times.kill_at(now, self.hold.remaining());
            if GRAIN < kill_at.abs_diff(self.kill_at) {
                self.set_kill_at(kill_at);
            }
            if self.times.term_at(self.kill_at) <= now {
                self.end(Why::Lost, self.kill_at, "not extended");
                self.say("no majority of the servers has extended the lock: ending the command");
            }
        }
        if let Some(ending) = &mut self.ending
            && ending.kill_at <= now
        {
            let first = !ending.killed;
            ending.killed = true;
            if self.group.signal(Signal::KILL) == Err(Errno::PERM) && first {
                self.say("cannot kill processes of another user");
            }
        }
        if self.wants_terminal && self.terminal.give(self.group) {
            self.wants_terminal = false;
            self.group.go_on();
        }
    }

    fn set_kill_at(&mut self, kill_at: Duration) {
        self.kill_at = kill_at;
        self.guardian.set(self.times.guardian_at(kill_at));
        if let Err(err) = self.lease.set(kill_at)
            && self.run.taking.verbose
        {
            // `quorlock check` then fails too early, and never too late.
            self.say(&format!("{}: {err}", self.lease.path().display()));
        }
    }

    /// The lock was lost.
    fn lose(&mut self, now: Duration, lost: LostReason) {
        if self.said_lost {
            return;
        }
        self.said_lost = true;
        let kill_at = self.times.kill_lost(now, lost, self.kill_at);
        // The guardian first: it can act if we hang at a file. Then the lease, for `quorlock
        // check`.
        self.guardian.set(self.times.guardian_at(kill_at));
        self.lease.end();
        self.end(Why::Lost, kill_at, &lost.to_string());
        let overlap = if now < kill_at {
            "; another client may hold the lock already"
        } else {
            ""
        };
        self.say(&format!("{lost}: ending the command{overlap}"));
    }

    /// Sends TERM now, and KILL at `kill_at`. A loss replaces all other reasons.
    fn end(&mut self, why: Why, kill_at: Duration, reason: &str) {
        let before = self.ending;
        let kill_at = before.map_or(kill_at, |it| it.kill_at.min(kill_at));
        let why = before.filter(|_| why != Why::Lost).map_or(why, |it| it.why);
        self.ending = Some(Ending {
            why,
            kill_at,
            killed: false,
        });
        if why == Why::Lost {
            self.guardian.set(self.times.guardian_at(kill_at));
        }
        if why == Why::Lost && before.is_none_or(|it| it.why != Why::Lost) {
            self.start_on_lost(reason);
        }
        // Fails if all have ended.
        let _ = self.group.signal(Signal::TERM);
    }

    /// The time until the next look.
    fn pause(&self) -> Duration {
        let until = |time: Duration| time.saturating_sub(clock::now());
        let pause = match self.ending {
            None => until(self.times.term_at(self.kill_at)),
            Some(ending) if ending.killed => GROUP_LOOK,
            Some(ending) => until(ending.kill_at),
        };
        pause.min(if self.status.is_some() {
            GROUP_LOOK
        } else {
            self.times.look()
        })
    }

    /// Whether the group of an ended command is empty. Ends the processes that are left.
    fn group_is_gone(&mut self) -> bool {
        if !self.group.exists() {
            return true;
        }
        let now = clock::now();
        match self.ending {
            None => {
                if self.run.taking.verbose {
                    self.say("the command has left processes: ending them");
                }
                self.end(Why::Left, self.times.kill_soon(now, self.kill_at), "");
                false
            }
            // They are dead, but their parent does not wait for them.
            Some(ending) => ending.killed && ending.kill_at + GONE_AFTER < now,
        }
    }

    fn forward(&mut self, number: i32, of_manager: bool) {
        // A whole unit gets it: the guardian, and the command too. `pkill -f quorlock` finds the
        // guardian alone.
        if self.guardian.has_got(number) && of_manager {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(number) {
            let _ = self.group.signal(signal);
        }
    }

    /// Handles processes that have ended or stopped.
    fn reap(&mut self) {
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(it)) => it,
                Err(Errno::INTR) => continue,
                Ok(None) | Err(_) => return,
            };
            let stopped = status.stopping_signal();
            if pid == self.group.0 {
                match stopped {
                    Some(signal) => self.on_stop(signal),
                    None => self.status = Some(status),
                }
            } else if pid == self.guardian.pid() {
                match stopped {
                    Some(_) => drop(kill_process(pid, Signal::CONT)),
                    None => self.on_guardian_end(status),
                }
            } else if self.on_lost == Some(pid) && stopped.is_none() {
                self.on_lost = None;
            }
        }
    }

    fn on_stop(&mut self, signal: i32) {
        let reads_terminal = [Signal::TTIN, Signal::TTOU]
            .iter()
            .any(|it| it.as_raw() == signal);
        if reads_terminal && !self.terminal.give(self.group) {
            if !self.wants_terminal {
                self.say("the command reads the terminal, but runs in the background: use fg");
            }
            self.wants_terminal = true;
            return;
        }
        if !reads_terminal {
            self.say("a command that holds a lock cannot be suspended");
        }
        self.group.go_on();
    }

    fn on_guardian_end(&mut self, status: WaitStatus) {
        let now = clock::now();
        if status.exit_status() == Some(i32::from(Exit::LOST.number())) {
            // It has reported that. quorlock was stopped or starved.
            self.lease.end();
            self.said_lost = true;
            return self.end(Why::Lost, now, "not extended");
        }
        let kill_at = self
            .ending
            .filter(|it| it.why == Why::Lost)
            .map_or(self.kill_at, |it| it.kill_at);
        let guardian_at = self.times.guardian_at(kill_at);
        let another = (!self.replaced).then(|| {
            let mut guardian = Guardian::start(self.lease.path())?;
            guardian.watch(self.group, guardian_at)?;
            io::Result::Ok(guardian)
        });
        self.replaced = true;
        match another {
            Some(Ok(guardian)) => self.guardian = guardian,
            Some(Err(_)) | None => {
                self.end(Why::NoGuardian, self.times.kill_soon(now, self.kill_at), "")
            }
        }
    }

    fn start_on_lost(&mut self, reason: &str) {
        let Some(line) = &self.run.on_lost else {
            return;
        };
        let mut command = shell(line);
        command
            .envs(self.of_lock.iter().cloned())
            .env("QUORLOCK_LOST", reason);
        command.stdin(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        match command.spawn() {
            Ok(child) => self.on_lost = Some(Pid::from_child(&child)),
            Err(err) => self.say(&format!("--on-lost: {err}")),
        }
    }

    /// Waits for it, or for a signal.
    fn wait_for_on_lost(&mut self) {
        while self.on_lost.is_some() {
            match self.events.receiver.recv() {
                Ok(Event::Signal(..)) | Err(_) => return,
                Ok(_) => self.reap(),
            }
        }
    }

    fn say(&self, text: &str) {
        if !self.run.taking.quiet {
            say(text);
        }
    }
}

/// The program and its arguments.
fn parts(command: &Command) -> Vec<&std::ffi::OsStr> {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .collect()
}

/// The status, as in shells.
fn number(status: WaitStatus) -> u8 {
    let signal = status.terminating_signal().map(|it| it + 128);
    status
        .exit_status()
        .or(signal)
        .and_then(|it| u8::try_from(it).ok())
        .unwrap_or(u8::MAX)
}

/// Orphans become our children, so that we wait for them and a dead group is gone.
fn adopt_orphans() {
    // On other systems the first process of the machine adopts them.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}
