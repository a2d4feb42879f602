//! All members of a node that is more than one process, asked side by side by the thread that looks after the node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::member::{Asking, Member};
use crate::engine::nodes::resolve::Resolver;
use crate::ids::NodeId;
use crate::sys::logging::debug;
use crate::sys::{Events, Poll, Token};
use crate::time::{self, Tick};
use crate::wire::{Address, Group, Place, Question};

/// See the module.
pub(super) struct AllMembers {
    node: NodeId,
    address: Address,
    /// What is in the address.
    in_url: Vec<Place>,
    question: Question,
    all: Vec<Member>,
    next_token: usize,
    resolver: Resolver,
    /// Whose turn it is to give a long answer.
    long: Option<Token>,
    poll: Poll,
    events: Events,
}

impl AllMembers {
    /// Those that are in the address of `node`. `poll`: where the thread waits, for them and for those that wake it; `wake` does.
    pub(super) fn new(
        node: NodeId,
        address: Address,
        group: &Group,
        poll: Poll,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> AllMembers {
        let mut members = AllMembers {
            node,
            address,
            in_url: group.members().to_vec(),
            question: Question::to(group),
            all: Vec::new(),
            next_token: 1,
            resolver: Resolver::new(wake),
            long: None,
            poll,
            events: Events::with_capacity(16),
        };
        members.know(&[]);
        members
    }

    pub(super) fn each(&self) -> &[Member] {
        &self.all
    }

    pub(super) fn each_mut(&mut self) -> &mut [Member] {
        &mut self.all
    }

    /// Their addresses, as they are shown.
    pub(super) fn shown(&self) -> Vec<Arc<str>> {
        self.all.iter().map(|it| it.place().to_string().into()).collect()
    }

    /// From now on there are these beside those of the address, each with what its certificate is for, if that is not its host.
    /// True if some are new.
    pub(super) fn know(&mut self, others: &[(Place, Option<Arc<str>>)]) -> bool {
        let AllMembers { in_url, all, next_token, .. } = self;
        // What is in the address is what its host says, whatever it announces.
        let of_url = in_url.iter().map(|it| (it, None));
        let others = others.iter().filter(|it| !in_url.contains(&it.0)).map(|it| (&it.0, it.1.clone()));
        let wanted: Vec<_> = of_url.chain(others).collect();
        all.retain(|it| wanted.iter().any(|wanted| wanted.0 == it.place()));
        let mut has_new = false;
        for (place, name) in wanted {
            match all.iter_mut().find(|it| it.place() == place) {
                Some(known) => known.call(name),
                None => {
                    all.push(Member::new(place.clone(), name, Token(*next_token)));
                    *next_token = next_token.saturating_add(1);
                    has_new = true;
                }
            }
        }
        has_new
    }

    /// Asks them all, and waits until they have answered, for `time` at most, or until it is to stop. What they have said is
    /// theirs, see [`Member::end`].
    pub(super) fn ask(&mut self, now: Tick, time: Duration, is_to_stop: impl Fn() -> bool) {
        let deadline = now.checked_add(time).unwrap_or(now);
        // Then those whose names are not resolved are asked where they were, and those that do not answer the handshake of TLS
        // whether they speak it.
        let mut doubt_at = time.checked_div(2).and_then(|it| now.checked_add(it));
        self.do_each(Member::begin);
        loop {
            self.do_each(Member::step);
            if self.next_is_long() {
                // It reads on.
                continue;
            }
            let now = time::tick();
            if doubt_at.is_some_and(|it| it <= now) {
                doubt_at = None;
                self.do_each(Member::hurry);
                self.do_each(Member::doubt);
            }
            if deadline <= now || self.all.iter().all(|it| it.said().is_some()) || is_to_stop() {
                return;
            }
            let until = doubt_at.map_or(deadline, |it| it.min(deadline));
            self.wait(Some(until.saturating_duration_since(now)));
        }
    }

    /// Whether it is another one's turn to give a long answer, or the first one's: those of all at a time would be too much.
    fn next_is_long(&mut self) -> bool {
        let is_long = |it: &&Member| it.is_long();
        let before = self.long;
        let same = self.all.iter().filter(is_long).map(Member::token).find(|it| Some(*it) == before);
        self.long = same.or_else(|| self.all.iter().find(is_long).map(Member::token));
        self.long.is_some() && self.long != before
    }

    fn do_each(&mut self, mut does: impl FnMut(&mut Member, &Asking<'_>)) {
        let AllMembers { address, question, all, resolver, long, poll, .. } = self;
        let asking = Asking { address, question, resolver, long: *long, registry: poll.registry() };
        all.iter_mut().for_each(|it| does(it, &asking));
    }

    /// Sleeps until there is something to do.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        if let Err(err) = self.poll.poll(&mut self.events, timeout)
            && err.kind() != io::ErrorKind::Interrupted
        {
            debug!("{}: cannot wait for its servers: {err}", self.node);
        }
    }
}
