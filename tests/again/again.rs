//! Tests of `tests/redis` once more, on stand-ins: all but those that need what only a server has.
//!
//! Whole files of such tests are named in `on_servers_only.txt`. A single test says so itself, by `cfg_attr(stand_ins, ignore)`, and
//! why. Stand-ins are in this process, and what is a fault of a process there is one of theirs here: see `devnodes.rs`.
#![allow(dead_code, reason = "what only others of those tests need")]

#[path = "../redis/acquire.rs"]
mod acquire;
#[path = "../redis/bad_nodes.rs"]
mod bad_nodes;
#[path = "../redis/bounds.rs"]
mod bounds;
#[path = "../redis/building.rs"]
mod building;
#[path = "../redis/busy.rs"]
mod busy;
#[path = "../redis/clocks.rs"]
mod clocks;
#[path = "../redis/contenders.rs"]
mod contenders;
#[path = "../redis/cut_off.rs"]
mod cut_off;
#[path = "../redis/each_kind.rs"]
mod each_kind;
#[path = "../redis/failures.rs"]
mod failures;
#[path = "../redis/fairness.rs"]
mod fairness;
#[path = "../redis/fencing.rs"]
mod fencing;
#[path = "../redis/first_calls.rs"]
mod first_calls;
#[path = "../redis/guard.rs"]
mod guard;
#[path = "../redis/held.rs"]
mod held;
#[path = "../redis/holders.rs"]
mod holders;
#[path = "../redis/inspect.rs"]
mod inspect;
#[path = "../redis/late.rs"]
mod late;
#[path = "../redis/levels.rs"]
mod levels;
#[path = "../redis/liars.rs"]
mod liars;
#[path = "../redis/list.rs"]
mod list;
#[path = "../redis/lists.rs"]
mod lists;
#[path = "../redis/lock_delay.rs"]
mod lock_delay;
#[path = "../redis/log_lines.rs"]
mod log_lines;
#[path = "../redis/loggers.rs"]
mod loggers;
#[path = "../redis/losses.rs"]
mod losses;
#[path = "../redis/lost_notices.rs"]
mod lost_notices;
#[path = "../redis/memory.rs"]
mod memory;
#[path = "../redis/names.rs"]
mod names;
#[path = "../redis/notices.rs"]
mod notices;
#[path = "../redis/obligations.rs"]
mod obligations;
#[path = "../redis/observer.rs"]
mod observer;
#[path = "../redis/operations.rs"]
mod operations;
#[path = "../redis/outages.rs"]
mod outages;
#[path = "../redis/overload.rs"]
mod overload;
#[path = "../redis/own_hold.rs"]
mod own_hold;
#[path = "../redis/process.rs"]
mod process;
#[path = "../redis/quarantine.rs"]
mod quarantine;
#[path = "../redis/queue.rs"]
mod queue;
#[path = "../redis/reentrant.rs"]
mod reentrant;
#[path = "../redis/renewal.rs"]
mod renewal;
#[path = "../redis/reservations.rs"]
mod reservations;
#[path = "../redis/rw_lock.rs"]
mod rw_lock;
#[path = "../redis/rw_waiting.rs"]
mod rw_waiting;
#[path = "../redis/secrets.rs"]
mod secrets;
#[path = "../redis/semaphore.rs"]
mod semaphore;
#[path = "../redis/semaphore_waiting.rs"]
mod semaphore_waiting;
#[path = "../redis/sets.rs"]
mod sets;
#[path = "../redis/several.rs"]
mod several;
#[path = "../redis/several_waiting.rs"]
mod several_waiting;
#[path = "../redis/starving.rs"]
mod starving;
#[path = "../redis/support.rs"]
mod support;
#[path = "../redis/waiting.rs"]
mod waiting;

fn builder_for<I>(urls: I) -> quorlock::Builder
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    quorlock::LockManager::builder(urls)
}
