//! Starting and ending the process of a server.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tempfile::TempDir;

use crate::Error;
use crate::client::{Client, Reply};
use crate::find::Found;
use crate::port::Port;
use crate::server::Builder;
use crate::stand_in;
use crate::wait::wait_for;
use crate::watchdog::Watchdog;

/// Waits for "go" (the watchdog is told of the process first), then becomes the server.
const GATE: &str = r#"read -r go && exec "$@" </dev/null"#;

/// Why a start failed: only a taken port is worth another try.
pub(crate) enum Failed {
    PortTaken(Error),
    Other(Error),
}

/// What each start of a server needs.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) spec: Builder,
    pub(crate) binary: &'static Found,
    pub(crate) ports: Ports,
    pub(crate) folder: TempDir,
}

#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) plain: Port,
    pub(crate) tls: Option<Port>,
    /// Of a cluster, 10,000 above the others: kept for it while it is down.
    _buses: Vec<Port>,
}

impl Ports {
    pub(crate) fn choose(spec: &Builder) -> Result<Ports, Error> {
        let mut _buses = Vec::new();
        let mut choose = || {
            if !spec.cluster {
                return Port::choose();
            }
            let (port, bus) = Port::choose_with_bus()?;
            _buses.push(bus);
            Ok(port)
        };
        let plain = choose()?;
        let tls = spec.own_tls.as_ref().map(|_| choose()).transpose()?;
        Ok(Ports { plain, tls, _buses })
    }

    /// Where servers talk to each other.
    pub(crate) fn for_others(&self) -> &Port {
        self.tls.as_ref().unwrap_or(&self.plain)
    }
}

pub(crate) fn launch(setup: &Setup, watchdog: &mut Watchdog) -> Result<Child, Failed> {
    let (folder, port) = (setup.folder.path(), &setup.ports.plain);
    let password = setup.spec.password.as_deref();
    let before = read_log(folder).len();
    let mut child = spawn(setup).map_err(Failed::Other)?;
    let pid = child.id();
    let go = |child: &mut Child, watchdog: &mut Watchdog| {
        watchdog.watch(pid)?;
        let mut gate = child
            .stdin
            .take()
            .ok_or_else(|| Error::new("the server has no gate"))?;
        gate.write_all(b"go\n")
            .map_err(|e| Error::of("starting the server", e))
    };
    let answered = go(&mut child, watchdog).and_then(|()| {
        let up = || has_exited(&child) || answers(port.addr(), password, pid);
        wait_for(
            || format!("the server on port {} answers", port.number()),
            up,
        )
    });
    if answered.is_ok() && !has_exited(&child) {
        return Ok(child);
    }
    let _ = end(&mut child, watchdog);
    let log = read_log(folder);
    let log = log.get(before..).unwrap_or_default();
    let cause = answered
        .err()
        .unwrap_or_else(|| Error::new("the server ended before it answered"));
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n  ");
    let error = Error::new(format!("{cause}; its log ends:\n  {last}"));
    if log.contains("Address already in use") {
        Err(Failed::PortTaken(error))
    } else {
        Err(Failed::Other(error))
    }
}

