//! The session with one server: commands to it, and the value of its answers. Pure: no socket,
//! thread, clock or log.
//!
//! Commands, bytes and the time come in; bytes, votes and events come out. A session lasts as long
//! as its manager, over all connections to the server.
//!
//! A command passes these gates before it is sent:
//!
//! 1. The server is connected. Otherwise the command is refused, and a release is kept for the next
//!    connection.
//! 2. The server has stored its record as this manager asks. Otherwise the command waits for a
//!    sync.
//!
//! An answer passes these gates before it is a vote:
//!
//! 3. The connection is valid so far ([`Conn`]): the oldest command can have this answer.
//! 4. The server has run the script. Without the script, or with another record version than in the
//!    command, it has run nothing: the session sends the command again, unless its round is over
//!    and a release came since.
//! 5. With members: they named the server when the command was sent.
//! 6. The quarantine of the server was over when the command was sent.
//!
//! A new connection passes one more gate: the settings of the server cost no lock, and its record
//! fits this manager.
//!
//! A command for a stalled server does not come here (`availability.rs`). A message that hands a
//! lock over has the version of gate 4, passes gates 5 and 6, shows no clock step, and is a vote if
//! its token and call are current (`Call::on_hand_over`). A won round checks gate 6 again
//! (`Call::check`).

pub(crate) mod availability;
pub(crate) mod pending_command;
pub(crate) mod record_rules;
pub(crate) mod release_retries;

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, LockStatus, RecordReply, ServerInfo};
use crate::error::{NodeAnswer, NodeFailure, NodeFinding, QuarantineReason};
use crate::ids::ClientId;
use crate::logic::eligibility::{Eligibility, GRAIN, Timing};
use crate::logic::min_rtt::MinRtt;
use crate::logic::quarantines::VoteKind;
use crate::session::availability::{Availability, Health};
use crate::session::pending_command::{PendingCommand, ReplyHandler};
use crate::session::record_rules::RecordRules;
use crate::session::release_retries::ReleaseRetries;
use crate::time::{Moment, Now, Tick};
use crate::wire::{Command, Conn, ConnEvent, HandedOver, Kind, Reply, SyncKind};

/// Shortest silence after which a connection is mute: a server may be busy for a moment.
pub(crate) const MUTE_MIN: Duration = Duration::from_secs(1);
/// Interval of the syncs after the login.
const SYNC_EVERY: Duration = Duration::from_secs(60);
/// Largest number of sends of a command for one round. More sends mean that a program keeps
/// changing the record.
const CHANGES_MAX: u8 = 16;
const RECORD_CHANGES: &str = "its record changes all the time; check that no program deletes or \
    sets the key quorlock:record there: MONITOR";

/// Result of a command, for its handler.
pub(crate) struct Vote {
    pub(crate) handler: Option<Arc<dyn ReplyHandler>>,
    pub(crate) answer: Answer,
    /// False only if no byte of the command can have reached the server.
    pub(crate) reached: bool,
    /// Response time; none without an answer of the server.
    pub(crate) took: Option<Duration>,
}

/// Events besides votes, in order.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// The server's clock was set forward by this time.
    Stepped(Duration),
    /// The server is quarantined for the time `left`, longer than reported before.
    Quarantined {
        left: Duration,
        why: QuarantineReason,
    },
    /// The server shows a new weakness.
    Found(NodeFinding),
    /// The server has refused a command.
    Refused(NodeFailure),
    /// The server does not announce releases.
    Deaf(NodeAnswer),
    /// An answer is overdue.
    Silent,
    /// Answers come in time again.
    Responding,
    /// Kept releases were dropped.
    ReleasesDropped,
}

/// A connection after its login.
pub(crate) struct Login {
    pub(crate) conn: Conn<PendingCommand>,
    pub(crate) server_info: ServerInfo,
    /// Time before the first command of the login.
    pub(crate) asked: Now,
    /// Time after the reply with the server's time.
    pub(crate) reported_time: Moment,
}

