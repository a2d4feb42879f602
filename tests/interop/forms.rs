//! Each kind of our locks of that name: mutexes, readers, writers, and sets that have it.
//!
//! | they hold the lock, and we want | we hold it, and they want it |
//! | --- | --- |
//! | the mutex, to read, to write, the set: refused | a mutex; readers, one or several; a writer; a set: refused |

use std::thread;

use devnodes::{PATIENCE, eventually};
use quorlock::{AcquireError, Hold, LockManager, LostReason, ReleaseError};

use crate::{TTL, TestResult, World};

#[derive(Clone, Copy, Debug)]
enum Form {
    Mutex,
    Reader,
    Writer,
    Set,
}

impl Form {
    const ALL: [Form; 4] = [Form::Mutex, Form::Reader, Form::Writer, Form::Set];

    fn try_take(self, locks: &LockManager) -> Result<Hold, AcquireError> {
        Ok(match self {
            Form::Mutex => locks.mutex("report").try_lock()?.into(),
            Form::Reader => locks.rw_lock("report").try_read()?.into(),
            Form::Writer => locks.rw_lock("report").try_write()?.into(),
            Form::Set => locks.multi_lock(["another", "report"]).try_lock()?.into(),
        })
    }

    fn take(self, locks: &LockManager) -> Result<Hold, AcquireError> {
        let set = locks.multi_lock(["another", "report"]);
        Ok(match self {
            Form::Mutex => locks.mutex("report").try_lock_for(PATIENCE)?.into(),
            Form::Reader => locks.rw_lock("report").try_read_for(PATIENCE)?.into(),
            Form::Writer => locks.rw_lock("report").try_write_for(PATIENCE)?.into(),
            Form::Set => set.try_lock_for(PATIENCE)?.into(),
        })
    }
}

impl World {
    /// They are refused now, and change nothing.
    fn peer_is_refused(&mut self, who: Form) -> TestResult {
        self.wait_until_everywhere();
        let values = self.values();
        assert!(!self.peer.acquire("report", TTL)?, "held by us: {who:?}");
        assert_eq!(self.values(), values, "{who:?}");
        Ok(())
    }

    /// They get it now, and give it back.
    fn peer_gets_it(&mut self, after: Form) -> TestResult {
        let is_held = self.peer.acquire("report", TTL)?;
        assert!(is_held, "given back by us: {after:?}");
        assert_eq!(self.peer.release()?, "released", "{after:?}");
        self.servers.wait_until_free(&self.key)?;
        Ok(())
    }
}

pub(crate) fn a_lock_of_the_other_client_refuses_all_our_kinds(mut world: World) -> TestResult {
    world.peer_takes_it()?;
    let (values, counts) = (world.values(), world.key_counts());

    for form in Form::ALL {
        let err = form.try_take(&world.locks).err().ok_or("held by them")?;
        assert!(err.is_held(), "{form:?}: {err}");
    }

    assert_eq!(world.values(), values);
    assert_eq!(world.key_counts(), counts, "nothing of ours stays behind");
    // Theirs was there to be released.
    assert_eq!(world.peer.release()?, "released");
    Ok(())
}

pub(crate) fn each_of_our_kinds_refuses_the_other_client_until_its_release(
    mut world: World,
) -> TestResult {
    for form in Form::ALL {
        let ours = form.try_take(&world.locks)?;
        world.peer_is_refused(form)?;
        ours.extend(TTL)?;
        ours.release()?;
        world.peer_gets_it(form)?;
    }
    Ok(())
}

pub(crate) fn our_readers_refuse_the_other_client_until_the_last_release(
    mut world: World,
) -> TestResult {
    let report = world.locks.rw_lock("report");
    let (first, second) = (report.try_read()?, report.try_read()?);
    world.peer_is_refused(Form::Reader)?;
    first.release()?;
    world.peer_is_refused(Form::Reader)?;
    second.release()?;
    world.peer_gets_it(Form::Reader)
}

pub(crate) fn a_release_of_the_other_client_reaches_our_waiting_kinds(
    mut world: World,
) -> TestResult {
    for form in Form::ALL {
        world.peer_takes_it()?;
        let before = world.locks.stats().rounds_held;
        let locks = world.locks.clone();
        let waiter = thread::Builder::new().spawn(move || form.take(&locks))?;
        eventually("we were refused", || {
            before < world.locks.stats().rounds_held
        });
        assert_eq!(world.peer.release()?, "released", "{form:?}");

        waiter.join().unwrap()?.release()?;
        world.servers.wait_until_free(&world.key)?;
    }
    Ok(())
}

pub(crate) fn our_lost_kinds_leave_the_lock_of_the_other_client(mut world: World) -> TestResult {
    for form in Form::ALL {
        let ours = form.try_take(&world.locks)?;
        world.wait_until_everywhere();
        world.delete_lock(world.servers.len())?;
        world.peer_takes_it()?;
        let values = world.values();

        // We have not noticed: this release is really sent, and finds it.
        let released = ours.release();
        let is_gone =
            matches!(&released, Err(ReleaseError::Lost(lost)) if lost.reason == LostReason::Gone);
        assert!(is_gone, "{form:?}: {released:?}");

        // On the nodes that refuse this the release has been executed before.
        let tried = form.try_take(&world.locks);
        assert!(tried.is_err_and(|it| it.is_held()), "{form:?}");
        assert_eq!(world.values(), values, "{form:?}");
        // Theirs was there to be released.
        assert_eq!(world.peer.release()?, "released", "{form:?}");
        world.servers.wait_until_free(&world.key)?;
    }
    Ok(())
}
