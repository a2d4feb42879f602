//! Waits for a lock and reports its holder.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use quorlock::error::NodeCheck;
use quorlock::inspection::{Inspection, LockState};
use quorlock::{CancelHandle, LockManager};

use crate::exit::Failed;
use crate::stderr::say;
use crate::taking::{Held, Taking};
use crate::{clock, report, show};

/// Shorter waits are not reported.
const FIRST: Duration = Duration::from_secs(1);

/// Each look asks all servers.
const LOOKS: Duration = Duration::from_secs(5);

/// Takes the lock, and reports the wait.
pub(crate) fn take(
    taking: &Taking,
    locks: &LockManager,
    cancel: &CancelHandle,
) -> Result<Held, Failed> {
    let began = clock::now();
    let notice = notice(taking, locks);
    let held = taking.take(locks, cancel)?;
    drop(notice);
    if taking.verbose {
        let (token, waited) = (held.token, show::time(clock::now() - began));
        say(&format!(
            "{}: held with token {token}, after {waited}",
            report::shown(taking.names.join(", ").as_bytes())
        ));
    }
    Ok(held)
}

/// Reports until it is dropped.
struct Notice(#[expect(dead_code, reason = "its end is what it is for")] Sender<()>);

/// Reports the holder after a second and when the wait has doubled; at a terminal also when the
/// holder changes.
fn notice(taking: &Taking, locks: &LockManager) -> Option<Notice> {
    let is_terminal = io::stderr().is_terminal();
    if taking.quiet || !(is_terminal || taking.verbose) {
        return None;
    }
    let (sender, done) = channel();
    let (names, permits) = (taking.names.clone(), taking.permits);
    let shown = report::shown(names.join(", ").as_bytes());
    let (locks, began) = (locks.clone(), clock::now());
    let look = move || {
        let (mut pause, mut said, mut again) = (FIRST, Vec::new(), Duration::ZERO);
        let are_named = permits.is_none() && 1 < names.len();
        while done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = LOOKS;
            let found: Result<Vec<_>, _> = names
                .iter()
                .map(|name| report::of(&locks, name, permits))
                .collect();
            let Ok(found) = found.map(|it| it.concat()) else {
                continue;
            };
            let (states, holders) = in_the_way(&found, are_named);
            let waited = clock::now().saturating_sub(began);
            let is_due = again <= waited || (is_terminal && said != holders);
            if is_due && done.try_recv() != Err(TryRecvError::Disconnected) {
                let why = if states.is_empty() {
                    unheld(&locks.check_nodes())
                } else {
                    show::some(&states)
                };
                let time = show::time(waited);
                say(&format!("{shown}: waiting for {time}, {why}"));
                (said, again) = (holders, waited * 2);
            }
        }
    };
    // A failure costs the reports only.
    thread::Builder::new()
        .name("notice".into())
        .spawn(look)
        .ok()
        .map(|_| Notice(sender))
}

/// Why a lock that nobody holds is not ours.
fn unheld(rows: &[NodeCheck]) -> String {
    let votes = rows.iter().filter(|row| row.failure.is_none()).count();
    let left = rows.iter().filter_map(report::quarantine).map(|it| it.0);
    match left.max() {
        Some(left) if votes <= rows.len() / 2 => {
            let (left, cure) = (show::time(left), report::cure(rows));
            format!("servers in quarantine: no vote for {left} more{cure}")
        }
        _ => "others came first".to_owned(),
    }
}

/// The states of locks that are not free, and their holders.
fn in_the_way(found: &[Inspection], are_named: bool) -> (Vec<String>, Vec<Option<Arc<str>>>) {
    let (mut states, mut holders) = (Vec::new(), Vec::new());
    for it in found {
        let state = it.state();
        holders.push(match &state {
            LockState::Free | LockState::NoMajority => continue,
            LockState::Held { holder, .. } => holder.clone(),
            _ => None,
        });
        let name = if are_named {
            report::name(it) + " "
        } else {
            String::new()
        };
        states.push(format!("{name}{state}"));
    }
    (states, holders)
}
