//! The same connection behind TLS, against the server's half of `rustls`, in memory.

use std::io::{Read, Write};
use std::sync::Arc;

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

/// A connection behind TLS and its server, after their handshake.
fn secured() -> (Conn<Tag>, ServerConnection) {
    let tls = Tls::with_ca_pem(AUTHORITY);
    let session = Setup::new(&tls, Some("localhost"), &mut SystemRoots::default())
        .unwrap()
        .begin("localhost")
        .unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap(),
        );
    let mut server = ServerConnection::new(Arc::new(config.unwrap())).unwrap();
    let mut conn = Conn {
        tls: Some(session),
        ..Conn::default()
    };
    while conn.is_securing()
        || server.is_handshaking()
        || server.wants_write()
        || !conn.is_flushed()
    {
        let all = conn.poll_write().len();
        deliver(&mut conn, &mut server, all);
        read(&mut conn, &from(&mut server));
        assert!(matches!(conn.poll_event(), Ok(None)));
    }
    (conn, server)
}

/// The system takes so many bytes of what is to be written. How much the server can read of it.
fn deliver(conn: &mut Conn<Tag>, server: &mut ServerConnection, len: usize) -> usize {
    let mut bytes = &conn.poll_write()[..len];
    let mut plain = Vec::new();
    while !bytes.is_empty() {
        server.read_tls(&mut bytes).unwrap();
        server.process_new_packets().unwrap();
        let _ = server.reader().read_to_end(&mut plain);
    }
    conn.wrote(len);
    plain.len()
}

/// What the server has for the wire.
fn from(server: &mut ServerConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut bytes).unwrap();
    }
    bytes
}

fn long(id: u8) -> Tag {
    Tag {
        id,
        command: Command::of_script(Script::Release, &[b"key"], &[&vec![id; 40_000]]),
    }
}

#[test]
fn what_the_system_has_not_taken_keeps_the_connection_from_being_flushed() {
    let (mut conn, mut server) = secured();
    conn.enqueue(long(1), Now::read());
    let expected = long(1).command.packed();

    let all = conn.poll_write().len();
    assert!(expected.len() < all);
    let heard = deliver(&mut conn, &mut server, all - 1);
    assert!(!conn.is_flushed() && heard < expected.len());

    assert_eq!(heard + deliver(&mut conn, &mut server, 1), expected.len());
    assert!(conn.is_flushed() && conn.poll_write().is_empty());
}

#[test]
fn h7_an_answer_to_a_command_whose_last_record_was_not_written_ends_the_connection_and_those_before_it_count()
 {
    let (mut conn, mut server) = secured();
    conn.enqueue(script(Script::Release, 1), Now::read());
    let first = conn.poll_write().len();
    conn.enqueue(script(Script::Release, 2), Now::read());
    deliver(&mut conn, &mut server, first);
    let second = conn.poll_write().len();
    deliver(&mut conn, &mut server, second - 1);

    server.writer().write_all(b":1\r\n:1\r\n").unwrap();
    read(&mut conn, &from(&mut server));

    assert!(matches!(
        conn.poll_event(),
        Ok(Some(ConnEvent::Answer {
            tag: Tag { id: 1, .. },
            ..
        }))
    ));
    assert!(matches!(
        conn.poll_event(),
        Err(NodeFailure::Protocol { .. })
    ));
}

#[test]
fn records_may_come_cut_at_every_byte_and_several_at_a_time() {
    for at_a_time in [1, 7, 40, 10_000] {
        let (mut conn, mut server) = secured();
        for id in 1..=3 {
            conn.enqueue(script(Script::Release, id), Now::read());
            let all = conn.poll_write().len();
            deliver(&mut conn, &mut server, all);
            server.writer().write_all(b":1\r\n").unwrap();
        }

        let mut answered = Vec::new();
        for piece in from(&mut server).chunks(at_a_time) {
            read(&mut conn, piece);
            while let Some(event) = conn.poll_event().unwrap() {
                let ConnEvent::Answer { tag, .. } = event else {
                    panic!("{event:?}")
                };
                answered.push(tag.id);
            }
        }

        assert_eq!(answered, [1, 2, 3]);
    }
}

#[test]
fn the_end_of_the_session_is_the_end_of_the_connection_and_what_came_before_it_counts() {
    let (mut conn, mut server) = secured();
    conn.enqueue(script(Script::Release, 1), Now::read());
    let all = conn.poll_write().len();
    deliver(&mut conn, &mut server, all);
    server.writer().write_all(b":1\r\n").unwrap();
    server.send_close_notify();
    read(&mut conn, &from(&mut server));

    assert!(matches!(
        conn.poll_event(),
        Ok(Some(ConnEvent::Answer { .. }))
    ));
    assert!(matches!(
        conn.poll_event(),
        Err(NodeFailure::Disconnected { .. })
    ));
}

#[test]
fn a_record_that_was_changed_on_its_way_ends_the_connection() {
    let (mut conn, mut server) = secured();
    server.writer().write_all(b":1\r\n").unwrap();
    let mut bytes = from(&mut server);
    *bytes.last_mut().unwrap() ^= 1;
    read(&mut conn, &bytes);

    assert!(matches!(
        conn.poll_event(),
        Err(NodeFailure::Tls(TlsFailure::Protocol { .. }))
    ));
    // The server is told.
    assert!(!conn.poll_write().is_empty());
}
