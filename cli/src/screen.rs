//! Colour and the width of terminals.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};
use terminal_size::{Width, terminal_size};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const RED: Style = AnsiColor::Red.on_default().bold();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const BLUE: Style = AnsiColor::Blue.on_default().bold();

/// The longest wait for a reader of stdout or stderr.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Writes on a thread of its own, and sends the result: without a reader a write takes for ever,
/// and no thread that handles signals may wait longer than [`PATIENCE`] for it.
pub(crate) fn aside<T: Send + 'static>(write: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, written) = channel();
    let _ = thread::Builder::new().spawn(move || sender.send(write()));
    written
}

/// A message of the command, for stderr.
pub(crate) fn message(text: &str) -> String {
    let lead = "quorlock: ";
    format!("{lead}{}", broken(text, lead.len(), width(&io::stderr())))
}

/// The lead in a style, then the text. Lines longer than the terminal are broken at words.
pub(crate) fn behind(style: Style, lead: &str, text: &str) -> String {
    format!(
        "{}{}",
        styled(style, lead),
        broken(text, lead.len(), width(&io::stdout()))
    )
}

/// Without escape codes where stdout is no terminal, and with NO_COLOR.
pub(crate) fn styled(style: Style, text: &str) -> String {
    match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => text.to_owned(),
        _ => format!("{style}{text}{style:#}"),
    }
}

pub(crate) fn width(stream: &impl IsTerminal) -> Option<usize> {
    let (Width(width), _) = stream.is_terminal().then(terminal_size).flatten()?;
    Some(width.into())
}

/// Breaks a text that begins at this column. The following lines begin there too.
fn broken(text: &str, indent: usize, width: Option<usize>) -> String {
    let (mut done, mut column) = (String::new(), indent);
    for (index, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if 0 < index && width.is_some_and(|it| it < column + 1 + length) {
            done.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if 0 < index {
            done.push(' ');
            column += 1;
        }
        done.push_str(word);
        column = word
            .rsplit_once('\n')
            .map_or(column + length, |(_, it)| it.chars().count());
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_at_words_and_indented() {
        assert_eq!(broken("one two three", 2, Some(9)), "one two\n  three");
        assert_eq!(broken("one two three", 2, Some(8)), "one\n  two\n  three");
        assert_eq!(
            broken("unbreakable it is", 2, Some(5)),
            "unbreakable\n  it\n  is"
        );
        assert_eq!(broken("one two three", 2, None), "one two three");
        assert_eq!(broken("", 2, Some(9)), "");
    }
}
