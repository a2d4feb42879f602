//! The present server of a node.
//!
//! A plain address is that server. Otherwise the *members* of the node name it: Sentinels, servers
//! that replicate each other, or servers of a cluster. A watcher thread per member asks it over a
//! connection of its own. The node connects to the server that enough members name, and its grants
//! count within a lease: enough members named it shortly before. An old primary that is cut off
//! together with its client therefore grants nothing that counts.

mod choice;
mod question;
mod url;
mod watcher;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use self::choice::{LEASE, Report, choose};
use self::question::Question;
pub(crate) use self::url::NodeAddress;
use self::watcher::{QUESTION_PAUSE, Watcher};
use crate::engine::nodes::server::Server;
use crate::error::NodeFailure;
use crate::logic::quorum;
use crate::sys::{OwnThread, Poll};
use crate::time::Moment;
use crate::wire::{Address, Endpoint};

/// Time after a promotion within which other clients may count what the old primary grants: the
/// lease, and five seconds within which members may name it because they notify each other now and
/// then.
pub(crate) const OVERLAP: Duration = LEASE.saturating_add(Duration::from_secs(5));

/// See the module.
pub(crate) struct Primary {
    /// Address of the server. With members its place follows them.
    pub(super) server: Address,
    /// Number of members that have to name the same server.
    needed: usize,
    /// Address and last answer of each member. None, for a plain address.
    members: Vec<(Arc<str>, Option<Report>)>,
    answers: Receiver<(usize, Report)>,
    /// Channels on which watchers wait for the next question. Closed, they end the watchers.
    questions: Vec<Sender<()>>,
    /// End of the lease of the server in use.
    until: Moment,
}

impl Primary {
    /// Starts a watcher per member, into `threads`. They touch no network before
    /// [`Primary::begin_search`], and wake the worker of `server` after an answer.
    pub(crate) fn start(
        address: NodeAddress,
        server: &Arc<Server>,
        threads: &mut Vec<OwnThread>,
    ) -> io::Result<Primary> {
        // The rest of the time to connect is for the server.
        let half = server
            .common
            .connect_timeout
            .checked_div(2)
            .unwrap_or_default();
        let (answered, answers) = unbounded();
        let mut primary = Primary {
            server: address.server,
            needed: match address.question {
                Question::Role => 1,
                _ => quorum(address.members.len()),
            },
            members: Vec::new(),
            answers,
            questions: Vec::new(),
            until: Moment::now(),
        };
        for (index, member) in address.members.into_iter().enumerate() {
            let (ask, asked) = bounded(1);
            primary.members.push((member.shown(), None));
            primary.questions.push(ask);
            let answered = answered.clone();
            let server = Arc::clone(server);
            let name = format!("quorlock-{}-watch{index}", server.id);
            let watcher = Watcher {
                member,
                question: address.question.clone(),
                timeout: half.min(QUESTION_PAUSE),
                poll: Poll::new()?,
                asked,
                report: move |report| {
                    _ = answered.send((index, report));
                    server.wake_worker();
                },
            };
            threads.push(OwnThread::spawn(name, move || watcher.run())?);
        }
        Ok(primary)
    }

    /// Begins to look for the server: earlier answers do not count.
    pub(crate) fn begin_search(&mut self) {
        self.members.iter_mut().for_each(|it| it.1 = None);
        // A full channel: the question is on its way.
        self.questions.iter().for_each(|ask| _ = ask.try_send(()));
    }

    /// Where to connect to. `None`: members have not answered, and the wait for them `is_late` not
    /// yet.
    ///
    /// Where one answer is enough all members have to answer: of two servers that claim to be the
    /// primary neither counts.
    pub(crate) fn find(&mut self, is_late: bool) -> Option<Result<Address, NodeFailure>> {
        if self.members.is_empty() {
            return Some(Ok(self.server.clone()));
        }
        let chosen = self.choose();
        let is_missing = !is_late && self.members.iter().any(|it| it.1.is_none());
        match chosen {
            Ok((place, until)) if self.needed != 1 || !is_missing => {
                self.until = until;
                self.server = self.server.at(place);
                Some(Ok(self.server.clone()))
            }
            Err(failure) if !is_missing => Some(Err(failure)),
            _ => None,
        }
    }

    /// Until when grants of the server count, or why it is not the primary any more. `None`: a
    /// plain address always is.
    ///
    /// RACE: T1, this process, is paused; T2 promotes another server; T1 continues, and the old
    /// primary answers first. Therefore one answer renews an ended lease only if all members
    /// answered within the last lease. A slow connection, or a slow name of the server, ends leases
    /// as well.
    pub(crate) fn confirmed_until(&mut self) -> Option<Result<Moment, NodeFailure>> {
        if self.members.is_empty() {
            return None;
        }
        let chosen = self.choose();
        let has_ended = Moment::now().until(self.until).is_zero();
        let is_missing = self.members.iter().any(|it| it.1.is_none());
        Some(chosen.and_then(|(place, until)| {
            if place != self.server.place || self.needed == 1 && is_missing && has_ended {
                return Err(NodeFailure::UNCONFIRMED);
            }
            self.until = until;
            Ok(until)
        }))
    }

    fn choose(&mut self) -> Result<(Endpoint, Moment), NodeFailure> {
        for (index, report) in self.answers.try_iter() {
            if let Some((_, last)) = self.members.get_mut(index) {
                // A failed answer ends no lease: the earlier answer counts until its end.
                if report.named.is_ok() || last.as_ref().is_none_or(|it| it.named.is_err()) {
                    *last = Some(report);
                }
            }
        }
        choose(&mut self.members, self.needed, Moment::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(at: Moment, place: Option<&Endpoint>) -> Option<Report> {
        Some(Report {
            asked: at,
            named: Ok(place.cloned()),
        })
    }

    #[test]
    fn one_answer_renews_an_ended_lease_only_if_all_members_have_answered() {
        let server = Address::parse("redis://a").unwrap();
        let now = Moment::now();
        let long_ago = Moment::at(Duration::ZERO, Duration::ZERO);
        let until = |now: Moment| now.checked_add(Duration::from_secs(1)).unwrap();
        let named = report(now, Some(&server.place));
        let renewed = |needed, other, until| {
            let members = [named.clone(), other];
            let mut primary = Primary {
                server: server.clone(),
                needed,
                members: members.map(|it| ("m".into(), it)).into(),
                answers: unbounded().1,
                questions: Vec::new(),
                until,
            };
            primary.confirmed_until().unwrap()
        };
        let silent = report(long_ago, None);
        assert!(renewed(1, silent.clone(), until(now)).is_ok());
        assert_eq!(
            renewed(1, silent, now),
            Err(NodeFailure::UNCONFIRMED),
            "another may be the primary"
        );
        assert!(renewed(1, report(now, None), now).is_ok());
        assert!(renewed(2, report(now, Some(&server.place)), now).is_ok());
    }
}
