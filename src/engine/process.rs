//! The process of a manager, to detect a fork.

use crate::ids::OwnerLabel;

/// Id of the first process of a PID namespace.
const FIRST: u32 = 1;

/// The process with the threads of a manager. After a fork the child has copies of everything but
/// the threads, and its copies of mutexes may be locked for ever: check before anything is locked.
///
/// Compares the process id, which costs one short system call: guards are asked often. A child in a
/// PID namespace of its own may have the same id. That is likely only for id 1, of the main program
/// of a container and of the first child in every namespace. So for id 1 alone the namespace is
/// compared too, which takes a microsecond or two.
///
/// Deliberately not handled: a forked child in a namespace of its own in which so many processes
/// were started before that it has the parent's id, above 1. And a child of a child with the id of
/// a parent that has ended long ago. Without `unsafe` no cheap check tells these apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    id: u32,
    /// PID namespace of process 1; `None` for other processes and systems.
    namespace: Option<u64>,
}

impl Process {
    /// The calling process.
    pub(crate) fn this() -> Process {
        let id = std::process::id();
        Process {
            id,
            namespace: if id == FIRST { namespace() } else { None },
        }
    }

    /// Label of this process, for people. `own`: the program's part.
    pub(crate) fn label(self, own: &str) -> OwnerLabel {
        OwnerLabel::new(&host_name(), self.id, own)
    }

    /// Whether the caller is a forked child of this process.
    pub(crate) fn is_forked(self) -> bool {
        self.differs(std::process::id(), namespace)
    }

    fn differs(self, id: u32, namespace: impl FnOnce() -> Option<u64>) -> bool {
        self.id != id || (self.namespace.is_some() && self.namespace != namespace())
    }
}

/// Name of this machine or container.
#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Number of the caller's PID namespace.
#[cfg(target_os = "linux")]
fn namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(std::fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

#[cfg(not(target_os = "linux"))]
fn namespace() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f1_the_first_process_of_another_namespace_is_another_process() {
        let first = Process {
            id: FIRST,
            namespace: Some(7),
        };
        assert!(!first.differs(FIRST, || Some(7)));
        assert!(first.differs(FIRST, || Some(8)));
        assert!(first.differs(2, || panic!("the number says it")));
        let other = Process {
            id: 2,
            namespace: None,
        };
        assert!(!other.differs(2, || panic!("it is not looked at")) && other.differs(3, || None));
        assert!(!Process::this().is_forked());
    }

    #[test]
    fn the_name_of_a_process_has_its_machine_and_pid() {
        let label = Process::this().label("nightly");
        let parts: Vec<_> = label.0.split('/').collect();
        let [host, id, "nightly"] = parts[..] else {
            panic!("{parts:?}")
        };
        assert!(!host.is_empty() && host_name().starts_with(host), "{host}");
        assert_eq!(id, std::process::id().to_string());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_pid_namespace_is_readable_and_constant() {
        assert!(namespace().is_some() && namespace() == namespace());
    }
}
