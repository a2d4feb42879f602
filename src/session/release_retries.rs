//! Unconfirmed releases of a server, kept for another send.

use std::collections::VecDeque;
use std::time::Duration;

use crate::session::pending_command::PendingCommand;
use crate::time::Tick;

/// Largest number of kept releases per server. A server can refuse every release and break every
/// connection, and each release is worth sending as long as its key may exist.
const RELEASES_MAX: usize = 16 * 1024;

/// Pause before refused releases are sent again.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of releases sent after each pause until the server takes one: all of them, ten times a
/// second, would be more than its other commands.
const PROBES: usize = 16;

/// Releases in the order of their next send: those of a lost connection and refused ones.
pub(crate) struct ReleaseRetries {
    releases: VecDeque<PendingCommand>,
    max: usize,
    /// Time of the next probes, if the server refuses releases.
    probe_at: Option<Tick>,
    /// Whether releases were dropped since the queue was empty.
    overflowed: bool,
    /// Number of checks of kept releases.
    #[cfg(test)]
    looks: usize,
}

impl Default for ReleaseRetries {
    fn default() -> ReleaseRetries {
        ReleaseRetries {
            releases: VecDeque::new(),
            max: RELEASES_MAX,
            probe_at: None,
            overflowed: false,
            #[cfg(test)]
            looks: 0,
        }
    }
}

impl ReleaseRetries {
    /// Keeps a release, unless its key has expired. A full queue drops the oldest one: its key is
    /// the next to expire. True if the drop is to be logged.
    ///
    /// Expired ones in front make room, with one check each. A check of all of them costs more than
    /// all other work of the reading thread once a server refuses every release.
    pub(crate) fn keep(&mut self, release: PendingCommand, now: Tick) -> bool {
        if !release.is_worth_keeping(now) {
            return false;
        }
        while self
            .releases
            .front()
            .is_some_and(|oldest| !oldest.is_worth_keeping(now))
        {
            self.note_look();
            self.releases.pop_front();
        }
        self.note_look();
        let is_full = self.releases.len() == self.max;
        if is_full {
            self.releases.pop_front();
        }
        self.releases.push_back(release);
        is_full && !std::mem::replace(&mut self.overflowed, true)
    }

    /// Keeps a refused release until after a pause. True if a drop is to be logged.
    pub(crate) fn keep_refused(&mut self, mut release: PendingCommand, now: Tick) -> bool {
        if !release.is_worth_keeping(now) {
            return false;
        }
        self.probe_at
            .get_or_insert(now.checked_add(PAUSE).unwrap_or(now));
        release.was_refused = true;
        self.keep(release, now)
    }

    /// The server took a refused release: it may take the others.
    pub(crate) fn on_taken(&mut self) {
        self.probe_at = None;
    }

    /// Takes all whose keys may still exist. Later refusals begin a new pause.
    pub(crate) fn take_all(&mut self, now: Tick) -> Vec<PendingCommand> {
        self.probe_at = None;
        self.take(now, usize::MAX)
    }

    /// Takes those to send now: all, or a few after each pause if the server refuses them.
    pub(crate) fn take_due(&mut self, now: Tick) -> Vec<PendingCommand> {
        match self.probe_at {
            None => self.take(now, usize::MAX),
            Some(probe_at) if now < probe_at => Vec::new(),
            Some(_) => {
                let probes = self.take(now, PROBES);
                self.probe_at = now.checked_add(PAUSE).filter(|_| !probes.is_empty());
                probes
            }
        }
    }

    /// Time of the next ones.
    pub(crate) fn due_at(&self) -> Option<Tick> {
        self.probe_at.filter(|_| !self.is_empty())
    }

    fn take(&mut self, now: Tick, most: usize) -> Vec<PendingCommand> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(release) = self.releases.pop_front()
        {
            self.note_look();
            taken.extend(release.is_worth_keeping(now).then_some(release));
        }
        if self.is_empty() {
            self.overflowed = false;
        }
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.releases.is_empty()
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
    use crate::wire::{Command, KeyTtls, LockCommands, Offer, QueueUpdate};

    fn after(start: Tick, seconds: u64) -> Tick {
        start.checked_add(Duration::from_secs(seconds)).unwrap()
    }

