//! One connection as data: commands into bytes, bytes into answers. It has no socket, no thread, no clock and no log.
//!
//! It begins with the [login](crate::wire::log_in), which writes and reads without commands.
//!
//! Four kinds of methods: questions about it; `space`, `filled` and `wrote`, for what has happened to its bytes; what it is
//! given to do; and `poll_write` and `poll_event`, for what is to be done next. An error of `poll_event` ends it.
//!
//! Two rules hold whatever is given to it and however its bytes are cut: an answer is that of the oldest command without
//! one, and a command that was given later is sent later. It ends with an answer that its command cannot have, as whatever
//! comes behind it may be that of another, and behind the answer of a replica or of a server that loads its data.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, ServerInfo};
use crate::error::{NodeFailure, TlsFailure};
use crate::ids::RecordVersion;
use crate::time::{Now, Tick};
use crate::tls::Session;
use crate::wire::command::{Command, Destination};
use crate::wire::frame::Inbox;
use crate::wire::reply::{HandedOver, Push, Reply, push};
use crate::wire::script::{Kind, Script};

/// See the module. `T` is what a command is sent for, and comes back with the answer.
pub(crate) struct Conn<T> {
    /// What stands between these bytes and those of the wire, if that is so.
    tls: Option<Session>,
    inbox: Inbox,
    /// At least one reply has come.
    has_replied: bool,
    unsent: Vec<u8>,
    /// Where the bytes begin that were not written yet.
    unsent_from: usize,
    /// How many bytes were written.
    sent: u64,
    in_flight: VecDeque<InFlight<T>>,
    /// Batches that were written and are not answered to their end.
    pub(crate) batches: usize,
    /// The scripts whose source the server has, or was given on it.
    introduced: Vec<Script>,
    /// Hash tag of all keys, in a cluster.
    tag: Option<Arc<[u8]>>,
    /// Of the server's record, as the last sync has shown it.
    record_version: RecordVersion,
    /// It can carry pushes, and the server has not refused to announce releases.
    pushes: bool,
    /// The client's channel was asked for on it.
    subscribed: bool,
    /// Until when a lock can stand there because of any command on this connection.
    stands_until: Option<Tick>,
    /// Why the server may have other data than when it was synced: nothing that comes after that counts.
    over: Option<&'static str>,
}

/// A command that was written, or is about to be, and has no answer yet.
struct InFlight<T> {
    tag: T,
    /// When it was given to the connection.
    asked: Now,
    /// Whether it carries the script's source.
    with_source: bool,
    /// The version that it carries.
    record_version: RecordVersion,
    /// Where its last byte is among all that were given to the connection.
    end: u64,
    /// The last command of a batch that was written at once.
    ends_batch: bool,
}

/// What has come.
#[derive(Debug)]
pub(crate) enum ConnEvent<T> {
    /// The answer to a command.
    Answer { tag: T, asked: Now, reply: Reply },
    /// The server does not know the script and has run nothing: see [`Conn::enqueue_again`].
    UnknownScript { tag: T, asked: Now },
    /// The server's record is another one than the command says, and nothing was run: the command may be given again.
    /// `is_known`: the server has been synced meanwhile; otherwise it is to be synced before.
    Changed { tag: T, asked: Now, is_known: bool },
    /// A lock was handed over to a call of this client.
    HandedOver(HandedOver),
}

impl<T> Default for Conn<T> {
    fn default() -> Conn<T> {
        Conn {
            tls: None,
            inbox: Inbox::default(),
            has_replied: false,
            unsent: Vec::new(),
            unsent_from: 0,
            sent: 0,
            in_flight: VecDeque::new(),
            batches: 0,
            introduced: Script::NEEDED.to_vec(),
            tag: None,
            record_version: RecordVersion::NONE,
            pushes: false,
            subscribed: false,
            stands_until: None,
            over: None,
        }
    }
}

impl<T: AsRef<Command>> Conn<T> {
    /// A connection that is established now, and is secured by `tls` if that is some. `tag`: hash tag of all keys, in a cluster.
    pub(crate) fn begin(tls: Option<Session>, tag: Option<Arc<[u8]>>) -> Conn<T> {
        Conn {
            tls,
            tag,
            ..Conn::default()
        }
    }

