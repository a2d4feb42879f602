//! Waiting for a connection and a wake-up, in the form of `mio`.

use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::clock::{Sleeper, now, point};
use super::trace::trace;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Token(pub(crate) usize);

/// A source of events.
pub(crate) trait Readiness: Send + Sync {
    /// The event since the last call, if there was one: its token, whether there is something to
    /// read, and whether the connection has ended.
    fn take(&self) -> Option<(Token, bool, bool)>;
}

#[derive(Default)]
pub(crate) struct Selector {
    state: Mutex<PollState>,
}

#[derive(Default)]
struct PollState {
    woken: Option<Token>,
    sources: Vec<Weak<dyn Readiness>>,
    sleeper: Option<Arc<Sleeper>>,
}

impl Selector {
    pub(crate) fn watch(&self, source: Weak<dyn Readiness>) {
        let sources = &mut self.state.lock().unwrap().sources;
        sources.retain(|it| it.strong_count() != 0 && !it.ptr_eq(&source));
        sources.push(source);
    }

    /// Lets the thread that waits look again.
    pub(crate) fn look(&self) {
        let sleeper = self.state.lock().unwrap().sleeper.take();
        sleeper.into_iter().for_each(|it| it.wake());
    }
}

pub(crate) struct Registry(Arc<Selector>);

impl Registry {
    pub(crate) fn selector(&self) -> &Arc<Selector> {
        &self.0
    }
}

pub(crate) struct Waker {
    selector: Arc<Selector>,
    token: Token,
}

impl Waker {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Waker> {
        Ok(Waker {
            selector: Arc::clone(&registry.0),
            token,
        })
    }

    pub(crate) fn wake(&self) -> io::Result<()> {
        point();
        trace(format_args!("wakes a worker"));
        self.selector.state.lock().unwrap().woken = Some(self.token);
        self.selector.look();
        Ok(())
    }
}

pub(crate) struct Poll(Registry);

impl Poll {
    pub(crate) fn new() -> io::Result<Poll> {
        Ok(Poll(Registry(Arc::default())))
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0
    }

    pub(crate) fn poll(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let selector = &self.0.0;
        let deadline = timeout.map(|it| now() + it);
        events.0.clear();
        loop {
            point();
            let (woken, sources) = {
                let mut state = selector.state.lock().unwrap();
                (state.woken.take(), state.sources.clone())
            };
            events.0.extend(woken.map(|token| PollEvent {
                token,
                readable: false,
                closed: false,
            }));
            let found = sources.iter().filter_map(|it| it.upgrade()?.take());
            events
                .0
                .extend(found.map(|(token, readable, closed)| PollEvent {
                    token,
                    readable,
                    closed,
                }));
            trace(format_args!("polls, for {timeout:?}: {:?}", events.0));
            if !events.0.is_empty() || deadline.is_some_and(|it| it <= now()) {
                return Ok(());
            }
            let sleeper = Sleeper::new();
            selector.state.lock().unwrap().sleeper = Some(Arc::clone(&sleeper));
            sleeper.sleep(deadline);
        }
    }
}

pub(crate) struct Events(Vec<PollEvent>);

impl Events {
    pub(crate) fn with_capacity(_capacity: usize) -> Events {
        Events(Vec::new())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PollEvent> {
        self.0.iter()
    }
}

#[derive(Debug)]
pub(crate) struct PollEvent {
    token: Token,
    readable: bool,
    closed: bool,
}

impl PollEvent {
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.readable
    }

    pub(crate) fn is_error(&self) -> bool {
        false
    }

    pub(crate) fn is_read_closed(&self) -> bool {
        self.closed
    }
}
