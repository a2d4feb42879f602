//! What a lock costs over TLS beside one without.
//!
//! ```text
//! cargo bench --package quorlock-benches --features tls --bench tls_costs
//! ```
//!
//! Five servers that have TLS of their own, with a port for each. *pair*: blocks of acquisitions and their releases on either, in
//! turn. *first*: a new manager, until its first lock is taken and released: connections, handshakes and logins to five servers.
//! Both in the same minutes; the numbers are medians of the blocks. Processor time is that of this process, and of all servers
//! together. Read the ratios.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program that measures time and prints it"
)]

use std::fs;
use std::time::Instant;

use devnodes::tls::Authority;
use devnodes::{Error, Server, Servers};
use quorlock::{LockManager, Tls};
use rustix::time::{ClockId, clock_gettime};

const PAIRS: u32 = 50;
const CYCLES: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if !std::env::args().any(|it| it == "--bench") {
        println!("nothing to test here: `cargo bench` measures");
        return Ok(());
    }
    let authority = Authority::generate();
    let servers = start(&authority)?;
    let plain = servers.urls();
    let secured: Vec<_> = servers
        .iter()
        .map(|it| format!("rediss://{}", it.tls_addr()))
        .collect();
    let build = |tls: bool| {
        let builder = LockManager::builder(if tls { &secured } else { &plain }).quarantine(false);
        let builder = if tls {
            builder.tls(Tls::with_ca_pem(authority.pem()))
        } else {
            builder
        };
        builder.build().expect("it is built")
    };
    let managers = [false, true].map(build);
    managers.iter().for_each(pair);

    let (mut pairs, mut firsts) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for cycle in 0..CYCLES {
        for who in [cycle % 2, 1 - cycle % 2] {
            pairs[who].push(block(PAIRS, &servers, || pair(&managers[who])));
            firsts[who].push(block(1, &servers, || pair(&build(who == 1))));
        }
    }
    println!("| | us | client CPU us | servers CPU us |\n| --- | --- | --- | --- |");
    for (what, blocks) in [("pair", pairs), ("first", firsts)] {
        let rows = blocks
            .map(|of| [0, 1, 2].map(|column| median(of.iter().map(|it| it[column]).collect())));
        let ratios = [0, 1, 2].map(|it| rows[1][it] / rows[0][it]);
        for (how, row, digits) in [
            ("", rows[0], 1),
            (" over TLS", rows[1], 1),
            (", x plain", ratios, 2),
        ] {
            println!(
                "| {what}{how} | {:.digits$} | {:.digits$} | {:.digits$} |",
                row[0], row[1], row[2]
            );
        }
    }
    Ok(())
}

fn start(authority: &Authority) -> Result<Servers, Error> {
    let certificate = authority.certify(&["127.0.0.1"]);
    Servers::start_with(5, |it| it.own_tls(&certificate, authority))
}

fn pair(locks: &LockManager) {
    locks
        .mutex("bench")
        .try_lock()
        .expect("nobody else has it")
        .release()
        .expect("it is held");
}

/// The median of those, the client's processor time and the servers', in microseconds each.
fn block(times: u32, servers: &Servers, does: impl Fn()) -> [f64; 3] {
    let of_servers = || servers.iter().map(processor_time).sum::<f64>();
    let (client, server) = (own_time(), of_servers());
    let took = (0..times).map(|_| {
        let begin = Instant::now();
        does();
        begin.elapsed().as_secs_f64() * 1e6
    });
    let median = median(took.collect());
    let each = f64::from(times);
    [
        median,
        (own_time() - client) / each,
        (of_servers() - server) / each,
    ]
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Processor time of this process, in microseconds.
fn own_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// The same of a server.
fn processor_time(server: &Server) -> f64 {
    // Nanoseconds that it has run, and two numbers more.
    let stat = fs::read_to_string(format!("/proc/{}/schedstat", server.pid())).unwrap_or_default();
    stat.split_whitespace()
        .next()
        .and_then(|it| it.parse::<f64>().ok())
        .unwrap_or(f64::NAN)
        / 1e3
}
