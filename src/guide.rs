//! The user's guide, in reading order. Begin with [`first_lock`].

#[allow(unused_imports, reason = "the pages link to them")]
use crate::error::*;
use crate::inspection::*;
use crate::observer::*;
use crate::*;

#[doc = include_str!("guide/first_lock.md")]
pub mod first_lock {}

#[doc = include_str!("guide/safety.md")]
pub mod safety {}

#[doc = include_str!("guide/waiting.md")]
pub mod waiting {}

#[doc = include_str!("guide/other_locks.md")]
pub mod other_locks {}

#[doc = include_str!("guide/coming_from.md")]
pub mod coming_from {}

#[doc = include_str!("guide/testing.md")]
pub mod testing {}

#[doc = include_str!("guide/programs.md")]
pub mod programs {}

pub mod programs {
    #![doc = include_str!("guide/programs.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod servers {
    #![doc = include_str!("guide/servers.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod sentinel_and_cluster {
    #![doc = include_str!("guide/sentinel_and_cluster.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod redis_access {
    #![doc = include_str!("guide/redis_access.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod servers_change {
    #![doc = include_str!("guide/servers_change.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod operations {
    #![doc = include_str!("guide/operations.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod metrics {
    #![doc = include_str!("guide/metrics.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod command {
    #![doc = include_str!("guide/command.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

pub mod async_code {
    #![doc = include_str!("guide/async.md")]
    #![allow(unused_imports, reason = "the page links to them")]
    use crate::*;
}

#[doc = include_str!("guide/testing.md")]
pub mod testing {}
