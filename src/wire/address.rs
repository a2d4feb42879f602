//! Place and login of a node, from a URL.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo};

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
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!("not a URL: {EXPECTED}"));
        };
        let scheme = scheme.to_ascii_lowercase();
        let security = match &*scheme {
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => Security::Plain,
            #[cfg(feature = "tls")]
            "rediss" | "valkeys" => Security::Wanted,
            #[cfg(not(feature = "tls"))]
            "rediss" | "valkeys" => return Err(NO_TLS.to_owned()),
            _ => return Err(format!("unknown scheme: {EXPECTED}")),
        };
        let is_unix = scheme.ends_with("unix");
        if let Some(mistake) = mistake_in(rest, is_unix) {
            return Err(mistake.to_owned());
        }
        let database = database_in(url, is_unix)?;
        // The parser supports neither TLS nor zones: [fe80::1%25eth0]. People write one percent sign.
        let place = rest.rsplit('@').next();
        let host = place.and_then(|it| it.strip_prefix('[')?.split(']').next());
        let zone = host.unwrap_or_default().trim_start_matches(|it| it != '%');
        let url = match security {
            Security::Plain => url.to_owned(),
            _ => format!("redis://{rest}"),
        };
        let url = url.replace(&format!("{zone}]"), "]");
        let info = url.into_connection_info().map_err(|err| {
            // Only the fixed text before the dash: the rest may quote the URL.
            let err = err.to_string();
            match err.split(" - ").next().unwrap_or("not a Redis URL") {
                fixed if fixed.contains("UTF-8") => PERCENT.to_owned(),
                fixed => format!("{fixed}: {EXPECTED}"),
            }
        })?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Endpoint::Tcp {
                host: host.to_ascii_lowercase() + &zone.replace("%25", "%"),
                port: *port,
            },
            ConnectionAddr::Unix(path) => Endpoint::Unix(path.clone()),
            _ => return Err(format!("unsupported kind of address: {EXPECTED}")),
        };
        match &place {
            Endpoint::Tcp { port: 0, .. } => {
                return Err("port 0 is not a port that a server listens on".to_owned());
            }
            Endpoint::Unix(path) if path.as_os_str().is_empty() => {
                return Err(format!("no path: {EXPECTED}"));
            }
            _ => {}
        }
        let login = info.redis_settings();
        let database = database.unwrap_or(login.db());
        if database < 0 {
            return Err("the database number is negative".to_owned());
        }
        if login.username().is_some() && login.password().is_none() {
            return Err(NO_PASSWORD.to_owned());
        }
        Ok(Address {
            shown: place.to_string().into(),
            place,
            login: login
                .password()
                .map(|password| Credentials::new(login.username(), password)),
            database,
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
const LOGIN_OPTION: &str =
    "a login as an option: write redis://user:password@host, or redis+unix:///path?user=…&pass=…";
const TLS_OPTION: &str =
    "TLS as an option: begin with rediss://, and give certificates outside the URL";
const UNKNOWN_OPTION: &str = "an unknown option: behind a ? stands db=… alone, in redis+unix:// also user=… and pass=…; \
                              everything else is set outside the URL";
#[cfg(not(feature = "tls"))]
const NO_TLS: &str = "this crate was built without TLS: enable its feature `tls`, in Cargo.toml: \
                      quorlock = { version = \"…\", features = [\"tls\"] }";
const INSECURE: &str =
    "#insecure is not supported: give the CA file, or set the server name of the certificate";
const NO_PASSWORD: &str =
    "a user without a password: write redis://user:password@host, or give both outside the URL";
const RESERVED: &str = "a user, password or path with one of / ? # @ in it: write that as %2F %3F %23 %40, or give user and \
                        password outside the URL";
const PERCENT: &str = "a user or password that is not UTF-8 when its percent signs are read: write a percent sign as %25, or \
                       give both outside the URL";
const PORT_TOO_LARGE: &str = "the port is above 65535";
const PORT_NO_NUMBER: &str = "the port is not a number";
const NO_BRACKETS: &str = "an IPv6 address stands in brackets: redis://[::1]:6379";

/// Mistakes in URLs that the parser misreports or accepts: after a `/` in a password it reads a path, and before it the
/// host.
fn mistake_in(rest: &str, is_unix: bool) -> Option<&'static str> {
    if rest.ends_with("#insecure") {
        return Some(INSECURE);
    }
    if rest.contains('#') {
        return Some(RESERVED);
    }
    if is_unix {
        return None;
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    if behind.contains('@') {
        return Some(RESERVED);
    }
    let place = authority
        .rsplit_once('@')
        .map_or(authority, |(_, place)| place);
    let (host, port) = match place.rsplit_once(']') {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => place
            .rsplit_once(':')
            .map_or((place, None), |(host, port)| (host, Some(port))),
    };
    if host.contains(':') && !host.starts_with('[') {
        return Some(NO_BRACKETS);
    }
    let port = port.filter(|it| !it.is_empty())?;
    if !port.bytes().all(|it| it.is_ascii_digit()) {
        return Some(PORT_NO_NUMBER);
    }
    port.parse::<u16>().is_err().then_some(PORT_TOO_LARGE)
}

/// The database in the options of a URL. No option is ignored: it could separate two programs, or be a login.
fn database_in(url: &str, is_unix: bool) -> Result<Option<i64>, &'static str> {
    let (_, options) = url.split_once('?').unwrap_or_default();
    let mut database = None;
    for option in options.split('&').filter(|it| !it.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "db" if database.is_none() => database = Some(value.parse().map_err(|_| EXPECTED)?),
            "user" | "pass" if is_unix => {}
            // The login chooses the protocol.
            "protocol" => {}
            "user" | "username" | "pass" | "password" => return Err(LOGIN_OPTION),
            _ if name.starts_with("ssl") || name.starts_with("tls") => return Err(TLS_OPTION),
            _ => return Err(UNKNOWN_OPTION),
        }
    }
    Ok(database)
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
    fn the_zone_of_a_link_local_address_is_read_as_the_system_wants_it() {
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
    fn what_people_get_wrong_in_a_url_has_words_of_its_own() {
        for (url, reason) in [
            #[cfg(feature = "tls")]
            ("rediss://host#insecure", INSECURE),
            ("redis://:se/cret@host", RESERVED),
            ("redis://ann:12/cret@host:6379", RESERVED),
            ("redis://ann:12?cret@host:6379", RESERVED),
            ("redis://ann:12#cret@host", RESERVED),
            ("redis://ann:se@x/cret@host", RESERVED),
            ("redis+unix:///run/redis.sock?pass=se#cret", RESERVED),
            ("redis://:50%ffsecret@host", PERCENT),
            ("redis://u:secret@host:65536", PORT_TOO_LARGE),
            ("redis://[::1]:99999999999999999999", PORT_TOO_LARGE),
            ("redis://u:secret@host:port/3", PORT_NO_NUMBER),
            ("redis://host:-1", PORT_NO_NUMBER),
            ("redis://::1", NO_BRACKETS),
            ("redis://u:secret@fe80::1:6379", NO_BRACKETS),
            ("redis://fe80::1%eth0", NO_BRACKETS),
            ("redis://u:secret@fe80::1%25eth0:6379", NO_BRACKETS),
            ("redis://ann@host", NO_PASSWORD),
        ] {
            assert_eq!(Address::parse(url).unwrap_err(), reason, "{url}");
        }
    }

    #[test]
    fn b7_an_option_of_a_url_is_obeyed_or_refused_and_never_ignored() {
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
            ("redis://host?password=secret", LOGIN_OPTION),
            ("redis://host/3?db=3&user=secret", LOGIN_OPTION),
            ("redis+unix:///run/redis.sock?password=secret", LOGIN_OPTION),
            ("redis://host?ssl=true", TLS_OPTION),
            ("redis://host?ssl_cert_reqs=none", TLS_OPTION),
            ("redis://host?tls", TLS_OPTION),
            ("redis://host?database=3", UNKNOWN_OPTION),
            ("redis://host?DB=3", UNKNOWN_OPTION),
            ("redis://host?secret", UNKNOWN_OPTION),
            ("redis://host?db=3&db=3", UNKNOWN_OPTION),
            ("unix:///run/redis.sock?timeout=3", UNKNOWN_OPTION),
            ("redis://unix:6379?pass=secret", LOGIN_OPTION),
            ("redis://host?db=secret", EXPECTED),
            ("redis://host?db", EXPECTED),
            ("redis://host?db=-1", "the database number is negative"),
        ] {
            assert_eq!(Address::parse(url).unwrap_err(), reason, "{url}");
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
    fn a_login_that_was_given_apart_is_for_nodes_whose_url_has_none() {
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
    fn bad_urls_say_what_is_expected_and_repeat_no_secret() {
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
            assert_ne!(err, PERCENT, "{url}");
        }
    }
}
