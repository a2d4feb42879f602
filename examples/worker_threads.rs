//! Plain threads that share one manager, with a lock per item; one of them loses its lock and stops by itself.
//!
//! ```text
//! cargo run --example worker_threads
//! ```
//!
//! starts three servers on this machine and ends them. Three threads import one item each, part by part. Then the lock
//! of one item is deleted from the servers, as by a careless `FLUSHALL`. The thread is told by `guard.lost()` while
//! it waits for more work, and stops; the other two go on.

use std::error::Error;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use devnodes::Servers;
use quorlock::{LockManager, Lost};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ITEMS: [&str; 3] = ["apples", "pears", "plums"];

/// For waits that end by themselves long before.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the threads tell the main thread.
enum News {
    Locked { item: &'static str, token: u64 },
    Imported { item: &'static str, part: u32 },
}

/// How the work on an item ended.
enum End {
    Complete,
    Stopped(Lost),
}

fn main() -> Result {
    let servers = Servers::start(3)?;
    let locks = LockManager::builder(servers.urls())
        // Every third of this the locks are extended, and a loss is noticed. The default of 10 s suits most programs.
        .ttl(Duration::from_secs(4))
        // The default suits servers in a network. This machine may still be busy compiling.
        .connect_timeout(Duration::from_secs(1))
        .response_timeout(Duration::from_secs(1))
        // Only here, where the servers are seconds old and protect nothing: they would have no vote for the first four.
        .quarantine(false)
        .build()?;

    println!("Three threads, one manager, a lock for each item:");
    let (news_in, news) = unbounded();
    let mut workers = Vec::new();
    for item in ITEMS {
        let (parts_in, parts) = unbounded();
        // A clone is the same manager: the same connections, the same thread that extends all locks.
        let (locks, news_in) = (locks.clone(), news_in.clone());
        let thread = thread::Builder::new()
            .name(item.into())
            .spawn(move || import(item, &locks, &parts, &news_in))?;
        workers.push((item, parts_in, thread));
    }
    for _ in &workers {
        if let News::Locked { item, token } = news.recv_timeout(PATIENCE)? {
            println!("  {item}: locked, fencing token {token}");
        }
    }

    println!("Each is given a part to import:");
    give_part_to_each(&workers, &news, 1)?;

    println!("Somebody deletes the lock of the pears on all servers.");
    for server in &servers {
        server.command(&["DEL", "import-pears"])?;
    }

    let mut ends = Vec::new();
    // The thread of the pears is not told anything, and ends.
    let (pears, rest): (Vec<_>, Vec<_>) =
        workers.into_iter().partition(|(item, ..)| *item == "pears");
    for (item, _parts_in, thread) in pears {
        ends.push((item, thread.join().map_err(|_| "a worker panicked")??));
    }
    println!("  pears: stopped by itself, {}", describe(&ends[0].1));

    println!("The others go on:");
    give_part_to_each(&rest, &news, 2)?;
    for (item, parts_in, thread) in rest {
        drop(parts_in); // no more parts
        ends.push((item, thread.join().map_err(|_| "a worker panicked")??));
    }
    for (item, end) in &ends[1..] {
        println!("  {item}: {}", describe(end));
    }

    println!("The lock of the pears is free for whoever wants to try again:");
    let guard = locks.mutex("import-pears").try_lock_for(PATIENCE)?;
    println!("  pears: locked, fencing token {}", guard.fencing_token());
    drop(guard);
    println!("The manager counts {} lost lock.", locks.stats().locks_lost);

    let as_expected = matches!(
        ends[..],
        [(_, End::Stopped(_)), (_, End::Complete), (_, End::Complete)]
    );
    if as_expected {
        Ok(())
    } else {
        Err("only the pears should have been lost".into())
    }
}

/// One thread: takes the lock of its item, and imports parts until there are no more or the lock is lost.
fn import(
    item: &'static str,
    locks: &LockManager,
    parts: &Receiver<u32>,
    news: &Sender<News>,
) -> Result<End> {
    let guard = locks.mutex(format!("import-{item}")).lock()?;
    news.send(News::Locked {
        item,
        token: guard.fencing_token().get(),
    })?;
    let lost = guard.lost();
    loop {
        select! {
            recv(lost) -> how => return Ok(End::Stopped(how?)),
            recv(parts) -> part => match part {
                // Here the part would be written, with the fencing token.
                Ok(part) => news.send(News::Imported { item, part })?,
                Err(_no_more) => break,
            },
        }
    }
    guard.release()?;
    Ok(End::Complete)
}

type Worker = (&'static str, Sender<u32>, thread::JoinHandle<Result<End>>);

fn give_part_to_each(workers: &[Worker], news: &Receiver<News>, part: u32) -> Result {
    for (_, parts_in, _) in workers {
        parts_in.send(part)?;
    }
    for _ in workers {
        if let News::Imported { item, part } = news.recv_timeout(PATIENCE)? {
            println!("  {item}: imported part {part}");
        }
    }
    Ok(())
}

fn describe(end: &End) -> String {
    match end {
        End::Complete => "complete, and its lock released".into(),
        End::Stopped(lost) => lost.to_string(),
    }
}
