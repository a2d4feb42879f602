//! Options in, running manager out.

mod node;

use std::sync::Arc;
use std::time::Duration;

use crate::builder::node::IntoNodes;
pub use crate::builder::node::Node;
use crate::config::{Config, Margin};
use crate::engine::{Engine, NodeAddress, OVERLAP, Process};
use crate::error::{BuildError, BuildProblem};
use crate::ids::NodeSet;
use crate::manager::LockManager;
use crate::observer::{Observer, UserObserver};
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::wire::Credentials;

impl LockManager {
    /// Begins to build a manager for these nodes: one URL or [`Node`], or any number of them.
    ///
    /// | URL | node |
    /// | --- | --- |
    /// | `redis://[user:password@]host[:port][/database]` | one server; also `valkey://` |
    /// | `redis+unix:///path[?db=…&user=…&pass=…]` | one server, by a socket in the file system |
    /// | `redis+replicated://[user:password@]host[:port],…[/database]` | with replicas: one vote |
    /// | `redis+sentinel://[user:password@]sentinel[:port],…/name[/database]` | by Sentinels |
    /// | `redis+cluster://[user:password@]host[:port],…` | the owner of a slot of a Redis Cluster |
    /// | `rediss://…`, `rediss+replicated://…`, … | with TLS, feature `tls` |
    ///
    /// The database can also be `?db=…`. A Redis Cluster needs a hash tag in
    /// [`prefix`](Builder::prefix).
    ///
    /// Each node must be an independent server without a replica that takes its place, or one of
    /// the groups above: see [`guide::sentinel_and_cluster`](crate::guide::sentinel_and_cluster).
    /// Three nodes survive the failure of one, five of two. An even number survives no more
    /// failures than one node less.
    ///
    /// IPv6 addresses are in brackets, link-local ones with their zone:
    /// `redis://[fe80::1%25eth0]:6379`.
    ///
    /// An unknown option behind a `?` is an error of [`build`](Builder::build).
    ///
    /// In a user or password write `/ ? # @ %` as `%2F %3F %23 %40 %25`, or pass both to
    /// [`credentials`](Builder::credentials). [`Node::split_urls`] splits a text with several URLs.
    ///
    /// Build every process that uses the same locks with the same nodes, database numbers and
    /// prefix.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let locks = quorlock::LockManager::builder(urls)
    ///     .ttl(Duration::from_secs(10))
    ///     .build()?; // starts the threads, touches no network
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[doc(alias("new", "connect", "open"))]
    pub fn builder<Count>(nodes: impl IntoNodes<Count>) -> Builder {
        Builder {
            nodes: nodes.into_nodes(),
            login: None,
            #[cfg(feature = "tls")]
            tls: None,
            owner_label: Some(String::new()),
            config: Config::default(),
        }
    }
}

/// Options of a [`LockManager`]. Setters store; [`build`](Builder::build) checks all of them.
///
/// Most programs set [`ttl`](Builder::ttl) at most. There are two groups of options: those that you
/// may need, and those for special cases.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    nodes: Vec<Node>,
    login: Option<Credentials>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    owner_label: Option<String>,
    pub(crate) config: Config,
}

