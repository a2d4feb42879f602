//! The five servers, started fresh for each scenario.

use std::net::SocketAddr;
use std::time::Duration;

use super::Result;
use super::line::addrs;
use super::proxy::Proxy;
use super::stats::cpu_of;

/// The node that is paused and killed.
const VICTIM: usize = 0;
/// Until all servers have answered, and not only a majority.
const STRAGGLE: Duration = Duration::from_millis(2);

/// Five Redis servers on loopback; they die with this value.
pub(crate) struct Nodes {
    servers: devnodes::Servers,
    /// Between them and the clients.
    proxy: Option<Proxy>,
}

impl Nodes {
    pub(crate) fn start() -> Result<Self> {
        let servers = devnodes::Servers::start(5)?;
        Ok(Self {
            servers,
            proxy: None,
        })
    }

    /// With a network before them on which a round trip takes so long.
    pub(crate) fn behind_network(round_trip: Duration) -> Result<Self> {
        let nodes = Self::start()?;
        let proxy = Proxy::start(round_trip, &nodes.urls())?;
        Ok(Self {
            proxy: Some(proxy),
            ..nodes
        })
    }

    /// Where clients connect to.
    pub(crate) fn urls(&self) -> Vec<String> {
        match &self.proxy {
            Some(proxy) => proxy
                .addrs()
                .iter()
                .map(|it| format!("redis://{it}"))
                .collect(),
            None => self.servers.urls(),
        }
    }

    /// The same, as addresses.
    pub(crate) fn addrs(&self) -> Result<Vec<SocketAddr>> {
        Ok(addrs(&self.urls())?)
    }

    /// A connection to one of them, past any network.
    pub(crate) fn client(&self) -> Result<devnodes::Client> {
        Ok(self.servers[0].client()?)
    }

    /// Processor time of all of them.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for server in self.servers.iter() {
            sum += cpu_of(server.pid())?;
        }
        Ok(sum)
    }

    /// Does the `work`; says how much processor time the servers needed for it.
    pub(crate) fn metered<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
        let before = self.cpu()?;
        let done = work()?;
        // What is still on its way counts for whoever sent it.
        std::thread::sleep(STRAGGLE);
        Ok((done, self.cpu()?.saturating_sub(before)))
    }

    /// Processor time of the network, if there is one: more than a core would make it a bottleneck.
    pub(crate) fn network_cpu(&self) -> Result<Duration> {
        Ok(self
            .proxy
            .as_ref()
            .map(Proxy::cpu)
            .transpose()?
            .unwrap_or_default())
    }

    /// Commands that the nodes have executed since they started, all nodes together.
    pub(crate) fn commands(&self) -> Result<u64> {
        let mut sum = 0;
        for server in self.servers.iter() {
            let reply = server.command(&["INFO", "stats"])?;
            let text = reply.as_str().unwrap_or_default();
            let count = text
                .lines()
                .find_map(|line| line.strip_prefix("total_commands_processed:"));
            sum += count
                .ok_or("INFO without total_commands_processed")?
                .parse::<u64>()?;
        }
        Ok(sum)
    }

    /// What each node has been asked for since it started; this question is not counted.
    pub(crate) fn calls(&self) -> Result<Vec<Calls>> {
        self.servers
            .iter()
            .map(|server| {
                Ok(Calls::read(
                    server.command(&["INFO", "commandstats"])?.as_str(),
                ))
            })
            .collect()
    }

    /// Stops all nodes for this long.
    pub(crate) fn pause_all(&self, time: Duration) -> Result {
        self.servers.iter().try_for_each(devnodes::Server::pause)?;
        std::thread::sleep(time);
        self.servers.iter().try_for_each(devnodes::Server::resume)?;
        Ok(())
    }

    /// Does to one node what `fault` says.
    pub(crate) fn break_one(&self, fault: Fault) -> Result {
        match fault {
            Fault::Paused => self.servers[VICTIM].pause()?,
            Fault::Killed => self.servers[VICTIM].kill()?,
        }
        Ok(())
    }

    /// Takes it back. A killed node returns on its port, empty.
    pub(crate) fn mend(&self, fault: Fault) -> Result {
        match fault {
            Fault::Paused => self.servers[VICTIM].resume()?,
            Fault::Killed => self.servers[VICTIM].restart()?,
        }
        Ok(())
    }
}

/// Commands that a node has executed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    /// Scripts run by their hash: what a manager of ours does to a lock.
    pub(crate) scripts: u64,
    /// All commands, those that scripts call included.
    pub(crate) all: u64,
}

impl Calls {
    fn read(info: Option<&str>) -> Self {
        let mut calls = Self::default();
        for line in info.unwrap_or_default().lines() {
            let Some((name, numbers)) = line.trim_start_matches("cmdstat_").split_once(':') else {
                continue;
            };
            let count = numbers
                .split(',')
                .find_map(|it| it.strip_prefix("calls=")?.parse::<u64>().ok());
            let count = count.filter(|_| name != "info").unwrap_or(0);
            calls.all += count;
            calls.scripts += if name == "evalsha" { count } else { 0 };
        }
        calls
    }

    /// How many more there are than in `before`, node by node.
    pub(crate) fn since(now: &[Self], before: &[Self]) -> Vec<Self> {
        let more = |(now, before): (&Self, &Self)| Self {
            scripts: now.scripts.saturating_sub(before.scripts),
            all: now.all.saturating_sub(before.all),
        };
        now.iter().zip(before).map(more).collect()
    }
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// SIGSTOP: connections stay open, nothing is answered.
    Paused,
    /// SIGKILL: connections break, new ones are refused.
    Killed,
}
