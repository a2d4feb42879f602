//! Calls that wait, without servers: what they do with answers and hand-overs.

use super::*;
use crate::answer::AcquireReply;
use crate::config::Config;
use crate::engine::nodes::primary::NodeAddress;
use crate::engine::{Engine, HoldInner, LockSpec, ManagerState};
use crate::error::{LostReason, NodeFailure};
use crate::ids::{NodeId, RecordVersion};
use crate::inspection::SecretValue;
use crate::logic::acquire_round::{AcquireEnd, LossReason};
use crate::session::pending_command::ReplyHandler;
use crate::wire::{HandedOver, KeyTtls, LockCommands};

/// A manager of three nodes that nobody can reach.
fn engine() -> Engine {
    let addresses = (1..=3)
        .map(|port| NodeAddress::parse(&format!("redis://127.0.0.1:{port}")).unwrap())
        .collect();
    Engine::start(Config::default(), addresses).unwrap()
}

fn join(shared: &ManagerState) -> QueuedCall<'_> {
    let commands = LockCommands::mutex(b"", b"x", KeyTtls::default());
    let spec = Arc::new(LockSpec::new(&shared.config, b"x", commands));
    let request = Request::new(&spec, &shared.config, Some(shared.queues.client), None);
    QueuedCall::join(&shared.fanout, &shared.queues, &shared.admission, request)
}

fn sent(shared: &ManagerState) -> u64 {
    shared.fanout.journal.counters.snapshot().commands
}

/// An attempt that has come to all nodes, as far as anybody knows.
fn attempt(shared: &ManagerState, ticket: &Arc<Ticket>) -> Attempt {
    let prepared = ticket.prepare(&shared.fanout, shared.admission.enter());
    let Ok((attempt, _)) = prepared else {
        panic!("no attempt")
    };
    attempt.round.set_reached(shared.fanout.ids().collect());
    attempt
}

/// Enters the first call of this lock in the lists of all nodes, by the release of the hold 7, which has token 7.
fn pass_on(shared: &ManagerState, commands: &LockCommands) -> Option<Arc<Ticket>> {
    let to = shared.fanout.ids().collect();
    shared.queues.pass_on(commands, 7, |next| {
        next.enter(&shared.fanout, 7, to)?;
        Some(Arc::clone(next))
    })
}

#[test]
fn a_call_that_ends_leaves_the_lists_that_it_has_entered_by_a_release() {
    let engine = engine();
    let shared = &engine.shared;
    let queued = join(shared);
    let commands = queued.ticket.request.spec.commands.clone();
    shared.queues.begin_hold(&queued.ticket.request.spec, 7);
    assert!(pass_on(shared, &commands).is_some());
    let before = sent(shared);

    drop(queued);

    assert_eq!(
        sent(shared) - before,
        3,
        "a release for each node, which leaves its list"
    );
    assert_eq!(shared.fanout.journal.counters.snapshot().waiting, 0);
    assert!(shared.queues.is_empty());
}

/// The release was sent after the owner was drawn: that is its ask, and the nodes refused it with the token of the release.
#[test]
fn a_call_that_entered_the_lists_by_a_release_wins_by_what_nodes_hand_over() {
    let engine = engine();
    let shared = &engine.shared;
    for (token, wins) in [(7, None), (8, Some(8))] {
        let queued = join(shared);
        shared.queues.begin_hold(&queued.ticket.request.spec, 7);
        let ticket = pass_on(shared, &queued.ticket.request.spec.commands).unwrap();
        let owner = owner_of(&ticket);
        for number in 0..2 {
            let notice = handed_to(owner, token);
            assert!(shared.queues.handed_over(node(number), &notice));
        }
        assert_eq!(won(&ticket), wins, "token {token}");
    }
}

