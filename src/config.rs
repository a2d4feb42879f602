//! Options of a manager, and their limits.

use std::sync::Arc;
use std::time::Duration;

use crate::error::BuildProblem;
use crate::ids::{OwnerLabel, wide};
use crate::observer::UserObserver;
use crate::time::{About, Exactly};

/// All options of a manager. Every default is written here, once; the builder's docs name them
/// again for readers.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) ttl: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) margin: Margin,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) retry_min: Duration,
    pub(crate) retry_max: Duration,
    pub(crate) outage_timeout: Duration,
    pub(crate) fencing_ttl: Option<Duration>,
    pub(crate) quarantine: bool,
    pub(crate) max_ttl: Option<Duration>,
    /// Additional quarantine of a promoted server. Set by the builder, according to the nodes.
    pub(crate) silence_of_promoted: Duration,
    pub(crate) strict: bool,
    pub(crate) shutdown_grace: Duration,
    pub(crate) prefix: Vec<u8>,
    /// Made by the builder, with the process.
    pub(crate) owner_label: OwnerLabel,
    pub(crate) observer: Option<Arc<UserObserver>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            ttl: Duration::from_secs(10),
            response_timeout: Duration::from_millis(100),
            connect_timeout: Duration::from_millis(250),
            margin: Margin {
                share: 0.01,
                fixed: Duration::from_millis(2),
            },
            renew: true,
            max_hold: None,
            retry_min: Duration::from_millis(10),
            retry_max: Duration::from_millis(200),
            outage_timeout: Duration::from_secs(10),
            fencing_ttl: Some(Duration::from_secs(24 * 60 * 60)),
            quarantine: true,
            max_ttl: None,
            silence_of_promoted: Duration::ZERO,
            strict: false,
            shutdown_grace: Duration::from_secs(1),
            prefix: Vec::new(),
            owner_label: OwnerLabel::default(),
            observer: None,
        }
    }
}

/// The part of a ttl that a holder does not use, because nodes' clocks may run faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Margin {
    /// Share of the ttl: allowed speed-up of a node's clock.
    pub(crate) share: f64,
    /// Fixed addition: a node counts in whole milliseconds and expires keys with that grain.
    pub(crate) fixed: Duration,
}

impl Margin {
    /// The margin of a lease of `ttl`, rounded up; longer than any ttl for an invalid share.
    pub(crate) fn of(self, ttl: Duration) -> Duration {
        let share =
            Duration::try_from_secs_f64(ttl.as_secs_f64() * self.share).unwrap_or(Duration::MAX);
        share
            .saturating_add(Duration::from_nanos(1))
            .saturating_add(self.fixed)
    }

    /// The shortest ttl, in whole milliseconds, with at least `usable` beside its margin.
    pub(crate) fn ttl_for(self, usable: Duration) -> Duration {
        let grain = Duration::from_millis(1);
        let with_fixed = usable.saturating_add(self.fixed).as_secs_f64();
        let about =
            Duration::try_from_secs_f64(with_fixed / (1.0 - self.share)).unwrap_or(Duration::MAX);
        let mut ttl = Duration::from_millis(wide(about.as_millis()));
        // Rounding is less than this.
        for _ in 0..4 {
            if usable <= ttl.saturating_sub(self.of(ttl)) {
                break;
            }
            ttl = ttl.saturating_add(grain);
        }
        ttl
    }
}

