//! Answers of a node, read by `wire`, counted by `logic`.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeAnswer, NodeFailure, NodeFinding};
use crate::ids::RecordVersion;
use crate::inspection::StoredLock;

/// Answer of a node to one command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Acquire(AcquireReply),
    Raise(RaiseReply),
    Extend(ExtendReply),
    Release(ReleaseReply),
    Record(RecordReply),
    /// Releases are announced on this connection from now on.
    Subscribed,
    /// The state of a lock on the node.
    Inspect(Box<StoredLock>),
    /// Keys of this crate, and the next cursor. `too_many`: no keys; repeat the place in smaller
    /// parts.
    Listed {
        next: u64,
        too_many: bool,
        keys: Vec<Vec<u8>>,
    },
    /// What is recorded of a job.
    Job(JobRecord),
    /// A run of a job is recorded, or a later one; or the lock's key is not the caller's.
    Noted(bool),
    /// The node's time, and nothing else.
    Time,
    /// The server lacks the script and has run nothing.
    NoScript,
    /// The server's record has another version than the command, and the server has run nothing.
    Changed,
    Failed(NodeFailure),
}

impl Answer {
    /// Whether the lock's key is the caller's now.
    pub(crate) fn is_granted(&self) -> bool {
        matches!(
            self,
            Answer::Acquire(
                AcquireReply::Accepted
                    | AcquireReply::Behind { .. }
                    | AcquireReply::Shared { .. }
                    | AcquireReply::Slot { .. },
            ) | Answer::Raise(RaiseReply::Taken | RaiseReply::Above { .. })
        )
    }

    /// Whether it is, and the node's counter is the proposal.
    pub(crate) fn is_accepted(&self) -> bool {
        matches!(
            self,
            Answer::Acquire(AcquireReply::Accepted | AcquireReply::Slot { counter: None, .. })
        )
    }

    /// Whether somebody else holds the lock there.
    pub(crate) fn is_held(&self) -> bool {
        matches!(
            self,
            Answer::Acquire(AcquireReply::Held { .. } | AcquireReply::HeldByReaders { .. })
        )
    }

    /// The granted slot of a semaphore; `None` otherwise.
    pub(crate) fn slot(&self) -> Option<u8> {
        match self {
            Answer::Acquire(AcquireReply::Slot { slot, .. }) => Some(*slot),
            _ => None,
        }
    }

    /// Whether the lock is the caller's and has its full ttl again.
    pub(crate) fn is_extended(&self) -> bool {
        matches!(
            self,
            Answer::Extend(
                ExtendReply::Extended | ExtendReply::Lifted { .. } | ExtendReply::Healed
            )
        )
    }

    /// Whether the lock's key is not the caller's any more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(
            self,
            Answer::Extend(ExtendReply::Gone { .. } | ExtendReply::Taken)
                | Answer::Raise(RaiseReply::Gone)
        )
    }

    /// The conflicting one of several locks.
    pub(crate) fn which(&self) -> Which {
        match self {
            Answer::Acquire(
                AcquireReply::Held { which, .. }
                | AcquireReply::HeldByReaders { which, .. }
                | AcquireReply::WrongType { which }
                | AcquireReply::BadCounter { which },
            ) => *which,
            _ => None,
        }
    }

    /// The node's fencing counter, if it differs from the proposal.
    pub(crate) fn counter(&self) -> Option<u64> {
        match self {
            Answer::Acquire(
                AcquireReply::Behind { counter }
                | AcquireReply::Shared { counter }
                | AcquireReply::Slot {
                    counter: Some(counter),
                    ..
                }
                | AcquireReply::Held { counter, .. }
                | AcquireReply::HeldByReaders { counter, .. }
                | AcquireReply::Ahead { counter },
            )
            | Answer::Raise(RaiseReply::Above { counter })
            | Answer::Extend(ExtendReply::Lifted { counter } | ExtendReply::Gone { counter }) => {
                Some(*counter)
            }
            _ => None,
        }
    }
}

