//! An answer as states have it: a few bytes.

use super::*;
use crate::answer::{LockReply, LockStatus};

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(in super::super) enum Said {
    /// No answer yet.
    Nothing,
    /// One that does not count: of a node in quarantine.
    Silent,
    Accepted,
    Behind(u8),
    Ahead(u8),
    Shared(u8),
    /// A slot, and the counter that the proposal is not above.
    Slot(u8, Option<u8>),
    Held(u8),
    Taken,
    Above(u8),
    Extended,
    Lifted(u8),
    /// Extended: some were missing.
    Healed,
    Superseded,
    /// With the counter. 0 as well for a key that is another owner's, and for any that is not the one of a raise.
    Gone(u8),
}

impl Said {
    /// What the library reads.
    pub(in super::super) fn vote(self) -> Vote {
        let with = |status, counter: u8| Vote::with_counter(status, counter.into());
        match self {
            Said::Nothing | Said::Silent => FAILED,
            Said::Accepted => Vote::of(LockStatus::Accepted),
            Said::Behind(counter) => with(LockStatus::ProposalBehind, counter),
            Said::Ahead(counter) => with(LockStatus::ProposalTooFarAhead, counter),
            Said::Shared(counter) => with(LockStatus::Shared, counter),
            Said::Slot(slot, counter) => Vote::of_slot(slot, counter.map(u64::from)),
            Said::Held(counter) => with(LockStatus::Held, counter),
            Said::Taken => Vote::of(LockStatus::Raised),
            Said::Above(counter) => with(LockStatus::NotRaised, counter),
            Said::Extended => Vote::of(LockStatus::Extended),
            Said::Lifted(counter) => with(LockStatus::Lifted, counter),
            Said::Healed => Vote::of(LockStatus::Healed),
            Said::Superseded => Vote::of(LockStatus::Superseded),
            Said::Gone(counter) => with(LockStatus::Gone, counter),
        }
    }

    /// The answer to an extension; `None` for any other.
    pub(in super::super) fn to_extension(self) -> Option<Vote> {
        let vote = self.vote();
        let is_extension =
            vote.is_extended() || vote.is(LockStatus::Superseded) || vote.is(LockStatus::Gone);
        is_extension.then_some(vote)
    }
}

impl From<Vote> for Said {
    fn from(vote: Vote) -> Said {
        let Vote::Lock(LockReply {
            status,
            counter,
            which,
            ..
        }) = vote
        else {
            panic!("{vote:?} of a simulated server")
        };
        let counter = counter.map(|it| u8::try_from(it).unwrap());
        let shown = || counter.unwrap();
        match (status, which) {
            (LockStatus::Accepted | LockStatus::ProposalBehind, Some(slot)) => {
                Said::Slot(slot, counter)
            }
            (LockStatus::Accepted, None) => Said::Accepted,
            (LockStatus::ProposalBehind, None) => Said::Behind(shown()),
            (LockStatus::ProposalTooFarAhead, _) => Said::Ahead(shown()),
            (LockStatus::Shared, _) => Said::Shared(shown()),
            (LockStatus::Held | LockStatus::HeldByReaders, _) => Said::Held(shown()),
            (LockStatus::Raised, _) => Said::Taken,
            (LockStatus::NotRaised, _) => Said::Above(shown()),
            (LockStatus::Extended, _) => Said::Extended,
            (LockStatus::Lifted, _) => Said::Lifted(shown()),
            (LockStatus::Healed, _) => Said::Healed,
            (LockStatus::Superseded, _) => Said::Superseded,
            (LockStatus::Gone, _) => Said::Gone(shown()),
            (LockStatus::NotOurs, _) => Said::Gone(0),
            (LockStatus::WrongType | LockStatus::BadCounter, _) => {
                panic!("{status:?} of a simulated server")
            }
        }
    }
}
