//! The judge objects to what is wrong, and only to that: told histories first, then real clients with a planted defect.
//! What is peculiar to a work is in its own file.

use crate::conductor::Plan;
use crate::faults::{ClientFault, NodeFault};
use crate::history::{Effect, Fault};
use crate::judge::Judge;
use crate::options::seconds;
use crate::support::{boot, ms};
use crate::verdict::{RULES, Report};
use crate::workloads::Workload;

/// A ttl in the histories below, in nanoseconds.
pub(crate) const TTL: u64 = 1_000_000_000;

/// A history that is told to a judge, as clients would. Times are whole ttls from some start, in percent.
pub(crate) struct Tale {
    judge: Judge,
}

impl Tale {
    pub(crate) fn begin() -> Tale {
        let judge = Judge::start(false);
        Tale { judge }
    }

    /// To a judge that accepts stale tokens.
    pub(crate) fn to_a_trusting_one() -> Tale {
        let judge = Judge::start(true);
        Tale { judge }
    }

    pub(crate) fn tell(&self, line: impl AsRef<str>) -> String {
        self.judge.history().answer(line.as_ref(), boot())
    }

    /// A hold that nothing extends: asked for and acquired at these times, and valid at `from`.
    fn hold(&self, client: u64, token: u64, asked: u64, from: u64) -> String {
        self.hold_as("exclusive registers/0", client, token, asked, from)
    }

    /// The same in some other mode, or of other names.
    pub(crate) fn hold_as(
        &self,
        as_: &str,
        client: u64,
        token: u64,
        asked: u64,
        from: u64,
    ) -> String {
        let (asked, acquired) = (asked * TTL / 100, from * TTL / 100);
        let lease = self.tell(format!(
            "lease {client} {as_} {token} {TTL} false {asked} {acquired}"
        ));
        let left = TTL - TTL / 100 - 2_000_000;
        self.tell(format!("seen {lease} {acquired} {acquired} {left}"));
        lease
    }

    pub(crate) fn release(&self, lease: &str, at: u64) {
        self.tell(format!("releasing {lease} {}", at * TTL / 100));
        self.tell(format!("ended {lease} released"));
    }

    pub(crate) fn fault(&self, effect: Effect, at: u64) {
        self.fault_of_clock(effect, at, 0);
    }

    /// On a node whose clock showed `epoch` at the start.
    fn fault_of_clock(&self, effect: Effect, at: u64, epoch: u64) {
        let at = at * TTL / 100;
        self.judge.history().faults.push(Fault {
            kind: "some".to_owned(),
            effect,
            node: 0,
            from: at,
            to: at,
            epoch,
        });
    }

    /// Its guard is found valid, now; for one that is told as extended.
    pub(crate) fn still_valid(&self, lease: &str) {
        let now = boot();
        self.tell(format!("seen {lease} {now} {now} 500000000"));
    }

    /// Asserts that the judge objects under these rules and no other.
    #[track_caller]
    pub(crate) fn assert_objections(&self, rules: &[&str]) -> Report {
        let report = self.judge.report();
        let found: Vec<&str> = RULES
            .into_iter()
            .filter(|it| 0 < report.objections_to(it))
            .collect();
        assert_eq!(found, rules, "{report}");
        report
    }
}

#[test]
fn consecutive_holds_are_accepted() {
    let tale = Tale::begin();
    let a = tale.hold(1, 10, 0, 5);
    assert_eq!(tale.tell(format!("register {a}")), "ok 0");
    assert_eq!(tale.tell(format!("read {a}")), "ok 0");
    assert_eq!(tale.tell(format!("write {a} 0")), "ok 1");
    tale.release(&a, 50);
    // It waited meanwhile.
    let b = tale.hold(2, 11, 20, 51);
    assert_eq!(tale.tell(format!("register {b}")), "ok 1");
    // Killed. The next one comes when its time is over.
    let c = tale.hold(3, 12, 60, 151);
    assert_eq!(tale.tell(format!("register {c}")), "ok 1");

    let report = tale.assert_objections(&[]);

    let counts = ["leases", "writes", "stale"].map(|it| report.count(it));
    assert_eq!(counts, [3, 1, 0]);
}

