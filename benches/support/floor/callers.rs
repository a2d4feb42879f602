//! The floor of blocking callers: a thread for each pair under way, which sleeps until its command is decided, and one thread
//! that writes and reads for all of them. The least that a client can do whose callers block, if they do not read by
//! themselves.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use super::form::Pair;
use super::refused;
use super::wire::{Out, Wire};
use crate::support::stats::Samples;

/// What callers have for the thread that writes, and how they wake it.
struct Desk {
    commands: Mutex<Vec<(usize, Out)>>,
    /// It sleeps, or is about to.
    asleep: AtomicBool,
    bell: UnixStream,
    /// Callers that are not through.
    running: AtomicUsize,
}

impl Desk {
    fn give(&self, tag: usize, write: impl FnOnce(&mut Out)) {
        let mut out = Out::default();
        write(&mut out);
        self.commands.lock().unwrap().push((tag, out));
        self.wake();
    }

    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _ = (&self.bell).write(&[1]);
        }
    }
}

/// Runs pairs on each of the locks for as long as `goes_on` says, which is told how many there were.
pub(super) fn run(
    wire: &mut Wire,
    locks: Vec<Pair>,
    goes_on: &(dyn Fn(usize) -> bool + Sync),
) -> io::Result<Samples> {
    let (bell, heard) = UnixStream::pair()?;
    heard.set_nonblocking(true)?;
    let running = AtomicUsize::new(locks.len());
    let desk = Desk {
        commands: Mutex::default(),
        asleep: AtomicBool::new(false),
        bell,
        running,
    };
    let (desk, done) = (&desk, &AtomicUsize::new(0));
    thread::scope(|scope| {
        let (mut tell, mut callers) = (Vec::new(), Vec::new());
        for (tag, pair) in locks.into_iter().enumerate() {
            let (sender, receiver) = channel();
            tell.push(sender);
            callers.push(scope.spawn(move || {
                let samples = call(desk, tag, pair, &receiver, done, goes_on);
                desk.running.fetch_sub(1, Ordering::SeqCst);
                desk.asleep.store(true, Ordering::SeqCst);
                desk.wake();
                samples
            }));
        }
        serve(wire, desk, &heard, &tell)?;
        // A caller that waits hears that nothing comes any more.
        drop(tell);
        let mut samples = Samples::default();
        for caller in callers {
            samples.extend(&caller.join().unwrap()?);
        }
        Ok(samples)
    })
}

fn call(
    desk: &Desk,
    tag: usize,
    mut pair: Pair,
    decided: &Receiver<bool>,
    done: &AtomicUsize,
    goes_on: &(dyn Fn(usize) -> bool + Sync),
) -> io::Result<Samples> {
    let is_granted = || match decided.recv() {
        Ok(true) => Ok(()),
        Ok(false) => Err(refused()),
        Err(_) => Err(ErrorKind::ConnectionAborted.into()),
    };
    let mut samples = Samples::default();
    loop {
        let since = Instant::now();
        desk.give(tag, |out| pair.acquire(out));
        is_granted()?;
        desk.give(tag, |out| pair.release(out));
        is_granted()?;
        samples.push(since.elapsed());
        if !goes_on(done.fetch_add(1, Ordering::Relaxed) + 1) {
            return Ok(samples);
        }
    }
}

fn serve(
    wire: &mut Wire,
    desk: &Desk,
    heard: &UnixStream,
    tell: &[Sender<bool>],
) -> io::Result<()> {
    let mut decided = Vec::new();
    while desk.running.load(Ordering::SeqCst) != 0 {
        desk.asleep.store(true, Ordering::SeqCst);
        let commands = std::mem::take(&mut *desk.commands.lock().unwrap());
        for (tag, command) in &commands {
            wire.push(*tag, |out| out.append(command));
        }
        wire.turn_or(Some(heard), &mut decided)?;
        desk.asleep.store(false, Ordering::SeqCst);
        while matches!((&*heard).read(&mut [0; 64]), Ok(1..)) {}
        for it in decided.drain(..) {
            let _ = tell[it.tag].send(it.granted);
        }
    }
    Ok(())
}
