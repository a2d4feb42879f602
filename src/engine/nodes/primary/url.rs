//! URLs of nodes.

use std::sync::Arc;

use super::question::{Question, slot_of};
use crate::wire::{Address, hash_tag};

const EXPECTED: &str = "expected redis+replicated://host,host, \
    redis+sentinel://host,host,host/NAME or \
    redis+cluster://host,host,host";

/// A node's URL: its server, or the members that name its server.
#[derive(Clone, Debug)]
pub(crate) struct NodeAddress {
    /// Address of the server. With members its place is that of the first one.
    pub(crate) server: Address,
    /// None, for a plain address.
    pub(super) members: Vec<Address>,
    pub(crate) question: Question,
    /// Without user and password, for logs, errors and telling nodes apart.
    pub(crate) shown: Arc<str>,
}

impl NodeAddress {
    /// Parses a URL. The error never repeats the URL, which may contain a password.
    pub(crate) fn parse(url: &str) -> Result<NodeAddress, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let (scheme, kind) = match scheme.split_once('+') {
            Some((scheme, kind @ ("replicated" | "sentinel" | "cluster"))) => (scheme, kind),
            None if hosts.contains(',') => {
                return Err("several servers in one URL: give each a URL of its own".to_owned());
            }
            _ => {
                let server = Address::parse(url)?;
                return Ok(NodeAddress {
                    shown: server.shown(),
                    server,
                    members: Vec::new(),
                    question: Question::Role,
                });
            }
        };
        let (question, database) = match kind {
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                (Question::Sentinel(name.to_owned()), database)
            }
            // The slot follows from the prefix.
            "cluster" => (Question::Slot(0), path),
            _ => (Question::Role, path),
        };
        let of_members = match kind {
            "sentinel" if question != Question::Sentinel(String::new()) => {
                login_of_sentinels(scheme, options)?
            }
            "replicated" | "cluster" if options.is_empty() => (scheme, login.clone(), ""),
            _ => return Err(EXPECTED.to_owned()),
        };
        let mut members: Vec<Address> = Vec::new();
        for host in hosts.split(',') {
            let member = address(&of_members, host, "")?;
            if members.iter().any(|other| other.place == member.place) {
                return Err("one server is in the list twice".to_owned());
            }
            members.push(member);
        }
        if kind != "replicated" && members.len() < 3 {
            return Err("give at least three members".to_owned());
        }
        let host = hosts.split(',').next().unwrap_or_default();
        Ok(NodeAddress {
            server: address(&(scheme, login, ""), host, database)?,
            members,
            question,
            shown: format!("{hosts}/{path}").trim_end_matches('/').into(),
        })
    }

    /// The addresses of all connections, and whether each is a Sentinel's.
    pub(crate) fn connections(&mut self) -> impl Iterator<Item = (&mut Address, bool)> {
        let are_sentinels = matches!(self.question, Question::Sentinel(_));
        let members = self.members.iter_mut().map(move |it| (it, are_sentinels));
        members.chain([(&mut self.server, false)])
    }

    /// Pins a cluster to the slot of the hash tag in `prefix`.
    pub(crate) fn pin(mut self, prefix: &[u8]) -> Result<NodeAddress, String> {
        if let Question::Slot(slot) = &mut self.question {
            let tag = hash_tag(prefix).ok_or(
                "a cluster needs a hash tag in the prefix of all locks: .prefix(\"{locks}:\")",
            )?;
            *slot = slot_of(tag);
            self.server.tag = Some(tag.into());
        }
        Ok(self)
    }
}

/// Scheme, login and port of Sentinels, by the options of their node's URL.
fn login_of_sentinels<'a>(
    mut scheme: &'a str,
    options: &str,
) -> Result<(&'a str, String, &'static str), String> {
    let mut user = "";
    let mut login = String::new();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => login = format!(":{value}@"),
            Some(("sentinel_tls", "no")) => scheme = "redis",
            _ => return Err(EXPECTED.to_owned()),
        }
    }
    Ok((scheme, format!("{user}{login}"), ":26379"))
}

