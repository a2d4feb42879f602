//! A program whose locks Prometheus watches.
//!
//! ```text
//! cargo run --package prometheus-example -- 127.0.0.1:9464 redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3
//! ```
//!
//! Without servers it starts three of its own. `alerts.yml` beside this file has rules for Prometheus, and `dashboard.json` is
//! for Grafana.

use std::env;
use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use devnodes::Servers;
use prometheus_example::{install, serve};
use quorlock::observer::MetricsObserver;
use quorlock::{LockManager, Mutex};

/// Two threads compete for a lock again and again, and a third holds one for as long as it can.
const WORKERS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let listener = TcpListener::bind(args.next().unwrap_or_else(|| "127.0.0.1:9464".to_owned()))?;
    let mut urls: Vec<_> = args.collect();
    let servers = if urls.is_empty() {
        Some(Servers::start(3)?)
    } else {
        None
    };
    urls.extend(servers.iter().flat_map(Servers::urls));

    let address = listener.local_addr()?;
    // Before the first lock.
    serve(listener, install()?)?;
    println!("http://{address}/metrics");

    let mut builder = LockManager::builder(&urls).observer(Arc::new(MetricsObserver::new()));
    if servers.is_some() {
        // They were started for this, and nobody holds anything there.
        builder = builder.quarantine(false);
    }
    let locks = builder.build()?;
    let leader = locks.mutex("leader").class("leader");
    let report = locks.mutex("report:7").class("report");
    thread::scope(|scope| {
        // For as long as it is not lost.
        scope.spawn(|| again_and_again(&leader, Duration::MAX));
        (0..WORKERS).for_each(|_| {
            drop(scope.spawn(|| again_and_again(&report, Duration::from_millis(100))))
        });
    });
    Ok(())
}

/// The work takes so long, and ends when the lock is lost.
fn again_and_again(mutex: &Mutex, work: Duration) -> ! {
    loop {
        match mutex.lock() {
            Ok(guard) => drop(guard.lost().recv_timeout(work)),
            Err(err) => {
                eprintln!("{}: {err}", mutex.name().escape_ascii());
                // Not at once again: some errors are there at once.
                thread::park_timeout(Duration::from_secs(1));
            }
        }
    }
}
