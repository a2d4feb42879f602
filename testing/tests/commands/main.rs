//! Compares a store with a real server whose clock stands still: each reply, all keys, all messages.
//!
//! | What is compared | Where |
//! | --- | --- |
//! | each form of a command, on each kind of key | `forms` |
//! | the interpreter, as scripts see it | `lua` |
//! | the shipped scripts, as managers send them | `recorded` |
//!
//! Not compared: access lists, and the words of an error around its essential part.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start threads and read clocks themselves"
)]

mod forms;
mod lua;
mod pair;
mod recorded;
mod recorder;
mod sources;

use quorlock_testing::store::Reply;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// As a server is sent it.
type Command = Vec<Vec<u8>>;

fn command<A: AsRef<[u8]>>(args: impl IntoIterator<Item = A>) -> Command {
    args.into_iter().map(|arg| arg.as_ref().to_vec()).collect()
}

/// A command in one line, with one blank between its arguments: two blanks for an empty one.
fn words(line: &str) -> Command {
    command(line.split(' '))
}

/// Whether the long tests are asked for.
fn is_long() -> bool {
    std::env::var_os("QUORLOCK_LONG").is_some()
}

#[test]
fn a_reply_is_written_as_servers_write_it() {
    let members = vec![
        Reply::Status("OK".to_owned()),
        Reply::Int(-1),
        Reply::Bulk(b"a\r\n".to_vec()),
        Reply::Nil,
        Reply::Error("ERR no".to_owned()),
    ];
    for (resp3, nil) in [(false, "$-1"), (true, "_")] {
        let mut written = Vec::new();
        Reply::Array(members.clone()).write_to(&mut written, resp3);
        let expected = format!("*5\r\n+OK\r\n:-1\r\n$3\r\na\r\n\r\n{nil}\r\n-ERR no\r\n");
        assert_eq!(written, expected.as_bytes());
    }
}
