//! The buffer in which replies are put together.

use std::ops::Range;

use crate::wire::frame;

/// What these records begin with.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// Bytes that have come and are not complete replies yet. Lives and dies with its connection.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// Where the first reply that has not been taken begins.
    start: usize,
    /// Where the bytes that have come end.
    end: usize,
}

impl Inbox {
    const READ_SIZE: usize = 16_384;

    /// Room for what is read next. What was taken is forgotten.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start != 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end = self.end.saturating_sub(self.start);
            self.start = 0;
        }
        if self.bytes.len() < self.end.saturating_add(Self::READ_SIZE) {
            // Bounded: a reply that would not fit is refused by its announced length before it has come.
            self.bytes
                .resize(self.end.saturating_add(Self::READ_SIZE), 0);
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes were read into the [space](Inbox::space).
    pub(crate) fn filled(&mut self, len: usize) {
        self.end = self.end.saturating_add(len).min(self.bytes.len());
    }

    /// Takes the next complete reply; [`Inbox::get`] reads it. The error says why these bytes are not a Redis reply: close
    /// the connection.
    pub(crate) fn take_reply(&mut self) -> Result<Option<Range<usize>>, String> {
        let bytes = self.bytes.get(self.start..self.end).unwrap_or_default();
        let Some(len) = frame::reply_len(bytes)? else {
            return Ok(None);
        };
        let end = self.start.saturating_add(len);
        Ok(Some(std::mem::replace(&mut self.start, end)..end))
    }

    /// Whether what was not taken is what a server says that expects TLS: an alert, or its part of a handshake.
    pub(crate) fn is_of_tls(&self) -> bool {
        let rest = self.bytes.get(self.start..self.end).unwrap_or_default();
        rest.first().is_some_and(|it| TLS_RECORDS.contains(it))
    }

    #[cfg(test)]
    pub(crate) fn unread(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether all that has come was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// One in which these have come.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Inbox {
        Inbox {
            bytes: bytes.to_vec(),
            start: 0,
            end: bytes.len(),
        }
    }

    pub(crate) fn get(&self, reply: Range<usize>) -> &[u8] {
        self.bytes.get(reply).unwrap_or_default()
    }
}
