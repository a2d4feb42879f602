//! Whether a node may vote: not before everything that it can have forgotten has expired.
//!
//! A server that lost its memory grants locks that others hold. What it has forgotten was granted before that, so it
//! has expired, or was extended on a majority without that server, once the longest ttl in use has passed. Until then
//! its grants do not count.

mod span;

use std::time::Duration;

use crate::error::Quarantine;
use crate::logic::clock::{ClockStep, NodeClock};
pub(crate) use crate::logic::eligibility::span::QuarantineSpan;
use crate::time::{Moment, Tick};

/// Uptime comes in whole seconds, and is read from a clock that was read before.
const UPTIME_GRAIN: Duration = Duration::from_secs(1);
/// A node's uptime is the difference of two readings of its wall clock. It is believed if that clock is right by now, as
/// far as one can tell from here.
const CLOCKS_AGREE: u64 = 3_600 * 1_000_000;

/// What a server says about itself at the beginning of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Introduction<'a> {
    /// Changes with every start of the process; `None` if it does not tell.
    pub(crate) run_id: Option<&'a str>,
    /// Seconds. Negative if its clock was set back.
    pub(crate) uptime: Option<i64>,
    /// Microseconds since 1970.
    pub(crate) time: Option<u64>,
}

/// What a node says about how long it has been keeping what it was told: see `scripts/greet.lua`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Memory {
    /// For how long its process has been keeping everything, by its own clock.
    pub(crate) served: Duration,
    pub(crate) since: Since,
}

/// What the node's memory began with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Since {
    /// It had begun before we asked, with what another process had kept.
    Before,
    /// It had begun before we asked, with nothing.
    BeforeFromNothing,
    /// It began when we asked: there was nothing.
    Nothing,
    /// It began when we asked: with what another process had kept.
    Another,
    /// Somebody who knows has said that nothing was lost, whenever it began.
    Vouched,
}

impl Since {
    fn is_before(self) -> bool {
        matches!(self, Since::Before | Since::BeforeFromNothing | Since::Vouched)
    }
}

/// When something was asked, or before, and when it was answered, or after: each on the clock for waiting and on the one
/// for leases. Neither follows from the other: the clock for waiting stands still while the machine is suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) asked: Tick,
    pub(crate) asked_at: Moment,
    pub(crate) answered: Tick,
    pub(crate) answered_at: Moment,
}

/// What an answer shows about a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Change {
    /// Its process has been started, lately or for all that is known, so it has to be quarantined.
    Restarted,
    /// It is new, or has lost everything, and has to be quarantined.
    Empty,
    /// It has what another process kept, or an older one of its own, and has to be quarantined.
    Another,
    /// Its clock was stepped. If that was forward, it has to be quarantined.
    Stepped(ClockStep),
}

/// What is known of one node, across its connections.
#[derive(Clone, Debug)]
pub(crate) struct Eligibility {
    /// For how long a node is quarantined; `None` if that is switched off. See [`Eligibility::lasts`].
    quarantine: Option<Duration>,
    run_id: Option<String>,
    /// When we first heard of that process.
    met: Option<Tick>,
    /// What its process, or its memory, has to be quarantined for.
    restarted: Option<QuarantineSpan>,
    /// Until when its extensions do not count: as that quarantine was known to last when we heard of it.
    restarted_until: Option<Tick>,
    /// What a step of its clock has.
    stepped: Option<QuarantineSpan>,
    /// Until when it said itself that it is quarantined, for a lock that it does not know.
    told_until: Option<Tick>,
    clock: NodeClock,
}

impl Eligibility {
    pub(crate) fn new(quarantine: Option<Duration>, rate: f64) -> Eligibility {
        Eligibility {
            quarantine,
            run_id: None,
            met: None,
            restarted: None,
            restarted_until: None,
            stepped: None,
            told_until: None,
            clock: NodeClock::new(rate),
        }
    }

    /// Quarantines last for so long, those that have begun already too: it has turned out that somebody's ttl is longer, or
    /// that nobody's is any more.
    pub(crate) fn lasts(&mut self, quarantine: Option<Duration>) {
        self.quarantine = quarantine;
    }

