//! What users may rely on at compile time, and what works without any node.

use std::error::Error;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use quorlock::error::{NodeCheck, NodeReport};
use quorlock::inspection::{Inspection, Listing};
use quorlock::once::{Job, Run, RunRecord};
use quorlock::{
    AcquireError, BuildError, Builder, CancelHandle, ExtendError, FencingToken, Hold, LockGuard,
    LockManager, LockName, Lost, LostReason, MultiLock, Mutex, OnceError, Permit, ReadGuard,
    ReentrantGuard, ReentrantMutex, ReleaseError, Semaphore, Stats, WithError, WriteGuard,
};

fn shared<T: Send + Sync + 'static>() {}
fn survives_a_panic<T: UnwindSafe + RefUnwindSafe>() {}
fn robust<T: Send + Sync + UnwindSafe + RefUnwindSafe + 'static>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn handles_and_guards_can_be_sent_and_shared_and_survive_a_panic() {
    robust::<LockManager>();
    robust::<Builder>();
    robust::<Mutex>();
    robust::<MultiLock>();
    robust::<Semaphore>();
    robust::<Permit>();
    robust::<ReentrantMutex>();
    robust::<LockGuard>();
    robust::<CancelHandle>();
    robust::<Job>();
    shared::<Run>();
    shared::<RunRecord>();
    robust::<NodeReport>();
    robust::<Stats>();
    #[cfg(feature = "tls")]
    robust::<quorlock::Tls>();
    survives_a_panic::<ReentrantGuard>();
    shared::<NodeCheck>();
    shared::<Inspection>();
    shared::<Listing>();
}

fn holds<T: Into<Hold> + Deref>() {}

/// For a list of holds of several kinds, and for functions that take any of them.
#[test]
fn all_sendable_guards_are_holds() {
    holds::<LockGuard>();
    holds::<ReadGuard>();
    holds::<WriteGuard>();
    holds::<Permit>();
    shared::<Hold>();
    let _: [fn(&Hold) -> bool; 1] = [Hold::is_valid];
    let _: fn(&ReentrantGuard) -> &Hold = |guard| guard;
    let _: fn(&ReadGuard) -> &Hold = |guard| guard;
    let _: fn(&Permit) -> &Hold = |guard| guard;
}

/// Has one implementation for types that stay in their thread and two for the others, so that `is` is ambiguous there.
trait InItsThread<T> {
    fn is() {}
}
struct Sendable;
struct Shareable;
impl<T> InItsThread<()> for T {}
impl<T: Send> InItsThread<Sendable> for T {}
impl<T: Sync> InItsThread<Shareable> for T {}

#[test]
fn a_guard_of_a_reentrant_lock_stays_in_its_thread_and_can_be_lent_as_a_plain_one() {
    <ReentrantGuard as InItsThread<_>>::is();
    fn lent(guard: &ReentrantGuard) -> impl Send + Sync {
        let guard: &LockGuard = guard;
        guard
    }
    let _ = lent;
}

#[test]
fn every_error_works_with_the_question_mark() {
    error::<AcquireError>();
    error::<BuildError>();
    error::<ExtendError>();
    error::<ReleaseError>();
    error::<Lost>();
    error::<LostReason>();
    error::<WithError>();
    error::<OnceError<u8, String>>();
}

#[test]
fn the_source_of_a_with_error_is_its_cause() {
    let err: WithError = AcquireError::ShutDown.into();
    let source = err.source().and_then(|it| it.downcast_ref());
    assert_eq!(source, Some(&AcquireError::ShutDown));
    let lost = Lost {
        name: LockName::new(b"report"),
        reason: LostReason::Gone,
    };
    let err = WithError::from(lost.clone());
    let source = err.source().and_then(|it| it.downcast_ref());
    assert_eq!(source, Some(&lost));
}

#[test]
fn errors_are_exported_at_the_root_and_in_error() {
    let err: quorlock::error::AcquireError = AcquireError::ShutDown;
    assert_eq!(err, quorlock::AcquireError::ShutDown);
}

#[test]
fn a_closure_call_has_the_errors_of_its_lock() {
    let locks = nowhere();
    locks.shutdown();
    let results: [Result<(), WithError>; 4] = [
        locks.mutex("x").with(|_| unreachable!()),
        locks.reentrant_mutex("x").with(|_| unreachable!()),
        locks.semaphore("x", 2).with(|_| unreachable!()),
        locks.multi_lock(["x", "y"]).with(|_| unreachable!()),
    ];
    let shut_down = WithError::NotAcquired(AcquireError::ShutDown).to_string();
    for result in results {
        assert_eq!(result.unwrap_err().to_string(), shut_down);
    }
}

type Boxed = Box<dyn Error + Send + Sync>;

