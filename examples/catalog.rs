//! A catalog that many read and one writes, and a reader that was too slow.
//!
//! ```text
//! cargo run --example catalog
//! ```
//!
//! starts four servers on this machine and ends them again: three for the locks, and a fourth with the catalog and a cache of
//! it, which is no node of the locks. The catalog has two parts, and a writer changes one after the other; no reader sees one
//! of them old and the other new. A reader whose lock ran out fills the cache with what it read long ago, and is refused: it
//! says which writer was the last that it knows of.

use std::error::Error;
use std::thread;
use std::time::Duration;

use devnodes::{Client, Server, Servers};
use quorlock::{FencingToken, LockManager};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const READERS: usize = 4;
const VERSIONS: usize = 5;

/// A writer registers its token, and changes nothing if there was a larger one.
const REGISTER: &str = "
    local seen = tonumber(redis.call('GET', KEYS[1]) or '0')
    if seen > tonumber(ARGV[1]) then
      return redis.error_reply('REFUSED another writer came after ' .. ARGV[1])
    end
    return redis.call('SET', KEYS[1], ARGV[1])";

/// The cache takes what was read, unless a writer has registered since. A reader registers nothing.
const FILL: &str = "
    if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then
      return redis.error_reply('REFUSED a writer came after ' .. ARGV[1])
    end
    return redis.call('SET', KEYS[2], ARGV[2])";

fn main() -> Result {
    let (nodes, store) = (Servers::start(3)?, Server::start()?);
    store.command(&["MSET", "prices", "0", "stock", "0"])?;

    println!("{READERS} programs read the catalog, and one writes {VERSIONS} versions of it.");
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| scope.spawn(|| read_to_the_end(&nodes, &store)))
            .collect();
        let writer = scope.spawn(|| write(&connect(&nodes)?, &mut store.client()?, 1));
        writer.join().map_err(|_| "the writer panicked")??;
        for reader in readers {
            let reads = reader.join().map_err(|_| "a reader panicked")??;
            println!("  a reader has looked {reads} times, and never saw two versions at once");
        }
        Result::Ok(())
    })?;

    // Two seconds, and not extended. This reader takes longer.
    let locks = connect(&nodes)?;
    let slow = locks
        .rw_lock("catalog")
        .ttl(Duration::from_secs(2))
        .renew(false)
        .read()?;
    let known = slow.last_writer();
    let (prices, _) = look(&mut store.client()?)?;
    println!(
        "A slow reader reads version {prices}, and its lock runs out: {}.",
        slow.lost().recv()?
    );
    write(&locks, &mut store.client()?, VERSIONS + 1)?;

    match fill(&mut store.client()?, known, &prices) {
        Ok(()) => return Err("the cache took what is out of date".into()),
        Err(err) => println!("What it read does not come into the cache: {err}."),
    }
    let (prices, _) = locks.rw_lock("catalog").read_with(|guard| {
        let seen = look(&mut store.client()?)?;
        guard.check()?;
        fill(&mut store.client()?, guard.last_writer(), &seen.0)?;
        Result::Ok(seen)
    })??;
    println!("What the next one reads does: version {prices}.");
    Ok(())
}

/// Looks until the last version is there; how often.
fn read_to_the_end(nodes: &Servers, store: &Server) -> Result<usize> {
    let (locks, mut data) = (connect(nodes)?, store.client()?);
    let lock = locks.rw_lock("catalog");
    for reads in 1.. {
        let guard = lock.read()?;
        let (prices, stock) = look(&mut data)?;
        // Without that, a reader that was stopped in between may have seen anything.
        guard.check()?;
        if prices != stock {
            return Err(format!("prices {prices} and stock {stock}").into());
        }
        if prices.parse::<usize>()? == VERSIONS {
            return Ok(reads);
        }
    }
    Err("never".into())
}

fn look(data: &mut Client) -> Result<(String, String)> {
    let mut part = |key: &str| {
        Result::Ok(
            data.command(&["GET", key])?
                .as_str()
                .ok_or("it is empty")?
                .to_owned(),
        )
    };
    Ok((part("prices")?, part("stock")?))
}

/// Writes the versions from `first` to the last; one if that is later.
fn write(locks: &LockManager, data: &mut Client, first: usize) -> Result {
    for version in first..=VERSIONS.max(first) {
        let guard = locks.rw_lock("catalog").write()?;
        let token = guard.fencing_token().to_string();
        data.command(&["EVAL", REGISTER, "1", "writer", &token])?;
        for part in ["prices", "stock"] {
            data.command(&["SET", part, &version.to_string()])?;
        }
        guard.release()?;
    }
    Ok(())
}

fn fill(data: &mut Client, last_writer: FencingToken, what: &str) -> Result {
    data.command(&[
        "EVAL",
        FILL,
        "2",
        "writer",
        "cache",
        &last_writer.to_string(),
        what,
    ])?;
    Ok(())
}

fn connect(nodes: &Servers) -> Result<LockManager> {
    let locks = LockManager::builder(nodes.urls())
        // The defaults suit servers in a network. This machine may still be busy compiling.
        .connect_timeout(Duration::from_secs(1))
        .response_timeout(Duration::from_millis(500))
        // Only here, where the servers are seconds old: they would have no vote for the first ten.
        .quarantine(false);
    Ok(locks.build()?)
}
