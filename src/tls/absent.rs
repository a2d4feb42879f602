//! Stand-ins without the feature `tls`. They have no values, so the compiler drops their callers.

use crate::error::NodeFailure;
use crate::sys::Socket;
use crate::tls::stream::Stream;

#[derive(Debug)]
pub(crate) enum Setup {}

impl Setup {
    pub(crate) fn secure(
        &self,
        _host: &str,
        _socket: Socket,
    ) -> Result<Box<dyn Stream>, NodeFailure> {
        match *self {}
    }

    pub(crate) fn take_warning(&self) -> Option<String> {
        match *self {}
    }
}
