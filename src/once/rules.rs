//! Which run is due, and what the answers of all nodes together say of it. Pure.
//!
//! *It has run*: one node is enough. A record is written after the success, so it is always true.
//!
//! *It has not run*: a majority of the nodes must show nothing, each of which (a) has our key on it
//! and (b) has kept its data since before the period began. An earlier run has its record confirmed
//! by a majority, so the two majorities share a node Y. Y has stored the record in this period and,
//! by (b), has it still. Y stored the record while the key of the earlier run was there; by (a) our
//! key was there when Y was asked; so Y stored the record before it was asked, and shows it. The
//! model `src/tests/model/once` leaves out each of the rules and finds two runs.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::answer::{Answer, JobRecord};
use crate::error::{AcquireError, BuildProblem, NodeFailure};
use crate::ids::{FencingToken, wide};
use crate::logic::quorum;

/// Shortest period and shortest life of a record.
const LEAST: Duration = Duration::from_secs(1);
/// How early a job of a period may begin, at most.
const SLACK: Duration = Duration::from_secs(1_800);
/// Life of the record of a fire time.
const DAY: Duration = Duration::from_secs(86_400);

/// What makes two runs the same one.
#[derive(Clone, Copy)]
pub(crate) enum Plan {
    /// Periods of this length.
    Every(Duration),
    /// A scheduler's time.
    FireTime(SystemTime),
    /// The name alone, for this time.
    Keep(Duration),
}

/// One run, as seen at one time. Times are microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// Periods of different kinds are not compared: the length in milliseconds, or 0 for a fire
    /// time, or 1 for none.
    pub(crate) kind: u64,
    pub(crate) period: u64,
    /// No run of this period is recorded earlier.
    pub(crate) first: u64,
    /// Life of the record.
    pub(crate) life: u64,
    pub(crate) now: u64,
}

impl Plan {
    /// Whether it can be used.
    pub(crate) fn check(self) -> Result<(), AcquireError> {
        match self {
            Plan::Every(time) | Plan::Keep(time) if time < LEAST => {
                Err(AcquireError::BadTtl(BuildProblem::BadOption {
                    option: "once",
                    reason: "needs fire_time, or every or keep of at least 1 s".to_owned(),
                }))
            }
            _ => Ok(()),
        }
    }

    /// The run that is due `now`. `made_at`: the time of the order, if known.
    pub(crate) fn due(self, at: Duration, made_at: Option<SystemTime>, now: u64) -> Due {
        let (kind, period, first, life) = match self {
            Plan::Every(every) => {
                let [length, at, slack] = [every, at, SLACK.min(every.mul_f64(0.25))].map(micros);
                let since = now.saturating_add(slack).saturating_sub(at);
                let period = since.checked_div(length).unwrap_or_default();
                let age = since.checked_rem(length).unwrap_or_default();
                let life = length.saturating_mul(2);
                (
                    wide(every.as_millis()),
                    period,
                    now.saturating_sub(age),
                    life,
                )
            }
            Plan::FireTime(time) => {
                let time = since_1970(time);
                (
                    0,
                    time / 1_000,
                    time.saturating_sub(micros(SLACK)),
                    micros(DAY),
                )
            }
            Plan::Keep(life) => {
                let life = micros(life);
                let first = made_at.map_or(now.saturating_sub(life), since_1970);
                (1, 0, first, life)
            }
        };
        Due {
            kind,
            period,
            first,
            life,
            now,
        }
    }
}

impl Due {
    /// Whether a record of this run can have expired.
    pub(crate) fn is_over(&self) -> bool {
        self.first.saturating_add(self.life) < self.now
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    wide(time.as_micros())
}

pub(crate) fn since_1970(time: SystemTime) -> u64 {
    micros(
        time.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

/// The time that is this many microseconds after 1970, if the system has such times.
pub(crate) fn system_time(micros: u64) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Length of a note, in characters.
const NOTE_MAX: usize = 256;

/// What is known of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RunState {
    /// It has begun: an [`at_most_once`](crate::once::Job::at_most_once) run that is under way or
    /// was broken off.
    Begun,
    /// It has failed, and counts: see [`failures_count`](crate::once::Job::failures_count).
    Failed,
    /// It has succeeded.
    Done,
}

/// `begun`, `failed` or `done`.
impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// The record of a run, as the nodes store it. Times are by the clocks of the nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct RunRecord {
    /// Whether it has finished.
    pub state: RunState,
    /// The number of the period: see [`Run::period`](crate::once::Run::period).
    pub period: u64,
    /// The fencing token of the run.
    pub token: FencingToken,
    /// The begin of the run.
    pub began: SystemTime,
    /// The time of the record: the end of a finished run.
    pub at: SystemTime,
    /// See [`Due::kind`](Due::kind).
    pub(crate) kind: u64,
    /// The program: `host/process` and perhaps a [label](crate::Builder::owner_label); empty for a
    /// manager without a label.
    pub by: String,
    /// The text of [`Run::note`](crate::once::Run::note); empty without one.
    pub note: String,
}

impl RunRecord {
    /// The text on the nodes.
    pub(crate) fn text(&self) -> String {
        let RunRecord {
            state,
            period,
            token,
            began,
            at,
            kind,
            by,
            note,
        } = self;
        let [began, at] = [began, at].map(|it| since_1970(*it));
        format!("1 {state} {period} {token} {began} {at} {kind} {by} {note}")
    }

