//! TLS options of users.

use std::fmt;
use std::path::PathBuf;

/// TLS options for nodes with a `rediss://` URL: trusted authorities and the client certificate.
/// For [`Builder::tls`](crate::Builder::tls).
///
/// Needs the crate's feature `tls`. TLS 1.2 and 1.3, by `rustls` with `ring`; a provider installed
/// by your program is not used. Verification cannot be switched off. Use
/// [`server_name`](Tls::server_name) for a node with another name in its certificate. Pass a
/// self-signed certificate to [`with_ca_file`](Tls::with_ca_file), if it is one of an authority.
///
/// No early data (0-RTT) is sent, because it can be replayed.
///
/// [`build`](crate::Builder::build) reads the files, and each new connection reads them again:
/// renewed files apply from the next connection on. If the new files are unreadable or do not
/// match, the earlier ones stay in use and the log warns.
///
/// # Examples
///
/// ```no_run
/// use quorlock::Tls;
///
/// let tls = Tls::with_ca_file("/etc/locks/ca.pem")
///     .client_cert_files("/etc/locks/client.pem", "/etc/locks/client.key");
/// let urls = ["rediss://10.0.0.1:6380", "rediss://10.0.0.2:6380", "rediss://10.0.0.3:6380"];
/// let locks = quorlock::LockManager::builder(urls)
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

/// Trusted authorities.
#[derive(Clone, Debug)]
pub(super) enum Roots {
    System,
    Given(Pem),
}

/// Source of certificates or a key. `Debug` shows no bytes.
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
        Tls {
            roots,
            client: None,
            server_name: None,
        }
    }

    /// Trusts the system's certificate authorities: on Linux those of OpenSSL's folders, or of
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR`. [`build`](crate::Builder::build) reads them once.
    ///
    /// The default for nodes with a `rediss://` URL.
    pub fn system_roots() -> Tls {
        Tls::trusting(Roots::System)
    }

    /// Trusts the certificate authorities in this file and no others: one or more certificates, in
    /// the form PEM.
    #[doc(alias = "tls_ca_file")]
    pub fn with_ca_file(file: impl Into<PathBuf>) -> Tls {
        Tls::trusting(Roots::Given(Pem::File(file.into())))
    }

    /// Trusts these certificate authorities and no others: one or more certificates, in the form
    /// PEM.
    pub fn with_ca_pem(pem: impl Into<Vec<u8>>) -> Tls {
        Tls::trusting(Roots::Given(Pem::Bytes(pem.into())))
    }

    /// Sets the client certificate for servers that require one (`tls-auth-clients`). `chain`: file
    /// of the certificate and the chain to its authority, in PEM. `key`: file of its key,
    /// unencrypted, in PEM: PKCS#8, PKCS#1 or SEC1.
    ///
    /// Default: none.
    pub fn client_cert_files(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        self.client = Some((Pem::File(chain.into()), Pem::File(key.into())));
        self
    }

    /// The same as [`client_cert_files`](Tls::client_cert_files), from memory. The key is never
    /// shown in `Debug` forms, errors or logs.
    ///
    /// Default: none.
    pub fn client_cert_pem(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        self.client = Some((Pem::Bytes(chain.into()), Pem::Bytes(key.into())));
        self
    }

    /// Sets the name or IP address that the server's certificate must have. The name is also sent
    /// to the server (SNI); an IP address is not. For nodes reached under another name: through a
    /// tunnel, or by an IP address. For different names per node see
    /// [`Node::tls`](crate::Node::tls).
    ///
    /// Default: the host of the node's address. For a primary named by Sentinels or a cluster, the
    /// named host: see [`guide::redis_access`](crate::guide::redis_access#tls).
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }
}
