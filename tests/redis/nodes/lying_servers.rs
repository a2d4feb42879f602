//! Nodes that speak the protocol well and lie. One can deny its own vote, and make two majorities of those that have no
//! honest node in common; it cannot disturb the order of tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use devnodes::{Client, FakeServer, PATIENCE, Proxy, Server, Servers, eventually};
use quorlock::error::NodeAnswer;
use quorlock::{AcquireError, LockManager, LostReason};

use crate::support::*;

/// Stands between a client and a real server, and does something to its keys before each command: so the answers have
/// the right form, and are lies.
struct Liar {
    fake: FakeServer,
    /// How many lies there were.
    lies: Arc<AtomicU64>,
    /// The one that it speaks for.
    _server: Server,
}

impl Liar {
    /// `lie` gets a connection to the server and the lock key that the script about to run is for; true if it had to
    /// do something.
    fn start(lie: impl Fn(&mut Client, &[u8]) -> bool + Send + Sync + 'static) -> Liar {
        let server = Server::start().unwrap();
        let lies = Arc::new(AtomicU64::new(0));
        let fake = speaking_for(&server, {
            let lies = Arc::clone(&lies);
            move |to, command| match command[0].as_slice() {
                b"SUBSCRIBE" => Some(b"-NOPERM none of your business\r\n".to_vec()),
                b"EVAL" | b"EVALSHA" if lie(to, &command[3]) => {
                    lies.fetch_add(1, Ordering::SeqCst);
                    None
                }
                _ => None,
            }
        });
        Liar {
            fake,
            lies,
            _server: server,
        }
    }

    /// Forgets who holds a lock, and so grants it to everybody and tells every holder that it is gone.
    fn that_grants_to_everybody() -> Liar {
        Liar::start(|server, lock| server.command(&[b"DEL", lock]).unwrap().as_int() == Some(1))
    }

    /// Says to every client that another one holds the lock.
    fn that_refuses_everybody() -> Liar {
        Liar::start(|server, lock| server.command(&[b"SET", lock, b"nobody"]).is_ok())
    }

    /// Grants to everybody, and shows this fencing counter.
    fn with_counter(counter: u64) -> Liar {
        Liar::start(move |server, lock| {
            server.command(&[b"DEL", lock]).unwrap();
            let fence = fence(std::str::from_utf8(lock).unwrap());
            server
                .command(&["SET", &fence, &counter.to_string()])
                .is_ok()
        })
    }

    fn lies(&self) -> u64 {
        self.lies.load(Ordering::SeqCst)
    }
}

