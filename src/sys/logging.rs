//! The log: the only place that calls the user's logger, and never with anything of ours locked.
//!
//! A line that is written with something locked is put together at once and handed to the logger when the thread has
//! unlocked everything. Nothing of the logger is asked before that, not even whether it wants the line: its `enabled` is
//! the user's, too. So the largest level that anybody wants decides whether a line is put together.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use log::Level;
use log::Record;

use crate::sys::aside::{is_ours, tell};
use crate::sys::sync::is_anything_locked;

/// Where in the source a line is written.
#[derive(Clone, Copy)]
pub(crate) struct SourceLocation {
    pub(crate) module: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

/// Hands a line to the log: from a thread of ours on the thread for it, otherwise as soon as this one has nothing locked.
pub(crate) fn write(level: Level, location: SourceLocation, text: fmt::Arguments<'_>) {
    if !is_ours() && !is_anything_locked() {
        hand_over(level, location, text);
        return;
    }
    let text = text.to_string();
    tell(move || hand_over(level, location, format_args!("{text}")));
}

fn hand_over(
    level: Level,
    SourceLocation { module, file, line }: SourceLocation,
    text: fmt::Arguments<'_>,
) {
    let mut record = Record::builder();
    record
        .level(level)
        .target("quorlock")
        .module_path_static(Some(module))
        .file_static(Some(file))
        .line(Some(line));
    let record = record.args(text).build();
    // A logger that panics, because it prints to a pipe that is closed for one, loses its line. It must not end a thread
    // of ours, nor a destructor that gives a lock back. The panic hook has said what there is to say.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let logger = log::logger();
        if logger.enabled(record.metadata()) {
            logger.log(&record);
        }
    }));
}

macro_rules! write_line {
    ($level:expr, $($text:tt)+) => {
        if $level <= ::log::STATIC_MAX_LEVEL && $level <= ::log::max_level() {
            let location =
                $crate::sys::logging::SourceLocation { module: module_path!(), file: file!(), line: line!() };
            $crate::sys::logging::write($level, location, format_args!($($text)+));
        }
    };
}

macro_rules! error {
    ($($text:tt)+) => { $crate::sys::logging::write_line!($crate::sys::logging::Level::Error, $($text)+) };
}

macro_rules! warning {
    ($($text:tt)+) => { $crate::sys::logging::write_line!($crate::sys::logging::Level::Warn, $($text)+) };
}

macro_rules! info {
    ($($text:tt)+) => { $crate::sys::logging::write_line!($crate::sys::logging::Level::Info, $($text)+) };
}

macro_rules! debug {
    ($($text:tt)+) => { $crate::sys::logging::write_line!($crate::sys::logging::Level::Debug, $($text)+) };
}

macro_rules! trace {
    ($($text:tt)+) => { $crate::sys::logging::write_line!($crate::sys::logging::Level::Trace, $($text)+) };
}

pub(crate) use {debug, error, info, trace, warning as warn, write_line};
