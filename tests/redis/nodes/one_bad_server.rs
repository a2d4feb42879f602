//! One of three servers that is no good costs its own vote only: the first call of a new manager wins.

use devnodes::{FakeServer, Servers, Spoiled, eventually, spoil};
use quorlock::Builder;

use crate::support::*;

/// A short quarantine, which all servers have behind them.
fn short(builder: Builder) -> Builder {
    builder
        .quarantine(true)
        .ttl(secs(2))
        .max_ttl(secs(2))
        .response_timeout(ms(500))
        .connect_timeout(secs(2))
}

fn used() -> Servers {
    let servers = Servers::start(3).unwrap();
    let locks = short(builder(servers.urls())).build().unwrap();
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

    let guard = short(builder(urls)).build()?.mutex("report").try_lock()?;

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
