//! Whether a server may vote: not before all its possibly lost locks have expired.
//!
//! A server that lost its data grants held locks. The lost locks were granted earlier. After the
//! longest ttl in use they have expired, or were extended on a majority without that server. Until
//! then the server is in quarantine: its grants do not count.

use std::time::Duration;

use crate::answer::{Record, RecordReply, ServerInfo};
use crate::error::QuarantineReason;
use crate::ids::RecordVersion;
use crate::logic::clock_offset::NodeClock;
use crate::logic::quarantines::{QuarantineStart, Quarantines, VoteKind};
use crate::time::{Now, Tick};

/// Grain of a record's age: the server reads its clock before we read ours.
pub(crate) const GRAIN: Duration = Duration::from_secs(1);

/// Time before a command and time after its answer, on both clocks: for waiting and for leases.
/// Neither follows from the other: the clock for waiting stops in suspend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) asked: Now,
    pub(crate) answered: Now,
}

/// Facts of a manager about one server, over all connections.
#[derive(Clone, Debug)]
pub(crate) struct Eligibility {
    /// Length of a quarantine, also of one under way; `None` without quarantine. It grows with a
    /// longer ttl in a record.
    pub(crate) length: Option<Duration>,
    run_id: Option<String>,
    /// First sync with that process.
    met: Option<Tick>,
    /// Version of its record, last stored as asked. A missing record later is lost, and one that
    /// did not grow out of this version belongs to other data.
    own_record: Option<RecordVersion>,
    pub(crate) quarantines: Quarantines,
    pub(crate) clock: NodeClock,
}

impl Eligibility {
    pub(crate) fn new(length: Option<Duration>, rate: f64) -> Eligibility {
        let quarantines = Quarantines::default();
        Eligibility {
            length,
            run_id: None,
            met: None,
            own_record: None,
            quarantines,
            clock: NodeClock::new(rate),
        }
    }

    /// A connection begins with these facts about the server. Returns the step of its clock, if
    /// any.
    ///
    /// They hold for the life of the connection, because no connection outlives the server's
    /// process.
    pub(crate) fn on_connect(&mut self, server: &ServerInfo, timing: Timing) -> Option<Duration> {
        let known = self.run_id.is_some();
        let shown = server.record_reply.as_ref();
        if server.run_id.is_some() && server.run_id == self.run_id {
            // The same process all along. It may have been emptied.
            let stepped = self.on_time(server.time, timing);
            if let Some(shown) = shown {
                self.on_record(shown, timing);
            }
            return stepped;
        }
        self.run_id.clone_from(&server.run_id);
        self.met = None;
        self.own_record = None;
        // Another process, perhaps on another machine.
        self.clock.seen = None;
        let _ = self.on_time(server.time, timing);
        let length = self.length?;
        let restarted = if server.run_id.is_none() {
            Some(QuarantineReason::Unverifiable)
        } else {
            // By our own clock: the server's may have been stepped.
            (known || shown.is_none()).then_some(QuarantineReason::Restarted)
        };
        if let Some(why) = restarted {
            let began = QuarantineStart::now(timing.answered.tick, why);
            self.quarantines.begin(began, length);
        }
        if let Some(shown) = shown {
            let why = match shown.record {
                Record::Missing | Record::KeptFromNothing => QuarantineReason::New,
                _ => QuarantineReason::Restarted,
            };
            self.apply_record(shown, restarted.unwrap_or(why), timing);
        }
        self.met = Some(timing.answered.tick);
        None
    }

