//! What Prometheus gets to see, with real servers.

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use devnodes::{Servers, eventually};
use prometheus_example::{install, serve};
use quorlock::LockManager;
use quorlock::observer::MetricsObserver;

/// Longer than the test waits for anything.
const LONG: Duration = Duration::from_secs(600);

/// One test, because there is one recorder in a process.
#[test]
fn metrics_are_served_and_rules_and_dashboard_name_existing_ones() -> Result<(), Box<dyn Error>> {
    let servers = Servers::start(3)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    serve(listener, install()?)?;
    let locks = LockManager::builder(servers.urls())
        .quarantine(false)
        .response_timeout(Duration::from_millis(250))
        .ttl(LONG)
        .observer(Arc::new(MetricsObserver::new()))
        .build()?;
    let has = |series: &str| {
        eventually(series, || {
            get(address).lines().any(|it| it.starts_with(series))
        })
    };

    let order = locks.mutex("order:4711").class("order");
    let guard = order.lock()?;
    has("quorlock_held{class=\"order\"} 1");
    has("quorlock_locks_lost_total{class=\"order\",why=\"gone\"} 0");
    has("quorlock_ttl_seconds{class=\"order\"} 600");
    has("quorlock_build_info{version=\"");
    assert!(order.try_lock().is_err());
    eventually("it is extended", || guard.extend(LONG).is_ok());
    guard.release()?;
    has("quorlock_held{class=\"order\"} 0");
    has("quorlock_waiting{class=\"order\"} 0");
    has("quorlock_acquire_wait_seconds_bucket{class=\"order\",outcome=\"acquired\",le=\"0.0005\"}");
    has("quorlock_acquire_wait_seconds_count{class=\"order\",outcome=\"held\"} 1");
    has("quorlock_hold_seconds_count{class=\"order\",end=\"released\"} 1");
    has("quorlock_extension_margin_seconds_bucket{class=\"order\",le=\"10\"} 0");

    let guard = order.lock()?;
    for server in &servers {
        server.command(&["DEL", "order:4711"])?;
    }
    assert!(guard.release().is_err());
    has("quorlock_locks_lost_total{class=\"order\",why=\"gone\"} 1");

    servers[0].kill()?;
    servers[1].pause()?;
    let goes_on = |series: &str| {
        eventually(series, || {
            drop(order.try_lock());
            get(address).lines().any(|it| it.starts_with(series))
        });
    };
    goes_on("quorlock_node_up{node=\"n0\"} 0");
    goes_on("quorlock_node_silent{node=\"n1\"} 1");
    servers[1].resume()?;
    goes_on("quorlock_node_silent{node=\"n1\"} 0");
    has("quorlock_node_failures_total{node=\"n0\",failure=\"connection\"}");
    has(&format!(
        "quorlock_node_info{{node=\"n2\",address=\"{}\"}} 1",
        servers[2].addr()
    ));

    let metrics = get(address);
    assert!(!metrics.contains("4711"), "a name of a lock: {metrics}");
    for file in ["alerts.yml", "dashboard.json"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?;
        let mut named = 0;
        for rest in text.split("quorlock_").skip(1) {
            let name = rest
                .split(|it: char| !it.is_ascii_alphanumeric() && it != '_')
                .next()
                .unwrap_or_default();
            assert!(
                metrics.contains(&format!("\nquorlock_{name}")),
                "{file} names quorlock_{name}: {metrics}"
            );
            named += 1;
        }
        assert!(4 <= named, "{file}");
    }
    Ok(())
}

/// What Prometheus would get.
fn get(address: SocketAddr) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    text
}
