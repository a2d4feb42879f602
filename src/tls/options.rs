//! What users say about TLS.

use std::fmt;
use std::path::PathBuf;

/// How connections to nodes with a `rediss://` address are secured: whom to trust, and who we are. For
/// [`Builder::tls`](crate::Builder::tls).
///
/// Needs the crate's feature `tls`. TLS 1.2 and 1.3, by `rustls` with `ring`; nothing is taken from a provider that the program
/// may have installed for itself. There is no way to accept any certificate: for a node that is reached by another name than
/// the one in its certificate there is [`server_name`](Tls::server_name), for one that signed its certificate itself
/// [`with_ca_file`](Tls::with_ca_file) with that certificate, as long as it is made as that of an authority.
///
/// No early data (0-RTT) is ever sent: it can be replayed, and an acquisition must not run twice.
///
/// Files are read by [`build`](crate::Builder::build), and again at the beginning of each connection, so renewed ones are used from
/// the next connection on; open connections stay as they are. If they cannot be read then, or do not fit each other,
/// the earlier ones are used and the log warns.
///
/// # Examples
///
/// ```no_run
/// use quorlock::Tls;
///
/// let tls = Tls::with_ca_file("/etc/locks/ca.pem").client_cert_files("/etc/locks/client.pem", "/etc/locks/client.key");
/// let locks = quorlock::LockManager::builder(["rediss://10.0.0.1:6380", "rediss://10.0.0.2:6380", "rediss://10.0.0.3:6380"])
///     .tls(tls)
///     .build()?;
/// # Ok::<(), quorlock::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is given to `Builder::tls`"]
pub struct Tls {
    pub(super) roots: Roots,
    pub(super) client: Option<(Pem, Pem)>,
    pub(super) server_name: Option<String>,
}

/// Which authorities are trusted.
#[derive(Clone, Debug)]
pub(super) enum Roots {
    System,
    Given(Pem),
}

/// Where certificates or a key are. Its `Debug` form shows no bytes of them.
#[derive(Clone)]
pub(super) enum Pem {
    Bytes(Vec<u8>),
    File(PathBuf),
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Bytes(_) => f.write_str("PEM"),
            Pem::File(path) => path.fmt(f),
        }
    }
}

impl Tls {
    fn trusting(roots: Roots) -> Tls {
        Tls { roots, client: None, server_name: None }
    }

    /// Trusts the certificate authorities that the system trusts: on Linux those of OpenSSL's folders, or of `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR`. They are read once, by [`build`](crate::Builder::build).
    ///
    /// It is what nodes with a `rediss://` address get for which nothing else is said.
    pub fn system_roots() -> Tls {
        Tls::trusting(Roots::System)
    }

    /// Trusts the certificate authorities in this file and no others: one or more certificates, in the form PEM.
    pub fn with_ca_file(file: impl Into<PathBuf>) -> Tls {
        Tls::trusting(Roots::Given(Pem::File(file.into())))
    }

    /// Trusts these certificate authorities and no others: one or more certificates, in the form PEM.
    pub fn with_ca_pem(pem: impl Into<Vec<u8>>) -> Tls {
        Tls::trusting(Roots::Given(Pem::Bytes(pem.into())))
    }

    /// Shows the servers a certificate, for those that want one (`tls-auth-clients`): the file of the certificate, with those
    /// that lead to its authority behind it, and the file of its key, unencrypted. Both in the form PEM; of the key the kinds
    /// PKCS#8, PKCS#1 and SEC1.
    ///
    /// Default: none.
    pub fn client_cert_files(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        self.client = Some((Pem::File(chain.into()), Pem::File(key.into())));
        self
    }

    /// The same as [`client_cert_files`](Tls::client_cert_files), from memory. The key is never shown in `Debug` forms, errors
    /// or logs.
    ///
    /// Default: none.
    pub fn client_cert_pem(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        self.client = Some((Pem::Bytes(chain.into()), Pem::Bytes(key.into())));
        self
    }

    /// Sets the name, or the IP address, for which the server must have a certificate, and which is sent to it (SNI; an IP
    /// address is not). For nodes that are reached by another name than their own: through a tunnel, or by an IP address.
    /// Where nodes have different names, see [`Node::tls`](crate::Node::tls).
    ///
    /// Default: the host of the node's address; of a master that sentinels or a cluster name, what they call it: see
    /// [`guide::redis_access`](crate::guide::redis_access#tls).
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }
}
