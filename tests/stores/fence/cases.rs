//! What must hold for every store, however holders overlap.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quorlock::FencingToken;
use quorlock::fence::Stale;

/// One resource in a store: a number, and the largest token.
pub(crate) trait Store: Sync {
    /// A connection of its own.
    fn connect(&self) -> Box<dyn Session + '_>;
}

/// A holder's connection.
pub(crate) trait Session: Send {
    /// Registers the token of a new holder, in a transaction of its own.
    fn register(&mut self, token: FencingToken) -> Result<(), Stale>;
    /// Reads the number. Anybody may.
    fn read(&mut self) -> i64;
    /// Checks the token and writes the number, in one transaction.
    fn write(&mut self, token: FencingToken, number: i64) -> Result<(), Stale>;
}

/// The same tests for a store: `$store` is an expression for a `Store`, or `None` if it cannot be had.
macro_rules! cases {
    ($store:expr) => {
        #[test]
        fn f9_two_holders_in_every_order_of_register_read_and_write_lose_no_accepted_write() {
            let Some(store) = $store else { return };
            crate::cases::every_order(&store);
        }

        #[test]
        fn f9_a_read_before_the_registration_loses_a_write() {
            let Some(store) = $store else { return };
            crate::cases::read_before_registration(&store);
        }

        #[test]
        fn f9_one_token_may_register_and_write_twice_and_a_smaller_one_never_again() {
            let Some(store) = $store else { return };
            crate::cases::one_token_twice(&store);
        }

        #[test]
        fn f9_rounds_of_eight_threads_lose_no_accepted_write_and_tokens_never_fall() {
            let Some(store) = $store else { return };
            crate::cases::rounds(&store);
        }
    };
}
pub(crate) use cases;

/// Tokens as large as those of locks: microseconds since 1970.
const BEFORE_ALL: u64 = 1_795_327_766_569_034;

/// The tokens of this process grow from call to call.
static TOKENS: AtomicU64 = AtomicU64::new(BEFORE_ALL);

pub(crate) fn next_token() -> FencingToken {
    FencingToken::from(TOKENS.fetch_add(1, Ordering::SeqCst))
}

/// Checks that the error names both tokens, or the own one where the store does not report the other.
#[track_caller]
pub(crate) fn assert_stale(result: Result<(), Stale>, ours: FencingToken, seen: FencingToken) {
    let stale = result.expect_err("a stale holder is rejected");
    assert_eq!(stale.ours, ours);
    assert!(
        stale.seen.is_none_or(|it| it == seen.get()),
        "{stale}, in place of {seen}"
    );
}

/// All orders of `count` steps of each of two holders, as bits: whether the second one moves.
fn orders(count: u32) -> impl Iterator<Item = impl Iterator<Item = bool>> {
    let all = 0_u32..1 << (2 * count);
    all.filter(move |order| order.count_ones() == count)
        .map(move |order| (0..2 * count).map(move |at| order >> at & 1 == 1))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Register,
    Read,
    Write,
}

/// Two holders do these steps in all 20 orders; the orders that lost an accepted write. A step is
/// accepted unless the other holder, with the larger token, has registered.
fn lossy_orders(store: &impl Store, steps: [Step; 3]) -> Vec<String> {
    let mut lossy = Vec::new();
    let mut sessions = [store.connect(), store.connect()];
    for order in orders(3) {
        let tokens = [next_token(), next_token()];
        let before = sessions[0].read();
        let (mut at, mut read, mut accepted) = ([0, 0], [0, 0], 0);
        let mut second_is_registered = false;
        let mut story = String::new();
        for second in order {
            let who = usize::from(second);
            let (session, token, step) = (&mut sessions[who], tokens[who], steps[at[who]]);
            let must_pass = second || !second_is_registered || step == Step::Read;
            let result = match step {
                Step::Register => session.register(token),
                Step::Read => {
                    read[who] = session.read();
                    Ok(())
                }
                Step::Write => session.write(token, read[who] + 1),
            };
            story += &format!("{who} {step:?}: {result:?}; ");
            assert_eq!(result.is_ok(), must_pass, "{story}");
            accepted += i64::from(result.is_ok() && step == Step::Write);
            if !must_pass {
                assert_stale(result, token, tokens[1]);
            }
            second_is_registered |= second && step == Step::Register;
            at[who] += 1;
        }
        if sessions[0].read() != before + accepted {
            lossy.push(story);
        }
    }
    lossy
}

pub(crate) fn every_order(store: &impl Store) {
    let lossy = lossy_orders(store, [Step::Register, Step::Read, Step::Write]);
    assert!(lossy.is_empty(), "{lossy:#?}");
}

/// Must lose. It shows that the rule is needed, and that the case above would find a loss.
pub(crate) fn read_before_registration(store: &impl Store) {
    let lossy = lossy_orders(store, [Step::Read, Step::Register, Step::Write]);
    assert!(!lossy.is_empty(), "no order lost a write");
}

pub(crate) fn one_token_twice(store: &impl Store) {
    let mut session = store.connect();
    let (first, second) = (next_token(), next_token());
    for _ in 0..2 {
        session.register(first).unwrap();
    }
    // Also the same number again: nothing changes in the store.
    for number in [5, 5, 6] {
        session.write(first, number).unwrap();
    }
    session.register(first).unwrap();
    session.register(second).unwrap();
    for _ in 0..2 {
        assert_stale(session.register(first), first, second);
        assert_stale(session.write(first, 7), first, second);
    }
    assert_eq!(session.read(), 6);
    session.write(second, 8).unwrap();
    assert_eq!(session.read(), 8);
}

/// Eight threads that register, read, and write one more: most often one after another, as with a lock, and else beside the
/// others, as with a lost one. The number written tells the order of accepted writes, so the judge
/// needs nothing of the store: no number twice, none left out, and tokens that never fall.
pub(crate) fn rounds(store: &impl Store) {
    let long = env::var_os("QUORLOCK_LONG").is_some();
    let rounds = if long { 10_000 / 8 } else { 25 };
    let before = store.connect().read();
    let (accepted, lock) = (Mutex::new(Vec::new()), Mutex::new(()));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut session = store.connect();
                for _ in 0..rounds {
                    let _held = (fastrand::u8(..4) != 0).then(|| lock.lock().unwrap());
                    // A late one now and then: its token was drawn before those of others.
                    let token = next_token();
                    if fastrand::u8(..4) == 0 {
                        thread::yield_now();
                    }
                    if session.register(token).is_err() {
                        continue;
                    }
                    let number = session.read() + 1;
                    if fastrand::u8(..4) == 0 {
                        thread::yield_now();
                    }
                    if session.write(token, number).is_ok() {
                        accepted.lock().unwrap().push((number, token));
                    }
                }
            });
        }
    });

    let mut accepted = accepted.into_inner().unwrap();
    accepted.sort_unstable();
    let numbers: Vec<_> = accepted.iter().map(|it| it.0).collect();
    let expected: Vec<_> = (before + 1..).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "a write was lost");
    assert!(accepted.is_sorted_by_key(|it| it.1), "a token fell");
    assert_eq!(store.connect().read(), before + numbers.len() as i64);
    assert!(!accepted.is_empty(), "no round came through");
    let share = format!("{} of {} rounds were accepted", numbers.len(), 8 * rounds);
    println!("{share}");
}
