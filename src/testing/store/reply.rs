//! Replies, and how they are written.

use super::number::int;

/// A reply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Reply {
    Status(&'static str),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
    /// With its code.
    Error(String),
}

impl Reply {
    pub(crate) const OK: Reply = Reply::Status("OK");

    pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    pub(super) fn number(number: f64) -> Reply {
        Reply::Int(int(number))
    }

    pub(super) fn numbers<const N: usize>(numbers: [f64; N]) -> Reply {
        Reply::Array(numbers.map(Reply::number).into())
    }

    /// An array with one member more.
    pub(super) fn and(self, last: Reply) -> Reply {
        match self {
            Reply::Array(mut members) => {
                members.push(last);
                Reply::Array(members)
            }
            other => Reply::Array(vec![other, last]),
        }
    }

    /// Writes it. `resp3`: in the newer protocol.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>, resp3: bool) {
        match self {
            Reply::Status(text) => out.extend_from_slice(format!("+{text}\r\n").as_bytes()),
            Reply::Error(text) => out.extend_from_slice(format!("-{text}\r\n").as_bytes()),
            Reply::Int(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Reply::Nil => out.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" }),
            Reply::Bulk(text) => {
                out.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Array(members) => {
                out.extend_from_slice(format!("*{}\r\n", members.len()).as_bytes());
                members.iter().for_each(|it| it.write_to(out, resp3));
            }
        }
    }
}