/// It has time to be told first, and finds what was handed over before that ends.
#[test]
fn a_call_that_entered_the_lists_by_a_release_asks_if_nobody_tells_it() {
    let engine = engine();
    let shared = &engine.shared;
    let mut queued = join(shared);
    let commands = queued.ticket.request.spec.commands.clone();
    shared.queues.begin_hold(&queued.ticket.request.spec, 7);
    let ticket = pass_on(shared, &commands).unwrap();
    shared.queues.admit(&commands.key);
    let try_at = ticket.state.lock().try_at;
    assert!(try_at.is_some_and(|it| time::tick() < it), "not at once");

    assert!(matches!(queued.wait(None, &[]), Woken::Try(_)));

    assert!(try_at.is_some_and(|it| it <= time::tick()));
}

#[test]
fn h4_a_call_that_reached_no_majority_is_behind_all_others_until_it_does() {
    let engine = engine();
    let shared = &engine.shared;
    let mut place = join(shared);
    let ticket = Arc::clone(&place.ticket);
    assert!(
        !attempt(shared, &ticket).enters,
        "no clock of a node is known"
    );
    let is_last = || ticket.state.lock().known.has_no_place;
    assert!(!is_last());

    let Err(NotWon::Lost(lost)) = place.try_now(shared.admission.enter()) else {
        panic!("nobody was asked")
    };

    assert_eq!(lost.why, LossReason::NoQuorum);
    assert!(is_last());
    let held = LostAttempt {
        why: LossReason::Held,
        ..lost
    };
    assert!(place.note(Err(held)).is_err());
    assert!(!is_last());
}

#[test]
fn h8_who_came_after_the_last_attempt_of_a_call_that_gives_up_makes_one_of_his_own() {
    let engine = engine();
    let shared = &engine.shared;
    let first = join(shared);
    let mut second = join(shared);
    let last = LostAttempt::of_nobody(3);
    while time::tick() <= last.began {}
    let mut third = join(shared);

    first.give_up_for_all(&last);
    drop(first);

    assert!(matches!(second.wait(None, &[]), Woken::GivenUp(_)));
    drop(second);
    assert!(matches!(third.wait(None, &[]), Woken::Try(_)));
}

#[test]
fn a_call_that_was_on_no_list_sends_nothing_when_it_leaves() {
    let engine = engine();
    let shared = &engine.shared;

    drop(join(shared));

    assert_eq!(sent(shared), 0);
    assert!(shared.queues.is_empty());
}

fn node(number: u8) -> NodeId {
    NodeId::new(number)
}

/// The answer of a node that had this counter and has entered the call in its list.
fn held(counter: u64) -> Answer {
    Answer::Acquire(AcquireReply::Held {
        counter,
        left: None,
        queued: true,
        holder: None,
        which: None,
    })
}

const GRANTED: Answer = Answer::Acquire(AcquireReply::Accepted);

/// The lock, for a minute.
fn handed_to(owner: OwnerToken, token: impl Into<Option<u64>>) -> HandedOver {
    HandedOver {
        token: token.into(),
        record_version: RecordVersion::NONE,
        life: 60_000,
        time: 0,
        asked_from: time::tick().checked_sub(Duration::from_secs(10)),
        reads: false,
        is_question: false,
        value: SecretValue::new(&owner.to_value()),
        key: b"x".to_vec(),
    }
}

fn owner_of(ticket: &Ticket) -> OwnerToken {
    ticket.state.lock().owner.unwrap().token
}

/// A call that has asked three nodes, and its attempt, which is not decided yet.
fn asked(shared: &ManagerState) -> (QueuedCall<'_>, Arc<Ticket>, Attempt) {
    let queued = join(shared);
    let ticket = Arc::clone(&queued.ticket);
    let attempt = attempt(shared, &ticket);
    (queued, ticket, attempt)
}

fn answer(attempt: &Attempt, answers: [Answer; 3]) {
    for (node, answer) in (0..).map(NodeId::new).zip(answers) {
        attempt.round.deliver(node, answer, true);
    }
}

/// The token of the attempt that nodes have made for the call, if it is won.
fn won(ticket: &Ticket) -> Option<u64> {
    let attempt = ticket.won_by_hand_overs(&mut ticket.state.lock(), 2, &Arc::default())?;
    let AcquireEnd::Won { token } = attempt.round.end()? else {
        panic!("made and not won")
    };
    Some(token)
}

