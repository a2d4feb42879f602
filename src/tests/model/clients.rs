//! Clients of small worlds: the shipped machines of a call and of a held lock.
//!
//! Worlds compare and keep states by the million. So an attempt has the number of its client's
//! state, and each state exists once. Two states are one if their debug texts are: such a text has
//! every field, and its times differ by time-outs and extensions only. A step is taken once, and
//! recorded.
//!
//! A call is a try with one acquire. Left out: further rounds, waiting calls, known quarantines, late
//! grants to a hold and the end of a lease. `fencing` and `handover` have them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ledgers::{Calm, Known, NO_MARGIN, all, now, sent_at};
use super::servers::Said;
use super::*;
use crate::call::Call;
use crate::call::steps::{Next, Terms, Win};
use crate::hold::promises::Promise;
use crate::hold::{self, Extension, Hold};
use crate::ids::{NodeSet, OwnerToken};
use crate::logic::acquire_round::Rule;
use crate::logic::ballot::Votes;

const NODES: usize = 3;
const LEASE: Duration = Duration::from_secs(3_600);

/// Commands of a call, and the numbers of its rounds.
pub(super) const ACQUIRE: u8 = 1;
pub(super) const RAISE: u8 = 2;

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Phase {
    Idle,
    Calling,
    Holding,
    Over,
}

/// A state of a client.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Client(u32);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Event {
    Begin {
        reads: bool,
        proposal: u8,
    },
    /// The answer of a node to the acquire, the raise, or the last extension.
    Answer(u8, usize, Said),
    TimeOut,
    Extend,
}

/// What comes of an event.
#[derive(Clone)]
pub(super) struct Done {
    pub(super) client: Client,
    /// What the call wants done.
    pub(super) steps: Rc<[Next]>,
    /// Nodes whose quarantines the call has checked once more: of a won one, its majority.
    pub(super) counted: NodeSet,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "each exists once")]
enum Machine {
    Call(Call),
    /// With its last extension.
    Hold(Hold, Option<Extension>),
}

#[derive(Default)]
struct Clients {
    /// Each with what has led to it.
    states: Vec<(Machine, Vec<Event>)>,
    by_text: HashMap<String, Client>,
    done: HashMap<(Option<Client>, Event), Done>,
    moved: HashMap<(Client, [usize; NODES]), Client>,
}

thread_local! {
    static CLIENTS: RefCell<Clients> = RefCell::default();
}

/// All nodes are connected, and none has a quarantine that the client knows of.
struct AllNodes {
    proposal: u8,
    checked: Cell<NodeSet>,
}

impl Known for AllNodes {
    fn time(&self) -> u64 {
        self.proposal.into()
    }

    fn quarantined_of(&self, nodes: NodeSet) -> Vec<(NodeId, NodeFailure)> {
        self.checked.set(nodes);
        vec![]
    }

    /// Simulated servers know an attempt by its place in the world.
    fn owner(&self) -> OwnerToken {
        OwnerToken::of_value(&[b'0'; 32]).unwrap()
    }
}

pub(super) fn id(node: usize) -> NodeId {
    NodeId::new(node as u8)
}

fn call(rule: Rule) -> Call {
    Call::new(Terms {
        nodes: NODES,
        rule,
        ttl: LEASE,
        margin: NO_MARGIN,
        names: Arc::default(),
        is_single: true,
        rounds: Some(1),
        began: now(sent_at(0)),
        until: None,
        end: None,
        response_timeout: LEASE,
        pauses: (Duration::ZERO, Duration::ZERO),
        outage_timeout: LEASE,
    })
}

fn hold(win: &Win, call: &Call) -> Hold {
    let terms = hold::Terms {
        nodes: NODES,
        ttl: LEASE,
        margin: NO_MARGIN,
        renewed: true,
        hold_until: None,
        grant: Promise {
            round: 0,
            sent: win.sent,
            until: win.use_until,
            number: win.token,
        },
        response_timeout: LEASE,
    };
    let mut hold = Hold::new(terms, win.is_handed_over, win.reached, sent_at(0));
    for (node, answer) in call.votes().places() {
        let is_short = win.handed.contains(node);
        if let Some(answer) = answer {
            let is_granted = is_short || answer.is_granted() && !win.gone.contains(node);
            hold.on_grant(node, answer, is_granted, is_short, sent_at(0));
        }
    }
    hold
}

impl Machine {
    /// Takes an event, and then steps until something has to come.
    fn take(&mut self, event: Event, view: &AllNodes) -> Vec<Next> {
        let mut steps = vec![];
        let mut now = now(sent_at(0));
        match self {
            Machine::Call(call) => {
                if let Event::Answer(round, node, said) = event {
                    if round == RAISE {
                        // Answers come in order: the one to the acquire is lost, if it is open.
                        let _ = call.on_answer(ACQUIRE.into(), id(node), FAILED, true, now);
                    }
                    let _ = call.on_answer(round.into(), id(node), said.vote(), true, now);
                }
                if event == Event::TimeOut {
                    now.tick += LEASE;
                }
                while !matches!(steps.last(), Some(Next::Won(_) | Next::GiveUp(_))) {
                    let next = call.next(view, now);
                    call.news.clear();
                    match &next {
                        Next::Sleep(_) => return steps,
                        Next::Rest(_) | Next::AwaitTurn(_) => panic!("{next:?} of {call:?}"),
                        Next::Ask(ask) => call.on_sent(ask.round, all()),
                        _ => {}
                    }
                    steps.push(next);
                }
                if let Some(Next::Won(win)) = steps.last() {
                    *self = Machine::Hold(hold(win, call), None);
                }
            }
            Machine::Hold(hold, last) => {
                now.moment = sent_at(hold.promises.asked as u8);
                let servers = &Calm { settable: true };
                match (event, *last) {
                    (Event::Answer(ACQUIRE, node, said), _) => {
                        let vote = said.vote();
                        hold.on_grant(id(node), &vote, vote.is_granted(), false, now.moment);
                    }
                    (Event::Answer(_, node, said), Some(last)) => {
                        hold.on_answer(&last, id(node), &said.vote(), now, servers);
                    }
                    (Event::Extend, _) => {
                        now.moment = sent_at(1 + hold.promises.asked as u8);
                        *last = hold.extend(LEASE, now, now.tick, servers).ok();
                    }
                    _ => {}
                }
                hold.news.clear();
            }
        }
        steps
    }
}

