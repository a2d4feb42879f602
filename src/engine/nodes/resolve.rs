//! The addresses behind a member's name, found on a short-lived thread.
//!
//! The system's resolver takes as long as it likes. Where a worker waits for it, that costs the worker's own node. The thread that
//! asks the members of a group asks them all: it waits for no name.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::sys::sync::Mutex;
use crate::sys::{Socket, run_aside};

/// So many names of one group are resolved at a time, each on a thread: a server of a cluster may name any number of others.
const RESOLVED_MAX: usize = 64;

type Lookup = io::Result<Vec<SocketAddr>>;

/// Resolves the names of one group.
pub(super) struct Resolver {
    /// Wakes the thread that asks.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Each thread has one of these.
    threads: Arc<()>,
}

/// A name that is being resolved. The thread has the other one of these, as long as it runs.
pub(super) struct Resolving(Arc<Mutex<Option<Lookup>>>);

impl Resolver {
    pub(super) fn new(wake: impl Fn() + Send + Sync + 'static) -> Resolver {
        Resolver {
            wake: Arc::new(wake),
            threads: Arc::default(),
        }
    }

    /// Begins. What is an address already is found at once.
    pub(super) fn begin(&self, host: &str, port: u16) -> Resolving {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Resolving(Arc::new(Mutex::new(Some(Ok(vec![SocketAddr::new(
                ip, port,
            )])))));
        }
        let resolving = Resolving(Arc::default());
        if Arc::strong_count(&self.threads) <= RESOLVED_MAX {
            let (found, host) = (Arc::clone(&resolving.0), host.to_owned());
            let (wake, thread) = (Arc::clone(&self.wake), Arc::clone(&self.threads));
            // Where the system gives no thread, it ends without a result.
            let _ = run_aside("quorlock-resolver", move || {
                *found.lock() = Some(Socket::resolve(&host, port));
                drop((found, thread));
                wake();
            });
        }
        resolving
    }
}

impl Resolving {
    /// What was found, once; an error if that is nothing.
    pub(super) fn poll(&self) -> Option<Lookup> {
        // RACE: before the look at what was found, which is there before the thread ends.
        let is_over = Arc::strong_count(&self.0) == 1;
        let none = || is_over.then(|| Err(io::Error::other("no thread to resolve its name")));
        let found = self.0.lock().take().or_else(none)?;
        Some(found.and_then(|it| match &it[..] {
            [] => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )),
            _ => Ok(it),
        }))
    }
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    fn resolver() -> (Resolver, std::sync::mpsc::Receiver<()>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        (
            Resolver::new(move || sender.send(()).unwrap_or(())),
            receiver,
        )
    }

    #[test]
    fn an_address_is_found_at_once_and_a_name_by_another_thread_that_wakes() {
        let (resolver, woken) = resolver();
        let addresses = resolver.begin("::1", 7).poll().unwrap().unwrap();
        assert_eq!(addresses, [SocketAddr::new("::1".parse().unwrap(), 7)]);
        assert_eq!(
            Arc::strong_count(&resolver.threads),
            1,
            "a thread for an address"
        );

        let name = resolver.begin("localhost", 7);
        woken.recv().unwrap();
        assert!(
            name.poll()
                .unwrap()
                .unwrap()
                .iter()
                .all(|it| it.ip().is_loopback() && it.port() == 7)
        );
        // In error: no label of a name is empty.
        let nothing = resolver.begin("a..b", 7);
        woken.recv().unwrap();
        assert!(nothing.poll().unwrap().is_err());
    }

    #[test]
    fn h23_so_many_names_are_resolved_at_a_time_and_the_next_one_in_a_later_look() {
        let (mut resolver, woken) = resolver();
        let others = vec![Arc::clone(&resolver.threads); RESOLVED_MAX];
        assert!(resolver.begin("localhost", 7).poll().unwrap().is_err());
        drop(others);
        let name = resolver.begin("localhost", 7);
        woken.recv().unwrap();
        assert!(name.poll().unwrap().is_ok());
        assert!(
            Arc::get_mut(&mut resolver.threads).is_some(),
            "its thread is counted for ever"
        );
    }
}