/// See the module.
pub(crate) struct Session {
    /// Rules with the facts of all records, set before each call.
    pub(crate) rules: RecordRules,
    response_timeout: Duration,
    subscribe: Arc<Command>,
    health: Health,
    /// Connection, for the thread that moves its bytes.
    pub(crate) conn: Conn<PendingCommand>,
    /// Whether the server has answered on this connection.
    pub(crate) has_answered: bool,
    eligibility: Eligibility,
    /// End of the members' lease for this server; none for a plain address.
    pub(crate) confirmed_until: Option<Moment>,
    /// Last facts about the server.
    pub(crate) server_info: Option<ServerInfo>,
    stepped_at: Option<Tick>,
    /// End of the last reported quarantine.
    quarantined_until: Option<Tick>,
    /// `max_ttl` of the server's record, if stored as asked.
    synced_max_ttl: Option<u64>,
    /// Commands waiting for a sync, during a sync.
    held_back: Option<Vec<PendingCommand>>,
    /// Reason to end the connection after the present input.
    over: Option<NodeFailure>,
    /// Number of sent releases of whole locks.
    releases: u64,
    retries: ReleaseRetries,
    /// Time of the next sync.
    next_sync_at: Tick,
    /// Send of the last answered command on this connection, or of the login.
    last_asked: Now,
    /// Time of the first sync with the present record version.
    synced_at: Tick,
    min_rtt: MinRtt,
    /// Whether the oldest answer was overdue at an empty socket.
    is_stalled: bool,
    /// Whether the server was reported silent.
    is_silent: bool,
    /// Time of the last bytes on this connection, or of the last [`NodeFailure::Stalled`].
    quiet_since: Tick,
    /// Latest time of the worker's next turn.
    wakes_at: Tick,
    /// Whether a call has waited: new connections subscribe at once.
    wants_notices: bool,
    /// Whether the worker ends soon: commands do not wait for answers.
    pub(crate) is_stopping: bool,
    pub(crate) votes: Vec<Vote>,
    /// Locks that the server has handed over.
    pub(crate) notices: Vec<HandedOver>,
    pub(crate) events: Vec<SessionEvent>,
}

