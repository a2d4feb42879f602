//! Mutexes in the form of `parking_lot`, and condition variables in that of `sys/os/threads.rs`.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{self, Arc};
use std::time::Duration;

use super::clock::{Sleeper, Tick, now, point, since_start};

#[derive(Default)]
pub(crate) struct Mutex<T> {
    lock: sync::Mutex<Lock>,
    value: sync::Mutex<T>,
}

#[derive(Default)]
struct Lock {
    locked: bool,
    /// Whoever is scheduled first gets it: not in line.
    waiting: Vec<Arc<Sleeper>>,
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    value: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex {
            lock: sync::Mutex::default(),
            value: sync::Mutex::new(value),
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        point();
        self.get(None).unwrap()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        self.get(Some(Duration::ZERO))
    }

    fn get(&self, deadline: Option<Duration>) -> Option<MutexGuard<'_, T>> {
        loop {
            let sleeper = {
                let mut lock = self.lock.lock().unwrap();
                if !std::mem::replace(&mut lock.locked, true) {
                    let value = self
                        .value
                        .try_lock()
                        .unwrap_or_else(|_| panic!("the holder panicked"));
                    return Some(MutexGuard {
                        mutex: self,
                        value: Some(value),
                    });
                }
                if deadline.is_some_and(|it| it <= now()) {
                    return None;
                }
                let sleeper = Sleeper::new();
                lock.waiting.push(Arc::clone(&sleeper));
                sleeper
            };
            sleeper.sleep(deadline);
        }
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<'a, T> MutexGuard<'a, T> {
    pub(crate) fn unlocked<R>(guard: &mut MutexGuard<'a, T>, work: impl FnOnce() -> R) -> R {
        guard.release();
        let result = work();
        guard.regain();
        result
    }

    fn release(&mut self) {
        point();
        self.value = None;
        let waiting = {
            let mut lock = self.mutex.lock.lock().unwrap();
            lock.locked = false;
            std::mem::take(&mut lock.waiting)
        };
        waiting.iter().for_each(|it| it.wake());
    }

    fn regain(&mut self) {
        let mut other = self.mutex.lock();
        // It is held by this guard now, and the other one has nothing to release.
        self.value = other.value.take();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_deref_mut().unwrap()
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.value.is_some() {
            self.release();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[derive(Default)]
pub(crate) struct Condvar {
    sleepers: sync::Mutex<VecDeque<Arc<Sleeper>>>,
}

impl Condvar {
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>, until: Option<Tick>) -> bool {
        let sleeper = Sleeper::new();
        self.sleepers
            .lock()
            .unwrap()
            .push_back(Arc::clone(&sleeper));
        guard.release();
        let woken = sleeper.sleep(until.map(since_start));
        self.sleepers
            .lock()
            .unwrap()
            .retain(|it| !Arc::ptr_eq(it, &sleeper));
        guard.regain();
        woken
    }

    pub(crate) fn notify_one(&self) {
        point();
        let sleeper = self.sleepers.lock().unwrap().pop_front();
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    pub(crate) fn notify_all(&self) {
        point();
        let sleepers = std::mem::take(&mut *self.sleepers.lock().unwrap());
        sleepers.iter().for_each(|it| it.wake());
    }
}
