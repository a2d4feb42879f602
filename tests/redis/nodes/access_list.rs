//! The access list of the guide's page on access: it is enough, nothing of it is too much, and it lets nobody do more.

use std::thread;
use std::time::Duration;

use devnodes::{Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, Builder, CancelHandle, LockGuard, LockManager, ReleaseError};

use crate::support::*;
use crate::waiting::lists;

/// Where the list is written: here it is only read.
const GUIDE: &str = include_str!("../../../src/guide/redis_access.md");

/// What the user's locks begin with, in the place of the guide's `PREFIX`.
const PREFIX: &str = "app:";

/// One of the lists of the guide, as words of a command, with the password and the prefix of these tests.
pub(crate) fn access_list(number: usize) -> Vec<String> {
    let lists = GUIDE
        .split("```text\n")
        .filter(|block| block.starts_with("ACL SETUSER locks"));
    let list = lists
        .map(|block| block.split("```").next().unwrap())
        .nth(number)
        .expect("the guide has it");
    let list = list
        .replace(">PASSWORD", ">pw")
        .replace("~PREFIX*", &format!("~{PREFIX}*"));
    list.split_whitespace().map(str::to_owned).collect()
}

/// A server, and the one user that is tried on it.
struct Place {
    server: Server,
    url: String,
}

impl Place {
    fn new() -> Place {
        let server = Server::start().unwrap();
        let url = format!("redis://locks:pw@{}", server.addr());
        Place { server, url }
    }

    /// Makes the user anew, with everything on the list but `without`.
    fn set_user(&self, without: &str) {
        let words: Vec<String> = access_list(0)
            .into_iter()
            .filter(|it| it != without)
            .collect();
        // Connections of the user from before end with it.
        self.server.command(&["ACL", "DELUSER", "locks"]).unwrap();
        self.server.command(&words).unwrap();
        self.server.command(&["FLUSHALL"]).unwrap();
        self.server.command(&["SCRIPT", "FLUSH"]).unwrap();
    }

    /// Adds rules for the user.
    fn allow(&self, words: &[String]) {
        let user = ["ACL", "SETUSER", "locks"].map(str::to_owned);
        self.server.command(&[&user[..], words].concat()).unwrap();
    }

    fn options(&self, url: &str) -> Builder {
        builder([url])
            .prefix(PREFIX)
            .ttl(LONG)
            .outage_timeout(Duration::ZERO)
    }

    fn manager(&self) -> LockManager {
        self.options(&self.url).build().unwrap()
    }

    fn fence(&self, name: &str) -> String {
        fence(&format!("{PREFIX}{name}"))
    }

    /// How often the command was carried out.
    fn calls(&self, command: &str) -> u64 {
        calls(&self.server, command)
    }

    /// What is seen while one manager holds a lock and another waits for it; false if it does not come to that.
    fn while_waiting(&self, look: impl FnOnce(&Place, LockGuard) -> bool) -> bool {
        let (holder, waiter, cancel) = (self.manager(), self.manager(), CancelHandle::new());
        let Ok(guard) = holder.mutex("waited for").lock() else {
            return false;
        };
        let waiting = waiter.mutex("waited for").cancelled_by(&cancel);
        let waiting = thread::spawn(move || waiting.lock());
        // Behind the first answer the servers' clocks are known, and with these its place in lists.
        eventually("it is refused again", || {
            2 <= waiter.stats().rounds_held || waiting.is_finished()
        });
        let seen = !waiting.is_finished() && look(self, guard);
        cancel.cancel();
        let _ = join(waiting);
        seen
    }
}

/// What works with the list of the guide.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Claim {
    LocksAreTaken,
    LocksAreGivenBack,
    HoldersAreSeen,
    LocksAreExtended,
    LostCountersAreReplaced,
    CountersAheadArePassed,
    ForgottenScriptsAreSentAgain,
    OtherDatabasesAreChosen,
    OneServerTwiceIsNoticed,
    ReplicasAreRefused,
    EarlierCallsComeFirst,
    WaitersAreListed,
    WaitersListen,
    WaitersAreTold,
    WaitersLeaveTheList,
    TheDeadAreSkipped,
    SeveralNamesAreTaken,
    PermitsAreGiven,
    JobsRunOnce,
}

