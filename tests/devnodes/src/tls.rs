//! TLS in front of servers, and certificates that are made as they are needed.
//!
//! On the backend [`Tls`](Backend::Tls) every [`Server`](crate::Server) has a [`Terminator`] in front of it.

use std::collections::HashMap;
use std::env;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType, date_time_ymd,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS12;
use rustls::{
    ALL_VERSIONS, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};

use crate::{Backend, Error, FakeServer, backend, lock};

/// Where a [`ChildProcess`](crate::ChildProcess) finds the certificate of its parent's authority.
const AUTHORITY: &str = "QUORLOCK_TEST_AUTHORITY";

fn is_wanted() -> bool {
    backend() == Backend::Tls
}

/// The authorities of the certificates on the backend [`Tls`](Backend::Tls), as PEM: this process', and its parent's.
pub fn authority_pem() -> String {
    env::var(AUTHORITY).unwrap_or_default() + own_authority().pem()
}

/// What a child process must know.
pub(crate) fn for_children() -> Option<(&'static str, String)> {
    is_wanted().then(|| (AUTHORITY, authority_pem()))
}

fn own_authority() -> &'static Authority {
    static OWN: OnceLock<Authority> = OnceLock::new();
    OWN.get_or_init(Authority::generate)
}

/// What stands in front of servers, by their addresses.
static IN_FRONT: LazyLock<Mutex<HashMap<SocketAddr, SocketAddr>>> = LazyLock::new(Mutex::default);

/// What speaks TLS for the server at `addr`, if something does.
pub(crate) fn in_front_of(addr: SocketAddr) -> Option<SocketAddr> {
    lock(&IN_FRONT).get(&addr).copied()
}

/// Puts a terminator in front of a server, if that is wanted.
pub(crate) fn put_in_front_of(addr: SocketAddr) -> Result<Option<Terminator>, Error> {
    if !is_wanted() {
        return Ok(None);
    }
    let terminator = Terminator::start(
        addr,
        &own_authority().certify(&["127.0.0.1", "localhost"]),
        None,
    )?;
    lock(&IN_FRONT).insert(addr, terminator.addr());
    Ok(Some(terminator))
}

/// One that signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    own: Certificate,
}

/// A certificate and its key, both as PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub chain: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A new one, that nobody trusts.
    pub fn generate() -> Authority {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "devnodes");
        let key = KeyPair::generate().expect("a key");
        let own = Certificate {
            chain: params.self_signed(&key).expect("signed").pem(),
            key: key.serialize_pem(),
        };
        Authority {
            issuer: Issuer::new(params, key),
            own,
        }
    }

    /// Its own certificate.
    pub fn pem(&self) -> &str {
        &self.own.chain
    }

    /// Its own certificate and key, for a server that shows it as its own.
    pub fn own(&self) -> &Certificate {
        &self.own
    }

    /// A certificate for these names and IP addresses.
    pub fn certify(&self, names: &[&str]) -> Certificate {
        self.certify_between(names, 2000, 4000)
    }

    /// One that is valid from the beginning of one year to that of another.
    pub fn certify_between(&self, names: &[&str], from: i32, to: i32) -> Certificate {
        let mut params = params(names);
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        self.sign(&params)
    }

    /// One that has even addresses as names of hosts.
    pub fn certify_hosts(&self, names: &[&str]) -> Certificate {
        let host = |it: &&str| SanType::DnsName((*it).try_into().expect("a name"));
        let mut params = params(&[]);
        params.subject_alt_names = names.iter().map(host).collect();
        self.sign(&params)
    }

    /// One that is not for servers.
    pub fn certify_client(&self, names: &[&str]) -> Certificate {
        let mut params = params(names);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let chain = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Certificate {
            chain,
            key: key.serialize_pem(),
        }
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
    CertificateParams::new(names).expect("names")
}

/// Speaks TLS with clients and passes what they say on to a server that does not. Dropping it closes everything.
#[derive(Debug)]
pub struct Terminator {
    listener: FakeServer,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    config: Mutex<Arc<ServerConfig>>,
    mute: AtomicBool,
    refresh: AtomicBool,
    handshakes: AtomicUsize,
}

impl Terminator {
    /// Listens on a port of its own. With `clients`, clients must show a certificate of that authority.
    pub fn start(
        target: SocketAddr,
        certificate: &Certificate,
        clients: Option<&Authority>,
    ) -> Result<Terminator, Error> {
        let shared = Arc::new(Shared {
            target,
            config: Mutex::new(config(certificate, clients)),
            mute: AtomicBool::new(false),
            refresh: AtomicBool::new(false),
            handshakes: AtomicUsize::new(0),
        });
        let theirs = shared.clone();
        let listener = FakeServer::start(move |conn| {
            let client = conn.stream();
            if theirs.mute.load(Ordering::SeqCst) {
                let _ = io::copy(&mut &*client, &mut io::sink());
                return;
            }
            // On loopback this is quick: a server that is down refuses, one that is paused has a
            // queue.
            let server = TcpStream::connect_timeout(&theirs.target, Duration::from_secs(1));
            if let Ok(server) = server {
                let _ = serve(client, &server, &theirs);
                let _ = server.shutdown(Shutdown::Both);
            }
        })?;
        Ok(Terminator { listener, shared })
    }