/// Answers as the server would, except where `instead` has another answer, which may be empty.
pub(crate) fn speaking_for(
    server: &Server,
    instead: impl Fn(&mut Client, &[Vec<u8>]) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> FakeServer {
    FakeServer::speaking_for(server.addr(), instead).unwrap()
}

/// By how much an honest node is heard later than a liar, which is slower by itself.
const LATER: Duration = ms(20);

/// A manager of these nodes and of a liar, in that place. It is connected to all.
fn beside(liar: &Liar, place: usize, mut urls: Vec<String>) -> LockManager {
    urls.insert(place, liar.fake.url());
    let nodes = u64::try_from(urls.len()).unwrap();
    connected(builder(urls).ttl(LONG), nodes)
}

fn is_granted(err: &AcquireError, node: usize) -> bool {
    matches!(
        answer(err, node),
        NodeAnswer::Granted | NodeAnswer::GrantedBehind
    )
}

/// Each hears of the other in time from the liar alone.
#[test]
fn g6_two_majorities_that_share_only_a_liar_hold_with_tokens_in_order() -> TestResult {
    let (servers, liar) = (Servers::start(2)?, Liar::that_grants_to_everybody());
    let (late, urls) = proxies(&servers);
    let manager = |urls: [String; 2]| {
        connected(
            builder([&urls[..], &[liar.fake.url()]].concat()).ttl(LONG),
            3,
        )
    };
    let first = manager([servers[0].url(), urls[1].clone()]);
    let second = manager([urls[0].clone(), servers[1].url()]);
    late.iter().for_each(Proxy::hold_requests);

    let one = first.mutex("report").try_lock()?;
    let other = second.mutex("report").try_lock()?;

    assert!(one.is_valid() && other.is_valid());
    assert!(one.fencing_token() < other.fencing_token());
    late.iter().for_each(Proxy::release_requests);
    Ok(())
}

/// What the liar and the last of the others grant is two of four; what they have is refused.
#[test]
fn g6_of_four_nodes_a_liar_and_one_that_was_not_reached_make_no_second_majority() -> TestResult {
    let (servers, liar) = (Servers::start(3)?, Liar::that_grants_to_everybody());
    let (late, urls) = proxies(&servers);
    let first = beside(
        &liar,
        0,
        vec![servers[0].url(), servers[1].url(), urls[2].clone()],
    );
    let second = beside(
        &liar,
        0,
        vec![urls[0].clone(), urls[1].clone(), servers[2].url()],
    );
    late[2].hold_requests();
    let guard = first.mutex("report").try_lock()?;
    // The nodes that refuse it answer last.
    late.iter().take(2).for_each(|it| it.set_delay(LATER));

    let mut counted = 0;
    eventually("both grants were counted in so many attempts", || {
        let err = second.mutex("report").try_lock().unwrap_err();
        counted += usize::from(is_granted(&err, 0) && is_granted(&err, 3));
        3 <= counted
    });

    guard.check()?;
    late[2].release_requests();
    Ok(())
}

/// Any two majorities of four share an honest one beside it.
#[test]
fn g6_one_node_of_four_that_always_grants_allows_no_second_hold() -> TestResult {
    let (servers, liar) = (Servers::start(3)?, Liar::that_grants_to_everybody());
    // Each hears another one of the honest late, so that the liar is in every majority.
    let (late, late_urls) = proxies(&servers);
    let managers: Vec<_> = (0..3)
        .map(|i| {
            let mut urls = servers.urls();
            urls[i].clone_from(&late_urls[i]);
            beside(&liar, i, urls)
        })
        .collect();
    late.iter().for_each(|it| it.set_delay(LATER));
    let (inside, last, holds) = (
        AtomicBool::new(false),
        AtomicU64::new(0),
        AtomicUsize::new(0),
    );

    thread::scope(|scope| {
        for locks in &managers {
            scope.spawn(|| {
                for _ in 0..40 {
                    let guard = locks.mutex("report").try_lock_for(PATIENCE).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    let token = guard.fencing_token().get();
                    let before = last.swap(token, Ordering::SeqCst);
                    assert!(before < token, "{before} then {token}");
                    // The others come here, and the liar would let them in.
                    thread::yield_now();
                    // Where the liar was in its majority, an extension finds that no majority holds it any more: a busy
                    // machine comes to one. Its keys keep the others out.
                    let held = guard.check();
                    assert!(held.is_ok() || reason(held) == Err(LostReason::Gone));
                    inside.store(false, Ordering::SeqCst);
                    holds.fetch_add(1, Ordering::SeqCst);
                    // So does the release.
                    let released = guard.release();
                    assert!(released.is_ok() || reason(released) == Err(LostReason::Gone));
                }
            });
        }
    });

    assert_eq!(holds.into_inner(), 120);
    let lies = liar.lies();
    assert!(120 <= lies, "it has had little to lie about: {lies}");
    Ok(())
}

#[test]
fn g6_a_node_that_always_refuses_costs_its_own_vote_only() -> TestResult {
    let (servers, liar) = (Servers::start(2)?, Liar::that_refuses_everybody());
    let (late, urls) = proxies(&servers);
    for place in 0..3 {
        let locks = beside(&liar, place, urls.clone());
        // What it says is the first that is heard.
        late.iter().for_each(|it| it.set_delay(LATER));
        let lies = liar.lies();
        let guard = locks.mutex("report").try_lock()?;
        guard.extend(LONG)?;
        assert!(guard.is_valid());
        assert!(2 <= guard.release()?.confirmed);
        assert!(lies < liar.lies());
        late.iter().for_each(|it| it.set_delay(ms(0)));
    }
    Ok(())
}

/// What one absurd counter does to calls, if its node is always the first to answer.
fn with_absurd_counter(counter: u64) -> TestResult {
    let (servers, liar) = (Servers::start(2)?, Liar::with_counter(counter));
    let (proxies, mut urls) = proxies(&servers);
    urls.push(liar.fake.url());
    let locks = connected(builder(urls).ttl(LONG), 3);
    proxies.iter().for_each(|it| it.set_delay(ms(20)));
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let guard = locks
            .mutex("report")
            .try_lock()
            .map_err(|err| format!("{counter}: {err}"))?;
        tokens.push(guard.fencing_token().get());
        guard.release()?;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(3 <= liar.lies());
    Ok(())
}

#[test]
fn g6_a_node_that_shows_absurd_counters_costs_its_own_vote_only() {
    // Those from 2^53 on are no counters. One below it is believed, and tokens jump: a hundred years ahead of the clock
    // there are still enough. That a node shows the very last ones is not defended against yet.
    let counters = [u64::MAX, i64::MAX.unsigned_abs(), 1 << 60, 1 << 53, 1 << 52];
    let failed: Vec<_> = counters
        .into_iter()
        .filter_map(|it| with_absurd_counter(it).err())
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}