use Claim::*;

/// What does not work without a command. Without those of the last line locks work, and waiters ask again.
const NEEDED_FOR: [(&str, Claim); 19] = [
    ("+select", OtherDatabasesAreChosen),
    ("+evalsha", LocksAreTaken),
    ("+eval", LocksAreTaken),
    ("+info", OneServerTwiceIsNoticed),
    ("+role", ReplicasAreRefused),
    ("+get", LocksAreTaken),
    ("+mget", LocksAreGivenBack),
    ("+set", LocksAreTaken),
    ("+del", LocksAreGivenBack),
    ("+exists", LostCountersAreReplaced),
    ("+pexpire", LocksAreExtended),
    ("+pttl", HoldersAreSeen),
    ("+time", LocksAreExtended),
    ("+zadd", WaitersAreListed),
    ("+zpopmin", WaitersAreTold),
    ("+zrem", WaitersLeaveTheList),
    ("+subscribe", WaitersListen),
    ("+publish", WaitersAreTold),
    ("+pubsub|numsub", TheDeadAreSkipped),
];

/// What needs several of them.
const OTHER_CLAIMS: [Claim; 6] = [
    CountersAheadArePassed,
    EarlierCallsComeFirst,
    ForgottenScriptsAreSentAgain,
    SeveralNamesAreTaken,
    PermitsAreGiven,
    JobsRunOnce,
];

/// Today's servers let everybody call these, whatever the list says. Early ones that have access lists check `HELLO`.
const ALWAYS_ALLOWED: [&str; 2] = ["+hello", "+auth"];

#[test]
fn g5_a_login_or_a_command_that_a_majority_refuses_ends_a_waiting_call_at_once() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start_with(3, |it| it.password("pw"))?;
    for server in &servers {
        add_user(server, "eve", "~elsewhere* &* +@all");
    }
    let refused = |login: [&str; 3]| {
        let urls = login
            .iter()
            .zip(&servers)
            .map(|(login, it)| format!("redis://{login}{}", it.addr()));
        // Longer than the test waits.
        let locks = builder(urls).outage_timeout(LONG).build().unwrap();
        join(thread::spawn(move || {
            locks.mutex("report").lock().map(drop)
        }))
    };
    for (login, said) in [
        ("", "a password is required, and none was given"),
        (":wrong@", "login refused"),
        ("nobody:pw@", "login refused"),
        ("eve:pw@", "not permitted"),
    ] {
        let err = refused([":pw@", login, login]).unwrap_err();
        assert_no_quorum(&err);
        assert!(err.to_string().contains(said), "{err}");
        refused([":pw@", ":pw@", login])?;
    }
    Ok(())
}

