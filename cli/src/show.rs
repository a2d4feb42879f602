//! Stdout and stderr: text, tables, times.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use crate::exit::{Exit, Failed};
use crate::screen;

/// Writes lines to stdout.
pub(crate) fn say(text: &str) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|err| {
            let exit = if err.kind() == io::ErrorKind::BrokenPipe {
                Exit::PIPE
            } else {
                Exit::INTERNAL
            };
            Failed::new(exit, format!("stdout: {err}"))
        })
}

/// A line for each of them.
pub(crate) fn lines(rows: impl IntoIterator<Item = impl ToString>) -> String {
    let lines: Vec<_> = rows.into_iter().map(|row| row.to_string()).collect();
    lines.join("\n")
}

/// Writes a line to stderr.
pub(crate) fn warn(text: &str) {
    // Without a reader nothing is lost.
    let _ = writeln!(io::stderr(), "{}", screen::message(text));
}

/// A table without lines, as wide as the terminal at most.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.to_vec());
    if let Some(width) = screen::width(&io::stdout()) {
        table.set_width(width.try_into().unwrap_or(u16::MAX));
    }
    table.add_rows(rows);
    let text = table.trim_fmt();
    let (header, rows) = text.split_at(text.find('\n').unwrap_or(text.len()));
    screen::styled(screen::BOLD, header) + rows
}

/// The first five of several things, and how many more there are.
pub(crate) fn some(things: &[String]) -> String {
    match things.split_at_checked(5) {
        Some((shown, rest)) if !rest.is_empty() => {
            format!("{}, and {} more", shown.join(", "), rest.len())
        }
        _ => things.join(", "),
    }
}

/// A time for people.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (number, unit) = match seconds {
        ..0.001 => (seconds * 1e6, "µs"),
        ..1.0 => (seconds * 1e3, "ms"),
        ..120.0 => (seconds, "s"),
        ..7_200.0 => return format!("{} min", time.as_secs() / 60),
        _ => return format!("{} h", time.as_secs() / 3_600),
    };
    format!("{number:.1} {unit}")
}

/// A time for programs: seconds.
pub(crate) fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|it| it.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_list_counts_its_hidden_items() {
        let things = ["a", "b", "c", "d", "e", "f"].map(str::to_owned);
        assert_eq!(some(&things), "a, b, c, d, e, and 1 more");
        assert_eq!(some(&things[..5]), "a, b, c, d, e");
        assert_eq!(some(&things[..1]), "a");
    }

    #[test]
    fn times_have_a_unit_and_few_digits() {
        for (nanos, text) in [(0, "0.0 µs"), (1_234, "1.2 µs"), (123_456_789, "123.5 ms")] {
            assert_eq!(time(Duration::from_nanos(nanos)), text);
        }
        for (seconds, text) in [
            (1, "1.0 s"),
            (90, "90.0 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
        ] {
            assert_eq!(time(Duration::from_secs(seconds)), text);
        }
    }
}
