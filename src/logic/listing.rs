//! How a node's keys are looked through, without being a burden to it.

use std::time::Duration;

/// So many keys are looked at by one command.
const COUNT_MAX: u64 = 500;
/// A node works for so long at one command at least.
const WORK_MIN: Duration = Duration::from_micros(100);
/// One part of the time it works for us, and for others the rest of so many.
const PARTS: u32 = 5;

/// How many keys are looked at next: fewer where too many of them are ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Portion(u64);

impl Portion {
    pub(crate) fn first() -> Portion {
        Portion(COUNT_MAX)
    }

    pub(crate) fn count(self) -> u64 {
        self.0
    }

    pub(crate) fn next(self, too_many: bool) -> Portion {
        Portion(if too_many {
            (self.0 / 8).max(1)
        } else {
            self.0.saturating_mul(2).min(COUNT_MAX)
        })
    }
}

/// Pauses between commands, so that a node works for at most a fifth of the time for us.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Pace {
    /// How long it takes to ask it for nothing: the way there and back.
    way: Duration,
}

impl Pace {
    pub(crate) fn new(way: Duration) -> Pace {
        Pace { way }
    }

    /// How long to wait after a command that took so long.
    pub(crate) fn pause(&mut self, took: Duration) -> Duration {
        self.way = self.way.min(took);
        // On the way nothing is done.
        let worked = took.saturating_sub(self.way).max(WORK_MIN);
        worked.saturating_mul(PARTS).saturating_sub(took)
    }
}

/// Whether a name looks like `pattern`, where `*` stands for any bytes, and `?` for one.
pub(crate) fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut name_rest) = (pattern, name);
    // Where to go on if the last star stands for one byte more.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        match (rest, name_rest) {
            ([b'*', behind @ ..], _) => {
                star = Some((behind, name_rest));
                rest = behind;
            }
            ([wanted, pattern @ ..], [byte, name @ ..]) if *wanted == b'?' || wanted == byte => {
                (rest, name_rest) = (pattern, name);
            }
            ([], []) => return true,
            _ => match star {
                Some((behind, [_, name @ ..])) => {
                    star = Some((behind, name));
                    (rest, name_rest) = (behind, name);
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
    fn where_too_many_keys_are_ours_fewer_are_looked_at_and_more_again_later() {
        let mut portion = Portion::first();
        let mut counts = Vec::new();
        for too_many in [true, true, true, true, false, false] {
            portion = portion.next(too_many);
            counts.push(portion.count());
        }
        assert_eq!(counts, [62, 7, 1, 1, 2, 4]);
        assert_eq!(
            (0..10).fold(portion, |it, _| it.next(false)),
            Portion::first()
        );
    }

    #[test]
    fn a_node_works_for_a_fifth_of_the_time_at_most_and_the_way_is_no_work() {
        let millis = Duration::from_millis;
        let mut near = Pace::new(millis(0));
        assert_eq!(near.pause(millis(2)), millis(8));
        let mut far = Pace::new(millis(50));
        assert_eq!(far.pause(millis(52)), Duration::ZERO, "two of fifty-two");
        assert_eq!(far.pause(millis(90)), millis(110), "forty of two hundred");
        assert_eq!(
            far.pause(millis(10)),
            Duration::ZERO,
            "the way is shorter than it seemed"
        );
        assert_eq!(far.pause(millis(20)), millis(30));
        assert_eq!(Pace::new(millis(0)).pause(Duration::ZERO), WORK_MIN * PARTS);
    }

    #[test]
    fn a_star_is_anything_and_a_question_mark_is_one_byte() {
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
        fn names_fit_as_is_said(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), simply_fits(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
