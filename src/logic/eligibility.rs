//! Whether a node may vote: not before everything that it can have forgotten has expired.
//!
//! A server that lost its memory grants locks that others hold. What it has forgotten was granted before that. So once the
//! longest ttl in use has passed, it has expired, or has been extended on a majority without that server. Until then the
//! node is in quarantine: its grants do not count.

mod span;

use std::time::Duration;

use crate::answer::{Canary, GreetReply, ServerInfo};
use crate::error::Quarantine;
use crate::logic::clock::{ClockStep, NodeClock};
pub(crate) use crate::logic::eligibility::span::QuarantineSpan;
use crate::time::{Moment, Tick};

/// Uptime comes in whole seconds, and is read from a clock that was read before.
const UPTIME_GRAIN: Duration = Duration::from_secs(1);
/// A node's uptime is the difference of two readings of its wall clock. It is believed if that clock is right by now, as
/// far as one can tell from here.
const CLOCKS_AGREE: u64 = 3_600 * 1_000_000;

/// Whether a node's memory began before it was asked for it, and not because it was.
fn is_older_than_the_question(canary: Canary) -> bool {
    matches!(canary, Canary::Kept | Canary::KeptFromNothing | Canary::Vouched)
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
    /// Its process was started lately, or may have been: the node is quarantined.
    Restarted,
    /// It is new, or has lost everything: it is quarantined.
    Empty,
    /// It has what another process kept, or an older copy of its own: it is quarantined.
    Another,
    /// Its clock was stepped. After a step forward it is quarantined.
    Stepped(ClockStep),
}

/// What a manager knows of one node, across its connections.
#[derive(Clone, Debug)]
pub(crate) struct Eligibility {
    /// How long a quarantine lasts; `None` if there is none. See [`Eligibility::lasts`].
    quarantine: Option<Duration>,
    run_id: Option<String>,
    /// When we first heard of that process.
    met: Option<Tick>,
    /// The quarantine after its start, or after the beginning of its memory.
    restarted: Option<QuarantineSpan>,
    /// Until when its extensions do not count: the end of that quarantine, as it was known when we heard of it.
    restarted_until: Option<Tick>,
    /// The quarantine after a step of its clock.
    stepped: Option<QuarantineSpan>,
    /// Until when it is in quarantine for a lock that it does not know, as it said itself.
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

    /// Changes how long quarantines last, those under way too: it has turned out that somebody's ttl is longer, or that
    /// nobody's is any more.
    pub(crate) fn lasts(&mut self, quarantine: Option<Duration>) {
        self.quarantine = quarantine;
    }

    /// A connection begins, and the server has said this about itself.
    ///
    /// That holds for the life of the connection, because no connection outlives the process at its other end.
    pub(crate) fn on_connect(&mut self, server: &ServerInfo, times: Times) -> Option<Change> {
        let known = self.run_id.is_some();
        if server.run_id.is_some() && server.run_id == self.run_id {
            // The same process: it has been there all the time. It may have been emptied.
            let stepped = self.on_time(server.time, times);
            let change = server
                .memory
                .and_then(|it| self.on_memory(it, times).filter(|_| !is_older_than_the_question(it.canary)));
            return change.or(stepped);
        }
        self.run_id.clone_from(&server.run_id);
        self.met = None;
        // Another process, on another machine perhaps.
        self.clock.forget();
        let _ = self.on_time(server.time, times);
        let length = self.quarantine?;
        // A restart that we have seen ourselves is counted by our own clock: an uptime that is too long, because the
        // clock there was stepped after the start, must not shorten it. The same where nothing can be believed.
        let served = if known { None } else { trusted_uptime(server, times.answered_at.wall_micros()) };
        let canary = server.memory.map(|it| it.canary);
        let why = match canary {
            _ if server.run_id.is_none() => Quarantine::Unverifiable,
            Some(Canary::Missing | Canary::KeptFromNothing) if !known => Quarantine::New,
            _ => Quarantine::Restarted,
        };
        let quarantine = QuarantineSpan::from(times.answered, why);
        let quarantine = match served {
            // An operator knows better than its uptime.
            Some(_) if canary == Some(Canary::Vouched) => QuarantineSpan { served: Duration::MAX, ..quarantine },
            Some(served) => QuarantineSpan { served, extra: UPTIME_GRAIN, ..quarantine },
            None => quarantine,
        };
        self.begin(quarantine, length);
        let restarted = (!quarantine.left(length).is_zero()).then_some(Change::Restarted);
        let change = server.memory.and_then(|it| self.remember(it, why, times));
        self.met = Some(times.answered);
        change.or(restarted)
    }

