//! Pace of the search through a node's keys.

use std::time::Duration;

/// Largest number of keys per command.
const COUNT_MAX: u64 = 500;
/// Rest after a command, in multiples of its duration.
const REST: u32 = 4;
/// Longest rest: longer durations are network time or other work of the node.
const REST_MAX: Duration = Duration::from_millis(20);

/// Number of keys of the next command, after `count`: fewer if too many of them are this crate's.
pub(crate) fn portion(count: u64, too_many: bool) -> u64 {
    if too_many {
        (count / 8).max(1)
    } else {
        count.saturating_mul(2).min(COUNT_MAX)
    }
}

/// Rest of a node after commands that took this time: the search uses at most a fifth of its time.
pub(crate) fn pause(took: Duration) -> Duration {
    took.saturating_mul(REST).min(REST_MAX)
}

/// Whether a name matches `pattern`, where `*` stands for any bytes, and `?` for one.
pub(crate) fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let mut rest = pattern;
    let mut name_rest = name;
    // Next try, with one more byte for the last star.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        match (rest, name_rest) {
            ([b'*', behind @ ..], _) => {
                star = Some((behind, name_rest));
                rest = behind;
            }
            ([wanted, pattern @ ..], [byte, name @ ..]) if *wanted == b'?' || wanted == byte => {
                rest = pattern;
                name_rest = name;
            }
            ([], []) => return true,
            _ => match star {
                Some((behind, [_, name @ ..])) => {
                    star = Some((behind, name));
                    rest = behind;
                    name_rest = name;
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_scan_portion_shrinks_on_many_keys_and_grows_again() {
        let mut count = portion(u64::MAX, false);
        let mut counts = vec![count];
        for too_many in [true, true, true, true, false, false] {
            count = portion(count, too_many);
            counts.push(count);
        }
        assert_eq!(counts, [500, 62, 7, 1, 1, 2, 4]);
        assert_eq!((0..10).fold(count, |count, _| portion(count, false)), 500);
    }

    #[test]
    fn a_scan_uses_at_most_a_fifth_of_a_nodes_time() {
        let millis = Duration::from_millis;
        assert_eq!(pause(millis(2)), millis(8));
        assert_eq!(pause(millis(50)), millis(20));
    }

    #[test]
    fn a_star_matches_anything_and_a_question_mark_one_byte() {
        for (pattern, name, is_so) in [
            ("*", "", true),
            ("*", "a", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "", false),
            ("*a*b", "xaxbxab", true),
            ("**", "x", true),
            ("order:*:7", "order:8:7", true),
            ("abc", "abcd", false),
        ] {
            assert_eq!(
                fits(pattern.as_bytes(), name.as_bytes()),
                is_so,
                "{pattern} {name}"
            );
        }
    }

    /// As it is said: all ways in which the first star could be meant.
    fn simply_fits(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|it| simply_fits(rest, &name[it..])),
            ([wanted, rest @ ..], [byte, name @ ..]) => {
                (*wanted == b'?' || wanted == byte) && simply_fits(rest, name)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_names_as_the_simple_form_does(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), simply_fits(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
