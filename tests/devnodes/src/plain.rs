//! Without the feature `tls`: nothing stands in front of a server.

use std::net::SocketAddr;

use crate::Error;

/// There is none.
#[derive(Debug)]
pub(crate) enum Terminator {}

pub(crate) fn in_front_of(_addr: SocketAddr) -> Option<SocketAddr> {
    None
}

pub(crate) fn put_in_front_of(_addr: SocketAddr) -> Result<Option<Terminator>, Error> {
    Ok(None)
}

/// What a child process must know.
pub(crate) fn for_children() -> Option<(&'static str, String)> {
    None
}