impl Claim {
    fn holds(self, at: &Place) -> bool {
        let take = |name: &str| at.manager().mutex(name).try_lock();
        match self {
            LocksAreTaken => take("a").is_ok(),
            LocksAreGivenBack => {
                let released = take("b").map(LockGuard::release);
                matches!(released, Ok(Ok(it)) if it.confirmed == 1)
                    && !at.server.exists(format!("{PREFIX}b"))
            }
            HoldersAreSeen => {
                set_px(&at.server, &format!("{PREFIX}c"), "another's", 60_000);
                match take("c") {
                    Err(AcquireError::Held { nodes, .. }) => {
                        matches!(nodes[0].answer, NodeAnswer::Held { left: Some(_), .. })
                    }
                    _ => false,
                }
            }
            LocksAreExtended => take("d").is_ok_and(|it| it.extend(secs(1_000)).is_ok()),
            LostCountersAreReplaced => take("e").is_ok_and(|it| {
                del(&at.server, &at.fence("e"));
                it.extend(LONG).is_ok() && at.server.exists(at.fence("e"))
            }),
            CountersAheadArePassed => {
                let ahead = in_an_hour();
                set(&at.server, &at.fence("f"), &ahead.to_string());
                take("f").is_ok_and(|it| ahead < it.fencing_token().get())
            }
            ForgottenScriptsAreSentAgain => {
                let locks = at.manager();
                let before = locks.mutex("g").try_lock().map(LockGuard::release);
                at.server.command(&["SCRIPT", "FLUSH"]).unwrap();
                matches!(before, Ok(Ok(_))) && locks.mutex("g").try_lock().is_ok()
            }
            OtherDatabasesAreChosen => at
                .options(&format!("{}/3", at.url))
                .build()
                .unwrap()
                .mutex("h")
                .try_lock()
                .is_ok(),
            OneServerTwiceIsNoticed => {
                let again = at.url.replace("127.0.0.1", "localhost");
                let locks = builder([&at.url, &again])
                    .prefix(PREFIX)
                    .outage_timeout(Duration::ZERO)
                    .build()
                    .unwrap();
                fails_with(locks.mutex("i").try_lock(), |it| {
                    matches!(it, NodeFailure::SameServer { .. })
                })
            }
            ReplicasAreRefused => {
                // Of a server that is not there, so that nothing is copied; and one that takes writes.
                at.server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
                at.server
                    .command(&["CONFIG", "SET", "replica-read-only", "no"])
                    .unwrap();
                let refused = fails_with(take("j"), |it| *it == NodeFailure::Replica);
                at.server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
                refused
            }
            EarlierCallsComeFirst => {
                let name = format!("{PREFIX}k");
                let value = "0123456789abcdef".repeat(2);
                // Of a client that asks again by itself.
                let member = lists::member("0123456789abcdef", "w", &value);
                at.server
                    .command(&["ZADD", &lists::list(&name), "1.5", &member])
                    .unwrap();
                set(&at.server, &lists::mark(&name), "");
                take("k").is_err_and(|it| it.is_held())
                    && at.server.get(&name) == Some(value.into_bytes())
            }
            WaitersAreListed => at.while_waiting(|at, _guard| at.server.exists(list())),
            WaitersListen => at.while_waiting(|at, _guard| {
                let channels = at
                    .server
                    .command(&["PUBSUB", "CHANNELS", "quorlock:wake:*"])
                    .unwrap();
                !channels.as_array().unwrap().is_empty()
            }),
            WaitersAreTold => at.while_waiting(|at, guard| {
                let before = at.calls("publish");
                guard.release().is_ok() && before < at.calls("publish")
            }),
            WaitersLeaveTheList => {
                // Another client's lock, so that no release clears up.
                let key = format!("{PREFIX}waited for");
                set_px(&at.server, &key, "another's", 60_000);
                let waiter = at.manager();
                // Connected before the time begins: a call whose time is over by then enters no list.
                let _ = waiter.mutex("another").try_lock();
                let _ = waiter.mutex("waited for").try_lock_for(ms(200));
                let was_refused = 1 <= waiter.stats().rounds_held;
                drop(waiter);
                // What it has sent was carried out before its connection is gone.
                eventually("it is gone", || {
                    let clients = at.server.command(&["CLIENT", "LIST"]).unwrap();
                    !clients.as_str().unwrap().contains("name=quorlock")
                });
                was_refused && !at.server.exists(list())
            }
            TheDeadAreSkipped => at.while_waiting(|at, guard| {
                let mut monitor = at.server.client().unwrap();
                monitor.command(&["PSUBSCRIBE", "*"]).unwrap();
                let value = "0123456789abcdef".repeat(2);
                let dead = lists::member("0123456789abcdef", "w", &value);
                let enter = ["ZADD", &list(), "1", &dead];
                at.server.command(&enter).unwrap();
                let key = format!("{PREFIX}waited for");
                guard.release().is_ok() && at.server.get(&key) != Some(value.into_bytes())
            }),
            PermitsAreGiven => {
                let (holder, waiter) = (at.manager(), at.manager());
                let Ok(permit) = holder.semaphore("n", 1).acquire() else {
                    return false;
                };
                let one = waiter.semaphore("n", 1);
                let waiting = thread::spawn(move || {
                    one.acquire()
                        .map(|it| it.extend(secs(1_000)).is_ok() && it.release().is_ok())
                });
                let list = format!("quorlock:slot-waiting:{PREFIX}n");
                eventually("it waits", || {
                    at.server.exists(&list) || waiting.is_finished()
                });
                drop(permit);
                matches!(join(waiting), Ok(true)) && waiter.stats().notices == 1
            }
            SeveralNamesAreTaken => {
                let (holder, waiter) = (at.manager(), at.manager());
                set(&at.server, &at.fence("l"), &in_an_hour().to_string());
                let Ok(single) = holder.mutex("l").lock() else {
                    return false;
                };
                let several = waiter.multi_lock(["l", "m"]);
                let waiting = thread::spawn(move || {
                    let guard = several.lock()?;
                    let extended = guard.extend(secs(1_000)).is_ok();
                    Ok::<_, AcquireError>(extended && guard.release().is_ok())
                });
                eventually("it waits", || {
                    at.server.exists(lists::list(&format!("{PREFIX}l"))) || waiting.is_finished()
                });
                drop(single);
                matches!(join(waiting), Ok(true)) && waiter.stats().notices == 1
            }
            JobsRunOnce => [at.manager(), at.manager()].iter().all(|locks| {
                let job = locks.once("job").every(secs(3_600)).at_most_once();
                let ran = job.run(|_| Ok::<_, String>(()));
                ran.is_ok() && job.last_run().is_ok_and(|it| it.is_some())
            }),
        }
    }
}

