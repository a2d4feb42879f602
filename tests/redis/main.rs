//! Claims about locking, against real Redis servers and real faults.

mod acquire;
