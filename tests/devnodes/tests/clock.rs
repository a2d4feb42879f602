//! A server's wall clock, stepped while it runs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use devnodes::{Clock, Server, eventually};

/// By how many milliseconds the server's clock is ahead of ours; a few off, for the way there.
fn ahead(server: &Server) -> i64 {
    let time = server.command(&["TIME"]).unwrap();
    let [seconds, micros] = [0, 1].map(|i| time.as_array().unwrap()[i].as_int().unwrap());
    let ours = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis();
    seconds * 1_000 + micros / 1_000 - i64::try_from(ours).unwrap()
}

fn start() -> Option<Server> {
    if !Clock::available() {
        eprintln!("left out: clocks of servers can be stepped on Linux only");
        return None;
    }
    Some(Server::builder().stepped_clock().start().unwrap())
}

#[test]
fn c4_a_key_of_30_s_is_gone_after_a_step_of_40_s_forward() {
    let Some(server) = start() else { return };
    let before = ahead(&server);
    server
        .command(&["SET", "long", "v", "PX", "600000"])
        .unwrap();
    server
        .command(&["SET", "short", "v", "PX", "30000"])
        .unwrap();

    server.step_clock_forward(Duration::from_secs(40)).unwrap();

    assert!(
        before + 30_000 < ahead(&server),
        "{before} then {}",
        ahead(&server)
    );
    assert!(!server.exists("short"));
    let left = server.pttl("long");
    assert!((1..=560_000).contains(&left), "{left}");
    server.restart().unwrap();
    assert!(before + 30_000 < ahead(&server), "the new process has it");
}

#[test]
fn c4_a_key_lives_longer_after_a_step_back() {
    let Some(server) = start() else { return };
    server
        .command(&["SET", "short", "v", "PX", "30000"])
        .unwrap();

    server.step_clock_back(Duration::from_secs(3_600)).unwrap();

    assert!(ahead(&server) < -3_000_000, "{}", ahead(&server));
    assert!(3_600_000 < server.pttl("short"), "{}", server.pttl("short"));
}

#[test]
fn a_clock_runs_fast_without_a_step() {
    let Some(server) = start() else { return };

    // A second is then a hundred.
    server.set_clock_rate(99_000_000).unwrap();
    let before = ahead(&server);
    assert!(before < 30_000, "{before}");

    eventually("it is a minute ahead", || before + 60_000 < ahead(&server));
    server.set_clock_rate(0).unwrap();
    assert!(before + 60_000 < ahead(&server));
}
