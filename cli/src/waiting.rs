//! Waits for a lock and reports its holder.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use quorlock::error::NodeCheck;
use quorlock::inspection::{Inspection, LockState};
use quorlock::{CancelHandle, LockManager};

use crate::exit::Failed;
use crate::stderr::say;
use crate::taking::{Held, Taking};
use crate::{clock, seen, show};

/// Shorter waits are not reported.
const FIRST: Duration = Duration::from_secs(1);

/// Each look asks all servers.
const LOOKS: Duration = Duration::from_secs(5);

/// The most names in a report.
const NAMED: usize = 5;

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
            seen::shown(taking.names.join(", ").as_bytes())
        ));
    }
    Ok(held)
}

/// Reports until it is dropped.
struct Notice(#[expect(dead_code, reason = "its end is what it is for")] Sender<()>);

/// Reports the holder after a second and when the wait has doubled; at a terminal also when the holder changes.
fn notice(taking: &Taking, locks: &LockManager) -> Option<Notice> {
    let is_terminal = io::stderr().is_terminal();
    if taking.quiet || !(is_terminal || taking.verbose) {
        return None;
    }
    let (sender, done) = channel();
    let (names, permits) = (taking.names.clone(), taking.permits);
    let shown = seen::shown(names.join(", ").as_bytes());
    let (locks, began) = (locks.clone(), clock::now());
    let look = move || {
        let (mut pause, mut said, mut again) = (FIRST, String::new(), Duration::ZERO);
        while done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = LOOKS;
            let found: Result<Vec<_>, _> = names
                .iter()
                .map(|name| seen::of(&locks, name, permits))
                .collect();
            let Ok(found) = found.map(|it| it.concat()) else {
                continue;
            };
            let (who, until) = in_the_way(&found, permits.is_some())
                .unwrap_or_else(|| unheld(&locks.check_nodes()));
            let waited = clock::now().saturating_sub(began);
            let is_due = again <= waited || (is_terminal && said != who);
            if is_due && done.try_recv() != Err(TryRecvError::Disconnected) {
                say(&format!(
                    "{}: waiting for {}, {who}{until}",
                    shown,
                    show::time(waited)
                ));
                (said, again) = (who, waited * 2);
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
fn unheld(rows: &[NodeCheck]) -> (String, String) {
    let votes = rows.iter().filter(|row| row.failure.is_none()).count();
    let left = rows.iter().filter_map(seen::quarantine).map(|it| it.0);
    match left.max() {
        Some(left) if votes <= rows.len() / 2 => {
            let cure = seen::cure(rows);
            let rest = format!(": no vote for {} more{cure}", show::time(left));
            ("servers in quarantine".to_owned(), rest)
        }
        _ => ("others came first".to_owned(), String::new()),
    }
}

/// The holders, and the time until their locks expire. `None` if nobody holds a lock.
fn in_the_way(found: &[Inspection], are_permits: bool) -> Option<(String, String)> {
    let (mut who, mut until, mut unknown) = (Vec::new(), None, false);
    for it in found {
        let (holder, left) = match it.state() {
            LockState::Held { holder, left } => (seen::by(&holder).to_owned(), left),
            LockState::Read { left, .. } => ("readers".to_owned(), left),
            LockState::Free | LockState::NoMajority => continue,
            _ => {
                unknown = true;
                continue;
            }
        };
        let name = if found.len() == 1 || are_permits {
            String::new()
        } else {
            format!("{} ", seen::name(it))
        };
        who.push(format!("{name}held by {holder}"));
        // One permit is enough; of several locks all are needed.
        let left = left.unwrap_or(Duration::MAX);
        until = Some(until.map_or(left, |it: Duration| {
            if are_permits {
                it.min(left)
            } else {
                it.max(left)
            }
        }));
    }
    let text = match who.len() {
        0 if unknown => "no majority of the servers answers".to_owned(),
        0 => return None,
        _ => show::some(&who, NAMED),
    };
    let until = until.map(|it| match it {
        Duration::MAX => ", without expiry".to_owned(),
        left => format!(", expires in {} unless extended", show::time(left)),
    });
    Some((text, until.unwrap_or_default()))
}
