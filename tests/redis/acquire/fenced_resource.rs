//! What fencing tokens are for: a resource that checks them is safe from holders that were stopped for too long.
//!
//! The resource is the one of `examples/fenced_redis`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;

use devnodes::{PATIENCE, Server, Servers};
use quorlock::{FencingToken, LostReason};
use rustix::process::Signal;

use crate::support::*;

#[path = "../../../examples/fenced_redis/store.rs"]
mod store;

use store::{AT_FIRST, Entered, StoreError, Tickets};

#[test]
fn f6_a_process_stopped_between_check_and_write_is_refused_by_the_resource() -> TestResult {
    needs!(PlainUrls);
    needs!(Storage);
    let (servers, data) = (Servers::start(3)?, Server::start()?);
    let urls = [servers.urls(), vec![data.url()]].concat();
    let mut child = child(
        "acquire::fenced_resource::child_that_is_stopped_before_it_writes",
        &urls,
    );
    let has_read = format!("has checked its lock and read {AT_FIRST}");
    assert_eq!(child.hear(), has_read);

    child.signal(Signal::STOP);
    let guard = manager(&servers).mutex("tickets").lock()?;
    let mut store = Tickets::open(&data.url())?;
    let entered = store.enter(guard.fencing_token())?;
    assert_eq!(entered.left, AT_FIRST);
    child.go_on();
    child.signal(Signal::CONT);

    // It is refused before its successor has written anything: the token is registered before the first read.
    let refused = format!("refused, because of {}", guard.fencing_token());
    assert_eq!(child.hear(), refused);
    assert_eq!(
        child.hear(),
        format!("{:?}", Err::<(), _>(LostReason::Expired))
    );
    assert!(child.wait().success());
    entered.sell()?;
    assert_eq!(store.left()?, AT_FIRST - 1);
    guard.release()?;
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_is_stopped_before_it_writes() {
    let mut urls = child_urls();
    let Some(data) = urls.pop() else { return };
    let locks = with_ttl(&urls, secs(1)).build().unwrap();
    let guard = lock_in_the_end(&locks, "tickets");
    let mut store = Tickets::open(&data).unwrap();
    let entered = store.enter(guard.fencing_token()).unwrap();
    guard.check().unwrap();
    say(format_args!(
        "has checked its lock and read {}",
        entered.left
    ));
    wait_for_parent();
    match entered.sell() {
        Err(StoreError::Stale(stale)) => {
            say(format_args!("refused, because of {}", stale.seen.unwrap()))
        }
        other => say(format_args!("not refused: {other:?}")),
    }
    say(format_args!("{:?}", reason(guard.check())));
}

#[test]
fn f6_a_lock_that_ran_out_is_refused_by_the_resource_until_it_is_taken_again() -> TestResult {
    needs!(PlainUrls);
    needs!(Storage);
    let (servers, data) = (Servers::start(3)?, Server::start()?);
    let (first, second) = (connected(builder(servers.urls()), 3), manager(&servers));
    let mut stores = [Tickets::open(&data.url())?, Tickets::open(&data.url())?];
    let [first_store, second_store] = &mut stores;

    let short = first.mutex("tickets").renew(false);
    let stale = short.lock()?;
    let entered = first_store.enter(stale.fencing_token())?;
    // As if its time had passed: its keys are gone everywhere.
    del_all(&servers, "tickets");
    let guard = second.mutex("tickets").lock()?;
    second_store.enter(guard.fencing_token())?.sell()?;

    assert!(matches!(entered.sell(), Err(StoreError::Stale(_))));
    assert!(matches!(
        first_store.enter(stale.fencing_token()),
        Err(StoreError::Stale(_))
    ));
    guard.release()?;
    drop(stale);
    let again = short.try_lock_for(PATIENCE)?;
    first_store.enter(again.fencing_token())?.sell()?;
    assert_eq!(first_store.left()?, AT_FIRST - 2);
    Ok(())
}

#[test]
fn f6_no_accepted_write_is_lost_however_holders_overlap() -> TestResult {
    needs!(PlainUrls);
    needs!(Storage);
    let data = Server::start()?;
    let url = data.url();
    let (tokens, sold, refused) = (AtomicU64::new(1), AtomicI64::new(0), AtomicI64::new(0));

    // Nobody has a lock: the worst that can happen to locks.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut store = Tickets::open(&url).unwrap();
                for _ in 0..500 {
                    let token = FencingToken::from(tokens.fetch_add(1, Ordering::SeqCst));
                    match store.enter(token).and_then(Entered::sell) {
                        Ok(()) => sold.fetch_add(1, Ordering::SeqCst),
                        Err(StoreError::Stale(_)) => refused.fetch_add(1, Ordering::SeqCst),
                        Err(StoreError::Server(err)) => panic!("{err}"),
                    };
                }
            });
        }
    });

    let (sold, refused) = (sold.into_inner(), refused.into_inner());
    assert_eq!(Tickets::open(&url)?.left()?, AT_FIRST - sold);
    assert_eq!(sold + refused, 2_000);
    assert!(0 < sold);
    Ok(())
}
