//! What is said on stdout.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use crate::exit::{Exit, Failed};

/// Says a line, or several.
pub(crate) fn say(text: &str) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|err| Failed::new(Exit::INTERNAL, format!("stdout: {err}")))
}

/// Says a line on stderr. Nothing is lost where nobody reads it.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "quorlock: {text}");
}

/// A table without lines, that fits the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(header.to_vec());
    table
}

/// Several things in a row: so many of them, and how many more there are.
pub(crate) fn some(things: &[String], most: usize) -> String {
    match things.split_at_checked(most) {
        Some((shown, rest)) if !rest.is_empty() => format!("{}, and {} more", shown.join(", "), rest.len()),
        _ => things.join(", "),
    }
}

/// A time for people: seconds with a digit, or minutes.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs() {
        0..120 => format!("{:.1} s", time.as_secs_f64()),
        minutes @ 120..7_200 => format!("{} min", minutes / 60),
        hours => format!("{} h", hours / 3_600),
    }
}

/// A time for programs: seconds.
pub(crate) fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|it| it.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::some;

    #[test]
    fn what_is_not_shown_is_counted() {
        let things = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(some(&things, 2), "a, b, and 1 more");
        assert_eq!(some(&things, 3), "a, b, c");
        assert_eq!(some(&things[..1], 3), "a");
    }
}