/// A hold that is over, and one after it; both have registered.
fn after_a_stale_hold(tale: Tale) -> (Tale, String, String) {
    let a = tale.hold(1, 10, 0, 5);
    tale.tell(format!("register {a}"));
    let b = tale.hold(2, 11, 100, 110);
    tale.tell(format!("register {b}"));
    (tale, a, b)
}

#[test]
fn a_refused_stale_write_is_no_objection() {
    let (tale, a, b) = after_a_stale_hold(Tale::begin());

    assert_eq!(tale.tell(format!("write {a} 0")), "stale");
    tale.tell(format!("seen {a} {} {} 0", 2 * TTL, 2 * TTL));
    assert_eq!(tale.tell(format!("write {b} 0")), "ok 1");

    assert_eq!(tale.assert_objections(&[]).count("stale"), 1);
}

#[test]
fn storage_that_accepts_a_stale_write_is_detected() {
    let (tale, a, b) = after_a_stale_hold(Tale::to_a_trusting_one());
    tale.tell(format!("write {b} 0"));

    assert_eq!(tale.tell(format!("write {a} 0")), "ok 2");

    tale.assert_objections(&["stale-write", "lost-update"]);
}

#[test]
fn overlapping_holds_and_tokens_out_of_order_are_detected() {
    const MUTEX: &str = "exclusive registers/0";
    const READS: &str = "shared readers/0";
    const WRITES: &str = "exclusive readers/0";
    const PERMIT: &str = "one-of-2 permits/0";
    const ONE: &str = "exclusive transfers/1";
    const BOTH: &str = "exclusive transfers/0,transfers/1";
    // The first is valid from 5 on, and released at this time, if ever; the second has this token,
    // and was asked for and acquired at these times.
    for (first, released, second, token, asked, acquired, rules) in [
        (
            MUTEX,
            Some(10),
            MUTEX,
            10,
            4,
            20,
            &["duplicate", "order"][..],
        ),
        (MUTEX, Some(10), MUTEX, 9, 15, 20, &["late-start", "order"]),
        (MUTEX, None, MUTEX, 11, 0, 99, &["overlap"]),
        (READS, None, WRITES, 11, 0, 99, &["overlap"]),
        (WRITES, None, READS, 10, 0, 99, &["overlap"]),
        // A reader has the number of the writer before it.
        (WRITES, Some(10), READS, 10, 15, 20, &[]),
        (WRITES, Some(10), READS, 9, 15, 20, &["late-start", "order"]),
        (READS, Some(10), WRITES, 11, 15, 20, &[]),
        (
            READS,
            Some(10),
            WRITES,
            10,
            15,
            20,
            &["late-start", "order"],
        ),
        (PERMIT, None, PERMIT, 11, 0, 6, &["overlap"]),
        (ONE, Some(10), BOTH, 9, 15, 20, &["late-start", "order"]),
    ] {
        let tale = Tale::begin();
        let before = tale.hold_as(first, 1, 10, 0, 5);
        if let Some(at) = released {
            tale.release(&before, at);
        }
        tale.hold_as(second, 2, token, asked, acquired);

        tale.assert_objections(rules);
    }
}

#[test]
fn a_killed_client_holds_to_its_lease_end_unless_it_reported_a_loss() {
    for (lost, rules) in [
        (None, &["overlap"][..]),
        (Some(2), &["overlap"]),
        (Some(1), &[]),
    ] {
        let tale = Tale::begin();
        let killed = tale.tell(format!("lease 1 exclusive registers/0 10 {TTL} true 0 1"));
        tale.tell(format!("seen {killed} 1 1 900000000"));
        // Proves no loss: the client's manager finds that out.
        tale.fault(Effect::Forgets, 10);
        if let Some(client) = lost {
            tale.tell(format!("lost {client}"));
        }
        tale.hold(3, 11, 15, 50);

        tale.assert_objections(rules);
    }
}

#[test]
fn a_reported_loss_shortens_no_observed_or_released_hold() {
    // Killed. Its last look has a connection of its own, and comes behind the report.
    let tale = Tale::begin();
    let killed = tale.tell(format!("lease 1 exclusive registers/0 10 {TTL} true 0 1"));
    tale.tell(format!("seen {killed} 1 1 900000000"));
    tale.tell("lost 1");
    tale.tell(format!("seen {killed} {at} {at} 400000000", at = TTL / 2));
    tale.hold(2, 11, 15, 49);
    tale.assert_objections(&["overlap"]);

    // A renewal under way finds a released lock gone.
    let tale = Tale::begin();
    let released = tale.hold(1, 10, 0, 5);
    tale.release(&released, 50);
    tale.tell("lost 1");
    tale.hold(2, 11, 15, 49);
    tale.assert_objections(&["overlap"]);
}

