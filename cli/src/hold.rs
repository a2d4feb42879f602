//! `quorlock hold`: holds a lock and reports its events.

use std::io::{self, Read};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use quorlock::{CancelHandle, Lost, ReleaseError};
use serde_json::{Value, json};

use crate::exit::{Exit, Failed};
use crate::holding::Hold;
use crate::options::NodeArgs;
use crate::screen::{self, PATIENCE};
use crate::taking::Held;
use crate::{nested, nodes, show, signals, waiting};

/// The interval of checks for an extension.
const LOOKS: Duration = Duration::from_millis(250);

/// The end of the wait or of the hold.
enum End {
    Stdin,
    Signal(u8),
    Lost(Lost),
}

/// The status is 0 if the lock was held and released.
pub(crate) fn run(args: &NodeArgs, hold: &Hold) -> Result<ExitCode, Failed> {
    nested::locks(args, &hold.taking)?;
    let locks = nodes::with_locks(args)?.build()?;
    let (cancel, (ends, ended)) = (CancelHandle::new(), channel());
    listen(hold, &cancel, &ends)?;
    let held = match waiting::take(&hold.taking, &locks, &cancel) {
        Ok(held) => held,
        Err(failed) => {
            // What ended the wait counts, whatever the error.
            let failed = match ended.try_recv() {
                Ok(End::Signal(number)) => {
                    Failed::new(Exit::signal(number), "a signal ended the wait")
                }
                Ok(End::Stdin) => Failed::new(
                    Exit::HELD,
                    "stdin ended during the wait: give --until-signal to hold until a signal comes",
                ),
                _ => failed,
            };
            return hold.taking.end(failed, hold.json);
        }
    };
    held.hold
        .on_lost(move |lost| drop(ends.send(End::Lost(lost))));
    let mut written = say(hold, event(&held, "held"));
    let end = wait(hold, &held, &ended, &mut written)?;
    // A loss found by the release counts as well.
    let lost = match end {
        End::Lost(lost) => Some(lost),
        End::Stdin | End::Signal(_) => match held.hold.release() {
            Err(ReleaseError::Lost(lost)) => Some(lost),
            // Unconfirmed keys expire.
            Ok(_) | Err(_) => None,
        },
    };
    let (event, status) = match lost {
        Some(lost) => (
            json!({ "quorlock": 1, "event": "lost", "reason": reason(&lost) }),
            Exit::LOST.code(),
        ),
        None => (
            json!({ "quorlock": 1, "event": "released" }),
            ExitCode::SUCCESS,
        ),
    };
    // In their order.
    let _ = written.recv_timeout(PATIENCE);
    if let Ok(written) = say(hold, event).recv_timeout(PATIENCE) {
        written?;
    }
    Ok(status)
}

/// From now on signals and the end of stdin end the wait and the hold.
fn listen(hold: &Hold, cancel: &CancelHandle, ends: &Sender<End>) -> Result<(), Failed> {
    let (on_signal, told) = (cancel.clone(), ends.clone());
    let tell = move |signal, _| {
        let _ = told.send(End::Signal(u8::try_from(signal).unwrap_or(0)));
        on_signal.cancel();
    };
    signals::on_each(signals::ENDING, tell)?;
    if hold.until_signal || is_in_background(&io::stdin()) {
        return Ok(());
    }
    if has_ended(&io::stdin()) {
        let reason = "stdin has ended already: give --until-signal to hold until a signal comes";
        return Err(Failed::new(Exit::USAGE, reason));
    }
    let (cancel, ends) = (cancel.clone(), ends.clone());
    let read = move || {
        // The data is ignored. An error ends the hold as well.
        let mut buffer = [0; 4096];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Err(err) if err.kind() != io::ErrorKind::Interrupted => break,
                Ok(_) | Err(_) => {}
            }
        }
        let _ = ends.send(End::Stdin);
        cancel.cancel();
    };
    thread::Builder::new().name("stdin".into()).spawn(read)?;
    Ok(())
}

/// Whether stdin is at its end, as a rule by mistake. A read byte is lost.
fn has_ended(stdin: &io::Stdin) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec::default();
    let ready = poll(&mut [PollFd::new(stdin, PollFlags::IN)], Some(&now)).is_ok_and(|it| it != 0);
    ready && matches!(stdin.lock().read(&mut [0]), Ok(0))
}

/// Whether stdin is a terminal and we are in its background: a read would stop us, and the lock
/// would expire.
fn is_in_background(stdin: &io::Stdin) -> bool {
    rustix::termios::tcgetpgrp(stdin).is_ok_and(|it| it != rustix::process::getpgrp())
}

/// Waits for the end, and reports extensions to programs. Those behind an event that is still
/// unwritten are left out.
fn wait(
    hold: &Hold,
    held: &Held,
    ended: &Receiver<End>,
    written: &mut Written,
) -> Result<End, Failed> {
    let mut before = held.hold.remaining();
    loop {
        match ended.recv_timeout(LOOKS) {
            Ok(end) => return Ok(end),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failed::new(Exit::INTERNAL, "a thread has ended"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let unwritten = written.try_recv();
        // Only an extension makes the time longer.
        let now = held.hold.remaining();
        if hold.json && before < now && !matches!(unwritten, Err(TryRecvError::Empty)) {
            *written = say(hold, event(held, "renewed"));
        }
        if let Ok(written) = unwritten {
            written?;
        }
        before = now;
    }
}

/// The reason without its lead, which the event has already.
fn reason(lost: &Lost) -> String {
    let text = lost.reason.to_string();
    text.strip_prefix("lock lost: ").unwrap_or(&text).to_owned()
}

fn event(held: &Held, what: &str) -> Value {
    let (shared, token) = (held.is_shared, held.token);
    json!({
        "quorlock": 1, "event": what,
        "token": (!shared).then_some(token), "last_writer": shared.then_some(token),
        "slot": held.slot, "left": held.hold.remaining().as_secs_f64(),
    })
}

/// The result of a write.
type Written = Receiver<Result<(), Failed>>;

fn say(hold: &Hold, event: Value) -> Written {
    let words = ["event", "token", "last_writer", "reason"].map(|it| &event[it]);
    let words = words.into_iter().filter(|it| !it.is_null());
    let word = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
    let slot = event["slot"].as_u64().map(|it| format!("slot {it}"));
    let line = words.map(word).chain(slot).collect::<Vec<_>>().join(" ");
    let line = if hold.json { event.to_string() } else { line };
    screen::aside(move || show::say(&line))
}
