//! Looking for locks whose names nobody knows.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::inspect::search::Search;
use crate::engine::park::{Signal, sleep};
use crate::engine::round::ask;
use crate::engine::shared::Shared;
use crate::error::{AcquireError, NodeAnswer};
use crate::ids::NodeId;
use crate::inspection::{Inspection, Listing};
use crate::logic::listing::{Pace, fits};
use crate::time;
use crate::wire::{FoundName, Looked};

/// More are not listed.
const NAMES_MAX: usize = 100_000;
/// So many locks are looked at together.
const TOGETHER: usize = 16;

impl Shared {
    /// Looks through all nodes side by side, for locks and permits that somebody holds and whose name fits. Stops when
    /// `shut_down` is given.
    pub(crate) fn list(&self, pattern: &[u8], shut_down: &Signal) -> Result<Listing, AcquireError> {
        let mut searches: Vec<_> = self.fanout.ids().map(|node| (node, Search::new())).collect();
        let mut found = BTreeSet::new();
        let is_fitting =
            |(name, _): &FoundName| name.strip_prefix(&*self.config.prefix).is_some_and(|it| fits(pattern, it));
        while found.len() < NAMES_MAX {
            let question =
                |(node, search): &(NodeId, Search)| Some((search.question()?, Some([*node].into_iter().collect())));
            let questions: Vec<_> = searches.iter().filter_map(question).collect();
            if questions.is_empty() {
                break;
            }
            let answers = ask::ask_many(&self.fanout, questions, self.fanout.deadline(time::tick()));
            let mut pause = Duration::ZERO;
            let asked = searches.iter_mut().filter(|(_, it)| it.question().is_some());
            for ((node, search), mut answers) in asked.zip(answers) {
                if node.index() < answers.len() {
                    let (answer, took) = answers.swap_remove(node.index());
                    let new = search.take(answer, took.unwrap_or_default(), |it| is_fitting(it) && !found.contains(it));
                    found.extend(new.names);
                    pause = pause.max(new.pause);
                }
            }
            wait(pause, shut_down)?;
        }
        let is_full = NAMES_MAX <= found.len();
        let pace = searches.iter().map(|(_, it)| it.pace()).min().unwrap_or(Pace::new(Duration::MAX));
        let failures = searches.into_iter().map(|(_, it)| it.failure());
        let rows = failures.map(|it| it.map_or(NodeAnswer::NotAsked, NodeAnswer::Failed));
        let mut missed = self.fanout.report(rows.collect());
        missed.retain(|it| matches!(it.answer, NodeAnswer::Failed(_)));
        let locks = self.inspect_all(found.into_iter().collect(), pace, shut_down)?;
        Ok(Listing { locks, is_complete: missed.is_empty() && !is_full, missed })
    }

    /// Looks at all of these, several at a time.
    fn inspect_all(
        &self,
        found: Vec<FoundName>,
        mut pace: Pace,
        shut_down: &Signal,
    ) -> Result<Vec<Inspection>, AcquireError> {
        let mut locks = Vec::new();
        for some in found.chunks(TOGETHER) {
            let (began, prefix) = (time::tick(), self.config.prefix.len());
            let commands = some.iter().map(|(name, slot)| (Looked::new(name, *slot).inspect(), None));
            let answers = ask::ask_many(&self.fanout, commands, self.fanout.deadline(began));
            for ((name, slot), answers) in some.iter().zip(answers) {
                let answers = answers.into_iter().map(|(answer, _)| answer);
                locks.push(self.inspection(name.get(prefix..).unwrap_or_default(), *slot, answers));
            }
            wait(pace.pause(time::tick().saturating_duration_since(began)), shut_down)?;
        }
        Ok(locks)
    }
}

/// A pause that ends with the manager.
fn wait(pause: Duration, shut_down: &Signal) -> Result<(), AcquireError> {
    if !pause.is_zero() {
        sleep(time::deadline(pause), &[shut_down]);
    }
    if shut_down.is_given() { Err(AcquireError::ShutDown) } else { Ok(()) }
}
