//! Place and login of a node, from a URL.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use url::{ParseError, Position, Url};

use crate::tls::Setup;

/// A node's address. `Debug` shows host and port, or the socket's path, and no login.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) place: Endpoint,
    pub(crate) login: Option<Credentials>,
    pub(crate) database: i64,
    pub(crate) security: Security,
    /// Name of the connections.
    pub(crate) client_name: String,
    /// Hash tag of all keys, in a cluster.
    pub(crate) tag: Option<Arc<[u8]>>,
    shown: Arc<str>,
}

/// A password and its user, if any. `Debug` shows neither.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    pub(crate) fn new(user: Option<&str>, password: &str) -> Credentials {
        Credentials {
            user: user.map(str::to_owned),
            password: password.to_owned(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Whether connections are secured, and how.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "tls"),
    expect(dead_code, reason = "no address asks for TLS without the feature")
)]
pub(crate) enum Security {
    Plain,
    /// By TLS, without options yet: no connection is possible.
    Wanted,
    Tls(Arc<Setup>),
}

/// Place to connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    /// Parses a URL. The error never repeats the URL, which may contain a password.
    pub(crate) fn parse(url: &str) -> Result<Address, String> {
        let zone = zone_in(url);
        // `Url` knows no zones.
        let url = Url::parse(&url.replace(&format!("{zone}]"), "]")).map_err(|err| match err {
            ParseError::EmptyHost | ParseError::InvalidPort => UNREADABLE.to_owned(),
            _ => format!("not a URL: {EXPECTED}"),
        })?;
        let security = match url.scheme() {
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => Security::Plain,
            #[cfg(feature = "tls")]
            "rediss" | "valkeys" => Security::Wanted,
            #[cfg(not(feature = "tls"))]
            "rediss" | "valkeys" => return Err(NO_TLS.to_owned()),
            _ => return Err(format!("unknown scheme: {EXPECTED}")),
        };
        let is_unix = url.scheme().ends_with("unix");
        // After a `/` in a password comes the path, and before it the host.
        let behind = &url[Position::BeforePath..];
        if behind.ends_with("#insecure") {
            return Err(INSECURE.to_owned());
        }
        if behind.contains('#') || behind.contains('@') && !is_unix {
            return Err(UNREADABLE.to_owned());
        }

        let mut user = decoded(url.username())?;
        let mut password = url.password().map(decoded).transpose()?;
        let mut database = None;
        for (name, value) in url.query_pairs() {
            match (&*name, &*value) {
                ("db", _) if database.is_none() => database = Some(value),
                ("user", _) if is_unix => user = value.into_owned(),
                ("pass", _) if is_unix => password = Some(value.into_owned()),
                // The login chooses the protocol.
                ("protocol", "2" | "3" | "resp2" | "resp3") => {}
                // No option is ignored: it could separate two programs, or be a login.
                _ => return Err(UNKNOWN_OPTION.to_owned()),
            }
        }
        if !user.is_empty() && password.is_none() {
            return Err(NO_PASSWORD.to_owned());
        }
        let path = url.path().trim_matches('/');
        let in_path = if is_unix || path.is_empty() {
            "0"
        } else {
            path
        };
        let database = database.as_deref().unwrap_or(in_path).parse().ok();
        let no_database = || format!("not a database number: {EXPECTED}");

        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let place = match (host, url.port().unwrap_or(6379)) {
            _ if is_unix => {
                let path = url.to_file_path();
                Endpoint::Unix(path.map_err(|()| format!("no path: {EXPECTED}"))?)
            }
            ("" | "0.0.0.0" | "::", _) | (_, 0) => {
                return Err(format!("no server has this host and port: {EXPECTED}"));
            }
            (host, port) => Endpoint::Tcp {
                host: host.to_ascii_lowercase() + &zone.replace("%25", "%"),
                port,
            },
        };
        Ok(Address {
            shown: place.to_string().into(),
            place,
            login: password.map(|password| Credentials {
                user: Some(user).filter(|user| !user.is_empty()),
                password,
            }),
            database: database
                .filter(|number| 0 <= *number)
                .ok_or_else(no_database)?,
            security,
            client_name: "quorlock".to_owned(),
            tag: None,
        })
    }

    /// The same address at another place.
    pub(crate) fn at(&self, place: Endpoint) -> Address {
        Address {
            shown: place.to_string().into(),
            place,
            ..self.clone()
        }
    }

    #[cfg(all(test, feature = "tls"))]
    pub(crate) fn is_to_be_secured(&self) -> bool {
        !matches!(self.security, Security::Plain)
    }

    /// Host and port, or path: for logs, errors and telling nodes apart.
    pub(crate) fn shown(&self) -> Arc<str> {
        Arc::clone(&self.shown)
    }
}

