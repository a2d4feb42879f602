//! Which process this is: a manager belongs to the one that built it.

use crate::ids::OwnerLabel;

/// The first process of a PID namespace has this number.
const FIRST: u32 = 1;

/// The process that has the threads of a manager. A child after a fork has copies of everything but them, and its copies
/// of mutexes may be locked for ever: ask before anything is locked.
///
/// Told apart by the process id, which costs one short system call: guards are asked often. A child in a PID namespace of
/// its own may have the same number. That is likely only for number 1, which the main program of a container has and the
/// first child in every namespace: so for that number, and no other, the namespace is looked at as well, which takes a
/// microsecond or two.
///
/// Deliberately not handled: a forked child that goes on with the parent's program in a namespace of its own, in which so
/// many processes were started before it that it has the parent's number, above 1; and a child of a child whose number is
/// the parent's, long after that has ended. Nothing that tells these apart without `unsafe` is cheap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    id: u32,
    /// Of process 1 only; `None` where the system does not say.
    namespace: Option<u64>,
}

impl Process {
    /// The calling one.
    pub(crate) fn this() -> Process {
        let id = std::process::id();
        Process {
            id,
            namespace: if id == FIRST { namespace() } else { None },
        }
    }

    /// Who this process is, for people; `own` is what its program calls itself.
    pub(crate) fn label(self, own: &str) -> OwnerLabel {
        OwnerLabel::new(&host_name(), self.id, own)
    }

    /// Whether the caller is another process, which was forked from this one.
    pub(crate) fn is_forked(self) -> bool {
        self.differs(std::process::id(), namespace)
    }

    fn differs(self, id: u32, namespace: impl FnOnce() -> Option<u64>) -> bool {
        self.id != id || (self.namespace.is_some() && self.namespace != namespace())
    }
}

/// What this machine, or container, calls itself.
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

/// The number of the caller's PID namespace.
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
    fn a_process_is_called_by_its_machine_and_its_number() {
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
    fn the_system_says_which_namespace_a_process_is_in() {
        assert!(namespace().is_some() && namespace() == namespace());
    }
}
