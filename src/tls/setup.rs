//! From options to sessions. Reads files.

use std::fmt;
use std::io::{Read, Write};
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::error::{self, NodeFailure, TlsFailure};
use crate::sys::Socket;
use crate::sys::sync::Mutex;
use crate::tls::failure;
use crate::tls::options::{Pem, Roots, Tls};
use crate::tls::session::Session;
use crate::tls::stream::Stream;

/// Number of names with resumable sessions: one node may be several servers.
const SESSIONS: usize = 32;

/// TLS setup of the connections to one node. `Debug` shows nothing.
pub(crate) struct Setup {
    tls: Tls,
    /// Authorities of the system, read once for all nodes.
    system: Option<Arc<RootCertStore>>,
    loaded: Mutex<Loaded>,
}

/// Last usable contents of the files.
struct Loaded {
    config: Arc<ClientConfig>,
    hash: Hash,
    /// Last unusable files with a log line.
    refused: Option<Result<Hash, String>>,
    /// Not yet in the log.
    warning: Option<String>,
}

/// A fingerprint of all files instead of the files: a key is kept in one place only.
type Hash = [u8; 20];

/// The contents of all files.
struct Files {
    roots: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").finish_non_exhaustive()
    }
}

/// The state behind the mutex is replaced as a whole.
impl RefUnwindSafe for Setup {}

/// The certificate authorities of the system, once read.
#[derive(Default)]
pub(crate) struct SystemRoots(Option<Arc<RootCertStore>>);

impl Setup {
    /// For a server at `host`, if known. Blocks while it reads files. The error names unusable files. `system` is
    /// shared between the nodes of a manager.
    pub(crate) fn new(
        tls: &Tls,
        host: Option<&str>,
        system: &mut SystemRoots,
    ) -> Result<Setup, String> {
        if let Some(host) = host.or(tls.server_name.as_deref()) {
            server_name(tls, host)?;
        }
        let system = match tls.roots {
            Roots::System => Some(system.get()?),
            Roots::Given(_) => None,
        };
        let read = Files::read(tls)?;
        let loaded = Loaded {
            config: read.config(system.as_ref())?,
            hash: read.hash(),
            refused: None,
            warning: None,
        };
        Ok(Setup {
            tls: tls.clone(),
            system,
            loaded: Mutex::new(loaded),
        })
    }

    /// Secures a connection to `host`, with the present files. Blocks while it reads them.
    pub(crate) fn secure(
        &self,
        host: &str,
        socket: Socket,
    ) -> Result<Box<dyn Stream>, NodeFailure> {
        Ok(Box::new(self.begin(host, socket)?))
    }

    pub(super) fn begin<S: Read + Write>(
        &self,
        host: &str,
        below: S,
    ) -> Result<Session<S>, NodeFailure> {
        let unusable = |reason| NodeFailure::Tls(TlsFailure::OwnFiles { reason });
        let name = server_name(&self.tls, host).map_err(unusable)?;
        let expected = self.tls.server_name.as_deref().unwrap_or(host).into();
        let shows_certificate = self.tls.client.is_some();
        Session::begin(self.config(), name, expected, shows_certificate, below)
    }

    /// Why changed files cannot be used. Each reason once.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.loaded.lock().warning.take()
    }

    /// With the present files, or with the earlier ones if the present ones are unusable: they may be half written.
    fn config(&self) -> Arc<ClientConfig> {
        let mut loaded = self.loaded.lock();
        let is_file = |pem: &Pem| matches!(pem, Pem::File(_));
        let has_files = matches!(&self.tls.roots, Roots::Given(pem) if is_file(pem))
            || matches!(&self.tls.client, Some((chain, key)) if is_file(chain) || is_file(key));
        if !has_files {
            return Arc::clone(&loaded.config);
        }
        let read = Files::read(&self.tls);
        let hash = read.as_ref().map(Files::hash).map_err(String::clone);
        if hash == Ok(loaded.hash) {
            loaded.refused = None;
            return Arc::clone(&loaded.config);
        }
        match read.and_then(|it| it.config(self.system.as_ref())) {
            Ok(config) => {
                *loaded = Loaded {
                    config,
                    hash: hash.unwrap_or_default(),
                    refused: None,
                    warning: None,
                }
            }
            Err(reason) if loaded.refused.as_ref() != Some(&hash) => {
                loaded.warning = Some(reason);
                loaded.refused = Some(hash);
            }
            Err(_) => {}
        }
        Arc::clone(&loaded.config)
    }
}

impl SystemRoots {
    /// The usable ones: a single bad one is skipped.
    fn get(&mut self) -> Result<Arc<RootCertStore>, String> {
        if let Some(known) = &self.0 {
            return Ok(Arc::clone(known));
        }
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found
                .errors
                .first()
                .map_or_else(|| "there are none".to_owned(), ToString::to_string);
            return Err(format!(
                "the system's certificate authorities cannot be used: {why}; install them (ca-certificates), set SSL_CERT_FILE, \
                 or give a CA file"
            ));
        }
        Ok(Arc::clone(self.0.insert(Arc::new(roots))))
    }
}

impl Files {
    fn read(tls: &Tls) -> Result<Files, String> {
        let roots = match &tls.roots {
            Roots::System => None,
            Roots::Given(pem) => Some(pem.read()?),
        };
        let client = match &tls.client {
            None => None,
            Some((chain, key)) => Some((chain.read()?, key.read()?)),
        };
        Ok(Files { roots, client })
    }

    fn hash(&self) -> Hash {
        let mut hash = sha1_smol::Sha1::new();
        let parts = self
            .roots
            .iter()
            .chain(self.client.iter().flat_map(|(chain, key)| [chain, key]));
        for part in parts {
            hash.update(&part.len().to_le_bytes());
            hash.update(part);
        }
        hash.digest().bytes()
    }

    fn config(&self, system: Option<&Arc<RootCertStore>>) -> Result<Arc<ClientConfig>, String> {
        let roots = match (&self.roots, system) {
            (Some(pem), _) => Arc::new(authorities(pem)?),
            (None, Some(system)) => Arc::clone(system),
            (None, None) => return Err("no certificate authorities".to_owned()),
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|err| err.to_string())?
            .with_root_certificates(roots);
        let mut config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain, "the client certificate")?;
                // The error shows no part of the key.
                let key = PrivateKeyDer::from_pem_slice(key).map_err(
                    |_| "the client's key: there is no key in it, unencrypted and in the form PEM",
                )?;
                builder.with_client_auth_cert(chain, key).map_err(|err| {
                    format!("client certificate and key: {}", failure::in_words(&err))
                })?
            }
        };
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        // The default. Must stay: early data can be replayed.
        config.enable_early_data = false;
        Ok(Arc::new(config))
    }
}

impl Pem {
    fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Pem::Bytes(bytes) => Ok(bytes.clone()),
            Pem::File(path) => std::fs::read(path)
                .map_err(|err| format!("{}: {}", path.display(), error::reason(&err))),
        }
    }
}

fn server_name(tls: &Tls, host: &str) -> Result<ServerName<'static>, String> {
    let name = tls.server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_owned()).map_err(|_| {
        format!(
            "{:?} is no name that a certificate can be for: set the server name",
            name
        )
    })
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!(
            "{what}: there is no certificate in it, in the form PEM"
        )),
        Err(_) => Err(format!("{what}: damaged, it is not in the form PEM")),
    }
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "the certificate authorities")? {
        roots
            .add(certificate)
            .map_err(|err| format!("the certificate authorities: {}", failure::in_words(&err)))?;
    }
    Ok(roots)
}