fn spawn(setup: &Setup) -> Result<Child, Error> {
    let Setup {
        spec,
        binary,
        ports,
        folder,
    } = setup;
    let (folder, port) = (folder.path(), &ports.plain);
    let trying = || format!("starting {}", binary.binary.display());
    // The server's own output, so that what it says before it reads its options is there too.
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(log_path(folder))
        .map_err(|e| Error::of(trying(), e))?;
    let log_too = log.try_clone().map_err(|e| Error::of(trying(), e))?;
    let mut command = Command::new("sh");
    command.args(["-c", GATE, "devnodes-gate"]);
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(log).stderr(log_too);
    command.process_group(0); // Ctrl-C is for the test; the watchdog then sees to the server
    if stand_in::is_wanted(spec) {
        stand_in::add_to(&mut command, port.number()).map_err(|e| Error::of(trying(), e))?;
        return command.spawn().map_err(|e| Error::of(trying(), e));
    }
    command.arg(&binary.binary);
    if let Some(conf) = &spec.sentinel {
        // It writes into it what it learns, and has it after a restart.
        let path = folder.join("sentinel.conf");
        if !path.exists() {
            fs::write(&path, conf).map_err(|e| Error::of(trying(), e))?;
        }
        command.arg(path).arg("--sentinel");
    } else {
        command.args(["--save", "", "--appendonly", "no"]);
    }
    command.args(["--daemonize", "no", "--loglevel", "notice"]);
    command
        .args(["--port", &port.number().to_string(), "--dir"])
        .arg(folder)
        .args(["--bind", "127.0.0.1"]);
    if spec.own_source {
        let source = source_of(port).to_string();
        // Others than 127.0.0.1 are strangers to it otherwise.
        command.args(["--protected-mode", "no"]);
        match binary.major() {
            // It connects from the first address at which it listens.
            ..7 => command.args(["--bind", &source, "127.0.0.1"]),
            _ => command.args(["--bind-source-addr", &source]),
        };
    }
    if binary.major() >= 7 && spec.sentinel.is_none() {
        command.args(["--enable-debug-command", "yes"]);
    }
    if let Some(password) = &spec.password {
        command.args(["--requirepass", password]);
    }
    if spec.unix_socket {
        command.arg("--unixsocket").arg(socket_path(folder));
    }
    if let (Some(tls), Some(port)) = (&spec.own_tls, &ports.tls) {
        command.args(["--tls-port", &port.number().to_string()]);
        command.args(["--tls-auth-clients", "no", "--tls-replication", "yes"]);
        if spec.cluster {
            command.args(["--tls-cluster", "yes"]);
        }
        for (option, name, pem) in [
            ("--tls-cert-file", "chain.pem", &tls.certificate.chain),
            ("--tls-key-file", "key.pem", &tls.certificate.key),
            ("--tls-ca-cert-file", "ca.pem", &tls.authority),
        ] {
            let path = folder.join(name);
            fs::write(&path, pem).map_err(|e| Error::of(trying(), e))?;
            command.arg(option).arg(path);
        }
    }
    command
        .args(&spec.args)
        .spawn()
        .map_err(|e| Error::of(trying(), e))
}

/// The address on loopback from which a server connects to others, if it has one of its own.
pub(crate) fn source_of(port: &Port) -> Ipv4Addr {
    let [high, low] = port.number().to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// Kills and reaps; tells the watchdog in between, see there.
pub(crate) fn end(child: &mut Child, watchdog: &mut Watchdog) -> Result<(), Error> {
    let killed = child.kill().map_err(|e| Error::of("killing the server", e));
    let told = watchdog.forget();
    child
        .wait()
        .map_err(|e| Error::of("waiting for the server's end", e))?;
    killed.and(told)
}

/// Whether `pid` is who answers at `addr`. Refusing for want of a password is an answer; loading what it had is none.
fn answers(addr: SocketAddr, password: Option<&str>, pid: u32) -> bool {
    let ask = || -> Result<bool, Error> {
        let mut client = Client::connect(addr, None)?;
        client.set_timeout(Duration::from_secs(1))?;
        if let Some(password) = password {
            client.request(&["AUTH", password])?;
        }
        if matches!(client.request(&["PING"])?, Reply::Error(text) if text.starts_with("LOADING")) {
            return Ok(false);
        }
        // A stranger may have taken the port first; this server is then about to say so and end.
        let info = client.request(&["INFO", "server"])?;
        Ok(info_field(&info, "process_id").is_none_or(|id| id == pid.to_string()))
    };
    ask().unwrap_or(false)
}

/// Looks without reaping.
pub(crate) fn has_exited(child: &Child) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match id_of(child) {
        Ok(id) => !matches!(waitid(WaitId::Pid(id), look), Ok(None)),
        Err(_) => true,
    }
}

pub(crate) fn id_of(child: &Child) -> Result<Pid, Error> {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| Error::new("a process id out of range"))
}

pub(crate) fn info_field(info: &Reply, field: &str) -> Option<String> {
    let mut lines = info.as_str()?.lines();
    lines
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(str::to_owned)
}

fn log_path(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

pub(crate) fn read_log(folder: &Path) -> String {
    fs::read(log_path(folder))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

pub(crate) fn socket_path(folder: &Path) -> PathBuf {
    folder.join("server.sock")
}
