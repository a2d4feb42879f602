//! URLs of nodes that are more than one process.

use crate::wire::address::{Address, Credentials, Endpoint, Group};

const SENTINEL_PORT: u16 = 26_379;
/// More are a mistake: each of them is asked, again and again.
const MEMBERS_MAX: usize = 16;

const REPLICATED: &str =
    "expected redis[s]+replicated://[user:password@]host[:port],host[:port],…[/database]";
const SENTINEL: &str = "expected redis[s]+sentinel://[user:password@]host[:port],host[:port],…/master[/database][?sentinel_password=…]";
const SENTINEL_TLS: &str = "sentinel_tls=no says that sentinels speak no TLS although the servers do: it belongs to \
                            rediss+sentinel:// only, and sentinels with TLS are what that means without it";
const CLUSTER: &str = "expected redis[s]+cluster://[user:password@]host[:port],host[:port],…";
const NO_DATABASE: &str =
    "a Redis Cluster has no databases: take out what stands behind the servers";
const NO_CLUSTER_OPTIONS: &str = "redis+cluster:// takes no options";
const EMPTY: &str = "an empty place in the list of servers: take out the comma that is too many";
const TWICE: &str = "one server is in the list twice";
const TOO_MANY: &str = "more than 16 servers for one node";
const NO_MASTER: &str = "no name of a master: write redis+sentinel://host,host,host/NAME, with the name that the sentinels' \
                         configuration has behind `sentinel monitor`";
const BAD_NAME: &str =
    "the name of the master is not UTF-8 when its percent signs are read, or has a space in it";
const BAD_DATABASE: &str = "the database is not a number of 0 or more";
const NOT_WITH_REPLICATED: &str =
    "sentinel_user, sentinel_password and sentinel_tls belong to redis+sentinel:// only";
const NO_OPTIONS: &str =
    "the only options here are sentinel_user, sentinel_password and sentinel_tls";
const LONELY_USER: &str = "a sentinel_user without a sentinel_password";
const PERCENT: &str = "sentinel_user or sentinel_password is not UTF-8 when its percent signs are read: write a percent sign \
                       as %25, or give both with Node::sentinel_credentials";
const NOT_FOR_ONE: &str = "several servers in one URL: give each a URL of its own if each is a node, or write \
                           redis+replicated://, redis+sentinel:// or redis+cluster:// if they are one node together";
const NO_WAIT: &str =
    "WAIT and WAITAOF are not offered, as they make no lock safe: see guide::sentinel_and_cluster";

/// Of one server.
fn one(url: &str) -> Result<Address, String> {
    let address = Address::parse(url)?;
    let options = url.rsplit_once('?').map_or("", |(_, options)| options);
    // The parser passes over options that it does not know.
    let waits = options
        .split('&')
        .any(|option| option.to_ascii_lowercase().starts_with("wait"));
    if waits {
        Err(NO_WAIT.to_owned())
    } else {
        Ok(address)
    }
}

/// Of a cluster: what stands behind the scheme, which is `server` and that it is one.
fn cluster(server: &str, rest: &str) -> Result<Address, String> {
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if path.contains('@') {
        // A password with a slash in it.
        return Address::parse(&format!("{server}://{rest}"));
    }
    if !matches!(path, "" | "0") {
        return Err(NO_DATABASE.to_owned());
    }
    if !options.is_empty() {
        return Err(NO_CLUSTER_OPTIONS.to_owned());
    }
    let (login, members) = match authority.rsplit_once('@') {
        Some((login, members)) => (format!("{login}@"), members),
        None => (String::new(), authority),
    };
    let brief = |it: String| {
        it.split_once(": expected")
            .map_or(it.clone(), |it| format!("{}: {CLUSTER}", it.0))
    };
    let members = members_of(members, 6379, false).map_err(brief)?;
    let address = Address::parse(&format!("{server}://{login}host")).map_err(brief)?;
    Ok(address.at(Endpoint::Group(Group::Cluster(members))))
}

