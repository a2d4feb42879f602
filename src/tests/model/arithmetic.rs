//! The arithmetic of validity, with random numbers: too many to try them all.

use proptest::prelude::*;

use super::*;
use crate::config::{Config, Margin};
use crate::logic::lease::{millis, use_until, whole_millis};

const FIVE_YEARS: u64 = 5 * 366 * 24 * 60 * 60 * 1_000;
const MILLI: u128 = 1_000_000;
const GIGA: u128 = 1_000_000_000;

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::ZERO),
        Just(Duration::MAX),
        Just(Duration::MAX - Duration::from_nanos(1)),
    ]
}

fn any_moment() -> impl Strategy<Value = Moment> {
    (any_duration(), any_duration()).prop_map(|(boot, wall)| Moment::at(boot, wall))
}

/// When a node expires a key, in nanoseconds after it got the command: as early as it can be. It counts whole
/// milliseconds of its own clock, which shows `reading` at that time and runs faster by `faster` parts in 10^9.
fn expires_after(ttl_millis: u64, reading: u64, faster: u64) -> u128 {
    let reading = u128::from(reading);
    let expires = (reading / MILLI + u128::from(ttl_millis)) * MILLI;
    (expires - reading) * GIGA / (GIGA + u128::from(faster))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if long() { 200_000 } else { 4_096 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a2_no_holder_outlives_its_key_while_clock_rates_are_in_the_margin(
        ttl in 1..FIVE_YEARS,
        below_a_milli in 0..1_000_000_u32,
        sent in 0..u64::MAX / 4,
        on_its_way in prop_oneof![Just(0), 0..100_000_000_000_u64],
        reading in 0..u64::MAX / 4,
        // Small ones too: a large share leaves more than is needed.
        share in prop_oneof![Just(0), 0..1_000_u64, 0..=500_000_000_u64],
        of_share in prop_oneof![Just(1.0), 0.0..=1.0_f64],
        fixed in 2..50_u64,
    ) {
        let margin = Margin { share: share as f64 / 1e9, fixed: Duration::from_millis(fixed) };
        let faster = (share as f64 * of_share) as u64;
        // As the caller gives it; sent and counted in whole milliseconds.
        let given = Duration::from_millis(ttl) + Duration::from_nanos(u64::from(below_a_milli));
        let ttl_counted = whole_millis(given);
        prop_assert_eq!(millis(given), ttl);

        let until = use_until(at(sent), ttl_counted, margin.of(ttl_counted)).unwrap();

        let usable = at(sent).until(until).as_nanos();
        let expires = u128::from(on_its_way) + expires_after(ttl, reading, faster);
        prop_assert!(usable <= expires, "usable for {usable} ns, gone after {expires} ns");
    }

    #[test]
    fn a12_nothing_overflows_at_the_ends_of_time(
        sent in any_moment(),
        now in any_moment(),
        ttl in any_duration(),
        fixed in any_duration(),
        share in prop_oneof![any::<f64>(), 0.0..=0.5_f64],
    ) {
        let margin = Margin { share, fixed };
        let counted = whole_millis(ttl);
        prop_assert!(counted <= ttl && millis(counted) == millis(ttl));
        if let Some(until) = use_until(sent, counted, margin.of(counted)) {
            prop_assert!(sent.until(until) <= counted);
            prop_assert_eq!(until.since(sent), sent.until(until));
            // At its end, or at once if nothing is usable, it is over.
            prop_assert!(until.has_reached(until));
            prop_assert_eq!(now.has_reached(until), now.until(until).is_zero());
        }
        let config = Config { ttl, margin, ..Config::default() };
        if config.ttl_problem(ttl).is_none() {
            prop_assert!(margin.of(ttl) <= ttl / 2);
        }
    }

    #[test]
    fn c2_no_wall_clock_extends_a_lease_beyond_the_boot_clock(
        sent in 0..u64::MAX / 4,
        ttl in any::<u32>(),
        gone_by in any::<u32>(),
        wall in any_duration(),
    ) {
        let ttl = Duration::from_nanos(u64::from(ttl));
        let gone_by = Duration::from_nanos(u64::from(gone_by));
        let until = use_until(at(sent), ttl, Duration::ZERO).unwrap();

        let now = Moment::at(Duration::from_nanos(BOOT + sent) + gone_by, wall);

        prop_assert!(now.until(until) <= ttl.saturating_sub(gone_by));
        prop_assert!(gone_by <= now.since(at(sent)));
        prop_assert!(gone_by < ttl || now.has_reached(until));
    }
}