fn list() -> String {
    lists::list(&format!("{PREFIX}waited for"))
}

fn fails_with(
    result: Result<LockGuard, AcquireError>,
    looks: impl Fn(&NodeFailure) -> bool,
) -> bool {
    let Err(err) = result else { return false };
    err.nodes()
        .iter()
        .any(|it| matches!(&it.answer, NodeAnswer::Failed(failure) if looks(failure)))
}

#[test]
fn the_access_list_of_the_guide_is_enough() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    for claim in NEEDED_FOR.map(|it| it.1).into_iter().chain(OTHER_CLAIMS) {
        place.set_user("");
        assert!(claim.holds(&place), "{claim:?} with the list of the guide");
    }
    // Nothing that was refused was only not noticed.
    let log = place.server.command(&["ACL", "LOG"]).unwrap();
    assert_eq!(log.as_array(), Some(&[][..]), "refused: {log:?}");
    Ok(())
}

#[test]
fn each_command_on_the_access_list_of_the_guide_is_needed() -> TestResult {
    needs!(AccessLists);
    let listed: Vec<String> = access_list(0)
        .into_iter()
        .filter(|it| it.starts_with('+'))
        .collect();
    let known: Vec<&str> = NEEDED_FOR.iter().map(|it| it.0).collect();
    for command in known {
        let is_listed = listed.iter().any(|word| word == command);
        assert!(is_listed, "not in the guide any more: {command}");
    }
    let place = Place::new();
    for command in &listed {
        place.set_user(command);
        if ALWAYS_ALLOWED.contains(&command.as_str()) {
            assert!(LocksAreTaken.holds(&place), "{command} is needed");
            continue;
        }
        let needed = NEEDED_FOR.iter().find(|it| it.0 == command);
        let (_, claim) =
            needed.unwrap_or_else(|| panic!("{command} is in the guide and has no row here"));
        assert!(!claim.holds(&place), "{claim:?} also without {command}");
    }
    Ok(())
}

#[test]
fn without_the_last_line_of_the_access_list_locks_work_and_waiters_ask_again() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    let all = access_list(0);
    let waiting = &all[all.iter().position(|word| word == "+zadd").unwrap()..];
    assert!(waiting.contains(&"+subscribe".to_owned()), "{waiting:?}");
    place.set_user("");
    let denied: Vec<_> = waiting.iter().map(|it| it.replace('+', "-")).collect();
    place.allow(&denied);

    let is_waiting = |word: &str| waiting.iter().any(|it| it == word);
    let others = NEEDED_FOR.iter().filter(|it| !is_waiting(it.0));
    for claim in others.map(|it| it.1).chain([CountersAheadArePassed]) {
        assert!(claim.holds(&place), "{claim:?} without the last line");
    }
    let (holder, waiter) = (place.manager(), place.manager());
    let guard = holder.mutex("report").lock()?;
    let waiting = waiter.mutex("report");
    let waiting = thread::spawn(move || waiting.lock());
    eventually("it is refused", || 1 <= waiter.stats().rounds_held);
    drop(guard);
    drop(join(waiting)?);
    assert_eq!(waiter.stats().notices, 0);
    Ok(())
}

