//! Many locks that end with their manager.

use std::sync::{Arc, mpsc};
use std::thread;

use devnodes::{Servers, eventually};
use quorlock::observer::{Event, Observer};
use quorlock::{LockGuard, LockManager, LostReason};

use crate::support::*;

fn take(locks: &LockManager, count: usize) -> Vec<LockGuard> {
    let names: Vec<usize> = (0..count).collect();
    // Several threads, because most of the time is spent waiting.
    thread::scope(|scope| {
        let take = |names: Vec<usize>| {
            names
                .into_iter()
                .map(|it| locks.mutex(format!("{it}")).lock().unwrap())
        };
        let threads = names.chunks(names.len().div_ceil(8)).map(<[usize]>::to_vec);
        let threads: Vec<_> = threads
            .map(|it| scope.spawn(move || take(it).collect::<Vec<_>>()))
            .collect();
        threads
            .into_iter()
            .flat_map(|it| it.join().unwrap())
            .collect()
    })
}

/// On all servers.
fn keys(servers: &Servers) -> usize {
    servers.iter().map(|it| lock_keys(it).len()).sum()
}

/// Tells the test of the first loss, and waits until the test has seen what it wants.
struct Waiting(mpsc::SyncSender<()>, std::sync::Mutex<mpsc::Receiver<()>>);

impl Observer for Waiting {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Lost { .. }) && self.0.send(()).is_ok() {
            let _ = self.1.lock().unwrap().recv();
        }
    }
}

#[test]
fn a_shutdown_sends_all_releases_before_any_loss_is_announced() -> TestResult {
    const LOCKS: usize = 2_000;
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let ((told, first), (go_on, going)) = (mpsc::sync_channel(0), mpsc::sync_channel(0));
    let observer = Arc::new(Waiting(told, going.into()));
    let locks = connected(
        builder(urls)
            .ttl(LONG)
            .shutdown_grace(secs(60))
            .observer(observer),
        3,
    );
    let guards = take(&locks, LOCKS);
    eventually("all are on all servers", || keys(&servers) == 3 * LOCKS);
    proxies.iter().for_each(|it| it.set_delay(ms(20)));

    thread::scope(|scope| {
        scope.spawn(|| locks.shutdown());
        first.recv().unwrap();
        nothing_is_left(&servers);
        drop((first, go_on));
    });

    assert!(
        guards
            .iter()
            .all(|it| reason(it.check()) == Err(LostReason::ShutDown))
    );
    Ok(())
}
