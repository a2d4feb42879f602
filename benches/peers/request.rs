//! The lines that the bench sends.

use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

/// One line of input.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Request {
    /// `n` pairs on one name, one after the other.
    Pairs {
        n: usize,
        ttl: Duration,
        name: String,
    },
    /// A closed loop of pairs on each of `threads` threads or tasks, a name each, for `window`.
    Threads {
        threads: usize,
        window: Duration,
        ttl: Duration,
        name: String,
    },
    /// One lock, however long it takes.
    Lock { ttl: Duration, name: String },
    /// The release of what was locked, after a pause.
    Unlock { after: Duration },
    /// Critical sections of one lock, in each of `tasks` tasks.
    Sections { tasks: usize, job: Job },
    /// The end.
    Quit,
    /// An empty line.
    Nothing,
}

/// What each task of [`Request::Sections`] does: lock, stay inside for a while, release, and again until `end`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Job {
    /// Nanoseconds of the shared clock, like `end`.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) inside: Duration,
    pub(crate) ttl: Duration,
    pub(crate) name: String,
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let request = match words.next() {
            None => Self::Nothing,
            Some("quit") => Self::Quit,
            Some("pairs") => Self::Pairs {
                n: next(&mut words, "count")?,
                ttl: millis(&mut words)?,
                name: next(&mut words, "name")?,
            },
            Some("threads") => Self::Threads {
                threads: next(&mut words, "thread count")?,
                window: seconds(&mut words)?,
                ttl: millis(&mut words)?,
                name: next(&mut words, "name")?,
            },
            Some("lock") => Self::Lock {
                ttl: millis(&mut words)?,
                name: next(&mut words, "name")?,
            },
            Some("unlock") => Self::Unlock {
                after: micros(&mut words)?,
            },
            Some("sections") => Self::Sections {
                tasks: next(&mut words, "task count")?,
                job: Job {
                    begin: next(&mut words, "begin in nanoseconds")?,
                    end: next(&mut words, "end in nanoseconds")?,
                    inside: micros(&mut words)?,
                    ttl: millis(&mut words)?,
                    name: next(&mut words, "name")?,
                },
            },
            Some(other) => return Err(format!("unknown request {other:?}")),
        };
        match words.next() {
            None => Ok(request),
            Some(word) => Err(format!("{word:?} is one word too many")),
        }
    }
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>, what: &str) -> Result<T, String> {
    let word = words.next().ok_or_else(|| format!("{what} is missing"))?;
    word.parse().map_err(|_| format!("{word:?} is no {what}"))
}

fn millis(words: &mut SplitWhitespace<'_>) -> Result<Duration, String> {
    next(words, "ttl in milliseconds").map(Duration::from_millis)
}

fn micros(words: &mut SplitWhitespace<'_>) -> Result<Duration, String> {
    next(words, "time in microseconds").map(Duration::from_micros)
}

fn seconds(words: &mut SplitWhitespace<'_>) -> Result<Duration, String> {
    let seconds: f64 = next(words, "window in seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{seconds} is no window in seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_word_by_word() {
        let pairs = Request::Pairs {
            n: 50,
            ttl: Duration::from_secs(10),
            name: "k".to_owned(),
        };
        assert_eq!(" pairs 50  10000 k ".parse(), Ok(pairs));
        let threads = Request::Threads {
            threads: 64,
            window: Duration::from_millis(2500),
            ttl: Duration::from_secs(10),
            name: "k".to_owned(),
        };
        assert_eq!("threads 64 2.5 10000 k".parse(), Ok(threads));
        let ttl = Duration::from_secs(10);
        assert_eq!(
            "lock 10000 k".parse(),
            Ok(Request::Lock {
                ttl,
                name: "k".to_owned()
            })
        );
        assert_eq!(
            "unlock 1500".parse(),
            Ok(Request::Unlock {
                after: Duration::from_micros(1500)
            })
        );
        let job = Job {
            begin: 5,
            end: 9,
            inside: Duration::from_millis(1),
            ttl,
            name: "k".to_owned(),
        };
        assert_eq!(
            "sections 8 5 9 1000 10000 k".parse(),
            Ok(Request::Sections { tasks: 8, job })
        );
        assert_eq!("quit".parse(), Ok(Request::Quit));
        assert_eq!("".parse(), Ok(Request::Nothing));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let reason = |line: &str| line.parse::<Request>().err().unwrap_or_default();
        assert_eq!(reason("pears 1"), "unknown request \"pears\"");
        assert_eq!(reason("pairs"), "count is missing");
        assert_eq!(reason("pairs x 1 k"), "\"x\" is no count");
        assert_eq!(reason("threads 1 -1 1 k"), "-1 is no window in seconds");
        assert_eq!(reason("unlock soon"), "\"soon\" is no time in microseconds");
        assert_eq!(reason("quit now"), "\"now\" is one word too many");
    }
}
