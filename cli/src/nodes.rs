//! Which servers are meant, and with which password: from options, variables, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorlock::{Builder, LockManager};
use serde::Deserialize;

use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, duration};
use crate::show;

/// How long a lock lives that nobody extends: a job of a shell need not be quick to hand over.
const TTL: Duration = Duration::from_secs(30);

/// The same for programs that do not say.
const PROGRAMS_TTL: Duration = Duration::from_secs(10);

/// As the help says: jobs are less in a hurry than programs, and machines at night are busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a config file may say. Options and variables count before it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfigFile {
    nodes: Option<Vec<String>>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    prefix: Option<String>,
    ttl: Option<String>,
    max_ttl: Option<String>,
    response_timeout: Option<String>,
    connect_timeout: Option<String>,
}

/// A manager as the options want it, that is yet to be built.
pub(crate) struct Settings {
    pub(crate) builder: Builder,
    pub(crate) response_timeout: Duration,
    pub(crate) ttl: Duration,
    /// The longest ttl of all programs, as far as we were told, and whether we were.
    pub(crate) max_ttl: (Duration, bool),
}

/// For commands that hold locks.
pub(crate) fn with_locks(args: &NodeArgs) -> Result<Settings, Failed> {
    settings(args, None, true, TTL, None)
}

/// The same for commands that hold nothing. They tell the servers of no ttl that is longer than what programs have by default:
/// servers remember the longest, and a vote is gone for so long after a restart.
pub(crate) fn without_locks(args: &NodeArgs) -> Result<Settings, Failed> {
    settings(args, None, false, PROGRAMS_TTL, None)
}

/// The same, judged for the ttl of commands that hold locks. The response timeout is that of programs with the `planned` ttl.
pub(crate) fn for_a_plan(args: &NodeArgs, ttl: Option<Duration>) -> Result<Settings, Failed> {
    // A shorter one is no ttl.
    settings(args, None, false, TTL, ttl.map(|it| it.max(Duration::from_millis(100))))
}

/// The same for commands that only look at locks: they write nothing, and nobody needs to have a vote.
pub(crate) fn for_a_look(args: &NodeArgs) -> Result<Builder, Failed> {
    without_locks(args).map(|it| it.builder)
}

/// The same for other servers than those of the options.
pub(crate) fn at(args: &NodeArgs, urls: Vec<String>) -> Result<Builder, Failed> {
    settings(args, Some(urls), false, TTL, None).map(|it| it.builder)
}

/// The URLs of the servers that the options mean.
pub(crate) fn in_use(args: &NodeArgs) -> Result<Vec<String>, Failed> {
    urls(args, config(args)?.nodes)
}

/// The URLs in a file with a server in each line.
pub(crate) fn listed(file: &Path) -> Result<Vec<String>, Failed> {
    read(file).map(|it| lines(&it))
}

