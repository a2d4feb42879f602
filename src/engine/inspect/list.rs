//! Looking for locks whose names nobody knows.

use std::collections::{BTreeMap, BTreeSet};

use crate::answer::Answer;
use crate::engine::park::{Signal, sleep};
use crate::engine::round::pending::{NodeQuery, Timed, ask_many};
use crate::engine::shared::Shared;
use crate::error::{AcquireError, NodeAnswer, NodeFailure};
use crate::ids::NodeId;
use crate::inspection::{Inspection, Listing, StoredKey};
use crate::logic::listing::{fits, pause, portion};
use crate::time::{self, Tick};
use crate::wire::{self, FoundName, Looked, ScanPlace};

/// More are not listed.
const LOCKS_MAX: usize = 100_000;
/// So many are inspected at once.
const TOGETHER: usize = 60;
/// No server has so many pages: one that goes on after that has no end.
const PAGES_MAX: usize = 1_000_000;

/// A look through the keys of one server, a page at a time.
struct Search {
    node: NodeId,
    place: ScanPlace,
    pages: usize,
    end: Option<Result<(), NodeFailure>>,
}

impl Shared {
    /// Looks through all nodes side by side, for locks and permits that somebody holds and whose name fits. Stops when
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
            end: None,
        };
        let mut searches: Vec<_> = self.fanout.ids().map(search).collect();
        let mut locks = BTreeMap::new();
        let mut rows = vec![NodeAnswer::NotAsked; self.fanout.nodes.len()];
        let mut fail = |node: NodeId, failure: &NodeFailure| {
            if let Some(row) = rows.get_mut(node.index()) {
                *row = NodeAnswer::Failed(failure.clone());
            }
        };
        while locks.len() < LOCKS_MAX && searches.iter().any(|search| search.end.is_none()) {
            let began = time::tick();
            let mut found = self.next_pages(&mut searches);
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
        for search in &searches {
            if let Some(Err(failure)) = &search.end {
                fail(search.node, failure);
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

    /// Whose keys stand on the next page of each search.
    fn next_pages(&self, searches: &mut [Search]) -> BTreeSet<FoundName> {
        let open = || searches.iter().filter(|search| search.end.is_none());
        let queries = open().map(|search| NodeQuery {
            command: wire::list(search.place),
            to: Some([search.node].into_iter().collect()),
        });
        let answers = ask_many(&self.fanout, queries);
        let mut found = BTreeSet::new();
        let open = searches.iter_mut().filter(|search| search.end.is_none());
        for (search, answers) in open.zip(answers) {
            if let Some((answer, _)) = answers.into_iter().nth(search.node.index()) {
                found.extend(search.take(answer));
            }
        }
        found
    }

    fn inspect_found(&self, found: &[FoundName]) -> Vec<Inspection> {
        let query = |(name, slot): &FoundName| NodeQuery {
            command: Looked::new(name, *slot).inspect(),
            to: None,
        };
        let answers = ask_many(&self.fanout, found.iter().map(query));
        let inspection = |((name, slot), answers): (&FoundName, Vec<Timed>)| {
            let name = name.get(self.config.prefix.len()..).unwrap_or_default();
            self.inspection(name, *slot, answers.into_iter().map(|(answer, _)| answer))
        };
        found.iter().zip(answers).map(inspection).collect()
    }
}

impl Search {
    /// Takes an answer: whose keys are in it.
    fn take(&mut self, answer: Result<Answer, NodeFailure>) -> BTreeSet<FoundName> {
        let (next, too_many, keys) = match answer {
            Ok(Answer::Listed {
                next,
                too_many,
                keys,
            }) => (next, too_many, keys),
            other => {
                let failure = other.err().unwrap_or_else(NodeFailure::of_another_command);
                self.end = Some(Err(failure));
                return BTreeSet::new();
            }
        };
        self.place.cursor = next;
        self.place.count = portion(self.place.count, too_many);
        self.pages = self.pages.saturating_add(1);
        // Behind an answer of which there were too many keys the same place comes again.
        if next == 0 && !too_many {
            self.end = Some(Ok(()));
        } else if PAGES_MAX <= self.pages {
            let reason = "its keys have no end".to_owned();
            self.end = Some(Err(NodeFailure::Protocol { reason }));
        }
        wire::names(&keys)
    }
}

/// The pause after questions that were sent at `began`. It ends with the manager.
fn rest(began: Tick, shutdown: &Signal) -> Result<(), AcquireError> {
    let took = time::tick().saturating_duration_since(began);
    sleep(time::deadline(pause(took)), &[shutdown]);
    if shutdown.is_given() {
        Err(AcquireError::ShutDown)
    } else {
        Ok(())
    }
}
