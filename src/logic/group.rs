//! A node that is more than one process: which of them is the master, and how long its leader lease is.
//!
//! Whoever makes another server the master asks nobody here, and the old master may live on, cut off together with some of
//! its clients. So what the master grants counts only for a while after its group was asked, and a master that is new keeps
//! silent for that much longer.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{MemberAnswer, MemberReport, NodeFailure};
use crate::logic::quorum::quorum;

/// How often the members are asked while there is a connection: a third of the ttl, between these.
const ASKED_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// So long sentinels may name a master after another one was promoted: they tell each other of it every two seconds.
const SENTINELS_SPREAD: Duration = Duration::from_secs(5);

/// How often the members are asked, and for how long an answer counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Rhythm {
    /// How often they are asked while there is a connection.
    pub(crate) every: Duration,
    /// How long they may take to answer.
    pub(crate) probe_timeout: Duration,
    /// For how long after the question the answer counts.
    pub(crate) leader_lease: Duration,
}

impl Rhythm {
    pub(crate) fn new(ttl: Duration, connect_timeout: Duration) -> Rhythm {
        let (shortest, longest) = ASKED_EVERY;
        let every = ttl.checked_div(3).unwrap_or(ttl).clamp(shortest, longest);
        // The other half is for the connection to the master.
        let probe_timeout = connect_timeout.checked_div(2).unwrap_or(connect_timeout);
        let leader_lease = every.saturating_add(probe_timeout).saturating_mul(2);
        Rhythm {
            every,
            probe_timeout,
            leader_lease,
        }
    }

    /// How much longer than others a node is quarantined: others may count what the old master grants for so long.
    pub(crate) fn silence(self, sentinels: bool) -> Duration {
        if sentinels {
            self.leader_lease.saturating_add(SENTINELS_SPREAD)
        } else {
            self.leader_lease
        }
    }
}

pub(crate) const NO_MASTER: &str = "none of its servers says that it is a master";
const DISAGREEING: &str = "no majority of its sentinels names the newest master, so a failover is under way, or some are cut off";

fn two_masters(first: &str, second: &str) -> NodeFailure {
    let reason = format!(
        "two of its servers say that they are masters, {first} and {second}; stop the one that is not, or make it a replica of the other"
    );
    NodeFailure::Unsuitable {
        reason: reason.into(),
    }
}

/// The one server that says that it is the master, by its place in the list. `shown`: their addresses.
pub(crate) fn only_master(said: &[MemberAnswer], shown: &[Arc<str>]) -> Result<usize, NodeFailure> {
    let mut masters = (0..)
        .zip(said)
        .filter_map(|(index, it)| (*it == MemberAnswer::Master).then_some(index));
    let name = |index: usize| {
        shown
            .get(index)
            .map(|it| it.to_string())
            .unwrap_or_default()
    };
    match (masters.next(), masters.next()) {
        (Some(first), Some(second)) => Err(two_masters(&name(first), &name(second))),
        (Some(index), None) => Ok(index),
        (None, _) => Err(NodeFailure::NoMaster {
            reason: NO_MASTER.into(),
            said: reports(said, shown),
        }),
    }
}

/// Where the master is: what the newest configuration says, if a majority of the configured sentinels says so. One that is
/// behind is outvoted; and while a new configuration is only known to some of them, nobody is the master.
pub(crate) fn named_master(
    said: &[MemberAnswer],
    shown: &[Arc<str>],
    name: &str,
) -> Result<(String, u16), NodeFailure> {
    let needed = quorum(said.len());
    let answered = said
        .iter()
        .filter(|it| !matches!(it, MemberAnswer::Failed(_)))
        .count();
    if answered < needed {
        let refused =
            |it: &&MemberAnswer| matches!(it, MemberAnswer::Failed(NodeFailure::Access { .. }));
        if let Some(MemberAnswer::Failed(refused)) = said.iter().find(refused) {
            return Err(refused.clone());
        }
        let reason = format!(
            "{answered} of {} sentinels answered, and a majority is needed",
            said.len()
        );
        return Err(NodeFailure::NoMaster {
            reason: reason.into(),
            said: reports(said, shown),
        });
    }
    let unknown = said
        .iter()
        .filter(|it| **it == MemberAnswer::UnknownMaster)
        .count();
    if needed <= unknown {
        let reason = format!(
            "its sentinels know no master {name}; correct the name in the URL, or run SENTINEL MONITOR there"
        );
        return Err(NodeFailure::Unsuitable {
            reason: reason.into(),
        });
    }
    let named = said.iter().filter_map(|it| match it {
        MemberAnswer::Named { host, port, epoch } => Some((*epoch, (host, *port))),
        _ => None,
    });
    let newest = named.clone().map(|it| it.0).max();
    // One that is behind may name it as well, from before.
    let votes = |master| named.clone().filter(|it| it.1 == master).count();
    let mut masters = named
        .clone()
        .filter(|it| Some(it.0) == newest)
        .map(|it| it.1);
    let Some(master) = masters.find(|it| needed <= votes(*it)) else {
        return Err(NodeFailure::NoMaster {
            reason: DISAGREEING.into(),
            said: reports(said, shown),
        });
    };
    Ok((master.0.clone(), master.1))
}

