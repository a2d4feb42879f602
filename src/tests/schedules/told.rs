//! An observer of each manager of a run: what it must have been told by the end.

use std::sync::{Arc, Mutex};

use crate::observer::{Event, Observer};

#[derive(Default)]
pub(super) struct Told(Mutex<Counts>);

#[derive(Clone, Debug, Default)]
struct Counts {
    began: usize,
    acquired: usize,
    refused: usize,
    ended: usize,
    /// Events that came too early.
    wrong: Vec<Event>,
}

impl Observer for Told {
    fn event(&self, event: &Event) {
        let mut counts = self.0.lock().unwrap();
        match event {
            Event::Began { .. } => counts.began += 1,
            Event::Acquired { .. } => counts.acquired += 1,
            Event::NotAcquired { .. } => counts.refused += 1,
            Event::Released { .. } | Event::Lost { .. } => counts.ended += 1,
            _ => {}
        }
        let too_early =
            counts.began < counts.acquired + counts.refused || counts.acquired < counts.ended;
        // A panic would be its last call, and nothing else.
        if too_early {
            counts.wrong.push(event.clone());
        }
    }
}

impl Told {
    /// All calls have ended, and the manager was shut down.
    pub(super) fn check(self: &Arc<Self>) {
        let counts = self.0.lock().unwrap().clone();
        assert!(
            counts.wrong.is_empty(),
            "told too early: {:?}",
            counts.wrong
        );
        assert_eq!(counts.began, counts.acquired + counts.refused, "{counts:?}");
        assert_eq!(counts.acquired, counts.ended, "{counts:?}");
    }
}