impl Builder {
    /// Checks every option and starts the threads.
    ///
    /// Does not block and touches no network: the first lock connects to the nodes. Reads the files
    /// given for TLS.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names every problem at once.
    #[doc(alias("connect", "finish"))]
    pub fn build(mut self) -> Result<LockManager, BuildError> {
        let (mut addresses, mut problems) = check_addresses(&self.nodes, &self.config.prefix);
        #[cfg(feature = "tls")]
        if problems.is_empty() {
            let wrong = node::secure(&mut addresses, &self.nodes, self.tls.as_ref());
            problems.extend(wrong.map(|reason| BuildProblem::Tls { reason }));
        }
        problems.extend(self.config.problems());
        if !problems.is_empty() {
            return Err(BuildError { problems });
        }
        for (address, node) in addresses.iter_mut().zip(self.nodes) {
            let login = node.login.as_ref().or(self.login.as_ref());
            if 1 < address.connections().count() {
                self.config.silence_of_promoted = OVERLAP;
            }
            for (connection, is_sentinel) in address.connections() {
                let login = if is_sentinel {
                    node.sentinel_login.as_ref()
                } else {
                    login
                };
                // The URL's own login wins.
                connection.login = connection.login.take().or(login.cloned());
            }
        }
        if let Some(own) = &self.owner_label {
            // Here, not in the setter: a builder may be made before a fork.
            let label = Process::this().label(own);
            let connections = addresses.iter_mut().flat_map(NodeAddress::connections);
            connections.for_each(|(it, _)| it.client_name += &format!(":{}", label.0));
            self.config.owner_label = label;
        }
        let engine = Engine::start(self.config, addresses).map_err(|err| {
            let reason = err.to_string();
            let problems = vec![BuildProblem::NoThreads { reason }];
            BuildError { problems }
        })?;
        Ok(LockManager {
            engine: Arc::new(engine),
        })
    }
}

/// # Options that you may need
impl Builder {
    /// Sets how long a lock outlives its holder if the holder dies without a release: its *lease*.
    ///
    /// Not a limit on your work: renewal keeps the lock of a live holder. A short ttl frees the
    /// lock sooner after a crash, a long one survives longer outages. Sent to the nodes in whole
    /// milliseconds, rounded down.
    ///
    /// Default: 10 s. Allowed: 100 ms to 1 h, and at least four [response
    /// timeouts](Builder::response_timeout).
    #[doc(alias("lease", "expiry", "lease_time"))]
    pub fn ttl(mut self, ttl: Duration) -> Builder {
        self.config.ttl = ttl;
        self
    }

