//! Where a node is and how to log in, read from a URL.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo};

/// A node's address. Its `Debug` and `Display` forms show host and port, or the socket's path, and no login.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) place: Place,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    shown: Arc<str>,
}

/// Where to connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    /// Reads a URL. The error says what is wrong and never repeats the URL, which may hold a password.
    pub(crate) fn parse(url: &str) -> Result<Address, String> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        match scheme.as_deref() {
            Some("redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix") => {}
            Some("rediss" | "valkeys") => return Err("TLS is not supported yet: use redis://".to_owned()),
            Some(_) => return Err(format!("unknown scheme: {EXPECTED}")),
            None => return Err(format!("not a URL: {EXPECTED}")),
        }
        let info = url.into_connection_info().map_err(|err| {
            // Only the fixed text before the dash: what follows may quote the URL.
            let err = err.to_string();
            let fixed = err.split(" - ").next().unwrap_or("not a Redis URL");
            format!("{fixed}: {EXPECTED}")
        })?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Place::Tcp { host: host.to_ascii_lowercase(), port: *port },
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => return Err(format!("unsupported kind of address: {EXPECTED}")),
        };
        match &place {
            Place::Tcp { port: 0, .. } => return Err("port 0 is not a port that a server listens on".to_owned()),
            Place::Unix(path) if path.as_os_str().is_empty() => return Err(format!("no path: {EXPECTED}")),
            _ => {}
        }
        let login = info.redis_settings();
        if login.db() < 0 {
            return Err("the database number is negative".to_owned());
        }
        if login.username().is_some() && login.password().is_none() {
            return Err("a user without a password: write redis://user:password@host".to_owned());
        }
        Ok(Address {
            shown: place.to_string().into(),
            place,
            user: login.username().map(str::to_owned),
            password: login.password().map(str::to_owned),
            database: login.db(),
        })
    }

    /// Host and port, or path: for logs, errors and telling nodes apart.
    pub(crate) fn shown(&self) -> Arc<str> {
        Arc::clone(&self.shown)
    }
}

const EXPECTED: &str = "expected redis://[user:password@]host[:port][/database] or redis+unix:///path";

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Place::Tcp { host, port } => write!(f, "{host}:{port}"),
            Place::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("place", &self.shown).field("database", &self.database).finish_non_exhaustive()
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
        assert_eq!(shown("redis://ann:secret@Example.COM:7000/3"), "example.com:7000");
        assert_eq!(shown("valkey://[::1]:7000"), "[::1]:7000");
        assert_eq!(shown("redis+unix:///run/redis.sock?db=2&pass=secret"), "/run/redis.sock");
        assert_eq!(shown("unix:///run/redis.sock"), "/run/redis.sock");
    }

    #[test]
    fn login_and_database_are_read() {
        let address = Address::parse("redis://ann:se%40cret@host/3").unwrap();
        assert_eq!(address.user.as_deref(), Some("ann"));
        assert_eq!(address.password.as_deref(), Some("se@cret"));
        assert_eq!(address.database, 3);

        let address = Address::parse("redis+unix:///run/redis.sock?db=2&user=ann&pass=secret").unwrap();
        assert_eq!((address.user.as_deref(), address.database), (Some("ann"), 2));
    }

    #[test]
    fn debug_shows_no_secret() {
        let address = Address::parse("redis://ann:secret@host/3").unwrap();
        assert_eq!(format!("{address:?}"), r#"Address { place: "host:6379", database: 3, .. }"#);
    }

    #[test]
    fn bad_urls_say_what_is_expected_and_repeat_no_secret() {
        for url in [
            "",
            "host:6379",
            "http://u:secret@host",
            "rediss://u:secret@host",
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
