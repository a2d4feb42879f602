//! Waiting for replicas: `WAIT`.

use redis::{Value, cmd};

use crate::error::NodeFailure;
use crate::wire::address::WaitFor;
use crate::wire::{refusal, value};

/// Asks how many replicas have everything that was written on this connection, as soon as enough do or the time is over.
pub(crate) fn write_wait(wait: WaitFor, out: &mut Vec<u8>) {
    cmd("WAIT").arg(wait.replicas).arg(wait.millis).write_packed_command(out);
}

/// Why grants do not count after this answer, if they do not.
pub(crate) fn too_few(frame: &[u8], wait: WaitFor) -> Option<NodeFailure> {
    match value::read(frame) {
        Some(Value::Int(count)) => {
            let acknowledged = u64::try_from(count).unwrap_or(0);
            (acknowledged < u64::from(wait.replicas))
                .then_some(NodeFailure::NotReplicated { acknowledged, needed: wait.replicas })
        }
        Some(Value::ServerError(error)) => match refusal::of(&error) {
            refusal::Refusal::Failure(failure) => Some(failure),
            refusal::Refusal::NoScript => Some(nonsense()),
        },
        _ => Some(nonsense()),
    }
}

fn nonsense() -> NodeFailure {
    NodeFailure::Protocol { reason: "no number in the answer to WAIT".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: WaitFor = WaitFor { replicas: 2, millis: 50 };

    #[test]
    fn what_too_few_replicas_have_does_not_count() {
        let mut bytes = Vec::new();
        write_wait(TWO, &mut bytes);
        assert_eq!(bytes, b"*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$2\r\n50\r\n");
        assert_eq!(too_few(b":2\r\n", TWO), None);
        assert_eq!(too_few(b":3\r\n", TWO), None);
        for count in [0, 1] {
            let failure = NodeFailure::NotReplicated { acknowledged: count, needed: 2 };
            assert_eq!(too_few(format!(":{count}\r\n").as_bytes(), TWO), Some(failure));
        }
        assert!(matches!(too_few(b"-NOPERM no\r\n", TWO), Some(NodeFailure::NoPermission { .. })));
        for nonsense in [&b"+OK\r\n"[..], b":-1\r\n", b"-NOSCRIPT a\r\n", b"*0\r\n"] {
            assert!(too_few(nonsense, TWO).is_some(), "{}", nonsense.escape_ascii());
        }
    }
}
