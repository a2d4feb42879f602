//! An answer as states have it: a few bytes.

use super::*;
use crate::answer::{AcquireReply, ExtendReply, RaiseReply};

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
    /// The same where the node had promised the key.
    SetAgain,
    Superseded,
    /// With the counter. 0 as well for a key that is another owner's, and for any that is not the one of a raise.
    Gone(u8),
}

impl Said {
    /// What the library reads.
    pub(in super::super) fn vote(self) -> Vote {
        match self {
            Said::Nothing | Said::Silent => FAILED,
            Said::Accepted => Vote::Acquire(AcquireReply::Accepted),
            Said::Behind(counter) => Vote::Acquire(AcquireReply::Behind {
                counter: counter.into(),
            }),
            Said::Ahead(counter) => Vote::Acquire(AcquireReply::Ahead {
                counter: counter.into(),
            }),
            Said::Shared(counter) => Vote::Acquire(AcquireReply::Shared {
                counter: counter.into(),
            }),
            Said::Slot(slot, counter) => Vote::Acquire(AcquireReply::Slot {
                slot,
                counter: counter.map(u64::from),
            }),
            Said::Held(counter) => Vote::Acquire(AcquireReply::Held {
                counter: counter.into(),
                left: None,
                queued: false,
                holder: None,
                which: None,
            }),
            Said::Taken => Vote::Raise(RaiseReply::Taken),
            Said::Above(counter) => Vote::Raise(RaiseReply::Above {
                counter: counter.into(),
            }),
            Said::Extended
            | Said::Lifted(_)
            | Said::Healed
            | Said::SetAgain
            | Said::Superseded
            | Said::Gone(_) => Vote::Extend(self.to_extension().unwrap()),
        }
    }

    /// The answer to an extension; `None` for any other.
    pub(in super::super) fn to_extension(self) -> Option<ExtendReply> {
        Some(match self {
            Said::Extended => ExtendReply::Extended,
            Said::Lifted(counter) => ExtendReply::Lifted {
                counter: counter.into(),
            },
            Said::Healed | Said::SetAgain => ExtendReply::Healed,
            Said::Superseded => ExtendReply::Superseded,
            Said::Gone(counter) => ExtendReply::Gone {
                counter: counter.into(),
            },
            _ => return None,
        })
    }
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap()
}

impl From<AcquireReply> for Said {
    fn from(reply: AcquireReply) -> Said {
        match reply {
            AcquireReply::Accepted => Said::Accepted,
            AcquireReply::Behind { counter } => Said::Behind(small(counter)),
            AcquireReply::Ahead { counter } => Said::Ahead(small(counter)),
            AcquireReply::Shared { counter } => Said::Shared(small(counter)),
            AcquireReply::Slot { slot, counter, .. } => Said::Slot(slot, counter.map(small)),
            AcquireReply::Held { counter, .. } | AcquireReply::HeldByReaders { counter, .. } => {
                Said::Held(small(counter))
            }
            other => panic!("{other:?} of a simulated server"),
        }
    }
}

impl From<RaiseReply> for Said {
    fn from(reply: RaiseReply) -> Said {
        match reply {
            RaiseReply::Taken => Said::Taken,
            RaiseReply::Above { counter } => Said::Above(small(counter)),
            _ => Said::Gone(0),
        }
    }
}

impl From<ExtendReply> for Said {
    fn from(reply: ExtendReply) -> Said {
        match reply {
            ExtendReply::Extended => Said::Extended,
            ExtendReply::Lifted { counter } => Said::Lifted(small(counter)),
            ExtendReply::Healed => Said::Healed,
            ExtendReply::Superseded => Said::Superseded,
            ExtendReply::Gone { counter } => Said::Gone(small(counter)),
            _ => Said::Gone(0),
        }
    }
}
