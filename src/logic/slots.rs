//! The slots of one master of a cluster, on one connection: since when that server has kept its data in each.
//!
//! A slot has a record of its own, because a script sees keys of one slot only. The first command of a slot waits until it
//! is known. A slot without record may be new, or its keys may be lost. If the master's own record, which is looked at
//! *after* the slot's was written, has been there for longer, and the master has served the slot for longer, then nothing was
//! lost: the slot is *confirmed*, its record is set back to that time.

use std::collections::HashMap;
use std::time::Duration;

use crate::answer::{GreetReply, Record};
use crate::error::{NodeFailure, QuarantineReason};
use crate::logic::quarantines::{Ask, Quarantines};
use crate::time::Tick;

/// See the module. `T` is what waits.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: HashMap<u16, SlotState<T>>,
}

#[derive(Debug)]
struct SlotState<T> {
    kept: Option<Quarantines>,
    /// It may have been away since that was known: it is asked again before the next command.
    is_suspect: bool,
    asking: Option<SlotQuery<T>>,
}

impl<T> Default for SlotState<T> {
    fn default() -> SlotState<T> {
        SlotState {
            kept: None,
            is_suspect: false,
            asking: None,
        }
    }
}

/// Until the answers have come.
#[derive(Debug)]
struct SlotQuery<T> {
    waiting: Vec<T>,
    found: Option<Result<GreetReply, NodeFailure>>,
}

/// What becomes of a command.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Admitted<T> {
    /// It may go.
    Pass(T),
    /// It waits: the slot's record and then the master's are to be asked for.
    Ask,
    Wait,
}

/// What follows from what the master's record says.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum SlotStep<T> {
    /// The slot's record is to be set back, and then these may go.
    Confirm {
        found: u64,
        since: u64,
        origin: &'static str,
        waiting: Vec<T>,
    },
    /// These may go.
    Open(Vec<T>),
    /// The server does not serve the slot.
    Fail(Vec<T>, NodeFailure),
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            slots: HashMap::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Takes a command for a slot.
    pub(crate) fn admit(&mut self, slot: u16, command: T) -> Admitted<T> {
        let slot = self.slots.entry(slot).or_default();
        if let Some(asking) = &mut slot.asking {
            asking.waiting.push(command);
            return Admitted::Wait;
        }
        if slot.kept.is_some() && !slot.is_suspect {
            return Admitted::Pass(command);
        }
        slot.asking = Some(SlotQuery {
            waiting: vec![command],
            found: None,
        });
        Admitted::Ask
    }

    /// What the slot's record says.
    pub(crate) fn on_slot(&mut self, slot: u16, reply: Result<GreetReply, NodeFailure>) {
        if let Some(asking) = self.slots.get_mut(&slot).and_then(|it| it.asking.as_mut()) {
            asking.found = Some(reply);
        }
    }

    /// What the master's says, which was asked for behind it. `length`: of a quarantine.
    pub(crate) fn on_master(
        &mut self,
        slot: u16,
        master: Result<GreetReply, NodeFailure>,
        now: Tick,
        length: Duration,
    ) -> SlotStep<T> {
        let slot = self.slots.entry(slot).or_default();
        let Some(SlotQuery { waiting, found }) = slot.asking.take() else {
            return SlotStep::Open(Vec::new());
        };
        let found = match found.unwrap_or(Err(NodeFailure::Internal)) {
            Ok(found) => found,
            Err(failure) => return SlotStep::Fail(waiting, failure),
        };
        slot.is_suspect = false;
        slot.learn(&found, now, length);
        let is_new = matches!(found.record, Record::Missing | Record::KeptFromNothing);
        let origin = match master.as_ref().map(|it| it.record) {
            Ok(Record::Kept) => "old",
            Ok(Record::KeptFromNothing) => "new",
            Ok(Record::Vouched) => "vouched",
            // It began after the slot's was written, or nobody knows.
            Ok(Record::Missing | Record::Another | Record::Off) | Err(_) => {
                return SlotStep::Open(waiting);
            }
        };
        match master {
            Ok(master) if is_new && master.from < found.from => SlotStep::Confirm {
                found: found.from,
                since: master.from,
                origin,
                waiting,
            },
            _ => SlotStep::Open(waiting),
        }
    }

    /// The slot was confirmed, unless its record was another by then.
    pub(crate) fn on_confirmed(
        &mut self,
        slot: u16,
        reply: Result<GreetReply, NodeFailure>,
        now: Tick,
        length: Duration,
    ) {
        let slot = self.slots.entry(slot).or_default();
        match reply {
            Ok(reply) => slot.learn(&reply, now, length),
            Err(_) => slot.is_suspect = true,
        }
    }

    /// The slot may have been away.
    pub(crate) fn suspect(&mut self, slot: u16) {
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.is_suspect = true;
        }
    }

    /// The same of all of them.
    pub(crate) fn suspect_all(&mut self) {
        self.slots.values_mut().for_each(|it| it.is_suspect = true);
    }

    /// How much of the slot's quarantine is left for what was asked at `asked`, and why.
    pub(crate) fn left(
        &self,
        slot: u16,
        ask: Ask,
        asked: Tick,
        length: Option<Duration>,
    ) -> Option<(Duration, QuarantineReason)> {
        match self.slots.get(&slot).and_then(|it| it.kept) {
            Some(kept) => kept.left(ask, asked, length),
            None => Some((length?, QuarantineReason::Restarted)),
        }
    }

    /// Ends: what waits still.
    pub(crate) fn close(self) -> impl Iterator<Item = T> {
        self.slots
            .into_values()
            .filter_map(|it| it.asking)
            .flat_map(|it| it.waiting)
    }
}