    /// Reads a record of this format.
    pub(crate) fn read(text: &str) -> Option<RunRecord> {
        let parts: Vec<_> = text.splitn(9, ' ').collect();
        let ["1", word, ref numbers @ .., by, note] = parts[..] else {
            return None;
        };
        let numbers: Vec<u64> = numbers.iter().filter_map(|it| it.parse().ok()).collect();
        let [period, token, began, at, kind] = numbers[..] else {
            return None;
        };
        Some(RunRecord {
            state: match word {
                "begun" => RunState::Begun,
                "failed" => RunState::Failed,
                "done" => RunState::Done,
                _ => return None,
            },
            period,
            token: token.into(),
            began: system_time(began),
            at: system_time(at),
            kind,
            by: by.to_owned(),
            note: note.to_owned(),
        })
    }
}

/// In short: `done by web-3/4711 with token 17`.
impl fmt::Display for RunRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} with token {}", self.state, self.by, self.token)
    }
}

/// A note as it is stored: in one line, and cut.
pub(crate) fn note(text: &str) -> String {
    let shown = |it: char| if it.is_control() { ' ' } else { it };
    text.chars().take(NOTE_MAX).map(shown).collect()
}

/// The answer of a node with a vote. Nodes that are the same server share one.
pub(crate) type NodeReply = Result<Answer, NodeFailure>;

/// What is known.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// A run of this period has finished, or one of a later period.
    Done(RunRecord),
    /// Such a run has begun and was broken off, if its lock is free.
    Begun(RunRecord),
    /// A program with other periods uses the name.
    OtherPeriod(RunRecord),
    /// No such run has finished.
    Nothing,
    /// Nobody can know.
    Unsure,
}

/// Judges the answers of all nodes to a look with the lock. Without the lock it is
/// [`Verdict::Unsure`] at best. `again`: a begun run is to be repeated.
pub(crate) fn judge(due: &Due, answers: &[NodeReply], again: bool) -> Verdict {
    if let Some(other) = records(answers).find(|it| it.kind != due.kind) {
        return Verdict::OtherPeriod(other);
    }
    let found = records(answers).filter(|it| due.period <= it.period);
    // A finished run of any token counts more than a begun one.
    match found.max_by_key(|it| (it.state != RunState::Begun, it.period, it.token)) {
        Some(found) if found.state != RunState::Begun => Verdict::Done(found),
        Some(found) if !again => Verdict::Begun(found),
        _ if jobs(answers).filter(|it| counts(it, due)).count() < quorum(answers.len()) => {
            Verdict::Unsure
        }
        _ => Verdict::Nothing,
    }
}

/// Whether a node counts for "it has not run", if it shows no run.
fn counts(job: &JobRecord, due: &Due) -> bool {
    let is_old = job.kept_since <= due.first && !due.is_over();
    job.is_ours && is_old && (job.text.is_empty() || RunRecord::read(&job.text).is_some())
}

pub(crate) fn jobs(answers: &[NodeReply]) -> impl Iterator<Item = &JobRecord> {
    answers.iter().filter_map(|it| match it {
        Ok(Answer::Job(job)) => Some(job),
        _ => None,
    })
}

fn records(answers: &[NodeReply]) -> impl Iterator<Item = RunRecord> {
    jobs(answers).filter_map(|it| RunRecord::read(&it.text))
}

/// The latest record on any node.
pub(crate) fn latest(answers: &[NodeReply]) -> Option<RunRecord> {
    records(answers).max_by_key(|it| it.at)
}

