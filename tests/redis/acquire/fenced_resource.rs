//! What fencing tokens are for: a resource that checks them is safe from holders that were stopped for too long.
//!
//! The resource is the one of `examples/fenced_redis`.

use devnodes::{Server, Servers};
use quorlock::LostReason;
use rustix::process::Signal;

use crate::support::*;

#[path = "../../../examples/fenced_redis/store.rs"]
mod store;

use store::{AT_FIRST, StoreError, Tickets};

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
