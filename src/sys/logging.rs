//! The log: macros for its lines, and the only place that calls the user's logger.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use log::Level;
use log::{Metadata, Record};

/// Where in the source a line is written.
pub(crate) struct SourceLocation {
    pub(crate) module: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

/// Calls the logger. Only for the thread that calls the user's code.
pub(crate) fn write(level: Level, location: SourceLocation, text: &str) {
    // A panicking logger loses its line, and not the lines behind it. The panic hook has reported
    // it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let logger = log::logger();
        let metadata = Metadata::builder().level(level).target("quorlock").build();
        if logger.enabled(&metadata) {
            logger.log(
                &Record::builder()
                    .metadata(metadata)
                    .module_path_static(Some(location.module))
                    .file_static(Some(location.file))
                    .line(Some(location.line))
                    .args(format_args!("{text}"))
                    .build(),
            );
        }
    }));
}

/// Adds a line to a journal, if the largest enabled level includes it: the logger's own `enabled`
/// is the user's code as well.
macro_rules! write_line {
    ($journal:expr, $level:expr, $($text:tt)+) => {
        if $level <= ::log::STATIC_MAX_LEVEL && $level <= ::log::max_level() {
            let location = $crate::sys::logging::SourceLocation {
                module: module_path!(),
                file: file!(),
                line: line!(),
            };
            $journal.log($level, location, format!($($text)+));
        }
    };
}

macro_rules! error {
    ($($line:tt)+) => { $crate::sys::logging::at_level!(Error, $($line)+) };
}

macro_rules! warning {
    ($($line:tt)+) => { $crate::sys::logging::at_level!(Warn, $($line)+) };
}

macro_rules! info {
    ($($line:tt)+) => { $crate::sys::logging::at_level!(Info, $($line)+) };
}

macro_rules! debug {
    ($($line:tt)+) => { $crate::sys::logging::at_level!(Debug, $($line)+) };
}

macro_rules! trace {
    ($($line:tt)+) => { $crate::sys::logging::at_level!(Trace, $($line)+) };
}

macro_rules! at_level {
    ($level:ident, $journal:expr, $($text:tt)+) => {
        $crate::sys::logging::write_line!($journal, $crate::sys::logging::Level::$level, $($text)+)
    };
}

pub(crate) use {at_level, debug, error, info, trace, warning as warn, write_line};
