//! One of three servers that is no good costs its own vote only: the first call of a new manager wins.

use devnodes::{FakeServer, Servers, Spoiled, eventually, spoil};
use quorlock::Builder;

use crate::support::*;

/// With a quarantine, which no server is in.
fn strict(builder: Builder) -> Builder {
    builder.quarantine(true).connect_timeout(secs(3))
}

fn used() -> Servers {
    let servers = Servers::start(3).unwrap();
    let write = |it| Record::of_ever(it).write(it);
    servers.iter().for_each(write);
    let locks = strict(builder(servers.urls())).build().unwrap();
    eventually("all of them vote", || {
        drop(locks.mutex("used").lock().unwrap());
        servers.iter().all(|it| it.exists(fence("used"))) && locks.stats().quarantined.is_empty()
    });
    servers
}

fn the_first_call_wins_beside(how: Spoiled) -> TestResult {
    let servers = used();
    let fake = spoil(&servers[2], how)?;
    let mut urls = servers.urls();
    urls[2] = fake.as_ref().map_or(servers[2].url(), FakeServer::url);

    let guard = strict(builder(urls)).build()?.mutex("report").try_lock()?;

    assert!(guard.is_valid());
    guard.release()?;
    Ok(())
}

#[test]
fn h15_one_server_that_refuses_writes_or_the_login_costs_its_own_vote_only() -> TestResult {
    needs!(Settings);
    the_first_call_wins_beside(Spoiled::Full)?;
    the_first_call_wins_beside(Spoiled::CannotSave)?;
    the_first_call_wins_beside(Spoiled::ReadOnly)?;
    the_first_call_wins_beside(Spoiled::RefusesLogin)
}

#[test]
fn h15_one_server_that_hangs_costs_its_own_vote_only() -> TestResult {
    the_first_call_wins_beside(Spoiled::Hangs)?;
    the_first_call_wins_beside(Spoiled::HangsInLogin)?;
    the_first_call_wins_beside(Spoiled::HangsAfterLogin)
}
