//! One file per question.

pub(crate) mod faults;
pub(crate) mod held;
pub(crate) mod threads;
pub(crate) mod uncontended;
