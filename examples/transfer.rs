//! Two accounts at once: transfers in both directions, by two programs that keep no order.
//!
//! ```text
//! cargo run --example transfer
//! ```
//!
//! starts four servers on this machine and ends them again: three for the locks, and a fourth with the accounts, which is no
//! node of the locks. Each transfer holds the locks of its two accounts, taken in one step, so it does not matter which it
//! names first. The accounts note the fencing token of whoever is at them, and refuse one that is smaller than the last.

use std::error::Error;
use std::thread;
use std::time::Duration;

use devnodes::{Client, Server, Servers};
use quorlock::{FencingToken, LockManager};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ACCOUNTS: [&str; 3] = ["account:7", "account:8", "account:9"];
const AT_FIRST: i64 = 100;
const TRANSFERS: usize = 25;

/// Moves an amount from one account to the other, unless one of them has seen a larger token; in one step.
const MOVE: &str = "
    for i = 1, #KEYS do
      local seen = tonumber(redis.call('HGET', KEYS[i], 'token') or '0')
      if seen > tonumber(ARGV[1]) then
        return redis.error_reply('REFUSED another holder came after ' .. ARGV[1] .. ': ' .. string.format('%.0f', seen))
      end
    end
    for i = 1, #KEYS do
      redis.call('HSET', KEYS[i], 'token', ARGV[1])
    end
    redis.call('HINCRBY', KEYS[1], 'balance', -ARGV[2])
    return redis.call('HINCRBY', KEYS[2], 'balance', ARGV[2])";

fn main() -> Result {
    let (nodes, bank) = (Servers::start(3)?, Server::start()?);
    let mut data = bank.client()?;
    for account in ACCOUNTS {
        data.command(&["HSET", account, "balance", &AT_FIRST.to_string()])?;
    }
    println!(
        "{} accounts with {AT_FIRST} each, and two programs that move money between them.",
        ACCOUNTS.len()
    );

    // The same pairs of accounts, named from either end.
    let there = [
        ("account:7", "account:9"),
        ("account:8", "account:7"),
        ("account:9", "account:8"),
    ];
    let back = there.map(|(from, to)| (to, from));
    thread::scope(|scope| {
        let mut programs = Vec::new();
        for (name, pairs, amount) in [("there", there, "10"), ("back", back, "7")] {
            let (locks, data) = (connect(&nodes)?, bank.client()?);
            programs.push((
                name,
                scope.spawn(move || transfers(&locks, data, &pairs, amount)),
            ));
        }
        for (name, program) in programs {
            let last = program.join().map_err(|_| "a program panicked")??;
            println!(
                "The program that goes {name} has made {TRANSFERS} transfers, the last with token {last}."
            );
        }
        Result::Ok(())
    })?;

    let mut sum = 0;
    for account in ACCOUNTS {
        let balance: i64 = data
            .command(&["HGET", account, "balance"])?
            .as_str()
            .ok_or("no balance")?
            .parse()?;
        println!("  {account}  {balance:>4}");
        sum += balance;
    }
    if sum != AT_FIRST * 3 {
        return Err("money was made, or lost".into());
    }
    println!("Nobody waited for the other for ever, and the sum is {sum}.");
    Ok(())
}

fn transfers(
    locks: &LockManager,
    mut data: Client,
    pairs: &[(&str, &str)],
    amount: &str,
) -> Result<FencingToken> {
    let mut last = FencingToken::from(0);
    for i in 0..TRANSFERS {
        let (from, to) = pairs[i % pairs.len()];
        let guard = locks.multi_lock([from, to]).lock()?;
        last = guard.fencing_token();
        // Whoever else may believe to be at one of these accounts is refused from here on.
        let token = last.to_string();
        data.command(&["EVAL", MOVE, "2", from, to, &token, amount])?;
        guard.release()?;
    }
    Ok(last)
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
