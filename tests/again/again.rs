//! Tests of `tests/redis` once more, on stand-ins: guards, waiting, renewal, losses, outages, overload and reentrancy mean the
//! same on both.
//!
//! The other files have tests that ask servers what stand-ins do not know (`PUBSUB`, `ZRANGE`, `CLIENT`, `CONFIG`, access
//! lists), or need their processes, clocks, logs and groups. Of those, what the scripts say and store is compared in
//! `tests/conformance`.
#![allow(dead_code, reason = "what only others of those tests need")]

#[path = "../redis/busy.rs"]
mod busy;
#[path = "../redis/contenders.rs"]
mod contenders;
#[path = "../redis/guard.rs"]
mod guard;
#[path = "../redis/lists.rs"]
mod lists;
#[path = "../redis/losses.rs"]
mod losses;
#[path = "../redis/outages.rs"]
mod outages;
#[path = "../redis/overload.rs"]
mod overload;
#[path = "../redis/reentrant.rs"]
mod reentrant;
#[path = "../redis/renewal.rs"]
mod renewal;
#[path = "../redis/support.rs"]
mod support;
#[path = "../redis/waiting.rs"]
mod waiting;

fn builder_for<I>(urls: I) -> quorlock::Builder
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    quorlock::LockManager::builder(urls)
}