impl Session {
    pub(crate) fn new(
        rules: RecordRules,
        response_timeout: Duration,
        client: ClientId,
        now: Now,
    ) -> Session {
        Session {
            rules,
            response_timeout,
            subscribe: Arc::new(Command::subscribe(&client.channel())),
            health: Health::default(),
            conn: Conn::default(),
            has_answered: false,
            eligibility: Eligibility::new(rules.quarantine(), rules.margin.share),
            confirmed_until: None,
            server_info: None,
            stepped_at: None,
            quarantined_until: None,
            synced_max_ttl: None,
            held_back: None,
            over: None,
            releases: 0,
            retries: ReleaseRetries::default(),
            next_sync_at: now.tick,
            last_asked: now,
            synced_at: now.tick,
            min_rtt: MinRtt::default(),
            is_stalled: false,
            is_silent: false,
            quiet_since: now.tick,
            wakes_at: now.tick,
            wants_notices: false,
            is_stopping: false,
            votes: Vec::new(),
            notices: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The state for callers.
    pub(crate) fn availability(&self) -> Availability {
        Availability {
            health: self.health.clone(),
            oldest: self.conn.oldest(),
            is_stalled: self.is_stalled,
            is_silent: self.is_silent,
            unanswered: self.conn.in_flight(),
            quarantines: self.eligibility.quarantines,
            shows_quarantine: self.shows_quarantine(),
            clock: self.eligibility.clock.offset(),
            stepped_at: self.stepped_at,
            is_bundling: self.min_rtt.batches() <= self.conn.batches && !self.is_stopping,
            is_notified: self.conn.is_notified(),
        }
    }

    /// Whether a stopping worker still has work: `queued` commands, kept releases if it connects,
    /// and commands under way. It does not wait for a silent server, which runs the written
    /// commands later.
    pub(crate) fn has_work(&self, queued: bool, connects: bool) -> bool {
        let is_waiting = matches!(self.health, Health::Up)
            && (!self.conn.is_flushed() || self.conn.in_flight() != 0 && !self.is_stalled);
        queued || is_waiting || connects && !self.retries.is_empty()
    }
}

/// Connections.
impl Session {
    /// The worker connects, and commands wait for it until then.
    pub(crate) fn connect(&mut self, until: Tick) {
        self.health = Health::Connecting { until };
    }

    /// An error: why a server has no vote after its login.
    pub(crate) fn check(&mut self, server_info: &mut ServerInfo) -> Result<(), NodeFailure> {
        if let Some(reply) = &server_info.record_reply {
            server_info.other_nodes = self.rules.other_nodes(reply);
            self.rules.raise(reply.max_ttl);
        }
        self.rules.refusal(server_info).map_or(Ok(()), Err)
    }

    /// Begins a connection and sends the kept releases, which are older than any command.
    pub(crate) fn open(&mut self, login: Login, now: Now) {
        let Login {
            conn,
            server_info,
            asked,
            reported_time,
        } = login;
        self.conn = conn;
        self.health = Health::Up;
        self.has_answered = false;
        self.next_sync_at = now.tick.checked_add(SYNC_EVERY).unwrap_or(now.tick);
        self.last_asked = asked;
        self.synced_at = now.tick;
        self.eligibility.length = self.rules.quarantine();
        let answered = Now {
            moment: reported_time,
            ..now
        };
        let timing = Timing { asked, answered };
        let step = self.eligibility.on_connect(&server_info, timing);
        self.synced_max_ttl = server_info
            .record_reply
            .as_ref()
            .and_then(|shown| self.rules.synced_max_ttl(shown));
        self.store_info(server_info);
        self.note_step(step, now.tick);
        self.note_quarantine(now.tick);
        if self.wants_notices {
            self.subscribe(now);
        }
        for release in self.retries.take_all(now.tick) {
            self.admit(release, now);
        }
    }

    /// Ends the connection or the attempt: commands without an answer fail, and releases are kept.
    /// True if there were none.
    pub(crate) fn close(&mut self, failure: &NodeFailure, health: Health, now: Tick) -> bool {
        self.health = health;
        self.is_stalled = false;
        self.over = None;
        let conn = std::mem::take(&mut self.conn);
        let unanswered: Vec<_> = conn
            .close()
            .chain(self.held_back.take().into_iter().flatten())
            .collect();
        let is_idle = unanswered.is_empty();
        for command in unanswered {
            self.fail(command, failure.clone(), true, now);
        }
        is_idle
    }

    /// Stores facts about the server, and reports new weaknesses.
    fn store_info(&mut self, server_info: ServerInfo) {
        let before = self.server_info.replace(server_info.clone());
        let known = before
            .as_ref()
            .map(ServerInfo::findings)
            .unwrap_or_default();
        let is_same_process = before.is_some_and(|it| it.run_id == server_info.run_id);
        for finding in server_info.findings() {
            let is_known = known.contains(&finding);
            let is_news = match finding {
                NodeFinding::WouldEvict { .. } => !is_known,
                NodeFinding::OtherNodes { .. } => !is_known && finding.disqualifies(),
                NodeFinding::Promoted => !(is_known && is_same_process),
                _ => false,
            };
            if is_news {
                self.events.push(SessionEvent::Found(finding));
            }
        }
    }

    /// Whether the server's quarantine has begun: a program takes locks and has stored its record.
    fn shows_quarantine(&self) -> bool {
        let shown = self
            .server_info
            .as_ref()
            .and_then(|it| it.record_reply.as_ref());
        self.rules.is_used || shown.is_some_and(|it| it.is_stored)
    }

    fn note_step(&mut self, step: Option<Duration>, now: Tick) {
        if let Some(by) = step {
            self.stepped_at = Some(now);
            self.events.push(SessionEvent::Stepped(by));
            self.note_quarantine(now);
        }
    }

    /// Reports a quarantine that ends later than the last reported one.
    fn note_quarantine(&mut self, now: Tick) {
        let quarantine = self.eligibility.quarantine_remaining(VoteKind::Grant, now);
        let Some((left, why)) = quarantine.filter(|_| self.shows_quarantine()) else {
            return;
        };
        let until = now.checked_add(left);
        let known = self.quarantined_until.and_then(|it| it.checked_add(GRAIN));
        if known < until {
            self.quarantined_until = until;
            self.events.push(SessionEvent::Quarantined { left, why });
        }
    }
}

/// Commands.
impl Session {
    /// Takes a command, behind all others.
    pub(crate) fn enqueue(&mut self, command: PendingCommand, now: Now) {
        match self.health.refusal(now.tick) {
            Some(failure) => self.fail(command, failure, false, now.tick),
            None => self.admit(command, now),
        }
    }

    /// Sends a command, or holds it back until the next sync.
    fn admit(&mut self, mut command: PendingCommand, now: Now) {
        if command.command.kind == Kind::Release && !command.command.keeps_a_slot {
            self.releases = self.releases.wrapping_add(1);
        }
        command.releases = self.releases;
        // Only if no other record has a longer `max_ttl`.
        let is_synced = self
            .synced_max_ttl
            .is_some_and(|synced| self.rules.max_ttl <= synced);
        if command.command.compares() && (!is_synced || self.held_back.is_some()) {
            self.sync_record(now);
            self.held_back.get_or_insert_default().push(command);
        } else {
            self.send(command, now);
        }
    }

    /// Syncs the server's record, unless a sync is under way for waiting commands.
    fn sync_record(&mut self, now: Now) {
        if self.held_back.is_none() {
            self.enqueue_own(self.rules.sync_record(SyncKind::Note), now);
            self.held_back = Some(Vec::new());
        }
    }

    /// Puts a command behind all others, after the subscription if it needs one.
    ///
    /// RACE: T1, this client, enters a waiting list; T2 releases the lock; T1 subscribes too late
    /// for the message. Therefore both go over this connection, the subscription first.
    fn send(&mut self, mut command: PendingCommand, now: Now) {
        if command.command.waits {
            self.wants_notices = true;
            self.subscribe(now);
        }
        command.is_alone = self.conn.in_flight() == 0;
        self.conn.enqueue(command, now);
    }

    fn subscribe(&mut self, now: Now) {
        if self.conn.may_subscribe() {
            let subscribe = PendingCommand::new(Arc::clone(&self.subscribe), None);
            self.conn.enqueue(subscribe, now);
        }
    }

    /// Sends a command without a handler.
    fn enqueue_own(&mut self, command: Command, now: Now) {
        self.send(PendingCommand::new(Arc::new(command), None), now);
    }

    /// Fails a command without an answer, and keeps a release.
    fn fail(
        &mut self,
        mut command: PendingCommand,
        failure: NodeFailure,
        reached: bool,
        now: Tick,
    ) {
        self.vote(&mut command, Answer::Failed(failure), reached, None);
        if self.retries.keep(command, now) {
            self.events.push(SessionEvent::ReleasesDropped);
        }
    }

    fn vote(
        &mut self,
        command: &mut PendingCommand,
        answer: Answer,
        reached: bool,
        took: Option<Duration>,
    ) {
        self.votes.push(Vote {
            handler: command.handler.take(),
            answer,
            reached,
            took,
        });
    }
}

/// Bytes and the time.
impl Session {
    /// Handles new bytes. An error ends the connection; earlier answers count.
    pub(crate) fn on_bytes(&mut self, now: Now) -> Result<(), NodeFailure> {
        let mut is_gone = false;
        self.quiet_since = now.tick;
        self.votes.reserve(self.conn.in_flight());
        while let Some(event) = self.conn.poll_event()? {
            match event {
                ConnEvent::Answer { tag, asked, reply } => {
                    is_gone |= matches!(
                        reply.answer.status(),
                        Some(LockStatus::Gone | LockStatus::Healed)
                    );
                    self.on_answer(tag, asked, reply, now);
                }
                ConnEvent::UnknownScript { mut tag, asked } => {
                    self.note_answer(&mut tag, asked, now);
                    if tag.is_overtaken(self.releases) {
                        self.vote(&mut tag, Answer::NoScript, true, None);
                    } else {
                        // No release was given since, which would run before the command.
                        self.conn.put(tag, now, true);
                    }
                }
                ConnEvent::Changed {
                    mut tag,
                    asked,
                    is_known,
                } => {
                    self.note_answer(&mut tag, asked, now);
                    self.on_changed(tag, is_known, now);
                }
                ConnEvent::HandedOver(notice) => {
                    let notice = self.judge_hand_over(notice, now);
                    self.notices.push(notice);
                }
            }
        }
        // The server may have evicted the key.
        if is_gone {
            self.enqueue_own(self.rules.sync_record(SyncKind::Look), now);
        }
        self.is_stalled &= self.is_overdue(now.tick);
        self.over.take().map_or(Ok(()), Err)
    }

    fn on_answer(&mut self, mut command: PendingCommand, asked: Now, reply: Reply, now: Now) {
        self.note_answer(&mut command, asked, now);
        let timing = Timing {
            asked,
            answered: now,
        };
        let answer = self.judge(reply, timing);
        match command.command.kind {
            Kind::Subscribe if answer != Answer::Subscribed => {
                self.events
                    .push(SessionEvent::Deaf(NodeAnswer::from(&answer)));
            }
            Kind::SyncRecord => self.on_synced(&answer, now),
            _ => {}
        }
        let failure = match &answer {
            Answer::Failed(failure) => Some(failure.clone()),
            _ => None,
        };
        let took = now.tick.saturating_duration_since(asked.tick);
        self.vote(&mut command, answer, true, Some(took));
        let Some(failure) = failure else {
            if command.was_refused {
                self.retries.on_taken();
            }
            return;
        };
        // These end the connection, and a check reports its own.
        if !matches!(failure, NodeFailure::Replica | NodeFailure::Loading)
            && command.command.kind != Kind::Check
        {
            self.events.push(SessionEvent::Refused(failure));
        }
        // A busy server, or one that refuses writes, refuses releases too. The key would stay for
        // its ttl.
        if self.retries.keep_refused(command, now.tick) {
            self.events.push(SessionEvent::ReleasesDropped);
        }
    }

    /// Notes any answer to the oldest command.
    fn note_answer(&mut self, command: &mut PendingCommand, asked: Now, now: Now) {
        let took = now.tick.saturating_duration_since(asked.tick);
        self.has_answered = true;
        self.last_asked = asked;
        // A second send may not be alone.
        if std::mem::take(&mut command.is_alone) {
            self.min_rtt.on_answer(now.tick, took);
        }
        if self.is_silent && took <= self.response_timeout {
            self.is_silent = false;
            self.events.push(SessionEvent::Responding);
        }
    }

    /// The vote in an answer: a grant of a server that may have lost locks is none.
    fn judge(&mut self, Reply { answer, time }: Reply, timing: Timing) -> Answer {
        self.eligibility.length = self.rules.quarantine();
        let step = self.eligibility.on_time(time, timing);
        self.note_step(step, timing.answered.tick);
        let vote_kind = match &answer {
            Answer::Record(shown) => return self.judge_record(shown, timing),
            // A key that was set is a grant.
            answer if answer.is_granted() || answer.is(LockStatus::Healed) => VoteKind::Grant,
            // RACE: T1, this client, sets the key on a restarted server by a late acquire or
            // extension; T2 was granted the lock there earlier and collects votes. If T1 counted
            // the extension, its lease would go on while its other keys expire, and T2 would get
            // them. Therefore extensions do not count either.
            answer if answer.is_extended() => VoteKind::Extension,
            _ => return answer,
        };
        // RACE: T1, this process, is paused; T2 promotes another server; T1 continues and reads old
        // answers first. Therefore they do not count after the lease.
        if self.confirmation_is_over(timing.asked.moment) {
            return Answer::Failed(NodeFailure::UNCONFIRMED);
        }
        match self
            .eligibility
            .quarantine_remaining(vote_kind, timing.asked.tick)
        {
            Some((left, why)) => Answer::Failed(NodeFailure::Quarantined { left, why }),
            None => answer,
        }
    }

    /// The vote in a hand-over: it answers the last acquire on this connection with this record.
    ///
    /// RACE: T1, this client, asks; T2, the server, loses its data, and its quarantine passes; T2
    /// hands the lock over from restored data. Therefore a hand-over does not answer commands sent
    /// before the sync of this record, or before the end of a known quarantine.
    ///
    /// RACE: T2, the server, has its clock set forward, deletes a held lock and hands it over
    /// before any answer shows the clock. Therefore the message has the server's time, and one with
    /// a clock step does not count. It begins no quarantine: anybody may publish.
    fn judge_hand_over(&mut self, notice: HandedOver, now: Now) -> HandedOver {
        self.eligibility.length = self.rules.quarantine();
        let timing = Timing {
            asked: self.last_asked,
            answered: now,
        };
        let has_vote = !self.confirmation_is_over(now.moment)
            && !self.eligibility.would_step(notice.time, timing);
        let left = self
            .eligibility
            .quarantine_remaining(VoteKind::Grant, self.synced_at);
        let left = left.map_or(Duration::ZERO, |it| it.0);
        HandedOver {
            token: notice.token.filter(|_| has_vote),
            asked_from: self.synced_at.checked_add(left),
            ..notice
        }
    }

    /// Whether the members named another server, or none, at this time.
    fn confirmation_is_over(&self, at: Moment) -> bool {
        self.confirmed_until
            .is_some_and(|until| until.boot_micros() < at.boot_micros())
    }

    fn judge_record(&mut self, shown: &RecordReply, timing: Timing) -> Answer {
        self.rules.raise(shown.max_ttl);
        let before = self
            .server_info
            .as_ref()
            .and_then(|it| it.record_reply.as_ref());
        if before.is_none_or(|it| it.record_version != shown.record_version) {
            self.synced_at = timing.answered.tick;
        }
        let server_info = ServerInfo {
            record_reply: Some(shown.clone()),
            ..self.server_info.clone().unwrap_or_default()
        };
        let refusal = self.rules.refusal(&server_info);
        self.store_info(server_info);
        if let Some(failure) = refusal {
            return Answer::Failed(failure);
        }
        self.eligibility.length = self.rules.quarantine();
        self.eligibility.on_record(shown, timing);
        self.note_quarantine(timing.answered.tick);
        Answer::Record(shown.clone())
    }

    /// Ends a sync and sends the waiting commands.
    fn on_synced(&mut self, answer: &Answer, now: Now) {
        self.synced_max_ttl = match answer {
            Answer::Record(shown) => self.rules.synced_max_ttl(shown),
            _ => None,
        };
        if let Answer::Failed(
            failure @ (NodeFailure::QuarantineDiffers { .. }
            | NodeFailure::MaxTtl { .. }
            | NodeFailure::Unsuitable { .. }
            | NodeFailure::Disqualified { .. }),
        ) = answer
        {
            self.over.get_or_insert(failure.clone());
        }
        for mut command in self.held_back.take().into_iter().flatten() {
            match answer {
                Answer::Failed(_) => self.vote(&mut command, answer.clone(), true, None),
                _ if command.is_overtaken(self.releases) => {
                    self.vote(&mut command, Answer::Changed, true, None);
                }
                _ => self.send(command, now),
            }
        }
    }

    /// The server has not run this command, because its record has another version. `is_known`: a
    /// sync has shown that version.
    fn on_changed(&mut self, mut command: PendingCommand, is_known: bool, now: Now) {
        if !is_known {
            self.sync_record(now);
        }
        command.changes = command.changes.saturating_add(1);
        if command.is_overtaken(self.releases) {
            self.vote(&mut command, Answer::Changed, true, None);
        } else if CHANGES_MAX <= command.changes {
            let failure = NodeFailure::unsuitable(RECORD_CHANGES);
            self.vote(&mut command, Answer::Failed(failure), true, None);
        } else {
            self.admit(command, now);
        }
    }

    /// The socket was empty at `now`, after all input. An error ends the connection,
    /// [`NodeFailure::Stalled`] only if a second connection gets answers; it comes again after as
    /// long a silence.
    ///
    /// Not called with possibly unread input: on a busy machine the reading thread waits for a
    /// processor, and that is no delay of the server.
    pub(crate) fn on_empty(&mut self, now: Tick) -> Result<(), NodeFailure> {
        if !self.is_overdue(now) {
            return Ok(());
        }
        self.is_stalled = true;
        if !std::mem::replace(&mut self.is_silent, true) {
            self.events.push(SessionEvent::Silent);
        }
        if self.mute_at().is_none_or(|it| now < it) {
            return Ok(());
        }
        self.quiet_since = now;
        // Longest life of a key. Before its end only a second connection may end this one, because
        // only the same connection runs a release after its acquire. One gap stays open, as after a
        // broken connection: the server can run the acquire later, from the old connection, and the
        // key stays for one ttl. Nobody counted that vote.
        let life = self.rules.quarantine().unwrap_or(SYNC_EVERY);
        Err(if self.availability().is_late(life, now) {
            NodeFailure::TimedOut
        } else {
            NodeFailure::Stalled
        })
    }

    /// Whether the oldest answer is late by nearly the response timeout.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        let oldest = self.conn.oldest();
        oldest.is_some_and(|it| self.patience() <= now.saturating_duration_since(it))
    }

    /// Time after which an answer is overdue: a little less than the response timeout, so that the
    /// next caller finds the server silent.
    fn patience(&self) -> Duration {
        self.response_timeout.mul_f64(0.97)
    }

    /// Time at which the connection is mute: neither the oldest answer nor anything else has come
    /// for long.
    fn mute_at(&self) -> Option<Tick> {
        let quiet_since = self.conn.oldest()?.max(self.quiet_since);
        quiet_since.checked_add(self.response_timeout.max(MUTE_MIN))
    }

    /// Sends due commands: kept releases, and the regular sync.
    pub(crate) fn on_time(&mut self, now: Now) {
        if self.next_sync_at <= now.tick {
            self.next_sync_at = now.tick.checked_add(SYNC_EVERY).unwrap_or(now.tick);
            self.enqueue_own(self.rules.sync_record(SyncKind::Look), now);
        }
        for release in self.retries.take_due(now.tick) {
            self.admit(release, now);
        }
    }

    /// Latest time of the worker's next turn. With commands under way it is within the response
    /// timeout, so that silence is found in time.
    pub(crate) fn plan(&mut self, now: Tick) -> Tick {
        // Without one under way another may follow soon, and need not wake the thread.
        let soon = || (now < self.wakes_at).then_some(now);
        let oldest = self.conn.oldest().or_else(soon);
        let overdue_at = oldest
            .filter(|_| !self.is_stalled)
            .and_then(|it| it.checked_add(self.patience()));
        let mute_at = self.mute_at().filter(|_| self.is_stalled);
        self.wakes_at = [overdue_at, mute_at, self.retries.due_at()]
            .into_iter()
            .flatten()
            .fold(self.next_sync_at, Tick::min);
        self.wakes_at
    }

    /// Whether commands sent since the [plan](Session::plan) need a wake-up: the worker would find
    /// silence too late.
    pub(crate) fn is_unwatched(&self, now: Tick) -> bool {
        self.conn.oldest().is_some()
            && !self.is_stalled
            && self.patience() < self.wakes_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests;
