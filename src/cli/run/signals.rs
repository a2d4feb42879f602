//! What happens while a command runs or a lock is waited for.

use std::fs;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use quorlock::CancelHandle;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};

/// They are the command's. Before it runs they end us, as they do by default.
const FORWARDED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// One that is to be forwarded.
    Signal(i32),
    /// We should stop.
    Stop,
    /// A process of ours has ended or has stopped.
    Child,
    /// The lock was lost.
    Lost,
}

/// The events, and what makes them.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) receiver: Receiver<Event>,
    pub(crate) sender: Sender<Event>,
    handle: Handle,
}

/// From now on signals are events, and end the waits of `cancel`.
pub(crate) fn listen(cancel: &CancelHandle) -> io::Result<Events> {
    let (sender, receiver) = channel();
    // What was ignored when we were started stays so, as for a command of `nohup`.
    let wanted = FORWARDED.into_iter().filter(|it| !is_ignored(*it)).chain([SIGCHLD]);
    let mut signals = Signals::new(wanted)?;
    let (handle, cancel, told) = (signals.handle(), cancel.clone(), sender.clone());
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGCHLD => Event::Child,
                SIGTSTP => Event::Stop,
                signal => Event::Signal(signal),
            };
            // Sent first: who finds the wait cancelled finds the reason.
            let _ = told.send(event);
            if matches!(event, Event::Signal(_)) {
                cancel.cancel();
            }
        }
    })?;
    Ok(Events { receiver, sender, handle })
}

impl Events {
    /// From now on nobody stops us at a terminal: a lock that nobody extends expires.
    pub(crate) fn hold_on(&self) -> io::Result<()> {
        self.handle.add_signal(SIGTSTP)
    }

    /// The first signal that came, if one did.
    pub(crate) fn signal(&self) -> Option<u8> {
        let signal = |it| if let Event::Signal(number) = it { u8::try_from(number).ok() } else { None };
        self.receiver.try_iter().find_map(signal)
    }
}

/// Whether this process ignores a signal, as one that `nohup` has started does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    is_in(ignored(), signal)
}

/// The signals that this process ignores, as bits; none where the system does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    bits.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(signals: u64, signal: i32) -> bool {
    u32::try_from(signal - 1).ok().and_then(|it| signals.checked_shr(it)).is_some_and(|it| it & 1 == 1)
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
