//! The native twins of our scripts do what the scripts do on a real server: every reply, every key and every notice is
//! compared, at a time that stands still.
//!
//! What cannot be compared: what a script does where an access list forbids one of its commands, and the text of errors
//! behind what the command said.
#![allow(clippy::disallowed_methods, reason = "tests start threads and read clocks themselves")]

mod choices;
mod closer;
mod locks;
mod pair;
mod sequences;
mod shapes;
mod sources;
#[path = "../../src/testing/store/mod.rs"]
mod store;

use pair::Pair;
use sources::Sources;
use store::Reply;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// As a server is sent it.
type Command = Vec<Vec<u8>>;

fn command<A: AsRef<[u8]>>(args: impl IntoIterator<Item = A>) -> Command {
    args.into_iter().map(|it| it.as_ref().to_vec()).collect()
}

/// Whether the long tests were asked for.
fn is_long() -> bool {
    std::env::var_os("QUORLOCK_LONG").is_some()
}

/// Runs each of these scripts in all pairs of what can be chosen for it, on both; and some things in all combinations, if the
/// long tests were asked for.
fn compare(names: &[&str]) -> TestResult {
    let Some(mut pair) = Pair::start()? else { return Ok(()) };
    for shape in shapes::all(pair.now()).into_iter().filter(|it| names.contains(&it.name)) {
        pair.compare(shape.name, &shape.pairs(&pair, is_long()))?;
    }
    for shape in closer::all(pair.now()).into_iter().filter(|it| names.contains(&it.name)) {
        let cases = if is_long() { shape.product(&pair) } else { shape.pairs(&pair, false) };
        pair.compare(shape.name, &cases)?;
    }
    Ok(())
}

#[test]
fn a_script_that_has_changed_has_no_twin_until_somebody_has_looked_at_it() -> TestResult {
    let sources = Sources::read()?;
    for twin in &store::TWINS {
        let hash = sources.hash(twin.name);
        assert_eq!(twin.hash, hash, "{}.lua has changed: look at its twin, and write the hash beside it", twin.name);
    }
    assert_eq!(sources.names(), store::TWINS.iter().map(|it| it.name).collect::<std::collections::BTreeSet<_>>());
    Ok(())
}

#[test]
fn a_reply_is_written_as_servers_write_it() {
    let members = vec![Reply::OK, Reply::Int(-1), Reply::bulk("a\r\n"), Reply::Nil, Reply::Error("ERR no".to_owned())];
    for (resp3, nil) in [(false, "$-1"), (true, "_")] {
        let mut written = Vec::new();
        Reply::Array(members.clone()).write_to(&mut written, resp3);
        let expected = format!("*5\r\n+OK\r\n:-1\r\n$3\r\na\r\n\r\n{nil}\r\n-ERR no\r\n");
        assert_eq!(written, expected.as_bytes());
    }
}

#[test]
fn the_scripts_of_a_mutex_say_and_store_what_their_twins_do() -> TestResult {
    compare(&["acquire", "raise", "extend", "release", "inspect"])
}

#[test]
fn the_scripts_of_several_locks_say_and_store_what_their_twins_do() -> TestResult {
    compare(&["acquire_many", "raise_many", "extend_many", "release_many"])
}

#[test]
fn the_scripts_of_readers_say_and_store_what_their_twins_do() -> TestResult {
    compare(&["acquire_shared", "raise_shared", "extend_shared", "release_shared"])
}

#[test]
fn the_scripts_of_a_semaphore_and_of_nodes_say_and_store_what_their_twins_do() -> TestResult {
    compare(&["acquire_slot", "release_slots", "greet", "meet"])
}

#[test]
fn the_scripts_that_operators_run_say_what_their_twins_do() -> TestResult {
    compare(&["list", "present", "probe"])
}

#[test]
fn all_scripts_are_compared() -> TestResult {
    let shapes: std::collections::BTreeSet<_> =
        shapes::all(std::time::Duration::from_secs(1)).iter().map(|it| it.name).collect();
    assert_eq!(Sources::read()?.names(), shapes);
    Ok(())
}

#[test]
fn three_clients_that_do_whatever_they_like_with_two_names_are_told_the_same_by_both() -> TestResult {
    let Some(mut pair) = Pair::start()? else { return Ok(()) };
    let sequences = if is_long() { 400 } else { 40 };
    sequences::random(&mut pair, sequences).map(drop)
}

#[test]
fn in_the_last_millisecond_of_a_lock_and_after_it_the_scripts_say_and_store_what_their_twins_do() -> TestResult {
    let Some(mut pair) = Pair::start()? else { return Ok(()) };
    sequences::ending(&mut pair).map(drop)
}

#[test]
fn what_is_asked_without_a_script_is_answered_the_same() -> TestResult {
    let Some(mut pair) = Pair::start()? else { return Ok(()) };
    let cases = closer::commands(pair.now());
    pair.compare("commands", &cases)
}
