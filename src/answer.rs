//! Answers of a node, read by `wire`, counted by `logic`.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeAnswer, NodeFailure, NodeFinding};
use crate::ids::RecordVersion;
use crate::inspection::StoredLock;

/// Answer of a node to one command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// Of an acquire, a raise or an extension.
    Lock(LockReply),
    /// Of a release: no key of the caller is left.
    Released {
        /// Whether there was one.
        was_ours: bool,
    },
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
    fn lock(&self) -> Option<&LockReply> {
        match self {
            Answer::Lock(reply) => Some(reply),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> Option<LockStatus> {
        Some(self.lock()?.status)
    }

    /// Whether it is one of a lock script with this status.
    pub(crate) fn is(&self, status: LockStatus) -> bool {
        self.status() == Some(status)
    }

    /// Whether the lock's key is the caller's now.
    pub(crate) fn is_granted(&self) -> bool {
        use LockStatus::{Accepted, NotRaised, ProposalBehind, Raised, Shared};
        matches!(
            self.status(),
            Some(Accepted | ProposalBehind | Shared | Raised | NotRaised)
        )
    }

    /// Whether it is, and the node's counter is the proposal.
    pub(crate) fn is_accepted(&self) -> bool {
        self.is(LockStatus::Accepted)
    }

    /// Whether somebody else holds the lock there.
    pub(crate) fn is_held(&self) -> bool {
        self.is(LockStatus::Held) || self.is(LockStatus::HeldByReaders)
    }

    /// Whether the call is in the node's waiting list.
    pub(crate) fn is_queued(&self) -> bool {
        self.lock().is_some_and(|it| it.queued)
    }

    /// Whether the lock is the caller's and has its full ttl again.
    pub(crate) fn is_extended(&self) -> bool {
        use LockStatus::{Extended, Healed, Lifted};
        matches!(self.status(), Some(Extended | Lifted | Healed))
    }

    /// Whether the lock's key is not the caller's any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.is(LockStatus::Gone) || self.is(LockStatus::NotOurs)
    }

    /// The granted slot of a semaphore; `None` otherwise.
    pub(crate) fn slot(&self) -> Option<u8> {
        self.lock()?.which.filter(|_| self.is_granted())
    }

    /// The conflicting one of several locks.
    pub(crate) fn which(&self) -> Which {
        self.lock()?.which.filter(|_| !self.is_granted())
    }

    /// The node's fencing counter, if it differs from the proposal.
    pub(crate) fn counter(&self) -> Option<u64> {
        self.lock()?.counter
    }
}

#[cfg(test)]
impl Answer {
    /// An answer whose status shows no counter.
    pub(crate) const fn of(status: LockStatus) -> Answer {
        assert!(!status.shows_counter());
        Answer::Lock(LockReply::new(status, 0))
    }

    /// An answer whose status shows the counter.
    pub(crate) const fn with_counter(status: LockStatus, counter: u64) -> Answer {
        assert!(status.shows_counter());
        Answer::Lock(LockReply::new(status, counter))
    }

    /// A grant of this slot, with the counter if that is not below the proposal.
    pub(crate) fn of_slot(slot: u8, counter: Option<u64>) -> Answer {
        let status = match counter {
            None => LockStatus::Accepted,
            Some(_) => LockStatus::ProposalBehind,
        };
        Answer::Lock(LockReply {
            which: Some(slot),
            ..LockReply::new(status, counter.unwrap_or(0))
        })
    }
}