    /// A connection begins. `memory`: what the node said on it, if it was asked.
    ///
    /// It holds for the life of the connection, because no connection outlives the process at its end.
    pub(crate) fn on_connect(
        &mut self,
        intro: Introduction<'_>,
        memory: Option<Memory>,
        times: Times,
    ) -> Option<Change> {
        let known = self.run_id.is_some();
        if intro.run_id.is_some() && intro.run_id == self.run_id.as_deref() {
            // The same process: it has been there all the time. It may have been emptied.
            let stepped = self.on_time(intro.time, times);
            let begun = memory.and_then(|it| self.on_memory(it, times).filter(|_| !it.since.is_before()));
            return begun.or(stepped);
        }
        self.run_id = intro.run_id.map(str::to_owned);
        self.met = None;
        // Another process, on another machine perhaps.
        self.clock.forget();
        let _ = self.on_time(intro.time, times);
        let length = self.quarantine?;
        // A restart that we have seen ourselves is counted by our own clock: an uptime that is too long, because the
        // clock there was stepped after the start, must not shorten it. Likewise where nothing can be believed.
        let served = if known { None } else { trusted_uptime(intro, times.answered_at.wall_micros()) };
        let since = memory.map(|it| it.since);
        let why = match since {
            _ if intro.run_id.is_none() => Quarantine::Unverifiable,
            Some(Since::Nothing | Since::BeforeFromNothing) if !known => Quarantine::New,
            _ => Quarantine::Restarted,
        };
        let quarantine = QuarantineSpan::from(times.answered, why);
        let quarantine = match served {
            // It knows better than its uptime, because it was told.
            Some(_) if since == Some(Since::Vouched) => QuarantineSpan { served: Duration::MAX, ..quarantine },
            Some(served) => QuarantineSpan { served, extra: UPTIME_GRAIN, ..quarantine },
            None => quarantine,
        };
        self.begin(quarantine, length);
        let restarted = (!quarantine.left(length).is_zero()).then_some(Change::Restarted);
        let begun = memory.and_then(|it| self.remember(it, why, times));
        self.met = Some(times.answered);
        begun.or(restarted)
    }

    fn begin(&mut self, quarantine: QuarantineSpan, length: Duration) {
        self.restarted = Some(quarantine.or_later(self.restarted));
        self.restarted_until = self.restarted_until.max(quarantine.until(length));
    }

    /// The node says for how long it has been keeping what it was told.
    ///
    /// By its own clock, and whoever asked it first. So what we have seen ourselves stays, and this can only lengthen it.
    pub(crate) fn on_memory(&mut self, memory: Memory, times: Times) -> Option<Change> {
        let why = match memory.since {
            // It is quarantined already, and we know why. It is not new: that would allow an operator to vouch for it.
            Since::Before if !self.quarantine_left(times.answered).is_zero() => match self.why(times.answered) {
                Quarantine::New => Quarantine::Restarted,
                why => why,
            },
            Since::Another | Since::Before => Quarantine::Restarted,
            Since::Nothing => Quarantine::Emptied,
            // As we know it.
            Since::BeforeFromNothing | Since::Vouched => self.restarted.map_or(Quarantine::Emptied, |it| it.why),
        };
        self.remember(memory, why, times)
    }