const TTL_MIN: Duration = Duration::from_millis(100);
pub(crate) const TTL_MAX: Duration = Duration::from_secs(60 * 60);
/// Longest ttl without a given `max_ttl`: the default ttl. Not less, however short the ttl is: the
/// first program decides for the servers, and others may have the default.
const MAX_TTL: Duration = Duration::from_secs(10);
/// A renewal gets several tries within a ttl only if a try is much shorter than it.
const RESPONSE_TIMEOUTS_IN_A_TTL: u32 = 4;
/// Smallest ratio of the fencing ttl to the longest ttl of a lock.
const TTLS_IN_A_FENCING_TTL: u32 = 2;
/// Limits of timeouts and pauses.
const WAIT_MIN: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_secs(60);
const MARGIN_SHARE_MAX: f64 = 0.5;
const FENCING_TTL_MIN: Duration = Duration::from_secs(60);
const FENCING_TTL_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
/// Names and prefixes together are a Redis key; longer ones are a mistake, and every round would
/// carry them.
pub(crate) const NAME_MAX: usize = 64 * 1024;
/// Largest number of names taken together.
pub(crate) const NAMES_MAX: usize = 64;
/// Largest number of permits of a semaphore.
pub(crate) const PERMITS_MAX: usize = 256;
/// Prefix of this crate's keys beside the locks; see `wire::lock_commands`.
pub(crate) const RESERVED: &[u8] = b"quorlock:";

impl Config {
    /// All problems of these options.
    pub(crate) fn problems(&self) -> Vec<BuildProblem> {
        let mut problems = Vec::new();
        problems.extend(self.ttl_problem(self.ttl));
        problems.extend(self.max_ttl.and_then(|it| self.fencing_problem(it)));
        for (option, value, min, max) in [
            (
                "response_timeout",
                self.response_timeout,
                WAIT_MIN,
                WAIT_MAX,
            ),
            ("connect_timeout", self.connect_timeout, WAIT_MIN, WAIT_MAX),
            ("retry_delay (shortest)", self.retry_min, WAIT_MIN, WAIT_MAX),
            ("retry_delay (longest)", self.retry_max, WAIT_MIN, WAIT_MAX),
            (
                "shutdown_grace",
                self.shutdown_grace,
                Duration::ZERO,
                WAIT_MAX,
            ),
            ("max_ttl", self.max_ttl.unwrap_or(TTL_MIN), TTL_MIN, TTL_MAX),
            (
                "fencing_ttl",
                self.fencing_ttl.unwrap_or(FENCING_TTL_MIN),
                FENCING_TTL_MIN,
                FENCING_TTL_MAX,
            ),
        ] {
            if value < min || max < value {
                problems.push(out_of_range(option, value, min, max));
            }
        }
        if self.retry_max < self.retry_min {
            problems.push(bad(
                "retry_delay",
                format!(
                    "goes from {} to {}: the first must not be longer",
                    Exactly(self.retry_min),
                    Exactly(self.retry_max)
                ),
            ));
        }
        // Written so that NaN is refused as well.
        if !(0.0..=MARGIN_SHARE_MAX).contains(&self.margin.share) {
            problems.push(bad(
                "clock_margin",
                format!(
                    "has a share of {}: allowed are 0 to {MARGIN_SHARE_MAX}",
                    self.margin.share
                ),
            ));
        }
        if let Some(max_hold) = self.max_hold.filter(|it| *it < self.ttl) {
            problems.push(bad(
                "max_hold",
                format!(
                    "is {}: it must be at least the ttl, {}, or None",
                    Exactly(max_hold),
                    Exactly(self.ttl)
                ),
            ));
        }
        if NAME_MAX < self.prefix.len() {
            problems.push(bad(
                "prefix",
                format!(
                    "has {} bytes: at most {NAME_MAX} are allowed",
                    self.prefix.len()
                ),
            ));
        }
        problems
    }

    /// The longest ttl of any lock of this manager, if there is a limit.
    pub(crate) fn longest_ttl(&self) -> Option<Duration> {
        self.max_ttl
            .or(self.quarantine.then(|| self.ttl.max(MAX_TTL)))
    }