    /// Sets the longest ttl of any lock of this manager. A lock with a longer ttl is refused.
    ///
    /// `max_ttl` belongs to the servers: the first program on a server writes it there, and a node
    /// that may have lost locks is [quarantined](Builder::quarantine) for this time. A manager with
    /// less or the same is served. A manager with more gets no vote
    /// ([`MaxTtl`](crate::error::NodeFailure::MaxTtl)) until an operator
    /// [raises](crate::Admin::set_max_ttl) it on all servers. It never falls by itself: see
    /// [`guide::safety`](crate::guide::safety#length-of-a-quarantine).
    ///
    /// Default: the [`ttl`](Builder::ttl), or 10 s if that is longer. Allowed: 100 ms to 1 h, at
    /// least the ttl.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Builder {
        self.config.max_ttl = Some(max_ttl);
        self
    }

    /// Sets the login for all nodes without a password in their URL. `user`: `None` for the default
    /// user.
    ///
    /// For passwords from a file, a variable or a vault. [`Node::credentials`] sets the login of
    /// one node, and a password in a URL wins over both. `Debug` forms, errors and logs never show
    /// a password.
    ///
    /// Default: none; nodes without a password in their URL get no login.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let password = std::env::var("REDIS_PASSWORD")?;
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let locks = quorlock::LockManager::builder(urls)
    ///     .credentials(Some("locks"), &password)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("password", "username", "auth", "login"))]
    pub fn credentials(mut self, user: Option<&str>, password: &str) -> Builder {
        self.login = Some(Credentials::new(user, password));
        self
    }

    /// Sets the TLS options of all nodes with a `rediss://` URL: the trusted authorities and the
    /// client certificate.
    ///
    /// Needs the feature `tls`. The [connect timeout](Builder::connect_timeout) includes the
    /// handshake. [`Node::tls`] sets the options of one node. If no URL begins with `rediss`,
    /// [`build`](Builder::build) returns an error, because nothing would be encrypted.
    ///
    /// Default: [`Tls::system_roots`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use quorlock::Tls;
    ///
    /// let urls = ["rediss://r1.internal", "rediss://r2.internal", "rediss://r3.internal"];
    /// let locks = quorlock::LockManager::builder(urls)
    ///     .tls(Tls::with_ca_file("/etc/locks/ca.pem"))
    ///     .build()?;
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[cfg(feature = "tls")]
    #[doc(alias("ssl", "certificate"))]
    pub fn tls(mut self, tls: Tls) -> Builder {
        self.tls = Some(tls);
        self
    }

    /// Sets the prefix of every key: a lock's key is the prefix followed by the name.
    ///
    /// For servers that hold other data too, or to share locks with other clients: RedLock.net and
    /// pottery use `redlock:`.
    ///
    /// Default: empty. Allowed: up to 64 KiB, together with the name.
    #[doc(alias("namespace", "key_prefix"))]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Builder {
        self.config.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Sets the label by which people recognise a holder. A lock's value on the nodes is a random
    /// number, a space and `host/process/label`. Refused calls [report
    /// it](crate::error::NodeAnswer::Held), and `CLIENT LIST` shows it as the name of the
    /// connections.
    ///
    /// `""` leaves `host/process`. [`without_owner_label`](Builder::without_owner_label) omits it.
    ///
    /// Everyone who may read keys or list clients can read the label: no secrets. The first 32
    /// characters count, and of the host's name those that fit into 63 with the rest. Spaces and
    /// other characters than printable ASCII become `_`.
    ///
    /// Default: `""`. Allowed: any.
    ///
    /// # Examples
    ///
    /// ```
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let locks = quorlock::LockManager::builder(urls)
    ///     .owner_label("nightly")
    ///     .build()?; // locks are held by web-3/4711/nightly
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[doc(alias("client_name", "holder"))]
    pub fn owner_label(mut self, label: impl Into<String>) -> Builder {
        self.owner_label = Some(label.into());
        self
    }

    /// Stores the random number of a holder alone and names the connections `quorlock`, for servers
    /// that must not show the names of machines.
    ///
    /// Default: an [`owner_label`](Builder::owner_label).
    pub fn without_owner_label(mut self) -> Builder {
        self.owner_label = None;
        self
    }

    /// Sets the observer, which receives the events of the manager: for metrics, traces and records
    /// of your own.
    ///
    /// The thread `quorlock-events` calls it: see [`Observer`](crate::observer::Observer). A
    /// closure is one.
    ///
    /// Default: none.
    ///
    /// # Examples
    ///
    /// ```
    /// use quorlock::LockManager;
    /// use quorlock::observer::Event;
    ///
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let locks = LockManager::builder(urls)
    ///     .observer(|event: &Event| {
    ///         if let Event::Lost { .. } = event {
    ///             eprintln!("{event:?}");
    ///         }
    ///     })
    ///     .build()?;
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[doc(alias("metrics", "events", "listener"))]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Builder {
        self.config.observer = Some(UserObserver::new(observer));
        self
    }

    /// Sets whether a server with a [finding](crate::error::NodeFinding) that can cost a lock is
    /// disqualified: its grants do not count.
    ///
    /// Such servers are promoted replicas, servers with replicas, servers that would evict keys,
    /// servers that forbid `INFO`, and proxies. So are servers of programs whose number of servers
    /// differs by [more than one](crate::guide::servers_change).
    ///
    /// Without `strict` these servers count, [`check_nodes`](LockManager::check_nodes) reports
    /// them, and the log warns of the gravest. The row of such a node is
    /// [`Disqualified`](crate::error::NodeFailure::Disqualified). A replica never counts, with or
    /// without this.
    ///
    /// Default: `false`.
    pub fn strict(mut self, strict: bool) -> Builder {
        self.config.strict = strict;
        self
    }
}

