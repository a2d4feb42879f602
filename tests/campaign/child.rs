//! The processes of a campaign, from both sides.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, stdin};

pub(crate) use devnodes::{ChildProcess, say};

const IS_CHILD: &str = "QUORLOCK_CAMPAIGN_CHILD";

/// Runs the ignored test `name`, which begins with [`orders`].
///
/// The calling thread has to outlive the process: it dies with it.
pub(crate) fn start(
    name: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> ChildProcess {
    ChildProcess::start(
        name,
        environment
            .into_iter()
            .chain([(IS_CHILD.into(), "1".into())]),
    )
}

/// In a child process: what the parent tells. `None` if this is no child process, and then there is nothing to do.
pub(crate) fn orders() -> Option<impl Iterator<Item = String> + Send + 'static> {
    env::var_os(IS_CHILD)?;
    // One that is stopped would not notice that its parent is gone.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    Some(BufReader::new(stdin()).lines().map_while(Result::ok))
}