/// All commands of the guide's first two lists.
fn of_all() -> Vec<String> {
    let listed = access_list(0).into_iter().filter(|it| it.starts_with('+'));
    listed.chain(of_readers()).collect()
}

impl Place {
    /// Makes the user anew, with everything for readers as well but `without`.
    fn set_reader(&self, without: &str) {
        self.set_user(without);
        let more = of_readers().into_iter().filter(|it| it != without);
        self.allow(&more.collect::<Vec<_>>());
    }
}

#[test]
fn b11_checks_and_locks_name_each_missing_command() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    // Without these, waiting calls poll, and readers pass writers. Nothing fails.
    let slower = ["+zpopmin", "+subscribe", "+publish", "+pubsub|numsub"];
    for missing in of_all() {
        place.set_reader(&missing);
        let row = place.manager().check_nodes().remove(0);
        let left = lists::strings(&place.server.command(&["KEYS", "*"])?);
        place.set_reader(&missing);
        let guard = place.manager().mutex("d").try_lock();
        let said = guard.map(|it| (it.extend(secs(1_000)).map(drop), it.release().map(drop)));
        let works = matches!(said, Ok((Ok(()), Ok(()))));
        let kinds = [
            LocksAreTaken,
            LocksAreGivenBack,
            HoldersAreSeen,
            LocksAreExtended,
        ];
        let works = works && kinds.iter().all(|it| it.holds(&place));

        assert_eq!(row.failure.is_none(), works, "{missing}: {row}, {said:?}");
        let may_stay = |key: &String| FOR_EVER.contains(&&**key) || key.contains("quorlock:check:");
        assert!(left.iter().all(may_stay), "{missing}: {left:?}");
        // Servers before 7.0 name the line of a script; the client knows what stands there.
        let name = format!("'{}'", &missing[1..]);
        let names = |text: String| text.to_lowercase().contains(&name);
        if !works {
            assert!(names(row.to_string()), "{missing}: {row}");
            assert!(names(format!("{said:?}")), "{missing}: {said:?}");
        } else if row.findings.is_empty() {
            let reads = place.manager().rw_lock("e").try_read();
            let reads = reads.map(|it| (it.extend(LONG).is_ok(), it.release().is_ok()));
            assert!(matches!(reads, Ok((true, true))), "{missing}: {reads:?}");
        } else {
            assert!(!slower.contains(&missing.as_str()), "{missing}: {row}");
            // Found by other means.
            let is_found = missing == "+info" || names(row.to_string());
            assert!(is_found, "{missing}: {row}");
        }
    }
    Ok(())
}

#[test]
fn b11_checks_and_locks_agree_without_eval_on_a_server_that_knows_the_scripts() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    place.set_reader("");
    assert!(place.manager().check_nodes()[0].is_fine());
    place.allow(&["-eval".to_owned()]);

    let locks = place.manager();
    // Later checks over one connection, too.
    for _ in 0..3 {
        let row = locks.check_nodes().remove(0);
        assert!(
            row.failure.is_some() && row.to_string().contains("'eval'"),
            "{row}"
        );
        assert!(!LocksAreTaken.holds(&place));
    }
    Ok(())
}

#[test]
fn b11_a_call_that_is_refused_for_a_missing_command_leaves_no_lock_behind() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    let kinds: [fn(&LockManager) -> bool; 5] = [
        |it| it.mutex("a").try_lock().is_ok(),
        |it| it.multi_lock(["a", "b"]).try_lock().is_ok(),
        |it| it.semaphore("a", 3).try_acquire().is_ok(),
        |it| it.rw_lock("a").try_read().is_ok(),
        |it| it.rw_lock("a").try_write().is_ok(),
    ];
    for missing in of_all() {
        for (number, kind) in kinds.iter().enumerate() {
            for has_counter in [false, true] {
                place.set_reader("");
                assert!(!has_counter || kind(&place.manager()));
                let is_denied =
                    place
                        .server
                        .command(&["ACL", "SETUSER", "locks", &missing.replace('+', "-")]);
                is_denied?;
                if kind(&place.manager()) {
                    continue;
                }
                let keys = lists::strings(&place.server.command(&["KEYS", "*"])?);
                let is_lock =
                    |it: &String| it.starts_with(PREFIX) || it.starts_with("quorlock:slot-0");
                let locks: Vec<_> = keys.into_iter().filter(is_lock).collect();
                assert_eq!(locks, [""; 0], "{missing}: kind {number}, {has_counter}");
            }
        }
    }
    Ok(())
}

