//! Signals, received by a thread.

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;

use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};

/// Signals that end a program.
pub(crate) const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// From now on a thread calls `tell` for each of `signals`. Signals ignored at our start stay ignored, as for a command of
/// `nohup`, but SIGCHLD. None is blocked any more, here and in processes that this thread starts.
pub(crate) fn on_each(
    signals: impl IntoIterator<Item = i32>,
    mut tell: impl FnMut(i32) + Send + 'static,
) -> io::Result<Handle> {
    let heard = |it: &i32| *it == SIGCHLD || !is_ignored(*it);
    let mut signals = Signals::new(signals.into_iter().filter(heard))?;
    SigSet::all().thread_unblock()?;
    if !is_ignored(SIGXFSZ) {
        // An error of the write in its place.
        flag::register(SIGXFSZ, Arc::default())?;
    }
    let handle = signals.handle();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals.forever().for_each(&mut tell))?;
    Ok(handle)
}

/// The status of this process before Rust's runtime, which ignores SIGPIPE.
#[ctor::ctor]
static AT_START: String = fs::read_to_string("/proc/self/status").unwrap_or_default();

/// Whether our starter ignores a signal.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // Without /proc no signal counts as ignored.
    let bits = AT_START.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    bits.and_then(|it| u64::from_str_radix(it.trim(), 16).ok())
        .is_some_and(|it| is_in(it, signal))
}

fn is_in(signals: u64, signal: i32) -> bool {
    u32::try_from(signal - 1)
        .ok()
        .and_then(|it| signals.checked_shr(it))
        .is_some_and(|it| it & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_one() {
        assert!(is_in(0b1, SIGHUP) && is_in(0b10, SIGINT) && is_in(1 << 14, SIGTERM));
        assert!(!is_in(0b1, SIGINT) && !is_in(u64::MAX, 65) && !is_in(u64::MAX, 0));
    }
}
