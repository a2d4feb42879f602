//! An observer that feeds the `metrics` facade.

use std::sync::Arc;
use std::time::Duration;

use metrics::{
    Counter, Gauge, SharedString, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};

use crate::error::{AcquireError, LostReason, NodeFailure, QuarantineReason, RoundLoss};
use crate::ids::NodeId;
use crate::observer::event::{Event, OTHER, ObservedLock, Observer};
use crate::time::Moment;

/// Losses worth an alert: not those by a shutdown of the program. A forked child has no events.
const LOSSES: [LostReason; 5] = [
    LostReason::Expired,
    LostReason::Gone,
    LostReason::NodeClock,
    LostReason::MaxHold,
    LostReason::LeaseOver,
];

/// Feeds the [`metrics`](https://docs.rs/metrics) facade, from which exporters for Prometheus,
/// OpenTelemetry and others take it. With the feature `metrics`.
///
/// [`guide::metrics`](crate::guide::metrics) lists the metrics. No name of a lock becomes a label:
/// give related locks a [`class`](crate::Mutex::class).
///
/// Install the recorder before you create this: earlier values are not recorded. Two managers of
/// one process add up, except for nodes: `n0` of one and of the other are the same series.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use quorlock::LockManager;
/// use quorlock::observer::MetricsObserver;
///
/// // metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder(), for example.
/// let locks = LockManager::builder(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .observer(Arc::new(MetricsObserver::new()))
///     .build()?;
/// let order = locks.mutex("order:4711").class("order");
/// # Ok::<(), quorlock::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MetricsObserver;

impl MetricsObserver {
    /// Describes each metric to the installed recorder.
    #[must_use]
    pub fn new() -> MetricsObserver {
        let seconds = Unit::Seconds;
        describe_gauge!(
            "quorlock_waiting",
            "Calls that are under way to take a lock"
        );
        describe_gauge!("quorlock_held", "Locks that this process holds");
        describe_histogram!(
            "quorlock_acquire_wait_seconds",
            seconds,
            "How long calls for a lock took, by how they ended"
        );
        describe_gauge!(
            "quorlock_ttl_seconds",
            seconds,
            "The ttl of the last taken lock"
        );
        describe_gauge!("quorlock_build_info", "The version of quorlock");
        gauge!("quorlock_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        describe_histogram!(
            "quorlock_hold_seconds",
            seconds,
            "For how long locks were held, by how that ended"
        );
        describe_histogram!(
            "quorlock_round_seconds",
            seconds,
            "How long rounds of asking the nodes for a lock took"
        );
        describe_histogram!(
            "quorlock_extension_seconds",
            seconds,
            "How long extensions took that a majority confirmed"
        );
        describe_histogram!(
            "quorlock_extension_margin_seconds",
            seconds,
            "How much of the lease was left when an extension was confirmed"
        );
        describe_counter!(
            "quorlock_rounds_total",
            "Rounds of asking the nodes for a lock, by how they went"
        );
        describe_counter!("quorlock_extensions_total", "Extensions of held locks");
        describe_counter!(
            "quorlock_locks_lost_total",
            "Locks that were lost while they were held, but for shutdowns"
        );
        describe_counter!(
            "quorlock_releases_total",
            "Releases, by whether a majority has confirmed"
        );
        describe_gauge!("quorlock_node_up", "Whether the node is connected");
        describe_gauge!("quorlock_node_info", "The address of the node");
        describe_gauge!(
            "quorlock_node_silent",
            "Whether the node owes an answer for longer than the response timeout"
        );
        describe_gauge!(
            "quorlock_node_quarantined_until_seconds",
            seconds,
            "When the node votes again, since 1970"
        );
        describe_histogram!(
            "quorlock_node_reply_seconds",
            seconds,
            "How long the node took to answer"
        );
        describe_counter!(
            "quorlock_node_failures_total",
            "Connections and commands that failed"
        );
        describe_counter!(
            "quorlock_node_quarantines_total",
            "How often the node lost its vote for a while"
        );
        describe_counter!(
            "quorlock_healed_total",
            "Held locks that the node lacked and has again"
        );
        MetricsObserver
    }
}

