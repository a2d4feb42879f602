//! What is said on stdout.

use std::io::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use crate::exit::{Exit, Failed};

/// Says a line, or several.
pub(crate) fn say(text: &str) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|err| Failed::new(Exit::Internal, format!("stdout: {err}")))
}

/// A table without lines, that fits the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(header.to_vec());
    table
}

/// A time for people: seconds with a digit, or minutes.
pub(crate) fn time(time: std::time::Duration) -> String {
    match time.as_secs() {
        0..120 => format!("{:.1} s", time.as_secs_f64()),
        minutes @ 120..7_200 => format!("{} min", minutes / 60),
        hours => format!("{} h", hours / 3_600),
    }
}