    fn command(name: &str) -> Arc<Command> {
        let commands = LockCommands::mutex(b"", name.as_bytes(), KeyTtls::default());
        Arc::new(commands.release(OwnerToken::nobody(), Offer::default(), QueueUpdate::None))
    }

    fn release(name: &str, keep_until: Tick) -> PendingCommand {
        PendingCommand::release(command(name), None, keep_until)
    }

    fn with_room_for_two() -> ReleaseRetries {
        ReleaseRetries {
            max: 2,
            ..ReleaseRetries::default()
        }
    }

    fn is(job: &PendingCommand, name: &str) -> bool {
        job.command.packed() == command(name).packed()
    }

    #[test]
    fn h7_kept_releases_have_a_limit_and_dropped_ones_are_reported_once() {
        let start = time::tick();
        let mut kept = with_room_for_two();
        let mut keep = |name: &str| {
            let job = release(name, after(start, 100));
            kept.keep(job, start)
        };
        assert_eq!(
            ["a", "b", "c", "d"].map(&mut keep),
            [false, false, true, false]
        );

        let due = kept.take_due(start);

        assert!(
            matches!(&due[..], [c, d] if is(c, "c") && is(d, "d")),
            "{} are due",
            due.len()
        );
        assert_eq!(kept.due_at(), None);
        assert!(kept.is_empty());
    }

    #[test]
    fn a_release_of_an_expired_key_makes_room_for_others() {
        let start = time::tick();
        let mut kept = with_room_for_two();
        for (name, seconds) in [("a", 10), ("b", 100)] {
            assert!(!kept.keep(release(name, after(start, seconds)), start));
        }
        let late = release("c", after(start, 100));
        assert!(!kept.keep(late, after(start, 20)));
        let expired = release("d", after(start, 10));
        assert!(!kept.keep(expired, after(start, 20)));

        let due = kept.take_due(after(start, 20));

        assert!(
            matches!(&due[..], [b, c] if is(b, "b") && is(c, "c")),
            "{} are due",
            due.len()
        );
    }

    #[test]
    fn h23_a_refused_release_is_visited_twice_at_most() {
        let start = time::tick();
        let mut kept = ReleaseRetries::default();
        let mut refuse = |count: usize, now: Tick| {
            for _ in 0..count {
                kept.keep_refused(release("a", after(now, 10)), now);
            }
            kept.looks
        };
        // Twice as many as fit. Then as many as fit, when all of those have expired.
        assert_eq!(refuse(2 * RELEASES_MAX, start), 2 * RELEASES_MAX);
        assert_eq!(refuse(RELEASES_MAX, after(start, 20)), 4 * RELEASES_MAX);
    }

    #[test]
    fn h7_refused_releases_are_probed_after_pauses_until_one_is_taken() {
        let start = time::tick();
        let later = |pauses: u32| start.checked_add(PAUSE.saturating_mul(pauses)).unwrap();
        let mut kept = ReleaseRetries::default();
        kept.keep_refused(release("a", after(start, 100)), start);
        for _ in 0..PROBES * 3 {
            kept.keep(release("a", after(start, 100)), start);
        }
        kept.keep(release("a", after(start, 1)), start);
        let sent = |kept: &mut ReleaseRetries, now| (kept.take_due(now).len(), kept.due_at());

        assert_eq!(sent(&mut kept, start), (0, Some(later(1))));
        for pauses in [1, 2] {
            let next = Some(later(pauses + 1));
            assert_eq!(sent(&mut kept, later(pauses)), (PROBES, next));
            assert_eq!(sent(&mut kept, later(pauses)), (0, next));
        }
        kept.on_taken();
        assert_eq!(sent(&mut kept, later(2)), (PROBES + 2, None));

        // An expired release is no probe.
        kept.keep_refused(release("a", after(start, 1)), start);
        assert_eq!(sent(&mut kept, after(start, 2)), (0, None));
        assert_eq!(kept.probe_at, None);
    }

    #[test]
    fn a_new_connection_gets_all_kept_releases() {
        let start = time::tick();
        let mut kept = ReleaseRetries::default();
        kept.keep_refused(release("a", after(start, 100)), start);
        kept.keep(release("b", after(start, 100)), start);
        kept.keep(release("c", after(start, 1)), start);

        assert!(matches!(&kept.take_all(after(start, 2))[..], [a, b] if is(a, "a") && is(b, "b")));
        assert_eq!(kept.due_at(), None);
    }
}
