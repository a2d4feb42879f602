//! Releases that a node has not confirmed, kept to be sent again.

use std::collections::VecDeque;

use std::time::Duration;

use crate::engine::nodes::job::Job;
use crate::time::Tick;

/// How many are kept for one server. A node can refuse every release and break every connection, and each is
/// worth sending for as long as its key may live.
const RELEASES_MAX: usize = 16 * 1024;

/// How long after releases that the server refused some are sent again.
const PAUSE: Duration = Duration::from_millis(100);
/// How many are sent again after each pause as long as none is taken: all of them, ten times a second, would be more than
/// everything else that the node is asked.
const PROBES: usize = 16;

/// Releases in the order in which they are sent again: what a lost connection owes, and what the server refused.
pub(crate) struct Unconfirmed {
    jobs: VecDeque<Job>,
    max: usize,
    /// The server has refused them, and none that was sent again was taken: when the next few are sent.
    probe_at: Option<Tick>,
    /// Some were given up since it was empty.
    overflowed: bool,
    /// How many times a kept release was looked at.
    #[cfg(test)]
    looks: usize,
}

/// What follows from a release that was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Refused {
    /// The log should warn: an older one was given up for it.
    pub(crate) overflowed: bool,
    /// Nobody has planned to send any again: whoever does has to be woken.
    pub(crate) is_first: bool,
}

impl Default for Unconfirmed {
    fn default() -> Unconfirmed {
        Unconfirmed::with_room_for(RELEASES_MAX)
    }
}

