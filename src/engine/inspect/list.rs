//! Looking for locks whose names nobody knows.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::park::{Signal, sleep};
use crate::engine::round::ask;
use crate::engine::shared::Shared;
use crate::error::{AcquireError, NodeAnswer, NodeFailure};
use crate::ids::{NodeId, NodeSet};
use crate::inspection::Listing;
use crate::logic::listing::{Pace, Portion, fits};
use crate::time;
use crate::wire::{self, Command, FoundName, ScanPlace};

/// More are not listed.
const NAMES_MAX: usize = 100_000;
/// No node has so many keys: one that goes on after that has no end.
const PAGES_MAX: usize = 1_000_000;

/// Why a node was not looked through to its end.
enum Missed {
    Failed(NodeFailure),
    /// There is no room for more names.
    Full,
    ShutDown,
}

impl From<NodeFailure> for Missed {
    fn from(failure: NodeFailure) -> Missed {
        Missed::Failed(failure)
    }
}

impl Shared {
    /// Looks through all nodes, one after another, for locks and permits that somebody holds and whose name fits. Stops when
    /// `shut_down` is given.
    pub(crate) fn list(&self, pattern: &[u8], shut_down: &Signal) -> Result<Listing, AcquireError> {
        let (mut found, mut is_complete) = (BTreeSet::new(), true);
        let mut rows = vec![NodeAnswer::NotAsked; self.fanout.len()];
        for (node, row) in self.fanout.ids().zip(&mut rows) {
            match self.look_through(node, pattern, shut_down, &mut found) {
                Ok(()) => {}
                Err(Missed::Full) => is_complete = false,
                Err(Missed::Failed(failure)) => *row = NodeAnswer::Failed(failure),
                Err(Missed::ShutDown) => return Err(AcquireError::ShutDown),
            }
        }
        let mut missed = self.fanout.report(rows);
        missed.retain(|it| matches!(it.answer, NodeAnswer::Failed(_)));
        let (mut locks, mut pace) = (Vec::new(), Pace::new(Duration::MAX));
        for (name, slot) in found {
            let began = time::tick();
            let name = name.get(self.config.prefix.len()..).unwrap_or_default();
            locks.push(self.inspect(name, slot));
            wait(pace.pause(time::tick().saturating_duration_since(began)), shut_down)?;
        }
        is_complete &= missed.is_empty();
        Ok(Listing { locks, missed, is_complete })
    }

    /// Adds what one node knows to `found`.
    fn look_through(
        &self,
        node: NodeId,
        pattern: &[u8],
        shut_down: &Signal,
        found: &mut BTreeSet<FoundName>,
    ) -> Result<(), Missed> {
        // Once to connect, and once to see how long nothing takes.
        self.ask_one(node, Command::time())?;
        let (_, way) = self.ask_one(node, Command::time())?;
        let (mut pace, mut portion, mut cursor) = (Pace::new(way), Portion::first(), 0);
        for _ in 0..PAGES_MAX {
            let (answer, took) = self.ask_one(node, wire::list(ScanPlace { cursor, count: portion.count() }))?;
            let Answer::Listed { next, too_many, keys } = answer else { return Err(unexpected().into()) };
            wait(pace.pause(took), shut_down)?;
            let wanted = |(name, slot): &FoundName| {
                let is_ours = name.strip_prefix(&*self.config.prefix).is_some_and(|it| fits(pattern, it));
                is_ours && !found.contains(&(name.clone(), *slot))
            };
            let names: Vec<_> = wire::names(&keys).into_iter().filter(wanted).collect();
            if !names.is_empty() {
                let (answer, took) = self.ask_one(node, wire::present(&names))?;
                let Answer::Present(present) = answer else { return Err(unexpected().into()) };
                wait(pace.pause(took), shut_down)?;
                found.extend(names.into_iter().zip(present).filter_map(|(name, is_there)| is_there.then_some(name)));
                if NAMES_MAX <= found.len() {
                    return Err(Missed::Full);
                }
            }
            (cursor, portion) = (next, portion.next(too_many));
            if cursor == 0 && !too_many {
                return Ok(());
            }
        }
        Err(Missed::Failed(NodeFailure::Protocol { reason: "its keys have no end".to_owned() }))
    }

    /// Asks one node; how long that took.
    fn ask_one(&self, node: NodeId, command: Command) -> Result<(Answer, Duration), NodeFailure> {
        let to = [node].into_iter().collect::<NodeSet>();
        let mut answers = ask::ask_timed(&self.fanout, command, Some(to), self.fanout.deadline(time::tick()));
        if node.index() < answers.len() {
            let (answer, took) = answers.swap_remove(node.index());
            return Ok((answer?, took.unwrap_or_default()));
        }
        Err(NodeFailure::Internal)
    }
}

fn unexpected() -> NodeFailure {
    NodeFailure::Protocol { reason: "an answer to another command".to_owned() }
}

/// A pause that ends with the manager.
fn wait(pause: Duration, shut_down: &Signal) -> Result<(), Missed> {
    if !pause.is_zero() {
        sleep(time::deadline(pause), &[shut_down]);
    }
    if shut_down.is_given() { Err(Missed::ShutDown) } else { Ok(()) }
}

impl From<Missed> for AcquireError {
    fn from(_: Missed) -> AcquireError {
        AcquireError::ShutDown
    }
}
