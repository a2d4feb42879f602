//! What `quorlock::fence` and its page say, run by real stores.
//!
//! | store | what runs it |
//! | --- | --- |
//! | SQLite | the real one, compiled into this program |
//! | PostgreSQL | the real one: installed, or the distribution's package, unpacked and not installed |
//! | MySQL, MariaDB | a real MariaDB, likewise. No MySQL |
//! | Redis | a real server, as in all tests |
//! | S3 | a stand-in in this program, with ETags made of contents, and the page's script with the real `curl` |
//! | HTTP | a small service in this program that does what the page says |
//!
//! A test for a store that cannot be had here does nothing and names the store on stderr; only those in
//! [`machine::MAY_BE_MISSING`] may. With `QUORLOCK_STORES=all` none may.
//!
//! [`cases`] are the same for all stores. No lock of quorlock is taken anywhere.

mod cases;
mod child;
mod http;
mod machine;
mod mariadb;
mod net;
mod page;
mod postgres;
mod redis;
mod s3;
mod shell;
mod sql;
mod sqlite;
