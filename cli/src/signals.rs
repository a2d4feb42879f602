//! Signals, received by a thread.

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;

use nix::sys::signal::SigSet;
use nix::unistd::getppid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};

/// Signals that end a program.
pub(crate) const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// From now on a thread calls `tell` for each of `signals`, with true for one of init or our
/// parent, as from service managers. Signals ignored at our start stay ignored, as for a command of
/// `nohup`, but SIGCHLD. None is blocked any more, here and in processes that this thread starts.
pub(crate) fn on_each(
    signals: impl IntoIterator<Item = i32>,
    mut tell: impl FnMut(i32, bool) + Send + 'static,
) -> io::Result<Handle> {
    let heard = |it: &i32| *it == SIGCHLD || !is_ignored(*it);
    let mut signals = SignalsInfo::<WithOrigin>::new(signals.into_iter().filter(heard))?;
    SigSet::all().thread_unblock()?;
    if !is_ignored(SIGXFSZ) {
        // An error of the write in its place.
        flag::register(SIGXFSZ, Arc::default())?;
    }
    let handle = signals.handle();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for it in signals.forever() {
                let sender = it.process.map_or(0, |it| it.pid);
                tell(it.signal, [1, getppid().as_raw()].contains(&sender));
            }
        })?;
    Ok(handle)
}

/// The status of this process before Rust's runtime, which ignores SIGPIPE.
#[ctor::ctor]
static AT_START: String = fs::read_to_string("/proc/self/status").unwrap_or_default();

/// Whether our starter ignores a signal.
pub(crate) fn is_ignored(signal: i32) -> bool {
    is_in_row(&AT_START, "SigIgn:", signal)
}

/// Whether a row of a process' status has a signal. Without /proc none has.
pub(crate) fn is_in_row(status: &str, row: &str, signal: i32) -> bool {
    let bits = status.lines().find_map(|it| it.strip_prefix(row));
    bits.and_then(|it| u64::from_str_radix(it.trim(), 16).ok())
        .is_some_and(|it| it >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_bits_are_counted_from_one() {
        let status = "SigPnd:\t0000000000000003\nShdPnd:\t8000000000004001\nSigIgn:\t0\n";
        let pending = (1..=64).filter(|it| is_in_row(status, "ShdPnd:", *it));
        assert_eq!(pending.collect::<Vec<_>>(), [SIGHUP, SIGTERM, 64]);
        assert!(!is_in_row("", "ShdPnd:", SIGTERM));
    }
}
