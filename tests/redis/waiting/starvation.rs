//! Every call that waits gets the lock in the end: one that cannot be notified, one behind clients that are gone, and one
//! among calls that ask all the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::SystemTime;

use devnodes::{Client, PATIENCE, Server, Servers, eventually};
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

/// A connection that gets what [`CLIENT`] is sent.
fn listener(server: &Server) -> Client {
    let mut client = server.client().unwrap();
    client.command(&["SUBSCRIBE", &channel(CLIENT)]).unwrap();
    client
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

/// Lets `looping` take the lock again and again, and `waiting` five times meanwhile.
#[track_caller]
fn gets_in_between(looping: &[&LockManager], waiting: &LockManager) {
    let holds = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    // Each time it waits for a few holds of the others, or some more if this machine made it miss its turn. A call
    // that starves waits for thousands.
    let many = 1_500;
    thread::scope(|scope| {
        for locks in looping {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < 5 && holds.load(Ordering::Relaxed) < many {
                    let guard = locks.mutex(NAME).lock().unwrap();
                    // A section that takes its time: nobody gets in by luck, between two of them.
                    thread::sleep(ms(1));
                    drop(guard);
                    holds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("the others loop", || 10 <= holds.load(Ordering::Relaxed));
        for _ in 0..5 {
            drop(waiting.mutex(NAME).lock().unwrap());
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    let holds = holds.into_inner();
    assert!(holds < many, "it got in when the others had ended");
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
        gets_in_between(&[&first, other], &waiting);
    }
    assert!(1 <= first.stats().hand_overs);
    Ok(())
}

#[test]
fn h3_a_process_with_resp2_gets_its_turns() -> TestResult {
    needs!(OldProtocol);
    let servers = Servers::start_with(3, without_hello)?;
    let (first, second) = (on_all(&servers, near), on_all(&servers, near));

    gets_in_between(&[&first, &first], &second);
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
fn h3_a_polling_call_gets_a_turn_and_is_removed_if_it_misses_it() -> TestResult {
    let (servers, [locks, other]) = with_managers(near);
    let held = hold(&locks, &servers, NAME);
    for server in &servers {
        put_waiter(server, &deaf(micros()));
    }
    held.release()?;
    eventually("it is handed over", || servers.iter().all(is_handed_over));

    // By itself: nothing announces the end of that life.
    drop(other.mutex(NAME).lock()?);

    nothing_waits_in_the_end(&servers, &other);
    Ok(())
}

#[test]
fn h3_a_holder_without_publish_rights_leaves_the_lock_to_waiters() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(3)?;
    let urls = log_in_as(&servers, "~* &* +@all -publish");
    let mute = connected(builder(urls).ttl(LONG), 3);
    let waiting = on_all(&servers, near);

    gets_in_between(&[&mute, &mute], &waiting);
    Ok(())
}

#[test]
fn h3_a_call_precedes_later_calls_and_not_earlier_waiting_ones() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = on_all(&servers, near);
    let text_at = |key: &str| String::from_utf8(servers[0].get(key).unwrap()).unwrap();
    let mut pushes = listener(&servers[0]);
    let asked = micros();
    let mut hear = || {
        let push = pushes.receive().unwrap();
        let text = push.as_array().unwrap()[2].as_str().unwrap().to_owned();
        let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        // Token, version, life, node time, kind, length, value and key.
        assert_eq!(words[2], "1000", "{text}");
        assert_eq!(&words[4..], ["w", "32", OWNER, NAME], "{text}");
        assert_eq!(words[1], text_at(RECORD)[..15], "{text}");
        let time = words[3].parse::<u128>().unwrap();
        assert!((asked..=micros()).contains(&time), "{text}");
        words[0].parse::<u64>().unwrap()
    };

    // Begins to wait in a minute, by its own score.
    put_waiter(&servers[0], &(micros() + 60_000_000).to_string());
    let guard = locks.mutex(NAME).try_lock()?;
    let earlier = guard.fencing_token().get();
    assert_eq!(guard.release()?.confirmed, 1);
    let token = hear();
    assert!(earlier < token && is_handed_over(&servers[0]));
    assert_eq!(text_at(&fence(NAME)), token.to_string());
    servers[0].command(&["DEL", NAME, &list(NAME), &mark(NAME)])?;

    // One that has waited for a minute: the lock is handed over to it by the one that asks.
    put_waiter(&servers[0], &(micros() - 60_000_000).to_string());
    assert_refused(&locks);
    assert!(token < hear() && is_handed_over(&servers[0]));
    assert_refused(&locks);
    Ok(())
}

#[test]
fn a_call_that_hands_a_lock_over_leaves_no_entry() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = on_all(&servers, near);
    put_waiter(&servers[0], &deaf(micros() - 60_000_000));

    assert_refused(&locks);

    assert!(is_handed_over(&servers[0]));
    // What the other leaves ends with the first life of the lock, and the next hold.
    servers.wait_until_free(NAME)?;
    drop(locks.mutex(NAME).try_lock()?);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn h3_dead_entries_are_removed_and_the_next_live_call_gets_the_lock() -> TestResult {
    let (servers, [first, second]) = with_managers(far);
    let held = hold(&first, &servers, NAME);
    let waiter = listed(&servers, 1, second.mutex(NAME));
    for server in &servers {
        let dead: Vec<_> = (0..500)
            .flat_map(|i| [i.to_string(), member(&format!("{i:016x}"), "w", OWNER)])
            .collect();
        server.command(&[vec!["ZADD".to_owned(), list(NAME)], dead].concat())?;
    }

    drop(held);

    // By a notice: it would ask again in a minute.
    drop(join(waiter)?);
    nothing_waits(&servers);
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
