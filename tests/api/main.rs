//! The public API, without a server.

mod builder;
mod messages;
mod types;