    /// Writes without a command.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
    }

    /// The next reply without a command.
    pub(crate) fn poll_reply(&mut self) -> Result<Option<Vec<u8>>, NodeFailure> {
        let reply = self.take_reply()?;
        Ok(reply.map(|it| self.inbox.get(it).to_vec()))
    }

    /// The login is over.
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

    /// One that has logged in.
    #[cfg(test)]
    pub(crate) fn ready(pushes: bool) -> Conn<T> {
        Conn {
            pushes,
            ..Conn::default()
        }
    }

    /// Ends with the connection: what was never answered, in order.
    pub(crate) fn close(self) -> impl Iterator<Item = T> {
        self.in_flight.into_iter().map(|it| it.tag)
    }

    /// Goes on with the handshake of TLS, if there is one; some once it is over.
    pub(crate) fn poll_secured(&mut self) -> Result<Option<()>, NodeFailure> {
        while self.open()? {}
        Ok((!self.is_securing()).then_some(()))
    }

    /// Whether the login has to wait for the end of the handshake of TLS.
    pub(crate) fn is_securing(&self) -> bool {
        self.tls.as_ref().is_some_and(Session::is_securing)
    }

    /// Whether at least one reply has come.
    pub(crate) fn has_replied(&self) -> bool {
        self.has_replied
    }

    /// Nothing waits to be written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent.is_empty() && self.tls.as_ref().is_none_or(Session::is_flushed)
    }

    /// How many commands have no answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// When the oldest command without an answer was given.
    pub(crate) fn oldest(&self) -> Option<Tick> {
        self.in_flight.front().map(|it| it.asked.tick)
    }

    /// When the connection is worth nothing any more if no answer comes: the oldest is due for `patience`, and whatever
    /// its commands have set has expired. `None` if none is due. A node that does not answer is sent nothing that sets
    /// anything, so this does not move on for ever.
    ///
    /// Before that nobody may give it up: a release that has to run behind an acquire is only sure to do so on the same
    /// connection. After that it does not matter. One gap stays open, as it does when a connection breaks: a server that
    /// was stopped can run the acquire when it goes on, from the old connection, and the key stays for one ttl. Nobody
    /// counted that vote.
    pub(crate) fn give_up_at(&self, patience: Duration) -> Option<Tick> {
        self.stands_until.max(self.oldest()?.checked_add(patience))
    }

    /// Whether its client's channel can be asked for, and was not.
    pub(crate) fn may_subscribe(&self) -> bool {
        self.pushes && !self.subscribed
    }

    /// Whether the server can tell the client over it what it hands over, as far as is known.
    pub(crate) fn is_notified(&self) -> bool {
        self.pushes
    }

    /// How many bytes are kept to be written.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.unsent.len()
    }

    /// Room for what is read next.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        match &mut self.tls {
            Some(tls) => tls.space(),
            None => self.inbox.space(),
        }
    }

    /// So many bytes were read into the [space](Conn::space).
    pub(crate) fn filled(&mut self, len: usize) {
        match &mut self.tls {
            Some(tls) => tls.filled(len),
            None => self.inbox.filled(len),
        }
    }

    /// So many bytes of [`Conn::poll_write`] were written.
    pub(crate) fn wrote(&mut self, len: usize) {
        if let Some(tls) = &mut self.tls {
            self.sent = tls.wrote(len);
            return;
        }
        self.unsent_from = self.unsent_from.saturating_add(len);
        self.sent = self.sent.saturating_add(wide(len));
        if self.unsent.len() <= self.unsent_from {
            self.unsent.clear();
            self.unsent_from = 0;
        } else if self.unsent.len() / 2 < self.unsent_from {
            // Where more is always given than is written, all is never sent. Not each time, as the rest is moved.
            self.unsent.drain(..self.unsent_from);
            self.unsent_from = 0;
        }
    }

    /// Puts a command behind all others. The first with a script that the server need not know carries its source.
    pub(crate) fn enqueue(&mut self, tag: T, asked: Now) {
        self.subscribed |= tag.as_ref().kind == Kind::Subscribe;
        let script = tag.as_ref().script;
        let script = script.filter(|it| !self.introduced.contains(it));
        self.introduced.extend(script);
        self.put(tag, asked, script.is_some());
    }

    /// Puts a command behind all others once more, whose script the server does not know. Only if it is still wanted: its
    /// release may have been given meanwhile, and would run before it.
    pub(crate) fn enqueue_again(&mut self, tag: T, asked: Now) {
        self.put(tag, asked, true);
    }

    fn put(&mut self, tag: T, asked: Now, with_source: bool) {
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
        self.stands_until = self
            .stands_until
            .max(asked.tick.checked_add(tag.as_ref().life));
        let before = self.tls.as_ref().map_or(self.sent, Session::sealed);
        let end = before.saturating_add(wide(self.unsent.len().saturating_sub(self.unsent_from)));
        self.in_flight.push_back(InFlight {
            tag,
            asked,
            with_source,
            record_version,
            end,
            ends_batch: false,
        });
    }

    /// What is to be written now; the commands in it are a batch.
    pub(crate) fn poll_write(&mut self) -> &[u8] {
        if let Some(last) = self.in_flight.back_mut()
            && !last.ends_batch
        {
            last.ends_batch = true;
            self.batches = self.batches.saturating_add(1);
        }
        if let Some(tls) = &mut self.tls {
            if !self.unsent.is_empty() && tls.seal(&self.unsent) {
                self.unsent.clear();
            }
            return tls.unsent();
        }
        self.unsent.get(self.unsent_from..).unwrap_or_default()
    }

    /// What has come next. Answers come in the order of commands, so an answer that is late is still that command's and
    /// nobody else's.
    ///
    /// TCP lets changed bytes through now and then, and a proxy may lose its place. From there on each answer may be that
    /// of another command. So an answer that its command cannot have, or that nothing asked for, is an error: the command
    /// has no answer then, and those behind it have none.
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
                    // RACE: T1, the server, loses its data and is synced anew; T2 has published before that. Therefore a token
                    // of another version counts for nothing.
                    let is_same = notice.record_version == self.record_version;
                    // What orders a reader's is the order on the connection alone, which a cluster does not promise.
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
            // What is answered keeps nobody from sending more: a server that answers without reading could have any
            // number of commands kept here.
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

    /// Decrypts some of what has come. False if nothing is left.
    fn open(&mut self) -> Result<bool, NodeFailure> {
        let Some(tls) = &mut self.tls else {
            return Ok(false);
        };
        let len = tls.open(self.inbox.space())?;
        self.inbox.filled(len);
        Ok(len != 0)
    }

    /// Takes the next complete reply.
    fn take_reply(&mut self) -> Result<Option<Range<usize>>, NodeFailure> {
        loop {
            match self.inbox.take_reply() {
                Ok(None) => {
                    if !self.open()? {
                        return Ok(None);
                    }
                }
                Ok(reply) => {
                    self.has_replied = true;
                    return Ok(reply);
                }
                Err(_) if !self.has_replied && self.tls.is_none() && self.inbox.is_of_tls() => {
                    return Err(NodeFailure::Tls(TlsFailure::SpeaksTls));
                }
                Err(reason) => return Err(NodeFailure::protocol(reason)),
            }
        }
    }
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