/// Reads the URL of any node. The error never repeats it.
pub(crate) fn parse_url(url: &str) -> Result<Address, String> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase();
    let (server, kind) = scheme.split_once('+').unwrap_or((&scheme, ""));
    let sentinel = match (server, kind) {
        ("redis" | "valkey" | "rediss" | "valkeys", "replicated") => false,
        ("redis" | "valkey" | "rediss" | "valkeys", "sentinel") => true,
        ("redis" | "valkey" | "rediss" | "valkeys", "cluster") => return cluster(server, rest),
        ("redis" | "valkey" | "rediss" | "valkeys", "") if hosts(rest).contains(',') => {
            return Err(NOT_FOR_ONE.to_owned());
        }
        _ => return one(url),
    };
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, members) = match authority.rsplit_once('@') {
        Some((login, members)) => (format!("{login}@"), members),
        None => (String::new(), authority),
    };
    // The first is read with the login, for all of them.
    let members = members_of(
        members,
        if sentinel { SENTINEL_PORT } else { 6379 },
        sentinel,
    )?;
    let (master, database) = if sentinel {
        path.split_once('/').unwrap_or((path, ""))
    } else {
        ("", path)
    };
    let database = if database.is_empty() { "0" } else { database };
    if !database.bytes().all(|it| it.is_ascii_digit()) {
        return Err(BAD_DATABASE.to_owned());
    }
    let mut address = Address::parse(&format!("{server}://{login}host/{database}"))
        .map_err(|it| brief(&it, sentinel))?;
    let options = options_of(options, sentinel)?;
    address.sentinel_login = options.login;
    if options.plain_sentinels {
        if !address.is_to_be_secured() {
            return Err(SENTINEL_TLS.to_owned());
        }
    } else {
        address.sentinel_security = address.security.clone();
    }
    let group = if sentinel {
        if master.is_empty() {
            return Err(NO_MASTER.to_owned());
        }
        let master = unescaped(master)
            .filter(|it| !it.contains(|c: char| c.is_whitespace() || c.is_control()));
        Group::Sentinel {
            sentinels: members,
            master: master.ok_or(BAD_NAME)?,
        }
    } else {
        Group::Replicated(members)
    };
    Ok(address.at(Endpoint::Group(group)))
}

/// What stands between login and path.
fn hosts(rest: &str) -> &str {
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, hosts)| hosts)
}

fn expected(sentinel: bool) -> &'static str {
    if sentinel { SENTINEL } else { REPLICATED }
}

/// What is wrong, and then what is expected of this kind of node.
fn brief(reason: &str, sentinel: bool) -> String {
    match reason.split_once(": expected") {
        Some((reason, _)) => format!("{reason}: {}", expected(sentinel)),
        None => reason.to_owned(),
    }
}

fn members_of(list: &str, port: u16, sentinel: bool) -> Result<Vec<Endpoint>, String> {
    if list.is_empty() {
        return Err(format!("no servers: {}", expected(sentinel)));
    }
    let mut members = Vec::new();
    for it in list.split(',') {
        if it.is_empty() {
            return Err(EMPTY.to_owned());
        }
        let has_port = it
            .rsplit_once(']')
            .map_or(it, |(_, behind)| behind)
            .contains(':');
        let url = if has_port {
            format!("redis://{it}")
        } else {
            format!("redis://{it}:{port}")
        };
        let place = Address::parse(&url)
            .map_err(|reason| brief(&reason, sentinel))?
            .place;
        if members.contains(&place) {
            return Err(TWICE.to_owned());
        }
        members.push(place);
    }
    if MEMBERS_MAX < members.len() {
        Err(TOO_MANY.to_owned())
    } else {
        Ok(members)
    }
}

/// What stands behind the question mark.
struct Options {
    login: Option<Credentials>,
    plain_sentinels: bool,
}

fn options_of(options: &str, sentinel: bool) -> Result<Options, String> {
    let (mut user, mut password, mut tls) = (None, None, None);
    for option in options.split('&').filter(|it| !it.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let place = match name {
            "sentinel_user" => &mut user,
            "sentinel_password" => &mut password,
            "sentinel_tls" => &mut tls,
            _ => return Err(NO_OPTIONS.to_owned()),
        };
        if !sentinel {
            return Err(NOT_WITH_REPLICATED.to_owned());
        }
        *place = Some(unescaped(value).ok_or(PERCENT)?);
    }
    let login = match (user, password) {
        (user, Some(password)) => Some(Credentials { user, password }),
        (Some(_), None) => return Err(LONELY_USER.to_owned()),
        (None, None) => None,
    };
    if tls.as_deref().is_some_and(|it| it != "no") {
        return Err(SENTINEL_TLS.to_owned());
    }
    Ok(Options {
        login,
        plain_sentinels: tls.is_some(),
    })
}