impl Clients {
    fn step(&mut self, client: Option<Client>, event: Event) -> Done {
        if let Some(done) = self.done.get(&(client, event)) {
            return done.clone();
        }
        let new = |rule| (Machine::Call(call(rule)), vec![]);
        let (mut machine, mut events) = match (client, event) {
            (Some(Client(at)), _) => self.states[at as usize].clone(),
            (None, Event::Begin { reads: true, .. }) => new(Rule::Shared),
            _ => new(Rule::Exclusive),
        };
        events.push(event);
        let Event::Begin { proposal, .. } = events[0] else {
            panic!("{events:?}")
        };
        let checked = Cell::default();
        let view = AllNodes { proposal, checked };
        let steps = machine.take(event, &view).into();
        let new = Client(self.states.len() as u32);
        let text = format!("{proposal} {machine:?}");
        let client_after = *self.by_text.entry(text).or_insert(new);
        if client_after == new {
            self.states.push((machine, events));
        }
        let done = Done {
            client: client_after,
            steps,
            counted: view.checked.get(),
        };
        self.done.insert((client, event), done.clone());
        done
    }

    /// The same client where nodes are in this order.
    fn moved(&mut self, client: Client, order: &[usize; NODES]) -> Client {
        if let Some(moved) = self.moved.get(&(client, *order)) {
            return *moved;
        }
        let mut moved = None;
        for mut event in self.states[client.0 as usize].1.clone() {
            if let Event::Answer(_, node, _) = &mut event {
                *node = order.iter().position(|it| it == node).unwrap();
            }
            moved = Some(self.step(moved, event).client);
        }
        self.moved.insert((client, *order), moved.unwrap());
        moved.unwrap()
    }
}

pub(super) fn begin(reads: bool, proposal: u8) -> Done {
    CLIENTS.with_borrow_mut(|it| it.step(None, Event::Begin { reads, proposal }))
}

impl Client {
    pub(super) fn step(self, event: Event) -> Done {
        CLIENTS.with_borrow_mut(|it| it.step(Some(self), event))
    }

    /// Looks at the answers to the acquire of a call.
    pub(super) fn votes<T>(self, look: impl FnOnce(&Votes) -> T) -> T {
        CLIENTS.with_borrow(|it| match &it.states[self.0 as usize].0 {
            Machine::Call(call) => look(call.votes()),
            Machine::Hold(hold, _) => panic!("{hold:?} is no call"),
        })
    }

    /// Looks at a held lock, and its last extension.
    pub(super) fn hold<T>(self, look: impl FnOnce(&Hold, Option<&Extension>) -> T) -> T {
        CLIENTS.with_borrow(|it| match &it.states[self.0 as usize].0 {
            Machine::Call(call) => panic!("{call:?} holds nothing"),
            Machine::Hold(hold, last) => look(hold, last.as_ref()),
        })
    }

    /// Nodes that have promised a held lock.
    pub(super) fn promised(self) -> [bool; NODES] {
        let ends = self.hold(|it, _| it.promises.ends(sent_at(0)));
        std::array::from_fn(|it| ends[it].is_some())
    }
}

/// Those of the nodes.
pub(super) fn among<N>(nodes: &mut [N], which: NodeSet) -> impl Iterator<Item = &mut N> {
    let nodes = nodes.iter_mut().enumerate();
    nodes.filter_map(move |(node, it)| which.contains(id(node)).then_some(it))
}

/// Sorts nodes with what clients have of each. Nodes are alike: their order makes no difference.
pub(super) fn sort<N: Copy + Ord, T, const A: usize>(
    nodes: &mut [N; NODES],
    attempts: &mut [T; A],
    client: impl Fn(&mut T) -> &mut Option<Client>,
) {
    let clients = attempts.each_mut().map(|it| *client(it));
    let orders = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
    let orders = orders.map(|(first, second)| [first, second, 3 - first - second]);
    let sorted = orders.map(|order| (order.map(|it| nodes[it]), order));
    let sorted = sorted.iter().filter(|it| it.0.is_sorted());
    let moved = CLIENTS.with_borrow_mut(|all| {
        let mut moved = |order| clients.map(|one| one.map(|one| all.moved(one, order)));
        sorted.map(|it| (it.0, moved(&it.1))).min().unwrap()
    });
    *nodes = moved.0;
    for (it, moved) in attempts.iter_mut().zip(moved.1) {
        *client(it) = moved;
    }
}
