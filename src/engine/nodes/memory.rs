//! What nodes remember, and how long a quarantine anybody needs: shared by the nodes of a manager.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::answer::GreetReply;
use crate::engine::nodes::job::Job;
use crate::engine::nodes::node::Node;
use crate::engine::nodes::outbox::Outbox;
use crate::logic::longest::{Longest, Told};
use crate::logic::validity;
use crate::sys::sync::{AtomicU64, Mutex};
use crate::time::{Moment, Tick};
use crate::wire::{self, Command};

/// A node is told and asked again before the first command after so long, or after half of our own quarantine if that is
/// shorter. It forgets numbers that nobody has used for a day; and whoever comes while we are connected tells his number to the
/// nodes, and not to us. One that has forgotten it is quarantined for us for as long as we need ourselves, from then on. So
/// another that counts in the same round as that one has been asked since, and knew.
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

    /// In milliseconds.
    pub(crate) fn millis(&self) -> u64 {
        self.millis.load(Ordering::Relaxed)
    }

    /// Changes with what nodes are told of each other.
    fn news(&self) -> u64 {
        self.news.load(Ordering::Relaxed)
    }

    fn greet(&self) -> Command {
        let longest = self.longest.lock();
        let heard = longest.to_pass_on();
        wire::greet(longest.own(), heard.millis, heard.day)
    }

    fn hear(&self, node: usize, told: Told) {
        let mut longest = self.longest.lock();
        longest.hear(node, told);
        self.millis.store(validity::millis(longest.quarantine_length()), Ordering::Relaxed);
        let Told { millis, day } = longest.to_pass_on();
        self.news.store(millis.wrapping_shl(32) | day & u64::from(u32::MAX), Ordering::Relaxed);
    }
}

impl Node {
    /// What the node is to be told and asked before it may vote; nothing without quarantine.
    pub(crate) fn greet(&self) -> Option<Command> {
        self.quarantine_length.as_ref().map(|it| it.greet())
    }

    /// For how long a node is quarantined that has forgotten; `None` if that is switched off.
    pub(crate) fn quarantine_length(&self) -> Option<Duration> {
        self.quarantine_length.as_ref().map(|it| Duration::from_millis(it.millis()))
    }

    /// Takes in what the node has told of others.
    pub(crate) fn take_memory(&self, reply: GreetReply) {
        if let Some(quarantine_length) = &self.quarantine_length {
            quarantine_length.hear(self.id.index(), Told { millis: reply.longest, day: reply.day });
        }
    }

    /// Plans when it is told again; `kept`: whether it has noted what it was told.
    ///
    /// On the clocks that run in suspend: whoever comes meanwhile comes although we are stopped.
    pub(crate) fn plan_to_greet(&self, outbox: &mut Outbox, kept: bool, now: Moment) {
        let pause = |it: &QuarantineLength| if kept { it.every } else { GREET_AGAIN.min(it.every) };
        outbox.greet_at = self.quarantine_length.as_ref().and_then(|it| now.checked_add(pause(it)));
    }

    /// Tells it again, before what comes next, if it is time, or if another node has told us something else meanwhile.
    pub(crate) fn greet_if_due(&self, outbox: &mut Outbox, now: Tick) {
        if self.quarantine_length.is_some() {
            self.greet_if_due_at(Moment::now(), outbox, now);
        }
    }

    fn greet_if_due_at(&self, moment: Moment, outbox: &mut Outbox, now: Tick) {
        let Some(quarantine_length) = &self.quarantine_length else { return };
        let news = quarantine_length.news();
        if outbox.news != news || outbox.greet_at.is_some_and(|it| moment.has_reached(it)) {
            outbox.news = news;
            self.plan_to_greet(outbox, true, moment);
            outbox.push(Job::of_connection(Arc::new(quarantine_length.greet())), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::OwnerToken;
    use crate::time;
    use crate::wire::{KeyTtls, Kind, Plan, QueuePolicy};

    fn node(quarantine_length: Option<Arc<QuarantineLength>>) -> Node {
        let (mut node, _) = Node::unattended(Duration::from_secs(1));
        node.quarantine_length = quarantine_length;
        node
    }

    /// What is sent because of one acquisition.
    fn sent(node: &Node, outbox: &mut Outbox, now: Moment) -> Vec<Kind> {
        let policy = QueuePolicy { fair: true, since: 1, entry: None, enters: false };
        let acquire = Plan::mutex(b"", b"a", KeyTtls::default()).acquire(OwnerToken::nobody(), 1_000, 1, 1, &policy);
        node.greet_if_due_at(now, outbox, time::tick());
        outbox.push(Job::of_connection(Arc::new(acquire)), time::tick());
        std::iter::from_fn(|| outbox.pop().map(|it| it.job.kind())).collect()
    }

    #[test]
    fn h15_a_node_is_told_again_before_it_forgets_and_when_there_is_news_and_before_what_rests_on_that() {
        let quarantine_length = Arc::new(QuarantineLength::new(Duration::from_secs(60), 2));
        let (node, mut outbox) = (node(Some(Arc::clone(&quarantine_length))), Outbox::default());
        // The machine may be suspended for as long as it likes in between.
        let (start, boot) = (Duration::from_secs(1_000_000), Duration::from_secs(500));
        let after = |seconds| Moment::at(boot + Duration::from_secs(seconds), start + Duration::from_secs(seconds));
        let start = after(0);
        // It was told at the beginning of the connection.
        node.plan_to_greet(&mut outbox, true, start);
        assert_eq!(sent(&node, &mut outbox, start), [Kind::Acquire]);
        assert_eq!(sent(&node, &mut outbox, after(29)), [Kind::Acquire]);
        assert_eq!(sent(&node, &mut outbox, after(30)), [Kind::Greet, Kind::Acquire]);
        assert_eq!(sent(&node, &mut outbox, after(30)), [Kind::Acquire]);

        // It could not note it.
        node.plan_to_greet(&mut outbox, false, after(10));
        assert_eq!(sent(&node, &mut outbox, after(19)), [Kind::Acquire]);
        assert_eq!(sent(&node, &mut outbox, after(20)), [Kind::Greet, Kind::Acquire]);

        // Another node has told us of a longer quarantine; of the same one, a day later; and then of none any more.
        for (millis, day) in [(90_000, 7), (90_000, 8), (60_000, 8)] {
            quarantine_length.hear(1, Told { millis, day });
            assert_eq!(quarantine_length.millis(), millis);
            assert_eq!(sent(&node, &mut outbox, after(20)), [Kind::Greet, Kind::Acquire]);
            assert_eq!(sent(&node, &mut outbox, after(20)), [Kind::Acquire]);
        }
    }

    #[test]
    fn without_quarantine_no_node_is_told_anything() {
        let (node, mut outbox) = (node(None), Outbox::default());
        node.plan_to_greet(&mut outbox, false, Moment::now());
        let later = Moment::now().checked_add(Duration::from_secs(24 * 3_600)).unwrap();
        assert_eq!(sent(&node, &mut outbox, later), [Kind::Acquire]);
        assert!(node.greet().is_none());
    }
}