/// The text with its percent signs read.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut read = Vec::new();
    while let Some(it) = bytes.next() {
        if it == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            read.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            read.push(it);
        }
    }
    String::from_utf8(read).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(url: &str) -> Group {
        match parse_url(url).unwrap().place {
            Endpoint::Group(group) => group,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_servers_of_a_node_are_read_and_shown_without_login() {
        let address =
            parse_url("redis+replicated://ann:se%40cret@A,[::1]:7001,10.0.0.3/3").unwrap();
        assert_eq!(&*address.shown(), "a:6379,[::1]:7001,10.0.0.3:6379");
        assert_eq!(
            (address.user.as_deref(), address.password.as_deref()),
            (Some("ann"), Some("se@cret"))
        );
        assert_eq!(address.database, 3);
        assert_eq!(
            format!("{address:?}"),
            r#"Address { place: "a:6379,[::1]:7001,10.0.0.3:6379", database: 3, .. }"#
        );
        let one = address.at(Endpoint::Tcp {
            host: "b".to_owned(),
            port: 1,
        });
        assert_eq!(
            (&*one.shown(), one.password.as_deref(), one.database),
            ("b:1", Some("se@cret"), 3)
        );

        let address = parse_url(
            "valkey+sentinel://:pw@s1,s2:7,[::1]/my%2Fmaster/2?sentinel_user=bob&sentinel_password=a%26b",
        );
        let address = address.unwrap();
        assert_eq!(&*address.shown(), "s1:26379,s2:7,[::1]:26379/my/master");
        assert_eq!(
            (address.password.as_deref(), address.database),
            (Some("pw"), 2)
        );
        let login = Credentials {
            user: Some("bob".to_owned()),
            password: "a&b".to_owned(),
        };
        assert_eq!(address.sentinel_login, Some(login));
        assert!(
            parse_url("REDIS+SENTINEL://s1/m")
                .unwrap()
                .sentinel_login
                .is_none()
        );
        assert_eq!(group("redis+replicated://a").members().len(), 1);

        let address = parse_url("valkey+cluster://ann:pw@A:7001,b/0").unwrap();
        assert_eq!(
            (&*address.shown(), address.password.as_deref()),
            ("a:7001,b:6379", Some("pw"))
        );
        assert!(matches!(group("redis+cluster://a"), Group::Cluster(seeds) if seeds.len() == 1));
    }

    #[test]
    fn what_people_get_wrong_with_several_servers_has_words_of_its_own() {
        for (url, reason) in [
            ("redis+replicated://a,,b", EMPTY),
            ("redis+replicated://a,", EMPTY),
            ("redis+sentinel://,a/m", EMPTY),
            ("redis+replicated://a,b:6379,A:6379", TWICE),
            ("redis+sentinel://s,s:26379/m", TWICE),
            (
                "redis+replicated://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
                TOO_MANY,
            ),
            ("redis+sentinel://s1,s2", NO_MASTER),
            ("redis+sentinel://s1,s2//0", NO_MASTER),
            ("redis+sentinel://s1/%ff", BAD_NAME),
            ("redis+sentinel://s1/a%20b", BAD_NAME),
            ("redis+sentinel://s1/%", BAD_NAME),
            ("redis+sentinel://s1/m/x", BAD_DATABASE),
            ("redis+replicated://a/mymaster", BAD_DATABASE),
            ("redis+replicated://a/-1", BAD_DATABASE),
            (
                "redis+replicated://a?sentinel_password=secret",
                NOT_WITH_REPLICATED,
            ),
            ("redis+replicated://a?db=3", NO_OPTIONS),
            ("redis+sentinel://a/m?password=secret", NO_OPTIONS),
            ("redis+sentinel://a/m?sentinel_user=ann", LONELY_USER),
            ("redis+sentinel://a/m?sentinel_password=%ffsecret", PERCENT),
            ("redis+sentinel://a/m?sentinel_tls=no", SENTINEL_TLS),
            ("redis+sentinel://a/m?sentinel_tls=yes", SENTINEL_TLS),
            (
                "redis+replicated://a/0?sentinel_tls=no",
                NOT_WITH_REPLICATED,
            ),
            #[cfg(feature = "tls")]
            ("rediss+sentinel://a/m?sentinel_tls=yes", SENTINEL_TLS),
            #[cfg(feature = "tls")]
            ("rediss://u:secret@a,b", NOT_FOR_ONE),
            #[cfg(feature = "tls")]
            ("rediss+cluster://a,b/3", NO_DATABASE),
            #[cfg(feature = "tls")]
            ("rediss+cluster://a?sentinel_tls=no", NO_CLUSTER_OPTIONS),
            ("redis+cluster://a,b/3", NO_DATABASE),
            ("redis+cluster://a,b/x", NO_DATABASE),
            ("redis+cluster://a,b?wait_replicas=1", NO_CLUSTER_OPTIONS),
            ("redis+replicated://a,b?wait_replicas=1", NO_OPTIONS),
            (
                "redis+sentinel://a/m?sentinel_password=x&wait_replicas=1",
                NO_OPTIONS,
            ),
            ("redis://host?wait_replicas=1", NO_WAIT),
            ("redis://:a@host/3?waitaof=1", NO_WAIT),
            (
                "redis+unix:///a.sock?db=2&wait_replicas=1&pass=wait",
                NO_WAIT,
            ),
            (
                "redis+cluster://a?sentinel_password=secret",
                NO_CLUSTER_OPTIONS,
            ),
            ("redis+cluster://a,a:6379", TWICE),
            ("redis+cluster://a,,b", EMPTY),
            ("redis://u:secret@a,b,c", NOT_FOR_ONE),
        ] {
            assert_eq!(parse_url(url).unwrap_err(), reason, "{url}");
        }
        for url in [
            "redis+replicated://",
            "redis+cluster://",
            "redis+cluster://u:se/cret@a,b",
            "redis+cluster://u:secret@a:port",
            "redis+sentinel://:secret@/m",
            "redis+sentinel:///m",
            "redis+replicated://u:secret@a:port,b",
            "redis+replicated://a:0",
            "redis+replicated://::1,::2",
            "redis+replicated://u:se/cret@a,b",
            "redis+sentinel://u:se#cret@a,b/m",
            "redis+replicated://ann@a",
            "redis+nonsense://a",
        ] {
            let err = parse_url(url).unwrap_err();
            assert!(!err.contains("cret") && 10 < err.len(), "{url}: {err}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_tls_several_servers_are_refused_as_one_is() {
        let of_one = parse_url("rediss://a").unwrap_err();
        for url in [
            "rediss+sentinel://u:secret@a/m",
            "valkeys+replicated://a",
            "REDISS+replicated://a,b",
            "rediss+cluster://u:secret@a,b",
        ] {
            assert_eq!(parse_url(url).unwrap_err(), of_one, "{url}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn servers_and_sentinels_are_secured_alike_unless_the_url_says_that_sentinels_are_not() {
        use crate::wire::Security;
        let secured = |url| {
            let address = parse_url(url).unwrap();
            let is = |it: &Security| matches!(it, Security::Wanted);
            let place = Endpoint::Tcp {
                host: "b".to_owned(),
                port: 1,
            };
            (
                is(&address.of_member(place.clone(), None).security),
                is(&address.at(place).security),
            )
        };
        assert_eq!(secured("redis+replicated://a,b"), (false, false));
        assert_eq!(secured("rediss+replicated://a,b"), (true, true));
        assert_eq!(secured("VALKEYS+sentinel://a/m"), (true, true));
        assert_eq!(secured("redis+cluster://a,b"), (false, false));
        assert_eq!(secured("rediss+cluster://ann:pw@a,b/0"), (true, true));
        assert_eq!(secured("redis+sentinel://a/m"), (false, false));
        assert_eq!(
            secured("rediss+sentinel://a/m?sentinel_password=x&sentinel_tls=no"),
            (false, true)
        );
        assert_eq!(
            parse_url("rediss+sentinel://s1,[::1]:7/m").unwrap().hosts(),
            ["s1", "::1"]
        );
    }

    #[test]
    fn a_url_of_one_server_is_read_as_ever() {
        assert_eq!(
            &*parse_url("redis://:a,b@host/3").unwrap().shown(),
            "host:6379"
        );
        assert_eq!(
            &*parse_url("unix:///run/a,b.sock").unwrap().shown(),
            "/run/a,b.sock"
        );
        assert!(parse_url("nonsense").is_err());
    }

    #[test]
    fn nodes_overlap_that_can_be_led_by_the_same_server() {
        let place = |url| parse_url(url).unwrap().place;
        let overlap = |one, other| {
            let there = place(one).overlaps(&place(other));
            assert_eq!(there, place(other).overlaps(&place(one)));
            there
        };
        assert!(overlap("redis+replicated://a,b", "redis+replicated://c,b"));
        assert!(overlap("redis+replicated://a,b", "redis://B"));
        assert!(overlap("redis://b/3", "redis://b"));
        assert!(overlap(
            "redis+sentinel://s1,s2/m",
            "redis+sentinel://s2,s3/m"
        ));
        assert!(
            !overlap("redis+sentinel://s1,s2/m", "redis+sentinel://s1,s2/n"),
            "sentinels watch many masters"
        );
        assert!(!overlap("redis+sentinel://s1/m", "redis+sentinel://s2/m"));
        assert!(!overlap("redis+replicated://a,b", "redis+replicated://c,d"));
        assert!(overlap("redis+cluster://a,b", "redis+cluster://b,c"));
        assert!(overlap("redis+cluster://a,b", "redis+replicated://b"));
        assert!(overlap("redis+cluster://a,b", "redis://b"));
        assert!(!overlap("redis+cluster://a,b", "redis+cluster://c"));
        assert!(!overlap(
            "redis+sentinel://a:6379/m",
            "redis+replicated://a"
        ));
        assert!(!overlap("redis://b", "redis+replicated://a"));
    }
}