/// The row of an answer in a report.
impl From<&Answer> for NodeAnswer {
    fn from(answer: &Answer) -> NodeAnswer {
        let in_use = |what| NodeFailure::KeyInUse { name: None, what };
        NodeAnswer::Failed(match answer {
            Answer::Acquire(
                AcquireReply::Accepted
                | AcquireReply::Shared { .. }
                | AcquireReply::Slot { counter: None, .. },
            )
            | Answer::Raise(RaiseReply::Taken) => return NodeAnswer::Granted,
            Answer::Acquire(AcquireReply::Behind { .. } | AcquireReply::Slot { .. })
            | Answer::Raise(RaiseReply::Above { .. }) => return NodeAnswer::GrantedBehind,
            Answer::Acquire(AcquireReply::Held { left, holder, .. }) => {
                return NodeAnswer::Held {
                    left: *left,
                    holder: holder.clone(),
                    name: None,
                };
            }
            Answer::Acquire(AcquireReply::HeldByReaders { left, .. }) => {
                return NodeAnswer::HeldByReaders {
                    left: *left,
                    name: None,
                };
            }
            Answer::Raise(RaiseReply::Gone)
            | Answer::Extend(ExtendReply::Gone { .. } | ExtendReply::Taken) => {
                return NodeAnswer::Gone;
            }
            Answer::Extend(
                ExtendReply::Extended | ExtendReply::Lifted { .. } | ExtendReply::Healed,
            ) => return NodeAnswer::Extended,
            Answer::Extend(ExtendReply::Superseded) => return NodeAnswer::Superseded,
            // Not sent again: the round was over.
            Answer::Changed => return NodeAnswer::Pending,
            Answer::Release(_) => return NodeAnswer::Released,
            Answer::Job(job) => {
                let kept = Duration::from_micros(job.time.saturating_sub(job.kept_since));
                return NodeAnswer::NoRecord { kept };
            }
            Answer::Noted(true) => return NodeAnswer::Recorded,
            Answer::Noted(false) => return NodeAnswer::Gone,
            Answer::Acquire(AcquireReply::Ahead { .. }) => NodeFailure::ClockBehind,
            Answer::Acquire(AcquireReply::WrongType { .. }) => in_use(NodeFailure::ANOTHER_TYPE),
            Answer::Acquire(AcquireReply::BadCounter { .. })
            | Answer::Raise(RaiseReply::Unusable)
            | Answer::Extend(ExtendReply::Unusable) => in_use(NodeFailure::BAD_COUNTER),
            Answer::NoScript => NodeFailure::Refused {
                message: "the script is gone".to_owned(),
            },
            Answer::Failed(failure) => failure.clone(),
            Answer::Record(_)
            | Answer::Subscribed
            | Answer::Inspect(_)
            | Answer::Listed { .. }
            | Answer::Time => NodeFailure::of_another_command(),
        })
    }
}