/// # Options for special cases
///
/// The defaults are right for most programs.
impl Builder {
    /// Sets how long a node may take to answer a command before it counts as failed.
    ///
    /// A round ends as soon as a majority has answered; this limit is for rounds without a
    /// majority. The connection of a late node is kept, and the node is skipped until it has caught
    /// up. The limit must be well above the network's round trip.
    ///
    /// The time begins when the commands are handed to the connections. A process with more calls
    /// than its nodes answer in time makes the rest wait for their turn, in order of arrival. That
    /// wait counts neither here nor in the ttl nor in the [outage
    /// timeout](Builder::outage_timeout).
    ///
    /// Default: 100 ms. Allowed: 1 ms to 60 s.
    pub fn response_timeout(mut self, timeout: Duration) -> Builder {
        self.config.response_timeout = timeout;
        self
    }

    /// Sets how long it may take to connect to a node, to secure the connection and to log in,
    /// without name resolution.
    ///
    /// Only a round that begins during a first connection, or during a reconnection, waits for it.
    /// A node that is down is tried in the background.
    ///
    /// Default: 250 ms. Allowed: 1 ms to 60 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Builder {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets how long an outage may last before it ends waiting calls. In an outage no majority of
    /// the nodes can be reached.
    ///
    /// The outage belongs to the manager: it begins with the first attempt of any call that finds
    /// no majority and ends when one finds a majority. So all waiting calls end together. A call
    /// that begins in an outage older than this makes one attempt and returns
    /// [`NoQuorum`](crate::AcquireError::NoQuorum), 100 ms after its beginning at the earliest, or
    /// when its own timeout ends. Two failures with half a minute of nothing between them are two
    /// outages.
    ///
    /// A lock that no majority grants while other locks are granted, for example because an access
    /// list forbids its name, ends its call after the same time. If a majority refuses the login or
    /// a command, or is [unsuitable](crate::error::NodeFailure::Unsuitable), calls end at once.
    /// [Quarantined](Builder::quarantine) nodes are no outage. [`Duration::ZERO`] makes an outage
    /// an error at the first attempt.
    ///
    /// Default: 10 s. Allowed: any.
    pub fn outage_timeout(mut self, timeout: Duration) -> Builder {
        self.config.outage_timeout = timeout;
        self
    }

    /// Sets the margin for clock drift: the part of a ttl that the holder does not use.
    ///
    /// `share` of the ttl covers nodes whose clocks run faster than yours; `fixed` covers the grain
    /// of their expiry. The default is enough where clocks are right to within 97 ms or are
    /// corrected slowly. 0.1 covers servers with chrony's default rate after any offset: see
    /// [`guide::safety`](crate::guide::safety). Larger is safer, smaller leaves more of the ttl.
    ///
    /// Default: 0.01 and 2 ms, as the Redlock algorithm recommends. Allowed: a share of 0 to 0.5;
    /// both together at most half of the ttl.
    #[doc(alias("drift", "drift_factor"))]
    pub fn clock_margin(mut self, share: f64, fixed: Duration) -> Builder {
        self.config.margin = Margin { share, fixed };
        self
    }

    /// Sets whether held locks are extended while their guards exist: every third of the ttl, by
    /// one thread for all locks. Without renewal a lock ends after its ttl.
    ///
    /// Default: `true`. One lock can differ: [`Mutex::renew`](crate::Mutex::renew).
    #[doc(alias("auto_extend", "watchdog", "heartbeat"))]
    pub fn renew(mut self, renew: bool) -> Builder {
        self.config.renew = renew;
        self
    }

