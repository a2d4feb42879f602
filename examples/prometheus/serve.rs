//! Serves metrics to Prometheus, with the standard library and one thread.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// From half a millisecond, less than a free lock takes, to ten minutes. Prometheus only estimates between two limits.
///
/// `alerts.yml` compares a margin with a quarter of the ttl, and two thirds are normal: so no limit above 0.25 s is more than
/// 2.5 times the one before it.
const BUCKETS: [f64; 20] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];

/// For how long a client that says nothing keeps the others waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// Installs a recorder for the whole process. To be called before locks are taken.
///
/// # Errors
///
/// There is a recorder already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()
}

/// Answers every request with the metrics, on a thread of its own, for as long as the process runs.
///
/// # Errors
///
/// The system gives no thread.
pub fn serve(listener: TcpListener, metrics: PrometheusHandle) -> io::Result<()> {
    let serve = move || {
        for client in listener.incoming().flatten() {
            // One that has gone away is no reason to stop.
            let _ = answer(client, &metrics);
        }
    };
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(serve)
        .map(drop)
}

fn answer(mut client: TcpStream, metrics: &PrometheusHandle) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    // Whatever it asks for: a request ends with an empty line.
    let mut lines = BufReader::new(client.try_clone()?).lines();
    while !lines.next().transpose()?.unwrap_or_default().is_empty() {}
    metrics.run_upkeep();
    let text = metrics.render();
    write!(
        client,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}
