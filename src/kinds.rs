//! Lock kinds: descriptions that users make guards from. A kind is a plan of commands, as data; rounds, renewal and
//! guards are written once, below.

mod mutex;
mod reentrant;

pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};

use crate::error::{ReleaseError, RunError};
use crate::ids::LockName;
use crate::sys::logging::debug;

/// What `run` answers once its closure has returned `value`: a loss is an error, a release that nobody confirmed is not.
fn ran<R, T>(name: &LockName, value: R, released: Result<T, ReleaseError>) -> Result<R, RunError<R>> {
    match released {
        Err(ReleaseError::Lost(lost)) => return Err(RunError::Lost { lost, value }),
        Err(err @ ReleaseError::NotConfirmed { .. }) => debug!("{name}: {err}"),
        Ok(_) => {}
    }
    Ok(value)
}
