//! Servers and passwords from options, variables and files.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use quorlock::error::BuildProblem;
use quorlock::{BuildError, Builder, LockManager, Node, Tls};

use crate::exit::{Exit, Failed};
use crate::options::{NODES, NodeArgs};
use crate::show;

/// The default ttl and the default longest ttl, as of programs.
const TTL: Duration = Duration::from_secs(10);

/// Longer than the defaults of programs: jobs can wait, and machines are busy at night.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A URL, and its place in the settings: "line 3 of nodes".
type Given = (String, String);

/// The settings of a manager.
pub(crate) struct Settings {
    pub(crate) builder: Builder,
    pub(crate) response_timeout: Duration,
    pub(crate) ttl: Duration,
    pub(crate) max_ttl: Duration,
    places: Vec<String>,
}

impl Settings {
    pub(crate) fn build(&self) -> Result<LockManager, Failed> {
        let place = |index: &usize| self.places.get(*index).map_or("?", String::as_str);
        let text = |it: &BuildProblem| match it {
            BuildProblem::BadAddress { index, reason } => format!("{}: {reason}", place(index))
                .replace(".prefix(\"{locks}:\")", "--prefix '{locks}:'"),
            BuildProblem::DuplicateNode {
                first,
                second,
                address,
            } => {
                let [first, second] = [first, second].map(place);
                format!(
                    "{first} and {second} are the same server ({address}): give each server once"
                )
            }
            other => other.to_string(),
        };
        let lacks_threads = |it: &BuildProblem| matches!(it, BuildProblem::NoThreads { .. });
        let failed = |err: BuildError| {
            let problems = err.problems().iter();
            let exit = if problems.clone().any(lacks_threads) {
                Exit::INTERNAL
            } else {
                Exit::CONFIG
            };
            Failed::new(exit, problems.map(text).collect::<Vec<_>>().join("; "))
        };
        self.builder.clone().build().map_err(failed)
    }
}

/// For commands that hold locks.
pub(crate) fn with_locks(args: &NodeArgs) -> Result<Settings, Failed> {
    settings(args, true)
}

/// For commands that hold nothing.
pub(crate) fn without_locks(args: &NodeArgs) -> Result<Settings, Failed> {
    settings(args, false)
}

/// The servers in a file, one in each line. Empty lines and comments are skipped.
fn listed(file: &Path) -> Result<Vec<Given>, Failed> {
    let text = read(file)?;
    let mut nodes = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let urls = split(line)
            .into_iter()
            .take_while(|url| !url.starts_with('#'));
        nodes.extend(urls.map(|url| (url, format!("line {number} of {}", file.display()))));
    }
    if nodes.is_empty() {
        return Err(invalid(file, "no servers in this file"));
    }
    Ok(nodes)
}

/// URLs may be in quotes, as in files of variables.
fn split(urls: &str) -> Vec<String> {
    let unquoted = |url: String| url.trim_matches(['"', '\'']).to_owned();
    Node::split_urls(urls).into_iter().map(unquoted).collect()
}

fn settings(args: &NodeArgs, holds: bool) -> Result<Settings, Failed> {
    let (urls, places): (Vec<_>, Vec<_>) = given(args)?.into_iter().unzip();
    let mut builder = LockManager::builder(urls)
        .owner_label("quorlock")
        .strict(args.strict);
    let ca = args.ca_file.as_ref();
    let tls = ca.map_or_else(Tls::system_roots, Tls::with_ca_file);
    match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => builder = builder.tls(tls.client_cert_files(cert, key)),
        (None, None) if ca.is_none() => {}
        (None, None) => builder = builder.tls(tls),
        _ => return Err(Failed::new(Exit::CONFIG, "--cert and --key: give both")),
    }
    match (password(args)?, args.user.as_deref()) {
        (Some(password), user) => builder = builder.credentials(user, &password),
        (None, Some(_)) => {
            return Err(Failed::new(
                Exit::CONFIG,
                "--user without a password: give --password-file or QUORLOCK_PASSWORD",
            ));
        }
        (None, None) => {}
    }
    if let Some(prefix) = &args.prefix {
        builder = builder.prefix(prefix);
    }
    let ttl = args.ttl.unwrap_or(args.max_ttl.unwrap_or(TTL).min(TTL));
    let mut max_ttl = args.max_ttl.unwrap_or(ttl.max(TTL));
    // A short ttl shortens the default response timeout. Without locks a long response timeout is
    // fine.
    let mut response_timeout = args
        .response_timeout
        .unwrap_or(RESPONSE_TIMEOUT.min(ttl / 5));
    // The ttl must be four response timeouts, and servers reject a ttl above theirs.
    let ttl = if holds {
        ttl
    } else {
        if !args.no_quarantine {
            response_timeout = response_timeout.min(max_ttl / 4);
        }
        ttl.min(max_ttl).max(response_timeout.saturating_mul(4))
    };
    if args.no_quarantine {
        max_ttl = max_ttl.max(ttl);
    }
    builder = builder
        .ttl(ttl)
        .max_ttl(max_ttl)
        .quarantine(!args.no_quarantine)
        .response_timeout(response_timeout)
        .connect_timeout(args.connect_timeout.unwrap_or(CONNECT_TIMEOUT));
    Ok(Settings {
        builder,
        response_timeout,
        ttl,
        max_ttl,
        places,
    })
}

/// The servers of the first of these places that has any.
fn given(args: &NodeArgs) -> Result<Vec<Given>, Failed> {
    if args.nodes.iter().any(|it| has_password(it)) {
        let advice = "put the password into --password-file, or the servers into --nodes-file";
        show::warn(&format!(
            "all users of this machine can see this password: {advice}"
        ));
    }
    let (urls, of) = match &args.nodes_file {
        _ if !args.nodes.is_empty() => (args.nodes.clone(), "--node"),
        Some(file) => return listed(file),
        None => (split(&env::var(NODES).unwrap_or_default()), NODES),
    };
    if urls.is_empty() {
        let reason =
            "no servers: give --node for each Redis server, --nodes-file or QUORLOCK_NODES";
        return Err(Failed::new(Exit::CONFIG, reason));
    }
    Ok(urls
        .into_iter()
        .zip(1..)
        .map(|(url, number)| (url, format!("server {number} of {of}")))
        .collect())
}

/// Whether a URL has a password: user and password before the host, or the sentinels' behind it.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |it| it.1);
    rest.contains("password=")
        || rest
            .rsplit_once('@')
            .is_some_and(|(user, _)| user.contains(':'))
}

fn password(args: &NodeArgs) -> Result<Option<String>, Failed> {
    let Some(file) = &args.password_file else {
        return Ok(env::var("QUORLOCK_PASSWORD")
            .ok()
            .filter(|it| !it.is_empty()));
    };
    let text = read(file)?;
    let first = text.lines().next().unwrap_or_default();
    if first.is_empty() {
        let reason = "the first line is empty, and must be the password";
        return Err(invalid(file, reason));
    }
    Ok(Some(first.to_owned()))
}

/// Without the byte order mark that some editors write.
fn read(file: &Path) -> Result<String, Failed> {
    let text = fs::read_to_string(file).map_err(|err| invalid(file, err))?;
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

fn invalid(file: &Path, reason: impl Display) -> Failed {
    Failed::new(Exit::CONFIG, format!("{}: {reason}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_found() {
        for (url, has) in [
            ("redis://a:7001", false),
            ("redis://user@a", false),
            ("redis://user:secret@a", true),
            ("redis+sentinel://s1,s2/b?sentinel_password=secret", true),
        ] {
            assert_eq!(has_password(url), has, "{url}");
        }
    }
}
