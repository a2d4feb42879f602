//! Tests that look inside and are too long for the files that they test.

#[cfg(not(quorlock_shuttle))]
mod messages;
#[cfg(not(quorlock_shuttle))]
mod model;
#[cfg(quorlock_shuttle)]
mod schedules;
