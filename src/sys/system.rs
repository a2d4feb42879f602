//! The switch between the system and the stand-ins of the checker.

#[cfg(all(quorlock_shuttle, test))]
pub(crate) use crate::sys::checked::*;
#[cfg(not(all(quorlock_shuttle, test)))]
pub(crate) use crate::sys::os::*;