    /// Problem of `ttl` under these options, if any; also for the ttl of one lock and of one
    /// extension.
    pub(crate) fn ttl_problem(&self, ttl: Duration) -> Option<BuildProblem> {
        let needed = self
            .response_timeout
            .saturating_mul(RESPONSE_TIMEOUTS_IN_A_TTL);
        if ttl < TTL_MIN || TTL_MAX < ttl {
            return Some(out_of_range("ttl", ttl, TTL_MIN, TTL_MAX));
        }
        // Without quarantine nothing depends on the others' ttls.
        if let Some(max_ttl) = self.longest_ttl()
            && max_ttl < ttl
        {
            let reason = format!(
                "is {}, above max_ttl, which is {}: raise max_ttl",
                Exactly(ttl),
                Exactly(max_ttl)
            );
            return Some(bad("ttl", reason));
        }
        if ttl < needed {
            let reason = format!(
                "is {}: with a response timeout of {} it must be at least {}, so that a renewal \
                 can be tried again before the lock is lost",
                Exactly(ttl),
                Exactly(self.response_timeout),
                Exactly(needed)
            );
            return Some(bad("ttl", reason));
        }
        let margin = self.margin.of(ttl);
        // Half of the ttl must be usable: a renewal begins at a third.
        if ttl.checked_div(2)? < margin {
            let reason = format!(
                "is {} of a ttl of {}: at most half of the ttl is allowed",
                About(margin),
                Exactly(ttl)
            );
            return Some(bad("clock_margin", reason));
        }
        // `problems` checks a given `max_ttl` instead.
        if self.max_ttl.is_none() {
            self.fencing_problem(ttl)
        } else {
            None
        }
    }

    /// Problem of counters that may expire under the holder of a lock of `ttl`, if any. They are
    /// renewed with the lock, every third of its ttl, and less often only if their ttl is much
    /// longer (`lease::keep_counter_after`). So a node that was unreachable for a whole ttl still
    /// has its counter for the next holder.
    fn fencing_problem(&self, ttl: Duration) -> Option<BuildProblem> {
        let needed = ttl.saturating_mul(TTLS_IN_A_FENCING_TTL);
        let fencing_ttl = self.fencing_ttl.filter(|it| *it < needed)?;
        let reason = format!(
            "is {}: with locks of up to {} it must be at least {}, or counters are gone when the \
             next holder comes: raise fencing_ttl, or set it to None, or lower the ttl",
            Exactly(fencing_ttl),
            Exactly(ttl),
            Exactly(needed)
        );
        Some(bad("fencing_ttl", reason))
    }
}

fn bad(option: &'static str, reason: String) -> BuildProblem {
    BuildProblem::BadOption { option, reason }
}

