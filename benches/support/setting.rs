//! How much to run, and on what; and what is to come out.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use super::Result;
use super::chart::{self, Bar, Chart};
use super::contenders::OURS;
use super::runs::Runs;
use super::stats::num;

/// What was asked for on the command line.
pub(crate) struct Setting {
    /// Seconds, not minutes: to see that everything still runs.
    pub(crate) quick: bool,
    /// All scenarios so far: where their numbers are, and where they are meant to be.
    verdicts: RefCell<Vec<String>>,
    charts: RefCell<Vec<Chart>>,
}

/// Where a number is meant to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Setting {
    pub(crate) fn new(quick: bool) -> Self {
        Self {
            quick,
            verdicts: RefCell::default(),
            charts: RefCell::default(),
        }
    }

    /// `full`, or `quick` if that was asked for.
    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// How many runs there are, of whose results the medians are shown.
    pub(crate) fn runs(&self) -> usize {
        self.size(3, 1)
    }

    /// Prints the heading of what comes next.
    pub(crate) fn begin(&self, what: &str) {
        println!("\n{what}");
        self.verdicts.borrow_mut().push(what.to_owned());
    }

    /// Prints what a number is, where it is meant to be, and whether it is there.
    pub(crate) fn judge(&self, target: Target, what: &str, value: f64, digits: usize) {
        let (bound, met) = match target {
            Target::AtMost(limit) => (format!("at most {limit}"), value <= limit),
            Target::AtLeast(limit) => (format!("at least {limit}"), limit <= value),
        };
        let verdict = if met { "met" } else { "MISSED" };
        let line = format!(
            "  target: {what}: {}, meant to be {bound}: {verdict}",
            num(value, digits)
        );
        println!("{line}");
        self.verdicts.borrow_mut().push(line);
    }

    /// Keeps the ratios of all contenders to the one with number `base`, for [`write_charts`](Setting::write_charts).
    pub(crate) fn chart<T>(
        &self,
        title: String,
        runs: &Runs<T>,
        base: usize,
        number: impl Fn(&T) -> f64,
    ) {
        let bars = runs.names().map(|(who, name)| {
            let ratio = runs.ratio(who, base, &number);
            Bar {
                name,
                ratio,
                is_ours: who == OURS,
            }
        });
        self.charts.borrow_mut().push(Chart::new(title, bars));
    }

    /// Writes these ratios as bars to an SVG file.
    ///
    /// # Errors
    ///
    /// If no scenario had any, or the file cannot be written.
    pub(crate) fn write_charts(&self, file: &Path) -> Result {
        let charts = self.charts.borrow();
        if charts.is_empty() {
            return Err("no chart: run `uncontended` or `threads`".into());
        }
        // Cargo runs a bench in its package's folder.
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        fs::write(&file, chart::svg(&charts))
            .map_err(|err| format!("{}: {err}", file.display()).into())
    }

    /// Prints all of that once more, without what had no target.
    pub(crate) fn print_verdicts(&self) {
        let verdicts = self.verdicts.borrow();
        println!("\nall targets");
        for (line, next) in verdicts
            .iter()
            .zip(verdicts.iter().skip(1).map(Some).chain([None]))
        {
            let is_target = |it: &str| it.starts_with(' ');
            if is_target(line) || next.is_some_and(|it| is_target(it)) {
                println!("{line}");
            }
        }
    }
}
