//! The floor, ours and the others, behind one face.

use std::time::{Duration, Instant};

use super::floor::Floor;
use super::ours::Ours;
use super::peer::Peer;
use super::peers::Peers;
use super::servers::Nodes;
use super::stats::{Batch, Samples, Window, process_cpu};
use super::{Result, Setting};

/// How long a peer may take for a batch before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Someone who can run pairs.
pub(crate) enum Contender {
    Floor(Floor),
    Ours(Ours),
    Peer(Peer),
}

impl Contender {
    pub(crate) fn floor(nodes: &Nodes) -> Result<Self> {
        Ok(Self::Floor(Floor::connect(&nodes.addrs())?))
    }

    pub(crate) fn ours(nodes: &Nodes) -> Result<Self> {
        Ok(Self::Ours(Ours::open(&nodes.urls())?))
    }

    pub(crate) fn peer(peers: &Peers, client: &'static str, nodes: &Nodes) -> Result<Self> {
        Ok(Self::Peer(peers.start(client, &nodes.urls())?))
    }

    /// Ours, then those of `clients` that there are.
    pub(crate) fn ours_and(setting: &Setting, clients: &[&'static str], nodes: &Nodes) -> Result<Vec<Self>> {
        let mut all = vec![Self::ours(nodes)?];
        if let Some(peers) = &setting.peers {
            for client in clients {
                all.push(Self::peer(peers, client, nodes)?);
            }
        }
        Ok(all)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Floor(_) => "floor",
            Self::Ours(_) => "quorlock",
            Self::Peer(peer) => peer.name(),
        }
    }

    /// Runs `n` pairs on a name of its own, one after the other.
    ///
    /// # Errors
    ///
    /// If the floor failed, or a peer has hung or ended. Pairs that were not acquired are counted instead.
    pub(crate) fn pairs(&mut self, n: usize) -> Result<Batch> {
        self.pairs_within(n, PATIENCE)
    }

    /// As [`pairs`](Self::pairs), and says how long a peer may take.
    pub(crate) fn pairs_within(&mut self, n: usize, patience: Duration) -> Result<Batch> {
        let name = format!("bench:{}", self.name());
        match self {
            Self::Floor(floor) => floor_pairs(floor, n, &name),
            Self::Ours(ours) => Ok(ours.pairs(n, &name)),
            Self::Peer(peer) => Ok(peer.pairs(n, &name, patience)?),
        }
    }

    /// Runs pairs on each of `n` threads for `window`, a name each. The floor has one thread, whatever `n`.
    pub(crate) fn threads(&mut self, n: usize, window: Duration) -> Result<Window> {
        let name = format!("bench:{}:t", self.name());
        match self {
            Self::Floor(floor) => floor_window(floor, window, &name),
            Self::Ours(ours) => Ok(ours.threads(n, window, &name)?),
            Self::Peer(peer) => Ok(peer.threads(n, window, &name)?),
        }
    }
}

fn floor_pairs(floor: &mut Floor, n: usize, name: &str) -> Result<Batch> {
    let mut batch = Batch::default();
    let cpu = process_cpu();
    for _ in 0..n {
        batch.samples.push(floor.pair(name)?);
    }
    batch.cpu = process_cpu().saturating_sub(cpu);
    Ok(batch)
}

fn floor_window(floor: &mut Floor, window: Duration, name: &str) -> Result<Window> {
    let (start, cpu) = (Instant::now(), process_cpu());
    let mut samples = Samples::default();
    while start.elapsed() < window {
        samples.push(floor.pair(name)?);
    }
    let (elapsed, cpu) = (start.elapsed(), process_cpu().saturating_sub(cpu));
    Ok(Window::new(&samples, 0, elapsed, cpu))
}
