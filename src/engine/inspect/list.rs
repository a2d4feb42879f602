//! The search for held locks.

use std::collections::{BTreeMap, BTreeSet};

use crate::answer::Answer;
use crate::engine::park::{Signal, sleep};
use crate::engine::round::{NodeQuery, Timed, query_many};
use crate::engine::shared::ManagerState;
use crate::error::{AcquireError, NodeAnswer, NodeFailure};
use crate::ids::NodeId;
use crate::inspection::{Inspection, Listing, StoredKey};
use crate::logic::listing::{fits, pause, portion};
use crate::time::{self, Tick};
use crate::wire::{self, FoundName, LockKeys, ScanPlace};

/// Largest number of listed locks.
const LOCKS_MAX: usize = 100_000;
/// Number of locks inspected at once.
const TOGETHER: usize = 60;
/// Largest number of pages of a server: a search beyond it has no end.
const PAGES_MAX: usize = 1_000_000;

/// The search of one server, a page at a time.
struct Search {
    node: NodeId,
    place: ScanPlace,
    pages: usize,
}

impl ManagerState {
    /// Searches all nodes side by side for held locks and permits with fitting names. Stops when
    /// `shutdown` is given.
    pub(crate) fn list(&self, pattern: &[u8], shutdown: &Signal) -> Result<Listing, AcquireError> {
        let prefix = &*self.config.prefix;
        let is_fitting = |name: &[u8]| {
            name.strip_prefix(prefix)
                .is_some_and(|it| fits(pattern, it))
        };
        let search = |node| Search {
            node,
            place: ScanPlace {
                cursor: 0,
                count: portion(u64::MAX, false),
            },
            pages: 0,
        };
        let mut searches: Vec<_> = self.fanout.ids().map(search).collect();
        let mut locks = BTreeMap::new();
        let mut rows = vec![NodeAnswer::NotAsked; self.fanout.nodes.len()];
        let mut fail = |node: NodeId, failure: &NodeFailure| {
            if let Some(row) = rows.get_mut(node.index()) {
                *row = NodeAnswer::Failed(failure.clone());
            }
        };
        while locks.len() < LOCKS_MAX && !searches.is_empty() {
            let began = time::tick();
            // Names on the next page of each search.
            let mut found = BTreeSet::new();
            let queries = searches.iter().map(|search| NodeQuery {
                command: wire::list(search.place),
                to: Some([search.node].into_iter().collect()),
            });
            let mut answers = query_many(&self.fanout, queries).into_iter();
            searches.retain_mut(|search| {
                let answers = answers.next().unwrap_or_default();
                let Some((answer, _)) = answers.into_iter().nth(search.node.index()) else {
                    return false;
                };
                let goes_on = search.take(answer, &mut found);
                if let Err(failure) = &goes_on {
                    fail(search.node, failure);
                }
                goes_on == Ok(true)
            });
            rest(began, shutdown)?;
            found.retain(|name| is_fitting(&name.0) && !locks.contains_key(name));
            let found: Vec<_> = found.into_iter().collect();
            for some in found.chunks(TOGETHER) {
                let began = time::tick();
                for (name, seen) in some.iter().zip(self.inspect_found(some)) {
                    let mut is_there = false;
                    for row in &seen.nodes {
                        match &row.stored {
                            Ok(stored) => is_there |= stored.key != StoredKey::Missing,
                            Err(failure) => fail(row.node, failure),
                        }
                    }
                    if is_there {
                        locks.insert(name.clone(), seen);
                    }
                }
                rest(began, shutdown)?;
            }
        }
        let is_full = LOCKS_MAX <= locks.len();
        let mut missed = self.fanout.report(rows);
        missed.retain(|row| matches!(row.answer, NodeAnswer::Failed(_)));
        Ok(Listing {
            locks: locks.into_values().collect(),
            is_complete: missed.is_empty() && !is_full,
            missed,
        })
    }

    fn inspect_found(&self, found: &[FoundName]) -> Vec<Inspection> {
        let query = |(name, slot): &FoundName| NodeQuery {
            command: LockKeys::named(name, *slot).inspect(),
            to: None,
        };
        let answers = query_many(&self.fanout, found.iter().map(query));
        let inspection = |((name, slot), answers): (&FoundName, Vec<Timed>)| {
            let name = name.get(self.config.prefix.len()..).unwrap_or_default();
            self.inspection(name, *slot, answers.into_iter().map(|(answer, _)| answer))
        };
        found.iter().zip(answers).map(inspection).collect()
    }
}

impl Search {
    /// Adds the names in an answer to `found`. False at the end of the search.
    fn take(
        &mut self,
        answer: Result<Answer, NodeFailure>,
        found: &mut BTreeSet<FoundName>,
    ) -> Result<bool, NodeFailure> {
        let Answer::Listed {
            next,
            too_many,
            keys,
        } = answer?
        else {
            return Err(NodeFailure::of_another_command());
        };
        self.place.cursor = next;
        self.place.count = portion(self.place.count, too_many);
        self.pages = self.pages.saturating_add(1);
        found.extend(keys.iter().filter_map(|key| wire::owner_of(key)));
        // After an answer with too many keys the search repeats the place.
        if next == 0 && !too_many {
            return Ok(false);
        }
        if PAGES_MAX <= self.pages {
            return Err(NodeFailure::protocol("its keys have no end"));
        }
        Ok(true)
    }
}

/// The pause after commands sent at `began`. A shutdown ends it.
fn rest(began: Tick, shutdown: &Signal) -> Result<(), AcquireError> {
    let took = time::tick().saturating_duration_since(began);
    sleep(time::deadline(pause(took)), &[shutdown]);
    if shutdown.is_given() {
        Err(AcquireError::ShutDown)
    } else {
        Ok(())
    }
}
