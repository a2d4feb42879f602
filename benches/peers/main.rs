//! Runs other Redlock clients on behalf of quorlock's benches.
//!
//! The bench starts one process per client and sends it small batches over stdin, so that ours, theirs and
//! the raw floor take turns on the same servers within one run, and no client's threads disturb another's
//! numbers. Processor time is read inside each process, around the batch only.
//!
//! ```text
//! quorlock-peers <rslock-mt|rslock-ct|redlock> <url> ...
//!
//! -> pairs <n> <ttl_ms> <name>
//! <- pairs ok=<k> failed=<k> cpu_us=<us> samples_ns=<ns>,<ns>,...
//! -> threads <t> <seconds> <ttl_ms> <name>
//! <- threads ok=<k> failed=<k> elapsed_us=<us> cpu_us=<us> p50_ns=<ns> p99_ns=<ns>
//! -> lock <ttl_ms> <name>
//! <- locked called_ns=<t> at_ns=<t>
//! -> unlock <after_us>
//! <- unlocked called_ns=<t>
//! -> sections <tasks> <begin_ns> <end_ns> <inside_us> <ttl_ms> <name>
//! <- sections errors=<k> first_error=<text> cpu_us=<us> sections_ns=<called>:<entered>:<left>,...;...
//! -> quit
//! ```
//!
//! A pair is one acquisition, tried once, and its release, both awaited as the client's documentation
//! shows. `samples_ns` has the pairs that were acquired; those that were not are in `failed`. What waits, `lock` and
//! `sections`, does so with the client's own default retries; its times are of a clock that processes share, and `;`
//! ends the list of a task. A line that is not understood is answered with `error <reason>`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that measures time and talks over stdout"
)]

mod clients;
mod measure;
mod request;

use std::env;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use clients::Client;
use request::Request;

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let client = args.next().unwrap_or_default();
    let urls: Vec<String> = args.collect();
    let served = match Client::open(&client, urls) {
        Ok(mut client) => serve(&mut client, io::stdin().lock(), io::stdout().lock()),
        Err(err) => Err(err),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("quorlock-peers {client}: {err}");
            ExitCode::FAILURE
        }
    }
}

/// Answers requests, one line each, until `quit` or the end of the input.
fn serve(client: &mut Client, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    for line in input.lines() {
        let answer = match line?.parse() {
            Ok(Request::Nothing) => continue,
            Ok(Request::Quit) => return Ok(()),
            Ok(Request::Pairs { n, ttl, name }) => client.pairs(n, ttl, &name).to_string(),
            Ok(Request::Threads {
                threads,
                window,
                ttl,
                name,
            }) => client.threads(threads, window, ttl, &name)?.to_string(),
            Ok(Request::Lock { ttl, name }) => answer(client.lock(ttl, name)),
            Ok(Request::Unlock { after }) => answer(
                client
                    .unlock(after)
                    .map(|called| format!("unlocked called_ns={called}")),
            ),
            Ok(Request::Sections { tasks, job }) => answer(client.sections(tasks, &job)),
            Err(err) => format!("error {err}"),
        };
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

fn answer(outcome: io::Result<impl ToString>) -> String {
    match outcome {
        Ok(report) => report.to_string(),
        Err(err) => format!("error {err}"),
    }
}
