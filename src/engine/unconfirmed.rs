//! Releases that a node has not confirmed, kept to be sent again.

use std::collections::VecDeque;

use crate::engine::outbox::Job;
use crate::time::Tick;

/// How many are kept of one kind for one node. A node can refuse every release and break every connection, and each is
/// worth sending for as long as its key may live.
const RELEASES_MAX: usize = 16 * 1024;

/// Releases in the order in which they are sent again.
pub(crate) struct Unconfirmed {
    jobs: VecDeque<(Tick, Job)>,
    max: usize,
    /// Some were given up since it was empty.
    overflowed: bool,
}

impl Default for Unconfirmed {
    fn default() -> Unconfirmed {
        Unconfirmed::with_room_for(RELEASES_MAX)
    }
}

impl Unconfirmed {
    fn with_room_for(max: usize) -> Unconfirmed {
        Unconfirmed { jobs: VecDeque::new(), max, overflowed: false }
    }

    /// Keeps a release, to be sent at `again_at` or later, unless its key has expired by then. Where there is no room the
    /// oldest one is given up: its key is the next to expire by itself. True if that should be said.
    pub(crate) fn keep(&mut self, job: Job, now: Tick, again_at: Tick) -> bool {
        if !job.is_worth_keeping(again_at) {
            return false;
        }
        if self.jobs.len() == self.max {
            self.jobs.retain(|(_, it)| it.is_worth_keeping(now));
        }
        let full = self.jobs.len() == self.max;
        if full {
            self.jobs.pop_front();
        }
        self.jobs.push_back((again_at, job));
        full && !std::mem::replace(&mut self.overflowed, true)
    }

    /// Those that are due and whose keys may still be there, and when the next one is due.
    pub(crate) fn take_due(&mut self, now: Tick) -> (Vec<Job>, Option<Tick>) {
        let mut due = Vec::new();
        while let Some((again_at, job)) = self.jobs.pop_front() {
            if now < again_at {
                self.jobs.push_front((again_at, job));
                return (due, Some(again_at));
            }
            due.extend(job.is_worth_keeping(now).then_some(job));
        }
        self.overflowed = false;
        (due, None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::ids::OwnerToken;
    use crate::time;
    use crate::wire::{Command, Lives, Parting, Plan};

    fn after(start: Tick, seconds: u64) -> Tick {
        start.checked_add(Duration::from_secs(seconds)).unwrap()
    }

    fn command(name: &str) -> Arc<Command> {
        let plan = Plan::mutex(b"", name.as_bytes(), Lives::default());
        Arc::new(plan.release(OwnerToken::nobody(), None, Parting::None))
    }

    fn is(job: &Job, name: &str) -> bool {
        let written = |command: &Command| {
            let mut bytes = Vec::new();
            command.write_to(&mut bytes, false);
            bytes
        };
        written(&job.command) == written(&command(name))
    }

    #[test]
    fn h7_there_is_an_end_to_the_releases_that_are_kept_and_the_oldest_are_given_up_and_said_to_be_once() {
        let start = time::tick();
        let mut kept = Unconfirmed::with_room_for(2);
        let mut keep = |name: &str| {
            let job = Job::release(command(name), None, after(start, 100));
            kept.keep(job, start, start)
        };
        assert_eq!(["a", "b", "c", "d"].map(&mut keep), [false, false, true, false]);

        let (due, next) = kept.take_due(start);

        assert!(matches!(&due[..], [c, d] if is(c, "c") && is(d, "d")), "{} are due", due.len());
        assert_eq!(next, None);
        assert!(kept.is_empty());
    }

    #[test]
    fn a_release_whose_key_has_expired_makes_room_for_others() {
        let start = time::tick();
        let mut kept = Unconfirmed::with_room_for(2);
        for (name, seconds) in [("a", 100), ("b", 10)] {
            assert!(!kept.keep(Job::release(command(name), None, after(start, seconds)), start, start));
        }
        let late = Job::release(command("c"), None, after(start, 100));
        assert!(!kept.keep(late, after(start, 20), after(start, 20)));
        let expired = Job::release(command("d"), None, after(start, 10));
        assert!(!kept.keep(expired, after(start, 20), after(start, 20)));

        let (due, _) = kept.take_due(after(start, 20));

        assert!(matches!(&due[..], [a, c] if is(a, "a") && is(c, "c")), "{} are due", due.len());
    }

    #[test]
    fn releases_are_sent_again_when_their_pause_is_over() {
        let start = time::tick();
        let mut kept = Unconfirmed::default();
        for (name, seconds) in [("a", 1), ("b", 2)] {
            kept.keep(Job::release(command(name), None, after(start, 100)), start, after(start, seconds));
        }
        assert!(matches!(kept.take_due(start), (due, Some(next)) if due.is_empty() && next == after(start, 1)));
        assert!(
            matches!(kept.take_due(after(start, 1)), (due, Some(next)) if due.len() == 1 && next == after(start, 2))
        );
    }
}
