//! One secured connection as data: plaintext into ciphertext and back. It has no socket.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::client::{ClientConfig, ClientConnection};
use rustls::pki_types::ServerName;

use crate::error::{NodeFailure, TlsFailure};
use crate::ids::wide;
use crate::tls::failure;

/// Most plaintext of one record.
const RECORD: usize = 16_384;
/// First bytes of records: a change of ciphers, an alert, a handshake, data.
const RECORD_KINDS: std::ops::RangeInclusive<u8> = 20..=23;

/// See the module. The caller takes decrypted data out in the same turn in which it adds the ciphertext, so that none
/// is left here without a socket event.
pub(crate) struct Session {
    tls: Box<ClientConnection>,
    /// Expected name in the certificate.
    expected: Arc<str>,
    shows_certificate: bool,
    /// Unwritten ciphertext.
    unsent: Vec<u8>,
    unsent_from: usize,
    /// Written bytes of ciphertext.
    written: u64,
    /// Bytes of plaintext in all records.
    sealed: u64,
    /// Bytes of plaintext in completely written records: the server can read only these.
    sent: u64,
    /// Other records: the end of each in the ciphertext, and in the plaintext.
    records: VecDeque<(u64, u64)>,
    /// Unread ciphertext from the server.
    incoming: Vec<u8>,
    incoming_len: usize,
    /// Whether any bytes have come.
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

    /// Whether the handshake is under way.
    pub(crate) fn is_securing(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Bytes of plaintext in all records.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Whether all ciphertext is written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Makes records of all of `plain`. False, without effect, during the handshake or with unwritten records: sealed
    /// bytes cannot be taken back, and are stored twice.
    pub(crate) fn seal(&mut self, plain: &[u8]) -> bool {
        if self.is_securing() || !self.unsent.is_empty() {
            return false;
        }
        for record in plain.chunks(RECORD) {
            if self.tls.writer().write_all(record).is_err() {
                // Only with a limit of the buffer, and there is none.
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

    /// The bytes to write now.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.unsent.get(self.unsent_from..).unwrap_or_default()
    }

    /// Removes `len` written bytes of [`Session::unsent`]. Returns the bytes of plaintext in completely written
    /// records.
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

    /// Space for the next read.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.incoming
            .resize(self.incoming_len.saturating_add(RECORD), 0);
        self.incoming
            .get_mut(self.incoming_len..)
            .unwrap_or_default()
    }

    /// Adds `len` bytes read into the [space](Session::space).
    pub(crate) fn filled(&mut self, len: usize) {
        self.incoming_len = self
            .incoming_len
            .saturating_add(len)
            .min(self.incoming.len());
    }

    /// Takes plaintext from the input; 0 without any. An error ends the connection; the unsent bytes report it to the
    /// server.
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

    /// Moves ciphertext into `unsent`, where written bytes are counted.
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
