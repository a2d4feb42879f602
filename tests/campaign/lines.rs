//! What a client's log warns of, and why calls failed that should not have: told at its end.

use std::fmt::Display;
use std::sync::Mutex;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::child::say;

/// As many are kept of each client. The first are those that say most.
const KEPT: usize = 200;
const BEGIN: &str = "line ";

struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn && metadata.target().starts_with("quorlock")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            add(format_args!("{} {}", record.level(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// In a client: listens to the log from now on.
pub(crate) fn listen() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(LevelFilter::Warn);
}

pub(crate) fn add(line: impl Display) {
    let mut lines = LINES.0.lock().unwrap();
    if lines.len() < KEPT {
        lines.push(line.to_string().replace('\n', "; "));
    }
}

/// Tells the parent all of them.
pub(crate) fn tell() {
    LINES
        .0
        .lock()
        .unwrap()
        .iter()
        .for_each(|it| say(format_args!("{BEGIN}{it}")));
}

/// A line, if that is what a client has said.
pub(crate) fn read(said: &str) -> Option<&str> {
    said.strip_prefix(BEGIN)
}
