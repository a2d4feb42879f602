//! The first call of a manager, whose own clock is wrong: tokens, and places in waiting lists, go by the nodes' clocks from
//! the beginning. On Linux only, where devnodes can set clocks.

use std::thread;
use std::time::{Duration, Instant};

use devnodes::{Clock, Servers, eventually};
use quorlock::{AcquireError, Builder};

use crate::support::*;
use crate::waiting::lists::waiters_of;

/// The longest ttl, and so nearly the length of a quarantine.
const MAX_TTL: Duration = secs(1);
/// How wrong clocks are here: far more than that, and far less than what nodes refuse.
const WRONG: Duration = secs(30);
const MINUTE: Duration = secs(60);
/// More than a login takes, unless the machine is very busy.
const LOGIN_MAX: Duration = secs(2);

#[derive(Clone, Copy, Debug)]
enum Wrong {
    Ahead,
    Behind,
}

fn strict(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Builder {
    builder(urls)
        .quarantine(true)
        .ttl(MAX_TTL)
        .max_ttl(MAX_TTL)
        .response_timeout(ms(250))
        .connect_timeout(secs(1))
}

/// A program that is started with a wrong clock, to make a single call; `work` talks to it.
fn program<T>(
    wrong: Wrong,
    name: &str,
    servers: &Servers,
    work: impl FnOnce(ChildProcess) -> T,
) -> T {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::create(folder.path()).unwrap();
    match wrong {
        Wrong::Ahead => clock.step_forward(WRONG).unwrap(),
        Wrong::Behind => clock.step_back(WRONG).unwrap(),
    }
    work(child_with(name, &servers.urls(), clock.environment()))
}

/// A program with a wrong clock takes the lock and gives it back; its token.
fn token_of_program(wrong: Wrong, servers: &Servers) -> u64 {
    program(
        wrong,
        "acquire::first_call::child_that_takes_the_lock_once",
        servers,
        |mut child| {
            let token = child.hear().parse().unwrap();
            assert!(child.wait().success());
            token
        },
    )
}

#[test]
#[ignore = "a process of another test"]
fn child_that_takes_the_lock_once() {
    let Some(urls) = parent_urls() else { return };
    let guard = strict(&urls).build().unwrap().mutex("report").lock();
    match guard {
        Ok(guard) => say(guard.fencing_token()),
        Err(err) => say(err),
    }
}

/// Never more than one node is away: the one that the first holder did not reach takes part for the second, beside one that
/// has forgotten the first.
fn tokens_around_a_loss(
    first: impl FnOnce(&Servers) -> u64,
    second: impl FnOnce(&Servers) -> u64,
) -> (u64, u64) {
    let servers = Servers::start(3).unwrap();
    // An operator has vouched for them, so that only their uptime has to be waited for.
    set_all(&servers, RECORD, "0");
    servers[2].pause().unwrap();
    let first = first(&servers);
    servers[2].resume().unwrap();
    assert!(!servers[2].exists("report") && !servers[2].exists(fence("report")));
    servers[1].restart_empty().unwrap();
    servers[0].pause().unwrap();
    let second = second(&servers);
    servers[0].resume().unwrap();
    (first, second)
}

fn token_of_ours(servers: &Servers) -> u64 {
    strict(servers.urls())
        .build()
        .unwrap()
        .mutex("report")
        .lock()
        .unwrap()
        .fencing_token()
        .get()
}

#[test]
fn h1_tokens_of_clients_with_wrong_clocks_are_in_order_after_a_data_loss() -> TestResult {
    needs!(SteppedClocks);
    let ahead = |servers: &Servers| token_of_program(Wrong::Ahead, servers);
    let (first, second) = tokens_around_a_loss(ahead, token_of_ours);
    assert!(first < second, "first ahead: {first} then {second}");
    let behind = |servers: &Servers| token_of_program(Wrong::Behind, servers);
    let (first, second) = tokens_around_a_loss(token_of_ours, behind);
    assert!(first < second, "second behind: {first} then {second}");
    Ok(())
}

/// The clock of one node is far ahead of the others', so that what that node takes for a counter can be told from what clients
/// propose.
#[test]
fn h1_the_end_of_the_last_quarantine_replaces_a_missing_counter() -> TestResult {
    needs!(SteppedClocks);
    let servers = Servers::start_with(3, |it| it.stepped_clock())?;
    servers
        .iter()
        .for_each(|it| it.step_clock_forward(MINUTE).unwrap());
    servers[0].step_clock_forward(MINUTE)?;
    set_all(&servers, RECORD, "0");
    // It has forgotten something ten seconds ago, and its quarantine is over.
    let forgot = time_at(&servers[0]) - 10_000_000;
    Record::write_changed(&servers[0], |it| it.since = forgot);
    servers[2].pause()?;
    let locks = strict(servers.urls()).build()?;
    // A call that gets nowhere leaves a smaller one there, which counts for nothing.
    set(&servers[1], "report", "foreign");
    assert!(locks.mutex("report").try_lock_for(ms(0)).is_err());
    eventually("it has asked", || servers[0].exists(fence("report")));
    let counter = String::from_utf8(servers[0].get(fence("report")).unwrap())?.parse::<u64>()?;
    assert!(counter < forgot, "{counter}, forgotten at {forgot}");
    del(&servers[1], "report");

    let token = locks.mutex("report").lock()?.fencing_token().get();
    assert!(forgot + 1_000_000 < token, "{token}, forgotten at {forgot}");
    assert_eq!(locks.stats().fencing_raises, 1);

    // From now on there is a counter.
    let next = locks.mutex("report").lock()?.fencing_token().get();
    assert!(
        token < next && next < token + 1_000_000,
        "{token} then {next}"
    );
    servers[2].resume()?;
    Ok(())
}

/// The first of `n` waiting clients, in all lists. Not its entry: a call that gave a grant back has
/// another owner token in it.
fn first_of_waiters(servers: &Servers, n: usize) -> String {
    eventually("they are in all lists", || {
        servers.iter().all(|it| waiters_of(it, "report").len() == n)
    });
    let first = waiters_of(&servers[0], "report").remove(0);
    let is_first = |server| waiters_of(server, "report")[0] == first;
    assert!(
        servers.iter().all(is_first),
        "not the same order everywhere"
    );
    first
}

/// Whether the case happened: the program logged in within [`LOGIN_MAX`].
fn waits_in_its_place(wrong: Wrong) -> bool {
    let (servers, other) = start_connected(3, builder);
    let guard = manager(&servers).mutex("report").lock().unwrap();
    let name = "acquire::first_call::child_that_waits_for_the_lock";
    program(wrong, name, &servers, |mut child| {
        // Before the one that is ahead others must not come; the one that is behind must not come before others.
        let child_is_first = matches!(wrong, Wrong::Ahead);
        let mut first = String::new();
        if child_is_first {
            child.tell("begin");
            first = first_of_waiters(&servers, 1);
        }
        let lock = other.mutex("report");
        let call = thread::spawn(move || lock.lock().map(drop));
        let mut began = Instant::now();
        if !child_is_first {
            first = first_of_waiters(&servers, 1);
            // While it logs in it learns the time, and no more precisely than a login takes.
            let entered = Instant::now();
            eventually("the call is older than a login takes", || {
                LOGIN_MAX < entered.elapsed()
            });
            began = Instant::now();
            child.tell("begin");
        }

        let still_first = first_of_waiters(&servers, 2);
        let is_quick = child_is_first || began.elapsed() < LOGIN_MAX;
        assert!(!is_quick || still_first == first, "{wrong:?}");
        guard.release().unwrap();
        join(call).unwrap();
        assert_eq!(child.hear(), "held");
        assert!(child.wait().success());
        is_quick
    })
}

#[test]
fn h1_the_first_call_of_a_program_with_a_wrong_clock_has_its_place_in_the_list() -> TestResult {
    needs!(SteppedClocks);
    for wrong in [Wrong::Ahead, Wrong::Behind] {
        let happened = (0..10).any(|_| waits_in_its_place(wrong));
        assert!(happened, "{wrong:?}: each login took {LOGIN_MAX:?}");
    }
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_waits_for_the_lock() {
    let Some(urls) = parent_urls() else { return };
    wait_for_parent();
    let locks = builder(urls).build().unwrap();
    match locks.mutex("report").lock() {
        Ok(_guard) => say("held"),
        Err(err) => say(err),
    }
}

#[test]
fn h1_a_first_call_that_waits_for_its_connections_is_ended_by_a_shutdown() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    servers.iter().for_each(|it| it.pause().unwrap());
    // Longer than any test waits.
    let locks = builder(&urls).connect_timeout(MINUTE).build()?;
    let lock = locks.mutex("report");
    let call = thread::spawn(move || lock.lock().map(drop));
    eventually("they are being connected", || {
        proxies.iter().all(|it| it.connections() == 1)
    });

    locks.shutdown();

    assert!(matches!(join(call), Err(AcquireError::ShutDown)));
    servers.iter().for_each(|it| it.resume().unwrap());
    Ok(())
}