    /// Sets how long one guard can hold a lock. Then the lock is no longer extended and is
    /// [lost](crate::LostReason::MaxHold).
    ///
    /// Bounds forgotten guards and endless loops. The log warns once of each lock extended for an
    /// hour.
    ///
    /// Default: `None`, no bound. Allowed: at least the ttl.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Builder {
        self.config.max_hold = max_hold.into();
        self
    }

    /// Sets whether a node that may have lost locks is quarantined: its grants do not count until
    /// those locks have expired.
    ///
    /// A server that was restarted without its data, was emptied, or had its clock set forward
    /// would grant locks that others hold. It is quarantined for the [`max_ttl`](Builder::max_ttl)
    /// of the servers and the margin: ten seconds by default. `lock` waits until it is over; other
    /// calls report [`Quarantined`](crate::error::NodeFailure::Quarantined) with the time left.
    /// Renewal goes on. A brand-new server counts as emptied; an operator with better knowledge may
    /// [vouch](crate::Admin::vouch) for it.
    ///
    /// Quarantine is a property of a server: the first program that locks there decides for all. A
    /// manager with another setting gets
    /// [`QuarantineDiffers`](crate::error::NodeFailure::QuarantineDiffers).
    ///
    /// Switch it off for tests with throwaway servers only, never because of an outage. See
    /// [`guide::safety`](crate::guide::safety).
    ///
    /// Default: `true`.
    pub fn quarantine(mut self, quarantine: bool) -> Builder {
        self.config.quarantine = quarantine;
        self
    }

    /// Sets how long a node keeps a lock's fencing counter after its last use.
    ///
    /// After that the wall clock keeps tokens growing: a token is at least the microseconds since
    /// 1970. So this must exceed the error of your clients' clocks. `None` keeps counters for ever,
    /// for a fixed set of names. Each acquisition gives the counter its full life again, and so do
    /// extensions, 24 times in that life.
    ///
    /// Default: 24 h. Allowed: 1 min to 10 years, and at least twice the longest
    /// [ttl](Builder::max_ttl).
    pub fn fencing_ttl(mut self, ttl: Option<Duration>) -> Builder {
        self.config.fencing_ttl = ttl;
        self
    }

    /// Sets the pause between the attempts of a waiting call: a random time between `shortest` and
    /// a limit that doubles with every attempt, up to `longest`.
    ///
    /// If nodes cannot hand the call the lock, the pause is half a second at most, and a free lock
    /// is kept for such a call for a second. Usually nodes can. Then the pause is a safety net,
    /// from about `longest` up to five times that. See [`guide::waiting`](crate::guide::waiting).
    ///
    /// Default: 10 ms to 200 ms. Allowed: 1 ms to 60 s each.
    #[doc(alias = "retry_count")]
    pub fn retry_delay(mut self, shortest: Duration, longest: Duration) -> Builder {
        self.config.retry_min = shortest;
        self.config.retry_max = longest;
        self
    }

    /// Sets how long the end of the manager may take: to send queued commands, releases first, and
    /// to join threads. All releases are sent together, thousands in a few round trips. A release
    /// that is not sent by then expires after its ttl.
    ///
    /// Default: 1 s. Allowed: up to 60 s.
    pub fn shutdown_grace(mut self, grace: Duration) -> Builder {
        self.config.shutdown_grace = grace;
        self
    }
}

fn check_addresses(nodes: &[Node], prefix: &[u8]) -> (Vec<NodeAddress>, Vec<BuildProblem>) {
    let mut problems = Vec::new();
    let max = usize::from(NodeSet::MAX);
    if nodes.is_empty() {
        problems.push(BuildProblem::NoNodes);
    }
    if max < nodes.len() {
        problems.push(BuildProblem::TooManyNodes {
            count: nodes.len(),
            max,
        });
    }
    let mut addresses: Vec<(usize, NodeAddress)> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        match node.address.clone().and_then(|it| it.pin(prefix)) {
            Err(reason) => problems.push(BuildProblem::BadAddress { index, reason }),
            // By place alone: another database or user does not make another server.
            Ok(address) => match addresses.iter().find(|(_, it)| {
                it.server.place == address.server.place && it.question == address.question
            }) {
                Some((first, _)) => {
                    let address = address.shown.to_string();
                    problems.push(BuildProblem::DuplicateNode {
                        first: *first,
                        second: index,
                        address,
                    });
                }
                None => addresses.push((index, address)),
            },
        }
    }
    (addresses.into_iter().map(|(_, it)| it).collect(), problems)
}