    /// `rediss://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("rediss://{}", self.addr())
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Shows another certificate from the next connection on, and asks clients for one or not.
    pub fn set_certificate(&self, certificate: &Certificate, clients: Option<&Authority>) {
        *lock(&self.shared.config) = config(certificate, clients);
    }

    /// Shows this certificate from the next connection on, and speaks TLS 1.2 only.
    pub fn set_old(&self, certificate: &Certificate, clients: Option<&Authority>) {
        *lock(&self.shared.config) = config_of(certificate, clients, &[&TLS12]);
    }

    /// While it is mute, new connections are accepted and nothing is answered on them, not even the handshake.
    pub fn set_mute(&self, mute: bool) {
        self.shared.mute.store(mute, Ordering::SeqCst);
    }

    /// Asks for new keys before each piece of a reply, and asks the client to take new ones as well. TLS 1.3 only.
    pub fn set_refresh(&self, refresh: bool) {
        self.shared.refresh.store(refresh, Ordering::SeqCst);
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.listener.cut();
    }

    /// How many handshakes were ended well.
    pub fn handshakes(&self) -> usize {
        self.shared.handshakes.load(Ordering::SeqCst)
    }
}

impl Drop for Terminator {
    fn drop(&mut self) {
        lock(&IN_FRONT).remove(&self.shared.target);
    }
}

fn config(certificate: &Certificate, clients: Option<&Authority>) -> Arc<ServerConfig> {
    config_of(certificate, clients, ALL_VERSIONS)
}

fn config_of(
    certificate: &Certificate,
    clients: Option<&Authority>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let chain =
        CertificateDer::pem_slice_iter(certificate.chain.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("a key");
    let verifier = match clients {
        None => Arc::new(NoClientAuth) as Arc<_>,
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots
                .add(
                    CertificateDer::from_pem_slice(authority.pem().as_bytes())
                        .expect("a certificate"),
                )
                .expect("a root");
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .expect("a verifier")
        }
    };
    // No look at the certificate: clients have to find out what is wrong with it.
    let key = provider.key_provider.load_private_key(key).expect("a key");
    let shown = CertifiedKey::new(chain.expect("certificates"), key);
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    Arc::new(config)
}

/// Passes on what comes, both ways, until one side ends.
fn serve(mut client: &TcpStream, mut server: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut tls = ServerConnection::new(lock(&shared.config).clone()).map_err(io::Error::other)?;
    for stream in [client, server] {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
    }
    let (mut to_server, mut bytes, mut synced) = (Vec::new(), vec![0; 16_384], false);
    loop {
        let idle = PollFlags::IN;
        let busy = |yes: bool| {
            if yes {
                PollFlags::IN | PollFlags::OUT
            } else {
                idle
            }
        };
        let mut fds = [
            PollFd::new(client, busy(tls.wants_write())),
            PollFd::new(server, busy(!to_server.is_empty())),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
        let (from_client, from_server) =
            (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if from_client {
            match would_block(tls.read_tls(&mut client))? {
                Some(0) => return Ok(()),
                Some(_) => {
                    let result = tls.process_new_packets();
                    flush(&mut tls, client)?;
                    result.map_err(io::Error::other)?;
                }
                None => {}
            }
            if !synced && !tls.is_handshaking() {
                synced = true;
                shared.handshakes.fetch_add(1, Ordering::SeqCst);
            }
            while let Some(read) = would_block(tls.reader().read(&mut bytes))? {
                if read == 0 {
                    return Ok(());
                }
                to_server.extend_from_slice(&bytes[..read]);
            }
        }
        if from_server && synced {
            match would_block(server.read(&mut bytes))? {
                Some(0) => {
                    tls.send_close_notify();
                    return flush(&mut tls, client);
                }
                Some(read) => {
                    if shared.refresh.load(Ordering::SeqCst) {
                        tls.refresh_traffic_keys().map_err(io::Error::other)?;
                    }
                    tls.writer().write_all(&bytes[..read])?;
                }
                None => {}
            }
        }
        while !to_server.is_empty() {
            let Some(written) = would_block(server.write(&to_server))? else {
                break;
            };
            to_server.drain(..written);
        }
        flush(&mut tls, client)?;
    }
}

/// Writes what the system takes now.
fn flush(tls: &mut ServerConnection, mut client: &TcpStream) -> io::Result<()> {
    while tls.wants_write() && would_block(tls.write_tls(&mut client))?.is_some() {}
    Ok(())
}

/// `None` if the call would block.
fn would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(err) => Err(err),
    }
}
