//! Calls without servers: what they do with answers and hand-overs.

use std::cell::Cell;

use super::*;
use crate::call::steps::UNDECIDED_MAX;
use crate::config::Config;
use crate::error::QuarantineReason;
use crate::ids::RecordVersion;
use crate::inspection::SecretValue;
use crate::logic::acquire_round::Rule;

/// Everything else: three nodes, whose clocks are known, and which announce hand-overs.
struct World {
    /// Whether the clocks of the nodes are known.
    has_time: Cell<bool>,
    has_ticket: Cell<bool>,
    is_stopped: Cell<bool>,
    quarantined: Cell<NodeSet>,
    outage: Cell<Option<Tick>>,
}

impl World {
    fn new() -> World {
        World {
            has_time: Cell::new(true),
            has_ticket: Cell::new(true),
            is_stopped: Cell::new(false),
            quarantined: Cell::default(),
            outage: Cell::default(),
        }
    }
}

impl View for World {
    fn time_for_all(&self, at: Moment) -> Option<u64> {
        self.has_time.get().then_some(at.wall_micros())
    }

    fn quarantined_of(&self, nodes: NodeSet, _: Tick) -> Vec<(NodeId, NodeFailure)> {
        let quarantined = |it: &NodeId| nodes.contains(*it) && self.quarantined.get().contains(*it);
        let nodes = (0..3).map(node).filter(quarantined);
        nodes.map(|it| (it, quarantine())).collect()
    }

    fn notifying(&self) -> usize {
        3
    }

    fn deadline(&self, now: Tick) -> Tick {
        later(now, TIMEOUT)
    }

