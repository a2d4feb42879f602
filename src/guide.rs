//! The user's guide.
//!
#![doc = include_str!("guide/contents.md")]

#[allow(unused_imports, reason = "the pages link to them")]
use crate::{error::*, inspection::*, observer::*, once::*, *};

#[doc = include_str!("guide/first_lock.md")]
pub mod first_lock {}

#[doc = include_str!("guide/choosing.md")]
pub mod choosing {}

#[doc = include_str!("guide/safety.md")]
pub mod safety {}

#[doc = include_str!("guide/fencing.md")]
pub mod fencing {}

#[doc = include_str!("guide/waiting.md")]
pub mod waiting {}

#[doc = include_str!("guide/other_locks.md")]
pub mod other_locks {}

#[doc = include_str!("guide/once.md")]
pub mod once {}

#[doc = include_str!("guide/programs.md")]
pub mod programs {}

#[doc = include_str!("guide/async.md")]
pub mod async_code {}

#[doc = include_str!("guide/testing.md")]
pub mod testing {}

#[doc = include_str!("guide/coming_from.md")]
pub mod coming_from {}

#[doc = include_str!("guide/servers.md")]
pub mod servers {}

#[doc = include_str!("guide/redis_access.md")]
pub mod redis_access {}

#[doc = include_str!("guide/servers_change.md")]
pub mod servers_change {}

#[doc = include_str!("guide/operations.md")]
pub mod operations {}

#[doc = include_str!("guide/metrics.md")]
pub mod metrics {}

#[doc = include_str!("guide/command.md")]
pub mod command {}

#[doc = include_str!("guide/sentinel_and_cluster.md")]
pub mod sentinel_and_cluster {}
