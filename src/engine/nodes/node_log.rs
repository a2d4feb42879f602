//! Log lines and events of a node.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::server::Server;
use crate::error::{NodeFailure, QuarantineReason};
use crate::observer::{Event, Journal};
use crate::session::SessionEvent;
use crate::stats::count;
use crate::sys::logging::{Level, debug, info, warn, write_line};
use crate::time::{self, About, Tick};

/// Shortest time between warnings of clock steps, and of dropped releases: a broken clock may step
/// with every answer.
const WARNED_EVERY: Duration = Duration::from_secs(60);
/// The same for a kind of failure that an operator has to mend.
const FAILURE_WARNED_EVERY: Duration = Duration::from_secs(60 * 60);

/// See the module. Used by the node's worker alone.
pub(super) struct NodeLog {
    node: Arc<Server>,
    journal: Arc<Journal>,
    /// Past warnings, each with the end of its silence.
    warned: Vec<(String, Tick)>,
    /// Time of the first line that reported the node down.
    down_since: Option<Tick>,
}

impl NodeLog {
    pub(super) fn new(node: Arc<Server>) -> NodeLog {
        NodeLog {
            journal: Arc::clone(&node.common.journal),
            node,
            warned: Vec::new(),
            down_since: None,
        }
    }

    /// Logs and records an event of the session.
    pub(super) fn note(&mut self, event: SessionEvent) {
        let node = self.node.id;
        let address = Arc::clone(&self.node.address);
        match event {
            SessionEvent::Stepped(by) => {
                self.node.common.events.clock_stepped();
                count(&self.journal.counters.clock_steps);
                if self.may_warn("steps".to_owned(), WARNED_EVERY) {
                    let by = About(by);
                    warn!(
                        self.journal,
                        "{node}: {address}: its clock was set forward by {by}, so locks expired \
                         early there"
                    );
                }
            }
            SessionEvent::Quarantined { left, why } => {
                self.journal
                    .observe(|| Event::NodeQuarantined { node, left, why });
                let left = About(left);
                if why != QuarantineReason::ClockStep
                    || self.may_warn("quarantines".to_owned(), WARNED_EVERY)
                {
                    info!(
                        self.journal,
                        "{node}: {address}: quarantined for {left}: {why}"
                    );
                }
            }
            SessionEvent::Found(finding) => {
                warn!(self.journal, "{node}: {address}: {finding}")
            }
            // The node is connected and may go on refusing. No other line reports this.
            SessionEvent::Refused(failure) => {
                if self.may_warn_of(&failure) {
                    warn!(
                        self.journal,
                        "{node}: {address}: is not counted: it rejected a command: {failure}"
                    );
                }
            }
            SessionEvent::Deaf(answer) => {
                debug!(
                    self.journal,
                    "{node}: no notices of releases, so waiting calls poll: {answer}"
                );
            }
            SessionEvent::Silent => {
                info!(self.journal, "{node}: not responding: {address}");
                self.journal.observe(|| Event::NodeSilent { node });
            }
            SessionEvent::Responding => {
                info!(self.journal, "{node}: responding again: {address}");
                self.journal.observe(|| Event::NodeAnswers { node });
            }
            SessionEvent::ReleasesDropped => {
                if self.may_warn("dropped releases".to_owned(), WARNED_EVERY) {
                    warn!(
                        self.journal,
                        "{node}: {address}: too many queued releases: the oldest were dropped, and \
                         their keys expire by themselves"
                    );
                }
            }
        }
    }

    /// The node is connected.
    pub(super) fn up(&mut self) {
        let Server { id, address, .. } = &*self.node;
        match self.down_since.take() {
            Some(since) => {
                let down = About(time::tick().saturating_duration_since(since));
                info!(self.journal, "{id}: up after {down}: {address}");
            }
            None => debug!(self.journal, "{id}: connected: {address}"),
        }
    }

    /// A connection or an attempt to connect has ended. `was_idle`: no command waited for an
    /// answer.
    pub(super) fn down(&mut self, failure: &NodeFailure, was_idle: bool) {
        let node = self.node.id;
        let address = Arc::clone(&self.node.address);
        self.journal.record(Event::NodeDown {
            node,
            address: Arc::clone(&address),
            why: failure.clone(),
        });
        if *failure == NodeFailure::ShutDown {
            return;
        }
        count(&self.node.own_counters.connection_failures);
        // Balancers end idle connections: no news unless the next attempt fails.
        let is_quiet = was_idle && matches!(failure, NodeFailure::Disconnected { .. });
        let level = if self.may_warn_of(failure) {
            Level::Warn
        } else if self.down_since.is_none() && !is_quiet {
            Level::Info
        } else {
            Level::Debug
        };
        let still = if self.down_since.is_some() {
            "still "
        } else {
            ""
        };
        write_line!(
            self.journal,
            level,
            "{node}: {still}down: {address}: {failure}"
        );
        if !is_quiet {
            self.down_since.get_or_insert_with(time::tick);
        }
    }

    /// Whether to warn of this failure now: once an hour, and only of failures that an operator has
    /// to mend.
    fn may_warn_of(&mut self, failure: &NodeFailure) -> bool {
        failure.needs_somebody() && self.may_warn(failure.kind(), FAILURE_WARNED_EVERY)
    }

    /// Whether to warn of this now: not twice within `every`.
    fn may_warn(&mut self, what: String, every: Duration) -> bool {
        let now = time::tick();
        self.warned.retain(|(_, until)| now < *until);
        let is_known = self.warned.iter().any(|(it, _)| *it == what);
        if !is_known {
            self.warned.push((what, time::deadline(every)));
        }
        !is_known
    }
}
