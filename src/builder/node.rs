//! One node: its URL, and the options outside the URL.

#[cfg(feature = "tls")]
use std::sync::Arc;

use crate::engine::NodeAddress;
#[cfg(feature = "tls")]
use crate::tls::{Setup, SystemRoots, Tls};
use crate::wire::Credentials;
#[cfg(feature = "tls")]
use crate::wire::{Endpoint, Security};

/// One node of a manager: a URL, and options of this node outside the URL.
///
/// Strings convert into it, so [`LockManager::builder`](crate::LockManager::builder) takes URLs as
/// they are. Make a `Node` for a node that differs from the others. `Debug` shows no password.
///
/// # Examples
///
/// ```no_run
/// use quorlock::{LockManager, Node};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let password = std::env::var("FIRST_PASSWORD")?;
/// let first = Node::url("redis://10.0.0.1").credentials(Some("locks"), &password);
/// let nodes = [first, "redis://10.0.0.2".into(), "redis://10.0.0.3".into()];
/// let locks = LockManager::builder(nodes).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) address: Result<NodeAddress, String>,
    pub(super) login: Option<Credentials>,
    pub(super) sentinel_login: Option<Credentials>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
    #[cfg(feature = "tls")]
    pub(super) sentinel_tls: Option<Tls>,
}

impl Node {
    /// The node with this URL: see [`LockManager::builder`](crate::LockManager::builder) for the
    /// forms.
    ///
    /// An invalid URL is an error of [`Builder::build`](crate::Builder::build).
    #[must_use]
    pub fn url(url: impl AsRef<str>) -> Node {
        Node {
            address: NodeAddress::parse(url.as_ref()),
            login: None,
            sentinel_login: None,
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "tls")]
            sentinel_tls: None,
        }
    }

    /// The URLs in a text, such as an environment variable, with commas or white space between
    /// them.
    ///
    /// The URL of a node of several servers contains commas: the part after a comma belongs to the
    /// URL before it unless the part contains `://`. White space always ends a URL.
    ///
    /// # Examples
    ///
    /// ```
    /// use quorlock::{LockManager, Node};
    ///
    /// let text = "redis+sentinel://s1,s2,s3/b, redis://10.0.0.2,redis://10.0.0.3";
    /// let urls = Node::split_urls(text);
    /// assert_eq!(urls, ["redis+sentinel://s1,s2,s3/b", "redis://10.0.0.2", "redis://10.0.0.3"]);
    /// let locks = LockManager::builder(urls).build()?;
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[must_use]
    pub fn split_urls(text: &str) -> Vec<String> {
        let mut urls: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            let first = urls.len();
            for part in word.split(',').filter(|it| !it.is_empty()) {
                match urls.get_mut(first..).and_then(<[String]>::last_mut) {
                    Some(url) if !part.contains("://") => *url += &format!(",{part}"),
                    _ => urls.push(part.to_owned()),
                }
            }
        }
        urls
    }

    /// The user and password of this node. They replace those of
    /// [`Builder::credentials`](crate::Builder::credentials). A password in the URL wins.
    #[must_use]
    #[doc(alias = "password")]
    pub fn credentials(mut self, user: Option<&str>, password: &str) -> Node {
        self.login = Some(Credentials::new(user, password));
        self
    }

    /// The user and password of this node's Sentinels. A `sentinel_password` in the URL wins.
    ///
    /// Without them no login is sent to Sentinels. The password of the servers is never sent to a
    /// Sentinel.
    #[must_use]
    pub fn sentinel_credentials(mut self, user: Option<&str>, password: &str) -> Node {
        self.sentinel_login = Some(Credentials::new(user, password));
        self
    }

    /// The TLS options of this node, in place of those of [`Builder::tls`](crate::Builder::tls):
    /// for a certificate with another name than the host of the URL, or from another authority.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use quorlock::{LockManager, Node, Tls};
    ///
    /// let tls = |name: &str| Tls::with_ca_file("/etc/locks/ca.pem").server_name(name);
    /// let named = |url, name: &str| Node::url(url).tls(tls(name));
    /// let locks = LockManager::builder([
    ///     named("rediss://10.0.0.1", "r1.internal"),
    ///     named("rediss://10.0.0.2", "r2.internal"),
    ///     named("rediss://10.0.0.3", "r3.internal"),
    /// ])
    /// .build()?;
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Node {
        self.tls = Some(tls);
        self
    }

    /// The TLS options of this node's Sentinels. Default: those of the servers.
    ///
    /// Needed where Sentinels name the primary by its IP address: [`Tls::server_name`] is then the
    /// servers' name and is wrong for the Sentinels. For Sentinels without TLS write
    /// `?sentinel_tls=no` into the URL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use quorlock::{LockManager, Node, Tls};
    ///
    /// let trusted = Tls::with_ca_file("/etc/locks/ca.pem");
    /// let node = Node::url("rediss+sentinel://s1.internal,s2.internal,s3.internal/locks")
    ///     .tls(trusted.clone().server_name("redis.internal"))
    ///     .sentinel_tls(trusted);
    /// let locks = LockManager::builder(node).build()?;
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn sentinel_tls(mut self, tls: Tls) -> Node {
        self.sentinel_tls = Some(tls);
        self
    }
}

