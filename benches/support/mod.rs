//! What the scenarios are made of.

pub(crate) mod blocks;
pub(crate) mod build;
pub(crate) mod chart;
pub(crate) mod contenders;
pub(crate) mod floor;
pub(crate) mod line;
pub(crate) mod loops;
pub(crate) mod once;
pub(crate) mod ours;
pub(crate) mod peer;
pub(crate) mod proxy;
pub(crate) mod runs;
pub(crate) mod scenarios;
pub(crate) mod sections;
pub(crate) mod servers;
pub(crate) mod setting;
pub(crate) mod starter;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod worker;

/// What a scenario returns: a bench stops at the first thing that goes wrong.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