fn address(
    (scheme, login, port): &(&str, String, &str),
    host: &str,
    database: &str,
) -> Result<Address, String> {
    let has_port = host.rsplit_once(']').map_or(host, |it| it.1).contains(':');
    let port = if has_port { "" } else { port };
    Address::parse(&format!("{scheme}://{login}{host}{port}/{database}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWICE: &str = "one server is in the list twice";
    const FEW: &str = "give at least three members";
    const NOT_FOR_ONE: &str = "several servers in one URL: give each a URL of its own";
    const NO_TAG: &str =
        "a cluster needs a hash tag in the prefix of all locks: .prefix(\"{locks}:\")";

    fn parse(url: &str) -> NodeAddress {
        NodeAddress::parse(url).unwrap()
    }

    fn login(address: &Address) -> (Option<&str>, Option<&str>) {
        let login = address.login.as_ref();
        (
            login.and_then(|it| it.user.as_deref()),
            login.map(|it| &*it.password),
        )
    }

    #[test]
    fn the_members_of_a_node_are_read_and_shown_without_login() {
        let node = parse("redis+replicated://ann:se%40cret@A,[::1]:7001,10.0.0.3/3");
        assert_eq!(&*node.shown, "A,[::1]:7001,10.0.0.3/3");
        assert_eq!(login(&node.server), (Some("ann"), Some("se@cret")));
        assert_eq!(node.server.database, 3);
        assert!(node.members.iter().all(|it| it.database == 0));
        assert_eq!(login(&node.members[1]), (Some("ann"), Some("se@cret")));
        assert_eq!(&*node.members[0].shown(), "a:6379");
        assert!(!format!("{node:?}").contains("cret"), "{node:?}");

        let url =
            "valkey+sentinel://:pw@s1,s2:7,[::1]/locks/2?sentinel_user=bob&sentinel_password=a%26b";
        let node = parse(url);
        assert_eq!(&*node.shown, "s1,s2:7,[::1]/locks/2");
        assert_eq!(login(&node.server), (None, Some("pw")));
        assert_eq!(node.server.database, 2);
        assert_eq!(login(&node.members[0]), (Some("bob"), Some("a&b")));
        let members = ["s1:26379", "s2:7", "[::1]:26379"];
        assert!(
            node.members
                .iter()
                .map(|it| it.shown())
                .eq(members.map(Arc::from))
        );
        assert_eq!(node.question, Question::Sentinel("locks".to_owned()));
        let node = parse("REDIS+SENTINEL://:pw@s1,s2,s3/m");
        assert_eq!(
            login(&node.members[0]),
            (None, None),
            "the servers' password is not for Sentinels"
        );

        let node = parse("valkey+cluster://ann:pw@A:7001,b,c/0");
        assert_eq!(&*node.shown, "A:7001,b,c/0");
        assert_eq!(login(&node.members[0]), (Some("ann"), Some("pw")));
        assert_eq!(&*parse("redis://:a,b@host/3").shown, "host:6379");
        assert_eq!(&*parse("unix:///run/a,b.sock").shown, "/run/a,b.sock");
    }

    #[test]
    fn common_mistakes_in_urls_of_several_servers_have_own_errors() {
        for (url, reason) in [
            ("redis+replicated://a,b:6379,A:6379", TWICE),
            ("redis+sentinel://s,s:26379,t/m", TWICE),
            ("redis+sentinel://s1,s2/m", FEW),
            ("redis+cluster://a,b", FEW),
            ("redis+sentinel://s1,s2,s3", EXPECTED),
            ("redis+sentinel://s1,s2,s3//0", EXPECTED),
            ("redis+replicated://a?sentinel_password=secret", EXPECTED),
            ("redis+replicated://a?db=3", EXPECTED),
            ("redis+cluster://a,b,c?wait_replicas=1", EXPECTED),
            ("redis+sentinel://a,b,c/m?password=secret", EXPECTED),
            ("redis+sentinel://a,b,c/m?sentinel_tls=yes", EXPECTED),
            ("redis://u:secret@a,b,c", NOT_FOR_ONE),
        ] {
            assert_eq!(NodeAddress::parse(url).unwrap_err(), reason, "{url}");
        }
        for url in [
            "redis+replicated://",
            "redis+replicated://a,,b",
            "redis+cluster://u:se/cret@a,b,c",
            "redis+cluster://u:secret@a:port,b,c",
            "redis+cluster://a,b,c/x",
            "redis+sentinel://:secret@/m",
            "redis+sentinel://a,b,c/m?sentinel_password=%ffsecret",
            "redis+replicated://a/mymaster",
            "redis+replicated://a:0",
            "redis+replicated://::1,::2",
            "redis+replicated://u:se/cret@a,b",
            "redis+sentinel://u:se#cret@a,b,c/m",
            "redis+replicated://ann@a",
            "redis+nonsense://a",
            "nonsense",
        ] {
            let err = NodeAddress::parse(url).unwrap_err();
            assert!(!err.contains("cret") && 10 < err.len(), "{url}: {err}");
        }
    }

    #[test]
    fn a_cluster_is_pinned_to_the_slot_of_the_hash_tag_in_the_prefix() {
        let node = parse("redis+cluster://a,b,c");
        for prefix in [&b""[..], b"locks:", b"{}locks"] {
            assert_eq!(node.clone().pin(prefix).unwrap_err(), NO_TAG);
        }
        let pinned = node.pin(b"app:{user1000}:").unwrap();
        assert_eq!(pinned.question, Question::Slot(3443));
        assert_eq!(pinned.server.tag.as_deref(), Some(&b"user1000"[..]));
        assert!(parse("redis://a").pin(b"").is_ok());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn servers_and_sentinels_both_use_tls_unless_the_url_differs() {
        let secured = |url: &str| {
            let node = parse(url);
            (
                node.members[0].is_to_be_secured(),
                node.server.is_to_be_secured(),
            )
        };
        assert_eq!(secured("redis+replicated://a,b"), (false, false));
        assert_eq!(secured("rediss+replicated://a,b"), (true, true));
        assert_eq!(secured("VALKEYS+sentinel://a,b,c/m"), (true, true));
        assert_eq!(secured("rediss+cluster://ann:pw@a,b,c/0"), (true, true));
        let plain = "rediss+sentinel://a,b,c/m?sentinel_password=x&sentinel_tls=no";
        assert_eq!(secured(plain), (false, true));
    }
}
