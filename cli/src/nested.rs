//! Calls of quorlock by the command of `quorlock run`: the lock that they take may be that of the
//! call around them, which waits for the command. So they would wait forever.
//!
//! Not covered: permits.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::{env, fs};

use crate::exit::{Exit, Failed};
use crate::options::{NODES, NodeArgs};
use crate::taking::Taking;
use crate::{clock, lease};

/// The locks of this call and of those around it, as lines for its lease. Fails if a surrounding
/// call has a lock that is to be taken.
pub(crate) fn locks(args: &NodeArgs, taking: &Taking) -> Result<String, Failed> {
    let mut locks = surrounding();
    for name in taking.names.iter().filter(|_| taking.permits.is_none()) {
        let [alone, shared] = ["lock", "shared"].map(|kind| line(args, kind, name));
        let is_held = |it| it == alone || (it == shared && !taking.is_shared());
        if locks.lines().any(is_held) {
            let outer = locks.lines().filter_map(|it| it.splitn(3, ' ').last());
            let shown = name.escape_debug().to_string();
            let chain = outer.chain([&*shown]).collect::<Vec<_>>().join(" > ");
            let reason = format!(
                "{shown}: already held by the command around this one ({chain}): take it once"
            );
            return Err(Failed::new(Exit::CONFIG, reason));
        }
        let own = if taking.is_shared() { shared } else { alone };
        locks = locks + &own + "\n";
    }
    Ok(locks)
}

/// Nothing if the surrounding call has ended or lost its lock.
fn surrounding() -> String {
    let text = lease::surrounding().and_then(|it| fs::read_to_string(it).ok());
    text.filter(|it| lease::time(it).is_some_and(|it| clock::now() < it))
        .and_then(|it| {
            Some(
                it.split_once('\n')?
                    .1
                    .rsplit_once(lease::MARK)?
                    .0
                    .to_owned(),
            )
        })
        .unwrap_or_default()
}

/// Another lock of this name, on other servers, has another line.
fn line(args: &NodeArgs, kind: &str, name: &str) -> String {
    let mut place = DefaultHasher::new();
    let of_variable = env::var_os(NODES);
    (&args.nodes, &args.nodes_file, of_variable, &args.prefix).hash(&mut place);
    format!("{kind} {:x} {}", place.finish(), name.escape_debug())
}
