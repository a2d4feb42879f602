//! A look through the keys of one node, a question at a time.

use std::time::Duration;

use crate::answer::Answer;
use crate::error::NodeFailure;
use crate::logic::listing::{Pace, Portion};
use crate::wire::{self, Command, FoundName, ScanPlace};

/// No node has so many keys: one that goes on after that has no end.
const PAGES_MAX: usize = 1_000_000;

/// How far it has come.
pub(super) struct Search {
    /// Names whose locks somebody holds, and no others.
    only_held: bool,
    step: SearchStep,
    pace: Pace,
    portion: Portion,
    cursor: u64,
    pages: usize,
    /// In a cluster a question is about keys of one slot.
    by_slot: bool,
    /// What is asked next, before the search goes on.
    later: Vec<FoundName>,
}

enum SearchStep {
    /// It is asked for nothing: once to connect.
    Connect,
    /// And once to see how long nothing takes.
    Measure,
    Scan,
    /// Whether the keys of these are there.
    Look(Vec<FoundName>),
    Over(Result<(), NodeFailure>),
}

/// What came of an answer.
pub(super) struct Found {
    pub(super) names: Vec<FoundName>,
    /// How long the node is left alone.
    pub(super) pause: Duration,
}

impl Search {
    pub(super) fn new(only_held: bool, by_slot: bool) -> Search {
        let (pace, portion) = (Pace::new(Duration::MAX), Portion::first());
        Search {
            only_held,
            step: SearchStep::Connect,
            pace,
            portion,
            cursor: 0,
            pages: 0,
            by_slot,
            later: Vec::new(),
        }
    }

    /// What the node is asked next; `None` if it is over.
    pub(super) fn question(&self) -> Option<Command> {
        match &self.step {
            SearchStep::Connect | SearchStep::Measure => Some(Command::time()),
            SearchStep::Scan => Some(wire::list(ScanPlace {
                cursor: self.cursor,
                count: self.portion.count(),
            })),
            SearchStep::Look(names) => Some(wire::present(names)),
            SearchStep::Over(_) => None,
        }
    }

    /// Takes the answer, which took so long, and leaves out what is not `wanted`.
    pub(super) fn take(
        &mut self,
        answer: Result<Answer, NodeFailure>,
        took: Duration,
        wanted: impl Fn(&FoundName) -> bool,
    ) -> Found {
        let mut found = Found {
            names: Vec::new(),
            pause: Duration::ZERO,
        };
        let step = std::mem::replace(&mut self.step, SearchStep::Over(Ok(())));
        self.step = match (step, answer) {
            (_, Err(failure)) => SearchStep::Over(Err(failure)),
            (SearchStep::Connect, Ok(_)) => SearchStep::Measure,
            (SearchStep::Measure, Ok(_)) => {
                self.pace = Pace::new(took);
                SearchStep::Scan
            }
            (
                SearchStep::Scan,
                Ok(Answer::Listed {
                    next,
                    too_many,
                    keys,
                }),
            ) => {
                found.pause = self.pace.pause(took);
                self.cursor = next;
                self.portion = self.portion.next(too_many);
                self.pages = self.pages.saturating_add(1);
                let names: Vec<_> = wire::names(&keys).into_iter().filter(wanted).collect();
                if self.only_held && !names.is_empty() {
                    self.look(names)
                } else {
                    found.names = names;
                    self.go_on(too_many)
                }
            }
            (SearchStep::Look(names), Ok(Answer::Present(present))) => {
                found.pause = self.pace.pause(took);
                found.names.extend(
                    names
                        .into_iter()
                        .zip(present)
                        .filter_map(|(name, is_there)| is_there.then_some(name)),
                );
                match std::mem::take(&mut self.later) {
                    none if none.is_empty() => self.go_on(false),
                    later => self.look(later),
                }
            }
            (over @ SearchStep::Over(_), _) => over,
            (SearchStep::Scan | SearchStep::Look(_), Ok(_)) => {
                SearchStep::Over(Err(NodeFailure::of_another_command()))
            }
        };
        found
    }

    /// Looks whether the keys of these are there.
    fn look(&mut self, names: Vec<FoundName>) -> SearchStep {
        let slot = |it: &FoundName| wire::present(std::slice::from_ref(it)).slot();
        let first = names.first().and_then(slot);
        let (now, later) = names
            .into_iter()
            .partition(|it| !self.by_slot || slot(it) == first);
        self.later = later;
        SearchStep::Look(now)
    }

    /// Behind an answer of which there were `too_many` keys the same place comes again.
    fn go_on(&self, too_many: bool) -> SearchStep {
        if self.cursor == 0 && !too_many {
            SearchStep::Over(Ok(()))
        } else if PAGES_MAX <= self.pages {
            SearchStep::Over(Err(NodeFailure::Protocol {
                reason: "its keys have no end".to_owned(),
            }))
        } else {
            SearchStep::Scan
        }
    }

    /// The pace at which it went.
    pub(super) fn pace(&self) -> Pace {
        self.pace
    }

    /// Why it was not looked through to its end, if not.
    pub(super) fn failure(self) -> Option<NodeFailure> {
        match self.step {
            SearchStep::Over(Err(failure)) => Some(failure),
            _ => None,
        }
    }
}
