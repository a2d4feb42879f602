//! One file per question.

pub(crate) mod contended;
pub(crate) mod faults;
pub(crate) mod handover;
pub(crate) mod held;
pub(crate) mod idle;
pub(crate) mod network;
pub(crate) mod observer;
pub(crate) mod once;
pub(crate) mod overload;
pub(crate) mod permits;
pub(crate) mod readers;
pub(crate) mod rwlock;
pub(crate) mod several;
pub(crate) mod startup;
pub(crate) mod threads;
pub(crate) mod uncontended;
