//! One connection as data: commands into bytes, bytes into answers. It has no socket, no thread, no
//! clock and no log.
//!
//! It begins with the [login](crate::wire::log_in), which exchanges bytes without commands.
//!
//! Four kinds of methods: its state; `space`, `filled` and `wrote`, for moved bytes; new commands;
//! and `poll_write` and `poll_event`, for the next output and event. An error of `poll_event` ends
//! it.
//!
//! Two rules hold for any input, however cut: an answer belongs to the oldest command without one,
//! and commands are sent in order. An impossible answer for its command ends the connection,
//! because later answers may belong to other commands. So does the answer of a replica or of a
//! server that loads its data.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::answer::{Answer, ServerInfo};
use crate::error::{NodeFailure, TlsFailure};
use crate::ids::{RecordVersion, wide};
use crate::time::{Now, Tick};
use crate::wire::command::{Command, Destination};
use crate::wire::frame::Inbox;
use crate::wire::reply::{HandedOver, Push, Reply, push};
use crate::wire::script::{Kind, Script};

/// See the module. `T`: the caller's tag of a command, returned with the answer.
pub(crate) struct Conn<T> {
    inbox: Inbox,
    /// Whether a reply has come.
    has_replied: bool,
    unsent: Vec<u8>,
    /// Start of the unwritten bytes.
    unsent_from: usize,
    /// Number of written bytes.
    sent: u64,
    in_flight: VecDeque<InFlight<T>>,
    /// Written batches without their last answer.
    pub(crate) batches: usize,
    /// Scripts whose source the server got.
    introduced: Vec<Script>,
    /// Hash tag of all keys, in a cluster.
    tag: Option<Arc<[u8]>>,
    /// Version of the server's record in the last sync.
    record_version: RecordVersion,
    /// Whether pushes are possible and the server has not refused the subscription.
    pushes: bool,
    /// Whether it is subscribed to the client's channel.
    subscribed: bool,
    /// Why the server may have other data than at the sync: nothing later counts.
    over: Option<&'static str>,
}

/// A command without an answer, written or about to be.
struct InFlight<T> {
    tag: T,
    /// Time at which the connection got it.
    asked: Now,
    /// Whether it has the script's source.
    with_source: bool,
    /// Its record version.
    record_version: RecordVersion,
    /// Position of its last byte among all bytes of the connection.
    end: u64,
    /// Whether it is the last one of a batch.
    ends_batch: bool,
}

/// An event of the connection.
#[derive(Debug)]
pub(crate) enum ConnEvent<T> {
    /// The answer to a command.
    Answer { tag: T, asked: Now, reply: Reply },
    /// The server has run nothing, without the script: see [`Conn::put`].
    UnknownScript { tag: T, asked: Now },
    /// The server has run nothing, because its record has another version: the command may be given
    /// again. `is_known`: a sync has shown that version; otherwise sync first.
    Changed { tag: T, asked: Now, is_known: bool },
    /// A hand-over to a call of this client.
    HandedOver(HandedOver),
}

impl<T> Default for Conn<T> {
    fn default() -> Conn<T> {
        Conn {
            inbox: Inbox::default(),
            has_replied: false,
            unsent: Vec::new(),
            unsent_from: 0,
            sent: 0,
            in_flight: VecDeque::new(),
            batches: 0,
            introduced: Vec::new(),
            tag: None,
            record_version: RecordVersion::NONE,
            pushes: false,
            subscribed: false,
            over: None,
        }
    }
}

impl<T: AsRef<Command>> Conn<T> {
    /// A new connection. `tag`: hash tag of all keys, in a cluster.
    pub(crate) fn begin(tag: Option<Arc<[u8]>>) -> Conn<T> {
        Conn {
            tag,
            ..Conn::default()
        }
    }