impl Observer for MetricsObserver {
    fn event(&self, event: &Event) {
        match event {
            Event::Began { lock } => {
                gauge!("quorlock_waiting", "class" => class(lock)).increment(1.0)
            }
            Event::Acquired {
                lock, waited, ttl, ..
            } => {
                call_ended(lock, *waited, "acquired");
                gauge!("quorlock_ttl_seconds", "class" => class(lock)).set(*ttl);
                gauge!("quorlock_held", "class" => class(lock)).increment(1.0);
                // Creates the series before the first loss: for Prometheus, a series that begins
                // with 1 has never grown.
                LOSSES.iter().for_each(|it| lost(lock, *it).increment(0));
            }
            Event::NotAcquired {
                lock,
                waited,
                error,
            } => call_ended(lock, *waited, of_error(error)),
            Event::Round { outcome, took, .. } => {
                let outcome = of_round(*outcome);
                counter!("quorlock_rounds_total", "outcome" => outcome).increment(1);
                histogram!("quorlock_round_seconds", "outcome" => outcome).record(*took);
            }
            Event::Released {
                lock,
                held,
                confirmed,
            } => {
                hold_ended(lock, *held, "released");
                let confirmed = if *confirmed { "majority" } else { "fewer" };
                counter!("quorlock_releases_total", "confirmed" => confirmed).increment(1);
            }
            Event::Lost { lock, held, why } => {
                hold_ended(lock, *held, of_loss(*why));
                if LOSSES.contains(why) {
                    lost(lock, *why).increment(1);
                }
            }
            Event::Extended { lock, took, left } => {
                counter!("quorlock_extensions_total", "outcome" => "confirmed").increment(1);
                histogram!("quorlock_extension_seconds").record(*took);
                histogram!("quorlock_extension_margin_seconds", "class" => class(lock))
                    .record(*left);
            }
            Event::NotExtended { .. } => {
                counter!("quorlock_extensions_total", "outcome" => "failed").increment(1)
            }
            Event::Healed { node, .. } => {
                counter!("quorlock_healed_total", "node" => node.to_string()).increment(1)
            }
            Event::NodeUp { node, address } => {
                of_node("quorlock_node_up", *node).set(1.0);
                node_seen(*node, address);
            }
            Event::NodeDown { node, address, why } => {
                of_node("quorlock_node_up", *node).set(0.0);
                // Also for a node that never connected: alerts take the address from this series.
                node_seen(*node, address);
                node_failed(*node, why);
            }
            Event::NodeSilent { node } => of_node("quorlock_node_silent", *node).set(1.0),
            Event::NodeAnswers { node } => of_node("quorlock_node_silent", *node).set(0.0),
            Event::NodeReply {
                node,
                took,
                failure,
            } => {
                histogram!("quorlock_node_reply_seconds", "node" => node.to_string()).record(*took);
                if let Some(failure) = failure {
                    node_failed(*node, failure);
                }
            }
            Event::NodeQuarantined { node, left, why } => {
                let now = Duration::from_micros(Moment::now().wall_micros());
                let until = now.saturating_add(*left).as_secs_f64();
                of_node("quorlock_node_quarantined_until_seconds", *node).set(until);
                let why = of_quarantine(*why);
                let node = node.to_string();
                counter!("quorlock_node_quarantines_total", "node" => node, "why" => why)
                    .increment(1);
            }
        }
    }
}

fn lost(lock: &ObservedLock, why: LostReason) -> Counter {
    counter!("quorlock_locks_lost_total", "class" => class(lock), "why" => of_loss(why))
}

fn call_ended(lock: &ObservedLock, waited: Duration, outcome: &'static str) {
    gauge!("quorlock_waiting", "class" => class(lock)).decrement(1.0);
    histogram!("quorlock_acquire_wait_seconds", "class" => class(lock), "outcome" => outcome)
        .record(waited);
}

fn hold_ended(lock: &ObservedLock, held: Duration, end: &'static str) {
    gauge!("quorlock_held", "class" => class(lock)).decrement(1.0);
    histogram!("quorlock_hold_seconds", "class" => class(lock), "end" => end).record(held);
}

fn of_node(gauge: &'static str, node: NodeId) -> Gauge {
    gauge!(gauge, "node" => node.to_string())
}

fn node_seen(node: NodeId, address: &Arc<str>) {
    of_node("quorlock_node_silent", node).set(0.0);
    gauge!("quorlock_node_info", "node" => node.to_string(), "address" => Arc::clone(address))
        .set(1.0);
}

fn node_failed(node: NodeId, failure: &NodeFailure) {
    if *failure != NodeFailure::ShutDown {
        let (node, failure) = (node.to_string(), of_failure(failure));
        counter!("quorlock_node_failures_total", "node" => node, "failure" => failure).increment(1);
    }
}

fn class(lock: &ObservedLock) -> SharedString {
    lock.shared_class()
        .cloned()
        .map_or(SharedString::const_str(OTHER), SharedString::from_shared)
}

fn of_round(outcome: Result<(), RoundLoss>) -> &'static str {
    match outcome {
        Ok(()) => "won",
        Err(RoundLoss::Held) => "held",
        Err(RoundLoss::Overtaken) => "overtaken",
        Err(RoundLoss::NoQuorum) => "no_quorum",
        Err(RoundLoss::TooLate) => "too_late",
        Err(RoundLoss::KeyInUse) => "key_in_use",
    }
}

fn of_error(error: &AcquireError) -> &'static str {
    match error {
        AcquireError::Held { .. } => "held",
        AcquireError::NoQuorum { .. } => "no_quorum",
        AcquireError::Busy { .. } => "busy",
        AcquireError::TooLate { .. } => "too_late",
        AcquireError::KeyInUse { .. } => "key_in_use",
        AcquireError::Cancelled => "cancelled",
        AcquireError::ShutDown => "shutdown",
        _ => "other",
    }
}