/// The row of an answer in a report.
impl From<&Answer> for NodeAnswer {
    fn from(answer: &Answer) -> NodeAnswer {
        let in_use = |what| NodeFailure::KeyInUse { name: None, what };
        NodeAnswer::Failed(match answer {
            Answer::Lock(reply) => match reply.status {
                LockStatus::Accepted | LockStatus::Shared | LockStatus::Raised => {
                    return NodeAnswer::Granted;
                }
                LockStatus::ProposalBehind | LockStatus::NotRaised => {
                    return NodeAnswer::GrantedBehind;
                }
                LockStatus::Held => {
                    return NodeAnswer::Held {
                        left: reply.left,
                        holder: reply.holder.clone(),
                        name: None,
                    };
                }
                LockStatus::HeldByReaders => {
                    return NodeAnswer::HeldByReaders {
                        left: reply.left,
                        name: None,
                    };
                }
                LockStatus::Extended | LockStatus::Lifted | LockStatus::Healed => {
                    return NodeAnswer::Extended;
                }
                LockStatus::Superseded => return NodeAnswer::Superseded,
                LockStatus::Gone | LockStatus::NotOurs => return NodeAnswer::Gone,
                LockStatus::ProposalTooFarAhead => NodeFailure::ClockBehind,
                LockStatus::WrongType => in_use(NodeFailure::ANOTHER_TYPE),
                LockStatus::BadCounter => in_use(NodeFailure::BAD_COUNTER),
            },
            // Not sent again: the round was over.
            Answer::Changed => return NodeAnswer::Pending,
            Answer::Released { .. } => return NodeAnswer::Released,
            Answer::Job(job) => {
                let kept = Duration::from_micros(job.time.saturating_sub(job.kept_since));
                return NodeAnswer::NoRecord { kept };
            }
            Answer::Noted(true) => return NodeAnswer::Recorded,
            Answer::Noted(false) => return NodeAnswer::Gone,
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

/// Answer of a lock script: see `scripts/acquire.lua`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LockReply {
    pub(crate) status: LockStatus,
    /// The node's fencing counter; `None` if the status shows none.
    pub(crate) counter: Option<u64>,
    /// Granted: the slot of a semaphore. Otherwise the conflicting one of several locks.
    pub(crate) which: Which,
    /// Of a held lock. `None`: no expiry.
    pub(crate) left: Option<Duration>,
    /// Of a held lock: whether the client is in the waiting list.
    pub(crate) queued: bool,
    /// Label of the holder, safe to show.
    pub(crate) holder: Option<Arc<str>>,
}

impl LockReply {
    /// An answer with this status. Other statuses than those that show it drop the counter: no
    /// decision can take it for the node's.
    pub(crate) const fn new(status: LockStatus, counter: u64) -> LockReply {
        LockReply {
            status,
            counter: if status.shows_counter() {
                Some(counter)
            } else {
                None
            },
            which: None,
            left: None,
            queued: false,
            holder: None,
        }
    }
}

/// What a lock script found and did. `wire` reads it from the number in the script's reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LockStatus {
    // Acquires, and `BadCounter` for all:
    /// Granted, and the proposal is the node's counter now.
    Accepted,
    /// Granted, but the counter is ahead of the proposal.
    ProposalBehind,
    /// Granted to a reader; the counter is the last writer's.
    Shared,
    /// Another owner's.
    Held,
    /// Readers hold it.
    HeldByReaders,
    /// The proposal is far ahead of the node's clock, and nothing was done.
    ProposalTooFarAhead,
    /// The lock's key holds something else.
    WrongType,
    /// The lock's counter holds something else. Found by a raise or an extension: or its key does.
    BadCounter,
    // Raises, and `NotOurs`:
    /// The key is ours, and the token is the node's counter now.
    Raised,
    /// The key is ours, and the counter is not below the token.
    NotRaised,
    // Extensions:
    /// Ours, with the full ttl again.
    Extended,
    /// The same for a reader, where the fencing counter is above its number: other readers have
    /// lifted it.
    Lifted,
    /// It had been gone and was set again.
    Healed,
    /// The fencing counter is above our token: a rival was granted the lock there, or tried. That
    /// does not prove a loss. Readers get [`Lifted`](LockStatus::Lifted).
    Superseded,
    /// No key, for an extension.
    Gone,
    /// Someone else's key. For a raise also no key, or no counter.
    NotOurs,
}

impl LockStatus {
    /// Whether the counter in the reply means something: it may differ from the number in the
    /// command.
    const fn shows_counter(self) -> bool {
        use LockStatus::{
            Gone, Held, HeldByReaders, Lifted, NotRaised, ProposalBehind, ProposalTooFarAhead,
            Shared,
        };
        matches!(
            self,
            ProposalBehind
                | Shared
                | Held
                | HeldByReaders
                | ProposalTooFarAhead
                | NotRaised
                | Lifted
                | Gone
        )
    }
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

    use LockStatus::*;

    const STATUSES: [LockStatus; 16] = [
        Accepted,
        ProposalBehind,
        Shared,
        Held,
        HeldByReaders,
        ProposalTooFarAhead,
        WrongType,
        BadCounter,
        Raised,
        NotRaised,
        Extended,
        Lifted,
        Healed,
        Superseded,
        Gone,
        NotOurs,
    ];

    /// An answer with each field.
    fn full(status: LockStatus) -> Answer {
        Answer::Lock(LockReply {
            which: Some(1),
            left: Some(Duration::from_secs(1)),
            queued: true,
            holder: Some(Arc::from("somebody")),
            ..LockReply::new(status, 7)
        })
    }

    /// The statuses of which this is so.
    fn of(is_so: impl Fn(&Answer) -> bool) -> Vec<LockStatus> {
        let is_so = |it: &LockStatus| is_so(&full(*it));
        STATUSES.into_iter().filter(is_so).collect()
    }

    #[test]
    fn a_report_row_agrees_with_the_counted_answer() {
        let granted = [Accepted, ProposalBehind, Shared, Raised, NotRaised];
        assert_eq!(of(Answer::is_granted), granted);
        assert_eq!(of(|it| NodeAnswer::from(it).is_granted()), granted);
        assert_eq!(of(Answer::is_accepted), [Accepted]);
        assert_eq!(of(Answer::is_held), [Held, HeldByReaders]);
        let extended = [Extended, Lifted, Healed];
        assert_eq!(of(Answer::is_extended), extended);
        assert_eq!(
            of(|it| NodeAnswer::from(it) == NodeAnswer::Extended),
            extended
        );
        let gone = [Gone, NotOurs];
        assert_eq!(of(Answer::is_gone), gone);
        assert_eq!(of(|it| NodeAnswer::from(it) == NodeAnswer::Gone), gone);
        for was_ours in [true, false] {
            let released = Answer::Released { was_ours };
            assert_eq!(NodeAnswer::from(&released), NodeAnswer::Released);
            assert!(!released.is_granted() && !released.is_gone());
        }
    }

    #[test]
    fn an_answer_has_the_counter_that_its_status_shows() {
        let shown = [
            ProposalBehind,
            Shared,
            Held,
            HeldByReaders,
            ProposalTooFarAhead,
            NotRaised,
            Lifted,
            Gone,
        ];
        assert_eq!(of(|it| it.counter() == Some(7)), shown);
        let without = of(|it| it.counter().is_none());
        assert_eq!(without.len() + shown.len(), STATUSES.len());
    }

    #[test]
    fn a_granted_slot_is_no_conflicting_lock() {
        for status in STATUSES {
            let answer = full(status);
            let (slot, which) = if answer.is_granted() {
                (Some(1), None)
            } else {
                (None, Some(1))
            };
            assert_eq!((answer.slot(), answer.which()), (slot, which), "{status:?}");
        }
    }

    #[test]
    fn a_report_has_the_failure_of_a_node_without_a_vote() {
        let in_use = |what| NodeFailure::KeyInUse { name: None, what };
        for (answer, failure) in [
            (full(ProposalTooFarAhead), NodeFailure::ClockBehind),
            (full(WrongType), in_use(NodeFailure::ANOTHER_TYPE)),
            (full(BadCounter), in_use(NodeFailure::BAD_COUNTER)),
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