#[test]
fn a_hold_that_stays_valid_over_a_long_stop_is_detected() {
    let tale = Tale::begin();
    let lease = tale.tell(format!("lease 7 exclusive registers/0 10 {TTL} true 0 1"));
    tale.tell(format!("seen {lease} 1 1 500000000"));
    tale.judge.history().stops.push((7, 2, TTL + 2));
    tale.tell(format!("seen {lease} {} {} 500000000", TTL + 3, TTL + 3));

    tale.assert_objections(&["honesty"]);
}

#[test]
fn a_guard_that_claims_too_much_time_is_detected() {
    let half = TTL / 2;
    // Whether it is extended; from when to when it was looked at, and what was left.
    for (extended, looks) in [
        // More than a ttl can give.
        (true, &[(1, 1, TTL)][..]),
        // Later than it said at first, and nobody extended it.
        (false, &[(1, 1, half), (10, 11, half)]),
        // The library has extended it once, and nobody did so again.
        (
            false,
            &[
                (1, 1, half),
                (60_000_000, 60_000_001, half),
                (160_000_000, 160_000_001, half),
            ],
        ),
        // Again, after it was not valid.
        (true, &[(1, 1, 0), (2, 2, half)]),
    ] {
        let tale = Tale::begin();
        let lease = tale.tell(format!(
            "lease 1 exclusive registers/0 10 {TTL} {extended} 0 1"
        ));
        for (from, to, left) in looks {
            tale.tell(format!("seen {lease} {from} {to} {left}"));
        }
        tale.assert_objections(&["honesty"]);
    }
}

#[test]
fn a_refused_write_of_a_valid_holder_is_detected() {
    let tale = Tale::begin();
    let a = tale.hold(1, 10, 0, 5);
    tale.release(&a, 10);
    tale.tell(format!("register {a}"));
    // The judge's own time is on the same clock, and is far ahead of these.
    let (asked, acquired) = (10 * TTL, 11 * TTL);
    let lease = format!("lease 2 exclusive registers/0 9 {TTL} true {asked} {acquired}");
    let lease = tale.tell(lease);
    assert_eq!(tale.tell(format!("register {lease}")), "stale");
    tale.still_valid(&lease);

    tale.assert_objections(&["late-start", "order", "refused"]);
}

#[test]
fn a_fault_excuses_only_its_possible_effects() {
    let told = |effect, at| {
        let tale = Tale::begin();
        tale.hold(1, 10, 10, 15);
        tale.hold(2, 11, 50, 60);
        tale.fault(effect, at);
        tale
    };
    let report = told(Effect::Hastens, 30).assert_objections(&[]);
    assert_eq!(report.excused("overlap"), 1);
    for (effect, at) in [
        // Before either was asked for, and after both were acquired.
        (Effect::Hastens, 9),
        (Effect::Hastens, 61),
        (Effect::Forgets, 30),
        (Effect::None, 30),
    ] {
        told(effect, at).assert_objections(&["overlap"]);
    }

    let tale = told(Effect::Hastens, 30);
    tale.hold(3, 11, 61, 62);
    tale.assert_objections(&["duplicate", "late-start", "overlap", "order"]);
}

