//! The buffer in which replies are put together.

use std::io;
use std::ops::Range;

use crate::wire::frame;

/// How much a read found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Filled {
    /// Nothing was there.
    Nothing,
    /// Less than there was room for: the stream is empty, unless the other side has closed it.
    Short,
    /// As much as there was room for: there may be more.
    Full,
}

/// Bytes that have come and are not complete replies yet. Lives and dies with its connection.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// Where the first reply that has not been taken begins.
    start: usize,
    /// Where the bytes that have come end.
    end: usize,
}

impl Inbox {
    const READ_SIZE: usize = 16 * 1024;

    pub(crate) fn new() -> Inbox {
        Inbox { bytes: vec![0; Self::READ_SIZE], start: 0, end: 0 }
    }

    /// Reads once; `read` gives `None` if nothing is there.
    pub(crate) fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<Option<usize>>) -> io::Result<Filled> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end = self.end.saturating_sub(self.start);
        self.start = 0;
        if self.bytes.len() < self.end.saturating_add(Self::READ_SIZE) {
            // Bounded: a reply that would not fit is refused by its announced length before it has come.
            self.bytes.resize(self.end.saturating_add(Self::READ_SIZE), 0);
        }
        let free = self.bytes.get_mut(self.end..).unwrap_or_default();
        let room = free.len();
        let Some(read) = read(free)? else { return Ok(Filled::Nothing) };
        self.end = self.end.saturating_add(read);
        Ok(if read == room { Filled::Full } else { Filled::Short })
    }

    /// Finds the complete replies that have come and passes over them. They can be read with [`Inbox::get`] until the
    /// next call. The error says why these bytes are not a Redis reply: close the connection.
    pub(crate) fn take_replies(&mut self, replies: &mut Vec<Range<usize>>) -> Result<(), String> {
        replies.clear();
        loop {
            let bytes = self.bytes.get(self.start..self.end).unwrap_or_default();
            let Some(len) = frame::reply_len(bytes)? else { return Ok(()) };
            let end = self.start.saturating_add(len);
            replies.push(self.start..end);
            self.start = end;
        }
    }

    pub(crate) fn get(&self, reply: Range<usize>) -> &[u8] {
        self.bytes.get(reply).unwrap_or_default()
    }
}
