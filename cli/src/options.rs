//! The options of all commands, and the formats of values.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;

/// The variable with all servers.
pub(crate) const NODES: &str = "QUORLOCK_NODES";

/// The servers, and how to connect to them. Options of all commands.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct NodeArgs {
    /// Redis server: redis://host:port/database; repeat for each, or set QUORLOCK_NODES to all
    ///
    /// Put passwords into a file or a variable: all users of this machine can see the options of a
    /// command.
    #[arg(long = "node", visible_alias = "server", value_name = "URL")]
    pub(crate) nodes: Vec<String>,
    /// File with a server in each line
    #[arg(long, value_name = "FILE")]
    pub(crate) nodes_file: Option<PathBuf>,
    /// User for all servers
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// File with the password for all servers in its first line; or set QUORLOCK_PASSWORD
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Certificate authorities for rediss:// URLs, as PEM [default: those of the system, or of
    /// SSL_CERT_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Client certificate for rediss:// URLs, as PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Key of the client certificate, as PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Prefix of the keys on the servers
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// Lifetime of a lock without an extension: 30, 1.5s, 200ms, 2m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Longest ttl of this program, at most that of the servers [default: 10s, or the ttl if that
    /// is longer]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) max_ttl: Option<Duration>,
    /// Time for an answer of a server [default: 500ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) response_timeout: Option<Duration>,
    /// Time to connect to a server [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) connect_timeout: Option<Duration>,
    /// Give servers no vote that may lose locks: with an eviction policy, replicas, a proxy or
    /// without INFO
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(crate) strict: bool,
    /// Disable quarantine. For throwaway test servers only. The first program decides for all
    #[arg(long, value_parser = FalseyValueParser::new())]
    pub(crate) no_quarantine: bool,
}

/// A number with `ms`, `s`, `m`, `h` or `d`; seconds without a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid time {text:?}: expected 30, 1.5s, 200ms, 2m or 1h");
    let number_ends = text
        .find(|it: char| it.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// `HH:MM`, as the time since midnight.
pub(crate) fn time_of_day(text: &str) -> Result<Duration, String> {
    let parts = text
        .split_once(':')
        .map(|(hours, minutes)| (hours.parse(), minutes.parse()));
    match parts {
        Some((Ok(hours @ ..24), Ok(minutes @ ..60))) => {
            Ok(Duration::from_secs(hours * 3_600 + minutes * 60))
        }
        _ => Err(format!("invalid time of day {text:?}: expected 03:00")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        for (text, millis) in [
            ("30", 30_000),
            ("1.5s", 1_500),
            ("200ms", 200),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "1w",
            "1 s",
            "inf",
            "nan",
            "1e3",
            "1.2.3",
            "99999999999999999999h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_of_day_are_hours_and_minutes() {
        assert_eq!(time_of_day("03:30"), Ok(Duration::from_secs(12_600)));
        assert_eq!(time_of_day("23:59"), Ok(Duration::from_secs(86_340)));
        for text in ["", "3", "24:00", "03:60", "3:x", "-1:00", "03:00:00"] {
            assert!(time_of_day(text).is_err(), "{text}");
        }
    }
}
