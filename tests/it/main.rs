//! The public API, without a server.

mod api;
mod builder;
mod messages;
