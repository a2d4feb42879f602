//! Replies, and how they are written.

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
    /// With its code.
    Error(String),
}

impl Reply {
    pub(crate) fn ok() -> Reply {
        Reply::Status("OK".to_owned())
    }

    pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    pub(super) fn bulks<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Reply {
        Reply::Array(texts.into_iter().map(Reply::bulk).collect())
    }

    pub(crate) fn count(number: usize) -> Reply {
        Reply::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }

    pub(super) fn or_nil(text: Option<Vec<u8>>) -> Reply {
        text.map_or(Reply::Nil, Reply::Bulk)
    }

    /// Writes it. `resp3`: in the newer protocol.
    pub fn write_to(&self, out: &mut Vec<u8>, resp3: bool) {
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
                members
                    .iter()
                    .for_each(|member| member.write_to(out, resp3));
            }
        }
    }
}
