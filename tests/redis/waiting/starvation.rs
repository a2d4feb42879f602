//! Every call that waits gets the lock in the end: one that cannot be notified, one behind clients that are gone, and one
//! among calls that ask all the time.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Instant, SystemTime};

use devnodes::{PATIENCE, Server, Servers, eventually};
use quorlock::LockManager;

use crate::support::*;
use crate::waiting::lists::*;

/// Life of the keys that the tests write for other clients.
const LIFE_MS: u64 = 600_000;

fn micros() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()
}

/// A client that is no manager, and the owner token of its call.
const CLIENT: &str = "0123456789abcdef";
const OWNER: &str = "0123456789abcdef0123456789abcdef";

/// Enters a call of [`CLIENT`] that began at `since`.
fn put_waiter(server: &Server, since: &str) {
    let (list, member) = (list(NAME), member(CLIENT, "w", OWNER));
    let command = ["ZADD", &list, since, &member];
    server.command(&command).unwrap();
    let command = ["PEXPIRE", &list, &LIFE_MS.to_string()];
    server.command(&command).unwrap();
    set_px(server, &mark(NAME), "", LIFE_MS);
}

/// The score of a client that cannot be notified.
fn deaf(since: u128) -> String {
    format!("{since}.5")
}

/// Whether the server has handed the lock over to [`CLIENT`].
fn is_handed_over(server: &Server) -> bool {
    server.get(NAME).as_deref() == Some(OWNER.as_bytes())
}

#[track_caller]
fn assert_refused(locks: &LockManager) {
    assert_held(&locks.mutex(NAME).try_lock().unwrap_err());
}

/// Adds a user to all servers; URLs that log in as it.
fn log_in_as(servers: &Servers, rules: &str) -> Vec<String> {
    let url = |server| add_user(server, "ann", rules);
    servers.iter().map(url).collect()
}

/// Takes the lock until no list and no mark is left. First lives do not end on all nodes at once: one of them may have refused it.
#[track_caller]
fn nothing_waits_in_the_end(servers: &Servers, locks: &LockManager) {
    eventually("no client waits", || {
        drop(locks.mutex(NAME).lock().unwrap());
        servers.holders(list(NAME)) + servers.holders(mark(NAME)) == 0
    });
    nothing_waits(servers);
}

/// Takes a lock, with a wait if need be, and gives it back.
type Turn<'a> = &'a (dyn Fn() + Sync);

/// A section that takes its time: nobody gets in by luck, between two of them.
fn turn(locks: &LockManager) -> impl Fn() + Sync {
    || {
        let guard = locks.mutex(NAME).lock().unwrap();
        thread::sleep(ms(1));
        drop(guard);
    }
}

