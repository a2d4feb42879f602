//! The floor, ours and the others, behind one face.

use std::time::{Duration, Instant};

use super::Result;
use super::floor::{Floor, Form};
use super::ours::Ours;
use super::peer::Peer;
use super::servers::Nodes;
use super::stats::{Batch, Window, process_cpu};

/// How long a peer may take for a batch before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of the floor where all take part; that of the floor with our scripts, ours, and that of the floor of callers that
/// block.
pub(crate) const FLOOR: usize = 0;
pub(crate) const SCRIPTS: usize = 1;
pub(crate) const OURS: usize = 2;
pub(crate) const CALLERS: usize = 3;

/// Someone who can run pairs.
pub(crate) enum Contender {
    Floor(Floor),
    Ours(Ours),
    Peer(Peer),
}

impl Contender {
    /// The floors and ours, then those of `clients`: the first four have [numbers](FLOOR).
    pub(crate) fn all(clients: &[&'static str], nodes: &Nodes) -> Result<Vec<Self>> {
        let mut all = Self::ours_and(clients, nodes)?;
        let form = Form::record(nodes.client()?, |name| match &mut all[0] {
            Self::Ours(ours) if ours.pairs(1, name).failed == 0 => Ok(()),
            _ => Err("nothing to record: no lock".into()),
        })?;
        let addrs = nodes.addrs()?;
        let callers = Floor::of_callers(&addrs, form.clone())?;
        let floors = [Floor::plain(&addrs)?, Floor::with_scripts(&addrs, form)?];
        all.splice(..0, floors.map(Self::Floor));
        all.insert(CALLERS, Self::Floor(callers));
        Ok(all)
    }

    pub(crate) fn ours(nodes: &Nodes) -> Result<Self> {
        Ok(Self::Ours(Ours::open(&nodes.urls())?))
    }

    /// Ours, then those of `clients`.
    pub(crate) fn ours_and(clients: &[&'static str], nodes: &Nodes) -> Result<Vec<Self>> {
        let mut all = vec![Self::ours(nodes)?];
        for client in clients {
            all.push(Self::Peer(Peer::other(client, &nodes.urls())?));
        }
        Ok(all)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Floor(floor) => floor.name(),
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
        let name = format!("bench:{}", self.name().replace(' ', "_"));
        match self {
            Self::Floor(floor) => floor_pairs(floor, n, &name),
            Self::Ours(ours) => Ok(ours.pairs(n, &name)),
            Self::Peer(peer) => Ok(peer.pairs(n, &name, patience)?),
        }
    }

    /// Runs pairs on each of `n` threads for `window`, a name each. A floor has one thread, and `n` pairs under way.
    pub(crate) fn threads(&mut self, n: usize, window: Duration) -> Result<Window> {
        let name = format!("bench:{}:t", self.name().replace(' ', "_"));
        match self {
            Self::Floor(floor) => {
                let (start, cpu) = (Instant::now(), process_cpu());
                let samples = floor.window(n, window, &name)?;
                let elapsed = start.elapsed();
                floor.settle()?;
                Ok(Window::new(
                    &samples,
                    0,
                    elapsed,
                    process_cpu().saturating_sub(cpu),
                ))
            }
            Self::Ours(ours) => Ok(ours.threads(n, window, &name)?),
            Self::Peer(peer) => Ok(peer.threads(n, window, &name)?),
        }
    }
}

fn floor_pairs(floor: &mut Floor, n: usize, name: &str) -> Result<Batch> {
    let cpu = process_cpu();
    let samples = floor.pairs(n, name)?;
    floor.settle()?;
    Ok(Batch {
        samples,
        failed: 0,
        cpu: process_cpu().saturating_sub(cpu),
    })
}
