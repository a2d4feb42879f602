//! The raw notify: the least that it takes to hand a lock from one process to another.
//!
//! The holder sends one command to all nodes, which deletes the key and publishes that it is free. The other one has
//! five plain sockets that listen, and as soon as a majority has told it, it sends `SET NX` to all.
//!
//! What is published is the number of the release, so that a late message is not taken for the next one.

use std::io;
use std::net::SocketAddr;
use std::process;

use super::form::{DELETE, TTL_MS};
use super::wire::{Wire, hashes, pack};

const CHANNEL: &str = "bench:notify";
/// Deletes a lock that its owner holds, and says so.
const RELEASE: &str = "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('del',KEYS[1]) \
                       redis.call('publish',ARGV[2],ARGV[3]) return 1 end return 0";
/// Takes back what a node has granted, and tells nobody.
const TAKE_BACK: &str = DELETE;

/// One connection to each node, on which it also listens.
pub(crate) struct Notified {
    wire: Wire,
    release: String,
    take_back: String,
    /// How often it has asked for a lock: an owner each time.
    asked: u64,
    locked: Option<String>,
}

impl Notified {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If a node cannot be reached.
    pub(crate) fn connect(addrs: &[SocketAddr]) -> io::Result<Self> {
        let load = |script| ["SCRIPT", "LOAD", script];
        let hello: [&[&str]; 4] = [
            &["HELLO", "3"],
            &["SUBSCRIBE", CHANNEL],
            &load(RELEASE),
            &load(TAKE_BACK),
        ];
        let (wire, said) = Wire::connect(addrs, &hello)?;
        let [release, take_back] = hashes(&said)?;
        Ok(Self {
            wire,
            release,
            take_back,
            asked: 0,
            locked: None,
        })
    }

    fn ask(&mut self, words: &[&str]) -> io::Result<bool> {
        self.wire.push(0, |out| pack(words, &mut out.bytes));
        Ok(self.wire.turns(1)?.iter().all(|it| it.granted))
    }

    /// Locks, however long it takes.
    ///
    /// # Errors
    ///
    /// If a connection breaks.
    pub(crate) fn lock(&mut self, name: &str) -> io::Result<()> {
        loop {
            self.asked += 1;
            let owner = format!("{:016x}{:016x}", process::id(), self.asked);
            let last = self.wire.heard();
            let granted = self.ask(&["SET", name, &owner, "NX", "PX", TTL_MS])?;
            if granted {
                self.locked = Some(owner);
                return Ok(());
            }
            let take_back = self.take_back.clone();
            self.ask(&["EVALSHA", &take_back, "1", name, &owner])?;
            let mut decided = Vec::new();
            while self.wire.heard() == last {
                self.wire.turn(&mut decided)?;
            }
        }
    }

    /// Releases what was locked.
    ///
    /// # Errors
    ///
    /// If nothing was, or a majority had it no more.
    pub(crate) fn unlock(&mut self, name: &str) -> io::Result<()> {
        let owner = self
            .locked
            .take()
            .ok_or_else(|| io::Error::other("nothing is locked"))?;
        let (release, number) = (self.release.clone(), (self.wire.heard() + 1).to_string());
        let released = self.ask(&["EVALSHA", &release, "1", name, &owner, CHANNEL, &number])?;
        if released { Ok(()) } else { Err(gone()) }
    }
}

fn gone() -> io::Error {
    io::Error::other("the lock was gone")
}