/// Lets each of `looping` have turns, and `waiting` five meanwhile.
#[track_caller]
fn gets_in_between(looping: &[Turn<'_>], waiting: Turn<'_>) {
    let (turns, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Each time it waits for a few turns of the others, or some more if this machine made it miss
    // its own. A call that starves waits for thousands.
    let many = 750 * looping.len();
    thread::scope(|scope| {
        for turn in looping {
            scope.spawn(|| {
                while done.load(SeqCst) < 5 && turns.load(SeqCst) < many {
                    turn();
                    turns.fetch_add(1, SeqCst);
                }
            });
        }
        eventually("the others loop", || 10 <= turns.load(SeqCst));
        for _ in 0..5 {
            waiting();
            done.fetch_add(1, SeqCst);
        }
    });
    let turns = turns.into_inner();
    assert!(turns < many, "it got in when the others had ended");
}

/// A reader leaves once another one is inside, or none comes: the lock is never free by chance.
#[test]
fn i8_a_stream_of_readers_does_not_starve_a_writer() {
    let (servers, [one, two]) = with_managers(near);
    let writer = on_all(&servers, far);
    let inside = AtomicUsize::new(0);
    let leave = |least: usize| {
        let left = |it| (least < it).then(|| it - 1);
        inside.fetch_update(SeqCst, SeqCst, left).is_ok()
    };
    let [one, two] = [&one, &two].map(|locks| {
        || {
            let guard = locks.rw_lock(NAME).read().unwrap();
            inside.fetch_add(1, SeqCst);
            let began = Instant::now();
            while !leave(1) && (began.elapsed() < ms(20) || !leave(0)) {
                thread::sleep(ms(1));
            }
            guard.check().unwrap();
        }
    });
    let readers: [Turn<'_>; 8] = [&one, &one, &one, &one, &two, &two, &two, &two];
    gets_in_between(&readers, &|| {
        writer.rw_lock(NAME).write().unwrap().check().unwrap();
    });
    nothing_waits(&servers);
}

#[test]
fn h3_a_process_without_messages_gets_its_turns() -> TestResult {
    needs!(AccessLists);
    let (servers, [first, second]) = with_managers(near);
    // May not use channels, as every new user of Redis 7; or may not subscribe. Two managers loop, or two threads of one.
    for (rules, other) in [
        ("~* resetchannels +@all", &second),
        ("~* &* +@all -subscribe", &first),
    ] {
        let waiting = connected(builder(log_in_as(&servers, rules)).ttl(LONG), 3);
        gets_in_between(&[&turn(&first), &turn(other)], &turn(&waiting));
    }
    assert!(1 <= first.stats().hand_overs);
    Ok(())
}

#[test]
fn h3_a_process_with_resp2_gets_its_turns() -> TestResult {
    needs!(OldProtocol);
    let servers = Servers::start_with(3, without_hello)?;
    let (first, second) = (on_all(&servers, near), on_all(&servers, near));

    gets_in_between(&[&turn(&first), &turn(&first)], &turn(&second));
    Ok(())
}

#[test]
fn h3_a_local_hand_over_yields_only_to_earlier_polling_calls() -> TestResult {
    for earlier in [true, false] {
        let servers = Servers::start(3)?;
        let locks = on_all(&servers, near);
        let held = hold(&locks, &servers, NAME);
        let waiter = queue(&locks);
        let minute = 60_000_000;
        let since = if earlier {
            micros() - minute
        } else {
            micros() + minute
        };
        servers.iter().for_each(|it| put_waiter(it, &deaf(since)));

        drop(held);

        if earlier {
            eventually("it is handed to the one that cannot be notified", || {
                servers.iter().all(is_handed_over)
            });
        }
        // It does not come, and costs the others one first life.
        drop(join(waiter)?);
        assert_eq!(locks.stats().hand_overs, 1);
        assert_eq!(locks.stats().rounds_held == 0, !earlier);
        if earlier {
            nothing_waits_in_the_end(&servers, &locks);
        }
    }
    Ok(())
}

#[test]
fn h3_a_holder_without_publish_rights_leaves_the_lock_to_waiters() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(3)?;
    let urls = log_in_as(&servers, "~* &* +@all -publish");
    let mute = connected(builder(urls).ttl(LONG), 3);
    let waiting = on_all(&servers, near);

    gets_in_between(&[&turn(&mute), &turn(&mute)], &turn(&waiting));
    Ok(())
}

#[test]
fn h3_no_newcomer_gets_in_while_dead_entries_are_removed() -> TestResult {
    let servers = Servers::start(1)?;
    let (newcomer, second) = (on_all(&servers, near), on_all(&servers, far));
    set(&servers[0], NAME, "foreign");
    let waiter = listed(&servers, 1, second.mutex(NAME));
    let dead: Vec<_> = (0..2_500)
        .flat_map(|i| [i.to_string(), format!("{i:016x}")])
        .collect();
    servers[0].command(&[vec!["ZADD".to_owned(), list(NAME)], dead].concat())?;
    del(&servers[0], NAME);

    // Each run removes a bounded number, and the last finds a client that is alive.
    let mut runs = 0;
    while !waiters_of(&servers[0], NAME).is_empty() {
        let left = waiters_of(&servers[0], NAME).len();
        assert_refused(&newcomer);
        runs += 1;
        assert!(waiters_of(&servers[0], NAME).len() < left);
    }

    assert!((2..=10).contains(&runs), "{runs}");
    drop(join(waiter)?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn h3_no_mark_is_kept_without_expiry() -> TestResult {
    let (servers, [locks]) = with_managers(near);
    set_px(&servers[0], &list(NAME), "no list", LIFE_MS);
    (1..3).for_each(|it| set(&servers[it], NAME, "foreign"));

    // It is granted one lock, and gives it back: into a list that is none.
    assert_held(&locks.mutex(NAME).try_lock_for(secs(1)).unwrap_err());
    let is_free = || !servers[0].exists(NAME);
    eventually("what was granted is given back", is_free);

    assert!(!servers[0].exists(mark(NAME)));
    Ok(())
}

#[test]
fn h3_a_release_sent_again_with_its_source_wakes_the_next_call() -> TestResult {
    let servers = Servers::start(1)?;
    let (locks, other) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&locks, &servers, NAME);
    let waiter = queue(&locks);

    // Only the script of acquisitions is there again.
    servers[0].command(&["SCRIPT", "FLUSH"])?;
    let unrelated = other.mutex("unrelated").try_lock()?;
    drop(held);

    // Its acquire was refused before the release was carried out. It would ask again in a minute.
    drop(join(waiter)?);
    drop(unrelated);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn h3_a_leave_sent_again_with_its_source_removes_no_later_call() -> TestResult {
    let servers = Servers::start(1)?;
    let [holder, locks, other] = [(); 3].map(|()| on_all(&servers, far));
    let held = hold(&holder, &servers, NAME);
    let cancel = quorlock::CancelHandle::new();
    let first = listed(&servers, 1, locks.mutex(NAME).cancelled_by(&cancel));
    let second = queue(&locks);
    servers[0].command(&["SCRIPT", "FLUSH"])?;
    let unrelated = other.mutex("unrelated").try_lock()?;

    // The release that takes the call off the list, and after it the acquire of the next call, which enters the list.
    cancel.cancel();
    assert!(join(first).is_err());
    eventually("the next call has asked", || 2 <= locks.stats().rounds_held);
    // Its answers come behind those to everything before.
    drop(locks.mutex("another").try_lock_for(PATIENCE)?);
    drop(held);

    drop(join(second)?);
    drop(unrelated);
    nothing_waits(&servers);
    Ok(())
}