    fn outage(&self) -> Option<Tick> {
        self.outage.get()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    fn take_turn(&self) -> Option<Duration> {
        self.has_ticket.get().then_some(Duration::ZERO)
    }

    fn draw(&self) -> Result<OwnerToken, String> {
        Ok(OwnerToken::draw().unwrap())
    }

    fn random(&self) -> f64 {
        0.5
    }
}

const TIMEOUT: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(60);

fn quarantine() -> NodeFailure {
    NodeFailure::Quarantined {
        left: Duration::from_secs(9),
        why: QuarantineReason::New,
    }
}

fn later(tick: Tick, by: Duration) -> Tick {
    tick.checked_add(by).unwrap()
}

fn after(now: Now, by: Duration) -> Now {
    Now {
        moment: now.moment.checked_add(by).unwrap(),
        tick: later(now.tick, by),
    }
}

fn node(number: u8) -> NodeId {
    NodeId::new(number)
}

fn all() -> NodeSet {
    (0..3).map(node).collect()
}

fn terms() -> Terms {
    Terms {
        nodes: 3,
        rule: Rule::Exclusive,
        ttl: TTL,
        margin: Config::default().margin,
        names: Arc::default(),
        is_single: true,
        rounds: None,
        began: Now::read(),
        until: None,
        end: None,
        response_timeout: TIMEOUT,
        pauses: (Duration::from_millis(50), Duration::from_secs(1)),
        outage_timeout: Duration::from_secs(10),
    }
}

/// A call in front of its queue.
fn first() -> Call {
    let mut call = Call::new(terms());
    assert!(call.admit(true));
    call
}

/// The answer of a node that had this counter and has entered the call in its list.
fn held(counter: u64) -> Answer {
    Answer::Lock(LockReply {
        queued: true,
        ..LockReply::new(LockStatus::Held, counter)
    })
}

const GRANTED: Answer = Answer::of(LockStatus::Accepted);

fn refused() -> Answer {
    Answer::Failed(NodeFailure::Stalled)
}

/// The lock, for a minute.
fn handed_to(owner: OwnerToken, token: impl Into<Option<u64>>) -> HandedOver {
    HandedOver {
        token: token.into(),
        record_version: RecordVersion::NONE,
        life: 60_000,
        time: 0,
        asked_from: Now::read().tick.checked_sub(Duration::from_secs(10)),
        reads: false,
        is_question: false,
        value: SecretValue::new(&owner.to_value()),
        key: b"x".to_vec(),
    }
}

fn owner_of(call: &Call) -> OwnerToken {
    call.owner.unwrap().token
}

/// The call asks now, and its command comes to all nodes, as far as anybody knows.
fn ask(call: &mut Call, world: &World) -> Ask {
    call.try_at = None;
    let Next::Ask(ask) = call.next(world, Now::read()) else {
        panic!("it does not ask")
    };
    call.on_sent(ask.round, all());
    ask
}

fn answer(call: &mut Call, ask: &Ask, answers: impl IntoIterator<Item = Answer>) {
    for (number, answer) in (0..).zip(answers) {
        call.on_answer(ask.round, node(number), answer, true, Now::read());
    }
}

/// Asks, and the answers come. What the call does then, once it waits for no more answers.
fn asked(call: &mut Call, world: &World, answers: impl IntoIterator<Item = Answer>) -> Next {
    let ask = ask(call, world);
    answer(call, &ask, answers);
    settled(call, world)
}

fn settled(call: &mut Call, world: &World) -> Next {
    let mut now = Now::read();
    loop {
        match call.next(world, now) {
            Next::Sleep(until) => now = after(now, until.saturating_duration_since(now.tick)),
            next => return next,
        }
    }
}

/// A call that three nodes have refused at the counter 1.
fn waiting(world: &World) -> Call {
    let mut call = first();
    assert!(matches!(
        asked(&mut call, world, [held(1), held(1), held(1)]),
        Next::Rest(_)
    ));
    call
}

fn hand_over(call: &mut Call, nodes: impl IntoIterator<Item = u8>, notice: &HandedOver) {
    for number in nodes {
        call.on_hand_over(node(number), notice, Now::read().tick);
    }
}

/// The token that nodes have handed over to the call, if that wins.
fn won(call: &Call, world: &World) -> Option<u64> {
    let asked = call.won_by_hand_overs(world, Now::read())?;
    let Some(AcquireEnd::Won { token }) = asked.ballot.end() else {
        panic!("made and not won")
    };
    Some(token)
}

fn asks_at_once(call: &Call) -> bool {
    call.next_try().is_none()
}

/// For the models.
impl Call {
    /// Nodes whose hand-overs count as votes.
    pub(crate) fn nodes_that_handed_over(&self) -> NodeSet {
        self.hand_overs.votes.iter().map(|it| it.0).collect()
    }
}

#[test]
fn an_ended_call_leaves_the_lists_that_a_release_entered() {
    let mut call = Call::new(terms());
    let (owner, _) = call
        .enter(7, all(), 0, || World::new().draw(), Now::read())
        .unwrap();

    let release = call.leave(true).unwrap();

    assert_eq!((release.owner, release.to), (owner.token, all()));
    assert!(release.stays.is_none());
}

/// The release was sent after the owner was drawn: that is its ask, and the nodes refused it with the token of the release.
#[test]
fn a_call_that_a_release_listed_wins_by_hand_overs() {
    let world = World::new();
    for (token, wins) in [(7, None), (8, Some(8))] {
        let mut call = Call::new(terms());
        let (owner, _) = call
            .enter(7, all(), 0, || world.draw(), Now::read())
            .unwrap();
        hand_over(&mut call, 0..2, &handed_to(owner.token, token));
        assert_eq!(won(&call, &world), wins, "token {token}");
    }
}

/// It has time to be told first, and finds what was handed over before that ends.
#[test]
fn a_call_that_a_release_listed_asks_if_no_message_comes() {
    let world = World::new();
    let mut call = Call::new(terms());
    let now = Now::read();
    assert!(call.enter(7, all(), 0, || world.draw(), now).is_some());
    assert!(call.admit(true));

    let Next::Rest(Some(at)) = call.next(&world, now) else {
        panic!("it asks at once")
    };

    assert!(now.tick < at && at <= later(now.tick, lease::FIRST_LIFE));
    let then = after(now, at.saturating_duration_since(now.tick));
    assert!(matches!(call.next(&world, then), Next::Ask(_)));
}

#[test]
fn a_call_asks_at_once_when_it_comes_to_the_front() {
    let world = World::new();
    let mut call = Call::new(terms());
    assert!(matches!(call.next(&world, Now::read()), Next::Rest(None)));
    call.try_at = Some(Now::read().tick);
    assert!(call.admit(true) && call.try_at.is_none());
    call.try_at = Some(Now::read().tick);
    assert!(!call.admit(true) && call.try_at.is_some());
    assert!(!call.admit(false) && call.admit(true) && call.try_at.is_none());

    let mut listed = waiting(&world);
    assert!(!listed.admit(false) && listed.admit(true));
    assert!(listed.try_at.is_some(), "nodes tell it");
}

#[test]
fn h4_a_call_that_reached_no_majority_is_behind_all_others_until_it_does() {
    let world = World::new();
    let mut call = first();
    world.has_time.set(false);
    let blind = ask(&mut call, &world);
    assert!(
        !blind.enters && blind.since == u64::MAX,
        "no clock of a node is known"
    );
    answer(&mut call, &blind, [refused(), refused(), refused()]);
    world.has_time.set(true);
    assert!(matches!(call.next(&world, Now::read()), Next::TakeBack(_)));

    let last = ask(&mut call, &world);
    assert!(
        !last.enters && last.since == u64::MAX,
        "it reached no majority"
    );
    answer(&mut call, &last, [held(1), held(1), held(1)]);
    assert!(matches!(call.next(&world, Now::read()), Next::Rest(_)));

    let place = ask(&mut call, &world);
    assert!(place.enters && place.since < u64::MAX);
}

#[test]
fn h8_a_call_begun_after_the_last_lost_round_makes_its_own_round() {
    let world = World::new();
    let (mut second, mut first) = (first(), first());
    assert!(matches!(
        asked(&mut first, &world, vec![refused(); 3]),
        Next::TakeBack(_)
    ));
    let began = after(Now::read(), Duration::from_millis(1));
    let mut third = Call::new(Terms { began, ..terms() });
    third.admit(true);
    let lost = first.lost.clone().unwrap();

    assert!(second.give_up_with(&lost) && !third.give_up_with(&lost));

    assert!(matches!(
        second.next(&world, Now::read()),
        Next::GiveUp(Why::Hopeless)
    ));
    assert!(second.lost.is_some());
    assert!(matches!(third.next(&world, began), Next::Ask(_)));
}

#[test]
fn h8_a_call_gives_up_once_no_majority_has_answered_for_the_outage_timeout() {
    let world = World::new();
    let mut call = first();
    assert!(matches!(
        asked(&mut call, &world, vec![refused(); 3]),
        Next::TakeBack(_)
    ));
    assert!(
        matches!(call.next(&world, Now::read()), Next::Rest(_)),
        "not yet"
    );
    world
        .outage
        .set(Now::read().tick.checked_sub(terms().outage_timeout));

    assert!(matches!(
        asked(&mut call, &world, vec![refused(); 3]),
        Next::TakeBack(_)
    ));

    assert!(matches!(
        call.next(&world, Now::read()),
        Next::GiveUp(Why::Hopeless)
    ));
}

#[test]
fn a_call_that_was_on_no_list_sends_nothing_when_it_leaves() {
    assert!(Call::new(terms()).leave(true).is_none());
}

#[test]
fn a_stopped_or_expired_call_begins_no_round() {
    let world = World::new();
    let now = Now::read();
    let mut over = Call::new(Terms {
        until: Some(now.tick),
        ..terms()
    });
    over.admit(true);
    assert!(matches!(
        over.next(&world, now),
        Next::GiveUp(Why::TimeOver)
    ));
    world.is_stopped.set(true);
    assert!(matches!(
        first().next(&world, now),
        Next::GiveUp(Why::Stopped)
    ));
}

#[test]
fn h5_a_call_without_a_round_ticket_waits_for_one_to_its_end() {
    let world = World::new();
    world.has_ticket.set(false);
    let now = Now::read();
    let until = Some(later(now.tick, TIMEOUT));
    for rounds in [None, Some(1)] {
        let mut call = Call::new(Terms {
            until,
            rounds,
            ..terms()
        });
        call.admit(true);
        assert!(matches!(call.next(&world, now), Next::AwaitTurn(it) if it == until));
        let next = call.next(&world, after(now, TIMEOUT));
        assert!(matches!(next, Next::GiveUp(Why::TimeOver)), "{rounds:?}");
    }
}

#[test]
fn a_try_asks_again_only_after_an_undecided_round() {
    let world = World::new();
    for (answers, rounds) in [
        ([GRANTED, held(1), held(1)], UNDECIDED_MAX),
        ([held(1), held(1), held(1)], 1),
        ([refused(), refused(), refused()], 1),
    ] {
        let mut call = Call::new(Terms {
            rounds: Some(UNDECIDED_MAX),
            ..terms()
        });
        for _ in 0..rounds {
            let owner = call.owner.is_none();
            assert!(owner, "each round has an owner of its own");
            assert!(matches!(
                asked(&mut call, &world, answers.clone()),
                Next::TakeBack(_)
            ));
        }
        assert!(matches!(
            call.next(&world, Now::read()),
            Next::GiveUp(Why::Hopeless)
        ));
    }
}

/// The node was synced anew since, or was in quarantine then.
#[test]
fn h17_a_hand_over_is_no_vote_for_an_ask_before_the_sync() {
    let world = World::new();
    let mut call = waiting(&world);
    let owner = owner_of(&call);
    let sent = call.asked.sent.tick;
    let late = Some(later(sent, Duration::from_micros(1)));
    for (number, asked_from) in [(0, None), (1, late), (2, Some(sent)), (0, Some(sent))] {
        let notice = HandedOver {
            asked_from,
            ..handed_to(owner, 20)
        };
        hand_over(&mut call, [number], &notice);
        assert_eq!(won(&call, &world), None, "{number} {asked_from:?}");
    }
}

#[test]
fn a_hand_over_before_the_answer_of_its_node_is_no_vote() {
    let world = World::new();
    let mut call = first();
    let ask = ask(&mut call, &world);
    let notice = handed_to(ask.owner.token, 20);

    hand_over(&mut call, [0], &notice);
    answer(&mut call, &ask, [held(1), held(1), held(1)]);
    hand_over(&mut call, [1], &notice);
    assert_eq!(won(&call, &world), None, "one vote, and a hint");
    hand_over(&mut call, [0], &notice);
    assert_eq!(won(&call, &world), None, "it has said that once");
    hand_over(&mut call, [2], &notice);

    assert_eq!(won(&call, &world), Some(20));
}

/// RACE: T1, this call, asks again; T2, a node whose counter was lost, has handed the lock over before; T1 reads that.
#[test]
fn hand_overs_stop_counting_when_the_call_asks_again() {
    let world = World::new();
    let mut call = waiting(&world);
    let owner = owner_of(&call);
    hand_over(&mut call, 0..2, &handed_to(owner, 20));
    world.has_ticket.set(false);
    assert!(matches!(call.next(&world, Now::read()), Next::AwaitTurn(_)));
    // Its lease has no time for a win.
    call.grace = TTL;
    world.has_ticket.set(true);

    let second = ask(&mut call, &world);

    assert_eq!((owner_of(&call), won(&call, &world)), (owner, None));
    answer(&mut call, &second, [held(20), held(1), held(1)]);
    assert!(matches!(call.next(&world, Now::read()), Next::Rest(_)));
    hand_over(&mut call, 0..2, &handed_to(owner, 20));
    assert_eq!(won(&call, &world), None, "n0 has shown that counter");
    hand_over(&mut call, [2], &handed_to(owner, 20));
    assert_eq!(won(&call, &world), None, "above some, and not above all");
}

#[test]
fn a_hand_over_to_another_owner_of_the_call_is_no_vote() {
    let world = World::new();
    let mut call = waiting(&world);
    let will_be = call.owner.unwrap().successor;

    hand_over(&mut call, 0..3, &handed_to(will_be, 20));
    // Nor has this a token that is the counter's.
    let notice = handed_to(owner_of(&call), None);
    hand_over(&mut call, 0..3, &notice);

    assert_eq!(won(&call, &world), None);
    assert!(asks_at_once(&call), "it claims them");
}

#[test]
fn a_late_hand_over_to_a_won_call_confirms_the_hold() {
    let world = World::new();
    for (token, confirmed) in [(Some(20), 3), (Some(21), 2), (None, 2)] {
        let mut call = waiting(&world);
        let owner = owner_of(&call);
        hand_over(&mut call, 0..2, &handed_to(owner, 20));
        let Next::Won(win) = call.next(&world, Now::read()) else {
            panic!("it was not won")
        };
        assert!(win.is_handed_over && win.token == 20);

        hand_over(&mut call, [2], &handed_to(owner, token));

        let granted = call.votes().nodes_with(Answer::is_granted).len();
        assert_eq!(granted, confirmed, "with {token:?}");
    }
}

/// RACE: T1, a call, asks; T2, a node, shows a clock step, which quarantines it; T1 wins by two other nodes; T2 hands over.
#[test]
fn b1_a_late_hand_over_of_a_quarantined_server_does_not_confirm_the_hold() {
    let world = World::new();
    let mut call = waiting(&world);
    let notice = handed_to(owner_of(&call), 20);
    hand_over(&mut call, 0..2, &notice);
    assert!(matches!(call.next(&world, Now::read()), Next::Won(_)));
    let later = later(Now::read().tick, TIMEOUT);

    for asked_from in [None, Some(later)] {
        let quarantined = HandedOver {
            asked_from,
            ..notice.clone()
        };
        hand_over(&mut call, [2], &quarantined);
        let granted = call.votes().nodes_with(Answer::is_granted);
        assert!(!granted.contains(node(2)), "{asked_from:?}");
    }
}

/// One name says nothing of the others, and nodes may hand over different permits.
#[test]
fn hand_overs_of_permits_and_single_names_of_a_set_are_hints() {
    let world = World::new();
    let mut call = Call::new(Terms {
        is_single: false,
        ..terms()
    });
    call.admit(true);
    assert!(matches!(
        asked(&mut call, &world, [held(1), held(1), held(1)]),
        Next::Rest(_)
    ));
    let notice = handed_to(owner_of(&call), 20);

    hand_over(&mut call, 0..3, &notice);

    assert_eq!(won(&call, &world), None);
    assert!(asks_at_once(&call));
}

/// The first lost round keeps what nodes have granted, for others may hand over theirs. The next claims all, once.
#[test]
fn a_call_with_a_lost_claim_releases_and_draws_another_owner() {
    let world = World::new();
    let mut call = first();

    let next = asked(&mut call, &world, [GRANTED, held(1), held(1)]);
    assert!(matches!(next, Next::Rest(_)), "nothing is released");
    let Owner {
        token: owner,
        successor,
        ..
    } = call.owner.unwrap();
    assert!(call.hand_overs.nodes.contains(node(0)));

    let claim = ask(&mut call, &world);
    assert_eq!(claim.owner.token, owner);
    answer(&mut call, &claim, [GRANTED, held(1), held(1)]);
    let Next::TakeBack(release) = call.next(&world, Now::read()) else {
        panic!("it keeps the grant")
    };

    assert_eq!(
        (release.owner, release.to, release.grants),
        (owner, all(), 1)
    );
    assert_eq!(release.stays.map(|it| it.owner), Some(successor));
    assert_eq!(owner_of(&call), successor);
    assert!(!asks_at_once(&call));
    // The holder has released it before the nodes ran what takes the round back.
    hand_over(&mut call, [1, 2], &handed_to(owner, 20));
    assert!(asks_at_once(&call), "nobody hands it over once more");
    hand_over(&mut call, [1], &handed_to(successor, 20));
    assert_eq!(won(&call, &world), None, "nothing was asked as that owner");
    let next = ask(&mut call, &world);
    assert!(next.owner.successor != successor);
    call.leave(true);
    let forgotten: Vec<_> = call
        .news
        .iter()
        .filter_map(|it| match it {
            News::Forgotten(owner) => Some(*owner),
            _ => None,
        })
        .collect();
    for known in [owner, successor, next.owner.successor] {
        assert!(forgotten.contains(&known), "an owner was left behind");
    }
}

/// RACE: T1, the call, loses its round and releases its owner; T2, a thread that releases a hold of this manager, enters it as
/// that owner behind it.
#[test]
fn no_release_lists_a_call_that_has_asked() {
    let world = World::new();
    let enters = |call: &mut Call| {
        call.enter(7, all(), 0, || world.draw(), Now::read())
            .is_some()
    };
    let mut call = first();
    let asked = ask(&mut call, &world);
    assert!(!enters(&mut call), "it asks");
    answer(&mut call, &asked, [held(1), held(1), held(1)]);
    assert!(matches!(call.next(&world, Now::read()), Next::Rest(_)));
    assert!(!enters(&mut call), "it is in them");
    let mut try_once = Call::new(Terms {
        rounds: Some(1),
        ..terms()
    });
    assert!(!enters(&mut try_once), "it waits in no list");
}

#[test]
fn h5_a_call_that_sent_nothing_keeps_its_owner_and_releases_nothing() {
    let world = World::new();
    let mut call = waiting(&world);
    let owner = owner_of(&call);
    hand_over(&mut call, 0..2, &handed_to(owner, None));

    let Next::Ask(claim) = call.next(&world, Now::read()) else {
        panic!("it does not claim")
    };
    call.on_sent(claim.round, NodeSet::default());
    for number in 0..3 {
        call.on_answer(claim.round, node(number), refused(), false, Now::read());
    }

    assert!(matches!(call.next(&world, Now::read()), Next::Rest(_)));
    assert_eq!(call.lost.as_ref().unwrap().why, RoundLoss::NoQuorum);
    assert_eq!(owner_of(&call), owner);
}

#[test]
fn a_call_with_a_claim_refused_everywhere_keeps_its_owner() {
    let world = World::new();
    let mut call = first();
    assert!(matches!(
        asked(&mut call, &world, [GRANTED, held(1), held(1)]),
        Next::Rest(_)
    ));
    let owner = owner_of(&call);

    assert!(matches!(
        asked(&mut call, &world, [held(1), held(1), held(1)]),
        Next::Rest(_)
    ));

    assert_eq!(owner_of(&call), owner);
}

/// RACE: T1, the call, loses its round; T2, a server that answers late, has granted the lock, and nobody else gets it there, nor
/// can its holder set it again; T1 asks again, and T2 is late again.
#[test]
fn a_grant_that_comes_behind_a_lost_round_is_given_back_by_the_next() {
    let world = World::new();
    let mut call = first();
    let early = ask(&mut call, &world);
    answer(&mut call, &early, [held(1), held(1)]);
    assert!(matches!(settled(&mut call, &world), Next::Rest(_)));
    call.on_answer(early.round, node(2), GRANTED, true, Now::read());

    let next = asked(&mut call, &world, [held(1), held(1)]);

    assert!(matches!(next, Next::TakeBack(it) if it.to == all()));
}

/// RACE: T1, this call, loses its round before a quarantined server has answered; T2, the server, grants the lock.
#[test]
fn a_grant_that_a_quarantined_server_may_still_make_is_taken_back() {
    let world = World::new();
    world.quarantined.set([node(2)].into_iter().collect());
    let mut call = first();
    let next = asked(&mut call, &world, [held(1), held(1)]);
    assert!(matches!(next, Next::TakeBack(_)));
}

#[test]
fn c4_a_majority_of_grants_of_quarantined_servers_wins_nothing() {
    let world = World::new();
    world
        .quarantined
        .set([node(0), node(1)].into_iter().collect());
    let mut call = first();

    let next = asked(&mut call, &world, [GRANTED, GRANTED, GRANTED]);

    assert!(matches!(next, Next::TakeBack(it) if it.grants == 3));
    let lost = call.lost.as_ref().unwrap();
    assert_eq!(lost.why, RoundLoss::NoQuorum);
    assert_eq!(
        lost.rows[..2],
        [
            NodeAnswer::Failed(quarantine()),
            NodeAnswer::Failed(quarantine())
        ]
    );
}

/// RACE: T1 and T2 ask servers of which a majority is quarantined; each finds the other's keys there.
#[test]
fn refusals_of_a_quarantined_majority_are_no_votes_and_the_open_nodes_decide() {
    let world = World::new();
    world
        .quarantined
        .set([node(0), node(1)].into_iter().collect());
    let mut call = first();
    let asked = ask(&mut call, &world);
    answer(&mut call, &asked, [held(1), held(1)]);

    let next = call.next(&world, after(Now::read(), TIMEOUT / 2));
    assert!(matches!(next, Next::Sleep(_)), "it waits for the third");
    call.on_answer(asked.round, node(2), held(1), true, Now::read());

    let _ = call.next(&world, Now::read());
    assert_eq!(call.lost.as_ref().unwrap().why, RoundLoss::NoQuorum);
}

/// Each needs its first extension within a short life.
/// All grants come in time, and the machine sleeps before the call looks at them.
#[test]
fn a_call_that_runs_again_behind_the_end_of_its_lease_wins_nothing() {
    let world = World::new();
    for (ends, wins) in [(Duration::from_secs(1), true), (TTL, false)] {
        let mut call = first();
        let asked = ask(&mut call, &world);
        answer(&mut call, &asked, [GRANTED, GRANTED, GRANTED]);

        let next = call.next(&world, after(Now::read(), ends));

        assert_eq!(matches!(next, Next::Won(_)), wins, "{next:?}");
        let why = call.lost.as_ref().map(|lost| lost.why);
        assert_eq!(why, (!wins).then_some(RoundLoss::TooLate));
        let gives_back = matches!(&next, Next::TakeBack(it) if it.to == all());
        assert_eq!(gives_back, !wins, "{next:?}");
    }
}

#[test]
fn h5_a_hand_over_beyond_the_limit_of_rounds_is_claimed() {
    let world = World::new();
    let mut call = waiting(&world);
    let notice = handed_to(owner_of(&call), 20);
    hand_over(&mut call, 0..2, &notice);
    world.has_ticket.set(false);
    assert!(matches!(call.next(&world, Now::read()), Next::AwaitTurn(_)));
    world.has_ticket.set(true);
    assert!(
        matches!(call.next(&world, Now::read()), Next::Won(_)),
        "unless one is free by then"
    );
}

/// Nothing is sent for it: there is no token left.
#[test]
fn h2_a_call_without_a_proposal_leaves_no_owner() {
    let world = World::new();
    let mut call = first();
    call.seen = u64::MAX;
    assert!(matches!(
        call.next(&world, Now::read()),
        Next::GiveUp(Why::NoToken)
    ));
    assert!(call.leave(true).is_none());
}

#[test]
fn a_leaving_call_releases_present_and_later_hand_overs() {
    let world = World::new();
    let mut call = waiting(&world);
    let owner = owner_of(&call);
    hand_over(&mut call, [0], &handed_to(owner, 20));

    let release = call.leave(true).unwrap();

    assert_eq!((release.owner, release.to), (owner, all()));
    assert!(
        call.news
            .iter()
            .any(|it| matches!(it, News::Forgotten(it) if *it == owner))
    );
}

#[test]
fn a_raise_lifts_counters_and_leaves_handed_over_keys_short() {
    let world = World::new();
    let mut call = first();
    let behind = Answer::with_counter(LockStatus::ProposalBehind, 1 << 52);
    let next = asked(&mut call, &world, [behind.clone(), behind, held(1)]);
    let Next::Raise { round, token, .. } = next else {
        panic!("{next:?}")
    };
    assert!(1 << 52 < token);

    for number in [0, 2] {
        let taken = Answer::of(LockStatus::Raised);
        call.on_answer(round, node(number), taken, true, Now::read());
    }

    let Next::Won(win) = call.next(&world, Now::read()) else {
        panic!("it was not won")
    };
    assert!(win.raised && win.is_handed_over && win.token == token);
    assert_eq!(win.handed, [node(2)].into_iter().collect());
}

/// RACE: T1, this call, asks; T2, a node, refuses it and hands the lock over to it later, for a second; T1 raises its token on
/// two nodes, and runs again behind that second.
#[test]
fn a13_a_raise_wins_nothing_behind_the_short_life_that_it_rests_on() {
    for (taken, ends_early) in [([0, 2], true), ([0, 1], false)] {
        for (passed, in_time) in [(900, true), (1_100, false)] {
            let world = World::new();
            let mut call = first();
            let behind = Answer::with_counter(LockStatus::ProposalBehind, 1 << 52);
            let begin = Now::read();
            let Next::Raise { round, .. } =
                asked(&mut call, &world, [behind.clone(), behind, held(1)])
            else {
                panic!("no raise")
            };
            for number in taken {
                let taken = Answer::of(LockStatus::Raised);
                call.on_answer(round, node(number), taken, true, begin);
            }

            let next = call.next(&world, after(begin, Duration::from_millis(passed)));

            let wins = matches!(next, Next::Won(_));
            assert_eq!(wins, in_time || !ends_early, "{taken:?} {passed} {next:?}");
        }
    }
}

#[test]
fn an_answer_to_an_earlier_round_changes_nothing() {
    let world = World::new();
    let mut call = first();
    let early = ask(&mut call, &world);
    answer(&mut call, &early, [held(1), held(1)]);
    assert!(matches!(settled(&mut call, &world), Next::Rest(_)));
    let second = ask(&mut call, &world);

    assert_eq!(
        call.on_answer(early.round, node(2), GRANTED, true, Now::read()),
        (false, false)
    );

    assert!(call.is_open(second.round) && !call.is_open(early.round));
    assert_eq!(call.votes().open(), 3);
}

#[test]
fn a_quarantine_hides_no_outage() {
    let failed = || NodeAnswer::Failed(NodeFailure::Stalled);
    let quarantined = || NodeAnswer::Failed(quarantine());
    let lost = |rows| Lost {
        why: RoundLoss::NoQuorum,
        rows,
        began: Now::read().tick,
        took: Duration::ZERO,
    };
    let waits = |rows| lost(rows).finds_a_majority() == Some(true);

    assert!(waits(vec![quarantined(), quarantined(), quarantined()]));
    assert!(waits(vec![quarantined(), failed(), NodeAnswer::Granted]));
    assert!(
        waits(vec![quarantined(), failed(), NodeAnswer::Pending]),
        "perhaps that one would have voted"
    );
    assert!(!waits(vec![quarantined(), failed(), failed()]));
    assert!(!waits(vec![failed(), failed(), NodeAnswer::Granted]));

    let quarantine = |rows| lost(rows).quarantine();
    assert_eq!(
        quarantine(vec![quarantined(), failed(), quarantined()]),
        Some(Duration::from_secs(9))
    );
    assert_eq!(quarantine(vec![quarantined(), failed(), failed()]), None);
    let granted = NodeAnswer::Granted;
    assert_eq!(quarantine(vec![granted.clone(), failed(), granted]), None);
}

#[test]
fn nodes_without_an_answer_are_not_taken_for_free() {
    let held = NodeAnswer::Held {
        left: None,
        holder: None,
        name: None,
    };
    let lost = Lost {
        why: RoundLoss::Held,
        rows: vec![held, NodeAnswer::Pending, NodeAnswer::Granted],
        began: Now::read().tick,
        took: Duration::ZERO,
    };
    assert_eq!(lost.free_in(), None);
}