/// The median of the nodes' clocks; of an even number with ours, so that no single clock decides.
/// `None` from too few nodes, whose clocks may all be wrong.
pub(crate) fn median(answers: &[NodeReply], own: u64) -> Option<u64> {
    let mut times: Vec<_> = jobs(answers).map(|it| it.time).collect();
    if times.len() < quorum(answers.len()) {
        return None;
    }
    if times.len().is_multiple_of(2) {
        times.push(own);
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = 3_600_000_000;
    const DAY: u64 = 24 * HOUR;
    const ONCE_A_DAY: Plan = Plan::Every(Duration::from_secs(86_400));

    fn hours(hours: u64) -> Duration {
        Duration::from_secs(3_600).saturating_mul(u32::try_from(hours).unwrap())
    }

    #[test]
    fn a_run_up_to_half_an_hour_early_belongs_to_the_next_period() {
        let three = 20_000 * DAY + 3 * HOUR;
        let due = |now| ONCE_A_DAY.due(hours(3), None, now);
        for early in [0, 1, HOUR / 2] {
            assert_eq!(due(three - early).period, 20_000, "{early}");
        }
        assert_eq!(due(three - HOUR / 2 - 1).period, 19_999);
        assert_eq!(due(three + DAY - HOUR / 2 - 1).period, 20_000);
        assert_eq!(due(three).first, three - HOUR / 2);
        let short = Plan::Every(Duration::from_secs(4)).due(Duration::ZERO, None, 8_000_000);
        assert_eq!(
            (short.period, short.first, short.life),
            (2, 7_000_000, 8_000_000)
        );
    }

    #[test]
    fn every_moment_is_in_its_period_and_within_the_record_life() {
        for length in [1, 3, 7, 3_600, 86_400, 604_800] {
            for at in [0, length / 2] {
                let plan = Plan::Every(Duration::from_secs(length));
                let at = Duration::from_secs(at);
                for step in 0..2_000 {
                    let now = 20_000 * DAY + step * length * 1_000_000 / 97;
                    let due = plan.due(at, None, now);
                    assert!(due.first <= now && now < due.first + length * 1_000_000);
                    assert!(!due.is_over());
                    let next = plan.due(at, None, due.first + length * 1_000_000);
                    assert_eq!(next.period, due.period + 1);
                }
            }
        }
    }

    #[test]
    fn a_record_of_an_old_fire_time_or_of_an_old_order_may_have_expired() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(5 * DAY);
        let fired = |now| Plan::FireTime(time).due(Duration::ZERO, None, now);
        assert_eq!((fired(0).kind, fired(0).period), (0, 5 * DAY / 1_000));
        assert!(!fired(6 * DAY - HOUR / 2).is_over() && fired(6 * DAY).is_over());
        let made = |now| Plan::Keep(hours(1)).due(Duration::ZERO, Some(time), now);
        assert!(!made(5 * DAY + HOUR).is_over() && made(5 * DAY + HOUR + 1).is_over());
        let kept = Plan::Keep(hours(1)).due(Duration::ZERO, None, 5 * DAY);
        assert_eq!((kept.kind, kept.period, kept.first), (1, 0, 5 * DAY - HOUR));
        assert!(!kept.is_over());
    }

    #[test]
    fn periods_and_lives_below_a_second_are_refused_and_no_length_is_too_long() {
        let zero = Duration::ZERO;
        for plan in [zero, Duration::from_millis(999)]
            .map(Plan::Every)
            .into_iter()
            .chain([Plan::Keep(zero)])
        {
            let problem = plan.check().unwrap_err().to_string();
            assert!(problem.starts_with("once needs"), "{problem}");
        }
        assert_eq!(
            (ONCE_A_DAY.check(), Plan::Keep(hours(1)).check()),
            (Ok(()), Ok(()))
        );
        let far = Duration::MAX;
        for plan in [Plan::Every(far), Plan::Keep(far)] {
            let due = |at, now| plan.due(at, None, now);
            let _ = (due(zero, 5 * DAY).is_over(), due(far, u64::MAX).is_over());
        }
    }

    proptest! {
        #[test]
        fn a_written_record_is_read_back_and_no_text_panics(
            numbers: [u64; 3], times: [u32; 2], state in 0..3usize, said in ".{0,300}", other in ".{0,80}"
        ) {
            let [period, token, kind] = numbers;
            let record = RunRecord {
                state: [RunState::Begun, RunState::Failed, RunState::Done][state],
                period, token: token.into(), kind,
                began: system_time(times[0].into()),
                at: system_time(times[1].into()),
                by: "web-3/4711".to_owned(),
                note: note(&said),
            };
            prop_assert!(record.note.chars().count() <= NOTE_MAX && !record.text().contains(char::is_control));
            prop_assert_eq!(RunRecord::read(&record.text()), Some(record));
            let _ = RunRecord::read(&other);
        }
    }

    #[test]
    fn a_record_of_another_format_is_not_read() {
        let good = "1 done 7 9 1 2 3 web-3/4711 ";
        assert!(RunRecord::read(good).is_some());
        assert!(RunRecord::read(&good.replace(" 1 2 ", &format!(" {} 2 ", u64::MAX))).is_some());
        for bad in [
            "",
            "?",
            "2 done 7 9 1 2 3 web-3/4711 ",
            "1 over 7 9 1 2 3 - ",
            "1 done 7 9 1 2 3 -",
            "1 done 7 9 1 2 x - ",
            "1 done 7 9 1 2 - a",
        ] {
            assert_eq!(RunRecord::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_note_is_one_line_and_cut() {
        assert_eq!(note("a\r\nb\t"), "a  b ");
        assert_eq!(note(&"ü".repeat(300)), "ü".repeat(256));
    }

    fn job(kept_since: u64, text: &str) -> JobRecord {
        JobRecord {
            is_ours: true,
            kept_since,
            time: 1_000,
            text: text.to_owned(),
        }
    }

    fn answers(jobs: impl IntoIterator<Item = JobRecord>) -> Vec<NodeReply> {
        jobs.into_iter().map(|it| Ok(Answer::Job(it))).collect()
    }

    const DOWN: NodeReply = Err(NodeFailure::TimedOut);

    /// Of period 7 of kind 9, which began at 500.
    const DUE: Due = Due {
        kind: 9,
        period: 7,
        first: 500,
        life: 2_000,
        now: 1_000,
    };

    fn text(state: &str, period: u64, token: u64, kind: u64) -> String {
        format!("1 {state} {period} {token} 1 2 {kind} a/1 ")
    }

    fn judged(jobs: impl IntoIterator<Item = JobRecord>) -> Verdict {
        judge(&DUE, &answers(jobs), false)
    }

    #[test]
    fn m1_a_finished_run_on_one_node_is_enough_for_done() {
        for period in [7, 8] {
            for state in ["done", "failed"] {
                let shown = text(state, period, 5, 9);
                let record = RunRecord::read(&shown).unwrap();
                let lost = JobRecord {
                    is_ours: false,
                    ..job(900, &shown)
                };
                for begun in ["", &text("begun", 8, 6, 9)] {
                    let found = judged([job(0, begun), lost.clone(), job(0, begun)]);
                    assert_eq!(found, Verdict::Done(record.clone()));
                }
            }
        }
    }

    #[test]
    fn m2_only_a_majority_with_our_key_and_old_data_proves_no_run() {
        let old = job(500, "");
        let earlier = job(500, &text("done", 6, 5, 9));
        let not = [
            job(501, ""),
            JobRecord {
                is_ours: false,
                ..old.clone()
            },
            job(0, "2 done 7 5 1"),
            job(0, "?"),
        ];
        assert_eq!(
            judged([old.clone(), earlier.clone(), not[0].clone()]),
            Verdict::Nothing
        );
        for not in not {
            assert_eq!(judged([old.clone(), not.clone(), not]), Verdict::Unsure);
        }
        let over = Due { now: 2_501, ..DUE };
        assert_eq!(
            judge(&over, &answers([old.clone(), earlier.clone()]), false),
            Verdict::Unsure
        );
        let with_dead = [answers([old.clone(), earlier]), vec![DOWN]].concat();
        assert_eq!(judge(&DUE, &with_dead, false), Verdict::Nothing);
        let alone = [answers([old]), vec![DOWN, DOWN]].concat();
        assert_eq!(judge(&DUE, &alone, false), Verdict::Unsure);
    }

    #[test]
    fn m5_a_begun_run_needs_a_person_unless_it_is_repeatable() {
        let shown = text("begun", 7, 5, 9);
        let jobs = || [job(0, &shown), job(0, ""), job(0, "")];
        assert_eq!(
            judged(jobs()),
            Verdict::Begun(RunRecord::read(&shown).unwrap())
        );
        assert_eq!(judge(&DUE, &answers(jobs()), true), Verdict::Nothing);
        let earlier = text("begun", 6, 5, 9);
        assert_eq!(judged([0; 3].map(|it| job(it, &earlier))), Verdict::Nothing);
    }

    #[test]
    fn records_of_another_kind_are_not_compared() {
        let shown = text("done", 99, 5, 8);
        let found = judged([job(0, &text("done", 7, 5, 9)), job(0, &shown)]);
        assert_eq!(
            found,
            Verdict::OtherPeriod(RunRecord::read(&shown).unwrap())
        );
    }

    #[test]
    fn m6_one_wrong_clock_never_decides_the_time() {
        let median = |times: &[u64], down: usize, own| {
            let shown = times.iter().map(|time| JobRecord {
                time: *time,
                ..job(0, "")
            });
            let mut all = answers(shown);
            all.extend(vec![DOWN; down]);
            super::median(&all, own)
        };
        for wrong in [0, 9_000] {
            let known = median(&[wrong, 101, 100], 0, wrong).unwrap();
            assert!((100..=101).contains(&known));
            assert_eq!(median(&[101, 101], 1, wrong), Some(101));
            let known = median(&[101, wrong], 1, 100).unwrap();
            assert!((100..=101).contains(&known));
        }
        assert_eq!(median(&[7], 2, 7), None);
        assert_eq!(median(&[], 0, 7), None);
    }
}
