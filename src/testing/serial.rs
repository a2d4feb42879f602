//! Tests that must not run side by side, in whatever processes.

mod file;

use std::env;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use crate::engine;
use crate::error::{AcquireError, BuildError};
use crate::lock::LockGuard;
use crate::manager::LockManager;
use crate::sys::thread_name;
use crate::testing::serial::file::FileLock;
use crate::testing::servers::{NODES, urls_of_env};
use crate::time::{About, deadline, tick};

/// Who waits for a file looks at it so often.
const PAUSE: Duration = Duration::from_millis(5);
/// It is said who is in the way when so much time has passed, and each time that it has passed again.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Keeps tests apart that use the same thing, of which there is one: a database, a port, a licence. See [`serial`].
#[must_use = "others come in when this is dropped: write `let _alone = …`, not `let _ = …`"]
pub struct Serial {
    _lock: Lock,
}

enum Lock {
    /// Held for as long as it is open.
    File(FileLock),
    Nodes(LockGuard),
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what: &dyn fmt::Debug = match &self._lock {
            Lock::File(file) => file,
            Lock::Nodes(guard) => guard,
        };
        f.debug_tuple("Serial").field(what).finish()
    }
}

/// Waits until no other test uses `name`, in any thread or process, and keeps all others out until the result is dropped, also
/// by a panic.
///
/// Blocks for as long as it takes. After five seconds, and every five seconds from then on, it says on the standard error who
/// is in the way.
///
/// - With the environment variable `QUORLOCK_TEST_NODES`, the URLs of servers with commas or spaces between them, it is a
///   lock on these: for the tests of all machines that use the same servers. It is `quorlock-test-serial:` and the name. A
///   process that is killed keeps others out for another ten seconds, the ttl.
/// - Without it, it is a lock of **this machine and this user only**: a file in the directory for temporary files
///   (`quorlock-serial-` and the name), which is locked and never removed. A process that is killed keeps nobody out. Not for
///   a directory that several machines share. On systems that are neither Unix nor Windows there is none.
///
/// Who comes first is not always the first to get it.
///
/// # Panics
///
/// The file cannot be opened or locked; or the servers' URLs are wrong, or no majority of them answers for ten seconds. In a
/// test that is how to say so.
///
/// ```
/// use quorlock::testing;
///
/// fn a_refund_is_booked() {
///     let _alone = testing::serial("bookings-database");
///     // … whatever the test does
/// }
/// # a_refund_is_booked();
/// ```
#[track_caller]
pub fn serial(name: &str) -> Serial {
    let taken = match urls_of_env() {
        Some(_) => on_nodes(name),
        None => on_this_machine(&path_of(name), SAY_EVERY, &say_aloud).map_err(Problem::File),
    };
    match taken {
        Ok(lock) => Serial { _lock: lock },
        Err(problem) => panic!("serial({name:?}): {problem}"),
    }
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    File(io::Error),
    #[error("{NODES}: {0}")]
    Nodes(&'static BuildError),
    #[error("{NODES}: {0}")]
    Acquire(AcquireError),
}

/// Not captured as what is printed, so it is seen while the test waits.
fn say_aloud(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn on_nodes(name: &str) -> Result<Lock, Problem> {
    static LOCKS: LazyLock<Result<LockManager, BuildError>> = LazyLock::new(|| {
        LockManager::builder(urls_of_env().unwrap_or_default())
            // Test machines are busy machines.
            .connect_timeout(Duration::from_secs(2))
            .response_timeout(Duration::from_secs(2))
            // Servers for tests are started with them, and would have no vote for eleven seconds. What a restart in the middle
            // could break is a test run.
            .quarantine(false)
            // A test may take its time.
            .max_hold(None)
            .owner_label(Some("test"))
            .build()
    });
    let locks = LOCKS.as_ref().map_err(Problem::Nodes)?;
    let key = format!("quorlock-test-serial:{name}");
    let (lock, since) = (locks.mutex(&key), tick());
    loop {
        match lock.try_lock_for(SAY_EVERY) {
            Ok(guard) => return Ok(Lock::Nodes(guard)),
            Err(err) if err.is_held() => {
                let state = locks.inspect(&key).map(|it| it.state().to_string());
                let waited = About(tick().saturating_duration_since(since));
                say_aloud(&format!("serial({name:?}): waiting for {waited}: {}", state.unwrap_or_default()));
            }
            Err(err) => return Err(Problem::Acquire(err)),
        }
    }
}

/// `say` is told who is in the way.
fn on_this_machine(path: &Path, say_every: Duration, say: &dyn Fn(&str)) -> io::Result<Lock> {
    let what = |err: io::Error| io::Error::new(err.kind(), format!("{}: {err}", path.display()));
    let since = tick();
    let mut say_at = deadline(say_every);
    loop {
        if let Some(mut file) = FileLock::try_take(path).map_err(what)? {
            let name = thread_name().map(|it| format!(", {it}")).unwrap_or_default();
            // For those who wait; without it they wait as well.
            let _ = file.sign(&format!("process {}{name}", std::process::id()));
            return Ok(Lock::File(file));
        }
        if say_at <= tick() {
            say_at = deadline(say_every);
            let waited = About(tick().saturating_duration_since(since));
            say(&format!("{}: waiting for {waited}: held by {}", path.display(), FileLock::holder(path)));
        }
        engine::sleep(deadline(PAUSE), &[]);
    }
}

/// Two names have two files.
fn path_of(name: &str) -> PathBuf {
    let mut file = String::from("quorlock-serial-");
    for byte in name.bytes() {
        match char::from(byte) {
            it if it.is_ascii_alphanumeric() || "-_.".contains(it) => file.push(it),
            _ => file.push_str(&format!("%{byte:02x}")),
        }
    }
    if FILE_NAME_MAX < file.len() {
        file = format!("quorlock-serial-{}", sha1_smol::Sha1::from(name).digest());
    }
    env::temp_dir().join(file)
}

/// No system has less.
const FILE_NAME_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_serial_test_that_waits_says_who_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = RefCell::new(Some(on_this_machine(&path, SAY_EVERY, &|it| panic!("{it}")).unwrap()));
        let said = RefCell::new(String::new());
        let say = |it: &str| {
            *said.borrow_mut() = it.to_owned();
            drop(held.take());
        };

        let lock = on_this_machine(&path, Duration::from_millis(1), &say).unwrap();

        let who = format!("held by process {}, testing::serial::tests::a_serial_test", std::process::id());
        assert!(said.borrow().contains(&who), "{}", said.borrow());
        assert!(matches!(lock, Lock::File(_)));
        assert!(FileLock::try_take(&path).unwrap().is_none());
        drop(lock);
        assert!(FileLock::try_take(&path).unwrap().is_some());
    }

    #[test]
    fn serial_tests_of_two_names_have_two_files_whatever_the_names_are() {
        let long = "x".repeat(400);
        let names = ["", "a", "A/b", "A%2fb", "../../etc", "ä", "a b", &long, &long[1..]];
        let paths = names.map(path_of);
        for (index, path) in paths.iter().enumerate() {
            assert_eq!(path.parent(), Some(&*env::temp_dir()), "{path:?}");
            assert!(!paths[..index].contains(path), "{path:?}");
        }
    }

    #[test]
    fn a_serial_test_whose_file_cannot_be_opened_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let Err(err) = on_this_machine(&folder.path().join("no/such"), SAY_EVERY, &|_| {}) else { panic!("taken") };
        assert!(err.to_string().contains("such"), "{err}");
    }
}