    fn remember(&mut self, memory: Memory, why: Quarantine, times: Times) -> Option<Change> {
        let length = self.quarantine?;
        if memory.since == Since::Vouched {
            // Nothing was lost, of what is new to us. What we have seen ourselves to be lost is.
            if self.restarted.is_some_and(|it| it.why == Quarantine::New) {
                (self.restarted, self.restarted_until, self.told_until) = (None, None, None);
            }
            return None;
        }
        let known_until = self.votes_from();
        let quarantine = QuarantineSpan { served: memory.served, ..QuarantineSpan::from(times.answered, why) };
        // What we knew already does not begin again because it turns out to last longer.
        let is_known = self.met.is_some_and(|met| {
            let since_then = times.asked.saturating_duration_since(met);
            memory.since.is_before() && since_then <= memory.served.saturating_add(UPTIME_GRAIN)
        });
        if is_known {
            self.restarted = Some(quarantine.or_later(self.restarted));
        } else {
            self.begin(quarantine, length);
        }
        match memory.since {
            _ if quarantine.left(length).is_zero() => None,
            // It is asked again and again, and quarantined for as long as we knew.
            since if since.is_before() && !self.is_quarantined_for_longer_than(known_until) => None,
            Since::Before | Since::BeforeFromNothing | Since::Vouched => Some(Change::Restarted),
            Since::Nothing => Some(Change::Empty),
            Since::Another => Some(Change::Another),
        }
    }

    /// Whether it is quarantined for more than the grain longer than until then.
    fn is_quarantined_for_longer_than(&self, known_until: Option<Tick>) -> bool {
        let until = self.votes_from();
        known_until.map_or(until.is_some(), |it| it.checked_add(UPTIME_GRAIN) < until)
    }

    /// An answer shows the node's time.
    pub(crate) fn on_time(&mut self, time: Option<u64>, times: Times) -> Option<Change> {
        let (asked, answered) = (times.asked_at.boot_micros(), times.answered_at.boot_micros());
        let step = self.clock.on_answer(time?, asked, answered)?;
        // After a step back keys live longer than they should: that delays others, and endangers nobody.
        if matches!(step, ClockStep::Forward(_)) {
            self.stepped = Some(QuarantineSpan::from(times.answered, Quarantine::ClockStep));
        }
        Some(Change::Stepped(step))
    }

    /// The node says itself for how long it has to be quarantined.
    pub(crate) fn quarantine(&mut self, left: Duration, now: Tick) {
        self.told_until = self.told_until.max(now.checked_add(left));
    }

    /// How long a grant is off that counts, for one that was asked for at `asked`: zero if it counts.
    ///
    /// From the time of asking, because the node may have executed the command at any time after it.
    pub(crate) fn quarantine_left(&self, asked: Tick) -> Duration {
        self.votes_from().map_or(Duration::ZERO, |it| it.saturating_duration_since(asked))
    }

    /// Why it is quarantined now, if it is.
    pub(crate) fn why(&self, now: Tick) -> Quarantine {
        let lasts = |quarantine: Option<QuarantineSpan>| self.until(quarantine).is_some_and(|it| now < it);
        match self.restarted {
            Some(it) if lasts(self.restarted) => it.why,
            _ if lasts(self.stepped) => Quarantine::ClockStep,
            _ => Quarantine::Emptied,
        }
    }

    /// How long an extension is off that counts, like [`Eligibility::quarantine_left`].
    ///
    /// That somebody else needs a longer quarantine than we knew does not make a node quarantined for those who hold a lock there:
    /// it would end their holds, and keep nobody from anything.
    ///
    /// After a step of its clock they count: a key that is ours then was ours before, because nothing sets it again there
    /// before the end of [`Eligibility::stepped`].
    pub(crate) fn restarted_for(&self, asked: Tick) -> Duration {
        self.restarted_until.map_or(Duration::ZERO, |it| it.saturating_duration_since(asked))
    }

    /// The quarantine that a restart has brought.
    pub(crate) fn restarted(&self) -> Option<QuarantineSpan> {
        self.restarted
    }

    /// The quarantine that a step of its clock has brought: until its end no lock may be healed there.
    pub(crate) fn stepped(&self) -> Option<QuarantineSpan> {
        self.stepped
    }

    /// Until when it said itself that it is quarantined.
    pub(crate) fn told_until(&self) -> Option<Tick> {
        self.told_until
    }

    fn until(&self, quarantine: Option<QuarantineSpan>) -> Option<Tick> {
        quarantine?.until(self.quarantine?)
    }

    /// When grants count again; `None` if they always did.
    fn votes_from(&self) -> Option<Tick> {
        self.until(self.restarted).max(self.until(self.stepped)).max(self.told_until)
    }