/// A wrapper of any work, as programs write it.
fn wrapped<T, E: Into<Boxed>>(
    locks: &LockManager,
    work: impl FnOnce(&LockGuard) -> Result<T, E>,
) -> Result<T, Boxed> {
    locks.with("x", work)?.map_err(Into::into)
}

/// The same of every kind, for values that cannot outlive their caller.
fn wrapped_kinds<T>(locks: &LockManager, work: impl Fn() -> T) -> Result<Vec<T>, Box<dyn Error>> {
    Ok(vec![
        locks.mutex("x").with(|_| work())?,
        locks.reentrant_mutex("x").with(|_| work())?,
        locks.semaphore("x", 2).with(|_| work())?,
        locks.multi_lock(["x", "y"]).with(|_| work())?,
        locks.rw_lock("x").read_with(|_| work())?,
        locks.rw_lock("x").write_with(|_| work())?,
    ])
}

#[test]
fn a_generic_wrapper_compiles_with_borrowed_results() {
    let locks = nowhere();
    locks.shutdown();
    let (text, shared) = (String::from("text"), std::rc::Rc::new(()));
    let borrowed = wrapped(&locks, |_| Ok::<&str, Boxed>(&text)).unwrap_err();
    let parsed = wrapped(&locks, |_| text.parse::<u8>()).unwrap_err();
    let of_thread = wrapped_kinds(&locks, || std::rc::Rc::clone(&shared)).unwrap_err();
    let shut_down = AcquireError::ShutDown.to_string();
    for err in [
        borrowed.to_string(),
        parsed.to_string(),
        of_thread.to_string(),
    ] {
        assert_eq!(err, shut_down);
    }
}

#[test]
fn a_label_is_a_string_or_a_reference_to_one() {
    let label = String::from("nightly");
    let locks = || LockManager::builder("redis://127.0.0.1:1");
    for builder in [
        locks().owner_label("nightly"),
        locks().owner_label(&label),
        locks().owner_label(label.clone()),
        locks().without_owner_label(),
    ] {
        let locks = builder.build().unwrap();
        let _ = [
            locks.mutex("x").class("job"),
            locks.mutex("x").class(&label),
            locks.mutex("x").class(label.clone()),
        ];
    }
}

#[test]
fn fencing_tokens_compare_as_numbers() {
    let (first, second) = (FencingToken::from(7), FencingToken::from(8));
    assert!(first < second);
    assert_eq!((second.get(), second.to_string()), (8, "8".to_owned()));
}

/// Nobody listens on these ports of the loopback range; nothing is asked before the checks anyway.
fn nowhere() -> LockManager {
    LockManager::builder(["redis://127.0.0.1:1", "redis://127.0.0.1:2"])
        .build()
        .unwrap()
}

#[test]
fn an_outage_is_no_quorum_with_a_row_per_node_and_never_held() {
    let err = nowhere().mutex("x").try_lock().unwrap_err();

    assert!(matches!(err, AcquireError::NoQuorum { .. }), "{err}");
    assert!(!err.is_held());
    let addresses: Vec<_> = err.nodes().iter().map(|it| &*it.address).collect();
    assert_eq!(addresses, ["127.0.0.1:1", "127.0.0.1:2"]);
    // The other one shares its row, or was not waited for.
    let text = err.to_string();
    for words in ["n0 (127.0.0.1:1)", ": cannot connect: connection refused"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_cancelled_handle_ends_every_wait_before_it_begins() {
    let cancel = CancelHandle::new();
    let lock = nowhere().mutex("x").cancelled_by(&cancel);
    assert!(!cancel.is_cancelled());

    cancel.clone().cancel();

    assert!(cancel.is_cancelled());
    assert!(matches!(lock.lock().unwrap_err(), AcquireError::Cancelled));
}

#[test]
fn debug_forms_of_handles_show_their_own_options_and_an_escaped_name() {
    let locks = nowhere();
    let shared = locks.mutex(b"a\n\xff");
    assert_eq!(shared.name(), b"a\n\xff");
    let changed = shared.clone().ttl(Duration::from_secs(7)).renew(false);
    let reentrant = locks.reentrant_mutex("report").renew(false);
    assert_eq!(reentrant.name(), b"report");

    for (shown, expected) in [
        (
            format!("{shared:?}"),
            r#"Mutex { name: "a\n\xff", ttl: 10s, renew: true, .. }"#,
        ),
        (
            format!("{changed:?}"),
            r#"Mutex { name: "a\n\xff", ttl: 7s, renew: false, .. }"#,
        ),
        (
            format!("{reentrant:?}"),
            r#"ReentrantMutex(Mutex { name: "report", ttl: 10s, renew: false, .. })"#,
        ),
    ] {
        assert_eq!(shown, expected);
    }
}