    fn begin(&mut self, quarantine: QuarantineSpan, length: Duration) {
        self.restarted = Some(quarantine.or_later(self.restarted));
        self.restarted_until = self.restarted_until.max(quarantine.until(length));
    }

    /// The node says for how long it has been keeping what it was told.
    ///
    /// It counts by its own clock, and from the time at which anybody asked it first. So what we have seen ourselves stays,
    /// and this can only lengthen a quarantine.
    pub(crate) fn on_memory(&mut self, memory: GreetReply, times: Times) -> Option<Change> {
        let why = match memory.canary {
            // It is quarantined already, and we know why. It is not new: that would allow an operator to vouch for it.
            Canary::Kept if !self.quarantine_left(times.answered).is_zero() => match self.why(times.answered) {
                Quarantine::New => Quarantine::Restarted,
                why => why,
            },
            Canary::Another | Canary::Kept => Quarantine::Restarted,
            Canary::Missing => Quarantine::Emptied,
            // The reason that we know.
            Canary::KeptFromNothing | Canary::Vouched => self.restarted.map_or(Quarantine::Emptied, |it| it.why),
        };
        self.remember(memory, why, times)
    }

    fn remember(&mut self, memory: GreetReply, why: Quarantine, times: Times) -> Option<Change> {
        let length = self.quarantine?;
        if memory.canary == Canary::Vouched {
            // Nothing was lost that was there before we came. What we have seen ourselves to be lost is lost.
            if self.restarted.is_some_and(|it| it.why == Quarantine::New) {
                (self.restarted, self.restarted_until, self.told_until) = (None, None, None);
            }
            return None;
        }
        let known_until = self.votes_from();
        let quarantine = QuarantineSpan { served: memory.served, ..QuarantineSpan::from(times.answered, why) };
        let is_older = is_older_than_the_question(memory.canary);
        // What we knew already does not begin again because it turns out to last longer.
        let is_known = self.met.is_some_and(|met| {
            let since_then = times.asked.saturating_duration_since(met);
            is_older && since_then <= memory.served.saturating_add(UPTIME_GRAIN)
        });
        if is_known {
            self.restarted = Some(quarantine.or_later(self.restarted));
        } else {
            self.begin(quarantine, length);
        }
        match memory.canary {
            _ if quarantine.left(length).is_zero() => None,
            // It is asked again and again, and its quarantine lasts as long as we knew.
            _ if is_older && !self.is_quarantined_for_longer_than(known_until) => None,
            Canary::Kept | Canary::KeptFromNothing | Canary::Vouched => Some(Change::Restarted),
            Canary::Missing => Some(Change::Empty),
            Canary::Another => Some(Change::Another),
        }
    }

    /// Whether its quarantine lasts longer than until then, by more than the grain.
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

    /// The node says itself that it is in quarantine, and for how long.
    pub(crate) fn quarantine(&mut self, left: Duration, now: Tick) {
        self.told_until = self.told_until.max(now.checked_add(left));
    }

    /// How much of its quarantine is left, for a grant that was asked for at `asked`: zero if the grant counts.
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

    /// How much of its quarantine is left for an extension, like [`Eligibility::quarantine_left`].
    ///
    /// If somebody else turns out to need a longer quarantine, that does not lengthen this: it would end the holds of those
    /// who hold a lock there, and keep nobody from anything.
    ///
    /// Nor does a step of its clock count: a key that is ours after it was ours before, because nothing sets it again there
    /// before the end of [`Eligibility::stepped`].
    pub(crate) fn restarted_for(&self, asked: Tick) -> Duration {
        self.restarted_until.map_or(Duration::ZERO, |it| it.saturating_duration_since(asked))
    }

    /// The quarantine after a restart.
    pub(crate) fn restarted(&self) -> Option<QuarantineSpan> {
        self.restarted
    }

    /// The quarantine after a step of its clock: until its end no lock may be healed there.
    pub(crate) fn stepped(&self) -> Option<QuarantineSpan> {
        self.stepped
    }

    /// Until when it is in quarantine, as it said itself.
    pub(crate) fn told_until(&self) -> Option<Tick> {
        self.told_until
    }

    fn until(&self, quarantine: Option<QuarantineSpan>) -> Option<Tick> {
        quarantine?.until(self.quarantine?)
    }

    /// When its grants count again; `None` if they always did.
    fn votes_from(&self) -> Option<Tick> {
        self.until(self.restarted).max(self.until(self.stepped)).max(self.told_until)
    }

