//! Lines that processes of the bench send each other, and the words in them.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::str::FromStr;

/// Answers each line of the input with one, until it ends, as it does when the bench is killed.
pub(crate) fn answer_lines<E: Display>(
    mut answer: impl FnMut(&str) -> Result<String, E>,
) -> io::Result<()> {
    for line in io::stdin().lines() {
        let answer = answer(&line?).unwrap_or_else(|err| format!("error {err}"));
        let mut output = io::stdout().lock();
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

/// The value of `key=` in an answer.
pub(crate) fn field<T: FromStr>(line: &str, key: &str) -> io::Result<T> {
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(it, _)| *it == key)
        .and_then(|(_, value)| value.parse().ok())
        .ok_or_else(|| io::Error::other(format!("no {key} in the answer {line:.80?}")))
}

/// A word that is a number.
pub(crate) fn number<T: FromStr>(word: &str) -> io::Result<T> {
    word.parse()
        .map_err(|_| io::Error::other(format!("{word:?} is no number")))
}

/// The addresses in URLs of servers of the bench, which have nothing else in them.
pub(crate) fn addrs(urls: &[String]) -> io::Result<Vec<SocketAddr>> {
    let addr = |url: &String| url.strip_prefix("redis://")?.parse().ok();
    urls.iter()
        .map(|it| addr(it).ok_or_else(|| io::Error::other(format!("{it:?} is no address"))))
        .collect()
}