/// The node was synced anew since, or was in quarantine then.
#[test]
fn h17_what_is_handed_over_is_no_vote_for_what_was_asked_too_early() {
    let engine = engine();
    let shared = &engine.shared;
    let (_queued, ticket, attempt) = asked(shared);
    let owner = owner_of(&ticket);
    answer(&attempt, [held(1), held(1), held(1)]);
    let sent = attempt.sent.tick;
    let later = sent.checked_add(Duration::from_micros(1));
    for (number, asked_from, expected) in [
        (0, None, None),
        (1, later, None),
        (2, Some(sent), None),
        (0, Some(sent), None),
    ] {
        let notice = HandedOver {
            asked_from,
            ..handed_to(owner, 20)
        };
        assert!(shared.queues.handed_over(node(number), &notice));
        assert_eq!(won(&ticket), expected, "{number} {asked_from:?}");
    }
}

#[test]
fn what_is_handed_over_before_the_answer_of_a_node_is_no_vote_of_it() {
    let engine = engine();
    let shared = &engine.shared;
    let (_queued, ticket, attempt) = asked(shared);
    let owner = owner_of(&ticket);
    let hand_over = |number, token: u64| {
        assert!(
            shared
                .queues
                .handed_over(node(number), &handed_to(owner, token))
        );
    };

    hand_over(0, 20);
    answer(&attempt, [held(1), held(1), held(1)]);
    hand_over(1, 20);
    assert_eq!(won(&ticket), None, "one vote, and a hint");
    hand_over(0, 20);
    assert_eq!(won(&ticket), None, "it has said that once");
    hand_over(2, 20);

    assert_eq!(won(&ticket), Some(20));
}

/// RACE: T1, this call, asks again; T2, a node whose counter was lost, has handed the lock over before; T1 reads that.
#[test]
fn what_was_handed_over_is_forgotten_when_the_call_asks_again() {
    let engine = engine();
    let shared = &engine.shared;
    let (_queued, ticket, first) = asked(shared);
    let owner = owner_of(&ticket);
    answer(&first, [held(1), held(1), held(1)]);
    for number in 0..2 {
        shared
            .queues
            .handed_over(node(number), &handed_to(owner, 20));
    }

    let second = self::attempt(shared, &ticket);

    assert_eq!((owner_of(&ticket), won(&ticket)), (owner, None));
    answer(&second, [held(20), held(1), held(1)]);
    for number in 0..2 {
        shared
            .queues
            .handed_over(node(number), &handed_to(owner, 20));
    }
    assert_eq!(won(&ticket), None, "n0 has shown that counter");
    shared.queues.handed_over(node(2), &handed_to(owner, 20));
    assert_eq!(won(&ticket), None, "above some, and not above all");
}

#[test]
fn what_is_handed_to_an_owner_that_the_call_was_or_will_be_is_no_vote() {
    let engine = engine();
    let shared = &engine.shared;
    let (_queued, ticket, attempt) = asked(shared);
    answer(&attempt, [held(1), held(1), held(1)]);
    let will_be = ticket.state.lock().owner.unwrap().successor;
    let nobody = OwnerToken::draw().unwrap();

    for number in 0..3 {
        assert!(
            shared
                .queues
                .handed_over(node(number), &handed_to(will_be, 20))
        );
        let is_taken = shared
            .queues
            .handed_over(node(number), &handed_to(nobody, 20));
        assert!(!is_taken, "it is given back");
        // Neither has a token that is not the counter's.
        shared
            .queues
            .handed_over(node(number), &handed_to(owner_of(&ticket), None));
    }

    assert_eq!(won(&ticket), None);
    assert_eq!(
        ticket.state.lock().next_try(2),
        None,
        "it claims them at once"
    );
}