fn of_loss(lost: LostReason) -> &'static str {
    match lost {
        LostReason::Expired => "expired",
        LostReason::Gone => "gone",
        LostReason::NodeClock => "node_clock",
        LostReason::MaxHold => "max_hold",
        LostReason::LeaseOver => "lease_over",
        LostReason::ShutDown => "shutdown",
        LostReason::Forked => "forked",
    }
}

fn of_quarantine(why: QuarantineReason) -> &'static str {
    match why {
        QuarantineReason::New => "new",
        QuarantineReason::Restarted => "restarted",
        QuarantineReason::Emptied => "emptied",
        QuarantineReason::ClockStep => "clock_step",
        QuarantineReason::Unverifiable => "unverifiable",
    }
}

/// The kind of failure, by its cure.
fn of_failure(failure: &NodeFailure) -> &'static str {
    match failure {
        NodeFailure::Connect { .. } | NodeFailure::Disconnected { .. } => "connection",
        NodeFailure::TimedOut | NodeFailure::Stalled => "silent",
        NodeFailure::Access { .. } => "access",
        NodeFailure::Quarantined { .. } => "quarantined",
        NodeFailure::ClockBehind => "clock",
        NodeFailure::WritesRefused { .. } => "writes_refused",
        NodeFailure::Loading | NodeFailure::Busy { .. } => "busy",
        NodeFailure::KeyInUse { .. } => "key",
        NodeFailure::Refused { .. } | NodeFailure::Protocol { .. } => "refused",
        NodeFailure::Internal => "internal",
        // Kind or settings of the server.
        _ => "settings",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use metrics::{Gauge, Histogram, Key, KeyName, Metadata, Recorder};

    use super::*;
    use crate::ids::{FencingToken, LockName};

    /// Remembers which series there are.
    #[derive(Default)]
    struct Series(Mutex<BTreeSet<String>>);

    impl Series {
        fn note(&self, key: &Key) {
            let labels: Vec<_> = key
                .labels()
                .map(|it| format!("{}={}", it.key(), it.value()))
                .collect();
            self.0
                .lock()
                .unwrap()
                .insert(format!("{} {}", key.name(), labels.join(" ")));
        }
    }

    impl Recorder for Series {
        fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
            assert!(name.as_str().ends_with("_total"), "{name:?}");
        }

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
            assert!(
                name.as_str().ends_with("_seconds") && unit == Some(Unit::Seconds),
                "{name:?}"
            );
        }

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            self.note(key);
            Counter::noop()
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            self.note(key);
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            self.note(key);
            Histogram::noop()
        }
    }

    fn lock(name: &str, class: Option<&str>) -> ObservedLock {
        ObservedLock::new(
            &LockName::new(name.as_bytes()),
            class.map(Arc::from).as_ref(),
        )
    }

    #[test]
    fn the_class_of_a_lock_becomes_a_label_and_its_name_never_does() {
        let series = Series::default();
        let second = Duration::from_secs(1);
        metrics::with_local_recorder(&series, || {
            let observer = MetricsObserver::new();
            for name in ["order:1", "order:2"] {
                for lock in [lock(name, Some("order")), lock(name, None)] {
                    let lock = || lock.clone();
                    observer.event(&Event::Began { lock: lock() });
                    let token = FencingToken(1);
                    observer.event(&Event::Acquired {
                        lock: lock(),
                        waited: second,
                        token,
                        ttl: second,
                    });
                    observer.event(&Event::Extended {
                        lock: lock(),
                        took: second,
                        left: second,
                    });
                    observer.event(&Event::Lost {
                        lock: lock(),
                        held: second,
                        why: LostReason::Gone,
                    });
                }
            }
        });

        let series = series.0.into_inner().unwrap();
        assert!(series.iter().all(|it| !it.contains("order:")), "{series:?}");
        for class in ["order", "other"] {
            assert!(
                series.contains(&format!("quorlock_held class={class}")),
                "{series:?}"
            );
            assert!(
                series.contains(&format!("quorlock_ttl_seconds class={class}")),
                "{series:?}"
            );
            assert!(
                series.contains(&format!("quorlock_hold_seconds class={class} end=gone")),
                "{series:?}"
            );
        }
        assert!(
            series.contains(&format!(
                "quorlock_build_info version={}",
                env!("CARGO_PKG_VERSION")
            )),
            "{series:?}"
        );
        assert_eq!(series.len(), 2 * (6 + LOSSES.len()) + 3, "{series:?}");
    }

    #[test]
    fn a_node_that_was_never_connected_has_an_address() {
        let series = Series::default();
        metrics::with_local_recorder(&series, || {
            let (node, address) = (NodeId::new(1), Arc::from("10.0.0.2:6379"));
            MetricsObserver::new().event(&Event::NodeDown {
                node,
                address,
                why: NodeFailure::TimedOut,
            });
        });
        let series = series.0.into_inner().unwrap();
        assert!(
            series.contains("quorlock_node_info node=n1 address=10.0.0.2:6379"),
            "{series:?}"
        );
    }
}
