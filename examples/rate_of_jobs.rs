//! At most five of a fleet at a time: jobs that use something that bears no more.
//!
//! ```text
//! cargo run --example rate_of_jobs
//! ```
//!
//! starts four servers on this machine and ends them again: three for the permits, and a fourth that stands for the mail server. It
//! counts who is there, and keeps the largest token of each permit: so it refuses a job that slept through the end of its
//! permit, and never serves more than five.

use std::error::Error;
use std::thread;
use std::time::Duration;

use devnodes::{Client, Server, Servers};
use quorlock::{LockManager, Permit};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PERMITS: usize = 5;
const MACHINES: usize = 4;
const JOBS_OF_EACH: usize = 6;

/// A job comes: refused if a later holder of the same permit has been there. Returns how many are there now.
const COME: &str = "
    local seen = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
    if seen > tonumber(ARGV[2]) then
      return redis.error_reply('REFUSED another holder of this permit came later')
    end
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    local now = redis.call('INCR', KEYS[2])
    if now > tonumber(redis.call('GET', KEYS[3]) or '0') then
      redis.call('SET', KEYS[3], now)
    end
    return now";

fn main() -> Result {
    let (nodes, mail) = (Servers::start(3)?, Server::start()?);
    println!(
        "{MACHINES} machines with {JOBS_OF_EACH} jobs each, at once, and {PERMITS} permits for all of them."
    );

    thread::scope(|scope| {
        let mut jobs = Vec::new();
        for machine in 0..MACHINES {
            let permits = connect(&nodes)?.semaphore("mail-server", PERMITS);
            for _ in 0..JOBS_OF_EACH {
                let (permits, mail) = (permits.clone(), mail.client()?);
                let job = scope.spawn(move || send_mail(&permits.acquire()?, mail));
                jobs.push((machine, job));
            }
        }
        for (machine, job) in jobs {
            let (slot, inside) = job.join().map_err(|_| "a job panicked")??;
            println!(
                "  machine {machine} had permit {slot}, and was one of {inside} at the mail server"
            );
        }
        Result::Ok(())
    })?;

    let most = mail
        .command(&["GET", "most"])?
        .as_str()
        .unwrap_or("0")
        .parse::<usize>()?;
    println!("There were never more than {most}.");
    if PERMITS < most {
        Err("more than there are permits".into())
    } else {
        Ok(())
    }
}

/// Works under a permit; which one that was, and how many were there.
fn send_mail(permit: &Permit, mut mail: Client) -> Result<(usize, i64)> {
    let (slot, token) = (
        permit.slot().to_string(),
        permit.fencing_token().to_string(),
    );
    let inside = mail.command(&["EVAL", COME, "3", "tokens", "inside", "most", &slot, &token])?;
    // Stands for the work.
    for _ in 0..200 {
        mail.command(&["PING"])?;
    }
    permit.check()?;
    mail.command(&["DECR", "inside"])?;
    Ok((permit.slot(), inside.as_int().ok_or("no number")?))
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