#[test]
fn what_is_handed_over_late_to_a_call_that_has_won_confirms_the_hold() {
    let engine = engine();
    let shared = &engine.shared;
    for (token, confirmed) in [(Some(20), 3), (Some(21), 2), (None, 2)] {
        let (queued, ticket, attempt) = asked(shared);
        let owner = owner_of(&ticket);
        answer(&attempt, [held(1), held(1), held(1)]);
        for number in 0..2 {
            shared
                .queues
                .handed_over(node(number), &handed_to(owner, 20));
        }
        let won = ticket.won_by_hand_overs(&mut ticket.state.lock(), 2, &shared.admission);
        let round = won.unwrap().round;

        assert!(shared.queues.handed_over(node(2), &handed_to(owner, token)));

        let granted = round.nodes_with(Answer::is_granted).len();
        assert_eq!(granted, confirmed, "with {token:?}");
        drop(queued);
    }
}

/// One name says nothing of the others, and nodes may hand over different permits.
#[test]
fn a_name_of_several_and_a_permit_are_hints_to_ask() {
    let engine = engine();
    let shared = &engine.shared;
    for commands in [
        LockCommands::multi(b"", [&b"x"[..], b"y"].into_iter(), KeyTtls::default()),
        LockCommands::semaphore(b"", b"x", 2, KeyTtls::default()),
    ] {
        let spec = Arc::new(LockSpec::new(&shared.config, b"x", commands));
        let request = Request::new(&spec, &shared.config, Some(shared.queues.client), None);
        let queued = QueuedCall::join(&shared.fanout, &shared.queues, &shared.admission, request);
        let ticket = Arc::clone(&queued.ticket);
        let attempt = attempt(shared, &ticket);
        answer(&attempt, [held(1), held(1), held(1)]);
        let later = time::tick().checked_add(Duration::from_secs(60));
        ticket.state.lock().try_at = later;

        for number in 0..3 {
            let notice = handed_to(owner_of(&ticket), 20);
            assert!(shared.queues.handed_over(node(number), &notice));
        }

        assert_eq!(won(&ticket), None);
        assert_eq!(ticket.state.lock().next_try(2), None, "it asks at once");
    }
}

/// The first lost round keeps what nodes have granted, for others may hand over theirs. The next claims all, once.
#[test]
fn a_call_whose_claim_is_lost_gives_back_and_goes_on_as_another_owner() {
    let engine = engine();
    let shared = &engine.shared;
    let (mut queued, ticket, first) = asked(shared);
    let Owner {
        token: owner,
        successor,
        ..
    } = ticket.state.lock().owner.unwrap();
    let before = sent(shared);

    answer(&first, [GRANTED, held(1), held(1)]);
    let Err(NotWon::Lost(lost)) = queued.finish(first) else {
        panic!("won by one vote")
    };
    assert!(!lost.is_released && sent(shared) == before);
    assert_eq!(owner_of(&ticket), owner);
    assert!(ticket.state.lock().hand_overs.nodes.contains(node(0)));

    let claim = self::attempt(shared, &ticket);
    assert!(ticket.state.lock().owner.unwrap().claims);
    answer(&claim, [GRANTED, held(1), held(1)]);
    let Err(NotWon::Lost(lost)) = queued.finish(claim) else {
        panic!("won by one vote")
    };

    assert!(lost.is_released && sent(shared) == before + 3);
    assert_eq!(owner_of(&ticket), successor);
    let asks = || ticket.state.lock().next_try(shared.queues.quorum).is_none();
    assert!(!asks());
    // The holder has released it before the nodes ran what takes the attempt back.
    for number in [1, 2] {
        let told = handed_to(owner, 20);
        assert!(shared.queues.handed_over(node(number), &told));
    }
    assert!(asks(), "nobody hands it over once more");
    assert!(
        shared
            .queues
            .handed_over(node(1), &handed_to(successor, 20))
    );
    assert_eq!(won(&ticket), None, "nothing was asked as that owner");
    let next = self::attempt(shared, &ticket);
    assert!(ticket.state.lock().owner.unwrap().successor != successor);
    drop((next, queued));
    assert!(shared.queues.is_empty(), "an owner was left behind");
}