const EXPECTED: &str =
    "expected redis://[user:password@]host[:port][/database] or redis+unix:///path";
const UNREADABLE: &str = "login, host or port unreadable: write / ? # @ % in a user, password or \
                          path as %2F %3F %23 %40 %25, or give user and password outside the URL; \
                          write an IPv6 address in brackets: redis://[::1]:6379";
const UNKNOWN_OPTION: &str = "unknown option: write db=… behind the ?, in redis+unix:// also \
                              user=… and pass=…; otherwise a login as redis://user:password@host \
                              and TLS as rediss://, with certificates outside the URL";
#[cfg(not(feature = "tls"))]
const NO_TLS: &str = "this crate was built without TLS: enable its feature `tls`, in Cargo.toml: \
                      quorlock = { version = \"…\", features = [\"tls\"] }";
const INSECURE: &str =
    "#insecure is not supported: give the CA file, or set the server name of the certificate";
const NO_PASSWORD: &str =
    "a user without a password: write redis://user:password@host, or give both outside the URL";

/// The zone of a link-local address, `%25eth0` in `[fe80::1%25eth0]`. People write one percent
/// sign.
fn zone_in(url: &str) -> &str {
    let place = url.rsplit_once("@[").or_else(|| url.split_once("://["));
    let address = place.and_then(|(_, place)| place.split_once(']'));
    address.map_or("", |(address, _)| {
        address.trim_start_matches(|it| it != '%')
    })
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(Cow::into_owned).map_err(|_| UNREADABLE)
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}"),
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("place", &self.shown)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Address::parse(url).unwrap().shown().to_string()
    }

    #[test]
    fn addresses_are_shown_without_login() {
        assert_eq!(shown("redis://10.0.0.1"), "10.0.0.1:6379");
        assert_eq!(
            shown("redis://ann:secret@Example.COM:7000/3"),
            "example.com:7000"
        );
        assert_eq!(shown("valkey://[::1]:7000"), "[::1]:7000");
        assert_eq!(
            shown("redis+unix:///run/redis.sock?db=2&pass=secret"),
            "/run/redis.sock"
        );
        assert_eq!(shown("unix:///run/redis.sock"), "/run/redis.sock");
    }

    #[test]
    fn login_and_database_are_read() {
        let address = Address::parse("redis://ann:se%40cret@host/3").unwrap();
        let ann = |password| Some(Credentials::new(Some("ann"), password));
        assert_eq!(address.login, ann("se@cret"));
        assert_eq!(address.database, 3);

        let address =
            Address::parse("redis+unix:///run/redis.sock?db=2&user=ann&pass=secret").unwrap();
        assert_eq!((address.login, address.database), (ann("secret"), 2));
    }

    /// Names of interfaces differ by case.
    #[test]
    fn the_zone_of_a_link_local_address_is_passed_to_the_system() {
        for (url, place) in [
            ("redis://[FE80::1%25Eth0]", "[fe80::1%Eth0]:6379"),
            ("redis://[fe80::1%eth0.7]:7000/3", "[fe80::1%eth0.7]:7000"),
            ("valkey://:a]b%c@[fe80::1%251]", "[fe80::1%1]:6379"),
            ("redis://:50%off@[::1]:7000", "[::1]:7000"),
            ("redis://:a[b%25c]d@host", "host:6379"),
            #[cfg(feature = "tls")]
            ("rediss://[fe80::1%25eth0]:7000", "[fe80::1%eth0]:7000"),
            ("unix:///run/[a%25b].sock", "/run/[a%b].sock"),
        ] {
            assert_eq!(shown(url), place, "{url}");
        }
        let address = Address::parse("redis://ann:50%25@[fe80::1%25eth0]/3").unwrap();
        assert_eq!(address.login, Some(Credentials::new(Some("ann"), "50%")));
        assert_eq!(address.database, 3);
    }

    #[test]
    fn debug_shows_no_secret() {
        let address = Address::parse("redis://ann:secret@host/3").unwrap();
        assert_eq!(
            format!("{address:?}"),
            r#"Address { place: "host:6379", database: 3, .. }"#
        );
    }

    #[test]
    fn common_mistakes_in_urls_have_errors_of_their_own() {
        for (url, reason) in [
            #[cfg(feature = "tls")]
            ("rediss://host#insecure", INSECURE),
            ("redis://:se/cret@host", UNREADABLE),
            ("redis://ann:12/cret@host:6379", UNREADABLE),
            ("redis://ann:12?cret@host:6379", UNREADABLE),
            ("redis://ann:12#cret@host", UNREADABLE),
            ("redis://ann:se@x/cret@host", UNREADABLE),
            ("redis+unix:///run/redis.sock?pass=se#cret", UNREADABLE),
            ("redis://:50%ffsecret@host", UNREADABLE),
            ("redis://u:secret@host:65536", UNREADABLE),
            ("redis://[::1]:99999999999999999999", UNREADABLE),
            ("redis://u:secret@host:port/3", UNREADABLE),
            ("redis://host:-1", UNREADABLE),
            ("redis://::1", UNREADABLE),
            ("redis://u:secret@fe80::1:6379", UNREADABLE),
            ("redis://fe80::1%eth0", UNREADABLE),
            ("redis://u:secret@fe80::1%25eth0:6379", UNREADABLE),
            ("redis://ann@host", NO_PASSWORD),
        ] {
            assert_eq!(Address::parse(url).unwrap_err(), reason, "{url}");
        }
    }

    #[test]
    fn b7_an_option_of_a_url_is_applied_or_refused() {
        for (url, database) in [
            ("redis://host?db=3", 3),
            ("valkey://host:7000/?db=3", 3),
            ("redis://ann:se%40cret@host/4?db=3", 3),
            ("redis://host/3?protocol=resp3", 3),
            ("redis://host?", 0),
            ("unix:///run/redis.sock?db=3&user=ann&pass=secret", 3),
        ] {
            assert_eq!(Address::parse(url).unwrap().database, database, "{url}");
        }
        for (url, reason) in [
            ("redis://host?password=secret", UNKNOWN_OPTION),
            ("redis://host/3?db=3&user=secret", UNKNOWN_OPTION),
            (
                "redis+unix:///run/redis.sock?password=secret",
                UNKNOWN_OPTION,
            ),
            ("redis://host?ssl=true", UNKNOWN_OPTION),
            ("redis://host?ssl_cert_reqs=none", UNKNOWN_OPTION),
            ("redis://host?tls", UNKNOWN_OPTION),
            ("redis://host?database=3", UNKNOWN_OPTION),
            ("redis://host?DB=3", UNKNOWN_OPTION),
            ("redis://host?secret", UNKNOWN_OPTION),
            ("redis://host?db=3&db=3", UNKNOWN_OPTION),
            ("unix:///run/redis.sock?timeout=3", UNKNOWN_OPTION),
            ("redis://unix:6379?pass=secret", UNKNOWN_OPTION),
            ("redis://host?db=secret", "not a database number"),
            ("redis://host?db", "not a database number"),
            ("redis://host?db=", "not a database number"),
            ("redis://host?db=-1", "not a database number"),
            ("redis://host/-1", "not a database number"),
            ("redis://host?protocol=4", UNKNOWN_OPTION),
        ] {
            let err = Address::parse(url).unwrap_err();
            assert!(err.starts_with(reason), "{url}: {err}");
        }
    }

    #[test]
    fn passwords_that_need_no_encoding_are_not_refused() {
        for (url, password) in [
            ("redis://:a@b@host:65535", "a@b"),
            ("redis://:a:b:c@[::1]:7000/3", "a:b:c"),
            ("redis://:50%off@host", "50%off"),
            ("redis://:%2F%3F%23%40%25@host/0?protocol=resp3", "/?#@%"),
            ("redis://ann:x@host:/1", "x"),
            ("unix:///run/a@b.sock?pass=a@b", "a@b"),
        ] {
            let login = Address::parse(url).unwrap().login.unwrap();
            assert_eq!(login.password, password, "{url}");
        }
    }

    #[test]
    fn separate_credentials_are_for_urls_without_a_login() {
        let login = Credentials {
            user: Some("ann".to_owned()),
            password: "se/cret".to_owned(),
        };
        let after = |url| {
            let mut address = Address::parse(url).unwrap();
            address.login.get_or_insert_with(|| login.clone());
            let Credentials { user, password } = address.login.unwrap();
            format!("{user:?} {password:?}")
        };
        assert_eq!(after("redis://host"), r#"Some("ann") "se/cret""#);
        assert_eq!(
            after("redis+unix:///run/redis.sock?db=2"),
            r#"Some("ann") "se/cret""#
        );
        assert_eq!(after("redis://:own@host"), r#"None "own""#);
        assert_eq!(after("redis://bob:own@host"), r#"Some("bob") "own""#);
        assert_eq!(format!("{login:?}"), "Credentials { .. }");
    }

    #[test]
    fn errors_of_bad_urls_have_a_reason_and_no_secret() {
        for url in [
            "",
            "host:6379",
            "http://u:secret@host",
            "rediss://u:secret@host:port",
            "redis://",
            "redis://u:secret@host:port",
            "redis://u:secret@host:70000",
            "redis://u:secret@host:0",
            "redis://u:secret@host/secret",
            "redis://u:secret@host/-1",
            "redis://u:secret@0.0.0.0",
            "redis://ann@host",
            "redis://host?protocol=secret",
        ] {
            let err = Address::parse(url).unwrap_err();
            assert!(!err.contains("secret") && 10 < err.len(), "{url}: {err}");
        }
    }
}
