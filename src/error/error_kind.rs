//! What to do about an error.

/// What to do about an [`AcquireError`](crate::AcquireError): [`AcquireError::kind`](crate::AcquireError::kind).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Someone else holds the lock. Expected: try again later, or leave the work to the holder.
    Yield,
    /// Too few nodes answered in time, or this process is overloaded. Try again; raise an alert if it lasts.
    Retry,
    /// Too many nodes are [quarantined](crate::Builder::quarantine). It ends by itself: try again later, or call `lock`.
    Wait,
    /// Settings, a name, or a server must be changed first. Retries do not help: tell somebody.
    Fix,
    /// The call was cancelled or the manager was shut down. The program is ending: end with it.
    Stop,
    /// A mistake in the program, or the system has no resources: a forked process, guards of a lost reentrant hold. Report it.
    Report,
}
