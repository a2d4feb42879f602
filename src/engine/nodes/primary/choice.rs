//! Choice of the primary from the last answers of the members. Pure.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeFailure;
use crate::time::Moment;
use crate::wire::Endpoint;

/// Answer of a member: the named server, none from a replica, or why there is no answer.
#[derive(Clone, Debug)]
pub(super) struct Report {
    /// Time of the question.
    pub(super) asked: Moment,
    pub(super) named: Result<Option<Endpoint>, NodeFailure>,
}

/// Time after a question within which its answer counts: one question may be lost.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// The server named by enough members, and the end of its lease. Drops expired answers.
///
/// `members`: address and last answer of each. `needed`: how many have to name the same server.
pub(super) fn choose(
    members: &mut [(Arc<str>, Option<Report>)],
    needed: usize,
    now: Moment,
) -> Result<(Endpoint, Moment), NodeFailure> {
    for (_, report) in &mut *members {
        report.take_if(|report| LEASE <= now.since(report.asked));
    }
    let reports = || members.iter().filter_map(|it| it.1.as_ref());
    let named = reports().filter_map(|report| {
        let place = report.named.as_ref().ok()?.as_ref()?;
        Some((place, report.asked.checked_add(LEASE)?))
    });
    let mut named: Vec<_> = named.collect();
    named.sort_unstable_by_key(|(_, until)| Reverse(until.boot_micros()));
    // The lease of a server ends with the oldest answer that it needs.
    let mut primaries: Vec<(&Endpoint, Moment)> = Vec::new();
    for (index, (place, until)) in named.iter().enumerate() {
        let names = named.iter().take(index.saturating_add(1));
        if names.filter(|(other, _)| other == place).count() == needed {
            primaries.push((place, *until));
        }
    }
    match primaries[..] {
        [(place, until)] => return Ok((place.clone(), until)),
        [(one, _), (other, _), ..] => {
            let reason = format!("two primaries, {one} and {other}; stop the wrong one");
            return Err(NodeFailure::Unsuitable {
                reason: reason.into(),
            });
        }
        [] => {}
    }
    // A failure that needs somebody, if no server is named; otherwise the answer of each member.
    let mut failures = reports().filter_map(|it| it.named.as_ref().err());
    let to_mend = failures.find(|failure| failure.needs_somebody());
    if let Some(failure) = to_mend.filter(|_| named.is_empty()) {
        return Err(failure.clone());
    }
    let mut reason = "too few members name the same primary".to_owned();
    for (member, report) in &*members {
        let answer = match report.as_ref().map(|it| &it.named) {
            None => "no answer yet".to_owned(),
            Some(Ok(None)) => "a replica".to_owned(),
            Some(Ok(Some(place))) => place.to_string(),
            Some(Err(failure)) => failure.to_string(),
        };
        reason += &format!(", {member}: {answer}");
    }
    Err(NodeFailure::NoPrimary {
        reason: reason.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::quorum;

    fn at(second: u64) -> Moment {
        Moment::at(Duration::from_secs(second), Duration::from_secs(second))
    }

    fn place(host: &str) -> Endpoint {
        Endpoint::Tcp {
            host: host.to_owned(),
            port: 1,
        }
    }

    fn names(host: &str, second: u64) -> Option<Report> {
        Some(Report {
            asked: at(second),
            named: Ok(Some(place(host))),
        })
    }

    fn replica() -> Option<Report> {
        Some(Report {
            asked: at(100),
            named: Ok(None),
        })
    }

    fn fails(failure: NodeFailure) -> Option<Report> {
        Some(Report {
            asked: at(100),
            named: Err(failure),
        })
    }

    fn chosen(
        needed: usize,
        reports: &[Option<Report>],
        second: u64,
    ) -> Result<(Endpoint, u64), NodeFailure> {
        let members = ["m0", "m1", "m2", "m3", "m4"].map(Arc::from);
        let mut members: Vec<_> = members.into_iter().zip(reports.iter().cloned()).collect();
        let (place, until) = choose(&mut members, needed, at(second))?;
        Ok((place, until.boot_micros() / 1_000_000))
    }

    #[test]
    fn the_lease_of_a_server_counts_from_the_oldest_question_that_a_majority_needs() {
        let reports = [names("a", 100), names("a", 98), names("a", 99)];
        assert_eq!(chosen(2, &reports, 100), Ok((place("a"), 101)));
        let one_behind = names("b", 100);
        let silent = None;
        assert_eq!(
            chosen(2, &[names("a", 99), names("a", 100), one_behind], 100),
            Ok((place("a"), 101))
        );
        assert_eq!(
            chosen(2, &[names("a", 99), names("a", 100), silent], 100),
            Ok((place("a"), 101))
        );
        assert!(chosen(2, &reports, 101).is_err(), "one answer alone counts");
    }

    #[test]
    fn disagreeing_members_choose_no_server_and_each_is_in_the_failure() {
        let timed_out = || fails(NodeFailure::TimedOut);
        for (reports, rows) in [
            (
                [names("a", 100), names("b", 100), timed_out()],
                "m0: a:1, m1: b:1, m2: no answer in time",
            ),
            (
                [names("a", 100), replica(), None],
                "m0: a:1, m1: a replica, m2: no answer yet",
            ),
        ] {
            let failure = chosen(2, &reports, 100).unwrap_err();
            assert!(failure.to_string().ends_with(rows), "{failure}");
            assert!(matches!(failure, NodeFailure::NoPrimary { .. }));
        }
    }

    #[test]
    fn of_two_servers_that_both_claim_to_be_the_primary_neither_counts() {
        let failure = chosen(1, &[names("a", 100), replica(), names("b", 99)], 100).unwrap_err();
        assert!(
            failure
                .to_string()
                .starts_with("two primaries, a:1 and b:1")
        );
        let outdated = chosen(1, &[names("a", 100), replica(), names("b", 98)], 100);
        assert_eq!(outdated, Ok((place("a"), 102)));
        assert_eq!(
            chosen(1, &[names("a", 100), None], 100),
            Ok((place("a"), 102))
        );
    }

    #[test]
    fn a_wrong_password_is_the_failure_while_no_server_is_named() {
        let refused = || fails(NodeFailure::WRONG_PASSWORD);
        let failure = chosen(1, &[replica(), refused(), None], 100);
        assert_eq!(failure, Err(NodeFailure::WRONG_PASSWORD));
        let failure = chosen(2, &[refused(), names("a", 100), refused()], 100).unwrap_err();
        assert!(
            matches!(failure, NodeFailure::NoPrimary { .. }),
            "{failure}"
        );
    }

    /// Two clients of the same members, each with some of the answers, never choose different
    /// servers at once.
    #[test]
    fn two_clients_with_answers_of_different_members_choose_one_server() {
        let minds = ["a", "b", "c"];
        for count in 1..=4_u32 {
            for world in 0..minds.len().pow(count) {
                let sent: Vec<_> = (0..count)
                    .map(|member| names(minds[world / minds.len().pow(member) % minds.len()], 100))
                    .collect();
                let mut all = Vec::new();
                for received in 0..1_u32 << count {
                    let receive = |(member, it): (u32, &Option<Report>)| {
                        it.clone().filter(|_| received >> member & 1 == 1)
                    };
                    let reports: Vec<_> = (0..).zip(&sent).map(receive).collect();
                    all.extend(chosen(quorum(reports.len()), &reports, 100).ok());
                }
                all.dedup();
                assert!(all.len() <= 1, "{sent:?}: {all:?}");
            }
        }
    }
}
