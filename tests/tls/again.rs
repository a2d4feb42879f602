//! Tests of `tests/redis` once more, on nodes that are reached by TLS. With QUORLOCK_TEST_TLS: see `devnodes::tls`.
#![allow(clippy::disallowed_methods, reason = "tests start threads and read clocks themselves")]
#![allow(dead_code, reason = "what only others of those tests need")]

use quorlock::{Builder, LockManager, Tls};

#[path = "../redis/acquire.rs"]
mod acquire;
#[path = "../redis/contenders.rs"]
mod contenders;
#[path = "../redis/cut_off.rs"]
mod cut_off;
#[path = "../redis/each_kind.rs"]
mod each_kind;
#[path = "../redis/failures.rs"]
mod failures;
#[path = "../redis/late.rs"]
mod late;
#[path = "../redis/lists.rs"]
mod lists;
#[path = "../redis/lost_notices.rs"]
mod lost_notices;
#[path = "../redis/notices.rs"]
mod notices;
#[path = "../redis/obligations.rs"]
mod obligations;
#[path = "../redis/renewal.rs"]
mod renewal;
#[path = "../redis/support.rs"]
mod support;
#[path = "../redis/waiting.rs"]
mod waiting;

/// Trusts who has signed what stands in front of servers. Some tests have nodes without.
fn builder_for<I>(urls: I) -> Builder
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let urls: Vec<String> = urls.into_iter().map(|it| it.as_ref().to_owned()).collect();
    let builder = LockManager::builder(&urls);
    if urls.iter().any(|it| it.starts_with("rediss://")) {
        builder.tls(Tls::with_ca_pem(devnodes::tls::authority_pem()))
    } else {
        builder
    }
}
