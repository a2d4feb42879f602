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

/// TLS setup of the connections to one node. `Debug` shows nothing.
pub(crate) struct Setup {
    tls: Tls,
    /// Authorities of the system, read once for all nodes.
    system: Option<Arc<RootCertStore>>,
    loaded: Mutex<Loaded>,
}

/// The last usable contents of the files.
struct Loaded {
    config: Arc<ClientConfig>,
    /// Why the present files are unusable.
    refused: Option<String>,
    /// The same, not yet in the log.
    warning: Option<String>,
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
    /// For a server at `host`, if known. Blocks while it reads files. The error names unusable
    /// files. `system` is shared between the nodes of a manager.
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
        let loaded = Loaded {
            config: load(tls, system.as_ref())?,
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

    /// With the present files, or with the earlier ones if the present ones are unusable: they may
    /// be half written.
    fn config(&self) -> Arc<ClientConfig> {
        let mut loaded = self.loaded.lock();
        let mut refused = None;
        match load(&self.tls, self.system.as_ref()) {
            Ok(config) => loaded.config = config,
            Err(reason) => refused = Some(reason),
        }
        if loaded.refused != refused {
            loaded.warning.clone_from(&refused);
            loaded.refused = refused;
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
                "the system's certificate authorities cannot be used: {why}; install them \
                 (ca-certificates), set SSL_CERT_FILE, or give a CA file"
            ));
        }
        Ok(Arc::clone(self.0.insert(Arc::new(roots))))
    }
}

/// Reads all files.
fn load(tls: &Tls, system: Option<&Arc<RootCertStore>>) -> Result<Arc<ClientConfig>, String> {
    let roots = match (&tls.roots, system) {
        (Roots::Given(pem), _) => Arc::new(authorities(&pem.read()?)?),
        (Roots::System, Some(system)) => Arc::clone(system),
        (Roots::System, None) => return Err("no certificate authorities".to_owned()),
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|err| err.to_string())?
        .with_root_certificates(roots);
    let mut config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(&chain.read()?, "the client certificate")?;
            // The error shows no part of the key.
            let key = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(
                |_| "the client's key: there is no key in it, unencrypted and in the form PEM",
            )?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|err| format!("client certificate and key: {}", failure::in_words(&err)))?
        }
    };
    // Sessions belong to a configuration, and each connection has its own.
    config.resumption = Resumption::disabled();
    // The default. Must stay: early data can be replayed.
    config.enable_early_data = false;
    Ok(Arc::new(config))
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
