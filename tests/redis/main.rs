//! Claims about locking, against real Redis servers and real faults.
//!
//! Each test starts servers of its own and shares nothing with the others. A test's name is the claim; where it starts
//! with a letter and a number, that is the hazard it belongs to.
//!
//! `QUORLOCK_TEST_BACKEND` chooses what the servers are: see `devnodes::Backend`. A test begins with `needs!` for what a backend
//! lacks.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start threads and read clocks themselves"
)]

mod access;
mod acquire;
mod bad_nodes;
mod bounds;
mod building;
mod busy;
mod checks;
mod clocks;
mod clusters;
mod contenders;
mod cut_off;
mod each_kind;
mod failovers;
mod failures;
mod fairness;
mod fencing;
mod first_calls;
mod guard;
mod handovers;
mod held;
mod holders;
mod inspect;
mod late;
mod levels;
mod liars;
mod list;
mod lists;
mod log_lines;
mod loggers;
mod losses;
mod lost_notices;
mod members;
mod memory;
mod names;
mod notices;
mod obligations;
mod observer;
mod one_bad;
mod operations;
mod other_nodes;
mod outages;
mod overload;
mod own_hold;
mod process;
mod promoted;
mod quarantine;
mod queue;
#[cfg(feature = "metrics")]
mod recorder;
mod reentrant;
mod renewal;
mod replicated;
mod resource;
mod rw_lock;
mod rw_waiting;
mod scripts;
mod secrets;
mod semaphore;
mod semaphore_waiting;
mod sentinel;
mod several;
mod several_waiting;
mod slow_ways;
mod starving;
mod stopping;
mod support;
mod swapped;
mod together;
mod waiting;

/// On the backend `tls` it trusts the certificates of the servers.
fn builder_for(urls: impl IntoIterator<Item = impl AsRef<str>>) -> quorlock::Builder {
    let urls: Vec<String> = urls
        .into_iter()
        .map(|url| url.as_ref().to_owned())
        .collect();
    let builder = quorlock::LockManager::builder(&urls);
    if !urls.iter().any(|url| url.starts_with("rediss://")) {
        return builder;
    }
    #[cfg(not(feature = "tls"))]
    panic!("QUORLOCK_TEST_BACKEND=tls needs `cargo test --features tls`");
    #[cfg(feature = "tls")]
    builder.tls(quorlock::Tls::with_ca_pem(devnodes::tls::authority_pem()))
}

#[test]
#[ignore = "a process of another test"]
fn child_that_is_a_stand_in() {
    devnodes::stand_in::run_if_asked();
}
