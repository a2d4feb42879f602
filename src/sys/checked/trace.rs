//! What happened, for whoever looks into a schedule: `QUORLOCK_TRACE=1` prints it as it happens,
//! with the log.

use std::fmt;
use std::sync::OnceLock;

use super::clock::now;

pub(crate) fn trace(what: fmt::Arguments<'_>) {
    static ON: OnceLock<bool> = OnceLock::new();
    let is_on = || {
        let is_on = std::env::var_os("QUORLOCK_TRACE").is_some();
        if is_on && log::set_logger(&Lines).is_ok() {
            log::set_max_level(log::LevelFilter::Trace);
        }
        is_on
    };
    if *ON.get_or_init(is_on) {
        let name = shuttle::thread::current()
            .name()
            .unwrap_or("main")
            .to_owned();
        eprintln!("{:>12?} {name:<18} {what}", now());
    }
}

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, line: &log::Metadata<'_>) -> bool {
        line.target().starts_with("quorlock")
    }

    fn log(&self, line: &log::Record<'_>) {
        if self.enabled(line.metadata()) {
            trace(*line.args());
        }
    }

    fn flush(&self) {}
}