    /// Writes bytes without a command.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
    }

    /// The next reply without a command.
    pub(crate) fn poll_reply(&mut self) -> Result<Option<Vec<u8>>, NodeFailure> {
        let reply = self.take_reply()?;
        Ok(reply.map(|it| self.inbox.get(it).to_vec()))
    }

    /// Ends the login.
    pub(crate) fn on_login(&mut self, server_info: &ServerInfo) -> Result<(), NodeFailure> {
        self.pushes = server_info.pushes;
        if let Some(synced) = &server_info.record_reply {
            self.record_version = synced.record_version;
        }
        if !self.inbox.is_empty() {
            return Err(NodeFailure::protocol(
                "more than was asked for in the login",
            ));
        }
        Ok(())
    }

    /// A connection after its login, and after the first use of each script.
    #[cfg(test)]
    pub(crate) fn ready(pushes: bool) -> Conn<T> {
        Conn {
            introduced: Script::ALL.to_vec(),
            pushes,
            ..Conn::default()
        }
    }

    /// Ends the connection. Returns the commands without an answer, in order.
    pub(crate) fn close(self) -> impl Iterator<Item = T> {
        self.in_flight.into_iter().map(|it| it.tag)
    }

    /// Whether a reply has come.
    pub(crate) fn has_replied(&self) -> bool {
        self.has_replied
    }

    /// Whether all bytes are written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Number of commands without an answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Time of the oldest command without an answer.
    pub(crate) fn oldest(&self) -> Option<Tick> {
        self.in_flight.front().map(|it| it.asked.tick)
    }

    /// Whether a subscription is possible and missing.
    pub(crate) fn may_subscribe(&self) -> bool {
        self.pushes && !self.subscribed
    }

    /// Whether the server can announce hand-overs on this connection.
    pub(crate) fn is_notified(&self) -> bool {
        self.pushes
    }

    /// Number of unwritten bytes.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.unsent.len()
    }

    /// Space for the next read.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// Adds `len` bytes read into the [space](Conn::space).
    pub(crate) fn filled(&mut self, len: usize) {
        self.inbox.filled(len);
    }

    /// Removes `len` written bytes of [`Conn::poll_write`].
    pub(crate) fn wrote(&mut self, len: usize) {
        self.unsent_from = self.unsent_from.saturating_add(len);
        self.sent = self.sent.saturating_add(wide(len));
        if self.unsent.len() <= self.unsent_from {
            self.unsent.clear();
            self.unsent_from = 0;
        } else if self.unsent.len() / 2 < self.unsent_from {
            // With a steady backlog the buffer is never empty. Not each time, because it moves the
            // rest.
            self.unsent.drain(..self.unsent_from);
            self.unsent_from = 0;
        }
    }

    /// Puts a command behind all others. The first one with an unknown script has its source.
    pub(crate) fn enqueue(&mut self, tag: T, asked: Now) {
        self.subscribed |= tag.as_ref().kind == Kind::Subscribe;
        let script = tag.as_ref().script;
        let script = script.filter(|it| !self.introduced.contains(it));
        self.introduced.extend(script);
        self.put(tag, asked, script.is_some());
    }

    /// Puts a command behind all others, with the source of its script or without.
    pub(crate) fn put(&mut self, tag: T, asked: Now, with_source: bool) {
        let command = tag.as_ref();
        let record_version = if command.compares() {
            self.record_version
        } else {
            RecordVersion::NONE
        };
        let to = Destination {
            with_source,
            is_notified: self.is_notified(),
            record_version,
            tag: self.tag.as_deref(),
        };
        command.write(&mut self.unsent, to);
        let end = self
            .sent
            .saturating_add(wide(self.unsent.len().saturating_sub(self.unsent_from)));
        self.in_flight.push_back(InFlight {
            tag,
            asked,
            with_source,
            record_version,
            end,
            ends_batch: false,
        });
    }

    /// The bytes to write now; their commands are a batch.
    pub(crate) fn poll_write(&mut self) -> &[u8] {
        if let Some(last) = self.in_flight.back_mut()
            && !last.ends_batch
        {
            last.ends_batch = true;
            self.batches = self.batches.saturating_add(1);
        }
        self.unsent.get(self.unsent_from..).unwrap_or_default()
    }

    /// The next event. Answers come in the order of commands, so a late answer still belongs to its
    /// command.
    ///
    /// TCP can deliver corrupted bytes, and a proxy can lose its place. From there on each answer
    /// may belong to another command. So an impossible answer, or one without a command, is an
    /// error: neither its command nor later ones have an answer.
    pub(crate) fn poll_event(&mut self) -> Result<Option<ConnEvent<T>>, NodeFailure> {
        loop {
            if let Some(reason) = self.over {
                return Err(NodeFailure::Disconnected {
                    reason: reason.to_owned(),
                });
            }
            let Some(reply) = self.take_reply()? else {
                return Ok(None);
            };
            let frame = self.inbox.get(reply);
            let first = self.in_flight.front();
            match push(frame) {
                Push::None => {}
                Push::Subscribed
                    if first.is_some_and(|it| it.tag.as_ref().kind == Kind::Subscribe) => {}
                Push::Message(None) => continue,
                Push::Message(Some(notice)) => {
                    // RACE: T1, the server, loses its data and is synced again; T2 has published
                    // before that. Therefore a token of another version does not count.
                    let is_same = notice.record_version == self.record_version;
                    // A reader's hand-over relies on the order on the connection, which a cluster
                    // does not guarantee.
                    let is_ordered = self.tag.is_none() || !notice.reads;
                    let token = notice.token.filter(|_| is_same && is_ordered);
                    return Ok(Some(ConnEvent::HandedOver(HandedOver { token, ..notice })));
                }
                Push::Subscribed | Push::Other => {
                    return Err(NodeFailure::protocol("a push that was not asked for"));
                }
            }
            let Some(first) = first else {
                return Err(NodeFailure::protocol("an answer to nothing"));
            };
            // An answered command does not limit further ones: a server that answers without
            // reading could make this client keep any number of commands.
            if self.sent < first.end {
                return Err(NodeFailure::protocol("an answer to what was not sent yet"));
            }
            let reply = Reply::read(first.tag.as_ref().kind, frame);
            if let Answer::Failed(failure @ NodeFailure::Protocol { .. }) = reply.answer {
                return Err(failure);
            }
            let Some(InFlight {
                tag,
                asked,
                with_source,
                record_version,
                ends_batch,
                ..
            }) = self.in_flight.pop_front()
            else {
                continue;
            };
            self.batches = self.batches.saturating_sub(usize::from(ends_batch));
            if let Answer::Record(synced) = &reply.answer {
                self.record_version = synced.record_version;
            }
            if with_source && matches!(reply.answer, Answer::Failed(_)) {
                // So that a user without EVAL is refused each time, whatever others have loaded.
                let script = tag.as_ref().script;
                self.introduced.retain(|it| Some(*it) != script);
            }
            self.pushes &=
                tag.as_ref().kind != Kind::Subscribe || reply.answer == Answer::Subscribed;
            self.over = match reply.answer {
                Answer::Failed(NodeFailure::Replica) => Some("its server is a replica now"),
                Answer::Failed(NodeFailure::Loading) => Some("its server loads its data"),
                _ => None,
            };
            return Ok(Some(match reply.answer {
                Answer::NoScript if !with_source => ConnEvent::UnknownScript { tag, asked },
                Answer::Changed => {
                    let is_known = record_version != self.record_version;
                    ConnEvent::Changed {
                        tag,
                        asked,
                        is_known,
                    }
                }
                _ => ConnEvent::Answer { tag, asked, reply },
            }));
        }
    }

    /// Takes the next complete reply.
    fn take_reply(&mut self) -> Result<Option<Range<usize>>, NodeFailure> {
        match self.inbox.take_reply() {
            Ok(reply) => {
                self.has_replied |= reply.is_some();
                Ok(reply)
            }
            Err(_) if !self.has_replied && self.inbox.is_of_tls() => {
                Err(NodeFailure::Tls(TlsFailure::SpeaksTls))
            }
            Err(reason) => Err(NodeFailure::protocol(reason)),
        }
    }
}

#[cfg(test)]
mod tests;