    /// A sync on a connection.
    ///
    /// The server counts by its own clock. So our own observations stay, and a sync can only
    /// lengthen a quarantine.
    ///
    /// RACE: T1, this client, has synced the record; T2 gets a lock; T3 swaps the data for others,
    /// where T4 was the only client for long. Their record is old and shows nothing of T2.
    /// Therefore a record that did not grow out of the last one begins a quarantine now, whatever
    /// its age.
    pub(crate) fn on_record(&mut self, shown: &RecordReply, timing: Timing) {
        let mut shown = shown.clone();
        let mut versions = shown.versions.split(' ');
        let is_other = self
            .own_record
            .is_some_and(|own_record| versions.all(|it| it.as_bytes() != own_record.0));
        if is_other && shown.record.is_older() {
            shown.record = Record::Another;
            shown.served = Duration::ZERO;
        }
        let quarantined = self
            .quarantine_remaining(VoteKind::Grant, timing.answered.tick)
            .is_some();
        let why = match (shown.record, self.quarantines.why()) {
            // It is quarantined already for a known reason. It is not new: an operator could vouch
            // for a new one.
            (Record::Kept, Some(why)) if quarantined && why != QuarantineReason::New => why,
            (Record::Another | Record::Kept, _) => QuarantineReason::Restarted,
            (Record::Missing, _) if self.own_record.is_some() => QuarantineReason::Emptied,
            // The known reason.
            (_, why) => why.unwrap_or(QuarantineReason::Emptied),
        };
        self.apply_record(&shown, why, timing);
    }

    fn apply_record(&mut self, shown: &RecordReply, why: QuarantineReason, timing: Timing) {
        if shown.is_stored {
            self.own_record = Some(shown.record_version);
        }
        let Some(length) = self.length else { return };
        if matches!(shown.record, Record::Vouched | Record::Off) {
            // Nothing was lost before our first sync. Losses that we observed remain.
            if self.quarantines.why() == Some(QuarantineReason::New) {
                self.quarantines = Quarantines::default();
            }
            return;
        }
        let began = QuarantineStart {
            seen: timing.answered.tick,
            served: shown.served,
            why,
        };
        // A known quarantine does not begin again when it turns out to be longer.
        let is_known = self.met.is_some_and(|met| {
            shown.record.is_older()
                && timing.asked.tick.saturating_duration_since(met)
                    <= shown.served.saturating_add(GRAIN)
        });
        if is_known {
            self.quarantines.lengthen(began);
        } else {
            self.quarantines.begin(began, length);
        }
    }

    /// An answer shows the server's time. Returns the step of its clock forward, if any.
    pub(crate) fn on_time(&mut self, time: Option<u64>, timing: Timing) -> Option<Duration> {
        let step = step(&mut self.clock, time?, timing)?;
        self.quarantines.step(timing.answered.tick);
        Some(step)
    }

    /// Whether that time would show a clock step.
    pub(crate) fn would_step(&self, time: u64, timing: Timing) -> bool {
        let mut clock = self.clock;
        step(&mut clock, time, timing).is_some()
    }

    /// Time left of its quarantine for a command sent at `asked`, and why: see
    /// [`Quarantines::quarantine_remaining`].
    pub(crate) fn quarantine_remaining(
        &self,
        vote_kind: VoteKind,
        asked: Tick,
    ) -> Option<(Duration, QuarantineReason)> {
        self.quarantines
            .quarantine_remaining(vote_kind, asked, self.length)
    }
}

