//! A client that stops or kills itself in the middle of something.
//!
//! From outside nobody hits a phase that takes a fraction of a millisecond. So the conductor tells the client where,
//! and a thread of the client sends the signal to its own process.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use devnodes::say;
use quorlock::LockManager;
use rustix::process::{Signal, getpid, kill_process};

use crate::support::boot;

/// Failed extensions and losses that the judge knows of.
pub(crate) static REPORTED: AtomicU64 = AtomicU64::new(0);

/// What a client is doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Nothing = 0,
    /// From the call to its return.
    Acquire = 1,
    /// While the guard exists; a signal waits for the manager to send something: a renewal.
    Renewal = 2,
    Release = 3,
}

impl Phase {
    pub(crate) const ALL: [Phase; 3] = [Phase::Acquire, Phase::Renewal, Phase::Release];

    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }
}

/// What is to happen, as the conductor says it: `stop Acquire 150`, `kill Release 0`. The number is
/// microseconds after the phase began.
#[derive(Clone, Copy, Debug)]
struct Order {
    signal: Signal,
    phase: Phase,
    delay: Duration,
}

/// Shared by the client's threads.
#[derive(Clone)]
pub(crate) struct PhaseSignals {
    shared: Arc<Shared>,
    go: Sender<()>,
}

struct Shared {
    phase: AtomicU8,
    /// Counts phases.
    turn: AtomicU64,
    order: Mutex<Option<Order>>,
}

impl PhaseSignals {
    pub(crate) fn start(locks: LockManager) -> PhaseSignals {
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(0),
            turn: AtomicU64::new(0),
            order: Mutex::new(None),
        });
        let (go, begun) = mpsc::channel();
        let signals = PhaseSignals {
            shared: Arc::clone(&shared),
            go,
        };
        thread::spawn(move || shared.lie_in_wait(&begun, &locks));
        signals
    }

    /// The client begins something else.
    pub(crate) fn enter(&self, phase: Phase) {
        self.shared.phase.store(phase as u8, Ordering::SeqCst);
        self.shared.turn.fetch_add(1, Ordering::SeqCst);
        if self.waits_for(phase) {
            let _ = self.go.send(());
        }
    }

    /// Whether something is to happen in that phase.
    pub(crate) fn waits_for(&self, phase: Phase) -> bool {
        self.shared
            .order
            .lock()
            .unwrap()
            .is_some_and(|it| it.phase == phase)
    }

    /// Takes an order of the conductor; false if it is none.
    pub(crate) fn obey(&self, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let signal = match words[0] {
            "stop" => Signal::STOP,
            "kill" => Signal::KILL,
            "never-mind" => {
                // Otherwise it is about to happen, and is reported then.
                if self.shared.order.lock().unwrap().take().is_some() {
                    say("never-mind");
                }
                return true;
            }
            _ => return false,
        };
        let phase = Phase::ALL
            .into_iter()
            .find(|it| it.name() == words[1])
            .unwrap();
        let delay = Duration::from_micros(words[2].parse().unwrap());
        *self.shared.order.lock().unwrap() = Some(Order {
            signal,
            phase,
            delay,
        });
        true
    }
}

impl Shared {
    fn lie_in_wait(&self, begun: &Receiver<()>, locks: &LockManager) {
        while begun.recv().is_ok() {
            let (turn, sent) = (self.turn.load(Ordering::SeqCst), locks.stats().commands);
            let Some(order) = *self.order.lock().unwrap() else {
                continue;
            };
            let same = || self.turn.load(Ordering::SeqCst) == turn;
            if order.phase == Phase::Renewal {
                while same() && locks.stats().commands == sent {
                    thread::sleep(Duration::from_micros(50));
                }
                if !same() {
                    continue;
                }
            }
            let from = boot();
            while u128::from(boot() - from) < order.delay.as_nanos() {
                std::hint::spin_loop();
            }
            // RACE: the conductor may have thought better of it meanwhile, and may have given another order since.
            let Some(Order { signal, .. }) = self.order.lock().unwrap().take() else {
                continue;
            };
            // The phase may be over by now: this is where it really happens.
            let phase = [
                Phase::Nothing,
                Phase::Acquire,
                Phase::Renewal,
                Phase::Release,
            ];
            let phase = phase[usize::from(self.phase.load(Ordering::SeqCst))];
            say(format_args!("signalled in {}", phase.name()));
            // RACE: see `reports_losses`.
            let counted = || {
                let stats = locks.stats();
                stats.extensions_failed + stats.locks_lost
            };
            while signal == Signal::KILL && REPORTED.load(Ordering::SeqCst) < counted() {
                thread::yield_now();
            }
            kill_process(getpid(), signal).unwrap();
        }
    }
}