#[test]
fn only_counters_ahead_of_their_nodes_clock_excuse_smaller_tokens() {
    // A second after the loss, and ten after the epoch.
    const QUARANTINE_ENDS: u64 = 10_000_000 + 1_300_000;
    let told = |token, epoch, effect, at| {
        let tale = Tale::begin();
        let a = tale.hold(1, token, 10, 15);
        tale.release(&a, 20);
        tale.fault_of_clock(effect, at, epoch);
        tale.hold(2, token - 1, 150, 151);
        tale
    };
    let excused = told(QUARANTINE_ENDS + 1, 10_000_000, Effect::Forgets, 30).assert_objections(&[]);
    let objections = ["late-start", "order"];
    assert_eq!(objections.map(|it| excused.excused(it)), [1, 1]);

    for (token, epoch, effect, at) in [
        (QUARANTINE_ENDS, 10_000_000, Effect::Forgets, 30),
        (QUARANTINE_ENDS + 1, 10_000_001, Effect::Forgets, 30),
        (QUARANTINE_ENDS + 1, 10_000_000, Effect::None, 30),
        (QUARANTINE_ENDS + 1, 10_000_000, Effect::Forgets, 9),
        (u64::MAX / 2, 10_000_000, Effect::Forgets, 152),
    ] {
        told(token, epoch, effect, at).assert_objections(&objections);
    }

    // Its clock was set back before anybody saw the loss, or before the loss.
    for (at, expected) in [(40, &[][..]), (29, &objections)] {
        let tale = told(QUARANTINE_ENDS, 10_000_000, Effect::Forgets, 30);
        tale.fault_of_clock(Effect::None, at, 9_999_999);
        tale.assert_objections(expected);
    }

    // And it makes no hold the only one, nor a token another.
    let tale = told(QUARANTINE_ENDS + 1, 10_000_000, Effect::Forgets, 30);
    tale.hold(3, QUARANTINE_ENDS + 1, 151, 152);
    tale.assert_objections(&["duplicate", "overlap"]);
}

#[test]
fn an_early_end_does_not_shorten_the_observed_hold() {
    // Its wall clock was stepped, say: over at some time before 50, and another had it from 40 on. But seen to be valid at 45,
    // it was.
    for (seen, rules) in [(None, &[][..]), (Some(TTL * 45 / 100), &["overlap"])] {
        let tale = Tale::begin();
        let a = tale.hold(1, 10, 0, 5);
        if let Some(at) = seen {
            tale.tell(format!("seen {a} {at} {at} 100"));
        }
        tale.tell(format!("seen {a} {at} {at} 0", at = TTL / 2));
        tale.hold(2, 11, 20, 40);
        tale.assert_objections(rules);
    }
}

/// Runs a planted campaign with one seed after another, until the judge objects as it should.
#[track_caller]
pub(crate) fn run_until(rule: &str, plan: Plan) -> Report {
    let mut last = Report::default();
    for seed in 1..=10 {
        let plan = plan.clone();
        last = Plan { seed, ..plan }.run().report;
        if 0 < last.objections_to(rule) {
            return last;
        }
    }
    panic!("no objection to {rule}; the last: {last}");
}

/// Clients trust their locks for too long in this work; where nothing else shows it, the resource
/// does as well.
#[test]
fn clients_of_every_kind_that_use_their_locks_too_long_are_detected() {
    let Some(lasts) = seconds(3.0, true) else {
        return;
    };
    for (rule, work, trusting) in [
        ("torn", Workload::Readers, true),
        ("torn", Workload::Transfers, true),
        ("crowd", Workload::Permits, false),
    ] {
        let plan = Plan {
            deaf: true,
            trusting,
            lasts,
            works: vec![work],
            ..Plan::new("planted: deaf", 3)
        };
        run_until(rule, plan);
    }
}

#[test]
fn clients_that_use_their_locks_too_long_are_detected() {
    let plan = Plan {
        deaf: true,
        lasts: ms(2_000),
        works: vec![Workload::Registers],
        ..Plan::new("planted: deaf", 3)
    };
    let report = run_until("overlap", plan);

    // And the resource protects itself.
    assert!(0 < report.count("stale"), "{report}");
    for rule in ["stale-write", "lost-update", "duplicate", "late-start"] {
        assert_eq!(report.objections_to(rule), 0, "{rule}: {report}");
    }
}

#[test]
fn storage_without_tokens_loses_updates_of_stopped_clients() {
    let Some(lasts) = seconds(3.0, true) else {
        return;
    };
    let plan = Plan {
        trusting: true,
        lasts,
        works: vec![Workload::Registers],
        client_faults: vec![ClientFault::StopInRenewal],
        ..Plan::new("planted: no tokens", 3)
    };

    let report = run_until("stale-write", plan);

    assert_eq!(report.objections_to("overlap"), 0, "{report}");
}

#[test]
fn unreported_flushes_of_nodes_are_detected() {
    let plan = Plan {
        secretive: true,
        lasts: ms(2_000),
        works: vec![Workload::Registers],
        hands: 3,
        node_faults: vec![NodeFault::Flush],
        ..Plan::new("planted: flushes that nobody tells of", 3)
    };

    let report = run_until("overlap", plan);

    assert_eq!(report.objections_to("stale-write"), 0, "{report}");
}