impl Unconfirmed {
    fn with_room_for(max: usize) -> Unconfirmed {
        Unconfirmed {
            jobs: VecDeque::new(),
            max,
            probe_at: None,
            overflowed: false,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Keeps a release, unless its key has expired. Where there is no room the oldest one is given up: its key is the next to
    /// expire by itself. True if the log should warn of that.
    ///
    /// Expired ones in front make room, one look for each. A look at all of them costs more than all other work of the
    /// reading thread as soon as a node refuses every release.
    pub(crate) fn keep(&mut self, mut job: Job, now: Tick) -> bool {
        if !job.is_worth_keeping(now) {
            return false;
        }
        while self
            .jobs
            .front()
            .is_some_and(|it| !it.is_worth_keeping(now))
        {
            self.note_look();
            self.jobs.pop_front();
        }
        self.note_look();
        let full = self.jobs.len() == self.max;
        if full {
            self.jobs.pop_front();
        }
        // It goes out with all others that are kept.
        job.is_alone = false;
        self.jobs.push_back(job);
        full && !std::mem::replace(&mut self.overflowed, true)
    }

    /// All of them whose keys may still be there. What the server refuses after that is planned anew.
    pub(crate) fn take_all(&mut self, now: Tick) -> Vec<Job> {
        self.probe_at = None;
        self.take(now, usize::MAX)
    }

    /// Keeps a release that the server has refused; it is sent again after a pause.
    pub(crate) fn keep_refused(&mut self, mut job: Job, now: Tick) -> Refused {
        let is_first = self.probe_at.is_none() || self.is_empty();
        self.probe_at
            .get_or_insert(now.checked_add(PAUSE).unwrap_or(now));
        job.was_refused = true;
        Refused {
            overflowed: self.keep(job, now),
            is_first,
        }
    }

    /// The server has taken one that it had refused: it may take the others. True if they may go now.
    pub(crate) fn on_taken(&mut self) -> bool {
        self.probe_at.take().is_some()
    }

    /// Those that are sent again now, and when to look again: all of them, or a few only after each pause where the server has
    /// refused those that are kept.
    pub(crate) fn take_due(&mut self, now: Tick) -> (Vec<Job>, Option<Tick>) {
        let due = match self.probe_at {
            None => self.take_all(now),
            Some(probe_at) if now < probe_at => Vec::new(),
            Some(_) => {
                let probes = self.take(now, PROBES);
                self.probe_at = if probes.is_empty() {
                    None
                } else {
                    now.checked_add(PAUSE)
                };
                probes
            }
        };
        (due, self.probe_at.filter(|_| !self.is_empty()))
    }

    fn take(&mut self, now: Tick, most: usize) -> Vec<Job> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(job) = self.jobs.pop_front()
        {
            self.note_look();
            taken.extend(job.is_worth_keeping(now).then_some(job));
        }
        if self.is_empty() {
            self.overflowed = false;
        }
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn note_look(&mut self) {
        #[cfg(test)]
        {
            self.looks = self.looks.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::ids::OwnerToken;
    use crate::time;
    use crate::wire::{Command, KeyTtls, Plan, QueueUpdate};

    fn after(start: Tick, seconds: u64) -> Tick {
        start.checked_add(Duration::from_secs(seconds)).unwrap()
    }

    fn command(name: &str) -> Arc<Command> {
        let plan = Plan::mutex(b"", name.as_bytes(), KeyTtls::default());
        Arc::new(plan.release(OwnerToken::nobody(), None, QueueUpdate::None))
    }

    fn is(job: &Job, name: &str) -> bool {
        job.command.packed() == command(name).packed()
    }

    #[test]
    fn h7_there_is_an_end_to_the_releases_that_are_kept_and_the_oldest_are_given_up_and_said_to_be_once()
     {
        let start = time::tick();
        let mut kept = Unconfirmed::with_room_for(2);
        let mut keep = |name: &str| {
            let job = Job::release(command(name), None, after(start, 100));
            kept.keep(job, start)
        };
        assert_eq!(
            ["a", "b", "c", "d"].map(&mut keep),
            [false, false, true, false]
        );

        let (due, next) = kept.take_due(start);

        assert!(
            matches!(&due[..], [c, d] if is(c, "c") && is(d, "d")),
            "{} are due",
            due.len()
        );
        assert_eq!(next, None);
        assert!(kept.is_empty());
    }

    #[test]
    fn a_release_whose_key_has_expired_makes_room_for_others() {
        let start = time::tick();
        let mut kept = Unconfirmed::with_room_for(2);
        for (name, seconds) in [("a", 10), ("b", 100)] {
            assert!(!kept.keep(
                Job::release(command(name), None, after(start, seconds)),
                start
            ));
        }
        let late = Job::release(command("c"), None, after(start, 100));
        assert!(!kept.keep(late, after(start, 20)));
        let expired = Job::release(command("d"), None, after(start, 10));
        assert!(!kept.keep(expired, after(start, 20)));

        let (due, _) = kept.take_due(after(start, 20));

        assert!(
            matches!(&due[..], [b, c] if is(b, "b") && is(c, "c")),
            "{} are due",
            due.len()
        );
    }

    #[test]
    fn h23_a_refused_release_costs_one_look_and_one_more_when_it_expires() {
        let start = time::tick();
        let mut kept = Unconfirmed::default();
        let mut refuse = |count: usize, now: Tick| {
            for _ in 0..count {
                kept.keep_refused(Job::release(command("a"), None, after(now, 10)), now);
            }
            kept.looks
        };
        // Twice as many as fit. Then as many as fit, when all of those have expired.
        assert_eq!(refuse(2 * RELEASES_MAX, start), 2 * RELEASES_MAX);
        assert_eq!(refuse(RELEASES_MAX, after(start, 20)), 4 * RELEASES_MAX);
    }

    #[test]
    fn h23_a_pause_before_refused_releases_go_again_needs_one_wake_up() {
        let start = time::tick();
        let mut kept = Unconfirmed::default();
        let refuse = |kept: &mut Unconfirmed, now| {
            kept.keep_refused(Job::release(command("a"), None, after(start, 100)), now)
                .is_first
        };
        assert_eq!(
            [start; 3].map(|now| refuse(&mut kept, now)),
            [true, false, false]
        );

        // All of them are on their way, so nothing is planned.
        let later = start.checked_add(PAUSE).unwrap();
        assert!(matches!(kept.take_due(later), (few, None) if few.len() == 3));
        assert_eq!([later; 2].map(|now| refuse(&mut kept, now)), [true, false]);

        // One was taken: those that are refused after that are planned anew.
        assert!(kept.on_taken());
        assert!(refuse(&mut kept, later));
    }

    #[test]
    fn h7_of_releases_that_are_refused_a_few_are_sent_after_each_pause_and_all_once_one_is_taken() {
        let start = time::tick();
        let later = |pauses: u32| start.checked_add(PAUSE.saturating_mul(pauses)).unwrap();
        let mut kept = Unconfirmed::default();
        let long = PROBES.saturating_mul(3).saturating_add(1);
        for _ in 0..long {
            kept.keep(Job::release(command("a"), None, after(start, 100)), start);
        }
        kept.keep(Job::release(command("a"), None, after(start, 1)), start);
        kept.probe_at = Some(later(1));

        assert!(
            matches!(kept.take_due(start), (few, Some(next)) if few.is_empty() && next == later(1))
        );
        for pauses in [1, 2] {
            let next = later(pauses + 1);
            assert!(
                matches!(kept.take_due(later(pauses)), (few, Some(it)) if few.len() == PROBES && it == next)
            );
            assert!(
                matches!(kept.take_due(later(pauses)), (few, Some(it)) if few.is_empty() && it == next)
            );
        }
        assert!(kept.on_taken());
        assert!(matches!(kept.take_due(later(2)), (all, None) if all.len() == PROBES + 2));

        // What has expired meanwhile is no probe.
        kept.keep(Job::release(command("a"), None, after(start, 1)), start);
        kept.probe_at = Some(later(1));
        assert!(matches!(kept.take_due(after(start, 2)), (few, None) if few.is_empty()));
        assert_eq!(kept.probe_at, None);
    }

    #[test]
    fn a_new_connection_is_given_all_that_is_kept_whatever_was_refused() {
        let start = time::tick();
        let mut kept = Unconfirmed::default();
        kept.keep_refused(Job::release(command("a"), None, after(start, 100)), start);
        kept.keep(Job::release(command("b"), None, after(start, 100)), start);
        kept.keep(Job::release(command("c"), None, after(start, 1)), start);

        assert!(matches!(&kept.take_all(after(start, 2))[..], [a, b] if is(a, "a") && is(b, "b")));

        assert!(
            kept.keep_refused(Job::release(command("a"), None, after(start, 100)), start)
                .is_first
        );
    }
}