fn settings(
    args: &NodeArgs,
    others: Option<Vec<String>>,
    holds: bool,
    default: Duration,
    planned: Option<Duration>,
) -> Result<Settings, Failed> {
    let file = config(args)?;
    let urls = others.map_or_else(|| urls(args, file.nodes), Ok)?;
    let mut builder = LockManager::builder(urls).owner_label(Some("quorlock"));
    let user = args.user.as_deref().or(file.user.as_deref());
    match password(args, file.password_file.as_deref())? {
        Some(password) => builder = builder.credentials(user, &password),
        None if user.is_some() => {
            return Err(Failed::new(Exit::CONFIG, "a user and no password: give --password-file or QUORLOCK_PASSWORD"));
        }
        None => {}
    }
    if let Some(prefix) = args.prefix.as_deref().or(file.prefix.as_deref()) {
        builder = builder.prefix(prefix);
    }
    let max_ttl = time("max-ttl", args.max_ttl, file.max_ttl)?;
    let ttl = time("ttl", args.ttl, file.ttl)?.unwrap_or(default);
    if let Some(max_ttl) = max_ttl {
        builder = builder.max_ttl(max_ttl);
    }
    // A short ttl alone is no mistake, nor is a long response timeout where nothing is held.
    let response_timeout = time("response-timeout", args.response_timeout, file.response_timeout)?;
    let response_timeout = response_timeout.unwrap_or(RESPONSE_TIMEOUT.min(planned.unwrap_or(ttl) / 5));
    let fits = ttl.max(response_timeout.saturating_mul(4)).min(max_ttl.unwrap_or(Duration::MAX));
    let ttl = if holds { ttl } else { fits };
    let connect_timeout = time("connect-timeout", args.connect_timeout, file.connect_timeout)?;
    builder = builder.ttl(ttl).quarantine(!args.no_quarantine);
    builder = builder.response_timeout(response_timeout).connect_timeout(connect_timeout.unwrap_or(CONNECT_TIMEOUT));
    let max_ttl = max_ttl.map_or((ttl.max(PROGRAMS_TTL), false), |it| (it, true));
    Ok(Settings { builder, response_timeout, ttl, max_ttl })
}

/// The servers: of the first of these places that names any.
fn urls(args: &NodeArgs, of_config: Option<Vec<String>>) -> Result<Vec<String>, Failed> {
    let given = Some(args.nodes.clone()).filter(|it: &Vec<String>| !it.is_empty());
    let listed = || args.list.as_deref().map(quorlock::Node::split_urls).filter(|it| !it.is_empty());
    if given.iter().flatten().any(|it| has_password(it)) {
        let advice = "put the password into --password-file, or the servers into --nodes-file";
        show::warn(&format!("everybody on this machine can see the options of a command: {advice}"));
    }
    let urls = match given.or_else(listed) {
        Some(urls) => urls,
        None => match &args.nodes_file {
            Some(file) => lines(&read(file)?),
            None => of_config.unwrap_or_default(),
        },
    };
    if urls.is_empty() {
        return Err(Failed::new(
            Exit::CONFIG,
            "no nodes: give --node for each Redis server, QUORLOCK_NODES, --nodes-file or --config",
        ));
    }
    Ok(urls)
}

/// As URLs have it: user and password before the host, or the password of sentinels behind it.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |it| it.1);
    rest.contains("password=") || rest.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// Lines that are neither empty nor comments.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#')).map(str::to_owned).collect()
}

fn password(args: &NodeArgs, of_config: Option<&Path>) -> Result<Option<String>, Failed> {
    let file = args.password_file.as_deref();
    if let Some(file) = file.or(of_config.filter(|_| args.password.is_none())) {
        let text = read(file)?;
        let first = text.lines().next().unwrap_or_default();
        if first.is_empty() {
            return Err(Failed::new(Exit::CONFIG, format!("{}: no password in its first line", file.display())));
        }
        return Ok(Some(first.to_owned()));
    }
    Ok(args.password.clone())
}

fn config(args: &NodeArgs) -> Result<ConfigFile, Failed> {
    let Some(file) = &args.config else { return Ok(ConfigFile::default()) };
    // Its message shows the line, which has no password: there is no option for one.
    toml::from_str(&read(file)?).map_err(|err| Failed::new(Exit::CONFIG, format!("{}: {err}", file.display())))
}

fn time(option: &str, given: Option<Duration>, of_config: Option<String>) -> Result<Option<Duration>, Failed> {
    let read = |it: String| duration(&it).map_err(|err| Failed::new(Exit::CONFIG, format!("{option}: {err}")));
    if given.is_some() { Ok(given) } else { of_config.map(read).transpose() }
}

fn read(file: &Path) -> Result<String, Failed> {
    fs::read_to_string(file).map_err(|err| Failed::new(Exit::CONFIG, format!("{}: {err}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_among_the_options_are_seen_wherever_they_stand() {
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