/// Secures the connections with TLS URLs, with the node's own options or with `of_all`. Returns a
/// problem, if any.
#[cfg(feature = "tls")]
pub(super) fn secure(
    addresses: &mut [NodeAddress],
    nodes: &[Node],
    of_all: Option<&Tls>,
) -> Option<String> {
    let mut system = SystemRoots::default();
    let default = Tls::system_roots();
    let mut is_any_secured = false;
    for (index, (address, node)) in addresses.iter_mut().zip(nodes).enumerate() {
        let of_servers = node.tls.as_ref().or(of_all).unwrap_or(&default);
        let of_sentinels = node.sentinel_tls.as_ref().unwrap_or(of_servers);
        let mut is_secured = false;
        let mut has_sentinels = false;
        for (connection, is_sentinel) in address.connections() {
            let Security::Wanted = connection.security else {
                continue;
            };
            is_secured = true;
            has_sentinels |= is_sentinel;
            let host = match &connection.place {
                Endpoint::Tcp { host, .. } => Some(&**host),
                Endpoint::Unix(_) => None,
            };
            let tls = if is_sentinel {
                of_sentinels
            } else {
                of_servers
            };
            match Setup::new(tls, host, &mut system) {
                Ok(setup) => connection.security = Security::Tls(Arc::new(setup)),
                Err(reason) => return Some(format!("node {index}: {reason}")),
            }
        }
        is_any_secured |= is_secured;
        if node.tls.is_some() && !is_secured {
            return Some(format!(
                "it is set up for node {index}, whose URL does not begin with rediss://"
            ));
        }
        if node.sentinel_tls.is_some() && !has_sentinels {
            return Some(format!(
                "it is set up for the Sentinels of node {index}, which has none that speak TLS: \
                 rediss+sentinel://"
            ));
        }
    }
    let is_useless = of_all.is_some() && !is_any_secured;
    is_useless.then(|| "it is set up, and no URL begins with rediss://".to_owned())
}

impl<T: AsRef<str>> From<T> for Node {
    fn from(url: T) -> Node {
        Node::url(url)
    }
}

/// The nodes of a manager: one URL or [`Node`], or any number of them. This crate alone implements
/// it.
///
/// `Count` distinguishes the two and is never named.
pub trait IntoNodes<Count> {
    /// The nodes, in order.
    fn into_nodes(self) -> Vec<Node>;
}

/// One node.
#[derive(Debug)]
pub struct One;
/// Any number of nodes.
#[derive(Debug)]
pub struct Many;

impl<N: Into<Node>> IntoNodes<One> for N {
    fn into_nodes(self) -> Vec<Node> {
        vec![self.into()]
    }
}

impl<I: IntoIterator<Item: Into<Node>>> IntoNodes<Many> for I {
    fn into_nodes(self) -> Vec<Node> {
        self.into_iter().map(Into::into).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_commas_or_white_space_between_may_have_commas_themselves() {
        assert_eq!(
            Node::split_urls(" redis://a,redis://b\n redis://c, "),
            ["redis://a", "redis://b", "redis://c"]
        );
        let groups = "redis+sentinel://s1,s2:26380,s3/b,redis+replicated://:p,w@c,d \
            redis+cluster://e,f,redis://g";
        let of_groups = [
            "redis+sentinel://s1,s2:26380,s3/b",
            "redis+replicated://:p,w@c,d",
            "redis+cluster://e,f",
            "redis://g",
        ];
        assert_eq!(Node::split_urls(groups), of_groups);
        assert_eq!(
            Node::split_urls("a,b c"),
            ["a,b", "c"],
            "what is no URL is refused as it was given"
        );
        assert_eq!(Node::split_urls(" , "), [""; 0]);
    }
}
