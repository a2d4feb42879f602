//! Says on a terminal who is in the way while a lock is waited for.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use quorlock::{LockManager, LockState};

use crate::args::Run;
use crate::run::clock;
use crate::run::terminal::say;
use crate::show;

/// Who waits for less long than this need not know for whom.
const FIRST: Duration = Duration::from_secs(1);

/// So often it is looked who it is, and said if it is somebody else. Each look asks all servers.
const LOOKS: Duration = Duration::from_secs(5);

/// Says it until it is dropped.
pub(crate) struct Notice(#[expect(dead_code, reason = "its end is what it is for")] Sender<()>);

/// Begins to look, if there is somebody to tell.
pub(crate) fn notice(run: &Run, locks: &LockManager) -> Option<Notice> {
    let [name] = &run.taking.names[..] else { return None };
    if run.quiet || run.taking.permits.is_some() || !io::stderr().is_terminal() {
        return None;
    }
    let (sender, done) = channel();
    let (name, locks, began) = (name.clone(), locks.clone(), clock::now());
    let look = move || {
        let (mut pause, mut said) = (FIRST, None);
        while done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = LOOKS;
            let Ok(state) = locks.inspect(&name).map(|it| who(it.state())) else { continue };
            let waited = show::time(clock::now().saturating_sub(began));
            if said.as_ref() != Some(&state) && done.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                say(&format!("{name}: waiting for {waited}, {state}"));
                said = Some(state);
            }
        }
    };
    // Without it the wait is as good.
    thread::Builder::new().name("notice".into()).spawn(look).ok().map(|_| Notice(sender))
}

/// Without times: they change all the while.
fn who(state: LockState) -> String {
    match state {
        LockState::Held { holder: Some(holder), .. } => format!("held by {holder}"),
        LockState::Held { holder: None, .. } => "held by another client".to_owned(),
        LockState::Read { .. } => "held by readers".to_owned(),
        LockState::Free | LockState::NoMajority => "for others that came first".to_owned(),
        _ => "no majority of the servers can be asked".to_owned(),
    }
}
