//! One secured connection: read and written like its socket. Reads continue the handshake.

use std::io::ErrorKind::{UnexpectedEof, WouldBlock};
use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::client::{ClientConfig, ClientConnection};
use rustls::pki_types::ServerName;
use rustls::{Error, InvalidMessage, StreamOwned};

use crate::error::{NodeFailure, TlsFailure};
use crate::sys::Socket;
use crate::tls::failure;
use crate::tls::stream::Stream;

/// See the module. The end is an error, and an error of TLS contains a [`TlsFailure`]. At most 64
/// KiB, the buffer of `rustls`, count as written before the system takes them.
pub(super) struct Session<S: Read + Write> {
    tls: StreamOwned<ClientConnection, S>,
    /// Expected name in the certificate.
    expected: Arc<str>,
    shows_certificate: bool,
    /// Whether the last read found nothing.
    is_read: bool,
}

impl<S: Read + Write> Session<S> {
    pub(super) fn begin(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        expected: Arc<str>,
        shows_certificate: bool,
        below: S,
    ) -> Result<Session<S>, NodeFailure> {
        let tls = ClientConnection::new(config, name)
            .map_err(|err| NodeFailure::Tls(failure::of(err, &expected, shows_certificate)))?;
        Ok(Session {
            tls: StreamOwned::new(tls, below),
            expected,
            shows_certificate,
            is_read: false,
        })
    }

    fn failure(&self, err: io::Error) -> io::Error {
        let not_tls = Error::InvalidMessage(InvalidMessage::InvalidContentType);
        match err.downcast() {
            Ok(err) if err == not_tls && self.tls.conn.is_handshaking() => {
                io::Error::other(TlsFailure::NotTls)
            }
            Ok(err) => io::Error::other(failure::of(err, &self.expected, self.shows_certificate)),
            Err(err) => err,
        }
    }
}

impl<S: Read + Write> Read for Session<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match self.tls.read(into) {
            Ok(0) => Err(io::Error::new(UnexpectedEof, "closed by the server")),
            read => read,
        };
        self.is_read = read.is_err();
        read.map_err(|err| self.failure(err))
    }
}

/// Not by [`StreamOwned`]: without room to write it reads, and only the worker may read. During the
/// handshake nothing is taken.
impl<S: Read + Write> Write for Session<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        if self.tls.conn.is_handshaking() {
            return Err(WouldBlock.into());
        }
        let written = self.tls.conn.writer().write(bytes)?;
        // The bytes are taken: the next call finds the error.
        let _ = self.flush();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.conn.wants_write() {
            self.tls.conn.write_tls(&mut self.tls.sock)?;
        }
        Ok(())
    }
}

impl Stream for Session<Socket> {
    fn socket(&mut self) -> &mut Socket {
        &mut self.tls.sock
    }

    fn is_securing(&self) -> bool {
        self.tls.conn.is_handshaking()
    }

    fn wants_write(&self) -> bool {
        self.tls.conn.wants_write()
    }

    fn has_decrypted(&self) -> bool {
        !self.is_read
    }
}

#[cfg(test)]
mod tests;
