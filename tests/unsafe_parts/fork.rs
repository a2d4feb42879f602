//! What becomes of locks when their process forks. Linux and other Unixes.
//!
//! A program of its own: a forked child has the calling thread and no other, and everything that other threads had
//! locked stays locked there for ever. A test harness has such threads; this program has those of its managers alone,
//! which is what is to be tested.

use std::io::{PipeWriter, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use devnodes::{PATIENCE, Servers, eventually};
use quorlock::observer::Event;
use quorlock::{AcquireError, Builder, LockGuard, LockManager, LockName, Lost, LostReason};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

/// Longer than this program runs: nothing expires and nothing is renewed meanwhile.
const LONG: Duration = Duration::from_secs(600);

/// For what is to be there at once. Less than the parent's patience, so that the child can say what it missed.
const SOON: Duration = Duration::from_secs(5);

fn main() {
    let servers = Servers::start(3).expect("three servers");
    f1_sockets_are_not_handed_to_programs_that_are_started(&servers);
    f1_in_a_forked_child_nothing_is_held_and_nothing_is_sent(&servers);
    f1_a_forked_child_can_lock_with_a_manager_of_its_own(&servers);
    f1_a_forked_childs_threads_have_nothing_of_those_that_sleep_in_its_parent(&servers);
    f1_a_child_forked_in_the_middle_of_everything_is_told_at_once(&servers);
}

fn manager(servers: &Servers) -> LockManager {
    builder(servers).build().expect("the options are good")
}

fn builder(servers: &Servers) -> Builder {
    LockManager::builder(servers.urls())
        .ttl(LONG)
        .response_timeout(Duration::from_secs(5))
        .connect_timeout(Duration::from_secs(10))
        // The servers are new.
        .quarantine(false)
        .observer(Arc::new(|_: &Event| {
            let _ = EVENTS.fetch_add(1, Ordering::SeqCst);
        }))
}

/// How many the observers were told in this process.
static EVENTS: AtomicU64 = AtomicU64::new(0);

/// Takes a lock, and waits until it is on all servers and all of them have answered.
fn hold(servers: &Servers, locks: &LockManager, name: &str) -> LockGuard {
    let guard = locks.mutex(name).lock().expect("it is free");
    eventually("it is on all servers", || holders(servers, name) == 3);
    guard
}

/// On how many servers `name` is. In a child as well: whether servers run is seen by their own parent only.
fn holders(servers: &Servers, name: &str) -> usize {
    servers.iter().filter(|it| it.exists(name)).count()
}

/// Runs `work` in a forked child, which then ends without any clean-up. Gives `work` back in the parent, not run: what it
/// has taken lives on here.
fn in_child<F: FnOnce()>(work: F) -> F {
    let (mut said, says) = std::io::pipe().expect("a pipe");
    // SAFETY: the child uses what the standard library and the allocator promise after a fork of a process with
    // threads, which on the systems that this runs on is everything but other threads and what those had locked. That
    // the crate under test locks none of it is what is tested. The child never returns from here.
    let pid = unsafe { libc::fork() };
    assert!(0 <= pid, "cannot fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        process::exit(i32::from(child(says, work)));
    }
    drop(says);
    let pid = Pid::from_raw(pid).expect("a process id");
    let mut status = None;
    let ended = panic::catch_unwind(AssertUnwindSafe(|| {
        eventually("the child ends", || {
            status = waitpid(Some(pid), WaitOptions::NOHANG)
                .expect("it is our child")
                .map(|(_, status)| status);
            status.is_some()
        });
    }));
    if ended.is_err() {
        let _ = kill_process(pid, Signal::KILL);
    }
    let mut why = String::new();
    said.read_to_string(&mut why)
        .expect("what the child says is text");
    let code = status.and_then(WaitStatus::exit_status);
    assert_eq!(code, Some(0), "the child: {status:?} {why}");
    work
}

/// Whether the child failed; why is written to `says`.
fn child(says: PipeWriter, work: impl FnOnce()) -> bool {
    let says = Mutex::new(says);
    panic::set_hook(Box::new(move |info| {
        if let Ok(mut says) = says.lock() {
            let _ = writeln!(says, "{info}");
        }
    }));
    panic::catch_unwind(AssertUnwindSafe(work)).is_err()
}

fn done(test: &str) {
    println!("test {test} ... ok");
}

fn f1_sockets_are_not_handed_to_programs_that_are_started(servers: &Servers) {
    // What a program finds open besides its three standard descriptors and the folder that it looks at.
    let inherited = || {
        let mut list = Command::new("ls");
        let list = list
            .args(["-l", "/proc/self/fd"])
            .stdin(Stdio::null())
            .output()
            .expect("ls runs");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        assert!(list.contains("/dev/null"), "not a list: {list}");
        list.lines()
            .filter(|it| it.contains("socket:") || it.contains("anon_inode:"))
            .count()
    };
    let before = inherited();
    let locks = manager(servers);
    let guard = hold(servers, &locks, "report");

    assert_eq!(inherited(), before);

    drop(guard);
    done("f1_sockets_are_not_handed_to_programs_that_are_started");
}

/// The loss of the lock with this name in a child process.
fn forked(name: &str) -> Lost {
    Lost {
        name: LockName::new(name.as_bytes()),
        reason: LostReason::Forked,
    }
}

fn f1_in_a_forked_child_nothing_is_held_and_nothing_is_sent(servers: &Servers) {
    let locks = manager(servers);
    let [first, second] = ["report", "other"].map(|name| hold(servers, &locks, name));
    let again = locks.reentrant_mutex("again");
    let [outer, inner] = [(); 2].map(|()| again.lock().expect("it is free or ours"));
    let free = locks.mutex("free");
    let (read, written) = (locks.rw_lock("read"), locks.rw_lock("written"));
    let reader = read.read().expect("it is free");
    let writer = written.write().expect("it is free");
    let (both, permits) = (locks.multi_lock(["a", "b"]), locks.semaphore("mail", 2));
    let set = both.lock().expect("they are free");
    let permit = permits.acquire().expect("there are two");
    let slot = format!("quorlock:slot-{}:mail", permit.slot());
    let names = [
        "report", "other", "again", "read", "written", "a", "b", &slot,
    ];
    eventually("all are on all servers", || {
        names.iter().all(|it| holders(servers, it) == 3)
    });
    let commands = || -> Vec<_> {
        servers
            .iter()
            .map(|it| (it.info("cmdstat_evalsha"), it.info("cmdstat_eval")))
            .collect()
    };
    // The connections of the manager, by the number that the server gave each.
    let connections = || -> Vec<_> {
        let list = |it: &devnodes::Server| it.command(&["CLIENT", "LIST"]).expect("an answer");
        let ours = |it: &devnodes::Reply| -> Vec<_> {
            let lines = it
                .as_str()
                .expect("text")
                .lines()
                .filter(|it| it.contains("name=quorlock"));
            lines
                .map(|it| it.split(' ').next().map(str::to_owned))
                .collect()
        };
        servers.iter().map(|it| ours(&list(it))).collect()
    };
    let (sent, connected) = (commands(), connections());
    let values = names.map(|it| servers[0].get(it));

    let parents = in_child(|| {
        let told = EVENTS.load(Ordering::SeqCst);
        assert!(!first.is_valid());
        assert_eq!(first.check(), Err(forked("report")));
        assert_eq!(first.remaining(), Duration::ZERO);
        assert_eq!(first.lost().recv_timeout(SOON), Ok(forked("report")));
        let (sender, called) = mpsc::channel();
        first.on_lost(move |lost| sender.send(lost).expect("the test waits for it"));
        assert_eq!(called.recv_timeout(SOON), Ok(forked("report")));
        #[cfg(target_os = "linux")]
        eventually("the thread of the callback ends", || {
            std::fs::read_dir("/proc/self/task").unwrap().count() == 1
        });
        let extended = first.extend(LONG);
        assert_eq!(extended, Err(forked("report").into()));
        assert_eq!(second.release(), Err(forked("other").into()));

        for result in [free.lock(), free.try_lock(), free.try_lock_for(PATIENCE)] {
            assert_eq!(result.unwrap_err(), AcquireError::Forked);
        }
        assert_eq!(again.lock().unwrap_err(), AcquireError::Forked);
        assert!(!inner.is_valid());

        assert_eq!(reader.check(), Err(forked("read")));
        assert_eq!(writer.release(), Err(forked("written").into()));
        assert_eq!(set.release(), Err(forked("a, b").into()));
        assert_eq!(permit.check(), Err(forked("mail")));
        assert_eq!(read.read().map(drop), Err(AcquireError::Forked));
        assert_eq!(written.write().map(drop), Err(AcquireError::Forked));
        assert_eq!(both.lock().map(drop), Err(AcquireError::Forked));
        assert_eq!(permits.acquire().map(drop), Err(AcquireError::Forked));

        drop((first, inner, outer, reader, permit));
        locks.shutdown();
        drop((again, free, read, written, both, permits, locks));
        assert_eq!(
            EVENTS.load(Ordering::SeqCst),
            told,
            "an observer was called"
        );
    });
    let in_parent = EVENTS.load(Ordering::SeqCst);
    assert!(0 < in_parent, "it is called in the parent");

    assert_eq!(commands(), sent, "the child has sent something");
    assert_eq!(connections(), connected, "the child has closed one");
    assert_eq!(names.map(|it| servers[0].get(it)), values);
    // What the child dropped is still the parent's, and ends with the parent's.
    drop(parents);
    eventually("the parent has released", || {
        names.iter().all(|it| holders(servers, it) == 0)
    });
    done("f1_in_a_forked_child_nothing_is_held_and_nothing_is_sent");
}

fn f1_a_forked_child_can_lock_with_a_manager_of_its_own(servers: &Servers) {
    let locks = manager(servers);
    let guard = hold(servers, &locks, "report");
    let (parent, early) = (process::id(), builder(servers));

    let parents = in_child(|| {
        // Its options may be older than the process: what it calls itself is not.
        let own = early.build().expect("the options are good");
        let err = own.mutex("report").try_lock().unwrap_err();
        let by_parent = err.to_string().contains(&format!("/{parent}, "));
        assert!(err.is_held() && by_parent, "the parent holds it: {err}");
        let kept = hold(servers, &own, "of the child");
        let value = servers[0].get("of the child").expect("it is there");
        let end = format!("/{}", process::id());
        assert!(value.ends_with(end.as_bytes()), "{}", value.escape_ascii());
        drop(hold(servers, &own, "given back"));
        // The copies of the parent's handles go while the child has threads of its own.
        drop((guard, locks));
        assert!(kept.is_valid());
        drop(hold(servers, &own, "later"));
        // All its threads are joined.
        drop(kept);
        own.shutdown();
        drop(own);
    });
    assert_eq!(holders(servers, "of the child"), 0);
    assert_eq!(holders(servers, "report"), 3);
    drop(parents);
    done("f1_a_forked_child_can_lock_with_a_manager_of_its_own");
}

/// They get the same memory: whoever keeps a list of those that sleep by where that is has them in it twice.
fn f1_a_forked_childs_threads_have_nothing_of_those_that_sleep_in_its_parent(servers: &Servers) {
    let short = |servers| {
        builder(servers)
            .response_timeout(Duration::from_millis(250))
            .ttl(Duration::from_secs(1))
    };
    for managers in 1..=4 {
        let parents: Vec<_> = (0..managers).map(|_| manager(servers)).collect();
        let guards: Vec<_> = parents
            .iter()
            .enumerate()
            .map(|(i, it)| hold(servers, it, &format!("p{i}")))
            .collect();
        let early: Vec<_> = (0..managers).map(|_| short(servers)).collect();
        let parents = in_child(|| {
            let own: Vec<_> = early
                .into_iter()
                .map(|it| it.build().expect("the options are good"))
                .collect();
            let kept: Vec<_> = own
                .iter()
                .enumerate()
                .map(|(i, it)| hold(servers, it, &format!("c{i}")))
                .collect();
            // The threads that extend them sleep in between.
            eventually("each is extended a few times", || {
                own.iter().all(|it| 3 < it.stats().extensions)
            });
            drop(kept);
            own.iter().for_each(LockManager::shutdown);
            drop((guards, parents));
        });
        drop(parents);
    }
    done("f1_a_forked_childs_threads_have_nothing_of_those_that_sleep_in_its_parent");
}

fn f1_a_child_forked_in_the_middle_of_everything_is_told_at_once(servers: &Servers) {
    let locks = manager(servers);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for i in 0..3 {
            let (over, locks) = (&over, &locks);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    let busy = locks.mutex(format!("busy {}", i % 2));
                    drop(busy.lock().expect("it becomes free"));
                }
            });
        }
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let _ = locks.stats();
                }
            });
        }
        let guard = hold(servers, &locks, "report");
        for _ in 0..50 {
            let _ = in_child(|| {
                assert_eq!(guard.check(), Err(forked("report")));
                assert_eq!(guard.lost().recv_timeout(SOON), Ok(forked("report")));
                let (held, free) = (locks.mutex("report"), locks.mutex("free"));
                assert_eq!(held.lock().unwrap_err(), AcquireError::Forked);
                assert_eq!(free.try_lock().unwrap_err(), AcquireError::Forked);
                // Whatever its parent had locked.
                assert_eq!(locks.stats().nodes, []);
            });
            assert!(guard.is_valid());
        }
        assert_eq!(guard.release().expect("it is confirmed").nodes, 3);
        over.store(true, Ordering::SeqCst);
    });
    assert_eq!(locks.stats().connection_failures, 0);
    done("f1_a_child_forked_in_the_middle_of_everything_is_told_at_once");
}