/// The clock step shown by this time.
fn step(clock: &mut NodeClock, time: u64, timing: Timing) -> Option<Duration> {
    let asked = timing.asked.moment.boot_micros();
    let answered = timing.answered.moment.boot_micros();
    clock.on_answer(time, asked, answered)
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::arithmetic_side_effects,
        reason = "a test may overflow: it fails then"
    )]

    use super::*;
    use crate::time::Moment;

    const LENGTH: Duration = Duration::from_secs(10);
    const WALL: u64 = 1_700_000_000;

    /// Times at `second`, in which an answer takes no time; the wall clock here agrees with the one
    /// of the nodes.
    fn at(start: Tick, second: u64) -> Timing {
        let now = at_once(start, second, second);
        Timing {
            asked: now,
            answered: now,
        }
    }

    /// The clock for waiting at one second, the one for leases at another.
    fn at_once(start: Tick, waiting: u64, leases: u64) -> Now {
        Now {
            tick: start + Duration::from_secs(waiting),
            moment: moment(leases),
        }
    }

    fn moment(second: u64) -> Moment {
        Moment::at(
            Duration::from_secs(500 + second),
            Duration::from_secs(WALL + second),
        )
    }

    /// What the server says about itself at the beginning of a connection.
    fn server(run_id: &str, second: u64) -> ServerInfo {
        let run_id = Some(run_id.to_owned());
        let time = Some((WALL + second) * 1_000_000);
        ServerInfo {
            run_id,
            time,
            ..ServerInfo::default()
        }
    }

    fn shown(served: u64, record: Record) -> RecordReply {
        RecordReply::of(record, Duration::from_secs(served))
    }

    /// What is known of one server, and when that began.
    struct Of {
        eligibility: Eligibility,
        start: Tick,
    }

    impl Of {
        fn new() -> Of {
            Of {
                eligibility: Eligibility::new(Some(LENGTH), 0.01),
                start: crate::time::tick(),
            }
        }

        /// A server that has kept everything for long.
        fn old() -> Of {
            let mut of = Of::new();
            assert_eq!(of.meet(server("a", 0), 500, Record::Kept, 0), None);
            of
        }

        fn meet(
            &mut self,
            server: ServerInfo,
            served: u64,
            record: Record,
            second: u64,
        ) -> Option<Duration> {
            let record_reply = Some(shown(served, record));
            self.eligibility.on_connect(
                &ServerInfo {
                    record_reply,
                    ..server
                },
                at(self.start, second),
            )
        }

        fn sync_record(&mut self, served: u64, record: Record, second: u64) {
            self.eligibility
                .on_record(&shown(served, record), at(self.start, second));
        }

        /// How many seconds of its quarantine are left, for grants and for extensions.
        fn quarantine_remaining(&self, second: u64) -> [u64; 2] {
            let asked = at(self.start, second).asked.tick;
            [VoteKind::Grant, VoteKind::Extension].map(|it| {
                self.eligibility
                    .quarantine_remaining(it, asked)
                    .map_or(0, |it| it.0.as_secs())
            })
        }

        fn why(&self, second: u64) -> Option<QuarantineReason> {
            self.eligibility
                .quarantine_remaining(VoteKind::Grant, at(self.start, second).asked.tick)
                .map(|it| it.1)
        }
    }

    #[test]
    fn b6_a_server_with_a_young_record_is_quarantined_until_locks_expire() {
        let mut of = Of::new();
        of.meet(server("a", 0), 3, Record::KeptFromNothing, 0);
        assert_eq!(
            (
                of.quarantine_remaining(0),
                of.quarantine_remaining(6),
                of.quarantine_remaining(7)
            ),
            ([7; 2], [1; 2], [0; 2])
        );
    }

    #[test]
    fn r6_extensions_do_not_count_either_after_a_restart_but_after_a_step_they_do() {
        let mut of = Of::new();
        of.meet(server("a", 0), 3, Record::Kept, 0);
        assert_eq!(
            (of.quarantine_remaining(0), of.quarantine_remaining(7)),
            ([7; 2], [0; 2])
        );

        let by = of
            .eligibility
            .on_time(Some((WALL + 50) * 1_000_000), at(of.start, 30));
        assert!(by.is_some());
        assert_eq!(
            (of.quarantine_remaining(30), of.why(30)),
            ([10, 0], Some(QuarantineReason::ClockStep))
        );
        let may_set = |second| {
            of.eligibility
                .quarantines
                .may_set(at(of.start, second).asked.tick, Some(LENGTH))
        };
        assert!(!may_set(39) && may_set(40));
    }

    #[test]
    fn b6_an_observed_restart_counts_by_the_local_clock() {
        for record in [
            Record::Kept,
            Record::Another,
            Record::Vouched,
            Record::Missing,
        ] {
            let mut of = Of::old();
            of.meet(server("b", 20), 500, record, 20);
            assert_eq!(
                (of.quarantine_remaining(20), of.quarantine_remaining(30)),
                ([10; 2], [0; 2]),
                "{record:?}"
            );
            assert_eq!(
                of.why(20),
                Some(QuarantineReason::Restarted),
                "{record:?}: we have known another"
            );
        }
    }

    #[test]
    fn a_connection_that_broke_is_no_restart() {
        let mut of = Of::new();
        of.meet(server("a", 0), 3, Record::Kept, 0);
        assert_eq!(of.meet(server("a", 2), 5, Record::Kept, 2), None);
        assert_eq!(
            of.quarantine_remaining(2),
            [5; 2],
            "nor does it end the quarantine"
        );
    }

    #[test]
    fn b6_a_server_without_a_run_id_is_quarantined_on_each_connection() {
        let mut of = Of::new();
        let mute = || ServerInfo {
            run_id: None,
            ..server("", 0)
        };
        for second in [0, 60] {
            of.meet(mute(), 500, Record::Kept, second);
            assert_eq!(
                (of.quarantine_remaining(second), of.why(second)),
                ([10; 2], Some(QuarantineReason::Unverifiable))
            );
        }
    }

    #[test]
    fn c4_a_forward_clock_step_quarantines_as_data_loss_does() {
        let mut of = Of::old();
        let by = of
            .eligibility
            .on_time(Some((WALL + 25) * 1_000_000), at(of.start, 5));
        assert_eq!(by, Some(Duration::from_secs(20)));
        assert_eq!(
            (
                of.quarantine_remaining(5)[0],
                of.quarantine_remaining(15)[0]
            ),
            (10, 0)
        );

        let back = of
            .eligibility
            .on_time(Some((WALL + 16) * 1_000_000), at(of.start, 16));
        assert_eq!(
            (back, of.quarantine_remaining(16)[0]),
            (None, 0),
            "a step back endangers nobody"
        );
    }

    #[test]
    fn another_process_has_another_clock() {
        let mut of = Of::old();
        let step = of.meet(server("b", 60), 0, Record::Another, 5);
        assert_eq!((step, of.why(5)), (None, Some(QuarantineReason::Restarted)));
    }

    #[test]
    fn a_known_quarantine_goes_on_with_its_reason_and_a_later_one_has_its_own() {
        let mut of = Of::old();
        let mut sync = |served, record, second| {
            of.sync_record(served, record, second);
            (of.quarantine_remaining(second), of.why(second))
        };
        // It was emptied, as the next sync shows. Synced a while later it shows the same.
        let emptied = Some(QuarantineReason::Emptied);
        assert_eq!(sync(0, Record::Missing, 20), ([10; 2], emptied));
        assert_eq!(sync(5, Record::Kept, 25), ([5; 2], emptied));
        assert_eq!(sync(8, Record::Kept, 28), ([2; 2], emptied));

        assert_eq!(sync(2, Record::Kept, 29), ([8; 2], emptied));
        let restarted = Some(QuarantineReason::Restarted);
        assert_eq!(sync(3, Record::Kept, 50), ([7; 2], restarted));
    }

    #[test]
    fn h16_a_server_with_a_young_record_is_quarantined() {
        for (record, served) in [
            (Record::Another, 0),
            (Record::Missing, 0),
            (Record::Kept, 4),
        ] {
            let mut of = Of::new();
            of.meet(server("a", 0), served, record, 0);
            assert_eq!(
                of.quarantine_remaining(0),
                [10 - served; 2],
                "nor do extensions count"
            );
        }
        for record in [
            Record::Missing,
            Record::Another,
            Record::Kept,
            Record::KeptFromNothing,
        ] {
            let mut of = Of::new();
            assert_eq!(of.meet(server("a", 0), 10, record, 0), None, "{record:?}");
            assert_eq!(of.quarantine_remaining(0), [0; 2], "{record:?}");
        }
    }

    #[test]
    fn a_server_without_a_sign_of_earlier_use_is_new() {
        let at_once = |served, record| {
            let mut of = Of::new();
            of.meet(server("a", 0), served, record, 0);
            of.why(0)
        };
        assert_eq!(at_once(0, Record::Missing), Some(QuarantineReason::New));
        assert_eq!(
            at_once(3, Record::KeptFromNothing),
            Some(QuarantineReason::New)
        );
        assert_eq!(
            at_once(0, Record::Another),
            Some(QuarantineReason::Restarted)
        );
        assert_eq!(at_once(3, Record::Kept), Some(QuarantineReason::Restarted));

        let mut of = Of::old();
        of.meet(server("a", 20), 0, Record::Missing, 20);
        assert_eq!(
            of.why(20),
            Some(QuarantineReason::Emptied),
            "we have known it with data"
        );
    }

    /// Until a lock is asked for a server is only looked at, and nothing is stored there.
    #[test]
    fn an_inspection_leaves_a_server_new() {
        let mut of = Of::new();
        let look = RecordReply {
            is_stored: false,
            ..shown(0, Record::Missing)
        };
        of.eligibility.on_connect(
            &ServerInfo {
                record_reply: Some(look),
                ..server("a", 0)
            },
            at(of.start, 0),
        );
        of.sync_record(0, Record::Missing, 5);
        assert_eq!(
            (of.why(5), of.quarantine_remaining(5)),
            (Some(QuarantineReason::New), [10; 2]),
            "it begins when something is stored"
        );
        of.sync_record(0, Record::Missing, 6);
        assert_eq!(of.why(6), Some(QuarantineReason::Emptied));
    }

    #[test]
    fn b6_a_vouched_server_votes_at_once_unless_its_record_changed() {
        let mut of = Of::new();
        assert_eq!(of.meet(server("a", 0), 0, Record::Vouched, 0), None);
        assert_eq!(of.quarantine_remaining(0), [0; 2]);
        // While we wait.
        for (record, left) in [(Record::Missing, 0), (Record::Another, 9)] {
            let mut of = Of::new();
            of.meet(server("a", 0), 0, record, 0);
            of.sync_record(0, Record::Vouched, 1);
            assert_eq!(of.quarantine_remaining(1), [left; 2]);
        }
    }

    #[test]
    fn h15_a_longer_quarantine_found_later_applies_and_ends_no_hold() {
        let mut of = Of::new();
        of.meet(server("a", 0), 0, Record::Missing, 0);
        assert_eq!(of.quarantine_remaining(11), [0; 2]);

        of.eligibility.length = Some(3 * LENGTH);
        // On another connection, or on the same one.
        assert_eq!(of.meet(server("a", 12), 12, Record::Kept, 12), None);
        of.sync_record(13, Record::Kept, 13);
        assert_eq!(
            of.quarantine_remaining(13),
            [17, 0],
            "nobody else gets a lock there, and nobody loses one"
        );

        of.eligibility.length = Some(LENGTH);
        assert_eq!(
            of.quarantine_remaining(13),
            [0; 2],
            "nobody needs it any more"
        );
    }

    #[test]
    fn b6_a_server_emptied_since_the_last_login_is_quarantined() {
        for (record, served) in [(Record::Missing, 0), (Record::Kept, 3)] {
            let mut of = Of::old();
            of.meet(server("a", 60), served, record, 60);
            assert_eq!(of.quarantine_remaining(60), [10 - served; 2]);
        }
    }

    /// However old the data are of which it tells: it may have been swapped a moment ago.
    #[test]
    fn h17_a_record_that_did_not_grow_out_of_the_last_one_is_of_other_data() {
        let of_version = |record, version: &str, versions: &str, is_stored| {
            let record_version = RecordVersion(version.as_bytes().try_into().unwrap());
            RecordReply {
                record_version,
                versions: versions.into(),
                is_stored,
                ..shown(500, record)
            }
        };
        let [a, b, c] = ["000000000000001", "000000000000002", "000000000000003"];
        let grown = format!("{b} {a}");
        let olds = [Record::Kept, Record::KeptFromNothing, Record::Vouched];
        for record in olds {
            for reconnects in [false, true] {
                let mut of = Of::new();
                let mut sync = |version: &str, versions: &str, kept, second| {
                    let shown = of_version(record, version, versions, kept);
                    let timing = at(of.start, second);
                    if reconnects {
                        let record_reply = Some(shown);
                        let server = server("a", second);
                        of.eligibility.on_connect(
                            &ServerInfo {
                                record_reply,
                                ..server
                            },
                            timing,
                        );
                    } else {
                        of.eligibility.on_record(&shown, timing);
                    }
                    let left = of
                        .eligibility
                        .quarantine_remaining(VoteKind::Extension, timing.asked.tick);
                    left.map_or(0, |it| it.0.as_secs())
                };
                // Nothing is known of the first one.
                assert_eq!(sync(a, a, true, 0), 0, "{record:?}");
                assert_eq!(sync(b, &grown, true, 20), 0, "{record:?}");
                assert_eq!(sync(b, &grown, true, 40), 0, "{record:?}");

                assert_eq!(sync(c, c, false, 60), 10, "{record:?}");
                assert_eq!(sync(c, c, true, 61), 10, "{record:?}: only looked at");
                assert_eq!(sync(c, c, true, 64), 7, "{record:?}");
                assert_eq!(sync(b, &grown, true, 80), 10, "{record:?}: back");
                assert_eq!(sync(a, a, true, 100), 10, "{record:?}: an older copy");
            }
        }
    }

    #[test]
    fn without_quarantine_all_servers_vote_at_once() {
        let mut of = Of {
            eligibility: Eligibility::new(None, 0.01),
            start: crate::time::tick(),
        };
        assert_eq!(of.meet(server("a", 0), 0, Record::Off, 0), None);
        assert_eq!(of.meet(server("b", 1), 0, Record::Off, 1), None);
        let by = of
            .eligibility
            .on_time(Some((WALL + 25) * 1_000_000), at(of.start, 5));
        assert!(by.is_some(), "steps are told all the same");
        assert_eq!(of.quarantine_remaining(5), [0; 2]);
    }

    #[test]
    fn h14_a_suspend_between_question_and_answer_is_no_step_of_the_nodes_clock() {
        // The node answers before the suspend, and that is read after it; or it is asked before,
        // and answers after.
        for answered_by in [1, 1 + 3_600] {
            let mut of = Of::old();
            let start = of.start;
            // The clock for waiting stands still for an hour.
            let over = Timing {
                asked: at_once(start, 1, 1),
                answered: at_once(start, 1, 1 + 3_600),
            };
            let first = of
                .eligibility
                .on_time(Some((WALL + answered_by) * 1_000_000), over);
            let next = at_once(start, 2, 2 + 3_600);
            let next = Timing {
                asked: next,
                answered: next,
            };
            let second = of
                .eligibility
                .on_time(Some((WALL + 2 + 3_600) * 1_000_000), next);
            assert_eq!(
                (first, second, of.quarantine_remaining(2)),
                (None, None, [0; 2])
            );

            // And a step is still seen.
            let next = at_once(start, 3, 3 + 3_600);
            let next = Timing {
                asked: next,
                answered: next,
            };
            let stepped = of
                .eligibility
                .on_time(Some((WALL + 9 + 3_600) * 1_000_000), next);
            assert!(stepped.is_some());
        }
    }
}
