//! Quorlock.
#![warn(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro)]

mod builder;
mod config;
mod engine;
mod error;
mod ids;
mod kinds;
mod lock;
mod logic;
mod manager;
mod stats;
mod time;
mod wire;

pub use builder::Builder;
pub use engine::CancelHandle;
pub use error::{
    AcquireError, BuildError, ExtendError, Lost, NodeAnswer, NodeFailure, NodeReport, Problem, ReleaseError, Released,
    RunError,
};
pub use ids::{FencingToken, NodeId};
pub use kinds::Mutex;
pub use lock::LockGuard;
pub use manager::LockManager;
pub use stats::Stats;

pub mod guide {
    //! Guide
    pub mod safety {
        //! Safety
    }
}
