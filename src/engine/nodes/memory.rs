//! What nodes remember, and how long a quarantine anybody needs: shared by the nodes of a manager.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::GreetReply;
use crate::ids::NodeId;
use crate::logic::longest::{Longest, Told};
use crate::logic::validity;
use crate::sys::sync::{AtomicU64, Mutex};
use crate::time::Moment;
use crate::wire::{self, Command, Greeting};

/// A node is told and asked again before the first command after so long, or after half of our own quarantine if that is
/// shorter. It forgets numbers that no client has used for a day; and a client that comes while we are connected tells its
/// number to the nodes, and not to us. A node that has forgotten that number is in quarantine for as long as we need
/// ourselves, from then on. So every other node that counts in the same round has been asked since, and knew.
const GREET_EVERY: Duration = Duration::from_secs(6 * 60 * 60);
/// Or after so long, if it could not note what it was told.
const GREET_AGAIN: Duration = Duration::from_secs(10);

/// The longest quarantine that anybody needs, as far as we know.
#[derive(Debug)]
pub(crate) struct QuarantineLength {
    longest: Mutex<Longest>,
    /// When nodes are told again: see [`GREET_EVERY`].
    every: Duration,
    /// The longest, to be read by everybody.
    millis: AtomicU64,
    /// What nodes are told of each other, in one number: see [`QuarantineLength::news`].
    news: AtomicU64,
}

impl QuarantineLength {
    pub(crate) fn new(own: Duration, nodes: usize) -> QuarantineLength {
        let every = GREET_EVERY.min(own.checked_div(2).unwrap_or(own));
        let own = validity::millis(own);
        let longest = Mutex::new(Longest::new(own, nodes));
        QuarantineLength { longest, every, millis: AtomicU64::new(own), news: AtomicU64::new(0) }
    }

    /// For how long a node is quarantined that has forgotten.
    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.millis())
    }

    /// The same in milliseconds.
    pub(crate) fn millis(&self) -> u64 {
        self.millis.load(Ordering::Relaxed)
    }

    /// The longest that any client needs, as `node` has told last; `None` before it has.
    pub(crate) fn told_by(&self, node: NodeId) -> Option<Duration> {
        Some(self.longest.lock().told_by(node.index())).filter(|it| *it != 0).map(Duration::from_millis)
    }

    /// Changes with what nodes are told of each other.
    fn news(&self) -> u64 {
        self.news.load(Ordering::Relaxed)
    }

    /// What a node is to be told and asked.
    pub(crate) fn greet(&self) -> Command {
        let longest = self.longest.lock();
        let heard = longest.to_pass_on();
        wire::greet(longest.own(), heard.millis, heard.day)
    }

    /// The same in a cluster.
    pub(crate) fn greet_in_cluster(&self, greeting: &Greeting<'_>) -> Command {
        let longest = self.longest.lock();
        let heard = longest.to_pass_on();
        wire::greet_in_cluster(longest.own(), heard.millis, heard.day, greeting)
    }

    /// Takes in what `node` has told.
    pub(crate) fn hear(&self, node: NodeId, GreetReply { longest: millis, day, .. }: GreetReply) {
        let mut longest = self.longest.lock();
        longest.hear(node.index(), Told { millis, day });
        self.millis.store(validity::millis(longest.quarantine_length()), Ordering::Relaxed);
        let Told { millis, day } = longest.to_pass_on();
        self.news.store(millis.wrapping_shl(32) | day & u64::from(u32::MAX), Ordering::Relaxed);
    }
}

/// When a node is told again, on one connection.
#[derive(Debug, Default)]
pub(crate) struct Greetings {
    /// `None` if it is not told.
    at: Option<Moment>,
    /// What it was told of other nodes.
    news: u64,
}

impl Greetings {
    /// Plans it; `kept`: whether the node has noted what it was told.
    ///
    /// On the clocks that run in suspend: whoever comes meanwhile comes although we are stopped.
    pub(crate) fn plan(&mut self, length: &QuarantineLength, kept: bool, now: Moment) {
        let pause = if kept { length.every } else { GREET_AGAIN.min(length.every) };
        self.at = now.checked_add(pause);
    }

    /// What it is to be told before what comes next, if it is time, or if another node has told us something else meanwhile.
    pub(crate) fn due(&mut self, length: &QuarantineLength, now: Moment) -> Option<Command> {
        let news = length.news();
        if self.news == news && !self.at.is_some_and(|it| now.has_reached(it)) {
            return None;
        }
        self.news = news;
        self.plan(length, true, now);
        Some(length.greet())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Canary;

    #[test]
    fn h15_a_node_is_told_again_before_it_forgets_and_when_there_is_news_and_before_what_rests_on_that() {
        let length = QuarantineLength::new(Duration::from_secs(60), 2);
        let mut greetings = Greetings::default();
        let is_told = |greetings: &mut Greetings, now| greetings.due(&length, now).is_some();
        // The machine may be suspended for as long as it likes in between.
        let (start, boot) = (Duration::from_secs(1_000_000), Duration::from_secs(500));
        let after = |seconds| Moment::at(boot + Duration::from_secs(seconds), start + Duration::from_secs(seconds));
        // It was told at the beginning of the connection.
        greetings.plan(&length, true, after(0));
        assert!(!is_told(&mut greetings, after(0)) && !is_told(&mut greetings, after(29)));
        assert!(is_told(&mut greetings, after(30)) && !is_told(&mut greetings, after(30)));

        // It could not note it.
        greetings.plan(&length, false, after(10));
        assert!(!is_told(&mut greetings, after(19)) && is_told(&mut greetings, after(20)));

        // Another node has told us of a longer quarantine; of the same one, a day later; and then of none any more.
        for (millis, day) in [(90_000, 7), (90_000, 8), (60_000, 8)] {
            let reply = GreetReply { canary: Canary::Kept, served: start, longest: millis, day, kept: true, from: 0 };
            length.hear(NodeId::new(1), reply);
            assert_eq!(length.millis(), millis);
            assert!(is_told(&mut greetings, after(20)) && !is_told(&mut greetings, after(20)));
        }
    }
}
