//! Events during a wait and while a command runs.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use quorlock::CancelHandle;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Handle;

use crate::signals::{is_ignored, on_each};

/// Forwarded to the command. Before it runs they end the wait.
const FORWARDED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// To be forwarded; with true a signal of what may be a service manager.
    Signal(i32, bool),
    /// Ctrl-Z.
    Stop,
    /// A child process has ended or stopped.
    Child,
    /// The lock was lost.
    Lost,
}

/// The events and their source.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) receiver: Receiver<Event>,
    pub(crate) sender: Sender<Event>,
    handle: Handle,
}

/// From now on signals are events, and end the waits of `cancel`.
pub(crate) fn listen(cancel: &CancelHandle) -> io::Result<Events> {
    let (sender, receiver) = channel();
    let (cancel, told) = (cancel.clone(), sender.clone());
    let handle = on_each(
        FORWARDED.into_iter().chain([SIGCHLD]),
        move |signal, of_manager| {
            let event = match signal {
                SIGCHLD => Event::Child,
                SIGTSTP => Event::Stop,
                signal => Event::Signal(signal, of_manager),
            };
            // Sent first: after a cancelled wait, the reason is there.
            let _ = told.send(event);
            if matches!(event, Event::Signal(..)) {
                cancel.cancel();
            }
        },
    )?;
    Ok(Events {
        receiver,
        sender,
        handle,
    })
}

impl Events {
    /// From now on Ctrl-Z does not stop us: the lock would expire.
    pub(crate) fn hold_on(&self) -> io::Result<()> {
        if is_ignored(SIGTSTP) {
            return Ok(());
        }
        self.handle.add_signal(SIGTSTP)
    }

    /// The first signal, if any.
    pub(crate) fn signal(&self) -> Option<u8> {
        self.receiver.try_iter().find_map(|it| match it {
            Event::Signal(number, _) => u8::try_from(number).ok(),
            _ => None,
        })
    }
}