/// Those that could not be asked, or that name another master than this, in a line; empty if there are none.
pub(crate) fn failing(reports: &[MemberReport], master: Option<(&str, u16)>) -> String {
    let fails = |it: &&MemberReport| match &it.answer {
        MemberAnswer::Master | MemberAnswer::Replica => false,
        MemberAnswer::Named { host, port, .. } => master.is_some_and(|it| it != (&**host, *port)),
        MemberAnswer::UnknownMaster | MemberAnswer::Failed(_) => true,
    };
    reports
        .iter()
        .filter(fails)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Whether there is no master any more that could have the leader lease, or more than one; otherwise nobody knows.
pub(crate) fn ends_a_master(failure: &NodeFailure) -> bool {
    matches!(failure, NodeFailure::Unsuitable { .. })
}

/// What each of them said.
pub(crate) fn reports(said: &[MemberAnswer], shown: &[Arc<str>]) -> Vec<MemberReport> {
    shown
        .iter()
        .zip(said)
        .map(|(address, said)| MemberReport::new(Arc::clone(address), said.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(n: usize) -> Vec<Arc<str>> {
        ["a:1", "b:2", "c:3", "d:4", "e:5"]
            .into_iter()
            .take(n)
            .map(Arc::from)
            .collect()
    }

    fn silent() -> MemberAnswer {
        MemberAnswer::Failed(NodeFailure::TimedOut)
    }

    fn named(host: &str, epoch: u64) -> MemberAnswer {
        MemberAnswer::Named {
            host: host.to_owned(),
            port: 1,
            epoch,
        }
    }

    fn master(said: &[MemberAnswer]) -> Result<usize, NodeFailure> {
        only_master(said, &shown(said.len()))
    }

    fn found(said: &[MemberAnswer]) -> Result<String, NodeFailure> {
        named_master(said, &shown(said.len()), "m").map(|it| it.0)
    }

    #[test]
    fn the_one_server_that_says_that_it_is_the_master_is_whoever_else_is_silent() {
        use MemberAnswer::{Master, Replica};
        assert_eq!(master(&[Replica, silent(), Master]), Ok(2));
        assert_eq!(master(&[Master]), Ok(0));
        let two = two_masters("b:2", "c:3");
        assert_eq!(
            master(&[Replica, Master, Master]),
            Err(two.clone()),
            "neither counts"
        );
        assert_eq!(master(&[silent(), Master, Master, Master]), Err(two));
        let none = master(&[Replica, silent()]).unwrap_err();
        assert!(
            none.to_string()
                .ends_with(": a:1: a replica; b:2: no answer in time"),
            "{none}"
        );
    }

    #[test]
    fn a_majority_of_the_configured_sentinels_has_to_name_the_newest_master() {
        let (a, b) = (|| named("a", 1), || named("b", 2));
        assert_eq!(found(&[a()]), Ok("a".to_owned()));
        assert_eq!(found(&[a(), a(), silent()]), Ok("a".to_owned()));
        assert_eq!(found(&[b(), a(), b()]), Ok("b".to_owned()), "one is behind");
        assert_eq!(
            found(&[named("b", 1), a(), b()]),
            Ok("b".to_owned()),
            "one has it from another configuration"
        );
        assert_eq!(
            found(&[named("b", 1), a(), a()]),
            Ok("a".to_owned()),
            "one says something else of the same number"
        );
        for said in [
            vec![b(), a(), a()],
            vec![b(), a(), silent()],
            vec![b(), a()],
            vec![a(), named("b", 1), silent()],
        ] {
            assert!(
                matches!(found(&said), Err(NodeFailure::NoMaster { reason, .. }) if reason == DISAGREEING),
                "{said:?}"
            );
        }
        for said in [
            vec![a(), silent(), silent()],
            vec![a(), silent()],
            vec![silent()],
            vec![a(), a(), silent(), silent()],
        ] {
            let (failure, answered) = (
                found(&said).unwrap_err(),
                said.iter().filter(|it| **it != silent()).count(),
            );
            let words = format!("{answered} of {} sentinels answered", said.len());
            assert!(
                failure.to_string().starts_with(&words),
                "{said:?}: {failure}"
            );
        }
    }

    /// Two clients that ask the same sentinels, and each hears of some of them only, never find two masters as long as
    /// no sentinel has changed its mind in between.
    #[test]
    fn two_who_hear_different_sentinels_never_find_different_masters() {
        let minds = [
            named("a", 1),
            named("b", 2),
            named("c", 2),
            named("a", 3),
            MemberAnswer::UnknownMaster,
        ];
        for n in 1..=4_u32 {
            for world in 0..minds.len().pow(n) {
                let said: Vec<_> = (0..n)
                    .map(|i| minds[world / minds.len().pow(i) % minds.len()].clone())
                    .collect();
                let mut masters = Vec::new();
                for heard in 0..1_u32 << n {
                    let hears = |(i, it): (u32, &MemberAnswer)| {
                        if heard >> i & 1 == 1 {
                            it.clone()
                        } else {
                            silent()
                        }
                    };
                    masters.extend(found(&(0..).zip(&said).map(hears).collect::<Vec<_>>()).ok());
                }
                masters.dedup();
                assert!(masters.len() <= 1, "{said:?}: {masters:?}");
            }
        }
    }

    #[test]
    fn sentinels_that_know_no_such_master_or_refuse_the_login_say_so() {
        let (unknown, refused) = (
            || MemberAnswer::UnknownMaster,
            || MemberAnswer::Failed(NodeFailure::WRONG_PASSWORD),
        );
        for other in [named("a", 1), silent()] {
            let failure = found(&[unknown(), unknown(), other]).unwrap_err();
            assert!(
                failure
                    .to_string()
                    .starts_with("its sentinels know no master m; ")
                    && ends_a_master(&failure)
            );
        }
        assert!(matches!(
            found(&[unknown(), named("a", 1), silent()]),
            Err(NodeFailure::NoMaster { .. })
        ));
        assert_eq!(
            found(&[unknown(), named("a", 1), named("a", 1)]),
            Ok("a".to_owned())
        );
        assert_eq!(
            found(&[refused(), silent(), silent()]),
            Err(NodeFailure::WRONG_PASSWORD)
        );
        assert_eq!(
            found(&[refused(), named("a", 1), named("a", 1)]),
            Ok("a".to_owned())
        );
    }

    #[test]
    fn who_could_not_be_asked_or_names_another_master_than_most_is_said_to_fail() {
        let failing = |said: &[MemberAnswer], master| {
            super::failing(&reports(said, &shown(said.len())), master)
        };
        use MemberAnswer::{Master, Replica, UnknownMaster};
        assert_eq!(
            failing(&[Master, Replica, silent()], Some(("a", 1))),
            "c:3: no answer in time"
        );
        assert_eq!(failing(&[named("a", 1), named("a", 0)], Some(("a", 1))), "");
        let said = [named("b", 1), named("a", 2), UnknownMaster];
        assert_eq!(
            failing(&said, Some(("a", 1))),
            "a:1: b:1 by configuration 1; c:3: knows no such master"
        );
        assert_eq!(failing(&said[..2], None), "", "nobody knows who is right");
    }

    #[test]
    fn a_master_is_none_any_more_when_there_are_two_and_not_because_nobody_answers() {
        assert!(ends_a_master(&two_masters("a:1", "b:1")));
        assert!(!ends_a_master(&NodeFailure::UNCONFIRMED));
    }

    #[test]
    fn a_promoted_server_is_silent_for_longer_than_the_old_one_is_believed() {
        let ms = Duration::from_millis;
        let rhythm = Rhythm::new(ms(10_000), ms(250));
        assert_eq!(
            rhythm,
            Rhythm {
                every: ms(1_000),
                probe_timeout: ms(125),
                leader_lease: ms(2_250)
            }
        );
        assert_eq!(Rhythm::new(ms(1_500), ms(250)).every, ms(500));
        assert_eq!(Rhythm::new(ms(100), ms(250)).every, ms(100));
        assert_eq!(
            (rhythm.silence(false), rhythm.silence(true)),
            (ms(2_250), ms(7_250))
        );
        for ttl in [100, 10_000, 3_600_000] {
            let rhythm = Rhythm::new(ms(ttl), ms(60_000));
            assert!(
                rhythm.every + rhythm.probe_timeout < rhythm.leader_lease,
                "one question may be lost"
            );
        }
    }
}