/// The one of several locks that an answer is about, in the order of the command; `None` for a
/// single lock.
pub(crate) type Which = Option<u8>;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum AcquireReply {
    /// Granted, and the proposal is the node's counter now.
    Accepted,
    /// Granted, but the counter is ahead of the proposal.
    Behind { counter: u64 },
    /// Granted to a reader; the counter is the last writer's.
    Shared { counter: u64 },
    /// Readers hold it.
    HeldByReaders {
        counter: u64,
        left: Option<Duration>,
        queued: bool,
        which: Which,
    },
    /// A granted slot of a semaphore; and its counter, unless that is the proposal now.
    Slot { slot: u8, counter: Option<u64> },
    /// Another owner's.
    Held {
        counter: u64,
        left: Option<Duration>,
        /// Whether the client is in the waiting list.
        queued: bool,
        /// Label of the holder, safe to show.
        holder: Option<Arc<str>>,
        which: Which,
    },
    /// The proposal is far ahead of the node's clock, and nothing was done.
    Ahead { counter: u64 },
    /// The lock's key holds something else.
    WrongType { which: Which },
    /// The lock's counter holds something else.
    BadCounter { which: Which },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RaiseReply {
    /// The key is ours, and the token is the node's counter now.
    Taken,
    /// The key is ours, and the counter is not below the token.
    Above { counter: u64 },
    /// The key is not ours any more.
    Gone,
    /// The key or the counter holds something else.
    Unusable,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExtendReply {
    /// Ours, with the full ttl again.
    Extended,
    /// The same for a reader, where the fencing counter is above its number: other readers have
    /// lifted it.
    Lifted { counter: u64 },
    /// It had been gone and was set again.
    Healed,
    /// The fencing counter is above our token: a rival was granted the lock there, or tried. That
    /// does not prove a loss. Readers get [`Lifted`](ExtendReply::Lifted).
    Superseded,
    /// No key. With the fencing counter.
    Gone { counter: u64 },
    /// Someone else's.
    Taken,
    /// The key or the counter holds something else.
    Unusable,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReleaseReply {
    /// It was ours, and is gone now.
    Deleted,
    /// No key, or someone else's.
    NotOurs,
}

/// What a node has of a job: see `scripts/once_look.lua`. Times are the node's, in microseconds
/// since 1970.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct JobRecord {
    /// Whether the lock's key is the caller's.
    pub(crate) is_ours: bool,
    /// Records written since are still there.
    pub(crate) kept_since: u64,
    pub(crate) time: u64,
    /// The record; empty if there is none.
    pub(crate) text: String,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RecordReply {
    pub(crate) record: Record,
    /// Time for which the server's process has kept all data.
    pub(crate) served: Duration,
    /// Longest ttl of any lock, in milliseconds.
    pub(crate) max_ttl: u64,
    /// Whether the record is stored as asked.
    pub(crate) is_stored: bool,
    /// Version of the stored record.
    pub(crate) record_version: RecordVersion,
    /// This version and those out of which it grew.
    pub(crate) versions: String,
    /// Number of servers of other programs; 0 if unknown.
    pub(crate) servers: u64,
    /// Eviction policy, unless it refuses writes with full memory.
    pub(crate) evicts: Option<String>,
    /// Whether its memory has a limit.
    pub(crate) is_limited: bool,
    /// Whether it logs every write to its disk.
    pub(crate) append_only: Option<bool>,
    /// Number of connected replicas.
    pub(crate) replicas: u64,
}

#[cfg(test)]
impl RecordReply {
    /// A stored record without further facts.
    pub(crate) fn of(record: Record, served: Duration) -> RecordReply {
        let record_version = RecordVersion::NONE;
        RecordReply {
            record,
            served,
            max_ttl: 0,
            is_stored: true,
            record_version,
            versions: "0".repeat(15),
            servers: 0,
            evicts: None,
            is_limited: false,
            append_only: None,
            replicas: 0,
        }
    }
}

/// State of a server's record at a sync.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Record {
    /// The process had it before, and began with the data of another process.
    Kept,
    /// The process had it before, and began without data.
    KeptFromNothing,
    /// There was none before.
    Missing,
    /// It was another process's before.
    Another,
    /// An operator has confirmed that nothing was lost.
    Vouched,
    /// The server has no quarantine.
    Off,
}

impl Record {
    /// Whether it existed before the sync.
    pub(crate) fn is_older(self) -> bool {
        matches!(
            self,
            Record::Kept | Record::KeptFromNothing | Record::Vouched
        )
    }
}

/// Facts about a server, from its login.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct ServerInfo {
    /// Id of the process, new with every start. `None` if the access list forbids `INFO`.
    pub(crate) run_id: Option<String>,
    /// Name and version.
    pub(crate) version: Option<String>,
    /// Whether it can push notices on this connection: `RESP3`.
    pub(crate) pushes: bool,
    /// Whole seconds since its process was started, by its own wall clock.
    pub(crate) uptime: Option<i64>,
    /// Its wall clock: microseconds since 1970.
    pub(crate) time: Option<u64>,
    /// Whether it was a replica and has been promoted.
    pub(crate) promoted: bool,
    /// Whether the node's URL has its replicas.
    pub(crate) has_members: bool,
    /// Whether it lacks a command of every server.
    pub(crate) proxied: bool,
    /// Finding about another number of servers of other programs.
    pub(crate) other_nodes: Option<NodeFinding>,
    /// Its record, if synced.
    pub(crate) record_reply: Option<RecordReply>,
}

impl ServerInfo {
    /// Weaknesses in these facts, the worst first.
    pub(crate) fn findings(&self) -> Vec<NodeFinding> {
        let shown = self.record_reply.as_ref();
        let replicas = shown.map_or(0, |it| it.replicas);
        let findings = [
            self.proxied.then_some(NodeFinding::Proxied),
            self.run_id.is_none().then_some(NodeFinding::Unverifiable),
            (self.promoted && !self.has_members).then_some(NodeFinding::Promoted),
            (replicas != 0 && !self.has_members)
                .then_some(NodeFinding::HasReplicas { count: replicas }),
            shown
                .filter(|it| !it.is_limited)
                .and_then(|it| it.evicts.clone())
                .map(|policy| NodeFinding::WouldEvict { policy }),
            self.other_nodes.clone(),
            (!self.pushes).then_some(NodeFinding::NoNotices),
        ];
        findings.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What commands of a round can be answered with.
    fn answers() -> Vec<Answer> {
        use AcquireReply::{
            Accepted, Ahead, BadCounter, Behind, Held, HeldByReaders, Shared, WrongType,
        };
        let which = Some(1);
        use ExtendReply::{Extended, Healed, Lifted, Superseded};
        let left = Duration::from_secs(1);
        let holder = Some(Arc::from("somebody"));
        let mut answers = vec![Answer::NoScript, Answer::Failed(NodeFailure::Stalled)];
        answers.extend(
            [
                Accepted,
                Behind { counter: 1 },
                Held {
                    counter: 2,
                    left: Some(left),
                    queued: true,
                    holder,
                    which,
                },
            ]
            .map(Answer::Acquire),
        );
        let by_readers = HeldByReaders {
            counter: 6,
            left: None,
            queued: true,
            which,
        };
        answers.extend([Shared { counter: 7 }, by_readers].map(Answer::Acquire));
        answers.push(Answer::Acquire(Ahead { counter: 4 }));
        answers.extend(
            [None, Some(6)].map(|counter| Answer::Acquire(AcquireReply::Slot { slot: 2, counter })),
        );
        answers.extend([WrongType { which }, BadCounter { which }].map(Answer::Acquire));
        let above = RaiseReply::Above { counter: 5 };
        answers.extend(
            [
                RaiseReply::Taken,
                above,
                RaiseReply::Gone,
                RaiseReply::Unusable,
            ]
            .map(Answer::Raise),
        );
        answers.extend([Extended, Healed, Lifted { counter: 8 }, Superseded].map(Answer::Extend));
        answers.extend(
            [
                ExtendReply::Gone { counter: 9 },
                ExtendReply::Taken,
                ExtendReply::Unusable,
            ]
            .map(Answer::Extend),
        );
        answers.extend([ReleaseReply::Deleted, ReleaseReply::NotOurs].map(Answer::Release));
        answers
    }

    #[test]
    fn a_report_row_agrees_with_the_counted_answer() {
        for answer in answers() {
            let row = NodeAnswer::from(&answer);
            assert_eq!(answer.is_granted(), row.is_granted(), "{answer:?}");
            assert_eq!(answer.is_gone(), row == NodeAnswer::Gone, "{answer:?}");
            assert_eq!(
                matches!(answer, Answer::Release(_)),
                row == NodeAnswer::Released,
                "{answer:?}"
            );
            assert_ne!(row, NodeAnswer::Pending);
        }
        assert_eq!(answers().iter().filter(|it| it.is_granted()).count(), 7);
        assert_eq!(answers().iter().filter(|it| it.is_gone()).count(), 3);
        assert_eq!(
            answers()
                .iter()
                .filter_map(Answer::counter)
                .collect::<Vec<_>>(),
            [1, 2, 7, 6, 4, 6, 5, 8, 9]
        );
        assert_eq!(answers().iter().filter(|it| it.is_held()).count(), 2);
        assert_eq!(answers().iter().filter(|it| it.is_accepted()).count(), 2);
        assert_eq!(
            answers()
                .iter()
                .filter_map(Answer::slot)
                .collect::<Vec<_>>(),
            [2, 2]
        );
        assert_eq!(
            answers()
                .iter()
                .filter_map(Answer::which)
                .collect::<Vec<_>>(),
            [1; 4]
        );
    }

    #[test]
    fn a_report_has_the_failure_of_a_node_without_a_vote() {
        for (answer, failure) in [
            (
                Answer::Acquire(AcquireReply::Ahead { counter: 4 }),
                NodeFailure::ClockBehind,
            ),
            (
                Answer::Acquire(AcquireReply::WrongType { which: None }),
                NodeFailure::KeyInUse {
                    name: None,
                    what: NodeFailure::ANOTHER_TYPE,
                },
            ),
            (
                Answer::Acquire(AcquireReply::BadCounter { which: None }),
                NodeFailure::KeyInUse {
                    name: None,
                    what: NodeFailure::BAD_COUNTER,
                },
            ),
            (
                Answer::Raise(RaiseReply::Unusable),
                NodeFailure::KeyInUse {
                    name: None,
                    what: NodeFailure::BAD_COUNTER,
                },
            ),
            (
                Answer::Extend(ExtendReply::Unusable),
                NodeFailure::KeyInUse {
                    name: None,
                    what: NodeFailure::BAD_COUNTER,
                },
            ),
            (Answer::Failed(NodeFailure::Loading), NodeFailure::Loading),
        ] {
            assert_eq!(
                NodeAnswer::from(&answer),
                NodeAnswer::Failed(failure),
                "{answer:?}"
            );
        }
        for other in [Answer::Time, Answer::Subscribed] {
            assert!(matches!(
                NodeAnswer::from(&other),
                NodeAnswer::Failed(NodeFailure::Protocol { .. })
            ));
        }
    }

    #[test]
    fn b4_server_info_shows_each_risk_to_a_lock_and_few_risks_disqualify() {
        let fine = || ServerInfo {
            run_id: Some("abc".to_owned()),
            pushes: true,
            ..ServerInfo::default()
        };
        let policy = || "allkeys-lru".to_owned();
        let with = |shown| ServerInfo {
            record_reply: Some(shown),
            ..fine()
        };
        assert_eq!(fine().findings(), []);
        for (server_info, finding, disqualifies) in [
            (
                ServerInfo {
                    run_id: None,
                    ..fine()
                },
                NodeFinding::Unverifiable,
                true,
            ),
            (
                ServerInfo {
                    proxied: true,
                    ..fine()
                },
                NodeFinding::Proxied,
                true,
            ),
            (
                ServerInfo {
                    promoted: true,
                    ..fine()
                },
                NodeFinding::Promoted,
                true,
            ),
            (
                with(RecordReply {
                    replicas: 2,
                    ..RecordReply::of(Record::Kept, Duration::ZERO)
                }),
                NodeFinding::HasReplicas { count: 2 },
                true,
            ),
            (
                with(RecordReply {
                    evicts: Some(policy()),
                    ..RecordReply::of(Record::Kept, Duration::ZERO)
                }),
                NodeFinding::WouldEvict { policy: policy() },
                true,
            ),
            (
                ServerInfo {
                    pushes: false,
                    ..fine()
                },
                NodeFinding::NoNotices,
                false,
            ),
        ] {
            assert_eq!(finding.disqualifies(), disqualifies, "{finding}");
            assert_eq!(server_info.findings(), [finding]);
        }
    }

    #[test]
    fn each_finding_has_its_own_kind_of_failure() {
        let kind = |finding| NodeFailure::Disqualified { finding }.kind();
        assert_ne!(kind(NodeFinding::Promoted), kind(NodeFinding::Unverifiable));
        assert_eq!(
            kind(NodeFinding::HasReplicas { count: 1 }),
            kind(NodeFinding::HasReplicas { count: 2 })
        );
    }
}