#[test]
fn b11_a_check_with_the_access_lists_of_the_guide_passes() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    place.set_reader("");
    let locks = place.manager();
    for _ in 0..3 {
        let row = locks.check_nodes().remove(0);
        assert_eq!((row.failure, row.findings), (None, vec![]));
    }
    let log = place.server.command(&["ACL", "LOG"])?;
    assert_eq!(log.as_array(), Some(&[][..]), "refused: {log:?}");
    // Who uses no read-write locks needs no more than the first list.
    place.set_user("");
    assert!(place.manager().check_nodes()[0].is_fine());
    Ok(())
}

#[test]
fn b11_a_check_finds_missing_keys_and_channels() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    for (rules, failed, words) in [
        (
            ["resetkeys", "~quorlock:*", "~other:*"],
            true,
            "not permitted",
        ),
        (["resetkeys", "~app:*", "~other:*"], true, "not permitted"),
        (["resetchannels", "&other:*", "~app:*"], false, "votes"),
    ] {
        place.set_reader("");
        place.allow(&rules.map(str::to_owned));
        let row = place.manager().check_nodes().remove(0);
        assert_eq!(row.failure.is_some(), failed, "{row}");
        assert!(row.to_string().contains(words), "{row}");
        assert_eq!(LocksAreTaken.holds(&place), !failed, "{rules:?}");
    }
    Ok(())
}

/// Keys that are to stay: the server's record.
const FOR_EVER: [&str; 1] = [RECORD];

#[test]
fn h24_no_denied_command_leaves_a_key_without_expiry() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    let of_locks = access_list(0)
        .into_iter()
        .filter(|word| word.starts_with('+'));
    let all: Vec<String> = of_locks
        .chain(of_readers())
        .filter(|word| !ALWAYS_ALLOWED.contains(&word.as_str()))
        .collect();
    let left_without = |missing: &str, readers: &[String]| {
        place.set_user(missing);
        let readers = readers.iter().filter(|word| *word != missing);
        place.allow(&readers.cloned().collect::<Vec<_>>());
        let (one, other) = (place.manager(), place.manager());
        let taken = format!("{PREFIX}taken");
        set_px(&place.server, &taken, "another's", 60_000);
        let waits = one.mutex("taken").try_lock_for(ms(100));
        let reader = one.rw_lock("read").try_read();
        let second = other.rw_lock("read").try_read();
        let writer = other.rw_lock("read").try_write_for(ms(100));
        for reader in [reader, second].into_iter().flatten() {
            let result = reader.extend(LONG);
            let released = reader.release();
            // The first list has all that a release needs.
            let is_out = released.is_ok() || access_list(0).iter().any(|word| word == missing);
            assert!(is_out, "without {missing}: {result:?}, {released:?}");
        }
        drop((waits, writer));
        let keys = lists::strings(&place.server.command(&["KEYS", "*"]).unwrap()).into_iter();
        let is_left =
            |key: &String| place.server.command(&["PTTL", key]).unwrap().as_int() == Some(-1);
        keys.filter(|key| !FOR_EVER.contains(&key.as_str()) && is_left(key))
            .collect::<Vec<_>>()
    };

    for missing in &all {
        let left = left_without(missing, &of_readers());
        assert_eq!(left, [""; 0], "without {missing}");
    }
    assert_eq!(left_without("", &[]), [""; 0], "with the first list alone");
    Ok(())
}