    /// By how much the node's clock is ahead of the one that [`Moment::boot_micros`] reads: at least and at most.
    pub(crate) fn clock_offset(&self) -> Option<(i64, i64)> {
        self.clock.offset()
    }
}

fn trusted_uptime(server: &ServerInfo, wall: u64) -> Option<Duration> {
    server.run_id.as_ref()?;
    let agree = server.time?.abs_diff(wall) <= CLOCKS_AGREE;
    let uptime = u64::try_from(server.uptime?).ok()?;
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

    /// What the server says about itself at the beginning of a connection.
    fn server(run_id: &str, uptime: i64, second: u64) -> ServerInfo {
        let (run_id, time) = (Some(run_id.to_owned()), Some((WALL + second) * 1_000_000));
        ServerInfo { run_id, uptime: Some(uptime), time, ..ServerInfo::default() }
    }

    fn memory(served: u64, canary: Canary) -> Option<GreetReply> {
        Some(GreetReply { canary, served: Duration::from_secs(served), longest: 0, day: 0, kept: true, from: 0 })
    }

    impl Eligibility {
        fn met(&mut self, server: ServerInfo, memory: Option<GreetReply>, times: Times) -> Option<Change> {
            self.on_connect(&ServerInfo { memory, ..server }, times)
        }
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
        assert_eq!(eligibility.met(server("a", 4, 0), None, at(start, 0)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 0), 7, "ten seconds and one for the grain, less four");
        assert_eq!((left(&eligibility, start, 6), left(&eligibility, start, 7)), (1, 0));
    }

    #[test]
    fn r6_extensions_do_not_count_either_after_a_restart_but_after_a_step_they_do() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.met(server("a", 4, 0), None, at(start, 0)), Some(Change::Restarted));
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
        assert_eq!(eligibility.met(server("a", 11, 0), None, at(start, 0)), None);
        assert_eq!(left(&eligibility, start, 0), 0);
        let mut eligibility = Eligibility::new(Some(QUARANTINE), 0.01);
        assert_eq!(eligibility.met(server("a", 11, 3_600), None, at(start, 0)), None, "its clock is right by an hour");
    }

    #[test]
    fn b6_a_restart_that_was_seen_is_counted_by_our_own_clock_whatever_the_uptime() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.met(server("a", 500, 0), None, at(start, 0)), None);
        assert_eq!(eligibility.met(server("b", 500, 20), None, at(start, 20)), Some(Change::Restarted));
        assert_eq!((left(&eligibility, start, 20), left(&eligibility, start, 30)), (10, 0));
    }

    #[test]
    fn a_connection_that_broke_is_no_restart() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.met(server("a", 4, 0), None, at(start, 0)), Some(Change::Restarted));
        assert_eq!(eligibility.met(server("a", 6, 2), None, at(start, 2)), None);
        assert_eq!(left(&eligibility, start, 2), 5, "nor does it end the quarantine");
    }

    #[test]
    fn b6_an_uptime_that_cannot_be_believed_counts_from_first_sight() {
        for unbelievable in [
            ServerInfo { time: None, ..server("a", 500, 0) },
            ServerInfo { uptime: None, ..server("a", 500, 0) },
            ServerInfo { uptime: Some(-3599), ..server("a", 500, 0) },
            ServerInfo { time: Some(0), ..server("a", 500, 0) },
            server("a", 500, 3_601),
            ServerInfo { run_id: None, ..server("a", 500, 0) },
        ] {
            let (mut eligibility, start) = eligibility();
            assert_eq!(
                eligibility.met(unbelievable.clone(), None, at(start, 0)),
                Some(Change::Restarted),
                "{unbelievable:?}"
            );
            assert_eq!(left(&eligibility, start, 0), 10);
        }
    }

    #[test]
    fn b6_a_server_that_does_not_say_who_it_is_counts_from_every_connection() {
        let (mut eligibility, start) = eligibility();
        let server = ServerInfo::default;
        assert_eq!(eligibility.met(server(), None, at(start, 0)), Some(Change::Restarted));
        assert_eq!(eligibility.met(server(), None, at(start, 60)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 60), 10);
    }

    #[test]
    fn c4_a_node_whose_clock_was_stepped_forward_is_as_one_that_forgot() {
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.met(server("a", 500, 0), None, at(start, 0)), None);
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
        assert_eq!(eligibility.met(server("a", 500, 0), None, at(start, 0)), None);
        assert_eq!(eligibility.met(server("b", 1, 60), None, at(start, 5)), Some(Change::Restarted), "and no step");
    }

    #[test]
    fn that_a_node_is_silent_is_news_once_and_again_if_it_is_for_longer() {
        let ask = |eligibility: &mut Eligibility, start, second, served| {
            let news = eligibility.on_memory(memory(served, Canary::Kept).unwrap(), at(start, second));
            (news, eligibility.why(at(start, second).asked))
        };
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.met(server("a", 500, 0), memory(500, Canary::Kept), at(start, 0)), None);
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
        for (canary, news) in
            [(Canary::Another, Change::Another), (Canary::Missing, Change::Empty), (Canary::Kept, Change::Restarted)]
        {
            let (mut eligibility, start) = eligibility();
            let served = if canary == Canary::Kept { 4 } else { 0 };
            assert_eq!(eligibility.met(server("a", 500, 0), memory(served, canary), at(start, 0)), Some(news));
            assert_eq!(left(&eligibility, start, 0), 10 - served);
            assert_eq!(eligibility.restarted_for(at(start, 0).asked).as_secs(), 10 - served, "nor do extensions count");
        }
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.met(server("a", 500, 0), memory(10, Canary::Kept), at(start, 0)), None);
        assert_eq!(left(&eligibility, start, 0), 0);
    }

    #[test]
    fn h16_an_old_memory_does_not_vouch_for_a_server_that_was_seen_to_restart_or_is_young() {
        let (mut eligibility, start) = eligibility();
        let old = memory(500, Canary::Kept);
        assert_eq!(eligibility.met(server("a", 4, 0), old, at(start, 0)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 0), 7);
        assert_eq!(eligibility.met(server("b", 500, 20), old, at(start, 20)), Some(Change::Restarted));
        assert_eq!(left(&eligibility, start, 20), 10);
    }

    #[test]
    fn what_is_published_of_a_node_is_what_it_is_judged_by() {
        let (mut eligibility, start) = eligibility();
        assert!(eligibility.restarted().is_none() && eligibility.told_until().is_none());
        assert_eq!(eligibility.clock_offset(), None);

        eligibility.met(server("a", 4, 0), None, at(start, 0));
        eligibility.quarantine(Duration::from_secs(9), at(start, 0).answered);

        assert_eq!(eligibility.until(eligibility.restarted()), Some(at(start, 7).asked));
        assert_eq!(eligibility.told_until(), Some(at(start, 9).asked));
        let offset = i64::try_from((WALL - 500) * 1_000_000).unwrap();
        assert_eq!(eligibility.clock_offset(), Some((offset, offset)));
        assert_eq!(eligibility.why(at(start, 6).asked), Quarantine::Restarted);
        assert_eq!(eligibility.why(at(start, 7).asked), Quarantine::Emptied, "that it was restarted is over");
        assert_eq!((left(&eligibility, start, 7), left(&eligibility, start, 9)), (2, 0));
    }

    #[test]
    fn a_memory_that_is_old_enough_is_no_news_whatever_it_began_with() {
        for canary in [Canary::Missing, Canary::Another, Canary::Kept, Canary::KeptFromNothing] {
            let (mut eligibility, start) = eligibility();
            assert_eq!(eligibility.met(server("a", 500, 0), memory(10, canary), at(start, 0)), None, "{canary:?}");
            assert_eq!(left(&eligibility, start, 0), 0);
        }
    }

    #[test]
    fn a_server_is_new_if_nobody_knows_that_it_was_used_before() {
        let at_once = |server: ServerInfo, memory| {
            let (mut eligibility, start) = eligibility();
            eligibility.met(server, memory, at(start, 0));
            eligibility.why(at(start, 0).answered)
        };
        for uptime in [0, 500] {
            assert_eq!(at_once(server("a", uptime, 0), memory(0, Canary::Missing)), Quarantine::New);
            assert_eq!(at_once(server("a", uptime, 0), memory(3, Canary::KeptFromNothing)), Quarantine::New);
            assert_eq!(at_once(server("a", uptime, 0), memory(0, Canary::Another)), Quarantine::Restarted);
            assert_eq!(at_once(server("a", uptime, 0), memory(3, Canary::Kept)), Quarantine::Restarted);
        }
        assert_eq!(at_once(server("a", 0, 0), memory(500, Canary::Kept)), Quarantine::Restarted);
        let mute = ServerInfo { run_id: None, ..server("a", 0, 0) };
        assert_eq!(at_once(mute, memory(500, Canary::Kept)), Quarantine::Unverifiable);

        let (mut eligibility, start) = eligibility();
        eligibility.met(server("a", 500, 0), memory(500, Canary::Kept), at(start, 0));
        eligibility.met(server("a", 520, 20), memory(0, Canary::Missing), at(start, 20));
        assert_eq!(eligibility.why(at(start, 20).answered), Quarantine::Emptied, "we have known it with data");
        eligibility.met(server("b", 0, 40), memory(0, Canary::Missing), at(start, 40));
        assert_eq!(eligibility.why(at(start, 40).answered), Quarantine::Restarted, "we have known another");
        eligibility.on_time(Some((WALL + 100) * 1_000_000), at(start, 60));
        assert_eq!(eligibility.why(at(start, 60).answered), Quarantine::ClockStep);
    }

    #[test]
    fn b6_a_server_that_somebody_vouches_for_votes_at_once_unless_we_know_better() {
        let vouched = memory(0, Canary::Vouched);
        let (mut eligibility, start) = eligibility();
        assert_eq!(eligibility.met(server("a", 0, 0), vouched, at(start, 0)), None);
        assert_eq!(left(&eligibility, start, 0), 0, "whatever its uptime");

        // While we wait.
        for (memory_before, left_then) in [(memory(0, Canary::Missing), 0), (memory(0, Canary::Another), 10)] {
            let mut eligibility = Eligibility::new(Some(QUARANTINE), 0.01);
            eligibility.met(server("a", 0, 0), memory_before, at(start, 0));
            eligibility.quarantine(Duration::from_secs(8), at(start, 0).answered);
            eligibility.on_memory(vouched.unwrap(), at(start, 1));
            let extensions = eligibility.restarted_for(at(start, 1).asked).as_secs();
            assert_eq!((left(&eligibility, start, 1), extensions), (left_then, left_then));
        }
        // And a restart that we have seen is one.
        eligibility.met(server("b", 0, 20), vouched, at(start, 20));
        assert_eq!(left(&eligibility, start, 20), 10);
    }

    #[test]
    fn h15_a_longer_silence_that_turns_up_later_holds_for_all_that_have_begun_and_ends_no_hold() {
        let (mut eligibility, start) = eligibility();
        eligibility.met(server("a", 500, 0), memory(0, Canary::Missing), at(start, 0));
        assert_eq!((left(&eligibility, start, 11), eligibility.restarted_for(at(start, 11).asked).as_secs()), (0, 0));

        eligibility.lasts(Some(3 * QUARANTINE));
        // On another connection, or on the same one.
        let again = memory(12, Canary::Kept);
        assert_eq!(eligibility.met(server("a", 512, 12), again, at(start, 12)), None);
        eligibility.on_memory(memory(13, Canary::Kept).unwrap(), at(start, 13));
        assert_eq!(left(&eligibility, start, 13), 17, "nobody else gets a lock there");
        assert_eq!(eligibility.restarted_for(at(start, 13).asked).as_secs(), 0, "and nobody loses one");

        eligibility.lasts(Some(QUARANTINE));
        assert_eq!(left(&eligibility, start, 13), 0, "nobody needs it any more");
    }

    #[test]
    fn b6_a_server_that_was_emptied_since_we_met_it_is_silent_whoever_finds_that_out() {
        for (canary, served) in [(Canary::Missing, 0), (Canary::Kept, 3)] {
            let (mut eligibility, start) = eligibility();
            eligibility.met(server("a", 500, 0), memory(400, Canary::Kept), at(start, 0));
            let news = eligibility.met(server("a", 560, 60), memory(served, canary), at(start, 60));
            assert_eq!(news, (canary == Canary::Missing).then_some(Change::Empty));
            assert_eq!(left(&eligibility, start, 60), 10 - served);
            assert_eq!(eligibility.restarted_for(at(start, 60).asked).as_secs(), 10 - served);
        }
    }

    #[test]
    fn without_quarantine_everybody_votes_at_once() {
        let start = crate::time::tick();
        let mut eligibility = Eligibility::new(None, 0.01);
        assert_eq!(eligibility.met(server("a", 0, 0), None, at(start, 0)), None);
        assert_eq!(eligibility.met(server("b", 0, 1), None, at(start, 1)), None);
        let by = eligibility.on_time(Some((WALL + 25) * 1_000_000), at(start, 5));
        assert!(matches!(by, Some(Change::Stepped(_))), "steps are told all the same");
        assert_eq!(left(&eligibility, start, 5), 0);
    }

    #[test]
    fn h14_a_suspend_between_question_and_answer_is_no_step_of_the_nodes_clock() {
        // The node answers before the suspend, and that is read after it; or it is asked before, and answers after.
        for answered_by in [1, 1 + 3_600] {
            let (mut eligibility, start) = eligibility();
            assert_eq!(eligibility.met(server("a", 500, 0), None, at(start, 0)), None);
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
