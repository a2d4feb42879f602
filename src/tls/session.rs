//! One secured connection as data: plaintext into ciphertext and back. It has no socket.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::client::{ClientConfig, ClientConnection};
use rustls::pki_types::ServerName;

use crate::error::{NodeFailure, TlsFailure};
use crate::tls::failure;

/// The most plaintext of one record.
const RECORD: usize = 16_384;
/// What records begin with: a change of ciphers, an alert, a handshake, data.
const RECORD_KINDS: std::ops::RangeInclusive<u8> = 20..=23;

/// See the module. What is decrypted is taken out by whoever has given the ciphertext, in the same turn, so that nothing is
/// ever left in here of which no socket tells.
pub(crate) struct Session {
    tls: Box<ClientConnection>,
    /// For which name a certificate is wanted.
    expected: Arc<str>,
    shows_certificate: bool,
    /// Ciphertext that was not written yet.
    unsent: Vec<u8>,
    unsent_from: usize,
    /// How many bytes of ciphertext were written.
    written: u64,
    /// How much plaintext is in records that were made.
    sealed: u64,
    /// How much of that is in records that were written to their end. The other side can read no others.
    sent: u64,
    /// Of the records that were not: the end of each among all ciphertext, and that of its plaintext among all of that.
    records: VecDeque<(u64, u64)>,
    /// Ciphertext that has come and was not looked at.
    incoming: Vec<u8>,
    incoming_len: usize,
    /// Something has come.
    received: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn begin(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        expected: Arc<str>,
        shows_certificate: bool,
    ) -> Result<Session, NodeFailure> {
        let tls = ClientConnection::new(config, name)
            .map_err(|err| NodeFailure::Tls(failure::of(err, &expected, shows_certificate)))?;
        let mut session = Session {
            tls: Box::new(tls),
            expected,
            shows_certificate,
            unsent: Vec::new(),
            unsent_from: 0,
            written: 0,
            sealed: 0,
            sent: 0,
            records: VecDeque::new(),
            incoming: Vec::new(),
            incoming_len: 0,
            received: false,
        };
        session.take_ciphertext();
        Ok(session)
    }

    /// The handshake is under way.
    pub(crate) fn is_securing(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// How much plaintext was sealed.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Nothing waits to be written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Makes records of all of `plain`. False, and nothing is done, while the handshake is under way or earlier ones wait to be
    /// written: what is sealed cannot be taken back, and is kept once more.
    pub(crate) fn seal(&mut self, plain: &[u8]) -> bool {
        if self.is_securing() || !self.unsent.is_empty() {
            return false;
        }
        for record in plain.chunks(RECORD) {
            if self.tls.writer().write_all(record).is_err() {
                // Only with a limit to what is kept, and there is none: it is taken out at once.
                return false;
            }
            self.take_ciphertext();
            self.sealed = self.sealed.saturating_add(wide(record.len()));
            let end = self
                .written
                .saturating_add(wide(self.unsent.len().saturating_sub(self.unsent_from)));
            self.records.push_back((end, self.sealed));
        }
        true
    }

    /// What is to be written now.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.unsent.get(self.unsent_from..).unwrap_or_default()
    }

    /// So many bytes of [`Session::unsent`] were written. How much plaintext is in records that have been written.
    pub(crate) fn wrote(&mut self, len: usize) -> u64 {
        self.unsent_from = self.unsent_from.saturating_add(len);
        self.written = self.written.saturating_add(wide(len));
        if self.unsent.len() <= self.unsent_from {
            self.unsent.clear();
            self.unsent_from = 0;
        }
        while let Some((end, plain)) = self.records.front().copied()
            && end <= self.written
        {
            self.records.pop_front();
            self.sent = plain;
        }
        self.sent
    }

    /// Room for what is read next.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.incoming
            .resize(self.incoming_len.saturating_add(RECORD), 0);
        self.incoming
            .get_mut(self.incoming_len..)
            .unwrap_or_default()
    }

    /// So many bytes were read into the [space](Session::space).
    pub(crate) fn filled(&mut self, len: usize) {
        self.incoming_len = self
            .incoming_len
            .saturating_add(len)
            .min(self.incoming.len());
    }

    /// Takes plaintext out of what has come; 0 once nothing is left. An error ends the connection: what is still to be written
    /// says why to the other side.
    pub(crate) fn open(&mut self, into: &mut [u8]) -> Result<usize, NodeFailure> {
        let mut from = 0;
        let result = loop {
            match self.tls.reader().read(into) {
                Ok(0) => break Err(closed()),
                Ok(read) => break Ok(read),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break Err(closed()),
            }
            let mut rest = self
                .incoming
                .get(from..self.incoming_len)
                .unwrap_or_default();
            let Some(first) = rest.first() else {
                break Ok(0);
            };
            if !std::mem::replace(&mut self.received, true) && !RECORD_KINDS.contains(first) {
                break Err(NodeFailure::Tls(TlsFailure::NotTls));
            }
            match self.tls.read_tls(&mut rest) {
                Ok(0) => break Err(closed()),
                Ok(read) => from = from.saturating_add(read),
                Err(err) => {
                    break Err(NodeFailure::Tls(TlsFailure::Protocol {
                        reason: err.to_string(),
                    }));
                }
            }
            let processed = self.tls.process_new_packets();
            self.take_ciphertext();
            if let Err(err) = processed {
                break Err(NodeFailure::Tls(failure::of(
                    err,
                    &self.expected,
                    self.shows_certificate,
                )));
            }
        };
        self.incoming.copy_within(from..self.incoming_len, 0);
        self.incoming_len = self.incoming_len.saturating_sub(from);
        result
    }

    /// What is to be sent is kept here, where what was written of it is counted.
    fn take_ciphertext(&mut self) {
        // Writing to memory does not fail.
        while self.tls.wants_write() && self.tls.write_tls(&mut self.unsent).is_ok_and(|it| it != 0)
        {
        }
    }
}

fn closed() -> NodeFailure {
    NodeFailure::Disconnected {
        reason: "closed by the server".to_owned(),
    }
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
