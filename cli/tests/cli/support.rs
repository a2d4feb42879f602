//! What these tests have in common.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::Duration;

use devnodes::{PATIENCE, Servers, eventually};
use quorlock::{Builder, LockManager};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use signal_hook::consts::{
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};

pub(crate) type TestResult = Result<(), Box<dyn std::error::Error>>;

/// The command, for these servers. It sees no options of whoever runs the tests, and a busy machine fails none.
pub(crate) fn quorlock(servers: &Servers) -> Command {
    quorlock_at(&servers.urls())
}

/// The same, for servers at these addresses.
pub(crate) fn quorlock_at(urls: &[String]) -> Command {
    let mut command = bare();
    command
        .env("QUORLOCK_NODES", urls.join(","))
        .env("QUORLOCK_NO_QUARANTINE", "true");
    command
        .env("QUORLOCK_TTL", "30")
        .env("QUORLOCK_RESPONSE_TIMEOUT", "5")
        .env("QUORLOCK_CONNECT_TIMEOUT", "10");
    command
}

/// Another client of the same servers, which a busy machine fails as little.
pub(crate) fn patient(urls: &[String]) -> Builder {
    let builder = LockManager::builder(urls)
        .quarantine(false)
        .response_timeout(Duration::from_secs(2));
    builder.connect_timeout(Duration::from_secs(10))
}

/// The same, built.
pub(crate) fn others(servers: &Servers) -> LockManager {
    patient(&servers.urls()).build().unwrap()
}

/// Whether another client is refused the lock because somebody holds it.
pub(crate) fn is_held(servers: &Servers, name: &str) -> bool {
    let refused = others(servers).mutex(name).try_lock().unwrap_err();
    refused.is_held()
}

/// The command, without servers.
pub(crate) fn bare() -> Command {
    signals_at_their_default();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock"));
    command.env("SHELL", "/bin/sh");
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUORLOCK_"))
    {
        command.env_remove(name);
    }
    command
}

/// Signals are at their default in what we start, whoever started us: a shell without jobs lets what runs in its background
/// ignore INT and QUIT, `nohup` HUP, and a process hands that on to its own.
fn signals_at_their_default() {
    static ONCE: Once = Once::new();
    // What is caught is at its default in another program. Only what is ignored is caught: so nothing changes for us.
    ONCE.call_once(|| {
        for signal in [
            SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU,
        ] {
            if is_ignored("self", signal) {
                signal_hook::flag::register(signal, Arc::default()).unwrap();
            }
        }
    });
}

/// Whether a process ignores a signal.
pub(crate) fn is_ignored(process: &str, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let bits = status
        .lines()
        .find_map(|it| it.strip_prefix("SigIgn:"))
        .unwrap();
    u64::from_str_radix(bits.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

/// A shell, as it starts what runs in its background, begins this command.
pub(crate) fn ignoring(command: &Command) -> Command {
    let traps = "trap '' HUP INT QUIT TERM USR1 USR2; exec \"$0\" \"$@\"";
    started_by(&["sh", "-c", traps], command)
}

/// A program that becomes this command.
pub(crate) fn started_by(starter: &[&str], command: &Command) -> Command {
    let mut all = Command::new(starter[0]);
    all.args(&starter[1..]);
    all.arg(command.get_program()).args(command.get_args());
    all.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    all
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The command while it runs. It is killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        Running::start_with(command, Stdio::piped())
    }

    /// With this as stderr.
    pub(crate) fn start_with(command: &mut Command, stderr: Stdio) -> Running {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            BufReader::new(stdout)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|it| sender.send(it))
        });
        Running {
            child,
            stdin,
            lines,
        }
    }

    /// What it says next on stdout; none once it has closed that.
    #[track_caller]
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it says nothing"),
            line => line.ok(),
        }
    }

    /// The next line that fits.
    #[track_caller]
    pub(crate) fn next_line(&self, fits: impl Fn(&str) -> bool) -> Option<String> {
        std::iter::from_fn(|| self.line()).find(|it| fits(it))
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_ref().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Its status, once it has ended by itself; none if a signal has ended it.
    #[track_caller]
    pub(crate) fn status(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// What it said on stderr, once it has ended.
    pub(crate) fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child
            .stderr
            .as_mut()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command at a terminal of its own. It is killed when this is dropped.
pub(crate) struct Terminal {
    child: Child,
    screen: File,
    said: Arc<Mutex<String>>,
}

impl Terminal {
    pub(crate) fn start(command: &mut Command) -> Terminal {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let line = File::options().read(true).write(true).open(path).unwrap();
        command
            .stdin(line.try_clone().unwrap())
            .stdout(line.try_clone().unwrap())
            .stderr(line);
        let child = command.spawn().unwrap();
        // It keeps the terminal open otherwise.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let screen = File::from(screen);
        let (mut reader, said) = (
            screen.try_clone().unwrap(),
            Arc::new(Mutex::new(String::new())),
        );
        let heard = Arc::clone(&said);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It fails when the command has ended.
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                heard
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&buffer[..len]));
            }
        });
        Terminal {
            child,
            screen,
            said,
        }
    }

    /// Everything that was said so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        eventually("it says what it should", || self.said().contains(text));
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.screen, "{line}").unwrap();
    }

    /// A key, as its byte.
    pub(crate) fn press(&mut self, key: u8) {
        self.screen.write_all(&[key]).unwrap();
    }

    #[track_caller]
    pub(crate) fn status(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe that is full, as one whose reader has ceased to read.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    // At last byte by byte: nothing has room.
    for size in [4096, 1] {
        while rustix::io::write(&writer, &b"x".repeat(size)).is_ok() {}
    }
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}