/// RACE: T1, the call, loses its attempt and releases its owner; T2, a thread that releases a hold of this manager, enters it as
/// that owner behind it.
#[test]
fn a_call_that_asks_or_has_asked_does_not_enter_the_lists_by_a_release() {
    let engine = engine();
    let shared = &engine.shared;
    let mut queued = join(shared);
    let ticket = Arc::clone(&queued.ticket);
    let spec = Arc::clone(&ticket.request.spec);
    // It may ask, and a call beside the queue takes the lock.
    assert!(matches!(queued.wait(None, &[]), Woken::Try(_)));
    shared.queues.begin_hold(&spec, 7);
    assert!(pass_on(shared, &spec.commands).is_none(), "it asks");

    let asked = attempt(shared, &ticket);
    answer(&asked, [held(1), held(1), held(1)]);
    assert!(queued.finish(asked).is_err());
    assert!(pass_on(shared, &spec.commands).is_none(), "it is in them");
    shared.queues.end_hold(&spec.commands, 7);
    drop(queued);
    assert!(shared.queues.is_empty());
}

#[test]
fn h5_a_call_that_could_send_nothing_goes_on_as_the_same_owner_and_sends_no_release() {
    let engine = engine();
    let shared = &engine.shared;
    let (mut queued, ticket, first) = asked(shared);
    let owner = owner_of(&ticket);
    answer(&first, [held(1), held(1), held(1)]);
    assert!(queued.finish(first).is_err());
    for number in 0..2 {
        let notice = handed_to(owner, None);
        assert!(shared.queues.handed_over(node(number), &notice));
    }

    let prepared = ticket.prepare(&shared.fanout, shared.admission.enter());
    let Ok((claim, _)) = prepared else {
        panic!("no attempt")
    };
    let refused = Answer::Failed(NodeFailure::Stalled);
    for number in 0..3 {
        claim.round.deliver(node(number), refused.clone(), false);
    }
    let Err(NotWon::Lost(lost)) = queued.finish(claim) else {
        panic!("nobody was asked")
    };

    assert_eq!(lost.why, LossReason::NoQuorum);
    assert!(!lost.is_released);
    assert_eq!(owner_of(&ticket), owner);
}

#[test]
fn a_call_whose_claim_is_refused_everywhere_goes_on_as_the_same_owner() {
    let engine = engine();
    let shared = &engine.shared;
    let (mut queued, ticket, first) = asked(shared);
    let owner = owner_of(&ticket);
    let before = sent(shared);
    answer(&first, [GRANTED, held(1), held(1)]);
    assert!(queued.finish(first).is_err());

    let claim = self::attempt(shared, &ticket);
    answer(&claim, [held(1), held(1), held(1)]);
    assert!(queued.finish(claim).is_err());

    assert_eq!((owner_of(&ticket), sent(shared)), (owner, before));
}

/// RACE: T1, the call, loses its attempt; T2, a server that answers late, has granted the lock, and nobody else gets it there, nor
/// can its holder heal it; T1 asks again, and T2 is late again.
#[test]
fn a_grant_that_comes_behind_a_lost_attempt_is_given_back_by_the_next() {
    let engine = engine();
    let shared = &engine.shared;
    let (mut queued, ticket, first) = asked(shared);
    let before = sent(shared);
    let refuse = |attempt: &Attempt| {
        for number in 0..2 {
            attempt.round.deliver(node(number), held(1), true);
        }
    };
    let round = Arc::clone(&first.round);
    refuse(&first);
    assert!(queued.finish(first).is_err());
    assert_eq!(sent(shared), before);

    round.deliver(node(2), GRANTED, true);
    let claim = attempt(shared, &ticket);
    refuse(&claim);
    let Err(NotWon::Lost(lost)) = queued.finish(claim) else {
        panic!("won by one vote")
    };

    assert!(lost.is_released && sent(shared) == before + 3);
}

