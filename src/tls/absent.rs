//! Stand-ins without the feature `tls`. They have no values, so the compiler drops their callers.

use crate::error::NodeFailure;

#[derive(Debug)]
pub(crate) enum Setup {}

impl Setup {
    pub(crate) fn begin(&self, _host: &str) -> Result<Session, NodeFailure> {
        match *self {}
    }

    pub(crate) fn take_warning(&self) -> Option<String> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Session {}

impl Session {
    pub(crate) fn is_securing(&self) -> bool {
        match *self {}
    }

    pub(crate) fn sealed(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn is_flushed(&self) -> bool {
        match *self {}
    }

    pub(crate) fn seal(&mut self, _plain: &[u8]) -> bool {
        match *self {}
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        match *self {}
    }

    pub(crate) fn wrote(&mut self, _len: usize) -> u64 {
        match *self {}
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        match *self {}
    }

    pub(crate) fn filled(&mut self, _len: usize) {
        match *self {}
    }

    pub(crate) fn open(&mut self, _into: &mut [u8]) -> Result<usize, NodeFailure> {
        match *self {}
    }
}