/// The release hands the lock over to a call that is gone, and takes that back.
#[test]
fn h24_a_release_without_del_rights_leaves_no_key_without_expiry() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    place.set_user("");
    let (name, locks) = (format!("{PREFIX}a"), place.manager());
    // From now on there is a counter.
    drop(locks.mutex("a").try_lock()?);
    place.allow(&["-del".to_owned()]);
    let guard = locks.mutex("a").try_lock()?;
    let gone = lists::member("0123456789abcdef", "w", &"0123456789abcdef".repeat(2));
    place
        .server
        .command(&["ZADD", &lists::list(&name), "1", &gone])?;
    set(&place.server, &lists::mark(&name), "");

    assert_matches!(guard.release(), Err(ReleaseError::NotConfirmed { .. }));

    assert_ne!(place.server.pttl(&name), -1);
    Ok(())
}

#[test]
fn the_user_of_the_guide_has_no_other_rights() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    place.set_user("");
    set(&place.server, "foreign", "precious");
    let mut user = place.server.client()?;
    user.command(&["AUTH", "locks", "pw"])?;

    let commands = "GET foreign, SET foreign x, DEL foreign, FLUSHALL, FLUSHDB, CONFIG GET *, \
                    CONFIG SET maxmemory 1, KEYS *, SCAN 0, SCRIPT FLUSH, ACL LIST, SHUTDOWN, \
                    PUBLISH foreign x";
    let mut refused: Vec<_> = commands.split(", ").map(words).collect();
    // Keys that a script does not declare, and commands that it calls.
    refused.extend([
        vec!["EVAL", "return redis.call('GET', KEYS[1])", "1", "foreign"],
        vec!["EVAL", "return redis.call('GET', 'foreign')", "0"],
        vec!["EVAL", "return redis.call('FLUSHALL')", "0"],
    ]);
    for command in refused {
        let err = user.command(&command).unwrap_err().to_string();
        let err = err.to_lowercase();
        // By the access list, and not for another reason.
        let denied = [
            "noperm",
            "no permissions",
            "can't run this command",
            "can't access at least one of the keys",
        ];
        let is_denied = denied.iter().any(|it| err.contains(it));
        assert!(is_denied, "{command:?}: {err}");
    }
    assert_eq!(place.server.get("foreign").unwrap(), b"precious");
    let set = user.command(&["SET", &format!("{PREFIX}mine"), "x"])?;
    assert_eq!(set.as_str(), Some("OK"));
    Ok(())
}

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

/// What the guide says that readers need besides.
fn of_readers() -> Vec<String> {
    access_list(1).split_off(3)
}

#[test]
fn i7_errors_of_readers_name_the_missing_permission() -> TestResult {
    needs!(AccessLists);
    let place = Place::new();
    let more = of_readers();
    place.set_user("");
    place.allow(&more);
    let (one, two) = (place.manager(), place.manager());
    let (first, second) = (one.rw_lock("a").read()?, two.rw_lock("a").read()?);
    first.extend(LONG)?;
    let writer = one.rw_lock("a");
    let writer = thread::spawn(move || writer.write().unwrap());
    let is_behind = |it: &AcquireError| matches!(answer(it, 0), NodeAnswer::HeldByReaders { .. });
    eventually("a reader stays behind the writer", || {
        two.rw_lock("a").try_read().is_err_and(|it| is_behind(&it))
    });
    first.release()?;
    second.release()?;
    join(writer).release()?;
    let log = place.server.command(&["ACL", "LOG"])?;
    assert_eq!(log.as_array(), Some(&[][..]), "refused: {log:?}");

    for missing in &more {
        place.set_user("");
        place.allow(&more);
        place.allow(&[missing.replace('+', "-")]);
        let locks = place.manager();
        let other = place.manager();
        let read = || locks.rw_lock("b").try_read();
        // The second one finds the lock shared. Each does all that a reader does.
        let first = read();
        let second = other
            .rw_lock("b")
            .try_read()
            .map(|it| (it.extend(LONG), it.release()));
        let result = (first.map(|it| (it.extend(LONG), it.release())), second);
        assert!(
            format!("{result:?}").contains("see the ACL line in the guide"),
            "{missing}: {result:?}"
        );
    }
    Ok(())
}