fn out_of_range(
    option: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> BuildProblem {
    bad(
        option,
        format!(
            "is {}: allowed are {} to {}",
            Exactly(value),
            Exactly(min),
            Exactly(max)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_defaults_are_allowed() {
        assert_eq!(Config::default().problems(), []);
    }

    #[test]
    fn h15_max_ttl_is_ten_seconds_or_the_ttl_by_default() {
        let longest = |ttl, max_ttl: Option<u64>, quarantine| {
            let config = Config {
                ttl: Duration::from_secs(ttl),
                max_ttl: max_ttl.map(Duration::from_secs),
                quarantine,
                ..Config::default()
            };
            config.longest_ttl().map(|it| it.as_secs())
        };
        assert_eq!(longest(1, None, true), Some(10));
        assert_eq!(longest(30, None, true), Some(30));
        assert_eq!(longest(1, Some(2), true), Some(2));
        assert_eq!(longest(1, None, false), None);
    }

    #[test]
    fn a_fencing_ttl_below_twice_the_longest_ttl_is_a_problem() {
        let s = Duration::from_secs;
        let problems = |fencing_ttl, ttl, max_ttl, quarantine| {
            Config {
                fencing_ttl,
                ttl,
                max_ttl,
                quarantine,
                ..Config::default()
            }
            .problems()
        };
        let too_short = |ttl: Duration| {
            let config = Config {
                fencing_ttl: Some(s(60)),
                ..Config::default()
            };
            config.fencing_problem(ttl).into_iter().collect::<Vec<_>>()
        };

        assert_eq!(problems(Some(s(60)), s(31), None, true), too_short(s(31)));
        assert_eq!(
            problems(Some(s(60)), s(31), Some(s(40)), true),
            too_short(s(40)),
            "said once"
        );
        assert_eq!(
            problems(Some(s(60)), s(10), Some(s(40)), false),
            too_short(s(40))
        );
        assert_eq!(problems(Some(s(60)), s(10), Some(s(30)), true), []);
        assert_eq!(problems(None, s(3600), None, true), []);

        // Nothing else limits the ttl of one lock here.
        let config = Config {
            fencing_ttl: Some(s(60)),
            quarantine: false,
            ..Config::default()
        };
        assert_eq!(config.problems(), []);
        assert_eq!(config.ttl_problem(s(31)), too_short(s(31)).first().cloned());
        assert_eq!(config.ttl_problem(s(30)), None);
    }

    #[test]
    fn an_invalid_margin_is_longer_than_any_ttl() {
        for share in [f64::NAN, f64::INFINITY, -1.0] {
            let margin = Margin {
                share,
                fixed: Duration::ZERO,
            };
            assert_eq!(margin.of(Duration::from_secs(1)), Duration::MAX, "{share}");
        }
    }

    proptest! {
        #[test]
        fn a_ttl_for_a_usable_time_is_the_shortest_sufficient_one(nanos in 0..=3_600_000_000_000_u64, share in 0.0..=0.5_f64) {
            let margin = Margin { share, fixed: Duration::from_millis(2) };
            let usable = Duration::from_nanos(nanos);
            let use_of = |ttl: Duration| ttl.saturating_sub(margin.of(ttl));

            let ttl = margin.ttl_for(usable);

            prop_assert_eq!(ttl.subsec_nanos() % 1_000_000, 0, "whole milliseconds");
            prop_assert!(usable <= use_of(ttl), "{:?} of {:?}", use_of(ttl), ttl);
            let spare = use_of(ttl).saturating_sub(usable);
            prop_assert!(spare < Duration::from_millis(2), "{:?} of {:?}", use_of(ttl), ttl);
        }
    }

    /// The numbers of the page about safety: a key of 10 s ends before its holder stops if its
    /// server gains too much.
    #[test]
    fn c5_a_margin_covers_the_corrections_of_time_daemons() {
        const CHRONY: f64 = 83_333e-6;
        const DRIFT: f64 = 500e-6;
        let ttl = Duration::from_secs(10);
        let default = Config::default().margin;
        let share = |share| Margin { share, ..default };
        // By our clock, which may be slewed back.
        let key = |server: f64, client: f64| ttl.div_f64(1.0 + server).mul_f64(1.0 - client);
        let covers = |margin: Margin, server, client| ttl - margin.of(ttl) <= key(server, client);

        assert!(
            ttl - default.of(ttl) <= key(DRIFT, 0.0) - Duration::from_millis(97),
            "97 ms, on either side"
        );
        assert!(
            covers(default, 4_000e-6 + DRIFT, 4_000e-6 + DRIFT),
            "chrony with a lower rate"
        );
        assert!(!covers(default, CHRONY, 0.0));
        let late = ttl - default.of(ttl) - key(CHRONY, 0.0);
        assert_eq!(late.as_millis(), 667);
        assert!(covers(share(0.1), CHRONY + DRIFT, 0.0) && !covers(share(0.1), CHRONY, CHRONY));
        assert!(covers(share(0.16), CHRONY + DRIFT, CHRONY + DRIFT));
    }

    #[test]
    fn a_margin_is_rounded_up() {
        let margin = Margin {
            share: 0.01,
            fixed: Duration::from_millis(2),
        };
        assert!(Duration::from_millis(102) < margin.of(Duration::from_secs(10)));
    }
}
