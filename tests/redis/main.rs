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

mod support;

mod acquire {
    mod attempts;
    mod fenced_resource;
    mod fencing;
    mod first_call;
    mod guard;
    mod late_answers;
    mod mutex;
    mod names;
    mod own_hold;
}

mod waiting {
    pub(crate) mod contenders;
    mod ends;
    mod fairness;
    mod handovers;
    pub(crate) mod lists;
    mod lost_notices;
    mod minority;
    mod notices;
    mod outages;
    mod overload;
    mod queue;
    mod starvation;
}

mod renewal {
    mod busy_servers;
    mod early_warning;
    mod extensions;
    mod losses;
    mod process;
    mod shutdown;
    mod signals;
    mod slow_network;
}

mod nodes {
    pub(crate) mod access_list;
    mod bad_servers;
    mod building;
    mod checks;
    mod clocks;
    mod failures;
    mod forgotten_flows;
    pub(crate) mod lying_servers;
    mod one_bad_server;
    mod scripts;
    mod server_count;
    mod settings;
}

mod quarantine {
    mod promotion;
    pub(crate) mod record;
    mod refusals;
    mod restart;
    mod swapped_server;
}

mod kinds {
    pub(crate) mod each_kind;
    mod keep_for;
    mod reentrant;
    mod rw_lock;
    pub(crate) mod semaphore;
    mod several_names;
}

mod once {
    mod fleet;
    mod restarts;
    mod runs;
}

mod topology {
    mod cluster;
    mod failover;
    pub(crate) mod members;
    pub(crate) mod replicated;
    mod sentinel;
}

mod operations {
    mod account;
    mod health;
    mod held_locks;
    mod holder_label;
    pub(crate) mod incidents;
    mod inspect;
    mod list;
    pub(crate) mod log_lines;
    mod loggers;
    pub(crate) mod recorder;
    pub(crate) mod secrets;
}

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
    builder.tls(quorlock::Tls::with_ca_pem(devnodes::tls::authority_pem()))
}

#[test]
#[ignore = "a process of another test"]
fn child_that_is_a_stand_in() {
    devnodes::stand_in::run_if_asked();
}
