//! Looking for locks whose names nobody knows.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::inspect::search::Search;
use crate::engine::nodes::voting_node::VotingNode;
use crate::engine::park::{Signal, sleep};
use crate::engine::round::ask::{self, NodeQuery};
use crate::engine::shared::Shared;
use crate::error::{AcquireError, NodeAnswer};
use crate::ids::NodeId;
use crate::inspection::{Inspection, Listing};
use crate::logic::listing::{Pace, fits};
use crate::time;
use crate::wire::{Command, FoundName, Looked};

/// More are not listed.
const NAMES_MAX: usize = 100_000;
/// So many locks are looked at together.
const TOGETHER: usize = 16;

/// Where is looked.
struct SearchTarget {
    node: NodeId,
    /// Of the servers that the node is spread over.
    part: usize,
    search: Search,
}

impl Shared {
    /// Looks through all nodes side by side, for locks and permits that somebody holds and whose name fits. Stops when
    /// `shut_down` is given. Not `only_held`: also those that have left something there.
    pub(crate) fn list(
        &self,
        pattern: &[u8],
        only_held: bool,
        shut_down: &Signal,
    ) -> Result<Listing, AcquireError> {
        let mut searches = self.searches(only_held);
        let mut found = BTreeSet::new();
        let is_fitting = |(name, _): &FoundName| {
            name.strip_prefix(&*self.config.prefix)
                .is_some_and(|it| fits(pattern, it))
        };
        while found.len() < NAMES_MAX {
            let question = |it: &SearchTarget| {
                let to = Some([it.node].into_iter().collect());
                Some(NodeQuery {
                    command: it.search.question()?,
                    to,
                    part: Some(it.part),
                })
            };
            let questions: Vec<_> = searches.iter().filter_map(question).collect();
            if questions.is_empty() {
                break;
            }
            let answers =
                ask::ask_many(&self.fanout, questions, self.fanout.deadline(time::tick()));
            let mut pause = Duration::ZERO;
            let asked = searches
                .iter_mut()
                .filter(|it| it.search.question().is_some());
            for (SearchTarget { node, search, .. }, mut answers) in asked.zip(answers) {
                if node.index() < answers.len() {
                    let (answer, took) = answers.swap_remove(node.index());
                    let new = search.take(answer, took.unwrap_or_default(), |it| {
                        is_fitting(it) && !found.contains(it)
                    });
                    found.extend(new.names);
                    pause = pause.max(new.pause);
                }
            }
            wait(pause, shut_down)?;
        }
        let is_full = NAMES_MAX <= found.len();
        let pace = searches
            .iter()
            .map(|it| it.search.pace())
            .min()
            .unwrap_or(Pace::new(Duration::MAX));
        let mut rows = vec![NodeAnswer::NotAsked; self.fanout.len()];
        for SearchTarget { node, search, .. } in searches {
            if let (Some(failure), Some(row)) = (search.failure(), rows.get_mut(node.index())) {
                *row = NodeAnswer::Failed(failure);
            }
        }
        let mut missed = self.fanout.report(rows);
        missed.retain(|it| matches!(it.answer, NodeAnswer::Failed(_)));
        let locks = self.inspect_all(found.into_iter().collect(), pace, shut_down)?;
        Ok(Listing {
            locks,
            is_complete: missed.is_empty() && !is_full,
            missed,
        })
    }

    /// A search in each server of each node.
    fn searches(&self, only_held: bool) -> Vec<SearchTarget> {
        // What a node is spread over is not known before it was asked for something.
        if self.fanout.is_any_spread() {
            ask::ask(
                &self.fanout,
                Command::time(),
                None,
                self.fanout.deadline(time::tick()),
            );
        }
        let of = |node: &VotingNode| {
            let (id, is_spread) = (node.id, node.is_spread());
            let search = move |part| SearchTarget {
                node: id,
                part,
                search: Search::new(only_held, is_spread),
            };
            (0..node.serving().len().max(1)).map(search)
        };
        self.fanout.nodes().iter().flat_map(of).collect()
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
            let inspect = |(name, slot): &FoundName| Looked::new(name, *slot).inspect();
            let commands = some.iter().map(|it| NodeQuery {
                command: inspect(it),
                to: None,
                part: None,
            });
            let answers = ask::ask_many(&self.fanout, commands, self.fanout.deadline(began));
            for ((name, slot), answers) in some.iter().zip(answers) {
                let answers = answers.into_iter().map(|(answer, _)| answer);
                locks.push(self.inspection(name.get(prefix..).unwrap_or_default(), *slot, answers));
            }
            wait(
                pace.pause(time::tick().saturating_duration_since(began)),
                shut_down,
            )?;
        }
        Ok(locks)
    }
}

/// A pause that ends with the manager.
fn wait(pause: Duration, shut_down: &Signal) -> Result<(), AcquireError> {
    if !pause.is_zero() {
        sleep(time::deadline(pause), &[shut_down]);
    }
    if shut_down.is_given() {
        Err(AcquireError::ShutDown)
    } else {
        Ok(())
    }
}
