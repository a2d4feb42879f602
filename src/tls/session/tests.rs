//! A session against the server's half of `rustls`, in memory.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

use std::collections::VecDeque;
use std::io::ErrorKind;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::*;
use crate::tls::{Setup, SystemRoots, Tls};

/// For nothing but these tests: an authority, and a certificate of `localhost` with its key.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBfzCCASWgAwIBAgIUbyCou5x9vshXZ2fJ1+c1Qj0yk6cwCgYIKoZIzj0EAwIw\n\
FDESMBAGA1UEAwwJYXV0aG9yaXR5MCAXDTI2MTEyMjE5MTQzNloYDzQ3NjQxMDE5\n\
MTkxNDM2WjAUMRIwEAYDVQQDDAlhdXRob3JpdHkwWTATBgcqhkjOPQIBBggqhkjO\n\
PQMBBwNCAATbdkg6NjdwvMGi6XYSTsAvGvny6sL5koSi7JJI6lFh4oRzzFyzw5dt\n\
ZFzzFFYtT92EZ4tSPPDbjgasXK30zzwOo1MwUTAdBgNVHQ4EFgQUq6iM1KxdJHmr\n\
fmPDgTQWul9xM18wHwYDVR0jBBgwFoAUq6iM1KxdJHmrfmPDgTQWul9xM18wDwYD\n\
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEAjnitqzHMXDnkRNlqtu4O\n\
RsdDeYiB6mo/k6yLHt6A7ikCICP9u8SLJmR8Xsl9r3lm15VxCfx20EOcjbzBZUHC\n\
4GCA\n\
-----END CERTIFICATE-----";
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBiTCCATCgAwIBAgIUaaDn7CDZYoU9Wn3BYOVCqBfT4ucwCgYIKoZIzj0EAwIw\n\
FDESMBAGA1UEAwwJYXV0aG9yaXR5MCAXDTI2MTEyMjE5MTQzNloYDzQ3NjQxMDE4\n\
MTkxNDM2WjAPMQ0wCwYDVQQDDARsZWFmMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n\
QgAEgGsu7Hen6PvtWYVrkRvpqMQ3CuZO5V6SUtAo1ft0WbanOtR3EUK/NToMroEq\n\
xIblyR0OOvknHaDCv2jom/1GdKNjMGEwFAYDVR0RBA0wC4IJbG9jYWxob3N0MAkG\n\
A1UdEwQCMAAwHQYDVR0OBBYEFFtVm06u6KWUSp8rF2mbSLR6hZasMB8GA1UdIwQY\n\
MBaAFKuojNSsXSR5q35jw4E0FrpfcTNfMAoGCCqGSM49BAMCA0cAMEQCIB8ZFHIP\n\
SkmsxXpRTIeb/ZKvqwAMz8H4/zb2wUlT1W71AiBE4ehj/RuXkJi+f40PnOdv5cCd\n\
tlZf+5JmaaOLayqUGQ==\n\
-----END CERTIFICATE-----";
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgxVL5W2Uv6Z2dWbqq\n\
ebXVuXWPeraIgdeqsi0yYBavP7OhRANCAASAay7sd6fo++1ZhWuRG+moxDcK5k7l\n\
XpJS0CjV+3RZtqc61HcRQr81OgyugSrEhuXJHQ46+ScdoMK/aOib/UZ0\n\
-----END PRIVATE KEY-----";

