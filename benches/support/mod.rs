//! What the scenarios are made of.

pub(crate) mod contenders;
pub(crate) mod floor;
pub(crate) mod ours;
pub(crate) mod peer;
pub(crate) mod peers;
pub(crate) mod scenarios;
pub(crate) mod sections;
pub(crate) mod servers;
pub(crate) mod stats;
pub(crate) mod worker;

/// What a scenario returns: a bench stops at the first thing that goes wrong.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How much to run, and on what.
pub(crate) struct Setting {
    /// Seconds, not minutes: to see that everything still runs.
    pub(crate) quick: bool,
    /// The other clients, if they could be built.
    pub(crate) peers: Option<peers::Peers>,
}

impl Setting {
    /// `full`, or `quick` if that was asked for.
    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
