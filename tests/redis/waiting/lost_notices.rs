//! Hand-overs whose messages are lost, late, forbidden or forged cost time, and nothing else.

use std::thread;
use std::time::Instant;

use devnodes::{PATIENCE, Server, Servers, eventually};
use quorlock::LockManager;

use crate::support::*;
use crate::waiting::lists::*;

/// Two managers, by these addresses: one holds the lock, the other waits for it and gets it in the end.
fn a_waiter_gets_in(servers: &Servers, holder: &[String], waiter: &[String]) -> TestResult {
    let [first, second] = [holder, waiter].map(|it| connected(builder(it).ttl(LONG), 3));
    let held = hold(&first, servers, NAME);
    let waiter = wait_in_thread(second.mutex(NAME));
    eventually("it was refused", || 1 <= second.stats().rounds_held);

    held.release()?;

    drop(join(waiter)?);
    Ok(())
}

#[test]
fn a_lost_list_entry_is_entered_again_with_its_place() -> TestResult {
    let (servers, [first, second]) = with_managers(near);
    let held = hold(&first, &servers, NAME);
    let waiter = listed(&servers, 1, second.mutex(NAME));
    let member = waiters_of(&servers[0], NAME).remove(0);
    let place = since(&servers[0], NAME, &member);

    del_all(&servers, &list(NAME));

    wait_until_listed(&servers, NAME, 1);
    let is_place = |server| since(server, NAME, &member) == place;
    assert!(servers.iter().all(is_place), "it is still the same call");
    drop(held);
    assert_gets_in(waiter, &servers);
    Ok(())
}

/// One server, or whoever may publish there.
#[test]
fn h23_repeated_messages_of_one_node_cause_ever_fewer_asks() -> TestResult {
    let (servers, [first, second]) = with_managers(far);
    let held = hold(&first, &servers, NAME);
    let waiter = listed(&servers, 1, second.mutex(NAME));
    let (rounds, scripts) = (second.stats().rounds_held, scripts_run(&servers[1]));

    let (mut forger, began) = (servers[0].client()?, Instant::now());
    let is_asked = || rounds + 2 <= second.stats().rounds_held;
    while began.elapsed() < secs(1) || !is_asked() && began.elapsed() < PATIENCE {
        // Whoever may read the lists. The call comes under another name where it has claimed the lock in vain.
        let member = members_of(&servers[0], NAME).remove(0);
        let to = channel(&client_of(&member));
        let forged = hand_over_message(&member, NAME);
        let heard = forger.command(&["PUBLISH", &to, &forged])?;
        assert_eq!(heard.as_int(), Some(1));
    }

    let rounds = second.stats().rounds_held - rounds;
    let scripts = scripts_run(&servers[1]) - scripts;
    // The first is answered after two milliseconds or more, and each further one after twice the time.
    let most = u64::from((began.elapsed().as_millis() / 2).ilog2()) + 2;
    let is_rare = (2..=most).contains(&rounds);
    assert!(is_rare, "{rounds} rounds, at most {most}");
    // Nobody forges anything there.
    assert!(scripts <= 3 * most, "{scripts} scripts, {rounds} rounds");
    // A majority is believed at once, whatever else is announced.
    held.release()?;
    assert_gets_in(waiter, &servers);
    Ok(())
}

/// Access lists of users that may lock, but not everything that waiting needs.
const RULES: [&str; 6] = [
    "+@all -subscribe &*",
    "+@all -publish &*",
    "+@all -@sortedset &*",
    "+@all resetchannels",
    "+@all -zadd &*",
    // What locks need.
    "resetchannels -@all +hello +auth +select +evalsha +eval +info +role \
     +get +mget +set +del +exists +pexpire +pttl +time",
];

#[test]
fn users_without_list_publish_or_subscribe_rights_wait_by_polling() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(3)?;
    for rules in RULES {
        eprintln!("{rules}");
        let user = |server| add_user(server, "ann", &format!("~* {rules}"));
        let (usual, limited) = (servers.urls(), servers.iter().map(user).collect());

        // Whichever of the two it is, or both.
        for (holder, waiter) in [(&limited, &usual), (&usual, &limited), (&limited, &limited)] {
            a_waiter_gets_in(&servers, holder, waiter)?;
        }
        nothing_waits(&servers);
    }
    Ok(())
}

/// Takes the lock, with a call that waits if need be, and gives it back.
#[track_caller]
fn is_not_kept_out(locks: &LockManager) {
    let guard = locks.mutex(NAME).try_lock_for(PATIENCE).unwrap();
    guard.check().unwrap();
    guard.release().unwrap();
}

/// Puts something else at `key`, in one step: a command without its key, which comes second.
fn replace(server: &Server, key: &str, words: &[&str]) {
    let script = "redis.call('DEL', KEYS[1]) return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";
    let command = [&["EVAL", script, "1", key], words].concat();
    server.command(&command).unwrap();
}

#[test]
fn lists_and_marks_of_another_type_block_no_call_for_good() -> TestResult {
    let kinds: [&[&str]; 4] = [
        &["SET", "x"],
        &["LPUSH", "x"],
        &["SADD", "x"],
        &["ZADD", "1", "not a member"],
    ];
    let servers = Servers::start(3)?;
    for words in kinds {
        for key in [list(NAME), mark(NAME)] {
            eprintln!("{words:?} at {key}");
            let put = || servers.iter().for_each(|it| replace(it, &key, words));
            let (first, second) = (on_all(&servers, near), on_all(&servers, near));
            put();
            is_not_kept_out(&first);
            put();
            let held = hold(&first, &servers, NAME);
            let lock = second.mutex(NAME);
            let waiter = thread::spawn(move || lock.try_lock_for(PATIENCE));
            eventually("it was refused", || 1 <= second.stats().rounds_held);
            // Also in the middle of the wait.
            put();
            held.release()?;

            drop(join(waiter)?);
            is_not_kept_out(&second);
            servers.wait_until_free(NAME)?;
            del_all(&servers, &key);
        }
    }
    nothing_waits(&servers);
    Ok(())
}