#[test]
fn h2_calls_that_have_left_and_holds_that_have_ended_leave_no_owner_behind() {
    let engine = engine();
    let shared = &engine.shared;
    let (mut queued, ticket, attempt) = asked(shared);
    let owner = owner_of(&ticket);
    answer(&attempt, [held(1), held(1), held(1)]);
    for number in 0..2 {
        shared
            .queues
            .handed_over(node(number), &handed_to(owner, 20));
    }
    let Woken::Won(attempt) = queued.wait(None, &[]) else {
        panic!("it was not won")
    };
    let Ok(won) = queued.finish(attempt) else {
        panic!("it was not won")
    };
    assert!(won.is_handed_over && won.waited.is_some() && won.owner == owner);
    let hold = HoldInner::new(Arc::clone(&engine.shared), 7, won);
    let left = hold.remaining().unwrap();
    assert!(
        left <= Duration::from_secs(60),
        "the life of what was handed over"
    );
    queued.leave_with(7);
    assert!(!shared.queues.is_empty(), "the hold is known by its owner");

    hold.lose(LostReason::ShutDown);

    assert!(shared.queues.is_empty());
    drop(ticket);
}

/// Each needs its first extension within a short life.
#[test]
fn h5_a_call_asks_for_what_is_handed_over_to_it_while_as_many_holds_as_may_wait_for_their_first_extension()
 {
    let engine = engine();
    let shared = &engine.shared;
    shared.admission.allow(1);
    let hand_over = || {
        let (mut queued, ticket, attempt) = asked(shared);
        answer(&attempt, [held(1), held(1), held(1)]);
        assert!(queued.finish(attempt).is_err());
        for number in 0..2 {
            let notice = handed_to(owner_of(&ticket), 20);
            shared.queues.handed_over(node(number), &notice);
        }
        (queued, ticket)
    };
    let hold = |mut queued: QueuedCall<'_>| {
        let Woken::Won(attempt) = queued.wait(None, &[]) else {
            panic!("it was not won")
        };
        let Ok(won) = queued.finish(attempt) else {
            panic!("it was not won")
        };
        HoldInner::new(Arc::clone(&engine.shared), 7, won)
    };

    let first = hold(hand_over().0);
    let (second, ticket) = hand_over();
    let wins = || ticket.won_by_hand_overs(&mut ticket.state.lock(), 2, &shared.admission);
    assert!(wins().is_none());
    assert_eq!(ticket.state.lock().next_try(2), None, "it claims the lock");
    assert!(
        shared.admission.try_enter().is_none(),
        "when it is its turn"
    );
    first.lose(LostReason::ShutDown);
    assert!(wins().is_some());
    drop(second);

    let third = hold(hand_over().0);
    assert!(!shared.admission.is_idle());
    drop(Arc::new(third).release());
    assert!(shared.admission.is_idle());
}

/// Nothing is sent for it: there is no token left.
#[test]
fn h2_a_call_that_could_not_ask_leaves_no_owner_behind() {
    let engine = engine();
    let shared = &engine.shared;
    let queued = join(shared);
    queued.ticket.state.lock().known.seen = u64::MAX;
    let prepared = queued
        .ticket
        .prepare(&shared.fanout, shared.admission.enter());
    assert!(matches!(prepared, Err(NotWon::Failed(_))));

    drop(queued);

    assert!(shared.queues.is_empty());
    assert_eq!(sent(shared), 0);
}

#[test]
fn a_call_that_leaves_gives_back_what_nodes_have_handed_over_and_hand_over_yet() {
    let engine = engine();
    let shared = &engine.shared;
    let (queued, ticket, attempt) = asked(shared);
    let owner = owner_of(&ticket);
    answer(&attempt, [held(1), held(1), held(1)]);
    let reached = attempt.round.reached();
    if let Some(owner) = &mut ticket.state.lock().owner {
        owner.reached = owner.reached.union(reached);
    }
    shared.queues.handed_over(node(0), &handed_to(owner, 20));
    let before = sent(shared);

    drop(queued);

    assert_eq!(sent(shared) - before, 3, "a release for each node");
    let is_taken = shared.queues.handed_over(node(1), &handed_to(owner, 20));
    assert!(!is_taken, "it is given back by whoever reads it");
}
