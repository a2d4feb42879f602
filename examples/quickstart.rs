//! A first look: one lock on five Redis servers, a second program that wants it too, and servers that fail.
//!
//! ```text
//! cargo run --example quickstart
//! ```
//!
//! needs nothing: it starts five real servers on this machine, breaks some of them, and ends them all. Where there is
//! no Redis or Valkey, it first fetches one into cargo's target folder. To try servers of your own:
//!
//! ```text
//! cargo run --example quickstart -- redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3
//! ```
//!
//! None of them is stopped. If they are new it waits for ten seconds first, and it says at its end what it leaves on them:
//! three small keys, as every program that takes a lock does.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use devnodes::Servers;
use quorlock::error::{NodeAnswer, NodeFailure, NodeReport};
use quorlock::{AcquireError, LockGuard, LockManager};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Whose servers they are.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Whose {
    Ours,
    Yours,
}

fn whose(second: &str) -> Whose {
    if second == SECOND[0] {
        Whose::Ours
    } else {
        Whose::Yours
    }
}

/// The lock is a key of this name on the servers.
const NAME: &str = "quickstart-report";

/// For waits that end by themselves long before.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the program starts itself a second time, on servers of its own and on yours.
const SECOND: [&str; 2] = ["--as-second-program", "--as-second-program-on-your-servers"];

fn main() -> Result {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.as_slice() {
        [] => on_servers_of_its_own(),
        [first, what, urls @ ..] if SECOND.contains(&first.as_str()) => {
            second_program(whose(first), what, urls)
        }
        urls => on_your_servers(urls),
    }
}

fn on_servers_of_its_own() -> Result {
    println!("1. Five servers");
    let servers = Servers::start(5)?;
    let urls = servers.urls();
    println!(
        "   Redis {}, each a process of its own that knows nothing of the others:",
        devnodes::find::server_version()?
    );
    show_nodes(&urls);
    println!("   A lock is a key on a majority of them: on any three of the five.");
    let locks = connect(Whose::Ours, &urls)?;

    println!("\n2. One holder at a time");
    let guard = take(&locks)?;
    let first = guard.fencing_token().get();
    show_second_program_refused(Whose::Ours, &urls)?;

    println!("\n3. Two servers die while we hold the lock");
    servers[0].kill()?;
    servers[1].kill()?;
    guard.check()?;
    println!(
        "   n0 and n1 are killed. The lock is still ours: the other three are a majority of five."
    );
    release(guard)?;
    let guard = take(&locks)?;
    let second = guard.fencing_token().get();
    release(guard)?;

    println!("\n4. A third one dies");
    servers[2].kill()?;
    println!("   n2 is killed. Two servers are left, and we try to take the lock:");
    match locks.mutex(NAME).try_lock() {
        Ok(_) => return Err("took a lock on two servers of five".into()),
        Err(err @ AcquireError::NoQuorum { .. }) => explain("   ", "no quorum", &err),
        Err(err) => return Err(err.into()),
    }
    println!(
        "   No program gets a lock from a minority, because another one might have it from the majority."
    );

    println!("\n5. They come back");
    for server in servers.iter().take(3) {
        server.restart()?;
    }
    println!("   n0, n1 and n2 run again, and are empty.");
    let guard = take(&locks)?;
    let third = guard.fencing_token().get();
    let fourth = hand_over_to_second_program(guard, Whose::Ours, &urls)?;

    println!("\n6. The numbers");
    show_tokens(&[first, second, third, fourth])
}

fn on_your_servers(urls: &[String]) -> Result {
    println!("1. Your servers");
    show_nodes(urls);
    println!("   None of them will be stopped: to see servers fail, run this without arguments.");
    let locks = connect(Whose::Yours, urls)?;
    if locks
        .mutex(NAME)
        .try_lock()
        .is_err_and(|err| is_quarantined(&err))
    {
        println!(
            "   They are new, or were restarted lately, and have no vote yet: who knows what they have forgotten."
        );
        println!("   That is over after ten seconds at most, and so this waits now ...");
    }

    println!("\n2. One holder at a time");
    let guard = take(&locks)?;
    let first = guard.fencing_token().get();
    show_second_program_refused(Whose::Yours, urls)?;

    println!("\n3. Handing over");
    let second = hand_over_to_second_program(guard, Whose::Yours, urls)?;

    println!("\n4. The numbers");
    show_tokens(&[first, second])?;

    println!("\n5. What is left on your servers");
    println!("   quorlock:fence:{NAME}, the counter behind the fencing tokens, for 24 hours.");
    println!("   quorlock:record, which shows clients that a server has lost its data, for good.");
    Ok(())
}