/// What is between a session and its server.
#[derive(Default)]
struct Wire {
    to_server: Vec<u8>,
    to_client: VecDeque<u8>,
    /// How many bytes the system takes.
    room: usize,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.to_client.read(into)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        self.to_server.extend(&bytes[..taken]);
        match taken {
            0 => Err(ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A session before its handshake, on a wire with room.
fn begin() -> Session<Wire> {
    let tls = Tls::with_ca_pem(AUTHORITY);
    let setup = Setup::new(&tls, Some("localhost"), &mut SystemRoots::default()).unwrap();
    let wire = Wire {
        room: usize::MAX,
        ..Wire::default()
    };
    setup.begin("localhost", wire).unwrap()
}

/// A session and its server, after their handshake.
fn secured() -> (Session<Wire>, ServerConnection) {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap(),
        );
    let mut server = ServerConnection::new(Arc::new(config.unwrap())).unwrap();
    let mut session = begin();
    while session.tls.conn.is_handshaking() || server.is_handshaking() || server.wants_write() {
        let (plain, end) = read(&mut session);
        assert!(plain.is_empty() && end.kind() == ErrorKind::WouldBlock);
        assert_eq!(heard(&mut server, &mut session), b"");
        session.tls.sock.to_client.extend(from(&mut server));
    }
    (session, server)
}

/// The plaintext that the server can read of what has come.
fn heard(server: &mut ServerConnection, session: &mut Session<Wire>) -> Vec<u8> {
    let mut plain = Vec::new();
    let come = std::mem::take(&mut session.tls.sock.to_server);
    let mut rest = &come[..];
    while !rest.is_empty() {
        server.read_tls(&mut rest).unwrap();
        server.process_new_packets().unwrap();
        let _ = server.reader().read_to_end(&mut plain);
    }
    plain
}

/// What the server has for the wire.
fn from(server: &mut ServerConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// What the session reads, and why no more.
fn read(session: &mut Session<Wire>) -> (Vec<u8>, io::Error) {
    let mut all = Vec::new();
    let mut into = [0; 7];
    loop {
        match session.read(&mut into) {
            Ok(read) => all.extend(&into[..read]),
            Err(err) => return (all, err),
        }
    }
}

fn cause(err: &io::Error) -> &TlsFailure {
    err.get_ref().unwrap().downcast_ref().unwrap()
}

#[test]
fn h7_at_most_64_kib_count_as_written_before_the_system_has_taken_them() {
    let (mut session, mut server) = secured();
    let plain = [b'x'; 10_000];
    session.tls.sock.room = 100;
    let mut written = 0;
    while let Ok(more) = session.write(&plain)
        && more != 0
    {
        written += more;
    }
    assert!((1..=65_536).contains(&written), "{written}");
    assert!(session.tls.conn.wants_write());
    assert_eq!(heard(&mut server, &mut session), b"");

    session.tls.sock.room = usize::MAX;
    session.flush().unwrap();

    assert!(!session.tls.conn.wants_write());
    assert_eq!(heard(&mut server, &mut session).len(), written);
}

#[test]
fn nothing_is_written_in_clear_while_the_handshake_is_under_way() {
    let mut session = begin();
    let err = session.write(b"a secret").unwrap_err();
    assert_eq!(err.kind(), ErrorKind::WouldBlock);
    let shown = String::from_utf8_lossy(&session.tls.sock.to_server).into_owned();
    assert!(!shown.is_empty() && !shown.contains("secret"), "{shown}");
}

#[test]
fn tls_records_may_come_split_and_bundled() {
    for at_a_time in [1, 7, 40, 10_000] {
        let (mut session, mut server) = secured();
        for _ in 0..3 {
            server.writer().write_all(b":1\r\n").unwrap();
        }
        let mut answers = Vec::new();
        for piece in from(&mut server).chunks(at_a_time) {
            session.tls.sock.to_client.extend(piece);
            let (plain, end) = read(&mut session);
            answers.extend(plain);
            assert_eq!(end.kind(), ErrorKind::WouldBlock);
        }
        assert_eq!(answers, b":1\r\n".repeat(3));
    }
}

#[test]
fn the_end_of_the_session_comes_behind_what_was_sent_before_it() {
    let (mut session, mut server) = secured();
    server.writer().write_all(b":1\r\n").unwrap();
    server.send_close_notify();
    session.tls.sock.to_client.extend(from(&mut server));

    let (plain, end) = read(&mut session);

    assert_eq!(plain, b":1\r\n");
    assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_record_that_was_changed_on_its_way_ends_the_session_and_the_server_gets_the_reason() {
    let (mut session, mut server) = secured();
    server.writer().write_all(b":1\r\n").unwrap();
    let mut bytes = from(&mut server);
    *bytes.last_mut().unwrap() ^= 1;
    session.tls.sock.to_client.extend(bytes);

    let (plain, end) = read(&mut session);

    assert_eq!(plain, b"");
    assert!(matches!(cause(&end), TlsFailure::Protocol { .. }));
    assert!(!session.tls.sock.to_server.is_empty());
}

#[test]
fn an_answer_in_clear_to_the_handshake_is_known_for_what_it_is() {
    let mut session = begin();
    let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    session.tls.sock.to_client.extend(answer);
    assert_eq!(cause(&read(&mut session).1), &TlsFailure::NotTls);
}