    /// By how much the node's clock is ahead of the one that [`Moment::boot_micros`] reads: at least and at most.
    pub(crate) fn clock_offset(&self) -> Option<(i64, i64)> {
        self.clock.offset()
    }
}

fn trusted_uptime(intro: Introduction<'_>, wall: u64) -> Option<Duration> {
    intro.run_id?;
    let agree = intro.time?.abs_diff(wall) <= CLOCKS_AGREE;
    let uptime = u64::try_from(intro.uptime?).ok()?;
    agree.then_some(Duration::from_secs(uptime))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::arithmetic_side_effects, reason = "a test may overflow: it fails then")]

    use super::*;

    const QUARANTINE: Duration = Duration::from_secs(10);
    const WALL: u64 = 1_700_000_000;

    /// Times at `second`, in which an answer takes no time; the wall clock here agrees with the one of the nodes.
    fn at(start: Tick, second: u64) -> Times {
        let (tick, moment) = (start + Duration::from_secs(second), moment(second));
        Times { asked: tick, asked_at: moment, answered: tick, answered_at: moment }
    }

    fn moment(second: u64) -> Moment {
        Moment::at(Duration::from_secs(500 + second), Duration::from_secs(WALL + second))
    }

    fn intro(run_id: &str, uptime: i64, second: u64) -> Introduction<'_> {
        Introduction { run_id: Some(run_id), uptime: Some(uptime), time: Some((WALL + second) * 1_000_000) }
    }

    fn eligibility() -> (Eligibility, Tick) {
        (Eligibility::new(Some(QUARANTINE), 0.01), crate::time::tick())
    }

    fn left(eligibility: &Eligibility, start: Tick, second: u64) -> u64 {
        eligibility.quarantine_left(at(start, second).asked).as_secs()
    }

    #[test]
    fn b6_a_server_that_was_started_lately_is_silent_until_what_it_forgot_has_expired() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 4, 0), None, at(start, 0)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 0), 7, "ten seconds and one for the grain, less four");
        assert_eq!((left(&eligibility, start, 6), left(&eligibility, start, 7)), (1, 0));
    }

    #[test]
    fn r6_extensions_do_not_count_either_after_a_restart_but_after_a_step_they_do() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 4, 0), None, at(start, 0)), Some(Change::Restarted));
        let restarted =
            |eligibility: &Eligibility, second| eligibility.restarted_for(at(start, second).asked).as_secs();
        assert_eq!((restarted(&eligibility, 0), restarted(&eligibility, 7)), (7, 0));
        assert!(eligibility.stepped().is_none());

        eligibility.quarantine(QUARANTINE, at(start, 20).asked);
        assert_eq!(restarted(&eligibility, 20), 0, "of a canary the script of each lock knows better");
        let by = eligibility.on_time(Some((WALL + 50) * 1_000_000), at(start, 30));
        assert!(matches!(by, Some(Change::Stepped(ClockStep::Forward(_)))), "{by:?}");
        assert_eq!((restarted(&eligibility, 30), left(&eligibility, start, 30)), (0, 10));
        assert_eq!(eligibility.until(eligibility.stepped()), Some(at(start, 40).asked));
    }

    #[test]
    fn a_server_that_has_been_up_for_long_votes_at_once() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 11, 0), None, at(start, 0)), None);
        assert_eq!(left(&eligibility, start, 0), 0);
    }

    #[test]
    fn b6_a_restart_that_was_seen_is_counted_by_our_own_clock_whatever_the_uptime() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 500, 0), None, at(start, 0)), None);
        assert_eq!(eligibility.on_connect(intro("b", 500, 20), None, at(start, 20)), Some(Change::Restarted));
        assert_eq!((left(&eligibility, start, 20), left(&eligibility, start, 30)), (10, 0));
    }

    #[test]
    fn a_connection_that_broke_is_no_restart() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 4, 0), None, at(start, 0)), Some(Change::Restarted));
        assert_eq!(eligibility.on_connect(intro("a", 6, 2), None, at(start, 2)), None);
        assert_eq!(left(&eligibility, start, 2), 5, "nor does it end the quarantine");
    }

    #[test]
    fn b6_an_uptime_that_cannot_be_believed_counts_from_first_sight() {
        for unbelievable in [
            Introduction { time: None, ..intro("a", 500, 0) },
            Introduction { uptime: None, ..intro("a", 500, 0) },
            Introduction { uptime: Some(-3599), ..intro("a", 500, 0) },
            Introduction { time: Some(0), ..intro("a", 500, 0) },
            intro("a", 500, 3_601),
            Introduction { run_id: None, ..intro("a", 500, 0) },
        ] {
            let (mut eligibility, start) = eligibility();
            assert_eq!(
                eligibility.on_connect(unbelievable, None, at(start, 0)),
                Some(Change::Restarted),
                "{unbelievable:?}"
            );
            assert_eq!(left(&eligibility, start, 0), 10);
        }
    }

    #[test]
    fn b6_a_server_that_does_not_say_who_it_is_counts_from_every_connection() {
        let (mut eligibility, start) = eligibility();
        let intro = Introduction { run_id: None, uptime: None, time: None };
        assert_eq!(eligibility.on_connect(intro, None, at(start, 0)), Some(Change::Restarted));
        assert_eq!(eligibility.on_connect(intro, None, at(start, 60)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 60), 10);
    }

    #[test]
    fn c4_a_node_whose_clock_was_stepped_forward_is_as_one_that_forgot() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 500, 0), None, at(start, 0)), None);
        let by = eligibility.on_time(Some((WALL + 25) * 1_000_000), at(start, 5));
        assert_eq!(by, Some(Change::Stepped(ClockStep::Forward(Duration::from_secs(20)))));
        assert_eq!((left(&eligibility, start, 5), left(&eligibility, start, 15)), (10, 0));

        let back = eligibility.on_time(Some((WALL + 16) * 1_000_000), at(start, 16));
        assert!(matches!(back, Some(Change::Stepped(ClockStep::Back(_)))), "{back:?}");
        assert_eq!(left(&eligibility, start, 16), 0, "a step back endangers nobody");
    }

    #[test]
    fn another_process_has_another_clock() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 500, 0), None, at(start, 0)), None);
        assert_eq!(
            eligibility.on_connect(intro("b", 1, 60), None, at(start, 5)),
            Some(Change::Restarted),
            "and no step"
        );
    }

    fn memory(served: u64, since: Since) -> Option<Memory> {
        Some(Memory { served: Duration::from_secs(served), since })
    }

    #[test]
    fn that_a_node_is_silent_is_news_once_and_again_if_it_is_for_longer() {
        let ask = |eligibility: &mut Eligibility, start, second, served| {
            let news = eligibility.on_memory(memory(served, Since::Before).unwrap(), at(start, second));
            (news, eligibility.why(at(start, second).asked))
        };
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 500, 0), memory(500, Since::Before), at(start, 0)), None);
        // It was emptied, and says so when a lock is taken. Asked a while later it says the same.
        eligibility.quarantine(QUARANTINE, at(start, 20).asked);
        assert_eq!(ask(&mut eligibility, start, 25, 5), (None, Quarantine::Emptied));
        assert_eq!(ask(&mut eligibility, start, 28, 7), (None, Quarantine::Emptied));
        assert_eq!(left(&eligibility, start, 28), 3, "of what it says itself");

        assert_eq!(ask(&mut eligibility, start, 29, 2), (Some(Change::Restarted), Quarantine::Emptied));
        assert_eq!(ask(&mut eligibility, start, 50, 3), (Some(Change::Restarted), Quarantine::Restarted));
    }

    #[test]
    fn h16_a_server_that_has_been_up_for_long_is_silent_if_its_memory_is_young() {
        for (since, news) in
            [(Since::Another, Change::Another), (Since::Nothing, Change::Empty), (Since::Before, Change::Restarted)]
        {
            let (mut eligibility, start) = eligibility();
            let served = if since == Since::Before { 4 } else { 0 };
            assert_eq!(eligibility.on_connect(intro("a", 500, 0), memory(served, since), at(start, 0)), Some(news));
            assert_eq!(left(&eligibility, start, 0), 10 - served);
            assert_eq!(eligibility.restarted_for(at(start, 0).asked).as_secs(), 10 - served, "nor do extensions count");
        }
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 500, 0), memory(10, Since::Before), at(start, 0)), None);
        assert_eq!(left(&eligibility, start, 0), 0);
    }

    #[test]
    fn h16_an_old_memory_does_not_vouch_for_a_server_that_was_seen_to_restart_or_is_young() {
        let (mut eligibility, start) = eligibility();
        let old = memory(500, Since::Before);
        assert_eq!(eligibility.on_connect(intro("a", 4, 0), old, at(start, 0)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 0), 7);
        assert_eq!(eligibility.on_connect(intro("b", 500, 20), old, at(start, 20)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 20), 10);
    }

    #[test]
    fn a_server_is_new_if_nobody_knows_that_it_was_used_before() {
        let at_once = |intro: Introduction<'_>, memory| {
            let (mut eligibility, start) = eligibility();
            eligibility.on_connect(intro, memory, at(start, 0));
            eligibility.why(at(start, 0).answered)
        };
        for uptime in [0, 500] {
            assert_eq!(at_once(intro("a", uptime, 0), memory(0, Since::Nothing)), Quarantine::New);
            assert_eq!(at_once(intro("a", uptime, 0), memory(3, Since::BeforeFromNothing)), Quarantine::New);
            assert_eq!(at_once(intro("a", uptime, 0), memory(0, Since::Another)), Quarantine::Restarted);
            assert_eq!(at_once(intro("a", uptime, 0), memory(3, Since::Before)), Quarantine::Restarted);
        }
        assert_eq!(at_once(intro("a", 0, 0), memory(500, Since::Before)), Quarantine::Restarted);
        let mute = Introduction { run_id: None, ..intro("a", 0, 0) };
        assert_eq!(at_once(mute, memory(500, Since::Before)), Quarantine::Unverifiable);

        let (mut eligibility, start) = eligibility();
        eligibility.on_connect(intro("a", 500, 0), memory(500, Since::Before), at(start, 0));
        eligibility.on_connect(intro("a", 520, 20), memory(0, Since::Nothing), at(start, 20));
        assert_eq!(eligibility.why(at(start, 20).answered), Quarantine::Emptied, "we have known it with data");
        eligibility.on_connect(intro("b", 0, 40), memory(0, Since::Nothing), at(start, 40));
        assert_eq!(eligibility.why(at(start, 40).answered), Quarantine::Restarted, "we have known another");
        eligibility.on_time(Some((WALL + 100) * 1_000_000), at(start, 60));
        assert_eq!(eligibility.why(at(start, 60).answered), Quarantine::ClockStep);
    }

    #[test]
    fn b6_a_server_that_somebody_vouches_for_votes_at_once_unless_we_know_better() {
        let vouched = memory(0, Since::Vouched);
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.on_connect(intro("a", 0, 0), vouched, at(start, 0)), None);
        assert_eq!(left(&eligibility, start, 0), 0, "whatever its uptime");

        // While we wait.
        for (memory_before, left_then) in [(memory(0, Since::Nothing), 0), (memory(0, Since::Another), 10)] {
            let mut eligibility = Eligibility::new(Some(QUARANTINE), 0.01);
            eligibility.on_connect(intro("a", 0, 0), memory_before, at(start, 0));
            eligibility.quarantine(Duration::from_secs(8), at(start, 0).answered);
            eligibility.on_memory(vouched.unwrap(), at(start, 1));
            let extensions = eligibility.restarted_for(at(start, 1).asked).as_secs();
            assert_eq!((left(&eligibility, start, 1), extensions), (left_then, left_then));
        }
        // And a restart that we have seen is one.
        eligibility.on_connect(intro("b", 0, 20), vouched, at(start, 20));
        assert_eq!(left(&eligibility, start, 20), 10);
    }

    #[test]
    fn h15_a_longer_silence_that_turns_up_later_holds_for_all_that_have_begun_and_ends_no_hold() {
        let (mut eligibility, start) = eligibility();
        eligibility.on_connect(intro("a", 500, 0), memory(0, Since::Nothing), at(start, 0));
        assert_eq!((left(&eligibility, start, 11), eligibility.restarted_for(at(start, 11).asked).as_secs()), (0, 0));

        eligibility.lasts(Some(3 * QUARANTINE));
        // On another connection, or on the same one.
        let again = memory(12, Since::Before);
        assert_eq!(eligibility.on_connect(intro("a", 512, 12), again, at(start, 12)), None);
        eligibility.on_memory(memory(13, Since::Before).unwrap(), at(start, 13));
        assert_eq!(left(&eligibility, start, 13), 17, "nobody else gets a lock there");
        assert_eq!(eligibility.restarted_for(at(start, 13).asked).as_secs(), 0, "and nobody loses one");

        eligibility.lasts(Some(QUARANTINE));
        assert_eq!(left(&eligibility, start, 13), 0, "nobody needs it any more");
    }

    #[test]
    fn b6_a_server_that_was_emptied_since_we_met_it_is_silent_whoever_finds_that_out() {
        for (since, served) in [(Since::Nothing, 0), (Since::Before, 3)] {
            let (mut eligibility, start) = eligibility();
            eligibility.on_connect(intro("a", 500, 0), memory(400, Since::Before), at(start, 0));
            let news = eligibility.on_connect(intro("a", 560, 60), memory(served, since), at(start, 60));
            assert_eq!(news, (since == Since::Nothing).then_some(Change::Empty));
            assert_eq!(left(&eligibility, start, 60), 10 - served);
            assert_eq!(eligibility.restarted_for(at(start, 60).asked).as_secs(), 10 - served);
        }
    }

    #[test]
    fn without_quarantine_everybody_votes_at_once() {
        let start = crate::time::tick();
        let mut eligibility = Eligibility::new(None, 0.01);
        assert_eq!(eligibility.on_connect(intro("a", 0, 0), None, at(start, 0)), None);
        assert_eq!(eligibility.on_connect(intro("b", 0, 1), None, at(start, 1)), None);
        let by = eligibility.on_time(Some((WALL + 25) * 1_000_000), at(start, 5));
        assert!(matches!(by, Some(Change::Stepped(_))), "steps are told all the same");
        assert_eq!(left(&eligibility, start, 5), 0);
    }

    #[test]
    fn h14_a_suspend_between_question_and_answer_is_no_step_of_the_nodes_clock() {
        // The node answers before the suspend, and that is read after it; or it is asked before, and answers after.
        for answered_by in [1, 1 + 3_600] {
            let (mut eligibility, start) = eligibility();
            assert_eq!(eligibility.on_connect(intro("a", 500, 0), None, at(start, 0)), None);
            // The clock for waiting stands still for an hour.
            let over = Times { answered: at(start, 1).answered, ..at(start, 1 + 3_600) };
            let over = Times { asked: at(start, 1).asked, asked_at: moment(1), ..over };
            let first = eligibility.on_time(Some((WALL + answered_by) * 1_000_000), over);
            let next = Times { asked: at(start, 2).asked, answered: at(start, 2).answered, ..at(start, 2 + 3_600) };
            let second = eligibility.on_time(Some((WALL + 2 + 3_600) * 1_000_000), next);
            assert_eq!((first, second, left(&eligibility, start, 2)), (None, None, 0));

            // And a step is still seen.
            let next = Times { asked: at(start, 3).asked, answered: at(start, 3).answered, ..at(start, 3 + 3_600) };
            let stepped = eligibility.on_time(Some((WALL + 9 + 3_600) * 1_000_000), next);
            assert!(matches!(stepped, Some(Change::Stepped(ClockStep::Forward(_)))), "{stepped:?}");
        }
    }
}