/// Starts the threads, one per server and one to keep locks alive; touches no network yet.
fn connect(whose: Whose, urls: &[String]) -> Result<LockManager> {
    let locks = LockManager::builder(urls)
        // The defaults suit servers in a network. This machine may still be busy compiling.
        .connect_timeout(Duration::from_secs(1))
        .response_timeout(Duration::from_secs(1))
        // Only for our own servers, which are seconds old and protect nothing: for their first ten seconds they would have
        // no vote, because a server that was just started may have forgotten locks.
        .quarantine(whose == Whose::Yours);
    Ok(locks.build()?)
}

fn is_quarantined(err: &AcquireError) -> bool {
    let quarantined = |it: &NodeReport| {
        matches!(
            it.answer,
            NodeAnswer::Failed(NodeFailure::Quarantined { .. })
        )
    };
    err.nodes().iter().any(quarantined)
}

fn show_nodes(urls: &[String]) {
    for (n, url) in urls.iter().enumerate() {
        // Without user and password.
        let place = url.split('?').next().and_then(|it| it.rsplit('@').next());
        println!("     n{n}  {}", place.unwrap_or_default());
    }
}

/// Takes the lock, waiting if need be: servers that have just come up are connected to in the background.
fn take(locks: &LockManager) -> Result<LockGuard> {
    let guard = locks.mutex(NAME).try_lock_for(PATIENCE)?;
    println!(
        "   We take the lock {NAME:?}: ours, with fencing token {}.",
        guard.fencing_token()
    );
    Ok(guard)
}

fn release(guard: LockGuard) -> Result {
    let released = guard.release()?;
    println!(
        "   We release it: confirmed by {} of {} servers, a majority.",
        released.confirmed, released.nodes
    );
    Ok(())
}

fn show_second_program_refused(whose: Whose, urls: &[String]) -> Result {
    let mut second = Second::start(whose, "try", urls)?;
    while second.next_line()?.is_some() {}
    second.end()?;
    println!(
        "   A majority has refused, and that decides. The holder is this program, process {}.",
        process::id()
    );
    Ok(())
}

/// The second program waits for the lock; we release it; the second program gets it. Returns its fencing token.
fn hand_over_to_second_program(guard: LockGuard, whose: Whose, urls: &[String]) -> Result<u64> {
    let mut second = Second::start(whose, "wait", urls)?;
    while second
        .next_line()?
        .ok_or("the second program ended too early")?
        != WAITING
    {}
    release(guard)?;
    let said = second
        .next_line()?
        .ok_or("the second program did not get the lock")?;
    let token = said.rsplit(' ').next().unwrap_or_default().parse()?;
    second.end()?;
    Ok(token)
}

fn show_tokens(tokens: &[u64]) -> Result {
    println!("   Fencing tokens, in the order of the holders: {tokens:?}");
    if !tokens.is_sorted_by(|earlier, later| earlier < later) {
        return Err("fencing tokens must grow".into());
    }
    println!(
        "   Each is larger than the one before. Storage that refuses smaller ones than it has seen"
    );
    println!("   is safe even from a holder that slept through the end of its lock.");
    Ok(())
}

/// One line for the verdict, and one per server for the reasons.
fn explain(indent: &str, verdict: &str, err: &AcquireError) {
    println!("{indent}{verdict}:");
    for row in err.nodes() {
        println!("{indent}  {row}");
    }
}

/// The second program, as the first one sees it.
struct Second {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Second {
    fn start(whose: Whose, what: &str, urls: &[String]) -> Result<Second> {
        let mut command = Command::new(env::current_exe()?);
        let second = if whose == Whose::Ours {
            SECOND[0]
        } else {
            SECOND[1]
        };
        let mut process = command
            .arg(second)
            .arg(what)
            .args(urls)
            .stdout(Stdio::piped())
            .spawn()?;
        println!(
            "   A second program, process {}, wants it too:",
            process.id()
        );
        let output = BufReader::new(process.stdout.take().ok_or("no output")?);
        Ok(Second { process, output })
    }

    /// Shows the next line and returns it.
    fn next_line(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        println!("   | {line}");
        Ok(Some(line.to_owned()))
    }

    fn end(mut self) -> Result {
        let status = self.process.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the second program: {status}").into())
        }
    }
}

const WAITING: &str = "waiting for it ...";

/// The second program, as it sees itself: `what` is "try" or "wait".
fn second_program(whose: Whose, what: &str, urls: &[String]) -> Result {
    let locks = connect(whose, urls)?;
    let report = locks.mutex(NAME);
    match report.try_lock() {
        Ok(_) => return Err("got a lock that the first program holds".into()),
        Err(err) if err.is_held() => explain("", "refused, someone else holds it", &err),
        Err(err) => return Err(err.into()),
    }
    if what == "wait" {
        println!("{WAITING}");
        let guard = report.try_lock_for(PATIENCE)?;
        println!("ours now, with fencing token {}", guard.fencing_token());
    }
    Ok(())
}
