//! The command to each member, and the server named in its answer.

use crate::error::NodeFailure;
use crate::wire::{Endpoint, Value, question};

/// The question to each member of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Question {
    /// To servers that replicate each other: their role.
    Role,
    /// To Sentinels: the primary of this name.
    Sentinel(String),
    /// To servers of a cluster: the owner of this slot.
    Slot(u16),
}

impl Question {
    pub(super) fn packed(&self) -> Vec<u8> {
        match self {
            Question::Role => question(&["ROLE"]),
            Question::Sentinel(name) => question(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]),
            Question::Slot(_) => question(&["CLUSTER", "SLOTS"]),
        }
    }

    /// The server in the answer of `member`; none from a replica.
    pub(super) fn read(
        &self,
        answer: &Value,
        member: &Endpoint,
    ) -> Result<Option<Endpoint>, NodeFailure> {
        let fields = match (answer, self) {
            (Value::Array(fields), _) => fields,
            (Value::Nil, Question::Sentinel(name)) => {
                let reason = format!("its Sentinels know no primary {name}; correct the URL");
                return Err(NodeFailure::Unsuitable {
                    reason: reason.into(),
                });
            }
            _ => return Err(NodeFailure::of_another_command()),
        };
        match self {
            Question::Role => match fields.first().and_then(text) {
                Some("master") => Ok(Some(member.clone())),
                Some("slave") => Ok(None),
                _ => Err(NodeFailure::SENTINEL),
            },
            Question::Sentinel(_) => place(fields, member).map(Some),
            Question::Slot(slot) => {
                let owner = fields.iter().find_map(|range| {
                    if let Value::Array(range) = range
                        && let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] =
                            &range[..]
                        && (*first..=*last).contains(&i64::from(*slot))
                    {
                        Some(owner)
                    } else {
                        None
                    }
                });
                let owner = owner.ok_or_else(|| NodeFailure::SlotNotServed {
                    message: format!("slot {slot} has no primary"),
                })?;
                place(owner, member).map(Some)
            }
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Host and port at the beginning of `fields`. Without an announced host: the host of `member`.
fn place(fields: &[Value], member: &Endpoint) -> Result<Endpoint, NodeFailure> {
    let ([host, port, ..], Endpoint::Tcp { host: own, .. }) = (fields, member) else {
        return Err(NodeFailure::of_another_command());
    };
    let host = text(host).filter(|host| !matches!(*host, "" | "?"));
    let host = host.unwrap_or(own).to_owned();
    let port = match port {
        Value::Int(port) => u16::try_from(*port).ok(),
        port => text(port).and_then(|port| port.parse().ok()),
    };
    match port {
        Some(port @ 1..) if host.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Endpoint::Tcp { host, port })
        }
        _ => Err(NodeFailure::of_another_command()),
    }
}

/// The slot of a hash tag: CRC-16/XMODEM.
pub(super) fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let carry = if crc < 0x8000 { 0 } else { 0x1021 };
            (crc << 1) ^ carry
        })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::read_value;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    fn read_reply(question: &Question, reply: &str) -> Result<Option<Endpoint>, NodeFailure> {
        question.read(&read_value(reply.as_bytes()).unwrap(), &tcp("own", 7))
    }

    fn protocol(answer: &Result<Option<Endpoint>, NodeFailure>) -> bool {
        matches!(answer, Err(NodeFailure::Protocol { .. }))
    }

    #[test]
    fn the_slot_of_a_hash_tag_is_the_documented_one() {
        // The check value of the CRC, and an example of the specification of Redis Cluster.
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"user1000"), 3443);
    }

    #[test]
    fn a_role_reply_shows_a_primary_or_a_replica() {
        let read = |reply| read_reply(&Question::Role, reply);
        assert_eq!(
            read("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
            Ok(Some(tcp("own", 7)))
        );
        let replica = "*5\r\n$5\r\nslave\r\n$1\r\na\r\n:1\r\n$9\r\nconnected\r\n:1\r\n";
        assert_eq!(read(replica), Ok(None));
        assert_eq!(read("*1\r\n$8\r\nsentinel\r\n"), Err(NodeFailure::SENTINEL));
        assert!(protocol(&read("+OK\r\n")));
    }

    #[test]
    fn a_sentinel_reply_names_the_primary_or_has_none() {
        let question = Question::Sentinel("locks".to_owned());
        let read = |reply| read_reply(&question, reply);
        assert_eq!(
            read("*2\r\n$2\r\nDB\r\n$4\r\n6379\r\n"),
            Ok(Some(tcp("DB", 6379)))
        );
        for reply in ["*-1\r\n", "_\r\n"] {
            let failure = read(reply).unwrap_err();
            assert!(
                failure.to_string().contains("know no primary locks"),
                "{failure}"
            );
        }
        for reply in [
            "*1\r\n$1\r\na\r\n",
            "*2\r\n$1\r\na\r\n$1\r\n0\r\n",
            "*2\r\n$1\r\na\r\n$1\r\nx\r\n",
        ] {
            assert!(protocol(&read(reply)), "{reply}");
        }
    }

    #[test]
    fn a_server_of_a_cluster_names_the_owner_of_the_slot() {
        let range = |first, last, host: &str| {
            format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n{host}\r\n:7000\r\n$2\r\nid\r\n")
        };
        let slots = format!(
            "*2\r\n{}{}",
            range(0, 99, "$1\r\na"),
            range(100, 200, "$1\r\nb")
        );
        let read = |slot, reply: &str| read_reply(&Question::Slot(slot), reply);
        assert_eq!(read(99, &slots), Ok(Some(tcp("a", 7000))));
        assert_eq!(read(100, &slots), Ok(Some(tcp("b", 7000))));
        let nobody = read(201, &slots).unwrap_err();
        assert!(
            matches!(nobody, NodeFailure::SlotNotServed { .. }),
            "{nobody}"
        );
        // A host that it does not know is the one that the client used.
        for unknown in ["$0\r\n", "$-1", "$1\r\n?"] {
            let reply = format!("*1\r\n{}", range(0, 99, unknown));
            assert_eq!(read(5, &reply), Ok(Some(tcp("own", 7000))), "{unknown}");
        }
    }
}