impl<T> SlotState<T> {
    fn learn(&mut self, shown: &GreetReply, now: Tick, length: Duration) {
        self.kept = Some(Quarantines::of(shown, now, length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    const LENGTH: Duration = Duration::from_secs(10);

    fn reply(record: Record, from: u64, served: u64) -> Result<GreetReply, NodeFailure> {
        Ok(GreetReply {
            from,
            ..GreetReply::of(record, Duration::from_secs(served))
        })
    }

    fn left(slots: &Slots<u8>, asked: Tick) -> (u64, u64) {
        let left = |ask| {
            slots
                .left(7, ask, asked, Some(LENGTH))
                .map_or(0, |it| it.0.as_secs())
        };
        (left(Ask::Grant), left(Ask::Extension))
    }

    /// The slot was asked for by a command, and said this.
    fn asked(record: Record, from: u64, served: u64) -> Slots<u8> {
        let mut slots = Slots::default();
        assert_eq!(slots.admit(7, 1), Admitted::Ask);
        assert_eq!(slots.admit(7, 2), Admitted::Wait);
        slots.on_slot(7, reply(record, from, served));
        slots
    }

    #[test]
    fn a_slot_without_record_is_as_old_as_its_master_s_and_is_set_back_to_that() {
        let now = time::tick();
        for record in [Record::Missing, Record::KeptFromNothing] {
            for (master, origin) in [
                (Record::Kept, "old"),
                (Record::KeptFromNothing, "new"),
                (Record::Vouched, "vouched"),
            ] {
                let mut slots = asked(record, 500, 0);
                let next = slots.on_master(7, reply(master, 400, 100), now, LENGTH);
                assert_eq!(
                    next,
                    SlotStep::Confirm {
                        found: 500,
                        since: 400,
                        origin,
                        waiting: vec![1, 2]
                    }
                );
                assert_eq!(
                    left(&slots, now),
                    (10, 10),
                    "not before it is known to be confirmed"
                );
                slots.on_confirmed(7, reply(Record::Kept, 400, 100), now, LENGTH);
                assert_eq!(left(&slots, now), (0, 0));
                assert_eq!(slots.admit(7, 3), Admitted::Pass(3));
            }
        }
    }

    #[test]
    fn a_slot_is_not_set_back_where_the_master_has_lost_its_own_record_or_has_the_slot_since_lately()
     {
        let now = time::tick();
        let masters = [
            reply(Record::Missing, 600, 0),
            reply(Record::Another, 600, 0),
            // It was lost since the slot's was written, and somebody else has asked since.
            reply(Record::KeptFromNothing, 600, 0),
            reply(Record::Kept, 500, 100),
            Err(NodeFailure::Loading),
        ];
        for master in masters {
            let mut slots = asked(Record::Missing, 500, 0);
            assert_eq!(
                slots.on_master(7, master.clone(), now, LENGTH),
                SlotStep::Open(vec![1, 2]),
                "{master:?}"
            );
            assert_eq!(left(&slots, now), (10, 10));
        }
    }

    #[test]
    fn a_slot_that_another_process_kept_is_silent_for_its_whole_quarantine_whatever_its_master_says()
     {
        let now = time::tick();
        let mut slots = asked(Record::Another, 500, 0);
        let next = slots.on_master(7, reply(Record::Vouched, 0, 1_000), now, LENGTH);
        assert_eq!(next, SlotStep::Open(vec![1, 2]));
        assert_eq!(left(&slots, now), (10, 10));
        assert_eq!(left(&slots, now + Duration::from_secs(10)), (0, 0));
    }

    #[test]
    fn a_slot_that_was_kept_for_a_while_is_silent_for_the_rest() {
        let now = time::tick();
        let mut slots = asked(Record::Kept, 500, 4);
        assert_eq!(
            slots.on_master(7, reply(Record::Kept, 400, 100), now, LENGTH),
            SlotStep::Open(vec![1, 2])
        );
        assert_eq!(left(&slots, now), (6, 6));
        // Somebody turns out to need longer: that ends no hold.
        let longer = Duration::from_secs(20);
        let left = |ask| slots.left(7, ask, now, Some(longer)).unwrap().0.as_secs();
        assert_eq!((left(Ask::Grant), left(Ask::Extension)), (16, 6));
    }

    #[test]
    fn commands_for_a_slot_that_the_server_does_not_serve_fail_and_the_next_asks_again() {
        let now = time::tick();
        let moved = || NodeFailure::SlotMoved {
            said: String::new(),
        };
        let mut slots = Slots::default();
        assert_eq!(slots.admit(7, 1), Admitted::Ask);
        slots.on_slot(7, Err(moved()));
        assert_eq!(
            slots.on_master(7, reply(Record::Kept, 1, 100), now, LENGTH),
            SlotStep::Fail(vec![1], moved())
        );
        assert_eq!(left(&slots, now), (10, 10), "nobody knows");
        assert_eq!(slots.admit(7, 2), Admitted::Ask);
        assert_eq!(slots.close().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_slot_that_may_have_been_away_is_asked_again_before_the_next_command() {
        let now = time::tick();
        let known = || {
            let mut slots = asked(Record::Kept, 500, 100);
            assert_eq!(
                slots.on_master(7, reply(Record::Kept, 400, 100), now, LENGTH),
                SlotStep::Open(vec![1, 2])
            );
            slots
        };
        let (mut one, mut all) = (known(), known());
        one.suspect(7);
        all.suspect_all();
        for slots in [&mut one, &mut all] {
            assert_eq!(
                left(slots, now),
                (0, 0),
                "what is under way counts as before"
            );
            assert_eq!(slots.admit(7, 3), Admitted::Ask);
        }
        let mut other = known();
        other.suspect(8);
        assert_eq!(other.admit(7, 3), Admitted::Pass(3));
    }
}
