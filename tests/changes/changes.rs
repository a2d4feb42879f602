//! Every change to a native twin is noticed by the comparison with real servers, as `tests/conformance` makes it.
//!
//! The build script finds the changes: each decision of each twin the other way, each number another one, each step left out.
//! All are in one program, and a test tries one after the other. The server is asked once.
#![allow(dead_code, reason = "what only the comparison itself needs")]

#[path = "../conformance/choices.rs"]
mod choices;
#[path = "../conformance/closer.rs"]
mod closer;
#[path = "../conformance/locks.rs"]
mod locks;
#[path = "../conformance/pair.rs"]
mod pair;
#[path = "../conformance/sequences.rs"]
mod sequences;
#[path = "../conformance/shapes.rs"]
mod shapes;
#[path = "../conformance/sources.rs"]
mod sources;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use pair::{Answer, Case, Pair, Twin};
use sequences::Said;

type TestResult = Result<(), Box<dyn std::error::Error>>;
type Command = Vec<Vec<u8>>;

fn command<A: AsRef<[u8]>>(args: impl IntoIterator<Item = A>) -> Command {
    args.into_iter().map(|it| it.as_ref().to_vec()).collect()
}

include!(concat!(env!("OUT_DIR"), "/store.rs"));
include!(concat!(env!("OUT_DIR"), "/list.rs"));

/// A change to a twin.
struct Change {
    file: &'static str,
    line: usize,
    /// The line as it is.
    whole: &'static str,
    from: &'static str,
    to: &'static str,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n    {} => {}", self.file, self.whole, self.from, self.to)
    }
}

/// Changes that make no difference, as they are shown; and behind `#`, why.
const NO_DIFFERENCE: &str = include_str!("no_difference.txt");

fn no_differences() -> Vec<String> {
    let (mut all, mut line) = (Vec::new(), "");
    for text in NO_DIFFERENCE.lines().filter(|it| !it.is_empty() && !it.starts_with('#')) {
        match text.strip_prefix("    ") {
            Some(change) => all.push(format!("{line}\n    {change}")),
            None => line = text,
        }
    }
    all
}

/// As many trials show that a change on that list makes no difference.
const ENOUGH: usize = 1_000;
/// A twin that is changed and takes so many steps does not end.
const STEPS_MAX: usize = 3_000_000;

thread_local! {
    static TRIED: Cell<Option<usize>> = const { Cell::new(None) };
    static STEPS: Cell<usize> = const { Cell::new(0) };
    /// Which changes were come by.
    static PASSED: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
}

/// Whether that change is made. The twins ask.
fn is_tried(number: usize) -> bool {
    let tried = TRIED.get();
    if tried.is_none() {
        PASSED.with_borrow_mut(|it| it.iter_mut().skip(number).take(1).for_each(|it| *it = true));
    }
    STEPS.set(STEPS.get() + 1);
    assert!(STEPS.get() < STEPS_MAX, "it does not end");
    tried == Some(number)
}

/// What is said to a twin, and what the server has answered.
enum Trial {
    Case(Case, Answer),
    Sequence(Vec<Said>),
}

impl Trial {
    /// What the comparison says to a server if the long tests are asked for.
    fn all(pair: &mut Pair) -> Result<Vec<Trial>, Box<dyn std::error::Error>> {
        let now = pair.now();
        let pairs = shapes::all(now).into_iter().flat_map(|it| it.pairs(pair, true)).collect::<Vec<_>>();
        let product = closer::all(now).into_iter().flat_map(|it| it.product(pair)).collect();
        let mut trials = Vec::new();
        for cases in [pairs, product, closer::commands(now)] {
            let answers = cases.chunks(pair::AT_ONCE).map(|it| pair.ask(it)).collect::<Result<Vec<_>, _>>()?;
            let answered = cases.into_iter().zip(answers.into_iter().flatten());
            trials.extend(answered.map(|(case, answer)| Trial::Case(case, answer)));
        }
        let sequences = [sequences::ending(pair)?, sequences::random(pair, 40)?];
        trials.extend(sequences.into_iter().flatten().map(Trial::Sequence));
        // So that trials that are unlike each other come first.
        fastrand::Rng::with_seed(7).shuffle(&mut trials);
        Ok(trials)
    }

    /// Whether the twin differs from the server.
    fn differs(&self, mut twin: Twin) -> bool {
        STEPS.set(0);
        match self {
            Trial::Case(case, answer) => twin.difference(case, answer).is_some(),
            Trial::Sequence(said) => said.iter().any(|(at, said, answer)| twin.differs_at(*at, said, answer).is_some()),
        }
    }
}

#[test]
fn every_change_to_a_twin_is_noticed() -> TestResult {
    let Some(mut pair) = Pair::start()? else { return Ok(()) };
    let (run_id, now) = (pair.run_id().to_owned(), pair.now());
    let twin = || Twin::new(&run_id, now);
    let trials = Trial::all(&mut pair)?;

    // Which trials come by each change.
    let mut passing = vec![Vec::new(); CHANGES.len()];
    for trial in &trials {
        PASSED.set(vec![false; CHANGES.len()]);
        assert!(!trial.differs(twin()), "without a change they differ");
        let passed = PASSED.take().into_iter().zip(&mut passing).filter(|it| it.0);
        passed.for_each(|it| it.1.push(trial));
    }

    let listed = no_differences();
    let is_noticed = |number: usize, trials: &[&Trial]| {
        TRIED.set(Some(number));
        // A twin that panics is noticed.
        let mut differ = trials.iter().map(|it| panic::catch_unwind(AssertUnwindSafe(|| it.differs(twin()))));
        differ.any(|it| it.unwrap_or(true))
    };
    let next = AtomicUsize::new(0);
    let try_changes = || {
        let mut unnoticed = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(change) = CHANGES.get(number) else { return unnoticed };
            let is_listed = listed.contains(&change.to_string());
            let tries = if is_listed { ENOUGH } else { usize::MAX };
            let trials: Vec<_> = passing[number].iter().copied().take(tries).collect();
            if !is_noticed(number, &trials) {
                unnoticed.push((number, is_listed));
            }
        }
    };
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let unnoticed = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(try_changes)).collect();
        threads.into_iter().map(|it| it.join().unwrap_or_default()).collect::<Vec<_>>().concat()
    });
    panic::set_hook(hook);

    let shown = |it: &(usize, bool)| format!("line {} of {}", CHANGES[it.0].line, CHANGES[it.0]);
    let unlisted: Vec<_> = unnoticed.iter().filter(|it| !it.1).map(shown).collect();
    assert!(
        unlisted.is_empty(),
        "nobody notices {} of {} changes. Have `tests/conformance` look closer, or say in no_difference.txt why they make \
         no difference:\n{}",
        unlisted.len(),
        CHANGES.len(),
        unlisted.join("\n")
    );
    let without: BTreeSet<_> = unnoticed.iter().map(|it| CHANGES[it.0].to_string()).collect();
    let wrong: Vec<_> = listed.iter().filter(|it| !without.contains(*it)).map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "no_difference.txt has what does make one, or is not there any more:\n{}",
        wrong.join("\n")
    );
    println!("{} changes to twins, of which {} make no difference", CHANGES.len(), unnoticed.len());
    Ok(())
}
